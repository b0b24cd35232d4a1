# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The pytest marks of the modules in tests/gpu."""

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
