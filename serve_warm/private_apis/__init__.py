# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Private code of torch, Triton, Ray and Python that serve_warm uses, and nothing else."""
