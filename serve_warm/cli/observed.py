# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of replicas from outside: of this node's state files, and of pages of metrics.

Both say the same in other words, so both become the same records. What a source does not know is
None or empty, never a guess: a page of metrics has no words, and Ray's has no heartbeat.
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
from dataclasses import dataclass, field
from typing import Any

from serve_warm import node
from serve_warm._redaction import redact
from serve_warm.errors import MissingPackage
from serve_warm.report import LEVELS, TRACED, settle

FETCH_LIMIT_S = 5.0
"""A page of metrics that has not come by then is given up."""
MAX_PAGE_BYTES = 64 << 20
ENDED_SHOWN_S = node.SWEEP_S
"""So long a replica that ended before it was ready is shown without being asked for."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One replica, as one source shows it."""

    application: str
    deployment: str
    replica: str
    source: str
    condition: str
    """One of `node.CONDITIONS`."""
    stage: str = ""
    """In capitals; empty before it has said one."""
    verdict: str = ""
    """Empty until it is known."""
    store: str = ""
    """Address of the store that its artifact is, or should be, from; empty on pages of metrics."""
    doing: str = ""
    """What a start waits for, where its stage does not say it."""
    traced: str = ""
    """How many compiled calls of its start were traced: `none`, `some`, `all`; empty before READY.
    """
    levels: dict[str, int] = field(default_factory=dict)
    """Kinds of calls by level; empty where nothing was given to `serve_warm.compile`."""
    inputs_done: int | None = None
    """Inputs replayed in the pass under way, or in the last one."""
    inputs_expected: int | None = None
    stage_s: float | None = None
    """Seconds since the stage began."""
    heartbeat_s: float | None = None
    """Seconds since it wrote its state; of one that has ended, since its last time."""
    elapsed_s: float | None = None
    """Seconds that its start takes, or took."""
    deadline_s: float | None = None
    graph_pool_bytes: int | None = None
    """GPU memory that its CUDA graphs keep for themselves, on all devices; None without a GPU."""
    event: str = ""
    """What last happened or is wrong, in a line; empty when all is well."""

    @property
    def names(self) -> tuple[str, str, str]:
        """Application, deployment, replica."""
        return self.application, self.deployment, self.replica

    @property
    def ended(self) -> bool:
        """Whether its process is gone."""
        return self.condition == "dead"

    @property
    def warm(self) -> bool:
        """Whether it is ready, and alive as far as the source knows."""
        return self.condition == "warm"

    @property
    def died_young(self) -> bool:
        """Whether it ended a short while ago, before it was ready."""
        recent = self.heartbeat_s is not None and self.heartbeat_s < ENDED_SHOWN_S
        return self.ended and recent and self.stage != "READY"


@dataclass(frozen=True, kw_only=True)
class Look:
    """What all sources show at one time."""

    sources: tuple[str, ...] = ()
    replicas: tuple[Observed, ...] = ()
    troubles: tuple[str, ...] = ()
    """A sentence for each source that could not be read, or not all of it."""

    @property
    def living(self) -> tuple[Observed, ...]:
        """Those whose process is there."""
        return tuple(each for each in self.replicas if not each.ended)

    @property
    def ready(self) -> bool:
        """Whether all sources were read, a replica is there, and all that are there are ready."""
        living = self.living
        return not self.troubles and bool(living) and all(each.warm for each in living)

    def of(self, application: str, deployments: Sequence[str]) -> Look:
        """Return the part of it that is about one application, or some deployments.

        An empty application or no deployments leave all in; a deployment is named as
        `application#Deployment`, or by its own name for all applications. A name of which there is
        no replica is a trouble.
        """
        kept = [r for r in self.replicas if application in ("", r.application)]
        missing = [application] if application and not kept else []
        groups = {name: [r for r in kept if _is_of(name, r)] for name in deployments}
        missing += [name for name, group in groups.items() if not group]
        if deployments:
            kept = [each for each in kept if any(each in group for group in groups.values())]
        there = sorted({f"{r.application}#{r.deployment}" for r in self.replicas})
        found = f"; there are replicas of {', '.join(there)}" if there else ""
        troubles = [f"no replica of {name} is there{found}" for name in missing]
        return Look(
            sources=self.sources,
            replicas=tuple(kept),
            troubles=(*self.troubles, *troubles),
        )


