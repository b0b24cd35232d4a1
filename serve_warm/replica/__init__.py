# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The start of one replica, from its class to READY, and the watch for later compiles."""
