# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One round of each fault of `tests/benchmarks/faults_live.py`, under a real Serve."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from benchmarks.faults_live import FAULTS, Live, NotPermitted

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = [pytest.mark.stress, pytest.mark.ray, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def live(cluster: Cluster) -> Iterator[Live]:
    with contextlib.ExitStack() as stack:
        live = Live(cluster, stack)
        live.store()
        yield live
        live.let_go()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_leaves_a_reason_and_nothing_else(live: Live, name: str):
    """The replica is ready or says why not, no request is lost, and nothing is left behind."""
    before = live.prepare(name)
    try:
        found = FAULTS[name](live)
    except NotPermitted as error:
        pytest.skip(str(error))
    assert found.said
    assert live.leftovers(before) == []
