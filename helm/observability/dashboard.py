# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Converts the panels of the dashboard "Warm start" to Grafana's JSON.

`python -m helm.observability.dashboard` writes `dashboards/warm-start.json` to the chart. The file
uses the classic model (schema version 42), which Grafana 10 and newer can import and sidecars can
load. Tests evaluate each expression on a real Prometheus; the dashboard has not been tried in
Grafana yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from helm.observability import rules
from helm.observability.panels import (
    OF_APPLICATION,
    OF_CLUSTER,
    OF_DEPLOYMENT,
    OF_NAMESPACE,
    ROWS,
    SINKS,
    STAGES,
    Panel,
)

FILE = Path(__file__).parents[1] / "serve-warm" / "dashboards" / "warm-start.json"
UID = "serveWarmStart"
NEITHER = "#6e6e6e"
"""Color of a tile without a number. Such a tile is neither good nor bad."""
RUNBOOKS = rules.DEFAULTS["runbookUrl"]
RAY_DASHBOARDS = {
    "rayServeDashboard": "Ray: Serve",
    "rayServeDeploymentDashboard": "Ray: Serve deployments",
}
"""Titles of the links to Ray's dashboards, by the uid of each dashboard."""


# --- Grafana's model -----------------------------------------------------------------------

DATASOURCE = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")


def _drawn(panel: Panel, number: int, place: models.GridPos) -> Any:
    """Return the builder for a panel of the dashboard."""
    builders = {"number": stat, "bars": bargauge, "table": table, "alerts": table}
    builders["stages"] = statetimeline
    built: Any = builders.get(panel.kind, timeseries).Panel()
    built.id(number).title(panel.title).description(panel.description).unit(panel.unit)
    built.datasource(DATASOURCE).grid_pos(place)
    at_once = panel.kind in ("number", "bars", "table", "alerts")
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        target = prometheus.Dataquery().expr(query.expr).ref_id(letter).datasource(DATASOURCE)
        target.legend_format(query.legend)
        target = target.instant() if at_once else target.range()
        if panel.kind in ("table", "alerts"):
            target.format(PromQueryFormat.TABLE)
        built.with_target(target)
    _styled(built, panel)
    return built


def _styled(built: Any, panel: Panel) -> None:
    built.no_value(panel.empty)
    _colored(built, panel)
    if panel.kind in ("number", "bars"):
        built.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    if panel.kind == "number":
        # Color the whole tile, because people look at it first.
        built.color_mode(common_models.BigValueColorMode.BACKGROUND_SOLID)
        built.graph_mode(common_models.BigValueGraphMode.NONE)
        # Without this, a tile without data has the color of the lowest limit, which can be green.
        none = models.DashboardSpecialValueMapOptions(
            match=models.SpecialValueMatch.NULL_AND_NAN,
            result=models.ValueMappingResult(text=panel.empty, color=NEITHER, index=0),
        )
        mappings: list[Any] = [models.SpecialValueMap(options=none)]
        if panel.none:
            told = models.ValueMappingResult(text=panel.none, color=NEITHER, index=1)
            mappings.append(models.ValueMap(options={"-1": told}))
        built.mappings(mappings)
    if panel.kind in ("lines", "stack", "points"):
        built.min(0).legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
        built.tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
    if panel.kind == "stack":
        built.fill_opacity(60).stacking(
            common.StackingConfig().mode(common_models.StackingMode.NORMAL)
        )
    if panel.kind == "points":
        built.show_points(common_models.VisibilityMode.ALWAYS).data_links(
            [
                dashboard.DashboardLink("This deployment")
                .type(models.DashboardLinkType.LINK)
                .url(
                    f"/d/{UID}?${{__url_time_range}}&${{datasource:queryparam}}"
                    "&${sink:queryparam}&var-Deployment=${__field.labels.deployment}"
                    "&var-Replica=${__field.labels.replica}"
                )
            ]
        )
    if panel.kind == "stages":
        names = {
            str(place): models.ValueMappingResult(text=name, color=color, index=place)
            for place, (name, color) in enumerate(STAGES.items(), 1)
        }
        built.mappings([models.ValueMap(options=names)])


