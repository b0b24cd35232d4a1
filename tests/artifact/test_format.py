# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The format: statements, parts, packed directories and torch's container, with forged variants."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from artifacts import build, cache_directory, packed_cache
from exploits import member
from serve_warm.artifact import archive as archive_module
from serve_warm.artifact.archive import (
    check_directory,
    is_scratch,
    pack_directory,
    unpack_directory,
)
from serve_warm.artifact.blobs import check_stored, open_part, pack_part, zstd
from serve_warm.artifact.manifest import FORMAT, MAX_PARTS, Manifest, Part
from serve_warm.errors import ArtifactRefused, BuildFailed

MIB = 1 << 20


def opened(part: Part, stored: bytes) -> bytes:
    """Open a part as a pull does, checking the digest of the stored bytes first."""
    check_stored(part, stored)
    with open_part(part, io.BytesIO(stored)) as raw:
        return raw.read()


def unpacked(raw: bytes, target: Path) -> None:
    unpack_directory(io.BytesIO(raw), target)


def reason_of(action: Callable[..., Any], *arguments: Any, match: str | None = None) -> str:
    with pytest.raises(ArtifactRefused, match=match) as caught:
        action(*arguments)
    return caught.value.reason


def reason_and_peak_of(action: Callable[..., Any], *arguments: Any) -> tuple[str, int]:
    reasons: list[str] = []
    peak = peak_of(lambda: reasons.append(reason_of(action, *arguments)))
    return reasons[0], peak


