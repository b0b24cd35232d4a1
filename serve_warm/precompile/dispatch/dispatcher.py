# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The dispatcher, which answers each compiled call with an entry or with torch.compile's code.

The dispatcher checks the conditions that Dynamo's guards would check.

At each call, it checks the structure and scalars of the arguments, the tensors' metadata, and the
state that torch keeps per thread or process, such as grad mode, autocast, default dtype and number
of threads. It also checks whether the sources of facts have changed (`changes.fact_watch`).

When an entry is loaded, the dispatcher checks the files of the code in the graph. At each start and
after each change, it checks the classes of modules, and every value, type, function, tensor and
hook that the graph was built on (`binding`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from serve_warm.compiler import eager_calls, evidence
from serve_warm.compiler.compiled_objects import HandedOver
from serve_warm.compiler.eager_calls import CALLS
from serve_warm.precompile.calls import signature as call_signature
from serve_warm.precompile.calls.eagerly import is_eager
from serve_warm.precompile.calls.forms import Reordered, find_form, order_of
from serve_warm.precompile.calls.signature import Signature, key_of
from serve_warm.precompile.calls.torch_state import state_check, tensor_check
from serve_warm.precompile.dispatch.binding import Binder, Binding, OfClass
from serve_warm.precompile.dispatch.call_counts import CallCounts, Use, kind_of
from serve_warm.precompile.dispatch.first_calls import FirstCalls
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.dispatch.settling_calls import SettlingCallDue, SettlingCalls
from serve_warm.precompile.entries.function import may_run_again
from serve_warm.precompile.entries.table import Entry, EntryTable, NotYet
from serve_warm.precompile.facts.names import identity, name_of_class
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.plan import LIBRARY_LEVEL
from serve_warm.precompile.libraries.run import LibraryFailedCleanly, for_known_calls
from serve_warm.private_apis import nn_module, torch_c
from serve_warm.report import EagerReason, EntryUse

if TYPE_CHECKING:
    from serve_warm.compiler.eager_calls import EagerAnswers
    from serve_warm.precompile.facts.names import Free
    from serve_warm.precompile.parity.checks import Counted

logger = logging.getLogger(__name__)

HITS_KEPT = 2048
"""Maximum number of kinds of calls that are found by key. Above this number, the dispatcher forgets
the oldest kind."""

NOT_ANSWERED = (NoEntry, LookupError, AttributeError, LibraryFailedCleanly)
"""Errors raised before an entry computed anything. Either the entry refuses the call, or the entry
needs an object that is missing, for example because another thread deleted a submodule. A library
raises `LibraryFailedCleanly` if it failed without changing anything."""

is_dynamo_compiling = torch.compiler.is_dynamo_compiling


class Shared:
    """What the dispatchers of one method or code share, for all instances of a class."""

    def __init__(
        self, callee: Callable[..., object], arguments: Mapping[str, object], level: int
    ) -> None:
        self.name = name_of(callee)
        self.arguments = _in_words(arguments, level)
        self.counts = CallCounts(self.name)
        self.first_calls = FirstCalls()
        self.of_class = OfClass()

    def forget_calls(self) -> None:
        """Do nothing: the dispatchers do not share calls whose entries may still be checked."""


class BindsMethods(Protocol):
    """A compiled function, which returns the dispatcher of its method for an instance."""

    def __get__(self, instance: object, owner: object = None) -> Callable[..., object]:
        """Return the compiled method of an instance."""


class Dispatcher(HandedOver):
    """One compiled callable, which runs an entry or torch.compile's code.

    `stock` runs calls at level 1, and `torch_compiled` returns the result of torch.compile. `level`
    is the highest level that the user requested. A dispatcher that may be for one request also has
    `shared`. The dispatcher of a method has `of`, the compiled function that returns the dispatcher
    for an instance.
    """

    def __init__(
        self,
        callee: Callable[..., object],
        *,
        stock: Callable[..., object],
        torch_compiled: Callable[[], Callable[..., object]],
        arguments: Mapping[str, object],
        level: int = 2,
        shared: Shared | None = None,
        of: BindsMethods | None = None,
    ) -> None:
        self._of = of
        of_class = None if shared is None else shared.of_class
        self.callee: Any = callee  # a bound method also has `__self__`
        self.level = level
        self.stock = stock
        self.torch_compiled = torch_compiled
        self.arguments = dict(arguments)
        self._shared = shared = shared or Shared(callee, arguments, level)
        self.name = shared.name
        self.binder = Binder(callee, self.name, shared.arguments, of_class)
        self.first_calls = shared.first_calls
        self._settling = SettlingCalls(callee, self.name, shared.first_calls)
        self.call_counts = shared.counts
        self._counts = shared.counts.by_use
        self._counted_for: Counted = shared if of is None else vars(of)["_serve_warm"]
        SESSION.dispatchers.add(self)
        SESSION.counts.add(shared.counts)

    def __call__(self, /, *args: object, **kwargs: object) -> object:  # noqa: C901, PLR0912 - the hot path
        """Run the entry for this call, or torch.compile's code."""
        # Dynamo folds this check of its own thread; `is_compiling` is true if any thread compiles.
        if is_dynamo_compiling():  # into an outer graph
            return self.callee(*args, **kwargs)
        binder, table = self.binder, SESSION.active
        binding = binder.binding
        if binding.table is table:
            if table is None:
                recorder = SESSION.recorder
                if recorder is not None:
                    recorder.note(self.call_counts, args, kwargs)
                return self.stock(*args, **kwargs)
            has_changed = not binding.unchanged()
            if has_changed:
                # Most changes do not affect a fact, or restore an earlier state.
                with binder.lock:
                    binding = binder.follow_changes()
            tensors: list[torch.Tensor] = []
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
                    if has_changed:  # the reason may have changed
                        break
                    self._counts[use] += 1
                    if evidence.current is not None:
                        self._note_replayed(use)
                    return self.stock(*args, **kwargs)
                CALLS.n += 1
                calls = evidence.current  # read once: it can become None during a request
                if calls is not None:
                    calls.add(threading.get_native_id())
                    self._note_replayed(use)
                self._counts[use] += 1
                try:
                    return fn(self.callee, *tensors)
                except NOT_ANSWERED as error:
                    return self._answer_without(use, fn, error, args, kwargs)
        return self._look_up(args, kwargs)

    def __copy__(self) -> Dispatcher:
        return self  # as for a plain method

    def __deepcopy__(self, memo: dict[int, object]) -> Callable[..., object]:
        get, (instance, *_) = self.__reduce__()
        return get(copy.deepcopy(instance, memo))

    def __reduce__(self) -> tuple[Callable[..., Callable[..., object]], tuple[object]]:
        if self._of is None:
            raise TypeError(f"cannot copy or pickle the dispatcher of {self.name}")
        return self._of.__get__, (self.callee.__self__,)

    def arguments_in_words(self) -> str:
        """Return the compile arguments as text; for level 2, it begins with the backend."""
        words = _in_words(self.arguments, self.level)
        if self.level == LIBRARY_LEVEL:
            return words
        backend = self.arguments.get("backend", "inductor")
        return f"{backend if isinstance(backend, str) else _in_word(backend)}: {words}"

    def was_called(self) -> bool:
        """Return whether any call has reached the dispatcher while entries could answer it."""
        return any(self._shared.counts.by_use.values())

    def uses(self) -> list[EntryUse]:
        """Return a record for each kind of call so far."""
        return self._shared.counts.uses()

    # Called by the session ----------------------------------------------------------------------

    def bind_anew(self) -> None:
        """Look for the entries that fit again, and forget all known calls."""
        if self.binder.bind_anew().runs_eagerly:
            self._run_eagerly()

    def forget_calls(self) -> None:
        """Force a new lookup of the code at the next call of each kind."""
        self.binder.forget_calls()

    def _run_eagerly(self) -> None:
        """From now on, run level-1 calls eagerly, without torch.compile."""
        self.stock = self.callee
        self.torch_compiled = lambda: self.callee

    # Unknown kinds of calls -----------------------------------------------------------------------

    def _look_up(self, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Find and store the entry for a new kind of call, or fall back to level 1."""
        if is_eager():
            return self.callee(*args, **kwargs)
        build = SESSION.being_built
        building = build is not None
        answers = None if building else self._eager_answers()
        # Take the build's lock before this callable's lock, because eager calls inside take the
        # locks of other callables.
        try:
            with SESSION.build_lock if building else contextlib.nullcontext(), self.binder.lock:
                binding = self.binder.bind_again()
                # The callable is new, or returned to a structure whose entry was withdrawn.
                if binding.runs_eagerly:
                    self._run_eagerly()
                fn, use, tensors = self._choose(
                    binding, args, kwargs, building=building, eager=answers is not None
                )
        except SettlingCallDue:
            return self._settling.run(args, kwargs)
        if fn is None:
            if build is not None:
                build.note_without_entry(self)
            if answers is not None:
                if answers.only_beside_entries and evidence.current is not None:
                    evidence.current.enter(evidence.NO_ENTRY)
                reason = EagerReason.CHANGED if binding.was_changed else None
                return eager_calls.answer(
                    answers, self.name, self.callee, args, kwargs, why=lambda: use[2], reason=reason
                )
            with evidence.below(use[2]):
                return self._settling.run_below(self.stock, args, kwargs)
        CALLS.n += 1
        calls = evidence.current
        if calls is not None:
            calls.add(threading.get_native_id())
        try:
            return fn(self.callee, *tensors)
        except NOT_ANSWERED as error:
            return self._answer_without(use, fn, error, args, kwargs)

    def _eager_answers(self) -> EagerAnswers | None:
        """Return the policy if it runs calls without an entry eagerly, or else None.

        None also if torch.compile may have code for this call: then the watch asks the policy.
        """
        answers = eager_calls.answers
        if answers is None or self.first_calls.have_run or not answers.takes():
            return None
        if answers.only_beside_entries and SESSION.active is None:
            return None
        return answers

    def _choose(
        self,
        binding: Binding,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        *,
        building: bool,
        eager: bool,
    ) -> tuple[Callable[..., object] | None, Use, Sequence[torch.Tensor]]:
        """Return the code that runs a call, the key for counting it, and the call's tensors.

        `eager` says that a call without an entry runs eagerly.
        """
        table = binding.table
        call = "(...)"
        if table is None:
            self._record(args, kwargs)
            return None, (call, 1, "", ""), ()
        signature: Signature | None = None
        fn: Callable[..., object] | None = None
        entry: Entry | None = None
        tensors: Sequence[torch.Tensor] = ()
        order: Sequence[int] | None = None
        is_checked = False
        try:
            known = None if building else binding.known
            signature, tensors = call_signature.describe(args, kwargs, known=known)
            call = str(signature)
            state = call_signature.state()
            entry, fn, order = self._find(binding, table, signature, state, tensors, args, kwargs)
        except NotYet:
            return None, (call, 1, "", ""), ()
        except NoEntry as error:
            if building:
                table.refused.setdefault((self.name, call), str(error))
            if eager:
                # Such calls are recorded apart. A call that was remembered would enter Dynamo.
                self._record(args, kwargs)
                return None, (call, 0, str(error), ""), ()
            kind = "" if signature is None else kind_of(signature, tensors)
            # All calls of a changed model have the same reason.
            use = self._count(call, 1, str(error), kind=kind, of_all=not binding.entries)
        else:
            kind = kind_of(signature, tensors)
            use = self._count(call, entry.level, entry.reason, kind=kind)
            checks = SESSION.checks
            if not building:
                followed = for_known_calls(fn, binding.watch)
                # A check for each object of a single request would double the work of requests.
                counted_for = self._counted_for if binding.is_for_one_call else self
                if checks is None:
                    fn = followed
                else:
                    fn = checks.around(self, entry, fn, followed, counted_for=counted_for)
                    is_checked = fn is not followed
            fn = fn if order is None else Reordered(fn, order)
        self._record_kind(use, signature, tensors)
        if not building and _may_remember(binding, fn, is_checked=is_checked):
            shared = binding.shared
            with contextlib.nullcontext() if shared is None else shared.lock:
                self._remember(binding, args, kwargs, entry, fn, use, order)
        return fn, use, tensors

    def _record(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Record a call that is not counted here."""
        if SESSION.recorder is not None:
            SESSION.recorder.note(self.call_counts, args, kwargs)

    def _record_kind(
        self, use: Use, signature: Signature | None, tensors: Sequence[torch.Tensor]
    ) -> None:
        """Record a kind of calls that are counted here."""
        is_traffic = SESSION.being_built is None
        if SESSION.recorder is not None and signature is not None and is_traffic:
            SESSION.recorder.note_kind(self.call_counts, use, signature, tensors)

    def _note_replayed(self, use: Use, calls: int = 1) -> None:
        """Tell the recorder of calls that are counted here, if a replay makes them."""
        if SESSION.recorder is not None and evidence.is_replay():
            SESSION.recorder.note_replayed(self.call_counts, use, calls)

    def _find(  # noqa: PLR0917 - called once, with all that the caller knows
        self,
        binding: Binding,
        table: EntryTable,
        signature: Signature,
        state: Mapping[str, str],
        tensors: Sequence[torch.Tensor],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> tuple[Entry, Callable[..., object], Sequence[int] | None]:
        """Return a call's entry, its code, and the code's order of tensors; None if unchanged."""
        if state["grad_mode"] == "on":
            raise NoEntry("called with grad mode on: use torch.inference_mode()")
        for entry, fn in binding.entries:
            if entry.takes(signature, state, tensors):
                return self._noted(entry), fn, None
        other = find_form(binding.entries, self.callee, state, args, kwargs)
        if other is not None:
            entry, fn, in_order = other
            return self._noted(entry), fn, order_of(in_order, tensors)
        build = SESSION.being_built
        if build is None or build.table is not table or binding.unit is None:
            self._settling.take(binding, (signature, state, tensors), args, kwargs)
            raise NoEntry(binding.why_none(self.name, table, signature, state))
        return *build.entry_for(self, binding.unit, signature, state, tensors), None

    def _count(
        self, call: str, level: int, reason: str, *, kind: str = "", of_all: bool = False
    ) -> Use:
        use = self._shared.counts.count(
            call, level, reason, kind=kind, of_all=of_all, is_trial=SESSION.is_probing
        )
        self._note_replayed(use)
        return use

    def _noted(self, entry: Entry) -> Entry:
        if SESSION.being_built is not None:
            SESSION.being_built.note_answer(self, entry)
        return entry

    def _remember(  # noqa: PLR0917 - called once, with all that the caller knows
        self,
        binding: Binding,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        entry: Entry | None,
        fn: Callable[..., object] | None,
        use: Use,
        order: Sequence[int] | None = None,
    ) -> None:
        """Store the code for this kind of call under its key.

        A call without an entry runs at level 1.
        """
        tensors: list[torch.Tensor] = []
        open_sizes = entry is not None and entry.dynamic.is_open
        key = key_of(args, kwargs, tensors, binding.known, sizes=not open_sizes)
        if not tensors:
            return
        free: dict[int, Free] = {}
        holds = None
        if entry is not None and entry.dynamic.conditions:
            holds = entry.dynamic.holds
            places = range(len(tensors)) if order is None else order
            if order is not None:
                holds = functools.partial(_hold_in_order, holds, order)
            free = {place: entry.dynamic.free(number) for number, place in enumerate(places)}
        table = binding.open_hits if open_sizes else binding.hits
        if len(table) >= HITS_KEPT:
            table.pop(next(iter(table)), None)  # there can be any number of shapes in traffic
        same = table.setdefault(key, [])
        check = tensor_check(tensors, free=free)
        same.insert(0, (check, state_check(), holds, fn, use))
        # `same` has calls with equal keys, which differ only in properties that C++ checks. A few
        # kinds of such calls are enough.
        del same[4:]

    def _answer_without(
        self,
        use: Use,
        fn: Callable[..., object],
        error: BaseException,
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> object:
        """Run a call without its entry, because the entry failed, and count it so.

        Raises `error` if the entry's graph might have run: then the error is the call's result.
        """
        self._counts[use] -= 1
        self._note_replayed(use, -1)
        call, _, _, kind = use
        if isinstance(error, LibraryFailedCleanly):
            # Eager execution raises the error that the user expects, but torch.compile would import
            # Dynamo.
            value = self.callee(*args, **kwargs)
            self._count(call, 1, str(error), kind=kind)
            return value
        why = _why_not_run(fn, error)
        self._count(call, 1, why, kind=kind)
        answers = None if SESSION.being_built is not None else eager_calls.answers
        if answers is not None and answers.takes():
            return eager_calls.answer(
                answers, self.name, self.callee, args, kwargs, why=lambda: why
            )
        with evidence.below(why):
            return self.stock(*args, **kwargs)


def _may_remember(binding: Binding, fn: Callable[..., object] | None, *, is_checked: bool) -> bool:
    """Return whether later calls of the same kind may run `fn` without a lookup."""
    if binding.is_for_one_call:
        # A check belongs to one object, and so does the reason why an entry does not fit.
        is_of_object = is_checked if fn is not None else bool(binding.unfit)
        if binding.shared is None or is_of_object:
            return False
    return fn is not None or not torch_c.is_intercepted()


def _hold_in_order(
    holds: Callable[[Sequence[torch.Tensor]], bool],
    order: Sequence[int],
    tensors: Sequence[torch.Tensor],
) -> bool:
    return holds([tensors[place] for place in order])


def _why_not_run(fn: Callable[..., object], error: BaseException) -> str:
    """Return why an entry did not run its graph. Raise `error` if the graph might have run."""
    if isinstance(error, NoEntry):
        return str(error)
    if not may_run_again(fn, error):
        raise error
    return f"it cannot find an object that the build used: {type(error).__name__}: {error}"


def name_of(callee: Callable[..., object]) -> str:
    """Return the name of a callable in reports."""
    if isinstance(callee, torch.nn.Module):
        return f"{type(callee).__module__}.{type(callee).__qualname__}"
    owner = getattr(callee, "__self__", None)
    if owner is not None:
        kind, name = type(owner), callee.__name__
        # The call of a block that is compiled in place is named after the block.
        method = "" if name == nn_module.CALL else f".{name}"
        return f"{kind.__module__}.{kind.__qualname__}{method}"
    if not hasattr(callee, "__qualname__"):  # a partial, or another callable object
        return f"{type(callee).__module__}.{type(callee).__qualname__}"
    return f"{callee.__module__}.{callee.__qualname__}"


def _in_words(arguments: Mapping[str, object], level: int) -> str:
    """Return the arguments that affect compiled code, as text. Equal arguments give equal text."""
    kept = {k: v for k, v in arguments.items() if k not in ("recompile_limit", "fullgraph", "name")}
    if level != 2:
        kept["level"] = level
    return ", ".join(f"{key}={_in_word(kept[key])}" for key in sorted(kept)) or "no arguments"


def _in_word(value: object) -> str:
    """Return an argument as text without addresses, which differ in each process."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_in_word(part)}' for key, part in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_in_word, value))}]"
    if callable(value):
        return identity(value) or name_of_class(type(value))
    return repr(value)
