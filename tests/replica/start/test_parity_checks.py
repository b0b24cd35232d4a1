# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Loaded entries against eager, in starts of signed artifacts: what is wrong is not served."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import serve_warm
from levels import build, eager_below
from parity_starts import SIZES, made, process, start  # noqa: F401 - fixtures
from processes import answer_of
from replicas import Scaled, StandIn, replica, x
from serve_warm.compiler.watch import watch_process
from serve_warm.config import WarmupConfig, resolve
from serve_warm.errors import ConfigError, WarmupFailed
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.entries.table import INDEX, EntryTable, file_name
from serve_warm.precompile.parity import checks as entry_checks
from serve_warm.precompile.parity import idle_checks
from serve_warm.replica.start.stages import Warmup
from serve_warm.report import Stage, Verdict


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("entries") / "right", 2.0)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("entries") / "wrong", 3.0)


def forge(right: Path, wrong: Path, folder: Path, *, sizes: Sequence[int] = SIZES) -> Path:
    """Return a folder that promises the one graph, and has the code of the other for some sizes."""
    shutil.copytree(right, folder)
    index, other = (json.loads((each / INDEX).read_bytes()) for each in (folder, wrong))
    entries, others = index["units"][0]["entries"], other["units"][0]["entries"]
    for entry, theirs in zip(entries, others, strict=True):
        assert entry["tensors"] == theirs["tensors"]
        if any(f"[{size}, 4]" in entry["tensors"][0] for size in sizes):
            entry["file"] = theirs["file"]
            shutil.copy(wrong / theirs["file"], folder)
    (folder / INDEX).write_text(json.dumps(index))
    return folder


def ready(stand_in: StandIn, entries: Path, tmp_path: Path, **settings: Any) -> Warmup:
    """Return a start that has ended, without the checks of an idle replica."""
    begun = start(stand_in, entries, tmp_path, **settings)
    asyncio.run(as_serve_does(begun))
    return begun


async def as_serve_does(begun: Warmup) -> None:
    await begun.prove()
    begun.become_ready()


def eager(stand_in: StandIn, size: int) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = stand_in.owner.model._orig_mod(x(size))
    return result


def calls(stand_in: StandIn, size: int, times: int) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [stand_in.owner.model(x(size), "secret") for _ in range(times)]


# --- before READY -------------------------------------------------------------------------------
def test_the_smallest_input_is_checked_in_a_stage_of_its_own(right: Path, tmp_path: Path):
    """One entry of each callable, on the weights of this replica, between the proof and READY."""
    stand_in = replica(SIZES)
    with torch.no_grad():
        stand_in.owner.model._orig_mod.linear.weight.mul_(7)
    begun = start(stand_in, right, tmp_path)
    stages: list[Stage] = []
    begun.observe([lambda report: stages.append(report.stage)])
    report = asyncio.run(begun.run())

    assert list(dict.fromkeys(stages))[-3:] == [Stage.PROVING, Stage.PARITY, Stage.READY]
    assert stand_in.calls[-1:] == ["size 2"]
    assert report.stage_seconds["parity"] > 0
    assert (report.verdict, report.degraded) == (Verdict.FULL_HIT, ())
    assert (report.parity.entries, report.parity.checked, report.parity.waiting) == (3, 1, 2)
    assert report.parity.results["same"] == 1
    assert report.parity.worst_error is not None
    assert "parity: 1 of 3 entries checked (1 same" in report.text()
    assert ", 2 checked later" in report.text()


