# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Answers a call: with an entry, in eager mode, or with torch.compile."""
