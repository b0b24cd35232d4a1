# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a trace returns, and what a builder makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from serve_warm._records import record
from serve_warm.precompile.facts import table as facts
from serve_warm.precompile.facts.plan import Plan

if TYPE_CHECKING:
    from serve_warm.private_apis.dynamo_objects import CompiledEntry


@record(frozen=True, kw_only=True)
class CompiledCall:
    """Code for one call: the bytes for an artifact, and the function to call now."""

    fn: Callable[..., object]
    """Function that takes the callee, then the tensors. The function first checks all tensors that
    the graph reads, including weights. If a tensor has different properties than in the first run,
    the function raises `NoEntry` and computes nothing."""
    data: bytes
    """A torch pickle, or at level 3 a shared library. Both are code, so load them only after
    verification. Neither contains weights."""
    references: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The objects that `load` needs in addition to a pickle. Maps the name of a global in compiled
    code to the module and qualified name of the global's value."""
    plan: Plan = field(default_factory=Plan)
    """Settings that are needed to load the library or the pickle. Can be stored as JSON."""
    facts: facts.Facts
    conditions: Sequence[str]
    """Conditions on the sizes of dynamic dimensions, as Python expressions. `L` maps names to
    tensors."""
    sources: Mapping[str, str]
    """SHA-256 of the file of each Python module whose code is in the graph, by module name."""


@record(frozen=True, kw_only=True)
class Captured:
    """Dynamo's result for one function: a graph compiled by a backend, and the code around it."""

    entry: CompiledEntry
    """torch's own object. Its `fn` is the bytecode around the graph, without any checks."""
    facts: facts.Facts
    conditions: Sequence[str]
    sources: Mapping[str, str]
    plan: Plan
    """Settings that `load` needs."""
