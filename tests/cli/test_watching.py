# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve-warm status`: what it shows of which replica, from files and from pages of metrics."""

from __future__ import annotations

import dataclasses
import http.server
import importlib.util
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import zipfile
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from command_line import (  # noqa: F401 - fixtures
    ESCAPES,
    escaped,
    run_fixture,
    run_process_fixture,
    trust_file_fixture,
)
from conftest import wait_until
from reports import FULL
from serve_warm import metrics, node
from serve_warm._seats import SeatUse
from serve_warm.cli import observed, watching
from serve_warm.cli.observed import Look, Observed
from serve_warm.replica.in_serve import facts_of
from serve_warm.report import ArtifactUse, Counts, Coverage, Report, Stage, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


WARM = Report(stage=Stage.READY, verdict=Verdict.FULL_HIT)
WARM_MISS = Report(stage=Stage.READY, verdict=Verdict.MISS)


@pytest.fixture(name="directory")
def directory_fixture(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture(name="replica")
def replica_fixture(directory: Path) -> Iterator[Callable[..., node.StateFile]]:
    """Write a report as a replica does, and keep its lock until the test ends."""
    files: dict[str, node.StateFile] = {}

    def write(
        name: str = "r1",
        report: Report = WARM,
        *,
        app: str = "app",
        of: str = "Embedder",
        **facts: object,
    ) -> node.StateFile:
        if name not in files:
            names = {"application": app, "deployment": of, "replica": name}
            files[name] = node.StateFile(directory, **names)
        files[name].write({**facts_of(report), **facts})
        return files[name]

    yield write
    for file in files.values():
        file.close()


def page_of(directory: Path, *, stale_s: float = node.STALE_S) -> str:
    """Return the figures that the server of this node would export now."""
    ledger = node.Ledger()
    readiness = node.judge(node.Settings(str(directory), stale_s=stale_s, urls=()))
    ledger.note(readiness)
    return ledger.exposition(readiness)


def rays(page: str) -> str:
    """Return what Ray's endpoint would show of it: prefixed, with more labels, without the node."""
    lines = [
        re.sub(r"(serve_warm_\w+)", r"ray_\1", line).replace(
            "{", '{Component="core_worker",WorkerId="0f",'
        )
        for line in page.splitlines()
        if "serve_warm_node_" not in line
        and "_alive" not in line
        and "_age_" not in line
        and "serve_warm_starts" not in line
    ]
    return "\n".join([*lines, ""])


class Pages(http.server.ThreadingHTTPServer):
    """A server that answers one text at every path, or sends the given bytes."""

    daemon_threads = True

    def __init__(self, text: str = "", *, status: int = 200, raw: bytes | None = None) -> None:
        self.text, self.status, self.raw = text, status, raw
        super().__init__(("127.0.0.1", 0), _Page)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/metrics"


class _Page(http.server.BaseHTTPRequestHandler):
    server: Pages

    def do_GET(self) -> None:
        if self.server.raw is not None:
            self.wfile.write(self.server.raw)
            return
        self.send_response(self.server.status)
        self.end_headers()
        with suppress(OSError):  # the client has seen enough
            self.wfile.write(self.server.text.encode())

    def log_message(self, *args: object) -> None: ...


@pytest.fixture(name="pages")
def pages_fixture() -> Iterator[Callable[..., Pages]]:
    started: list[Pages] = []

    def start(*args: object, **options: object) -> Pages:
        started.append(Pages(*args, **options))
        return started[-1]

    yield start
    for each in started:
        each.shutdown()
        each.server_close()


# --- what is known of a replica ------------------------------------------------------------


def test_files_say_all_there_is_to_show(directory, replica):
    """Stage, verdict, progress, ages and what happened come from the replica's own file."""
    replica(
        "r1",
        dataclasses.replace(FULL, error=""),
        degraded=["uncovered: 1 of 2 inputs"],
    )

    [seen] = observed.of_directory(str(directory)).replicas

    assert seen.names == ("app", "Embedder", "r1")
    assert (seen.condition, seen.stage, seen.verdict) == ("warm", "READY", "partial")
    assert (seen.inputs_done, seen.inputs_expected) == (2, 2)
    assert None not in (seen.stage_s, seen.heartbeat_s, seen.elapsed_s)
    assert seen.event == (
        "uncovered: 1 of 2 inputs; after ready: 1 compiles, 2 captures, "
        "6 graphs skipped, 7 kernels built, 8 autotuned, 4 fallbacks to eager, 5 refused, "
        "last: recompile of forward (model.py:7): size mismatch; "
        "warning: compiled calls ran on 2 threads"
    )


@pytest.mark.parametrize("kind", ["node", "ray"])
@pytest.mark.parametrize("stage", list(Stage))
def test_pages_say_what_files_say(directory, replica, kind, stage):
    """For the same replica, a page of metrics gives the same facts, as far as it has them."""
    covered = Coverage(expected=6, proven=6 if stage is Stage.READY else 0)
    report = Report(stage=stage, verdict=Verdict.MISS, covered=covered, inputs_done=4)
    replica("r1", report)
    page = page_of(directory)

    [of_file] = observed.of_directory(str(directory)).replicas
    [of_page] = observed.of_page(page if kind == "node" else rays(page), source="x").replicas

    for fact in ("names", "condition", "stage", "verdict", "inputs_done", "inputs_expected"):
        assert getattr(of_page, fact) == getattr(of_file, fact)
    assert (of_page.heartbeat_s is None) == (kind == "ray")
    assert (of_page.stage_s is None) == (kind == "ray")


def test_the_time_to_ready_is_the_one_of_the_metrics(directory, replica):
    """A replica that exports it is shown with that figure by files and by pages alike."""
    row = {"kind": "gauge", "help": "", "label": None, "while_alive": False}
    ready = [{**row, "name": "serve_warm_ready_seconds", "values": {"": 6.25}}]
    replica("r1", metrics=[*metrics.as_data(WARM), *ready])

    [by_file] = observed.of_directory(str(directory)).replicas
    [by_page] = observed.of_page(page_of(directory), source="x").replicas

    assert [watching.notes(each) for each in (by_file, by_page)] == [
        ["ready 6.2 s after its __init__ began"]
    ] * 2


def test_the_time_of_a_start_is_the_one_of_the_metrics(directory, replica):
    """Both times count from the creation of the replica, before its state file exists."""
    start = Report(stage=Stage.REPLAYING, created_boot_s=node.boot_s() - 1000.0, deadline_s=1800.0)
    replica("r1", start)

    [by_file] = observed.of_directory(str(directory)).replicas
    [by_page] = observed.of_page(page_of(directory), source="x").replicas

    for each in (by_file, by_page):
        assert 1000 <= each.elapsed_s < 1100
        assert re.search(r"created 10\d\d s ago, ", watching.line(each))
        assert "deadline 1800 s after the end of __init__" in watching.line(each)


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_what_a_page_leaves_out_is_said(run, directory, replica, pages, options):
    """An empty field of a page is no news of its replica, and says so; once for all pages."""
    replica("r1", store="s3://bucket/scorer", event="recompile of forward")
    replica("r2", Report(stage=Stage.FAILED), error="boom").close()
    page, same = pages(page_of(directory)), pages(page_of(directory).replace("r1", "r3"))

    by_file = run("status", "--state-dir", directory, *options)
    by_page = run("status", "--url", page.url, "--url", same.url, *options)
    with_ended = run("status", "--url", page.url, *options, "--all")

    if options:
        (by_file, by_page) = (json.loads(each.out)["replicas"] for each in (by_file, by_page))
        assert {each["figures_alone"] for each in by_file} == {False}
        assert {each["figures_alone"] for each in by_page} == {True}
        return
    words = (
        "metrics pages have only numbers: to see stores, errors, last events and what a replica "
        "waits for, run serve-warm status on the replica's node\n"
    )
    assert by_file.err == ""
    assert by_page.err == words + (
        "1 more replica ended before READY, but metrics pages do not show the time: use --all to "
        "show all ended replicas\n"
    )
    assert "r2: FAILED, ended" in with_ended.out
    assert with_ended.err == words


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("full_hit", "store s3://bucket/scorer"),
        ("partial", "store s3://bucket/scorer"),
        ("miss", "why: serve-warm diff s3://bucket/scorer"),
        ("refused", "why: serve-warm verify s3://bucket/scorer"),
    ],
)
def test_the_store_is_named_so_that_it_can_be_asked(run, directory, replica, verdict, said):
    """The line of a replica has the command that says more, ready to be pasted."""
    replica(verdict=verdict, store="s3://bucket/scorer")

    result = run("status", "--state-dir", directory)

    assert said in result.out
    (shown,) = json.loads(run("status", "--state-dir", directory, "--json").out)["replicas"]
    assert shown["store"] == "s3://bucket/scorer"


