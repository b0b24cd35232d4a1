# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Facts about configurations of `transformers`, whose attributes are read through Python code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from components import require_module
from serve_warm.precompile.guard_facts import Guard, collect
from serve_warm.precompile.module_changes import FactWatch

HIDDEN = "callee.config.hidden_size"
"""Attribute that the class's `attribute_map` reads as `n_embd`."""
LAYERS = "callee.config.n_layer"
MISSING = "is_causal"
DIFFERING = SimpleNamespace(per_layer_attributes={"n_layer"})


def _own_reader(self: Any, name: str) -> Any:
    return 77 if name == "n_layer" else object.__getattribute__(self, name)


CHANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "an attribute": (LAYERS, lambda c: setattr(c, "n_layer", 5)),
    "an attribute by its other name": (HIDDEN, lambda c: setattr(c, "hidden_size", 5)),
    "the dict": (HIDDEN, lambda c: vars(c).update(n_embd=5)),
    "a deleted attribute": (LAYERS, lambda c: vars(c).pop("n_layer")),
    "a name of the map": (HIDDEN, lambda c: c.attribute_map.update(hidden_size="n_layer")),
    "a name removed from the map": (HIDDEN, lambda c: c.attribute_map.pop("hidden_size")),
    "a name new in the map": (LAYERS, lambda c: c.attribute_map.update(n_layer="n_embd")),
    "another map": (HIDDEN, lambda c: setattr(type(c), "attribute_map", {"hidden_size": "n_head"})),
    "a map of the instance": (HIDDEN, lambda c: vars(c).update(attribute_map={})),
    "a property": (LAYERS, lambda c: setattr(type(c), "n_layer", property(lambda _: 5))),
    "another reader": (LAYERS, lambda c: setattr(type(c), "__getattribute__", _own_reader)),
    "layers that differ": (LAYERS, lambda c: vars(c).update(_heterogeneity_spec=DIFFERING)),
}


@pytest.fixture
def callee() -> Any:
    """An object with a configuration of a class of its own, which may be changed."""
    transformers = require_module("transformers", "pip install transformers")
    kind = type("Config", (transformers.GPT2Config,), {"attribute_map": {"hidden_size": "n_embd"}})
    return SimpleNamespace(config=kind(n_embd=48, n_layer=3))


def watch_of(callee: Any, path: str, kind: str = "CONSTANT_MATCH", argument: Any = None) -> Any:
    guard = Guard(path=path, kind=kind, value=eval(path, {"callee": callee}), argument=argument)
    return FactWatch(callee, [collect([guard], callee, names={})])


@pytest.mark.parametrize(("path", "change"), CHANGES.values(), ids=CHANGES)
def test_a_change_of_a_configuration_is_noticed_by_the_next_call(callee, path, change):
    """The check reads versions of dicts instead of the attribute; each of them is checked."""
    watch = watch_of(callee, path)
    before = watch.unchanged(), watch.why_broken(0)
    change(callee.config)
    noticed = not watch.unchanged()
    watch.refresh()
    assert before == (True, "")
    assert noticed
    assert watch.why_broken(0) != ""


def test_a_missing_attribute_is_noticed_once_it_exists(callee: Any):
    """A model may ask for an attribute that only some configurations have."""
    watch = watch_of(callee, "callee.config", "HASATTR", MISSING)
    before = watch.unchanged()
    setattr(callee.config, MISSING, True)
    assert before
    assert not watch.unchanged()


def test_a_check_runs_no_code_of_the_configuration(callee: Any):
    """A model reads dozens of attributes, and each read takes 2 µs."""
    watch = watch_of(callee, HIDDEN)
    ran: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            ran.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        assert watch.unchanged()
    finally:
        sys.setprofile(None)

    assert ran
    assert not [file for file in ran if "transformers" in file]
