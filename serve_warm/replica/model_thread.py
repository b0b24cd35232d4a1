# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The model thread: one thread, as old as the replica, on which a model may be called."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from serve_warm.compiler.background_import import is_imported
from serve_warm.compiler.compiled_objects import uses_cuda_graphs
from serve_warm.compiler.cuda_graphs import clone_outputs

Result = TypeVar("Result")


class ModelThread:
    """The one thread of a replica for its model; it begins with the first call."""

    def __init__(self, owner: Any, *, is_starting: Callable[[], bool]) -> None:
        self._owner = owner
        self._is_starting = is_starting
        self._lock = threading.Lock()
        self._own_outputs = False
        self._asked_with_compiler = False
        self.executor: ThreadPoolExecutor | None = None
        """None until something was called on it."""
        self.native_id = 0
        """Of the thread; 0 until something was called on it."""

    async def run(
        self, fn: Callable[..., Result], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Result:
        """Call `fn` on the thread and return what it returns, copied where graphs own it."""
        executor = self.executor or self._begin()
        # torch.*.config is per context: the model sees the request's, as it would inline.
        run = contextvars.copy_context().run
        call = functools.partial(self._then_clone, functools.partial(run, fn, *args, **kwargs))
        return await asyncio.get_running_loop().run_in_executor(executor, call)

    def _begin(self) -> ThreadPoolExecutor:
        with self._lock:
            if self.executor is None:
                executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="serve_warm-model")
                self.native_id = executor.submit(threading.get_native_id).result()
                self.executor = executor
            return self.executor

    def _then_clone(self, call: Callable[[], Result]) -> Result:
        """Return what a call returned; copies, where the next call would overwrite it.

        On the model thread, where that next call comes.
        """
        result = call()
        # Asked after the call, in the start after each: it may have loaded and compiled the model.
        # And again when torch's compiler was imported, by a call that had no library.
        imported = is_imported()
        if self._is_starting() or imported != self._asked_with_compiler:
            self._asked_with_compiler = imported
            self._own_outputs = uses_cuda_graphs(self._owner)
        if not self._own_outputs:
            return result
        cloned: Result = clone_outputs(result)
        return cloned
