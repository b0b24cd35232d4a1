# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Builds and checks the files that a release would publish: `make release-check`.

    python tests/tooling/release.py [--dist DIRECTORY]

Builds the sdist, and the wheel from the sdist, and checks their contents. Uses the wheel outside of
the source tree, in a fresh environment that borrows the dependencies of this one, so that nothing
large is downloaded. Lints and packages the Helm chart, and checks its content. A failed check does
not stop the other checks. The checked files stay in `dist`.
"""

from __future__ import annotations

import argparse
import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import yaml

from components import FOLDERS

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "serve-warm"

NEEDED_IN_WHEEL = {
    "serve_warm/py.typed",
    "serve_warm/builder/bench.schema.json",
    "serve_warm/node.py",
    "serve_warm/cli/__main__.py",
}
NEEDED_IN_SDIST = {
    *NEEDED_IN_WHEEL,
    *("CHANGELOG.md", "LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml"),
    *("docs/reference/settings.md", "deployments/Dockerfile", "tests/tooling/release.py"),
    *("locks/ci.txt", "locks/image.txt", "locks/build.txt"),
}
NEEDED_IN_CHART = {
    *("Chart.yaml", "README.md", "values.schema.json", "values.yaml"),
    *("templates/NOTES.txt", "templates/_checks.tpl", "templates/ray.yaml"),
    *("dashboards/warm-start.json", "rules/serve-warm.tpl.yaml"),
}
NEVER = re.compile(r"(^|/)(\.git|\.venv|build|dist|artifacts|__pycache__)(/|$)|\.(pyc|key|pem)$")
"""Names that no archive may hold: environments, outputs, and possible private keys."""


# --- checks --------------------------------------------------------------------------------


def version_problems(version: str, changelog: str) -> Iterator[str]:
    """Yield the reasons why the changelog does not fit a version."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        yield f"serve_warm.__version__ is {version}, which is no release"
    headings = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    if headings and headings[0].startswith("Unreleased"):
        unreleased = headings.pop(0).partition("\n")[2].strip()
        if unreleased:
            yield f"CHANGELOG.md has changes under Unreleased: move them under {version}"
    top = headings[0].partition("\n")[0] if headings else "nothing"
    if not re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", top):
        yield f"the newest version in CHANGELOG.md is {top!r}, not '{version} - YYYY-MM-DD'"


def content_problems(names: Iterable[str], needed: Iterable[str]) -> Iterator[str]:
    """Yield missing and forbidden files of an archive."""
    there = set(names)
    yield from (f"{name} is missing" for name in sorted(set(needed) - there))
    yield from (f"{name} is in it" for name in sorted(there) if NEVER.search(name))


def names_in(archived: Path) -> list[str]:
    """Return the files of an sdist or a packaged chart, below its one folder."""
    with tarfile.open(archived) as archive:
        files = [member.name for member in archive.getmembers() if member.isfile()]
    return [name.partition("/")[2] for name in files]


def sdist_problems(sdist: Path) -> Iterator[str]:
    yield from content_problems(names_in(sdist), NEEDED_IN_SDIST)


def wheel_problems(wheel: Path, sdist: Path, version: str) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        fields = email.message_from_string(archive.read(metadata).decode())
    yield from content_problems(names, NEEDED_IN_WHEEL)
    source = {name for name in names_in(sdist) if name.startswith("serve_warm/")}
    package = {name for name in names if ".dist-info/" not in name}
    yield from (f"{name} is in the sdist alone" for name in sorted(source - package))
    yield from (f"{name} is no part of the package" for name in sorted(package - source))
    for field, expected in (("Version", version), ("License-Expression", "Apache-2.0")):
        if fields[field] != expected:
            yield f"its {field} is {fields[field]}, not {expected}"
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        yield "it has no licence"


def chart_version(version: str) -> str:
    """Return a Python version as a semantic version for Helm: 1.2.0-rc.1 for 1.2.0rc1."""
    return re.sub(r"(a|b|rc)(\d+)$", r"-\1.\2", version)


def chart_problems(packaged: Path, version: str) -> Iterator[str]:
    yield from content_problems(names_in(packaged), NEEDED_IN_CHART)
    with tarfile.open(packaged) as archive:
        file = archive.extractfile("serve-warm/Chart.yaml")
        fields = yaml.safe_load(file) if file else {}
    for field, expected in (("version", chart_version(version)), ("appVersion", version)):
        if fields[field] != expected:
            yield f"the {field} in Chart.yaml is {fields[field]}, not {expected}"


