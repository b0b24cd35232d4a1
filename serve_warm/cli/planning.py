# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `plan` command, which makes a plan from the traffic of running replicas."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from serve_warm._private_folders import write_beside
from serve_warm.cli import screen
from serve_warm.cli.starts import need_ray
from serve_warm.errors import ConfigError, StoreError
from serve_warm.learn.buckets import varying_axes
from serve_warm.learn.differences import describe_differences
from serve_warm.learn.plan import MOST_BYTES, InputPlan, make_plan, merge_plans, read_plan
from serve_warm.learn.recorded import RecordedCall
from serve_warm.learn.recorded_requests import OF_REQUESTS, RecordedRequest


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[PLAN]...")
@click.option(
    "--address",
    default="auto",
    show_default=True,
    help="Address of a running Ray cluster, or 'auto' to find one.",
)
@click.option(
    "--application",
    help="Application to plan for, by the name that its artifacts are kept for, if several have "
    "recorded calls.",
)
@click.option("--deployment", help="Deployment to plan for, if several have recorded calls.")
@click.option(
    "--most",
    type=click.IntRange(min=1),
    help="Plan only this many kinds of calls, the most frequent ones. Default: all.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds that one replay of the plan may take. The build measures them, and keeps the "
    "calls that answer the most traffic in this time.",
)
@click.option(
    "--buckets",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="If an axis of a tensor has more sizes than this, show the sizes to pad to that add the "
    "fewest values.",
)
@click.option(
    "--diff",
    "old_file",
    type=click.Path(path_type=Path),
    metavar="PLAN",
    help="Show how the plan differs from this one. Without --output, the plan itself is not "
    "written.",
)
@click.option(
    "--values",
    is_flag=True,
    help="Put recorded requests into the plan, with their values, so that a start replays them. "
    "Replicas record them with `record: values`.",
)
@click.option(
    "--forget",
    is_flag=True,
    help="Let the replicas forget what they have recorded, also the requests that this plan leaves "
    "out, and remove their files.",
)
@click.option(
    "--output",
    "-o",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plan to this file. Default: print it.",
)
@screen.json_option
def plan(
    *,
    files: tuple[Path, ...],
    address: str,
    application: str | None,
    deployment: str | None,
    most: int | None,
    seconds: float | None,
    buckets: int,
    old_file: Path | None,
    values: bool,
    forget: bool,
    file: Path | None,
    json_file: Path | None,
) -> None:
    """Make a plan from the calls that the replicas of a Ray cluster have recorded.

    A plan lists the kinds of calls to replay: shapes and structures, and the ids of multiplexed
    models, but nothing else of a request, unless you pass --values. Review it, and pass it to
    serve-warm build --plan.

    With PLANs, it merges these plans, for example of several clusters, and asks no cluster.
    """
    if forget and (files or file is None):
        raise ConfigError(
            "--forget is for replicas, and needs --output for what they have recorded",
            hint="serve-warm plan --forget -o plan.yaml",
        )
    old = None if old_file is None else read_plan(str(old_file))
    if files:
        recorded, source, name = _merge_files(files)
    else:
        recorded, source, name = _ask(address, application=application, deployment=deployment)
    made = recorded if most is None else recorded.most_frequent(most)
    made = made if seconds is None else dataclasses.replace(made, within_s=seconds)
    made = made if values else dataclasses.replace(made, requests=())
    if not (made.calls or made.requests):
        if forget:
            _forget(address, name, lost=recorded)
            return
        raise StoreError(
            f"no call that can be replayed is recorded by {source}",
            hint="; ".join(map(screen.show_line, made.left_out))
            or "send some traffic first; replicas record with `record: signatures`, which is the "
            "default only in wrapped applications",
        )
    _show(made, old, file=file, json_file=json_file)
    _summarize(made, source)
    for axis in varying_axes(recorded.calls, more_than=buckets):
        click.echo(screen.show_line(axis.describe(buckets)), err=True)
    if file is not None:
        shown = shlex.quote(str(file))
        with_values = " --with-values" if made.requests else ""
        click.echo(f"next: serve-warm build APP --plan {shown}{with_values}", err=True)
    if forget:
        _forget(address, name, lost=None if values else recorded)


def _show(
    made: InputPlan, old: InputPlan | None, *, file: Path | None, json_file: Path | None
) -> None:
    """Write a plan to the files that are asked for, or print it or its differences."""
    if json_file is not None:
        write = _write_private if made.requests else Path.write_text
        screen.data(made.to_json(), json_file, write=write)
    if file is not None:
        _write(file, made)
    elif old is None and json_file is None:
        click.echo(made.to_yaml(), nl=False)
    for line in [] if old is None else describe_differences(old, made):
        click.echo(screen.show_line(line))


def _write(file: Path, made: InputPlan) -> None:
    """Write a plan. If it has the values of requests, only this user can read the file.

    Raises:
        ConfigError: a build would refuse the file, because it is too large.
    """
    text = made.to_yaml()
    if len(text) > MOST_BYTES:
        raise ConfigError(
            f"the plan has {len(text) >> 20} MiB, but at most {MOST_BYTES >> 20} MiB can be read",
            hint=f"pass --most {len(made.calls) // 2}",
        )
    write = _write_private if made.requests else Path.write_text
    write(file, text)


def _write_private(file: Path, text: str) -> None:
    """Write a file that only this user can read. A link to it stays a link."""
    if file.exists() and not file.is_file():  # a pipe, such as /dev/stdout
        file.write_text(text)
        return
    file = file.resolve()
    temporary = write_beside(file, text.encode(), mode=0o600)
    temporary.rename(file)


