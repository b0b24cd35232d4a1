# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of a call's arguments and of the thread's state that compiled code depends on.

A signature exists as text and as a dictionary key. The text is complete, can be written to a file,
and takes 30 µs to make. The key is fast, but does not cover some properties of tensors. A check in
C++ covers these properties.
"""

from __future__ import annotations

import ast
import builtins
import functools
import keyword
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from serve_warm._package import PACKAGE
from serve_warm._records import record
from serve_warm._redaction import hide_texts, is_name, shorten
from serve_warm.fingerprint import read_app
from serve_warm.precompile.calls.torch_state import BACKEND_FLAGS, refuse_unusual
from serve_warm.precompile.facts.names import Free, describe_tensor
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.private_apis import torch_c

if TYPE_CHECKING:
    from types import CodeType

STATE = (
    *("threads", "grad_mode", "inference_mode", "autocast", "default_dtype"),
    *("matmul_precision", "deterministic"),
)
"""Factors of the fingerprint that belong to a thread or can change while a process runs. An entry
also stores the `backends` flags of the process (`calls.torch_state.BACKEND_FLAGS`)."""

_SCALARS = frozenset({bool, int, str, type(None), torch.dtype})


@record(frozen=True, kw_only=True)
class Signature:
    """A kind of call: all properties of the arguments that compiled code depends on."""

    structure: str
    """The arguments as source code. Tensors are written as t0, t1 and so on. All other values are
    written unchanged."""
    tensors: tuple[str, ...]
    """Metadata of each tensor."""

    def __str__(self) -> str:
        # Strings from a request must not leak.
        return shorten(f"({hide_texts(self.structure)}) with {', '.join(self.tensors)}")

    def function(self, name: str) -> Callable[..., object]:
        """Return the function of (callee, *tensors) that makes this call."""
        parameters = "".join(f", t{index}" for index in range(len(self.tensors)))
        source = f"def {name}(callee{parameters}):\n    return callee({self.structure})\n"
        # The source is safe: it consists of reprs of plain values and of names.
        # torch before 2.12 looks for the built-ins of compiled code among a function's globals
        # (https://github.com/pytorch/pytorch/pull/177558).
        space: dict[str, Any] = {**vars(builtins), "__name__": PACKAGE, "torch": torch}
        exec(builtins.compile(source, f"<serve_warm {name}>", "exec"), space)  # noqa: S102
        made: Callable[..., object] = space[name]
        return made


def _length(text: str) -> str:
    return f"str[{len(text)}]"


def describe(
    args: Sequence[object],
    kwargs: Mapping[str, object],
    known: Collection[tuple[type, object]] | None = None,
) -> tuple[Signature, list[torch.Tensor]]:
    """Return a call's signature and the call's tensors.

    If `known` is given, the signature shows only the kind and length of strings that are not in
    `known`, because no entry exists for such strings. The same applies to keys and argument names
    if `is_name` is false for them.

    Raises:
        NoEntry: no entry can take an argument of this kind.
    """
    structure, tensors = describe_structure(args, kwargs, known)
    if not tensors:
        raise NoEntry("it is called without a tensor")
    if len({id(tensor) for tensor in tensors}) < len(tensors):
        raise NoEntry("the same tensor is passed twice")
    return Signature(structure=structure, tensors=tuple(map(_metadata, tensors))), tensors


def describe_structure(
    args: Sequence[object],
    kwargs: Mapping[str, object],
    known: Collection[tuple[type, object]] | None = None,
) -> tuple[str, list[torch.Tensor]]:
    """Return the structure of a call's signature, and the call's tensors.

    Raises:
        NoEntry: no entry can take an argument of this kind.
    """
    tensors: list[torch.Tensor] = []
    words = [_source(value, tensors, known) for value in args]
    words += [
        _keyword(name, _source(value, tensors, known), known) for name, value in kwargs.items()
    ]
    return ", ".join(words), tensors


def _keyword(name: str, value: str, known: Collection[tuple[type, object]] | None) -> str:
    # With `**`, a caller can pass names that are Python keywords, such as `from`.
    # Python reads some names of source code as others, such as a ligature as its letters.
    is_same = name.isascii() or unicodedata.normalize("NFKC", name) == name
    is_plain = is_same and name.isidentifier() and not keyword.iskeyword(name)
    if is_plain and _is_shown(name, known):
        return f"{name}={value}"
    return f"**{{{_key(name, known)}: {value}}}"


def _key(name: str, known: Collection[tuple[type, object]] | None) -> str:
    return repr(name) if _is_shown(name, known) else _length(name)


def _is_shown(name: str, known: Collection[tuple[type, object]] | None) -> bool:
    return known is None or is_name(name) or (str, name) in known


def contents(args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[str, list[int]]:
    """Return the arguments as text, and the ids of their tensors, to detect changes."""
    tensors: list[torch.Tensor] = []
    text = _source([*args, dict(kwargs)], tensors)
    return text, [id(tensor) for tensor in tensors]


def _source(
    value: Any, tensors: list[torch.Tensor], known: Collection[tuple[type, object]] | None = None
) -> str:
    kind = type(value)
    if kind is torch.Tensor:
        tensors.append(value)
        return f"t{len(tensors) - 1}"
    if kind in _SCALARS:
        return _scalar(value, known)
    if kind is float and value == value and abs(value) != float("inf"):  # noqa: PLR0124
        return repr(value)
    if kind is list or kind is torch.Size:
        text = f"[{', '.join(_source(item, tensors, known) for item in value)}]"
        # A forward can call `numel()` only on a `torch.Size`.
        return f"torch.Size({text})" if kind is torch.Size else text
    if kind is tuple:
        return f"({''.join(_source(item, tensors, known) + ', ' for item in value)})"
    if kind is dict and all(type(key) is str for key in value):
        items = (
            f"{_key(key, known)}: {_source(item, tensors, known)}" for key, item in value.items()
        )
        return f"{{{', '.join(items)}}}"
    raise NoEntry(f"an argument is a {kind.__module__}.{kind.__qualname__}: {_instead_of(kind)}")


def _instead_of(kind: type) -> str:
    """Return advice for an argument of an unsupported class: what to pass or call instead."""
    if any(f"{base.__module__}.{base.__name__}" == TRANSFORMERS_CACHE for base in kind.__mro__):
        return "decode with serve_warm.compile_generation, which keeps the cache in the model"
    return "pass plain tensors, finite numbers, strings, or lists, tuples and dicts of these"


TRANSFORMERS_CACHE = "transformers.cache_utils.Cache"
"""Base class of caches in `transformers`. This module does not import `transformers`."""


def _scalar(value: Any, known: Collection[tuple[type, object]] | None) -> str:
    kind = type(value)
    if kind is str and known is not None and (kind, value) not in known:
        return _length(value)
    # Python refuses to print very long ones.
    if kind is int and value.bit_length() > LONGEST_ARGUMENT_BITS:
        raise NoEntry(f"an int argument is too large: it has {value.bit_length()} bits")
    return repr(value)


def _metadata(tensor: torch.Tensor) -> str:
    refuse_unusual(tensor)
    if tensor.requires_grad:
        raise NoEntry("a tensor requires grad")
    return describe_tensor(tensor)


LONGEST_ARGUMENT_BITS = 128
"""Largest number of bits that an entry's integer argument can have."""

