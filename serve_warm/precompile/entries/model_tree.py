# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The modules of a model as text or a digest, and what differs from those of the build."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from serve_warm._package import PACKAGE
from serve_warm.precompile.calls.signature import module_of
from serve_warm.precompile.facts.names import ELSEWHERE, digest_of_class, literal, name_of_class
from serve_warm.private_apis.module_names import DYNAMO
from serve_warm.private_apis.nn_module import own_buffers, own_modules, own_parameters

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


def digest_models(callees: Iterable[object]) -> str:
    """Return a digest of the models among these objects; empty if there is none.

    It covers the code of the modules, their parts, the shapes and dtypes of their tensors, and
    their plain attributes. So models that differ only in their weights have the same digest.
    """
    waiting = [found for callee in callees if (found := module_of(callee)) is not None]
    seen, lines = {id(module) for module in waiting}, []
    digests: dict[type, str] = {}
    while waiting:
        module = waiting.pop()
        children = {name: part for name, part in own_modules(module).items() if part is not None}
        waiting += [part for part in children.values() if id(part) not in seen]
        seen.update(map(id, children.values()))
        kind = type(module)
        if kind.__module__.partition(".")[0] == PACKAGE or kind.__module__.startswith(DYNAMO):
            continue  # a wrapper, which notes an id of this process
        if kind not in digests:
            digests[kind] = digest_of_class(kind)
        lines.append(repr((kind.__name__, digests[kind], *_describe_own(module, children))))
    # In any order, because callables can be compiled in any order.
    text = "\n".join(sorted(lines))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest() if lines else ""


def _describe_own(
    module: torch.nn.Module, children: Iterable[str]
) -> tuple[list[str], list[str], list[str]]:
    """Return a module's own parts, tensors and plain attributes."""
    from torch.nn.parameter import is_lazy

    tensors = [
        f"{name} {tensor.dtype} {'no shape yet' if is_lazy(tensor) else _describe_shape(tensor)}"
        for of in (own_parameters, own_buffers)
        for name, tensor in of(module).items()
        if tensor is not None
    ]
    plain = [f"{name}={said}" for name, value in vars(module).items() if (said := literal(value))]
    return sorted(children), tensors, sorted(plain)


def _describe_shape(tensor: torch.Tensor) -> str:
    # A nested tensor has no shape, or has a size with a number of this process.
    if tensor.is_nested or not all(isinstance(size, int) for size in tensor.shape):
        return f"{tensor.dim()} dimensions"
    return str(tuple(tensor.shape))


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
