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
import hashlib
import io
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from serve_warm.precompile import facts, guard_facts
from serve_warm.precompile.entry_function import Plan, with_checks
from serve_warm.precompile.facts import NoEntry
from serve_warm.precompile.guard_facts import Guard
from serve_warm.precompile.names import locate, resolve, source_file
from serve_warm.precompile.trace_notes import all_guarded, guard_from, mark_of

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
    plan: Plan = field(default_factory=Plan)
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
            fn=with_checks(entry, captured.plan),
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
    plan: Plan
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
        guards.extend(map(guard_from, entries))
        for entry in entries:
            if entry.guard_type == "SHAPE_ENV":
                conditions.extend(entry.orig_guard.code_list or ())
        return [False] * len(entries)

    with _enable(), all_guarded() as unguarded:
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
            marked=mark_of,
            results=unguarded.results,
        ),
        conditions=(*conditions, *guard_facts.conditions_of(guards)),
        sources=_sources(entry),
        plan=_settings_at_load(arguments),
    )


def _aliases(entry: Any) -> dict[str, tuple[str, str]]:
    """Return module and qualified name of what stands in the globals of compiled code."""
    imported: Mapping[str, str] = entry._artifacts.runtime_env.import_sources
    found = {alias: (name, "") for alias, name in imported.items()}
    for alias, value in entry.fn.__globals__.items():
        if alias not in found and (place := locate(value)) is not None:
            found[alias] = place
    return found


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


def _settings_at_load(arguments: Mapping[str, Any]) -> Plan:
    """Return the setting by which graphs are captured, if they are: no entry says so by itself.

    torch asks for it, 2.11 to 2.13, when it puts the pieces of an entry together
    (`_functorch/_aot_autograd/aot_autograd_result.py`), and that is at each load.
    """
    return {"settings": {CAPTURES: True}} if captures(arguments) else {}


@contextlib.contextmanager
def as_reasons() -> Iterator[None]:
    """Raise `NoEntry` for what torch raises in the block; its text is torch's first line."""
    try:
        yield
    except FAILURES as error:
        raise NoEntry(_reason(error)) from error


def load(data: bytes, references: Mapping[str, tuple[str, str]], plan: Plan) -> Callable[..., Any]:
    """Return the function of an entry. Executes `data`: only call it with what was verified.

    `references` and `plan` are those that it was made with (`Made`).

    Raises:
        NoEntry: torch cannot load it here.
    """
    from torch._inductor import config

    with as_reasons():
        found = {name: resolve(*where) for name, where in references.items()}
        with _enable(), config.patch(plan.get("settings", {})):
            entry: Any = torch.compiler.load_compiled_function(
                io.BytesIO(data), f_globals=found, external_data={}
            )
        return with_checks(entry, plan)


def can_precompile() -> str:
    """Return why this torch has no ahead-of-time compile that we know; empty where it has."""
    try:
        from torch._dynamo.aot_compile import AOTCompiledFunction  # noqa: F401
    except ImportError:
        return f"torch {torch.__version__} has no torch._dynamo.aot_compile"
    return ""


def find_changed_sources(sources: Mapping[str, str]) -> list[str]:
    """Return the Python modules whose files are not those that an entry was compiled from."""
    return [name for name, digest in sources.items() if _file_digest(name) != digest]


@contextlib.contextmanager
def _enable() -> Iterator[None]:
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


def _references(entry: Any, environment: Any) -> dict[str, tuple[str, str]]:
    """Name the globals that torch leaves to whoever loads the function."""
    known = {*environment.import_sources, *environment.used_globals, entry._artifacts.backend_id}
    found = {}
    for name in sorted(set(environment.external_refs) - known):
        where = locate(entry.fn.__globals__[name])
        if where is None:
            value = entry.fn.__globals__[name]
            raise NoEntry(f"its code refers to a {type(value).__name__} by identity")
        found[name] = where
    return found


def _sources(entry: Any) -> dict[str, str]:
    """Digest the files of all code in the graph that is not torch's or Python's own."""
    names = {source.module for source in entry.source_info().inlined_sources}
    files = {name: source_file(name) for name in names}
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

    file = source_file(module)
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
