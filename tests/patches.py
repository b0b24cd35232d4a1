# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Places where tests replace a part of this package while they run. Standard library only."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PATCHING = {"setattr", "delattr", "setitem", "delitem", "object", "dict", "multiple", "patch"}
"""Methods of pytest's `monkeypatch` and of `unittest.mock.patch`."""


def patches_in(tests: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield each file below a folder that replaces something, the replaced name, and the line."""
    for path in sorted(tests.rglob("*.py")):
        for program in programs_in(path.read_text()):
            for name, line in patched(program):
                yield path, name, line


def patched(source: str) -> Iterator[tuple[str, int]]:
    """Yield the names that a test replaces in this package, with the lines.

    The names come from the first argument of a patching call, no matter how the patching object is
    named, and from assignments to a module's attributes.
    """
    tree = ast.parse(source)
    own = own_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func)
            first = ast.unparse(node.args[0])
            is_of_us = first.partition(".")[0] in own or is_own(first.strip("'\""))
            # A method of `self` belongs to a fake, not to a patching object.
            if called.rpartition(".")[2] in PATCHING and is_of_us and called[:5] != "self.":
                yield first, node.lineno
        for target in targets_of(node):
            if isinstance(target, ast.Attribute) and own.get(ast.unparse(target.value)) == "module":
                yield ast.unparse(target), node.lineno


def programs_in(source: str) -> Iterator[str]:
    """Yield a test's source, and the programs in its texts that other processes run."""
    yield source
    for node in ast.walk(ast.parse(source)):
        text = node.value if isinstance(node, ast.Constant) else ""
        if isinstance(text, str) and "serve_warm" in text and "\n" in text:
            with contextlib.suppress(SyntaxError):  # prose, or a program with placeholders
                ast.parse(text)
                yield text


def own_names(tree: ast.AST) -> dict[str, str]:
    """Return the names that a file imports from this package, and whether each is a module."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [each for each in node.names if is_own(each.name)]
            found |= {each.asname or "serve_warm": "module" for each in modules}
        elif isinstance(node, ast.ImportFrom) and is_own(node.module or ""):
            for each in node.names:
                kind = "module" if leads_to_module(f"{node.module}.{each.name}") else "object"
                found[each.asname or each.name] = kind
    return found


def targets_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the targets that a statement assigns or deletes, including parts of tuples."""
    if isinstance(node, (ast.Assign, ast.Delete)):
        for target in node.targets:
            yield from target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        yield node.target


def is_own(name: str) -> bool:
    """Return whether a dotted name begins with this package."""
    return name.partition(".")[0] == "serve_warm"


def leads_to_module(name: str) -> bool:
    """Return whether a dotted name is a module or package of this source tree."""
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()
