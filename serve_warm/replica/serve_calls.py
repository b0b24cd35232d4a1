# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of the user's object as Ray Serve makes them: methods, routes, generators.

Private names of Ray Serve that are used, each seen in 2.60 (and checked by the tests):
`ASGIAppReplicaWrapper` (is this class an ASGI app?), `_serve_request_context` (the multiplexed
model id of a replayed call) and `RAY_SERVE_RUN_SYNC_IN_THREADPOOL` (where sync handlers run).
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import inspect
import json
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, cast

import anyio.to_thread
from ray import serve
from ray.serve import context as serve_context
from ray.serve._private import constants as serve_constants
from ray.serve._private.http_util import ASGIAppReplicaWrapper
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response

from serve_warm.errors import InputError, ServeWarmError
from serve_warm.inputs import Input, suggest_input
from serve_warm.report import CompileEvent

LARGEST_BATCH = 32
"""Batches that are looked at outside Serve, where nothing limits them."""


class CompileForbidden(DeploymentUnavailableError):
    """A request would compile, and `after_ready: forbid` is set. Serve answers HTTP 503."""

    def __init__(self, event: CompileEvent) -> None:
        Exception.__init__(self, event)
        self.event = event

    @property
    def message(self) -> str:
        """What Serve puts into the answer: no request data, so no signature of values.

        The log and the report have the signature.
        """
        return (
            f"this replica compiles nothing after it is ready, and {self.event.function} would "
            "compile for this request"
        )

    def __str__(self) -> str:
        return self.message


class ServeCalls:
    """Calls of one object of the user's, by the declared inputs."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    async def warmup_inputs(self) -> Any:
        """Return what the user declared.

        Raises:
            InputError: the user's `warmup_inputs` raised; the text names what.
        """

        async def declare() -> Any:
            declared = self.owner.warmup_inputs()
            return await declared if inspect.isawaitable(declared) else declared

        # A task, whose exception is a value: whatever user code raises is named, none swallowed.
        task = asyncio.ensure_future(declare())
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()  # late; nothing, when it is done
        error = task.exception()
        if error is not None and not isinstance(error, ServeWarmError):
            raise InputError(
                f"{type(self.owner).__name__}.warmup_inputs() raised "
                f"{type(error).__name__}: {error}",
                hint="correct it: the replica runs it after __init__, before it is ready",
            ) from error
        return task.result()

    def check(self, inputs: Sequence[Input]) -> None:
        """Raise `InputError` for an input that traffic cannot be: its target, or its batch."""
        limit = max_ongoing_requests()
        for item in inputs:
            if limit is not None and item.concurrency > limit:
                raise InputError(
                    f"input {item.name!r} makes {item.concurrency} calls at once, and Serve gives "
                    f"this replica {limit} at most (max_ongoing_requests): traffic never forms a "
                    f"batch of {item.concurrency}",
                    hint=f"set max_ongoing_requests to {item.concurrency} or more, or declare a "
                    f"concurrency of {limit} at most",
                )
            if item.http is None:
                self._method(item)
            elif not callable(self.owner):
                raise InputError(
                    f"input {item.name!r} is an HTTP request, and {type(self.owner).__name__} "
                    "answers none",
                    hint="name a method as its target, or define __call__ or @serve.ingress",
                )

    def _method(self, item: Input) -> Callable[..., Any]:
        if callable(item.target):
            return item.target
        method: Any = getattr(self.owner, item.target, None)
        if not callable(method):
            names = sorted(
                name
                for name in dir(type(self.owner))
                if not name.startswith("_") and callable(getattr(type(self.owner), name))
            )
            raise InputError(
                f"input {item.name!r} names the target {item.target!r}, and "
                f"{type(self.owner).__name__} has no such method",
                hint="its methods are " + ", ".join(names),
            )
        return cast("Callable[..., Any]", method)

    async def call(self, item: Input) -> None:
        """Call what an input names, as often at a time as it says."""
        results = await asyncio.gather(
            *(self._call_once(item) for _ in range(item.concurrency)), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _call_once(self, item: Input) -> None:
        # Every call has a context of its own, as every request has: gather wraps it in a task.
        if item.model_id:
            current = serve_context._get_serve_request_context()  # noqa: SLF001
            # Declared as holding None only.
            variable: contextvars.ContextVar[Any] = serve_context._serve_request_context  # noqa: SLF001
            variable.set(dataclasses.replace(current, multiplexed_model_id=item.model_id))
        if item.http is not None:
            await self._call_http(item, *item.http)
            return
        method = self._method(item)
        await consume(await call_like_serve(method, method, item.args, dict(item.kwargs)))

    async def _call_http(self, item: Input, verb: str, path: str) -> None:
        exchange = Exchange(item, verb, path)
        if isinstance(self.owner, ASGIAppReplicaWrapper):
            context = replica_context()
            if context is not None and context.servable_object is None:
                raise InputError(
                    f"input {item.name!r} is a route, and the app is not up inside __init__",
                    hint="leave warm-up to the hook, which runs after the app's lifespan start",
                )
            await self.owner(exchange.scope, exchange.receive, exchange.send)
        else:
            handler = self.owner.__call__
            takes_request = len(inspect.signature(handler).parameters) > 0
            request = Request(exchange.scope, exchange.receive, exchange.send)
            result = await call_like_serve(
                handler, handler, (request,) if takes_request else (), {}
            )
            if isinstance(result, Response):
                await result(exchange.scope, exchange.receive, exchange.send)
            else:
                await consume(result)
        exchange.raise_for_status()

    def waits_for(self) -> Sequence[str]:
        """Return the names of the deployments that this one calls."""
        handles = [v for v in vars(self.owner).values() if isinstance(v, DeploymentHandle)]
        return sorted({handle.deployment_name for handle in handles})

    def suggest(self, event: CompileEvent, declared: Sequence[Input]) -> str:
        """Return the `Input(...)` to declare for a compile of the request under way."""
        request = serve_context._get_serve_request_context()  # noqa: SLF001
        return suggest_input(
            declared,
            function=event.function,
            signature=event.signature,
            # Ray 2.53 to 2.60; of a handle's call it is empty.
            route=request.route if request.is_http_request else "",
            largest=self.largest_batch(),
        )

    def largest_batch(self) -> int:
        """Return how many requests one batch of traffic can have; 1 without `@serve.batch`."""
        declared = max_batch_size(type(self.owner))
        return max(1, min(declared, max_ongoing_requests() or LARGEST_BATCH))


def max_batch_size(kind: type) -> int:
    """Return the largest `max_batch_size` of the class's `@serve.batch` methods; 1 without any."""
    methods = (inspect.getattr_static(kind, name, None) for name in dir(kind))
    # Serve marks what it batches with this getter alone (2.53 to 2.60).
    getters = [m._get_max_batch_size for m in methods if hasattr(m, "_get_max_batch_size")]  # noqa: SLF001
    sizes: list[int] = [
        get()
        for get in getters
        # Where the user measures a batch in something else, its number of requests is open.
        if getattr(getattr(get, "__self__", None), "batch_size_fn", None) is None
    ]
    return max(sizes, default=1)


