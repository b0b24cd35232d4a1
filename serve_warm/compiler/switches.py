# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What turns torch's compiler off: environment variables, settings and stances.

With such a switch, a function that torch.compile returned runs eagerly, without a message. So the
report of a replica names the switch that it found.
"""

from __future__ import annotations

from serve_warm.config import environment
from serve_warm.private_apis import dynamo, module_names

NULL_COMPILE = "TORCHDYNAMO_DISABLE"
"""With this variable, `torch.compile` returns the model or function that it was given."""

NO_TRACING = "TORCH_COMPILE_DISABLE"
"""torch._dynamo.config reads this variable when it is imported."""

OURS = ("default", "fail_on_recompile")
"""Stances with which torch runs no code eagerly. The proof uses the second one."""


def find_off_switch() -> str:
    """Return what turns all compiled code off, and what to change, or an empty string."""
    if environment().get(NULL_COMPILE) == "1":
        return f"{NULL_COMPILE}=1 in the environment turns torch.compile off: remove the variable"
    is_in_environment = environment().get(NO_TRACING) == "1"
    switch = dynamo.imported_switch()
    if is_in_environment if switch is None else switch:
        if is_in_environment:
            return f"{NO_TRACING}=1 in the environment turns torch.compile off: remove the variable"
        setting = f"{module_names.DYNAMO_CONFIG}.disable"
        return f"{setting} = True turns torch.compile off: remove this setting"
    return ""


def find_switch() -> str:
    """Return what turns compiled code off, or keeps new code from being compiled."""
    return find_off_switch() or ("" if _stance() in OURS else _describe_stance())


def _stance() -> str:
    return dynamo.imported_stance() or OURS[0]  # without Dynamo, no stance was set


def _describe_stance() -> str:
    return (
        f"the application set torch's stance to {_stance()!r}, so torch compiles nothing: call "
        f"torch.compiler.set_stance({_stance()!r}) only after the replica is ready"
    )
