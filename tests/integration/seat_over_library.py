# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A module of an app that imports a slow library."""

import seat_library  # noqa: F401
