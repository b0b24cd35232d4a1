# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The model thread: one thread that makes model calls and lives as long as the replica."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from serve_warm.compiler.compiled_objects import uses_cuda_graphs
from serve_warm.compiler.cuda_graphs import clone_outputs
from serve_warm.compiler.imports import is_imported
from serve_warm.learn.recorded import MODEL_THREAD

Result = TypeVar("Result")


class ModelThread:
    """The replica's only thread for calls to its model, created on the first call."""

    def __init__(self, owner: Any, *, may_change: Callable[[], bool]) -> None:
        self._owner = owner
        self._may_change = may_change
        self._lock = threading.Lock()
        self._own_outputs = False
        self._asked_with_compiler = False
        self.executor: ThreadPoolExecutor | None = None
        """The executor that owns the thread; None before the first call."""
        self.native_id = 0
        """The thread's native id; 0 before the first call."""

    async def run(
        self, fn: Callable[..., Result], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Result:
        """Call `fn` on the model thread and return its result, copied if CUDA graphs own it."""
        executor = self.executor or self._begin()
        # Settings in torch.*.config belong to a context. So the model sees the request's settings,
        # as in a direct call.
        run = contextvars.copy_context().run
        call = functools.partial(self._then_clone, functools.partial(run, fn, *args, **kwargs))
        return await asyncio.get_running_loop().run_in_executor(executor, call)

    def _begin(self) -> ThreadPoolExecutor:
        with self._lock:
            if self.executor is None:
                executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=MODEL_THREAD)
                self.native_id = executor.submit(threading.get_native_id).result()
                self.executor = executor
            return self.executor

    def _then_clone(self, call: Callable[[], Result]) -> Result:
        """Return the result of a call, copied if the next call would overwrite it.

        The copy is made on the model thread, so it is complete before the next call.
        """
        result = call()
        # During a start or an update, check after each call, because the call may load and
        # compile a model.
        # Check again once torch's compiler is imported, because a call without a library may have
        # compiled.
        imported = is_imported()
        if self._may_change() or imported != self._asked_with_compiler:
            self._asked_with_compiler = imported
            self._own_outputs = uses_cuda_graphs(self._owner)
        if not self._own_outputs:
            return result
        cloned: Result = clone_outputs(result)
        return cloned