def max_ongoing_requests() -> int | None:
    """Return how many requests Serve gives this replica at a time; `None` outside Serve."""
    config = getattr(replica_context(), "_deployment_config", None)
    limit = getattr(config, "max_ongoing_requests", None)
    return limit if isinstance(limit, int) else None


def replica_context() -> Any:
    """Return Serve's replica context, or `None` outside Serve and in its local testing mode."""
    try:
        return serve.get_replica_context()
    except RayServeException:
        return None


async def call_like_serve(
    written: Callable[..., Any],
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a method of the user where Serve would: on this loop, or in a worker thread.

    Serve's rule (`UserCallableWrapper._call_func_or_gen`): what is neither a coroutine function
    nor an async generator function runs in an anyio worker thread, generators to their end.
    """
    is_sync = (inspect.isfunction(written) or inspect.ismethod(written)) and not (
        inspect.iscoroutinefunction(written) or inspect.isasyncgenfunction(written)
    )
    # False until Ray 2.57, true since.
    threaded = getattr(serve_constants, "RAY_SERVE_RUN_SYNC_IN_THREADPOOL", False)
    if not (is_sync and threaded):
        result = call(*args, **kwargs)
        return await result if inspect.iscoroutine(result) else result

    def run() -> Any:
        result = call(*args, **kwargs)
        if inspect.isgenerator(result):
            for _ in result:
                pass
            return None
        return result

    return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)


async def consume(result: Any) -> None:
    """Run a generator's body to its end: until then nothing in it has been called."""
    if inspect.isasyncgen(result):
        async for _ in result:
            pass
    elif inspect.isgenerator(result):
        for _ in result:
            pass


class Exchange:
    """One HTTP request to an ASGI app in this process, and what the app answered."""

    def __init__(self, item: Input, verb: str, path: str) -> None:
        body = item.body if item.json is None else json.dumps(item.json).encode()
        headers = {"host": "serve-warm", "content-length": str(len(body))}
        if item.json is not None:
            headers["content-type"] = "application/json"
        headers |= {name.lower(): value for name, value in item.headers.items()}
        plain, _, query = path.partition("?")
        self._name = item.name
        self._body = body
        self._sent = False
        self._done = asyncio.Event()
        self._status = 0
        self._answer = b""
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": verb,
            "scheme": "http",
            "path": plain,
            "raw_path": plain.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 0),
            "server": ("serve-warm", 80),
        }

    async def receive(self) -> MutableMapping[str, Any]:
        """Give the app its request, then the end of the connection: ASGI's `receive`."""
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        # A client that stays: a streaming answer listens for its leaving.
        await self._done.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Take a message of the app's: ASGI's `send`."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif message["type"] == "http.response.body":
            self._answer = (self._answer + message.get("body", b""))[:500]
            if not message.get("more_body"):
                self._done.set()

    def raise_for_status(self) -> None:
        """Raise `InputError` for an answer that traffic would call a failure."""
        bad_request = 400
        if self._status >= bad_request:
            text = self._answer.decode(errors="replace")
            raise InputError(
                f"the request of input {self._name!r} was answered {self._status}: {text}",
                hint="correct its path, json or headers in warmup_inputs()",
            )
