# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One replica's start, from creating its object to READY, and the watch for later compiles."""
