# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The image generator on real Ray: built, started from the artifact, and right over HTTP."""

from __future__ import annotations

import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import ray
import requests
import torch

from components import require_module
from conftest import HANG_S
from serve_warm.builder.app import load_app
from serve_warm.builder.cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.stress]  # its build alone takes a minute

ARGS = {"batch": [1, 2], "side": 8, "layers": 1, "heads": 1, "channels": [32, 32], "steps": 3}
CONFIG = f"""
applications:
  - name: image_generator
    route_prefix: /
    import_path: deployments.image_generator.app:configured
    args: {ARGS}
    deployments:
      - {{name: ImageGenerator, ray_actor_options: {{num_cpus: 0}}}}
"""


@pytest.fixture(scope="session", autouse=True)  # before the cluster, which takes seconds
def _diffusers() -> None:
    """Skips without diffusers. It brings Pillow, which tests import where they need it."""
    require_module("diffusers", "make setup, with Python 3.11 or newer")


@pytest.fixture(scope="module")
def started(cluster, tmp_path_factory) -> Any:
    """A replica that was started from an artifact of its own."""
    folder = tmp_path_factory.mktemp("images")
    (folder / "serve.yaml").write_text(CONFIG)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "serve_warm.cli", "build", str(folder / "serve.yaml")),
            *("--store", str(folder / "artifacts")),
            *("--address", ray.get_runtime_context().gcs_address),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not ended.returncode, ended.stderr[-3000:]
    on = Cluster(int(cluster.url.rpartition(":")[2]))
    app = load_app(str(folder / "serve.yaml"))
    with on.running(app, {"artifact": str(folder / "artifacts")}) as start:
        yield start


def post(started: Any, **body: object) -> requests.Response:
    return requests.post(f"{started.url}/", json=body, timeout=HANG_S)


def pixels(started: Any, **body: object) -> torch.Tensor:
    """Return the grey levels of an image, (height, width, 3)."""
    from PIL import Image

    response = post(started, **body)
    assert response.headers["content-type"] == "image/png", response.text
    return torch.from_numpy(np.array(Image.open(io.BytesIO(response.content)), dtype=np.float32))


def test_transformer_and_decoder_are_loaded_for_each_batch(started):
    """Two callables with two batches each: four entries, and nothing compiles."""
    report = started.report()

    assert report["verdict"] == "full_hit"
    assert report["covered"] == {"expected": 2, "proven": 2}
    assert report["levels"] == {"1": 0, "2": 4, "3": 0}
    assert report["warnings"] == []


def test_an_image_is_that_of_the_eager_model_alone_and_in_a_batch(started):
    """Within one of 255 grey levels of the same models without a compiler; nothing compiles."""
    from deployments.image_generator.app import ImageGenerator, Settings

    with torch.compiler.set_stance("force_eager"):
        eager = ImageGenerator.func_or_class(Settings.model_validate(ARGS))
        wanted = eager.generate([3], [4])[0]
    grey = wanted.clamp(-1, 1).add(1).mul(127.5).permute(1, 2, 0)

    alone = pixels(started, label=3, seed=4)
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda label: pixels(started, label=label, seed=4), (3, 5)))

    assert (alone - grey).abs().max() <= 1
    assert (together[0] - grey).abs().max() <= 1
    assert (together[1] - grey).abs().max() > 1
    assert not any(started.report()["after_ready"].values())
