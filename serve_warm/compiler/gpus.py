# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Whether this process uses a GPU, and whether the GPU still works for it."""

from __future__ import annotations

import sys
from typing import Any


def is_gpu_in_use() -> bool:
    """Return whether this process has used a GPU, without importing torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def find_gpu_error() -> str:
    """Wait for the GPUs of this process, and return the error of work on them, or nothing.

    Such an error is final: after an index that is out of range, for example, all later work of this
    process fails too.
    """
    import torch

    try:
        for device in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(device):  # for another GPU, the wait would take memory
                torch.cuda.synchronize(device)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""
