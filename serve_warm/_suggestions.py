# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The known name that a misspelt one is nearest to, for hints."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return the known name that is most like `name`; None where none is.

    Case does not count. `likeness` is the share of letters that both names have to have.

    >>> nearest("artefact", ["artifact", "parts"]), nearest("x", ["artifact"])
    ('artifact', None)
    """
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question to ask about an unknown name; empty where no known one is like it.

    >>> did_you_mean("instect", ["inspect", "verify"])
    "did you mean 'inspect'?"
    """
    found = nearest(name, known)
    return "" if found is None else f"did you mean {found!r}?"
