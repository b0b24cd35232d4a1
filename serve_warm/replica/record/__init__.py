# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What happened in a start and afterwards: journal, timeline, log, places in code."""
