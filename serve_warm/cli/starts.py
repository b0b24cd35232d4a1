# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `build` and `bench` commands, which start replicas."""

from __future__ import annotations

import dataclasses
import importlib.util
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from serve_warm._private_folders import process_folder
from serve_warm._spans import SHOWN_S, WAITING
from serve_warm.cli import screen
from serve_warm.config import environment, point_torch_caches_at
from serve_warm.errors import ConfigError, MissingPackage
from serve_warm.report import advise_on_narrow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from serve_warm.builder.app import App, Application
    from serve_warm.builder.build import Built, NothingToBuild
    from serve_warm.builder.publishing import Destination
    from serve_warm.builder.signing import Signing
    from serve_warm.fingerprint import Cpu
    from serve_warm.learn.plan import InputPlan

APP_HELP = "APP is a Serve YAML file with one application, or module:app."

address_option = click.option(
    "--address",
    help="Address of a running Ray cluster, or 'auto' to find one; default: a new local cluster.",
)


application_option = click.option(
    "--application",
    help="Name of the application that artifacts are kept for, in place of the setting "
    "`application`. Replicas find the artifact only if their setting has the same value.",
)


@click.command(epilog=APP_HELP)
@click.argument("app")
@click.option(
    "--store",
    help="Store to publish to: a folder, or an s3, gs, az or hf address. Default: the store that "
    "the application's replicas read.",
)
@application_option
@click.option(
    "--deployment", help="Deployment to build an artifact for, if several use WarmupMixin."
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Build an artifact for each deployment that uses WarmupMixin.",
)
@address_option
@click.option(
    "--key",
    "key_file",
    type=click.Path(path_type=Path),
    help="Ed25519 private key (PEM) to sign with; default: your user key, made on first use.",
)
@click.option(
    "--unsigned",
    is_flag=True,
    help="Publish an unsigned artifact to a folder. The key signs only a temporary copy, which a "
    "fresh replica loads for the round trip. Sign the artifact later with serve-warm sign "
    "--unsigned.",
)
@click.option(
    "--source-commit",
    default="",
    help="Commit of the source code, recorded in the signed artifact. Default: the commit of the "
    "CI job.",
)
@click.option(
    "--image",
    default="",
    help="Digest of the image in which this command runs, recorded in the signed artifact.",
)
@click.option(
    "--builder",
    default="",
    help="Name of the builder, recorded in the signed artifact. Default on GitHub: the workflow.",
)
@click.option(
    "--portable-cpu",
    "cpu",
    flag_value="portable",
    help="Compile for all CPUs with AVX2 (x86-64-v3), and check the compiled machine code.",
)
@click.option(
    "--if-published",
    type=click.Choice(["refuse", "keep", "supersede"]),
    help="What to do if the store already has this variant. refuse: fail. keep: publish nothing, "
    "and test the published artifact. supersede: publish the new artifact as well; replicas use "
    "the artifact that matches their code and model best, and of several the newest. Default: "
    "supersede in a folder where only you can write; otherwise, and with --unsigned, refuse.",
)
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(exists=True, dir_okay=False),
    help="Replay the calls of this plan, which serve-warm plan has made, and put the plan into the "
    "artifact.",
)
@click.option(
    "--with-values",
    is_flag=True,
    help="Allow a plan with the values of requests. The artifact then contains them.",
)
@click.option(
    "--require-level",
    type=click.Choice(["2", "3"]),
    default=None,
    help="Fail, and publish nothing, if a kind of call has a lower level.",
)
@click.option(
    "--accept-torch-source",
    is_flag=True,
    help="Make entries of levels 2 and 3 even if torch's private functions differ from those of "
    "tested versions. The signed artifact names these functions.",
)
@screen.json_option
def build(
    *,
    app: str,
    store: str | None,
    application: str | None,
    deployment: str | None,
    every: bool,
    address: str | None,
    key_file: Path | None,
    unsigned: bool,
    source_commit: str,
    image: str,
    builder: str,
    cpu: Cpu | None,
    if_published: Literal["refuse", "keep", "supersede"] | None,
    plan_file: str | None,
    with_values: bool,
    require_level: str | None,
    accept_torch_source: bool,
    json_file: Path | None,
) -> None:
    """Build, test, sign and publish the artifact of a deployment.

    The command first looks for the mistakes that serve-warm check finds, and stops if there is a
    problem. Then it starts the deployment with its configured resources, replays its inputs and
    packs its caches. It publishes the artifact only after a second, fresh replica has loaded the
    artifact and proven every input without running a compiler.
    """
    if every and deployment is not None:
        raise click.UsageError("--all and --deployment cannot be combined: pass only one of them")
    need_ray("build")
    from serve_warm.builder.build import VALUES_HINT
    from serve_warm.builder.provenance import read_provenance
    from serve_warm.builder.publishing import Destination
    from serve_warm.builder.signing import Signing
    from serve_warm.learn.plan import read_plan
    from serve_warm.stores import open_store
    from serve_warm.trust.keys import load_signing_key

    key = load_signing_key(key_file) if key_file is not None else None
    imported = _import_to_build(app)
    plan = None if plan_file is None else read_plan(plan_file)
    if plan is not None:
        deployment = _deployment_of(plan, plan_file, imported, deployment, every=every)
    if store is None:
        chosen = [deployment] if deployment in imported.warming else list(imported.warming)
        store = imported.store(chosen, environment())
        click.echo(screen.show_line(f"store: {store}"), err=True)
    _check_first(
        imported,
        deployment,
        store,
        application=application,
        unsigned=unsigned,
        has_plan=plan_file is not None,
    )
    names = list(imported.warming) if every else [deployment]
    apps = [imported.app(name, application=application) for name in names]
    if plan is None:
        _refuse_undeclared(imported, deployment)
    elif plan.requests and not with_values:
        raise ConfigError(
            f"{plan_file} has the values of {len(plan.requests)} requests, which the artifact "
            "would contain",
            hint=VALUES_HINT,
        )
    results = _build_each(
        apps,
        # `sign` accepts only one unsigned artifact.
        Destination.of(open_store(store), if_published or ("refuse" if unsigned else None)),
        signing=Signing(
            key=key,
            when="later" if unsigned else "now",
            provenance=read_provenance(
                environment(), source=source_commit, image=image, builder=builder
            ),
        ),
        cpu=cpu,
        plan=plan,
        with_values=with_values,
        required_level=int(require_level or 1),
        accept_torch_source=accept_torch_source,
        address=address,
    )
    if json_file is not None:
        data = [dataclasses.asdict(built) for built in results]
        screen.data(data if every else data[0], json_file)
        return
    for each, built in zip(apps, results, strict=True):
        _show_result(each, built, unsigned=unsigned, is_own=imported.reads(each.deployment, store))


