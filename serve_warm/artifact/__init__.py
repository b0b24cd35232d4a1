# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Artifacts: what one is, how it is published, chosen and pulled, and what of it is kept."""
