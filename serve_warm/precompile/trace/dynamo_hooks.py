# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Dependencies of a trace that Dynamo does not guard: changes, hashes and set order.

Each hook uses private torch code, and names the torch versions in which this code was seen.
"""

from __future__ import annotations

import contextlib
import enum
import inspect
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeGuard

import torch

from serve_warm.precompile.facts.names import is_own
from serve_warm.precompile.trace.constant_reads import noting_constants
from serve_warm.precompile.trace.created_objects import refusing_created_objects
from serve_warm.precompile.trace.dict_lookups import Lookups, noting_lookups
from serve_warm.precompile.trace.failed_lookups import noting_failed_lookups
from serve_warm.precompile.trace.guards import Guard, _expression, path_of
from serve_warm.precompile.trace.kernel_code import noting_kernels
from serve_warm.precompile.trace.object_texts import noting_texts
from serve_warm.precompile.trace.subclass_hooks import Dispatched, noting_dispatch
from serve_warm.precompile.trace.torch_functions import TorchFunctions, noting_torch_functions
from serve_warm.private_apis import dynamo, patches
from serve_warm.private_apis.patches import Change, Wrap

if TYPE_CHECKING:
    from serve_warm.private_apis.dynamo_objects import (
        Args,
        CallBuiltin,
        CallFunction,
        CallMethod,
        GetItem,
        InstallGuard,
        Iterate,
        Kwargs,
        MakeGuard,
        MakeKey,
        ModelBuilder,
        ModelOfDict,
        ModelOfFunction,
        ModelOfSet,
        ModelOfTensor,
        ObjectSource,
        ReadOfTensor,
        Translator,
        Variable,
        WrapNumber,
    )

    Begin = Callable[[ModelOfSet, Translator], None]


@dataclass(frozen=True)
class TraceRecord:
    """The dependencies of one trace that Dynamo does not guard."""

    guards: list[Guard] = field(default_factory=list)
    """Guards for dependencies that Dynamo itself does not guard."""
    refusals: list[str] = field(default_factory=list)
    """Reasons to refuse the entry: parts of the graph that no fact can express."""
    results: list[tuple[Callable[..., object], Sequence[object], Mapping[str, object], object]] = (
        field(default_factory=list)
    )
    """Calls of functions with `assume_constant_result`: the function, its arguments and its result.
    The graph contains the result from the build."""
    lookups: dict[str, Lookups] = field(default_factory=dict)
    """What the trace read from each dict, by the dict's path."""
    returned: dict[str, Sequence[object]] = field(default_factory=dict)
    """The objects that existed before the call, and that the code around the graph returns or
    stores. Maps the path of each object to the path's keys. Dynamo reads such objects again at each
    call, so it has no guards on them."""
    functions: TorchFunctions = field(default_factory=TorchFunctions)
    """The functions of torch that the trace ran, or put into its graph."""
    dispatched: Dispatched = field(default_factory=Dispatched)
    """The code of tensor subclasses that ran during the trace."""


@contextlib.contextmanager
def all_guarded(begin_set: Begin) -> Iterator[TraceRecord]:
    """Make Dynamo guard or report changeable dependencies that it otherwise ignores (torch 2.13).

    Before each iteration over a set in a trace, `begin_set` is called with the set and the tracer.
    """
    found = TraceRecord()
    # If several of these change one function, each wraps what the ones before it made.
    changes = itertools.chain(
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
        refusing_created_objects(found.refusals),
        noting_torch_functions(found.functions),
        noting_dispatch(found.dispatched),
        noting_kernels(found.dispatched),
        _limiting_steps(found),
        _reading_names(),
        _keeping_precision(),
    )
    # No other thread may trace in the block, because the changes would record its trace too.
    with dynamo.compile_lock(), contextlib.ExitStack() as undo:
        # On in 2.11: it trusts that plain defaults of functions stay.
        undo.enter_context(dynamo.patched_settings(skip_guards_on_constant_func_defaults=False))
        undo.callback(dynamo.forget_handlers)
        undo.enter_context(patches.replaced(changes))
        dynamo.forget_handlers()
        yield found


