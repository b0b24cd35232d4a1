# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `report` command, which shows how replicas of a node or a Ray cluster started."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from serve_warm import node
from serve_warm._records import record
from serve_warm._redaction import first_line
from serve_warm._spans import Span, describe
from serve_warm.cli import screen
from serve_warm.cli.observed import finite, is_asked_for, list_of, text_of
from serve_warm.cli.pruning import duration
from serve_warm.config import WarmupConfig, resolve
from serve_warm.errors import MissingPackage, StoreError
from serve_warm.report import (
    LEVELS,
    CompileEvent,
    EagerCalls,
    EagerReason,
    LearnedCalls,
    describe_eager,
)
from serve_warm.seats.records import SeatUse


@record(frozen=True, kw_only=True)
class ReportedStart:
    """One start of one replica, read from the replica's state file or from the replica itself."""

    application: str
    deployment: str
    replica: str
    stage: str
    ended: bool
    """Whether the replica's process has ended."""
    age_s: float | None
    """Seconds since the start began; None if unknown, as for replicas of another node."""
    verdict: str
    traced: str
    levels: Mapping[str, int]
    spans: Sequence[Span]
    doing: str
    reason: str
    """The reason why the artifact was not loaded."""
    degraded: Sequence[str]
    warnings: Sequence[str]
    error: str
    seat: str
    """Line about the seats; empty if no seats are configured."""
    learned: str
    """Line about the calls of a plan; empty without a plan."""
    eager: Sequence[str]
    """Lines about the most frequent eager calls, with the inputs to declare."""
    event: str
    """The last compile or other event after READY, with the call that caused it."""
    said: Mapping[str, Any]
    """All that the state file or the report has, for the page."""

    @property
    def name(self) -> str:
        """`application#Deployment`."""
        return f"{self.application}#{self.deployment}"

    def lines(self, *, is_whole: bool) -> list[str]:
        """Return the lines that a terminal shows: one for an ended replica, unless `is_whole`."""
        name = f"{self.application}#{self.deployment} {self.replica}"
        gone = ", and its process has ended" if self.ended else ""
        kinds = ", ".join(f"{self.levels[k]} at level {k}" for k in self.levels if self.levels[k])
        facts = [
            f"verdict={self.verdict}" if self.verdict else "",
            f"traced={self.traced}" if self.traced else "",
            f"calls: {kinds}" if kinds else "",
            f"waits for {self.doing}" if self.doing and not self.ended else "",
        ]
        said = [" ".join(filter(None, facts))]
        said += [f"artifact: {self.reason}"] if self.reason else []
        said += [self.learned] if self.learned else []
        said += [self.seat] if self.seat else []
        said += self.eager
        said += [f"after ready, last: {self.event}"] if self.event else []
        said += [f"degraded: {why}" for why in self.degraded]
        said += [f"warning: {text}" for text in self.warnings]
        said += [f"error: {self.error}"] if self.error else []
        first = f"{name}: {self.stage or 'no stage'}{describe(self.spans)}{gone}"
        if self.ended and not is_whole:
            why = first_line(self.error or self.reason)
            return [node.shown(f"{first}{f': {why}' if why else ''}")]
        rest = [f"  {node.shown(line)}" for text in said for line in text.splitlines() if line]
        return [node.shown(first), *rest]


