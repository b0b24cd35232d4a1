# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Starts of a stand-in replica, from stores that tests fill or damage."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from artifacts import build, new_key, packed_cache, trusting
from compiled import compiled, double, stance
from outside_serve import OutsideServe
from serve_warm.artifact.push import push
from serve_warm.compiler import eager_calls
from serve_warm.compiler.compiled_objects import compile_arguments
from serve_warm.compiler.cpu_target import isa_checks
from serve_warm.compiler.watch import unwatched_compiles, watch_process
from serve_warm.config import WarmupConfig, environment
from serve_warm.errors import InputError
from serve_warm.fingerprint import Fingerprint, read_app, read_machine
from serve_warm.inputs import Input
from serve_warm.replica.start.context import WarmupHost
from serve_warm.replica.start.stages import Warmup
from serve_warm.report import CompileEvent, Report
from serve_warm.stores.local import LocalStore
from serve_warm.trust.policy import Trust

KEY = new_key()


class Refusal(Exception):
    pass


class Embedder:
    """The user's object, whose attributes are searched for compiled functions and modules."""

    def __init__(self) -> None:
        self.model = compiled(double)


class StandIn(OutsideServe):
    """A replica without Serve, in the role of the replica that deployment.py makes in Serve."""

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


class WrappedStandIn(StandIn):
    """A replica of a wrapped application, which replays the calls of a plan."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.declared = None
        self.owner.model = model

    def check(self, inputs: Sequence[Input]) -> None:
        """Accept the calls of a plan."""

    async def call(self, item: Input) -> None:
        self.calls.append(item.name)
        if callable(item.target):
            await item.target()
        else:
            self.owner.model(*item.args)


def use_private_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make starts in this process put their caches below `tmp_path`."""
    caches = tmp_path / "caches"
    caches.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(caches))
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, str(caches))


@pytest.fixture(autouse=True)
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the process-wide state that a start changes."""
    use_private_caches(tmp_path, monkeypatch)
    yield
    watch = watch_process()
    watch.forbidden = watch.on_event = None
    eager_calls.answer_from_now_on(None)
    isa_checks().give({})


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> LocalStore:
    return LocalStore(root=tmp_path / "store")


def here(replica: WarmupHost, **changed: str) -> Fingerprint:
    """Return the fingerprint of this process and app, with some machine factors changed."""
    arguments = compile_arguments(replica.owner)
    return Fingerprint(
        machine={**read_machine(environment()), **changed},
        app=read_app(environment(), compile_arguments=arguments),
    )


def publish(store: LocalStore, built_for: Fingerprint, **options: Any) -> str:
    manifest, stored = build(deployment="Embedder", built_for=built_for, **options)
    return push(store, manifest, stored, [KEY])


def offer(
    store: LocalStore, replica: WarmupHost, raw: Mapping[str, bytes] | None = None, **options: Any
) -> str:
    """Publish an artifact for a replica, with a cache and what else is in `raw`."""
    cache = packed_cache(store.root.parent / "built")
    return publish(store, here(replica), raw={"cache": cache, **(raw or {})}, **options)


def warm_up(replica: StandIn, *observers: Callable[[Report], None], **settings: Any) -> Warmup:
    start = Warmup(replica, WarmupConfig(**settings))
    start.observe(observers)
    asyncio.run(start.run())
    return start


def failed(
    kind: type[BaseException], replica: StandIn, **settings: Any
) -> tuple[Any, Report, Warmup]:
    """Return the error of a start that must fail, and its report."""
    start = Warmup(replica, WarmupConfig(**settings))
    with pytest.raises(kind) as caught:
        asyncio.run(start.run())
    assert stance() == "default"
    return caught.value, start.report(), start


def pointed_at() -> Path:
    """Return the folder to which torch would now write its caches."""
    directory = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent
    assert Path(os.environ["TRITON_CACHE_DIR"]).parent == directory
    return directory


def stages_of(reports: list[Report]) -> list[str]:
    """Return the stages in the order in which they were reported, without repetitions."""
    names = [report.stage.value for report in reports]
    return [name for before, name in zip([None, *names], names, strict=False) if name != before]


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
    for statement in (store.root / "statements" / "app" / "Embedder").iterdir():
        statement.write_bytes(statement.read_bytes().replace(b'"sig":"', b'"sig":"AAAA', 1))


class Stuck(StandIn):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.waits = asyncio.Event()

    async def call(self, item: Input) -> None:
        await super().call(item)
        if item.name == "size 2":
            self.waits.set()
            await asyncio.Event().wait()


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
    """A replica whose inputs, for the watch, run eagerly once and are then captured once.

    The watch receives the same events as from a GPU, but nothing is captured. Each call has a new
    thread, as for a request to a sync handler.
    """

    async def call(self, item: Input) -> None:
        times = self.calls.count(item.name)
        if times == 0:
            watch_process().note_eager_run()
        if times == 1:
            watch_process().note(CAPTURE)
        self.calls.append(item.name)
        with ThreadPoolExecutor(1) as pool:
            await asyncio.get_running_loop().run_in_executor(pool, self.owner.model, *item.args)
