# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The format: statements, parts, packed directories and torch's container, with forged variants."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from artifacts import build, cache_directory, checksummed, container, fingerprint, packed_cache
from serve_warm.artifact.archive import (
    MAX_MEMBERS,
    _Headers,
    check_directory,
    is_scratch,
    pack_directory,
    unpack_directory,
)
from serve_warm.artifact.blobs import check_stored, open_part, pack_part, zstd
from serve_warm.artifact.manifest import (
    FORMAT,
    MAX_PARTS,
    MAX_TORCH_BYTES,
    TORCH_BYTES,
    Manifest,
    Part,
    check_caps,
    utc_now,
)
from serve_warm.artifact.torch_bytes import check_torch_bytes
from serve_warm.errors import ArtifactRefused, BuildFailed, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 1 << 20


@pytest.mark.parametrize(
    "created", ["2026-11-20T10:00:00.00000\uff10Z", "\u0662026-11-20T10:00:00.000000Z"]
)
def test_created_has_ascii_digits(created: str):
    """Digits of other scripts are refused: they would sort after every real time."""
    part, _ = pack_part("cache", b"raw")

    with pytest.raises(ValueError, match="created"):
        Manifest(
            deployment="D",
            fingerprint=fingerprint(),
            parts=(part,),
            created=created,
        )


@pytest.mark.parametrize("field", ["stored_bytes", "raw_bytes"])
def test_a_size_of_nothing_on_earth_is_no_size(field: str):
    """Code that shows or adds sizes can rely on realistic numbers."""
    part, _ = pack_part("cache", b"raw")

    with pytest.raises(ValueError, match=field):
        Part(**{**vars(part), field: 10**400})


def opened(part: Part, stored: bytes) -> bytes:
    """Open a part as a pull does, checking the digest of the stored bytes first."""
    check_stored(part, stored)
    with open_part(part, io.BytesIO(stored)) as raw:
        return raw.read()


def unpacked(raw: bytes, target: Path) -> None:
    unpack_directory(io.BytesIO(raw), target)


def reason_of(action: Callable[[], Any]) -> str:
    with pytest.raises(ArtifactRefused) as caught:
        action()
    return caught.value.reason


# --- statements ----------------------------------------------------------------------------


def test_a_manifest_survives_its_statement():
    """A manifest read from a statement equals the written manifest, including build facts."""
    manifest, _ = build(
        raw={"cache": b"kernels", "torch_bytes": container()},
        facts={"seconds": 12.5, "git": None, "inputs": ["a", "\u00e9"]},
    )

    assert Manifest.from_statement(manifest.to_statement()) == manifest


def test_a_statement_is_in_toto_over_the_stored_bytes():
    """Other tools see every part as a subject, with the digest of the stored bytes."""
    manifest, stored = build(raw={"cache": b"kernels", "extra": b"more"})

    statement = json.loads(manifest.to_statement())

    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == f"https://serve-warm.dev/artifact/v{FORMAT}"
    assert statement["subject"] == [
        {"name": name, "digest": {"sha256": hashlib.sha256(data).hexdigest()}}
        for name, data in stored.items()
    ]


def test_equal_manifests_have_equal_statements():
    """The bytes do not depend on the order in which facts and factors were added."""
    one, _ = build(facts={"a": 1, "b": 2})
    two, _ = build(facts={"b": 2, "a": 1})

    assert one.to_statement() == two.to_statement()


@pytest.mark.parametrize("fact", [{1, 2}, float("nan"), b"bytes"])
def test_facts_that_are_no_json_are_not_written(fact: Any):
    """The builder gets an error for facts that a reader could not parse."""
    manifest, _ = build(facts={"fact": fact})

    with pytest.raises(ValueError, match="JSON"):
        manifest.to_statement()


def statement_with(path: str, value: Any) -> bytes:
    """Return a good statement with one member replaced, or dropped if the value is `...`."""
    statement = json.loads(build(raw={"cache": b"1", "extra": b"2"})[0].to_statement())
    *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place = statement
    for step in parents:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(statement).encode()


def test_a_newer_format_is_told_from_a_broken_one():
    """The error names both versions, whatever else is in a newer statement."""
    newer = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": "something else",
        "predicateType": f"https://serve-warm.dev/artifact/v{FORMAT + 1}",
        "predicate": {"format": FORMAT + 1, "unheard": "of"},
    }

    with pytest.raises(ArtifactRefused, match=r"has format 2, .* reads format 1") as caught:
        Manifest.from_statement(json.dumps(newer).encode())

    assert caught.value.reason == "newer_format"


