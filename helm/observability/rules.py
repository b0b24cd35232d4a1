# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The Prometheus rules, which record figures about starts and define when alerts fire.

`python helm/observability/rules.py` writes the rules to the chart twice:

    rules/serve-warm.yaml       a rules file for Prometheus, with the default numbers
    rules/serve-warm.tpl.yaml   the same file as a template, in which Helm's values set the numbers

The chart includes the template with `tpl (.Files.Get "rules/serve-warm.tpl.yaml") .`. The template
needs these values; `DEFAULTS` contains their default numbers:

    alerts.startSloSeconds       a start that takes longer misses the objective
    alerts.startSloObjective     the share of starts that must meet the objective, from 0 to 1
    alerts.artifactMaxAgeDays    the age above which an artifact counts as old
    alerts.minStarts             an alert on the objective needs this many starts in its long window
    alerts.runbookUrl            the address of docs/runbooks.md

The rules use metrics from node servers and metrics from Ray. If a replica has metrics from both,
the rules count the replica once. The rules need Prometheus 2.42 or newer.

The rules sum by namespace, application and deployment, never by cluster. KubeRay renames the
cluster at each upgrade. Sums by cluster would then start again from zero, but the objective covers
28 days.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

RULES = Path(__file__).parents[1] / "serve-warm" / "rules"

DEFAULTS = {
    "startSloSeconds": "60",
    "startSloObjective": "0.95",
    "artifactMaxAgeDays": "30",
    "minStarts": "5",
    "runbookUrl": "docs/runbooks.md",
}

WHO = "namespace, application, deployment"
EACH = f"{WHO}, replica"
TARGET = "namespace, job, instance"

WINDOWS = ("30m", "6h", "3d", "28d")
"""Time windows of the objective. Each alert on the objective uses two windows. The objective itself
uses the longest window."""


def value(name: str) -> str:
    """Return the placeholder for one of the values in `DEFAULTS`."""
    if name not in DEFAULTS:
        raise KeyError(name)
    return f"@{name}@"


NO_BUILD = 'application!~"serve_warm-[0-9a-f]{8}"'
"""Excludes the applications of `serve-warm build --address`, which reports its own failures."""


def ours(name: str, matchers: str = "") -> str:
    """Return the selector of a metric, without series from builds."""
    inside = f"{NO_BUILD},{matchers}" if matchers else NO_BUILD
    return f"{name}{{{inside}}}"


def each(name: str, by: str = EACH, *, matchers: str = "") -> str:
    """Return an expression with one series for each replica, and only the labels in `by`.

    Each series comes from the node server or from Ray.
    """
    node, ray = (ours(f"{sink}_{name}", matchers) for sink in ("serve_warm", "ray_serve_warm"))
    return f"max by ({by}) ({node} or {ray})"


# --- recording rules -----------------------------------------------------------------------

STAGE = "replica:serve_warm_stage:now"
START = "replica:serve_warm_start:within_slo"
RECENT = "replica:serve_warm_start:recent"
UNREADY = "replica:serve_warm_unready:timestamp"
READY = "deployment:serve_warm_replicas_ready:count"
READY_AT = "deployment:serve_warm_replicas_ready:timestamp"
STARTING = "deployment:serve_warm_replicas_starting:count"


def starts(window: str) -> str:
    """Return the name of the recorded series that counts the starts that ended in a window."""
    return f"deployment:serve_warm_starts:count{window}"


def missed(window: str) -> str:
    """Return the name of the recorded series: the share of late or failed starts in a window."""
    return f"deployment:serve_warm_starts_missed:ratio{window}"


def record(name: str, expression: str) -> dict[str, Any]:
    """Return a recording rule."""
    return {"record": name, "expr": expression.strip()}


UNREADABLE = "serve_warm_node_states_readable == 0"
NODE_STAGE = f"{ours('serve_warm_stage')} unless on ({TARGET}) {UNREADABLE}"

