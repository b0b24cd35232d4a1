# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Records requests with their values, if a person has chosen to: one for each set of code.

A request is kept if the kinds of calls that it made are not those of a request that is kept
already. Its values do not leave the process before they are scrubbed. That happens once, and on the
thread that asks, not in the request.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import functools
import hashlib
import importlib
import inspect
import json
import logging
import threading
import types
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from serve_warm._redaction import describe_error, is_name
from serve_warm.errors import ConfigError
from serve_warm.inputs import HTTP_TARGET
from serve_warm.learn.described_requests import (
    Body,
    Description,
    Scrub,
    describe_call,
    describe_http,
    finish,
)
from serve_warm.learn.recorded_requests import (
    MOST_BYTES,
    OF_REQUESTS,
    TOO_LARGE,
    NotRecordable,
    RecordedRequest,
    size_of,
)
from serve_warm.learn.recorder import reached

logger = logging.getLogger(__name__)

MOST_REQUESTS = 32
"""Maximum number of requests that are kept: the first ones."""

KEPT_BYTES = 1 << 20
"""Maximum number of bytes of all requests that are kept, as JSON."""

MOST_REASONS = 16
OTHER = "other reasons"

EACH, ONE_IN = 200, 50
"""A request's arguments are described before the handler runs, because it may change them. After
`EACH` requests that brought no new set of code, only one in `ONE_IN` is. The same holds for bodies,
after `EACH` requests that could not be recorded."""

SKIPPED = f"after {EACH} requests that were not kept, only one in {ONE_IN} is looked at"
FULL = f"{MOST_REQUESTS} requests are recorded already"
STRAY = "a thread or a queue of the application called compiled code for requests it does not name"
HAS_FAILED = "they were answered with an error, or their client went away"
NO_ROOM = f"the recorded requests take {KEPT_BYTES >> 20} MiB already"

FAILED = 400
"""Lowest status of an HTTP answer to a request that failed."""

Describe = Callable[[], "Description | str | None"]
"""Returns a request, or why it cannot be recorded, or None if it was not described."""

Key = tuple[str, frozenset[int]]
"""The handler, with its route, and the kinds of calls that a request made."""

Made = TypeVar("Made")

_ended: ContextVar[object] = ContextVar("serve_warm_ended", default=None)
"""Serve's object for the request that was answered in this context."""


@dataclass
class _Kept:
    """A request that takes one of the slots."""

    request: Description | RecordedRequest
    """Scrubbed as a `RecordedRequest`, and as it came until then."""
    size: int
    calls: int = 1


