# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One replica in Ray Serve's life: the hook that Serve waits for, and what others see of it.

Serve calls `reconfigure(user_config, rank)` of a replica after `__init__`, lifespan and
`servable_object`, before the first health check and before any router knows of the replica, and
waits for it without a limit. That is where a warm-up belongs. It is called even without a
`user_config` because the hook names `rank`. The hook is an attribute of the *instance*: the
class keeps the user's own `reconfigure`, its `super()` calls and its place in the order of bases.

`ReplicaContext._deployment_config` is private (seen in Ray 2.60): it has the user_config before
`reconfigure` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.serve.exceptions import RayServeException

from serve_warm import metrics, node
from serve_warm._private_folders import state_folder
from serve_warm._redaction import describe_error
from serve_warm._version import __version__
from serve_warm.compiler.caches import keep_headers_private
from serve_warm.compiler.cpu_target import pin_portable_cpu
from serve_warm.compiler.watch import unwatched_compiles
from serve_warm.config import WarmupConfig, resolve
from serve_warm.errors import ConfigError, WarmupFailed
from serve_warm.fingerprint import read_rank
from serve_warm.replica.journal import torch_version
from serve_warm.replica.model_thread import ModelThread
from serve_warm.replica.pack import PackedReplica
from serve_warm.replica.prefetch import Prefetch
from serve_warm.replica.raised_at import find_line
from serve_warm.replica.serve_calls import (
    CompileForbidden,
    ServeCalls,
    call_like_serve,
    replica_context,
)
from serve_warm.replica.start import CompileCaches
from serve_warm.replica.timeline import Timeline, spans_before
from serve_warm.replica.warmup import Warmup
from serve_warm.report import CompileEvent, Report, Stage, Verdict

if TYPE_CHECKING:
    from serve_warm.inputs import Input
    from serve_warm.precompile.entry_checks import Checks
    from serve_warm.trust import Trust

logger = logging.getLogger(__name__)

STATE_PERIOD_S = 0.2
"""State files are written at most this often while inputs are replayed."""

END_LIMIT_S = 0.5
"""How long the end of a blocked process waits for its state file."""

WARMED: dict[str, str] = {}
"""Class of the object that a replica of this process warms up, by the replica: one of each."""


class ReconfigureHook:
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

    def __init__(self, replica: ServeReplica) -> None:
        self._replica = replica

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the hook for Serve, and the user's own method for anybody else."""
        if len(args) == 1 and kwargs.keys() == {"rank"}:
            return self._replica.reconfigure(*args, **kwargs)
        owner = self._replica.owner
        return type(owner).reconfigure(owner, *args, **kwargs)


