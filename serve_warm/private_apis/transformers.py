# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The attention that a model of `transformers` uses. Seen in transformers 4.57 to 5.23."""

from __future__ import annotations

from typing import Any


def attention_of(config: Any) -> str:
    """Return the kind of attention that a configuration chooses: `sdpa`, `eager`, ..."""
    return str(config._attn_implementation)


def has_attention(config: object) -> bool:
    """Return whether an object is the configuration of a model with attention."""
    return hasattr(config, "_attn_implementation")
