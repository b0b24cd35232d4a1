# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors that contain other tensors, such as quantized weights: their parts and metadata.

`__tensor_flatten__` returns the names of such a tensor's parts, and metadata such as a block size,
a layout, or the function that quantizes activations. Compiled code depends on the parts and
metadata, but the dtype and shape of the whole tensor do not show them. Seen in torch 2.11 to 2.13:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/utils/_python_dispatch.py
"""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from serve_warm.precompile.facts.names import (
    describe_tensor,
    identity,
    literal,
    name_of,
    name_of_class,
)
from serve_warm.private_apis.torch_c import TorchDispatchMode, is_traceable_wrapper_subclass

if TYPE_CHECKING:
    from serve_warm.private_apis.torch_c import Operator, TensorWithParts

DEPTH = 12
"""Maximum nesting depth of parts, and of values in metadata."""


READ_FAILURES = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions that may be raised when unexpected parts of a tensor are read or compared."""


def has_parts(value: object) -> TypeGuard[TensorWithParts]:
    """Return whether a value is a tensor that contains other tensors."""
    return type(value) not in PLAIN and is_traceable_wrapper_subclass(value)


PLAIN = (torch.Tensor, torch.nn.Parameter)
"""The types of most tensors. Tensors of these types have no parts."""


def describe_parts(tensor: object) -> list[str]:
    """Return the facts about a tensor's parts that compiled code relies on, as texts.

    Raises:
        TypeError: the text of some metadata would differ in each process.
    """
    return list(_describe(tensor, "", 0))


def _describe(tensor: Any, path: str, depth: int) -> Iterator[str]:
    if depth > DEPTH:
        raise TypeError(f"its inner tensors are nested more than {DEPTH} levels deep")
    names, metadata = tensor.__tensor_flatten__()
    yield f"{path}class: {name_of_class(type(tensor))}"
    if type(metadata) is dict:
        for key, value in metadata.items():
            yield f"{path}{key}: {steady(value)}"
    else:
        yield f"{path}metadata: {steady(metadata)}"
    for name in names:
        part = getattr(tensor, name)
        if not isinstance(part, torch.Tensor):
            raise TypeError(f"its attribute {name} is a {type(part).__qualname__}, not a tensor")
        yield f"{path}{name}: {describe_tensor(part)}"
        if has_parts(part):
            yield from _describe(part, f"{path}{name}.", depth + 1)


def classes_of(tensor: Any) -> list[type]:
    """Return the class of a tensor, and the class of each part that has parts itself."""
    found = [type(tensor)]
    for name in tensor.__tensor_flatten__()[0]:
        if has_parts(part := getattr(tensor, name)):
            found += classes_of(part)
    return list(dict.fromkeys(found))


def plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain tensors inside a tensor: often just the tensor itself."""
    if not has_parts(tensor):
        return [tensor]
    parts: list[torch.Tensor] = []
    _flatten(tensor, parts, [])
    return parts


def part_names(tensor: torch.Tensor) -> list[str]:
    """Return the path from a tensor to each of its `plain_parts`, in the form `.name.name`."""
    if not has_parts(tensor):
        return [""]
    names = tensor.__tensor_flatten__()[0]
    return [f".{name}{rest}" for name in names for rest in part_names(getattr(tensor, name))]


def with_parts(tensor: torch.Tensor, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a tensor like `tensor`, but with these `plain_parts`."""
    left = iter(parts)

    def make(like: torch.Tensor) -> torch.Tensor:
        if not has_parts(like):
            return next(left)
        names, metadata = like.__tensor_flatten__()
        inner = {name: make(getattr(like, name)) for name in names}
        return type(like).__tensor_unflatten__(inner, metadata, like.shape, like.stride())

    return make(tensor)


def read_metadata(tensor: object) -> list[object]:
    """Return a tensor's classes, part names and metadata in a form that is fast to compare."""
    found: list[object] = []
    _flatten(tensor, [], found)
    return found


def read_parts(tensor: object) -> list[object]:
    """Return the same information as `describe_parts`, in a form that is fast to compare."""
    parts: list[torch.Tensor] = []
    found: list[object] = []
    _flatten(tensor, parts, found)
    return [*found, *((p.dtype, p.shape, p.stride(), p.device) for p in parts)]


def is_equal(left: object, right: object) -> bool:
    """Return whether two results of `read_metadata` or `read_parts` are equal; False if unknown."""
    try:
        return bool(left == right)
    except READ_FAILURES:
        return False


