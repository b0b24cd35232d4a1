# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Image classes over HTTP, batched: `app.py` is the application."""
