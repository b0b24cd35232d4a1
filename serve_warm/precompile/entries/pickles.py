# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Loads the code that `trace.capture` made.

This module is separate, so that a starting replica does not import code that only builds need.

Seen in torch 2.13 (2.11 needs `enable_aot_compile`, which this module sets):
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/aot_compile.py
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import torch

from serve_warm.precompile.calls.python_random import drawing
from serve_warm.precompile.entries.function import with_checks
from serve_warm.precompile.facts.names import resolve
from serve_warm.precompile.facts.plan import Plan
from serve_warm.precompile.facts.torch_errors import as_reasons, enable_aot_compile
from serve_warm.private_apis.inductor import patched_settings


def load(
    data: bytes, references: Mapping[str, tuple[str, str]], plan: Plan
) -> Callable[..., object]:
    """Return an entry's function. Executes `data`: pass only verified bytes.

    `references` and `plan` come from the entry's `CompiledCall`.

    Raises:
        NoEntry: torch cannot load the entry on this machine.
    """
    with as_reasons():
        found = {name: resolve(*where) for name, where in references.items()}
        found |= {name: drawing(draws) for name, draws in plan.get("numbers", {}).items()}
        with enable_aot_compile(), patched_settings(plan.get("settings", {})):
            entry: Any = torch.compiler.load_compiled_function(
                io.BytesIO(data), f_globals=found, external_data={}
            )
        return with_checks(entry, plan)
