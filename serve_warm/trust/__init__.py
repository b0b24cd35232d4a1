# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Trust: which keys a machine believes, and whether they signed what it was given."""
