# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which compiled code a call runs: an entry made ahead of time, or torch.compile as ever.

`serve_warm.compile` is torch.compile with a dispatcher in front. With an artifact loaded, a call
that an entry was made for runs that entry, and neither Dynamo nor its guards are asked (level 2).
Any other call goes to torch.compile (level 1), counted and named: never an error.
Where it is asked for, an entry is a library made by AOTInductor (level 3), and Dynamo and Inductor
are not even imported before a call needs level 1.

What Dynamo's guards protected is checked here:

    each call     structure and scalars of the arguments; tensors' metadata; grad mode, autocast,
                  default dtype, threads and whatever else torch keeps per thread or process; and
                  that nothing changed where facts were read from (`module_changes`)
    each start,   files of the code in the graph; classes of modules; every value, type, function,
    and after     tensor and hook that the graph was built on
    a change

An entry is a plain function of (callee, *tensors): weights are not in it, so that modules of one
class and structure share it, and weights may be loaded or replaced afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from serve_warm._public_names import public
from serve_warm._redaction import shorten
from serve_warm.compiler import evidence
from serve_warm.errors import ConfigError
from serve_warm.precompile import aot_compile, aoti_build, call_signature, entry_checks
from serve_warm.precompile.aoti_library import LibraryFailedCleanly
from serve_warm.precompile.call_signature import Dynamic, Signature, key_of
from serve_warm.precompile.eager_check import difference_from_eager, why_not_twice
from serve_warm.precompile.entries import (
    PREFIXES,
    Entry,
    Library,
    Unit,
    file_name,
    plain_values,
    tree,
)
from serve_warm.precompile.facts import NoEntry
from serve_warm.precompile.module_changes import FactWatch
from serve_warm.report import EntryUse

logger = logging.getLogger(__name__)

LIBRARIES = 3
"""The level at which code is in libraries, and a start does without Dynamo."""

CALLS_KEPT = 256
"""Different calls that a dispatcher keeps a record of; counts go on beyond."""

ATTEMPTS = 4
"""States of a model in which a build tries to make an entry for a call that had none before."""

HITS_KEPT = 2048
"""Kinds of calls that are found the quick way; of more the one that came first is forgotten."""

STATES_KEPT = 64
"""States of a model, by the entries that fit, whose calls stay known while it is in another one."""

is_dynamo_compiling = torch.compiler.is_dynamo_compiling


# The public functions -------------------------------------------------------------------------


@public
def compile(  # noqa: A001 - as in torch
    target: Any = None, /, *, level: int = 2, **arguments: Any
) -> Any:
    """Return `target` compiled by torch.compile, and by an artifact where one is loaded.

    Takes what torch.compile takes, and behaves as it does: a module gives a module, a function a
    function, and without a target it is a decorator.

        self.model = serve_warm.compile(load_model(), dynamic=False)

    Entries are made by `serve-warm build`, one for each kind of call that the declared inputs
    make; shapes are static unless `dynamic=True`. They need `torch.inference_mode()` or
    `no_grad()`, Inductor, and a graph without breaks; the report names every call for which one
    of these was not so.

    With `level=3` they are libraries made by AOTInductor. A start with them imports neither Dynamo
    nor Inductor and needs no C++ compiler, for as long as every call has one.

    Raises:
        ConfigError: `target` cannot be called, or there is no such level.
    """
    if level not in PREFIXES:
        raise ConfigError(
            f"serve_warm.compile got level={level!r}",
            hint="2, the default, or 3 for libraries; level 1 is torch.compile itself",
        )
    if target is None:
        return functools.partial(compile, level=level, **arguments)
    if level == LIBRARIES and isinstance(target, torch.nn.Module):
        return LightModule(target, arguments)
    if isinstance(target, torch.nn.Module):
        module: Any = torch.compile(target, **arguments)
        module.__class__ = _compiled_module_class()
        stock = functools.partial(_compiled_forward, module)
        dispatcher = Dispatcher(target, stock=stock, arguments=arguments)
        object.__setattr__(module, "_serve_warm", dispatcher)
        return module
    if not callable(target):
        raise ConfigError(
            f"serve_warm.compile got a {type(target).__name__}, which cannot be called",
            hint="pass a torch.nn.Module, a function or a method",
        )
    return _CompiledFunction(target, arguments, level=level)


