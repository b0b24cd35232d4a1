# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What the dashboard "Warm start" shows: its rows, their panels, and what these ask Prometheus.

The variable `sink` is the beginning of our metrics' names, as the node server or as Ray exports
them. It is never empty: a custom variable of Grafana cannot have an empty value since 10.2. The
other variables are called as on Ray's own dashboards, so that links carry them over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
"""Colour of each stage, in the order of a start."""

VERDICTS = {
    "full_hit": "green",
    "partial": "yellow",
    "miss": "orange",
    "refused": "red",
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
"""Of what should be 0."""

NODE_ONLY = "node server only"
"""In the title of what the other sink does not have."""

# --- expressions ---------------------------------------------------------------------------

OF_NAMESPACE = 'namespace=~"$Namespace"'
OF_CLUSTER = f'{OF_NAMESPACE},ray_io_cluster=~"$Cluster"'
OF_DEPLOYMENT = f'{OF_CLUSTER},application=~"$Application",deployment=~"$Deployment"'
OF_REPLICA = f'{OF_DEPLOYMENT},replica=~"$Replica"'
DEPLOYMENT = "application, deployment"
REPLICA = f"{DEPLOYMENT}, replica"
IN_START = ',stage!~"ready|failed"'


def ours(name: str, more: str = "", span: str = "") -> str:
    """Return the series of a metric of replicas, in the sink that is chosen."""
    return f"${{sink}}_{name}{{{OF_REPLICA}{more}}}{span}"


def each(name: str, own: str = "", more: str = "") -> str:
    """Return one series a replica (and own label), without the labels that a sink adds."""
    by = f"{REPLICA}, {own}" if own else REPLICA
    return f"max by ({by}) ({ours(name, more)})"


def living(expression: str) -> str:
    """Leave out replicas that have ended, which a node server remembers."""
    return f"({expression} and on ({REPLICA}) {each('start_elapsed_seconds')})"


def starting(expression: str) -> str:
    """Leave out replicas that are ready, failed or ended."""
    return f"({expression} and on ({REPLICA}) {each('stage', more=IN_START)} == 1)"


def over_range(name: str, more: str = "") -> str:
    """Return the largest value of each replica in the time range of the dashboard."""
    return f"max by ({REPLICA}) (max_over_time({ours(name, more, '[$__range]')}))"


def quantile(share: float, by: str, histogram: str) -> str:
    """Return a quantile of all that was counted; rates would miss what was counted first.

    The comparison leaves out histograms in which nothing was counted yet: theirs is no number.
    """
    counted = f"sum by (le, {by}) ({histogram}_bucket{{{OF_DEPLOYMENT}}})"
    return f"histogram_quantile({share}, {counted}) >= 0"


def stage_number() -> str:
    """Return the place of each living replica's stage in STAGES, from 1 on."""
    own = [each("stage", more=f',stage="{name}"') for name in STAGES]
    return " or ".join(f"{number} * ({value} == 1)" for number, value in enumerate(own, 1))


# --- panels --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Query:
    """An expression, and how its series are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What one panel shows."""

    kind: str
    """`lines`, `stack`, `points`, `number`, `bars`, `table`, `alerts` or `stages`."""
    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    limits: tuple[tuple[float, str], ...] = ()
    """From which value on it has which colour; below the first one it is green. A panel without
    limits says nothing of good and bad: numbers are blue then, and lines have Grafana's palette."""
    colors: Mapping[str, str] = field(default_factory=dict)
    """Colour by the name of a series; the others have Grafana's."""
    empty: str = "no data"
    """What it shows where there is nothing."""
    width: int = 12
    height: int = 8


@dataclass(frozen=True, kw_only=True)
class Row:
    """Panels under a title; those that are repeated for a variable are folded away."""

    title: str
    panels: tuple[Panel, ...]
    repeat: str = ""
    folded: bool = False


def number(
    title: str,
    description: str,
    unit: str,
    expr: str,
    *limits: tuple[float, str],
    empty: str = "none",
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
        width=4,
        height=4,
    )


COLD = ',verdict=~"miss|refused"'
NONE_OF_ANY = f"0 * count({over_range('ready')})"
"""0 where there are replicas, and nothing where there are none: no data must not look good."""
CONFIGURED = f"{over_range('artifact_configured')} == 1"
# What is recorded over weeks has no cluster, which has a new name at each upgrade.
OF_ALL_CLUSTERS = OF_DEPLOYMENT.replace(OF_CLUSTER, OF_NAMESPACE)
STARTS = f"deployment:serve_warm_starts:count28d{{{OF_ALL_CLUSTERS}}}"
MISSED = f"deployment:serve_warm_starts_missed:ratio28d{{{OF_ALL_CLUSTERS}}}"

OLD_S = 30 * 86400.0
"""Age from which the chart's rules call an artifact old, by default."""
LATE_HEARTBEAT_S = 30.0
"""Heartbeat age from which /readyz calls a replica stale."""

ALERTS = Panel(
    kind="alerts",
    title="Alerts that fire",
    description="Of the chart's rules; a click on one opens its runbook.",
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
        "Replicas that are proven warm, or serve by policy.",
        "short",
        f"sum({each('ready')})",
        (0.0, FAILING),
        (1.0, "green"),
    ),
    number(
        "Starting replicas",
        "Replicas that live and are neither ready nor failed.",
        "short",
        f"sum({each('stage', 'stage', IN_START)})",
    ),
    number(
        f"Failed starts ({NODE_ONLY})",
        "Starts of the time range that said FAILED, or whose process died before READY.",
        "short",
        "round(sum(increase(serve_warm_starts_total"
        f'{{{OF_DEPLOYMENT},outcome=~"failed|died"}}[$__range])))',
        (1.0, FAILING),
    ),
    number(
        "Cold share",
        "Of the replicas of the time range that want an artifact, the share that found none "
        "that fits (miss) or did not load it (refused).",
        "percentunit",
        f"sum({over_range('verdict', COLD)} and on ({REPLICA}) {CONFIGURED}) / count({CONFIGURED})",
        (0.001, "orange"),
        (0.1, FAILING),
        empty="no artifact is wanted",
    ),
    number(
        "Objective met, 28 days",
        "By the recording rules of the chart, which set the objective; empty without them. "
        "It has the deployments that are chosen, on all clusters. Red below 95 %, the default of "
        "startSloObjective.",
        "percentunit",
        f"1 - sum({MISSED} * on (namespace, application, deployment) {STARTS}) / sum({STARTS})",
        (0.0, FAILING),
        (0.95, "green"),
        empty="no rules",
    ),
    number(
        "Compiles after ready",
        "Frames compiled in traffic by the replicas of the time range: should stay 0.",
        "short",
        f"sum({over_range('compiles_after_ready_total')}) or {NONE_OF_ANY}",
        (1.0, FAILING),
    ),
    number(
        "Degraded replicas",
        "Ready replicas that are degraded, or run an artifact that nobody who is trusted signed.",
        "short",
        f"count({living(each('degraded'))} == 1 or on ({REPLICA}) "
        f"{living(each('unverified'))} == 1) or {NONE_OF_ANY}",
        (1.0, "orange"),
    ),
    number(
        "Oldest artifact",
        "The age of the oldest artifact that a living replica runs. Orange from 30 days on, the "
        "default of artifactMaxAgeDays.",
        "s",
        f"max({living('time() - ' + each('artifact_created_timestamp_seconds'))})",
        (OLD_S, "orange"),
    ),
)

