# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How long the last build of a deployment took on this machine, to say how long the next may take.

One small file for each deployment, in this user's folder. A missing or damaged file is no error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

from serve_warm import _private_folders
from serve_warm._regular_files import read_regular
from serve_warm.artifact.manifest import Place


def read_seconds(place: Place) -> float | None:
    """Return the wall-clock seconds of the last build of a deployment; None if not known."""
    try:
        found = json.loads(read_regular(str(_file(place))))["seconds"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    return float(found) if is_number and math.isfinite(found) and found >= 0 else None


def note_seconds(place: Place, seconds: Mapping[str, float]) -> None:
    """Write down how long a build took, from the seconds of its phases."""
    whole = sum(took for name, took in seconds.items() if not name.startswith("round trip,"))
    whole -= seconds.get("round trip", 0.0)  # `round trips` has it
    file = _file(place)
    with contextlib.suppress(OSError):
        _private_folders.make_private(file.parent)
        data = json.dumps({"seconds": round(whole, 1)}).encode()
        _private_folders.write_beside(file, data, mode=0o600).replace(file)


def _file(place: Place) -> Path:
    name = hashlib.sha256(f"{place.application}/{place.deployment}".encode()).hexdigest()[:16]
    return _private_folders.user_folder("builds") / f"{name}.json"
