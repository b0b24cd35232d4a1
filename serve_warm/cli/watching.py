# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `status` command, which shows the progress of replicas, once or continuously."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import click

from serve_warm import node
from serve_warm.cli import FAILED, observed, screen
from serve_warm.cli.observed import Look, Observed
from serve_warm.config import WarmupConfig, resolve

Which = Literal["now", "all"]
"""Replicas to show. `now`: running replicas, and replicas that recently ended before READY. `all`:
all known replicas."""


@click.command()
@screen.state_dir_option
@screen.app_option
@screen.deployments_option
@click.option(
    "--all", "which", flag_value="all", default="now", help="Also show replicas that have ended."
)
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--period-s",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    help="Seconds between updates with --watch.",
)
@screen.json_option
@click.pass_context
def status(
    context: click.Context,
    *,
    state_dir: str,
    application: str,
    deployments: tuple[str, ...],
    which: Which,
    watch: bool,
    period_s: float,
    json_file: Path | None,
) -> None:
    """Show the replicas of this node.

    The exit code is 0 if all live replicas are ready. It is 1 if a replica is not ready, if no
    replica exists, or if the state directory cannot be read.
    """
    state_dir = state_dir or resolve(WarmupConfig()).state_dir or ""

    def look() -> Look:
        # Find the directory at each look, because the first replica chooses it.
        directory = state_dir or node.default_directory()
        return observed.of_directory(directory).of(application, deployments)

    if watch:
        if json_file not in (None, Path("-")):
            raise click.UsageError("with --watch, --json writes to stdout: leave the file out")
        as_json = json_file is not None
        follow((look() for _ in _every(period_s)), which, as_json=as_json)
        return
    now = look()
    if json_file is not None:
        screen.data(plain(now), json_file)
    else:
        show(now, which)
    if not now.ready:
        context.exit(FAILED)


def show(now: Look, which: Which) -> None:
    """Print one line per replica. Troubles go to stderr."""
    for each in choose(now, which):
        click.echo(line(each))
    for text in troubles(now):
        click.echo(text, err=True)


def _every(period_s: float) -> Iterator[int]:
    for number in itertools.count():
        if number:
            time.sleep(period_s)
        yield number


def follow(looks: Iterable[Look], which: Which, *, as_json: bool) -> None:
    """Print a line for each change until Ctrl-C, or with `as_json` a document for each look."""
    before = Look()
    for now in looks:
        if as_json:
            click.echo(json.dumps(plain(now)))
            continue
        for text in changes(before, now, which):
            click.echo(f"{time.strftime('%H:%M:%S')} {text}")
        before = now


# --- texts ---------------------------------------------------------------------------------


def choose(now: Look, which: Which) -> list[Observed]:
    """Return the replicas to show: all of them, or only those that have not ended.

    A replica that ended recently, before it was ready, is always shown: Serve has already replaced
    it, and the new replica does not report the old replica's end.
    """
    return [each for each in now.replicas if which == "all" or not each.ended or each.died_young]


def troubles(now: Look) -> list[str]:
    """Return what is wrong with the source or the names, or a sentence if no replica runs."""
    if now.troubles or now.living:
        return list(now.troubles)
    advice = "run as the user that runs the replicas, or pass --state-dir"
    return [f"found no replica in {now.directory}; {advice}"]


def line(each: Observed) -> str:
    """Return all known facts about a replica in one line."""
    done = inputs(each)
    facts = [
        standing(each),
        f"inputs {done}" if done else "",
        f"verdict {verdict(each)}" if each.verdict else "",
        f"for {age(each.stage_s)}" if each.stage_s is not None else "",
        heartbeat(each),
    ]
    said = "; ".join([", ".join(filter(None, facts)), *notes(each)])
    return node.shown(f"{each.application}#{each.deployment} {each.replica}: {said}")


def verdict(each: Observed) -> str:
    """Return a replica's verdict, and for a full hit the lowest level of its calls."""
    if each.verdict != "full_hit":
        return each.verdict
    used = [int(level) for level, count in each.levels.items() if count]
    lowest = min(used, default=1 if each.traced == "all" else 0)
    return f"{each.verdict}, level {lowest}" if lowest else each.verdict


