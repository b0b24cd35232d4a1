# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `init` command."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from serve_warm.cli import serve_warm

SOURCE = """
from ray import serve

@serve.deployment
class Plain:
    async def score(self, text: str): ...

app = Plain.bind()
"""
_numbers = itertools.count()


@pytest.fixture(name="target")
def target_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"initial_app_{next(_numbers)}"
    Path(f"{name}.py").write_text(SOURCE)
    return f"{name}:app"


def init(*arguments: str) -> Any:
    return CliRunner().invoke(serve_warm, ["init", *arguments])


def test_nothing_is_written_without_write(target):
    """What is shown is what `--write` would write."""
    shown = init(target)
    assert (shown.exit_code, sorted(map(str, Path().glob("*.yaml")))) == (0, [])
    assert "nothing was written; --write writes serve.yaml" in shown.stderr
    (file,) = json.loads(init(target, "--json", "-").stdout)["files"]
    assert file == {"file": "serve.yaml", "content": shown.stdout}
    written = init(target, "--write")
    assert Path("serve.yaml").read_text() == written.stdout == shown.stdout
    assert "next: serve-warm check serve.yaml" in written.stderr


def test_an_existing_config_is_kept(target):
    """It may be of another application."""
    Path("serve.yaml").write_text("mine: 1\n")
    for options in ((), ("--write",)):
        ended = init(target, *options)
        assert "serve.yaml exists, and would be replaced" in str(ended.exception)
        assert "serve-warm init serve.yaml" in str(ended.exception)
        assert ended.stdout == "", "what would never be written"
    assert Path("serve.yaml").read_text() == "mine: 1\n"


def test_a_changed_config_without_a_store_says_whom_it_serves(target):
    Path("serve.yaml").write_text(f"applications:\n- import_path: {target}\n")
    said = "replicas read a folder of their user, which serves one machine"
    assert said in init("serve.yaml").stderr
    assert said not in init("serve.yaml", "--artifact", "s3://bucket/x").stderr


def test_inputs_are_shown_as_a_diff_and_written(target):
    source = Path(f"{target.partition(':')[0]}.py")
    shown = init(target, "--inputs")
    assert source.read_text() == SOURCE
    assert '+            Input(target="score", kwargs={"text": "text"}),' in shown.stdout
    written = init(target, "--inputs", "--write")
    assert f"wrote {source}" in written.stderr
    assert "    def warmup_inputs(self):" in source.read_text()


def test_options_without_use_are_refused(target):
    """They would be ignored."""
    assert init(target, "--inputs", "--artifact", "s3://bucket/x").exit_code == 2
    assert init(target, "--inputs", "--output", "x.yaml").exit_code == 2
