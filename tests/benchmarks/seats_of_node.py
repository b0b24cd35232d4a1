# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The module that `RAY_preload_python_modules` names in `bench_seats.py`.

Each worker of the node imports this module, which imports serve_warm and the application's modules.
SEATS_IMPORTS names the application's modules. After these imports, the worker creates a file in the
folder SEATS_OF_NODE.
"""

from __future__ import annotations

import os
from pathlib import Path

from serve_warm.seats import preload

preload.import_now(
    *os.environ["SEATS_IMPORTS"].split(","),
    *(
        "torch",
        "ray.serve._private.replica",
        "serve_warm.replica.start.stages",
        "serve_warm.precompile.compiled",
    ),
    *("serve_warm.precompile.libraries.run", "serve_warm.artifact.pull", "serve_warm.stores.local"),
)
(Path(os.environ["SEATS_OF_NODE"]) / str(os.getpid())).touch()
