# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The code and the model of an artifact, and how closely they match those of a starting replica.

All artifacts that fit a machine and app can be loaded. But torch compiles again what was built from
other code or for another model. So a start prefers, in this order, an artifact of the same code and
model, of the same model, of the same code, and any other artifact. Only then does age decide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict

from serve_warm._records import record

_DIGEST = re.compile(r"[0-9a-f]{16,64}|")

CLOSENESS = ("neither code nor model is the same", "same code", "same model", "same code and model")
"""The closeness of an artifact in words, from the least to the closest."""


@record(frozen=True, kw_only=True)
class CodeAndModel:
    """Digests of an application's code and of its model. An empty digest is unknown."""

    code: str = ""
    """Digest of the functions of the deployment's class and its bases."""
    model: str = ""
    """Digest of the model's modules: classes, tensors' shapes and dtypes, and plain attributes."""

    def __post_init__(self) -> None:
        for name, digest in asdict(self).items():
            if not _DIGEST.fullmatch(digest):
                raise ValueError(f"{name} is not a digest: {digest!r}")

    def closeness(self, here: CodeAndModel) -> int:
        """Return how closely an artifact matches the code and model of a replica, from 0 to 3.

        An unknown digest never matches. No artifact matches more closely than one that was made
        of `here` itself.

        >>> CodeAndModel(code="0" * 16, model="1" * 16).closeness(CodeAndModel(model="1" * 16))
        2
        """
        same_model = self.model != "" and self.model == here.model
        return 2 * same_model + (self.code != "" and self.code == here.code)


NOTHING_KNOWN = CodeAndModel()


def find_newer_used(
    used: Mapping[CodeAndModel, str], *, taken: CodeAndModel, created: str, here: CodeAndModel
) -> str:
    """Return when the newest artifact was created that a node used and would still prefer.

    Empty if there is none, so that taking the artifact `taken`, made at `created`, is no rollback.
    A replica with the code and model `here` prefers a newer artifact that matches at least as
    closely. If a store no longer offers it, somebody may have removed it.
    """
    least = taken.closeness(here)
    newer = [when for made_of, when in used.items() if made_of.closeness(here) >= least]
    return max((when for when in newer if when > created), default="")
