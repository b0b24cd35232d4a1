# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""There is a runbook for each alert, and the queries in the runbooks work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from boards import known, names
from components import require
from helm.observability import rules
from processes import run_to_end

TEXT = (Path(__file__).parents[2] / "docs" / "runbooks.md").read_text()
ALERTS = [rule["alert"] for rule in rules.ALERTS]


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    return [line for block in found for line in block.splitlines()]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    """test_rules has the anchors of the alerts."""
    assert re.findall(r"^## (ServeWarm\w+)$", TEXT, re.MULTILINE) == ALERTS


def test_the_table_has_the_severity_and_a_metric_of_each_alert() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(#\w+\) \| (\w+) \| `(\w+)` \|$", TEXT, re.MULTILINE)
    recorded = {rule["record"]: rule["expr"] for rule in rules.RECORDS}

    assert [(name, severity) for name, severity, _ in rows] == [
        (rule["alert"], rule["labels"]["severity"]) for rule in rules.ALERTS
    ]
    for (_, _, metric), rule in zip(rows, rules.ALERTS, strict=True):
        assert re.search(rf"\b{metric}\b", _written_out(rule["expr"], recorded))


def _written_out(expression: str, recorded: dict[str, str]) -> str:
    """Return an expression together with those of all recorded series that it reads."""
    below = [expr for name, expr in recorded.items() if name in expression]
    return "\n".join([expression, *(_written_out(expr, recorded) for expr in below)])


@pytest.mark.parametrize("name", ALERTS)
def test_a_runbook_says_what_is_needed_at_night(name: str) -> None:
    """It has the meaning, the effect on users, queries, actions, and when to silence."""
    section = re.split(r"^## ", TEXT.partition(f"## {name}\n")[2], flags=re.MULTILINE)[0]

    parts = re.findall(r"^\*\*(.+?)\*\*", section, re.MULTILINE)
    labels = ("Meaning.", "What users see.", "Where to look.", "What to do.", "When to silence.")
    assert tuple(parts) == labels
    assert "```promql" in section


def test_its_expressions_are_promql_of_what_is_exported(tmp_path: Path) -> None:
    """Each line parses, and reads only names that the sinks, the records or Ray have."""
    lines = blocks("promql")
    file = tmp_path / "runbooks.yaml"
    found = [{"record": f"line:{number}", "expr": line} for number, line in enumerate(lines)]
    file.write_text(yaml.safe_dump({"groups": [{"name": "lines", "rules": found}]}))
    command = require("promtool", "apt-get install prometheus (.ci/install-components)")

    ended = run_to_end([command, "check", "rules", str(file)])

    assert len(lines) >= len(ALERTS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert set().union(*map(names, lines)) - known() == set()