@public
def compile_regions(
    model: Any, blocks: Sequence[str] | None = None, /, *, level: int = 2, **arguments: Any
) -> Any:
    """Compile the repeated blocks of a model in place, once for all of them, and return the model.

    A block is a module that stands at least twice, of one class, in a ModuleList or Sequential;
    `blocks` names classes instead. What is around the blocks stays eager. One compiled block
    serves all layers of its structure, so the compiler's work does not grow with their number.

        self.model = serve_warm.compile_regions(load_decoder(), dynamic=False)

    Raises:
        ConfigError: nothing repeats, or a named class is not there; the text lists what is. Or CUDA
            graphs are asked for where there is a GPU: blocks cannot have them one by one.
    """
    if level != 2:
        raise ConfigError(
            f"serve_warm.compile_regions got level={level!r}",
            hint="blocks have levels 1 and 2; for a library hand over the whole model, "
            "serve_warm.compile(model, level=3)",
        )
    # Without a GPU torch captures nothing, and the rest of such a mode is as good as ever.
    if torch.cuda.is_available() and aot_compile.captures(arguments):
        raise ConfigError(
            "serve_warm.compile_regions was asked for CUDA graphs, by mode, options or setting",
            hint="torch ends what one compiled call returned when the next one begins, and a block "
            "returns what the next one takes; leave them out, or hand over the whole model: "
            "serve_warm.compile(model, mode=...)",
        )
    found = _repeated(model) if blocks is None else _named(model, blocks)
    # With an artifact they are not called: a start saves 1 to 2 ms for each (2.11, 2.13).
    stocks = [_WhenCalled(aot_compile.call_of(block), arguments) for block in found]
    stocks[0].compiled()  # wrong arguments are an error here, and not in the first request
    for block, stock in zip(found, stocks, strict=True):
        # Where nn.Module looks for it; state_dict, hooks and attributes stay as they are.
        dispatcher = Dispatcher(stock.target, stock=stock, arguments=arguments)
        aot_compile.compile_in_place(block, dispatcher)
    return model


def _repeated(model: torch.nn.Module) -> list[torch.nn.Module]:
    found: list[torch.nn.Module] = []
    # From the outside in: a block's own lists of sub-blocks are compiled with the block.
    queue = [model]
    while queue:
        module = queue.pop(0)
        children = list(module.children())
        kinds: dict[type, list[torch.nn.Module]] = {}
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)):
            for child in children:
                kinds.setdefault(type(child), []).append(child)
        blocks = [b for same in kinds.values() if len(same) > 1 for b in same if _has_work(b)]
        found += blocks
        queue += [child for child in children if not any(child is block for block in blocks)]
    if not found:
        raise ConfigError(
            f"compile_regions found no repeated block in {type(model).__name__}",
            hint="name the classes to compile, compile_regions(model, ['DecoderLayer']), or "
            "compile the whole model with serve_warm.compile",
        )
    return found


def _has_work(module: torch.nn.Module) -> bool:
    # A list of single Linear layers is not worth a compiled call each.
    return len(list(module.children())) > 0 or len(list(module.parameters(recurse=False))) > 2


def _named(model: torch.nn.Module, names: Sequence[str]) -> list[torch.nn.Module]:
    if not names:
        raise ConfigError(
            "compile_regions was given no class to compile",
            hint="name some, or leave the argument out: then repeated blocks are looked for",
        )
    found = [module for module in model.modules() if type(module).__name__ in names]
    missing = set(names) - {type(module).__name__ for module in found}
    if missing:
        there = sorted({type(module).__name__ for module in model.modules()})
        raise ConfigError(
            f"compile_regions: {type(model).__name__} has no module of class {sorted(missing)}",
            hint=f"its classes are {', '.join(there)}",
        )
    return found


def _compiled_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
    # Its `__call__` fires hooks of all modules for torch.compile's module too, a second time.
    return module.forward(*args, **kwargs)


