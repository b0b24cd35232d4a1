# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What `/metrics` of a node answers to a client that asks for OpenMetrics, and to all others."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from reports import FULL
from serve_warm import metrics, node
from serve_warm.node import NODE_METRICS, Settings, StateFile
from serve_warm.report import ArtifactUse, Report
from state_files import (  # noqa: F401 - fixtures
    WHO,
    clock_fixture,
    directory_fixture,
    replica_fixture,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from prometheus_client.core import Metric

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"

NEW = "application/openmetrics-text"
PROMETHEUS_2 = (
    f"{NEW};version=1.0.0,{NEW};version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    f"{NEW};version=1.0.0;escaping=allow-utf-8;q=0.6,{NEW};version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


class Asked:
    """A node without a port: a request's head goes in, and the answer comes out."""

    def __init__(self, directory: Path) -> None:
        self._server = node.Server(Settings(str(directory), urls=()), host="127.0.0.1", port=0)
        self._server._http.server_close()

    def metrics(self, *accept: str, method: str = "GET") -> tuple[str, str]:
        """Return content type and body; each of `accept` is a header of its own."""
        head = "\n".join([f"{method} /metrics HTTP/1.1", *(f"Accept: {each}" for each in accept)])
        answer, _ = node._reply(self._server, head.encode())
        lines, _, body = answer.partition(b"\r\n\r\n")
        assert lines.startswith(b"HTTP/1.1 200 ")
        kind = re.search(r"\r\nContent-Type: ([^\r]*)\r\n", lines.decode())
        return kind[1], body.decode()


@pytest.fixture(name="asked")
def asked_fixture(directory: Path) -> Asked:
    return Asked(directory)


def samples(families: Iterable[Metric]) -> dict[str, float]:
    """Return value by name and labels, but for what passes between two scrapes."""
    return {
        f"{each.name}{json.dumps(each.labels, sort_keys=True)}": float(each.value)
        for family in families
        for each in family.samples
        if not each.name.endswith(("_age_seconds", "_elapsed_seconds"))
    }


# --- which format --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ((), TEXT),
        (("",), TEXT),
        (("*/*",), TEXT),
        (("application/*",), TEXT),
        (("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",), TEXT),
        (("application/openmetrics-text",), OPENMETRICS),
        (("application/openmetrics-text; version=1.0.0",), OPENMETRICS),
        (("Application/OpenMetrics-Text;Version=1.0.0; charset=UTF-8",), OPENMETRICS),
        (('application/openmetrics-text; version="1.0.0"',), OPENMETRICS),
        (("application/openmetrics-text; version=0.0.1",), TEXT),
        (("application/openmetrics-text; version=2.0.0",), TEXT),
        (("application/openmetrics-text; version=1.0.0; q=0",), TEXT),
        (("application/openmetrics-text; version=1.0.0; q=0.000, */*",), TEXT),
        (("application/openmetrics-text; version=1.0.0; q=much",), TEXT),
        (("application/openmetrics-text;q=0.5, text/plain;q=0.5",), OPENMETRICS),
        (("application/openmetrics-text;q=0.4, text/plain;q=0.5",), TEXT),
        (("text/plain;q=0.4, application/openmetrics-text;q=0.5",), OPENMETRICS),
        (("application/openmetrics-text;q=0.4, text/*;q=0.5",), TEXT),
        # What is said of a type counts more than what is said of all types.
        (("application/openmetrics-text;q=0.4, text/plain;q=0.3, */*",), OPENMETRICS),
        # What a client accepts may stand in several headers.
        (("text/plain;q=0.1", "application/openmetrics-text;version=1.0.0"), OPENMETRICS),
        ((PROMETHEUS_2,), OPENMETRICS),
        ((PROMETHEUS_3,), OPENMETRICS),
        # One that scrapeProtocols tells to prefer the older format.
        (("text/plain;version=0.0.4;q=0.6," + NEW + ";version=1.0.0;q=0.5,*/*;q=0.2",), TEXT),
    ],
)
def test_openmetrics_is_for_those_who_ask(asked: Asked, accept: tuple[str, ...], kind: str) -> None:
    """By name and with a version that there is, and not less than the older format."""
    found, body = asked.metrics(*accept)

    assert found == kind
    assert body.endswith("\n# EOF\n") == (kind == OPENMETRICS)


def test_a_head_says_what_the_body_would_be(asked: Asked) -> None:
    """The content type is chosen for HEAD as for GET."""
    assert asked.metrics(OPENMETRICS, method="HEAD") == (OPENMETRICS, "")


# --- what it says --------------------------------------------------------------------------


def test_both_formats_have_the_same_samples(
    asked: Asked, replica: Callable[..., StateFile]
) -> None:
    """A client loses no figure by the format that it asks for, and no name changes."""
    replica(Report())
    asked.metrics()
    replica(FULL)

    old = samples(plain(asked.metrics()[1]))
    new = samples(openmetrics(asked.metrics(OPENMETRICS)[1]))

    assert new == old
    assert any("_bucket" in name for name in new)
    assert any("_total" in name for name in new)


