# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The destination of a build, and what happens if the destination already has the variant."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from serve_warm._records import record
from serve_warm._store_address import folder_of
from serve_warm.artifact import catalog, push
from serve_warm.artifact.manifest import Manifest
from serve_warm.artifact.unsigned import OfPublished
from serve_warm.fingerprint import Fingerprint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from serve_warm.builder.app import App
    from serve_warm.builder.cluster import Look
    from serve_warm.stores import Store

Variant = tuple[Manifest, dict[str, bytes]]
"""The manifest of an artifact, and its stored parts by name."""


@record(frozen=True, kw_only=True)
class Destination:
    """The store that a build publishes to, and the rule for variants that are already there."""

    store: Store
    if_published: OfPublished
    """What to do if the store already has the variant. `refuse` fails. `keep` publishes nothing,
    but tests the artifact that is already in the store. `supersede` publishes the new artifact
    beside the old one."""

    @classmethod
    def of(cls, store: Store, if_published: OfPublished | None = None) -> Destination:
        """Return the destination with the given rule, or with the rule for this kind of store.

        In a folder where only this user can publish, a new artifact supersedes the older one, so
        that a build after an edit works. In a shared store, the variant may be another team's.
        """
        return cls(
            store=store,
            if_published=if_published or ("supersede" if is_own_folder(store) else "refuse"),
        )

    def refuse_early(self, app: App) -> Look:
        """Return a function that raises if the variant of a starting replica is already published.

        The function raises before the start compiles anything. The function acts only if
        `if_published` is `refuse`.
        """
        if self.if_published != "refuse":
            return lambda _: None
        asked: set[str] = set()

        def look(states: Sequence[Mapping[str, Any]]) -> None:
            for state in states:
                said = state.get("fingerprint")
                if not said:
                    continue
                fingerprint = Fingerprint.from_json(said)
                if fingerprint.key in asked:
                    continue
                asked.add(fingerprint.key)
                there = push.find_published(self.store, app.place, fingerprint)
                if there:
                    raise push.already_published(self.store, app.place, fingerprint, there[-1])

        return look

    def decide(self, manifests: Sequence[Manifest]) -> OfPublished:
        """Return what to do with the new variants. A gang has one variant for each rank.

        If no variant is published yet, the result is `refuse`, so that the push fails if another
        writer publishes a variant first.

        Raises:
            AlreadyPublished: a variant is published, and `if_published` does not allow it.
        """
        if self.if_published == "supersede":
            return "supersede"
        there = [
            push.find_published(self.store, made.place, made.fingerprint) for made in manifests
        ]
        # All variants of a gang are kept, or none.
        if self.if_published == "keep" and all(there):
            return "keep"
        for manifest, before in zip(manifests, there, strict=True):
            if before:
                raise push.already_published(
                    self.store, manifest.place, manifest.fingerprint, before[-1]
                )
        return "refuse"


def is_own_folder(store: Store) -> bool:
    """Return whether a store is a folder, or will be one, where only this user can publish."""
    folder = folder_of(store.uri)
    if folder is None:
        return False
    try:
        found = folder.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    is_shared = found.st_mode & stat.S_IWOTH or (
        found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid)
    )
    return found.st_uid == os.geteuid() and not is_shared


def _is_private_group(gid: int) -> bool:
    """Return whether this user is alone in a group, as in a group that is made with the user."""
    with suppress(KeyError):  # there is no such group, or no such user
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
        return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return False


def find_manifests(store: Store, app: App, statements: Collection[str]) -> list[Manifest | None]:
    """Return the manifests of an app's artifacts in a store; None for an unreadable manifest."""
    place = app.place
    there = catalog.describe(
        store,
        app.known_trust(),
        application=place.application,
        deployment=place.deployment,
    )
    return [item.manifest for item in there if item.statement in statements]


def push_all(
    store: Store,
    variants: Sequence[Variant],
    key: Ed25519PrivateKey | None,
    *,
    on_taken: push.OnTaken = "refuse",
) -> list[str]:
    """Publish variants, signed by `key` if there is one, and return their statements."""
    return [
        push.push(store, manifest, stored, None if key is None else [key], on_taken=on_taken)
        for manifest, stored in variants
    ]
