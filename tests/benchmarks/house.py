# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The rooms of the package and the arrows between them, read from its imports.

    PYTHONPATH=. python tests/benchmarks/house.py --json tests/benchmarks/results/house.json

`figures.py` writes the pictures into docs/architecture.md, and tests/tooling/test_readme.py fails
if they are out of date.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "tooling")]

import test_layout  # noqa: E402
from serve_warm.private_apis.table import TABLE  # noqa: E402

PACKAGE = Path(__file__).parent.parent.parent / "serve_warm"

WITH_ROOMS = ("precompile", "replica")

SAYS = ("report", "metrics")
"""Modules directly under `serve_warm` that read records of other rooms."""

SAID = " and ".join(SAYS)

DOORS = ("", "preload")
"""Modules that only give other modules their public names."""

Arrows = Mapping[str, frozenset[str]]


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield each module's name below the package, and its syntax tree."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name not in DOORS:
            yield name, ast.parse(path.read_text())


def box_of(module: str) -> str:
    """Return the box of the first picture that a module belongs to."""
    top, _, below = module.partition(".")
    if below or (PACKAGE / top).is_dir():
        return top
    return SAID if top in SAYS else "values"


def room_of(module: str, package: str) -> str:
    """Return the room of a package that a module belongs to, or an empty string."""
    top, _, below = module.partition(".")
    room = below.partition(".")[0]
    return room if top == package and (PACKAGE / top / room).is_dir() else ""


def arrows(package: str = "") -> Arrows:
    """Return what each box imports, or, for a package, what each of its rooms imports."""

    def place(module: str) -> str:
        return room_of(module, package) if package else box_of(module)

    found: dict[str, set[str]] = {}
    known = {name for name, _ in modules()}
    for name, tree in modules():
        here = place(name)
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            for alias in node.names:
                full = f"{node.module}.{alias.name}".removeprefix("serve_warm.")
                target = full if full in known else full.rpartition(".")[0]
                there = place(target) if target in known else ""
                if here and there and here != there:
                    found.setdefault(here, set()).add(there)
    every = {*found, *(each for others in found.values() for each in others)}
    return {box: frozenset(found.get(box, ())) for box in sorted(every)}


def floors(given: Arrows) -> dict[str, int]:
    """Return the floor of each box, 1 for a box without arrows.

    Raises:
        ValueError: the arrows form a circle.
    """
    known: dict[str, int] = {}

    def floor(box: str, above: tuple[str, ...]) -> int:
        if box in above:
            message = f"a circle: {' -> '.join((*above, box))}"
            raise ValueError(message)
        if box not in known:
            known[box] = 1 + max((floor(each, (*above, box)) for each in given[box]), default=0)
        return known[box]

    for box in given:
        floor(box, ())
    return known


def reduced(given: Arrows) -> Arrows:
    """Return the arrows without those that a longer way implies."""

    def below(box: str) -> set[str]:
        return {*given[box], *(far for each in given[box] for far in below(each))}

    return {
        box: frozenset(others - {far for each in others for far in below(each)})
        for box, others in given.items()
    }


def picture(package: str = "") -> str:
    """Return a picture in the language of Mermaid, top floor first."""
    given = arrows(package)
    height = floors(given)
    few = reduced(given)
    lines = ["```mermaid", "flowchart TD"]
    shown = {box: f'said["{box}"]' if " " in box else box for box in given}
    for box in sorted(given, key=lambda each: (-height[each], each)):
        lines += [f"    {shown[box]} --> {shown[each]}" for each in sorted(few[box])]
    total = sum(map(len, given.values()))
    say = f"{len(given)} boxes on {max(height.values())} floors, and {total} arrows."
    return "\n".join([*lines, "```", "", say])


def untyped_per_1000(package: str) -> float:
    """Return how often a package leaves its types open, for 1,000 lines of code.

    Counted are `Any`, casts, attributes read or written by a name in a string, and modules imported
    by a name. Blank lines, comments and docstrings are no lines of code.
    """
    places = lines = 0
    for path in (PACKAGE / package).rglob("*.py"):
        text = path.read_text()
        tree = ast.parse(text)
        said = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        places += sum(map(is_untyped, ast.walk(tree)))
        lines += sum(
            bool(line.strip()) and not line.lstrip().startswith("#") and number not in said
            for number, line in enumerate(text.splitlines(), 1)
        )
    return 1000 * places / lines


def is_untyped(node: ast.AST) -> bool:
    """Return whether a node names `Any`, or hides a type from a checker."""
    if isinstance(node, ast.Name):
        return node.id == "Any"
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    is_by_string = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
    return name in ("cast", "import_module") or (name in ("getattr", "setattr") and is_by_string)


def measure(known: dict[str, object]) -> dict[str, object]:
    """Return the figures of the house; what people and other programs measured stays."""
    pictures = {package or "serve_warm": arrows(package) for package in ("", *WITH_ROOMS)}
    return {
        **known,
        "floors": {name: max(floors(given).values()) for name, given in pictures.items()},
        "arrows": {name: sum(map(len, given.values())) for name, given in pictures.items()},
        "circles": 0,  # `floors` has found none
        "private_outside": sum(
            len(list(test_layout.private_violations(source, name, is_package=is_package)))
            for name, source, is_package in test_layout.modules()
        ),
        "any_per_1000": round(untyped_per_1000("precompile"), 1),
        "patches": len(TABLE),
    }


def main() -> None:
    """Write the figures into a JSON file, beside those that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    file: Path = parser.parse_args().json
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(measure(known), indent=1) + "\n")


if __name__ == "__main__":
    main()
