# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of `warmup_inputs` that read only its source, and run no code from the application."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from serve_warm.builder.app import Application
from serve_warm.builder.declared import DeclaredInput, assigns, read_declared, returns_nothing
from serve_warm.builder.problems import Checked, Problem
from serve_warm.errors import InputError, did_you_mean
from serve_warm.inputs import HTTP_TARGET, Field, Input, shape_grid
from serve_warm.replica.routes import find_routes
from serve_warm.replica.serve_calls import max_batch_size, suggest_target
from serve_warm.replica.serve_watchdog import MOST_FAILED, longest_block_s


def check_inputs(application: Application, name: str, *, longest_s: float = 0.0) -> Checked:
    """Return the problems with declared inputs, as far as the source of the class shows them.

    `longest_s` is how long one call may take in a start.
    """
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
    nothing = returns_nothing(cls)
    if nothing:
        found = Problem(
            where=f"{name}.warmup_inputs",
            what=f"it returns {nothing}, and without inputs the start fails",
            fix="return a list of Input, for example shape_grid(self.embed, self.buckets)",
        )
        return Checked(problems=(found,))
    most = application.option(name, "max_ongoing_requests")
    problems: list[Problem] = []
    warnings = list(_check_batches(cls, name, most))
    all_declared = read_declared(cls)
    notes = list(_note_single(all_declared, name))
    for declared in all_declared:
        where = f"{name}.warmup_inputs, line {declared.line}"
        problems += _check_keywords(declared, where)
        problems += _check_target(cls, declared, where)
        warnings += _check_thread(cls, declared, where)
        warnings += _check_watchdog(cls, declared, where, longest_s)
        notes += _note_constants(cls, declared, where)
        if isinstance(most, int) and (declared.concurrency or 1) > most:
            problems.append(
                Problem(
                    where=where,
                    what=f"the input makes {declared.concurrency} calls at once, but "
                    f"max_ongoing_requests of the deployment is {most}: Serve never sends more "
                    f"than {most} calls at the same time",
                    fix=f"set max_ongoing_requests: {declared.concurrency} for {name}, or "
                    f"declare a concurrency of at most {most}",
                )
            )
    return Checked(problems=tuple(problems), warnings=tuple(warnings), notes=tuple(notes))


SIZED = frozenset({"args", "kwargs", "json"})
"""Keyword arguments of `Input` whose values have sizes that a build varies."""


def _note_single(all_declared: Sequence[DeclaredInput], name: str) -> Iterator[Problem]:
    """Yield a note about each target with one input, whose sizes can therefore not vary."""
    targets = Counter(declared.target for declared in all_declared)
    for declared in all_declared:
        is_single = declared.made_by == "Input" and not declared.is_repeated
        if not is_single or targets[declared.target] > 1 or declared.target is None:
            continue
        if "fixed" not in declared.keywords and SIZED & {*declared.keywords}:
            yield Problem(
                where=f"{name}.warmup_inputs, line {declared.line}",
                what=f"it declares one input for {declared.target!r}, so no size of its arguments "
                "varies",
                fix="the build tries other sizes and names those that compile; declare them, or "
                "pass fixed=True if requests have no other sizes",
            )


def _note_constants(cls: type, declared: DeclaredInput, where: str) -> Iterator[Problem]:
    """Yield a note about arguments that `shape_grid` fills with one number."""
    target = getattr(cls, declared.target or "", None)
    if declared.made_by != "shape_grid" or {"make", "fields"} & {*declared.keywords}:
        return
    if not isinstance(target, types.FunctionType):
        return
    required = [
        name
        for name, parameter in list(inspect.signature(target).parameters.items())[1:]
        if parameter.default is inspect.Parameter.empty
    ]
    constant = [name for name in required if not Field(axes=()).is_mask(name)]
    if constant:
        some = constant[0]
        yield Problem(
            where=where,
            what=f"shape_grid fills {', '.join(constant)} with ones, so the replay takes only the "
            "branches that ones lead to",
            fix=f'if the values matter, pass fields={{"{some}": Field(axes=..., low=0, high=9), '
            "...} with all arguments, or make=",
        )


