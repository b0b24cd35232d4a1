# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A model whose step has no single graph is refused with the line that branches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from components import require_module
from generators import TEXT, with_steps
from serve_warm.errors import ConfigError


@pytest.mark.slow
def test_the_line_that_branches_is_named():
    """Before, torch's own error named the call of generate(), over many lines."""
    transformers = require_module("transformers", "pip install 'serve-warm[generation]'")

    class Branching(transformers.LlamaForCausalLM):  # type: ignore[misc, name-defined]
        def forward(self, input_ids: Any = None, position_ids: Any = None, **rest: Any) -> Any:
            out = super().forward(input_ids, position_ids=position_ids, **rest)
            if out.logits.sum() > 0:  # branches
                out.logits = out.logits * 1
            return out

    model = with_steps(Branching(transformers.LlamaConfig(**TEXT)).eval())

    with pytest.raises(ConfigError, match="cannot be compiled as one graph: data-dep") as error:
        model.generate(torch.tensor([[5, 6]]), max_new_tokens=2)

    line = Branching.forward.__code__.co_firstlineno + 2
    assert f"at test_one_graph.py:{line}: `if out.logits.sum() > 0:" in error.value.message
    assert "without compile_generation" in str(error.value.hint)
    assert "\n" not in error.value.message
