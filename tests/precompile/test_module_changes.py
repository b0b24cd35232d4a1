# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The watch on what facts were read from. Nothing is compiled here."""

from __future__ import annotations

import collections
import contextlib
import copy
import gc
import os
import random
import re
import sys
import tracemalloc
import types
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from searched_environment import Searched
from serve_warm.precompile import change_checks, fact_sources
from serve_warm.precompile.facts import Facts, expect, take
from serve_warm.precompile.guard_facts import Guard, collect
from serve_warm.precompile.module_changes import FactWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

SCALE = 2


class Layer(nn.Module):
    size = 4
    __annotations__: dict[str, Any] = {}

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("table", torch.ones(2))
        self.rate = 2
        self.config = SimpleNamespace(rate=2, deep={"sizes": [1, 2]})
        self.items = [1, 2]
        self.kinds = {"a": 1}
        self.empty: dict[str, int] = {}
        self.names = {"a", "b"}
        self.queue = collections.deque([1])
        self.point = Slotted()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.act = closing_over(3)
        self._kept = 5

    @property
    def kept(self) -> int:
        return self._kept

    def forward(self, x: Any) -> Any:
        return x


class Config:
    rate: int


class OtherConfig:
    pass


class Slotted:
    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 2


def closing_over(value: int) -> Callable[[], int]:
    def act() -> int:
        return value

    return act


def guards_of(callee: Any, **values: str) -> list[Guard]:
    """Return a guard of a kind for each path."""
    return [
        Guard(path=path, kind=kind, value=eval(path, {"callee": callee}))
        for path, kind in values.items()
    ]


def watch_of(
    callee: Any, path: str, kind: str, argument: Any = None, **options: Callable[[], float]
) -> FactWatch:
    value = eval(path, {"callee": callee})
    guard = Guard(path=path, kind=kind, value=value, argument=argument)
    return FactWatch(callee, [collect([guard], callee, names={})], **options)


@contextlib.contextmanager
def at_each_call_of(code: CodeType, do: Callable[[], Any]) -> Iterator[None]:
    """Do something whenever this thread begins to run some code, as another thread could."""

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is code:
            do()

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        yield
    finally:
        sys.setprofile(before)


CHANGES: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "attribute": ("callee.rate", "CONSTANT_MATCH", lambda m: setattr(m, "rate", 3)),
    "its dict": ("callee.rate", "CONSTANT_MATCH", lambda m: vars(m).update(rate=3)),
    "deleted": ("callee.rate", "CONSTANT_MATCH", lambda m: delattr(m, "rate")),
    "of an object": (
        "callee.config.rate",
        "CONSTANT_MATCH",
        lambda m: setattr(m.config, "rate", 3),
    ),
    "object": (
        "callee.config.rate",
        "CONSTANT_MATCH",
        lambda m: setattr(m, "config", SimpleNamespace(rate=3)),
    ),
    "item of a list": ("callee.items[0]", "CONSTANT_MATCH", lambda m: m.items.insert(0, 7)),
    "deep item": (
        "callee.config.deep['sizes'][1]",
        "CONSTANT_MATCH",
        lambda m: m.config.deep["sizes"].reverse(),
    ),
    "list as a value": ("callee.items", "CONSTANT_MATCH", lambda m: m.items.append(3)),
    "dict as a value": ("callee.kinds", "CONSTANT_MATCH", lambda m: m.kinds.update(a=2)),
    "set as a value": ("callee.names", "CONSTANT_MATCH", lambda m: m.names.add("c")),
    "length": ("callee.items", "SEQUENCE_LENGTH", lambda m: m.items.pop()),
    "length of a deque": ("callee.queue", "SEQUENCE_LENGTH", lambda m: m.queue.append(1)),
    "keys of an empty dict": (
        "callee.empty",
        "DICT_KEYS_MATCH",
        lambda m: m.empty.update({"b": 1}),
    ),
    "keys": ("callee.kinds", "DICT_KEYS_MATCH", lambda m: m.kinds.update(b=1)),
    "slot": ("callee.point.rate", "CONSTANT_MATCH", lambda m: setattr(m.point, "rate", 3)),
    "property": ("callee.kept", "CONSTANT_MATCH", lambda m: setattr(m, "_kept", 6)),
    "class attribute": ("callee.size", "CONSTANT_MATCH", lambda m: setattr(type(m), "size", 5)),
    "shadowed": ("callee.size", "CONSTANT_MATCH", lambda m: setattr(m, "size", 5)),
    "method of a class": (
        "callee",
        "TYPE_MATCH",
        lambda m: setattr(type(m), "forward", lambda self, x: x + 1),
    ),
    "cell": (
        "callee.act.__closure__[0].cell_contents",
        "CONSTANT_MATCH",
        lambda m: setattr(m.act.__closure__[0], "cell_contents", 4),
    ),
    "inserted": (
        "callee._modules['layers']._modules['0']",
        "TYPE_MATCH",
        lambda m: m.layers.insert(0, nn.ReLU()),
    ),
    "part deleted": (
        "callee._modules['layers']._modules['1']",
        "TYPE_MATCH",
        lambda m: m.layers.__delitem__(1),
    ),
    "parameter": (
        "callee._parameters['weight']",
        "TENSOR_MATCH",
        lambda m: m._parameters.update(weight=nn.Parameter(torch.ones(3))),
    ),
    "data of a tensor": (
        "callee._buffers['table']",
        "TENSOR_MATCH",
        lambda m: setattr(m.table, "data", torch.ones(3)),
    ),
    "hook": ("callee", "TYPE_MATCH", lambda m: m.register_forward_hook(print)),
}


