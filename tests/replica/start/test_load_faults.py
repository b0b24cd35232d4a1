# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A replica becomes ready whatever its bucket does, and says in one line what that was."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts import packed_cache
from s3_servers import FaultProxy, Server
from serve_warm.artifact.archive import pack_directory
from serve_warm.report import Report, Stage, Verdict
from serve_warm.stores import open_store
from starts import StandIn, here, process, publish, warm_up  # noqa: F401 - fixtures
from store_answers import (
    HUB_ANSWERS,
    NO_STORES,
    ODD_LISTINGS,
    Answer,
    any_answer,
    bucket_environment,
)

pytestmark = pytest.mark.timeout(400)

ENOUGH_S = 100.0
"""For a pull that ends by itself, also on a machine that has much else to do."""

WAITED_S = 1.5
"""For one that is tried until its time is up."""

SECRETS = ("secret_access_key", "X-Amz-Signature", "AWS4-HMAC", "Credential=")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "of_the_part", "verdict"),
    [
        ("down", False, Verdict.MISS),
        ("hang", False, Verdict.MISS),
        ("500", False, Verdict.MISS),
        ("truncated", False, Verdict.MISS),
        ("slow", False, Verdict.FULL_HIT),  # still fast enough for a small artifact
        ("hang_in_body", True, Verdict.MISS),
        ("reset_in_body", True, Verdict.MISS),
        ("403", True, Verdict.MISS),
        ("404", True, Verdict.REFUSED),  # a statement that names what is not there
        ("slow", True, Verdict.FULL_HIT),
    ],
)
def test_a_replica_is_ready_whatever_the_bucket_does(  # noqa: PLR0917
    fault: str,
    of_the_part: bool,
    verdict: Verdict,
    uri: str,
    fault_proxy: FaultProxy,
    caplog: pytest.LogCaptureFixture,
):
    """Ready and proven, with one line that says what the bucket did."""
    if of_the_part:
        fault_proxy.only = lambda request: request.startswith("GET") and "/blobs/" in request
    fault_proxy.fault = fault
    deadline_s = WAITED_S if verdict is Verdict.MISS else ENOUGH_S
    check(*started(uri, caplog, deadline_s), verdict, uri)


@pytest.fixture
def uri(
    moto: Server, fault_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A bucket with an artifact that fits, behind the proxy."""
    server = dataclasses.replace(moto, endpoint=fault_proxy.endpoint)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{moto.new_bucket()}/artifacts"
    publish(open_store(uri), here(StandIn()), raw={"cache": packed_cache(tmp_path)})
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
    assert (report.stage, report.verdict) == (Stage.READY, verdict)
    assert report.covered.proven == report.covered.expected == 2
    if verdict is not Verdict.FULL_HIT:
        [line] = warned
        assert "\n" not in line
        assert uri in line or "statements/" in line
        assert report.artifact.reason
        for text in (line, report.text(), str(report.to_json())):
            assert not [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("fault", ["500", "down"])
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


@pytest.mark.slow
@pytest.mark.parametrize("answer", [*ODD_LISTINGS[:1], *NO_STORES[:1]], ids=lambda each: each.name)
def test_an_answer_that_cannot_be_read_does_not_fail_a_start(
    answer: Answer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    """A date that Python cannot hold, or a page, is a failure of the store."""
    with any_answer() as server:
        for name, value in bucket_environment(server.url, tmp_path).items():
            monkeypatch.setenv(name, value)
        server.answer = answer
        check(*started("s3://bucket/pre", caplog, WAITED_S), Verdict.MISS, "s3://bucket/pre")


@pytest.mark.slow
def test_a_hub_that_asks_for_a_long_wait_is_asked_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """If the Hub names a time after the start's deadline, the start goes on without waiting."""
    constants = pytest.importorskip("huggingface_hub.constants")
    busy = next(answer for answer in HUB_ANSWERS if "for an hour" in answer.name)
    with any_answer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        server.answer = busy
        report, warned = started("hf://acme/warm", caplog, 5.0)

        check(report, warned, Verdict.MISS, "hf://acme/warm")
        assert "asks to wait 3600 s" in warned[0]
        assert len([request for request in server.requests if "/revision/" in request]) == 1


# --- what is wrong on one machine --------------------------------------------------------------
def check_denied(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """Check that a start misses its artifact after one try."""
    check(*started(uri, caplog), Verdict.MISS, uri)
    assert tries(caplog) == 0


def tries(caplog: pytest.LogCaptureFixture) -> int:
    """Return how many times a pull was tried again."""
    return len([record for record in caplog.records if ", retrying in " in record.getMessage()])


@pytest.mark.parametrize(
    ("uri", "settings"),
    [
        ("gs://bucket/artifacts", {"GOOGLE_APPLICATION_CREDENTIALS": "/not/mounted/key.json"}),
        ("s3://bucket/artifacts", {"AWS_ACCESS_KEY_ID": "x\n", "AWS_SECRET_ACCESS_KEY": "y"}),
    ],
    ids=["seen when it is opened", "seen at the first request"],
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
    check_denied(uri, caplog)


def test_a_replica_is_ready_where_the_hub_is_forbidden(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """HF_HUB_OFFLINE is a decision: it is not waited for to change."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    check_denied("hf://acme/warm", caplog)


@pytest.fixture
def small_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files with room for a few small files."""
    folder = tmp_path / "volume"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this user cannot mount a volume: {done.stderr.strip()}")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_temporary_folder_is_not_waited_for(
    small_volume: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Before, the start asked the store again until `pull_deadline_s`, with the same result."""
    root = tmp_path / "built"
    root.mkdir()
    (root / "noise").write_bytes(os.urandom(1 << 20))
    uri = str(tmp_path / "store")
    publish(open_store(uri), here(StandIn()), raw={"cache": pack_directory(root)})

    report, warned = started(uri, caplog, pull_deadline_s=10.0)

    assert (report.stage, report.verdict) == (Stage.READY, Verdict.MISS)
    assert tries(caplog) == 0
    assert f"cannot be written to {small_volume}: No space left on device; " in warned[0]
    assert f"cannot be written to {small_volume}: No space left" in report.artifact.reason