def _deployment_of(
    plan: InputPlan, file: str | None, imported: Application, asked: str | None, *, every: bool
) -> str | None:
    """Return the deployment to build: the one whose calls are planned, unless another is named.

    Raises:
        ConfigError: the plan has the calls of another deployment.
    """
    names = [*imported.warming] if every or asked is None else [asked]
    others = [name for name in names if name != plan.deployment]
    if not plan.deployment or not others:
        return asked
    if plan.deployment in names and not every:
        return plan.deployment
    hint = (
        "make a plan of the traffic of this application: serve-warm plan; if the deployment has "
        "another name now, write it into the plan"
    )
    if plan.deployment in imported.warming:
        hint = f"pass --deployment {plan.deployment}, or another plan"
    raise ConfigError(
        f"{file} has the calls of {plan.deployment}, and not of {', '.join(others)}", hint=hint
    )


def _refuse_undeclared(imported: Application, deployment: str | None) -> None:
    """Raise ConfigError if a deployment neither declares inputs nor has a plan to replay."""
    for name in imported.warming if deployment is None else (deployment,):
        declares = imported.warming[name].warmup_inputs is not None
        if not declares and imported.settings(name, environment()).plan is None:
            raise ConfigError(
                f"{name} declares no inputs, and no plan is given, so there is nothing to build",
                hint="serve it with serve-warm run, send it typical traffic, make a plan with "
                "serve-warm plan -o plan.yaml, and build with --plan plan.yaml; or declare inputs",
            )


