# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Proposed changes of a user's files: a Serve config, and declared inputs in the source.

Nothing here writes a file. A proposal keeps each line of the user's that it need not change, with
its comments.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from serve_warm._records import record
from serve_warm._regular_files import read_regular
from serve_warm.app import WRAP
from serve_warm.builder.app import Application
from serve_warm.builder.check_inputs import runs_on_loop
from serve_warm.builder.sample_values import UNKNOWN, code_of, sample_of, sample_of_schema
from serve_warm.config import environment
from serve_warm.errors import ConfigError
from serve_warm.replica.replay.routes import find_asgi_app
from serve_warm.replica.serve.application import find_users_class
from serve_warm.replica.serve.calls import max_batch_size


@record(frozen=True, kw_only=True)
class Proposal:
    """A file before and after a proposed change."""

    path: Path
    before: str | None
    """The content of the file; None if there is no file yet."""
    after: str

    def diff(self) -> str:
        """Return the change as a unified diff; empty if nothing changes."""
        before = (self.before or "").splitlines(keepends=True)
        name = str(self.path)
        lines = difflib.unified_diff(before, self.after.splitlines(keepends=True), name, name)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


# The Serve config -------------------------------------------------------------------------------


def propose_config(application: Application, path: Path, *, artifact: str | None) -> Proposal:
    """Return a Serve config that warms the application: a new one, or the given one changed.

    `path` is the file of a new one.

    Raises:
        ConfigError: the given config cannot be changed without losing something.
    """
    if application.is_from_file:
        path = Path(application.target)
        text = read_regular(str(path)).decode()
        return Proposal(path=path, before=text, after=_change_config(application, text, artifact))
    before = read_regular(str(path)).decode() if path.exists() else None
    return Proposal(path=path, before=before, after=_write_config(application, artifact))


def _write_config(application: Application, artifact: str | None) -> str:
    """Return the text of a Serve config for `module:app`."""
    target = application.target
    name = target.partition(":")[0].rpartition(".")[2]
    store = artifact or f"s3://bucket/{name}"
    mark = "" if artifact else "# "
    why = "" if artifact else "  # without it, a folder of this user serves one machine"
    lines = [
        f"# {target}, warmed by serve_warm",
        "applications:",
        f"- name: {name}",
        "  route_prefix: /",
    ]
    if application.is_wrapped or not application.warming:
        lines += [f"  import_path: {WRAP}", "  args:", f"    app: {target}"]
        lines += [f"    {mark}artifact: {store}{why}"]
        lines += ["    # on_missing: eager      # serve uncompiled code while there is no artifact"]
        lines += ["    # after_ready: eager     # and for calls that nothing foresaw"]
    else:
        lines += [f"  import_path: {target}", "  deployments:"]
        for deployment in application.warming:
            lines += [f"  - name: {deployment}", "    user_config:", "      warmup:"]
            lines += [f"        artifact: {store}"]
    return "\n".join(lines) + "\n"


def _change_config(application: Application, text: str, artifact: str | None) -> str:
    """Return a Serve config whose application is wrapped, or which has a store already."""
    found = dict(application.config)
    if found["import_path"] == WRAP:
        return text
    own = {"app": found["import_path"], **({"artifact": artifact} if artifact else {})}
    if not application.is_wrapped and application.warming:
        names = [
            name
            for name in application.warming
            if application.settings(name, environment()).artifact is None
        ]
        if not names:
            return text
        hint = f"add user_config: {{warmup: {{artifact: {artifact or 'STORE'}}}}} to {names[0]}"
        raise ConfigError(f"{', '.join(names)}: the config names no artifact", hint=hint)
    wanted = {**found, "import_path": WRAP, "args": dict(own)}
    if found.get("args"):
        wanted["args"]["args"] = found["args"]
    with contextlib.suppress(yaml.YAMLError):
        changed = _wrap_in_text(text, own)
        if yaml.safe_load(changed) == {**application.document, "applications": [wanted]}:
            return changed
    raise ConfigError(
        "this config cannot be changed by a program without losing its form",
        hint=f"set import_path: {WRAP} by hand, with these args:\n"
        + yaml.safe_dump(wanted["args"], sort_keys=False).rstrip("\n"),
    )


