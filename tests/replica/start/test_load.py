# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""An artifact in a start: put in place, missed or refused, with real stores and signatures."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from artifacts import build, new_key, packed_cache, trusting
from compiled import compiled, double
from homes import move_home, write_trust_file
from serve_warm import _private_folders
from serve_warm.artifact.archive import pack_directory
from serve_warm.artifact.push import push
from serve_warm.compiler.cpu_target import isa_checks
from serve_warm.compiler.watch import watch_process
from serve_warm.config import WarmupConfig
from serve_warm.errors import ConfigError, WarmupFailed
from serve_warm.fingerprint import RULES
from serve_warm.replica.replay.narrow import digest_of
from serve_warm.replica.start import install as placement
from serve_warm.replica.start.context import CompileCaches
from serve_warm.replica.start.stages import Warmup
from serve_warm.report import Report, Stage, Verdict
from serve_warm.stores.local import LocalStore
from serve_warm.trust.policy import Trust
from starts import (  # noqa: F401 - fixtures
    KEY,
    StandIn,
    cut_short,
    failed,
    here,
    missing_blob,
    offer,
    other_statement,
    pointed_at,
    process,
    publish,
    stages_of,
    store_fixture,
    tampered,
    warm_up,
)


# --- the order -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("raw_sha256", "stages"),
    [
        ("0" * 64, ["PENDING", "PULLING", "VERIFYING", "REPLAYING"]),
        (None, ["PENDING", "PULLING", "REPLAYING"]),
    ],
    ids=["refused where it is unpacked", "refused where it comes"],
)
def test_a_start_is_verifying_while_what_came_is_unpacked(
    store: LocalStore, raw_sha256: str | None, stages: list[str]
):
    """The stage begins with the last byte, before the unpacking ends."""
    told: list[Report] = []
    replica = StandIn()
    manifest, stored = build(deployment="Embedder", built_for=here(replica))
    (part,) = manifest.parts
    described = replace(part, raw_sha256=raw_sha256 or part.raw_sha256)
    push(store, replace(manifest, parts=(described,)), stored, [KEY])
    if raw_sha256 is None:
        tampered(store)
    report = warm_up(replica, told.append, artifact=store.uri).report()
    assert report.verdict is Verdict.REFUSED
    assert stages_of(told) == [*stages, "PROVING", "READY"]


# --- the artifact --------------------------------------------------------------------------
@pytest.mark.parametrize("has_cache", [True, False])
def test_a_kernel_that_is_built_while_entries_are_loaded_is_counted(
    has_cache: bool, tmp_path: Path
):
    """On a GPU, loading an entry builds each kernel whose key the artifact does not have."""
    built = tmp_path / "built"
    (built / "triton" / "came").mkdir(parents=True)
    (built / "triton" / "came" / "kernel.cubin").touch()
    manifest = SimpleNamespace(facts={}, fingerprint=SimpleNamespace(machine={}))
    chosen = SimpleNamespace(manifest=manifest)
    raw = {"cache": io.BytesIO(pack_directory(built))} if has_cache else {}
    pulled: Any = SimpleNamespace(raw=raw, chosen=chosen)
    caches, before = CompileCaches(), watch_process().counts()
    placement.put_in_place(pulled, None, caches=caches, warn=pytest.fail, check_wanted=lambda: None)
    at_first = (watch_process().counts() - before).kernels
    new = caches.directory / "triton" / "new"
    new.mkdir(parents=True)
    (new / "kernel.cubin").touch()
    assert (at_first, (watch_process().counts() - before).kernels) == (0, 1)


def test_what_user_code_compiled_before_stays_out(store: LocalStore):
    """The artifact goes into a new directory, whatever is in the present one."""
    replica = StandIn()
    offer(store, replica)
    caches = CompileCaches()
    present = caches.begin()
    (present / "inductor").mkdir()
    (present / "inductor" / "mine").write_text("compiled in __init__")
    start = Warmup(replica, WarmupConfig(artifact=store.uri), caches=caches)
    report = asyncio.run(start.run())
    assert report.verdict is Verdict.FULL_HIT
    assert start.caches.directory != present
    assert not list(start.caches.directory.rglob("mine"))


