# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What an operator looks at: the Grafana dashboard "Warm start", from its panels to Grafana's JSON.

`python -m helm.observability.dashboard` writes `dashboards/warm-start.json` into the chart. It is
the classic model (schema version 42), which Grafana imports from release 10 on and which sidecars
load. Tests evaluate each expression on a real Prometheus; no Grafana has shown it yet.
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

from helm.observability.panels import (
    OF_CLUSTER,
    OF_DEPLOYMENT,
    ROWS,
    SINKS,
    STAGES,
    Panel,
)

FILE = Path(__file__).parents[1] / "serve-warm" / "dashboards" / "warm-start.json"
UID = "serveWarmStart"
RAY_DASHBOARDS = {
    "rayServeDashboard": "Ray: Serve",
    "rayServeDeploymentDashboard": "Ray: Serve deployments",
}
"""Title of the link by the uid that Ray gives them."""


# --- Grafana's model -----------------------------------------------------------------------

DATASOURCE = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")


def _drawn(panel: Panel, number: int, place: models.GridPos) -> Any:
    """Return the builder of a panel."""
    builders = {"number": stat, "bars": bargauge, "table": table, "stages": statetimeline}
    built: Any = builders.get(panel.kind, timeseries).Panel()
    built.id(number).title(panel.title).description(panel.description).unit(panel.unit)
    built.datasource(DATASOURCE).grid_pos(place)
    at_once = panel.kind in ("number", "bars", "table")
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        target = prometheus.Dataquery().expr(query.expr).ref_id(letter).datasource(DATASOURCE)
        target.legend_format(query.legend)
        target = target.instant() if at_once else target.range()
        if panel.kind == "table":
            target.format(PromQueryFormat.TABLE)
        built.with_target(target)
    _styled(built, panel)
    return built


def _styled(built: Any, panel: Panel) -> None:
    steps = [models.Threshold(color="green", value=None)]
    built.thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    if panel.kind in ("number", "bars"):
        built.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
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
            for place, (name, color) in enumerate(STAGES, 1)
        }
        built.mappings([models.ValueMap(options=names)])


def _placed(panels: Sequence[Panel], top: int) -> Iterator[tuple[Panel, models.GridPos]]:
    """Yield panels from left to right in lines of 24 columns."""
    left = height = 0
    for panel in panels:
        if left + panel.width > 24:
            top, left, height = top + height, 0, 0
        yield panel, models.GridPos(x=left, y=top, w=panel.width, h=panel.height)
        left, height = left + panel.width, max(height, panel.height)


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
        .description("The Prometheus that scrapes the node servers, Ray, or both.")
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
        .description("Whose figures: the node server's are exact and remember dead replicas.")
        .values(", ".join(f"{label} : {prefix}" for label, prefix in SINKS.items()))
        .options(options)
        .current(options[0])
        .multi(multi=False)
        .include_all(include_all=False)
    )
    metric = "${sink}_stage"
    chain = (
        ("Cluster", "ray_io_cluster", "", "Clusters of KubeRay; a PodMonitor sets the label."),
        ("Application", "application", OF_CLUSTER, "Applications of Serve."),
        (
            "Deployment",
            "deployment",
            f'{OF_CLUSTER},application=~"$Application"',
            "Deployments of Serve.",
        ),
        ("Replica", "replica", OF_DEPLOYMENT, "Replicas of the time range."),
    )
    for name, label, of, description in chain:
        query = f"label_values({metric}{{{of}}}, {label})"
        yield _variable(name, name, query, description)
    yield (
        dashboard.TextBoxVariable("slo")
        .label("Objective, s")
        .description("Seconds to READY that the dashboard draws a line at.")
        .default_value("60")
        .current(models.VariableOption(selected=True, text="60", value="60"))
    )


def _build() -> Any:
    board = (
        dashboard.Dashboard("Warm start")
        .uid(UID)
        .description("How replicas that run compiled models start, and whether they stay warm.")
        .tags(["ray", "serve", "serve_warm"])
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time("now-6h", "now")
        .timezone("browser")
        .refresh("1m")
        .annotation(
            dashboard.AnnotationQuery()
            .name("Alerts that fire")
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
    """Return the dashboard as JSON, the same each time."""
    plain = json.loads(json.dumps(_build(), cls=JSONEncoder))
    # The builders put links and annotations into a menu that only the newest Grafana has.
    for link in (*plain["links"], *plain["annotations"]["list"]):
        del link["placement"]
    return json.dumps(plain, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text())
