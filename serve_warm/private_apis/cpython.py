# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Names of Python that begin with an underscore. Most are documented; 3.10 to 3.14 have them."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import random

OPERATORS = "_operator"
"""The module that functions of `operator` name as their own."""


def frame_of_thread(thread: int) -> FrameType | None:
    """Return the frame that a thread is executing (`threading.get_ident`); None if it ended."""
    return sys._current_frames().get(thread)


def calling_frame(depth: int) -> FrameType:
    """Return the frame that called the caller (1), or one further out."""
    return sys._getframe(depth + 1)


def end_process(code: int) -> NoReturn:
    """End this process at once: without `finally`, `atexit` and waiting for threads."""
    os._exit(code)


def random_generator() -> random.Random:
    """Return the generator behind the functions of the module `random`."""
    import random

    found: random.Random = vars(random)["_inst"]
    return found


def is_frozen(kind: Any) -> bool:
    """Return whether a dataclass forbids changes of its fields."""
    return bool(kind.__dataclass_params__.frozen)


def is_importing(module: object) -> bool:
    """Return whether the code of a module is still running. Python's importer keeps this flag."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def has_gil() -> bool:
    """Return whether threads take turns. Python 3.13 has builds in which they do not."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())
