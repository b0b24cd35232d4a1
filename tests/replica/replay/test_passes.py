# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Replaying until quiet and proving it, with real compiled functions and nothing of Serve."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import serve_warm
from compiled import compiled, double, stance
from levels import build, started
from serve_warm.compiler.watch import watch_process
from serve_warm.errors import NotProven, ReplayFailed, WarmupTimeout
from serve_warm.inputs import Input
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.replica.record.progress import Progress
from serve_warm.replica.record.timeline import Timeline
from serve_warm.replica.replay.passes import PROOF_ATTEMPTS, Replay
from serve_warm.replica.replay.ranks import Ranks
from serve_warm.replica.replay.timed_calls import Deadline, Limits
from serve_warm.replica.replay.waits import Waits

RECOMPILE_LIMIT = 8


def shape(size: int) -> Input:
    return Input(target="embed", name=f"size {size}", args=(torch.ones(size),))


def calling(model: Callable[..., Any]) -> Callable[[Input], Any]:
    """Return how a handler would call the model, on the loop's own thread."""

    async def call(item: Input) -> None:
        model(*item.args)

    return call


def replay(
    inputs: Sequence[Input],
    call: Callable[[Input], Any],
    *,
    deadline_s: float = 60,
    input_s: float = 60,
    **options: Any,
) -> Replay:
    limits = Limits(deadline=Deadline(deadline_s), input_s=input_s)
    return Replay(inputs, call, seen=watch_process(), limits=limits, **options)


def run(warmup: Replay) -> Progress:
    async def until_proven() -> None:
        await warmup.until_quiet()
        await warmup.prove()

    asyncio.run(until_proven())
    return warmup.progress


def failure(kind: type[Exception], warmup: Replay) -> Any:
    with pytest.raises(kind) as caught:
        run(warmup)
    assert stance() == "default"
    return caught.value


# --- until quiet ---------------------------------------------------------------------------
def test_a_pass_that_compiles_is_followed_by_a_quiet_one_and_the_proof():
    """Each input is told of, and has its seconds, first and last, and its compiles."""
    model = compiled(double)
    calls: list[str] = []
    told: list[tuple[int, int]] = []

    async def call(item: Input) -> None:
        calls.append(item.name)
        model(*item.args)

    def changed() -> None:
        told.append((warmup.progress.passes, warmup.progress.done))

    warmup = replay([shape(4), shape(3), shape(2)], call, changed=changed)
    progress = run(warmup)
    results = progress.results()

    names = ["size 4", "size 3", "size 2"]
    assert calls == names * 3
    assert told == [(number, done) for number in (1, 2, 3) for done in (1, 2, 3)]
    assert progress.passes == 3
    assert progress.proven == {*names}
    assert progress.unproven == {}
    assert [(r.name, r.proven, r.compiles, r.note) for r in results] == [
        (name, True, 1, "") for name in names
    ]
    assert all(r.first_s > 0 and r.steady_s > 0 for r in results)
    assert Progress(inputs=[shape(9)]).results()[0].note == "not reached"
    assert stance() == "default"


def test_what_is_warm_needs_no_further_pass():
    """A quiet first pass and the proof: a second start in one process is two passes."""
    model = compiled(double)
    run(replay([shape(2)], calling(model)))
    progress = run(replay([shape(2)], calling(model)))
    assert (progress.passes, progress.compiles) == (2, {"size 2": 0})
    assert progress.proven == {"size 2"}


