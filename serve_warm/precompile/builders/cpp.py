# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Changes to the C++ code of libraries, and runs of the C++ compiler in the background.

The C++ compiler takes most of a library's build time (7 of 11 CPU seconds for a MiniLM). Only one
thread can trace at a time. But the compiler is a separate process, so the compiler can run while
torch traces the next graph. serve_warm records the command lines that torch would run, and lets
torch continue as if each command had finished. For three libraries on two cores, this makes the
phase `pack` of a build 22 % shorter (`tests/benchmarks/results/build.json`).

Seen in torch 2.13:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/codecache.py
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

from serve_warm import _daemon_threads, _private_folders
from serve_warm._redaction import describe_error
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.torch_errors import FAILURES, find_user_code

logger = logging.getLogger(__name__)

PRINTS = re.compile(r"""std::cerr << "Error: " << e\.what\(\) << '\\n'""")
"""Pattern for the C++ statement that prints the text of a failure.

The statement is in each library's C interface.
"""

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
"""C++ source that stores the text of a failure. Libraries from torch 2.13 to 2.15 contain this
source, and serve_warm adds it to libraries from torch 2.11."""


Compiler = Literal["now", "background"]
"""Whether the C++ compiler runs now, or in the background while torch traces the next graph."""


def compile_library(generate: Callable[[], str], *, compiler: Compiler) -> Callable[[], bytes]:
    """Return a function that waits for the C++ compiler if needed, and then returns the library.

    `generate` makes torch compile a library, and returns the path that torch reports. If the
    compiler fails in the background, `generate` is called again, because torch itself might
    succeed.

    This function and the returned function do not convert torch's exceptions.
    """
    if compiler == "background":
        with contextlib.suppress(*FAILURES), _note_commands() as commands:
            begun = commands.begin(generate())
            return functools.partial(_wait, begun, generate)
    data = _compile_now(generate)
    return lambda: data


def _wait(begun: Future[bytes], generate: Callable[[], str]) -> bytes:
    try:
        data = begun.result()
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the C++ compiler failed in the background: %s", describe_error(error))
        return _compile_now(generate)
    _refuse_another_runtime(data)
    return data


def _compile_now(generate: Callable[[], str]) -> bytes:
    with _wrap_compiler(contextlib.nullcontext):
        data = Path(generate()).read_bytes()
    _refuse_another_runtime(data)
    return data


@contextlib.contextmanager
def _note_commands() -> Iterator[Commands]:
    """Record the C++ compiler's command lines for one library, without running them."""
    commands = Commands()
    try:
        with _wrap_compiler(functools.partial(_noting, commands)):
            yield commands
    finally:
        if not commands.has_begun:
            commands.forget()


@contextlib.contextmanager
def _wrap_compiler(during: Any) -> Iterator[None]:
    """Silence the libraries that are compiled in the block: failed calls print nothing to stderr.

    Otherwise, each failed call prints 25 lines. A caller cannot suppress these lines, because
    stderr belongs to the whole process. The printing code is in the C interface, whose source is
    part of each library. Seen in 2.11, 2.13 and 2.15:
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/codegen/aoti_runtime/interface.cpp
    torch compiles each library within `during()`.
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
    """Return a library's C++ code, changed to store a failure's text instead of printing it."""
    if not PRINTS.search(source):
        return source
    if "g_aoti_last_error" in source:
        return PRINTS.sub("static_cast<void>(e)", source)
    return KEEPS + PRINTS.sub("g_aoti_last_error = e.what()", source)


CPP_RUNTIMES = b"libstdc++.", b"libc++."
"""Names of shared C++ runtimes. A library that uses torch's runtime contains one of these names."""


def _refuse_another_runtime(data: bytes) -> None:
    """Raise `NoEntry` if a library has a statically linked C++ runtime.

    The locales of such a library differ from the process's locales. torch's code in the library
    immediately uses a regular expression, which crashes the process (2.11, `parse_device_str` of
    model_base.h).
    """
    if not any(name in data for name in CPP_RUNTIMES):
        raise NoEntry(
            "the C++ compiler linked its runtime statically into the library: configure the "
            "compiler to link libstdc++ as a shared library"
        )


# When the compiler runs ---------------------------------------------------------------------------