def _import_to_build(app: str) -> Application:
    """Import the app with fresh folders for torch's caches.

    The app's replicas use these folders too. The app might compile code while it is being imported.
    All processes of a user share torch's default folder. If the build used the default folder, it
    could run and sign code that another process wrote there.
    """
    from serve_warm.builder.app import load_application

    point_torch_caches_at(process_folder() / "cache")
    return load_application(app)


def _build_each(
    apps: Sequence[App],
    destination: Destination,
    *,
    signing: Signing,
    cpu: Cpu | None,
    plan: InputPlan | None,
    with_values: bool,
    required_level: int,
    accept_torch_source: bool,
    address: str | None,
) -> list[Built | NothingToBuild]:
    """Build the artifact of each deployment in turn, on one cluster; return the results."""
    from serve_warm.builder import last_build
    from serve_warm.builder.build import Built, build
    from serve_warm.builder.cluster import open_cluster

    results = []
    num_cpus = max(app.num_cpus for app in apps)
    with (
        screen.progress() as progress,
        open_cluster(address=address, num_cpus=num_cpus, progress=progress) as cluster,
    ):
        for app in apps:
            if len(apps) > 1:
                _say(f"for {app.deployment}:")
            last_s = last_build.read_seconds(app.place)
            if last_s is not None:
                progress(f"the last build took {last_s:.0f} s")
            built = build(
                app,
                destination,
                on=cluster,
                signing=signing,
                cpu=cpu,
                plan=plan,
                with_values=with_values,
                required_level=required_level,
                accept_torch_source=accept_torch_source,
                progress=progress,
            )
            results.append(built)
            if isinstance(built, Built):
                last_build.note_seconds(app.place, built.seconds)
    return results


def _show_result(app: App, built: Built | NothingToBuild, *, unsigned: bool, is_own: bool) -> None:
    if built.published == "nothing":
        click.echo(f"{app.deployment} compiles nothing and needs no artifact, so none is published")
        _show_warnings(built.warnings)
    else:
        _show_built(built, unsigned=unsigned, is_own=is_own)


def _check_first(
    imported: Application,
    deployment: str | None,
    store: str,
    *,
    application: str | None,
    unsigned: bool,
    has_plan: bool,
) -> None:
    """Raise ConfigError if `check` finds problems in the application; print the warnings.

    If the replicas do not use the build's store, only a warning is printed. A build may
    publish to a store that replicas do not read. A build with --unsigned always publishes to such a
    store, and prints no warning.
    """
    from serve_warm.builder import check, check_store
    from serve_warm.builder.check_inputs import LEARNS
    from serve_warm.builder.problems import CheckFindings

    environ = environment()
    checked = check.check_application(imported, deployment=deployment, environ=environ)
    found = checked.problems
    if found:
        raise ConfigError(
            "\n  ".join(
                [
                    f"{imported.target} has {len(found)} problem{'s' * (len(found) != 1)}:",
                    *(f"{each.where}: {each.what}" for each in found),
                ]
            ),
            hint="\n".join(dict.fromkeys(each.fix for each in found)),
        )
    names = list(imported.warming) if deployment is None else [deployment]
    stores = CheckFindings()
    for name in () if unsigned else names:
        stores += check_store.compare_stores(imported, name, store, environ=environ)
    warnings = [*checked.warnings, *stores.problems, *stores.warnings]
    notes = [each for each in checked.notes if not (has_plan and each.what == LEARNS)]
    for label, some in (("warning", warnings), ("note", notes)):
        for line in check.to_lines(some, label=label):
            _say(line)
    check_store.ask_store(store, imported.place(names[0], environ, application=application))


def _show_narrow(cold: Mapping[str, Any]) -> None:
    for place in cold["narrow"]:
        click.echo(f"  narrow      {screen.show_line(place)}: {advise_on_narrow(place)}")
    for what in cold["unvaried"]:
        click.echo(f"  not varied  {screen.show_line(what)}")


