# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Process-wide hooks into torch: they count compiles, fill torch's caches and prove warm starts."""
