# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests on a real Ray cluster; a package, so that replicas can import `integration.apps`."""
