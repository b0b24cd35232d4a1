# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The modules of a model as text, and what differs from those of the build."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from serve_warm.precompile.calls.signature import module_of
from serve_warm.precompile.facts.names import ELSEWHERE, literal, name_of_class

if TYPE_CHECKING:
    import torch

DIGEST = re.compile(rf"( [0-9a-f]{{16}})?({ELSEWHERE})?$")
"""Digest of a class's functions, which `names.name_of_class` writes after the class's name."""


def plain_values(callee: object) -> str:
    """Return the numbers, strings and other plain values in the callee's modules, as text."""
    root = module_of(callee)
    modules = [] if root is None else root.named_modules()
    found = [
        f"{path}.{name}={said}"
        for path, module in modules
        for name, value in vars(module).items()
        if (said := literal(value)) is not None
    ]
    return "\n".join(found)


def tree(callee: object) -> list[str]:
    """Return a line for each module of the callee, with its path and its class.

    The entries' facts, which are watched, cover everything else that compiled code depends on.
    """
    root = module_of(callee)
    if root is None:
        return []
    names: dict[type, str] = {}
    lines = []
    for path, module in root.named_modules(remove_duplicate=False):
        kind = type(module)
        if kind not in names:
            names[kind] = name_of_class(kind)
        lines.append(f"{path or '.'}: {names[kind]}")
    return lines


def describe_model_change(now: Sequence[str], built: Sequence[str]) -> str:
    """Return a sentence that names the part of a model that changed since the build.

    Both arguments are results of `tree`.

    >>> describe_model_change([".: app.Scorer", "2: torch.nn.Linear"],
    ...                       [".: app.Scorer", "2: torch.nn.GELU"])
    'the model changed since the build: part 2 is Linear, was GELU'
    """
    parts, before = (dict(line.split(": ", 1) for line in lines) for lines in (now, built))
    other = {path for path in parts.keys() & before.keys() if parts[path] != before[path]}
    code = {path for path in other if DIGEST.sub("", parts[path]) == DIGEST.sub("", before[path])}
    changes = [_exchange(p, parts[p], before[p]) for p in parts if p in other - code]
    changes += [f"{_part(p)} ({_kind(parts[p])}) is new" for p in parts if p not in before]
    changes += [f"{_part(p)} ({_kind(before[p])}) is gone" for p in before if p not in parts]
    if not changes and code:
        path = next(path for path in parts if path in code)
        name = DIGEST.sub("", parts[path])
        if parts[path] == f"{before[path]}{ELSEWHERE}":
            return f"{_part(path)} is an object of an earlier definition of {name}: make it again"
        return f"the code or a default argument of {name} changed since the build: build again"
    if not changes:
        return "the order of the model's parts changed since the build"
    more = len(changes) - 1
    rest = f", and {more} more {'part differs' if more == 1 else 'parts differ'}" if more else ""
    return f"the model changed since the build: {changes[0]}{rest}"


def _exchange(path: str, now: str, before: str) -> str:
    kinds = _kind(now), _kind(before)
    if kinds[0] == kinds[1]:  # of two packages
        kinds = DIGEST.sub("", now), DIGEST.sub("", before)
    return f"{_part(path)} is {kinds[0]}, was {kinds[1]}"


def _part(path: str) -> str:
    return "the model itself" if path == "." else f"part {path}"


def _kind(described: str) -> str:
    return DIGEST.sub("", described).rpartition(".")[2]


def has_work(module: torch.nn.Module) -> bool:
    """Return whether compiling a module by itself pays off, unlike for a single Linear layer."""
    return len(list(module.children())) > 0 or len(list(module.parameters(recurse=False))) > 2