OTHER = "other"
"""In a call's key, this stands for any number or string that no entry was made for."""


def list_known_values(structure: str) -> set[tuple[type, object]]:
    """Return the numbers, strings and names in a structure, in the form that `key_of` compares."""
    call = ast.parse(f"f({structure})", mode="eval").body
    found: set[tuple[type, object]] = set()
    for node in ast.walk(call):
        if isinstance(node, ast.Constant):
            found.add(_value(node.value))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
            found.add(_value(ast.literal_eval(node)))
        elif isinstance(node, ast.keyword) and node.arg:
            found.add((str, node.arg))
    return found


def _value(value: object) -> tuple[type, object]:
    # The repr tells 0.0 from -0.0.
    return type(value), repr(value) if type(value) is float else value


def key_of(
    args: Sequence[object],
    kwargs: Mapping[str, object],
    tensors: list[torch.Tensor],
    known: Collection[tuple[type, object]],
    *,
    sizes: bool = True,
) -> object:
    """Return a key that is equal for calls with the same structure and the same tensor shapes.

    This is the fast half of `describe`; a check in C++ covers the other properties of tensors. All
    numbers and strings outside `known` count as equal. No entry exists for them, and a key must not
    contain request values. The same applies to keys and argument names if `is_name` is false for
    them. Without `sizes`, tensors of any shape give the same key.
    """
    key: list[object] = []
    add = key.append
    try:
        for value in args:
            if type(value) is torch.Tensor:
                tensors.append(value)
                add(value.shape if sizes else value.dim())
            else:
                add(_part(value, tensors, known, sizes))
        for name, value in kwargs.items():
            add(name if name in _names else _name(name, known))
            if type(value) is torch.Tensor:
                tensors.append(value)
                add(value.shape if sizes else value.dim())
            else:
                add(_part(value, tensors, known, sizes))
    except RuntimeError:  # a nested tensor has no shape
        return object()
    return tuple(key)


