# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What is done before `__init__` ends: used where it is what the start wants, and else harmless.

Artifacts are signed and stores are folders. That something was done early is shown by what is gone
when the start begins, never by a clock.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from artifacts import new_key, packed_cache, trusting
from compiled import compiled, double
from conftest import wait_until
from homes import move_home, write_trust_file
from serve_warm import _private_folders
from serve_warm.artifact.archive import pack_directory
from serve_warm.artifact.node_cache import default_root
from serve_warm.config import WarmupConfig
from serve_warm.errors import InputError
from serve_warm.precompile.entries.table import EntryTable
from serve_warm.replica.start.prefetch import Prefetch, PrefetchedArtifact
from serve_warm.replica.start.stages import Warmup
from serve_warm.report import Report, Stage, Verdict
from serve_warm.stores.local import LocalStore
from serve_warm.trust.files import trust_lines
from starts import (  # noqa: F401 - fixtures
    KEY,
    StandIn,
    cut_short,
    here,
    missing_blob,
    offer,
    other_statement,
    pointed_at,
    process,
    publish,
    store_fixture,
    tampered,
)

pytestmark = pytest.mark.timeout(400)

HANG_S = 300.0
ENDS_S = 120.0
"""Less than any time-out of a store."""
OLDER, NEWER = (f"2026-11-20T10:00:0{second}.000000Z" for second in range(2))
KERNEL = Path("24", "c244b2rga7kqcbbf2xhyb.so")


def begun(replica: StandIn, **settings: Any) -> Prefetch:
    work = Prefetch(WarmupConfig(**settings), place=replica.place, trust=replica.trust())
    work.begin()
    return work


def ended(work: Prefetch) -> PrefetchedArtifact | None:
    """Wait until the pull has done all it can, like a long `__init__`."""
    return work._taken.result(HANG_S)


def prefetched(replica: StandIn, **settings: Any) -> tuple[Prefetch, PrefetchedArtifact | None]:
    work = begun(replica, **settings)
    return work, ended(work)


def offered(store: LocalStore, **raw: bytes) -> tuple[StandIn, Prefetch, PrefetchedArtifact]:
    """Return a replica and what was pulled for it during its `__init__`."""
    replica = StandIn()
    offer(store, replica, raw)
    work, taken = prefetched(replica, artifact=store.uri)
    assert taken is not None
    return replica, work, taken


def start(replica: StandIn, work: Prefetch, **settings: Any) -> Warmup:
    warmup = Warmup(replica, WarmupConfig(**settings), prefetched=work)
    asyncio.run(warmup.run())
    return warmup


def hidden(report: Report) -> dict[str, float]:
    return {time.stage.value: time.hidden_s for time in report.stages if time.hidden_s}


def thrown_away(taken: PrefetchedArtifact) -> bool:
    """Whether its files are closed and its directory is gone, now or in a moment."""
    folders = [taken.directory, *taken.entries.folders.values()]
    wait_until("its directories are removed", lambda: not any(f.exists() for f in folders))
    return not taken.entries.tables and all(file.closed for file in taken.pulled.raw.values())


