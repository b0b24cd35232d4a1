# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""torch's ahead-of-time compile of one function for one input: made here, loaded here.

Private names of torch are used here, in `compiler`, `pgo`, `exported` and `libraries`, and nowhere
else.
`torch.compile(f, fullgraph=True).aot_compile(...)` gives one graph with the bytecode around it
and a guard check; it pickles where the guards are left out. What they protected is returned
beside it as facts, and the caller checks them (`facts`, `dispatcher`).
Seen in torch 2.13 (2.11 asks for `enable_aot_compile`, which is set here):
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/aot_compile.py
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import io
import logging
import os
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from serve_warm.precompile import facts, guard_facts
from serve_warm.precompile.facts import NoEntry
from serve_warm.precompile.guard_facts import Guard

logger = logging.getLogger(__name__)

FAILURES = (
    *(RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError),
    *(ImportError, EOFError, OSError, pickle.PickleError),
)
"""What making or loading an entry raises when it cannot: torch's own errors are RuntimeErrors,
and pickle raises what the object it is at raises. Each costs a level and nothing else."""

OWN_SOURCES = ("torch", "builtins", "serve_warm")
"""Packages whose code is in the fingerprint already, by version and build; and serve_warm's own,
which leaves nothing in a graph."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """Code for one call, as it goes into an artifact and as it can be called here and now."""

    fn: Callable[..., Any]
    """Takes the callee and then the tensors. Raises `NoEntry`, before it computes anything, where
    the tensors of its graph, weights included, are not like those of its first run."""
    data: bytes
    """A pickle of torch's, or at level 3 a shared library: code, to be loaded only once it has been
    verified. No weights."""
    references: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What `load` needs beside a pickle: module and qualified name by the global that compiled code
    finds it under."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """What `libraries.load` needs beside a library, or `load` beside a pickle; JSON can hold it."""
    facts: facts.Facts
    conditions: Sequence[str]
    """What the sizes of dynamic dimensions must be, in Python over `L`, the tensors by name."""
    sources: Mapping[str, str]
    """SHA-256 of the file, by name of each Python module whose code is in the graph."""


def make(
    function: Callable[..., Any], callee: Any, tensors: Sequence[Any], arguments: Mapping[str, Any]
) -> Made:
    """Compile `function(callee, *tensors)` ahead of time, with `arguments` of torch.compile.

    Raises:
        NoEntry: there is a graph break, or something in it cannot be written to a file.
    """
    with as_reasons():
        captured = capture(function, callee, tensors, arguments)
        entry = captured.entry
        return Made(
            fn=_checked(entry, captured.plan),
            data=type(entry).serialize(entry, {}).serialized_data,
            references=_references(entry, entry._artifacts.runtime_env),
            facts=captured.facts,
            conditions=captured.conditions,
            sources=captured.sources,
            plan=captured.plan,
        )


@dataclass(frozen=True, kw_only=True)
class Captured:
    """What Dynamo found in one function: a graph, which a backend has compiled, and around it."""

    entry: Any
    """torch's own object; its `fn` is the bytecode around the graph, which checks nothing."""
    facts: facts.Facts
    conditions: Sequence[str]
    sources: Mapping[str, str]
    plan: Mapping[str, Any]
    """What `load` needs to know."""


def capture(
    function: Callable[..., Any], callee: Any, tensors: Sequence[Any], arguments: Mapping[str, Any]
) -> Captured:
    """Trace `function(callee, *tensors)` and have its graph compiled, by a `backend` if given.

    Raises whatever torch raises: call it inside `as_reasons()`.
    """
    guards: list[Guard] = []
    conditions: list[str] = []

    def take_all(entries: Sequence[Any]) -> list[bool]:
        # Called once for all guards, while the objects they are about are there; none is kept.
        guards.extend(map(_guard, entries))
        for entry in entries:
            if entry.guard_type == "SHAPE_ENV":
                conditions.extend(entry.orig_guard.code_list or ())
        return [False] * len(entries)

    with _enabled(), _all_guarded() as unguarded:
        settings = _with_filter({**arguments, "fullgraph": True}, take_all)
        compiled: Any = torch.compile(function, **settings)
        entry = compiled.aot_compile(((callee, *tensors), {}))
    if unguarded.refusals:
        raise NoEntry(unguarded.refusals[0])
    return Captured(
        entry=entry,
        facts=guard_facts.collect(
            [*guards, *unguarded.guards],
            callee,
            names=_aliases(entry),
            scopes={a: id(v) for a, v in entry.fn.__globals__.items() if type(v) is dict},
            marked=_marked,
            results=unguarded.results,
        ),
        conditions=(*conditions, *guard_facts.conditions_of(guards)),
        sources=_sources(entry),
        plan=_asked_at_load(arguments),
    )


