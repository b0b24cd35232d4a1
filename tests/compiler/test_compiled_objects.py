# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The search of an application for compiled objects."""

import functools
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm._redaction
from serve_warm.compiler.compiled_objects import LOOKED_AT, find_compiled, reaches_compiled


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


class Closed(Mapping[str, Any]):
    """A mapping whose items are elsewhere, as those of a file or of a request."""

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("closed")

    def __len__(self) -> int:
        raise RuntimeError("closed")

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("closed")


class Proxy:
    """Stands for an object of the current request, and there is none."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("outside of a request")

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("outside of a request")


class Liar:
    __class__: Any = dict


class Strict(nn.Module):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def named_children(self) -> Iterator[Any]:
        raise RuntimeError("not loaded")

    def modules(self) -> Iterator[Any]:
        raise RuntimeError("not loaded")

    named_modules = named_children  # type: ignore[assignment]


class OwnList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("not loaded")


class Nameless:
    __module__: Any = None


@pytest.mark.parametrize("kind", [Closed, Proxy, Liar, Strict, OwnList, Nameless])
def test_no_code_of_the_application_runs(kind: type):
    """An advice must not end a start, and reading a file for each item takes seconds."""
    scorer = torch.compile(lambda x: x + 1)
    owner = SimpleNamespace(odd=kind(), within=[kind()], scorer=scorer)
    assert find_compiled(owner, [functools.partial(print, kind())]) == [("self.scorer", scorer)]
    assert reaches_compiled(owner)


def test_large_data_before_a_model_does_not_hide_it():
    scorer = torch.compile(lambda x: x + 1)
    data = {"ids": range(5), "pairs": [(number,) for number in range(2 * LOOKED_AT)]}
    for owner in (SimpleNamespace(**data, scorer=scorer), SimpleNamespace(scorer=scorer, **data)):
        assert find_compiled(owner) == [("self.scorer", scorer)]
        assert reaches_compiled(owner)


def test_a_function_is_found_where_its_method_takes_it_from():
    scorer = torch.compile(lambda x: x + 1)

    class Closing:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return scorer(x)

    space: dict[str, Any] = {"__name__": "__main__", "G": scorer}  # as cloudpickle makes a class
    exec("class D:\n    def __call__(self, x): return G(x)", space)
    assert find_compiled(Closing()) == [("scorer", scorer)]
    assert find_compiled(space["D"]()) == [("G", scorer)]
