# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Proposed inputs: the method `warmup_inputs`, added to classes of a user's source.

A proposal only adds lines: `serve_warm.app:wrap` gives a class with this method the mixin, its
settings and its compiled code.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from serve_warm.app import LEFT_ALONE
from serve_warm.builder.app import Application
from serve_warm.builder.check_inputs import list_handlers, runs_on_loop
from serve_warm.builder.proposals import Proposal, read_source, split_lines
from serve_warm.builder.sample_values import UNKNOWN, code_of, sample_of, sample_of_schema
from serve_warm.errors import ConfigError
from serve_warm.private_apis.ray_serve import batch_size_of
from serve_warm.replica.replay.routes import find_asgi_app, find_routes
from serve_warm.replica.serve.application import find_users_class


def propose_inputs(application: Application) -> tuple[list[Proposal], list[str]]:
    """Return the changes that declare inputs, and why some deployments have none."""
    found: dict[Path, list[tuple[type, list[str]]]] = {}
    left = []
    for name, deployment in sorted(application.deployments.items()):
        cls = deployment.func_or_class
        users = _find_written_class(cls) if isinstance(cls, type) else None
        why = _why_left(users)
        inputs = (
            []
            if why or users is None
            else list_inputs(cls, users, int(application.option(name, "max_ongoing_requests")))
        )
        if users is None or not inputs:
            left.append(f"{name} {why or 'has no method that a request could call'}")
        elif (users, inputs) not in found.setdefault(_source_of(users), []):
            found[_source_of(users)].append((users, inputs))
    proposals = []
    for path, classes in found.items():
        try:
            text, encoding = read_source(path)
            after = text
            for users, inputs in classes:
                after = _add_method(after, users, inputs)
        except (ConfigError, SyntaxError, ValueError) as error:
            left.append(f"{path} cannot be changed by a program: {error}")
            continue
        shown = path.relative_to(Path.cwd())
        proposals.append(Proposal(path=shown, before=text, after=after, encoding=encoding))
    return proposals, left


def _find_written_class(cls: type) -> type:
    """Return the class that the user's source defines; wrapping derives others of its name."""
    users = find_users_class(cls)
    name = (users.__module__, users.__qualname__)
    return [each for each in cls.__mro__ if (each.__module__, each.__qualname__) == name][-1]


def _why_left(users: type | None) -> str:
    """Return why a class gets no inputs; empty if it may."""
    if users is None or not _has_source(users):
        return "is a function, or its source is not there: only a class in a file declares inputs"
    if f"{users.__module__}.".startswith(LEFT_ALONE):
        return "is left alone: Ray Serve LLM has its own start-up and caches"
    if not _source_of(users).is_relative_to(Path.cwd()):
        return f"is in {_source_of(users)}, which is not below the working directory"
    declares = getattr(users, "warmup_inputs", None)
    return "declares inputs already" if _is_users(declares) else ""


def _has_source(users: type) -> bool:
    try:
        return bool(inspect.getsource(users)) and "<locals>" not in users.__qualname__
    except (OSError, TypeError):
        return False


def _is_users(method: Any) -> bool:
    return method is not None and not str(method.__module__).startswith("serve_warm.")


def _source_of(users: type) -> Path:
    return Path(inspect.getsourcefile(users) or "").absolute()


def _add_method(text: str, users: type, inputs: Sequence[str]) -> str:
    """Return a module's source in which a class declares inputs.

    Raises:
        ValueError: the class is not found, or has no lines of its own.
        SyntaxError: the module is not Python.
    """
    first_line = inspect.getsourcelines(users)[1]
    nodes = [
        each
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.ClassDef) and each.name == users.__name__
    ]
    near = [each for each in nodes if _first_line(each) == first_line]
    chosen = near or nodes
    if len(chosen) != 1 or chosen[0].body[0].lineno == chosen[0].lineno:
        raise ValueError(f"class {users.__qualname__} is not on lines of its own")
    (node,) = chosen
    lines = split_lines(text)
    newline = "\r\n" if lines[node.lineno - 1].endswith("\r\n") else "\n"
    body_line = _first_line(node.body[0])
    space = re.match(r"[ \t]*", lines[body_line - 1]).group()  # type: ignore[union-attr]
    unit = "\t" if space.startswith("\t") else "    "
    after = next((e for e in node.body if getattr(e, "name", "") == "__init__"), node.body[-1])
    method = [
        "",
        "def warmup_inputs(self):",
        f"{unit}from serve_warm import Input",
        "",
        f"{unit}return [",
        *(f"{unit}{unit}{line}" for each in inputs for line in each.split("\n")),
        f"{unit}]",
    ]
    added = "".join(f"{space + line if line else ''}{newline}" for line in method)
    at = after.end_lineno or after.lineno
    if not lines[at - 1].endswith("\n"):
        lines[at - 1] += newline
    changed = "".join([*lines[:at], added, *lines[at:]])
    ast.parse(changed)
    return changed


def _first_line(node: ast.stmt) -> int:
    decorators: Sequence[ast.expr] = getattr(node, "decorator_list", ())
    return min([node.lineno, *(each.lineno for each in decorators)])


# The inputs -------------------------------------------------------------------------------------


def list_inputs(cls: type, users: type, most: int) -> list[str]:
    """Return the inputs of a class as Python expressions, one or two for each handler.

    A handler that forms a batch has a second input, of the largest batch, and at most `most` calls.
    """
    batches = {
        name: size[0]
        for kind in reversed(users.__mro__)
        for name, each in vars(kind).items()
        if (size := batch_size_of(each)) is not None and size[1]  # of requests, and not of others
    }
    routes = find_routes(cls)
    functions = [] if routes is None else routes.list_functions()
    calls = [(call, functions) for call in _calls_of_routes(cls)]
    calls = calls or [(call, [method]) for call, method in _calls_of_methods(users)]
    found = []
    for call, handlers in calls:
        names = {name for each in handlers for name in (each.__name__, *each.__code__.co_names)}
        batch = min(max([1, *(size for name, size in batches.items() if name in names)]), most)
        found += [_show_input(call, count) for count in sorted({1, batch})]
    return found


