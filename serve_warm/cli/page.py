# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The page of `serve-warm report --html`: one file that shows how replicas started.

The page loads nothing and runs no script: its policy allows only the one style sheet in it. All
text in it comes from applications, so all of it is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from serve_warm import node
from serve_warm._package import __version__
from serve_warm._redaction import redact
from serve_warm._spans import PARTS, Span, seconds_by_owner
from serve_warm.cli.observed import finite, list_of, text_of
from serve_warm.cli.screen import count
from serve_warm.fingerprint import UNKNOWN

if TYPE_CHECKING:
    from serve_warm.cli.reporting import ReportedStart

OWNERS = {
    "process": "start of the process",
    "ray": "Ray and Serve",
    "imports": "imports",
    "weights": "__init__: weights",
    "passes": "replay and proof",
    "ours": "pulling, verifying and loading",
}
"""Who took the seconds of a start, in the order of a start."""

OPEN_ROWS = 40
"""A table of calls with more rows is closed at first."""

STYLE = """
:root { color-scheme: light dark; --text: #1d2433; --dim: #5a6478; --back: #ffffff;
  --line: #d9dee8; --card: #f6f8fb; --bar: #3b6fd4; --beside: #9db7ea; --good: #1a7f4b;
  --bad: #b3261e; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8f1; --dim: #9aa5ba; --back: #12161f;
  --line: #2b3344; --card: #1a202c; --bar: #6d9bf0; --beside: #3d5488; --good: #5fcf95;
  --bad: #ff8a80; --warn: #e8b04b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px; max-width: 1100px; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 20px; } h2 { font-size: 18px; margin: 32px 0 4px; overflow-wrap: anywhere; }
h3 { font-size: 15px; margin: 20px 0 6px; }
section { border-top: 1px solid var(--line); }
.dim { color: var(--dim); } .good { color: var(--good); } .bad { color: var(--bad); }
.warn { color: var(--warn); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { white-space: nowrap; }
th, td { text-align: left; min-width: 5.5em; vertical-align: top; padding: 4px 10px 4px 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
td.n, th.n { text-align: right; white-space: nowrap; }
code, pre { font: 12.5px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { background: var(--card); padding: 8px 10px; margin: 4px 0; white-space: pre-wrap; }
svg { display: block; width: 100%; height: 14px; }
rect { fill: var(--bar); } rect.beside { fill: var(--beside); } rect.gap { fill: var(--line); }
summary { cursor: pointer; }
"""


def make_page(starts: Sequence[ReportedStart]) -> str:
    """Return the HTML of a page about these starts."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>serve_warm: {count(len(starts), 'start')}</title>",
        f"<style>{STYLE}</style></head><body>",
        f"<h1>Starts of replicas</h1><p class='dim'>serve_warm {_show(__version__)}</p>",
        *_overview(starts),
        *(part for number, start in enumerate(starts) for part in _section(number, start)),
        *_differences(starts),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _show(text: object) -> str:
    """Return a text of an application for HTML: in one line, without secrets, and escaped."""
    return html.escape(node.shown(redact(str(text))))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table of cells that are HTML. A head that ends in a space is one of numbers."""
    kinds = [' class="n"' if head.endswith(" ") else "" for head in heads]
    yield "<div class='scroll'><table><thead><tr>"
    yield "".join(f"<th{kind}>{head}</th>" for head, kind in zip(heads, kinds, strict=True))
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = zip(row, kinds, strict=True)
        yield f"<tr>{''.join(f'<td{kind}>{cell}</td>' for cell, kind in cells)}</tr>"
    yield "</tbody></table></div>"


# All starts -------------------------------------------------------------------------------------


def _overview(starts: Sequence[ReportedStart]) -> Iterator[str]:
    rows = [
        (
            f'<a href="#start-{number}">{_show(start.name)}</a>',
            _show(start.replica),
            _stage(start),
            _show(start.verdict or "none yet"),
            _seconds(_total(start.spans)),
        )
        for number, start in enumerate(starts)
    ]
    yield from _table(("deployment", "replica", "stage", "verdict", "seconds "), rows)


def _stage(start: ReportedStart) -> str:
    kind = {"READY": "good", "FAILED": "bad"}.get(start.stage, "warn")
    gone = ", ended" if start.ended else ""
    return f'<span class="{kind}">{_show(start.stage or "no stage")}</span>{gone}'