@pytest.fixture
def layer() -> Any:
    """A model of a class of its own, which may be changed."""
    kind: Any = type("Layer", (Layer,), {"__module__": __name__, "size": 4})
    return kind()


@pytest.mark.parametrize(
    ("path", "kind", "change"), [pytest.param(*case, id=name) for name, case in CHANGES.items()]
)
def test_a_change_is_seen_by_the_next_call(
    layer: Any, path: str, kind: str, change: Callable[[Any], Any]
):
    """Whatever a fact was read from: nothing says that it changed, and it is noticed.

    Also by another thread, which looked before the change and asks after somebody looked anew.
    """
    watch = watch_of(layer, path, kind)
    before = watch.unchanged(), watch.why_broken(0)
    of_another_thread = watch.unchanged

    change(layer)
    noticed = not watch.unchanged()
    watch.refresh()

    assert before == (True, "")
    assert noticed
    assert not of_another_thread()
    assert watch.why_broken(0) != ""
    assert watch.unchanged()


@pytest.mark.parametrize(
    "asked", [change_checks.STEADY - 1, change_checks.STEADY, 3 * change_checks.STEADY]
)
def test_a_change_is_seen_however_often_there_was_none(layer: Any, asked: int):
    """Dicts are compared in C++ once the answer was the same many times."""
    watch = watch_of(layer, "callee.config.rate", "CONSTANT_MATCH")
    steady = [watch.unchanged() for _ in range(asked)]

    layer.config.rate = 3

    assert all(steady)
    assert not watch.unchanged()


def test_what_comes_back_fits_again(layer: Any):
    """Two adapters in turn: the facts hold, do not hold and hold again."""
    watch = watch_of(layer, "callee.config.rate", "CONSTANT_MATCH")
    seen = []
    for rate in (3, 2, 3, 2):
        layer.config.rate = rate
        watch.refresh()
        seen.append(watch.why_broken(0) == "")

    assert seen == [False, True, False, True]


def test_another_order_of_an_ordered_dict_is_seen(layer: Any):
    """`move_to_end` does not change the version of the dict, not even of a dict that grew."""
    layer.order = collections.OrderedDict(a=1)
    watch = watch_of(layer, "callee.order", "DICT_KEYS_MATCH")
    layer.order["b"] = 2
    watch.refresh()
    before = watch.unchanged()

    layer.order.move_to_end("a")
    noticed = not watch.unchanged()
    watch.refresh()

    assert (before, noticed, watch.unchanged()) == (True, True, True)
    assert watch.why_broken(0).startswith("callee.order has the keys str 'b', str 'a'")


def test_a_hook_is_seen_however_long_it_takes_to_be_registered(layer: Any):
    """Its handle is made first, and there may be a call before the hook is in its table."""
    watch = watch_of(layer, "callee", "TYPE_MATCH")

    handle = RemovableHandle(layer._forward_hooks)
    watch.refresh()
    between = watch.why_broken(0)
    layer._forward_hooks[handle.id] = print
    noticed = not watch.unchanged()
    watch.refresh()

    assert (between, noticed) == ("", True)
    assert watch.why_broken(0) == "callee has 1 hooks, but had 0"


