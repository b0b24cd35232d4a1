# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The chart's containers, run with kubelet's mounts and restrictions: a build, then a warm start.

The pods have a read-only root, a user without rights, private folders in volumes that everybody may
write to, and a key that a group may read. Only running them shows that all of this works together.
There is no Kubernetes. `ray start` and a submitted configuration replace KubeRay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import example, helm_4, laid_over, of_kind, pods_of
from serve_warm.trust.keys import load_signing_key, make_signing_key, public_pem
from stress import pods

pytestmark = [pytest.mark.stress, pytest.mark.ray, pytest.mark.timeout(900)]

SCORER = Path(__file__).parents[2] / "deployments" / "scorer" / "app.py"
STORE = "file:///srv/serve_warm/artifacts"


@pytest.fixture
def release(tmp_path: Path) -> dict[str, Any]:
    """Return the chart's manifests for the README's application, with a claim as the store."""
    trouble = pods.why_not()
    if trouble:
        pytest.skip(f"no pod can run here: {trouble}")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    make_signing_key(tmp_path / "ci.key")
    pem = public_pem(load_signing_key(tmp_path / "ci.key").public_key()).decode()
    values = laid_over(
        example("s3-irsa"),
        {
            "artifact": {
                "store": STORE,
                "volume": {"persistentVolumeClaim": {"claimName": "artifacts"}},
            },
            "trust": {"keys": [{"name": "ci", "pem": pem}]},
            "workers": [{**example("s3-irsa")["workers"][0], "rayStartParams": {"num-cpus": "2"}}],
        },
    )
    (deployment,) = values["applications"][0]["deployments"]
    deployment["num_replicas"] = 1
    deployment["ray_actor_options"] = {"num_cpus": 1}
    deployment["user_config"] = {"warmup": {}}
    found = helm_4(values)
    code = tmp_path / "code"
    code.mkdir()
    (code / "app.py").write_text(SCORER.read_text())
    claim = tmp_path / "claim"
    claim.mkdir()
    claim.chmod(0o777)
    files = {m["metadata"]["name"]: m["data"] for m in of_kind(found, "ConfigMap")}
    files["serve-warm-signing-key"] = {"signing.key": (tmp_path / "ci.key").read_text()}
    (service,) = of_kind(found, "RayService")
    return {
        "templates": pods_of(found),
        "config": yaml.safe_load(service["spec"]["serveConfigV2"]),
        "options": {"code": code, "claims": {"artifacts": claim}, "files": files},
    }


def asked(pod: pods.Pod, url: str) -> Callable[[], str]:
    def ask() -> str:
        return pod.execute(["curl", "--silent", "--show-error", "--fail", url]).stdout

    return ask


def test_what_the_job_builds_the_workers_start_from(
    release: dict[str, Any], tmp_path: Path
) -> None:
    """The Job publishes an artifact. A worker is ready from loading it until Ray stops."""
    with pods.Pod(release["templates"]["build"], tmp_path / "build", **release["options"]) as build:
        build.initialise()
        said = build.run("sign")
    assert said.startswith("statements/app/Scorer/")

    worker = pods.Pod(release["templates"]["workers"], tmp_path / "worker", **release["options"])
    with worker:
        worker.initialise()
        node = worker.start("serve-warm-node")
        pods.until(asked(worker, "http://127.0.0.1:8099/livez"), seconds=30)
        assert asked(worker, "http://127.0.0.1:8099/readyz")() == ""

        start = "ray start --head --num-cpus=2 --node-ip-address=127.0.0.1 --block"
        ray = worker.start("ray-worker", ["/bin/sh", "-c", start])
        applications = "http://127.0.0.1:8265/api/serve/applications/"
        pods.until(asked(worker, applications), seconds=120)
        assert asked(worker, "http://127.0.0.1:8099/readyz")() == ""
        config = tmp_path / "config.json"
        config.write_text(json.dumps(release["config"]))
        put = ["curl", "--silent", "--show-error", "--fail", "--request", "PUT", applications]
        put += ["--header", "Content-Type: application/json", "--data", f"@{config}"]
        assert worker.execute(put).returncode == 0

        pods.until(asked(worker, "http://127.0.0.1:8099/readyz"), seconds=300)
        metrics = asked(worker, "http://127.0.0.1:8099/metrics")()
        assert re.search(r'serve_warm_verdict\{[^}]*verdict="full_hit"[^}]*\} 1', metrics)
        answer = worker.execute(
            ["curl", "--silent", "--fail", "--data", "[[1, 2, 3]]", "http://127.0.0.1:8000/"]
        )
        assert len(json.loads(answer.stdout)) == 1

        worker.end(ray)
        pods.until(lambda: not asked(worker, "http://127.0.0.1:8099/readyz")(), seconds=30)
        assert node.poll() is None
