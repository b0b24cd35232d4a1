# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Requests with their values: kept once for each set of code, scrubbed, and never in the way."""

from __future__ import annotations

import asyncio
import copy
import inspect
import random
import re
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from ray import serve
from ray.serve import batching
from ray.serve import context as serve_context
from ray.serve._private.config import DeploymentConfig
from starlette.requests import Request
from starlette.responses import StreamingResponse

import serve_warm
from compiled import fresh
from levels import forget_callables
from serve_warm.errors import ConfigError
from serve_warm.learn import call_files
from serve_warm.learn.described_requests import (
    DROPPED,
    HAS_CREDENTIALS,
    NEEDS_SCRUB,
    Description,
)
from serve_warm.learn.plan import make_plan
from serve_warm.learn.recorded_requests import MOST_BYTES, OF_REQUESTS, TOO_LARGE, RecordedRequest
from serve_warm.learn.recorder import Recorder
from serve_warm.learn.replayed_requests import as_input
from serve_warm.learn.request_recorder import (
    EACH,
    FULL,
    HAS_FAILED,
    MOST_REQUESTS,
    NO_ROOM,
    ONE_IN,
    STRAY,
    RequestRecorder,
    find_scrub,
)
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.private_apis import ray_serve
from serve_warm.replica.serve.calls import Exchange


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


def reasons(requests: RequestRecorder) -> dict[str, int]:
    """Return why requests were not recorded, after they were scrubbed."""
    requests.requests()
    found = requests.not_recorded()
    assert all(why.startswith(OF_REQUESTS) for why in found)
    return {why.removeprefix(OF_REQUESTS): count for why, count in found.items()}


def targets(requests: RequestRecorder) -> dict[str, int]:
    return {each["target"]: each["calls"] for each in requests.requests()}


async def collected(generator: Any) -> list[int]:
    return [each async for each in generator]


def recorded_in_a_replica(*calls: tuple[str, int]) -> list[RecordedRequest]:
    """Return what a process of its own would record of these handlers and sizes."""
    forget_callables()
    recorder = SESSION.recorder = Recorder()
    recorder.begin()
    kind: Any = type("Owner", (Owner,), {})
    requests = RequestRecorder(kept, name_kinds=recorder.name_kinds)
    requests.watch(kind, NAMES, model_id=str)
    owner = kind()
    for number, (handler, size) in enumerate(calls):
        getattr(owner, handler)(size, note=f"of {id(owner)}, {number}")
    return [RecordedRequest.from_json(each) for each in requests.requests()]


def test_requests_of_several_replicas_are_told_apart_by_the_code_that_they_reached():
    """Their content differs, so a plan would have one for each replica and set of code."""
    replicas = [
        recorded_in_a_replica(("plain", 3), ("plain", 4), ("plain", 3)),
        recorded_in_a_replica(("plain", 4), ("plain", 5)),
    ]
    plan = make_plan([], {}, requests=[each for replica in replicas for each in replica])

    assert [len(each) for each in replicas] == [2, 2]
    found = [(each.arguments["args"], each.calls) for each in plan.requests]
    assert sorted(found) == [([3], 2), ([4], 2), ([5], 1)]
    assert all(re.fullmatch(r"[0-9a-f]{32}", each.reached) for each in plan.requests)
    assert make_plan([], {}, requests=[*plan.requests, *plan.requests]).requests[0].calls == 4


def test_a_kind_that_is_forgotten_names_no_request():
    recorder = Recorder()
    assert recorder.name_kinds([]) == []
    assert recorder.name_kinds([7]) is None


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
        (np.array(["text"]), "the dtype of an array is of the kind U"),
        (np.zeros(2, dtype=[("alice@example.com", "<f4")]), "the dtype of an array is structured"),
        (np.asfortranarray(np.ones((2, 3))), "an array is not contiguous"),
        (type("a password", (), {})(), "an argument is a class without a plain name"),
        (type("a password", (str,), {})(), "a value is a class without a plain name"),
        (float("nan"), "a number is not finite"),
        ("x" * MOST_BYTES, "a request is larger than 64 KiB"),
        (torch.ones(MOST_BYTES), "a request is larger than 64 KiB"),
    ],
    ids=[
        *("object", "array of texts", "named fields", "Fortran's order", "named at run time"),
        *("text of another class", "nan", "long text", "large tensor"),
    ],
)
def test_what_cannot_be_recorded_is_counted_and_breaks_nothing(note: Any, why: str, caplog):
    owner, requests = watched()
    assert owner.plain(3, note) == 6
    assert requests.requests() == []
    assert owner.plain(3, note) == 6
    assert reasons(requests) == {why: 2}
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
    assert reasons(requests) == {NO_ROOM: left}


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
    given = scope("/shop/embed", query=b"lang=de", content_type="application/json", x_agent="id=7")
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
    assert reasons(requests) == {why: 1}


