# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A model's active adapters, which must not change while a sequence is being generated.

A sequence's cache holds keys and values that were computed with one adapter. If a different
adapter were active in later steps, the logits would match neither adapter.
"""

from __future__ import annotations

from typing import Any

from serve_warm.errors import GenerationRefused

Active = tuple[Any, ...]
"""Names of a model's active adapters and merged adapters. Empty if the model has no adapters."""


class Adapters:
    """Finds the active adapters of a model, using one of the adapter layers that `peft` created."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._layer: Any = None

    def find(self) -> Active:
        """Find and read an adapter layer of the model; adapters can be added at any time."""
        layers = (part for part in self._model.modules() if _has_adapters(part))
        self._layer = next(layers, None)
        return self.read()

    def read(self) -> Active:
        """Return the active adapters of the layer that `find` found. Takes about a microsecond."""
        layer = self._layer
        if layer is None:
            return ()
        active = () if layer.disable_adapters else tuple(layer.active_adapters)
        return (*active, *(("merged", name) for name in layer.merged_adapters))

    def check(self, began: Active) -> None:
        """Raise `GenerationRefused` if the active adapters are no longer those in `began`."""
        now = self.read()
        if now != began:
            raise GenerationRefused(
                f"The adapter changed from {_name(began)} to {_name(now)} during this generation, "
                "but the cache was made with the first adapter."
            )


def _has_adapters(part: Any) -> bool:
    # In transformers models, these names are methods. In peft layers, they are properties.
    names = ("active_adapters", "disable_adapters")
    of_class = all(isinstance(getattr(type(part), name, None), property) for name in names)
    return of_class and hasattr(part, "merged_adapters")


def _name(active: Active) -> str:
    return (
        " and ".join(
            f"{each!r}" if isinstance(each, str) else f"merged {each[1]!r}" for each in active
        )
        or "none"
    )
