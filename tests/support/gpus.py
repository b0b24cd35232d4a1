# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The pytest marks of the modules in tests/gpu, and a model for them.

To run these modules without Ray and without the rest of the suite:

    PYTHONPATH=. python -m pytest tests/gpu --confcutdir tests/gpu
"""

from __future__ import annotations

import pytest
import torch

ON_A_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="needs a GPU that torch can use: torch.cuda.is_available() is False",
    ),
    # torch's advice, which does not mean that the tested code is wrong.
    *(
        pytest.mark.filterwarnings(f"ignore:{advice}")
        for advice in (
            "TensorFloat32 tensor cores",
            "The CUDA Graph is empty",
            "Attempting to run cuBLAS",
            "The AccumulateGrad node's stream",
        )
    ),
]


def two_layers(width: int = 64, device: str = "cuda") -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(16, width), torch.nn.GELU(), torch.nn.Linear(width, 4)
    return torch.nn.Sequential(*layers).to(device).eval()
