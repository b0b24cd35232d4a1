# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Inputs that are all of one size: proven, and yet the first request of another size compiles."""

from __future__ import annotations

import asyncio
import enum
import itertools
import math
import re
import sysconfig
import time
import unittest.mock
from collections import OrderedDict, UserDict
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import nn

from compiled import compiled
from serve_warm import Buckets, Field, Input, WarmupMixin, shape_grid
from serve_warm.compiler.watch import watch_process
from serve_warm.errors import InputError
from serve_warm.replica.replay.narrow import vary
from starts import process  # noqa: F401 - a fixture

X = torch.ones(1, 4)
SHORT = torch.ones(1, 8, dtype=torch.int64)
BUCKETS = Buckets(batch=[2, 4], length=[8, 16])
FIELDS = {name: Field(axes=("batch", "length")) for name in ("ids", "mask")}
IDS, MASK = torch.ones(2, 16, dtype=torch.int64), torch.ones(2, 16, dtype=torch.int64)


@pytest.fixture(autouse=True)
def _no_branches_of_other_tests():
    """In this process, other tests compiled without a warm-up that takes their branches."""
    watch_process().branches.take_untaken()


class Embedder(WarmupMixin):
    """Takes batches of any length, and a fixed number of features per token."""

    declared: tuple[Input, ...] = ()
    options: ClassVar[dict[str, Any]] = {"dynamic": False}

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(30, 8), nn.Linear(8, 4)
        self.model = compiled(lambda ids, mask: self.run(ids, mask), **self.options)  # noqa: PLW0108

    def run(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids)) * mask[..., None]

    def warmup_inputs(self) -> list[Input]:
        return list(self.declared)

    async def embed(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        with torch.no_grad():
            return self.model(ids, mask)

    async def embed_list(self, tokens: list[int]) -> Any:
        ids = torch.tensor([tokens])
        return await self.embed(ids, torch.ones_like(ids))

    async def embed_padded(self, tokens: list[int]) -> Any:
        if len(tokens) > 8:
            raise ValueError("too many tokens")
        return await self.embed_list([*tokens, *[0] * (8 - len(tokens))])

    async def classify(self, features: torch.Tensor) -> Any:
        with torch.no_grad():
            return self.other(features)


def warm(*declared: Input, kind: type[WarmupMixin] = Embedder, **changed: Any) -> dict[str, Any]:
    """Return the report of a start whose inputs and class attributes are partly changed."""
    named = {"declared": declared} if declared else {}
    return asyncio.run(type("App", (kind,), {**named, **changed})().warm_up())


def a(**kwargs: Any) -> Input:
    return Input(target="a", kwargs=kwargs)


def of_values(target: str, *values: dict[str, Any], fixed: Any = False) -> list[Input]:
    return [
        Input(target=target, kwargs=each, name=f"{target} {number}", fixed=fixed)
        for number, each in enumerate(values)
    ]


def sizes(inputs: list[Input]) -> list[str]:
    """Return the axes of what is varied, without extra trials."""
    return [each.axes for each in vary(inputs)[0] if not each.is_extra]


def one(**kwargs: Any) -> Input:
    return Input(target="embed", kwargs={"ids": IDS, "mask": MASK}, **kwargs)


def test_a_size_that_never_varies_is_narrow(caplog: pytest.LogCaptureFixture):
    """All inputs are proven; report and log say on which axes they are all the same.

    The varied calls leave nothing: no compiled code, and no compile in traffic.
    """
    report = warm(one())
    assert report["covered"] == {"expected": 1, "proven": 1}
    assert report["inputs"][0]["proven"]
    assert report["narrow"] == ["ids[0] and mask[0], always 2", "ids[1] and mask[1], always 16"]
    assert report["warnings"] == []
    assert "ids[1] and mask[1], always 16: another size compiles. Declare buckets" in caplog.text
    assert "narrow: ids[0] and mask[0], always 2: another size compiles" in caplog.text
    assert (report["warmup"]["compiles"], report["after_ready"]["compiles"]) == (1, 0)


@pytest.mark.parametrize(
    ("declared", "changed"),
    [
        (
            (one(), Input(target="embed", kwargs={"ids": SHORT, "mask": SHORT.clone()})),
            {"options": {"dynamic": True}},
        ),
        ((one(fixed=True),), {}),
        ((one(fixed=("ids", "mask")),), {}),
        ((Input(target="embed_padded", args=([1, 2, 3],)),), {}),
        (tuple(shape_grid("embed", BUCKETS, fields=FIELDS)), {}),
    ],
    ids=["dynamic", "fixed", "fixed by name", "padded", "buckets"],
)
def test_inputs_that_cover_their_traffic_are_not_narrow(
    declared: tuple[Input, ...], changed: dict[str, Any]
):
    report = warm(*declared, **changed)
    assert report["narrow"] == []
    assert report["covered"]["proven"] == len(declared)


def test_a_size_that_the_model_rejects_is_not_narrow():
    """The number of features belongs to the weights."""

    class Head(Embedder):
        declared = (Input(target="classify", args=(torch.ones(3, 8),)),)

        def __init__(self) -> None:
            super().__init__()
            self.other = self.model = compiled(lambda x: self.head(x))  # noqa: PLW0108

    assert warm(kind=Head)["narrow"] == ["features[0], always 3"]


@pytest.mark.parametrize(
    ("item", "axes"),
    [
        (Input(target="POST /a", json={"text": "some words here"}), ["json.text[0], always 15"]),
        (Input(target="POST /a", json={"rows": [[1, 2, 3], [4, 5, 6]]}), [
            "json.rows[0], always 2", "json.rows[1], always 3"]),
        (Input(target="a", args=(torch.ones(1, 4), 7)), [
            "args0[0], always 1", "args0[1], always 4", "args1, always 7"]),
        (Input(target="a", kwargs={"n": 3, "is_long": True}), ["n, always 3"]),
        (Input(target="a", kwargs={"n": 3, "m": 3}, fixed=("m",)), ["n, always 3"]),
        (Input(target=Embedder().embed_list, args=([1, 2],)), ["tokens[0], always 2"]),
        (Input(target=Embedder().embed_list, args=([1, 2],), fixed=("tokens",)), []),
        (Input(target="GET /a?side=64&name=abc"), [
            "query.side, always 64", "query.name[0], always 3"]),
        # Their names end or begin as those of identifiers do.
        *((a(**{name: 1}), [f"{name}, always 1"]) for name in (
            "grid", "width", "steps", "turkey", "valid")),
    ],
)  # fmt: skip
def test_what_is_varied(item: Input, axes: list[str]):
    assert sizes([item]) == axes
    assert vary([item])[1] == (["is_long of 'a', always True"] if "is_long" in item.kwargs else [])


def scored(values: list[float], user: str = "", top: int = 5, *, sharp: bool = False) -> None: ...


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
        (
            [Input(target=scored, args=([1.5, 2.5],), fixed=("top", "sharp"))],
            {
                "values, never whole numbers": ([2, 2],),
                "values, never empty": ([],),
                "values[0], at most 2": ([1.5, 2.5] * 8,),
            },
        ),
        (
            [Input(target=scored, args=([1], "me"), fixed=("values", "top", "sharp"))],
            {
                "user, always given": ([1],),
                "user, always ASCII": ([1], "mé"),
                "user, never empty": ([1], ""),
                "user[0], at most 2": ([1], "me " * 5),
            },
        ),
    ],
)
def test_what_else_is_varied(inputs: list[Input], wanted: dict[str, Any]):
    """Flags, optional arguments, kinds of numbers and texts, and very different lengths."""
    found = {each.axes: each.item.args for each in vary(inputs)[0] if each.is_extra}
    assert {axes: found.get(axes) for axes in wanted} == wanted


