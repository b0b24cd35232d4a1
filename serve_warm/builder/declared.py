# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The inputs of a deployment as the source of `warmup_inputs` declares them; nothing of it runs.

Only what the source says by itself is known: constants, names of the module, attributes of the
class. What `__init__` sets, or a loop makes, is left out, so that what is found is certain.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from serve_warm.inputs import Buckets, Input, shape_grid

TARGET_AND_BUCKETS = ("target", "buckets")
"""The arguments of `shape_grid` that may be given by their place."""


@dataclass(frozen=True, kw_only=True)
class DeclaredInput:
    """One `Input(...)` or `shape_grid(...)` in the source of `warmup_inputs`."""

    target: str | None
    """Name of a method, or a request; None where the source does not say it."""
    concurrency: int | None
    """The most calls at once; None where the source does not say it."""
    keywords: tuple[str, ...]
    """Names of the keyword arguments that are written out."""
    made_by: str
    """`Input` or `shape_grid`."""
    line: int
    """Of the call, in its file."""


class _Unknown(Exception):
    """The source alone does not say what an expression is."""


def read_declared(cls: type) -> list[DeclaredInput]:
    """Return what a class declares; empty where its source is not there or says nothing."""
    function = inspect.getattr_static(cls, "warmup_inputs", None)
    parsed = _parse(function)
    if not isinstance(function, types.FunctionType) or parsed is None:
        return []
    tree, first_line = parsed
    scope = _Scope(cls, function)
    return [
        declared
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for declared in _declared_by(node, scope, first_line)
    ]


def returns_nothing(cls: type) -> str:
    """Return what `warmup_inputs` gives in any case, if that is nothing; empty where it may differ.

    `None` where no `return` has a value, `[]` where the only one is an empty list or tuple.
    """
    function = inspect.getattr_static(cls, "warmup_inputs", None)
    parsed = _parse(function) if isinstance(function, types.FunctionType) else None
    tree = parsed[0].body[0] if parsed else None
    if not isinstance(tree, ast.FunctionDef) or isinstance(tree.body[-1], ast.Raise):
        return ""
    nodes = list(ast.walk(tree))
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in nodes):
        return ""
    values = [node.value for node in nodes if isinstance(node, ast.Return)]
    if all(_is_none(value) for value in values):
        return "None"
    is_empty = [isinstance(v, (ast.List, ast.Tuple)) and not v.elts for v in values]
    return "[]" if all(is_empty) else ""


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _declared_by(node: ast.Call, scope: _Scope, first_line: int) -> Iterator[DeclaredInput]:
    try:
        called = scope.value(node.func)
    except _Unknown:
        return
    given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    if called is shape_grid:
        given.update(zip(TARGET_AND_BUCKETS, node.args, strict=False))
        concurrency = _largest(given, scope)
    elif called is Input:
        found = _maybe(given.get("concurrency"), scope) if "concurrency" in given else 1
        concurrency = found if isinstance(found, int) else None
    else:
        return
    yield DeclaredInput(
        target=scope.target(given.get("target")),
        concurrency=concurrency,
        keywords=tuple(keyword.arg for keyword in node.keywords if keyword.arg),
        made_by="shape_grid" if called is shape_grid else "Input",
        line=first_line + node.lineno - 1,
    )


def _largest(given: Mapping[str, ast.expr], scope: _Scope) -> int | None:
    """Return the largest size of the axis that `shape_grid` makes a number of calls of."""
    if "concurrency" not in given:
        return 1
    axis, buckets = _maybe(given["concurrency"], scope), _maybe(given.get("buckets"), scope)
    if isinstance(buckets, Buckets) and isinstance(axis, str) and axis in buckets:
        return max(buckets[axis])
    return None


def _maybe(node: ast.expr | None, scope: _Scope) -> Any:
    try:
        return None if node is None else scope.value(node)
    except _Unknown:
        return None


class _Scope:
    """What expressions in a method mean, as far as class and module say it."""

    def __init__(self, cls: type, function: types.FunctionType) -> None:
        self._cls = cls
        arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
        self._self = arguments[0] if arguments else ""
        self._locals = set(function.__code__.co_varnames)
        self._names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}

    def value(self, node: ast.expr) -> Any:
        """Return what an expression is.

        Raises:
            _Unknown: only running it would tell.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in self._names and node.id not in self._locals:
            return self._names[node.id]
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id == self._self
            owner = self._cls if is_own else self.value(node.value)
            # Of modules and classes alone: what else has attributes may run code for them.
            if isinstance(owner, (type, types.ModuleType)) and hasattr(owner, node.attr):
                if is_own and assigns(self._cls, node.attr):
                    raise _Unknown
                return getattr(owner, node.attr)
        raise _Unknown

    def target(self, node: ast.expr | None) -> str | None:
        """Return what an input calls: `self.embed` is `embed`, and a text is itself."""
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == self._self
        ):
            return node.attr
        found = _maybe(node, self)
        return found if isinstance(found, str) else None


def assigns(cls: type, name: str) -> bool:
    """Return whether instances of a class may have an attribute that the class has not.

    Any assignment to the attribute in the source of the class or its bases counts, and so does
    everything that cannot be told from their sources.
    """
    for base in cls.__mro__[:-1]:
        if base.__module__.partition(".")[0] in ("ray", "serve_warm"):
            continue
        parsed = _parse(base)
        if parsed is None or "__getattr__" in vars(base):
            return True
        for node in ast.walk(parsed[0]):
            if isinstance(node, ast.Name) and node.id in ("setattr", "vars"):
                return True
            if isinstance(node, ast.Attribute) and (
                node.attr == "__dict__"
                or (node.attr == name and not isinstance(node.ctx, ast.Load))
            ):
                return True
    return False


def _parse(found: type | Callable[..., Any] | None) -> tuple[ast.Module, int] | None:
    """Return the source of a class or function and its first line; None where there is none."""
    if found is None:
        return None
    try:
        lines, first = inspect.getsourcelines(found)
        return ast.parse(textwrap.dedent("".join(lines))), first
    except (OSError, TypeError, SyntaxError):
        return None
