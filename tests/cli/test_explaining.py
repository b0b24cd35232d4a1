# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve-warm why`: one answer for each way in which a replica is not warm."""

from __future__ import annotations

import dataclasses
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from artifacts import fingerprint
from command_line import (  # noqa: F401 - fixtures
    Ended,
    publish,
    run_fixture,
    source_fixture,
    trust_file_fixture,
)
from serve_warm.cli.explaining import Answer
from serve_warm.report import Report, Stage, Verdict
from state_files import (  # noqa: F401 - fixtures
    WARM,
    clock_fixture,
    directory_fixture,
    replica_fixture,
)


@pytest.fixture(name="why")
def why_fixture(run: Callable[..., Ended], directory: Path) -> Callable[..., Ended]:
    """Run `serve-warm why` on the test's directory, without Serve."""
    return lambda *options: run(
        "why", "--state-dir", directory, *(options or ("--dashboard", "none"))
    )


def at(stage: Stage, **facts: Any) -> Report:
    return Report(stage=stage, verdict=Verdict.MISS, **facts)


READY_MISS = at(Stage.READY)
EVENT = "recompile of forward (model.py:7): size mismatch"
ROWS: dict[Answer, tuple[Report, dict[str, Any], list[str]]] = {
    "warm": (WARM, {}, [": warm: verdict full_hit"]),
    "failed": (
        at(Stage.FAILED),
        {"error": "input 'rows=3' failed: no memory\nhint: use less"},
        [": failed: input 'rows=3' failed: no memory", "  hint: use less", "  next: serve status"],
    ),
    "starting": (at(Stage.PENDING), {}, ["PENDING for", "imports and __init__"]),
    "loading": (at(Stage.PULLING), {"store": "s3://b/x"}, [": loading: PULLING", "s3://b/x"]),
    "compiling now": (
        at(Stage.REPLAYING),
        {
            "inputs_done": 3,
            "inputs_expected": 6,
            "reason": "threads: artifact 2, here 1\nhint: build",
            "spans": [["process", 1.0, 0.5, False], ["replay rows=3", 2.0, 41.2, False]],
        },
        [
            "REPLAYING for",
            "3 of 6 inputs replayed",
            "the last part, replay rows=3, took 41.2 s",
            "  no artifact is used: threads: artifact 2, here 1",
            "  next: serve-warm status --watch",
        ],
    ),
    "proving": (at(Stage.PROVING), {}, [": proving: PROVING for"]),
    "refused": (
        Report(stage=Stage.READY, verdict=Verdict.REFUSED),
        {"reason": "no trusted key signed it", "store": "s3://b/x"},
        [": refused: no trusted key signed it", "  next: serve-warm verify s3://b/x"],
    ),
    "nothing fits": (
        READY_MISS,
        {"reason": "threads: artifact 2, here 1", "store": "/nowhere/x"},
        [": nothing fits: threads: artifact 2, here 1", "  next: serve-warm diff /nowhere/x"],
    ),
    "eager by policy": (
        Report(stage=Stage.READY, verdict=Verdict.EAGER),
        {"uncompiled": True, "eager": ["eager: 90% of calls: Model(t0) with Tensor float32[9]"]},
        [
            ": eager by policy: eager: 90% of calls: Model(t0) with Tensor float32[9]",
            "  next: serve-warm plan -o plan.yaml",
        ],
    ),
    "partial": (
        Report(stage=Stage.READY, verdict=Verdict.PARTIAL),
        {"degraded": ["uncovered: 1 of 4 inputs"]},
        [": partial: uncovered: 1 of 4 inputs", "  next: serve-warm report"],
    ),
    "narrow": (
        WARM,
        {"narrow": ["axis 1 of ids has one size, 16", "axis 0 too"]},
        [": narrow: axis 1 of ids has one size, 16", "  axis 0 too"],
    ),
    "late": (
        Report(stage=Stage.READY, verdict=Verdict.LATE),
        {"degraded": ["late: the deadline of 900 s passed"]},
        [": late: late: the deadline of 900 s passed"],
    ),
    "degraded": (WARM, {"degraded": ["2 threads"]}, [": degraded: 2 threads"]),
    "requests compile": (
        WARM,
        {"event": EVENT, "inputs_expected": 2},
        [f": requests compile: {EVENT}", "  next: serve-warm report"],
    ),
    "no compiled code": (
        Report(stage=Stage.READY, verdict=Verdict.OFF),
        {
            "nothing_compiles": True,
            "warnings": ["this process has no compiled code, and no input made a compiled call"],
        },
        [": no compiled code: this process has no compiled code"],
    ),
}
OTHERS = {"hung", "not started", "waiting for a resource"}
"""Answers that the tests below get: no state file alone has them."""


