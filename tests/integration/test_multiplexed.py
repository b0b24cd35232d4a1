# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray: models that are made when a request names them, the first one after `__init__`."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import pytest
import torch

from integration.changing_app import KEY, x
from integration.multiplexed_app import BATCH, LANGUAGES, load
from serve_warm.builder.app import load_app
from serve_warm.builder.build import build
from serve_warm.builder.cluster import Cluster as RayCluster

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@torch.inference_mode()
def test_models_that_are_made_later_have_entries(cluster: Cluster):
    """Also the third one, which nobody declared, and the first one, made again after the third."""
    with pytest.MonkeyPatch.context() as patch:
        # The builder's folder for temporary files is that of the replicas.
        patch.setattr(tempfile, "tempdir", str(cluster.state_dir.parent))
        store = str(cluster.state_dir.parent / "multiplexed")
        on = RayCluster(int(cluster.url.rpartition(":")[2]))
        build(load_app("integration.multiplexed_app:app"), store, on=on, key=KEY)
    app = cluster.configure(
        "integration.multiplexed_app:app", "Translator", {"warmup": {"artifact": store}}
    ).ready()
    report = app.report()

    asked = [*LANGUAGES, "it", *LANGUAGES]
    answers = [
        app.handle.options(multiplexed_model_id=language).predict.remote(x(BATCH)).result()
        for language in asked
    ]
    after = app.report()
    cluster.delete({app.name: app})

    assert (report["verdict"], report["traced"]) == ("full_hit", "none")
    for language, answer in zip(asked, answers, strict=True):
        torch.testing.assert_close(answer, load(language)(x(BATCH)))
    assert after["after_ready"]["compiles"] == 0
    assert {use["level"] for use in after["entries"]} == {2}
