# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Imports of torch's compiler: hooks that run after them, and the line of code that began them.

`when_imported` does not import a module, but calls a function as soon as another import has loaded
the module.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

COMPILER_MODULES = ("torch._dynamo", "torch._inductor")
"""The two halves of torch's compiler."""

HOOKED = (
    "torch._dynamo",
    "torch._dynamo.eval_frame",
    "torch._inductor.autotune_process",
    "torch._inductor.codecache",
    "torch._inductor.config",
    "torch._inductor.cpp_builder",
    "torch._inductor.cpu_vec_isa",
    "torch._inductor.cudagraph_trees",
    "torch._inductor.cudagraph_utils",
    "torch._inductor.runtime.triton_heuristics",
    "torch._inductor.select_algorithm",
    "torch.cuda.graphs",
    "triton",
    "triton.runtime.autotuner",
    "triton.runtime.build",
)
"""The modules that `when_imported` accepts."""


def when_imported(name: str, call: Callable[[ModuleType], object]) -> None:
    """Call `call(module)` once, as soon as any thread has imported the module `name` of `HOOKED`.

    If the module is loaded, `call` runs at once. Otherwise the thread that imports the module makes
    the call, before any code can use the module. After a failed import, `call` does not run until
    an import succeeds. An exception in `call` makes the import fail. If an equal `call` was already
    passed for the same module, the new `call` does not run.

        when_imported("torch._dynamo", lambda dynamo: print(dynamo.__file__))
    """
    _after_import.make(name, call)


class AfterImport:
    """An import finder that never finds a module itself, but reports what other finders find.

    It wraps the loader of each of its modules, even if no call waits for the module. So no import
    can slip past a call that another thread adds. The finder has no lock, because a fork could
    leave a lock locked forever. Each change to its fields is one atomic step.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._known: dict[tuple[str, Callable[[ModuleType], object]], object] = {}
        self._waiting: dict[str, list[Callable[[ModuleType], object]]] = {n: [] for n in names}
        self._loading: set[str] = set()

    def make(self, name: str, call: Callable[[ModuleType], object]) -> None:
        """Do what `when_imported` does."""
        if self not in sys.meta_path:
            # The finder is never removed, because a thread that iterates over the list could then
            # miss a finder.
            sys.meta_path.insert(0, self)
        first = object()
        if self._known.setdefault((name, call), first) is not first:
            return
        self._waiting[name].append(call)
        # Look for the module after adding the call. If an import ends in between, one thread takes
        # the call.
        if name in sys.modules and name not in self._loading and self._take(name, call):
            # Waits for an import that another thread began before this finder was added.
            call(importlib.import_module(name))

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that another finder finds, with a wrapped loader."""
        if name not in self._waiting:
            return None
        for finder in sys.meta_path:
            look: Any = getattr(finder, "find_spec", None)
            if finder is self or look is None:
                continue
            found: ModuleSpec | None = look(name, path, target)
            if found is not None:
                if found.loader is not None:
                    loader: Any = _Loader(found, found.loader, self)
                    found.loader = loader
                return found
        return None

    def begin(self, name: str) -> None:
        """Record that a thread loads the module. Until `end`, that thread makes all calls."""
        self._loading.add(name)

    def end(self, name: str) -> None:
        """Record that the thread has loaded the module, or has failed."""
        self._loading.discard(name)

    def make_waiting(self, name: str) -> None:
        """Make the waiting calls of a module that is loaded."""
        waiting = self._waiting[name]
        with contextlib.ExitStack() as on_error:
            for call in tuple(waiting):
                if self._take(name, call):
                    # After an error, the next import creates a new module.
                    on_error.callback(waiting.insert, 0, call)
                    call(sys.modules[name])
            on_error.pop_all()

    def _take(self, name: str, call: Callable[[ModuleType], object]) -> bool:
        """Return whether this thread must make the call, because no other thread took it."""
        try:
            self._waiting[name].remove(call)
        except ValueError:
            return False
        return True


class _Loader:
    """Wraps the loader of a module, and tells the finder when the module is loaded."""

    def __init__(self, spec: ModuleSpec, loader: Any, finder: AfterImport) -> None:
        self._spec = spec
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        self._finder.begin(spec.name)  # the module is not in sys.modules yet
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        try:
            self._loader.exec_module(module)
        finally:
            self._finder.end(self._spec.name)
        self._finder.make_waiting(self._spec.name)

    def __getattr__(self, name: str) -> Any:
        # This serves readers such as pkgutil.get_loader(...).get_source.
        return getattr(self._loader, name)


_after_import = AfterImport(HOOKED)


class Importer:
    """The place (module and line) where this process imported torch's compiler."""

    def __init__(self) -> None:
        self.place = ""
        """Empty if Dynamo is not imported, or was imported before `watch` was called."""

    def watch(self) -> None:
        """From now on, record which line of code imports Dynamo."""
        if "torch._dynamo" not in sys.modules:
            when_imported("torch._dynamo", self._note)

    def _note(self, _: ModuleType) -> None:
        self.place = find_importer()


IMPORTER = Importer()
"""The `Importer` that this process uses."""


def find_importer() -> str:
    """Return the module and line that began the current import, ignoring importlib and torch.

    Returns an empty string if this thread is importing nothing.
    """
    frame: FrameType | None = sys._getframe(1)
    is_import = False
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("importlib"):
            is_import = True
        elif is_import and not f"{name}.".startswith(("torch.", f"{__name__}.")):
            return f"{name}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_imported() -> bool:
    """Return whether torch's compiler is loaded; without it, nothing can be compiled."""
    return any(name in sys.modules for name in COMPILER_MODULES)


def import_compiler() -> None:
    """Import the modules that the first compile needs. The import takes about 1.5 s.

    Some versions of torch (2.11) query CUDA devices during the import.
    """
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401