class ServeReplica(ServeCalls):
    """One instance of the user's class, in a replica of Ray Serve or outside of any.

    It is the `Replica` that a warm-up asks.
    """

    def __init__(self, owner: Any) -> None:
        super().__init__(owner)
        created_boot_s = node.boot_s()
        context = replica_context()
        self.in_serve = context is not None
        self.application = context.app_name if context else ""
        self.deployment = context.deployment if context else type(owner).__name__
        self.replica = context.replica_tag if context else ""
        self.unwatched_compiles_before = unwatched_compiles()
        self.model_thread = ModelThread(owner, is_starting=self._is_starting)
        self._timeline = Timeline(spans_before(created_boot_s) if self.in_serve else ())
        self._known = Report(
            application=self.application,
            deployment=self.deployment,
            replica=self.replica,
            created_boot_s=created_boot_s,
        )
        self._task: asyncio.Task[None] | None = None
        self._warmup: Warmup | None = None
        self._lock = threading.Lock()
        self._packed = False
        # Serve's replica context has the user_config before `__init__` runs: torch's caches can
        # be pointed at a private directory before user code reads the variables.
        declared = getattr(getattr(context, "_deployment_config", None), "user_config", None)
        self._config = resolve(owner.warmup_config, user_config=declared)
        self._caches = CompileCaches()
        self._prefetch: Prefetch | None = None
        self._init_failed: tuple[float, str] | None = None
        """When `__init__` raised, of CLOCK_BOOTTIME, and what."""
        self._served_unwarmed: tuple[float, float] | None = None
        """When it became ready without a warm-up, of CLOCK_BOOTTIME and since the epoch."""
        self._shown: ShownState | None = None
        """Outside Serve nothing is shown."""
        if self.in_serve:
            self._begin_in_serve()

    def _begin_in_serve(self) -> None:
        _claim(self.replica, type(self.owner).__name__)
        _log_through_serve()
        # Before `__init__`, which may take minutes: this node has a replica that is not ready.
        self._shown = ShownState(self._known, self._config, self.report)
        if not self._config.enabled:
            return
        self._caches.begin()
        # User code may compile in `__init__`, whatever it is told.
        keep_headers_private(self._config.headers)
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
                timeline=self._timeline,
            )
            self._prefetch.begin()

    def note_init_raised(self, error: BaseException) -> None:
        """Say FAILED, with what `__init__` raised and where: Serve's controller alone has that."""
        if self._shown is None or self._warmup is not None:
            return  # which has said it
        where = find_line(error)
        text = f"__init__ raised {describe_error(error)}{f' ({where})' if where else ''}"
        self._init_failed = node.boot_s(), text
        logger.error("warm-up failed: %s", text)
        self._shown.heartbeat.flush(END_LIMIT_S)  # the process ends in a moment

    # The hook --------------------------------------------------------------------------------

    async def reconfigure(self, user_config: Any, *, rank: Any) -> None:
        """Do what Serve would have done with the user's own `reconfigure`, then warm up once."""
        # Once: Serve calls this again for each light update, also where warm-up is off.
        if all(span.name != "__init__" for span in self._timeline.spans()):
            self._timeline.add("__init__", self._known.created_boot_s, node.boot_s())
        self._configure(user_config)
        if isinstance(user_config, dict) and "warmup" in user_config:
            # What is left of a user_config that had only our key is none: the user's method
            # was not called before the key was added, and is not now.
            rest = {key: value for key, value in user_config.items() if key != "warmup"}
            user_config = rest or None
        await self._users_reconfigure(user_config, rank)
        if self._shown is not None:
            await self.warm_up()
            loop = asyncio.get_running_loop()
            self._shown.watch_loop(loop)
            self._become_ready()
            if self._warmup is not None:
                self._check_when_idle(self._warmup.checks, loop)

    def _become_ready(self) -> None:
        # In Serve by the hook alone. Whoever awaits `warm_up()` before it, as an async `__init__`
        # may, gets a proof; nobody is told that the replica serves before Serve has come this far.
        if self._warmup is not None:
            self._warmup.become_ready()
        elif self._served_unwarmed is None:
            self._served_unwarmed = (node.boot_s(), time.time())
            if self._shown is not None:
                self._shown.heartbeat.changed()

    def _check_when_idle(self, checks: Checks | None, loop: asyncio.AbstractEventLoop) -> None:
        if checks is not None:
            from serve_warm.precompile.kept_calls import IdleChecks  # torch is imported by now

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
        await call_like_serve(method, bound, (user_config,), arguments)

    # The warm-up -----------------------------------------------------------------------------

    async def warm_up(self) -> Report:
        """Warm up now, or join the warm-up under way, and return its report."""
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
        self._warmup = warmup = Warmup(
            self,
            config,
            caches=self._caches,
            prefetched=self._prefetch,
            known=dataclasses.replace(self._known, versions=_versions()),
            timeline=self._timeline,
            end_process=self._end_process if self.in_serve else None,
        )
        if self._shown is None:
            await warmup.run()
            return
        warmup.observe([self._shown.observer()])
        await warmup.prove()

    def _is_starting(self) -> bool:
        return self._task is None or not self._task.done()

    def _end_process(self) -> None:
        """End this process, whose event loop is blocked; Serve starts another replica.

        Called from a thread. `sys.exit` would end that thread alone, an exception cannot be raised
        in the blocked one, and Ray's own ways to end an actor wait for its event loop.
        """
        if self._shown is not None:
            self._shown.heartbeat.flush(END_LIMIT_S)  # the reason, for whoever asks why
        _flush_logs()
        os._exit(1)

    def report(self) -> Report:
        """Return the report until now; an empty one before warm-up began, or without one."""
        if self._warmup is not None:
            return self._warmup.report()
        config = self._config
        ready_boot_s, ready_unix = self._served_unwarmed or (node.boot_s(), None)
        stage, error = Stage.READY if self._served_unwarmed else Stage.PENDING, ""
        if self._init_failed is not None:
            (ready_boot_s, error), stage = self._init_failed, Stage.FAILED
        return dataclasses.replace(
            self._known,
            stage=stage,
            error=error,
            spans=self._timeline.spans(),
            doing="__init__" if stage is Stage.PENDING else "",
            elapsed_s=max(0.0, ready_boot_s - self._known.created_boot_s),
            ready_unix=ready_unix,
            deadline_s=config.deadline_s,
            artifact_configured=config.enabled and config.artifact is not None,
            versions=_versions() if self.in_serve else {},
        )

    @property
    def inputs(self) -> Sequence[Input]:
        """What is replayed; empty before the warm-up has begun."""
        return self._warmup.journal.inputs if self._warmup is not None else ()

    async def pack(self) -> PackedReplica:
        """Return fingerprint, raw parts and build facts, once."""
        warmup, report = self._warmup, self.report()
        if warmup is None or report.fingerprint is None:
            raise WarmupFailed("there is nothing to pack: this replica has not warmed up")
        if self._packed:
            raise WarmupFailed(
                "this replica was packed before", hint="start a new replica to build again"
            )
        self._packed = True
        parts, facts = await warmup.pack()
        return PackedReplica(
            fingerprint=report.fingerprint,
            parts=parts,
            facts=dict(facts),
            report=report.to_json(),
        )

    # What a warm-up asks beside the calls ------------------------------------------------------

    def serving_threads(self) -> set[int]:
        """Return the native ids of the threads that live as long as the replica."""
        # Called from the hook: on the user loop's thread.
        return {threading.get_native_id(), self.model_thread.native_id} - {0}

    def trust(self) -> Trust | None:
        """Return who is trusted where the class says so, else `None`."""
        trust: Trust | None = self.owner.warmup_trust
        return trust

    def refusal(self, event: CompileEvent) -> BaseException:
        """Return what a request gets that would compile under `after_ready: forbid`."""
        return CompileForbidden(event)