def test_all_entries_that_the_replay_used_are_checked_if_time_allows(
    right: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("serve_warm.replica.start.proof.COMPARED_SHARE", float("inf"))
    report = asyncio.run(start(replica(SIZES), right, tmp_path).run())
    assert (report.parity.checked, report.parity.waiting) == (3, 0)
    assert report.parity.results["same"] == 3


@pytest.mark.slow
def test_a_signed_entry_of_another_computation_is_not_served(
    right: Path, wrong: Path, tmp_path: Path
):
    """Its digests and signature are valid: that it computes something else shows in its answer."""
    stand_in = replica(SIZES)
    begun = start(stand_in, forge(right, wrong, tmp_path / "forged"), tmp_path)
    with eager_below():
        report = asyncio.run(begun.run())

    assert (report.stage, report.verdict) == (Stage.READY, Verdict.PARTIAL)
    # The smallest is wrong, so that the next one is looked at, and so on.
    assert (report.parity.failed, report.parity.results["different"]) == (3, 3)
    assert sum(reason.startswith("parity: ") for reason in report.degraded) == 3
    assert "Scaled(Tensor float32[2, 4]" in report.degraded[0]
    assert "times eager's" in report.degraded[0]
    # A text in the call is the request's.
    assert not any("secret" in text for text in (*report.parity.failures, *report.degraded))
    for size in SIZES:
        assert torch.equal(stand_in.answers[f"size {size}"], eager(stand_in, size))
    levels = {use.level for use in SESSION.uses() if "withdrawn" in use.reason}
    assert levels == {1}


def test_what_is_withdrawn_is_replayed_and_proven_again(right: Path, wrong: Path, tmp_path: Path):
    """torch.compile then answers these calls, which are warm too. Other entries stay."""
    stand_in = replica(SIZES)
    forged = forge(right, wrong, tmp_path / "forged", sizes=[2])
    report = asyncio.run(start(stand_in, forged, tmp_path).run())
    assert (report.parity.failed, report.parity.results["same"]) == (1, 1)
    assert (report.covered.proven, report.covered.expected) == (3, 3)
    assert [took.stage for took in report.stages].count(Stage.PROVING) == 2


@pytest.mark.parametrize("after_ready", ["count", "eager"])
def test_a_wrong_entry_is_answered_eagerly_by_policy(
    right: Path, wrong: Path, tmp_path: Path, after_ready: str
):
    """With `on_refused: eager`, nothing compiles because an entry is withdrawn."""
    stand_in, before = replica(SIZES), watch_process().counts()
    forged = forge(right, wrong, tmp_path / "forged", sizes=[2])
    begun = start(stand_in, forged, tmp_path, on_refused="eager", after_ready=after_ready)
    report = asyncio.run(begun.run())
    for item in stand_in.declared:
        asyncio.run(stand_in.call(item))

    assert (watch_process().counts() - before).quiet
    assert torch.equal(stand_in.answers["size 2"], eager(stand_in, 2))
    assert report.parity.failed == 1
    assert [item.name for item in report.inputs if not item.proven] == ["size 2"]
    assert not any("not in the artifact" in each for each in report.degraded)
    (seen,) = begun.report().eager_calls
    assert seen.reason.value in ("no_entry", "unforeseen")
    assert "withdrawn" in seen.why


def test_a_wrong_entry_fails_the_start_by_policy(right: Path, wrong: Path, tmp_path: Path):
    """With `on_refused: fail` the replica does not become ready on such an artifact."""
    forged = forge(right, wrong, tmp_path / "forged")
    begun = start(replica(SIZES), forged, tmp_path, on_refused="fail")
    with eager_below(), pytest.raises(WarmupFailed, match="results differ from eager") as caught:
        asyncio.run(begun.run())
    assert caught.value.stage == "PARITY"
    assert begun.report().stage is Stage.FAILED


WRONG_LIBRARY = """
int aoti_torch_new_tensor_handle(void *tensor, void **copy);
int AOTInductorModelCreate(void **model, void *constants) { *model = model; return 0; }
int AOTInductorModelGetNumOutputs(void *model, unsigned long *count) { *count = 1; return 0; }
int AOTInductorModelRun(void *model, void **inputs, void **outputs) {
  return aoti_torch_new_tensor_handle(inputs[%d], outputs);
}
"""
"""A library that returns one of its inputs, through the interface that AOTInductor gives one."""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A library for one size; and another one under what was promised for it, digests included."""
    folder = tmp_path_factory.mktemp("libraries")
    right = made(folder / "right", 2.0, [2], level=3)
    index = json.loads((right / INDEX).read_bytes())
    (entry,) = index["units"][0]["entries"]
    kinds = [given["kind"] for given in entry["plan"]["inputs"]]
    source, library = folder / "wrong.c", folder / "wrong.so"
    source.write_text(WRONG_LIBRARY % kinds.index("argument"))
    options = ["-shared", "-fPIC", f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu"]
    subprocess.run(["cc", "-o", library, source, *options], check=True)
    data = library.read_bytes()
    forged = folder / "forged"
    forged.mkdir()
    entry["file"] = file_name(data, "library")
    entry["plan"]["sha256"] = hashlib.sha256(data).hexdigest()
    (forged / entry["file"]).write_bytes(data)
    (forged / INDEX).write_text(json.dumps(index))
    return right, forged


def in_a_fresh_process(libraries: Path, tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """Start a replica that needs no compiler on a machine without one, and return its output."""
    question = {"libraries": str(libraries), "folder": str(tmp_path), "settings": settings}
    return answer_of("parity_process.py", question, CXX="no-such-compiler")


@pytest.mark.long
def test_libraries_are_checked_without_any_compiler(libraries: tuple[Path, Path], tmp_path: Path):
    """Eager is all that a check needs: torch's compiler is not imported for it."""
    answer = in_a_fresh_process(libraries[0], tmp_path)
    report = answer["report"]
    assert (report["stage"], report["verdict"]) == ("READY", "full_hit")
    assert report["parity"]["results"]["same"] == 1
    assert (report["compiler_imported"], answer["imported"]) == ("", [])


@pytest.mark.long
@pytest.mark.slow
def test_a_wrong_library_is_served_eagerly_without_a_compiler(
    libraries: tuple[Path, Path], tmp_path: Path
):
    """Nothing can compile, and eager is correct, so the replica serves degraded."""
    answer = in_a_fresh_process(libraries[1], tmp_path)
    report = answer["report"]
    assert (report["stage"], report["verdict"]) == ("READY", "partial")
    assert report["parity"]["failed"] == 1
    assert report["degraded"][0].startswith("parity: replicas.Scaled(Tensor float32[2, 4]")
    assert answer["answer"] == answer["eager"]


# --- in traffic ---------------------------------------------------------------------------------
class Dropping(torch.nn.Module):
    """Draws random numbers, although it is in eval mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x @ x.T, 0.5, training=True)


class Counting(torch.nn.Module):
    """Writes into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.copy_(x.T @ x)
        return x @ self.seen


class Filling(torch.nn.Module):
    """Writes into its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.copy_(x @ torch.eye(4))
        return x @ x.T


class Notes:
    last: Any = None


class Noting(torch.nn.Module):
    """Sets an attribute of another object than itself, which no second call sees."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = Notes()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.notes.last = x
        return x @ x.T


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Scaled(2.0), ""),
        (Dropping(), "it draws random numbers"),
        (Counting(), "it writes into its inputs or buffers"),
        (Filling(), "it writes into its inputs or buffers"),
        (Noting(), "it changes "),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else "",
)
def test_a_build_determines_what_may_run_twice(module: torch.nn.Module, why: str, tmp_path: Path):
    """The entry's plan has the reason, or nothing if a second run is allowed."""
    # As eager draws: other random numbers are another answer, which no entry may give.
    options = {"fallback_random": True}
    model = serve_warm.compile(module.eval(), dynamic=False, options=options)
    library = build(tmp_path, lambda: model(x(3)))
    plans = [e.plan for unit in library.units.values() for e in unit.entries]
    assert library.refused == {}
    assert [plan["once"][: len(why)] for plan in plans] == [why]
    assert bool(plans[0]["once"]) == bool(why)


