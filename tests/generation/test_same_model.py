# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Changes of a served model that its steps cannot follow are refused, also during a stream."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from generators import Adapted, batch_of, best, eagerly, load, load_adapted, load_compiled  # noqa: F401 - a fixture
from serve_warm.errors import GenerationRefused

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("eagerly")]


def eager_attention(model: Any) -> None:
    model.set_attn_implementation("eager")


def eager_encoder(model: Any) -> None:
    model.model.encoder.set_attn_implementation("eager")


def other_window(model: Any) -> None:
    model.config.sliding_window = 4


def half(model: Any) -> None:
    model.to(torch.bfloat16)


CHANGES = [
    ("llama", eager_attention, "_attn_implementation is 'eager' now, but the compiled steps were"),
    ("t5", eager_attention, "_attn_implementation is 'eager' now, but the compiled steps were"),
    ("bart", eager_encoder, "_attn_implementation is 'eager' now, but the compiled steps were"),
    ("mistral", other_window, "sliding_window is 4 now, but the compiled steps were made for 8"),
    ("llama", half, "The model is torch.bfloat16 now, but its compiled steps have a cache of"),
]


@pytest.mark.parametrize("is_used", [True, False], ids=["used before", "new"])
@pytest.mark.parametrize(("name", "change", "message"), CHANGES)
def test_a_change_that_the_steps_cannot_follow_is_refused(name, change, message, is_used):
    """Before, tokens were wrong: the steps kept their masks and the size of their cache."""
    model = load_compiled(name)
    if is_used:
        best(model, batch_of(name))
    change(model)
    with pytest.raises(GenerationRefused, match=message) as refused:
        best(model, batch_of(name))
    assert "\n" not in str(refused.value)


def test_a_change_of_attention_ends_a_running_stream():
    """Its next step would use masks of another form."""
    stream = load_compiled("llama")
    running = stream.stream(**batch_of("llama"), max_new_tokens=8)
    next(running)
    eager_attention(stream)
    with pytest.raises(GenerationRefused, match="_attn_implementation is 'eager' now"):
        next(running)


def test_autocast_is_refused():
    """Its matrix products have another dtype than the cache."""
    model = load_compiled("llama")
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(GenerationRefused, match="do not support autocast"),
    ):
        best(model, batch_of("llama"))


def add(model: Any) -> None:
    model.lm_head = Adapted(model.lm_head)


def add_to_norm(model: Any) -> None:
    """As adapters of norms and of experts, whose layers have no matrix."""
    model.model.norm = Adapted(model.model.norm)


def remove(model: Any) -> None:
    model.lm_head = model.lm_head.base


def replace(model: Any) -> None:
    """Delete an adapter, and add one with the same name."""
    model.lm_head = Adapted(model.lm_head.base)


@pytest.mark.parametrize(
    ("make", "change", "message"),
    [
        (lambda: load_compiled("llama"), add, "changed from none to 'a' during"),
        (lambda: load_compiled("llama"), add_to_norm, "changed from none to 'a' during"),
        (load_adapted, remove, "changed from 'a' to none during"),
        (load_adapted, replace, "changed in some layers during"),
    ],
    ids=["added", "added to a norm", "removed", "replaced"],
)
def test_an_adapter_that_comes_or_goes_ends_a_running_stream(make, change, message):
    """Before, the rest of the tokens matched neither model."""
    model = make()
    running = model.stream(**batch_of("llama"), max_new_tokens=8)
    next(running)
    change(model)
    with pytest.raises(GenerationRefused, match=message):
        next(running)
