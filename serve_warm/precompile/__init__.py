# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Levels 2 and 3: entries built ahead of time, and the dispatcher that runs them.

Other packages import from here and from `compiled`, and from no room. The names below that need
torch are imported at their first use, so that a replica can look for compiled callables without
torch.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from serve_warm.precompile.dispatch.session import SESSION, AnsweredBy
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.plan import LIBRARY_LEVEL

if TYPE_CHECKING:
    from serve_warm.precompile.builders.builder import RunningBuild
    from serve_warm.precompile.entries.model_tree import digest_models
    from serve_warm.precompile.entries.table import EntryTable
    from serve_warm.precompile.facts.names import digest_in_any_order
    from serve_warm.precompile.facts.torch_errors import describe_failure
    from serve_warm.precompile.parity.checks import Checks
    from serve_warm.precompile.parity.idle_checks import IdleChecks

__all__ = [
    "LIBRARY_LEVEL",
    "SESSION",
    "AnsweredBy",
    "Checks",
    "EntryTable",
    "IdleChecks",
    "NoEntry",
    "building",
    "describe_failure",
    "digest_in_any_order",
    "digest_models",
]

_HOMES = {
    "Checks": "parity.checks",
    "EntryTable": "entries.table",
    "IdleChecks": "parity.idle_checks",
    "describe_failure": "facts.torch_errors",
    "digest_models": "entries.model_tree",
    "digest_in_any_order": "facts.names",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def building(*, accept_torch_source: bool = False) -> AbstractContextManager[RunningBuild]:
    """Make an entry for each call in the block, where possible, and yield the build.

    With a torch whose private functions were not tested, it makes none, unless a person accepted
    this torch.

    The new entries run the calls. Each compile uses Inductor's caches, so code that was compiled at
    level 1 is not compiled again.
    """
    from serve_warm.precompile.builders.builder import RunningBuild

    return SESSION.building(RunningBuild(accept_torch_source=accept_torch_source))
