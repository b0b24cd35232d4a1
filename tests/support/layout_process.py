# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Builds or starts the applications of `layout_app.py` with the release that is on the path.

    python layout_process.py '{"do": "build", "stores": "/folder", "key": "/key", "names": [...]}'

The process prints the result for each application as JSON. Both the `serve-warm` command and Serve
run as they do for a user, on one Ray cluster.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ray
from ray import serve

import layout_app

COMMAND = "import serve_warm.cli as c; print(*c.__path__, flush=True); c.main()"
"""Code of the console script. The script itself would run the installed release."""


def build(name: str, store: Path, key: str) -> Any:
    """Run `serve-warm build` on this cluster, and return its JSON."""
    address = ray.get_runtime_context().gcs_address
    options = ["--store", str(store), "--key", key, "--address", address, "--json"]
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND, "build", f"layout_app:{name}", *options],
        stdout=subprocess.PIPE,
        check=True,
    )
    package, _, built = ended.stdout.partition(b"\n")
    return {"package": package.decode(), "built": json.loads(built)}


def start(name: str, store: Path) -> dict[str, Any]:
    """Start the application from the store; return the report, and one answer of each model."""
    target = getattr(layout_app, name)
    configured = {"warmup": {"artifact": str(store)}}
    target = target._bound_deployment.options(user_config=configured).bind()
    handle: Any = serve.run(target, name=name, route_prefix=None)
    answers = {way: handle.answer.remote(way).result(timeout_s=60) for way in layout_app.WAYS}
    package = handle.package.remote().result(timeout_s=60)
    report = handle.warmup_report.remote().result(timeout_s=60)
    serve.delete(name)
    return {"package": package, "report": report, "answers": answers}


def main(do: str, stores: str, key: str, names: list[str]) -> dict[str, Any]:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=80 * 2**20,
    )
    try:
        done: dict[str, Any] = {}
        for name in names:
            store = Path(stores) / name
            done[name] = build(name, store, key) if do == "build" else start(name, store)
        return done
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(**json.loads(sys.argv[1]))) + "\n")
