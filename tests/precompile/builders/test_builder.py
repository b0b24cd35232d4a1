# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that get no entry at a build, and the reason that the report gives."""

from __future__ import annotations

import copy
import enum
import gc
import itertools
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import serve_warm
from levels import build, eager_below, entries_of, rebuilt, refusal, served, started
from models import Block, close, in_inference_mode, one_watch, x  # noqa: F401 - fixtures
from serve_warm.compiler.proof import forbid
from serve_warm.precompile import building
from serve_warm.precompile.dispatch.session import SESSION


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.eye(4))

    def forward(self, given: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return given @ table @ self.table


def test_an_input_that_is_a_weight_at_the_build_has_no_entry(tmp_path: Path):
    """The graph would have one input for both, and another table would not be looked at."""
    model = serve_warm.compile(Looked(), dynamic=False)
    library = build(tmp_path, lambda: model(x(), model._orig_mod.table))
    with started(tmp_path), eager_below():
        result = served(lambda: model(x(), 2 * torch.eye(4)))
    assert "the same" in next(iter(library.refused.values()))
    assert result.level == 1
    close(result.value, x() * 2)


def breaks(given: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return given @ given.T


def depends(given: torch.Tensor) -> torch.Tensor:
    return given @ given.T if given.sum() > 0 else given


def raises(given: torch.Tensor) -> torch.Tensor:
    raise ValueError("not today")


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "why"),
    [
        pytest.param(breaks, "graph_break", id="graph break"),
        pytest.param(depends, "ata-dependent", id="control flow"),
        pytest.param(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), "random", id="random"),
    ],
)
def test_what_has_no_entry_says_so_at_the_build_and_at_the_start(model, why, tmp_path):
    compiled_ = serve_warm.compile(model, dynamic=False)
    library = build(tmp_path, lambda: compiled_(x()))
    with started(tmp_path), eager_below():
        result = served(lambda: compiled_(x()))

    (refused,) = library.refused.values()
    assert why in refused
    assert "\n" not in refused
    assert (result.level, result.reason) == (1, refused)
    assert result.value.shape == model(x()).shape


class Counts(nn.Module):
    """The graph depends on a value that the call changes. `step` changes and returns it."""

    def __init__(self, step: Callable[[Any], Any]) -> None:
        super().__init__()
        self.step = step() if step is a_cell else step
        self.n = 0
        self.seen: list[int] = []
        self.left, self.right = [1.0], [2.0]
        self.colour = Colour.RED
        # Torch 2.15 guards it wherever it is.
        self.ticket = itertools.count() if step is a_ticket else None

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.addmm(given, given, given, alpha=self.step(self))


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def an_attribute(model: Any) -> Any:
    model.n += 1
    return model.n


def a_count(model: Any) -> Any:
    model.n += 1
    return 1


def a_length(model: Any) -> Any:
    model.seen.append(1)
    return len(model.seen)


def a_swap(model: Any) -> Any:
    model.left, model.right = model.right, model.left
    return model.left[0]


def a_member_of_an_enum(model: Any) -> Any:
    was = model.colour
    model.colour = Colour.BLUE if was is Colour.RED else Colour.RED
    return 1 if was is Colour.RED else 2


def a_global(_: Any) -> Any:
    global STEPS  # noqa: PLW0603
    STEPS += 1
    return STEPS


STEPS = 0


def a_cell() -> Callable[[Any], Any]:
    n = 0

    def step(_: Any) -> Any:
        nonlocal n
        n += 1
        return n

    return step


def a_ticket(model: Any) -> Any:
    return next(model.ticket)


BEFORE_2_12 = Version(torch.__version__).release < (2, 12)


