# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Age checks of an artifact: whether it expires soon, and whether this node used a newer one."""

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
    """Warn if this node has used a newer artifact, or if the artifact will soon be too old.

    Returns a function that records the artifact's creation time. Call the returned function after
    the start has accepted the artifact.

    Raises:
        ArtifactRefused: `rollback`: the policy refuses rollbacks, and this node has used a newer
            artifact or has no usable record of newer artifacts. The artifact is closed.
    """
    manifest = pulled.chosen.manifest
    seen = NewestSeen.beside(wanted.node_cache_dir)
    variant = Variant(
        store=pulled.store,
        deployment=manifest.deployment,
        fingerprint=manifest.fingerprint.key,
    )
    newest = seen.find_created(variant)
    if newest is None:
        refusal = _refuse_without_mark(seen, variant)
        if wanted.trust.rollback == "refuse":
            pulled.close()
            raise with_trace(refusal, pulled.chosen.key, pulled.chosen.trace)
        warn(f"rollback: {refusal.message}")
    if newest is not None and manifest.created < newest:
        found = (
            f"the artifact was created at {manifest.created}, but this node has already loaded a "
            f"newer artifact, created at {newest}. Either the newer artifact is no longer in "
            f"{redact(pulled.store)}, or it came from another store"
        )
        if wanted.trust.rollback == "refuse":
            pulled.close()
            refusal = ArtifactRefused(
                found,
                reason="rollback",
                hint="build and push the artifact again. To roll back on purpose, remove "
                f"{seen.folder / variant.file_name} and "
                f'{seen.node_cache / variant.record_name}, or set rollback = "warn" in the '
                "trust file",
            )
            raise with_trace(refusal, pulled.chosen.key, pulled.chosen.trace)
        warn(f"rollback: {found}")
    if ending := describe_end(wanted.trust, created=manifest.created):
        warn(ending)
    return functools.partial(seen.note, variant, manifest.created)


def _refuse_without_mark(seen: NewestSeen, variant: Variant) -> ArtifactRefused:
    if seen.was_removed(variant):
        return ArtifactRefused(
            f"this node's record of newer artifacts was removed: {seen.folder}",
            reason="rollback",
            hint="keep this folder on the volume of the node cache. If you removed this folder "
            f"on purpose, remove {seen.node_cache / variant.record_name} too",
        )
    return ArtifactRefused(
        f"this node's record of newer artifacts cannot be read or trusted: {seen.folder}",
        reason="rollback",
        hint="make that folder private to this user. If the "
        f"folder's file {variant.file_name} is damaged, remove the file and "
        f"{seen.node_cache / variant.record_name}",
    )
