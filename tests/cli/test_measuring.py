# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve-warm metrics`: the values that Prometheus would read on a node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from boards import known
from reports import FULL
from serve_warm import cli
from serve_warm._state_file import StateFile
from serve_warm.replica.serve.shown_state import facts_of


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path) -> Iterator[str]:
    """Return the state directory of one replica, whose names need escaping."""
    folder = tmp_path / "state"
    state = StateFile(folder, application="shop", deployment='sh"op\\', replica="a")
    state.write(facts_of(FULL))
    yield str(folder)
    state.close()


def run(*options: str) -> Any:
    return CliRunner().invoke(cli.serve_warm, ["metrics", *options])


def test_values_are_shown_as_prometheus_reads_them(folder):
    shown = run("--state-dir", folder)
    assert shown.exit_code == 0
    assert "serve_warm_node_ready 1.0\n" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "serve_warm_starts" not in shown.stdout
    families = text_string_to_metric_families(shown.stdout)
    read = {sample.name: sample for family in families for sample in family.samples}
    assert len(read) > 40
    assert read["serve_warm_node_ready"].value == 1
    assert {each.labels.get("deployment", 'sh"op\\') for each in read.values()} == {'sh"op\\'}
    some = run("inputs", "--state-dir", folder, "--json", "-")
    rows = json.loads(some.stdout)
    assert {"inputs" in each["name"] for each in rows} == {True}
    assert rows[0]["labels"]["application"] == "shop"


def test_without_replicas_the_answer_is_no(tmp_path):
    shown = run("--state-dir", str(tmp_path))
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "no replica in" in shown.stderr


def test_the_catalogue_has_each_metric():
    """The same that the dashboard may use."""
    rows = json.loads(run("--catalogue", "--json", "-").stdout)
    names = {row["name"].removesuffix("_total") for row in rows}
    assert len(rows) == len(names)
    assert {re.sub("_(total|bucket)$", "", name) for name in known()} >= names
    assert all(row["help"] for row in rows)
    assert run("nosuch", "--catalogue").exit_code == 2
    assert run("node_ready", "--catalogue").stdout.startswith("serve_warm_node_ready (gauge)\n")
