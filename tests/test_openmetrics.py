# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The two formats of a node server's `/metrics`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from reports import FULL
from serve_warm._state_file import StateFile
from serve_warm.node import Settings
from serve_warm.node_server.server import Server
from serve_warm.report import Report
from state_files import clock_fixture, directory_fixture, replica_fixture  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from prometheus_client.core import Metric

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"

NEW = "application/openmetrics-text"
OLD = "text/plain;version=0.0.4"
PROMETHEUS_2 = f"{NEW};version=1.0.0,{NEW};version=0.0.1;q=0.75,{OLD};q=0.5,*/*;q=0.1"
PROMETHEUS_3 = (
    f"{NEW};version=1.0.0;escaping=allow-utf-8;q=0.6,{NEW};version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.fixture(name="page")
def page_fixture(directory: Path) -> Callable[..., tuple[str, str]]:
    """Return content type and body for an Accept header."""
    server = Server(Settings(str(directory), urls=()), host="127.0.0.1", port=0)
    server._http.server_close()

    def page(accept: str = "") -> tuple[str, str]:
        kind, body = server.metrics(accept)
        return kind, body.decode()

    return page


def samples(families: Iterable[Metric]) -> dict[str, float]:
    """Return value by name and labels, but for what passes between two scrapes."""
    return {
        f"{each.name}{json.dumps(each.labels, sort_keys=True)}": float(each.value)
        for family in families
        for each in family.samples
        if not each.name.endswith(("_age_seconds", "_elapsed_seconds"))
    }


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        *[(accept, TEXT) for accept in ("", "*/*", "text/html,application/xml;q=0.9,*/*;q=0.8")],
        *[(accept, OPENMETRICS) for accept in (NEW, PROMETHEUS_2, PROMETHEUS_3)],
        # A client does not choose the text of the answer's header.
        *[(f"{NEW}; version={version}", OPENMETRICS) for version in ("1.0.17", "x", "9.9")],
    ],
)
def test_openmetrics_is_for_those_who_ask(page, accept: str, kind: str) -> None:
    """Prometheus asks for it, and a browser does not."""
    found, body = page(accept)
    assert found == kind
    assert body.endswith("\n# EOF\n") == (kind == OPENMETRICS)


def test_both_formats_have_the_same_samples(page, replica: Callable[..., StateFile]) -> None:
    """A client loses no figure by the format that it asks for, and no name changes."""
    replica(Report())
    page()
    replica(FULL)
    old = samples(plain(page()[1]))
    new = samples(openmetrics(page(NEW)[1]))
    assert new == old
    assert any("_bucket" in name for name in new)
    assert any("_total" in name for name in new)
    assert not any("duration_seconds_created" in name for name in new)


GAUGE = {"name": "serve_warm_odd", "kind": "gauge", "help": "Odd.", "labels": []}


@pytest.mark.parametrize("suffix", ["_created", "_total"])
@pytest.mark.parametrize("first", [True, False])
def test_names_of_replicas_do_not_clash(
    page, replica: Callable[..., StateFile], suffix: str, *, first: bool
) -> None:
    """OpenMetrics keeps names for a counter that no other family may have."""
    counter = {**GAUGE, "kind": "counter", "samples": [[[], 3.0]]}
    gauge = {**GAUGE, "name": f"serve_warm_odd{suffix}", "samples": [[[], 1.0]]}
    replica(Report(), metrics=[counter, gauge] if first else [gauge, counter])
    found = samples(openmetrics(page(NEW)[1]))
    assert [value for name, value in found.items() if "serve_warm_odd_total" in name] == [3.0]
