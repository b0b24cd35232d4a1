# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Guards of Dynamo, as records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from serve_warm._records import record
from serve_warm.precompile.facts.torch_errors import OF_TORCH
from serve_warm.private_apis import dynamo

if TYPE_CHECKING:
    from traceback import FrameSummary

    import torch

    from serve_warm.private_apis.dynamo_objects import GuardEntry, ObjectSource


@record(frozen=True, kw_only=True)
class Guard:
    """One Dynamo guard, whose objects still exist."""

    path: str
    """Python expression over `callee`, tensors (`t0`, `t1`), globals (`G`) and `keys` (`KEYS`)."""
    kind: str
    """Dynamo's name for this kind, for example CONSTANT_MATCH."""
    value: object
    argument: object = None
    """The second parameter of the guard: the name of an attribute, or a key."""
    keys: Sequence[object] = ()
    """Dict keys on the path that are neither strings nor integers."""
    where: str = ""
    """File and line of the user's code that needs the guard; empty if unknown."""


def guard_from(entry: GuardEntry) -> Guard:
    """Return a Dynamo guard as a `Guard`, from which facts are made."""
    of_attribute = _of_attribute(entry)
    if of_attribute is not None:
        return of_attribute
    keywords = dynamo.arguments_of(entry.orig_guard)
    keys: list[object] = []
    source = entry.orig_guard.originating_source
    # A guard on the state of the process has no path.
    path = _expression(source, keys) if entry.name else ""
    about: object = keywords.get("attr", keywords.get("key", None))
    if "source_b" in keywords:
        about = _expression(keywords["source_b"], keys)
    return Guard(
        path=path,
        kind=entry.guard_type,
        value=entry.value if entry.has_value else None,
        argument=about,
        keys=keys,
        where=_line_of(entry.orig_guard.user_stack or ()),
    )


def _line_of(stack: Sequence[FrameSummary]) -> str:
    """Return the innermost file and line of user code in a stack, or an empty string."""
    of_user = [each for each in stack if not each.filename.startswith("<")]
    others = [each for each in of_user if OF_TORCH not in each.filename]
    last = (others or of_user)[-1:]
    return "".join(f"{Path(each.filename).name}:{each.lineno}" for each in last)


def _of_attribute(entry: GuardEntry) -> Guard | None:
    """Convert a torch 2.11 guard on an attribute's presence to a 2.13 guard on the owner.

    The guard cannot be on the attribute itself, because the attribute might be absent. Returns
    `None` for any other guard.
    """
    named = "attr" in dynamo.arguments_of(entry.orig_guard)
    if entry.guard_type != "HASATTR" or named:
        return None
    source = dynamo.without_wrappers(entry.orig_guard.originating_source)
    owner = SimpleNamespace(**({source.member: None} if entry.has_value else {}))
    keys: list[object] = []
    path = _expression(source.base, keys)
    return Guard(path=path, kind="HASATTR", value=owner, argument=source.member, keys=keys)


def _expression(source: ObjectSource, keys: list[object]) -> str:
    """Return a source as a Python expression; keys without a usable repr are put in `keys`.

    Sources form a chain: each source has a `base`, and its name contains the base's name.
    """
    name = str(path_of(source))
    base: ObjectSource | None = getattr(source, "base", None)
    if base is None:
        return name
    inner = str(path_of(base))
    written = _expression(base, keys)
    index: object = getattr(source, "index", None)
    if index is None or type(index) in (str, int) or hasattr(index, "guard_source"):
        return name.replace(inner, written) if inner != written else name
    if getattr(source, "index_is_slice", False):
        return name.replace(inner, written)
    keys.append(index)
    return f"dict.__getitem__({written}, KEYS[{len(keys) - 1}])"


def path_of(source: ObjectSource | None) -> str | None:
    """Return the Python expression of a Dynamo source, if it has one."""
    if source is None:
        return None
    try:
        name = source.name  # a method up to 2.11
        return str(name() if callable(name) else name)
    except NotImplementedError:  # a bare `Source`, of an object that the trace has created
        return None


def source_of(node: torch.fx.Node) -> str:
    """Return the origin of a graph's input, as a Python expression over the arguments `L`."""
    return str(path_of(dynamo.source_of_input(node)))
