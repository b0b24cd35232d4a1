# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes the real node server, and evaluates the chart's unchanged rules."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from boards import BOARD, drawn, queries, substituted
from conftest import wait_until
from prometheus_server import Prometheus, prometheus
from serve_warm import node
from serve_warm._seats import SeatUse
from serve_warm.node import StateFile, boot_s
from serve_warm.replica.in_serve import facts_of
from serve_warm.report import (
    ArtifactUse,
    Counts,
    Coverage,
    DeviceMemory,
    EntryUse,
    Report,
    Stage,
    StageTime,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    command = [sys.executable, "-I", "-S", node.__file__, "serve", "--state-dir", str(state)]
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
    """Panels, records and alerts are right during three starts and two ends of replicas."""
    used = ArtifactUse(
        store="s3://bucket/shop",
        source="s3",
        statement="statements/Ranker/147378e2d3f56607.dsse.json",
        created="2026-11-20T10:00:00.000000Z",
    )
    on_gpu = DeviceMemory(
        device="cuda:0", reserved_bytes=3_000_000, reserved_peak_bytes=4_000_000, pools={"0.1": 7}
    )
    scraped.write(
        "warm",
        stage=Stage.READY,
        memory=(on_gpu,),
        verdict=Verdict.FULL_HIT,
        elapsed_s=12.5,
        ready_unix=time.time(),
        artifact=used,
        covered=Coverage(expected=6, proven=6),
        stages=(StageTime(stage=Stage.REPLAYING, seconds=4.0, hidden_s=1.5),),
        warmup=Counts(fx_hits=6),
        entries=(EntryUse(callable="app.Net", call="(t0)", level=2, calls=1),),
        seat=SeatUse(count=1, hit=True, waiting=1),
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
    shown = {panel["title"]: None for panel in drawn(BOARD)}
    for title in shown:
        shown[title] = [scraped.ask(substituted(query)) for query in queries(title)]

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
    for window in ("30m", "6h", "3d", "28d"):
        assert now[f"deployment:serve_warm_starts:count{window}"] == {"": 2.0}
        assert now[f"deployment:serve_warm_starts_missed:ratio{window}"] == {"": 0.5}
    assert shown["Ready replicas"] == [{"": 1.0}]
    assert shown["Starting replicas"] == [{"": 1.0}]
    assert shown["Cold share"] == [pytest.approx({"": 2 / 3})]
    assert shown["Objective met, 28 days"] == [{"": 0.5}]
    assert shown["Time to ready of each replica, and the objective"][0] == {"warm": 12.5}
    assert shown["Stage breakdown"] == [{"replaying": 4.0}]
    assert shown["Refused artifacts by reason"] == [{"untrusted": 1.0}]
    assert shown["Artifacts in use"] == [{"2026-11-20/s3/147378e2d3f5": 1.0}]
    assert shown["Versions"] == [{"2.60.0/2.13.0/0.5.0": 2.0}]
    few: dict[str, Any] = {
        "Kinds of calls by level": [{"2/warm": 1.0}],
        "Memory of CUDA graphs": [{"cuda:0/warm": 7.0}],
        "Seats: workers with finished imports": [{"": 1.0}, {"": 1.0}],
        "Starts that could not use a seat, by reason": [{"failed": 1.0}],
    }
    assert {title: shown[title] for title in few} == few
    assert shown["Stages of each replica"] == [{"warm": 8.0, "starts": 5.0}]
    # The node was warm before the second replica began, so that replica does not count yet.
    assert shown["Ready nodes (node server only)"] == [{"": 1.0}, {"": 1.0}, {"": 1.0}]
    assert shown["Duration of starts, median and 95th percentile (node server only)"][0] == {
        "failed": 3.75,
        "full_hit": 15.0,
    }
    assert 1600 / 1800 <= shown["Elapsed start time, as a share of deadline_s"][0]["starts"] <= 1
    # Only the panel of Ray's own metrics is empty, because there is no Ray.
    assert {title for title, found in shown.items() if not any(found)} == {
        "Ray's own start-up histograms, 95th percentile",
    }

    # Of the other two replicas, one becomes ready late, and one ends.
    scraped.write(
        "starts",
        stage=Stage.READY,
        verdict=Verdict.REFUSED,
        artifact=refused,
        seat=UNUSABLE,
        elapsed_s=1601.0,
        ready_unix=time.time(),
    )
    scraped.end("warm")
    wait_until("the late one is counted", lambda: scraped.ask(ended).get("starts") == 0.0)
    wait_until(
        "the end is seen",
        lambda: scraped.ask("replica:serve_warm_stage:now") == {"starts/ready": 1.0},
    )
    assert scraped.ask(ended) == {"warm": 1.0, "starts": 0.0, "fails": 0.0}
    assert scraped.ask('serve_warm_starts_total{outcome=~"full_hit|refused|failed"}') == {
        "full_hit": 1.0,
        "refused": 1.0,
        "failed": 1.0,
    }

    # The server itself: its alert is pending at once, and would fire five minutes later.
    scraped.server.kill()
    alert = 'ALERTS{alertname="ServeWarmNodeServerDown"}'
    pending = wait_until("an alert is pending", lambda: scraped.ask(alert))
    assert pending == {"ServeWarmNodeServerDown/pending/servewarmnodeserverdown/warning": 1.0}
