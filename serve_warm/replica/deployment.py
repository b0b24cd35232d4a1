# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The hook into Ray Serve: the mixin, the decorator, the replayed calls and the model thread.

Serve calls `reconfigure(user_config, rank)` of a replica after `__init__`, lifespan and
`servable_object`, before the first health check and before any router knows of the replica, and
waits for it without a limit. That is where a warm-up belongs. It is called even without a
`user_config` because the hook names `rank`. The hook is an attribute of the *instance*: the
class keeps the user's own `reconfigure`, its `super()` calls and its place in the order of bases.

Private names of Ray Serve that are used, each seen in 2.60 (and checked by the tests):
`ReplicaContext._deployment_config` (the user_config before `reconfigure` has it),
`ASGIAppReplicaWrapper` (is this class an ASGI app?), `_serve_request_context` (the multiplexed
model id of a replayed call) and `RAY_SERVE_RUN_SYNC_IN_THREADPOOL` (where sync handlers run).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import functools
import inspect
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio.to_thread
import ray
from ray import serve
from ray.serve import context as serve_context
from ray.serve._private import constants as serve_constants
from ray.serve._private.http_util import ASGIAppReplicaWrapper
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response

from serve_warm import __version__, metrics, node
from serve_warm._private_folders import user_folder
from serve_warm._public_names import public
from serve_warm.compiler.background_import import is_imported
from serve_warm.compiler.caches import keep_headers_private, private_directory
from serve_warm.compiler.compiled_objects import uses_cuda_graphs
from serve_warm.compiler.cpu_target import pin_portable_cpu
from serve_warm.compiler.cuda_graphs import clone_outputs
from serve_warm.compiler.watch import unwatched_compiles
from serve_warm.config import WarmupConfig, image_created_unix, point_torch_caches_at, resolve
from serve_warm.errors import ConfigError, InputError, ServeWarmError, WarmupFailed
from serve_warm.fingerprint import read_rank
from serve_warm.inputs import Input
from serve_warm.replica.prefetch import Prefetch
from serve_warm.replica.warmup import Warmup
from serve_warm.report import CompileEvent, Report, Stage, Verdict
from serve_warm.trust.policy import Trust

if TYPE_CHECKING:
    from serve_warm.precompile.entry_checks import Checks

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Class = TypeVar("Class", bound=type)

ATTRIBUTE = "_serve_warm"
"""Where an instance keeps its `_Replica`."""

STATE_PERIOD_S = 0.2
"""State files are written at most this often while inputs are replayed."""

END_LIMIT_S = 0.5
"""How long the end of a blocked process waits for its state file."""

WARMED: dict[str, str] = {}
"""Class of the object that a replica of this process warms up, by the replica: one of each."""


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


