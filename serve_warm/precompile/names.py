# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Names for classes, functions, tensors and plain values; each name is the same in every process.

If compiled code depends on the code of an object, the object's name includes a digest of that code.
The names of serve_warm's own objects contain no module and no digest, so that artifacts stay valid
in later releases.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import importlib
import inspect
import sys
import types
import weakref
from collections.abc import Sequence
from typing import Any

from serve_warm._package import PACKAGE

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)


SUBCLASSED = (int, float, complex, str, bytes)
"""Plain types whose subclasses count as plain too."""


Free = tuple[Sequence[int], Sequence[int]]
"""Dimensions of a tensor where compiled code accepts any size, and dimensions where it accepts any
stride."""


def find_named(module: str, name: str) -> Any:
    """Return the object with this qualified name.

    Raises:
        AttributeError: the object does not exist.
    """
    try:
        return resolve(module, name)
    except ImportError as error:
        raise AttributeError(str(error)) from error


def torch_object(name: str) -> Any:
    """Return the object with this name in torch."""
    # No import is needed, because facts about torch's values are only checked if torch is loaded.
    return getattr(sys.modules["torch"], name)


def device_named(text: str) -> Any:
    """Return the device with a name such as `cuda:0`."""
    return torch_object("device")(text)


STANDS_FOR = "_serve_warm_stands_for"
"""Attribute of a serve_warm function that replaces another function. The value is the replaced
function. Facts name the replaced function, so older artifacts stay valid."""


def identity(found: Any) -> str:
    """Return the name of an object that exists only once in a program.

    Examples are a class, a function, a module and an enum member. Returns an empty string for other
    objects.
    """
    found = vars(found).get(STANDS_FOR, found) if isinstance(found, types.FunctionType) else found
    if isinstance(found, types.CodeType):
        return f"{found.co_name} {_digest(found)}"
    if inspect.ismodule(found):
        return found.__name__
    if isinstance(found, functools.partial):
        # Its bound arguments have separate guards.
        of = identity(found.func)
        return f"partial of {of}" if of else ""
    if isinstance(found, types.UnionType):
        # An annotation, which Dynamo 2.15 guards. Annotations with the same members are equal.
        members = [identity(each) for each in found.__args__]
        return f"union {' | '.join(members)}" if all(members) else ""
    if isinstance(found, (enum.Enum, type)):
        named = literal(found) if isinstance(found, enum.Enum) else name_of_class(found)
        return named or ""
    return _identity_of_callable(found)


def _identity_of_callable(found: Any) -> str:
    if isinstance(found, types.BuiltinFunctionType) and _is_of_object(found):
        content = literal(found.__self__)
        return f"{name_of(found)} of {content}" if content else ""
    name = name_of(found) if callable(getattr(found, "__call__", None)) else ""  # noqa: B004
    if name and not is_own(found) and (codes := codes_of(found)):
        name += f" {_digest_of(codes)}"  # two lambdas in one class have the same name
    elif name and isinstance(found, types.FunctionType) and found.__closure__:
        name += _closed_over(found)
    return name + _elsewhere(found) if name else ""


def _is_of_object(method: types.BuiltinFunctionType) -> bool:
    """Return whether a method in C is bound to an object, and not to a module or a class."""
    of = method.__self__
    # pybind11 binds its functions to a record or a capsule.
    is_of_function = of is None or type(of).__name__.startswith(("PyCapsule", "pybind11_"))
    return not is_of_function and not isinstance(of, (type, types.ModuleType))


def _closed_over(found: types.FunctionType) -> str:
    """Return a digest of what a function of torch or Python closes over; empty if it has a place.

    One factory of torch makes many functions with the same name, such as `F.max_pool2d` and
    `F.adaptive_max_pool2d`. The functions differ only in what they close over.
    """
    if locate(found) is not None:
        return ""
    values = []
    for cell in found.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            value = cell.cell_contents
            values.append(literal(value) or (value is not found and identity(value)) or "")
    return f" {hashlib.sha256(repr(values).encode()).hexdigest()[:16]}"


def _elsewhere(found: Any) -> str:
    """Return a mark for a class or function that does not stand where its name says.

    A copy can have the name and the code of the original, as a module that is loaded twice shows.
    """
    if not isinstance(found, (type, types.FunctionType)):
        return ""
    has_place = "<locals>" not in found.__qualname__
    return " elsewhere" if has_place and locate(found) is None else ""


