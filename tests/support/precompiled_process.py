# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One build or start with entries in a separate process, which prints the result as JSON.

    python precompiled_process.py '{"do": "build", "folder": "/entries", "path": "/where/app.py"}'

The application is a Python file with `make()`, which returns the compiled callables, and `calls()`,
which lists positional arguments. `do` is `build`, `start` or `stock` (torch.compile alone). A build
writes the entries of `level`, by default 2.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from serve_warm.compiler.imports import is_imported
from serve_warm.compiler.proof import forbid
from serve_warm.compiler.watch import watch_process
from serve_warm.precompile import building
from serve_warm.precompile.dispatch.session import SESSION


def main(do: str, folder: str, path: str, level: int = 2) -> dict[str, Any]:
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(path).parent))
    app = importlib.import_module(Path(path).stem)
    watch = watch_process()
    compiled = app.make()
    refused: dict[str, str] = {}
    why = ""
    with torch.inference_mode(), contextlib.ExitStack() as stack:
        if do == "build":
            library = stack.enter_context(building()).table
        elif do == "start":
            why = SESSION.load(Path(folder))
            if not why and app.FORBID:
                stack.enter_context(forbid())
        before = watch.counts()
        outputs = [compiled(*args) for args in app.calls()]
        counts = watch.counts() - before
    if do == "build":
        refused = {call: reason for (_, call), reason in library.refused.items()}
        for name, data in library.to_files(level).items():
            (Path(folder) / name).write_bytes(data)
    return {
        "why": why,
        "refused": refused,
        "outputs": [_text(out) for out in outputs],
        "compiles": counts.compiles,
        "compiler_processes": counts.compiler_processes,
        "levels": [use.level for use in SESSION.uses()],
        "reasons": sorted({use.reason for use in SESSION.uses()}),
        "imported": is_imported(),
    }


def _text(out: Any) -> str:
    # All bits of the tensor, in a form that JSON can hold.
    return str(out.numpy().tobytes().hex()) if isinstance(out, torch.Tensor) else repr(out)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(**json.loads(sys.argv[1]))) + "\n")
