# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Facts are data: what of a callee compiled code depends on, and whether it still holds."""
