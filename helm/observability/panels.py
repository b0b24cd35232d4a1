# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The content of the dashboard "Warm start": rows, panels and queries.

The variable `sink` holds the prefix of serve_warm's metric names. Node servers and Ray use
different prefixes. No prefix is empty, because Grafana 10.2 and newer do not allow an empty custom
variable. The other variables have the same names as in Ray's own dashboards. Links between the
dashboards therefore keep the selected values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from helm.observability.rules import NO_BUILD
from serve_warm.seats.records import MISSES

SINKS = {"node server": "serve_warm", "Ray's export": "ray_serve_warm"}

STAGES = {
    "pending": "super-light-blue",
    "pulling": "light-blue",
    "verifying": "blue",
    "loading": "semi-dark-blue",
    "replaying": "yellow",
    "proving": "light-green",
    "parity": "super-light-green",
    "ready": "green",
    "failed": "red",
}
"""Color of each stage, in the order of a start."""

VERDICTS = {
    "full_hit": "green",
    "partial": "yellow",
    "miss": "orange",
    "refused": "red",
    "eager": "super-light-orange",
    "late": "purple",
    "off": "text",
}
OUTCOMES = {**VERDICTS, "failed": "dark-red", "died": "semi-dark-red"}
CONDITIONS = {
    "warm": "green",
    "warming": "yellow",
    "stale": "orange",
    "failed": "red",
    "unreadable": "purple",
    "dead": "text",
}
FAILING = "red"
"""Color of values that should be 0."""

NODE_ONLY = "node server only"
"""Text in the titles of panels that have no data in Ray's export."""

# --- expressions ---------------------------------------------------------------------------

OF_NAMESPACE = 'namespace=~"$Namespace"'
OF_CLUSTER = f'{OF_NAMESPACE},ray_io_cluster=~"$Cluster"'
OF_APPLICATION = f'{OF_CLUSTER},application=~"$Application",{NO_BUILD}'
OF_DEPLOYMENT = f'{OF_APPLICATION},deployment=~"$Deployment"'
OF_REPLICA = f'{OF_DEPLOYMENT},replica=~"$Replica"'
DEPLOYMENT = "application, deployment"
REPLICA = f"{DEPLOYMENT}, replica"
MISSED_SEAT = ',reason!="none"'
IN_START = ',stage!~"ready|failed"'


def ours(name: str, more: str = "", span: str = "") -> str:
    """Return the selector of a replica metric, with the prefix of the selected sink."""
    return f"${{sink}}_{name}{{{OF_REPLICA}{more}}}{span}"


def each(name: str, own: str = "", more: str = "") -> str:
    """Return an expression with one series for each replica and each value of `own`.

    The expression drops all other labels, such as labels that a sink adds.
    """
    by = f"{REPLICA}, {own}" if own else REPLICA
    return f"max by ({by}) ({ours(name, more)})"


def living(expression: str) -> str:
    """Return `expression` without dead replicas, whose metrics a node server still exports."""
    return f"({expression} and on ({REPLICA}) {each('start_elapsed_seconds')})"


def starting(expression: str) -> str:
    """Return `expression` without replicas that are ready, failed or dead."""
    return f"({expression} and on ({REPLICA}) {each('stage', more=IN_START)} == 1)"


def over_range(name: str, more: str = "") -> str:
    """Return an expression for each replica's largest value in the dashboard's time range."""
    return f"max by ({REPLICA}) (max_over_time({ours(name, more, '[$__range]')}))"


def quantile(share: float, by: str, histogram: str) -> str:
    """Return an expression for a quantile over all counts in a histogram.

    The expression uses no rates, because a rate misses the first count. The comparison drops empty
    histograms, whose quantile is NaN.
    """
    counted = f"sum by (le, {by}) ({histogram}_bucket{{{OF_DEPLOYMENT}}})"
    return f"histogram_quantile({share}, {counted}) >= 0"


def stage_number() -> str:
    """Return an expression for each live replica's stage as a number: 1 for the first of STAGES."""
    own = [each("stage", more=f',stage="{name}"') for name in STAGES]
    return " or ".join(f"{number} * ({value} == 1)" for number, value in enumerate(own, 1))


