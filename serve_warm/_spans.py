# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The spans of a start, and a sentence that states how long the start and its parts took.

Logs, reports and the command line share this sentence. This module imports no other library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serve_warm._records import record

COMPILER = "torch's compiler"
"""Name of the spans in which Dynamo and Inductor are imported."""

WAITING = "waiting for "
"""Prefix of the names of spans in which a replay waits for a replica of another deployment."""


@record(frozen=True, kw_only=True)
class Span:
    """One part of a start."""

    name: str
    """`process`, `imports`, `__init__`, a stage's name in lower case, or a part of one of these."""
    began_boot_s: float
    """Seconds by CLOCK_BOOTTIME."""
    seconds: float
    beside: bool = False
    """Whether the span ran in another thread, at the same time as other spans."""


PARTS = (
    *("process", "process and imports", "imports", "__init__"),
    *("pending", "pulling", "verifying", "loading", "replaying", "proving", "parity"),
    *("ready", "failed"),
)
"""Names of spans that follow each other. All other spans are parts of these spans."""


PASSES = ("replaying", "proving", "parity")


def seconds_by_owner(
    spans: Sequence[Span], stages: Mapping[str, float], ended_boot_s: float
) -> dict[str, float]:
    """Return how many seconds each owner took, from the first span to `ended_boot_s`.

    `stages` maps each stage's name, in lower case, to its seconds. In the result, `weights` is the
    time spent in `__init__`, including the creation of a CUDA context. `passes` is the time spent
    in `PASSES`, and `ours` is the time spent in all other stages. `ray` is the rest. The result is
    empty if there are no spans.

    >>> spans = [Span(name="process", began_boot_s=7.0, seconds=1.5),
    ...          Span(name="imports", began_boot_s=8.5, seconds=2.0),
    ...          Span(name="__init__", began_boot_s=10.5, seconds=3.0)]
    >>> seconds_by_owner(spans, {"loading": 0.25, "replaying": 0.5}, 14.5)
    {'process': 1.5, 'ray': 0.25, 'imports': 2.0, 'weights': 3.0, 'passes': 0.5, 'ours': 0.25}
    """
    if not spans:
        return {}
    took: dict[str, float] = {}
    for span in spans:
        took[span.name] = took.get(span.name, 0.0) + span.seconds
    found = {
        "process": took.get("process", 0.0) + took.get("process and imports", 0.0),
        "ray": 0.0,
        "imports": took.get("imports", 0.0),
        "weights": took.get("__init__", 0.0),
        "passes": sum(seconds for name, seconds in stages.items() if name in PASSES),
        "ours": sum(seconds for name, seconds in stages.items() if name not in PASSES),
    }
    total = ended_boot_s - min(span.began_boot_s for span in spans)
    found["ray"] = max(0.0, total - sum(found.values()))
    return found


def describe(spans: Sequence[Span]) -> str:
    """Return a text that says how long a start and its parts took; empty without spans.

    >>> describe([Span(name="process", began_boot_s=7.0, seconds=1.5),
    ...           Span(name="imports", began_boot_s=8.5, seconds=2.0)])
    ' 3.5 s after its process began: process 1.5, imports 2.0'

    The work of other threads comes last. The text says how many seconds of this work overlapped
    `__init__`.
    """
    if all(span.beside for span in spans):
        return ""
    began = min(span.began_boot_s for span in spans)
    ended = max(span.began_boot_s + span.seconds for span in spans)
    parts_of_start = [span for span in spans if span.name in PARTS and not span.beside]
    seconds: dict[str, float] = {}
    # Sort a part before the spans within it, even if both began at the same tick.
    for span in sorted(spans, key=lambda each: (each.began_boot_s, each.name not in PARTS)):
        if span.beside:
            continue
        seconds[span.name] = seconds.get(span.name, 0.0) + span.seconds
        outer = next((part for part in parts_of_start if _contains(part, span)), None)
        if outer is not None:
            seconds[outer.name] = max(0.0, seconds.get(outer.name, 0.0) - span.seconds)
    parts = ", ".join(f"{name} {took:.1f}" for name, took in seconds.items() if took >= SHOWN_S)
    # In a script or a notebook the process began earlier, for other work.
    since = " after its process began" if next(iter(seconds)).startswith("process") else ""
    told = f" {ended - began:.1f} s{since}"
    return f"{told}: {parts}{_describe_beside(spans)}" if parts else told


def _describe_beside(spans: Sequence[Span]) -> str:
    """Return text about the work of other threads, with the seconds that overlapped `__init__`."""
    init = next((span for span in spans if span.name == "__init__"), None)
    seconds: dict[str, tuple[float, float]] = {}
    for span in spans:
        if span.beside:
            took, hidden = seconds.get(span.name, (0.0, 0.0))
            seconds[span.name] = took + span.seconds, hidden + _shared_s(span, init)
    told = [
        f"{name} {took:.1f}" + (f" ({hidden:.1f} during __init__)" if hidden >= SHOWN_S else "")
        for name, (took, hidden) in seconds.items()
        if took >= SHOWN_S
    ]
    return f"; in other threads: {', '.join(told)}" if told else ""


def _shared_s(span: Span, other: Span | None) -> float:
    """Return for how many seconds the two spans overlap; 0 if `other` is None."""
    if other is None:
        return 0.0
    began = max(span.began_boot_s, other.began_boot_s)
    ended = min(span.began_boot_s + span.seconds, other.began_boot_s + other.seconds)
    return max(0.0, ended - began)


def _contains(part: Span, span: Span) -> bool:
    """Return whether a span began within a part; if so, the part's seconds include the span's."""
    is_other = span.name not in PARTS
    return is_other and 0.0 <= span.began_boot_s - part.began_boot_s < part.seconds


SHOWN_S = 0.05
"""Parts that took fewer seconds than this are left out of the first line of a report."""
