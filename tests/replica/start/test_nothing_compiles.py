# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Apps in which nothing compiles: their start imports no compiler, and misses no artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from processes import answer_of


def start(app: str, *, prefetch: bool = False, **settings: Any) -> dict[str, Any]:
    question = {"app": app, "settings": settings, "prefetch": prefetch}
    return answer_of("uncompiled_process.py", question)


def test_a_router_imports_no_torch():
    """A router has nothing to prove, and imports nothing that it does not use."""
    found = start("router")
    report = found["report"]
    assert found["imported"] == []
    assert (report["stage"], report["verdict"], report["traced"]) == ("READY", "off", "none")
    assert report["covered"] == {"expected": 2, "proven": 2}
    assert report["nothing_compiles"]
    assert report["compiler_imported"] == ""


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [False, True])
def test_a_model_that_is_not_compiled_imports_no_compiler(prefetch: bool, tmp_path: Path):
    """With a store for the whole fleet, such a model has no artifact, and this is no miss."""
    found = start("eager", prefetch=prefetch, artifact=str(tmp_path), on_missing="fail")
    report = found["report"]
    assert found["imported"] == ["torch"]
    assert (report["stage"], report["verdict"]) == ("READY", "off")
    assert report["artifact"]["reason"] == "nothing compiles here: no artifact is needed"


@pytest.mark.slow
def test_a_model_that_is_compiled_by_its_first_request_misses_its_artifact(tmp_path: Path):
    """Nothing was known of it before the replay; the verdict and the report know it after that."""
    report = start("lazy", artifact=str(tmp_path))["report"]
    assert (report["stage"], report["verdict"], report["traced"]) == ("READY", "miss", "all")
    assert not report["nothing_compiles"]
    assert "has no artifact for 'Router'" in report["artifact"]["reason"]


@pytest.mark.slow
def test_a_policy_holds_for_a_model_that_is_compiled_by_its_first_request(tmp_path: Path):
    """`on_missing: fail` is asked as soon as it is known that something compiles."""
    report = start("lazy", artifact=str(tmp_path), on_missing="fail")["report"]
    assert report["stage"] == "FAILED"
    assert "verdict miss, and on_missing is 'fail'" in report["error"]
