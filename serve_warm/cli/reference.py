# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `metrics` command, which lists every metric and its names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from serve_warm import node
from serve_warm._records import record
from serve_warm.cli import screen
from serve_warm.metrics import METRICS


@record(frozen=True, kw_only=True)
class Row:
    """One metric, with the facts that a query needs."""

    ray: str
    """Name at Ray's endpoint; empty if Ray does not export the metric."""
    node: str
    """Name at the endpoint of a node server."""
    type: str
    labels: tuple[str, ...]
    """Labels, except those that the scrape adds."""
    unit: str
    meaning: str


def of_replicas() -> list[Row]:
    """Return the metrics that exist for each replica. Ray and the node's server export them."""
    rows = []
    for metric in METRICS:
        name = _exported(metric.name, metric.kind)
        rows.append(
            Row(
                ray=f"ray_{name}",
                node=name,
                type=metric.kind,
                labels=(*node.WHO, *metric.labels),
                unit=_unit(metric.name),
                meaning=metric.help,
            )
        )
    return rows


def of_nodes() -> list[Row]:
    """Return the metrics that exist for each node. Only the node's server exports them."""
    return [
        Row(
            ray="",
            node=_exported(name, kind),
            type=kind,
            labels=labels,
            unit=_unit(name),
            meaning=text,
        )
        for name, (kind, labels, text) in node.NODE_METRICS.items()
    ]


def _exported(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def _unit(name: str) -> str:
    """Return the unit of a metric, which Prometheus puts at the end of the name.

    >>> _unit("serve_warm_ready_timestamp_seconds")
    'seconds since the epoch'
    """
    if name.endswith("_timestamp_seconds"):
        return "seconds since the epoch"
    last = name.rpartition("_")[2]
    return last if last in ("seconds", "bytes") else ""


def markdown(rows: Sequence[Row]) -> str:
    """Return a table for the documentation."""
    lines = ["| name in Ray | name on the node | type | labels | unit | meaning |"]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        cells = (
            f"`{row.ray}`" if row.ray else "",
            f"`{row.node}`",
            row.type,
            ", ".join(f"`{label}`" for label in row.labels if not row.ray or label not in node.WHO),
            row.unit,
            row.meaning,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


TITLES = {
    "Metrics of replicas, with the labels `application`, `deployment` and `replica`": of_replicas,
    "Metrics of a node, which only the node's server exports": of_nodes,
}


@click.command()
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown tables.")
@click.option("--json", "form", flag_value="json", help="Print JSON on stdout.")
def metrics(*, form: str | None) -> None:
    """Print the name, type, labels, unit and meaning of every metric.

    Ray's endpoint has the metrics of replicas, with extra labels that a query should aggregate
    away. A node's server (node.py serve) has all metrics.
    """
    if form == "json":
        screen.data([asdict(row) for rows in TITLES.values() for row in rows()])
        return
    parts = []
    for title, rows in TITLES.items():
        text = markdown(rows()) if form == "markdown" else _plain(rows())
        parts.append(f"{title}:\n\n{text}\n")
    click.echo("\n".join(parts), nl=False)


def _plain(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        names = f"{row.ray}, {row.node}" if row.ray else row.node
        about = ", ".join(filter(None, (row.type, row.unit)))
        lines += [f"  {names}", f"    {about}; labels {', '.join(row.labels) or 'none'}"]
        lines += [f"    {row.meaning}"]
    return "\n".join(lines)
