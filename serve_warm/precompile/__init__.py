# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Levels 2 and 3: entries built ahead of time, and the dispatcher that runs them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_warm.precompile.builders.builder import RunningBuild


def building() -> AbstractContextManager[RunningBuild]:
    """Make an entry for each call in the block, where possible, and yield the build.

    The new entries run the calls. Each compile uses Inductor's caches, so code that was compiled at
    level 1 is not compiled again.
    """
    from serve_warm.precompile.builders.builder import RunningBuild
    from serve_warm.precompile.dispatch.session import SESSION

    return SESSION.building(RunningBuild())
