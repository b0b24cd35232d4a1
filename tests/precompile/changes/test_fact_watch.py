# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The watch on what facts were read from. Nothing is compiled here."""

from __future__ import annotations

import collections
import contextlib
import copy
import gc
import random
import re
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from components import require_module
from serve_warm.precompile.changes import unchanged as change_checks
from serve_warm.precompile.changes.fact_watch import FactWatch
from serve_warm.precompile.facts.table import take
from serve_warm.precompile.trace.guard_facts import collect
from serve_warm.precompile.trace.guards import Guard

SCALE = 2

VALUE, LENGTH, KEYS = "CONSTANT_MATCH", "SEQUENCE_LENGTH", "DICT_KEYS_MATCH"
TYPE, TENSOR = "TYPE_MATCH", "TENSOR_MATCH"
"""Kinds of guards."""

DEEP, CELL = "callee.config.deep['sizes'][1]", "callee.act.__closure__[0].cell_contents"
PART = "callee._modules['layers']._modules['{}']"
WEIGHT, TABLE = "callee._parameters['weight']", "callee._buffers['table']"


class Layer(nn.Module):
    size = width = 4
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


class OtherConfig(Config):
    rate = 3


def refill(layer: Any, value: Any) -> None:
    layer.act.__closure__[0].cell_contents = value


class Slotted:
    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 2


class OtherSlotted(Slotted):
    __slots__ = ()


def closing_over(value: int) -> Callable[[], int]:
    def act() -> int:
        return value

    return act


def guards_of(callee: Any, /, **values: str) -> list[Guard]:
    """Return a guard of a kind for each path."""
    return [
        Guard(path=path, kind=kind, value=eval(path, {"callee": callee}))
        for path, kind in values.items()
    ]


def watch_of(callee: Any, path: str, kind: str) -> FactWatch:
    return watch_of_each(callee, **{path: kind})


def watch_of_each(callee: Any, /, **values: str) -> FactWatch:
    """Return a watch of an entry for each path."""
    guards = guards_of(callee, **values)
    return FactWatch(callee, [collect([guard], callee, names={}) for guard in guards])


def sees(watch: FactWatch) -> bool:
    """Return whether a watch has noticed a change, and look anew."""
    noticed = not watch.unchanged()
    watch.refresh()
    return noticed


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
    "attribute": ("callee.rate", VALUE, lambda m: setattr(m, "rate", 3)),
    "its dict": ("callee.rate", VALUE, lambda m: vars(m).update(rate=3)),
    "deleted": ("callee.rate", VALUE, lambda m: delattr(m, "rate")),
    "of an object": ("callee.config.rate", VALUE, lambda m: setattr(m.config, "rate", 3)),
    "object": ("callee.config.rate", VALUE, lambda m: setattr(m, "config", OtherConfig())),
    "item of a list": ("callee.items[0]", VALUE, lambda m: m.items.insert(0, 7)),
    "deep item": (DEEP, VALUE, lambda m: m.config.deep["sizes"].reverse()),
    "list as a value": ("callee.items", VALUE, lambda m: m.items.append(3)),
    "dict as a value": ("callee.kinds", VALUE, lambda m: m.kinds.update(a=2)),
    "set as a value": ("callee.names", VALUE, lambda m: m.names.add("c")),
    "length": ("callee.items", LENGTH, lambda m: m.items.pop()),
    "length of a deque": ("callee.queue", LENGTH, lambda m: m.queue.append(1)),
    "keys of an empty dict": ("callee.empty", KEYS, lambda m: m.empty.update({"b": 1})),
    "keys": ("callee.kinds", KEYS, lambda m: m.kinds.update(b=1)),
    "slot": ("callee.point.rate", VALUE, lambda m: setattr(m.point, "rate", 3)),
    "property": ("callee.kept", VALUE, lambda m: setattr(m, "_kept", 6)),
    "class attribute": ("callee.size", VALUE, lambda m: setattr(type(m), "size", 5)),
    "shadowed": ("callee.size", VALUE, lambda m: setattr(m, "size", 5)),
    "method of a class": (
        "callee",
        TYPE,
        lambda m: setattr(type(m), "forward", lambda self, x: x + 1),
    ),
    "cell": (CELL, VALUE, lambda m: refill(m, 4)),
    "function of a decorator": ("callee.act", "CLOSURE_MATCH", lambda m: refill(m, lambda: 5)),
    "inserted": (PART.format(0), TYPE, lambda m: m.layers.insert(0, nn.ReLU())),
    "part deleted": (PART.format(1), TYPE, lambda m: m.layers.__delitem__(1)),
    "parameter": (
        WEIGHT,
        TENSOR,
        lambda m: m._parameters.update(weight=nn.Parameter(torch.ones(3))),
    ),
    "data of a tensor": (TABLE, TENSOR, lambda m: setattr(m.table, "data", torch.ones(3))),
    "hook": ("callee", TYPE, lambda m: m.register_forward_hook(print)),
}


