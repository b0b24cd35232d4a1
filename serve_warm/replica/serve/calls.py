# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Calls to the user's object (methods, routes, generators), made as Ray Serve makes them."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from types import FunctionType
from typing import Any, cast

import anyio.to_thread
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response

from serve_warm._redaction import excerpt
from serve_warm.compiler.compiled_objects import ANY_METHOD
from serve_warm.errors import InputError, ServeWarmError, did_you_mean
from serve_warm.inputs import Input, suggest_input
from serve_warm.private_apis import ray_serve
from serve_warm.report import CompileEvent

KEPT_BYTES = 1 << 16
"""Maximum number of bytes to keep of an HTTP error response. Fewer bytes are shown, but all kept
bytes are redacted before the text is cut for display."""


IN_PATHS = "/%:@!$&'()*+,;=~"
"""Characters that a path may have as they are."""


class CompileForbidden(DeploymentUnavailableError):
    """A request would trigger a compile, but `after_ready: forbid` is set.

    Serve answers HTTP 503.
    """

    def __init__(self, event: CompileEvent) -> None:
        Exception.__init__(self, event)
        self.event = event

    @property
    def message(self) -> str:
        """The text of Serve's answer.

        The text contains no data from the request. Only the log and the report show the signature
        of the arguments.
        """
        return (
            "this replica must not compile after it is ready, but this request would make "
            f"{self.event.function} compile"
        )

    def __str__(self) -> str:
        return self.message


class EagerOutOfMemory(DeploymentUnavailableError):
    """A call without compiled code ran out of GPU memory, or would, with a policy of `eager`.

    Serve answers HTTP 503.
    """

    def __init__(self, function: str, seconds: float) -> None:
        Exception.__init__(self, function, seconds)
        self.function = function
        self.seconds = seconds

    @property
    def message(self) -> str:
        """The text of Serve's answer."""
        wait = f"; such calls are refused for {self.seconds:.0f} s" if self.seconds else ""
        return (
            f"this replica has no compiled code for this call of {self.function}, and its "
            f"uncompiled code ran out of GPU memory{wait}"
        )

    def __str__(self) -> str:
        return self.message


class ServeCalls:
    """Makes the calls that declared inputs describe, on one user object."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.called_methods: set[str] = set()

    async def warmup_inputs(self) -> Any:
        """Return the user's declared inputs, or None if the class of a wrapped app has none.

        Raises:
            InputError: the user's `warmup_inputs` raised an exception, which the error text names.
        """
        if self.owner.warmup_inputs is None:
            return None

        async def declare() -> Any:
            declared = self.owner.warmup_inputs()
            return await declared if inspect.isawaitable(declared) else declared

        # A task returns the exception as a value, so every error of user code can be reported.
        task = asyncio.ensure_future(declare())
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()  # when late; has no effect on a finished task
        error = task.exception()
        if error is not None and not isinstance(error, ServeWarmError):
            raise InputError(
                f"{type(self.owner).__name__}.warmup_inputs() raised "
                f"{type(error).__name__}: {error}",
                hint="fix this method: the replica calls it after __init__, before READY",
            ) from error
        return task.result()

    def check(self, inputs: Sequence[Input]) -> None:
        """Raise `InputError` for an input whose target or batch size cannot occur in traffic."""
        limit = ray_serve.max_ongoing_requests()
        for item in inputs:
            if limit is not None and item.concurrency > limit:
                raise InputError(
                    f"input {item.name!r} makes {item.concurrency} calls at once, but Serve sends "
                    f"this replica at most {limit} (max_ongoing_requests): traffic never forms a "
                    f"batch of {item.concurrency}",
                    hint=f"set max_ongoing_requests to {item.concurrency} or more, or declare a "
                    f"concurrency of at most {limit}",
                )
            if item.http is None:
                self._method(item)
            elif not callable(self.owner):
                raise InputError(
                    f"input {item.name!r} is an HTTP request, but {type(self.owner).__name__} "
                    "does not answer HTTP",
                    hint="set a method as the target of this input, or define __call__ or "
                    "@serve.ingress",
                )

    def _method(self, item: Input) -> Callable[..., Any]:
        if callable(item.target):
            return item.target
        method: Any = getattr(self.owner, item.target, None)
        if not callable(method):
            raise InputError(
                f"input {item.name!r} has the target {item.target!r}, but "
                f"{type(self.owner).__name__} has no such method",
                hint=suggest_target(type(self.owner), item.target),
            )
        return cast("Callable[..., Any]", method)

    async def call(self, item: Input) -> None:
        """Call the target of an input. Make as many concurrent calls as the input declares."""
        results = await asyncio.gather(
            *(self._call_once(item) for _ in range(item.concurrency)), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _call_once(self, item: Input) -> None:
        # Like each request, each call has a separate context: gather wraps the call in a task.
        if item.model_id:
            ray_serve.set_model_id(item.model_id)
        if item.http is not None:
            await self._call_http(item, *item.http)
            return
        method = self._method(item)
        self.called_methods.add(item.target_name)
        await consume(await call_like_serve(method, method, item.args, dict(item.kwargs)))

    async def _call_http(self, item: Input, verb: str, path: str) -> None:
        exchange = Exchange(item, verb, path)
        if ray_serve.is_asgi_app(type(self.owner)):
            context = ray_serve.replica_context()
            if context is not None and context.servable_object is None:
                raise InputError(
                    f"input {item.name!r} is an HTTP route, which cannot be called during "
                    "__init__: the app starts only after __init__",
                    hint=(
                        "do not start the warm-up in __init__: serve_warm warms up after the app's "
                        "lifespan startup"
                    ),
                )
            try:
                await self.owner(exchange.scope, exchange.receive, exchange.send)
            finally:
                # Starlette's router adds the function of the route, unless a middleware passed a
                # copy of the scope.
                endpoint = exchange.scope.get("endpoint")
                name = endpoint.__name__ if isinstance(endpoint, FunctionType) else ANY_METHOD
                self.called_methods.add(name)
        else:
            self.called_methods.add("__call__")
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
        """Return the names of the deployments that this deployment has handles to."""
        return sorted({handle.deployment_name for handle in self._handles()})

    def list_absent(self) -> Sequence[str]:
        """Return the names of deployments that were called but have not had a replica yet."""
        # A handle gets its router on the first call; 2.53 to 2.60 have both properties.
        absent = (
            handle.deployment_name
            for handle in self._handles()
            if handle.is_initialized and not handle.running_replicas_populated()
        )
        return sorted(set(absent))

    def _handles(self) -> list[DeploymentHandle[Any]]:
        return [v for v in vars(self.owner).values() if isinstance(v, DeploymentHandle)]

    def suggest(self, event: CompileEvent, declared: Sequence[Input]) -> str:
        """Return the `Input(...)` that would have prevented a compile in the current request."""
        request = ray_serve.current_request()
        return suggest_input(
            declared,
            function=event.function,
            signature=event.signature,
            # 2.53 to 2.60; empty if the request came through a handle
            route=request.route if request.is_http_request else "",
            largest=self.largest_batch(),
            is_multiplexed=bool(request.multiplexed_model_id),
        )

    def largest_batch(self) -> int:
        """Return the largest number of requests in one batch; 1 without `@serve.batch`."""
        owner, kind = self.owner, type(self.owner)
        kinds = {kind, *map(type, vars(owner).values() if hasattr(owner, "__dict__") else ())}
        functions = [*vars(sys.modules.get(kind.__module__, sys)).values()]
        for each in kinds:
            functions += _members_of(each)
        # Ray runs batches only in Serve, which limits the requests.
        most = ray_serve.max_ongoing_requests() or 1
        sizes = _batch_sizes(functions)
        return max((most if size is None else min(size, most) for size in sizes), default=1)


def max_batch_size(kind: type) -> int:
    """Return the largest `max_batch_size` of a class's `@serve.batch` methods; 1 if it has none."""
    sizes = _batch_sizes(_members_of(kind))
    return max((size for size in sizes if size is not None), default=1)


