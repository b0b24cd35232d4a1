# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Records requests with their values, if a person has chosen to: one for each set of code.

A request is kept if the kinds of calls that it made are not those of a request that is kept
already. Nothing of it leaves the process before it has been scrubbed, which happens on the thread
that asks, not in the request.
"""

from __future__ import annotations

import abc
import base64
import functools
import importlib
import inspect
import json
import logging
import threading
import types
import urllib.parse
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import safetensors.torch
import torch
from starlette.requests import Request
from starlette.responses import Response

from serve_warm._redaction import describe_error, redact
from serve_warm.errors import ConfigError
from serve_warm.inputs import HTTP_TARGET
from serve_warm.learn.recorded_requests import (
    MOST_BYTES,
    NotRecordable,
    RecordedRequest,
    has_bytes,
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

EACH, ONE_IN = 200, 50
"""A request's arguments are described before the handler runs, because it may change them. After
`EACH` requests that brought no new set of code, only one in `ONE_IN` is."""

FAILED = 400
"""Lowest status of an HTTP answer to a request that failed."""

Scrub = Callable[[str, dict[str, Any]], "dict[str, Any] | None"]
"""Returns what to keep of a target's arguments, or None to keep nothing."""

Describe = Callable[[], "RecordedRequest | str | None"]
"""Returns a request, or why it cannot be recorded, or None if it was not described in time."""

Kinds = frozenset[int]


class RequestRecorder:
    """Records the requests of this process. Never raises an exception into a request."""

    def __init__(self, scrub: Scrub | None = None) -> None:
        self._scrub = scrub
        self._kept: dict[tuple[str, Kinds], RecordedRequest] = {}
        self._counts: dict[tuple[str, Kinds], int] = {}
        self._refused: dict[tuple[str, Kinds], str] = {}
        """Why requests like these cannot be recorded: the next one is not described again."""
        self._not_recorded = Counter[str]()
        self._left_bytes = KEPT_BYTES
        self._since_new = 0
        self._has_warned = False
        self._lock = threading.Lock()

    def watch(self, cls: type, names: Sequence[str], *, model_id: Callable[[], str]) -> None:
        """Record the requests to these methods of a deployment's class, from now on.

        `model_id` returns the multiplexed model id of the running request.
        """
        for name in names:
            method = inspect.getattr_static(cls, name)
            if not isinstance(method, types.FunctionType):
                continue
            made = functools.update_wrapper(_like(method, name, self, model_id), method)
            # Ray finds the object of a batched or multiplexed method by this attribute.
            inner = vars(method).get("__wrapped__")
            if inner is None:
                del made.__wrapped__
            else:
                made.__wrapped__ = inner
            made.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
            setattr(cls, name, made)

    def forget(self) -> None:
        """Forget the requests so far."""
        with self._lock:
            self._kept, self._counts, self._refused = {}, {}, {}
            self._not_recorded.clear()
            self._left_bytes, self._since_new = KEPT_BYTES, 0

    def wants(self) -> bool:
        """Return whether the arguments of the next request are to be described."""
        self._since_new += 1
        is_next = self._since_new <= EACH or self._since_new % ONE_IN == 0
        return is_next and not self._is_full()

    def note(self, target: str, kinds: set[int], describe: Describe) -> None:
        """Record a request that made these kinds of calls. `describe` is called if it is new."""
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
            if self._is_full():
                return
        described = describe()
        with self._lock:
            if described is not None and key not in self._kept:
                self._add(key, described)

    def _is_full(self) -> bool:
        return len(self._kept) >= MOST_REQUESTS or len(self._refused) >= MOST_REFUSED

    def _add(self, key: tuple[str, Kinds], described: RecordedRequest | str) -> None:
        why = described if isinstance(described, str) else ""
        if isinstance(described, RecordedRequest):
            size = size_of(described)
            if size > MOST_BYTES:
                why = f"a request is larger than {MOST_BYTES >> 10} KiB"
            elif size > self._left_bytes:
                why = "many requests were recorded already"
            elif len(self._kept) < MOST_REQUESTS:
                self._kept[key], self._counts[key] = described, 1
                self._left_bytes -= size
                self._since_new = 0
        if why and len(self._refused) < MOST_REFUSED:
            why = why if why in self._not_recorded or len(self._not_recorded) < 16 else OTHER
            if why not in self._not_recorded:  # at most 17 reasons
                logger.warning("requests to %s are not recorded: %s", key[0], why)
            self._refused[key] = why
            self._not_recorded[why] += 1

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
        try:
            target = _target_without_secrets(request.target)
            arguments: Any = with_texts(dict(request.arguments), _without_secrets)
            if self._scrub is not None:
                arguments = self._scrub(target, arguments)
            elif has_bytes(request.arguments):
                return None  # which nobody can search for secrets
            if arguments is None:
                return None
            made = {**request.to_json(), "target": target, "arguments": arguments}
            return RecordedRequest.from_json(made)
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "a recorded request is not kept, because scrubbing it failed: %s",
                    describe_error(error),
                )
            return None


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


