# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One start in a separate process, which froze a few objects before its imports.

    python frozen_process.py '{"imports_first": false}'

CPython 3.12 also begins with a few frozen objects. With `imports_first`, the process imports torch
and then freezes. Prints the number of frozen objects before, during and after the start, as JSON.
"""

from __future__ import annotations

import gc
import json
import sys

QUESTION = json.loads(sys.argv[1])
if not QUESTION["imports_first"]:
    gc.freeze()

import asyncio  # noqa: E402 - after the first freeze
from typing import Any  # noqa: E402

import torch  # noqa: E402, F401

from outside_serve import OutsideServe  # noqa: E402
from serve_warm.config import WarmupConfig  # noqa: E402
from serve_warm.inputs import Input  # noqa: E402
from serve_warm.replica.start.stages import Warmup  # noqa: E402

if QUESTION["imports_first"]:
    gc.freeze()


class Replica(OutsideServe):
    """A deployment that notes how many objects are frozen when it is called."""

    deployment, replica = "Counter", "Counter#1"

    def __init__(self) -> None:
        self.owner = self
        self.before_loading = self.during = 0

    async def warmup_inputs(self) -> Any:
        self.before_loading = gc.get_freeze_count()
        return [Input(target="count", name="once")]

    async def call(self, _: Input) -> None:
        self.during = gc.get_freeze_count()


def main() -> dict[str, int]:
    """Start the app, and return the numbers of frozen objects."""
    replica, before = Replica(), gc.get_freeze_count()
    asyncio.run(Warmup(replica, WarmupConfig()).run())
    return {
        "before": before,
        "before_loading": replica.before_loading,
        "during": replica.during,
        "after": gc.get_freeze_count(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main()) + "\n")
