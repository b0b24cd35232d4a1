# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A driver of Ray that deploys an application, or asks one for its seat and process, and ends.

python seat_driver.py ADDRESS deploy|ask NAME
"""

from __future__ import annotations

import json
import sys

import ray
from ray import serve

from integration import seat_apps


def main() -> None:
    address, task, name = sys.argv[1:]
    ray.init(address=address, log_to_driver=False, namespace="serve")
    if task == "deploy":
        serve.start(proxy_location="Disabled")
        serve.run(seat_apps.bound("outlasts", cpus=1), name=name, route_prefix=None)
    handle = serve.get_app_handle(name)
    seat = handle.warmup_report.remote().result()["seat"]
    sys.stdout.write(f"{json.dumps({**seat, **handle.process.remote().result()})}\n")


if __name__ == "__main__":
    main()
