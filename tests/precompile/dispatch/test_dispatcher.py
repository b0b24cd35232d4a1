# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Level 2: which calls an entry serves, what falls to level 1, and that the numbers are right.

Most graphs here are matrix products and nothing else, for which no C++ is compiled; and where only
the fall is the property, level 1 runs eagerly.
"""

from __future__ import annotations

import contextlib
import enum
import gc
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packaging.version import Version
from torch import nn
from torch.overrides import TorchFunctionMode

import serve_warm
from levels import build, eager_below, served, started
from models import Block, Cache, Scaled, close, one_watch, scaled_fixture, x  # noqa: F401 - fixtures
from serve_warm.compiler.proof import forbid
from serve_warm.compiler.watch import watch_process
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.report import Report


@torch.inference_mode()
def test_a_call_that_an_entry_was_made_for_is_served_by_it(scaled: tuple[Path, Any]):
    """Level 2, nothing compiled although nothing was compiled before; and bit for bit the same."""
    folder, model = scaled
    stock = torch.compile(model._orig_mod, dynamic=False)(x(), 1.0)
    with started(folder), forbid():
        first, second = served(lambda: model(x(), 1.0)), served(lambda: model(x(), 1.0))
    assert [(s.level, s.reason, s.compiles) for s in (first, second)] == [(2, "", 0)] * 2
    assert torch.equal(first.value, stock)
    assert torch.equal(second.value, stock)
    close(first.value, model._orig_mod(x(), 1.0))


class Under(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        return function(*args, **(kwargs or {}))


PART = torch.eye(4)


REQUESTS = {
    "text": lambda m, text: m(x(), more=text),
    "text in a list": lambda m, text: m(x(), parts=[PART, {"a": PART.clone()}], more=[text]),
    "key": lambda m, text: m(x(), more={text: 1}),
    "keyword": lambda m, text: m(x(), **{text: 1}),
}


class Taking(Scaled):
    """Takes any keyword, as models of libraries do."""

    def forward(self, x: Any, *, parts: Any = None, more: Any = None, **others: Any) -> Any:
        return super().forward(x, parts=parts, more=more)


@pytest.fixture(scope="module")
def taking(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """An entry for a call of `Taking` without any text."""
    model = serve_warm.compile(Taking().eval(), dynamic=False)
    folder = tmp_path_factory.mktemp("taking")
    library = build(folder, lambda: model(x()))
    assert library.refused == {}
    return folder, model


def calls_at_level_1() -> int:
    return sum(u.calls for u in SESSION.uses() if u.level == 1 and u.callable.endswith("Taking"))


@pytest.mark.slow
@pytest.mark.parametrize("request_", [pytest.param(c, id=name) for name, c in REQUESTS.items()])
@torch.inference_mode()
def test_texts_of_requests_are_neither_kept_nor_shown(taking, request_, caplog):
    """600 requests with a megabyte each, all different: nothing grows, and nobody reads them."""
    folder, model = taking
    before = calls_at_level_1()

    with started(folder), eager_below():
        request_(model, "warm@b.c")
        gc.collect()
        tracemalloc.start()
        for number in range(600):
            request_(model, f"user{number}@b.c" * 90_000)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        used = [use for use in SESSION.uses() if use.callable.endswith("Taking")]
        text = Report(entries=tuple(used)).text()

    assert kept < 4_000_000
    assert calls_at_level_1() - before == 601
    assert all(len(use.call) <= 1000 and "@b.c" not in f"{use.call}{use.reason}" for use in used)
    assert "str[" in text
    assert "@b.c" not in text + caplog.text


OTHER_CALLS: dict[str, Any] = {
    "shape": lambda m: m(x(5, 4), 1.0),
    "view of another": lambda m: m(x(4, 4)[:3].T.contiguous().T, 1.0),
    "int": lambda m: m(x(), 1),
    "minus zero": lambda m: m(x(), -0.0),
    "default": lambda m: m(x()),
    "other key": lambda m: m(x(), parts=[PART, {"b": PART.clone()}]),
    "requires grad": lambda m: m(x().requires_grad_(), 1.0),
    "twice": lambda m: m(x(), parts=[PART, {"a": PART}]),
    "object": lambda m: m(x(), 1.0, more=object()),
}
"""One of each kind; test_signature.py has more."""


@pytest.mark.parametrize("call", [pytest.param(c, id=name) for name, c in OTHER_CALLS.items()])
@torch.no_grad()
def test_another_call_is_level_1_with_the_right_numbers(scaled: tuple[Path, Any], call: Any):
    """Anything that compiled code depends on and that is not as at the build: counted, named."""
    folder, model = scaled
    expected = call(model._orig_mod)
    with started(folder), eager_below():
        with torch.inference_mode():
            model(x(), 1.0)  # an entry is at hand
        result = served(lambda: call(model))

    assert result.level == 1
    assert result.reason
    assert torch.equal(result.value, expected)


@contextlib.contextmanager
def setting(put: Any, value: Any, before: Any) -> Iterator[None]:
    put(value)
    try:
        yield
    finally:
        put(before)


THREADS = torch.get_num_threads()

INTERCEPTED = "intercepts the call"
STATES: dict[str, tuple[Any, str]] = {
    "no_grad": (torch.no_grad, "inference_mode is off, but was on"),
    "grad": (torch.enable_grad, "grad mode on"),
    "nothing": (lambda: torch.inference_mode(False), "grad mode on"),
}
IN_INFERENCE_MODE: dict[str, tuple[Any, str]] = {
    "autocast": (lambda: torch.autocast("cpu", dtype=torch.bfloat16), "autocast is"),
    "threads": (lambda: setting(torch.set_num_threads, 7, THREADS), "threads is 7"),
    "default dtype": (
        lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
        "default_dtype is float64, but was float32",
    ),
    "deterministic": (
        lambda: setting(torch.use_deterministic_algorithms, True, False),
        "deterministic is",
    ),
    "default device": (lambda: setting(torch.set_default_device, "cpu", None), INTERCEPTED),
    "function mode": (Under, INTERCEPTED),
}


@pytest.mark.parametrize("name", STATES | IN_INFERENCE_MODE)
@pytest.mark.parametrize("known", [False, True], ids=["first call", "known call"])
def test_another_state_is_level_1(scaled: tuple[Path, Any], name: str, known: bool):
    folder, model = scaled
    given = x()
    context, why = (STATES | IN_INFERENCE_MODE)[name]

    with started(folder), eager_below():
        if known:
            with torch.inference_mode():
                model(given, 1.0)
        mode = torch.inference_mode() if name in IN_INFERENCE_MODE else contextlib.nullcontext()
        with mode, context():
            result = served(lambda: model(given, 1.0))
        with torch.inference_mode():
            back = served(lambda: model(given, 1.0))

    assert result.level == 1
    assert why in result.reason
    assert (back.level, back.reason) == (2, "")


@torch.no_grad()
def test_under_a_transform_a_call_is_level_1(scaled: tuple[Path, Any]):
    """A tensor inside vmap looks like one tensor, but stands for many inputs or weights."""
    folder, model = scaled
    many = x(5, 3, 4)
    weights = torch.stack([torch.eye(4), 2 * torch.eye(4)])
    one = x()

    def with_weight(given: Any) -> Any:
        return torch.func.functional_call(model, {"_orig_mod.linear.weight": given}, (one, 1.0))

    with started(folder), eager_below():
        with torch.inference_mode():
            model(x(), 1.0)
        inputs = served(lambda: torch.vmap(lambda given: model(given, 1.0))(many))
        ensemble = served(lambda: torch.vmap(with_weight)(weights))

    assert inputs.level == ensemble.level == 1
    close(inputs.value, model._orig_mod(many.reshape(15, 4)).reshape(5, 3, 4))
    once, twice = (value - model._orig_mod.linear.bias for value in ensemble.value)
    close(twice, 2 * once)


@torch.inference_mode()
def test_inside_another_compiled_function_it_is_traced(scaled: tuple[Path, Any]):
    """An outer torch.compile sees the model, not the dispatcher: one graph, the right numbers."""
    folder, model = scaled

    @torch.compile(backend="eager", fullgraph=True)
    def outer(given: torch.Tensor) -> Any:
        return model(given, 1.0) @ given.T

    with started(folder):
        result = outer(x())

    close(result, model._orig_mod(x(), 1.0) @ x().T)


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    model = serve_warm.compile(Cache(), dynamic=False)
    folder = tmp_path_factory.mktemp("cached")
    library = build(folder, lambda: model(torch.ones(4), torch.zeros(4)))
    assert library.refused == {}
    return folder, model


@pytest.mark.slow
@torch.inference_mode()
def test_state_is_written_as_in_eager(cached: tuple[Path, Any]):
    """The caller's cache, a buffer in place, and a buffer that is replaced: three calls long."""
    folder, model = cached
    eager, ours = Cache(), torch.zeros(4)
    theirs = torch.zeros(4)
    model._orig_mod.load_state_dict(eager.state_dict())
    with started(folder), forbid():
        for number in range(1, 4):
            given = torch.full((4,), float(number))
            result = served(lambda given=given: model(given, ours))

            assert result.level == 2
            close(result.value, eager(given, theirs))
    close(ours, theirs)
    close(dict(model._orig_mod.named_buffers()), dict(eager.named_buffers()))


