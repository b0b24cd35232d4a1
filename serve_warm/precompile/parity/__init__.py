# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Compares answers with eager execution, and withdraws entries that differ."""
