# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Traces a call with Dynamo, and returns the graph and its facts. For builds."""
