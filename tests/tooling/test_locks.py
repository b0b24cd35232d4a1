# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""CI and the image install only what locks/ names, by hash and from one index."""

from __future__ import annotations

import json
import re
from importlib import metadata

import pytest
from packaging.utils import canonicalize_name

import locks

ROOT = locks.ROOT
MAKEFILE = (ROOT / "Makefile").read_text()
DOCKERFILE = (ROOT / "deployments" / "Dockerfile").read_text()
COMPONENTS = (ROOT / ".ci" / "install-components").read_text()
LOCKS = sorted((ROOT / "locks").glob("*.txt"))
LOCKED = "--no-deps --only-binary :all: --require-hashes"
TORCH = " --constraint constraints.txt torch"
FOR_TORCH = ("PIP_CONFIG_FILE=/dev/null ", "--isolated ", "--index-url ", "--only-binary :all: ")
"""Of the command that installs torch, which is not locked. pip would take a higher version from an
index that a variable or a file of its configuration adds."""


def installations(text: str) -> list[str]:
    """Return the commands of a file that install Python packages, as one line each."""
    variables = dict(re.findall(r"^(\w+) :?= (.*)$", text, flags=re.MULTILINE))
    whole = re.sub(r"\\\n\s*", " ", text)
    for _ in range(2):
        whole = re.sub(r"\$\((\w+)\)", lambda m: variables.get(m[1], m[0]), whole)
    lines = [part.strip() for line in whole.splitlines() for part in line.split("&&")]
    return [line for line in lines if re.search(r"(?:bin/|-m )pip\b.*\binstall\b", line)]


def test_no_lock_is_stale():
    """The locks fit pyproject.toml, constraints.txt and `make setup`. If not, run `make lock`."""
    assert list(locks.problems()) == []
    assert {file.stem for file in LOCKS} == set(locks.requirements())


def test_locks_have_one_version_of_a_release():
    """No lock replaces a release that another lock installs."""
    found: dict[tuple[str, str], set[str]] = {}
    for environment in locks.environments():
        for pin in (pin for file in LOCKS for pin in locks.read(file.read_text())):
            if pin.is_for(environment):
                key = (pin.name, environment["python_version"])
                found.setdefault(key, set()).add(pin.version)

    assert {key: each for key, each in found.items() if len(each) > 1} == {}


def test_no_lock_slows_down_imports_of_ray():
    """Ray imports `jsonschema`, which would import rfc3987-syntax: 2 s in each process."""
    slow = {file.stem for file in LOCKS if "\nrfc3987-syntax==" in file.read_text()}

    assert slow == set()


def test_no_platform_is_shut_out():
    """A release with compiled code has hashes for other platforms too."""
    pins = {pin.name: pin for pin in locks.read((ROOT / "locks" / "ci.txt").read_text())}
    compiled = [
        canonicalize_name(each.name)
        for each in metadata.distributions()
        if "Root-Is-Purelib: false" in (each.read_text("WHEEL") or "")
    ]
    few = [name for name in compiled if name in pins and len(pins[name].hashes) < 2]

    assert {"ray", "cryptography"} < set(compiled)
    assert few == []


@pytest.mark.parametrize(
    ("text", "count"),
    [(MAKEFILE, 4), (DOCKERFILE, 5), (COMPONENTS, 1)],
    ids=["Makefile", "Dockerfile", "install-components"],
)
def test_all_that_is_installed_is_locked(text, count):
    """Each pip command takes a lock, or torch by its pin, or the project without an index."""
    # The models of `make architectures` have pinned versions, and neither CI nor users have them.
    commands = [each for each in installations(text) if "models-venv" not in each]
    own = ("--no-deps --no-build-isolation --editable .", "--no-deps --no-index ")
    open_ones = [
        command
        for command in commands
        if LOCKED not in command
        and not (command.endswith(TORCH) and all(each in command for each in FOR_TORCH))
        and not any(each in command for each in own)
    ]

    assert len(commands) == count
    assert open_ones == []
    assert "extra-index" not in text.lower().replace("_", "-")


def test_npm_packages_are_locked():
    """Each package has a version and a hash, but no address."""
    folder = ROOT / "locks" / "npm"
    packages = json.loads((folder / "package-lock.json").read_text())["packages"]
    asked = json.loads((folder / "package.json").read_text())["dependencies"]

    assert packages.pop("")["dependencies"] == asked
    assert [name for name, each in packages.items() if "sha512-" not in each["integrity"]] == []
    assert [name for name, each in packages.items() if "resolved" in each] == []
    assert re.findall(r"npm (ci|install)\b", COMPONENTS) == ["ci"]
