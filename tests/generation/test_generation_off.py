# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`compile_generation` where torch's compiler is switched off."""

from __future__ import annotations

import pytest

import generators
import serve_warm

SIZES = {"batch": 2, "max_length": 60, "prompt_lengths": [16]}


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
@pytest.mark.parametrize("how", ["argument", "variable"])
def test_a_model_generates_as_before(how: str, monkeypatch: pytest.MonkeyPatch):
    model = generators.load("llama")
    inputs = generators.batch_of("llama")
    expected = generators.generate(model, inputs)
    kind = type(model)
    if how == "variable":
        monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")

    found = serve_warm.compile_generation(
        generators.load("llama"), **SIZES, **({"disable": True} if how == "argument" else {})
    )

    assert generators.generate(found, inputs) == expected
    assert isinstance(found, kind)
    assert type(model) is kind
