# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Eight publishers of one variant at once, on real servers: one wins, and readers see it whole."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from artifacts import DEPLOYMENT, build, fingerprint, new_key, trusting
from s3_servers import Server
from serve_warm.artifact.node_cache import NodeCache
from serve_warm.artifact.pull import pull
from serve_warm.artifact.push import push
from serve_warm.errors import AlreadyPublished, ArtifactNotFound
from serve_warm.stores import open_store

KEY = new_key()
PUBLISHERS = 8


def pulled(uri: str, cache: NodeCache) -> bytes | None:
    """Return the artifact that a replica would load now; None if the store is empty."""
    try:
        with pull(
            open_store(uri),
            deployment=DEPLOYMENT,
            fingerprint=fingerprint(),
            trust=trusting(KEY),
            cache=cache,
        ) as artifact:
            return artifact.raw["cache"].read()
    except ArtifactNotFound:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("server", ["moto", pytest.param("ceph", marks=pytest.mark.long)])
def test_of_eight_publishers_one_wins_and_nobody_sees_half(
    server: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Seven are told who was first; a reader meanwhile finds nothing, or the winner's, whole."""
    running: Server = request.getfixturevalue(server)
    for name, value in running.environment().items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{running.new_bucket()}/artifacts"
    contents = [bytes([number]) * 300_000 for number in range(PUBLISHERS)]
    together, over = threading.Barrier(PUBLISHERS), threading.Event()

    def publish(raw: bytes) -> bytes | None:
        manifest, stored = build(raw={"cache": raw})
        store = open_store(uri)
        together.wait()
        try:
            push(store, manifest, stored, [KEY])
        except AlreadyPublished:
            return None
        return raw

    def read() -> set[Any]:
        seen = set()
        with NodeCache.open(tmp_path / "node") as cache:
            while not over.is_set():
                seen.add(pulled(uri, cache))
            seen.add(pulled(uri, cache))
        return seen

    with ThreadPoolExecutor(PUBLISHERS + 1) as pool:
        reading = pool.submit(read)
        winners = [raw for raw in pool.map(publish, contents) if raw is not None]
        over.set()
        seen = reading.result()

    assert len(winners) == 1
    assert seen - {None} == set(winners)
    assert len(open_store(uri).list("statements/")) == 1