@pytest.fixture
def layer() -> Any:
    """A model of a class of its own, which may be changed."""
    kind: Any = type("Layer", (Layer,), {"__module__": __name__, "size": 4})
    return kind()


@pytest.mark.parametrize(
    ("path", "kind", "change"), [pytest.param(*case, id=name) for name, case in CHANGES.items()]
)
def test_a_change_is_seen_by_the_next_call(layer, path, kind, change):
    """Also by another thread, which looked before it and asks after somebody looked anew."""
    watch = watch_of(layer, path, kind)
    before = watch.unchanged(), watch.why_broken(0)
    of_another_thread = watch.unchanged
    change(layer)

    assert before == (True, "")
    assert sees(watch)
    assert not of_another_thread()
    assert watch.why_broken(0) != ""
    assert watch.unchanged()


@pytest.mark.parametrize(
    "asked", [change_checks.STEADY - 1, change_checks.STEADY, 3 * change_checks.STEADY]
)
def test_a_change_is_seen_however_often_there_was_none(layer: Any, asked: int):
    """Dicts are compared in C++ once the answer was the same many times."""
    watch = watch_of(layer, "callee.config.rate", VALUE)
    steady = [watch.unchanged() for _ in range(asked)]
    layer.config.rate = 3
    assert all(steady)
    assert not watch.unchanged()


def test_what_comes_back_fits_again(layer: Any):
    """Two adapters in turn. Each state has its entry: which facts hold is known of each."""
    tables = []
    for rate in (2, 3):
        layer.rate = rate
        guards = guards_of(layer, **{"callee.rate": VALUE})
        tables.append(collect(guards, layer, names={}))
    watch = FactWatch(layer, tables)
    seen = [[watch.why_broken(0), watch.why_broken(1)]]
    for rate in (2, 3, 2):
        layer.rate = rate
        watch.refresh()
        seen.append([watch.why_broken(0), watch.why_broken(1)])

    at_three = ["callee.rate is int 3, but was int 2", ""]
    at_two = ["", "callee.rate is int 2, but was int 3"]
    assert seen == [at_three, at_two, at_three, at_two]


def test_another_order_of_an_ordered_dict_is_seen(layer: Any):
    """`move_to_end` does not change the version of the dict, not even of a dict that grew."""
    layer.order = collections.OrderedDict(a=1)
    watch = watch_of(layer, "callee.order", KEYS)
    layer.order["b"] = 2
    watch.refresh()
    before = watch.unchanged()
    layer.order.move_to_end("a")
    assert (before, sees(watch), watch.unchanged()) == (True, True, True)
    assert watch.why_broken(0).startswith("callee.order has the keys str 'b', str 'a'")