def _total(spans: Sequence[Span]) -> float:
    ends = [span.began_boot_s + span.seconds for span in spans if not span.beside]
    begins = [span.began_boot_s for span in spans if not span.beside]
    return max(ends, default=0.0) - min(begins, default=0.0)


def _seconds(value: float) -> str:
    return f"{value:,.2f}"


def _differences(starts: Sequence[ReportedStart]) -> Iterator[str]:
    """Yield the factors of the environment that differ between these starts."""
    all_factors = [_factors(start.said) for start in starts]
    known = [each for each in all_factors if each]
    names = sorted({name for each in known for name in each})
    rows = []
    for name in names:
        values: dict[str, list[str]] = {}
        for start, factors in zip(starts, all_factors, strict=True):
            if factors:
                values.setdefault(factors.get(name, UNKNOWN), []).append(start.replica)
        if len(values) > 1:
            rows += [
                (_show(name), f"<code>{_show(value)}</code>", _show(", ".join(replicas)))
                for value, replicas in values.items()
            ]
    yield "<section><h2>Differences of environment</h2>"
    if rows:
        yield from _table(("factor", "value", "replicas"), rows)
    elif len(known) < 2:
        which = "Only one start says" if known else "No start says"
        yield f"<p class='dim'>{which} what its environment is.</p>"
    else:
        yield f"<p>{len(names)} factors of {len(known)} starts are equal.</p>"
    yield "</section>"


def _factors(said: Mapping[str, Any]) -> dict[str, str]:
    fingerprint = said.get("fingerprint")
    groups = fingerprint.items() if isinstance(fingerprint, dict) else ()
    return {
        f"{text_of(of)}.{text_of(name)}": text_of(value)
        for of, group in groups
        if isinstance(group, dict)
        for name, value in group.items()
    }


# One start --------------------------------------------------------------------------------------


def _section(number: int, start: ReportedStart) -> Iterator[str]:
    yield f'<section id="start-{number}"><h2>{_show(start.name)} {_show(start.replica)}</h2>'
    verdict = f", verdict {_show(start.verdict)}" if start.verdict else ""
    yield f"<p>{_stage(start)}{verdict}, {_seconds(_total(start.spans))} s</p>"
    for label, texts in (("error", [start.error]), ("degraded", start.degraded)):
        for text in filter(None, texts):
            yield f'<p class="bad">{label}</p><pre>{_lines(text)}</pre>'
    if start.reason:
        yield f'<p class="warn">artifact</p><pre>{_lines(start.reason)}</pre>'
    yield from _timeline(start)
    yield from _calls(start)
    yield from _narrow(start.said)
    yield from _events(start)
    yield "</section>"


def _lines(text: str) -> str:
    """Return several lines for HTML, with their indentation."""
    lines = [line.expandtabs(4) for line in text.split("\n")]
    return "\n".join(" " * (len(line) - len(line.lstrip(" "))) + _show(line) for line in lines)


def _timeline(start: ReportedStart) -> Iterator[str]:
    """Yield where the seconds of a start went: each belongs to one owner."""
    total = _total(start.spans)
    if total <= 0:
        return
    began = min(span.began_boot_s for span in start.spans if not span.beside)
    owners = _owners(start, began + total)
    whole = sum(owners.values())
    yield "<h3>Where the seconds went</h3>"
    if whole > 0:
        rows = [
            (OWNERS[owner], _bar(0.0, took / whole, ""), _seconds(took))
            for owner, took in owners.items()
        ]
        yield from _table(("owner", "share", "seconds "), rows)
        if abs(whole - total) > SHOWN_GAP_S:
            yield (
                f"<p class='dim'>They are {_seconds(whole)} s in all, but the timeline has "
                f"{_seconds(total)} s: a part was counted twice, or a clock was set.</p>"
            )
    yield "<h3>Timeline</h3>"
    rows = []
    reached = began
    for span in sorted(start.spans, key=lambda each: (each.began_boot_s, each.name not in PARTS)):
        first = (span.began_boot_s - began) / total
        is_part = span.name in PARTS and not span.beside
        if is_part and span.began_boot_s - reached >= SHOWN_GAP_S:
            gap = span.began_boot_s - reached
            bar = _bar((reached - began) / total, gap / total, "gap")
            rows.append(("<span class='dim'>Ray and Serve</span>", bar, _seconds(gap)))
        if is_part:
            reached = max(reached, span.began_boot_s + span.seconds)
        name = _show(span.name)
        name = name if is_part else f"&nbsp;&nbsp;{name}"
        name += " <span class='dim'>(another thread)</span>" if span.beside else ""
        kind = "" if is_part else "beside"
        rows.append((name, _bar(first, span.seconds / total, kind), _seconds(span.seconds)))
    yield from _table(("part", "when", "seconds "), rows)


