# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve-warm metrics`: every metric, under the names that the endpoints really have."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from benchmarks import figures
from serve_warm import node
from serve_warm.cli import serve_warm
from serve_warm.errors import REFUSAL_REASONS
from serve_warm.metrics import METRICS


def run(*options: str) -> str:
    ended = CliRunner().invoke(serve_warm, ["metrics", *options])
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_the_documents_tables_are_its_output():
    """Both tables of the reference equal the output, with only a heading between them."""
    tables = [figures.section(figures.METRICS, name)[1] for name in ("metrics", "node metrics")]

    out = run("--markdown")

    rest = out
    for table in tables:
        before, found, rest = rest.partition(table)
        assert found
        assert before.strip().endswith(":")
        assert "|" not in before
    assert rest == "\n"


def test_json_has_each_metric_once():
    """Each metric has its name at each endpoint, all labels, and the unit in its name."""
    rows = {row["node"]: row for row in json.loads(run("--json"))}

    assert len(rows) == len(METRICS) + len(node.NODE_METRICS)
    assert rows["serve_warm_stage_seconds"] == {
        "ray": "ray_serve_warm_stage_seconds",
        "node": "serve_warm_stage_seconds",
        "type": "gauge",
        "labels": ["application", "deployment", "replica", "stage"],
        "unit": "seconds",
        "meaning": "Wall seconds that this start spent in each stage.",
    }
    assert rows["serve_warm_compiles_after_ready_total"]["type"] == "counter"
    assert rows["serve_warm_starts_total"]["ray"] == ""
    assert rows["serve_warm_starts_total"]["labels"] == ["application", "deployment", "outcome"]
    assert rows["serve_warm_start_duration_seconds"]["type"] == "histogram"
    assert rows["serve_warm_ready_timestamp_seconds"]["unit"] == "seconds since the epoch"


@pytest.mark.parametrize("options", [[], ["--markdown"], ["--json"]])
def test_each_form_names_every_metric(options: list[str]):
    """The names are the exported names at both endpoints."""
    words = set(run(*options).replace("`", " ").replace('"', " ").replace(",", " ").split())

    for metric in METRICS:
        name = metric.name + ("_total" if metric.kind == "counter" else "")
        assert {name, f"ray_{name}"} <= words
    assert {
        n + ("_total" if k[0] == "counter" else "") for n, k in node.NODE_METRICS.items()
    } <= words


def test_every_reason_of_a_refusal_is_documented():
    """The table of reasons contains each reason once, and no other reason."""
    page = figures.MESSAGES.read_text().partition("## Reasons for a refusal\n")[2]
    rows = [line.split("|")[1] for line in page.partition("\n## ")[0].splitlines() if "| `" in line]

    reasons = [reason for row in rows for reason in re.findall(r"`(\w+)`", row)]

    assert sorted(reasons) == sorted(REFUSAL_REASONS)
