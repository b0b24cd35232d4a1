# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Detection of signals during a call.

If a signal handler raises an exception, the call itself has not failed.

Code from an artifact can also raise KeyboardInterrupt and SystemExit, but these exceptions must not
end a replica. Python runs signal handlers only on the main thread, and an exception raised by a
handler looks as if the interrupted code had raised it. So during a call on the main thread, each
handler is wrapped to record that the handler ran.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, "FrameType | None"], Any]


class SignalsSeen(AbstractContextManager["SignalsSeen"]):
    """Records whether a signal was handled in the block. The app's handler still runs."""

    def __init__(self) -> None:
        self.any = False
        self._before: dict[signal.Signals, tuple[Handler, Handler]] = {}
        """For each signal, the installed handler and the previous handler, which the installed
        handler calls."""

    def __enter__(self) -> SignalsSeen:  # noqa: PYI034 - Self is not in Python 3.10
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                # With other settings, no exception is raised: the process ends or ignores the
                # signal.
                if callable(handler):
                    noting = self._note(handler)
                    signal.signal(number, noting)
                    self._before[number] = noting, handler
        return self

    def __exit__(self, *_: object) -> None:
        for number, (noting, handler) in self._before.items():
            if signal.getsignal(number) is noting:  # unless the app has installed its own
                signal.signal(number, handler)

    def _note(self, handler: Handler) -> Handler:
        def noting(number: int, frame: FrameType | None) -> Any:
            self.any = True
            return handler(number, frame)

        return noting
