# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Folders as stores: the contract, crashes at every stage of a write, and odd files."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from serve_warm._store_address import SCHEMES
from serve_warm.errors import ConfigError, ObjectExists, ObjectNotFound, StoreDenied, StoreError
from serve_warm.stores import kind_of, list_keys, open_store
from serve_warm.stores.local import LocalStore
from serve_warm.testing import StoreContract
from serve_warm.testing.store_contract import KEY


@dataclass
class Folder:
    root: Path

    def read(self, key: str) -> bytes:
        return (self.root / key).read_bytes()

    def write(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def link(self, name: str, target: Path) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)


@pytest.fixture
def raw(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "store")


@pytest.fixture
def store(raw: Folder) -> LocalStore:
    return LocalStore(root=raw.root)


class TestLocalStore(StoreContract):
    pass


# --- crashes -------------------------------------------------------------------------------

DATA = bytes(range(256)) * 1000

# The kernel ends (or fails) the write at exactly the given byte.
WRITER = """
import resource, signal, sys
from serve_warm.stores import open_store
uri, key, limit, action = sys.argv[1:]
store = open_store(uri)
data = bytes(range(256)) * 1000
signal.signal(signal.SIGXFSZ, signal.SIG_DFL if action == "die" else signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
store.create(key, data)
"""


def write_until(store: LocalStore, limit: int, action: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WRITER, store.uri, KEY, str(limit), action]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)


@pytest.mark.parametrize("limit", [0, 1, 4096, len(DATA) - 1])
def test_a_crash_at_any_byte_leaves_nothing_visible(store: LocalStore, raw: Folder, limit: int):
    """A writer that is killed midway leaves no object and no listed leftover; the next succeeds."""
    crashed = write_until(store, limit, "die")
    assert crashed.returncode == -signal.SIGXFSZ
    assert list_keys(store, "") == []
    with pytest.raises(ObjectNotFound):
        store.get(KEY, max_bytes=len(DATA))
    store.create(KEY, DATA)
    assert (list_keys(store, ""), raw.read(KEY)) == ([KEY], DATA)


def test_a_full_disk_is_a_store_error_and_leaves_no_file(store: LocalStore, raw: Folder):
    """The error of a failed write names the cause, and the temporary file is removed."""
    failed = write_until(store, 4096, "fail")
    assert "StoreError" in failed.stderr
    assert "File too large" in failed.stderr
    assert [path for path in raw.root.rglob("*") if path.is_file()] == []


RACER = """
import pathlib, sys, time
from serve_warm.errors import ObjectExists
from serve_warm.stores import open_store
uri, go, number = sys.argv[1:]
store = open_store(uri)
print("ready", flush=True)
while not pathlib.Path(go).exists():
    time.sleep(0.001)
try:
    store.create("blobs/x", number.encode() * 300_000)
    print("won")
except ObjectExists:
    print("lost")
"""


@pytest.mark.slow
def test_of_racing_processes_one_wins(store: LocalStore, raw: Folder, tmp_path: Path):
    """Processes that share no lock still leave one complete object of one of them."""
    go = tmp_path / "go"
    command = [sys.executable, "-c", RACER, store.uri, str(go)]
    racers = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(8)
    ]
    for racer in racers:
        racer.stdout.readline()
    go.touch()
    results = [racer.communicate(timeout=400)[0].strip() for racer in racers]
    assert sorted(results) == ["lost"] * 7 + ["won"]
    assert raw.read("blobs/x") == str(results.index("won")).encode() * 300_000


# --- what else can stand in a folder -------------------------------------------------------
def test_a_pipe_in_place_of_an_object_does_not_hang(store: LocalStore, raw: Folder):
    """A start must not wait for a writer to a pipe, because none may ever come."""
    raw.root.mkdir()
    os.mkfifo(raw.root / "x")
    with pytest.raises(StoreError, match="not a regular file"):
        store.get("x", max_bytes=10)
    assert list_keys(store, "") == []