def _flatten(tensor: Any, parts: list[torch.Tensor], metadata: list[object]) -> None:
    names, more = tensor.__tensor_flatten__()
    metadata.append((type(tensor), names, more))
    for name in names:
        part = getattr(tensor, name)
        if has_parts(part):
            _flatten(part, parts, metadata)
        else:
            parts.append(part)


class Whole:
    """Tensors, with or without parts, in the order of a graph's inputs."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._places = [place for place, tensor in enumerate(tensors) if has_parts(tensor)]
        self._metadata: list[object] = []
        self.parts = self._read(tensors, self._metadata)
        """The plain parts of all tensors that have parts."""
        # Keep a copy, because an object in the metadata may change in place.
        self._metadata = copy.deepcopy(self._metadata) if self._places else []

    def _read(self, tensors: Sequence[torch.Tensor], metadata: list[object]) -> list[torch.Tensor]:
        parts: list[torch.Tensor] = []
        for place in self._places:
            _flatten(tensors[place], parts, metadata)
        return parts

    def describe(self, tensors: Sequence[torch.Tensor]) -> tuple[str, ...]:
        """Return the `describe_parts` texts of the tensors that have parts."""
        return tuple(text for place in self._places for text in describe_parts(tensors[place]))

    def read_same(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Return the plain parts of `tensors`, or `None` if their metadata has changed.

        The metadata is compared with that of the tensors given to `__init__`.
        """
        if not self._places:
            return []
        metadata: list[object] = []
        try:
            parts = self._read(tensors, metadata)
        except READ_FAILURES:  # one of them has no parts any more
            return None
        return parts if is_equal(metadata, self._metadata) else None


# Metadata -------------------------------------------------------------------------------------


def steady(value: Any, depth: int = 0) -> str:
    """Return text that is the same for equal values in all processes.

    Objects are described as pickle sees them: by their class and state.

    Raises:
        TypeError: no such text exists, because the value is a tensor, a module or an object of a C
        class.
    """
    if depth > DEPTH:
        raise TypeError(f"its metadata is nested more than {DEPTH} levels deep")
    text = literal(value)
    if text is not None:
        return text
    kind = type(value)
    if isinstance(value, (torch.Tensor, torch.nn.Module, types.ModuleType)):
        raise TypeError(f"its metadata contains a {kind.__qualname__}")
    if kind in (list, tuple):
        return f"{kind.__name__} ({', '.join(steady(each, depth + 1) for each in value)})"
    if kind is dict:
        pairs = (f"{steady(k, depth + 1)}: {steady(v, depth + 1)}" for k, v in value.items())
        return f"dict {{{', '.join(pairs)}}}"
    if isinstance(value, types.FunctionType):
        return _steady_function(value, depth)
    if isinstance(value, types.BuiltinFunctionType):
        return f"builtin {name_of(value)}"
    return _steady_object(value, depth)


def _steady_function(function: types.FunctionType, depth: int) -> str:
    """Return the name of a function, the digest of its code, and the values that it closes over."""
    values: list[object] = [function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            values.append(cell.cell_contents)
    name = identity(function)
    if not name:
        raise TypeError("its metadata contains a function without a name")
    return f"function {name} {steady(values, depth + 1)}"


def _steady_object(value: object, depth: int) -> str:
    try:
        reduced = value.__reduce_ex__(2)
    except TypeError as error:
        raise TypeError(f"its metadata contains a {type(value).__qualname__}: {error}") from error
    if isinstance(reduced, str):
        return f"{name_of_class(type(value))} {reduced}"
    make, arguments, *state = reduced
    # The items of a list or dict arrive as iterators, in the order of the container.
    plain = [list(each) if isinstance(each, Iterator) else each for each in state]
    how = identity(make) or name_of(make)
    return f"{name_of_class(type(value))} {how} {steady([arguments, plain], depth + 1)}"


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls `run` for each operator while this mode is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True, so that torch.compile goes on in all threads while this mode is active.

        Otherwise Dynamo marks the code that it meets as never to be compiled, also the code of
        other threads and of operators that compile themselves in eager execution (`torch.cond`).
        """
        return True

    def __torch_dispatch__(
        self,
        func: Operator,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        return self.run(func, args, kwargs or {})

    def run(self, func: Operator, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run an operator; subclasses define how."""
        raise NotImplementedError
