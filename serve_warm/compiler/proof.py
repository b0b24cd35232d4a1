# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The proof: a stance of torch that forbids every compile, and a count of eager fallbacks.

`torch.compiler.set_stance` is public. The part of Dynamo that handles code beyond its recompile
limit is private. The names `_FrameExecStrategy` and `set_code_exec_strategy` were seen in torch
2.13.0.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/eval_frame.py
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

from serve_warm.compiler.imports import when_imported
from serve_warm.compiler.watch import watch_process


@contextlib.contextmanager
def forbid() -> Iterator[None]:
    """For the proof, make every compile inside the block raise `RuntimeError`.

    Code that reached its recompile limit also raises, instead of silently running eagerly. The
    stance is process-wide, not per thread, and is always restored.
    """
    global _forbidding  # noqa: PLW0603  (the stance is process-wide too)
    with contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(_forbidden_to_dynamo())
        else:
            # Nothing can compile yet. If a thread imports Dynamo later, compiling must be forbidden
            # from then on.
            _forbidding = stack
            when_imported("torch._dynamo", _forbid_from_its_import)
        try:
            yield
        finally:
            _forbidding = None


_forbidding: contextlib.ExitStack | None = None
"""The running `forbid` block that began before Dynamo was imported, if any."""


def _forbid_from_its_import(_: ModuleType) -> None:
    if _forbidding is not None:
        _forbidding.enter_context(_forbidden_to_dynamo())


@contextlib.contextmanager
def _forbidden_to_dynamo() -> Iterator[None]:
    import torch
    import torch._dynamo  # waits for a thread that is still importing Dynamo

    with _look_at_fallen_again(), torch.compiler.set_stance("fail_on_recompile"):
        seen = watch_process()
        seen.refusing = True
        try:
            yield
        finally:
            seen.refusing = False


@contextlib.contextmanager
def run_eagerly() -> Iterator[None]:
    """Run compiled callables eagerly inside the block, in the whole process."""
    import torch

    with torch.compiler.set_stance("force_eager"):
        yield


@contextlib.contextmanager
def falls_counted() -> Iterator[None]:
    """Count functions that run eagerly in the block because they reached their recompile limit.

    Each function counts once per block, and compiling remains allowed. The proof uses this instead
    of `forbid` if an error in one rank would leave other ranks waiting.
    """
    with contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(_look_at_fallen_again())
        yield


@contextlib.contextmanager
def _look_at_fallen_again() -> Iterator[None]:
    """Let Dynamo see calls to code that reached its recompile limit, so that the calls count."""
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    def treat_fallen(action: _FrameAction) -> None:
        for code in fallen:
            set_code_exec_strategy(code, _FrameExecStrategy(action, action))

    fallen = tuple(watch_process().fallen.values())
    treat_fallen(_FrameAction.DEFAULT)
    try:
        yield
    finally:
        treat_fallen(_FrameAction.RUN_ONLY)