# --- panels --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Query:
    """An expression, and the legend of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel of the dashboard."""

    kind: str
    """`lines`, `stack`, `points`, `number`, `bars`, `table`, `alerts` or `stages`."""
    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    limits: tuple[tuple[float, str], ...] = ()
    """Lower bounds with their colors. Below the first bound, the color is green. Without bounds,
    numbers are blue and lines use Grafana's palette."""
    colors: Mapping[str, str] = field(default_factory=dict)
    """Colors by series name. Other series use Grafana's colors."""
    empty: str
    """The text that explains why there is no data."""
    none: str = ""
    """The text shown for -1. A -1 means that replicas export metrics, but that no replica has a
    value for this panel."""
    width: int = 12
    height: int = 8


@dataclass(frozen=True, kw_only=True)
class Row:
    """Panels under a title. If `repeat` names a variable, the row is repeated for each value."""

    title: str
    panels: tuple[Panel, ...]
    repeat: str = ""
    folded: bool = False
    """Whether the row is collapsed at first."""


def number(
    title: str,
    description: str,
    unit: str,
    expr: str,
    *limits: tuple[float, str],
    empty: str = "not exported",
    none: str = "",
) -> Panel:
    """Return a panel with one number."""
    queries = (Query(expr=expr),)
    return Panel(
        kind="number",
        title=title,
        description=description,
        unit=unit,
        queries=queries,
        limits=limits,
        empty=empty,
        none=none,
        width=4,
        height=4,
    )


COLD = ',verdict=~"miss|refused"'
NONE_OF_ANY = f"0 * count({over_range('ready')})"
"""0 if there were replicas in the time range, and no data if there were none. So missing data does
not look like a good value."""
NONE_NOW = f"0 * count({each('ready')})"
"""0 if any replica has metrics now. A node server also exports the metrics of dead replicas."""
CONFIGURED = f"{over_range('artifact_configured')} == 1"
# Records over weeks have no cluster label, because each upgrade renames the cluster.
OF_ALL_CLUSTERS = OF_DEPLOYMENT.replace(OF_CLUSTER, OF_NAMESPACE)
STARTS = f"deployment:serve_warm_starts:count28d{{{OF_ALL_CLUSTERS}}}"
MISSED = f"deployment:serve_warm_starts_missed:ratio28d{{{OF_ALL_CLUSTERS}}}"

OLD_S = 30 * 86400.0
"""By default, the chart's rules report an artifact as old if its age exceeds this many seconds."""
LATE_HEARTBEAT_S = 30.0
"""/readyz reports a replica as stale if its heartbeat is older than this many seconds."""

ALERTS = Panel(
    kind="alerts",
    title="Firing alerts",
    description="Alerts from the chart's rules. Click an alert to open its runbook.",
    unit="short",
    queries=(
        Query(
            expr="max by (alertname, severity, runbook, application, deployment) "
            '(ALERTS{alertname=~"ServeWarm.*",alertstate="firing",namespace=~"$Namespace|",'
            'application=~"$Application|",deployment=~"$Deployment|"})'
        ),
    ),
    colors={"critical": "red", "warning": "orange"},
    empty="none",
    width=8,
    height=8,
)

