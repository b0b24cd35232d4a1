# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The page of `serve-warm report --html`, looked at as text and in Chromium."""

from __future__ import annotations

import dataclasses
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from components import require
from processes import run_to_end
from reports import FULL
from serve_warm import cli
from serve_warm._state_file import StateFile
from serve_warm.cli.page import make_page
from serve_warm.cli.reporting import start_of
from serve_warm.report import EagerCalls, EagerReason, EntryUse, Report

EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


class Found(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(*reports: Report) -> str:
    starts = []
    for each in reports:
        said = each.to_json()
        starts.append(start_of((said["application"], said["deployment"], said["replica"]), said))
    return make_page(starts)


def with_calls(count: int) -> Report:
    """Return a report with this many kinds of calls, a part of them eager."""
    entries = tuple(
        EntryUse(callable=f"Model{n % 4}", call=f"x=float32[{n}, 8]", level=1 + n % 3, calls=n)
        for n in range(count)
    )
    eager = EagerCalls(
        callable="Model0",
        call="x=float32[999, 8]",
        reason=EagerReason.UNFORESEEN,
        calls=count,
        declare='Input(target="score", args=(...,))',
    )
    return dataclasses.replace(FULL, entries=entries, eager_calls=(eager,))


def everywhere(text: str) -> Report:
    """Return a report that has this text in each of its fields of text."""

    def change(value: Any) -> Any:
        if isinstance(value, str) and not hasattr(value, "value"):
            return text
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [each.name for each in dataclasses.fields(value)]
            return dataclasses.replace(value, **{n: change(getattr(value, n)) for n in names})
        if isinstance(value, tuple):
            return tuple(map(change, value))
        if isinstance(value, dict):
            return {f"{text}{n}": change(each) for n, each in enumerate(value.values())}
        return value

    changed = change(with_calls(3))
    return dataclasses.replace(changed, replica=text)


STATE = {
    "stage": "READY",
    "spans": [
        ["process", 100.0, 1.5, False],
        ["imports", 101.5, 4.0, False],
        ["__init__", 105.5, 2.0, False],
        ["pending", 107.5, 1.5, False],
        ["replaying", 109.25, 0.25, False],
    ],
    "stage_seconds": {"pending": 1.5, "replaying": 0.25, "ready": 4000.0},
}


def owners_of(said: dict[str, Any]) -> tuple[float, list[float], str]:
    """Return the seconds in the heading, those of the owners, and what is said about them."""
    text = Found(make_page([start_of(("a", "b", "c"), said)])).text
    heading = re.search(r"([\d.]+) s\n", text)
    part = text.partition("Where the seconds went")[2].partition("Timeline")[0]
    told = part.partition("They are")
    assert heading is not None
    return (
        float(heading[1]),
        [float(each) for each in re.findall(r"\d+\.\d\d", told[0])],
        told[2],
    )


def test_each_second_of_a_start_has_an_owner():
    """Those of the owners are those in the heading; the time that a replica serves is none."""
    whole, owners, told = owners_of(STATE)
    assert (whole, told) == (9.5, "")
    assert owners == [1.5, 0.25, 4.0, 2.0, 0.25, 1.5]
    assert math.isclose(sum(owners), whole)


def test_seconds_that_do_not_add_up_are_said_to_be_so():
    """Clocks can be set, and spans of another release can overlap."""
    overlapping = [["process", 100.0, 8.0, False], ["imports", 100.0, 8.0, False]]
    whole, owners, told = owners_of({**STATE, "spans": overlapping})
    assert whole == 8.0
    assert sum(owners) > whole
    assert "but the timeline has 8.00 s" in told
    assert all(each >= 0 for each in owners_of({**STATE, "stage_seconds": {"pending": -5.0}})[1])


def test_coverage_has_each_call_with_its_share():
    found = Found(page_of(with_calls(9)))
    rows = found.text.partition("Coverage")[2]
    assert rows.count("compiled, level") == 9
    assert "unforeseen" in rows
    assert f"{9 / (36 + 9):.1%}" in rows
    assert 'Input(target="score", args=(...,))' in rows
    assert "<details open>" in page_of(with_calls(9))


def test_an_axis_with_many_sizes_says_what_padding_adds():
    """Padding is a waste of a few values, and each size less is one call less to build."""
    sizes = tuple(
        EntryUse(callable="Model", call=f"x=int64[1, {n}], y=float32[]", level=2, calls=10)
        for n in (8, 9, 16, 20, 32)
    )
    text = Found(page_of(dataclasses.replace(FULL, entries=sizes))).text
    said = "Model: axis 1 of tensor 0 has 5 sizes from 8 to 32; padded to 9, 16, 20, 32, it has 1%"
    assert f"{said} more values" in text
    assert "axis 0 of tensor 0" not in text
    assert "more values" not in Found(page_of(dataclasses.replace(FULL, entries=sizes[:4]))).text


def test_many_calls_are_closed_at_first():
    page = page_of(with_calls(400))
    assert "<details open><summary><code>Model" not in page
    assert page.count("compiled</span>") == 400


@pytest.mark.parametrize("text", [EVIL, "\x1b[31m\x00\u202e", "a" * 5000, "", "&lt;b&gt; '\""])
def test_text_of_an_application_is_never_markup(text):
    """The page has the same tags and attributes whatever the texts are, but for repeated ones."""
    plain, found = Found(page_of(everywhere("plain"))), Found(page_of(everywhere(text)))
    assert {*found.tags} <= {*plain.tags}
    assert {name for name, _ in found.attributes} <= {name for name, _ in plain.attributes}
    assert "script" not in found.tags
    assert not any(ord(each) < 32 and each != "\n" for each in found.text)


def test_wrong_types_of_another_release_are_left_out():
    said = FULL.to_json()
    said |= {"entries": [3], "events": [3], "inputs": [3], "eager_calls": [3]}
    said |= {"stages": "x", "fingerprint": [1], "narrow": {"a": 1}, "stage": None}
    said["spans"] = [{"name": "process", "began_boot_s": math.nan, "seconds": 1, "beside": False}]
    found = Found(make_page([start_of(("a", "b", "c"), said)]))
    assert "details" not in found.tags
    assert "Events" not in found.text
    assert "Timeline" not in found.text


def test_differences_between_replicas_are_named():
    one = dataclasses.replace(FULL, fingerprint={"app": {"threads": "1"}})
    two = dataclasses.replace(FULL, replica="two", fingerprint={"app": {"threads": "77"}})
    page = page_of(one, two)
    found = Found(page).text.partition("Differences of environment")[2]
    assert "threads" in found
    assert "77" in found
    assert "two" in found


def test_the_command_writes_one_file(tmp_path):
    """A state file has no list of calls, and the page says how to get it."""
    with_state = StateFile(tmp_path / "state", application="a", deployment="<b>", replica="c")
    with_state.write(
        {"stage": "READY", "levels": {"2": 3}, "spans": [["process", 1.0, 2.0, False]]}
    )
    page = tmp_path / "page.html"
    options = ["report", "--state-dir", str(tmp_path / "state"), "--html", str(page)]
    done = CliRunner().invoke(cli.serve_warm, options)
    assert done.exit_code == 0
    assert f"wrote {page}" in done.stderr
    assert "3 at level 2. A state file has no list of calls" in Found(page.read_text()).text
    assert "a#<b>" in Found(page.read_text()).text


# In a browser ---------------------------------------------------------------------------------


def show(page: str, folder: Path) -> str:
    """Return the document that Chromium makes of a page."""
    chromium = require("chromium", "apt-get install chromium")
    file = folder / "page.html"
    file.write_text(page)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", "--no-first-run", "--disable-quic"]
    flags += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=2000"]
    done = run_to_end([chromium, *flags, "--dump-dom", file.as_uri()], timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_browser_runs_no_script_of_a_name(tmp_path):
    """The name is shown as text."""
    shown = show(page_of(everywhere(EVIL)), tmp_path)
    assert "<title>serve_warm: 1 start</title>" in shown
    assert "&lt;script&gt;" in shown


@pytest.mark.slow
def test_the_policy_of_the_page_stops_a_script(tmp_path):
    """It would hold even if a text were not escaped; without it, the same script runs."""
    page = page_of(FULL).replace("<body>", f"<body>{EVIL}")
    assert "<title>serve_warm: 1 start</title>" in show(page, tmp_path)
    without = page.replace("Content-Security-Policy", "x")
    assert "<title>owned</title>" in show(without, tmp_path)
