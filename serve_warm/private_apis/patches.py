# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Applies rows of the table of patches, and reverts them. Nothing else replaces foreign code."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from serve_warm.private_apis.table import TABLE, Patch

logger = logging.getLogger(__name__)

Wrap = Callable[[Any], object]
"""Returns the replacement of a function, which it gets. It gets None if there is no function."""

BY_NAME: dict[str, Patch] = {patch.name: patch for patch in TABLE}


class Change(NamedTuple):
    """One row to apply, and what to put in the place."""

    name: str
    wrap: Wrap
    owner: object = None
    """The class, for a row that is about all classes with this method."""


class AlreadyReplaced(Exception):
    """A second part of serve_warm wants to replace a function that is replaced already."""


class PatchPlace(NamedTuple):
    """Where a function is now."""

    owner: object
    """A module or class."""
    attribute: str
    value: object
    """The function, or None if a patch adds the attribute."""
    is_own: bool
    """Whether the owner itself has the attribute, and does not inherit it."""


def find(name: str, owner: object = None) -> PatchPlace | None:
    """Return where the function of a row is now, or None if this version has no such function.

    Raises:
        KeyError: the table has no row of this name.
    """
    patch = BY_NAME[name]
    for at in patch.at:
        module, _, path = at.partition(":")
        *classes, attribute = path.split(".")
        holder = owner if owner is not None else _resolve(module, classes)
        if holder is None:
            continue
        own = vars(holder)
        value = own.get(attribute, inspect.getattr_static(holder, attribute, None))
        if value is None and attribute not in own and not patch.adds:
            continue
        if isinstance(value, (staticmethod, classmethod)):
            value = getattr(holder, attribute)
        return PatchPlace(holder, attribute, value, is_own=attribute in own)
    return None


def replace(name: str, wrap: Wrap) -> bool:
    """Replace the function of a row for the rest of the process; return whether there is one.

    Raises:
        AlreadyReplaced: it has been replaced before.
    """
    place = find(name)
    if place is None:
        _say_missing(BY_NAME[name])
        return False
    _replace(place, wrap)
    return True


@contextlib.contextmanager
def replaced(changes: Iterable[Change]) -> Iterator[None]:
    """Replace functions in the block. Rows without a function in this version are left out.

    If several changes are about one function, the first one wraps the function itself, and each
    later one wraps the replacement before it.

    Raises:
        AlreadyReplaced: one of them is replaced already.
    """
    wraps: dict[tuple[int, str], tuple[PatchPlace, list[Wrap]]] = {}
    for change in changes:
        place = find(change.name, change.owner)
        if place is not None:
            key = id(place.owner), place.attribute
            wraps.setdefault(key, (place, []))[1].append(change.wrap)
    with contextlib.ExitStack() as undo:
        for place, of_place in wraps.values():
            undo.callback(_replace(place, _in_order(of_place)))
        yield


def _say_missing(patch: Patch) -> None:
    """Log that a start does without a patch, unless this version never had the function."""
    package = sys.modules.get(patch.at[0].partition(".")[0])
    version = str(getattr(package, "__version__", ""))
    # A module that imports a function from its home need not be loaded.
    if version and not patch.home and patch.is_in(version):
        logger.warning(
            "%s of version %s is missing, so serve_warm does without it: %s",
            patch.at[0],
            version,
            patch.why,
        )


def _in_order(wraps: list[Wrap]) -> Wrap:
    def wrap(value: object) -> object:
        for each in wraps:
            value = each(value)
        return value

    return wrap


_replaced: dict[tuple[int, str], PatchPlace] = {}
"""The owners whose attributes are replaced now, by id and attribute."""


def _replace(place: PatchPlace, wrap: Wrap) -> Callable[[], None]:
    """Replace a function, and return a function that puts the old one back."""
    owner, attribute, value, is_own = place
    new: Any = wrap(value)
    key = id(owner), attribute
    if _replaced.setdefault(key, place) is not place:
        raise AlreadyReplaced(
            f"{getattr(owner, '__qualname__', owner)}.{attribute} is replaced already: one part of "
            "serve_warm must make both changes"
        )
    before = inspect.getattr_static(owner, attribute, None)
    # A replacement that needs the class of each call is a `classmethod` itself.
    if isinstance(before, (staticmethod, classmethod)) and not isinstance(new, classmethod):
        new = staticmethod(new)
    setattr(owner, attribute, new)

    def undo() -> None:
        if is_own:
            setattr(owner, attribute, before)
        else:
            delattr(owner, attribute)
        del _replaced[key]

    return undo


def _resolve(module: str, classes: list[str]) -> object:
    """Return a module, or a class in it; None if this version has none."""
    found: object = sys.modules.get(module)
    if found is None:
        try:
            found = importlib.import_module(module)
        except ImportError:
            return None
    for name in classes:
        found = getattr(found, name, None)
    return found
