# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks of tensor subclasses, which torch runs while it traces a graph below Dynamo.

Dynamo reports the files of the code that it traces, and guards the globals that this code reads.
But Dynamo neither reports nor guards the hooks of a tensor subclass, which torch calls while it is
tracing a graph's operators. The graph contains the operators that these hooks call, so this module
turns the hooks' code and globals into facts.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from serve_warm.precompile.facts.names import is_own, is_own_module, literal
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.private_apis.patches import Change
from serve_warm.private_apis.torch_c import is_traceable_wrapper_subclass_type

HOOKS = ("__torch_function__", "__torch_dispatch__")
"""Methods of a tensor subclass that torch calls instead of a function or an operator."""


OF_TORCH = ("torchgen", "typing_extensions", "sympy", "mpmath")
"""Packages whose code torch runs while it traces."""


@dataclass(frozen=True)
class Dispatched:
    """The functions of the application that torch runs below Dynamo while it compiles a graph.

    These are hooks of tensor subclasses, and kernels of custom operators (`kernel_code`).
    """

    codes: dict[types.CodeType, dict[str, object]] = field(default_factory=dict)
    """Maps the code of each function to the function's globals."""

    def modules(self) -> set[str]:
        """Return the names of the functions' modules."""
        return {str(space.get("__name__")) for space in self.codes.values()}

    def globals_read(self) -> dict[tuple[str, str], object]:
        """Return the plain values that these functions might read, by module and name.

        These values are globals, and values that a function reads from another module.

        Raises:
            NoEntry: a function belongs to an earlier copy of a module that was loaded again.
        """
        found: dict[tuple[str, str], object] = {}
        for code, space in self.codes.items():
            module = sys.modules.get(str(space.get("__name__")))
            if code.co_names and module is not None and vars(module) is not space:
                raise NoEntry(
                    f"torch runs {code.co_name} of an earlier copy of {module.__name__}, which was "
                    "loaded again: register the operator again when its module is loaded"
                )
            written = _written_globals(code)
            for name in code.co_names:
                if name in written:
                    continue  # such as a counter
                value = space.get(name)
                if not isinstance(value, types.ModuleType):
                    found.update(_plain(space, name))
                elif not is_own_module(value.__name__):
                    for each in code.co_names:
                        found.update(_plain(vars(value), each))
        return found


def _written_globals(code: types.CodeType) -> set[str]:
    """Return the globals that a function assigns."""
    found = dis.get_instructions(code)
    return {str(each.argval) for each in found if each.opname == "STORE_GLOBAL"}


def _plain(space: dict[str, object], name: str) -> dict[tuple[str, str], object]:
    """Return a dict from module and name to a global's value; empty if the value is not plain."""
    value, module = space.get(name), str(space.get("__name__"))
    is_of_module = vars(sys.modules.get(module, types)) is space
    if not is_of_module or name.startswith("__") or value is None or callable(value):
        return {}
    return {} if literal(value) is None else {(module, name): value}


def noting_dispatch(found: Dispatched) -> Iterator[Change]:
    """Record which functions run in the hooks of tensor subclasses."""

    def noting(hook: types.MethodType) -> object:
        run = hook.__func__  # a subclass can call the hook with its own class

        def dispatch(cls: type, /, *args: object, **kwargs: object) -> object:
            with recording(found):
                return run(cls, *args, **kwargs)

        return classmethod(dispatch)

    for kind in dict.fromkeys(_subclasses(torch.Tensor)):
        for name in _hooks_of(kind):
            yield Change(f"*.{name}", noting, kind)


def _subclasses(kind: type) -> Iterator[type]:
    subclasses: list[type] = type.__subclasses__(kind)
    for each in subclasses:
        yield each
        yield from _subclasses(each)


def has_own_hooks(kind: type) -> bool:
    """Return whether `noting_dispatch` records the hooks of a class."""
    return bool(_hooks_of(kind))


def _hooks_of(kind: type) -> list[str]:
    # Skip classes without parts: Dynamo itself traces and reports the hooks of these classes.
    if not is_traceable_wrapper_subclass_type(kind) or is_own_module(kind.__module__):
        return []
    found = ((name, inspect.getattr_static(kind, name)) for name in HOOKS)
    return [name for name, hook in found if isinstance(hook, classmethod) and not is_own(hook)]


def is_of_torch(module: str) -> bool:
    """Return whether a module belongs to a package that torch uses to trace."""
    return module.startswith(OF_TORCH)


@contextlib.contextmanager
def recording(found: Dispatched) -> Iterator[None]:
    """Record the functions of the application that run in the block."""
    before = sys.getprofile()

    def note(frame: types.FrameType, event: str, _: object) -> None:
        module = str(frame.f_globals.get("__name__"))
        if event == "call" and not is_own_module(module) and not is_of_torch(module):
            found.codes.setdefault(frame.f_code, frame.f_globals)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
