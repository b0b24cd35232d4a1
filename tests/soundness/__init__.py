# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Changes of an application, and whether entries that were made before them still answer right."""