NUMBERS = (
    number(
        "Ready replicas",
        "Replicas that are proven warm, or that a policy allows to serve without proof.",
        "short",
        f"sum({each('ready')})",
        (0.0, FAILING),
        (1.0, "green"),
    ),
    number(
        "Starting replicas",
        "Live replicas that are neither ready nor failed.",
        "short",
        f"sum({each('stage', 'stage', IN_START)}) or {NONE_NOW}",
    ),
    number(
        f"Failed starts ({NODE_ONLY})",
        "Number of replicas that failed to start, or died before READY, in the time range.",
        "short",
        "round(sum(increase(serve_warm_starts_total"
        f'{{{OF_DEPLOYMENT},outcome=~"failed|died"}}[$__range])))',
        (1.0, FAILING),
    ),
    number(
        "Cold share",
        "Share of replicas that started cold, because they found no matching artifact (miss) or "
        "refused to load their artifact (refused). Replicas without a configured artifact are not "
        "counted.",
        "percentunit",
        # A dead replica exports only its last verdict, which can be a different verdict.
        f"(sum({over_range('verdict', COLD)} and on ({REPLICA}) {CONFIGURED}) "
        f"or 0 * count({CONFIGURED})) / count({CONFIGURED}) or {NONE_OF_ANY} - 1",
        (0.001, "orange"),
        (0.1, FAILING),
        none="no artifact configured",
    ),
    number(
        "Objective met, 28 days",
        "Share of starts that met the objective, for the selected deployments on all clusters. "
        "Needs the chart's recording rules. The panel turns red below 95 %, the default of "
        "startSloObjective.",
        "percentunit",
        f"1 - sum({MISSED} * on (namespace, application, deployment) {STARTS}) "
        f"/ (sum({STARTS}) > 0)",
        (0.0, FAILING),
        (0.95, "green"),
        empty="no starts, or no rules",
    ),
    number(
        "Compiles after ready",
        "Number of frames compiled after READY in the time range. Should stay at 0.",
        "short",
        f"sum({over_range('compiles_after_ready_total')}) or {NONE_OF_ANY}",
        (1.0, FAILING),
    ),
    number(
        "Degraded replicas",
        "Ready replicas that are degraded, and replicas whose artifact has no trusted signature.",
        "short",
        f"count({living(each('degraded'))} == 1 or on ({REPLICA}) "
        f"{living(each('unverified'))} == 1) or {NONE_NOW}",
        (1.0, "orange"),
    ),
    number(
        "Oldest artifact",
        "Age of the oldest artifact in use by a live replica. The panel turns orange at 30 days, "
        "the default of artifactMaxAgeDays.",
        "s",
        f"max({living('time() - ' + each('artifact_created_timestamp_seconds'))}) "
        f"or {NONE_NOW} - 1",
        (OLD_S, "orange"),
        none="none in use",
    ),
)

TIMELINE = Panel(
    kind="stages",
    title="Stages of each replica",
    description=(
        "One line for each replica, with the stages of its start. The line ends when the replica "
        "ends. A gap in the line means that the ready replica is hung."
    ),
    unit="short",
    empty="no replica exports metrics",
    queries=(Query(expr=stage_number(), legend="{{application}} {{deployment}} {{replica}}"),),
    width=24,
    height=9,
)

NOW = Row(title="Overview", panels=(*NUMBERS[:4], ALERTS, *NUMBERS[4:], TIMELINE))

