# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A row of the table of models: a tiny model with random weights, and its calls."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

ONE = "one"
TWO = "two"
"""Two static shapes: each has an entry."""
DYNAMIC = "dynamic"
"""`dynamic=True`: one entry, made for the first shape, also serves the second shape."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model of the table."""

    name: str
    library: str
    make: Callable[[], Any]
    """Returns the model."""
    call: Callable[[Any, int], Mapping[str, Any] | tuple[Any, ...]]
    """Takes the model, and 0 for the first shape or 1 for the second one. Returns the arguments of
    a call."""
    shapes: str = ONE
    method: str = ""
    """The method to compile instead of the model."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shapes to call with."""
        return (0,) if self.shapes == ONE else (0, 1)


CONFIGURATIONS = {"Gemma3": "Gemma3Text"}
"""Names of configurations that differ from the names of their models."""


def transformers_model(name: str, settings: Mapping[str, Any], suffix: str = "Model") -> Any:
    """Return a function that makes a `transformers` model, whose class begins with `name`."""

    def make() -> Any:
        import transformers

        kind = CONFIGURATIONS.get(name, name)
        config = getattr(transformers, f"{kind}Config")(**settings)
        return getattr(transformers, f"{name}{suffix}")(config)

    return make


def transformers_row(  # noqa: PLR0917 - a table
    name: str,
    kind: str,
    settings: Mapping[str, Any],
    call: Callable[..., Any],
    suffix: str = "Model",
    shapes: str = ONE,
) -> Row:
    """Return the row of a `transformers` model."""
    make = transformers_model(kind, settings, suffix)
    return Row(name=name, library="transformers", make=make, call=call, shapes=shapes)


def ids(more: int = 0) -> torch.Tensor:
    """Return token ids of two sequences."""
    return torch.randint(3, 60, (2, 8 + 4 * more))


def masked(_: Any, more: int) -> dict[str, Any]:
    """Return the inputs of an encoder."""
    tokens = ids(more)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def no_cache(_: Any, more: int) -> dict[str, Any]:
    """Return the inputs of a decoder that keeps no cache."""
    return {"input_ids": ids(more), "use_cache": False}


def encoder_decoder(_: Any, more: int) -> dict[str, Any]:
    """Return the inputs of an encoder and a decoder."""
    tokens = ids(more)
    return {"input_ids": tokens, "decoder_input_ids": tokens[:, :4], "use_cache": False}


def image(_: Any, more: int) -> dict[str, Any]:
    """Return the inputs of a vision model: a batch of 2, or 3."""
    return {"pixel_values": torch.rand(2 + more, 3, 32, 32)}


def waveform(_: Any, more: int) -> dict[str, Any]:
    """Return the inputs of an audio model."""
    return {"input_values": torch.rand(2, 400 + 80 * more)}


def declare_operators() -> list[torch.library.Library]:
    """Declare torchvision's operators if torchvision was built for CUDA and torch was not.

    A package index may have a CPU build of torch, but not of torchvision. timm and open_clip import
    torchvision, and this import fails if its operators are not declared. No row calls them.
    """
    try:
        version = importlib.metadata.version("torchvision")
    except importlib.metadata.PackageNotFoundError:
        return []
    if torch.version.cuda is not None or version.endswith("+cpu"):
        return []
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return [library]


DECLARED = declare_operators()
"""Kept, because the declarations end when this object is deleted."""