def drawn(
    size: tuple[int, int] = (4, 6),
    scale: float = 2,
    style: Literal["flat", "round"] = "flat",
    text: str | list[str] = "ab",
) -> None: ...


MASK_LIST = [[1, 1, 1, 1], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
        (
            [{"row": {"a": 1, "b": 2}}],
            {
                "row, always with its keys in one order": {"row": {"b": 2, "a": 1}},
                "row.a, always given": {"row": {"b": 2}},
                "row, always with 2 keys": {"row": {"a": 1, "b": 2, "b_": 2}},
            },
        ),
        ([{"row": {"a": 1}}, {"row": {"b": 2}}], {"row, always with its keys in one order": None}),
        ([{"batch": {"ids": X, "mask": X}}], {"batch.ids, always given": None}),
        ([{"n": 4}, {"n": 6}], {"n, only 4 or 6": {"n": 1}, "n, always a whole number": None}),
        ([{"t": 0.5}], {"t, always 0.5": {"t": 0.375}, "t, never a whole number": {"t": 2}}),
        ([{"size": [480, 640]}], {"size, always 480 and 640": {"size": [479, 639]}}),
        ([{"size": [480, 640]}, {"size": [9, 9]}], {"size, always 480 and 640": None}),
        ([{"ids": [1, 2]}], {"ids, always whole numbers": {"ids": [1.5, 2.5]}}),
        (
            [{"rows": [[1, 2], [3, 4]]}],
            {"rows, always with items of one length": {"rows": [[1, 2], [3]]}},
        ),
        ([{"rows": [[1, 2], [3]]}], {"rows, always with items of one length": None}),
        ([{"texts": ["a", "b"]}], {"texts, never a text": {"texts": "a"}}),
        ([{"text": "ab"}], {"text, never a list": {"text": ["ab"]}}),
        (
            [{"mask": MASK_LIST}],
            {"mask, always a mask of ones": {"mask": [[1, 1, 1, 1], [1, 1, 0, 0]]}},
        ),
        ([{"mask": MASK_LIST}, {"mask": [[1, 0]]}], {"mask, always a mask of ones": None}),
        ([{"ones": MASK_LIST}], {"ones, always a mask of ones": None}),
    ],
)  # fmt: skip
def test_other_values_are_tried(inputs: list[dict[str, Any]], wanted: dict[str, Any]):
    """In a body without annotations. `None` means that there is no such trial."""
    declared = [Input(target="POST /a", json=json, name=str(n)) for n, json in enumerate(inputs)]
    found = {each.axes: each.item.json for each in vary(declared)[0]}
    assert {axes: found.get(f"json.{axes}") for axes in wanted} == wanted


