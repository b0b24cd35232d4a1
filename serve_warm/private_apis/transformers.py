# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Attributes of a configuration of `transformers`, such as its attention. Seen in 4.57 to 5.24."""

from __future__ import annotations

from typing import Any

ATTENTION = "_attn_implementation"
"""Attribute with the kind of attention."""

INTERNAL = "_internal"
"""The end of the attribute behind a property of a configuration."""

LAYERS_DIFFER = "_heterogeneity_spec"
"""Attribute that a configuration has if its layers have different settings. Reading some attributes
of such a configuration raises an error."""


def attention_of(config: Any) -> str:
    """Return the kind of attention that a configuration chooses: `sdpa`, `eager`, ..."""
    return str(config._attn_implementation)


def has_attention(config: object) -> bool:
    """Return whether an object is the configuration of a model with attention."""
    return hasattr(config, ATTENTION)
