# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Junk that someone with write access to a store can put in the place of statements."""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

from serve_warm.trust.envelope import MAX_ENVELOPE_BYTES, MAX_SIGNATURES, PAYLOAD_TYPE


def _envelope(size: int, *key_ids: str) -> bytes:
    """Return an envelope of almost `size` bytes, with a wrong signature for each key id."""
    signatures = [
        {"keyid": each, "sig": base64.b64encode(number.to_bytes(64, "little")).decode()}
        for number, each in enumerate(key_ids)
    ]
    fields = {"payloadType": PAYLOAD_TYPE, "signatures": signatures, "payload": ""}
    room = (size - len(json.dumps(fields))) // 4 * 3
    payload = random.Random(room).randbytes(room)
    return json.dumps({**fields, "payload": base64.b64encode(payload).decode()}).encode()


def _repeated(size: int, first: bytes, each: bytes, last: bytes) -> bytes:
    return first + each * ((size - len(first + last)) // len(each)) + last


def _numbered(size: int) -> bytes:
    return b"{%s}" % b",".join(b'"%06x":0' % number for number in range((size - 2) // 11))


SHAPES: dict[str, Callable[[int, str], bytes]] = {
    "zeros": lambda size, _: bytes(size),
    "gzip": lambda size, _: gzip.compress(random.Random(1).randbytes(size))[:size],
    "an unsigned statement": lambda size, _: _envelope(size),
    "a statement of an unknown key": lambda size, _: _envelope(size, "0" * 64),
    "wrong signatures of unknown keys": lambda size, _: _envelope(
        size, *(f"{number:064x}" for number in range(MAX_SIGNATURES))
    ),
    "wrong signatures without key ids": lambda size, _: _envelope(size, *[""] * MAX_SIGNATURES),
    "wrong signatures of a trusted key": lambda size, key: _envelope(size, *[key] * MAX_SIGNATURES),
    "too many signatures": lambda size, _: _repeated(
        size, b'{"payload":"","signatures":[{}', b',{"keyid":"","sig":""}', b"]}"
    ),
    "nested": lambda size, _: b"[" * size,
    "nested just below the limit": lambda size, _: _repeated(
        size, b"[0", b"," + b"[" * 900 + b"]" * 900, b"]"
    ),
    "an array of arrays": lambda size, _: _repeated(size, b"[0", b",[]", b"]"),
    "an array of objects": lambda size, _: _repeated(size, b"[0", b',{"a":{}}', b"]"),
    "an object with many names": lambda size, _: _numbered(size),
    "a huge integer": lambda size, _: b"9" * size,
    "an array of huge integers": lambda size, _: _repeated(size, b"[0", b"," + b"9" * 4300, b"]"),
    "an array of floats": lambda size, _: _repeated(size, b"[0", b",1.5", b"]"),
    "escaped characters": lambda size, _: _repeated(size, b'"', b"\\u0041", b'"'),
}
"""By name, functions that return junk. They take a size in bytes and the id of a trusted key."""


def plant(
    folder: Path, name: str, data: bytes, *, count: int, modified_unix: float | None = None
) -> None:
    """Add junk to a folder store; `name` has a place for a number.

    The files are hard links of one file, so that they need little room on the disk.
    """
    first = folder / name.format(0)
    first.parent.mkdir(parents=True, exist_ok=True)
    first.write_bytes(data[:MAX_ENVELOPE_BYTES])
    if modified_unix is not None:
        os.utime(first, (modified_unix, modified_unix))
    for number in range(1, count):
        os.link(first, folder / name.format(number))
