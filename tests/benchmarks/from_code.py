# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Texts of docs/reference that come from the code: settings, commands, exit codes, verdicts."""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
import json
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from serve_warm import config, report
from serve_warm.cli import COMMANDS, EXIT_CODES, serve_warm
from serve_warm.config import ENVIRONMENT_PREFIX, WarmupConfig

WIDTH = 88
"""Columns of the help texts."""

SEE = {
    "cpu": "[one artifact for mixed CPUs](../guides/first-artifact.md#mixed-cpus)",
    "parts": "[levels](../concepts/levels.md)",
    "on_refused": "[entries against eager](../concepts/levels.md#entries-against-eager)",
    "on_deadline": "[when the deadline passes](../concepts/readiness.md#when-the-deadline-passes)",
    "on_uncovered": "[when an input is proven](../concepts/readiness.md#when-an-input-is-proven)",
    "parity": "[entries against eager](../concepts/levels.md#entries-against-eager)",
    "pgo": "[static buckets or one dynamic graph]"
    "(../concepts/levels.md#static-buckets-or-one-dynamic-graph)",
    "ranks": "[ranks that compute together](../guides/gpu.md#ranks-that-compute-together)",
    "node_cache_dir": "[what is kept on a node](node.md#what-is-kept-on-a-node)",
    "overlap": "[work during `__init__`](../concepts/readiness.md#work-during-__init__)",
    "state_dir": "[the probe](node.md#the-probe)",
}
"""Links to the pages that explain settings."""


def docstrings(module: ModuleType, name: str) -> dict[str, str]:
    """Return the text under each field or member of a class, each as one line."""
    tree = ast.parse(inspect.getsource(module))
    [body] = [n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    found = {}
    for field, text in itertools.pairwise(body):
        target = field.targets[0] if isinstance(field, ast.Assign) else None
        target = field.target if isinstance(field, ast.AnnAssign) else target
        if (
            isinstance(target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[target.id] = " ".join(str(text.value.value).split())
    return found


def settings() -> str:
    """Return a section for each field of WarmupConfig."""
    texts = docstrings(config, "WarmupConfig")
    return "\n\n".join(
        "\n".join(_setting(name, field, texts[name]))
        for name, field in WarmupConfig.model_fields.items()
    )


def _setting(name: str, field: Any, text: str) -> Iterator[str]:
    yield f"### `{name}`"
    yield ""
    yield text
    yield ""
    if _is_section(field.annotation):
        yield "- Fields:"
        texts = docstrings(config, field.annotation.__name__)
        for name_below, below in field.annotation.model_fields.items():
            default = _value(below.default)
            yield f"  - `{name_below}`, default {default}: {texts[name_below]}"
    else:
        yield f"- Default: {_value(field.default)}"
    if values := _values(field.annotation):
        yield f"- Values: {values}"
    yield f"- Environment: `{ENVIRONMENT_PREFIX}{name.upper()}`"
    if name in SEE:
        yield f"- See {SEE[name]}"


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _value(default: Any) -> str:
    if default is None or default is PydanticUndefined:
        return "none"
    if isinstance(default, float):
        return f"`{default:.16g}`"
    return f"`{json.dumps(default)}`".replace('"', "")


def _values(annotation: Any) -> str:
    """Return the values that a `Literal` field allows, or an empty string for any other type.

    >>> from typing import Literal
    >>> _values(Literal["on", "off"])
    '`on`, `off`'
    """
    choices = re.findall(r"'(\w+)'", str(annotation)) if "Literal" in str(annotation) else []
    return ", ".join(f"`{choice}`" for choice in choices)


def commands() -> str:
    """Return a section for each command, with the output of its `--help`."""
    with click.Context(serve_warm) as group:
        found = {name: serve_warm.get_command(group, name) for name in COMMANDS}
    return "\n\n".join(
        f"### {name}\n\n```text\n{_help(name, command)}\n```"
        for name, command in found.items()
        if command is not None
    )


def _help(name: str, command: click.Command) -> str:
    command = copy.copy(command)
    vars(command)["_help_option"] = None  # click keeps the option of the first context
    with click.Context(
        command,
        info_name=f"serve-warm {name}",
        terminal_width=WIDTH,
        help_option_names=["-h", "--help"],
    ) as context:
        text = command.get_help(context)
    return "\n".join(line.rstrip() for line in text.splitlines())


def exit_codes() -> str:
    """Return the table of exit codes from the end of `serve-warm --help`."""
    rows = re.findall(r"^  (\d+) +(.*(?:\n {7}.*)*)", EXIT_CODES, re.MULTILINE)
    lines = [f"| {code} | {' '.join(text.split())} |" for code, text in rows]
    return "\n".join(["| code | meaning |", "|---:|---|", *lines])


def verdicts() -> str:
    """Return the table of verdicts."""
    texts = docstrings(report, "Verdict")
    lines = [f"| `{verdict.value}` | {texts[verdict.name]} |" for verdict in report.Verdict]
    return "\n".join(["| verdict | meaning |", "|---|---|", *lines])