def test_entries_that_were_withdrawn_lead_to_who_signed_them(run, directory, replica):
    """Withdrawn entries make a start partial although the artifact fits.

    `diff` cannot explain this.
    """
    failed = "parity: app.Net(Tensor float32[1]): it differs from eager by 3.4e+00"
    replica(verdict="partial", store="s3://bucket/scorer", degraded=[failed])

    shown = run("status", "--state-dir", directory).out

    assert "signers: serve-warm inspect s3://bucket/scorer" in shown
    assert "serve-warm diff" not in shown


def test_pages_count_what_happened_in_traffic(directory, replica):
    """Counters have other names on a page, and are read too. Refusals have a reason."""
    artifact = dataclasses.replace(FULL.artifact, refused="untrusted")
    replica("r1", dataclasses.replace(FULL, artifact=artifact))

    [seen] = observed.of_page(page_of(directory), source="x").replicas

    assert seen.event == (
        "degraded: see the replica's report; after ready: 1 compiles, 2 captures, "
        "6 graphs skipped, 7 kernels built, 8 autotuned, 4 fallbacks to eager, 5 refused; "
        "its artifact was refused: untrusted"
    )


def test_what_graphs_keep_is_shown(directory, replica):
    """Sums all devices, from files and pages. Without a GPU nothing is shown."""
    replica("r1", dataclasses.replace(FULL, degraded=(), after_ready=Counts()))
    replica("r2")
    page = page_of(directory)

    for found in (observed.of_directory(str(directory)), observed.of_page(page, source="x")):
        with_gpu, without = found.replicas

        assert (with_gpu.graph_pool_bytes, without.graph_pool_bytes) == (32_500_000, None)
        assert "CUDA graphs reserve 32.5 MB" in watching.line(with_gpu)
        assert "graphs" not in watching.line(without)


