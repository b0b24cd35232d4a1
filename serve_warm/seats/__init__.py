# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Seats: Ray workers that have imported modules in advance, for the next replica."""
