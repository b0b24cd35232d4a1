# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Attributes that torch reads while it traces, and keeps as constants without a guard.

Torch 2.11 does this for plain values of classes (`Config.scale`), for the names of classes and
functions, and for constant defaults of functions. Later versions guard most of them. The hooks use
private torch code (seen in 2.11 to 2.15).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from serve_warm.precompile.facts.names import is_own, literal
from serve_warm.precompile.facts.table import UNREADABLE
from serve_warm.precompile.trace.failed_lookups import READS
from serve_warm.private_apis import dynamo
from serve_warm.private_apis.patches import Change

if TYPE_CHECKING:
    from serve_warm.precompile.trace.guards import Guard
    from serve_warm.private_apis.dynamo_objects import ReadAttribute, Translator, Variable


def noting_constants(guards: list[Guard], guard_at: Callable[..., Guard]) -> Iterator[Change]:
    """Record a guard for each attribute that becomes a constant of the trace without a guard.

    `guard_at(source, **fields)` returns a guard on a Dynamo source.
    """

    def note(variable: Variable, tx: Translator, name: str, found: Variable) -> Variable:
        if _is_unguarded(variable, tx, name, found):
            source = dynamo.attribute_source(variable.source, name)
            value = getattr(_object_of(variable), name)
            guards.append(guard_at(source, kind="CONSTANT_MATCH", value=value))
        return found

    def noting(original: ReadAttribute) -> ReadAttribute:
        return lambda self, tx, name: note(self, tx, name, original(self, tx, name))

    def noting_builtin(read: Callable[..., Variable | None]) -> Callable[..., Variable | None]:
        def call_getattr(
            self: Variable, tx: Translator, owner: Variable, name: Variable, *default: Variable
        ) -> Variable | None:
            found = read(self, tx, owner, name, *default)
            if found is None:
                return None
            attribute = name.as_python_constant()
            return note(owner, tx, attribute, found) if isinstance(attribute, str) else found

        return call_getattr

    for kind in dynamo.kinds_of_variables():
        for name in READS:
            if name in vars(kind):
                yield Change(f"*.{name}", noting, kind)
    yield Change("BuiltinVariable.call_getattr", noting_builtin)  # up to 2.12


def _object_of(variable: Variable) -> object:
    """Return the object that one of Dynamo's models stands for, or the model if it does not say."""
    return vars(variable).get("value", vars(variable).get("fn", variable))


def _is_unguarded(variable: Variable, tx: Translator, name: str, found: Variable) -> bool:
    """Return whether a read gave the plain value of an object's attribute, and no source for it."""
    if found.source is not None or variable.source is None:
        return False
    # A method asks for its whole object, which would count as a read of all items of a dict.
    if dynamo.is_method(found) or not found.is_python_constant():
        return False
    owner = _object_of(variable)
    is_covered = isinstance(owner, (type, types.FunctionType)) and is_own(owner)
    if owner is variable or isinstance(owner, torch.Tensor) or is_covered:
        return False
    if tx.output.side_effects.has_pending_mutation_of_attr(variable, name):
        return False
    try:
        value, constant = getattr(owner, name), found.as_python_constant()
    except UNREADABLE:
        return False
    text = None if callable(value) else literal(value)
    return text is not None and text == literal(constant)
