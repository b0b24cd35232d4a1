# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows for each kind of guard that Dynamo installs. Each changes what its guard protects.

A kind that no row causes has a synthetic row: while the entry is made, another guard gets the name
of this kind, and serve_warm must refuse the entry.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import itertools
import math
import os
import re
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode

from soundness.rows import (
    START,
    Group,
    Numbered,
    both,
    grad_on,
    group,
    numbered,
    put,
    put_item,
    row,
    x,
)

# What rows change ------------------------------------------------------------------------------

VARIABLE = "SERVE_WARM_SOUNDNESS"


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Number(int):
    """A subclass of int."""


class Fraction(float):
    """A subclass of float."""


class Sizes:
    def __init__(self) -> None:
        self.scale = 2


class OtherSizes(Sizes):
    pass


STRICT, LOOSE = object(), object()
"""Sentinels, as libraries have them."""

NUMBER = 2
OPERATOR = max
KIND: type = Sizes
LIBRARY: Any = math
TABLE: dict[Any, Any] = {}
MODE = STRICT


def double(value: float) -> float:
    return value * 1


def triple(value: float) -> float:
    return value * 1.5


FUNCTION = double


def closing(value: int) -> Any:
    def number() -> int:
        return value

    return number


def item(key: Any, value: Any = 3, name: str = "table") -> Any:
    """Return a change that adds an item to a container of the module."""
    return lambda app: put_item(getattr(app, name), key, value)


def add(key: Any) -> Any:
    return lambda app: app.members.add(key)


def in_order(*members: Any) -> set[Any]:
    """Return a set that was filled in this order."""
    made: set[Any] = set()
    refill(made, *members)
    return made


def refill(filled: set[Any], *members: Any) -> None:
    filled.clear()
    for member in members:
        filled.add(member)


def proxied() -> dict[str, Any]:
    table = collections.OrderedDict(a=1)
    return {"table": table, "proxy": types.MappingProxyType(table)}


def first(*of: Any) -> Any:
    return of[0]


OF_ALL = first


def first(of: Any) -> Any:  # type: ignore[no-redef]
    return of[0]


OF_ONE = first


def stepping(make: Any) -> Any:
    """Return a call that first replaces the iterator, because every call advances it."""

    def call(f: Any) -> Any:
        f.config.steps = make()
        return f(x())

    return call


def attribute(name: str, value: Any, of: str = "config") -> Any:
    return lambda app: setattr(getattr(app, of), name, value)


def global_(name: str, value: Any) -> Any:
    import sys

    return lambda app: put(sys.modules[__name__], name, value)


def table(**held: Any) -> Any:
    return lambda: {"table": {"other": 0}, **held}


def with_proxy() -> dict[str, Any]:
    held = {"a": 1, "c": 1}
    return {"table": held, "proxy": types.MappingProxyType(held)}


def config(**values: Any) -> Any:
    return lambda: {"config": SimpleNamespace(**values)}


def configured(name: str, number: Any, before: Any, after: Any, *guards: str) -> Group:
    """Return a group whose number depends on `self.config.value`."""
    return numbered(name, number, attribute("value", after), config(value=before), guards=guards)


# Rows whose numbers come from somewhere else ---------------------------------------------------

KEYS: dict[str, Any] = {
    "a str": "key",
    "an int": 7,
    "a bool": True,
    "None": None,
    "a float": 1.5,
    "a tuple": (1, 2),
    "a nested tuple": ("a", (1, 2)),
    "bytes": b"key",
    "a dtype": torch.float32,
    "a device": torch.device("cpu"),
    "an enum": Color.RED,
    "a class": Sizes,
    "a frozenset": frozenset({1, 2}),
}

