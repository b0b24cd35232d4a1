# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Buckets, declared inputs, the grid over the buckets, and the signatures of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from serve_warm.errors import InputError
from serve_warm.inputs import (
    Buckets,
    Field,
    Input,
    InputSignature,
    shape_grid,
    sort_by_size,
    suggest_input,
)


class Embedder:
    def embed(self, ids: Any, mask: Any, *, normalise: bool = True) -> None: ...

    def ping(self) -> None: ...


EMBEDDER = Embedder()


def refusal(action: Callable[[], Any]) -> InputError:
    with pytest.raises(InputError) as caught:
        action()
    return caught.value


# --- buckets -------------------------------------------------------------------------------
def test_fit_returns_the_smallest_bucket_that_holds_the_size():
    """Each axis by itself, and a size that is a bucket is its own."""
    buckets = Buckets(batch=[8, 1, 4], length=[16, 64])
    assert buckets.fit(batch=2, length=64) == {"batch": 4, "length": 64}
    assert buckets.fit(batch=8) == {"batch": 8}
    assert buckets.fit(length=1) == {"length": 16}


def test_fit_never_returns_a_size_that_is_not_compiled():
    """The handler pads to sizes of the grid, because both use the same object."""
    buckets = Buckets(batch=[1, 3, 8], length=[5, 7])
    points = buckets.grid()
    fitted = [buckets.fit(batch=b, length=n) for b in range(1, 9) for n in range(1, 8)]
    assert all(point in points for point in fitted)


def test_fit_over_the_top_is_an_error_that_says_what_to_do():
    """A request that no bucket holds is not silently padded to a new shape."""
    error = refusal(lambda: Buckets(length=[16, 64]).fit(length=65))
    assert str(error) == (
        "length=65 is larger than the largest bucket of Buckets(length=[16, 64])\n"
        "hint: truncate or split the request, or add a bucket to 'length'"
    )
    assert (error.axis, error.size) == ("length", 65)


def test_the_grid_is_every_combination_largest_first():
    buckets = Buckets(batch=[1, 2, 8], length=[16, 128], width=[3])
    points = buckets.grid()
    volumes = [p["batch"] * p["length"] * p["width"] for p in points]
    assert volumes == sorted(volumes, reverse=True)
    expected = [(batch, length, 3) for batch in (1, 2, 8) for length in (16, 128)]
    assert sorted((p["batch"], p["length"], p["width"]) for p in points) == expected


@pytest.mark.parametrize(
    "sizes", [[], [0], [-1, 2], [1.5], ["8"], ["8", 1], [True], 8, None], ids=repr
)
def test_sizes_that_are_none_are_refused(sizes: Any):
    """An axis has at least one whole number, and none below 1; the hint shows the form."""
    error = refusal(lambda: Buckets(batch=sizes))
    assert str(error).startswith(f"Buckets axis 'batch' has sizes {sizes!r}\n")
    assert "Buckets(batch=[1, 8])" in error.hint


def test_buckets_without_an_axis_are_refused():
    assert "for example Buckets(batch=[1, 8]" in str(refusal(Buckets))


def test_an_unknown_axis_is_named():
    """A mistyped axis is an error in the handler, not an unpadded tensor."""
    error = refusal(lambda: Buckets(batch=[1]).fit(bach=1))
    assert "no axis 'bach' in Buckets(batch=[1])\nhint: " in str(error)


