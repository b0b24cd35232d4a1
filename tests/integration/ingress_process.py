# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A wrapped application in a cluster of its own, whose requests go to the replicas directly.

    python tests/integration/ingress_process.py direct|haproxy

Ray reads the variables at its import. Prints what the replicas recorded, as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SIZES = (3, 4, 3)

VARIABLES = {
    "direct": {"RAY_SERVE_ENABLE_DIRECT_INGRESS": "1"},
    "haproxy": {
        "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1",
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": shutil.which("haproxy") or "",
    },
}


def main(mode: str) -> dict[str, Any]:
    os.environ.update(VARIABLES[mode])
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    import ray
    import requests
    from ray import serve

    from s3_servers import free_port
    from serve_warm.app import wrap

    with tempfile.TemporaryDirectory() as folder:
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        port = free_port()
        serve.start(http_options={"port": port})
        settings = {"artifact": folder, "on_missing": "eager", "after_ready": "eager"}
        app = {"app": "integration.untouched_scorer:app", "record": "values"}
        serve.run(wrap({**app, **settings}), name="scorer", route_prefix="/scorer")
        answers = [
            requests.post(f"http://127.0.0.1:{port}/scorer", json=[[1] * size], timeout=60)
            for size in SIZES
        ]
        handle = serve.get_deployment_handle("Scorer", app_name="scorer")
        recorded = handle.warmup_recorded.remote().result(timeout_s=60)
        haproxy = [each for each in Path("/proc").glob("[0-9]*/comm") if is_haproxy(each)]
        ray.shutdown()
    return {
        "statuses": [each.status_code for each in answers],
        "requests": [(each["target"], each["calls"]) for each in recorded["requests"]],
        "calls": sum(each["calls"] for each in recorded["calls"]),
        "haproxy": bool(haproxy),
    }


def is_haproxy(comm: Path) -> bool:
    try:
        return comm.read_text().strip() == "haproxy"
    except OSError:
        return False


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/support")]
    sys.stdout.write(json.dumps(main(sys.argv[1])) + "\n")
