# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors that a callable reaches, but that are no registered parameters or buffers.

A `forward` may keep a KV cache or a position counter in plain attributes, in lists or dicts, or in
objects such as `self.cache = Cache()`. A build runs each call several times, so it must restore
these tensors, as it restores buffers. Otherwise the counter advances at each run, and the first
call already writes past the end of the cache.

Most such tensors are only read, and they may be all the weights of a model. So large tensors are
copied only when the first run is about to write into them, and after the first run only the copies
of written tensors are kept.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from serve_warm._package import PACKAGE
from serve_warm.precompile.facts.tensor_parts import OperatorMode, has_parts, plain_parts
from serve_warm.private_apis import module_names
from serve_warm.private_apis.nn_module import BUFFERS, MODULES
from serve_warm.private_apis.torch_c import schema_of, storage_id, version_of

if TYPE_CHECKING:
    from serve_warm.private_apis.torch_c import Operator

DEPTH = 6
"""Maximum number of steps from a registered module, or from the callable, to a tensor."""

OBJECTS_READ = 100_000
"""Maximum number of objects, lists and dicts to read for each callable."""

LARGE_BYTES = 1 << 24
"""Tensors of at least this size are copied only before a write."""

COPIED_BYTES = 1 << 30
"""Size of all copies after which every further tensor is treated as a large tensor."""

COMPILERS = (PACKAGE, module_names.PRIVATE_PREFIX)
"""Module name prefixes of objects that do not belong to the user."""

OF_MODULES = frozenset(vars(torch.nn.Module()))
"""The attributes that each module has, such as its hooks and buffers."""

SEQUENCES = (list, tuple, deque)


@dataclass(kw_only=True)
class _KeptTensor:
    """One tensor, and a copy of the values that it had before the run."""

    tensor: torch.Tensor
    version: int | None
    """torch's count of writes into the tensor; None if torch does not count them."""
    places: list[tuple[object, object]] = field(default_factory=list)
    """The containers that hold the tensor, each with the key or the name of the tensor."""
    before: Sequence[torch.Tensor] | None = None
    """Copies of the tensor's plain parts; None if a large tensor was not copied."""

    def copy(self) -> None:
        if self.before is None:
            self.before = [part.clone() for part in plain_parts(self.tensor)]

    def is_changed(self) -> bool:
        """Return whether a run may have changed the tensor, or put another tensor in its place."""
        if any(_get(*place) is not self.tensor for place in self.places):
            self.copy()  # if there is no copy, nothing has written into the tensor
            return True
        if self.before is None:
            return False
        # A write may leave equal values, for example zeros, and write others for another input.
        return (
            self.version is None
            or self.version != _version(self.tensor)
            or not _is_as_before(self.tensor, self.before)
        )


class PlainState:
    """The tensors in a callable's attributes, lists, dicts and objects, before a run."""

    def __init__(
        self, callee: object, *, registered: Collection[int] = (), large_bytes: int = LARGE_BYTES
    ) -> None:
        """Find the tensors, except those whose ids are in `registered`, and copy the small ones."""
        found: dict[int, _KeptTensor] = {}
        for container, key, tensor in _find_tensors(callee):
            if id(tensor) not in registered:
                kept = found.setdefault(
                    id(tensor), _KeptTensor(tensor=tensor, version=_version(tensor))
                )
                kept.places.append((container, key))
        self._kept = [*found.values()]
        self._is_first_run = True
        total = 0
        for kept in self._kept:
            size = sum(part.nbytes for part in plain_parts(kept.tensor))
            if size < large_bytes and total + size <= COPIED_BYTES:
                kept.copy()
                total += size

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Copy large tensors before a write. At the end of the first run, drop unchanged tensors.

        The first run must be eager, because compiled code writes into memory directly.
        """
        if not self._is_first_run:
            yield
            return
        large = [kept for kept in self._kept if kept.before is None]
        with _CopyBeforeWrite(large) if large else contextlib.nullcontext():
            yield
        self._is_first_run = False
        self._kept = [kept for kept in self._kept if kept.is_changed()]

    @property
    def before(self) -> list[torch.Tensor]:
        """Copies of the tensors, made before the run."""
        return [part for kept in self._kept for part in kept.before or ()]

    def read(self) -> list[torch.Tensor]:
        """Return the plain parts of the tensors that are now in the same places."""
        now: list[torch.Tensor] = []
        for kept in self._kept:
            held = _get(*kept.places[0])
            now += plain_parts(held if isinstance(held, torch.Tensor) else kept.tensor)
        return now

    def restore(self) -> None:
        """Put the tensors back in their places, with their earlier values."""
        for kept in self._kept:
            for container, key in kept.places:
                if isinstance(_get(container, key), torch.Tensor):
                    _set(container, key, kept.tensor)
            if kept.before is not None and not _is_as_before(kept.tensor, kept.before):
                for part, value in zip(plain_parts(kept.tensor), kept.before, strict=True):
                    write(part, value)


@contextlib.contextmanager
def putting_back(callee: object) -> Iterator[None]:
    """Put the tensors that the block replaces, such as `self.cache`, back in their places.

    The values of the tensors are not restored.
    """
    state = PlainState(callee, large_bytes=0)
    try:
        yield
    finally:
        state.restore()


def write(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Copy a value into a tensor, which may be an inference tensor."""
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(value)


