# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A replica becomes ready whatever its bucket does, and says in one line what that was."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from artifacts import build, packed_cache
from s3_servers import ANSWERS, TRANSPORT_FAULTS, FaultProxy, Server
from serve_warm.artifact import push
from serve_warm.report import Report, Stage, Verdict
from serve_warm.stores import open_store
from starts import KEY, StandIn, here, process, warm_up  # noqa: F401 - `process` is a fixture

pytestmark = pytest.mark.timeout(400)

ENOUGH_S = 100.0
"""For a pull that ends by itself, also on a machine that has much else to do."""

WAITED_S = 1.5
"""For one that is tried until its time is up."""

SECRETS = ("secret_access_key", "X-Amz-Signature", "AWS4-HMAC", "Credential=")

# What a pull gives when every request meets the fault. `slow` is still fast enough for a small
# artifact; the answers to a PUT mean nothing to one that reads.
EVERY_REQUEST = {
    **dict.fromkeys((*ANSWERS, *TRANSPORT_FAULTS), Verdict.MISS),
    "slow": Verdict.FULL_HIT,
}

# What it gives when only the download of the part does.
THE_PART = {
    **dict.fromkeys((*ANSWERS, *TRANSPORT_FAULTS), Verdict.MISS),
    "404": Verdict.REFUSED,  # a statement that names what is not there
    "slow": Verdict.FULL_HIT,
}
del THE_PART["down"], THE_PART["501"]


@pytest.fixture
def uri(
    moto: Server, fault_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A bucket with an artifact that fits, behind the proxy."""
    server = dataclasses.replace(moto, endpoint=fault_proxy.endpoint)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{moto.new_bucket()}/artifacts"
    manifest, stored = build(
        deployment="Embedder", built_for=here(StandIn()), raw={"cache": packed_cache(tmp_path)}
    )
    push.push(open_store(uri), manifest, stored, [KEY])
    yield uri
    fault_proxy.reset()


def started(
    uri: str, caplog: pytest.LogCaptureFixture, pull_deadline_s: float = ENOUGH_S
) -> tuple[Report, list[str]]:
    """Start a replica, and return its report and warnings."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        report = warm_up(StandIn(), artifact=uri, pull_deadline_s=pull_deadline_s).report()
    ours = [record for record in caplog.records if record.name.startswith("serve_warm")]
    warned = [record.getMessage() for record in ours if record.levelno >= logging.WARNING]
    return report, [line for line in warned if "compiling cold" in line]


def check(report: Report, warned: list[str], verdict: Verdict, uri: str) -> None:
    assert report.stage is Stage.READY
    assert report.verdict is verdict
    assert report.covered.proven == report.covered.expected == 2
    if verdict is not Verdict.FULL_HIT:
        [line] = warned
        assert "\n" not in line
        assert uri in line or "statements/" in line
        assert report.artifact is not None
        assert report.artifact.reason
        for text in (line, report.text(), str(report.to_json())):
            assert not [secret for secret in SECRETS if secret in text]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "verdict"), EVERY_REQUEST.items())
def test_a_replica_is_ready_whatever_the_bucket_does(
    fault: str,
    verdict: Verdict,
    uri: str,
    fault_proxy: FaultProxy,
    caplog: pytest.LogCaptureFixture,
):
    """Down, slow, hanging, refusing, cutting off: ready and proven, with one line that says it."""
    fault_proxy.fault = fault

    report, warned = started(uri, caplog, WAITED_S if verdict is Verdict.MISS else ENOUGH_S)

    check(report, warned, verdict, uri)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "verdict"), THE_PART.items())
def test_a_replica_is_ready_whatever_becomes_of_a_part(
    fault: str,
    verdict: Verdict,
    uri: str,
    fault_proxy: FaultProxy,
    caplog: pytest.LogCaptureFixture,
):
    """The same when the statement was read and the fault comes with the first byte of a part."""
    fault_proxy.only = lambda request: request.startswith("GET") and "/blobs/" in request
    fault_proxy.fault = fault

    report, warned = started(uri, caplog, WAITED_S if verdict is Verdict.MISS else ENOUGH_S)

    check(report, warned, verdict, uri)


@pytest.mark.parametrize("fault", ["500", "503", "429", "reset_in_body", "truncated", "down"])
def test_a_fault_that_passes_is_not_noticed(
    fault: str, uri: str, fault_proxy: FaultProxy, caplog: pytest.LogCaptureFixture
):
    """One bad answer or one refused connection costs a moment, but not the artifact."""
    fault_proxy.times = 1
    if fault != "down":
        fault_proxy.fault = fault

    report, warned = started(uri, caplog)

    assert (report.verdict, warned) == (Verdict.FULL_HIT, [])


