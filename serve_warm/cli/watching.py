# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The command that shows how far replicas are: `status`, once or for as long as one looks."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import click
from rich.cells import set_cell_size
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from serve_warm import node
from serve_warm.cli import FAILED, check_system, observed, screen
from serve_warm.cli.observed import Look, Observed
from serve_warm.config import WarmupConfig, resolve

Which = Literal["now", "all"]
"""Replicas to show: those of now, with the ones that ended early, or all that left a trace."""


@click.command()
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="Metrics of a node: of `node.py serve` (http://HOST:8099/metrics) or of Ray; repeatable.",
)
@click.option(
    "--state-dir",
    metavar="DIR",
    default="",
    help="Where the replicas of this node write; default: as they do, and none with --url.",
)
@click.option("--app", "application", default="", help="Only this application.")
@click.option(
    "--deployment",
    "deployments",
    multiple=True,
    metavar="NAME",
    help="[APP#]NAME: only this deployment; repeatable.",
)
@click.option(
    "--all", "which", flag_value="all", default="now", help="Also replicas that have ended."
)
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C.")
@click.option(
    "--period-s",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two looks of --watch.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch, a look a line.")
@click.pass_context
def status(
    context: click.Context,
    *,
    urls: tuple[str, ...],
    state_dir: str,
    application: str,
    deployments: tuple[str, ...],
    which: Which,
    watch: bool,
    period_s: float,
    as_json: bool,
) -> None:
    """Show the replicas of this node, or of others by --url: stage, inputs, verdict, last event.

    Ends with 0 when all that are there are ready; with 1 when one is not, there is none, or a
    source could not be read.
    """
    try:
        pages = tuple(dict.fromkeys(observed.metrics_url(url) for url in urls))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if state_dir or not pages:
        check_system("status", anywhere=())
    if not state_dir and not pages:
        state_dir = resolve(WarmupConfig()).state_dir or ""

    def look() -> Look:
        # Asked each time: the first replica decides.
        directory = state_dir if state_dir or pages else node.default_directory()
        return observed.look(directory, pages).of(application, deployments)

    if watch:
        follow((look() for _ in _every(period_s)), which, as_json=as_json)
        return
    now = look()
    if as_json:
        screen.data(plain(now))
    else:
        show(now, which)
    if not now.ready:
        context.exit(FAILED)


def show(now: Look, which: Which) -> None:
    """Print one look: drawn in a terminal, a replica a line elsewhere; troubles to stderr."""
    if screen.stdout.is_terminal:
        screen.stdout.print(draw(now, which))
    else:
        for each in choose(now, which):
            click.echo(line(each))
    for trouble in troubles(now):
        click.echo(trouble, err=True)


def _every(period_s: float) -> Iterator[int]:
    for number in itertools.count():
        if number:
            time.sleep(period_s)
        yield number


def follow(looks: Iterable[Look], which: Which, *, as_json: bool) -> None:
    """Show one look after the other: in place in a terminal, elsewhere a line for each change."""
    if as_json:
        for now in looks:
            click.echo(json.dumps(plain(now)))
    elif screen.stdout.is_terminal and not screen.stdout.is_dumb_terminal:
        with Live(console=screen.stdout, auto_refresh=False) as live:
            for now in looks:
                clock = Text(time.strftime("%H:%M:%S, Ctrl-C ends"), style="dim")
                said = [Text(trouble, style="red") for trouble in troubles(now)]
                live.update(Group(draw(now, which), *said, clock), refresh=True)
    else:
        before = Look()
        for now in looks:
            for text in changes(before, now, which):
                click.echo(f"{time.strftime('%H:%M:%S')} {text}")
            before = now


# --- what is shown, in words ---------------------------------------------------------------


def choose(now: Look, which: Which) -> list[Observed]:
    """Return the replicas to show: not those that were ready and have ended, unless all are.

    Nor those that ended long ago. What ended before it was ready is what one came to see: Serve
    has replaced it, and the new one says nothing of it.
    """
    return [each for each in now.replicas if which == "all" or not each.ended or each.died_young]


def troubles(now: Look) -> list[str]:
    """Return a sentence for each source that was not read, or for nothing being there."""
    if now.troubles or now.living:
        return list(now.troubles)
    where = " and ".join(now.sources)
    advice = "run it as the user of the replicas, or name --state-dir or --url"
    return [f"no replica is there: looked at {where}; {advice}"]


def line(each: Observed) -> str:
    """Return all that is known of a replica in one line, without figures that nobody knows."""
    done, wrote = inputs(each), heartbeat(each)
    facts = [
        standing(each),
        f"inputs {done}" if done else "",
        f"verdict {each.verdict}" if each.verdict else "",
        f"for {age(each.stage_s)}" if each.stage_s is not None else "",
        wrote if each.ended else f"heartbeat {wrote}" if each.heartbeat_s is not None else "",
    ]
    said = "; ".join([", ".join(filter(None, facts)), *notes(each)])
    return node.shown(f"{each.application}#{each.deployment} {each.replica}: {said}")


def changes(before: Look, now: Look, which: Which) -> list[str]:
    """Return a line for each replica that is new, gone or something else than before.

    Figures that move all the time, such as ages and inputs, are in the lines and make none.
    """
    was = {each.names: each for each in choose(before, which)}
    here = choose(now, which)
    lines = [line(each) for each in here if _standing(was.pop(each.names, None)) != _standing(each)]
    lines += [node.shown(f"{app}#{deployment} {name}: gone") for app, deployment, name in was]
    said = troubles(before) if before.sources else []
    return lines + [trouble for trouble in troubles(now) if trouble not in said]


def _standing(each: Observed | None) -> tuple[str, ...]:
    return () if each is None else (each.condition, each.stage, each.verdict, each.event)


def plain(now: Look) -> dict[str, Any]:
    """Return a look for JSON: all replicas, null for what is not known."""
    return {
        "ready": now.ready,
        "sources": list(now.sources),
        "troubles": troubles(now),
        "replicas": [
            {
                **dataclasses.asdict(each),
                "verdict": each.verdict or None,
                "stage": each.stage or None,
            }
            for each in now.replicas
        ],
    }


def standing(each: Observed) -> str:
    """Return the stage where that says it, and else what is the matter."""
    if each.condition in ("warm", "warming", "failed") or each.stage == "FAILED":
        return each.stage or "no stage"
    return f"{each.condition} in {each.stage}" if each.stage else each.condition


def inputs(each: Observed) -> str:
    """Return how many inputs are done of how many, as `4/6`; empty before they are known."""
    if not each.inputs_expected:
        return ""
    return f"{'?' if each.inputs_done is None else each.inputs_done}/{each.inputs_expected}"


def heartbeat(each: Observed) -> str:
    """Return how long ago a replica last wrote."""
    ago = f"{age(each.heartbeat_s)} ago" if each.heartbeat_s is not None else ""
    return f"ended {ago}".rstrip() if each.ended else ago or "–"


def notes(each: Observed) -> list[str]:
    """Return what it took or how much is left, what its graphs keep, and the last event."""
    took = ""
    if each.elapsed_s is not None and each.stage == "READY":
        took = f"ready after {each.elapsed_s:.1f} s"
    elif each.elapsed_s is not None and each.condition == "warming" and each.deadline_s:
        took = f"{each.elapsed_s:.0f} s of its deadline of {each.deadline_s:.0f} s"
    waits = f"waits for {each.doing}" if each.doing else ""
    answered = _describe_levels(each)
    pools = f"graphs keep {screen.size(each.graph_pool_bytes)}" if each.graph_pool_bytes else ""
    return [
        part for part in (waits, took, _told_of_store(each), answered, pools, each.event) if part
    ]


ASK_STORE = {"miss": "diff", "partial": "diff", "refused": "verify"}
"""The command that says more about a verdict, by verdict."""


def _told_of_store(each: Observed) -> str:
    """Return where the artifact is from, or the command that says why it is not in use."""
    if not each.store:
        return ""
    command = ASK_STORE.get(each.verdict)
    return f"why: serve-warm {command} {each.store}" if command else f"store {each.store}"


def _describe_levels(each: Observed) -> str:
    """Return which levels answer the calls, where something is compiled."""
    ordered = sorted(each.levels.items(), reverse=True)
    kinds = ", ".join(f"{count} at level {level}" for level, count in ordered if count)
    said = [f"calls: {kinds}"] if kinds else []
    if each.traced in ("some", "all"):
        said.append(f"traced {each.traced}")
    return ", ".join(said)


def age(seconds: float | None) -> str:
    """Return how long something is, in one unit.

    >>> [age(s) for s in (None, 0.4, 99, 100, 7200, 400_000)]
    ['–', '0 s', '99 s', '2 min', '2 h', '5 d']
    """
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{seconds:.0f} s"
    for unit, size, limit in (("min", 60, 100 * 60), ("h", 3600, 48 * 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


# --- what is shown, in a terminal ----------------------------------------------------------

BAR = 10
"""Characters."""
NAME = 32
"""Characters of a replica's name, at most: Ray's have 8."""
STYLES = {"warm": "green", "warming": "yellow", "dead": "dim"}


def draw(now: Look, which: Which) -> RenderableType:
    """Return a block for each deployment, those first that are not ready, a replica a line."""
    groups: dict[tuple[str, str], list[Observed]] = {}
    for each in choose(now, which):
        groups.setdefault((each.application, each.deployment), []).append(each)
    ordered = sorted(groups.items(), key=lambda item: (_all_warm(item[1]), item[0]))
    cells = {each.names: _cells(each) for group in groups.values() for each in group}
    header = ("replica", "stage", "inputs", "verdict", "for", "heartbeat")
    # The bar alone is as wide as the heading above it.
    widths = [
        max([0 if name == "inputs" else len(name), *(len(row[column]) for row in cells.values())])
        for column, name in enumerate(header)
    ]
    widths[0], widths[2] = min(widths[0], NAME), BAR + 1 + widths[2]
    blocks: list[RenderableType] = []
    if groups:
        blocks.append(Text("  " + _row(header, widths), style="dim", no_wrap=True))
    for (application, deployment), group in ordered:
        living = [each for each in group if not each.ended]
        ready = sum(each.warm for each in living)
        blocks.append(
            Text.assemble(
                (node.shown(f"{application}#{deployment}"), "bold"),
                f"  {ready} of {len(living)} ready",
            )
        )
        for each in sorted(group, key=lambda one: (one.ended, one.warm, one.replica)):
            blocks.append(_draw_row(each, cells[each.names], widths))
            blocks += [Padding(Text(note, style="dim"), (0, 0, 0, 4)) for note in notes(each)]
    return Group(*blocks)


def _all_warm(group: Iterable[Observed]) -> bool:
    return all(each.warm for each in group if not each.ended)


def _cells(each: Observed) -> tuple[str, ...]:
    name = node.shown(each.replica)
    return (name, standing(each), inputs(each), each.verdict, age(each.stage_s), heartbeat(each))


def _row(cells: Iterable[str], widths: Iterable[int]) -> str:
    return "  ".join(set_cell_size(cell, width) for cell, width in zip(cells, widths, strict=True))


def _draw_row(each: Observed, cells: tuple[str, ...], widths: list[int]) -> Text:
    filled = 0
    if each.inputs_expected and each.inputs_done:
        filled = min(BAR, BAR * each.inputs_done // each.inputs_expected)
    style = STYLES.get(each.condition, "red")
    return Text.assemble(
        "  ",
        (_row(cells[:2], widths[:2]), style),
        "  ",
        ("━" * filled, style),
        ("─" * (BAR - filled), "dim"),
        " ",
        set_cell_size(cells[2], widths[2] - BAR - 1),
        "  ",
        _row(cells[3:], widths[3:]),
        no_wrap=True,
    )
