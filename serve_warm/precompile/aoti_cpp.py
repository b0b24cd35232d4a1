# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The C++ of a library: how its code is changed, and when the C++ compiler runs.

The compiler takes most of the time that a library needs (of 11 CPU seconds for a MiniLM 7), is a
process of its own, and leaves torch alone. So it can run while torch traces the next graph, which
only one thread may do. torch's part is done in its order: it is told that the compiler has run,
and its command lines are noted.

Seen in torch 2.13:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/codecache.py
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

from serve_warm import _daemon_threads, _private_folders
from serve_warm._redaction import describe_error
from serve_warm.precompile import aot_compile
from serve_warm.precompile.facts import NoEntry

logger = logging.getLogger(__name__)

PRINTS = re.compile(r"""std::cerr << "Error: " << e\.what\(\) << '\\n'""")
"""How the C interface of a library reports a failure, beside the text that it keeps."""

KEEPS = """\
#include <cstdint>
#include <string>
static thread_local std::string g_aoti_last_error;
extern "C" __attribute__((__visibility__("default")))
int32_t AOTInductorGetLastError(const char** text) {
  *text = g_aoti_last_error.c_str();
  return 0;
}
"""
"""What keeps that text in torch 2.13 to 2.15; 2.11 has nothing like it, and gets this."""


Compiler = Literal["now", "background"]
"""When the C++ compiler runs: until it is done, or while torch traces what comes next."""


def compile_library(generate: Callable[[], str], *, compiler: Compiler) -> Callable[[], bytes]:
    """Return what returns a library, and waits for the C++ compiler first if that must be.

    `generate` has torch compile one, and returns where torch says that it is. Called once, and
    again where the compiler in the background did not do what torch's way may do.

    Raises whatever torch raises, here or from what is returned.
    """
    if compiler == "background":
        with contextlib.suppress(*aot_compile.FAILURES), _noted_commands() as commands:
            begun = commands.begin(generate())
            return functools.partial(_wait, begun, generate)
    data = _compile_now(generate)
    return lambda: data


def _wait(begun: Future[bytes], generate: Callable[[], str]) -> bytes:
    try:
        data = begun.result()
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("a C++ compiler in the background failed: %s", describe_error(error))
        return _compile_now(generate)
    _refuse_another_runtime(data)
    return data


def _compile_now(generate: Callable[[], str]) -> bytes:
    with _wrapped(contextlib.nullcontext):
        data = Path(generate()).read_bytes()
    _refuse_another_runtime(data)
    return data


@contextlib.contextmanager
def _noted_commands() -> Iterator[Commands]:
    """Note the runs of the C++ compiler for one library in the block, and do not run it."""
    commands = Commands()
    try:
        with _wrapped(functools.partial(_noting, commands)):
            yield commands
    finally:
        if not commands.has_begun:
            commands.forget()


@contextlib.contextmanager
def _wrapped(during: Any) -> Iterator[None]:
    """Compile libraries in the block that write nothing to stderr when a call fails.

    Each failure would be 25 lines there, and no caller could keep them from it: the file descriptor
    is the whole process's. The source of the interface is a part of each library's own. Seen in
    2.11, 2.13 and 2.15:
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/codegen/aoti_runtime/interface.cpp
    torch's part for each is done within `during()`.
    """
    from torch._inductor.codecache import AotCodeCompiler

    compiler: Any = AotCodeCompiler
    stock, bound = vars(compiler)["compile"], compiler.compile

    def compile_changed(graph: Any, wrapper_code: str, *args: Any, **kwargs: Any) -> Any:
        with during():
            return bound(graph, without_prints(wrapper_code), *args, **kwargs)

    compiler.compile = staticmethod(compile_changed)
    try:
        yield
    finally:
        compiler.compile = stock


def without_prints(source: str) -> str:
    """Return the C++ of a library that keeps the text of a failure and does not print it."""
    if not PRINTS.search(source):
        return source
    if "g_aoti_last_error" in source:
        return PRINTS.sub("static_cast<void>(e)", source)
    return KEEPS + PRINTS.sub("g_aoti_last_error = e.what()", source)