def test_annotations_permit_other_values():
    """`float` takes fractions, a union takes each of its types, and nothing else is tried."""
    kwargs = {"size": (4, 6), "scale": 2, "style": "flat", "text": "ab"}
    varied, opaque = vary([Input(target=drawn, kwargs=kwargs)])
    found = {each.axes: each.item.kwargs for each in varied}
    assert found["size, always 4 and 6"]["size"] == (3, 5)
    assert found["scale, always a whole number"]["scale"] == 2.5
    assert found["text, never a list"]["text"] == ["ab"]
    assert not [axes for axes in found if axes.startswith("style") and "given" not in axes]
    assert opaque == ["style of 'drawn', never round"]


@pytest.mark.parametrize("kind", [torch.int64, torch.bool])
def test_a_tensor_that_masks_nothing_gets_padding(kind: torch.dtype):
    mask = torch.ones(2, 4, dtype=kind)
    found = {each.axes: each for each in vary([Input(target="a", kwargs={"mask": mask})])[0]}
    padded = found["mask, always a mask of ones"].item.kwargs["mask"]
    assert padded.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert padded.dtype is kind
    assert bool((mask == 1).all())
    by_position = vary([Input(target=Embedder().embed, args=(IDS, mask))])[0]
    assert "mask, always a mask of ones" in {each.axes for each in by_position}


def test_varied_inputs_differ_by_one():
    """Sizes of 1 and 2 grow, because torch compiles other code for a size of 1."""
    item = Input(target="POST /a", json={"text": "some words here", "rows": [[1, 2, 3], [4, 5, 6]]})
    found = {each.axes: each.item.json for each in vary([item])[0] if not each.is_extra}
    assert found["json.text[0], always 15"]["text"] == "some words"
    assert found["json.rows[0], always 2"]["rows"] == [[1, 2, 3], [4, 5, 6], [1, 2, 3]]
    assert found["json.rows[1], always 3"]["rows"] == [[1, 2], [4, 5]]
    (batch, length) = (
        each.item.args[0]
        for each in vary([Input(target="a", args=(torch.ones(1, 4),))])[0]
        if not each.is_extra
    )
    assert (batch.shape, length.shape) == ((2, 4), (1, 3))
    numbers = Input(target="GET /a?side=64&first=1", kwargs={})
    tried = [each.item.target.removeprefix("GET /a?") for each in vary([numbers])[0]]
    assert tried == ["side=63&first=1", "side=64&first=2", "side=128&first=1", "side=1&first=1"]


def test_one_fixed_name_that_is_no_tuple_is_refused():
    """Otherwise each letter would count as a name."""
    with pytest.raises(InputError, match="fixed='ids'") as refused:
        one(fixed="ids")
    assert 'fixed=("ids",)' in refused.value.hint


class Second(WarmupMixin):
    """Has compiled objects that only some requests call."""

    def __init__(self) -> None:
        self.model = self.module()
        self.by_language = {"en": self.model, "de": self.module()}
        self.inner, self.drift = self.module(), self.module()
        self.outer = torch.compile(nn.Sequential(self.inner), backend="eager")

    def module(self) -> Any:
        return torch.compile(nn.Linear(4, 4), backend="eager")

    async def run(self, name: str, x: torch.Tensor) -> Any:
        with torch.no_grad():
            return getattr(self, name)(x)

    def warmup_inputs(self) -> list[Input]:
        names = ("model", "outer")
        return [Input(target=self.run, args=(name, X), name=name, fixed=True) for name in names]


class Function(Second):
    """Has compiled functions, which call each other and modules."""

    def __init__(self) -> None:
        super().__init__()
        kept, self.kept = self.module(), None
        self.step = compiled(lambda m, x: self.score(m(x)) + kept(x) + double(x))
        self.argument = self.module()
        self.double, self.other, self.kept = double, compiled(lambda x: x * 3), kept

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    async def steps(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            return self.step(self.argument, self.model(x))

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.steps, args=(X,), fixed=True)]


double = compiled(lambda x: x * 2)


