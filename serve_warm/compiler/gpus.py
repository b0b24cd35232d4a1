# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Whether this process uses a GPU, and whether the GPU still works for it."""

from __future__ import annotations

import sys
from typing import Any

from serve_warm.config import environment


def is_cuda_initialized() -> bool:
    """Return whether this process has initialized CUDA, without importing torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def is_gpu_in_use() -> bool:
    """Return whether this process has data on a GPU, without importing torch.

    Reading the GPU's name for the fingerprint initializes CUDA, but takes no memory of torch's.
    """
    if not is_cuda_initialized():
        return False
    torch: Any = sys.modules["torch"]
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" in environment():  # then torch does not count its memory
        return True
    return any(map(torch.cuda.memory_reserved, range(torch.cuda.device_count())))


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