# Replicas that were never ready, and died in the last 10 minutes. Replicas that were already dead
# in the hour before these 10 minutes are left out, so that a missed scrape does not count a death
# twice. Only node servers export dead replicas.
ALIVE = ours("serve_warm_replica_alive")
DIED = f"""
  max by ({EACH}) ({ALIVE}) == 0
  unless on ({EACH}) max by ({EACH}) (serve_warm_ready_seconds)
  unless on ({EACH}) min by ({EACH}) (min_over_time({ALIVE}[1h] offset 10m)) == 0
""".strip()

RECORDS = [
    # One series for each live replica, with its stage. A replica that was ready and now hangs has
    # no series. If a node server knows a replica, the rule ignores Ray's metrics for this replica:
    # Ray's metrics lag by up to 10 s, and show a hung replica as ready. The rule also ignores node
    # servers that cannot read state files, because they keep exporting the last values that they
    # read.
    record(
        STAGE,
        f"""
max by ({EACH}, stage) ({NODE_STAGE}) == 1
or on ({EACH})
max by ({EACH}, stage) (
  {ours("ray_serve_warm_stage")} unless on ({EACH}) ({NODE_STAGE})
) == 1
""",
    ),
    record(READY, f'count by ({WHO}) ({STAGE}{{stage="ready"}})'),
    record(READY_AT, f"timestamp({READY})"),
    record(STARTING, f'count by ({WHO}) ({STAGE}{{stage!~"ready|failed"}})'),
    # One series for each start that ended in the last 10 minutes: 1 if it was ready in time, 0 if
    # it was late or died before it was ready. In each window, a replica therefore counts once, even
    # after it has ended. increase() would miss a counter whose first value is 1.
    record(
        START,
        f"""
(
  {each("ready_seconds")} <= bool {value("startSloSeconds")}
  and on ({EACH})
  time() - {each("ready_timestamp_seconds")} < 600
)
or on ({EACH})
0 * (
  {DIED}
)
""",
    ),
    # The current time, for each replica that is not ready yet, or that died before it was ready.
    # The minimum over a window is the time at which the replica was first seen. A start can be so
    # short that no scrape sees the replica alive.
    record(
        UNREADY,
        f"""
time() + 0 * (
  max by ({EACH}) ({STAGE}{{stage!="ready"}})
  or on ({EACH})
  {DIED}
)
""",
    ),
    # One series for each replica that is not ready yet, or whose start ended in the last hour.
    record(
        RECENT,
        f"""
count by ({EACH}) (max_over_time({START}[1h]))
or on ({EACH})
count by ({EACH}) ({STAGE}{{stage!="ready"}})
""",
    ),
]
for _window in WINDOWS:
    RECORDS += [
        record(starts(_window), f"count by ({WHO}) (max_over_time({START}[{_window}]))"),
        record(missed(_window), f"1 - avg by ({WHO}) (min_over_time({START}[{_window}]))"),
    ]


# --- alerts --------------------------------------------------------------------------------

OF = "{{ $labels.application }}#{{ $labels.deployment }}"


def anchor(name: str) -> str:
    """Return the anchor of an alert's section in the runbooks."""
    return name.lower()


def alert(
    name: str, severity: str, expression: str, summary: str, description: str, *, lasting: str = ""
) -> dict[str, Any]:
    """Return an alerting rule. It fires after the expression has been true for `lasting`."""
    return {
        "alert": name,
        "expr": expression.strip(),
        **({"for": lasting} if lasting else {}),
        # The dashboard's list of alerts can read only labels, and uses this label to link to the
        # runbook.
        "labels": {"severity": severity, "runbook": anchor(name)},
        "annotations": {
            "summary": summary,
            "description": description,
            "runbook_url": f"{value('runbookUrl')}#{anchor(name)}",
        },
    }


def burns(factor: int, long: str, short: str) -> str:
    """Return an expression that is true if too many starts missed the objective.

    The limit is `factor` times the error budget: the share of starts that may miss the objective.
    """
    limit = f"{factor} * (1 - {value('startSloObjective')})"
    return f"""
{missed(long)} > {limit}
and {missed(short)} > {limit}
and {starts(long)} >= {value("minStarts")}
"""


