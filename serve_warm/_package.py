# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The version of this package, and the module name of its public classes and functions."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, TypeVar

__version__ = "0.1.0"
"""The version of this package, which the build of the wheel also reads."""

PACKAGE = "serve_warm"
"""The `__module__` of public classes and functions. An artifact's entries identify an object of
this package by the package's name and the class's name. They use neither the class's module nor a
digest of its code, so artifacts stay valid when code moves to another module."""

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])


def public(found: AnyCallable) -> AnyCallable:
    """Set the `__module__` of a class or function to the package, so its pickles survive a move.

    Each annotation of a class is replaced by the object that it names. Otherwise
    `typing.get_type_hints` and pydantic would look for these names in the package.
    """
    if isinstance(found, type):
        import dataclasses  # here, because reading the version does not need it

        hints = typing.get_type_hints(found, include_extras=True)
        own = vars(found).get("__annotations__", {})
        found.__annotations__ = {name: hints[name] for name in own}
        if dataclasses.is_dataclass(found):
            for field in dataclasses.fields(found):
                field.type = hints[field.name]
    found.__module__ = PACKAGE
    return found
