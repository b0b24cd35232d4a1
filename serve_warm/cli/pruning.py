# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `prune` command, which removes artifacts from a store."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

import click

from serve_warm._regular_files import read_regular
from serve_warm.artifact import pruning
from serve_warm.artifact.statements import STATEMENTS
from serve_warm.cli import screen
from serve_warm.cli.artifacts import application_option, deployment_option
from serve_warm.config import WarmupConfig, resolve
from serve_warm.node import default_directory, read_states
from serve_warm.stores import open_existing_store
from serve_warm.trust.envelope import parse_json

DURATIONS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def duration(text: str) -> float:
    """Return a duration in seconds.

    >>> duration("12h"), duration("90d")
    (43200.0, 7776000.0)
    """
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([A-Za-z]+)", text)
    unit = None if found is None else DURATIONS.get(found[2].lower())
    if found is None or unit is None or float(found[1]) == 0:
        raise click.BadParameter(
            f"{text!r} is not valid: write a number above 0 and one of the units "
            f"{', '.join(DURATIONS)}, for example 12h or 90d"
        )
    return float(found[1]) * unit


@click.command()
@click.argument("store")
@application_option
@deployment_option
@click.option(
    "--older-than",
    type=duration,
    help="Remove artifacts that are older than this, for example 12h or 90d.",
)
@click.option(
    "--keep-newest",
    type=click.IntRange(0),
    help="For each variant, code and model, keep this many of the newest artifacts at any age; "
    "default: 1.",
)
@click.option(
    "--in-use",
    "in_use_files",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    help="JSON file with artifacts to keep: a replica's report, a list of reports, or a list of "
    "statements; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, but remove nothing.")
@screen.json_option
def prune(
    *,
    store: str,
    application: str | None,
    deployment: str | None,
    older_than: float | None,
    keep_newest: int | None,
    in_use_files: tuple[Path, ...],
    dry_run: bool,
    json_file: Path | None,
) -> None:
    """Remove old artifacts from STORE.

    Without --older-than, the command removes only parts that no artifact refers to. These parts
    must be at least a day old, because newer parts might belong to a push that is still running.
    The command keeps artifacts that this user's replicas on this machine use, and artifacts in
    --in-use files. It cannot see replicas on other machines.
    """
    if keep_newest is not None and older_than is None:
        raise click.UsageError("--keep-newest only works together with --older-than: pass it too")
    in_use = _running_here().union(*(_find_names(file) for file in in_use_files))
    opened = open_existing_store(store)
    did: Literal["show", "remove"] = "show" if dry_run else "remove"
    pruned = pruning.prune(
        opened,
        application=application,
        deployment=deployment,
        older_than_s=older_than,
        keep_newest=1 if keep_newest is None else keep_newest,
        in_use=in_use,
        do=did,
    )
    if json_file is not None:
        screen.data({"store": opened.uri, "did": did, **dataclasses.asdict(pruned)}, json_file)
        return
    _show(pruned, "would remove" if dry_run else "removed")


def _show(pruned: pruning.Pruned, did: str) -> None:
    if pruned.removed:
        screen.table(
            ("torch", "created", did),
            [
                # Show the time only to the minute, so that the statement fits the window.
                (item.torch or "-", item.created[:16].replace("T", " "), item.statement)
                for item in pruned.removed
            ],
        )
    for title, kept in (("kept: in use", pruned.in_use), ("kept: unreadable", pruned.unreadable)):
        if kept:
            screen.table((title,), [(key,) for key in kept])
    artifacts, parts = len(pruned.removed), len(pruned.blobs)
    click.echo(
        f"{did} {artifacts} artifact{'s' * (artifacts != 1)} and {parts} part{'s' * (parts != 1)}, "
        f"{screen.size(pruned.freed_bytes)}"
    )


def _running_here() -> set[str]:
    directory = resolve(WarmupConfig()).state_dir
    states = read_states(default_directory() if directory is None else directory)
    return {state["statement"] for state in states if isinstance(state.get("statement"), str)}


def _find_names(file: Path) -> set[str]:
    try:
        found = _statements_in(parse_json(read_regular(file)))
    except (OSError, ValueError) as error:
        # An error, because an empty list would remove artifacts that the user wants to keep.
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise click.BadParameter(
            f"{screen.show_line(str(file))}: {why}; pass a file with a replica's report, a list of "
            "reports, or a list of statements",
            param_hint="'--in-use'",
        ) from error
    return found


def _statements_in(data: Any) -> set[str]:
    """Return the statements in `data`, which is one report, or a list of reports or statements.

    Raises:
        ValueError: `data` has neither reports nor statements.
    """
    items = data if isinstance(data, list) else [data]
    # In the report of a replica without an artifact, the statement is empty.
    return {_statement_of(item) for item in items} - {""}


def _statement_of(item: Any) -> str:
    statement = item
    if isinstance(item, dict):
        about = item.get("artifact", item)
        if about is None or (isinstance(about, dict) and about.get("statement") == ""):
            return ""
        statement = about.get("statement") if isinstance(about, dict) else None
    if not isinstance(statement, str) or not statement.startswith(STATEMENTS):
        raise ValueError("it contains no statement")
    return statement
