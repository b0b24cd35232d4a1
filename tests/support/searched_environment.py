# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""An environment that counts how often a text was searched for its credentials."""

from __future__ import annotations

from collections.abc import Iterator


class Searched(dict[str, str]):
    """Environment variables that count how often all of them are looked through."""

    times = 0

    def __iter__(self) -> Iterator[str]:
        self.times += 1
        return super().__iter__()
