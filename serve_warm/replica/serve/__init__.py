# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Where a replica meets Ray Serve: its hook, its calls, its threads."""