SHOWN_GAP_S = 0.05
"""Gaps between parts that took fewer seconds are not shown."""


def _owners(start: ReportedStart, ended_boot_s: float) -> dict[str, float]:
    """Return the seconds of each owner: as the report itself says, or from spans and stages."""
    said = start.said.get("seconds_by_owner")
    if isinstance(said, dict) and said:
        found = {name: finite(said.get(name)) or 0.0 for name in OWNERS}
    else:
        spans = [span for span in start.spans if not span.beside]
        stages = {k: each for k, each in _stages(start).items() if k not in ("ready", "failed")}
        found = {**dict.fromkeys(OWNERS, 0.0), **seconds_by_owner(spans, stages, ended_boot_s)}
    return {name: max(0.0, took) for name, took in found.items()}


def _stages(start: ReportedStart) -> dict[str, float]:
    """Return the seconds of each stage, from a state file or a report."""
    said = start.said.get("stage_seconds")
    if isinstance(said, dict):
        pairs = list(said.items())
    else:
        stages = [each for each in list_of(start.said.get("stages")) if isinstance(each, dict)]
        pairs = [(each.get("stage"), each.get("seconds")) for each in stages]
    found: dict[str, float] = {}
    for name, seconds in pairs:
        took = finite(seconds)
        if took is not None:
            key = text_of(name).lower()
            found[key] = found.get(key, 0.0) + took
    return found


def _bar(first: float, share: float, kind: str) -> str:
    """Return a bar from `first` on, both as shares of the whole."""
    begin = min(max(first, 0.0), 1.0)
    width = min(max(share, 0.0), 1.0 - begin)
    return (
        '<svg viewBox="0 0 1000 14" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="{kind}" x="{begin * 1000:.1f}" y="2" width="{max(width * 1000, 1):.1f}" '
        'height="10"/></svg>'
    )


# Calls ------------------------------------------------------------------------------------------


def _calls(start: ReportedStart) -> Iterator[str]:
    """Yield each kind of call with its share of traffic, its level, and whether it is compiled."""
    yield "<h3>Coverage</h3>"
    entries = [each for each in list_of(start.said.get("entries")) if isinstance(each, dict)]
    eager = [each for each in list_of(start.said.get("eager_calls")) if isinstance(each, dict)]
    if start.learned:
        yield f"<p>{_show(start.learned)}</p>"
    if not entries and not eager:
        kinds = ", ".join(f"{n} at level {k}" for k, n in start.levels.items() if n)
        known = f"{_show(kinds)}. " if kinds else ""
        has_list = "entries" in start.said  # a state file has none
        why = (
            "No call of compiled code is known."
            if has_list
            else ("A state file has no list of calls: add --address auto while the replica runs.")
        )
        yield f"<p class='dim'>{known}{why}</p>"
        return
    total = sum(_whole(each.get("calls")) for each in (*entries, *eager))
    by_callable: dict[str, list[tuple[str, ...]]] = {}
    padding = _padding([*entries, *eager])
    for each in entries:
        level = _whole(each.get("level"))
        why = text_of(each.get("reason"))
        kind = f'<span class="good">compiled</span>, level {level}'
        by_callable.setdefault(text_of(each.get("callable")), []).append(
            _call_row(each, total, kind, why)
        )
    for each in eager:
        why = text_of(each.get("why")) or text_of(each.get("reason"))
        kind = f'<span class="bad">eager</span>, {_show(text_of(each.get("reason")))}'
        by_callable.setdefault(text_of(each.get("callable")), []).append(
            _call_row(each, total, kind, why)
        )
    for name, rows in by_callable.items():
        is_open = " open" if len(rows) <= OPEN_ROWS else ""
        kinds = f"{count(len(rows), 'kind')} of calls"
        yield f"<details{is_open}><summary><code>{_show(name)}</code>, {kinds}</summary>"
        yield from _table(("call", "runs", "calls ", "share ", "why not higher"), rows)
        yield "</details>"
        yield from (f"<p>{_show(line)}</p>" for line in padding.get(name, ()))


