# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The start of one replica, from the class to READY, and the watch for compiles in traffic."""
