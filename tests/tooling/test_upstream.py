# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`make upstream` says in words which private functions of another torch are new."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import upstream
from serve_warm.private_apis import digests

SITE = Path(torch.__file__).parents[1]


def wheel(folder: Path, version: str, **changed: tuple[str, str]) -> Path:
    """Return a wheel with the sources of the installed torch, some of them changed."""
    path = folder / f"torch-{version}-cp311-cp311-linux_x86_64.whl"
    names = {name for each in digests.tested()["torch"].values() for name in each["files"]}
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            file = SITE / f"{name.replace('.', '/')}.py"
            if not file.is_file():  # a package
                file = SITE / name.replace(".", "/") / "__init__.py"
            if file.is_file():
                before, after = changed.get(file.stem, ("", ""))
                archive.writestr(
                    str(file.relative_to(SITE)), file.read_text().replace(before, after)
                )
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["upstream.py", *map(str, arguments)])
    return upstream.main()


def test_a_version_with_the_same_functions_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of the version alone does not matter."""
    assert run(monkeypatch, wheel(tmp_path, "2.13.7")) == 0

    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1
    assert said[0].startswith("torch 2.13.7: ")
    assert said[0].endswith(" functions are as in a tested version")


def test_changed_and_missing_functions_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with its level and what serve_warm needs it for; level 3 alone is told apart."""
    both = wheel(
        tmp_path,
        "2.13.8",
        side_effects=("def codegen_update_mutated(", "def renamed("),
        cpp_builder=("def run_compile_cmd(cmd_line", "def run_compile_cmd(line"),
    )
    assert run(monkeypatch, both) == 1
    first = capsys.readouterr().out
    assert "changed  level 2  torch._dynamo.side_effects:SideEffects.codegen_update_mu" in first
    assert "(notes the objects that a call changes)" in first
    assert "changed  level 1  torch._inductor.cpp_builder:run_compile_cmd" in first
    assert "makes no entries of levels 2 and 3" in first

    library = wheel(tmp_path, "2.13.9", cpp_builder=("def build(self) ->", "async def build() ->"))
    assert run(monkeypatch, library) == 1
    assert "makes no entries of level 3" in capsys.readouterr().out


def test_a_tested_version_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After that, the same functions are known."""
    copy = tmp_path / "digests.json"
    copy.write_text(digests.FILE.read_text())
    monkeypatch.setattr(upstream, "FILE", copy)
    changed = wheel(
        tmp_path, "2.14.9", cpp_builder=("def run_compile_cmd(c", "def run_compile_cmd(x")
    )

    assert run(monkeypatch, changed, "--write") == 0

    added = json.loads(copy.read_text())["torch"]
    assert {name: added[name] for name in digests.tested()["torch"]} == digests.tested()["torch"]
    assert added["2.14.9"]["functions"].keys() == added["2.13.0"]["functions"].keys()
    different = [
        name
        for name, digest in added["2.14.9"]["functions"].items()
        if digest != added["2.13.0"]["functions"][name]
    ]
    assert different == ["run_compile_cmd"]


def test_a_version_that_does_not_exist_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "DOWNLOADS", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    with pytest.raises(SystemExit, match=r"pip could not download torch==0\.0\.0: name another"):
        run(monkeypatch, "0.0.0")
