# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a start asks of its replica, answered as where there is no Serve; torch is not imported."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serve_warm.inputs import Input
    from serve_warm.report import CompileEvent
    from serve_warm.trust.policy import Trust


class OutsideServe:
    """Base of stand-ins for a deployment; they add names, owner, inputs and `call`."""

    application = "app"
    unwatched_compiles_before = 0
    deployment: str
    replica: str
    owner: Any

    def check(self, inputs: Sequence[Input]) -> None:
        """Take any input."""

    def serving_threads(self) -> set[int]:
        """Serve on the thread that starts."""
        return {threading.get_native_id()}

    def suggest(self, event: CompileEvent, declared: Sequence[Input]) -> str:
        """Know of no request under way."""
        return ""

    def largest_batch(self) -> int:
        """Form no batches."""
        return 1

    def waits_for(self) -> Sequence[str]:
        """Call no other deployment."""
        return ()

    def trust(self) -> Trust | None:
        """Leave it to the machine's trust files."""
        return None

    def refusal(self, event: CompileEvent) -> BaseException:
        """Name what would have been compiled."""
        return RuntimeError(event.function)
