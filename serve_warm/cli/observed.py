# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Replicas as this node's state files show them.

If a state file does not have a fact, the field is None or empty, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from serve_warm import node
from serve_warm._records import record
from serve_warm._redaction import join_lines, redact
from serve_warm.node_server.table import samples_of
from serve_warm.report import LEVELS

ENDED_SHOWN_S = node.SWEEP_S
"""Seconds for which `status` shows a replica that ended before READY, even without `--all`."""


@record(frozen=True, kw_only=True)
class Observed:
    """One replica, as its files show it."""

    application: str
    deployment: str
    replica: str
    condition: str
    """One of `node.CONDITIONS`."""
    stage: str = ""
    """Stage in capitals; empty until the replica has reported a stage."""
    verdict: str = ""
    """Empty until the verdict is known."""
    store: str = ""
    """Address of the configured store."""
    doing: str = ""
    """What a starting replica is waiting for; empty if the stage already shows this."""
    traced: str = ""
    """Share of the start's compiled calls that were traced: `none`, `some` or `all`; empty before
    READY."""
    levels: dict[str, int] = field(default_factory=dict)
    """Number of kinds of calls at each level; empty if nothing uses `serve_warm.compile`."""
    inputs_done: int | None = None
    """Number of inputs replayed in the current or last pass."""
    inputs_expected: int | None = None
    stage_s: float | None = None
    """Seconds since the stage began."""
    heartbeat_s: float | None = None
    """Seconds since the replica last wrote its state."""
    elapsed_s: float | None = None
    """Seconds from the replica's creation, just before `__init__`, until READY or FAILED, or until
    now if neither stage has been reached."""
    deadline_s: float | None = None
    """Limit in seconds from the end of `__init__` to READY."""
    graph_pool_bytes: int | None = None
    """GPU memory in the replica's CUDA graph pools, on all devices; None without a GPU."""
    seats: str = ""
    """Description of the seats; empty if no seats are configured."""
    event: str = ""
    """The last event or problem, in one line; empty if there is none."""

    @property
    def names(self) -> tuple[str, str, str]:
        """Names of the application, the deployment and the replica."""
        return self.application, self.deployment, self.replica

    @property
    def ended(self) -> bool:
        """Whether the replica's process has ended."""
        return self.condition == "dead"

    @property
    def warm(self) -> bool:
        """Whether the replica is ready and alive."""
        return self.condition == "warm"

    @property
    def died_young(self) -> bool:
        """Whether the replica ended recently, before it was ready."""
        recent = self.heartbeat_s is not None and self.heartbeat_s < ENDED_SHOWN_S
        return self.ended and recent and self.stage != "READY"


@record(frozen=True, kw_only=True)
class Look:
    """The replicas that a state directory shows at one moment."""

    directory: str = ""
    replicas: tuple[Observed, ...] = ()
    troubles: tuple[str, ...] = ()
    """Why the directory cannot be read, and a sentence for each unknown name."""

    @property
    def living(self) -> tuple[Observed, ...]:
        """The replicas whose process is running."""
        return tuple(each for each in self.replicas if not each.ended)

    @property
    def ready(self) -> bool:
        """Whether the directory was read, at least one replica runs, and all of them are ready."""
        living = self.living
        return not self.troubles and bool(living) and all(each.warm for each in living)

    def of(self, application: str, deployments: Sequence[str]) -> Look:
        """Return a copy with only the replicas of one application or some deployments.

        An empty argument filters nothing. Name a deployment as `application#Deployment`, or as
        `Deployment` to match it in every application. `troubles` gets a sentence for each name that
        matches no replica.
        """
        kept = [r for r in self.replicas if application in ("", r.application)]
        missing = [application] if application and not kept else []
        groups = {name: [r for r in kept if _is_of(name, r)] for name in deployments}
        missing += [name for name, group in groups.items() if not group]
        if deployments:
            kept = [each for each in kept if any(each in group for group in groups.values())]
        there = sorted({f"{r.application}#{r.deployment}" for r in self.replicas})
        found = f"; there are replicas of {', '.join(there)}" if there else ""
        troubles = [f"there is no replica of {name}{found}" for name in missing]
        return Look(
            directory=self.directory, replicas=tuple(kept), troubles=(*self.troubles, *troubles)
        )