class Settles(torch.nn.Module):
    """Counts its first calls, up to a number, and its graph is built on the count."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls, self.made = calls, 0

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.made = min(self.made + 1, self.calls)
        return torch.addmm(given, given, given, alpha=self.made)


@pytest.mark.slow
@pytest.mark.parametrize("calls", [0, 1, 2])
@torch.inference_mode()
def test_a_pass_with_settling_calls_is_followed_by_one_with_entries(calls: int, tmp_path: Path):
    """The proof is about entries, and nothing compiles."""
    item = Input(target="embed", name="square", args=(torch.ones(3, 3),))
    model = serve_warm.compile(Settles(calls).eval(), dynamic=False)
    build(tmp_path, lambda: model(*item.args))
    fresh = serve_warm.compile(Settles(calls).eval(), dynamic=False)
    before = SESSION.settling_calls
    with started(tmp_path):
        progress = run(replay([item], calling(fresh)))
        levels = {use.level for use in fresh.__dict__["_serve_warm"].uses()}
    assert SESSION.settling_calls - before == calls
    assert progress.passes == calls + 2
    assert (progress.compiles, progress.proven) == ({"square": 0}, {"square"})
    assert levels == {2}


@pytest.mark.slow
def test_a_model_that_never_gets_quiet_is_not_proven(monkeypatch: pytest.MonkeyPatch):
    """After the last allowed pass the error has the reason of the last compile."""
    model = compiled(double, recompile_limit=64)
    size = 1

    async def call(item: Input) -> None:
        nonlocal size
        size += 1
        model(torch.ones(size))

    monkeypatch.setattr("serve_warm.replica.replay.passes.MAX_PASSES", 3)

    error = failure(NotProven, replay([shape(1)], call))

    assert "after 3 passes over 1 inputs, the model still compiles (1 compiles" in error.message
    assert "with x=float32[4]: " in error.hint
    assert "expected 3, actual 4" in error.hint
    assert error.stage == "REPLAYING"
    assert size == 4


# --- the proof -----------------------------------------------------------------------------
def test_a_compile_that_only_the_proof_meets_is_replayed_and_proven_again():
    """Code that compiles at its second call is quiet at the first."""
    model = compiled(double)
    calls = 0

    async def call(item: Input) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            model(*item.args)

    progress = run(replay([shape(2)], call))

    # quiet · proof fails · compiles, quiet · proof holds
    assert progress.passes == 5
    assert progress.proven == {"size 2"}
    assert progress.unproven == {}


def test_an_input_that_fails_every_proof_is_named_with_its_reason():
    """The proof gives up on this input after some attempts. Other inputs are proven."""
    model = compiled(double, recompile_limit=64)
    calls = 0

    async def call(item: Input) -> None:
        nonlocal calls
        if item.name == "restless":
            # Two replays of one shape, and the proof that follows them meets the next.
            calls += 1
            model(torch.ones(10 + calls // 3))
        else:
            model(*item.args)

    restless = Input(target="embed", name="restless")
    progress = run(replay([shape(2), restless], call))

    assert calls == 3 * PROOF_ATTEMPTS
    assert progress.proven == {"size 2"}
    assert progress.unproven.keys() == {"restless"}
    assert progress.unproven["restless"].startswith("would compile: double (compiled.py:")
    assert "x=float32[13]" in progress.unproven["restless"]
    assert stance() == "default"


@pytest.mark.slow
def test_a_handler_that_swallows_the_proof_is_not_proven():
    """An answer made without the model is no proof that the model is warm."""
    model = compiled(double, recompile_limit=64)
    size = 1

    async def call(item: Input) -> None:
        nonlocal size
        if stance() != "default":
            size += 1
        with contextlib.suppress(RuntimeError):
            model(torch.ones(size))

    progress = run(replay([shape(1)], call))

    assert progress.proven == set()
    assert progress.unproven["size 1"].startswith("would compile: ")


def test_inputs_over_the_recompile_limit_are_never_proven():
    """Code that runs eagerly is detected and named with the setting, without a retry."""
    model = compiled(double)
    inputs = [shape(size) for size in range(1, RECOMPILE_LIMIT + 5)]
    progress = run(replay(inputs, calling(model)))
    assert progress.proven == {f"size {size}" for size in range(1, RECOMPILE_LIMIT + 1)}
    assert len(progress.unproven) == 4
    assert all("recompile_limit=16" in why for why in progress.unproven.values())
    assert progress.passes == 3


@pytest.mark.slow
def test_eager_parts_are_found_beside_parts_that_compile():
    """An input that compiles one function and runs another eagerly is not proven for it."""
    encoder, head = compiled(double), compiled(double, recompile_limit=64)
    inputs = [shape(size) for size in range(1, RECOMPILE_LIMIT + 3)]

    async def call(item: Input) -> None:
        encoder(*item.args)
        head(*item.args)

    progress = run(replay(inputs, call))

    assert all(count >= 1 for count in progress.compiles.values())
    assert progress.proven == {f"size {size}" for size in range(1, RECOMPILE_LIMIT + 1)}


# --- compiled calls of an input ------------------------------------------------------------
class Guarded:
    """A handler whose guard clause answers inputs of one element, without the model."""

    def __init__(self) -> None:
        self.model = compiled(double)

    async def __call__(self, item: Input) -> None:
        if item.args[0].numel() > 1:
            self.model(*item.args)


def test_an_input_that_never_reaches_the_model_is_not_proven():
    """A guard clause is quiet and raises nothing: there is no call that could prove it warm."""
    progress = run(replay([shape(2), shape(1)], Guarded()))
    assert progress.proven == {"size 2"}
    assert progress.unproven.keys() == {"size 1"}
    assert "makes no compiled call" in progress.unproven["size 1"]
    assert progress.passes == 3


@pytest.mark.parametrize("has_compiled", [True, False])
def test_without_any_compiled_call_the_app_decides(has_compiled: bool):
    """An app with something compiled has a false input; one without has nothing to prove."""
    progress = run(replay([shape(1)], Guarded(), has_compiled=lambda: has_compiled))
    assert (progress.proven == {"size 1"}) is not has_compiled
    assert progress.has_compiled is has_compiled


def test_a_remembered_answer_is_not_proven():
    """Only the first replay calls the model, so the proof sees no call, and says why."""
    model = compiled(double)
    answers: dict[str, torch.Tensor] = {}

    async def call(item: Input) -> None:
        if item.name == "other" or item.name not in answers:
            answers[item.name] = model(*item.args)

    other = Input(target="embed", name="other", args=(torch.ones(3),))
    progress = run(replay([shape(2), other], call))

    assert progress.proven == {"other"}
    assert "its handler caches the answer" in progress.unproven["size 2"]


def in_thread(function: Callable[..., Any], *args: Any) -> None:
    """Call a function in another thread, and raise what it raises."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(function, *args).result()


