# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The node server: answers a kubelet and Prometheus about the replicas of its node."""
