# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Background imports that take turns with imports of other threads.

Python locks each module separately, and some modules import one another. If two threads import such
a group, and each begins with a different module, the threads deadlock. Python detects the deadlock,
and one of the threads gets an error or a half-loaded module. The modules of torch's compiler are
such a group. In a test, 24 calls of `torch.compile` were made while another thread imported the
compiler, and 7 of them failed (torch 2.13, Python 3.11). So a thread that imports a new module
first waits for the background thread, and only then takes the module's lock. The background thread
waits until no other thread is importing.

A waiting thread might hold another lock that the background thread needs. For example,
`logging.config.dictConfig` imports handlers while it holds logging's lock, and each
`logging.getLogger` takes this lock. So a thread stops waiting if the background thread makes no
progress.

One kind of deadlock is still possible, as it is between any two Python threads. A thread waits
forever if it imports the same module as the background thread while holding a lock that the
background thread needs. A child process also waits forever if such a lock was held at the fork and
the child imports that module.

`when_imported` does not import a module, but calls a function as soon as another import has loaded
the module.

This module uses private names of Python, which are the same from 3.10 to 3.14.
`importlib._bootstrap._find_and_load` runs for each import of a module that is not loaded yet.
`_ModuleLockManager` holds the lock of one module.
https://github.com/python/cpython/blob/v3.11.7/Lib/importlib/_bootstrap.py
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from serve_warm.node import boot_s

QUIET_S = 0.1
"""Seconds that must pass without an import before the background thread begins. Imports come in
bursts. During a burst, a background import would save nothing, because imports share the GIL."""
POLL_S = 0.02
STUCK_S = 10.0
"""Maximum seconds that an import waits for the background thread to reach its next module. After
that, the waiting import continues, because the background thread may need a lock that the waiting
thread holds. The import of torch's slowest module took 0.7 s (torch 2.13, on a machine whose load
was four times its number of cores)."""
COMPILER_MODULES = ("torch._dynamo", "torch._inductor")
"""The two halves of torch's compiler."""
LOGGING_S = 0.25
"""Like `STUCK_S`, but for a thread that holds logging's lock. The limit is short, because the
background thread is probably waiting for that lock."""


class Turns:
    """Decides which threads can import: either one background thread alone, or all other threads.

    Create this object in the thread that makes most of the imports. Do not create it during an
    import, because an import that has already begun is not seen. Imports are watched until `end()`.
    For `stuck_s`, see `STUCK_S`.
    """

    def __init__(
        self,
        *,
        stuck_s: float = STUCK_S,
        tell: Callable[[str, float, float], None] = lambda _name, _began, _ended: None,
    ) -> None:
        # `tell` is called after each outermost import of user code, with the module's name and the
        # CLOCK_BOOTTIME at which the import began and ended. Nested imports are part of the
        # outermost import.
        self._stuck_s = stuck_s
        self._tell = tell
        self._changed = threading.Condition()
        self._importing = 0
        self._last = time.monotonic()
        self._forking = 0
        self._alone: int | None = None
        self._steps = 0
        """Progress counter: increases when a thread becomes the only importer, and when that thread
        begins or ends the import of a module."""
        self._own = threading.local()
        self._find_and_load: Callable[[str, Any], Any] = getattr(_bootstrap, _FIND)
        self._watched = self._load  # one bound method, so that `end` can compare identities
        setattr(_bootstrap, _FIND, self._watched)
        # A child forked in the middle of an import would keep half-loaded modules, locked by a
        # thread that does not exist in the child.
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._begin_in_child,
        )

    def end(self) -> None:
        """Stop watching imports."""
        # If another library has wrapped the hook, leave the hook in place. It then only calls the
        # original function.
        if getattr(_bootstrap, _FIND) is self._watched:
            setattr(_bootstrap, _FIND, self._find_and_load)

    @contextmanager
    def alone(
        self, ready: Callable[[], bool], *, given_up: threading.Event, quiet_s: float = QUIET_S
    ) -> Iterator[bool]:
        """Wait until `ready()` is true and no thread is importing; then make other imports wait.

        `quiet_s` is the number of seconds that must pass without an import. Yields True if the
        caller is allowed to import, and False once `given_up` is set.
        """
        with self._changed:
            while (
                self._alone is not None
                or self._importing
                or self._forking
                or time.monotonic() - self._last < quiet_s
                or not ready()
            ) and not given_up.is_set():
                self._changed.wait(POLL_S)
            # Check `given_up` under the lock. So once it is set, no further thread becomes the only
            # importer.
            has_it = not given_up.is_set()
            if has_it:
                self._alone = threading.get_ident()
                self._steps += 1
        try:
            yield has_it
        finally:
            if has_it:
                with self._changed:
                    self._alone = None
                    self._changed.notify_all()

    def _wait(self) -> None:
        """Wait while another thread is the only importer, unless that thread is stuck.

        The caller holds `_changed`.
        """
        own, steps, since = threading.get_ident(), self._steps, time.monotonic()
        limit_s = LOGGING_S if _holds_logging() else self._stuck_s
        while self._alone not in (None, own):
            if steps != self._steps:
                steps, since = self._steps, time.monotonic()
            elif time.monotonic() - since >= limit_s:
                self._own.stuck_at = steps
            if steps == getattr(self._own, "stuck_at", None):
                return
            self._changed.wait(POLL_S)

    def _before_fork(self) -> None:
        with self._changed:
            self._wait()
            self._forking += 1  # no thread may become the only importer until the fork is over

    def _after_fork(self) -> None:
        with self._changed:
            self._forking -= 1
            self._changed.notify_all()

    def _begin_in_child(self) -> None:
        # Threads that held the lock or were importing do not exist in the child.
        self._changed = threading.Condition()
        self._alone, self._importing, self._forking = None, 0, 0
        self.end()

    def _load(self, name: str, import_: Any) -> Any:
        if self._alone == threading.get_ident():
            return self._load_alone(name, import_)
        depth: int = getattr(self._own, "depth", 0)
        if depth == 0:
            # Nested imports must not wait, because this thread already holds module locks.
            with self._changed:
                self._wait()
                self._importing += 1
        self._own.depth = depth + 1
        began_s = boot_s()
        try:
            return self._find_and_load(name, import_)
        finally:
            self._own.depth = depth
            if depth == 0:
                self._tell(name, began_s, boot_s())
                with self._changed:
                    self._importing -= 1
                    self._last = time.monotonic()
                    self._changed.notify_all()

    def _load_alone(self, name: str, import_: Any) -> Any:
        self._steps += 1
        try:
            return self._find_and_load(name, import_)
        finally:
            self._steps += 1


