# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The program that sends requests to a replica on a GPU, on the CPU with a small model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.stress, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
REQUESTS = 40
CONFIG = """
applications:
  - name: image_classifier
    route_prefix: /
    import_path: deployments.image_classifier.app:configured
    args: {batch: [1], depths: [1, 1, 1, 1]}
    deployments:
      - {name: ImageClassifier, ray_actor_options: {num_cpus: 1}}
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("requests")
    (folder / "serve.yaml").write_text(CONFIG)
    ended = subprocess.run(
        [
            *(
                sys.executable,
                str(ROOT / "tests/gpu/serve_requests.py"),
                str(folder / "serve.yaml"),
            ),
            *("--requests", str(REQUESTS), "--clients", "4", "--starts", "2"),
        ],
        cwd=ROOT,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not ended.returncode, ended.stderr[-3000:]
    said: dict[str, Any] = json.loads(ended.stdout)
    return said


def test_a_replica_from_an_artifact_compiles_nothing_and_answers_as_eager(found):
    """The replica starts from a new artifact, and requests change no count."""
    warm = found["serve_warm"]

    assert warm["verdict"] == "full_hit"
    assert not any([*warm["start"].values(), *warm["after_ready"].values()])
    assert (warm["together"]["requests"], warm["together"]["wrong"]) == (REQUESTS, 0)
    assert len(warm["alone"]) == 2


def test_the_naive_deployment_is_asked_the_same_and_watched(found):
    """The naive deployment compiles in `__init__`, and answers from a new thread per request."""
    naive = found["naive"]

    assert naive["in_init"]["compiles"] == 1
    assert (naive["together"]["requests"], naive["together"]["wrong"]) == (REQUESTS, 0)
    assert naive["threads"] > 8
