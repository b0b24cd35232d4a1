# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a call is to compiled code: the part of its arguments and of the thread that it depends on.

Twice: as text, which is complete, can be written to a file and takes 30 µs; and as a key for a
dictionary, which is quick and leaves the rest of a tensor to be checked in C++.
"""

from __future__ import annotations

import ast
import builtins
import functools
import keyword
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from serve_warm._public_names import PACKAGE
from serve_warm._redaction import hide_texts, is_name, shorten
from serve_warm.fingerprint import read_app
from serve_warm.precompile.call_checks import backend_flags, intercepted, refuse_unusual
from serve_warm.precompile.facts import NoEntry
from serve_warm.precompile.names import Free, describe_tensor

STATE = (
    *("threads", "grad_mode", "inference_mode", "autocast", "default_dtype"),
    *("matmul_precision", "deterministic"),
)
"""Factors of the fingerprint that belong to a thread or can be changed while a process runs. An
entry knows beside them the `backends` flags of the process (`ahead.backend_flags`)."""

_SCALARS = frozenset({bool, int, str, type(None), torch.dtype})


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A kind of call: everything about the arguments that compiled code depends on."""

    structure: str
    """The arguments as source: tensors are t0, t1 and so on, anything else stands there as it is.
    """
    tensors: tuple[str, ...]
    """Metadata of each tensor."""

    def __str__(self) -> str:
        # What a request says is nobody's business.
        return shorten(f"({hide_texts(self.structure)}) with {', '.join(self.tensors)}")

    def function(self, name: str) -> Callable[..., Any]:
        """Return the function of (callee, *tensors) that makes this call."""
        parameters = "".join(f", t{index}" for index in range(len(self.tensors)))
        source = f"def {name}(callee{parameters}):\n    return callee({self.structure})\n"
        # Of the signature's own text, which is made of reprs of plain values and of names.
        # torch before 2.12 looks for built-ins that compiled code uses among a function's globals
        # (https://github.com/pytorch/pytorch/pull/177558).
        space: dict[str, Any] = {**vars(builtins), "__name__": PACKAGE, "torch": torch}
        exec(builtins.compile(source, f"<serve_warm {name}>", "exec"), space)  # noqa: S102
        made: Callable[..., Any] = space[name]
        return made


def _length(text: str) -> str:
    return f"str[{len(text)}]"


def describe(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    known: Collection[tuple[type, Any]] | None = None,
) -> tuple[Signature, list[Any]]:
    """Return the signature of a call and its tensors.

    With `known`, texts that are not in it appear with kind and length: no entry is for them. So do
    keys and names of arguments that do not read as names.

    Raises:
        NoEntry: an argument is of a kind that no entry takes.
    """
    tensors: list[Any] = []
    words = [_source(value, tensors, known) for value in args]
    words += [
        _keyword(name, _source(value, tensors, known), known) for name, value in kwargs.items()
    ]
    if not tensors:
        raise NoEntry("it is called without a tensor")
    if len({id(tensor) for tensor in tensors}) < len(tensors):
        raise NoEntry("one tensor is passed twice")
    return Signature(structure=", ".join(words), tensors=tuple(map(_metadata, tensors))), tensors


def _keyword(name: str, value: str, known: Collection[tuple[type, Any]] | None) -> str:
    # `from` and the like are names of arguments for whoever passes a dict.
    is_plain = name.isidentifier() and not keyword.iskeyword(name)
    if is_plain and _is_shown(name, known):
        return f"{name}={value}"
    return f"**{{{_key(name, known)}: {value}}}"


def _key(name: str, known: Collection[tuple[type, Any]] | None) -> str:
    return repr(name) if _is_shown(name, known) else _length(name)


def _is_shown(name: str, known: Collection[tuple[type, Any]] | None) -> bool:
    return known is None or is_name(name) or (str, name) in known


def contents(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, list[int]]:
    """Return what is in the arguments and which tensors these are, to see it change."""
    tensors: list[Any] = []
    text = _source([*args, dict(kwargs)], tensors)
    return text, [id(tensor) for tensor in tensors]


def _source(
    value: Any, tensors: list[Any], known: Collection[tuple[type, Any]] | None = None
) -> str:
    kind = type(value)
    if kind is torch.Tensor:
        tensors.append(value)
        return f"t{len(tensors) - 1}"
    if kind in _SCALARS:
        return _scalar(value, known)
    if kind is float and value == value and abs(value) != float("inf"):  # noqa: PLR0124
        return repr(value)
    if kind is list:
        return f"[{', '.join(_source(item, tensors, known) for item in value)}]"
    if kind is tuple:
        return f"({''.join(_source(item, tensors, known) + ', ' for item in value)})"
    if kind is dict and all(type(key) is str for key in value):
        items = (
            f"{_key(key, known)}: {_source(item, tensors, known)}" for key, item in value.items()
        )
        return f"{{{', '.join(items)}}}"
    raise NoEntry(f"an argument is a {kind.__module__}.{kind.__qualname__}")


def _scalar(value: Any, known: Collection[tuple[type, Any]] | None) -> str:
    kind = type(value)
    if kind is str and known is not None and (kind, value) not in known:
        return _length(value)
    if kind is int and value.bit_length() > LONGEST_BITS:  # Python refuses to print the longest
        raise NoEntry(f"an argument is an int of {value.bit_length()} bits")
    return repr(value)


