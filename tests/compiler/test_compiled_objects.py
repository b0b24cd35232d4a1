# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The search of an application for compiled objects."""

import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
import serve_warm._redaction
from serve_warm.compiler.compiled_objects import (
    LOOKED_AT,
    bind_methods,
    find_compiled,
    find_uncalled,
    find_uncalled_methods,
    reaches_compiled,
)
from serve_warm.precompile import SESSION


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


class OwnDeque(deque[Any]):
    def __init__(self, *items: Any) -> None:
        if items:
            raise RuntimeError("not to be copied")

    __iter__ = copy = __len__ = OwnList.__iter__  # type: ignore[assignment]


class OwnPartial(functools.partial[Any]):
    def __new__(cls) -> Any:
        return super().__new__(cls, print)

    @property
    def func(self) -> Any:
        raise RuntimeError("not loaded")

    args = keywords = func


class OwnSlots:
    __slots__ = ("held",)

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("not loaded")


class OwnModule(ModuleType):
    def __init__(self) -> None:
        super().__init__("own")

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("not loaded")


class Nameless:
    __module__: Any = None


KINDS = (
    *(Closed, Proxy, Liar, Strict, OwnList, OwnDeque, OwnPartial, OwnSlots, OwnModule, Nameless),
)


@pytest.mark.parametrize("kind", KINDS)
def test_no_code_of_the_application_runs(kind: type):
    """An advice must not end a start, and reading a file for each item takes seconds."""
    scorer = torch.compile(lambda x: x + 1)
    owner = SimpleNamespace(odd=kind(), within=[kind()], scorer=scorer)
    space: dict[str, Any] = {"__name__": "app", "odd": kind()}
    exec("def handle(): odd.scorer", space)
    functions = [functools.partial(print, kind()), space["handle"]]
    assert find_compiled(owner, functions) == [("self.scorer", scorer)]
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


class Slotted:
    __slots__ = ("empty", "scorer")


class Below(Slotted):
    """Has a dict beside the slots of its base."""


def in_slots(scorer: Any) -> tuple[Any, str]:
    holder = Below()
    holder.scorer = scorer
    return holder, "self.held.scorer"


def in_module(scorer: Any) -> tuple[Any, str]:
    models = ModuleType("models")
    vars(models).update(scorer=scorer)
    space: dict[str, Any] = {"__name__": "app", "models": models}
    exec("def handle(x): return models.scorer(x)", space)
    return space["handle"], "models.scorer"


HOLDERS: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "slots": in_slots,
    "deque": lambda scorer: (deque([0, scorer]), "self.held[1]"),
    "partial": lambda scorer: (functools.partial(scorer, 1), "self.held.func"),
    "argument of a partial": lambda scorer: (functools.partial(print, scorer), "self.held.args[0]"),
    "keyword of a partial": lambda scorer: (
        functools.partial(print, by=scorer),
        "self.held.keywords['by']",
    ),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_compiled_function_is_found_in_each_kind_of_holder(kind: str):
    scorer = torch.compile(lambda x: x + 1)
    held, path = HOLDERS[kind](scorer)
    assert find_compiled(SimpleNamespace(held=held)) == [(path, scorer)]
    assert reaches_compiled(SimpleNamespace(held=held))


def test_a_compiled_function_is_found_in_a_module_that_a_function_names():
    scorer = torch.compile(lambda x: x + 1)
    handle, path = in_module(scorer)
    assert find_compiled(object(), [handle]) == [(path, scorer)]


class Methods:
    @torch.compile
    def score(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @staticmethod
    @torch.compile
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Overriding(Methods):
    def score(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_compiled_methods_of_a_class_are_found():
    found = dict(find_compiled(Methods()))
    assert found == {"self.score": Methods.score, "self.double": Methods.double}
    assert dict(find_compiled(Overriding())) == {"self.double": Methods.double}


def test_a_compiled_method_that_nobody_calls_is_named_once():
    owner = Methods()
    found = find_compiled(owner)
    assert find_uncalled(owner, found, (), ["plain"]) == ["self.score", "self.double"]
    assert find_uncalled_methods(owner, found, ["plain"]) == []


class Decorated:
    """As an application that compiles a method in the body of a class."""

    @serve_warm.compile
    def step(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_compiled_methods_are_found_before_their_first_call(depth: int):
    """A plan of the calls of a method can be replayed in a new replica."""
    owner = decorated = Decorated()
    for _ in range(depth):
        owner = SimpleNamespace(part=[owner])
    before = [each for each in SESSION.dispatchers if each.name.endswith("Decorated.step")]

    bind_methods(owner)

    named = [each for each in SESSION.dispatchers if each.name.endswith("Decorated.step")]
    assert [each.callee for each in named if each not in before] == [decorated.step.callee]
