# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Torch's caches of compiled code: cache folders and precompiled headers.

torch's names for precompiled headers are private; each function says in which version the names
were seen.
"""

from __future__ import annotations

import functools
import itertools
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from serve_warm import _private_folders
from serve_warm.compiler.cpu_target import force_setting
from serve_warm.compiler.imports import when_imported

logger = logging.getLogger(__name__)


def defer_precompiled_headers() -> None:
    """Make torch precompile its C++ headers when a compiler runs, not when a kernel is loaded.

    In every process, Inductor preprocesses two headers and precompiles them into the user's folder
    under the temp directory. Inductor does both before it checks whether the kernel's library
    exists. On a fresh node, both steps run g++ for 5 s, even if the artifact has all kernels (torch
    2.13, `_precompile_header` of codecache.py). Only the compiler's command line uses the path of
    the header. So a placeholder replaces the path until a compiler runs.
    """
    when_imported("torch._inductor.codecache", _defer_headers)


def _defer_headers(codecache: Any) -> None:
    from torch._inductor import cpp_builder  # already imported by codecache

    precompile = getattr(codecache, "_precompile_header", None)
    if precompile is None:
        return
    run: Callable[[str, str], None] = cpp_builder.run_compile_cmd
    headers: dict[str, Callable[[], str]] = {}
    numbers = itertools.count()  # atomic: two threads get two numbers

    @functools.cache
    def defer(*args: Any, **kwargs: Any) -> str:
        word = f"/serve_warm-deferred-header-{next(numbers)}.h"
        headers[word] = functools.partial(precompile, *args, **kwargs)
        return word

    def run_compile_cmd(cmd_line: str, cwd: str) -> None:
        for word, header in list(headers.items()):
            if word in cmd_line:
                cmd_line = cmd_line.replace(word, header())
        run(cmd_line, cwd)

    codecache._precompile_header = defer
    cpp_builder.run_compile_cmd = run_compile_cmd


def keep_headers_private(whose: Literal["shared", "own"] = "shared") -> None:
    """Make torch keep its precompiled headers in a folder that no other user can write to.

    With `own`, the folder is new, so other processes of this user cannot have written to it either.

    Without this call, torch uses a folder with a known name under the temp directory, whatever the
    cache settings say. torch does not check who created that folder. Code from these headers goes
    into every kernel (torch 2.13, `_HEADER_DIR` of codecache.py).
    """
    move = _move_headers_to_own if whose == "own" else _move_headers
    when_imported("torch._inductor.codecache", move)


def _move_headers_to_own(codecache: ModuleType) -> None:
    _move_headers(codecache, _own_header_directory)


@functools.cache  # a build asks twice, and may have compiled headers in between
def _own_header_directory() -> Path:
    return private_directory()


def _move_headers(codecache: ModuleType, find: Callable[[], Path] | None = None) -> None:
    if hasattr(codecache, "_HEADER_DIR"):
        directory = (find or header_directory)()
        vars(codecache).update(
            _HEADER_DIR=str(directory), _HEADER_LOCK_DIR=str(directory / "locks")
        )
    elif hasattr(codecache, "_precompile_header"):
        # This version of torch keeps headers elsewhere, so do not precompile any. Each kernel then
        # takes about 1 s longer.
        force_setting(
            sys.modules["torch._inductor.config"], "cpp_cache_precompile_headers", value=False
        )


def header_directory() -> Path:
    """Return the folder of this user's precompiled headers: `user_folder("headers")`.

    All processes of a user share the folder, because precompiling a header costs 5.7 s and saves
    only 1 s per kernel. Compiling six kernels on two cores takes 3.8 s with the precompiled header,
    7.1 s without it, and 10.5 s if the header must be made first. If another user could write to
    the folder or replace it, the result is a new folder that only this process uses.
    """
    folder = _private_folders.user_folder("headers")
    try:
        _private_folders.make_private(folder)
        why = _private_folders.sentence(_private_folders.problems(folder))
    except OSError as error:
        why = f"{folder}: {error.strerror}"
    if not why:
        return folder
    logger.warning("this process compiles its own C++ headers, because %s", why)
    return private_directory()


def forget_compiled() -> None:
    """Make torch recompile everything that this process has compiled or loaded.

    No file is changed. Inductor keeps loaded kernels in memory, keyed by their source code. So
    without this call, Inductor would reuse a broken kernel even after the cache directory has
    changed. `clear_caches` is private (2.13), and was earlier named `clear_inductor_caches`.
    """
    if "torch._dynamo" not in sys.modules:
        return
    import torch

    torch.compiler.reset()
    utils: Any = sys.modules.get("torch._inductor.utils")
    clear = getattr(utils, "clear_caches", None) or getattr(utils, "clear_inductor_caches", None)
    if clear is not None:
        clear()


def private_directory() -> Path:
    """Return a new, empty directory of mode 0700 for the caches of this process.

    The directory is deleted when the process ends (`_private_folders.process_folder`). If
    other users can write to `_private_folders.private_base()`, the new directory is not safe
    either: do not put any part of an artifact there.
    """
    cache = _private_folders.process_folder() / "cache"
    cache.mkdir(mode=0o700)
    return cache
