# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve_warm.compile` and `compile_regions`, and the objects that they return.

Both functions put a dispatcher in front of torch.compile's result. If a loaded artifact has an
entry for a call, this entry answers the call, without Dynamo or its guards (level 2). torch.compile
runs all other calls (level 1). The report lists and counts the level-1 calls; these calls are not
errors. With `level=3`, an entry is a library made by AOTInductor, and Dynamo and Inductor
are imported only if a call needs level 1.
"""

from __future__ import annotations

import copy
import functools
import logging
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast, overload

import torch

from serve_warm._package import AnyCallable, public
from serve_warm.compiler import eager_calls, evidence
from serve_warm.compiler.switches import NULL_COMPILE, find_off_switch
from serve_warm.config import environment
from serve_warm.errors import ConfigError
from serve_warm.precompile.dispatch.dispatcher import (
    Dispatcher,
    Shared,
    is_dynamo_compiling,
    name_of,
)
from serve_warm.precompile.dispatch.same_code import SAME_CODE
from serve_warm.precompile.entries.model_tree import has_work
from serve_warm.precompile.entries.table import PREFIXES
from serve_warm.private_apis import dynamo, nn_module
from serve_warm.private_apis.dynamo import COMPILED_MARK, ORIGINAL, original_of
from serve_warm.private_apis.nn_module import (
    FORWARD_HOOKS,
    FORWARD_PRE_HOOKS,
    MODULES,
    own_modules,
)

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=torch.nn.Module)


@overload
def compile(  # noqa: A001 - as in torch
    target: AnyCallable, /, *, level: int = 2, **arguments: object
) -> AnyCallable: ...
@overload
def compile(  # noqa: A001 - as in torch
    target: None = None, /, *, level: int = 2, **arguments: object
) -> Callable[[AnyCallable], AnyCallable]: ...
@public
def compile(  # noqa: A001 - as in torch
    target: object = None, /, *, level: int = 2, **arguments: object
) -> object:
    """Return `target` compiled by torch.compile; calls that an artifact covers use its entries.

    Takes the same arguments as torch.compile and returns the same kind of object: a module for a
    module, a function for a function, and a decorator if there is no target.

        self.model = serve_warm.compile(load_model(), dynamic=False)

    `serve-warm build` makes one entry for each kind of call that the declared inputs make. Shapes
    are static unless `dynamic=True`. Entries need `torch.inference_mode()` or `no_grad()`,
    Inductor, and a graph without breaks. The report lists every call that does not meet these
    conditions. With `disable=True`, the result is `target` itself, and a warning is logged once.

    With `level=3`, entries are libraries made by AOTInductor. If every call has a library,
    a replica starts without importing Dynamo or Inductor, and needs no C++ compiler.

    Raises:
        ConfigError: `target` is not callable, or the level does not exist.
    """
    if level not in PREFIXES:
        raise ConfigError(
            f"serve_warm.compile got level={level!r}",
            hint="pass 2 (the default), or 3 for libraries; for level 1 use torch.compile itself",
        )
    if target is None:
        return functools.partial(compile, level=level, **arguments)
    if returns_unchanged("serve_warm.compile", arguments):
        return target
    if isinstance(target, torch.nn.Module):
        return LightModule(target, arguments, level=level)
    if not callable(target):
        raise ConfigError(
            f"serve_warm.compile got a {type(target).__name__}, which is not callable",
            hint="pass a torch.nn.Module, a function or a method",
        )
    return _CompiledFunction(target, arguments, level=level)


@public
def compile_regions(
    model: Model, blocks: Sequence[str] | None = None, /, *, level: int = 2, **arguments: object
) -> Model:
    """Compile a model's repeated blocks in place, once for all blocks, and return the model.

    By default, a block is a module whose class occurs at least twice in a ModuleList or Sequential;
    to choose other classes, pass their names as `blocks`. The code around the blocks stays eager.
    All layers of the same structure share one compiled block, so the compiler's work does not grow
    with the number of layers.

        self.model = serve_warm.compile_regions(load_decoder(), dynamic=False)

    Raises:
        ConfigError: no block repeats, or a named class is missing; the text lists the classes. Also
            raised for CUDA graphs on a machine with a GPU: single blocks cannot use CUDA graphs.
    """
    if level != 2:
        raise ConfigError(
            f"serve_warm.compile_regions got level={level!r}",
            hint="single blocks support levels 1 and 2 only; for a library, compile the whole "
            "model: serve_warm.compile(model, level=3)",
        )
    # Without a GPU torch captures nothing, and the mode's other options are fine.
    if torch.cuda.is_available() and _captures(arguments):
        raise ConfigError(
            "serve_warm.compile_regions does not support CUDA graphs, but the mode, the options "
            "or a torch setting enables them",
            hint="torch invalidates the output of a compiled call when the next call begins, but "
            "each block needs the output of the previous block; turn CUDA graphs off, or "
            "compile the whole model: serve_warm.compile(model, mode=...)",
        )
    found = _find_repeated(model) if blocks is None else _find_named(model, blocks)
    if returns_unchanged("serve_warm.compile_regions", arguments):
        return model
    for block in found:
        compile_in_place(block, arguments)
    return model


def compile_in_place(module: torch.nn.Module, arguments: Mapping[str, object]) -> None:
    """Compile a module so that it stays the same object, as `module.compile()` does.

    Its state_dict, hooks and attributes stay the same. Levels 1 and 2 only.
    """
    stock = _WhenCalled(nn_module.call_of(module), arguments)
    dispatcher = Dispatcher(
        stock.target, stock=stock, torch_compiled=stock.get_compiled, arguments=arguments
    )
    nn_module.set_compiled_call(module, dispatcher)


def returns_unchanged(function: str, arguments: Mapping[str, object]) -> bool:
    """Return whether torch.compile would return its target as it is, and log why, once.

    `function` is the name of the function that would call torch.compile with these arguments.
    """
    if arguments.get("disable"):
        _warn_once(f"{function} returns its target as it is, because it got disable=True")
    elif environment().get(NULL_COMPILE) == "1":
        _warn_once(f"{function} returns its target as it is: {find_off_switch()}")
    else:
        return False
    return True


@functools.cache
def _warn_once(text: str) -> None:
    logger.warning("%s", text)


def _captures(arguments: Mapping[str, object]) -> bool:
    from serve_warm.precompile.calls.compile_options import captures

    return captures(arguments)


def _find_repeated(model: torch.nn.Module) -> list[torch.nn.Module]:
    found: list[torch.nn.Module] = []
    # Outer blocks come first: a block's own lists of sub-blocks are compiled with the block.
    queue = [model]
    while queue:
        module = queue.pop(0)
        children = list(module.children())
        kinds: dict[type, list[torch.nn.Module]] = {}
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)):
            for child in children:
                kinds.setdefault(type(child), []).append(child)
        blocks = [b for same in kinds.values() if len(same) > 1 for b in same if has_work(b)]
        found += blocks
        queue += [child for child in children if not any(child is block for block in blocks)]
    if not found:
        raise ConfigError(
            f"compile_regions found no repeated block in {type(model).__name__}",
            hint="pass the names of the classes to compile, as in compile_regions(model, "
            "['DecoderLayer']), or compile the whole model with serve_warm.compile",
        )
    return found


def _find_named(model: torch.nn.Module, names: Sequence[str]) -> list[torch.nn.Module]:
    if not names:
        raise ConfigError(
            "compile_regions was given no class to compile",
            hint="pass the names of classes, or omit the argument to find repeated blocks",
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


def _compile_with_torch(target: Callable[..., object], arguments: Mapping[str, Any]) -> Any:
    """Return torch.compile's result: a module for a module, or else a function."""
    return torch.compile(target, **arguments)


