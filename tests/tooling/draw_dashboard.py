# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A picture of the dashboard on the recorded day.

    python tests/tooling/draw_dashboard.py PICTURE [--height PIXELS]

Grafana is not needed. The program sends the queries of the panels to a real Prometheus, and draws
the results with the limits, colors, mappings and positions in the file. Chromium takes the picture.
A folded row is drawn as one line, with the number of its panels.
"""

from __future__ import annotations

import argparse
import html
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support")]

from boards import BOARD, substituted  # noqa: E402
from components import require  # noqa: E402
from prometheus_server import Labels, Prometheus  # noqa: E402
from recorded_day import DAY, END, inlined, with_alerts  # noqa: E402

CELL_X, CELL_Y, GAP = 60, 34, 6
"""Width and height of a grid cell, and the gap between two panels, in pixels."""
STEP_S = 240.0

COLORS = {
    "green": "#73bf69",
    "yellow": "#f2cc0c",
    "blue": "#5794f2",
    "orange": "#ff9830",
    "red": "#f2495c",
    "purple": "#b877d9",
    "text": "#9fa3ad",
    "dark-red": "#c4162a",
    "super-light-blue": "#c0d8ff",
    "light-blue": "#8ab8ff",
    "semi-dark-blue": "#3274d9",
    "light-green": "#96d98d",
    "super-light-green": "#c8f2c2",
    "semi-dark-red": "#e02f44",
}
PALETTE = tuple(COLORS[name] for name in ("green", "yellow", "blue", "orange", "red", "purple"))

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One series of a panel."""

    name: str
    labels: Labels
    points: list[Point]
    """Seconds since the epoch, and value."""


def color(name: str) -> str:
    """Return a color that a browser understands."""
    return COLORS.get(name, name)


