# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The recorder: it counts kinds of calls, keeps nothing of requests, and breaks no call."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import serve_warm
from levels import answered_eagerly, forget_callables, started
from models import Scaled, scaled_fixture, x  # noqa: F401 - a fixture
from serve_warm.compiler import evidence
from serve_warm.learn.recorded import arguments_of
from serve_warm.learn.recorder import KINDS_KEPT, KINDS_SOON, RARE, REQUIRES_GRAD, Recorder
from serve_warm.precompile.calls.signature import describe
from serve_warm.precompile.dispatch.call_counts import CallCounts, kind_of
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.facts.names import describe_tensor
from serve_warm.precompile.recording import find_callables
from serve_warm.replica.serve.model_thread import ModelThread


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Record the calls of this test."""
    forget_callables()
    recorder = SESSION.recorder = Recorder()
    recorder.begin()
    yield recorder
    SESSION.recorder = None


def compiled(fn: Any) -> Any:
    return serve_warm.compile(fn, backend="eager", dynamic=False)


def shapes(recorder: Recorder) -> dict[str, int]:
    return {
        ", ".join(each.tensors).partition(" strides")[0]: each.calls for each in recorder.calls()[0]
    }


def test_calls_are_counted_by_shape(recorder: Recorder):
    function = compiled(lambda given: given + 1)
    for size in (3, 4, 3, 3):
        function(torch.ones(size))
    assert shapes(recorder) == {"Tensor float32[3]": 3, "Tensor float32[4]": 1}


def test_what_was_forgotten_counts_from_zero(recorder: Recorder):
    function = compiled(lambda given: given + 1)
    function(torch.ones(3))
    function(torch.ones(4))
    recorder.begin()
    function(torch.ones(3))
    assert shapes(recorder) == {"Tensor float32[3]": 1}


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(3, dtype=torch.float64),
        torch.ones(6)[::2],
        torch.ones(1, 3),
        torch.ones(3, dtype=torch.int64),
    ],
    ids=["dtype", "stride", "rank", "integers"],
)
def test_what_makes_another_kind(recorder: Recorder, other: torch.Tensor):
    function = compiled(lambda given: given + 1)
    function(torch.ones(3))
    function(other)
    assert [each.calls for each in recorder.calls()[0]] == [1, 1]


def test_numbers_and_modes_are_recorded(recorder: Recorder):
    function = compiled(lambda given, n, scale=1.0, flags=(): given * n * scale)
    with torch.inference_mode():
        function(torch.ones(3), 2, scale=0.5, flags=(True, None))
    (call,) = recorder.calls()[0]
    assert call.structure == "t0, 2, scale=0.5, flags=(True, None, )"
    assert call.modes == {
        "inference_tensors": True,
        "inference_mode": True,
        "grad_mode": False,
    }
    assert call.why_not() == ""


def test_modes_and_where_a_tensor_was_made_are_told_apart(recorder: Recorder):
    """Torch's guards tell them apart, so each has code of its own."""
    function = compiled(lambda given: given + 1)
    outside = torch.ones(3)
    with torch.inference_mode():
        function(outside)
        function(torch.ones(3))
    with torch.no_grad():
        function(outside)
    function(outside)
    found = [tuple(each.modes.values()) for each in recorder.calls()[0]]
    assert sorted(found) == [
        (False, False, False),
        (False, False, True),
        (False, True, False),
        (True, True, False),
    ]


def test_strings_of_requests_are_not_recorded(recorder: Recorder):
    function = compiled(lambda given, text: given + len(text))
    function(torch.ones(3), "my password is geheim")
    (call,) = recorder.calls()[0]
    assert "geheim" not in repr(call.to_json())
    assert call.why_not() == "an argument is a string of a request, which was not recorded"


def test_names_that_come_from_requests_are_not_recorded(recorder: Recorder):
    function = compiled(lambda given, **options: given + len(options))
    function(torch.ones(3), **{"my password is geheim": 1})
    assert "geheim" not in repr(recorder.to_json())


