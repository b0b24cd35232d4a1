# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Output of the commands: bars and a clock in a terminal, lines in a log, JSON for programs.

Anyone could have written an untrusted statement. So use only `show_line` or a table of
this module to show texts from untrusted statements.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from serve_warm.cli import NO

if TYPE_CHECKING:
    from serve_warm.errors import ArtifactRefused

COUNTERS = re.compile(r" pass \d+(, \d+/\d+ inputs)?")
"""Pattern that matches the counters in a text about a start, such as `pass 2, 3/6 inputs`."""

ROUNDS = re.compile(r"(?<! of) \d+(/\d+)?$")
"""Pattern that matches the counter at the end of a progress line of `bench`, but not `3 of 6` or
the port of an address."""

stderr = Console(stderr=True, highlight=False)
stdout = Console(highlight=False)


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step. The function can be called often.

    In a terminal the function updates one line. Elsewhere it writes no line if only a counter
    changed, so that a log shows every stage but not every input.
    """
    start = time.monotonic()
    last = ""

    def elapsed() -> str:
        return f"{time.monotonic() - start:6.1f} s"

    if not stderr.is_terminal:

        def line(text: str) -> None:
            nonlocal last
            stage = ROUNDS.sub("", COUNTERS.sub("", text))
            if stage != last:
                last = stage
                stderr.print(f"[{elapsed()}] {stage}", markup=False, soft_wrap=True)

        yield line
        return

    with stderr.status("starting", spinner="dots") as status:

        def update(text: str) -> None:
            nonlocal last
            stage = text.partition(":")[0]
            if last and stage != last:
                stderr.print(f"[green]✓[/] {last} [dim]({elapsed()})[/]")
            last = stage
            status.update(f"{text} [dim]{elapsed()}[/]")

        yield update
    if last:
        stderr.print(f"[green]✓[/] {last} [dim]({elapsed()})[/]")


@contextlib.contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows the progress of transfers.

    The function takes the name of a transfer, the bytes done and the total bytes. In a terminal,
    the current transfer has a bar. Each completed transfer becomes a line, even outside a terminal.
    """
    shown_bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=stderr,
        disable=not stderr.is_terminal,
    )
    with shown_bars:
        moving = _Moving(shown_bars)
        yield moving
        moving.end()


ONE_REQUEST_BYTES = 32 << 20
"""Objects up to this size are transferred in one stream, so reports of their progress arrive in
order."""


class _Moving:
    """Shows one progress bar at a time, and replaces the bar when another transfer begins."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._task: TaskID | None = None
        self._what = ""
        self._done = self._total = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        with self._lock:
            if self._is_another(what, done, total):
                self._line()
                self._task = self._bars.add_task(what, total=total)
                self._what, self._done, self._total = what, 0, total
            # Several threads report about one object, and their reports may arrive out of order.
            self._done = max(self._done, done)
            if self._task is not None:
                self._bars.update(self._task, completed=self._done)
            if self._done >= total:
                self._line()

    def end(self) -> None:
        """Write the line of the current transfer."""
        with self._lock:
            self._line()

    def _is_another(self, what: str, done: int, total: int) -> bool:
        if (what, total) != (self._what, self._total) or done * 2 < self._done:
            return True
        return self._task is None and total <= ONE_REQUEST_BYTES

    def _line(self) -> None:
        if self._task is None:
            return
        self._bars.remove_task(self._task)
        self._task = None
        elapsed = f"{time.monotonic() - self._start:6.1f} s"
        text = f"{self._what}: {size(self._total)}"
        if stderr.is_terminal:
            stderr.print(f"[green]✓[/] {escape(text)} [dim]({elapsed})[/]")
        else:
            stderr.print(f"[{elapsed}] {text}", markup=False)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table with text in the first column and numbers in the other columns."""
    drawn = Table(box=None, pad_edge=False)
    for index, name in enumerate(header):
        drawn.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        drawn.add_row(*row)
    return drawn


def words(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: int = 0) -> None:
    """Print a table of words. In a terminal, long cells are wrapped to fit the window."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for name in header:
        drawn.add_column(name, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(show_line(cell)) for cell in row))
    width = None if stdout.is_terminal else _LOG_WIDTH
    console = Console(highlight=False, width=width)
    with console.capture() as captured:
        console.print(Padding(drawn, (0, 0, 0, indent), expand=False))
    # A table fills its last column with spaces.
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


_LOG_WIDTH = 10_000


def show_line(text: str) -> str:
    r"""Return one line of text, escaped if it contains unprintable characters.

    >>> print(show_line("CPython 3.11"), show_line("\x1b[2Ktrusted"))
    CPython 3.11 '\x1b[2Ktrusted'
    """
    return text if text.isprintable() else repr(text)


def levels(entries: Any) -> list[str]:
    """Return the number of kinds of calls at levels 3 and 2, and the reasons for lower levels.

    `entries` comes from a report or a manifest. The result is empty if another release wrote the
    data in a different form.

    >>> levels([{"callable": "Net", "call": "(t0)", "level": 1, "reason": "a graph break"}])
    ['level 2     0 of 1 kinds of calls', 'level 1     Net(t0): a graph break']
    """
    kinds = [e for e in entries if isinstance(e, dict)] if isinstance(entries, list) else []
    libraries = sum(entry.get("level") == 3 for entry in kinds)
    rest = [entry for entry in kinds if entry.get("level") in (1, 2) and entry.get("reason")]
    ahead = sum(entry.get("level") == 2 for entry in kinds)
    lines = [f"level 3     {libraries} of {len(kinds)} kinds of calls"] if libraries else []
    if ahead or not libraries:
        lines.append(f"level 2     {ahead} of {len(kinds)} kinds of calls")
    lines += [
        show_line(f"level {e['level']}     {e.get('callable')}{e.get('call')}: {e.get('reason')}")
        for e in rest
    ]
    return lines if kinds else []


def refusals(refused: Sequence[ArtifactRefused]) -> list[dict[str, str]]:
    """Return the skipped artifacts, for JSON."""
    return [{"reason": each.reason, "message": each.message} for each in refused]


def end_with_refusals(refused: Sequence[ArtifactRefused]) -> None:
    """Print the skipped artifacts with reasons, and end with exit code 3 if any were skipped."""
    for each in refused:
        click.echo(f"skipped ({each.reason}): {show_line(each.message)}", err=True)
    for hint in dict.fromkeys(each.hint for each in refused if each.hint):
        click.echo("hint: " + "\n".join(map(show_line, hint.splitlines())), err=True)
    if refused:
        click.get_current_context().exit(NO)


def data(value: Any) -> None:
    """Print JSON on stdout. Control characters are escaped."""
    click.echo(json.dumps(value, indent=2))


def write_json(value: Any, path: Path) -> None:
    """Write JSON to a file and print the file's name, or print the JSON if `path` is `-`."""
    if path == Path("-"):
        data(value)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")
    click.echo(f"wrote {path}", err=True)


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Hide log lines below the level ERROR, for commands whose output shows the same facts."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def size(count: int) -> str:
    """Return a number of bytes in a readable unit.

    >>> size(206_366)
    '206.4 kB'
    """
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