TIMELINE = Panel(
    kind="stages",
    title="Stages of each replica",
    description="One line a replica: how its start went. It ends with the replica, and has a gap "
    "while one that was ready hangs.",
    unit="short",
    queries=(Query(expr=stage_number(), legend="{{application}} {{deployment}} {{replica}}"),),
    width=24,
    height=9,
)

NOW = Row(title="What is wrong now", panels=(*NUMBERS[:4], ALERTS, *NUMBERS[4:], TIMELINE))

FLEET = Row(
    title="Fleet",
    panels=(
        Panel(
            kind="stack",
            title="Replicas by stage",
            description="Where the replicas of the fleet are on their way to READY.",
            unit="short",
            colors=STAGES,
            queries=(Query(expr=f"sum by (stage) ({each('stage', 'stage')})", legend="{{stage}}"),),
        ),
        Panel(
            kind="points",
            title="Time to ready of each replica, and the objective",
            description="Exact seconds from a replica's creation, before its __init__, to READY. "
            "The line is the variable slo, which the chart sets to startSloSeconds.",
            unit="s",
            colors={"objective": FAILING},
            queries=(
                Query(expr=each("ready_seconds"), legend="{{deployment}} {{replica}}"),
                Query(expr="vector($slo)", legend="objective"),
            ),
        ),
        Panel(
            kind="bars",
            title="Stage breakdown",
            description="Mean seconds that the starts of living replicas spent in each stage.",
            unit="s",
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
            title="Used share of the deadline",
            description="Of replicas that are starting. At 1 a start fails, or serves late.",
            unit="percentunit",
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
    ),
)

ARTIFACT = Row(
    title="Artifact",
    panels=(
        Panel(
            kind="stack",
            title="Living replicas by verdict: hit, miss, refused",
            description="What the artifact was worth in the start of each living replica.",
            unit="short",
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
            description="Living replicas that found an artifact and did not load it, and why.",
            unit="short",
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
            description="The oldest that living replicas of each deployment run.",
            unit="s",
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
            description="Living replicas by deployment, kind of store, statement and the day that "
            "the artifact was made.",
            unit="short",
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
            description="Living replicas by release of serve_warm, Ray and torch.",
            unit="short",
            queries=(
                Query(
                    expr="count by (version, ray_version, torch_version) "
                    f"({living(each('build_info', 'version, ray_version, torch_version'))})",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title="Downloaded by each start",
            description="Bytes of artifact that came from the store; 0 where the node had them.",
            unit="bytes",
            queries=(Query(expr=each("downloaded_bytes"), legend="{{deployment}} {{replica}}"),),
        ),
        Panel(
            kind="lines",
            title="Look-ups in torch's caches during warm-up",
            description="By layer (fx: Inductor, aot: AOTAutograd) and result, of living replicas.",
            unit="short",
            queries=(
                Query(
                    expr="sum by (layer, result) "
                    f"({living(each('cache_lookups', 'layer, result'))})",
                    legend="{{layer}} {{result}}",
                ),
            ),
        ),
    ),
)

AFTER_READY = (
    ("compiles_after_ready_total", "compiles"),
    ("captures_after_ready_total", "captures"),
    ("graph_skips_after_ready_total", "graphs skipped"),
    ("kernels_built_after_ready_total", "kernels built"),
    ("tunings_after_ready_total", "tunings"),
    ("eager_falls_after_ready_total", "falls to eager"),
    ("forbidden_after_ready_total", "refused with 503"),
)

TRAFFIC = Row(
    title="Traffic",
    panels=(
        Panel(
            kind="lines",
            title="Compiles and the like after ready",
            description="What the replicas did in traffic that warm-up is there to prevent: "
            "totals, which should stay 0. Of Ray's export a series begins with its first count.",
            unit="short",
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
            title="Queue waiting behind warm-up",
            description="Requests that wait for a replica, by Ray's own metrics, beside the "
            "replicas that are starting.",
            unit="short",
            queries=(
                Query(
                    expr=f"sum by ({DEPLOYMENT}) "
                    f"(ray_serve_deployment_queued_queries{{{OF_DEPLOYMENT}}})",
                    legend="{{deployment}} requests",
                ),
                Query(
                    expr=f"sum by ({DEPLOYMENT}) ({each('stage', 'stage', IN_START)})",
                    legend="{{deployment}} starting replicas",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title="Entries against eager",
            description="Checks of entries by result, and entries that were withdrawn, which "
            "should stay 0. Totals.",
            unit="short",
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
            title="Calls without an entry",
            description="Calls of what serve_warm.compile was given that no entry fits: "
            "torch.compile answered them. Totals.",
            unit="short",
            limits=((1.0, "orange"),),
            queries=(
                Query(
                    expr=f"sum by ({DEPLOYMENT}) ({each('calls_without_entry_total')})",
                    legend="{{application}} {{deployment}}",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title="Ray's own start-up histograms, 95 %",
            description="Of all starts that the controller has seen, where Ray exports them. Not "
            "exact: its largest bucket ends at 240 s unless "
            "RAY_SERVE_REPLICA_STARTUP_SHUTDOWN_LATENCY_BUCKETS_MS says otherwise.",
            unit="ms",
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
            description="Nodes whose /readyz answers 200, and all that have a node server.",
            unit="short",
            queries=(
                Query(expr=f"sum(serve_warm_node_ready{{{OF_CLUSTER}}})", legend="ready"),
                Query(expr=f"count(serve_warm_node_ready{{{OF_CLUSTER}}})", legend="all"),
                Query(
                    expr=f"sum(serve_warm_node_excused{{{OF_CLUSTER}}})",
                    legend="replicas that do not count yet",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title=f"Failing checks ({NODE_ONLY})",
            description="Nodes on which a check of /readyz does not pass: warm, raylet, proxy.",
            unit="short",
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
            description="What the nodes see of their replicas; dead ones are remembered.",
            unit="short",
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
            title=f"Starts of the time range by outcome ({NODE_ONLY})",
            description="How starts ended: the verdict, failed, or died before either.",
            unit="short",
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
            title=f"Duration of starts, half and 95 % ({NODE_ONLY})",
            description="Of all starts since the node servers began, by outcome. From a histogram: "
            "within its buckets it is a guess.",
            unit="s",
            queries=tuple(
                Query(
                    expr=quantile(share, "outcome", "serve_warm_start_duration_seconds"),
                    legend=f"{{{{outcome}}}} {share:.0%}",
                )
                for share in (0.5, 0.95)
            ),
        ),
        Panel(
            kind="lines",
            title=f"Duration of stages, 95 % ({NODE_ONLY})",
            description="Of all starts since the node servers began, as above.",
            unit="s",
            colors=STAGES,
            queries=(
                Query(
                    expr=quantile(0.95, "stage", "serve_warm_stage_duration_seconds"),
                    legend="{{stage}}",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title=f"Heartbeat age ({NODE_ONLY})",
            description="Seconds since living replicas wrote; above 30 one hangs or is stopped.",
            unit="s",
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
            title=f"Time in the present stage ({NODE_ONLY})",
            description="Of living replicas that are not ready yet.",
            unit="s",
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
            title="Captures, kernels and tunings in warm-up",
            description="What each start did on the GPU. CUDA graphs are captured at each one; a "
            "full hit builds no kernel and tunes none.",
            unit="short",
            queries=tuple(
                Query(expr=each(name), legend=f"{{{{deployment}}}} {{{{replica}}}} {what}")
                for name, what in (
                    ("captures", "captures"),
                    ("graph_skips", "graphs skipped"),
                    ("kernels_built", "kernels built"),
                    ("tunings", "tunings"),
                )
            ),
        ),
        Panel(
            kind="lines",
            title="Time of captures and tunings in warm-up",
            description="Wall seconds of each start in which CUDA graphs were captured and kernels "
            "tuned.",
            unit="s",
            queries=tuple(
                Query(
                    expr=each(f"{what}_seconds"),
                    legend=f"{{{{deployment}}}} {{{{replica}}}} {what}",
                )
                for what in ("capture", "tuning")
            ),
        ),
        Panel(
            kind="lines",
            title="Time of captures and tunings in traffic",
            description="Wall seconds in which requests waited for a capture or a tuning. Totals, "
            "which should stay 0.",
            unit="s",
            limits=((0.001, FAILING),),
            queries=tuple(
                Query(
                    expr=f"sum by ({DEPLOYMENT}) ({each(f'{what}_after_ready_seconds_total')})",
                    legend=f"{{{{deployment}}}} {what}",
                )
                for what in ("capture", "tuning")
            ),
        ),
        Panel(
            kind="lines",
            title="Memory of CUDA graphs",
            description="GPU memory that the graphs of each living replica keep for themselves: "
            "no other tensor gets it. After the warm-up, and again after captures in traffic.",
            unit="bytes",
            queries=(
                Query(
                    expr=living(each("graph_pool_bytes", "device")),
                    legend="{{deployment}} {{replica}} {{device}}",
                ),
            ),
        ),
        Panel(
            kind="lines",
            title="GPU memory that torch keeps",
            description="Of each living replica when the memory of its graphs was measured, which "
            "is a part of it; and the most until then.",
            unit="bytes",
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
            title="Time to ready, and to the proof",
            description="From the creation of the replica to READY; from the end of its __init__ "
            "to the end of the proof.",
            unit="s",
            queries=(
                Query(expr=each("ready_seconds"), legend="{{replica}} ready"),
                Query(expr=each("to_proof_seconds"), legend="{{replica}} to proof"),
            ),
        ),
        Panel(
            kind="bars",
            title="Stages of each start",
            description="Exact seconds that each replica's start spent in each stage.",
            unit="s",
            queries=(Query(expr=each("stage_seconds", "stage"), legend="{{replica}} {{stage}}"),),
        ),
        Panel(
            kind="lines",
            title="Proven share of inputs",
            description="Of the declared inputs, those that went through the pass in which "
            "compiling is forbidden; and those replayed in the pass under way, or the last one.",
            unit="percentunit",
            queries=tuple(
                Query(
                    expr=f"{each(f'inputs_{what}')} / on ({REPLICA}) {each('inputs_expected')}",
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
            title="Compiler processes in warm-up",
            description="Those that produced an object: 0 for a full hit.",
            unit="short",
            queries=(Query(expr=each("compiler_processes"), legend="{{replica}}"),),
        ),
        Panel(
            kind="lines",
            title="Compiler time in warm-up",
            description="Wall seconds in compiler processes, summed over threads.",
            unit="s",
            queries=(Query(expr=each("compiler_seconds"), legend="{{replica}}"),),
        ),
        Panel(
            kind="lines",
            title="Kinds of calls by level",
            description="What answers them: 1 torch.compile, 2 an entry, 3 a library.",
            unit="short",
            queries=(
                Query(expr=each("calls_known", "level"), legend="{{replica}} level {{level}}"),
            ),
        ),
        Panel(
            kind="bars",
            title="Work hidden beside __init__",
            description="Seconds of each stage's work that were over when __init__ ended.",
            unit="s",
            queries=(
                Query(expr=each("stage_hidden_seconds", "stage"), legend="{{replica}} {{stage}}"),
            ),
        ),
        Panel(
            kind="lines",
            title="Degraded or unverified",
            description="1 while a replica serves late or with unproven inputs; 1 while it runs an "
            "artifact that nobody who is trusted signed.",
            unit="short",
            limits=((1.0, "orange"),),
            queries=(
                Query(expr=each("degraded"), legend="{{replica}} degraded"),
                Query(expr=each("unverified"), legend="{{replica}} unverified"),
            ),
        ),
        Panel(
            kind="lines",
            title="Seconds of the start so far",
            description="Since the replica was created; stands still from READY or FAILED on.",
            unit="s",
            queries=(Query(expr=each("start_elapsed_seconds"), legend="{{replica}}"),),
        ),
    ),
)

ROWS = (NOW, FLEET, ARTIFACT, TRAFFIC, NODES, ON_THE_GPU, OF_ONE_DEPLOYMENT, OF_ONE_REPLICA)