@pytest.mark.parametrize(
    ("kind", "uncalled"),
    [
        (Second, ("by_language['de']", "drift")),
        (Function, ("by_language['de']", "drift", "other", "outer")),
    ],
)
def test_a_compiled_object_that_no_input_calls_is_named(
    kind: type[Second], uncalled: tuple[str, ...], caplog: pytest.LogCaptureFixture
):
    """Its first call compiles. A module inside another compiled module has no code of its own.

    What a called function mentions, directly or through others, is part of its code.
    """
    found = warm(kind=kind)["narrow"]
    assert sorted(found) == [f"self.{name} is compiled, and no input calls it" for name in uncalled]
    assert "Declare an input that does, or do not compile it" in caplog.text


class Several(Second):
    """Has methods that reach the compiled model in several ways."""

    async def score(self, x: torch.Tensor) -> Any:
        return await self.rank(x)

    async def rank(self, x: torch.Tensor) -> Any:
        return self.model(x)

    async def explain(self, x: torch.Tensor) -> Any:
        return self._explain(x)

    def _explain(self, x: torch.Tensor) -> Any:
        return [self.model(row) for row in x]

    def describe(self) -> str:
        return type(self).__name__

    async def score_texts(self, texts: list[str]) -> Any:
        return [await self.score(X[:, : len(text)]) for text in texts]

    def reconfigure(self, config: Any) -> None:
        self.model(X)

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.score, args=(X,), fixed=True)]


of_module = compiled(lambda x: x - 1)


class Global(Second):
    """Has compiled objects that no attribute of the object holds."""

    of_class = torch.compile(nn.Linear(4, 4), backend="eager")

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.run, args=("model", X), fixed=True)]

    async def other(self, x: torch.Tensor) -> Any:
        return of_module(self.of_class(x))


def test_compiled_globals_and_attributes_of_a_class_are_named():
    report = warm(kind=Global)
    assert "of_module is compiled, and no input calls it" in report["narrow"]
    assert "self.of_class is compiled, and no input calls it" in report["narrow"]


class Rounding(Embedder):
    """Pads lengths to a multiple of 16, so that one item less makes no difference."""

    async def embed_rounded(self, tokens: list[int]) -> Any:
        return await self.embed_list([*tokens, *[0] * (-len(tokens) % 16)])

    async def embed_text(self, text: str) -> Any:
        if not (text.startswith("<") and text.endswith(">")):
            raise ValueError("not one of our texts")
        return await self.embed_list([*map(int, text[1:-1].split())])

    async def draw(self, side: int) -> Any:
        return await self.embed(torch.ones(1, side, dtype=torch.int64), torch.ones(1, side))

    def embed_forever(self, tokens: list[int], stride: int) -> Any:
        until_s = time.monotonic() + 5 * (stride > 8)
        while time.monotonic() < until_s:
            time.sleep(0.01)  # as a loop whose step makes no progress, but the test ends
        return self.model(torch.tensor([tokens]), torch.ones(1, len(tokens)))


@pytest.mark.parametrize(
    ("target", "argument", "expected", "dynamic"),
    [
        ("embed_list", [1] * 4, "tokens[0], always 4", False),
        # One item less would be no other.
        ("embed_rounded", [1] * 12, "tokens[0], always 12", False),
        ("draw", 8, "side, always 8", False),
        # With `padding=True`, the first text of another length compiles.
        ("embed_texts", ["a b c d e"] * 3, "texts[1], always 9", False),
        ("embed_texts", ["a b c d e"] * 3, "texts[1], always 9", None),
        # Half a batch of two is one item, for which torch compiles separate code.
        ("see_any", torch.ones(2, 8), "x[0], never 1", True),
    ],
    ids=["list", "rounded up", "number that decides a size", "texts", "automatic", "pair"],
)
def test_a_single_argument_is_narrow(
    target: str, argument: Any, expected: str, dynamic: bool | None
):
    kind = next(each for each in (Rounding, Padding, Sizes) if hasattr(each, target))
    report = warm(Input(target=target, args=(argument,)), kind=kind, options={"dynamic": dynamic})
    assert report["narrow"] == [expected]


def test_a_text_of_which_every_variation_is_refused_is_named():
    """It is in a code that nobody knows, such as base64."""
    report = warm(Input(target="embed_text", args=("<1 2 3>",)), kind=Rounding)
    assert report["narrow"] == []
    assert "text of 'embed_text', because every variation was refused" in report["unvaried"]


def test_a_trial_that_does_not_end_is_the_last_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A thread may go on with it, so it is named, and nothing more is tried."""
    monkeypatch.setattr("serve_warm.replica.replay.passes.TRIAL_S", 0.2)
    item = Input(target="embed_forever", args=([1] * 4, 8), fixed=("tokens",))
    report = warm(item, kind=Rounding)
    [line] = [each for each in report["unvaried"] if "did not end" in each]
    why = r"because the call with another value \(stride, always 8\) did not end"
    assert re.fullmatch(rf"\d+ of \d+ variations, {why}", line)
    assert f"no more inputs are varied: {line.partition('because ')[2]}" in caplog.text
    assert (report["stage"], report["degraded"]) == ("READY", [])


class Numbered(Embedder):
    """Gives the model a number, which decides a size or is a constant of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.model = compiled(lambda x, n: x * n, **self.options)

    async def times(self, n: float) -> Any:
        with torch.no_grad():
            return self.model(X, n)

    async def few(self, n: int) -> Any:
        if n not in (2, 4):
            raise ValueError("2 or 4")
        return await self.times(n)


