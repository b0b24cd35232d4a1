# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The commands with which Inductor runs the C++ compiler: who changes and who counts them.

Inductor compiles C++ in threads of this process, and each compiler run goes through one function,
`run_compile_cmd` (private; 2.5 to 2.15). tests/replica/start/test_cold_warm.py compares the count
with the process table.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from types import ModuleType

from serve_warm.compiler.imports import when_imported
from serve_warm.private_apis import module_names, patches

OBJECT_SUFFIXES = (".so", ".o", ".a", ".dylib", ".pyd", ".dll")
"""Suffixes of the output files of a compile. `g++ --version` and preprocessing write no such
file."""


def rewrite_commands(rewrite: Callable[[str], str]) -> None:
    """From now on, run `rewrite(command)` instead of each command. Call this once per process."""
    _rewrites.append(rewrite)
    when_imported(module_names.CPP_BUILDER, _hook)


def time_compiles(note: Callable[[float], None]) -> None:
    """From now on, call `note(seconds)` after each command that writes an object file.

    The time does not include that of `rewrite_commands`. Call this once per process.
    """
    _notes.append(note)
    when_imported(module_names.CPP_BUILDER, _hook)


_rewrites: list[Callable[[str], str]] = []
_notes: list[Callable[[float], None]] = []


def _hook(_: ModuleType) -> None:
    patches.replace("run_compile_cmd", _rewrite_and_time)


def _rewrite_and_time(run: Callable[[str, str], None]) -> Callable[[str, str], None]:
    def run_compile_cmd(cmd_line: str, cwd: str) -> None:
        for rewrite in _rewrites:
            cmd_line = rewrite(cmd_line)
        start = time.perf_counter()
        try:
            run(cmd_line, cwd)
        finally:
            seconds = time.perf_counter() - start
            if _notes and _makes_object(cmd_line):
                for note in _notes:
                    note(seconds)

    return run_compile_cmd


def _makes_object(cmd_line: str) -> bool:
    words = shlex.split(cmd_line)
    outputs = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "-o"]
    return any(output.endswith(OBJECT_SUFFIXES) for output in outputs)