def _show_use(built: Built, *, is_own: bool) -> None:
    """Say what makes replicas load an artifact."""
    portable = built.portable_libraries is not None
    cpu_setting = ", cpu: portable" if portable else ""
    if is_own and not portable:
        click.echo("replicas read this store, so their next start finds the artifact")
    else:
        click.echo(f"use it: user_config: {{warmup: {{artifact: {built.store}{cpu_setting}}}}}")
    if portable:
        click.echo("only replicas that also set `cpu: portable` can load this artifact")
    if built.trust:
        click.echo(
            "other users and machines trust this artifact if /etc/serve_warm/trust.toml contains:"
        )
    for line in built.trust.splitlines():
        click.echo(f"  {line}")


def _show_built(built: Built, *, unsigned: bool, is_own: bool) -> None:
    cold, warm = built.cold, built.round_trip
    cold_s = _own_seconds(cold)
    share = _own_seconds(warm) / cold_s
    done = "published" if built.published == "new" else "already published, kept:"
    click.echo(f"{done} {built.statement}")
    for rank, statement in enumerate(built.ranks[1:], start=1):
        click.echo(f"and for rank {rank}: {statement}")
    click.echo(f"  store       {built.store}")
    click.echo(f"  variant     {built.variant}")
    for name, count in built.parts.items():
        click.echo(f"  part        {name}, {screen.size(count)}")
    click.echo(
        f"  compiled    {_describe_seconds(cold)}, "
        f"{cold['warmup']['compiler_processes']} compiler processes"
    )
    click.echo(
        f"  round trip  {_describe_seconds(warm)} ({share:.0%} of {cold_s:.1f} s), "
        f"{warm['warmup']['compiler_processes']} compiler processes, "
        f"{warm['covered']['proven']}/{warm['covered']['expected']} inputs proven"
    )
    _show_seconds(built)
    _show_plan(cold["learned"], warm["learned"])
    # Without any entry, the warm replica does not know why.
    levels = screen.levels(warm["entries"]) or screen.levels([*built.entries])
    for line in (*(levels or [screen.TORCH_COMPILE]), *screen.distances(built.entries)):
        click.echo(f"  {line}")
    if built.accepted:
        names = ", ".join(sorted(built.accepted))
        click.echo(f"  accepted    untested functions of torch: {names}")
    _show_narrow(cold)
    _show_warnings(built.warnings)
    portable = built.portable_libraries is not None
    if portable:
        click.echo(f"  portable    {built.portable_libraries} libraries, none needs more than AVX2")
    if unsigned:
        click.echo("the artifact is unsigned, so no replica loads it; sign it with")
        store = shlex.quote(built.store)
        click.echo(f"  serve-warm sign {store} --unsigned --key FILE --publish STORE \\")
        quoted = map(shlex.quote, (built.application, built.deployment))
        click.echo("    --application {} --deployment {}".format(*quoted))
        return
    _show_use(built, is_own=is_own)


SHORTER = {
    "deploy": "keep slow imports and downloads out of the application's modules and __init__",
    "compile": "declare fewer sizes, or let a graph take several (dynamic=True)",
    "pack": "give the build more CPU cores: libraries are compiled at the same time",
    "round trips": "build on a cluster with room for the application a second time: they then run "
    "at once",
}
"""What shortens a build whose longest part is this one."""

FEWER_KINDS = "plan fewer kinds of calls: serve-warm plan --most NUMBER, or --seconds NUMBER"
"""What shortens the compiling of a plan."""


def _show_seconds(built: Built) -> None:
    """Say where the time of a build went, and what would shorten its longest part."""
    took = dict(built.seconds)
    compiling_s = min(float(built.cold["to_proof_s"]), took.pop("compile", 0.0))
    parts = {"deploy": built.seconds.get("compile", 0.0) - compiling_s, "compile": compiling_s}
    parts |= {name: seconds for name, seconds in took.items() if not name.startswith("round trip")}
    parts["round trips"] = took.get("round trips", 0.0)
    shown = ", ".join(f"{name} {each:.1f}" for name, each in parts.items() if each >= SHOWN_S)
    if not shown:
        return
    longest = max(parts, key=lambda name: parts[name])
    click.echo(f"  seconds     {screen.show_line(shown)}")
    if longest in SHORTER:
        is_planned = longest == "compile" and built.cold.get("learned") is not None
        click.echo(f"  shorter     {FEWER_KINDS if is_planned else SHORTER[longest]}")


