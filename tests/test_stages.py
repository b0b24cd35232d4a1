# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The order of a start, its policies and its verdicts, with real stores and signed artifacts.

The models are compiled with a backend that compiles nothing, so that a start takes no time; what
a real cache is worth is in test_cold_warm.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import pwd
import shutil
import tempfile
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ray.serve._private.logging_utils import JSONFormatter, ServeFormatter

from artifacts import build, container, new_key, packed_cache, trusting
from compiled import compiled, double, stance
from outside_serve import OutsideServe
from serve_warm import _private_folders
from serve_warm.artifact.archive import pack_directory
from serve_warm.artifact.push import push
from serve_warm.compiler.background_import import import_compiler
from serve_warm.compiler.compiled_objects import compile_arguments
from serve_warm.compiler.cpu_target import isa_checks
from serve_warm.compiler.watch import unwatched_compiles, watch_process
from serve_warm.config import WarmupConfig, environment
from serve_warm.errors import (
    CompilerMissing,
    ConfigError,
    InputError,
    NotProven,
    ReplayFailed,
    WarmupFailed,
    WarmupTimeout,
)
from serve_warm.fingerprint import Fingerprint, read_app, read_machine
from serve_warm.inputs import Input
from serve_warm.metrics import METRICS
from serve_warm.replica.journal import LOG_PREFIX
from serve_warm.replica.pack import build_facts
from serve_warm.replica.start import CompileCaches, Replica
from serve_warm.replica.warmup import Warmup
from serve_warm.report import CompileEvent, Counts, Report, Stage, Verdict
from serve_warm.stores.local import LocalStore
from serve_warm.trust.policy import Trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


KEY = new_key()
RECOMPILE_LIMIT = 8


class Refusal(Exception):
    pass


class Embedder:
    """The user's object: its attributes are searched for compiled callables."""

    def __init__(self) -> None:
        self.model = compiled(double)


class StandIn(OutsideServe):
    """A replica without Serve: what deployment.py is for a Serve deployment."""

    deployment, replica = "Embedder", "Embedder#1"

    def __init__(self, *sizes: int, trust: Trust | None = None) -> None:
        self.unwatched_compiles_before = unwatched_compiles()
        self.owner = Embedder()
        self.declared: Any = [
            Input(target="embed", name=f"size {size}", args=(torch.ones(size),), size=size)
            for size in sizes or (2, 3)
        ]
        self.asked = False
        self.calls: list[str] = []
        self._trust = trusting(KEY) if trust is None else trust

    async def warmup_inputs(self) -> Any:
        self.asked = True
        if isinstance(self.declared, Exception):
            raise self.declared
        return self.declared

    async def call(self, item: Input) -> None:
        self.calls.append(item.name)
        self.owner.model(*item.args)

    def check(self, inputs: Sequence[Input]) -> None:
        for item in inputs:
            if item.target_name != "embed":
                raise InputError(f"no method {item.target_name!r}", hint="embed")

    def trust(self) -> Trust | None:
        return self._trust

    def refusal(self, event: CompileEvent) -> BaseException:
        return Refusal(event.signature)


