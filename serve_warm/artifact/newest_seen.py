# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The newest artifact that a node took of each variant, to notice an older one in its place.

A signature says that an artifact is good, not that it is the latest: whoever may write to a store
can delete the newest statement, and every replica takes the one before it. So each start that has
accepted an artifact leaves its signed time in a small file, for the store, the deployment and the
fingerprint. The files stand in a folder beside the node's blobs, private to the same user. A node
without one notices nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from serve_warm import _atomic_files, _private_folders
from serve_warm.errors import ArtifactRefused
from serve_warm.trust.envelope import parse_json

logger = logging.getLogger(__name__)

MAX_MARKS = 1000
"""Files that are kept; those that were written longest ago go first."""

_SUFFIX = ".json"
_MAX_MARK_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What a mark is about."""

    store: str
    """Its address, as the store gives it: of two stores neither is older than the other."""
    deployment: str
    fingerprint: str
    """Its key."""

    @property
    def file_name(self) -> str:
        """The name of its mark."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32] + _SUFFIX


@dataclass(frozen=True, kw_only=True)
class NewestSeen:
    """The marks of a node, in a folder that belongs to this user alone."""

    folder: Path

    @classmethod
    def beside(cls, node_cache: Path) -> NewestSeen:
        """Return the marks that belong to the node cache in a folder."""
        return cls(folder=node_cache.absolute().with_name(f"{node_cache.name}.newest"))

    def created(self, variant: Variant) -> str:
        """Return the signed time of the newest artifact that was noted; empty if none is known."""
        return self.find_created(variant) or ""

    def find_created(self, variant: Variant) -> str | None:
        """Return the same; None where there is a mark that cannot be read or believed.

        Others could have written it, or have made its folder first.
        """
        try:
            _private_folders.check_private(self.folder, "the folder of the newest artifacts seen")
            with (self.folder / variant.file_name).open("rb") as file:
                fields = parse_json(file.read(_MAX_MARK_BYTES))
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, ArtifactRefused) as error:
            logger.warning("an artifact that is older than before goes unnoticed: %s", error)
            return None
        created = fields.get("created") if isinstance(fields, dict) else None
        return created if isinstance(created, str) else None

    def note(self, variant: Variant, created: str) -> None:
        """Remember the signed time of an artifact that a start has accepted, if it is the newest.

        Nothing depends on it: where it cannot be written, a warning says so.
        """
        import fcntl

        try:
            _private_folders.make_private(self.folder)
            _private_folders.check_private(self.folder, "the folder of the newest artifacts seen")
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # Two starts at once, of which one took an older artifact: the newer time stays.
                fcntl.flock(folder, fcntl.LOCK_EX)
                if self.created(variant) < created:
                    self._write(variant, created)
            finally:
                os.close(folder)
        except (OSError, ArtifactRefused) as error:
            logger.warning("an older artifact would go unnoticed on this node: %s", error)

    def _write(self, variant: Variant, created: str) -> None:
        data = json.dumps({**asdict(variant), "created": created}, indent=1).encode()
        path = self.folder / variant.file_name
        _atomic_files.write_beside(path, data, mode=0o600).replace(path)
        marks = sorted(
            (entry for entry in self.folder.iterdir() if entry.suffix == _SUFFIX),
            key=lambda mark: mark.stat().st_mtime,
        )
        for mark in marks[:-MAX_MARKS]:
            with suppress(FileNotFoundError):
                mark.unlink()