def _holds_logging() -> bool:
    # This name is private, and the same from 3.10 to 3.14. Python does not expose the owner of
    # other locks.
    is_owned = getattr(getattr(logging, "_lock", None), "_is_owned", None)
    return is_owned is not None and bool(is_owned())


def when_imported(name: str, call: Callable[[ModuleType], object]) -> None:
    """Call `call(module)` once, as soon as any thread has imported the module.

    If the module is loaded, `call` runs at once. If another thread is importing the module,
    `when_imported` first waits for that import. Otherwise the thread that later imports the module
    makes the call, before any code can use the module. After a failed import, `call` does not run
    until an import succeeds. An exception in `call` makes the import fail. If an equal `call` was
    already passed for the same module, the new `call` does not run. If the calling thread itself is
    importing the module, a new thread makes the call after the import.

        when_imported("torch._dynamo", lambda dynamo: print(dynamo.__file__))
    """
    _after_import.make(name, call)


class _AfterImport:
    """An import finder that never finds a module itself, but reports what other finders find.

    If no call waits for a module, importing the module costs only one extra dict lookup. The finder
    has no lock, because a fork could leave a lock locked forever. Each change to `_known` is one
    atomic step, and `_waiting` changes only under the module's lock.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, Callable[[ModuleType], object]], object] = {}
        self._waiting: dict[str, list[Callable[[ModuleType], object]]] = {}

    def make(self, name: str, call: Callable[[ModuleType], object]) -> None:
        first = object()
        if self._known.setdefault((name, call), first) is first:
            self._make_or_keep(name, call)

    def _make_or_keep(self, name: str, call: Callable[[ModuleType], object]) -> None:
        try:
            # This thread holds the module's lock. So no other thread can be between importing the
            # module and storing it in sys.modules.
            with _bootstrap._ModuleLockManager(name):
                module = sys.modules.get(name)
                if module is None:
                    self._keep(name, call)
                    return
        except _bootstrap._DeadlockError:
            module = None  # the importing thread waits for this thread
        if module is None or _half_made(module):
            threading.Thread(
                target=self._make_or_keep,
                args=(name, call),
                name="serve_warm-when-imported",
                daemon=True,
            ).start()
        else:
            call(module)

    def _keep(self, name: str, call: Callable[[ModuleType], object]) -> None:
        self._waiting.setdefault(name, []).append(call)
        if self not in sys.meta_path:
            # The finder is never removed, because a thread that iterates over the list could then
            # miss a finder.
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._waiting:
            return None
        for finder in sys.meta_path:
            look: Any = getattr(finder, "find_spec", None)
            if finder is self or look is None:
                continue
            found: ModuleSpec | None = look(name, path, target)
            if found is not None:
                if found.loader is not None:
                    loader: Any = _Loader(found, found.loader, self._call_all)
                    found.loader = loader
                return found
        return None

    def _call_all(self, name: str) -> None:
        for call in tuple(self._waiting.get(name, ())):
            call(sys.modules[name])
        # Remove the calls only after all have run, because after an exception the next import
        # creates a new module.
        self._waiting.pop(name, None)


class _Loader:
    """Wraps the loader of a module, and makes a call once the module is loaded."""

    def __init__(self, spec: ModuleSpec, loader: Any, call_all: Callable[[str], None]) -> None:
        self._spec = spec
        self._loader = loader
        self._call_all = call_all

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._call_all(self._spec.name)

    def __getattr__(self, name: str) -> Any:
        # This serves readers such as pkgutil.get_loader(...).get_source.
        return getattr(self._loader, name)


def _half_made(module: ModuleType) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


_bootstrap: Any = importlib._bootstrap
_FIND = "_find_and_load"
_after_import = _AfterImport()


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

    Returns an empty string if this thread is importing nothing, or is importing in the background.
    """
    frame: FrameType | None = sys._getframe(1)
    is_import = False
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(("importlib", "_frozen_importlib")):
            is_import = True
        elif is_import and not f"{name}.".startswith(("torch.", "threading.", f"{__name__}.")):
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
    import_dynamo()
    import torch._inductor.compile_fx  # noqa: F401


def import_dynamo() -> None:
    """Import only Dynamo, which does not query CUDA devices (torch 2.11 to 2.13)."""
    import torch._dynamo  # noqa: F401
