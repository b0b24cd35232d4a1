# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What else a traced function changes, besides its result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.trace.guards import path_of
from serve_warm.private_apis import dynamo
from serve_warm.private_apis.patches import Change, replaced

if TYPE_CHECKING:
    from serve_warm.private_apis.dynamo_objects import SideEffects, Variable


@contextlib.contextmanager
def side_effects() -> Iterator[Mapping[str, Sequence[str]]]:
    """Yield the names of existing objects that are changed by the code captured in the block.

    Each object's name is mapped to the names of the attributes that the code assigns. If there are
    no attribute names, the code changes the object in another way.

    The mapping grows during the capture, and is complete once the backend is called. Changes to the
    contents of tensors are left out, because the graph makes these changes. Seen in 2.11 to 2.13.
    """
    changes: dict[str, Sequence[str]] = {}
    with contextlib.ExitStack() as undo:
        if not _open:
            undo.enter_context(replaced([Change("SideEffects.codegen_update_mutated", _noting)]))
        _open.append(changes)
        undo.callback(_open.pop)
        yield changes


_open: list[dict[str, Sequence[str]]] = []
"""The mappings of the open blocks. A trace with another order of sets is a block in the block of
the first trace. Only one thread builds at a time."""


def _noting(write: Callable[..., object]) -> Callable[..., object]:
    def codegen_update_mutated(effects: SideEffects, *args: object, **kwargs: object) -> object:
        for variable in dynamo.changed_variables(effects):
            if not dynamo.is_made_by_trace(variable) and not _ends_as_it_was(effects, variable):
                name = path_of(variable.source) or type(variable).__name__
                for changes in _open:
                    changes[name] = _assigned_names(effects, variable)
        return write(effects, *args, **kwargs)

    return codegen_update_mutated


def _assigned_names(effects: SideEffects, variable: Variable) -> Sequence[str]:
    if not dynamo.is_object_of_user(variable) or _holds_others(effects, variable):
        return ()
    return list(map(str, effects.store_attr_mutations.get(variable, {})))


def _ends_as_it_was(effects: SideEffects, variable: Variable) -> bool:
    """Return whether an object has its original attributes again at the end, as after a reset.

    transformers sets and resets attributes around each forward (`CompileableContextVar`, 5.23).
    """
    if not dynamo.is_object_of_user(variable, exactly=True) or _holds_others(effects, variable):
        return False
    now = effects.store_attr_mutations.get(variable, {})
    # Dynamo changes no object while it traces, so these are the original values.
    before = getattr(variable.value, "__dict__", {})
    return all(
        name in before and value.is_python_constant() and _same(value, before[name])
        for name, value in now.items()
    )


def _holds_others(effects: SideEffects, variable: Variable) -> bool:
    """Return whether something besides the attributes of an object changed, such as list items.

    Up to 2.14, Dynamo's variable has a method for this check, with different names in 2.11 and
    2.13. In 2.15, the variable has a flag.
    """
    for name in ("is_base_vt_modified", "is_underlying_vt_modified"):
        modified = getattr(variable, name, None)
        if modified is not None:
            return bool(modified(effects))
    return bool(getattr(variable.mutation_type, "is_modified", False))


def _same(variable: Variable, value: object) -> bool:
    """Return whether a constant equals `value`; always False except for None, bool, int and str."""
    constant = variable.as_python_constant()
    plain = type(value) in (type(None), bool, int, str) and type(constant) is type(value)
    return plain and constant == value


def callable_once(run: Callable[..., object]) -> Callable[..., object]:
    """Wrap `run` in the kind of object that a backend must return. It is never saved."""
    base: Any = dynamo.answer_of_backend()

    class Once(base):  # type: ignore[misc]
        def __call__(self, *inputs: object) -> object:
            return run(*inputs)

        @classmethod
        def serialize_compile_artifacts(cls, fn: object) -> bytes:
            raise NoEntry(f"torch tried to save a graph that was only traced: {fn!r}")

        @classmethod
        def deserialize_compile_artifacts(cls, data: bytes) -> object:
            raise NoEntry(f"torch tried to load a graph that was only traced: {len(data)} bytes")

    return Once()
