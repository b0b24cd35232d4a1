# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What Dynamo does while it traces that no guard holds: changes, hashes, the order of sets.

Each hook is private to torch and says the versions that it was seen in.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from serve_warm.precompile.guard_facts import Guard
from serve_warm.precompile.names import is_own


@dataclass(frozen=True)
class Unguarded:
    """What a trace depended on without a guard of Dynamo's."""

    guards: list[Guard] = field(default_factory=list)
    """Guards in the place of those that are missing."""
    refusals: list[str] = field(default_factory=list)
    """What is in the graph and can be no fact."""
    results: list[tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any], Any]] = field(
        default_factory=list
    )
    """Functions whose result at the build is in the graph, by `assume_constant_result`; with their
    arguments and what they returned."""


Replacements = Iterator[tuple[Any, str, Callable[..., Any]]]
"""A class or module of Dynamo's, the name of a function in it, and what takes its place."""


@contextlib.contextmanager
def all_guarded() -> Iterator[Unguarded]:
    """Have Dynamo guard, or name, what it leaves out and may differ at a start (seen in 2.13)."""
    found = Unguarded()
    with contextlib.ExitStack() as undo:
        replacements = (
            *_guarding_keys(),
            *_noting_tensors(found),
            *_noting_sets(found),
            *_noting_hashes(found),
            *_noting_functions(found),
        )
        for owner, name, function in replacements:
            undo.callback(_put_back(owner, name))
            setattr(owner, name, function)
        yield found


def _put_back(owner: Any, name: str) -> Callable[[], None]:
    """Return how to undo the setting of an attribute, which may be that of a base class."""
    if name in vars(owner):
        return functools.partial(setattr, owner, name, vars(owner)[name])
    return functools.partial(delattr, owner, name)


def _guarding_keys() -> Replacements:
    """Guard a key that a dict does not have, where that is a KeyError, and keys of a `__dict__`."""
    from torch._dynamo.variables import dicts

    of_dicts: Any = dicts.ConstDictVariable
    get_item = of_dicts.getitem_const_raise_exception_if_absent

    def getitem_const_raise_exception_if_absent(self: Any, tx: Any, key: Any) -> Any:
        if key not in self:
            self.install_dict_contains_guard(tx, [key])
        return get_item(self, tx, key)

    name = "getitem_const_raise_exception_if_absent"
    yield of_dicts, name, getitem_const_raise_exception_if_absent
    of_objects: Any = getattr(dicts, "DunderDictVariable", None)  # from 2.13 on
    for name in ("install_dict_contains_guard", "install_dict_keys_match_guard"):
        if of_objects is not None:  # where they do nothing
            yield of_objects, name, getattr(of_dicts, name)


def _noting_tensors(found: Unguarded) -> Replacements:
    """Note whether a weight requires grad, which TENSOR_MATCH has and its fact has not.

    And that a storage is read, of which no check knows the size.
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
        found.refusals.append("it reads the storage of a tensor, which may be larger than that")
        make_storage(self, *args, **kwargs)

    yield of_tensors, "method_attr_requires_grad", method_attr_requires_grad
    # Not the method: 2.15 keeps its methods in a table of their own.
    yield of_storages, "__init__", make


def _noting_sets(found: Unguarded) -> Replacements:
    """Note that a set is gone through: its order is in the graph, and in no guard."""
    module: Any
    try:
        from torch._dynamo.variables import sets as module  # from 2.13 on
    except ImportError:
        from torch._dynamo.variables import dicts as module
    # The base of all kinds is from 2.15 on.
    of_sets = getattr(module, "BaseSetVariable", None) or module.SetVariable

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def go_through(self: Any, tx: Any) -> Any:
            if self.python_type() in (set, frozenset) and len(self.items) > 1:
                found.refusals.append(
                    "it goes through a set, whose order is another one in each process: keep the "
                    "items in a list, or as keys of a dict"
                )
            return original(self, tx)

        return go_through

    for name in ("unpack_var_sequence", "tp_iter_impl"):
        if hasattr(of_sets, name):
            yield of_sets, name, noting(getattr(of_sets, name))


def _noting_hashes(found: Unguarded) -> Replacements:
    """Note that a forward asks for a hash or an id, which differ between processes.

    `inspect.unwrap` alone may: torch runs it where a forward sets a buffer, and it only compares
    ids. Other code of torch and Python calls what a forward gives it: `sum(map(hash, names))`.
    """
    from torch._dynamo.variables import builtin, constant

    of_builtins: Any = builtin.BuiltinVariable
    of_constants: Any = constant.ConstantVariable
    call, call_method = of_builtins.call_function, of_constants.call_method

    def note(tx: Any, name: str) -> None:
        if tx.f_code is not inspect.unwrap.__code__:
            why = f"it computes with {name}(), which is another one in each process"
            found.refusals.append(why)

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn is id or (self.fn is hash and not all(map(_has_steady_hash, args))):
            note(tx, self.fn.__name__)
        return call(self, tx, args, kwargs)

    def call_method_of_constant(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "__hash__" and not _has_steady_hash(self):
            note(tx, "hash")
        return call_method(self, tx, name, args, kwargs)

    yield of_builtins, "call_function", call_function
    yield of_constants, "call_method", call_method_of_constant


def _has_steady_hash(argument: Any) -> bool:
    if not argument.is_python_constant():
        return False
    return type(argument.as_python_constant()) in (bool, int, float, complex)


def _noting_functions(found: Unguarded) -> Replacements:
    """Note results of `assume_constant_result`; guard what Python's library reads in `os`."""
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


