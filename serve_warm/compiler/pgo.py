# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""torch's profile of dynamic sizes, and the names under which a later process finds the profile.

With `dynamic=None`, torch compiles a static graph for the first shape. At the second shape, torch
compiles a graph for all shapes. torch's profile (profile-guided optimization, `torch._dynamo.pgo`)
remembers which sizes changed, so that the next process immediately compiles the graph for all
shapes. The profile is a file in the cache directory, so it is part of the artifact. torch reads and
writes this file only if the job has an id. torch finds the entry of a function only if both
processes give the function the same name.

The private names of torch that this module uses were seen in 2.13 and 2.11; each function says what
differs. https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/pgo.py
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable
from types import CellType, CodeType
from typing import Any


def keep_profile(deployment: str) -> str:
    """For the rest of this process, make torch keep its profile in the cache directory.

    If no job id is set, derives one from the deployment's name, so that replicas share the
    builder's profile. Imports Dynamo. Returns the reason why this version of torch cannot keep a
    profile, or an empty string.
    """
    import torch.compiler.config
    from torch._dynamo import pgo

    # Since 2.12, an assignment would be valid in only one context, and requests run in other
    # contexts. torch reads TORCH_COMPILE_JOB_ID when it is imported, which is too early.
    entry: Any = getattr(torch.compiler.config, "_config", {}).get("job_id")
    if not (hasattr(entry, "env_value_force") and hasattr(pgo, "reset_code_state")):
        return f"torch {torch.__version__} cannot keep a profile of dynamic sizes"
    entry.env_value_force = torch.compiler.config.job_id or f"serve_warm-{deployment}"
    _name_closures_alike(pgo.CodeId)
    return ""


def forget_profile() -> None:
    """Make torch read its profile again, from the current cache directory.

    torch reads the profile once, at the first compile. The first compile might happen in
    `__init__`, before an artifact is loaded.
    """
    from torch._dynamo import pgo

    pgo.reset_code_state()


def begin_anew() -> None:
    """Make torch use the profile to recompile everything, as a new process would.

    The files in the cache directory stay. Call this only while no compiled function is running.
    """
    import torch

    torch.compiler.reset()


def _name_closures_alike(code_id: Any) -> None:
    """Give each function with a closure a name that is the same in all processes.

    torch's own names contain hashes of code and of `None`. The hash of a code object has a
    different salt in each process, and the hash of `None` is a memory address (Python up to 3.11).
    torch calls every compiled module through a function with a closure. In torch 2.11, closures are
    not part of a name.
    """
    original: Callable[..., Any] = code_id.make
    if "closure" not in inspect.signature(original).parameters or hasattr(original, _PATCHED):
        return

    def make(code: CodeType, closure: tuple[CellType, ...] | None = None) -> Any:
        plain = original(code, None)
        if not closure:
            return plain
        words = repr([_describe_cell(cell, original) for cell in closure])
        digest = hashlib.sha256(words.encode()).digest()
        return dataclasses.replace(plain, closure_hash=int.from_bytes(digest[:8], "big"))

    setattr(make, _PATCHED, True)
    code_id.make = staticmethod(make)


_PATCHED = "serve_warm_names_closures_alike"


def _describe_cell(cell: CellType, name: Callable[..., Any]) -> tuple[str, ...]:
    """Return what a closure cell adds to a function's name; empty if the cell holds no function."""
    try:
        code = getattr(cell.cell_contents, "__code__", None)
    except ValueError:  # the cell is still empty
        return ()
    if not isinstance(code, CodeType):
        return ()
    plain = name(code, None)
    # Two functions on one line differ only in their bytecode.
    return (plain.file_hash, plain.name, str(plain.firstlineno), code.co_code.hex())
