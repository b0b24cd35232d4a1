# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `metrics` command, which shows what Prometheus would read on this node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from serve_warm import node
from serve_warm.cli import FAILED, screen
from serve_warm.config import WarmupConfig, resolve

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

OF_A_SERVER = ("serve_warm_starts", "serve_warm_start_duration_seconds")
"""Metrics that count while a node server runs. A command would always show zeros."""

ENDS = {"counter": ("total",)}
"""What Prometheus adds to the name of a metric, by its kind."""


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
    families = _families(directory, names)
    if json_file is not None:
        samples = [sample for family in families for sample in family.samples]
        rows = [{"name": e.name, "labels": e.labels, "value": e.value} for e in samples]
        screen.data(rows, json_file)
    else:
        for line in _lines_of(families):
            click.echo(node.shown(line))
    if not families:
        click.echo(node.shown(f"no replica in {directory} has written such a metric"), err=True)
        click.get_current_context().exit(FAILED)


def _lines_of(families: Sequence[Metric]) -> list[str]:
    """Return the samples in the text format of Prometheus, without the help of each metric."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Asked(CollectorRegistry):
        def collect(self) -> Iterator[Metric]:
            yield from families

    text = generate_latest(Asked()).decode()
    return [line for line in text.split("\n") if line and not line.startswith("#")]


def _is_asked_for(name: str, parts: tuple[str, ...]) -> bool:
    return not parts or any(part in name for part in parts)


def _families(directory: str, names: tuple[str, ...]) -> list[Metric]:
    """Return the metrics of the replicas with a file in a directory."""
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
        family
        for family in ledger.collect()
        if family.name not in OF_A_SERVER
        and any(_is_asked_for(sample.name, names) for sample in family.samples)
    ]


def _catalogue() -> list[dict[str, Any]]:
    """Return the name, kind, labels and help of all metrics."""
    from serve_warm.metrics import METRICS
    from serve_warm.node_server.table import NODE_METRICS

    rows = [
        {
            "name": "_".join((each.name, *ENDS.get(each.kind, ()))),
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
