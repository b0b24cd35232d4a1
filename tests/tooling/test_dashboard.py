# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The dashboard of the chart: it is the output of its code, and it passes the lint in this file.

Grafana is not used. test_recorded_day checks the results of the expressions.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boards import BOARD, FILE, RAY, SINKS, drawn, known, names, panels, substituted
from helm.observability import rules
from processes import run_to_end

ROOT = Path(__file__).parents[2]

UNITS = {"short", "s", "ms", "bytes", "percentunit"}


# --- the lint ------------------------------------------------------------------------------


def problems(board: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each problem of a dashboard."""
    for key in ("id", "title"):
        seen = [panel.get(key) for panel in panels(board)]
        yield from (f"the {key} {s!r} is there twice" for s in set(seen) if seen.count(s) > 1)
    if board.get("uid") != "serveWarmStart" or board.get("id") is not None:
        yield "it needs its own uid, and no id"
    for panel in drawn(board):
        yield from of_panel(panel, panel.get("title") or f"panel {panel['id']}")
    declared = {variable["name"] for variable in board["templating"]["list"]}
    asked = [target["expr"] for panel in drawn(board) for target in panel["targets"]]
    asked += [str(variable.get("query")) for variable in board["templating"]["list"]]
    asked += [link["url"] for panel in drawn(board) for link in data_links(panel)]
    used = {"datasource"}.union(*map(variables, asked))
    yield from (f"${name} is used and not declared" for name in sorted(used - declared))
    yield from (f"${name} is declared and not used" for name in sorted(declared - used))
    yield from overlaps(board)


def of_panel(panel: dict[str, Any], title: str) -> Iterator[str]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    yield from (f"{title} has no {key}" for key in ("title", "description") if not panel[key])
    if panel["fieldConfig"]["defaults"].get("unit") not in UNITS:
        yield f"{title} has no unit that is known"
    if panel["type"] == "timeseries" and not panel["options"]["legend"]["showLegend"]:
        yield f"{title} has no legend"
    if panel["type"] == "stat" and is_always_green(panel["fieldConfig"]["defaults"]):
        yield f"{title} is always green"
    if panel["fieldConfig"]["defaults"].get("noValue", "no data") in ("", "no data"):
        yield f"{title} does not say why it is empty"
    if not panel["targets"]:
        yield f"{title} asks nothing"
    for target in panel["targets"]:
        expression = target["expr"]
        if panel["datasource"] != source or target["datasource"] != source:
            yield f"{title} has a data source of its own"
        if len(panel["targets"]) > 1 and not target["legendFormat"]:
            yield f"{title} does not say which line is which"
        own = {name for name in names(expression) if name.startswith("serve_warm_")}
        if own and "node server only" not in title:
            yield f"{title} works with the node server alone and does not say so"
        read = set().union(*(names(substituted(expression, sink=sink)) for sink in SINKS))
        yield from (f"{title} reads {n}, which nobody exports" for n in sorted(read - known()))


def is_always_green(defaults: dict[str, Any]) -> bool:
    """Return whether a number is green for all values, or has no mapping for missing data."""
    steps = [step["color"] for step in defaults["thresholds"]["steps"]]
    of_nothing = [m for m in defaults.get("mappings", ()) if m["type"] == "special"]
    return steps == ["green"] or not of_nothing


def data_links(panel: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for override in panel["fieldConfig"]["overrides"]:
        for made in override["properties"]:
            yield from made["value"] if made["id"] == "links" else ()


def variables(text: str) -> set[str]:
    found = {a or b for a, b in re.findall(r"\$(?:\{(\w+)\}|(\w+))", text)}
    return {name for name in found if not name.startswith("__")}


def overlaps(board: dict[str, Any]) -> Iterator[str]:
    """Yield panels that overlap, or are not on the grid. Each folded row is a separate grid."""
    grids = [board["panels"], *(p["panels"] for p in board["panels"] if p.get("panels"))]
    for grid in grids:
        places = [(p.get("title"), p["gridPos"]) for p in grid]
        for index, (title, a) in enumerate(places):
            if a["x"] + a["w"] > 24 or min(a["x"], a["y"]) < 0 or min(a["w"], a["h"]) < 1:
                yield f"{title} is not on the grid"
            for other, b in places[:index]:
                apart = a["x"] >= b["x"] + b["w"] or b["x"] >= a["x"] + a["w"]
                if not apart and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]:
                    yield f"{title} lies on {other}"


def test_the_dashboard_passes_the_lint() -> None:
    assert list(problems(BOARD)) == []


# --- what it promises ----------------------------------------------------------------------


def test_the_file_in_the_chart_is_up_to_date() -> None:
    """`python -m helm.observability.dashboard` would change nothing."""
    if sys.version_info < (3, 11):
        pytest.skip("grafana-foundation-sdk needs Python 3.11")
    # A separate process without warnings: the builders warn about a newer model of dashboards.
    program = "from helm.observability import dashboard; print(dashboard.text(), end='')"
    made = run_to_end([sys.executable, "-W", "ignore", "-c", program], cwd=ROOT)

    assert made.returncode == 0, made.stderr
    assert made.stdout == FILE.read_text()


def test_rules_read_what_is_exported() -> None:
    """No rule reads a metric or a record that nobody writes."""
    read = [names(rule["expr"]) for group in rules.GROUPS for rule in group["rules"]]

    assert set().union(*read) - known() == set()


def test_ray_calls_its_own_metrics_so() -> None:
    """The installed Ray has the names of Ray's metrics that the dashboard shows."""
    import ray

    source = Path(ray.__file__).parent / "serve" / "_private"
    text = "".join(p.read_text() for p in (source / "router.py", source / "deployment_state.py"))

    assert [name for name in RAY if f'"{name.removeprefix("ray_")}"' not in text] == []


def test_links_and_variables_are_those_of_rays_dashboards() -> None:
    """Ray's dashboards have these uids, and these variables that a link carries over."""
    import ray

    folder = Path(ray.__file__).parent / "dashboard" / "modules" / "metrics" / "dashboards"
    of_ray = {}
    for file in folder.glob("serve*_base.json"):
        board = json.loads(file.read_text())
        of_ray[board["uid"]] = {v["name"] for v in board["templating"]["list"]}
    ours = {variable["name"] for variable in BOARD["templating"]["list"]}

    linked = {link["url"].removeprefix("/d/") for link in BOARD["links"]}

    assert linked == {"rayServeDashboard", "rayServeDeploymentDashboard"}
    assert linked <= of_ray.keys()
    assert {"datasource", "Application", "Deployment", "Replica", "Cluster"} <= ours
    assert of_ray["rayServeDeploymentDashboard"] - ours == {"Route"}


def test_both_sinks_can_be_chosen() -> None:
    """Neither value is empty, because Grafana's custom variables cannot be empty."""
    (sink,) = (v for v in BOARD["templating"]["list"] if v["name"] == "sink")

    assert [option["value"] for option in sink["options"]] == list(SINKS)
    assert [part.split(" : ")[1] for part in sink["query"].split(", ")] == list(SINKS)
