# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Dynamo, the half of torch's compiler that reads Python code. Seen in torch 2.11 to 2.15.

Importing Dynamo takes a second, and a replica at level 3 does without it. So each function here
imports it, and those whose names say so do not.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeGuard, cast

if TYPE_CHECKING:
    import torch

    from serve_warm.private_apis.dynamo_objects import (
        AttributeSource,
        CompiledEntry,
        GuardArguments,
        ModelOfDict,
        ModelOfSet,
        ModelOfTorchFunction,
        ModelOfValue,
        ObjectSource,
        OriginalGuard,
        SideEffects,
        Variable,
    )

from serve_warm.private_apis import module_names

# Names that Dynamo gives --------------------------------------------------------------------------

COMPILED_MARK = "_is_torch_compile"
"""Attribute that torch.compile sets on its result (2.13 to 2.15). If this is a module, it passes
the attribute on to the module that it compiles."""

ORIGINAL = "_orig_mod"
"""Attribute of torch.compile's module: the module that it wraps."""

GRAPH = "__compiled_fn"
"""How the names begin under which compiled graphs are stored in a function's globals."""

RESUMED = "__resume_at"
"""How the names begin under which the code after a graph break is stored."""

RESUME_NAME = r"torch_dynamo_resume_in_(.*)_at_(\d+)"
"""Pattern for the name of code after a graph break, with the function and the line."""

ON_STACK = "___stack"
"""How the names of values begin that a graph break leaves on the stack."""

CHECK_TYPE, CHECK_OBJECT = "___check_type_id", "___check_obj_id"
"""Functions in the texts of guards on a type, and on an object."""

BUILTINS = "__builtins_dict__"
"""Prefix of the name of the dict of built-ins in the globals (torch 2.11 to 2.13)."""

RANDOM_NUMBERS = "_gen_rand_values"
"""Name of the function that draws the numbers of a call from Python's `random`."""


def path_of_module(name: str) -> str:
    """Return how the path of a guard begins if it is about a global of code in this module."""
    return f"G['__import_{name.replace('.', '_dot_')}"


# Not an `attrgetter`: Dynamo may trace the methods that call this function.
def original_of(module: Any) -> Any:
    """Return the module that torch.compile's module wraps."""
    return module._orig_mod


# Without an import --------------------------------------------------------------------------------


def is_imported() -> bool:
    """Return whether Dynamo is loaded, or is being imported."""
    return module_names.DYNAMO in sys.modules


def imported_switch() -> bool | None:
    """Return whether a setting turns Dynamo off; None before the import."""
    config = sys.modules.get(module_names.DYNAMO_CONFIG)
    return None if config is None else bool(config.disable)


def imported_errors_without_graph() -> tuple[type[Exception], ...]:
    """Return Dynamo's exceptions for code without a graph; empty before the import."""
    errors = sys.modules.get(module_names.DYNAMO_ERRORS)
    return () if errors is None else (errors.Unsupported, errors.UserError)


def imported_compiled_module_class() -> type | None:
    """Return the class of torch.compile's modules, or None before Dynamo is imported."""
    # A module that is being imported has no class yet.
    found: type | None = getattr(sys.modules.get(module_names.EVAL_FRAME), "OptimizedModule", None)
    return found


def imported_stance() -> str | None:
    """Return the stance of this process (`torch.compiler.set_stance`); None before the import."""
    stance = getattr(sys.modules.get(module_names.EVAL_FRAME), "_stance", None)
    found: str | None = getattr(stance, "stance", None)
    return found


def imported_counters() -> Mapping[str, Mapping[str, int]]:
    """Return the counters of torch's compiler; empty before the import. The same since 2.6."""
    found = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return {} if found is None else cast("Mapping[str, Mapping[str, int]]", found)


def imported_guard_manager_kind() -> Any:
    """Return the class `GuardManagerType`, or None before Dynamo is imported."""
    return getattr(sys.modules.get("torch._dynamo.guards"), "GuardManagerType", None)


# Settings and locks -------------------------------------------------------------------------------


def patched_settings(**values: object) -> AbstractContextManager[None]:
    """Change settings of Dynamo in the block. Settings that this version lacks are left out."""
    from torch._dynamo import config

    known: Any = config
    changes = {name: value for name, value in values.items() if hasattr(known, name)}
    return cast("AbstractContextManager[None]", known.patch(changes))


def is_disabled() -> bool:
    """Return whether a setting turns Dynamo off."""
    from torch._dynamo import config

    return bool(config.disable)


def suppresses_errors() -> bool:
    """Return whether Dynamo only logs errors of a compile, and runs the code eagerly."""
    from torch._dynamo import config

    return bool(config.suppress_errors)