def test_listing_leaves_out_what_is_no_key(store: LocalStore, raw: Folder):
    """Files of other programs are not listed, so every listed key can be read."""
    for name in ("x", ".DS_Store", "back\\slash", ".git/config", "a/.x.swp"):
        raw.write(name, b"1")
    assert list_keys(store, "") == ["x"]


def test_a_file_in_place_of_the_folder_is_a_store_error(tmp_path: Path):
    """A wrong path fails on the first write, with the system's reason."""
    (tmp_path / "file").write_bytes(b"")
    store = LocalStore(root=tmp_path / "file")
    with pytest.raises(StoreError, match=r"Not a directory|File exists"):
        store.create(KEY, b"x")
    assert list_keys(store, "") == []


# --- links ---------------------------------------------------------------------------------

OUTSIDE = "00ff"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of another user, with a file that could have the name of a blob."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / OUTSIDE).write_bytes(b"precious")
    return folder


@pytest.mark.parametrize("linked", ["blobs", "blobs/sha256"])
def test_nothing_is_deleted_through_a_link(
    store: LocalStore, raw: Folder, outside: Path, linked: str
):
    """Writers to a store cannot make a prune delete files outside the store."""
    (outside / "sha256").mkdir()
    (outside / "sha256" / OUTSIDE).write_bytes(b"precious")
    before = sorted(outside.rglob("*"))
    raw.write("statements/x", b"1")
    raw.link(linked, outside)
    with pytest.raises(StoreError, match=f"'{linked}' is a link") as caught:
        store.delete(f"blobs/sha256/{OUTSIDE}")
    assert sorted(outside.rglob("*")) == before
    assert "root may contain links" in caught.value.hint


@pytest.mark.parametrize("linked", ["blobs", "blobs/sha256"])
def test_nothing_is_created_through_a_link(
    store: LocalStore, raw: Folder, outside: Path, linked: str
):
    """A link does not make a push write outside the store, even to a new folder."""
    raw.link(linked, outside)
    with pytest.raises(StoreError, match=f"'{linked}' is a link"):
        store.create(KEY + "new", b"x")
    assert list(outside.iterdir()) == [outside / OUTSIDE]


@pytest.mark.parametrize("prefix", ["", "blobs/", "blobs/sha256/", "blobs/sha256/00"])
@pytest.mark.parametrize("linked", ["blobs", "blobs/sha256"])
def test_listing_begins_in_no_linked_folder(
    store: LocalStore, raw: Folder, outside: Path, linked: str, prefix: str
):
    """Files in a linked folder are not part of the store, whatever prefix leads into it."""
    (outside / "sha256").mkdir()
    (outside / "sha256" / OUTSIDE).write_bytes(b"precious")
    raw.link(linked, outside)
    assert list_keys(store, prefix) == []


def test_links_to_files_are_read(store: LocalStore, raw: Folder):
    """Objects of a mounted volume (links to files in a hidden folder) are listed and read."""
    raw.write("..data/x", b"mounted")
    (raw.root / "x").symlink_to(Path("..data", "x"))
    pieces: list[bytes] = []
    store.download(store.head("x"), lambda _at, piece: pieces.append(bytes(piece)))
    assert list_keys(store, "") == ["x"]
    assert store.get("x", max_bytes=10) == b"".join(pieces) == b"mounted"


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """The snapshot folder of a cache of the Hub, which was copied without the blobs."""
    cache = tmp_path / "models--acme--warm"
    statement = cache / "snapshots" / "c0ffee" / "statements" / "scorer" / "a.dsse.json"
    statement.parent.mkdir(parents=True)
    statement.symlink_to("../../../../blobs/9f2c")
    (cache / "blobs").mkdir()
    (cache / "blobs" / "9f2c").write_bytes(b"signed")
    mounted = tmp_path / "mounted"
    shutil.copytree(cache / "snapshots" / "c0ffee", mounted, symlinks=True)
    assert LocalStore(root=cache / "snapshots" / "c0ffee").get(LINKED, max_bytes=6) == b"signed"
    return mounted


