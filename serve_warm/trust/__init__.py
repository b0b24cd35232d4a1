# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Trust: which keys a machine trusts, and how signatures are verified."""

from __future__ import annotations

from serve_warm.trust.keys import TrustedKey
from serve_warm.trust.policy import Trust, UnsignedOk, pinned, signed_by, unsigned_ok

__all__ = ["Trust", "TrustedKey", "UnsignedOk", "pinned", "signed_by", "unsigned_ok"]