CONTAINS = (
    *(
        numbered(
            f"dict contains {name}",
            lambda self, key=key: 3 if key in self.table else 2,
            item(key),
            table(),
        )
        for name, key in KEYS.items()
    ),
    *(
        numbered(
            f"dict no longer contains {name}",
            lambda self, key=key: 2 if key in self.table else 3,
            lambda app, key=key: app.table.pop(key),
            lambda key=key: {"table": {key: 1, "other": 1}},
        )
        for name, key in KEYS.items()
        if name in ("a str", "a tuple", "a dtype", "an enum", "None")
    ),
    *(
        numbered(
            f"object under {name}",
            lambda self, key=key: self.table[key].scale,
            lambda app, key=key: setattr(app.table[key], "scale", 3),
            lambda key=key: {"table": {key: SimpleNamespace(scale=2)}},
        )
        for name, key in KEYS.items()
    ),
    *(
        numbered(
            f"set contains {name}",
            lambda self, key=key: 3 if key in self.members else 2,
            add(key),
            lambda: {"members": {"other"}},
        )
        for name, key in KEYS.items()
        if name in ("a str", "an int", "a tuple", "a dtype", "an enum", "None", "a float")
    ),
    # In the rows above, the key is the value of a default, which has its own guards.
    numbered(
        "dict contains a literal",
        lambda self: 3 if "key" in self.table else 2,
        item("key"),
        table(),
        guards=("DICT_NOT_CONTAINS",),
    ),
    numbered(
        "dict no longer contains a literal",
        lambda self: 2 if "key" in self.table else 3,
        lambda app: app.table.pop("key"),
        lambda: {"table": {"key": 1, "other": 1}},
        guards=("DICT_CONTAINS",),
    ),
    numbered(
        "set contains a literal",
        lambda self: 3 if "key" in self.members else 2,
        add("key"),
        lambda: {"members": {"other"}},
        guards=("SET_NOT_CONTAINS",),
    ),
    numbered(
        "set no longer contains a literal",
        lambda self: 2 if "key" in self.members else 3,
        lambda app: app.members.remove("key"),
        lambda: {"members": {"key"}},
        guards=("SET_CONTAINS",),
    ),
    *(
        numbered(name, number, lambda app: put_item(os.environ, VARIABLE, "1"))
        for name, number in {
            "os.getenv": lambda self: 3 if os.getenv(VARIABLE) else 2,
            "os.environ.get": lambda self: 3 if os.environ.get(VARIABLE) else 2,
            "in os.environ": lambda self: 3 if VARIABLE in os.environ else 2,
        }.items()
    ),
    numbered(
        "value in os.environ",
        lambda self: 3 if os.environ.get("SOUNDNESS_MODE", "fast") == "exact" else 2,
        lambda app: put_item(os.environ, "SOUNDNESS_MODE", "exact"),
    ),
    numbered(
        "defaultdict contains",
        lambda self: 3 if "key" in self.table else 2,
        item("key"),
        lambda: {"table": collections.defaultdict(int)},
    ),
    numbered(
        "defaultdict item",
        lambda self: self.table["key"],
        item("key"),
        lambda: {"table": collections.defaultdict(int, {"key": 2})},
    ),
    numbered(
        "OrderedDict contains",
        lambda self: 3 if (1, 2) in self.table else 2,
        item((1, 2)),
        lambda: {"table": collections.OrderedDict()},
    ),
    numbered(
        "order of an OrderedDict",
        lambda self: sum(n * value for n, value in enumerate(self.table.values())),
        lambda app: app.table.move_to_end("a"),
        lambda: {"table": collections.OrderedDict(a=1, b=2)},
    ),
    numbered(
        "Counter item",
        lambda self: 2 + self.table["key"],
        item("key", 1),
        lambda: {"table": collections.Counter()},
    ),
    numbered(
        "dict.get with a default", lambda self: self.table.get((1, 2), 2), item((1, 2)), table()
    ),
    numbered(
        "item under a tuple",
        lambda self: self.table[1, 2],
        item((1, 2)),
        lambda: {"table": {(1, 2): 2}},
    ),
    numbered(
        "global dict contains a dtype",
        lambda self: 3 if torch.float32 in TABLE else 2,
        lambda app: put_item(TABLE, torch.float32, 1),
    ),
    numbered(
        "key of a mapping proxy",
        lambda self: len(list(self.proxy)),
        item("b", 1),
        with_proxy,
        guards=("MAPPING_KEYS_CHECK",),
    ),
    numbered(
        "keys of a dict",
        lambda self: sum(1 for _ in self.table),
        item("b", 1),
        lambda: {"table": {"a": 1, "c": 1}},
        guards=("DICT_KEYS_MATCH", "DICT_VERSION"),
    ),
    numbered(
        "order of a dict",
        lambda self: 2 if next(iter(self.table)) == "a" else 3,
        lambda app: app.table.update(a=app.table.pop("a")),
        lambda: {"table": {"a": 1, "c": 1}},
    ),
    numbered(
        "values of a dict",
        lambda self: sum(self.table.values()),
        item("a", 2),
        lambda: {"table": {"a": 1, "c": 1}},
    ),
)

