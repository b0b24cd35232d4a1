# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve-warm status`: what it shows of which replica."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from command_line import (  # noqa: F401 - fixtures
    ESCAPES,
    Ended,
    escaped,
    run_fixture,
    run_process_fixture,
    trust_file_fixture,
)
from conftest import wait_until
from reports import FULL
from serve_warm.cli import observed, watching
from serve_warm.cli.observed import Look, Observed
from serve_warm.report import ArtifactUse, Counts, Report, Stage, Verdict
from serve_warm.seats.records import SeatUse
from state_files import WARM, directory_fixture, replica_fixture  # noqa: F401 - fixtures

WARM_MISS = Report(stage=Stage.READY, verdict=Verdict.MISS)


@pytest.fixture(name="status")
def status_fixture(run: Callable[..., Ended], directory: Path) -> Callable[..., Ended]:
    """Run `serve-warm status` on the test's directory."""
    return lambda *options: run("status", "--state-dir", directory, *options)


# --- what is known of a replica ------------------------------------------------------------
def test_files_say_all_there_is_to_show(directory, replica):
    replica(dataclasses.replace(FULL, error=""), degraded=["uncovered: 1 of 2 inputs"])
    [seen] = observed.of_directory(str(directory)).replicas
    assert seen.names == ("app", "Embedder", "r1")
    assert (seen.condition, seen.stage, seen.verdict) == ("warm", "READY", "partial")
    assert (seen.inputs_done, seen.inputs_expected) == (2, 2)
    assert None not in (seen.stage_s, seen.heartbeat_s, seen.elapsed_s)
    assert seen.event == (
        "uncovered: 1 of 2 inputs; after ready: 1 compiles, 2 captures, "
        "7 kernels built, 8 autotuned, 4 fallbacks to eager, 5 refused, 6 of 90 calls eager, "
        "last: recompile of forward (model.py:7) with x=float32[3]: size mismatch; "
        "warning: compiled calls ran on 2 threads"
    )


@pytest.mark.parametrize(
    ("levels", "traced", "shown"),
    [
        ({"1": 0, "2": 5, "3": 0}, "none", "full_hit, level 2"),
        ({"1": 1, "2": 5, "3": 0}, "some", "full_hit, level 1"),
        ({}, "all", "full_hit, level 1"),
        ({}, "none", "full_hit"),
    ],
)
def test_a_full_hit_shows_the_lowest_level_of_its_calls(
    levels: dict[str, int], traced: str, shown: str
):
    """A call of level 1 is traced at each start, although the artifact has its kernels."""
    each = dataclasses.replace(READY, levels=levels, traced=traced)
    assert watching.verdict(each) == shown
    assert watching.verdict(dataclasses.replace(each, verdict="miss")) == "miss"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"verdict": "full_hit"}, "store s3://bucket/scorer"),
        ({"verdict": "partial"}, "store s3://bucket/scorer"),
        ({"verdict": "miss"}, "why: serve-warm diff s3://bucket/scorer"),
        ({"verdict": "refused"}, "why: serve-warm verify s3://bucket/scorer"),
        (  # the artifact fits, so that `diff` cannot explain it
            {"verdict": "partial", "degraded": ["parity: app.Net(float32[1]): it differs"]},
            "signers: serve-warm inspect s3://bucket/scorer",
        ),
    ],
)
def test_the_store_is_named_so_that_it_can_be_asked(status, replica, facts, said):
    """The line of a replica has the command that says more, ready to be pasted."""
    replica(store="s3://bucket/scorer", **facts)
    result = status()
    assert said in result.out
    assert ("serve-warm diff" in result.out) == (facts["verdict"] == "miss")
    (shown,) = json.loads(status("--json").out)["replicas"]
    assert shown["store"] == "s3://bucket/scorer"


def test_what_graphs_keep_is_shown(directory, replica):
    """Sums all devices. Without a GPU nothing is shown."""
    replica(dataclasses.replace(FULL, degraded=(), after_ready=Counts()))
    replica(name="r2")
    with_gpu, without = observed.of_directory(str(directory)).replicas
    assert (with_gpu.graph_pool_bytes, without.graph_pool_bytes) == (32_500_000, None)
    assert "CUDA graphs reserve 32.5 MB" in watching.line(with_gpu)
    assert "graphs" not in watching.line(without)


