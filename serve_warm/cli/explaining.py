# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `why` command: what keeps replicas from being warm, and the command that comes next."""

from __future__ import annotations

import dataclasses
import json
import shlex
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click

from serve_warm import node
from serve_warm._daemon_threads import begin
from serve_warm._records import record
from serve_warm._redaction import first_line, redact
from serve_warm._regular_files import read_regular
from serve_warm.artifact import choose, pull
from serve_warm.cli import FAILED, screen
from serve_warm.cli.observed import finite, is_asked_for, list_of, of_replica, text_of
from serve_warm.config import WarmupConfig, environment, resolve
from serve_warm.errors import ServeWarmError
from serve_warm.fingerprint import Fingerprint
from serve_warm.stores import open_existing_store
from serve_warm.trust.files import load_trust

Answer = Literal[
    "warm",
    "failed",
    "hung",
    "waiting for a resource",
    "not started",
    "starting",
    "loading",
    "compiling now",
    "proving",
    "refused",
    "nothing fits",
    "eager by policy",
    "partial",
    "narrow",
    "late",
    "degraded",
    "requests compile",
    "no compiled code",
]
"""What `why` answers; docs/reference/cli.md explains each."""

STORE_LIMIT_S = 3.0
"""Seconds to wait for a store, which may be the problem."""

SERVE_LIMIT_S = 3.0
"""Seconds to wait for Ray's dashboard, which has Serve's view of the application."""

MOST_BYTES = 16 << 20
"""Bytes of Serve's answer that are read."""

DASHBOARD = "http://127.0.0.1:8265"
"""Where Ray's dashboard listens on the head node, unless it is told otherwise."""

SHOWN_LINES = 12
"""Lines of a text of the replica that are shown. `serve-warm report` shows all."""


@record(frozen=True, kw_only=True)
class Finding:
    """One reason for which a deployment is not warm, or that it is warm."""

    answer: Answer
    said: str
    """What was found; several lines at most."""
    then: str = ""
    """The command that comes next; empty if nothing is to be done."""


@record(frozen=True, kw_only=True)
class Explained:
    """The findings about one deployment, from the most important on."""

    name: str
    """`application#Deployment`."""
    replica: str
    """The replica that shows it best; empty if none has a file on this node."""
    findings: Sequence[Finding]

    @property
    def is_warm(self) -> bool:
        """Whether nothing is wrong."""
        return all(each.answer == "warm" for each in self.findings)


@click.command()
@screen.state_dir_option
@screen.app_option
@screen.deployments_option
@click.option(
    "--dashboard",
    metavar="URL",
    default=None,
    help="Address of Ray's dashboard, which says why Serve has no replica; 'none' to skip it. "
    f"Default: RAY_API_SERVER_ADDRESS, or {DASHBOARD}.",
)
@screen.json_option
def why(
    *,
    state_dir: str,
    application: str,
    deployments: tuple[str, ...],
    dashboard: str | None,
    json_file: Any,
) -> None:
    """Say why replicas of this node are not warm, and what to do next.

    The command reads the files of the node's replicas, the store that they use, and Serve's status.
    It changes nothing. The exit code is 0 if all of them are warm, and 1 otherwise.
    """
    directory = state_dir or resolve(WarmupConfig()).state_dir or node.default_directory()
    try:
        replicas = node.look(directory)
    except OSError as error:
        raise click.ClickException(
            f"{directory} cannot be read: {error.strerror or error}; run as the user that runs the "
            "replicas, or pass --state-dir"
        ) from error
    asked = dashboard or environment().get("RAY_API_SERVER_ADDRESS") or DASHBOARD
    served, trouble = ({}, "") if dashboard == "none" else ask_serve(asked)
    found = explain(replicas, served)
    kept = []
    for each in found:
        of, _, name = each.name.partition("#")
        kept += [each] if is_asked_for(of, name, application, deployments) else []
    if json_file is not None:
        screen.data([dataclasses.asdict(each) for each in kept], json_file)
    else:
        for each in kept:
            for line in lines_of(each):
                indent = " " * (len(line) - len(line.lstrip()))
                click.echo(f"{indent}{node.shown(line.lstrip())}")
    if not kept:
        there = ", ".join(each.name for each in found)
        text = f"nothing to explain in {directory}" + (f": it has {there}" if there else "")
        click.echo(node.shown(text), err=True)
    if trouble and (not kept or not all(each.is_warm for each in kept)):
        click.echo(node.shown(trouble), err=True)
    if not kept or not all(each.is_warm for each in kept):
        click.get_current_context().exit(FAILED)


