# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that no input declares, for applications that independent readers wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import torch
from fastapi import Depends, FastAPI
from pydantic import BaseModel
from ray import serve
from starlette.routing import BaseRoute

from compiled import compiled, double
from serve_warm import Input, WarmupMixin
from serve_warm.compiler.compiled_objects import find_compiled
from serve_warm.private_apis import ray_serve
from serve_warm.replica.replay.narrow import vary, vary_batches
from serve_warm.replica.replay.other_values import list_other_values, other_number
from serve_warm.replica.replay.routes import Routes
from serve_warm.replica.serve.calls import ServeCalls
from starts import process  # noqa: F401 - a fixture


class Model(WarmupMixin):
    """Compiles code for each shape."""

    dynamic = False
    declared: Sequence[Input] = ()

    def __init__(self) -> None:
        self.model = compiled(double, dynamic=self.dynamic)

    def warmup_inputs(self) -> Sequence[Input]:
        return self.declared

    async def score(self, x: Any) -> Any:
        return self.model(x)


class Dynamic(Model):
    dynamic = True


class Padding(Model):
    """Pads rows to the longest one."""

    async def score(self, x: Any) -> Any:
        if not 1 <= len(x) <= 4 or not all(x):
            raise ValueError("send 1 to 4 rows with numbers")
        return self.model(torch.zeros(4, max(map(len, x))))


class Breaking(Padding):
    """Refuses the next calls after an error."""

    calls, left = 1, 0

    async def score(self, x: Any) -> Any:
        if self.left:
            self.left -= 1
            raise RuntimeError("the circuit is open")
        try:
            return await super().score(x)
        except Exception:
            self.left = self.calls
            raise


class BreakingTwice(Breaking):
    calls = 2


def ones(*shape: int) -> Input:
    return Input(target="score", args=(torch.ones(shape),), name=f"{shape}")


def rows(*lengths: int) -> Input:
    return Input(target="score", args=([[1.0] * length for length in lengths],), name=f"{lengths}")


def report_of(kind: type[Model], *declared: Input) -> Any:
    torch._dynamo.reset()  # else it remembers sizes by file and line
    app = kind()
    app.declared = declared
    return asyncio.run(app.warm_up())


@pytest.mark.parametrize(
    ("kind", "declared", "narrow"),
    [
        pytest.param(Dynamic, [ones(2, 16), ones(8, 64)], ["x[0], never 1"], id="one item"),
        pytest.param(
            *(Dynamic, [ones(2, 64, 64), ones(2, 96, 96)], ["x[1] and x[2], always equal"]),
            id="an image that is not square",
        ),
        pytest.param(Dynamic, [ones(2, 64, 64)], ["x[1], always 64"], id="one square"),
        pytest.param(Model, [ones(4), ones(8)], [], id="buckets"),
        pytest.param(Padding, [rows(5, 3, 1)], ["x[1], always 5"], id="rows of several lengths"),
        pytest.param(Padding, [rows(5, 3), rows(1)], ["x[1], only 2 lengths"], id="two such"),
    ],
)
def test_what_compiles_is_narrow(kind: type[Model], declared: list[Input], narrow: list[str]):
    found = [
        line for line in report_of(kind, *declared)["narrow"] if not line.startswith("x[0], a")
    ]
    assert set(narrow) <= set(found)
    assert bool(narrow) == bool(found)


def test_a_handler_that_refuses_calls_after_an_error_is_asked_again_once():
    assert "x[1], always 5" in report_of(Breaking, rows(5, 3))["narrow"]
    [line] = report_of(BreakingTwice, rows(5, 3))["unvaried"]
    assert "variations, because a declared input was refused after another value" in line


def test_tensors_of_one_mapping_are_varied_together():
    """A batch of one is tried, but not a mask of another length than its text."""
    batch = {name: torch.ones(2, 8) for name in ("ids", "mask")}
    found = {each.axes for each in vary([Input(target="score", kwargs={"x": batch})])[0]}
    assert "x.ids[0] and x.mask[0], never 1" in found
    assert not any("always equal" in axes for axes in found)


