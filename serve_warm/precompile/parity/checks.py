# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of loaded entries against eager execution, in the replica that runs the entries.

Facts and guards find known causes of errors. These checks find other errors: a kernel that computes
wrong results, weights that need more precision than the build's weights, or a missing guard. Each
check runs on the thread that made the call, with the same torch state, such as autocast. If the
result of an entry differs, the entry is withdrawn, and torch.compile then runs the entry's calls.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch

from serve_warm._redaction import loggable
from serve_warm.precompile.calls.copies import Different, OtherStructure, copy_tensors, is_same
from serve_warm.precompile.calls.forms import WrapsCode
from serve_warm.precompile.entries.table import Entry
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.parity.check import Check, CheckedCallable, Passed, Phase, Tally
from serve_warm.precompile.parity.eager import (
    NEVER_REFUSED,
    NotComparable,
    Outcome,
    StateBefore,
    TooFar,
    are_alike,
    check_same_kind,
    check_structure,
    find_difference,
)
from serve_warm.precompile.parity.kept_calls import KeptCalls
from serve_warm.report import Parity, ParityResult

logger = logging.getLogger(__name__)


class Counted(Protocol):
    """A dispatcher, or what stands for all dispatchers of one method or code."""

    def forget_calls(self) -> None:
        """Force a new lookup of the code at the next call of each kind."""


class _CheckingThread(threading.local):
    is_eager = False
    """Whether this thread is in the eager half of a check."""


_of_thread = _CheckingThread()


