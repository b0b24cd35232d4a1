# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Torch's own cache bytes, looked at before torch parses them: its reader trusts what they say."""

from __future__ import annotations

import base64
import re
import zlib

from serve_warm.errors import ArtifactRefused


def check_torch_bytes(raw: bytes) -> None:
    """Refuse bytes that torch's own reader would not end on, or would write outside its cache.

    Torch trusts every length in its container: one cut short keeps it in an endless loop, a count
    of 2**60 makes as many objects, and a key such as `../x` becomes a path. This walks the same
    format with bounds. It tells nothing about what is in the entries.
    Format: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/utils/_appending_byte_serializer.py

    Raises:
        ArtifactRefused: `bad_archive`.
    """
    try:
        _walk_container(raw)
    except ValueError as error:
        raise ArtifactRefused(
            f"not what torch's save_cache_artifacts() gives: {error}", reason="bad_archive"
        ) from error


def _walk_container(raw: bytes) -> None:
    # 4 bytes CRC32 of the rest, u64 version, then sections up to the end: the type of the section,
    # u64 count, and so many pairs of key and content. Everything is big-endian; type, key and
    # content follow their u64 length, type and key are base64 inside.
    reader = _Reader(raw, 4)
    if zlib.crc32(memoryview(raw)[4:]) != int.from_bytes(raw[:4], "big"):
        raise ValueError("the checksum is wrong")
    version = reader.number()
    if version != 1:
        raise ValueError(f"container version {version}, expected 1")
    sections: set[str] = set()
    while reader.left:
        section = reader.text()
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", section):
            raise ValueError(f"a section called {section[:80]!r}")
        if section in sections:
            # Saving twice writes a type twice, and torch's reader keeps the last one only.
            raise ValueError(f"two sections called {section}: saved more than once in a process")
        sections.add(section)
        # No bound on the count is needed: each entry reads 16 bytes or more, or fails.
        for _ in range(reader.number()):
            key = reader.text()
            if key.startswith("/") or ".." in key.split("/") or not key.isprintable():
                raise ValueError(f"an entry called {key[:80]!r}")
            reader.skip()


class _Reader:
    """Reads forward in a buffer; everything beyond its end is a ValueError."""

    def __init__(self, raw: bytes, start: int) -> None:
        self._raw = raw
        self._at = start
        if self.left < 0:
            raise ValueError("too short")

    @property
    def left(self) -> int:
        return len(self._raw) - self._at

    def number(self) -> int:
        return int.from_bytes(self._take(8), "big")

    def text(self) -> str:
        return base64.b64decode(self._take(self.number()), validate=True).decode("utf-8")

    def skip(self) -> None:
        self._advance(self.number())

    def _take(self, size: int) -> bytes:
        start = self._at
        self._advance(size)
        return self._raw[start : self._at]

    def _advance(self, size: int) -> None:
        if size > self.left:
            raise ValueError(f"{size} bytes announced, {self.left} left")
        self._at += size
