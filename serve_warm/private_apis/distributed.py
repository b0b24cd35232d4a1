# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The store of torch's process group, through which its ranks find each other. 2.11 to 2.15."""

from __future__ import annotations

from typing import Any


def default_store() -> Any:
    """Return the store (`torch.distributed.Store`) of the default process group."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
