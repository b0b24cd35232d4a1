# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Names of classes, which cover defaults and closures of the objects that a forward creates.

test_soundness_rows.py has starts with other default arguments and closures.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from serve_warm.precompile.facts.names import identity, name_of_class


class Plain:
    pass


@dataclasses.dataclass(frozen=True)
class Settings:
    scale: float = 2.0


def put(owner: Any, name: str, value: Any) -> Any:
    return lambda patch: patch.setattr(owner, name, value)


class Choice(enum.Enum):
    ONE = 1


def make(default: Any = None, closed: Any = None, **more: Any) -> type:
    """Return a class whose method has these constants; each has the same name and code."""

    def method(self: Any, first: Any = default, **_: Any) -> Any:
        return first, closed

    method.__kwdefaults__ = more or None  # type: ignore[assignment]
    return type("Made", (), {"__module__": "app", "__qualname__": "Made", "method": method})


def factory(value: int) -> Callable[[], int]:
    return lambda: value


ONE, TWO = factory(1), factory(2)
VALUES: dict[str, Any] = {
    "1": 1,
    "1.0": 1.0,
    "True": True,
    "None": None,
    "text": "1",
    "a tuple": (1, None),
    "another tuple": (None, 1),
    "a nested tuple": ((1, 2), 3),
    "a frozenset": frozenset({"a", "b"}),
    "another frozenset": frozenset({"a", "c"}),
    "a member": Choice.ONE,
    "a class": Plain,
    "another class": Settings,
    "a function": put,
    "a function of torch": functional.relu,
    "another function of torch": functional.silu,
    "a function in C": torch.relu,
    "another function in C": torch.sigmoid,
    "a partial": functools.partial(put, 1),
    "another partial": functools.partial(put, 2),
    "a dtype": torch.float32,
    "another dtype": torch.float64,
    "a frozen dataclass": Settings(1.0),
    "another frozen dataclass": Settings(2.0),
    "a proxy": types.MappingProxyType({"a": 1}),
    "another proxy": types.MappingProxyType({"a": 2}),
}


@pytest.mark.parametrize("where", ["default", "closed", "more"])
def test_each_constant_of_a_method_is_in_the_name(where: str):
    names = {name: name_of_class(make(**{where: value})) for name, value in VALUES.items()}
    equal = {name: name_of_class(make(**{where: value})) for name, value in VALUES.items()}
    assert len(set(names.values())) == len(VALUES)
    assert names == equal


def test_an_object_that_may_change_is_not_in_the_name():
    """A cache may be full in one process and empty in another one."""
    names = {name_of_class(make(closed=held)) for held in ([], [1], [2])}
    filled = {name_of_class(make(default=held)) for held in ({}, {1: 2})}
    objects = {name_of_class(make(default=held)) for held in (object(), object())}
    assert len(names) == len(filled) == len(objects) == 1


def test_a_dict_with_which_objects_are_created_counts():
    """The default of `__init__` is no cache, and a created object may hold it."""

    def made(table: Any) -> type:
        def initialize(self: Any, table: Any = table) -> None:
            self.table = table

        return type("Made", (), {"__module__": "app", "__init__": initialize})

    assert identity(made({"a": 1})) != identity(made({"a": 2}))
    assert identity(made({"a": 1})) == identity(made({"a": 1}))
    assert name_of_class(made({"a": 1})) == name_of_class(made({"a": 2}))


def counted() -> Any:
    calls = 0

    def method(self: Any) -> int:
        nonlocal calls
        calls += 1
        return calls

    return method


def test_a_counter_in_a_closure_is_not_in_the_name():
    """A method that assigns to a variable of its closure has state, which differs by process."""
    kind = type("Made", (), {"__module__": "app", "method": counted()})
    other = type("Made", (), {"__module__": "app", "method": counted()})
    kind().method()  # type: ignore[attr-defined]
    assert name_of_class(kind) == name_of_class(other)


def test_a_class_that_is_a_default_of_itself_has_a_name():
    """Functions and classes may refer to each other."""
    kind = make()
    kind.method.__defaults__ = (kind, kind.method)  # type: ignore[attr-defined]
    assert name_of_class(kind).startswith("app.Made ")


def test_another_default_of_a_known_class_is_seen():
    """The digest of a class is kept, but not beyond a change of its defaults."""
    kind = make(1)
    before = name_of_class(kind)
    kind.method.__defaults__ = (2,)  # type: ignore[attr-defined]
    after = name_of_class(kind)
    kind.method.__defaults__ = (1,)  # type: ignore[attr-defined]
    assert before != after
    assert name_of_class(kind) == before


PROGRAM = """
import dataclasses, sys
from torch import nn
from serve_warm.precompile.facts.names import identity
from transformers.models.llama import configuration_llama, modeling_llama
for module in (nn, configuration_llama, modeling_llama, dataclasses):
    for kind in vars(module).values():
        if isinstance(kind, type):
            print(identity(kind))
"""


@pytest.mark.slow
def test_names_are_the_same_in_each_process():
    """Common classes have many decorators and default arguments."""
    pytest.importorskip("transformers")
    found = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            check=True,
            capture_output=True,
            text=True,
            env={"PATH": "", "PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    ]

    assert found[0] == found[1]
    assert "LlamaForCausalLM" in found[0]
