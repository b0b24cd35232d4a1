# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""An artifact in a start: put in place, missed or refused, with real stores and signatures."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from artifacts import container, new_key, packed_cache, trusting
from compiled import compiled, double
from homes import move_home, write_trust_file
from serve_warm import _private_folders
from serve_warm.artifact.archive import pack_directory
from serve_warm.compiler.cpu_target import isa_checks
from serve_warm.compiler.watch import watch_process
from serve_warm.config import WarmupConfig
from serve_warm.errors import (
    ConfigError,
    WarmupFailed,
)
from serve_warm.replica import placement
from serve_warm.replica.start import CompileCaches
from serve_warm.replica.warmup import Warmup
from serve_warm.report import Report, Stage, Verdict
from serve_warm.stores.local import LocalStore
from serve_warm.trust.policy import Trust
from starts import (  # noqa: F401 - fixtures
    StandIn,
    cut_short,
    failed,
    here,
    missing_blob,
    other_statement,
    pointed_at,
    process,
    publish,
    stages_of,
    store_fixture,
    tampered,
    warm_up,
)

if TYPE_CHECKING:
    from collections.abc import Callable


# --- the order -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch_bytes", "stages"),
    [
        (b"no such container", ["PENDING", "PULLING", "VERIFYING", "REPLAYING"]),
        (None, ["PENDING", "PULLING", "REPLAYING"]),
    ],
    ids=["refused where it is unpacked", "refused where it comes"],
)
def test_a_start_is_verifying_while_what_came_is_unpacked(
    store: LocalStore, torch_bytes: bytes | None, stages: list[str]
):
    """The stage begins with the last byte, before the unpacking ends."""
    told: list[Report] = []
    replica = StandIn()
    publish(store, here(replica), raw={"torch_bytes": torch_bytes or container()})
    if torch_bytes is None:
        tampered(store)

    report = warm_up(replica, told.append, artifact=store.uri, parts=("torch_bytes",)).report()

    assert report.verdict is Verdict.REFUSED
    assert stages_of(told) == [*stages, "PROVING", "READY"]


# --- the artifact --------------------------------------------------------------------------


def test_a_hit_is_put_in_place(store: LocalStore, tmp_path: Path):
    """The files are in a private directory that torch is pointed at, and the report names it."""
    replica = StandIn()
    key = publish(store, here(replica), raw={"cache": packed_cache(tmp_path / "built")})

    start = warm_up(replica, artifact=store.uri)

    report, directory = start.report(), start.caches.directory
    assert report.verdict is Verdict.FULL_HIT
    assert directory == pointed_at()
    assert (directory / "24" / "c244b2rga7kqcbbf2xhyb.so").read_bytes() == bytes(range(256)) * 64
    assert report.artifact.statement == key
    assert report.artifact.store == store.uri
    assert report.artifact.raw_bytes > report.artifact.stored_bytes > 0
    assert report.artifact.trace == (f"{key}: accepted, created {report.artifact.created}",)
    assert report.artifact.reason == ""


@pytest.mark.parametrize("has_cache", [True, False])
def test_a_kernel_that_is_built_while_entries_are_loaded_is_counted(
    has_cache: bool, tmp_path: Path
):
    """On a GPU, loading an entry builds each kernel whose key the artifact does not have.

    Kernels that came with the artifact are not counted.
    """
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


def test_what_user_code_compiled_before_stays_out(store: LocalStore, tmp_path: Path):
    """The artifact goes into a new directory, whatever is in the present one."""
    replica = StandIn()
    publish(store, here(replica), raw={"cache": packed_cache(tmp_path / "built")})
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
    monkeypatch.setattr(
        os,
        "access",
        lambda path, *mode, **named: str(path) != "/var/tmp" and may_access(path, *mode, **named),
    )
    Path(tempfile.gettempdir()).chmod(0o777)
    return home


def test_an_artifact_is_put_where_nobody_can_exchange_it(
    store: LocalStore, tmp_path: Path, open_temporary_folder: Path
):
    """If others can rename files in the folder for temporary files, another folder is used."""
    replica = StandIn()
    publish(store, here(replica), raw={"cache": packed_cache(tmp_path / "built")})

    start = warm_up(replica, artifact=store.uri)

    assert start.report().verdict is Verdict.FULL_HIT
    assert start.caches.directory.is_relative_to(open_temporary_folder / ".cache" / "serve_warm")
    assert _private_folders.problems(start.caches.directory) == ()
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


