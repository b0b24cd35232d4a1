# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A deployment whose module sets modes of torch, which belong to the thread that imports it."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import torch
from ray import serve

from serve_warm import Input, WarmupMixin

torch.set_flush_denormal(True)
torch.set_autocast_enabled("cpu", True)
torch.set_grad_enabled(False)
torch.set_default_device("meta")


def modes() -> dict[str, Any]:
    return {
        "thread": threading.current_thread().name,
        "grad": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "denormals": sys.float_info.min / 2,
        "device": str(torch.get_default_device()),
    }


@serve.deployment(graceful_shutdown_timeout_s=0)
class Modal(WarmupMixin):
    """Tells the modes of its threads."""

    def __init__(self) -> None:
        self.in_init = modes()

    def warmup_inputs(self) -> Input:
        return Input(target=self.answer)

    async def answer(self) -> float:
        return 1.0

    async def told(self) -> dict[str, Any]:
        return {
            "hit": self.warmup_report()["seat"]["hit"],
            "threads": [self.in_init, modes(), await asyncio.to_thread(modes)],
        }


app = Modal.bind()