def name_of_class(kind: type) -> str:
    """Return the name of a class, with a digest of its functions.

    The digest leaves out functions of torch, Python and serve_warm. Source files are compared
    separately. The digest also detects replaced methods and distinguishes two classes with the same
    name.
    """
    functions = [
        (name, value)
        for base in kind.__mro__[:-1]
        if base.__module__ != "torch.nn.modules.module"
        for name, value in vars(base).items()
        if isinstance(value, FUNCTIONS) and not (is_own(base) and is_own(value))
    ]
    members = _members_of(kind) if issubclass(kind, enum.Enum) else []
    if not functions and not members:
        return name_of(kind) + _elsewhere(kind)
    # Weak references, because a new function may have the id of a deleted one.
    key = tuple(
        (name, weakref.ref(function), function.__code__)
        for name, value in functions
        for function in under(value)
    )
    known = _class_digests.get(kind)
    if known is None or known[0] != key:
        codes = [code for _, value in functions for code in codes_of(value)]
        is_made = "<locals>" in kind.__qualname__
        closed = [text for _, f in functions for text in _closed_values(f)] if is_made else []
        known = _class_digests[kind] = (key, _digest_of(codes, [*members, *closed]))
    return f"{name_of(kind)} {known[1]}{_elsewhere(kind)}"


CACHED = functools._lru_cache_wrapper
"""Class of a function with `functools.cache` or `lru_cache`."""

FUNCTIONS = (types.FunctionType, property, staticmethod, classmethod)


_class_digests: weakref.WeakKeyDictionary[type, tuple[Any, str]] = weakref.WeakKeyDictionary()


def under(found: Any) -> list[types.FunctionType]:
    """Return the functions in a class attribute: a method, or the functions inside a wrapper."""
    if isinstance(found, property):
        parts = [found.fget, found.fset]
    elif isinstance(found, (staticmethod, classmethod)):
        parts = [found.__func__]
    else:
        parts = [found]
    return [part for part in parts if isinstance(part, types.FunctionType)]


def is_own(found: Any) -> bool:
    """Return whether a callable or class belongs to torch, Python or serve_warm.

    The fingerprint covers torch and Python. A function's globals must belong to these packages too,
    because the name of a function's module can be misleading. `functools.wraps` gives user code the
    module of the wrapped function, and gives a torch decorator the user's module.
    """
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, (staticmethod, classmethod, types.MethodType)):
        found = found.__func__
    if not is_own_module(getattr(found, "__module__", None)):
        return False
    space = getattr(found, "__globals__", None)
    if not isinstance(space, dict):
        return True
    # Functions made by exec, such as a dataclass' methods, do not have a module's globals.
    return "__file__" not in space or is_own_module(space.get("__name__"))


def is_own_module(name: Any) -> bool:
    """Return whether a module with that name belongs to torch, Python or serve_warm."""
    top = str(name or "").partition(".")[0]
    return top in ("torch", PACKAGE) or (top in sys.stdlib_module_names and top != "__main__")


def codes_of(found: Any) -> list[types.CodeType]:
    """Return the code of a function, and of the functions that it wraps or closes over."""
    return [function.__code__ for function in functions_of(found)]


def functions_of(found: Any) -> list[types.FunctionType]:
    """Return a function and the functions that it wraps or closes over.

    Functions for which `is_own` returns True are left out.
    """
    functions: list[types.FunctionType] = []
    queue: list[Any] = [found]
    seen: set[int] = set()
    while queue:
        value = queue.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, property):
            queue += [value.fget, value.fset]
        elif isinstance(value, (staticmethod, classmethod, types.MethodType)):
            queue.append(value.__func__)
        elif isinstance(value, CACHED):
            queue.append(value.__wrapped__)
        elif isinstance(value, types.FunctionType) and not is_own(value):
            functions.append(value)
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty cell
                    queue.append(cell.cell_contents)
    return functions


def _members_of(kind: type[enum.Enum]) -> list[str]:
    """Return the members of an enumeration, whose values compiled code contains."""
    return [f"{name}={_content(member.value)}" for name, member in kind.__members__.items()]


def _closed_values(found: Any) -> list[str]:
    """Return the constants in the closures of a factory's methods, as text.

    If a trace creates an object, the closures of the object's methods have no path. Values that can
    change in place are left out, because a process may fill them, as a cache.
    """
    values = []
    for function in functions_of(found):
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            with contextlib.suppress(ValueError):  # an empty cell
                value = cell.cell_contents
                if not isinstance(value, (type, types.FunctionType, list, dict, set)):
                    values.append(f"{name}={_content(value)}")
    return values


