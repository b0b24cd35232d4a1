# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Checks before each call: tensors, dicts, process and thread state.

Most of these checks run in torch's C++ code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C._dynamo import guards  # private; 2.0 to 2.15

from serve_warm.precompile.facts.names import Free
from serve_warm.precompile.facts.no_entry import NoEntry

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
