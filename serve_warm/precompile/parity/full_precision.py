# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Full-precision runs of a call, which show how far eager execution itself is from exact results.

Nothing is copied or changed up front: the callable may be a module, a function or a closure, two
copies of a model may not fit into memory, and other threads may use the model. Instead, a mode
casts the tensors of each operator. Parameters are cast where they are used, and the copy is
dropped. Python code sees the dtypes that it sees in eager execution, so it takes the same branches.

Uses private names of torch 2.11 to 2.15, such as weak references to storages:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/multiprocessing/reductions.py
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from serve_warm._records import record
from serve_warm._redaction import describe_error
from serve_warm.precompile.calls.eagerly import eagerly
from serve_warm.precompile.facts.tensor_parts import READ_FAILURES, OperatorMode, has_parts
from serve_warm.precompile.parity.eager import Outcome, StateBefore
from serve_warm.precompile.parity.eager_dtypes import (
    ShowEagerDtypes,
    asked_dtype,
    eager_dtype,
    map_tensors,
    promote,
    set_eager_dtype,
    tensors_in,
)
from serve_warm.private_apis.torch_c import (
    SOFTMAXES,
    Operator,
    is_composite,
    name_with_overload,
    schema_of,
    storage_id,
    weak_storage,
    without_dispatch_modes,
    without_functions,
)

