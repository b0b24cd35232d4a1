# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Facts: what guards said, in a form that a file can hold. Nothing is compiled here."""

from __future__ import annotations

import copy
import enum
import functools
import json
import math
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend

from serve_warm.precompile.facts.names import literal, locate, name_of_class
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.table import Facts, decode_key, encode_key
from serve_warm.precompile.trace.guard_facts import CHECKED_ELSEWHERE, collect
from serve_warm.precompile.trace.guards import Guard


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Side(enum.Flag):
    LEFT = 1
    RIGHT = 2
    TOP = 4


def says(callee: Any, *guards: Guard) -> Facts:
    """Return the facts behind guards after a journey through a file."""
    collected = collect(guards, callee, names={"__import_math": ("math", "")})
    return Facts.from_json(json.loads(json.dumps(collected.to_json())))


def value_at(path: str, value: Any) -> Guard:
    return Guard(path=path, kind="CONSTANT_MATCH", value=value)


def broken_by(change: Callable[[Any], Any], callee: Any, *guards: Guard) -> str:
    """Return how a change breaks the facts behind guards, which hold before it."""
    known = says(callee, *guards)
    assert known.broken(callee) == ""
    change(callee)
    return known.broken(callee)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (None, 0),
        ("text", None),
        (b"1", "1"),
        ((1, 2), [1, 2]),
        ((1, 2), (2, 1)),
        (torch.float32, torch.float16),
        (torch.float32, "torch.float32"),
        (Colour.RED, Colour.BLUE),
        (Side.LEFT | Side.TOP, Side.RIGHT | Side.TOP),
        (enum.IntEnum("Scale", {"OUT": 2}).OUT, enum.IntEnum("Scale", {"OUT": 3}).OUT),
        (enum.IntFlag("Scale", {"OUT": 4}).OUT, enum.IntFlag("Scale", {"OUT": 8}).OUT),
        (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION),
        (SDPBackend.MATH, int(SDPBackend.MATH)),
        ({"a": 1}, {"a": True}),
        (torch.Size([1]), (1,)),
        (range(3), range(4)),
        (frozenset({1}), {1}),
        (np.float64(1), 1.0),
    ],
)
def test_a_value_is_told_from_its_likes(one: Any, other: Any):
    """Python calls some of these equal; code that was compiled for one is wrong for another."""
    assert literal(one) != literal(other)


@pytest.mark.parametrize("value", [math.nan, {1, 2, 3}, "a'\"\n", (1, (None, ...)), 2**70])
def test_a_value_is_equal_to_itself(value: Any):
    """Values that are equal at a start match, even if their identities differ."""
    assert literal(value) == literal(value) is not None


@pytest.mark.parametrize("value", [object(), SimpleNamespace(a=1), (1, object()), {"a": object()}])
def test_what_is_not_plain_has_no_text(value: Any):
    """An object's repr holds its address or hides its state: it may not stand for it."""
    assert literal(value) is None


@pytest.mark.parametrize(
    ("path", "break_it"),
    [
        ("callee.scale", lambda c: setattr(c, "scale", 3)),
        ("callee.scale", lambda c: delattr(c, "scale")),
        ("callee.config['rate']", lambda c: c.config.update(rate=3)),
        ("callee.config['rate']", lambda c: c.config.clear()),
        ("callee.steps[0]", lambda c: c.steps.insert(0, 7)),
        ("callee.steps[0]", lambda c: setattr(c, "steps", None)),
        ("L['callee'].scale", lambda c: setattr(c, "scale", 2.0)),
    ],
    ids=["set", "deleted", "item set", "item gone", "inserted", "none", "of another type"],
)
def test_a_changed_value_breaks_its_fact(path: str, break_it: Callable[[Any], None]):
    callee = SimpleNamespace(scale=2, config={"rate": 2}, steps=[2])
    why = broken_by(break_it, callee, value_at(path, 2))
    assert why.startswith(path.replace("L['callee']", "callee"))


def test_a_value_of_a_module_is_a_fact():
    """A global that the graph was built on is found through the module, not the callable."""
    known = says(None, value_at("G['__import_math'].pi", math.pi))
    assert known.broken(None) == ""
    assert known.path(known.facts[0][0]) == "math.pi"


@pytest.mark.parametrize("argument", ["t0", "L['t0']"])
def test_the_class_of_an_argument_needs_no_fact(argument: str):
    """The signature fixes the class. What the class holds is a fact about `torch.Tensor`."""
    itself = Guard(path=f"type({argument})", kind="CLASS_MATCH", value=torch.Tensor)
    name = value_at(f"type({argument}).__name__", "Tensor")
    assert not says(None, itself).facts
    known = says(None, itself, name)
    assert [known.path(row) for row, *_ in known.facts] == ["torch.Tensor.__name__"]