@pytest.mark.parametrize(
    ("target", "numbers", "options", "expected"),
    [
        ("times", (1001, 1002), {"dynamic": False}, ["n, only 1001 or 1002"]),
        ("times", (2, 3, 4, 5, 6), {"dynamic": False}, ["n, only 5 values"]),
        ("times", (1.5, 2.5), {"dynamic": False}, ["n, only 1.5 or 2.5"]),
        ("times", (3, 4), {"dynamic": True}, ["n, always a whole number"]),
        ("few", (2, 4), {"dynamic": False}, []),
    ],
)
def test_a_number_that_no_input_has_is_tried(target, numbers, options, expected):
    """Each number of a static graph compiles, so a list of declared numbers covers no other one."""
    declared = tuple(Input(target=target, args=(n,), name=f"{n}") for n in numbers)
    assert warm(*declared, kind=Numbered, options=options)["narrow"] == expected


@pytest.mark.parametrize(
    ("numbers", "tried"),
    [
        ((256, 264), [260, 272, 248, 1]),  # a handler may refuse all but multiples of 8
        ((5, 6), [7, 4, 1]),
        ((5, 9, None), [7, 13, 1]),
        ((2, 5), [3, 8, 1]),
        ((1, 2), [3]),  # and never 0: a loop whose step it is would never end
        ((1,), [2]),
        ((10**400, 10**401), []),
        ((math.nan, math.inf), []),
    ],
)
def test_several_other_numbers_are_tried(numbers: tuple[Any, ...], tried: list[int]):
    """A handler may refuse one of them. Huge numbers and no numbers at all stay as they are."""
    inputs = [Input(target="a", kwargs={"n": n}, name=f"{n}"[:9]) for n in numbers]
    assert [each.item.kwargs["n"] for each in vary(inputs)[0]] == tried


def test_numbers_of_one_address_belong_together():
    """The parameters of an address make no other target, and have signs and fractions."""
    inputs = [Input(target=f"GET /s?n={n}&t=-0.5") for n in (7, 9)]
    varied, unvaried = vary(inputs)
    expected = {"n, only 7 or 9", "t, always -0.5", "t, never a whole number"}
    assert {each.axes.removeprefix("query.") for each in varied} == expected
    assert unvaried == []


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([["a b c d e"] * 3], ["texts[1], always 9"]),
        ([["a b c d e", "a"], ["a", "a b c d e"]], ["texts[1], always 9"]),
        ([["a b c d e"], ["a b"]], []),
    ],
)
def test_texts_of_a_list_that_are_padded_to_the_longest(texts: list[Any], expected: list[str]):
    """The longest text of a list is its size. A text of a mapping in a list has one, too."""
    found = sizes(of_values("a", *({"texts": each} for each in texts)))
    assert [each for each in found if "[1]" in each] == expected
    if len(texts) == 1:
        rows = [{"text": text} for text in texts[0]]
        assert "rows.text[1], always 9" in sizes([a(rows=rows)])


class Padding(Embedder):
    """Pads texts to the longest one, and their number to a bucket."""

    async def embed_texts(self, texts: list[str]) -> Any:
        words = [text.split() for text in texts]
        if not all(words) or len(words) > 4:
            raise ValueError("one to four texts with words")
        longest = max(map(len, words))
        rows = [[1] * len(each) + [0] * (longest - len(each)) for each in words]
        ids = torch.tensor([*rows, *[[0] * longest] * (4 - len(rows))])
        return await self.embed(ids, (ids > 0).long())


class Mode(enum.Enum):
    FLAT, ROUND = "flat", "round"


def moded(mode: Mode) -> None: ...


@pytest.mark.parametrize(
    ("item", "line"),
    [
        (a(images=[b"png"]), "images of 'a'"),
        (a(rows=[["red shoes", 3]]), "rows of 'a'"),
        (a(rows=[{"tokens": [1], "normalize": True}]), "rows.normalize of 'a', always True"),
        (Input(target="GET /s?ids=1&ids=2"), "the parameters in the address of 'GET /s'"),
        (Input(target="GET /s?deep=false"), "query.deep of 'GET /s', always false"),
        (Input(target=moded, args=(Mode.FLAT,)), "mode of 'moded', never round"),
        (a(user_id="42"), "user_id of 'a', never another"),
    ],
    ids=["bytes", "mixed rows", "flag in rows", "repeated", "query flag", "enum", "text id"],
)
def test_what_is_left_alone_is_named(item: Input, line: str):
    varied, opaque = vary([item])
    assert line in opaque
    assert not [each.axes for each in varied if "user_id" in each.axes or "mode" in each.axes]


