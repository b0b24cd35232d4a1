# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray: a model that is changed while eight clients send requests gives right answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from conftest import wait_until
from integration.changing_app import BATCHES, CHANGES, KEY, PLAIN, Changing, x
from integration.clients import CLIENTS, Clients, published
from serve_warm.builder.signing import Signing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import App, Cluster

# Over a minute; tests/properties has the changes without Ray.
pytestmark = [pytest.mark.ray, pytest.mark.stress, pytest.mark.timeout(600)]

CALLS = 5
"""Calls of each batch in one request."""


@pytest.fixture(
    scope="module",
    # A library is chosen as an entry is, and its artifact takes a minute and a half.
    params=[2, pytest.param(3, marks=pytest.mark.stress)],
    ids=["level 2", "level 3"],
)
def level(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture(scope="module")
def store(cluster: Cluster, on: Any, level: int) -> str:
    """Return the store with the published artifact of a level."""
    app, signing = f"integration.changing_app:level_{level}", Signing(key=KEY)
    return published(cluster, app, f"changing-{level}", on=on, signing=signing)


def configure(cluster: Cluster, store: str, level: int, *, scale: float, name: str = "") -> App:
    """Deploy by a Serve configuration, which has no other application, or change that one."""
    return cluster.configure(
        f"integration.changing_app:level_{level}",
        "Changing",
        {"scale": scale, "warmup": {"artifact": store}},
        name=name,
    )


@pytest.fixture(scope="module")
def app(cluster: Cluster, store: str, level: int) -> Iterator[App]:
    """A replica that was started from the artifact."""
    started = configure(cluster, store, level, scale=1.0).ready()
    yield started
    cluster.delete({started.name: started})


@torch.inference_mode()
def eager(*, change: str = PLAIN, scale: float = 1.0) -> dict[int, torch.Tensor]:
    """Return the answers of the uncompiled model in a state, by batch."""
    model = Changing().eval()
    model.scale = scale
    if change == PLAIN:
        return {batch: model(x(batch)) for batch in BATCHES}
    with CHANGES[change](model):
        return {batch: model(x(batch)) for batch in BATCHES}


def is_right(output: list[float], wanted: torch.Tensor) -> bool:
    got = torch.tensor(output).view_as(wanted)
    return torch.allclose(got, wanted, rtol=1e-4, atol=1e-5)


class Asking(Clients):
    """Clients of an application, whose answers are kept."""

    def __init__(self, app: App) -> None:
        self.answers: list[list[Any]] = [[] for _ in range(CLIENTS)]
        """Of each client, by request."""
        asked = list(BATCHES) * CALLS
        super().__init__(lambda number: self.answers[number].append(app.call("ask", asked)))

    def ask_again(self, times: int) -> None:
        """Wait until each client began a request from now on, and has so many answers."""
        # One more: the request that is under way was begun before.
        wanted = [len(answers) + times + 1 for answers in self.answers]
        wait_until(
            "all clients are answered",
            lambda: (
                self.errors or all(len(a) >= n for a, n in zip(self.answers, wanted, strict=True))
            ),
        )


def not_by_entries(app: App) -> tuple[int, int]:
    """Return how much was compiled since the start, and how many calls went to torch.compile."""
    report = app.report()
    level_1 = sum(use["calls"] for use in report["entries"] if use["level"] == 1)
    return report["after_ready"]["compiles"], level_1


def test_every_answer_is_that_of_the_model_as_it_is(app: App, level: int):
    """Changed while requests run, and back: no wrong answer, and the entries serve again."""
    report = app.report()
    clients = Asking(app)
    states = {app.call("counted_until_now"): PLAIN}
    back = {}
    try:
        for name in CHANGES:
            states[app.call("begin", name)] = name
            clients.ask_again(2)
            states[app.call("end")] = PLAIN
            clients.ask_again(1)  # none of the changed model is under way
            before = not_by_entries(app)
            clients.ask_again(2)
            back[name] = not_by_entries(app) == before
    finally:
        clients.stop()

    wanted = {name: eager(change=name) for name in (PLAIN, *CHANGES)}
    answers = [a for client in clients.answers for request in client for a in request]
    of_one_state = [a for a in answers if a[0] == a[1] and a[0] in states]
    wrong = [
        (states[count], batch)
        for count, _, batch, output in of_one_state
        if not is_right(output, wanted[states[count]][batch])
    ]
    assert clients.errors == []
    assert report["verdict"] == "full_hit"
    assert {use["level"] for use in report["entries"]} == {level}
    assert wrong == []
    assert {states[count] for count, *_ in of_one_state} == {PLAIN, *CHANGES}
    assert len(of_one_state) > 0.9 * len(answers)
    assert back == dict.fromkeys(CHANGES, True)
    assert not any(
        is_right(wanted[name][batch].flatten().tolist(), wanted[PLAIN][batch])
        for name in CHANGES
        for batch in BATCHES
    )


def test_a_changed_user_config_changes_the_answers(
    cluster: Cluster, app: App, store: str, level: int
):
    """Serve's light update: `reconfigure` sets a value of the model in the running replica."""
    clients = Asking(app)
    process, found = app.report()["pid"], []
    try:
        for scale in (3.0, 1.0):
            before = app.call("counted_until_now")
            configure(cluster, store, level, scale=scale, name=app.name)
            wait_until("reconfigured", lambda n=before: app.call("counted_until_now") == n + 2)
            clients.ask_again(1)
            found.append(app.call("ask", list(BATCHES)))
        before = not_by_entries(app)
        clients.ask_again(1)
        after = not_by_entries(app)
    finally:
        clients.stop()

    for scale, answers in zip((3.0, 1.0), found, strict=True):
        assert all(is_right(output, eager(scale=scale)[batch]) for _, _, batch, output in answers)
    assert clients.errors == []
    assert app.report()["pid"] == process
    assert before == after
