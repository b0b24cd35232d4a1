# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of `warmup_inputs` that read only its source, and run no code from the application."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from serve_warm._records import record
from serve_warm.builder.app import Application
from serve_warm.builder.problems import CheckFindings, Problem
from serve_warm.errors import InputError, did_you_mean
from serve_warm.inputs import HTTP_TARGET, Buckets, Field, Input, shape_grid
from serve_warm.replica.replay.routes import find_routes
from serve_warm.replica.serve.calls import max_batch_size, suggest_target
from serve_warm.replica.serve.loop_blocks import MOST_FAILED, longest_block_s

LEARNS = "it declares no inputs, so they come from a plan of its traffic"
"""A note about a wrapped application, which is no news to somebody who has the plan."""


def check_inputs(application: Application, name: str, *, longest_s: float = 0.0) -> CheckFindings:
    """Return the problems with declared inputs, as far as the source of the class shows them.

    `longest_s` is how long one call may take in a start.
    """
    from serve_warm.replica.serve.deployment import WarmupMixin

    cls = application.warming[name]
    if cls.warmup_inputs is WarmupMixin.warmup_inputs:
        found = Problem(
            where=name,
            what="it declares no inputs",
            fix="define warmup_inputs(self), for example: "
            "return shape_grid(self.embed, self.buckets)",
        )
        return CheckFindings(problems=(found,))
    if cls.warmup_inputs is None:  # of an application that is wrapped
        found = Problem(
            where=name,
            what=LEARNS,
            fix="serve-warm plan -o plan.yaml, and serve-warm build --plan plan.yaml",
        )
        return CheckFindings(notes=(found,))
    nothing = returns_nothing(cls)
    if nothing:
        found = Problem(
            where=f"{name}.warmup_inputs",
            what=f"it returns {nothing}, and without inputs the start fails",
            fix="return a list of Input, for example shape_grid(self.embed, self.buckets)",
        )
        return CheckFindings(problems=(found,))
    most = application.option(name, "max_ongoing_requests")
    problems: list[Problem] = []
    warnings = list(_check_batches(cls, name, most))
    all_declared = read_declared(cls)
    notes = list(_note_single(all_declared, name))
    if any(declared.target is None for declared in all_declared):
        warnings += _check_handlers(cls, name)
    for declared in all_declared:
        where = f"{name}.warmup_inputs, line {declared.line}"
        problems += _check_keywords(declared, where)
        problems += _check_target(cls, declared, where)
        if declared.is_open or OPEN_PARAMETER.search(declared.target or ""):
            what = "the input has `...` in place of a value"
            problems.append(Problem(where=where, what=what, fix="fill in what requests send"))
        problems += _check_arguments(cls, declared, where)
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
    return CheckFindings(problems=tuple(problems), warnings=tuple(warnings), notes=tuple(notes))


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