# --- inputs --------------------------------------------------------------------------------
def test_an_input_is_named_for_its_target():
    assert Input(target=EMBEDDER.embed).name == "embed"
    assert Input(target="embed").name == "embed"
    assert Input(target="POST /embed").name == "POST /embed"
    assert Input(target="embed", name="the short one").name == "the short one"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"target": "post /embed"}, "unknown kind of target 'post /embed'", "POST /embed"),
        ({"target": "POST  /embed"}, "unknown kind of target", "one space, and a path without"),
        ({"target": "FETCH /embed"}, "unknown kind of target", 'a request ("POST /embed")'),
        ({"target": "/embed"}, "unknown kind of target", 'use a method ("embed")'),
        ({"target": "POST embed"}, "unknown kind of target", "POST /embed"),
        ({"target": 7}, "is int, not a method", "pass a bound method"),
        ({"target": "embed", "concurrency": 0}, "concurrency=0", "1 or more"),
        ({"target": "embed", "json": {}}, "target 'embed' is a method", "use args and kwargs"),
        ({"target": "embed", "body": b"x"}, "json, body and headers are for HTTP", "POST /path"),
        ({"target": "embed", "headers": {"a": "b"}}, "are for HTTP", "use args and kwargs"),
    ],
)
def test_an_input_that_cannot_be_replayed_is_refused(
    options: dict[str, Any], message: str, hint: str
):
    """Mistakes are found where the input is written, with what to write instead."""
    error = refusal(lambda: Input(**options))
    assert message in error.message
    assert hint in error.hint


# --- the grid ------------------------------------------------------------------------------
def test_a_method_gets_a_tensor_for_each_required_argument():
    """Without fields, each required argument gets int64 ones over all axes."""
    inputs = shape_grid(EMBEDDER.embed, Buckets(batch=[1, 2], length=[4]))
    assert [item.name for item in inputs[::2]] == [f"embed batch={n} length=4" for n in (2, 1)]
    assert inputs[0].kwargs.keys() == {"ids", "mask"}
    assert all(torch.equal(t, torch.ones(2, 4).long()) for t in inputs[0].kwargs.values())
    assert [item.size for item in inputs] == [8, 8, 4, 4]


def test_masks_have_a_second_input_with_padding():
    """Eager code takes a shorter way for a mask of ones, and traffic has padding."""
    buckets = Buckets(batch=[1, 3], length=[1, 5])
    inputs = {item.name: item.kwargs for item in shape_grid(EMBEDDER.embed, buckets)}
    padded = [f"embed batch={n} length=5 padded" for n in (3, 1)]
    assert [name for name in inputs if "padded" in name] == padded
    several, single = (inputs[name]["mask"] for name in padded)
    assert several.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 0, 0, 0]]
    assert single.tolist() == [[1, 1, 0, 0, 0]]
    assert inputs[padded[0]]["ids"].all()


@pytest.mark.parametrize(
    ("name", "field", "varied"),
    [
        ("attention_mask", Field(axes=("n",)), True),
        ("keep", Field(axes=("n",), dtype="bool"), True),
        ("attention_mask", Field(axes=("n",), low=0, high=1), False),
        ("attention_mask", Field(axes=("n",), dtype="float32"), False),
        ("ids", Field(axes=("n",)), False),
    ],
)
def test_only_masks_of_ones_are_padded(name: str, field: Field, varied: bool):
    inputs = shape_grid("embed", Buckets(n=[4]), fields={name: field})
    assert len(inputs) == 1 + varied


def test_fields_make_what_they_say():
    """Axes by name or fixed, dtype, and values within the range, both ends included."""
    fields = {
        "ids": Field(axes=("batch", "length"), low=3, high=5),
        "pixels": Field(axes=("batch", 3, "length"), dtype="float32", low=-1, high=2),
        "half": Field(axes=("length",), dtype="bfloat16", low=0, high=1),
        "mask": Field(axes=("batch",), dtype="bool"),
    }

    item, _ = shape_grid("embed", Buckets(batch=[40], length=[50]), fields=fields)

    made = item.kwargs
    shapes = {"ids": (40, 50), "pixels": (40, 3, 50), "half": (50,), "mask": (40,)}
    assert {name: tuple(tensor.shape) for name, tensor in made.items()} == shapes
    dtypes = [torch.int64, torch.float32, torch.bfloat16, torch.bool]
    assert [tensor.dtype for tensor in made.values()] == dtypes
    assert set(made["ids"].unique().tolist()) == {3, 4, 5}
    assert -1 <= made["pixels"].min() < -0.9
    assert 1.9 < made["pixels"].max() <= 2
    assert made["half"].min() >= 0
    assert made["half"].max() <= 1
    assert made["mask"].all()


def test_making_values_leaves_the_global_generator_alone():
    """A grid is made inside user code that may have seeded torch."""
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    shape_grid("embed", Buckets(n=[4]), fields={"x": Field(axes=("n",), high=9)})
    assert torch.equal(torch.rand(3), expected)


