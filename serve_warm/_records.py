# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Dataclasses whose definition takes a fifth of the usual time.

`dataclasses` writes and compiles up to seven methods for each class. That takes 0.5 ms for a frozen
class (CPython 3.11), and a start defines almost eighty classes. A record is a dataclass with only
one compiled method, `__init__`; all records share the other methods. This saves a start about
33 ms of CPU time (`tests/benchmarks/results/records.json`). A type checker treats `record` as
`dataclasses.dataclass`. `fields`, `replace` and `asdict` work as for any dataclass.
"""

from __future__ import annotations

import dataclasses
import reprlib
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["record"]

Kind = TypeVar("Kind", bound=type)

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, kw_only: bool, frozen: bool = False) -> Any:
        """Turn a class into a dataclass; the arguments are those of `dataclasses.dataclass`.

        Methods that the class itself defines are kept. On a frozen record, setting or deleting an
        attribute raises `FrozenInstanceError`.
        """
        shared = {"__repr__": _text, "__eq__": _equals}
        shared |= FROZEN if frozen else {"__hash__": None}

        def define(kind: Kind) -> Kind:
            own = vars(kind)
            methods = {name: method for name, method in shared.items() if name not in own}
            # `dataclasses` refuses a class that is not frozen if one of its bases is frozen.
            bases = [vars(base).get("__dataclass_params__") for base in kind.__mro__[1:]]
            below = any(base is not None and base.frozen for base in bases)
            made = dataclasses.dataclass(
                kind, kw_only=kw_only, eq=False, repr=False, frozen=frozen and below
            )
            made.__dataclass_params__.frozen = frozen  # for classes that inherit from this one
            for name, method in methods.items():
                setattr(made, name, method)
            return made

        return define


@reprlib.recursive_repr()
def _text(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _compared(instance: Any) -> tuple[Any, ...]:
    return tuple([getattr(instance, f.name) for f in dataclasses.fields(instance) if f.compare])


def _equals(self: Any, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return _compared(self) == _compared(other)


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _set(self: Any, name: str, value: object) -> None:
    kind = type(self)
    if name in kind.__dataclass_fields__:
        refused = name in self.__dict__  # `__init__` sets each field once
    else:
        refused = "__dataclass_fields__" in vars(kind)  # a plain subclass may have more attributes
    if refused:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delete(_: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


FROZEN = {"__hash__": _hash, "__setattr__": _set, "__delattr__": _delete}
"""Methods of a frozen record."""
