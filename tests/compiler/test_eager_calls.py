# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that run eagerly instead of compiling: which they are, and what is recorded about them."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import serve_warm
from compiled import compiled, double, fresh
from levels import answered_eagerly, answers_in
from models import Scaled, close, x
from serve_warm.compiler import eager_calls, evidence
from serve_warm.compiler.eager_calls import (
    KINDS_KEPT,
    OTHERS,
    EagerAnswers,
    EagerRecord,
    answering,
)
from serve_warm.compiler.watch import watch_process
from serve_warm.report import EagerCalls, EagerReason

# Functions of torch.compile ----------------------------------------------------------------------


def test_only_a_call_without_compiled_code_runs_eagerly():
    """And it names the guard that failed, the arguments, and the code that ran."""
    function = compiled(double, dynamic=False)
    function(torch.ones(3))
    with answered_eagerly() as record:
        for size in (3, 4, 4, 3):
            assert torch.equal(function(torch.ones(size)), double(torch.ones(size)))

    (seen,) = record.calls()
    assert seen.callable.startswith("double (")
    assert (seen.reason, seen.calls) == (EagerReason.UNFORESEEN, 2)
    assert "[4]" in seen.call
    assert "size mismatch" in seen.why


def test_a_call_that_never_compiled_runs_eagerly():
    function = compiled(double)
    with answered_eagerly() as record:
        assert torch.equal(function(torch.ones(3)), double(torch.ones(3)))
    assert [seen.calls for seen in record.calls()] == [1]