SLO = (
    f"The objective is {value('startSloObjective')}: at least this share of starts must reach "
    f"READY within {value('startSloSeconds')} s of the replica's creation"
)

RECENT_REPLICAS = (
    "The number includes replicas that are still starting, and replicas whose start ended in the "
    "last hour."
)
"""Describes the replicas that `RECENT` selects."""


def in_traffic(name: str, span: str = "10m") -> str:
    """Return an expression that counts one kind of event after READY, for each deployment.

    `name` is the kind of event, such as `compiles`. Deployments without events have no series.
    """
    of_node = ours(f"serve_warm_{name}_after_ready_total")
    of_ray = ours(f"ray_serve_warm_{name}_after_ready_total")
    # Ray exports a counter only from its first count on, and increase() misses that count.
    return f"""
sum by ({WHO}) (increase({of_node}[{span}])) > 0
or on ({WHO})
sum by ({WHO}) (
  ({of_ray} unless {of_ray} offset {span})
  or increase({of_ray}[{span}])
) > 0
""".strip()


def eager_share() -> str:
    """Return an expression for the share of calls that ran eagerly, for each deployment."""

    def grown(name: str) -> str:
        by_sink = (ours(f"{sink}_{name}") for sink in ("serve_warm", "ray_serve_warm"))
        node, ray = (f"sum by ({WHO}) (rate({series}[5m]))" for series in by_sink)
        return f"({node} or {ray})"

    return f"{grown('eager_calls_total')} / {grown('calls_after_ready_total')}"


ON_THE_GPU = f"\nor on ({WHO})\n".join(
    in_traffic(name) for name in ("captures", "kernels_built", "tunings")
)

