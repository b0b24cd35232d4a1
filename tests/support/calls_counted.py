# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Counts of the calls of chosen functions, for tests of the work that a call does."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def calls_of(*functions: Callable[..., Any]) -> Iterator[Counter[str]]:
    """Count the calls of these functions in the block and in this thread, by name."""
    found: Counter[str] = Counter()
    names = {each.__code__: each.__qualname__ for each in functions}

    def on_event(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in names:
            found[names[frame.f_code]] += 1

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        yield found
    finally:
        sys.setprofile(before)
