# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Names for classes, functions, tensors and plain values; each name is the same in every process.

If compiled code depends on the code of an object, the object's name includes a digest of that code.
The names of serve_warm's own objects contain no module and no digest, so that artifacts stay valid
in later releases.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import enum
import functools
import hashlib
import importlib
import inspect
import numbers
import sys
import types
import weakref
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeGuard

from serve_warm._package import PACKAGE
from serve_warm.private_apis.cpython import is_frozen

if TYPE_CHECKING:
    import torch

    from serve_warm.private_apis.torch_c import MemberInCpp

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


def torch_object(name: str) -> object:
    """Return the object with this name in torch."""
    # No import is needed, because facts about torch's values are only checked if torch is loaded.
    return getattr(sys.modules["torch"], name)


def device_named(text: str) -> torch.device:
    """Return the device with a name such as `cuda:0`."""
    named: torch.device = sys.modules["torch"].device(text)
    return named


def identity(found: object) -> str:
    """Return the name of an object that exists only once in a program.

    Examples are a class, a function, a module and an enum member. Returns an empty string for other
    objects.
    """
    if isinstance(found, types.ModuleType):
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
        if isinstance(found, type):
            return name_of_class(found) + _of_creation(found)
        return literal(found) or ""
    return _identity_of_code(found)


def _identity_of_code(found: object) -> str:
    if isinstance(found, types.CodeType):
        return f"{found.co_name} {_digest(found)}"
    if isinstance(found, types.GetSetDescriptorType):  # an attribute of a class in C
        return f"{name_of(found.__objclass__)}.{found.__name__}"
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


ELSEWHERE = " elsewhere"


def _elsewhere(found: object) -> str:
    """Return a mark for a class or function that does not stand where its name says.

    A copy can have the name and the code of the original, as a module that is loaded twice shows.
    """
    if not isinstance(found, (type, types.FunctionType)):
        return ""
    has_place = "<locals>" not in found.__qualname__
    return ELSEWHERE if has_place and locate(found) is None else ""


def name_of_class(kind: type) -> str:
    """Return the name of a class, with a digest of its functions.

    The digest covers the code of the functions, and the constants among their default arguments and
    closures, because a trace that creates an object reads these without a guard. So the digest
    differs for a replaced method and for another class with the same name. The defaults of
    `CREATING` are left out here: they matter only if the trace creates an object, and then there is
    a fact about the class itself (`identity`). Functions of torch, Python and serve_warm are left
    out, and so are values that can change in place. Source files are compared separately.
    """
    digest = digest_of_class(kind)
    return f"{name_of(kind)}{f' {digest}' if digest else ''}{_elsewhere(kind)}"


def digest_of_class(kind: type) -> str:
    """Return the digest in a class's name (`name_of_class`); empty if there is nothing to cover."""
    functions = _functions_in(kind)
    members = _members_of(kind) if issubclass(kind, enum.Enum) else []
    if not functions and not members:
        return ""
    # Weak references, because a new function may have the id of a deleted one.
    key = [
        (name, weakref.ref(function), function.__code__, _show_defaults(function))
        for name, value in functions
        for function in under(value)
    ]
    known = _class_digests.get(kind)
    if known is None or known[0] != key:
        codes = [code for _, value in functions for code in codes_of(value)]
        values = _values_of(functions, with_assigned="<locals>" in kind.__qualname__)
        known = _class_digests[kind] = (key, _digest_of(codes, [*members, *values]))
    return known[1]


def digest_in_any_order(kind: type) -> str:
    """Return a digest as `digest_of_class`, which does not depend on the order of the methods.

    Ray pickles the class of a deployment by value, and sorts its attributes (2.60).
    """
    functions = sorted(_functions_in(kind), key=itemgetter(0))
    if not functions:
        return digest_of_class(kind)
    codes = [code for _, value in functions for code in codes_of(value)]
    return _digest_of(codes, _values_of(functions, with_assigned="<locals>" in kind.__qualname__))


CREATING = ("__new__", "__init__", "__post_init__")
"""Methods that run only while an object is created."""


