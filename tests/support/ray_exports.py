# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Ray's metrics, which records the reported values and how often."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest


class Exports:
    """Replaces the gauges and counters of `ray.serve.metrics`, and keeps the values."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.values: dict[str, list[float]] = {}
        """Values that each gauge was set to, in order. Values of all labels are in one list."""
        self.totals: Counter[str] = Counter()
        """Amounts that were added to each counter."""
        self.threads: set[int] = set()
        """Ids of the threads that reported values."""
        self.refusal: Exception | None = None
        self.refused = 0
        for kind in ("Gauge", "Counter"):
            patch.setattr(f"ray.serve.metrics.{kind}", self._declare)

    def _declare(self, name: str, description: str, tag_keys: tuple[str, ...]) -> Series:
        if self.refusal is not None:
            self.refused += 1
            raise self.refusal
        return Series(self, name, tag_keys)


class Series:
    def __init__(self, exports: Exports, name: str, tag_keys: tuple[str, ...]) -> None:
        self._exports = exports
        self._name = name
        self._tag_keys = tag_keys

    def set(self, value: float, tags: Mapping[str, str]) -> None:
        assert set(tags) == set(self._tag_keys)
        self._exports.threads.add(threading.get_ident())
        self._exports.values.setdefault(self._name, []).append(value)

    def inc(self, value: float, tags: Mapping[str, str]) -> None:
        assert set(tags) == set(self._tag_keys)
        assert value > 0  # Ray raises
        self._exports.totals[self._name] += value  # type: ignore[assignment]  # not only integers
