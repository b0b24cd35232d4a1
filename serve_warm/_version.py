# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The version of the package, which the build of the wheel reads, too."""

__version__ = "0.1.0"
