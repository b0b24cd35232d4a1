# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve_warm.compile` and `compile_regions`: what they return for modules, functions and methods.

It is torch.compile with a dispatcher in front. With an artifact loaded, a call that an entry was
made for runs that entry, and neither Dynamo nor its guards are asked (level 2). Any other call goes
to torch.compile (level 1), counted and named: never an error. Where it is asked for, an entry is a
library made by AOTInductor (level 3), and Dynamo and Inductor are not even imported before a call
needs level 1.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from serve_warm._public_names import public
from serve_warm.errors import ConfigError
from serve_warm.precompile import aot_compile
from serve_warm.precompile.dispatcher import Dispatcher, is_dynamo_compiling
from serve_warm.precompile.entries import PREFIXES
from serve_warm.precompile.names import STANDS_FOR
from serve_warm.precompile.session import LIBRARY_LEVEL


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
    if level == LIBRARY_LEVEL and isinstance(target, torch.nn.Module):
        return LightModule(target, arguments)
    if isinstance(target, torch.nn.Module):
        module: Any = torch.compile(target, **arguments)
        module.__class__ = _make_module_class()
        dispatcher = Dispatcher(
            target, stock=module.forward, torch_compiled=lambda: module, arguments=arguments
        )
        object.__setattr__(module, "_serve_warm", dispatcher)
        # Libraries call `model.forward(x)`, sentence-transformers for example.
        object.__setattr__(module, "forward", _forward_of(dispatcher, module.forward))
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
    found = _find_repeated(model) if blocks is None else _find_named(model, blocks)
    # With an artifact they are not called: a start saves 1 to 2 ms for each (2.11, 2.13).
    stocks = [_WhenCalled(block._call_impl, arguments) for block in found]
    stocks[0].compiled()  # wrong arguments are an error here, and not in the first request
    for block, stock in zip(found, stocks, strict=True):
        # Where nn.Module looks for it; state_dict, hooks and attributes stay as they are.
        dispatcher = Dispatcher(
            stock.target, stock=stock, torch_compiled=stock.compiled, arguments=arguments
        )
        block._compiled_call_impl = dispatcher  # as `nn.Module.compile` does (2.2 to 2.15)
    return model


def _find_repeated(model: torch.nn.Module) -> list[torch.nn.Module]:
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


def _find_named(model: torch.nn.Module, names: Sequence[str]) -> list[torch.nn.Module]:
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


def _call_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
    # Its `__call__` fires hooks of all modules for torch.compile's module too, a second time.
    return module.forward(*args, **kwargs)


OWN_FORWARD = "_serve_warm_own_forward"
"""Attribute of a compiled module whose `forward` the user has set; without it there is none, since
the keys of a module's `__dict__` are in facts."""


def _forward_of(dispatcher: Dispatcher, stock: Any) -> Callable[..., Any]:
    """Return what `model.forward` calls; in facts it is torch's function, as it was before."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return dispatcher(*args, **kwargs)

    setattr(forward, STANDS_FOR, stock)
    return forward


@functools.cache
def _make_module_class() -> type:
    # Made when it is first needed: its base is Dynamo's, which takes a second to import.
    from torch._dynamo import OptimizedModule

    base: Any = OptimizedModule

    class CompiledModule(base):  # type: ignore[misc]
        """torch.compile's module with our dispatcher in front of its call."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            state = self.__dict__
            if (
                state["_forward_hooks"]  # fired by nn.Module's call
                or state["_forward_pre_hooks"]
                or OWN_FORWARD in state
            ):
                return super().__call__(*args, **kwargs)
            return state["_serve_warm"](*args, **kwargs)

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "forward":
                object.__setattr__(self, OWN_FORWARD, True)

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
        dispatcher = Dispatcher(
            module,
            stock=stock,
            torch_compiled=stock.compiled,
            arguments=arguments,
            level=LIBRARY_LEVEL,
        )
        object.__setattr__(self, "_serve_warm", dispatcher)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the library for this call, or what torch.compile makes; hooks of our own first."""
        state = self.__dict__
        if (
            state["_forward_hooks"]  # fired by nn.Module's call
            or state["_forward_pre_hooks"]
            or "forward" in state  # the user has set another one
        ):
            return super().__call__(*args, **kwargs)
        return state["_serve_warm"](*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Do the same without hooks."""
        return self.__dict__["_serve_warm"](*args, **kwargs)

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
        return functools.partial(compile, level=LIBRARY_LEVEL, **arguments), (self._orig_mod,)


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
            return _call_forward(compiled, *args, **kwargs)
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
        stock: Any
        if level == LIBRARY_LEVEL:
            stock = _WhenCalled(function, arguments)
            torch_compiled = stock.compiled
        else:
            stock = torch.compile(function, **arguments)

            def torch_compiled() -> Any:
                return stock

        self._serve_warm = Dispatcher(
            function, stock=stock, torch_compiled=torch_compiled, arguments=arguments, level=level
        )
        self._slotted: dict[Any, _Methods] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._serve_warm(*args, **kwargs)

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
            method = Dispatcher(
                bound,
                stock=stock,
                torch_compiled=self._serve_warm.torch_compiled,
                arguments=self._arguments,
                level=self._serve_warm.level,
            )
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