@pytest.mark.parametrize("part", ["cache", "torch_bytes"])
def test_where_every_place_is_open_to_others_nothing_is_loaded(
    store: LocalStore, tmp_path: Path, open_temporary_folder: Path, part: str
):
    """The start is cold, uses the temporary folder as plain torch does, and says why."""
    replica = StandIn()
    raw = {
        "cache": packed_cache(tmp_path / "built"),
        "torch_bytes": container(("no_such_kind", [("key", b"content")])),
    }
    publish(store, here(replica), raw={part: raw[part]})
    open_temporary_folder.chmod(0o777)
    blobs = tmp_path / "blobs"

    start = warm_up(replica, artifact=store.uri, parts=(part,), node_cache_dir=str(blobs))

    report = start.report()
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.REFUSED)
    assert report.artifact.refused == "unsafe_directory"
    assert f"chmod +t {tempfile.gettempdir()}" in report.artifact.reason
    assert start.caches.directory.is_relative_to(tempfile.gettempdir())
    assert not list(start.caches.directory.rglob("*.so"))
    assert len(list(blobs.iterdir())) == 2  # it was pulled, and not put in place


def test_a_start_without_a_place_for_its_caches_says_that_it_failed(open_temporary_folder: Path):
    """The report has the stage and the reason, as for whatever else ends a start."""
    replica = StandIn()
    open_temporary_folder.chmod(0o777)
    temporary = Path(tempfile.gettempdir())
    shutil.rmtree(temporary)
    temporary.write_text("no folder")

    error, report, _ = failed(NotADirectoryError, replica)

    assert (report.stage, report.error) == (Stage.FAILED, f"NotADirectoryError: {error}")


def test_a_given_directory_is_kept_where_nothing_is_pulled():
    """The caches of a start without an artifact stay where they were begun: they get packed."""
    caches = CompileCaches()
    present = caches.begin()
    start = Warmup(StandIn(), WarmupConfig(), caches=caches)

    asyncio.run(start.run())

    assert start.caches.directory == present


def test_answers_of_the_isa_probe_come_with_the_artifact(store: LocalStore, tmp_path: Path):
    """This process uses the results of the builder's probe."""
    replica = StandIn()
    facts = {"isa_checks": {"VecAVX2 -mavx2 0123456789ab": True}}
    publish(store, here(replica), raw={"cache": packed_cache(tmp_path / "built")}, facts=facts)

    warm_up(replica, artifact=store.uri)

    assert dict(isa_checks()._given) == facts["isa_checks"]


def test_an_empty_store_is_a_miss(store: LocalStore):
    """The start is cold, says why, and is proven like any other, so it is not degraded."""
    report = warm_up(StandIn(), artifact=store.uri).report()

    assert (report.stage, report.verdict, report.degraded) == (Stage.READY, Verdict.MISS, ())
    assert f"has no artifact for 'Embedder': {store.root} does not exist" in report.artifact.reason
    assert "check the path and its mount, or build the first artifact" in report.artifact.reason
    assert "serve-warm build APP --store" in report.artifact.reason
    assert report.covered.proven == 2


def test_an_artifact_for_another_machine_is_a_miss(store: LocalStore):
    """The trace names the factors that differ, variant by variant."""
    replica = StandIn()
    publish(store, here(replica, torch="2.11.0"))
    publish(store, here(replica, python="CPython 3.10.1", libc="musl 1"))

    report = warm_up(replica, artifact=store.uri).report()

    assert report.verdict is Verdict.MISS
    assert len(report.artifact.trace) == 2
    assert any("torch: " in line and "2.11.0" in line for line in report.artifact.trace)
    assert any("libc: " in line and "python: " in line for line in report.artifact.trace)


def test_an_artifact_for_other_compile_arguments_is_a_miss(store: LocalStore):
    """Compile arguments are a factor, and the miss names them."""
    replica, other = StandIn(), StandIn()
    other.owner.model = compiled(double, dynamic=True)
    publish(store, here(other))

    report = warm_up(replica, artifact=store.uri).report()

    assert report.verdict is Verdict.MISS
    assert "compile_arguments: " in report.artifact.trace[0]