class Both(nn.Module):
    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        one.add_(1)
        other.mul_(2)
        return one + other


def views(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    if kind == "numpy":  # two storages, one memory
        array = np.arange(6.0, dtype=np.float32)
        return torch.from_numpy(array[:4]), torch.from_numpy(array[2:])
    whole = torch.arange(6.0)
    return whole[:4], whole[2:]


@pytest.mark.slow
@torch.inference_mode()
def test_overlapping_tensors_are_not_written_by_an_entry(tmp_path: Path):
    """Compiled code would read before it wrote. Parts of one storage that lie apart are served."""
    model, eager, storage = serve_warm.compile(Both(), dynamic=False), Both(), torch.zeros(8)
    build(tmp_path, lambda: model(torch.ones(4), torch.ones(4)))
    with started(tmp_path), eager_below():
        apart = served(lambda: model(storage[:4], storage[4:]))
        for kind in ("torch", "numpy"):
            ours, theirs = views(kind), views(kind)
            overlap = served(lambda ours=ours: model(*ours))
            assert overlap.level == 1
            assert "overlaps another" in overlap.reason
            close(overlap.value, eager(*theirs))
            close(ours, theirs)

    assert apart.level == 2


@pytest.mark.slow
@torch.inference_mode()
def test_a_buffer_that_is_passed_in_as_well_is_level_1(cached: tuple[Path, Any]):
    """Two inputs of the graph are one tensor now, and it writes into both."""
    folder, model = cached
    eager = Cache()
    model._orig_mod.load_state_dict(eager.state_dict())
    with started(folder), eager_below():
        result = served(lambda: model(torch.ones(4), model._orig_mod.total))
    assert result.level == 1
    assert "the same" in result.reason
    close(result.value, eager(torch.ones(4), eager.total))


@torch.inference_mode()
def test_a_dynamic_entry_serves_other_sizes_and_not_all(tmp_path: Path):
    """One entry serves a range of batches. A batch of one was not in this range."""
    model = serve_warm.compile(Block().eval(), dynamic=True)
    build(tmp_path, lambda: model(x(3, 4)))
    with started(tmp_path), eager_below():
        several = [served(lambda n=n: model(x(n, 4))) for n in (2, 3, 17)]
        one = served(lambda: model(x(1, 4)))
        strided = served(lambda: model(x(4, 3).T))

    assert [s.level for s in several] == [2, 2, 2]
    assert (one.level, strided.level) == (1, 1)
    for n, result in zip((2, 3, 17), several, strict=True):
        close(result.value, model._orig_mod(x(n, 4)))


class Marked(nn.Module):
    """Asks whether its argument has an attribute, as models of transformers ask for `jax`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if hasattr(x, "jax") else x + 1


class Names(str, enum.Enum):
    """Names of attributes."""

    JAX = "jax"


class MarkedByName(nn.Module):
    """Has the name of the attribute from an enumeration."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if hasattr(x, Names.JAX) else x + 1


MARKED_BY_NAME = pytest.param(
    MarkedByName,
    marks=pytest.mark.skipif(
        Version(torch.__version__).release < (2, 12), reason="2.11 does not trace it"
    ),
)


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("forward", [Marked, MARKED_BY_NAME])
def test_an_attribute_that_the_forward_asks_for_decides_which_entry_fits(
    forward: type[nn.Module], level: int, tmp_path: Path
):
    model = serve_warm.compile(forward().eval(), level=level)
    build(tmp_path, lambda: model(x(3, 4)), level=level)
    plain, marked = x(3, 4), x(3, 4)
    marked.jax = True
    with started(tmp_path), eager_below():
        results = [served(lambda: model(plain)), served(lambda: model(marked))]

    assert [result.level for result in results] == [level, 1]
    close(results[0].value, plain + 1)
    close(results[1].value, marked * 2)


@pytest.mark.slow
@torch.inference_mode()
def test_eight_threads_get_their_own_answers(tmp_path: Path):
    model = serve_warm.compile(Block().eval(), dynamic=False)
    shapes = [(n, 4) for n in (1, 2, 3, 5)]
    build(tmp_path, *[lambda s=s: model(x(*s)) for s in shapes])
    wrong: list[Any] = []

    def serve(thread: int) -> None:
        torch.manual_seed(thread)
        with torch.inference_mode():
            for number in range(500):
                given = torch.full(shapes[number % 4], float(thread))
                if not torch.equal(model(given), expected[thread][number % 4]):
                    wrong.append((thread, number))
                if number == 250:
                    model.eval()

    with started(tmp_path), forbid():
        expected = [[model(torch.full(s, float(t))) for s in shapes] for t in range(8)]
        before = watch_process().counts()
        threads = [threading.Thread(target=serve, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counts = watch_process().counts() - before
        levels = {use.level for use in model.__dict__["_serve_warm"].uses()}

    assert wrong == []
    assert counts.quiet
    assert counts.forbidden == 0
    assert levels == {2}
