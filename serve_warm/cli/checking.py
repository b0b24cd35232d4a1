# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `check` command, which looks for mistakes before a replica starts."""

from __future__ import annotations

import time
import traceback
from contextlib import AbstractContextManager
from pathlib import Path

import click

from serve_warm.cli import CANNOT_TELL, FAILED, harmless, screen
from serve_warm.cli.starts import APP_HELP, need_ray
from serve_warm.config import environment
from serve_warm.errors import ServeWarmError


def _print_schema(context: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from serve_warm.cli.editing import serve_schema

        screen.data(serve_schema(), Path("-"))
        context.exit()


@click.command(epilog=APP_HELP)
@click.argument("app")
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON Schema of a Serve config with the settings of serve_warm, and exit. "
    "Editors complete and check the file with it.",
)
@click.option(
    "--store",
    help="The store that serve-warm build will publish to. The command reports a problem if the "
    "app's settings name a different store.",
)
@click.option("--deployment", help="Check only this deployment, which must use WarmupMixin.")
@screen.json_option
def check(*, app: str, store: str | None, deployment: str | None, json_file: Path | None) -> None:
    """Look for mistakes in an application, in seconds and without starting Ray.

    The command imports the application's module, but does not run any __init__. It checks
    deployment names, keys, settings and the store. It also checks the targets and sizes of inputs,
    as far as the source shows them. The exit code is 0 without problems, 1 with problems, and 2 if
    the application cannot be imported or read. Warnings do not change the exit code.
    """
    start = time.perf_counter()
    with _CannotTell():
        need_ray("check")
        from serve_warm.builder import check as check_

        checked = check_.check(app, deployment=deployment, store=store, environ=environment())
    seconds = time.perf_counter() - start
    if json_file is not None:
        data = check_.to_json(checked, seconds=seconds)
        screen.data(data, json_file)
    if json_file != Path("-"):
        lines = [
            *check_.to_lines(checked.problems, label="problem"),
            *check_.to_lines(checked.warnings, label="warning"),
            *check_.to_lines(checked.notes, label="note"),
        ]
        for line in lines:
            click.echo(screen.show_line(line))
        found = f"{screen.count(len(checked.problems), 'problem')}, "
        found += screen.count(len(checked.warnings), "warning")
        click.echo(f"{found} ({seconds:.1f} s)", err=True)
    if checked.problems:
        click.get_current_context().exit(FAILED)


class _CannotTell(AbstractContextManager[None]):
    """Ends the command with exit code 2 for any exception that the user's module raises."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, Exception):
            return
        if isinstance(error, ServeWarmError):
            text = f"error: {error}"
        else:
            text = "".join(traceback.format_exception(error)).rstrip("\n")
        click.echo(harmless(text), err=True)
        click.get_current_context().exit(CANNOT_TELL)