def _wrap_in_text(text: str, own: Mapping[str, str]) -> str:
    """Return the text of a config with another import path, and with these arguments of `wrap`."""
    applications = _member(yaml.compose(text), "applications")
    node: Any = applications.value[0] if isinstance(applications, yaml.SequenceNode) else None
    path, arguments = _member(node, "import_path"), _member(node, "args")
    if path is None:
        return text
    words = ", ".join(f"{key}: {value}" for key, value in own.items())
    changes = [(path.start_mark.index, path.end_mark.index, WRAP)]
    if arguments is None:
        column = next(key.start_mark.column for key, _ in node.value if key.value == "import_path")
        end = text.find("\n", path.end_mark.index)
        end = len(text) if end < 0 else end
        changes.append((end, end, f"\n{' ' * column}args: {{{words}}}"))
    else:
        start, stop = arguments.start_mark.index, arguments.end_mark.index
        users = text[start:stop]
        if getattr(arguments, "flow_style", True):
            changes.append((start, stop, f"{{{words}, args: {users}}}"))
        else:
            space = " " * arguments.start_mark.column
            lines = [f"{key}: {value}\n{space}" for key, value in own.items()]
            block = users.rstrip()
            more = block.replace("\n", "\n  ") + users[len(block) :]
            changes.append((start, stop, f"{''.join(lines)}args:\n{space}  {more}"))
    for start, stop, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[stop:]
    return text


def _member(node: Any, name: str) -> Any:
    """Return the value of a key in a YAML mapping's node, or None."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == name), None)


# The source -------------------------------------------------------------------------------------


def propose_inputs(application: Application) -> tuple[list[Proposal], list[str]]:
    """Return the changes that declare inputs, and why some deployments have none.

    Raises:
        ConfigError: the source of a class cannot be read.
    """
    classes: dict[Path, list[_Declared]] = {}
    left = []
    for name, deployment in sorted(application.deployments.items()):
        cls = deployment.func_or_class
        users = _find_written_class(cls) if isinstance(cls, type) else None
        if users is None or not _has_source(users):
            left.append(
                f"{name} is a function, or its source is not there: only a class in a file "
                "can declare inputs"
            )
            continue
        if vars(users).get("warmup_inputs") is not None:
            left.append(f"{name} declares inputs already")
            continue
        path = Path(inspect.getsourcefile(users) or "")
        most = int(application.option(name, "max_ongoing_requests"))
        inputs = _list_inputs(cls, users, most)
        if not inputs:
            left.append(f"{name} has no method that a request could call")
            continue
        classes.setdefault(path, []).append(_Declared(name=users.__name__, inputs=inputs))
    proposals = []
    for source, declared in classes.items():
        before = read_regular(str(source)).decode()
        after = _change_source(before, declared)
        proposals.append(Proposal(path=_short(source), before=before, after=after))
    return proposals, left


def _has_source(cls: type) -> bool:
    try:
        return bool(inspect.getsource(cls)) and "<locals>" not in cls.__qualname__
    except (OSError, TypeError):
        return False


def _find_written_class(cls: type) -> type:
    """Return the class that the user's source defines; wrapping derives others of its name."""
    users = find_users_class(cls)
    name = (users.__module__, users.__qualname__)
    return [each for each in cls.__mro__ if (each.__module__, each.__qualname__) == name][-1]


@record(frozen=True, kw_only=True)
class _Declared:
    """The inputs to declare in a class."""

    name: str
    inputs: Sequence[str]
    """Python expressions."""


def _short(path: Path) -> Path:
    """Return the path below the working directory, if it is there."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _change_source(source: str, classes: Sequence[_Declared]) -> str:
    """Return a module's source in which these classes declare inputs."""
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    edits: list[tuple[int, int, int, str]] = []  # line, first column, last column, text
    by_name = {each.name: each for each in classes}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in by_name:
            edits += _edits_of(node, by_name[node.name], lines)
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    if "serve_warm" not in names:
        after = imports[-1].end_lineno or 1 if imports else 0
        edits.append(
            (after + 1, 0, 0, "\nimport serve_warm\n" if imports else "import serve_warm\n")
        )
    for line, start, stop, text in sorted(edits, reverse=True):
        while len(lines) < line:  # a class at the end of a file
            lines[-1:] = [f"{lines[-1]}\n" if not lines[-1].endswith("\n") else lines[-1], ""]
        # ast counts columns in bytes
        old = lines[line - 1].encode()
        lines[line - 1] = (old[:start] + text.encode() + old[stop:]).decode()
    changed = "".join(lines)
    ast.parse(changed)
    return changed


