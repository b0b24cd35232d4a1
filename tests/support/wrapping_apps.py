# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Applications that `wrapping_process.py` wraps."""

from __future__ import annotations

from typing import Any

from ray import serve

import serve_warm


@serve.deployment(max_ongoing_requests=5)
class Model:
    pass


@serve.deployment(max_ongoing_requests=7)
class Caller:
    def __init__(self, nested: Any) -> None:
        self.nested = nested


@serve.deployment
class Top:
    def __init__(self, *nested: Any) -> None:
        self.nested = nested


@serve.deployment
class Mixed(serve_warm.WarmupMixin):
    pass


class Final:
    def __init_subclass__(cls, **_: Any) -> None:
        if cls.__bases__[-1] is not Final and Final in cls.__mro__[2:]:
            raise TypeError("Final allows no subclass")


@serve.deployment
class OfRay:
    pass


def bind(deployment: Any, *args: Any) -> Any:
    """Return a bound deployment; to a type checker, the decorator leaves a class."""
    return deployment.bind(*args)


Deployment: Any = OfRay
Deployment.func_or_class.__module__ = "ray.serve.llm.deployments"

app = bind(Caller, {"a": [bind(Model)]})
shared = bind(Model)
both = bind(Top, bind(Caller, shared), bind(Caller, shared))
mixed = bind(Mixed)
of_ray = bind(OfRay)
closed = bind(serve.deployment(Final))
seen: list[Any] = []


def build(args: dict[str, Any]) -> Any:
    """Return the application for the `args` of a Serve configuration."""
    seen.append(args)
    return app