def _guarding_keys() -> Iterator[Change]:
    """Make Dynamo guard the keys of a `__dict__`, and the presence of each key that it looks up.

    Dynamo does not guard the presence of a key that the trace has created, such as a weak
    reference.
    """
    of_dicts = dynamo.dict_class()

    def guarding_missing(get_item: GetItem) -> GetItem:
        def getitem_const_raise_exception_if_absent(
            self: ModelOfDict, tx: Translator, key: Variable
        ) -> Variable:
            if key not in self:
                self.install_dict_contains_guard(tx, [key])
            return get_item(self, tx, key)

        return getitem_const_raise_exception_if_absent

    def guarding_all(install: InstallGuard) -> InstallGuard:
        def install_dict_contains_guard(self: ModelOfDict, tx: Translator, args: Args) -> None:
            install(self, tx, args)
            is_created = args[0].source is None and not args[0].is_python_constant()
            if is_created and self.source and not tx.output.side_effects.is_modified(self):
                self.install_dict_keys_match_guard()

        return install_dict_contains_guard

    def as_in_other_dicts(name: str) -> Wrap:
        # Dynamo's own method does nothing. The method of other dicts is replaced by then.
        return lambda _: getattr(of_dicts, name)

    yield Change("ConstDictVariable.getitem_const_raise_exception_if_absent", guarding_missing)
    yield Change("ConstDictVariable.install_dict_contains_guard", guarding_all)
    for name in ("install_dict_contains_guard", "install_dict_keys_match_guard"):
        yield Change(f"DunderDictVariable.{name}", as_in_other_dicts(name))


def _noting_tensors(found: TraceRecord) -> Iterator[Change]:
    """Record each read of a weight's `requires_grad`, which a tensor's fact does not include.

    Also record each read of a tensor's storage, because checks do not include the storage's size.
    """

    def noting(read: ReadOfTensor) -> ReadOfTensor:
        def method_attr_requires_grad(self: ModelOfTensor, tx: Translator) -> Variable | None:
            if self.source is not None and self.requires_grad is not None:
                keys: list[object] = []
                path = f"{_expression(self.source, keys)}.requires_grad"
                value = bool(self.requires_grad)
                found.guards.append(Guard(path=path, kind="REQUIRES_GRAD", value=value, keys=keys))
            return read(self, tx)

        return method_attr_requires_grad

    def refusing(make: Callable[..., None]) -> Callable[..., None]:
        def make_storage(self: Variable, *args: object, **kwargs: object) -> None:
            why = "it reads a tensor's storage, which may be larger than the tensor"
            found.refusals.append(why)
            make(self, *args, **kwargs)

        return make_storage

    yield Change("TensorVariable.method_attr_requires_grad", noting)
    # Not the method: 2.15 keeps its methods in a separate table.
    yield Change("UntypedStorageVariable.__init__", refusing)


def _noting_same_objects(found: TraceRecord) -> Iterator[Change]:
    """Record objects that have one global name and one name that is not global.

    For such objects, Dynamo guards only the first name. Dynamo guards the second name too if both
    names are global, or if neither name is (torch 2.11 to 2.15).
    """

    def noting(make: MakeGuard) -> MakeGuard:
        def make_dupe_guard(second: ObjectSource, first: ObjectSource | None) -> object:
            guard = make(second, first)
            if guard is None and first is not None and first != second:
                keys: list[object] = []
                path, other = _expression(second, keys), _expression(first, keys)
                found.guards.append(
                    Guard(path=path, kind="SAME_OBJECT", value=None, argument=other, keys=keys)
                )
            return guard

        return make_dupe_guard

    yield Change("make_dupe_guard", noting)


def _guarding_classes_in_closures() -> Iterator[Change]:
    """Make Dynamo guard classes that a forward reaches through a closure (2.11 to 2.15).

    Dynamo leaves them out because of the cell `__class__`, which `super()` reads.
    """

    def is_cell_of_super(source: ObjectSource) -> bool:
        # Up to 2.11, a source does not say the name of its cell.
        name = getattr(source, "freevar_name", None)
        return name == "__class__" or (name is None and str(path_of(source)).endswith(CELL))

    yield Change("is_from_closure_source", lambda _: is_cell_of_super)


CELL = ".cell_contents"


def _noting_returned(found: TraceRecord) -> Iterator[Change]:
    """Record each object that the code around the graph reads by its source (2.11 to 2.15)."""

    def noting(write: Callable[..., object]) -> Callable[..., object]:
        def write_code(self: object, value: object, *args: object, **kwargs: object) -> object:
            source = value.source if dynamo.is_variable(value) else None
            if source is not None and path_of(source) is not None:
                keys: list[object] = []
                found.returned.setdefault(_expression(source, keys), keys)
            return write(self, value, *args, **kwargs)

        return write_code

    yield Change("PyCodegen.__call__", noting)


def _guard_at(
    place: ObjectSource | tuple[str, str], *, kind: str, value: object, argument: object = None
) -> Guard:
    """Return a guard on a Dynamo source, or on the object with a module and a qualified name."""
    if not isinstance(place, tuple):
        keys: list[object] = []
        path = _expression(place, keys)
        return Guard(path=path, kind=kind, value=value, argument=argument, keys=keys)
    module, name = place
    path = f"__import__({module!r})"
    path = f"{path}.{name}" if name else path
    return Guard(path=path, kind=kind, value=value, argument=argument)


