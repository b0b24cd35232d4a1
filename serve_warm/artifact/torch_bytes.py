# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Validation of torch's own cache bytes, because torch's reader trusts them."""

from __future__ import annotations

import base64
import re
import zlib

from serve_warm._redaction import excerpt
from serve_warm.errors import ArtifactRefused


def check_torch_bytes(raw: bytes) -> None:
    """Refuse bytes that would hang torch's reader or make it write outside its cache.

    Torch trusts every length in this container. Truncated bytes make torch loop forever, a count of
    2**60 makes torch create that many objects, and torch uses a key such as `../x` as a path. This
    function parses the same format and checks all bounds. The function does not check the content
    of entries. Format:
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/utils/_appending_byte_serializer.py

    Raises:
        ArtifactRefused: `bad_archive`.
    """
    try:
        _walk_container(raw)
    except ValueError as error:
        raise ArtifactRefused(
            f"not the output of torch's save_cache_artifacts(): {error}", reason="bad_archive"
        ) from error


def _walk_container(raw: bytes) -> None:
    # 4 bytes CRC32 of the rest, u64 version, then sections up to the end. A section is its type, a
    # u64 count, and that many pairs of key and content. Everything is big-endian. A u64 length
    # precedes each type, key and content; types and keys are base64.
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
            raise ValueError(f"a section has the forbidden name {excerpt(section, 80)!r}")
        if section in sections:
            # Saving twice writes a type twice, but torch's reader keeps only the last one.
            raise ValueError(
                f"two sections have the name {section}: the process saved its caches more than once"
            )
        sections.add(section)
        # The count needs no limit, because parsing an entry consumes at least 16 bytes or fails.
        for _ in range(reader.number()):
            key = reader.text()
            if key.startswith("/") or ".." in key.split("/") or not key.isprintable():
                raise ValueError(f"an entry has the forbidden name {excerpt(key, 80)!r}")
            reader.skip()


class _Reader:
    """Reads forward in a buffer; raises ValueError at the end of the buffer."""

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
            raise ValueError(f"expected {size} more bytes, but only {self.left} are left")
        self._at += size