def test_one_call_in_so_many_is_checked(right: Path, tmp_path: Path):
    stand_in = replica([2, 3])
    begun = start(stand_in, right, tmp_path, eager_sample="1/3")
    asyncio.run(begun.run())
    before = begun.report().parity
    torch.manual_seed(1)
    state = torch.get_rng_state()
    answers = calls(stand_in, 2, 7)
    after = begun.report().parity
    assert before.results["same"] == 1
    assert after.results["same"] == 1 + 7 // 3
    assert all(torch.allclose(answer, eager(stand_in, 2)) for answer in answers)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_wrong_entry_in_traffic_marks_the_replica(right: Path, wrong: Path, tmp_path: Path):
    """The call that finds it gets the right answer, as do all after it."""
    stand_in = replica([2])
    forged = forge(right, wrong, tmp_path / "forged", sizes=[5])
    begun = start(stand_in, forged, tmp_path, eager_sample="1/2")
    asyncio.run(begun.run())
    with eager_below():
        answers = calls(stand_in, 5, 4)
    report = begun.report()
    assert report.stage is Stage.READY
    assert [reason.partition(":")[0] for reason in report.degraded] == ["parity"]
    assert report.parity.failed == 1
    assert all(torch.equal(answer, eager(stand_in, 5)) for answer in answers)


class Failing:
    """A callable whose eager half cannot run, for lack of memory for example."""

    name = "Failing"

    def callee(self, x: torch.Tensor, label: str) -> torch.Tensor:
        raise torch.OutOfMemoryError

    def forget_calls(self) -> None: ...


