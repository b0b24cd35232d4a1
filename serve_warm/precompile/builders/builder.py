# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Builds entries for one callable's calls, and compares the entries with eager execution.

This module, and the modules with which it makes entries, are imported only in a build.

An entry is a plain function of (callee, *tensors) and holds no weights. So modules of the same
class and structure share an entry, and weights can be loaded or replaced later.
"""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch

from serve_warm._records import record
from serve_warm.precompile.builders import library as build_library
from serve_warm.precompile.builders.assigned import describe_changes
from serve_warm.precompile.builders.first_state import ChangedByCall, settle
from serve_warm.precompile.builders.pickle import make
from serve_warm.precompile.calls import signature as call_signature
from serve_warm.precompile.calls.eagerly import eagerly
from serve_warm.precompile.calls.signature import Dynamic, Signature, describe, module_of
from serve_warm.precompile.changes.model_state import state_of
from serve_warm.precompile.dispatch.session import AnsweredBy, CompiledCallable
from serve_warm.precompile.entries.function import inputs_of, writes
from serve_warm.precompile.entries.model_tree import has_work, plain_values
from serve_warm.precompile.entries.table import (
    PREFIXES,
    Distance,
    Entry,
    EntryTable,
    NotYet,
    Unit,
    file_name,
)
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.plan import LIBRARY_LEVEL, ONCE, SETTLES
from serve_warm.precompile.facts.table import OF_PARTS
from serve_warm.precompile.facts.torch_errors import FAILURES, as_reasons
from serve_warm.precompile.libraries.run import assigns
from serve_warm.precompile.parity.distance import Judgement
from serve_warm.precompile.parity.distance_check import CAUSE, compare_in_build
from serve_warm.precompile.parity.eager import StateBefore, why_not_twice
from serve_warm.precompile.trace.capture import capture
from serve_warm.precompile.trace.captured import CompiledCall
from serve_warm.precompile.trace.side_effects import callable_once, side_effects
from serve_warm.private_apis import dynamo, inductor
from serve_warm.private_apis.digests import TorchSource

Attempt = TypeVar("Attempt")

ATTEMPTS = 4
"""Maximum number of model states in which a build tries to make an entry for the same call."""


OPENING_ATTEMPTS = 2
"""Maximum number of calls of one form for which code for any size is tried in vain."""


ROUNDED = (
    "its weights are quantized. If its activations are quantized too, a difference in the last bit "
    "of a float can lead to a different quantized value. Quantize only the weights, or run the "
    "model in bfloat16"
)
"""Reason and advice for a quantized model that differs from eager by more than rounding."""


@record(frozen=True, kw_only=True)
class PendingEntry:
    """A library that is being compiled, and the entry that it will have."""

    unit: Unit
    entry: Entry
    """The entry so far, without its file."""
    library: build_library.Library


@record(frozen=True, kw_only=True)
class NewCall:
    """A call without an entry during a build, and the `Unit` that will contain its entry."""

    build: RunningBuild
    unit: Unit
    signature: Signature
    state: Mapping[str, str]
    """State that torch keeps per thread or process, as `calls.signature.state` returns it."""
    tensors: Sequence[torch.Tensor]
    open_axes: tuple[tuple[int, int], ...] = ()
    """Axes for which the entry shall take any size, as the number of a tensor and of its axis."""

    @functools.cached_property
    def function(self) -> Callable[..., object]:
        """Plain function of (callee, *tensors) that makes the call."""
        return self.signature.function("entry")

    @property
    def form(self) -> tuple[object, ...]:
        """What is equal in calls that differ only in open sizes. torch never opens 0 and 1."""
        tensors = (
            (each.dtype, each.device, *(size if size < 2 else None for size in each.shape))
            for each in self.tensors
        )
        where = self.unit.key, self.signature.structure, self.open_axes
        return *where, *self.state.values(), *tensors

    def is_taken_by(self, entry: Entry) -> bool:
        """Return whether an entry accepts calls of this kind."""
        return entry.takes(self.signature, self.state, self.tensors)


class EntryBuilder:
    """Makes the entries of one callable during a build."""

    def __init__(self, dispatcher: CompiledCallable) -> None:
        # Not the callee itself: an application may make an object for each request, and the build
        # must not keep all of them in memory.
        self._dispatcher = weakref.ref(dispatcher)
        self._name = dispatcher.name
        self._arguments = dispatcher.arguments
        self._level = dispatcher.level
        self._lock = dispatcher.binder.lock
        """Lock of the callable's binding, which changes when an entry is withdrawn."""
        self._made: list[tuple[Unit, Entry]] = []
        self._answered: set[int] = set()
        """Ids of this build's entries that have answered a later call of the build."""
        self._failed: dict[tuple[object, ...], dict[str, str]] = {}
        """For each call, maps the modules' plain values to the reason why an attempt failed."""
        self._first = dispatcher.first_calls
        self._closed: Counter[tuple[object, ...]] = Counter()
        """The forms of calls, with the number of attempts to make code for any size that failed."""
        self._advice: str | None = None
        """Advice on which parts to compile if torch cannot trace the whole callable."""

    @property
    def _callee(self) -> Callable[..., object] | None:
        """The callable, which whoever makes an entry keeps alive."""
        dispatcher = self._dispatcher()
        return None if dispatcher is None else dispatcher.callee

    def note_answer(self, entry: Entry) -> None:
        """Record that an entry ran a call, which proves that the entry's state occurs again."""
        self._answered.add(id(entry))

    def make(self, call: NewCall) -> tuple[Entry, Callable[..., object]]:
        """Make the entry for a call, compare it with eager, and add it to the table.

        Raises:
            NoEntry: no entry can be made, or its results differ from eager execution.
            NotYet: the call's library is being compiled, and a later call must finish it.
        """
        why = call.build.torch_source.why_not(2)
        if _freezes(self._arguments):
            why = FREEZES
        if self._arguments.get("backend", "inductor") != "inductor":
            why = f"the backend is {self._arguments['backend']}, but entries need Inductor"
        # An attempt that fails in one state may succeed in another. If the state never occurs
        # again, as with a counter, the build gives up after a few attempts.
        attempts = self._failed.setdefault(
            (call.unit.key, call.signature, *call.state.values()), {}
        )
        attempt = plain_values(self._callee)
        if len(attempts) >= ATTEMPTS:
            why = why or next(iter(attempts.values()))
        why = why or attempts.get(attempt, "")
        if why:
            raise NoEntry(why)
        pending = self._take_pending(call)
        before = state_of(self._callee)
        try:
            made, entry = self._compile(call, pending)
        except NoEntry as failure:
            why = attempts[attempt] = self._with_advice(failure, call)  # do not try again each time
            raise NoEntry(why) from failure
        finally:
            self._first.make_state |= state_of(self._callee) != before
        if self._first.make_state:
            entry = replace(entry, plan={**entry.plan, SETTLES: True})
        # An earlier attempt may have refused the call, for example because grad mode was on.
        call.build.table.refused.pop((self._name, str(call.signature)), None)
        call.build.table.add(call.unit, entry, made.data, made.fn)
        self._made.append((call.unit, entry))
        return entry, made.fn

    def _with_advice(self, failure: NoEntry, call: NewCall) -> str:
        """Return a failure's text, with advice on other parts to compile if the trace failed."""
        if not is_of_trace(failure):
            return str(failure)
        if self._advice is None:
            self._advice = advise(self._callee, call.function, call.tensors)
        why = str(failure)
        return f"{why.rstrip('.')}. {self._advice}" if self._advice else why

    def _take_pending(self, call: NewCall) -> PendingEntry | None:
        """Remove and return the unfinished library for calls like this one, if there is one.

        Raises:
            NotYet: a later call must finish the library.
        """
        build = call.build
        for_such = [
            pending
            for pending in build.pending
            if pending.unit is call.unit and call.is_taken_by(pending.entry)
        ]
        fitting = [each for each in for_such if not each.entry.facts.broken(self._callee)]
        # After so many attempts, the state probably never occurs again, as with a counter.
        if build.libraries == "begun" and (fitting or len(for_such) >= ATTEMPTS):
            raise NotYet
        if not fitting:
            return None
        build.tell("library")
        build.pending.remove(fitting[0])
        return fitting[0]

    def _library(
        self, call: NewCall, pending: PendingEntry | None, arguments: Mapping[str, object]
    ) -> CompiledCall:
        """Return the library for a call, or start to build the library and raise `NotYet`."""
        build = call.build
        if pending is not None:
            return pending.library.finish(self._callee, call.tensors)
        if build.libraries == "made":
            build.tell("library")
            with dynamo.opened_axes(call.tensors, call.open_axes):
                return build_library.make(call.function, self._callee, call.tensors, arguments)
        build.tell("trace")
        with dynamo.opened_axes(call.tensors, call.open_axes):
            library = build_library.begin(call.function, self._callee, call.tensors, arguments)
        captured = library.captured
        dynamic = Dynamic(conditions=tuple(captured.conditions))
        entry = Entry(
            signature=dynamic.signature(call.signature, call.tensors),
            dynamic=dynamic,
            state=call.state,
            facts=captured.facts,
            sources=captured.sources,
            references={},
            file="",
            errors=(),
            level=LIBRARY_LEVEL,
        )
        build.pending.append(PendingEntry(unit=call.unit, entry=entry, library=library))
        raise NotYet

    def _compile(self, call: NewCall, pending: PendingEntry | None) -> tuple[CompiledCall, Entry]:
        """Return the code and the entry for a call, with its open axes if that works."""
        form = call.form
        # Another attempt may be on another side of a branch. Each takes as long as an entry.
        if call.open_axes and self._closed[form] < OPENING_ATTEMPTS:
            try:
                return self._compile_as_is(call, pending)
            except NoEntry:
                self._closed[form] += 1
                pending = None
        return self._compile_as_is(replace(call, open_axes=()), pending)

    def _compile_as_is(
        self, call: NewCall, pending: PendingEntry | None
    ) -> tuple[CompiledCall, Entry]:
        """Return the code and the entry for a call, at the highest requested level that works."""
        # Shapes are static by default: torch's own default, None, is neither static nor dynamic.
        arguments = {"dynamic": False, **self._arguments}
        function, tensors = call.function, call.tensors
        level, reason = self._level, ""
        if level == LIBRARY_LEVEL and (why := call.build.torch_source.why_not(LIBRARY_LEVEL)):
            level, reason = 2, why
        if level == LIBRARY_LEVEL:
            try:
                begun = [pending]
                made, verdict = self._settled(
                    call, lambda: self._try_library(call, begun.pop() if begun else None, arguments)
                )
            except NoEntry as failure:
                if is_of_forward(failure) or isinstance(failure, ChangedByCall):
                    raise  # level 2 would trace the call again, and fail in the same way
                if call.open_axes and self._has_libraries(call):
                    raise  # an entry of level 2 would also take their calls
                level, reason = 2, str(failure)
        changes: Mapping[str, Sequence[str]] = {}
        if level == 2:
            call.build.tell("entry")
            attempt = functools.partial(self._try_pickle, call, arguments)
            made, verdict, changes = self._settled(call, attempt)
        once = f"it changes {describe_changes([*changes])}" if changes else ""
        if level == LIBRARY_LEVEL and assigns(made.plan):
            once = "it assigns attributes of the model"
        if not once and (writes(made.fn) if level == 2 else made.plan.get("writes")):
            once = "it writes into its inputs or buffers"
        once = once or why_not_twice(self._callee, (function, made.fn), tensors)
        dynamic = Dynamic(conditions=tuple(made.conditions))
        return made, Entry(
            signature=dynamic.signature(call.signature, tensors),
            dynamic=dynamic,
            state=call.state,
            facts=made.facts.with_inputs(self._callee, inputs_of(made.fn)),
            sources=made.sources,
            references=made.references,
            file=file_name(made.data, PREFIXES[level]),
            errors=verdict.differences,
            level=level,
            reason=reason,
            distance=Distance(
                rmse_ratio=verdict.rmse_ratio,
                max_ratio=verdict.max_ratio,
                near_ties=verdict.near_ties,
                fixed=verdict.fixed,
                eager_operators=verdict.eager_operators,
            ),
            plan={**made.plan, ONCE: once},
        )

    @staticmethod
    def _has_libraries(call: NewCall) -> bool:
        levels = [each.level for each in call.unit.entries]
        levels += [each.entry.level for each in call.build.pending if each.unit is call.unit]
        return LIBRARY_LEVEL in levels

    def _settled(self, call: NewCall, attempt: Callable[[], Attempt]) -> Attempt:
        """Return the result of an attempt; if it fails, make settling calls and retry once."""
        try:
            return attempt()
        except NoEntry as failure:
            if not settle(self._callee, call.function, call.tensors, failure):
                raise
        self._first.make_state = True
        return attempt()

    def _try_library(
        self, call: NewCall, pending: PendingEntry | None, arguments: Mapping[str, object]
    ) -> tuple[CompiledCall, Judgement]:
        """Return the library for a call, and how it compares with eager."""
        made = self._library(call, pending, arguments)
        verdict = self._compare(call.function, made, call.tensors)
        if made.plan.get("captures") == "":
            # The first call captured a graph; this one launches it.
            launched = self._compare(call.function, made, call.tensors)
            verdict = max(verdict, launched, key=lambda each: each.difference)
        return made, verdict

    def _try_pickle(
        self, call: NewCall, arguments: Mapping[str, object]
    ) -> tuple[CompiledCall, Judgement, Mapping[str, Sequence[str]]]:
        """Return a call's pickle, how it compares with eager, and the call's changes."""
        with side_effects() as changes, dynamo.opened_axes(call.tensors, call.open_axes):
            made = make(call.function, self._callee, call.tensors, arguments)
        return made, self._compare(call.function, made, call.tensors), changes

    def _compare(
        self, function: Callable[..., Any], made: CompiledCall, tensors: Sequence[torch.Tensor]
    ) -> Judgement:
        """Compare code with eager execution; raise `NoEntry` if the code is wrong.

        Also raises `NoEntry` if the call changes Python values on which its graph depends, such as
        a counter, a growing list or a cached value. The graph would be out of date at the next
        call. The check uses eager execution, because compiled code would write the same values
        at every call. Also raises if the call changes a list or dict argument. An entry makes new
        lists and dicts, so the caller's list or dict would stay unchanged.
        """
        is_first = True

        def eager(callee: Callable[..., object], *tensors: torch.Tensor) -> object:
            nonlocal is_first
            args, kwargs = function(_as_passed, *tensors)
            if not is_first:  # other inputs, or full precision
                return callee(*args, **kwargs)
            is_first = False
            before = call_signature.contents(args, kwargs)
            out = callee(*args, **kwargs)
            if call_signature.contents(args, kwargs) != before:
                raise NoEntry("the call changes a list or dict in its arguments")
            why = made.facts.broken(callee)
            if why:
                raise ChangedByCall(why, made.facts)
            return out

        has_parts = any(kind in OF_PARTS for _, kind, _ in made.facts.facts)
        cause = ROUNDED if has_parts else CAUSE
        return compare_in_build(self._callee, eager, made.fn, tensors, cause=cause)

    def withdraw_changed(self, table: EntryTable) -> None:
        """Withdraw this builder's entries that no longer fit the callable.

        An entry no longer fits if the callable was changed by a call of another kind, by another
        callable or by the handler. The same change would happen in a replica. An entry is kept if
        it ran another call in the build, because the model evidently returns to the entry's state.
        """
        with self._lock:
            made, self._made = self._made, []
            answered, self._answered = self._answered, set()
            for unit, entry in made:
                why = entry.facts.broken(self._callee)
                if not why or id(entry) in answered:
                    continue
                # Only entries of this build that no other callable has withdrawn.
                if table.units.get(unit.key) is unit and entry in unit.entries:
                    why = f"its graph depends on something that changes between calls: {why}"
                    table.withdraw(unit, entry, why)


