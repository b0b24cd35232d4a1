# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The commands that start replicas: `build` and `bench`."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from serve_warm.cli import screen
from serve_warm.errors import MissingPackage

if TYPE_CHECKING:
    from serve_warm.builder.build import Built
    from serve_warm.fingerprint import Cpu

APP_HELP = "APP is a Serve YAML with one application, or module:app."


@click.command(epilog=APP_HELP)
@click.argument("app")
@click.option("--store", required=True, help="Where to publish: a folder, s3, gs, az, hf.")
@click.option("--deployment", help="Which deployment, where several use WarmupMixin.")
@click.option("--address", help="A running Ray cluster, such as auto; default: a local one.")
@click.option(
    "--key",
    "key_file",
    type=click.Path(path_type=Path),
    help="Ed25519 private key, PEM, to sign with; default: your own, made on first use.",
)
@click.option(
    "--portable-cpu",
    "cpu",
    flag_value="portable",
    help="Compile for every CPU with AVX2 (x86-64-v3), and prove it by disassembly.",
)
@click.option(
    "--if-published",
    type=click.Choice(["refuse", "keep", "supersede"]),
    default="refuse",
    show_default=True,
    help="When the store has this variant already: fail, prove that one instead, or publish beside "
    "it, which makes the new one the one that replicas take.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
def build(
    *,
    app: str,
    store: str,
    deployment: str | None,
    address: str | None,
    key_file: Path | None,
    cpu: Cpu | None,
    if_published: Literal["refuse", "keep", "supersede"],
    as_json: bool,
) -> None:
    """Build, prove, sign and publish the artifact of a deployment.

    Starts the deployment with the resources of its own options, replays its inputs, packs its
    caches, and publishes them only after a second, fresh replica has loaded the artifact and
    proven every input without running a compiler.
    """
    _need("build")
    from serve_warm.builder.app import load_app
    from serve_warm.builder.build import build
    from serve_warm.builder.cluster import open_cluster
    from serve_warm.trust.keys import load_signing_key

    key = load_signing_key(key_file) if key_file is not None else None
    loaded = load_app(app, deployment=deployment)
    with screen.progress() as progress:
        progress("starting Ray")
        with open_cluster(address=address, num_cpus=loaded.num_cpus) as cluster:
            built = build(
                loaded,
                store,
                on=cluster,
                key=key,
                cpu=cpu,
                if_published=if_published,
                progress=progress,
                notice=_say,
            )
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(built), indent=2, default=dict))
    else:
        _show_built(built)


def _show_built(built: Built) -> None:
    cold, warm = built.cold, built.round_trip
    ratio = warm["to_proof_s"] / cold["to_proof_s"]
    done = "published" if built.published == "new" else "kept, as it was published before,"
    click.echo(f"{done} {built.statement}")
    for rank, statement in enumerate(built.ranks[1:], start=1):
        click.echo(f"and for rank {rank} {statement}")
    click.echo(f"  store       {built.store}")
    click.echo(f"  variant     {built.variant}")
    for name, count in built.parts.items():
        click.echo(f"  part        {name}, {screen.size(count)}")
    click.echo(
        f"  compiled    {cold['to_proof_s']:.1f} s to proof, "
        f"{cold['warmup']['compiler_processes']} compiler processes"
    )
    click.echo(
        f"  round trip  {warm['to_proof_s']:.1f} s to proof ({ratio:.2f} of that), "
        f"{warm['warmup']['compiler_processes']} compiler processes, "
        f"{warm['covered']['proven']}/{warm['covered']['expected']} inputs proven"
    )
    for line in screen.levels(warm["entries"]):
        click.echo(f"  {line}")
    portable = built.portable_libraries is not None
    if portable:
        click.echo(f"  portable    {built.portable_libraries} libraries, none needs more than AVX2")
    cpu_setting = ", cpu: portable" if portable else ""
    click.echo(f"use it: user_config: {{warmup: {{artifact: {built.store}{cpu_setting}}}}}")
    if portable:
        click.echo("only replicas that set cpu: portable too can load it")
    if built.trust:
        click.echo("replicas of other users or machines trust it with these lines in")
        click.echo("/etc/serve_warm/trust.toml:")
    for line in built.trust.splitlines():
        click.echo(f"  {line}")


@click.command(epilog=APP_HELP)
@click.argument("app")
@click.option("--store", required=True, help="The store that holds the artifact.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    help="Write results here; - for stdout, in place of the table.",
)
@click.option("--deployment", help="Which deployment, where several use WarmupMixin.")
@click.option("--address", help="A running Ray cluster, such as auto; default: a local one.")
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=click.Choice(["cold", "torch_bytes", "warm"]),
    help="Start this way; may be repeated. Default: all three.",
)
@click.option("--repeats", default=1, show_default=True, type=click.IntRange(1))
@click.option("--requests", "request_count", default=60, show_default=True, type=click.IntRange(2))
def bench(
    *,
    app: str,
    store: str,
    json_file: Path | None,
    deployment: str | None,
    address: str | None,
    modes: tuple[str, ...],
    repeats: int,
    request_count: int,
) -> None:
    """Compare cold, torch's own cache bytes and serve_warm, each in fresh processes."""
    _need("bench")
    from serve_warm.builder import bench as bench_
    from serve_warm.builder.app import load_app
    from serve_warm.builder.cluster import open_cluster

    loaded = load_app(app, deployment=deployment)
    with screen.progress() as progress:
        progress("starting Ray")
        with open_cluster(address=address, num_cpus=loaded.num_cpus) as cluster:
            result = bench_.run(
                loaded,
                store,
                on=cluster,
                modes=modes or bench_.MODES,
                repeats=repeats,
                request_count=request_count,
                progress=progress,
            )
    if json_file == Path("-"):
        screen.data(result)
        return
    show(result)
    if json_file is not None:
        write(result, json_file)


def _say(text: str) -> None:
    # Around a status line, and of what a replica says.
    screen.stderr.print(screen.show_line(text), markup=False, soft_wrap=True)


def _need(command: str) -> None:
    """Refuse a command that starts replicas where there is nothing to start them with."""
    for module, package in (("ray", "ray[serve]"), ("torch", "torch")):
        if importlib.util.find_spec(module) is None:
            raise MissingPackage(f"serve-warm {command}", package=package)


def show(result: dict[str, Any]) -> None:
    """Print the comparison and the ratios."""
    from serve_warm.builder import bench as bench_

    machine = result["machine"]
    title = (
        f"{result['deployment']} on {machine['cpus']} CPUs ({machine['cpu']}), "
        f"torch {machine['torch']}, ray {machine['ray']}"
    )
    header, rows = bench_.table(result)
    screen.stdout.print(title, soft_wrap=True)
    screen.stdout.print(screen.table(header, rows))
    for name, ratio in result["ratios"].items():
        against = {"warm_to_cold": "cold", "warm_to_torch_bytes": "torch's bytes"}[name]
        screen.stdout.print(f"model built → proof: {ratio:.2f} of {against}")


def write(result: dict[str, Any], path: Path) -> None:
    """Write the result as JSON and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    click.echo(f"wrote {path}", err=True)
