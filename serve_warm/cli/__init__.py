# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `serve-warm` command: data goes to stdout, everything else to stderr.

Exit codes: 0 done · 1 it failed, and the text says what to do · 2 wrong usage · 130 interrupted.
Commands are imported when they are called: `serve-warm --help` and `inspect` import no torch.
"""

from __future__ import annotations

import logging
import sys

import click

from serve_warm import __version__
from serve_warm.errors import ServeWarmError

COMMANDS = {
    "build": "serve_warm.cli.starts",
    "bench": "serve_warm.cli.starts",
    "inspect": "serve_warm.cli.artifacts",
    "pull": "serve_warm.cli.artifacts",
    "push": "serve_warm.cli.artifacts",
}
"""Module by command."""


class _Lazy(click.Group):
    """Imports the module of a command when it is asked for."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        import importlib

        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[name]), name)
        return command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="serve-warm")
@click.option("-v", "--verbose", is_flag=True, help="Show log lines on stderr.")
def serve_warm(*, verbose: bool) -> None:
    """Compile-cache artifacts for PyTorch models on Ray Serve: build, publish, inspect, measure."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )


def main() -> None:
    """Run the command line; errors of ours end it with one message and exit code 1."""
    try:
        serve_warm()
    except ServeWarmError as error:
        # A statement that is not trusted may put anything into an error, control codes included.
        lines = [line if line.isprintable() else repr(line) for line in str(error).splitlines()]
        click.echo("error: " + "\n".join(lines), err=True)
        sys.exit(1)