def test_seats_are_shown(directory, replica):
    hit = SeatUse(count=2, hit=True, import_s=3.0, waited_s=9.0, memory_bytes=1, waiting=1)
    missed = SeatUse(count=1, miss="failed", note="importing app raised ValueError")
    gone = dataclasses.replace(missed, miss="none", note="", problem="no such request")
    for number, use in enumerate((hit, missed, gone, None)):
        replica(dataclasses.replace(WARM, seat=use), f"r{number}")
    of_files = observed.of_directory(str(directory)).replicas
    assert [each.seats for each in of_files] == [
        "yes, imported for 3.0 s and waited 9.0 s, 0 MB; 1 waiting for the next start",
        "no (failed): importing app raised ValueError",
        "no (none); no such request",
        "",
    ]
    assert "seats: no (failed): importing" in watching.line(of_files[1])
    assert "seats" not in watching.line(of_files[3])


def test_why_there_is_no_artifact_is_shown_and_what_is_warned_of(directory, replica):
    """Without this, a bare `verdict miss` would send the reader to the replica's log."""
    rejected = "a: rejected (fingerprint): threads: artifact 1, here 2"
    miss = f"no artifact fits this machine (1 considered):\n  {rejected}"
    replica(WARM_MISS, reason=miss, store="s3://bucket", warnings=["a sync handler"])
    why = "signed by others\nhint: add the key to trust.toml:\n[[keys]]\nname = 'builder'"
    used = ArtifactUse(store="s3://bucket", reason=why, refused="untrusted")
    refused = dataclasses.replace(WARM_MISS, verdict=Verdict.REFUSED, artifact=used)
    replica(refused, "r2", reason=used.reason, store=used.store)
    replica(Report(stage=Stage.FAILED), "r3", error="input 'a' raised KeyError: 'x'\nhint: fix it")

    missed, other, failed = observed.of_directory(str(directory)).replicas

    assert missed.event == (
        f"no artifact is used: no artifact fits this machine (1 considered): {rejected}; "
        "warning: a sync handler"
    )
    assert "verdict miss" in watching.line(missed)
    assert missed.event in watching.line(missed)
    said = "untrusted: signed by others; hint: add the key to trust.toml"
    assert other.event == f"its artifact was refused: {said}"
    assert failed.event == "input 'a' raised KeyError: 'x'; hint: fix it"


# --- whether it is enough ------------------------------------------------------------------
def test_all_ready_is_0_and_anything_else_is_1(status, directory, replica):
    """The exit code answers whether all that are there are ready; there has to be one."""
    none = status()
    replica()
    ready = status()
    replica(Report(stage=Stage.PROVING), "r2")
    not_all = status()
    replica(name="r2").close()
    ended = status()
    assert [each.code for each in (none, ready, not_all, ended)] == [1, 0, 1, 0]
    assert none.out == ""
    assert none.err.startswith(f"found no replica in {directory}; ")
    assert [each.err for each in (ready, not_all, ended)] == ["", "", ""]
    assert [len(each.out.splitlines()) for each in (ready, not_all, ended)] == [1, 2, 1]


def test_a_poisoned_directory_is_a_sentence(status, directory, replica):
    replica()
    directory.chmod(0o777)
    ended = status()
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"{directory} is not a private directory of uid {os.geteuid()}: ")
    assert f"chmod go-w {directory}" in ended.err


def test_one_application_can_be_asked_for(status, replica):
    """Other applications do not count. An unknown name is reported with the known names."""
    replica()
    replica(Report(stage=Stage.PROVING), "r2", app="other")
    ready = status("--app", "app")
    also = status("--deployment", "app#Embedder")
    both = status("--deployment", "Embedder")
    none = status("--deployment", "Embeder")
    assert [each.code for each in (ready, also, both, none)] == [0, 0, 1, 1]
    assert ready.out == also.out
    assert both.out.count("\n") == 2
    said = "there is no replica of Embeder; there are replicas of app#Embedder, other#Embedder\n"
    assert none.err == said


