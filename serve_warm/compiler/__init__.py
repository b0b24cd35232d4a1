# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Process-wide hooks into torch, which count compiles, fill caches and check for warm starts."""
