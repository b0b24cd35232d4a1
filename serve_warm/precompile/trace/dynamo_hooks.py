# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Dependencies of a trace that Dynamo does not guard: changes, hashes and set order.

Each hook uses private torch code, and names the torch versions in which this code was seen.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from serve_warm.precompile.facts.names import is_own
from serve_warm.precompile.trace.constant_reads import noting_constants
from serve_warm.precompile.trace.dict_lookups import Lookups, noting_lookups
from serve_warm.precompile.trace.failed_lookups import noting_failed_lookups
from serve_warm.precompile.trace.guards import Guard, _expression, path_of
from serve_warm.precompile.trace.kernel_code import noting_kernels
from serve_warm.precompile.trace.object_texts import noting_texts
from serve_warm.precompile.trace.subclass_hooks import Dispatched, noting_dispatch
from serve_warm.precompile.trace.torch_functions import TorchFunctions, noting_torch_functions


@dataclass(frozen=True)
class TraceRecord:
    """The dependencies of one trace that Dynamo does not guard."""

    guards: list[Guard] = field(default_factory=list)
    """Guards for dependencies that Dynamo itself does not guard."""
    refusals: list[str] = field(default_factory=list)
    """Reasons to refuse the entry: parts of the graph that no fact can express."""
    results: list[tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any], Any]] = field(
        default_factory=list
    )
    """Calls of functions with `assume_constant_result`: the function, its arguments and its result.
    The graph contains the result from the build."""
    lookups: dict[str, Lookups] = field(default_factory=dict)
    """What the trace read from each dict, by the dict's path."""
    returned: dict[str, Sequence[Any]] = field(default_factory=dict)
    """The objects that existed before the call, and that the code around the graph returns or
    stores. Maps the path of each object to the path's keys. Dynamo reads such objects again at each
    call, so it has no guards on them."""
    functions: TorchFunctions = field(default_factory=TorchFunctions)
    """The functions of torch that the trace ran, or put into its graph."""
    dispatched: Dispatched = field(default_factory=Dispatched)
    """The code of tensor subclasses that ran during the trace."""


Replacements = Iterator[tuple[Any, str, Any]]
"""A Dynamo class or module, the name of a function in it, and the replacement."""


@contextlib.contextmanager
def all_guarded(begin_set: Callable[[Any, Any], None]) -> Iterator[TraceRecord]:
    """Make Dynamo guard or report changeable dependencies that it otherwise ignores (torch 2.13).

    Before each iteration over a set in a trace, `begin_set` is called with the set and the tracer.
    """
    from torch._dynamo import config
    from torch._dynamo.convert_frame import compile_lock

    found = TraceRecord()
    # No other thread may trace in the block, because the replacements would record its trace too.
    with compile_lock, contextlib.ExitStack() as undo:
        # Each generator wraps the replacements that earlier generators have made.
        replacements = itertools.chain(
            noting_lookups(found.lookups, _expression),
            noting_failed_lookups(found.guards, found.refusals, _guard_at),
            noting_constants(found.guards, _guard_at),
            _guarding_keys(),
            _noting_tensors(found),
            _noting_same_objects(found),
            _guarding_classes_in_closures(),
            _noting_returned(found),
            _noting_sets(begin_set),
            _refusing_own_sets(found),
            _noting_hashes(found),
            noting_texts(found.guards, found.refusals, _guard_at),
            _noting_functions(found),
            noting_torch_functions(found.functions),
            noting_dispatch(found.dispatched),
            noting_kernels(found.dispatched),
            _limiting_steps(found),
            reading_names(),
            _keeping_precision(),
        )
        if hasattr(config, GUARD_NO_DEFAULTS):
            undo.enter_context(config.patch({GUARD_NO_DEFAULTS: False}))
        undo.callback(_forget_handlers)
        for owner, name, function in replacements:
            undo.callback(_put_back(owner, name))
            setattr(owner, name, function)
        _forget_handlers()
        yield found


GUARD_NO_DEFAULTS = "skip_guards_on_constant_func_defaults"
"""A setting of Dynamo that is on in 2.11: trust that plain defaults of functions stay."""


