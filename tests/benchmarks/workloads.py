# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The models for the comparison of starts, with their warm-up inputs.

They use one thread, static shapes, and float32 unless the title names another type. All weights
except MiniLM's come from a seed, so nothing needs to be downloaded. The results do not depend on
the weights. As in a real model, the classes are at the top level of a module, where pickle finds
them.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from torch.utils._pytree import tree_map

SEED = 0


@dataclass(frozen=True, kw_only=True)
class Example:
    """One call of a model. No other example of the workload has its shapes."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model and its inputs."""

    name: str
    title: str
    """For the picture and the tables."""
    build: Callable[[int], nn.Module]
    """Returns the eager model in evaluation mode, from a seed."""
    inputs: Callable[[], Sequence[Example]]
    """Returns the examples, largest first."""
    tensor: Callable[[Any], torch.Tensor] = lambda result: result
    """Picks the tensor to compare from the model's result."""
    libraries: tuple[str, ...] = ()
    """Modules to import, besides torch, before the model is built."""
    device: str = "cpu"
    arguments: Mapping[str, Any] = field(default_factory=lambda: {"dynamic": False})
    """Arguments of torch.compile, for every system that compiles."""
    blocks: tuple[str, ...] = ()
    """Names of module classes to compile in place, instead of the whole model."""
    tolerance: float = 1e-3
    """Largest allowed difference from the eager model."""

    @property
    def captures(self) -> bool:
        """Whether CUDA graphs are captured, which takes more passes than compiling does."""
        return self.device == "cuda" and self.arguments.get("mode") == "reduce-overhead"

    def import_libraries(self) -> None:
        for name in self.libraries:
            importlib.import_module(name)

    def place_module(self) -> nn.Module:
        """Return the eager model, on the device."""
        module = self.build(SEED).to(self.device)
        self.wait()
        return module

    def compiled_by_torch(self, module: nn.Module) -> Any:
        if not self.blocks:
            return torch.compile(module, **self.arguments)
        for block in module.modules():
            if type(block).__name__ in self.blocks:
                block.compile(**self.arguments)
        return module

    def place_example(self, example: Example) -> Example:
        """Return the example with its tensors on the device."""

        def place(value: Any) -> Any:
            return tree_map(lambda x: x.to(self.device) if torch.is_tensor(x) else x, value)

        return replace(example, args=place(example.args), kwargs=place(example.kwargs))

    def wait(self) -> None:
        """Wait for the device: a call returns before its kernels are done."""
        if self.device == "cuda":
            torch.cuda.synchronize()


# MiniLM: a real model with its own weights ----------------------------------------------------


def build_minilm(seed: int) -> nn.Module:
    from deployments.text_embedder.model import load_model

    return load_model()


def minilm_inputs() -> list[Example]:
    generator = torch.Generator().manual_seed(SEED)
    return [
        Example(
            name=f"{batch}x{length}",
            kwargs={
                "input_ids": torch.randint(1000, 20_000, (batch, length), generator=generator),
                "attention_mask": torch.ones(batch, length, dtype=torch.int64),
            },
        )
        for length, batch in itertools.product((128, 64, 16), (8, 1))
    ]


# ResNet-152: many kernels ---------------------------------------------------------------------

SIDE = 128


def build_resnet152(seed: int) -> nn.Module:
    """Return the model of deployments/image_classifier, whose module would also import Ray."""
    from transformers import ResNetConfig, ResNetForImageClassification
    from transformers.models.resnet.modeling_resnet import ResNetBottleNeckLayer

    torch.manual_seed(seed)
    config = ResNetConfig(depths=[3, 8, 36, 3], layer_type="bottleneck", num_labels=1000)
    model = ResNetForImageClassification(config).eval()
    # Untrained, 50 residual blocks add up to logits of 10⁷: damp them, and spread the rest.
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, ResNetBottleNeckLayer):
                module.layer[-1].normalization.weight.fill_(0.1)
        model.classifier[-1].weight.mul_(20)
    return model


def resnet152_inputs() -> list[Example]:
    return [images(8), images(1)]


def images(batch: int) -> Example:
    generator = torch.Generator().manual_seed(SEED)
    pixels = torch.rand(batch, 3, SIDE, SIDE, generator=generator) * 2 - 1
    return Example(name=f"{batch}x3x{SIDE}x{SIDE}", kwargs={"pixel_values": pixels})


