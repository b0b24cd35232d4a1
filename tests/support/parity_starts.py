# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Starts from entries that a test made, for checks of entries against eager execution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import serve_warm
from levels import build
from replicas import Scaled, StandIn, publish, x
from serve_warm.compiler.cpu_target import isa_checks
from serve_warm.compiler.watch import watch_process
from serve_warm.config import WarmupConfig
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.replica.start.stages import Warmup
from serve_warm.stores.local import LocalStore
from starts import use_private_caches

SIZES = (2, 3, 5)


@pytest.fixture(autouse=True)
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the process-wide state that a start changes."""
    use_private_caches(tmp_path, monkeypatch)
    # Compare no more entries before READY than a start must. How many more there is time for
    # differs from run to run.
    monkeypatch.setattr("serve_warm.replica.start.proof.COMPARED_SHARE", 0.0)
    yield
    SESSION.unload()
    torch._dynamo.reset()
    watch = watch_process()
    watch.forbidden = watch.on_event = None
    isa_checks().give({})


def made(folder: Path, scale: float, sizes: Sequence[int] = SIZES, *, level: int = 2) -> Path:
    """Return a folder with the entries of a level for a model with this scale."""
    model = serve_warm.compile(Scaled(scale).eval(), dynamic=False, level=level)
    calls = [lambda size=size: model(x(size), "secret") for size in sizes]
    library = build(folder, *calls, level=level)
    assert library.refused == {}
    torch._dynamo.reset()
    return folder


def start(stand_in: StandIn, entries: Path, tmp_path: Path, **settings: Any) -> Warmup:
    store = LocalStore(root=tmp_path / "store")
    (tmp_path / "cache").mkdir()
    publish(store, stand_in, {"cache": tmp_path / "cache", "precompiled": entries})
    config = WarmupConfig(artifact=store.uri, **settings)
    return Warmup(stand_in, config)
