# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One start of one replica: from the class to READY, and what is watched afterwards."""
