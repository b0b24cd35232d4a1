# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A replica's answers to the warm-up, without Serve. This module does not import torch."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serve_warm.artifact.manifest import Place
    from serve_warm.inputs import Input
    from serve_warm.report import CompileEvent
    from serve_warm.trust.policy import Trust


class OutsideServe:
    """Base class of stand-ins for a deployment. They add names, owner, inputs and `call`."""

    application = "app"
    unwatched_compiles_before = 0
    called_methods = frozenset[str]()
    code = ""
    deployment: str
    replica: str
    owner: Any

    @property
    def place(self) -> Place:
        """The place of the artifacts that `artifacts.build` makes for this deployment."""
        from serve_warm.artifact.manifest import Place

        return Place(application="app", deployment=self.deployment)

    def check(self, inputs: Sequence[Input]) -> None:
        """Accept any input."""

    def serving_threads(self) -> set[int]:
        """Return the current thread as the serving thread."""
        return {threading.get_native_id()}

    def no_memory(self, function: str, seconds: float) -> BaseException:
        """Return an error that names the function."""
        return MemoryError(f"{function}: {seconds:.0f} s")

    async def why_not_eager(self) -> str:
        """Return nothing, because there are no other replicas."""
        return ""

    def suggest(self, event: CompileEvent, declared: Sequence[Input]) -> str:
        """Return no suggestion, because no request is running."""
        return ""

    def largest_batch(self) -> int:
        """Return 1, because this stand-in does not batch."""
        return 1

    def waits_for(self) -> Sequence[str]:
        """Return no deployments: this stand-in calls none."""
        return ()

    def list_absent(self) -> Sequence[str]:
        """Return no deployments, because none is missing."""
        return ()

    def trust(self) -> Trust | None:
        """Return None, so that the machine's trust files apply."""
        return None

    def refusal(self, event: CompileEvent) -> BaseException:
        """Return an error that names what would have been compiled."""
        return RuntimeError(event.function)