OWN_FORWARD = "_serve_warm_forward"
"""Attribute of a compiled module: the `forward` that the user has not replaced."""


class LightModule(torch.nn.Module):
    """Mimics torch.compile's module without importing torch's compiler.

    Attributes, parameters and training mode come from the wrapped module. Names in its `state_dict`
    begin with `_orig_mod.`, as in torch.compile's module. torch.compile runs at the first call that
    needs level 1.

    As soon as Dynamo is imported, `isinstance` says that this is torch.compile's module, because
    libraries such as diffusers and accelerate unwrap only such modules.
    """

    def __init__(
        self, module: torch.nn.Module, arguments: Mapping[str, object], *, level: int
    ) -> None:
        super().__init__()
        own_modules(self)[ORIGINAL] = module
        stock = _WhenCalled(module, arguments)
        dispatcher = Dispatcher(
            module,
            stock=stock,
            torch_compiled=stock.get_compiled,
            arguments=arguments,
            level=level,
        )
        object.__setattr__(self, "_serve_warm", dispatcher)
        # In the object as well: Dynamo looks for the method in the class that `__class__` names.
        # Facts name this method. They would digest the code of a function.
        forward = dispatcher.__call__
        vars(self).update({"forward": forward, OWN_FORWARD: forward})

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        """Run the hooks of this module, then the library for this call or torch.compile's code."""
        state = self.__dict__
        if (
            state[FORWARD_HOOKS]  # nn.Module's call fires them
            or state[FORWARD_PRE_HOOKS]
            or state.get("forward") is not state[OWN_FORWARD]  # the user has set another one
        ):
            return super().__call__(*args, **kwargs)
        return state["_serve_warm"](*args, **kwargs)

    def forward(self, *args: object, **kwargs: object) -> object:
        """Run the call without hooks."""
        return self.__dict__["_serve_warm"](*args, **kwargs)

    @property  # type: ignore[misc]  # read-only
    def __class__(self) -> type:
        """The class of torch.compile's module, or this class if Dynamo is not imported.

        `isinstance` checks both this class and the actual one. Copying, pickling and Dynamo use
        only the actual one.
        """
        return dynamo.imported_compiled_module_class() or type(self)

    @property
    def training(self) -> bool:
        """Training mode of the wrapped module."""
        return bool(original_of(self).training)

    @training.setter
    def training(self, value: bool) -> None:
        if vars(self).get(MODULES):  # not in nn.Module's own __init__
            original_of(self).training = value

    def __getattr__(self, name: str) -> Any:
        module = vars(self).get(MODULES, {}).get(ORIGINAL)
        if module is None:
            raise AttributeError(name)
        return module if name == ORIGINAL else getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_own(name):
            super().__setattr__(name, value)
        else:
            setattr(original_of(self), name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_own(name):
            super().__delattr__(name)
        else:
            delattr(original_of(self), name)

    def _is_own(self, name: str) -> bool:
        return name == ORIGINAL or name in vars(self) or hasattr(type(self), name)

    def __len__(self) -> int:
        return len(original_of(self))

    def __bool__(self) -> bool:
        return bool(original_of(self))

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(type(self)), *dir(original_of(self))})

    def __reduce__(self) -> tuple[object, ...]:
        dispatcher = self.__dict__["_serve_warm"]
        made = functools.partial(compile, level=dispatcher.level, **dispatcher.arguments)
        return made, (original_of(self),)


