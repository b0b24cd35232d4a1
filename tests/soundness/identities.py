# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows about objects with one name, and about functions that torch runs or calls by name."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

from soundness.rows import Group, Numbered, both, calling, group, numbered, on, own, row, x

# Objects of one factory -------------------------------------------------------------------------


def scaled_by(factor: float) -> Callable[[], float]:
    def scaled() -> float:
        return factor

    return scaled


def class_of(factor: float) -> type:
    class Made:
        value = factor

        def get(self) -> float:
            return factor

    return Made


class Base:
    pass


def child_of(base: type) -> type:
    class Made(base):  # type: ignore[misc, valid-type]
        pass

    return Made


FUNCTIONS = [scaled_by(1.0), scaled_by(2.0)]
LAMBDAS = [lambda k=k: k for k in (1.0, 2.0)]
CLASSES = [class_of(2.0), class_of(3.0)]
CHILDREN = [child_of(CLASSES[0]), child_of(CLASSES[1])]

COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "is": lambda held, first: held is first,
    "is not": lambda held, first: held is not first,
    "==": lambda held, first: held == first,
    "in a list": lambda held, first: held in [first],  # noqa: FURB171 - what the row is about
    "in a tuple": lambda held, first: held in (first, None),
    "in a dict": lambda held, first: held in {first: 1},
    "a key of a dict": lambda held, first: {first: 1}.get(held, 0),
    "index": lambda held, first: [first, held].index(held),
    "count": lambda held, first: [first].count(held),
}

PAIRS: Mapping[str, list[Any]] = {"functions": FUNCTIONS, "lambdas": LAMBDAS, "classes": CLASSES}


def compared(kind: str, how: str) -> Group:
    pair, compare = PAIRS[kind], COMPARISONS[how]
    return numbered(
        f"{kind} of one factory, {how}",
        lambda self: 2.0 + compare(self.held, pair[0]),
        own("held", pair[1]),
        lambda: {"held": pair[0]},
        kind="change",
    )


TYPES: Mapping[str, tuple[Callable[[Any], Any], Callable[[int], Any]]] = {
    "isinstance": (lambda held: isinstance(held, CLASSES[0]), lambda n: CLASSES[n]()),
    "isinstance of a child": (lambda held: isinstance(held, CLASSES[0]), lambda n: CHILDREN[n]()),
    "type": (lambda held: type(held) is CLASSES[0], lambda n: CLASSES[n]()),
    "a method of": (lambda held: held.get(), lambda n: CLASSES[n]()),
    "an object of": (lambda held: held().get(), lambda n: CLASSES[n]),
    "a class attribute of": (lambda held: held.value, lambda n: CLASSES[n]),
    "issubclass": (lambda held: issubclass(held, CLASSES[0]), lambda n: CHILDREN[n]),
}

OF_CLASSES = [
    numbered(
        f"{how} a class of one factory",
        lambda self, read=read: 2.0 + read(self.held),
        lambda app, make=make: setattr(app, "held", make(1)),
        lambda make=make: {"held": make(0)},
        kind="change",
    )
    for how, (read, make) in TYPES.items()
]


class Pooling(nn.Module):
    """Calls a function of torch that the module holds."""

    def __init__(self, pool: Any) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, given: Any) -> Any:
        return self.pool(given, 1) * 2


POOLS = {
    name: getattr(functional, name)
    for name in ("adaptive_max_pool2d", "max_pool1d", "adaptive_avg_pool2d", "avg_pool2d")
}


def pooling() -> Group:
    rows = tuple(
        both(f"max_pool2d becomes {name}", own("pool", pool), same=True)
        for name, pool in POOLS.items()
    )
    return group(
        "functions of torch's factory",
        lambda: Pooling(functional.max_pool2d),
        *rows,
        call=lambda f: f(x(1, 4, 4)),
    )


# State that torch reads while it traces ---------------------------------------------------------


def begin_group(app: Any) -> Any:
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return distributed.destroy_process_group


def set_dtype(dtype: torch.dtype) -> None:
    torch.set_autocast_dtype("cpu", dtype)


SCORES: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()


def score(app: Any) -> Any:
    SCORES[app] = 3.0
    return SCORES.clear


FOLDED = (
    numbered(
        "whether a process group exists",
        lambda self: 3.0 if distributed.is_initialized() else 2.0,
        begin_group,
        kind="change",
    ),
    numbered(
        "the size of the process group",
        lambda self: float(distributed.get_world_size()) if distributed.is_initialized() else 3.0,
        begin_group,
        kind="change",
    ),
    numbered(
        "the dtype of autocast on the CPU",
        lambda self: 3.0 if torch.get_autocast_dtype("cpu") == torch.float16 else 2.0,
        calling(set_dtype, torch.float16, lambda: torch.bfloat16),
        kind="change",
    ),
    numbered(
        "a key of a WeakKeyDictionary", lambda self: SCORES.get(self, 2.0), score, kind="change"
    ),
)

# Names of torch -----------------------------------------------------------------------------------


def times_five(given: Any, *_: Any, **__: Any) -> Any:
    return given * 5


class Layers(Numbered):
    """Calls functions of torch through modules, functions and methods."""

    def __init__(self) -> None:
        super().__init__()
        self.gelu = nn.GELU()
        self.norm = nn.LayerNorm(4, elementwise_affine=False)

    def number(self) -> float:
        return 2.0

    def forward(self, given: Any) -> Any:
        out = self.norm(self.gelu(super().forward(given)))
        return torch.softmax(functional.silu(out.relu() + 1).mT, 0)


NAMES: Mapping[str, tuple[Any, str]] = {
    "nn.GELU.forward": (nn.GELU, "forward"),
    "torch.layer_norm": (torch, "layer_norm"),
    "torch.softmax": (torch, "softmax"),
    "torch.addmm": (torch, "addmm"),
    "functional.gelu": (functional, "gelu"),
    "functional.layer_norm": (functional, "layer_norm"),
    "functional.silu": (functional, "silu"),
    "Tensor.relu": (torch.Tensor, "relu"),
    "Tensor.__add__": (torch.Tensor, "__add__"),
}


SUM = property(lambda given: given + given.sum())


def as_method(self: Any, given: Any, *_: Any, **__: Any) -> Any:
    return given * 5


def names() -> Group:
    rows = tuple(
        both(
            f"{name} that is replaced",
            on(owner, attribute, as_method if owner is nn.GELU else times_five),
        )
        for name, (owner, attribute) in NAMES.items()
    )
    of_property = both("Tensor.mT that is replaced", on(torch.Tensor, "mT", SUM))
    return group("names of torch", Layers, *rows, of_property)


def own_call(app: Any) -> None:
    app._call_impl = lambda given: given * 5


GROUPS = (
    *(compared(kind, how) for kind in PAIRS for how in COMPARISONS),
    *OF_CLASSES,
    pooling(),
    *FOLDED,
    names(),
    group(
        "a module's own _call_impl",
        lambda: nn.Sequential(nn.Linear(4, 4)),
        row("a part's own _call_impl", lambda app: own_call(app[0])),
    ),
)
