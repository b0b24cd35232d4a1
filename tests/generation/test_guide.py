# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The code of docs/guides/generation.md, run as a reader has it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from components import require_module
from generators import eagerly  # noqa: F401 - a fixture

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "generation.md"


def code_of_guide() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.fixture
def app() -> dict[str, Any]:
    require_module("transformers", "pip install 'serve-warm[generation]'")
    names: dict[str, Any] = {"__name__": "chat"}
    exec(compile(code_of_guide()[0], "chat.py", "exec"), names)
    return names


@pytest.mark.slow
@pytest.mark.usefixtures("eagerly")
def test_the_deployment_of_the_guide_answers(app: dict[str, Any]):
    chat = app["Chat"].func_or_class()
    inputs = chat.warmup_inputs()
    prompt = [5, 6, 7]
    answer = asyncio.run(chat.answer(prompt, 6))
    ids = torch.tensor([prompt])
    assert answer == app["load_model"]().generate(ids, max_new_tokens=6)[0, 3:].tolist()
    assert sorted(len(each.kwargs["prompt"]) for each in inputs) == app["LENGTHS"]


@pytest.mark.slow
@pytest.mark.usefixtures("eagerly")
def test_the_loops_of_the_guide_yield_tokens(app: dict[str, Any]):
    chat = app["Chat"].func_or_class()
    _, stream, continuous = code_of_guide()
    ids = torch.tensor([[5, 6, 7]])
    expected = app["load_model"]().generate(ids, max_new_tokens=32, eos_token_id=None)[0, 3:]
    sent: list[Any] = []
    names = {"model": chat.model, "ids": ids, "mask": torch.ones_like(ids), "send": sent.append}

    exec(stream, names)

    assert [tokens[0] for tokens in sent] == expected.tolist()
    body = "\n".join(f"    {line}" for line in continuous.splitlines())
    sent.clear()
    names |= {
        "self": chat,
        "prompt": [5, 6, 7],
        "send": lambda token: asyncio.sleep(0, sent.append(token)),
    }
    exec(f"async def loop():\n{body}", names)
    asyncio.run(names["loop"]())
    assert sent == expected.tolist()