class ShownState:
    """What others see of a replica: its state file, its metrics, and whether its loop runs."""

    def __init__(self, known: Report, config: WarmupConfig, report: Callable[[], Report]) -> None:
        self._known = known
        self._report = report
        self._last_told = ((Stage.PENDING, Verdict.OFF), 0.0)
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that Serve calls the user's code on; None before its hook."""
        self._loop_ran_s: float | None = None
        self.heartbeat = self._heartbeat(_state_directory(config))

    def _heartbeat(self, directory: Path) -> node.Heartbeat:
        return node.Heartbeat(
            directory,
            application=self._known.application,
            deployment=self._known.deployment,
            replica=self._known.replica,
            facts=self._facts,
            began_s=self._known.created_boot_s,
        )

    def configure(self, config: WarmupConfig) -> None:
        """Have the state file where the configuration wants it, and no other."""
        directory = _state_directory(config)
        if self.heartbeat.directory != directory:
            self.heartbeat.stop()
            self.heartbeat = self._heartbeat(directory)

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Show from now on when a loop ran last."""
        self._loop, self._loop_ran_s = loop, node.boot_s()

    def observer(self) -> Callable[[Report], None]:
        """Return what is told of each change of the warm-up, whose metrics are exported from now.

        A new stage is written and exported at once, and progress in one not too often. File and
        metrics have a thread each, which goes on by itself every few seconds: that is all that
        metrics have of progress.
        """
        sink = metrics.RaySink(self._report)

        def told(report: Report) -> None:
            now = time.monotonic()
            entered = (report.stage, report.verdict) != self._last_told[0]
            if not entered and now - self._last_told[1] < STATE_PERIOD_S:
                return
            self._last_told = ((report.stage, report.verdict), now)
            self.heartbeat.changed()
            if entered:
                sink.changed()

        return told

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
        report = self._report()
        return {
            "stage": report.stage.value,
            "loop_boot_s": self._loop_last_ran_s(),
            "verdict": report.verdict.value,
            "degraded": list(report.degraded),
            "inputs_expected": report.covered.expected,
            "inputs_done": report.inputs_done,
            "passes": report.passes,
            "store": report.artifact.store if report.artifact else "",
            "statement": report.artifact.statement if report.artifact else "",
            "event": str(report.events[-1]) if report.events else "",
            "error": report.error,
            "doing": report.doing,
            "fingerprint": report.fingerprint,
            "spans": [[s.name, s.began_boot_s, s.seconds, s.beside] for s in report.spans],
            "traced": report.traced,
            "levels": report.levels,
            "reason": report.artifact.reason if report.artifact else "",
            "warnings": list(report.warnings),
            "elapsed_s": report.elapsed_s,
            "stage_seconds": report.stage_seconds,
            "metrics": metrics.as_data(report),
        }


def _state_directory(config: WarmupConfig) -> Path:
    return Path(config.state_dir or state_folder())


async def _join(task: asyncio.Task[None]) -> None:
    await asyncio.shield(task)


def _gang() -> Any:
    """Return what Serve says of the gang that this replica is in; `None` for one by itself.

    Ray 2.60 has gangs; 2.53 does not.
    """
    return getattr(replica_context(), "gang_context", None)


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
    """Return what runs here; without torch before it is imported."""
    return {"serve_warm": __version__, "ray": ray.__version__, **torch_version()}


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
