# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes the real node server, and evaluates the chart's unchanged rules."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boards import queries, substituted
from conftest import wait_until
from prometheus_server import Prometheus, prometheus
from serve_warm._seats import SeatUse
from serve_warm._state_file import StateFile
from serve_warm.node import boot_s
from serve_warm.replica.in_serve import facts_of
from serve_warm.report import (
    ArtifactUse,
    Report,
    Stage,
    Verdict,
)

RULES = Path(__file__).parents[2] / "helm" / "serve-warm" / "rules" / "serve-warm.yaml"
DEPLOYMENT = {"application": "shop", "deployment": "Ranker"}


UNUSABLE = SeatUse(count=1, miss="failed")


class Scraped:
    """A node with replicas that a test writes, its server, and a Prometheus that scrapes it."""

    def __init__(self, directory: Path, server: subprocess.Popen[str]) -> None:
        self.directory = directory
        self.server = server
        self.prometheus: Prometheus
        self._files: dict[str, StateFile] = {}

    def write(self, name: str, **facts: Any) -> None:
        """Write a replica's state as the replica does."""
        report = Report(
            **DEPLOYMENT,
            replica=name,
            deadline_s=1800.0,
            artifact_configured=True,
            versions={"serve_warm": "0.5.0", "ray": "2.60.0", "torch": "2.13.0"},
            **facts,
        )
        if name not in self._files:
            self._files[name] = StateFile(self.directory, **DEPLOYMENT, replica=name)
        self._files[name].write(facts_of(report))

    def end(self, name: str) -> None:
        """End a replica's process."""
        self._files.pop(name).close()

    def ask(self, expression: str) -> dict[str, float]:
        """Return values by labels, without the labels that all series have."""
        found = {}
        for labels, value in self.prometheus.ask(expression):
            above = {"instance", "job", *DEPLOYMENT}
            key = "/".join(v for name, v in sorted(labels.items()) if name not in above)
            found[key] = value
        return found


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    directory = tmp_path_factory.mktemp("live")
    state = directory / "state"
    command = [sys.executable, "-m", "serve_warm.node_server", "--state-dir", str(state)]
    command += ["--host", "127.0.0.1", "--port", "0", "--raylet", "none", "--proxy", "none"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    port = re.search(r"answers on port (\d+)", server.stderr.readline())[1]
    scrapes = [{"job_name": "node", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]
    running = Scraped(state, server)
    try:
        with prometheus(directory, scrapes=scrapes, rule_files=[RULES]) as running.prometheus:
            wait_until("the empty node is scraped", lambda: running.ask("serve_warm_node_ready"))
            yield running
    finally:
        server.kill()
        server.communicate()


@pytest.mark.long
def test_prometheus_reads_openmetrics(scraped: Scraped) -> None:
    """Prometheus requests this format. The older format has no units."""
    described = scraped.prometheus.described()

    assert described["serve_warm_stage_age_seconds"] == ("gauge", "seconds")
    assert described["serve_warm_start_duration_seconds"] == ("histogram", "seconds")
    assert described["serve_warm_starts"] == ("counter", "")
    assert "serve_warm_starts_total" not in described


@pytest.mark.long
def test_a_live_fleet_is_seen_as_it_is(scraped: Scraped) -> None:
    """Records and alerts are right during three starts and the end of one."""
    used = ArtifactUse(
        store="s3://bucket/shop",
        source="s3",
        statement="statements/Ranker/147378e2d3f56607.dsse.json",
        created="2026-11-20T10:00:00.000000Z",
    )
    scraped.write(
        "warm",
        stage=Stage.READY,
        verdict=Verdict.FULL_HIT,
        elapsed_s=12.5,
        ready_unix=time.time(),
        artifact=used,
    )
    refused = ArtifactUse(store="s3://bucket/shop", source="s3", refused="untrusted")
    scraped.write(
        "starts",
        stage=Stage.REPLAYING,
        verdict=Verdict.REFUSED,
        artifact=refused,
        created_boot_s=boot_s() - 1600.0,
        seat=UNUSABLE,
    )
    scraped.write("fails", stage=Stage.FAILED, verdict=Verdict.MISS, elapsed_s=3.0)
    wait_until("three are seen", lambda: len(scraped.ask("serve_warm_replica_alive == 1")) == 3)
    scraped.end("fails")

    ended = "replica:serve_warm_start:within_slo"
    wait_until("the failed start counts", lambda: "fails" in scraped.ask(ended))
    firing = 'ALERTS{alertstate="firing"}'
    told = wait_until("alerts fire", lambda: len(scraped.ask(firing)) == 4 and scraped.ask(firing))
    # The records come from the same scrapes as these alerts.
    now = {name: scraped.ask(name) for name in re.findall(r"record: (\S+)", RULES.read_text())}
    assert told == {
        "ServeWarmArtifactRefused/firing/untrusted/servewarmartifactrefused/warning": 1.0,
        "ServeWarmColdStart/firing/servewarmcoldstart/warning": 1.0,
        "ServeWarmSeatsUnusable/firing/failed/servewarmseatsunusable/warning": 1.0,
        "ServeWarmStartNearDeadline/firing/servewarmstartneardeadline/warning": 1.0,
    }
    assert now["replica:serve_warm_stage:now"] == {"warm/ready": 1.0, "starts/replaying": 1.0}
    assert now["replica:serve_warm_start:within_slo"] == {"warm": 1.0, "fails": 0.0}
    assert now["replica:serve_warm_start:recent"].keys() == {"warm", "starts", "fails"}
    assert now["deployment:serve_warm_replicas_ready:count"] == {"": 1.0}
    assert now["deployment:serve_warm_replicas_starting:count"] == {"": 1.0}
    (ready,) = queries("Ready replicas")
    assert scraped.ask(substituted(ready)) == {"": 1.0}

    # The server itself: its alert is pending at once, and would fire five minutes later.
    scraped.server.kill()
    alert = 'ALERTS{alertname="ServeWarmNodeServerDown"}'
    pending = wait_until("an alert is pending", lambda: scraped.ask(alert))
    assert pending == {"ServeWarmNodeServerDown/pending/servewarmnodeserverdown/warning": 1.0}
