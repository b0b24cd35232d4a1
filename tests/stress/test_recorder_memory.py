# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The recorder needs no more memory after ten minutes than after one, whatever traffic comes."""

from __future__ import annotations

import gc
import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from serve_warm.learn.recorder import KINDS_KEPT, Recorder
from serve_warm.learn.request_recorder import MOST_REQUESTS, RequestRecorder
from serve_warm.precompile.dispatch.call_counts import CallCounts
from serve_warm.precompile.dispatch.session import SESSION

MINUTES = 10
MORE_BYTES = 4 << 20
"""Largest growth after the first minute. Python's and torch's allocators keep some pages."""


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Owner:
    """Its method makes a call of a kind that no call was before."""

    def __init__(self, recorder: Recorder, counts: CallCounts) -> None:
        self._note, self._counts = recorder.note, counts
        self._sizes = itertools.cycle(range(1, 10_001))

    def ask(self, text: str) -> None:
        size = next(self._sizes)
        self._note(self._counts, (torch.empty(size),), {"text": text, "n": size})


@pytest.mark.stress
@pytest.mark.timeout(60 * MINUTES + 300)
def test_ten_thousand_kinds_over_ten_minutes_need_no_more_memory():
    recorder, requests, counts = Recorder(), RequestRecorder(), CallCounts("app.Model")
    SESSION.counts.add(counts)
    recorder.begin()
    owner: Any = Owner(recorder, counts)
    requests.watch(Owner, ["ask"], model_id=str)
    sizes: list[int] = []
    calls, until_s = 0, time.monotonic()
    while len(sizes) < MINUTES:
        until_s += 60
        while time.monotonic() < until_s:
            for number in range(1000):
                owner.ask(f"request {number}")
            calls += 1000
            recorder.to_json()
            requests.requests()
        sizes.append(resident_bytes())

    said = f"{calls} calls; MiB after each minute: {[size >> 20 for size in sizes]}"
    assert max(sizes[1:]) - sizes[0] < MORE_BYTES, said
    assert len(recorder.calls()[0]) <= KINDS_KEPT
    assert len(requests.requests()) == MOST_REQUESTS