LINKED = "statements/scorer/a.dsse.json"


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: list_keys(store, ""),
        lambda store: list_keys(store, "statements/scorer/"),
        lambda store: store.get(LINKED, max_bytes=6),
        lambda store: store.head(LINKED),
    ],
    ids=["list", "list a folder", "get", "head"],
)
def test_links_without_their_targets_are_not_an_empty_store(
    snapshot: Path, ask: Callable[[LocalStore], object]
):
    """If only the snapshot folder of the Hub's cache was mounted, the link and target are named."""
    with pytest.raises(StoreDenied) as caught:
        ask(LocalStore(root=snapshot))
    assert f"'{LINKED}' is a link to '../../../../blobs/9f2c'" in caught.value.message
    assert "blobs" in caught.value.hint


def test_a_link_without_its_target_hides_no_object(snapshot: Path):
    """Other objects are listed and read, and a prefix without such links is empty."""
    store = LocalStore(root=snapshot)
    store.create("statements/scorer/b.dsse.json", b"x")
    assert list_keys(store, "statements/scorer/") == ["statements/scorer/b.dsse.json"]
    assert list_keys(store, "blobs/") == list_keys(store, "statements/scorer/c") == []


def test_a_link_to_a_file_is_never_written_over_and_deleted_as_itself(
    store: LocalStore, raw: Folder, outside: Path
):
    """The target of a link is never overwritten; deleting removes the link and keeps the file."""
    raw.root.mkdir()
    (raw.root / "x").symlink_to(outside / OUTSIDE)
    (raw.root / "dangling").symlink_to(outside / "nothing")
    with pytest.raises(ObjectExists):
        store.create("x", b"other")
    with pytest.raises(ObjectExists):
        store.create("dangling", b"other")
    store.delete("x")
    store.delete("dangling")
    assert [path.name for path in outside.iterdir()] == [OUTSIDE]
    assert (outside / OUTSIDE).read_bytes() == b"precious"
    assert list_keys(store, "") == []


def test_a_folder_that_cannot_be_read_hides_nothing_beside_it():
    """Writers to a folder store must not be able to turn a hit into a miss."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:  # which others may enter
        root = Path(made)
        (root / "statements" / "Dep" / "zz").mkdir(parents=True)
        (root / "statements" / "Dep" / "good.dsse.json").write_text("{}")
        (root / "statements" / "Dep" / "zz").chmod(0)
        root.chmod(0o755)
        with without_privileges():
            found = list_keys(LocalStore(root=root), "statements/")
    assert found == ["statements/Dep/good.dsse.json"]


def test_the_root_may_be_reached_over_links(tmp_path: Path, raw: Folder):
    """The configured path may be a link, for example to the newest of several folders."""
    raw.root.mkdir()
    (tmp_path / "current").symlink_to(raw.root)
    store = LocalStore(root=tmp_path / "current")
    store.create(KEY, b"1")
    store.create("s/a", b"1")
    store.delete("s/a")
    assert (list_keys(store, ""), raw.read(KEY)) == ([KEY], b"1")


# --- what the file system refuses ----------------------------------------------------------

OPERATIONS: dict[str, Callable[[LocalStore], object]] = {
    "list": lambda store: list_keys(store, "blobs/"),
    "head": lambda store: store.head(KEY),
    "get": lambda store: store.get(KEY, max_bytes=10),
    "create": lambda store: store.create(f"{KEY}1", b"x"),
    "delete": lambda store: store.delete(KEY),
}


@contextmanager
def without_privileges() -> Iterator[None]:
    """Run the block as user nobody if this is root, who could read and write everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_folder_of_somebody_else_is_denied(store: LocalStore, raw: Folder, operation: str):
    """Missing permission is not retried, and the error names the user without permission."""
    raw.write(KEY, b"x")
    raw.root.chmod(0)
    try:
        with without_privileges(), pytest.raises(StoreDenied, match="Permission denied") as caught:
            OPERATIONS[operation](store)
    finally:
        raw.root.chmod(0o700)
    assert "the user of this process (uid " in caught.value.hint


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_folder_that_cannot_be_synced_is_written(
    store: LocalStore, raw: Folder, monkeypatch: pytest.MonkeyPatch, code: int
):
    """Some network file systems sync only files, and report this with different errors."""
    fsync = os.fsync

    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    store.create(KEY, b"x")
    assert raw.read(KEY) == b"x"


