# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Lookups that find nothing while torch traces: attributes and globals that do not exist.

A forward can catch the error of such a lookup, or pass a default: `try: obj.x`, `getattr(obj, "x",
1)`, a global that hides a built-in. The graph then depends on the absence, for which Dynamo has no
guard. Each hook here uses private torch code (seen in 2.11 to 2.15).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

import torch

from serve_warm.precompile.facts.names import is_own, is_own_module, locate, name_of
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.table import UNREADABLE
from serve_warm.private_apis import dynamo
from serve_warm.private_apis.patches import Change

if TYPE_CHECKING:
    from serve_warm.precompile.trace.guards import Guard
    from serve_warm.private_apis.dynamo_objects import (
        AnswerHasattr,
        BytecodeInstruction,
        LoadBuiltin,
        ModelOfValue,
        ReadAttribute,
        Translator,
        Variable,
    )


class _With:
    """An object that has one attribute, or none."""

    def __init__(self, *names: str) -> None:
        for name in names:
            vars(self)[name] = None

    def __getattribute__(self, name: str) -> object:
        own = object.__getattribute__(self, "__dict__")
        if name == "__dict__":
            return own
        try:
            return own[name]
        except KeyError:
            raise AttributeError(name) from None


def noting_failed_lookups(
    guards: list[Guard], refusals: list[str], guard_at: Callable[..., Guard]
) -> Iterator[Change]:
    """Record a guard for each lookup of an attribute or a global that finds nothing.

    `guard_at(source, **fields)` returns a guard on a Dynamo source. A lookup on an object that has
    no path is added to `refusals`.
    """
    notes = _Notes(guards, refusals, guard_at)
    if not any(name in vars(kind) for kind in dynamo.kinds_of_variables() for name in READS):
        raise NoEntry(f"torch {torch.__version__} has no known method that reads an attribute")
    for kind in dynamo.kinds_of_variables():
        for name in READS:
            if name in vars(kind):
                yield Change(f"*.{name}", notes.of_errors, kind)
        if "call_obj_hasattr" in vars(kind):
            yield Change("*.call_obj_hasattr", notes.of_answers, kind)
    yield Change("InstructionTranslatorBase.load_builtin", notes.of_builtins)


class _Notes:
    """Turns lookups of one trace into guards."""

    def __init__(
        self, guards: list[Guard], refusals: list[str], guard_at: Callable[..., Guard]
    ) -> None:
        self._guards = guards
        self._refusals = refusals
        self._guard_at = guard_at

    def of_errors(self, original: ReadAttribute) -> ReadAttribute:
        """Return `original`, a read of an attribute, with a note if it raises AttributeError."""
        missing = dynamo.missing_attribute_class()

        def var_getattr(variable: Variable, tx: Translator, name: str) -> Variable:
            try:
                found = original(variable, tx, name)
            except missing:
                self._note(variable, tx, name, is_there=False)
                raise
            if _falls_back(variable, name):
                fields = {"value": variable.value, "argument": name}
                self._guards.append(self._guard_at(variable.source, kind=NOT_OWN, **fields))
                of_class = self._guard_at(
                    variable.source, kind="HASATTR", value=_With(), argument=name
                )
                self._guards.append(replace(of_class, path=f"type({of_class.path})"))
            return found

        return var_getattr

    def of_answers(self, original: AnswerHasattr) -> AnswerHasattr:
        """Return `original`, Dynamo's `hasattr`, with a note of each answer."""

        def call_obj_hasattr(variable: Variable, tx: Translator, name: str) -> Variable | None:
            answer = original(variable, tx, name)
            if answer is not None and answer.is_python_constant():
                self._note(variable, tx, name, is_there=bool(answer.as_python_constant()))
            return answer

        return call_obj_hasattr

    def of_builtins(self, original: LoadBuiltin) -> LoadBuiltin:
        """Return `original`, a read of a built-in name, with a note that no global has the name."""

        def load_builtin(tx: Translator, inst: BytecodeInstruction) -> None:
            module = sys.modules.get(str(tx.f_globals.get("__name__")))
            if module is not None and vars(module) is tx.f_globals and _is_of_app(module):
                place = (module.__name__, "")
                guard = self._guard_at(place, kind=NOT_OWN, value=module, argument=inst.argval)
                self._guards.append(guard)
            original(tx, inst)

        return load_builtin

    def _note(self, variable: Variable, tx: Translator, name: str, *, is_there: bool) -> None:
        if tx.output.side_effects.has_pending_mutation_of_attr(variable, name):
            return  # the trace itself has set or deleted the attribute
        if _answers_otherwise(variable, name, is_there=is_there):
            return
        if variable.source is not None:
            self._add(variable.source, name, is_there=is_there)
            return
        # The trace has created the object, so the answer depends on the object's class.
        kind = type(vars(variable).get("value"))
        if not _is_of_app(kind) or not hasattr(variable, "cls_source"):
            return
        place = variable.cls_source or locate(kind)
        if place is None:
            self._refusals.append(
                f"it looks for {name!r} in an object of {name_of(kind)}, a class without a path"
            )
        else:
            self._add(place, name, is_there=hasattr(kind, name))

    def _add(self, place: object, name: str, *, is_there: bool) -> None:
        value = _With(*[name] if is_there else ())
        self._guards.append(self._guard_at(place, kind="HASATTR", value=value, argument=name))


READS = ("var_getattr", "tp_getattro_impl")
"""Methods that read an attribute: up to 2.14, and from 2.15 on."""

NOT_OWN = "NOT_PRESENT_IN_GENERIC_DICT"
"""Guard on a name that is missing in an object's `__dict__`."""


def _falls_back(variable: Variable, name: str) -> TypeGuard[ModelOfValue]:
    """Return whether an object's `__getattr__` was called, because the object lacks the name."""
    value = vars(variable).get("value", _UNKNOWN)
    own = getattr(value, "__dict__", None)
    if variable.source is None or type(own) is not dict or name in own:
        return False
    # Modules have facts of their own (`guard_facts._of_lookups`).
    if isinstance(value, (torch.nn.Module, type, types.ModuleType)):
        return False
    kinds = type(value).__mro__
    return any("__getattr__" in vars(kind) for kind in kinds) and not any(
        name in vars(kind) for kind in kinds
    )


def _answers_otherwise(variable: Variable, name: str, *, is_there: bool) -> bool:
    """Return whether Dynamo's answer is about its own model of an object, and not about the object.

    Dynamo's bound methods have no `__func__`, for example.
    """
    if "Method" in type(variable).__name__:
        return True
    found = vars(variable).get("value", vars(variable).get("fn", _UNKNOWN))
    try:
        return found is not _UNKNOWN and hasattr(found, name) is not is_there
    except UNREADABLE:  # from a property of the model
        return True


_UNKNOWN = object()


def _is_of_app(found: type | types.ModuleType) -> bool:
    if isinstance(found, type):
        return not is_own(found)
    return not is_own_module(found.__name__)
