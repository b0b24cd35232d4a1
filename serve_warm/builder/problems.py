# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What `serve-warm check` finds: problems and warnings, each with its place and its fix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that was found, where it stands, and what to do about it."""

    where: str
    what: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Everything that was found."""

    problems: tuple[Problem, ...] = ()
    """A build or a start would meet each of them."""
    warnings: tuple[Problem, ...] = ()
    """What may be as it should be."""

    def __add__(self, other: Checked) -> Checked:
        return Checked(
            problems=(*self.problems, *other.problems), warnings=(*self.warnings, *other.warnings)
        )
