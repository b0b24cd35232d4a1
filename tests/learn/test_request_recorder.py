# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Requests with their values: kept once for each set of code, scrubbed, and never in the way."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import serve_warm
from compiled import fresh
from levels import forget_callables
from serve_warm.errors import ConfigError
from serve_warm.learn.recorded_requests import MOST_BYTES, RecordedRequest
from serve_warm.learn.recorder import Recorder
from serve_warm.learn.replayed_requests import as_input
from serve_warm.learn.request_recorder import (
    MOST_REFUSED,
    MOST_REQUESTS,
    RequestRecorder,
    find_scrub,
)
from serve_warm.precompile.dispatch.session import SESSION


@pytest.fixture(autouse=True)
def recorder() -> Iterator[Recorder]:
    forget_callables()
    recorder = SESSION.recorder = Recorder()
    recorder.begin()
    yield recorder
    SESSION.recorder = None


class Owner:
    """An object as Serve has it, with a method of each kind."""

    def __init__(self) -> None:
        self.model = serve_warm.compile(fresh(lambda x: x + 1), backend="eager", dynamic=False)

    def run(self, size: int) -> int:
        return int(self.model(torch.ones(size)).sum())

    def plain(self, size: int, note: Any = None) -> int:
        return self.run(size)

    async def later(self, size: int, note: Any = None) -> int:
        return self.run(size)

    def parts(self, size: int) -> Iterator[int]:
        yield self.run(size)
        yield self.run(size)

    async def parts_later(self, size: int) -> Any:
        yield self.run(size)

    async def outer(self, size: int) -> int:
        return await self.later(size)

    def nothing(self) -> str:
        return "no model"

    def fails(self, size: int) -> None:
        self.run(size)
        raise ValueError("a wrong request")


NAMES = ["plain", "later", "parts", "parts_later", "outer", "nothing", "fails"]


def watched(scrub: Any = None) -> tuple[Any, RequestRecorder]:
    owner, requests = Owner(), RequestRecorder(scrub)
    requests.watch(owner, NAMES, model_id=str)
    return owner, requests


def targets(requests: RequestRecorder) -> dict[str, int]:
    return {each["target"]: each["calls"] for each in requests.requests()}


async def collected(generator: Any) -> list[int]:
    return [each async for each in generator]


def test_handlers_of_each_kind_answer_as_before_and_are_recorded():
    owner, requests = watched()
    assert owner.plain(3) == 6
    assert asyncio.run(owner.later(4)) == 8
    assert list(owner.parts(5)) == [10, 10]
    assert asyncio.run(collected(owner.parts_later(6))) == [12]
    assert owner.nothing() == "no model"
    assert targets(requests) == {"plain": 1, "later": 1, "parts": 1, "parts_later": 1}


def test_the_kinds_of_handlers_and_their_signatures_stay():
    """Serve calls each kind in another way, and passes what the signature has."""
    owner, _ = watched()
    for name in NAMES:
        method, made = getattr(Owner, name), getattr(owner, name)
        for is_kind in (
            inspect.iscoroutinefunction,
            inspect.isasyncgenfunction,
            inspect.isgeneratorfunction,
        ):
            assert is_kind(made) == is_kind(method)
        assert [*inspect.signature(made).parameters] == [*inspect.signature(method).parameters][1:]
        assert made.__name__ == name


def test_one_request_is_kept_for_each_set_of_code():
    owner, requests = watched()
    for size in (3, 4, 3, 3):
        owner.plain(size)
    found = [(each["arguments"]["args"], each["calls"]) for each in requests.requests()]
    assert found == [([3], 3), ([4], 1)]


def test_a_method_that_another_calls_is_no_request():
    owner, requests = watched()
    asyncio.run(owner.outer(3))
    assert targets(requests) == {"outer": 1}


def test_a_request_that_fails_is_not_recorded_and_raises_the_same():
    owner, requests = watched()
    with pytest.raises(ValueError, match="a wrong request"):
        owner.fails(3)
    assert targets(requests) == {}
    owner.plain(4)
    assert targets(requests) == {"plain": 1}


