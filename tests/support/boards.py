# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The chart's dashboard as Grafana would use it: the panels and their queries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helm.observability import rules
from serve_warm.metrics import METRICS
from serve_warm.node_server.table import NODE_METRICS

FILE = Path(__file__).parents[2] / "helm" / "serve-warm" / "dashboards" / "warm-start.json"
BOARD: dict[str, Any] = json.loads(FILE.read_text())

SINKS = ("serve_warm", "ray_serve_warm")


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield rows and panels in order, including panels folded into a row."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", ())


def drawn(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels that show data."""
    return [panel for panel in panels(board) if panel["type"] != "row"]


def queries(title: str) -> list[str]:
    """Return the expressions of a panel."""
    (panel,) = (panel for panel in drawn(BOARD) if panel["title"] == title)
    return [target["expr"] for target in panel["targets"]]


def substituted(expression: str, *, sink: str = "serve_warm", **chosen: str) -> str:
    """Return the query that Grafana would send, with "All" selected unless given."""
    values = dict.fromkeys(("Namespace", "Cluster", "Application", "Deployment", "Replica"), ".*")
    values |= {"slo": "60", "__range": "24h", "__rate_interval": "5m", "sink": sink} | chosen
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda m: values.get(m[1] or m[2], m[0]), expression)


RAY = {
    "ray_serve_deployment_queued_queries": "gauge",
    "ray_serve_replica_startup_latency_ms": "histogram",
    "ray_serve_replica_initialization_latency_ms": "histogram",
}
"""Metrics of Ray 2.60 that the dashboard shows, with their kind by name."""


def names(expression: str) -> set[str]:
    """Return the names of metrics and recording rules that an expression reads."""
    bare = re.sub(r'"[^"]*"', "", expression)
    return set(re.findall(r"\b(?:replica:|deployment:)?(?:ray_)?serve_[\w:]+", bare))


def known() -> set[str]:
    """Return every name that a query can read: records, and metrics as they are exposed."""
    found = {rule["record"] for rule in rules.RECORDS}
    rows = [(m.name, m.kind) for m in METRICS]
    rows += [(name, kind) for name, (kind, *_) in NODE_METRICS.items()]
    for name, kind in [*rows, *RAY.items()]:
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(kind, ("",))
        found |= {name + end for end in ends}
    found |= {f"ray_{m.name}{'_total' if m.kind == 'counter' else ''}" for m in METRICS}
    return found
