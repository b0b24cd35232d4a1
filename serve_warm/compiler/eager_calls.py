# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that run eagerly because no compiled code fits them, so that nobody waits for the compiler.

Two places ask `answers` what to do, both only if no compiled code fits: the hook in Dynamo's
callback (`watch`), and the dispatcher of a `serve_warm.compile` function, which then does not enter
Dynamo. torch's own stance `eager_on_recompile` would also stop the compiles that a replica makes on
purpose, for example while it proves its inputs, and does not say which calls ran eagerly.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest

from serve_warm._records import record
from serve_warm._redaction import excerpt
from serve_warm.compiler import cuda_graphs, evidence
from serve_warm.inputs import InputSignature
from serve_warm.report import EagerCalls, EagerReason

KINDS_KEPT = 256
"""Maximum number of kinds of calls that are recorded. Further kinds are counted together: per
callable for this many callables, and beyond them as one."""

TIMES_KEPT = 64
"""Number of calls of a kind, the latest ones, whose median time is reported."""

BACK_OFF_S = 60.0
"""Seconds for which calls of a kind are refused after one of them ran out of GPU memory."""

OTHERS = "other calls"
"""Stands for all calls, or callables, that have no record of their own."""


class CallCount:
    """The number of calls of compiled functions and modules, compiled or eager."""

    def __init__(self) -> None:
        self.n = 0


CALLS = CallCount()
"""The calls of this process. A lock would cost more than the count, so two threads may count two
calls as one."""


class EagerKind:
    """One kind of call: its count, its times, and what would have prevented it."""

    def __init__(self, reason: EagerReason, *, may_back_off: bool) -> None:
        self.calls = 0
        self.seconds = 0.0
        self.reason = reason
        self.why = ""
        """Why no compiled code fits, in words."""
        self.declare = ""
        """The input to declare for such calls."""
        self.refused = 0
        """How many calls were refused, because memory ran out in one of them or shortly before."""
        self._may_back_off = may_back_off
        """Whether all calls of this kind are alike."""
        self._refused_until_s = 0.0
        self._times: deque[float] = deque(maxlen=TIMES_KEPT)

    def took(self, seconds: float) -> None:
        """Record the wall-clock seconds of a call."""
        self.seconds += seconds
        self._times.append(seconds)

    def back_off(self) -> float:
        """Refuse such calls for a while, because memory ran out. Return the seconds."""
        self.refused += 1
        if self._may_back_off:
            self._refused_until_s = time.monotonic() + BACK_OFF_S
            return BACK_OFF_S
        return 0.0

    def seconds_refused(self) -> float:
        """Return for how many more seconds such calls are refused; count a refused call."""
        left_s = self._refused_until_s - time.monotonic()
        if left_s <= 0:
            return 0.0
        self.refused += 1
        return left_s

    @property
    def median_s(self) -> float | None:
        """Median seconds of the latest calls; None if no call was timed."""
        times = tuple(self._times)
        return statistics.median(times) if times else None


class EagerRecord:
    """The eager calls of a replica, by callable, call and reason. Safe to use on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str, EagerReason], EagerKind] = {}

    def add(self, function: str, call: str, reason: EagerReason) -> tuple[EagerKind, bool]:
        """Count a call. Return its kind, and whether it is the first call of this kind."""
        with self._lock:
            for key, room in (
                ((function, call, reason), KINDS_KEPT),
                ((function, OTHERS, reason), 2 * KINDS_KEPT),
                ((OTHERS, OTHERS, reason), math.inf),
            ):
                if key in self._kinds or len(self._kinds) < room:
                    break
            is_own, kind = key[1] == call, self._kinds.get(key)
            if is_new := kind is None:
                kind = self._kinds[key] = EagerKind(reason, may_back_off=is_own)
            kind.calls += 1
            return kind, is_new and is_own

    @property
    def is_empty(self) -> bool:
        """Whether no call is recorded."""
        return not self._kinds

    def has(self, function: str, call: str) -> bool:
        """Return whether a call is recorded, for any reason."""
        return any((function, call, reason) in self._kinds for reason in EagerReason)

    def calls(self) -> list[EagerCalls]:
        """Return a record for each kind of call so far, most frequent first."""
        with self._lock:
            kinds = list(self._kinds.items())
        kinds.sort(key=lambda item: item[1].calls, reverse=True)
        return [
            EagerCalls(
                callable=function,
                call=call,
                reason=reason,
                calls=kind.calls,
                refused=kind.refused,
                seconds=kind.seconds,
                median_s=kind.median_s,
                why=kind.why,
                declare=kind.declare,
            )
            for (function, call, reason), kind in kinds
        ]


def _never() -> bool:
    return False


class EagerAnswers:
    """Decides which calls run eagerly, and records them.

    `takes` returns whether the current call runs eagerly if it would compile. Calls of replays are
    recorded apart, in `replayed`. `on_new` is called with the callable, the call and the kind at
    the first call of each kind that no replay made, on its thread.
    `no_memory` returns the error for a call that ran out of GPU memory, or that is refused for that
    reason, from the callable and the seconds for which such calls are refused.
    """

    def __init__(
        self,
        record: EagerRecord,
        reason: EagerReason,
        *,
        replayed: EagerRecord,
        takes: Callable[[], bool] = lambda: True,
        takes_in_torch: Callable[[], bool] | None = None,
        only_beside_entries: bool = False,
        on_new: Callable[[str, str, EagerKind], None] = lambda *_: None,
        no_memory: Callable[[str, float], BaseException] | None = None,
    ) -> None:
        self.takes = takes
        """Whether a call that has no compiled code and that comes now runs eagerly."""
        self.takes_in_torch: Callable[[], bool] = takes_in_torch or (
            _never if only_beside_entries else takes
        )
        """The same for calls of torch.compile's own code, and of callables without any entries."""
        self.only_beside_entries = only_beside_entries
        self._replayed = replayed
        self._record = record
        self._reason = reason
        self._on_new = on_new
        self._no_memory = no_memory

    def note(
        self,
        function: str,
        call: str,
        why: Callable[[], str],
        *,
        reason: EagerReason | None = None,
    ) -> EagerCall:
        """Count a call that runs eagerly. `why` is called once for each kind.

        Raises the error of `no_memory` if such calls are refused.
        """
        is_replay = evidence.is_replay()
        record = self._replayed if is_replay else self._record
        kind, is_new = record.add(function, call, reason or self._reason)
        if is_new and not is_replay:
            kind.why = excerpt(why())
            if not self._replayed.has(function, call):
                self._on_new(function, call, kind)
        left_s = kind.seconds_refused()
        if left_s and self._no_memory is not None:
            raise self._no_memory(function, left_s)
        return EagerCall(function=function, kind=kind, no_memory=self._no_memory)