def _of_creation(kind: type) -> str:
    """Return a digest of the default arguments with which objects are created; may be empty."""
    values = [
        text
        for name, value in _functions_in(kind)
        if name in CREATING
        for function in _with_values(value)
        for text in _defaults_of(function, with_dicts=True)
    ]
    return f" made with {_digest_of((), values)}" if values else ""


def _functions_in(kind: type) -> list[tuple[str, object]]:
    """Return the functions of a class and its bases, with their names, except torch's own."""
    return [
        (name, value)
        for base in kind.__mro__[:-1]
        if base.__module__ != "torch.nn.modules.module"
        for name, value in vars(base).items()
        if isinstance(value, FUNCTIONS) and not (is_own(base) and is_own(value))
    ]


CACHED = type(functools.cache(len))
"""Class of a function with `functools.cache` or `lru_cache`."""

FUNCTIONS = (types.FunctionType, property, staticmethod, classmethod)


_class_digests: weakref.WeakKeyDictionary[type, tuple[object, str]] = weakref.WeakKeyDictionary()


def under(found: object) -> list[types.FunctionType]:
    """Return the functions in a class attribute: a method, or the functions inside a wrapper."""
    if isinstance(found, property):
        parts: list[object] = [found.fget, found.fset]
    elif isinstance(found, (staticmethod, classmethod)):
        parts = [found.__func__]
    else:
        parts = [found]
    return [part for part in parts if isinstance(part, types.FunctionType)]


def is_own(found: object) -> bool:
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


def is_own_module(name: object) -> bool:
    """Return whether a module with that name belongs to torch, Python or serve_warm."""
    top = str(name or "").partition(".")[0]
    return top in ("torch", PACKAGE) or (top in sys.stdlib_module_names and top != "__main__")


def codes_of(found: object) -> list[types.CodeType]:
    """Return the code of a function, and of the functions that it wraps or closes over."""
    return [function.__code__ for function in functions_of(found)]


def functions_of(found: object) -> list[types.FunctionType]:
    """Return a function and the functions that it wraps or closes over.

    Functions for which `is_own` returns True are left out.
    """
    functions: list[types.FunctionType] = []
    queue: list[object] = [found]
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


def _with_values(found: object) -> list[types.FunctionType]:
    """Return the functions in a class attribute, if one of them has defaults or a closure."""
    parts = under(found)
    if isinstance(found, types.FunctionType) and not _has_values(found):
        return []  # most methods
    return [function for part in parts if _has_values(part) for function in functions_of(part)]


def _has_values(function: types.FunctionType) -> bool:
    return bool(function.__defaults__ or function.__kwdefaults__ or function.__closure__)


def _defaults_of(function: types.FunctionType, *, with_dicts: bool = False) -> list[str]:
    """Return the constants among a function's default arguments, as text.

    A dict or a set may be a cache, so its content is left out unless `with_dicts`.
    """
    named = function.__kwdefaults__ or {}
    values = [*(function.__defaults__ or ()), *map(named.get, sorted(named))]
    return [
        _constant(value)
        if with_dicts or not isinstance(value, (dict, set))
        else name_of(type(value))
        for value in values
    ]


def _show_defaults(function: types.FunctionType) -> str:
    """Return text that changes with a function's default arguments, in less time than a digest."""
    plain = function.__defaults__ or ()
    if not function.__kwdefaults__ and all(type(value) in PLAIN for value in plain):
        return repr(plain) if plain else ""
    return repr(_defaults_of(function))


def _values_of(functions: Sequence[tuple[str, object]], *, with_assigned: bool) -> list[str]:
    """Return the constants in the defaults and closures of a class's functions, as text."""
    values: list[str] = []
    for name, value in functions:
        for function in _with_values(value):
            values += [] if name in CREATING else _defaults_of(function)
            values += _closed_values(function, with_assigned=with_assigned)
    return values


def _closed_values(function: types.FunctionType, *, with_assigned: bool) -> list[str]:
    """Return the constants in a function's closure, as text.

    If a trace creates an object, the closures of the object's methods have no path. Values that can
    change in place are left out, because a process may fill them, as a cache. So are, unless
    `with_assigned`, variables to which the function itself assigns, as a counter.
    """
    values = []
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if name == "__class__":
            continue
        with contextlib.suppress(ValueError):  # an empty cell
            value = cell.cell_contents
            if isinstance(value, NAMED):
                values.append(f"{name}={_constant(value)}")
            elif not isinstance(value, (list, dict, set)):
                is_state = not with_assigned and name in assigned_names(code)
                values += [] if is_state else [f"{name}={_constant(value)}"]
    return values