def test_a_miss_fails_by_policy(store: LocalStore):
    """`on_missing: fail` ends the start with the reason and the hint of the miss."""
    error, report, _ = failed(WarmupFailed, StandIn(), artifact=store.uri, on_missing="fail")

    assert error.message.startswith("verdict miss, and on_missing is 'fail': ")
    assert "serve-warm build" in error.hint
    assert (report.stage, report.verdict, report.error) == (
        *(Stage.FAILED, Verdict.MISS, str(error)),
    )


@pytest.mark.parametrize("damage", [tampered, cut_short, missing_blob, other_statement])
def test_a_damaged_artifact_is_refused(
    store: LocalStore, tmp_path: Path, damage: Callable[[LocalStore], None]
):
    """An artifact that differs from its signature is not loaded, and the start is cold."""
    replica = StandIn()
    publish(store, here(replica), raw={"cache": packed_cache(tmp_path / "built")})
    damage(store)

    start = warm_up(replica, artifact=store.uri)

    report = start.report()
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.REFUSED)
    assert report.artifact.reason
    assert list(start.caches.directory.rglob("*.so")) == []
    assert report.covered.proven == 2


def test_an_unknown_signer_is_refused(store: LocalStore):
    """A good signature by an unknown key does not count."""
    replica = StandIn(trust=trusting(new_key()))
    publish(store, here(replica))

    report = warm_up(replica, artifact=store.uri).report()

    assert report.verdict is Verdict.REFUSED


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


def test_a_miss_is_not_a_refusal(store: LocalStore):
    """`on_refused` has no effect on a miss."""
    report = warm_up(StandIn(), artifact=store.uri, on_refused="fail").report()

    assert report.verdict is Verdict.MISS


def test_what_was_written_before_a_refusal_is_not_built_upon(store: LocalStore, tmp_path: Path):
    """A part that torch does not take leaves a new, empty directory, not half an artifact."""
    replica = StandIn()
    parts = {
        "cache": packed_cache(tmp_path / "built"),
        "torch_bytes": container(("no_such_kind", [("key", b"content")])),
    }
    publish(store, here(replica), raw=parts)

    start = warm_up(replica, artifact=store.uri, parts=["cache", "torch_bytes"])

    caches = Path(tempfile.gettempdir())
    assert start.report().verdict is Verdict.REFUSED
    assert "torch did not accept the artifact part 'torch_bytes'" in start.report().artifact.reason
    assert list(caches.rglob("c244b2rga7kqcbbf2xhyb.so"))  # it had been unpacked
    assert start.caches.directory == pointed_at()
    assert list(start.caches.directory.rglob("*")) == []


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_tried_again_and_then_a_miss(
    store: LocalStore, caplog: pytest.LogCaptureFixture
):
    """The tries fit into the pull's deadline; availability does not depend on the store."""
    store.root.symlink_to(store.root)  # a loop: nothing can be listed in it

    # Enough for the pause of 0.5 s before the second try, too short for that of 1 s after it.
    report = warm_up(StandIn(), artifact=store.uri, pull_deadline_s=1.4).report()

    tries = [r for r in caplog.records if "the artifact was not pulled, try=" in r.getMessage()]
    assert [r.levelname for r in tries] == ["WARNING"]
    assert store.uri in tries[0].getMessage()
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.MISS)
    assert "cannot list" in report.artifact.reason
    assert "(2 tries in " in report.artifact.reason
    assert report.doing == ""


@pytest.mark.slow
def test_a_start_that_waits_for_a_store_says_for_which_and_why(store: LocalStore):
    """While it pulls, and not only in the miss that comes of it after a minute."""
    store.root.symlink_to(store.root)
    told: list[Report] = []
    start = Warmup(StandIn(), WarmupConfig(artifact=store.uri, pull_deadline_s=1.4))
    start.observe([told.append])

    asyncio.run(start.run())

    doing = {report.doing for report in told if report.stage is Stage.PULLING} - {""}
    assert len(doing) == 1
    assert doing.pop().startswith(f"the store (try 1 failed: {store.uri}: cannot list")
    assert {report.doing for report in told if report.stage is Stage.REPLAYING} == {""}


def test_a_mistyped_folder_is_a_miss_that_names_the_right_one(tmp_path: Path):
    """The hint does not recommend a build, because a build would create a second store."""
    (tmp_path / "artifacts" / "statements").mkdir(parents=True)

    report = warm_up(StandIn(), artifact=f"file://{tmp_path}/artefacts").report()

    assert report.verdict is Verdict.MISS
    assert report.artifact.reason == (
        f"{tmp_path}/artefacts does not exist; did you mean 'artifacts'?"
    )