BAD_MEMBERS = [
    ("_type", "https://in-toto.io/Statement/v0.1"),
    ("predicateType", "https://slsa.dev/provenance/v1"),
    ("predicateType", "https://serve-warm.dev/artifact/v0"),
    ("predicateType", "https://serve-warm.dev/artifact/v2"),
    ("predicateType", "https://serve-warm.dev/artifact/v1x"),
    ("predicateType", 1),
    ("predicate", []),
    ("predicate", ...),
    ("unknown", 1),
    ("predicate.unknown", 1),
    ("predicate.format", 2),
    ("predicate.format", True),
    ("predicate.format", "1"),
    ("predicate.deployment", ""),
    ("predicate.deployment", "a\nb"),
    ("predicate.deployment", None),
    ("predicate.deployment", ...),
    ("predicate.created", "yesterday"),
    ("predicate.created", "2026-11-20T10:00:00Z"),
    ("predicate.created", "2026-13-20T10:00:00.000000Z"),
    ("predicate.created", "2026-11-20T10:00:00.000000+01:00"),
    ("predicate.fingerprint", {}),
    ("predicate.fingerprint", {"machine": {"torch": 2}, "app": {}}),
    ("predicate.facts", []),
    ("predicate.parts", []),
    ("predicate.parts", {}),
    ("predicate.parts.0", "cache"),
    ("predicate.parts.0.name", "Cache"),
    ("predicate.parts.0.name", "../cache"),
    ("predicate.parts.0.name", ""),
    ("predicate.parts.0.name", "x" * 65),
    ("predicate.parts.0.name", "extra"),
    ("predicate.parts.0.sha256", "00"),
    ("predicate.parts.0.sha256", "../" + "0" * 61),
    ("predicate.parts.0.sha256", "A" * 64),
    ("predicate.parts.0.raw_sha256", "x" * 64),
    ("predicate.parts.0.stored_bytes", -1),
    ("predicate.parts.0.stored_bytes", 0),
    ("predicate.parts.0.stored_bytes", 1.0),
    ("predicate.parts.0.stored_bytes", True),
    ("predicate.parts.0.raw_bytes", -1),
    ("predicate.parts.0.raw_bytes", "7"),
    ("predicate.parts.0.codec", "none"),
    ("predicate.parts.0.url", "https://elsewhere"),
    ("predicate.parts.0.codec", ...),
    ("predicate.parts.1", ...),
    ("subject", []),
    ("subject", {}),
    ("subject.1", ...),
    ("subject.0.name", "extra"),
    ("subject.0.digest.sha256", "0" * 64),
    ("subject.0.digest.sha512", "0" * 128),
]


@pytest.mark.parametrize(
    ("path", "value"), BAD_MEMBERS, ids=[f"{path}={str(v)[:40]!r}" for path, v in BAD_MEMBERS]
)
def test_a_statement_that_deviates_is_refused(path: str, value: Any):
    """Unknown, missing and wrong members are all refused; nothing is guessed or ignored."""
    forged = statement_with(path, value)

    assert reason_of(lambda: Manifest.from_statement(forged)) == "bad_statement"


def test_the_statement_of_the_test_above_is_good_when_nothing_is_replaced():
    """Each refusal in the test above is due to the changed member."""
    assert Manifest.from_statement(statement_with("predicate.deployment", "Embedder"))


def test_subjects_in_another_order_are_refused():
    """Subjects and parts must be equal lists."""
    statement = json.loads(statement_with("predicate.deployment", "x"))
    statement["subject"].reverse()

    assert (
        reason_of(lambda: Manifest.from_statement(json.dumps(statement).encode()))
        == "bad_statement"
    )


def test_two_parts_of_one_name_are_refused():
    """Two parts with one name are refused, even if the subjects have both."""
    statement = json.loads(build(raw={"cache": b"1", "extra": b"2"})[0].to_statement())
    for item in (*statement["subject"], *statement["predicate"]["parts"]):
        item["name"] = "cache"
    forged = json.dumps(statement).encode()

    with pytest.raises(ArtifactRefused, match="distinct names") as caught:
        Manifest.from_statement(forged)

    assert caught.value.reason == "bad_statement"


def test_the_number_of_parts_is_bounded():
    """An artifact may have up to MAX_PARTS parts, inclusive."""
    build(raw={f"p{number}": b"" for number in range(MAX_PARTS)})

    with pytest.raises(ValueError, match="1 to 16 parts"):
        build(raw={f"p{number}": b"" for number in range(MAX_PARTS + 1)})


def test_times_order_as_text():
    """The newest artifact is found by comparing strings, so later times must sort later."""
    earlier = utc_now()
    later = utc_now()

    assert earlier <= later
    assert build(created=later)[0].created == later


# --- parts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"", b"x", os.urandom(3 * MIB), bytes(5 * MIB)])
def test_a_part_survives_packing(raw: bytes):
    """The raw bytes are returned unchanged, whether empty, incompressible or all equal."""
    part, stored = pack_part("cache", raw)

    assert opened(part, stored) == raw
    assert (part.raw_bytes, part.stored_bytes) == (len(raw), len(stored))


def test_every_change_of_the_stored_bytes_is_noticed():
    """A flipped bit, a missing byte and an extra byte each have their own reason."""
    part, stored = pack_part("cache", b"kernels" * 100)
    flipped = bytearray(stored)
    flipped[-1] ^= 1

    assert reason_of(lambda: opened(part, bytes(flipped))) == "digest_mismatch"
    assert reason_of(lambda: opened(part, stored[:-1])) == "truncated"
    assert reason_of(lambda: opened(part, stored + b"\0")) == "size_mismatch"
    assert reason_of(lambda: check_stored(part, bytes(flipped))) == "digest_mismatch"