@pytest.fixture
def open_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder for temporary files what an emptyDir is, and /var/tmp read-only."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    move_home(home, monkeypatch)
    may_access = os.access

    def access(path: Any, *mode: Any, **named: Any) -> bool:
        return str(path) != "/var/tmp" and may_access(path, *mode, **named)

    monkeypatch.setattr(os, "access", access)
    Path(tempfile.gettempdir()).chmod(0o777)
    return home


def test_an_artifact_is_put_where_nobody_can_exchange_it(
    store: LocalStore, open_temporary_folder: Path
):
    """If others can rename files in the folder for temporary files, another folder is used."""
    replica = StandIn()
    offer(store, replica)
    start = warm_up(replica, artifact=store.uri)
    assert start.report().verdict is Verdict.FULL_HIT
    assert start.caches.directory.is_relative_to(open_temporary_folder / ".cache" / "serve_warm")
    assert _private_folders.problems(start.caches.directory) == ()
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


@pytest.mark.parametrize("part", ["cache", "exported"])
def test_where_every_place_is_open_to_others_nothing_is_loaded(
    store: LocalStore,
    tmp_path: Path,
    open_temporary_folder: Path,
    part: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """The start is cold, uses the temporary folder as plain torch does, and says why."""
    replica = StandIn()
    publish(store, here(replica), raw={part: packed_cache(tmp_path / "built")})
    open_temporary_folder.chmod(0o777)
    blobs = tmp_path / "blobs"
    monkeypatch.setattr("serve_warm.replica.start.prefetch.default_root", lambda: blobs)
    start = warm_up(replica, artifact=store.uri)
    report = start.report()
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.REFUSED)
    assert report.artifact.refused == "unsafe_directory"
    assert f"chmod +t {tempfile.gettempdir()}" in report.artifact.reason
    assert start.caches.directory.is_relative_to(tempfile.gettempdir())
    assert not list(start.caches.directory.rglob("*.so"))
    pulled = [each for each in blobs.iterdir() if not each.name.endswith(".lock")]
    assert len(pulled) == 1  # and not put in place


def test_answers_of_the_isa_probe_come_with_the_artifact(store: LocalStore):
    """This process uses the results of the builder's probe."""
    replica = StandIn()
    facts = {"isa_checks": {"VecAVX2 -mavx2 0123456789ab": True}}
    offer(store, replica, facts=facts)
    warm_up(replica, artifact=store.uri)
    assert dict(isa_checks()._given) == facts["isa_checks"]


@pytest.mark.parametrize("what", ["the same", "other inputs", "other code", "larger batches"])
def test_an_artifact_says_what_its_inputs_did_not_cover(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
):
    """If code or inputs are no longer those of the build, nobody knows, and the report says so."""
    replica = StandIn()
    facts = {
        "narrow": ["x[0], always 2"],
        "unvaried": ["the body of 'POST /'"],
        "varied": digest_of(replica.declared, replica.owner, largest_batch=1),
    }
    offer(store, replica, facts=facts)
    if what == "other inputs":
        replica.declared = replica.declared[:1]
    if what == "larger batches":
        monkeypatch.setattr(replica, "largest_batch", lambda: 8)
    if what == "other code":
        (tmp_path / "edited.py").write_text("# another handler")
        module = SimpleNamespace(__file__=str(tmp_path / "edited.py"))
        monkeypatch.setitem(sys.modules, "edited", module)
        monkeypatch.setattr(type(replica.owner), "__module__", "edited")

    report = warm_up(replica, artifact=store.uri).report()

    assert (report.verdict, report.narrow) == (Verdict.FULL_HIT, ("x[0], always 2",))
    others = [] if what == "the same" else ["the inputs again: code, inputs or"]
    assert len(report.unvaried) == 1 + len(others)
    assert [each for each in report.unvaried[1:] if not each.startswith(*others)] == []