@pytest.mark.parametrize(
    ("items", "wanted", "kwargs"),
    [
        (
            of_values("a", {"task": "embed", "text": "abcd"}, {"task": "classify", "text": "ab"}),
            "text[0], always 4",
            {"task": "embed", "text": "abc"},
        ),
        (
            of_values("a", {"ids": [[1] * 4] * 2}, {"ids": [[1] * 2]}),
            "ids[0] 1 with ids[1] 4, never",
            {"ids": [[1] * 4]},
        ),
        (
            of_values("a", {"text": "ab"}, {"image": [1.5]}),
            "image, never with all others",
            {"text": "ab", "image": [1.5]},
        ),
        (
            [*of_values("a", {"ids": [1]}, fixed=True), *of_values("b", {"ids": [1] * 4})],
            "ids[0], always 4",
            {"ids": [1] * 3},
        ),
        (
            of_values("a", {"size": [32, 32]}, {"size": [64, 64]}),
            "size, only 2 of such values",
            {"size": [48, 48]},
        ),
        (
            of_values("a", {"a": {"b": {"c": {"d": {"e": "words"}}}}}),
            "a.b.c.d.e[0], always 5",
            {"a": {"b": {"c": {"d": {"e": "word"}}}}},
        ),
        (
            of_values("a", {"messages": [{"content": [{"text": "words"}]}]}),
            "messages.content.text[2], always 5",
            {"messages": [{"content": [{"text": "word"}]}]},
        ),
        (  # with dynamic=True, torch takes equal sizes for one size
            of_values("a", *({"x": "q" * size, "y": "d" * size} for size in (9, 4))),
            "x[0] and y[0], always equal",
            {"x": "q" * 8, "y": "d" * 9},
        ),
        (  # torch compiles separate code for the size 1, also with dynamic=True
            of_values("a", *({"x": [1.0] * size} for size in (4, 3, 2))),
            "x, never of length 1",
            {"x": [1.0]},
        ),
    ],
    ids=["tasks", "sizes", "arguments", "fixed", "pairs", "deep", "messages", "equal", "one item"],
)
def test_kinds_of_inputs_are_varied(items: list[Input], wanted: str, kwargs: dict[str, Any]):
    """Each kind of one target by itself, and what is declared, but not together."""
    tried = next(each.item for each in vary(items)[0] if each.axes == wanted)
    assert tried.kwargs == kwargs


def test_identifiers_of_several_lengths_stay_as_they_are():
    """Not even their length changes beside another size."""
    items = of_values("a", {"user_id": "42", "ids": [1] * 4}, {"user_id": "4200", "ids": [1]})
    tried = {each.item.kwargs["user_id"] for each in vary(items)[0]}
    assert tried <= {"42", "4200"}


def test_tensors_in_a_list_are_varied():
    found = {
        each.axes: [*map(tuple, (tensor.shape for tensor in each.item.args[0]))]
        for each in vary([Input(target="detect", args=([torch.ones(3, 32, 48)],))])[0]
        if not each.is_extra
    }
    assert found["args0[2], always 32"] == [(3, 31, 48)]
    assert found["args0[3], always 48"] == [(3, 32, 47)]


class Tracing:
    """Calls itself with any attribute, as `unittest.mock.call` and lazy proxies do."""

    def __getattr__(self, name: str) -> Any:
        return Tracing()


class Odd(Several):
    """Has class attributes that are no functions, and methods that are called in odd ways."""

    lazy = Tracing()
    mock = unittest.mock.call
    again = Several.score

    def __init__(self) -> None:
        super().__init__()
        self.load()

    def load(self) -> None:
        self.model(X)

    async def explain(self, x: torch.Tensor) -> Any:
        return await super().explain(x)

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.explain, args=(X,), fixed=True)]


class Choosing(Several):
    """Finds its methods by name."""

    async def __call__(self, name: str, x: torch.Tensor) -> Any:
        return await getattr(self, name)(x)

    def warmup_inputs(self) -> list[Input]:
        return [Input(target="__call__", args=("rank", X), fixed=True)]


@pytest.mark.parametrize(
    ("kind", "uncalled"),
    [
        # `score` calls `rank`, and `score_texts` only prepares the arguments of `score`.
        (Several, ["explain"]),
        # `__init__` calls `load`. No attribute of objects of other classes is read.
        (Odd, ["again", "rank", "score", "score_texts"]),
        # Nobody knows which of them an input reached.
        (Choosing, []),
    ],
)
def test_a_method_that_uses_the_model_and_that_no_input_calls_is_named(
    kind: type[Several], uncalled: list[str]
):
    """Nobody knows whether it compiles, so the verdict stays."""
    found = sorted(warm(kind=kind)["unvaried"])
    assert found == [f"a method that no input calls: {name}()" for name in uncalled]


class Waiting(Embedder):
    """Takes half a second for a call."""

    async def embed_slowly(self, tokens: list[int], more: list[int], text: str) -> Any:
        await asyncio.sleep(0.5)
        return await self.embed_padded(tokens[:8])

    declared = (Input(target="embed_slowly", args=([1, 2], [3, 4], "some words")),)