def peak_of(action: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def check(raw: bytes) -> None:
    check_directory(io.BytesIO(raw))


# --- statements ----------------------------------------------------------------------------
def test_a_manifest_survives_its_statement():
    manifest, _ = build(
        raw={"cache": b"kernels", "extra": b"more"},
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
    newer = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": "something else",
        "predicateType": f"https://serve-warm.dev/artifact/v{FORMAT + 1}",
        "predicate": {"format": FORMAT + 1, "unheard": "of"},
    }
    payload, message = json.dumps(newer).encode(), r"has format 2, .* reads format 1"
    assert reason_of(Manifest.from_statement, payload, match=message) == "newer_format"


OTHER_FORMATS = [f"https://serve-warm.dev/artifact/{version}" for version in ("v0", "v2", "v1x")]
BAD_MEMBERS = [
    (path, value)
    for path, values in {
        "_type": ["https://in-toto.io/Statement/v0.1"],
        "predicateType": ["https://slsa.dev/provenance/v1", *OTHER_FORMATS, 1],
        "predicate": [[], ...],
        "unknown": [1],
        "predicate.unknown": [1],
        "predicate.format": [2, True, "1"],
        "predicate.deployment": ["", "a\nb", None, ...],
        "predicate.created": [
            "yesterday",
            "2026-11-20T10:00:00Z",
            "2026-11-20T10:00:00.00000\uff10Z",
            "\u0662026-11-20T10:00:00.000000Z",
            "2026-13-20T10:00:00.000000Z",
            "2026-11-20T10:00:00.000000+01:00",
        ],
        "predicate.fingerprint": [{}, {"machine": {"torch": 2}, "app": {}}],
        "predicate.facts": [[]],
        "predicate.parts": [[], {}],
        "predicate.parts.0": ["cache"],
        "predicate.parts.0.name": ["Cache", "../cache", "", "x" * 65, "extra"],
        "predicate.parts.0.sha256": ["00", "../" + "0" * 61, "A" * 64],
        "predicate.parts.0.raw_sha256": ["x" * 64],
        "predicate.parts.0.stored_bytes": [-1, 0, 1.0, True, 10**400],
        "predicate.parts.0.raw_bytes": [10**400, -1, "7"],
        "predicate.parts.0.codec": ["none", ...],
        "predicate.parts.0.url": ["https://elsewhere"],
        "predicate.parts.1": [...],
        "subject": [[], {}],
        "subject.1": [...],
        "subject.0.name": ["extra"],
        "subject.0.digest.sha256": ["0" * 64],
        "subject.0.digest.sha512": ["0" * 128],
    }.items()
    for value in values
]


@pytest.mark.parametrize(
    ("path", "value"), BAD_MEMBERS, ids=[f"{path}={str(v)[:40]!r}" for path, v in BAD_MEMBERS]
)
def test_a_statement_that_deviates_is_refused(path: str, value: Any):
    """Unknown, missing and wrong members are all refused; nothing is guessed or ignored."""
    assert reason_of(Manifest.from_statement, statement_with(path, value)) == "bad_statement"


def test_the_statement_of_the_test_above_is_good_when_nothing_is_replaced():
    """Each refusal in the test above is due to the changed member."""
    assert Manifest.from_statement(statement_with("predicate.deployment", "Embedder"))


def test_two_parts_of_one_name_are_refused():
    statement = json.loads(build(raw={"cache": b"1", "extra": b"2"})[0].to_statement())
    for item in (*statement["subject"], *statement["predicate"]["parts"]):
        item["name"] = "cache"
    forged = json.dumps(statement).encode()
    assert reason_of(Manifest.from_statement, forged, match="distinct names") == "bad_statement"


def test_the_number_of_parts_is_bounded():
    build(raw={f"p{number}": b"" for number in range(MAX_PARTS)})
    with pytest.raises(ValueError, match="1 to 16 parts"):
        build(raw={f"p{number}": b"" for number in range(MAX_PARTS + 1)})


# --- parts ---------------------------------------------------------------------------------
@pytest.mark.parametrize("raw", [b"", b"x", os.urandom(3 * MIB), bytes(5 * MIB)])
def test_a_part_survives_packing(raw: bytes):
    part, stored = pack_part("cache", raw)
    assert opened(part, stored) == raw
    assert (part.raw_bytes, part.stored_bytes) == (len(raw), len(stored))


def test_every_change_of_the_stored_bytes_is_noticed():
    part, stored = pack_part("cache", b"kernels" * 100)
    flipped = bytearray(stored)
    flipped[-1] ^= 1
    assert reason_of(check_stored, part, bytes(flipped)) == "digest_mismatch"
    assert reason_of(check_stored, part, stored[:-1]) == "truncated"
    assert reason_of(check_stored, part, stored + b"\0") == "size_mismatch"


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
    kinds = zstd.CompressionParameter
    options = {getattr(kinds, name): value for name, value in parameters.items()}
    compressor = zstd.ZstdCompressor(options=options or None)
    blocks = [compressor.compress(raw[at : at + MIB]) for at in range(0, len(raw), MIB)]
    return b"".join(blocks) + compressor.flush()


@pytest.fixture(scope="module", name="bombs")
def _bombs() -> dict[str, bytes]:
    zeros = bytes(256 * MIB)
    declared = zstd.compress(zeros)
    size = (256 * MIB).to_bytes(4, "little")
    assert size in declared[:14]
    small = declared.replace(size, (1000).to_bytes(4, "little"), 1)
    return {"declared": declared, "streamed": streamed(zeros), "declared_small": small}


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
    assert len(bomb) < MIB
    found, peak = reason_and_peak_of(opened, claiming(bomb, bytes(1000)), bomb)
    assert found == reason
    assert peak < 4 * MIB


RANDOM = os.urandom(4 * MIB)
FRAME = zstd.compress(b"kernels")
WRONG_FRAMES = {
    "less than promised": (zstd.compress(b"kernel"), b"kernels", "size_mismatch"),
    "less than promised, streamed": (streamed(b"kernel"), b"kernels", "size_mismatch"),
    "other bytes of the right size": (zstd.compress(b"evil"), b"good", "digest_mismatch"),
    "not zstd": (b"\x1f\x8b gzip", b"kernels", "bad_archive"),
    "zeros": (bytes(1000), b"kernels", "bad_archive"),
    "a byte behind it": (FRAME + b"\0", b"kernels", "bad_archive"),
    "a frame behind it": (FRAME + zstd.compress(b"more"), b"kernels", "bad_archive"),
    "much behind it": (FRAME + bytes(3 * MIB), b"kernels", "bad_archive"),
    "a window over the limit": (streamed(RANDOM[:9], window_log=28), RANDOM[:9], "bad_archive"),
    **{
        f"cut after {size}": (zstd.compress(RANDOM)[:size], RANDOM, "truncated")
        for size in (1, 4, 5, 100, 2 * MIB)
    },
}
"""Stored bytes that a trusted key signed, the raw bytes that it promised, and the reason."""


@pytest.mark.parametrize("name", WRONG_FRAMES)
def test_a_frame_of_other_bytes_than_promised_is_refused(name: str):
    """The digest of the stored bytes is right; each is refused when it is unpacked."""
    stored, raw, reason = WRONG_FRAMES[name]
    assert reason_of(opened, claiming(stored, raw), stored) == reason


def test_an_open_part_is_a_file_that_nobody_else_can_open():
    """The file has no name and is at offset 0; closing it removes it."""
    part, stored = pack_part("cache", b"kernels")
    with open_part(part, io.BytesIO(stored)) as raw:
        status = os.fstat(raw.fileno())
        assert (raw.tell(), raw.read()) == (0, b"kernels")
        assert (status.st_nlink, status.st_mode & 0o077) == (0, 0)


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
    one, two = private(tmp_path / "one"), private(tmp_path / "two")
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
        *((name, True) for name in ("locks", "triton/locks", "24/x.lock", "24/.1.2.tmp")),
        *((name, True) for name in ("precompiled_headers/x.h.gch", "x.pch")),
        *((name, False) for name in ("24/x.so", "24/x.cpp", "clocks", "lock", "xx/y.best_config")),
    ],
)
def test_scratch_is_told_by_name(name: str, *, scratch: bool):
    assert is_scratch(name) is scratch