class RequestRecorder:
    """Records the requests of this process. Never raises an exception into a request."""

    def __init__(
        self,
        scrub: Scrub | None = None,
        *,
        name_kinds: Callable[[Collection[int]], list[str] | None] | None = None,
    ) -> None:
        """`name_kinds` is that of the recorder of calls, which gives kinds their ids."""
        self._scrub = scrub
        self._name_kinds = name_kinds
        self._kept: dict[Key, _Kept] = {}
        self._not_recorded = Counter[str]()
        self._left_bytes = KEPT_BYTES
        self._since_new = 0
        self._failures = 0
        """Requests that could not be recorded, since the last one that was."""
        self._lock = threading.Lock()
        self._scrubs = threading.Lock()
        """Held while requests are scrubbed, so that each is scrubbed once."""
        self._answered: Callable[[], Sequence[Any]] = list
        self._open: dict[int, tuple[object, _OneRequest]] = {}
        """The requests that are being answered, by the id of Serve's object for each."""
        self.strays = 0
        """Calls that belong to no known request."""
        self.others: set[int] = _KindsOfRequest(self, None)
        """Gets the kinds of calls outside the contexts of requests, as those of some batches."""

    @property
    def keeps_bytes(self) -> bool:
        """Whether bytes are recorded: only `scrub` can search them for secrets."""
        return self._scrub is not None

    def watch(
        self,
        cls: type,
        names: Sequence[str],
        *,
        model_id: Callable[[], str],
        answered: Callable[[], Sequence[Any]] = list,
    ) -> None:
        """Record the requests to these methods of a deployment's class, from now on.

        `model_id` returns the multiplexed model id of the running request. `answered` returns
        Serve's objects for the requests that the current context answers: several in a batch. An
        object without a `request_id` stands for no request.
        """
        self._answered = answered
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
            self._kept = {}
            self._not_recorded.clear()
            self._left_bytes, self._since_new, self._failures = KEPT_BYTES, 0, 0

    # In requests ---------------------------------------------------------------------------

    def is_request(self) -> bool:
        """Return whether a call of a handler in this context is a request.

        A call by another method is none, nor is one in a thread, in a batch or after the answer.
        """
        if reached.get() is not None:
            return False
        found, ended = self._answered(), _ended.get()
        return all(
            each.request_id and each is not ended and id(each) not in self._open for each in found
        )

    def open(self, request: _OneRequest) -> None:
        """Note that a request is being answered in this context."""
        for each in self._answered()[:1]:
            request.serve = each
            self._open[id(each)] = each, request

    def close(self, request: _OneRequest) -> None:
        """Note that a request is answered."""
        self._open.pop(id(request.serve), None)
        _ended.set(request.serve)
        request.serve = None

    def attribute(self, kind: int, own: _KindsOfRequest | None) -> None:
        """Add a kind of calls to the requests that this context answers.

        The task of a batch has the context of the first request ever, whose kinds are `own`, but
        Serve knows the requests of each batch. `own` is None if that request is answered.
        """
        found = [self._open[id(each)] for each in self._answered() if id(each) in self._open]
        kinds = [request.kinds for _, request in found]
        if not kinds and own is not None:
            kinds = [own]
        if not kinds:
            self.strays += 1
        for each in kinds:
            set.add(each, kind)

    def wants(self) -> bool:
        """Return whether the arguments of the next request are to be described."""
        self._since_new += 1
        is_next = self._since_new <= EACH or self._since_new % ONE_IN == 0
        return is_next and len(self._kept) < MOST_REQUESTS

    def wants_body(self) -> bool:
        """Return whether the body of a request with a new set of code is to be described."""
        return self._failures <= EACH or self._failures % ONE_IN == 0

    def note(
        self, handler: str, kinds: set[int], describe: Describe, *, has_strays: bool = False
    ) -> None:
        """Record a request that made these kinds of calls. `describe` is called if it is new.

        `has_strays` is whether calls that belong to no known request were made meanwhile.
        """
        if not kinds:  # it reached no compiled code, or entries answered it
            if has_strays:
                with self._lock:
                    self._refuse(handler, STRAY)
            return
        key = handler, frozenset(kinds)
        with self._lock:
            if key in self._kept:
                self._kept[key].calls += 1
                return
            if len(self._kept) >= MOST_REQUESTS:
                self._refuse(handler, FULL)
                return
        described = describe()
        size = _try(described.size) if isinstance(described, Description) else described
        with self._lock:
            why = self._why_not(size)
            if key in self._kept:  # another thread was faster
                self._kept[key].calls += 1
            elif why:
                self._failures += 1
                self._refuse(handler, why)
            else:
                self._keep(key, cast("Description", described), cast("int", size))

    def note_failed(self, handler: str, kinds: set[int]) -> None:
        """Count a request that made these kinds of calls, and then failed."""
        with self._lock:
            if kinds:
                self._refuse(handler, HAS_FAILED)

    def _keep(self, key: Key, described: Description, size: int) -> None:
        self._kept[key] = _Kept(described, size)
        self._left_bytes -= size
        self._since_new = self._failures = 0

    def _why_not(self, size: int | str | None) -> str:
        """Return why a request of this size is not kept; empty if it is.

        Instead of a size, `size` may be the reason, or None if the request was not described.
        """
        if not isinstance(size, int):
            return size or SKIPPED
        if size > MOST_BYTES:
            return TOO_LARGE
        if len(self._kept) >= MOST_REQUESTS:
            return FULL
        return NO_ROOM if size > self._left_bytes else ""

    def _refuse(self, handler: str, why: str, calls: int = 1) -> None:
        is_known = why in self._not_recorded
        why = why if is_known or len(self._not_recorded) < MOST_REASONS else OTHER
        if why not in self._not_recorded:
            is_usual = why in (FULL, NO_ROOM, SKIPPED, HAS_FAILED)
            level = logging.INFO if is_usual else logging.WARNING
            logger.log(level, "requests to %s are not recorded: %s", handler, why)
        self._not_recorded[why] += calls

    # Outside of requests -------------------------------------------------------------------

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests so far as plain data, scrubbed."""
        with self._scrubs:
            with self._lock:
                new = [(k, v) for k, v in self._kept.items() if isinstance(v.request, Description)]
            for key, kept in new:
                self._finish(key, kept)
        with self._lock:
            return [
                {**kept.request.to_json(), "calls": kept.calls}
                for kept in self._kept.values()
                if isinstance(kept.request, RecordedRequest)
            ]

    def _finish(self, key: Key, kept: _Kept) -> None:
        """Scrub a request. If nothing is left of it, its slot is free again."""
        described = cast("Description", kept.request)
        made = _try(lambda: finish(described, self._scrub), "scrubbing it failed")
        if isinstance(made, RecordedRequest):
            made = replace(made, reached=self._name(key))
        with self._lock:
            if self._kept.get(key) is not kept:  # forgotten meanwhile
                return
            self._left_bytes += kept.size
            if isinstance(made, RecordedRequest):
                size = size_of(made)  # `scrub` may have enlarged it
                if size <= self._left_bytes:
                    kept.request, kept.size = made, size
                    self._left_bytes -= size
                    return
                made = NO_ROOM
            del self._kept[key]
            self._refuse(key[0], made, kept.calls)

    def _name(self, key: Key) -> str:
        """Return a digest of a key that is the same in each replica; empty if there is none."""
        handler, kinds = key
        names = None if self._name_kinds is None else self._name_kinds(kinds)
        if names is None:
            return ""
        return hashlib.sha256(json.dumps([handler, *names]).encode()).hexdigest()[:32]

    def not_recorded(self) -> dict[str, int]:
        """Return the numbers of requests that were not recorded, by reason."""
        with self._lock:
            return {f"{OF_REQUESTS}{why}": count for why, count in self._not_recorded.items()}


class _KindsOfRequest(set[int]):
    """The kinds of calls of a request, as the context of the request has it."""

    def __init__(self, recorder: RequestRecorder, own: _OneRequest | None) -> None:
        super().__init__()
        self._recorder = recorder
        self._own = own

    def add(self, kind: int) -> None:
        """Add a kind of calls to the requests that make it."""
        is_open = self._own is not None and self._own.is_open
        _try(lambda: self._recorder.attribute(kind, self if is_open else None))


class _KindsOfNoRequest(set[int]):
    """Stands for the calls of something that is no request, such as a websocket."""

    def add(self, kind: int) -> None:
        """Do nothing."""


def _try(call: Callable[[], Made], failed: str = "a request cannot be described") -> Made | str:
    """Return what `call` returns, or why the request is not recorded."""
    try:
        return call()
    except NotRecordable as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - an argument's own methods and `scrub` may raise any
        name = type(error).__name__
        return f"{failed}: {name if is_name(name) else 'an error without a plain name'}"


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
    parameters = [*inspect.signature(method).parameters.values()][1:]

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _MethodCall | None:
        if not recorder.is_request():
            return None
        names = _names_of(parameters, len(args))
        return _MethodCall(recorder, name, args, kwargs, names=names, model_id=model_id())

    def begin_safely(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _MethodCall | None:
        made = _try(lambda: begin(args, kwargs))
        return None if isinstance(made, str) else made

    if name == "__call__" and [each.name for each in parameters] == [*ASGI]:
        return _like_asgi_app(method, recorder, model_id)
    if inspect.isasyncgenfunction(method):
        return _like_async_generator(method, begin_safely)
    if inspect.iscoroutinefunction(method):
        return _like_coroutine(method, begin_safely)
    if inspect.isgeneratorfunction(method):
        return _like_generator(method, begin_safely)
    return _like_function(method, begin_safely)


ASGI = ("scope", "receive", "send")


def _names_of(parameters: Sequence[inspect.Parameter], count: int) -> list[str]:
    """Return the names of the parameters that this many positional arguments are for."""
    names: list[str] = []
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            return names + [each.name] * (count - len(names))
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            names.append(each.name)
    return names


def _like_asgi_app(
    app: Callable[..., Any], recorder: RequestRecorder, model_id: Callable[[], str]
) -> Callable[..., Any]:
    async def call(self: Any, scope: Any, receive: Any, send: Any) -> Any:
        if reached.get() is not None:
            return await app(self, scope, receive, send)
        if scope.get("type") != "http":
            reached.set(_KindsOfNoRequest())  # so that methods that it calls are no requests
            try:
                return await app(self, scope, receive, send)
            finally:
                reached.set(None)

        def begin() -> _AppCall | None:
            if not recorder.is_request():  # but a replay
                return None
            return _AppCall(recorder, scope, receive, send, model_id())

        exchange = _try(begin)
        if exchange is None or isinstance(exchange, str):
            return await app(self, scope, receive, send)
        with exchange:
            return await app(self, scope, exchange.receive, exchange.send)

    return call


def _like_async_generator(method: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    async def call(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        watched = begin(args, kwargs)
        inner = method(self, *(args if watched is None else watched.args), **kwargs)
        with contextlib.nullcontext() if watched is None else watched:
            async for each in inner:
                try:
                    yield each
                except (asyncio.CancelledError, GeneratorExit) as error:
                    # Serve tells a handler in this way that the client is gone.
                    if type(inner) is types.AsyncGeneratorType:
                        with contextlib.suppress(StopAsyncIteration):
                            await inner.athrow(error)
                    raise

    return call


def _like_coroutine(method: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        watched = begin(args, kwargs)
        if watched is None:
            return await method(self, *args, **kwargs)
        with watched:
            return watched.look_at_answer(await method(self, *watched.args, **kwargs))

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
            return watched.look_at_answer(method(self, *watched.args, **kwargs))

    return call


class _OneRequest(abc.ABC):
    """One request. Its calls of compiled functions are collected in the block.

    If the answer is a stream, the block ends before the stream begins, and is entered again.
    """

    def __init__(self, recorder: RequestRecorder) -> None:
        self.recorder = recorder
        self.kinds = _KindsOfRequest(recorder, self)
        self.serve: object = None
        """Serve's object for the request, while it is answered."""
        self.is_open = False
        self._strays = recorder.strays
        self._has_failed = False
        self._goes_on = False

    def __enter__(self) -> None:
        self._goes_on, self.is_open = False, True
        reached.set(self.kinds)
        _try(lambda: self.recorder.open(self))

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        reached.set(None)
        self.is_open = False
        self.recorder.close(self)
        if self._goes_on:
            return
        if error is not None or self._has_failed:
            _try(lambda: self.recorder.note_failed(self._handler(), self.kinds))
        else:
            has_strays = self._strays != self.recorder.strays
            _try(
                lambda: self.recorder.note(
                    self._handler(), self.kinds, self._describe, has_strays=has_strays
                )
            )

    @abc.abstractmethod
    def _handler(self) -> str:
        """Return the name of what answers the request, without values of the request."""

    @abc.abstractmethod
    def _describe(self) -> Description | str | None:
        """Return the request, as `Describe` says."""