def test_a_hook_that_is_removed_is_seen(layer: Any):
    """`handle.remove()` takes it out of a dict, and says so to nobody."""
    handle = layer.register_forward_hook(lambda module, args, out: out)
    watch = watch_of(layer, "callee", "TYPE_MATCH")
    before = watch.unchanged()

    handle.remove()
    noticed = not watch.unchanged()
    watch.refresh()

    assert (before, noticed) == (True, True)
    assert watch.why_broken(0) == "callee has 0 hooks, but had 1"


def test_a_global_is_watched(monkeypatch: pytest.MonkeyPatch):
    """A name of a Python module that a forward reads."""
    guard = Guard(path="G['here'].SCALE", kind="CONSTANT_MATCH", value=SCALE)
    watch = FactWatch(None, [collect([guard], None, names={"here": (__name__, "")})])
    before = watch.unchanged()

    monkeypatch.setitem(globals(), "SCALE", 3)

    assert (before, watch.unchanged()) == (True, False)


def test_what_no_fact_is_about_is_noticed_once_or_twice_and_not_for_ever(layer: Any):
    """A count of requests in the dict of a model: its other values are compared one by one."""
    watch = watch_of(layer, "callee.rate", "CONSTANT_MATCH")
    noticed = 0
    for number in range(20):
        layer.requests = number
        if not watch.unchanged():
            noticed += 1
            watch.refresh()
    layer.rate = 3

    assert 0 < noticed <= change_checks.NOISE + 1
    assert not watch.unchanged()


IN_THE_MIDDLE: dict[str, tuple[str, Callable[[Any, int], Any]]] = {
    "dict": ("callee.kinds['a']", lambda m, value: m.kinds.update(a=value)),
    "dict with counts": (
        "callee.kinds['a']",
        lambda m, value: m.kinds.update(a=value, count=value),
    ),
    "list": ("callee.items[0]", lambda m, value: m.items.__setitem__(0, value)),
    "slot": ("callee.point.rate", lambda m, value: setattr(m.point, "rate", value)),
}
"""Where a number is that is 1 at first, and how to set it."""


@pytest.mark.parametrize(
    ("path", "put"), [pytest.param(*case, id=name) for name, case in IN_THE_MIDDLE.items()]
)
def test_what_changes_during_a_look_is_looked_at_again(
    layer: Any, path: str, put: Callable[[Any, int], Any]
):
    """Another thread sets a number back after it was remembered, and then as it was again."""
    put(layer, 1)
    watch = watch_of(layer, path, "CONSTANT_MATCH")
    if "count" in layer.kinds:
        for number in range(10):
            layer.kinds["count"] = number
            watch.refresh()

    put(layer, 7)
    with at_each_call_of(take.__code__, lambda: put(layer, 1)):
        watch.refresh()
    put(layer, 7)

    # As a dispatcher does: it looks again if anything changed, and goes by what is broken.
    if not watch.unchanged():
        watch.refresh()
    assert watch.why_broken(0) != ""


def test_a_class_stays_watched_although_it_changes_during_looks(layer: Any):
    """Another thread sets something of it, each time between two reads of a look."""
    watch = watch_of(layer, "callee.size", "CONSTANT_MATCH")
    read: Any = fact_sources.READ["class"]

    for _ in range(2 * change_checks.NOISE):
        with at_each_call_of(read.__code__, lambda: setattr(type(layer), "requests", object())):
            watch.refresh()
        watch.refresh()

    type(layer).size = 5

    assert not watch.unchanged()
    watch.refresh()
    assert watch.why_broken(0) == "callee.size is int 5, but was int 4"


def test_the_same_value_again_is_no_change(layer: Any):
    """`eval()` before each call sets each flag to its current value."""
    layer.eval()
    watch = FactWatch(
        layer,
        [collect(guards_of(layer, **{"callee.training": "CONSTANT_MATCH"}), layer, names={})],
    )

    layer.eval()
    layer.to("cpu")

    assert watch.unchanged()


def test_a_number_that_is_made_anew_is_no_change():
    """A computed property returns a new object each time, with the same value."""

    class Half:
        whole = 3

        @property
        def rate(self) -> float:
            return self.whole / 2

    callee = Half()
    watch = watch_of(callee, "callee.rate", "CONSTANT_MATCH")
    before = watch.unchanged()

    callee.whole = 5

    assert (before, watch.unchanged()) == (True, False)


