# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
r"""Measures of the repository's structure and tests, before its layout changed and today.

    make unit test test-long
    python tests/house.py --json tests/benchmarks/results/house.json \
        --junit build/unit.xml --junit build/test.xml --junit build/test-long.xml

`before` has the measures of the wheel in `tests/data/before_layout`, the last wheel with flat
modules. `after` has those of this source tree. Without `--junit` and `--sentences`, the file keeps
the earlier values of these measures. The program uses only the standard library. The measures are:

    modules            Python files by folder, "." for the package itself
    largest_module     name and lines
    largest_class      name and lines, and the attributes that its methods set on `self`
    largest_function   name and lines
    over_limit         modules over 600 lines, classes over 300, functions over 60
    imports            how many modules of one package import a module of another one, by pair
    past_participles   share of functions and methods whose names begin with one, and some names
    readme_lines       lines of README.md
    patches_of_own_modules  places where tests replace a part of the package while they run
    sentences_marked   sentences shown to readers, and how many of them had to be read twice;
                       the same for sentences of other projects (`tests/sentences.py`)
    unit_s, test_s, test_long_s  wall seconds of `make unit`, `make test` and `make test-long`
    tests              tests that `make test` and `make test-long` ran
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import re
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from patches import patches_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "serve_warm"
LIMITS = {"module": 600, "class": 300, "function": 60}
ROOT_MODULES = 14
"""The most modules directly in the package, not counting the exceptions below."""
ROOT_EXCEPTIONS = {
    "_seats": "shared by preload, report and replica; a seat that imports it must stay light",
    "preload": "users name it in the environment of their workers",
    "_records": "modules of the root and of every package define their dataclasses with it",
    "_spans": "all code that shows a start needs it, and it would put `report` over its limit",
}

EXCEPTIONS = {
    "node": "one file of the standard library that also runs by itself, without the package",
    "precompile.aoti_build": "one capture: its graph, its run, its plan and its library",
    "precompile.trace_notes": "one hook for each thing that a trace reads without a guard",
    "precompile.fact_sources.Sources": "one method for each kind of fact",
    "precompile.guard_facts": "a function for each source of facts, and their table",
    "precompile.guard_facts.collect": "one step after another, each with its own source of facts",
    "fingerprint": "a reader for each factor, and the comparison of the values that they read",
    "stores.hub.HubStore": "one store behind one protocol; all reads share its pinned commit",
    "stores.object_store.ObjectStore": "one store behind one protocol; parts share its connections",
}
"""Modules and classes that may exceed a limit, and why."""
SHOWN = 20

EXAMPLES_OF_PATCHES = "test_layout.py"
RECORDED = ("sentences_marked", "unit_s", "test_s", "test_long_s", "tests")
"""Measures of `after` that come from a run or from readers, and not from the source tree."""
BEFORE = {
    "readme_lines": 302,
    "patches_of_own_modules": 52,
    "sentences_marked": None,
    "unit_s": None,
    "test_s": 1624,
    "test_long_s": None,
    "tests": 6396,
}
"""Measures at d19a7b4, where `make test` ran all tests. The seconds are of 7248 tests on 2
cores."""

IRREGULAR = frozenset(
    [
        "begun",
        "bound",
        "brought",
        "built",
        "caught",
        "chosen",
        "done",
        "drawn",
        "fallen",
        "forgotten",
        "found",
        "given",
        "gone",
        "held",
        "hidden",
        "kept",
        "known",
        "left",
        "lost",
        "made",
        "met",
        "said",
        "seen",
        "sent",
        "shown",
        "taken",
        "thrown",
        "told",
        "written",
    ]
)
NO_PARTICIPLE = frozenset(
    ["bleed", "breed", "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed"]
)


@dataclass(frozen=True, kw_only=True)
class Module:
    """One source file of the package."""

    name: str
    """The dotted name below the package. For a package, this is the name of its folder."""
    folder: str
    tree: ast.Module
    lines: int


@dataclass(frozen=True, kw_only=True)
class Sized:
    """A module, class or function and its length."""

    kind: str
    name: str
    lines: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.lines} lines"


def read(package: Path) -> list[Module]:
    """Return the modules below a folder."""
    found = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text()
        below = path.relative_to(package)
        parts = below.with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        folder = str(below.parent)
        lines = len(text.splitlines())
        found.append(Module(name=name, folder=folder, tree=ast.parse(text), lines=lines))
    return found


def definitions(module: Module) -> Iterator[tuple[Sized, ast.AST]]:
    """Yield all classes and functions of a module, including nested ones."""

    def below(node: ast.AST, prefix: str) -> Iterator[tuple[Sized, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                name = f"{prefix}.{child.name}"
                kind = "class" if isinstance(child, ast.ClassDef) else "function"
                size = (child.end_lineno or child.lineno) - child.lineno + 1
                yield Sized(kind=kind, name=name, lines=size), child
                yield from below(child, name)
            else:
                yield from below(child, prefix)

    yield from below(module.tree, module.name)


def attributes(node: ast.AST) -> set[str]:
    """Return the attributes that the methods of a class set on `self`."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


def is_participle(name: str) -> bool:
    """Return whether a function's name begins with a past participle: `chosen`, `_weighed`.

    >>> [is_participle(name) for name in ("_weighed", "chosen_for", "need", "is_loaded", "load")]
    [True, True, False, False, False]
    """
    first = name.strip("_").partition("_")[0]
    regular = re.fullmatch(r"[a-z]{2,}ed", first) is not None and first not in NO_PARTICIPLE
    return regular or first in IRREGULAR


