# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Imports of torch's compiler: hooks that run after them, and the line of code that began them.

`when_imported` does not import a module, but calls a function as soon as another import has loaded
the module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType

from serve_warm._after_import import AfterImport
from serve_warm.private_apis import dynamo, module_names
from serve_warm.private_apis.cpython import calling_frame
from serve_warm.private_apis.inductor import import_inductor

COMPILER_MODULES = (module_names.DYNAMO, module_names.INDUCTOR)
"""The two halves of torch's compiler."""


def when_imported(name: str, call: Callable[[ModuleType], object]) -> None:
    """Call `call(module)` after the import of the module `name`: see `AfterImport`.

    `name` is one of `module_names.HOOKED`.
    """
    _after_import.make(name, call)


_after_import = AfterImport(module_names.HOOKED)


class Importer:
    """The place (module and line) where this process imported torch's compiler."""

    def __init__(self) -> None:
        self.place = ""
        """Empty if Dynamo is not imported, or was imported before `watch` was called."""

    def watch(self) -> None:
        """From now on, record which line of code imports Dynamo."""
        if not dynamo.is_imported():
            when_imported(module_names.DYNAMO, self._note)

    def _note(self, _: ModuleType) -> None:
        self.place = find_importer()


IMPORTER = Importer()
"""The `Importer` that this process uses."""


def find_importer() -> str:
    """Return the module and line that began the current import, ignoring importlib and torch.

    Returns an empty string if this thread is importing nothing.
    """
    frame: FrameType | None = calling_frame(1)
    is_import = False
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("importlib"):
            is_import = True
        elif is_import and not f"{name}.".startswith(HOOKS):
            return f"{name}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""


HOOKS = ("torch.", f"{__name__}.", "serve_warm._after_import.", "serve_warm.private_apis.")
"""Beginnings of modules that import the compiler for others, each with a dot at the end."""


def is_imported() -> bool:
    """Return whether torch's compiler is loaded; without it, nothing can be compiled."""
    return any(name in sys.modules for name in COMPILER_MODULES)


def import_compiler() -> None:
    """Import the modules that the first compile needs. The import takes about 1.5 s.

    Some versions of torch (2.11) query CUDA devices during the import.
    """
    dynamo.import_dynamo()
    import_inductor()