def test_a_class_that_is_assigned_is_seen_within_a_second(layer: Any):
    """The one change that is looked for once a second: as many questions as there are objects."""
    now = 0.0
    layer.config = Config()
    watch = watch_of(layer, "callee.config", "TYPE_MATCH", clock=lambda: now)

    layer.config.__class__ = OtherConfig
    at_once = watch.unchanged()
    now = change_checks.RELOOK_S + 0.1
    later = watch.unchanged(), watch.unchanged()
    watch.refresh()

    assert (at_once, *later) == (True, False, False)
    assert watch.why_broken(0).startswith("callee.config is ")


def test_a_dict_that_is_assigned_is_seen_within_a_second(layer: Any):
    """Only pickling assigns a whole `__dict__`."""
    now = 0.0
    watch = watch_of(layer, "callee.rate", "CONSTANT_MATCH", clock=lambda: now)
    before = watch.unchanged()

    layer.__dict__ = {**layer.__dict__, "rate": 3}
    now += change_checks.RELOOK_S + 0.1
    noticed = not watch.unchanged()
    watch.refresh()

    assert (before, noticed, watch.unchanged()) == (True, True, True)
    assert watch.why_broken(0) == "callee.rate is int 3, but was int 2"


@pytest.mark.parametrize("wrapper", [lambda f: f, property, staticmethod], ids=lambda w: w.__name__)
def test_code_that_is_assigned_to_a_method_is_seen_within_a_second(
    wrapper: Callable[..., Any],
):
    """The class has the same function as before, and that does something else."""
    now = 0.0

    def method(self: Any) -> Any:
        return self

    kind = type("Kind", (), {"method": wrapper(method), "__module__": __name__})
    watch = watch_of(SimpleNamespace(part=kind()), "callee.part", "TYPE_MATCH", clock=lambda: now)
    before = watch.unchanged(), watch.why_broken(0)

    was, method.__code__ = method.__code__, (lambda self: (self, self)).__code__
    now += change_checks.RELOOK_S + 0.1
    noticed = not watch.unchanged()
    watch.refresh()
    why = watch.why_broken(0)
    method.__code__ = was
    now += change_checks.RELOOK_S + 0.1
    back = not watch.unchanged()
    watch.refresh()

    assert before == (True, "")
    assert (noticed, back) == (True, True)
    assert why.startswith("callee.part is ")
    assert watch.why_broken(0) == ""


@pytest.mark.parametrize("change", ["code", "method during the look"])
def test_new_code_is_seen_although_a_hook_came_in_between(change: str):
    """The look that notices the hook judges the class too, and may not trust an earlier digest."""

    def forward(self: Any, given: Any) -> Any:
        return given

    kind: Any = type("Hooked", (nn.Module,), {"__module__": __name__, "forward": forward})
    model, now = kind(), 0.0
    watch = watch_of(model, "callee", "TYPE_MATCH", clock=lambda: now)

    def replace() -> None:
        kind.forward = lambda self, given: given + 1

    handle = model.register_forward_hook(print)
    if change == "code":
        forward.__code__ = (lambda self, given: given + 1).__code__
        watch.refresh()
    else:
        with at_each_call_of(fact_sources.Sources.begin.__code__, replace):
            watch.refresh()
    handle.remove()
    watch.refresh()
    now += 10 * change_checks.RELOOK_S
    if not watch.unchanged():
        watch.refresh()

    assert re.fullmatch(r"callee is \S+Hooked \w+.*, but was \S+Hooked \w+.*", watch.why_broken(0))


def test_a_base_that_is_exchanged_is_seen_within_a_second():
    """No dict changes when a class gets another base."""
    first, second = (type(f"Of{n}", (nn.Module,), {"size": n}) for n in (4, 5))
    kind: Any = type("Rebased", (first,), {"__module__": __name__})
    now = 0.0
    watch = watch_of(kind(), "callee.size", "CONSTANT_MATCH", clock=lambda: now)
    before = watch.unchanged()

    kind.__bases__ = (second,)
    now += 1.1 * change_checks.RELOOK_S
    noticed = not watch.unchanged()
    watch.refresh()

    assert before
    assert noticed
    assert watch.why_broken(0) == "callee.size is int 5, but was int 4"


def test_the_dict_of_a_new_base_is_watched():
    """A class gets another base, and the new base changes later."""
    first, second = (type(name, (nn.Module,), {"size": 4}) for name in ("First", "Second"))
    kind: Any = type("Rebased", (first,), {"__module__": __name__})
    model = kind()
    watch = watch_of(model, "callee.size", "CONSTANT_MATCH")

    kind.__bases__ = (second,)
    model.count = 1
    watch.refresh()
    before = watch.unchanged(), watch.why_broken(0)
    second.size = 5  # type: ignore[attr-defined]
    noticed = not watch.unchanged()
    watch.refresh()

    assert before == (True, "")
    assert noticed
    assert "size" in watch.why_broken(0)


