# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Torch's caches of compiled code: cache folders and precompiled headers."""

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
from serve_warm.compiler.cpp_commands import rewrite_commands
from serve_warm.compiler.cpu_target import force_setting
from serve_warm.compiler.imports import when_imported
from serve_warm.errors import ConfigError
from serve_warm.private_apis import dynamo, inductor, module_names, patches
from serve_warm.private_apis.table import HEADER_FOLDER, HEADER_LOCKS, PRECOMPILE_HEADER

logger = logging.getLogger(__name__)


def defer_precompiled_headers() -> None:
    """Make torch precompile its C++ headers when a compiler runs, not when a kernel is loaded.

    In every process, Inductor preprocesses two headers and precompiles them into the user's folder
    under the temp directory. Inductor does both before it checks whether the kernel's library
    exists. On a fresh node, both steps run g++ for 5 s, even if the artifact has all kernels (torch
    2.13, `_precompile_header` of codecache.py). Only the compiler's command line uses the path of
    the header. So a placeholder replaces the path until a compiler runs.
    """
    when_imported(module_names.CODECACHE, _defer_headers)


def _defer_headers(_: ModuleType) -> None:
    headers: dict[str, Callable[[], str]] = {}
    numbers = itertools.count()  # atomic: two threads get two numbers

    def defer(precompile: Callable[..., str]) -> Callable[..., str]:
        @functools.cache
        def precompile_header(*args: Any, **kwargs: Any) -> str:
            word = f"/serve_warm-deferred-header-{next(numbers)}.h"
            headers[word] = functools.partial(precompile, *args, **kwargs)
            return word

        return precompile_header

    def make_headers(command: str) -> str:
        for word, header in list(headers.items()):
            if word in command:
                command = command.replace(word, header())
        return command

    rewrite_commands(make_headers)
    patches.replace(PRECOMPILE_HEADER, defer)


def keep_headers_private(whose: Literal["shared", "own"] = "shared") -> None:
    """Make torch keep its precompiled headers in a folder that no other user can write to.

    With `own`, the folder is new, so other processes of this user cannot have written to it either.

    Without this call, torch uses a folder with a known name under the temp directory, whatever the
    cache settings say. torch does not check who created that folder. Code from these headers goes
    into every kernel (torch 2.13, `_HEADER_DIR` of codecache.py).

    A start calls this before and after the user's `__init__`, which may compile headers. So the
    folder is chosen only once, when Inductor is imported: it is new if any call was with `own`.

    Raises:
        ConfigError: `own` comes after Inductor was imported with the shared folder.
    """
    if whose == "own" and _asked == {"shared"} and module_names.CODECACHE in sys.modules:
        raise ConfigError(
            "this start cannot make an artifact: its C++ headers are in a folder that other "
            "processes of this user can write to",
            hint="do not change the deployment's warm-up settings in __init__",
        )
    _asked.add(whose)
    when_imported(module_names.CODECACHE, _move_headers)


_asked: set[str] = set()
"""The arguments of all calls of `keep_headers_private` so far."""


def _move_headers(codecache: ModuleType) -> None:
    if inductor.has_header_folder(codecache):
        directory = private_directory() if "own" in _asked else header_directory()
        patches.replace(HEADER_FOLDER, lambda _: str(directory))
        patches.replace(HEADER_LOCKS, lambda _: str(directory / "locks"))
    elif inductor.precompiles_headers(codecache):
        # This version of torch keeps headers elsewhere, so do not precompile any. Each kernel then
        # takes about 1 s longer.
        force_setting(
            sys.modules[module_names.INDUCTOR_CONFIG], "cpp_cache_precompile_headers", value=False
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
    changed.
    """
    if not dynamo.is_imported():
        return
    import torch

    torch.compiler.reset()
    inductor.forget_loaded_kernels(sys.modules.get(module_names.INDUCTOR_UTILS))


def private_directory() -> Path:
    """Return a new, empty directory of mode 0700 for the caches of this process.

    The directory is deleted when the process ends (`_private_folders.process_folder`). If
    other users can write to `_private_folders.private_base()`, the new directory is not safe
    either: do not put any part of an artifact there.
    """
    cache = _private_folders.process_folder() / "cache"
    cache.mkdir(mode=0o700)
    return cache