def _is_of(name: str, replica: Observed) -> bool:
    return is_asked_for(replica.application, replica.deployment, "", (name,))


def is_asked_for(of: str, name: str, application: str, deployments: Collection[str]) -> bool:
    """Return whether the options `--app` and `--deployment` choose the deployment `name` of `of`.

    Without a value, an option chooses all.
    """
    is_named = not deployments or bool({name, f"{of}#{name}"} & {*deployments})
    return application in ("", of) and is_named


def of_directory(directory: str) -> Look:
    """Return the replicas with files in a state directory, or none if the directory is missing."""
    now = node.boot_s()
    try:
        found = node.look(directory)
    except OSError as error:
        text = error.strerror or str(error)
        text = text if directory in text else f"{directory} cannot be read: {text}"
        return Look(directory=directory, troubles=(node.shown(redact(text)),))
    replicas = [of_replica(each, now) for each in found]
    replicas.sort(key=lambda each: (each.names[:2], each.ended, each.replica))
    return Look(directory=directory, replicas=tuple(replicas))


def of_replica(replica: node.Replica, now: float) -> Observed:
    """Return what the files of a replica show; `now` is the time by CLOCK_BOOTTIME."""
    state = replica.state or {}
    application, deployment, name = replica.names
    stage = text_of(state.get("stage"))
    figures = _figures_of(state.get("metrics"), None if replica.condition == "dead" else now)
    verdict = text_of(state.get("verdict"))
    since = finite(state.get("stage_boot_s"))
    return Observed(
        application=application,
        deployment=deployment,
        replica=name or replica.stem,
        condition=replica.condition,
        stage=stage,
        verdict=verdict,
        store=text_of(state.get("store")),
        doing=text_of(state.get("doing")) if replica.condition in ("warming", "warm") else "",
        traced=text_of(state.get("traced")) if stage == "READY" else "",
        levels=_levels(figures),
        inputs_done=_count(state.get("inputs_done")),
        inputs_expected=_count(state.get("inputs_expected")),
        stage_s=None if since is None or replica.condition == "dead" else _age(now - since),
        heartbeat_s=_age(now - replica.heartbeat_s) if replica.heartbeat_s else None,
        elapsed_s=_elapsed_of(figures, replica, stage, now),
        deadline_s=figures.get(("serve_warm_deadline_seconds", "")),
        graph_pool_bytes=_pool_bytes(figures),
        seats=text_of(state.get("seat")).removeprefix("seat: "),
        event=_sentence(
            [
                _why(replica, now),
                text_of(state.get("error")),
                *(text_of(each) for each in list_of(state.get("degraded"))),
                *_after_ready(figures, last=text_of(state.get("event"))),
                *_refusals(figures, why=(reason := _cut_hint(text_of(state.get("reason"))))),
                f"no artifact is used: {reason}" if reason and verdict in {"miss", "eager"} else "",
                *(f"narrow: {text_of(each)}" for each in list_of(state.get("narrow"))),
                *(f"warning: {text_of(each)}" for each in list_of(state.get("warnings"))),
            ]
        ),
    )


READY_SECONDS = ("serve_warm_ready_seconds", "")
ELAPSED_SECONDS = ("serve_warm_start_elapsed_seconds", "")
"""Both metrics count seconds from just before `__init__`, when there is no state file yet."""


def _elapsed_s(replica: node.Replica, stage: str, now: float) -> float | None:
    if not math.isfinite(replica.began_s):
        return None
    over = replica.condition == "dead" or stage == "FAILED"
    until = (replica.heartbeat_s if over else now) if replica.ready_s is None else replica.ready_s
    return _age(until - replica.began_s)


def _elapsed_of(
    figures: Mapping[tuple[str, str], float], replica: node.Replica, stage: str, now: float
) -> float | None:
    took_s = figures.get(READY_SECONDS)
    if took_s is None and replica.condition != "dead":
        took_s = figures.get(ELAPSED_SECONDS)
    return _elapsed_s(replica, stage, now) if took_s is None else took_s