def test_parts_over_a_cap_are_refused_by_their_manifest():
    """The stored and the unpacked size are both limited; each limit is inclusive."""
    part, _ = pack_part("cache", b"kernels")

    check_caps(part, max_stored_bytes=part.stored_bytes, max_raw_bytes=part.raw_bytes)

    for limits in (
        {"max_stored_bytes": part.stored_bytes - 1},
        {"max_raw_bytes": part.raw_bytes - 1},
    ):
        assert reason_of(lambda limits=limits: check_caps(part, **limits)) == "too_large"


def claiming(stored: bytes, raw: bytes, **changes: Any) -> Part:
    """Return a part with a correct stored digest, as a careless or hostile signer would sign it."""
    fields = {
        "name": "cache",
        "sha256": hashlib.sha256(stored).hexdigest(),
        "stored_bytes": len(stored),
        "raw_sha256": hashlib.sha256(raw).hexdigest(),
        "raw_bytes": len(raw),
        **changes,
    }
    return Part(**fields)


def streamed(raw: bytes, **parameters: int) -> bytes:
    """Compress without writing the size into the frame."""
    options = {
        getattr(zstd.CompressionParameter, name): value for name, value in parameters.items()
    }
    compressor = zstd.ZstdCompressor(options=options or None)
    blocks = [compressor.compress(raw[at : at + MIB]) for at in range(0, len(raw), MIB)]
    return b"".join(blocks) + compressor.flush()


def bombs() -> dict[str, bytes]:
    zeros = bytes(256 * MIB)
    declared = zstd.compress(zeros)
    assert (256 * MIB).to_bytes(4, "little") in declared[:14]
    return {
        "declared": declared,
        "streamed": streamed(zeros),
        "declared_small": declared.replace(
            (256 * MIB).to_bytes(4, "little"), (1000).to_bytes(4, "little"), 1
        ),
    }


@pytest.fixture(scope="module", name="bombs")
def _bombs() -> dict[str, bytes]:
    return bombs()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("declared", "size_mismatch"),
        ("streamed", "size_mismatch"),
        ("declared_small", "bad_archive"),
    ],
)
def test_a_bomb_is_stopped_at_the_promised_size(bombs: dict[str, bytes], kind: str, reason: str):
    """256 MiB in a part that claims 1000 bytes are refused without using memory."""
    bomb = bombs[kind]
    part = claiming(bomb, bytes(1000))
    assert len(bomb) < MIB
    tracemalloc.start()
    try:
        found = reason_of(lambda: opened(part, bomb))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert found == reason
    assert peak < 4 * MIB


@pytest.mark.slow
def test_the_measure_of_the_bomb_test_sees_memory(bombs: dict[str, bytes]):
    """Fully unpacking the same bomb does show in the memory peak that the other test measures."""
    part = claiming(bombs["streamed"], bytes(256 * MIB))
    tracemalloc.start()
    try:
        opened(part, bombs["streamed"])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak > 200 * MIB


def test_a_frame_without_its_size_is_read():
    """A part that was compressed as a stream is also valid."""
    raw = b"kernels" * MIB
    stored = streamed(raw)
    assert zstd.get_frame_info(stored).decompressed_size is None

    assert opened(claiming(stored, raw), stored) == raw


def test_less_than_promised_is_refused():
    """A manifest that claims more bytes than the part has is refused."""
    for stored in (zstd.compress(b"12345"), streamed(b"12345")):
        part = claiming(stored, b"123456")

        assert reason_of(lambda part=part, stored=stored: opened(part, stored)) == ("size_mismatch")


def test_other_raw_bytes_of_the_right_size_are_refused():
    """The digest of the unpacked bytes is also checked."""
    stored = zstd.compress(b"evil")

    assert reason_of(lambda: opened(claiming(stored, b"good"), stored)) == "digest_mismatch"


@pytest.mark.parametrize("size", [1, 4, 5, 100, 2 * MIB])
def test_a_frame_cut_short_is_refused(size: int):
    """A signed but incomplete blob is refused."""
    raw = os.urandom(4 * MIB)
    stored = zstd.compress(raw)[:size]

    assert reason_of(lambda: opened(claiming(stored, raw), stored)) == "truncated"


def test_bytes_behind_the_frame_are_refused():
    """A second frame or any other tail, short or long, is not silently dropped."""
    for tail in (b"\0", zstd.compress(b"more"), bytes(3 * MIB)):
        stored = zstd.compress(b"kernels") + tail
        part = claiming(stored, b"kernels")

        assert reason_of(lambda part=part, stored=stored: opened(part, stored)) == "bad_archive"


def test_bytes_that_are_no_zstd_are_refused():
    """Another format with the correct digest is a bad archive, not a crash."""
    for stored in (b"\x1f\x8b gzip", bytes(1000)):
        part = claiming(stored, b"kernels")

        assert reason_of(lambda part=part, stored=stored: opened(part, stored)) == "bad_archive"


