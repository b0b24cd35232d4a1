# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""torch's profile of dynamic sizes: under which name it is kept, and why it is found again.

With `dynamic=None` torch compiles the first shape as it is, and at the second one a graph for all.
Its profile (profile-guided optimisation, `torch._dynamo.pgo`) remembers which sizes changed, so
that the next process compiles the graph for all at once. The profile is a file in the cache
directory, and so in the artifact. torch reads and writes it only where the job has an id, and finds
what it says of a function only where both processes give that function one name.

Private names of torch, seen in 2.13 and 2.11; each function says what differs.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/pgo.py
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable
from types import CellType, CodeType
from typing import Any


def keep_profile(deployment: str) -> str:
    """Make torch keep its profile in the cache directory, for as long as this process lives.

    Its job id is made of the deployment's name, so that replicas have the builder's; one that is
    set already stays. Imports Dynamo. Returns why this torch cannot, or an empty string.
    """
    import torch.compiler.config
    from torch._dynamo import pgo

    # Not assigned: that holds in one context only (since 2.12), and requests have others. Nor is
    # it TORCH_COMPILE_JOB_ID, which torch has read when it was imported.
    entry: Any = getattr(torch.compiler.config, "_config", {}).get("job_id")
    if not (hasattr(entry, "env_value_force") and hasattr(pgo, "reset_code_state")):
        return f"torch {torch.__version__} has no profile of dynamic sizes that can be kept"
    entry.env_value_force = torch.compiler.config.job_id or f"serve_warm-{deployment}"
    _name_closures_alike(pgo.CodeId)
    return ""


def forget_profile() -> None:
    """Make torch read its profile anew, from where its caches are pointed at now.

    It reads it once, at the first compile: maybe in `__init__`, before there was an artifact.
    """
    from torch._dynamo import pgo

    pgo.reset_code_state()


def begin_anew() -> None:
    """Make torch compile everything again, by the profile, as a new process would.

    What is in the cache directory stays there. No compiled function may be running.
    """
    import torch

    torch.compiler.reset()


def _name_closures_alike(code_id: Any) -> None:
    """Give functions with closures names that are the same in all processes.

    torch's own hold hashes of code and of `None`: the one is salted anew in each process, the
    other is an address (Python up to 3.11). Every compiled module is called by such a function.
    In torch 2.11 closures are no part of a name.
    """
    original: Callable[..., Any] = code_id.make
    if "closure" not in inspect.signature(original).parameters or hasattr(original, _MENDED):
        return

    def make(code: CodeType, closure: tuple[CellType, ...] | None = None) -> Any:
        plain = original(code, None)
        if not closure:
            return plain
        words = repr([_describe_cell(cell, original) for cell in closure])
        digest = hashlib.sha256(words.encode()).digest()
        return dataclasses.replace(plain, closure_hash=int.from_bytes(digest[:8], "big"))

    setattr(make, _MENDED, True)
    code_id.make = staticmethod(make)


_MENDED = "serve_warm_names_closures_alike"


def _describe_cell(cell: CellType, name: Callable[..., Any]) -> tuple[str, ...]:
    """Return what torch means to tell functions by: the code closed over, and no other value."""
    try:
        code = getattr(cell.cell_contents, "__code__", None)
    except ValueError:  # nothing is in it yet
        return ()
    if not isinstance(code, CodeType):
        return ()
    plain = name(code, None)
    # Two functions of one line differ in what they do.
    return (plain.file_hash, plain.name, str(plain.firstlineno), code.co_code.hex())