def test_what_is_no_http_request_is_passed_on():
    _, requests = asked(scope("/shop/ws", kind="websocket"), b"")
    assert requests.requests() == []


def test_a_request_with_damaged_tensors_is_refused_with_a_sentence():
    request = RecordedRequest(
        target="plain", arguments={"args": [{"$tensor": "t0"}], "kwargs": {}}, tensors="AAAA"
    )
    with pytest.raises(ConfigError, match="the request recorded plain cannot be read"):
        as_input(request)


def test_sets_of_code_are_not_remembered_without_end():
    _, requests = watched()
    for kind in range(10_000):
        requests.note(
            "ask", {kind}, lambda: Description(target="ask", arguments={"args": [], "kwargs": {}})
        )
    assert len(vars(requests)["_kept"]) == MOST_REQUESTS
    assert reasons(requests) == {FULL: 10_000 - MOST_REQUESTS}


def test_a_known_request_is_not_described_again():
    """Its body would be parsed in each request."""
    _, requests = watched()
    described: list[int] = []

    def describe() -> Description:
        described.append(1)
        return Description(target="ask", arguments={"args": [], "kwargs": {}})

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
        "serve_warm.learn.request_recorder.describe_call",
        side_effect=lambda *_, **__: described.append(1),
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


@pytest.mark.parametrize(
    "wrong",
    [
        *("text", [1], True, {"other": 1}, {"args": ["x" * MOST_BYTES], "kwargs": {}}),
        *({}, {"args": [1]}, {"args": [1], "kwargs": None}, {"args": 1, "kwargs": {}}),
        {"args": [1], "kwargs": {1: 2}},
    ],
)
def test_a_function_of_the_user_that_returns_nonsense_keeps_nothing(wrong: Any):
    owner, requests = watched(lambda *_: wrong)
    owner.plain(3)
    assert requests.requests() == []


@pytest.mark.parametrize("wrong", [{"args": []}, {"body": 1}, {"body": "?"}, {"content_type": 1}])
def test_a_function_of_the_user_that_returns_no_body_keeps_nothing(wrong: Any):
    _, requests = asked(scope("/shop/a"), b"", lambda *_: wrong)
    assert requests.requests() == []
    assert len(reasons(requests)) == 1


