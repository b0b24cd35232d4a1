# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One replica's life cycle in Ray Serve: Serve's start-up hook, and the replica's visible state.

Serve runs `__init__`, the app's lifespan startup and `servable_object`. Then Serve calls the
replica's `reconfigure(user_config, rank)` and waits for the call without a time limit. The warm-up
runs in this call, before any router knows the replica and before the first health check. Serve
makes the call even without a `user_config`, because the hook has the parameter `rank`. The hook is
an attribute of the *instance*. So the hook does not change the class: the order of its bases, the
user's own `reconfigure` and its `super()` calls stay the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.serve.exceptions import RayServeException

from serve_warm import node
from serve_warm._package import __version__
from serve_warm._private_folders import CALL_FOLDER
from serve_warm._redaction import describe_error
from serve_warm.artifact.manifest import Place
from serve_warm.compiler.caches import keep_headers_private
from serve_warm.compiler.cpu_target import pin_portable_cpu
from serve_warm.compiler.watch import unwatched_compiles
from serve_warm.config import environment, resolve
from serve_warm.errors import ConfigError, WarmupFailed
from serve_warm.precompile import SESSION
from serve_warm.private_apis import cpython, ray_serve
from serve_warm.replica.record.journal import torch_version
from serve_warm.replica.record.raised_at import find_line
from serve_warm.replica.record.timeline import Timeline, spans_before
from serve_warm.replica.serve.application import digest_code, name_application
from serve_warm.replica.serve.calls import (
    CompileForbidden,
    EagerOutOfMemory,
    ServeCalls,
    call_like_serve,
    list_targets,
)
from serve_warm.replica.serve.failed_start import shorten_failure
from serve_warm.replica.serve.loop_blocks import LoopBlocks
from serve_warm.replica.serve.model_thread import ModelThread
from serve_warm.replica.serve.rollout import why_not_eager
from serve_warm.replica.serve.shown_state import ShownState, state_directory
from serve_warm.replica.start.context import CompileCaches
from serve_warm.replica.start.pack import PackedReplica
from serve_warm.replica.start.prefetch import Prefetch
from serve_warm.replica.start.prepare import makes_artifact
from serve_warm.replica.start.stages import Warmup
from serve_warm.report import CompileEvent, Report, Stage, Verdict
from serve_warm.seats.keeper import ReplicaSeats

if TYPE_CHECKING:
    from serve_warm.inputs import Input
    from serve_warm.learn.call_files import CallFiles, CallWriter
    from serve_warm.learn.request_recorder import RequestRecorder
    from serve_warm.precompile import Checks
    from serve_warm.seats.records import SeatUse
    from serve_warm.trust import Trust

logger = logging.getLogger(__name__)

END_LIMIT_S = 0.5
"""Maximum seconds that a failing process waits for its state file to be written."""

WARMED: dict[str, str] = {}
"""For each replica in this process, the class name of the one object that is warmed up."""


