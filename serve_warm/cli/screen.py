# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How the commands show things: a spinner with a clock in a terminal, lines in a log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

stderr = Console(stderr=True, highlight=False)
stdout = Console(highlight=False)


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function to be told, as often as one likes, what is going on.

    In a terminal one line is kept up to date; elsewhere a line is written when the words before
    the first digit change, so that a log shows stages and not every input.
    """
    start = time.monotonic()
    last = ""

    def elapsed() -> str:
        return f"{time.monotonic() - start:6.1f} s"

    if not stderr.is_terminal:

        def line(text: str) -> None:
            nonlocal last
            stage = text.rstrip("0123456789/ ").partition(" pass ")[0]
            if stage != last:
                last = stage
                stderr.print(f"[{elapsed()}] {stage}", markup=False)

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


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table whose first column is text and whose others are numbers."""
    drawn = Table(box=None, pad_edge=False)
    for index, name in enumerate(header):
        drawn.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        drawn.add_row(*row)
    return drawn


def size(count: int) -> str:
    """Return bytes as a person writes them.

    >>> size(206_366)
    '206.4 kB'
    """
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
