# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One start of a replica of level 3 in a separate process, which prints the result as JSON.

python parity_process.py '{"libraries": "/folder", "folder": "/scratch", "settings": {}}'
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import torch

from replicas import publish, replica
from serve_warm.config import WarmupConfig
from serve_warm.errors import WarmupFailed
from serve_warm.fingerprint import NOT_NEEDED
from serve_warm.replica.start.stages import Warmup
from serve_warm.stores.local import LocalStore

COMPILER = ("torch._dynamo", "torch._inductor")


def main(libraries: str, folder: str, settings: dict[str, Any]) -> dict[str, Any]:
    stand_in = replica([2], level=3)
    store = LocalStore(root=Path(folder) / "store")
    publish(store, stand_in, {"exported": Path(libraries)}, compiler=NOT_NEEDED)
    start = Warmup(stand_in, WarmupConfig(artifact=store.uri, **settings))
    try:
        asyncio.run(start.run())
    except WarmupFailed as error:
        sys.stderr.write(f"{error}\n")
    (item,) = stand_in.declared
    with torch.inference_mode():
        eager = stand_in.owner.model._orig_mod(*item.args)
    return {
        "report": start.report().to_json(),
        "imported": [name for name in COMPILER if name in sys.modules],
        "answer": stand_in.answers[item.name].tolist(),
        "eager": eager.tolist(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(**json.loads(sys.argv[1]))) + "\n")