@contextmanager
def node_locked(store: LocalStore) -> Iterator[Callable[[], None]]:
    """Be another process of this node that downloads: whoever fetches waits until it is called."""
    (blob,) = (store.root / "blobs" / "sha256").iterdir()
    _private_folders.make_private(default_root())
    lock = os.open(default_root() / f"{blob.name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield lambda: fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)


def parts(work: Prefetch) -> list[str]:
    return [span.name for span in work._timeline.spans()]


def fetching(work: Prefetch) -> None:
    """Wait until it has come to the node's cache."""
    wait_until("this machine is read", lambda: "fingerprint" in parts(work))
    assert not work._taken.done()


# --- used ----------------------------------------------------------------------------------
def test_what_was_pulled_during_init_is_loaded(store: LocalStore):
    """The start needs neither the store nor the node's cache, and reports the hidden time."""
    replica, work, taken = offered(store)
    key = taken.pulled.chosen.key
    shutil.rmtree(store.root)
    shutil.rmtree(default_root())
    warmup = start(replica, work, artifact=store.uri)
    report = warmup.report()
    assert (report.verdict, report.artifact.statement) == (Verdict.FULL_HIT, key)
    (chosen,) = report.artifact.trace
    # What follows is about code and model, which other tests of this process may have made known.
    assert chosen.startswith(f"{key}: accepted, created {report.artifact.created}")
    assert report.artifact.signers == ("key0",)
    assert report.artifact.raw_bytes > report.artifact.stored_bytes > 0
    assert report.artifact.reason == ""
    assert hidden(report).keys() == {"PULLING", "VERIFYING", "LOADING"}
    assert report.to_json()["stages"][-1]["hidden_s"] == 0
    lines = [line for line in report.text().splitlines() if "during __init__" in line]
    assert [line.split()[0] for line in lines] == ["pulling", "verifying", "loading"]
    assert warmup.caches.directory == pointed_at() == taken.directory
    assert (warmup.caches.directory / KERNEL).read_bytes() == bytes(range(256)) * 64
    assert all(file.closed for file in taken.pulled.raw.values())


def packed_entries(index: bytes | None = None) -> bytes:
    """Return a part with entries: of an empty table, or with this index."""
    with _private_folders.temporary_folder() as folder:
        files = EntryTable({}, {}).to_files(3) if index is None else {"index.json": index}
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return pack_directory(folder)


def test_entries_that_were_read_during_init_are_loaded(store: LocalStore):
    """The start does not read them again, and keeps the folder from which it opens libraries."""
    replica, work, taken = offered(store, precompiled=packed_entries(), exported=packed_entries())
    folders = taken.entries.folders
    assert [*folders] == ["precompiled", "exported"]
    for folder in folders.values():
        (folder / "index.json").write_bytes(b"read again")
    report = start(replica, work, artifact=store.uri).report()
    assert (report.verdict, report.warnings) == (Verdict.FULL_HIT, ())
    assert (folders["precompiled"].exists(), folders["exported"].exists()) == (False, True)


def test_entries_that_cannot_be_read_are_warned_of(store: LocalStore):
    """The prefetch leaves the report of the reason to the start."""
    replica, work, taken = offered(store, exported=packed_entries(b"{}"))
    report = start(replica, work, artifact=store.uri).report()
    assert (taken.entries.tables, report.verdict) == ({}, Verdict.FULL_HIT)
    (warning,) = report.warnings
    assert warning.partition(":")[0] == "not all entries can be used, so Dynamo traces calls"


def test_entries_of_a_refused_artifact_leave_nothing(store: LocalStore):
    """The start has taken the artifact, so only the start can remove what was unpacked."""
    replica, work, taken = offered(store, precompiled=packed_entries(), exported=packed_entries())
    folders = [*taken.entries.folders.values()]
    taken.directory.chmod(0o777)
    report = start(replica, work, artifact=store.uri).report()
    assert (report.verdict, report.artifact.refused) == (Verdict.REFUSED, "unsafe_directory")
    assert (len(folders), [f for f in folders if f.exists()], taken.entries.tables) == (2, [], {})


def test_a_start_waits_for_what_is_under_way(store: LocalStore, caplog: pytest.LogCaptureFixture):
    replica = StandIn()
    offer(store, replica)
    caplog.set_level("INFO", "serve_warm")
    with node_locked(store) as release:
        work = begun(replica, artifact=store.uri)
        fetching(work)
        warmup = Warmup(replica, WarmupConfig(artifact=store.uri), prefetched=work)
        warmup.observe([lambda report: report.stage is Stage.PULLING and release()])
        asyncio.run(warmup.run())
    assert warmup.report().verdict is Verdict.FULL_HIT
    assert warmup.caches.directory == ended(work).directory
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if line.startswith("pulled artifact")]) == 1


# --- not what is wanted --------------------------------------------------------------------
def other_store(replica: StandIn, tmp_path: Path) -> dict[str, Any]:
    other = LocalStore(root=tmp_path / "other")
    publish(other, here(replica), raw={"cache": packed_cache(tmp_path / "theirs")})
    return {"artifact": other.uri}


def other_size(replica: StandIn, tmp_path: Path) -> dict[str, Any]:
    return {"node_cache_max_bytes": 1 << 20}


@pytest.mark.parametrize("change", [other_store, other_size])
def test_settings_that_change_later_are_those_that_count(
    store: LocalStore, tmp_path: Path, change: Callable[..., dict[str, Any]]
):
    """An artifact pulled with other settings is discarded, and the start pulls again."""
    replica, work, taken = offered(store, exported=packed_entries())
    settings = {"artifact": store.uri, **change(replica, tmp_path)}
    warmup = start(replica, work, **settings)
    report = warmup.report()
    assert (report.verdict, report.artifact.store) == (Verdict.FULL_HIT, settings["artifact"])
    assert warmup.caches.directory != taken.directory
    assert not hidden(report)
    assert thrown_away(taken)


