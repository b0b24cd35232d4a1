# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `init` command, which proposes the files that an application needs to start warm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from serve_warm.cli import screen
from serve_warm.cli.starts import APP_HELP, need_ray
from serve_warm.errors import ConfigError

if TYPE_CHECKING:
    from serve_warm.builder.proposals import Proposal


@click.command(epilog=APP_HELP)
@click.argument("app")
@click.option(
    "--artifact",
    metavar="STORE",
    help="Store to pull from: a folder, or an s3, gs, az or hf address. Default: a folder of your "
    "user, and a comment about it.",
)
@click.option(
    "--inputs",
    is_flag=True,
    help="Propose declared inputs instead: a method warmup_inputs in the source, with values from "
    "type hints, pydantic examples and FastAPI's schema. An unknown value is `...`, for you to "
    "fill in.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The Serve config to propose, if APP is module:app. Default: serve.yaml.",
)
@click.option("--write", is_flag=True, help="Write what is shown. An existing config is kept.")
@screen.json_option
def init(
    *,
    app: str,
    artifact: str | None,
    inputs: bool,
    output: Path | None,
    write: bool,
    json_file: Path | None,
) -> None:
    """Propose a Serve config that warms an application, or inputs that it can declare.

    The command imports the application, runs no __init__, and shows what it would write. Without
    --write, it changes nothing.
    """
    need_ray("init")
    from serve_warm.builder.app import load_application
    from serve_warm.builder.proposed_config import propose_config
    from serve_warm.builder.proposed_inputs import propose_inputs

    if inputs and artifact:
        raise click.UsageError("pass --inputs or --artifact, not both")
    application = load_application(app)
    if output is not None and (inputs or application.is_from_file):
        raise click.UsageError("--output names a new Serve config, but this changes a file")
    file = output or Path("serve.yaml")
    if inputs:
        proposals, left = propose_inputs(application)
    else:
        proposals, left = [propose_config(application, file, artifact=artifact)], []
    is_new = not inputs and not application.is_from_file
    if is_new and proposals[0].before is not None:
        raise ConfigError(
            f"{file} exists, and would be replaced",
            hint=f"pass another file with --output, or change it: serve-warm init {file}",
        )
    proposals = [each for each in proposals if each.diff()]
    _show(proposals, left, json_file)
    if proposals and application.is_from_file and not (inputs or artifact):
        click.echo(
            "without --artifact, replicas read a folder of their user, which serves one machine",
            err=True,
        )
    names = ", ".join(screen.show_line(str(each.path)) for each in proposals)
    if not proposals:
        click.echo("nothing to propose", err=True)
    elif not write:
        click.echo(f"nothing was written; --write writes {names}", err=True)
    else:
        for each in proposals:
            each.write()
        click.echo(f"wrote {names}", err=True)
        if any("# fill in" in each.after for each in proposals):
            click.echo("fill in the values that are `...`", err=True)
        checked = str(file) if is_new else app
        click.echo(f"next: serve-warm check {screen.show_line(checked)}", err=True)


def _show(proposals: Sequence[Proposal], left: Sequence[str], json_file: Path | None) -> None:
    for why in left:
        click.echo(f"left as it is: {screen.show_line(why)}", err=True)
    if json_file is not None:
        files = [{"file": str(each.path), "content": each.after} for each in proposals]
        screen.data({"files": files, "left": left}, json_file)
    for each in proposals if json_file != Path("-") else ():
        click.echo((each.after if each.before is None else each.diff()).rstrip("\n"))