def compile_lock() -> AbstractContextManager[object]:
    """Return the lock that Dynamo holds while it compiles."""
    from torch._dynamo.convert_frame import compile_lock as lock

    return cast("AbstractContextManager[object]", lock)


def import_dynamo() -> None:
    """Import Dynamo. If another thread is importing it, wait for that thread."""
    import torch._dynamo  # noqa: F401


@contextlib.contextmanager
def opened_axes(
    tensors: Sequence[torch.Tensor], axes: Collection[tuple[int, int]]
) -> Iterator[None]:
    """In the block, torch makes code for any size of these axes, unless the model needs this one.

    An axis is the number of a tensor and of its axis. The tensors must not reach other code that
    torch compiles: its guards look at the marks.
    """
    if not axes:
        yield
        return
    import torch._dynamo

    before = [dict(vars(tensor)) for tensor in tensors]
    try:
        for number, axis in axes:
            if number < len(tensors) and axis < tensors[number].dim():
                torch._dynamo.maybe_mark_dynamic(tensors[number], axis)
        yield
    finally:
        for tensor, attributes in zip(tensors, before, strict=True):
            vars(tensor).clear()
            vars(tensor).update(attributes)


# Compiled modules and callables -------------------------------------------------------------------


def compiled_module_class() -> type:
    """Return the class of the modules that torch.compile returns."""
    from torch._dynamo import OptimizedModule

    return OptimizedModule


def innermost_backend(callback: Any) -> Callable[..., object]:
    """Return the backend object of a Dynamo callback."""
    from torch._dynamo.eval_frame import innermost_backend as find

    return find(callback)


def is_marked_by_dynamo(function: object) -> bool:
    """Return whether Dynamo has wrapped a function, to compile it or to leave it alone."""
    return hasattr(function, "_torchdynamo_orig_callable")


def is_resumed(code: CodeType) -> bool:
    """Return whether Dynamo made a function that goes on after a graph break."""
    return re.fullmatch(RESUME_NAME, code.co_name) is not None


# Compiling one frame ------------------------------------------------------------------------------


def would_compile(frame: FrameType) -> bool:
    """Return whether Dynamo would compile a frame; its own fail_on_recompile checks the same."""
    from torch._dynamo import convert_frame, trace_rules

    check: Any = trace_rules.check
    return not check(frame.f_code) and bool(convert_frame.has_tensor_in_frame(frame))


def is_in_dispatch_mode() -> bool:
    """Return whether a dispatch mode is active in which Dynamo compiles nothing."""
    from torch.utils import _python_dispatch

    return bool(_python_dispatch.is_in_any_mode_without_ignore_compile_internals())


def failed_guards(frame: FrameType, callback: Any) -> list[str]:
    """Return, for each compiled variant of a frame's code, the guard that does not hold."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
    from torch._dynamo.guards import get_guard_fail_reason

    backend = innermost_backend(callback)
    return [
        get_guard_fail_reason(
            variant.guard_manager,
            variant.code,
            frame.f_locals,
            variant.compile_id,
            backend,
            skip_logging=True,
        )
        for variant in _debug_get_cache_entry_list(frame.f_code)
    ]


def recompile_reason() -> str:
    """Return why the compile that has just ended was needed; empty for a first compile."""
    from torch._dynamo.utils import get_compilation_metrics

    metrics = get_compilation_metrics()
    return (metrics[-1].recompile_reason or "") if metrics else ""


def skip_always(code: CodeType) -> None:
    """Make Dynamo run a function without tracing when compiled code calls it."""
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT)
    set_code_exec_strategy(code, skip)


def look_again(codes: Collection[CodeType]) -> None:
    """Make Dynamo call its callback for code that reached its recompile limit."""
    _treat(codes, "DEFAULT")


def look_no_more(codes: Collection[CodeType]) -> None:
    """Make Dynamo run code eagerly if no variant fits, without calling its callback."""
    _treat(codes, "RUN_ONLY")


def _treat(codes: Collection[CodeType], name: str) -> None:
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    action = getattr(_FrameAction, name)
    for code in codes:
        set_code_exec_strategy(code, _FrameExecStrategy(action, action))


def skip_once() -> object:
    """Return the answer of a callback that skips this frame, with all that it calls.

    The code may be compiled later.
    """
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy
    from torch._dynamo.types import ConvertFrameReturn

    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    return ConvertFrameReturn(frame_exec_strategy=skip, apply_to_code=False)


def count_for_fullgraph() -> None:
    """Let torch believe that it compiled a frame: with `fullgraph=True`, it raises otherwise."""
    from torch._C._dynamo import eval_frame

    # In 2.13, and not in 2.11. It sets the count of this thread and returns the former one, which
    # is -1 if nothing is counted.
    count: Any = getattr(eval_frame, "set_fullgraph_compiled_frame_count", None)
    if count is not None and (frames := count(-1)) >= 0:
        count(frames + 1)


# Entries of ahead-of-time compilation -------------------------------------------------------------


def graph_name(entry: CompiledEntry) -> str:
    """Return the name of an entry's graph among the globals of the code around the graph."""
    return str(entry._artifacts.backend_id)


