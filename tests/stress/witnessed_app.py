# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The victim of the kills, which also tells a witness what it really does."""

import os
from pathlib import Path
from typing import Any

from ray import serve
from starlette.requests import Request

import witness
from stress import app as victims


@serve.deployment(ray_actor_options={"num_cpus": 0}, max_constructor_retry_count=100)
class Witnessed(victims.Victim.func_or_class):
    """The victim, which notes when it begins and when it answers. It has two inputs."""

    def __init__(self) -> None:
        witness.note_began()
        super().__init__()

    async def __call__(self, request: Request) -> dict[str, Any]:
        answer = await super().__call__(request)
        witness.note_answered()
        return answer


PADDING_BYTES = 48 * 2**20


@serve.deployment(name="Witnessed", ray_actor_options={"num_cpus": 0})
class Padded(Witnessed.func_or_class):
    """The application to build. Padding in its artifact lets a kill happen during verification."""

    def __init__(self) -> None:
        super().__init__()
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        folder.mkdir(parents=True, exist_ok=True)
        # Random bytes, which no compression makes smaller.
        (folder / "padding").write_bytes(os.urandom(PADDING_BYTES))


app = Witnessed.bind()
padded = Padded.bind()
