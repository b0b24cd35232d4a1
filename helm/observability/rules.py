# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What of a fleet's starts is recorded, and when somebody is told: the Prometheus rules.

`python helm/observability/rules.py` writes them twice into the chart:

    rules/serve-warm.yaml       a rules file as Prometheus reads it, with the default numbers
    rules/serve-warm.tpl.yaml   the same, in which Helm's values set the numbers

The chart includes the second one with `tpl (.Files.Get "rules/serve-warm.tpl.yaml") .`, and these
are the values that it needs; `DEFAULTS` has the numbers:

    alerts.startSloSeconds       a start that took longer missed the objective
    alerts.startSloObjective     the share of starts that should not, between 0 and 1
    alerts.artifactMaxAgeDays    an artifact that is older than this is called old
    alerts.minStarts             fewer starts in the long window are too few to tell somebody
    alerts.runbookUrl            where docs/runbooks.md is to be read

Rules read what node servers export and what Ray exports, whichever is there, and count a replica
that is seen in both once. They keep to what Prometheus 2.42 knows.

Sums are by namespace, application and deployment, never by cluster: KubeRay gives a cluster a new
name at each upgrade, and an objective over weeks would begin anew each time.
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
"""Of the objective: two for each of the alerts, and the one that it is stated over."""


def value(name: str) -> str:
    """Return the mark that one of the values takes the place of."""
    if name not in DEFAULTS:
        raise KeyError(name)
    return f"@{name}@"


def each(name: str, by: str = EACH) -> str:
    """Return one series a replica, of the node server or of Ray, with no label but these."""
    return f"max by ({by}) (serve_warm_{name} or ray_serve_warm_{name})"


# --- what is recorded ----------------------------------------------------------------------

STAGE = "replica:serve_warm_stage:now"
START = "replica:serve_warm_start:within_slo"
RECENT = "replica:serve_warm_start:recent"
UNREADY = "replica:serve_warm_unready:timestamp"
READY = "deployment:serve_warm_replicas_ready:count"
READY_AT = "deployment:serve_warm_replicas_ready:timestamp"
STARTING = "deployment:serve_warm_replicas_starting:count"


def starts(window: str) -> str:
    """Return the record of how many starts ended in a window."""
    return f"deployment:serve_warm_starts:count{window}"


def missed(window: str) -> str:
    """Return the record of the share of them that missed the objective."""
    return f"deployment:serve_warm_starts_missed:ratio{window}"


def record(name: str, expression: str) -> dict[str, Any]:
    """Return a recording rule."""
    return {"record": name, "expr": expression.strip()}


UNREADABLE = "serve_warm_node_states_readable == 0"
NODE_STAGE = f"serve_warm_stage unless on ({TARGET}) {UNREADABLE}"

# Dead for less than 10 minutes, before it was ready. An hour is looked back for who was dead
# before: a scrape that was missed does not make them die again. Only a node server remembers them.
DIED = f"""
  max by ({EACH}) (serve_warm_replica_alive) == 0
  unless on ({EACH}) max by ({EACH}) (serve_warm_ready_seconds)
  unless on ({EACH}) min by ({EACH}) (min_over_time(serve_warm_replica_alive[1h] offset 10m)) == 0
""".strip()