def _has_unknown_order(value: object) -> TypeGuard[ModelOfSet]:
    if not dynamo.is_set(value) or value.python_type() not in (set, frozenset):
        return False
    return len(value.items) > 1


def _noting_sets(begin: Begin) -> Iterator[Change]:
    """Report iteration over a set: the order can be part of the graph, but no guard covers it."""

    def noting(original: Iterate) -> Iterate:
        def go_through(self: Variable, tx: Translator) -> object:
            if _has_unknown_order(self):
                begin(self, tx)
            return original(self, tx)

        return go_through

    yield from _noting_extends(begin)
    yield Change("BaseSetVariable.unpack_var_sequence", noting)
    yield Change("BaseSetVariable.tp_iter_impl", noting)


def _noting_extends(begin: Begin) -> Iterator[Change]:
    """Report `list.extend` with a set."""

    def noting_calls(call: CallMethod) -> CallMethod:
        def call_method(
            self: Variable, tx: Translator, name: str, args: Args, kwargs: Kwargs
        ) -> Variable:
            if name == "extend" and args and _has_unknown_order(args[0]):
                begin(args[0], tx)
            return call(self, tx, name, args, kwargs)

        return call_method

    def noting(extend: CallFunction) -> CallFunction:
        def list_extend(
            self: Variable, tx: Translator, args: Args, kwargs: Kwargs
        ) -> Variable | None:
            if args and _has_unknown_order(args[0]):
                begin(args[0], tx)
            return extend(self, tx, args, kwargs)

        return list_extend

    def in_table(methods: Mapping[str, object]) -> Mapping[str, object]:
        return {**methods, "extend": dynamo.list_extend_of_table()}

    yield Change("CommonListMethodsVariable.call_method", noting_calls)  # up to 2.14
    if patches.find("BaseListVariable.list_extend") is not None:  # in 2.14, lists have no table
        yield Change("BaseListVariable.list_extend", noting)
        yield Change("ListVariable.tp_methods", in_table)


def _refusing_own_sets(found: TraceRecord) -> Iterator[Change]:
    """Refuse torch's own computations on sets: the results depend on the order in this process."""

    def refusing_texts(call: CallBuiltin) -> CallBuiltin:
        def call_function(
            self: ModelOfFunction, tx: Translator, args: Args, kwargs: Kwargs
        ) -> Variable:
            if any(map(_has_unknown_order, args)) and (self.fn in TEXTS or "key" in kwargs):
                found.refusals.append(DEPENDS_ON_ORDER)
            return call(self, tx, args, kwargs)

        return call_function

    def refusing_pop(call: CallMethod) -> CallMethod:
        def call_method(
            self: Variable, tx: Translator, name: str, args: Args, kwargs: Kwargs
        ) -> Variable:
            if name == "pop" and _has_unknown_order(self):
                found.refusals.append(DEPENDS_ON_ORDER)
            return call(self, tx, name, args, kwargs)

        return call_method

    yield Change("BuiltinVariable.call_function", refusing_texts)
    yield Change("BaseSetVariable.call_method", refusing_pop)


TEXTS = (str, repr, ascii, format, sum)
"""Functions whose result for a set depends on the set's order. For `sum`, only the last bits of
the result depend on the order."""

DEPENDS_ON_ORDER = (
    "it iterates over a set, whose order differs in each process, and its graph depends on the "
    "order: keep the items in a list, or as keys of a dict"
)
"""Reason and advice for a call that has no entry because its code iterates over a `set`."""


def _noting_hashes(found: TraceRecord) -> Iterator[Change]:
    """Record each call of `hash` or `id` in a forward: the results differ between processes.

    Only two functions are allowed. torch runs `inspect.unwrap` if a forward sets a buffer; this
    function only compares ids. A dict runs `Enum.__hash__` to find a member among its keys. Other
    code in torch and Python can use the user's values, as in `sum(map(hash, names))`.
    """
    keys: list[object] = []
    """The keys that a dict or set is hashing now."""

    def note(tx: Translator, name: str) -> None:
        is_of_key = bool(keys) and tx.f_code is enum.Enum.__hash__.__code__
        if tx.f_code is not inspect.unwrap.__code__ and not is_of_key:
            why = f"it uses the result of {name}(), which differs in each process"
            found.refusals.append(why)

    def noting_calls(call: CallBuiltin) -> CallBuiltin:
        def call_function(
            self: ModelOfFunction, tx: Translator, args: Args, kwargs: Kwargs
        ) -> Variable:
            if self.fn is id or (self.fn is hash and not all(map(_has_steady_hash, args))):
                note(tx, self.fn.__name__)
            return call(self, tx, args, kwargs)

        return call_function

    def noting_methods(call: CallMethod) -> CallMethod:
        def call_method(
            self: Variable, tx: Translator, name: str, args: Args, kwargs: Kwargs
        ) -> Variable:
            if name == "__hash__" and not _has_steady_hash(self):
                note(tx, "hash")
            return call(self, tx, name, args, kwargs)

        return call_method

    yield Change("BuiltinVariable.call_function", noting_calls)
    yield Change("ConstantVariable.call_method", noting_methods)
    yield Change("HashableTracker.__init__", lambda make_key: _noting_keys(make_key, keys))


