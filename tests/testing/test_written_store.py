# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A store of another package: the one of the guide, under the contract and by its address."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "writing-a-store.md"
ENTRY_POINT = "[serve_warm.stores]\nsqlite = sqlite_store:SqliteStore\n"

PUSH_AND_READ = """
from serve_warm import WarmupConfig
from serve_warm.stores import kind_of, open_store

uri = WarmupConfig(artifact="sqlite:///{folder}/artifacts.db").artifact
open_store(uri).create("blobs/sha256/00", b"bytes")
print(kind_of(uri), open_store(uri).get("blobs/sha256/00", max_bytes=9))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the guide's files, installed as pip would."""
    folder = tmp_path_factory.mktemp("package")
    for name, source in re.findall(
        r"```python\n# (\w+\.py)\n(.*?)```", GUIDE.read_text(), re.DOTALL
    ):
        (folder / name).write_text(source)
    declare(folder, "sqlite_store", ENTRY_POINT)
    return folder


def declare(folder: Path, name: str, entry_points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def run(*command: str, path: tuple[Path, ...]) -> subprocess.CompletedProcess[str]:
    search = os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *command],
        cwd=path[0],
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.slow
def test_the_store_of_the_guide_passes_the_contract(package: Path):
    """A reader who copies both files has a store that works, and tests that show it."""
    ended = run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_sqlite_store.py", path=(package,)
    )

    assert ended.returncode == 0, ended.stdout
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None
    assert int(passed[1]) > 40


@pytest.mark.slow
def test_a_bug_in_a_store_fails_the_contract(package: Path, tmp_path: Path):
    """A store that replaces other bytes does not pass."""
    for each in package.glob("*.py"):
        source = each.read_text().replace("insert or ignore into", "replace into")
        (tmp_path / each.name).write_text(source)

    ended = run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "overwrites", path=(tmp_path,)
    )

    assert ended.returncode == 1, ended.stdout


def test_its_addresses_are_those_of_a_store(package: Path, tmp_path: Path):
    """A setting takes them, both ends find the same objects, and metrics call the kind `other`."""
    ended = run("-c", PUSH_AND_READ.format(folder=str(tmp_path).lstrip("/")), path=(package,))

    assert ended.stdout == "other b'bytes'\n", ended.stderr


def test_without_the_package_the_scheme_is_unknown(tmp_path: Path):
    """The command names the scheme, and what it could mean."""
    ended = run("-m", "serve_warm.cli", "verify", "sqlite:///srv/artifacts.db", path=(tmp_path,))

    assert ended.returncode == 1
    assert "unknown store scheme sqlite://" in ended.stderr


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (
            "nothing_there:Store",
            "nothing_there:Store, which opens other:// stores, cannot be imported",
        ),
        ("sqlite_store:Missing", "sqlite_store:Missing, which opens other:// stores, cannot be"),
    ],
)
def test_a_package_that_is_broken_is_named(package: Path, tmp_path: Path, others: str, said: str):
    """One sentence without a traceback."""
    declare(tmp_path, "others", f"[serve_warm.stores]\nother = {others}\n")

    ended = run("-m", "serve_warm.cli", "verify", "other://x", path=(tmp_path, package))

    assert ended.returncode == 1
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("builtins:int", "builtins:int, which opens other:// stores, failed: ValueError"),
        ("builtins:str", "builtins:str, which opens other:// stores, returned a str without uri"),
    ],
    ids=["raises", "returns no store"],
)
def test_an_opener_that_is_wrong_is_named_without_the_address(
    tmp_path: Path, value: str, said: str
):
    """Its error may repeat the address, which may hold a credential."""
    declare(tmp_path, "others", f"[serve_warm.stores]\nOther = {value}\n")

    ended = run("-m", "serve_warm.cli", "verify", "other://x/secret", path=(tmp_path,))

    assert ended.returncode == 1
    assert said in ended.stderr
    assert "secret" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_two_packages_for_one_scheme_are_refused(package: Path, tmp_path: Path):
    """The order of the path must not decide which package a replica uses."""
    declare(tmp_path, "others", "[serve_warm.stores]\nsqlite = others:Store\n")

    ended = run("-m", "serve_warm.cli", "verify", "sqlite:///x", path=(tmp_path, package))

    assert ended.returncode == 1
    assert "several installed packages open sqlite:// stores" in ended.stderr
