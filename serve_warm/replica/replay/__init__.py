# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Passes over the inputs until nothing compiles, and the calls that vary them."""