@pytest.mark.parametrize(
    ("guard", "why"),
    [
        (value_at("callee.method().x", 1), "method"),
        (value_at("G['somewhere'].x", 1), "somewhere"),
        (
            Guard(path="t0.x", kind="CONSTANT_MATCH", value=1, where="model.py:7"),
            r"t0\.x at model\.py:7 has a guard .* outside the call",
        ),
        (value_at("", 1), "which no fact can express"),
        (value_at("callee.thing", object()), "not a plain value"),
        (Guard(path="callee.a", kind="DUPLICATE_INPUT", value=torch.ones(1), argument="t0"), "t0"),
        (Guard(path="callee.a().b", kind="ID_MATCH", value=object()), "callee"),
        (Guard(path="callee.a(1).b", kind="TYPE_MATCH", value=object()), "callee"),
        (Guard(path="callee.thing", kind="ID_MATCH", value=(thing := object())), "callee"),
        (Guard(path="t0.grad", kind="TENSOR_MATCH", value=torch.ones(1)), "t0"),
        (Guard(path="callee.a[KEYS[0]]", kind="TYPE_MATCH", value=1, keys=[object()]), "callee"),
        (
            Guard(path="callee.kinds", kind="DICT_CONTAINS", value={}, argument=object()),
            "callee|t0",
        ),
        (Guard(path="callee.kinds", kind="DICT_KEYS_MATCH", value={object(): 1}), "callee"),
    ],
    ids=lambda each: f"{each.kind} {each.path}" if isinstance(each, Guard) else "",
)
def test_a_guard_that_no_fact_can_say_stops_the_entry(guard: Guard, why: str):
    """Without it the call would get a wrong answer. Its line and advice say what to change."""
    with pytest.raises(NoEntry, match=why):
        says(SimpleNamespace(thing=thing, a={}, kinds={}), guard)


def test_a_value_that_reads_differently_each_time_stops_the_entry():
    """A property that counts cannot be a fact, and may not be left out either."""

    class Counting:
        count = 5  # looked at before

        @property
        def value(self) -> int:
            self.count += 1
            return self.count

    with pytest.raises(NoEntry, match="a new value at each read"):
        says(Counting(), value_at("callee.value", 1))


def test_a_value_is_found_by_the_number_of_its_key():
    """Dynamo walks dictionaries that way; another order is another value."""
    path = "dict.__getitem__(callee.kinds, list(dict.keys(callee.kinds))[1]).size"
    first, second = SimpleNamespace(size=3), SimpleNamespace(size=5)
    callee = SimpleNamespace(kinds={"a": first, "b": second})
    known = says(callee, value_at(path, 5))
    assert known.broken(callee) == ""
    assert "was int 5" in known.broken(SimpleNamespace(kinds={"b": second, "a": first}))


ABOUT = {"DYNAMIC_INDICES": "t0", "EMPTY_NN_MODULE_HOOKS_DICT": "callee._forward_hooks"}
"""What a guard that may go is about, where it is not the process."""


@pytest.mark.parametrize("kind", CHECKED_ELSEWHERE)
def test_guards_that_the_dispatcher_checks_at_each_call_are_no_facts(kind: str):
    """The reason for which they may go says nothing of an object of the application."""
    itself = Guard(path=ABOUT.get(kind, ""), kind=kind, value=None)
    another = Guard(path="callee.thing", kind=kind, value=thing)
    assert says(SimpleNamespace(), itself) == Facts()
    with pytest.raises(NoEntry):
        says(SimpleNamespace(thing=thing), another)


@pytest.mark.parametrize(
    "key",
    [
        *("text", 3, True, None, 1.5, b"bytes", (1, (2, "x")), slice(1, None, 2), 2j),
        *(torch.float32, torch.device("cpu"), Colour.RED, dict, math.sqrt, type(None)),
    ],
    ids=repr,
)
def test_a_key_comes_back_from_a_file(key: Any):
    """Whatever a dict is looked up by: the same key is looked up at the start."""
    back = decode_key(json.loads(json.dumps(encode_key(key))))
    assert (type(back), back) == (type(key), key)


def test_a_key_that_only_its_identity_tells_from_others_has_no_form():
    """Another process has another object."""
    with pytest.raises(NoEntry, match="identity"):
        encode_key(object())


@pytest.mark.parametrize("key", [(1, 2), 1.5, None, torch.float32, Colour.RED, b"x"], ids=repr)
def test_a_value_under_any_key_is_a_fact(key: Any):
    """The graph was built on it, however it is looked up."""
    callee = SimpleNamespace(kinds={key: 2})
    path = "dict.__getitem__(callee.kinds, KEYS[0])"
    guard = Guard(path=path, kind="CONSTANT_MATCH", value=2, keys=[key])
    assert "was int 2" in broken_by(lambda c: c.kinds.update({key: 3}), callee, guard)