def test_nothing_is_recorded_before_recording_begins_or_in_a_replay():
    forget_callables()
    recorder = SESSION.recorder = Recorder()
    function = compiled(lambda given: given + 1)
    function(torch.ones(3))
    recorder.begin()
    with evidence.note_calls() as calls, calls.of_replay():
        function(torch.ones(4))
    assert recorder.calls()[0] == []
    function(torch.ones(3))
    SESSION.recorder = None
    assert shapes(recorder) == {"Tensor float32[3]": 1}


@torch.inference_mode()
def test_calls_that_entries_answer_are_counted(scaled: tuple[Path, Any]):
    """Before and after READY: those before do not count."""
    folder, _ = scaled
    model = serve_warm.compile(Scaled().eval(), dynamic=False)
    with started(folder):
        recorder = SESSION.recorder = Recorder()
        for _ in range(3):
            model(x(), 1.0)
        recorder.begin()
        assert recorder.calls()[0] == []
        for _ in range(5):
            model(x(), 1.0)
        SESSION.recorder = None
    (call,) = recorder.calls()[0]
    assert (call.structure, call.calls) == ("t0, 1.0", 5)


@torch.inference_mode()
def test_calls_that_no_entry_answers_are_counted_once(scaled: tuple[Path, Any]):
    """With `after_ready: eager`, no dispatcher counts them."""
    folder, _ = scaled
    model = serve_warm.compile(Scaled().eval(), dynamic=False)
    with started(folder), answered_eagerly():
        recorder = SESSION.recorder = Recorder()
        recorder.begin()
        model(x(), 1.0)
        for _ in range(4):
            model(torch.ones(7, 4), 1.0)
        SESSION.recorder = None
    assert shapes(recorder) == {"Tensor float32[7, 4]": 4, "Tensor float32[3, 4]": 1}


class Odd:
    """An argument of a class that no entry takes."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("asked")

    __hash__ = None  # type: ignore[assignment]


def cycle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


STRANGE: dict[str, Any] = {
    "class": Odd(),
    "generator": (i for i in range(3)),
    "cycle": cycle(),
    "deep": None,
    "nan": float("nan"),
    "huge": 1 << 5000,
    "set": {1, 2},
    "lambda": lambda: 1,
    "bytes": b"secret",
    "nested": [torch.ones(2), {"a": (torch.ones(3), {"b": [1, "x"]})}],
}


@pytest.mark.parametrize("name", STRANGE)
def test_no_argument_breaks_a_call(name: str, recorder: Recorder):
    given = STRANGE[name]
    if name == "deep":
        given = []
        for _ in range(2000):
            given = [given]
    counts = compiled(lambda tensor, other: tensor)._serve_warm.call_counts
    for _ in range(3):
        recorder.note(counts, (torch.ones(3), given), {})
    for call in recorder.calls()[0]:
        assert "secret" not in repr(call.to_json())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3, 4).T,
        torch.ones((), dtype=torch.bfloat16),
        torch.ones(2, 0),
        torch.ones(1, 3).expand(4, 3),
    ],
    ids=["transposed", "scalar", "empty", "expanded"],
)
def test_a_tensor_is_described_as_in_signatures(recorder: Recorder, tensor: torch.Tensor):
    recorder.note(compiled(lambda given: given)._serve_warm.call_counts, (tensor,), {})
    ((call,), _) = recorder.calls()
    assert call.tensors == (describe_tensor(tensor),)


def test_calls_with_and_without_gradients_are_told_apart(recorder: Recorder):
    counts = compiled(lambda given: given)._serve_warm.call_counts
    recorder.note(counts, (torch.ones(3, requires_grad=True),), {})
    recorder.note(counts, (torch.ones(3),), {})
    calls, not_recorded = recorder.calls()
    assert [each.calls for each in calls] == [1]
    assert not_recorded == {REQUIRES_GRAD: 1}


class Unlike:
    """A key of a dict that cannot be compared, and whose hash is that of all others."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ValueError("asked")


def test_keys_of_other_classes_are_not_compared(recorder: Recorder):
    """Their code must not run, or raise, in a request."""
    counts = compiled(lambda given, other: given)._serve_warm.call_counts
    for _ in range(2):
        recorder.note(counts, (torch.ones(3), {Unlike(): 1}), {})
    assert sum(recorder.calls()[1].values()) == 2


