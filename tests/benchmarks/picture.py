# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A picture of the starts of a benchmark: stacked bars in an SVG, for light and dark backgrounds.

Each row is a bar. Its length is the time from process start to the proof, and its pieces are the
stages. Each workload has its own scale, in which its longest bar has the full width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any
from xml.sax.saxutils import escape

PIECES = (
    ("imports", "imports", "#8a94a6", ("imports",)),
    ("weights", "weights", "#4f81c7", ("weights",)),
    ("compiler", "compiler import", "#9c6bb3", ("compiler",)),
    ("load", "artifact", "#2f9e8a", ("load",)),
    ("first", "first pass", "#dd7f2a", ("first_pass",)),
    ("later", "quiet pass and proof pass", "#b9a52c", ("quiet", "proof")),
)
"""CSS class, text of the legend, colour, and the stages of each piece of a bar."""

WIDTH, MARGIN, LABELS, VALUES = 960, 20, 170, 70
BAR, STEP, HEADING = 16, 24, 40
CUT = 100
"""Characters of a failure that fit on its line."""

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .ground { fill: #ffffff; }
  .heading { font-weight: 600; font-size: 14px; }
  .label { text-anchor: end; }
  .none { fill: #59636e; font-style: italic; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .ground { fill: #0d1117; }
    .none { fill: #9198a1; }
  }
"""


def svg(found: Mapping[str, Any]) -> str:
    """Return the picture of a document that bench_startup.py writes."""
    lines = []
    y = MARGIN
    lines += legend(y)
    y += STEP
    for workload, group in groupby(found["rows"], key=lambda row: row["workload"]):
        rows = list(group)
        y += HEADING
        title = escape(found["titles"][workload])
        lines.append(f'<text class="heading" x="{MARGIN}" y="{y - 14}">{title}</text>')
        longest_s = max((row["ready_s"] or 0.0 for row in rows), default=0.0)
        for row in rows:
            lines += bar(row, y, longest_s)
            y += STEP
    machine = found["machine"]
    y += STEP
    words = (
        f"From process start to proof; medians of {found['repeats']} interleaved starts, "
        f"{found['threads']} thread; {machine['cpu']}, torch {machine['torch']}"
    )
    lines.append(f'<text class="none" x="{MARGIN}" y="{y}">{escape(words)}</text>')
    height = y + MARGIN
    colours = "".join(f"  .{name} {{ fill: {colour}; }}\n" for name, _, colour, _ in PIECES)
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>',
            "<title>Seconds from process start to the proof, by system and stage</title>",
            f"<style>{STYLE}{colours}</style>",
            f'<rect class="ground" width="{WIDTH}" height="{height}"/>',
            *lines,
            "</svg>\n",
        ]
    )


def legend(y: int) -> Iterator[str]:
    x = MARGIN
    for name, words, _, _ in PIECES:
        yield f'<rect class="{name}" x="{x}" y="{y}" width="12" height="12" rx="2"/>'
        yield f'<text x="{x + 18}" y="{y + 11}">{words}</text>'
        x += 42 + round(7.2 * len(words))


def bar(row: Mapping[str, Any], y: int, longest_s: float) -> Sequence[str]:
    name = row["system"]
    if row["level"] is not None:
        name += f" level {row['level']}"
    start, text_y = MARGIN + LABELS, y + 12
    lines = [f'<text class="label" x="{start - 8}" y="{text_y}">{escape(name)}</text>']
    if row["ready_s"] is None:
        words = f"failed: {row['failure']}" if row["failure"] else "not measured"
        if len(words) > CUT:
            words = words[:CUT].rstrip() + "…"
        return [*lines, f'<text class="none" x="{start}" y="{text_y}">{escape(words)}</text>']
    stages = row["stages"]
    seconds = [(piece[0], sum(stages[stage] for stage in piece[3])) for piece in PIECES]
    told = ", ".join(
        f"{piece[1]} {took:.2f} s" for piece, (_, took) in zip(PIECES, seconds, strict=True)
    )
    lines.append(f'<g class="bar"><title>{escape(f"{name}: {told}")}</title>')
    per_second = (WIDTH - MARGIN - VALUES - start) / longest_s
    x = float(start)
    for piece, took in seconds:
        width = took * per_second
        # A piece that is too thin to see is not drawn, but the next piece still starts after it.
        if width >= 0.1:
            lines.append(
                f'<rect class="{piece}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"/>'
            )
        x += width
    lines.append("</g>")
    lines.append(f'<text x="{x + 8:.1f}" y="{text_y}">{row["ready_s"]:.1f} s</text>')
    return lines
