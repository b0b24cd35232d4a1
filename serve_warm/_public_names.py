# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Public names: classes and functions whose module is the package, as users import them."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import Any, TypeVar

PACKAGE = "serve_warm"
"""The module of public names. Facts of entries name objects of this package by it and
without a digest, so that artifacts survive a move."""

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])


def public(found: AnyCallable) -> AnyCallable:
    """Make the package the module of a class or function, so that pickles survive a move.

    Annotations of a class become objects: `typing.get_type_hints` and pydantic would look for their
    names in the package.
    """
    if isinstance(found, type):
        hints = typing.get_type_hints(found, include_extras=True)
        own = vars(found).get("__annotations__", {})
        found.__annotations__ = {name: hints[name] for name in own}
        if dataclasses.is_dataclass(found):
            for field in dataclasses.fields(found):
                field.type = hints[field.name]
    found.__module__ = PACKAGE
    return found