FLEET = Row(
    title="Fleet",
    panels=(
        Panel(
            kind="stack",
            title="Replicas by stage",
            description="Number of replicas in each stage of a start.",
            unit="short",
            empty="no replica exports metrics",
            colors=STAGES,
            queries=(Query(expr=f"sum by (stage) ({each('stage', 'stage')})", legend="{{stage}}"),),
        ),
        Panel(
            kind="points",
            title="Time to ready of each replica, and the objective",
            description=(
                "Exact seconds from a replica's creation (before __init__) to READY. The "
                "horizontal line is the objective (the variable slo, set by startSloSeconds)."
            ),
            unit="s",
            empty="no replica exports metrics",
            colors={"objective": FAILING},
            queries=(
                Query(expr=each("ready_seconds"), legend="{{deployment}} {{replica}}"),
                Query(expr="vector($slo)", legend="objective"),
            ),
        ),
        Panel(
            kind="bars",
            title="Stage breakdown",
            description="Mean seconds that live replicas spent in each stage of their start.",
            unit="s",
            empty="no live replica has finished a stage",
            colors=STAGES,
            queries=(
                Query(
                    expr=f"avg by (stage) ({living(each('stage_seconds', 'stage'))})",
                    legend="{{stage}}",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title="Elapsed start time, as a share of deadline_s",
            description=(
                "Time since the creation of each starting replica, as a share of deadline_s. "
                "deadline_s counts only from the end of __init__, so the value is somewhat above "
                "100 % when a start reaches its deadline."
            ),
            unit="percentunit",
            empty="no replica is starting",
            limits=((0.8, "orange"), (1.0, FAILING)),
            queries=(
                Query(
                    expr=starting(
                        f"{each('start_elapsed_seconds')} / on ({REPLICA}) "
                        f"{each('deadline_seconds')}"
                    ),
                    legend="{{deployment}} {{replica}}",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title="Seats: workers with finished imports",
            description=(
                "Free seats on all nodes. If no seat is free, the next replica runs its imports "
                "itself."
            ),
            unit="short",
            empty="no live replica has seats configured",
            queries=(
                Query(
                    expr=f"sum by ({DEPLOYMENT}) ({each('seats')})",
                    legend="{{application}} {{deployment}}",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title="Starts that could not use a seat, by reason",
            description=(
                "Number of starts that did not use a seat although seats were configured. The "
                "first start on a node has no seat yet, so this panel leaves out first starts. "
                "Every reason in this panel is a problem to fix."
            ),
            unit="short",
            empty="no problem has been counted, or no seats are configured",
            colors={reason: FAILING for reason in MISSES if reason != "none"},
            queries=(
                Query(
                    expr="sum by (reason) "
                    f"({each('seat_misses_total', 'reason', MISSED_SEAT)}) > 0",
                    legend="{{reason}}",
                ),
            ),
        ),
    ),
)

ARTIFACT = Row(
    title="Artifact",
    panels=(
        Panel(
            kind="stack",
            title="Live replicas by verdict: hit, miss, refused",
            description=(
                "Live replicas by verdict. The verdict describes the effect of the artifact on "
                "the start."
            ),
            unit="short",
            empty="no live replica exports metrics",
            colors=VERDICTS,
            queries=(
                Query(
                    expr=f"sum by (verdict) ({living(each('verdict', 'verdict'))})",
                    legend="{{verdict}}",
                ),
            ),
        ),
        Panel(
            kind="stack",
            title="Refused artifacts by reason",
            description="Live replicas that found an artifact but refused to load it, by reason.",
            unit="short",
            empty="no live replica has refused an artifact",
            queries=(
                Query(
                    expr=f"sum by (reason) ({living(each('refused', 'reason'))}) > 0",
                    legend="{{reason}}",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title="Artifact age",
            description=(
                "For each deployment, the age of the oldest artifact in use by a live replica."
            ),
            unit="s",
            empty="no live replica uses an artifact",
            limits=((OLD_S, "orange"),),
            queries=(
                Query(
                    expr=f"max by ({DEPLOYMENT}) "
                    f"({living('time() - ' + each('artifact_created_timestamp_seconds'))})",
                    legend="{{application}} {{deployment}}",
                ),
            ),
        ),
        Panel(
            kind="table",
            title="Artifacts in use",
            description=(
                "Live replicas by deployment and artifact. The table shows each artifact's store "
                "kind, statement and build date."
            ),
            unit="short",
            empty="no live replica uses an artifact",
            queries=(
                Query(
                    expr=f"count by ({DEPLOYMENT}, source, statement, created) "
                    f"({living(each('artifact_info', 'source, statement, created'))})",
                ),
            ),
        ),
        Panel(
            kind="table",
            title="Versions",
            description="Live replicas by serve_warm, Ray and torch version.",
            unit="short",
            empty="no live replica exports metrics",
            queries=(
                Query(
                    expr="count by (version, ray_version, torch_version) "
                    f"({living(each('build_info', 'version, ray_version, torch_version'))})",
                ),
            ),
        ),
    ),
)

CALLING = f"sum by ({DEPLOYMENT}) (rate({ours('calls_after_ready_total', span='[5m]')}))"
CALLING_EAGERLY = f"sum by ({DEPLOYMENT}) (rate({ours('eager_calls_total', span='[5m]')}))"
"""Calls a second of compiled functions, and those of them that run eagerly."""

AFTER_READY = (
    ("compiles_after_ready_total", "compiles"),
    ("captures_after_ready_total", "captures"),
    ("kernels_built_after_ready_total", "kernels built"),
    ("tunings_after_ready_total", "tunings"),
    ("eager_falls_after_ready_total", "fallbacks to eager"),
    ("forbidden_after_ready_total", "refused with 503"),
)

TRAFFIC = Row(
    title="Traffic",
    panels=(
        Panel(
            kind="lines",
            title="Compiles, captures and tuning after ready",
            description=(
                "Total work done after READY. Warm-up should have prevented this work, so all "
                "counts should stay at 0. In Ray's export, a series is missing while its count is "
                "0."
            ),
            unit="short",
            empty="no replica exports metrics, or Ray has not exported a count yet",
            limits=((1.0, FAILING),),
            queries=tuple(
                Query(
                    expr=f"sum by ({DEPLOYMENT}) ({each(name)})",
                    legend=f"{{{{deployment}}}} {what}",
                )
                for name, what in AFTER_READY
            ),
        ),
        Panel(
            kind="lines",
            title="Eager share of calls",
            description=(
                "Share of the calls of compiled functions that had no compiled code and ran "
                "eagerly. With `after_ready: eager` these are calls that no input foresaw. In a "
                "replica with the verdict `eager`, all calls are."
            ),
            unit="percentunit",
            empty="no replica exports metrics, or none made a call",
            limits=((0.05, "orange"),),
            queries=(
                Query(
                    # Ray exports a counter only from its first count on.
                    expr=f"({CALLING_EAGERLY} or 0 * {CALLING}) / ({CALLING} > 0)",
                    legend="{{deployment}}",
                ),
            ),
        ),
        Panel(
            kind="table",
            title="Eager calls",
            description=(
                "Mean seconds of eager calls in the time range, by callable and reason. The report "
                "of the replica names the calls, and an input to declare for each. Functions of "
                "torch.compile itself are not timed."
            ),
            unit="s",
            empty="no call ran eagerly",
            queries=(
                Query(
                    expr=f"sum by ({DEPLOYMENT}, callable, reason) "
                    f"({ours('eager_call_seconds_total')}) / "
                    f"sum by ({DEPLOYMENT}, callable, reason) ({ours('eager_calls_total')}) >= 0",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title="Waiting requests and starting replicas",
            description=(
                "Number of requests that are waiting for a replica (Ray's own metric), and number "
                "of replicas that are starting."
            ),
            unit="short",
            empty="neither Ray nor a replica exports metrics",
            queries=(
                Query(
                    expr=f"sum by ({DEPLOYMENT}) "
                    f"(ray_serve_deployment_queued_queries{{{OF_DEPLOYMENT}}})",
                    legend="{{deployment}} waiting requests",
                ),
                Query(
                    expr=f"sum by ({DEPLOYMENT}) ({each('stage', 'stage', IN_START)}) "
                    f"or 0 * count by ({DEPLOYMENT}) ({each('ready')})",
                    legend="{{deployment}} starting replicas",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title="Entries compared with eager execution",
            description=(
                "Total checks of entries against eager execution, by result, and total withdrawn "
                "entries. The number of withdrawn entries should stay at 0."
            ),
            unit="short",
            empty="no replica exports metrics, or Ray has not exported a count yet",
            colors={"same": "green", "different": FAILING},
            queries=(
                Query(
                    expr=f"sum by (result) ({each('parity_checks_total', 'result')})",
                    legend="{{result}}",
                ),
                Query(
                    expr=f"sum by ({DEPLOYMENT}) ({each('parity_failures_total')})",
                    legend="{{application}} {{deployment}} withdrawn",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title="Ray's own start-up histograms, 95th percentile",
            description=(
                "The panel covers all starts that the controller has seen. The value is an "
                "estimate: the largest bucket ends at 240 s, unless "
                "RAY_SERVE_REPLICA_STARTUP_SHUTDOWN_LATENCY_BUCKETS_MS sets different buckets."
            ),
            unit="ms",
            empty="Ray's own metrics are not exported",
            queries=tuple(
                Query(
                    expr=quantile(0.95, DEPLOYMENT, f"ray_serve_replica_{what}_latency_ms"),
                    legend=f"{{{{deployment}}}} {what}",
                )
                for what in ("startup", "initialization")
            ),
        ),
    ),
)

NODES = Row(
    title="Node servers",
    panels=(
        Panel(
            kind="lines",
            title=f"Ready nodes ({NODE_ONLY})",
            description=(
                "Number of nodes whose /readyz answers 200, and total number of nodes with a node "
                "server. /readyz ignores an unready replica that was added to a warm node."
            ),
            unit="short",
            empty="no node server is scraped",
            queries=(
                Query(expr=f"sum(serve_warm_node_ready{{{OF_CLUSTER}}})", legend="ready"),
                Query(expr=f"count(serve_warm_node_ready{{{OF_CLUSTER}}})", legend="all"),
                Query(
                    expr=f"sum(serve_warm_node_excused{{{OF_CLUSTER}}})",
                    legend="unready replicas that /readyz ignores",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title=f"Failing checks ({NODE_ONLY})",
            description=(
                "For each /readyz check (warm, raylet, proxy, draining), the number of nodes on "
                "which this check fails."
            ),
            unit="short",
            empty="no node server is scraped",
            limits=((1.0, FAILING),),
            queries=(
                Query(
                    expr=f"sum by (check) (1 - serve_warm_node_check{{{OF_CLUSTER}}})",
                    legend="{{check}}",
                ),
            ),
        ),
        Panel(
            kind="stack",
            title=f"Replicas by condition ({NODE_ONLY})",
            description=(
                "Number of replicas by condition, as reported by the node servers. Includes dead "
                "replicas."
            ),
            unit="short",
            empty="no node server is scraped",
            colors=CONDITIONS,
            queries=(
                Query(
                    expr=f"sum by (condition) (serve_warm_node_replicas{{{OF_CLUSTER}}})",
                    legend="{{condition}}",
                ),
            ),
        ),
        Panel(
            kind="bars",
            title=f"Starts in the time range by outcome ({NODE_ONLY})",
            description=(
                "Number of starts by outcome. The outcome is the verdict if the replica became "
                "ready, 'failed' if the start failed, or 'died' if the process ended before READY "
                "or FAILED."
            ),
            unit="short",
            empty="no node server has seen a start",
            colors=OUTCOMES,
            queries=(
                Query(
                    expr="round(sum by (outcome) "
                    f"(increase(serve_warm_starts_total{{{OF_DEPLOYMENT}}}[$__range])))",
                    legend="{{outcome}}",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title=f"Duration of starts, median and 95th percentile ({NODE_ONLY})",
            description=(
                "Grouped by outcome. The panel covers all starts that the node servers have seen "
                "since these servers started. The values are estimates from histogram buckets."
            ),
            unit="s",
            empty="no node server has seen the end of a start",
            queries=tuple(
                Query(
                    expr=quantile(share, "outcome", "serve_warm_start_duration_seconds"),
                    legend=f"{{{{outcome}}}} {what}",
                )
                for share, what in ((0.5, "median"), (0.95, "95th percentile"))
            ),
        ),
        Panel(
            kind="lines",
            title=f"Heartbeat age ({NODE_ONLY})",
            description=(
                "Seconds since each live replica last wrote its state. A value above 30 means "
                "that the replica is hung or stopped."
            ),
            unit="s",
            empty="no node server sees a live replica",
            limits=((LATE_HEARTBEAT_S, FAILING),),
            queries=(
                Query(
                    expr=f"max by ({REPLICA}) (serve_warm_heartbeat_age_seconds{{{OF_REPLICA}}})",
                    legend="{{deployment}} {{replica}}",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title=f"Time in the current stage ({NODE_ONLY})",
            description="Seconds in the current stage, for live replicas that are not ready.",
            unit="s",
            empty="no node server sees a starting replica",
            queries=(
                Query(
                    expr=f"max by ({REPLICA}) (serve_warm_stage_age_seconds{{{OF_REPLICA}}})"
                    f" and on ({REPLICA})"
                    f" max by ({REPLICA})"
                    f' (serve_warm_stage{{{OF_REPLICA},stage!="ready"}}) == 1',
                    legend="{{deployment}} {{replica}}",
                ),
            ),
        ),
    ),
)

ON_THE_GPU = Row(
    title="On the GPU",
    folded=True,
    panels=(
        Panel(
            kind="lines",
            title="Memory of CUDA graphs",
            description=(
                "GPU memory reserved for the CUDA graphs of each live replica. Other tensors "
                "cannot use this memory. Replicas measure this memory after warm-up, and again "
                "after later captures."
            ),
            unit="bytes",
            empty="no live replica has measured a GPU",
            queries=(
                Query(
                    expr=living(each("graph_pool_bytes", "device")),
                    legend="{{deployment}} {{replica}} {{device}}",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title="GPU memory that torch reserves",
            description=(
                "Memory that torch reserves in each live replica, and the peak of this memory. "
                "Includes memory for CUDA graphs. Replicas measure this memory after warm-up, and "
                "again after later captures."
            ),
            unit="bytes",
            empty="no live replica has measured a GPU",
            queries=(
                Query(
                    expr=living(each("gpu_reserved_bytes", "device")),
                    legend="{{deployment}} {{replica}} {{device}}",
                ),
                Query(
                    expr=living(each("gpu_reserved_peak_bytes", "device")),
                    legend="{{deployment}} {{replica}} {{device}} at the peak",
                ),
            ),
        ),
    ),
)

OF_ONE_DEPLOYMENT = Row(
    title="Deployment $Deployment",
    repeat="Deployment",
    folded=True,
    panels=(
        Panel(
            kind="lines",
            title="Time to ready and time to proof",
            description=(
                "Time to ready: from the replica's creation to READY. Time to proof: from "
                "the end of __init__ to the end of the proof."
            ),
            unit="s",
            empty="no replica exports metrics",
            queries=(
                Query(expr=each("ready_seconds"), legend="{{replica}} to ready"),
                Query(expr=each("to_proof_seconds"), legend="{{replica}} to proof"),
            ),
        ),
        Panel(
            kind="bars",
            title="Stages of each start",
            description="Exact time that each replica spent in each stage of its start.",
            unit="s",
            empty="no replica has finished a stage",
            queries=(Query(expr=each("stage_seconds", "stage"), legend="{{replica}} {{stage}}"),),
        ),
        Panel(
            kind="lines",
            title="Proven share of inputs",
            description=(
                "Share of declared inputs that passed the proof, during which compiling is "
                "forbidden. A line whose name ends in 'done' shows the share of inputs that the "
                "current or last pass has replayed."
            ),
            unit="percentunit",
            empty="no replica has declared inputs",
            queries=tuple(
                Query(
                    expr=f"{each(f'inputs_{what}')} / on ({REPLICA}) "
                    f"({each('inputs_expected')} > 0)",
                    legend=f"{{{{replica}}}} {what}",
                )
                for what in ("proven", "done")
            ),
        ),
    ),
)

OF_ONE_REPLICA = Row(
    title="Replica $Replica",
    folded=True,
    panels=(
        Panel(
            kind="lines",
            title="Kinds of calls by level",
            description=(
                "Distinct kinds of calls, by the level that runs them. Level 1 is torch.compile, "
                "level 2 is an entry, and level 3 is a library."
            ),
            unit="short",
            empty="no replica has called a module or function compiled with serve_warm.compile",
            queries=(
                Query(expr=each("calls_known", "level"), legend="{{replica}} level {{level}}"),
            ),
        ),
        Panel(
            kind="lines",
            title="Degraded, unverified or narrow",
            description=(
                "The value of 'degraded' is 1 for a ready replica with a missed deadline, unproven "
                "inputs, an incomplete artifact or withdrawn entries. The value of 'unverified' is "
                "1 while the replica uses an artifact without a trusted signature. The value of "
                "'narrow' is the number of things that all declared inputs have in common although "
                "a request that differs would compile."
            ),
            unit="short",
            empty="no live replica exports metrics",
            limits=((1.0, "orange"),),
            queries=(
                Query(expr=each("degraded"), legend="{{replica}} degraded"),
                Query(expr=each("unverified"), legend="{{replica}} unverified"),
                Query(expr=each("narrow"), legend="{{replica}} narrow"),
            ),
        ),
        Panel(
            kind="lines",
            title="Elapsed seconds of the start",
            description=(
                "Seconds since the replica was created. The value stops growing at READY or FAILED."
            ),
            unit="s",
            empty="no live replica exports metrics",
            queries=(Query(expr=each("start_elapsed_seconds"), legend="{{replica}}"),),
        ),
    ),
)

ROWS = (NOW, FLEET, ARTIFACT, TRAFFIC, NODES, ON_THE_GPU, OF_ONE_DEPLOYMENT, OF_ONE_REPLICA)
