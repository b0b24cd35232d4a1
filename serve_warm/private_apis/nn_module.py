# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of a `torch.nn.Module` as dicts, and how a call of a module runs. Seen in 2.11 to 2.15.

The methods `named_parameters` and the like walk through all modules below; these dicts have only
the module's own parts, and a change of a part is a change of the dict.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch

PARAMETERS = "_parameters"
BUFFERS = "_buffers"
MODULES = "_modules"
"""Attributes of a module: the dicts of its own parameters, buffers and children."""

FORWARD_HOOKS = "_forward_hooks"
FORWARD_PRE_HOOKS = "_forward_pre_hooks"
"""Attributes of a module: the tables of its forward hooks."""

HOOKS = {
    FORWARD_PRE_HOOKS: "_forward_pre_hooks_with_kwargs",
    FORWARD_HOOKS: "_forward_hooks_with_kwargs",
}
"""Tables of a module's forward hooks, and the tables that mark hooks with keyword arguments."""

GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
"""Tables of the forward hooks of all modules, in `torch.nn.modules.module`."""

PATH_OF_HOOKS = r".*\b_(global_)?(forward|backward)(_pre)?_hooks\w*(['\]]*)"
"""A pattern for Dynamo's paths to tables of hooks."""

STEP = rf"(?:\.__dict__\['{MODULES}'\]|\.{MODULES})\['([^']+)'\]"
"""Pattern: how Dynamo writes the step from a module to a child."""

CALL = "_call_impl"
"""Method of a module that runs its hooks and its forward (2.0 to 2.15)."""

COMPILED_CALL = "_compiled_call_impl"
"""Attribute of a module: what `set_compiled_call` or `module.compile()` has set."""

own_parameters: Callable[[torch.nn.Module], dict[str, torch.nn.Parameter]]
"""Returns a module's own parameters, by name. A parameter can be None."""
own_parameters = operator.attrgetter(PARAMETERS)

own_buffers: Callable[[torch.nn.Module], dict[str, torch.Tensor]]
"""Returns a module's own buffers, by name. A buffer can be None."""
own_buffers = operator.attrgetter(BUFFERS)

own_modules: Callable[[torch.nn.Module], dict[str, torch.nn.Module]]
"""Returns a module's own children, by name. A child can be None."""
own_modules = operator.attrgetter(MODULES)


def stock_call() -> Callable[..., Any]:
    """Return the method that `module(...)` runs first: it runs the hooks and `forward`."""
    import torch

    return torch.nn.Module._call_impl


def call_of(owner: Any) -> Callable[..., Any]:
    """Return this method of a class, which may have its own, or of a module, bound to it."""
    return cast("Callable[..., Any]", owner._call_impl)


def set_compiled_call(module: torch.nn.Module, call: Callable[..., Any]) -> None:
    """Make `module(...)` run `call` instead, as `module.compile()` does."""
    module._compiled_call_impl = call


def compiled_call_of(module: Any) -> Any:
    """Return what `set_compiled_call` or `module.compile()` has set, or None."""
    return getattr(module, COMPILED_CALL, None)


def is_table_of_hooks(name: str) -> bool:
    """Return whether an attribute of a module has this name because it holds hooks of calls."""
    return "_hooks" in name and name.startswith(("_forward", "_backward"))


def has_global_hooks() -> bool:
    """Return whether any forward hook is set for all modules."""
    from torch.nn.modules import module as nn_module

    return any(vars(nn_module)[name] for name in GLOBAL_HOOKS)
