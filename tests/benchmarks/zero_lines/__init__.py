# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Applications after the documentation of Ray Serve, which know nothing of what warms them."""
