# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Programs that some tests need and that pip does not install."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def require(what: str, install: str) -> str:
    """Return the path of a program; without it the test is skipped, and in CI it fails."""
    here = Path(__file__).parents[1] / "build" / "components"
    places = [str(here / "node_modules" / ".bin"), str(here / "bin"), os.environ.get("PATH", "")]
    found = shutil.which(what, path=os.pathsep.join(places))
    if found:
        return found
    message = f"{what} is not installed: {install}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