ALERTS = [
    alert(
        "ServeWarmColdStart",
        "warning",
        f"""
count by ({WHO}) (
  {each("verdict", matchers='verdict=~"miss|eager"')} == 1
  and on ({EACH}) {each("artifact_configured")} == 1
  and on ({EACH}) {RECENT}
)
""",
        f"{OF} starts cold although an artifact is configured",
        "{{ $value }} replica(s) found no matching artifact, so they compiled everything, or run "
        "uncompiled code. "
        f"{RECENT_REPLICAS}",
    ),
    alert(
        "ServeWarmArtifactRefused",
        "warning",
        f"""
count by ({WHO}, reason) (
  {each("refused", f"{EACH}, reason")} == 1
  and on ({EACH}) {RECENT}
)
""",
        f"{OF} refuses its artifact: {{{{ $labels.reason }}}}",
        "{{ $value }} replica(s) found an artifact but refused to load it. "
        f"{RECENT_REPLICAS} The reasons untrusted, bad_signature and digest_mismatch can be signs "
        "of an attack.",
    ),
    alert(
        "ServeWarmParityFailed",
        "critical",
        # Not increase(): a failure before READY has no earlier value.
        f"""
sum by ({WHO}) (
  {each("parity_failures_total")}
  and on ({EACH}) {STAGE}
) > 0
""",
        f"{OF} withdrew entries whose results differ from eager execution",
        "Entries withdrawn by live replicas so far: {{ $value }}. Other replicas can keep using "
        "these entries until their own checks fail.",
    ),
    alert(
        "ServeWarmStartNearDeadline",
        "warning",
        f"""
max by ({WHO}) (
  {each("start_elapsed_seconds")}
  / on ({EACH}) {each("deadline_seconds")}
  and on ({EACH}) {STAGE}{{stage!~"ready|failed"}}
) > 0.8
""",
        f"A replica of {OF} has been starting for "
        "{{ $value | humanizePercentage }} of deadline_s",
        "The percentage includes the time in __init__, but deadline_s covers only the time from "
        "the end of __init__ to READY. After deadline_s, the start fails. If on_deadline is "
        "'serve', a late replica serves without proof instead of failing.",
    ),
    alert(
        "ServeWarmCompilesAfterReady",
        "warning",
        in_traffic("compiles"),
        f"{OF} compiles while serving requests",
        "In the last 10 minutes, requests had to wait because replicas compiled again after READY.",
    ),
    alert(
        "ServeWarmCapturesAfterReady",
        "warning",
        # A compile in traffic also builds and tunes kernels, and later requests capture its CUDA
        # graphs. ServeWarmCompilesAfterReady covers that case.
        f"""
(
{indent(ON_THE_GPU, "  ")}
)
unless on ({WHO}) (
{indent(in_traffic("compiles", "1h"), "  ")}
)
""",
        f"{OF} captures CUDA graphs, or builds or tunes kernels, while serving requests",
        "In the last 10 minutes, requests had to wait because replicas captured CUDA graphs, or "
        "built or tuned Triton kernels, after READY. The deployment compiled nothing in the last "
        "hour.",
    ),
    alert(
        "ServeWarmEagerCalls",
        "warning",
        f"""
{eager_share()} > 0.05
""",
        f"{OF} answers {{{{ $value | humanizePercentage }}}} of calls with uncompiled code",
        "For 15 minutes, more than 5 % of the calls of compiled functions had no compiled code and "
        "ran eagerly. Nobody waits for a compile, but these calls take longer. Build an artifact "
        "with the inputs that the report names.",
        lasting="15m",
    ),
    alert(
        "ServeWarmNoReadyReplica",
        "critical",
        f"""
max_over_time({STARTING}[5m]) > 0
unless on ({WHO}) {READY} > 0
""",
        f"{OF} has no ready replica, but replicas are starting",
        "For 10 minutes, no replica has been able to answer requests. Requests are waiting in the "
        "queue or timing out.",
        lasting="10m",
    ),
    alert(
        "ServeWarmStartsFailed",
        "critical",
        # Starts that began after the deployment was last ready. This leaves out starts that were
        # stopped together with ready replicas. Starts whose node server does not answer or cannot
        # read their state are also left out, because they might still be running. The range of two
        # hours includes the beginning of every start that was seen in the last hour.
        f"""
count by ({WHO}) (
  (
    min_over_time({UNREADY}[2h]) > on ({WHO}) group_left () max_over_time({READY_AT}[2h])
    or on ({EACH})
    min_over_time({UNREADY}[2h]) unless on ({WHO}) max_over_time({READY_AT}[2h])
  )
  and on ({EACH}) max_over_time({UNREADY}[1h])
  unless on ({EACH}) (
    last_over_time(serve_warm_replica_alive[1h]) == 1
    and on ({TARGET}) (up == 0 or {UNREADABLE})
  )
)
unless on ({WHO}) {STARTING}
""",
        f"{OF} has no ready replica, and no replica is starting",
        "In the last hour, {{ $value }} replica(s) failed, or ended before READY. Serve has not "
        "started a new replica for 5 minutes, so Serve might have given up.",
        lasting="5m",
    ),
    alert(
        "ServeWarmArtifactOld",
        "warning",
        f"""
max by ({WHO}) (
  time() - {each("artifact_created_timestamp_seconds")}
  and on ({EACH}) {STAGE}
) / 86400 > {value("artifactMaxAgeDays")}
""",
        OF + ' runs an artifact that is {{ $value | printf "%.0f" }} days old',
        f"The limit for this alert is {value('artifactMaxAgeDays')} days. Replicas refuse an "
        "artifact that is older than the age limit in the trust files (a year by default), and "
        "then start cold.",
        lasting="1h",
    ),
    alert(
        "ServeWarmStartBudgetBurnsFast",
        "critical",
        burns(6, "6h", "30m"),
        f"{OF}: in the last 6 hours, {{{{ $value | humanizePercentage }}}} of starts were too slow "
        "or failed",
        "Too many starts were slow or failed: more than 6 times the share that the objective "
        f"allows, both in the last 6 hours and in the last 30 minutes. {SLO}.",
    ),
    alert(
        "ServeWarmStartBudgetBurnsSlowly",
        "warning",
        burns(1, "3d", "6h"),
        f"{OF}: in the last 3 days, {{{{ $value | humanizePercentage }}}} of starts were too slow "
        "or failed",
        "Too many starts were slow or failed: a larger share than the objective allows, both in "
        f"the last 3 days and in the last 6 hours. {SLO}.",
    ),
    alert(
        "ServeWarmSeatsUnusable",
        "warning",
        # The reason `none` is left out, because the first start on a node always has it. The reason
        # `unavailable` lasts as long as the replica.
        f"""
count by ({WHO}, reason) (
  {each("seat_misses_total", f"{EACH}, reason", matchers='reason!="none"')} == 1
  and on ({EACH}) {RECENT}
  or
  {each("seat_misses_total", f"{EACH}, reason", matchers='reason="unavailable"')} == 1
  and on ({EACH}) {STAGE}
)
""",
        f"{OF} starts without its configured seats: {{{{ $labels.reason }}}}",
        "{{ $value }} replica(s) started without a seat, or cannot keep a seat for the next "
        f"start. {RECENT_REPLICAS} If the reason is 'unavailable', the number includes all live "
        "replicas with this reason.",
    ),
    alert(
        "ServeWarmNodeServerDown",
        "warning",
        f"""
up == 0
and on ({TARGET})
max by ({TARGET}) (max_over_time(serve_warm_node_ready[1d]))
""",
        "The node server at {{ $labels.instance }} does not respond to Prometheus",
        "The node server responded within the last day, but is not responding now. If the node's "
        "readiness probe uses this server, the probe fails, and the node counts as not ready.",
        lasting="5m",
    ),
    alert(
        "ServeWarmNodeServerAbsent",
        "warning",
        f"""
count by ({WHO}) (
  max by ({EACH}) ({ours("ray_serve_warm_ready")})
  unless on ({EACH}) max by ({EACH}) ({ALIVE}) == 1
)
and on (namespace)
max by (namespace) (max_over_time(serve_warm_node_ready[1d]))
""",
        f"{{{{ $value }}}} replicas of {OF} are on nodes without a node server",
        "Ray exports metrics for these replicas, but no node server does. A node server was "
        "running in this namespace within the last day.",
        lasting="15m",
    ),
    alert(
        "ServeWarmStatesUnreadable",
        "warning",
        UNREADABLE,
        "The node server at {{ $labels.instance }} cannot read the state files of its replicas",
        "/readyz fails on this node. The node server still exports the last figures that it read. "
        "The alert rules ignore these figures.",
        lasting="5m",
    ),
]

