# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster of its own with Serve's HAProxy data path; prints what its clients saw, as JSON.

Run by test_haproxy.py: the mode is chosen by a variable that Serve reads when it is imported.
"""

import json
import os
import secrets
import sys
import threading
import time
from pathlib import Path

# Inherited by every process that this run starts, and by no other.
os.environ["SERVE_WARM_TEST_RUN"] = secrets.token_hex(16)
os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])

import requests

from integration.apps import SlowToWarm
from serve_warm.builder.cluster import open_cluster

PAUSE_S = 3.4
"""Three passes of it are the ten seconds of warm-up."""


def main() -> None:
    """Send requests during the whole start of a replica, and print the answers."""
    from ray import serve

    answered: list[tuple[int, str]] = []
    stop = threading.Event()

    def client(url: str) -> None:
        while not stop.is_set():
            # A time-out is a client that gave up on a replica that does not serve yet.
            try:
                answer = requests.post(
                    url, json={"values": [1.0]}, headers={"client": "1"}, timeout=2.0
                )
            except requests.exceptions.RequestException:
                continue
            answered.append((answer.status_code, answer.text[:100]))
            time.sleep(0.05)

    with open_cluster() as cluster:
        url = f"http://127.0.0.1:{cluster.port}/"
        clients = [threading.Thread(target=client, args=(url,), daemon=True) for _ in range(4)]
        for thread in clients:
            thread.start()
        handle = serve.run(SlowToWarm.bind(PAUSE_S), name="slow", route_prefix="/")
        deadline = time.monotonic() + 200
        while sum(code == 200 for code, _ in answered) < 40 and time.monotonic() < deadline:
            time.sleep(0.1)
        stop.set()
        for thread in clients:
            thread.join()
        report = handle.warmup_report.remote().result(timeout_s=200)
        stages = [n["stage"] for n in handle.noted.remote().result(timeout_s=200) if "stage" in n]
        seen = {
            "report": report,
            "stages": stages,
            "answered": [code for code, _ in answered],
            "haproxy": _haproxy_runs(),
        }
        sys.stdout.write(json.dumps(seen) + "\n")


def _haproxy_runs() -> bool:
    """Whether a process of this run is HAProxy; one of another cluster does not count."""
    mark = f"SERVE_WARM_TEST_RUN={os.environ['SERVE_WARM_TEST_RUN']}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "comm").read_text()
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended meanwhile, or is somebody else's
        if "haproxy" in name and mark in variables:
            return True
    return False


if __name__ == "__main__":
    main()
