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
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest

from serve_warm._redaction import excerpt
from serve_warm.inputs import InputSignature
from serve_warm.report import EagerCalls, EagerReason

KINDS_KEPT = 256
"""Maximum number of kinds of calls that are recorded. Further kinds are counted together: per
callable for this many callables, and beyond them as one."""

TIMES_KEPT = 64
"""Number of calls of a kind, the latest ones, whose median time is reported."""

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

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0
        self.why = ""
        """Why no compiled code fits, in words."""
        self.declare = ""
        """The input to declare for such calls."""
        self._times: deque[float] = deque(maxlen=TIMES_KEPT)

    def took(self, seconds: float) -> None:
        """Record the wall-clock seconds of a call."""
        self.seconds += seconds
        self._times.append(seconds)

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
            for key in ((function, call, reason), (function, OTHERS, reason)):
                kind = self._kinds.get(key)
                has_room = len(self._kinds) < KINDS_KEPT * (1 if key[1] != OTHERS else 2)
                if kind is not None or has_room:
                    break
            else:
                key, kind = (OTHERS, OTHERS, reason), self._kinds.get((OTHERS, OTHERS, reason))
            if is_new := kind is None:
                kind = self._kinds[key] = EagerKind()
            kind.calls += 1
            return kind, is_new and key[1] != OTHERS

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
                seconds=kind.seconds,
                median_s=kind.median_s,
                why=kind.why,
                declare=kind.declare,
            )
            for (function, call, reason), kind in kinds
        ]


class _InDynamo(threading.local):
    kind: EagerKind | None = None
    """The kind of the call of this thread that Dynamo runs eagerly, if any."""

    def swap(self, kind: EagerKind | None) -> EagerKind | None:
        """Set the kind, and return the one before."""
        before, self.kind = self.kind, kind
        return before


_in_dynamo = _InDynamo()


class EagerAnswers:
    """Decides which calls run eagerly, and records them.

    `takes` returns whether the current call runs eagerly if it would compile. `on_new` is called
    with the callable, the call and the kind at the first call of each kind, on its thread.
    """

    def __init__(
        self,
        record: EagerRecord,
        reason: EagerReason,
        *,
        takes: Callable[[], bool],
        on_new: Callable[[str, str, EagerKind], None] = lambda *_: None,
    ) -> None:
        self.taken: Counter[str] = Counter()
        """How many calls ran eagerly, by callable."""
        self._record = record
        self.takes = takes
        self._reason = reason
        self._on_new = on_new

    def note(
        self,
        function: str,
        call: str,
        why: Callable[[], str],
        *,
        reason: EagerReason | None = None,
    ) -> EagerKind:
        """Count a call that runs eagerly. `why` is called once for each kind."""
        self.taken[function] += 1
        kind, is_new = self._record.add(function, call, reason or self._reason)
        if is_new:
            kind.why = excerpt(why())
            self._on_new(function, call, kind)
        return kind


answers: EagerAnswers | None = None
"""What decides about eager calls, if anything. Read only where no compiled code fits a call."""


def answer_from_now_on(chosen: EagerAnswers | None) -> None:
    """Let `chosen` decide about the eager calls of this process."""
    global answers  # noqa: PLW0603 - process-wide, like the hooks that read it
    answers = chosen


@contextlib.contextmanager
def answering(chosen: EagerAnswers) -> Iterator[EagerAnswers]:
    """Let `chosen` decide in the block, and then who decided before."""
    before = answers
    answer_from_now_on(chosen)
    try:
        yield chosen
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
    kind = decided.note(function, _describe(callee, args, kwargs), why, reason=reason)
    CALLS.n += 1
    began = time.perf_counter()
    try:
        return callee(*args, **kwargs)
    finally:
        kind.took(time.perf_counter() - began)


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
    return str(InputSignature.of({**named, **kwargs}))


def run_below(
    stock: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Run a call through torch.compile, and record its time if Dynamo runs it eagerly."""
    before = _in_dynamo.swap(None)
    began = time.perf_counter()
    try:
        return stock(*args, **kwargs)
    finally:
        kind = _in_dynamo.swap(before)
        if kind is not None:
            kind.took(time.perf_counter() - began)


def time_in_dynamo(kind: EagerKind) -> None:
    """Let `run_below`, if it made this call, record the time of this kind."""
    # An eager call may make others. The outermost one is what `run_below` measures.
    if _in_dynamo.kind is None:
        _in_dynamo.kind = kind
