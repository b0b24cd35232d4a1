# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `diff` command, which explains whether and why an artifact fits a machine. Needs no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from serve_warm._records import record
from serve_warm._regular_files import explain_pipe, read_regular
from serve_warm.artifact import choose, pull
from serve_warm.artifact.statements import read_place
from serve_warm.cli import NO, screen
from serve_warm.cli.artifacts import (
    STORE_HELP,
    application_option,
    deployment_option,
    nothing_there,
    open_named,
)
from serve_warm.config import environment
from serve_warm.fingerprint import Fingerprint, Mismatch, portable_factors, read_machine
from serve_warm.trust.envelope import parse_json
from serve_warm.trust.files import load_trust

BY_REPLICA = "set by the replica"
"""Text for the value of a factor that only a replica knows, such as its number of threads. The
text is shown if the app is unknown."""


@click.command(epilog=STORE_HELP)
@click.argument("store")
@application_option
@deployment_option
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSON file that describes the machine to compare with: a fingerprint, a replica's "
    "report, an artifact from inspect --json, or the output of diff --json on that machine. "
    "Default: this machine.",
)
@click.option("--all", "show_all", is_flag=True, help="Also show the factors that match.")
@screen.json_option
def diff(
    *,
    store: str,
    application: str | None,
    deployment: str | None,
    against: Path | None,
    show_all: bool,
    json_file: Path | None,
) -> None:
    """Show which factors of the artifacts in STORE match this machine, and which differ.

    The command needs neither torch nor ray. It does not know the factors that a replica sets
    (threads, grad mode, arguments of torch.compile). It ignores these factors, unless the --against
    file contains them.

    The exit code is 3 if a deployment has no artifact that fits, or if no artifact exists.
    """
    opened = open_named(store)
    here = (
        Fingerprint(machine=read_machine(environment(), on_no_torch="note"), app={})
        if against is None
        else _read_described(against)
    )
    # The module `choose` logs refusals, which the output shows anyway.
    with screen.quiet(choose.__name__):
        considered = pull.explain(
            opened,
            fingerprint=here,
            trust=load_trust(),
            application=application,
            deployment=deployment,
        )
    by_deployment: dict[str, list[_Compared]] = {}
    for item in considered:
        name = "/".join(read_place(item.statement))
        by_deployment.setdefault(name, []).append(_compare(item, here))
    for compared in by_deployment.values():
        compared.sort(key=_Compared.newest, reverse=True)
        compared.sort(key=_Compared.nearest)
    takes = {
        name: next((c.statement for c in compared if c.considered.accepted), None)
        for name, compared in by_deployment.items()
    }
    if json_file is not None:
        artifacts = [c.as_data() for compared in by_deployment.values() for c in compared]
        screen.data(
            {"store": opened.uri, "here": here.to_json(), "takes": takes, "artifacts": artifacts},
            json_file,
        )
    else:
        where = "this machine" if against is None else f"the machine of {against}"
        for name, compared in by_deployment.items():
            _show(name, compared, where=screen.show_line(where), show_all=show_all)
        if any(c.by_replica for compared in by_deployment.values() for c in compared):
            click.echo(
                f"some factors are {BY_REPLICA}, so diff did not compare them: pass --against with "
                "a replica's report",
                err=True,
            )
    if any(
        len({c.considered.created for c in compared if c.considered.accepted}) > 1
        for compared in by_deployment.values()
    ):
        click.echo(
            "several artifacts fit: a replica prefers the artifact that matches its code and model "
            "most closely, which diff does not know",
            err=True,
        )
    if not takes:
        click.echo(nothing_there(opened, opened.uri, application, deployment), err=True)
    if not takes or None in takes.values():
        click.get_current_context().exit(NO)


# Comparing --------------------------------------------------------------------------------------


@record(frozen=True, kw_only=True)
class _Compared:
    """The result of comparing an artifact with a machine, factor by factor."""

    considered: choose.Considered
    equal: tuple[Mismatch, ...] = ()
    """Factors with the same value on both sides."""
    by_replica: tuple[Mismatch, ...] = ()
    """Factors that were not compared, because the app is unknown."""

    @property
    def statement(self) -> str:
        return self.considered.statement

    def newest(self) -> tuple[str, str]:
        """Return a key that sorts artifacts by age: a pull loads the newest matching artifact."""
        return self.considered.created, self.statement

    def nearest(self) -> tuple[bool, bool, int]:
        """Return the sort key for the output: matching artifacts first, refused artifacts last."""
        considered = self.considered
        is_refused = considered.reason != "fingerprint"
        return not considered.accepted, is_refused, len(considered.mismatches)

    def as_data(self) -> dict[str, Any]:
        considered = self.considered
        return {
            "statement": considered.statement,
            "fits": considered.accepted,
            "reason": considered.reason,
            "message": considered.message,
            "created": considered.created,
            "differences": [dataclasses.asdict(factor) for factor in considered.mismatches],
            "equal": [f"{factor.group}.{factor.factor}" for factor in self.equal],
            "set_by_replica": [dataclasses.asdict(factor) for factor in self.by_replica],
        }