CHANGING: dict[str, tuple[Callable[..., Any], str]] = {
    "attribute": (an_attribute, "callee.n is int 1, but was int 0"),
    # Compiled code would write the count of the build.
    "count that no result depends on": (a_count, "callee.n is int 1, but was int 0"),
    "length of a list": (a_length, "callee.seen is a builtins.list of length 1, but was"),
    "there and back": (a_swap, "t[0] is float "),
    "enum": (a_member_of_an_enum, "Colour BLUE int 2, but was test_builder.Colour RED int 1"),
    "global": (a_global, ".STEPS is int 1, but was int 0"),
    "closure": (a_cell, "cell_contents is int 1, but was int 0"),
    # 2.11 does not trace what it is made of.
    "iterator": (a_ticket, "Unsupported" if BEFORE_2_12 else "a count, not a plain value"),
}


@pytest.mark.parametrize(
    ("step", "why"), [pytest.param(*case, id=name) for name, case in CHANGING.items()]
)
def test_a_call_that_changes_what_its_graph_is_built_on_has_no_entry(
    step: Callable[..., Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The second call would get the answer of the first. The report names the change."""
    model = serve_warm.compile(Counts(step), dynamic=False)
    library = build(tmp_path, lambda: model(x(3, 3)))
    eager, ours = Counts(step), serve_warm.compile(Counts(step), dynamic=False)
    monkeypatch.setitem(globals(), "STEPS", 0)
    expected = [eager(x(3, 3)) for _ in range(3)]
    monkeypatch.setitem(globals(), "STEPS", 0)
    with started(tmp_path), eager_below():
        results = [served(lambda: ours(x(3, 3))) for _ in range(3)]

    (refused,) = library.refused.values()
    assert why in refused
    assert [(r.level, r.reason) for r in results] == [(1, refused)] * 3
    assert all(torch.equal(r.value, e) for r, e in zip(results, expected, strict=True))
    assert ours._orig_mod.n == eager.n


class Noted(nn.Module):
    last: Any = None

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.last = given.shape[0]
        return given @ given.T


def appends(rows: list[Any], given: torch.Tensor) -> torch.Tensor:
    rows.append(given + 1)
    return given * 2


def removes(rows: dict[str, Any], given: torch.Tensor) -> torch.Tensor:
    return rows.pop("first") + given


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "rows"), [(appends, [x()]), (removes, {"first": x(), "second": x()})]
)
def test_a_call_that_changes_what_it_is_given_has_no_entry(forward: Any, rows: Any, tmp_path: Path):
    """An entry is given lists and dicts of its own: the caller's would stay as they are."""
    function = serve_warm.compile(forward, dynamic=False)
    library = build(tmp_path, lambda: function(copy.copy(rows), x()))
    ours, eager = copy.copy(rows), copy.copy(rows)
    with started(tmp_path), eager_below():
        function(ours, x())
    forward(eager, x())
    assert list(library.refused.values()) == ["the call changes a list or dict in its arguments"]
    assert len(ours) == len(eager) != len(rows)


def test_what_is_written_and_never_read_is_no_obstacle(tmp_path: Path):
    """An entry writes it as eager does, the same at each call."""
    model = serve_warm.compile(Noted(), dynamic=False)
    library = build(tmp_path, lambda: model(x()))
    model._orig_mod.last = None
    with started(tmp_path), forbid():
        result = served(lambda: model(x()))
    assert (library.refused, result.level, model._orig_mod.last) == ({}, 2, 3)


class Phases(nn.Module):
    """Two calls of it that share what one writes and the other is built on."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 1

    def forward(self, given: torch.Tensor, *, first: bool) -> torch.Tensor:
        if first:
            self.length = given.shape[0]
            return given @ given.T
        return torch.addmm(given, given, given, alpha=self.length)


def test_what_another_call_changes_is_withdrawn_at_the_end_of_a_build(tmp_path: Path):
    """The entry fitted when it was made, but no longer fits. The other entry is kept."""
    model = serve_warm.compile(Phases(), dynamic=False)
    calls = [lambda: model(x(3, 3), first=False), lambda: model(x(5, 3), first=True)]
    library = build(tmp_path, *calls)
    model._orig_mod.length = 1
    with started(tmp_path), eager_below():
        first, second = (served(call) for call in reversed(calls))

    (why,) = library.refused.values()
    assert "between calls: callee.length is int 5, but was int 1" in why
    assert (first.level, second.level, second.reason) == (2, 1, why)
    assert torch.equal(second.value, torch.addmm(x(3, 3), x(3, 3), x(3, 3), alpha=5))
    files = [name for name in library.to_files() if name.startswith("entry")]
    assert files == [entry.file for entry in entries_of(library)]


def test_a_model_that_raises_raises(tmp_path: Path):
    model = serve_warm.compile(raises, dynamic=False)
    with pytest.raises(ValueError, match="not today"):
        build(tmp_path, lambda: model(x()))
    SESSION.unload()
    with eager_below(), pytest.raises(ValueError, match="not today"):
        model(x())


def test_another_backend_is_level_1(tmp_path: Path):
    """Entries are Inductor's: with another backend the model works as ever."""
    model = serve_warm.compile(Block().eval(), backend="eager")
    library = build(tmp_path, lambda: model(x()))
    assert list(library.refused.values()) == ["the backend is eager, but entries need Inductor"]
    close(model(x()), model._orig_mod(x()))


class OfARequest:
    """An object that an application makes for each request."""

    def __init__(self) -> None:
        self.layer = nn.Linear(4, 4)

    @serve_warm.compile(backend="aot_eager", dynamic=False)
    def run(self, given: torch.Tensor) -> torch.Tensor:
        return self.layer(given)


def test_a_build_keeps_no_object_of_a_request():
    """The weights of all requests of a build would not fit into memory."""

    def call() -> weakref.ref[OfARequest]:
        made = OfARequest()
        made.run(x())
        return weakref.ref(made)

    with building():
        objects = [call(), call()]
        gc.collect()
        assert [each() for each in objects] == [None, None]


@torch.inference_mode(mode=False)
def test_with_gradients_nothing_is_made(tmp_path: Path):
    """A build in grad mode says what to use instead."""
    model = serve_warm.compile(Block().eval(), backend="aot_eager", dynamic=False)
    with building() as build:
        out = model(x())
    assert "torch.inference_mode()" in next(iter(build.table.refused.values()))
    assert out.requires_grad


@pytest.mark.long
def test_built_ins_that_compiled_code_uses_are_found(tmp_path: Path):
    """Code around a graph may call `type`, which torch before 2.12 takes for a global."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        depths=[1, 1], hidden_sizes=[16, 32], embedding_size=8, layer_type="basic", num_labels=4
    )
    eager = transformers.ResNetForImageClassification(config).eval()
    model = serve_warm.compile(eager, dynamic=False)
    pixels = torch.rand(2, 3, 32, 32)
    library = build(tmp_path, lambda: model(pixel_values=pixels))
    with started(tmp_path), eager_below():
        result = served(lambda: model(pixel_values=pixels))
        expected = eager(pixel_values=pixels).logits

    assert not library.refused
    assert result.level == 2
    torch.testing.assert_close(result.value.logits, expected)


class Scaled(torch.nn.Module):
    """Reads a float of its own, and has one as a default."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = 1e-3

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return torch.mm(x, x.T) * scale + self.eps


@pytest.mark.slow
def test_floats_of_a_model_are_facts_where_sizes_are_open(tmp_path: Path):
    """With `dynamic=True` torch opens floats too; an entry is for the values of its build."""
    model = serve_warm.compile(Scaled().eval(), dynamic=True)
    with eager_below():
        table = build(tmp_path / "entries", lambda: model(torch.ones(3, 4)))
    with started(tmp_path / "entries"), eager_below():
        other = served(lambda: model(torch.ones(5, 6)))
        model.eps = 1.0
        changed = served(lambda: model(torch.ones(5, 6)))

    assert table.refused == {}
    assert (other.level, other.value[0, 0].item()) == (2, pytest.approx(12.001))
    assert (changed.level, changed.value[0, 0].item()) == (1, pytest.approx(13.0))


# Unusual objects that Dynamo guards -----------------------------------------------------------


class Vmap(nn.Module):
    dim = 0

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: row @ given, in_dims=self.dim)(given)

    def change(self) -> None:
        self.dim = 1


class Backend(nn.Module):
    backend = SDPBackend.MATH

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(self.backend):
            return given @ given

    def change(self) -> None:
        self.backend = SDPBackend.FLASH_ATTENTION


@pytest.mark.parametrize("kind", [Vmap, Backend])
def test_an_entry_runs_and_a_change_is_noticed(kind: Any, tmp_path: Path):
    model, compiled = rebuilt(kind, tmp_path, lambda model: model(x(4, 4)))
    with started(tmp_path), eager_below():
        same = served(lambda: compiled(x(4, 4)))
        expected = model(x(4, 4))
        model.change()
        changed = served(lambda: compiled(x(4, 4)))

    assert (same.level, changed.level) == (2, 1)
    torch.testing.assert_close(same.value, expected)
    torch.testing.assert_close(changed.value, model(x(4, 4)))


class Hashes(nn.Module):
    colour: enum.Enum = enum.Enum("Colour", "RED").RED

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.addmm(given, given, given, alpha=self.colour.__hash__() % 7)


class OwnHash(enum.Enum):
    RED = 1

    def __hash__(self) -> int:
        return hash(self.name)


class OwnHashes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.colour, self.scales = OwnHash.RED, {OwnHash.RED: 2.0}

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.addmm(given, given, given, alpha=self.scales[self.colour])


class Matches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pattern = re.compile("a")

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given @ given if self.pattern.match("a") else given


class Sentinel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.names = {object(): 1.0}

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given @ given if [*self.names] else given


def times(given: torch.Tensor, number: int) -> torch.Tensor:
    return torch.addmm(given, given, given, alpha=number)


NUMBERS = {
    "a storage": lambda given: times(given, given.untyped_storage().size()),
    "a hash": lambda given: times(given, hash("alpha") % 7),
    "mapped hashes": lambda given: times(given, sum(map(hash, ("alpha", "beta"))) % 7),
    "a method": lambda given: times(given, "alpha".__hash__() % 7),
    "an id": lambda given: times(given, id(times) % 7),
}
HASH = r"it uses the result of hash\(\)"
OF_HASH = f"{HASH}|^Unsupported: Failed to trace builtin operator"  # Dynamo 2.11 has no hash()
OF_MEMBER = f"{HASH}|^Unsupported: User-defined object with overridden"  # 2.11
LINE = r"callee\S+ at test_builder\.py:\d+(,| has a guard).*outside the call"
OF_OBJECT = f"{LINE}|^Unsupported: Dynamo cannot determine"  # 2.11


@pytest.mark.parametrize(
    ("callee", "options", "why"),
    [
        # A tensor may be a part of a larger one.
        (NUMBERS["a storage"], {}, "it reads a tensor's storage"),
        # The number differs in each process, and code of the user can store it.
        (NUMBERS["a hash"], {}, OF_HASH),
        (NUMBERS["mapped hashes"], {}, OF_HASH),
        (NUMBERS["a method"], {}, HASH),
        (NUMBERS["an id"], {}, r"it uses the result of id\(\)"),
        (Hashes(), {}, HASH),
        (OwnHashes(), {}, OF_MEMBER),
        (Matches(), {}, LINE),
        (Sentinel(), {}, OF_OBJECT),
        # Frozen weights are a part of the code, but an entry holds no weights.
        (nn.Linear(4, 4), {"options": {"freezing": True}}, 'remove the option "freezing"'),
    ],
)
def test_what_cannot_become_a_fact_is_refused_with_advice(callee, options, why, tmp_path):
    """The reason names the line of the forward, and says what to do."""
    compiled = serve_warm.compile(callee, dynamic=False, **options)
    with eager_below():
        refused = refusal(tmp_path, lambda: compiled(x(4, 4)))
    assert re.search(why, refused, re.DOTALL)