def _noting_keys(make_key: MakeKey, keys: list[object]) -> MakeKey:
    """Return a function that makes a key of a dict, and has it in `keys` meanwhile."""

    def hash_key(self: object, key: Variable) -> None:
        keys.append(key)
        try:
            make_key(self, key)
        finally:
            keys.pop()

    return hash_key


def _has_steady_hash(argument: Variable) -> bool:
    if not argument.is_python_constant():
        return False
    return type(argument.as_python_constant()) in (bool, int, float, complex)


def _noting_functions(found: TraceRecord) -> Iterator[Change]:
    """Record the results of `assume_constant_result`, and guard the values read from `os`."""

    def noting(invoke: Callable[..., object]) -> Callable[..., object]:
        def invoke_and_store_as_constant(
            tx: Translator, fn: Callable[..., object], name: str, *rest: object
        ) -> object:
            def run(*args: object, **kwargs: object) -> object:
                result = fn(*args, **kwargs)
                if not is_own(fn):
                    found.results.append((fn, args, kwargs, result))
                return result

            return invoke(tx, run, name, *rest)

        return invoke_and_store_as_constant

    def without_os(is_stdlib: Callable[[object], bool]) -> Callable[[object], bool]:
        return lambda module: is_stdlib(module) and module is not os

    yield Change("invoke_and_store_as_constant", noting)
    yield Change("is_stdlib", without_os)


def _keeping_precision() -> Iterator[Change]:
    """Make the graph take random numbers of Python in float64, as the code around the graph does.

    Otherwise, the graph takes them in the default dtype, and reads the wrong bytes (torch 2.13).
    """

    def in_float64(original: WrapNumber) -> WrapNumber:
        def wrap_unspecialized_primitive(self: ModelBuilder, value: object) -> Variable:
            if not dynamo.is_random_source(self.get_source()):
                return original(self, value)
            dtype = torch.get_default_dtype()
            torch.set_default_dtype(torch.float64)
            try:
                return original(self, value)
            finally:
                torch.set_default_dtype(dtype)

        return wrap_unspecialized_primitive

    yield Change("VariableBuilder.wrap_unspecialized_primitive", in_float64)


STEPS = 64
"""Maximum number of steps of a recurrent layer in a graph. Each step has separate code, so
compiling a few hundred steps takes minutes."""


def _limiting_steps(found: TraceRecord) -> Iterator[Change]:
    """Refuse recurrent layers on a GPU or with long sequences: torch repeats the code of each step.

    An LSTM on a CPU is one oneDNN operator. On a GPU, one cuDNN call is much faster than a graph of
    the steps.
    """

    def limiting(original: Callable[..., object]) -> Callable[..., object]:
        def go_through(inp: torch.Tensor, *args: object, **kwargs: object) -> object:
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

    yield Change("one_layer_rnn", limiting)
    yield Change("one_layer_lstm", limiting)


COMPILE_OTHERS = "compile the parts before and after it separately, with serve_warm.compile"
"""Advice if a part of a model cannot be traced."""


def mark_of(value: object) -> str:
    """Return the mark that prevents Dynamo from tracing a function, or an empty string.

    The marks are the keys of `guard_facts.OPAQUE`.
    """
    return dynamo.mark_of(value) if callable(value) and not is_own(value) else ""


# Names of classes ---------------------------------------------------------------------------------


NAMES = ("__module__", "__name__", "__qualname__")
"""Attributes of a torch class that do not change while a process runs."""


def _reading_names() -> Iterator[Change]:
    """Turn the names of torch's classes into constants, as Dynamo does for other classes.

    Packages use these names to recognize a class without importing it: peft's DoRA reads
    `type(weight).__module__.startswith("torchao.")`. The class itself has a guard. Only 2.13 and
    later need this.
    """

    def reading(read: CallFunction) -> CallFunction:
        def call_function(
            self: Variable, tx: Translator, args: Args, kwargs: Kwargs
        ) -> Variable | None:
            kind = args[0].value if len(args) > 1 and dynamo.is_object_of_torch(args[0]) else None
            if isinstance(kind, type):
                name = args[1].as_python_constant()
                if isinstance(name, str) and name in NAMES:
                    return dynamo.constant(getattr(kind, name))
            return read(self, tx, args, kwargs)

        return call_function

    yield Change("GetAttrBuiltinVariable.call_function", reading)
