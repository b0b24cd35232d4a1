# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Replicas as seen from outside: in this node's state files, and on metrics pages.

Both sources give records of the same type. If a source does not have a field, the field is None or
empty, never a guess. A metrics page contains only numbers, and Ray's page has no heartbeat.
"""

from __future__ import annotations

import http.client
import importlib.util
import math
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from serve_warm import node
from serve_warm._records import record
from serve_warm._redaction import join_lines, redact
from serve_warm.errors import MissingPackage
from serve_warm.report import LEVELS, TRACED, settle

FETCH_LIMIT_S = 5.0
"""Time limit in seconds for fetching a metrics page."""
MAX_PAGE_BYTES = 64 << 20
ENDED_SHOWN_S = node.SWEEP_S
"""Seconds for which `status` shows a replica that ended before READY, even without `--all`."""


@record(frozen=True, kw_only=True)
class Observed:
    """One replica, as seen by one source."""

    application: str
    deployment: str
    replica: str
    source: str
    condition: str
    """One of `node.CONDITIONS`."""
    stage: str = ""
    """Stage in capitals; empty until the replica has reported a stage."""
    verdict: str = ""
    """Empty until the verdict is known."""
    store: str = ""
    """Address of the configured store; empty on metrics pages."""
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
    figures_alone: bool = False
    """Whether the source is a metrics page. A metrics page leaves `store` and `doing` empty, and
    fills `event` with counts instead of the replica's own text."""

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
        """Whether the replica is ready and, as far as the source knows, alive."""
        return self.condition == "warm"

    @property
    def died_young(self) -> bool:
        """Whether the replica ended recently, before it was ready."""
        recent = self.heartbeat_s is not None and self.heartbeat_s < ENDED_SHOWN_S
        return self.ended and recent and self.stage != "READY"


@record(frozen=True, kw_only=True)
class Look:
    """The replicas that the sources show at one moment."""

    sources: tuple[str, ...] = ()
    replicas: tuple[Observed, ...] = ()
    troubles: tuple[str, ...] = ()
    """A sentence for each source that could not be read completely."""

    @property
    def living(self) -> tuple[Observed, ...]:
        """The replicas whose process is running."""
        return tuple(each for each in self.replicas if not each.ended)

    @property
    def ready(self) -> bool:
        """Whether all sources were read, at least one replica runs, and all replicas are ready."""
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
            sources=self.sources,
            replicas=tuple(kept),
            troubles=(*self.troubles, *troubles),
        )


def _is_of(name: str, replica: Observed) -> bool:
    return name in (replica.deployment, f"{replica.application}#{replica.deployment}")


def look(state_dir: str, urls: Sequence[str]) -> Look:
    """Return the replicas that the state directory (if given) and the metrics pages show now.

    Pages are fetched concurrently. If several sources show a replica, the first source wins. The
    directory comes first, then the pages in the order of `urls`.

    Raises:
        MissingPackage: there are addresses in `urls`, but `prometheus_client` is not installed.
    """
    if urls and importlib.util.find_spec("prometheus_client") is None:
        raise MissingPackage("--url", package="prometheus-client")
    looks = [of_directory(state_dir)] if state_dir else []
    looks += _of_urls(urls)
    first: dict[tuple[str, str, str], Observed] = {}
    for each in (replica for one in looks for replica in one.replicas):
        first.setdefault(each.names, each)
    ordered = sorted(first.values(), key=lambda each: (each.names[:2], each.ended, each.replica))
    return Look(
        sources=tuple(source for one in looks for source in one.sources),
        replicas=tuple(ordered),
        troubles=tuple(trouble for one in looks for trouble in one.troubles),
    )


# --- the files of this node ----------------------------------------------------------------


def of_directory(directory: str) -> Look:
    """Return the replicas with files in a state directory, or none if the directory is missing."""
    now = node.boot_s()
    try:
        found = node.look(directory)
    except OSError as error:
        text = error.strerror or str(error)
        text = text if directory in text else f"{directory} cannot be read: {text}"
        return Look(sources=(directory,), troubles=(node.shown(redact(text)),))
    replicas = tuple(_of_replica(each, now, directory) for each in found)
    return Look(sources=(directory,), replicas=replicas)


