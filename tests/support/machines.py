# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Starts in fresh processes that share a store, with each run of the C++ compiler counted."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from artifacts import new_key
from processes import HERE, run_to_end

TOLERANCE = 1e-5


@dataclass(frozen=True, kw_only=True)
class Started:
    """One start in a separate process, and the counts made outside that process."""

    said: dict[str, Any]
    command_lines: list[list[str]]
    """Runs of the C++ compiler, each with its command line."""

    @property
    def report(self) -> dict[str, Any]:
        return self.said["report"]

    @property
    def objects(self) -> int:
        """Number of compiler runs that made a library or an object."""
        return sum(
            word == "-o" and after.endswith((".so", ".o"))
            for line in self.command_lines
            for word, after in itertools.pairwise(line)
        )

    @property
    def outputs(self) -> int:
        """Number of compiler runs that made any file, including precompiled headers."""
        return sum("-o" in line for line in self.command_lines)

    @property
    def isa_probes(self) -> int:
        """Number of processes that loaded a library to find out whether this CPU can run it."""
        return sum("cdll.LoadLibrary" in " ".join(command) for command in self.said["started"])


HEADERS = Path(f"serve_warm-{os.getuid()}") / "headers"
"""Folder of compiled C++ headers, below a folder for temporary files."""


class Machine:
    """Starts processes that share only a store, or also compiled C++ headers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = 0
        self.headers: Any = None
        self.store = directory / "store"
        self._key = directory / "key.pem"
        self._key.write_bytes(
            new_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        self._log = directory / "compiler.log"
        shims = directory / "bin"
        shims.mkdir()
        shim, real = shims / "g++", shutil.which("g++")
        shim.write_text(
            f"#!{sys.executable} -IS\n"
            "import os, shlex, sys\n"
            f"with open({str(self._log)!r}, 'a') as log:\n"
            "    log.write(shlex.join(sys.argv[1:]) + '\\n')\n"
            # The full path, because the compiler looks for its parts beside the path in argv[0].
            f"os.execv({real!r}, [{real!r}, *sys.argv[1:]])\n"
        )
        shim.chmod(0o755)
        self._path = f"{shims}{os.pathsep}{os.environ['PATH']}"

    def start(
        self,
        store: Path | None = None,
        *,
        emulator: Sequence[str] = (),
        headers: str = "own",
        environ: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> Started:
        program = HERE / "warm_process.py"
        self._number += 1
        temporary = self._directory / f"tmp{self._number}"
        temporary.mkdir()
        if self.headers is not None and headers == "shared":
            # Compiling headers takes 5.7 s. With "own", a start does it itself, as on a fresh node.
            (temporary / HEADERS.parent).mkdir(mode=0o700)
            shutil.copytree(self.headers, temporary / HEADERS, copy_function=os.link)
        self._log.write_text("")
        settings = {"store": str(store or self.store), "key": str(self._key), **options}
        completed = run_to_end(
            [*emulator, sys.executable, str(program), json.dumps(settings)],
            timeout=500,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "SERVE_"))},
                "PATH": self._path,
                "TMPDIR": str(temporary),
                "OMP_NUM_THREADS": "1",
                **environ,
            },
        )
        assert completed.returncode == 0, completed.stderr
        if any((temporary / HEADERS).rglob("*.gch")):
            self.headers = temporary / HEADERS
        lines = [shlex.split(line) for line in self._log.read_text().splitlines()]
        return Started(said=json.loads(completed.stdout.splitlines()[-1]), command_lines=lines)
