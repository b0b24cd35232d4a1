# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Pieces of a long run. Each is done once, so that a new run continues a stopped one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MORE = 75
"""Exit status while pieces are left; EX_TEMPFAIL of sysexits.h."""
FIRST_GUESS_S = 120.0
"""Estimated seconds of a piece, for use before a piece of its kind has run."""


class Pieces:
    """The pieces of a run. The work folder has a file with the result of each piece."""

    def __init__(self, work: Path, *, limit_s: float) -> None:
        self._work = work
        self._end_s = time.monotonic() + limit_s
        self._longest_s: dict[str, float] = {}
        self._has_run = False

    def found(self, name: str) -> dict[str, Any] | None:
        """Return the result of a piece from an earlier run; None if it has not run."""
        path = self._path(name)
        if not path.exists():
            return None
        done: dict[str, Any] = json.loads(path.read_text())
        return done

    def do_once(
        self,
        name: str,
        do: Callable[[float], dict[str, Any]],
        *,
        kind: str = "",
        guess_s: float = FIRST_GUESS_S,
    ) -> dict[str, Any] | None:
        """Return the result of a piece, from now or an earlier run; None if no time is left.

        `do` gets the seconds that are left. Pieces of one `kind` take about equally long. The first
        piece of a run begins in any case.
        """
        done = self.found(name)
        if done is not None:
            return done
        kind = kind or name
        left_s = self._end_s - time.monotonic()
        if self._has_run and left_s < self._longest_s.get(kind, guess_s):
            return None
        self._has_run = True
        began_s = time.monotonic()
        found = do(left_s)
        took_s = time.monotonic() - began_s
        self._longest_s[kind] = max(took_s, self._longest_s.get(kind, 0.0))
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".tmp")
        beside.write_text(json.dumps(found))
        beside.rename(path)
        sys.stderr.write(f"{name.replace('/', ' ')}: {took_s:.0f} s\n")
        return found

    def _path(self, name: str) -> Path:
        return self._work / f"{name}.json"