def lines_of(explained: Explained) -> list[str]:
    """Return the lines that a terminal shows."""
    lines = []
    of = f" {explained.replica}" if explained.replica else ""
    for finding in explained.findings:
        first, *more = finding.said.splitlines() or [""]
        lines.append(f"{explained.name}{of}: {finding.answer}{f': {first}' if first else ''}")
        lines += [f"  {line}" for line in more[:SHOWN_LINES] if line]
        lines += [f"  next: {finding.then}"] if finding.then else []
    return lines


# Looking ------------------------------------------------------------------------------------------


def ask_serve(address: str) -> tuple[Mapping[str, Any], str]:
    """Return Serve's applications by name, and why they could not be read, if so."""
    if not address.startswith(("http://", "https://")):
        raise click.UsageError(f"--dashboard is an http address, or none: {address}")
    url = f"{address.rstrip('/')}/api/serve/applications/"
    headers = {"Accept": "application/json"}
    if token := _token_for(address):
        headers["Authorization"] = f"Bearer {token}"
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - http, see above
        with urllib.request.urlopen(request, timeout=SERVE_LIMIT_S) as answer:  # noqa: S310
            read = json.loads(answer.read(MOST_BYTES))
    except (OSError, ValueError) as error:
        why = str(getattr(error, "reason", error))
    else:
        applications = read.get("applications") if isinstance(read, dict) else None
        if isinstance(applications, dict):
            return applications, ""
        why = "the answer is not Serve's"
    text = redact(f"Serve's status could not be read from {address}: {why}")
    return {}, f"{text}; pass --dashboard URL, or --dashboard none"