def _is_of(name: str, replica: Observed) -> bool:
    return name in (replica.deployment, f"{replica.application}#{replica.deployment}")


def look(state_dir: str, urls: Sequence[str]) -> Look:
    """Return what the state directory, where one is named, and all pages show now.

    Pages are asked for at the same time. A replica that several sources show is taken from the
    first: the directory, then the pages as they are listed.

    Raises:
        MissingPackage: there are pages, and nothing to parse them with.
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
    """Return the replicas that have files in a state directory; none where it is not there."""
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
    figures = _figures_of(state.get("metrics"))
    since = _number(state.get("stage_boot_s"))
    return Observed(
        application=application,
        deployment=deployment,
        replica=name or replica.stem,
        source=source,
        condition=replica.condition,
        stage=stage,
        verdict=settle(_text(state.get("verdict")), stage),
        store=_text(state.get("store")),
        doing=_text(state.get("doing")) if replica.condition == "warming" else "",
        traced=_find_traced(figures, stage),
        levels=_levels(figures),
        inputs_done=_count(state.get("inputs_done")),
        inputs_expected=_count(state.get("inputs_expected")),
        stage_s=None if since is None or replica.condition == "dead" else _age(now - since),
        heartbeat_s=_age(now - replica.heartbeat_s) if replica.heartbeat_s else None,
        elapsed_s=figures.get(READY_SECONDS, _elapsed_s(replica, stage, now)),
        deadline_s=figures.get(("serve_warm_deadline_seconds", "")),
        graph_pool_bytes=_pool_bytes(figures),
        event=_sentence(
            [
                _why(replica, now),
                _text(state.get("error")),
                *(_text(each) for each in _list(state.get("degraded"))),
                *_after_ready(figures, last=_text(state.get("event"))),
                *_refusals(figures),
            ]
        ),
    )


READY_SECONDS = ("serve_warm_ready_seconds", "")
"""From before the replica's `__init__`, which its state file cannot be as early as."""


def _elapsed_s(replica: node.Replica, stage: str, now: float) -> float | None:
    if not math.isfinite(replica.began_s):
        return None
    over = replica.condition == "dead" or stage == "FAILED"
    until = (replica.heartbeat_s if over else now) if replica.ready_s is None else replica.ready_s
    return _age(until - replica.began_s)


def _why(replica: node.Replica, now: float) -> str:
    """Return what is wrong with a replica, less what its other fields show."""
    if replica.condition == "stale" and replica.heartbeat_s <= now:
        return "its process is there: it hangs or is stopped"
    shown = replica.condition in ("stale", "unreadable") or replica.state is None
    return replica.why if shown else ""


def _figures_of(table: Any) -> dict[tuple[str, str], float]:
    """Return the value by name and label of what a replica wrote as its metrics."""
    figures: dict[tuple[str, str], float] = {}
    for row in _list(table):
        if isinstance(row, dict) and isinstance(row.get("values"), dict):
            for label, value in row["values"].items():
                number = _number(value)
                if number is not None:
                    figures[_text(row.get("name")), _text(label)] = number
    return figures


# --- pages of metrics ----------------------------------------------------------------------


def metrics_url(text: str) -> str:
    """Return the address of a page; without a path it is that of the server of a node.

    Raises:
        ValueError: it is no address of HTTP.

    >>> metrics_url("http://10.0.0.7:8099")
    'http://10.0.0.7:8099/metrics'
    """
    like = f"{redact(text)!r} is not like http://10.0.0.7:8099/metrics"
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
        raise ValueError(f"{like}: it has a user, a query or a fragment")
    return text if parts.path.strip("/") else f"{text.rstrip('/')}/metrics"


class UnreachableError(Exception):
    """There is no page at an address; the text is the rest of a sentence that begins with it."""