def test_calls_of_the_model_thread_are_marked(recorder: Recorder):
    """A replay makes them there again."""
    counts = compiled(lambda given: given)._serve_warm.call_counts
    thread = ModelThread(object(), may_change=lambda: True)
    asyncio.run(thread.run(recorder.note, (counts, (torch.ones(3),), {}), {}))
    recorder.note(counts, (torch.ones(4),), {})
    found = {each.tensors[0][:17]: each.on_model_thread for each in recorder.calls()[0]}
    assert found == {"Tensor float32[3]": True, "Tensor float32[4]": False}


def test_calls_with_gradients_are_not_recorded(recorder: Recorder):
    counts = compiled(lambda given: given)._serve_warm.call_counts
    recorder.note(counts, (torch.ones(3, requires_grad=True),), {})
    assert recorder.calls() == ([], {REQUIRES_GRAD: 1})


def test_calls_that_cannot_be_recorded_are_counted(recorder: Recorder):
    """The share of a plan is of all calls."""
    counts = compiled(lambda given, other: given)._serve_warm.call_counts
    for _ in range(3):
        recorder.note(counts, (torch.ones(3), Odd()), {})
    calls, not_recorded = recorder.calls()
    assert calls == []
    ((why, count),) = not_recorded.items()
    assert ("Odd" in why, count) == (True, 3)


def test_a_storm_of_kinds_keeps_those_of_users(recorder: Recorder):
    """A scanner sends 10,000 sizes between the requests of users."""
    counts = compiled(lambda given: given)._serve_warm.call_counts
    for size in range(10_000):
        recorder.note(counts, (torch.ones(size + 1),), {})
        for usual in (1, 2, 3):
            recorder.note(counts, (torch.ones(usual, 2),), {})
    found, not_recorded = recorder.calls()
    assert len(found) <= KINDS_KEPT
    assert [each.calls for each in found[:3]] == [10_000] * 3
    # The share of a plan is of all calls, also of those whose kind was forgotten.
    assert sum(each.calls for each in found) + not_recorded[RARE] == 40_000


def test_calls_that_a_dispatcher_counts_without_their_kind_are_said(recorder: Recorder):
    """A dispatcher tells a number of kinds apart, and counts all others together."""
    function = compiled(lambda given: given)
    counts = function._serve_warm.call_counts
    recorder.begin()
    counts.by_use["other calls", 2, "", ""] = 7
    assert recorder.calls() == ([], {RARE: 7})
    recorder.begin()
    assert recorder.calls() == ([], {})


def test_a_model_that_was_compiled_again_has_the_number_of_a_start(recorder: Recorder):
    """After an update the old model may still be counted, but a start compiles one model."""
    old = compiled(torch.nn.ReLU())
    old(torch.ones(3))
    counts = old._serve_warm.call_counts
    new = compiled(torch.nn.ReLU())
    new(torch.ones(4))
    del old
    gc.collect()
    found = {each.tensors[0][:18]: each.number for each in recorder.calls()[0]}
    assert found == {"Tensor float32[3] ": 1, "Tensor float32[4] ": 0}
    assert counts.name == new._serve_warm.call_counts.name
    (answers,) = {each.call_counts for each in find_callables(counts.name, 1)}
    assert answers is new._serve_warm.call_counts  # so a plan with the number 1 can be replayed


def test_one_tensor_twice_by_keyword_is_a_kind_of_its_own(recorder: Recorder):
    function = compiled(lambda *, x, y: x + y)
    same = torch.ones(3)
    function(x=same, y=same)
    for _ in range(3):
        function(x=torch.ones(3), y=torch.ones(3))
    calls, why = recorder.calls()
    assert ([each.calls for each in calls], why) == ([3], {"a tensor is passed more than once": 1})


def test_nested_lists_take_no_memory(recorder: Recorder):
    function = compiled(torch.compiler.disable(lambda x, ids: x))
    for shift in range(20):
        rows = [[[shift + n] * 30 for n in range(30)] for _ in range(30)]
        function(torch.ones(1), rows)
    calls, why = recorder.calls()
    assert (calls, why) == ([], {"the arguments have more than 256 items": 20})
    ((key, kind),) = vars(recorder)["_kinds"].items()
    assert len(key) == 2
    assert kind.arguments == ((), {})