def test_a_check_that_fails_costs_no_request(right: Path, caplog: pytest.LogCaptureFixture):
    """The request gets its answer, and the log says once why there was no check."""
    entry = next(iter(EntryTable.read(right).units.values())).entries[0]
    wrong: list[Any] = []
    told = {"withdraw": lambda *given: wrong.append(given), "on_failure": wrong.append}
    checks = entry_checks.Checks(one_in=1, **told)
    failing = Failing()
    checks.serve()

    def double(_: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    fn = checks.around(failing, entry, double, double, counted_for=failing)
    answers = [fn(failing.callee, x(2)) for _ in range(3)]

    assert all(torch.equal(answer, x(2) * 2) for answer in answers)
    assert checks.report().results["not_comparable"] == 3
    assert caplog.text.count("a check against eager failed") == 1
    assert wrong == []


def edit_plans(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    index = json.loads((folder / INDEX).read_bytes())
    for entry in index["units"][0]["entries"]:
        change(entry["plan"])
    (folder / INDEX).write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda plan: plan.update(once="it draws random numbers"), id="random"),
        pytest.param(lambda plan: plan.pop("once"), id="not stated"),
    ],
)
def test_what_may_not_run_twice_is_counted_and_not_sampled(
    change: Callable[[dict[str, Any]], Any], right: Path, tmp_path: Path
):
    """Before READY such a call is checked once, on copies. After READY it is never checked."""
    entries = edit_plans(shutil.copytree(right, tmp_path / "entries"), change)
    stand_in = replica([2])
    begun = start(stand_in, entries, tmp_path, eager_sample="1/1")
    asyncio.run(begun.run())
    calls(stand_in, 2, 3)
    report = begun.report().parity
    assert (report.results["same"], report.results["not_sampled"]) == (1, 3)


# --- while nothing is asked of the replica --------------------------------------------------------
def idle(begun: Warmup, *, executor: Any = None) -> int:
    """Run the checks that wait, on this thread's loop; return how many entries are checked then."""

    async def wait() -> None:
        thread = executor.submit(threading.get_native_id).result() if executor else 0
        loop = asyncio.get_running_loop()
        checks = idle_checks.IdleChecks(
            begun.journal.checks, loop, model_thread=lambda: (executor, thread)
        )
        checks.begin()
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if begun.journal.checks.kept.thread_of_next() is None:
                break
        await asyncio.sleep(0.05)  # the last one is taken before it is checked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idle_checks, "IDLE_S", 0.01)
        asyncio.run(wait())
    report = begun.report().parity
    return report.checked


def code_of(stand_in: StandIn) -> set[type]:
    """Return what kinds of code answer the calls that are known."""
    hits = stand_in.owner.model.__dict__["_serve_warm"].binder.binding.hits
    return {type(fn) for found in hits.values() for (*_, fn, _) in found}


def test_the_other_entries_are_checked_while_the_replica_is_idle(right: Path, tmp_path: Path):
    """On copies of the declared inputs; after that calls run the entries themselves."""
    stand_in = replica(SIZES)
    begun = ready(stand_in, right, tmp_path)
    before = begun.report().parity
    checked = idle(begun)
    for size in SIZES:
        calls(stand_in, size, 2)
    assert (before.checked, checked) == (1, 3)
    assert begun.report().parity.results["same"] == 3  # without `eager_sample`, nothing more
    assert entry_checks._CheckedCode not in code_of(stand_in)


def test_a_wrong_entry_is_found_before_it_is_called(right: Path, wrong: Path, tmp_path: Path):
    """The replica is marked, and its first call of that kind is right."""
    stand_in = replica(SIZES)
    forged = forge(right, wrong, tmp_path / "forged", sizes=[5])
    begun = ready(stand_in, forged, tmp_path)
    clean = begun.report().degraded
    idle(begun)
    marked = begun.report().degraded
    with eager_below():
        (answer,) = calls(stand_in, 5, 1)
    assert clean == ()
    assert [reason.partition(":")[0] for reason in marked] == ["parity"]
    assert torch.equal(answer, eager(stand_in, 5))


def test_calls_of_the_model_thread_are_checked_on_it(right: Path, tmp_path: Path):
    """Then torch's per-thread state, such as CUDA graphs, exists."""
    with ThreadPoolExecutor(1) as executor:
        stand_in = replica(SIZES)
        model = stand_in.owner.model

        def on_thread(*args: Any) -> Any:
            def run() -> Any:
                with torch.inference_mode():
                    return model(*args)

            return executor.submit(run).result()

        stand_in.owner.embed = on_thread
        begun = ready(stand_in, right, tmp_path)
        checked = idle(begun, executor=executor)

    assert checked == 3


def test_a_busy_replica_checks_in_traffic(
    right: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An entry that never waited for an idle second is checked at its next call."""
    monkeypatch.setattr(idle_checks, "BUSY_S", 0.0)
    stand_in = replica(SIZES)
    begun = ready(stand_in, right, tmp_path)
    before = idle(begun)
    for size in SIZES:
        calls(stand_in, size, 2)
    after = begun.report().parity
    assert (before, after.checked, after.results["same"]) == (1, 3, 3)


@pytest.mark.parametrize("share", ["1/0", "2/3", "0.5", "on", "1/1000000000000", ""])
def test_a_share_is_one_in_so_many(share: str):
    """Anything else is a mistake that is named."""
    with pytest.raises(ConfigError, match="1/1000"):
        resolve(WarmupConfig(), user_config={"warmup": {"eager_sample": share}}, environ={})