def test_code_that_cannot_be_read_ends_no_start(monkeypatch: pytest.MonkeyPatch):
    """For example, an application in a zip archive."""
    owner = StandIn().owner
    module = SimpleNamespace(__file__="/srv/app.zip/app.py")
    monkeypatch.setitem(sys.modules, type(owner).__module__, module)
    assert digest_of([], owner, largest_batch=1) != ""


def test_an_empty_store_is_a_miss(store: LocalStore):
    """And no refusal: the start is cold, says why, and is proven, so it is not degraded."""
    report = warm_up(StandIn(), artifact=store.uri, on_refused="fail").report()
    assert (report.stage, report.verdict, report.degraded) == (Stage.READY, Verdict.MISS, ())
    said = f"has no artifact for 'Embedder' of application 'app': {store.root} does not exist"
    assert said in report.artifact.reason
    assert "check the path and its mount, or build the first artifact" in report.artifact.reason
    assert "serve-warm build APP --store" in report.artifact.reason
    assert report.covered.proven == 2


def test_an_artifact_that_does_not_fit_is_a_miss(store: LocalStore):
    replica, other = StandIn(), StandIn()
    other.owner.model = compiled(double, dynamic=True)
    publish(store, here(other))
    publish(store, here(replica, serve_warm="rules 0"))
    publish(store, here(replica, python="CPython 3.10.1", libc="musl 1"))
    report = warm_up(replica, artifact=store.uri).report()
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.MISS)
    assert len(report.artifact.trace) == 3
    assert any("compile_arguments: " in line for line in report.artifact.trace)
    rules = f"artifact rules 0, here rules {RULES}"
    assert any(line.endswith(rules) for line in report.artifact.trace)
    assert any("libc: " in line and "python: " in line for line in report.artifact.trace)
    assert report.covered.proven == 2


def test_a_miss_fails_by_policy(store: LocalStore):
    error, report, _ = failed(WarmupFailed, StandIn(), artifact=store.uri, on_missing="fail")
    assert error.message.startswith("verdict miss, and on_missing is 'fail': ")
    assert "serve-warm build" in error.hint
    assert (report.stage, report.verdict) == (Stage.FAILED, Verdict.MISS)
    assert report.error == str(error)


def test_trusting_nobody_refuses_with_what_to_add(store: LocalStore):
    """Nothing configured means nothing believed; the reason has the lines to add."""
    replica = StandIn(trust=Trust())
    publish(store, here(replica))
    report = warm_up(replica, artifact=store.uri).report()
    assert report.verdict is Verdict.REFUSED
    assert "hint: " in report.artifact.reason


def test_a_refusal_fails_by_policy(store: LocalStore):
    """`on_refused: fail` is for fleets that prefer no replica to a cold one."""
    replica = StandIn(trust=trusting(new_key()))
    publish(store, here(replica))
    error, report, _ = failed(WarmupFailed, replica, artifact=store.uri, on_refused="fail")
    assert error.message.startswith("verdict refused, and on_refused is 'fail': ")
    assert (report.stage, report.verdict) == (Stage.FAILED, Verdict.REFUSED)
    assert replica.calls == []