def test_make_is_called_with_the_sizes_of_each_point():
    """It returns the keyword arguments, or the parts of a request."""

    def make(batch: int, length: int) -> dict[str, Any]:
        return {"json": {"texts": ["word " * length] * batch}, "headers": {"x-n": str(batch)}}

    inputs = shape_grid("POST /embed", Buckets(batch=[1, 2], length=[3]), make=make)
    assert [item.http for item in inputs] == [("POST", "/embed")] * 2
    assert [len(item.json["texts"]) for item in inputs] == [2, 1]
    assert inputs[0].headers == {"x-n": "2"}
    assert inputs[0].kwargs == {}


def test_the_concurrency_axis_is_a_number_of_calls():
    """This axis makes concurrent calls, is not a dimension, and is not passed to `make`."""
    buckets = Buckets(batch=[1, 4], length=[16])
    made = shape_grid("embed", buckets, concurrency="batch", make=lambda length: {"n": length})
    tensors = shape_grid(EMBEDDER.embed, buckets, concurrency="batch")[::2]
    assert [(item.concurrency, item.kwargs) for item in made] == [(4, {"n": 16}), (1, {"n": 16})]
    assert [tuple(item.kwargs["ids"].shape) for item in tensors] == [(16,), (16,)]
    assert made[0].name == "embed batch=4 length=16"


def test_a_model_id_is_on_every_input():
    """Multiplexed models are warmed one grid each."""
    inputs = shape_grid(EMBEDDER.embed, Buckets(batch=[1, 2]), model_id="fr")[1:]
    assert [item.model_id for item in inputs] == ["fr", "fr"]


def of_ids(*axes: str, **field: Any) -> dict[str, Any]:
    return {"fields": {"ids": Field(axes=axes, **field)}}


def test_a_grid_over_its_budget_is_an_error_and_not_cut():
    """Too many inputs are said with both numbers; at the budget itself they are made."""
    buckets = Buckets(batch=range(1, 13), length=range(1, 12))
    error = refusal(lambda: shape_grid(EMBEDDER.embed, buckets))
    inputs = shape_grid("embed", buckets, budget=132, fields={"ids": Field(axes=("batch",))})
    assert "makes 132 inputs, but the budget is 128" in error.message
    assert "fewer buckets, or raise budget=" in error.hint
    assert len(inputs) == 132


@pytest.mark.parametrize(
    ("target", "options", "message", "hint"),
    [
        (
            EMBEDDER.embed,
            {"concurrency": "batches"},
            "'batches' is not an axis",
            "pass the name of an axis",
        ),
        (EMBEDDER.embed, {"make": dict, "fields": {}}, "got both make= and fields=", "only one"),
        ("POST /embed", {}, "needs make= for the request 'POST /embed'", "make=lambda"),
        ("POST /embed", {"fields": {}}, "needs make= for the request 'POST /embed'", "make=lambda"),
        ("embed", {}, "cannot find out the arguments of 'embed'", "make= or fields="),
        (EMBEDDER.ping, {}, "'ping' requires no arguments", "make= or fields="),
        (
            EMBEDDER.embed,
            of_ids("batch", "size"),
            "field 'ids' uses 'size', which is not a dimension of Buckets(batch=[1])",
            "give each dimension as a number or as the name of an axis",
        ),
        (
            EMBEDDER.embed,
            {**of_ids("batch"), "concurrency": "batch"},
            "field 'ids' uses 'batch', which is not a dimension",
            "the concurrency axis cannot be a dimension",
        ),
        (
            EMBEDDER.embed,
            of_ids("batch", dtype="int46"),
            "field 'ids': torch has no dtype 'int46'",
            '"int64"',
        ),
        (EMBEDDER.embed, of_ids("batch", dtype="nn"), "torch has no dtype 'nn'", '"int64"'),
        ("POST /x", {"make": lambda batch: {"jsn": {}}}, "returned ['jsn']", "json, body"),
        ("POST /x", {"make": lambda batch: {"name": ""}}, "returned ['name']", "json, body"),
        ("embed", {"make": lambda batch: [batch]}, "make= returned list", "keyword arguments"),
    ],
)
def test_a_grid_that_cannot_be_made_says_why(
    target: Any, options: dict[str, Any], message: str, hint: str
):
    error = refusal(lambda: shape_grid(target, Buckets(batch=[1]), **options))
    assert message in error.message
    assert hint in error.hint