def _code_of(dispatcher: CompiledCallable) -> object:
    """Return the code by which torch keeps what it compiled for a callable."""
    callee: Any = dispatcher.callee
    function = callee.forward if isinstance(callee, torch.nn.Module) else callee
    return getattr(getattr(function, "__func__", function), "__code__", dispatcher.name)


class RunningBuild:
    """One build of entries in this process."""

    def __init__(self, *, accept_torch_source: bool = False) -> None:
        self.torch_source = TorchSource.installed(
            torch.__version__, is_accepted=accept_torch_source
        )
        """Whether the private functions of torch are those of a tested version."""
        self.table = EntryTable({}, {})
        """The entries that the build has made."""
        self.libraries: Literal["made", "begun"] = "made"
        """With "begun", a call only starts to compile its library. With "made", a call compiles its
        library completely, or finishes a library that was started earlier."""
        self.pending: list[PendingEntry] = []
        """Entries whose library is still unfinished."""
        self.tell: Callable[[Literal["trace", "entry", "library"]], None] = lambda _: None
        """Callback that receives the next step of the build."""
        self.with_entries: set[object] = set()
        """Code of the callables of which entries have answered calls."""
        self._answered_by = AnsweredBy()
        self._open_axes: dict[int, tuple[tuple[int, int], ...]] = {}
        """Open axes of the calls that a dispatcher gets now, by its id."""
        self._builders: weakref.WeakKeyDictionary[CompiledCallable, EntryBuilder] = (
            weakref.WeakKeyDictionary()
        )

    def entry_for(
        self,
        dispatcher: CompiledCallable,
        unit: Unit,
        signature: Signature,
        state: Mapping[str, str],
        tensors: Sequence[torch.Tensor],
    ) -> tuple[Entry, Callable[..., object]]:
        """Make the entry for a call of a dispatcher: see `EntryBuilder.make`."""
        builder = self._builders.get(dispatcher)
        if builder is None:
            builder = self._builders[dispatcher] = EntryBuilder(dispatcher)
        call = NewCall(
            build=self,
            unit=unit,
            signature=signature,
            state=state,
            tensors=tensors,
            open_axes=self._open_axes.get(id(dispatcher), ()),
        )
        return builder.make(call)

    @contextlib.contextmanager
    def opening(
        self, dispatcher: CompiledCallable, axes: Sequence[tuple[int, int]]
    ) -> Iterator[None]:
        """In the block, try to make entries of a dispatcher for any size of these axes."""
        self._open_axes = {id(dispatcher): tuple(axes)}
        try:
            yield
        finally:
            self._open_axes = {}

    @contextlib.contextmanager
    def noting_answers(self) -> Iterator[AnsweredBy]:
        """Yield a record of what answers the calls in the block."""
        self._answered_by = AnsweredBy()
        yield self._answered_by

    def note_without_entry(self, dispatcher: CompiledCallable) -> None:
        """Record that no entry ran a call of a dispatcher."""
        self._answered_by.torch_compile.add(_code_of(dispatcher))

    def note_answer(self, dispatcher: CompiledCallable, entry: Entry) -> None:
        """Record that an entry ran a call, which proves that the entry's state occurs again."""
        self._answered_by.entries.add(id(entry))
        self.with_entries.add(_code_of(dispatcher))
        builder = self._builders.get(dispatcher)
        if builder is not None:
            builder.note_answer(entry)

    def withdraw_changed(self) -> None:
        """Withdraw the entries that no longer fit: see `EntryBuilder.withdraw_changed`."""
        for _dispatcher, builder in list(self._builders.items()):  # which keeps the callables alive
            builder.withdraw_changed(self.table)

    def refuse_pending(self) -> None:
        """Refuse each call whose library no later call finished."""
        for pending in self.pending:
            call = pending.unit.name, str(pending.entry.signature)
            taken = (entry.signature for entry in pending.unit.entries)
            if pending.entry.signature not in taken:
                why = "it was called only once while entries were made"
                self.table.refused.setdefault(call, why)
        self.pending = []


