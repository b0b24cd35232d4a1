# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The dashboard of the chart as Grafana would use it: its panels, and what they ask."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "helm" / "serve-warm" / "dashboards" / "warm-start.json"
BOARD: dict[str, Any] = json.loads(FILE.read_text())

SINKS = ("serve_warm", "ray_serve_warm")


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield rows and panels in their order, also those that are folded into a row."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", ())


def drawn(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what shows something."""
    return [panel for panel in panels(board) if panel["type"] != "row"]


def queries(title: str) -> list[str]:
    """Return the expressions of a panel."""
    (panel,) = (panel for panel in drawn(BOARD) if panel["title"] == title)
    return [target["expr"] for target in panel["targets"]]


def substituted(expression: str, *, sink: str = "serve_warm", **chosen: str) -> str:
    """Return what Grafana would ask, with everything chosen but what is said."""
    values = dict.fromkeys(("Cluster", "Application", "Deployment", "Replica"), ".*")
    values |= {"slo": "60", "__range": "24h", "__rate_interval": "5m", "sink": sink} | chosen
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda m: values.get(m[1] or m[2], m[0]), expression)
