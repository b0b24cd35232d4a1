# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Digests of the source files that an entry was compiled from."""

from __future__ import annotations

import hashlib

from serve_warm._regular_files import read_regular
from serve_warm.precompile.facts.names import source_file


def file_digest(module: str) -> str:
    """Return the SHA-256 of a Python module's file, or an empty string if there is no such file."""
    import importlib.util

    file = source_file(module)
    if not file:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            return ""
        file = str(spec.origin or "") if spec is not None else ""
    try:
        return hashlib.sha256(read_regular(file)).hexdigest()
    except OSError:
        return ""
