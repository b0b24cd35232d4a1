# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The process's compiled callables, while requests in other threads make more of them."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import serve_warm
from serve_warm.precompile.dispatch.session import SESSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

ROUNDS = 20
AT_ONCE = 200
"""Number of objects that each thread holds at most."""


class Request:
    """An object that an application makes for each request."""

    @serve_warm.compile(dynamic=False)
    def run(self, given: torch.Tensor) -> torch.Tensor:
        return given + 1


@contextlib.contextmanager
def requests_in_other_threads() -> Iterator[None]:
    """In the block, two threads make objects, get their compiled methods, and drop them."""
    is_over = threading.Event()

    def make() -> None:
        held: list[Any] = []
        while not is_over.is_set():
            each = Request()
            held.append((each, each.run))
            if len(held) > AT_ONCE:
                held.clear()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)


def probe() -> None:
    with SESSION.probing():
        pass


@pytest.mark.slow
@pytest.mark.parametrize("look", [SESSION.uses, SESSION.has_libraries_only, probe])
def test_requests_may_make_callables_while_the_process_is_looked_through(look: Callable[[], Any]):
    """A report, a start and a probe of new inputs go through all compiled callables."""
    with requests_in_other_threads():
        for _ in range(ROUNDS):
            look()