def test_a_function_of_the_user_that_adds_to_requests_has_no_more_room():
    """What is written has a limit, too."""
    owner, requests = watched(lambda *_: {"args": ["x" * 60_000], "kwargs": {}})
    for size in range(1, 21):
        owner.plain(size)
    assert len(requests.requests()) == (1 << 20) // 60_100
    assert reasons(requests) == {NO_ROOM: 20 - (1 << 20) // 60_100}


def test_the_id_of_a_model_is_searched_for_secrets():
    kind: Any = type("Owner", (Owner,), {})
    requests = RequestRecorder()
    requests.watch(kind, NAMES, model_id=lambda: SECRET)
    kind().plain(3)
    assert requests.requests() == []
    assert reasons(requests) == {"the id of a model looks like a secret": 1}


def test_a_type_of_a_body_is_searched_for_secrets():
    given = scope("/shop/a", content_type=f"text/plain; token={SECRET}")
    _, requests = asked(given, b"hello", kept)
    assert requests.requests() == []
    assert len(reasons(requests)) == 1


def test_one_tensor_that_is_passed_twice_is_one_in_a_replay():
    owner, requests = watched()
    tensor, array = torch.arange(3), np.ones(2)
    owner.plain(3, [tensor, array, {"again": tensor, "other": array}])
    (found,) = requests.requests()
    again = as_input(RecordedRequest.from_json(found)).args[1]
    assert again[0] is again[2]["again"]
    assert np.shares_memory(again[1], again[2]["other"])


def test_requests_that_fail_are_counted():
    owner, requests = watched()
    for _ in range(3):
        with pytest.raises(ValueError, match="a wrong request"):
            owner.fails(3)
    assert reasons(requests) == {HAS_FAILED: 3}
    _, requests = asked(scope("/shop/a"), b"", status=422)
    assert reasons(requests) == {HAS_FAILED: 1}


# What only `scrub` can search ---------------------------------------------------------------------


def test_a_function_of_the_user_gets_values_as_the_handler_does():
    seen: list[Any] = []

    def scrub(target: str, arguments: dict[str, Any]) -> dict[str, Any]:
        seen.append(arguments)
        return {"args": [3], "kwargs": {"note": np.zeros(2, dtype=np.uint8)}}

    owner, requests = watched(scrub)
    note = {"t": torch.arange(3), "a": np.ones(2), "b": b"key", "pair": (1, 2)}
    owner.plain(3, note=note)
    (found,) = requests.requests()
    given = seen[0]["kwargs"]["note"]
    assert (seen[0]["args"], given["b"], given["pair"]) == ([3], b"key", (1, 2))
    assert torch.equal(given["t"], note["t"])
    assert np.array_equal(given["a"], note["a"])
    item = as_input(RecordedRequest.from_json(found))
    assert item.args == (3,)
    assert item.kwargs["note"].tolist() == [0, 0]


def test_nothing_stays_of_a_tensor_that_the_function_leaves_out():
    owner, requests = watched(lambda *_: {"args": [], "kwargs": {}})
    owner.plain(3, torch.arange(1000))
    (found,) = requests.requests()
    assert "tensors" not in found
    assert len(str(found)) < 200


TEXT = b"api_key=s3cr3t"


@pytest.mark.parametrize(
    "note",
    [
        np.frombuffer(TEXT, "uint8"),
        np.frombuffer(TEXT, "int8"),
        torch.tensor([*TEXT], dtype=torch.uint8),
        torch.CharTensor([*TEXT]),
        [{"a": (TEXT,)}],
        {"a": [torch.tensor([*TEXT], dtype=torch.uint8)]},
    ],
    ids=["uint8 array", "int8 array", "uint8", "int8", "bytes", "deep"],
)
def test_numbers_of_one_byte_are_bytes(note: Any):
    """They may be text, in which nobody can look for secrets."""
    owner, requests = watched()
    owner.plain(3, note)
    assert requests.requests() == []
    assert reasons(requests) == {NEEDS_SCRUB: 1}
    owner, requests = watched(kept)
    owner.plain(3, note)
    assert len(requests.requests()) == 1


@pytest.mark.parametrize("note", [torch.tensor([True]), np.array([True]), np.array([1.5, 2.5])])
def test_other_tensors_need_no_function(note: Any):
    owner, requests = watched()
    owner.plain(3, note)
    assert len(requests.requests()) == 1


def test_requests_that_need_a_function_take_no_slots():
    owner, requests = watched()
    for size in range(1, MOST_REQUESTS + 1):
        owner.plain(size, b"bytes")
    owner.plain(MOST_REQUESTS + 1)
    assert targets(requests) == {"plain": 1}
    assert reasons(requests) == {NEEDS_SCRUB: MOST_REQUESTS}


def test_requests_that_the_function_drops_take_no_slots():
    owner, requests = watched(lambda _, given: None if "private" in given["args"] else given)
    for size in range(1, MOST_REQUESTS + 1):
        owner.plain(size, "private")
    assert reasons(requests) == {DROPPED: MOST_REQUESTS}
    owner.plain(1, "public")
    assert targets(requests) == {"plain": 1}


def test_each_kept_request_is_scrubbed_once():
    """A replica asks every 20 seconds, and a function of the user may be slow or random."""
    calls: list[int] = []

    def scrub(_: str, arguments: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        return {**arguments, "kwargs": {"note": len(calls)}}

    owner, requests = watched(scrub)
    for size in range(1, 11):
        owner.plain(size)
    first = requests.requests()
    threads = [threading.Thread(target=requests.requests) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert requests.requests() == first
    assert len(calls) == 10
    owner.plain(11)
    assert len(requests.requests()) == 11
    assert len(calls) == 11


def test_an_argument_of_a_parameter_that_names_a_secret_is_hidden():
    class Login(Owner):
        def ask(self, size: int, password: Any, *cards: str) -> int:
            return self.run(size)

    requests = RequestRecorder()
    requests.watch(Login, ["ask"], model_id=str)
    face = torch.ones(2)
    Login().ask(3, ("hunter2", face), "4242424242424242", "4343")
    (found,) = requests.requests()
    item = as_input(RecordedRequest.from_json(found))
    (size, (text, tensor), *cards) = item.args
    assert (size, text, cards) == (3, "xxxxxxx", ["x" * 16, "xxxx"])
    assert torch.equal(tensor, torch.zeros(2))


# One request for each set of code -----------------------------------------------------------------


def asked_paths(*paths: str, route: Any = None, **headers: str) -> RequestRecorder:
    """Return what is recorded of POST requests with these paths to one app."""
    kind: Any = type("App", (App,), {})
    requests = RequestRecorder()
    requests.watch(kind, ["__call__"], model_id=str)
    owner = kind()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: Any) -> None: ...

    for path in paths:
        given = scope(path, **headers)
        if route is not None:
            given |= {"route": SimpleNamespace(path=route(path))}
        asyncio.run(owner(given, receive, send))
    return requests


def test_paths_of_one_route_are_one_request():
    """Names of users in paths would take all slots."""
    assert targets(asked_paths("/shop/item/alice", "/shop/item/bob")) == {"POST /item/alice": 2}
    routes = {"/shop/item/alice": "/item/{name}", "/shop/item/bob": "/item/{name}"}
    requests = asked_paths(*routes, "/shop/all", route=lambda path: routes.get(path, "/all"))
    assert targets(requests) == {"POST /item/alice": 2, "POST /all": 1}


def asked_of(app: FastAPI, *scopes: Mapping[str, Any]) -> RequestRecorder:
    """Return what is recorded of these requests, which the application answers."""

    class Fast:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)

    requests = RequestRecorder()
    requests.watch(Fast, ["__call__"], model_id=str)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200

    for each in scopes:
        asyncio.run(Fast()(each, receive, send))
    return requests


def test_routes_of_a_fastapi_app_share_slots_and_hide_secrets():
    """FastAPI adds the route and its parameters to the scope."""
    app, model = FastAPI(), Owner()

    @app.post("/item/{name}")
    def item(name: str) -> int:
        return model.run(3)

    @app.post("/reset/{token}/{name}")
    def reset(token: str, name: str) -> int:
        return model.run(3)

    paths = ("/item/alice", "/item/bob", "/reset/hunter2/bob")
    requests = asked_of(app, *({**scope(path), "root_path": ""} for path in paths))
    assert targets(requests) == {"POST /item/alice": 2, "POST /reset/xxxxxxx/bob": 1}


UUID = "12345678-1234-5678-1234-567812345678"


@pytest.mark.parametrize("is_mounted", [False, True])
@pytest.mark.parametrize(
    ("route", "path", "shown"),
    [
        ("/f/{token:path}", "/f/ab/cd", "/f/xxxxx"),
        ("/p/{pin:int}", "/p/0042", "/p/0000"),
        ("/u/{session:uuid}/a", f"/u/{UUID}/a", f"/u/{re.sub('[1-9]', '0', UUID)}/a"),
        ("/a/{token}/{name}", "/a/é a/é a", "/a/xxx/%C3%A9%20a"),
    ],
    ids=["path", "number", "uuid", "text"],
)
def test_parameters_of_a_path_that_name_a_secret_are_hidden(
    route: str, path: str, shown: str, is_mounted: bool
):
    app, model = FastAPI(), Owner()
    seen = []

    def answer(request: Request) -> int:
        seen.append(request.url.path)
        return model.run(3)

    outer = app
    if is_mounted:
        outer = FastAPI()
        outer.mount("/in", app)
    app.post(route)(answer)

    prefix = "/in" if is_mounted else ""
    roots = ("", "/shop")
    requests = asked_of(
        outer, *({**scope(root + prefix + path), "root_path": root} for root in roots)
    )
    assert len(seen) == 2
    assert targets(requests) == {f"POST {prefix}{shown}": 2}


@pytest.mark.parametrize("header", ["authorization", "cookie", "x_api_key", "proxy_authorization"])
def test_a_request_with_credentials_is_not_recorded(header: str):
    """Its replay would be refused without them."""
    requests = asked_paths("/shop/a", **{header: "Bearer abc"})
    assert reasons(requests) == {HAS_CREDENTIALS: 1}
    assert requests.requests() == []


def test_a_request_of_a_session_of_serve_is_recorded():
    """The header only chooses the replica."""
    assert targets(asked_paths("/shop/a", x_session_id="abc")) == {"POST /a": 1}


@pytest.mark.parametrize(
    "headers",
    [{}, {"content_length": "0"}, {"content_length": "2"}, {"transfer_encoding": "chunked"}],
    ids=["no body", "empty body", "body", "stream"],
)
def test_a_post_without_a_body_is_recorded(headers: dict[str, str]):
    class Unread(Owner):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            self.run(3)

    requests = RequestRecorder()
    requests.watch(Unread, ["__call__"], model_id=str)
    asyncio.run(Unread()(scope("/shop/a", **headers), None, None))
    if {*headers.values()} <= {"0"}:
        assert targets(requests) == {"POST /a": 1}
    else:
        why = "the application has not read the body of a request"
        assert (requests.requests(), reasons(requests)) == ([], {why: 1})


def test_a_smaller_request_follows_one_that_is_too_large():
    owner, requests = watched()
    owner.plain(3, "x" * MOST_BYTES)
    owner.plain(3, "short")
    assert targets(requests) == {"plain": 1}
    assert reasons(requests) == {TOO_LARGE: 1}


def test_a_request_that_would_need_the_last_slot_is_counted():
    owner, requests = watched()
    for size in range(1, MOST_REQUESTS + 3):
        owner.plain(size)
    assert reasons(requests) == {FULL: 2}


def test_after_many_bodies_that_cannot_be_recorded_few_are_read():
    requests = RequestRecorder()
    for kind in range(EACH + 2):
        requests.note("ask", {kind}, lambda: "a reason")
    assert not requests.wants_body()
    wanted = 0
    for kind in range(10 * ONE_IN):
        wanted += requests.wants_body()
        requests.note("ask", {-1 - kind}, lambda: None)
    assert wanted == 10


@pytest.mark.parametrize("body", ["async", "sync"])
def test_a_stream_is_a_part_of_its_request(body: str):
    """Serve iterates over it after the handler has returned."""

    class Streams(Owner):
        async def later(self, request: Request) -> Any:  # type: ignore[override]
            return StreamingResponse(self.chunks() if body == "async" else self.chunks_now())

        async def chunks(self) -> Any:
            yield str(self.run(3))

        def chunks_now(self) -> Iterator[str]:
            yield str(self.run(3))

    requests = RequestRecorder()
    requests.watch(Streams, ["later", "chunks_now"], model_id=str)
    sent: list[bytes] = []

    async def serving() -> None:
        given = {**scope("/shop/a"), "method": "GET"}
        response = await Streams().later(Request(given))
        assert requests.requests() == []
        sent.extend([each async for each in response.body_iterator])

    asyncio.run(serving())
    assert sent == ["6"]
    assert targets(requests) == {"GET /a": 1}
    assert vars(requests)["_open"] == {}


def test_a_generator_that_a_method_returns_is_a_part_of_its_request():
    class Returns(Owner):
        def plain(self, size: int, note: Any = None) -> Any:
            return (self.run(each) for each in (size, size))

        async def later(self, size: int, note: Any = None) -> Any:
            async def made() -> Any:
                yield self.run(size)

            return made()

    requests = RequestRecorder()
    requests.watch(Returns, ["plain", "later"], model_id=str)
    answer = Returns().plain(3)
    assert inspect.isgenerator(answer)
    assert list(answer) == [6, 6]

    async def serving() -> list[int]:
        answer = await Returns().later(4)
        assert inspect.isasyncgen(answer)
        return await collected(answer)

    assert asyncio.run(serving()) == [8]
    assert targets(requests) == {"plain": 1, "later": 1}


def test_a_handler_knows_that_its_client_is_gone():
    """Serve throws an error into the generator, so that the handler can clean up."""
    seen: list[str] = []

    class Cleans(Owner):
        async def parts_later(self, size: int) -> Any:
            try:
                yield self.run(size)
                yield self.run(size)
            except asyncio.CancelledError:
                seen.append("gone")
                raise

    requests = RequestRecorder()
    requests.watch(Cleans, ["parts_later"], model_id=str)

    async def serving() -> None:
        stream = Cleans().parts_later(3)
        await anext(stream)
        with pytest.raises(asyncio.CancelledError):
            await stream.athrow(asyncio.CancelledError())

    asyncio.run(serving())
    assert seen == ["gone"]
    assert requests.requests() == []


# What is no request -------------------------------------------------------------------------------


class Requests:
    """The requests of Serve, each in a context of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        context = SimpleNamespace(_deployment_config=DeploymentConfig())
        monkeypatch.setattr(serve, "get_replica_context", lambda: context)
        for name in ("Histogram", "Gauge", "Counter"):
            monkeypatch.setattr(batching, name, mock.MagicMock())

    async def ask(self, call: Any, *args: Any) -> Any:
        made = serve_context._RequestContext(request_id="r", _internal_request_id="r")

        async def asked() -> Any:
            serve_context._serve_request_context.set(made)
            return await call(*args)

        return await asyncio.create_task(asked())


def watched_in_serve(kind: Any, *names: str) -> RequestRecorder:
    requests = RequestRecorder()
    requests.watch(kind, names, model_id=str, answered=ray_serve.answered_requests)
    assert SESSION.recorder is not None
    SESSION.recorder.others = requests.others
    return requests


@pytest.mark.parametrize("began", ["in a request", "before"])
def test_each_request_of_a_batch_reaches_the_code_of_the_batch(monkeypatch, began: str):
    """The task of the batches has the context in which the first one came, maybe a replay's."""

    class Batching(Owner):
        @serve.batch(max_batch_size=2, batch_wait_timeout_s=0.01)
        async def many(self, sizes: list[int]) -> list[int]:
            return [self.sum(max(sizes)) for _ in sizes]

        def sum(self, size: int) -> int:
            return self.run(size)

        async def ask(self, size: int) -> int:
            return int(await self.many(size))

    serving = Requests(monkeypatch)
    kind: Any = Batching

    async def run() -> RequestRecorder:
        owner = kind()
        if began == "before":
            await owner.ask(9)
        requests = watched_in_serve(kind, "ask", "sum", "many")
        for size in (3, 4, 5, 6):
            assert await serving.ask(owner.ask, size) == 2 * size
        both = await asyncio.gather(serving.ask(owner.ask, 7), serving.ask(owner.ask, 2))
        assert both == [14, 14]
        queue = kind.many._get_max_batch_size.__self__.queue
        queue._handle_batch_task = None  # or its `__del__` makes an event loop
        return requests

    requests = asyncio.run(run())
    found = [(each["arguments"]["args"], each["calls"]) for each in requests.requests()]
    assert found[:4] == [([3], 1), ([4], 1), ([5], 1), ([6], 1)]
    assert [calls for _, calls in found[4:]] == [2]
    assert set(targets(requests)) == {"ask"}
    assert vars(requests)["_open"] == {}


def test_a_helper_after_the_answer_is_no_request(monkeypatch):
    """A response may have a task that Serve runs after it."""

    class After(Owner):
        async def ask(self, size: int) -> Any:
            self.run(size)
            return lambda: self.helper(size + 1)

        def helper(self, size: int) -> int:
            return self.run(size)

    serving = Requests(monkeypatch)
    kind: Any = After
    requests = watched_in_serve(kind, "ask", "helper")

    async def ask_and_run(size: int) -> int:
        return int((await kind.ask(owner, size))())

    owner = kind()
    assert asyncio.run(serving.ask(ask_and_run, 3)) == 8
    assert targets(requests) == {"ask": 1}


def test_a_replay_is_no_request(monkeypatch):
    """An update of a READY replica replays its inputs, in a context without a request."""
    kind: Any = type("Replayed", (App,), {})
    requests = watched_in_serve(kind, "plain", "__call__")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(_: Any) -> None: ...

    assert kind().plain(3) == 6
    asyncio.run(kind()(scope("/shop/a"), receive, send))
    assert (requests.requests(), requests.not_recorded()) == ([], {})
    asyncio.run(Requests(monkeypatch).ask(kind(), scope("/shop/a"), receive, send))
    assert targets(requests) == {"POST /a": 1}


def test_helpers_in_a_thread_or_a_websocket_are_no_requests(monkeypatch):
    class Helping(Owner):
        async def ask(self, size: int) -> int:
            loop = asyncio.get_running_loop()
            return int(await loop.run_in_executor(None, self.helper, size))

        def helper(self, size: int) -> int:
            return self.run(size)

    class Socket(Helping):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            self.helper(3)
            await asyncio.create_task(self.ask(3))

    serving = Requests(monkeypatch)
    for kind, call in ((Helping, "ask"), (Socket, "__call__")):
        names = {"ask", "helper", call}
        requests = watched_in_serve(kind, *names)
        args = (3,) if call == "ask" else (scope("/shop/ws", kind="websocket"), None, None)
        asyncio.run(serving.ask(getattr(kind(), call), *args))
        assert requests.requests() == []
        assert reasons(requests) == ({STRAY: 1} if kind is Helping else {})


def test_calls_in_a_queue_of_the_application_give_a_reason(monkeypatch):
    """A queue may have the context of the first request, which is answered."""

    class Queued(Owner):
        queue: asyncio.Queue[Any] | None = None

        async def ask(self, size: int) -> int:
            if self.queue is None:
                self.queue = asyncio.Queue()
                self.task = asyncio.create_task(self.work(self.queue))
            answer = asyncio.get_running_loop().create_future()
            await self.queue.put((size, answer))
            return int(await answer)

        async def work(self, queue: asyncio.Queue[Any]) -> None:
            while True:
                size, answer = await queue.get()
                answer.set_result(self.run(size))

    kind: Any = Queued
    requests = watched_in_serve(kind, "ask")
    serving, owner = Requests(monkeypatch), kind()

    async def run() -> list[int]:
        return [await serving.ask(owner.ask, size) for size in (3, 4, 5)]

    assert asyncio.run(run()) == [6, 8, 10]
    assert targets(requests) == {"ask": 1}
    assert reasons(requests) == {STRAY: 2}


def test_an_idle_recorder_gives_the_same_again_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(call_files, "PERIOD_S", 3600.0)
    names = {"application": "app", "deployment": "Owner", "code": "c", "days": 7.0}
    files = call_files.CallFiles(tmp_path, **names)
    owner, requests = watched(lambda _, given: {**given, "kwargs": {"note": random.random()}})
    owner.plain(3)

    def recorded() -> dict[str, Any]:
        return {
            "calls": [],
            "models": [],
            "requests": requests.requests(),
            "not_recorded": requests.not_recorded(),
        }

    with mock.patch.object(files, "write", wraps=files.write) as write:
        writer = call_files.CallWriter(files, "r1", recorded, new=threading.Event())
        for _ in range(5):
            writer.write()
        assert write.call_count == 1
        owner.plain(4)
        writer.write()
        assert write.call_count == 2


# Never in the way ---------------------------------------------------------------------------------


class Broken:
    """Fails at whatever is asked of it."""

    def _fail(self, *_: Any) -> Any:
        raise RuntimeError("broken")

    __len__ = __iter__ = __eq__ = __bool__ = __repr__ = __str__ = __reduce__ = _fail  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]
    __class__ = property(_fail)  # type: ignore[assignment]


