# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The findings of `serve-warm check`: problems and warnings, each with a location and a fix."""

from __future__ import annotations

from serve_warm._records import record


@record(frozen=True, kw_only=True)
class Problem:
    """One finding, with its location and how to fix it."""

    where: str
    what: str
    fix: str


@record(frozen=True, kw_only=True)
class CheckFindings:
    """All findings of a check."""

    problems: tuple[Problem, ...] = ()
    """Findings that would make a build or a start fail."""
    warnings: tuple[Problem, ...] = ()
    """Findings that may be intended."""
    notes: tuple[Problem, ...] = ()
    """What is good to know: what serve_warm does without being asked, and what a start takes."""

    def __add__(self, other: CheckFindings) -> CheckFindings:
        """Return the findings of both, each once: deployments may share a store."""
        return CheckFindings(
            problems=tuple(dict.fromkeys((*self.problems, *other.problems))),
            warnings=tuple(dict.fromkeys((*self.warnings, *other.warnings))),
            notes=tuple(dict.fromkeys((*self.notes, *other.notes))),
        )