def imports(modules: Iterable[Module]) -> dict[str, int]:
    """Return how many modules of each package import a module of another, as "a -> b"."""
    found: collections.Counter[str] = collections.Counter()
    units = {module.name.partition(".")[0] for module in modules if module.name}
    packages = {module.name.partition(".")[0] for module in modules if module.folder != "."}

    def package_of(unit: str) -> str:
        return unit if unit in packages else "root"

    for module in modules:
        if not module.name:
            continue  # the façade names everything
        own = package_of(module.name.partition(".")[0])
        others = {
            package_of(name.split(".")[1])
            for name in _imported(module.tree)
            if name.startswith(f"{PACKAGE}.") and name.split(".")[1] in units
        }
        found.update(f"{own} -> {other}" for other in others - {own})
    return dict(sorted(found.items()))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def measure(package: Path) -> dict[str, Any]:
    """Return the measures of one source tree."""
    modules = read(package)
    defined = [each for module in modules for each in definitions(module)]
    sized = [Sized(kind="module", name=m.name or PACKAGE, lines=m.lines) for m in modules]
    sized += [size for size, _ in defined]
    largest = {
        kind: max((s for s in sized if s.kind == kind), key=lambda s: s.lines) for kind in LIMITS
    }
    of_largest_class = next(node for size, node in defined if size == largest["class"])
    functions = [
        node
        for _, node in defined
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not _is_property(node)
    ]
    participles = sorted({node.name for node in functions if is_participle(node.name)})
    count = sum(is_participle(node.name) for node in functions)
    return {
        "modules": dict(sorted(collections.Counter(m.folder for m in modules).items())),
        "lines": sum(m.lines for m in modules),
        **{f"largest_{k}": {"name": s.name, "lines": s.lines} for k, s in largest.items()},
        "attributes_of_largest_class": len(attributes(of_largest_class)),
        "over_limit": {
            kind: {
                size.name: size.lines
                for size in sorted(sized, key=lambda s: -s.lines)
                if size.kind == kind and size.lines > most
            }
            for kind, most in LIMITS.items()
        },
        "imports": imports(modules),
        "past_participles": {
            "share": round(count / len(functions), 3),
            "functions": len(functions),
            "names": participles[:SHOWN],
        },
    }


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    # A property is a noun, and its name may be a past participle.
    return any(
        ast.unparse(each).rpartition(".")[2] in ("property", "cached_property", "setter")
        for each in node.decorator_list
    )


def before() -> dict[str, Any]:
    """Return the measures of the wheel with flat modules."""
    (wheel,) = (ROOT / "tests" / "data" / "before_layout").glob("*.whl")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        return measure(Path(folder) / PACKAGE)


def measure_runs(files: Iterable[Path]) -> dict[str, Any]:
    """Return the seconds of lanes and the number of tests, from reports that pytest wrote.

    A file is named after its target: `unit.xml`, `test.xml` or `test-long.xml`.

    Raises:
        ValueError: a run failed, or a file is not named after a target.
    """
    found: dict[str, Any] = {}
    counts = {}
    for path in files:
        lane = path.stem
        suite = ET.parse(path).getroot().find("testsuite")
        if lane not in ("unit", "test", "test-long") or suite is None:
            raise ValueError(f"{path} is not a report of make unit, make test or make test-long")
        if int(suite.get("failures", 0)) or int(suite.get("errors", 0)):
            raise ValueError(f"{path} is the report of a failed run: its time does not count")
        found[f"{lane.replace('-', '_')}_s"] = round(float(suite.get("time", 0)), 1)
        counts[lane] = int(suite.get("tests", 0))
    if counts.keys() >= {"test", "test-long"}:
        found["tests"] = counts["test"] + counts["test-long"]
    return found


def measure_texts(root: Path) -> dict[str, int]:
    """Return the length of the README, and how often tests replace a part of the package."""
    patches = [each for each in patches_in(root / "tests") if each[0].name != EXAMPLES_OF_PATCHES]
    return {
        "readme_lines": len((root / "README.md").read_text().splitlines()),
        "patches_of_own_modules": len(patches),
    }


def read_recorded(target: Path | None) -> dict[str, Any]:
    """Return the measures of an earlier run from a file. Missing measures are None."""
    known = json.loads(target.read_text())["after"] if target and target.exists() else {}
    return {name: known.get(name) for name in RECORDED}


def main() -> None:
    """Print the measures, or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where to write the measures (default stdout)")
    parser.add_argument(
        "--junit", type=Path, action="append", default=[], help="report of a lane that passed"
    )
    parser.add_argument(
        "--sentences",
        type=int,
        nargs=2,
        metavar=("OF", "MARKED"),
        help="how many sentences readers were shown, and how many they marked",
    )
    parser.add_argument(
        "--others",
        type=int,
        nargs=2,
        metavar=("OF", "MARKED"),
        help="the same for sentences of other projects",
    )
    arguments = parser.parse_args()
    target = arguments.json
    after = {**measure(ROOT / PACKAGE), **measure_texts(ROOT), **read_recorded(target)}
    after.update(measure_runs(arguments.junit))
    if arguments.sentences:
        numbers = [*arguments.sentences, *(arguments.others or ())]
        names = ("of", "marked", "of_others", "marked_of_others")
        after["sentences_marked"] = dict(zip(names, numbers, strict=False))
    text = json.dumps({"before": {**before(), **BEFORE}, "after": after}, indent=1) + "\n"
    if target is None:
        sys.stdout.write(text)
    else:
        target.write_text(text)


if __name__ == "__main__":
    main()
