# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Makes, proves, publishes and measures artifacts by running deployments on Ray."""