def mark_of(value: Any) -> str:
    """Return how a function is marked, where Dynamo does not look into it; empty elsewhere.

    The names are those of `guard_facts.OPAQUE`. Private; the same from 2.11 to 2.13.
    """
    from torch._dynamo import trace_rules

    if not callable(value) or is_own(value):
        return ""
    if id(value) in trace_rules._nonstrict_trace_callable_ids():
        return "nonstrict_trace"
    return "allow_in_graph" if id(value) in trace_rules._allowed_callable_ids() else ""


@contextlib.contextmanager
def side_effects() -> Iterator[Mapping[str, None]]:
    """Name what existed before and is changed by what is captured in the block, as it is found.

    Tensors' contents apart: those are changed in the graph. Known once a backend is called. Seen
    in 2.11 to 2.13.
    """
    from torch._dynamo.side_effects import SideEffects
    from torch._dynamo.variables.base import AttributeMutationNew

    kind: Any = SideEffects
    write = kind.codegen_update_mutated
    changes: dict[str, None] = {}

    def noting(effects: Any, *args: Any, **kwargs: Any) -> Any:
        for variable in effects._get_modified_vars():
            is_new = isinstance(variable.mutation_type, AttributeMutationNew)
            if not is_new and not _ends_as_it_was(effects, variable):
                changes[path_of(variable.source) or type(variable).__name__] = None
        return write(effects, *args, **kwargs)

    kind.codegen_update_mutated = noting
    try:
        yield changes
    finally:
        kind.codegen_update_mutated = write


def _ends_as_it_was(effects: Any, variable: Any) -> bool:
    """Whether an object has at the end what it had before, as after a set and reset around a call.

    transformers does that around each forward (`CompileableContextVar`, 5.23).
    """
    from torch._dynamo.variables import UserDefinedObjectVariable

    if type(variable) is not UserDefinedObjectVariable or _holds_others(effects, variable):
        return False
    now = effects.store_attr_mutations.get(variable, {})
    # Dynamo writes into no object while it traces: this is what it had.
    before = getattr(variable.value, "__dict__", {})
    return all(
        name in before and value.is_python_constant() and _same(value, before[name])
        for name, value in now.items()
    )


def _holds_others(effects: Any, variable: Any) -> bool:
    """Whether what an object holds beside its attributes was changed, such as the items of a list.

    Asked of the object up to 2.14, by one name in 2.11 and by another in 2.13; 2.15 notes it.
    """
    for name in ("is_base_vt_modified", "is_underlying_vt_modified"):
        modified = getattr(variable, name, None)
        if modified is not None:
            return bool(modified(effects))
    return bool(getattr(variable.mutation_type, "is_modified", False))


def _same(variable: Any, value: object) -> bool:
    """Whether a constant is this very value; only of types whose values never change."""
    constant = variable.as_python_constant()
    plain = type(value) in (type(None), bool, int, str) and type(constant) is type(value)
    return plain and constant == value


def guard_from(entry: Any) -> Guard:
    """Return a guard of Dynamo's as facts are made of it."""
    of_attribute = _of_attribute(entry)
    if of_attribute is not None:
        return of_attribute
    keywords: Mapping[str, Any] = getattr(entry.orig_guard.create_fn, "keywords", {})
    keys: list[Any] = []
    source = entry.orig_guard.originating_source
    # Of a guard on the state of the process there is no path.
    path = _expression(source, keys) if entry.name else ""
    about = keywords.get("attr", keywords.get("key", None))
    if "source_b" in keywords:
        about = _expression(keywords["source_b"], keys)
    return Guard(
        path=path,
        kind=entry.guard_type,
        value=entry.value if entry.has_value else None,
        argument=about,
        keys=keys,
    )


def _of_attribute(entry: Any) -> Guard | None:
    """Turn a guard on an attribute's being there (2.11) into one on its owner (2.13), if it is one.

    The attribute may be absent, and then its own path leads nowhere.
    """
    source = entry.orig_guard.originating_source
    named = "attr" in getattr(entry.orig_guard.create_fn, "keywords", {})
    if entry.guard_type != "HASATTR" or named:
        return None
    while not hasattr(source, "member"):  # the kind of source that a module is wrapped in
        source = source.base
    owner = SimpleNamespace(**({source.member: None} if entry.has_value else {}))
    keys: list[Any] = []
    path = _expression(source.base, keys)
    return Guard(path=path, kind="HASATTR", value=owner, argument=source.member, keys=keys)


def _expression(source: Any, keys: list[Any]) -> str:
    """Return a source as Python; keys whose repr is none go into `keys` and are named by it.

    A source is a chain, each with its `base`, and the name of one holds that of its base.
    """
    name = str(path_of(source))
    base = getattr(source, "base", None)
    if base is None:
        return name
    inner = str(path_of(base))
    written = _expression(base, keys)
    index = getattr(source, "index", None)
    if index is None or type(index) in (str, int) or hasattr(index, "guard_source"):
        return name.replace(inner, written) if inner != written else name
    if getattr(source, "index_is_slice", False):
        return name.replace(inner, written)
    keys.append(index)
    return f"dict.__getitem__({written}, KEYS[{len(keys) - 1}])"


def path_of(source: Any) -> str | None:
    """Return the expression that a source of Dynamo's stands for, where it has one."""
    if source is None:
        return None
    name = source.name  # a method up to 2.11
    return str(name() if callable(name) else name)
