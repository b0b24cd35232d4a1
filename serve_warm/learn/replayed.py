# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Replays of recorded kinds of calls, with tensors that are made for them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch

from serve_warm._redaction import describe_error, excerpt
from serve_warm.errors import InputError
from serve_warm.learn.recorded import (
    SHOWN,
    TENSOR,
    NotRepeatable,
    RecordedCall,
    arguments_of,
    numbers_in,
)
from serve_warm.precompile import SESSION
from serve_warm.precompile.recording import Dispatcher, find_callables, own_buffers

SEED = 0
"""Seed of the random values in floating-point tensors."""

WHOLE = (0, 1)
"""Values that are tried in tensors of whole numbers. 0 is a valid index of any table. Lengths, from
which code subtracts 1, may not be 0."""


class ReplayedCall:
    """Makes one kind of call of a compiled callable, as an input's target."""

    def __init__(self, call: RecordedCall) -> None:
        self._call = call
        self._whole = WHOLE[0]
        self.__name__ = call.name

    def __call__(self) -> None:
        """Call the callables with new tensors.

        Raises:
            NotRepeatable: the application has no such callable, or the call also fails uncompiled.
        """
        call = self._call
        found = list(find_callables(call.callable, call.number))
        if not found:
            raise NotRepeatable(
                f"the application has compiled no {call.callable} (number {call.number + 1}), "
                "which the plan names",
                hint="make a new plan from the traffic of this version: serve-warm plan",
            )
        for dispatcher in found:
            with unchanged_buffers(dispatcher.callee), self._opening(dispatcher):
                self._answer(dispatcher)

    def _opening(self, dispatcher: Dispatcher) -> contextlib.AbstractContextManager[None]:
        """Let a build make code for any size of the open axes, unless the application decides."""
        build = SESSION.being_built
        if build is None or dispatcher.arguments.get("dynamic") is not None:
            return contextlib.nullcontext()
        return build.opening(dispatcher, self._call.any_size)

    def _answer(self, dispatcher: Dispatcher) -> None:
        error = self._try(dispatcher)
        if error is None:
            return
        # If only compiled code fails, then not the plan is wrong, but the artifact.
        whole = self._find_whole(dispatcher, error)
        if whole == self._whole:
            raise error
        self._whole = whole
        self._make(dispatcher)

    def _try(self, function: Callable[..., object]) -> Exception | None:
        try:
            self._make(function)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            return error
        return None

    def _make(self, function: Callable[..., object]) -> None:
        modes = self._call.modes
        args, kwargs = make_arguments(self._call, self._whole)
        with (
            torch.inference_mode(modes.get("inference_mode", False)),
            torch.set_grad_enabled(modes.get("grad_mode", False)),
        ):
            function(*args, **kwargs)

    def _find_whole(self, dispatcher: Dispatcher, error: Exception) -> int:
        """Return the whole number with which the call works uncompiled, after it raised an error.

        Raises:
            NotRepeatable: there is none.
        """
        # On a GPU, an index that is out of range ends all work of the process: only 0 is safe.
        is_on_gpu = any("on cuda" in each for each in self._call.tensors)
        before, texts = self._whole, list[str]()
        for whole in (before,) if is_on_gpu else dict.fromkeys((before, *WHOLE)):
            self._whole = whole
            uncompiled = self._try(dispatcher.callee)
            self._whole = before
            if uncompiled is None:
                return whole
            texts.append(describe_error(uncompiled))
        raise NotRepeatable(texts[0], hint="remove the call from the plan") from error


BUFFER_BYTES = 16 << 20
"""Total size of the buffers of a model that are put back: statistics and counters, not caches."""


@contextlib.contextmanager
def unchanged_buffers(callee: object) -> Iterator[None]:
    """Put back what calls in the block change in the buffers of a model.

    The values of such calls are made up, so a running mean would be wrong from then on. The
    contents of the smallest buffers are put back, up to `BUFFER_BYTES` in all. Of a module that
    replaced a buffer, such as a cache that has grown, all buffers are put back, and the numbers
    beside them, such as the cache's length.
    """
    modules = list(_modules_of(callee))
    before = [(each, dict(own_buffers(each)), _numbers_beside(each)) for each in modules]
    buffers = {id(each): each for _, own, _ in before for each in own.values() if each is not None}
    left, kept = BUFFER_BYTES, []
    for each in sorted(buffers.values(), key=lambda buffer: buffer.nbytes):
        left -= each.nbytes
        if left >= 0 and each.layout == torch.strided and each.device.type != "meta":
            kept.append((each, each.detach().clone()))
    try:
        yield
    finally:
        for module, own, numbers in before:
            _put_back(module, own, numbers)
        with torch.inference_mode():  # which also allows changes of tensors made in it
            for each, content in kept:
                if each.shape == content.shape and not torch.equal(each, content):
                    each.copy_(content)