class Commands:
    """The command lines that compile one library's objects and link the library."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._folder = self._open.enter_context(_private_folders.temporary_folder())
        self._places: dict[str, str] = {}
        """Maps each path that torch names to a path in a private folder. torch removes object
        files from its own folder as soon as it assumes that they are linked."""
        self._lines: list[list[str]] = []
        self.has_begun = False
        self._library = ""

    def note(self, line: str, target: str) -> None:
        """Record a command line that makes `target`, and make torch assume that the command ran.

        Raises:
            RuntimeError: serve_warm does not understand the command line.
        """
        words = shlex.split(line)
        if words.count(target) != 1 or self._library:
            raise RuntimeError(f"unexpected command line for building {target}: {line}")
        file = Path(target)
        self._places[target] = str(self._folder / f"{len(self._places)}{file.suffix}")
        self._lines.append(words)
        if file.suffix == OBJECT:
            file.touch()
            return
        file.unlink(missing_ok=True)
        self._library = target
        for word in words:
            # torch also removes objects that no recorded command makes, for example objects that
            # the linker made. So copy these objects now.
            if word.endswith(OBJECT) and word not in self._places:
                place = self._folder / f"{len(self._places)}{OBJECT}"
                self._places[word] = str(shutil.copyfile(word, place))

    def begin(self, returned: str) -> Future[bytes]:
        """Run the commands in a thread, and return a future for the library that they build.

        `returned` is the path that torch reports for the library.

        Raises:
            RuntimeError: no recorded command makes the file at this path.
        """
        if returned != self._library or Path(returned).exists():
            raise RuntimeError(f"torch did not build {returned} with the recorded commands")
        self.has_begun = True
        return _daemon_threads.begin(self._run, name=THREAD)

    def _run(self) -> bytes:
        with self._open, _slots():
            for line in self._lines:
                words = [self._places.get(word, word) for word in line]
                subprocess.run(words, cwd=self._folder, check=True, capture_output=True)
            return Path(self._places[self._library]).read_bytes()

    def forget(self) -> None:
        """Remove the files if the commands will not run."""
        self._open.close()


OBJECT = ".o"

THREAD = "serve_warm-cpp"
"""Name of the threads that wait for C++ compilers."""


@contextlib.contextmanager
def _noting(commands: Commands) -> Iterator[None]:
    """Record the builds of C++ objects and libraries in this thread, and run all other builds.

    The block must compile the C++ code of only one library.
    """
    from torch._inductor.cpp_builder import CppBuilder

    kind: Any = CppBuilder
    stock, here = kind.build, threading.get_ident()

    def build(builder: Any) -> None:
        target, line = builder.get_target_file_path(), builder.get_command_line()
        # Build the object for weights now. It is empty here, so this is fast, and torch removes its
        # source afterwards.
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
    """Return a semaphore that limits concurrent compilers to torch's own limit.

    The limit is the number of cores, or the user's setting.
    """
    from torch._inductor import config

    return threading.BoundedSemaphore(max(1, config.compile_threads or 1))


@contextlib.contextmanager
def note_lines() -> Iterator[Mapping[str, str]]:
    """Yield a mapping that collects operators without a C interface while torch compiles.

    The mapping gives, for each operator's name, the file and line of user code that calls the
    operator. If there are such operators, the block raises `NoEntry` before torch compiles C++.
    """
    from torch._inductor.codecache import AotCodeCompiler
    from torch._inductor.ir import FallbackKernel

    kind: Any = FallbackKernel
    compiler: Any = AotCodeCompiler
    stock = kind.export_extern_kernel_node
    compile_stock, compile_code = vars(compiler)["compile"], compiler.compile
    places: dict[str, str] = {}

    def compile_plain(*args: Any, **kwargs: Any) -> Any:
        _refuse_operators(places)
        return compile_code(*args, **kwargs)

    def export(kernel: Any) -> Any:
        for trace in kernel.get_stack_traces():
            place, _ = find_user_code([line.strip() for line in trace.splitlines()])
            places.setdefault(str(kernel.op_overload.name()), place)
        return stock(kernel)

    kind.export_extern_kernel_node = export
    compiler.compile = staticmethod(compile_plain)
    try:
        yield places
    except FAILURES:  # torch may replace the exception
        _refuse_operators(places)
        raise
    finally:
        kind.export_extern_kernel_node = stock
        compiler.compile = compile_stock


def refuse_foreign(path: Path, places: Mapping[str, str]) -> None:
    """Raise `NoEntry` if torch's table of calls shows that a library calls torch's dispatcher.

    `places` comes from `note_lines`.
    """
    table = path.with_suffix(".json")
    if table.exists():
        nodes = json.loads(table.read_text())["nodes"]
        names = {str(node["node"]["target"]) for node in nodes}
        _refuse_operators({name: places.get(name, "") for name in names})


def _refuse_operators(places: Mapping[str, str]) -> None:
    """Raise `NoEntry` if there are operators without a C interface."""
    names = sorted(places)
    if names:
        others = USE_LEVEL_2 if all(name.startswith("aten::") for name in names) else USE_OTHERS
        instead = next((do for name, do in INSTEAD.items() if name in names), others)
        shown = (f"{name} ({places[name]})" if places.get(name) else name for name in names)
        raise NoEntry(f"it calls operators that have no C interface: {', '.join(shown)}: {instead}")


USE_LEVEL_2 = "use level 2, or real numbers instead of complex numbers"
USE_OTHERS = "use torch operators instead, or use level 2"
INSTEAD = {
    "transformers::grouped_mm_fallback": "call model.set_experts_implementation('batched_mm'), or "
    "use level 2"
}
"""Advice for an operator that a library cannot call."""
