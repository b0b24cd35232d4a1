# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Patterns that policies name deployments, stores and builders by: text with `*` in it.

`*` stands for any characters, also for none and for `/`. Everything else stands for itself, so that
no name of a branch or a model is read as something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from serve_warm.errors import ConfigError


def matches(pattern: str, text: str) -> bool:
    """Return whether the whole text is what a pattern says.

    >>> matches("text/*", "text/embedder"), matches("s3://prod/*", "s3://production/a")
    (True, False)
    """
    return (
        re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, flags=re.DOTALL)
        is not None
    )


def matches_any(patterns: Iterable[str], text: str) -> bool:
    """Return whether one of the patterns says a text."""
    return any(matches(pattern, text) for pattern in patterns)


def read_patterns(given: Any, *, where: str) -> tuple[str, ...]:
    """Return patterns as policies keep them; `where` is where they were written.

    Raises:
        ConfigError: not a list of texts that can be shown, or an empty one.
    """
    patterns = tuple(given) if isinstance(given, list | tuple) else ()
    if not patterns or not all(isinstance(p, str) and p and p.isprintable() for p in patterns):
        raise ConfigError(
            f"{where} is not a list of names, or it is empty: {given!r}",
            hint='for example ["Embedder", "text/*"]; leave it out to mean all',
        )
    return patterns