class Checks:
    """All checks of the loaded entries, and their results."""

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
        self._checks: weakref.WeakKeyDictionary[Counted, dict[tuple[str, str], Check]] = (
            weakref.WeakKeyDictionary()
        )
        self._locks: weakref.WeakKeyDictionary[CheckedCallable, threading.RLock] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()
        self._all_until_s = 0.0
        """Time until which all entries are checked in the phase CHECKING, not one a callable."""
        self._tally = Tally()
        self._last_call_s = time.monotonic()
        self.kept = KeptCalls(self, self._lock)
        """Calls to check when the replica is idle."""

    # Called by a dispatcher -----------------------------------------------------------------

    def around(
        self,
        dispatcher: CheckedCallable,
        entry: Entry,
        fn: Callable[..., object],
        followed: Callable[..., object],
        *,
        counted_for: Counted,
    ) -> Callable[..., object]:
        """Return a wrapper that checks an entry; if all checks are done, return the entry's code.

        `followed` runs the same code for calls that the dispatcher has just checked. A check counts
        for `counted_for`, which can stand for many dispatchers.
        """
        check = self._check_of(counted_for, entry)
        if not self._may_come(check):
            return followed
        return _CheckedCode(self, dispatcher, check, fn, followed, counted_for=counted_for)

    def _may_come(self, check: Check) -> bool:
        if self.phase is not Phase.SERVING or check.result is None or self._one_in:
            return True
        # While kept calls wait, a call of any entry shows that the replica is not idle.
        return bool(self.kept.waiting())

    def _check_of(self, counted_for: Counted, entry: Entry) -> Check:
        key = (entry.function_key, str(entry.signature))
        with self._lock:
            return self._checks.setdefault(counted_for, {}).setdefault(key, Check(entry))

    # Called by a start ----------------------------------------------------------------------

    @property
    def failed(self) -> int:
        """Number of withdrawn entries."""
        return self._tally.failed

    @contextlib.contextmanager
    def checking(self, budget_s: float = 0.0) -> Iterator[None]:
        """Check one entry of each compiled module or function in the block.

        For the first `budget_s` seconds, check all other entries that are called, too.
        """
        self.phase = Phase.CHECKING
        self._all_until_s = time.monotonic() + budget_s
        try:
            yield
        finally:
            self.phase = Phase.WARMING

    def is_done(self) -> bool:
        """Return whether no further entry needs a check before READY."""
        if not all(map(self._has_checked, self._list_seen())):
            return False
        return not self._has_time() or not self.waiting()

    def waiting(self) -> int:
        """Return how many entries have run and were not checked yet."""
        with self._lock:
            return sum(check.result is None for check in self.all_checks())

    def _has_time(self) -> bool:
        return time.monotonic() < self._all_until_s

    def _list_seen(self) -> list[Counted]:
        with self._lock:
            return list(self._checks)

    def _has_checked(self, dispatcher: Counted) -> bool:
        # A withdrawn entry does not count: the next entry is checked in its place.
        results = {check.result for check in self._checks_of(dispatcher)}
        return bool(results - {None, ParityResult.DIFFERENT}) or None not in results

    def _checks_of(self, dispatcher: Counted) -> list[Check]:
        with self._lock:
            return list(self._checks[dispatcher].values())

    def serve(self) -> None:
        """From now on, check calls that requests make. Stop wrapping entries that need no check."""
        self.phase = Phase.SERVING
        for dispatcher in self._list_seen():
            for check in self._checks_of(dispatcher):
                if check.result is None and not check.may_repeat:
                    self._note(check, ParityResult.NOT_SAMPLED)
        self.forget_calls()

    def forget_calls(self) -> None:
        """Make callables run entries directly if no more checks of these entries are possible."""
        for dispatcher in self._list_seen():
            dispatcher.forget_calls()

    def report(self) -> Parity:
        """Return the results so far."""
        with self._lock:
            checks = self.all_checks()
            checked = sum(c.result not in (None, ParityResult.NOT_SAMPLED) for c in checks)
            return Parity(
                entries=len(checks),
                checked=checked,
                results={result.value: count for result, count in self._tally.counts.items()},
                failed=self._tally.failed,
                failures=tuple(self._tally.failures),
                waiting=sum(c.result is None for c in checks),
                worst_error=self._tally.worst_error,
                near_ties=self._tally.near_ties,
                by_fixed_limit=self._tally.by_fixed_limit,
            )

    def all_checks(self) -> list[Check]:
        """Return the checks of all entries that were called. The caller must hold the lock."""
        return [check for found in self._checks.values() for check in found.values()]

    def idle_s(self) -> float:
        """Return the number of seconds since the last call of an entry that has checks."""
        return time.monotonic() - self._last_call_s

    def note_call(self) -> None:
        """Record that an entry is being called."""
        self._last_call_s = time.monotonic()

    # One check ------------------------------------------------------------------------------

    def is_due(self, dispatcher: Counted, check: Check) -> bool:
        """Return whether this call of an entry must be checked now, before READY."""
        if self.phase is not Phase.CHECKING or check.result is not None:
            return False
        return self._has_time() or not self._has_checked(dispatcher)

    def is_sampled(self, dispatcher: Counted, check: Check) -> bool:
        """Count this call of a request, and return whether to check it."""
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

    def lock_of(self, dispatcher: CheckedCallable) -> threading.RLock:
        """Return the lock that blocks other calls to a callable during a check."""
        with self._lock:
            return self._locks.setdefault(dispatcher, threading.RLock())

    def compare(
        self,
        dispatcher: CheckedCallable,
        check: Check,
        fn: Callable[..., object],
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """Compare `fn`, the code of an entry, with eager execution for one call, on copied inputs.

        Raises:
            NoEntry: the results differ, and the entry is withdrawn.
        """
        eager = check.entry.signature.function("eager")

        def run_eager(callee: object, *copies: torch.Tensor) -> object:
            _of_thread.is_eager = True
            try:
                return eager(callee, *copies)
            finally:
                _of_thread.is_eager = False

        try:
            passed = compare_in_service(
                dispatcher.callee,
                run_eager,
                fn,
                tensors,
                restore=not check.may_repeat,
                built=check.entry.errors,
            )
        except NoEntry as wrong:
            why = f"withdrawn: {wrong}"
            self._fail(dispatcher, check, why)
            raise NoEntry(why) from wrong
        except NotComparable as why:
            self._give_up(dispatcher, check, str(why))
        except Exception as raised:
            # Eager execution needs more memory than the entry, and is an extra run of user code.
            # Its errors must not reach the request, which gets the same answer as without a check.
            if check.result is not ParityResult.NOT_COMPARABLE:
                what = "a check against eager failed: %s%s"
                logger.exception(what, dispatcher.name, check.call, exc_info=loggable(raised))
            self._note(check, ParityResult.NOT_COMPARABLE)
        else:
            self._note(check, ParityResult.SAME)
            with self._lock:
                self._tally.note(passed)

    def answer(
        self,
        dispatcher: CheckedCallable,
        check: Check,
        fn: Callable[..., object],
        tensors: Sequence[torch.Tensor],
    ) -> object:
        """Return an entry's answer to a call from a request, after comparing the answer with eager.

        The entry runs only once, because its result might share memory with its inputs.

        Raises:
            NoEntry: the results differ, and the entry is withdrawn. The inputs are restored.
        """
        try:
            before = copy_tensors(tensors)
        except RuntimeError as error:  # no memory for copies, which the request does not need
            self._give_up(dispatcher, check, str(error))
            return fn(dispatcher.callee, *tensors)
        out = fn(dispatcher.callee, *tensors)

        def replay_answer(_: object, *copies: torch.Tensor) -> object:
            for copy, tensor in zip(copies, tensors, strict=True):
                if not is_same(copy, tensor):
                    copy.copy_(tensor)  # the entry wrote into it
            return out

        try:
            self.compare(dispatcher, check, replay_answer, before)
        except NoEntry:
            for tensor, copy in zip(tensors, before, strict=True):
                if not is_same(tensor, copy):
                    tensor.copy_(copy)
            raise
        check.kept = None
        if not self._may_come(check):
            dispatcher.forget_calls()
        return out

    def _give_up(self, dispatcher: CheckedCallable, check: Check, why: str) -> None:
        if check.result is not ParityResult.NOT_COMPARABLE:  # log once, not at each sample
            logger.warning("not comparable: %s%s: %s", dispatcher.name, check.call, why)
        self._note(check, ParityResult.NOT_COMPARABLE)

    def _note(self, check: Check, result: ParityResult) -> None:
        with self._lock:
            self._tally.counts[result] += 1
            if result is not ParityResult.NOT_SAMPLED or check.result is None:
                check.result = result

    def _fail(self, dispatcher: CheckedCallable, check: Check, why: str) -> None:
        if check.result is ParityResult.DIFFERENT:
            return  # another thread withdrew it meanwhile
        text = f"{dispatcher.name}{check.call}: {why.partition(': ')[2]}"
        self._note(check, ParityResult.DIFFERENT)
        with self._lock:
            self._tally.note_failure(text)
        self._withdraw(check.entry, why)
        logger.error("withdrew an entry that differs from eager: %s", text)
        self._on_failure(text)


class _CheckedCode(WrapsCode):
    """An entry's code, whose results are compared with eager execution when a check is due."""

    def __init__(
        self,
        checks: Checks,
        dispatcher: CheckedCallable,
        check: Check,
        fn: Callable[..., object],
        followed: Callable[..., object],
        *,
        counted_for: Counted,
    ) -> None:
        super().__init__(fn)
        self._checks = checks
        self._dispatcher = dispatcher
        self._check = check
        self._followed = followed
        self._counted_for = counted_for

    def __call__(self, callee: object, /, *tensors: torch.Tensor) -> object:
        """Run the entry; raise `NoEntry` if a check of this call withdraws the entry."""
        checks, check = self._checks, self._check
        if _of_thread.is_eager:
            # This callable runs inside the eager half of another callable's check, so it must also
            # run eagerly.
            return check.entry.signature.function("eager")(callee, *tensors)
        if checks.phase is Phase.SERVING:
            checks.note_call()
            if checks.is_sampled(self._counted_for, check):
                return checks.answer(self._dispatcher, check, self._fn, tensors)
            return self._followed(callee, *tensors)
        with checks.lock_of(self._dispatcher):
            if checks.is_due(self._counted_for, check):
                checks.compare(self._dispatcher, check, self._fn, tensors)
            elif checks.phase is Phase.WARMING:
                checks.kept.keep(self._dispatcher, check, self._fn, tensors)
            return self._fn(callee, *tensors)


# One comparison -----------------------------------------------------------------------------------


def compare_in_service(
    callee: object,
    function: Callable[..., object],
    compiled: Callable[..., object],
    tensors: Sequence[torch.Tensor],
    *,
    restore: bool,
    built: Sequence[float],
) -> Passed:
    """Compare one call with eager execution in a replica; errors do not quote request values.

    A difference of each tensor of at most the one in `built`, which the build measured, passes at
    once. A replica may have other weights than the build, so a larger difference is judged by a
    full-precision run with the replica's weights.

    With `restore`, also compares buffers, and restores the buffers and the random number state.
    Without `restore`, leaves buffers and random state alone, because other threads might be using
    both. So pass `restore=False` only for calls that change neither buffers nor random state.

    Raises:
        Different: the results differ by more than rounding, and two eager runs agree.
        NotComparable: two eager runs differ, or the call cannot be compared, for example because
            right code may choose another expert than eager in a near-tie.
    """
    kept = StateBefore(callee, restore=restore)
    try:
        eager = kept.run(function, tensors)
    except NoEntry as error:
        raise NotComparable(str(error)) from error
    try:
        ours = _run_compiled(kept, compiled, tensors)
        difference = _difference(eager, ours)
        if difference == 0.0 or (difference is not None and _is_as_built(eager, ours, built)):
            return Passed(difference=difference)
        from serve_warm.precompile.parity.distance_check import (
            compare_once,  # most starts do not need it
        )

        found = compare_once(callee, function, compiled, tensors, restore=restore)
        verdict = found.verdict
        if verdict.reason and found.unsure:
            raise NotComparable(verdict.reason)
        if verdict.reason:
            raise TooFar(verdict.reason)
    except Different as wrong:
        if not are_alike(eager, kept.run(function, tensors)):
            raise NotComparable("two eager runs of the same call differ") from wrong
        if isinstance(wrong, OtherStructure):
            raise Different(
                "its result has a different structure or value than the eager result"
            ) from None
        raise
    return Passed(difference=verdict.difference, near_ties=verdict.near_ties, fixed=verdict.fixed)


def _run_compiled(
    kept: StateBefore, compiled: Callable[..., object], tensors: Sequence[torch.Tensor]
) -> Outcome:
    try:
        return kept.run(compiled, tensors)
    except Different:
        raise
    except NoEntry as refusal:  # the entry computed nothing, and other code will run its calls
        raise NotComparable(f"the entry does not accept this call: {refusal}") from refusal


def _is_as_built(eager: Outcome, ours: Outcome, built: Sequence[float]) -> bool:
    """Return whether each tensor differs from eager by no more than in the build.

    Float32 results vary from input to input, far below what is never refused.
    """
    if len(built) < len(eager.tensors):
        return False
    return all(
        find_difference(one, other) <= max(most, min(4 * most, NEVER_REFUSED.get(one.dtype, most)))
        for one, other, most in zip(eager.tensors, ours.tensors, built, strict=False)
        if one.is_floating_point() or one.is_complex()
    )


def _difference(eager: Outcome, ours: Outcome) -> float | None:
    """Return the largest difference; None if other values than floats differ."""
    check_structure(eager, ours)
    worst = 0.0
    for one, other in zip(eager.tensors, ours.tensors, strict=True):
        check_same_kind(one, other)
        if one.is_floating_point() or one.is_complex():
            worst = max(worst, find_difference(one, other))
        elif not torch.equal(one, other):
            return None
    return worst
