# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Facts about a deployment's class that need no instance: routes, and whether it compiles a model.

This module uses a private name of Ray Serve (seen in 2.60): `@serve.ingress` makes a class whose
`__init__` closes over `frozen_app_or_func`. If that name is missing, the routes are unknown.
"""

from __future__ import annotations

import ast
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from serve_warm._records import record


@record(frozen=True, kw_only=True)
class Routes:
    """The routes of an ASGI app with a list of routes, such as a Starlette or FastAPI app."""

    known: tuple[str, ...]
    """The method and path of each documented route, for messages."""
    matchers: tuple[Any, ...]
    """The route objects of Starlette."""

    def take(self, verb: str, path: str) -> bool:
        """Return whether a route would answer the request."""
        from starlette.routing import Match

        scope = {"type": "http", "method": verb, "path": path, "root_path": "", "headers": []}
        return any(route.matches(dict(scope))[0] is Match.FULL for route in self.matchers)


def find_routes(cls: type) -> Routes | None:
    """Return the routes of a class with `@serve.ingress`; None if the routes are unknown."""
    from starlette.routing import BaseRoute

    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if not isinstance(init, types.FunctionType):
            continue
        app = inspect.getclosurevars(init).nonlocals.get("frozen_app_or_func")
        routes = getattr(app, "routes", None)
        if isinstance(routes, list) and all(isinstance(each, BaseRoute) for each in routes):
            return Routes(known=tuple(_describe(routes)), matchers=tuple(routes))
    return None


def _describe(routes: Sequence[Any]) -> Iterator[str]:
    for each in routes:
        # FastAPI 0.165 keeps routers inside routers.
        inner = getattr(getattr(each, "original_router", None), "routes", None)
        if isinstance(inner, list):
            yield from _describe(inner)
        elif getattr(each, "include_in_schema", False):
            for method in sorted(getattr(each, "methods", None) or ()):
                yield f"{method} {getattr(each, 'path', '')}"


def modules_without_compile(cls: type) -> list[str]:
    """Return the names of the user's modules that a class uses, if none of them compiles a model.

    A module is assumed to compile a model if a name in its source, other than `re.compile`,
    contains "compile". The list is empty if a module compiles a model, or if the source of a module
    cannot be read.
    """
    looked_at = []
    for module in _own_modules(cls):
        try:
            tree = ast.parse(inspect.getsource(module))
        except (OSError, TypeError, SyntaxError):
            return []
        if any(_compiles(node) for node in ast.walk(tree)):
            return []
        looked_at.append(module.__name__)
    return looked_at


def _compiles(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        is_pattern = isinstance(node.value, ast.Name) and node.value.id in ("re", "regex")
        return "compile" in node.attr.lower() and not is_pattern
    names: Sequence[str | None] = ()
    if isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names if node.module not in ("re", "regex")]
    elif isinstance(node, ast.keyword):
        names = [node.arg]
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        names = [node.name]
    return any("compile" in (name or "").lower() for name in names)


def _own_modules(cls: type) -> Iterator[types.ModuleType]:
    """Yield the modules of a class and everything they import, except installed packages."""
    waiting = [base.__module__ for base in cls.__mro__]
    seen = set()
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name in seen or module is None or not _is_own(module):
            continue
        seen.add(name)
        yield module
        for value in list(vars(module).values()):
            home = value.__name__ if isinstance(value, types.ModuleType) else None
            waiting.append(str(home or getattr(value, "__module__", "")))


def _is_own(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.partition(".")[0] == "serve_warm":
        return False
    path, paths = Path(file).resolve(), sysconfig.get_paths()
    installed = {Path(paths[name]).resolve() for name in ("stdlib", "purelib", "platlib")}
    return not any(path.is_relative_to(where) for where in installed)
