# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The proof: a stance of torch that forbids every compile, and a count of eager fallbacks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType

from serve_warm.compiler.imports import when_imported
from serve_warm.compiler.watch import watch_process
from serve_warm.private_apis import dynamo, module_names


@contextlib.contextmanager
def forbid() -> Iterator[None]:
    """For the proof, make every compile inside the block raise `RuntimeError`.

    Code that reached its recompile limit also raises, instead of silently running eagerly. The
    stance is process-wide, not per thread, and is always restored.
    """
    global _forbidding  # noqa: PLW0603  (the stance is process-wide too)
    with contextlib.ExitStack() as stack:
        if dynamo.is_imported():
            stack.enter_context(_forbidden_to_dynamo())
        else:
            # Nothing can compile yet. If a thread imports Dynamo later, compiling must be forbidden
            # from then on.
            _forbidding = stack
            when_imported(module_names.DYNAMO, _forbid_from_its_import)
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

    dynamo.import_dynamo()
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


def look_at_fallen() -> None:
    """From now on, let Dynamo ask the watch about code that reached its recompile limit."""
    if dynamo.is_imported():
        dynamo.look_again(tuple(watch_process().fallen.values()))


@contextlib.contextmanager
def falls_counted() -> Iterator[None]:
    """Count functions that run eagerly in the block because they reached their recompile limit.

    Each function counts once per block, and compiling remains allowed. The proof uses this instead
    of `forbid` if an error in one rank would leave other ranks waiting.
    """
    with contextlib.ExitStack() as stack:
        if dynamo.is_imported():
            stack.enter_context(_look_at_fallen_again())
        yield


@contextlib.contextmanager
def _look_at_fallen_again() -> Iterator[None]:
    """Let Dynamo see calls to code that reached its recompile limit, so that the calls count."""
    fallen = tuple(watch_process().fallen.values())
    dynamo.look_again(fallen)
    try:
        yield
    finally:
        dynamo.look_no_more(fallen)