@pytest.mark.parametrize("key", [b"X", (1, 2), torch.float32, None], ids=repr)
def test_a_key_that_was_not_there_is_a_fact(key: Any):
    """`os.environ.get` at the build, and a variable that is set at the start."""
    guard = Guard(path="callee.table", kind="DICT_NOT_CONTAINS", value={}, argument=key)
    why = broken_by(lambda c: c.table.update({key: 1}), SimpleNamespace(table={}), guard)
    assert why.startswith("callee.table has key ")


def test_a_length_is_one_of_a_type():
    """A list of one and a tuple of one are two graphs."""
    callee = SimpleNamespace(sizes=[1])
    guard = Guard(path="callee.sizes", kind="SEQUENCE_LENGTH", value=callee.sizes)
    why = broken_by(lambda c: setattr(c, "sizes", (1,)), callee, guard)
    assert (
        why == "callee.sizes is a builtins.tuple of length 1, but was a builtins.list of length 1"
    )


class Sentinel:
    pass


def two_types(callee: Any) -> list[Guard]:
    return [
        Guard(path=f"callee.{name}", kind="TYPE_MATCH", value=value)
        for name, value in vars(callee).items()
    ]


def duplicate(callee: Any) -> list[Guard]:
    argument = "L['callee'].two"
    return [Guard(path="callee.one", kind="DUPLICATE_INPUT", value=callee.one, argument=argument)]


@pytest.mark.parametrize(
    ("first", "second", "guards", "reason"),
    [
        (Sentinel(), Sentinel(), two_types, "callee.two is now the same as callee.one"),
        ((items := [1]), items, two_types, "callee.two is no longer the same as callee.one"),
        ((t := torch.ones(2)), t, duplicate, "callee.one is no longer the same as callee.two"),
    ],
    ids=["two objects become one", "a list becomes two", "a tensor becomes two"],
)
def test_objects_that_become_one_or_two_break_a_fact(first, second, guards, reason):
    """Dynamo has no guard for `self.mode is STRICT`; a tied pair is one input of the graph."""
    callee = SimpleNamespace(one=first, two=second)
    other = copy.copy(first) if first is second else first
    assert broken_by(lambda c: setattr(c, "two", other), callee, *guards(callee)) == reason


@functools.wraps(torch.mm)
def mine(x: int) -> int:
    return x + 1


def test_what_dynamo_does_not_look_into_stops_the_entry():
    """Nothing protects the code of a function marked with `allow_in_graph`."""
    guard = Guard(path="callee.act", kind="CLOSURE_MATCH", value=mine)

    def marked(value: Any) -> str:
        return "allow_in_graph" if value is mine else ""

    with pytest.raises(NoEntry, match="does not trace it"):
        collect([guard], SimpleNamespace(act=mine), names={}, marked=marked)


def constant() -> int:
    return CONSTANT


CONSTANT = 3


def test_the_result_of_a_function_that_is_taken_for_constant_is_a_fact(monkeypatch):
    """`assume_constant_result` holds for one process, and a start is another process."""
    known = collect([], None, names={}, results=[(constant, (), {}, 3)])
    before = known.broken(None)
    monkeypatch.setitem(globals(), "CONSTANT", 4)
    assert before == ""
    assert known.broken(None).endswith("constant returns int 4, but returned int 3")


def add(x: int, y: int = 1) -> int:
    return x + y


@torch.no_grad()
def without_gradients(x: int) -> int:
    return x + 1


def also_without_gradients() -> Any:
    made = torch.no_grad()(lambda x: x + 2)
    made.__module__, made.__qualname__ = __name__, "without_gradients"
    return made


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x + 1, lambda x: x + 2),
        (functools.partial(lambda x: x + 1), functools.partial(lambda x: x + 2)),
        (add, math.sqrt),
        (functools.lru_cache(lambda x: x + 1), add),
        (mine, functools.wraps(torch.mm)(lambda x: x + 2)),
        (without_gradients, also_without_gradients()),
    ],
    ids=["lambda", "partial", "of another module", "cached", "wraps torch's", "no_grad"],
)
def test_a_function_is_more_than_its_name(one: Any, other: Any):
    """Neither `functools.wraps` of torch.mm nor `torch.no_grad` makes the code torch's."""
    guard = Guard(path="callee.act", kind="CLOSURE_MATCH", value=one)
    why = broken_by(lambda c: setattr(c, "act", other), SimpleNamespace(act=one), guard)
    assert why.startswith("callee.act is ")


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def a_class(body: Callable[[Any], Any]) -> type:
    return type("Made", (), {"__module__": __name__, "method": body})


