# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Sample arguments from type hints, pydantic models and OpenAPI schemas."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, Field

from serve_warm.builder.sample_values import TEXT, UNKNOWN, code_of, sample_of, sample_of_schema


class Inner(BaseModel):
    size: int = Field(ge=4)


class Query(BaseModel):
    text: str = Field(examples=["good morning"])
    inner: Inner
    many: list[Inner] = Field(min_length=2)
    top: int = 3
    kind: Literal["a", "b"]
    left_out: str | None = None
    day: str = Field(json_schema_extra={"format": "date"})


class Tree(BaseModel):
    label: str
    children: list[Tree]


def schema_of(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of a JSON body in the OpenAPI document of a FastAPI app."""
    api = FastAPI()

    async def answer(query):
        return query

    answer.__annotations__ = {"query": model}
    api.post("/")(answer)
    document = api.openapi()
    content = document["paths"]["/"]["post"]["requestBody"]["content"]
    return content["application/json"], document


def test_a_body_has_examples_defaults_and_limits():
    """Optional fields without a default are left out, and a date cannot be guessed."""
    assert sample_of_schema(*schema_of(Query)) == {
        "text": "good morning",
        "inner": {"size": 4},
        "many": [{"size": 4}, {"size": 4}],
        "top": 3,
        "kind": "a",
        "day": UNKNOWN,
    }


def test_a_model_in_itself_ends():
    found = sample_of_schema(*schema_of(Tree))
    assert found["label"] == TEXT
    assert "..." in code_of(found)


@pytest.mark.parametrize(
    ("hint", "sample"),
    [
        (str, TEXT),
        (int, 1),
        (list[str], [TEXT]),
        (dict[str, float], {TEXT: 1.0}),
        (int | None, 1),
        (Annotated[bool, "why"], True),
        (Literal["a", "b"], "a"),
        (list, UNKNOWN),
        (Query, UNKNOWN),
        (np.ndarray, UNKNOWN),
        (Any, UNKNOWN),
    ],
)
def test_a_hint_gives_a_plain_value_or_none(hint, sample):
    """An array or a model is made by code, which only the user knows."""

    def method(self, x):
        return x

    method.__annotations__ = {"x": hint}
    assert sample_of(method, "x") == sample
    assert sample_of(method, "y") is UNKNOWN


def test_code_is_python():
    value = {'a "b"': [1, UNKNOWN, None, True, "x\ny"], "c": 1.5}
    assert eval(code_of(value), {}) == {**value}
    assert code_of([UNKNOWN]) == "[...]"