def test_a_range_that_is_none_is_refused():
    """The two ends of a field's values are given in order."""
    error = refusal(lambda: Field(axes=("batch",), low=2, high=1))
    assert "low=2 above high=1" in error.message
    assert error.hint


# --- what is declared ----------------------------------------------------------------------
def test_declared_inputs_are_replayed_largest_first():
    """By size, and in the declared order among equals; one input needs no list."""
    inputs = [
        Input(target="embed", name=name, size=size)
        for name, size in [("a", 1), ("b", 9), ("c", 0), ("d", 9)]
    ]
    assert [item.name for item in sort_by_size(iter(inputs), of="Embedder")] == ["b", "d", "a", "c"]
    assert sort_by_size(inputs[0], of="Embedder") == [inputs[0]]


def test_names_become_unique():
    """Reports and results are by name; a made one never takes a name that was given."""
    names = ["a", "a", "a #2", "a", "b"]
    inputs = sort_by_size([Input(target="embed", name=name) for name in names], of="Embedder")
    assert [item.name for item in inputs] == ["a", "a #3", "a #2", "a #4", "b"]


@pytest.mark.parametrize(
    ("declared", "message", "hint"),
    [
        (None, "Embedder.warmup_inputs() returned NoneType", "return a list of Input"),
        (
            [],
            "Embedder.warmup_inputs() returned no inputs",
            "`enabled: false` in user_config.warmup",
        ),
        ([EMBEDDER.embed], "is a method, not an Input", "Input(target=self.method"),
        ({"target": "embed"}, "is a str, not an Input", "or use shape_grid"),
    ],
)
def test_declarations_that_are_none_are_refused(declared: Any, message: str, hint: str):
    error = refusal(lambda: sort_by_size(declared, of="Embedder"))
    assert message in error.message
    assert hint in error.hint


# --- signatures ----------------------------------------------------------------------------
class Array:
    """An array of another library, as far as they agree."""

    dtype = "float32"
    shape = (4,)


def signature(**values: Any) -> str:
    return str(InputSignature.of(values))


def test_a_signature_names_what_compiled_code_depends_on():
    """Metadata of tensors and arrays, numbers as they are, and of a text only its length."""
    arrays = {"ids": torch.ones(2, 3).long(), "score": torch.tensor(1.0), "array": Array()}
    plain = {"flag": True, "number": 3, "ratio": 0.5, "secret": "do not log", "nothing": None}
    assert signature(**arrays, **plain) == (
        "ids=int64[2, 3], score=float32[scalar], array=float32[4], "
        "flag=True, number=3, ratio=0.5, secret=str[10]"
    )


def test_containers_are_entered_by_path():
    """Lists, tuples and mappings, up to three levels deep and no deeper."""
    batch = {"inputs": [torch.ones(1), {"mask": torch.ones(2)}], "sizes": (1, 2)}
    of_batch = "batch.inputs[0]=float32[1], batch.sizes[0]=1, batch.sizes[1]=2"
    assert signature(batch=batch) == of_batch
    assert signature(inputs=batch["inputs"]) == "inputs[0]=float32[1], inputs[1].mask=float32[2]"


def test_a_key_of_a_request_is_a_value_too():
    """A key that reads as a name stays, since paths are made of them; any other is a length."""
    batch = {"input_ids": 1, "a@b.c": 2, "n" * 41: 3, 7: 4, ("a@b.c",): 5}
    assert signature(batch=batch) == (
        "batch.input_ids=1, batch.str[5]=2, batch.str[41]=3, batch.7=4, batch.tuple=5"
    )


