# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Models of `diffusers`: denoisers, and the autoencoders around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from served_models.rows import DYNAMIC, ONE, TWO, Row

UNET: dict[str, Any] = {
    "sample_size": 8,
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "cross_attention_dim": 16,
    "attention_head_dim": 4,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
TINY: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 8}


def _make(name: str, settings: dict[str, Any]) -> Callable[[], Any]:
    def make() -> Any:
        import diffusers

        return getattr(diffusers, name)(**settings)

    return make


def _row(  # noqa: PLR0917 - a table
    name: str,
    kind: str,
    settings: dict[str, Any],
    call: Callable[..., Any],
    shapes: str = ONE,
    method: str = "",
) -> Row:
    make = _make(kind, settings)
    return Row(name=name, library="diffusers", make=make, call=call, shapes=shapes, method=method)


def _noise(more: int = 0, channels: int = 4) -> torch.Tensor:
    return torch.randn(2 + more, channels, 8, 8)


def _words(more: int = 0, size: int = 16) -> torch.Tensor:
    return torch.randn(2 + more, 6, size)


def _unet(_: Any, more: int) -> dict[str, Any]:
    return {
        "sample": _noise(more),
        "timestep": torch.tensor(7.0),
        "encoder_hidden_states": _words(more),
        "return_dict": False,
    }


def _unet_of_int(_: Any, more: int) -> dict[str, Any]:
    return {**_unet(_, more), "timestep": 7}


def _sdxl(_: Any, more: int) -> dict[str, Any]:
    added = {"text_embeds": torch.randn(2 + more, 16), "time_ids": torch.rand(2 + more, 6)}
    return {**_unet(_, more), "added_cond_kwargs": added}


def _control(_: Any, more: int) -> dict[str, Any]:
    return {**_unet(_, more), "controlnet_cond": torch.rand(2 + more, 3, 64, 64)}


def _flux(_: Any, more: int) -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(1, 16 + 4 * more, 4),
        "encoder_hidden_states": torch.randn(1, 6, 16),
        "pooled_projections": torch.randn(1, 16),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.rand(16 + 4 * more, 3),
        "txt_ids": torch.zeros(6, 3),
        "return_dict": False,
    }


def _sd3(_: Any, more: int) -> dict[str, Any]:
    return {
        "hidden_states": _noise(more),
        "encoder_hidden_states": _words(more),
        "pooled_projections": torch.randn(2 + more, 16),
        "timestep": torch.full((2 + more,), 7.0),
        "return_dict": False,
    }


def _pixart(_: Any, more: int) -> dict[str, Any]:
    return {
        "hidden_states": _noise(more),
        "encoder_hidden_states": _words(more),
        "timestep": torch.full((2 + more,), 7),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        "return_dict": False,
    }


def _dit(_: Any, more: int) -> dict[str, Any]:
    return {
        "hidden_states": _noise(more),
        "timestep": torch.full((2 + more,), 7),
        "class_labels": torch.arange(2 + more),
        "return_dict": False,
    }


def _video(_: Any, more: int) -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(2 + more, 4, 2, 8, 8),
        "timestep": torch.full((2 + more,), 7),
        "encoder_hidden_states": _words(more),
        "return_dict": False,
    }


def _qwen(_: Any, more: int) -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(1, 16, 4),
        "encoder_hidden_states": torch.randn(1, 6 + more, 16),
        "encoder_hidden_states_mask": torch.ones(1, 6 + more, dtype=torch.bool),
        "timestep": torch.tensor([0.5]),
        "img_shapes": [[(1, 4, 4)]],
        "return_dict": False,
    }


def _latents(_: Any, more: int) -> tuple[Any, ...]:
    return (_noise(more),)


def _latent_video(_: Any, more: int) -> tuple[Any, ...]:
    return (torch.randn(1, 4, 2 + more, 4, 4),)


ROWS = [
    _row("sd unet", "UNet2DConditionModel", UNET, _unet, DYNAMIC),
    _row("sd unet, int timestep", "UNet2DConditionModel", UNET, _unet_of_int),
    _row(
        "sdxl unet",
        "UNet2DConditionModel",
        {
            **UNET,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 4,
            "projection_class_embeddings_input_dim": 40,
        },
        _sdxl,
    ),
    _row(
        "controlnet",
        "ControlNetModel",
        {
            **{key: UNET[key] for key in UNET if key not in {"sample_size", "up_block_types"}},
            "conditioning_embedding_out_channels": (8, 8, 8, 8),
        },
        _control,
    ),
    _row(
        "sd vae decoder",
        "AutoencoderKL",
        {
            "block_out_channels": (8, 16),
            "norm_num_groups": 4,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        _latents,
        TWO,
        "decode",
    ),
    _row(
        "tiny vae decoder",
        "AutoencoderTiny",
        {
            "encoder_block_out_channels": (8, 8),
            "decoder_block_out_channels": (8, 8),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
        _latents,
        DYNAMIC,
        "decode",
    ),
    _row(
        "flux",
        "FluxTransformer2DModel",
        {
            **TINY,
            "in_channels": 4,
            "num_layers": 1,
            "num_single_layers": 1,
            "joint_attention_dim": 16,
            "pooled_projection_dim": 16,
            "axes_dims_rope": (2, 2, 4),
        },
        _flux,
    ),
    _row(
        "sd3",
        "SD3Transformer2DModel",
        {
            **TINY,
            "sample_size": 8,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "joint_attention_dim": 16,
            "caption_projection_dim": 16,
            "pooled_projection_dim": 16,
            "pos_embed_max_size": 8,
        },
        _sd3,
        TWO,
    ),
    _row(
        "pixart",
        "PixArtTransformer2DModel",
        {
            **TINY,
            "sample_size": 8,
            "num_layers": 2,
            "cross_attention_dim": 16,
            "caption_channels": 16,
        },
        _pixart,
    ),
    _row(
        "dit",
        "DiTTransformer2DModel",
        {**TINY, "sample_size": 8, "num_layers": 2, "num_embeds_ada_norm": 10},
        _dit,
    ),
    _row(
        "wan video",
        "WanTransformer3DModel",
        {
            **TINY,
            "in_channels": 4,
            "out_channels": 4,
            "text_dim": 16,
            "freq_dim": 8,
            "ffn_dim": 32,
            "num_layers": 2,
        },
        _video,
    ),
    _row(
        "wan video vae decoder",
        "AutoencoderKLWan",
        {
            "base_dim": 4,
            "z_dim": 4,
            "dim_mult": [1, 1],
            "num_res_blocks": 1,
            "temperal_downsample": [False],
            "latents_mean": [0.0] * 4,
            "latents_std": [1.0] * 4,
        },
        _latent_video,
        ONE,
        "decode",
    ),
    _row(
        "qwen image",
        "QwenImageTransformer2DModel",
        {
            **TINY,
            "in_channels": 4,
            "out_channels": 1,
            "num_layers": 2,
            "joint_attention_dim": 16,
            "axes_dims_rope": (2, 2, 4),
        },
        _qwen,
    ),
]