def test_each_answer_has_a_row():
    assert {*ROWS, *OTHERS} == {*get_args(Answer)}


@pytest.mark.parametrize(
    "facts",
    [{"inputs_expected": 0}, {"inputs_expected": 2, "learned": "learned: 2 of 2 kinds of calls"}],
)
def test_a_compile_of_an_app_that_declares_nothing_leads_to_a_plan(
    facts: dict[str, Any], why: Callable[..., Ended], replica: Callable[..., object]
):
    replica(WARM, event=EVENT, **facts)
    assert "  next: serve-warm plan -o plan.yaml" in why().out.splitlines()


def test_a_request_that_compiles_now_is_told_before_its_line_is_logged(why, replica):
    replica(dataclasses.replace(WARM, doing="torch's compiler, in a request"))
    ended = why()
    said = "app#Embedder r1: compiling now: READY, waits for torch's compiler, in a request"
    assert said in ended.out.splitlines()
    assert ended.code == 1


@pytest.mark.parametrize("answer", ROWS)
def test_a_replica_is_explained_with_the_next_command(why, replica, answer: Answer):
    report, facts, said = ROWS[answer]
    replica(report, **facts)
    ended = why()
    assert ended.code == (0 if answer == "warm" else 1)
    assert ended.out.startswith(f"app#Embedder r1: {answer}")
    assert [text for text in said if text not in ended.out] == []
    assert ended.err == ""
    (explained,) = json.loads(why("--dashboard", "none", "--json").out)
    assert explained["name"] == "app#Embedder"
    assert answer in [each["answer"] for each in explained["findings"]]


def test_a_hung_replica_is_named_with_its_process(why, replica, clock):
    replica(at(Stage.REPLAYING))
    clock.move_on(600.0)
    ended = why()
    assert ended.out.startswith("app#Embedder r1: hung: ")
    assert "next: py-spy dump --pid " in ended.out


def test_the_replica_that_tells_most_is_chosen(why, replica):
    """One that failed, and not the one that Serve has just started in its place."""
    replica(at(Stage.FAILED), "r1", error="no memory")
    replica(at(Stage.PENDING), "r2")
    replica(WARM, "r3", of="Other")
    lines = why().out.splitlines()
    assert lines[0] == "app#Embedder r1: failed: no memory"
    assert lines[-1] == "app#Other r3: warm: verdict full_hit"
    chosen = why("--dashboard", "none", "--deployment", "Other")
    assert (chosen.code, chosen.out) == (0, "app#Other r3: warm: verdict full_hit\n")


def test_an_artifact_that_was_published_since_is_found(why, replica, source):
    """Nothing fitted at the start, but something does now: a restart is enough."""
    publish(source, deployment="Embedder")
    replica(
        dataclasses.replace(READY_MISS, fingerprint=fingerprint().to_json()),
        reason="the store is empty",
        store=str(source.root),
        artifacts_of="another",
    )
    assert "which fits" not in why().out, "an artifact of another application"
    report = dataclasses.replace(READY_MISS, fingerprint=fingerprint().to_json())
    replica(report, reason="the store is empty", store=str(source.root), artifacts_of="app")
    out = why().out
    assert "nothing fits: the store is empty" in out
    assert f"but {source.root} has statements/" in out
    assert "next: restart the replica" in out


# What Serve says -----------------------------------------------------------------------------


@pytest.fixture(name="dashboard")
def dashboard_fixture() -> Iterator[Callable[[Any], str]]:
    """Answer as Ray's dashboard does, and return its address."""
    servers = []

    def serve(answer: Any, token: str = "") -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.headers["Authorization"] == f"Bearer {token}" or not token
                is_path = self.path == "/api/serve/applications/"
                self.send_response(200 if is_known and is_path else 401 if is_path else 404)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def of_serve(status: str, message: str, *states: str) -> dict[str, Any]:
    replicas = [{"state": state, "replica_id": "r"} for state in states]
    deployment = {"status": status, "message": message, "replicas": replicas}
    application = {"status": "DEPLOYING", "message": "", "deployments": {"Model": deployment}}
    return {"applications": {"shop": application}}


