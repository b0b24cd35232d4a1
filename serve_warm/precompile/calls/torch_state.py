# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Checks before each call: tensors, dicts, process and thread state.

Most of these checks run in torch's C++ code.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C._dynamo import guards  # private; 2.0 to 2.15

from serve_warm.precompile.facts.names import Free
from serve_warm.precompile.facts.table import NoEntry

FP32_PRECISIONS = (
    *(("generic", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")),
    *(("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
)


def tensor_check(
    tensors: Sequence[Any], *, free: Mapping[int, Free] | None = None
) -> Callable[..., bool]:
    """Return a function that checks whether its arguments look like `tensors` to compiled code.

    Compares type, dtype, device, sizes, strides, `requires_grad` and dispatch keys (inference mode,
    autocast, functorch). The check fails if a tensor is passed twice. Runs in C++: 0.2 µs for two
    tensors. `free` maps a tensor's index to the dimensions whose size or stride is not compared.
    """
    sizes: Any = [list(tensor.shape) for tensor in tensors]  # its stub has another type
    strides: Any = [list(tensor.stride()) for tensor in tensors]
    for number, (any_size, any_stride) in (free or {}).items():
        for dim in any_size:
            sizes[number][dim] = None
        for dim in any_stride:
            strides[number][dim] = None
    check: Callable[..., bool] = guards.TensorGuards(
        *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    ).check
    return check


WATCHES_DICTS = sys.version_info >= (3, 12)
"""Whether torch watches dicts: true from Python 3.12 on.

Python 3.12 deprecates the version numbers of dicts. torch's watch misses one kind of change. If an
empty dict is filled from another dict, CPython reports a separate event (`PyDict_EVENT_CLONED`),
which torch ignores. So the versions in this module also say whether a dict is empty.
"""


def dict_version(mapping: dict[Any, Any]) -> int:
    """Return a dict's version, a number that changes with each change of the dict."""
    version = guards.dict_version(mapping)  # before the look at the content
    return 2 * version + (not mapping) if WATCHES_DICTS else version


def dict_versions(dicts: Sequence[dict[Any, Any]]) -> list[int]:
    """Return the version of each of these dicts."""
    versions = list(map(guards.dict_version, dicts))
    if WATCHES_DICTS:
        return [2 * v + e for v, e in zip(versions, map(operator.not_, dicts), strict=True)]
    return versions


def empty_ones(
    dicts: Sequence[dict[Any, Any]], versions: Sequence[int]
) -> tuple[dict[Any, Any], ...]:
    """Return the dicts that torch watches and that were empty when these versions were read."""
    pairs = zip(dicts, versions, strict=True)
    return tuple(each for each, version in pairs if WATCHES_DICTS and version % 2)


class DictChanges:
    """Detects, with a single check, changes to all dicts whose versions were read.

    From Python 3.12 on, torch watches each dict whose version it has read. The changes to all
    watched dicts get consecutive numbers. A new dict gets the next number. So if the version of a
    new dict directly follows the version of the previous new dict, no watched dict has changed in
    the meantime. The exception is an empty dict that is filled from another dict (`WATCHES_DICTS`).
    Takes 0.2 µs.
    """

    def __init__(self, read: Callable[[dict[Any, Any]], int]) -> None:
        """`read` returns torch's version of a dict."""
        self._read = read
        self._version = -2  # the version before any that exists
        self._numbers = itertools.count()
        self._number = -1

    def number(self) -> int:
        """Return a number; two calls return the same number only if no dict changed between them.

        Any thread may call this. If several threads call this at the same time, they can get
        different numbers although no dict has changed.
        """
        version = self._read({})
        if version == self._version + 1:
            number = self._number
        else:
            # Each number is stored once. So a thread that stores it late cannot bring back a number
            # that an earlier call has returned.
            number = self._number = next(self._numbers)
        # The order matters: a thread that sees this version also sees the number.
        self._version = version
        return number


def count_changes(read: Callable[[dict[Any, Any]], int]) -> Callable[[], int] | None:
    """Return `DictChanges.number`; None if changes to dicts do not get consecutive numbers.

    `read` returns torch's version of a dict.
    """
    if not (WATCHES_DICTS and getattr(sys, "_is_gil_enabled", lambda: True)()):
        return None
    number, watched = DictChanges(read).number, {"changes": 0}
    read(watched)
    for attempt in range(3):  # another thread may change a watched dict meanwhile
        before, same = number(), number()
        watched["changes"] = attempt + 1
        if before == same:
            return number if number() != same else None
    return None


number_of_changes = count_changes(guards.dict_version)
"""`DictChanges.number` of this process; None if every dict must be compared."""


def dicts_check(dicts: Sequence[dict[Any, Any]]) -> Callable[[], bool]:
    """Return a function that checks whether all these dicts are still unchanged.

    Runs in C++: 24 ns per dict. At level 3, without Dynamo, the function compares the versions one
    by one, which takes four times as long (2.13).
    """
    if not dicts:
        return lambda: True
    held = tuple(dicts)
    # The C++ that builds the check imports this module.
    python_half: Any = sys.modules.get("torch._dynamo.guards")
    if not hasattr(python_half, "GuardManagerType"):
        versions = dict_versions(held)
        return lambda: dict_versions(held) == versions
    GuardManagerType: Any = python_half.GuardManagerType  # noqa: N806 - a class
    root = guards.RootGuardManager()
    for number, each in enumerate(held):
        one = root.tuple_getitem_manager(
            number, f"dicts[{number}]", each, GuardManagerType.GUARD_MANAGER
        )
        _add_version_guard(one, each)
    check, empty = root.check, empty_ones(held, dict_versions(held))
    return lambda: check(held) and not any(empty)


def _add_version_guard(manager: Any, mapping: dict[Any, Any]) -> None:
    try:
        manager.add_dict_version_guard(mapping, ["changed"], None)
    except TypeError:  # 2.11 has no argument for the user's stack
        manager.add_dict_version_guard(mapping, ["changed"])


def backend_flags() -> str:
    """Return torch's backend flags, which affect the choice of kernels, as text.

    Any code can change these flags while a process is running. Reading the flags takes 4 µs.
    """
    global _recent_flags  # noqa: PLW0603 - flags of the process
    values = ", ".join(f"{name}={read()}" for name, read in BACKEND_FLAGS.items())
    precisions = ", ".join(
        f"{backend}.{of}={torch._C._get_fp32_precision_getter(backend, of)}"
        for backend, of in FP32_PRECISIONS
    )
    _recent_flags = f"{values}; fp32 precision {precisions}"
    return _recent_flags


_recent_flags = ""
"""The flags as text, from the last call of `backend_flags`."""


BACKEND_FLAGS: Mapping[str, Callable[[], Any]] = {
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
"""Maps each flag to the function that reads it (private, torch 2.5 to 2.15). The flag for TF32 in
cuDNN is missing here, because `FP32_PRECISIONS` covers it."""


def state_check() -> Callable[[], bool]:
    """Return a function that checks whether torch's thread and process state is unchanged.

    The function compares grad mode, autocast, default dtype, number of threads, determinism and
    matmul precision. It also returns False if anything intercepts torch's functions, for example a
    default device.
    """
    from torch.autograd import forward_ad

    same = guards.GlobalStateGuard().check
    flags = backend_flags()
    intercepted = torch._C._len_torch_function_stack

    def check() -> bool:
        # Do not read the flags here. `_recent_flags` is at most a second old: the watch on the
        # callable's facts reads the flags.
        return (
            same()
            and not intercepted()
            and forward_ad._current_level < 0
            and flags == _recent_flags
        )

    return check


def is_intercepted() -> bool:
    """Return whether anything intercepts calls to torch's functions.

    Examples are a default device, a mode, a transform of torch.func, forward-mode gradients and
    jit's tracer.
    """
    from torch.autograd import forward_ad

    return bool(
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def refuse_unusual(tensor: Any) -> None:
    """Raise `NoEntry` unless a tensor is an ordinary dense tensor.

    Sparse, nested and quantized tensors, lazy views and zeros, and tensors wrapped by a transform
    each have a dispatch key that ordinary tensors do not have.
    """
    kind = tensor.device.type.upper()
    text = str(torch._C._dispatch_keys(tensor))  # DispatchKeySet(CPU, ADInplaceOrView, ...)
    keys = set(text.partition("(")[2].rstrip(")").split(", "))
    more = keys - {kind, "ADInplaceOrView", f"Autograd{kind}", f"Autocast{kind}"}
    if more or kind not in keys:
        raise NoEntry(f"unsupported kind of tensor: {', '.join(sorted(more or keys))}")
