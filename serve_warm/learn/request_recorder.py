# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Records requests with their values, if a person has chosen to: one for each set of code.

A request is kept if the kinds of calls that it made are not those of a request that is kept
already. Nothing of it leaves the process before it has been scrubbed, which happens on the thread
that asks, not in the request.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib
import inspect
import json
import logging
import threading
import urllib.parse
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import safetensors.torch
import torch
from starlette.requests import Request

from serve_warm._redaction import describe_error, redact
from serve_warm.errors import ConfigError
from serve_warm.learn.recorded_requests import (
    MOST_BYTES,
    NotRecordable,
    RecordedRequest,
    plain,
    size_of,
    with_texts,
)
from serve_warm.learn.recorder import reached

logger = logging.getLogger(__name__)

MOST_REQUESTS = 32
"""Maximum number of requests that are kept: the first ones."""

MOST_REFUSED = 256
"""Maximum number of sets of code whose requests could not be recorded."""

OTHER = "other reasons"

KEPT_BYTES = 1 << 20
"""Maximum number of bytes of all requests that are kept, as JSON."""

Scrub = Callable[[str, dict[str, Any]], "dict[str, Any] | None"]
"""Returns what to keep of a target's arguments, or None to keep nothing."""


class RequestRecorder:
    """Records the requests of this process. Never raises an exception into a request."""

    def __init__(self, scrub: Scrub | None = None) -> None:
        self._scrub = scrub
        self._kept: dict[tuple[str, frozenset[int]], RecordedRequest] = {}
        self._counts: dict[tuple[str, frozenset[int]], int] = {}
        self._refused: dict[tuple[str, frozenset[int]], str] = {}
        """Why requests like these cannot be recorded: the next one is not described again."""
        self._not_recorded = Counter[str]()
        self._left_bytes = KEPT_BYTES
        self._has_warned = False
        self._lock = threading.Lock()

    def watch(self, owner: Any, names: Sequence[str], *, model_id: Callable[[], str]) -> None:
        """Record the requests to these methods of a deployment's object, from now on.

        Serve asks the object for its methods, so attributes of the object take their place.
        `model_id` returns the multiplexed model id of the running request.
        """
        for name in names:
            method = getattr(owner, name, None)
            if inspect.ismethod(method) or inspect.isfunction(method):
                wrapped = functools.update_wrapper(_like(method, name, self, model_id), method)
                wrapped.__dict__.pop("__wrapped__", None)
                wrapped.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
                owner.__dict__[name] = wrapped

    def forget(self) -> None:
        """Forget the requests so far."""
        with self._lock:
            self._kept, self._counts, self._refused = {}, {}, {}
            self._not_recorded.clear()
            self._left_bytes = KEPT_BYTES

    def note(self, target: str, kinds: set[int], describe: Callable[[], RecordedRequest]) -> None:
        """Record a request that made these kinds of calls. `describe` returns it."""
        if not kinds:  # it reached no compiled code, or entries answered it
            return
        key = target.partition("?")[0], frozenset(kinds)
        with self._lock:
            if key in self._kept:
                self._counts[key] += 1
                return
            if key in self._refused:
                self._not_recorded[self._refused[key]] += 1
                return
            if len(self._kept) >= MOST_REQUESTS or len(self._refused) >= MOST_REFUSED:
                return
        request, why = self._described(describe)
        with self._lock:
            if request is None:
                why = why if why in self._not_recorded or len(self._not_recorded) < 16 else OTHER
                self._refused[key] = why
                self._not_recorded[why] += 1
            else:
                self._kept[key] = request
                self._counts[key] = 1

    def _described(
        self, describe: Callable[[], RecordedRequest]
    ) -> tuple[RecordedRequest | None, str]:
        """Return a request, or why it cannot be recorded."""
        try:
            request = describe()
            size = size_of(request)
        except NotRecordable as error:
            return None, str(error)
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
            return None, f"a request cannot be described: {type(error).__name__}"
        if size > MOST_BYTES:
            return None, f"a request is larger than {MOST_BYTES >> 10} KiB"
        with self._lock:
            if size > self._left_bytes:
                return None, "many requests were recorded already"
            self._left_bytes -= size
        return request, ""

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests so far as plain data, scrubbed."""
        with self._lock:
            kept, counts = dict(self._kept), dict(self._counts)
        return [
            {**scrubbed.to_json(), "calls": counts[key]}
            for key, request in kept.items()
            if (scrubbed := self._scrubbed(request)) is not None
        ]

    def not_recorded(self) -> dict[str, int]:
        """Return the numbers of requests that were not recorded, by reason."""
        with self._lock:
            return dict(self._not_recorded)

    def _scrubbed(self, request: RecordedRequest) -> RecordedRequest | None:
        target = _target_without_secrets(request.target)
        arguments: dict[str, Any] | None = with_texts(dict(request.arguments), _without_secrets)
        if self._scrub is not None and arguments is not None:
            try:
                arguments = self._scrub(target, arguments)
                json.dumps(arguments)
            except Exception as error:  # noqa: BLE001 - the user's function may raise anything
                arguments = None
                if not self._has_warned:
                    self._has_warned = True
                    logger.warning(
                        "the function of `scrub` failed, so requests are not recorded: %s",
                        describe_error(error),
                    )
        if arguments is None:
            return None
        return RecordedRequest(
            target=target,
            arguments=arguments,
            tensors=request.tensors,
            model_id=request.model_id,
        )


def find_scrub(name: str | None) -> Scrub | None:
    """Return the function with this name, as the setting `scrub` has it.

    Raises:
        ConfigError: there is no such function.
    """
    if name is None:
        return None
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"`scrub: {name}` cannot be imported: {describe_error(error)}",
            hint="name a module and a function in it: `app.privacy:scrub`",
        ) from error
    if not callable(found):
        raise ConfigError(f"`scrub: {name}` is no function")
    return cast("Scrub", found)


def _without_secrets(key: str, text: str) -> str:
    """Return a text of the same length, because lengths decide which code runs."""
    said = f"{key}={text}" if key else text
    return text if redact(said) == said else "x" * len(text)


def _target_without_secrets(target: str) -> str:
    path, mark, query = target.partition("?")
    pairs = (each.partition("=") for each in query.split("&"))
    return path + mark + "&".join(key + is_ + _without_secrets(key, v) for key, is_, v in pairs)


# One function for each kind of handler, because Serve looks at the kind -------------------------

Begin = Callable[[tuple[Any, ...], dict[str, Any]], "_MethodCall | None"]
"""Returns what collects the calls of a request, or None for a call that is no request."""


def _like(
    method: Callable[..., Any],
    name: str,
    recorder: RequestRecorder,
    model_id: Callable[[], str],
) -> Callable[..., Any]:
    """Return a function of the same kind as a method, which also records its calls."""

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _MethodCall | None:
        # A method that another one calls is no request.
        if reached.get() is not None:
            return None
        return _MethodCall(recorder, name, args, kwargs, model_id())

    if name == "__call__" and _is_asgi(method):
        return _like_asgi_app(method, recorder, model_id)
    if inspect.isasyncgenfunction(method):
        return _like_async_generator(method, begin)
    if inspect.iscoroutinefunction(method):
        return _like_coroutine(method, begin)
    if inspect.isgeneratorfunction(method):
        return _like_generator(method, begin)
    return _like_function(method, begin)


def _like_asgi_app(
    app: Callable[..., Any], recorder: RequestRecorder, model_id: Callable[[], str]
) -> Callable[..., Any]:
    async def call(scope: Any, receive: Any, send: Any) -> Any:
        if reached.get() is not None or scope.get("type") != "http":
            return await app(scope, receive, send)
        exchange = _AppCall(recorder, scope, receive, model_id())
        with exchange:
            return await app(scope, exchange.receive, send)

    return call


def _like_async_generator(method: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        with begin(args, kwargs) or _NOT_WATCHED:
            async for each in method(*args, **kwargs):
                yield each

    return call


def _like_coroutine(method: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        watched = begin(args, kwargs)
        if watched is None:
            return await method(*args, **kwargs)
        await watched.read_body()
        with watched:
            return await method(*args, **kwargs)

    return call


def _like_generator(method: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with begin(args, kwargs) or _NOT_WATCHED:
            yield from method(*args, **kwargs)

    return call


def _like_function(method: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with begin(args, kwargs) or _NOT_WATCHED:
            return method(*args, **kwargs)

    return call


class _MethodCall:
    """One request to a method. Its calls of compiled functions are collected in the block."""

    def __init__(
        self,
        recorder: RequestRecorder,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        model_id: str,
    ) -> None:
        self._recorder = recorder
        self._kinds: set[int] = set()
        self._method = method
        self._args, self._kwargs = args, kwargs
        self._model_id = model_id
        # Without a FastAPI app, Serve passes an HTTP request as the only argument.
        given = args[0] if len(args) == 1 and not kwargs else None
        self._request: Request | None = given if isinstance(given, Request) else None
        self._body: bytes | None = None

    async def read_body(self) -> None:
        """Read the body of an HTTP request, which keeps it for the handler."""
        request = self._request
        if request is not None and _length(request.scope) <= MOST_BYTES:
            self._body = await request.body()

    def __enter__(self) -> None:
        reached.set(self._kinds)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        reached.set(None)
        if error is None:
            target = self._method if self._request is None else _target_of(self._request.scope)
            self._recorder.note(target, self._kinds, self._describe)

    def _describe(self) -> RecordedRequest:
        if self._request is not None:
            return _http_request(self._request.scope, self._body, self._model_id)
        tensors: dict[str, torch.Tensor] = {}
        other = functools.partial(_other, tensors)
        arguments = {
            "args": [plain(each, other) for each in self._args],
            "kwargs": plain(self._kwargs, other),
        }
        return RecordedRequest(
            target=self._method,
            arguments=arguments,
            tensors=_packed(tensors),
            model_id=self._model_id,
        )


class _AppCall:
    """One HTTP request to an ASGI app, whose body is kept while the app reads it."""

    def __init__(
        self, recorder: RequestRecorder, scope: Any, receive: Callable[[], Any], model_id: str
    ) -> None:
        self._recorder = recorder
        self._scope = dict(scope)
        self._receive = receive
        self._model_id = model_id
        self._kinds: set[int] = set()
        self._body: bytes | None = b""

    async def receive(self) -> Any:
        """Return the next message from the client (ASGI's `receive`)."""
        message = await self._receive()
        if message.get("type") == "http.request" and self._body is not None:
            self._body += message.get("body", b"")
            if len(self._body) > MOST_BYTES:
                self._body = None
        return message

    def __enter__(self) -> None:
        reached.set(self._kinds)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        reached.set(None)
        if error is None:
            scope, body, model_id = self._scope, self._body, self._model_id
            self._recorder.note(
                _target_of(scope), self._kinds, lambda: _http_request(scope, body, model_id)
            )


_NOT_WATCHED = contextlib.nullcontext()
"""Stands for a call that is no request."""


def _is_asgi(method: Callable[..., Any]) -> bool:
    return [*inspect.signature(method).parameters] == ["scope", "receive", "send"]


def _length(scope: Mapping[str, Any]) -> int:
    lengths = [value for name, value in scope["headers"] if name.lower() == b"content-length"]
    return int(lengths[0]) if lengths else 0


def _target_of(scope: Mapping[str, Any]) -> str:
    path = str(scope["path"]).removeprefix(str(scope.get("root_path", ""))) or "/"
    query = scope.get("query_string", b"").decode()
    return f"{scope['method']} {urllib.parse.quote(path)}{'?' if query else ''}{query}"


def _http_request(scope: Mapping[str, Any], body: bytes | None, model_id: str) -> RecordedRequest:
    if body is None:
        raise NotRecordable(f"the body of a request is larger than {MOST_BYTES >> 10} KiB")
    types = [value for name, value in scope["headers"] if name.lower() == b"content-type"]
    content_type = types[0].decode() if types else ""
    arguments: dict[str, Any] = {}
    if "json" in content_type and body:
        arguments["json"] = json.loads(body)
    elif body:
        arguments["body"] = base64.b64encode(body).decode()
        arguments["content_type"] = content_type
    return RecordedRequest(target=_target_of(scope), arguments=arguments, model_id=model_id)


# Values that JSON has not -------------------------------------------------------------------------


def _other(tensors: dict[str, torch.Tensor], value: Any) -> dict[str, str]:
    """Return what stands for a value, and add it to `tensors` if it is a tensor or array."""
    if type(value) is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    name = f"t{len(tensors)}"
    if type(value) is torch.Tensor:
        tensors[name] = value.detach().cpu().contiguous()
        return {"$tensor": name}
    kind = type(value)
    if (kind.__module__, kind.__qualname__) == ("numpy", "ndarray"):
        try:
            tensors[name] = torch.from_numpy(value).contiguous()
        except TypeError as error:
            raise NotRecordable(f"an array has the dtype {value.dtype}") from error
        return {"$array": name}
    raise NotRecordable(f"an argument is a {kind.__module__}.{kind.__qualname__}")


def _packed(tensors: Mapping[str, torch.Tensor]) -> str:
    if not tensors:
        return ""
    if sum(each.nbytes for each in tensors.values()) > MOST_BYTES:
        raise NotRecordable(f"a request's tensors are larger than {MOST_BYTES >> 10} KiB")
    return base64.b64encode(safetensors.torch.save(dict(tensors))).decode()
