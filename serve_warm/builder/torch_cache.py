# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Torch's own cache in a bench: a cold start saves the cache, and other starts load it.

Torch's public functions save and load the cache. An artifact does not contain it, and only replicas
of a bench load it, because loading runs code from the bytes. For these replicas, the bench replaces
the deployment's class by a subclass. The subclass loads the cache in `warmup_inputs`, which is
called after `__init__`, before the first replay. So loading counts as part of the start.

Replicas import this module, so it imports nothing that would slow down a measured start.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serve_warm.builder.app import App
    from serve_warm.builder.cluster import Cluster, Progress, ReadyReplica

SAVE_LIMIT_S = 60.0
"""Maximum wall-clock seconds for a replica to save torch's cache."""


class TorchCache:
    """Torch's own cache of one application, saved by a cold start of a bench."""

    def __init__(self) -> None:
        self._saved: Any = None
        """The saved bytes in Ray's object store; None before `save`."""

    def saved_by(self, app: App) -> App:
        """Return the application with a class whose replicas can save their cache."""
        return _with_class(app, None)

    def save(self, start: ReadyReplica) -> None:
        """Save the cache of a ready replica of `saved_by(app)`."""
        import ray

        raw = start.handle.warmup_torch_cache.remote().result(timeout_s=SAVE_LIMIT_S)
        self._saved = ray.put(raw)

    def loaded_by(
        self, app: App, settings: Mapping[str, Any], *, on: Cluster, progress: Progress
    ) -> App:
        """Return the application with a class whose replicas load the saved cache.

        If nothing is saved yet, this first saves the cache of a start with `settings`.
        """
        if self._saved is None:
            with on.running(self.saved_by(app), settings, progress=progress) as start:
                self.save(start)
        return _with_class(app, self._saved)


def _with_class(app: App, saved: Any) -> App:
    return dataclasses.replace(app, subclass=functools.partial(_subclass, saved=saved))


def _subclass(cls: type, *, saved: Any) -> type:
    # Keep the names of the user's class: FastAPI routes are found by the qualified name.
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(cls.__name__, (_Cached, cls), {**names, "_saved_torch_cache": saved})


class _Cached:
    """A base, before the user's class, that can save torch's cache and load a saved one."""

    _saved_torch_cache: Any
    """The bytes in Ray's object store; None if this replica loads no cache."""

    async def warmup_inputs(self) -> Any:
        """Load the saved cache, and return the declared inputs of the user's class."""
        raw = b"" if self._saved_torch_cache is None else await self._saved_torch_cache
        if raw:
            import torch

            from serve_warm.private_apis.dynamo import import_dynamo

            import_dynamo()  # loading fails before that
            if torch.compiler.load_cache_artifacts(raw) is None:
                raise ValueError("torch did not accept the bytes of its own cache")
        users: Any = super()
        declared = users.warmup_inputs()
        return await declared if inspect.isawaitable(declared) else declared

    async def warmup_torch_cache(self) -> bytes:
        """Return torch's cache of this process; empty bytes if torch has compiled nothing."""
        import torch

        from serve_warm.private_apis.dynamo import import_dynamo

        import_dynamo()  # saving fails before that
        saved = torch.compiler.save_cache_artifacts()
        return b"" if saved is None else saved[0]
