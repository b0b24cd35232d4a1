# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that do not change the application: they call it with other arguments, or in another way."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import pickle
import random
import threading
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

from soundness.rows import READY, START, Numbered, Row, both, group, put, row, x


class Flexible(Numbered):
    """Accepts the arguments of the rows: a factor, tensors in containers, keywords."""

    def forward(
        self, x: Any, scale: Any = 2.0, mode: Any = "fast", *, parts: Any = None, **more: Any
    ) -> Any:
        factor = 3.0 if mode == "exact" else 2.0
        if isinstance(scale, (bool, enum.Enum)):
            factor += 1
        else:
            factor *= float(scale)
        if "from" in more:
            factor += more["from"]
        for part in tensors_of(parts):
            x = x @ part
        return torch.addmm(self.bias.to(x.dtype), x, self.weight.to(x.dtype), alpha=factor)


def tensors_of(parts: Any) -> list[Any]:
    if parts is None:
        return []
    if isinstance(parts, torch.Tensor):
        return [parts]
    if isinstance(parts, dict):
        parts = list(parts.values())
    if isinstance(parts, (list, tuple)):
        return [tensor for part in parts for tensor in tensors_of(part)]
    return []


class Elementwise(nn.Module):
    """Accepts any tensors, and shows their kind in the answer."""

    def forward(self, x: Any, other: Any = None) -> Any:
        out = x * 2
        if other is not None:
            out = out + other
        tag = getattr(x, "tag", 1)
        return out + tag if out.dtype.is_floating_point or out.dtype.is_complex else out


class Writing(nn.Module):
    """Writes into its first argument, so the answer shows if the second one shares its memory."""

    def forward(self, x: Any, other: Any) -> Any:
        x.mul_(2)
        return x + other


class Copying(nn.Module):
    """Returns clones of one tensor, which torch's compiler removes."""

    def forward(self, x: Any) -> Any:
        found = x.sin()
        return found.clone(), found.clone(), found.repeat(1, 1), found.cos()


def overwritten(outputs: Any, number: int) -> Any:
    """Return outputs after a write into one of them."""
    outputs[number].zero_()
    return outputs


class Drawing(nn.Module):
    """Draws random numbers of Python, and computes with them."""

    def forward(self, x: Any) -> Any:
        return x.sin() * random.uniform(0, 1) + random.randint(0, 9), random.uniform(a=2, b=3)


class Dropping(nn.Module):
    """Draws random numbers of Python, and uses none of them in eval mode."""

    def forward(self, x: Any) -> Any:
        number = random.uniform(0, 1)
        return x.sin() * number if self.training else x.sin()


def seeded(seed: int, call: Any) -> tuple[Any, float]:
    """Return a call's answer, and the next random number after the call."""
    random.seed(seed)
    return call(), random.random()


class Reading(nn.Module):
    """Depends on properties of a tensor besides its numbers."""

    def forward(self, x: Any) -> Any:
        factor = 2.0
        if x.requires_grad:
            factor += 1
        if x.is_contiguous():
            factor += 2
        if isinstance(x, nn.Parameter):
            factor += 4
        if x.is_inference():
            factor += 8
        if x.is_conj() or x.is_neg():
            factor += 16
        if x.stride(0) == 0:
            factor += 32
        if x.storage_offset():
            factor += 64
        return torch.add(x, x, alpha=factor)


class Color(enum.Enum):
    RED = "exact"


class Mode(str, enum.Enum):
    EXACT = "exact"
    FAST = "fast"


class Number(enum.IntEnum):
    TWO = 2


Pair = collections.namedtuple("Pair", "first second")  # noqa: PYI024


@dataclasses.dataclass
class Parts:
    first: Any


class Sub(torch.Tensor):
    """A subclass of Tensor."""


