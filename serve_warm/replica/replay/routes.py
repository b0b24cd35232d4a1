# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The routes of a deployment's class, which need no instance.

This module uses a private name of Ray Serve (seen in 2.60): `@serve.ingress` makes a class whose
`__init__` closes over `frozen_app_or_func`. If that name is missing, the routes are unknown.
"""

from __future__ import annotations

import inspect
import itertools
import types
import typing
from collections.abc import Iterator, Sequence
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
        return _match(self.matchers, verb, path) is not None

    def list_functions(self) -> list[types.FunctionType]:
        """Return the functions that answer requests; some are methods of the class."""
        found = (getattr(each, "endpoint", None) for each in _all_of(self.matchers))
        return [inspect.unwrap(each) for each in found if isinstance(each, types.FunctionType)]

    def list_optional(self, verb: str, path: str) -> Iterator[tuple[str, str]]:
        """Yield what a request may leave out: `("query", name)` and `("json", name)`.

        FastAPI knows the parameters of the address, and pydantic the fields of the body.
        """
        waiting = [getattr(_match(self.matchers, verb, path), "dependant", None)]
        bodies: list[Any] = []
        for takes in waiting:  # a dependency may have others
            waiting += getattr(takes, "dependencies", ())
            bodies += getattr(takes, "body_params", ())
            for each in getattr(takes, "query_params", ()):
                if not each.field_info.is_required():
                    yield "query", each.alias
        for each in bodies:
            prefix = ""
            if len(bodies) > 1:  # each has a key in the body
                prefix = f"{each.alias}."
                if not each.field_info.is_required():
                    yield "json", each.alias
            for name in _optional_fields(each.field_info.annotation, DEPTH):
                yield "json", f"{prefix}{name}"


DEPTH = 8
"""How deep models in models are searched for optional fields."""


def _optional_fields(annotation: Any, depth: int) -> Iterator[str]:
    """Yield the optional fields of a pydantic model, and those of its fields that are models."""
    kinds = [annotation, *typing.get_args(annotation)]
    for name, field in itertools.chain(*(_fields(kind).items() for kind in kinds)):
        key = field.alias or name
        if not field.is_required():
            yield key
        if depth > 1:
            yield from (f"{key}.{inner}" for inner in _optional_fields(field.annotation, depth - 1))


def _fields(kind: Any) -> dict[str, Any]:
    return getattr(kind, "model_fields", {}) if isinstance(kind, type) else {}


def find_routes(cls: type) -> Routes | None:
    """Return the routes of a class with `@serve.ingress`; None if the routes are unknown."""
    from starlette.routing import BaseRoute

    routes = getattr(find_asgi_app(cls), "routes", None)
    if isinstance(routes, list) and all(isinstance(each, BaseRoute) for each in routes):
        return Routes(known=tuple(_describe(routes)), matchers=tuple(routes))
    return None


def find_asgi_app(cls: type) -> Any:
    """Return the app of a class with `@serve.ingress`; None if it has none that can be found."""
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if isinstance(init, types.FunctionType):
            app = inspect.getclosurevars(init).nonlocals.get("frozen_app_or_func")
            if app is not None:
                return app
    return None


def _match(routes: Sequence[Any], verb: str, path: str) -> Any:
    """Return the route that would answer a request, inside its router if it has no prefix."""
    from starlette.routing import Match

    scope = {"type": "http", "method": verb, "path": path, "root_path": "", "headers": []}
    for route in routes:
        if route.matches(dict(scope))[0] is Match.FULL:
            inner = _routes_inside(route)
            return (_match(inner, verb, path) if inner else None) or route
    return None


def _all_of(routes: Sequence[Any]) -> Iterator[Any]:
    """Yield all routes, those inside routers too."""
    for each in routes:
        yield from _all_of(_routes_inside(each) or ())
        yield each


def _routes_inside(route: Any) -> list[Any] | None:
    """Return the routes of a router inside a router, which FastAPI 0.165 keeps."""
    inner = getattr(getattr(route, "original_router", None), "routes", None)
    return inner if isinstance(inner, list) else None


def _describe(routes: Sequence[Any]) -> Iterator[str]:
    for each in routes:
        inner = _routes_inside(each)
        if inner is not None:
            yield from _describe(inner)
        elif getattr(each, "include_in_schema", False):
            for method in sorted(getattr(each, "methods", None) or ()):
                yield f"{method} {getattr(each, 'path', '')}"
