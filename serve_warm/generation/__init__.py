# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Decoding with a cache: compiled prefill and decode steps for `transformers` models, and slots."""

from serve_warm.generation.decoder import CachedDecoder
from serve_warm.generation.slots import Slots

__all__ = ["CachedDecoder", "Slots"]