def _colored(built: Any, panel: Panel) -> None:
    """Set the limits between good and bad values, and the fixed colors of series."""
    base = "green" if panel.limits else "blue"
    steps = [models.Threshold(color=base, value=None)]
    steps += [models.Threshold(color=color, value=value) for value, color in panel.limits]
    built.thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    by_limits = panel.kind == "number" or (panel.kind == "bars" and panel.limits)
    mode = (
        models.FieldColorModeId.THRESHOLDS if by_limits else models.FieldColorModeId.PALETTE_CLASSIC
    )
    built.color_scheme(dashboard.FieldColor().mode(mode))
    if panel.limits and panel.kind == "lines":
        dashed = common_models.GraphThresholdsStyleMode.DASHED_AND_AREA
        built.thresholds_style(common.GraphThresholdsStyleConfig().mode(dashed))
    if panel.kind == "alerts":
        _list_alerts(built, panel)
        return
    for name, color in panel.colors.items():
        fixed = {"mode": models.FieldColorModeId.FIXED.value, "fixedColor": color}
        built.override_by_name(name, [models.DynamicConfigValue(id_val="color", value=fixed)])


def _list_alerts(built: Any, panel: Panel) -> None:
    """Configure the table of alerts: the worst first, each with a link to its runbook."""
    severities = {
        name: models.ValueMappingResult(text=name, color=color, index=place)
        for place, (name, color) in enumerate(panel.colors.items())
    }
    cell = {"type": "color-background", "mode": "basic"}
    link = {"title": "Runbook", "url": "${runbooks}#${__data.fields.runbook}", "targetBlank": True}
    built.override_by_name(
        "severity",
        [
            models.DynamicConfigValue(
                id_val="mappings",
                value=[models.ValueMap(options=severities)],
            ),
            models.DynamicConfigValue(id_val="custom.cellOptions", value=cell),
            models.DynamicConfigValue(id_val="custom.width", value=90),
        ],
    )
    built.override_by_name("alertname", [models.DynamicConfigValue(id_val="links", value=[link])])
    for name in ("Time", "Value", "runbook"):
        hidden = models.DynamicConfigValue(id_val="custom.hidden", value=True)
        built.override_by_name(name, [hidden])
    built.sort_by([common.TableSortByFieldState().display_name("severity")])


def _placed(panels: Sequence[Panel], top: int) -> Iterator[tuple[Panel, models.GridPos]]:
    """Yield each panel with its place: the highest free place in 24 columns."""
    ends = [top] * 24
    for panel in panels:
        columns = range(24 - panel.width + 1)
        left = min(columns, key=lambda column: max(ends[column : column + panel.width]))
        y = max(ends[left : left + panel.width])
        ends[left : left + panel.width] = [y + panel.height] * panel.width
        yield panel, models.GridPos(x=left, y=y, w=panel.width, h=panel.height)


def _variable(name: str, label: str, query: str, description: str) -> Any:
    everything = models.VariableOption(selected=True, text=["All"], value=["$__all"])
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": f"{name}-variable"})
        .definition(query)
        .current(everything)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
    )


