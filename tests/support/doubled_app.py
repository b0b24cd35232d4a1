# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The module whose entries are in `data/format_1`."""

from __future__ import annotations

import torch
from torch import nn


class Doubled(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given + given
