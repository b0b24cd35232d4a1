# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Counts of calls by kind, which the report lists.

An application may make an object with a compiled method for each request. So the counts belong to
the method and the class, and outlive the objects.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from serve_warm._redaction import excerpt
from serve_warm.report import EntryUse

if TYPE_CHECKING:
    from serve_warm.precompile.calls.signature import Signature

logger = logging.getLogger(__name__)

CALLS_KEPT = 1024
"""Number of different calls that are recorded: as many as a plan has. Later calls are still
counted."""

Use = tuple[str, int, str, str]
"""Call, level, reason and kind. Texts of calls are cut, and have no strings and modes, so two kinds
can have one text. The kind is empty for calls that were not told apart."""

OTHERS = "other calls"
"""Text of the calls after `CALLS_KEPT` different ones."""


def kind_of(signature: Signature, tensors: Sequence[torch.Tensor]) -> str:
    """Return a digest of all that tells a call from others, in the modes of this thread."""
    modes = (
        any(each.is_inference() for each in tensors),
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
    )
    text = repr((signature.structure, signature.tensors, modes))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class CallCounts:
    """The number of calls of each kind to a callable, or to one method of all instances."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.by_use: dict[Use, int] = {}
        self._redacted: dict[str, str] = {}
        """Reasons without secrets, by reason. Removing secrets from a text takes 0.1 ms."""
        self._logged: set[str] = set()
        """Reasons that apply to all calls of the callable, and that were already logged once."""

    def count(
        self,
        call: str,
        level: int,
        reason: str,
        *,
        kind: str = "",
        of_all: bool = False,
        is_trial: bool,
    ) -> Use:
        """Count a call, and return the key of its count. Log the reason the first time.

        `of_all` says that the reason applies to all calls of the callable. Trials log nothing.
        """
        use = (call, level, self._redact(reason) if reason else "", kind)
        if use not in self.by_use and len(self.by_use) >= CALLS_KEPT:
            use = (OTHERS, level, "", "")
        elif reason and not is_trial and not self._has_counted(use):
            if not of_all:
                logger.warning("level %d for %s%s: %s", level, self.name, call, use[2])
            elif use[2] not in self._logged:
                self._logged.add(use[2])
                logger.warning("level %d for all calls of %s: %s", level, self.name, use[2])
        self.by_use[use] = self.by_use.get(use, 0) + 1
        return use

    def _has_counted(self, use: Use) -> bool:
        """Return whether a call with this text, level and reason was counted, of any kind."""
        if self.by_use.get(use):
            return True
        counted = self.by_use.copy().items()
        return any(calls and each[:3] == use[:3] for each, calls in counted)

    def _redact(self, reason: str) -> str:
        redacted = self._redacted.get(reason)
        if redacted is None:
            if len(self._redacted) >= CALLS_KEPT:
                self._redacted.clear()
            redacted = self._redacted[reason] = excerpt(reason)
        return redacted

    def uses(self) -> list[EntryUse]:
        """Return a record for each kind of call so far."""
        total: dict[tuple[str, int, str], int] = {}
        for (call, level, reason, _), calls in self.by_use.copy().items():
            if calls:
                key = call, level, reason
                total[key] = total.get(key, 0) + calls
        return [
            EntryUse(callable=self.name, call=call, level=level, reason=reason, calls=calls)
            for (call, level, reason), calls in total.items()
        ]

    def restore(self, before: Mapping[Use, int]) -> None:
        """Restore earlier counts. Kinds of calls that are not in `before` are logged again."""
        # New kinds keep a count of zero, because a thread may be about to count a call.
        for use in list(self.by_use):
            self.by_use[use] = before.get(use, 0)