def test_a_dashboard_with_a_token_gets_the_one_of_this_user(why, dashboard, tmp_path, monkeypatch):
    """As `serve-warm run` starts it: Ray keeps the token in a file."""
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    kept = tmp_path / "auth_token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(kept))
    address = dashboard(of_serve("UPDATING", "Deployment is waiting for GPUs"), token="abc-1")
    assert "Unauthorized" in why("--dashboard", address).err
    for written in ("abc-1\n", "abc-1"):
        kept.write_text(written)
        assert "shop#Model" in why("--dashboard", address).out
    kept.write_text("abc\r\nX-More: 1")
    assert "Unauthorized" in why("--dashboard", address).err
    monkeypatch.setenv("RAY_AUTH_TOKEN", "abc-1")
    assert "shop#Model" in why("--dashboard", address).out


RESOURCES = (
    "Deployment 'Model' in application 'shop' has 1 replicas that have taken more than 30s to be "
    'scheduled. Resources required for each replica: {"GPU": 1.0}, total resources available: {}.'
)


@pytest.mark.parametrize(
    ("given", "line", "then"),
    [
        (of_serve("UPDATING", RESOURCES), f"waiting for a resource: {RESOURCES}", "ray status"),
        (of_serve("UPDATING", ""), "not started: Serve says UPDATING", "serve status"),
        (of_serve("UPDATING", "", "STOPPING"), "not started: Serve says UPDATING", "serve status"),
        (
            of_serve("DEPLOY_FAILED", "Traceback\n  many lines\nno memory", "STOPPING"),
            "failed: no memory",
            "serve status",
        ),
    ],
)
def test_what_no_replica_can_say_is_asked_of_serve(why, dashboard, given, line: str, then: str):
    ended = why("--dashboard", dashboard(given))
    assert ended.code == 1
    first, last = ended.out.splitlines()
    assert first.startswith(f"shop#Model: {line}")
    assert last == f"  next: {then}"


def test_an_application_that_cannot_be_imported_is_named_beside_others(why, dashboard):
    answer = of_serve("UPDATING", RESOURCES)
    failed = {"status": "DEPLOY_FAILED", "message": "No module named 'app'", "deployments": {}}
    answer["applications"]["broken"] = failed
    lines = why("--dashboard", dashboard(answer)).out.splitlines()
    assert "broken#: failed: No module named 'app'" in lines
    assert any(line.startswith("shop#Model: waiting for a resource") for line in lines)


def test_a_deployment_that_is_scaled_to_none_waits_for_nothing(why, dashboard):
    assert why("--dashboard", dashboard(of_serve("HEALTHY", ""))).out == ""


def test_a_replica_on_another_node_is_not_explained_here(why, dashboard):
    ended = why("--dashboard", dashboard(of_serve("HEALTHY", "", "RUNNING")))
    assert (ended.code, ended.out) == (1, "")
    assert "nothing to explain in" in ended.err


@pytest.mark.parametrize("answer", [[], {"applications": []}, {"applications": {"a": 7}}, "<html>"])
def test_an_answer_that_is_not_serves_spoils_nothing(why, dashboard, replica, answer):
    replica(at(Stage.FAILED), error="no memory")
    ended = why("--dashboard", dashboard(answer))
    assert ended.out.startswith("app#Embedder r1: failed: no memory")


def test_an_application_that_was_deleted_keeps_nobody_from_being_warm(why, dashboard, replica):
    """Its files stay for some minutes."""
    replica(WARM, app="shop")
    replica(WARM, "r2", app="gone").close()
    known = why("--dashboard", dashboard(of_serve("HEALTHY", "", "RUNNING")))
    assert (known.code, known.out) == (0, "shop#Embedder r1: warm: verdict full_hit\n")
    unknown = why("--dashboard", "none")
    assert unknown.code == 1
    assert "gone#Embedder r2: not started: its last replica has ended" in unknown.out


def test_of_several_deployments_the_plan_is_for_the_one_that_compiles(why, replica):
    replica(WARM, event=EVENT, inputs_expected=0)
    replica(WARM, "r2", of="Ranker")
    assert "  next: serve-warm plan --deployment Embedder -o plan.yaml\n" in why().out


def test_a_dashboard_that_does_not_answer_is_named(why, replica):
    replica(at(Stage.FAILED), error="no memory")
    ended = why("--dashboard", "http://127.0.0.1:9")
    assert ended.out.startswith("app#Embedder r1: failed: no memory")
    assert "Serve's status could not be read from http://127.0.0.1:9: " in ended.err
    assert "pass --dashboard URL, or --dashboard none" in ended.err
    assert why("--dashboard", "file:///etc/passwd").code == 2