# 64 equal small layers, as in PyTorch's recipe for regional compilation -----------------------

RECIPE_WIDTH = 32
RECIPE_LAYERS = 64


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(RECIPE_WIDTH, RECIPE_WIDTH)
        self.second = nn.Linear(RECIPE_WIDTH, RECIPE_WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(RECIPE_LAYERS))
        self.head = nn.Linear(RECIPE_WIDTH, RECIPE_WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build_recipe64(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = Stack().eval()
    with torch.no_grad():
        # With torch's default initial weights, 128 such layers map every input to the same output.
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight, gain=2**0.5)
        model.head.weight.div_(model(torch.rand(8, RECIPE_WIDTH)).std())
    return model


def recipe64_inputs() -> list[Example]:
    generator = torch.Generator().manual_seed(SEED)
    return [
        Example(name=f"batch {batch}", args=(torch.rand(batch, RECIPE_WIDTH, generator=generator),))
        for batch in (8, 1)
    ]


# A decoder of 24 layers, as it is at prefill --------------------------------------------------

DECODER_WIDTH, DECODER_HEADS, DECODER_LAYERS, VOCABULARY = 256, 4, 24, 2048


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(DECODER_WIDTH)
        self.query_key_value = nn.Linear(DECODER_WIDTH, 3 * DECODER_WIDTH)
        self.out = nn.Linear(DECODER_WIDTH, DECODER_WIDTH)
        self.norm_mlp = nn.LayerNorm(DECODER_WIDTH)
        self.up = nn.Linear(DECODER_WIDTH, 4 * DECODER_WIDTH)
        self.down = nn.Linear(4 * DECODER_WIDTH, DECODER_WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm_attention(x))
        return x + self.down(gelu(self.up(self.norm_mlp(x))))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(x).view(batch, length, 3, DECODER_HEADS, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(attended.transpose(1, 2).reshape(batch, length, width))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, DECODER_WIDTH)
        self.positions = nn.Embedding(512, DECODER_WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DECODER_LAYERS))
        self.norm = nn.LayerNorm(DECODER_WIDTH)
        self.head = nn.Linear(DECODER_WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build_decoder24(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Decoder().eval()


def decoder24_inputs() -> list[Example]:
    generator = torch.Generator().manual_seed(SEED)
    return [
        Example(
            name=f"prefill {length}",
            args=(torch.randint(0, VOCABULARY, (1, length), generator=generator),),
        )
        for length in (128, 32)
    ]


# Large models of transformers in bfloat16 ------------------------------------------------------

BFLOAT16_TOLERANCE = 0.2
"""Both sides round to 8 bits in every layer. The logits spread by 0.6 to 0.8, so a wrong result is
off by several units."""
SPREAD = 0.02
"""Standard deviation of the initial weights in all of these models."""


def build_vit_large(seed: int) -> nn.Module:
    return _vit(seed, "cuda", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16)


def build_vit_tiny(seed: int) -> nn.Module:
    return _vit(seed, "cpu", hidden_size=64, num_hidden_layers=2, num_attention_heads=2)


def _vit(seed: int, device: str, *, hidden_size: int, **sizes: int) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        initializer_range=SPREAD,
        num_labels=1000,
        **sizes,
    )
    return _in_bfloat16(seed, device, lambda: ViTForImageClassification(config))


def _in_bfloat16(seed: int, device: str, build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(seed)
    with torch.device(device):  # a billion random numbers take a CPU half a minute
        return build().to(torch.bfloat16).eval()


def vit_inputs(batch: int) -> list[Example]:
    generator = torch.Generator().manual_seed(SEED)
    pixels = torch.rand(batch, 3, 224, 224, generator=generator) * 2 - 1
    return [Example(name=f"batch {batch}", kwargs={"pixel_values": pixels.bfloat16()})]


def build_whisper_large(seed: int) -> nn.Module:
    return _whisper(seed, "cuda", width=1280, layers=32, heads=20, mel_bins=128)


def build_whisper_tiny(seed: int) -> nn.Module:
    return _whisper(seed, "cpu", width=64, layers=2, heads=2, mel_bins=128)


def _whisper(
    seed: int, device: str, *, width: int, layers: int, heads: int, mel_bins: int
) -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        num_mel_bins=mel_bins,
        init_std=SPREAD,
        use_cache=False,
    )
    return _in_bfloat16(seed, device, lambda: WhisperForConditionalGeneration(config))


def whisper_inputs() -> list[Example]:
    generator = torch.Generator().manual_seed(SEED)
    return [
        Example(
            name="30 s of audio",
            kwargs={
                "input_features": torch.randn(1, 128, 3000, generator=generator).bfloat16(),
                "decoder_input_ids": torch.randint(0, 50_000, (1, 4), generator=generator),
            },
        )
    ]


# Small ones --------------------------------------------------------------------------------

TINY_WIDTH = 16


def build_tiny(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    width = TINY_WIDTH
    return nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, 4), nn.Softmax(-1)).eval()


