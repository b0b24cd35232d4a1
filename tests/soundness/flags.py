# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that change settings of the process, with forwards that read these settings and without.

A setting that no kernel on a CPU reads does not change numbers, unless a forward reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from soundness.rows import BOTH, both, calling, grad_on, group, numbered, x


class Attention(nn.Module):
    """Attention and a product, as in a layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(x(4, 4))

    def forward(self, x: Any) -> Any:
        query = x.view(1, 1, 4, 4)
        out = functional.scaled_dot_product_attention(query, query, query)
        return out.view(4, 4) @ self.weight + torch.ones(4).to(x.dtype).sum()


class Made(nn.Module):
    """Makes a tensor of the default dtype."""

    def forward(self, x: Any) -> Any:
        return torch.ones(4, 4) + x @ x


def setting(owner: Any, name: str, value: Any) -> Callable[[Any], Any]:
    """Return a change of a computed attribute, with a function that undoes it."""

    def change(app: Any) -> Callable[[], None]:
        before = getattr(owner, name)
        setattr(owner, name, value)
        return lambda: setattr(owner, name, before)

    return change


backends = torch.backends
cuda, mha = backends.cuda, backends.mha

CHANGES: dict[str, tuple[Any, Callable[[], bool]]] = {
    "cudnn.enabled": (
        setting(backends.cudnn, "enabled", value=False),
        lambda: not torch.backends.cudnn.enabled,
    ),
    "cudnn.benchmark": (
        setting(backends.cudnn, "benchmark", value=True),
        lambda: torch.backends.cudnn.benchmark,
    ),
    "cudnn.deterministic": (
        setting(backends.cudnn, "deterministic", value=True),
        lambda: torch.backends.cudnn.deterministic,
    ),
    "cudnn.allow_tf32": (
        setting(backends.cudnn, "allow_tf32", value=False),
        lambda: not torch.backends.cudnn.allow_tf32,
    ),
    "matmul.allow_tf32": (
        setting(cuda.matmul, "allow_tf32", value=True),
        lambda: torch.backends.cuda.matmul.allow_tf32,
    ),
    "matmul.allow_fp16_reduced_precision_reduction": (
        setting(cuda.matmul, "allow_fp16_reduced_precision_reduction", value=False),
        lambda: not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    ),
    "mkldnn.enabled": (
        setting(backends.mkldnn, "enabled", value=False),
        lambda: not torch.backends.mkldnn.enabled,
    ),
    "flash SDP": (
        calling(cuda.enable_flash_sdp, False, cuda.flash_sdp_enabled),
        lambda: not torch.backends.cuda.flash_sdp_enabled(),
    ),
    "math SDP": (
        calling(cuda.enable_math_sdp, False, cuda.math_sdp_enabled),
        lambda: not torch.backends.cuda.math_sdp_enabled(),
    ),
    "memory efficient SDP": (
        calling(cuda.enable_mem_efficient_sdp, False, cuda.mem_efficient_sdp_enabled),
        lambda: not torch.backends.cuda.mem_efficient_sdp_enabled(),
    ),
    "fast path of attention": (
        calling(mha.set_fastpath_enabled, False, mha.get_fastpath_enabled),
        lambda: not torch.backends.mha.get_fastpath_enabled(),
    ),
    "fp32_precision": (
        setting(backends, "fp32_precision", "ieee"),
        lambda: torch.backends.fp32_precision == "ieee",
    ),
    "float32 matmul precision": (
        calling(torch.set_float32_matmul_precision, "high", torch.get_float32_matmul_precision),
        lambda: torch.get_float32_matmul_precision() == "high",
    ),
    "default dtype": (
        calling(torch.set_default_dtype, torch.float64, torch.get_default_dtype),
        lambda: torch.get_default_dtype() == torch.float64,
    ),
    "threads": (
        calling(torch.set_num_threads, 2, torch.get_num_threads),
        lambda: torch.get_num_threads() == 2,
    ),
    "deterministic algorithms": (
        calling(
            torch.use_deterministic_algorithms, True, torch.are_deterministic_algorithms_enabled
        ),
        torch.are_deterministic_algorithms_enabled,
    ),
    "cache of autocast": (
        calling(torch.set_autocast_cache_enabled, False, torch.is_autocast_cache_enabled),
        lambda: not torch.is_autocast_cache_enabled(),
    ),
    "denormals": (calling(torch.set_flush_denormal, True, lambda: False), lambda: False),
}
"""A change of each setting, and a function that returns whether the setting is changed."""

CONTEXTS: dict[str, tuple[Any, Callable[[], bool], bool]] = {
    "autocast": (
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.is_autocast_enabled("cpu"),
        False,
    ),
    "autocast to float16": (
        lambda: torch.autocast("cpu", dtype=torch.float16),
        lambda: torch.is_autocast_enabled("cpu"),
        False,
    ),
    "grad mode": (grad_on, torch.is_grad_enabled, True),
    "inference mode": (
        lambda: torch.inference_mode(mode=False),
        lambda: not torch.is_inference_mode_enabled(),
        True,
    ),
    "SDP kernel": (
        lambda: nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
        lambda: not torch.backends.cuda.flash_sdp_enabled(),
        True,
    ),
    "anomaly detection": (torch.autograd.detect_anomaly, torch.is_anomaly_enabled, True),
}
"""A context around the call, a function that returns whether the context is active, and whether the
numbers stay the same."""

GROUPS = (
    group(
        "settings of the process",
        Attention,
        *(both(f"setting {name}", change, same=True) for name, (change, _) in CHANGES.items()),
        *(
            both(f"under {name}", around=context, same=same)
            for name, (context, _, same) in CONTEXTS.items()
        ),
    ),
    group(
        "default dtype of a new tensor",
        Made,
        both("default dtype that a forward takes", CHANGES["default dtype"][0]),
    ),
    *(
        numbered(
            f"forward that reads {name}",
            lambda self, is_changed=is_changed: 3 if is_changed() else 2,
            change,
            kind="change",
            when=BOTH,
        )
        for name, (change, is_changed) in CHANGES.items()
        if name != "denormals"
    ),
    *(
        numbered(
            f"forward that reads {name}",
            lambda self, is_changed=is_changed: 3 if is_changed() else 2,
            around=context,
            kind="change",
            when=BOTH,
        )
        for name, (context, is_changed, _) in CONTEXTS.items()
        if name not in CHANGES
    ),
)
