# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a replica shows of itself: its state file, its heartbeat and its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serve_warm import metrics, node
from serve_warm._private_folders import state_folder
from serve_warm._state_file import Heartbeat
from serve_warm.config import WarmupConfig
from serve_warm.report import Report, Stage, Verdict, describe_eager

STATE_PERIOD_S = 0.2
"""Minimum seconds between two writes of the state file while inputs are replayed."""


class ShownState:
    """The visible state of a replica: state file, metrics, and the last time the event loop ran."""

    def __init__(
        self,
        known: Report,
        config: WarmupConfig,
        report: Callable[[], Report],
        *,
        artifacts_of: Callable[[], str],
    ) -> None:
        self._known = known
        self._report = report
        self._artifacts_of = artifacts_of
        """Returns the name of the application that artifacts are kept for."""
        self._last_told: tuple[tuple[Stage, Verdict | None], float]
        self._last_told = ((Stage.PENDING, None), 0.0)
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which Serve calls the user's code; None before the hook runs."""
        self._loop_ran_s: float | None = None
        self.heartbeat = self._heartbeat(state_directory(config))

    def _heartbeat(self, directory: Path) -> Heartbeat:
        return Heartbeat(
            directory,
            application=self._known.application,
            deployment=self._known.deployment,
            replica=self._known.replica,
            facts=self._facts,
            began_s=self._known.created_boot_s,
        )

    def configure(self, config: WarmupConfig) -> None:
        """Move the state file to the configured directory, if the directory changed."""
        directory = state_directory(config)
        if self.heartbeat.directory != directory:
            self.heartbeat.stop()
            self.heartbeat = self._heartbeat(directory)

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on, record in the state file the last time that this event loop ran."""
        self._loop, self._loop_ran_s = loop, node.boot_s()

    def observer(self) -> Callable[[Report], None]:
        """Return an observer of the warm-up, and export the warm-up's metrics from now on.

        A new stage is written to the state file and exported at once. Progress within a stage is
        written to the file at a limited rate. In addition, one thread writes the file and another
        exports the metrics every few seconds. Progress within a stage reaches the metrics only
        through this periodic export.
        """
        sink = metrics.RaySink(self._report)

        def told(report: Report) -> None:
            now = time.monotonic()
            entered = (report.stage, report.verdict) != self._last_told[0]
            if not entered and now - self._last_told[1] < STATE_PERIOD_S:
                return
            self._last_told = ((report.stage, report.verdict), now)
            self.heartbeat.changed()
            if entered:
                sink.changed()

        return told

    def _loop_last_ran_s(self) -> float | None:
        """Return the last time that the serving loop ran, and schedule another run of the loop.

        Serve's health check uses the loop only if the user defines `check_health`. Otherwise,
        minutes can pass before Serve uses the loop again, and Serve considers a replica healthy
        even while a handler blocks the loop.
        """
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process exits
                self._loop.call_soon_threadsafe(self._loop_ran)
        return self._loop_ran_s

    def _loop_ran(self) -> None:
        self._loop_ran_s = node.boot_s()

    def _facts(self) -> dict[str, Any]:
        """Return the current facts for the state file; runs on the thread that writes the file."""
        return {
            **facts_of(self._report()),
            "artifacts_of": self._artifacts_of(),
            "loop_boot_s": self._loop_last_ran_s(),
        }


def facts_of(report: Report) -> dict[str, Any]:
    """Return the part of a report that goes into the state file, as plain data for JSON."""
    return {
        "stage": report.stage.value,
        "verdict": report.verdict.value if report.verdict else None,
        "uncompiled": report.uncompiled,
        "nothing_compiles": report.nothing_compiles,
        "degraded": list(report.degraded),
        "narrow": list(report.narrow),
        "inputs_expected": report.covered.expected,
        "inputs_done": report.inputs_done,
        "passes": report.passes,
        "store": report.artifact.store if report.artifact else "",
        "statement": report.artifact.statement if report.artifact else "",
        "event": str(report.events[-1]) if report.events else "",
        "error": report.error,
        "doing": report.doing,
        "fingerprint": report.fingerprint,
        "spans": [[s.name, s.began_boot_s, s.seconds, s.beside] for s in report.spans],
        "traced": report.traced,
        "levels": report.levels,
        "reason": report.artifact.reason if report.artifact else "",
        "warnings": list(report.warnings),
        "seat": report.seat.text() if report.seat is not None else "",
        "learned": report.learned.text() if report.learned is not None else "",
        "eager": describe_eager(report.eager_calls),
        "elapsed_s": report.elapsed_s,
        "stage_seconds": report.stage_seconds,
        "metrics": metrics.as_data(report),
    }


def state_directory(config: WarmupConfig) -> Path:
    """Return the folder of this node in which replicas write their states."""
    return Path(config.state_dir or state_folder())