@click.command()
@screen.state_dir_option
@click.option(
    "--address",
    help="Address of a running Ray cluster, or 'auto' to find one. The command then reads the "
    "reports of the cluster's replicas.",
)
@screen.app_option
@screen.deployments_option
@click.option(
    "--last", type=click.IntRange(1), help="Show only this many starts of each deployment."
)
@click.option(
    "--since", type=duration, help="Show only starts that began within this time, for example 2h."
)
@click.option("--all", "is_whole", is_flag=True, help="Show all lines of ended replicas too.")
@click.option(
    "--html",
    "html_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a page about these starts to this file. The page loads nothing from elsewhere.",
)
@screen.json_option
def report(
    *,
    state_dir: str,
    address: str | None,
    application: str,
    deployments: tuple[str, ...],
    last: int | None,
    since: float | None,
    is_whole: bool,
    html_file: Path | None,
    json_file: Path | None,
) -> None:
    """Show the duration of each phase of every start, and the levels at which calls run.

    Running replicas come first. Replicas on this node that have ended have one line each, as long
    as their state files exist.
    """
    if state_dir and address:
        raise click.UsageError("pass --state-dir or --address, not both")
    if address:
        starts = of_cluster(address)
    else:
        configured = resolve(WarmupConfig()).state_dir
        starts = of_node(state_dir or configured or node.default_directory())
    there = sorted({f"{each.application}#{each.deployment}" for each in starts})
    starts = choose(starts, application, deployments, last=last, since_s=since)
    if not starts:
        raise StoreError("no start is as asked for", hint=f"there are starts of {', '.join(there)}")
    for start in starts:
        for line in start.lines(is_whole=is_whole):
            click.echo(line)
    if html_file is not None:
        from serve_warm.cli.page import make_page

        html_file.write_text(make_page(starts), encoding="utf-8")
        click.echo(f"wrote {node.shown(str(html_file))}", err=True)
    if json_file is not None:
        screen.data({"starts": [as_data(start) for start in starts]}, json_file)


def choose(
    starts: Sequence[ReportedStart],
    application: str = "",
    deployments: Collection[str] = (),
    *,
    last: int | None = None,
    since_s: float | None = None,
) -> list[ReportedStart]:
    """Return the starts to show: running replicas first, and then the latest ones first."""
    kept = [
        each
        for each in starts
        if is_asked_for(each.application, each.deployment, application, deployments)
        and (since_s is None or (each.age_s is not None and each.age_s <= since_s))
    ]
    kept.sort(key=lambda each: (each.ended, each.name, each.age_s or 0.0, each.replica))
    counts = Counter[str]()
    chosen = []
    for each in kept:
        counts[each.name] += 1
        if last is None or counts[each.name] <= last:
            chosen.append(each)
    return chosen


def of_node(directory: str) -> list[ReportedStart]:
    """Return a `ReportedStart` for each replica that has a readable state file in a directory.

    Raises:
        StoreError: the directory contains no records of starts, or cannot be read.
    """
    now = node.boot_s()
    try:
        replicas = node.look(directory)
    except OSError as error:
        raise StoreError(
            f"the state directory {directory} cannot be read: {error.strerror or error}",
            hint="run as the user that runs the replicas, or pass --state-dir",
        ) from error
    starts = [
        start_of(
            replica.names,
            replica.state,
            ended=replica.condition == "dead",
            age_s=now - replica.began_s if math.isfinite(replica.began_s) else None,
        )
        for replica in replicas
        if replica.state is not None
    ]
    if not starts:
        raise StoreError(
            f"no replica has written to {directory}",
            hint="run as the user that runs the replicas, or pass --state-dir or --address",
        )
    return starts


