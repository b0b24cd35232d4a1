# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for modules of torch and Triton, in which hooks are installed as in the real ones."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def install(hook: Callable[[ModuleType], object], name: str, stand_in: ModuleType) -> None:
    """Run a hook for a stand-in, which is the module of this name for as long as the hook runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, stand_in)
        hook(stand_in)
