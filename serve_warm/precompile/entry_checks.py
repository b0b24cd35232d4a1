# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of loaded entries against eager, in the replica that runs them.

Facts and guards catch what somebody thought of. This catches the rest: a kernel that computes
something else, weights that need more precision than those of the build, a check that forgot a
case. Each comparison happens inside a call, on its thread and in its state, so that nothing about
them has to be built again. What differs is withdrawn: its calls go to torch.compile.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from serve_warm._redaction import loggable
from serve_warm.precompile.eager_check import (
    NotComparable,
    copy_tensors,
    difference_in_service,
    is_same,
)
from serve_warm.precompile.entries import Entry
from serve_warm.precompile.facts import NoEntry
from serve_warm.precompile.kept_calls import KeptCall, KeptCalls
from serve_warm.report import Parity, ParityResult

if TYPE_CHECKING:
    from serve_warm.precompile.dispatcher import Dispatcher

logger = logging.getLogger(__name__)

ONCE: Final = "once"
"""Name of the field in an entry's plan: why its calls may not run twice, empty if they may. Entries
of older builds have no such field, and count as those that may not."""

FAILURES_KEPT = 20
"""Withdrawn entries that a report names."""


class Phase(Enum):
    """Which calls are checked."""

    WARMING = "warming"
    """None: inputs are replayed until they are proven."""
    CHECKING = "checking"
    """The first call of an entry, for each callable that has none checked yet."""
    SERVING = "serving"
    """Calls of traffic."""


@dataclass
class Check:
    """How far one entry of one callable is checked."""

    entry: Entry
    result: ParityResult | None = None
    """Of the last check; None before the first."""
    calls: int = 0
    """Calls of traffic, while these are sampled."""
    kept: KeptCall | None = None

    @property
    def may_repeat(self) -> bool:
        """Whether a second run of a call changes nothing."""
        return self.entry.plan.get(ONCE) == ""

    @property
    def call(self) -> str:
        """Which call it is, by shapes: other arguments are values of requests."""
        return f"({', '.join(self.entry.signature.tensors)})"


class _OfThread(threading.local):
    is_eager = False
    """Whether this thread is in the eager half of a check."""


_of_thread = _OfThread()