def _show_input(call: Mapping[str, Any], concurrency: int) -> str:
    words = [f"{name}={code_of(value)}" for name, value in call.items()]
    words += [f"concurrency={concurrency}"] if concurrency > 1 else []
    comment = "  # fill in" if any("..." in word for word in words) else ""
    text = f"Input({', '.join(words)}),"
    if len(text) <= WIDTH:
        return text + comment
    lines = "".join(f"\n    {word}," for word in words)
    return f"Input({comment}{lines}\n),"


WIDTH = 86
"""Longest input in one line, so that lines in a method have at most 100 columns."""


def _calls_of_routes(cls: type) -> Iterator[dict[str, Any]]:
    """Yield the requests that a FastAPI app documents."""
    app = find_asgi_app(cls)
    if not hasattr(app, "openapi"):
        return
    schema = app.openapi()
    for path, verbs in schema.get("paths", {}).items():
        for verb, operation in verbs.items():
            if verb.upper() not in ("GET", "POST", "PUT", "PATCH"):
                continue
            parameters = operation.get("parameters", ())
            target = _fill_path(path, parameters, schema)
            content = operation.get("requestBody", {}).get("content", {})
            call: dict[str, Any] = {"target": f"{verb.upper()} {target}"}
            headers = {
                "cookie" if each["in"] == "cookie" else each["name"]: UNKNOWN
                for each in parameters
                if each.get("in") in ("header", "cookie") and each.get("required")
            }
            if operation.get("security"):
                headers["authorization"] = UNKNOWN
            if "application/json" in content:
                call["json"] = sample_of_schema(content["application/json"], schema)
            elif content:
                call["body"] = UNKNOWN
                headers["content-type"] = next(iter(content))
            yield call | ({"headers": headers} if headers else {})


def _fill_path(path: str, parameters: Sequence[Mapping[str, Any]], schema: Any) -> str:
    query = []
    for each in parameters:
        value = sample_of_schema(each, schema)
        values = value if isinstance(value, list) else [value]
        texts = ["..." if one is UNKNOWN else quote(str(one)) for one in values]
        if each.get("in") == "path":
            path = path.replace(f"{{{each['name']}}}", texts[0])
        elif each.get("in") == "query" and each.get("required"):
            query += [f"{each['name']}={text}" for text in texts]
    return path + ("?" + "&".join(query) if query else "")


def _calls_of_methods(users: type) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield calls of the methods that requests and other deployments can call."""
    for name, method in list_handlers(users):
        if name == "__call__" and _takes_request(method):
            yield _call_of_request(method), method
        elif runs_on_loop(method) or name == "__call__":
            parameters = list(inspect.signature(method).parameters.values())[1:]
            needed = [
                each
                for each in parameters
                if each.default is each.empty and each.kind not in VARIABLE
            ]
            samples = {each.name: sample_of(method, each.name) for each in needed}
            if batch_size_of(method) is not None:  # one call has one item
                samples = {
                    each: value[0] if isinstance(value, list) else UNKNOWN
                    for each, value in samples.items()
                }
            by_place = [e.name for e in needed if e.kind is e.POSITIONAL_ONLY]
            call: dict[str, Any] = {"target": name}
            if by_place:
                call["args"] = tuple(samples.pop(each) for each in by_place)
            yield call | ({"kwargs": samples} if samples else {}), method


VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _takes_request(method: Any) -> bool:
    """Return whether a method's only argument is an HTTP request, by its annotation or name."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    if len(parameters) != 1:
        return False
    annotation = str(parameters[0].annotation)
    return "Request" in annotation or parameters[0].name in ("request", "req", "http_request")


def _call_of_request(method: Any) -> dict[str, Any]:
    """Return the request that a handler reads, as far as its source shows it.

    The keys of a JSON body and of the query are those that the handler reads by name.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, SyntaxError):
        return {"target": "POST /", "json": UNKNOWN}
    text = ast.unparse(tree)
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    bodies = {
        ast.unparse(target)
        for node in assigned
        if ".json()" in ast.unparse(node.value)
        for target in node.targets
    }
    read = [_read_key(node) for node in ast.walk(tree)]
    if ".json()" in text:
        keys = {key: UNKNOWN for of, key in read if of in bodies}
        return {"target": "POST /", "json": keys or UNKNOWN}
    if ".form(" in text:
        form = {"content-type": "application/x-www-form-urlencoded"}
        return {"target": "POST /", "body": UNKNOWN, "headers": form}
    if ".body()" in text or ".stream()" in text:
        return {"target": "POST /", "body": UNKNOWN}
    query = dict.fromkeys(f"{key}=..." for of, key in read if of.endswith(".query_params"))
    return {"target": f"GET /?{'&'.join(query)}" if query else "GET /"}


def _read_key(node: ast.AST) -> tuple[str, str]:
    """Return the object and the key of `object["key"]` or `object.get("key")`; else empty ones."""
    key: ast.expr | None = None
    of: ast.expr | None = None
    if isinstance(node, ast.Subscript):
        of, key = node.value, node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        of, key = (node.func.value, node.args[0]) if node.func.attr == "get" else (None, None)
    if of is None or not isinstance(key, ast.Constant) or not isinstance(key.value, str):
        return "", ""
    return ast.unparse(of), key.value