@functools.cache
def _compiled_module_class() -> type:
    # Made when it is first needed: its base is Dynamo's, which takes a second to import.
    base: Any = aot_compile.compiled_module_class()

    class CompiledModule(base):  # type: ignore[misc]
        """torch.compile's module with our dispatcher in front of its call."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            state = self.__dict__
            if state["_forward_hooks"] or state["_forward_pre_hooks"]:  # fired by nn.Module's call
                return super().__call__(*args, **kwargs)
            return state["_serve_warm"](*args, **kwargs)

        def __bool__(self) -> bool:
            # As of any module. The base has a length, which raises where the module has none, and
            # Dynamo asks (seen in 2.11) whether what it calls inside another graph is true.
            return bool(self._orig_mod)

        def __reduce__(self) -> tuple[Any, ...]:
            arguments = self.__dict__["_serve_warm"].arguments
            return functools.partial(compile, **arguments), (self._orig_mod,)

    return CompiledModule


class LightModule(torch.nn.Module):
    """What torch.compile gives for a module, without the import of torch's compiler.

    Attributes, parameters and training mode are those of the module, and the names in its
    `state_dict` begin with `_orig_mod.`, as they do there. torch.compile itself is called when a
    call needs level 1.
    """

    def __init__(self, module: torch.nn.Module, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self._modules["_orig_mod"] = module
        stock = _WhenCalled(module, arguments)
        dispatcher = Dispatcher(module, stock=stock, arguments=arguments, level=LIBRARIES)
        object.__setattr__(self, "_serve_warm", dispatcher)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the library for this call, or what torch.compile makes; hooks of our own first."""
        state = self.__dict__
        if state["_forward_hooks"] or state["_forward_pre_hooks"]:  # fired by nn.Module's call
            return super().__call__(*args, **kwargs)
        return state["_serve_warm"](*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Do the same without hooks."""
        return self.__dict__["_serve_warm"](*args, **kwargs)

    @property
    def serve_warm_level1(self) -> Callable[..., Any]:
        """As of a dispatcher."""
        stock: Callable[..., Any] = self.__dict__["_serve_warm"].serve_warm_level1
        return stock

    @property
    def serve_warm_level3(self) -> str:
        """As of a dispatcher."""
        words: str = self.__dict__["_serve_warm"].serve_warm_level3
        return words

    @property
    def training(self) -> bool:
        """As of the module."""
        return bool(self._orig_mod.training)

    @training.setter
    def training(self, value: bool) -> None:
        if vars(self).get("_modules"):  # not in nn.Module's own __init__
            self._orig_mod.training = value

    def __getattr__(self, name: str) -> Any:
        module = vars(self).get("_modules", {}).get("_orig_mod")
        if module is None:
            raise AttributeError(name)
        return module if name == "_orig_mod" else getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_own(name):
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_own(name):
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def _is_own(self, name: str) -> bool:
        return name == "_orig_mod" or name in vars(self) or hasattr(type(self), name)

    def __len__(self) -> int:
        return len(self._orig_mod)

    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._orig_mod)})

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self.__dict__["_serve_warm"].arguments
        return functools.partial(compile, level=LIBRARIES, **arguments), (self._orig_mod,)


class _WhenCalled:
    """torch.compile of something, at the first call of it: that imports Dynamo."""

    def __init__(self, target: Any, arguments: Mapping[str, Any]) -> None:
        self.target = target
        self._is_module = isinstance(target, torch.nn.Module)
        self._arguments = arguments
        self._compiled: Callable[..., Any] | None = None
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        compiled = self._compiled
        if compiled is None:
            compiled = self.compiled()
        if self._is_module:
            return _compiled_forward(compiled, *args, **kwargs)
        return compiled(*args, **kwargs)

    def compiled(self) -> Callable[..., Any]:
        """Return what torch.compile makes, once."""
        with self._lock:
            # Whether it is true is not asked: torch's module has a length, which may raise.
            if self._compiled is None:
                self._compiled = torch.compile(self.target, **self._arguments)
            return self._compiled


class _CompiledFunction:
    """A compiled function, or a method of each instance when it decorates one in a class."""

    def __init__(
        self, function: Callable[..., Any], arguments: Mapping[str, Any], *, level: int = 2
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._arguments = arguments
        stock: Any = (
            _WhenCalled(function, arguments)
            if level == LIBRARIES
            else torch.compile(function, **arguments)
        )
        self._serve_warm = Dispatcher(function, stock=stock, arguments=arguments, level=level)
        self._slotted: dict[Any, _Methods] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._serve_warm(*args, **kwargs)

    @property
    def serve_warm_level1(self) -> Callable[..., Any]:
        """As of a dispatcher."""
        return self._serve_warm.serve_warm_level1

    @property
    def serve_warm_level3(self) -> str:
        """As of a dispatcher."""
        return self._serve_warm.serve_warm_level3

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        if is_dynamo_compiling():  # the id below is another one in each process
            return functools.partial(self._function, instance)
        # An instance with slots only has no place for them: those are kept for good.
        place = getattr(instance, "__dict__", self._slotted)
        name = METHODS if place is not self._slotted else id(instance)
        kept = place.get(name) or {}
        method = kept.get(id(self))
        # A shallow copy has what its original keeps, and weights of its own.
        if method is None or method.callee.__self__ is not instance:
            bound = types.MethodType(self._function, instance)
            stock = functools.partial(self._serve_warm.stock, instance)
            level = self._serve_warm.level
            method = Dispatcher(bound, stock=stock, arguments=self._arguments, level=level)
            functools.update_wrapper(method, bound, updated=())
            own = {key: m for key, m in kept.items() if m.callee.__self__ is instance}
            place[name] = _Methods({**own, id(self): method})
        return method


METHODS = "_serve_warm_methods"
"""Where an instance keeps its compiled methods, which end with it."""


class _Methods(dict[int, "Dispatcher"]):
    """Compiled methods of one instance; a copy of it begins with none."""

    def __copy__(self) -> _Methods:
        return _Methods()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Methods:
        return _Methods()

    def __reduce__(self) -> Any:
        return _Methods, ()


# The dispatcher -------------------------------------------------------------------------------


_dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()
_library: Library | None = None
_building: Library | None = None
_active: Library | None = None
"""The one of a build, or else the one that was loaded."""

_build_lock = threading.RLock()
"""One call at a time makes an entry: it changes buffers and random states, and gives them back."""


_Use = tuple[str, int, str]
"""Call, level and reason."""

_Known = tuple[
    Callable[..., bool],
    Callable[[], bool],
    Callable[[Sequence[Any]], bool] | None,
    Callable[..., Any] | None,
    _Use,
]
"""A kind of call: checks of its tensors, of the state and of an entry's conditions; the code that
answers it, None at level 1; and how it is counted."""


@dataclass(frozen=True, kw_only=True)
class _Bound:
    """What is known of a callable and its entries until something about it changes."""

    library: Library | None
    unit: Unit | None = None
    watch: FactWatch | None = None
    unchanged: Callable[[], bool] = lambda: True
    functions: Sequence[Callable[..., Any] | NoEntry] = ()
    """Of each entry of the unit, loaded whether or not it fits today: its state may come back."""
    entries: Sequence[tuple[Entry, Callable[..., Any]]] = ()
    """Those that fit now."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """Why another one does not, by its call."""
    known: frozenset[tuple[type, Any]] = frozenset()
    """Numbers and texts that entries were made for."""
    hits: dict[Any, list[_Known]] = field(default_factory=dict)
    open_hits: dict[Any, list[_Known]] = field(default_factory=dict)
    """Those of entries that take sizes as they come, by calls without sizes."""
    states: dict[tuple[int, ...], tuple[dict[Any, Any], dict[Any, Any]]] = field(
        default_factory=dict
    )
    """Hits by the numbers of the entries that fit: what comes back is known at once."""


_UNBOUND = _Bound(library=Library({}, {}))


class Dispatcher:
    """One callable that was handed over: it runs an entry, or what torch.compile made of it."""

    def __init__(
        self,
        callee: Any,
        *,
        stock: Callable[..., Any],
        arguments: Mapping[str, Any],
        level: int = 2,
    ) -> None:
        self.callee = callee
        self.level = level
        """The highest one that is asked for."""
        self.stock = stock
        self.arguments = dict(arguments)
        self.name = _name_of(callee)
        self._binding = threading.RLock()
        self._bound = _UNBOUND
        self._made_here: list[tuple[Unit, Entry]] = []
        self._answered: set[int] = set()
        """Ids of entries that a build made here, and that answered a later call of the build."""
        self._seen: dict[_Use, int] = {}
        self._failed: dict[tuple[Any, ...], dict[str, str]] = {}
        """Why a build could not make an entry, by call and by plain values of the modules."""
        _dispatchers.add(self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # noqa: C901 - the hot path, whole
        """Run the entry for this call, or what torch.compile made."""
        # Of this thread alone; folded by Dynamo. `is_compiling` is true while any thread compiles.
        if is_dynamo_compiling():  # into an outer graph
            return self.callee(*args, **kwargs)
        bound = self._bound
        if bound.library is _active:
            if _active is None:
                return self.stock(*args, **kwargs)
            has_changed = not bound.unchanged()
            if has_changed:
                # Most changes break no fact, or lead back to a state that was there before.
                with self._binding:
                    bound = self._up_to_date()
            tensors: list[Any] = []
            key = key_of(args, kwargs, tensors, bound.known)
            found = bound.hits.get(key, ())
            if not found and bound.open_hits:
                key = key_of(args, kwargs, [], bound.known, sizes=False)
                found = bound.open_hits.get(key, ())
            for same_tensors, same_state, holds, fn, use in found:
                if not (same_tensors(*tensors) and same_state()):
                    continue
                if holds is not None and not holds(tensors):
                    continue
                if fn is None:
                    if has_changed:  # the reason may be another one now
                        break
                    self._seen[use] += 1
                    return self.stock(*args, **kwargs)
                if evidence.current is not None:
                    evidence.current.add(threading.get_native_id())
                try:
                    return fn(self.callee, *tensors)
                except NOT_ANSWERED as error:
                    return self._answer_otherwise(use[0], fn, error, args, kwargs)
        return self._looked_up(args, kwargs)

    @property
    def serve_warm_level1(self) -> Callable[..., Any]:
        """What torch.compile made; `compile_arguments` looks for this name."""
        stock = self.stock
        if isinstance(stock, _WhenCalled):
            return stock.compiled()
        return stock.func if isinstance(stock, functools.partial) else stock

    @property
    def serve_warm_level3(self) -> str:
        """Arguments in words where libraries are asked for, which are to be found without Dynamo.

        Empty elsewhere. `compile_arguments` looks for this name.
        """
        return _text(self.arguments, self.level) if self.level == LIBRARIES else ""

    def uses(self) -> list[EntryUse]:
        """Return a record for each kind of call until now."""
        return [
            EntryUse(callable=self.name, call=call, level=level, reason=reason, calls=calls)
            for (call, level, reason), calls in list(self._seen.items())
            if calls
        ]

    def bind(self) -> None:
        """Compare the callable as it is now with the entries, and load those that fit."""
        with self._binding:
            self._up_to_date()

    def bind_anew(self) -> None:
        """Ask for the code of all entries again, and forget what is known of calls."""
        with self._binding:
            self._bound = _UNBOUND
            self._up_to_date()

    def _up_to_date(self) -> _Bound:
        """Return what is known of the callable as it is now. Under `_binding`."""
        bound, library = self._bound, _active
        if library is None:
            bound = _Bound(library=None)
        elif bound.library is not library or not self._has_all(bound):
            bound = self._bind(library)
        elif _building is not None and bound.watch is None:
            # There is no entry to be watched yet, and it may consist of something else by now.
            bound = self._bind(library)
        elif not bound.unchanged() and bound.watch is not None:
            bound.watch.refresh()
            bound = self._judged(bound)
            if not bound.entries and bound.unit is not None:
                # What it consists of may be what other entries are for.
                unit = library.unit(self.name, self._words(), tree(self.callee))
                bound = bound if unit is bound.unit else self._bind(library)
        self._bound = bound
        return bound

    def _has_all(self, bound: _Bound) -> bool:
        return bound.unit is not None and len(bound.unit.entries) == len(bound.functions)

    def _words(self) -> str:
        return _text(self.arguments, self.level)

    def _bind(self, library: Library) -> _Bound:
        unit = library.unit(self.name, self._words(), tree(self.callee))
        entries = list(unit.entries)
        functions: list[Callable[..., Any] | NoEntry] = []
        for entry in entries:
            try:
                functions.append(library.function(entry))
            except NoEntry as error:
                functions.append(error)
        known = {
            value for e in entries for value in call_signature.known_values(e.signature.structure)
        }
        # Without entries nothing can be made wrong by a change, but one may bring back a structure
        # that has some.
        watched = entries or library.of_other_structures(unit)
        watch = FactWatch(self.callee, [e.facts for e in watched]) if watched else None
        return self._judged(
            _Bound(
                library=library,
                unit=unit,
                watch=watch,
                functions=functions,
                known=frozenset(known),
            )
        )

    def _judged(self, bound: _Bound) -> _Bound:
        """Return the same with the entries that fit now."""
        watch, unit = bound.watch, bound.unit
        if watch is None or unit is None:
            return bound
        fitting, entries, unfit = [], [], {}
        for number, function in enumerate(bound.functions):
            entry = unit.entries[number]
            why = str(function) if isinstance(function, NoEntry) else watch.why_broken(number)
            if why or isinstance(function, NoEntry):
                unfit[str(entry.signature)] = why
            else:
                fitting.append(number)
                entries.append((entry, function))
        state = tuple(fitting)
        if state not in bound.states and len(bound.states) >= STATES_KEPT:
            bound.states.pop(next(iter(bound.states)))
        hits, open_hits = bound.states.setdefault(state, ({}, {}))
        return replace(
            bound,
            unchanged=watch.unchanged,
            entries=entries,
            unfit=unfit,
            hits=hits,
            open_hits=open_hits,
        )

    def has(self, entry: Entry) -> bool:
        """Return whether it runs the code of an entry."""
        return any(e.function_key == entry.function_key for e, _ in self._bound.entries)

    def forget_calls(self) -> None:
        """Find the code for each kind of call anew at its next call."""
        with self._binding:
            for tables in self._bound.states.values():
                for table in tables:
                    table.clear()

    def look_again(self, library: Library) -> None:
        """Withdraw what was made for this callable and does not fit it any more, without a trace.

        A call of another kind, another callable or the handler changed it, and will again. What
        answered another call of the build meanwhile is of a state that comes back.
        """
        with self._binding:
            made, self._made_here = self._made_here, []
            answered, self._answered = self._answered, set()
            for unit, entry in made:
                why = entry.facts.broken(self.callee)
                if not why or id(entry) in answered:
                    continue
                # Of this build, and not withdrawn for another callable yet.
                if library.units.get(unit.key) is unit and entry in unit.entries:
                    why = f"what its graph is built on changes from call to call: {why}"
                    library.withdraw(unit, entry, why)

    def _looked_up(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Find the entry for a call the slow way, and remember it; or hand the call on."""
        building = _building is not None
        # Before the lock of this callable: what eager calls inside has locks of its own.
        with _build_lock if building else contextlib.nullcontext(), self._binding:
            fn, use, tensors = self._choose(self._up_to_date(), args, kwargs, building=building)
        if fn is None:
            return self.stock(*args, **kwargs)
        if evidence.current is not None:
            evidence.current.add(threading.get_native_id())
        try:
            return fn(self.callee, *tensors)
        except NOT_ANSWERED as error:
            self._seen[use] -= 1
            return self._answer_otherwise(use[0], fn, error, args, kwargs)

    def _choose(
        self, bound: _Bound, args: Sequence[Any], kwargs: Mapping[str, Any], *, building: bool
    ) -> tuple[Callable[..., Any] | None, _Use, Sequence[Any]]:
        """Return the code that answers a call, how it is counted, and the call's tensors."""
        library = bound.library
        call = "(...)"
        if library is None:
            return None, (call, 1, ""), ()
        fn: Callable[..., Any] | None = None
        entry: Entry | None = None
        tensors: Sequence[Any] = ()
        try:
            known = None if building else bound.known
            signature, tensors = call_signature.describe(args, kwargs, known=known)
            call = str(signature)
            entry, fn = self._found(bound, library, signature, call_signature.state(), tensors)
        except NoEntry as error:
            if building:
                library.refused.setdefault((self.name, call), str(error))
            use = self._noted(call, 1, str(error))
        else:
            use = self._noted(call, entry.level, entry.reason)
            if not building:
                fn = entry_checks.around(self, entry, fn)
        if not building and not (fn is None and aot_compile.intercepted()):
            self._remember(bound, args, kwargs, entry, fn, use)
        return fn, use, tensors

    def _answer_otherwise(
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
            self._noted(call, 1, str(error))
            return value
        self._noted(call, 1, _why_not_run(fn, error))
        return self.stock(*args, **kwargs)

    def _found(
        self,
        bound: _Bound,
        library: Library,
        signature: Signature,
        state: Mapping[str, str],
        tensors: Sequence[Any],
    ) -> tuple[Entry, Callable[..., Any]]:
        if state["grad_mode"] == "on":
            raise NoEntry("called with grad mode on: use torch.inference_mode()")
        for entry, fn in bound.entries:
            if entry.takes(signature, state, tensors):
                self._answered.add(id(entry))
                return entry, fn
        if _building is None:
            raise NoEntry(self._why_none(bound, library, signature, state))
        return self._make(bound, library, signature, state, tensors)

    def _remember(  # noqa: PLR0917 - one line of its caller's, with all that it knows
        self,
        bound: _Bound,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        entry: Entry | None,
        fn: Callable[..., Any] | None,
        use: _Use,
    ) -> None:
        """Find this kind of call the quick way from now on; without an entry it is level 1."""
        tensors: list[Any] = []
        open_sizes = entry is not None and entry.dynamic.is_open
        key = key_of(args, kwargs, tensors, bound.known, sizes=not open_sizes)
        if not tensors:
            return
        free: dict[int, Any] = {}
        holds = None
        if entry is not None and entry.dynamic.conditions:
            holds = entry.dynamic.holds
            free = {number: entry.dynamic.free(number) for number in range(len(tensors))}
        table = bound.open_hits if open_sizes else bound.hits
        if len(table) >= HITS_KEPT:
            table.pop(next(iter(table)), None)  # of shapes there is no end
        same = table.setdefault(key, [])
        check = aot_compile.tensor_check(tensors, free=free)
        same.insert(0, (check, aot_compile.state_check(), holds, fn, use))
        # Calls that differ only in what is checked in C++: a few kinds, not one a request.
        del same[4:]

    def _noted(self, call: str, level: int, reason: str) -> _Use:
        use = (call, level, shorten(reason))
        if use not in self._seen:
            if len(self._seen) >= CALLS_KEPT:
                use = ("other calls", level, "")
            elif reason:
                logger.warning("level %d for %s%s: %s", level, self.name, call, use[2])
        self._seen[use] = self._seen.get(use, 0) + 1
        return use

    def _why_none(
        self, bound: _Bound, library: Library, signature: Signature, state: Mapping[str, str]
    ) -> str:
        if str(signature) in bound.unfit:
            return bound.unfit[str(signature)]
        if (self.name, str(signature)) in library.refused:
            return library.refused[self.name, str(signature)]
        if not bound.entries:
            if bound.unfit:
                return next(iter(bound.unfit.values()))
            return library.nearest(bound.unit) if bound.unit is not None else ""
        for entry, _ in bound.entries:
            if entry.signature == signature:
                other = "; ".join(
                    _other_state(name, now, entry.state.get(name, "not known"))
                    for name, now in state.items()
                    if now != entry.state.get(name)
                )
                return other or f"not so for it: {' and '.join(entry.dynamic.conditions)}"
        return f"no entry for this call; there are {len(bound.entries)} for others"

    # The build ---------------------------------------------------------------------------------

    def _make(
        self,
        bound: _Bound,
        library: Library,
        signature: Signature,
        state: Mapping[str, str],
        tensors: Sequence[Any],
    ) -> tuple[Entry, Callable[..., Any]]:
        """Make the entry for a call, hold it against eager, and add it to the library."""
        if bound.unit is None:  # pragma: no cover  (bound before)
            raise AssertionError
        why = aot_compile.can_precompile()
        if self.arguments.get("backend", "inductor") != "inductor":
            why = f"the backend is {self.arguments['backend']}, and entries are Inductor's"
        # As it is in one state, which need not be so in the next. One that is never the same, by a
        # count for example, is tried a few times.
        attempts = self._failed.setdefault((bound.unit.key, signature, *state.values()), {})
        attempt = plain_values(self.callee)
        if len(attempts) >= ATTEMPTS:
            why = why or next(iter(attempts.values()))
        why = why or attempts.get(attempt, "")
        if why:
            raise NoEntry(why)
        try:
            made, entry = self._made(signature, state, tensors)
        except NoEntry as failure:
            attempts[attempt] = str(failure)  # not tried again at each call
            raise
        # In another state, with grad mode on for example, it may have been refused before.
        library.refused.pop((self.name, str(signature)), None)
        library.add(bound.unit, entry, made.data, made.fn)
        self._made_here.append((bound.unit, entry))
        return entry, made.fn

    def _made(
        self, signature: Signature, state: Mapping[str, str], tensors: Sequence[Any]
    ) -> tuple[aot_compile.Made, Entry]:
        """Return what is made for a call, of the highest level that is asked for and can be had."""
        # Shapes are static unless said otherwise: None would be neither.
        arguments = {"dynamic": False, **self.arguments}
        function = signature.function("entry")
        level, reason = self.level, ""
        if level == LIBRARIES:
            try:
                made = aoti_build.make(function, self.callee, tensors, arguments)
                error = self._error(function, made, tensors)
                if made.plan.get("captures") == "":
                    # What was captured by that call is launched by this one.
                    error = max(error, self._error(function, made, tensors))
            except NoEntry as failure:
                level, reason = 2, str(failure)
        changes: Mapping[str, None] = {}
        if level == 2:
            with aot_compile.side_effects() as changes:
                made = aot_compile.make(function, self.callee, tensors, arguments)
            error = self._error(function, made, tensors)
        once = f"it changes {', '.join(changes)}" if changes else ""
        if not once and (aot_compile.writes(made.fn) if level == 2 else made.plan.get("writes")):
            once = "it writes into its inputs or buffers"
        once = once or why_not_twice(self.callee, (function, made.fn), tensors)
        dynamic = Dynamic(conditions=tuple(made.conditions))
        return made, Entry(
            signature=dynamic.signature(signature, tensors),
            dynamic=dynamic,
            state=state,
            facts=made.facts.with_inputs(self.callee, aot_compile.inputs_of(made.fn)),
            sources=made.sources,
            references=made.references,
            file=file_name(made.data, PREFIXES[level]),
            error=error,
            level=level,
            reason=reason,
            plan={**made.plan, entry_checks.ONCE: once},
        )

    def _error(
        self, function: Callable[..., Any], made: aot_compile.Made, tensors: Sequence[Any]
    ) -> float:
        """Return how far it is from eager; `NoEntry` where that is too far.

        Also where its call breaks what it was built on: a count, a list that grows, a value that
        is computed once. At the next call the graph would be stale, and facts are looked at once
        per start. Asked of eager, since compiled code writes the values of its first call.
        And where it changes a list or dict that it is given: an entry is given others.
        """

        def eager(callee: Any, *tensors: Any) -> Any:
            args, kwargs = function(_as_passed, *tensors)
            before = call_signature.contents(args, kwargs)
            out = callee(*args, **kwargs)
            if call_signature.contents(args, kwargs) != before:
                raise NoEntry("its call changes a list or dict that it is given")
            why = made.facts.broken(callee)
            if why:
                raise NoEntry(f"its call changes what its graph is built on: {why}")
            return out

        return difference_from_eager(self.callee, eager, made.fn, tensors)


def _other_state(name: str, now: str, was: str) -> str:
    """Return in words how a part of the state differs, of a long list the items that do."""
    found, before = now.split(", "), was.split(", ")
    now = ", ".join(part for part in found if part not in before)
    was = ", ".join(part for part in before if part not in found)
    return f"{name} is {now}, and was {was}"


NOT_ANSWERED = (NoEntry, LookupError, AttributeError, LibraryFailedCleanly)
"""What an entry raises before anything was computed: it refuses the call, or does not find what it
is to compute with, a submodule that another thread deletes for example. And a library that failed
without having written anything."""


def _why_not_run(fn: Callable[..., Any], error: BaseException) -> str:
    """Return why an entry did not come to its graph; what may have been computed raises on."""
    if isinstance(error, NoEntry):
        return str(error)
    if not aot_compile.may_run_again(fn, error):
        raise error
    return f"it does not find what it was built with: {type(error).__name__}: {error}"


def _as_passed(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


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


def _text(arguments: Mapping[str, Any], level: int = 2) -> str:
    """Return the arguments that change compiled code, as text that is equal when they are."""
    kept = {k: v for k, v in arguments.items() if k not in ("recompile_limit", "fullgraph", "name")}
    if level != 2:
        kept["level"] = level
    return ", ".join(f"{key}={kept[key]!r}" for key in sorted(kept)) or "no arguments"


# For a start and for a build ------------------------------------------------------------------


def handed_over() -> bool:
    """Return whether anything in this process was compiled with `serve_warm.compile`."""
    return len(_dispatchers) > 0


def without_dynamo() -> bool:
    """Return whether libraries are asked for in all that was compiled with `serve_warm.compile`."""
    return handed_over() and all(each.level == LIBRARIES for each in list(_dispatchers))


def load(*folders: Path) -> str:
    """Load the entries of an artifact, a folder each part, for every callable of this process.

    Executes what is in the folders, which must have been verified. Those of libraries have to stay
    for as long as the process. Returns why something was not loaded, in words; an entry that does
    not fit is no such reason, its calls are named in the report.
    """
    global _library, _active  # noqa: PLW0603 - callables and their code are the process' own
    library, problems = Library({}, {}), []
    for folder in folders:
        try:
            part = Library.read(folder)
            # Not asked for libraries: it imports Dynamo.
            why = aot_compile.can_precompile() if part.has_entries(2) else ""
        except NoEntry as error:
            why = str(error)
        if why:
            problems.append(why)
        else:
            library.take(part)
    library.why_empty = "; ".join(problems)
    _library = library
    _active = _building or library
    for dispatcher in list(_dispatchers):
        dispatcher.bind()
    return "; ".join(problems)


def begin_checks(
    *, one_in: int, can_compile: Callable[[], bool], on_failure: Callable[[str], None]
) -> entry_checks.Checks | None:
    """Return checks of all entries that are loaded; None where there are none.

    After READY one call in `one_in` of an entry is checked, or none where that is 0.
    """
    checks = entry_checks.Checks(
        one_in=one_in,
        withdraw=lambda entry, why: withdraw(entry, why, eagerly=not can_compile()),
        on_failure=on_failure,
    )
    entry_checks.current = checks if _library is not None and _library.has_any else None
    return entry_checks.current


def withdraw(entry: Entry, why: str, *, eagerly: bool) -> None:
    """Run an entry in no callable from now on: its calls go to torch.compile, with `why`.

    With `eagerly` they run as written: without a compiler torch.compile could only raise.
    """
    if _library is not None:
        _library.disable(entry, why)
    for dispatcher in list(_dispatchers):
        if eagerly and dispatcher.has(entry):
            dispatcher.stock = dispatcher.callee
    for dispatcher in list(_dispatchers):
        dispatcher.bind_anew()


def unload() -> None:
    """Forget all entries: every call goes to torch.compile."""
    global _library, _active  # noqa: PLW0603
    _library = None
    _active = _building
    entry_checks.current = None


@contextlib.contextmanager
def building() -> Iterator[Library]:
    """Make an entry for every call in the block that can have one, and yield where they are.

    The calls are answered by the entries that are made for them. Compiles, with Inductor's caches
    as they are: what level 1 has compiled before is not compiled again.
    """
    global _building, _active  # noqa: PLW0603
    library = Library({}, {})
    _building = _active = library
    try:
        yield library
        for dispatcher in list(_dispatchers):
            dispatcher.look_again(library)
    finally:
        _building = None
        _active = _library


def uses() -> tuple[EntryUse, ...]:
    """Return what became of the calls of all callables, those of one structure as one."""
    counts: dict[tuple[str, str, int, str], int] = {}
    for dispatcher in list(_dispatchers):
        for use in dispatcher.uses():
            key = (use.callable, use.call, use.level, use.reason)
            counts[key] = counts.get(key, 0) + use.calls
    return tuple(
        EntryUse(callable=name, call=call, level=level, reason=reason, calls=calls)
        for (name, call, level, reason), calls in sorted(counts.items())
    )
