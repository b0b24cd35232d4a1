# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What Ray Serve does not offer in public, seen in 2.53 to 2.60.

Serve keeps the request of each call in a context variable, and the settings of a replica in its
replica context. Its client builds applications with private functions. Nothing here is replaced.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Protocol, cast

import ray
from ray import serve
from ray.serve import context as serve_context
from ray.serve._private import constants
from ray.serve._private.http_util import ASGIAppReplicaWrapper
from ray.serve.exceptions import RayServeException


class ServeRequest(Protocol):
    """The request that a replica answers; the fields are empty outside of one."""

    request_id: str
    route: str
    is_http_request: bool
    multiplexed_model_id: str


# In a replica --------------------------------------------------------------------------------


def is_in_actor() -> bool:
    """Return whether this process runs an actor, as each replica is one."""
    return ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


def replica_context() -> Any:
    """Return Serve's replica context; `None` outside Serve and in its local testing mode."""
    try:
        return serve.get_replica_context()
    except RayServeException:
        return None


def user_config() -> Any:
    """Return the replica's `user_config`, which Serve knows before `__init__` runs, or `None`."""
    return getattr(_deployment_config(), "user_config", None)


def max_ongoing_requests() -> int | None:
    """Return Serve's limit on this replica's concurrent requests; `None` outside Serve."""
    limit = getattr(_deployment_config(), "max_ongoing_requests", None)
    return limit if isinstance(limit, int) else None


def _deployment_config() -> Any:
    return getattr(replica_context(), "_deployment_config", None)


def current_request() -> ServeRequest:
    """Return the request of the current context."""
    return cast("ServeRequest", serve_context._get_serve_request_context())


def set_model_id(model_id: str) -> None:
    """Make Serve's multiplexing load this model in the rest of the current context."""
    # The declared type of this variable is only None.
    variable: contextvars.ContextVar[Any] = serve_context._serve_request_context
    current: Any = serve_context._get_serve_request_context()
    variable.set(dataclasses.replace(current, multiplexed_model_id=model_id))


def model_loaders(owner: object) -> Sequence[Callable[[str], Awaitable[Any]]]:
    """Return the methods of an object that load a model by its id (`@serve.multiplexed`)."""
    kind = type(owner)
    names = dict.fromkeys(name for base in kind.__mro__ for name in vars(base))
    return [getattr(owner, name) for name in names if _loads_models(getattr(kind, name, None))]


def _loads_models(function: object) -> bool:
    # Only later versions mark the function (seen in 2.60).
    is_named = isinstance(function, FunctionType) and function.__code__.co_name == _LOADER
    return is_named and function.__globals__.get("__name__") == "ray.serve.api"  # type: ignore[attr-defined]


def loaded_models(owner: object) -> Sequence[str]:
    """Return the ids of the models that Serve's multiplexing has loaded for an object."""
    models = (
        getattr(vars(owner).get(_MULTIPLEXER), "models", {}) if hasattr(owner, "__dict__") else {}
    )
    return [each for each in models if isinstance(each, str)]


_LOADER = "_multiplex_wrapper"
"""Name of the function that `@serve.multiplexed` returns."""

_MULTIPLEXER = "__serve_multiplex_wrapper"
"""Attribute where Serve keeps an object's models."""


def answered_requests() -> Sequence[ServeRequest]:
    """Return the requests that the current context answers: several in a batch.

    The context of `@serve.batch` is that of the first call ever, but Serve keeps the requests of
    each batch beside it: the same objects that `current_request` returns to their handlers.
    """
    batch: Any = getattr(serve_context, "_serve_batch_request_context", None)  # not in 2.53
    return (batch.get() if batch is not None else None) or [current_request()]


def is_request() -> bool:
    """Return whether the current context is that of a request, or of a batch of requests.

    A replayed input has no request id.
    """
    return all(each.request_id for each in answered_requests())


def runs_sync_in_threads() -> bool:
    """Return whether Serve calls handlers that are not `async` on a thread of a pool."""
    return bool(getattr(constants, "RAY_SERVE_RUN_SYNC_IN_THREADPOOL", False))


def watchdog(name: str, default: float) -> float:
    """Return a number of Serve's watchdog over the event loop: `MAX_FAIL`, `TIMEOUT_S`, ...

    The watchdog exists from 2.56 on.
    """
    return float(getattr(constants, f"USER_HEALTH_CHECK_PROBE_{name}", default))


def is_asgi_app(cls: type) -> bool:
    """Return whether a class has an ASGI app (`@serve.ingress`)."""
    return issubclass(cls, ASGIAppReplicaWrapper)


def batch_size_of(function: object) -> tuple[int, bool] | None:
    """Return the size of a function's batches, and whether it counts requests.

    Returns `None` unless `@serve.batch` made the function. Only its getter marks such functions;
    objects of other types could run code if they were asked for it.
    """
    get = vars(function).get(_GETTER) if isinstance(function, FunctionType) else None
    if get is None:
        return None
    return int(get()), getattr(getattr(get, "__self__", None), "batch_size_fn", None) is None


_GETTER = "_get_max_batch_size"
"""The attribute that Serve's decorator gives a batched function."""


# In a client ---------------------------------------------------------------------------------


def build_app(bound: Any, *, name: str, route_prefix: str | None = None) -> Any:
    """Return a bound application in the form that Serve's client accepts."""
    from ray.serve._private.build_app import build_app as build

    if route_prefix is None:
        return build(bound, name=name)
    return build(bound, name=name, route_prefix=route_prefix)


def call_app_builder(bound: Any, arguments: Mapping[str, Any]) -> Any:
    """Return the application of an `import_path`, which may be a function of `arguments`."""
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary

    return call_user_app_builder_with_args_if_necessary(bound, dict(arguments))


def client() -> Any:
    """Return Serve's client, which `serve.start` has connected to the controller."""
    return serve_context._get_global_client()


def resources_of(deployment: Any) -> Sequence[Mapping[str, float]]:
    """Return the resources of one replica: its placement group's bundles, or one of its own."""
    config = deployment._replica_config
    bundles: Sequence[Mapping[str, float]] = config.placement_group_bundles
    return bundles or [config.resource_dict]


def gang_config_of(deployment: Any) -> Any:
    """Return how a deployment's replicas form gangs, or `None`. Not in 2.53."""
    return getattr(deployment._deployment_config, "gang_scheduling_config", None)


def map_deployments(bound: Any, change: Callable[[Any], Any]) -> Any:
    """Return a bound application with other deployments in the places of its own.

    `change` returns the deployment to use instead. Nodes that several deployments share stay
    shared, and each deployment is changed once.
    """
    from ray.serve.deployment import Application

    made: dict[int, Any] = {}

    def visit(node: Any) -> Any:
        if id(node) in made:
            return made[id(node)]
        deployment = node._bound_deployment
        scanner: Any = _scanner(Application)
        try:
            children = scanner.find_nodes((deployment.init_args, deployment.init_kwargs))
            args, kwargs = scanner.replace_nodes({child: visit(child) for child in children})
        finally:
            scanner.clear()
        changed = change(deployment.options(_init_args=args, _init_kwargs=kwargs, _internal=True))
        new = made[id(node)] = Application(changed)
        router = getattr(node, _ROUTER, None)  # from 2.60 on
        if router is not None:
            setattr(new, _ROUTER, visit(router))
        return new

    return visit(bound)


def _scanner(kind: type) -> Any:
    from ray.dag.py_obj_scanner import _PyObjScanner

    return _PyObjScanner(source_type=kind)


_ROUTER = "_ingress_request_router"
"""Attribute of an application: the deployment that routes for HAProxy."""
