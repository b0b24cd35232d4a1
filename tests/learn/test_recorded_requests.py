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


@pytest.mark.parametrize(
    "kind", [list, tuple, lambda items: dict.fromkeys(map(str, items), items[0])]
)
def test_a_long_container_is_refused_before_it_is_read(kind: Any):
    """A request waits for this."""
    seen: list[object] = []
    given = kind([object() for _ in range(200_000)])
    with pytest.raises(NotRecordable, match="larger than 64 KiB"):
        plain([1, given], seen.append)
    assert seen == []


def test_describing_stops_at_the_largest_size():
    """Also if no container is long, as with the same list many times."""
    seen: list[object] = []
    given: Any = object()
    for _ in range(10):
        given = [given] * 100
    with pytest.raises(NotRecordable, match="larger than 64 KiB"):
        plain(given, seen.append)
    assert len(seen) <= MOST_BYTES


@pytest.mark.parametrize("value", [10**5000, -(10**5000), 1 << 3000], ids=["+", "-", "smaller"])
def test_a_huge_number_is_refused(value: int):
    """Python writes no number of more than 4300 digits."""
    with pytest.raises(NotRecordable, match="a number has more than 2048 bits"):
        plain(value, refuse)


RIGHT = {"target": "embed", "arguments": {"args": [1], "kwargs": {}}, "calls": 3}


def test_a_request_can_be_read_again():
    request = RecordedRequest.from_json(RIGHT)
    assert request.to_json() == RIGHT
    assert RecordedRequest.from_json({**RIGHT, "model_id": "de", "tensors": "AA=="}).calls == 3


def test_a_name_shows_no_values():
    """Reports and logs have it. Only a plan has the path."""
    request = RecordedRequest(target="GET /users/alice@example.com/mail?q=a", arguments={})
    assert request.name == "recorded GET /…"
    assert RecordedRequest(target="ask", arguments={}).name == "recorded ask"


WRONG: dict[str, Any] = {
    "no mapping": [1],
    "unknown key": {**RIGHT, "more": 1},
    "no target": {"arguments": {}},
    "code": {**RIGHT, "target": "os.system('x')"},
    "arguments of the other kind": {**RIGHT, "arguments": {"json": 1}},
    "no mapping of arguments": {**RIGHT, "arguments": {"args": [1]}},
    "arguments that are none": {**RIGHT, "arguments": {"args": [1], "kwargs": None}},
    "a body that is no text": {"target": "POST /a/alice", "arguments": {"body": 1}},
    "a key that is no text": {"target": "POST /a/alice", "arguments": {"json": {1: 2, "b": 3}}},
    "a large HTTP request": {"target": "POST /a/alice", "arguments": {"json": "x" * MOST_BYTES}},
    "too many": {**RIGHT, "calls": 10**4300},
    "negative": {**RIGHT, "calls": -1},
    "large": {**RIGHT, "arguments": {"args": ["x" * MOST_BYTES], "kwargs": {}}},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_damaged_request_is_refused_with_one_sentence(name: str):
    with pytest.raises(ConfigError) as caught:
        RecordedRequest.from_json(WRONG[name])
    assert "\n" not in caught.value.message
    assert "alice" not in caught.value.message