def _show_plan(planned: Mapping[str, Any] | None, replayed: Mapping[str, Any] | None) -> None:
    if planned is not None and replayed is not None:
        click.echo(
            f"  plan        {screen.count(planned['kinds'], 'kind')} of calls, of which a start "
            f"replays {replayed['kinds']}; their code answers {replayed['share']:.0%} of "
            f"{replayed['calls']} recorded calls"
        )
        for text in replayed["any_size"]:
            click.echo(f"  any size    {screen.show_line(text)}")
        which = "sizes that are not in the plan"
        if replayed["any_size"]:
            which = "a size of 1, and sizes that this code cannot take,"
        click.echo(
            f"  other       {which} may compile while users wait; with after_ready: eager, "
            "uncompiled code answers"
        )


def _show_warnings(warnings: Sequence[str]) -> None:
    for text in warnings:
        click.echo(f"  warning     {screen.show_line(' '.join(text.split()))}")


def _waits(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [span for span in report["spans"] if span["name"].startswith(WAITING)]


def _own_seconds(report: Mapping[str, Any]) -> float:
    """Return the seconds from the built model to the proof, minus waits for other deployments."""
    waited_s = sum(float(span["seconds"]) for span in _waits(report))
    return max(0.001, float(report["to_proof_s"]) - waited_s)


def _describe_seconds(report: Mapping[str, Any]) -> str:
    """Describe the time from the built model to the proof, and the waits for other deployments."""
    waits = _waits(report)
    waited_s = sum(span["seconds"] for span in waits)
    names = ", ".join(dict.fromkeys(span["name"] for span in waits))
    waited = f" and {waited_s:.1f} s {names}" if waited_s >= SHOWN_S else ""
    return f"{_own_seconds(report):.1f} s to proof{waited}"


@click.command(epilog=APP_HELP)
@click.argument("app")
@click.option(
    "--store",
    help="The store that holds the artifact. Default: the store that the application's replicas "
    "read.",
)
@screen.json_option
@application_option
@click.option("--deployment", help="Deployment to measure, if several use WarmupMixin.")
@address_option
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=click.Choice(["cold", "torch_bytes", "warm"]),
    help="Mode to measure; repeatable. Default: all three modes.",
)
@click.option(
    "--repeats",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Number of starts to measure for each mode.",
)
@click.option(
    "--requests",
    "request_count",
    default=60,
    show_default=True,
    type=click.IntRange(2),
    help="Number of requests to time after each start.",
)
def bench(
    *,
    app: str,
    store: str | None,
    json_file: Path | None,
    application: str | None,
    deployment: str | None,
    address: str | None,
    modes: tuple[str, ...],
    repeats: int,
    request_count: int,
) -> None:
    """Compare three ways to start a replica: cold, with torch's cache bytes or with an artifact."""
    need_ray("bench")
    from serve_warm.builder import bench as bench_
    from serve_warm.builder.app import load_application
    from serve_warm.builder.cluster import open_cluster

    imported = load_application(app)
    loaded = imported.app(deployment, application=application)
    if store is None:
        store = imported.store([loaded.deployment], environment())
    with (
        screen.progress() as progress,
        open_cluster(address=address, num_cpus=loaded.num_cpus, progress=progress) as cluster,
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
        screen.data(result, json_file)


def _say(text: str) -> None:
    click.echo(screen.show_line(text), err=True)  # it may come from a replica


SERVES = ("ray", "starlette", "fastapi", "uvicorn")
"""Modules that `ray[serve]` installs. Without this extra, `ray` installs only the first module."""


def need_ray(command: str) -> None:
    """Raise if a command needs a package that is missing.

    Raises:
        MissingPackage: `ray[serve]` or `torch` is not installed.
    """
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
    click.echo(title)
    screen.table(header, rows, of="numbers")
    for name, ratio in result["ratios"].items():
        against = {
            "warm_to_cold": "a cold start",
            "warm_to_torch_bytes": "a start with torch's bytes",
        }[name]
        click.echo(f"model built → proof: {ratio:.2f} times as long as in {against}")