def _aliases(entry: Any) -> dict[str, tuple[str, str]]:
    """Return module and qualified name of what stands in the globals of compiled code."""
    imported: Mapping[str, str] = entry._artifacts.runtime_env.import_sources
    found = {alias: (name, "") for alias, name in imported.items()}
    for alias, value in entry.fn.__globals__.items():
        if alias not in found and (place := facts.where(value)) is not None:
            found[alias] = place
    return found


@dataclass(frozen=True)
class _Unguarded:
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
def _all_guarded() -> Iterator[_Unguarded]:
    """Have Dynamo guard, or name, what it leaves out and may differ at a start (seen in 2.13)."""
    found = _Unguarded()
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


def _noting_tensors(found: _Unguarded) -> Replacements:
    """Note whether a weight requires grad, which TENSOR_MATCH has and its fact has not.

    And that a storage is read, of which no check knows the size.
    """
    from torch._dynamo.variables import tensor

    of_tensors: Any = tensor.TensorVariable
    read, read_storage = of_tensors.method_attr_requires_grad, of_tensors.method_untyped_storage

    def method_attr_requires_grad(self: Any, tx: Any) -> Any:
        if self.source is not None and self.requires_grad is not None:
            keys: list[Any] = []
            path = f"{_expression(self.source, keys)}.requires_grad"
            value = bool(self.requires_grad)
            found.guards.append(Guard(path=path, kind="REQUIRES_GRAD", value=value, keys=keys))
        return read(self, tx)

    def method_untyped_storage(self: Any, tx: Any) -> Any:
        found.refusals.append("it reads the storage of a tensor, which may be larger than that")
        return read_storage(self, tx)

    yield of_tensors, "method_attr_requires_grad", method_attr_requires_grad
    yield of_tensors, "method_untyped_storage", method_untyped_storage


def _noting_sets(found: _Unguarded) -> Replacements:
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


def _noting_hashes(found: _Unguarded) -> Replacements:
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


def _noting_functions(found: _Unguarded) -> Replacements:
    """Note results of `assume_constant_result`; guard what Python's library reads in `os`."""
    from torch._dynamo import symbolic_convert
    from torch._dynamo.variables import functions

    of_functions: Any = functions
    of_globals: Any = symbolic_convert
    invoke, is_stdlib = of_functions.invoke_and_store_as_constant, of_globals.is_stdlib

    def invoke_and_store_as_constant(tx: Any, fn: Any, name: str, *rest: Any) -> Any:
        def noting(*args: Any, **kwargs: Any) -> Any:
            result = fn(*args, **kwargs)
            if not facts.is_own(fn):
                found.results.append((fn, args, kwargs, result))
            return result

        return invoke(tx, noting, name, *rest)

    yield of_functions, "invoke_and_store_as_constant", invoke_and_store_as_constant
    yield of_globals, "is_stdlib", lambda module: is_stdlib(module) and module is not os


def _marked(value: Any) -> str:
    """Return how a function is marked, where Dynamo does not look into it; empty elsewhere.

    The names are those of `guard_facts.OPAQUE`. Private; the same from 2.11 to 2.13.
    """
    from torch._dynamo import trace_rules

    if not callable(value) or facts.is_own(value):
        return ""
    if id(value) in trace_rules._nonstrict_trace_callable_ids():
        return "nonstrict_trace"
    return "allow_in_graph" if id(value) in trace_rules._allowed_callable_ids() else ""


def captures(arguments: Mapping[str, Any]) -> bool:
    """Return whether CUDA graphs are asked for: by arguments of torch.compile, or for all of it."""
    from torch._inductor import config

    return bool(options_of(arguments).get(CAPTURES, config.triton.cudagraphs))