@pytest.fixture(autouse=True)
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give back what a start changes for the whole process."""
    caches = tmp_path / "caches"
    caches.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(caches))
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, str(caches))
    yield
    watch = watch_process()
    watch.forbidden = watch.on_event = None
    isa_checks().give({})


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(root=tmp_path / "store")


def here(replica: Replica, **changed: str) -> Fingerprint:
    """Return the fingerprint of this process and app, with some machine factors changed."""
    arguments = compile_arguments(replica.owner)
    return Fingerprint(
        machine={**read_machine(environment()), **changed},
        app=read_app(environment(), compile_arguments=arguments),
    )


def publish(store: LocalStore, built_for: Fingerprint, **options: Any) -> str:
    manifest, stored = build(deployment="Embedder", built_for=built_for, **options)
    return push(store, manifest, stored, [KEY])


def warm_up(replica: StandIn, *observers: Callable[[Report], None], **settings: Any) -> Warmup:
    start = Warmup(replica, WarmupConfig(**settings))
    start.observe(observers)
    asyncio.run(start.run())
    return start


def failed(
    kind: type[BaseException], replica: StandIn, **settings: Any
) -> tuple[Any, Report, Warmup]:
    """Return the error of a start that must fail, and what its report says then."""
    start = Warmup(replica, WarmupConfig(**settings))
    with pytest.raises(kind) as caught:
        asyncio.run(start.run())
    assert stance() == "default"
    return caught.value, start.report(), start


def pointed_at() -> Path:
    """Return where torch would write its caches now."""
    directory = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent
    assert Path(os.environ["TRITON_CACHE_DIR"]).parent == directory
    return directory


def stages_of(reports: list[Report]) -> list[str]:
    """Return the stages in the order in which they were told, each once where it stayed."""
    names = [report.stage.value for report in reports]
    return [name for before, name in zip([None, *names], names, strict=False) if name != before]


# --- the order -----------------------------------------------------------------------------


def test_the_stages_without_an_artifact():
    """Nothing is pulled where nothing is configured; the verdict is off and the start clean."""
    told: list[Report] = []
    replica = StandIn()

    report = warm_up(replica, told.append).report()

    assert stages_of(told) == ["PENDING", "REPLAYING", "PROVING", "READY"]
    assert [time.stage.value for time in report.stages] == ["PENDING", "REPLAYING", "PROVING"]
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.OFF)
    assert (report.degraded, report.warnings, report.error) == ((), (), "")
    assert (report.covered.proven, report.covered.expected) == (2, 2)
    assert report.artifact is None


def test_the_stages_with_an_artifact(store: LocalStore):
    """Pulled, verified and loaded before anything is replayed."""
    told: list[Report] = []
    replica = StandIn()
    publish(store, here(replica), raw={"cache": pack_directory(store.root.parent / "caches")})

    report = warm_up(replica, told.append, artifact=store.uri).report()

    order = ["PENDING", "PULLING", "VERIFYING", "LOADING", "REPLAYING", "PROVING"]
    assert stages_of(told) == [*order, "READY"]
    assert [time.stage.value for time in report.stages] == order


def test_the_gpu_that_is_read_is_the_serving_threads(monkeypatch: pytest.MonkeyPatch):
    """CUDA has a current device for each thread, and `__init__` sets that of the event loop."""
    serving = threading.get_ident()
    found = types.SimpleNamespace(
        name="A", major=9, minor=0, multi_processor_count=132, total_memory=80 * 2**30
    )
    for name, value in {
        "is_available": True,
        "is_initialized": True,
        "device_count": 2,
        "get_allocator_backend": "none that is known",
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    monkeypatch.setattr(
        torch.cuda, "current_device", lambda: 1 if threading.get_ident() == serving else 0
    )

    replica = StandIn()
    replica.owner.model = double  # Dynamo would ask for a device, too

    start = warm_up(replica)

    assert start.journal.fingerprint is not None
    assert start.journal.fingerprint.machine["gpu"] == "A sm_90 132 SMs 80 GiB as cuda:1"


def test_reports_follow_each_pass():
    """How many inputs are done begins anew with a pass, and stays as the proof left it."""
    told: list[Report] = []

    report = warm_up(StandIn(), told.append).report()

    progress = [(each.passes, each.inputs_done) for each in told if each.passes]
    steps = [
        now for before, now in zip([(0, 0), *progress], progress, strict=False) if now != before
    ]
    assert steps == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]
    assert report.inputs_done == 2


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
    """From the last byte on, and not once all is over."""
    told: list[Report] = []
    replica = StandIn()
    publish(store, here(replica), raw={"torch_bytes": torch_bytes or container()})
    if torch_bytes is None:
        tampered(store)

    report = warm_up(replica, told.append, artifact=store.uri, parts=("torch_bytes",)).report()

    assert report.verdict is Verdict.REFUSED
    assert stages_of(told) == [*stages, "PROVING", "READY"]


def test_inputs_are_replayed_largest_first_and_counted():
    """Three passes over the inputs by size, and the counts of the warm-up are those of it."""
    compiled(double)(torch.ones(9))  # before the start: not its own
    replica = StandIn(2, 5, 3)

    report = warm_up(replica).report()

    assert replica.calls == ["size 5", "size 3", "size 2"] * 3
    assert (report.passes, report.warmup.compiles, report.warmup.recompiles) == (3, 3, 2)
    assert [(result.name, result.compiles) for result in report.inputs] == [
        ("size 5", 1),
        ("size 3", 1),
        ("size 2", 1),
    ]
    assert report.after_ready == Counts()


def test_the_report_says_who_and_what():
    """Identity, versions, times and threads of the start; as JSON it is plain data."""
    report = warm_up(StandIn()).report()

    assert (report.application, report.deployment, report.replica) == (
        *("app", "Embedder", "Embedder#1"),
    )
    assert report.versions["torch"] == torch.__version__
    assert report.threads == (threading.get_native_id(),)
    assert report.pid == os.getpid()
    assert report.to_proof_s >= report.overhead_s > 0
    assert report.cpu_s > 0
    assert json.loads(json.dumps(report.to_json())) == report.to_json()


def test_the_report_says_how_long_it_took_since_the_replica_was_created():
    """Growing until it is ready, and then for ever what it was then; what is known stays."""
    told: list[Report] = []
    before_unix = time.time()
    created = time.clock_gettime(time.CLOCK_BOOTTIME) - 1000.0
    known = Report(application="app", created_boot_s=created, versions={"ray": "2.60.0"})
    start = Warmup(StandIn(), WarmupConfig(deadline_s=60.0), known=known)
    start.observe([told.append])

    asyncio.run(start.run())

    report = start.report()
    elapsed = [each.elapsed_s for each in told]
    assert 1000.0 < elapsed[0] < report.elapsed_s
    assert elapsed == sorted(elapsed)
    assert {each.elapsed_s for each in told if each.stage is Stage.READY} == {report.elapsed_s}
    assert {each.ready_unix for each in told if each.stage is not Stage.READY} == {None}
    assert report.ready_unix is not None
    assert before_unix <= report.ready_unix <= time.time()
    assert (report.deadline_s, report.artifact_configured) == (60.0, False)
    assert (report.application, report.versions["ray"]) == ("app", "2.60.0")
    assert report.versions["torch"] == torch.__version__


def test_a_failed_start_has_an_end_too():
    """Its time stops growing, and it was never ready."""
    _, report, start = failed(WarmupTimeout, Stuck(), deadline_s=0.5)

    assert report.elapsed_s > 0
    assert start.report().elapsed_s == report.elapsed_s
    assert report.ready_unix is None


def test_a_report_can_be_read_at_any_time():
    """Before the start, in the middle and after it, and the coverage only grows."""
    replica = StandIn()
    start = Warmup(replica, WarmupConfig())
    before = start.report()
    middle: list[Report] = []
    start.observe([middle.append])

    asyncio.run(start.run())

    assert (before.stage, before.covered.expected) == (Stage.PENDING, 0)
    proven = [report.covered.proven for report in middle]
    assert proven == sorted(proven)
    assert proven[-1] == 2


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
    """Make the folder for temporary files what an emptyDir is: 0777 and not sticky."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    ours = pwd.getpwuid(os.geteuid())
    elsewhere = pwd.struct_passwd((*ours[:5], str(home), ours[6]))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: elsewhere)
    monkeypatch.setattr(_private_folders, "LAST_BASE", home / "absent")
    Path(tempfile.gettempdir()).chmod(0o777)
    return home


def test_an_artifact_is_put_where_nobody_can_exchange_it(
    store: LocalStore, tmp_path: Path, open_temporary_folder: Path
):
    """Where others can rename what is in the folder for temporary files, another one is used."""
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
    """The start goes on cold, below the temporary folder as torch alone would, and says why."""
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
    """What the builder's probe was answered is given to this process'."""
    replica = StandIn()
    facts = {"isa_checks": {"VecAVX2 -mavx2 0123456789ab": True}}
    publish(store, here(replica), raw={"cache": packed_cache(tmp_path / "built")}, facts=facts)

    warm_up(replica, artifact=store.uri)

    assert dict(isa_checks()._given) == facts["isa_checks"]


def test_an_empty_store_is_a_miss(store: LocalStore):
    """The start goes on cold, says why, and is not degraded: it is proven like any other."""
    report = warm_up(StandIn(), artifact=store.uri).report()

    assert (report.stage, report.verdict, report.degraded) == (Stage.READY, Verdict.MISS, ())
    assert "has no artifact for 'Embedder'" in report.artifact.reason
    assert "serve-warm build" in report.artifact.reason
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
    """What the app compiles with is part of the fit, and named."""
    replica, other = StandIn(), StandIn()
    other.owner.model = compiled(double, dynamic=True)
    publish(store, here(other))

    report = warm_up(replica, artifact=store.uri).report()

    assert report.verdict is Verdict.MISS
    assert "compile_arguments: " in report.artifact.trace[0]


