# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings, run as they stand."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from typing import Any

import pytest

import serve_warm

PACKAGE = Path(serve_warm.__file__).parent


def modules_with_examples() -> list[str]:
    """Return the dotted names of all modules in which a prompt stands."""
    return [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(PACKAGE.rglob("*.py"))
        if ">>> " in path.read_text()
    ]


class Finder(doctest.DocTestFinder):
    """Finds public classes where they are written: their `__module__` is the package."""

    def _from_module(self, module: Any, value: Any) -> bool:
        home = serve_warm._HOMES.get(getattr(value, "__name__", ""))
        return home == module.__name__ or super()._from_module(module, value)


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_are_true(name: str):
    """The code returns what docstrings show, and every example is run."""
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in Finder().find(importlib.import_module(name), name):
        runner.run(test)
    assert runner.tries > 0
    assert runner.failures == 0


def test_there_are_examples():
    """The names that users write first are shown in use."""
    assert "serve_warm.inputs" in modules_with_examples()