VALUES = (
    configured("int of an object", lambda self: self.config.value, 2, 3, "CONSTANT_MATCH"),
    configured("float of an object", lambda self: self.config.value, 2.0, 3.0),
    configured("0.0 and -0.0", lambda self: 2 + math.copysign(1, self.config.value) / 4, 0.0, -0.0),
    configured("nan", lambda self: 2 if math.isnan(self.config.value) else 3, float("nan"), 1.0),
    configured(
        "int and bool", lambda self: 3 if isinstance(self.config.value, bool) else 2, 1, True
    ),
    configured(
        "int and float", lambda self: 3 if isinstance(self.config.value, float) else 2, 1, 1.0
    ),
    configured("str", lambda self: 3 if self.config.value == "exact" else 2, "fast", "exact"),
    configured("bool", lambda self: 3 if self.config.value else 2, False, True, "BOOL_MATCH"),
    configured(
        "None", lambda self: 3 if self.config.value is None else 2, "set", None, "NONE_MATCH"
    ),
    configured("no longer None", lambda self: 2 if self.config.value is None else 3, None, "set"),
    configured(
        "dtype",
        lambda self: 3 if self.config.value == torch.float64 else 2,
        torch.float32,
        torch.float64,
        "EQUALS_MATCH",
    ),
    configured(
        "device",
        lambda self: 3 if self.config.value == torch.device("meta") else 2,
        torch.device("cpu"),
        torch.device("meta"),
    ),
    configured("range", lambda self: len(self.config.value), range(2), range(3)),
    configured("slice", lambda self: self.config.value.stop, slice(0, 2), slice(0, 3)),
    configured("torch.Size", lambda self: self.config.value[0], torch.Size([2]), torch.Size([3])),
    configured("subclass of int", lambda self: 2 * self.config.value, Number(1), Number(2)),
    configured(
        "subclass of float",
        lambda self: 2 * self.config.value,
        Fraction(1),
        Fraction(2),
        "CONSTANT_SUBCLASS_MATCH",
    ),
    configured(
        "NumPy float", lambda self: 2 * float(self.config.value), np.float64(1), np.float64(2)
    ),
    configured(
        "NumPy array", lambda self: float(self.config.value[0]), np.array([2.0]), np.array([3.0])
    ),
    configured(
        "Enum", lambda self: 3 if self.config.value is Color.BLUE else 2, Color.RED, Color.BLUE
    ),
    numbered("global int", lambda self: NUMBER, global_("NUMBER", 3)),
    configured(
        "length of a list",
        lambda self: len(self.config.value),
        [1, 1],
        [1, 1, 1],
        "SEQUENCE_LENGTH",
    ),
    configured(
        "list that becomes a tuple",
        lambda self: 3 if isinstance(self.config.value, tuple) else 2,
        [1],
        (1,),
    ),
    configured(
        "tuple that becomes a list",
        lambda self: 3 if isinstance(self.config.value, list) else 2,
        (1,),
        [1],
    ),
    configured(
        "empty list that becomes a tuple",
        lambda self: 3 if isinstance(self.config.value, tuple) else 2,
        [],
        (),
    ),
    configured(
        "tuple that becomes a named tuple",
        lambda self: 3 if hasattr(self.config.value, "_fields") else 2,
        (1, 2),
        collections.namedtuple("Pair", "a b")(1, 2),  # noqa: PYI024
    ),
    configured(
        "item of a deque",
        lambda self: self.config.value[0],
        collections.deque([2]),
        collections.deque([3]),
    ),
    configured(
        "dict that becomes another kind",
        lambda self: 3 if isinstance(self.config.value, collections.OrderedDict) else 2,
        {"a": 1},
        collections.OrderedDict(a=1),
    ),
    numbered(
        "class of an object",
        lambda self: 3 if isinstance(self.held, OtherSizes) else 2,
        lambda app: setattr(app, "held", OtherSizes()),
        lambda: {"held": Sizes()},
        guards=("TYPE_MATCH",),
    ),
    numbered(
        "hasattr",
        lambda self: 3 if hasattr(self.config, "extra") else 2,
        attribute("extra", 1),
        config(scale=2),
        guards=("HASATTR",),
    ),
    numbered(
        "hasattr that ends",
        lambda self: 2 if hasattr(self.config, "extra") else 3,
        lambda app: delattr(app.config, "extra"),
        config(extra=1),
    ),
    numbered(
        "getattr with a default",
        lambda self: getattr(self.held, "extra", 2),
        lambda app: setattr(app.held, "extra", 3),
        lambda: {"held": Sizes()},
    ),
    numbered(
        "method of an object",
        lambda self: self.held.number(),
        lambda app: setattr(app.held, "number", closing(3)),
        lambda: {"held": type("Held", (), {"__module__": __name__, "number": lambda self: 2})()},
        guards=("NOT_PRESENT_IN_GENERIC_DICT",),
    ),
)