class BrokenList(list[Any]):
    __len__ = __iter__ = __eq__ = Broken._fail  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class BrokenText(str):
    __slots__ = ()
    __len__ = __iter__ = startswith = Broken._fail  # type: ignore[assignment]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


cyclic: dict[str, Any] = {}
cyclic["again"] = [cyclic]

ODD: dict[str, Any] = {
    "huge number": 10**5000,
    "huge number as key": {10**5000: 1},
    "deep": nested(2000),
    "cyclic": cyclic,
    "broken": Broken(),
    "broken in a list": [Broken()],
    "broken key": {BrokenText("a"): 1},
    "broken list": BrokenList(),
    "broken text": BrokenText("a"),
    "text that is no text": "\ud800",
    "not finite": float("inf"),
    "complex": 1j,
    "object array": np.array([object()]),
    "read-only array": np.frombuffer(b"12345678", dtype="int64"),
    "backwards array": np.arange(5)[::-1],
    "sparse": torch.eye(3).to_sparse(),
    "meta": torch.empty(3, device="meta"),
    "complex tensor": torch.ones(2, dtype=torch.complex64).conj(),
    "half array": np.ones(2, dtype=np.float16),
    "bfloat16": torch.ones(2, dtype=torch.bfloat16),
    "empty": torch.empty(0, 3),
    "number tensor": torch.tensor(3),
    "generator": (each for each in ()),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("scrub", [None, kept], ids=["", "scrub"])
def test_a_request_with_any_argument_is_answered(name: str, scrub: Any):
    owner, requests = watched(scrub)
    assert owner.plain(3, ODD[name]) == 6
    assert asyncio.run(owner.later(4, note=[ODD[name]])) == 8
    assert len(requests.requests()) + sum(reasons(requests).values()) == 2


def test_a_request_with_any_answer_is_answered():
    class Odd(Owner):
        def plain(self, size: int, note: Any = None) -> Any:
            self.run(size)
            return note

    requests = RequestRecorder()
    requests.watch(Odd, ["plain"], model_id=str)
    for name, value in ODD.items():
        assert Odd().plain(3, value) is value or name == "generator"


@pytest.mark.parametrize("wrong", ["model_id", "answered"])
def test_an_odd_serve_breaks_no_request(wrong: str):
    def fail() -> Any:
        raise RuntimeError("another release of Ray")

    given: Any = {"model_id": str, wrong: fail}
    kind: Any = type("App", (App,), {})
    requests = RequestRecorder()
    requests.watch(kind, [*NAMES, "__call__"], **given)
    assert kind().plain(3) == 6
    assert asyncio.run(kind().later(4)) == 8

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(_: Any) -> None: ...

    asyncio.run(kind()(scope("/shop/a"), receive, send))
    assert requests.requests() == []


@pytest.mark.parametrize("note", [torch.ones(MOST_BYTES), np.ones(MOST_BYTES)], ids=["t", "a"])
def test_a_large_tensor_is_not_copied(note: Any):
    owner, requests = watched()
    with (
        mock.patch.object(torch, "from_numpy", side_effect=AssertionError),
        mock.patch.object(torch.Tensor, "clone", side_effect=AssertionError),
    ):
        owner.plain(3, note)
    assert reasons(requests) == {TOO_LARGE: 1}


def test_a_large_body_is_not_copied():
    """Serve passes a body in one message."""

    class Large(bytes):
        """Says how long it is, and nothing else."""

        def __radd__(self, _: Any) -> Any:
            raise AssertionError

    _, requests = asked(scope("/shop/a", content_length="70000"), Large(b"x" * 70_000))
    assert reasons(requests) == {"the body of a request is larger than 64 KiB": 1}


def test_a_path_is_the_same_in_a_replay():
    """A server decodes it, so the length of a text would be another one."""
    app, model = FastAPI(), Owner()
    seen: list[str] = []

    @app.get("/embed/{text}")
    def embed(text: str) -> int:
        seen.append(text)
        return model.run(len(text))

    text = "hello world é?%41"
    given = {**scope(f"/embed/{text}"), "method": "GET", "root_path": ""}
    requests = asked_of(app, given)
    item = as_input(RecordedRequest.from_json(requests.requests()[0]))
    assert item.http is not None
    exchange = Exchange(item, *item.http)
    asyncio.run(app(exchange.scope, exchange.receive, exchange.send))
    exchange.raise_for_status()
    assert seen == [text, text]
    assert exchange.scope["raw_path"] == b"/embed/hello%20world%20%C3%A9%3F%2541"
