# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Requests with their values: kept once for each set of code, scrubbed, and never in the way."""

from __future__ import annotations

import asyncio
import copy
import inspect
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from ray import serve
from starlette.requests import Request

import serve_warm
from compiled import fresh
from levels import forget_callables
from serve_warm.errors import ConfigError
from serve_warm.learn.recorded_requests import MOST_BYTES, RecordedRequest
from serve_warm.learn.recorder import Recorder
from serve_warm.learn.replayed_requests import as_input
from serve_warm.learn.request_recorder import (
    EACH,
    MOST_REFUSED,
    MOST_REQUESTS,
    ONE_IN,
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
    kind: Any = type("Owner", (Owner,), {})
    requests = RequestRecorder(scrub)
    requests.watch(kind, NAMES, model_id=str)
    return kind(), requests


def kept(target: str, arguments: Any) -> Any:
    """Keep all, as a person may decide."""
    return arguments


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
    owner, requests = watched(kept)
    note = {
        "tensor": torch.arange(6).reshape(2, 3),
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
def test_what_cannot_be_recorded_is_counted_and_breaks_nothing(note: Any, why: str, caplog):
    owner, requests = watched()
    assert owner.plain(3, note) == 6
    assert requests.requests() == []
    assert owner.plain(3, note) == 6
    assert requests.not_recorded() == {why: 2}
    assert [each for each in caplog.messages if "not recorded" in each] == [
        f"requests to plain are not recorded: {why}"
    ]


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
    (warning,) = [each for each in caplog.messages if "scrubbing it failed" in each]
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

    status = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive() if scope["type"] == "http" else {"body": b""}
        self.seen = message["body"]
        self.run(3)
        await send({"type": "http.response.start", "status": self.status})


def asked(
    given: dict[str, Any], body: bytes, scrub: Any = None, status: int = 200
) -> tuple[App, RequestRecorder]:
    kind: Any = type("App", (App,), {})
    requests = RequestRecorder(scrub)
    requests.watch(kind, ["__call__"], model_id=lambda: "de")
    owner = kind()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(_: Any) -> None: ...

    owner.status = status
    asyncio.run(owner(given, receive, send))
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
    _, requests = asked(scope("/shop/", content_type="image/png"), b"\x89PNG", kept)
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


def test_sets_of_code_are_not_remembered_without_end():
    _, requests = watched()
    for kind in range(10_000):
        requests.note("ask", {kind}, lambda: RecordedRequest(target="ask", arguments={}))
    assert len(vars(requests)["_counts"]) == MOST_REQUESTS
    _, requests = watched()
    for kind in range(10_000):
        requests.note("fail", {kind}, lambda: "a reason")
    assert len(vars(requests)["_refused"]) == MOST_REFUSED


def test_a_known_request_is_not_described_again():
    """Its body would be parsed in each request."""
    _, requests = watched()
    described: list[int] = []

    def describe() -> RecordedRequest:
        described.append(1)
        return RecordedRequest(target="ask", arguments={})

    for _ in range(5):
        requests.note("ask", {1}, describe)
    assert len(described) == 1
    assert targets(requests) == {"ask": 5}


def test_arguments_are_recorded_as_they_came():
    """A handler may change them."""

    class Changing(Owner):
        def ask(self, payload: dict[str, int], given: torch.Tensor) -> int:
            given.add_(1)
            return self.run(payload.pop("size"))

    requests = RequestRecorder()
    requests.watch(Changing, ["ask"], model_id=str)
    Changing().ask({"size": 3}, torch.ones(2))
    (found,) = requests.requests()
    item = as_input(RecordedRequest.from_json(found))
    assert item.args[0] == {"size": 3}
    assert torch.equal(item.args[1], torch.ones(2))


def test_after_many_known_requests_few_are_described():
    owner, _ = watched()
    described: list[int] = []

    class Seen(dict[str, int]):
        pass

    with mock.patch(
        "serve_warm.learn.request_recorder._method_request",
        side_effect=lambda *_: described.append(1),
    ):
        for _ in range(EACH + 10 * ONE_IN):
            owner.plain(3, Seen())
    assert len(described) <= EACH + 11


def test_ray_finds_the_object_of_a_batched_method():
    """It looks at what the attribute wraps; `tests/integration/test_ingress.py` sends requests."""

    class Batching(Owner):
        @serve.batch(max_batch_size=4, batch_wait_timeout_s=0.01)
        async def many(self, sizes: list[int]) -> list[int]:
            return [self.run(size) for size in sizes]

    before: Any = Batching.many
    RequestRecorder().watch(Batching, ["many"], model_id=str)
    after: Any = Batching.many
    assert after is not before
    assert after.__wrapped__ is before.__wrapped__


def test_a_copy_of_the_object_answers_for_itself():
    owner, _ = watched()
    other = copy.copy(owner)
    other.model = serve_warm.compile(fresh(lambda x: x + 2), backend="eager", dynamic=False)
    assert (owner.plain(3), other.plain(3)) == (6, 9)
    assert owner.plain.__self__ is owner


@pytest.mark.parametrize("method", ["async", "sync"])
def test_a_request_object_is_read_as_before(method: str):
    """Without FastAPI, Serve passes the request. A handler may read it or not."""

    class Reads(Owner):
        async def later(self, request: Request) -> Any:  # type: ignore[override]
            self.run(3)
            return await request.json()

        def plain(self, request: Request) -> str:  # type: ignore[override]
            self.run(3)
            return str(request.query_params["q"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"n": 1}', "more_body": False}

    requests = RequestRecorder()
    requests.watch(Reads, ["later", "plain"], model_id=str)
    given = scope("/shop/ask", query=b"q=a", content_type="application/json")
    if method == "async":
        request = Request({**given, "method": "POST"}, receive)
        assert asyncio.run(Reads().later(request)) == {"n": 1}
        (found,) = requests.requests()
        assert found["arguments"] == {"json": {"n": 1}}
    else:
        assert Reads().plain(Request({**given, "method": "GET"}, receive)) == "a"
        (found,) = requests.requests()
        assert (found["target"], found["arguments"]) == ("GET /ask?q=a", {})


def test_a_request_that_was_answered_with_an_error_is_not_recorded():
    _, requests = asked(scope("/shop/a"), b"", status=422)
    assert requests.requests() == []


@pytest.mark.parametrize(
    ("given", "body"),
    [
        (scope("/shop/a", content_type="application/x-www-form-urlencoded"), b"password=abc"),
        (scope("/shop/a", content_type="text/plain"), b"hello"),
        (scope("/shop/a"), b'{"a": 1}'),
    ],
    ids=["form", "text", "no type"],
)
def test_what_cannot_be_searched_for_secrets_needs_a_function(given: dict[str, Any], body: bytes):
    _, requests = asked(given, body)
    assert requests.requests() == []
    _, requests = asked(given, body, kept)
    assert len(requests.requests()) == 1


SECRET = "sk-" + "a1B2" * 10


@pytest.mark.parametrize(
    "query",
    [f"token={SECRET}", SECRET, f"%74oken={SECRET}", "token=" + SECRET.replace("s", "%73", 1)],
    ids=["value", "alone", "encoded key", "encoded value"],
)
def test_secrets_in_an_address_keep_only_their_length(query: str):
    _, requests = asked(scope(f"/shop/{SECRET}", query=query.encode()), b"")
    (found,) = requests.requests()
    assert SECRET not in urllib.parse.unquote(found["target"])


def test_keys_and_numbers_that_are_secrets_are_hidden():
    owner, requests = watched()
    owner.plain(3, {SECRET: 1, "password": 123456})
    (found,) = requests.requests()
    assert found["arguments"]["args"][1] == {"x" * len(SECRET): 0, "password": 0}


@pytest.mark.parametrize(
    "body",
    [b'{"a": {"$tensor": "t0"}}', b"[" * 880 + b"]" * 880, b"NaN", b"null"],
    ids=["mark", "deep", "NaN", "null"],
)
def test_a_body_that_json_can_have_but_a_plan_cannot_is_refused(body: bytes):
    owner, requests = asked(scope("/shop/a", content_type="application/json"), body)
    assert owner.seen == body
    assert requests.requests() == []
    assert len(requests.not_recorded()) == 1


def test_an_address_that_is_no_text_breaks_nothing():
    owner, requests = asked(scope("/shop/a", query=b"q=\xff"), b"")
    assert owner.seen == b""
    assert len(requests.requests()) <= 1


@pytest.mark.parametrize("wrong", ["text", [1], True, {"other": 1}, {"args": ["x" * MOST_BYTES]}])
def test_a_function_of_the_user_that_returns_nonsense_keeps_nothing(wrong: Any):
    owner, requests = watched(lambda *_: wrong)
    owner.plain(3)
    assert requests.requests() == []