def _metadata(tensor: Any) -> str:
    refuse_unusual(tensor)
    if tensor.requires_grad:
        raise NoEntry("a tensor requires grad")
    return describe_tensor(tensor)


LONGEST_BITS = 128
"""No entry takes a longer whole number."""

OTHER = "other"
"""In the key of a call, in place of a number or text that no entry was made for."""


def list_known_values(structure: str) -> set[tuple[type, Any]]:
    """Return numbers, texts and names in a signature's structure, as `key_of` looks for them."""
    call = ast.parse(f"f({structure})", mode="eval").body
    found: set[tuple[type, Any]] = set()
    for node in ast.walk(call):
        if isinstance(node, ast.Constant):
            found.add(_value(node.value))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
            found.add(_value(ast.literal_eval(node)))
        elif isinstance(node, ast.keyword) and node.arg:
            found.add((str, node.arg))
    return found


def _value(value: Any) -> tuple[type, Any]:
    # Its text tells 0.0 from -0.0.
    return type(value), repr(value) if type(value) is float else value


def key_of(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: list[Any],
    known: Collection[tuple[type, Any]],
    *,
    sizes: bool = True,
) -> Any:
    """Return what is equal for calls of one structure with tensors of one shape.

    The quick half of `describe`: the other half of a tensor is checked in C++. Numbers and texts
    that are not in `known` are one: no entry is for them, and values of requests are not kept. So
    are keys and names of arguments that do not read as names.
    Without `sizes` it is equal for tensors of any shape.
    """
    key: list[Any] = []
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


def _part(value: Any, tensors: list[Any], known: Collection[Any], sizes: bool) -> Any:  # noqa: FBT001
    kind = type(value)
    if kind is torch.Tensor:
        tensors.append(value)
        return value.shape if sizes else value.dim()
    if kind in _VALUES:
        found = (kind, repr(value) if kind is float else value)
        return found if found in known else (kind, OTHER)
    if kind in _SCALARS:
        return (kind, value)
    if kind is list or kind is tuple:
        return (kind, *[_part(item, tensors, known, sizes) for item in value])
    if kind is dict:
        return (
            kind,
            *[(_name(n, known), _part(v, tensors, known, sizes)) for n, v in value.items()],
        )
    # Of other kinds there is no entry; each class is one kind of call.
    return (kind, OTHER)


def _name(key: Any, known: Collection[tuple[type, Any]]) -> Any:
    kind = type(key)
    if kind is str and is_name(key):
        if len(_names) < NAMES_KEPT:
            _names.add(key)
        return key
    return key if kind is str and (kind, key) in known else (kind, OTHER)


NAMES_KEPT = 1024
_names: set[str] = set()
"""Names of arguments that were found to read as names: asking again costs 1 µs at each call."""


_VALUES = frozenset({int, float, str})
"""Kinds of arguments with as many values as there are requests."""


@dataclass(frozen=True, kw_only=True)
class Dynamic:
    """What of a call's tensors compiled code takes as it comes, and within which limits."""

    conditions: tuple[str, ...]
    """Python over `L`, the tensors by name: what Dynamo found out about the sizes in the graph."""

    def __post_init__(self) -> None:
        for condition in self.conditions:
            if "L['" not in condition or re.search(r"L\['(?!t\d+'\])", condition):
                raise NoEntry(f"a size in its graph depends on more than the input: {condition}")

    def free(self, index: int) -> Free:
        """Return the dimensions of a tensor of which the conditions speak."""
        text = " ".join(self.conditions)
        return (
            [int(i) for i in re.findall(rf"L\['t{index}'\]\.size\(\)\[(\d+)\]", text)],
            [int(i) for i in re.findall(rf"L\['t{index}'\]\.stride\(\)\[(\d+)\]", text)],
        )

    def signature(self, call: Signature, tensors: Sequence[Any]) -> Signature:
        """Return the signature of a call with what is free left open."""
        open_ = [describe_tensor(t, free=self.free(i)) for i, t in enumerate(tensors)]
        return Signature(structure=call.structure, tensors=tuple(open_))

    def holds(self, tensors: Sequence[Any]) -> bool:
        """Return whether all conditions hold for these tensors."""
        names = {"L": {f"t{index}": tensor for index, tensor in enumerate(tensors)}, "math": math}
        try:
            # Written by torch at the build, and signed with the rest of the entry.
            return bool(eval(self._compiled, names))  # noqa: S307
        except AttributeError:  # of the tensor that a view is of, and this one is none
            return False

    @functools.cached_property
    def _compiled(self) -> Any:
        text = " and ".join(f"({condition})" for condition in self.conditions)
        return builtins.compile(text or "True", "<serve_warm conditions>", "eval")

    @functools.cached_property
    def is_open(self) -> bool:
        """Whether sizes of the tensors are taken as they come."""
        return any("size()[" in condition for condition in self.conditions)


def module_of(callee: Any) -> torch.nn.Module | None:
    """Return the module that is called, itself or by one of its methods; `None` for others."""
    owner = getattr(callee, "__self__", callee)
    return owner if isinstance(owner, torch.nn.Module) else None


def state() -> dict[str, str]:
    """Return what compiled code depends on and no argument shows."""
    if intercepted():
        raise NoEntry("a mode or a default device stands between the call and torch")
    factors = read_app({})
    return {**{name: factors[name] for name in STATE}, "backends": backend_flags()}
