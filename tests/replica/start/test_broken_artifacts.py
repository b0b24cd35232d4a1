# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Signed artifacts whose code raises, while it is loaded or at a call: a start goes on without."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import serve_warm
from levels import build
from parity_starts import SIZES, made, process, start  # noqa: F401 - `process` is a fixture
from replicas import Scaled, StandIn, replica, x
from serve_warm.errors import ReplayFailed, WarmupFailed
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.entries.table import INDEX, file_name
from serve_warm.report import Report, Stage, Verdict


class Failing:
    """Whether the operator of a broken graph raises; it does not while that is built."""

    now = False
    error: BaseException = ValueError("the kernel of the build does not run here")


@torch.library.custom_op("serve_warm_tests::fail", mutates_args=())
def fail(a: torch.Tensor) -> torch.Tensor:
    if Failing.now:
        raise Failing.error
    return a.clone()


@fail.register_fake
def _(a: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(a)


class Broken(Scaled):
    """The same computation as an intact entry, by an operator that can raise later."""

    def forward(self, x: torch.Tensor, label: str = "") -> torch.Tensor:
        return fail(super().forward(x, label))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("entries") / "good", 2.0)


@pytest.fixture(scope="module")
def broken(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Entries that promise what `good` does, and whose code raises."""
    folder = tmp_path_factory.mktemp("entries")
    model = serve_warm.compile(Broken(2.0).eval(), dynamic=False)
    calls = [lambda size=size: model(x(size), "secret") for size in SIZES]
    build(folder / "other", *calls)
    torch._dynamo.reset()
    shutil.copytree(good, folder / "broken")
    index, other = (json.loads((folder / n / INDEX).read_bytes()) for n in ("broken", "other"))
    pairs = zip(index["units"][0]["entries"], other["units"][0]["entries"], strict=True)
    for entry, theirs in pairs:
        assert entry["tensors"] == theirs["tensors"]
        for field in ("file", "references", "plan"):
            entry[field] = theirs.get(field, {})
        shutil.copy(folder / "other" / theirs["file"], folder / "broken")
    (folder / "broken" / INDEX).write_text(json.dumps(index))
    return folder / "broken"


@pytest.fixture(autouse=True)
def fails(process: None) -> Any:  # noqa: F811 - it is given back what a start changes
    usual = Failing.error
    yield Failing
    Failing.now, Failing.error = False, usual


def check_is_cold(report: Report, stand_in: StandIn, caplog: Any, *says: str) -> None:
    """Check that the replica is ready and proven cold, and that one line names the exception."""
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.REFUSED)
    assert (report.covered.proven, report.covered.expected) == (3, 3)
    assert report.artifact.refused == "broken"
    lines = [r.getMessage() for r in caplog.records if "compiling cold" in r.getMessage()]
    assert len(lines) == 1
    for word in (report.artifact.statement, *says):
        assert word in lines[0]
        assert word in report.artifact.reason
    assert SESSION.loaded is None
    for size in SIZES:
        with torch.inference_mode():
            eager = stand_in.owner.model._orig_mod(x(size))
        assert torch.allclose(stand_in.answers[f"size {size}"], eager)


# --- at a call -------------------------------------------------------------------------------
class OfItsOwn(BaseException):
    """An exception class that neither error handlers nor Python know."""


RAISED = [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit]
RAISED += [asyncio.CancelledError, OfItsOwn]


@pytest.mark.slow
@pytest.mark.parametrize("kind", RAISED)
def test_an_entry_that_raises_where_eager_does_not_is_refused_once(
    kind: type[BaseException], broken: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The start compiles, is proven, and says which artifact raised what.

    Exceptions with which Python ends a process, a task or a generator do not end the start.
    """
    stand_in = replica(SIZES)
    begun = start(stand_in, broken, tmp_path)
    Failing.now, Failing.error = True, kind("from the artifact")
    report = asyncio.run(begun.run())
    says = ("raised ValueError", "from the artifact") if kind is ValueError else (kind.__name__,)
    check_is_cold(report, stand_in, caplog, *says)
    assert report.warmup.compiles == 3


def test_the_same_entry_is_a_hit_where_it_does_not_raise(broken: Path, tmp_path: Path):
    """Control: the forged artifact is loaded and run if it does not raise."""
    begun = start(replica(SIZES), broken, tmp_path)
    assert asyncio.run(begun.run()).verdict is Verdict.FULL_HIT


def test_an_entry_that_raises_fails_the_start_by_policy(broken: Path, tmp_path: Path):
    """With `on_refused: fail` the replica does not become ready on such an artifact."""
    begun = start(replica(SIZES), broken, tmp_path, on_refused="fail")
    Failing.now = True
    with pytest.raises(WarmupFailed, match=r"on_refused is 'fail'.*the kernel of the build"):
        asyncio.run(begun.run())


def test_an_input_that_eager_raises_for_is_no_fault_of_the_artifact(good: Path, tmp_path: Path):
    """The start fails at once with the input's own error, and compiles nothing cold for it."""
    stand_in = replica(SIZES)
    begun = start(stand_in, good, tmp_path)
    made_calls = stand_in.call

    async def call(item: Any) -> None:
        await made_calls(item)
        if item.name == "size 3":
            raise KeyError("a bug of the app")

    stand_in.call = call  # type: ignore[method-assign]
    with pytest.raises(ReplayFailed, match="a bug of the app"):
        asyncio.run(begun.run())

    assert begun.report().verdict is None  # not refused, and not decided: the start failed
    assert begun.report().warmup.compiles == 0


# --- while it is loaded ----------------------------------------------------------------------
class Raising:
    """A pickle of it calls a function."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def _interrupt() -> None:
    raise KeyboardInterrupt


def with_code(good: Path, folder: Path, data: bytes) -> Path:
    """Return entries like the good ones whose files all hold `data`."""
    shutil.copytree(good, folder)
    index = json.loads((folder / INDEX).read_bytes())
    for entry in index["units"][0]["entries"]:
        entry["file"] = file_name(data)
    (folder / file_name(data)).write_bytes(data)
    (folder / INDEX).write_text(json.dumps(index))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pickled", "said"),
    [
        (Raising(divmod, 1, 0), "loading an entry raised ZeroDivisionError"),
        (Raising(sys.exit, 3), "loading an entry raised SystemExit"),
        (Raising(_interrupt), "loading an entry raised KeyboardInterrupt"),
    ],
    ids=["no error of torch", "the end of the process", "as a signal handler"],
)
def test_a_pickle_that_raises_anything_is_refused(
    good: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, pickled: Raising, said: str
):
    """An entry whose code raises while it is loaded costs the artifact, and no replica."""
    stand_in = replica(SIZES)
    entries = with_code(good, tmp_path / "bad", pickle.dumps(pickled))
    begun = start(stand_in, entries, tmp_path)
    report = asyncio.run(begun.run())
    check_is_cold(report, stand_in, caplog, said)


def test_a_pickle_that_is_none_costs_its_level(good: Path, tmp_path: Path):
    """Code that torch cannot unpickle is compiled, and named with the reason."""
    begun = start(replica(SIZES), with_code(good, tmp_path / "bad", b"no pickle"), tmp_path)
    report = asyncio.run(begun.run())
    assert (report.stage, report.covered.proven) == (Stage.READY, 3)
    named = {use.call for use in report.entries if "UnpicklingError" in use.reason}
    assert len(named) == 3
    assert report.warmup.compiles == 3


class Slow:
    """Loading a pickle that waits for it takes until it is let go, whatever deadline has passed."""

    go_on = threading.Event()
    ended = threading.Event()


def _wait() -> None:
    Slow.go_on.wait(30)
    Slow.ended.set()
    raise EOFError


@pytest.mark.slow
def test_loading_has_a_deadline(good: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """An artifact that is not loaded in time is missed, and nothing of it is used later."""
    gc.collect()  # a call waits only if its own callable is the first that the load reaches
    stand_in = replica(SIZES)
    entries = with_code(good, tmp_path / "slow", pickle.dumps(Raising(_wait)))
    begun = start(stand_in, entries, tmp_path, pull_deadline_s=2.0)
    others = {*threading.enumerate()}

    try:
        report = asyncio.run(begun.run())
        is_still_loading = not Slow.ended.is_set()
    finally:
        Slow.go_on.set()

    assert is_still_loading
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.MISS)
    assert report.covered.proven == 3
    assert report.warmup.compiles == 3
    lines = [r.getMessage() for r in caplog.records if "compiling cold" in r.getMessage()]
    assert len(lines) == 1
    assert "not loaded within 2 s" in lines[0]
    for thread in {*threading.enumerate()} - others:
        if thread.name == "serve_warm-load":
            assert thread.daemon
            thread.join(60)
            assert not thread.is_alive()
    assert SESSION.loaded is None