def tiny_inputs() -> list[Example]:
    generator = torch.Generator().manual_seed(SEED)
    return [
        Example(name=f"batch {batch}", args=(torch.rand(batch, TINY_WIDTH, generator=generator),))
        for batch in (8, 1)
    ]


REDUCE_OVERHEAD = {"mode": "reduce-overhead", "fullgraph": True, "dynamic": False}

MINILM = Workload(
    name="minilm",
    title="MiniLM, 6 inputs",
    build=build_minilm,
    inputs=minilm_inputs,
    tensor=lambda result: result.last_hidden_state,
    libraries=("transformers",),
)
RESNET152 = Workload(
    name="resnet152",
    title="ResNet-152, 2 inputs",
    build=build_resnet152,
    inputs=resnet152_inputs,
    tensor=lambda result: result.logits,
    libraries=("transformers",),
)
RECIPE64 = Workload(
    name="recipe64",
    title="64-layer recipe, 2 inputs",
    build=build_recipe64,
    inputs=recipe64_inputs,
)
DECODER24 = Workload(
    name="decoder24",
    title="24-layer decoder, 2 inputs",
    build=build_decoder24,
    inputs=decoder24_inputs,
)
REGIONS = "64-layer recipe, compiled by region, 2 inputs"
VIT = Workload(
    name="vit_tiny",
    title="a tiny ViT, bfloat16",
    build=build_vit_tiny,
    inputs=lambda: vit_inputs(2),
    tensor=lambda result: result.logits.float(),
    libraries=("transformers",),
    tolerance=BFLOAT16_TOLERANCE,
)
WHISPER = replace(
    VIT,
    name="whisper_tiny",
    title="a tiny Whisper, bfloat16",
    build=build_whisper_tiny,
    inputs=whisper_inputs,
)


def on_a_gpu(
    of: Workload, name: str, title: str, *, graphs: bool = True, **changed: Any
) -> Workload:
    """Return a workload on a GPU, whose calls are captured as CUDA graphs unless told otherwise."""
    arguments = REDUCE_OVERHEAD if graphs else of.arguments
    return replace(
        of, name=f"{name}_gpu", title=title, device="cuda", arguments=arguments, **changed
    )


ALL = {
    workload.name: workload
    for workload in (
        *(MINILM, RESNET152, RECIPE64, DECODER24),
        replace(RECIPE64, name="recipe64_regions", title=REGIONS, blocks=("Layer",)),
        on_a_gpu(
            RESNET152,
            "resnet152",
            "ResNet-152, batch 32, CUDA graphs",
            inputs=lambda: [images(32)],
        ),
        on_a_gpu(RECIPE64, "recipe64", "64-layer recipe, 2 inputs on a GPU", graphs=False),
        on_a_gpu(
            RECIPE64, "recipe64_regions", f"{REGIONS} on a GPU", graphs=False, blocks=("Layer",)
        ),
        on_a_gpu(DECODER24, "decoder24", "24-layer decoder, 2 inputs, CUDA graphs"),
        on_a_gpu(
            VIT,
            "vit_large",
            "ViT-L, bfloat16, batch 32, CUDA graphs",
            build=build_vit_large,
            inputs=lambda: vit_inputs(32),
        ),
        on_a_gpu(
            WHISPER,
            "whisper_large",
            "Whisper of Whisper-large's size, bfloat16, 30 s of audio, CUDA graphs",
            build=build_whisper_large,
        ),
        *(VIT, WHISPER),
        Workload(name="tiny", title="tiny, 2 inputs", build=build_tiny, inputs=tiny_inputs),
    )
}

COMPARED = ("minilm", "resnet152", "recipe64", "decoder24")
"""The workloads that bench_startup.py runs by default. The others are for GPUs and for tests."""