def _padding(calls: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return what padding to few sizes would add, by callable, for axes with many sizes."""
    counts: dict[tuple[str, int, int], Counter[int]] = {}
    for each in calls:
        name, called = text_of(each.get("callable")), _whole(each.get("calls"))
        for tensor, sizes in enumerate(SIZES.findall(text_of(each.get("call")))):
            for axis, size in enumerate(sizes.split(",")):
                if called:
                    counts.setdefault((name, tensor, axis), Counter())[int(size)] += called
    found: dict[str, list[str]] = {}
    for (name, tensor, axis), by_size in counts.items():
        if len(by_size) > BUCKETS:
            from serve_warm.learn.buckets import VaryingAxis  # imports torch

            varying = VaryingAxis(callable=name, tensor=tensor, axis=axis, counts=by_size)
            found.setdefault(name, []).append(varying.describe(BUCKETS))
    return found


SIZES = re.compile(r"\w+\[(\d{1,9}(?:, \d{1,9})*)\]")
"""The sizes of a tensor in the description of a call."""

BUCKETS = 4
"""Number of sizes to pad to, as in `serve-warm plan`."""


def _call_row(each: Mapping[str, Any], total: int, kind: str, why: str) -> tuple[str, ...]:
    calls = _whole(each.get("calls"))
    share = f"{calls / total:.1%}" if total else ""
    call = f"<code>{_show(text_of(each.get('call')))}</code>"
    return call, kind, f"{calls:,}", share, _show(why)


def _whole(value: Any) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 0 <= value < 1 << 62 else 0


def _narrow(said: Mapping[str, Any]) -> Iterator[str]:
    """Yield the axes on which another size would compile, and the inputs that were replayed."""
    for name, head in (
        ("narrow", "Narrow: other sizes or branches would compile"),
        ("unvaried", "Not varied, so not known"),
    ):
        found = [text_of(each) for each in list_of(said.get(name)) if text_of(each)]
        if found:
            yield f"<h3>{head}</h3><ul>"
            yield from (f"<li><code>{_show(each)}</code></li>" for each in found)
            yield "</ul>"
    inputs = [each for each in list_of(said.get("inputs")) if isinstance(each, dict)]
    if inputs:
        is_open = " open" if len(inputs) <= OPEN_ROWS else ""
        yield f"<h3>Inputs</h3><details{is_open}><summary>{len(inputs)} inputs</summary>"
        rows = [
            (
                f"<code>{_show(text_of(each.get('name')))}</code>",
                "<span class='good'>proven</span>"
                if each.get("proven") is True
                else "<span class='bad'>not proven</span>",
                _seconds(finite(each.get("first_s")) or 0.0),
                _seconds(finite(each.get("steady_s")) or 0.0),
                _show(text_of(each.get("note"))),
            )
            for each in inputs
        ]
        yield from _table(("input", "proof", "first s ", "second s ", "note"), rows)
        yield "</details>"


# Events -----------------------------------------------------------------------------------------


def _events(start: ReportedStart) -> Iterator[str]:
    """Yield compiles and other events, and what to paste so that they do not happen again."""
    events = [each for each in list_of(start.said.get("events")) if isinstance(each, dict)]
    eager = [each for each in list_of(start.said.get("eager_calls")) if isinstance(each, dict)]
    pasted = [text_of(each.get("declare")) for each in eager if text_of(each.get("declare"))]
    if events:
        yield "<h3>Events</h3>"
        rows = [
            (
                _show(text_of(each.get("kind"))),
                f"<code>{_show(text_of(each.get('function')))}</code>",
                f"<code>{_show(text_of(each.get('signature')))}</code>",
                _show(text_of(each.get("reason"))),
                _seconds(finite(each.get("seconds")) or 0.0),
            )
            for each in events
        ]
        yield from _table(("event", "function", "call", "reason", "seconds "), rows)
    elif text_of(start.said.get("event")):
        yield f"<h3>Last event</h3><pre>{_lines(text_of(start.said['event']))}</pre>"
    if pasted:
        yield "<h3>Inputs to declare</h3>"
        yield from (f"<pre>{_lines(each)}</pre>" for each in dict.fromkeys(pasted))
    if start.warnings:
        yield "<h3>Warnings</h3>"
        yield from (f"<pre>{_lines(each)}</pre>" for each in start.warnings)
