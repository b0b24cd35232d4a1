# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""All groups by name, the groups for each kind of guard, and the packages that groups need."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping

from soundness import (
    adapters,
    created,
    flags,
    guards,
    identities,
    inputs,
    libraries,
    lookups,
    modules,
    returned,
    settling,
    sources,
    values,
    weights,
)
from soundness.rows import Group

MODULES = (
    *(guards, values, modules, weights, sources, flags, inputs, libraries, adapters, settling),
    *(lookups, identities, returned, created),
)

GROUPS: dict[str, Group] = {group.name: group for module in MODULES for group in module.GROUPS}


def missing(group: Group) -> list[str]:
    """Return the packages that a group needs and this environment lacks."""
    return [package for package in group.needs if importlib.util.find_spec(package) is None]


def of_guard(method: str) -> list[Group]:
    """Return the groups that are about a method of GuardBuilder."""
    return [group for group in GROUPS.values() if method in group.guards]


def guard_methods() -> list[str]:
    """Return the names of all kinds of guards that this torch installs."""
    from torch._dynamo.guards import GuardBuilder

    return sorted(name for name in vars(GuardBuilder) if name.isupper() and name[0] != "_")


def unseen(guards: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the kinds of guards that belong to a group but appeared in no build.

    `guards` are the guards that Dynamo installed, by group.
    """
    seen = set().union(*guards.values())
    return [
        method
        for method in guard_methods()
        if method not in seen and any(group.name in guards for group in of_guard(method))
    ]