def test_a_call_of_another_thread_is_no_call_of_the_input():
    """A thread of the user's that calls the model all the time proves nothing of a guard clause."""
    guarded, background = Guarded(), compiled(double)
    background(torch.ones(2))
    stop = threading.Event()

    def call_on() -> None:
        while not stop.is_set():
            background(torch.ones(2))

    with ThreadPoolExecutor(1) as threads:
        calling = threads.submit(call_on)
        try:
            progress = run(replay([shape(2), shape(1)], guarded))
        finally:
            stop.set()
    calling.result()

    assert progress.proven == {"size 2"}
    assert "makes no compiled call" in progress.unproven["size 1"]


def test_a_call_of_another_thread_is_no_answer_that_a_handler_remembers():
    """The call was made once, while a guard clause answered a replay."""
    guarded, background = Guarded(), compiled(double)
    background(torch.ones(2))
    replays = 0

    async def call(item: Input) -> None:
        nonlocal replays
        replays += 1
        if replays == 2:
            in_thread(background, torch.ones(2))
        await guarded(item)

    progress = run(replay([shape(2), shape(1)], call))

    assert progress.proven == {"size 2"}
    assert "its handler answers without the model" in progress.unproven["size 1"]


def test_a_compile_of_another_thread_beside_the_proof_is_made_and_is_no_proof():
    """The compile is not the input's, so it is allowed. The proof is repeated afterwards."""
    guarded, background = Guarded(), compiled(double)
    replays = 0
    raised: list[BaseException] = []

    async def call(item: Input) -> None:
        nonlocal replays
        replays += 1
        if replays == 5:  # in the proof, while the input without a call is replayed
            in_thread(compile_once)
        await guarded(item)

    def compile_once() -> None:
        try:
            background(torch.ones(2))
        except RuntimeError as error:
            raised.append(error)

    progress = run(replay([shape(2), shape(1)], call))

    assert raised == []
    assert progress.proven == {"size 2"}
    assert "makes no compiled call" in progress.unproven["size 1"]