@public
class WarmupMixin:
    """Makes a Serve deployment ready only when it is proven warm.

    Put it among the bases of the class that `@serve.deployment` decorates and declare inputs:

        @serve.deployment(ray_actor_options={"num_cpus": 1})
        class TextEmbedder(WarmupMixin):
            buckets = Buckets(batch=[1, 8], length=[16, 64, 128])

            def __init__(self):
                self.model = torch.compile(load_model(), dynamic=False)

            def warmup_inputs(self):
                return shape_grid(self.embed, self.buckets)

    It defines no `__init__`, `__call__` or `check_health`, because each of them changes what
    Serve does with the class.
    """

    warmup_config: WarmupConfig = WarmupConfig()
    """Settings in code; the environment and `user_config.warmup` are laid over them."""

    warmup_trust: Trust | None = None
    """Who may sign artifacts; `None` reads the machine's trust files."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the instance with the hook on it.

        Torch's caches are private from here on, and an artifact that is configured is on its way.
        """
        return _hooked(super().__new__, cls, args, kwargs)

    def warmup_inputs(self) -> Sequence[Input] | Input:
        """Return what to replay. May be `async def`; it runs once, after `__init__`."""
        raise InputError(
            f"{type(self).__name__} declares no inputs",
            hint="define warmup_inputs(self), for example: "
            "return shape_grid(self.embed, self.buckets)",
        )

    async def warm_up(self) -> dict[str, Any]:
        """Warm up now, or join the warm-up under way, or return at once when it is done.

        Returns the report as plain data. Anyone may await it, from any loop. In Serve the stage is
        READY only when Serve has come to its own hook, after `__init__`: awaited inside one this
        returns with the proof, in stage PROVING. What `__init__` does after it is not proven.

        Raises:
            WarmupFailed: the replica must not become ready.
            ConfigError: inputs, trust files or settings cannot be used.
        """
        return (await _of(self).warm_up()).to_json()

    def warmup_report(self) -> dict[str, Any]:
        """Return the report of this start until now, compiles in traffic included."""
        return _of(self).report().to_json()

    def warmup_requests(self) -> list[Input]:
        """Return the inputs as data: targets by name, largest first, to be sent by a client."""
        return _of(self).requests()

    async def warmup_artifact(self) -> dict[str, Any]:
        """Return this replica's caches as the raw parts of an artifact, for `serve-warm build`.

        Once per replica: torch's bytes of a second save cannot be loaded completely.
        """
        return await _of(self).artifact()

    async def on_model_thread(self, fn: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Call `fn` on the replica's one model thread and return what it returns.

        The thread lives as long as the replica, so whatever torch keeps per thread (CUDA
        graphs, grad mode, autocast) is found again by the next call; and calls do not race in
        Dynamo's lookup, because there is one at a time. Costs about 0.1 ms. Outputs are cloned
        where CUDA graphs own them: the next call would overwrite them.

        `torch.inference_mode()` and the like are the thread's: set them inside `fn`, not around
        the `await`, where the model's thread does not see them.
        """
        return await _of(self).on_model_thread(fn, args, kwargs)


@public
def warmup(cls: Class | None = None, *, trust: Trust | None = None, **settings: Any) -> Any:
    """Add `WarmupMixin` to a class whose bases cannot be changed.

    It goes *below* `@serve.deployment` and `@serve.ingress`. Settings are the fields of
    `WarmupConfig`.

        @serve.deployment
        @warmup(artifact="./artifacts")
        class TextEmbedder(SomeoneElsesBase): ...

    Raises:
        ConfigError: it stands above `@serve.deployment`, or a setting is unknown.
    """

    def decorate(cls: Class) -> Class:
        if isinstance(cls, serve.Deployment):
            raise ConfigError(
                f"@warmup got the deployment {cls.name!r}, not a class",
                hint="put @warmup below @serve.deployment",
            )
        if not inspect.isclass(cls):
            raise ConfigError(
                f"@warmup got {type(cls).__name__} {getattr(cls, '__name__', '')!r}, not a class",
                hint="a function deployment has no state to warm up: make it a class",
            )
        if issubclass(cls, ASGIAppReplicaWrapper):
            raise ConfigError(
                f"@warmup got {cls.__name__!r} after @serve.ingress",
                hint="put @warmup below @serve.ingress",
            )
        # What the class says itself stays where the decorator says nothing.
        config = resolve(
            getattr(cls, "warmup_config", WarmupConfig()),
            user_config={"warmup": settings},
            environ={},
        )

        def new(derived: type, *args: Any, **kwargs: Any) -> Any:
            # In the class itself, before the one of `cls`, which may call no super().
            return _hooked(super(decorated, derived).__new__, derived, args, kwargs)

        # Module, qualified name and doc stay those of the class that was written: routes of a
        # FastAPI app are found by the qualified name.
        body = {
            "__new__": new,
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            "warmup_config": config,
            "warmup_trust": getattr(cls, "warmup_trust", None) if trust is None else trust,
        }
        decorated: Any = type(cls.__name__, (cls, WarmupMixin), body)
        return cast("Class", decorated)

    return decorate if cls is None else decorate(cls)


def _hooked(
    new: Callable[..., Any], cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Make an instance by `new` and put the hook on it, once."""
    # object's own takes no arguments where a class has an __init__ that does.
    instance = new(cls) if new is object.__new__ else new(cls, *args, **kwargs)
    if ATTRIBUTE not in instance.__dict__:
        replica = _Replica(instance)
        instance.__dict__[ATTRIBUTE] = replica
        instance.__dict__["reconfigure"] = _Hook(replica)
    return instance


def _of(instance: Any) -> _Replica:
    replica: _Replica = instance.__dict__[ATTRIBUTE]
    return replica


class _Hook:
    """What Serve finds as `reconfigure` of an instance.

    An object, because Serve runs a plain function in a worker thread, and a coroutine function
    would be wrong for the user's own calls: `self.reconfigure(config)` in `__init__` has to run
    what the class defines, at once. Only Serve's calls name `rank` and no other keyword.
    """

    __signature__ = inspect.Signature(
        [
            inspect.Parameter("user_config", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter("rank", inspect.Parameter.KEYWORD_ONLY, default=None),
        ]
    )

    def __init__(self, replica: _Replica) -> None:
        self._replica = replica

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and kwargs.keys() == {"rank"}:
            return self._replica.reconfigure(*args, **kwargs)
        owner = self._replica.owner
        return type(owner).reconfigure(owner, *args, **kwargs)


class _Replica:
    """What a warm-up needs of a deployment, for one instance of the user's class."""

    def __init__(self, owner: Any) -> None:
        created_boot_s = node.boot_s()
        self.owner = owner
        context = _context()
        self.in_serve = context is not None
        self.application = context.app_name if context else ""
        self.deployment = context.deployment if context else type(owner).__name__
        self.replica = context.replica_tag if context else ""
        self._known = Report(
            application=self.application,
            deployment=self.deployment,
            replica=self.replica,
            created_boot_s=created_boot_s,
        )
        self._task: asyncio.Task[None] | None = None
        self._warmup: Warmup | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._model_thread_id = 0
        self._own_outputs = False
        self._asked_with_compiler = False
        self._lock = threading.Lock()
        self._packed = False
        self.unwatched_compiles_before = unwatched_compiles()
        # Serve's replica context has the user_config before `__init__` runs: torch's caches can
        # be pointed at a private directory before user code reads the variables.
        declared = getattr(getattr(context, "_deployment_config", None), "user_config", None)
        self._config = resolve(owner.warmup_config, user_config=declared)
        self._cache_directory: Path | None = None
        self._prefetch: Prefetch | None = None
        self._served_unwarmed: tuple[float, float] | None = None
        """When it became ready without a warm-up, of CLOCK_BOOTTIME and since the epoch."""
        self._last_told = ((Stage.PENDING, Verdict.OFF), 0.0)
        self._heartbeat: node.Heartbeat | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that Serve calls the user's code on."""
        self._loop_ran_s: float | None = None
        self._sink: metrics.RaySink | None = None
        if self.in_serve:
            _claim(self.replica, type(owner).__name__)
            _log_through_serve()
            self._known = dataclasses.replace(self._known, image_created_unix=image_created_unix())
            # Before `__init__`, which may take minutes: this node has a replica that is not ready.
            self._beat()
            if self._config.enabled:
                self._cache_directory = private_directory()
                point_torch_caches_at(self._cache_directory)
                # User code may compile in `__init__`, whatever it is told.
                keep_headers_private()
                if self._config.cpu == "portable":
                    pin_portable_cpu()
                if self._config.artifact is not None and self._config.overlap == "on":
                    gang = _gang()
                    self._prefetch = Prefetch(
                        self._config,
                        deployment=self.deployment,
                        trust=self.trust(),
                        # As a rule its process group has the same order.
                        rank=None if gang is None else (gang.rank, gang.world_size),
                    )
                    self._prefetch.begin()

    # The hook --------------------------------------------------------------------------------

    async def reconfigure(self, user_config: Any, *, rank: Any) -> None:
        """Do what Serve would have done with the user's own `reconfigure`, then warm up once."""
        self._configure(user_config)
        if isinstance(user_config, dict) and "warmup" in user_config:
            # What is left of a user_config that had only our key is none: the user's method
            # was not called before the key was added, and is not now.
            rest = {key: value for key, value in user_config.items() if key != "warmup"}
            user_config = rest or None
        await self._users_reconfigure(user_config, rank)
        if self.in_serve:
            await self.warm_up()
            self._loop, self._loop_ran_s = asyncio.get_running_loop(), node.boot_s()
            self._become_ready()

    def _become_ready(self) -> None:
        # In Serve by the hook alone. Whoever awaits `warm_up()` before it, as an async `__init__`
        # may, gets a proof; nobody is told that the replica serves before Serve has come this far.
        if self._warmup is not None:
            self._warmup.become_ready()
            self._check_when_idle(self._warmup.journal.checks)
        elif self._served_unwarmed is None:
            self._served_unwarmed = (node.boot_s(), time.time())
            if self._heartbeat is not None:
                self._heartbeat.changed()

    def _check_when_idle(self, checks: Checks | None) -> None:
        if checks is not None and self._loop is not None:
            from serve_warm.precompile.entry_checks import (
                IdleChecks,  # imports torch, as the model has by now
            )

            IdleChecks(
                checks,
                self._loop,
                model_thread=lambda: (self._executor, self._model_thread_id),
            ).begin()

    def _configure(self, user_config: Any) -> None:
        if self._warmup is None:
            self._config = resolve(self.owner.warmup_config, user_config=user_config)
            self._beat()
            return
        # A light update of a replica that serves: it is not warmed up again, and a mistake in
        # it is no reason to stop serving.
        try:
            later = resolve(self.owner.warmup_config, user_config=user_config)
        except ConfigError as error:
            logger.error("user_config.warmup is ignored: %s", error)  # noqa: TRY400
            return
        old, new = self._config.model_dump(), later.model_dump()
        changed = [name for name in new if new[name] != old[name]]
        if changed:
            logger.warning("takes effect at the next start of a replica: %s", ", ".join(changed))

    async def _users_reconfigure(self, user_config: Any, rank: Any) -> None:
        method = getattr(type(self.owner), "reconfigure", None)
        if method is None:
            if user_config is not None:
                found = sorted(user_config) if isinstance(user_config, dict) else user_config
                raise RayServeException(
                    f"user_config has {found!r}, and deployment {self.deployment} has no "
                    "reconfigure method"
                )
            return
        bound = functools.partial(method, self.owner)
        takes_rank = "rank" in inspect.signature(method).parameters
        if user_config is None and not takes_rank:
            return
        arguments = {"rank": rank} if takes_rank else {}
        await _call_like_serve(method, bound, (user_config,), arguments)

    async def warm_up(self) -> Report:
        if not self._config.enabled:
            if self._prefetch is not None:
                self._prefetch.drop()  # it was enabled when the class was instantiated
            if not self.in_serve:
                self._become_ready()
            return self.report()
        with self._lock:
            if self._task is None:
                # One task that anybody can join, never a flag: a second call of Serve after a
                # restart of its controller must wait, not pass.
                self._task = asyncio.get_running_loop().create_task(self._run())
        task = self._task
        if task.done():
            task.result()
        elif task.get_loop() is asyncio.get_running_loop():
            await asyncio.shield(task)
        else:
            await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(_join(task), task.get_loop())
            )
        return self.report()

    async def _run(self) -> None:
        config = self._config
        # A gang without a process group computes nothing together.
        if config.ranks == "gang" and _gang() is not None and read_rank() is not None:
            config = config.model_copy(update={"ranks": "together"})
        warmup = Warmup(
            self,
            config,
            cache_directory=self._cache_directory,
            prefetched=self._prefetch,
            known=dataclasses.replace(self._known, versions=_versions()),
            end_process=self._end_process if self.in_serve else None,
        )
        self._warmup = warmup
        if not self.in_serve:
            await warmup.run()
            return
        self._sink = metrics.RaySink(warmup.report)
        warmup.observe([self._told])
        await warmup.prove()

    def _end_process(self) -> None:
        """End this process, whose event loop is blocked; Serve starts another replica.

        Called from a thread. `sys.exit` would end that thread alone, an exception cannot be raised
        in the blocked one, and Ray's own ways to end an actor wait for its event loop.
        """
        if self._heartbeat is not None:
            self._heartbeat.flush(END_LIMIT_S)  # the reason, for whoever asks why
        _flush_logs()
        os._exit(1)

    def _beat(self) -> None:
        """Have a state file where the configuration wants it, and no other."""
        if not self.in_serve:
            return
        directory = Path(self._config.state_dir or user_folder("state"))
        if self._heartbeat is not None:
            if self._heartbeat.directory == directory:
                return
            self._heartbeat.stop()
        self._heartbeat = node.Heartbeat(
            directory,
            application=self.application,
            deployment=self.deployment,
            replica=self.replica,
            facts=self._facts,
            began_s=self._known.created_boot_s,
        )

    def _told(self, report: Report) -> None:
        """Have a new stage written and exported at once, and progress in one not too often.

        File and metrics have a thread each, which goes on by itself every few seconds: that is all
        that metrics have of progress.
        """
        now = time.monotonic()
        entered = (report.stage, report.verdict) != self._last_told[0]
        if not entered and now - self._last_told[1] < STATE_PERIOD_S:
            return
        self._last_told = ((report.stage, report.verdict), now)
        if self._heartbeat is not None:
            self._heartbeat.changed()
        if self._sink is not None and entered:
            self._sink.changed()

    def _loop_last_ran_s(self) -> float | None:
        """Return when the loop that serves requests last ran, and ask it to run again.

        Serve asks nothing of it for minutes unless the user has a `check_health`, so that a handler
        that blocks it looks healthy there.
        """
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed: the process is about to end
                self._loop.call_soon_threadsafe(self._loop_ran)
        return self._loop_ran_s

    def _loop_ran(self) -> None:
        self._loop_ran_s = node.boot_s()

    def _facts(self) -> dict[str, Any]:
        """Return what the state file says, as of now; called by its own thread."""
        report = self.report()
        return {
            "stage": report.stage.value,
            "loop_boot_s": self._loop_last_ran_s(),
            "verdict": report.verdict.value,
            "degraded": list(report.degraded),
            "inputs_expected": report.covered.expected,
            "inputs_done": report.inputs_done,
            "passes": report.passes,
            "statement": report.artifact.statement if report.artifact else "",
            "event": str(report.events[-1]) if report.events else "",
            "error": report.error,
            "elapsed_s": report.elapsed_s,
            "stage_seconds": report.stage_seconds,
            "metrics": metrics.as_data(report),
        }

    def report(self) -> Report:
        """Return the report until now; an empty one before warm-up began, or without one."""
        if self._warmup is not None:
            return self._warmup.report()
        config = self._config
        ready_boot_s, ready_unix = self._served_unwarmed or (node.boot_s(), None)
        return dataclasses.replace(
            self._known,
            stage=Stage.READY if self._served_unwarmed else Stage.PENDING,
            elapsed_s=max(0.0, ready_boot_s - self._known.created_boot_s),
            ready_unix=ready_unix,
            deadline_s=config.deadline_s,
            artifact_configured=config.enabled and config.artifact is not None,
            versions=_versions() if self.in_serve else {},
        )

    def requests(self) -> list[Input]:
        """Return the replayed inputs with the names of their targets in place of methods."""
        inputs = self._warmup.journal.inputs if self._warmup is not None else ()
        return [dataclasses.replace(item, target=item.target_name) for item in inputs]

    async def artifact(self) -> dict[str, Any]:
        """Return fingerprint, raw parts and build facts."""
        warmup = self._warmup
        report = self.report()
        fingerprint = warmup.journal.fingerprint if warmup is not None else None
        if warmup is None or fingerprint is None:
            raise WarmupFailed("there is nothing to pack: this replica has not warmed up")
        if self._packed:
            raise WarmupFailed(
                "this replica was packed before", hint="start a new replica to build again"
            )
        self._packed = True
        parts, facts = await warmup.pack()
        return {
            "fingerprint": fingerprint.to_json(),
            "parts": parts,
            "facts": dict(facts),
            "report": report.to_json(),
        }

    # What stages.Replica asks for ------------------------------------------------------------

    async def warmup_inputs(self) -> Any:
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
        for item in inputs:
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
        await _consume(await _call_like_serve(method, method, item.args, dict(item.kwargs)))

    async def _call_http(self, item: Input, verb: str, path: str) -> None:
        exchange = _Exchange(item, verb, path)
        if isinstance(self.owner, ASGIAppReplicaWrapper):
            context = _context()
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
            result = await _call_like_serve(
                handler, handler, (request,) if takes_request else (), {}
            )
            if isinstance(result, Response):
                await result(exchange.scope, exchange.receive, exchange.send)
            else:
                await _consume(result)
        exchange.raise_for_status()

    def serving_threads(self) -> set[int]:
        # Called from the hook: on the user loop's thread.
        return {threading.get_native_id(), self._model_thread_id} - {0}

    def waits_for(self) -> Sequence[str]:
        handles = [v for v in vars(self.owner).values() if isinstance(v, DeploymentHandle)]
        return sorted({handle.deployment_name for handle in handles})

    def trust(self) -> Trust | None:
        trust: Trust | None = self.owner.warmup_trust
        return trust

    def refusal(self, event: CompileEvent) -> BaseException:
        return CompileForbidden(event)

    # The model thread ------------------------------------------------------------------------

    async def on_model_thread(
        self, fn: Callable[..., Result], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Result:
        if self._executor is None:
            self._begin_model_thread()
        # torch.*.config is per context: the model sees the request's, as it would inline.
        run = contextvars.copy_context().run
        call = functools.partial(self._then_clone, functools.partial(run, fn, *args, **kwargs))
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def _begin_model_thread(self) -> None:
        with self._lock:
            if self._executor is not None:
                return
            executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="serve_warm-model")
            self._model_thread_id = executor.submit(threading.get_native_id).result()
            self._executor = executor

    def _then_clone(self, call: Callable[[], Result]) -> Result:
        """Return what a call returned; copies, where the next call would overwrite it.

        On the model thread, where that next call comes.
        """
        result = call()
        # Asked after the call, in the start after each: it may have loaded and compiled the model.
        # And again when torch's compiler was imported, by a call that had no library.
        imported = is_imported()
        starting = self._task is None or not self._task.done()
        if starting or imported != self._asked_with_compiler:
            self._asked_with_compiler = imported
            self._own_outputs = uses_cuda_graphs(self.owner)
        if not self._own_outputs:
            return result
        cloned: Result = clone_outputs(result)
        return cloned


async def _join(task: asyncio.Task[None]) -> None:
    await asyncio.shield(task)


def _context() -> Any:
    """Return Serve's replica context, or `None` outside Serve and in its local testing mode."""
    try:
        return serve.get_replica_context()
    except RayServeException:
        return None


def _gang() -> Any:
    """Return what Serve says of the gang that this replica is in; `None` for one by itself.

    Ray 2.60 has gangs; 2.53 does not.
    """
    return getattr(_context(), "gang_context", None)


def _claim(replica: str, name: str) -> None:
    """Take note of the object that a replica warms up, and refuse a second one.

    Serve waits for the one object that it calls, so that it would send requests before another is
    warm. And both would have one process' caches, counts and stance, and one state file, by which
    probes would know whichever was first.
    """
    first = WARMED.get(replica)
    if first is not None:
        raise ConfigError(
            f"replica {replica} makes a {name}, and it has a {first} to warm up already",
            hint="Serve waits for the warm-up of one object: declare all inputs in the "
            "warmup_inputs() of the class that is the deployment, and take WarmupMixin or @warmup "
            "off the other one; or make that a deployment of its own",
        )
    WARMED[replica] = name


def _versions() -> dict[str, str]:
    """Return what runs here; without torch before it is imported.

    Not by its metadata: it is found by listing the folders of `sys.path`, and a cold start would
    wait for the disk before `__init__` begins.
    """
    versions = {"serve_warm": __version__, "ray": ray.__version__}
    torch: Any = sys.modules.get("torch.version")
    if hasattr(torch, "__version__"):  # no: the import is under way in another thread
        versions["torch"] = str(torch.__version__)
    return versions


def _log_through_serve() -> None:
    # A replica configures no logger but Serve's. Our lines belong into the replica's log file,
    # the one that the dashboard links to.
    logging.getLogger("serve_warm").parent = logging.getLogger("ray.serve")


def _flush_logs() -> None:
    """Have the last lines written: `os._exit` flushes nothing, and Serve buffers lines."""
    log: logging.Logger | None = logger
    while log is not None:
        for handler in log.handlers:
            handler.flush()
        log = log.parent if log.propagate else None


async def _call_like_serve(
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


async def _consume(result: Any) -> None:
    """Run a generator's body to its end: until then nothing in it has been called."""
    if inspect.isasyncgen(result):
        async for _ in result:
            pass
    elif inspect.isgenerator(result):
        for _ in result:
            pass


class _Exchange:
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
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        # A client that stays: a streaming answer listens for its leaving.
        await self._done.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
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
