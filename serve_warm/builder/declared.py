# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The inputs that the source of `warmup_inputs` declares, found without running the method.

Only constants, module-level names and class attributes count as known. Values that `__init__` sets
or a loop creates are unknown, and are skipped. So all findings are certain.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from serve_warm._records import record
from serve_warm.inputs import Buckets, Input, shape_grid

TARGET_AND_BUCKETS = ("target", "buckets")
"""The arguments of `shape_grid` that a call may pass by position, in their order."""


@record(frozen=True, kw_only=True)
class DeclaredInput:
    """One `Input(...)` or `shape_grid(...)` in the source of `warmup_inputs`."""

    target: str | None
    """A method name or a request; None if the source does not show it."""
    concurrency: int | None
    """Largest number of concurrent calls. None if the source does not show it."""
    keywords: tuple[str, ...]
    """The names of the keyword arguments in the call."""
    made_by: str
    """The called function: `Input` or `shape_grid`."""
    is_repeated: bool
    """Whether a loop or a comprehension makes the call."""
    line: int
    """The line number of the call in its file."""


class _Unknown(Exception):
    """The source does not show the value of an expression."""


def read_declared(cls: type) -> list[DeclaredInput]:
    """Return the inputs that a class declares; empty if the source is missing or unclear."""
    function = inspect.getattr_static(cls, "warmup_inputs", None)
    parsed = _parse(function)
    if not isinstance(function, types.FunctionType) or parsed is None:
        return []
    tree, first_line = parsed
    scope = _Scope(cls, function)
    loops = [node for node in ast.walk(tree) if isinstance(node, LOOPS)]
    repeated = {id(node) for loop in loops for node in ast.walk(loop)}
    return [
        declared
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for declared in _declared_by(node, scope, first_line, is_repeated=id(node) in repeated)
    ]


LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.GeneratorExp)


def returns_nothing(cls: type) -> str:
    """Return "None" or "[]" if `warmup_inputs` always returns that empty value, or else "".

    The result is "None" if no `return` statement has a value, and "[]" if every `return` statement
    has an empty list or tuple as its value.
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


def _declared_by(
    node: ast.Call, scope: _Scope, first_line: int, *, is_repeated: bool
) -> Iterator[DeclaredInput]:
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
        is_repeated=is_repeated,
        line=first_line + node.lineno - 1,
    )


def _largest(given: Mapping[str, ast.expr], scope: _Scope) -> int | None:
    """Return the largest size of the `concurrency` axis in a `shape_grid` call."""
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
    """Evaluates expressions in a method if they depend only on the class and the module."""

    def __init__(self, cls: type, function: types.FunctionType) -> None:
        self._cls = cls
        arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
        self._self = arguments[0] if arguments else ""
        self._locals = set(function.__code__.co_varnames)
        self._names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression.

        Raises:
            _Unknown: the value is known only when the code runs.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in self._names and node.id not in self._locals:
            return self._names[node.id]
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id == self._self
            owner = self._cls if is_own else self.value(node.value)
            # Read attributes only of modules and classes: other objects may run code on attribute
            # access.
            if isinstance(owner, (type, types.ModuleType)) and hasattr(owner, node.attr):
                if is_own and assigns(self._cls, node.attr):
                    raise _Unknown
                return getattr(owner, node.attr)
        raise _Unknown

    def target(self, node: ast.expr | None) -> str | None:
        """Return the target of an input: `embed` for `self.embed`, and a string unchanged."""
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == self._self
        ):
            return node.attr
        found = _maybe(node, self)
        return found if isinstance(found, str) else None


def assigns(cls: type, name: str) -> bool:
    """Return whether instances of a class might have an attribute that the class itself lacks.

    The result is True if the class or one of its bases assigns to the attribute anywhere in its
    source, or if the source is unclear or missing.
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
    """Return the parsed source of a class or function, with its first line number, or None."""
    if found is None:
        return None
    try:
        lines, first = inspect.getsourcelines(found)
        return ast.parse(textwrap.dedent("".join(lines))), first
    except (OSError, TypeError, SyntaxError):
        return None
