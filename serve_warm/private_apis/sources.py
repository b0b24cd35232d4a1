# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Digests of another package's source: whether a function is still the one that we know.

A digest is made of the syntax tree without docstrings, so comments and layout do not count. It is
the same with every version of Python. Sources are read and never imported, so a wheel can be
judged that is not installed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

Read = Callable[[str], "str | None"]
"""Returns the text of a file such as `torch/_dynamo/eval_frame.py`, or None if there is none."""

ANY = "*"
"""As a class, all classes of all modules in a folder that define the name."""

IGNORED = ("ctx", "kind", "type_comment", "type_ignores", "type_params")
"""Fields of syntax trees that differ between versions of Python, or say nothing."""

SIZE = 12
"""Characters of a digest."""


class PackageSources:
    """The sources of one version of a package."""

    def __init__(self, read: Read, names: Callable[[str], list[str]]) -> None:
        """`names` returns the names of the modules in a folder, such as `torch/_dynamo`."""
        self._read = read
        self._names = names
        self._trees: dict[str, ast.Module | None] = {}

    @classmethod
    def installed(cls, package: str) -> PackageSources | None:
        """Return the sources of an installed package, or None if it is not installed."""
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            return None
        root = Path(found.submodule_search_locations[0]).parent

        def read(name: str) -> str | None:
            file = root / name
            return file.read_text(encoding="utf-8") if file.is_file() else None

        return cls(read, lambda folder: [file.stem for file in (root / folder).glob("*.py")])

    @classmethod
    def of_wheel(cls, wheel: Path) -> PackageSources:
        """Return the sources in a wheel."""
        archive = zipfile.ZipFile(wheel)
        files = {name for name in archive.namelist() if name.endswith(".py")}

        def read(name: str) -> str | None:
            return archive.read(name).decode() if name in files else None

        def names(folder: str) -> list[str]:
            return [Path(name).stem for name in files if str(Path(name).parent) == folder]

        return cls(read, names)

    def digest(self, place: str) -> str | None:
        """Return the digest of what a place names, or None if there is no such thing.

        A place is a module and a name in it, such as `torch._dynamo.codegen:PyCodegen.__call__`.
        With the class `*`, the module is a folder, and all its classes with this name count.
        """
        module, _, name = place.partition(":")
        if not name.startswith(f"{ANY}."):
            found = [_dump(node) for node in self._find(module, name.split("."))]
        else:
            found = [
                f"{each}:{owner.name} {_dump(node)}"
                for each in sorted(self._names(module.replace(".", "/")))
                for owner in ast.walk(self._tree(f"{module}.{each}") or ast.Module([], []))
                if isinstance(owner, ast.ClassDef)
                for node in _named(owner.body, name.removeprefix(f"{ANY}."))
            ]
        if not found:
            return None
        return _digest_of("\n".join(found))

    def files(self) -> dict[str, str]:
        """Return the digest of each module that has been read; empty for one that is not there."""
        return {module: self.file_digest(module) for module in sorted(self._trees)}

    def file_digest(self, module: str) -> str:
        """Return the digest of a module's text, or an empty string if there is no such module."""
        text = self._text(module)
        return "" if text is None else _digest_of(text)

    def _find(self, module: str, path: list[str]) -> Iterator[ast.stmt]:
        tree = self._tree(module)
        places: list[list[ast.stmt]] = [tree.body] if tree is not None else []
        for part in path[:-1]:
            inner = [each for body in places for each in _named(body, part)]
            places = [each.body for each in inner if isinstance(each, ast.ClassDef)]
        for body in places:
            yield from _named(body, path[-1])

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            text = self._text(module)
            self._trees[module] = None if text is None else ast.parse(text)
        return self._trees[module]

    def _text(self, module: str) -> str | None:
        file = module.replace(".", "/")
        return self._read(f"{file}.py") or self._read(f"{file}/__init__.py")


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:SIZE]


def _named(body: list[ast.stmt], name: str) -> Iterator[ast.stmt]:
    """Yield the definitions of a name in a body, also those inside `if`, `try` and `with`."""
    for each in body:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if each.name == name:
                yield each
        elif isinstance(each, (ast.Assign, ast.AnnAssign)):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                yield each
        elif isinstance(each, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "finalbody"):
                yield from _named(getattr(each, part, []), name)
            for handler in getattr(each, "handlers", ()):
                yield from _named(handler.body, name)


def _dump(node: object) -> str:
    """Return a syntax tree as text, without docstrings and without what Python versions add."""
    if isinstance(node, list):
        return f"[{' '.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name, value in ast.iter_fields(node):
        if name in IGNORED or value is None or value == []:
            continue
        kept = value
        if name == "body" and _has_docstring(node):
            kept = value[1:]
        fields.append(f"{name}={_dump(kept)}")
    return f"({type(node).__name__} {' '.join(fields)})"


def _has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
        return False
    return ast.get_docstring(node, clean=False) is not None