FREEZES = (
    "freezing makes the weights a part of the code, but an entry contains no weights: remove the "
    'option "freezing"'
)
"""Reason and advice for a call that is compiled with Inductor's freezing."""


def _freezes(arguments: Mapping[str, Any]) -> bool:
    given = (arguments.get("options") or {}).get("freezing")
    return bool(inductor.freezes_weights() if given is None else given)


def _as_passed(*args: object, **kwargs: object) -> Call:
    return args, kwargs


# Parts that torch can trace -----------------------------------------------------------------------


LIMIT_S = 30.0
"""Seconds after which no further part is traced."""

Call = tuple[tuple[object, ...], dict[str, object]]
"""Arguments of a module's first call, by position and by keyword."""


def is_of_trace(failure: NoEntry) -> bool:
    """Return whether a call has no entry because torch could not trace the call into one graph."""
    return dynamo.is_error_of_dynamo(failure.__cause__)


def is_of_forward(failure: NoEntry) -> bool:
    """Return whether a call has no entry at any level, because Dynamo cannot trace its code."""
    return dynamo.is_error_of_code(failure.__cause__)


def advise(callee: object, function: Callable[..., object], tensors: Sequence[torch.Tensor]) -> str:
    """Return advice on which parts of a module to compile, or an empty string if there are none.

    Nothing is compiled here: torch traces each kind of part once.
    Runs the call once more on copies, eagerly, to see how the module's parts are called.
    """
    module = module_of(callee)
    if module is None or not list(module.children()):
        return ""
    try:
        calls = _calls_of_parts(callee, module, function, tensors)
    except FAILURES:  # the call itself fails, and reports its own error
        return ""
    kinds = _without_inner(module, dict.fromkeys(_find(module, calls)))
    names = sorted({kind.__name__ for kind in kinds})
    if not names:
        return ""
    return f"torch can trace these parts of it: serve_warm.compile_regions(model, {names!r})"


