# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The builder: runs deployments on Ray to build, test, publish and measure artifacts."""
