# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A module that cannot be imported."""

message = "no licence"
raise ValueError(message)