def _part(
    value: Any,
    tensors: list[torch.Tensor],
    known: Collection[tuple[type, object]],
    sizes: bool,  # noqa: FBT001
) -> object:
    kind = type(value)
    if kind is torch.Tensor:
        tensors.append(value)
        return value.shape if sizes else value.dim()
    if kind in _VALUES:
        found = (kind, repr(value) if kind is float else value)
        return found if found in known else (kind, OTHER)
    if kind in _SCALARS:
        return (kind, value)
    if kind is list or kind is tuple or kind is torch.Size:
        return (kind, *[_part(item, tensors, known, sizes) for item in value])
    if kind is dict:
        return (
            kind,
            *[(_name(n, known), _part(v, tensors, known, sizes)) for n, v in value.items()],
        )
    # No entry accepts a value of any other class, so only the class is part of the key.
    return (kind, OTHER)


def _name(key: Any, known: Collection[tuple[type, object]]) -> object:
    kind = type(key)
    if kind is str and is_name(key):
        if len(_names) < NAMES_KEPT:
            _names.add(key)
        return key
    return key if kind is str and (kind, key) in known else (kind, OTHER)


NAMES_KEPT = 1024
_names: set[str] = set()
"""Argument names that passed `is_name`. Repeating this check would cost 1 µs per call."""


_NAME = re.compile(r"(?<![\w.'])[A-Za-z_]\w*")

_COMPUTED_WITH = frozenset(
    {*keyword.kwlist, "L", "math", "torch", "abs", "float", "hasattr", "int", "max", "min", "round"}
)
"""The names that a condition can use. `guard_facts.conditions_of` writes `hasattr`."""


_VALUES = frozenset({int, float, str})
"""Kinds of arguments that can have a new value in each request."""


@record(frozen=True, kw_only=True)
class Dynamic:
    """The dynamic sizes of compiled code, and the conditions on them."""

    conditions: tuple[str, ...]
    """Conditions that Dynamo found for the sizes in the graph. Each condition is a Python
    expression in which `L` maps names to tensors."""

    def __post_init__(self) -> None:
        for condition in self.conditions:
            if "L['" not in condition or re.search(r"L\['(?!t\d+'\])", condition):
                raise NoEntry(f"a size in its graph depends on more than the input: {condition}")
            if unknown := set(_NAME.findall(condition)) - _COMPUTED_WITH:
                raise NoEntry(
                    f"a size in its graph is computed with {', '.join(sorted(unknown))}, which an "
                    "entry cannot compute: use dynamic=False"
                )

    def free(self, index: int) -> Free:
        """Return the dimensions that the conditions mention, as two lists.

        The first list is about sizes, and the second list is about strides.
        """
        text = " ".join(self.conditions)
        return (
            [int(i) for i in re.findall(rf"L\['t{index}'\]\.size\(\)\[(\d+)\]", text)],
            [int(i) for i in re.findall(rf"L\['t{index}'\]\.stride\(\)\[(\d+)\]", text)],
        )

    def signature(self, call: Signature, tensors: Sequence[torch.Tensor]) -> Signature:
        """Return the signature of a call without its dynamic sizes."""
        open_ = [describe_tensor(t, free=self.free(i)) for i, t in enumerate(tensors)]
        return Signature(structure=call.structure, tensors=tuple(open_))

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether all conditions hold for these tensors."""
        of_call = {f"t{index}": tensor for index, tensor in enumerate(tensors)}
        names = {"L": of_call, "math": math, "torch": torch}
        try:
            # torch wrote the conditions at the build, and they are signed with the entry.
            return bool(eval(self._code, names))  # noqa: S307
        # The condition reads the base of a tensor that is not a view, or divides by a size of 0.
        except (AttributeError, ArithmeticError, ValueError):
            return False

    @functools.cached_property
    def _code(self) -> CodeType:
        text = " and ".join(f"({condition})" for condition in self.conditions)
        return builtins.compile(text or "True", "<serve_warm conditions>", "eval")

    @functools.cached_property
    def is_open(self) -> bool:
        """Whether the tensors have dynamic sizes."""
        return any("size()[" in condition for condition in self.conditions)


def module_of(callee: object) -> torch.nn.Module | None:
    """Return the module itself, or the module of a bound method; `None` for other callables."""
    owner = getattr(callee, "__self__", callee)
    return owner if isinstance(owner, torch.nn.Module) else None


def state() -> dict[str, str]:
    """Return the state, other than arguments, that compiled code depends on."""
    if torch_c.is_intercepted():
        raise NoEntry("a torch mode or a default device intercepts the call")
    factors = read_app({})
    return {**{name: factors[name] for name in STATE}, "backends": BACKEND_FLAGS.read()}