class Checks:
    """All checks of one start, and what came of them."""

    def __init__(
        self,
        *,
        one_in: int,
        withdraw: Callable[[Entry, str], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self.phase = Phase.WARMING
        self._one_in = one_in
        self._withdraw = withdraw
        self._on_failure = on_failure
        self._checks: weakref.WeakKeyDictionary[Dispatcher, dict[tuple[str, str], Check]] = (
            weakref.WeakKeyDictionary()
        )
        self._locks: weakref.WeakKeyDictionary[Dispatcher, threading.RLock] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(ParityResult, 0)
        self._failures: list[str] = []
        self._failed = 0
        self._worst: float | None = None
        self._last_call_s = time.monotonic()
        self.kept = KeptCalls(self, self._lock)
        """Calls to be checked when the replica is idle."""

    # What a dispatcher asks -----------------------------------------------------------------

    def around(
        self, dispatcher: Dispatcher, entry: Entry, fn: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return what runs in place of an entry: itself, where no check of it is to come."""
        check = self._check_of(dispatcher, entry)
        return _Checked(self, dispatcher, check, fn) if self._may_come(check) else fn

    def _may_come(self, check: Check) -> bool:
        if self.phase is not Phase.SERVING or check.result is None or self._one_in:
            return True
        # While calls are kept, a call of any entry says that the replica is not idle.
        return bool(self.kept.waiting())

    def _check_of(self, dispatcher: Dispatcher, entry: Entry) -> Check:
        key = (entry.function_key, str(entry.signature))
        with self._lock:
            return self._checks.setdefault(dispatcher, {}).setdefault(key, Check(entry))

    # What a start asks ----------------------------------------------------------------------

    @property
    def failed(self) -> int:
        """How many entries were withdrawn."""
        return self._failed

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """Check calls in the block, one entry of each callable."""
        self.phase = Phase.CHECKING
        try:
            yield
        finally:
            self.phase = Phase.WARMING

    def is_done(self) -> bool:
        """Return whether each callable that ran an entry has one that was checked."""
        return all(map(self._has_checked, self._list_seen()))

    def _list_seen(self) -> list[Dispatcher]:
        with self._lock:
            return list(self._checks)

    def _has_checked(self, dispatcher: Dispatcher) -> bool:
        # One that was withdrawn is none: the next one is checked in its place.
        results = {check.result for check in self._checks_of(dispatcher)}
        return bool(results - {None, ParityResult.DIFFERENT}) or None not in results

    def _checks_of(self, dispatcher: Dispatcher) -> list[Check]:
        with self._lock:
            return list(self._checks[dispatcher].values())

    def serve(self) -> None:
        """Check calls of traffic from now on, and leave what needs no check to itself."""
        self.phase = Phase.SERVING
        for dispatcher in self._list_seen():
            for check in self._checks_of(dispatcher):
                if check.result is None and not check.may_repeat:
                    self._note(check, ParityResult.NOT_SAMPLED)
        self.forget_calls()

    def forget_calls(self) -> None:
        """Have each callable run the code of its entries without a detour, where no check comes."""
        for dispatcher in self._list_seen():
            dispatcher.forget_calls()

    def report(self) -> Parity:
        """Return what was checked until now."""
        with self._lock:
            checks = self.all_checks()
            checked = sum(c.result not in (None, ParityResult.NOT_SAMPLED) for c in checks)
            return Parity(
                entries=len(checks),
                checked=checked,
                results={result.value: count for result, count in self._counts.items()},
                failed=self._failed,
                failures=tuple(self._failures),
                worst_error=self._worst,
            )

    def all_checks(self) -> list[Check]:
        """Return the checks of all entries that were called. Under the lock."""
        return [check for found in self._checks.values() for check in found.values()]

    def idle_s(self) -> float:
        """Return for how long no entry that may be checked was called."""
        return time.monotonic() - self._last_call_s

    def called(self) -> None:
        """Note that an entry is called."""
        self._last_call_s = time.monotonic()

    # One check ------------------------------------------------------------------------------

    def is_due(self, dispatcher: Dispatcher, check: Check) -> bool:
        """Return whether this call of an entry is checked before READY."""
        if self.phase is not Phase.CHECKING or check.result is not None:
            return False
        return not self._has_checked(dispatcher)

    def is_sampled(self, dispatcher: Dispatcher, check: Check) -> bool:
        """Return whether this call of traffic is checked, and count it."""
        is_first = check.result is None and check.kept is None
        if not is_first and not self._one_in:
            return False
        with self._lock:
            check.calls += 1
            is_turn = self._one_in > 0 and check.calls % self._one_in == 0
        if not (is_first or is_turn):
            return False
        if not check.may_repeat:
            self._note(check, ParityResult.NOT_SAMPLED)
            if not self._may_come(check):
                dispatcher.forget_calls()
        return check.may_repeat

    def lock_of(self, dispatcher: Dispatcher) -> threading.RLock:
        """Return what keeps other calls of a callable away while one of them is checked."""
        with self._lock:
            return self._locks.setdefault(dispatcher, threading.RLock())

    def compare(
        self,
        dispatcher: Dispatcher,
        check: Check,
        fn: Callable[..., Any],
        tensors: Sequence[Any],
    ) -> None:
        """Hold what stands for an entry against eager for one call, on copies.

        Raises:
            NoEntry: it differs, and is withdrawn.
        """
        eager = check.entry.signature.function("eager")

        def run_eager(callee: Any, *copies: Any) -> Any:
            _of_thread.is_eager = True
            try:
                return eager(callee, *copies)
            finally:
                _of_thread.is_eager = False

        try:
            error = difference_in_service(
                dispatcher.callee, run_eager, fn, tensors, restore=not check.may_repeat
            )
        except NoEntry as wrong:
            why = f"withdrawn: {wrong}"
            self._fail(dispatcher, check, why)
            raise NoEntry(why) from wrong
        except NotComparable as why:
            self._give_up(dispatcher, check, str(why))
        except Exception as raised:
            # Eager needs more memory than the entry, and runs code of the user's that nobody asked
            # to run twice. Whatever it raises is not the request's: that is answered as without a
            # check.
            if check.result is not ParityResult.NOT_COMPARABLE:
                what = "a check against eager failed: %s%s"
                logger.exception(what, dispatcher.name, check.call, exc_info=loggable(raised))
            self._note(check, ParityResult.NOT_COMPARABLE)
        else:
            self._note(check, ParityResult.SAME)
            with self._lock:
                self._worst = max(self._worst or 0.0, error)

    def answer(
        self,
        dispatcher: Dispatcher,
        check: Check,
        fn: Callable[..., Any],
        tensors: Sequence[Any],
    ) -> Any:
        """Return the answer of an entry to a call of traffic, once it was held against eager.

        The entry runs once, as without a check: what it returns may be a part of its inputs.

        Raises:
            NoEntry: it differs, and is withdrawn. The inputs are as they were.
        """
        try:
            before = copy_tensors(tensors)
        except RuntimeError as error:  # out of memory, which the request may not need
            self._give_up(dispatcher, check, str(error))
            return fn(dispatcher.callee, *tensors)
        out = fn(dispatcher.callee, *tensors)

        def answered(_: Any, *copies: Any) -> Any:
            for copy, tensor in zip(copies, tensors, strict=True):
                if not is_same(copy, tensor):
                    copy.copy_(tensor)  # the entry wrote into it
            return out

        try:
            self.compare(dispatcher, check, answered, before)
        except NoEntry:
            for tensor, copy in zip(tensors, before, strict=True):
                if not is_same(tensor, copy):
                    tensor.copy_(copy)
            raise
        check.kept = None
        if not self._may_come(check):
            dispatcher.forget_calls()
        return out

    def _give_up(self, dispatcher: Dispatcher, check: Check, why: str) -> None:
        if check.result is not ParityResult.NOT_COMPARABLE:  # once, and not at each sample
            logger.warning("not comparable: %s%s: %s", dispatcher.name, check.call, why)
        self._note(check, ParityResult.NOT_COMPARABLE)

    def _note(self, check: Check, result: ParityResult) -> None:
        with self._lock:
            self._counts[result] += 1
            if result is not ParityResult.NOT_SAMPLED or check.result is None:
                check.result = result

    def _fail(self, dispatcher: Dispatcher, check: Check, why: str) -> None:
        if check.result is ParityResult.DIFFERENT:
            return  # by another thread, meanwhile
        text = f"{dispatcher.name}{check.call}: {why.partition(': ')[2]}"
        self._note(check, ParityResult.DIFFERENT)
        with self._lock:
            self._failed += 1
            if len(self._failures) < FAILURES_KEPT:
                self._failures.append(text)
        self._withdraw(check.entry, why)
        logger.error("withdrew an entry that is not what eager computes: %s", text)
        self._on_failure(text)


class _Checked:
    """Code of an entry, which is held against eager when that is due."""

    def __init__(
        self, checks: Checks, dispatcher: Dispatcher, check: Check, fn: Callable[..., Any]
    ) -> None:
        self.__globals__ = getattr(fn, "__globals__", {})
        """As of the function: whoever handles its errors looks for the graph there."""
        self._checks = checks
        self._dispatcher = dispatcher
        self._check = check
        self._fn = fn

    def __call__(self, callee: Any, /, *tensors: Any) -> Any:
        """Run the entry; `NoEntry` is raised where it is withdrawn by this call."""
        checks, check = self._checks, self._check
        if _of_thread.is_eager:
            # A callable inside another one that is being checked: eager is eager all through.
            return check.entry.signature.function("eager")(callee, *tensors)
        if checks.phase is Phase.SERVING:
            checks.called()
            if checks.is_sampled(self._dispatcher, check):
                return checks.answer(self._dispatcher, check, self._fn, tensors)
            return self._fn(callee, *tensors)
        with checks.lock_of(self._dispatcher):
            if checks.is_due(self._dispatcher, check):
                checks.compare(self._dispatcher, check, self._fn, tensors)
            elif checks.phase is Phase.WARMING:
                checks.kept.keep(self._dispatcher, check, self._fn, tensors)
            return self._fn(callee, *tensors)