def test_a_miss_fails_by_policy(store: LocalStore):
    """`on_missing: fail` ends the start with the reason and the hint of the miss."""
    error, report, _ = failed(WarmupFailed, StandIn(), artifact=store.uri, on_missing="fail")

    assert error.message.startswith("verdict miss, and on_missing is fail: ")
    assert "serve-warm build" in error.hint
    assert (report.stage, report.verdict, report.error) == (
        *(Stage.FAILED, Verdict.MISS, str(error)),
    )


def tampered(store: LocalStore) -> None:
    for blob in (store.root / "blobs" / "sha256").iterdir():
        data = bytearray(blob.read_bytes())
        data[-1] ^= 1
        blob.write_bytes(data)


def cut_short(store: LocalStore) -> None:
    for blob in (store.root / "blobs" / "sha256").iterdir():
        blob.write_bytes(blob.read_bytes()[:-1])


def missing_blob(store: LocalStore) -> None:
    for blob in (store.root / "blobs" / "sha256").iterdir():
        blob.unlink()


def other_statement(store: LocalStore) -> None:
    for statement in (store.root / "statements" / "Embedder").iterdir():
        statement.write_bytes(statement.read_bytes().replace(b'"sig":"', b'"sig":"AAAA', 1))


@pytest.mark.parametrize("damage", [tampered, cut_short, missing_blob, other_statement])
def test_a_damaged_artifact_is_refused(
    store: LocalStore, tmp_path: Path, damage: Callable[[LocalStore], None]
):
    """Whatever is not as it was signed is not loaded, and the start goes on cold."""
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
    """A good signature by somebody else is as good as none."""
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

    assert error.message.startswith("verdict refused, and on_refused is fail: ")
    assert (report.stage, report.verdict) == (Stage.FAILED, Verdict.REFUSED)
    assert replica.calls == []


def test_a_miss_is_not_a_refusal(store: LocalStore):
    """Each policy is for its own verdict."""
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
    assert "torch did not accept the part torch_bytes" in start.report().artifact.reason
    assert list(caches.rglob("c244b2rga7kqcbbf2xhyb.so"))  # it had been unpacked
    assert start.caches.directory == pointed_at()
    assert list(start.caches.directory.rglob("*")) == []


def test_a_store_that_does_not_answer_is_tried_again_and_then_a_miss(
    store: LocalStore, caplog: pytest.LogCaptureFixture
):
    """The tries fit into the pull's deadline; availability does not depend on the store."""
    store.root.symlink_to(store.root)  # a loop: nothing can be listed in it

    report = warm_up(StandIn(), artifact=store.uri, pull_deadline_s=0.8).report()

    tries = [r for r in caplog.records if r.getMessage().startswith("try=")]
    assert len(tries) == 1
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.MISS)
    assert "cannot list" in report.artifact.reason


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
    """There the address is all there is to say."""
    start = warm_up(StandIn(), artifact=str(tmp_path / "artifacts"))
    reason = start.report().artifact.reason

    assert "relative" not in reason


def test_an_address_that_is_no_store_is_a_setting_to_correct():
    """A misspelt address is not a store that is empty: the start fails and says so."""
    _, report, _ = failed(ConfigError, StandIn(), artifact="s3://bucket?version=1")

    assert report.stage is Stage.FAILED
    assert "the address of a s3: store has a query" in report.error


# --- deadlines and inputs ------------------------------------------------------------------


class Stuck(StandIn):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.waits = asyncio.Event()

    async def call(self, item: Input) -> None:
        await super().call(item)
        if item.name == "size 2":
            self.waits.set()
            await asyncio.Event().wait()


def test_a_start_that_is_late_fails():
    """The default: a replica that is not warm in time does not take traffic."""
    error, report, _ = failed(WarmupTimeout, Stuck(), deadline_s=0.5)

    assert "input 'size 2' did not finish" in error.message
    assert (report.stage, report.verdict) == (Stage.FAILED, Verdict.OFF)
    assert "deadline_s" in report.error


def test_a_start_that_is_late_serves_by_policy():
    """Marked late and degraded, with what was reached; never like a clean one."""
    report = warm_up(Stuck(), deadline_s=0.5, on_deadline="serve").report()

    assert (report.stage, report.verdict) == (Stage.READY, Verdict.LATE)
    assert len(report.degraded) == 1
    assert report.degraded[0].startswith("late: input 'size 2' did not finish")
    assert (report.covered.proven, report.covered.expected) == (0, 2)
    assert report.warmup.compiles >= 1  # size 3 at least: half a second is little on a busy machine


class Undecided(StandIn):
    async def warmup_inputs(self) -> Any:
        await asyncio.Event().wait()


def test_inputs_that_are_never_declared_have_a_deadline():
    """Every wait of a start ends: also the one for the user's own method."""
    error, report, _ = failed(WarmupTimeout, Undecided(), deadline_s=0.2)

    assert error.message.startswith("warmup_inputs() did not return within")
    assert error.hint
    assert (report.stage, report.error) == (Stage.FAILED, str(error))


def test_a_start_without_inputs_is_late_by_policy():
    """What has proven nothing may serve where the policy says so, and never looks clean."""
    report = warm_up(Undecided(), deadline_s=0.2, on_deadline="serve").report()

    assert (report.stage, report.verdict, report.covered.expected) == (
        *(Stage.READY, Verdict.LATE, 0),
    )
    assert report.degraded[0].startswith("late: warmup_inputs()")


def test_a_gpu_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch):
    """A start with a driver that is too old runs on the CPU, if the app does, and says it once."""

    def init() -> None:
        message = "The NVIDIA driver on your system is too old (found version 12020). Please"
        raise RuntimeError(message)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    # A driver is there, wherever this test runs.
    exists, driver = Path.exists, Path("/dev/nvidiactl")
    monkeypatch.setattr(Path, "exists", lambda path, **how: path == driver or exists(path, **how))

    report = warm_up(StandIn()).report()

    [warning] = [line for line in report.warnings if "driver" in line]
    assert "cannot use this machine's GPU" in warning
    assert "too old (found version 12020)" in warning
    assert report.fingerprint["machine"]["gpu"] == "unknown"


