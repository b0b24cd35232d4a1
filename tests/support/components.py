# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Components that some tests need but `make setup` does not install."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest

FOLDERS = ("npm/node_modules/.bin", "bin")
"""Folders of programs, below build/components."""


def require(what: str, install: str) -> str:
    """Return the path of a program; if missing, skip the test, or fail it in CI."""
    here = Path(__file__).parents[2] / "build" / "components"
    places = [*(str(here / folder) for folder in FOLDERS), os.environ.get("PATH", "")]
    found = shutil.which(what, path=os.pathsep.join(places))
    if found is None:
        _missing(what, install)
    return found


def require_folder(what: str, install: str) -> str:
    """Return a folder of Python packages that are not in the suite's environment.

    If the folder is missing, the test is skipped, or fails in CI.
    """
    folder = Path(__file__).parents[2] / "build" / "components" / what
    if not folder.is_dir():
        _missing(what, install)
    return str(folder)


def require_module(what: str, install: str) -> Any:
    """Return an imported module; if missing, skip the test, or fail it in CI."""
    try:
        return importlib.import_module(what)
    except ModuleNotFoundError:
        _missing(what, install)


def _missing(what: str, install: str) -> NoReturn:
    message = f"{what} is not installed: {install}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
