# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""CI and the image install only what locks/ names, by hash and from one index."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import locks
from locks import Pin, Release

ROOT = locks.ROOT
MAKEFILE = (ROOT / "Makefile").read_text()
DOCKERFILE = (ROOT / "deployments" / "Dockerfile").read_text()
COMPONENTS = (ROOT / ".ci" / "install-components").read_text()
LOCKS = sorted((ROOT / "locks").glob("*.txt"))
LOCKED = "--no-deps --only-binary :all: --require-hashes"
TORCH = " --constraint constraints.txt torch"
NAMED = locks.read(
    "aiohttp==3.14.5 \\\n    --hash=sha256:" + "0" * 64 + "\n"
    "anyio==4.1 ; python_full_version < '3.11' \\\n    --hash=sha256:" + "1" * 64 + "\n"
    "anyio==4.2 ; python_full_version >= '3.11' \\\n    --hash=sha256:" + "2" * 64 + "\n"
)
RELEASES = {
    "aiohttp": Release(version="3.14.5", requires=("anyio>=4", 'x>=1; extra == "speed"')),
    "anyio": Release(version="4.1" if sys.version_info < (3, 11) else "4.2"),
}


def wheel(folder: Path, name: str, version: str, content: str = "") -> Path:
    """Write a small wheel that can be installed."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return file


def index(folder: Path, *files: Path) -> str:
    """Return the address of a package index that offers files."""
    for file in files:
        page = folder / file.name.partition("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f'<a href="{file.as_uri()}">{file.name}</a>')
    return folder.as_uri()


def pip(environment: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pip for an environment, without this machine's configuration. Make it if needed."""
    if not environment.exists():
        venv.create(environment, with_pip=False, symlinks=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=own | {"PIP_CONFIG_FILE": os.devnull, **variables},
    )


def versions(environment: Path) -> dict[str, str]:
    [site] = environment.glob("lib/python*/site-packages")
    return {each.name: each.version for each in metadata.distributions(path=[str(site)])}


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


@pytest.mark.parametrize(
    ("asked", "pinned", "said"),
    [
        (["aiohttp", "anyio"], [], []),
        (["redis"], [], [f"redis is missing for Python {each}" for each in locks.PYTHONS]),
        (["redis; python_version < '3.11'"], [], ["redis is missing for Python 3.10"]),
        (["anyio>=4.2"], [], ["anyio is 4.1, not anyio>=4.2"]),
        (["aiohttp"], ["aiohttp==3.15"], ["aiohttp is 3.14.5, not aiohttp==3.15"]),
        (["torch>=2.11"], ["torch==2.13.0"], []),
    ],
)
def test_a_lock_that_lacks_what_is_asked_for_is_found(asked, pinned, said):
    """A changed dependency or pin is reported for each Python version."""
    problems = locks.direct_problems(NAMED, map(Requirement, asked), map(Requirement, pinned))

    assert list(problems) == said


def test_two_versions_for_one_python_are_found():
    """With such a lock, pip installs nothing."""
    twice = [*NAMED, Pin(name="aiohttp", version="3.0", hashes=("0",))]

    assert list(locks.direct_problems(twice, [], [])) == ["aiohttp has 3.14.5 and 3.0 at once"]


@pytest.mark.parametrize(
    ("asked", "releases", "said"),
    [
        ("aiohttp", RELEASES, []),
        ("aiohttp[speed]", RELEASES, ["x is missing"]),
        ("anyio", RELEASES, ["aiohttp is asked for by nothing"]),
        ("aiohttp", {"aiohttp": RELEASES["aiohttp"]}, ["anyio is not installed: run make setup"]),
        (
            "aiohttp",
            RELEASES | {"aiohttp": Release(version="3.14", requires=("anyio",))},
            ["aiohttp is 3.14.5, and 3.14 is installed: run make setup"],
        ),
        (
            "aiohttp",
            RELEASES | {"aiohttp": Release(version="3.14.5", requires=("anyio>=5",))},
            [f"anyio is {RELEASES['anyio'].version}, not anyio>=5"],
        ),
        ("torch", {"torch": Release(version="2", requires=("triton", "aiohttp"))} | RELEASES, []),
    ],
)
def test_a_lock_that_is_not_what_requirements_lead_to_is_found(asked, releases, said):
    """The lock must contain indirect dependencies, and nothing else."""
    assert list(locks.closure_problems(NAMED, [Requirement(asked)], releases)) == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--index-url https://example.com/simple", "line 3 is neither a release nor a hash"),
        ("x @ https://example.com/x.whl", "line 3 is neither a release nor a hash"),
        ("    # from https://example.com/simple", "line 3 is neither a release nor a hash"),
        ("x==1.0", "line 3 is neither a release nor a hash"),
        ("x==1.0 \\", "x has no hash"),
        (f"nvidia-new==1.0 \\\n    --hash=sha256:{'0' * 64}", "nvidia-new belongs to builds of"),
    ],
)
def test_what_a_lock_may_not_have_is_found(line, said):
    """Forbidden are addresses, releases without a hash, and libraries of one build of torch."""
    text = f"aiohttp==3.14.5 \\\n    --hash=sha256:{'0' * 64}\n{line}\n"

    [problem] = locks.form_problems(text)

    assert problem.startswith(said)


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


