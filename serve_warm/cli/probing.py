# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `probe` command, which reports whether this node is ready."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from serve_warm import node
from serve_warm.cli import FAILED, screen


def _option(name: str) -> click.Option:
    meta, default, text = node.OPTIONS[name]
    return click.Option(
        [name],
        metavar=meta or None,
        default=default,
        show_default=bool(default),
        is_flag=default is False,
        multiple=isinstance(default, tuple),
        help=text,
    )


@click.command(params=[_option(name) for name in node.OPTIONS])
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with code 1 also if a ready replica is degraded, or its inputs are narrow.",
)
@screen.json_option
@click.pass_context
def probe(
    context: click.Context, /, *, verbose: bool, strict: bool, json_file: Path | None, **given: Any
) -> None:
    """Report whether this node's replicas are warm and whether its raylet and proxy are healthy.

    The exit code is 0 if the node is ready. Otherwise the command prints one reason per line,
    and the exit code is 1. For a Kubernetes probe, run the file node.py directly, because it needs
    only a few hundredths of a second: python -I -S .../serve_warm/node.py probe. This faster probe
    has the same options, except --strict and --json.
    """
    try:
        settings = node.settings_of(**given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    readiness = node.judge(settings)
    flaws = _flaws(readiness) if strict else []
    if json_file is not None:
        screen.data({**_plain(readiness), **({"flaws": flaws} if strict else {})}, json_file)
    else:
        for line in readiness.said(verbose=verbose):
            click.echo(line)
        for line in flaws:
            click.echo(line)
        for name, option in (("raylet", "--raylet"), ("proxy", "--proxy")):
            if name in dict(readiness.reasons) and given[name] == node.OPTIONS[option][1]:
                click.echo(f"if the {name} listens elsewhere: {option} URL, or none", err=True)
        if readiness.ready and not (verbose or flaws) and sys.stdout.isatty():
            alive = sum(each.condition != "dead" for each in readiness.replicas)
            click.echo(f"ready: {', '.join(readiness.checks)}; replicas: {alive}")
    if not readiness.ready or flaws:
        context.exit(FAILED)


def _flaws(readiness: node.Readiness) -> list[str]:
    """Return what is wrong with ready replicas, a line for each."""
    return [
        node.shown(f"{'#'.join(each.names[:2])} {each.names[2]}: {what}: {text}")
        for each in readiness.replicas
        if each.condition == "warm"
        for what in ("degraded", "narrow")
        for text in (each.state or {}).get(what) or ()
    ]


def _plain(readiness: node.Readiness) -> dict[str, Any]:
    return {
        "ready": readiness.ready,
        "checks": [
            {
                "check": name,
                "why": "; ".join(why for check, why in readiness.reasons if check == name),
            }
            for name in readiness.checks
        ],
        "replicas": [
            {
                **dict(zip(("application", "deployment", "replica"), each.names, strict=True)),
                "condition": each.condition,
                "why": each.why,
                "counts": each not in readiness.excused and each.condition != "dead",
            }
            for each in readiness.replicas
        ],
    }