def _forget_handlers() -> None:
    """Make Dynamo look up the methods for built-in functions again.

    Dynamo keeps these methods for the whole process (2.11 to 2.15). Without this, a trace would run
    the replacements of an earlier trace, which record for that trace.
    """
    from torch._dynamo.variables import builtin

    builtin.BuiltinVariable.call_function_handler_cache.clear()


def _put_back(owner: Any, name: str) -> Callable[[], None]:
    """Return a function that restores an attribute to its current state.

    If only a base class defines the attribute now, the function deletes the attribute from `owner`.
    """
    if name in vars(owner):
        return functools.partial(setattr, owner, name, vars(owner)[name])
    return functools.partial(delattr, owner, name)


def _guarding_keys() -> Replacements:
    """Make Dynamo guard the keys of a `__dict__`, and the presence of each key that it looks up.

    Dynamo does not guard the presence of a key that the trace has created, such as a weak
    reference.
    """
    from torch._dynamo.variables import dicts

    of_dicts: Any = dicts.ConstDictVariable
    get_item = of_dicts.getitem_const_raise_exception_if_absent

    def getitem_const_raise_exception_if_absent(self: Any, tx: Any, key: Any) -> Any:
        if key not in self:
            self.install_dict_contains_guard(tx, [key])
        return get_item(self, tx, key)

    install = of_dicts.install_dict_contains_guard

    def install_dict_contains_guard(self: Any, tx: Any, args: Any) -> None:
        install(self, tx, args)
        is_created = args[0].source is None and not args[0].is_python_constant()
        if is_created and self.source and not tx.output.side_effects.is_modified(self):
            self.install_dict_keys_match_guard()

    name = "getitem_const_raise_exception_if_absent"
    yield of_dicts, name, getitem_const_raise_exception_if_absent
    yield of_dicts, "install_dict_contains_guard", install_dict_contains_guard
    of_objects: Any = getattr(dicts, "DunderDictVariable", None)  # from 2.13 on
    for name in ("install_dict_contains_guard", "install_dict_keys_match_guard"):
        if of_objects is not None:  # it installs no such guards
            yield of_objects, name, getattr(of_dicts, name)


def _noting_tensors(found: TraceRecord) -> Replacements:
    """Record each read of a weight's `requires_grad`, which a tensor's fact does not include.

    Also record each read of a tensor's storage, because checks do not include the storage's size.
    """
    from torch._dynamo.variables import tensor

    of_tensors: Any = tensor.TensorVariable
    of_storages: Any = tensor.UntypedStorageVariable
    read, make_storage = of_tensors.method_attr_requires_grad, of_storages.__init__

    def method_attr_requires_grad(self: Any, tx: Any) -> Any:
        if self.source is not None and self.requires_grad is not None:
            keys: list[Any] = []
            path = f"{_expression(self.source, keys)}.requires_grad"
            value = bool(self.requires_grad)
            found.guards.append(Guard(path=path, kind="REQUIRES_GRAD", value=value, keys=keys))
        return read(self, tx)

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        found.refusals.append("it reads a tensor's storage, which may be larger than the tensor")
        make_storage(self, *args, **kwargs)

    yield of_tensors, "method_attr_requires_grad", method_attr_requires_grad
    # Not the method: 2.15 keeps its methods in a separate table.
    yield of_storages, "__init__", make


def _noting_same_objects(found: TraceRecord) -> Replacements:
    """Record objects that have one global name and one name that is not global.

    For such objects, Dynamo guards only the first name. Dynamo guards the second name too if both
    names are global, or if neither name is (torch 2.11 to 2.15).
    """
    from torch._dynamo.variables import builder

    of_builder: Any = builder
    make = of_builder.make_dupe_guard

    def make_dupe_guard(second: Any, first: Any) -> Any:
        guard = make(second, first)
        if guard is None and first is not None and first != second:
            keys: list[Any] = []
            path, other = _expression(second, keys), _expression(first, keys)
            found.guards.append(
                Guard(path=path, kind="SAME_OBJECT", value=None, argument=other, keys=keys)
            )
        return guard

    yield of_builder, "make_dupe_guard", make_dupe_guard