def _members_of(kind: type) -> list[Any]:
    """Return what a class defines or inherits, without asking it."""
    members = {name: each for base in reversed(kind.__mro__) for name, each in vars(base).items()}
    return [*members.values()]


def _batch_sizes(functions: Iterable[Any]) -> Iterator[int | None]:
    """Yield the size of each batched function.

    The size is `None` if the user measures a batch in other units than requests.
    """
    for function in functions:
        found = ray_serve.batch_size_of(function)
        if found is not None:
            size, is_counted = found
            yield size if is_counted else None


def suggest_target(cls: type, wrong: str) -> str:
    """Return a hint for a method name that a class does not have.

    The hint suggests a similar method or lists all methods. The hint can name `__call__` and the
    user's own methods, but no methods of WarmupMixin.
    """
    methods = list_targets(cls)
    return did_you_mean(wrong, methods) or f"its methods: {', '.join(methods) or 'none'}"


def list_targets(cls: type) -> list[str]:
    """Return the methods that a client can call: `__call__`, and the user's own methods."""
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for base in cls.__mro__[:-1]:
        names[base.__module__.partition(".")[0] == "serve_warm"].update(vars(base))
    return sorted(
        name
        for name in names[False] - names[True]
        if (name == "__call__" or not name.startswith("_")) and callable(getattr(cls, name))
    )


async def call_like_serve(
    written: Callable[..., Any],
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a user's method where Serve would call it: on this loop, or in a worker thread.

    Serve's rule (`UserCallableWrapper._call_func_or_gen`): a function that is neither a coroutine
    function nor an async generator function runs in an anyio worker thread. A generator runs to its
    end in that thread.
    """
    is_sync = (inspect.isfunction(written) or inspect.ismethod(written)) and not (
        inspect.iscoroutinefunction(written) or inspect.isasyncgenfunction(written)
    )
    # Only from Ray 2.57 on.
    if not (is_sync and ray_serve.runs_sync_in_threads()):
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
    """Run a generator to its end, because calling a generator function does not run its body."""
    if inspect.isasyncgen(result):
        async for _ in result:
            pass
    elif inspect.isgenerator(result):
        for _ in result:
            pass


class Exchange:
    """One HTTP request to an ASGI app in this process, and the app's answer."""

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
            "path": urllib.parse.unquote(plain),
            "raw_path": urllib.parse.quote(plain, safe=IN_PATHS).encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 0),
            "server": ("serve-warm", 80),
        }

    async def receive(self) -> MutableMapping[str, Any]:
        """Return the request first, and then a disconnect message (ASGI's `receive`)."""
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        # The client stays connected until the answer ends, because a streaming answer watches for a
        # disconnect.
        await self._done.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Receive a message from the app (ASGI's `send`)."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif message["type"] == "http.response.body":
            self._answer = (self._answer + message.get("body", b""))[:KEPT_BYTES]
            if not message.get("more_body"):
                self._done.set()

    def raise_for_status(self) -> None:
        """Raise `InputError` if the answer is an HTTP error (status 400 or higher)."""
        bad_request = 400
        if self._status >= bad_request:
            text = self._answer.decode(errors="replace")
            raise InputError(
                f"the request for input {self._name!r} was answered with {self._status}: "
                f"{excerpt(text, 500)}",
                hint="fix the path, json or headers of this input in warmup_inputs()",
            )
