# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Changes of an application, and checks that earlier entries still answer correctly."""
