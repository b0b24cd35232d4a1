# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A module whose import does not end in a seat."""

import threading

if threading.current_thread().name == "serve_warm-preload":
    threading.Event().wait()