def imports_of(entry: CompiledEntry) -> Mapping[str, str]:
    """Return the modules that an entry's code takes from its globals, by name there."""
    return entry._artifacts.runtime_env.import_sources


def used_globals(entry: CompiledEntry) -> Collection[str]:
    """Return the names of the globals that an entry's code contains itself."""
    return entry._artifacts.runtime_env.used_globals


def external_references(entry: CompiledEntry) -> Collection[str]:
    """Return the names of the globals that whoever loads an entry must provide."""
    return entry._artifacts.runtime_env.external_refs


def begin_generation() -> Callable[[], None]:
    """Return a function that invalidates the outputs of the previous call of a CUDA graph.

    torch.compile does this at each call. Without it, each call would count as a continuation of the
    previous one, and would be captured.
    """
    from torch._dynamo.mutation_guard import GenerationTracker

    tracker: Any = GenerationTracker

    def begin() -> None:
        tracker.generation += 1

    return begin


# Errors -------------------------------------------------------------------------------------------


def is_error_of_dynamo(error: BaseException | None) -> bool:
    """Return whether Dynamo raised an error, or torch could not decide about a size."""
    from torch._dynamo.exc import TorchDynamoException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return isinstance(error, (TorchDynamoException, GuardOnDataDependentSymNode))


def is_error_of_code(error: BaseException | None) -> bool:
    """Return whether Dynamo raised an error because it cannot trace the user's code."""
    from torch._dynamo.exc import Unsupported, UserError

    return isinstance(error, (Unsupported, UserError))


def restart_class() -> type[Exception]:
    """Return the class of the error with which torch asks for a new trace.

    Its attribute `restart_reason` says why, or is None.
    """
    from torch._dynamo.exc import RestartAnalysis

    return RestartAnalysis


def missing_attribute_class() -> type[Exception]:
    """Return the class of the error with which a trace notes an attribute that is missing."""
    from torch._dynamo.exc import ObservedAttributeError

    return cast("type[Exception]", ObservedAttributeError)


# A trace: Dynamo's models of Python objects -------------------------------------------------------


def kinds_of_variables() -> Iterator[type]:
    """Yield the classes of Dynamo's models of Python objects."""
    from torch._dynamo.variables.base import VariableTracker

    queue: list[type] = [VariableTracker]
    seen: set[int] = set()
    while queue:
        kind = queue.pop()
        if id(kind) not in seen:
            seen.add(id(kind))
            queue += type.__subclasses__(kind)
            yield kind


def is_variable(value: object) -> TypeGuard[Variable]:
    """Return whether a value is one of Dynamo's models."""
    from torch._dynamo.variables.base import VariableTracker

    return isinstance(value, VariableTracker)


def dict_class() -> type:
    """Return the class of Dynamo's models of dicts."""
    from torch._dynamo.variables.dicts import ConstDictVariable

    return ConstDictVariable


def is_dict(variable: object) -> TypeGuard[ModelOfDict]:
    """Return whether one of Dynamo's models stands for a dict."""
    return isinstance(variable, dict_class())


def set_class() -> type:
    """Return the class of Dynamo's models of sets."""
    module: Any
    try:
        from torch._dynamo.variables import sets as module  # from 2.13 on
    except ImportError:
        from torch._dynamo.variables import dicts as module
    # The common base class exists from 2.15 on.
    found: type = getattr(module, "BaseSetVariable", None) or module.SetVariable
    return found


def is_set(variable: object) -> TypeGuard[ModelOfSet]:
    """Return whether one of Dynamo's models stands for a set."""
    return isinstance(variable, set_class())


def is_method(variable: object) -> bool:
    """Return whether a model stands for a method of another model (2.15; False in older ones)."""
    from torch._dynamo.variables import misc

    kind: type | None = getattr(misc, "CallMethodVariable", None)
    return kind is not None and isinstance(variable, kind)


def is_unread(variable: object) -> bool:
    """Return whether a trace has only got an object so far, and not looked at it."""
    from torch._dynamo.variables.lazy import LazyVariableTracker

    return isinstance(variable, LazyVariableTracker) and not variable.is_realized()


