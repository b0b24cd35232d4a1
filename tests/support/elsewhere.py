# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A process that lacks what Python lacks on macOS or Windows, for running `serve-warm`.

    python tests/support/elsewhere.py darwin inspect STORE
    python tests/support/elsewhere.py win32 -c "import serve_warm"

The process stands in for such a machine. First, it imports what other packages need from Linux,
because those packages were built for Linux. torch and ray are available only with `--with-ray`.
Then it removes modules, functions and flags that the other system lacks, sets
`sys.platform`, and imports serve_warm. Paths, `os.name` (on which `pathlib` depends), the file
system, and modes and owners of files remain those of Linux.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import sysconfig
import time
from pathlib import Path
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
    *("pydantic", "rich.console", "rich.progress", "rich.table", "yaml", "cryptography.x509"),
    *("cryptography.hazmat.primitives.asymmetric.ed25519",),
    *("cryptography.hazmat.primitives.serialization",),
)
"""Modules that are imported first, if installed."""

WITH_RAY = ("ray.serve", "ray.serve.schema", "torch", "starlette.requests", "fastapi")

POSIX_MODULES = frozenset(
    ["fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"]
)

GONE: dict[str, dict[object, tuple[str, ...]]] = {
    "darwin": {
        time: ("CLOCK_BOOTTIME",),
        os: ("memfd_create", "posix_fadvise", "sched_getaffinity", "O_PATH"),
    },
    "win32": {
        time: ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "clock_gettime"),
        os: (
            *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH"),
            *("ST_RDONLY", "confstr", "fchmod", "fchown", "fork", "forkpty", "fstatvfs"),
            *("getegid", "geteuid", "getgid", "getpgid", "getuid", "killpg", "memfd_create"),
            *("posix_fadvise", "pread", "preadv", "pwrite", "register_at_fork", "setsid"),
            *("sched_getaffinity", "statvfs", "sysconf", "uname", "wait3", "wait4"),
        ),
        signal: ("SIGALRM", "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "pthread_sigmask"),
    },
}

WITH_DIR_FD = ("link", "lstat", "mkdir", "open", "rename", "rmdir", "stat", "symlink", "unlink")


class _Absent:
    """Makes modules with certain names impossible to find."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def _without_descriptors(function: Any) -> Any:
    def call(*given: Any, **named: Any) -> Any:
        for key in ("dir_fd", "src_dir_fd", "dst_dir_fd"):
            if named.pop(key, None) is not None:
                raise NotImplementedError(f"{key} unavailable on this platform")
        if function.__name__ in ("open", "scandir", "listdir") and given:
            # Windows cannot open a folder, and cannot list a folder by its descriptor.
            if isinstance(given[0], int):
                raise TypeError("path should be string, bytes or os.PathLike, not int")
            if function.__name__ == "open" and Path(given[0]).is_dir():
                raise PermissionError(13, "Permission denied", str(given[0]))
        return function(*given, **named)

    return call


def become(system: str) -> None:
    """Remove what a system does not have. Modules imported before keep their own references."""
    for name in OTHERS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if "torch" not in sys.modules:
        # From here on, packages that are built for Linux could not be imported.
        sys.meta_path.insert(0, _Absent({"ray", "torch"}))
    sysconfig.get_config_vars()  # cached now: it reads a file that is named for the system
    for module, names in GONE[system].items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    (_lack_what_macos_lacks if system == "darwin" else _lack_what_windows_lacks)()
    sys.platform = system


def _lack_what_windows_lacks() -> None:
    sys.meta_path.insert(0, _Absent(POSIX_MODULES))
    for name in POSIX_MODULES:
        sys.modules.pop(name, None)
    access = os.access

    def reachable(path: Any, mode: int, *, effective_ids: bool = False, **named: Any) -> bool:
        if effective_ids:
            raise NotImplementedError("access: effective_ids unavailable on this platform")
        return access(path, mode, **named)

    os.access = reachable
    for name in (*WITH_DIR_FD, "scandir", "listdir"):
        setattr(os, name, _without_descriptors(getattr(os, name)))
    os.supports_dir_fd = set()  # type: ignore[misc]
    os.supports_fd = set()  # type: ignore[misc]
    # On Windows, Python calls this function when a program creates a TLS context.
    importlib.import_module("ssl").enum_certificates = lambda _store: ()


def _lack_what_macos_lacks() -> None:
    os.confstr = _no_name  # type: ignore[assignment]


def _no_name(_name: object) -> str:
    raise ValueError("unrecognized configuration name")


def main(arguments: Sequence[str]) -> None:
    """Imitate a system, and run a command line in it or, after `-c`, a program."""
    system, *rest = arguments
    if rest[0] == "--with-ray":
        for name in WITH_RAY:
            importlib.import_module(name)
        rest = rest[1:]
    become(system)
    if rest[0] == "-c":
        sys.argv = ["-c", *rest[2:]]
        exec(rest[1], {"__name__": "__main__"})
        return
    sys.argv = ["serve-warm", *rest]
    cli: ModuleType = importlib.import_module("serve_warm.cli")
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
