# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Changes to the C++ code of libraries, and runs of the C++ compiler in the background.

The C++ compiler takes most of a library's build time (7 of 11 CPU seconds for a MiniLM). Only one
thread can trace at a time. But the compiler is a separate process, so the compiler can run while
torch traces the next graph. serve_warm runs the commands that torch would run, each in the
background, and lets torch continue as if it had finished. `tests/benchmarks/bench_build.py`
measures builds.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from serve_warm import _daemon_threads, _private_folders
from serve_warm._redaction import describe_error
from serve_warm.config import environment
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.torch_errors import FAILURES, find_user_code
from serve_warm.private_apis import inductor
from serve_warm.private_apis.patches import Change, replaced

if TYPE_CHECKING:
    from serve_warm.private_apis.inductor_objects import CppBuilder, FallbackKernel

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

    This function and the returned function do not convert torch's exceptions. But they raise
    `NoEntry` if the library calls an operator without a C interface.
    """
    if compiler == "background":
        try:
            return functools.partial(_wait, _begin(generate), generate)
        except FAILURES as error:
            # It costs as long again, so nobody should have to search for it.
            logger.warning(
                "a library cannot be compiled in the background, so torch makes its code again: %s",
                describe_error(error),
            )
    data = _compile_now(generate)
    return lambda: data


def _begin(generate: Callable[[], str]) -> Future[bytes]:
    """Run the C++ compiler's command lines for one library in the background."""
    commands = Commands()
    try:
        return commands.begin(_call_torch(generate, functools.partial(_noting, commands)))
    finally:
        if not commands.has_begun:
            commands.forget()


def _wait(begun: Future[bytes], generate: Callable[[], str]) -> bytes:
    try:
        data = begun.result()
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the C++ compiler failed in the background: %s", describe_error(error))
        return _compile_now(generate)
    _refuse_another_runtime(data)
    return data


def _compile_now(generate: Callable[[], str]) -> bytes:
    data = Path(_call_torch(generate, contextlib.nullcontext)).read_bytes()
    _refuse_another_runtime(data)
    return data


def _call_torch(
    generate: Callable[[], str], during: Callable[[], contextlib.AbstractContextManager[None]]
) -> str:
    """Return `generate()`. torch compiles the library's C++ code, which is changed, in `during()`.

    Raises:
        NoEntry: the library calls operators without a C interface. torch finds most of them before
            it compiles C++.
    """
    places: dict[str, str] = {}
    """The line of user code that calls each operator without a C interface."""

    def changing(stock: Callable[..., object]) -> Callable[..., object]:
        def compile_changed(
            graph: object, wrapper_code: str, *args: object, **kwargs: object
        ) -> object:
            _refuse_operators(places)
            with during():
                source = without_checks(without_prints(wrapper_code))
                return stock(graph, source, *args, **kwargs)

        return compile_changed

    def noting(stock: Callable[[FallbackKernel], object]) -> Callable[[FallbackKernel], object]:
        def export(kernel: FallbackKernel) -> object:
            for trace in kernel.get_stack_traces():
                place, _ = find_user_code([line.strip() for line in trace.splitlines()])
                places.setdefault(str(kernel.op_overload.name()), place)
            return stock(kernel)

        return export

    changes = (
        Change("AotCodeCompiler.compile", changing),
        Change("FallbackKernel.export_extern_kernel_node", noting),
    )
    try:
        with replaced(changes):
            path = generate()
    except FAILURES:  # torch may replace the exception
        _refuse_operators(places)
        raise
    _refuse_foreign(Path(path), places)
    return path


def without_prints(source: str) -> str:
    """Return a library's C++ code, changed to store a failure's text instead of printing it.

    Otherwise, each failed call prints 25 lines. A caller cannot suppress these lines, because
    stderr belongs to the whole process. The printing code is in the C interface, whose source is
    part of each library. Seen in 2.11, 2.13 and 2.15:
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/codegen/aoti_runtime/interface.cpp
    """
    if not PRINTS.search(source):
        return source
    if "g_aoti_last_error" in source:
        return PRINTS.sub("static_cast<void>(e)", source)
    return KEEPS + PRINTS.sub("g_aoti_last_error = e.what()", source)


CHECKS = (
    re.compile(
        r"""
        ^AOTI_NOINLINE\ static\ void\ check_(?:in|out)put_\d+\(\n
        \ *AtenTensorHandle\*\ (?:in|out)put_handles\n
        \)\ \{\n
        (?:(?:[ \t].*)?\n)*?
        \}\n""",
        re.MULTILINE | re.VERBOSE,
    ),
    re.compile(r"^    check_(?:in|out)put_\d+\((?:in|out)put_handles\);\n", re.MULTILINE),
    re.compile(r"^    if \(\w*inputs_env\(\)\) \{ .* \}\n", re.MULTILINE),
)
"""Patterns for the functions that check a library's inputs, for their calls, and for checks of
single tensors."""

CHECK_VARIABLE = "AOTI_RUNTIME_CHECK_INPUTS"
"""The environment variable that turns the checks of a library on."""


