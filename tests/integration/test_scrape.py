# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes Ray's endpoint and a node server: both say the same of one replica."""

from __future__ import annotations

import contextlib
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from _pytest.outcomes import Failed

from boards import BOARD, SINKS, drawn, queries, substituted
from conftest import App, Cluster, wait_until
from integration import apps as shapes
from prometheus_server import prometheus

pytestmark = [pytest.mark.ray, pytest.mark.long]

STARTUP = "ray_serve_replica_startup_latency_ms_count"
RULES = Path(__file__).parents[2] / "helm" / "serve-warm" / "rules" / "serve-warm.yaml"


@pytest.fixture
def app(cluster: Cluster) -> Iterator[App]:
    (started,) = cluster.start({"scraped": shapes.Embedder.bind()}).values()
    yield started
    cluster.delete({started.name: started})


@pytest.fixture
def node_server(cluster: Cluster) -> Iterator[str]:
    command = [sys.executable, "-m", "serve_warm.node_server", "--host", "127.0.0.1"]
    command += ["--port", "0", "--state-dir", str(cluster.state_dir)]
    command += ["--raylet", "none", "--proxy", f"{cluster.url}/-/healthz"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    yield f"127.0.0.1:{re.search(r'answers on port ([0-9]+)', server.stderr.readline())[1]}"
    server.kill()
    server.communicate()


def test_both_sinks_say_the_same(
    cluster: Cluster, node_server: str, app: App, tmp_path: Path
) -> None:
    """Each panel that works with both shows the same numbers; a record counts a replica once."""
    where = ray.nodes()[0]
    of_ray = f"{where['NodeManagerAddress']}:{where['MetricsExportPort']}"
    # Ray's endpoint tells of all that there has been in its cluster: after fifty applications 9 MB,
    # for which it takes ten seconds, and one scrape after the other.
    patient = {"scrape_interval": "30s", "scrape_timeout": "30s"}
    scrapes = [
        {"job_name": "node", "static_configs": [{"targets": [node_server]}]},
        {"job_name": "ray", "static_configs": [{"targets": [of_ray]}], **patient},
    ]
    report = app.ready().report()
    assert app.post(json={"values": [1.0]}).status_code == 200

    with prometheus(tmp_path, scrapes=scrapes, rule_files=[RULES]) as running:

        def ask(expression: str) -> list[tuple[dict[str, str], float]]:
            # Of the tests that share the cluster, only this one's application.
            found = [(labels, round(value, 3)) for labels, value in running.ask(expression)]
            return sorted(found, key=str)

        # Its own: Serve's controller, which other tests kill, exports what it saw later on.
        for name in ("serve_warm_ready_seconds", "ray_serve_warm_ready_seconds", STARTUP):
            mine = f'{name}{{application="{app.name}"}}'
            wait_until(f"{mine} is scraped", functools.partial(ask, mine))
        mine = {"Application": app.name}
        # What is counted from the time range, or rests on Ray alone, or on the clock, is left out.
        titles = [p["title"] for p in drawn(BOARD) if "${sink}" in str(p["targets"])]
        left_out = {
            "Compiles, captures and tuning after ready",
            "Entries compared with eager execution",
        }

        def show(sink: str) -> dict[str, list[Any]]:
            # Node servers leave out most zeros of gauges, which Ray's export has.
            return {
                title: [
                    [each for each in ask(substituted(q, sink=sink, **mine)) if each[1]]
                    for q in queries(title)
                ]
                for title in titles
                if title not in left_out
            }

        # Ray collects in rounds of its own: its first one may have been in the middle of the start.
        with contextlib.suppress(Failed):
            wait_until("both say the same", lambda: show(SINKS[0]) == show(SINKS[1]))
        by_node, by_ray = map(show, SINKS)
        startup = ask(f'{STARTUP}{{application="{app.name}"}}')
        ready = wait_until(
            "it is recorded",
            lambda: ask(f'deployment:serve_warm_replicas_ready:count{{application="{app.name}"}}'),
        )
        described = running.described()

    assert by_ray == by_node
    ((_, seconds),) = by_node["Time to ready of each replica, and the objective"][0]
    assert seconds == round(report["elapsed_s"], 3)
    assert [value for _, value in ready] == [1.0]
    assert [value for _, value in startup] == [1.0]
    # Prometheus requests OpenMetrics, because the older format has no units.
    assert described["serve_warm_stage_age_seconds"] == ("gauge", "seconds")
    assert described["serve_warm_start_duration_seconds"] == ("histogram", "seconds")
    assert described["serve_warm_starts"] == ("counter", "")
    assert "serve_warm_starts_total" not in described