def _check_batches(cls: type, name: str, most: Any) -> Iterator[Problem]:
    """Yield a problem if `@serve.batch` waits for more requests than Serve sends to one replica."""
    largest = max_batch_size(cls)
    if isinstance(most, int) and largest > most:
        yield Problem(
            where=name,
            what=f"@serve.batch has max_batch_size={largest}, but max_ongoing_requests of the "
            f"deployment is {most} (Serve's default is 5), so no batch can be larger than {most}",
            fix=f"set max_ongoing_requests: {largest} for {name}, or max_batch_size={most}",
        )


KEYWORDS = {
    "Input": tuple(field.name for field in dataclasses.fields(Input)),
    "shape_grid": tuple(inspect.signature(shape_grid).parameters),
}


def _check_keywords(declared: DeclaredInput, where: str) -> Iterator[Problem]:
    known = KEYWORDS[declared.made_by]
    for keyword in declared.keywords:
        if keyword not in known:
            yield Problem(
                where=where,
                what=f"{declared.made_by} has no argument {keyword!r}",
                fix=did_you_mean(keyword, known) or f"its arguments: {', '.join(known)}",
            )


def _find_handler(cls: type, declared: DeclaredInput) -> types.FunctionType | None:
    """Return the method that an input calls, unless it calls the model on a thread of its own."""
    is_http = HTTP_TARGET.fullmatch(declared.target or "") is not None
    # A request calls `__call__`. For an ASGI app, Ray adds an async `__call__`.
    name = "__call__" if is_http else declared.target or ""
    called = inspect.getattr_static(cls, name, None)
    if not isinstance(called, types.FunctionType):
        return None
    return None if "on_model_thread" in called.__code__.co_names else called


def _check_thread(cls: type, declared: DeclaredInput, where: str) -> Iterator[Problem]:
    """Yield a problem for a sync target, because Serve runs each request in a new thread."""
    called = _find_handler(cls, declared)
    if called is None or runs_on_loop(called):
        return
    yield Problem(
        where=where,
        what=f"{called.__name__!r} is a sync method: Serve runs each request of a sync handler in "
        "a new thread, and concurrent calls can make a compiled model compile again",
        fix="make the handler async, or call the model with `await self.on_model_thread(...)`; "
        "ignore this warning if an async handler calls the method",
    )


def _check_watchdog(
    cls: type, declared: DeclaredInput, where: str, longest_s: float
) -> Iterator[Problem]:
    """Yield a problem if a call may block the event loop for longer than Serve's watchdog waits."""
    called = _find_handler(cls, declared)
    if called is None or not runs_on_loop(called) or longest_s <= (most_s := longest_block_s()):
        return
    yield Problem(
        where=where,
        what=f"input_deadline_s permits a compile of {longest_s:.0f} s, and {called.__name__!r} "
        f"runs on the event loop: if it blocks the loop for more than {most_s:.0f} s, Serve's "
        "watchdog would end the start, which then waits for another probe",
        fix=f"call the model with `await self.on_model_thread(...)`, or set {MOST_FAILED}: "
        '"0" in the runtime_env of the deployment',
    )


def runs_on_loop(called: types.FunctionType) -> bool:
    """Return whether Serve runs a handler on the replica's event loop."""
    return inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)


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
        yield Problem(
            where=where,
            what=f"{cls.__name__} has no method {declared.target!r}",
            fix=suggest_target(cls, declared.target),
        )


def _check_route(cls: type, verb: str, path: str, where: str) -> Iterator[Problem]:
    from ray.serve._private.http_util import ASGIAppReplicaWrapper

    target = f"{verb} {path}"
    if not issubclass(cls, ASGIAppReplicaWrapper):
        # hasattr on the class would also find the metaclass's __call__, which creates instances.
        if not any("__call__" in vars(base) for base in cls.__mro__):
            yield Problem(
                where=where,
                what=f"{target!r} is an HTTP request, but {cls.__name__} does not answer HTTP",
                fix="set a method as the target, define __call__, or use @serve.ingress",
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