def test_requests_beside_one_another_are_told_apart():
    owner, requests = watched()

    async def both() -> None:
        await asyncio.gather(*(owner.later(size) for size in (3, 4, 5)))

    asyncio.run(both())
    threads = [threading.Thread(target=owner.plain, args=(size,)) for size in (6, 7)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(each["arguments"]["args"][0] for each in requests.requests()) == [3, 4, 5, 6, 7]


def test_tensors_arrays_and_bytes_are_the_same_in_a_replay():
    owner, requests = watched()
    note = {
        "tensor": torch.arange(6).reshape(2, 3).T,
        "array": np.ones((2, 2), dtype=np.float32),
        "pair": (1, b"\x00\xff"),
    }
    owner.plain(3, note)
    (found,) = requests.requests()
    item = as_input(RecordedRequest.from_json(found))
    size, again = item.args
    assert (size, again["pair"]) == (3, (1, b"\x00\xff"))
    assert torch.equal(again["tensor"], note["tensor"])
    assert isinstance(again["array"], np.ndarray)
    assert np.array_equal(again["array"], note["array"])
    assert item.fixed is True


@pytest.mark.parametrize(
    ("note", "why"),
    [
        (object(), "an argument is a builtins.object"),
        (np.array(["text"]), "an array has the dtype <U4"),
        (float("nan"), "a number is not finite"),
        ("x" * MOST_BYTES, "a request is larger than 64 KiB"),
        (torch.ones(MOST_BYTES), "a request's tensors are larger than 64 KiB"),
    ],
    ids=["object", "array of texts", "nan", "long text", "large tensor"],
)
def test_what_cannot_be_recorded_is_counted_and_breaks_nothing(note: Any, why: str):
    owner, requests = watched()
    assert owner.plain(3, note) == 6
    assert requests.requests() == []
    assert requests.not_recorded() == {why: 1}


def test_the_number_of_requests_is_bounded():
    owner, requests = watched()
    for size in range(1, MOST_REQUESTS + 20):
        owner.plain(size)
    assert len(requests.requests()) == MOST_REQUESTS


def test_a_storm_of_large_requests_is_bounded():
    owner, requests = watched()
    for size in range(1, MOST_REQUESTS):
        owner.plain(size, "x" * (MOST_BYTES - 2000))
    kept = len(requests.requests())
    assert kept == (1 << 20) // MOST_BYTES
    left = MOST_REQUESTS - 1 - kept
    assert requests.not_recorded() == {"many requests were recorded already": left}


def test_texts_that_look_like_secrets_keep_only_their_length():
    owner, requests = watched()
    secret = "sk-" + "a1B2" * 10
    note = {"question": "how long is a year?", "key": secret, "password": "abc", "n": [secret]}
    owner.plain(3, note)
    (found,) = requests.requests()
    assert found["arguments"]["args"][1] == {
        "question": "how long is a year?",
        "key": "x" * len(secret),
        "password": "xxx",
        "n": ["x" * len(secret)],
    }


def test_a_secret_in_a_query_keeps_only_its_length():
    given = scope("/shop/embed", query=b"lang=de&token=abcdefghijkl")
    _, requests = asked(given, b"")
    assert list(targets(requests)) == ["POST /embed?lang=de&token=xxxxxxxxxxxx"]


def test_a_function_of_the_user_decides_what_is_kept():
    def scrub(target: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
        if target == "later":
            return None
        return {**arguments, "args": [arguments["args"][0], "gone"]}

    owner, requests = watched(scrub)
    owner.plain(3, "private")
    asyncio.run(owner.later(4, "private"))
    assert [each["arguments"]["args"] for each in requests.requests()] == [[3, "gone"]]


def test_a_function_of_the_user_that_fails_lets_nothing_out(caplog):
    def scrub(*_: Any) -> Any:
        raise KeyError("name")

    owner, requests = watched(scrub)
    for size in (3, 4):
        assert owner.plain(size, "private") == 2 * size
    assert requests.requests() == []
    (warning,) = [each for each in caplog.messages if "`scrub` failed" in each]
    assert "private" not in warning


@pytest.mark.parametrize("name", ["no.such:thing", "json:nothing", "json", "json:__name__"])
def test_a_function_that_is_not_there_is_named(name: str):
    with pytest.raises(ConfigError, match=f"`scrub: {name}`"):
        find_scrub(name)
    assert find_scrub(None) is None


def test_forgotten_requests_are_recorded_anew():
    owner, requests = watched()
    owner.plain(3)
    requests.forget()
    assert requests.requests() == []
    owner.plain(3)
    assert targets(requests) == {"plain": 1}


# Over HTTP ----------------------------------------------------------------------------------------


def scope(path: str, *, query: bytes = b"", kind: str = "http", **headers: str) -> dict[str, Any]:
    return {
        "type": kind,
        "method": "POST",
        "path": path,
        "root_path": "/shop",
        "query_string": query,
        "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
    }


class App(Owner):
    """An ASGI app, as `@serve.ingress` makes it."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive() if scope["type"] == "http" else {"body": b""}
        self.seen = message["body"]
        self.run(3)


def asked(given: dict[str, Any], body: bytes) -> tuple[App, RequestRecorder]:
    owner, requests = App(), RequestRecorder()
    requests.watch(owner, ["__call__"], model_id=lambda: "de")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    asyncio.run(owner.__dict__["__call__"](given, receive, None))
    return owner, requests


def test_a_request_to_an_app_keeps_its_route_query_and_json():
    given = scope("/shop/embed", query=b"lang=de", content_type="application/json", cookie="id=7")
    owner, requests = asked(given, b'{"text": "hello"}')
    assert owner.seen == b'{"text": "hello"}'
    (found,) = requests.requests()
    assert (found["target"], found["model_id"]) == ("POST /embed?lang=de", "de")
    assert found["arguments"] == {"json": {"text": "hello"}}
    assert "id=7" not in str(found)
    item = as_input(RecordedRequest.from_json(found))
    assert (item.http, item.json) == (("POST", "/embed?lang=de"), {"text": "hello"})


def test_a_body_that_is_no_json_is_kept_with_its_type():
    _, requests = asked(scope("/shop/", content_type="image/png"), b"\x89PNG")
    (found,) = requests.requests()
    item = as_input(RecordedRequest.from_json(found))
    assert (item.body, item.headers) == (b"\x89PNG", {"content-type": "image/png"})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"x" * (MOST_BYTES + 1), "the body of a request is larger than 64 KiB"),
        (b"{", "a request cannot be described: JSONDecodeError"),
    ],
    ids=["large", "no JSON"],
)
def test_a_body_that_cannot_be_recorded_reaches_the_app(body: bytes, why: str):
    owner, requests = asked(scope("/shop/embed", content_type="application/json"), body)
    assert owner.seen == body
    assert requests.requests() == []
    assert requests.not_recorded() == {why: 1}


def test_what_is_no_http_request_is_passed_on():
    _, requests = asked(scope("/shop/ws", kind="websocket"), b"")
    assert requests.requests() == []


def test_a_request_with_damaged_tensors_is_refused_with_a_sentence():
    request = RecordedRequest(
        target="plain", arguments={"args": [{"$tensor": "t0"}], "kwargs": {}}, tensors="AAAA"
    )
    with pytest.raises(ConfigError, match="recorded request to recorded plain cannot be read"):
        as_input(request)


def test_a_request_that_cannot_be_recorded_is_described_once():
    """A storm of them costs no more, and memory stays bounded whatever comes."""
    owner, requests = watched()
    described: list[int] = []

    class Counted:
        def __getattribute__(self, name: str) -> Any:
            described.append(1)
            return super().__getattribute__(name)

    note = Counted()
    for _ in range(5):
        owner.plain(3, note)
    looked = len(described)
    owner.plain(3, note)
    assert len(described) == looked
    assert list(requests.not_recorded().values()) == [6]


def test_ten_thousand_sets_of_code_are_not_remembered():
    _, requests = watched()
    for kind in range(10_000):
        requests.note("ask", {kind}, lambda: RecordedRequest(target="ask", arguments={}))
        requests.note("fail", {kind}, lambda: as_input(None))  # type: ignore[arg-type, return-value]
    assert len(requests.requests()) == MOST_REQUESTS
    assert len(vars(requests)["_counts"]) == MOST_REQUESTS
    assert len(vars(requests)["_refused"]) <= MOST_REFUSED
