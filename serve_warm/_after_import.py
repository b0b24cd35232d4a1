# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Calls after imports: a function runs as soon as another import has loaded a module."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


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
        self._finding: set[tuple[str, int]] = set()
        """Modules that a thread is looking for, each with the thread's number."""

    def make(self, name: str, call: Callable[[ModuleType], object]) -> None:
        """Call `call(module)` once, as soon as any thread has imported the module `name`.

        If the module is loaded, `call` runs at once. Otherwise the thread that imports the module
        makes the call, before any code can use the module. After a failed import, `call` does not
        run until an import succeeds. An exception in `call` makes the import fail. If an equal
        `call` was already passed for the same module, the new `call` does not run.
        """
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
        asked = name, threading.get_ident()
        if name not in self._waiting or asked in self._finding:
            return None  # another finder may ask all finders, and come back to this one
        self._finding.add(asked)
        try:
            finders = (getattr(each, "find_spec", None) for each in sys.meta_path)
            specs = (find(name, path, target) for find in finders if find is not None)
            found = next((spec for spec in specs if spec is not None), None)
        finally:
            self._finding.discard(asked)
        if found is not None and found.loader is not None:
            loader: Any = _Loader(found, found.loader, self)
            found.loader = loader
        return found

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