def test_uncovered_inputs_are_served_as_degraded():
    """What cannot be proven is named, and the replica says that it is not clean."""
    replica = StandIn(*range(1, RECOMPILE_LIMIT + 3))

    report = warm_up(replica).report()

    assert report.stage is Stage.READY
    assert report.covered.proven == RECOMPILE_LIMIT
    assert report.degraded[0].startswith("uncovered: 2 of 10 inputs are not proven warm; ")
    assert "recompile_limit=16" in report.degraded[0]


def test_uncovered_inputs_fail_by_policy():
    """`on_uncovered: fail` is for those who declare what must be warm."""
    replica = StandIn(*range(1, RECOMPILE_LIMIT + 3))

    error, report, _ = failed(NotProven, replica, on_uncovered="fail")

    assert "2 of 10 inputs are not proven warm" in error.message
    assert "on_uncovered: serve" in error.hint
    assert (report.stage, error.stage) == (Stage.FAILED, "PROVING")


def test_an_input_that_raises_fails_the_start():
    """No policy lets a replica serve what it could not replay."""
    replica = StandIn()
    replica.declared = [Input(target="embed", name="wrong", args=())]

    error, report, _ = failed(ReplayFailed, replica)

    assert error.message.startswith("input 'wrong' raised TypeError")
    assert report.stage is Stage.FAILED
    assert report.error == str(error)


@pytest.mark.parametrize(
    ("declared", "kind", "text"),
    [
        ([], InputError, "Embedder.warmup_inputs() returned no inputs"),
        (7, InputError, "Embedder.warmup_inputs() returned int"),
        ([Input(target="rank")], InputError, "no method 'rank'"),
        (ValueError("no vocabulary"), ValueError, "ValueError: no vocabulary"),
    ],
)
def test_inputs_that_cannot_be_used_fail_the_start(declared: Any, kind: type[Exception], text: str):
    """A start that ends in the user's code has ended: its report says so, whatever was raised."""
    replica = StandIn()
    replica.declared = declared

    _, report, _ = failed(kind, replica)

    assert report.stage is Stage.FAILED
    assert text in report.error
    assert replica.calls == []


def test_inputs_that_are_refused_are_known():
    """Logs and `warmup_requests()` say what was declared, also where a target does not exist."""
    replica = StandIn()
    replica.declared = [Input(target="rank")]
    start = Warmup(replica, WarmupConfig())

    with pytest.raises(InputError, match="no method"):
        asyncio.run(start.run())

    assert [item.target_name for item in start.journal.inputs] == ["rank"]


def test_a_cancelled_start_has_failed():
    """Who reads the state of a replica that Serve stopped does not see it replaying for ever."""

    async def run() -> Report:
        replica = Stuck()
        start = Warmup(replica, WarmupConfig())
        task = asyncio.ensure_future(start.run())
        await replica.waits.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        return start.report()

    report = asyncio.run(run())

    assert (report.stage, report.error) == (Stage.FAILED, "CancelledError: ")


def test_the_missing_compiler_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Not after a download and a minute of tracing: the inputs are not even asked for."""
    if torch.cuda.is_available():
        pytest.skip("with a GPU a C++ compiler is not required")
    monkeypatch.setenv("PATH", str(tmp_path))
    replica = StandIn()
    replica.owner.model = torch.compile(double)

    error, report, _ = failed(CompilerMissing, replica, artifact=str(tmp_path / "store"))

    assert "looked for g++" in error.message
    assert "g++" in report.error
    assert not replica.asked
    assert [time.stage for time in report.stages] == [Stage.PENDING]


def test_what_is_not_compiled_by_inductor_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An image without g++ serves a model that Inductor does not compile; the lack is named."""
    monkeypatch.setenv("PATH", str(tmp_path))

    report = warm_up(StandIn()).report()

    assert report.covered.proven == report.covered.expected == 2
    assert torch.cuda.is_available() or "looked for g++" in report.warnings[0]


class Restless(StandIn):
    """Its largest input has another shape at each replay."""

    async def call(self, item: Input) -> None:
        size = 10 + len(self.calls) if item.size == 9 else item.size
        self.calls.append(item.name)
        self.owner.model(torch.ones(size))


def test_an_input_that_is_never_quiet_costs_its_proof_and_no_replica():
    """Under on_uncovered: serve the others are proven, and the replica is marked as degraded."""
    report = warm_up(Restless(2, 3, 9), max_passes=2).report()

    assert report.stage is Stage.READY
    assert [result.name for result in report.inputs if not result.proven] == ["size 9"]
    assert (report.covered.expected, report.covered.proven) == (3, 2)
    assert "size 9" in report.degraded[0]


def test_an_input_that_is_never_quiet_fails_by_policy():
    """Under on_uncovered: fail the replica does not become ready."""
    error, _, _ = failed(NotProven, Restless(2, 9), max_passes=2, on_uncovered="fail")

    assert "still compiles" in error.message