def test_a_store_that_is_a_file_is_a_miss_that_says_so(tmp_path: Path):
    """A store is a folder; an empty one would be told in other words."""
    (tmp_path / "artifacts").touch()

    report = warm_up(StandIn(), artifact=f"file://{tmp_path}/artifacts").report()

    assert report.verdict is Verdict.MISS
    assert report.artifact.reason.startswith(f"{tmp_path}/artifacts is a file, but a store")


@pytest.mark.slow
def test_a_store_that_answers_at_the_second_try_is_a_hit(store: LocalStore, tmp_path: Path):
    """A store that is away for a moment costs that moment."""
    replica = StandIn()
    good = LocalStore(root=tmp_path / "good")
    publish(good, here(replica), raw={"cache": packed_cache(tmp_path / "built")})
    store.root.symlink_to(store.root)

    async def run() -> Report:
        def repair() -> None:
            store.root.unlink()
            store.root.symlink_to(good.root)

        start = Warmup(replica, WarmupConfig(artifact=store.uri))
        start.observe(
            [
                lambda r: (
                    r.stage is Stage.PULLING and asyncio.get_running_loop().call_later(0.2, repair)
                )
            ]
        )
        return await start.run()

    assert asyncio.run(run()).verdict is Verdict.FULL_HIT


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


def test_a_miss_in_an_absolute_place_says_nothing_of_folders(tmp_path: Path):
    """For an absolute address, the message has only the address."""
    start = warm_up(StandIn(), artifact=str(tmp_path / "artifacts"))
    reason = start.report().artifact.reason

    assert "relative" not in reason


def test_an_address_that_is_no_store_is_a_setting_to_correct():
    """A misspelt address is not a store that is empty: the start fails and says so."""
    _, report, _ = failed(ConfigError, StandIn(), artifact="s3://bucket?version=1")

    assert report.stage is Stage.FAILED
    assert "s3:// addresses must not contain a query" in report.error


# --- deadlines and inputs ------------------------------------------------------------------


def test_a_trust_file_that_cannot_be_used_refuses_and_does_not_stop(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One bad trust file lets no artifact in, but stops no replica."""
    write_trust_file(tmp_path / "home", "[[keys")
    move_home(tmp_path / "home", monkeypatch)
    replica = StandIn()
    replica._trust = None
    publish(store, here(replica))

    report = warm_up(replica, artifact=store.uri).report()

    assert (report.stage, report.verdict) == (Stage.READY, Verdict.REFUSED)
    assert report.artifact is not None
    assert "trust.toml" in report.artifact.reason


def test_compiling_before_the_watch_is_never_a_full_hit(store: LocalStore, tmp_path: Path):
    """Code compiled in `__init__` was compiled without the artifact, and is named."""
    replica = StandIn()
    publish(store, here(replica), raw={"cache": packed_cache(tmp_path / "built")})
    replica.unwatched_compiles_before -= 1

    report = warm_up(replica, artifact=store.uri).report()

    assert report.verdict is Verdict.PARTIAL
    assert "compiled in __init__" in report.warnings[0]


# --- after ready ---------------------------------------------------------------------------


@pytest.mark.parametrize("answers", ["none", ["VecAVX2"], 7, None])
def test_facts_of_another_shape_are_passed_over(store, tmp_path, answers):
    """Another release may state something else there: the artifact is used, and the probe runs."""
    replica = StandIn()
    facts = {"isa_checks": answers}
    publish(store, here(replica), raw={"cache": packed_cache(tmp_path)}, facts=facts)

    report = warm_up(replica, artifact=store.uri).report()

    assert report.verdict is Verdict.FULL_HIT


def test_a_credential_in_the_address_is_nowhere_in_the_report():
    """An address with a user is an error, and neither it nor the report repeats the secret."""
    address = "s3://AKIAABCDEFGHIJKLMNOP:wJalrXUtnFEMI@bucket/x"

    error, report, _ = failed(ConfigError, StandIn(), artifact=address)

    for text in (str(error), report.text(), str(report.to_json())):
        assert "wJalr" not in text
        assert "AKIA" not in text