def test_seats_are_shown(directory, replica):
    """Files show the replica's text, pages show numbers. Without seats nothing is shown."""
    hit = SeatUse(count=2, hit=True, import_s=3.0, waited_s=9.0, memory_bytes=1, waiting=1)
    missed = SeatUse(count=1, miss="failed", note="importing app raised ValueError")
    gone = dataclasses.replace(missed, miss="none", note="", problem="no such request")
    for number, use in enumerate((hit, missed, gone, None)):
        replica(f"r{number}", dataclasses.replace(WARM, seat=use))
    page = page_of(directory)

    of_files = observed.of_directory(str(directory)).replicas
    for text in (page, rays(page)):
        assert [each.seats for each in observed.of_page(text, source="x").replicas] == [
            "2 wanted; this start: yes; 1 waiting for the next start",
            "1 wanted; this start: no (failed)",
            "1 wanted; this start: no (none, unavailable)",
            "",
        ]
    assert [each.seats for each in of_files] == [
        (
            "2 wanted; this start: yes, imported for 3.0 s and waited 9.0 s, 0 MB; "
            "1 waiting for the next start"
        ),
        "1 wanted; this start: no (failed): importing app raised ValueError",
        "1 wanted; this start: no (none); no such request",
        "",
    ]
    assert "seats: 1 wanted; this start: no (failed): importing" in watching.line(of_files[1])
    assert "seats" not in watching.line(of_files[3])


@pytest.mark.parametrize("verdict", [Verdict.OFF, Verdict.FULL_HIT])
def test_a_verdict_is_shown_when_it_is_one(directory, replica, verdict):
    """A start that has not looked for an artifact yet has none, and a hit may become partial."""
    replica("r1", Report(stage=Stage.REPLAYING, verdict=verdict))
    replica("r2", Report(stage=Stage.READY, verdict=verdict))

    early, ready = observed.of_directory(str(directory)).replicas

    assert (early.verdict, ready.verdict) == ("", verdict.value)


