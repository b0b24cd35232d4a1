# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled functions for tests: real ones, with a backend that compiles nothing and so is fast."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def fresh(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function with a code object of its own: compiled variants hang on it."""
    return types.FunctionType(
        fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    )


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return `fn` compiled for each shape, not compiled for any yet, whatever ran before.

    Skips the test where this torch's `compile` takes no `recompile_limit`, and one is given (2.11).
    """
    if "recompile_limit" in options.keys() - inspect.signature(torch.compile).parameters.keys():
        import pytest  # programs without it import this module, too

        pytest.skip(f"torch {torch.__version__} has no torch.compile(..., recompile_limit=...)")
    return torch.compile(fresh(fn), **{"backend": "eager", "dynamic": False, **options})


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def stance() -> str:
    """Return torch's stance towards compiling; `default` allows it."""
    return torch._dynamo.eval_frame._stance.stance
