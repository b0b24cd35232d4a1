# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Calls whose inputs are kept, so that the entries can be checked when the replica is idle."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from serve_warm.precompile.calls import signature as call_signature
from serve_warm.precompile.calls.copies import copy_tensors
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.parity.check import KeptCall

if TYPE_CHECKING:
    from serve_warm.precompile.parity.check import Check, CheckedCallable

KEPT_BYTES = 64 << 20
"""Limit in bytes for copies of inputs that wait until the replica is idle. If the copies for a call
do not fit, the call's entry is checked in a later request instead."""


class Comparing(Protocol):
    """The checks to which the kept calls belong."""

    def all_checks(self) -> list[Check]:
        """Return the checks of all entries that were called. The caller must hold the lock."""

    def lock_of(self, dispatcher: CheckedCallable) -> threading.RLock:
        """Return the lock that blocks other calls to a callable during a check."""

    def compare(
        self,
        dispatcher: CheckedCallable,
        check: Check,
        fn: Callable[..., object],
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """Compare the code of an entry with eager execution for one call."""


class KeptCalls:
    """Copies of the inputs of one call for each unchecked entry, in limited memory."""

    def __init__(self, checks: Comparing, lock: threading.Lock) -> None:
        self._checks = checks
        self._lock = lock
        """Protects the checks, which any thread may use."""

    def keep(
        self,
        dispatcher: CheckedCallable,
        check: Check,
        fn: Callable[..., object],
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """Copy the inputs of a call, if memory allows, to check the call's entry later."""
        if check.kept is not None or check.result is not None or not check.may_repeat:
            return
        storages = [tensor.untyped_storage() for tensor in tensors]
        size = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
        with self._lock:
            kept = sorted(
                (each for each in self._checks.all_checks() if each.kept is not None),
                key=_size,
                reverse=True,
            )
            room = KEPT_BYTES - sum(map(_size, kept))
            # Replace larger inputs, because many small calls are more useful than one large call.
            while size > room and kept and _size(kept[0]) > size:
                room += _size(kept[0])
                kept.pop(0).kept = None
            if size > room:
                return
        try:
            copies = copy_tensors(tensors)
        except RuntimeError:  # out of memory: a later request checks the entry
            return
        check.kept = KeptCall(
            dispatcher=weakref.ref(dispatcher),
            fn=fn,
            tensors=copies,
            size_bytes=size,
            thread=threading.get_native_id(),
        )

    def waiting(self) -> list[Check]:
        """Return the checks for which a call is kept."""
        with self._lock:
            return [each for each in self._checks.all_checks() if each.kept is not None]

    def thread_of_next(self) -> int | None:
        """Return the native id of the thread that must check the next kept call."""
        return next((each.kept.thread for each in self.waiting() if each.kept is not None), None)

    def check_one(self) -> None:
        """Check one kept call that this thread made."""
        here = threading.get_native_id()
        for check in self.waiting():
            kept = check.kept
            if kept is not None and kept.thread == here:
                check.kept = None
                dispatcher = kept.dispatcher()
                if dispatcher is not None and check.result is None:
                    self._check_later(dispatcher, check, kept)
                return

    def _check_later(self, dispatcher: CheckedCallable, check: Check, kept: KeptCall) -> None:
        state = check.entry.state
        with (
            torch.inference_mode(state["inference_mode"] == "on"),
            torch.no_grad(),
            contextlib.suppress(NoEntry),  # the entry was withdrawn and reported
            self._checks.lock_of(dispatcher),
        ):
            # The handler may set state such as autocast, which is missing here. Then the handler's
            # next call is checked instead.
            if call_signature.state() == state:
                self._checks.compare(dispatcher, check, kept.fn, kept.tensors)
        dispatcher.forget_calls()

    def drop(self, thread: int | None = None) -> None:
        """Drop all kept calls, or the calls of one thread.

        The entries of these calls are then checked in later requests.
        """
        for check in self.waiting():
            if thread is None or (check.kept is not None and check.kept.thread == thread):
                check.kept = None


def _size(check: Check) -> int:
    return check.kept.size_bytes if check.kept is not None else 0