GROUPS = [
    {"name": "serve-warm.starts", "rules": RECORDS},
    {"name": "serve-warm.alerts", "rules": ALERTS},
]


# --- the files -----------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Writes multi-line expressions as YAML block scalars."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else "")


_Dumper.add_representer(str, _text)


def _marked() -> str:
    head = (
        "# SPDX-FileCopyrightText: 2026 the serve_warm authors\n"
        "# SPDX-License-Identifier: Apache-2.0\n"
        "# Written by helm/observability/rules.py. To change this file, edit and run that script.\n"
    )
    return head + yaml.dump({"groups": GROUPS}, Dumper=_Dumper, sort_keys=False, width=10_000)


def plain(**values: str) -> str:
    """Return the rules file. Values that are not passed have their default numbers."""
    text = _marked()
    for name, default in DEFAULTS.items():
        text = text.replace(value(name), values.get(name, default))
    return text


def template() -> str:
    """Return the rules file as a Helm template that keeps Prometheus' own braces."""
    text = re.sub(r"\{\{.*?\}\}", lambda braces: "{{`" + braces[0] + "`}}", _marked())
    for name in DEFAULTS:
        text = text.replace(value(name), f"{{{{ .Values.alerts.{name} }}}}")
    return text


if __name__ == "__main__":
    RULES.mkdir(parents=True, exist_ok=True)
    (RULES / "serve-warm.yaml").write_text(plain())
    (RULES / "serve-warm.tpl.yaml").write_text(template())