@record(frozen=True, kw_only=True)
class EagerCall:
    """One call that was noted and runs eagerly now."""

    function: str
    kind: EagerKind
    no_memory: Callable[[str, float], BaseException] | None

    def ended(self, began: float, error: RuntimeError | None = None) -> None:
        """Record the end of a call that began at this time (`time.perf_counter`).

        If GPU memory ran out, free some, refuse such calls for a while, and raise a clear error.
        """
        self.kind.took(time.perf_counter() - began)
        if self.no_memory is not None and cuda_graphs.ran_out_of_memory(error):
            cuda_graphs.free_memory()
            raise self.no_memory(self.function, self.kind.back_off()) from error


answers: EagerAnswers | None = None
"""What decides about eager calls, if anything. Read only where no compiled code fits a call."""


def answer_from_now_on(chosen: EagerAnswers | None) -> None:
    """Let `chosen` decide about the eager calls of this process."""
    global answers  # noqa: PLW0603 - process-wide, like the hooks that read it
    answers = chosen


@contextlib.contextmanager
def answering(chosen: EagerAnswers | None) -> Iterator[None]:
    """Let `chosen` decide in the block, and restore the former choice at its end."""
    before = answers
    answer_from_now_on(chosen)
    try:
        yield
    finally:
        answer_from_now_on(before)


def answer(
    decided: EagerAnswers,
    function: str,
    callee: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    why: Callable[[], str],
    reason: EagerReason | None = None,
) -> object:
    """Run a call eagerly, and record and time it. `why` and `reason` are as for `note`."""
    CALLS.n += 1
    call = decided.note(function, _describe(callee, args, kwargs), why, reason=reason)
    began, error = time.perf_counter(), None
    try:
        return callee(*args, **kwargs)
    except RuntimeError as raised:
        error = raised
        raise
    finally:
        try:
            call.ended(began, error)
        finally:
            error = None  # whose traceback has this frame, and this frame the arguments


def _describe(
    callee: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> str:
    """Return a call's arguments as text, named as the function of the call names them."""
    function = getattr(type(callee), "forward", callee)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    if function is not callee or hasattr(function, "__self__"):
        names = names[1:]
    named = {
        name or f"args[{number}]": value
        for number, (name, value) in enumerate(zip_longest(names[: len(args)], args))
    }
    try:
        return str(InputSignature.of({**named, **kwargs}))
    except Exception:  # noqa: BLE001 - an argument's own methods may raise anything
        return "(...)"


class _InDynamo(threading.local):
    call: EagerCall | None = None
    """The call of this thread that Dynamo runs eagerly, if any."""

    def swap(self, call: EagerCall | None) -> EagerCall | None:
        """Set the call, and return the one before."""
        before, self.call = self.call, call
        return before


_in_dynamo = _InDynamo()


def run_below(
    stock: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Run a call through torch.compile. If Dynamo runs it eagerly, record its end."""
    before = _in_dynamo.swap(None)
    began, error = time.perf_counter(), None
    try:
        return stock(*args, **kwargs)
    except RuntimeError as raised:
        error = raised
        raise
    finally:
        call = _in_dynamo.swap(before)
        try:
            if call is not None:
                call.ended(began, error)
        finally:
            error = None  # whose traceback has this frame, and this frame the arguments


def note_in_dynamo(call: EagerCall) -> None:
    """Tell `run_below`, if it made this call, that Dynamo runs it eagerly."""
    # An eager call may make others. The outermost one is what `run_below` measures.
    if _in_dynamo.call is None:
        _in_dynamo.call = call