def test_threads_record_together(recorder: Recorder):
    function = compiled(lambda given: given + 1)
    function(torch.ones(1))

    def call() -> None:
        for size in range(1, 50):
            recorder.note(function._serve_warm.call_counts, (torch.ones(size),), {})

    threads = [threading.Thread(target=call) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(recorder.calls()[0]) == 49


def test_equal_classes_are_told_apart_by_number(recorder: Recorder):
    one, two = (serve_warm.compile(torch.nn.ReLU(), backend="eager") for _ in range(2))
    one(torch.ones(3))
    two(torch.ones(4))
    assert sorted((each.number, each.tensors[0][:18]) for each in recorder.calls()[0]) == [
        (0, "Tensor float32[3] "),
        (1, "Tensor float32[4] "),
    ]


def test_what_a_replay_could_not_make_is_left_out_with_its_reason(recorder: Recorder):
    function = compiled(lambda *given: torch.zeros(1))
    one, two, marked = torch.ones(3), torch.ones(3), torch.ones(3)
    torch._dynamo.mark_dynamic(marked, 0)
    for args in ((one, two), (one, one), (marked,), ([one, one],)):
        function(*args)
    with torch.autocast("cpu"):
        function(one, two)
    calls, why = recorder.calls()
    assert [each.calls for each in calls] == [1]
    assert why == {
        "a tensor is passed more than once": 2,
        "a tensor has attributes of its own, as those of mark_dynamic": 1,
        "it is called under autocast": 1,
    }


def test_zeros_of_both_signs_are_told_apart(recorder: Recorder):
    """They are equal, and entries tell them apart."""
    function = compiled(lambda x, number: x + number)
    for number in (0.0, -0.0, -0.0):
        function(torch.ones(1), number)
    found = {each.structure: each.calls for each in recorder.calls()[0]}
    assert found == {"t0, 0.0": 1, "t0, -0.0": 2}


def test_sizes_are_told_apart(recorder: Recorder):
    function = compiled(lambda x, size: x + size[0])
    for size in (torch.Size([2, 3]), torch.Size([3, 2]), torch.Size([2, 3])):
        function(torch.ones(1), size)
    assert sorted(each.calls for each in recorder.calls()[0]) == [1, 2]


def test_long_lists_take_no_memory(recorder: Recorder):
    """They are a request's content, such as token ids."""
    function = compiled(torch.compiler.disable(lambda x, ids: x + len(ids)))
    for shift in range(20):
        function(torch.ones(1), list(range(shift, shift + 5000)))
    calls, why = recorder.calls()
    assert (calls, why) == ([], {"an argument is a list of more than 32 items": 20})
    assert len(vars(recorder)["_kinds"]) == 1


def test_an_argument_that_raises_anything_breaks_no_call(recorder: Recorder):
    class Lazy:
        __class__ = property(lambda _: 1 // 0)  # type: ignore[assignment]

    recorder.note(CallCounts("app.Model"), (torch.ones(1), [Lazy()]), {})


class Answering:
    """A dispatcher whose entries answer calls."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.counts = CallCounts("app.Model")
        SESSION.counts.add(self.counts)

    def call(self, *args: Any, times: int = 1, known: Any = None) -> None:
        signature, tensors = describe(args, {}, known)
        kind = kind_of(signature, tensors)
        for _ in range(times):
            use = self.counts.count(str(signature), 2, "", kind=kind, is_trial=False)
            self._recorder.note_kind(self.counts, use, signature, tensors)


def test_calls_in_several_modes_that_entries_answer_are_counted_once(recorder: Recorder):
    answering, given = Answering(recorder), torch.ones(3)
    with torch.inference_mode():
        answering.call(given, times=10)
    with torch.no_grad():
        answering.call(given, times=3)
    calls, not_recorded = recorder.calls()
    assert [(each.modes["inference_mode"], each.calls) for each in calls] == [
        (True, 10),
        (False, 3),
    ]
    assert not_recorded == {}
    (use,) = answering.counts.uses()  # a report has one line for what looks equal
    assert use.calls == 13


def test_strings_of_equal_length_that_entries_answer_are_counted_once(recorder: Recorder):
    answering = Answering(recorder)
    answering.call(torch.ones(3), "mean", times=10)
    answering.call(torch.ones(3), "last")
    assert [(each.structure, each.calls) for each in recorder.calls()[0]] == [
        ("t0, 'mean'", 10),
        ("t0, 'last'", 1),
    ]


def test_calls_whose_texts_begin_alike_are_counted_once(recorder: Recorder):
    answering, many = Answering(recorder), [torch.ones(1000 + n, 128) for n in range(30)]
    answering.call(*many, torch.ones(3), times=10)
    answering.call(*many, torch.ones(4))
    calls, not_recorded = recorder.calls()
    assert ([each.calls for each in calls], not_recorded) == ([10, 1], {})


def test_what_is_lost_is_said_beside_several_modes(recorder: Recorder):
    answering = Answering(recorder)
    for mode in (torch.inference_mode(), torch.no_grad()):
        with mode:
            answering.call(torch.ones(3), times=5)
    answering.counts.by_use["other calls", 2, "", ""] = 7
    assert recorder.calls()[1] == {RARE: 7}


def test_a_storm_does_not_displace_kinds_that_entries_answer(recorder: Recorder):
    """A dispatcher tells each kind once, perhaps before the first call of traffic."""
    answering = Answering(recorder)
    answering.call(torch.ones(3))
    recorder.begin()
    for size in range(3 * KINDS_KEPT):
        recorder.note(answering.counts, (torch.ones(size + 1, 2),), {})
    answering.call(torch.ones(3), times=5)
    assert shapes(recorder)["Tensor float32[3]"] == 5


def test_kinds_that_entries_answer_are_bounded(recorder: Recorder):
    for number in range(6):
        answering = Answering(recorder)
        for size in range(KINDS_KEPT + 10):
            answering.call(torch.ones(size + 1, number + 1))
    assert len(vars(recorder)["_counted"]) <= 4 * KINDS_KEPT


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("way", ["nested", "attribute", "beside equal numbers", "keyword"])
def test_one_call_does_not_decide_for_others(recorder: Recorder, way: str, is_first: bool):
    counts = compiled(lambda *given: given)._serve_warm.call_counts
    one, two, marked = torch.ones(3), torch.ones(3), torch.ones(3)
    torch._dynamo.mark_dynamic(marked, 0)
    odd, plain = {
        "nested": (([one, one],), ([one, two],)),
        "attribute": ((marked,), (one,)),
        "beside equal numbers": ((one, one, 5, 5), (one, two, 5, 5)),
        "keyword": ((one, [one]), (one, [two])),
    }[way]
    for args in (odd, *[plain] * 5) if is_first else (*[plain] * 5, odd):
        recorder.note(counts, args, {})
    calls, not_recorded = recorder.calls()
    assert [each.calls for each in calls] == [5]
    assert [*not_recorded.values()] == [1]


def test_replays_of_an_update_are_no_traffic(recorder: Recorder):
    function = compiled(lambda given: given + 1)
    function(torch.ones(3))
    with evidence.note_calls() as calls, calls.of_replay():
        function(torch.ones(3))
    assert shapes(recorder) == {"Tensor float32[3]": 1}


@torch.inference_mode()
def test_replays_of_an_update_that_entries_answer_are_no_traffic(scaled: tuple[Path, Any]):
    folder, _ = scaled
    model = serve_warm.compile(Scaled().eval(), dynamic=False)
    with started(folder):
        recorder = SESSION.recorder = Recorder()
        recorder.begin()
        for _ in range(2):
            with evidence.note_calls() as calls, calls.of_replay():
                model(x(), 1.0)
                model(torch.ones(7, 4), 1.0)
            model(x(), 1.0)
        model(torch.ones(7, 4), 1.0)
        SESSION.recorder = None
    assert shapes(recorder) == {"Tensor float32[3, 4]": 2, "Tensor float32[7, 4]": 1}
    assert recorder.calls()[1] == {}


def test_numbers_that_are_not_finite_are_one_kind(recorder: Recorder):
    """No NaN equals another, so each would be a kind, and displace those of users."""
    counts = compiled(lambda *given: given)._serve_warm.call_counts
    for _ in range(20):
        recorder.note(counts, (torch.ones(3), float("nan")), {})
        recorder.note(counts, (torch.ones(3), [float("-inf")]), {})
    calls, not_recorded = recorder.calls()
    assert (calls, sum(not_recorded.values()), len(vars(recorder)["_kinds"])) == ([], 40, 2)


def test_long_names_and_large_numbers_take_no_memory(recorder: Recorder):
    counts = compiled(lambda *given, **more: given)._serve_warm.call_counts
    for number in range(20):
        name = f"{number:03}" + "k" * 200_000
        recorder.note(counts, (torch.ones(3), {name: 1}), {})
        recorder.note(counts, (torch.ones(3),), {name: 1})
        recorder.note(counts, (torch.ones(3), 1 << (1000 + number)), {})
        recorder.note(counts, (torch.ones(3), {1 << (1000 + number): 1}), {})
    calls, not_recorded = recorder.calls()
    assert not [each for each in calls if not each.why_not()]
    assert sum(each.calls for each in calls) + sum(not_recorded.values()) == 80
    assert len(vars(recorder)["_kinds"]) == 4


UNUSUAL = {
    "conjugate": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(3, dtype=torch.complex64).conj().imag,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "mkldnn": lambda: torch.ones(3).to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "bits": lambda: torch.empty(3, dtype=torch.bits8),
    "one bit": lambda: torch.empty(3, dtype=torch.uint1),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", UNUSUAL)
def test_tensors_that_no_replay_makes_are_left_out(recorder: Recorder, name: str):
    counts = compiled(lambda given: given)._serve_warm.call_counts
    recorder.note(counts, (UNUSUAL[name](),), {})
    calls, not_recorded = recorder.calls()
    assert (calls, [*not_recorded.values()]) == ([], [1])


def test_names_that_source_code_changes_are_kept(recorder: Recorder):
    counts = compiled(lambda **given: given)._serve_warm.call_counts
    name = "\ufb01"  # a ligature, which Python reads as two letters
    recorder.note(counts, (), {name: torch.ones(3)})
    (call,) = recorder.calls()[0]
    assert arguments_of(call.structure, ["tensor"], getattr) == ([], {name: "tensor"})


@pytest.mark.parametrize("is_answered", [True, False])
def test_token_ids_of_a_short_prompt_are_not_recorded(recorder: Recorder, is_answered: bool):
    ids = [101, 2023, 2003, 4242, 102]
    answering = Answering(recorder)
    for args in ((torch.ones(1), ids), (torch.ones(1), {"ids": (*ids,)})):
        if is_answered:
            answering.call(*args)
        else:
            recorder.note(answering.counts, args, {})
    calls, not_recorded = recorder.calls()
    assert (calls, not_recorded) == (
        [],
        {
            "an argument is a list of more than 4 numbers": 1,
            "an argument is a tuple of more than 4 numbers": 1,
        },
    )
    assert "4242" not in repr([*vars(recorder)["_counted"].values()])
    assert "4242" not in repr(vars(recorder)["_kinds"])


@pytest.mark.parametrize("is_answered", [True, False])
def test_sizes_of_many_dimensions_are_recorded(recorder: Recorder, is_answered: bool):
    answering, args = Answering(recorder), (torch.ones(1), torch.Size(range(6)), [1, 3, 224, 224])
    if is_answered:
        answering.call(*args)
    else:
        recorder.note(answering.counts, args, {})
    (call,) = recorder.calls()[0]
    assert call.structure == "t0, torch.Size([0, 1, 2, 3, 4, 5]), [1, 3, 224, 224]"


def test_a_model_that_is_loaded_again_and_again_is_one_kind(recorder: Recorder):
    for _ in range(5):
        model = compiled(torch.nn.ReLU())
        model(torch.ones(3))
        del model
        gc.collect()
    assert [(each.number, each.calls) for each in recorder.calls()[0]] == [(0, 5)]


def test_a_storm_of_kinds_is_not_written_at_once(recorder: Recorder):
    """To write many kinds holds up requests."""
    counts = compiled(lambda given: given)._serve_warm.call_counts
    for size in range(KINDS_SOON):
        recorder.note(counts, (torch.ones(size + 1),), {})
    assert recorder.new.is_set()
    recorder.new.clear()
    recorder.note(counts, (torch.ones(1, 2),), {})
    assert not recorder.new.is_set()
