# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The facts that a build packs with its parts."""

from __future__ import annotations

import json

from serve_warm.replica.pack import build_facts
from starts import (  # noqa: F401 - fixtures
    StandIn,
    process,
    warm_up,
)


def test_facts_of_a_build_are_json():
    """The facts are part of a signed statement."""
    start = warm_up(StandIn())

    facts = build_facts(start.report())

    assert json.loads(json.dumps(facts)) == facts
    assert facts["inputs"] == ["size 3", "size 2"]
    assert facts["passes"] == 3
