# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings, run as they stand."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

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


@pytest.mark.parametrize("module", modules_with_examples())
def test_examples_are_true(module: str):
    """What a docstring shows is what the code does, and what looks like an example is run."""
    results = doctest.testmod(
        importlib.import_module(module), optionflags=doctest.ELLIPSIS, raise_on_error=False
    )

    assert results.attempted > 0
    assert results.failed == 0


def test_there_are_examples():
    """The names that users write first are shown in use."""
    assert "serve_warm.inputs" in modules_with_examples()
