# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Learns inputs from traffic: the recorder of live calls, and plans made from its records."""