@pytest.mark.parametrize("withdrawn", ["key", "artifact"])
def test_trust_that_ends_meanwhile_is_no_trust(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, withdrawn: str
):
    """Keys and the deny-list are those of the moment in which the start looks."""
    replica = StandIn()
    offer(store, replica)
    replica._trust = None
    lines = f"max_age_days = 36500\n{trust_lines(KEY.public_key(), name='builder')}"
    file = write_trust_file(tmp_path / "home", lines)
    move_home(tmp_path / "home", monkeypatch)
    work, taken = prefetched(replica, artifact=store.uri)
    digest = taken.pulled.chosen.manifest.parts[0].sha256
    file.write_text(f'denied = ["sha256:{digest}"]\n{lines}' if withdrawn == "artifact" else "")
    warmup = start(replica, work, artifact=store.uri)
    report = warmup.report()
    assert report.verdict is Verdict.REFUSED
    assert report.artifact.refused == ("denied" if withdrawn == "artifact" else "no_trust")
    assert list(warmup.caches.directory.rglob("*.so")) == []
    assert thrown_away(taken)


@pytest.mark.parametrize("refused", ["untrusted", "expired"])
def test_why_nothing_is_fetched_early_is_the_reason_of_the_refusal(
    store: LocalStore, caplog: pytest.LogCaptureFixture, refused: str
):
    """A refused artifact that fits is not reported as a miss."""
    caplog.set_level(logging.INFO, logger="serve_warm")
    replica = StandIn()
    replica._trust = trusting(new_key() if refused == "untrusted" else KEY, max_age_s=60.0)
    key = offer(store, replica)
    prefetched(replica, artifact=store.uri)
    (line,) = [r.message for r in caplog.records if "during __init__" in r.message]
    assert f"{key} is refused ({refused}): " in line
    assert "fits" not in line


def test_of_several_variants_the_app_decides(store: LocalStore):
    """The compile arguments are known only after `__init__`, and may select another variant."""
    replica, other = StandIn(), StandIn()
    other.owner.model = compiled(double, dynamic=True)
    right = offer(store, replica, created=OLDER)
    wrong = offer(store, other, created=NEWER)
    work, taken = prefetched(replica, artifact=store.uri)
    report = start(replica, work, artifact=store.uri).report()
    assert taken.pulled.chosen.key == wrong
    assert (report.verdict, report.artifact.statement) == (Verdict.FULL_HIT, right)
    # The same blob, so the node had it.
    assert report.artifact.downloaded_bytes == 0
    assert thrown_away(taken)


def test_a_factor_that_init_changes_counts_as_it_is_then(store: LocalStore):
    """An artifact for the state before `__init__` is a miss."""
    replica, work, taken = offered(store)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        report = start(replica, work, artifact=store.uri).report()
    finally:
        torch.set_default_dtype(before)
    assert report.verdict is Verdict.MISS
    assert "default_dtype: " in report.artifact.trace[0]
    assert thrown_away(taken)


@pytest.mark.parametrize(
    "built_for", [{"torch": "2.11.0"}, {"libc": "musl 1"}], ids=lambda factors: next(iter(factors))
)
def test_what_does_not_fit_this_machine_is_not_fetched(
    store: LocalStore, tmp_path: Path, built_for: dict[str, str]
):
    """Nothing but statements is read, and the start says why nothing fits."""
    replica = StandIn()
    publish(store, here(replica, **built_for), raw={"cache": packed_cache(tmp_path / "built")})
    work, taken = prefetched(replica, artifact=store.uri)
    assert taken is None
    assert not default_root().exists()
    report = start(replica, work, artifact=store.uri).report()
    assert report.verdict is Verdict.MISS
    assert f"{next(iter(built_for))}: " in report.artifact.trace[0]


# --- failing -------------------------------------------------------------------------------
@pytest.mark.parametrize("damage", [tampered, cut_short, missing_blob, other_statement])
def test_what_is_damaged_is_refused_as_ever(
    store: LocalStore, damage: Callable[[LocalStore], None]
):
    """Neither by the early look nor by the start, which pulls again, is any of it unpacked."""
    replica = StandIn()
    offer(store, replica)
    damage(store)
    work, taken = prefetched(replica, artifact=store.uri)
    report = start(replica, work, artifact=store.uri).report()
    assert taken is None
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.REFUSED)
    assert report.artifact.reason
    assert report.covered.proven == 2
    assert list(Path(tempfile.gettempdir()).rglob("*.so")) == []


