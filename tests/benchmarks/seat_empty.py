# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A deployment that does nothing, in a module that imports nothing of a model."""

from __future__ import annotations

from ray import serve


@serve.deployment(ray_actor_options={"num_cpus": 1}, graceful_shutdown_timeout_s=0)
class Empty:
    """An empty deployment."""

    async def answer(self) -> list[float]:
        return []


empty = Empty.bind()
