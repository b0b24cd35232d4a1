# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The Inductor options that torch.compile's arguments imply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve_warm.private_apis import inductor


def captures(arguments: Mapping[str, object]) -> bool:
    """Return whether torch.compile's arguments or the global setting turn on CUDA graphs."""
    return bool(options_of(arguments).get(CAPTURES, inductor.captures_graphs()))


def options_of(arguments: Mapping[str, Any]) -> dict[str, object]:
    """Return the Inductor options that torch.compile's arguments imply."""
    mode = arguments.get("mode")
    if mode in (None, "default"):
        return dict(arguments.get("options") or {})
    return inductor.options_of_mode(mode, dynamic=arguments.get("dynamic"))


CAPTURES = "triton.cudagraphs"
"""The setting that turns on CUDA graphs."""
