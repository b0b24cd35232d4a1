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
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from command_line import ESCAPES, escaped, run_fixture, run_process_fixture, trust_file_fixture  # noqa: F401 - fixtures
from conftest import wait_until
from reports import FULL
from serve_warm._seats import SeatUse
from serve_warm._state_file import StateFile
from serve_warm.cli import observed, watching
from serve_warm.cli.observed import Look, Observed
from serve_warm.replica.in_serve import facts_of
from serve_warm.report import ArtifactUse, Counts, Report, Stage, Verdict

WARM = Report(stage=Stage.READY, verdict=Verdict.FULL_HIT)
WARM_MISS = Report(stage=Stage.READY, verdict=Verdict.MISS)


@pytest.fixture(name="directory")
def directory_fixture(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture(name="replica")
def replica_fixture(directory: Path) -> Iterator[Callable[..., StateFile]]:
    """Write a report as a replica does, and keep its lock until the test ends."""
    files: dict[str, StateFile] = {}

    def write(
        name: str = "r1",
        report: Report = WARM,
        *,
        app: str = "app",
        of: str = "Embedder",
        **facts: object,
    ) -> StateFile:
        if name not in files:
            names = {"application": app, "deployment": of, "replica": name}
            files[name] = StateFile(directory, **names)
        files[name].write({**facts_of(report), **facts})
        return files[name]

    yield write
    for file in files.values():
        file.close()


# --- what is known of a replica ------------------------------------------------------------
def test_files_say_all_there_is_to_show(directory, replica):
    replica("r1", dataclasses.replace(FULL, error=""), degraded=["uncovered: 1 of 2 inputs"])

    [seen] = observed.of_directory(str(directory)).replicas

    assert seen.names == ("app", "Embedder", "r1")
    assert (seen.condition, seen.stage, seen.verdict) == ("warm", "READY", "partial")
    assert (seen.inputs_done, seen.inputs_expected) == (2, 2)
    assert None not in (seen.stage_s, seen.heartbeat_s, seen.elapsed_s)
    assert seen.event == (
        "uncovered: 1 of 2 inputs; after ready: 1 compiles, 2 captures, "
        "7 kernels built, 8 autotuned, 4 fallbacks to eager, 5 refused, "
        "last: recompile of forward (model.py:7): size mismatch; "
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
    each = Observed(
        application="app",
        deployment="Head",
        replica="a",
        condition="warm",
        verdict="full_hit",
        levels=levels,
        traced=traced,
    )
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
def test_the_store_is_named_so_that_it_can_be_asked(run, directory, replica, facts, said):
    """The line of a replica has the command that says more, ready to be pasted."""
    replica(store="s3://bucket/scorer", **facts)
    result = run("status", "--state-dir", directory)
    assert said in result.out
    assert ("serve-warm diff" in result.out) == (facts["verdict"] == "miss")
    (shown,) = json.loads(run("status", "--state-dir", directory, "--json").out)["replicas"]
    assert shown["store"] == "s3://bucket/scorer"


def test_what_graphs_keep_is_shown(directory, replica):
    """Sums all devices. Without a GPU nothing is shown."""
    replica("r1", dataclasses.replace(FULL, degraded=(), after_ready=Counts()))
    replica("r2")
    with_gpu, without = observed.of_directory(str(directory)).replicas
    assert (with_gpu.graph_pool_bytes, without.graph_pool_bytes) == (32_500_000, None)
    assert "CUDA graphs reserve 32.5 MB" in watching.line(with_gpu)
    assert "graphs" not in watching.line(without)


def test_seats_are_shown(directory, replica):
    hit = SeatUse(count=2, hit=True, import_s=3.0, waited_s=9.0, memory_bytes=1, waiting=1)
    missed = SeatUse(count=1, miss="failed", note="importing app raised ValueError")
    gone = dataclasses.replace(missed, miss="none", note="", problem="no such request")
    for number, use in enumerate((hit, missed, gone, None)):
        replica(f"r{number}", dataclasses.replace(WARM, seat=use))
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
    replica("r1", WARM_MISS, reason=miss, store="s3://bucket", warnings=["a sync handler"])
    why = "signed by others\nhint: add the key to trust.toml:\n[[keys]]\nname = 'builder'"
    used = ArtifactUse(store="s3://bucket", reason=why, refused="untrusted")
    refused = dataclasses.replace(WARM_MISS, verdict=Verdict.REFUSED, artifact=used)
    replica("r2", refused, reason=used.reason, store=used.store)
    replica("r3", Report(stage=Stage.FAILED), error="input 'a' raised KeyError: 'x'\nhint: fix it")

    missed, other, failed = observed.of_directory(str(directory)).replicas

    assert missed.event == (
        f"no artifact is used: no artifact fits this machine (1 considered): {rejected}; "
        "warning: a sync handler"
    )
    assert "verdict miss" in watching.line(missed)
    assert missed.event in watching.line(missed)
    assert other.event == (
        "its artifact was refused: untrusted: signed by others; hint: add the key to trust.toml"
    )
    assert failed.event == "input 'a' raised KeyError: 'x'; hint: fix it"


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


def test_a_poisoned_directory_is_a_sentence(run, directory, replica):
    replica("r1")
    directory.chmod(0o777)
    ended = run("status", "--state-dir", directory)
    assert (ended.code, ended.out) == (1, "")
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
    assert data["directory"] == str(directory)
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
def test_names_cannot_write_to_the_terminal(run, directory, replica, options):
    replica("r1", Report(stage=Stage.FAILED), app=ESCAPES, error=ESCAPES)
    shown = run("status", "--state-dir", directory, *options)
    assert (shown.code, shown.out != "") == (1, True)
    assert escaped(shown.out)
    assert escaped(shown.err)


def drawing(now: Look, width: int = 80) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(watching.draw(now, "now"))
    return captured.get()


REPLAYING = Observed(
    application="text_embedder",
    deployment="TextEmbedder",
    replica="fu8nhl35",
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
    text = drawing(Look(directory="/run", replicas=(READY, REPLAYING)))
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


def test_a_log_has_a_line_for_each_change():
    """Elsewhere than in a terminal a look that shows nothing new writes nothing."""
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


def test_status_says_what_the_inputs_do_not_cover(run, directory, replica):
    replica("r1", dataclasses.replace(WARM, narrow=("ids[1], always 16",)))
    assert "narrow: ids[1], always 16" in run("status", "--state-dir", directory).out