def test_a_trust_file_that_cannot_be_used_refuses_and_does_not_stop(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One bad trust file lets nothing in and takes no replica down."""
    bad = tmp_path / "trust.toml"
    bad.write_text("[[keys")
    monkeypatch.setattr("serve_warm.trust.files.default_trust_files", lambda: (bad,))
    replica = StandIn()
    replica._trust = None
    publish(store, here(replica))

    report = warm_up(replica, artifact=store.uri).report()

    assert (report.stage, report.verdict) == (Stage.READY, Verdict.REFUSED)
    assert report.artifact is not None
    assert "trust.toml" in report.artifact.reason


def test_compiling_before_the_watch_is_never_a_full_hit(store: LocalStore, tmp_path: Path):
    """What __init__ compiled was compiled without the artifact: it is named, and no full hit."""
    replica = StandIn()
    publish(store, here(replica), raw={"cache": packed_cache(tmp_path / "built")})
    replica.unwatched_compiles_before -= 1

    report = warm_up(replica, artifact=store.uri).report()

    assert report.verdict is Verdict.PARTIAL
    assert "compiled in __init__" in report.warnings[0]


CAPTURE = CompileEvent(
    kind="capture",
    function="CUDA graph of compile 0/0",
    signature="",
    reason="",
    seconds=0.01,
    thread=0,
    at_unix=0.0,
)


class Capturing(StandIn):
    """Runs once before a capture and captures once, as the watch hears of it; maybe on own threads.

    What a GPU would bring about, told to the watch as its hooks tell it. Nothing is captured.
    """

    def __init__(self, *, own_threads: bool) -> None:
        super().__init__(2)
        self._own_threads = own_threads

    async def call(self, item: Input) -> None:
        times = self.calls.count(item.name)
        if times == 0:
            watch_process().note_eager_run()
        if times == 1:
            watch_process().note(CAPTURE)
        if self._own_threads:
            self.calls.append(item.name)
            # A new thread for each call, as for a request to a sync handler.
            with ThreadPoolExecutor(1) as pool:
                await asyncio.get_running_loop().run_in_executor(pool, self.owner.model, *item.args)
        else:
            await super().call(item)


def test_replay_goes_on_until_capturing_is_over():
    """A pass in which a CUDA graph is captured is not a quiet one, nor is the one before it."""
    report = warm_up(Capturing(own_threads=False)).report()

    assert (report.warmup.eager_runs, report.warmup.captures) == (1, 1)
    assert report.passes == 4  # one before the capture, one that captures, a quiet one, the proof
    assert report.after_ready.captures == 0


class Skipping(StandIn):
    """Is told by torch, at its first replay, that its graph is not captured."""

    async def call(self, item: Input) -> None:
        if not self.calls:
            skip = dataclasses.replace(
                CAPTURE, kind="skip", function="CUDA graph", reason="skipping due to a CPU node"
            )
            watch_process().note(skip)
        await super().call(item)


def test_a_graph_that_is_not_captured_is_named():
    """The replica is warm and serves; who asked for CUDA graphs hears that there is none."""
    report = warm_up(Skipping(2)).report()

    assert report.stage is Stage.READY
    [warning] = report.warnings
    assert "1 CUDA graph is not captured" in warning
    assert "skipping due to a CPU node" in warning


def test_cuda_graphs_on_threads_that_end_are_refused():
    """What was recorded on the thread of one request is lost to the next: it is no replica."""
    error, report, _ = failed(WarmupFailed, Capturing(own_threads=True))

    assert "CUDA graphs belong to the thread that recorded them" in error.message
    assert "on_model_thread" in error.hint
    assert report.stage is Stage.FAILED


class Blocking(StandIn):
    """Blocks the event loop with its first replay, until it is told or for long enough."""

    def __init__(self, *, seconds: float = 60.0) -> None:
        super().__init__(2)
        self.seconds = seconds
        self.go_on = threading.Event()
        self.threads: set[str] = set()

    async def call(self, item: Input) -> None:
        await super().call(item)
        self.threads |= {thread.name for thread in threading.enumerate()}
        if len(self.calls) == 1:
            self.go_on.wait(self.seconds)


def test_a_blocked_loop_past_its_deadline_ends_the_process_with_the_reason(
    caplog: pytest.LogCaptureFixture,
):
    """In Serve, under `fail`: the report says FAILED and what blocks before the process ends."""
    import_compiler()  # seconds, which are not to be part of the deadline
    replica = Blocking()
    told: list[Report] = []
    ended: list[Report] = []

    def end_process() -> None:
        ended.append(start.report())
        replica.go_on.set()  # where a process really ends, nothing comes back

    start = Warmup(replica, WarmupConfig(deadline_s=3), end_process=end_process)
    start.observe([told.append])
    with pytest.raises(WarmupTimeout):
        asyncio.run(start.run())

    [report] = ended
    assert report.stage is Stage.FAILED
    assert "input 'size 2' did not finish within" in report.error
    assert "the event loop is blocked in wait (threading.py:" in report.error
    assert "on_model_thread" in report.error
    assert told[-1].stage is Stage.FAILED
    assert "warm-up failed: input" in caplog.text


@pytest.mark.parametrize("limit", ["deadline_s", "input_deadline_s"])
def test_a_blocked_loop_is_late_meanwhile_and_when_it_returns(limit: str):
    """Under `serve`: whoever looks sees it within the block; nothing ends, and it serves late."""
    import_compiler()
    replica = Blocking()
    seen: list[Report] = []

    def look(report: Report) -> None:
        if report.verdict is Verdict.LATE and not replica.go_on.is_set():
            seen.append(report)
            replica.go_on.set()

    def end_process() -> None:
        raise AssertionError

    settings = {limit: 3, "on_deadline": "serve"}
    start = Warmup(replica, WarmupConfig(**settings), end_process=end_process)
    start.observe([look])
    asyncio.run(start.run())

    report = start.report()
    assert [(each.stage, each.verdict) for each in seen] == [(Stage.REPLAYING, Verdict.LATE)]
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.LATE)
    [degraded] = report.degraded
    assert degraded.startswith("late: input 'size 2' did not finish within")
    assert replica.calls == ["size 2"]


@pytest.mark.parametrize("limit", ["deadline_s", "input_deadline_s"])
def test_outside_of_serve_a_blocked_loop_is_waited_for(limit: str):
    """No test process of a user ends: the error comes when the loop goes on."""
    import_compiler()
    replica = Blocking(seconds=3.5)

    error, report, _ = failed(WarmupTimeout, replica, **{limit: 3})

    assert "input 'size 2' did not finish" in error.message
    assert report.stage is Stage.FAILED
    assert "serve_warm-watchdog" not in replica.threads


def test_inputs_that_block_the_loop_past_the_deadline_are_late():
    """A `warmup_inputs()` that returns too late has been too late."""
    import_compiler()
    replica = StandIn()

    async def declare() -> Any:
        time.sleep(1.2)  # noqa: ASYNC251 - as user code does
        return replica.declared

    replica.warmup_inputs = declare

    error, _, _ = failed(WarmupTimeout, replica, deadline_s=1)

    assert error.message == "warmup_inputs() did not return within 1 s"
    assert replica.calls == []


class Guarded(StandIn):
    """Answers inputs of one element by itself, and all others with its model."""

    async def call(self, item: Input) -> None:
        if item.args[0].numel() > 1:
            await super().call(item)


def test_an_input_that_calls_nothing_compiled_degrades_a_replica():
    """By default it serves; who looks sees which input it is, and why it proves nothing."""
    report = warm_up(Guarded(1, 2)).report()

    assert report.stage is Stage.READY
    assert (report.covered.proven, report.covered.expected) == (1, 2)
    [degraded] = report.degraded
    assert "uncovered: 1 of 2 inputs are not proven warm; 'size 1' makes no compiled" in degraded
    assert report.warnings == ()


def test_an_input_that_calls_nothing_compiled_can_fail_the_start():
    """`on_uncovered: fail`, where no input at all reaches the model that is there."""
    error, report, _ = failed(NotProven, Guarded(1), on_uncovered="fail")

    assert "1 of 1 inputs are not proven warm; 'size 1' makes no compiled call" in error.message
    assert report.stage is Stage.FAILED


@pytest.mark.parametrize(
    ("others", "said"), [((), "declare inputs that reach it"), (("Encoder",), "(Encoder) warms up")]
)
def test_an_app_that_compiles_nothing_says_so(others: tuple[str, ...], said: str):
    """It is no error, and its inputs count as ever: a router has nothing to prove."""
    replica = StandIn()
    replica.owner.model = double
    replica.waits_for = lambda: others

    report = warm_up(replica, on_uncovered="fail").report()

    assert (report.covered.proven, report.degraded) == (2, ())
    [warning] = report.warnings
    assert warning.startswith("nothing compiled was found in this process")
    assert said in warning


class Batched(StandIn):
    """Stacks the calls that are made at once, as `@serve.batch` does up to 4."""

    def __init__(self, *sizes: int, pads: bool) -> None:
        super().__init__()
        self.pads = pads
        self.declared = [
            Input(target="embed", name=f"batch of {size}", concurrency=size, size=size)
            for size in sizes
        ]

    async def call(self, item: Input) -> None:
        self.calls.append(item.name)
        self.owner.model(torch.ones(max(self.sizes) if self.pads else item.concurrency))

    @property
    def sizes(self) -> list[int]:
        return [item.concurrency for item in self.declared]

    def largest_batch(self) -> int:
        return 4


def test_batches_that_nobody_declared_are_named_before_ready():
    """Traffic forms them, and each would compile for its users; nothing is compiled for it."""
    replica = Batched(4, 2, 1, pads=False)

    report = warm_up(replica).report()

    [warning] = report.warnings
    assert warning.startswith("embed: batches of 3 requests would compile in traffic")
    assert "range(1, 5)" in warning
    assert (report.covered.proven, report.warmup.compiles) == (3, 3)


def test_a_batch_that_is_padded_has_no_gaps():
    """What is looked at is whether it would compile, not what was declared."""
    report = warm_up(Batched(4, pads=True)).report()

    assert report.warnings == ()


class Small(StandIn):
    """Has no memory for its largest input, ever."""

    async def call(self, item: Input) -> None:
        if item.name == "size 9":
            message = "CUDA out of memory. Tried to allocate 9 GiB."
            raise torch.OutOfMemoryError(message)
        await super().call(item)


def test_an_input_that_lacks_memory_costs_its_proof_and_no_replica(
    store: LocalStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Fewer sizes are warm; verdict, report, log and metric say so, and which is missing."""
    replica = Small(2, 9, 3)
    publish(store, here(replica), raw={"cache": packed_cache(tmp_path / "built")})

    report = warm_up(replica, artifact=store.uri).report()

    assert report.stage is Stage.READY
    assert report.verdict is Verdict.PARTIAL
    assert (report.covered.expected, report.covered.proven) == (3, 2)
    [why] = report.degraded
    assert why.startswith("uncovered: 1 of 3 inputs are not proven warm; 'size 9' left out, memory")
    [metric] = [metric for metric in METRICS if metric.name == "serve_warm_inputs_left_out"]
    assert metric.read(report) == {(): 1.0}
    assert "left out input='size 9'" in caplog.text
    assert "not proven: size 9: left out" in report.text()


def test_an_input_that_lacks_memory_fails_by_policy():
    """Under on_uncovered: fail a replica has all its sizes, or is none."""
    error, _, _ = failed(NotProven, Small(2, 9), on_uncovered="fail")

    assert "'size 9' left out" in error.message


class Growing(StandIn):
    """Captures one graph for more and more sizes, as the watch hears of it."""

    async def call(self, item: Input) -> None:
        if item.name not in self.calls:
            graph = {"function": "CUDA graph of compile 3/0", "signature": item.name}
            watch_process().note(dataclasses.replace(CAPTURE, **graph, at_unix=time.time()))
        await super().call(item)


@pytest.mark.parametrize("many", [8, 9])
def test_a_graph_of_many_sizes_is_named(many: int):
    """From as many on as torch warns of; each has memory of its own."""
    replica = Growing(*range(2, 2 + many))
    replica.owner.model = compiled(double, recompile_limit=64)

    report = warm_up(replica).report()

    said = [line for line in report.warnings if "is captured for 9 sizes" in line]
    assert len(said) == (many > 8)
    assert all("cudagraph_capture_sizes" in line for line in said)


def test_a_capture_of_another_thread_in_traffic_is_advised_on(caplog: pytest.LogCaptureFixture):
    """Not an input is missing but a thread is one too many; the event names it."""
    start = warm_up(StandIn(2))
    reason = "captured in thread 'my-pool_0', all before it in 'serve_warm-model_0'"

    watch_process().note(
        dataclasses.replace(CAPTURE, reason=reason, thread=-1, at_unix=time.time())
    )

    [line] = [r.getMessage() for r in caplog.records if "after ready: kind" in r.getMessage()]
    assert "my-pool_0" in line
    assert "await self.on_model_thread(self.model, ...)" in line
    assert "warmup_inputs()" not in line
    assert str(start.report().events[-1]).endswith(reason)
    assert start.report().after_ready.captures == 1


def test_a_capture_that_is_made_again_in_traffic_is_advised_on(caplog: pytest.LogCaptureFixture):
    """The input is declared, and what its graph reads lies somewhere else now."""
    start = warm_up(StandIn(2))
    reason = "captured 1 times before: static input 3 moved"

    watch_process().note(
        dataclasses.replace(
            CAPTURE, reason=reason, thread=threading.get_native_id(), at_unix=time.time()
        )
    )

    [line] = [r.getMessage() for r in caplog.records if "after ready: kind" in r.getMessage()]
    assert "in place" in line
    assert "warmup_inputs()" not in line
    assert start.report().after_ready.captures == 1


# --- observers -----------------------------------------------------------------------------


def test_an_observer_that_raises_is_dropped_and_the_start_goes_on(
    caplog: pytest.LogCaptureFixture,
):
    """Losing a metric is no reason to lose the replica; it is said once, with the traceback."""
    calls = 0
    told: list[Report] = []

    def broken(report: Report) -> None:
        nonlocal calls
        calls += 1
        if report.stage is Stage.REPLAYING:
            raise OSError("no space left")

    report = warm_up(StandIn(), broken, told.append).report()

    raised = [record for record in caplog.records if record.exc_info]
    assert report.stage is Stage.READY
    assert calls == 2  # PENDING, and REPLAYING where it raised
    assert stages_of(told) == ["PENDING", "REPLAYING", "PROVING", "READY"]
    assert len(raised) == 1
    assert "no space left" in str(raised[0].exc_info[1])


def test_the_last_report_that_is_told_is_the_last_one():
    """An observer that shows one report shows the result, seconds of the proof included."""
    told: list[Report] = []

    report = warm_up(StandIn(), told.append).report()

    assert told[-1].stage is Stage.READY
    assert told[-1].to_proof_s == report.to_proof_s > 0
    assert told[-1].cpu_s == report.cpu_s > 0


def test_failing_is_told():
    """An observer sees FAILED with its reason before the error is raised."""
    told: list[Report] = []
    replica = StandIn()
    replica.declared = []
    start = Warmup(replica, WarmupConfig())
    start.observe([told.append])

    with pytest.raises(InputError):
        asyncio.run(start.run())

    assert told[-1].stage is Stage.FAILED
    assert "returned no inputs" in told[-1].error


# --- threads -------------------------------------------------------------------------------


class Pooled(StandIn):
    """Calls its model in a worker thread that Serve may end, as sync handlers are called."""

    async def call(self, item: Input) -> None:
        with ThreadPoolExecutor(1) as worker:
            await asyncio.get_running_loop().run_in_executor(worker, self.owner.model, *item.args)


def test_compiled_calls_on_passing_threads_are_warned_about():
    """The warning has the one line that keeps the model on one thread."""
    report = warm_up(Pooled()).report()

    assert report.stage is Stage.READY
    assert len(report.warnings) == 1
    assert "await self.on_model_thread(self.model, ...)" in report.warnings[0]
    assert threading.get_native_id() not in report.threads


# --- after ready ---------------------------------------------------------------------------


def test_a_compile_in_traffic_is_counted_and_named(caplog: pytest.LogCaptureFixture):
    """Counted apart from the warm-up, with input and reason, in the report and in the log."""
    replica = StandIn(2)
    start = warm_up(replica)
    quiet = start.report()

    replica.owner.model(torch.ones(2))
    replica.owner.model(torch.ones(7))

    report = start.report()
    (event,) = report.events
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("after ready")]
    assert quiet.after_ready == Counts()
    assert quiet.events == ()
    assert (report.after_ready.compiles, report.after_ready.recompiles) == (1, 1)
    assert report.warmup == quiet.warmup
    assert (event.kind, event.signature) == ("recompile", "x=float32[7]")
    assert "input=[x=float32[7]]" in line
    assert "warmup_inputs()" in line