@functools.lru_cache(maxsize=4096)
def assigned_names(code: types.CodeType) -> frozenset[str]:
    """Return the names in outer functions to which a code object assigns (`nonlocal`)."""
    found: set[str] = set()
    if not ASSIGNING.isdisjoint(code.co_code[::2]):
        steps = dis.get_instructions(code)
        found = {step.argval for step in steps if step.opcode in ASSIGNING}
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(found.union(*map(assigned_names, inner)).intersection(code.co_freevars))


ASSIGNING = frozenset((dis.opmap["STORE_DEREF"], dis.opmap["DELETE_DEREF"]))


def _constant(value: object, depth: int = 0) -> str:
    """Return a value in a default argument or a closure as text, the same in each process.

    An object that is not constant counts by its class only. Unlike `literal`, this does not read
    the values of the functions in `value`, which may refer to each other.
    """
    kind = type(value)
    text = f"a {name_of(kind)}"
    if kind in PLAIN or (kind.__module__ == "torch" and kind.__name__ in TORCH_LITERALS):
        text = literal(value) or text
    elif isinstance(value, NAMED):
        text = name_of(value)
        if "<" in text:  # in a function, or a lambda: others can have the same name
            parts = [v for _, v in _functions_in(value)] if isinstance(value, type) else [value]
            text += f" {_digest_of([code for part in parts for code in codes_of(part)])}"
    elif isinstance(value, enum.Enum):
        text += f" {value.name} {_constant(value.value, depth + 1)}"
    elif isinstance(value, SUBCLASSED):
        base = next(base for base in SUBCLASSED if isinstance(value, base))
        text += f" {base.__repr__(value)}"
    elif isinstance(value, numbers.Number):  # a number of NumPy, or a fraction
        text += f" {value!r}"
    elif depth < DEEP:
        items = _items_of(value)
        text += f" ({', '.join([_constant(each, depth + 1) for each in items])})" if items else ""
    return text


DEEP = 5
"""Levels of nesting up to which the values in a container count."""

NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, CACHED)


def _items_of(value: object) -> Sequence[object]:
    """Return the values in a container, in an order that is the same in each process."""
    if isinstance(value, (tuple, list)):
        return list(value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(_constant, value))
    if isinstance(value, (dict, types.MappingProxyType)):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.items()]
    kind = type(value)
    if dataclasses.is_dataclass(value) and is_frozen(kind):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return []


def _content(value: object) -> str:
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


def name_of(found: object) -> str:
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


def literal(value: object) -> str | None:
    """Return a plain value as text, the same for equal values; `None` if it is not plain."""
    kind = type(value)
    text: str | None = None
    if kind in PLAIN:
        text = f"{kind.__name__} {value!r}"
    elif isinstance(value, type):
        text = f"class {identity(value)}"
    elif isinstance(value, types.FunctionType) and is_own(value):
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
    elif kind is dict and isinstance(value, dict):
        pairs = [(literal(key), literal(each)) for key, each in value.items()]
        plain = all(None not in pair for pair in pairs)
        text = f"dict {{{', '.join(f'{k}: {v}' for k, v in pairs)}}}" if plain else None
    elif _is_member_in_cpp(value):
        text = f"{name_of(kind)} {value.name} int {int(value)}"
    return text


def _is_member_in_cpp(value: object) -> TypeGuard[MemberInCpp]:
    """Return whether a value is a member of a pybind11 enumeration, such as `SDPBackend.MATH`."""
    kind = type(value)
    if type(kind).__name__ != "pybind11_type":
        return False
    members = vars(kind).get("__entries")  # where pybind11 keeps the members
    return isinstance(members, dict) and getattr(value, "name", None) in members


def describe_tensor(tensor: torch.Tensor, *, free: Free = ((), ())) -> str:
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


def locate(value: object) -> tuple[str, str] | None:
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
    found: object = importlib.import_module(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found
