# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Recorded requests as data: what can be kept, what is refused, and damaged plans."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from serve_warm.errors import ConfigError
from serve_warm.learn.recorded_requests import (
    MOST_BYTES,
    NotRecordable,
    RecordedRequest,
    plain,
    restored,
    with_texts,
)


def refuse(value: Any) -> Any:
    raise NotRecordable(type(value).__name__)


VALUES = [
    None,
    True,
    -7,
    2.5,
    "text",
    [1, ["a", (2, (3,))]],
    {"a": {"b": [None]}},
    (),
    {},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_is_the_same_after_json(value: Any):
    made = json.loads(json.dumps(plain(value, refuse)))
    assert restored(made, lambda *_: pytest.fail("a mark")) == value


class Text(str):
    __slots__ = ()


cyclic: list[Any] = []
cyclic.append(cyclic)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, {1: 2}, {"$tensor": "t0"}, Text("x"), object(), {1, 2}, cyclic, range(3)],
    ids=["nan", "inf", "number as key", "mark", "subclass", "object", "set", "cyclic", "range"],
)
def test_what_json_has_not_is_refused(value: Any):
    with pytest.raises(NotRecordable):
        plain(value, refuse)


def test_texts_are_changed_everywhere_but_behind_marks():
    value = {"a": ["x", {"$tuple": ["x"]}], "t": {"$tensor": "x"}, "b": {"$bytes": "x"}}
    changed = with_texts(
        value, lambda _, text: text.upper() if len(text) == 1 and text == "x" else text
    )
    assert changed == {"a": ["X", {"$tuple": ["X"]}], "t": {"$tensor": "x"}, "b": {"$bytes": "x"}}


RIGHT = {"target": "embed", "arguments": {"args": [1], "kwargs": {}}, "calls": 3}


def test_a_request_can_be_read_again():
    request = RecordedRequest.from_json(RIGHT)
    assert request.to_json() == RIGHT
    assert RecordedRequest.from_json({**RIGHT, "model_id": "de", "tensors": "AA=="}).calls == 3


def test_a_name_shows_no_values():
    request = RecordedRequest(target="GET /ask?text=secret", arguments={})
    assert request.name == "recorded GET /ask?…"


WRONG: dict[str, Any] = {
    "no mapping": [1],
    "unknown key": {**RIGHT, "more": 1},
    "no target": {"arguments": {}},
    "code": {**RIGHT, "target": "os.system('x')"},
    "arguments of the other kind": {**RIGHT, "arguments": {"json": 1}},
    "negative": {**RIGHT, "calls": -1},
    "large": {**RIGHT, "arguments": {"args": ["x" * MOST_BYTES], "kwargs": {}}},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_damaged_request_is_refused_with_one_sentence(name: str):
    with pytest.raises(ConfigError) as caught:
        RecordedRequest.from_json(WRONG[name])
    assert "\n" not in caught.value.message
