# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Archives: reproducible tar files of directories. The raw bytes of some parts are archives."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from serve_warm import _private_folders
from serve_warm._redaction import excerpt
from serve_warm._regular_files import read_regular
from serve_warm.errors import ArtifactRefused, BuildFailed

MAX_MEMBERS = 200_000
"""Maximum number of files and directories in an archive. Checking an archive takes a kilobyte of
memory for each file and directory."""

_CHUNK_BYTES = 1 << 20

PAX_KEYS = frozenset({"path", "size"})
"""Extended header keys that `pack_directory` writes, for long names and for sizes of 8 GiB or
more."""


def is_scratch(name: str) -> bool:
    """Return whether a path is a lock file, a temporary file or a PCH; archives omit these.

    Torch looks for precompiled headers (PCHs) only in its default directory, even if the cache is
    elsewhere. PCHs would add megabytes to an artifact, and nothing would read them.
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/codecache.py#L3542
    """
    last = name.rpartition("/")[2]
    return last == "locks" or last.endswith((".lock", ".tmp", ".gch", ".pch"))


def pack_directory(directory: Path) -> bytes:
    """Return a directory as a tar archive. Equal names and contents give equal archives.

    The archive omits scratch files and folders (`is_scratch`). It does not store modes or times.
    Modes are not needed, because a library loads even without its executable bit.

    Raises:
        BuildFailed: the directory has an entry that `unpack_directory` would refuse, such as a
            link, a device or a file with an unusual name.
        OSError: an entry could not be read.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, entry in sorted(_entries(directory, "")):
            member = tarfile.TarInfo(name)
            problem = _name_problem(name)
            if problem:
                raise BuildFailed(f"{directory} cannot be packed: {problem}")
            if entry.is_dir(follow_symlinks=False):
                member.type, member.mode = tarfile.DIRTYPE, 0o700
                archive.addfile(member)
            elif entry.is_file(follow_symlinks=False):
                data = read_regular(entry.path)
                member.size, member.mode = len(data), 0o600
                archive.addfile(member, io.BytesIO(data))
            else:
                raise BuildFailed(f"{directory} cannot be packed: {name!r} is not a regular file")
    return buffer.getvalue()


def _entries(directory: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            name = prefix + entry.name
            if is_scratch(name):
                continue
            yield name, entry
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path), f"{name}/")


def unpack_directory(
    raw: BinaryIO, target: Path, *, check_wanted: Callable[[], None] = lambda: None
) -> None:
    """Write a packed directory into `target`, an empty directory that only this user can enter.

    All members are checked before any file is written. Files get mode 0600, and directories get
    mode 0700. `check_wanted` is called before each piece is read or written, and raises an
    exception to cancel.

    Raises:
        ArtifactRefused: `bad_archive`; or `unsafe_directory`, if `target` is not private to this
            user, or is not empty.
        OSError: a write failed. Files that this call has already written are kept.
    """
    _check_private(target)
    for member in _read_members(raw, target, check_wanted):
        check_wanted()
        path = target / member.name
        if member.isdir():
            path.mkdir(mode=0o700)
            continue
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            raw.seek(member.offset_data)
            left = member.size
            while left:
                check_wanted()
                piece = raw.read(min(left, _CHUNK_BYTES))
                if not piece:
                    raise ArtifactRefused(
                        f"not a packed directory: {member.name!r} ends {left} bytes early",
                        reason="bad_archive",
                    )
                file.write(piece)
                left -= len(piece)


def check_directory(raw: BinaryIO) -> None:
    """Check a packed directory as `unpack_directory` does, but write nothing.

    Raises:
        ArtifactRefused: `bad_archive`.
    """
    _read_members(raw, Path("/"), lambda: None)


def _check_private(target: Path) -> None:
    _private_folders.check_private(
        target, "the folder to unpack into", advice="or use a new folder"
    )
    if any(target.iterdir()):
        raise ArtifactRefused(
            f"{target} is not empty",
            reason="unsafe_directory",
            hint="unpack into a new directory with mode 0700",
        )


def _read_members(
    raw: BinaryIO, target: Path, check_wanted: Callable[[], None]
) -> list[tarfile.TarInfo]:
    try:
        members = list(_members_in(raw, check_wanted))
        end = _check_members(members, target)
        _check_end(raw, end)
    # A damaged header can also make tarfile seek out of range or recurse endlessly.
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise ArtifactRefused(f"not a packed directory: {error}", reason="bad_archive") from error
    return members


def _members_in(raw: BinaryIO, check_wanted: Callable[[], None]) -> Iterator[tarfile.TarInfo]:
    headers = _Headers(raw)
    with tarfile.open(fileobj=headers, mode="r:") as archive:
        for count, member in enumerate(archive, start=1):
            check_wanted()
            headers.begin()
            if count > MAX_MEMBERS:
                raise ValueError(f"the archive has more than {MAX_MEMBERS} members")
            # tarfile copies global headers into every member, so every copy takes memory.
            said = archive.pax_headers.keys() or member.pax_headers.keys() - PAX_KEYS
            if said:
                raise ValueError(
                    f"an extended header has the forbidden key {excerpt(min(said), 40)!r}"
                )
            if problem := _name_problem(member.name):
                raise ValueError(problem)  # now, because members stay in memory until checked
            yield member


class _Headers(io.RawIOBase):
    """A view of an archive that refuses to read large headers or to seek past the end.

    Without this view, tarfile trusts every header. If a header claims a long name, tarfile
    allocates as many bytes as the header claims (Python 3.14.8 reads in pieces instead). If a
    header claims a size, tarfile seeks to the offset that the size implies, even outside the file.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._size = raw.seek(0, os.SEEK_END)
        self.begin()
        raw.seek(0)

    def begin(self) -> None:
        """Reset the limit for the next header. Call this after tarfile has read a member."""
        self._left = _CHUNK_BYTES

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= self._left:
            raise ValueError(f"a header has more than {_CHUNK_BYTES} bytes")
        self._left -= size
        return self._raw.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence != os.SEEK_SET or offset > self._size:
            raise ValueError("a member extends past the end of the archive")
        return self._raw.seek(offset)

    def tell(self) -> int:
        return self._raw.tell()


