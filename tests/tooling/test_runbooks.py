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


def test_the_page_names_the_critical_alerts() -> None:
    """All others are warnings, as the paragraph says."""
    [urgency] = re.findall(r"^\*\*Urgency\.\*\*.*?\n\n", TEXT, re.DOTALL | re.MULTILINE)
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in rules.ALERTS}

    critical = {name for name, severity in severities.items() if severity == "critical"}
    assert set(re.findall(r"\[(\w+)\]\(#\w+\)", urgency)) == critical
    assert set(severities.values()) == {"critical", "warning"}


@pytest.mark.parametrize("name", ALERTS)
def test_a_runbook_says_what_is_needed_at_night(name: str) -> None:
    """It has the meaning, a command or a query, actions, and when to silence."""
    section = re.split(r"^## ", TEXT.partition(f"## {name}\n")[2], flags=re.MULTILINE)[0]

    parts = re.findall(r"^\*\*(.+?)\*\*", section, re.MULTILINE)
    assert parts == ["Meaning.", "Look.", "Do.", "Silence."]
    assert re.search("^```(console|promql)$", section, re.MULTILINE)


def test_its_expressions_are_promql_of_what_is_exported(tmp_path: Path) -> None:
    """Each line parses, and reads only names that the sinks, the records or Ray have."""
    lines = blocks("promql")
    file = tmp_path / "runbooks.yaml"
    found = [{"record": f"line:{number}", "expr": line} for number, line in enumerate(lines)]
    file.write_text(yaml.safe_dump({"groups": [{"name": "lines", "rules": found}]}))
    command = require("promtool", "apt-get install prometheus (.ci/install-components)")

    ended = run_to_end([command, "check", "rules", str(file)])

    assert len(lines) > 10
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert set().union(*map(names, lines)) - known() == set()