class _WhenCalled:
    """Delays the call of torch.compile, which imports Dynamo, until the result is needed."""

    def __init__(self, target: Callable[..., object], arguments: Mapping[str, object]) -> None:
        self.target = target
        self._is_module = isinstance(target, torch.nn.Module)
        self._arguments = arguments
        self._compiled: Callable[..., object] | None = None
        self._lock = threading.Lock()

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        compiled, answers = self._compiled, eager_calls.answers
        if compiled is None:
            if answers is not None and answers.takes_in_torch():
                name, why = name_of(self.target), evidence.why_below
                return eager_calls.answer(answers, name, self.target, args, kwargs, why=why)
            compiled = self.get_compiled()
        # Not `__call__`, which would run the global module hooks again for torch.compile's module.
        run: Callable[..., object] = cast("Any", compiled).forward if self._is_module else compiled
        if answers is not None:
            return eager_calls.run_below(run, args, kwargs)
        return run(*args, **kwargs)

    def get_compiled(self) -> Callable[..., object]:
        """Return the result of torch.compile, which runs only once."""
        with self._lock:
            # Not a truth test: torch's module has a length, which may raise.
            if self._compiled is None:
                self._compiled = _compile_with_torch(self.target, self._arguments)
                if self._is_module:
                    # It is the user's module, and torch does not read the mark of a module.
                    vars(self.target).pop(COMPILED_MARK, None)
            return self._compiled