class ReconfigureHook:
    """The callable that Serve finds as an instance's `reconfigure`.

    The hook is a callable object for two reasons. Serve would run a plain function in a worker
    thread. A coroutine function would break the user's own calls, because
    `self.reconfigure(config)` in `__init__` must run the class's method at once. A call that passes
    `rank` as its only keyword argument comes from Serve.
    """

    __signature__ = inspect.Signature(
        [
            inspect.Parameter("user_config", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter("rank", inspect.Parameter.KEYWORD_ONLY, default=None),
        ]
    )

    def __init__(self, replica: ServeReplica) -> None:
        self._replica = replica

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the hook for Serve, and the user's own method for any other caller."""
        if len(args) == 1 and kwargs.keys() == {"rank"}:
            return self._replica.reconfigure(*args, **kwargs)
        owner = self._replica.owner
        return type(owner).reconfigure(owner, *args, **kwargs)


class ServeReplica(ServeCalls):
    """One instance of the user's class, inside or outside a Ray Serve replica.

    This class implements the `WarmupHost` protocol of a warm-up.
    """

    def __init__(self, owner: Any) -> None:
        super().__init__(owner)
        created_boot_s = node.boot_s()
        context = ray_serve.replica_context()
        self.in_serve = context is not None
        self._seats = ReplicaSeats(environment()) if self.in_serve else None
        self.application = context.app_name if context else ""
        self.deployment = context.deployment if context else type(owner).__name__
        self.replica = context.replica_tag if context else ""
        self.unwatched_compiles_before = unwatched_compiles()
        self.model_thread = ModelThread(owner, may_change=self._may_change)
        self._timeline = Timeline(
            spans_before(created_boot_s, seat=self._seats.began_on_one) if self._seats else ()
        )
        self._known = Report(
            application=self.application,
            deployment=self.deployment,
            replica=self.replica,
            created_boot_s=created_boot_s,
        )
        self._task: asyncio.Task[None] | None = None
        self._updates = asyncio.Lock()
        self._warmup: Warmup | None = None
        self._lock = threading.Lock()
        # Serve's replica context has the user_config before `__init__` runs, so torch's caches
        # get a private directory before user code reads the variables.
        self._config = resolve(owner.warmup_config, user_config=ray_serve.user_config())
        self._caches = CompileCaches()
        self._prefetch: Prefetch | None = None
        self._to_compile: Sequence[str] = getattr(owner, "warmup_compile", ())
        self._init_failed: tuple[float, str] | None = None
        """The time (CLOCK_BOOTTIME) when `__init__` raised an exception, and the error text."""
        self._served_unwarmed: tuple[float, float] | None = None
        """When the replica became ready without a warm-up: by CLOCK_BOOTTIME, and as Unix time."""
        self._call_writer: CallWriter | None = None
        self._requests: RequestRecorder | None = None
        self._shown: ShownState | None = None
        """The visible state of the replica; None outside Serve."""
        if self.in_serve:
            self._begin_in_serve()

    def _begin_in_serve(self) -> None:
        _claim(self.replica, type(self.owner).__name__)
        _log_through_serve()
        # Write the state before `__init__` runs, so that the node shows this replica as not ready.
        # `__init__` may take minutes.
        self._shown = ShownState(
            self._known, self._config, self.report, artifacts_of=lambda: self.place.application
        )
        if not self._config.enabled:
            return
        self._caches.begin()
        # User code may compile in `__init__` despite the documentation.
        keep_headers_private("own" if makes_artifact(self.application, self._config) else "shared")
        if self._config.cpu == "portable":
            pin_portable_cpu()
        if self._config.artifact is not None:
            gang = _gang()
            self._prefetch = Prefetch(
                self._config,
                place=self.place,
                code=self.code,
                trust=self.trust(),
                # The process group does not exist yet, but usually has the gang's order of ranks.
                rank=None if gang is None else (gang.rank, gang.world_size),
                timeline=self._timeline,
            )
            self._prefetch.begin()

    def note_init_raised(self, error: BaseException) -> None:
        """Enter stage FAILED with the error that `__init__` raised.

        Serve itself reports this error only to its controller.
        """
        if self._shown is None or self._warmup is not None:
            return  # the warm-up reports its own errors
        where = find_line(error)
        text = f"__init__ raised {describe_error(error)}{f' ({where})' if where else ''}"
        self._init_failed = node.boot_s(), text
        logger.error("warm-up failed: %s", text)
        self._shown.heartbeat.flush(END_LIMIT_S)  # the process exits in a moment

    # The hook --------------------------------------------------------------------------------

    async def reconfigure(self, user_config: Any, *, rank: Any) -> None:
        """Call the user's own `reconfigure` as Serve would. Then warm up, or prove again."""
        try:
            await self._reconfigure(user_config, rank)
        except Exception as error:  # noqa: BLE001 - also one of the application
            failure = shorten_failure(error)
        else:
            return
        raise failure

    async def _reconfigure(self, user_config: Any, rank: Any) -> None:
        # Add the span only once: Serve also calls this for each light update, even if warm-up is
        # off.
        if all(span.name != "__init__" for span in self._timeline.spans()):
            self._timeline.add("__init__", self._known.created_boot_s, node.boot_s())
        self._configure(user_config)
        if isinstance(user_config, dict) and "warmup" in user_config:
            # If the user_config has only serve_warm's key, do not call the user's method: without
            # this key, Serve would not call it either.
            rest = {key: value for key, value in user_config.items() if key != "warmup"}
            user_config = rest or None
        change = functools.partial(self._users_reconfigure, user_config, rank)
        async with self._updates:  # Serve may call again at any time, for example with a new rank
            warmup = self._warmup
            if warmup is None or not warmup.journal.is_serving:
                self._compile_named()
                await change()
                await self._start()
            elif self._calls_reconfigure(user_config):
                await warmup.update(change, is_request=ray_serve.is_request)
            else:
                await change()

    def _compile_named(self) -> None:
        """Compile the modules that the arguments of `serve_warm.app:wrap` name, once."""
        names, self._to_compile = self._to_compile, ()
        if names and self._config.enabled:
            from serve_warm.replica.serve.wrapped import compile_named

            compile_named(self.owner, names)

    async def _start(self) -> None:
        if self._shown is not None:
            await self.warm_up()
            loop = asyncio.get_running_loop()
            self._shown.watch_loop(loop)
            self._become_ready()
            self._keep_recorded()
            if self._seats is not None and self._config.enabled:
                names = {"application": self.application, "deployment": self.deployment}
                self._seats.keep(self._config.seats, **names)
            if self._warmup is not None:
                self._check_when_idle(self._warmup.journal.checks, loop)

    def _become_ready(self) -> None:
        # In Serve, only the hook calls this. An async `__init__` may await `warm_up()` earlier and
        # get a proof, but only this makes the replica READY.
        if self._warmup is not None:
            self._warmup.become_ready()
        elif self._served_unwarmed is None:
            self._served_unwarmed = (node.boot_s(), time.time())
            if self._shown is not None:
                self._shown.heartbeat.changed()

    def _keep_recorded(self) -> None:
        """Write what is recorded of traffic to a file, from now on."""
        recorder = SESSION.recorder
        if recorder is not None and self._call_writer is None:
            from serve_warm.learn.call_files import CallWriter

            if self._config.record == "values":
                self._record_requests()

            self._call_writer = CallWriter(
                self._call_files(), self.replica, self._recorded, new=recorder.new
            )
        elif recorder is None and self._call_files_exist():
            # Others have recorded here, and their files are kept for some days only.
            with contextlib.suppress(OSError):
                self._call_files().remove_old()

    def _call_files_exist(self) -> bool:
        return (state_directory(self._config) / CALL_FOLDER).is_dir()

    def _record_requests(self) -> None:
        """Record requests with their values, from now on. A mistake is only logged."""
        from serve_warm.learn.request_recorder import RequestRecorder, find_scrub

        try:
            scrub = find_scrub(self._config.scrub)
        except ConfigError as error:
            logger.error("requests are not recorded: %s", error)  # noqa: TRY400 - no traceback helps
            return
        recorder = SESSION.recorder
        name_kinds = None if recorder is None else recorder.name_kinds
        self._requests = RequestRecorder(scrub, name_kinds=name_kinds)
        self._requests.watch(
            type(self.owner),
            list_targets(type(self.owner)),
            model_id=lambda: ray_serve.current_request().multiplexed_model_id,
            answered=ray_serve.answered_requests,
        )
        if recorder is not None:
            recorder.others = self._requests.others

    def _call_files(self) -> CallFiles:
        from serve_warm.learn.call_files import CallFiles

        return CallFiles(
            state_directory(self._config),
            application=self.place.application,
            deployment=self.deployment,
            code="" if self._warmup is None else self._warmup.made_of.code,
            days=self._config.record_days,
        )

    def _recorded(self) -> dict[str, Any]:
        from serve_warm.learn.call_files import fitting

        recorder = SESSION.recorder
        if recorder is None:
            return {"calls": [], "requests": [], "not_recorded": {}, "models": []}
        found = {**recorder.to_json(), "requests": []}
        if self._requests is not None:
            found["requests"] = self._requests.requests()
            found["not_recorded"].update(self._requests.not_recorded())
        models = list(ray_serve.loaded_models(self.owner))
        return fitting({**found, "models": models})

    def _check_when_idle(self, checks: Checks | None, loop: asyncio.AbstractEventLoop) -> None:
        if checks is not None:
            from serve_warm.precompile import IdleChecks

            IdleChecks(
                checks,
                loop,
                model_thread=lambda: (self.model_thread.executor, self.model_thread.native_id),
            ).begin()

    def _configure(self, user_config: Any) -> None:
        if self._warmup is None:
            self._config = resolve(self.owner.warmup_config, user_config=user_config)
            if self._shown is not None:
                self._shown.configure(self._config)
            return
        # This is a light update of a serving replica. The replica does not warm up again, and a
        # mistake in the update must not stop the replica from serving.
        try:
            later = resolve(self.owner.warmup_config, user_config=user_config)
        except ConfigError as error:
            logger.error("user_config.warmup is ignored: %s", error)  # noqa: TRY400
            return
        old, new = self._config.model_dump(), later.model_dump()
        changed = [name for name in new if new[name] != old[name]]
        if changed:
            logger.warning(
                "these settings take effect only in new replicas: %s", ", ".join(changed)
            )

    def _calls_reconfigure(self, user_config: Any) -> bool:
        """Return whether the user has a `reconfigure` that Serve would call now."""
        method = getattr(type(self.owner), "reconfigure", None)
        if method is None:
            return False
        return user_config is not None or "rank" in inspect.signature(method).parameters

    async def _users_reconfigure(self, user_config: Any, rank: Any) -> None:
        method = getattr(type(self.owner), "reconfigure", None)
        if method is None:
            if user_config is not None:
                found = sorted(user_config) if isinstance(user_config, dict) else user_config
                raise RayServeException(
                    f"user_config has {found!r}, but deployment {self.deployment} has no "
                    "reconfigure method"
                )
            return
        bound = functools.partial(method, self.owner)
        takes_rank = "rank" in inspect.signature(method).parameters
        if user_config is None and not takes_rank:
            return
        arguments = {"rank": rank} if takes_rank else {}
        await call_like_serve(method, bound, (user_config,), arguments)

    # The warm-up -----------------------------------------------------------------------------

    async def warm_up(self) -> Report:
        """Warm up now, or join a warm-up in progress, and return the report."""
        if not self._config.enabled:
            if self._prefetch is not None:
                self._prefetch.drop()  # warm-up was enabled when the class was instantiated
            if not self.in_serve:
                self._become_ready()
            return self.report()
        with self._lock:
            if self._task is None:
                # Use a task that callers can join, not a flag: after a restart of the controller,
                # Serve's second call must also wait.
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
        self._warmup = warmup = Warmup(
            self,
            self._config,
            caches=self._caches,
            prefetched=self._prefetch,
            known=dataclasses.replace(self._known, versions=_versions()),
            timeline=self._timeline,
            end_process=self._end_process if self.in_serve else None,
            in_gang=_gang() is not None,
        )
        if self._shown is None:
            await warmup.run()
            return
        warmup.observe([self._shown.observer()])
        blocks = LoopBlocks()
        async with blocks.watched():
            await warmup.prove()
        await blocks.outlast(warmup.journal.warn)

    def _may_change(self) -> bool:
        """Return whether the model may be another one than at the last call."""
        is_proven = self._task is not None and self._task.done()
        return not is_proven or self._updates.locked()

    def _end_process(self) -> None:
        """End this process because its event loop is blocked; Serve then starts another replica.

        Called from a thread. Nothing milder works: `sys.exit` would end only the calling thread,
        the blocked thread cannot receive an exception, and Ray ends an actor only through the
        actor's event loop.
        """
        if self._shown is not None:
            self._shown.heartbeat.flush(END_LIMIT_S)  # so that the state file contains the reason
        _flush_logs()
        cpython.end_process(1)

    def report(self) -> Report:
        """Return the report so far, even if no warm-up has begun."""
        if self._warmup is not None:
            return dataclasses.replace(self._warmup.report(), seat=self._seat())
        config = self._config
        ready_boot_s, ready_unix = self._served_unwarmed or (node.boot_s(), None)
        stage, error = Stage.READY if self._served_unwarmed else Stage.PENDING, ""
        if self._init_failed is not None:
            (ready_boot_s, error), stage = self._init_failed, Stage.FAILED
        configured = config.enabled and config.artifact is not None
        is_decided = stage is Stage.READY or not configured
        return dataclasses.replace(
            self._known,
            stage=stage,
            verdict=Verdict.OFF if is_decided else None,
            error=error,
            spans=self._timeline.spans(),
            doing="__init__" if stage is Stage.PENDING else "",
            elapsed_s=max(0.0, ready_boot_s - self._known.created_boot_s),
            ready_unix=ready_unix,
            deadline_s=config.deadline_s,
            artifact_configured=configured,
            seat=self._seat(),
            versions=_versions() if self.in_serve else {},
        )

    def _seat(self) -> SeatUse | None:
        return self._seats.use(self._config.seats) if self._seats is not None else None

    @property
    def inputs(self) -> Sequence[Input]:
        """The inputs to replay; empty before the warm-up begins."""
        return self._warmup.journal.inputs if self._warmup is not None else ()

    def recorded(self, *, forget: str) -> dict[str, Any]:
        """Return the kinds of calls of traffic, as plain data: see `WarmupMixin.warmup_recorded`.

        Raises:
            OSError: a file that is to be forgotten cannot be removed.
        """
        files, writer = self._call_files(), self._call_writer
        found = {
            "application": self.place.application,
            "deployment": self.deployment,
            "replica": self.replica,
            **self._recorded(),
            "ended": list(files.read(but=self.replica)),
        }
        if forget == f"{self.place.application}/{self.deployment}":
            if writer is not None:
                writer.forget(self._forget_recorded)
            else:
                files.forget()
        return found

    def _forget_recorded(self) -> None:
        if SESSION.recorder is not None:
            SESSION.recorder.begin()
        if self._requests is not None:
            self._requests.forget()

    async def pack(self, *, accept_torch_source: bool = False) -> PackedReplica:
        """Return the fingerprint, code and model, raw parts, facts and report for a build.

        Raises:
            WarmupFailed: the replica has not warmed up.
        """
        warmup, report = self._warmup, self.report()
        if warmup is None or report.fingerprint is None:
            raise WarmupFailed("there is nothing to pack: this replica has not warmed up")
        parts, facts = await warmup.pack(accept_torch_source=accept_torch_source)
        return PackedReplica(
            fingerprint=report.fingerprint,
            made_of=dataclasses.asdict(warmup.made_of),
            parts=parts,
            facts=dict(facts),
            report=report.to_json(),
        )

    # The rest of the `WarmupHost` protocol ------------------------------------------------------

    @property
    def place(self) -> Place:
        """The application and deployment that this deployment's artifacts are kept for."""
        application = name_application(type(self.owner), self._config.application)
        return Place(application=application, deployment=self.deployment)

    @property
    def code(self) -> str:
        """Digest of the code of the user's class."""
        return digest_code(type(self.owner))

    def serving_threads(self) -> set[int]:
        """Return the native ids of the threads that live as long as the replica."""
        # The hook calls this on the thread of the user's event loop.
        return {threading.get_native_id(), self.model_thread.native_id} - {0}

    def trust(self) -> Trust | None:
        """Return the class's own trust settings, or `None`."""
        trust: Trust | None = self.owner.warmup_trust
        return trust

    def no_memory(self, function: str, seconds: float) -> BaseException:
        """Return the error for an eager call that ran out of GPU memory."""
        return EagerOutOfMemory(function, seconds)

    async def why_not_eager(self) -> str:
        """Return why this replica must compile although the policy is `eager`; empty if not."""
        if not self.in_serve:
            return ""
        return await why_not_eager(
            self.application,
            self.deployment,
            first_install=self._config.first_install,
            environ=environment(),
        )

    def refusal(self, event: CompileEvent) -> BaseException:
        """Return the error for a request that would need a compile (`after_ready: forbid`)."""
        return CompileForbidden(event)


async def _join(task: asyncio.Task[None]) -> None:
    await asyncio.shield(task)


def _gang() -> Any:
    """Return Serve's gang context for this replica, or `None` if the replica is not in a gang.

    Ray 2.60 has gangs; 2.53 does not.
    """
    return getattr(ray_serve.replica_context(), "gang_context", None)


def _claim(replica: str, name: str) -> None:
    """Record the object that a replica warms up, and refuse a second object.

    Serve waits only for the object that it calls. So requests could arrive before a second object
    is warm. Two objects would also share the state file, and this process's caches, counts of
    compiles and `torch.compiler` stance.
    """
    first = WARMED.get(replica)
    if first is not None:
        raise ConfigError(
            f"replica {replica} creates a {name}, but already has a {first} to warm up",
            hint="Serve waits for the warm-up of only one object: declare all inputs in the "
            "warmup_inputs() of the deployment class, and remove WarmupMixin or @warmup from the "
            "other class; or make the other class a separate deployment",
        )
    WARMED[replica] = name


def _versions() -> dict[str, str]:
    """Return the versions of the software in use, including torch's if torch is imported."""
    return {"serve_warm": __version__, "ray": ray.__version__, **torch_version()}


def _log_through_serve() -> None:
    # A replica configures only Serve's logger. The lines of serve_warm belong in the replica's log
    # file, which the dashboard links to.
    logging.getLogger("serve_warm").parent = logging.getLogger("ray.serve")


def _flush_logs() -> None:
    """Write buffered log lines: Serve buffers log lines, and `os._exit` does not flush them."""
    log: logging.Logger | None = logger
    while log is not None:
        for handler in log.handlers:
            handler.flush()
        log = log.parent if log.propagate else None
