# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Imports in the background: while one thread imports there, no other enters unfinished modules.

Python locks each module on its own. Two threads that enter modules which import one another by
different doors come to wait in a circle; Python notices, and one of them gets an error or a
half-made module. torch's compiler is such a group: of 24 calls of `torch.compile` that were made
while another thread imported it 7 failed (torch 2.13, Python 3.11). So whoever needs a module that
is not there yet waits until the background is through, before it holds any module's lock; and the
background waits until nobody is in the middle of an import.

Whoever waits may hold another lock that the background needs: `logging.config.dictConfig` imports
handlers with logging's lock held, which each `logging.getLogger` takes. So nobody waits for a
background that does not get on. What is left: who holds such a lock and asks for the very module
that the background is in the middle of waits for ever, as two threads of Python's own may. So does
the child of a `fork` made with such a lock held, if it asks for that module.

`when_imported` is for whoever must act on a module as soon as it is there, and not bring it.

The private names of Python (the same from 3.10 to 3.14) are `importlib._bootstrap._find_and_load`,
by which the import of each module that is not loaded goes, whoever asks, and `_ModuleLockManager`,
which holds the lock of one module. What is loaded never comes by.
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
from types import ModuleType
from typing import Any

QUIET_S = 0.1
"""Seconds without an import before the background begins. Imports come in bursts, and between two
of a burst the background would only stand in the way: imports take turns at the GIL anyway."""
POLL_S = 0.02
STUCK_S = 10.0
"""An import waits no longer for a background that comes to no other module in this time: it may
need what the waiting thread holds. The longest it took for one of torch's was 0.7 s (torch 2.13, a
machine with four times as much to do as it has cores)."""
LOGGING_S = 0.25
"""The same where the waiting thread is known to hold logging's lock: it is the likely reason."""


class Turns:
    """Who imports in this process: as many threads as want to, or one of the background alone.

    Make it outside of any import, in the thread that will import the most: what began before is
    not known. It watches until `end()`. `stuck_s` is as `STUCK_S` says.
    """

    def __init__(self, *, stuck_s: float = STUCK_S) -> None:
        self._stuck_s = stuck_s
        self._changed = threading.Condition()
        self._importing = 0
        self._last = time.monotonic()
        self._forking = 0
        self._alone: int | None = None
        self._steps = 0
        """How often somebody became alone, and began or ended a module then."""
        self._own = threading.local()
        self._find_and_load: Callable[[str, Any], Any] = getattr(_bootstrap, _FIND)
        self._watched = self._load  # one object, so that it is known again
        setattr(_bootstrap, _FIND, self._watched)
        # A process that is forked in the middle would have half-made modules for good, locked by
        # a thread that it does not have.
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._begin_in_child,
        )

    def end(self) -> None:
        """Watch no longer."""
        # Where somebody wrapped it after us it stays, and goes on to what was there before.
        if getattr(_bootstrap, _FIND) is self._watched:
            setattr(_bootstrap, _FIND, self._find_and_load)

    @contextmanager
    def alone(
        self, ready: Callable[[], bool], *, given_up: threading.Event, quiet_s: float = QUIET_S
    ) -> Iterator[bool]:
        """Wait until this is `ready` and nobody imports; nobody else does inside the block then.

        `quiet_s` is for how long nobody may have imported before. Gives whether that came about
        while `given_up` was not set; if not, import nothing.
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
            # Looked at under the lock: whoever sets it and imports then finds nobody alone.
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
        """Wait, with `_changed` held, until nobody else is alone or whoever is does not get on."""
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
            self._forking += 1  # nobody becomes alone until it is over

    def _after_fork(self) -> None:
        with self._changed:
            self._forking -= 1
            self._changed.notify_all()

    def _begin_in_child(self) -> None:
        # Whoever held the lock, imported or was alone is not there.
        self._changed = threading.Condition()
        self._alone, self._importing, self._forking = None, 0, 0
        self.end()

    def _load(self, name: str, import_: Any) -> Any:
        if self._alone == threading.get_ident():
            return self._load_alone(name, import_)
        depth: int = getattr(self._own, "depth", 0)
        if depth == 0:
            # Only here: further in, this thread holds locks of modules, and must not wait.
            with self._changed:
                self._wait()
                self._importing += 1
        self._own.depth = depth + 1
        try:
            return self._find_and_load(name, import_)
        finally:
            self._own.depth = depth
            if depth == 0:
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
    # Private; a lock that can be asked from 3.10 to 3.14, and nothing is known of any other.
    is_owned = getattr(getattr(logging, "_lock", None), "_is_owned", None)
    return is_owned is not None and bool(is_owned())


def when_imported(name: str, call: Callable[[ModuleType], object]) -> None:
    """Make `call(module)` once, as soon as a module has been imported by whomever.

    At once where it is there already, and after waiting where another thread is in the middle of
    it. Else from the thread that imports it, before anybody can use it; an import that fails
    makes no call, the next one that succeeds does. What `call` raises is raised by that import,
    which has failed then. Asked for twice, the same `call` is made once. Only a module that is
    half-made around the caller itself gets its call from a thread of its own, soon after.

        when_imported("torch._dynamo", lambda dynamo: print(dynamo.__file__))
    """
    _after_import.make(name, call)


class _AfterImport:
    """A finder that finds nothing, and sees to it that what others find is called back about.

    To other imports it costs one look into a dict. It has no lock, which a fork could leave held
    for ever: what is done to its dicts are single steps, and those for one module are made by
    whoever holds the lock of that module.
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
            # Nobody else is between looking for it and having it then, whom a look into
            # sys.modules would miss.
            with _bootstrap._ModuleLockManager(name):
                module = sys.modules.get(name)
                if module is None:
                    self._keep(name, call)
                    return
        except _bootstrap._DeadlockError:
            module = None  # whoever makes it waits for this thread
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
            # Never taken out: whoever goes through the list meanwhile would miss a finder.
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
                    loader: Any = _Loader(found, found.loader, self._imported)
                    found.loader = loader
                return found
        return None

    def _imported(self, name: str) -> None:
        for call in tuple(self._waiting.get(name, ())):
            call(sys.modules[name])
        # Not before all were made: where one raises, what comes next is another module.
        self._waiting.pop(name, None)


class _Loader:
    """Loads as the loader that was found does, in whose place it is until it begins."""

    def __init__(self, spec: ModuleSpec, loader: Any, imported: Callable[[str], None]) -> None:
        self._spec = spec
        self._loader = loader
        self._imported = imported

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._imported(self._spec.name)

    def __getattr__(self, name: str) -> Any:
        # For those who only look: pkgutil.get_loader(...).get_source and the like.
        return getattr(self._loader, name)


def _half_made(module: ModuleType) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


_bootstrap: Any = importlib._bootstrap
_FIND = "_find_and_load"
_after_import = _AfterImport()


def is_imported() -> bool:
    """Return whether torch's compiler is in this process; without it nothing can be compiled."""
    return any(name in sys.modules for name in ("torch._dynamo", "torch._inductor"))


def import_compiler() -> None:
    """Import what the first compile would import (about 1.5 s), so that a stage pays for it.

    Asks CUDA for its devices in some versions (2.11).
    """
    import_dynamo()
    import torch._inductor.compile_fx  # noqa: F401


def import_dynamo() -> None:
    """Import the half of it that asks CUDA for nothing (2.11 to 2.13)."""
    import torch._dynamo  # noqa: F401
