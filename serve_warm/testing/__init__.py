# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests for code that extends serve_warm: the contract that every store must meet.

These tests need `pytest`, which is not a dependency of serve_warm.
"""

import pytest

# Do this before the import, because pytest shows values in failed assertions only for rewritten
# modules.
pytest.register_assert_rewrite("serve_warm.testing.store_contract")

from serve_warm.testing.store_contract import Raw as Raw  # noqa: E402
from serve_warm.testing.store_contract import StoreContract as StoreContract  # noqa: E402

__all__ = ["Raw", "StoreContract"]
