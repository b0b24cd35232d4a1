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
from serve_warm.config import environment
from serve_warm.errors import ConfigError, MissingPackage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serve_warm.builder.app import App, Application
    from serve_warm.builder.built import Built, NothingToBuild
    from serve_warm.fingerprint import Cpu

APP_HELP = "APP is a Serve YAML with one application, or module:app."

address_option = click.option(
    "--address", help="A running Ray cluster, such as auto; default: a local one."
)
working_dir_option = click.option(
    "--working-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="With --address: a folder that Ray copies to the nodes, with the code of APP.",
)


@click.command(epilog=APP_HELP)
@click.argument("app")
@click.option("--store", required=True, help="Where to publish: a folder, s3, gs, az, hf.")
@click.option("--deployment", help="Which deployment, where several use WarmupMixin.")
@click.option("--all", "every", is_flag=True, help="Each deployment that uses WarmupMixin.")
@address_option
@working_dir_option
@click.option(
    "--key",
    "key_file",
    type=click.Path(path_type=Path),
    help="Ed25519 private key, PEM, to sign with; default: your own, made on first use.",
)
@click.option(
    "--unsigned",
    is_flag=True,
    help="Publish into a folder without a signature, for serve-warm sign --unsigned; --key then "
    "signs the copy for the round trip alone.",
)
@click.option("--source-commit", default="", help="Signed fact; default: that of a CI job.")
@click.option("--image", default="", help="Signed fact: the image that this runs in, by digest.")
@click.option("--builder", default="", help="Signed fact; default: the workflow, on GitHub.")
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
    every: bool,
    address: str | None,
    working_dir: Path | None,
    key_file: Path | None,
    unsigned: bool,
    source_commit: str,
    image: str,
    builder: str,
    cpu: Cpu | None,
    if_published: Literal["refuse", "keep", "supersede"],
    as_json: bool,
) -> None:
    """Build, prove, sign and publish the artifact of a deployment.

    Looks for the mistakes that check finds, and stops at a problem. Then starts the deployment with
    the resources of its own options, replays its inputs, packs its caches, and publishes them only
    after a second, fresh replica has loaded the artifact and proven every input without running a
    compiler.
    """
    if every and deployment is not None:
        raise click.UsageError("--all builds for each deployment, and --deployment names one")
    _check_working_dir(address, working_dir)
    need_ray("build")
    from serve_warm.builder.app import load_application
    from serve_warm.builder.built import NothingToBuild
    from serve_warm.builder.provenance import read_provenance
    from serve_warm.trust.keys import load_signing_key

    key = load_signing_key(key_file) if key_file is not None else None
    application = load_application(app)
    _check_first(application, deployment, store, unsigned=unsigned)
    names = list(application.warming) if every else [deployment]
    apps = [application.app(name) for name in names]
    options = {
        "key": key,
        "signature": "later" if unsigned else "now",
        "provenance": read_provenance(
            environment(), source=source_commit, image=image, builder=builder
        ),
        "cpu": cpu,
        "if_published": if_published,
    }
    results = _build_each(apps, store, address, working_dir, options)
    if as_json:
        data = [dataclasses.asdict(built) for built in results]
        click.echo(json.dumps(data if every else data[0], indent=2, default=dict))
        return
    for each, built in zip(apps, results, strict=True):
        if isinstance(built, NothingToBuild):
            click.echo(
                f"nothing compiles in {each.deployment}: no artifact is needed, none published"
            )
        else:
            _show_built(built, unsigned=unsigned)


def _build_each(
    apps: Sequence[App],
    store: str,
    address: str | None,
    working_dir: Path | None,
    options: dict[str, Any],
) -> list[Built | NothingToBuild]:
    """Build for one deployment after the other on one cluster."""
    from serve_warm.builder.build import build
    from serve_warm.builder.cluster import open_cluster

    results = []
    num_cpus = max(app.num_cpus for app in apps)
    with (
        screen.progress() as progress,
        open_cluster(
            address=address, num_cpus=num_cpus, working_dir=working_dir, progress=progress
        ) as cluster,
    ):
        for app in apps:
            if len(apps) > 1:
                _say(f"for {app.deployment}:")
            results.append(build(app, store, on=cluster, progress=progress, notice=_say, **options))
    return results


def _check_working_dir(address: str | None, working_dir: Path | None) -> None:
    if working_dir is not None and address is None:
        raise click.UsageError(
            "--working-dir is for --address: without it replicas work in this folder"
        )


def _check_first(
    application: Application, deployment: str | None, store: str, *, unsigned: bool
) -> None:
    """Refuse what check would call a problem, and show what it would warn of.

    Where replicas look is a warning here: the store of a build need not be theirs, and never is
    where an artifact waits for its signature.
    """
    from serve_warm.builder import check

    environ = environment()
    checked = check.check_application(application, deployment=deployment, environ=environ)
    found = checked.problems
    if found:
        raise ConfigError(
            "\n  ".join(
                [
                    f"{application.target} has {len(found)} problem{'s' * (len(found) != 1)}:",
                    *(f"{each.where}: {each.what}" for each in found),
                ]
            ),
            hint="\n".join(dict.fromkeys(each.fix for each in found)),
        )
    warnings = list(checked.warnings)
    names = list(application.warming) if deployment is None else [deployment]
    for name in () if unsigned else names:
        stores = check.compare_stores(application, name, store, environ=environ)
        warnings += [*stores.problems, *stores.warnings]
    for line in check.to_lines(warnings, label="warning"):
        _say(line)
    check.ask_store(store, names[0])


def _show_built(built: Built, *, unsigned: bool) -> None:
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
    if unsigned:
        click.echo("unsigned, so no replica loads it: sign it with")
        name = built.statement.split("/")[1]
        click.echo(f"  serve-warm sign {built.store} --unsigned --deployment {name} \\")
        click.echo("    --key FILE --publish STORE")
        return
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
@address_option
@working_dir_option
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
    working_dir: Path | None,
    modes: tuple[str, ...],
    repeats: int,
    request_count: int,
) -> None:
    """Compare cold, torch's own cache bytes and serve_warm, each in fresh processes."""
    _check_working_dir(address, working_dir)
    need_ray("bench")
    from serve_warm.builder import bench as bench_
    from serve_warm.builder.app import load_app
    from serve_warm.builder.cluster import open_cluster

    loaded = load_app(app, deployment=deployment)
    with (
        screen.progress() as progress,
        open_cluster(
            address=address, num_cpus=loaded.num_cpus, working_dir=working_dir, progress=progress
        ) as cluster,
    ):
        result = bench_.run(
            loaded,
            store,
            on=cluster,
            modes=modes or bench_.MODES,
            repeats=repeats,
            request_count=request_count,
            progress=progress,
        )
    if json_file != Path("-"):
        show(result)
    if json_file is not None:
        screen.write_json(result, json_file)


def _say(text: str) -> None:
    # Around a status line, and of what a replica says.
    screen.stderr.print(screen.show_line(text), markup=False, soft_wrap=True)


SERVES = ("ray", "starlette", "fastapi", "uvicorn")
"""Modules of `ray[serve]`; all but the first are missing where ray was installed without it."""


def need_ray(command: str) -> None:
    """Refuse a command that starts replicas where there is nothing to start them with."""
    packages = [*((module, "ray[serve]") for module in SERVES), ("torch", "torch")]
    for module, package in packages:
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