def test_a_window_beyond_the_limit_is_refused():
    """A frame may not ask the decoder for more memory than the limit."""
    raw = os.urandom(1000)
    stored = streamed(raw, window_log=28)

    assert reason_of(lambda: opened(claiming(stored, raw), stored)) == "bad_archive"
    assert opened(claiming(ok := streamed(raw, window_log=27), raw), ok) == raw


def test_a_part_called_torch_bytes_must_be_torchs_container():
    """Opening a part always checks its bounds."""
    good, stored_good = pack_part("torch_bytes", container(("inductor", [("fx", b"1")])))
    bad, stored_bad = pack_part("torch_bytes", b"\x80\x04.")

    assert opened(good, stored_good)
    assert reason_of(lambda: opened(bad, stored_bad)) == "bad_archive"


def test_an_open_part_is_a_file_that_nobody_else_can_open():
    """The file has no name and is at offset 0; closing it removes it."""
    part, stored = pack_part("cache", b"kernels")

    with open_part(part, io.BytesIO(stored)) as raw:
        status = os.fstat(raw.fileno())

        assert (raw.tell(), raw.read()) == (0, b"kernels")
        assert (status.st_nlink, status.st_mode & 0o077) == (0, 0)


def test_a_part_is_opened_from_its_beginning():
    """The caller may already have read the stored file to its end."""
    part, stored = pack_part("cache", b"kernels")
    file = io.BytesIO(stored)
    file.seek(0, os.SEEK_END)

    with open_part(part, file) as raw:
        assert raw.read() == b"kernels"