def _check_members(members: list[tarfile.TarInfo], target: Path) -> int:
    """Return the end offset of the last member.

    Raise ValueError for a member that must not be written.
    """
    files: set[str] = set()
    directories: set[str] = {""}
    end = 0
    for member in members:
        name = member.name
        problem = _name_problem(name)
        if member.type not in (tarfile.REGTYPE, tarfile.DIRTYPE) or member.issparse():
            problem = f"{name!r} is neither a regular file nor a directory"
        elif member.size < 0 or (member.isdir() and member.size):
            problem = f"{name!r} has {member.size} bytes"
        elif member.offset < end:
            # The previous header may claim more bytes than there are before this header.
            problem = f"{name!r} overlaps the member before it"
        elif member.mode & ~0o777:
            problem = f"{name!r} has set-id or sticky bits"
        elif name in files or name in directories:
            problem = f"{name!r} appears twice"
        elif name.rpartition("/")[0] not in directories:
            problem = f"{name!r} comes before its directory"
        if problem:
            raise ValueError(problem)
        # The standard library may detect attacks that the checks above miss. Early patch releases
        # of Python 3.10 and 3.11 have no data_filter.
        if hasattr(tarfile, "data_filter"):
            tarfile.data_filter(member, str(target))
        (directories if member.isdir() else files).add(name)
        end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    return end


def _check_end(raw: BinaryIO, end: int) -> None:
    # tarfile mistakes damage in the middle of an archive for its end. Only zeros follow the real
    # end.
    if raw.seek(0, os.SEEK_END) < end:
        raise ValueError("the last member is truncated")
    raw.seek(end)
    while rest := raw.read(_CHUNK_BYTES):
        if any(rest):
            raise ValueError("the archive has data after the last member")


def _name_problem(name: str) -> str:
    names = name.split("/")
    if "\\" in name or not name.isprintable() or any(part in ("", ".", "..") for part in names):
        return f"the name {name!r} is not a plain relative path"
    if len(name.encode()) > 1024 or any(len(part.encode()) > 255 for part in names):
        return f"the name {excerpt(name, 40)!r} is too long"
    return ""
