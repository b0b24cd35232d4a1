# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A call that is found again counts for the kind that all of its properties say."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import serve_warm
from levels import forget_callables
from serve_warm.learn.known_calls import CHECKS_KEPT, KnownCalls
from serve_warm.learn.recorder import Recorder
from serve_warm.precompile.dispatch.session import SESSION


class Own(torch.Tensor):
    """A subclass of tensors."""


def _marked() -> torch.Tensor:
    made = torch.ones(2, 2)
    torch._dynamo.mark_dynamic(made, 0)
    return made


def _made_in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(2, 2)


VALUES: dict[str, Callable[[], Any]] = {
    "plain": lambda: torch.ones(2, 2),
    "another": lambda: torch.zeros(2, 2),
    "dtype": lambda: torch.ones(2, 2, dtype=torch.float64),
    "complex": lambda: torch.ones(2, 2, dtype=torch.complex64),
    "conjugate": lambda: torch.ones(2, 2, dtype=torch.complex64).conj(),
    "negative": lambda: torch._neg_view(torch.ones(2, 2)),
    "strides": lambda: torch.ones(2, 2).t(),
    "strides of a size of one": lambda: torch.empty_strided((1, 2), (7, 1)),
    "size of one": lambda: torch.ones(1, 2),
    "no dimension": lambda: torch.ones(()),
    "requires grad": lambda: torch.ones(2, 2, requires_grad=True),
    "inference tensor": _made_in_inference_mode,
    "marked": _marked,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 2)),
    "subclass": lambda: torch.ones(2, 2).as_subclass(Own),
    "meta": lambda: torch.ones(2, 2, device="meta"),
    "sparse": lambda: torch.ones(2, 2).to_sparse(),
    "rows": lambda: torch.ones(2, 2).to_sparse_csr(),
    "mkldnn": lambda: torch.ones(2, 2).to_mkldnn(),
    "None": lambda: None,
    "True": lambda: True,
    "one": lambda: 1,
    "a float": lambda: 1.0,
    "zero": lambda: 0,
    "False": lambda: False,
    "text": lambda: "one",
    "list": lambda: [torch.ones(2, 2)],
    "size": lambda: torch.Size((2, 2)),
}

MODES: tuple[Callable[[], Any], ...] = (
    contextlib.nullcontext,
    torch.inference_mode,
    torch.no_grad,
    lambda: torch.autocast("cpu", torch.bfloat16),
)


@pytest.fixture
def counts() -> Iterator[Any]:
    forget_callables()
    function = serve_warm.compile(lambda *given, **named: given, backend="eager", dynamic=False)
    yield function._serve_warm.call_counts
    SESSION.recorder = None


def calls_of(seed: int) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Yield a mode and arguments, of which many are alike in all but one property."""
    chosen = random.Random(seed)
    made = [make() for make in VALUES.values()]
    for _ in range(1500):
        values = [
            chosen.choice(made) if chosen.random() < 0.8 else made[0]
            for _ in range(chosen.choice((1, 1, 1, 2)))
        ]
        named = chosen.randrange(len(values) + 1) if chosen.random() < 0.3 else 0
        names = chosen.sample(("a", "b"), 2)
        args = tuple(values[named:])
        yield chosen.choice(MODES), args, dict(zip(names, values[:named], strict=False))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_call_that_is_found_again_is_of_the_kind_that_a_full_look_finds(counts: Any, seed: int):
    found, looked = Recorder(), Recorder()
    hits = []
    for recorder in (found, looked):
        SESSION.recorder = recorder
        recorder.begin()
    # So that an error in it would show, too.
    looked._known.find = looked._known.add = lambda *_: None  # type: ignore[method-assign]
    find = found._known.find

    def counted(*given: Any) -> Any:
        hits.append(find(*given))
        return hits[-1]

    found._known.find = counted  # type: ignore[method-assign]
    for mode, args, kwargs in calls_of(seed):
        with mode():
            found.note(counts, args, kwargs)
            looked.note(counts, args, kwargs)

    assert found.to_json() == looked.to_json()
    assert sum(each is not None for each in hits) > 300


def test_few_calls_are_kept():
    """Calls that one number tells apart are not kept, and no more of the others than is said."""
    known = KnownCalls[int](2)
    for size in range(9):
        known.add(1, (torch.ones(size),), {}, size)
        known.add(1, (torch.ones(3), size), {}, size)
    assert [known.find(1, (torch.ones(size),), {}) for size in range(4)] == [0, 1, None, None]
    assert known.find(1, (torch.ones(3), 3), {}) is None
    assert known.find(2, (torch.ones(0),), {}) is None
    for steps in range(2, 9):
        known.add(1, (torch.ones(9)[::steps][:1],), {}, steps)
    found = [known.find(1, (torch.ones(9)[::steps][:1],), {}) for steps in range(1, 9)]
    assert found == [*range(1, CHECKS_KEPT + 1), *[None] * (8 - CHECKS_KEPT)]
    known.clear()
    assert known.find(1, (torch.ones(0),), {}) is None


def test_a_long_name_is_not_kept():
    known = KnownCalls[str](9)
    known.add(1, (), {"a" * 65: torch.ones(1)}, "long")
    known.add(1, (), {"a" * 64: torch.ones(1)}, "short")
    assert known.find(1, (), {"a" * 65: torch.ones(1)}) is None
    assert known.find(1, (), {"a" * 64: torch.ones(1)}) == "short"
