# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which compiled code a call runs: an entry made ahead of time, or torch.compile as ever.

`serve_warm.compile` is torch.compile with a dispatcher in front. With an artifact loaded, a call
that an entry was made for runs that entry, and neither Dynamo nor its guards are asked (level 2).
Any other call goes to torch.compile (level 1), counted and named: never an error.
Where it is asked for, an entry is a library made by AOTInductor (level 3), and Dynamo and Inductor
are not even imported before a call needs level 1.

What Dynamo's guards protected is checked here, in three rhythms:

    each call     structure and scalars of the arguments; tensors' metadata; grad mode, autocast,
                  default dtype, threads and whatever else torch keeps per thread or process
    each start    files of the code in the graph; the tree of modules with flags, parameters'
                  metadata and ties; every value, type and function that the graph was built on
    in between    the same again after `train()`, `to()`, `load_state_dict()` or a new parameter

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
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as nn_module

from serve_warm import ahead, calls, compiler, exported
from serve_warm.calls import STATE, Dynamic, Signature, key_of
from serve_warm.entries import PREFIXES, Entry, Library, Unit, file_name, tree
from serve_warm.errors import ConfigError
from serve_warm.facts import NoEntry
from serve_warm.parity import difference_from_eager
from serve_warm.report import EntryUse

logger = logging.getLogger(__name__)

LIBRARIES = 3
"""The level at which code is in libraries, and a start does without Dynamo."""

CALLS_KEPT = 256
"""Different calls that a dispatcher keeps a record of; counts go on beyond."""


# The public functions -------------------------------------------------------------------------


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
        stock = functools.partial(ahead.compiled_module_class().__call__, module)
        dispatcher = Dispatcher(target, stock=stock, arguments=arguments)
        object.__setattr__(module, "_serve_warm", dispatcher)
        return module
    if not callable(target):
        raise ConfigError(
            f"serve_warm.compile got a {type(target).__name__}, which cannot be called",
            hint="pass a torch.nn.Module, a function or a method",
        )
    return _CompiledFunction(target, arguments, level=level)


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
    if torch.cuda.is_available() and ahead.captures(arguments):
        raise ConfigError(
            "serve_warm.compile_regions was asked for CUDA graphs, by mode, options or setting",
            hint="torch ends what one compiled call returned when the next one begins, and a block "
            "returns what the next one takes; leave them out, or hand over the whole model: "
            "serve_warm.compile(model, mode=...)",
        )
    found = _repeated(model) if blocks is None else _named(model, blocks)
    # With an artifact they are not called: a start saves 1 to 2 ms for each (2.11, 2.13).
    stocks = [_WhenCalled(ahead.call_of(block), arguments) for block in found]
    stocks[0].compiled()  # wrong arguments are an error here, and not in the first request
    for block, stock in zip(found, stocks, strict=True):
        # Where nn.Module looks for it; state_dict, hooks and attributes stay as they are.
        dispatcher = Dispatcher(stock.target, stock=stock, arguments=arguments)
        ahead.compile_in_place(block, dispatcher)
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