def test_calls_in_a_thread_pool_are_those_of_the_input():
    """A pool carries no context; its calls stop when nothing is replayed, and come again."""
    guarded = Guarded()

    with ThreadPoolExecutor(2) as threads:

        async def call(item: Input) -> None:
            if item.args[0].numel() > 1:
                await asyncio.get_running_loop().run_in_executor(threads, guarded.model, *item.args)

        progress = run(replay([shape(3), shape(2), shape(1)], call))

    assert progress.proven == {"size 3", "size 2"}
    assert "makes no compiled call" in progress.unproven["size 1"]


def test_calls_of_a_task_that_a_first_replay_began_cost_no_pass_beyond_the_proof():
    """Like the task of `@serve.batch` in a warm start: one pass, and the proof."""
    model, calls = compiled(double), 0
    model(torch.ones(2))

    async def replayed() -> Progress:
        work: asyncio.Queue[Any] = asyncio.Queue()
        tasks: list[asyncio.Task[None]] = []

        async def work_on() -> None:
            while True:
                x, answer = await work.get()
                answer.set_result(model(x))

        async def call(item: Input) -> None:
            nonlocal calls
            calls += 1
            if not tasks:
                tasks.append(asyncio.create_task(work_on()))
            answer = asyncio.get_running_loop().create_future()
            work.put_nowait((item.args[0], answer))
            await answer

        warmup = replay([shape(2)], call)
        await warmup.until_quiet()
        await warmup.prove()
        tasks[0].cancel()
        return warmup.progress

    progress = asyncio.run(replayed())

    assert progress.proven == {"size 2"}
    assert (calls, progress.passes) == (2, 2)


def test_calls_of_a_thread_that_reads_a_queue_are_those_of_the_input():
    """An engine that was started in `__init__` works for whoever waits for it."""
    model = compiled(double)
    work: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def engine() -> None:
        for x, answer in iter(work.get, None):
            answer.set_result(model(x))

    async def call(item: Input) -> None:
        answer: Future[torch.Tensor] = Future()
        work.put((item.args[0], answer))
        await asyncio.wrap_future(answer)

    thread = threading.Thread(target=engine)
    thread.start()
    try:
        progress = run(replay([shape(2)], call))
    finally:
        work.put(None)
        thread.join()

    assert progress.proven == {"size 2"}
    assert progress.threads == {thread.native_id}


@pytest.mark.slow
def test_a_pool_that_still_compiles_is_not_proven():
    """Its compiles are not refused, since they may be another's: they are counted."""
    model = compiled(double, recompile_limit=64)
    size = 1

    with ThreadPoolExecutor(1) as threads:

        async def call(item: Input) -> None:
            nonlocal size
            if stance() != "default":
                size += 1
            await asyncio.get_running_loop().run_in_executor(threads, model, torch.ones(size))

        progress = run(replay([shape(1)], call))

    assert progress.proven == set()
    why = progress.unproven["size 1"]
    assert why.startswith("still needed compile work: 1 compiles; double (compiled.py:")


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("copies_context", [True, False])
def test_calls_elsewhere_cost_no_pass_beyond_the_proof(copies_context: bool, concurrency: int):
    """Of tasks and `to_thread`, which copy the context, and of a pool, which does not."""
    model = compiled(double)
    replays = 0

    async def call(item: Input) -> None:
        nonlocal replays
        replays += 1
        # One at a time: concurrent first calls race in Dynamo's lookup.
        lock = asyncio.Lock()

        async def one() -> None:
            async with lock:
                if copies_context:
                    await asyncio.create_task(asyncio.to_thread(model, *item.args))
                else:
                    await asyncio.get_running_loop().run_in_executor(None, model, *item.args)

        await asyncio.gather(*(one() for _ in range(concurrency)))

    progress = run(replay([shape(2)], call))

    assert progress.proven == {"size 2"}
    assert replays == progress.passes
    assert progress.passes == 3 or not copies_context