def test_a_global_is_watched(monkeypatch: pytest.MonkeyPatch):
    guard = Guard(path="G['here'].SCALE", kind=VALUE, value=SCALE)
    watch = FactWatch(None, [collect([guard], None, names={"here": (__name__, "")})])
    before = watch.unchanged()
    monkeypatch.setitem(globals(), "SCALE", 3)
    assert (before, watch.unchanged()) == (True, False)


def test_what_no_fact_is_about_is_noticed_once_or_twice_and_not_for_ever(layer: Any):
    """A count of requests in the dict of a model: its other values are compared one by one."""
    watch = watch_of(layer, "callee.rate", VALUE)
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
def test_what_changes_during_a_look_is_looked_at_again(layer, path, put):
    """Another thread sets a number back after it was remembered, and then as it was again."""
    put(layer, 1)
    watch = watch_of(layer, path, VALUE)
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


def test_the_same_value_again_is_no_change(layer: Any):
    """`eval()` before each call sets each flag to its current value."""
    layer.eval()
    watch = watch_of(layer, "callee.training", VALUE)
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
    watch = watch_of(callee, "callee.rate", VALUE)
    before = watch.unchanged()

    callee.whole = 5

    assert (before, watch.unchanged()) == (True, False)


class WiderLayer(Layer):
    width = 5


WITHIN_A_SECOND: dict[str, tuple[str, str, Callable[[Any], Any], str]] = {
    "a class": (
        "callee.point",
        TYPE,
        lambda m: setattr(m.point, "__class__", OtherSlotted),
        "callee.point is ",
    ),
    "a dict, as only pickling does": (
        "callee.rate",
        VALUE,
        lambda m: setattr(m, "__dict__", {**vars(m), "rate": 3}),
        "callee.rate is int 3, but was int 2",
    ),
    "a base, which changes no dict": (
        "callee.width",
        VALUE,
        lambda m: setattr(type(m), "__bases__", (WiderLayer,)),
        "callee.width is int 5, but was int 4",
    ),
}
"""Changes that are looked for once a second: as many questions as there are objects."""