def _check_arguments(cls: type, declared: DeclaredInput, where: str) -> Iterator[Problem]:
    """Yield a problem if a method does not take the arguments that the source shows."""
    method = inspect.getattr_static(cls, declared.target or "", None)
    if not isinstance(method, types.FunctionType) or declared.arguments is None:
        return
    from serve_warm.private_apis.ray_serve import batch_size_of

    # A decorator may pass arguments of its own, and an instance may have another function.
    is_wrapped = hasattr(method, "__wrapped__") and batch_size_of(method) is None
    if is_wrapped or assigns(cls, method.__name__):
        return
    count, names = declared.arguments
    try:
        signature = inspect.signature(method)
        if not declared.is_partial:
            signature.bind(None, *[None] * count, **dict.fromkeys(names))
        else:
            signature.bind_partial(None, *[None] * count, **dict.fromkeys(names))
    except TypeError as error:
        known = list(signature.parameters)[1:]
        wrong = next((name for name in names if name not in known), "")
        shown = str(signature.replace(parameters=list(signature.parameters.values())[1:]))
        yield Problem(
            where=where,
            what=f"{declared.target!r} cannot be called with these arguments: {error}",
            fix=did_you_mean(wrong, known) or f"its arguments: {shown}",
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
    if called is not None and not runs_on_loop(called):
        yield _of_sync_method(called, where)


def _of_sync_method(called: types.FunctionType, where: str) -> Problem:
    return Problem(
        where=where,
        what=f"{called.__name__!r} is a sync method: Serve runs each request of a sync handler in "
        "a new thread, and concurrent calls can make a compiled model compile again",
        fix="make the handler async, or call the model with `await self.on_model_thread(...)`; "
        "ignore this warning if an async handler calls the method",
    )


OF_SERVE = frozenset({"check_health", "reconfigure", "warmup_inputs", "record_routing_stats"})
"""Public methods that Serve and serve_warm call, and no request."""


def list_handlers(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield the methods of a class that requests and other deployments may call.

    A method that another method of the class calls is no handler, as far as the source shows.
    """
    users = [each for each in cls.__mro__[:-1] if not _is_foreign(each)]
    parsed = [each for each in map(_parse, users) if each is not None]
    nodes = itertools.chain(*(ast.walk(tree) for tree, _ in parsed))
    called = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    methods = {name: each for kind in reversed(users) for name, each in vars(kind).items()}
    for name, method in methods.items():
        is_public = name == "__call__" or not name.startswith("_")
        if isinstance(method, types.FunctionType) and is_public and name not in OF_SERVE | called:
            yield name, method


def _is_foreign(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("ray", "serve_warm")


def _check_handlers(cls: type, name: str) -> Iterator[Problem]:
    """Yield the problems with sync methods that requests may call, if targets are not known."""
    for _, method in list_handlers(cls):
        if not runs_on_loop(method) and "on_model_thread" not in method.__code__.co_names:
            yield _of_sync_method(method, name)


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
    from serve_warm.private_apis.ray_serve import is_asgi_app

    target = f"{verb} {path}"
    if not is_asgi_app(cls):
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


# What the source declares -------------------------------------------------------------------------


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
    arguments: tuple[int, tuple[str, ...]] | None
    """The number of positional arguments and the names of the others, with which the target is
    called. None if the source does not show them."""
    is_partial: bool
    """Whether there may be more arguments than `arguments`."""
    is_open: bool
    """Whether a value is `...`, as `serve-warm init` and the report propose it."""
    line: int
    """The line number of the call in its file."""


DECLARING = {"Buckets": Buckets, "Field": Field, "Input": Input, "shape_grid": shape_grid}
"""What a method imports from serve_warm to declare inputs."""


class _Unknown(Exception):
    """The source does not show the value of an expression.

    Only constants, module-level names and class attributes count as known. Values that `__init__`
    sets or a loop creates are skipped, so all findings are certain.
    """


def read_declared(cls: type) -> list[DeclaredInput]:
    """Return the inputs that a class declares; empty if the source is missing or unclear."""
    function = inspect.getattr_static(cls, "warmup_inputs", None)
    parsed = _parse(function)
    if not isinstance(function, types.FunctionType) or parsed is None:
        return []
    tree, first_line = parsed
    scope = _Scope(cls, function, tree)
    loops = [node for node in ast.walk(tree) if isinstance(node, LOOPS)]
    repeated = {id(node) for loop in loops for node in ast.walk(loop)}
    return [
        declared
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for declared in _declared_by(node, scope, first_line, is_repeated=id(node) in repeated)
    ]


LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.GeneratorExp)


def _read_loops(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Return the values of each variable that only one loop over a written tuple or list sets.

    Nothing is returned for a method with branches, where a call need not be made for each value.
    """
    nodes = list(ast.walk(tree))
    loops = [each for each in nodes if isinstance(each, (ast.For, ast.comprehension))]
    if any(isinstance(each, BRANCHES) for each in nodes) or any(
        isinstance(each, ast.comprehension) and each.ifs for each in loops
    ):
        return {}
    stored = Counter(
        each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    )
    stored.update(each.arg for each in nodes if isinstance(each, ast.arg))
    pairs = [pair for loop in loops for pair in _pairs(loop.target, loop.iter)]
    return {name: found for name, found in pairs if found is not None and stored[name] == 1}


BRANCHES = (ast.If, ast.IfExp, ast.Match, ast.Try, ast.While)


def _pairs(target: ast.expr, iterated: ast.expr) -> Iterator[tuple[str, list[ast.expr] | None]]:
    """Yield each variable of a loop with its values, or with None if they are not written there."""
    rows = iterated.elts if isinstance(iterated, (ast.Tuple, ast.List, ast.Set)) else None
    if isinstance(target, ast.Name):
        yield target.id, rows
    elif isinstance(target, (ast.Tuple, ast.List)):
        for number, each in enumerate(target.elts):
            columns = [
                row.elts[number]
                for row in rows or ()
                if isinstance(row, (ast.Tuple, ast.List)) and len(row.elts) == len(target.elts)
            ]
            if isinstance(each, ast.Name):
                is_whole = rows is not None and len(columns) == len(rows)
                yield each.id, columns if is_whole else None


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
    arguments, is_partial = _arguments_of(given, is_grid=called is shape_grid)
    is_partial |= any(keyword.arg is None for keyword in node.keywords)
    for target in scope.targets(given.get("target")):
        yield DeclaredInput(
            target=target,
            concurrency=concurrency,
            keywords=tuple(keyword.arg for keyword in node.keywords if keyword.arg),
            made_by="shape_grid" if called is shape_grid else "Input",
            is_repeated=is_repeated,
            arguments=arguments,
            is_partial=is_partial,
            is_open=any(map(_is_open, given.values())),
            line=first_line + node.lineno - 1,
        )


def _arguments_of(
    given: Mapping[str, ast.expr], *, is_grid: bool
) -> tuple[tuple[int, tuple[str, ...]] | None, bool]:
    """Return the arguments of the target as the source shows them, and whether it may hide some."""
    positional, named = given.get("args"), given.get("fields" if is_grid else "kwargs")
    if is_grid and (named is None or "make" in given):
        return None, True  # made while the code runs
    is_partial = False
    count = 0
    if isinstance(positional, (ast.Tuple, ast.List)):
        is_partial = any(isinstance(each, ast.Starred) for each in positional.elts)
        count = sum(not isinstance(each, ast.Starred) for each in positional.elts)
    elif positional is not None:
        is_partial = True
    names: list[str] = []
    if isinstance(named, ast.Dict):
        for key in named.keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                names.append(key.value)
            else:
                is_partial = True
    elif named is not None:
        is_partial = True
    return (count, tuple(names)), is_partial


def _is_open(node: ast.expr) -> bool:
    """Return whether `...` stands for a value, also in a written list or mapping."""
    if isinstance(node, ast.Constant):
        return node.value is ...
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(map(_is_open, node.elts))
    return isinstance(node, ast.Dict) and any(map(_is_open, node.values))


OPEN_PARAMETER = re.compile(r"[=/]\.\.\.(?=[&/?]|$)")
"""`...` in place of a parameter in the address of a request."""


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

    def __init__(self, cls: type, function: types.FunctionType, tree: ast.Module) -> None:
        self._cls = cls
        self._looped = _read_loops(tree)
        self._imported = {
            alias.asname or alias.name: DECLARING.get(alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "serve_warm"
            for alias in node.names
        }
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
        if isinstance(node, ast.Name) and node.id in self._imported:
            return self._imported[node.id]
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

    def targets(self, node: ast.expr | None) -> list[str | None]:
        """Return the targets that an input may have: several if a loop names them.

        The target is `embed` for `self.embed`, and a string unchanged. It is None if the source
        does not show it.
        """
        found = self._looped.get(node.id) if isinstance(node, ast.Name) else None
        return [self._target(each) for each in ([node] if found is None else found)]

    def _target(self, node: ast.expr | None) -> str | None:
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
        if _is_foreign(base):
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