class _MethodCall(_OneRequest):
    """A request to a method."""

    def __init__(
        self,
        recorder: RequestRecorder,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        names: Sequence[str],
        model_id: str,
    ) -> None:
        super().__init__(recorder)
        self.args = args
        """The arguments to call the method with."""
        self._method = method
        self._model_id = model_id
        self._before: Description | str | None = None
        # Without a FastAPI app, Serve passes an HTTP request as the only argument.
        given = args[0] if len(args) == 1 and not kwargs else None
        self._body: Body | None = None
        if type(given) is Request:
            self._scope = given.scope
            self._body = Body(given.receive)
            self.args = (Request(given.scope, self._body.receive),)
        elif recorder.wants():
            self._before = _try(
                lambda: describe_call(
                    method,
                    args,
                    kwargs,
                    names=names,
                    model_id=model_id,
                    keeps_bytes=recorder.keeps_bytes,
                )
            )

    def look_at_answer(self, answer: Any) -> Any:
        """Return the answer of the method, and record a stream of it as a part of the request."""
        found = [answer]
        _try(lambda: self._look_at(found))
        return found[0]

    def _look_at(self, found: list[Any]) -> None:
        answer = found[0]
        kind = type(answer)  # not its `__class__`, which can be code of the application
        if issubclass(kind, Response) and answer.status_code >= FAILED:
            self._has_failed = True
        elif issubclass(kind, StreamingResponse):
            body = answer.body_iterator
            answer.body_iterator = _like_async_generator(lambda *_: body, lambda *_: self)(None)
            self._goes_on = True
        elif kind is types.AsyncGeneratorType:
            found[0] = _like_async_generator(lambda *_: answer, lambda *_: self)(None)
            self._goes_on = True
        elif kind is types.GeneratorType:
            found[0] = _like_generator(lambda *_: answer, lambda *_: self)(None)
            self._goes_on = True

    def _handler(self) -> str:
        return self._method if self._body is None else _route_of(self._scope, self._method)

    def _describe(self) -> Description | str | None:
        body = self._body
        if body is None:
            return self._before
        return _describe_http(self.recorder, self._scope, body, self._model_id)


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
        super().__init__(recorder)
        self._routed = scope
        """The scope to which the app adds the route."""
        self._scope = dict(scope)
        self._send = send
        self._model_id = model_id
        self._body = Body(receive)
        self.receive = self._body.receive

    async def send(self, message: Any) -> None:
        """Send a message to the client (ASGI's `send`), and note whether the request failed."""
        if message.get("type") == "http.response.start" and message.get("status", 0) >= FAILED:
            self._has_failed = True
        await self._send(message)

    def _handler(self) -> str:
        return _route_of({**self._routed, "method": self._scope["method"]}, "__call__")

    def _describe(self) -> Description | str | None:
        routed = self._routed
        # Below a mount, the app changes the root, which its routes do not see.
        scope = {
            **self._scope,
            **{key: routed.get(key) for key in ("path_params", "route")},
            "routed_path": routed.get("root_path", ""),
        }
        return _describe_http(self.recorder, scope, self._body, self._model_id)


def _describe_http(
    recorder: RequestRecorder, scope: Mapping[str, Any], body: Body, model_id: str
) -> Description | str | None:
    if not recorder.wants_body():
        return None
    return _try(
        lambda: describe_http(scope, body, model_id=model_id, keeps_bytes=recorder.keeps_bytes)
    )


def _route_of(scope: Mapping[str, Any], method: str) -> str:
    """Return the route that an HTTP request takes, such as `GET __call__ /item/{name}`.

    The path itself does not count, because all paths of a route reach the same handler.
    """
    template, endpoint = getattr(scope.get("route"), "path", ""), scope.get("endpoint")
    handler = f"{method} {template}" if type(template) is str and template else method
    name = getattr(endpoint, "__qualname__", "")
    verb = scope["method"] if HTTP_TARGET.fullmatch(f"{scope['method']} /") else ""
    return f"{verb} {handler}" + (f" ({name})" if type(name) is str and name else "")