def test_families_are_described_as_openmetrics_has_it(
    asked: Asked, replica: Callable[..., StateFile]
) -> None:
    """Name without `_total`, type, meaning, and the unit that the name ends with."""
    replica(FULL)
    replica(Report(artifact=ArtifactUse(store="s3://b", source="s3", refused="untrusted")), "r2")

    found = {
        family.name: (family.type, family.documentation, family.unit)
        for family in openmetrics(asked.metrics(OPENMETRICS)[1])
    }

    rows = {name: (kind, text) for name, (kind, _, text) in NODE_METRICS.items()}
    rows |= {row.name: (row.kind, row.help) for row in metrics.METRICS}
    assert {name: about[:2] for name, about in found.items()} == rows
    assert {name: unit for name, (*_, unit) in found.items()} == {
        name: next((unit for unit in ("seconds", "bytes") if name.endswith(f"_{unit}")), "")
        for name in rows
    }
    assert found["serve_warm_capture_after_ready_seconds"][2] == "seconds"


def test_what_is_described_is_not_described_twice(
    asked: Asked, replica: Callable[..., StateFile]
) -> None:
    """Each family is in one piece, and one end marks that nothing was cut off."""
    replica(FULL)

    _, body = asked.metrics(OPENMETRICS)

    described = re.findall(r"^# (?:HELP|TYPE|UNIT) \S+", body, flags=re.MULTILINE)
    assert len(described) == len(set(described))
    assert re.findall(r"^# EOF$", body, flags=re.MULTILINE) == ["# EOF"]
    assert not re.search(r"^# (?:HELP|TYPE|UNIT) \S+_total\b", body, flags=re.MULTILINE)


def test_a_node_without_replicas_is_openmetrics_too(asked: Asked) -> None:
    """A family without samples is one."""
    found = {family.name for family in openmetrics(asked.metrics(OPENMETRICS)[1])}

    assert found == set(NODE_METRICS)


def test_text_is_escaped(asked: Asked, replica: Callable[..., StateFile]) -> None:
    """Quotes, backslashes and line ends in names and help texts."""
    odd = 'a "b" \\ c\nd'
    row = {"name": "serve_warm_odd", "kind": "gauge", "help": odd, "label": None}
    replica(Report(), name=odd, metrics=[{**row, "values": {"": 1.0}}])

    families = {family.name: family for family in openmetrics(asked.metrics(OPENMETRICS)[1])}

    (sample,) = families["serve_warm_odd"].samples
    assert sample.labels == {**WHO, "replica": odd}
    assert families["serve_warm_odd"].documentation == odd


GAUGE = {"name": "serve_warm_odd", "kind": "gauge", "help": "Odd.", "label": None}


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e300, -7.5])
def test_a_gauge_may_be_any_number(
    asked: Asked, replica: Callable[..., StateFile], value: float
) -> None:
    """Written as each format has it."""
    replica(Report(), metrics=[{**GAUGE, "values": {"": value}}])

    for read, accept in ((plain, ()), (openmetrics, (OPENMETRICS,))):
        families = {family.name: family for family in read(asked.metrics(*accept)[1])}

        (sample,) = families["serve_warm_odd"].samples
        assert sample.value == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_counter_that_is_none_is_left_out(
    asked: Asked, replica: Callable[..., StateFile], value: float
) -> None:
    """A strict reader would give up the whole page, of all replicas, for one such number."""
    odd = {**GAUGE, "kind": "counter", "values": {"": value}}
    replica(Report(), metrics=[odd, *metrics.as_data(FULL)])

    for read, accept in ((plain, ()), (openmetrics, (OPENMETRICS,))):
        found = samples(read(asked.metrics(*accept)[1]))

        assert not any(name.startswith("serve_warm_odd") for name in found)
        assert any(name.startswith("serve_warm_to_proof_seconds") for name in found)


@pytest.mark.parametrize("suffix", ["_created", "_total"])
@pytest.mark.parametrize("first", [True, False])
def test_names_of_replicas_do_not_clash(
    asked: Asked, replica: Callable[..., StateFile], suffix: str, *, first: bool
) -> None:
    """OpenMetrics keeps names for a counter that no other family may have."""
    counter = {**GAUGE, "kind": "counter", "values": {"": 3.0}}
    gauge = {**GAUGE, "name": f"serve_warm_odd{suffix}", "values": {"": 1.0}}
    replica(Report(), metrics=[counter, gauge] if first else [gauge, counter])

    found = samples(openmetrics(asked.metrics(OPENMETRICS)[1]))

    assert [value for name, value in found.items() if "serve_warm_odd_total" in name] == [3.0]