def _forget(address: str, name: str, *, lost: InputPlan | None) -> None:
    """Let the replicas of a deployment forget what they have recorded.

    `lost` has the recorded requests that no plan contains.

    Raises:
        StoreError: a replica has not answered, so it may still have its record.
    """
    from serve_warm.builder.cluster import ask_replicas

    answers = ask_replicas(address, "warmup_recorded", forget=name).of_replicas
    forgot = {each["replica"] for each in answers if _names([each]) == [name]}
    # Of a second look, because a replica that is slow has not answered the first one.
    again = ask_replicas(address, "warmup_recorded").of_replicas
    again = [each for each in again if _names([each]) == [name]]
    silent = sorted({each["replica"] for each in again} - forgot)
    if silent or not forgot:
        who = f"{', '.join(silent)} of {name} has not" if silent else f"no replica of {name} has"
        raise StoreError(
            f"{who} answered, so what was recorded may still be there",
            hint="run the command again; with Ray 2.53, each run asks one replica",
        )
    requests = 0 if lost is None else len(lost.requests)
    also = f", and {requests} requests that are in no plan" if requests else ""
    click.echo(f"the replicas of {name} have forgotten these calls{also}", err=True)


def _summarize(made: InputPlan, source: str) -> None:
    kinds = screen.count(len(made.calls), "kind")
    share = f"{made.share:.0%} of {made.recorded} recorded calls"
    click.echo(f"{kinds} of calls, {share}: {screen.show_line(source)}", err=True)
    if made.requests:
        click.echo(f"with the values of {len(made.requests)} recorded requests", err=True)
    for why, count in made.left_out.items():
        what = "" if why.startswith(OF_REQUESTS) else "calls: "
        click.echo(f"left out: {count} {what}{screen.show_line(why)}", err=True)


def _merge_files(files: Sequence[Path]) -> tuple[InputPlan, str, str]:
    return merge_plans([read_plan(str(each)) for each in files]), ", ".join(map(str, files)), ""


def _ask(
    address: str, *, application: str | None, deployment: str | None
) -> tuple[InputPlan, str, str]:
    """Return the plan of what a deployment has recorded, who was asked, and the deployment."""
    need_ray("plan")
    from serve_warm.builder.cluster import ask_replicas

    asked = ask_replicas(address, "warmup_recorded")
    name, chosen = choose(
        asked.of_replicas, cluster=asked.cluster, application=application, deployment=deployment
    )
    ended = f" and {count} that have ended" if (count := len(_ended(chosen))) else ""
    source = f"{screen.count(len(chosen), 'replica')} of {name}{ended}"
    return merge(chosen), f"{source}, of the cluster at {asked.cluster}", name


def choose(
    answers: Sequence[Mapping[str, Any]],
    *,
    cluster: str,
    application: str | None = None,
    deployment: str | None = None,
) -> tuple[str, list[Mapping[str, Any]]]:
    """Return the name of the deployment to plan for, and the answers of its replicas.

    Raises:
        StoreError: no replica has the mixin.
        ConfigError: no replica of such a deployment answers, or several deployments have recorded
            calls.
    """
    if not answers:
        raise StoreError(
            f"no replica of the cluster at {cluster} uses serve_warm",
            hint="deploy with import_path: serve_warm.app:wrap, or serve-warm run; if this machine "
            "has several clusters, pass --address",
        )
    asked = [
        each
        for each in answers
        if application in (None, each["application"]) and deployment in (None, each["deployment"])
    ]
    if not asked:
        raise ConfigError(
            f"no replica of {application or 'any application'}/{deployment or 'any deployment'} "
            f"answers on the cluster at {cluster}",
            hint=f"deployments with replicas: {', '.join(_names(answers))}",
        )
    names = (
        _names([each for each in asked if each["calls"] or each["requests"] or each["ended"]])
        or _names([each for each in asked if each["not_recorded"]])
        or _names(asked)[:1]
    )
    if len(names) > 1:
        raise ConfigError(
            f"several deployments have recorded calls on the cluster at {cluster}: "
            f"{', '.join(names)}",
            hint=f"choose one, for example --deployment {names[0].rpartition('/')[2]}; of two "
            "applications, with --application too",
        )
    return names[0], [each for each in asked if _names([each]) == names]


def _names(answers: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({f"{each['application']}/{each['deployment']}" for each in answers})


def merge(answers: Sequence[Mapping[str, Any]]) -> InputPlan:
    """Return the plan of the calls that these replicas, and ended ones, have recorded."""
    records = [*answers, *_ended(answers)]
    left_out = Counter[str]()
    for each in records:
        left_out.update(each["not_recorded"])
    # Of one replica: more models than it may load would replace one another.
    models: list[str] = max((each.get("models", []) for each in records), key=len, default=[])
    calls, requests = list[RecordedCall](), list[RecordedRequest]()
    for each in records:
        for call in each["calls"]:
            with contextlib.suppress(ConfigError):  # a replica of another release
                calls.append(RecordedCall.from_json(call))
        for request in each["requests"]:
            with contextlib.suppress(ConfigError):
                requests.append(RecordedRequest.from_json(request))
    made = make_plan(calls, left_out, models, requests)
    return dataclasses.replace(made, deployment=answers[0]["deployment"])


def _ended(answers: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return what ended replicas recorded, each once: all replicas of a node know of them."""
    alive = {answer["replica"] for answer in answers}
    found = {each["replica"]: each for answer in answers for each in answer["ended"]}
    return [each for replica, each in found.items() if replica not in alive]
