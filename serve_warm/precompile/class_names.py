# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Names of torch's classes, which this module turns into constants during a trace.

Dynamo reads these names but does not treat them as constants. Packages use these names to recognize
a class without importing it. For example, peft's DoRA reads
`type(weight).__module__.startswith("torchao.")`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

NAMES = ("__module__", "__name__", "__qualname__")
"""Attributes of a torch class that do not change while a process runs."""


def reading_names() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Turn the names of torch's classes into constants, as Dynamo does for other classes.

    The class itself has a guard. Yields a Dynamo class, the name of one of its methods, and the
    method's replacement for torch 2.13.
    """
    from torch._dynamo.variables import builtin, constant, torch

    of_torch: Any = torch.TorchInGraphFunctionVariable
    of_getattr: Any = getattr(builtin, "GetAttrBuiltinVariable", None)
    if of_getattr is None:
        return
    read = of_getattr.call_function

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if len(args) > 1 and isinstance(args[0], of_torch) and isinstance(args[0].value, type):
            name = args[1].as_python_constant()
            if name in NAMES:
                return constant.ConstantVariable.create(getattr(args[0].value, name))
        return read(self, tx, args, kwargs)

    yield of_getattr, "call_function", call_function