def peak_of(action: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_unpacked(tmp_path: Path):
    """A part, and a directory of one large file, are copied from disk to disk in pieces."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(member("large.so", size=64 * MIB), io.BytesIO(os.urandom(64 * MIB)))
    data = buffer.getvalue()
    del buffer
    part, stored = pack_part("cache", data)
    (tmp_path / "stored").write_bytes(stored)

    def open_it() -> None:
        with (tmp_path / "stored").open("rb") as file:
            files.append(open_part(part, file))

    def unpack() -> None:
        unpack_directory(files[0], private(tmp_path / "target"))

    files: list[Any] = []
    peaks = [peak_of(open_it), peak_of(unpack)]
    files[0].close()

    # The decoder's own window is not seen by this measure; Python's buffers are.
    assert max(peaks) < 8 * MIB
    assert (tmp_path / "target" / "large.so").stat().st_size == 64 * MIB


@pytest.mark.parametrize("spoil", [b"", b"x", bytes(100)], ids=["nothing", "one", "zeros"])
def test_nothing_stays_open_of_a_part_that_is_refused(spoil: bytes):
    """After an error, the file with the bytes so far is closed, and so removed."""
    stored = zstd.compress(os.urandom(3 * MIB))[:-5] + spoil
    part = claiming(stored, b"kernels")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count, not paths

    with pytest.raises(ArtifactRefused):
        open_part(part, io.BytesIO(stored))

    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


# --- directories ---------------------------------------------------------------------------


def tree(directory: Path) -> dict[str, tuple[int, bytes | None]]:
    return {
        path.relative_to(directory).as_posix(): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() else None,
        )
        for path in directory.rglob("*")
    }


def private(directory: Path) -> Path:
    directory.mkdir(mode=0o700)
    return directory


def test_a_directory_survives_packing(tmp_path: Path):
    """All files and folders except scratch files return, with private modes and equal bytes."""
    source = cache_directory(private(tmp_path / "source"))
    (source / "24" / "c244b2rga7kqcbbf2xhyb.so").chmod(0o755)
    target = private(tmp_path / "target")

    unpacked(pack_directory(source), target)

    expected = {name: data for name, (_, data) in tree(source).items() if not is_scratch(name)}
    assert {name: data for name, (_, data) in tree(target).items()} == expected
    assert "locks" not in expected
    assert {oct(mode) for mode, _ in tree(target).values()} == {"0o100600", "0o40700"}
    assert pack_directory(target) == pack_directory(source)


def test_packing_depends_on_names_and_contents_alone(tmp_path: Path):
    """Times, modes, owners and the order on disk do not affect the bytes."""
    one = private(tmp_path / "one")
    two = private(tmp_path / "two")
    for directory, names in ((one, "abc"), (two, "cba")):
        for name in names:
            (directory / name).mkdir()
            (directory / name / "file").write_bytes(name.encode())
    os.utime(two / "a" / "file", (1, 1))
    (two / "a" / "file").chmod(0o777)

    assert pack_directory(one) == pack_directory(two)
    (two / "a" / "file").write_bytes(b"other")
    assert pack_directory(one) != pack_directory(two)


@pytest.mark.parametrize(
    ("name", "scratch"),
    [
        ("locks", True),
        ("triton/locks", True),
        ("24/x.lock", True),
        ("24/.1.2.tmp", True),
        ("precompiled_headers/x.h.gch", True),
        ("x.pch", True),
        ("24/x.so", False),
        ("24/x.cpp", False),
        ("clocks", False),
        ("lock", False),
        ("xx/y.best_config", False),
    ],
)
def test_scratch_is_told_by_name(name: str, *, scratch: bool):
    """Locks, temporary files and precompiled headers are left out; kernels and sources are not."""
    assert is_scratch(name) is scratch


def test_what_is_skipped_can_be_chosen(tmp_path: Path):
    """A skipped folder is skipped with everything in it."""
    source = cache_directory(private(tmp_path / "source"))

    raw = pack_directory(source, skip=lambda name: name not in {"24", "24/.4711.0815.tmp"})

    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        assert archive.getnames() == ["24", "24/.4711.0815.tmp"]


def test_what_could_not_be_unpacked_is_not_packed(tmp_path: Path):
    """Links, pipes and odd names fail the build, and not only every later start."""
    for number, make in enumerate(
        (
            lambda path: path.symlink_to("/etc/passwd"),
            os.mkfifo,
            lambda path: path.with_name("new\nline").touch(),
            lambda path: path.with_name("back\\slash").touch(),
        )
    ):
        directory = private(tmp_path / str(number))
        make(directory / "x")

        with pytest.raises(BuildFailed, match="cannot be packed"):
            pack_directory(directory)


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = 0o700 if kind == tarfile.DIRTYPE else 0o600
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def tar(*members: tarfile.TarInfo, format: int = tarfile.PAX_FORMAT) -> bytes:  # noqa: A002
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for info in members:
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    return buffer.getvalue()


GOOD = member("a.so", size=5)
FOLDER = member("d", tarfile.DIRTYPE)
EVIL = {
    "parent": [member("../evil")],
    "parent_inside": [FOLDER, member("d/../../evil")],
    "absolute": [member("/tmp/evil")],
    "dot": [member("./evil")],
    "empty_segment": [FOLDER, member("d//evil")],
    "backslash": [member("..\\evil")],
    "control": [member("evil\x1b[2J")],
    "not_utf8": [member("evil\udcff")],
    "long_segment": [member("x" * 256)],
    "long_name": [member("/".join(["x" * 200] * depth), tarfile.DIRTYPE) for depth in range(1, 7)],
    "symlink": [member("evil", tarfile.SYMTYPE, linkname="/etc/passwd")],
    "symlink_then_through": [
        member("d", tarfile.SYMTYPE, linkname="/tmp"),
        member("d/evil"),
    ],
    "hardlink": [member("evil", tarfile.LNKTYPE, linkname="a.so")],
    "character_device": [member("evil", tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "block_device": [member("evil", tarfile.BLKTYPE)],
    "fifo": [member("evil", tarfile.FIFOTYPE)],
    "contiguous": [member("evil", tarfile.CONTTYPE)],
    "unknown_type": [member("evil", b"Z")],
    "set_user_id": [member("evil", mode=0o4755)],
    "set_group_id": [member("evil", mode=0o2755)],
    "sticky": [member("d", tarfile.DIRTYPE, mode=0o1777)],
    "twice": [GOOD],
    "directory_twice": [FOLDER, FOLDER],
    "file_then_directory": [member("a.so", tarfile.DIRTYPE)],
    "below_a_file": [member("a.so/evil")],
    "without_its_directory": [member("d/evil")],
    "before_its_directory": [member("d/evil"), FOLDER],
    "pax_renames": [member("fine", pax_headers={"path": "../evil"})],
    "pax_sparse": [
        member(
            "evil",
            size=0,
            pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "1", "GNU.sparse.name": "e"},
        )
    ],
    # The last member ends where the archive does, and one before it claims more.
    **{
        f"claims_{what}": [member("evil", size=5, pax_headers=claim), member("last", size=5)]
        for what, claim in {
            "sparse_size": {"GNU.sparse.size": str(1 << 60)},
            "sparse_real_size": {"GNU.sparse.realsize": str(1 << 60)},
            "a_little_more": {"GNU.sparse.size": "513"},
            "less_than_nothing": {"GNU.sparse.size": "-5"},
            "size_less_than_nothing": {"size": "-512"},
        }.items()
    },
    "directory_with_bytes": [member("d", tarfile.DIRTYPE, pax_headers={"GNU.sparse.size": "7"})],
}


@pytest.mark.parametrize("name", EVIL)
def test_a_hostile_archive_is_refused_before_anything_is_written(tmp_path: Path, name: str):
    """One bad member makes the whole archive invalid, and no file is written."""
    target = private(tmp_path / "target")
    raw = tar(GOOD, *EVIL[name])

    assert reason_of(lambda: unpacked(raw, target)) == "bad_archive"
    assert [path.name for path in tmp_path.rglob("*")] == ["target"]
    assert reason_of(lambda: check_directory(io.BytesIO(raw))) == "bad_archive"


def test_unpacking_stops_at_a_short_read(tmp_path: Path):
    """A file that ends early is refused, for example after damage on disk."""

    class Shrinking(io.BytesIO):
        """A file that has no more bytes after the check of all members."""

        checked = False

        def read(self, size: int | None = -1, /) -> bytes:
            return b"" if self.checked else super().read(size)

    raw = Shrinking(tar(GOOD))

    def check_wanted() -> None:
        raw.checked = True

    reason = reason_of(
        lambda: unpack_directory(raw, private(tmp_path / "target"), check_wanted=check_wanted)
    )

    assert reason == "bad_archive"


def test_unpacking_ends_where_nobody_waits(tmp_path: Path):
    """The function that is called before each piece can end the work by raising."""
    asked: list[int] = []

    def check_wanted() -> None:
        asked.append(1)
        if len(asked) == 4:
            raise StoreError("nobody waits")

    big = tar(member("big", size=5 * MIB), member("after", size=5))
    with pytest.raises(StoreError, match="nobody waits"):
        unpack_directory(io.BytesIO(big), private(tmp_path / "target"), check_wanted=check_wanted)

    assert [path.name for path in (tmp_path / "target").iterdir()] == ["big"]


def tar_with_header_for_all(*, keys: int, members: int) -> bytes:
    """Return an archive with an extended header that tarfile copies for each member."""
    buffer = io.BytesIO()
    said = {f"k{number}": "" for number in range(keys)}
    with tarfile.open(fileobj=buffer, mode="w", pax_headers=said) as archive:
        for number in range(members):
            archive.addfile(member(f"{number}"))
    return buffer.getvalue()


@pytest.mark.slow
def test_a_header_for_all_members_costs_no_memory_for_each():
    """70 kilobytes of signed bytes would become gigabytes of names; the first header is refused."""
    raw = tar_with_header_for_all(keys=50_000, members=200)

    tracemalloc.start()
    reason = reason_of(lambda: check_directory(io.BytesIO(raw)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert reason == "bad_archive"
    assert peak_bytes < 64 * MIB


def test_long_names_cost_no_memory_for_each():
    """A name of a megabyte is refused before the next name is read."""
    raw = tar(*(member(f"{number}" + "x" * MIB) for number in range(60)))

    tracemalloc.start()
    reason = reason_of(lambda: check_directory(io.BytesIO(raw)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert reason == "bad_archive"
    assert peak_bytes < 16 * MIB


def test_headers_are_read_only_as_long_as_somebody_waits(tmp_path: Path):
    """The function that is called for each header can end the check of a large archive."""
    asked: list[int] = []

    def check_wanted() -> None:
        asked.append(1)
        if len(asked) == 3:
            raise StoreError("nobody waits")

    raw = tar(*(member(str(number)) for number in range(100)))
    with pytest.raises(StoreError, match="nobody waits"):
        unpack_directory(io.BytesIO(raw), private(tmp_path / "target"), check_wanted=check_wanted)

    assert list((tmp_path / "target").iterdir()) == []


def test_torchs_own_bytes_have_a_limit_of_their_own():
    """Torch reads its cache bytes from memory, so a small part must not become gigabytes."""
    part = Part(
        name=TORCH_BYTES,
        stored_bytes=90_000,
        sha256="0" * 64,
        raw_bytes=MAX_TORCH_BYTES + 1,
        raw_sha256="0" * 64,
    )

    assert reason_of(lambda: check_caps(part)) == "too_large"
    check_caps(dataclasses.replace(part, name="cache"))
    check_caps(dataclasses.replace(part, raw_bytes=MAX_TORCH_BYTES))


def test_the_good_file_of_the_test_above_is_written_alone(tmp_path: Path):
    """Each refusal in the test above is due to the members after the good one."""
    target = private(tmp_path / "target")

    unpacked(tar(GOOD, FOLDER), target)

    assert {path.name for path in target.iterdir()} == {"a.so", "d"}


def test_checking_a_directory_accepts_what_can_be_unpacked_and_writes_nothing(tmp_path: Path):
    """A start can install every archive that verification accepts."""
    raw = packed_cache(tmp_path / "source")
    before = sorted(tmp_path.rglob("*"))

    check_directory(io.BytesIO(raw))

    assert sorted(tmp_path.rglob("*")) == before
    assert reason_of(lambda: check_directory(io.BytesIO(raw + b"x"))) == "bad_archive"


CLAIMS = (8**11 - 1, 1 << 40, 1 << 60, 1 << 80)


@pytest.mark.parametrize("size", CLAIMS)
@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K", b"S", tarfile.REGTYPE, b"Z"])
def test_a_size_that_a_header_claims_is_not_acted_on(kind: bytes, size: int):
    """A huge claimed size neither allocates memory nor causes a file system error."""
    header = member("a", kind, size=size).tobuf(tarfile.GNU_FORMAT)
    raw = io.BytesIO(header + bytes(10240))
    reasons = []

    peak = peak_of(lambda: reasons.append(reason_of(lambda: check_directory(raw))))

    assert reasons == ["bad_archive"]
    assert peak < MIB


def test_a_long_header_is_not_read_into_memory():
    """A name of many megabytes is refused even if all its bytes exist."""
    header = member("a", b"L", size=64 * MIB).tobuf(tarfile.GNU_FORMAT)
    raw = io.BytesIO(header + bytes(64 * MIB) + GOOD.tobuf() + bytes(10240))
    reasons = []

    peak = peak_of(lambda: reasons.append(reason_of(lambda: check_directory(raw))))

    assert reasons == ["bad_archive"]
    assert peak < 4 * MIB


def test_a_header_is_bounded_however_it_is_read():
    """Python 3.14.8 reads a long name in pieces, none of which is large."""
    headers = _Headers(io.BytesIO(bytes(4 * MIB)))
    for _ in range(2):
        headers.begin()
        assert len(headers.read(MIB // 2)) == MIB // 2
        assert len(headers.read(MIB // 2)) == MIB // 2

    with pytest.raises(ValueError, match="header"):
        headers.read(1)


@pytest.mark.long
def test_the_number_of_members_is_bounded():
    """Each member takes memory before it is checked, so one member too many is refused."""
    archive = GOOD.tobuf() + bytes(tarfile.BLOCKSIZE)
    empty = member("b").tobuf()
    full = archive + (MAX_MEMBERS - 1) * empty
    messages = []

    for raw in (full + bytes(10240), full + empty + bytes(10240)):
        with pytest.raises(ArtifactRefused) as caught:
            check_directory(io.BytesIO(raw))
        messages.append(caught.value.message)

    assert "appears twice" in messages[0]
    assert f"more than {MAX_MEMBERS} members" in messages[1]


def test_a_damaged_archive_is_refused(tmp_path: Path):
    """Damage that tarfile takes for the end of the archive is refused, not ignored."""
    target = private(tmp_path / "target")
    raw = packed_cache(tmp_path / "source")
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        offsets = [info.offset for info in archive.getmembers()]
    damaged = bytearray(raw)
    damaged[offsets[2] + 150] ^= 1  # in the checksum of a header
    variants = {
        "header": bytes(damaged),
        "cut": raw[: offsets[-1] + 600],
        "tail": raw + b"x",
        "compressed": zstd.compress(raw),
        "text": b"hello" * 1000,
    }

    reasons = {
        name: reason_of(lambda data=data: unpacked(data, target)) for name, data in variants.items()
    }

    assert reasons == dict.fromkeys(variants, "bad_archive")
    assert list(target.iterdir()) == []


def test_a_directory_that_is_not_private_is_not_unpacked_into(tmp_path: Path):
    """The target must belong to this user, be empty and private, and not be a link."""
    raw = tar(GOOD)
    private(tmp_path / "open").chmod(0o750)
    private(tmp_path / "used").joinpath("file").touch()
    private(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "plain").touch()

    reasons = {
        name: reason_of(lambda name=name: unpacked(raw, tmp_path / name))
        for name in ("open", "used", "link", "plain")
    }

    assert set(reasons.values()) == {"unsafe_directory"}
    assert list((tmp_path / "real").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_not_unpacked_into(tmp_path: Path):
    """A folder of another user is refused, because its owner could change the loaded files."""
    target = private(tmp_path / "target")
    os.chown(target, 12345, -1)

    assert reason_of(lambda: unpacked(tar(GOOD), target)) == "unsafe_directory"


# --- torch's bytes -------------------------------------------------------------------------

ENTRIES = ("inductor", [("f" + "a" * 51, b"\x80\x04."), ("f" + "b" * 51, b"")])
AUTOTUNE = ("autotune", [("ab/cdef.best_config", b"{}")])
TRUNCATED = checksummed(container(ENTRIES)[4:28])

U64_ONE = (1).to_bytes(8, "big")
MALFORMED = {
    "empty": (b"", "too short"),
    "three_bytes": (b"abc", "too short"),
    "only_checksum": (checksummed(b""), "expected 8 more bytes, but only 0 are left"),
    "checksum": (b"\0\0\0\0" + container(ENTRIES)[4:], "checksum"),
    "flipped": (container(ENTRIES)[:-1] + b"x", "checksum"),
    "version": (container(ENTRIES, version=2), "version 2"),
    "truncated_28_bytes": (TRUNCATED, "bytes, but only 8 are left"),
    "endless_count": (
        container(ENTRIES, count=1 << 60),
        "expected 8 more bytes, but only 0 are left",
    ),
    "endless_count_of_nothing": (container(("pgo", []), count=1 << 60), "expected 8 more bytes"),
    "one_too_many": (container(ENTRIES, count=3), "expected 8 more bytes, but only 0 are left"),
    "huge_type": (
        checksummed(U64_ONE + (1 << 63).to_bytes(8, "big") + b"cGdv"),
        f"{1 << 63} more bytes, but only 4 are left",
    ),
    "huge_content": (
        checksummed(container(("pgo", [("a", b"")]))[4:-8] + (9).to_bytes(8, "big") + b"12345678"),
        "expected 9 more bytes, but only 8 are left",
    ),
    "tail": (
        checksummed(container(ENTRIES)[4:] + b"x"),
        "expected 8 more bytes, but only 1 are left",
    ),
    "section_twice": (container(ENTRIES, ENTRIES), "two sections"),
    "section_name": (container(("../x", [])), "a section has the forbidden name '../x'"),
    "absolute_key": (container(("autotune", [("/etc/cron.d/x", b"")])), "'/etc/cron.d/x'"),
    "key_outside": (
        container(("autotune", [("../x.txt", b"")])),
        "an entry has the forbidden name '../x.txt'",
    ),
    "key_outside_deep": (
        container(("autotune", [("a/../../x", b"")])),
        "an entry has the forbidden name",
    ),
    "nul_in_key": (container(("autotune", [("a\0b", b"")])), "an entry has the forbidden name"),
    "key_no_base64": (
        container(("pgo", [("abc", b"")])).replace(b"YWJj", b"****"),
        "checksum",
    ),
    "key_no_base64_checksummed": (
        checksummed(container(("pgo", [("abc", b"")]))[4:].replace(b"YWJj", b"****")),
        "base64",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_container_is_refused(name: str):
    """Bytes that would make torch's reader loop, fill memory or write elsewhere never reach it."""
    raw, message = MALFORMED[name]

    with pytest.raises(ArtifactRefused, match=re.escape(message)) as caught:
        check_torch_bytes(raw)

    assert caught.value.reason == "bad_archive"


def test_every_cut_of_a_container_is_refused():
    """With a corrected checksum, a truncated container is valid only if cut between sections."""
    whole = container(ENTRIES, AUTOTUNE)
    between = {4 + 8, len(container(ENTRIES)), len(whole)}
    accepted = set()

    for size in range(4, len(whole) + 1):
        try:
            check_torch_bytes(checksummed(whole[4:size]))
        except ArtifactRefused:
            continue
        accepted.add(size)

    assert accepted == between


@pytest.mark.slow
def test_the_28_bytes_do_keep_torch_busy():
    """The refused container is one on which torch's own reader never ends."""
    script = (
        "import sys, torch\n"
        "from torch.compiler._cache import CacheArtifactManager as m\n"
        "print('reading', flush=True)\n"
        "m.deserialize(bytes.fromhex(sys.argv[1]))\n"
    )
    assert len(TRUNCATED) == 28

    reader = subprocess.Popen(
        [sys.executable, "-c", script, TRUNCATED.hex()], stdout=subprocess.PIPE, text=True
    )
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(timeout=3)
    finally:
        reader.kill()
        reader.communicate()


def test_what_torch_writes_is_accepted():
    """Bytes from torch's own serializer pass, but not those of a second save in a process."""
    from torch.compiler import save_cache_artifacts
    from torch.compiler._cache import CacheArtifactManager

    CacheArtifactManager._ensure_cache_artifacts_registered()
    with CacheArtifactManager.with_fresh_cache():
        for kind, key in (("inductor", "f" + "a" * 51), ("pgo", "job: 1/2"), ("autotune", "ab/c")):
            content = {} if kind == "autotune" else b"\x80\x04."
            CacheArtifactManager.record_artifact(kind, key, content)
        once = save_cache_artifacts()
        CacheArtifactManager.record_artifact("inductor", "f" + "b" * 51, b"later")
        twice = save_cache_artifacts()

    assert once is not None
    assert twice is not None
    check_torch_bytes(once[0])
    with pytest.raises(ArtifactRefused, match="saved its caches more than once"):
        check_torch_bytes(twice[0])


COMPILE = """
import sys, torch
compiled = torch.compile(lambda x: (x.sin() + 1).relu())
compiled(torch.ones(7))
saved = torch.compiler.save_cache_artifacts()
open(sys.argv[1], "wb").write(saved[0])
"""


@pytest.mark.long
def test_a_real_compile_cache_survives(tmp_path: Path):
    """A directory and bytes from real compiles by torch are packed, opened and unpacked."""
    directory, saved = private(tmp_path / "cache"), tmp_path / "saved"
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(directory),
        "TRITON_CACHE_DIR": str(directory / "triton"),
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    }
    subprocess.run([sys.executable, "-c", COMPILE, str(saved)], env=environment, check=True)
    target = private(tmp_path / "target")

    part, stored = pack_part("cache", pack_directory(directory))
    unpacked(opened(part, stored), target)
    torch_part, torch_stored = pack_part("torch_bytes", saved.read_bytes())

    kept = {name: data for name, (_, data) in tree(directory).items() if "lock" not in name}
    assert {name: data for name, (_, data) in tree(target).items()} == kept
    assert any(name.endswith(".so") for name in kept)
    assert opened(torch_part, torch_stored) == saved.read_bytes()


def test_a_manifest_does_not_change():
    """Manifests and parts are frozen, so they cannot change after the check."""
    manifest, _ = build(built_for=fingerprint())

    with pytest.raises(dataclasses.FrozenInstanceError):
        manifest.deployment = "other"  # type: ignore[misc]
