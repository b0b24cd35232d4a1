# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""torch's C++ code as its own Python code calls it: `torch._C`. Seen in torch 2.11 to 2.15."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch._C._dynamo import guards
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

# The state of the process and of a thread --------------------------------------------------------

_FLAGS: Mapping[str, Callable[[], bool]] = {
    "cudnn.enabled": torch._C._get_cudnn_enabled,
    "cudnn.benchmark": torch._C._get_cudnn_benchmark,
    "cudnn.deterministic": torch._C._get_cudnn_deterministic,
    "mkldnn.enabled": torch._C._get_mkldnn_enabled,
    "flash_sdp": torch._C._get_flash_sdp_enabled,
    "mem_efficient_sdp": torch._C._get_mem_efficient_sdp_enabled,
    "math_sdp": torch._C._get_math_sdp_enabled,
    "cudnn_sdp": torch._C._get_cudnn_sdp_enabled,
    "mha.fastpath": torch.backends.mha.get_fastpath_enabled,
}
"""Maps each flag that chooses kernels to the function that reads it. The flag for TF32 in cuDNN is
missing, because `_PRECISIONS` covers it."""

_PRECISIONS = (
    *(("generic", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")),
    *(("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
)


def backend_flags() -> str:
    """Return torch's backend flags, which affect the choice of kernels, as text. Takes 4 µs."""
    values = ", ".join(f"{name}={read()}" for name, read in _FLAGS.items())
    precisions = ", ".join(
        f"{backend}.{of}={torch._C._get_fp32_precision_getter(backend, of)}"
        for backend, of in _PRECISIONS
    )
    return f"{values}; fp32 precision {precisions}"


class RecentFlags(Protocol):
    """The backend flags, read again from time to time."""

    text: str
    due_s: float
    """When to read them again, by `now_s`."""
    now_s: Callable[[], float]

    def read(self) -> str:
        """Read them now."""


def state_check(recent: RecentFlags) -> Callable[[], bool]:
    """Return a function that checks whether torch's thread and process state is unchanged.

    The function compares grad mode, autocast, default dtype, number of threads, determinism, matmul
    precision, and the backend flags with those of now. It also returns False if anything intercepts
    torch's functions, for example a default device.
    """
    same = guards.GlobalStateGuard().check
    intercepted = torch._C._len_torch_function_stack
    flags, now_s = recent.read(), recent.now_s

    def check() -> bool:
        if now_s() > recent.due_s:
            recent.read()
        return (
            same() and not intercepted() and forward_ad._current_level < 0 and flags == recent.text
        )

    return check


def is_intercepted() -> bool:
    """Return whether anything intercepts calls to torch's functions.

    Examples are a default device, a mode, a transform of torch.func, forward-mode gradients and
    jit's tracer.
    """
    return bool(
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def without_dispatch_modes() -> AbstractContextManager[None]:
    """In the block, operators run without the active dispatch modes."""
    return cast("AbstractContextManager[None]", torch._C._DisableTorchDispatch())


def without_functions() -> AbstractContextManager[None]:
    """In the block, functions of torch run without `__torch_function__` and function modes."""
    return torch._C.DisableTorchFunction()


is_any_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Returns whether autocast is on for any kind of device. Takes 0.1 µs."""


# Tensors -----------------------------------------------------------------------------------------


def tensor_check(
    tensors: Sequence[torch.Tensor],
    sizes: Sequence[Sequence[int | None]],
    strides: Sequence[Sequence[int | None]],
) -> Callable[..., bool]:
    """Return a function that checks whether its arguments look like `tensors` to compiled code.

    A size or stride that is None is not compared. Runs in C++: 0.2 µs for two tensors.
    """
    check: Callable[..., bool] = guards.TensorGuards(
        *tensors,
        dynamic_dims_sizes=cast("Any", sizes),  # their stubs have another type
        dynamic_dims_strides=cast("Any", strides),
    ).check
    return check


def dispatch_keys(tensor: torch.Tensor) -> frozenset[str]:
    """Return the names of a tensor's dispatch keys: `CPU`, `ADInplaceOrView`, ..."""
    text = str(torch._C._dispatch_keys(tensor))  # DispatchKeySet(CPU, ADInplaceOrView, ...)
    return frozenset(text.partition("(")[2].rstrip(")").split(", "))


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written to in place. An inference tensor has no version."""
    return int(tensor._version)


def storage_id(tensor: torch.Tensor) -> int:
    """Return the address of the storage that a tensor is a view of."""
    return int(tensor.untyped_storage()._cdata)


def weak_storage(storage: torch.UntypedStorage) -> Callable[[], torch.UntypedStorage | None]:
    """Return a function that returns a storage while anything else uses it, or else None."""
    from torch.multiprocessing.reductions import StorageWeakRef

    weak: Any = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
    revive: Any = torch.UntypedStorage._new_with_weak_ptr
    return lambda: cast("torch.UntypedStorage | None", revive(weak.cdata))


TorchDispatchMode = _python_dispatch.TorchDispatchMode
"""Base class of a mode that sees each operator below autograd."""

if TYPE_CHECKING:

    class TensorWithParts(torch.Tensor):
        """A tensor that contains other tensors: the methods that torch expects of its class.

        Not a class of torch, and only for type checkers. Seen in torch 2.11 to 2.15.
        """

        def __tensor_flatten__(self) -> tuple[Sequence[str], object]:
            """Return the names of the attributes that hold its parts, and its metadata."""

        @staticmethod
        def __tensor_unflatten__(
            inner_tensors: Mapping[str, torch.Tensor],
            metadata: object,
            outer_size: Sequence[int],
            outer_stride: Sequence[int],
        ) -> torch.Tensor:
            """Return a tensor that is made of these parts."""

    class MemberInCpp(Protocol):
        """A member of an enumeration in C++, such as `SDPBackend.MATH`, as pybind11 makes them.

        Seen in torch 2.11 to 2.15.
        """

        name: str

        def __int__(self) -> int:
            """Return its value."""


is_traceable_wrapper_subclass = _python_dispatch.is_traceable_wrapper_subclass
"""Returns whether a tensor contains other tensors, and torch can trace through its class."""

is_traceable_wrapper_subclass_type = _python_dispatch.is_traceable_wrapper_subclass_type
"""Returns the same about a class of tensors."""

SOFTMAXES = ("aten::_softmax", "aten::_log_softmax")
"""Operators behind `softmax` and `log_softmax`."""

READS_DATA: object = torch._C._autograd._get_data_attr  # type: ignore[attr-defined]
"""The function of a graph that reads `tensor.data`."""


# Operators ---------------------------------------------------------------------------------------


class Operator(Protocol):
    """An operator as a dispatch mode gets it: `torch.ops.aten.add.Tensor`. Seen in 2.11 to 2.15."""

    _schema: torch.FunctionSchema
    _overloadname: str

    def name(self) -> str:
        """Return its full name, such as `aten::add.Tensor`."""

    @property
    def namespace(self) -> str:
        """The part of the name before `::`."""

    @property
    def tags(self) -> Collection[torch.Tag]:
        """What torch says about the operator, for example that it draws random numbers."""

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        """Run the operator."""

    def decompose(self, *args: object, **kwargs: object) -> object:
        """Run the operators that this one is written in terms of."""

    def has_kernel_for_dispatch_key(self, key: torch._C.DispatchKey, /) -> bool:
        """Return whether the operator has its own code for a dispatch key."""


def schema_of(operator: Operator) -> torch.FunctionSchema:
    """Return the name, arguments and results of an operator (`torch.ops.aten.add.Tensor`)."""
    return operator._schema


def name_with_overload(operator: Operator) -> str:
    """Return the name of an operator's schema with the name of its overload."""
    return f"{operator._schema.name}.{operator._overloadname}"


def is_composite(operator: Operator) -> bool:
    """Return whether an operator is written in terms of others."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(operator.has_kernel_for_dispatch_key(key))


# Dicts -------------------------------------------------------------------------------------------

dict_version: Callable[[dict[object, object]], int] = guards.dict_version
"""Returns a number that changes with each change of a dict. From Python 3.12 on, torch watches each
dict whose version was read."""


def dicts_check(
    dicts: tuple[dict[object, object], ...], kind_of_manager: Any
) -> Callable[[tuple[dict[object, object], ...]], bool]:
    """Return a function of the same dicts that checks whether they are unchanged; 24 ns per dict.

    `kind_of_manager` is Dynamo's class `GuardManagerType`: the C++ that builds the check imports
    its module.
    """
    root = guards.RootGuardManager()
    for number, each in enumerate(dicts):
        manager: Any = root.tuple_getitem_manager(
            number, f"dicts[{number}]", each, kind_of_manager.GUARD_MANAGER
        )
        try:
            manager.add_dict_version_guard(each, ["changed"], None)
        except TypeError:  # 2.11 has no argument for the user's stack
            manager.add_dict_version_guard(each, ["changed"])
    return cast("Callable[[tuple[dict[object, object], ...]], bool]", root.check)


# AOTInductor's C interface -----------------------------------------------------------------------


handles_of: Callable[[list[torch.Tensor]], list[Any]]
"""Returns a new handle, a capsule, for each tensor; whoever gets its pointer owns it."""
handles_of = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors

tensors_of: Callable[[list[Any]], list[torch.Tensor]]
"""Returns the tensors of handles, which are invalid after that."""
tensors_of = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs


# CUDA --------------------------------------------------------------------------------------------


def reader_of_stream(device_index: int) -> Callable[[], int] | None:
    """Return a function that returns the calling thread's stream; None without CUDA in torch.

    `torch.cuda.current_stream` makes an object at each call, which takes about 3 µs on an H100's
    host.
    """
    read = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return None if read is None else functools.partial(read, device_index)


def end_broken_capture(device_index: int, pool: Any) -> None:
    """Tell torch's allocator that a failed capture no longer allocates from a pool.

    Raises:
        RuntimeError: the capture has ended already.
    """
    allocator: Any = torch._C
    allocator._cuda_endAllocateToPool(device_index, pool)
    allocator._cuda_releasePool(device_index, pool)


def has_thread_key(name: str) -> bool:
    """Return whether torch's C++ keeps an object of this name for the calling thread."""
    of_threads: Any = torch._C
    return bool(of_threads._is_key_in_tls(name))
