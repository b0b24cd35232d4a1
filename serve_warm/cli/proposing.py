# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `init` command, which proposes the files that an application needs to start warm."""

from __future__ import annotations

from pathlib import Path

import click

from serve_warm.cli import screen
from serve_warm.cli.starts import APP_HELP, need_ray
from serve_warm.errors import ConfigError


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
    help="Propose declared inputs instead: a change of the source, with values from type hints, "
    "pydantic examples and FastAPI's schema. An unknown value is `...`, for you to fill in.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("serve.yaml"),
    show_default=True,
    help="The Serve config to propose, if APP is module:app.",
)
@click.option("--write", is_flag=True, help="Write what is shown. An existing config is kept.")
@screen.json_option
def init(
    *,
    app: str,
    artifact: str | None,
    inputs: bool,
    output: Path,
    write: bool,
    json_file: Path | None,
) -> None:
    """Propose a Serve config that warms an application, or inputs that it can declare.

    The command imports the application, runs no __init__, and shows what it would write. Without
    --write, it changes nothing.
    """
    need_ray("init")
    from serve_warm.builder.app import load_application
    from serve_warm.builder.proposals import propose_config, propose_inputs

    application = load_application(app)
    if inputs:
        proposals, left = propose_inputs(application)
    else:
        proposals, left = [propose_config(application, output, artifact=artifact)], []
    for why in left:
        click.echo(f"left as it is: {screen.show_line(why)}", err=True)
    proposals = [each for each in proposals if each.diff()]
    if json_file is not None:
        files = [{"file": str(each.path), "content": each.after} for each in proposals]
        screen.data({"files": files, "left": left}, json_file)
    for each in proposals if json_file != Path("-") else ():
        is_new = each.before is None
        click.echo((each.after if is_new else each.diff()).rstrip("\n"))
    if not proposals:
        click.echo("nothing to propose", err=True)
        return
    names = ", ".join(screen.show_line(str(each.path)) for each in proposals)
    if not write:
        click.echo(f"nothing was written; --write writes {names}", err=True)
        return
    if not inputs and not application.is_from_file and proposals[0].before is not None:
        raise ConfigError(
            f"{output} exists, and would be replaced",
            hint=f"pass another file with --output, or change it: serve-warm init {output}",
        )
    for each in proposals:
        each.path.write_text(each.after, encoding="utf-8")
    click.echo(f"wrote {names}", err=True)
    if any("..." in each.after for each in proposals) and inputs:
        click.echo("fill in the values that are `...`", err=True)
    config = app if inputs or application.is_from_file else str(output)
    click.echo(f"next: serve-warm check {screen.show_line(config)}", err=True)
