# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The client of the Hugging Face Hub: its time limits, progress bars, errors and logs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from serve_warm._redaction import redact
from serve_warm.errors import (
    MissingPackage,
    StoreDenied,
    StoreError,
)

if TYPE_CHECKING:
    from huggingface_hub import HfApi


T = TypeVar("T")


LOG_IN = (
    "credentials are those of huggingface_hub: HF_TOKEN, HF_TOKEN_PATH or `hf auth login`; "
    "writing needs a token with write access"
)


_LOGGERS = (
    *("huggingface_hub.utils._http", "huggingface_hub.file_download", "httpx2", "httpx"),
    *(f"{library}.http{version}" for library in ("httpcore2", "httpcore") for version in (11, 2)),
)
"""Those of the client, and of what it calls, that log addresses: some of them are signed."""


class OutrunError(StoreError):
    """Somebody else's commit came first."""


class OverlongError(Exception):
    """A body is longer than announced: without an end it would fill the disk."""


class _GivenUpError(Exception):
    """Nobody waits for this call any more."""


@dataclass(kw_only=True)
class Pulse:
    """When a call has last shown life, and whether it is still waited for."""

    at: float = field(default_factory=time.monotonic)
    given_up: bool = False

    def beat(self) -> None:
        """Show life; raises where nobody waits any more."""
        if self.given_up:
            raise _GivenUpError
        self.at = time.monotonic()


def explain_failure(error: BaseException) -> tuple[type[StoreError], str, str]:
    """Return error class, text and hint for a failure that is not an answer of the Hub."""
    from huggingface_hub import errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        what = "HF_HUB_OFFLINE forbids asking the Hub"
        return StoreDenied, what, "unset it, or use a folder as the store"
    if isinstance(error, OverlongError):
        return StoreError, "more bytes came than the Hub had announced", ""
    # By its name, because it stands in hf_xet, which need not be installed.
    if type(error).__name__ == "XetAuthenticationError":
        return StoreDenied, "the storage behind the Hub refuses", LOG_IN
    return StoreError, " ".join(redact(f"{type(error).__name__}: {error}").split())[:200], ""


def listener(pulse: Pulse, *, max_bytes: int) -> Any:
    """Return what the client takes for a progress bar: it shows nothing and listens."""

    class Listener(AbstractContextManager["Listener"]):
        def __init__(self, *_: Any, initial: int = 0, **__: Any) -> None:
            self.n = initial

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, count: int = 1) -> None:
            pulse.beat()
            self.n += count
            if self.n > max_bytes:
                raise OverlongError

        def update_transfer(self, _: int = 1) -> None:
            pulse.beat()

        def set_postfix_str(self, *_: Any, **__: Any) -> None:
            pass

        set_transfer_postfix_str = set_postfix_str

        def refresh(self) -> None:
            pass

        def close(self) -> None:
            pass

    return Listener


_bars = threading.Lock()


_bars_hidden = 0


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hide the client's progress bars of uploads, which have no setting but the process-wide one.

    It is put back as it was. Somebody who has set HF_HUB_DISABLE_PROGRESS_BARS=0 gets the bars.
    """
    global _bars_hidden  # noqa: PLW0603 - it counts the holders of a setting of the process
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if constants.HF_HUB_DISABLE_PROGRESS_BARS is not None:
        yield
        return
    with _bars:
        if _bars_hidden == 0 and are_progress_bars_disabled():
            ours = False
        else:
            ours = True
            _bars_hidden += 1
            if _bars_hidden == 1:
                disable_progress_bars()
    try:
        yield
    finally:
        with _bars:
            if ours:
                _bars_hidden -= 1
                if _bars_hidden == 0:
                    enable_progress_bars()


def import_client() -> None:
    """Raise `MissingPackage` where there is no client."""
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise MissingPackage("hf://", package="huggingface-hub") from error


def open_api() -> HfApi:
    """Return the client, whose logs keep no signed address."""
    from huggingface_hub import HfApi

    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_redact_record)
    return HfApi(library_name="serve_warm")


def _redact_record(record: logging.LogRecord) -> bool:
    """Take signed addresses out of what the client logs about its requests."""
    record.msg, record.args = redact(record.getMessage()), ()
    return True