def _without_secrets(key: str, value: Any) -> Any:
    """Return a text of the same length, because lengths decide which code runs; or 0."""
    said = f"{key}={value}" if key else str(value)
    if redact(said) == said:
        return value
    return "x" * len(value) if isinstance(value, str) else 0


def _target_without_secrets(target: str) -> str:
    verb, space, path = target.rpartition(" ")
    path, mark, query = path.partition("?")
    parts = [_decoded_without_secrets("", part) for part in path.split("/")]
    pairs = [each.partition("=") for each in query.split("&")]
    shown = [
        key + is_ + _decoded_without_secrets(urllib.parse.unquote_plus(key), value)
        if is_
        else _decoded_without_secrets("", key)
        for key, is_, value in pairs
    ]
    return verb + space + "/".join(parts) + mark + "&".join(shown)


def _decoded_without_secrets(key: str, text: str) -> str:
    plain_text = urllib.parse.unquote_plus(text)
    changed = _without_secrets(key, plain_text)
    return text if changed == plain_text else str(changed)


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

    if name == "__call__" and [*inspect.signature(method).parameters][1:] == [*ASGI]:
        return _like_asgi_app(method, recorder, model_id)
    if inspect.isasyncgenfunction(method):
        return _like_async_generator(method, begin)
    if inspect.iscoroutinefunction(method):
        return _like_coroutine(method, begin)
    if inspect.isgeneratorfunction(method):
        return _like_generator(method, begin)
    return _like_function(method, begin)


ASGI = ("scope", "receive", "send")


def _like_asgi_app(
    app: Callable[..., Any], recorder: RequestRecorder, model_id: Callable[[], str]
) -> Callable[..., Any]:
    async def call(self: Any, scope: Any, receive: Any, send: Any) -> Any:
        if reached.get() is not None or scope.get("type") != "http":
            return await app(self, scope, receive, send)
        exchange = _AppCall(recorder, scope, receive, send, model_id())
        with exchange:
            return await app(self, scope, exchange.receive, exchange.send)

    return call


