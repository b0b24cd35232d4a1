# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The search of an application for compiled objects."""

from types import SimpleNamespace

import torch

import serve_warm._redaction
from serve_warm.compiler.compiled_objects import find_compiled


class Key:
    """A key of the application, which counts how often its text is asked for."""

    asked = 0

    def __repr__(self) -> str:
        Key.asked += 1
        return "key"


def test_only_paths_of_compiled_objects_become_text(monkeypatch):
    # A tokenizer holds a vocabulary of 30,000 tokens. Hiding credentials takes 100 µs for a text.
    redacted = []
    redact = serve_warm._redaction.redact
    monkeypatch.setattr(
        serve_warm._redaction, "redact", lambda text: redacted.append(text) or redact(text)
    )
    scorer = torch.compile(lambda x: x + 1)
    vocabulary = {Key(): SimpleNamespace(number=number) for number in range(1000)}
    owner = SimpleNamespace(vocabulary=vocabulary, models={"de": {Key(): scorer}})
    assert find_compiled(owner) == [("self.models['de'][<Key>]", scorer)]
    assert redacted == ["'de'", "<Key>"]
    assert Key.asked == 0
