# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The victim of the kills, noting what it truly does for a witness."""

import os
from pathlib import Path
from typing import Any

from ray import serve
from starlette.requests import Request

import witness
from stress import app as victims


@serve.deployment(ray_actor_options={"num_cpus": 0}, max_constructor_retry_count=100)
class Witnessed(victims.Victim.func_or_class):
    """Its inputs are two."""

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
    """The built model. Its artifact has padding, so that a kill can happen during verification."""

    def __init__(self) -> None:
        super().__init__()
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        folder.mkdir(parents=True, exist_ok=True)
        # Random: nothing makes it smaller on its way.
        (folder / "padding").write_bytes(os.urandom(PADDING_BYTES))


app = Witnessed.bind()
padded = Padded.bind()
app_again = Witnessed.bind()
"""The same for Serve by name, and another version."""
