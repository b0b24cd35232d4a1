# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A process that lacks what Python lacks on macOS, for running `serve-warm`.

    python tests/support/elsewhere.py inspect STORE
    python tests/support/elsewhere.py -c "import serve_warm"

The process stands in for such a machine. First, it imports what other packages need from Linux,
because those packages were built for Linux. torch and ray are available only with `--with-ray`.
Then it removes functions and flags that macOS lacks, sets `sys.platform`, and imports
serve_warm. Paths, `os.name` (on which `pathlib` depends), the file
system, and modes and owners of files remain those of Linux.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import sysconfig
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

OTHERS = (
    *("asyncio.subprocess", "concurrent.futures.thread", "ctypes", "multiprocessing.pool"),
    *("http.client", "ssl", "urllib.request"),
    *("platform", "runpy", "shutil", "socketserver", "subprocess", "tempfile", "tomllib", "uuid"),
    *("anyio", "click", "huggingface_hub", "obstore.store", "packaging", "prometheus_client"),
    *("pydantic", "yaml", "cryptography.x509"),
    *("cryptography.hazmat.primitives.asymmetric.ed25519",),
    *("cryptography.hazmat.primitives.serialization",),
)
"""Modules that are imported first, if installed."""

WITH_RAY = ("ray.serve", "ray.serve.schema", "torch", "starlette.requests", "fastapi")


GONE: dict[object, tuple[str, ...]] = {
    time: ("CLOCK_BOOTTIME",),
    os: ("memfd_create", "posix_fadvise", "sched_getaffinity", "O_PATH"),
}


class _Absent:
    """Makes modules with certain names impossible to find."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def become_macos() -> None:
    """Remove what a system does not have. Modules imported before keep their own references."""
    for name in OTHERS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if "torch" not in sys.modules:
        # From here on, packages that are built for Linux could not be imported.
        sys.meta_path.insert(0, _Absent({"ray", "torch"}))
    sysconfig.get_config_vars()  # cached now: it reads a file that is named for the system
    for module, names in GONE.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    os.confstr = _no_name
    sys.platform = "darwin"


def _no_name(_name: object) -> str:
    raise ValueError("unrecognized configuration name")


def main(arguments: Sequence[str]) -> None:
    """Imitate macOS, and run a command line in it or, after `-c`, a program."""
    rest = list(arguments)
    if rest[0] == "--with-ray":
        for name in WITH_RAY:
            importlib.import_module(name)
        rest = rest[1:]
    become_macos()
    if rest[0] == "-c":
        sys.argv = ["-c", *rest[2:]]
        exec(rest[1], {"__name__": "__main__"})
        return
    sys.argv = ["serve-warm", *rest]
    cli: ModuleType = importlib.import_module("serve_warm.cli")
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