class _CopyBeforeWrite(OperatorMode):  # type: ignore[no-untyped-call]
    """Copies tensors before an operator writes into their memory."""

    def __init__(self, tensors: Sequence[_KeptTensor]) -> None:
        super().__init__()
        self._tensors: dict[int, list[_KeptTensor]] = {}
        for kept in tensors:
            for part in plain_parts(kept.tensor):
                self._tensors.setdefault(storage_id(part), []).append(kept)

    def run(self, func: Operator, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        for number, argument in enumerate(schema_of(func).arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                self._copy(tensor)
        return func(*args, **kwargs)

    def _copy(self, tensor: object) -> None:
        if isinstance(tensor, torch.Tensor):
            for part in plain_parts(tensor):
                for kept in self._tensors.pop(storage_id(part), ()):
                    kept.copy()


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() or has_parts(tensor) else version_of(tensor)


def _is_as_before(tensor: torch.Tensor, before: Sequence[torch.Tensor]) -> bool:
    from serve_warm.precompile.calls.copies import is_same

    return all(map(is_same, plain_parts(tensor), before))


# Search ---------------------------------------------------------------------------------------


def _find_tensors(callee: object) -> Iterator[tuple[object, object, torch.Tensor]]:
    """Yield each tensor that a callable reaches, with its container and its key or name."""
    queue: deque[tuple[int, object]] = deque([(0, callee)])
    seen: set[int] = set()
    while queue and len(seen) < OBJECTS_READ:
        depth, value = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for is_step, container, key, part in _parts(value):
            if isinstance(part, torch.Tensor):
                if _is_kept(part):
                    yield container, key, part
            elif depth + is_step <= DEPTH and type(part) not in LEAVES:
                queue.append((depth + is_step, part))


LEAVES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def _is_kept(tensor: torch.Tensor) -> bool:
    if isinstance(tensor, torch.nn.Parameter):
        return False
    if has_parts(tensor):
        return all(map(_is_kept, plain_parts(tensor)))
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_nested
    )


Part = tuple[bool, object, object, object]
"""Whether this is a step further from the modules, a container, the key in it, and the value."""


def _parts(value: Any) -> Iterator[Part]:
    """Yield the parts of an object, without running the object's code."""
    kind = type(value)
    if issubclass(kind, (type, types.ModuleType)):
        return
    if issubclass(kind, torch.nn.Module):
        for table in (MODULES, BUFFERS):
            yield from _items(vars(value).get(table, {}), is_step=False)
    if str(kind.__module__).startswith(COMPILERS):
        return
    if issubclass(kind, types.MethodType):
        yield True, None, "", value.__self__
        yield True, None, "", value.__func__
    elif issubclass(kind, types.FunctionType):
        yield from _of_function(value)
    elif issubclass(kind, functools.partial):
        for each in (value.func, value.args, value.keywords):
            yield True, None, "", each
    elif issubclass(kind, (dict, *SEQUENCES)):
        yield from _items(value, is_step=True)
    yield from _attributes(value, kind)


def _items(value: Any, *, is_step: bool) -> Iterator[Part]:
    if isinstance(value, dict):
        pairs = [*dict.items(value)]
    else:
        base = next(each for each in SEQUENCES if isinstance(value, each))
        pairs = [*enumerate(base.__iter__(value))]
    for key, item in pairs:
        yield is_step, value, key, item


def _of_function(function: types.FunctionType) -> Iterator[Part]:
    """Yield the values that a function closes over, its defaults, and the globals that it names."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            yield True, cell, "cell_contents", cell.cell_contents
    for default in (function.__defaults__, function.__kwdefaults__):
        yield True, None, "", default
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield True, function.__globals__, name, function.__globals__[name]


def _attributes(value: object, kind: type) -> Iterator[Part]:
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = None
    if type(own) is dict:
        of_module = OF_MODULES if issubclass(kind, torch.nn.Module) else ()
        for name, part in [*own.items()]:
            if name not in of_module:
                yield True, own, name, part
    for base in kind.__mro__:
        for name, member in vars(base).items() if "__slots__" in vars(base) else ():
            if type(member) is types.MemberDescriptorType:
                yield True, value, name, _get(value, name)


def _get(container: object, key: Any) -> object:
    """Return an item or an attribute without running `__getattr__`; None if there is none."""
    try:
        if isinstance(container, dict):
            return dict.get(container, key)
        if isinstance(container, SEQUENCES):
            return container[key]
        return object.__getattribute__(container, key)
    except (AttributeError, IndexError, ValueError):
        return None


def _set(container: object, key: Any, tensor: torch.Tensor) -> None:
    if _get(container, key) is tensor:
        return
    if isinstance(container, dict):
        dict.__setitem__(container, key, tensor)
    elif isinstance(container, (list, deque)):
        container[key] = tensor
    else:
        object.__setattr__(container, key, tensor)
