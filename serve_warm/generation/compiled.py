# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve_warm.compile_generation`: a `transformers` model that decodes with compiled steps."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from serve_warm._package import public
from serve_warm.errors import ConfigError, MissingPackage


@public
def compile_generation(
    model: Any,
    *,
    batch: int,
    max_length: int,
    prompt_lengths: Sequence[int] = (),
    level: int = 2,
    **arguments: Any,
) -> Any:
    """Return a `transformers` model whose `generate` runs compiled steps on a static cache.

        self.model = serve_warm.compile_generation(
            model, batch=4, max_length=512, prompt_lengths=[32, 128]
        )
        self.model.generate(tokens, max_new_tokens=64)

    The cache has `batch` slots of `max_length` tokens each, prompt included. A prompt is padded to
    the shortest of `prompt_lengths` that fits. There is one compiled call for each prompt length,
    and one for the decode step, which handles all slots. Whisper needs no `prompt_lengths`, because
    its encoder has one fixed input length. Sampling, stopping and logits processors are not
    compiled. `level` has the same meaning as in `serve_warm.compile`. All other `arguments` are
    passed to torch.compile. In `warmup_inputs()`, declare one input for each prompt length.

    The result shares weights with `model`. Move the model to its device before this call.

    Raises:
        ConfigError: the model has no cache of a fixed size (the message names the layer and the
            reason), or `batch` or a length is invalid.
        MissingPackage: `transformers` is not installed.
    """
    try:
        from serve_warm.generation import reading, served, step_check, steps
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "transformers":
            raise
        raise MissingPackage("compile_generation", package="serve-warm[generation]") from error
    from serve_warm.generation.decoder import CachedDecoder
    from serve_warm.generation.same_model import SameModel
    from serve_warm.precompile.compiled import returns_unchanged

    prompt_lengths = _check_arguments(model, batch, max_length, prompt_lengths)
    needs = reading.read(model, max_length=max_length, prompt_lengths=prompt_lengths)
    _check_lengths(model, max_length, prompt_lengths, has_fixed_input=needs.encoder_length > 0)
    if returns_unchanged("compile_generation", arguments):
        return model
    cache = steps.SlotCache(
        needs.layers, needs.cross, slots=batch, max_length=max_length, like=needs.like
    )
    raw = _make_steps(model, cache, needs.form)
    decoder = CachedDecoder(
        **_compile_steps(raw, {"level": level, **arguments}),
        slots=batch,
        max_length=max_length,
        prompt_lengths=() if needs.encoder_length else prompt_lengths,
        device=model.device,
        has_positions=bool(needs.form.positions),
        same_model=SameModel(model),
        vocabulary=functools.partial(reading.count_tokens, model),
    )
    check = step_check.StepCheck(
        model, raw, decoder, positions=needs.form.positions, features=needs.features
    )
    return served.serve(model, decoder, cache, check, describe_copy)


def describe_copy(served: Any) -> tuple[Any, ...]:
    """Return what `__reduce__` of a model that `compile_generation` returned has to return.

    A copy has its own weights, so it needs its own steps and its own cache.
    """
    parts = vars(served)
    decoder, model = parts["_serve_warm_decoder"], parts["_serve_warm_check"].model
    make = functools.partial(
        compile_generation,
        batch=decoder.slots,
        max_length=decoder.max_length,
        prompt_lengths=tuple(decoder.prompt_lengths),
        level=decoder.dispatcher.level,
        **decoder.dispatcher.arguments,
    )
    inherited = vars(model)
    own = {
        name: value
        for name, value in vars(served).items()
        if not name.startswith("_serve_warm") and inherited.get(name) is not value
    }
    return make, (model,), own


def _make_steps(model: Any, cache: Any, form: Any) -> dict[str, Any]:
    """Return a model's uncompiled steps, as keyword arguments of `CachedDecoder`."""
    from serve_warm.generation import steps

    kinds: dict[str, Any] = {"decode": (steps.Decode, model)}
    if form.encoder_width:
        kinds |= {"encode": (steps.Encode, model.get_encoder()), "begin": (steps.Begin, model)}
    else:
        kinds["prefill"] = (steps.Prefill, model)
    return {name: kind(of, cache, form).eval() for name, (kind, of) in kinds.items()}


def _compile_steps(raw: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    from serve_warm.precompile.compiled import compile as compile_

    # With a graph break, eager code between two graphs would have to update the cache.
    given = {"dynamic": False, "fullgraph": True, **arguments}
    return {name: compile_(step, **given) for name, step in raw.items()}


def _check_arguments(
    model: Any, batch: int, max_length: int, prompt_lengths: Sequence[int]
) -> Sequence[int]:
    _check_model(model)
    if not isinstance(prompt_lengths, Iterable):
        raise ConfigError(
            f"compile_generation got prompt_lengths={prompt_lengths!r}",
            hint="pass a list of lengths, for example [32, 128]",
        )
    lengths = tuple(prompt_lengths)
    for name, number in (
        ("batch", batch),
        ("max_length", max_length),
        *(("prompt_lengths", n) for n in lengths),
    ):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ConfigError(
                f"compile_generation got an invalid {name}: {number!r}",
                hint="pass positive whole numbers",
            )
    return lengths


def _check_model(model: Any) -> None:
    name = type(model).__name__
    if hasattr(model, "get_base_model") and hasattr(model, "peft_config"):
        raise ConfigError(
            f"compile_generation got a {name}, whose generate() calls another model",
            hint="pass model.get_base_model(), which contains the adapters",
        )
    if "_serve_warm_decoder" in vars(model):
        raise ConfigError(
            f"compile_generation got a {name} that it has already returned",
            hint="pass the original model",
        )


def _check_lengths(
    model: Any, max_length: int, prompt_lengths: Sequence[int], *, has_fixed_input: bool
) -> None:
    name = type(model).__name__
    config = model.config.get_text_config(decoder=True)
    keys = ("max_target_positions", "max_position_embeddings", "n_positions")
    window = next((found for key in keys if (found := getattr(config, key, None))), None)
    # T5 has relative positions: its `n_positions` is not a limit.
    if window is not None and config.model_type != "t5" and max_length > window:
        raise ConfigError(
            f"max_length={max_length} exceeds the {window} positions of {name}",
            hint=f"pass at most {window}",
        )
    _check_rope(name, config, max_length)
    if has_fixed_input:
        return
    if not prompt_lengths:
        raise ConfigError(
            f"compile_generation got no prompt_lengths for {name}",
            hint="pass the lengths that prompts are padded to, for example [32, 128]",
        )
    if not model.config.is_encoder_decoder and max(prompt_lengths) >= max_length:
        raise ConfigError(
            f"the prompt length {max(prompt_lengths)} leaves no room in max_length={max_length}",
            hint="pass a larger max_length or shorter prompt_lengths",
        )


def _check_rope(name: str, config: Any, max_length: int) -> None:
    """Refuse rotary positions whose factors depend on the longest sequence of a batch."""
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for each in [found, *(v for v in found.values() if isinstance(v, Mapping))]:
        kind = each.get("rope_type", each.get("type"))
        if kind not in LENGTH_DEPENDENT:
            continue
        original = each.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", config.max_position_embeddings
        )
        if max_length > original:
            raise ConfigError(
                f"{name} has rope type {kind!r}, which changes the factors of all rows of a batch "
                f"when one row exceeds {original} tokens",
                hint=f"pass max_length={original} or less",
            )


LENGTH_DEPENDENT = ("longrope", "dynamic")
"""Kinds of rotary positions that depend on the length of the longest sequence in a batch."""
