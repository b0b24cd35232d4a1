# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled functions for tests, with a backend that compiles nothing and is therefore fast."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch


def fresh(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function with its own code object, which compiled variants belong to."""
    return types.FunctionType(
        fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    )


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return `fn` compiled for each shape, without any compiled variant yet.

    If a `recompile_limit` is given but `compile` in this torch does not take it (2.11), the test is
    skipped.
    """
    if "recompile_limit" in options.keys() - inspect.signature(torch.compile).parameters.keys():
        import pytest  # programs that run without pytest also import this module

        pytest.skip(f"torch {torch.__version__} has no torch.compile(..., recompile_limit=...)")
    return torch.compile(fresh(fn), **{"backend": "eager", "dynamic": False, **options})


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def stance() -> str:
    """Return torch's compile stance; `default` allows compiling."""
    return torch._dynamo.eval_frame._stance.stance
