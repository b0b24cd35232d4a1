# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Patterns for deployments, stores and builders in policies: text with `*` as a wildcard.

`*` matches zero or more characters, including `/`. All other characters match themselves, so names
of branches and models need no escaping.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from serve_warm.errors import ConfigError


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern matches the whole text.

    >>> matches("text/*", "text/embedder"), matches("s3://prod/*", "s3://production/a")
    (True, False)
    """
    return (
        re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, flags=re.DOTALL)
        is not None
    )


def matches_any(patterns: Iterable[str], text: str) -> bool:
    """Return whether any of the patterns matches the whole text."""
    return any(matches(pattern, text) for pattern in patterns)


def read_patterns(given: Any, *, where: str) -> tuple[str, ...]:
    """Return validated patterns; `where` names the setting in errors.

    Raises:
        ConfigError: the value is not a list of printable strings, or is empty.
    """
    patterns = tuple(given) if isinstance(given, list | tuple) else ()
    if not patterns or not all(isinstance(p, str) and p and p.isprintable() for p in patterns):
        raise ConfigError(
            f"{where} must be a non-empty list of names: {given!r}",
            hint='for example ["Embedder", "text/*"]; omit the list to allow all names',
        )
    return patterns