def options_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of Inductor that arguments of torch.compile stand for, by themselves."""
    mode = arguments.get("mode")
    if mode in (None, "default"):
        return dict(arguments.get("options") or {})
    from torch._inductor import list_mode_options

    return dict(list_mode_options(mode, arguments.get("dynamic")))


CAPTURES = "triton.cudagraphs"
"""The setting by which CUDA graphs are captured."""


def _asked_at_load(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the setting by which graphs are captured, if they are: no entry says so by itself.

    torch asks for it, 2.11 to 2.13, when it puts the pieces of an entry together
    (`_functorch/_aot_autograd/aot_autograd_result.py`), and that is at each load.
    """
    return {"settings": {CAPTURES: True}} if captures(arguments) else {}


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
                changes[_path_of(variable.source) or type(variable).__name__] = None
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


@contextlib.contextmanager
def as_reasons() -> Iterator[None]:
    """Raise `NoEntry` for what torch raises in the block; its text is torch's first line."""
    try:
        yield
    except FAILURES as error:
        raise NoEntry(_reason(error)) from error


def load(
    data: bytes, references: Mapping[str, tuple[str, str]], plan: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return the function of an entry. Executes `data`: only call it with what was verified.

    `references` and `plan` are those that it was made with (`Made`).

    Raises:
        NoEntry: torch cannot load it here.
    """
    from torch._inductor import config

    with as_reasons():
        found = {name: facts.resolve(*where) for name, where in references.items()}
        with _enabled(), config.patch(plan.get("settings", {})):
            entry: Any = torch.compiler.load_compiled_function(
                io.BytesIO(data), f_globals=found, external_data={}
            )
        return _checked(entry, plan)


def can_precompile() -> str:
    """Return why this torch has no ahead-of-time compile that we know; empty where it has."""
    try:
        from torch._dynamo.aot_compile import AOTCompiledFunction  # noqa: F401
    except ImportError:
        return f"torch {torch.__version__} has no torch._dynamo.aot_compile"
    return ""


def changed_sources(sources: Mapping[str, str]) -> list[str]:
    """Return the Python modules whose files are not those that an entry was compiled from."""
    return [name for name, digest in sources.items() if _file_digest(name) != digest]


@contextlib.contextmanager
def _enabled() -> Iterator[None]:
    config: Any = torch._dynamo.config
    if hasattr(config, "enable_aot_compile"):
        with config.patch(enable_aot_compile=True):
            yield
    else:
        yield


def _with_filter(arguments: Mapping[str, Any], take_all: Callable[..., Any]) -> dict[str, Any]:
    """Add a guard filter, which goes into `options`; a mode is turned into its options for that."""
    given = {k: v for k, v in arguments.items() if k not in ("mode", "options", "recompile_limit")}
    return {**given, "options": {**options_of(arguments), "guard_filter_fn": take_all}}


def _guard(entry: Any) -> Guard:
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
    name = str(_path_of(source))
    base = getattr(source, "base", None)
    if base is None:
        return name
    inner = str(_path_of(base))
    written = _expression(base, keys)
    index = getattr(source, "index", None)
    if index is None or type(index) in (str, int) or hasattr(index, "guard_source"):
        return name.replace(inner, written) if inner != written else name
    if getattr(source, "index_is_slice", False):
        return name.replace(inner, written)
    keys.append(index)
    return f"dict.__getitem__({written}, KEYS[{len(keys) - 1}])"


def _path_of(source: Any) -> str | None:
    if source is None:
        return None
    name = source.name  # a method up to 2.11
    return str(name() if callable(name) else name)


def _references(entry: Any, environment: Any) -> dict[str, tuple[str, str]]:
    """Name the globals that torch leaves to whoever loads the function."""
    known = {*environment.import_sources, *environment.used_globals, entry._artifacts.backend_id}
    found = {}
    for name in sorted(set(environment.external_refs) - known):
        where = facts.where(entry.fn.__globals__[name])
        if where is None:
            value = entry.fn.__globals__[name]
            raise NoEntry(f"its code refers to a {type(value).__name__} by identity")
        found[name] = where
    return found


def _sources(entry: Any) -> dict[str, str]:
    """Digest the files of all code in the graph that is not torch's or Python's own."""
    names = {source.module for source in entry.source_info().inlined_sources}
    files = {name: facts.source_file(name) for name in names}
    library = str(Path(contextlib.__file__).parent)
    return {
        name: _file_digest(name)
        for name, file in sorted(files.items())
        if name.partition(".")[0] not in OWN_SOURCES
        and file
        and (not file.startswith(library) or "site-packages" in file)
    }


def _file_digest(module: str) -> str:
    import importlib.util

    file = facts.source_file(module)
    if not file:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            return ""
        file = str(spec.origin or "") if spec is not None else ""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""


def _reason(error: BaseException) -> str:
    """Return what torch says, which is long, in a line: what, why, and where in user code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else "no reason given"
    why = next((line for line in lines if line.startswith(EXPLANATION)), "")
    frames = [found for line in lines if (found := FRAME.match(line)) is not None]
    where = f" ({Path(frames[-1][1]).name}:{frames[-1][2]})" if frames else ""
    text = f"{type(error).__name__}: {first} {why.removeprefix(EXPLANATION).strip()}".rstrip()
    return f"{text[:300]}{where}"


EXPLANATION = "Explanation:"
FRAME = re.compile(r'File "(.+)", line (\d+), in ')
"""How torch quotes user code; the innermost frame comes last."""


# What the graph itself looks at ---------------------------------------------------------------


class _Graph:
    """The compiled graph of an entry. It runs on tensors like those of its first run only.

    The dispatcher has looked at the arguments, and at the weights when it was bound. Weights can be
    exchanged since without a trace (`.data =`, `torch.func.functional_call`), and compiled code
    reads what it gets as what it expects. Dynamo's guards look at all of them at each call, too.
    """

    def __init__(self, compiled: Callable[..., Any], *, writes: bool, captures: bool) -> None:
        self._compiled = compiled
        self._generations: Any = None
        if captures:
            from torch._dynamo.mutation_guard import GenerationTracker

            self._generations = GenerationTracker
        self.writes = writes
        """Whether it writes into its inputs: then none of them may overlap another."""
        self.input_ids: frozenset[int] = frozenset()
        """Of the tensors of its last run with new ones, for whoever asks right after it."""
        self._known: list[tuple[str, ...]] = []
        self._checks: tuple[Callable[..., bool], ...] = ()

    def __call__(self, *args: Any) -> Any:
        if not any(same(*args) for same in self._checks):
            self._learn(args)
        if self.writes:
            refuse_overlap(args)
        if self._generations is not None:
            # As torch.compile does at each call: what the one before returned is over. While it is
            # kept, each call would be taken for the next part of the one before, and captured.
            self._generations.generation += 1
        return self._compiled(*args)

    def _learn(self, args: Sequence[Any]) -> None:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        dynamic = len(tensors) < len(args)  # sizes are among the inputs
        for tensor in tensors:
            refuse_unusual(tensor)
        if len({id(tensor) for tensor in tensors}) < len(tensors):
            raise NoEntry("two of the tensors in its graph are one and the same now")
        every = [(range(t.dim()), range(t.dim())) if dynamic else ((), ()) for t in tensors]
        said = tuple(
            facts.describe_tensor(t, free=free) for t, free in zip(tensors, every, strict=True)
        )
        if self._known and said not in self._known:
            pairs = zip(said, self._known[0])  # noqa: B905 - of different lengths where one is gone
            now, was = next((pair for pair in pairs if pair[0] != pair[1]), (said, self._known[0]))
            raise NoEntry(f"a tensor that its graph finds by itself is {now}, and was {was}")
        self._known = [said]
        self.input_ids = frozenset(map(id, tensors))
        # Inference tensors and others are told apart by the check, and are one to the code.
        self._checks = (
            _of_tensors(
                tensor_check(tensors, free=dict(enumerate(every)) if dynamic else None),
                dynamic=dynamic,
            ),
            *self._checks[:3],
        )


def _graph_of(fn: Callable[..., Any]) -> _Graph | None:
    found = getattr(fn, "__globals__", {}).values()
    return next((value for value in found if isinstance(value, _Graph)), None)


def inputs_of(fn: Callable[..., Any]) -> frozenset[int]:
    """Return the ids of the tensors that the graph of a function took in its first run.

    To be asked right after that run, while the tensors live.
    """
    found: frozenset[int] = getattr(_graph_of(fn) or fn, "input_ids", frozenset())
    return found


def may_run_again(fn: Callable[..., Any], error: BaseException) -> bool:
    """Return whether the call in which an entry raised can be made by other code instead.

    The bytecode around a graph looks up modules and attributes before it, and may not find one that
    was there. What the graph raises is the call's own answer, and a graph that writes into its
    inputs may have done so by the time that something after it raised.
    """
    if writes(fn):
        return False
    frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return _Graph.__call__.__code__ not in frames


def writes(fn: Callable[..., Any]) -> bool:
    """Return whether an entry writes into its inputs, buffers included; true if that is unknown."""
    graph = _graph_of(fn)
    return graph is None or graph.writes


def _of_tensors(check: Callable[..., bool], *, dynamic: bool) -> Callable[..., bool]:
    if not dynamic:
        return check
    return lambda *args: check(*(arg for arg in args if isinstance(arg, torch.Tensor)))


def refuse_overlap(args: Sequence[Any]) -> None:
    """Raise `NoEntry` where two tensors share memory; a few µs where each has its own."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.numel()]
    spans = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        spans.append((start, start + storage.nbytes()))
    if not _meet(spans):
        return
    # Parts of one storage, as caches are: from the first element to the last.
    spans = []
    for tensor in tensors:
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.data_ptr()
        spans.append((start, start + (last + 1) * tensor.element_size()))
    if _meet(spans):
        raise NoEntry("it writes into a tensor that overlaps another one in memory")


def _meet(spans: list[tuple[int, int]]) -> bool:
    end = 0
    for start, stop in sorted(spans):
        if start < end:
            return True
        end = stop
    return False


def _checked(entry: Any, plan: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function of an entry with its graph behind the checks above."""
    name = entry._artifacts.backend_id
    compiled = entry.fn.__globals__[name]
    inputs = compiled.compiled_fn.serialize().runtime_metadata.input_info
    writes = any(info.mutates_data or info.mutates_metadata for info in inputs)
    captures = bool(plan.get("settings"))
    entry.fn.__globals__[name] = _Graph(compiled, writes=writes, captures=captures)
    fn: Callable[..., Any] = entry.fn
    return fn


# Where torch puts what it compiled ------------------------------------------------------------


@functools.cache
def compiled_module_class() -> type[torch.nn.Module]:
    """Return torch.compile's own module class; importing it imports Dynamo."""
    from torch._dynamo import OptimizedModule

    return OptimizedModule


def call_of(block: torch.nn.Module) -> Callable[..., Any]:
    """Return the call of a module as it is when nothing was compiled in place."""
    call: Callable[..., Any] = block._call_impl
    return call


def compile_in_place(block: torch.nn.Module, compiled: Callable[..., Any]) -> None:
    """Make calls of a module go to `compiled`, as `nn.Module.compile` does (2.2 to 2.15)."""
    block._compiled_call_impl = compiled


# What a dispatcher asks at each call ----------------------------------------------------------


def tensor_check(
    tensors: Sequence[Any], *, free: Mapping[int, facts.Free] | None = None
) -> Callable[..., bool]:
    """Return a function that says whether other tensors are like these, to compiled code.

    Type, dtype, device, sizes, strides, gradient and dispatch keys (inference mode, autocast,
    functorch), and that no tensor is there twice. In C++: 0.2 µs for two tensors. `free` names by
    a tensor's number dimensions whose size, and whose stride, may be any.
    """
    from torch._C._dynamo.guards import TensorGuards  # private; 2.0 to 2.15

    sizes: Any = [list(tensor.shape) for tensor in tensors]  # its stub has another type
    strides: Any = [list(tensor.stride()) for tensor in tensors]
    for number, (any_size, any_stride) in (free or {}).items():
        for dim in any_size:
            sizes[number][dim] = None
        for dim in any_stride:
            strides[number][dim] = None
    guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    check: Callable[..., bool] = guards.check
    return check


def dict_version(mapping: dict[Any, Any]) -> int:
    """Return a number that is another one after each change of a dict (2.0 to 2.15)."""
    from torch._C._dynamo import guards

    return guards.dict_version(mapping)


def dict_versions(dicts: Sequence[dict[Any, Any]]) -> list[int]:
    """Return the version of each of these dicts."""
    from torch._C._dynamo import guards

    return list(map(guards.dict_version, dicts))


def dicts_check(dicts: Sequence[dict[Any, Any]]) -> Callable[[], bool]:
    """Return a function that says whether none of these dicts was changed since now.

    In C++: 24 ns for a dict. Without Dynamo, at level 3, one by one: four times as much (2.13).
    """
    from torch._C._dynamo import guards

    if not dicts:
        return lambda: True
    held = tuple(dicts)
    # What C++ builds the check from asks for this module.
    python_half: Any = sys.modules.get("torch._dynamo.guards")
    if not hasattr(python_half, "GuardManagerType"):
        version = guards.dict_version
        versions = list(map(version, held))
        return lambda: list(map(version, held)) == versions
    GuardManagerType: Any = python_half.GuardManagerType  # noqa: N806 - a class
    root = guards.RootGuardManager()
    for number, each in enumerate(held):
        one = root.tuple_getitem_manager(
            number, f"dicts[{number}]", each, GuardManagerType.GUARD_MANAGER
        )
        _add_version_guard(one, each)
    check = root.check
    return lambda: check(held)


def _add_version_guard(manager: Any, mapping: dict[Any, Any]) -> None:
    try:
        manager.add_dict_version_guard(mapping, ["changed"], None)
    except TypeError:  # without the user's stack: 2.11
        manager.add_dict_version_guard(mapping, ["changed"])


def backend_flags() -> str:
    """Return the flags of torch's backends by which kernels are chosen, as text.

    Anybody may set them while a process runs, and reading them takes 4 µs.
    """
    global _recent_flags  # noqa: PLW0603 - flags of the process
    values = ", ".join(f"{name}={read()}" for name, read in BACKEND_FLAGS.items())
    precisions = ", ".join(
        f"{backend}.{of}={torch._C._get_fp32_precision_getter(backend, of)}"
        for backend, of in FP32_PRECISIONS
    )
    _recent_flags = f"{values}; fp32 precision {precisions}"
    return _recent_flags


_recent_flags = ""
"""What they were when they were last read."""


BACKEND_FLAGS: Mapping[str, Callable[[], Any]] = {
    "cudnn.enabled": torch._C._get_cudnn_enabled,
    "cudnn.benchmark": torch._C._get_cudnn_benchmark,
    "cudnn.deterministic": torch._C._get_cudnn_deterministic,
    "mkldnn.enabled": torch._C._get_mkldnn_enabled,
    "flash_sdp": torch._C._get_flash_sdp_enabled,
    "mem_efficient_sdp": torch._C._get_mem_efficient_sdp_enabled,
    "math_sdp": torch._C._get_math_sdp_enabled,
    "cudnn_sdp": torch._C._get_cudnn_sdp_enabled,
    "mha.fastpath": torch.backends.mha.get_fastpath_enabled,
}
"""How each is read (private; 2.5 to 2.15). TF32 of cuDNN is one of the precisions below."""

FP32_PRECISIONS = (
    *(("generic", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")),
    *(("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
)


def state_check() -> Callable[[], bool]:
    """Return a function that says whether thread and process are in today's state, to torch.

    Grad mode, autocast, default dtype, threads, determinism, matmul precision; and that nothing
    intercepts torch's functions, a default device for example.
    """
    from torch._C._dynamo.guards import GlobalStateGuard  # private; 2.1 to 2.15
    from torch.autograd import forward_ad

    same = GlobalStateGuard().check
    flags = backend_flags()
    intercepted = torch._C._len_torch_function_stack

    def check() -> bool:
        # The flags are read once a second, by the watch on the callable's facts.
        return (
            same()
            and not intercepted()
            and forward_ad._current_level < 0
            and flags == _recent_flags
        )

    return check


def intercepted() -> bool:
    """Return whether something stands between a call and torch.

    A default device, a mode, a transform of torch.func, forward-mode gradients, jit's tracer.
    """
    from torch.autograd import forward_ad

    return bool(
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def refuse_unusual(tensor: Any) -> None:
    """Raise `NoEntry` for a tensor that is more, or less, than dense memory.

    Sparse, nested, quantised, a lazy view or a lazy zero, or wrapped by a transform: each has a
    dispatch key that ordinary tensors have not.
    """
    kind = tensor.device.type.upper()
    text = str(torch._C._dispatch_keys(tensor))  # DispatchKeySet(CPU, ADInplaceOrView, ...)
    keys = set(text.partition("(")[2].rstrip(")").split(", "))
    more = keys - {kind, "ADInplaceOrView", f"Autograd{kind}", f"Autocast{kind}"}
    if more or kind not in keys:
        raise NoEntry(f"a tensor is not plain memory: {', '.join(sorted(more or keys))}")
