# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What is published is complete: the wheel is built, looked into, and used away from the source."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the source tree with what is installed: nothing is downloaded."""
    directory = tmp_path_factory.mktemp("wheel")
    command = ["build", "--wheel", "--no-isolation", "--outdir", str(directory), str(ROOT)]
    built = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    [path] = directory.glob("serve_warm-*.whl")
    return path


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return directory


def test_the_wheel_has_every_file_of_the_package_and_no_other(unpacked):
    """Every module, `py.typed` and the JSON Schema are in the wheel; tests and examples are not."""
    in_the_source = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "serve_warm").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    in_the_wheel = {
        str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()
    }

    metadata = {name for name in in_the_wheel if ".dist-info/" in name}
    assert in_the_wheel - metadata == in_the_source
    assert {"serve_warm/py.typed", "serve_warm/bench.schema.json"} < in_the_wheel
    assert {"serve_warm/cli/__main__.py", "serve_warm/stores/local.py"} < in_the_wheel
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)


def test_the_wheel_is_used_without_the_source_tree(unpacked, tmp_path):
    """The façade, the command line and the schema work from the wheel alone."""
    program = (
        "import sys\n"
        f"sys.path[:] = [entry for entry in sys.path if entry not in ('', {str(ROOT)!r})]\n"
        "import serve_warm, serve_warm.cli\n"
        "from serve_warm import Buckets, bench, report\n"
        "bench.schema()\n"
        "print(serve_warm.__file__, serve_warm.cli.__file__)\n"
    )

    files = run_from(unpacked, "-c", program, cwd=tmp_path).split()

    assert files == [
        str(unpacked / "serve_warm" / "__init__.py"),
        str(unpacked / "serve_warm" / "cli" / "__init__.py"),
    ]


def test_the_wheel_installs_the_command(unpacked, wheel, tmp_path):
    """The console script is `serve-warm`, and what it calls prints the version of the wheel."""
    [path] = unpacked.glob("*.dist-info/entry_points.txt")
    entry_points = configparser.ConfigParser()
    entry_points.read_string(path.read_text())
    scripts = dict(entry_points["console_scripts"])
    module, _, function = scripts["serve-warm"].partition(":")
    program = f"import sys, {module}; sys.argv[1:] = ['--version']; {module}.{function}()"

    printed = run_from(unpacked, "-c", program, cwd=tmp_path)

    assert set(scripts) == {"serve-warm"}
    assert printed == f"serve-warm, version {wheel.name.split('-')[1]}"


def run_from(unpacked: Path, *arguments: str, cwd: Path) -> str:
    # Before site-packages, where an editable installation may name the source tree.
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    ran = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()