def written(value: float, unit: str) -> str:
    """Return a value as text for people, with its unit."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    scales = {
        "s": (
            (604800, "weeks"),
            (86400, "days"),
            (3600, "h"),
            (60, "min"),
            (1, "s"),
            (0.001, "ms"),
        ),
        "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    }
    for size, name in scales.get(unit, ()):
        if abs(value) >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:.4g}" + (f" {unit}" if unit in ("s", "ms") else "")


class Drawn:
    """One panel: its queries, and its appearance in the file."""

    def __init__(self, panel: Mapping[str, Any], lines: Sequence[Line]) -> None:
        self.panel = panel
        self.lines = lines
        self.defaults: dict[str, Any] = panel["fieldConfig"]["defaults"]
        self.unit: str = self.defaults.get("unit", "short")
        self.steps: list[dict[str, Any]] = self.defaults["thresholds"]["steps"]

    def limit_color(self, value: float) -> str:
        """Return the color that the limits give to a value."""
        reached = [s for s in self.steps if s["value"] is None or value >= s["value"]]
        return color(reached[-1]["color"])

    def mapped(self, value: float | None) -> Mapping[str, Any] | None:
        """Return the text and the color that a mapping gives to a value."""
        for each in self.defaults.get("mappings", ()):
            if each["type"] == "special" and value is None:
                return each["options"]["result"]
            if each["type"] == "value" and value is not None:
                found = each["options"].get(f"{value:g}")
                if found:
                    return found
        return None

    def line_color(self, place: int, name: str) -> str:
        """Return the color of a series: from its override, the limits, or the palette."""
        for override in self.panel["fieldConfig"]["overrides"]:
            if override["matcher"]["options"] == name:
                for made in override["properties"]:
                    if made["id"] == "color":
                        return color(made["value"]["fixedColor"])
        if (self.defaults.get("color") or {}).get("mode") == "thresholds" and self.lines[
            place
        ].points:
            return self.limit_color(self.lines[place].points[-1][1])
        return PALETTE[place % len(PALETTE)]

    def body(self, width: int, height: int) -> str:
        """Return the content of the panel as HTML."""
        kinds = {"stat": self._number, "bargauge": self._bars, "table": self._table}
        kinds["state-timeline"] = self._states
        return kinds.get(self.panel["type"], self._chart)(width, height)

    def number_color(self) -> str:
        """Return the color of a number: from its mapping, or from the limit that it has reached."""
        value = self.lines[0].points[-1][1] if self.lines else None
        found = self.mapped(value)
        return color(found["color"]) if found else self.limit_color(value or 0.0)

    def _number(self, _width: int, height: int) -> str:
        value = self.lines[0].points[-1][1] if self.lines else None
        found = self.mapped(value)
        text = found["text"] if found else "No data" if value is None else written(value, self.unit)
        is_filled = self.panel["options"].get("colorMode", "value").startswith("background")
        where = "background" if is_filled else "color"
        style = f"{where}:{self.number_color()};height:{height}px"
        return f"<div class=number style='{style}'>{text}</div>"

    def _bars(self, _width: int, _height: int) -> str:
        largest = max((line.points[-1][1] for line in self.lines), default=0.0) or 1.0
        rows = [
            f"<div class=bar><span>{html.escape(line.name)}</span>"
            f"<i style='width:{45 * line.points[-1][1] / largest:.0f}%;"
            f"background:{self.line_color(at, line.name)}'></i>"
            f"<b>{written(line.points[-1][1], self.unit)}</b></div>"
            for at, line in enumerate(self.lines)
        ]
        return "".join(rows) or self._nothing()

    def _table(self, _width: int, _height: int) -> str:
        hidden = {"Time", "Value"}
        properties: dict[str, dict[str, Any]] = {}
        for override in self.panel["fieldConfig"]["overrides"]:
            made = {each["id"]: each["value"] for each in override["properties"]}
            properties[override["matcher"]["options"]] = made
            if made.get("custom.hidden"):
                hidden.add(override["matcher"]["options"])
        names = sorted({name for line in self.lines for name in line.labels} - hidden)
        if not names:
            return self._nothing()
        by = [each["displayName"] for each in self.panel["options"].get("sortBy") or ()]
        rows = sorted(self.lines, key=lambda line: [line.labels.get(name, "") for name in by])
        cells = "".join(f"<th>{name}</th>" for name in names)
        for line in rows:
            cells += "<tr>"
            for name in names:
                text, style = line.labels.get(name, ""), ""
                for mapping in properties.get(name, {}).get("mappings", ()):
                    found = mapping["options"].get(text)
                    style = f"background:{color(found['color'])};color:#111" if found else ""
                link = "class=link" if "links" in properties.get(name, {}) else ""
                cells += f"<td {link} style='{style}'>{html.escape(text)}</td>"
        return f"<table>{cells}</table>"

    def _states(self, width: int, height: int) -> str:
        if not self.lines:
            return self._nothing()
        begin, end = DAY.start_s, DAY.start_s + 60 * END
        tall = min(26, (height - 20) // len(self.lines))
        drawn = []
        for at, line in enumerate(self.lines):
            name = html.escape(line.name)
            drawn.append(f"<text x=0 y={at * tall + tall * 0.7:.0f}>{name}</text>")
            for second, value in line.points:
                found = self.mapped(value)
                x = 170 + (width - 170) * (second - begin) / (end - begin)
                wide = (width - 170) * STEP_S / (end - begin) + 0.5
                shade = color(found["color"]) if found else "#444"
                drawn.append(
                    f"<rect x={x:.1f} y={at * tall + 2} width={wide:.1f} height={tall - 4} "
                    f"fill='{shade}'/>"
                )
        texts = [
            each["options"] for each in self.defaults.get("mappings", ()) if each["type"] == "value"
        ]
        legend = "".join(
            f"<span><i style='background:{color(found['color'])}'></i>{found['text']}</span>"
            for options in texts
            for found in options.values()
        )
        return f"<svg width={width} height={height - 20}>{''.join(drawn)}</svg><p>{legend}</p>"

    def _chart(self, width: int, height: int) -> str:
        if not self.lines:
            return self._nothing()
        tall = height - 22
        limits = self.steps[1:] if self.defaults["custom"].get("thresholdsStyle") else []
        stacked = (self.defaults["custom"].get("stacking") or {}).get("mode") == "normal"
        points = [value for line in self.lines for _, value in line.points]
        top = max(points, default=0.0) * (1.6 if stacked else 1.15) or 1.0
        top = max([top, *(1.1 * step["value"] for step in limits)])
        begin, end = DAY.start_s, DAY.start_s + 60 * END
        drawn = [f"<text x=0 y=10>{written(top, self.unit)}</text><text x=0 y={tall - 4}>0</text>"]
        for step in limits:
            y, shade = tall - tall * step["value"] / top, color(step["color"])
            drawn.append(
                f"<rect x=60 y=0 width={width} height={y:.1f} fill='{shade}' opacity=0.12 />"
                f"<path d='M60 {y:.1f}H{width}' stroke='{shade}' stroke-dasharray=6 />"
            )
        below: dict[float, float] = {}
        legend = ""
        for at, line in enumerate(self.lines):
            shade = self.line_color(at, line.name)
            path, area, last = "", "", -1e9
            for second, own in line.points:
                under = below.get(second, 0.0) if stacked else 0.0
                below[second] = under + own
                x = 60 + (width - 60) * (second - begin) / (end - begin)
                y, wide = tall - tall * min(under + own, top) / top, STEP_S * width / (end - begin)
                path += f"{'M' if second - last > 2 * STEP_S else 'L'}{x:.1f} {y:.1f}"
                area += f"M{x:.1f} {y:.1f}h{wide:.1f}v{tall * own / top:.1f}h-{wide:.1f}z"
                last = second
            if stacked:
                drawn.append(f"<path d='{area}' fill='{shade}' />")
            else:
                drawn.append(f"<path d='{path}' stroke='{shade}' stroke-width=2 fill=none />")
            legend += f"<span><i style='background:{shade}'></i>{html.escape(line.name)}</span>"
        return f"<svg width={width} height={tall}>{''.join(drawn)}</svg><p>{legend}</p>"

    def _nothing(self) -> str:
        text = self.defaults.get("noValue") or "No data"
        return f"<div class=nothing>{html.escape(text)}</div>"


def ask_panel(asked: Prometheus, panel: Mapping[str, Any], **chosen: str) -> Iterator[Line]:
    """Yield the series of a panel's expressions, with the names from its legends.

    `chosen` has values for some of the dashboard's variables. The others select all values.
    """
    for target in panel["targets"]:
        expression = inlined(substituted(target["expr"], **chosen))
        at_once = bool(target.get("instant"))
        begin_s = DAY.start_s + 60 * END if at_once else DAY.start_s
        for labels, points in asked.ask_range(
            expression, begin_s, DAY.start_s + 60 * END, step_s=STEP_S
        ):
            legend = target.get("legendFormat") or ""
            name = re.sub(r"{{\s*(\w+)\s*}}", lambda m, of=labels: of.get(m[1], ""), legend)
            yield Line(name=name or " ".join(labels.values()), labels=labels, points=points)


STYLE = """
body { background: #111217; color: #ccccdc; font: 12px sans-serif; margin: 0; position: relative }
section { position: absolute; background: #181b1f; border: 1px solid #2c3235; overflow: hidden }
h2 { font: bold 12px sans-serif; margin: 4px 8px; white-space: nowrap }
h1 { position: absolute; font: bold 14px sans-serif; margin: 8px 4px }
.number { display: flex; align-items: center; justify-content: center; color: #111;
  font: bold 26px sans-serif }
.nothing { color: #9fa3ad; text-align: center; padding: 24px }
p { margin: 0 8px; white-space: nowrap; font-size: 10px } p span { margin-right: 10px }
p i { display: inline-block; width: 10px; height: 10px; margin-right: 3px }
.bar { display: flex; align-items: center; margin: 6px 8px } .bar span { width: 40% }
.bar i { height: 14px; display: inline-block; margin-right: 6px }
table { width: 100%; border-collapse: collapse; font-size: 11px }
td, th { text-align: left; padding: 3px 8px }
td.link { color: #6e9fff; text-decoration: underline }
text { fill: #9fa3ad; font: 10px sans-serif }
svg { margin-left: 8px; display: block }
"""


def page(board: Mapping[str, Any], asked: Prometheus) -> tuple[str, int]:
    """Return the dashboard as HTML, and its height in pixels."""
    parts, bottom = [], 0
    for panel in board["panels"]:
        place = panel["gridPos"]
        x, y = place["x"] * CELL_X, place["y"] * CELL_Y
        if panel["type"] == "row":
            folded = f" ({len(panel['panels'])} panels, folded)" if panel.get("panels") else ""
            title = html.escape(panel["title"])
            parts.append(f"<h1 style='left:{x}px;top:{y}px'>{title}{folded}</h1>")
        else:
            width, height = place["w"] * CELL_X - GAP, place["h"] * CELL_Y - GAP
            inside = Drawn(panel, list(ask_panel(asked, panel))).body(width - 16, height - 30)
            parts.append(
                f"<section style='left:{x}px;top:{y}px;width:{width}px;height:{height}px'>"
                f"<h2>{html.escape(panel['title'])}</h2>{inside}</section>"
            )
        bottom = max(bottom, y + place["h"] * CELL_Y)
    return f"<meta charset=utf-8><style>{STYLE}</style><body>{''.join(parts)}", bottom


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path, help="the PNG to write")
    parser.add_argument("--height", type=int, default=0, help="in pixels; default: the whole board")
    arguments = parser.parse_args()
    chromium = require("chromium", "apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        with with_alerts(Path(folder)) as asked:
            text, height = page(BOARD, asked)
        (Path(folder) / "board.html").write_text(text)
        size = f"--window-size={24 * CELL_X},{arguments.height or height}"
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ]
        command += [
            f"--user-data-dir={folder}/profile",
            f"--screenshot={arguments.picture.resolve()}",
        ]
        subprocess.run([*command, size, f"{folder}/board.html"], check=True, capture_output=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
