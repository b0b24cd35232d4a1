# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rollback marks: for each variant, the newest artifacts that a node has used.

A signature proves that an artifact is good, not that it is the latest. If someone with write access
to a store deleted the newest statement, replicas would use an older artifact. So when a
starting replica accepts an artifact, it writes the artifact's signed creation time to a small file,
the mark. There is one mark for each store, application, deployment and fingerprint. A mark has a
time for each code and model, because a replica may prefer an older artifact that matches its code
and model more closely (`code_and_model.find_newer_used`). The marks are in a private folder next to
the node cache.

A new node has no marks, and accepts any artifact. A node whose mark was removed must not look like
a new node. So each mark has a record, an empty file among the blobs of the node cache. A new node
has neither marks nor records.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from serve_warm import _private_folders
from serve_warm._records import record
from serve_warm._regular_files import open_regular, read_regular
from serve_warm.artifact.code_and_model import CodeAndModel
from serve_warm.errors import ArtifactRefused
from serve_warm.trust.envelope import parse_json

logger = logging.getLogger(__name__)

MAX_MARKS = 1000
"""Maximum number of marks. The least recently written marks are removed first."""

MAX_USED = 64
"""Maximum number of codes and models in one mark. Those of the oldest artifacts are removed first,
because only a newer artifact can make another one a rollback."""

_SUFFIX = ".json"
_RECORD_SUFFIX = ".lock"
_MAX_MARK_BYTES = 1 << 16


@record(frozen=True, kw_only=True)
class Variant:
    """The store, application, deployment and fingerprint of a mark."""

    store: str
    """The store's address, as the store reports it. Artifacts of different stores are not
    compared."""
    application: str
    deployment: str
    fingerprint: str
    """The key of the fingerprint."""

    @property
    def file_name(self) -> str:
        """The file name of the mark."""
        return self._digest()[:32] + _SUFFIX

    @property
    def record_name(self) -> str:
        """The file name of the record.

        The name looks like the name of a lock file, because the node cache refuses other names.
        """
        return self._digest() + _RECORD_SUFFIX

    def _digest(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@record(frozen=True, kw_only=True)
class NewestSeen:
    """The marks of a node, in a folder that only this user can access."""

    folder: Path
    node_cache: Path
    """The folder with the records of the marks."""

    @classmethod
    def beside(cls, node_cache: Path) -> NewestSeen:
        """Return the marks that belong to the node cache in the folder `node_cache`."""
        node_cache = node_cache.absolute()
        return cls(folder=node_cache.with_name(f"{node_cache.name}.newest"), node_cache=node_cache)

    def was_removed(self, variant: Variant) -> bool:
        """Return whether the mark was removed: the record exists, but the mark does not."""
        mark, record = self.folder / variant.file_name, self.node_cache / variant.record_name
        return os.path.lexists(record) and not os.path.lexists(mark)

    def find_used(self, variant: Variant) -> dict[CodeAndModel, str] | None:
        """Return when the newest used artifact was created, by code and model; empty without mark.

        Return None if the mark was removed, cannot be read, or is not trusted. A mark is not
        trusted if other users could have removed the mark, written it, or created its folder.
        """
        if self.was_removed(variant):
            what = "the rollback mark (this node's record of the newest artifact) was removed: %s"
            logger.warning(what, self.folder / variant.file_name)
            return None
        try:
            _private_folders.check_private(self.folder, "the folder with the rollback marks")
            mark = self.folder / variant.file_name
            return _read_used(parse_json(read_regular(mark, max_bytes=_MAX_MARK_BYTES)))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, ArtifactRefused) as error:
            logger.warning(
                "cannot read the rollback mark (this node's record of the newest artifact), so "
                "this replica cannot detect a rollback to an older artifact: %s",
                error,
            )
            return None

    def note(self, variant: Variant, made_of: CodeAndModel, created: str) -> None:
        """Write an accepted artifact's signed creation time to the mark, unless the mark is newer.

        Best effort: logs a warning if the mark cannot be written.
        """
        import fcntl

        try:
            _private_folders.make_private(self.folder)
            _private_folders.check_private(self.folder, "the folder with the rollback marks")
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # Two starts may run at once with different artifacts. The newer time must stay.
                fcntl.flock(folder, fcntl.LOCK_EX)
                used = self.find_used(variant) or {}
                if used.get(made_of, "") < created:
                    self._write(variant, {**used, made_of: created})
                self._record(variant)
            finally:
                os.close(folder)
        except (OSError, ArtifactRefused) as error:
            logger.warning(
                "cannot write the rollback mark (this node's record of the newest artifact), so "
                "replicas that start later cannot detect a rollback to an older artifact: %s",
                error,
            )

    def _write(self, variant: Variant, used: Mapping[CodeAndModel, str]) -> None:
        newest = sorted(used.items(), key=lambda item: item[1])[-MAX_USED:]
        times = [{**asdict(made_of), "created": created} for made_of, created in newest]
        data = json.dumps({**asdict(variant), "used": times}, indent=1).encode()
        path = self.folder / variant.file_name
        _private_folders.write_beside(path, data, mode=0o600).replace(path)
        marks = sorted(
            (entry for entry in self.folder.iterdir() if entry.suffix == _SUFFIX),
            key=lambda mark: mark.stat().st_mtime,
        )
        for mark in marks[:-MAX_MARKS]:
            self._forget(mark)

    def _record(self, variant: Variant) -> None:
        """Create the record of a mark in the node cache, if the node cache exists."""
        with suppress(FileNotFoundError):
            _private_folders.check_private(self.node_cache, "the node cache")
            folder = os.open(self.node_cache, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
                os.close(open_regular(variant.record_name, flags, dir_fd=folder))
            finally:
                os.close(folder)

    def _forget(self, mark: Path) -> None:
        """Remove the record of a mark, then the mark."""
        with suppress(OSError, ValueError, TypeError, LookupError):
            fields = parse_json(read_regular(mark, max_bytes=_MAX_MARK_BYTES))
            variant = {each.name: fields[each.name] for each in dataclasses.fields(Variant)}
            (self.node_cache / Variant(**variant).record_name).unlink()
        with suppress(FileNotFoundError):
            mark.unlink()


def _read_used(mark: Any) -> dict[CodeAndModel, str]:
    """Return the times in a mark; raise ValueError if the mark is damaged."""
    try:
        return {
            CodeAndModel(code=each["code"], model=each["model"]): each["created"] + ""
            for each in mark["used"]
        }
    except (LookupError, TypeError) as error:
        raise ValueError(f"a rollback mark is damaged: {error}") from error