def _guarding_classes_in_closures() -> Replacements:
    """Make Dynamo guard classes that a forward reaches through a closure (2.11 to 2.15).

    Dynamo leaves them out because of the cell `__class__`, which `super()` reads.
    """
    from torch._dynamo.variables import builder

    def is_cell_of_super(source: Any) -> bool:
        # Up to 2.11, a source does not say the name of its cell.
        name = getattr(source, "freevar_name", None)
        return name == "__class__" or (name is None and str(path_of(source)).endswith(CELL))

    yield builder, "is_from_closure_source", is_cell_of_super


CELL = ".cell_contents"


def _noting_returned(found: TraceRecord) -> Replacements:
    """Record each object that the code around the graph reads by its source (2.11 to 2.15)."""
    from torch._dynamo.codegen import PyCodegen
    from torch._dynamo.variables.base import VariableTracker

    of_code: Any = PyCodegen
    write = of_code.__call__

    def write_code(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, VariableTracker) and path_of(value.source) is not None:
            keys: list[Any] = []
            found.returned.setdefault(_expression(value.source, keys), keys)
        return write(self, value, *args, **kwargs)

    yield of_code, "__call__", write_code


def _guard_at(place: Any, **fields: Any) -> Guard:
    """Return a guard on a Dynamo source, or on the object with a module and a qualified name."""
    if not isinstance(place, tuple):
        keys: list[Any] = []
        return Guard(path=_expression(place, keys), keys=keys, **fields)
    module, name = place
    path = f"__import__({module!r})"
    return Guard(path=f"{path}.{name}" if name else path, **fields)


def _sets_of_torch() -> Any:
    """Return the class that Dynamo uses to represent sets."""
    module: Any
    try:
        from torch._dynamo.variables import sets as module  # from 2.13 on
    except ImportError:
        from torch._dynamo.variables import dicts as module
    # The common base class exists from 2.15 on.
    return getattr(module, "BaseSetVariable", None) or module.SetVariable


def _has_unknown_order(value: Any) -> bool:
    is_set = isinstance(value, _sets_of_torch()) and value.python_type() in (set, frozenset)
    return is_set and len(value.items) > 1


def _noting_sets(begin: Callable[[Any, Any], None]) -> Replacements:
    """Report iteration over a set: the order can be part of the graph, but no guard covers it."""
    of_sets = _sets_of_torch()

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def go_through(self: Any, tx: Any) -> Any:
            if _has_unknown_order(self):
                begin(self, tx)
            return original(self, tx)

        return go_through

    yield from _noting_extends(begin)
    for name in ("unpack_var_sequence", "tp_iter_impl"):
        if hasattr(of_sets, name):
            yield of_sets, name, noting(getattr(of_sets, name))


