# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The part of a plan that lists which module attributes a forward assigns.

At level 2, the bytecode around the graph assigns these attributes. A library has no such bytecode.
So the plan maps attributes of modules to outputs, and each call assigns the outputs to these
attributes. If a forward changes something that is not an attribute of a module, for example the
items of an existing list, the call gets no library.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.private_apis.nn_module import STEP

Path = Callable[[str], list[list[str | int]]]
"""Function that turns Dynamo's expression for a module into the steps from the callee to the
module."""


class Assigned:
    """The attributes that each run of one graph assigns.

    `changes` maps the expression of each changed object to the names of its assigned attributes. If
    there are no names, the object was changed in some other way. The mapping grows until the graph
    is captured.
    """

    def __init__(self, changes: Mapping[str, Sequence[str]], callee: object) -> None:
        self._changes = changes
        self._callee = callee
        self._before: list[list[object]] = []
        """Lists that existed before the run. These references keep the lists alive, so that no new
        list gets the id of an old list."""

    def refuse_others(self, path_of: Path) -> None:
        """Raise `NoEntry` if the forward changes anything except attributes of modules.

        Call this before the run, because the run makes the changes.
        """
        others = [path for path, names in self._changes.items() if not names]
        if others:
            raise NoEntry(
                f"it changes {describe_changes(others)}, which a library cannot do: {ASSIGN}"
            )
        for source in self._changes:
            if not isinstance(self._owner(path_of(source)), torch.nn.Module):
                changed = describe_changes([source])
                raise NoEntry(
                    f"it changes {changed}, and a library can change only attributes of modules: "
                    f"{ASSIGN}"
                )

    def _owner(self, steps: list[list[str | int]]) -> object:
        owner: Any = self._callee
        for kind, key in steps:
            owner = getattr(owner, str(key)) if kind == "attribute" else owner[key]
        return owner

    def begin(self) -> None:
        """Remember the lists that exist before a run."""
        if self._changes:
            self._before = [each for each in gc.get_objects() if type(each) is list]

    def places(self, path_of: Path) -> list[tuple[list[list[str | int]], str, object]]:
        """Return each assigned attribute: the steps to its module, its name and its new value.

        Raises:
            NoEntry: an attribute was deleted.
        """
        found = []
        for source, names in self._changes.items():
            steps = path_of(source)
            owner = self._owner(steps)
            for name in names:
                if not hasattr(owner, name):
                    deleted = describe_changes([f"{source}.{name}"])
                    raise NoEntry(
                        f"it deletes {deleted}, which a library cannot do: set it to None, or use "
                        "level 2"
                    )
                found.append((steps, name, getattr(owner, name)))
        return found

    def refuse_shared(self, values: Sequence[object], returned: object) -> None:
        """Raise `NoEntry` for an assigned list that existed before the run or is used twice.

        A library cannot reproduce such a list, because each call of a library makes new lists.
        """
        known = set(map(id, self._before))
        self._before = []
        for each in (container for value in values for container in _containers(value)):
            if type(each) is not list or id(each) in known:
                raise NoEntry(
                    "it assigns a dict or a set, or it assigns a list that is also used elsewhere"
                )
            known.add(id(each))
        if known & set(map(id, _containers(returned))) and values:
            raise NoEntry("it assigns attributes and returns a list that is also used elsewhere")


def _containers(value: object) -> list[object]:
    if isinstance(value, tuple):
        return [each for item in value for each in _containers(item)]
    if isinstance(value, list):
        return [value, *(each for item in value for each in _containers(item))]
    return [value] if isinstance(value, (dict, set)) else []


ASSIGN = "assign a new object to an attribute of a module instead, or use level 2"
"""Advice for a change that a library cannot make."""


def describe_changes(sources: Sequence[str]) -> str:
    """Return the names of changed objects for a message, such as `layers.0.cache and 3 others`.

    `sources` are the keys of a mapping that `side_effects` yields.
    """
    short = [re.sub(STEP, r".\1", source).removeprefix(CALLEE).lstrip(".") for source in sources]
    rest = len(short) - SHOWN
    names = ", ".join(name or "the model itself" for name in short[:SHOWN])
    return f"{names} and {rest} other{'s' * (rest > 1)}" if rest > 0 else names


SHOWN = 2
"""Maximum number of changed objects that a message names."""

CALLEE = "L['callee']"