@pytest.mark.parametrize("kind", [lambda f: f, decorated, property, staticmethod, classmethod])
def test_a_class_is_more_than_its_name(kind: Any):
    """A method that was put in place of another is seen, behind a decorator as well."""
    one = a_class(kind(lambda x: x + 1))
    same = a_class(kind(lambda x: x + 1))
    other = a_class(kind(lambda x: x + 2))
    assert name_of_class(one) == name_of_class(same)
    assert name_of_class(one) != name_of_class(other)


def test_a_method_in_the_place_of_one_that_is_gone_is_another():
    """A new function may get the address of the last one, and so its id."""
    kind = a_class(lambda x: x)
    first = kind.method
    digests = {name_of_class(kind)}
    for code in ((lambda x: x + 1).__code__, (lambda x: x + 2).__code__):
        kind.method = FunctionType(code, globals())
        digests.add(name_of_class(kind))
        kind.method = first
    assert len(digests) == 3


def test_a_class_of_torch_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch):
    """Its version is in the fingerprint; a method that an application replaced is seen."""
    before = name_of_class(torch.nn.Linear)
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: x)
    assert before == "torch.nn.modules.linear.Linear"
    assert name_of_class(torch.nn.Linear) != before


@pytest.mark.parametrize(
    ("kind", "argument", "now"),
    [
        ("TYPE_MATCH", None, None),
        ("LIST_LENGTH", None, [1]),
        ("LIST_LENGTH", None, None),
        ("DICT_KEYS_MATCH", None, {"b": 1}),
        ("DICT_KEYS_MATCH", None, 5),
        ("MAPPING_KEYS_CHECK", None, {"b": 1}),
        ("BUILTIN_MATCH", None, torch.abs),
        ("ID_MATCH", None, Colour.BLUE),
        ("CONSTANT_SUBCLASS_MATCH", None, np.float64(2)),
        ("DICT_CONTAINS", "a", {}),
        ("DICT_CONTAINS", "a", 5),
        ("HASATTR", "items", 5),
        ("NOT_PRESENT_IN_GENERIC_DICT", "extra", SimpleNamespace(extra=1)),
        ("TENSOR_MATCH", None, torch.ones(3)),
        ("TENSOR_MATCH", None, "no tensor"),
    ],
)
def test_another_object_breaks_a_fact_and_raises_nothing(kind: str, argument: Any, now: Any):
    """Whatever stands there at a start, the answer is a sentence."""
    others = {
        "TENSOR_MATCH": torch.ones(2),
        "BUILTIN_MATCH": torch.neg,
        "ID_MATCH": Colour.RED,
        "CONSTANT_SUBCLASS_MATCH": np.float64(1),
    }
    was = others.get(kind, {"a": 1, "c": 2})
    guard = Guard(path="callee.thing", kind=kind, value=was, argument=argument)
    why = broken_by(lambda c: setattr(c, "thing", now), SimpleNamespace(thing=was), guard)

    assert why.startswith("callee.thing ")


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"steps": [], "facts": [[0, "value", "int 1"]]},
        {"steps": [[3, "attribute", "x"]], "facts": []},
        {"steps": [["a"]], "facts": []},
        {"steps": 5, "facts": []},
    ],
)
def test_damaged_facts_are_not_read(plain: Any):
    """A row that points nowhere is found when it is read, not in traffic."""
    with pytest.raises((ValueError, TypeError, LookupError)):
        Facts.from_json(plain)


def test_a_module_that_is_gone_breaks_its_facts():
    known = Facts(steps=((-1, "root", "no_such_module_here"),), facts=((0, "value", "int 1"),))
    assert "no_such_module_here is gone" in known.broken(None)


def test_a_name_is_only_given_where_it_leads_back():
    """Another process finds an object by module and name, but not a local function."""
    assert locate(torch.nn.Linear) == ("torch.nn.modules.linear", "Linear")
    assert locate(math) == ("math", "")
    assert locate(lambda: 1) is None
    assert locate(type(None)) == ("types", "NoneType")  # not a name of its module, `builtins`
    assert locate(type(lambda: 1)) == ("types", "FunctionType")


def test_a_guard_of_an_unknown_kind_stops_the_entry():
    """The meaning of a new guard kind is unknown, and could be the value of a number."""
    guard = Guard(path="L['callee'].mode", kind="SOMETHING_NEW_MATCH", value=3)
    with pytest.raises(NoEntry, match="guard of the unknown kind SOMETHING_NEW_MATCH"):
        collect([guard], SimpleNamespace(mode=3), names={})
