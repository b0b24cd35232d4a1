# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `probe` command for people. The probe itself: tests/test_node.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from serve_warm import node
from serve_warm.cli.probing import probe


@pytest.mark.parametrize("proxy", [None, "http://127.0.0.1:9/-/healthz"])
def test_a_probe_names_the_option_for_another_address(
    proxy: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Unless an address is given: nothing listens there."""
    monkeypatch.setattr(node, "asked", lambda _: {"proxy": "Connection refused"})
    given = ["--raylet", "none", *(("--proxy", proxy) if proxy else ())]
    done = CliRunner().invoke(probe, ["--state-dir", str(tmp_path), *given])
    assert done.exit_code == 1
    assert "proxy: Connection refused" in done.stdout
    said = "if the proxy listens elsewhere: --proxy URL, or none"
    assert (said in done.stderr.splitlines()) == (proxy is None)
    assert "raylet" not in done.stderr