def of_cluster(address: str) -> list[ReportedStart]:
    """Return a `ReportedStart` for each running replica that uses the mixin in a Ray cluster.

    Raises:
        MissingPackage: Ray is not installed.
        ConfigError: the cluster does not exist.
        StoreError: no replica in the cluster uses the mixin.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingPackage("--address", package="ray[serve]")
    from serve_warm.builder.cluster import ask_replicas

    asked = ask_replicas(address)
    starts = [
        start_of((report["application"], report["deployment"], report["replica"]), report)
        for report in asked.of_replicas
    ]
    if not starts:
        raise StoreError(
            f"no replica on the cluster at {asked.cluster} is warmed by serve_warm",
            hint="if several clusters run here, pass the address of yours; for a replica that has "
            "ended, use --state-dir on its node",
        )
    return starts


def start_of(
    names: tuple[str, str, str],
    said: Mapping[str, Any],
    *,
    ended: bool = False,
    age_s: float | None = None,
) -> ReportedStart:
    """Return the `ReportedStart` that a state file or a report describes.

    If another release did not write a field, the field is empty.
    """
    artifact = said.get("artifact")
    reason = artifact.get("reason", "") if isinstance(artifact, dict) else said.get("reason", "")
    levels = said.get("levels")
    known = levels if isinstance(levels, dict) else {}
    return ReportedStart(
        application=names[0],
        deployment=names[1],
        replica=names[2],
        stage=text_of(said.get("stage")),
        ended=ended,
        age_s=age_s,
        verdict=text_of(said.get("verdict")),
        # Before READY it is unknown how much is left to compile.
        traced=text_of(said.get("traced")) if said.get("stage") == "READY" else "",
        levels={str(level): _count(known.get(str(level))) for level in LEVELS},
        spans=[span for each in list_of(said.get("spans")) if (span := _span(each)) is not None],
        doing=text_of(said.get("doing")),
        reason=text_of(reason),
        degraded=[text_of(each) for each in list_of(said.get("degraded"))],
        warnings=[text_of(each) for each in list_of(said.get("warnings"))],
        error=text_of(said.get("error")),
        learned=_line(LearnedCalls, said.get("learned")),
        seat=_line(SeatUse, said.get("seat")),
        eager=_eager(said),
        event=_last_event(said),
        said=said,
    )


def _eager(said: Mapping[str, Any]) -> list[str]:
    """Return the lines about eager calls, which a state file has, or which a report describes."""
    if "eager" in said:
        return [text_of(each).strip() for each in list_of(said["eager"])]
    known = {each.name for each in dataclasses.fields(EagerCalls)}
    calls: list[EagerCalls] = []
    for each in list_of(said.get("eager_calls")):
        with contextlib.suppress(
            ArithmeticError, AttributeError, LookupError, TypeError, ValueError
        ):
            given = {name: each[name] for name in known & each.keys()}
            made = EagerCalls(**{**given, "reason": EagerReason(given["reason"])})
            describe_eager([made])  # another release may have written other types
            calls.append(made)
    return [line.strip() for line in describe_eager(calls)]


def _last_event(said: Mapping[str, Any]) -> str:
    """Return the last event, which a state file has as a text, and a report among others."""
    events = [each for each in list_of(said.get("events")) if isinstance(each, dict)]
    if not events:
        return text_of(said.get("event"))
    kind, function, signature, reason = (text_of(events[-1].get(name)) for name in EVENT_TEXTS)
    event = CompileEvent(kind=kind, function=function, signature=signature, reason=reason)
    return str(event) if kind else ""


EVENT_TEXTS = ("kind", "function", "signature", "reason")


def _line(kind: type[SeatUse | LearnedCalls], said: Any) -> str:
    """Return the line about a seat or a plan.

    `said` is either the line itself, from a state file, or the record in a report.
    """
    if not isinstance(said, dict):
        return text_of(said)
    known = {each.name for each in dataclasses.fields(kind)}
    try:
        return kind(**{name: said[name] for name in known & said.keys()}).text()
    except (ArithmeticError, TypeError, ValueError):
        return ""


def _span(data: Any) -> Span | None:
    if isinstance(data, dict):
        data = [data.get(name) for name in ("name", "began_boot_s", "seconds", "beside")]
    if not isinstance(data, list) or len(data) != 4:
        return None
    name, began_s, seconds, beside = text_of(data[0]), finite(data[1]), finite(data[2]), data[3]
    if not name or began_s is None or seconds is None:
        return None
    return Span(name=name, began_boot_s=began_s, seconds=seconds, beside=bool(beside))


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def as_data(start: ReportedStart) -> dict[str, Any]:
    """Return a start for JSON. Span times are in seconds since the first span began."""
    zero = min((span.began_boot_s for span in start.spans), default=0.0)
    plain = {
        name: getattr(start, name)
        for name in ReportedStart.__dataclass_fields__
        if name not in ("spans", "said")
    }
    return {
        **plain,
        "spans": [
            {
                "name": span.name,
                "began_s": span.began_boot_s - zero,
                "seconds": span.seconds,
                "beside": span.beside,
            }
            for span in start.spans
        ],
    }
