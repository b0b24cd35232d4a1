# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Timed calls of input targets, made in the same way as traffic, with deadlines and progress."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any

from serve_warm._records import record
from serve_warm._redaction import describe_error
from serve_warm.compiler.watch import CompileCounter
from serve_warm.errors import ReplayFailed, WarmupTimeout
from serve_warm.inputs import Input
from serve_warm.private_apis.cpython import frame_of_thread
from serve_warm.replica.record.failed_compile import find_reason
from serve_warm.replica.record.progress import Progress
from serve_warm.replica.record.raised_at import find_line
from serve_warm.replica.replay.waits import LOOK_S, Waits
from serve_warm.report import Stage

logger = logging.getLogger(__name__)

Call = Callable[[Input], Awaitable[None]]
"""Function that replays one input once, as traffic would, and raises what the target raises."""

LOOPS = ("asyncio", "selectors", "uvloop", "serve_warm")
"""Packages whose code runs in an event loop while no call blocks it."""

CANCEL_S = 0.5
"""Seconds that a late call may take to end after its cancellation."""

WAIT_NOTICE_S = 10.0
"""Seconds between two log lines while one input is running. The call might be waiting for other
deployments."""


class Deadline:
    """A point in time, and the seconds left until then."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.perf_counter() + seconds

    def left(self) -> float:
        """Return the seconds left; negative after the deadline."""
        return self._at - time.perf_counter()


@record(frozen=True, kw_only=True)
class Limits:
    """The limits of one replay."""

    deadline: Deadline
    """The time by which the whole start must end."""
    input_s: float
    """Maximum seconds for one call of one input."""


class GivenUp(ReplayFailed):
    """An undeclared call did not end in time. A thread may go on with it."""


class TimedCalls:
    """Makes one call at a time, and reports whether the current call is late."""

    def __init__(
        self,
        call: Call,
        progress: Progress,
        *,
        limits: Limits,
        waits: Waits | None,
        seen: CompileCounter,
    ) -> None:
        self._call = call
        self.seen = seen
        self._compiles_before = 0
        self.progress = progress
        self.deadline = limits.deadline
        self._input_limit_s = limits.input_s
        self._waits = waits if waits is not None and waits.names else None
        self._under_way: tuple[tuple[Input, Deadline], ...] = ()
        """The call that has begun and not ended, if any, with its limit."""

    def overdue(self) -> WarmupTimeout | None:
        """Return an error if the current replay is late, else None. Any thread may call this."""
        late = [each for each in self._under_way if each[1].left() <= 0]
        return next((self._timeout(item, limit.seconds) for item, limit in late), None)

    def require_time(self, item: Input, seconds: float) -> None:
        """Raise `WarmupTimeout` if a late replay blocked the loop and so could not be cancelled."""
        if seconds > self._input_limit_s:
            raise self._timeout(item, self._input_limit_s)
        if self.deadline.left() < 0:
            raise self._timeout(item, self.deadline.seconds)

    async def try_out(self, item: Input, limit_s: float) -> ReplayFailed | None:
        """Make an undeclared call, and return its error, if any.

        After `limit_s`, the call is cancelled, and counts as one that the handler rejects. The
        watchdog does not look at it.

        Raises:
            WarmupTimeout: the deadline of the start passed.
        """
        limit_s = min(limit_s, self.deadline.left())
        if limit_s <= 0:
            raise self._timeout(item, self.deadline.seconds)
        task = asyncio.ensure_future(self._call_without_exit(item))
        try:
            with _interrupted_after(limit_s + CANCEL_S):
                await asyncio.wait({task}, timeout=limit_s)
        finally:
            is_late = not task.done()
            if is_late:
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_S)
        error = None if is_late or task.cancelled() else task.exception()
        if is_late or isinstance(error, _Blocked):
            return GivenUp(
                f"{item.name} took more than {limit_s:.1f} s, and was given up",
                stage=Stage.REPLAYING.value,
            )
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise error  # from a signal
        if task.cancelled() or error is not None:
            return ReplayFailed(f"{item.name} is not accepted", stage=Stage.REPLAYING.value)
        return None

    async def make(self, item: Input) -> tuple[float, ReplayFailed | None]:
        """Call an input's target. Return the duration in seconds, and the error, if any.

        Raises:
            WarmupTimeout: the deadline of the call passed.
        """
        limit_s = min(self._input_limit_s, self.deadline.left())
        if limit_s <= 0:
            raise self._timeout(item, self.deadline.seconds)
        start = time.perf_counter()
        self._compiles_before = self._count_compiles()
        self._under_way = ((item, Deadline(limit_s)),)
        # Unlike wait_for, a task returns the exception as a value, so every error is reported with
        # its input.
        task = asyncio.ensure_future(self._call_without_exit(item))
        notice_s = WAIT_NOTICE_S
        look_s = WAIT_NOTICE_S if self._waits is None else LOOK_S
        try:
            while not task.done():
                passed_s = time.perf_counter() - start
                if passed_s >= limit_s:
                    raise self._timeout(item, limit_s)
                if passed_s >= notice_s:
                    notice_s = passed_s + WAIT_NOTICE_S
                    waiting = self._waiting_text()
                    text = "still waiting for input=%r after %.0f s%s"
                    logger.info(text, item.name, passed_s, waiting)
                await asyncio.wait({task}, timeout=min(limit_s - passed_s, look_s))
                if self._waits is not None:
                    self._waits.look()
        finally:
            if self._waits is not None:
                self._waits.end()
            if not task.done():  # late, or the warm-up itself is cancelled
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_S)
            self._under_way = ()
        seconds = time.perf_counter() - start
        # This method did not cancel the task, so code inside the target did.
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return seconds, None
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise error  # from a signal
        reason = find_reason(error)
        failed = ReplayFailed(
            f"input {item.name!r} failed: {reason.text}"
            if reason
            else f"input {item.name!r} raised {describe_error(error)}{_at(error)}",
            # An error of serve_warm has its own, better hint.
            hint=getattr(error, "hint", "")
            or (reason.hint if reason else "")
            or "to reproduce the error, call the same method with the same arguments; if the "
            "input is wrong, fix warmup_inputs()",
            stage=Stage.REPLAYING.value,
            input=item.name,
        )
        failed.__cause__ = error
        return seconds, failed

    async def _call_without_exit(self, item: Input) -> None:
        """Call an input's target; treat SystemExit and KeyboardInterrupt like any other error.

        If a task raised SystemExit or KeyboardInterrupt, asyncio would end the process. Ending the
        process is correct only if a signal handler raised the exception.
        """
        with SignalsSeen() as signals:
            try:
                await self._call(item)
            except (SystemExit, KeyboardInterrupt) as raised:
                if signals.any:
                    raise
                raise RuntimeError(f"the call tried to end the process: {raised!r}") from raised

    def _timeout(self, item: Input, limit_s: float) -> WarmupTimeout:
        progress = self.progress
        covered = f"{len(progress.first_s)} of {len(progress.inputs)} inputs were replayed"
        return WarmupTimeout(
            f"input {item.name!r} did not finish within {limit_s:.0f} s; {covered}, "
            f"{len(progress.proven)} proven{self._waiting_text()}",
            hint="raise deadline_s or input_deadline_s, build an artifact so that less is "
            "compiled, or set on_deadline: serve"
            if self._count_compiles() > self._compiles_before
            else "the call compiled nothing so far: look at what it waits for, such as a lock, a "
            "download or another service; or raise input_deadline_s, or set on_deadline: serve",
            stage=Stage.REPLAYING.value,
        )

    def _count_compiles(self) -> int:
        """Return the number of compiles that have begun."""
        return self.seen.counts().compiles + self.seen.compiling

    def _waiting_text(self) -> str:
        if self._waits is None:
            return ""
        return "; it might be waiting for other deployments: " + ", ".join(self._waits.names)


def _at(error: BaseException) -> str:
    where = find_line(error)
    return f" ({where})" if where else ""


# Signals ------------------------------------------------------------------------------------------


SIGNALS = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, "FrameType | None"], Any]


class SignalsSeen(AbstractContextManager["SignalsSeen"]):
    """Records whether a signal was handled in the block. The app's handler still runs.

    If a signal handler raises an exception, the call itself has not failed. Code from an artifact
    can also raise KeyboardInterrupt and SystemExit, but these must not end a replica. Python runs
    handlers only on the main thread, and what a handler raises looks as if the interrupted code had
    raised it. So on the main thread, each handler is wrapped to record that the handler ran.
    """

    def __init__(self) -> None:
        self.any = False
        self._before: dict[signal.Signals, tuple[Handler, Handler]] = {}
        """For each signal, the installed handler and the previous handler, which the installed
        handler calls."""

    def __enter__(self) -> SignalsSeen:  # noqa: PYI034 - Self is not in Python 3.10
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                # With other settings, no exception is raised: the process ends or ignores the
                # signal.
                if callable(handler):
                    noting = self._note(handler)
                    signal.signal(number, noting)
                    self._before[number] = noting, handler
        return self

    def __exit__(self, *_: object) -> None:
        for number, (noting, handler) in self._before.items():
            if signal.getsignal(number) is noting:  # unless the app has installed its own
                signal.signal(number, handler)

    def _note(self, handler: Handler) -> Handler:
        def noting(number: int, frame: FrameType | None) -> Any:
            self.any = True
            return handler(number, frame)

        return noting


class _Blocked(BaseException):
    """Raised inside a call that blocks the event loop. Handlers that catch `Exception` pass it."""


@contextmanager
def _interrupted_after(limit_s: float) -> Iterator[None]:
    """Raise `_Blocked` in a call of this thread that still blocks its event loop after a time.

    A loop in Python ends so. A call into C goes on, because Python raises the exception only
    between two steps of Python code.
    """
    thread = threading.get_ident()
    set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc
    ended, changing = threading.Event(), threading.Lock()
    interrupted: list[bool] = []

    def interrupt() -> None:
        if ended.wait(limit_s):
            return
        with changing:
            frame = frame_of_thread(thread)
            names = frame.f_globals if frame is not None else {}
            running = str(names.get("__name__", "")).partition(".")[0]
            if not ended.is_set() and running not in LOOPS:
                interrupted.append(True)
                set_error(ctypes.c_ulong(thread), ctypes.py_object(_Blocked))

    threading.Thread(target=interrupt, name="serve_warm-trial", daemon=True).start()
    try:
        with suppress(_Blocked):  # it can arrive just after the call, in code of the event loop
            yield
    finally:
        with changing:
            ended.set()
        # Take the exception if it has not arrived yet. Taking it back with NULL would leave a flag
        # that makes this process slow for good (CPython 3.11, ceval.c, eval_frame_handle_pending).
        with suppress(_Blocked):
            for _ in interrupted:
                time.sleep(0)