IDENTITIES = (
    numbered(
        "sentinel of a module",
        lambda self: 2 if self.mode is STRICT else 3,
        lambda app: setattr(app, "mode", LOOSE),
        lambda: {"mode": STRICT},
        guards=("ID_MATCH",),
    ),
    configured(
        "sentinel of an object", lambda self: 2 if self.config.value is STRICT else 3, STRICT, LOOSE
    ),
    numbered("global sentinel", lambda self: 2 if MODE is STRICT else 3, global_("MODE", LOOSE)),
    numbered(
        "sentinel in a list",
        lambda self: 2 if self.modes[0] is STRICT else 3,
        lambda app: app.modes.__setitem__(0, LOOSE),
        lambda: {"modes": [STRICT]},
    ),
    numbered(
        "sentinel of a dict",
        lambda self: 2 if self.table["mode"] is STRICT else 3,
        item("mode", LOOSE),
        lambda: {"table": {"mode": STRICT}},
    ),
    numbered(
        "two objects that become one",
        lambda self: 3 if self.one is self.other else 2,
        lambda app: setattr(app, "other", app.one),
        lambda: {"one": Sizes(), "other": Sizes()},
    ),
    numbered(
        "one object that becomes two",
        lambda self: 2 if self.one is self.other else 3,
        lambda app: setattr(app, "other", Sizes()),
        lambda: dict.fromkeys(("one", "other"), Sizes()),
    ),
    configured(
        "regular expression",
        lambda self: 3 if self.config.value.match("b") else 2,
        re.compile("a"),
        re.compile("b"),
    ),
    configured(
        "dtype of NumPy",
        lambda self: self.config.value.itemsize,
        np.dtype("int16"),
        np.dtype("int32"),
    ),
    configured(
        "function with other parameters",
        lambda self: 2 if isinstance(self.config.value([1]), list) else 3,
        OF_ALL,
        OF_ONE,
    ),
    numbered(
        "order of a set",
        lambda self: 1 + sum(n * member for n, member in enumerate(self.members)),
        lambda app: refill(app.members, 0, 8),
        lambda: {"members": in_order(8, 0)},
    ),
    numbered(
        "member of a set that becomes a bool",
        lambda self: 3 if isinstance(next(iter(self.members)), bool) else 2,
        lambda app: refill(app.members, True),
        lambda: {"members": {1}},
    ),
    numbered(
        "proxy of an OrderedDict",
        lambda self: 3 if "b" in self.proxy else 2,
        lambda app: app.table.update(b=1),
        proxied,
    ),
    numbered(
        "two lists that become one",
        lambda self: 3 if self.one is self.other else 2,
        lambda app: setattr(app, "other", app.one),
        lambda: {"one": [1], "other": [1]},
    ),
    numbered(
        "builtin function",
        lambda self: OPERATOR(2, 3) - 1,
        global_("OPERATOR", math.hypot),
        guards=("BUILTIN_MATCH",),
    ),
    configured("builtin function of an object", lambda self: self.config.value(2, 3), min, max),
    configured(
        "function of torch",
        lambda self: 2 if self.config.value is torch.mm else 3,
        torch.mm,
        torch.bmm,
    ),
    numbered(
        "function of a module",
        lambda self: FUNCTION(2),
        global_("FUNCTION", triple),
        guards=("CLOSURE_MATCH",),
    ),
    configured("function of an object", lambda self: self.config.value(2), double, triple),
    configured("closure", lambda self: self.config.value(), closing(2), closing(3)),
    configured(
        "partial",
        lambda self: self.config.value(),
        functools.partial(double, 2),
        functools.partial(double, 3),
    ),
    numbered(
        "class of a module",
        lambda self: 2 if isinstance(self.held, KIND) else 3,
        global_("KIND", OtherSizes),
        lambda: {"held": Sizes()},
        guards=("CLASS_MATCH",),
    ),
    numbered(
        "Python module",
        lambda self: LIBRARY.floor(2.5),
        global_("LIBRARY", SimpleNamespace(floor=math.ceil)),
        guards=("MODULE_MATCH",),
    ),
    configured(
        "dispatch key set",
        lambda self: 2 if self.config.value.has(torch._C.DispatchKey.CPU) else 3,
        torch._C.DispatchKeySet(torch._C.DispatchKey.CPU),
        torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA),
        "DISPATCH_KEY_SET_MATCH",
    ),
    numbered(
        "tuple iterator",
        lambda self: next(self.config.steps),
        attribute("steps", iter((3, 3, 3, 3))),
        lambda: {"config": SimpleNamespace(steps=iter((2, 2, 2, 2, 2, 2, 2, 2)))},
        guards=("TUPLE_ITERATOR_LEN",),
        when=(START,),
    ),
    numbered(
        "range iterator",
        lambda self: next(self.config.steps),
        held=lambda: {"config": SimpleNamespace(steps=iter(range(2, 12)))},
        guards=("RANGE_ITERATOR_MATCH",),
        more=(row("range iterator", call=stepping(lambda: iter(range(5, 15))), when=(START,)),),
    ),
    numbered(
        "count iterator",
        lambda self: next(self.config.steps),
        held=lambda: {"config": SimpleNamespace(steps=itertools.count(2))},
        guards=("COUNT_ITERATOR_MATCH",),
        more=(row("count iterator", call=stepping(lambda: itertools.count(5)), when=(START,)),),
    ),
    numbered(
        "reversed list",
        lambda self: next(self.config.steps),
        attribute("steps", reversed([3] * 9)),
        lambda: {"config": SimpleNamespace(steps=reversed([2] * 9))},
        guards=("LIST_REVERSEITERATOR_LEN",),
        when=(START,),
    ),
)


