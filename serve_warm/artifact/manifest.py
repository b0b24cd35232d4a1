# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What an artifact is: parts with digests, described by one statement that can be signed.

A part is a blob of bytes, compressed with zstd. The manifest names the parts with the digests of
their stored and raw bytes, the deployment, and the machine and app they were built for; as bytes
it is an in-toto statement (https://in-toto.io/Statement/v1) whose subjects are the stored parts.
One statement covers all parts, so parts of two artifacts cannot be mixed.

    part           raw bytes
    cache          a tar of the cache directory: torch's entries and the built kernels
    precompiled    a tar of entries made ahead of time and their index (`serve_warm.entries`)
    exported       a tar of libraries made ahead of time, which need no compiler, and their index
    torch_bytes    what torch.compiler.save_cache_artifacts() returned

Everything that reads is strict and bounded, and refuses rather than repairs. Whether bytes may be
loaded at all is not decided here but by the signature (`serve_warm.trust.verify`).
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from serve_warm import _private_folders
from serve_warm.errors import ArtifactRefused, BuildFailed
from serve_warm.fingerprint import Fingerprint
from serve_warm.trust.envelope import parse_json

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FORMAT = 1
"""Version of statement and parts. A reader refuses a newer one; it does not guess."""

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://serve-warm.dev/artifact/v"
"""Followed by the format version."""

OPTIONAL_PARTS = frozenset({"precompiled", "exported"})
"""Parts that a start asks for and an artifact need not have."""

DIRECTORY_PARTS = frozenset({"cache", "precompiled", "exported"})
"""Parts whose raw bytes are a packed directory."""

MAX_PARTS = 16
MAX_STORED_BYTES = 1 << 30
"""Of one part as it is stored and downloaded."""
MAX_RAW_BYTES = 4 << 30
"""Of one part unpacked, which is how it lies on the disk while it is put in place."""
MAX_MEMBERS = 200_000
"""Files and directories in a packed directory; each costs a kilobyte to look at."""

CODEC = "zstd"
COMPRESSION_LEVEL = 9
MAX_WINDOW_LOG = 27
"""The decoder's memory, as a power of two; what level 9 writes stays below it."""
_CHUNK_BYTES = 1 << 20

_ANY_BYTES = 1 << 50
"""What is no size of anything: such a statement is nonsense, and not only too large."""

_HEX_64 = re.compile(r"[0-9a-f]{64}")
_PART_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_CREATED_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
# Of ASCII digits alone, which sort as numbers do.
_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One blob of an artifact."""

    name: str
    """A lower-case letter, then up to 63 of a-z, 0-9 and _."""
    sha256: str
    """Hex, of the stored bytes. It is what the statement's subject says, and the blob's key."""
    stored_bytes: int
    raw_sha256: str
    raw_bytes: int
    codec: str = CODEC

    def __post_init__(self) -> None:
        problems = [
            f"{label} is {value!r}"
            for label, value, good in (
                ("name", self.name, _PART_NAME.fullmatch(self.name)),
                ("sha256", self.sha256, _HEX_64.fullmatch(self.sha256)),
                ("raw_sha256", self.raw_sha256, _HEX_64.fullmatch(self.raw_sha256)),
                ("stored_bytes", self.stored_bytes, 0 < self.stored_bytes < _ANY_BYTES),
                ("raw_bytes", self.raw_bytes, 0 <= self.raw_bytes < _ANY_BYTES),
                ("codec", self.codec, self.codec == CODEC),
            )
            if not good
        ]
        if problems:
            raise ValueError(f"a part cannot be: {', '.join(problems)}")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One artifact: what it is for and what it is made of."""

    deployment: str
    fingerprint: Fingerprint
    parts: tuple[Part, ...]
    created: str
    """UTC as `utc_now` writes it, so that text order is time order."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """JSON about the build, for people and later versions. Nothing is decided by it."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if not 1 <= len(names) <= MAX_PARTS or len(set(names)) != len(names):
            raise ValueError(f"an artifact has 1 to {MAX_PARTS} parts of different names: {names}")
        if not self.deployment or not self.deployment.isprintable():
            raise ValueError(f"not the name of a deployment: {self.deployment!r}")
        if self.format != FORMAT:
            raise ValueError(f"format {self.format} cannot be written, only {FORMAT}")
        if not _CREATED.fullmatch(self.created):
            raise ValueError(f"created is not a time: {self.created!r}")
        datetime.strptime(self.created, _CREATED_FORMAT).replace(tzinfo=timezone.utc)

    def part(self, name: str) -> Part:
        """Return the part of this name.

        Raises:
            ArtifactRefused: `missing_part`.
        """
        for part in self.parts:
            if part.name == name:
                return part
        raise ArtifactRefused(
            f"the artifact has no part {name!r}, only {', '.join(p.name for p in self.parts)}",
            reason="missing_part",
            hint=f"build it with {name}, or load only the parts that it has",
        )

    def to_statement(self) -> bytes:
        """Return the in-toto statement, the same bytes for the same manifest.

        Raises:
            ValueError: the facts are not JSON.
        """
        statement = {
            "_type": STATEMENT_TYPE,
            "subject": [_subject(part) for part in self.parts],
            "predicateType": f"{PREDICATE_TYPE}{self.format}",
            "predicate": {
                "format": self.format,
                "deployment": self.deployment,
                "created": self.created,
                "fingerprint": self.fingerprint.to_json(),
                "parts": [vars(part) for part in self.parts],
                "facts": dict(self.facts),
            },
        }
        try:
            text = json.dumps(statement, allow_nan=False, separators=(",", ":"), sort_keys=True)
        except TypeError as error:
            raise ValueError(f"the facts of an artifact are not JSON: {error}") from error
        return text.encode()

    @classmethod
    def from_statement(cls, payload: bytes) -> Manifest:
        """Read a statement, strictly.

        Raises:
            ArtifactRefused: `newer_format`, or `bad_statement` for any other deviation.
        """
        try:
            statement = parse_json(payload)
            _check_format(statement)
            return _read_statement(statement)
        except ValueError as error:
            raise ArtifactRefused(
                f"not the statement of an artifact: {error}", reason="bad_statement"
            ) from error


def utc_now() -> str:
    """Return the time as manifests write it: ISO 8601, UTC, microseconds."""
    return datetime.now(timezone.utc).strftime(_CREATED_FORMAT)


def _subject(part: Part) -> dict[str, Any]:
    return {"name": part.name, "digest": {"sha256": part.sha256}}


def _check_format(statement: Any) -> None:
    """Tell a newer format from a broken one before looking at anything that may have changed."""
    if not isinstance(statement, dict) or statement.get("_type") != STATEMENT_TYPE:
        raise ValueError(f"_type is not {STATEMENT_TYPE}")
    kind, predicate = statement.get("predicateType"), statement.get("predicate")
    if not isinstance(kind, str) or not isinstance(predicate, dict):
        raise ValueError("predicate or predicateType is missing")  # noqa: TRY004 - as others
    version = kind.removeprefix(PREDICATE_TYPE)
    if kind == version or not re.fullmatch(r"[1-9][0-9]{0,8}", version):
        raise ValueError(f"predicateType is not {PREDICATE_TYPE}{FORMAT}")
    if predicate.get("format") != int(version):
        raise ValueError("format and predicateType disagree")
    if int(version) > FORMAT:
        raise ArtifactRefused(
            f"the artifact has format {version}, this release reads format {FORMAT}",
            reason="newer_format",
            hint="upgrade serve-warm here, or build with the release that runs here",
        )


def _read_statement(statement: Any) -> Manifest:
    _members(statement, _type=str, subject=list, predicateType=str, predicate=dict)
    predicate = _members(
        statement["predicate"],
        format=int,
        deployment=str,
        created=str,
        fingerprint=dict,
        parts=list,
        facts=dict,
    )
    parts = tuple(
        Part(
            **_members(
                item,
                name=str,
                sha256=str,
                stored_bytes=int,
                raw_sha256=str,
                raw_bytes=int,
                codec=str,
            )
        )
        for item in predicate["parts"]
    )
    if statement["subject"] != [_subject(part) for part in parts]:
        raise ValueError("the subjects are not the parts")
    return Manifest(
        format=predicate["format"],
        deployment=predicate["deployment"],
        created=predicate["created"],
        fingerprint=Fingerprint.from_json(predicate["fingerprint"]),
        parts=parts,
        facts=predicate["facts"],
    )


def _members(data: Any, **types: type) -> dict[str, Any]:
    """Return a JSON object that has exactly these members of exactly these types."""
    if not isinstance(data, dict) or data.keys() != types.keys():
        raise ValueError(f"an object should have exactly the members {', '.join(types)}")
    for name, kind in types.items():
        # Not isinstance: True would pass for a number.
        if type(data[name]) is not kind:
            raise ValueError(f"{name} is not of type {kind.__name__}")
    return data


# --- parts ---------------------------------------------------------------------------------


def pack_part(name: str, raw: bytes) -> tuple[Part, bytes]:
    """Compress `raw` into a part; returns it with the bytes to store."""
    stored = zstd.compress(raw, COMPRESSION_LEVEL)
    part = Part(
        name=name,
        sha256=hashlib.sha256(stored).hexdigest(),
        stored_bytes=len(stored),
        raw_sha256=hashlib.sha256(raw).hexdigest(),
        raw_bytes=len(raw),
    )
    return part, stored


def check_caps(
    part: Part,
    *,
    max_stored_bytes: int = MAX_STORED_BYTES,
    max_raw_bytes: int = MAX_RAW_BYTES,
) -> None:
    """Refuse a part that is too large, by what its manifest says.

    Raises:
        ArtifactRefused: `too_large`.
    """
    for label, size, limit in (
        ("stored", part.stored_bytes, max_stored_bytes),
        ("unpacked", part.raw_bytes, max_raw_bytes),
    ):
        if size > limit:
            raise ArtifactRefused(
                f"part {part.name} has {size} bytes {label}, the limit is {limit}",
                reason="too_large",
            )


def check_stored(part: Part, stored: bytes) -> None:
    """Refuse stored bytes that are not those of the manifest.

    Raises:
        ArtifactRefused: `truncated`, `size_mismatch` or `digest_mismatch`.
    """
    check_stored_size(part, len(stored))
    digest = hashlib.sha256(stored).hexdigest()
    if digest != part.sha256:
        raise ArtifactRefused(
            f"part {part.name}: sha256 is {digest[:16]}, the manifest says {part.sha256[:16]}",
            reason="digest_mismatch",
            hint="the blob was changed after it was published; build and push again",
        )


def check_stored_size(part: Part, size: int) -> None:
    """Refuse a blob by its size, before it is read.

    Raises:
        ArtifactRefused: `truncated` or `size_mismatch`.
    """
    if size != part.stored_bytes:
        raise ArtifactRefused(
            f"part {part.name} has {size} bytes, the manifest says {part.stored_bytes}",
            reason="truncated" if size < part.stored_bytes else "size_mismatch",
            hint="the blob was changed after it was published; build and push again",
        )


def open_part(part: Part, stored: BinaryIO) -> BinaryIO:
    """Return the raw bytes of a part as a file without a name, open at its beginning.

    `stored` holds the stored bytes, whose digest has been checked: no decompressor sees a byte
    that is not what was signed. The size that the manifest promises bounds what is written,
    whatever the compressed bytes would unpack to; apply `check_caps` first. The file is on disk
    and nobody else can open it. Whoever calls closes it.

    Raises:
        ArtifactRefused: `size_mismatch`, `truncated`, `digest_mismatch` or `bad_archive` for what
            was inside.
        OSError: there is no room for it.
    """
    with ExitStack() as opened:
        raw: BinaryIO = opened.enter_context(tempfile.TemporaryFile(prefix="serve_warm-"))
        _unpack(part, stored, raw)
        raw.seek(0)
        opened.pop_all()  # from here on it is the caller's
    return raw


def _unpack(part: Part, stored: BinaryIO, raw: BinaryIO) -> None:
    digest = hashlib.sha256()
    # Hashing, unpacking and writing let other threads run: together they take half the time.
    with ThreadPoolExecutor(1, "serve_warm-hash") as hasher:
        hashed = hasher.submit(digest.update, b"")
        for piece in _decompressed(part, stored):
            hashed.result()
            hashed = hasher.submit(digest.update, piece)
            raw.write(piece)
    if digest.hexdigest() != part.raw_sha256:
        raise ArtifactRefused(
            f"part {part.name} unpacks to other bytes than the manifest says",
            reason="digest_mismatch",
        )
    if part.name == "torch_bytes":
        raw.seek(0)
        check_torch_bytes(raw.read())


def _decompressed(part: Part, stored: BinaryIO) -> Iterator[bytes]:
    what = f"part {part.name}"
    wrong_size = ArtifactRefused(
        f"{what} does not unpack to the {part.raw_bytes} bytes of the manifest",
        reason="size_mismatch",
    )
    stored.seek(0)
    left = part.raw_bytes
    try:
        decoder = zstd.ZstdDecompressor(
            options={zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG}
        )
        while not decoder.eof:
            chunk = stored.read(_CHUNK_BYTES) if decoder.needs_input else b""
            if decoder.needs_input and not chunk:
                raise ArtifactRefused(f"{what}: the compressed bytes end early", reason="truncated")
            piece = decoder.decompress(chunk, max_length=min(left + 1, _CHUNK_BYTES))
            left -= len(piece)
            if left < 0:
                raise wrong_size
            yield piece
    except zstd.ZstdError as error:
        raise ArtifactRefused(f"{what} is not zstd: {error}", reason="bad_archive") from error
    if left:
        raise wrong_size
    if decoder.unused_data or stored.read(1):
        raise ArtifactRefused(
            f"{what}: something follows the compressed bytes", reason="bad_archive"
        )


# --- directories ---------------------------------------------------------------------------


def is_scratch(name: str) -> bool:
    """Whether a path in a cache directory is of no use in another: locks, temporary files, PCHs.

    Torch looks for precompiled headers in its default directory only, wherever the cache is, so
    that in an artifact they would be megabytes that nobody reads.
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/codecache.py#L3542
    """
    last = name.rpartition("/")[2]
    return last == "locks" or last.endswith((".lock", ".tmp", ".gch", ".pch"))


def pack_directory(directory: Path, *, skip: Callable[[str], bool] = is_scratch) -> bytes:
    """Return a directory as a tar, the same bytes for the same names and contents.

    `skip` gets each path relative to `directory`, with `/` between names, and drops it, with all
    that is below. Modes and times are not kept: a library needs no x bit to be loaded.

    Raises:
        BuildFailed: something in it could not be unpacked again: a link, a device, an odd name.
        OSError: something could not be read.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, entry in sorted(_entries(directory, "", skip)):
            member = tarfile.TarInfo(name)
            problem = _name_problem(name)
            if problem:
                raise BuildFailed(f"{directory} cannot be packed: {problem}")
            if entry.is_dir(follow_symlinks=False):
                member.type, member.mode = tarfile.DIRTYPE, 0o700
                archive.addfile(member)
            elif entry.is_file(follow_symlinks=False):
                data = Path(entry.path).read_bytes()
                member.size, member.mode = len(data), 0o600
                archive.addfile(member, io.BytesIO(data))
            else:
                raise BuildFailed(f"{directory} cannot be packed: {name!r} is no regular file")
    return buffer.getvalue()


def _entries(
    directory: Path, prefix: str, skip: Callable[[str], bool]
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            name = prefix + entry.name
            if skip(name):
                continue
            yield name, entry
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path), f"{name}/", skip)


def unpack_directory(raw: BinaryIO, target: Path) -> None:
    """Write a packed directory into `target`, an empty directory that only this user can enter.

    All members are checked before the first is written. Files get mode 0600, directories 0700.

    Raises:
        ArtifactRefused: `bad_archive`, or `unsafe_directory` for the target.
        OSError: something could not be written; what was is still there.
    """
    _check_private(target)
    for member in _read_members(raw, target):
        path = target / member.name
        if member.isdir():
            path.mkdir(mode=0o700)
            continue
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            raw.seek(member.offset_data)
            left = member.size
            while left:
                piece = raw.read(min(left, _CHUNK_BYTES))
                file.write(piece)
                left -= len(piece)


def check_directory(raw: BinaryIO) -> None:
    """Refuse a packed directory that `unpack_directory` would refuse; writes nothing.

    Raises:
        ArtifactRefused: `bad_archive`.
    """
    _read_members(raw, Path("/"))


def _check_private(target: Path) -> None:
    _private_folders.check_private(target, "the folder to unpack into", advice="or name a new one")
    if any(target.iterdir()):
        raise ArtifactRefused(
            f"{target} is not empty",
            reason="unsafe_directory",
            hint="unpack into a new directory of mode 0700",
        )


def _read_members(raw: BinaryIO, target: Path) -> list[tarfile.TarInfo]:
    try:
        members = list(_members_in(raw))
        end = _check_members(members, target)
        _check_end(raw, end)
    # A damaged header can also make tarfile seek too far or call itself without end.
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise ArtifactRefused(f"not a packed directory: {error}", reason="bad_archive") from error
    return members


def _members_in(raw: BinaryIO) -> Iterator[tarfile.TarInfo]:
    with tarfile.open(fileobj=_Headers(raw), mode="r:") as archive:
        for count, member in enumerate(archive, start=1):
            if count > MAX_MEMBERS:
                raise ValueError(f"it has more than {MAX_MEMBERS} members")
            yield member


class _Headers(io.RawIOBase):
    """What tarfile sees of an archive: headers, which are small and stand inside it.

    It would ask for as much memory as a long name says that it has, and seek to wherever a size
    points.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._size = raw.seek(0, os.SEEK_END)
        raw.seek(0)

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= _CHUNK_BYTES:
            raise ValueError(f"a header of {size} bytes")
        return self._raw.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence != os.SEEK_SET or offset > self._size:
            raise ValueError("a member ends behind the end")
        return self._raw.seek(offset)

    def tell(self) -> int:
        return self._raw.tell()


def _check_members(members: list[tarfile.TarInfo], target: Path) -> int:
    """Raise ValueError for a member that must not be written; return where the last one ends."""
    files: set[str] = set()
    directories: set[str] = {""}
    end = 0
    for member in members:
        name = member.name
        problem = _name_problem(name)
        if member.type not in (tarfile.REGTYPE, tarfile.DIRTYPE) or member.issparse():
            problem = f"{name!r} is neither a regular file nor a directory"
        elif member.mode & ~0o777:
            problem = f"{name!r} has set-id or sticky bits"
        elif name in files or name in directories:
            problem = f"{name!r} is there twice"
        elif name.rpartition("/")[0] not in directories:
            problem = f"{name!r} stands before its directory"
        if problem:
            raise ValueError(problem)
        # The standard library's opinion as well; it knows tricks that the above may not. Early
        # patch releases of Python 3.10 and 3.11 have none.
        if hasattr(tarfile, "data_filter"):
            tarfile.data_filter(member, str(target))
        (directories if member.isdir() else files).add(name)
        end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    return end


def _check_end(raw: BinaryIO, end: int) -> None:
    # tarfile takes damage in the middle for the end; what really ends is zeros from there on.
    if raw.seek(0, os.SEEK_END) < end:
        raise ValueError("the last member is cut short")
    raw.seek(end)
    while rest := raw.read(_CHUNK_BYTES):
        if any(rest):
            raise ValueError("something follows the last member")


def _name_problem(name: str) -> str:
    names = name.split("/")
    if "\\" in name or not name.isprintable() or any(part in ("", ".", "..") for part in names):
        return f"the name {name!r} is not plain"
    if len(name.encode()) > 1024 or any(len(part.encode()) > 255 for part in names):
        return f"the name {name[:40]!r}... is too long"
    return ""


# --- torch's bytes -------------------------------------------------------------------------


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
