# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The time of an artifact: whether a start takes one that is older than before, or soon too old."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from serve_warm._redaction import redact
from serve_warm.artifact.choose import with_trace
from serve_warm.artifact.newest_seen import NewestSeen, Variant
from serve_warm.errors import ArtifactRefused
from serve_warm.trust.verify import describe_end

if TYPE_CHECKING:
    from serve_warm.artifact.pull import Pulled
    from serve_warm.replica.prefetch import Wanted


def check_time(pulled: Pulled, wanted: Wanted, warn: Callable[[str], object]) -> Callable[[], None]:
    """Warn if an artifact is older than one before, or soon too old; return what notes it.

    What is returned is called when the start has accepted it.

    Raises:
        ArtifactRefused: `rollback`: it is older, or that cannot be told, and the policy is to
            refuse that. It is closed.
    """
    manifest = pulled.chosen.manifest
    seen = NewestSeen.beside(wanted.node_cache_dir)
    variant = Variant(
        store=pulled.store,
        deployment=manifest.deployment,
        fingerprint=manifest.fingerprint.key,
    )
    newest = seen.find_created(variant)
    if newest is None and wanted.trust.rollback == "refuse":
        pulled.close()
        refusal = ArtifactRefused(
            f"what this node knows of newer artifacts cannot be read or believed: {seen.folder}",
            reason="rollback",
            hint="make that folder private to this user, or name a private node_cache_dir; a "
            f"damaged {variant.file_name} in it can be removed",
        )
        raise with_trace(refusal, pulled.chosen.key, pulled.chosen.trace)
    if newest is not None and manifest.created < newest:
        found = (
            f"the artifact was created {manifest.created}, and this node took one of {newest} "
            f"from {redact(pulled.store)} before: somebody removed that one"
        )
        if wanted.trust.rollback == "refuse":
            pulled.close()
            refusal = ArtifactRefused(
                found,
                reason="rollback",
                hint="build and push again; if going back was meant, remove "
                f"{seen.folder / variant.file_name}, or set rollback to warn in the trust file",
            )
            raise with_trace(refusal, pulled.chosen.key, pulled.chosen.trace)
        warn(f"rollback: {found}")
    if ending := describe_end(wanted.trust, created=manifest.created):
        warn(ending)
    return functools.partial(seen.note, variant, manifest.created)
