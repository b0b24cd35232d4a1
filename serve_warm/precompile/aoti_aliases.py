# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Outputs that share memory with inputs or with other outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def find_aliases(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[str]:
    """Describe which tensor shares each output's memory, and the output's offset and strides.

    The text is empty for an output that shares no memory with an input or an earlier output.
    """
    owners = {
        tensor.untyped_storage().data_ptr(): f"input {number}"
        for number, tensor in enumerate(inputs)
        if tensor.numel()
    }
    found = []
    for number, output in enumerate(outputs):
        own = f"output {number}"
        owner = owners.setdefault(output.untyped_storage().data_ptr(), own)
        where = f"{owner}, at offset {output.storage_offset()} with strides {output.stride()}"
        found.append("" if owner == own or not output.numel() else where)
    return found


def describe_sharing(where: str) -> str:
    """Describe which tensor shares an output's memory; `where` comes from `find_aliases`."""
    none = "shares no memory with an input or an earlier output"
    return f"shares memory with {where}" if where else none