def fetch(url: str, *, limit_s: float = FETCH_LIMIT_S) -> str:
    """Return the text at an address.

    Raises:
        UnreachableError: there is none, it is no text, too much of it, or it takes too long.
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
        raise UnreachableError("answered nothing that is HTTP") from None
    except ValueError:
        raise UnreachableError(NO_METRICS) from None


PIECE_BYTES = 1 << 16
LATE = "did not answer within {:g} s"
NO_METRICS = (
    "has no metrics of serve_warm: name the /metrics of `node.py serve` (port 8099), or Ray's own"
)


def _of_urls(urls: Sequence[str]) -> list[Look]:
    late = LATE.format(FETCH_LIMIT_S)
    looks = {url: _trouble(url, late) for url in urls}

    def ask(url: str) -> None:
        try:
            looks[url] = of_page(fetch(url), source=url)
        except UnreachableError as error:
            looks[url] = _trouble(url, str(error))

    # Daemons, left alone when they are late: a server may send its headers a byte at a time.
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
    """Return the replicas that a page of metrics shows, of a node's server or of Ray.

    One that is no such page, or says that its node could not read all replicas, is a trouble.
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
    more = f"shows {unreadable:g} more whose state it cannot read: ask its /readyz?verbose"
    return Look(
        sources=(redact(source),),
        replicas=tuple(_of_figures(names, each, source) for names, each in replicas.items()),
        troubles=_trouble(source, more).troubles if unreadable else (),
    )


OWN_LABELS = ("stage", "verdict", "reason", "condition", "device", "traced", "level")
"""Of the rows that are read; what else Ray adds says who sent them."""


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
    # A server takes the stage READY back from one that is dead or hangs. That it was is left.
    stage = which("stage").upper() or ("" if took_s is None else "READY")
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
        event=_sentence(
            [
                "" if ended else why,
                "degraded: its own report says why" if one("degraded") else "",
                *_after_ready(figures, last=""),
                *_refusals(figures),
            ]
        ),
    )


def _condition(stage: str, heartbeat_s: float | None, *, believed: bool) -> tuple[str, str]:
    """Return the condition of a living replica, as `node.look` would, and what is wrong.

    `believed` is whether the page calls it ready if that is its stage: a server may have another
    limit than `node.STALE_S`.
    """
    late = heartbeat_s is not None and heartbeat_s > node.STALE_S
    if late or (stage == "READY" and not believed):
        return "stale", "its process is there: it hangs or is stopped"
    if stage == "FAILED":
        return "failed", "its own log says why"
    if stage == "READY":
        return "warm", ""
    return "warming", "" if stage else "it has begun and has not written its state yet"


# --- the words of both ---------------------------------------------------------------------


def _find_traced(figures: Mapping[tuple[str, str], float], stage: str) -> str:
    of_start = (traced for traced in TRACED if figures.get(("serve_warm_traced", traced)) == 1.0)
    return next(of_start, "") if stage == "READY" else ""


def _levels(figures: Mapping[tuple[str, str], float]) -> dict[str, int]:
    known = {str(level): figures.get(("serve_warm_calls_known", str(level)), 0) for level in LEVELS}
    return {level: int(count) for level, count in known.items()} if any(known.values()) else {}


def _after_ready(figures: Mapping[tuple[str, str], float], *, last: str) -> list[str]:
    """Return what happened in traffic, which should be nothing, and the last event in words."""
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
    "serve_warm_tunings_after_ready": "tunings",
    "serve_warm_eager_falls_after_ready": "falls to eager",
    "serve_warm_forbidden_after_ready": "refused",
}


def _pool_bytes(figures: Mapping[tuple[str, str], float]) -> int | None:
    found = [value for (name, _), value in figures.items() if name == POOL_BYTES]
    return _count(sum(found)) if found else None


POOL_BYTES = "serve_warm_graph_pool_bytes"


def _refusals(figures: Mapping[tuple[str, str], float]) -> list[str]:
    refused = [label for (name, label), value in figures.items() if name == REFUSED and value == 1]
    return [f"its artifact was refused: {reason}" for reason in refused]


REFUSED = "serve_warm_refused"


def _sentence(parts: Iterable[str]) -> str:
    return node.shown(redact("; ".join(dict.fromkeys(part for part in parts if part))))


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
    """Return seconds that have passed; of another boot's clock none are known."""
    return max(0.0, seconds) if seconds > -1.0 else None
