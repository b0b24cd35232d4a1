# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Callables that an application compiles again and again from the same code.

An application may make an object or a closure for each request, and compile a method of the object
or the closure itself. Each of these is another callable. From the fifth one on, they share their
counts and entries, and torch.compile runs only if a call needs it.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from serve_warm.precompile.calls.signature import module_of
from serve_warm.precompile.dispatch.dispatcher import Shared

CALLABLES_WITHOUT_SHARING = 4
"""Number of callables with the same code that share nothing. An application may have a few."""

KEPT = 256
"""Maximum number of different codes that are remembered."""


@dataclass
class _Seen:
    """The callables so far with one code, class and set of arguments."""

    code: types.CodeType
    number: int = 0
    shared: Shared | None = None


class SameCode:
    """What callables with the same code share. Any thread may use this."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[tuple[object, ...], _Seen] = {}
        """By the id of the code, the class, the level and the arguments; the latest is last."""

    def find_shared(
        self, function: Callable[..., object], arguments: Mapping[str, object], level: int
    ) -> Shared | None:
        """Return what a new callable shares with earlier ones, or None if it shares nothing."""
        if not _may_be_for_one_request(function):
            return None
        code, kind = function.__code__, type(getattr(function, "__self__", None))
        name = (kind.__module__, kind.__qualname__)
        key = (id(code), name, level, repr(sorted(arguments.items())))
        with self._lock:
            seen = self._seen.pop(key, None)
            if seen is None or seen.code is not code:
                seen = _Seen(code)
            self._seen[key] = seen
            if len(self._seen) > KEPT:
                del self._seen[next(iter(self._seen))]
            seen.number += 1
            if seen.shared is None and seen.number > CALLABLES_WITHOUT_SHARING:
                seen.shared = Shared(function, arguments, level)
            return seen.shared


def _may_be_for_one_request(function: object) -> bool:
    """Return whether a callable is a method of an object, or a function made by a function."""
    if isinstance(function, types.MethodType):
        owner = function.__self__
        is_of_object = module_of(function) is None and not isinstance(owner, type)
        return is_of_object and isinstance(function.__func__, types.FunctionType)
    return isinstance(function, types.FunctionType) and "<locals>" in function.__qualname__


SAME_CODE = SameCode()
"""The callables of this process."""
