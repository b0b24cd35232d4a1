# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A day of a small fleet, minute by minute, in a real Prometheus.

The day is short enough to work out the numbers by hand.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import yaml

from components import require
from fleet import Fleet, Labels, Replica, Series, as_openmetrics
from helm.observability import rules
from prometheus_server import INSTALL, Prometheus, prometheus

HIT = (("pulling", 2.0), ("loading", 3.0), ("replaying", 20.0), ("proving", 10.0))
HIT_SLOWER = (("pulling", 4.0), *HIT[1:])
COLD = (("pulling", 1.0), ("replaying", 600.0), ("proving", 12.0))
REFUSED = (("verifying", 1.0), ("replaying", 260.0), ("proving", 12.0))

DAY = Fleet(
    start_s=1_773_100_800.0,  # 2026-03-10, midnight
    minutes=24 * 60,
    step=4,
    queued={"Embedder": {1412: 7.0}},
    replicas=(
        # Lives all day, with an artifact that is 45 days old at midnight. Captures a graph in
        # traffic at 15:00, and tunes a kernel at 15:02.
        Replica(
            name="a1",
            took_s=45.0,
            artifact_days=45.0,
            stage_seconds=HIT,
            on_gpu=(("captures", 900), ("tunings", 902)),
            seat="hit",
        ),
        # Lives from 6:00 to 18:00. Its node server still exports it afterwards.
        Replica(name="a2", born=360, took_s=50.0, dead=1080, stage_seconds=HIT_SLOWER),
        # Starts cold at 8:00.
        Replica(
            name="a3",
            born=480,
            took_s=700.0,
            verdict="miss",
            artifact_days=None,
            stage_seconds=COLD,
        ),
        # Refused its artifact; compiles in traffic at 14:00, 14:02 and 20:00.
        Replica(
            name="b1",
            deployment="Embedder",
            took_s=300.0,
            verdict="refused",
            refused="untrusted",
            artifact_days=None,
            stage_seconds=REFUSED,
            compiles=(840, 842, 1200),
            seat="failed unavailable",
        ),
        # Died at 10:02, two minutes after its creation.
        Replica(name="b2", deployment="Embedder", born=600, took_s=None, dead=602),
        # Has been starting since 23:30, with a deadline of 2000 s.
        Replica(
            name="b3",
            deployment="Embedder",
            born=1410,
            took_s=None,
            verdict="miss",
            artifact_days=None,
            deadline_s=2000.0,
        ),
        # Has no artifact configured. Its pod runs from 0:00 to 13:00, and the replica from noon.
        Replica(
            name="c1",
            application="night",
            deployment="Batch",
            born=720,
            took_s=20.0,
            verdict="off",
            configured=False,
            artifact_days=None,
            gone=780,
            cluster="green",
        ),
    ),
)
END = DAY.minutes

# From 22:00 on, a build on the cluster has replicas that exceed the deadline and also compile in
# traffic. Only Ray exports the replicas of a build.
BUILD = Fleet(
    start_s=DAY.start_s,
    minutes=DAY.minutes,
    step=DAY.step,
    replicas=tuple(
        Replica(
            name=name,
            application="serve_warm-0a1b2c3d",
            born=1320,
            took_s=took_s,
            verdict="miss",
            artifact_days=90.0,
            compiles=(1430,),
            wrong=(1430,),
        )
        for name, took_s in (("x1", None), ("x2", 3000.0))
    ),
)


@contextlib.contextmanager
def recorded_day(directory: Path, more: Series | None = None) -> Iterator[Prometheus]:
    """Run a Prometheus with the series of the day and of `more`, with its files in `directory`."""
    with recorded(
        {**DAY.node_server(), **DAY.ray(), **BUILD.ray(), **(more or {})}, directory
    ) as day:
        yield day


@contextlib.contextmanager
def recorded(series: Series, directory: Path) -> Iterator[Prometheus]:
    """Run a Prometheus with series that begin at the start of the day."""
    directory.mkdir(exist_ok=True)
    with (directory / "day.om").open("w") as file:
        file.writelines(as_openmetrics(series, DAY.start_s))
    command = [require("promtool", INSTALL), "tsdb", "create-blocks-from", "openmetrics", "-q"]
    # One block for the whole day. By default, promtool reads the file once per two hours.
    command.append("--max-block-duration=24h")
    subprocess.run([*command, directory / "day.om", directory / "data"], check=True)
    with prometheus(directory) as running:
        yield running


@contextlib.contextmanager
def with_alerts(directory: Path) -> Iterator[Prometheus]:
    """Run a Prometheus with the series of the day, and the alerts that its rules raised."""
    with recorded_day(directory / "plain") as plain:
        raised = dict(_alerts(plain))
    with recorded_day(directory / "alerts", raised) as running:
        yield running


def _alerts(plain: Prometheus) -> Iterator[tuple[tuple[str, Labels], dict[int, float]]]:
    """Yield the series that Prometheus exports for firing alerts, evaluated every few minutes."""
    step_s = 60.0 * DAY.step
    for rule in yaml.safe_load(rules.plain(minStarts="1"))["groups"][-1]["rules"]:
        lasting_s = _seconds(rule.get("for", "0m"))
        expression = inlined(rule["expr"])
        day = DAY.start_s, DAY.start_s + 60 * END
        for labels, points in plain.ask_range(expression, *day, step_s=step_s):
            since_s = before_s = -step_s
            firing = {}
            for second, _ in points:
                since_s = second if second - before_s > step_s else since_s
                before_s = second
                if second - since_s >= lasting_s:
                    firing[int(second - DAY.start_s) // 60] = 1.0
            own = {"alertname": rule["alert"], "alertstate": "firing", **rule["labels"]}
            if firing:
                yield ("ALERTS", tuple(sorted({**labels, **own}.items()))), firing


def _seconds(duration: str) -> float:
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


RECORDED: dict[str, str] = {
    rule["record"]: rule["expr"] for rule in yaml.safe_load(rules.plain())["groups"][0]["rules"]
}


MATCHERS = r"""\{(?:"[^"]*"|[^}"])*\}"""
"""Pattern of the text in braces after a name. A value may contain braces too."""


def inlined(expression: str) -> str:
    """Replace names of recording rules by their expressions, because the day has only scrapes."""
    for name, text in reversed(RECORDED.items()):

        def expression_of(match: re.Match[str], text: str = text) -> str:
            matchers, span = match[1] or "", match[2]
            # The matchers apply to all selectors inside the record's expression.
            inner = selected(text, matchers[1:-1]) if matchers else text
            if not span:
                return f"({inner})"
            return f"({inner})[{span}:{'5m' if span[-1] in 'hd' else '1m'}]"

        pattern = re.escape(name) + rf"(?![\w:])({MATCHERS})?(?:\[(\w+)\])?"
        expression = re.sub(pattern, expression_of, expression)
    return expression


def selected(text: str, matchers: str) -> str:
    """Return an expression with more matchers in each selector of a metric or recording rule."""

    def narrowed(match: re.Match[str]) -> str:
        own = (match[2] or "")[1:-1]
        return f"{match[1]}{{{','.join(each for each in (own, matchers) if each)}}}"

    name = r"\b((?:replica:|deployment:|ray_)?serve_warm_[\w:]+)"
    return re.sub(f"{name}({MATCHERS})?", narrowed, text)