def test_many_compiles_in_traffic_are_few_lines(caplog: pytest.LogCaptureFixture):
    """A client with odd shapes does not fill the log; the counts miss none."""
    replica = StandIn(2)
    replica.owner.model = compiled(double, recompile_limit=64)
    start = warm_up(replica)

    for size in range(3, 23):
        replica.owner.model(torch.ones(size))

    lines = [r for r in caplog.records if "after ready: kind" in r.getMessage()]
    assert start.report().after_ready.compiles == 20
    assert len(lines) == 1


def test_a_compile_in_traffic_is_refused_by_policy():
    """`after_ready: forbid`: the request gets the refusal, warm inputs work, nothing compiles."""
    replica = StandIn(2)
    start = warm_up(replica, after_ready="forbid")

    with pytest.raises(Refusal, match=r"x=float32\[7\]"):
        replica.owner.model(torch.ones(7))
    result = replica.owner.model(torch.ones(2))

    report = start.report()
    assert result.tolist() == [3.0, 3.0]
    assert report.after_ready.compiles == 0
    assert [event.kind for event in report.events] == ["forbidden"]


def test_nothing_is_refused_before_ready():
    """The policy is for traffic: a start under it compiles like any other."""
    report = warm_up(StandIn(2, 3), after_ready="forbid").report()

    assert report.warmup.compiles == 2
    assert report.covered.proven == 2


