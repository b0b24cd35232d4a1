# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of a `torch.nn.Module` as dicts, and how a call of a module runs. Seen in 2.11 to 2.15.

The methods `named_parameters` and the like walk through all modules below; these dicts have only
the module's own parts, and a change of a part is a change of the dict.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch

own_parameters: Callable[[torch.nn.Module], dict[str, torch.nn.Parameter]]
"""Returns a module's own parameters, by name. A parameter can be None."""
own_parameters = operator.attrgetter("_parameters")

own_buffers: Callable[[torch.nn.Module], dict[str, torch.Tensor]]
"""Returns a module's own buffers, by name. A buffer can be None."""
own_buffers = operator.attrgetter("_buffers")

own_modules: Callable[[torch.nn.Module], dict[str, torch.nn.Module]]
"""Returns a module's own children, by name. A child can be None."""
own_modules = operator.attrgetter("_modules")


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
    return getattr(module, "_compiled_call_impl", None)


def has_global_hooks(names: Iterable[str]) -> bool:
    """Return whether any hook of these kinds (`_forward_hooks`) is set for all modules."""
    from torch.nn.modules import module as nn_module

    return any(vars(nn_module)[f"_global{name}"] for name in names)
