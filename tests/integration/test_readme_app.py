# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The first guide's own application: built, started from its artifact, sent a thousand requests."""

from __future__ import annotations

import ast
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

import readme_files
from integration.apps import Embedder
from processes import run_to_end
from serve_warm.artifact import catalog
from serve_warm.builder import bench
from serve_warm.builder.app import App, load_app
from serve_warm.builder.build import Built, build
from serve_warm.builder.publishing import Destination
from serve_warm.stores import open_store
from serve_warm.trust.files import load_trust

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

README = Path(__file__).parent.parent.parent / "README.md"
FIRST = README.parent / "docs" / "guides" / "first-artifact.md"
WITHOUT_SERVE = README.parent / "docs" / "guides" / "without-serve.md"
CLIENTS = 8
REQUESTS = 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the guide's files under the names in the guide."""
    folder = tmp_path_factory.mktemp("readme")
    shown = readme_files.diffs(FIRST.read_text())
    assert list(shown) == ["app.py", "serve.yaml"]
    for name, diff in shown.items():
        (folder / name).write_text(readme_files.after(diff))
    return folder


@pytest.fixture(scope="module")
def app(folder: Path) -> App:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return load_app(str(folder / "serve.yaml"))


@pytest.fixture(scope="module")
def built(app, on, tmp_path_factory) -> Built:
    return build(app, Destination.of(open_store(str(tmp_path_factory.mktemp("store")))), on=on)


def test_a_build_compiles_and_its_round_trip_does_not(built):
    """The published code was compiled once, and loaded by a replica that ran no compiler."""
    described = catalog.describe(open_store(built.store), load_trust())

    assert built.cold["warmup"]["compiler_processes"] > 0
    assert built.round_trip["warmup"]["compiler_processes"] == 0
    assert built.round_trip["covered"] == {"expected": 4, "proven": 4}
    assert [item.statement for item in described] == [built.statement]
    assert described[0].trusted


@pytest.mark.long
def test_nothing_compiles_in_a_thousand_mixed_requests(app, on, built):
    """From 8 clients, with every batch and length in the buckets: no compile, no fall, no error."""

    def client(number: int) -> list[int]:
        with requests.Session() as session:
            return [
                session.post(started.url, json=rows(number * 131 + index), timeout=400).status_code
                for index in range(REQUESTS // CLIENTS)
            ]

    def rows(seed: int) -> list[list[int]]:
        return [[1] * (1 + (seed * 7 + row * 13) % 64) for row in range(1 + seed % 8)]

    with on.running(app, {"artifact": built.store, "on_missing": "fail"}) as started:
        with ThreadPoolExecutor(CLIENTS) as pool:
            codes = [code for codes in pool.map(client, range(CLIENTS)) for code in codes]
        report = started.report()

    assert codes == [200] * REQUESTS
    assert report["verdict"] == "full_hit"
    assert report["warmup"]["compiler_processes"] == 0
    assert report["after_ready"] == dict.fromkeys(report["after_ready"], 0) | {"calls": 1000}


@pytest.mark.long
def test_the_artifact_serves_a_process_without_serve(folder, built):
    """The program of the guide, beside the guide's files: a full hit, proven, and an answer."""
    [program] = re.findall(r"```python\n(.*?)```", WITHOUT_SERVE.read_text(), re.DOTALL)
    program = program.replace('"./artifacts"', repr(built.store))

    environ = {**os.environ, "PYTHONPATH": str(README.parent)}
    ended = run_to_end([sys.executable, "-c", program], cwd=folder, env=environ, timeout=400)

    assert ended.returncode == 0, ended.stderr
    proven, answer = ended.stdout.splitlines()
    assert proven == "full_hit {'expected': 4, 'proven': 4}"
    assert len(ast.literal_eval(answer)) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "verdict"),
    [("warm", "full_hit"), pytest.param("torch_bytes", "off", marks=pytest.mark.stress)],
)
def test_bench_compares_ways_to_start(app, on, built, mode, verdict):
    """With torch's own cache the compiler runs, but torch finds each graph. No request compiles."""
    reports: list[dict[str, Any]] = []

    run = bench.one(
        *(app, built.store, mode),
        on=on,
        request_count=9,
        inspect=lambda start: reports.append(start.report()),
    )

    hits = 4 if mode == "torch_bytes" else 0
    assert run["verdict"] == verdict
    assert bool(run["compiler_processes"]) == (mode == "torch_bytes")
    assert run["compiles_after_ready"] == 0
    assert reports[0]["warmup"]["fx_hits"] == hits
    assert reports[0]["warmup"]["fx_misses"] == 0


@pytest.mark.long
def test_a_replica_without_an_artifact_serves_without_compiling(app, on, built, tmp_path):
    """As the guide's YAML says: nobody waits for the compiler, and what ran is counted."""
    with on.running(app, {"artifact": tmp_path.as_uri()}) as started:
        answer = requests.post(started.url, json=[[1, 2, 3]], timeout=400)
        report = started.report()
        refused = [
            requests.post(started.url, json=rows, timeout=400) for rows in ([[1] * 65], [[1]] * 9)
        ]
        empty = requests.post(started.url, json=[], timeout=400)
    assert answer.status_code == 200
    assert [each.status_code for each in refused] == [400, 400]
    assert "length=65 is larger than the largest bucket" in refused[0].text
    assert (empty.status_code, empty.json()) == (200, [])
    assert (report["verdict"], report["uncompiled"]) == ("eager", True)
    assert [each["reason"] for each in report["eager_calls"]] == ["no_artifact"]
    assert report["warmup"]["compiles"] == report["after_ready"]["compiles"] == 0


@pytest.mark.stress  # a minute; tests/test_fingerprint.py has the factor
def test_other_threads_are_another_variant(app, on, built, cluster):
    """The report of such a replica names the factor that differs, and the replica starts anyway.

    An application that runs on the same cluster is there before, during and after.
    """
    beside = cluster.start({"bystander": Embedder.bind()})
    bystander = beside["bystander"].ready()
    with_two = App(**{**vars(app), "overrides": {"Scorer": {"ray_actor_options": {"num_cpus": 2}}}})
    pids = [bystander.report()["pid"]]
    with on.running(with_two, {"artifact": built.store, "on_missing": "compile"}) as started:
        report = started.report()
        pids.append(bystander.report()["pid"])
    pids.append(bystander.report()["pid"])
    cluster.delete(beside)

    assert len(set(pids)) == 1
    assert (report["stage"], report["verdict"]) == ("READY", "miss")
    assert "threads: artifact 1, here 2" in report["artifact"]["reason"]
