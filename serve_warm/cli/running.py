# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `run` command: `serve run` for an application that names no serve_warm."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from serve_warm.app import WRAP
from serve_warm.cli.starts import need_ray


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
    epilog="All other options are those of serve run: serve run --help lists them.",
)
@click.argument("app")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[KEY=VALUE]... [OPTIONS]...")
@click.option(
    "--artifact",
    metavar="STORE",
    help="Store to pull from: a folder, or an s3, gs, az or hf address. Default: a folder of your "
    "user.",
)
def run(*, app: str, artifact: str | None, words: Sequence[str]) -> None:
    """Run an application as serve run does, and warm its replicas.

    APP is the import path that you would give to serve run. It needs no change. KEY=VALUE goes to
    the application's own builder function.
    """
    need_ray("run")
    from serve_warm.builder.cluster import serve_run

    if app.endswith((".yaml", ".yml")):
        raise click.UsageError(
            f"{app} is a Serve config: run it with serve run, after serve-warm init {app} has "
            "wrapped its application"
        )
    serve_run(words_of(app, words, artifact=artifact))


def words_of(app: str, words: Sequence[str], *, artifact: str | None) -> list[str]:
    """Return the command line of `serve run` for a wrapped application."""
    arguments: dict[str, str] = {}
    options = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            arguments[name] = value
        else:
            options.append(word)
    own = [f"app={app}"]
    own += [f"args={json.dumps(arguments)}"] if arguments else []
    own += [f"artifact={artifact}"] if artifact is not None else []
    return [WRAP, *own, *options]