def read_all(variable: Any) -> None:
    """Make a trace look at an object and all that it contains, which installs guards."""
    from torch._dynamo.variables.lazy import LazyVariableTracker

    LazyVariableTracker.realize_all(variable)


def constant(value: object) -> Variable:
    """Return Dynamo's model of a constant."""
    from torch._dynamo.variables.constant import ConstantVariable

    found: Any = ConstantVariable.create(value)
    return cast("Variable", found)


def is_object_of_torch(variable: object) -> TypeGuard[ModelOfTorchFunction]:
    """Return whether one of Dynamo's models stands for a function or class of torch."""
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    return isinstance(variable, TorchInGraphFunctionVariable)


def is_object_of_user(variable: object, *, exactly: bool = False) -> TypeGuard[ModelOfValue]:
    """Return whether one of Dynamo's models stands for an object of a class of the application.

    With `exactly`, models of special classes, such as subclasses of dict, are left out.
    """
    from torch._dynamo.variables import UserDefinedObjectVariable

    if exactly:
        return type(variable) is UserDefinedObjectVariable
    return isinstance(variable, UserDefinedObjectVariable)


def is_made_by_trace(variable: Variable) -> bool:
    """Return whether the trace has created the object that a model stands for."""
    from torch._dynamo.variables.base import AttributeMutationNew

    return isinstance(variable.mutation_type, AttributeMutationNew)


def changed_variables(effects: SideEffects) -> Sequence[Variable]:
    """Return the models of all objects that a trace changes (`SideEffects`)."""
    return effects._get_modified_vars()


def attribute_source(source: Any, name: str) -> AttributeSource:
    """Return the source of an attribute of what has this source."""
    from torch._dynamo.source import AttrSource

    return AttrSource(source, name)


def arguments_of(guard: OriginalGuard) -> GuardArguments:
    """Return the further arguments of a guard, by name; empty if it has none."""
    none: GuardArguments = {}
    found: GuardArguments = getattr(guard.create_fn, "keywords", none)
    return found


def without_wrappers(source: Any) -> AttributeSource:
    """Return the source of an attribute without the wrappers around it, such as a module's."""
    while not hasattr(source, "member"):
        source = source.base
    found: AttributeSource = source
    return found


def is_random_source(source: object) -> bool:
    """Return whether a source is a number that the call draws from Python's `random`."""
    from torch._dynamo.source import RandomValueSource

    return isinstance(source, RandomValueSource)


def source_of_input(node: torch.fx.Node) -> ObjectSource:
    """Return the source of a graph's input, which Dynamo stores on the input's node.

    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/output_graph.py
    """
    of_dynamo: Any = node
    source: ObjectSource = of_dynamo._dynamo_source
    return source


def forget_handlers() -> None:
    """Make Dynamo look up the methods for built-in functions again.

    Dynamo keeps these methods for the whole process. Without this, a trace would run the
    replacements of an earlier trace, which record for that trace.
    """
    from torch._dynamo.variables import builtin

    builtin.BuiltinVariable.call_function_handler_cache.clear()


def list_extend_of_table() -> object:
    """Return what `ListVariable.tp_methods` has for `extend`, from 2.15 on."""
    from torch._dynamo.variables import base, lists

    of_methods: Any = base
    of_lists: Any = lists
    return of_methods.Method(of_lists.BaseListVariable.list_extend)


OF_THE_MACHINE = (
    "_assert",
    "_get_device_index",
    "_get_privateuse1_backend_name",
    "_is_checkpoint_valid",
)
"""Functions of torch whose result depends only on their arguments and the machine."""

OF_CALLS = (
    *("_is_any_autocast_enabled", "_get_cublas_allow_tf32", "_is_torch_function_enabled"),
    *("_len_torch_function_stack", "_is_torch_function_all_disabled"),
    "_is_torch_function_mode_enabled",
)
"""Functions of torch whose result is part of the state that each call compares."""


def functions_about_tracing() -> Collection[object]:
    """Return the functions of torch whose result in a trace holds for each trace."""
    from torch._dynamo.variables.torch import tracing_state_functions

    return cast("Collection[object]", tracing_state_functions())


def mark_of(function: object) -> str:
    """Return the mark that keeps Dynamo from tracing a function, or an empty string.

    The marks are `nonstrict_trace` and `allow_in_graph`.
    """
    from torch._dynamo import trace_rules

    if id(function) in trace_rules._nonstrict_trace_callable_ids():
        return "nonstrict_trace"
    return "allow_in_graph" if id(function) in trace_rules._allowed_callable_ids() else ""


def answer_of_backend() -> type:
    """Return the class whose instances a backend may return to ahead-of-time compilation."""
    from torch._dynamo.aot_compile_types import SerializableCallable

    return SerializableCallable