def test_tensors_of_several_kinds_in_one_argument_are_named():
    pair = Input(target="score", kwargs={"x": (torch.ones(2, 8), torch.ones(3))})
    assert vary([pair])[1] == ["x of 'score'"]


def test_arguments_of_any_number_are_named():
    class Many:
        def score(self, *texts: str, **options: str) -> None: ...

    declared = [Input(target="score", args=("a", "b"), kwargs={"c": "d"})]
    lines = vary(declared, Many())[1]
    assert [line for line in lines if "*" in line] == [
        "*texts of 'score', always as many",
        "**options of 'score', always as many",
    ]


def test_no_other_number_is_zero():
    numbers = [other for _, other in list_other_values(-1, [-1, 1])]
    assert 0 not in [*numbers, other_number(-1)]


# --- batches ----------------------------------------------------------------------------------


def test_each_target_and_kind_of_input_forms_batches():
    """But none whose request changes something, and none that never differs."""
    declared = [
        *(Input(target="embed", kwargs={"task": "a"}, concurrency=n) for n in (1, 2)),
        Input(target="embed", kwargs={"task": "b"}),
        Input(target="rank"),
        Input(target="DELETE /drop"),
        Input(target="fixed", fixed=True),
    ]
    found, _ = vary_batches(declared, largest=2)
    assert [(each.item.target, dict(each.item.kwargs)) for each in found] == [
        ("embed", {"task": "b"}),
        ("rank", {}),
    ]


def test_an_application_without_batches_gets_none():
    """Its inputs may still declare several requests at once."""
    assert vary_batches([Input(target="embed", concurrency=4)], largest=1) == ([], [])


class Batching:
    @serve.batch(max_batch_size=6)
    async def score(self, items: list[str]) -> list[str]:
        return items


class Counting:
    @serve.batch(max_batch_size=100, batch_size_fn=len)
    async def score(self, items: list[str]) -> list[str]:
        return items


@pytest.mark.parametrize(
    ("owner", "limit", "largest"),
    [
        pytest.param(Batching(), 8, 6, id="a method"),
        pytest.param(Batching(), 4, 4, id="fewer requests than the batch has"),
        pytest.param(SimpleNamespace(helper=Batching()), 8, 6, id="a method of a helper"),
        pytest.param(Counting(), 8, 8, id="a size that counts no requests"),
        pytest.param(Batching(), None, 1, id="outside Serve, where Ray runs no batch"),
    ],
)
def test_the_largest_batch_is_found(
    owner: Any, limit: int | None, largest: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ray_serve, "max_ongoing_requests", lambda: limit)
    assert ServeCalls.largest_batch(SimpleNamespace(owner=owner)) == largest  # type: ignore[arg-type]


# --- what a request may leave out -------------------------------------------------------------


class Options(BaseModel):
    scale: float = 1.0
    name: str


class Body(BaseModel):
    text: str
    options: Options | None = None


api = FastAPI()


def limit(k: int = 3) -> int:
    return k


@api.post("/embed")
def embed(body: Body, k: Annotated[int, Depends(limit)]) -> None: ...


@api.post("/two")
def two(body: Body, other: Options) -> None: ...


@pytest.mark.parametrize(
    ("path", "optional"),
    [
        ("/embed", {"query.k", "json.options", "json.options.scale"}),
        ("/two", {"json.body.options", "json.body.options.scale", "json.other.scale"}),
    ],
)
def test_optional_fields_are_found_in_models_and_dependencies(path: str, optional: set[str]):
    matchers = tuple(route for route in api.routes if isinstance(route, BaseRoute))
    found = Routes(known=(), matchers=matchers).list_optional("POST", path)
    assert {f"{where}.{name}" for where, name in found} == optional


scorer = compiled(double)


@api.get("/score")
def score() -> None:
    scorer(torch.ones(2))


def test_a_function_of_a_route_can_use_a_compiled_global():
    matchers = tuple(route for route in api.routes if isinstance(route, BaseRoute))
    functions = Routes(known=(), matchers=matchers).list_functions()
    assert find_compiled(object(), functions) == [("scorer", scorer)]