def _compare(considered: choose.Considered, here: Fingerprint) -> _Compared:
    if considered.reason not in ("fits", "fingerprint"):
        return _Compared(considered=considered)
    artifact = _of_artifact(considered, here)
    by_replica = [m for m in considered.mismatches if m.group == "app" and not here.app]
    if by_replica:
        here = _as_replica(artifact, here)
        mismatches = artifact.compare(here)
        considered = dataclasses.replace(
            considered, reason="fingerprint" if mismatches else "fits", mismatches=mismatches
        )
    told = {(m.group, m.factor) for m in (*considered.mismatches, *by_replica)}
    equal = [
        Mismatch(group=group, factor=factor, artifact=value, here=value)
        for group, factors in artifact.to_json().items()
        for factor, value in sorted(factors.items())
        if (group, factor) not in told
    ]
    return _Compared(considered=considered, equal=tuple(equal), by_replica=tuple(by_replica))


def _of_artifact(considered: choose.Considered, here: Fingerprint) -> Fingerprint:
    """Return an artifact's fingerprint: this machine's fingerprint with the differences applied."""
    factors = here.to_json()
    for mismatch in considered.mismatches:
        if mismatch.artifact is None:
            del factors[mismatch.group][mismatch.factor]
        else:
            factors[mismatch.group][mismatch.factor] = mismatch.artifact
    return Fingerprint.from_json(factors)


def _as_replica(artifact: Fingerprint, here: Fingerprint) -> Fingerprint:
    """Return this machine's fingerprint, but with the artifact's values for a replica's factors."""
    machine = dict(here.machine)
    if artifact.app.get("cpu") == "portable" and {"cpu_isa", "cpu_capability"} <= machine.keys():
        machine["cpu_isa"], machine["cpu_capability"] = portable_factors(
            machine["cpu_isa"], machine["cpu_capability"]
        )
    return Fingerprint(machine=machine, app=artifact.app)


# Showing ----------------------------------------------------------------------------------------


def _show(deployment: str, compared: Sequence[_Compared], *, where: str, show_all: bool) -> None:
    taken = next((c for c in compared if c.considered.accepted), None)
    verdict = f"no artifact fits {where}"
    if taken is not None:
        verdict = f"a replica on {where} would load {taken.statement}"
        if taken.by_replica:
            verdict = (
                f"{taken.statement} fits {where}, but the command did not check "
                f"{_name_uncompared(taken)} that the replica sets, so the verdict can still be "
                "a miss"
            )
    click.echo(f"{screen.show_line(deployment)}: {screen.show_line(verdict)}")
    for item in compared:
        considered = item.considered
        text = considered.message
        if considered.reason in ("fits", "fingerprint"):
            count = len(considered.mismatches)
            text = f"{count} {'factors differ' if count != 1 else 'factor differs'}" * bool(count)
            counts = [text, f"{len(item.equal)} equal"]
            if item.by_replica:
                counts.append(f"{len(item.by_replica)} {BY_REPLICA}")
            text = ", ".join(filter(None, (*counts, f"created {considered.created}")))
        fits = {"fits": "fits", "fingerprint": "does not fit"}.get(
            considered.reason, f"refused ({considered.reason})"
        )
        click.echo(f"  {screen.show_line(considered.statement)}: {fits}: {screen.show_line(text)}")
        another_gpu = choose.of_another_gpu(considered)
        if another_gpu:
            click.echo(f"    {screen.show_line(another_gpu)}")
        rows = [_row(mismatch) for mismatch in considered.mismatches]
        if show_all:
            rows += [(m.factor, m.artifact or "", BY_REPLICA) for m in item.by_replica]
            rows += [(m.factor, "the same", m.here or "") for m in item.equal]
        if rows:
            screen.table(("factor", "artifact", "here"), rows, indent=4)


def _name_uncompared(compared: _Compared) -> str:
    """Return a description of the factors that were not compared.

    The text names only the number of threads, because this factor differs most often.
    """
    count = len(compared.by_replica)
    if not any(factor.factor == "threads" for factor in compared.by_replica):
        return f"{count} factors"
    return f"threads (num_cpus) and {count - 1} more factors"


def _row(mismatch: Mismatch) -> tuple[str, str, str]:
    if mismatch.only is not None:
        artifact, here = (f"only {words}" if words else "nothing more" for words in mismatch.only)
        return mismatch.factor, artifact, here
    sides = (mismatch.artifact, mismatch.here)
    artifact, here = ("without it" if side is None else side for side in sides)
    return mismatch.factor, artifact, here


# Reading ----------------------------------------------------------------------------------------


def _read_described(file: Path) -> Fingerprint:
    try:
        return Fingerprint.from_json(_fingerprint_in(parse_json(read_regular(file))))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        why = "; ".join(filter(None, (why, explain_pipe(error))))
        raise click.BadParameter(
            f"{screen.show_line(str(file))} has no valid fingerprint: {screen.show_line(str(why))}",
            param_hint="'--against'",
        ) from error


def _fingerprint_in(data: Any) -> Any:
    """Return the fingerprint from the JSON output of a command or a replica."""
    if isinstance(data, list):
        if len(data) != 1:
            raise ValueError(f"the list has {len(data)} entries, but must have exactly one")
        data = data[0]
    for _ in range(2):
        if not isinstance(data, Mapping):
            break
        data = next((data[key] for key in ("here", "fingerprint", "manifest") if key in data), data)
    return data