def test_variations_that_took_too_long_are_counted():
    """Otherwise the report would say nothing of what was not tried."""
    [line] = warm(kind=Waiting)["unvaried"]
    assert re.fullmatch(r"\d+ of \d+ variations, to save time", line)


IDENTIFIERS = ("user_id", "userId", "userid", "orderID", "apiKey", "randomSeed", "user-id", "pk")


def removed(row_id: int) -> None: ...


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        *(([a(**{name: 7})], [f"{name} of 'a', always 7"]) for name in (*IDENTIFIERS, "uuid")),
        (of_values("a", {"user_id": 7}, {"user_id": 8}), ["user_id of 'a', only 7 or 8"]),
        (
            [Input(target="delete", kwargs={"row_id": 42, "dry": True})],
            ["row_id of 'delete', always 42", "dry of 'delete', always True"],
        ),
        ([Input(target=removed, args=(42,))], ["row_id of 'removed', always 42"]),
        (
            [Input(target="PUT /rows?side=64", json={"text": "some words"})],
            ["all arguments of 'PUT /rows'"],
        ),
        ([Input(target="POST /image", body=b"jpeg")], ["the body of 'POST /image'"]),
        ([Input(target="decode", args=(b"jpeg",))], ["args0 of 'decode'"]),
        ([Input(target="decode", args=(b"jpeg",), fixed=True)], []),
        ([Input(target="GET /square/7")], ["the path of 'GET /square/7'"]),
        ([Input(target="a", model_id="en")], ["other model ids of 'a'"]),
        ([Input(target=scored, args=([1],), fixed=True)], []),
        (
            [a(x={"y": OrderedDict(a=1)}, z=UserDict(a=1), n=None)],
            ["x.y of 'a'", "z of 'a'", "n of 'a', always None"],
        ),
    ],
)
def test_what_stays_as_declared_is_named(inputs: list[Input], named: list[str]):
    """What names something, could change something, or nobody knows how to vary."""
    assert vary(inputs) == ([], named)


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        (
            [Input(target=scored, args=([1],))],
            [f"{name} of 'scored', always its default" for name in ("user", "top", "sharp")],
        ),
        (
            of_values("a", *({f"text{number}": "ab"} for number in range(6))),
            ["all but 4 of 6 kinds of inputs of 'a'"],
        ),
        (
            [a(row={f"f{number}": 1.5 for number in range(100)})],
            ["all but the first 128 variations, to save time"],
        ),
    ],
    ids=["optional arguments", "kinds", "variations"],
)
def test_what_is_varied_in_part_is_named(inputs: list[Input], named: list[str]):
    assert vary(inputs)[1] == named