class Odd(Exception):
    """An error of user code, of no built-in kind."""


def test_a_property_that_raises_anything_hides_no_change():
    """Whatever it raises, the request goes on, and the other change is not forgotten."""

    class Moody:
        good, rate = True, 2

        @property
        def mood(self) -> int:
            if not self.good:
                raise Odd
            return 1

    callee = Moody()
    callee.rate = 2
    guards = guards_of(callee, **{"callee.mood": "CONSTANT_MATCH", "callee.rate": "CONSTANT_MATCH"})
    watch = FactWatch(callee, [collect([guard], callee, names={}) for guard in guards])

    callee.rate, callee.good = 3, False
    watch.refresh()

    assert "mood" in watch.why_broken(0)
    assert watch.why_broken(1) == "callee.rate is int 3, but was int 2"


class Interrupted:
    """Raises each of its signals once, when its `mood` is read."""

    rate = 1

    def __init__(self) -> None:
        self.signals: list[type[BaseException]] = []

    @property
    def mood(self) -> int:
        if self.signals:
            raise self.signals.pop()
        return 1


def test_a_look_that_is_interrupted_is_repeated():
    """A signal ends the look. What it had noticed before is noticed again."""
    callee = Interrupted()
    callee.rate = 2
    guards = guards_of(callee, **{"callee.mood": "CONSTANT_MATCH", "callee.rate": "CONSTANT_MATCH"})
    watch = FactWatch(callee, [collect([guard], callee, names={}) for guard in guards])

    callee.rate = 3
    callee.signals.append(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        watch.refresh()
    noticed = not watch.unchanged()
    watch.refresh()

    assert noticed
    assert watch.why_broken(1) == "callee.rate is int 3, but was int 2"
    assert (watch.why_broken(0), watch.unchanged()) == ("", True)


def test_a_look_that_is_interrupted_leaves_no_old_value():
    """Two facts read one value. After the interruption it goes back to what it was before."""
    callee = Interrupted()

    def table_at(rate: int, **more: str) -> Any:
        callee.rate = rate
        paths = {"callee.rate": "CONSTANT_MATCH", "callee.__dict__['rate']": "CONSTANT_MATCH"}
        return collect(guards_of(callee, **paths, **more), callee, names={})

    tables = [table_at(3), table_at(2, **{"callee.mood": "CONSTANT_MATCH"})]
    watch = FactWatch(callee, tables)
    callee.rate = 3
    callee.signals.append(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        watch.refresh()
    watch.refresh()
    at_three = [watch.why_broken(n) for n in (0, 1)]
    callee.rate = 2
    noticed = not watch.unchanged()
    watch.refresh()

    assert at_three == ["", "callee.rate is int 3, but was int 2"]
    assert noticed
    assert [watch.why_broken(n) for n in (0, 1)] == ["callee.rate is int 2, but was int 3", ""]


class Part(nn.Module):
    kind = "b"


class OtherPart(nn.Module):
    kind = "b"


@pytest.fixture
def parted() -> Any:
    """A model with a part whose class, made for this test, may be changed."""
    model: Any = nn.Module()
    model.part = type("Own", (Part,), {"__module__": __name__, "forward": lambda self, x: x})()
    return model


def test_code_that_changes_while_its_part_is_away_is_seen(parted: Any):
    """Nothing watches the class meanwhile, and the part comes back as it was."""
    part = parted.part
    watch = watch_of(parted, "callee._modules['part']", "TYPE_MATCH")

    parted.part = OtherPart()
    watch.refresh()
    type(part).forward = lambda self, x: x + 1
    parted.part = part
    watch.refresh()

    assert re.search(r"Own \w+.*, but was \S+Own \w+", watch.why_broken(0))


def test_attributes_of_an_assigned_class_are_read_again(parted: Any):
    """They changed while the object was of another class, so nothing was watched."""
    now, kind = 0.0, type(parted.part)
    table = watch_of(parted, "callee.part.kind", "CONSTANT_MATCH")._facts
    parted.part.__class__ = OtherPart
    watch = FactWatch(parted, [table], clock=lambda: now)

    kind.kind = "c"
    watch.refresh()
    parted.part.__class__ = kind
    now += 1.1 * change_checks.RELOOK_S
    noticed = not watch.unchanged()
    watch.refresh()

    assert noticed
    assert watch.why_broken(0) == "callee.part.kind is str 'c', but was str 'b'"


def test_a_list_of_modules_that_gets_another_dict_is_read_again(layer: Any):
    """`del layers[0]` gives a ModuleList another dict. With the part back, all facts hold."""
    layer.list = nn.ModuleList([nn.ReLU(), nn.Tanh(), nn.Sigmoid()])
    paths = [f"callee._modules['list']._modules['{n}']" for n in range(3)]
    guards = guards_of(layer, **dict.fromkeys(paths, "TYPE_MATCH"))
    watch = FactWatch(layer, [collect(guards, layer, names={})])
    first = layer.list[0]

    del layer.list[0]
    watch.refresh()
    away = watch.why_broken(0)
    layer.list.insert(0, first)
    watch.refresh()

    assert away != ""
    assert (watch.why_broken(0), watch.unchanged()) == ("", True)


def test_a_parameter_in_another_dict_of_parameters_is_seen(layer: Any):
    """The dict is replaced, and an attribute that was missing appears in the new one."""
    watch = watch_of(layer, "callee", "HASATTR", "extra")

    layer._parameters = dict(layer._parameters)
    watch.refresh()
    before = watch.why_broken(0)
    layer.register_parameter("extra", None)
    noticed = not watch.unchanged()
    watch.refresh()

    assert before == ""
    assert noticed
    assert watch.why_broken(0) == "callee has attribute 'extra' now"


def test_an_object_that_is_new_at_each_look_does_not_cost_a_look_at_each_call(layer: Any):
    """A look that finds another `__dict__` is repeated, but only once."""
    kind: Any = type("Moving", (), {"rate": 2, "__dict__": property(lambda self: {"rate": 2})})
    layer.moving = kind()
    watch = watch_of(layer, "callee.moving.rate", "CONSTANT_MATCH", clock=lambda: 0.0)
    looks = []

    for rate in (3, 2, 3, 2):
        kind.rate = rate
        looks.append(0)
        while not watch.unchanged() and looks[-1] < 9:
            watch.refresh()
            looks[-1] += 1

    assert looks == [2] * 4


def test_a_hook_in_another_dict_of_a_module_is_seen(layer: Any):
    """The module gets another `__dict__`, and then a hook. The only fact is about hooks."""
    now = 0.0
    facts = Facts(steps=((-1, "root", "callee"),), facts=((0, *expect("hooks", layer, None)),))
    watch = FactWatch(layer, [facts], clock=lambda: now)

    layer.__dict__ = dict(vars(layer))
    now += 1.1 * change_checks.RELOOK_S
    noticed = not watch.unchanged()
    watch.refresh()
    layer.register_forward_hook(print)
    watch.refresh()

    assert noticed
    assert watch.why_broken(0) == "callee has 1 hooks, but had 0"


def test_a_tensor_that_changes_during_a_look_is_looked_at_again(layer: Any):
    """Another thread changes its data after the fact was judged, before the check is built."""
    watch = watch_of(layer, "callee._parameters['weight']", "TENSOR_MATCH")

    def swap() -> None:
        layer.weight.data = torch.ones(3)

    layer.weight = nn.Parameter(torch.ones_like(layer.weight))
    with at_each_call_of(change_checks._same_tensors.__code__, swap):
        watch.refresh()
    noticed = not watch.unchanged()
    watch.refresh()

    assert noticed
    assert "float32[3]" in watch.why_broken(0)


@pytest.mark.parametrize("path", ["conf", "alias"])
def test_either_side_of_a_relation_is_watched(path: str):
    """Two attributes are one object. Whichever is exchanged, the relation is judged again."""
    model: Any = nn.Module()
    model.conf = model.alias = Config()
    guards = guards_of(model, **{"callee.conf": "TYPE_MATCH", "callee.alias": "TYPE_MATCH"})
    watch = FactWatch(model, [collect(guards, model, names={})])
    was = getattr(model, path)

    setattr(model, path, copy.copy(was))
    watch.refresh()
    apart = watch.why_broken(0)
    setattr(model, path, was)
    watch.refresh()

    assert "no longer the same" in apart
    assert watch.why_broken(0) == ""


@pytest.mark.parametrize(("gone", "left"), [("one", "two"), ("two", "one")])
def test_a_source_outlives_one_of_its_users(gone: str, left: str):
    """Two objects share a class. One of them is exchanged, and then the class changes."""
    kind: Any = type("Shared", (), {"kind": "a"})
    model: Any = nn.Module()
    model.one, model.two = kind(), kind()
    guards = guards_of(
        model, **{f"callee.{name}.kind": "CONSTANT_MATCH" for name in ("one", "two")}
    )
    watch = FactWatch(model, [collect([guard], model, names={}) for guard in guards])

    for _ in range(5):
        setattr(model, gone, Part())
        watch.refresh()
    kind.kind = "c"
    noticed = not watch.unchanged()
    watch.refresh()

    assert noticed
    assert watch.why_broken(("one", "two").index(left)) != ""


def test_the_last_source_of_each_user_outlives_many_changes(layer: Any):
    """The notes about all users are shortened from time to time."""
    layer.list, layer.config = [1, 2], Config()
    layer.config.rate = 2
    paths = {"callee.config.rate": "CONSTANT_MATCH", "callee.list": "CONSTANT_MATCH"}
    watch = FactWatch(layer, [collect(guards_of(layer, **paths), layer, names={})])
    for _ in range(50):
        layer.config = copy.copy(layer.config)
        watch.refresh()

    old = layer.list
    layer.list = [1, 2]
    watch.refresh()
    old.append(3)
    is_quiet = watch.unchanged()
    layer.list.append(3)

    assert is_quiet  # the old list is no source any more
    assert not watch.unchanged()


def test_a_parameter_that_becomes_none_hides_no_change(layer: Any):
    """The weight of a layer is removed, and later its config changes."""
    guards = guards_of(
        layer,
        **{"callee._parameters['weight']": "TENSOR_MATCH", "callee.config.rate": "CONSTANT_MATCH"},
    )
    watch = FactWatch(layer, [collect([guard], layer, names={}) for guard in guards])

    layer.weight = None
    watch.refresh()
    weight = watch.why_broken(0)
    layer.config.rate = 3
    noticed = not watch.unchanged()
    watch.refresh()

    assert "weight" in weight
    assert noticed
    assert watch.why_broken(1) == "callee.config.rate is int 3, but was int 2"


def test_entries_of_one_callable_are_told_apart(layer: Any):
    """Each state has its entry: which facts hold is known of each."""
    at_two = collect(guards_of(layer, **{"callee.rate": "CONSTANT_MATCH"}), layer, names={})
    layer.rate = 3
    at_three = collect(guards_of(layer, **{"callee.rate": "CONSTANT_MATCH"}), layer, names={})
    watch = FactWatch(layer, [at_two, at_three])
    first = [watch.why_broken(0), watch.why_broken(1)]

    layer.rate = 2
    watch.refresh()
    second = [watch.why_broken(0), watch.why_broken(1)]

    assert first == ["callee.rate is int 3, but was int 2", ""]
    assert second == ["", "callee.rate is int 2, but was int 3"]


def test_a_change_of_state_makes_no_text(layer: Any, monkeypatch: pytest.MonkeyPatch):
    """A text is searched for every credential of the environment, which takes 0.1 ms.

    A model whose adapter changes before each call made two texts for each layer at each call.
    """
    watch = watch_of(layer, "callee.rate", "CONSTANT_MATCH")
    searched = Searched(os.environ)
    monkeypatch.setattr(os, "environ", searched)

    for rate in (3, 2, 3):
        layer.rate = rate
        watch.refresh()
    before = searched.times
    why = watch.why_broken(0)

    assert (before, why) == (0, "callee.rate is int 3, but was int 2")
    assert searched.times > 0


@pytest.mark.slow
def test_weights_that_were_replaced_are_not_kept(layer: Any):
    """A model that gets other weights has memory for one set of them."""
    watch = watch_of(layer, "callee._parameters['weight']", "TENSOR_MATCH")
    watch = FactWatch(layer, [watch._facts.with_inputs(layer, {id(layer.weight)})])
    gone = weakref.ref(layer.weight)

    layer.weight = nn.Parameter(torch.ones(2))
    gc.collect()

    assert gone() is None
    assert not watch.unchanged()


@pytest.mark.slow
def test_thousands_of_changes_need_no_memory(layer: Any):
    """A model whose parts are exchanged keeps neither the old parts nor notes about them."""
    layer.config = Config()
    layer.config.rate = 2
    watch = watch_of(layer, "callee.config.rate", "CONSTANT_MATCH")

    def exchange(times: int) -> int:
        for _ in range(times):
            layer.config = copy.copy(layer.config)
            watch.refresh()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        grown = -exchange(100) + exchange(3000)
    finally:
        tracemalloc.stop()
    gone = weakref.ref(layer.config)
    layer.config = copy.copy(layer.config)
    watch.refresh()
    gc.collect()

    assert grown < 20_000
    assert gone() is None
    assert (watch.why_broken(0), watch.unchanged()) == ("", True)


def test_a_failing_property_breaks_a_fact_and_raises_nothing():
    """An error of user code is a reason, and does not end a request."""

    class Moody:
        good = True

        @property
        def rate(self) -> int:
            if not self.good:
                raise ValueError("not today")
            return 2

    callee = Moody()
    watch = watch_of(callee, "callee.rate", "CONSTANT_MATCH")

    callee.good = False
    noticed = not watch.unchanged()
    watch.refresh()

    assert noticed
    assert "not today" in watch.why_broken(0)


def test_code_of_a_function_is_watched(layer: Any):
    """A decorator keeps the wrapped function in a closure cell."""
    watch = watch_of(layer, "callee.act", "CLOSURE_MATCH")

    layer.act.__closure__[0].cell_contents = lambda: 5

    assert isinstance(layer.act, types.FunctionType)
    assert not watch.unchanged()


class Mapped:
    """Looks attributes up in its own way, as a config of transformers does."""

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, {"width": "size"}.get(name, name))


def test_an_attribute_that_is_not_there_is_no_change(layer: Any):
    """Each call asks for it again, and it is a change only once it is there."""
    place = layer.place = Mapped()
    guard = Guard(path="callee.place", kind="HASATTR", value=place, argument="rate")
    watch = FactWatch(layer, [collect([guard], layer, names={})])
    before = watch.unchanged(), watch.unchanged()

    place.rate = 1

    assert before == (True, True)
    assert not watch.unchanged()


UNDONE: dict[str, Callable[[Any], Any]] = {
    "rate": lambda m: setattr(m, "rate", 2),
    "config": lambda m: setattr(m, "config", SimpleNamespace(rate=2, deep={"sizes": [1, 2]})),
    "config swapped": lambda m: vars(m).update(config=m.away, away=m.config),
    "config copied": lambda m: setattr(m, "config", copy.copy(m.config)),
    "new parameters": lambda m: setattr(m, "_parameters", dict(m._parameters)),
    "new dict": lambda m: setattr(m, "__dict__", dict(vars(m))),
    "class attribute": lambda m: setattr(type(m), "size", 5),
    "class attribute back": lambda m: setattr(type(m), "size", 4),
    "method": lambda m: setattr(type(m), "forward", lambda self, given: given + 1),
    "code": lambda m: setattr(
        type(m).forward, "__code__", (lambda self, given: given * 2).__code__
    ),
    "layer swapped": lambda m: setattr(m, "layers", m.layers[::-1]),
    "layer removed": lambda m: m.layers.__delitem__(0),
    "layer's class": lambda m: setattr(m.layers[0], "__class__", OtherPart),
    "hook": lambda m: m.register_forward_hook(print),
    "no hook": lambda m: m._forward_hooks.clear(),
}
"""More changes, which bring earlier values back or change what others read."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_facts_are_judged_as_by_a_new_watch_after_any_changes(seed: int):
    """Random changes in random order. The old watch may not know less than a new one."""
    choose = random.Random(seed)

    def forward(self: Any, given: Any) -> Any:
        return given

    kind: Any = type("Any", (Layer,), {"__module__": __name__, "size": 4, "forward": forward})
    layer, now = kind(), 0.0
    layer.away = copy.deepcopy(layer.config)
    places = dict.fromkeys((path, kind) for path, kind, _ in CHANGES.values())
    tables = [watch_of(layer, *place)._facts for place in places]
    watch = FactWatch(layer, tables, clock=lambda: now)
    changes = {**{name: change for name, (_, _, change) in CHANGES.items()}, **UNDONE}

    made: list[str] = []
    for _ in range(30):
        made.append(choose.choice(list(changes)))
        with contextlib.suppress(Exception):  # what is changed may be gone by now
            changes[made[-1]](layer)
        now += choose.choice([0.0, 0.0, 1.1]) * change_checks.RELOOK_S
        if not watch.unchanged():
            watch.refresh()
        if choose.random() < 0.5:  # changes that are seen within a second may come later
            continue
        now += 1.1 * change_checks.RELOOK_S
        if not watch.unchanged():
            watch.refresh()
        new = FactWatch(layer, tables)
        numbers = range(len(tables))
        assert [watch.why_broken(n) for n in numbers] == [new.why_broken(n) for n in numbers], made