def test_a_call_on_another_rank_is_a_call_of_the_input():
    """Ranks compute one app together: one of them may have nothing compiled to call."""

    class Peer(Echo):
        async def agree(self, what: str, mine: Any, *, timeout_s: float) -> list[Any]:
            both = await super().agree(what, mine, timeout_s=timeout_s)
            if what == "compiled calls":
                both[1] = {"own": ["size 1"], "beside": [], "has compiled": True}
            return both

    progress = run(replay([shape(2), shape(1)], Guarded(), ranks=Peer()))

    assert progress.proven == {"size 2", "size 1"}


# --- memory --------------------------------------------------------------------------------
class Memory:
    """A handler that runs out of memory for inputs of some sizes, a set number of times."""

    def __init__(self, **times: int) -> None:
        self._left = {name.replace("_", " "): many for name, many in times.items()}
        self._model = compiled(double)
        self.calls: list[str] = []

    async def __call__(self, item: Input) -> None:
        self.calls.append(item.name)
        if self._left.get(item.name, 0):
            self._left[item.name] -= 1
            message = "CUDA out of memory. Tried to allocate 9 GiB."
            raise torch.OutOfMemoryError(message)
        self._model(*item.args)


@pytest.mark.slow
def test_an_input_that_does_not_fit_is_left_out_and_the_others_are_proven():
    """The input is tried twice, and skipped in later passes. The report names it and the reason."""
    memory = Memory(size_4=99)
    progress = run(replay([shape(4), shape(3), shape(2)], memory))
    assert memory.calls.count("size 4") == 2
    assert progress.proven == {"size 3", "size 2"}
    assert list(progress.unproven) == list(progress.left_out) == ["size 4"]
    left_out, *others = progress.results()
    assert (left_out.left_out, left_out.proven) == (True, False)
    assert "left out because memory ran out: OutOfMemoryError: CUDA" in left_out.note
    assert "Tried to allocate 9 GiB" in left_out.note
    assert not any(other.left_out for other in others)


@pytest.mark.slow
def test_what_fits_once_memory_is_freed_is_not_left_out():
    """Cached memory prevents the first attempt, but not the second."""
    memory = Memory(size_4=1)
    progress = run(replay([shape(4), shape(3)], memory))
    assert progress.left_out == {}
    assert progress.proven == {"size 4", "size 3"}


@pytest.mark.slow
def test_a_replica_that_fits_no_input_is_no_replica():
    """Such a replica could serve nothing."""
    error = failure(ReplayFailed, replay([shape(3), shape(2)], Memory(size_3=99, size_2=99)))
    assert error.message.startswith("all 2 inputs ran out of memory")
    assert "Tried to allocate 9 GiB" in error.message
    assert "smaller inputs" in error.hint


# --- failures ------------------------------------------------------------------------------
def test_an_input_that_raises_is_named_with_the_cause():
    async def call(item: Input) -> None:
        if item.name == "size 2":
            message = "first line\nsecond line"
            raise KeyError(message)

    warmup = replay([shape(3), shape(2), shape(1)], call)
    error = failure(ReplayFailed, warmup)

    assert error.message.startswith("input 'size 2' raised KeyError: 'first line\\nsecond line' (")
    assert re.search(r" \(test_passes\.py:\d+, in call\)$", error.message)
    assert "fix warmup_inputs()" in error.hint
    assert error.input == "size 2"
    assert isinstance(error.__cause__, KeyError)
    assert warmup.progress.first_s.keys() == {"size 3"}


