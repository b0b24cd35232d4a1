# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Windows in configurations: what `generate` does with them decides, not what they promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from generators import (  # noqa: F401 - a fixture
    SLIDING_WINDOW,
    TEXT,
    batch_of,
    best,
    eagerly,
    generate,
    random_model,
    with_steps,
)
from serve_warm.errors import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("eagerly")]


def made(name: str, **settings: Any) -> Any:
    return random_model(name, **{**TEXT, **settings})


@pytest.mark.parametrize("lengths", [(16, 9, 1), (12,), (3, 2)])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Llama", {"sliding_window": SLIDING_WINDOW}),
        ("Llama", {"attention_chunk_size": SLIDING_WINDOW}),
        ("Llama", {"sliding_window": SLIDING_WINDOW, "attn_implementation": "eager"}),
        ("Phi", {"sliding_window": SLIDING_WINDOW}),
        ("Mistral", {"sliding_window": SLIDING_WINDOW}),
        ("Mistral", {"sliding_window": SLIDING_WINDOW, "attn_implementation": "eager"}),
    ],
)
def test_a_window_means_what_it_means_to_generate(name, settings, lengths):
    """A Llama ignores a window in its masks, but its cache drops keys after the prompt."""
    inputs = batch_of("llama", lengths)
    theirs = [generate(made(name, **settings), inputs), best(made(name, **settings), inputs)]
    ours = [generate(with_steps(made(name, **settings)), inputs)]
    ours.append(best(with_steps(made(name, **settings)), inputs))
    assert ours == theirs


def test_a_prompt_that_is_masked_wrongly_beyond_the_window_is_refused():
    """The comparison has a prompt that is longer than the window."""
    model = with_steps(made("Llama", sliding_window=SLIDING_WINDOW))
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
    model = with_steps(made("Llama", sliding_window=SLIDING_WINDOW), prompt_lengths=[4])
    decoder = model._serve_warm_check._decoder
    decode = decoder._decode

    def wrong_beyond(tokens: Any, positions: Any) -> Any:
        is_beyond = (positions >= SLIDING_WINDOW) & (positions < decoder.max_length)
        return decode(tokens, positions).roll(int(is_beyond.any()), -1)

    decoder._decode = wrong_beyond

    with pytest.raises(ConfigError, match="different logits"):
        best(model, batch_of("llama", (3,)))


def test_the_comparison_of_a_model_without_a_window_is_short():
    """The comparison takes longer only where it has more to see."""
    model = with_steps(made("Llama"))
    assert model._serve_warm_check.lengths() == [2, 5]