def _put_back(
    module: torch.nn.Module,
    buffers: Mapping[str, torch.Tensor],
    numbers: Mapping[str, object],
) -> None:
    now = own_buffers(module)
    replaced = [name for name, each in buffers.items() if now.get(name, each) is not each]
    now.update({name: buffers[name] for name in replaced})
    if replaced:
        vars(module).update(numbers)


def _numbers_beside(module: torch.nn.Module) -> dict[str, object]:
    """Return the plain values of a module that has buffers."""
    plain = {int, float, bool, type(None), tuple}
    found = vars(module).items() if own_buffers(module) else ()
    return {name: value for name, value in found if type(value) in plain and name != "training"}


def _modules_of(callee: object) -> Iterator[torch.nn.Module]:
    """Yield the modules that a callable can reach: its own, and those that its code names.

    Those of an object that is no module are found in its attributes.
    """
    seen, left = set[int](), [(callee, 0)]
    while left:
        found, depth = left.pop()
        if id(found) in seen or depth > DEPTH:
            continue
        seen.add(id(found))
        kind = type(found)  # not its `__class__`, which can be code of the application
        if issubclass(kind, torch.nn.Module):
            module = cast("torch.nn.Module", found)
            yield from (each for each in module.modules() if each is found or id(each) not in seen)
            seen.update(map(id, module.modules()))
        elif issubclass(kind, types.MethodType):
            method = cast("types.MethodType", found)
            left += [(method.__self__, depth), (method.__func__, depth)]
        elif issubclass(kind, functools.partial):
            call = cast("functools.partial[object]", found)
            left += [(each, depth) for each in (call.func, *call.args, *call.keywords.values())]
        else:
            left += [(each, depth + 1) for each in itertools.islice(_held_by(found), MOST_HELD)]


DEPTH = 2
"""How many steps a module may be away from a callable, through names, attributes and containers."""


MOST_HELD = 100
"""Maximum number of objects that are looked at in one container."""


def _held_by(found: Any) -> Iterator[object]:
    """Yield what a function names, or the items or attributes of an object."""
    kind = type(found)
    if kind is types.FunctionType:
        yield from _named_by(found)
    elif kind is dict:
        yield from [*found.values()]
    elif kind is list or kind is tuple:
        yield from found
    elif not issubclass(kind, (type, types.ModuleType, torch.Tensor)):
        with contextlib.suppress(AttributeError):
            yield from [*object.__getattribute__(found, "__dict__").values()]


def _named_by(function: types.FunctionType) -> Iterator[object]:
    """Yield what a function closes over, and the globals that it names."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty one
            yield cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]


def make_arguments(call: RecordedCall, whole: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Return new arguments for a call: the recorded structure, with tensors of its metadata.

    `whole` is the value in tensors of whole numbers.

    Raises:
        ValueError: the structure has anything that a recorder never writes.
    """
    noise = torch.Generator().manual_seed(SEED)
    tensors = []
    for number, each in enumerate(call.tensors):
        is_inside = call.modes.get("inference_tensors", False)
        with torch.inference_mode(is_inside and number not in call.normal_tensors):
            tensors.append(make_tensor(each, noise, whole))
    return arguments_of(call.structure, tensors, _of_torch)


def _of_torch(name: str) -> Any:
    found = getattr(torch, name, None)
    if found is not torch.Size and not isinstance(found, torch.dtype):
        raise ValueError(f"torch.{excerpt(name, SHOWN)} is no dtype")
    return found


def make_tensor(text: str, noise: torch.Generator, whole: int = 0) -> torch.Tensor:
    """Return a tensor with this metadata.

    All whole numbers are `whole`. Masks are True, because attention to nothing gives NaN. Other
    numbers are random.
    """
    found = TENSOR.fullmatch(text)
    if found is None:
        raise InputError(f"a tensor is not described as a recorder would: {excerpt(text, SHOWN)!r}")
    dtype = getattr(torch, found["dtype"])
    sizes, strides = (numbers_in(found[each]) for each in ("sizes", "strides"))
    # No view of another tensor: Dynamo's guards on the base of a view would fail in traffic.
    made = torch.empty_strided(sizes, strides, dtype=dtype, device=found["device"])
    extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    values = made.as_strided((0 if 0 in sizes else extent,), (1,))
    if dtype == torch.bool:
        values.fill_(value=True)
    elif dtype.is_floating_point or dtype.is_complex:
        values.copy_(torch.randn(values.shape, generator=noise))
    else:
        values.fill_(whole)
    return made


@functools.cache
def can_make(dtype: str) -> bool:
    """Return whether `make_tensor` can make tensors of this dtype."""
    try:
        make_tensor(f"Tensor {dtype}[1] strides [1] on cpu", torch.Generator())
    except (RuntimeError, TypeError, ValueError, AttributeError):  # quantized ones, bits
        return False
    return True