def _of_replica(replica: node.Replica, now: float, source: str) -> Observed:
    state = replica.state or {}
    application, deployment, name = replica.names
    stage = _text(state.get("stage"))
    figures = _figures_of(state.get("metrics"), None if replica.condition == "dead" else now)
    verdict = settle(_text(state.get("verdict")), stage)
    since = _number(state.get("stage_boot_s"))
    return Observed(
        application=application,
        deployment=deployment,
        replica=name or replica.stem,
        source=source,
        condition=replica.condition,
        stage=stage,
        verdict=verdict,
        store=_text(state.get("store")),
        doing=_text(state.get("doing")) if replica.condition == "warming" else "",
        traced=_find_traced(figures, stage),
        levels=_levels(figures),
        inputs_done=_count(state.get("inputs_done")),
        inputs_expected=_count(state.get("inputs_expected")),
        stage_s=None if since is None or replica.condition == "dead" else _age(now - since),
        heartbeat_s=_age(now - replica.heartbeat_s) if replica.heartbeat_s else None,
        elapsed_s=_elapsed_of(figures, replica, stage, now),
        deadline_s=figures.get(("serve_warm_deadline_seconds", "")),
        graph_pool_bytes=_pool_bytes(figures),
        seats=_seats(figures, why=_text(state.get("seat"))),
        event=_sentence(
            [
                _why(replica, now),
                _text(state.get("error")),
                *(_text(each) for each in _list(state.get("degraded"))),
                *_after_ready(figures, last=_text(state.get("event"))),
                *_refusals(figures, why=(reason := _cut_hint(_text(state.get("reason"))))),
                f"no artifact is used: {reason}" if reason and verdict == "miss" else "",
                *(f"warning: {_text(each)}" for each in _list(state.get("warnings"))),
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
    """Return the metrics in a replica's state file, as values by name and label.

    `now` is the current time for a running replica, and None for an ended replica. Intervals that
    have not ended are measured up to `now`.
    """
    figures: dict[tuple[str, str], float] = {}
    for row in _list(table):
        if isinstance(row, dict) and isinstance(row.get("values"), dict):
            since_s = _number(row.get("since_boot_s"))
            for label, value in row["values"].items():
                number = _number(value)
                if number is not None and since_s is not None and now is not None:
                    number = max(0.0, now - since_s)
                if number is not None:
                    figures[_text(row.get("name")), _text(label)] = number
    return figures


# --- metrics pages -------------------------------------------------------------------------


def metrics_url(text: str) -> str:
    """Return the address of a metrics page. `/metrics` is added if the address has no path.

    Raises:
        ValueError: `text` is not an HTTP address.

    >>> metrics_url("http://10.0.0.7:8099")
    'http://10.0.0.7:8099/metrics'
    """
    like = f"{redact(text)!r} is not a URL such as http://10.0.0.7:8099/metrics"
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{like}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(like)
    if not text.isprintable() or " " in text:
        raise ValueError(like)
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{like}: it must not contain a user, a query or a fragment")
    return text if parts.path.strip("/") else f"{text.rstrip('/')}/metrics"


class UnreachableError(Exception):
    """An address did not return a metrics page.

    The text completes a sentence that begins with the address.
    """


def fetch(url: str, *, limit_s: float = FETCH_LIMIT_S) -> str:
    """Return the text at an address.

    Raises:
        UnreachableError: the server fails or is too slow, or the answer is too large or not text.
    """
    end = time.monotonic() + limit_s
    request = urllib.request.Request(url, headers={"Accept": "text/plain"})  # noqa: S310 - http(s)
    data = bytearray()
    try:
        with urllib.request.urlopen(request, timeout=limit_s) as answer:  # noqa: S310 - as above
            while piece := answer.read1(PIECE_BYTES):
                data += piece
                if len(data) > MAX_PAGE_BYTES:
                    raise UnreachableError(f"is larger than {MAX_PAGE_BYTES >> 20} MiB")
                if time.monotonic() > end:
                    raise UnreachableError(LATE.format(limit_s))
        return data.decode()
    except urllib.error.HTTPError as error:
        error.close()
        raise UnreachableError(f"answered {error.code}, not 200") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise UnreachableError(LATE.format(limit_s)) from None
        text = getattr(reason, "strerror", None) or str(reason)
        raise UnreachableError(f"cannot be reached: {text}") from None
    except http.client.HTTPException:
        raise UnreachableError("did not answer with HTTP") from None
    except ValueError:
        raise UnreachableError(NO_METRICS) from None


PIECE_BYTES = 1 << 16
LATE = "did not answer within {:g} s"
NO_METRICS = (
    "has no serve_warm metrics: pass the /metrics address of `node.py serve` (port 8099) or of Ray"
)


def _of_urls(urls: Sequence[str]) -> list[Look]:
    late = LATE.format(FETCH_LIMIT_S)
    looks = {url: _trouble(url, late) for url in urls}

    def ask(url: str) -> None:
        try:
            looks[url] = of_page(fetch(url), source=url)
        except UnreachableError as error:
            looks[url] = _trouble(url, str(error))

    # Daemon threads, so that a late one can be abandoned: a server may send one byte at a time.
    threads = [threading.Thread(target=ask, args=(url,), daemon=True) for url in looks]
    end = time.monotonic() + FETCH_LIMIT_S + 1.0
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [looks[url] for url in dict.fromkeys(urls)]


def _trouble(source: str, what: str) -> Look:
    return Look(sources=(redact(source),), troubles=(node.shown(redact(f"{source} {what}")),))


def of_page(text: str, *, source: str) -> Look:
    """Return the replicas on a metrics page, from a node's server or from Ray.

    `troubles` has a sentence if the page has no metrics of serve_warm or Ray, or if the page's node
    could not read all replicas.
    """
    from prometheus_client.parser import text_string_to_metric_families

    replicas: dict[tuple[str, str, str], dict[tuple[str, str], float]] = {}
    unreadable, known = 0.0, False
    try:
        for family in text_string_to_metric_families(text):
            known = known or family.name.startswith(("ray_", "serve_warm_"))
            for sample in family.samples:
                name = sample.name.removeprefix("ray_").removesuffix("_total")
                label = next((sample.labels[key] for key in OWN_LABELS if key in sample.labels), "")
                names = tuple(sample.labels.get(key, "") for key in node.WHO)
                if name == "serve_warm_node_replicas" and label == "unreadable":
                    unreadable = sample.value
                elif name.startswith("serve_warm_") and names[2]:
                    figures = replicas.setdefault((names[0], names[1], names[2]), {})
                    figures[name, label] = sample.value
    except ValueError:
        return _trouble(source, NO_METRICS)
    if not known:
        return _trouble(source, NO_METRICS)
    more = (
        f"cannot read the state of {unreadable:g} more replica(s): see /readyz?verbose on this "
        "server"
    )
    return Look(
        sources=(redact(source),),
        replicas=tuple(_of_figures(names, each, source) for names, each in replicas.items()),
        troubles=_trouble(source, more).troubles if unreadable else (),
    )


OWN_LABELS = ("stage", "verdict", "reason", "condition", "device", "traced", "level")
"""The labels that distinguish the series of one metric. Ray adds more labels, which identify the
sender."""


def _of_figures(
    names: tuple[str, str, str], figures: Mapping[tuple[str, str], float], source: str
) -> Observed:
    def one(name: str) -> float | None:
        value = figures.get((f"serve_warm_{name}", ""))
        return value if value is not None and math.isfinite(value) else None

    def which(name: str) -> str:
        rows = ((n, label) for (n, label), value in figures.items() if value == 1.0)
        return next((label for n, label in rows if n == f"serve_warm_{name}"), "")

    ended, heartbeat_s, took_s = one("replica_alive") == 0.0, None, one("ready_seconds")
    if not ended:
        heartbeat_s = one("heartbeat_age_seconds")
    # For a replica that is dead or hangs, a server stops exporting READY but still exports
    # ready_seconds.
    stage = which("stage").upper() or ("" if took_s is None else "READY")
    last = [label for name, label in figures if name == "serve_warm_stage"]
    if ended and not stage and len(last) == 1:
        stage = last[0].upper()  # a server keeps only the last stage, with the value 0
    condition, why = _condition(stage, heartbeat_s, believed=one("ready") != 0.0)
    return Observed(
        application=names[0],
        deployment=names[1],
        replica=names[2],
        source=redact(source),
        condition="dead" if ended else condition,
        stage=stage,
        verdict=settle(which("verdict"), stage),
        traced=_find_traced(figures, stage),
        levels=_levels(figures),
        inputs_done=_count(one("inputs_done")),
        inputs_expected=_count(one("inputs_expected")),
        stage_s=one("stage_age_seconds"),
        heartbeat_s=heartbeat_s,
        elapsed_s=one("start_elapsed_seconds") if took_s is None else took_s,
        deadline_s=one("deadline_seconds"),
        graph_pool_bytes=_pool_bytes(figures),
        seats=_seats(figures),
        event=_sentence(
            [
                "" if ended else why,
                "degraded: see the replica's report" if one("degraded") else "",
                *_after_ready(figures, last=""),
                *_refusals(figures),
            ]
        ),
        figures_alone=True,
    )


def _condition(stage: str, heartbeat_s: float | None, *, believed: bool) -> tuple[str, str]:
    """Return the condition and the problem of a running replica, as `node.look` does.

    `believed` is False if the page does not count a READY replica as ready. The page's server might
    use a limit other than `node.STALE_S`.
    """
    late = heartbeat_s is not None and heartbeat_s > node.STALE_S
    if late or (stage == "READY" and not believed):
        return "stale", "its process exists, but is hung or stopped"
    if stage == "FAILED":
        return "failed", "see the replica's log"
    if stage == "READY":
        return "warm", ""
    return "warming", "" if stage else "it has started, but has not written its state yet"


# --- words for both sources ----------------------------------------------------------------


def _find_traced(figures: Mapping[tuple[str, str], float], stage: str) -> str:
    of_start = (traced for traced in TRACED if figures.get(("serve_warm_traced", traced)) == 1.0)
    return next(of_start, "") if stage == "READY" else ""


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
    return [f"after ready: {', '.join(counts)}{f', last: {last}' if last else ''}"] * bool(counts)


AFTER_READY = {
    "serve_warm_compiles_after_ready": "compiles",
    "serve_warm_captures_after_ready": "captures",
    "serve_warm_graph_skips_after_ready": "graphs skipped",
    "serve_warm_kernels_built_after_ready": "kernels built",
    "serve_warm_tunings_after_ready": "autotuned",
    "serve_warm_eager_falls_after_ready": "fallbacks to eager",
    "serve_warm_forbidden_after_ready": "refused",
}


def _pool_bytes(figures: Mapping[tuple[str, str], float]) -> int | None:
    found = [value for (name, _), value in figures.items() if name == POOL_BYTES]
    return _count(sum(found)) if found else None


POOL_BYTES = "serve_warm_graph_pool_bytes"


def _seats(figures: Mapping[tuple[str, str], float], *, why: str = "") -> str:
    """Describe how many seats are wanted, how many are free, and whether this start used a seat.

    `why` is the line about the seat in the replica's state file. A metrics page has no such line.
    """
    wanted, waiting = (figures.get((f"serve_warm_seats{end}", "")) for end in ("_wanted", ""))
    missed = [r for (name, r), value in figures.items() if (name, value) == (SEAT_MISSES, 1.0)]
    hit = figures.get(("serve_warm_seat_hits", "")) == 1.0
    if not (wanted or hit or missed):
        return ""
    start = "yes" if hit else "no"
    start += f" ({', '.join(missed)})" if missed else ""
    start += "" if waiting is None else f"; {waiting:g} waiting for the next start"
    counted = "" if wanted is None else f"{wanted:g} wanted; "
    return f"{counted}this start: {why.removeprefix('seat: ') or start}"


SEAT_MISSES = "serve_warm_seat_misses"


def _refusals(figures: Mapping[tuple[str, str], float], *, why: str = "") -> list[str]:
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


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if ok else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None or number < 0 else int(number)


def _age(seconds: float) -> float | None:
    """Return an age in seconds, or None if it is negative because a reboot reset the clock."""
    return max(0.0, seconds) if seconds > -1.0 else None
