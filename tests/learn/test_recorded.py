# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Recorded calls as plain data: what is accepted, and what would run code."""

from __future__ import annotations

from typing import Any

import pytest

from serve_warm.errors import ConfigError
from serve_warm.learn.recorded import RecordedCall, arguments_of

TENSOR = "Tensor int64[8, 64] strides [64, 1] on cpu"


def recorded(structure: str = "t0", *tensors: str, **fields: Any) -> RecordedCall:
    return RecordedCall(
        callable="app.Model", structure=structure, tensors=tensors or (TENSOR,), **fields
    )


def test_json_gives_the_same_call_again():
    call = recorded(
        "t0, mask=t1, n=-3",
        *(TENSOR, "Tensor bool[] strides [] on cuda:0"),
        number=2,
        modes={"inference_mode": True},
        on_model_thread=True,
        calls=7,
    )
    assert RecordedCall.from_json(call.to_json()) == call
    assert call.why_not() == ""


def test_the_name_shows_shapes_and_no_strides():
    assert recorded(number=1).name == "app.Model #2(t0) with Tensor int64[8, 64]"


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"callable": "x", "structure": "t0", "tensors": "t"},
        {"callable": 3, "structure": "t0", "tensors": []},
        {"callable": "x", "structure": "t0", "tensors": [], "calls": -1},
        {"callable": "x", "structure": "t0", "tensors": [], "calls": True},
        {"callable": "x", "structure": "t0", "tensors": [], "modes": {"grad_mode": "on"}},
        {"callable": "x", "structure": "t0", "tensors": [], "extra": 1},
        {"callable": "x", "structure": "1" * 100_000, "tensors": []},
    ],
)
def test_what_is_no_recorded_call_is_refused(data: Any):
    with pytest.raises(ConfigError, match="a recorded call"):
        RecordedCall.from_json(data)


@pytest.mark.parametrize(
    ("structure", "args", "kwargs"),
    [
        ("A, 1", ["A", 1], {}),
        ("A, x=B", ["A"], {"x": "B"}),
        ("[A, (B, 2.5, )], {'a': None}", [["A", ("B", 2.5)], {"a": None}], {}),
        ("torch.Size([1, 2]), dtype=torch.int8", [(1, 2)], {"dtype": "int8"}),
        ("A, **{'from': -1}", ["A"], {"from": -1}),
    ],
)
def test_a_structure_gives_the_arguments(structure: str, args: list[Any], kwargs: dict[str, Any]):
    given = structure.replace("A", "t0").replace("B", "t1")
    found = arguments_of(given, ["A", "B"], lambda name: tuple if name == "Size" else name)
    assert found == (args, kwargs)


@pytest.mark.parametrize(
    "structure",
    [
        "__import__('os').system('true')",
        "t0.__class__",
        "torch.load('x')",
        "torch._C",
        "torch.Size.__init__([1])",
        "open('x')",
        "[t for t in (1, 2)]",
        "lambda: 1",
        "t0 + t0",
        "t9",
        "f'{t0}'",
        "**t0",
        "**{1: 2}",
        "t0)(t0",
        "(" * 500,
        "x := 1",
        "not t0",
        "-'a'",
        "\0",
    ],
)
def test_a_structure_that_no_recorder_writes_is_refused(structure: str):
    """A plan is a file that people edit, and it must not run code."""
    assert recorded(structure).why_not() != ""


def test_a_string_of_a_request_cannot_be_replayed():
    assert "string of a request" in recorded("t0, text=str[17]").why_not()


@pytest.mark.parametrize("text", ["Tensor int64[*, 64] strides [64, 1] on cpu", "int64[8]", ""])
def test_a_tensor_that_no_recorder_describes_cannot_be_made(text: str):
    assert "not described as a recorder would" in recorded("t0", text).why_not()
