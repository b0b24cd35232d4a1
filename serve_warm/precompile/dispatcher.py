# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The path of each request: a call runs an entry that was made for it, or what torch.compile made.

What Dynamo's guards protected is checked here:

    each call     structure and scalars of the arguments; tensors' metadata; grad mode, autocast,
                  default dtype, threads and whatever else torch keeps per thread or process; and
                  that nothing changed where facts were read from (`module_changes`)
    each start,   files of the code in the graph; classes of modules; every value, type, function,
    and after     tensor and hook that the graph was built on (`binding`)
    a change
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from serve_warm._redaction import redact, shorten
from serve_warm.compiler import evidence
from serve_warm.compiler.compiled_objects import HandedOver
from serve_warm.precompile import call_signature
from serve_warm.precompile.aoti_library import LibraryFailedCleanly
from serve_warm.precompile.binding import Binder, Binding, Use
from serve_warm.precompile.call_checks import intercepted, state_check, tensor_check
from serve_warm.precompile.call_signature import Signature, key_of
from serve_warm.precompile.entries import Entry, EntryTable
from serve_warm.precompile.entry_builder import EntryBuilder, NotYet
from serve_warm.precompile.entry_function import may_run_again
from serve_warm.precompile.facts import NoEntry
from serve_warm.precompile.session import LIBRARY_LEVEL, SESSION
from serve_warm.report import EntryUse

logger = logging.getLogger(__name__)

CALLS_KEPT = 256
"""Different calls that a dispatcher keeps a record of; counts go on beyond."""

HITS_KEPT = 2048
"""Kinds of calls that are found the quick way; of more the one that came first is forgotten."""

NOT_ANSWERED = (NoEntry, LookupError, AttributeError, LibraryFailedCleanly)
"""What an entry raises before anything was computed: it refuses the call, or does not find what it
is to compute with, a submodule that another thread deletes for example. And a library that failed
without having written anything."""

is_dynamo_compiling = torch.compiler.is_dynamo_compiling