@pytest.mark.parametrize(
    ("path", "kind", "change", "why"),
    [pytest.param(*case, id=name) for name, case in WITHIN_A_SECOND.items()],
)
def test_what_is_assigned_is_seen_within_a_second(  # noqa: PLR0917 - a table
    layer: Any,
    path: str,
    kind: str,
    change: Callable[[Any], Any],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """Not at once, and then at each call until somebody looks."""
    now = 0.0
    monkeypatch.setattr(change_checks, "clock", lambda: now)
    watch = watch_of(layer, path, kind)
    change(layer)
    at_once = watch.unchanged()
    now = change_checks.RELOOK_S + 0.1
    later = watch.unchanged(), watch.unchanged()
    watch.refresh()

    assert (at_once, *later, watch.unchanged()) == (True, False, False, True)
    assert watch.why_broken(0).startswith(why)


@pytest.mark.parametrize("wrapper", [lambda f: f, property, staticmethod], ids=lambda w: w.__name__)
def test_code_that_is_assigned_to_a_method_is_seen_within_a_second(monkeypatch, wrapper):
    """The class has the same function as before, and that does something else."""
    now = 0.0

    def method(self: Any) -> Any:
        return self

    kind = type("Kind", (), {"method": wrapper(method), "__module__": __name__})
    monkeypatch.setattr(change_checks, "clock", lambda: now)
    watch = watch_of(SimpleNamespace(part=kind()), "callee.part", TYPE)
    before = watch.unchanged(), watch.why_broken(0)

    was, method.__code__ = method.__code__, (lambda self: (self, self)).__code__
    now += change_checks.RELOOK_S + 0.1
    noticed, why = sees(watch), watch.why_broken(0)
    method.__code__ = was
    now += change_checks.RELOOK_S + 0.1

    assert before == (True, "")
    assert (noticed, sees(watch)) == (True, True)
    assert why.startswith("callee.part is ")
    assert watch.why_broken(0) == ""


class Odd(Exception):
    """An error of user code, of no built-in kind."""


@pytest.mark.parametrize("kind", [Odd, ValueError])
def test_a_property_that_raises_anything_hides_no_change(kind: type[Exception]):
    """Whatever it raises is a reason: the request goes on, and the other change is known."""

    class Moody:
        good, rate = True, 2

        @property
        def mood(self) -> int:
            if not self.good:
                raise kind("not today")
            return 1

    callee = Moody()
    callee.rate = 2
    watch = watch_of_each(callee, **{"callee.mood": VALUE, "callee.rate": VALUE})

    callee.rate, callee.good = 3, False

    assert sees(watch)
    assert re.search("mood.*not today", watch.why_broken(0))
    assert watch.why_broken(1) == "callee.rate is int 3, but was int 2"


class Part(nn.Module):
    kind = "b"


class OtherPart(nn.Module):
    kind = "b"


def test_a_tensor_that_changes_during_a_look_is_looked_at_again(layer: Any):
    """Another thread changes its data after the fact was judged, before the check is built."""
    watch = watch_of(layer, WEIGHT, TENSOR)

    def swap() -> None:
        layer.weight.data = torch.ones(3)

    layer.weight = nn.Parameter(torch.ones_like(layer.weight))
    with at_each_call_of(change_checks._same_tensors.__code__, swap):
        watch.refresh()
    assert sees(watch)
    assert "float32[3]" in watch.why_broken(0)


@pytest.mark.parametrize("path", ["conf", "alias"])
def test_either_side_of_a_relation_is_watched(path: str):
    """Two attributes are one object. Whichever is exchanged, the relation is judged again."""
    model: Any = nn.Module()
    model.conf = model.alias = Config()
    guards = guards_of(model, **{"callee.conf": TYPE, "callee.alias": TYPE})
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
    watch = watch_of_each(model, **{"callee.one.kind": VALUE, "callee.two.kind": VALUE})
    for _ in range(5):
        setattr(model, gone, Part())
        watch.refresh()
    kind.kind = "c"

    assert sees(watch)
    assert watch.why_broken(("one", "two").index(left)) != ""


def test_a_parameter_that_becomes_none_hides_no_change(layer: Any):
    kinds = {WEIGHT: TENSOR, "callee.config.rate": VALUE}
    watch = watch_of_each(layer, **kinds)
    layer.weight = None
    watch.refresh()
    weight = watch.why_broken(0)
    layer.config.rate = 3

    assert "weight" in weight
    assert sees(watch)
    assert watch.why_broken(1) == "callee.config.rate is int 3, but was int 2"


@pytest.mark.slow
def test_weights_that_were_replaced_are_not_kept(layer: Any):
    """A model that gets other weights has memory for one set of them."""
    watch = watch_of(layer, WEIGHT, TENSOR)
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
    watch = watch_of(layer, "callee.config.rate", VALUE)

    def exchange(times: int) -> int:
        for _ in range(times):
            layer.config = copy.copy(layer.config)
            watch.refresh()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        grown = -exchange(100) + exchange(10_000)
    finally:
        tracemalloc.stop()
    gone = weakref.ref(layer.config)
    layer.config = copy.copy(layer.config)
    watch.refresh()
    gc.collect()

    # One pointer for each exchange would be 80,000 bytes; other threads need some, too.
    assert grown < 70_000
    assert gone() is None
    assert (watch.why_broken(0), watch.unchanged()) == ("", True)
    layer.config.rate = 3
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
def test_facts_are_judged_as_by_a_new_watch_after_any_changes(seed, monkeypatch):
    """Random changes in random order. The old watch may not know less than a new one."""
    choose = random.Random(seed)

    def forward(self: Any, given: Any) -> Any:
        return given

    kind: Any = type("Any", (Layer,), {"__module__": __name__, "size": 4, "forward": forward})
    layer, now = kind(), 0.0
    layer.away = copy.deepcopy(layer.config)
    places = dict.fromkeys((path, kind) for path, kind, _ in CHANGES.values())
    tables = [watch_of(layer, *place)._facts for place in places]
    monkeypatch.setattr(change_checks, "clock", lambda: now)
    watch = FactWatch(layer, tables)
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


# Configurations of `transformers`, whose attributes are read through Python code --------------

HIDDEN = "callee.config.hidden_size"
"""Attribute that the class's `attribute_map` reads as `n_embd`."""
LAYERS = "callee.config.n_layer"
MISSING = "is_causal"
DIFFERING = SimpleNamespace(per_layer_attributes={"n_layer"})


def _own_reader(self: Any, name: str) -> Any:
    return 77 if name == "n_layer" else object.__getattribute__(self, name)


CONFIG_CHANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "an attribute": (LAYERS, lambda c: setattr(c, "n_layer", 5)),
    "an attribute by its other name": (HIDDEN, lambda c: setattr(c, "hidden_size", 5)),
    "the dict": (HIDDEN, lambda c: vars(c).update(n_embd=5)),
    "a deleted attribute": (LAYERS, lambda c: vars(c).pop("n_layer")),
    "a name of the map": (HIDDEN, lambda c: c.attribute_map.update(hidden_size="n_layer")),
    "a name removed from the map": (HIDDEN, lambda c: c.attribute_map.pop("hidden_size")),
    "a name new in the map": (LAYERS, lambda c: c.attribute_map.update(n_layer="n_embd")),
    "another map": (HIDDEN, lambda c: setattr(type(c), "attribute_map", {"hidden_size": "n_head"})),
    "a map of the instance": (HIDDEN, lambda c: vars(c).update(attribute_map={})),
    "a property": (LAYERS, lambda c: setattr(type(c), "n_layer", property(lambda _: 5))),
    "another reader": (LAYERS, lambda c: setattr(type(c), "__getattribute__", _own_reader)),
    "layers that differ": (LAYERS, lambda c: vars(c).update(_heterogeneity_spec=DIFFERING)),
}


