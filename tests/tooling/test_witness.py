# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The witness of a node finds false "ready" answers, and "not ready" answers without a reason."""

from __future__ import annotations

import pytest

from witness import Answer, Life, false_readies, late_readies, notes_beside

PROVEN = Life(pid=1, began_s=10.0, proven_s=20.0, ended_s=50.0)
WITH_IT = Life(pid=2, began_s=12.0, proven_s=30.0, ended_s=50.0)
ADDED = Life(pid=3, began_s=25.0, proven_s=40.0, ended_s=60.0)


def answer(at_s: float, *, ready: bool, took_s: float = 0.1) -> Answer:
    return Answer(source="test", sent_s=at_s, received_s=at_s + took_s, ready=ready)


@pytest.mark.parametrize(
    ("lives", "latch", "at_s", "false"),
    [
        ([], "on", 15, True),
        ([PROVEN], "on", 19, True),
        ([PROVEN], "on", 19.95, False),  # it was proven before the answer came
        ([PROVEN], "on", 20, False),
        ([PROVEN], "on", 49.9, False),
        ([PROVEN], "on", 50, True),
        ([PROVEN, WITH_IT], "on", 25, True),
        ([PROVEN, WITH_IT], "off", 25, True),
        ([PROVEN, WITH_IT], "on", 30, False),
        ([PROVEN, ADDED], "on", 30, False),
        ([PROVEN, ADDED], "off", 30, True),
        ([PROVEN, ADDED], "off", 25.5, False),  # the new replica may not have written a state yet
        ([PROVEN, ADDED], "off", 41, False),
        ([PROVEN, ADDED], "on", 55, False),
        ([Life(pid=1, began_s=10.0)], "on", 1e9, True),
    ],
)
def test_a_ready_that_nothing_allows_is_false(lives, latch, at_s, false):
    """No replica was proven, or one that began earlier was not."""
    found = false_readies([answer(at_s, ready=True)], lives, latch=latch)

    assert bool(found) == false
    assert false_readies([answer(at_s, ready=False)], lives, latch=latch) == []


@pytest.mark.parametrize(
    ("lives", "latch", "at_s", "late"),
    [
        ([], "on", 30, False),
        ([PROVEN], "on", 22, False),
        ([PROVEN], "on", 26, True),
        ([PROVEN], "on", 49.95, False),
        ([PROVEN, ADDED], "on", 36, True),
        ([PROVEN, ADDED], "off", 36, False),
        ([PROVEN, ADDED], "off", 47, True),
        ([PROVEN, WITH_IT], "on", 34, False),
        ([PROVEN, WITH_IT], "on", 36, True),
    ],
)
def test_a_ready_that_stays_out_for_a_period_is_late(lives, latch, at_s, late):
    """The node had to be ready during the whole period before the answer."""
    found = late_readies([answer(at_s, ready=False)], lives, latch=latch, period_s=5.0)

    assert bool(found) == late


def test_notes_lie_beside_the_states():
    """The replicas of the cluster find the notes too."""
    assert str(notes_beside("/x/state")) == "/x/notes"
