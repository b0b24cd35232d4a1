# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `plan` command, which makes a plan from the traffic of running replicas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from serve_warm.cli.starts import need_ray
from serve_warm.errors import ConfigError, StoreError
from serve_warm.learn.buckets import varying_axes
from serve_warm.learn.plan import InputPlan, make_plan
from serve_warm.learn.recorded import RecordedCall


@click.command()
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
    "--buckets",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="If an axis of a tensor has more sizes than this, show the sizes to pad to that add the "
    "fewest values.",
)
@click.option(
    "--output",
    "-o",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plan to this file. Default: print it.",
)
@click.option("--json", "as_json", is_flag=True, help="Write the plan as JSON, not as YAML.")
def plan(
    *,
    address: str,
    application: str | None,
    deployment: str | None,
    most: int | None,
    buckets: int,
    file: Path | None,
    as_json: bool,
) -> None:
    """Make a plan from the calls that the replicas of a Ray cluster have recorded.

    A plan lists the kinds of calls to replay: shapes and structures, and the ids of multiplexed
    models, but nothing else of a request. Review it, and pass it to serve-warm build --plan.
    """
    need_ray("plan")
    from serve_warm.builder.cluster import ask_replicas

    answers = ask_replicas(address, "warmup_recorded")
    name, chosen = choose(answers, application=application, deployment=deployment)
    recorded = merge(chosen)
    made = recorded if most is None else recorded.most_frequent(most)
    if not made.calls:
        raise StoreError(
            f"the {len(chosen)} replicas of {name} have recorded no call that can be replayed",
            hint="; ".join(made.left_out)
            or "send some traffic first; replicas record with `record: signatures`, which is the "
            "default only in wrapped applications",
        )
    text = json.dumps(made.to_json(), indent=1) + "\n" if as_json else made.to_yaml()
    if file is None:
        click.echo(text, nl=False)
    else:
        file.write_text(text)
    click.echo(
        f"{len(made.calls)} kinds of calls of {name}, {made.share:.0%} of {made.recorded} recorded "
        f"calls of {len(chosen)} replicas",
        err=True,
    )
    for why, count in made.left_out.items():
        click.echo(f"left out: {count} calls: {why}", err=True)
    for axis in varying_axes(recorded.calls, more_than=buckets):
        click.echo(axis.describe(buckets), err=True)


def choose(
    answers: Sequence[Mapping[str, Any]],
    *,
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
            "no replica of this cluster uses serve_warm",
            hint="deploy with import_path: serve_warm.app:wrap, or serve-warm run",
        )
    asked = [
        each
        for each in answers
        if application in (None, each["application"]) and deployment in (None, each["deployment"])
    ]
    if not asked:
        raise ConfigError(
            f"no replica of {application or 'any application'}/{deployment or 'any deployment'} "
            "answers",
            hint=f"deployments with replicas: {', '.join(_names(answers))}",
        )
    names = _names([each for each in asked if each["calls"]]) or _names(asked)[:1]
    if len(names) > 1:
        raise ConfigError(
            f"several deployments have recorded calls: {', '.join(names)}",
            hint="choose one with --deployment, and --application",
        )
    return names[0], [each for each in asked if _names([each]) == names]


def _names(answers: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({f"{each['application']}/{each['deployment']}" for each in answers})


def merge(answers: Sequence[Mapping[str, Any]]) -> InputPlan:
    """Return the plan of the calls that these replicas have recorded."""
    left_out: dict[str, int] = {}
    for answer in answers:
        for why, count in answer["not_recorded"].items():
            left_out[why] = left_out.get(why, 0) + count
    recorded = [RecordedCall.from_json(call) for answer in answers for call in answer["calls"]]
    # Of one replica: more models than it may load would replace one another.
    models: list[str] = max((answer.get("models", []) for answer in answers), key=len, default=[])
    return make_plan(recorded, left_out, models)