CPP_RUNTIMES = b"libstdc++.", b"libc++."
"""One of them stands in a library that shares its C++ runtime with torch."""


def _refuse_another_runtime(data: bytes) -> None:
    """Raise `NoEntry` where a library has a C++ of its own, from a compiler that links it so.

    Its locales are not the process's then, and the first thing that torch's code in it does, a
    regular expression, ends the process (2.11, `parse_device_str` of model_base.h).
    """
    if not any(name in data for name in CPP_RUNTIMES):
        raise NoEntry(
            "the C++ compiler has linked its own C++ runtime into the library: have it link "
            "libstdc++ as a shared library"
        )


# When the compiler runs ---------------------------------------------------------------------------


class Commands:
    """The command lines that make one library: its objects, and the library of these."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._folder = self._open.enter_context(_private_folders.temporary_folder())
        self._places: dict[str, str] = {}
        """Where each file that torch has named is made instead, in a folder of our own: torch
        removes the objects as soon as it has been told that they are linked."""
        self._lines: list[list[str]] = []
        self.has_begun = False
        self._library = ""

    def note(self, line: str, target: str) -> None:
        """Note a command line that makes `target`, and let torch believe that it was made.

        Raises:
            RuntimeError: the command line is not understood.
        """
        words = shlex.split(line)
        if words.count(target) != 1 or self._library:
            raise RuntimeError(f"not a command line that makes {target} of a library: {line}")
        file = Path(target)
        self._places[target] = str(self._folder / f"{len(self._places)}{file.suffix}")
        self._lines.append(words)
        if file.suffix == OBJECT:
            file.touch()
            return
        file.unlink(missing_ok=True)
        self._library = target
        for word in words:
            # What was made otherwise, by the linker for example, is removed like the others.
            if word.endswith(OBJECT) and word not in self._places:
                place = self._folder / f"{len(self._places)}{OBJECT}"
                self._places[word] = str(shutil.copyfile(word, place))

    def begin(self, returned: str) -> Future[bytes]:
        """Run the commands in a thread; the future has the library, as torch would have made it.

        `returned` is where torch says that it is.

        Raises:
            RuntimeError: that is not what was noted.
        """
        if returned != self._library or Path(returned).exists():
            raise RuntimeError(f"torch has made {returned} in a way that is not known")
        self.has_begun = True
        return _daemon_threads.begin(self._run, name=THREAD)

    def _run(self) -> bytes:
        with self._open, _slots():
            for line in self._lines:
                words = [self._places.get(word, word) for word in line]
                subprocess.run(words, cwd=self._folder, check=True, capture_output=True)
            return Path(self._places[self._library]).read_bytes()

    def forget(self) -> None:
        """Remove what there is, where the commands are not run."""
        self._open.close()


OBJECT = ".o"

THREAD = "serve_warm-cpp"
"""Name of the threads that wait for C++ compilers."""


@contextlib.contextmanager
def _noting(commands: Commands) -> Iterator[None]:
    """Note what makes objects of C++ and libraries in this thread, and have the rest built.

    Nothing but the C++ of one library is compiled in the block.
    """
    from torch._inductor.cpp_builder import CppBuilder

    kind: Any = CppBuilder
    stock, here = kind.build, threading.get_ident()

    def build(builder: Any) -> None:
        target, line = builder.get_target_file_path(), builder.get_command_line()
        # Weights, none here, are assembled: that takes no time, and their source is removed.
        has_code = any(word.endswith(".cpp") for word in shlex.split(line))
        kind_of_file = Path(target).suffix
        is_noted = kind_of_file == ".so" or (kind_of_file == OBJECT and has_code)
        if threading.get_ident() == here and is_noted:
            commands.note(line, target)
        else:
            stock(builder)

    kind.build = build
    try:
        yield
    finally:
        kind.build = stock


@functools.cache
def _slots() -> threading.BoundedSemaphore:
    """Return what lets as many compilers run as torch's own: the cores, or what a user has set."""
    from torch._inductor import config

    return threading.BoundedSemaphore(max(1, config.compile_threads or 1))