def _content(value: Any) -> str:
    if isinstance(value, types.MappingProxyType):
        return f"proxy of {literal(dict(value))}"
    return literal(value) or f"a {name_of(type(value))}"


def _digest_of(codes: Sequence[types.CodeType], values: Sequence[str] = ()) -> str:
    text = "".join([*map(_digest, codes), *values])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=4096)
def _digest(code: types.CodeType) -> str:
    """Return a digest of a code object's behavior and signature, but not of its place in a file."""
    constants = [
        _digest(value) if isinstance(value, types.CodeType) else literal(value)
        for value in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars)
    called = (code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    handlers = getattr(code, "co_exceptiontable", b"")  # from Python 3.11 on
    text = repr((code.co_code, handlers, names, called, constants))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def name_of(found: Any) -> str:
    """Return the module and qualified name of an object, or an empty string if it has none.

    >>> name_of(types.SimpleNamespace)
    'types.SimpleNamespace'
    """
    module = getattr(found, "__module__", None)
    name = getattr(found, "__qualname__", None) or getattr(found, "__name__", None)
    if not isinstance(name, str):
        return ""
    if str(module).partition(".")[0] == PACKAGE:
        module, name = PACKAGE, name.rpartition("<locals>.")[2]
    return f"{module}.{name}"


TORCH_LITERALS = ("dtype", "device", "layout", "memory_format")


def literal(value: Any) -> str | None:
    """Return a plain value as text, the same for equal values; `None` if it is not plain."""
    kind = type(value)
    text: str | None = None
    if kind in PLAIN:
        text = f"{kind.__name__} {value!r}"
    elif isinstance(value, type):
        text = f"class {name_of_class(value)}"
    elif isinstance(value, types.FunctionType) and is_own(value) and STANDS_FOR not in vars(value):
        text = f"function {name_of(value)}"
    elif isinstance(value, enum.Enum):
        # The value is included, because compiled code treats members of an IntEnum as numbers.
        # Before 3.11 a combined flag has no name.
        text = f"{name_of(kind)} {value.name} {literal(value.value)}"
    elif isinstance(value, SUBCLASSED):
        base = next(base for base in SUBCLASSED if isinstance(value, base))
        text = f"{name_of_class(kind)} {base.__repr__(value)}"
    elif kind.__module__ == "torch" and kind.__name__ in TORCH_LITERALS:
        text = f"torch.{kind.__name__} {value!s}"
    elif isinstance(value, (tuple, list, set, frozenset)):
        items = [literal(each) for each in value]
        ordered = sorted(map(str, items)) if isinstance(value, (set, frozenset)) else items
        text = None if None in items else f"{name_of(kind)} ({', '.join(map(str, ordered))})"
    elif kind is dict:
        pairs = [(literal(key), literal(each)) for key, each in value.items()]
        plain = all(None not in pair for pair in pairs)
        text = f"dict {{{', '.join(f'{k}: {v}' for k, v in pairs)}}}" if plain else None
    return text


def describe_tensor(tensor: Any, *, free: Free = ((), ())) -> str:
    """Return the properties of a tensor that compiled code relies on; `free` dimensions become `*`.

    `requires_grad` is not included: entries are for calls without gradients. A forward that reads
    `requires_grad` gets a separate fact.
    """
    sizes = ["*" if i in free[0] else str(size) for i, size in enumerate(tensor.shape)]
    strides = ["*" if i in free[1] else str(stride) for i, stride in enumerate(tensor.stride())]
    return (
        f"{type(tensor).__name__} {str(tensor.dtype).removeprefix('torch.')}"
        f"[{', '.join(sizes)}] strides [{', '.join(strides)}] on {tensor.device}"
    )


def source_file(module: str) -> str:
    """Return the file that a module was loaded from, or an empty string if there is none."""
    loaded = sys.modules.get(module)
    return str(getattr(loaded, "__file__", "") or "")


def locate(value: Any) -> tuple[str, str] | None:
    """Return the module and qualified name by which `resolve` finds `value`, or `None`."""
    if inspect.ismodule(value):
        return value.__name__, ""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    with contextlib.suppress(ImportError, AttributeError):
        if resolve(module, name) is value:
            return module, name
    # `NoneType` has `builtins` as its `__module__`, but only `types` has an attribute of that name.
    return next((("types", alias) for alias, found in vars(types).items() if found is value), None)


def resolve(module: str, name: str) -> Any:
    """Return the object with this qualified name, or the module itself if the name is empty.

    Raises:
        ImportError: the module does not exist.
        AttributeError: the module has no object of that name.
    """
    found: Any = importlib.import_module(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found