def _calls_of_parts(
    callee: object,
    module: torch.nn.Module,
    function: Callable[..., object],
    tensors: Sequence[torch.Tensor],
) -> dict[torch.nn.Module, Call]:
    calls: dict[torch.nn.Module, Call] = {}

    def note(part: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        calls.setdefault(part, (args, kwargs))

    parts = [part for part in module.modules() if part is not module and has_work(part)]
    hooks = [part.register_forward_pre_hook(note, with_kwargs=True) for part in parts]
    try:
        with eagerly():  # otherwise, entries of other callables would contain the hooks
            StateBefore(callee).run(function, tensors)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _find(module: torch.nn.Module, calls: dict[torch.nn.Module, Call]) -> Iterator[type]:
    """Yield the classes of the outermost parts that torch can trace."""
    ends = time.monotonic() + LIMIT_S
    known: dict[type, bool] = {}
    queue = list(module.children())
    while queue:
        part = queue.pop(0)
        kind = type(part)
        if part in calls and kind not in known and time.monotonic() < ends:
            known[kind] = _has_graph(part, *calls[part])
        if part in calls and known.get(kind, False):
            yield kind
        else:
            queue += part.children()


def _has_graph(part: torch.nn.Module, args: Sequence[object], kwargs: dict[str, object]) -> bool:
    try:
        signature, tensors = describe(args, kwargs)
        settings = {"backend": lambda graph, _: callable_once(graph), "dynamic": False}
        with as_reasons():
            capture(signature.function("entry"), part, tensors, settings)
    except NoEntry:
        return False
    return True


def _without_inner(module: torch.nn.Module, kinds: dict[type, None]) -> list[type]:
    """Return the outermost classes in `kinds`.

    A class is left out if one of its objects is inside an object of another class in `kinds`.
    """
    inner = {
        type(below)
        for part in module.modules()
        if type(part) in kinds
        for below in part.modules()
        if below is not part and type(below) is not type(part)
    }
    return [kind for kind in kinds if kind not in inner]