RECORDS = [
    # One series for each replica that is alive, with the stage that it is in; none for one that was
    # ready and hangs. Of a replica that a node server knows nothing else is believed: Ray's export
    # lags behind by up to 10 s, and a replica says there itself that it is ready. A node server
    # that cannot read what replicas write knows nothing: it goes on with what it read last.
    record(
        STAGE,
        f"""
max by ({EACH}, stage) ({NODE_STAGE}) == 1
or on ({EACH})
max by ({EACH}, stage) (
  ray_serve_warm_stage unless on ({EACH}) ({NODE_STAGE})
) == 1
""",
    ),
    record(READY, f'count by ({WHO}) ({STAGE}{{stage="ready"}})'),
    record(READY_AT, f"timestamp({READY})"),
    record(STARTING, f'count by ({WHO}) ({STAGE}{{stage!~"ready|failed"}})'),
    # One series for each start that ended in the last 10 minutes: 1 if it was ready in time, 0 if
    # it was late, or dead before it was ready. Over a window each replica then counts once, also
    # when it is gone: increase() would not see a counter that is born at 1.
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
    # The time now, for each replica that is not ready yet or died so: over a window the least is
    # when it was first seen. A start may be too short to be scraped while it lives.
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
    # 1 for each replica that is not ready yet, or whose start ended in the last hour.
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


# --- who is told ---------------------------------------------------------------------------

OF = "{{ $labels.application }}#{{ $labels.deployment }}"


def anchor(name: str) -> str:
    """Return where the runbook of an alert is in its file."""
    return name.lower()


def alert(
    name: str, severity: str, expression: str, summary: str, description: str, *, lasting: str = ""
) -> dict[str, Any]:
    """Return an alerting rule; `lasting` is how long it has to hold."""
    return {
        "alert": name,
        "expr": expression.strip(),
        **({"for": lasting} if lasting else {}),
        # The dashboard's list of alerts has labels alone, and opens the runbook by this one.
        "labels": {"severity": severity, "runbook": anchor(name)},
        "annotations": {
            "summary": summary,
            "description": description,
            "runbook_url": f"{value('runbookUrl')}#{anchor(name)}",
        },
    }


def burns(factor: int, long: str, short: str) -> str:
    """Return when the starts of two windows miss the objective so many times too often."""
    limit = f"{factor} * (1 - {value('startSloObjective')})"
    return f"""
{missed(long)} > {limit}
and {missed(short)} > {limit}
and {starts(long)} >= {value("minStarts")}
"""


SLO = (
    f"{value('startSloSeconds')} s from a replica's creation to READY, objective "
    f"{value('startSloObjective')}"
)


def in_traffic(name: str, span: str = "10m") -> str:
    """Return how often replicas did what they should not after ready, where they did."""
    of_ray = f"ray_serve_warm_{name}_after_ready_total"
    # Of Ray's export a counter begins with its first count, and increase() misses that one.
    return f"""
sum by ({WHO}) (increase(serve_warm_{name}_after_ready_total[{span}])) > 0
or on ({WHO})
sum by ({WHO}) (
  ({of_ray} unless {of_ray} offset {span})
  or increase({of_ray}[{span}])
) > 0
""".strip()


ON_THE_GPU = f"\nor on ({WHO})\n".join(
    in_traffic(name) for name in ("captures", "kernels_built", "tunings")
)

ALERTS = [
    alert(
        "ServeWarmColdStart",
        "warning",
        f"""
count by ({WHO}) (
  {each('verdict{verdict="miss"}')} == 1
  and on ({EACH}) {each("artifact_configured")} == 1
  and on ({EACH}) {RECENT}
)
""",
        f"{OF} starts cold although an artifact is configured",
        "{{ $value }} starts of the last hour, or of now, found no artifact that fits "
        "and compiled everything.",
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
        "{{ $value }} starts of the last hour, or of now, found an artifact and did not load it. "
        "untrusted, bad_signature and digest_mismatch can be an attack.",
    ),
    alert(
        "ServeWarmParityFailed",
        "critical",
        # Not by increase(): one that failed before READY has no earlier value.
        f"""
sum by ({WHO}) (
  {each("parity_failures_total")}
  and on ({EACH}) {STAGE}
) > 0
""",
        f"{OF} withdrew entries that are not what eager computes",
        "{{ $value }} entries of living replicas gave other numbers than the model itself, and run "
        "no more. Replicas that have not checked them yet may answer with them.",
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
        f"{OF} has used {{{{ $value | humanizePercentage }}}} of a start's deadline",
        "A replica is still starting. At its deadline it fails, or serves late where on_deadline "
        "is serve.",
    ),
    alert(
        "ServeWarmCompilesAfterReady",
        "warning",
        in_traffic("compiles"),
        f"{OF} compiles in traffic",
        "Requests of the last 10 minutes met the compiler in replicas that were proven warm.",
    ),
    alert(
        "ServeWarmCapturesAfterReady",
        "warning",
        # What is compiled in traffic has kernels built and tuned, and graphs captured by later
        # requests: that is told above.
        f"""
(
{indent(ON_THE_GPU, "  ")}
)
unless on ({WHO}) (
{indent(in_traffic("compiles", "1h"), "  ")}
)
""",
        f"{OF} captures or tunes in traffic",
        "Requests of the last 10 minutes waited for a CUDA graph to be captured, or for a Triton "
        "kernel to be built or tuned, in replicas that were proven warm. Nothing was compiled "
        "within the hour.",
    ),
    alert(
        "ServeWarmNoReadyReplica",
        "critical",
        f"""
max_over_time({STARTING}[5m]) > 0
unless on ({WHO}) {READY} > 0
""",
        f"{OF} has no ready replica, and some are starting",
        "For 10 minutes no replica could answer. Requests wait in the queue, or time out.",
        lasting="10m",
    ),
    alert(
        "ServeWarmStartsFailed",
        "critical",
        # Starts that began after the deployment was last ready: what is taken down together with
        # ready replicas began before. A start whose node server does not answer, or cannot read its
        # state, may go on.
        # Two hours, to have the beginning of what was seen within one.
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
        f"{OF} has no ready replica, and none is starting",
        "{{ $value }} starts of the last hour ended without being ready, and for 5 minutes there "
        "was no other. Serve may have given up.",
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
        OF + ' runs an artifact of {{ $value | printf "%.0f" }} days ago',
        f"Older than {value('artifactMaxAgeDays')} days. Where a trust file limits the age it is "
        "refused one day, and starts are cold.",
        lasting="1h",
    ),
    alert(
        "ServeWarmStartBudgetBurnsFast",
        "critical",
        burns(6, "6h", "30m"),
        f"{OF}: {{{{ $value | humanizePercentage }}}} of starts in 6 h were too slow or failed",
        f"Six times too often for the objective, also in the last 30 minutes ({SLO}).",
    ),
    alert(
        "ServeWarmStartBudgetBurnsSlowly",
        "warning",
        burns(1, "3d", "6h"),
        f"{OF}: {{{{ $value | humanizePercentage }}}} of starts in 3 days were too slow or failed",
        f"More than the objective allows, also in the last 6 hours ({SLO}).",
    ),
    alert(
        "ServeWarmNodeServerDown",
        "warning",
        f"""
up == 0
and on ({TARGET})
max by ({TARGET}) (max_over_time(serve_warm_node_ready[1d]))
""",
        "The node server at {{ $labels.instance }} does not answer Prometheus",
        "It did within the last day. Where a readiness probe asks it, its node is not ready.",
        lasting="5m",
    ),
    alert(
        "ServeWarmNodeServerAbsent",
        "warning",
        f"""
count by ({WHO}) (
  max by ({EACH}) (ray_serve_warm_ready)
  unless on ({EACH}) max by ({EACH}) (serve_warm_replica_alive) == 1
)
and on (namespace)
max by (namespace) (max_over_time(serve_warm_node_ready[1d]))
""",
        f"{{{{ $value }}}} replicas of {OF} are on nodes without a node server",
        "Ray exports them, and no node server of the namespace does, where there was one within "
        "the last day.",
        lasting="15m",
    ),
    alert(
        "ServeWarmStatesUnreadable",
        "warning",
        UNREADABLE,
        "The node server at {{ $labels.instance }} cannot read what its replicas write",
        "Its node is not ready, and its figures of replicas are those that it read last. The "
        "rules do not believe them.",
        lasting="5m",
    ),
]

GROUPS = [
    {"name": "serve-warm.starts", "rules": RECORDS},
    {"name": "serve-warm.alerts", "rules": ALERTS},
]


# --- the files -----------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Writes an expression of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else "")


_Dumper.add_representer(str, _text)


def _marked() -> str:
    head = (
        "# SPDX-FileCopyrightText: 2026 the serve_warm authors\n"
        "# SPDX-License-Identifier: Apache-2.0\n"
        "# Written by helm/observability/rules.py: change that, and run it.\n"
    )
    return head + yaml.dump({"groups": GROUPS}, Dumper=_Dumper, sort_keys=False, width=10_000)


def plain(**values: str) -> str:
    """Return the rules file with the default numbers, or with others."""
    text = _marked()
    for name, default in DEFAULTS.items():
        text = text.replace(value(name), values.get(name, default))
    return text


def template() -> str:
    """Return the rules file as Helm is to read it: braces of Prometheus' own stay as they are."""
    text = re.sub(r"\{\{.*?\}\}", lambda braces: "{{`" + braces[0] + "`}}", _marked())
    for name in DEFAULTS:
        text = text.replace(value(name), f"{{{{ .Values.alerts.{name} }}}}")
    return text


if __name__ == "__main__":
    RULES.mkdir(parents=True, exist_ok=True)
    (RULES / "serve-warm.yaml").write_text(plain())
    (RULES / "serve-warm.tpl.yaml").write_text(template())
