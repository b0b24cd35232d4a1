# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Artifacts: their format, and how they are published, chosen, pulled and cached."""