@pytest.mark.parametrize("kind", ["torch.compile", "serve_warm.compile"])
def test_an_error_keeps_no_arguments_alive(kind: str):
    """On a GPU, out of memory is such an error, and the batch would stay allocated."""

    def fails(given: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of something")

    compile_ = compiled if kind == "torch.compile" else serve_warm.compile
    function: Any = compile_(fails)
    gc.disable()
    try:
        with answered_eagerly():
            given = torch.ones(3)
            seen = weakref.ref(given)
            with contextlib.suppress(RuntimeError):
                function(given)
            del given
            assert seen() is None
    finally:
        gc.enable()


def test_an_argument_that_cannot_be_described_fails_no_call():
    class Strange(dict[str, int]):
        def items(self) -> Any:
            raise KeyError("items")

    function: Any = serve_warm.compile(lambda given, more: given + len(more))
    with answered_eagerly() as record:
        assert function(torch.ones(1), Strange(a=1)).item() == 2
    assert [seen.calls for seen in record.calls()] == [1]


def test_an_argument_may_be_named_self():
    function: Any = serve_warm.compile(lambda given, **more: given + more["self"])
    with answered_eagerly():
        assert function(torch.ones(1), self=3).item() == 4


OPTIONS: dict[str, dict[str, Any]] = {
    "fullgraph": {"fullgraph": True},
    "dynamic": {"dynamic": True},
    "graph mode": {"mode": "reduce-overhead", "backend": "inductor"},
}


@pytest.mark.parametrize("options", [pytest.param(o, id=name) for name, o in OPTIONS.items()])
def test_all_forms_of_torch_compile_run_eagerly(options: dict[str, Any]):
    arguments = {"backend": "eager", **options}
    function = torch.compile(fresh(double), **arguments)
    with answered_eagerly() as record:
        assert torch.equal(function(torch.ones(3)), double(torch.ones(3)))
    assert [seen.calls for seen in record.calls()] == [1]


def test_a_module_compiled_in_place_runs_eagerly():
    module = Scaled().eval()
    module.compile(backend="eager")
    with answered_eagerly() as record, torch.inference_mode():
        close(module(x()), module.forward(x()))
    assert [seen.callable.partition(" ")[0] for seen in record.calls()] == ["forward"]


def test_an_exported_module_runs_eagerly():
    exported = torch.export.export(Scaled().eval(), (x(),)).module()
    function = torch.compile(exported, backend="eager", dynamic=False)
    with answered_eagerly() as record, torch.inference_mode():
        close(function(x()), exported(x()))
    assert [seen.calls for seen in record.calls()] == [1]


def test_a_call_with_compiled_code_does_not_wait_for_an_eager_one():
    """Neither holds a lock that the other needs, while it runs on another thread."""
    began, ended = threading.Event(), threading.Event()

    def wait(given: torch.Tensor) -> torch.Tensor:
        if len(given) == 4 and not torch.compiler.is_compiling():
            began.set()
            assert ended.wait(60)
        return given * 2

    function = compiled(wait)
    function(torch.ones(3))
    with answered_eagerly() as record, ThreadPoolExecutor(1) as other:
        unforeseen = other.submit(function, torch.ones(4))
        assert began.wait(60)
        for _ in range(100):
            assert torch.equal(function(torch.ones(3)), torch.full((3,), 2.0))
        ended.set()
        assert torch.equal(unforeseen.result(), torch.full((4,), 2.0))
    assert [seen.calls for seen in record.calls()] == [1]


def test_a_storm_of_unforeseen_calls_compiles_nothing_and_keeps_nothing():
    """A scanner sends 10,000 texts, each of another length. Torch remembers none of them."""
    function = compiled(double)
    function(torch.ones(3))
    code = torch._dynamo.eval_frame.innermost_fn(function).__code__
    kept = len(torch._dynamo.eval_frame._debug_get_cache_entry_list(code))
    with answered_eagerly() as record:
        for size in range(4, 10_004):
            function(torch.ones(size))
        assert torch.equal(function(torch.ones(3)), double(torch.ones(3)))
    assert sum(seen.calls for seen in record.calls()) == 10_000
    assert len(torch._dynamo.eval_frame._debug_get_cache_entry_list(code)) == kept == 1


def test_compiled_code_inside_an_eager_call_stays_compiled():
    """The inner function has code for this call. Only the outer one has not."""
    inner = compiled(double)
    with evidence.note_calls() as calls:
        inner(torch.ones(3))
        outer = compiled(lambda given: inner(given) + given.sum())
        calls.threads.clear()
        with answered_eagerly() as record:
            outer(torch.ones(3))
    assert [seen.callable.partition(" ")[0] for seen in record.calls()] == ["<lambda>"]
    assert calls.threads, "the inner function ran compiled code"


def test_after_a_graph_break_the_parts_that_are_compiled_stay_so():
    """Only the part without code runs eagerly, and the record says which part it was."""

    def broken(given: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        twice = given * 2
        torch._dynamo.graph_break()
        return twice.sum() + other * 2

    function = compiled(broken, dynamic=False)
    function(torch.ones(3), torch.ones(2))
    with evidence.note_calls() as calls, answered_eagerly() as record:
        result = function(torch.ones(3), torch.ones(5))
    assert torch.equal(result, torch.full((5,), 8.0))
    (seen,) = record.calls()
    assert "resume" in seen.callable
    assert calls.threads, "the part before the break ran compiled code"


def test_a_replay_compiles_as_ever():
    """A replica may prove inputs while it answers requests eagerly."""
    function, watch = compiled(double), watch_process()
    before = watch.counts()
    with evidence.note_calls() as calls, calls.of_replay():
        record = EagerRecord()
        takes = lambda: not evidence.is_replay()  # noqa: E731
        with answering(answers_in(record, takes=takes)):
            function(torch.ones(3))
    assert (watch.counts() - before).compiles == 1
    assert record.calls() == []


def test_a_task_that_a_replay_began_runs_eagerly_after_it():
    """As the task of `@serve.batch` does, which keeps the context of the call that made it."""
    function, kept = compiled(double, dynamic=False), []
    with evidence.note_calls() as calls, calls.of_replay():
        function(torch.ones(3))
        kept.append(contextvars.copy_context())
    record = EagerRecord()
    takes = lambda: not evidence.is_replay()  # noqa: E731
    with answering(answers_in(record, takes=takes)):
        kept[0].run(function, torch.ones(5))
    assert [seen.calls for seen in record.calls()] == [1]


def test_calls_of_replays_are_recorded_apart():
    """What they call is declared, and needs no advice."""
    function, new = compiled(double, dynamic=False), []
    record = EagerRecord()
    answers = answers_in(record, on_new=lambda _, call, kind: new.append(call))
    with answering(answers):
        with evidence.note_calls() as calls, calls.of_replay():
            function(torch.ones(3))
        assert record.calls() == []
        function(torch.ones(3))
        function(torch.ones(4))
    assert [seen.calls for seen in record.calls()] == [1, 1]
    assert len(new) == 1
    assert "[4]" in new[0]


def test_no_more_calls_are_eager_than_there_are_calls():
    """After graph breaks, each part counts as a call, and as an eager one."""

    def broken(given: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            given = given * 2
            torch._dynamo.graph_break()
        return given

    function, watch = compiled(broken, dynamic=False), watch_process()
    function(torch.ones(3))
    before = watch.counts()
    with answered_eagerly() as record:
        for size in (3, 5, 6):
            assert torch.equal(function(torch.ones(size)), torch.full((size,), 8.0))
    assert sum(seen.calls for seen in record.calls()) <= (watch.counts() - before).calls


# The record --------------------------------------------------------------------------------------


def noting(record: EagerRecord) -> tuple[EagerAnswers, list[str]]:
    new: list[str] = []
    answers = answers_in(record, on_new=lambda function, call, _: new.append(f"{function}{call}"))
    return answers, new


def test_a_storm_of_kinds_of_calls_is_counted_in_bounded_memory():
    """A scanner sends 10,000 texts, each of another length."""
    record = EagerRecord()
    answers, new = noting(record)
    for number in range(10_000):
        answers.note("forward", f"([{number}])", lambda: "size mismatch").kind.took(0.1)
    found = record.calls()
    assert sum(seen.calls for seen in found) == 10_000
    assert len(found) == len(new) + 1 == KINDS_KEPT + 1
    assert (found[0].call, found[0].calls) == (OTHERS, 10_000 - KINDS_KEPT)
    assert sum(seen.seconds for seen in found) == pytest.approx(1000)


def test_a_storm_of_callables_is_counted_in_bounded_memory():
    record = EagerRecord()
    answers, _ = noting(record)
    for number in range(10_000):
        answers.note(f"function {number}", "()", str)
    found = record.calls()
    assert sum(seen.calls for seen in found) == 10_000
    assert len(found) == 2 * KINDS_KEPT + 1
    assert (found[0].callable, found[0].call) == (OTHERS, OTHERS)


def test_a_reason_is_asked_for_once_for_each_kind():
    record = EagerRecord()
    answers, new = noting(record)
    asked: list[int] = []

    def why() -> str:
        asked.append(1)
        return "password=geheim" + "x" * 10_000

    for _ in range(3):
        answers.note("forward", "([3])", why)
    (seen,) = record.calls()
    assert (len(asked), new, seen.calls) == (1, ["forward([3])"], 3)
    assert "geheim" not in seen.why
    assert len(seen.why) < 5_000


def test_the_median_is_that_of_the_latest_calls():
    record = EagerRecord()
    answers, _ = noting(record)
    for seconds in (*[9.0] * 100, *[1.0] * 40, *[2.0] * 24):
        answers.note("forward", "([3])", str).kind.took(seconds)
    assert record.calls()[0].median_s == 1.0


def test_a_call_that_was_not_timed_has_no_median():
    record = EagerRecord()
    answers, _ = noting(record)
    answers.note("forward", "([3])", str)
    assert record.calls()[0] == EagerCalls(
        callable="forward", call="([3])", reason=EagerReason.UNFORESEEN, calls=1
    )


# GPU memory ------------------------------------------------------------------------------------


class NoMemory(Exception):
    pass


def memory_answers(record: EagerRecord) -> EagerAnswers:
    return answers_in(
        record,
        no_memory=lambda function, seconds: NoMemory(f"{function}: {seconds:.0f} s"),
    )


def greedy(x: torch.Tensor) -> torch.Tensor:
    if len(x) > 3:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return x + 1


def test_calls_that_run_out_of_memory_are_refused_for_a_while(monkeypatch):
    """The request gets a clear error, other calls go on, and later the calls are tried again."""
    now = 1000.0
    monkeypatch.setattr(eager_calls.time, "monotonic", lambda: now)
    record = EagerRecord()
    answers = memory_answers(record)
    called: list[int] = []

    def call(size: int) -> object:
        called.append(size)
        return greedy(torch.ones(size))

    def ask(size: int) -> object:
        return eager_calls.answer(answers, "greedy", call, (size,), {}, why=str)

    for _ in range(3):
        with pytest.raises(NoMemory, match="greedy: 60 s"):
            ask(4)
    assert called == [4], "calls like it are refused without running"
    assert torch.equal(ask(3), torch.full((3,), 2.0))
    now += 61
    with pytest.raises(NoMemory):
        ask(4)
    assert called == [4, 3, 4]
    assert {(seen.calls, seen.refused) for seen in record.calls()} == {(4, 4), (1, 0)}


def test_kinds_that_are_counted_together_are_not_refused_together():
    """After a storm, one call that runs out of memory says nothing about the others."""
    record = EagerRecord()
    answers = memory_answers(record)
    for number in range(KINDS_KEPT):
        answers.note("forward", f"([{number}])", str)
    with pytest.raises(NoMemory, match="forward: 0 s"):
        answers.note("forward", "([x])", str).ended(0.0, torch.OutOfMemoryError())
    answers.note("forward", "([y])", str).ended(0.0)


def test_an_eager_call_through_dynamo_that_runs_out_of_memory_is_refused_too():
    """As a serve_warm function makes it, whose other calls torch.compile has compiled."""
    function = compiled(greedy, dynamic=False)
    function(torch.ones(2))
    record = EagerRecord()
    with answering(memory_answers(record)):
        for _ in range(2):
            with pytest.raises(NoMemory):
                eager_calls.run_below(function, (torch.ones(5),), {})
        assert torch.equal(function(torch.ones(2)), torch.full((2,), 2.0))
    assert [(seen.calls, seen.refused) for seen in record.calls()] == [(2, 2)]


def test_another_error_is_raised_as_it_is():
    answers = memory_answers(EagerRecord())
    with pytest.raises(ZeroDivisionError):
        eager_calls.answer(answers, "one", lambda: 1 // 0, (), {}, why=str)
