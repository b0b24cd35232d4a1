# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A model that is changed thousands of times a minute while threads call it, at levels 2 and 3.

Level 1 runs eagerly. A client of a live application sees the same in test_live_changes.py, slower.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import serve_warm
from integration.changing_app import BATCHES, CHANGES, PLAIN, Changing, x
from levels import build, eager_below, started
from serve_warm.precompile.dispatch.session import SESSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Self

THREADS = 4
TURN_S = 1e-5
"""After so long Python lets another thread run; 5 ms elsewhere, where a race is seldom seen."""
CHANGES_FOR_S = 30.0
ENOUGH = 1000
"""Least number of calls of each thread, and of changes."""
PAUSES_S = (0, 0.0005, 0.003)


@pytest.fixture
def quick_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    yield
    sys.setswitchinterval(before)


class Race:
    """Threads that call a model, of which somebody says what state it is in."""

    def __init__(self, call: Callable[[int], torch.Tensor], right: dict[str, Any]) -> None:
        self._call = call
        self._right = right
        self._is_over = threading.Event()
        self.state = (0, PLAIN)
        """A number that is odd in the middle of a change, and the change."""
        self.calls = [0] * THREADS
        """That nothing changed during."""
        self.wrong: list[Any] = []
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(THREADS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def step(self, step: Callable[[], Any], leads_to: str) -> None:
        """Do one half of a change."""
        number, state = self.state
        self.state = (number + 1, state)
        step()
        self.state = (number + 2, leads_to)

    def _ask(self, number: int) -> None:
        order = random.Random(number)
        while not self._is_over.is_set():
            before, batch = self.state, order.choice(BATCHES)
            found = self._answer(batch)
            if before[0] % 2 == 0 and self.state == before:
                self.calls[number] += 1
                if not is_right(found, self._right[before[1]][batch]):
                    self.wrong.append((before, batch, found))

    @torch.inference_mode()
    def _answer(self, batch: int) -> Any:
        try:
            return self._call(batch)
        except Exception as error:  # noqa: BLE001 - right in the middle of a change only
            return error


def is_right(found: Any, wanted: torch.Tensor) -> bool:
    return isinstance(found, torch.Tensor) and torch.allclose(found, wanted, atol=1e-5)


@torch.inference_mode()
def right_answers(model: Changing) -> dict[str, dict[int, torch.Tensor]]:
    """Return what eager answers in each state, by batch."""
    answers = {PLAIN: {batch: model(x(batch)) for batch in BATCHES}}
    for name, change in CHANGES.items():
        with change(model):
            answers[name] = {batch: model(x(batch)) for batch in BATCHES}
    return answers


@pytest.mark.stress
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.usefixtures("quick_turns")
def test_what_changes_between_two_calls_is_never_missed(tmp_path: Path, level: int):
    """A call that nothing changed during has the answer of the model as it is."""
    model = Changing().eval()
    compiled = serve_warm.compile(model, level=level, dynamic=False)
    build(tmp_path, lambda: [compiled(x(batch)) for batch in BATCHES], level=level)
    order, changes = random.Random(0), 0
    end = time.monotonic() + CHANGES_FOR_S

    with (
        started(tmp_path),
        eager_below(),
        Race(lambda batch: compiled(x(batch)), right_answers(model)) as race,
    ):
        # Also on a slow machine, each thread has asked often enough to meet each change.
        while time.monotonic() < end or min(*race.calls, changes) <= ENOUGH:
            name = order.choice(list(CHANGES))
            change = CHANGES[name](model)
            for step, leads_to in (
                (change.__enter__, name),
                (lambda change=change: change.__exit__(None, None, None), PLAIN),
            ):
                race.step(step, leads_to)
                changes += 1
                time.sleep(order.choice(PAUSES_S))

    assert race.wrong == []
    assert min(*race.calls, changes) > ENOUGH
    assert {use.level for use in SESSION.uses() if use.calls} == {1, level}