def without_checks(source: str) -> str:
    """Return a library's C++ code without its checks of inputs and results, for debugging torch.

    They run only in a process with `CHECK_VARIABLE`, so a build with it keeps them. serve_warm
    compares each call with what its library was made for. Weights are inputs, so the checks are
    20,000 of 29,000 lines of a ViT-L. Seen in 2.11, 2.13 and 2.15:
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/codegen/cpp_wrapper_cpu.py
    """
    if environment().get(CHECK_VARIABLE, "0")[:1] != "0":
        return source
    changed, counts = source, []
    for pattern in CHECKS:
        changed, count = pattern.subn("", changed)
        counts.append(count)
    functions, calls, _ = counts
    return changed if functions == calls else source  # or it is not the code that is known


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
    """The commands that compile one library's objects, beside each other, and link the library."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._folder = self._open.enter_context(_private_folders.temporary_folder())
        self._places: dict[str, str] = {}
        """Maps each path that torch names to a path in a private folder. torch removes object
        files from its own folder as soon as it assumes that they are linked."""
        self._objects: list[Future[None]] = []
        """The runs of the commands that make objects, which begin at once."""
        self._link: list[str] = []
        self.has_begun = False
        self._library = ""

    def note(self, line: str, target: str) -> None:
        """Begin a command line that makes `target`, and make torch assume that the command ran.

        The command that links the library begins with `begin`.

        Raises:
            RuntimeError: serve_warm does not understand the command line.
        """
        words = shlex.split(line)
        if words.count(target) != 1 or self._library:
            raise RuntimeError(f"unexpected command line for building {target}: {line}")
        file = Path(target)
        self._places[target] = str(self._folder / f"{len(self._places)}{file.suffix}")
        if file.suffix == OBJECT:
            file.touch()
            run = functools.partial(self._run_line, words)
            self._objects.append(_daemon_threads.begin(run, name=THREAD))
            return
        file.unlink(missing_ok=True)
        self._library, self._link = target, words
        for word in words:
            # torch also removes objects that no recorded command makes, for example objects that
            # the linker made. So copy these objects now.
            if word.endswith(OBJECT) and word not in self._places:
                place = self._folder / f"{len(self._places)}{OBJECT}"
                self._places[word] = str(shutil.copyfile(word, place))

    def begin(self, returned: str) -> Future[bytes]:
        """Link the library in a thread when its objects are there, and return a future for it.

        `returned` is the path that torch reports for the library.

        Raises:
            RuntimeError: no recorded command makes the file at this path.
        """
        if returned != self._library or Path(returned).exists():
            raise RuntimeError(f"torch did not build {returned} with the recorded commands")
        self.has_begun = True
        return _daemon_threads.begin(self._finish, name=THREAD)

    def _finish(self) -> bytes:
        with self._open:
            wait(self._objects)  # all of them, because a failure removes the folder
            for made in self._objects:
                made.result()
            self._run_line(self._link)
            return Path(self._places[self._library]).read_bytes()

    def _run_line(self, line: Sequence[str]) -> None:
        words = [self._places.get(word, word) for word in line]
        with _slots():
            subprocess.run(words, cwd=self._folder, check=True, capture_output=True)

    def forget(self) -> None:
        """Remove the files of a library that will not be linked."""
        if all(made.done() for made in self._objects):
            self._open.close()
        else:
            _daemon_threads.begin(self._forget_later, name=THREAD)

    def _forget_later(self) -> None:
        with self._open:
            wait(self._objects)


OBJECT = ".o"

THREAD = "serve_warm-cpp"
"""Name of the threads that wait for C++ compilers."""


@contextlib.contextmanager
def _noting(commands: Commands) -> Iterator[None]:
    """Record the builds of C++ objects and libraries in this thread, and run all other builds.

    The block must compile the C++ code of only one library.
    """
    here = threading.get_ident()

    def noting(stock: Callable[[CppBuilder], None]) -> Callable[[CppBuilder], None]:
        def build(builder: CppBuilder) -> None:
            target, line = builder.get_target_file_path(), builder.get_command_line()
            # Build the object for weights now. It is empty here, so this is fast, and torch removes
            # its source afterwards.
            has_code = any(word.endswith(".cpp") for word in shlex.split(line))
            # A library is linked from objects. What torch compiles without objects is a probe of
            # the CPU's instructions, which torch loads at once.
            is_noted = Path(target).suffix == (OBJECT if has_code else ".so")
            if threading.get_ident() == here and is_noted:
                commands.note(line, target)
            else:
                stock(builder)

        return build

    with replaced([Change("CppBuilder.build", noting)]):
        yield


@functools.cache
def _slots() -> threading.BoundedSemaphore:
    """Return a semaphore that limits concurrent compilers to torch's own limit.

    The limit is the number of cores, or the user's setting.
    """
    return threading.BoundedSemaphore(inductor.compile_threads())


def _refuse_foreign(path: Path, places: Mapping[str, str]) -> None:
    """Raise `NoEntry` if torch's table of calls shows that a library calls torch's dispatcher."""
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