def _variables() -> Iterator[Any]:
    yield (
        dashboard.DatasourceVariable("datasource")
        .label("Data source")
        .description("The Prometheus server that scrapes the node servers, Ray, or both.")
        .type("prometheus")
    )
    first = next(iter(SINKS))
    options = [
        models.VariableOption(selected=label == first, text=label, value=prefix)
        for label, prefix in SINKS.items()
    ]
    yield (
        dashboard.CustomVariable("sink")
        .label("Sink")
        .description(
            "Source of the figures. Figures from the node server are exact and include dead "
            "replicas."
        )
        .values(", ".join(f"{label} : {prefix}" for label, prefix in SINKS.items()))
        .options(options)
        .current(options[0])
        .multi(multi=False)
        .include_all(include_all=False)
    )
    metric = "${sink}_stage"
    chain = (
        ("Namespace", "namespace", "", "Kubernetes namespaces. Empty outside Kubernetes."),
        (
            "Cluster",
            "ray_io_cluster",
            OF_NAMESPACE,
            "KubeRay clusters, from the label ray_io_cluster, which a PodMonitor sets.",
        ),
        (
            "Application",
            "application",
            f"{OF_CLUSTER},{rules.NO_BUILD}",
            "Serve applications, except applications that a build starts.",
        ),
        ("Deployment", "deployment", OF_APPLICATION, "Serve deployments."),
        ("Replica", "replica", OF_DEPLOYMENT, "Replicas in the time range."),
    )
    for name, label, of, description in chain:
        query = f"label_values({metric}{{{of}}}, {label})"
        yield _variable(name, name, query, description)
    yield (
        dashboard.TextBoxVariable("slo")
        .label("Objective, s")
        .description(
            "The objective for the time to READY, in seconds. The dashboard draws a line at this "
            "value."
        )
        .default_value("60")
        .current(models.VariableOption(selected=True, text="60", value="60"))
    )
    yield (
        dashboard.TextBoxVariable("runbooks")
        .label("Runbooks")
        .description(
            "Address of docs/runbooks.md; the chart sets this variable to the value of runbookUrl."
        )
        .default_value(RUNBOOKS)
        .current(models.VariableOption(selected=True, text=RUNBOOKS, value=RUNBOOKS))
    )


def _build() -> Any:
    board = (
        dashboard.Dashboard("Warm start")
        .uid(UID)
        .description(
            "This dashboard shows how replicas with compiled models start, and the work after "
            "READY that warm-up should have prevented."
        )
        .tags(["ray", "serve", "serve_warm"])
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time("now-6h", "now")
        .timezone("browser")
        .refresh("1m")
        .annotation(
            dashboard.AnnotationQuery()
            .name("Firing alerts")
            .datasource(DATASOURCE)
            .enable(enable=True)
            .icon_color("red")
            .expr('ALERTS{alertname=~"ServeWarm.*",alertstate="firing"}')
            .title_format("{{alertname}}")
            .text_format("{{application}} {{deployment}}")
        )
    )
    for uid, title in RAY_DASHBOARDS.items():
        board.link(
            dashboard.DashboardLink(title)
            .type(models.DashboardLinkType.LINK)
            .url(f"/d/{uid}")
            .icon("external link")
            .keep_time(keep_time=True)
            .include_vars(include_vars=True)
        )
    for variable in _variables():
        board.with_variable(variable)
    top, number = 0, 0
    for row in ROWS:
        number += 1
        head = dashboard.Row(row.title).id(number).grid_pos(models.GridPos(x=0, y=top, w=24, h=1))
        if row.repeat:
            head.repeat(row.repeat)
        places = list(_placed(row.panels, top + 1))
        drawn = []
        for panel, place in places:
            number += 1
            drawn.append(_drawn(panel, number, place))
        if row.folded:
            for each_panel in drawn:
                head.with_panel(each_panel)
            board.with_row(head)
            top += 1
            continue
        board.with_row(head)
        for each_panel in drawn:
            board.with_panel(each_panel)
        top = max(place.y + place.h for _, place in places)
    return board.build()


def text() -> str:
    """Return the dashboard as JSON. Each call returns the same text."""
    plain = json.loads(json.dumps(_build(), cls=JSONEncoder))
    # The builders would put links and annotations in a menu that only the newest Grafana has.
    for link in (*plain["links"], *plain["annotations"]["list"]):
        del link["placement"]
    return json.dumps(plain, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text())