@pytest.mark.parametrize(
    ("raised", "named"),
    [
        (asyncio.CancelledError(), "CancelledError"),
        (SystemExit(3), "RuntimeError: the call tried to end the process"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_target_that_raises_what_ends_others_is_a_failure_of_its_input(
    raised: BaseException, named: str
):
    """Nobody cancelled, no signal occurred and no generator was closed: the start goes on."""

    async def call(item: Input) -> None:
        raise raised

    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(failure, ReplayFailed, replay([shape(2)], call)).result(60)

    assert "input 'size 2' raised " in error.message
    assert named in error.message
    assert named in failure(ReplayFailed, replay([shape(2)], call)).message


@pytest.mark.parametrize(
    ("number", "handler", "raised"),
    [
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGTERM, lambda number, frame: sys.exit(128 + number), SystemExit),
    ],
)
def test_a_signal_during_a_call_ends_the_process(
    number: signal.Signals, handler: Callable[..., Any], raised: type[BaseException]
):
    """An exception of a signal handler is not a failure of the called input."""

    async def call(item: Input) -> None:
        signal.raise_signal(number)
        await asyncio.sleep(60)

    before = signal.signal(number, handler)
    try:
        with pytest.raises(raised):
            run(replay([shape(2)], call))

        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


@pytest.mark.slow
def test_a_deadline_in_the_middle_says_what_was_covered():
    """The input that was awaited is named and cancelled, and the count of those before it."""
    cancelled = []

    async def call(item: Input) -> None:
        if item.name == "stuck":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(item.name)
                raise

    stuck = Input(target="embed", name="stuck")
    waits = Waits(["Ranker", "Reader"], list, timeline=Timeline(), changed=lambda: None)
    warmup = replay([shape(2), stuck, shape(1)], call, deadline_s=1.0, waits=waits)
    error = failure(WarmupTimeout, warmup)

    assert cancelled == ["stuck"]
    assert "input 'stuck' did not finish within 1 s; 1 of 3 inputs were replayed" in error.message
    assert "it might be waiting for other deployments: Ranker, Reader" in error.message
    assert "raise input_deadline_s" in error.hint


def test_a_cancelled_warm_up_cancels_its_input():
    """Serve may stop a replica that is starting: the call that is under way ends with it."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def call(item: Input) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def stopped() -> bool:
        warmup = asyncio.ensure_future(replay([shape(2)], call).until_quiet())
        await begun.wait()
        warmup.cancel()
        await asyncio.wait({warmup})
        return warmup.cancelled() and ended.is_set()

    assert asyncio.run(stopped())


@pytest.mark.slow
def test_a_deadline_that_passed_in_a_blocking_call_is_seen_after_it():
    """A compile that blocks the loop cannot be interrupted: the next input is not begun."""
    begun: list[str] = []

    async def call(item: Input) -> None:
        begun.append(item.name)
        time.sleep(1.2)  # noqa: ASYNC251  (a compile blocks just so)

    error = failure(WarmupTimeout, replay([shape(2), shape(1)], call, deadline_s=1.0))

    assert begun == ["size 2"]
    assert "1 of 2 inputs were replayed" in error.message


def test_one_input_has_a_deadline_of_its_own():
    """One endless input does not use the whole time of the start."""

    async def call(item: Input) -> None:
        await asyncio.Event().wait()

    error = failure(WarmupTimeout, replay([shape(2)], call, input_s=0.1))

    assert "0 of 1 inputs were replayed, 0 proven" in error.message


# --- ranks that compute together: test_ranks.py has real ones --------------------------------
class Echo(Ranks):
    """One of two ranks, whose peer always gives the same answers."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 2
        self.asked: list[str] = []

    async def agree(self, what: str, mine: Any, *, timeout_s: float) -> list[Any]:
        self.asked.append(what)
        return [mine, mine]


def test_a_rank_forbids_nothing_in_its_proof():
    """A call that raises would leave the other ranks in their collectives: it is counted."""
    model = compiled(double)
    stances: list[str] = []

    async def call(item: Input) -> None:
        stances.append(stance())
        model(*item.args)
        if len(stances) == 3:  # the proof
            model(torch.ones(5))

    progress = run(replay([shape(2)], call, ranks=Echo()))

    assert set(stances) == {"default"}
    assert progress.passes == 5
    assert progress.proven == {"size 2"}


def test_a_rank_leaves_no_input_out():
    """If one rank runs out of memory, the others are in the middle of the same call."""

    async def call(item: Input) -> None:
        if item.name == "size 4":
            raise torch.OutOfMemoryError("CUDA out of memory")

    error = failure(ReplayFailed, replay([shape(4), shape(2)], call, ranks=Echo()))

    assert "'size 4' raised OutOfMemoryError" in error.message


def test_ranks_come_to_the_same_points():
    ranks = Echo()
    run(replay([shape(2)], calling(compiled(double)), ranks=ranks))
    points = ("pass 1", "pass 2", "inputs to replay again", "compiled calls", "the proof")
    assert ranks.asked == [*points]
