# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `metrics` command, which shows what Prometheus would read on this node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from serve_warm import node
from serve_warm.cli import FAILED, screen
from serve_warm.config import WarmupConfig, resolve

OF_A_SERVER = ("serve_warm_starts", "serve_warm_start_duration_seconds")
"""Metrics that count while a node server runs. A command would always show zeros."""

COUNTED = "_" + "total"
"""What Prometheus writes after the name of a counter."""


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@screen.state_dir_option
@click.option(
    "--catalogue", is_flag=True, help="List all metrics with their labels and help instead."
)
@screen.json_option
def metrics(
    *, names: tuple[str, ...], state_dir: str, catalogue: bool, json_file: Path | None
) -> None:
    """Show the current metrics of this node's replicas, as Prometheus would read them.

    With a NAME or a part of one, only such metrics are shown. The exit code is 1 if no metric has a
    value.
    """
    if catalogue:
        rows = [each for each in _catalogue() if _is_asked_for(each["name"], names)]
        if not rows:
            raise click.UsageError(f"no metric has {' or '.join(names)} in its name")
        if json_file is not None:
            screen.data(rows, json_file)
        else:
            for row in rows:
                labels = f"{{{','.join(row['labels'])}}}" if row["labels"] else ""
                click.echo(f"{row['name']}{labels} ({row['kind']})\n  {row['help']}")
        return
    directory = state_dir or resolve(WarmupConfig()).state_dir or node.default_directory()
    samples = [each for each in _samples(directory) if _is_asked_for(each["name"], names)]
    if json_file is not None:
        screen.data(samples, json_file)
    else:
        for each in samples:
            click.echo(node.shown(_as_prometheus(each)))
    if not samples:
        click.echo(node.shown(f"no replica in {directory} has written such a metric"), err=True)
        click.get_current_context().exit(FAILED)


def _as_prometheus(sample: dict[str, Any]) -> str:
    """Return a sample in the text format of Prometheus."""
    escape = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    labels = ",".join(
        f'{name}="{text.translate(escape)}"' for name, text in sample["labels"].items()
    )
    whole = f"{{{labels}}}" if labels else ""
    value = sample["value"]
    number = f"{value:.0f}" if value == round(value) and abs(value) < 1e15 else repr(value)
    return f"{sample['name']}{whole} {number}"


def _is_asked_for(name: str, parts: tuple[str, ...]) -> bool:
    return not parts or any(part in name for part in parts)


def _samples(directory: str) -> list[dict[str, Any]]:
    """Return the values of all metrics of the replicas with a file in a directory."""
    from serve_warm.node_server.ledger import Ledger

    settings = node.settings_of(
        state_dir=directory,
        expect="allow-idle",
        deployment=(),
        no_latch=True,
        require=node.OPTIONS["--require"][1],
        stale_s=node.OPTIONS["--stale-s"][1],
        raylet="none",
        proxy="none",
    )
    readiness = node.judge(settings, health={})
    if readiness.unread:
        raise click.ClickException(readiness.unread)
    if not readiness.replicas:
        return []
    ledger = Ledger()
    ledger.note(readiness)
    return [
        {"name": sample.name, "labels": sample.labels, "value": sample.value}
        for family in ledger.collect()
        if family.name not in OF_A_SERVER
        for sample in family.samples
    ]


def _catalogue() -> list[dict[str, Any]]:
    """Return the name, kind, labels and help of all metrics."""
    from serve_warm.metrics import METRICS
    from serve_warm.node_server.table import NODE_METRICS

    rows = [
        {
            "name": each.name + (COUNTED if each.kind == "counter" else ""),
            "kind": each.kind,
            "labels": [*node.WHO, *each.labels],
            "help": each.help,
        }
        for each in METRICS
    ]
    rows += [
        {"name": name, "kind": kind, "labels": list(labels), "help": text}
        for name, (kind, labels, text) in NODE_METRICS.items()
    ]
    return rows