@dataclass(frozen=True, kw_only=True)
class Installed:
    """The wheel in a separate environment, and a working folder outside of the source tree."""

    bin: Path
    package: Path
    folder: Path

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, without the paths of this process."""
        program, *arguments = map(str, command)
        return subprocess.run(
            [self.bin / program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env={"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.folder)},
        )


def install(wheel: Path, folder: Path) -> Installed:
    """Return the installed wheel. Its dependencies come from this environment."""
    environment = folder / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
    [site] = environment.glob("lib/python*/site-packages")
    # Python ignores .pth files in a folder that a .pth file adds. So the editable installation of
    # this environment is not borrowed.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    return Installed(bin=environment / "bin", package=site / "serve_warm", folder=elsewhere)


def use_problems(installed: Installed, version: str) -> Iterator[str]:
    """Yield the commands of an installed wheel that fail. No replica is started."""
    asked = (
        "import serve_warm; from serve_warm import Buckets; "
        "print(serve_warm.__file__, serve_warm.__version__)"
    )
    found = f"{installed.package / '__init__.py'} {version}\n"
    state = installed.folder / "state"
    node = ("python", "-I", "-S", installed.package / "node.py", "probe", "--state-dir", state)
    alone = ("--raylet", "none", "--proxy", "none")
    schema = "from serve_warm.builder import bench; print(bench.schema()['$schema'])"
    expected: list[tuple[tuple[object, ...], int, str]] = [
        (("python", "-c", asked), 0, found),
        (("python", "-c", schema), 0, "json-schema.org"),
        (("serve-warm", "--version"), 0, f"version {version}"),
        (("serve-warm", "--help"), 0, "Exit codes:"),
        (("python", "-m", "serve_warm.cli", "status", "--state-dir", state), 1, "found no replica"),
        (("serve-warm", "inspect", installed.folder), 0, "has no artifacts"),
        ((*node, *alone), 1, "no replica is on this node"),
        ((*node, *alone, "--expect", "allow-idle"), 0, ""),
    ]
    for command, code, text in expected:
        ran = installed.run(*command)
        said = ran.stdout + ran.stderr
        if ran.returncode != code or text not in said:
            last = " ".join(said.strip().splitlines()[-1:])
            yield f"{' '.join(map(str, command))} ended with {ran.returncode}: {last}"


def import_problems(installed: Installed) -> Iterator[str]:
    """Yield the modules and public names of an installed wheel that cannot be imported."""
    program = (
        "import importlib, pkgutil, serve_warm\n"
        "for found in pkgutil.walk_packages(serve_warm.__path__, 'serve_warm.'):\n"
        "    if not found.name.endswith('__main__'): importlib.import_module(found.name)\n"
        "for name in serve_warm.__all__: getattr(serve_warm, name)\n"
    )
    ran = installed.run("python", "-c", program)
    if ran.returncode:
        yield ran.stderr.strip().splitlines()[-1]


def index_problems(archives: Iterable[Path]) -> Iterator[str]:
    """Yield what a package index would refuse or show badly."""
    ran = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *archives],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        yield " ".join((ran.stdout + ran.stderr).split())


def lint_problems(helm: str, chart: Path = CHART) -> Iterator[str]:
    values = chart / "ci" / "minimal-values.yaml"
    ran = _run(helm, "lint", "--strict", "--quiet", chart, "--values", values)
    if ran.returncode:
        yield " ".join((ran.stdout + ran.stderr).split())


def commit_problems() -> Iterator[str]:
    """Yield the files that differ from the commit, because a release is built from a commit."""
    yield from _run("git", "-C", ROOT, "status", "--porcelain").stdout.splitlines()


# --- the whole check -----------------------------------------------------------------------


def build(dist: Path) -> tuple[Path, Path]:
    """Build an sdist, and a wheel from it, with the installed backend; return both files."""
    shutil.rmtree(dist, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, ROOT]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        sys.exit(built.stdout + built.stderr)
    [sdist], [wheel] = dist.glob("*.tar.gz"), dist.glob("*.whl")
    return sdist, wheel


def package(dist: Path, helm: str) -> Path:
    """Package the chart with Helm, and return the file."""
    ran = _run(helm, "package", CHART, "--destination", dist)
    if ran.returncode:
        sys.exit(ran.stdout + ran.stderr)
    [packaged] = dist.glob("serve-warm-*.tgz")
    return packaged


def _run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def main() -> int:
    """Run all checks, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="is emptied first")
    dist = parser.parse_args().dist
    source = (ROOT / "serve_warm" / "_package.py").read_text()
    [version] = re.findall(r'^__version__ = "(.+)"$', source, flags=re.MULTILINE)
    changelog = (ROOT / "CHANGELOG.md").read_text()
    places = [*(str(ROOT / "build" / "components" / each) for each in FOLDERS), os.environ["PATH"]]
    helm = shutil.which("helm", path=os.pathsep.join(places))
    if helm is None:
        sys.exit("helm, which packages the chart, is not installed: run .ci/install-components")
    sdist, wheel = build(dist)
    chart = package(dist, helm)
    with tempfile.TemporaryDirectory(prefix="serve_warm-release-") as folder:
        installed = install(wheel, Path(folder))
        checks: dict[str, Callable[[], Iterator[str]]] = {
            f"version {version} and CHANGELOG.md": lambda: version_problems(version, changelog),
            "changes that the changelog lacks": lambda: (
                f"{path.name}: run python tests/tooling/changes.py {version}"
                for path in (ROOT / "changes").glob("*.md")
                if path.name != "README.md"
            ),
            sdist.name: lambda: sdist_problems(sdist),
            wheel.name: lambda: wheel_problems(wheel, sdist, version),
            chart.name: lambda: chart_problems(chart, version),
            "uncommitted changes": commit_problems,
            "helm lint": lambda: lint_problems(helm),
            "what a package index checks": lambda: index_problems([sdist, wheel]),
            "the installed wheel in use": lambda: use_problems(installed, version),
            "all its modules and names": lambda: import_problems(installed),
        }
        found = 0
        for name, check in checks.items():
            problems = list(check())
            found += len(problems)
            sys.stdout.write(f"{'FAILS' if problems else 'ok   '} {name}\n")
            sys.stdout.writelines(f"      {problem}\n" for problem in problems)
            sys.stdout.flush()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
