# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Mistakes in `warmup_inputs` that its source shows; nothing of the application runs."""

from __future__ import annotations

from collections.abc import Iterator

from serve_warm._suggestions import did_you_mean
from serve_warm.builder.app import Application
from serve_warm.builder.declared import DeclaredInput, assigns, read_declared
from serve_warm.builder.problems import Checked, Problem
from serve_warm.builder.sources import find_routes
from serve_warm.errors import InputError
from serve_warm.inputs import Input


def check_inputs(application: Application, name: str) -> Checked:
    """Return what is wrong with declared inputs, as far as the source of the class says."""
    from serve_warm.replica.deployment import WarmupMixin

    cls = application.warming[name]
    if cls.warmup_inputs is WarmupMixin.warmup_inputs:
        found = Problem(
            where=name,
            what="it declares no inputs",
            fix="define warmup_inputs(self), for example: "
            "return shape_grid(self.embed, self.buckets)",
        )
        return Checked(problems=(found,))
    most = application.option(name, "max_ongoing_requests")
    problems: list[Problem] = []
    for declared in read_declared(cls):
        where = f"{name}.warmup_inputs, line {declared.line}"
        problems += _check_target(cls, declared, where)
        if isinstance(most, int) and (declared.concurrency or 1) > most:
            problems.append(
                Problem(
                    where=where,
                    what=f"{declared.concurrency} calls at once, and max_ongoing_requests of the "
                    f"deployment is {most}: traffic never brings so many together",
                    fix=f"set max_ongoing_requests: {declared.concurrency} for {name}, or "
                    f"declare at most {most}",
                )
            )
    return Checked(problems=tuple(problems))


def _check_target(cls: type, declared: DeclaredInput, where: str) -> Iterator[Problem]:
    if declared.target is None:
        return
    try:
        item = Input(target=declared.target)
    except InputError as error:
        yield Problem(where=where, what=error.message, fix=error.hint)
        return
    if item.http is not None:
        yield from _check_route(cls, *item.http, where)
    elif not hasattr(cls, declared.target) and not assigns(cls, declared.target):
        methods = _methods(cls)
        yield Problem(
            where=where,
            what=f"{cls.__name__} has no method {declared.target!r}",
            fix=did_you_mean(declared.target, methods) or f"its methods: {', '.join(methods)}",
        )


def _methods(cls: type) -> list[str]:
    return sorted(
        name for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name))
    )


def _check_route(cls: type, verb: str, path: str, where: str) -> Iterator[Problem]:
    from ray.serve._private.http_util import ASGIAppReplicaWrapper

    target = f"{verb} {path}"
    if not issubclass(cls, ASGIAppReplicaWrapper):
        # Asked of the class, hasattr would find the one that makes instances.
        if not any("__call__" in vars(base) for base in cls.__mro__):
            yield Problem(
                where=where,
                what=f"{target!r} is an HTTP request, and {cls.__name__} answers none",
                fix="name a method as the target, or define __call__ or use @serve.ingress",
            )
        return
    routes = find_routes(cls)
    plain = path.partition("?")[0]
    if routes is None or routes.take(verb, plain):
        return
    yield Problem(
        where=where,
        what=f"the app of {cls.__name__} has no route for {target!r}",
        fix=did_you_mean(target, routes.known) or f"its routes: {', '.join(routes.known)}",
    )