@pytest.fixture
def callee() -> Any:
    """An object with a configuration of a class of its own, which may be changed."""
    transformers = require_module("transformers", "pip install transformers")
    kind = type("Config", (transformers.GPT2Config,), {"attribute_map": {"hidden_size": "n_embd"}})
    return SimpleNamespace(config=kind(n_embd=48, n_layer=3))


def config_watch(callee: Any, path: str, kind: str = "CONSTANT_MATCH", argument: Any = None) -> Any:
    guard = Guard(path=path, kind=kind, value=eval(path, {"callee": callee}), argument=argument)
    return FactWatch(callee, [collect([guard], callee, names={})])


@pytest.mark.parametrize(("path", "change"), CONFIG_CHANGES.values(), ids=CONFIG_CHANGES)
def test_a_change_of_a_configuration_is_noticed_by_the_next_call(callee, path, change):
    """The check reads versions of dicts instead of the attribute; each of them is checked."""
    watch = config_watch(callee, path)
    before = watch.unchanged(), watch.why_broken(0)
    change(callee.config)
    noticed = not watch.unchanged()
    watch.refresh()
    assert before == (True, "")
    assert noticed
    assert watch.why_broken(0) != ""


def test_a_missing_attribute_is_noticed_once_it_exists(callee: Any):
    """A model may ask for an attribute that only some configurations have."""
    watch = config_watch(callee, "callee.config", "HASATTR", MISSING)
    before = watch.unchanged()
    setattr(callee.config, MISSING, True)
    assert before
    assert not watch.unchanged()


def test_a_check_runs_no_code_of_the_configuration(callee: Any):
    """A model reads dozens of attributes, and each read takes 2 µs."""
    watch = config_watch(callee, HIDDEN)
    ran: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            ran.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        assert watch.unchanged()
    finally:
        sys.setprofile(None)

    assert ran
    assert not [file for file in ran if "transformers" in file]
