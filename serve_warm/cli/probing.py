# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `probe` command, which reports whether this node is ready."""

from __future__ import annotations

from typing import Any

import click

from serve_warm import node
from serve_warm.cli import FAILED, screen
from serve_warm.config import WarmupConfig, resolve


def _option(name: str) -> click.Option:
    meta, default, text = node.OPTIONS[name]
    return click.Option(
        [name], metavar=meta, default=default, show_default=bool(default), help=text
    )


@click.command(params=[_option(name) for name in node.OPTIONS])
@click.option("--deployment", "deployments", multiple=True, help=node.DEPLOYMENT_HELP)
@click.option("--no-latch", "latch", flag_value="off", default="on", help=node.LATCH_HELP)
@click.option("--verbose", is_flag=True, help="Show each check and replica.")
@click.option("--json", "as_json", is_flag=True, help="Print each check and replica as JSON.")
@click.pass_context
def probe(
    context: click.Context,
    *,
    state_dir: str,
    expect: str,
    deployments: tuple[str, ...],
    latch: str,
    stale_s: str,
    raylet: str,
    proxy: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Report whether this node's replicas are warm and whether its raylet and proxy are healthy.

    The exit code is 0 if the node is ready. Otherwise the command prints one reason per line,
    and the exit code is 1. For a Kubernetes probe, run the file node.py directly, because it needs
    only a few hundredths of a second: python -I -S .../serve_warm/node.py probe. This faster probe
    has the same options, except --json.
    """
    configured = resolve(WarmupConfig()).state_dir
    try:
        settings = node.settings_of(
            state_dir=state_dir or configured or "",
            expect=expect,
            deployments=deployments,
            latch=latch,
            stale_s=float(stale_s),
            raylet=raylet,
            proxy=proxy,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    readiness = node.judge(settings)
    if as_json:
        screen.data(_plain(readiness))
    else:
        for line in readiness.said(verbose=verbose):
            click.echo(line)
    if not readiness.ready:
        context.exit(FAILED)


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