def test_what_could_not_be_unpacked_is_not_packed(tmp_path: Path):
    """Links, pipes and odd names fail the build, and not only every later start."""
    odd = (
        lambda path: path.symlink_to("/etc/passwd"),
        os.mkfifo,
        lambda path: path.with_name("new\nline").touch(),
        lambda path: path.with_name("back\\slash").touch(),
    )
    for number, make in enumerate(odd):
        directory = private(tmp_path / str(number))
        make(directory / "x")
        with pytest.raises(BuildFailed, match="cannot be packed"):
            pack_directory(directory)


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
    "symlink_then_through": [member("d", tarfile.SYMTYPE, linkname="/tmp"), member("d/evil")],
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
    assert reason_of(unpacked, raw, target) == "bad_archive"
    assert [path.name for path in tmp_path.rglob("*")] == ["target"]
    assert reason_of(check, raw) == "bad_archive"


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
    reason, peak = reason_and_peak_of(check, raw)
    assert reason == "bad_archive"
    assert peak < 64 * MIB


def test_long_names_cost_no_memory_for_each():
    """A name of a megabyte is refused before the next name is read."""
    raw = tar(*(member(f"{number}" + "x" * MIB) for number in range(60)))
    reason, peak = reason_and_peak_of(check, raw)
    assert reason == "bad_archive"
    assert peak < 16 * MIB


def test_the_good_file_of_the_test_above_is_written_alone(tmp_path: Path):
    """Each refusal in the test above is due to the members after the good one."""
    target = private(tmp_path / "target")
    unpacked(tar(GOOD, FOLDER), target)
    assert {path.name for path in target.iterdir()} == {"a.so", "d"}


def test_checking_a_directory_accepts_what_can_be_unpacked_and_writes_nothing(tmp_path: Path):
    """A start can install every archive that verification accepts."""
    raw = packed_cache(tmp_path / "source")
    before = sorted(tmp_path.rglob("*"))
    check(raw)
    assert sorted(tmp_path.rglob("*")) == before
    assert reason_of(check, raw + b"x") == "bad_archive"


@pytest.mark.parametrize("size", [8**11 - 1, 1 << 40, 1 << 60, 1 << 80])
@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K", b"S", tarfile.REGTYPE, b"Z"])
def test_a_size_that_a_header_claims_is_not_acted_on(kind: bytes, size: int):
    """A huge claimed size neither allocates memory nor causes a file system error."""
    raw = member("a", kind, size=size).tobuf(tarfile.GNU_FORMAT) + bytes(10240)
    reason, peak = reason_and_peak_of(check, raw)
    assert reason == "bad_archive"
    assert peak < MIB


def test_a_long_header_is_not_read_into_memory():
    """A name of many megabytes is refused even if all its bytes exist."""
    header = member("a", b"L", size=64 * MIB).tobuf(tarfile.GNU_FORMAT)
    raw = header + bytes(64 * MIB) + GOOD.tobuf() + bytes(10240)
    reason, peak = reason_and_peak_of(check, raw)
    assert reason == "bad_archive"
    assert peak < 4 * MIB


def test_the_number_of_members_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """Each member takes memory before it is checked, so one member too many is refused."""
    monkeypatch.setattr(archive_module, "MAX_MEMBERS", 50)
    archive = GOOD.tobuf() + bytes(tarfile.BLOCKSIZE)
    empty = member("b").tobuf()
    full = archive + 49 * empty
    reason_of(check, full + bytes(10240), match="appears twice")
    reason_of(check, full + empty + bytes(10240), match="more than 50 members")


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

    reasons = {name: reason_of(unpacked, data, target) for name, data in variants.items()}
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
    for name in ("open", "used", "link", "plain"):
        assert reason_of(unpacked, raw, tmp_path / name) == "unsafe_directory", name
    assert list((tmp_path / "real").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_not_unpacked_into(tmp_path: Path):
    """A folder of another user is refused, because its owner could change the loaded files."""
    target = private(tmp_path / "target")
    os.chown(target, 12345, -1)
    assert reason_of(unpacked, tar(GOOD), target) == "unsafe_directory"