class Dispatcher(HandedOver):
    """One callable that was handed over: it runs an entry, or what torch.compile made of it.

    `stock` answers calls at level 1, and `torch_compiled` returns the object that torch.compile
    made for it. `level` is the highest one that is asked for.
    """

    def __init__(
        self,
        callee: Any,
        *,
        stock: Callable[..., Any],
        torch_compiled: Callable[[], Any],
        arguments: Mapping[str, Any],
        level: int = 2,
    ) -> None:
        self.callee = callee
        self.level = level
        self.stock = stock
        self.torch_compiled = torch_compiled
        self.arguments = dict(arguments)
        self.name = _name_of(callee)
        self.binder = Binder(callee, self.name, _in_words(self.arguments, level))
        self._builder = EntryBuilder(
            callee, self.name, arguments=self.arguments, level=level, lock=self.binder.lock
        )
        self._counts: dict[Use, int] = {}
        SESSION.dispatchers.add(self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # noqa: C901 - the hot path, whole
        """Run the entry for this call, or what torch.compile made."""
        # Of this thread alone; folded by Dynamo. `is_compiling` is true while any thread compiles.
        if is_dynamo_compiling():  # into an outer graph
            return self.callee(*args, **kwargs)
        binder, table = self.binder, SESSION.active
        binding = binder.binding
        if binding.table is table:
            if table is None:
                return self.stock(*args, **kwargs)
            has_changed = not binding.unchanged()
            if has_changed:
                # Most changes break no fact, or lead back to a state that was there before.
                with binder.lock:
                    binding = binder.bind_again()
            tensors: list[Any] = []
            key = key_of(args, kwargs, tensors, binding.known)
            found = binding.hits.get(key, ())
            if not found and binding.open_hits:
                key = key_of(args, kwargs, [], binding.known, sizes=False)
                found = binding.open_hits.get(key, ())
            for same_tensors, same_state, holds, fn, use in found:
                if not (same_tensors(*tensors) and same_state()):
                    continue
                if holds is not None and not holds(tensors):
                    continue
                if fn is None:
                    if has_changed:  # the reason may be another one now
                        break
                    self._counts[use] += 1
                    return self.stock(*args, **kwargs)
                calls = evidence.current  # once: it ends beside a request
                if calls is not None:
                    calls.add(threading.get_native_id())
                try:
                    return fn(self.callee, *tensors)
                except NOT_ANSWERED as error:
                    return self._answer_without(use[0], fn, error, args, kwargs)
        return self._look_up(args, kwargs)

    def library_arguments(self) -> str:
        """Return the arguments in words where libraries are asked for, and else nothing."""
        return _in_words(self.arguments, self.level) if self.level == LIBRARY_LEVEL else ""

    def uses(self) -> list[EntryUse]:
        """Return a record for each kind of call until now."""
        return [
            EntryUse(callable=self.name, call=call, level=level, reason=reason, calls=calls)
            for (call, level, reason), calls in list(self._counts.items())
            if calls
        ]

    def run_eagerly(self) -> None:
        """Answer calls at level 1 by the callable as it is written, without torch.compile."""
        self.stock = self.callee
        self.torch_compiled = lambda: self.callee

    # What the session asks ----------------------------------------------------------------------

    def bind(self) -> None:
        """Load the entries that fit the callable as it is now."""
        self.binder.bind()

    def bind_anew(self) -> None:
        """Ask for the code of all entries again, and forget what is known of calls."""
        self.binder.bind_anew()

    def forget_calls(self) -> None:
        """Find the code for each kind of call anew at its next call."""
        self.binder.forget_calls()

    def runs(self, entry: Entry) -> bool:
        """Return whether the callable runs the code of an entry."""
        return self.binder.has(entry)

    def withdraw_changed(self, table: EntryTable) -> None:
        """Withdraw what a build made for this callable and does not fit it any more."""
        self._builder.withdraw_changed(table)

    # A kind of call that is not known yet -------------------------------------------------------

    def _look_up(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Find the entry for a call the slow way, and remember it; or hand the call on."""
        building = SESSION.being_built is not None
        # Before the lock of this callable: what eager calls inside has locks of its own.
        with SESSION.build_lock if building else contextlib.nullcontext(), self.binder.lock:
            binding = self.binder.bind_again()
            fn, use, tensors = self._choose(binding, args, kwargs, building=building)
        if fn is None:
            return self.stock(*args, **kwargs)
        calls = evidence.current
        if calls is not None:
            calls.add(threading.get_native_id())
        try:
            return fn(self.callee, *tensors)
        except NOT_ANSWERED as error:
            self._counts[use] -= 1
            return self._answer_without(use[0], fn, error, args, kwargs)

    def _choose(
        self, binding: Binding, args: Sequence[Any], kwargs: Mapping[str, Any], *, building: bool
    ) -> tuple[Callable[..., Any] | None, Use, Sequence[Any]]:
        """Return the code that answers a call, how it is counted, and the call's tensors."""
        table = binding.table
        call = "(...)"
        if table is None:
            return None, (call, 1, ""), ()
        fn: Callable[..., Any] | None = None
        entry: Entry | None = None
        tensors: Sequence[Any] = ()
        try:
            known = None if building else binding.known
            signature, tensors = call_signature.describe(args, kwargs, known=known)
            call = str(signature)
            entry, fn = self._find(binding, table, signature, call_signature.state(), tensors)
        except NotYet:
            return None, (call, 1, ""), ()
        except NoEntry as error:
            if building:
                table.refused.setdefault((self.name, call), str(error))
            use = self._count(call, 1, str(error))
        else:
            use = self._count(call, entry.level, entry.reason)
            checks = SESSION.checks
            if not building and checks is not None:
                fn = checks.around(self, entry, fn)
        if not building and not (fn is None and intercepted()):
            self._remember(binding, args, kwargs, entry, fn, use)
        return fn, use, tensors

    def _find(
        self,
        binding: Binding,
        table: EntryTable,
        signature: Signature,
        state: Mapping[str, str],
        tensors: Sequence[Any],
    ) -> tuple[Entry, Callable[..., Any]]:
        if state["grad_mode"] == "on":
            raise NoEntry("called with grad mode on: use torch.inference_mode()")
        for entry, fn in binding.entries:
            if entry.takes(signature, state, tensors):
                self._builder.note_answer(entry)
                return entry, fn
        if SESSION.being_built is None or binding.unit is None:
            raise NoEntry(binding.why_none(self.name, table, signature, state))
        return self._builder.make(binding.unit, table, signature, state, tensors)

    def _remember(  # noqa: PLR0917 - one line of its caller's, with all that it knows
        self,
        binding: Binding,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        entry: Entry | None,
        fn: Callable[..., Any] | None,
        use: Use,
    ) -> None:
        """Find this kind of call the quick way from now on; without an entry it is level 1."""
        tensors: list[Any] = []
        open_sizes = entry is not None and entry.dynamic.is_open
        key = key_of(args, kwargs, tensors, binding.known, sizes=not open_sizes)
        if not tensors:
            return
        free: dict[int, Any] = {}
        holds = None
        if entry is not None and entry.dynamic.conditions:
            holds = entry.dynamic.holds
            free = {number: entry.dynamic.free(number) for number in range(len(tensors))}
        table = binding.open_hits if open_sizes else binding.hits
        if len(table) >= HITS_KEPT:
            table.pop(next(iter(table)), None)  # of shapes there is no end
        same = table.setdefault(key, [])
        check = tensor_check(tensors, free=free)
        same.insert(0, (check, state_check(), holds, fn, use))
        # Calls that differ only in what is checked in C++: a few kinds, not one a request.
        del same[4:]

    def _count(self, call: str, level: int, reason: str) -> Use:
        use = (call, level, shorten(redact(reason)) if reason else "")
        if use not in self._counts:
            if len(self._counts) >= CALLS_KEPT:
                use = ("other calls", level, "")
            elif reason:
                logger.warning("level %d for %s%s: %s", level, self.name, call, use[2])
        self._counts[use] = self._counts.get(use, 0) + 1
        return use

    def _answer_without(
        self,
        call: str,
        fn: Callable[..., Any],
        error: BaseException,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Answer a call that an entry did not, or raise what is the answer."""
        if isinstance(error, LibraryFailedCleanly):
            # Eager raises what the user expects of such an input; torch.compile would be imported.
            value = self.callee(*args, **kwargs)
            self._count(call, 1, str(error))
            return value
        self._count(call, 1, _why_not_run(fn, error))
        return self.stock(*args, **kwargs)


def _why_not_run(fn: Callable[..., Any], error: BaseException) -> str:
    """Return why an entry did not come to its graph; what may have been computed raises on."""
    if isinstance(error, NoEntry):
        return str(error)
    if not may_run_again(fn, error):
        raise error
    return f"it does not find what it was built with: {type(error).__name__}: {error}"


def _name_of(callee: Any) -> str:
    if isinstance(callee, torch.nn.Module):
        return f"{type(callee).__module__}.{type(callee).__qualname__}"
    owner = getattr(callee, "__self__", None)
    if owner is not None:
        kind, name = type(owner), callee.__name__
        # The call of a block that is compiled in place goes by the name of the block.
        method = "" if name == "_call_impl" else f".{name}"
        return f"{kind.__module__}.{kind.__qualname__}{method}"
    if not hasattr(callee, "__qualname__"):  # a partial, or an object that can be called
        return f"{type(callee).__module__}.{type(callee).__qualname__}"
    return f"{callee.__module__}.{callee.__qualname__}"


def _in_words(arguments: Mapping[str, Any], level: int) -> str:
    """Return the arguments that change compiled code, as text that is equal when they are."""
    kept = {k: v for k, v in arguments.items() if k not in ("recompile_limit", "fullgraph", "name")}
    if level != 2:
        kept["level"] = level
    return ", ".join(f"{key}={kept[key]!r}" for key in sorted(kept)) or "no arguments"