def _why(replica: node.Replica, now: float) -> str:
    """Return a replica's problem, or "" if other fields of the replica already show it."""
    if replica.condition == "stale" and replica.heartbeat_s <= now:
        return "its process exists, but is hung or stopped"
    shown = replica.condition in ("stale", "unreadable") or replica.state is None
    return replica.why if shown else ""


def _figures_of(table: Any, now: float | None) -> dict[tuple[str, str], float]:
    """Return the metrics in a replica's state file, as sums by name and first label.

    `now` is the current time for a running replica, and None for an ended replica. Intervals that
    have not ended are measured up to `now`.
    """
    figures: dict[tuple[str, str], float] = {}
    for row in list_of(table):
        if isinstance(row, dict):
            since_s = finite(row.get("since_boot_s"))
            for labels, written in samples_of(row):
                number = finite(written)
                if number is not None and since_s is not None and now is not None:
                    number = max(0.0, now - since_s)
                if number is not None:
                    key = text_of(row.get("name")), text_of(next(iter(labels.values()), ""))
                    figures[key] = figures.get(key, 0.0) + number
    return figures


def _levels(figures: Mapping[tuple[str, str], float]) -> dict[str, int]:
    known = {str(level): figures.get(("serve_warm_calls_known", str(level)), 0) for level in LEVELS}
    return {level: int(count) for level, count in known.items()} if any(known.values()) else {}


def _after_ready(figures: Mapping[tuple[str, str], float], *, last: str) -> list[str]:
    """Describe the unwanted events after READY: how many there were, and the last event."""
    counts = [
        f"{figures[key]:g} {what}"
        for name, what in AFTER_READY.items()
        if figures.get(key := (name, ""), 0.0) > 0
    ]
    eager = sum(value for (name, _), value in figures.items() if name == "serve_warm_eager_calls")
    if eager:
        of = figures.get(("serve_warm_calls_after_ready", ""), 0.0)
        counts.append(f"{eager:g} of {of:g} calls eager")
    return [f"after ready: {', '.join(counts)}{f', last: {last}' if last else ''}"] * bool(counts)


AFTER_READY = {
    "serve_warm_compiles_after_ready": "compiles",
    "serve_warm_captures_after_ready": "captures",
    "serve_warm_kernels_built_after_ready": "kernels built",
    "serve_warm_tunings_after_ready": "autotuned",
    "serve_warm_eager_falls_after_ready": "fallbacks to eager",
    "serve_warm_forbidden_after_ready": "refused",
}


def _pool_bytes(figures: Mapping[tuple[str, str], float]) -> int | None:
    found = [value for (name, _), value in figures.items() if name == POOL_BYTES]
    return _count(sum(found)) if found else None


POOL_BYTES = "serve_warm_graph_pool_bytes"


def _refusals(figures: Mapping[tuple[str, str], float], *, why: str) -> list[str]:
    """Return a sentence for each refused artifact, with the metric's reason and the text `why`."""
    refused = [label for (name, label), value in figures.items() if name == REFUSED and value == 1]
    words = f": {why}" if why else ""
    return [f"its artifact was refused: {reason}{words}" for reason in refused]


REFUSED = "serve_warm_refused"


def _cut_hint(reason: str) -> str:
    """Return a reason and the first line of its hint, without the lines to copy and paste."""
    what, sep, hint = reason.partition("\nhint: ")
    return what + sep + hint.partition("\n")[0].removesuffix(":")


def _sentence(parts: Iterable[str]) -> str:
    lines = (join_lines(part) for part in parts if part)
    return node.shown(redact("; ".join(dict.fromkeys(lines))))


def text_of(value: Any) -> str:
    """Return a text in a state; empty if there is none."""
    return value if isinstance(value, str) else ""


def list_of(value: Any) -> list[Any]:
    """Return a list in a state; empty if there is none."""
    return value if isinstance(value, list) else []


def finite(value: Any) -> float | None:
    """Return a number in a state; None if it is not a number, infinite or too large for a float."""
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if ok else None


def _count(value: Any) -> int | None:
    number = finite(value)
    return None if number is None or number < 0 else int(number)


def _age(seconds: float) -> float | None:
    """Return an age in seconds, or None if it is negative because a reboot reset the clock."""
    return max(0.0, seconds) if seconds > -1.0 else None
