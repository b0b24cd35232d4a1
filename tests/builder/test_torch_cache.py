# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The class of a replica that saves torch's own cache, or begins with a saved one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.compiler._cache import CacheArtifactManager

from serve_warm.builder.torch_cache import _subclass
from serve_warm.inputs import Input

DECLARED = [Input(target="embed", args=(1,))]


class Embedder:
    """The class of a user."""

    def __init__(self, size: int) -> None:
        self.size = size

    def warmup_inputs(self) -> list[Input]:
        return DECLARED


class AsyncEmbedder(Embedder):
    async def warmup_inputs(self) -> list[Input]:
        return DECLARED


async def stored(raw: bytes) -> bytes:
    """Stand in for a reference to bytes in Ray's object store."""
    return raw


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of torch's caches; torch has recorded no entries."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    CacheArtifactManager._ensure_cache_artifacts_registered()
    with CacheArtifactManager.with_fresh_cache():
        yield tmp_path


def inputs_of(cls: type, raw: bytes | None) -> Any:
    loading = _subclass(cls, saved=None if raw is None else stored(raw))
    return asyncio.run(loading(3).warmup_inputs())


def saved() -> bytes:
    return asyncio.run(_subclass(Embedder, saved=None)(3).warmup_torch_cache())


@pytest.mark.parametrize("cls", [Embedder, AsyncEmbedder])
def test_a_start_has_the_saved_entries_before_its_first_input(directory: Path, cls: type):
    """Entries of the process that saved are files where torch looks for them."""
    CacheArtifactManager.record_artifact("autotune", "ab/c.best_config", {"XBLOCK": 1})
    assert inputs_of(cls, saved()) == DECLARED
    assert [path.name for path in directory.rglob("*") if path.is_file()] == ["c.best_config"]


@pytest.mark.parametrize("raw", [None, b""], ids=["cold", "nothing to load"])
def test_a_start_without_saved_entries_loads_nothing(directory: Path, raw: bytes | None):
    """A cold start has the same class, and an app may compile nothing."""
    assert inputs_of(Embedder, raw) == DECLARED
    assert list(directory.rglob("*")) == []


def test_a_process_that_compiled_nothing_saves_nothing(directory: Path):
    """Torch returns no bytes then, which is no error."""
    assert saved() == b""


def test_bytes_that_torch_does_not_accept_end_the_start(directory: Path):
    """The figures of such a start would be those of a cold one."""
    with pytest.raises(ValueError, match="torch did not accept the bytes"):
        inputs_of(Embedder, b"no container")


def test_the_class_keeps_its_names():
    """FastAPI finds routes by the qualified name, and reports show the name."""
    made: Any = _subclass(Embedder, saved=None)
    assert (made.__name__, made.__qualname__) == ("Embedder", Embedder.__qualname__)
    assert (made.__module__, made.__doc__) == (__name__, "The class of a user.")
    assert made(3).size == 3