def _token_for(address: str) -> str:
    """Return the token for Ray's dashboard; empty without one.

    Ray keeps a token of this user for clusters that it starts on this machine, as `serve run` does
    (2.60). Another machine gets none but the one of the variable.
    """
    environ = environment()
    if token := environ.get("RAY_AUTH_TOKEN"):
        return token
    if urllib.parse.urlsplit(address).hostname not in ("localhost", "127.0.0.1", "::1"):
        return ""
    path = Path(environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token")
    try:
        token = read_regular(path.expanduser(), max_bytes=MOST_TOKEN_BYTES).decode("ascii").strip()
    except (OSError, ValueError, RuntimeError):  # RuntimeError: the user has no home
        return ""
    return token if token.isprintable() else ""


MOST_TOKEN_BYTES = 4096


def explain(replicas: Sequence[node.Replica], served: Mapping[str, Any]) -> list[Explained]:
    """Return the findings about each deployment that the node or Serve knows, by name."""
    groups: dict[tuple[str, str], list[node.Replica]] = {}
    for replica in replicas:
        if any(replica.names):
            groups.setdefault(replica.names[:2], []).append(replica)
    waiting = _without_replica(served)
    found = []
    for names in sorted({*groups, *waiting}):
        mine = groups.get(names, [])
        living = [each for each in mine if each.condition != "dead"]
        name = f"{names[0]}#{names[1]}"
        if not living and names not in waiting and served and names[0] not in served:
            continue  # it has been deleted
        if not living and names in waiting:
            found.append(Explained(name=name, replica="", findings=[waiting[names]]))
        elif mine:
            # The newest of those that run tells most; an ended one only if none runs.
            newest = max(living or mine, key=_tells)
            findings = _of_one(newest, is_alone=len({*groups, *waiting}) == 1)
            found.append(Explained(name=name, replica=newest.names[2], findings=findings))
    return found


def _tells(replica: node.Replica) -> tuple[bool, bool, float]:
    """Return how much a replica tells about why a deployment is not warm."""
    said = bool((replica.state or {}).get("error"))
    return said, replica.condition != "warm", replica.heartbeat_s


def _without_replica(served: Mapping[str, Any]) -> dict[tuple[str, str], Finding]:
    """Return what Serve says about the deployments that have no running replica."""
    found: dict[tuple[str, str], Finding] = {}
    for app, about in served.items():
        if not isinstance(about, dict):
            continue
        for name, deployment in _pairs(about, "deployments"):
            replicas = [each for each in list_of(deployment.get("replicas")) if type(each) is dict]
            states = {text_of(each.get("state")) for each in replicas}
            status, message = text_of(deployment.get("status")), text_of(deployment.get("message"))
            # A healthy deployment without replicas has been scaled down to none.
            if status == "HEALTHY" or states & {"RUNNING", "STARTING"}:
                continue
            found[app, name] = _of_serve(status, message or text_of(about.get("message")))
        is_told = any(of == app for of, _ in found)
        if not is_told and text_of(about.get("status")) == "DEPLOY_FAILED":
            found[app, ""] = _of_serve("DEPLOY_FAILED", text_of(about.get("message")))
    return found


def _pairs(about: Any, key: str) -> list[tuple[str, Mapping[str, Any]]]:
    inner = about.get(key) if isinstance(about, dict) else None
    pairs = inner.items() if isinstance(inner, dict) else ()
    return [(str(name), each) for name, each in pairs if isinstance(each, dict)]


def _of_serve(status: str, message: str) -> Finding:
    said = redact(message).strip()
    if "DEPLOY_FAILED" in status or status == "UNHEALTHY":
        last = said.splitlines()[-1] if said else f"Serve says {status}"
        return Finding(answer="failed", said=last, then="serve status")
    if "resource" in said.lower():
        return Finding(answer="waiting for a resource", said=first_line(said), then="ray status")
    return Finding(
        answer="not started", said=first_line(said) or f"Serve says {status}", then="serve status"
    )


# One replica --------------------------------------------------------------------------------------


def _of_one(replica: node.Replica, *, is_alone: bool) -> list[Finding]:
    """Return the findings about one replica. `is_alone`: no other deployment can be meant."""
    state = replica.state or {}
    seen = of_replica(replica, node.boot_s())
    if replica.condition in ("failed", "dead") and seen.stage != "READY":
        error = text_of(state.get("error")) or "its process ended before it was ready"
        return [Finding(answer="failed", said=error, then="serve status")]
    if replica.condition in ("stale", "unreadable"):
        pid = state.get("pid")
        then = f"py-spy dump --pid {pid}" if isinstance(pid, int) else "serve-warm status"
        return [Finding(answer="hung", said=replica.why, then=then)]
    if replica.condition == "dead":
        return [
            Finding(answer="not started", said="its last replica has ended", then="serve status")
        ]
    if replica.condition != "warm":
        return [_of_start(state, seen.stage, seen.stage_s)]
    words = [] if is_alone else ["--deployment", replica.names[1]]
    another_plan = shlex.join(["serve-warm", "plan", *words, "-o", "plan.yaml"])
    found = _of_ready(state, seen.verdict, another_plan)
    return found or [Finding(answer="warm", said=_how(state))]


def _of_start(state: Mapping[str, Any], stage: str, stage_s: float | None) -> Finding:
    doing = text_of(state.get("doing"))
    since = "" if stage_s is None else f" for {stage_s:.0f} s"
    waits = f", waits for {doing}" if doing else ""
    last = _last_span(state)
    if stage in ("", "PENDING"):
        return Finding(
            answer="starting",
            said=f"PENDING{since}{waits or ', in the application: imports and __init__'}{last}",
            then="serve-warm status --watch",
        )
    done, of = finite(state.get("inputs_done")), finite(state.get("inputs_expected"))
    inputs = f", {done:.0f} of {of:.0f} inputs replayed" if of and done is not None else ""
    if stage == "REPLAYING":
        verdict = text_of(state.get("verdict"))
        why = first_line(text_of(state.get("reason")))
        cause = f"\nno artifact is used: {why}" if why and verdict != "full_hit" else ""
        return Finding(
            answer="compiling now",
            said=f"REPLAYING{since}{inputs}{waits}{last}{cause}",
            then="serve-warm status --watch",
        )
    if stage in ("PROVING", "PARITY"):
        said = f"{stage}{since}{inputs}{waits}{last}"
        return Finding(answer="proving", said=said, then="serve-warm status --watch")
    said = f"{stage}{since}{waits}: {text_of(state.get('store')) or 'no store'}"
    return Finding(answer="loading", said=said, then="serve-warm status --watch")


def _last_span(state: Mapping[str, Any]) -> str:
    """Return how long the last finished part of the start took."""
    spans = [each for each in list_of(state.get("spans")) if isinstance(each, list)]
    for name, _, seconds, *_ in reversed([each for each in spans if len(each) >= 3]):
        if (took_s := finite(seconds)) is not None and took_s >= 0.1:
            return f"; the last part, {text_of(name)}, took {took_s:.1f} s"
    return ""


def _of_ready(state: Mapping[str, Any], verdict: str, another_plan: str) -> list[Finding]:
    """Return what is wrong with a replica that serves.

    `another_plan` is what comes next if requests made calls that no input makes. That command
    prints the build that follows.
    """
    found: list[Finding] = []
    if doing := text_of(state.get("doing")):
        then = "serve-warm status --watch"
        found.append(Finding(answer="compiling now", said=f"READY, waits for {doing}", then=then))
    reason, store = text_of(state.get("reason")), text_of(state.get("store"))
    quoted = shlex.quote(store)
    if state.get("nothing_compiles") is True:
        text = next((w for w in map(text_of, list_of(state.get("warnings"))) if COMPILED in w), "")
        return [Finding(answer="no compiled code", said=text or reason)]
    if verdict == "refused":
        found.append(Finding(answer="refused", said=reason, then=f"serve-warm verify {quoted}"))
    elif reason and verdict in ("miss", "eager", "late"):
        found.append(_of_miss(state, reason, store, f"serve-warm diff {quoted}"))
    eager = [text_of(each) for each in list_of(state.get("eager")) if text_of(each)]
    if state.get("uncompiled") is True or eager:
        share = "\n".join(line.strip() for line in eager) or "all calls run uncompiled code"
        found.append(Finding(answer="eager by policy", said=share, then=another_plan))
    if verdict == "partial":
        found.append(_said("partial", list_of(state.get("degraded")), "serve-warm report"))
    elif degraded := list_of(state.get("degraded")):
        kind: Answer = "late" if verdict == "late" else "degraded"
        found.append(_said(kind, degraded, "serve-warm report"))
    if narrow := list_of(state.get("narrow")):
        found.append(_said("narrow", narrow, another_plan))
    if event := text_of(state.get("event")):
        is_learned = bool(text_of(state.get("learned"))) or not state.get("inputs_expected")
        then = another_plan if is_learned else "serve-warm report"
        found.append(Finding(answer="requests compile", said=event, then=then))
    return found


COMPILED = "no compiled code"
"""Part of the warning of a replica in which nothing compiles."""


def _said(answer: Answer, texts: Sequence[Any], then: str) -> Finding:
    return Finding(answer=answer, said="\n".join(map(text_of, texts)), then=then)


def _of_miss(state: Mapping[str, Any], reason: str, store: str, then: str) -> Finding:
    """Return why a replica uses no artifact, and whether the store has one by now."""
    published = _fits_now(state, store) if store else ""
    if published:
        said = f"{reason}\nbut {store} has {published} now, which fits"
        return Finding(answer="nothing fits", said=said, then="restart the replica")
    return Finding(answer="nothing fits", said=reason, then=then)


def _fits_now(state: Mapping[str, Any], store: str) -> str:
    """Return the statement of a trusted artifact that fits the replica; empty if there is none."""
    written = state.get("fingerprint")

    def look() -> str:
        with screen.quiet(choose.__name__):
            considered = pull.explain(
                open_existing_store(store),
                fingerprint=Fingerprint.from_json(written),
                trust=load_trust(),
                application=text_of(state.get("artifacts_of")) or None,
                deployment=text_of(state.get("deployment")) or None,
            )
        return next((each.statement for each in considered if each.accepted), "")

    try:
        return begin(look, name="serve_warm_why").result(STORE_LIMIT_S)
    except (ServeWarmError, TimeoutError, ValueError, TypeError):
        return ""  # the replica has said what is wrong with it


def _how(state: Mapping[str, Any]) -> str:
    verdict = text_of(state.get("verdict"))
    return f"verdict {verdict}" if verdict else ""
