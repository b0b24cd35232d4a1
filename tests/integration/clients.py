# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that ask an application at the same time, and artifacts that are built on its cluster."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from serve_warm.builder.app import load_app
from serve_warm.builder.build import build
from serve_warm.builder.publishing import Destination
from serve_warm.stores import open_store

if TYPE_CHECKING:
    from conftest import Cluster

CLIENTS = 8


class Clients:
    """Threads that ask one request after the other, from now on until one of their own raises."""

    def __init__(self, ask: Callable[[int], object]) -> None:
        """Call `ask` with the number of the client, again and again."""
        self.errors: list[str] = []
        self._ask, self._stop = ask, threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(n,)) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _send(self, number: int) -> None:
        while not self._stop.is_set():
            try:
                self._ask(number)
            except Exception as error:  # noqa: BLE001 - any of them is the test's finding
                self.errors.append(repr(error))
                return

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def published(cluster: Cluster, app: str, folder: str, **options: Any) -> str:
    """Build an application into a folder of the cluster, and return the store."""
    with pytest.MonkeyPatch.context() as patch:
        # The builder's folder for temporary files is that of the replicas.
        patch.setattr(tempfile, "tempdir", str(cluster.state_dir.parent))
        uri = str(cluster.state_dir.parent / folder)
        build(load_app(app), Destination.of(open_store(uri)), **options)
    return uri