HALF = (torch.bfloat16, torch.float16)
TO_FLOAT = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.complex32: torch.complex64,
}
TO_DOUBLE = {
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
"""The dtypes that are cast, and the full-precision dtype of each."""

SMALL_BYTES = 1 << 18
"""Full-precision copies up to this size are kept for the whole run. Loops use them often."""

OF_TORCH = frozenset(["aten", "prims", "prim"])
"""Namespaces of operators that may run in full precision. Others may hide a kernel for one
dtype."""

REINTERPRETS = frozenset(["aten::view.dtype"])
"""Operators that read the bits of a tensor."""

CASTS_HALF = frozenset(SOFTMAXES)
"""Operators whose third argument says that a half-precision argument gives a float32 result."""

REPLACES_STORAGE = frozenset(["aten::set_", "aten::resize_", "aten::resize_as_"])

PROBABILITIES = ("dropout_p", "dropout", "p")
"""Arguments of operators that draw random numbers only if the argument is not zero."""

REDUCED = ("tf32", "bf16")
"""Settings that let a float32 product round its factors."""


class NoFullPrecision(Exception):
    """A call cannot run in full precision. The text gives the reason for a report."""


@record(frozen=True, kw_only=True)
class Precision:
    """What a full-precision run casts, and to which dtypes."""

    up: Mapping[torch.dtype, torch.dtype]
    """The dtypes that are cast, and the full-precision dtype of each."""
    is_conv_double: bool = False
    """Whether convolutions and recurrent layers run in float64, because cuDNN would use TF32."""


def choose_precision(*, half: bool, device_types: Iterable[str]) -> Precision:
    """Return the precision of the reference for a call: float32 for half precision, else float64.

    If float32 products are rounded on a device of the call, for example to TF32, the reference uses
    float64. That needs no change of a global setting, which would affect other threads.
    """
    if not half:
        return Precision(up=TO_DOUBLE)
    backends: Any = torch.backends
    kinds = set(device_types)
    matmul, conv = [], []
    if "cuda" in kinds:
        matmul.append(backends.cuda.matmul)
        conv += [backends.cudnn.conv, backends.cudnn.rnn]
    if "cpu" in kinds:
        matmul.append(backends.mkldnn.matmul)
        conv += [backends.mkldnn.conv, backends.mkldnn.rnn]
    if any(part.fp32_precision in REDUCED for part in matmul):
        return Precision(up=TO_DOUBLE)
    reduced = any(part.fp32_precision in REDUCED for part in conv)
    return Precision(up=TO_FLOAT, is_conv_double=reduced)


@record(frozen=True, kw_only=True)
class FullRun(Outcome):
    """The result of one run in full precision."""

    eager_operators: Sequence[str]
    """Names of operators that ran in their eager dtypes, because they accept no others."""


NOTHING = contextlib.nullcontext()


def run_in_full_precision(
    kept: StateBefore,
    function: Callable[..., object],
    tensors: Sequence[torch.Tensor],
    precision: Precision,
    *,
    inside: contextlib.AbstractContextManager[object] = NOTHING,
) -> FullRun:
    """Run a call in full precision, on copies of its tensors, then restore everything.

    Random numbers are those of the eager run: they are drawn in the dtypes of the eager run. The
    result has full-precision tensors where eager has tensors of half precision. `inside` is a
    context of the run that sees each operator in full precision.

    Raises:
        NoFullPrecision: the call cannot run in full precision. `kept` is restored.
    """
    mode = FullPrecision(precision)

    def run(callee: object, *copies: torch.Tensor) -> object:
        # Compiled callables inside run eagerly: their entries are for the eager dtypes.
        with torch.no_grad(), eagerly(), inside, mode.active():
            return function(callee, *copies)

    try:
        with kept.attributes_restored():
            outcome = kept.run(run, tensors, read=mode.read)
    except Exception as error:
        # Any error may come from a kernel or from code that expects another dtype.
        cause = describe_error(error)
        raise NoFullPrecision(f"it cannot run in full precision: {cause}") from error
    return FullRun(**vars(outcome), eager_operators=tuple(sorted(mode.eager_operators)))


class FullPrecision(OperatorMode):  # type: ignore[no-untyped-call]
    """Runs each operator in full precision.

    A tensor from outside the run, such as a parameter, keeps its values. The run uses a cast copy
    of its storage, so that views of the tensor and writes into it affect each other as in eager
    execution. Writes into tensors that are not cast, such as integer buffers, are real writes: the
    caller restores these tensors, as `StateBefore` does.
    """

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self.eager_operators: set[str] = set()
        """Names of operators that ran in their eager dtypes."""
        self._precision = precision
        self._up = precision.up
        self._shadows: dict[tuple[int, int, int], _Shadow] = {}
        self._by_shadow: dict[int, _Shadow] = {}
        self._desugared: object = None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Return a context in which operators run in full precision, and without autocast."""
        cached = torch.is_autocast_cache_enabled()
        with contextlib.ExitStack() as stack:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            # The code may enable autocast itself. Its cache would keep weights that are not cast.
            torch.set_autocast_cache_enabled(False)
            stack.callback(torch.set_autocast_cache_enabled, cached)
            stack.enter_context(self)
            stack.enter_context(ShowEagerDtypes(self._up, self.read))
            yield

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor's values after the run, in full precision."""
        return tensor if has_parts(tensor) else self.cast(tensor)

    def cast(self, tensor: torch.Tensor, *, is_written: bool = False) -> torch.Tensor:
        """Return a tensor in full precision; the same values as `tensor`, if it is a view."""
        full = self._up.get(tensor.dtype)
        if full is None:
            if is_written and tensor.layout is torch.strided:
                shadow = self._by_shadow.get(storage_id(tensor))
                if shadow is not None:
                    shadow.keep()
            return tensor
        # This mode is active in a torch function. A view of a tensor that is no inference tensor is
        # none either.
        with without_dispatch_modes(), torch.inference_mode(tensor.is_inference()):
            if tensor.layout is not torch.strided:
                return tensor.to(full)
            shadow = self._shadow_of(tensor, full)
            if is_written and shadow.is_part:
                raise NoFullPrecision("it writes into a parameter that shares its memory")
            return shadow.view(tensor, is_written=is_written)

    def _shadow_of(self, tensor: torch.Tensor, full: torch.dtype) -> _Shadow:
        storage = tensor.untyped_storage()
        size = tensor.element_size()
        start, stop = 0, storage.nbytes() // size
        offset = int(tensor.storage_offset())
        own = offset, offset + _extent(tensor)
        # A file may be mapped as one storage. The rest of it is not cast for one parameter.
        if isinstance(tensor, torch.nn.Parameter) and stop > 2 * (own[1] - own[0]):
            start, stop = own
        key = storage_id(tensor), start, stop
        shadow = self._shadows.get(key)
        if shadow is None:
            shadow = _Shadow(tensor, start, stop, full, self._by_shadow)
            self._shadows[key] = shadow
        elif shadow.dtype != tensor.dtype:
            raise NoFullPrecision("it reads the same memory as two dtypes")
        return shadow

    def run(self, func: Operator, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run an operator in full precision."""
        given = list(tensors_in((args, kwargs)))
        if any(has_parts(each) for each in given):
            return self._run_on_parts(func, args, kwargs)
        with without_functions():  # the dtypes here are the real ones
            return self._run(func, args, kwargs, given)

    def _run(
        self,
        func: Operator,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        given: Sequence[torch.Tensor],
    ) -> object:
        name = schema_of(func).name
        if func.namespace not in OF_TORCH:
            if is_composite(func):
                with self:
                    return func.decompose(*args, **kwargs)
            return self._run_in_eager_dtypes(func, args, kwargs)
        if name in REPLACES_STORAGE or torch.Tag.inplace_view in func.tags:
            if any(each.dtype in self._up for each in given):
                raise NoFullPrecision(f"{name} changes the shape of a tensor from outside the run")
            return func(*args, **kwargs)
        if _draws(func, args, kwargs):
            return self._run_in_eager_dtypes(func, args, kwargs, is_named=False)
        if name_with_overload(func) in REINTERPRETS:
            return self._run_in_eager_dtypes(func, args, kwargs)
        return self._run_in_full(func, args, kwargs, given)

    def _run_in_full(
        self,
        func: Operator,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        given: Sequence[torch.Tensor],
    ) -> object:
        asked = asked_dtype(args, kwargs)
        double = self._precision.is_conv_double and _is_conv(schema_of(func).name)

        def up(value: Castable, *, is_written: bool) -> Castable:
            if isinstance(value, torch.dtype):
                return self._up.get(value, value)
            full = self.cast(value, is_written=is_written)
            return full.double() if double and full.dtype is torch.float32 else full

        full_args, full_kwargs = _map_arguments(func, args, kwargs, up)
        if schema_of(func).name in CASTS_HALF and full_args[2:] == [True]:
            full_args[2], asked = False, torch.float32  # the argument is no longer half precision
        try:
            out = func(*full_args, **full_kwargs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            # The operator may support only the eager dtypes, as products of quantized weights do.
            return self._run_in_eager_dtypes(func, args, kwargs)
        if double:
            out = map_tensors(lambda t: t.float() if t.dtype is torch.float64 else t, out)
        return self._label(func, out, given, asked)

    def _run_in_eager_dtypes(
        self,
        func: Operator,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        *,
        is_named: bool = True,
    ) -> object:
        writes: list[tuple[torch.Tensor, torch.Tensor]] = []

        def down(value: Castable, *, is_written: bool) -> Castable:
            if isinstance(value, torch.dtype) or has_parts(value):
                return value
            full = self.cast(value, is_written=is_written)
            dtype = eager_dtype(value)
            if full.dtype == dtype:
                return full
            lower = full.to(dtype)
            if is_written:
                writes.append((full, lower))
            return lower

        lower_args, lower_kwargs = _map_arguments(func, args, kwargs, down)
        out = func(*lower_args, **lower_kwargs)
        if is_named:
            self.eager_operators.add(str(schema_of(func).name))
        for full, lower in writes:
            full.copy_(lower)
        given = {id(lower): full for full, lower in writes}

        def up(value: torch.Tensor) -> torch.Tensor:
            return value if has_parts(value) else self._raise(given.get(id(value), value))

        return map_tensors(up, out)

    def _raise(self, value: torch.Tensor) -> torch.Tensor:
        """Return a result in full precision, with its dtype in eager execution."""
        full = self._up.get(value.dtype)
        return value if full is None else set_eager_dtype(value.to(full), value.dtype)

    def _run_on_parts(
        self, func: Operator, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Let a tensor that contains other tensors run an operator, in full precision if it can."""
        if self._desugared is func:
            self._desugared = None
            return NotImplemented  # so the tensor's own class runs it, while this mode is active
        try:
            self._desugared = func
            with self:
                return func(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except (*READ_FAILURES, AssertionError):  # its code may expect its own dtype
            return self._run_in_eager_dtypes(func, args, kwargs)
        finally:
            self._desugared = None

    def _label(
        self,
        func: Operator,
        out: object,
        given: Sequence[torch.Tensor],
        asked: torch.dtype | None,
    ) -> object:
        """Cast results up, and note which dtypes they would have in eager execution."""
        if not given and asked is None and not isinstance(out, torch.Tensor):
            return out
        would_be = asked or promote(schema_of(func).name, given)

        def note(value: torch.Tensor) -> torch.Tensor:
            if has_parts(value) or any(value is each for each in given):
                return value
            if value.dtype in self._up:
                return self._raise(value)
            if would_be is not None and self._up.get(would_be) == value.dtype:
                set_eager_dtype(value, would_be)
            return value

        return map_tensors(note, out)


class _Shadow:
    """The full-precision copy of a part of a storage, dropped when nothing uses it."""

    def __init__(
        self,
        tensor: torch.Tensor,
        start: int,
        stop: int,
        full: torch.dtype,
        by_shadow: dict[int, _Shadow],
    ) -> None:
        self.dtype = tensor.dtype
        self._tensor, self._full = tensor.detach(), full
        self._start, self._stop = start, stop
        self.is_part = (stop - start) * tensor.element_size() < tensor.untyped_storage().nbytes()
        """Whether tensors that share memory with this one may have another copy."""
        self._by_shadow = by_shadow
        self._alive: Callable[[], torch.UntypedStorage | None] | None = None
        self._kept: torch.UntypedStorage | None = None
        self._last = 0

    def keep(self) -> None:
        """Keep the copy for the rest of the run, because it was written into."""
        self._kept = self._storage()

    def view(self, tensor: torch.Tensor, *, is_written: bool) -> torch.Tensor:
        """Return the view of the copy that corresponds to a view of the storage."""
        storage = self._storage()
        if is_written or storage.nbytes() <= SMALL_BYTES:
            self._kept = storage
        empty = torch.empty(0, dtype=self._full, device=tensor.device)
        offset = tensor.storage_offset() - self._start
        view = empty.set_(storage, offset, tensor.shape, tensor.stride())
        return set_eager_dtype(view, tensor.dtype)

    def _storage(self) -> torch.UntypedStorage:
        if self._kept is not None:
            return self._kept
        if self._alive is not None:
            alive = self._alive()
            if alive is not None:
                return alive
            self._by_shadow.pop(self._last, None)
        flat = self._tensor.as_strided((self._stop - self._start,), (1,), self._start)
        full = flat.to(self._full)
        storage = full.untyped_storage()
        self._alive, self._last = weak_storage(storage), storage_id(full)
        self._by_shadow[self._last] = self
        return storage


Castable = torch.Tensor | torch.dtype
"""An argument of an operator that a run casts, or exchanges for another dtype."""


class _ArgumentCast(Protocol):
    """A function that returns what an operator gets instead of a tensor or dtype."""

    def __call__(self, value: Castable, /, *, is_written: bool) -> Castable:
        """Return what stands for `value`. The operator writes into it if `is_written` is true."""


def _extent(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return 0
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum(int(size - 1) * int(stride) for size, stride in sizes)


def _map_arguments(
    func: Operator, args: tuple[object, ...], kwargs: Mapping[str, object], function: _ArgumentCast
) -> tuple[list[object], dict[str, object]]:
    """Apply a function to an operator's tensors and dtypes; it is told which tensors change."""
    arguments = schema_of(func).arguments
    written = {
        each.name for each in arguments if each.alias_info is not None and each.alias_info.is_write
    }

    def change(name: str, value: object) -> object:
        if isinstance(value, torch.dtype):
            return function(value, is_written=False)
        return map_tensors(lambda tensor: function(tensor, is_written=name in written), value)

    names = [each.name for each in arguments]
    return (
        [change(name, value) for name, value in zip(names, args, strict=False)],
        {name: change(name, value) for name, value in kwargs.items()},
    )


def _draws(func: Operator, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Return whether an operator draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    arguments = schema_of(func).arguments
    values = {each.name: each.default_value for each in arguments if each.has_default_value()}
    values.update(zip([each.name for each in arguments], args, strict=False))
    values.update(kwargs)
    if values.get("train", values.get("training")) is False:
        return False
    return all(values.get(name) != 0 for name in PROBABILITIES)


def _is_conv(name: str) -> bool:
    return any(part in name for part in ("conv", "lstm", "gru", "rnn"))
