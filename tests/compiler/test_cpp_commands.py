# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Commands of the C++ compiler: rewritten before they run, and timed if they write an object file.

Real commands are in tests/replica/start/test_cold_warm.py.
"""

from __future__ import annotations

import itertools
from types import ModuleType, SimpleNamespace

import pytest

from serve_warm.compiler import caches, cpp_commands
from stand_ins import install


class Compiler:
    """A compiler whose commands are hooked. A second passes between two looks at the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.seconds: list[float] = []
        clock = itertools.count()
        time = SimpleNamespace(perf_counter=lambda: float(next(clock)))
        monkeypatch.setattr(cpp_commands, "time", time)
        for name in ("_rewrites", "_notes"):
            monkeypatch.setattr(cpp_commands, name, [])
        for module in (caches, cpp_commands):
            monkeypatch.setattr(module, "when_imported", lambda name, call: None)
        self._module = ModuleType("cpp_builder")
        vars(self._module)["run_compile_cmd"] = self._run
        install(cpp_commands._hook, "torch._inductor.cpp_builder", self._module)

    def run(self, command: str) -> None:
        self._module.run_compile_cmd(command, "/folder")

    def _run(self, cmd_line: str, cwd: str) -> None:
        assert cwd == "/folder"
        self.ran.append(cmd_line)
        if "broken" in cmd_line:
            raise RuntimeError("no such file")


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    return Compiler(monkeypatch)


def test_only_commands_that_write_objects_are_timed(compiler: Compiler):
    """A compile that fails took its time, too."""
    cpp_commands.time_compiles(compiler.seconds.append)
    compiler.run("g++ --version")
    compiler.run("g++ -E a.hpp -o a.i")
    assert compiler.seconds == []
    compiler.run("g++ a.cpp -o a.so")
    with pytest.raises(RuntimeError):
        compiler.run("g++ broken.cpp -o broken.o")
    assert compiler.seconds == [1.0, 1.0]


def test_a_header_is_made_when_a_compiler_runs(compiler: Compiler):
    """Once, and its time is not that of the compile. A kernel that is loaded makes none."""
    made: list[str] = []

    def precompile(header: str, command: str) -> str:
        cpp_commands.time.perf_counter()
        made.append(header)
        return f"/headers/{header}"

    codecache = ModuleType("codecache")
    vars(codecache)["_precompile_header"] = precompile
    cpp_commands.time_compiles(compiler.seconds.append)
    install(caches._defer_headers, "torch._inductor.codecache", codecache)
    places = [codecache._precompile_header("vec.h", "g++") for _ in range(2)]
    codecache._precompile_header("other.h", "g++")
    assert made == []

    compiler.run(f"g++ -include {places[0]} a.cpp -o a.so")

    assert places[0] == places[1]
    assert made == ["vec.h"]
    assert compiler.ran == ["g++ -include /headers/vec.h a.cpp -o a.so"]
    assert compiler.seconds == [1.0]