def changes(before: Look, now: Look, which: Which) -> list[str]:
    """Return a line for each replica that is new, gone or changed.

    Numbers that change constantly, such as ages and input counts, are not compared.
    """
    was = {each.names: each for each in choose(before, which)}
    here = choose(now, which)
    lines = [line(each) for each in here if _standing(was.pop(each.names, None)) != _standing(each)]
    lines += [node.shown(f"{app}#{deployment} {name}: gone") for app, deployment, name in was]
    said = troubles(before) if before.directory else []
    return lines + [text for text in troubles(now) if text not in said]


def _standing(each: Observed | None) -> tuple[str, ...]:
    return () if each is None else (each.condition, each.stage, each.verdict, each.event)


def plain(now: Look) -> dict[str, Any]:
    """Return the data for JSON, with all replicas and null for unknown facts."""
    return {
        "ready": now.ready,
        "directory": now.directory,
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
    """Return the stage, or the condition if the stage does not describe the replica."""
    if each.condition in ("warm", "warming", "failed") or each.stage == "FAILED":
        return each.stage or "no stage"
    return f"{each.condition} in {each.stage}" if each.stage else each.condition


def inputs(each: Observed) -> str:
    """Return how many inputs are done, such as `4/6`; empty before the total is known."""
    if not each.inputs_expected:
        return ""
    return f"{'?' if each.inputs_done is None else each.inputs_done}/{each.inputs_expected}"


def heartbeat(each: Observed) -> str:
    """Return when a replica ended or last wrote its state; empty if unknown."""
    verb = "ended" if each.ended else "heartbeat"
    if each.heartbeat_s is not None:
        return f"{verb} {age(each.heartbeat_s)} ago"
    return verb * each.ended


def notes(each: Observed) -> list[str]:
    """Return notes about a replica, such as its store, its levels, its seats and its last event."""
    took = ""
    if each.elapsed_s is not None and each.stage == "READY":
        took = f"ready {each.elapsed_s:.1f} s after its __init__ began"
    elif each.elapsed_s is not None and each.condition == "warming" and each.deadline_s:
        took = f"created {each.elapsed_s:.0f} s ago, "
        took += f"deadline {each.deadline_s:.0f} s after the end of __init__"
    waits = f"waits for {each.doing}" if each.doing else ""
    answered = _describe_levels(each)
    pools = (
        f"CUDA graphs reserve {screen.size(each.graph_pool_bytes)}" if each.graph_pool_bytes else ""
    )
    seats = f"seats: {each.seats}" if each.seats else ""
    parts = (waits, took, _told_of_store(each), answered, pools, seats, each.event)
    return [part for part in parts if part]


ASK_STORE = {"miss": "diff", "eager": "diff", "refused": "verify"}
"""The command that explains each verdict. No command explains a partial hit, because `diff` would
only say that the artifact fits. The replica itself reports what was compiled."""


def _told_of_store(each: Observed) -> str:
    """Return the store, or the command that explains why the store's artifact is not in use."""
    if not each.store:
        return ""
    store = shlex.quote(each.store)
    if each.verdict == "partial" and "parity: " in each.event:
        return f"signers: serve-warm inspect {store}"  # it fits, but its results were wrong
    command = ASK_STORE.get(each.verdict)
    return f"why: serve-warm {command} {store}" if command else f"store {each.store}"


def _describe_levels(each: Observed) -> str:
    """Return the number of kinds of calls at each level; empty if nothing is compiled."""
    ordered = sorted(each.levels.items(), reverse=True)
    kinds = ", ".join(f"{count} at level {level}" for level, count in ordered if count)
    said = [f"calls: {kinds}"] if kinds else []
    if each.traced in ("some", "all"):
        said.append(f"traced {each.traced}")
    return ", ".join(said)


def age(seconds: float) -> str:
    """Return a duration as a whole number of seconds, minutes, hours or days.

    >>> [age(s) for s in (0.4, 99, 100, 7200, 400_000)]
    ['0 s', '99 s', '2 min', '2 h', '5 d']
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    for unit, size, limit in (("min", 60, 100 * 60), ("h", 3600, 48 * 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