# Rows about tensors and modules ----------------------------------------------------------------


class Tied(Numbered):
    """A module with two names for one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.other = self.weight

    def forward(self, x: Any) -> Any:
        return torch.addmm(self.bias, torch.mm(x, self.other), self.weight)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = numbered_inner()

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class numbered_inner(Numbered):  # noqa: N801
    def number(self) -> int:
        return 2


class Buffered(Numbered):
    """A module with a buffer instead of the bias."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", x(4))

    def forward(self, x: Any) -> Any:
        return torch.addmm(self.kept.to(x.dtype), x, self.weight)


class Free(Numbered):
    """A module for dynamic sizes, whose graph has a condition on the sizes."""

    def forward(self, x: Any) -> Any:
        alpha = 2.0 if x.shape[0] > 3 else 3.0
        return torch.addmm(self.bias, x, self.weight, alpha=alpha)


class Under(TorchFunctionMode):
    """A mode that doubles the results of matrix products."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        out = function(*args, **(kwargs or {}))
        return out * 2 if function is torch.addmm else out


class Mapped(Numbered):
    """A module whose forward maps over rows."""

    def forward(self, x: Any) -> Any:
        return torch.func.vmap(lambda row: row @ self.weight)(x)


def replace_hook(scale: int) -> Any:
    def hook(module: Any, args: Any, output: Any) -> Any:
        return output * scale

    return hook


class Hooked(Numbered):
    """A module with a forward hook."""

    def __init__(self, hook: Any = None) -> None:
        super().__init__()
        self.register_forward_hook(hook or double_output)

    def number(self) -> int:
        return 2


def double_output(module: Any, args: Any, output: Any) -> Any:
    return output + output


def triple_output(module: Any, args: Any, output: Any) -> Any:
    return output + output + output


def other_hook(app: Any) -> None:
    app._forward_hooks.clear()
    app.register_forward_hook(triple_output)


def real_dtype(dtype: Any) -> Any:
    return lambda app: setattr(app, "kept", app.kept.to(dtype) + 1)


@contextlib.contextmanager
def saved_hooks() -> Any:
    with grad_on(), torch.autograd.graph.save_on_cpu():
        yield


@contextlib.contextmanager
def deterministic() -> Any:
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=False)


@contextlib.contextmanager
def default_dtype(dtype: Any) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


TENSORS = (
    group(
        "tied parameters",
        Tied,
        both(
            "tied parameters that are untied",
            lambda app: setattr(app, "other", nn.Parameter(app.weight.detach() + 1)),
        ),
        both(
            "tied parameters that are untied in their table",
            lambda app: app._parameters.update(other=nn.Parameter(app.weight.detach() + 1)),
        ),
        kind="guard",
        guards=("DUPLICATE_INPUT",),
    ),
    group(
        "buffer",
        Buffered,
        both("buffer of another dtype", real_dtype(torch.float64)),
        both("buffer of another shape", lambda app: setattr(app, "kept", x(4, 4))),
        both(
            "buffer of another shape, in its table", lambda app: app._buffers.update(kept=x(4, 4))
        ),
        both("buffer of other numbers", lambda app: setattr(app, "kept", app.kept + 1)),
        kind="guard",
        guards=("TENSOR_MATCH",),
    ),
    group(
        "hooks",
        Nested,
        both(
            "forward hook of a submodule",
            lambda app: app.inner.register_forward_hook(replace_hook(2)),
        ),
        both(
            "forward hook in its table",
            lambda app: app.inner._forward_hooks.update({99: replace_hook(2)}),
        ),
        kind="guard",
        guards=("EMPTY_NN_MODULE_HOOKS_DICT",),
    ),
    group(
        "another hook",
        Hooked,
        both("another forward hook", other_hook),
        row(
            "code of a forward hook",
            lambda app: put(double_output, "__code__", triple_output.__code__),
            slow=True,
        ),
        kind="guard",
    ),
    group(
        "dynamic sizes",
        Free,
        both("other size of a dynamic graph", call=lambda f: f(x(6, 4))),
        both("size outside of a dynamic graph", call=lambda f: f(x(2, 4))),
        both("size 1 of a dynamic graph", call=lambda f: f(x(1, 4))),
        both("no size of a dynamic graph", call=lambda f: f(x(0, 4))),
        both("stride of a dynamic graph", call=lambda f: f(x(4, 8).T)),
        kind="guard",
        guards=("SHAPE_ENV",),
        arguments={"dynamic": True},
        call=lambda f: f(x(8, 4)),
    ),
    group(
        "mapped",
        Mapped,
        both("call under vmap", call=lambda f: torch.func.vmap(f)(x(2, 4, 4))),
        both("call under jvp", call=lambda f: torch.func.jvp(f, (x(),), (x(),))),
        kind="guard",
    ),
    group(
        "state of torch",
        numbered_inner,
        both("grad mode", around=grad_on, same=True),
        both("deterministic algorithms", around=deterministic, same=True),
        both("autocast", around=lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
        both("function mode", around=Under),
        row("function mode that does nothing", around=BaseTorchFunctionMode, same=True),
        both("default device", around=lambda: torch.device("cpu"), same=True),
        both("saved tensor hooks", around=saved_hooks, same=True),
        row("default dtype", around=lambda: default_dtype(torch.float64), same=True),
        kind="guard",
        guards=(
            "GRAD_MODE",
            "DETERMINISTIC_ALGORITHMS",
            "GLOBAL_STATE",
            "TORCH_FUNCTION_STATE",
            "DEFAULT_DEVICE",
            "AUTOGRAD_SAVED_TENSORS_HOOKS",
        ),
    ),
)


# Kinds that no row above causes ----------------------------------------------------------------

SYNTHETIC = {
    "FAKE_SCRIPT_TYPE_MATCH": "an opaque object instead of a TorchScript class",
    "OPAQUE_OBJ_GUARD_FN_MATCH": "an opaque object with its own guard",
    "TENSOR_SUBCLASS_METADATA_MATCH": "a tensor made of tensors (test_tensor_parts.py)",
    "DTENSOR_SPEC_MATCH": "a DTensor, which needs a mesh of processes",
    "FSDP_TRAINING_STATE": "FSDP, which needs a process group",
    "FUNCTORCH_STACK_MATCH": "a transform of functorch around the build",
    "DUAL_LEVEL": "a forward-mode level that is open at the build",
    "WEAKREF_ALIVE": "a tensor of an optimizer, or of compiled autograd",
    "NOT_NONE_MATCH": "a gradient that an optimizer reads",
    "FUNCTION_MATCH": "an object of torch that is not a function, class, module or builtin",
    "NN_MODULE": "a version of Dynamo that does not inline modules",
    "COW_TENSOR_MATCH": "2.15: a copy-on-write tensor",
    "CURRENT_STREAM_MATCH": "2.15: a stream of an accelerator",
}
"""What causes a guard of each kind that no row above causes."""


def synthetic(kind: str) -> Group:
    return numbered(
        f"synthetic {kind}",
        lambda self: self.config.number_,
        attribute("number_", 3),
        config(number_=2),
        synthetic=kind,
        guards=(kind,),
    )


GROUPS: tuple[Any, ...] = (
    *CONTAINS,
    *VALUES,
    *IDENTITIES,
    *TENSORS,
    *map(synthetic, (*SYNTHETIC, "OF_A_LATER_TORCH")),
)