def test_a_failure_is_not_final(store: LocalStore, tmp_path: Path):
    """A store that was away during `__init__` and is back gives its artifact to the start."""
    replica = StandIn()
    good = LocalStore(root=tmp_path / "good")
    offer(good, replica)
    store.root.symlink_to(store.root)  # a loop: nothing can be listed in it
    work, taken = prefetched(replica, artifact=store.uri)
    store.root.unlink()
    store.root.symlink_to(good.root)
    report = start(replica, work, artifact=store.uri).report()
    assert taken is None
    assert report.verdict is Verdict.FULL_HIT


@pytest.mark.slow
def test_what_hangs_costs_no_more_than_the_pull_may(store: LocalStore):
    """The deadline of the pull includes the time before the start."""
    replica = StandIn()
    offer(store, replica)
    with node_locked(store):
        work = begun(replica, artifact=store.uri)
        fetching(work)
        report = start(replica, work, artifact=store.uri, pull_deadline_s=0.3).report()
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.MISS)
    assert "nothing was pulled within" in report.artifact.reason
    assert ended(work) is None


def test_a_start_that_fails_throws_it_away(store: LocalStore):
    """Nothing stays open or on disk for a replica that will not serve."""
    replica, work, taken = offered(store)
    replica.declared = []
    with pytest.raises(InputError):
        start(replica, work, artifact=store.uri)
    assert thrown_away(taken)


def test_dropping_ends_what_is_under_way(store: LocalStore):
    """Nothing is asked of a store for a start that has been switched off."""
    replica = StandIn()
    offer(store, replica)
    with node_locked(store) as release:
        work = begun(replica, artifact=store.uri)
        fetching(work)
        work.drop()
        release()
    assert ended(work) is None


# --- in a process of its own ---------------------------------------------------------------

CHOOSING = """
import sys, threading, time, torch
from pathlib import Path
from serve_warm.artifact.manifest import Place
from serve_warm.config import WarmupConfig
from serve_warm.replica.start import prefetch
from serve_warm.replica.start.prefetch import Prefetch
from serve_warm.trust.policy import unsigned_ok

uri, driver, then = sys.argv[1:]
torch.version.cuda = "13.0"
asked = []
for name in "is_available device_count _lazy_init get_device_properties get_device_name".split():
    setattr(torch.cuda, name, lambda *_, name=name: asked.append(name) or 0)
trust = unsigned_ok(uri, reason="a test")
config = WarmupConfig(artifact=uri)
prefetch.NVIDIA = [Path(driver)]
place = Place(application="app", deployment="Embedder")
work = Prefetch(config, place=place, trust=trust)
work.begin()
(pulling,) = (thread for thread in threading.enumerate() if thread.name == "serve_warm-prefetch")
pulling.join(2.0)
print(pulling.is_alive(), len(work._timeline.spans()), asked)
if then == "initialised":
    torch.cuda._initialized = True
else:
    work.init_ended()
pulling.join()
print(*(span.name for span in work._timeline.spans()), "torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("then", ["initialised", "ended"])
def test_devices_are_asked_for_after_user_code_has_chosen_them(
    store: LocalStore, tmp_path: Path, then: str
):
    """With a driver, the pull waits until CUDA is initialised or `__init__` ended."""
    offer(store, StandIn())
    driver = tmp_path / "nvidiactl"
    driver.touch()
    command = [sys.executable, "-c", CHOOSING, store.uri, str(driver), then]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    shown = ["True 0 []", "pull fingerprint False"]
    assert completed.stdout.splitlines() == shown, completed.stderr


DYING = """
import sys, torch
from serve_warm.artifact.manifest import Place
from serve_warm.config import WarmupConfig
from serve_warm.replica.start.prefetch import Prefetch

place = Place(application="app", deployment="Embedder")
Prefetch(WarmupConfig(artifact="s3://bucket/artifacts"), place=place, trust=None).begin()
sys.stdin.read(1)
raise SystemExit("__init__ failed")
"""


@pytest.mark.slow
def test_a_store_that_hangs_keeps_no_process_alive():
    """A replica whose `__init__` fails ends at once, in the middle of whatever is under way."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_REGION": "us-east-1",
        }
        with subprocess.Popen(
            [sys.executable, "-c", DYING],
            env=environment,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            connection, _ = silent.accept()
            with connection:
                # The connection is held open: nothing but the end of the process ends it.
                _, errors = process.communicate("x", timeout=ENDS_S)

    assert "__init__ failed" in errors
    assert process.returncode == 1
