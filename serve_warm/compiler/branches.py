# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Branches after graph breaks that no input took, and values for which code holds that it read.

At a graph break, Dynamo makes a function for each way that the code can go on. A function that has
not run yet is a branch that no call took. A Python value that code reads from a tensor is a branch,
too, if all calls had the same one.
"""

from __future__ import annotations

import dis
import linecache
import re
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from serve_warm.private_apis import dynamo
from serve_warm.private_apis.dynamo import RESUMED

RESUME_NAME = re.compile(dynamo.RESUME_NAME)
"""The name of code after a graph break, with the function and the line."""

READS = re.compile(r"\b(?:bool|int|float)\(|\.(?:item|tolist)\(")
"""What a line contains that reads a Python value from a tensor."""

EQUALS = re.compile(r"L\['(\w+)'\]((?:\[\d+\])*) == (.+)", re.DOTALL)
"""A guard on the value of a local variable (private; 2.11 to 2.15)."""


class Branches:
    """The branches of the compiled code of this process."""

    def __init__(self) -> None:
        self._untaken: dict[int, CodeType] = {}
        """Code after a graph break that has not run yet, keyed by the id of the code object."""
        self._read_values = _ReadValues()

    def note_run(self, code: CodeType) -> None:
        """Note that a call has come to this code."""
        self._untaken.pop(id(code), None)

    def note_compiled(
        self, code: CodeType, compiled: CodeType, guards: Any, names: Mapping[str, Any]
    ) -> None:
        """Note how newly compiled code can go on.

        `compiled` is what Dynamo made of `code`. `names` are the globals of both.
        """
        for name in compiled.co_names:
            after = getattr(names.get(name), "__code__", None) if name.startswith(RESUMED) else None
            if after is not None and not _only_raises(after):
                self._untaken[id(after)] = after
        self._read_values.note(code, guards)

    def take_untaken(self) -> dict[str, str]:
        """Return where the branches begin that no call took, each with its file's path.

        The keys have the form `app.py:31, in forward`. Each branch is returned once, because
        another warm-up in this process has other inputs.
        """
        untaken, self._untaken = self._untaken, {}
        read, self._read_values = self._read_values, _ReadValues()
        found = read.list_constant()
        for code in untaken.values():
            named = RESUME_NAME.fullmatch(code.co_name)
            if named is not None:
                where = f"{Path(code.co_filename).name}:{named[2]}, in {named[1]}"
                found[where] = code.co_filename
        return dict(sorted(found.items()))


class _ReadValues:
    """The Python values for which the code after graph breaks was compiled.

    `positive = bool(x.sum() > 0)` breaks the graph, and the code after it holds for one value. An
    argument of the function is not such a value, because its caller chooses it.
    """

    def __init__(self) -> None:
        self._arguments: dict[tuple[str, str], frozenset[str]] = {}
        self._values: dict[tuple[str, str, int, str], set[str]] = {}
        self._reading: set[tuple[str, str]] = set()

    def note(self, code: CodeType, guards: Any) -> None:
        """Note the guards of newly compiled code."""
        named = RESUME_NAME.fullmatch(code.co_name)
        if named is None:
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            self._arguments[code.co_filename, code.co_name] = frozenset(names)
            return
        function, line = (code.co_filename, named[1]), int(named[2])
        if READS.search(linecache.getline(code.co_filename, line)):
            self._reading.add(function)
        below = linecache.getline(code.co_filename, line + 1)
        if below.lstrip().startswith("raise "):
            return  # the other side compiles nothing
        now: dict[str, str] = {}
        for part in getattr(guards, "code_parts", ()):
            match = EQUALS.fullmatch(part)
            if match is not None and match[1] not in self._arguments.get(function, ()):
                now[match[1] + match[2]] = match[3]
        for place in [*now, *(each[3] for each in self._values if each[:3] == (*function, line))]:
            # Without a guard, the code holds for each value.
            self._values.setdefault((*function, line, place), set()).add(now.get(place, ""))

    def list_constant(self) -> dict[str, str]:
        """Return the values that could have been others, in the form of untaken branches."""
        found = {}
        for (file, function, line, place), values in self._values.items():
            is_covered = "" in values or {"True", "False"} <= values
            if (file, function) in self._reading and not is_covered:
                name = "its value" if place.startswith(dynamo.ON_STACK) else place
                shown = " or ".join(sorted(values)[:4])
                found[f"{Path(file).name}:{line}, in {function}, where {name} was {shown}"] = file
        return found


def _only_raises(code: CodeType) -> bool:
    """Return whether the code of a branch raises an error and does nothing else."""
    steps = list(dis.get_instructions(code))
    places = {step.offset: place for place, step in enumerate(steps)}
    place, seen = 0, set[int]()
    while place < len(steps) and place not in seen:
        seen.add(place)
        name = steps[place].opname
        if name == "RAISE_VARARGS":
            return True
        # For example POP_JUMP_IF_FALSE in Python 3.10, and POP_JUMP_FORWARD_IF_FALSE in 3.11.
        if name.startswith(("RETURN", "FOR_ITER")) or ("JUMP" in name and "IF" in name):
            return False
        place = places[steps[place].argval] if name.startswith("JUMP") else place + 1
    return False
