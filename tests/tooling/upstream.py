# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Compares the table of patches with a version of torch or Triton: `make upstream TORCH=2.16.0`.

    python tests/tooling/upstream.py WHAT [--write]

WHAT is a version of torch, a requirement such as `triton==3.7.0`, or the path of a wheel. Nothing
is installed or imported: the program reads the sources in the wheel. It exits with 1 if a function
has changed or is gone. With --write, it adds the version to the tested ones, in
`serve_warm/private_apis/digests.json`: do this after the tests have passed with this version.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from serve_warm.private_apis.digests import (  # noqa: E402
    FILE,
    Judged,
    Tested,
    digest_of,
    judge,
    package_of,
    tested,
    unknown,
)
from serve_warm.private_apis.sources import PackageSources  # noqa: E402
from serve_warm.private_apis.table import TABLE  # noqa: E402

DOWNLOADS = ROOT / "build" / "upstream"


def find_wheel(what: str) -> Path:
    """Return the path of a wheel; pip downloads it, if `what` is a requirement or a version."""
    if what.endswith(".whl"):
        return Path(what)
    requirement = what if "==" in what else f"torch=={what}"
    folder = DOWNLOADS / requirement
    if not list(folder.glob("*.whl")):
        index = os.environ.get("TORCH_INDEX", "")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--only-binary", ":all:", "--dest", str(folder)),
                *(("--index-url", index) if index else ()),
                requirement,
            ],
            # A constraint is for an environment, and nothing is installed here.
            env={**os.environ, "PIP_CONSTRAINT": os.devnull},
            check=False,
        )
        if done.returncode:
            sys.exit(f"pip could not download {requirement}: name another version, or a wheel")
    return next(folder.glob("*.whl"))


def lines_of(package: str, version: str, judged: list[Judged]) -> list[str]:
    """Return what a person must know about a version, one line for each row that needs a look."""
    bad = unknown(judged)
    there = [each for each in judged if each.verdict != "not in this version"]
    same = f"{len(there) - len(bad)} of {len(there)} functions"
    lines = [f"{package} {version}: {same} are as in a tested version"]
    lines += [
        f"  {each.verdict:8} level {each.patch.level}  {each.patch.at[0]}  ({each.patch.why})"
        for each in sorted(bad, key=lambda each: (-each.patch.level, each.patch.name))
    ]
    levels = sorted({each.patch.level for each in bad} - {1})
    if 2 in levels:
        lines.append("  a build with this version makes no entries of levels 2 and 3")
    elif levels:
        lines.append("  a build with this version makes no entries of level 3")
    return lines


def write(package: str, version: str, sources: PackageSources) -> None:
    """Add a version to the tested ones, or the rows of the table that are new since."""
    found = {name: dict(versions) for name, versions in tested().items()}
    patches = [each for each in TABLE if package_of(each) == package]
    functions = {each.name: digest_of(each, sources) for each in patches}
    there = {name: digest for name, digest in functions.items() if digest}
    found.setdefault(package, {})[version] = Tested(functions=there, files=sources.files())
    FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def main() -> int:
    """Print the comparison; return 1 if a function has changed or is gone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", help="2.16.0, triton==3.7.0, or the path of a wheel")
    parser.add_argument("--write", action="store_true", help="add the version to the tested ones")
    asked = parser.parse_args()
    wheel = find_wheel(asked.what)
    package, version = wheel.name.split("-")[:2]
    version = version.partition("+")[0]
    sources = PackageSources.of_wheel(wheel)
    judged = judge(package, version, sources)
    sys.stdout.writelines(f"{line}\n" for line in lines_of(package, version, judged))
    if asked.write:
        write(package, version, sources)
        return 0
    return bool(unknown(judged))


if __name__ == "__main__":
    sys.exit(main())
