# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Output of the commands: lines for people, JSON for programs.

Anyone could have written an untrusted statement. So use only `show_line` or a table of
this module to show texts from untrusted statements.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from serve_warm.cli import NO
from serve_warm.errors import ArtifactRefused

COUNTERS = re.compile(r" pass \d+(, \d+/\d+ inputs)?")
"""Pattern that matches the counters in a text about a start, such as `pass 2, 3/6 inputs`."""

ROUNDS = re.compile(r"(?<! of) \d+(/\d+)?$")
"""Pattern that matches the counter at the end of a progress line of `bench`, but not `3 of 6` or
the port of an address."""

state_dir_option = click.option(
    "--state-dir",
    metavar="DIR",
    default="",
    help="State directory of the replicas on this node. Default: the directory that replicas use.",
)


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step on stderr. The function can be called often.

    The function writes no line if only a counter changed, so a terminal and a log show every stage
    but not every input.
    """
    start = time.monotonic()
    last = ""

    def show(text: str) -> None:
        nonlocal last
        stage = ROUNDS.sub("", COUNTERS.sub("", text))
        if stage != last:
            last = stage
            click.echo(f"[{time.monotonic() - start:6.1f} s] {stage}", err=True)

    yield show


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    indent: int = 0,
    of: Literal["words", "numbers"] = "words",
) -> None:
    """Print a table. Numbers, in all columns but the first one, are aligned on the right."""
    cells = [header, *([show_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *others in cells:
        line = [first.ljust(widths[0])]
        for cell, width in zip(others, widths[1:], strict=True):
            line.append(cell.rjust(width) if of == "numbers" else cell.ljust(width))
        click.echo((" " * indent + "   ".join(line)).rstrip())


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


TORCH_COMPILE = (
    "level 1     all calls: the app compiles with torch.compile, and only serve_warm.compile makes "
    "entries of levels 2 and 3"
)
"""What `levels` does not say about an app whose calls it does not know."""


def distances(entries: Any) -> list[str]:
    """Return how far the entries were from full precision at the build, relative to eager.

    `entries` comes from a manifest. The result is empty if another release wrote the data.

    >>> made = {"callable": "Net", "call": "(t0)", "rmse_ratio": 0.71, "max_ratio": 1.04}
    >>> distances([made])
    ["eager       errors against full precision are at most 0.71 (RMSE) and 1.04 (largest) times eager's, 1 kind of calls"]
    >>> distances([{"callable": "Net", "call": "(t0)", "eager_operators": ["my::kernel"]}])
    ['eager       no full precision, so not judged: my::kernel: Net(t0)']
    """  # noqa: E501 - the line
    known = [e for e in entries if isinstance(e, dict)] if isinstance(entries, list | tuple) else []
    lines = []
    if judged := [e for e in known if "rmse_ratio" in e and "max_ratio" in e]:
        rmse, largest = (max(e[name] for e in judged) for name in ("rmse_ratio", "max_ratio"))
        lines.append(
            f"eager       errors against full precision are at most {rmse:.2f} (RMSE) and "
            f"{largest:.2f} (largest) times eager's, {count(len(judged), 'kind')} of calls"
        )
    for e in known:
        said = []
        if e.get("near_ties"):
            said.append(f"{e['near_ties']} near-ties")
        if e.get("fixed"):
            said.append(
                f"{e.get('error', 0.0):.1e} from eager, within the fixed limit ({e['fixed']})"
            )
        if isinstance(operators := e.get("eager_operators"), (list, tuple)):
            said.append(f"no full precision, so not judged: {', '.join(map(str, operators))}")
        if said:
            lines.append(
                show_line(f"eager       {'; '.join(said)}: {e.get('callable')}{e.get('call')}")
            )
    return lines


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


app_option = click.option(
    "--app", "application", default="", help="Show only this application of Serve."
)
deployments_option = click.option(
    "--deployment",
    "deployments",
    multiple=True,
    metavar="NAME",
    help="Show only this deployment, named [APP#]NAME; repeatable.",
)


if TYPE_CHECKING:
    _PathType = click.ParamType[Path]
else:
    _PathType = click.ParamType  # which is generic from click 8.2 on


class _JsonFile(_PathType):
    """A file that ends in `.json`, or `-`: a name that `--json` takes by mistake stays whole."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if str(value) != "-" and Path(value).suffix != ".json":
            self.fail(
                f"{str(value)!r} does not end in .json: name such a file, or write --json - before "
                "another argument",
                param,
                ctx,
            )
        return Path(value)


json_option = click.option(
    "--json",
    "json_file",
    is_flag=False,
    flag_value="-",
    type=_JsonFile(),
    metavar="[FILE|-]",
    help="Print JSON on stdout, or write it to this .json file.",
)


def data(
    value: Any, json_file: Path, *, write: Callable[[Path, str], object] = Path.write_text
) -> None:
    """Write JSON to a file and print the file's name, or print the JSON if the file is `-`.

    Control characters are escaped. `write` writes the file.
    """
    text = json.dumps(value, indent=2, default=dict)
    if json_file == Path("-"):
        click.echo(text)
        return
    json_file.parent.mkdir(parents=True, exist_ok=True)
    write(json_file, f"{text}\n")
    click.echo(f"wrote {json_file}", err=True)


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


def count(number: int, what: str) -> str:
    """Return a number with its noun, in the plural where it needs one.

    >>> count(1, "replica"), count(2, "replica")
    ('1 replica', '2 replicas')
    """
    return f"{number} {what}{'s' * (number != 1)}"
