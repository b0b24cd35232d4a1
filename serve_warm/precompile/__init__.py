# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Levels 2 and 3: entries built ahead of time, and the dispatcher that runs them."""
