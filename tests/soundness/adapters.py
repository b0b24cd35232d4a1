# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that change adapters of `peft` and tiling of `diffusers`, with the real packages.

The rows are skipped if the packages are not installed. `make soundness` has an environment for
these rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from soundness.rows import both, group, linear, row, x


class Small(nn.Module):
    """Two layers that get adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(0), linear(1)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


def lora(**settings: Any) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        **{"r": 2, "target_modules": ["first", "second"], "init_lora_weights": False, **settings}
    )


def adapted(*names: str) -> Any:
    from peft import get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(Small(), lora())
    for name in names:
        model.add_adapter(name, lora())
    return model.eval()


def bare() -> Any:
    """Return the model with adapters injected, without peft's wrapper around it."""
    from peft import inject_adapter_in_model

    torch.manual_seed(0)
    return inject_adapter_in_model(lora(), Small()).eval()


def merged() -> Any:
    model = adapted()
    model.merge_adapter()
    return model


def scale(app: Any) -> None:
    for layer in (app.base_model.model.first, app.base_model.model.second):
        layer.set_scale("default", 3.0)


def injected(app: Any) -> None:
    from peft import inject_adapter_in_model

    inject_adapter_in_model(lora(), app)


def weighted(app: Any) -> None:
    app.add_weighted_adapter(["default", "other"], [0.3, 0.7], "mixed", combination_type="linear")
    app.set_adapter("mixed")


def disabled(app: Any) -> Any:
    context = app.disable_adapter()
    context.__enter__()
    return lambda: context.__exit__(None, None, None)


def deleted(app: Any) -> None:
    app.set_adapter("other")
    app.delete_adapter("default")


def unloaded(app: Any) -> None:
    app.base_model.merge_and_unload()


def replaced(app: Any) -> None:
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    state = {name: tensor + 1 for name, tensor in get_peft_model_state_dict(app).items()}
    set_peft_model_state_dict(app, state)


def vae() -> Any:
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    model = AutoencoderKL(
        block_out_channels=(4, 4),
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        norm_num_groups=2,
        latent_channels=2,
        sample_size=8,
        layers_per_block=1,
        mid_block_add_attention=False,
    )
    return Decoder(model).eval()


class Decoder(nn.Module):
    """The compiled part of an image pipeline."""

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, latents: Any) -> Any:
        return self.vae.decode(latents).sample


def decoded(f: Any) -> Any:
    return f(x(2, 2, 8, 8))


def tiled(app: Any) -> None:
    app.vae.enable_tiling()


def processor(app: Any) -> None:
    app.vae.post_quant_conv = nn.Identity()


GROUPS = (
    group(
        "peft",
        lambda: adapted("other"),
        both("peft set_adapter", lambda app: app.set_adapter("other")),
        both("peft disable_adapter", disabled),
        row("peft disable_adapter_layers", lambda app: app.base_model.disable_adapter_layers()),
        both("peft merge_adapter", lambda app: app.merge_adapter(), same=True),
        row(
            "peft merge and unmerge",
            lambda app: (app.merge_adapter(), app.unmerge_adapter()),
            same=True,
        ),
        row(
            "peft merge of another adapter",
            lambda app: (app.set_adapter("other"), app.merge_adapter()),
        ),
        both("peft set_scale", scale),
        row("peft scale_layer", lambda app: app.base_model.model.first.scale_layer(2.0)),
        row("peft scaling", lambda app: app.base_model.model.first.scaling.update(default=5.0)),
        row("peft add_adapter", lambda app: app.add_adapter("late", lora()), same=True),
        row(
            "peft add_adapter and set it",
            lambda app: (app.add_adapter("late", lora()), app.set_adapter("late")),
        ),
        row("peft delete_adapter", deleted),
        both("peft add_weighted_adapter", weighted),
        row("peft merge_and_unload", unloaded, same=True),
        row("peft unload", lambda app: app.base_model.unload()),
        row("peft set_peft_model_state_dict", replaced),
        row(
            "peft two adapters at once",
            lambda app: app.base_model.set_adapter(["default", "other"]),
        ),
        row(
            "peft requires_grad",
            lambda app: app.set_requires_grad("default", requires_grad=False),
            same=True,
        ),
        needs=("peft",),
    ),
    group(
        "peft merged",
        merged,
        both("peft unmerge_adapter", lambda app: app.unmerge_adapter(), same=True),
        row("peft unmerge and disable", lambda app: (app.unmerge_adapter(), disabled(app))[1]),
        needs=("peft",),
    ),
    group(
        "peft injected",
        bare,
        row("peft enable_adapters of a layer", lambda app: app.first.enable_adapters(False)),
        row("peft scaling of an injected layer", lambda app: app.first.scaling.update(default=5.0)),
        needs=("peft",),
    ),
    group("peft later", Small, both("peft inject_adapter_in_model", injected), needs=("peft",)),
    group(
        "diffusers",
        vae,
        both("diffusers enable_tiling", tiled),
        both("diffusers enable_slicing", lambda app: app.vae.enable_slicing(), same=True),
        row("diffusers post_quant_conv", processor),
        call=decoded,
        needs=("diffusers",),
    ),
)