class Counting(torch.Tensor):
    """A tensor that doubles the results of matrix products."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        out = super().__torch_function__(function, types, args, kwargs or {})
        return out * 2 if function is torch.addmm else out


def eye() -> torch.Tensor:
    return torch.eye(4) * 2


def case(name: str, call: Any, **more: Any) -> Row:
    return row(
        f"call: {name}", call=call, when=(START, READY) if more.pop("both", False) else (READY,)
    )


def given(value: Any, call: Any) -> Any:
    return call(value)


def as_view() -> torch.Tensor:
    return x(8, 4)[::2]


def tagged() -> torch.Tensor:
    tensor = x()
    tensor.tag = 3  # type: ignore[attr-defined]
    return tensor


def threaded(f: Any) -> Any:
    found = []

    def run() -> None:
        with torch.inference_mode():
            found.append(f(x()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def normal(make: Any) -> Any:
    with torch.inference_mode(mode=False):
        return make()


def traced(f: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(f, (x(),), check_trace=False)(x() + 1)


def faked(f: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return tuple(f(mode.from_tensor(x())).shape)


def graphed(f: Any) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(lambda x: f(x))(x())(x() + 1)  # noqa: PLW0108 - a module has no code to trace


def outer(f: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(lambda x: f(x) * 2, backend="eager")(x())


GROUPS = (
    group(
        "arguments",
        Flexible,
        case("the declared call", lambda f: f(x(), 1.0, "fast"), both=True),
        case("other numbers", lambda f: f(x() + 1, 1.0, "fast")),
        case("other float", lambda f: f(x(), 3.0, "fast"), both=True),
        case("float without an argument", lambda f: f(x())),
        case("keyword for a position", lambda f: f(x(), scale=2.0, mode="fast")),
        case("keywords in another order", lambda f: f(mode="fast", scale=2.0, x=x())),
        case("int for a float", lambda f: f(x(), 1, "fast")),
        case("bool for a float", lambda f: f(x(), True, "fast")),
        case("0.0", lambda f: f(x(), 0.0, "fast")),
        case("-0.0", lambda f: f(x(), -0.0, "fast")),
        case("nan", lambda f: f(x(), float("nan"), "fast")),
        case("inf", lambda f: f(x(), float("inf"), "fast")),
        case("large int", lambda f: f(x(), 10**30, "fast")),
        case("NumPy float", lambda f: f(x(), np.float64(2.0), "fast")),
        case("NumPy float of 32 bits", lambda f: f(x(), np.float32(2.0), "fast")),
        case("NumPy int", lambda f: f(x(), np.int64(2), "fast")),
        case("NumPy bool", lambda f: f(x(), np.bool_(True), "fast")),
        case("0-d tensor for a float", lambda f: f(x(), torch.tensor(2.0), "fast")),
        case("complex", lambda f: f(x(), 2j, "fast")),
        case("IntEnum for a number", lambda f: f(x(), Number.TWO, "fast")),
        case("other str", lambda f: f(x(), 1.0, "exact"), both=True),
        case("str with quotes", lambda f: f(x(), 1.0, 'it\'s "fast"\n')),
        case("str that is not seen before", lambda f: f(x(), 1.0, "f" * 5000)),
        case("str Enum", lambda f: f(x(), 1.0, Mode.EXACT)),
        case("Enum", lambda f: f(x(), 1.0, Color.RED)),
        case("None", lambda f: f(x(), 1.0, None)),
        case("bytes", lambda f: f(x(), 1.0, b"fast")),
        case("dtype", lambda f: f(x(), 1.0, torch.float32)),
        case("object", lambda f: f(x(), 1.0, object())),
        case("function", lambda f: f(x(), 1.0, len)),
        case("module", lambda f: f(x(), 1.0, nn.Identity())),
        case("class", lambda f: f(x(), 1.0, int)),
        case("part of a larger storage", lambda f: f(torch.cat((x(), x()))[:4])),
        case("slice", lambda f: f(x(), 1.0, slice(0, 2))),
        case("set", lambda f: f(x(), 1.0, {"fast"})),
        case("ellipsis", lambda f: f(x(), 1.0, ...)),
        case("tensor part", lambda f: f(x(), 1.0, "fast", parts=eye())),
        case("list of tensors", lambda f: f(x(), 1.0, "fast", parts=[eye()])),
        case("tuple of tensors", lambda f: f(x(), 1.0, "fast", parts=(eye(),))),
        case("named tuple of tensors", lambda f: f(x(), 1.0, "fast", parts=Pair(eye(), x()))),
        case("dict of tensors", lambda f: f(x(), 1.0, "fast", parts={"a": eye(), "b": x()})),
        case(
            "dict of tensors in another order",
            lambda f: f(x(), 1.0, "fast", parts={"b": x(), "a": eye()}),
        ),
        case(
            "OrderedDict of tensors",
            lambda f: f(x(), 1.0, "fast", parts=collections.OrderedDict(a=eye())),
        ),
        case("dict with int keys", lambda f: f(x(), 1.0, "fast", parts={1: eye()})),
        case("nested parts", lambda f: f(x(), 1.0, "fast", parts=[{"a": (eye(), [x()])}])),
        case("empty list", lambda f: f(x(), 1.0, "fast", parts=[])),
        case("dataclass", lambda f: f(x(), 1.0, "fast", parts=Parts(first=eye()))),
        case("generator", lambda f: f(x(), 1.0, "fast", parts=(eye() for _ in range(1)))),
        case("NumPy array", lambda f: f(x(), 1.0, "fast", parts=np.eye(4, dtype=np.float32))),
        case("keyword named from", lambda f: f(x(), 1.0, "fast", **{"from": 1.0})),
        case("keyword that is no name", lambda f: f(x(), 1.0, "fast", **{"from here": 1.0})),
        case("unknown argument", lambda f: f(x(), 1.0, "fast", None, None)),
        case("no argument", lambda f: f()),
        case("other shape", lambda f: f(x(3, 4), 1.0, "fast"), both=True),
        case("shape that is not allowed", lambda f: f(x(4, 3), 1.0, "fast")),
        case("one row", lambda f: f(x(1, 4), 1.0, "fast")),
        case("no row", lambda f: f(x(0, 4), 1.0, "fast")),
        case("float64", lambda f: f(x().double(), 1.0, "fast"), both=True),
        case("bfloat16", lambda f: f(x().bfloat16(), 1.0, "fast")),
        case("transposed", lambda f: f(x().T, 1.0, "fast"), both=True),
        case("every other row", lambda f: f(as_view(), 1.0, "fast")),
        case("subclass", lambda f: f(x().as_subclass(Sub), 1.0, "fast"), both=True),
        case("subclass with a function", lambda f: f(x().as_subclass(Counting), 1.0, "fast")),
        case("Parameter", lambda f: f(nn.Parameter(x()), 1.0, "fast"), both=True),
        case("numpy for a tensor", lambda f: f(np.zeros((4, 4), np.float32), 1.0, "fast")),
        case("list for a tensor", lambda f: f([1.0], 1.0, "fast")),
        case("one's own parameter", lambda f: f(next(p for p in f.parameters() if p.ndim == 2))),
        kind="input",
        call=lambda f: f(x(), 1.0, "fast"),
    ),
    group(
        "from at the build",
        Flexible,
        case("declared keyword named from", lambda f: f(x(), **{"from": 1.0}), both=True),
        case("other value of from", lambda f: f(x(), **{"from": 2.0})),
        kind="input",
        call=lambda f: f(x(), **{"from": 1.0}),
    ),
    group(
        "no name at the build",
        Flexible,
        case("declared keyword that is no name", lambda f: f(x(), **{"from here": 1.0})),
        kind="input",
        call=lambda f: f(x(), **{"from here": 1.0}),
    ),
    group(
        "parts at the build",
        Flexible,
        case("declared dict", lambda f: f(x(), parts={"a": eye(), "b": x()}), both=True),
        case("declared dict in another order", lambda f: f(x(), parts={"b": x(), "a": eye()})),
        case(
            "declared dict with one more", lambda f: f(x(), parts={"a": eye(), "b": x(), "c": x()})
        ),
        case("declared dict with other keys", lambda f: f(x(), parts={"a": eye(), "c": x()})),
        case("list for the declared dict", lambda f: f(x(), parts=[eye(), x()])),
        case(
            "one tensor twice",
            lambda f: given(eye(), lambda part: f(x(), parts={"a": part, "b": part})),
        ),
        case(
            "views of one tensor",
            lambda f: given(x(8, 4), lambda part: f(x(), parts={"a": part[:4], "b": part[4:]})),
        ),
        case("subclass in a part", lambda f: f(x(), parts={"a": eye().as_subclass(Sub), "b": x()})),
        kind="input",
        call=lambda f: f(x(), parts={"a": eye(), "b": x()}),
    ),
    group(
        "tensors",
        Elementwise,
        case("a tensor", lambda f: f(x()), both=True),
        case("0-d", lambda f: f(torch.tensor(2.0))),
        case("empty", lambda f: f(torch.empty(0, 4))),
        case("float16", lambda f: f(x().half())),
        case("int64", lambda f: f(torch.arange(16).reshape(4, 4))),
        case("int32", lambda f: f(torch.arange(16, dtype=torch.int32).reshape(4, 4))),
        case("uint8", lambda f: f(torch.arange(16, dtype=torch.uint8).reshape(4, 4))),
        case("bool tensor", lambda f: f(torch.eye(4) > 0)),
        case("complex tensor", lambda f: f(x().to(torch.complex64))),
        case("conjugate view", lambda f: f(x().to(torch.complex64).conj())),
        case("negative view", lambda f: f(torch._neg_view(x()))),
        case("sparse", lambda f: f(x().to_sparse())),
        case("expanded", lambda f: f(x(1, 4).expand(4, 4)), both=True),
        case("expanded, overlapping", lambda f: f(x(7).as_strided((4, 4), (1, 1)))),
        case("misaligned", lambda f: f(x(17)[1:].reshape(4, 4)), both=True),
        case("offset view", lambda f: f(x(8, 4)[4:])),
        case(
            "nested tensor",
            lambda f: f(torch.nested.nested_tensor([x(2), x(3)], layout=torch.jagged)).values(),
        ),
        case("meta", lambda f: tuple(f(torch.empty(4, 4, device="meta")).shape)),
        case("attribute of a tensor", lambda f: f(tagged()), both=True),
        case("second tensor", lambda f: f(x(), x())),
        case("a tensor twice", lambda f: given(x(), lambda t: f(t, t))),
        case("second is a number", lambda f: f(x(), 2.0)),
        case("second broadcasts", lambda f: f(x(), x(4))),
        case("second of another dtype", lambda f: f(x(), x().double())),
        case("channels last", lambda f: f(x(1, 4, 2, 2).to(memory_format=torch.channels_last))),
        kind="input",
        call=lambda f: f(x()),
    ),
    group(
        "what a tensor is",
        Reading,
        case("inference tensor", lambda f: f(x()), both=True),
        case("normal tensor", lambda f: f(normal(x)), both=True),
        case("requires grad", lambda f: f(normal(lambda: x().requires_grad_())), both=True),
        case("Parameter for a tensor", lambda f: f(normal(lambda: nn.Parameter(x())))),
        case(
            "frozen Parameter", lambda f: f(normal(lambda: nn.Parameter(x(), requires_grad=False)))
        ),
        case("transposed view", lambda f: f(x().T)),
        case("row that is expanded", lambda f: f(x(1, 4).expand(4, 4))),
        case("tensor behind an offset", lambda f: f(x(8, 4)[4:])),
        case("negated view", lambda f: f(torch._neg_view(x()))),
        kind="input",
        call=lambda f: f(x()),
    ),
    group(
        "memory",
        Writing,
        case("two tensors", lambda f: given(x(), lambda a: (f(a, x() + 1), a)), both=True),
        case("one tensor for both", lambda f: given(x(), lambda a: (f(a, a), a)), both=True),
        case("same memory", lambda f: given(x(), lambda a: (f(a, a.view(4, 4)), a)), both=True),
        case(
            "overlap in part", lambda f: given(x(6, 4), lambda a: (f(a[:4], a[2:6]), a)), both=True
        ),
        case("transposed overlap", lambda f: given(x(), lambda a: (f(a, a.T), a))),
        case("detached", lambda f: given(x(), lambda a: (f(a, a.detach()), a))),
        case("neighbours", lambda f: given(x(8, 4), lambda a: (f(a[:4], a[4:]), a))),
        kind="input",
        call=lambda f: given(x(), lambda a: (f(a, x()), a)),
    ),
    group(
        "numbers of Python's random module",
        Drawing,
        case("another seed", lambda f: seeded(2, lambda: f(x()))),
        case("two calls", lambda f: seeded(1, lambda: (f(x()), f(x()))), both=True),
        both(
            "random.uniform that is replaced", lambda app: put(random, "uniform", lambda a, b: 0.25)
        ),
        kind="input",
        call=lambda f: seeded(1, lambda: f(x())),
    ),
    group(
        "unused numbers of Python's random module",
        Dropping,
        case("unused, another seed", lambda f: seeded(2, lambda: f(x()))),
        row("dropout that is in training", lambda app: app.train()),
        kind="input",
        call=lambda f: seeded(1, lambda: f(x())),
    ),
    group(
        "memory of outputs",
        Copying,
        case("first clone that is overwritten", lambda f: overwritten(f(x()), 0)),
        case("second clone that is overwritten", lambda f: overwritten(f(x()), 1)),
        case("third clone that is overwritten", lambda f: overwritten(f(x()), 2)),
        kind="input",
        call=lambda f: f(x()),
    ),
    group(
        "ways to call",
        Elementwise,
        case("in another thread", threaded, both=True),
        case("deep copy", lambda f: copy.deepcopy(f)(x())),
        case("shallow copy", lambda f: copy.copy(f)(x())),
        case("pickled", lambda f: pickle.loads(pickle.dumps(f))(x()), both=True),
        case("forward", lambda f: f.forward(x())),
        case("inside another module", lambda f: nn.Sequential(f, nn.Identity())(x())),
        case("inside torch.compile", outer),
        case("under vmap", lambda f: torch.func.vmap(f)(x(3, 4, 4)), both=True),
        case("under jvp", lambda f: torch.func.jvp(f, (x(),), (x(),))),
        case("under functionalize", lambda f: torch.func.functionalize(f)(x())),
        case("under torch.jit.trace", traced),
        case("under make_fx", graphed),
        case("fake tensors", faked),
        both(
            "no_grad for inference mode",
            call=lambda f: f(x()),
            around=lambda: torch.inference_mode(mode=False),
        ),
        kind="input",
        call=lambda f: f(x()),
    ),
)
