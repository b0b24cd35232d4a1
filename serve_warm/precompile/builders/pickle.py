# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Makes an entry for level 2: the pickled code, and its plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from serve_warm.precompile.entries.function import with_checks
from serve_warm.precompile.facts.names import locate
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.torch_errors import as_reasons
from serve_warm.precompile.trace.capture import capture
from serve_warm.precompile.trace.captured import CompiledCall
from serve_warm.precompile.trace.output_aliases import find_outputs_to_copy, noting_graphs
from serve_warm.private_apis import dynamo

if TYPE_CHECKING:
    import torch

    from serve_warm.private_apis.dynamo_objects import CompiledEntry


def make(
    function: Callable[..., object],
    callee: object,
    tensors: Sequence[torch.Tensor],
    arguments: Mapping[str, object],
) -> CompiledCall:
    """Compile `function(callee, *tensors)` ahead of time, with torch.compile's `arguments`.

    Raises:
        NoEntry: the graph breaks, or a part of it cannot be written to a file.
    """
    with as_reasons():
        with noting_graphs() as graphs:
            captured = capture(function, callee, tensors, arguments)
        entry, plan = captured.entry, captured.plan

        def find_copies(args: Sequence[object], outputs: Sequence[object]) -> list[int]:
            copies = find_outputs_to_copy(graphs[-1], args, outputs)
            if copies:
                plan["copies"] = copies
            return copies

        return CompiledCall(
            fn=with_checks(entry, plan, find_copies),
            data=type(entry).serialize(entry, {}).serialized_data,
            references=_references(entry, plan.get("numbers", {})),
            facts=captured.facts,
            conditions=captured.conditions,
            sources=captured.sources,
            plan=plan,
        )


def _references(entry: CompiledEntry, made: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return the module and qualified name of each global that torch expects from the loader.

    `made` names globals that the loader makes, so these globals are left out.
    """
    known = {*dynamo.imports_of(entry), *dynamo.used_globals(entry), *made}
    known.add(dynamo.graph_name(entry))
    found = {}
    for name in sorted(set(dynamo.external_references(entry)) - known):
        where = locate(entry.fn.__globals__[name])
        if where is None:
            value = entry.fn.__globals__[name]
            raise NoEntry(f"its code needs a {type(value).__name__} that has no import path")
        found[name] = where
    return found