def test_credentials_that_are_refused_are_not_tried_again(
    uri: str, fault_proxy: FaultProxy, caplog: pytest.LogCaptureFixture
):
    """A retry would not help, so the store is listed once, and the start continues."""
    fault_proxy.fault = "403"
    fault_proxy.seen.clear()

    started(uri, caplog)

    assert len(fault_proxy.seen) == 1


def test_no_store_is_asked_when_the_kill_switch_is_on(uri: str, fault_proxy: FaultProxy):
    """`artifact: null` makes no request."""
    fault_proxy.seen.clear()

    start: Any = warm_up(StandIn(), artifact=None)

    assert start.report().verdict is Verdict.OFF
    assert fault_proxy.seen == []


# --- what is wrong on one machine --------------------------------------------------------------


def check_denied(report: Report, warned: list[str], uri: str, tries: list[str]) -> None:
    check(report, warned, Verdict.MISS, uri)
    assert tries == []


def tried_again(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for record in caplog.records if (text := record.getMessage()).startswith("try=")]


@pytest.mark.parametrize(
    ("uri", "settings"),
    [
        ("gs://bucket/artifacts", {"GOOGLE_APPLICATION_CREDENTIALS": "/not/mounted/key.json"}),
        (
            "s3://bucket/artifacts",
            {
                "AWS_WEB_IDENTITY_TOKEN_FILE": "/not/mounted",
                "AWS_ROLE_ARN": "arn:aws:iam::1:role/x",
            },
        ),
        ("s3://bucket/artifacts", {"AWS_ACCESS_KEY_ID": "x\n", "AWS_SECRET_ACCESS_KEY": "y"}),
        ("s3://bucket/artifacts", {"AWS_ACCESS_KEY_ID": "x"}),
        ("az://bucket/artifacts", {}),
    ],
)
def test_a_replica_is_ready_where_the_machine_is_set_up_wrongly(
    uri: str,
    settings: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    """With a wrong setup the replica starts without the artifact, and does not wait."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    report, warned = started(uri, caplog)

    check_denied(report, warned, uri, tried_again(caplog))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder; run as another user")
def test_a_replica_is_ready_where_it_may_not_read_the_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """A folder of somebody else costs the artifact, and is not asked again until a deadline."""
    folder = tmp_path / "store"
    folder.mkdir(mode=0)

    report, warned = started(folder.as_uri(), caplog)

    check_denied(report, warned, folder.as_uri(), tried_again(caplog))


def test_a_replica_is_ready_where_the_hub_is_forbidden(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """HF_HUB_OFFLINE is a decision: it is not waited for to change."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    report, warned = started("hf://acme/warm", caplog)

    check_denied(report, warned, "hf://acme/warm", tried_again(caplog))


# --- a bucket without an end -----------------------------------------------------------------


QUIET_S = 2.0
"""After so many seconds without a request, no request is under way."""
PATIENCE = 30
"""As often as that is waited for."""


class EndlessBucket(BaseHTTPRequestHandler):
    """Answers each list with a page of junk and the token of the next one, and counts them."""

    asked = 0
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        kind = type(self)
        kind.asked += 1
        time.sleep(0.02)
        found = "".join(
            f"<Contents><Key>statements/Embedder/{kind.asked}-{number}.dsse.json</Key><Size>1</Size>"
            "<LastModified>2026-11-20T10:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            for number in range(100)
        )
        body = (
            "<ListBucketResult><IsTruncated>true</IsTruncated>"
            f"<NextContinuationToken>{kind.asked}</NextContinuationToken>{found}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[EndlessBucket]]:
    EndlessBucket.asked = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), EndlessBucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_REGION": "us-east-1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    yield EndlessBucket
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_pull_that_is_late_asks_for_nothing_after_ready(
    endless: type[EndlessBucket], caplog: pytest.LogCaptureFixture
):
    """Pages are asked for as long as somebody waits, and no thread keeps the process."""
    report, warned = started("s3://bucket", caplog, pull_deadline_s=0.5)
    # The page under way, and what obstore fetched beside it, are counted until they are over.
    counts = [endless.asked]
    while len(counts) < PATIENCE and counts[-2:] != counts[-1:] * 2:
        time.sleep(QUIET_S)
        counts.append(endless.asked)

    check(report, warned, Verdict.MISS, "s3://bucket")
    assert counts[-1] == counts[-2] > 0
    pulling = [each for each in threading.enumerate() if each.name.startswith("serve_warm-pull")]
    assert all(thread.daemon for thread in pulling)