class Branching(WarmupMixin):
    """Branches on the values of its argument."""

    values: tuple[float, ...] = (1.0,)

    def __init__(self) -> None:
        def run(x: torch.Tensor) -> torch.Tensor:
            if bool(x.max() > 100):
                raise ValueError("too large")
            y = x * 2
            if y.sum() > 0:
                if len(y) > 5:
                    raise ValueError("too long")
                return y + 1
            return y * 3

        self.model = compiled(run, dynamic=True)

    def warmup_inputs(self) -> list[Input]:
        return [
            Input(target="run", args=(torch.full((3,), value),), name=str(value))
            for value in self.values
        ]

    async def run(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            return self.model(x)


def branches(lines: list[str]) -> list[str]:
    return [each for each in lines if each.startswith("one side of the branch at")]


@pytest.mark.parametrize(
    ("values", "is_narrow"), [((1.0,), True), ((-1.0,), True), ((1.0, -1.0), False)]
)
def test_a_branch_that_no_input_takes_is_narrow(values: tuple[float, ...], is_narrow: bool):
    """A side that only raises an error compiles nothing."""
    report = warm(kind=Branching, values=values)
    named = branches(report["narrow"])
    assert len(named) == is_narrow
    assert all(re.search(r"test_narrow\.py:\d+, in run", each) for each in named)
    assert report["covered"]["proven"] == len(values)


def keep(x: torch.Tensor) -> torch.Tensor:
    positive = bool(x.sum() > 0)
    y = x * 2
    return y if positive else -y


def cut(x: torch.Tensor) -> torch.Tensor:
    end = int(x.abs().sum())
    return (x * 2)[:end]


@pytest.mark.parametrize(
    ("function", "values", "place"),
    [
        (keep, (1.0,), "in keep, where its value was True"),
        (keep, (1.0, -1.0), ""),
        (cut, (1.0,), "in cut, where its value was 3"),
    ],
    ids=["one side", "both sides", "a size"],
)
def test_a_value_that_a_model_reads_from_a_tensor_is_narrow(
    function: Any, values: tuple[float, ...], place: str
):
    class Reading(Branching):
        def __init__(self) -> None:
            self.model = compiled(function, dynamic=False)

    found = branches(warm(kind=Reading, values=values)["narrow"])
    assert [each.endswith(place) for each in found] == [True] * bool(place)


def test_a_branch_of_a_library_is_named_but_not_narrow():
    """The application may rule it out, for example with buckets."""
    source = "def installed(x):\n    y = x * 2\n    return y + 1 if y.sum() > 0 else y * 3\n"
    names: dict[str, Any] = {}
    exec(compile(source, f"{sysconfig.get_path('purelib')}/library.py", "exec"), names)

    class Branches(Branching):
        def __init__(self) -> None:
            self.model = compiled(names["installed"], dynamic=True)

    report = warm(kind=Branches)
    again = warm(kind=Branches, values=(1.0, -1.0))

    (line,) = branches(report["unvaried"])
    assert line.endswith("library.py:3, in installed")
    assert not any("branch" in each for each in (*report["narrow"], *again["unvaried"]))


@pytest.mark.parametrize(
    "item",
    [
        Input(target="search", kwargs={"query": "hello there"}),
        Input(target="search", kwargs={"query": torch.ones(2, 3)}),
        Input(target="score", args=([[1.0, math.nan, math.inf]],)),
        Input(target="score", args=(torch.ones(2, 2).to_sparse(),)),
        Input(target="score", kwargs={"row": (loop := {"a": 1.0})}),
        Input(target="score", kwargs={"row": OrderedDict(a=[1, 2]), "n": 3}),
        Input(target="GET /a?tag=1&tag=2"),
        Input(target="score", args=({"f" + str(number): 1.0 for number in range(3000)},)),
    ],
)
def test_odd_arguments_end_no_start(item: Input):
    """Whatever cannot be varied is left as it is."""
    loop = item.kwargs.get("row")
    if type(loop) is dict:
        loop["self"] = loop
    varied, _ = vary([item])
    assert len(varied) <= 128
    assert all(len(each.axes) < 1000 for each in varied)


@pytest.mark.parametrize("numbers", list(itertools.permutations((2, 3, 8))), ids=str)
def test_inputs_may_be_declared_in_any_order(numbers: tuple[int, ...]):
    """Inputs are not compared: equality of tensors of unlike sizes raises."""
    inputs = [
        Input(target="embed", args=(torch.ones(number, 4),), size=number) for number in numbers
    ]
    varied, opaque = vary(inputs)
    assert varied
    assert not any("some arguments" in line for line in opaque)


def test_varied_tensors_are_of_the_same_kind():
    """Otherwise a right application is narrow because of other strides or dispatch keys."""
    with torch.inference_mode():
        given = torch.ones(4, 3, 6, 5).to(memory_format=torch.channels_last)
    for each in vary([Input(target="a", args=(given,))])[0]:
        (tensor,) = each.item.args
        assert tensor.is_contiguous(memory_format=torch.channels_last)
        assert tensor.is_inference()


def test_no_variation_has_the_declared_sizes():
    """Half of a batch of two is none: the copy of a slice has other strides, and compiles."""
    given = torch.ones(2, 8)[:, :4]
    for each in vary([Input(target="a", args=(given,))])[0]:
        assert each.item.args[0].shape != given.shape


class Sizes(Embedder):
    """Refuses some sizes."""

    async def see(self, x: torch.Tensor) -> Any:
        if len(x) > 1 or x.shape[1] % 16 or not 32 <= x.shape[1] <= 256:
            raise ValueError("one row of a multiple of 16 numbers, up to 256")
        with torch.no_grad():
            return self.model(x, x)

    def run(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return ids * mask

    async def read(self, tokens: list[int]) -> Any:
        if not 2 <= len(tokens) <= 10:
            raise ValueError("2 to 10 tokens")
        return await self.see_any(torch.ones(1, len(tokens)))

    async def see_any(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            return self.model(x, x)


@pytest.mark.parametrize(
    ("items", "options", "expected"),
    [
        ([Input(target="see", args=(torch.ones(1, 64),))], {"dynamic": False}, "x[1], always 64"),
        ([Input(target="see_any", args=(torch.ones(4, 8),))], {"dynamic": True}, "x[0], never 1"),
        (
            [Input(target="read", args=([1] * n,), name=str(n)) for n in (4, 8)],
            {"dynamic": False},
            "tokens[0], only 2 lengths",
        ),
    ],
    ids=["only multiples of 16", "one item of a dynamic batch", "lengths between two"],
)
def test_other_sizes_are_tried(items: list[Input], options: dict[str, Any], expected: str):
    assert expected in warm(*items, kind=Sizes, options=options)["narrow"]


def test_a_large_tensor_is_not_made_larger():
    pixels = torch.zeros(1, (1 << 24) + 2, dtype=torch.uint8)
    varied, _ = vary([Input(target="a", args=(pixels,))])
    assert max(each.item.args[0].numel() for each in varied if "[1]" in each.axes) < pixels.numel()
