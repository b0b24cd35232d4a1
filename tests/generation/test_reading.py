# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Windows in configurations: what `generate` does with them decides, not what they promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import serve_warm
from components import require_module
from generators import SLIDING_WINDOW, TEXT, batch_of, best, eagerly, generate  # noqa: F401 - a fixture
from serve_warm.errors import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("eagerly")]


def made(name: str, **settings: Any) -> Any:
    """Return a random model of `transformers`."""
    transformers = require_module("transformers", "pip install 'serve-warm[generation]'")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**TEXT, **settings})
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def compiled(model: Any, prompt_lengths: Sequence[int] = (4, 16)) -> Any:
    return serve_warm.compile_generation(
        model, batch=3, max_length=60, prompt_lengths=prompt_lengths
    )


@pytest.mark.parametrize("lengths", [(16, 9, 1), (12,), (3, 2)])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Llama", {"sliding_window": SLIDING_WINDOW}),
        ("Llama", {"attention_chunk_size": SLIDING_WINDOW}),
        ("Llama", {"sliding_window": SLIDING_WINDOW, "attn_implementation": "eager"}),
        ("Phi", {"sliding_window": SLIDING_WINDOW}),
        ("Mistral", {"sliding_window": SLIDING_WINDOW}),
    ],
)
def test_a_window_means_what_it_means_to_generate(name, settings, lengths):
    """A Llama ignores a window in its masks, but its cache drops keys after the prompt."""
    inputs = batch_of("llama", lengths)
    theirs = [generate(made(name, **settings), inputs), best(made(name, **settings), inputs)]
    ours = [generate(compiled(made(name, **settings)), inputs)]
    ours.append(best(compiled(made(name, **settings)), inputs))
    assert ours == theirs


def test_a_prompt_that_is_masked_wrongly_beyond_the_window_is_refused():
    """The comparison has a prompt that is longer than the window."""
    model = compiled(made("Llama", sliding_window=SLIDING_WINDOW))
    check = model._serve_warm_check
    right = check.find_error()
    prefill = check._decoder._prefill
    prefill.form = replace(prefill.form, prompt_window=SLIDING_WINDOW)
    with pytest.raises(ConfigError, match="different logits"):
        best(model, batch_of("llama", (3,)))

    assert right < 1e-4
    assert check.lengths() == [2, SLIDING_WINDOW + 1]


def test_a_step_that_is_wrong_beyond_the_window_is_refused():
    """The comparison takes more steps if every prompt is shorter than the window."""
    model = compiled(made("Llama", sliding_window=SLIDING_WINDOW), [4])
    decoder = model._serve_warm_check._decoder
    decode = decoder._decode

    def wrong_beyond(tokens: torch.Tensor, positions: torch.Tensor) -> Any:
        is_beyond = (positions >= SLIDING_WINDOW) & (positions < decoder.max_length)
        return decode(tokens, positions).roll(int(is_beyond.any()), -1)

    decoder._decode = wrong_beyond

    with pytest.raises(ConfigError, match="different logits"):
        best(model, batch_of("llama", (3,)))


def test_the_comparison_of_a_model_without_a_window_is_short():
    """The comparison takes longer only where it has more to see."""
    model = compiled(made("Llama"))
    assert model._serve_warm_check.lengths() == [2, 5]