def test_facts_of_a_build_are_json():
    """They travel in a signed statement."""
    start = warm_up(StandIn())

    facts = build_facts(start.report())

    assert json.loads(json.dumps(facts)) == facts
    assert facts["inputs"] == ["size 3", "size 2"]
    assert facts["passes"] == 3


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


@pytest.mark.parametrize("kind", [RuntimeError, InputError])
def test_what_user_code_raises_is_cut(kind: type[Exception], caplog: pytest.LogCaptureFixture):
    """A message of megabytes is its beginning in the report, the state file and the log."""
    replica = StandIn()
    hint = {"hint": "correct it"} if kind is InputError else {}
    replica.declared = kind("it broke " + "x" * 1_500_000, **hint)

    _, report, _ = failed(kind, replica)

    assert "it broke" in report.error
    assert len(report.error) < 1100
    assert report.error.endswith("hint: correct it" if hint else "...")
    assert len(caplog.text) < 20_000


def test_what_user_code_raises_is_redacted():
    """Its text goes into the report, the state file and the log."""
    replica = StandIn()
    replica.declared = RuntimeError("GET https://host/x?X-Amz-Signature=0a1b2c failed")

    _, report, _ = failed(RuntimeError, replica)

    assert "RuntimeError: GET https://host/x" in report.error
    assert "0a1b2c" not in str(report.to_json())


def test_a_credential_that_user_code_repeats_is_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    """A server's echo of a variable's value is hidden in the report, its text, state and log."""
    echoed = "correct horse battery staple"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", echoed)
    replica = StandIn()

    async def call(_item: Input) -> None:
        raise RuntimeError(f"the server says: {echoed}")

    replica.call = call  # type: ignore[method-assign]
    error, report, _ = failed(ReplayFailed, replica)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(report.to_json()))

    for text in (str(error), report.text(), state.read_text(), caplog.text):
        assert echoed not in text
    assert "the server says: [hidden]" in report.error