# --- how it is shown -----------------------------------------------------------------------
def test_data_has_all_replicas_and_null_for_the_unknown(status, directory, replica):
    """`--json` is one document; what ended is in it, whatever is asked for."""
    replica(Report(stage=Stage.PULLING))
    replica(name="r2").close()
    shown = status("--json")
    data = json.loads(shown.out)
    first, second = data["replicas"]
    assert (shown.code, shown.err, data["ready"], data["troubles"]) == (1, "", False, [])
    assert data["directory"] == str(directory)
    assert first.keys() == {field.name for field in dataclasses.fields(Observed)}
    assert (first["stage"], first["verdict"], first["condition"]) == ("PULLING", None, "warming")
    assert (second["condition"], second["stage"]) == ("dead", "READY")


def test_a_start_that_failed_is_shown_after_its_process(status, replica):
    """Serve replaces it at once, and its error is what one came for; who was ready just ended."""
    replica(Report(stage=Stage.FAILED), error="input embed: boom").close()
    replica(name="r2").close()
    replica(Report(stage=Stage.PENDING), "r3")
    shown = status()
    everything = status("--all")
    assert [line.split()[1] for line in shown.out.splitlines()] == ["r3:", "r1:"]
    assert [line.split()[1] for line in everything.out.splitlines()] == ["r3:", "r1:", "r2:"]
    assert "FAILED, ended 0 s ago; input embed: boom" in shown.out


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_names_cannot_write_to_the_terminal(status, replica, options):
    replica(Report(stage=Stage.FAILED), app=ESCAPES, error=ESCAPES)
    shown = status(*options)
    assert (shown.code, shown.out != "") == (1, True)
    assert escaped(shown.out)
    assert escaped(shown.err)


NAMES = {"application": "text_embedder", "deployment": "TextEmbedder", "replica": "fu8nhl35"}
STATE = {"condition": "warming", "stage": "REPLAYING", "verdict": "miss", "event": "compiling cold"}
TIMES = {"stage_s": 41.0, "heartbeat_s": 1.2, "elapsed_s": 44.0, "deadline_s": 1800.0}
REPLAYING = Observed(**NAMES, **STATE, **TIMES, inputs_done=3, inputs_expected=6)
SCORER = {"application": "scorer", "deployment": "Scorer", "inputs_done": 6, "elapsed_s": 6.4}
WARM_STATE = {"condition": "warm", "stage": "READY", "verdict": "full_hit", "event": ""}
READY = dataclasses.replace(REPLAYING, **SCORER, **WARM_STATE)


def test_a_log_has_a_line_for_each_change():
    """A look that shows nothing new writes nothing."""
    first = Look(directory="s", replicas=(READY, REPLAYING))
    later = dataclasses.replace(REPLAYING, inputs_done=5, stage_s=50.0, heartbeat_s=0.0)
    ready = dataclasses.replace(later, condition="warm", stage="READY")
    lost = Look(directory="s", replicas=(READY, REPLAYING), troubles=("lost",))

    told = [
        watching.changes(before, now, "now")
        for before, now in [
            (Look(), first),
            (first, Look(directory="s", replicas=(READY, later))),
            (first, Look(directory="s", replicas=(READY, ready), troubles=("lost",))),
            (lost, dataclasses.replace(lost, troubles=("lost", "lost too"))),
            (first, Look(directory="s", replicas=(READY,))),
            (first, Look(directory="s")),
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
    looks = [Look(directory="s", replicas=(READY,)), Look(directory="s", replicas=(REPLAYING,))]
    watching.follow(looks, "now", as_json=True)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["ready"] for line in lines] == [True, False]


def test_watching_in_a_terminal_goes_on_until_interrupted(directory, replica):
    """A change shows without asking again; Ctrl-C ends it with the code that shells know."""
    replica(Report(stage=Stage.REPLAYING))
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
        wait_until("the replica is shown", lambda: "REPLAYING" in "".join(seen))
        replica()
        wait_until("the change is shown", lambda: "READY" in "".join(seen))
        process.send_signal(signal.SIGINT)
        code = process.wait()
        reading.join()

    assert code == 130
    assert "Traceback" not in "".join(seen)


def read_terminal(descriptor: int, seen: list[str]) -> None:
    # On Linux the end of a terminal is an error.
    with os.fdopen(descriptor, "rb", buffering=0) as terminal, suppress(OSError):
        seen.extend(
            data.decode(errors="replace") for data in iter(lambda: terminal.read(4096), b"")
        )


def test_status_says_what_the_inputs_do_not_cover(status, replica):
    replica(dataclasses.replace(WARM, narrow=("ids[1], always 16",)))
    assert "narrow: ids[1], always 16" in status().out
