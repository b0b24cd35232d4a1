# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Torch's caches of compiled code: their bytes, their folders, their precompiled headers.

`torch.compiler.save_cache_artifacts` and `load_cache_artifacts` are public. The headers' names are
private; each function says the version it was seen in.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from serve_warm import _private_folders
from serve_warm._redaction import loggable
from serve_warm.compiler.background_import import when_imported
from serve_warm.compiler.cpu_target import force_setting

logger = logging.getLogger(__name__)


def defer_precompiled_headers() -> None:
    """Make torch precompile its C++ headers when a compiler runs, not when a kernel is loaded.

    Inductor preprocesses two headers in every process and precompiles them into the user's
    folder under the temp directory, before it looks whether the kernel's library is there: on a
    fresh node 5 s of g++ in a start whose kernels are all in the artifact (torch 2.13,
    `_precompile_header` of codecache.py). The path of the header only enters the compiler's
    command line, so that a word of ours can stand for it until there is such a command.
    """
    when_imported("torch._inductor.codecache", _defer_headers)


def _defer_headers(codecache: Any) -> None:
    from torch._inductor import cpp_builder  # which codecache has imported

    precompile = getattr(codecache, "_precompile_header", None)
    if precompile is None:
        return
    run: Callable[[str, str], None] = cpp_builder.run_compile_cmd
    headers: dict[str, Callable[[], str]] = {}
    numbers = itertools.count()  # two threads get two numbers

    @functools.cache
    def deferred(*args: Any, **kwargs: Any) -> str:
        word = f"/serve_warm-deferred-header-{next(numbers)}.h"
        headers[word] = functools.partial(precompile, *args, **kwargs)
        return word

    def run_compile_cmd(cmd_line: str, cwd: str) -> None:
        for word, header in list(headers.items()):
            if word in cmd_line:
                cmd_line = cmd_line.replace(word, header())
        run(cmd_line, cwd)

    codecache._precompile_header = deferred
    cpp_builder.run_compile_cmd = run_compile_cmd


def keep_headers_private(whose: Literal["shared", "own"] = "shared") -> None:
    """Make torch keep its precompiled headers where no other user can have put them.

    With `own` no other process of this user can have put them there either.

    Its own place is a folder of a known name under the temp directory, wherever the caches are
    pointed at, and whoever made that folder first is asked nothing: a header from there is code
    in every kernel (torch 2.13, `_HEADER_DIR` of codecache.py).
    """
    move = _move_headers_to_own if whose == "own" else _move_headers
    when_imported("torch._inductor.codecache", move)


def _move_headers_to_own(codecache: ModuleType) -> None:
    _move_headers(codecache, _own_header_directory)


def _move_headers(codecache: ModuleType, find: Callable[[], Path] | None = None) -> None:
    if hasattr(codecache, "_HEADER_DIR"):
        directory = (find or header_directory)()
        vars(codecache).update(
            _HEADER_DIR=str(directory), _HEADER_LOCK_DIR=str(directory / "locks")
        )
    elif hasattr(codecache, "_precompile_header"):
        # A torch that keeps them somewhere else makes none: about a second more per kernel.
        force_setting(
            sys.modules["torch._inductor.config"], "cpp_cache_precompile_headers", value=False
        )


def header_directory(base: Path | None = None) -> Path:
    """Return the folder of this user's precompiled headers: `user_folder("headers")`.

    One per user, not per process: a header costs 5.7 s and saves one second at each kernel (six
    kernels on two cores: 3.8 s with it, 7.1 s without any, 10.5 s when it must be made first).
    Where another user could have written to the folder, or could replace it, it is a new one of
    this process. With `base` it is below that.
    """
    folder = _private_folders.user_folder("headers")
    if base is not None:
        folder = base / f"serve_warm-{os.geteuid()}" / "headers"
    try:
        _private_folders.make_private(folder)
        why = _private_folders.sentence(_private_folders.problems(folder))
    except OSError as error:
        why = f"{folder}: {error.strerror}"
    if not why:
        return folder
    logger.warning("C++ headers are compiled for this process alone, since %s", why)
    return private_directory(base)


@functools.cache
def _own_header_directory() -> Path:
    return private_directory()


def save_torch_bytes() -> bytes:
    """Return torch's own cache artifacts of this process, empty when there are none.

    Once per process only: bytes of a second save, with compiles in between, lose the first
    batch when they are loaded (torch 2.13 to 2.15).
    """
    import torch
    import torch._dynamo  # save fails before Dynamo has been imported

    saved = torch.compiler.save_cache_artifacts()
    return saved[0] if saved is not None else b""


def load_torch_bytes(raw: bytes) -> bool:
    """Load bytes of `save_torch_bytes`; return whether torch accepted them.

    This executes what the bytes say. Only call it with bytes whose signature was checked. Where
    it returns False, entries before the bad one may have been written to the cache directory.
    From 2.14 on entries are not opened here: one that cannot be read is a miss when a compile
    looks it up.
    """
    import torch
    import torch._dynamo

    try:
        return torch.compiler.load_cache_artifacts(raw) is not None
    except (pickle.UnpicklingError, AttributeError, EOFError, ImportError, IndexError) as error:
        # What unpickling an entry can raise. torch up to 2.13 lets it out, for some entries.
        what = "torch could not read an entry of its cache artifacts"
        logger.warning(what, exc_info=loggable(error))
        return False


def forget_compiled() -> None:
    """Make torch compile everything again that this process has compiled or loaded.

    No file is touched. Inductor keeps loaded kernels by their source, so that without this a broken
    one would be found again wherever the caches are pointed at. `clear_caches` is private (2.13);
    before it was called `clear_inductor_caches`.
    """
    if "torch._dynamo" not in sys.modules:
        return
    import torch

    torch.compiler.reset()
    utils: Any = sys.modules.get("torch._inductor.utils")
    clear = getattr(utils, "clear_caches", None) or getattr(utils, "clear_inductor_caches", None)
    if clear is not None:
        clear()


def private_directory(base: Path | None = None) -> Path:
    """Return a new, empty directory of mode 0700 for this process' caches.

    It goes with the process (`_private_folders.process_folder`). `base` is
    `_private_folders.private_base()` unless it is given. Where that is not safe from other users,
    neither is the new directory, and nothing of an artifact may be put into it.
    """
    cache = _private_folders.process_folder(base) / "cache"
    cache.mkdir(mode=0o700)
    return cache
