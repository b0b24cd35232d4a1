# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray: a server of two adapters, each with its own entry, and a table made at first use."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch

from integration.adapters_app import ADAPTERS, BATCH, Adapted
from integration.changing_app import KEY, x
from serve_warm.builder.app import load_app
from serve_warm.builder.build import build
from serve_warm.builder.cluster import Cluster as RayCluster
from serve_warm.builder.publishing import Destination
from serve_warm.builder.signing import Signing
from serve_warm.stores import open_store

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(600)]

CLIENTS = 4
REQUESTS = 200


@torch.inference_mode()
def expected() -> dict[str, torch.Tensor]:
    model, found = Adapted().eval(), {}
    for name in ADAPTERS:
        model.set_adapter(name)
        found[name] = model(x(BATCH)).flatten()
    return found


def test_requests_that_name_one_adapter_or_the_other_compile_nothing(cluster: Cluster):
    """Built by `serve-warm build`, proven for both, and then served in any order.

    Entries match only after the replay has made the model's table.
    """
    right = expected()
    with pytest.MonkeyPatch.context() as patch:
        # The builder's folder for temporary files is that of the replicas.
        patch.setattr(tempfile, "tempdir", str(cluster.state_dir.parent))
        store = str(cluster.state_dir.parent / "adapters")
        on = RayCluster(int(cluster.url.rpartition(":")[2]))
        build(
            load_app("integration.adapters_app:app"),
            Destination(store=open_store(store)),
            on=on,
            signing=Signing(key=KEY),
        )
    app = cluster.configure(
        "integration.adapters_app:app", "Adapting", {"warmup": {"artifact": store}}
    ).ready()
    report = app.report()

    def ask(number: int) -> tuple[str, Any]:
        name = list(ADAPTERS)[number * 7 % 5 % 2]
        return name, torch.tensor(app.call("ask", name))

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(ask, range(REQUESTS)))
    after = app.report()
    cluster.delete({app.name: app})

    assert (report["verdict"], report["covered"]["proven"]) == ("full_hit", 2)
    assert {name for name, _ in answers} == set(ADAPTERS)
    for name, answer in answers:
        torch.testing.assert_close(answer, right[name])
    assert not torch.allclose(*right.values())
    assert after["after_ready"]["compiles"] == 0
    assert {use["level"] for use in after["entries"]} == {2}