def _like_async_generator(method: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    async def call(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        watched = begin(args, kwargs)
        if watched is None:
            async for each in method(self, *args, **kwargs):
                yield each
            return
        with watched:
            async for each in method(self, *watched.args, **kwargs):
                yield each

    return call


def _like_coroutine(method: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        watched = begin(args, kwargs)
        if watched is None:
            return await method(self, *args, **kwargs)
        with watched:
            return watched.answered(await method(self, *watched.args, **kwargs))

    return call


def _like_generator(method: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        watched = begin(args, kwargs)
        if watched is None:
            yield from method(self, *args, **kwargs)
            return
        with watched:
            yield from method(self, *watched.args, **kwargs)

    return call


def _like_function(method: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        watched = begin(args, kwargs)
        if watched is None:
            return method(self, *args, **kwargs)
        with watched:
            return watched.answered(method(self, *watched.args, **kwargs))

    return call


class _Body:
    """The body of an HTTP request, kept while the application reads it."""

    def __init__(self, receive: Callable[[], Any]) -> None:
        self._receive = receive
        self._data: bytearray | None = bytearray()
        self._is_whole = False

    async def receive(self) -> Any:
        """Return the next message from the client (ASGI's `receive`)."""
        message = await self._receive()
        if message.get("type") == "http.request" and self._data is not None:
            self._data += message.get("body", b"")
            self._is_whole = not message.get("more_body")
            if len(self._data) > MOST_BYTES:
                self._data = None
        return message

    def read(self, scope: Mapping[str, Any]) -> bytes:
        """Return the body.

        Raises:
            NotRecordable: the application did not read it, or it is too large.
        """
        if self._data is None:
            raise NotRecordable(f"the body of a request is larger than {MOST_BYTES >> 10} KiB")
        if not self._is_whole and scope["method"] not in ("GET", "HEAD", "DELETE", "OPTIONS"):
            raise NotRecordable("the application has not read the body of a request")
        return bytes(self._data)


class _OneRequest(abc.ABC):
    """One request. Its calls of compiled functions are collected in the block."""

    def __init__(self, recorder: RequestRecorder, target: str) -> None:
        self._recorder = recorder
        self._target = target
        self._kinds: set[int] = set()
        self._has_failed = False

    def __enter__(self) -> None:
        reached.set(self._kinds)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        reached.set(None)
        if error is None and not self._has_failed:
            self._recorder.note(self._target, self._kinds, self._described)

    @abc.abstractmethod
    def _described(self) -> RecordedRequest | str | None:
        """Return the request, as `Describe` says."""


class _MethodCall(_OneRequest):
    """A request to a method."""

    def __init__(
        self,
        recorder: RequestRecorder,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        model_id: str,
    ) -> None:
        super().__init__(recorder, method)
        self.args = args
        """The arguments to call the method with."""
        self._model_id = model_id
        self._before: RecordedRequest | str | None = None
        # Without a FastAPI app, Serve passes an HTTP request as the only argument.
        given = args[0] if len(args) == 1 and not kwargs else None
        self._body: _Body | None = None
        if type(given) is Request:
            self._scope = given.scope
            self._target = _target_of(given.scope)
            self._body = _Body(given.receive)
            self.args = (Request(given.scope, self._body.receive),)
        elif recorder.wants():
            self._before = _try(lambda: _method_request(method, args, kwargs, model_id))

    def answered(self, answer: Any) -> Any:
        """Return the answer of the method. An HTTP answer says whether the request failed."""
        self._has_failed = isinstance(answer, Response) and answer.status_code >= FAILED
        return answer

    def _described(self) -> RecordedRequest | str | None:
        body = self._body
        if body is None:
            return self._before
        return _try(lambda: _http_request(self._scope, body, self._model_id))


class _AppCall(_OneRequest):
    """A request to an ASGI app."""

    def __init__(
        self,
        recorder: RequestRecorder,
        scope: Any,
        receive: Callable[[], Any],
        send: Callable[[Any], Any],
        model_id: str,
    ) -> None:
        super().__init__(recorder, _target_of(scope))
        self._scope = dict(scope)
        self._send = send
        self._model_id = model_id
        self._body = _Body(receive)
        self.receive = self._body.receive

    async def send(self, message: Any) -> None:
        """Send a message to the client (ASGI's `send`), and note whether the request failed."""
        if message.get("type") == "http.response.start" and message["status"] >= FAILED:
            self._has_failed = True
        await self._send(message)

    def _described(self) -> RecordedRequest | str | None:
        return _try(lambda: _http_request(self._scope, self._body, self._model_id))


def _try(describe: Callable[[], RecordedRequest]) -> RecordedRequest | str:
    """Return a request, or why it cannot be recorded."""
    try:
        return describe()
    except NotRecordable as error:
        return str(error)
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        return f"a request cannot be described: {type(error).__name__}"


def _target_of(scope: Mapping[str, Any]) -> str:
    path = str(scope["path"]).removeprefix(str(scope.get("root_path", ""))) or "/"
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{scope['method']} {urllib.parse.quote(path)}{'?' if query else ''}{query}"


def _http_request(scope: Mapping[str, Any], body: _Body, model_id: str) -> RecordedRequest:
    target, data = _target_of(scope), body.read(scope)
    if HTTP_TARGET.fullmatch(target) is None:
        raise NotRecordable("the method or the path of a request cannot be replayed")
    types_ = [value for name, value in scope["headers"] if name.lower() == b"content-type"]
    content_type = types_[0].decode("latin-1") if types_ else ""
    arguments: dict[str, Any] = {}
    if content_type.partition(";")[0].strip() == "application/json" and data:
        arguments["json"] = plain(json.loads(data), _refuse)
        if arguments["json"] is None:
            raise NotRecordable("the body of a request is null")
    elif data:
        arguments["body"] = base64.b64encode(data).decode()
        arguments["content_type"] = content_type
    return RecordedRequest(target=target, arguments=arguments, model_id=model_id)


def _method_request(
    method: str, args: Sequence[Any], kwargs: Mapping[str, Any], model_id: str
) -> RecordedRequest:
    tensors: dict[str, torch.Tensor] = {}
    other = functools.partial(_other, tensors)
    arguments = {
        "args": [plain(each, other) for each in args],
        "kwargs": plain(dict(kwargs), other),
    }
    return RecordedRequest(
        target=method, arguments=arguments, tensors=_packed(tensors), model_id=model_id
    )


# Values that JSON has not -------------------------------------------------------------------------


def _refuse(value: Any) -> Any:
    raise NotRecordable(f"a value is a {type(value).__qualname__}")


def _other(tensors: dict[str, torch.Tensor], value: Any) -> dict[str, str]:
    """Return what stands for a value, and add it to `tensors` if it is a tensor or array."""
    if type(value) is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    name = f"t{len(tensors)}"
    if type(value) is torch.Tensor:
        if value.requires_grad or value.is_conj() or value.is_neg() or not value.is_contiguous():
            raise NotRecordable("a tensor is not contiguous, or requires grad")
        tensors[name] = value.detach().cpu().clone()
        return {"$tensor": name}
    kind = type(value)
    if (kind.__module__, kind.__qualname__) == ("numpy", "ndarray"):
        try:
            tensors[name] = torch.from_numpy(value).contiguous().clone()
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
