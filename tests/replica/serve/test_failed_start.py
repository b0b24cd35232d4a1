# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What Serve repeats about a failed start, and what only the log file of the replica has."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from logging.handlers import MemoryHandler
from pathlib import Path

import pytest

from serve_warm.errors import ReplayFailed, ServeWarmError, WarmupTimeout
from serve_warm.replica.serve.failed_start import shorten_failure

MOST_LINES = 40
"""Lines of serve_warm in each of Serve's tries, as the documents promise."""


SECRET = "hunter2"


@pytest.fixture(name="log_file")
def log_file_fixture(tmp_path: Path) -> Iterator[Path]:
    """A log file as Serve gives one to a replica: a handler collects lines for it."""
    file = logging.FileHandler(tmp_path / "replica.log")
    handler = MemoryHandler(100, target=file)
    logger = logging.getLogger("serve_warm")
    logger.addHandler(handler)
    yield tmp_path / "replica.log"
    logger.removeHandler(handler)
    file.close()


def deep(depth: int) -> None:
    """Raise an error with as many frames and causes as one of torch's compiler."""
    if depth:
        try:
            deep(depth - 1)
        except ValueError as error:
            raise ValueError(f"compiling failed at {depth}\nlowering: {'x' * 500}") from error
    else:
        raise ValueError(f"no such shape, token={SECRET}")


def replayed() -> None:
    try:
        deep(30)
    except ValueError as error:
        raise ReplayFailed(
            "input 'rows=3' failed: the shapes\n  differ", hint="correct the shapes", input="rows=3"
        ) from error


def late() -> None:
    raise WarmupTimeout("the deadline of 900 s passed")


def shown(function: Callable[[], None]) -> tuple[Exception, list[str]]:
    """Return what is raised to Serve, and the lines of its traceback, as Serve formats it."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 - any
        failure = shorten_failure(error)
    try:
        raise failure
    except Exception as error:  # noqa: BLE001 - any
        return error, "".join(traceback.format_exception(error)).splitlines()


def test_the_reason_is_the_last_of_few_lines_and_the_log_has_the_rest(log_file: Path):
    error, lines = shown(replayed)
    assert lines[-1] == "input 'rows=3' failed: the shapes; differ"
    assert lines[-3:-1] == [f"traceback: {log_file}", "hint: correct the shapes"]
    assert lines[-4].endswith("ReplayFailed: the replica did not become ready")
    assert len(lines) < MOST_LINES
    assert isinstance(error, ReplayFailed)
    assert error.input == "rows=3"
    logged = log_file.read_text()
    assert "in deep" in logged
    assert "compiling failed at 30" in logged
    assert "no such shape" in logged
    assert SECRET not in logged
    assert len(logged.splitlines()) > 200


def test_without_a_log_file_the_text_names_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logging.getLogger("serve_warm"), "propagate", False)
    _, lines = shown(late)
    assert lines[-2:] == [
        "serve_warm.errors.WarmupTimeout: the replica did not become ready",
        "the deadline of 900 s passed",
    ]


def test_an_error_of_the_application_keeps_its_frames_and_causes():
    error, lines = shown(lambda: deep(2))
    assert type(error) is ValueError
    assert not isinstance(error, ServeWarmError)
    text = "\n".join(lines)
    assert text.count("in deep") >= 3
    assert "no such shape" in text
    assert lines[-2:] == ["ValueError: compiling failed at 2", f"lowering: {'x' * 500}"]