@functools.cache
def _compiled_module_class() -> type:
    # Made when it is first needed: its base is Dynamo's, which takes a second to import.
    base: Any = ahead.compiled_module_class()

    class CompiledModule(base):  # type: ignore[misc]
        """torch.compile's module with our dispatcher in front of its call."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            state = self.__dict__
            if state["_forward_hooks"] or state["_forward_pre_hooks"]:  # fired by nn.Module's call
                return state["_serve_warm"].stock(*args, **kwargs)
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
        self._arguments = arguments
        self._compiled: Callable[..., Any] | None = None
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        compiled = self._compiled
        if compiled is None:
            compiled = self.compiled()
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


class _Changes:
    """Counts what may have made a module another than it was when it was last looked at."""

    def __init__(self) -> None:
        self.generation = 0
        self._watching = False
        self._lock = threading.Lock()
        self._modules: set[int] | None = set()
        """Ids of the modules that are looked at; None once something is whose modules are not
        known, a function for example. An id that is used again costs a look, and no more."""

    def bump(self) -> None:
        """Count one: everything is looked at again before it is next used."""
        self.generation += 1

    def look_at(self, callee: Any) -> None:
        """Notice changes of what is called, from now on."""
        root = calls.module_of(callee)
        if root is None:
            self._modules = None
        elif self._modules is not None:
            self._modules.update(map(id, root.modules()))

    def noted(self, module: Any, *_: Any) -> None:
        """Count a change of a module; it takes what torch's hooks pass, and changes nothing."""
        # Traced, it would be a guard that no call after the first one passes.
        if torch.compiler.is_compiling():
            return
        # A model that is built while requests run is none of ours.
        if self._modules is None or id(module) in self._modules:
            self.bump()

    def watch(self) -> None:
        """Begin to notice; for the whole process, since anyone may hold a submodule."""
        with self._lock:
            if self._watching:
                return
            self._watching = True
        kind: Any = torch.nn.Module
        # `_apply` is what to(), half(), cuda() and the like come to (private; 1.0 to 2.15). Each
        # goes on to the modules below, and so comes by here for those that are looked at.
        # A submodule that is deleted fires no hook.
        hooks = ("register_forward_hook", "register_forward_pre_hook")
        for name in ("train", "_apply", "__delattr__", *hooks):
            setattr(kind, name, self._bumping(getattr(kind, name), self.noted))
        # This one does not: it reaches the modules below by another method of theirs.
        kind.load_state_dict = self._bumping(kind.load_state_dict, self._noted_below)
        nn_module.register_module_parameter_registration_hook(self.noted)
        nn_module.register_module_buffer_registration_hook(self.noted)
        nn_module.register_module_module_registration_hook(self.noted)

    def _noted_below(self, module: Any) -> None:
        for each in module.modules():
            self.noted(each)

    def _bumping(
        self, method: Callable[..., Any], noted: Callable[[Any], None]
    ) -> Callable[..., Any]:
        @functools.wraps(method)
        def bumping(module: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(module, *args, **kwargs)
            finally:
                noted(module)

        return bumping


_changes = _Changes()


# The dispatcher -------------------------------------------------------------------------------


_dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()
_library: Library | None = None
_building: Library | None = None


_Use = tuple[str, int, str]
"""Call, level and reason."""


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
        _changes.watch()
        self.callee = callee
        self.level = level
        """The highest one that is asked for."""
        self.stock = stock
        self.arguments = dict(arguments)
        self.name = _name_of(callee)
        self._generation = -1
        self._binding = threading.RLock()
        self._unit: Unit | None = None
        self._considered = 0
        self._entries: list[tuple[Entry, Callable[..., Any]]] = []
        self._made_here: list[tuple[Unit, Entry]] = []
        self._hits: dict[Any, list[tuple[Any, ...]]] | None = None
        self._seen: dict[_Use, int] = {}
        self._unfit: dict[str, str] = {}
        self._failed: dict[tuple[str, ...], str] = {}
        """Why a build could not make an entry, by call and state."""
        _dispatchers.add(self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the entry for this call, or what torch.compile made."""
        if torch.compiler.is_compiling():  # into an outer graph
            return self.callee(*args, **kwargs)
        if self._generation == _changes.generation:
            hits = self._hits
            if hits is None:
                return self.stock(*args, **kwargs)
            tensors: list[Any] = []
            for same_tensors, same_state, fn, use in hits.get(key_of(args, kwargs, tensors), ()):
                if same_tensors(*tensors) and same_state():
                    if fn is None:
                        self._seen[use] += 1
                        return self.stock(*args, **kwargs)
                    if compiler.calling is not None:
                        compiler.calling.add(threading.get_native_id())
                    try:
                        return fn(self.callee, *tensors)
                    except BEFORE_THE_GRAPH as error:
                        self._noted(use[0], 1, _why_not_run(fn, error))
                        return self.stock(*args, **kwargs)
        return self._looked_up(args, kwargs)

    @property
    def serve_warm_level1(self) -> Callable[..., Any]:
        """What torch.compile made; `compiler.compile_arguments` looks for this name."""
        stock = self.stock
        if isinstance(stock, _WhenCalled):
            return stock.compiled()
        return stock.func if isinstance(stock, functools.partial) else stock

    @property
    def serve_warm_level3(self) -> str:
        """Arguments in words where libraries are asked for, which are to be found without Dynamo.

        Empty elsewhere. `compiler.compile_arguments` looks for this name.
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
            generation, library = _changes.generation, _building or _library
            if generation == self._generation:
                return  # by another thread, meanwhile
            self._considered, self._entries, self._unfit = 0, [], {}
            _changes.look_at(self.callee)
            if library is not None:
                self._unit = library.unit(
                    self.name, _text(self.arguments, self.level), tree(self.callee)
                )
                self._consider(library)
            # Last: who sees it does not wait, and must find all the rest.
            self._hits = None if library is None else {}
            self._generation = generation

    def _consider(self, library: Library) -> None:
        """Take those entries of the unit that fit this callable and were not looked at yet."""
        entries = self._unit.entries if self._unit is not None else []
        for entry in entries[self._considered :]:
            self._considered += 1
            why = entry.facts.broken(self.callee)
            if not why:
                try:
                    self._entries.append((entry, library.function(entry)))
                except NoEntry as error:
                    why = str(error)
            if why:
                self._unfit[str(entry.signature)] = why

    def look_again(self, library: Library) -> None:
        """Withdraw what was made for this callable and does not fit it any more, without a trace.

        A call of another kind, another callable or the handler changed it, and will again.
        """
        with self._binding:
            made, self._made_here = self._made_here, []
            # What was looked at anew meanwhile may be in neither of the two alone.
            if self._unit is not None:
                made += [(self._unit, entry) for entry, _ in self._entries]
            for unit, entry in made:
                why = entry.facts.broken(self.callee)
                # Of this build, and not withdrawn for another callable yet.
                if why and library.units.get(unit.key) is unit and entry in unit.entries:
                    why = f"what its graph is built on changes from call to call: {why}"
                    library.withdraw(unit, entry, why)

    def _looked_up(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Find the entry for a call the slow way, and remember it; or hand the call on."""
        if self._generation != _changes.generation:
            self.bind()
        library = _building or _library
        if library is None or self._hits is None:
            return self.stock(*args, **kwargs)
        call = "(...)"
        tensors: list[Any] = []
        generation = self._generation
        try:
            signature, tensors = calls.describe(args, kwargs)
            call = str(signature)
            with self._binding:
                generation = self._generation
                entry, fn = self._found(library, signature, calls.state(), tensors)
        except NoEntry as error:
            if _building is not None:
                _building.refused.setdefault((self.name, call), str(error))
            use = self._noted(call, 1, str(error))
            if tensors and _building is None and not ahead.intercepted():
                self._remember(args, kwargs, None, use, generation)
            return self.stock(*args, **kwargs)
        use = self._noted(call, entry.level, entry.reason)
        self._remember(args, kwargs, fn, use, generation)
        if compiler.calling is not None:
            compiler.calling.add(threading.get_native_id())
        try:
            return fn(self.callee, *tensors)
        except BEFORE_THE_GRAPH as error:
            why = _why_not_run(fn, error)
            self._seen[use] -= 1
            self._noted(call, 1, why)
            return self.stock(*args, **kwargs)

    def _found(
        self,
        library: Library,
        signature: Signature,
        state: Mapping[str, str],
        tensors: Sequence[Any],
    ) -> tuple[Entry, Callable[..., Any]]:
        if state["grad_mode"] == "on":
            raise NoEntry("called with grad mode on: use torch.inference_mode()")
        if _building is not None:
            self._consider(library)  # another layer may have made one meanwhile
        for entry, fn in self._entries:
            if entry.takes(signature, state, tensors):
                return entry, fn
        if _building is None:
            raise NoEntry(self._why_none(library, signature, state))
        return self._make(library, signature, state, tensors)

    def _remember(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        fn: Callable[..., Any] | None,
        use: _Use,
        generation: int,
    ) -> None:
        """Find this kind of call the quick way from now on; without `fn` it is level 1.

        Unless the callable was looked at anew since `generation`: then `fn` may be of before.
        """
        tensors: list[Any] = []
        key = key_of(args, kwargs, tensors)
        with self._binding:
            if self._hits is None or generation != self._generation:
                return
            if len(self._hits) >= CALLS_KEPT:
                self._hits.clear()  # of dynamic shapes there is no end
            same = self._hits.setdefault(key, [])
            same.insert(0, (ahead.tensor_check(tensors), ahead.state_check(), fn, use))
            # Calls that differ only in what is checked in C++: a few kinds, not one a request.
            del same[4:]

    def _noted(self, call: str, level: int, reason: str) -> _Use:
        use = (call, level, reason)
        if use not in self._seen:
            if len(self._seen) >= CALLS_KEPT:
                use = ("other calls", level, "")
            elif reason:
                logger.warning("level %d for %s%s: %s", level, self.name, call, reason)
        self._seen[use] = self._seen.get(use, 0) + 1
        return use

    def _why_none(self, library: Library, signature: Signature, state: Mapping[str, str]) -> str:
        if str(signature) in self._unfit:
            return self._unfit[str(signature)]
        if (self.name, str(signature)) in library.refused:
            return library.refused[self.name, str(signature)]
        if not self._entries:
            if self._unfit:
                return next(iter(self._unfit.values()))
            return library.nearest(self._unit) if self._unit is not None else ""
        for entry, _ in self._entries:
            if entry.signature == signature:
                return "; ".join(
                    f"{name} is {state[name]}, and was {entry.state[name]}"
                    for name in STATE
                    if state[name] != entry.state[name]
                )
        return f"no entry for this call; there are {len(self._entries)} for others"

    # The build ---------------------------------------------------------------------------------

    def _make(
        self,
        library: Library,
        signature: Signature,
        state: Mapping[str, str],
        tensors: Sequence[Any],
    ) -> tuple[Entry, Callable[..., Any]]:
        """Make the entry for a call, hold it against eager, and add it to the library."""
        if self._unit is None:  # pragma: no cover  (bound before)
            raise AssertionError
        why = ahead.can_precompile()
        if self.arguments.get("backend", "inductor") != "inductor":
            why = f"the backend is {self.arguments['backend']}, and entries are Inductor's"
        attempt = (str(signature), *state.values())
        why = why or self._failed.get(attempt, "")
        if why:
            raise NoEntry(why)
        try:
            made, entry = self._made(signature, state, tensors)
        except NoEntry as failure:
            self._failed[attempt] = str(failure)  # not tried again at each call
            raise
        # In another state, with grad mode on for example, it may have been refused before.
        library.refused.pop((self.name, str(signature)), None)
        library.add(self._unit, entry, made.data, made.fn)
        self._made_here.append((self._unit, entry))
        self._consider(library)
        return entry, made.fn

    def _made(
        self, signature: Signature, state: Mapping[str, str], tensors: Sequence[Any]
    ) -> tuple[ahead.Made, Entry]:
        """Return what is made for a call, of the highest level that is asked for and can be had."""
        # Shapes are static unless said otherwise: None would be neither.
        arguments = {"dynamic": False, **self.arguments}
        function = signature.function("entry")
        level, reason = self.level, ""
        if level == LIBRARIES:
            try:
                made = exported.make(function, self.callee, tensors, arguments)
                error = self._error(function, made, tensors)
                if made.plan.get("captures") == "":
                    # What was captured by that call is launched by this one.
                    error = max(error, self._error(function, made, tensors))
            except NoEntry as failure:
                level, reason = 2, str(failure)
        if level == 2:
            made = ahead.make(function, self.callee, tensors, arguments)
            error = self._error(function, made, tensors)
        dynamic = Dynamic(conditions=tuple(made.conditions))
        return made, Entry(
            signature=dynamic.signature(signature, tensors),
            dynamic=dynamic,
            state=state,
            facts=made.facts,
            sources=made.sources,
            references=made.references,
            file=file_name(made.data, PREFIXES[level]),
            error=error,
            level=level,
            reason=reason,
            plan=made.plan,
        )

    def _error(
        self, function: Callable[..., Any], made: ahead.Made, tensors: Sequence[Any]
    ) -> float:
        """Return how far it is from eager; `NoEntry` where that is too far.

        Also where its call breaks what it was built on: a count, a list that grows, a value that
        is computed once. At the next call the graph would be stale, and facts are looked at once
        per start. Asked of eager, since compiled code writes the values of its first call.
        And where it changes a list or dict that it is given: an entry is given others.
        """

        def eager(callee: Any, *tensors: Any) -> Any:
            args, kwargs = function(_as_passed, *tensors)
            before = calls.contents(args, kwargs)
            out = callee(*args, **kwargs)
            if calls.contents(args, kwargs) != before:
                raise NoEntry("its call changes a list or dict that it is given")
            why = made.facts.broken(callee)
            if why:
                raise NoEntry(f"its call changes what its graph is built on: {why}")
            return out

        return difference_from_eager(self.callee, eager, made.fn, tensors)


BEFORE_THE_GRAPH = (NoEntry, LookupError, AttributeError)
"""What an entry raises before anything was computed: it refuses the call, or does not find what it
is to compute with, a submodule that was deleted for example."""


def _why_not_run(fn: Callable[..., Any], error: BaseException) -> str:
    """Return why an entry did not come to its graph; what may have been computed raises on."""
    if isinstance(error, NoEntry):
        return str(error)
    if not ahead.may_run_again(fn, error):
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
    global _library  # noqa: PLW0603 - callables and their code are the process' own
    library, problems = Library({}, {}), []
    for folder in folders:
        try:
            part = Library.read(folder)
            # Not asked for libraries: it imports Dynamo.
            why = ahead.can_precompile() if part.has_entries(2) else ""
        except NoEntry as error:
            why = str(error)
        if why:
            problems.append(why)
        else:
            library.take(part)
    if len(problems) == len(folders):
        return "; ".join(problems)
    _library = library
    _changes.bump()
    for dispatcher in list(_dispatchers):
        dispatcher.bind()
    return "; ".join(problems)


def unload() -> None:
    """Forget all entries: every call goes to torch.compile."""
    global _library  # noqa: PLW0603
    _library = None
    _changes.bump()


@contextlib.contextmanager
def building() -> Iterator[Library]:
    """Make an entry for every call in the block that can have one, and yield where they are.

    The calls are answered by the entries that are made for them. Compiles, with Inductor's caches
    as they are: what level 1 has compiled before is not compiled again.
    """
    global _building  # noqa: PLW0603
    library = Library({}, {})
    _building = library
    _changes.bump()
    try:
        yield library
        for dispatcher in list(_dispatchers):
            dispatcher.look_again(library)
    finally:
        _building = None
        _changes.bump()


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