class _CompiledFunction:
    """A compiled function.

    If the function is a method of a class, each instance has its own compiled method.
    """

    def __init__(
        self, function: Callable[..., object], arguments: Mapping[str, object], *, level: int = 2
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._arguments = arguments
        shared = SAME_CODE.find_shared(function, arguments, level)
        stock = _WhenCalled(function, arguments)
        self._serve_warm = Dispatcher(
            function,
            stock=stock,
            torch_compiled=stock.get_compiled,
            arguments=arguments,
            level=level,
            shared=shared,
        )
        self._shared: dict[str, Shared] = {}
        """Maps the name of a class to what the compiled methods of its instances share."""

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        return self._serve_warm(*args, **kwargs)

    def __get__(self, instance: object, owner: object = None) -> Callable[..., object]:
        if instance is None:
            return self
        if is_dynamo_compiling():  # the id below differs in each process
            return functools.partial(self._function, instance)
        place = getattr(instance, "__dict__", None)
        if not isinstance(place, dict):
            # An instance that has only slots cannot store the method, and neither can a class.
            # Storing the method elsewhere would keep the instance alive.
            return self._bind(instance)
        kept = place.get(METHODS) or {}
        method = kept.get(id(self))
        # A shallow copy has the original's methods, which run on the original instance.
        if method is None or method.callee.__self__ is not instance:
            method = self._bind(instance)
            own = {key: m for key, m in kept.items() if m.callee.__self__ is instance}
            place[METHODS] = _MethodsOfInstance({**own, id(self): method})
        return method

    def _bind(self, instance: object) -> Dispatcher:
        """Return a new compiled method of an instance."""
        bound = types.MethodType(self._function, instance)
        whole = self._serve_warm
        kind = type(instance)
        name = f"{kind.__module__}.{kind.__qualname__}"
        shared = self._shared.get(name)
        if shared is None:
            shared = self._shared[name] = Shared(bound, self._arguments, whole.level)
        method = Dispatcher(
            bound,
            stock=functools.partial(whole.stock, instance),
            torch_compiled=whole.torch_compiled,
            arguments=self._arguments,
            level=whole.level,
            shared=shared,
            of=self,
        )
        functools.update_wrapper(method, bound, updated=())
        return method

    def __copy__(self) -> _CompiledFunction:
        return self  # as for a plain function

    def __deepcopy__(self, memo: dict[int, object]) -> _CompiledFunction:
        # A plain function stays the same. A bound method or a partial is copied with its objects.
        function = copy.deepcopy(self._function, memo)
        if function is self._function:
            return self
        return _CompiledFunction(function, self._arguments, level=self._serve_warm.level)

    def __reduce__(self) -> str | tuple[object, ...]:
        if _find_by_name(self) is self:
            return str(vars(self)["__qualname__"])
        level = self._serve_warm.level
        return functools.partial(compile, level=level, **self._arguments), (self._function,)


def _find_by_name(function: object) -> object:
    """Return the object that has a function's name in the function's module, or None."""
    found: object = sys.modules.get(getattr(function, "__module__", None) or "")
    for name in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found


METHODS = "_serve_warm_methods"
"""Attribute in which an instance stores its compiled methods, so that the methods are freed with
the instance."""


class _MethodsOfInstance(dict[int, "Dispatcher"]):
    """Compiled methods of one instance, by the id of the compiled function.

    Each method refers to its function, so no other function has this id. A copy of the instance
    starts without compiled methods.
    """

    def __reduce__(self) -> tuple[type[_MethodsOfInstance], tuple[()]]:
        return _MethodsOfInstance, ()