def test_why_there_is_no_artifact_is_shown_and_what_is_warned_of(directory, replica):
    """Without this, a bare `verdict miss` would send the reader to the replica's log."""
    rejected = "a: rejected (fingerprint): threads: artifact 1, here 2"
    miss = f"no artifact fits this machine (1 considered):\n  {rejected}"
    replica("r1", WARM_MISS, reason=miss, store="s3://bucket", warnings=["a sync handler"])
    why = "signed by others\nhint: add the key to trust.toml:\n[[keys]]\nname = 'builder'"
    used = ArtifactUse(store="s3://bucket", reason=why, refused="untrusted")
    refused = dataclasses.replace(WARM_MISS, verdict=Verdict.REFUSED, artifact=used)
    replica("r2", refused, reason=used.reason, store=used.store)

    missed, other = observed.of_directory(str(directory)).replicas

    assert missed.event == (
        f"no artifact is used: no artifact fits this machine (1 considered): {rejected}; "
        "warning: a sync handler"
    )
    assert "verdict miss" in watching.line(missed)
    assert missed.event in watching.line(missed)
    assert other.event == (
        "its artifact was refused: untrusted: signed by others; hint: add the key to trust.toml"
    )


def test_an_error_of_several_lines_reads_as_one_sentence(directory, replica):
    """The hint is a part of it, and not the end of the sentence before."""
    replica("r1", Report(stage=Stage.FAILED), error="input 'a' raised KeyError: 'x'\nhint: fix it")

    [failed] = observed.of_directory(str(directory)).replicas

    assert failed.event == "input 'a' raised KeyError: 'x'; hint: fix it"


# --- releases that said a verdict before there was one --------------------------------------