# --- addresses -----------------------------------------------------------------------------
def test_paths_and_file_uris_open_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A relative path is resolved when the store is opened; a URI is percent-decoded."""
    monkeypatch.chdir(tmp_path)
    stores = [open_store(uri) for uri in ("./a b", "a b", f"{tmp_path}/a b")]
    stores.append(open_store((tmp_path / "a b").as_uri()))
    monkeypatch.chdir("/")
    stores[0].create("x", b"1")
    assert [list_keys(store, "") for store in stores] == [["x"]] * 4
    assert {store.uri for store in stores} == {f"{tmp_path.as_uri()}/a%20b"}


def test_an_address_is_that_of_the_folder_it_leads_to(tmp_path: Path):
    """A key that is trusted only in one folder is not trusted in another through `..` or a link."""
    (tmp_path / "prod").mkdir()
    (tmp_path / "evil").mkdir()
    (tmp_path / "prod" / "link").symlink_to(tmp_path / "evil")
    prod = (tmp_path / "prod").as_uri()
    found = {open_store(f"{prod}/{way}").uri for way in ("../evil", "%2e%2e/evil", "link")}
    assert found == {(tmp_path / "evil").as_uri()}


HALF, IN_URL = "a store address with the scheme", "query, a fragment or a user"
REFUSED = {
    **dict.fromkeys(("s3:bucket", "S3:/bucket/x", "hf:org/repo", "gs:"), HALF),
    **dict.fromkeys(("s3://me:secret@bucket/x", "s3://bucket/x?X-Amz-Signature=secret"), IN_URL),
    **dict.fromkeys(("az://container/x#secret", "hf://secret@owner/repo"), IN_URL),
    "https://user:secret@host/x?X-Amz-Signature=secret": "https",
    "http://169.254.169.254/secret": "http",
    "ftp://secret": "ftp",
    **dict.fromkeys(("file://secret/share", "file:secret"), "file"),
    # An empty path and `~` would name the wrong folder.
    **dict.fromkeys(("", "~/artifacts", "a\0b", "file:///a%00b"), "."),
}
"""Addresses, and what the error says."""


@pytest.mark.parametrize("uri", REFUSED)
def test_other_addresses_are_refused_without_repeating_them(uri: str):
    """An address may contain a password. Half an address is no folder named `s3:`."""
    with pytest.raises(ConfigError, match=REFUSED[uri]) as caught:
        open_store(uri)
    assert "secret" not in str(caught.value)
    assert REFUSED[uri] != HALF or "s3://bucket/prefix" in caught.value.hint


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("./artifacts", "file"),
        ("/srv/artifacts", "file"),
        ("FILE:///srv/artifacts", "file"),
        ("s3://bucket/prefix", "s3"),
        ("gs://bucket/prefix", "gs"),
        ("az://container/prefix", "azure"),
        ("hf://owner/repo@v1", "hf"),
        ("https://host/secret?sig=x", "none"),
        ("azure://container", "none"),
    ],
)
def test_an_address_has_a_kind_of_a_closed_set(uri: str, kind: str):
    """The kind is a metric label, so it never contains more than the scheme of an address."""
    assert kind_of(uri) == kind
    assert kind in {*(scheme.kind for scheme in SCHEMES.values()), "none"}
