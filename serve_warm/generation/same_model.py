# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The properties of a model that must stay the same while its compiled steps are used.

Two kinds exist. The steps were made for one form of attention, one window and one dtype, so these
never change. The active adapters may change between sequences, but not during one: a sequence's
cache holds keys and values that were computed with one adapter. If a different adapter were active
in later steps, the logits would match neither adapter.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from serve_warm.errors import GenerationRefused

Active = tuple[tuple[bool, tuple[str, ...], tuple[str, ...]], ...]
"""For each adapter layer: whether it is disabled, its active adapters, and its merged adapters."""

SETTINGS = ("_attn_implementation", "sliding_window")
"""Settings of a model's configuration that decide which masks and cache its layers expect."""

_states = operator.attrgetter("disable_adapters", "active_adapters", "merged_adapters")


class SameModel:
    """Refuses to use a model's steps after a change of the model that the steps cannot follow.

    Call `begin` when a sequence begins, and `read` before each later step.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._config = model.config.get_text_config(decoder=True)
        self._made_for = self._settings()
        self._dtype = model.dtype
        self._layers: Sequence[Any] = ()
        """The adapter layers that `peft` created."""
        self._parents: Sequence[Any] = ()
        self._names: Sequence[str] = ()
        self._parts: list[Any] = []
        """The parts that `peft` can replace, with the dict and the name of each."""
        self._find()

    def begin(self) -> Active:
        """Check everything, and return the active adapters.

        Raises:
            GenerationRefused: the steps do not fit the model any more, or autocast is on.
        """
        device = self._model.device.type
        if torch.is_autocast_enabled(device):
            raise GenerationRefused(
                "The compiled steps do not support autocast, because their cache has the dtype "
                f"{self._dtype}: load the model with the dtype that it should compute in."
            )
        if self._model.dtype != self._dtype:
            raise GenerationRefused(
                f"The model is {self._model.dtype} now, but its compiled steps have a cache of "
                f"{self._dtype}: call compile_generation after to()."
            )
        self._check_settings()
        self._find()
        return self._active()

    def read(self) -> Active:
        """Return the active adapters. Takes a few microseconds.

        Raises:
            GenerationRefused: a setting has changed.
        """
        self._check_settings()
        if [*map(dict.get, self._parents, self._names)] != self._parts:
            self._find()
        return self._active()

    def _settings(self) -> list[Any]:
        own = vars(self._config)  # reading attributes takes 1 µs each
        return [own.get(f"{name}_internal", own.get(name)) for name in SETTINGS]

    def _check_settings(self) -> None:
        now = self._settings()
        if now == self._made_for:
            return
        for name, value, was in zip(SETTINGS, now, self._made_for, strict=True):
            if value != was:
                raise GenerationRefused(
                    f"The configuration's {name} is {value!r} now, but the compiled steps were "
                    f"made for {was!r}: set it back, or call compile_generation again."
                )

    def _find(self) -> None:
        """Find the adapter layers, and the parts that could become adapter layers."""
        layers, found = [], []
        for parent in self._model.modules():
            if _has_adapters(parent):
                layers.append(parent)
            found += [
                (parent._modules, name, part)
                for name, part in parent._modules.items()
                if _has_adapters(part) or getattr(getattr(part, "weight", None), "ndim", 0) > 1
            ]
        self._layers = layers
        self._parents, self._names = [each[0] for each in found], [each[1] for each in found]
        self._parts = [each[2] for each in found]

    def _active(self) -> Active:
        return tuple(
            (is_disabled, tuple(active), tuple(merged))
            for is_disabled, active, merged in map(_states, self._layers)
        )


def refuse_change(began: Active, now: Active) -> GenerationRefused:
    """Return the error for a sequence that began with other adapters."""
    before, after = _name(began), _name(now)
    what = f"from {before} to {after}" if before != after else "in some layers"
    return GenerationRefused(
        f"The adapter changed {what} during this generation, but the cache was made with the "
        "first adapter."
    )


def _has_adapters(part: Any) -> bool:
    # In transformers models, these names are methods. In peft layers, they are properties.
    names = ("active_adapters", "disable_adapters")
    of_class = all(isinstance(getattr(type(part), name, None), property) for name in names)
    return of_class and hasattr(part, "merged_adapters")


def _name(active: Active) -> str:
    names: dict[str, None] = {}
    for is_disabled, adapters, merged in active:
        names.update(dict.fromkeys(f"merged {name!r}" for name in merged))
        names.update(dict.fromkeys(map(repr, () if is_disabled else adapters)))
    return " and ".join(names) or "none"