def _edits_of(
    node: ast.ClassDef, declared: _Declared, lines: Sequence[str]
) -> Iterator[tuple[int, int, int, str]]:
    """Yield the edits of one class: its bases, what it compiles, and the new method."""
    bases = [ast.unparse(base) for base in node.bases]
    if not any(base.rpartition(".")[2] == "WarmupMixin" for base in bases):
        if node.bases:
            first = node.bases[0]
            yield first.lineno, first.col_offset, first.col_offset, "serve_warm.WarmupMixin, "
        else:
            line = lines[node.lineno - 1].encode()
            start = node.col_offset + len(b"class ") + len(node.name.encode())
            stop = line.index(b":", start)
            yield node.lineno, start, stop, "(serve_warm.WarmupMixin)"
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and ast.unparse(each) == "torch.compile":
            stop = each.end_col_offset or each.col_offset
            yield each.lineno, each.col_offset, stop, "serve_warm.compile"
    after = next(
        (each for each in node.body if getattr(each, "name", "") == "__init__"), node.body[-1]
    )
    space = " " * node.body[0].col_offset
    inputs = textwrap.indent("".join(f"{each}\n" for each in declared.inputs), f"{space}        ")
    method = f"\n{space}def warmup_inputs(self):\n{space}    return [\n{inputs}{space}    ]\n"
    yield (after.end_lineno or after.lineno) + 1, 0, 0, method


# The inputs -------------------------------------------------------------------------------------


def _list_inputs(cls: type, users: type, most: int) -> list[str]:
    """Return the inputs of a class as Python expressions, one or two for each handler."""
    batch = min(max_batch_size(cls), most)
    calls = list(_calls_of_routes(cls)) or list(_calls_of_methods(users))
    return [_show_input(call, concurrency) for call in calls for concurrency in sorted({1, batch})]


def _show_input(call: Mapping[str, Any], concurrency: int) -> str:
    words = [f"{name}={code_of(value)}" for name, value in call.items()]
    words += [f"concurrency={concurrency}"] if concurrency > 1 else []
    comment = "  # fill in" if any("..." in word for word in words) else ""
    text = f"serve_warm.Input({', '.join(words)}),"
    if len(text) <= WIDTH:
        return text + comment
    lines = "".join(f"\n    {word}," for word in words)
    return f"serve_warm.Input({comment}{lines}\n),"


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
            target = _fill_path(path, operation.get("parameters", ()), schema)
            content = operation.get("requestBody", {}).get("content", {})
            call: dict[str, Any] = {"target": f"{verb.upper()} {target}"}
            if "application/json" in content:
                call["json"] = sample_of_schema(content["application/json"], schema)
            elif content:
                call |= {"body": UNKNOWN, "headers": {"content-type": next(iter(content))}}
            yield call


def _fill_path(path: str, parameters: Sequence[Mapping[str, Any]], schema: Any) -> str:
    query = []
    for each in parameters:
        value = sample_of_schema(each, schema)
        text = "..." if value is UNKNOWN else quote(str(value))
        if each.get("in") == "path":
            path = path.replace(f"{{{each['name']}}}", text)
        elif each.get("in") == "query" and each.get("required"):
            query.append(f"{each['name']}={text}")
    return path + ("?" + "&".join(query) if query else "")


def _calls_of_methods(users: type) -> Iterator[dict[str, Any]]:
    """Yield calls of the methods that requests and other deployments can call."""
    source = inspect.getsource(users)
    called = {n.attr for n in ast.walk(ast.parse(_dedent(source))) if isinstance(n, ast.Attribute)}
    for name, method in vars(users).items():
        is_public = name == "__call__" or not name.startswith("_")
        if not isinstance(method, types.FunctionType) or not is_public or name in OF_SERVE:
            continue
        if name == "__call__" and _takes_request(method):
            yield _call_of_request(method)
        elif name not in called and (runs_on_loop(method) or name == "__call__"):
            samples = {
                each: sample_of(method, each)
                for each, parameter in list(inspect.signature(method).parameters.items())[1:]
                if parameter.default is inspect.Parameter.empty and parameter.kind not in VARIABLE
            }
            yield {"target": name, **({"kwargs": samples} if samples else {})}


OF_SERVE = frozenset({"check_health", "reconfigure", "warmup_inputs", "record_routing_stats"})
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _takes_request(method: types.FunctionType) -> bool:
    """Return whether a method's only argument is an HTTP request, by its annotation or name."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    if len(parameters) != 1:
        return False
    annotation = str(parameters[0].annotation)
    return "Request" in annotation or parameters[0].name in ("request", "req", "http_request")


def _call_of_request(method: types.FunctionType) -> dict[str, Any]:
    """Return the request that a handler reads, as far as its source shows it.

    The keys of a JSON body and of the query are those that the handler reads by name.
    """
    tree = ast.parse(_dedent(inspect.getsource(method)))
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


def _dedent(source: str) -> str:
    return inspect.cleandoc("\n" + source)