def test_what_was_written_before_a_refusal_is_not_built_upon(store: LocalStore):
    """A part that is no archive leaves a new, empty directory, not half an artifact."""
    replica = StandIn()
    offer(store, replica, {"precompiled": b"no archive"})
    start = warm_up(replica, artifact=store.uri)
    caches = Path(tempfile.gettempdir())
    assert start.report().verdict is Verdict.REFUSED
    assert start.report().artifact.refused == "bad_archive"
    assert list(caches.rglob("c244b2rga7kqcbbf2xhyb.so"))  # it had been unpacked
    assert start.caches.directory == pointed_at()
    assert list(start.caches.directory.rglob("*")) == []


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_tried_again_and_then_a_miss(
    store: LocalStore, caplog: pytest.LogCaptureFixture
):
    """The tries fit into the pull's deadline, and the start says what it waits for."""
    store.root.symlink_to(store.root)  # a loop: nothing can be listed in it
    told: list[Report] = []
    # Enough for the pause of 0.5 s before the second try, too short for that of 1 s after it.
    start = warm_up(StandIn(), told.append, artifact=store.uri, pull_deadline_s=1.4)
    report = start.report()
    tries = [r for r in caplog.records if "the artifact was not pulled, try=" in r.getMessage()]
    assert [r.levelname for r in tries] == ["WARNING"]
    assert store.uri in tries[0].getMessage()
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.MISS)
    assert "cannot list" in report.artifact.reason
    assert "(2 tries in " in report.artifact.reason
    [waiting] = {each.doing for each in told if each.stage is Stage.PULLING} - {""}
    assert waiting.startswith(f"the store (try 1 failed: {store.uri}: cannot list")
    assert {each.doing for each in told if each.stage is Stage.REPLAYING} == {""}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("artefacts", "artefacts does not exist; did you mean 'artifacts'?"),
        ("a.txt", "a.txt is a file, but a store"),
    ],
)
def test_a_mistyped_folder_is_a_miss_that_says_so(tmp_path: Path, name: str, reason: str):
    """The hint does not recommend a build, because a build would create a second store."""
    (tmp_path / "artifacts" / "statements").mkdir(parents=True)
    (tmp_path / "a.txt").touch()
    report = warm_up(StandIn(), artifact=f"file://{tmp_path}/{name}").report()
    assert report.verdict is Verdict.MISS
    assert report.artifact.reason.startswith(f"{tmp_path}/{reason}")
    assert "serve-warm build" not in report.artifact.reason


@pytest.mark.parametrize("on_missing", ["compile", "fail"])
def test_a_miss_says_where_a_relative_path_led(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_missing: str
):
    """Ray chooses where a replica works, so nobody else can tell what `./artifacts` was."""
    monkeypatch.chdir(tmp_path)
    settings = {"artifact": "./artifacts", "on_missing": on_missing}
    if on_missing == "fail":
        reason = str(failed(WarmupFailed, StandIn(), **settings)[0])
    else:
        reason = warm_up(StandIn(), **settings).report().artifact.reason
    where = "./artifacts is a relative path, resolved against the replica's working directory"
    where += f" {tmp_path}:"
    assert where in reason
    assert "serve-warm build" not in reason  # it would build into the wrong folder


def test_an_address_that_is_no_store_is_a_setting_to_correct():
    """A misspelt address is not a store that is empty: the start fails and says so."""
    _, report, _ = failed(ConfigError, StandIn(), artifact="s3://bucket?version=1")
    assert report.stage is Stage.FAILED
    assert "s3:// addresses must not contain a query" in report.error


def test_a_trust_file_that_cannot_be_used_refuses_and_does_not_stop(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_trust_file(tmp_path / "home", "[[keys")
    move_home(tmp_path / "home", monkeypatch)
    replica = StandIn()
    replica._trust = None
    publish(store, here(replica))
    report = warm_up(replica, artifact=store.uri).report()
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.REFUSED)
    assert "trust.toml" in report.artifact.reason


def test_compiling_before_the_watch_is_never_a_full_hit(store: LocalStore):
    """Code compiled in `__init__` was compiled without the artifact, and is named."""
    replica = StandIn()
    offer(store, replica)
    replica.unwatched_compiles_before -= 1
    report = warm_up(replica, artifact=store.uri).report()
    assert report.verdict is Verdict.PARTIAL
    assert "compiled in __init__" in report.warnings[0]


def test_a_credential_in_the_address_is_nowhere_in_the_report():
    """An address with a user is an error, and neither it nor the report repeats the secret."""
    address = "s3://AKIAABCDEFGHIJKLMNOP:wJalrXUtnFEMI@bucket/x"
    error, report, _ = failed(ConfigError, StandIn(), artifact=address)
    for text in (str(error), report.text(), str(report.to_json())):
        assert "wJalr" not in text
        assert "AKIA" not in text