def test_a_changed_hash_is_refused(tmp_path):
    """With the options of `make setup`, pip refuses a file that differs from the lock."""
    [options] = re.findall(r"^LOCKED := (.*)$", MAKEFILE, re.MULTILINE)
    file = wheel(tmp_path / "files", "lockedthing", "1.0")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    lock = tmp_path / "lock.txt"
    lock.write_text(f"lockedthing==1.0 \\\n    --hash=sha256:{digest}\n")
    command = ["install", *shlex.split(options), "--requirement", str(lock)]
    source = {"PIP_INDEX_URL": index(tmp_path / "index", file)}

    right = pip(tmp_path / "right", *command, **source)
    wheel(tmp_path / "files", "lockedthing", "1.0", "import os")
    changed = pip(tmp_path / "changed", *command, **source)
    lock.write_text("lockedthing==1.0\n")
    without = pip(tmp_path / "without", *command, **source)

    assert right.returncode == 0, right.stderr
    assert versions(tmp_path / "right") == {"lockedthing": "1.0"}
    assert "DO NOT MATCH THE HASHES" in changed.stderr
    assert "Hashes are required" in without.stderr
    assert [changed.returncode, without.returncode] == [1, 1]
    assert versions(tmp_path / "changed") == versions(tmp_path / "without") == {}


def test_torch_comes_from_one_index(tmp_path):
    """An index from a variable or a pip file is ignored, although pip would prefer it."""
    [command] = [line for line in installations(DOCKERFILE) if line.endswith(" torch")]
    [pinned] = [each for each in locks.constraints() if each.name == "torch"]
    version = str(pinned.specifier).removeprefix("==")
    named = index(tmp_path / "named", wheel(tmp_path / "good", "torch", version))
    added = index(tmp_path / "added", wheel(tmp_path / "bad", "torch", f"{version}+zz.planted"))
    arguments = shlex.split(command.partition("pip ")[2].replace("${TORCH_INDEX}", named))
    arguments = [str(ROOT / each) if each == "constraints.txt" else each for each in arguments]

    configured = tmp_path / "pip.conf"
    configured.write_text(f"[global]\nextra-index-url = {added}\n")
    own = dict(re.findall(r"(PIP_\w+)=(\S+)", command.partition("/pip ")[0]))

    ran = pip(
        tmp_path / "environment",
        *arguments,
        **{"PIP_EXTRA_INDEX_URL": added, "PIP_CONFIG_FILE": str(configured), **own},
    )
    by_file = pip(tmp_path / "by_file", *arguments, PIP_CONFIG_FILE=str(configured))
    confused = pip(
        tmp_path / "confused",
        *(each for each in arguments if each != "--isolated"),
        PIP_EXTRA_INDEX_URL=added,
    )

    assert (ran.returncode, confused.returncode) == (0, 0), ran.stderr + confused.stderr
    assert versions(tmp_path / "environment") == {"torch": version}
    assert by_file.returncode == 0, by_file.stderr
    assert versions(tmp_path / "by_file") == {"torch": f"{version}+zz.planted"}
    assert "PIP_CONFIG_FILE=/dev/null )$(BIN)/python -m pip $(FROM_INDEX)" in MAKEFILE
    assert versions(tmp_path / "confused") == {"torch": f"{version}+zz.planted"}


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
        and not ("--only-binary :all: " in command and command.endswith(TORCH))
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
