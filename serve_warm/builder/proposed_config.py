# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A proposed Serve config that warms an application: a new one, or the given one changed.

A changed config keeps each line of the user's that it need not change, with its comments.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from serve_warm.app import WRAP
from serve_warm.builder.app import OF_RAY_SERVICE, Application
from serve_warm.builder.proposals import Proposal, read_source, split_lines
from serve_warm.config import environment
from serve_warm.errors import ConfigError


def propose_config(application: Application, path: Path, *, artifact: str | None) -> Proposal:
    """Return a Serve config that warms the application: a new one, or the given one changed.

    `path` is the file of a new one.

    Raises:
        ConfigError: the given config cannot be changed without losing something.
    """
    if application.is_from_file:
        path = Path(application.target)
        text, encoding = read_source(path)
        after = _change_config(application, text, artifact)
        return Proposal(path=path, before=text, after=after, encoding=encoding)
    before = read_source(path)[0] if path.exists() else None
    return Proposal(path=path, before=before, after=_write_config(application, artifact))


def _write_config(application: Application, artifact: str | None) -> str:
    """Return the text of a Serve config for `module:app`."""
    target = application.target
    name = target.partition(":")[0].rpartition(".")[2]
    example = f"artifact: s3://bucket/{name}"
    stored = f"artifact: {_quote(artifact)}" if artifact else f"# {example}"
    lines = [
        f"# {target}, warmed by serve_warm",
        "applications:",
        f"- name: {_quote(name)}",
        "  route_prefix: /",
    ]
    if application.is_wrapped or not application.warming:
        why = "" if artifact else "  # without it, a folder of this user serves one machine"
        lines += [f"  import_path: {WRAP}", "  args:", f"    app: {_quote(target)}"]
        lines += [f"    {stored}{why}"]
        lines += ["    # on_missing: eager      # serve uncompiled code while there is no artifact"]
        lines += ["    # after_ready: eager     # and for calls that nothing foresaw"]
    else:
        lines += [f"  import_path: {_quote(target)}", "  deployments:"]
        for deployment in application.warming:
            lines += [f"  - name: {_quote(deployment)}", "    user_config:", "      warmup:"]
            if artifact:
                lines += [f"        {stored}"]
            else:
                lines[-1] += " {}"
                lines += [f"        {stored}  # in place of {{}}"]
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    """Return a text as a YAML scalar, quoted if it would mean something else."""
    dumped: str = yaml.safe_dump(text, width=10_000, allow_unicode=True)
    return dumped.partition("\n")[0]


def _change_config(application: Application, text: str, artifact: str | None) -> str:
    """Return a Serve config whose application is wrapped, or which has a store already."""
    found = dict(application.config)
    if found["import_path"] == WRAP:
        stored = (found.get("args") or {}).get("artifact")
        if artifact and artifact != stored:
            raise ConfigError(
                f"the config reads {stored or 'a folder of this user'}, not {artifact}",
                hint=f"set args.artifact: {artifact}",
            )
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
    whole = {**application.document, "applications": [wanted]}
    with contextlib.suppress(yaml.YAMLError):
        changed = _wrap_in_manifest(text, own, whole)
        if changed is None and yaml.safe_load(plain := _wrap_in_text(text, own)) == whole:
            changed = plain
        if changed is not None:
            return changed
    raise ConfigError(
        "this config cannot be changed by a program without losing its form",
        hint=f"set import_path: {WRAP} by hand, with these args:\n"
        + yaml.safe_dump(wanted["args"], sort_keys=False).rstrip("\n"),
    )


def _wrap_in_manifest(text: str, own: Mapping[str, str], whole: Mapping[str, Any]) -> str | None:
    """Return a manifest whose RayService has the changed config `whole`; None if it has none.

    The config is a literal block (`serveConfigV2: |`) in it. All other lines stay.
    """
    blocks = [_block_of(each) for each in yaml.compose_all(text)]
    place = next((number for number, each in enumerate(blocks) if each is not None), None)
    start = 0 if place is None else text.find("\n", blocks[place].start_mark.index) + 1
    if place is None or not start:
        return None
    block = blocks[place]
    lines = split_lines(text[start : block.end_mark.index])
    indent = re.match(" *", next((each for each in lines if each.strip()), ""))
    space = "" if indent is None else indent.group()
    before = "".join(each.removeprefix(space) for each in lines)
    after = _wrap_in_text(before, own)
    lines = [f"{space}{each}" if each.strip("\r\n") else each for each in split_lines(after)]
    new = "".join(lines)
    changed = text[:start] + new + text[block.end_mark.index :]
    found, wanted = list(yaml.safe_load_all(changed)), list(yaml.safe_load_all(text))
    written = found[place]["spec"][OF_RAY_SERVICE]
    found[place]["spec"][OF_RAY_SERVICE] = yaml.safe_load(written)
    wanted[place]["spec"][OF_RAY_SERVICE] = whole
    return changed if found == wanted else None


def _block_of(document: Any) -> Any:
    """Return the node of a RayService's config; None if it has none, or in another form."""
    block = _member(_member(document, "spec"), OF_RAY_SERVICE)
    is_service = getattr(_member(document, "kind"), "value", "") == "RayService"
    return block if is_service and getattr(block, "style", None) == "|" else None


def _wrap_in_text(text: str, own: Mapping[str, str]) -> str:
    """Return the text of a config with another import path, and with these arguments of `wrap`."""
    applications = _member(yaml.compose(text), "applications")
    node: Any = applications.value[0] if isinstance(applications, yaml.SequenceNode) else None
    path, arguments = _member(node, "import_path"), _member(node, "args")
    if path is None:
        return text
    words = ", ".join(f"{key}: {_quote(value)}" for key, value in own.items())
    newline = "\r\n" if "\r\n" in text else "\n"
    changes = [(path.start_mark.index, path.end_mark.index, WRAP)]
    if arguments is not None and not arguments.value:  # args: {}
        start, stop = arguments.start_mark.index, arguments.end_mark.index
        changes.append((start, stop, f"{{{words}}}"))
    elif arguments is None:
        column = next(key.start_mark.column for key, _ in node.value if key.value == "import_path")
        end = text.find(newline, path.end_mark.index)
        end = len(text) if end < 0 else end
        changes.append((end, end, f"{newline}{' ' * column}args: {{{words}}}"))
    else:
        start, stop = arguments.start_mark.index, arguments.end_mark.index
        users = text[start:stop]
        if getattr(arguments, "flow_style", True):
            changes.append((start, stop, f"{{{words}, args: {users}}}"))
        else:
            space = " " * arguments.start_mark.column
            lines = [f"{key}: {_quote(value)}{newline}{space}" for key, value in own.items()]
            own_lines = users.split("\n")
            while _is_of_next_key(own_lines[-1], arguments.start_mark.column):
                own_lines.pop()
            users = "\n".join(own_lines).rstrip("\r")
            stop = start + len(users)
            more = re.sub(r"\n(?=[^\r\n])", "\n  ", users)
            changes.append((start, stop, f"{''.join(lines)}args:{newline}{space}  {more}"))
    for start, stop, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[stop:]
    return text


def _is_of_next_key(line: str, column: int) -> bool:
    """Return whether a line after a block is blank, or a comment that is not indented as it is."""
    text = line.strip()
    return not text or (text.startswith("#") and len(line) - len(line.lstrip()) < column)


def _member(node: Any, name: str) -> Any:
    """Return the value of a key in a YAML mapping's node, or None."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == name), None)