def _noting_extends(begin: Callable[[Any, Any], None]) -> Replacements:
    """Report `list.extend` with a set."""
    from torch._dynamo.variables import base, lists

    module: Any = lists
    older = getattr(module, "CommonListMethodsVariable", None)  # up to 2.14
    if older is not None:
        call = older.call_method

        def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name == "extend" and args and _has_unknown_order(args[0]):
                begin(args[0], tx)
            return call(self, tx, name, args, kwargs)

        yield older, "call_method", call_method
        return
    of_bases: Any = base
    of_lists, of_any_list = module.ListVariable, module.BaseListVariable
    extend, make_method = of_any_list.list_extend, of_bases.Method

    def list_extend(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if args and _has_unknown_order(args[0]):
            begin(args[0], tx)
        return extend(self, tx, args, kwargs)

    methods = {**of_lists.tp_methods, "extend": make_method(list_extend)}
    yield of_any_list, "list_extend", list_extend
    yield of_lists, "tp_methods", methods


def _refusing_own_sets(found: TraceRecord) -> Replacements:
    """Refuse torch's own computations on sets: the results depend on the order in this process."""
    from torch._dynamo.variables import builtin

    of_sets, of_builtins = _sets_of_torch(), builtin.BuiltinVariable
    call, call_of_set = of_builtins.call_function, of_sets.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "pop" and _has_unknown_order(self):
            found.refusals.append(DEPENDS_ON_ORDER)
        return call_of_set(self, tx, name, args, kwargs)

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if any(map(_has_unknown_order, args)) and (self.fn in TEXTS or "key" in kwargs):
            found.refusals.append(DEPENDS_ON_ORDER)
        return call(self, tx, args, kwargs)

    yield of_builtins, "call_function", call_function
    yield of_sets, "call_method", call_method


TEXTS = (str, repr, ascii, format, sum)
"""Functions whose result for a set depends on the set's order. For `sum`, only the last bits of
the result depend on the order."""

DEPENDS_ON_ORDER = (
    "it iterates over a set, whose order differs in each process, and its graph depends on the "
    "order: keep the items in a list, or as keys of a dict"
)
"""Reason and advice for a call that has no entry because its code iterates over a `set`."""


def _noting_hashes(found: TraceRecord) -> Replacements:
    """Record each call of `hash` or `id` in a forward: the results differ between processes.

    Only two functions are allowed. torch runs `inspect.unwrap` if a forward sets a buffer; this
    function only compares ids. A dict runs `Enum.__hash__` to find a member among its keys. Other
    code in torch and Python can use the user's values, as in `sum(map(hash, names))`.
    """
    from torch._dynamo.variables import builtin, constant

    of_builtins: Any = builtin.BuiltinVariable
    of_constants: Any = constant.ConstantVariable
    call, call_method = of_builtins.call_function, of_constants.call_method
    of_keys = _keys_of_dicts()
    keys: list[Any] = []
    """The keys that a dict or set is hashing now."""

    def note(tx: Any, name: str) -> None:
        is_of_key = bool(keys) and tx.f_code is enum.Enum.__hash__.__code__
        if tx.f_code is not inspect.unwrap.__code__ and not is_of_key:
            why = f"it uses the result of {name}(), which differs in each process"
            found.refusals.append(why)

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn is id or (self.fn is hash and not all(map(_has_steady_hash, args))):
            note(tx, self.fn.__name__)
        return call(self, tx, args, kwargs)

    def call_method_of_constant(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "__hash__" and not _has_steady_hash(self):
            note(tx, "hash")
        return call_method(self, tx, name, args, kwargs)

    def hash_key(self: Any, key: Any) -> None:
        keys.append(key)
        try:
            make_key(self, key)
        finally:
            keys.pop()

    yield of_builtins, "call_function", call_function
    yield of_constants, "call_method", call_method_of_constant
    if of_keys is not None:
        make_key = of_keys.__init__
        yield of_keys, "__init__", hash_key


def _keys_of_dicts() -> Any:
    """Return the class that Dynamo uses to represent keys of dicts; None before torch 2.13."""
    try:
        from torch._dynamo.variables import hashable
    except ImportError:
        return None
    return hashable.HashableTracker


def _has_steady_hash(argument: Any) -> bool:
    if not argument.is_python_constant():
        return False
    return type(argument.as_python_constant()) in (bool, int, float, complex)


def _noting_functions(found: TraceRecord) -> Replacements:
    """Record the results of `assume_constant_result`, and guard the values read from `os`."""
    from torch._dynamo import symbolic_convert
    from torch._dynamo.variables import functions

    of_functions: Any = functions
    of_globals: Any = symbolic_convert
    invoke, is_stdlib = of_functions.invoke_and_store_as_constant, of_globals.is_stdlib

    def invoke_and_store_as_constant(tx: Any, fn: Any, name: str, *rest: Any) -> Any:
        def noting(*args: Any, **kwargs: Any) -> Any:
            result = fn(*args, **kwargs)
            if not is_own(fn):
                found.results.append((fn, args, kwargs, result))
            return result

        return invoke(tx, noting, name, *rest)

    yield of_functions, "invoke_and_store_as_constant", invoke_and_store_as_constant
    yield of_globals, "is_stdlib", lambda module: is_stdlib(module) and module is not os


def _keeping_precision() -> Replacements:
    """Make the graph take random numbers of Python in float64, as the code around the graph does.

    Otherwise, the graph takes them in the default dtype, and reads the wrong bytes (torch 2.13).
    """
    from torch._dynamo.source import RandomValueSource
    from torch._dynamo.variables import builder

    of_builder: Any = builder.VariableBuilder
    wrap = of_builder.wrap_unspecialized_primitive

    def wrap_unspecialized_primitive(self: Any, value: Any) -> Any:
        if not isinstance(self.get_source(), RandomValueSource):
            return wrap(self, value)
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return wrap(self, value)
        finally:
            torch.set_default_dtype(dtype)

    yield of_builder, "wrap_unspecialized_primitive", wrap_unspecialized_primitive


STEPS = 64
"""Maximum number of steps of a recurrent layer in a graph. Each step has separate code, so
compiling a few hundred steps takes minutes."""


def _limiting_steps(found: TraceRecord) -> Replacements:
    """Refuse recurrent layers on a GPU or with long sequences: torch repeats the code of each step.

    An LSTM on a CPU is one oneDNN operator. On a GPU, one cuDNN call is much faster than a graph of
    the steps.
    """
    from torch._decomp import decompositions

    module: Any = decompositions

    def limiting(original: Callable[..., Any]) -> Callable[..., Any]:
        def go_through(inp: Any, *args: Any, **kwargs: Any) -> Any:
            why = ""
            if inp.device.type != "cpu":
                why = "on a GPU, where one cuDNN call is faster than a graph of the layer's steps"
            elif inp.shape[0] > STEPS:
                why = f"with {inp.shape[0]} steps, but a graph contains at most {STEPS}"
            if why:
                found.refusals.append(f"it has a recurrent layer {why}: {COMPILE_OTHERS}")
                raise RuntimeError(found.refusals[-1])
            return original(inp, *args, **kwargs)

        return go_through

    for name in ("one_layer_rnn", "one_layer_lstm"):
        if hasattr(module, name):
            yield module, name, limiting(getattr(module, name))


COMPILE_OTHERS = "compile the parts before and after it separately, with serve_warm.compile"
"""Advice if a part of a model cannot be traced."""


def mark_of(value: Any) -> str:
    """Return the mark that prevents Dynamo from tracing a function, or an empty string.

    The marks are the keys of `guard_facts.OPAQUE`. The names in torch are private, and the same
    from 2.11 to 2.13.
    """
    from torch._dynamo import trace_rules

    if not callable(value) or is_own(value):
        return ""
    if id(value) in trace_rules._nonstrict_trace_callable_ids():
        return "nonstrict_trace"
    return "allow_in_graph" if id(value) in trace_rules._allowed_callable_ids() else ""


# Names of classes ---------------------------------------------------------------------------------


NAMES = ("__module__", "__name__", "__qualname__")
"""Attributes of a torch class that do not change while a process runs."""


def reading_names() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Turn the names of torch's classes into constants, as Dynamo does for other classes.

    Packages use these names to recognize a class without importing it: peft's DoRA reads
    `type(weight).__module__.startswith("torchao.")`.
    The class itself has a guard. Yields a Dynamo class, the name of one of its methods, and the
    method's replacement for torch 2.13.
    """
    from torch._dynamo.variables import builtin, constant, torch

    of_torch: Any = torch.TorchInGraphFunctionVariable
    of_getattr: Any = getattr(builtin, "GetAttrBuiltinVariable", None)
    if of_getattr is None:
        return
    read = of_getattr.call_function

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if len(args) > 1 and isinstance(args[0], of_torch) and isinstance(args[0].value, type):
            name = args[1].as_python_constant()
            if name in NAMES:
                return constant.ConstantVariable.create(getattr(args[0].value, name))
        return read(self, tx, args, kwargs)

    yield of_getattr, "call_function", call_function