@pytest.fixture(name="earlier", scope="module")
def earlier_fixture(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Return the `node` of an earlier release, which is one file of the standard library."""
    wheel = next((Path(__file__).parents[1] / "data" / "before_layout").glob("*.whl"))
    folder = tmp_path_factory.mktemp("earlier")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract("serve_warm/node.py", folder)
    spec = importlib.util.spec_from_file_location("earlier_node", folder / "serve_warm" / "node.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("stage", [Stage.REPLAYING, Stage.FAILED])
def test_an_earlier_server_reads_a_state_without_a_verdict(directory, replica, earlier, stage):
    """The earlier server judges the replica as before, and exports no verdict with value 1."""
    report = Report(stage=stage, error="broken" if stage is Stage.FAILED else "")
    replica("r1", report, error=report.error)

    [seen] = earlier.look(str(directory))
    ledger = earlier.Ledger()
    readiness = earlier.judge(earlier.Settings(str(directory), stale_s=30.0, urls=()))
    ledger.note(readiness)
    page = ledger.exposition(readiness)

    assert seen.condition == ("failed" if stage is Stage.FAILED else "warming")
    rows = re.findall(r"^serve_warm_verdict{.*} (.*)$", page, re.MULTILINE)
    assert set(rows) == {"0.0"}
    assert 'outcome="failed"' in page


@pytest.mark.parametrize("stage", ["REPLAYING", "FAILED", "READY"])
def test_the_state_of_an_earlier_replica_is_read_without_its_early_verdict(
    directory, earlier, stage
):
    """The earlier release writes `off` from the beginning, which is a verdict only at READY."""
    names = {"application": "app", "deployment": "Embedder", "replica": "r1"}
    file = earlier.StateFile(directory, **names)
    file.write({"stage": stage, "verdict": "off", "error": "x", "metrics": []})

    [seen] = observed.of_directory(str(directory)).replicas
    page = page_of(directory)
    file.close()

    assert (seen.stage, seen.verdict) == (stage, "off" if stage == "READY" else "")
    assert f'outcome="{"failed" if stage == "FAILED" else "off"}"' in page


def test_a_replica_that_hangs_is_not_ready(directory, replica):
    """By files and by metrics alike: without a heartbeat nothing is believed."""
    replica("r1")
    page = re.sub(
        r"(heartbeat_age_seconds\{.*\}) .*", rf"\1 {node.STALE_S + 1}", page_of(directory)
    )

    [seen] = observed.of_page(page, source="x").replicas

    assert (seen.condition, seen.warm, seen.stage) == ("stale", False, "READY")
    assert watching.standing(seen) == "stale in READY"
    assert "is hung or stopped" in seen.event


@pytest.mark.parametrize(
    ("state", "condition"), [("well", "warm"), ("hangs", "stale"), ("has ended", "dead")]
)
def test_one_that_was_ready_is_seen_to_have_been(directory, replica, state, condition):
    """A server that does not call it ready any more, by a limit of its own, has that left."""
    file = replica("r1")
    if state == "has ended":
        file.close()
    page = page_of(directory, stale_s=1e-9 if state == "hangs" else node.STALE_S)

    [seen] = observed.of_page(page, source="x").replicas

    assert (seen.condition, seen.stage, seen.verdict) == (condition, "READY", "full_hit")
    assert ("is hung or stopped" in seen.event) == (state == "hangs")


def test_a_replica_that_has_only_begun_is_shown(directory, replica):
    """Between its lock and its first state it has names and nothing else."""
    replica("r1")
    (directory / "app#Embedder#r1.json").unlink()

    by_file = observed.of_directory(str(directory)).replicas
    by_page = observed.of_page(page_of(directory), source="x").replicas

    for [seen] in (by_file, by_page):
        assert (seen.replica, seen.condition, seen.stage) == ("r1", "warming", "")
        assert watching.line(seen).startswith("app#Embedder r1: no stage")


def test_what_a_node_cannot_read_is_said(directory, replica):
    """A page names no replica whose file is damaged, but it counts them."""
    replica("r1")
    replica("r2")
    (directory / "app#Embedder#r2.json").write_text("{")

    [by_file] = [r for r in observed.of_directory(str(directory)).replicas if r.replica == "r2"]
    of_page = observed.of_page(page_of(directory), source="http://x:1/metrics")

    assert by_file.condition == "unreadable"
    assert "is incomplete" in by_file.event
    assert of_page.troubles == (
        (
            "http://x:1/metrics cannot read the state of 1 more replica(s): see /readyz?verbose on "
            "this server"
        ),
    )
    assert not of_page.ready


def test_the_first_source_of_a_replica_counts(directory, replica, pages):
    """A replica in several sources appears once, with the facts of the richer source."""
    replica("r1", event="from the file")
    same = pages(page_of(directory))

    now = observed.look(str(directory), (same.url, same.url))

    assert [each.source for each in now.replicas] == [str(directory)]
    assert now.sources == (str(directory), same.url)


# --- whether it is enough ------------------------------------------------------------------


def test_all_ready_is_0_and_anything_else_is_1(run, directory, replica):
    """The exit code answers whether all that are there are ready; there has to be one."""
    asked = ("status", "--state-dir", directory)
    none = run(*asked)
    replica("r1")
    ready = run(*asked)
    replica("r2", Report(stage=Stage.PROVING))
    not_all = run(*asked)
    replica("r2").close()
    ended = run(*asked)

    assert [each.code for each in (none, ready, not_all, ended)] == [1, 0, 1, 0]
    assert none.out == ""
    assert none.err.startswith(f"found no replica in {directory}; ")
    assert [each.err for each in (ready, not_all, ended)] == ["", "", ""]
    assert [len(each.out.splitlines()) for each in (ready, not_all, ended)] == [1, 2, 1]


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8099",
        "ftp://127.0.0.1/metrics",
        "file:///etc/passwd",
        "http://",
        "http://:8099/metrics",
        "http://host:0/metrics",
        "http://host:99999/metrics",
        "http://host:x/metrics",
        "http://[::1/metrics",
        "http://user:secret@host:8099/metrics",
        "http://host/metrics?token=secret",
        "http://host/met rics",
        "http://host/\x1b[2K",
        "",
    ],
)
def test_an_address_that_is_none_is_wrong_usage(run, url):
    """Nothing is asked for, and what may be a credential is not repeated."""
    ended = run("status", "--url", url)

    assert ended.code == 2
    assert "is not a URL such as http://10.0.0.7:8099/metrics" in " ".join(ended.err.split())
    assert "secret" not in ended.err
    assert escaped(ended.err)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"text": "<!DOCTYPE html>\n<html></html>\n"}, "has no serve_warm metrics: "),
        ({"text": "process_cpu_seconds_total 1.0\n"}, "has no serve_warm metrics: "),
        ({"text": ""}, "has no serve_warm metrics: "),
        ({"text": "serve_warm_ready{application="}, "has no serve_warm metrics: "),
        ({"text": "x" * ((64 << 20) + 1)}, "is larger than 64 MiB"),
        ({"status": 404}, "answered 404, not 200"),
        ({"status": 503, "text": "serve_warm_ready 1\n"}, "answered 503, not 200"),
        ({"raw": b"SSH-2.0-OpenSSH_9.2\r\n"}, "did not answer with HTTP"),
        ({"raw": b""}, "cannot be reached: "),
        ({"raw": b"HTTP/1.0 200 OK\r\n\r\n\xff\xfe"}, "has no serve_warm metrics: "),
        ({"raw": b"HTTP/1.0 302 F\r\nLocation: file:///etc/passwd\r\n\r\n"}, "answered 302"),
    ],
    ids=[
        *("page", "others", "empty", "half", "huge", "404", "503", "no http", "hung up"),
        *("no text", "elsewhere"),
    ],
)
def test_a_bad_page_is_a_sentence_and_hides_nothing(run, replica, pages, *, answer, said):
    """The sentence names the address of the bad source. Other sources are shown."""
    directory = Path(replica("r1").path).parent
    bad = pages(**answer)

    ended = run("status", "--state-dir", directory, "--url", bad.url)

    assert ended.code == 1
    assert ended.out.startswith("app#Embedder r1: READY, ")
    assert ended.err.startswith(f"{bad.url} {said}")
    assert len(ended.err.splitlines()) == 1


def test_an_unreachable_address_is_a_sentence(run, directory, replica, pages):
    """A node that is away is named, and the others are shown."""
    replica("r1")
    alive, away = pages(page_of(directory)), pages()
    away.shutdown()
    away.server_close()

    ended = run("status", "--url", away.url, "--url", alive.url)

    assert ended.code == 1
    assert ended.out.startswith("app#Embedder r1: READY, ")
    assert ended.err.splitlines() == [
        f"{away.url} cannot be reached: Connection refused",
        watching.WORDS_ELSEWHERE,
    ]


def test_a_page_that_does_not_come_is_given_up(pages):
    """A server that sends a page without end, slowly or not, costs a bounded time."""
    begun = threading.Event()
    over = threading.Event()

    class Slow(_Page):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"# half a page\n")
            begun.set()
            over.wait()

    slow = pages()
    slow.RequestHandlerClass = Slow
    with pytest.raises(observed.UnreachableError, match=r"did not answer within 0\.2 s"):
        observed.fetch(slow.url, limit_s=0.2)
    over.set()

    assert begun.is_set()


def test_a_poisoned_directory_is_a_sentence(run, directory, replica, pages):
    """A directory that others can write to is not read. The message says how to fix it."""
    replica("r1")
    alive = pages(page_of(directory))
    directory.chmod(0o777)

    ended = run("status", "--state-dir", directory, "--url", alive.url)

    assert ended.code == 1
    assert ended.out.startswith("app#Embedder r1: READY, ")
    assert ended.err.startswith(f"{directory} is not a private directory of uid {os.geteuid()}: ")
    assert f"chmod go-w {directory}" in ended.err


def test_one_application_can_be_asked_for(run, directory, replica):
    """Other applications do not count. An unknown name is reported with the known names."""
    replica("r1")
    replica("r2", Report(stage=Stage.PROVING), app="other")
    asked = ("status", "--state-dir", directory)

    ready = run(*asked, "--app", "app")
    also = run(*asked, "--deployment", "app#Embedder")
    both = run(*asked, "--deployment", "Embedder")
    none = run(*asked, "--deployment", "Embeder")

    assert [each.code for each in (ready, also, both, none)] == [0, 0, 1, 1]
    assert ready.out == also.out
    assert both.out.count("\n") == 2
    assert none.err == (
        "there is no replica of Embeder; there are replicas of app#Embedder, other#Embedder\n"
    )


# --- how it is shown -----------------------------------------------------------------------


def test_data_has_all_replicas_and_null_for_the_unknown(run, directory, replica):
    """`--json` is one document; what ended is in it, whatever is asked for."""
    replica("r1", Report(stage=Stage.PULLING))
    replica("r2").close()

    shown = run("status", "--state-dir", directory, "--json")

    data = json.loads(shown.out)
    first, second = data["replicas"]
    assert (shown.code, shown.err, data["ready"], data["troubles"]) == (1, "", False, [])
    assert data["sources"] == [str(directory)]
    assert first.keys() == {field.name for field in dataclasses.fields(Observed)}
    assert (first["stage"], first["verdict"], first["condition"]) == ("PULLING", None, "warming")
    assert (second["condition"], second["stage"]) == ("dead", "READY")


def test_a_start_that_failed_is_shown_after_its_process(run, directory, replica):
    """Serve replaces it at once, and its error is what one came for; who was ready just ended."""
    replica("r1", Report(stage=Stage.FAILED), error="input embed: boom").close()
    replica("r2").close()
    replica("r3", Report(stage=Stage.PENDING))

    shown = run("status", "--state-dir", directory)
    everything = run("status", "--state-dir", directory, "--all")

    assert [line.split()[1] for line in shown.out.splitlines()] == ["r3:", "r1:"]
    assert [line.split()[1] for line in everything.out.splitlines()] == ["r3:", "r1:", "r2:"]
    assert "FAILED, ended 0 s ago; input embed: boom" in shown.out


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_names_cannot_write_to_the_terminal(run, directory, replica, pages, options):
    """No text from a page or a state file acts on the terminal."""
    replica("r1", Report(stage=Stage.FAILED), app=ESCAPES, error=ESCAPES)
    page = pages(page_of(directory).replace("r1", "r2"))

    shown = run("status", "--state-dir", directory, "--url", page.url, *options)

    assert shown.code == 1
    assert len(shown.out.splitlines()) > 1
    assert escaped(shown.out)
    assert escaped(shown.err)


def test_a_drawing_cannot_write_to_the_terminal(directory, replica):
    """The live view, which styles names, is safe too."""
    replica(f"r{ESCAPES}", Report(stage=Stage.FAILED), app=f"[red]{ESCAPES}", error=ESCAPES)

    text = drawing(observed.look(str(directory), ()))

    assert escaped(text)
    assert "[red]" in text


def drawing(now: Look, which: watching.Which = "now", width: int = 80) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(watching.draw(now, which))
    return captured.get()


REPLAYING = Observed(
    application="text_embedder",
    deployment="TextEmbedder",
    replica="fu8nhl35",
    source="/run/serve_warm/state",
    condition="warming",
    stage="REPLAYING",
    verdict="miss",
    inputs_done=3,
    inputs_expected=6,
    stage_s=41.0,
    heartbeat_s=1.2,
    elapsed_s=44.0,
    deadline_s=1800.0,
    event="compiling cold",
)
READY = dataclasses.replace(
    REPLAYING,
    application="scorer",
    deployment="Scorer",
    condition="warm",
    stage="READY",
    verdict="full_hit",
    inputs_done=6,
    elapsed_s=6.4,
    event="",
)


def test_a_drawing_has_a_bar_and_fits_into_a_terminal():
    """Each deployment has a heading, those first that wait; 80 columns hold all figures."""
    text = drawing(Look(sources=("/run",), replicas=(READY, REPLAYING)))

    assert [line.rstrip() for line in text.splitlines()] == [
        "  replica   stage      inputs          verdict   for   heartbeat",
        "text_embedder#TextEmbedder  0 of 1 ready",
        "  fu8nhl35  REPLAYING  ━━━━━───── 3/6  miss      41 s  1 s ago",
        "    created 44 s ago, deadline 1800 s after the end of __init__",
        "    compiling cold",
        "scorer#Scorer  1 of 1 ready",
        "  fu8nhl35  READY      ━━━━━━━━━━ 6/6  full_hit  41 s  1 s ago",
        "    ready 6.4 s after its __init__ began",
    ]


def test_long_names_do_not_move_the_columns():
    """A name without end is cut, and a long error is folded, not lost."""
    long = dataclasses.replace(REPLAYING, replica="x" * 300, event="word " * 60 + "end")

    lines = drawing(Look(replicas=(long,)), width=100).splitlines()

    assert "REPLAYING" in lines[2]
    assert "1 s ago" in lines[2]
    assert lines[-1].rstrip().endswith("end")


def test_a_log_has_a_line_for_each_change():
    """Elsewhere than in a terminal a look that shows nothing new writes nothing."""
    first = Look(sources=("s",), replicas=(READY, REPLAYING))
    later = dataclasses.replace(REPLAYING, inputs_done=5, stage_s=50.0, heartbeat_s=0.0)
    ready = dataclasses.replace(later, condition="warm", stage="READY")
    lost = Look(sources=("s",), replicas=(READY, REPLAYING), troubles=("lost",))

    told = [
        watching.changes(before, now, "now")
        for before, now in [
            (Look(), first),
            (first, Look(sources=("s",), replicas=(READY, later))),
            (first, Look(sources=("s",), replicas=(READY, ready), troubles=("lost",))),
            (lost, dataclasses.replace(lost, troubles=("lost", "lost too"))),
            (first, Look(sources=("s",), replicas=(READY,))),
            (first, Look(sources=("s",))),
        ]
    ]

    assert told[0] == [watching.line(READY), watching.line(REPLAYING)]
    assert told[1] == []
    assert told[2] == [watching.line(ready), "lost"]
    assert told[3] == ["lost too"]
    assert told[4] == ["text_embedder#TextEmbedder fu8nhl35: gone"]
    assert told[5][-1].startswith("found no replica in s; ")


def test_watching_as_data_is_a_look_a_line(capsys):
    """Each line is a whole document, for whoever reads a stream."""
    looks = [Look(sources=("s",), replicas=(READY,)), Look(sources=("s",), replicas=(REPLAYING,))]

    watching.follow(looks, "now", as_json=True)

    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["ready"] for line in lines] == [True, False]


def test_watching_in_a_terminal_goes_on_until_interrupted(directory, replica):
    """A change shows without asking again; Ctrl-C ends it with the code that shells know."""
    replica("r1", Report(stage=Stage.REPLAYING))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "serve_warm.cli", "status", "--watch", "--period-s", "0.1"]
    seen: list[str] = []

    with subprocess.Popen(
        [*command, "--state-dir", str(directory)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    ) as process:
        os.close(theirs)
        reading = threading.Thread(target=read_terminal, args=(ours, seen), daemon=True)
        reading.start()
        wait_until("the replica is drawn", lambda: "REPLAYING" in "".join(seen))
        replica("r1")
        wait_until("the change is drawn", lambda: "READY" in "".join(seen))
        process.send_signal(signal.SIGINT)
        code = process.wait()
        reading.join()

    assert code == 130
    assert "0 of 1 ready" in "".join(seen)
    assert "1 of 1 ready" in "".join(seen)
    assert "Traceback" not in "".join(seen)


def read_terminal(descriptor: int, seen: list[str]) -> None:
    # On Linux the end of a terminal is an error.
    with os.fdopen(descriptor, "rb", buffering=0) as terminal, suppress(OSError):
        seen.extend(
            data.decode(errors="replace") for data in iter(lambda: terminal.read(4096), b"")
        )


def test_status_needs_neither_torch_nor_ray(run_process, directory, replica):
    """On a laptop, or in a sidecar, it is there in a moment."""
    replica("r1")
    program = "try:\n    main()\nfinally:\n    print({'torch', 'ray'} & set(sys.modules))"

    ended = run_process(program, "status", "--state-dir", directory)

    assert ended.code == 0
    assert ended.out.splitlines()[-1] == "set()"


def test_pages_need_a_package_and_say_so(run_process, pages):
    """One sentence says what to install, without a traceback."""
    program = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda n, *r: None if n == "prometheus_client" else find_spec(n, *r)
main()
"""
    ended = run_process(program, "status", "--url", pages().url)

    assert ended.code == 1
    assert ended.err.startswith("error: --url needs prometheus-client, which is not installed\n")
