# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Texts of docs/reference that come from the code, such as settings, commands and metrics."""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from serve_warm import config, report
from serve_warm.cli import COMMANDS, EXIT_CODES, serve_warm
from serve_warm.config import ENVIRONMENT_PREFIX, WarmupConfig
from serve_warm.metrics import METRICS
from serve_warm.node_server.table import NODE_METRICS

WIDTH = 88
"""Columns of the help texts."""

PAGE_WIDTH = 120
"""Columns of a page."""

SEE = {
    "cpu": "[one artifact for mixed CPUs](../guides/first-artifact.md#mixed-cpus)",
    "max_level": "[levels](../concepts/levels.md)",
    "on_missing": "[what users wait for](../concepts/readiness.md#what-users-wait-for)",
    "on_refused": "[reasons for a refusal](messages.md#reasons-for-a-refusal), and "
    "[entries against eager](../concepts/levels.md#entries-against-eager)",
    "on_deadline": "[when the deadline passes](../concepts/readiness.md#when-the-deadline-passes)",
    "on_unproven": "[when an input is proven](../concepts/readiness.md#when-an-input-is-proven)",
    "eager_sample": "[entries against eager](../concepts/levels.md#entries-against-eager)",
    "ranks": "[ranks that compute together](../guides/gpu.md#ranks-that-compute-together)",
    "node_cache_max_bytes": "[what is kept on a node](node.md#what-is-kept-on-a-node)",
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
    yield _wrap(text)
    yield ""
    facts = [f"Environment: `{ENVIRONMENT_PREFIX}{name.upper()}`."]
    if _is_section(field.annotation):
        texts = docstrings(config, field.annotation.__name__)
        for name_below, below in field.annotation.model_fields.items():
            default = _value(below.default)
            yield _wrap(f"- `{name_below}`, default {default}: {texts[name_below]}", "  ")
        yield ""
    else:
        facts.insert(0, f"Default: {_value(field.default)}.")
    if values := _values(field.annotation):
        facts.append(f"Values: {values}.")
    if name in SEE:
        facts.append(f"See {SEE[name]}.")
    yield _wrap(" ".join(facts))


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, PAGE_WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


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
    """Return a section for each command, with its help text."""
    with click.Context(serve_warm) as group:
        found = {name: serve_warm.get_command(group, name) for name in COMMANDS}
    return "\n\n".join(
        f"### {name}\n\n```text\n{_help(name, command)}\n```"
        for name, command in found.items()
        if command is not None
    )


def _help(name: str, command: click.Command) -> str:
    command = copy.copy(command)
    # The page describes both once.
    command.add_help_option = False
    command.params = [each for each in command.params if each.name != "json_file"]
    info_name = f"serve-warm {name}"
    with click.Context(command, info_name=info_name, terminal_width=WIDTH) as context:
        text = command.get_help(context)
    return "\n".join(line.rstrip() for line in text.splitlines())


def exit_codes() -> str:
    """Return the table of exit codes from the end of `serve-warm --help`."""
    rows = re.findall(r"^  (\d+) +(.*(?:\n {7}.*)*)", EXIT_CODES, re.MULTILINE)
    lines = [f"| {code} | {' '.join(text.split())} |" for code, text in rows]
    return "\n".join(["| code | meaning |", "|---:|---|", *lines])


def verdicts() -> str:
    texts = docstrings(report, "Verdict")
    lines = [f"| `{verdict.value}` | {texts[verdict.name]} |" for verdict in report.Verdict]
    return "\n".join(["| verdict | meaning |", "|---|---|", *lines])


def replica_metrics() -> str:
    """Return the table of the metrics of each replica, which Ray and the node server export."""
    return _table((_exported(m.name, m.kind), m.labels, m.help) for m in METRICS)


def node_metrics() -> str:
    """Return the table of the metrics of a node, which only the node server exports."""
    return _table(
        (_exported(name, kind), labels, text) for name, (kind, labels, text) in NODE_METRICS.items()
    )


def _table(rows: Iterable[tuple[str, tuple[str, ...], str]]) -> str:
    lines = ["| name and labels | meaning |", "|---|---|"]
    for name, labels, text in rows:
        shown = f"{{{', '.join(labels)}}}" if labels else ""
        lines.append(f"| `{name}{shown}` | {text} |")
    return "\n".join(lines)


def _exported(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name