def test_torchs_remote_cache_is_warned_of(monkeypatch: pytest.MonkeyPatch):
    """Torch loads what it finds there without a signature; off, there is nothing to say."""
    names = ["TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO"]
    for name in names:
        monkeypatch.setenv(name, "1")
    on = warm_up(StandIn()).report()
    for name in names:
        monkeypatch.setenv(name, "0")
    off = warm_up(StandIn()).report()

    assert [w for w in on.warnings if ", ".join(names) in w]
    assert not [w for w in off.warnings if "REMOTE" in w]


def test_ranks_without_a_process_group_are_warned_of():
    """Such a process starts by itself, as it does where nothing was asked for."""
    asked = warm_up(StandIn(), ranks="together").report()
    not_asked = warm_up(StandIn()).report()

    assert [w for w in asked.warnings if w.startswith("ranks: together does nothing here")]
    assert asked.stage is Stage.READY
    assert not [w for w in not_asked.warnings if "ranks" in w]


def test_a_torch_without_profiles_is_warned_of_once(monkeypatch: pytest.MonkeyPatch):
    """The setting does nothing there, and costs nothing: the start is as without it."""
    monkeypatch.delattr("torch._dynamo.pgo.reset_code_state")

    report = warm_up(StandIn(), pgo="on").report()

    assert [w for w in report.warnings if w.startswith("pgo: on does nothing here: torch 2.")]
    assert len(report.warnings) == 1
    assert report.stage is Stage.READY


def test_loggers_say_each_stage_once(caplog: pytest.LogCaptureFixture):
    """One line a stage, with facts that can be searched for."""
    caplog.set_level(logging.INFO, "serve_warm")

    warm_up(StandIn())

    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("stage=")]
    assert lines == [
        f"stage={stage} deployment=Embedder replica=Embedder#1"
        for stage in ("PENDING", "REPLAYING", "PROVING", "READY")
    ]


# --- the log as data -----------------------------------------------------------------------


class JsonLog(logging.Handler):
    """What Serve writes with `encoding: JSON`, and as text, by Ray's own formatters."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JSONFormatter())
        self._text = ServeFormatter("Embedder", "Embedder#1")
        self.records: list[dict[str, Any]] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(json.loads(self.format(record)))
        self.lines.append(self._text.format(record))

    def events(self) -> list[dict[str, Any]]:
        """Return our own fields of each record that has some, without the prefix."""
        return [
            {key.removeprefix(LOG_PREFIX): value for key, value in record.items()}
            for record in self.records
            if f"{LOG_PREFIX}event" in record
        ]


@pytest.fixture(name="log")
def log_fixture() -> Iterator[JsonLog]:
    handler = JsonLog()
    logger = logging.getLogger("serve_warm")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_stages_and_verdict_are_fields_of_json_logs(store: LocalStore, log: JsonLog):
    """One record a stage, with how long the one before took, and one for what came of it."""
    replica = StandIn()
    key = publish(store, here(replica), raw={"cache": packed_cache(store.root.parent)})

    report = warm_up(replica, artifact=store.uri).report()

    *stages, last = log.events()
    order = ["pending", "pulling", "verifying", "loading", "replaying", "proving", "ready"]
    assert [(each["event"], each["stage"]) for each in stages] == [("stage", s) for s in order]
    assert [each.get("previous") for each in stages] == [None, *order[:-1]]
    assert all(each["seconds"] > 0 for each in stages[1:])
    elapsed = [each["elapsed_s"] for each in stages]
    assert elapsed == sorted(elapsed)
    assert [each["statement"] for each in stages[3:]] == [key] * 4
    assert [each["inputs_expected"] for each in stages] == [0, *[2] * 6]
    assert (last["event"], last["stage"], last["verdict"]) == ("verdict", "ready", "full_hit")
    assert (last["elapsed_s"], last["inputs_done"]) == (report.elapsed_s, 2)
    assert last["reason"] == ""
    assert {each["application"] for each in log.events()} == {"app"}


def test_a_miss_and_its_reason_are_fields(store: LocalStore, log: JsonLog):
    """Where the artifact was put aside, and again with the verdict at the end."""
    warm_up(StandIn(), artifact=store.uri)

    (put_aside,) = (each for each in log.events() if each["event"] == "artifact")
    last = log.events()[-1]
    assert put_aside["verdict"] == last["verdict"] == "miss"
    assert put_aside["stage"] == "pulling"
    assert put_aside["reason"] == last["reason"]
    assert "has no artifact for 'Embedder'" in last["reason"]


def test_a_failed_start_and_its_reason_are_fields(log: JsonLog):
    """The outcome as the metrics have it, and the error."""
    replica = StandIn()
    replica.declared = []
    failed(ConfigError, replica)

    *_, stage, last = log.events()

    assert (stage["event"], stage["stage"], stage["previous"]) == ("stage", "failed", "pending")
    assert (last["event"], last["stage"], last["verdict"]) == ("verdict", "failed", "failed")
    assert last["reason"]


def test_a_compile_in_traffic_is_fields(log: JsonLog):
    """What was compiled, for which input, for how long and why."""
    replica = StandIn(2, 3)
    warm_up(replica)
    replica.owner.model(torch.ones(7))

    (event,) = (each for each in log.events() if each["event"] == "compile")

    assert (event["kind"], event["stage"], event["events"]) == ("recompile", "ready", 1)
    assert "double" in event["function"]
    assert "7" in event["signature"]
    assert event["seconds"] > 0
    assert event["reason"]


def test_text_logs_are_as_readable_as_ever(store: LocalStore, log: JsonLog):
    """Serve's text has the message and nothing of the fields."""
    replica = StandIn(2, 3)
    warm_up(replica, artifact=store.uri)
    replica.owner.model(torch.ones(7))

    assert len(log.lines) == len(log.records) > 5
    for line, record in zip(log.lines, log.records, strict=True):
        assert line.endswith(f" -- {record['message']}")


def test_fields_are_documented_and_clash_with_none(store: LocalStore, log: JsonLog):
    """Each has our prefix: `logging` raises where a record has such a field already."""
    replica = StandIn(2, 3)
    warm_up(replica, artifact=store.uri)
    replica.owner.model(torch.ones(7))
    document = (Path(__file__).parents[1] / "docs" / "reference.md").read_text()
    plain = {"asctime", "levelname", "message", "filename", "lineno", "process", "timestamp_ns"}

    found = {key for record in log.records for key in record} - plain

    assert {key for key in found if not key.startswith(LOG_PREFIX)} == set()
    assert [key for key in found if f"`{key}`" not in document] == []
