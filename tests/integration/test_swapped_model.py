# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray: eight clients send requests while `reconfigure` swaps the model; none compiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from conftest import wait_until
from integration.clients import CLIENTS, Clients
from integration.swapped_app import BATCHES, wanted

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.stress, pytest.mark.timeout(300)]

OLD, NEW = {"width": 8, "scale": 2.0}, {"width": 16, "scale": 3.0}


@pytest.mark.parametrize(
    ("replicas", "after_ready"),
    [(1, "forbid"), (1, "count"), (3, "count"), (3, "forbid")],
)
def test_no_request_compiles_while_a_model_is_swapped(
    cluster: Cluster, replicas: int, after_ready: str
):
    """All answers are those of the old or of the new model, and nobody gets an error."""
    settings = {"warmup": {"after_ready": after_ready}}
    target = ("integration.swapped_app:app", "Swapped")
    app = cluster.configure(*target, {**OLD, **settings}, num_replicas=replicas).ready()
    answers: list[tuple[int, int, list[float]]] = []
    """The batch, the process that answered, and the answer."""
    clients = Clients(
        lambda _: answers.extend((batch, *app.call("score", batch)) for batch in BATCHES)
    )
    right = {
        scale: {batch: pytest.approx(wanted(config, batch), abs=1e-4) for batch in BATCHES}
        for scale, config in (("old", OLD), ("new", NEW))
    }
    told: dict[int, Any] = {}

    def all_have_swapped() -> bool:
        process, compiled_by, report = app.call("told")
        told[process] = compiled_by, report
        swapped = {
            process
            for batch, process, answer in answers[-100 * CLIENTS :]
            if answer == right["new"][batch]
        }
        done = {process for process, (who, _) in told.items() if len(who) >= 2 * len(BATCHES)}
        return bool(clients.errors) or len(swapped & done) == replicas

    try:
        wait_until("all have answers", lambda: clients.errors or len(answers) > 50)
        cluster.configure(*target, {**NEW, **settings}, name=app.name, num_replicas=replicas)
        wait_until("all replicas have the new model", all_have_swapped)
        app.ready()
    finally:
        clients.stop()
        cluster.delete({app.name: app})

    assert clients.errors == []
    wrong = [
        (batch, answer)
        for batch, _, answer in answers
        if answer not in (right["old"][batch], right["new"][batch])
    ]
    assert wrong == []
    for compiled_by, report in told.values():
        assert [who for who in compiled_by if who] == []  # only replays, which have no request
        assert report["after_ready"]["compiles"] == report["after_ready"]["forbidden"] == 0