@pytest.mark.parametrize(
    "values",
    [
        {"x": {f"k{n}": n for n in range(100_000)}},
        {"x": [[n] * 1000 for n in range(100)]},
        {f"argument_{n}": "text" for n in range(10_000)},
        {"n" * 1_500_000: 1},
        {"x": {"n" * 1_500_000: 1}},
        {"x": 10**5000, "y": {10**5000: 1}},
    ],
)
def test_a_signature_is_of_bounded_length(values: dict[str, Any]):
    """Whatever a request brings, a log line and a state file have room for it."""
    found = InputSignature.of(values)
    assert 0 < len(str(found)) <= 1000
    assert len(found.entries) <= 64


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.ones(2, 3).T, "float32[3, 2] strides [1, 3]"),
        (torch.ones(4, 4)[:, ::2], "float32[4, 2] strides [4, 2]"),
        (torch.ones(3).expand(2, 3), "float32[2, 3] strides [0, 1]"),
        (torch.ones(2, 3).T.contiguous(), "float32[3, 2]"),
    ],
)
def test_strides_are_shown_where_they_are_not_the_usual(tensor: torch.Tensor, expected: str):
    """Two tensors that differ in strides only are two variants, so that they look different."""
    assert signature(x=tensor) == f"x={expected}"


@pytest.mark.filterwarnings("ignore:.*Sparse:UserWarning", "ignore:.*nested tensors:UserWarning")
def test_tensors_without_shape_or_strides_have_a_signature():
    """Nested and sparse tensors raise when they are asked; a request must not notice."""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    sparse = torch.eye(2).to_sparse_csr()
    assert signature(x=nested, y=sparse) == "x=float32[nested], y=float32[sparse_csr]"


def test_objects_that_have_every_attribute_are_no_tensors():
    """A DeploymentHandle answers to any name: it is passed over like other objects."""

    class Handle:
        def __getattr__(self, name: str) -> Handle:
            return self

    assert signature(handle=Handle(), x=1) == "x=1"


def test_signatures_compare_by_content():
    """Equal metadata is one signature, whatever the values; another dtype is another."""
    first, same = (InputSignature.of({"x": torch.rand(2)}) for _ in range(2))
    other = InputSignature.of({"x": torch.rand(2).double()})
    assert first == same
    assert len({first, same, other}) == 2


# --- what nobody declared ----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("declared", "given", "pasted"),
    [
        (
            [Input(target="POST /embed", json={"text": "a"}, concurrency=4)],
            {"signature": "ids=int64[3, 16]", "route": "/embed", "largest": 8},
            "Input(target='POST /embed', json={'text': 'a'}, concurrency=3)",
        ),
        (
            [Input(target="embed", args=(torch.ones(4),))],
            {"signature": "x=float32[5], scale=2.0"},
            "Input(target='embed', args=(torch.zeros(5, dtype=torch.float32),))",
        ),
        (
            [Input(target="embed", args=("text",))],
            {"signature": "ids=int64[1, 7]"},
            "Input(target='embed', args=(...,))  # so that forward (app.py:7) gets ids=int64[1, 7]",
        ),
        (
            [Input(target="embed", args=("text",))],
            {"signature": "ids=int64[1, 7]", "route": "/other"},
            (
                "Input(target='POST /other', json=...)  "
                "# so that forward (app.py:7) gets ids=int64[1, 7]"
            ),
        ),
        (
            [Input(target="GET /?max=3")],
            {"signature": "tokens=int64[1×7]", "route": "/"},
            "Input(target='GET /?max=...')  # so that forward (app.py:7) gets tokens=int64[1×7]",
        ),
        (
            [Input(target="GET /embed")],
            {"signature": "size=3", "route": "/embed"},
            "Input(target='GET /embed?...')  # so that forward (app.py:7) gets size=3",
        ),
        (
            [Input(target="embed", kwargs={"size": 2})],
            {"signature": "size=3"},
            "Input(target='embed', args=(...,))  # so that forward (app.py:7) gets size=3",
        ),
    ],
)
def test_a_compile_in_traffic_suggests_an_input(declared: Any, given: Any, pasted: str):
    """The suggestion is Python code, with `...` for unknown values."""
    text = suggest_input(declared, function="forward (app.py:7)", **given)
    assert text == pasted
    names = {"Input": Input, "torch": torch}
    assert eval(text, names).target == eval(pasted, names).target
