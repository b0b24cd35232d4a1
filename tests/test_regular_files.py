# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A pipe, socket, device or folder in place of a file gives an error, and never hangs.

Each row of `FILES` is a file that serve_warm opens by its name. Each kind is put in its place.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest

import serve_warm
from artifacts import DEPLOYMENT, blob_key, fingerprint
from serve_warm._daemon_threads import begin
from serve_warm._private_folders import process_folder
from serve_warm._regular_files import open_regular, read_regular
from serve_warm._state_file import StateFile
from serve_warm.artifact.code_and_model import NOTHING_KNOWN
from serve_warm.artifact.newest_seen import NewestSeen, Variant
from serve_warm.artifact.node_cache import NodeCache
from serve_warm.builder import app
from serve_warm.cli import fit, pruning
from serve_warm.errors import ArtifactRefused, ConfigError, StoreDenied, StoreError
from serve_warm.node import look, read_states
from serve_warm.precompile.entries.table import INDEX, EntryTable
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.seats.records import KeeperLock, SeatFolder, SeatRequest, file_digest
from serve_warm.stores import Object, open_store
from serve_warm.stores.local import LocalStore
from serve_warm.trust.files import load_trust
from serve_warm.trust.keys import load_signing_key
from store_answers import bucket_environment
from transfers import publish, pull_here

BOUND_S = 20.0
PACKAGE = Path(serve_warm.__file__).parent
NOT_REGULAR = r"not a regular file|[Ii]s a directory"

Put = Callable[[Path], None]
"""Function that puts a pipe, or another kind, in the place of a file."""


def _make_room(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(FileNotFoundError):
        path.unlink()


def put_pipe(path: Path) -> None:
    _make_room(path)
    os.mkfifo(path, 0o600)


def put_device(path: Path) -> None:
    """A link to a device that never ends."""
    _make_room(path)
    path.symlink_to("/dev/zero")


def put_folder(path: Path) -> None:
    _make_room(path)
    path.mkdir(mode=0o700)


def put_socket(path: Path) -> None:
    _make_room(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{folder}/{path.name}")  # a path has at most 107 bytes
    finally:
        os.close(folder)


KINDS: tuple[Put, ...] = (put_pipe, put_device, put_folder, put_socket)


def statement_in_a_folder_store(folder: Path, put: Put, _: Any) -> None:
    store = LocalStore(root=folder / "store")
    good, _manifest = publish(store)
    put(store.root / "statements" / DEPLOYMENT / f"{fingerprint().key}-s00000000.dsse.json")
    assert pull_here(store).chosen.key == good


def object_in_a_folder_store(folder: Path, put: Put, _: Any) -> None:
    store = LocalStore(root=folder)
    put(folder / "blobs" / "a")
    found = Object(key="blobs/a", size_bytes=3, modified_unix=0.0, version="")
    for ask in (
        lambda: store.head("blobs/a"),
        lambda: store.get("blobs/a", max_bytes=10),
        lambda: store.download(found, lambda _at, _piece: None),
    ):
        with pytest.raises(StoreError):
            ask()
    with pytest.raises(StoreError):
        store.create("blobs/a", b"new")


def blob_in_a_folder_store(folder: Path, put: Put, _: Any) -> None:
    store = LocalStore(root=folder / "store")
    _, manifest = publish(store)
    put(store.root / blob_key(manifest.parts[0]))
    with pytest.raises((StoreError, ArtifactRefused)):
        pull_here(store)


def _fetch(cache: NodeCache) -> bytes:
    data = b"kernels"
    fill = functools.partial(_fill, data)
    with cache.fetch(hashlib.sha256(data).hexdigest(), len(data), fill) as file:
        return file.read()


def _fill(data: bytes, sink: Any) -> None:
    sink(0, data)


def blob_in_the_node_cache(folder: Path, put: Put, _: Any) -> None:
    with NodeCache.open(folder / "blobs") as cache:
        put(folder / "blobs" / hashlib.sha256(b"kernels").hexdigest())
        assert _fetch(cache) == b"kernels"


def locks_in_the_node_cache(folder: Path, put: Put, _: Any) -> None:
    with NodeCache.open(folder / "blobs") as cache:
        put(folder / "blobs" / f"{hashlib.sha256(b'kernels').hexdigest()}.lock")
        put(folder / "blobs" / "folder.lock")
        assert _fetch(cache) == b"kernels"


def rollback_mark(folder: Path, put: Put, _: Any) -> None:
    seen = NewestSeen.beside(folder / "blobs")
    (folder / "blobs").mkdir(mode=0o700)
    variant = Variant(store="file:///s", application="a", deployment="D", fingerprint="f")
    seen.note(variant, NOTHING_KNOWN, "2026")
    put(seen.folder / variant.file_name)
    assert seen.find_used(variant) is None  # not trusted, as a mark that was removed
    seen.note(variant, NOTHING_KNOWN, "2027")


def record_of_a_rollback_mark(folder: Path, put: Put, _: Any) -> None:
    seen = NewestSeen.beside(folder / "blobs")
    variant = Variant(store="file:///s", application="a", deployment="D", fingerprint="f")
    put(folder / "blobs" / variant.record_name)
    (folder / "blobs").chmod(0o700)
    seen.note(variant, NOTHING_KNOWN, "2026")
    assert seen.find_used(variant) == {NOTHING_KNOWN: "2026"}


def trust_file(folder: Path, put: Put, patch: pytest.MonkeyPatch) -> None:
    put(folder / "trust.toml")
    patch.setattr("serve_warm.trust.files.default_trust_files", lambda: (folder / "trust.toml",))
    with pytest.raises(ConfigError, match=NOT_REGULAR):
        load_trust()


def public_key_of_a_trust_file(folder: Path, put: Put, patch: pytest.MonkeyPatch) -> None:
    put(folder / "ci.pub")
    (folder / "trust.toml").write_text('[[keys]]\nname = "ci"\nfile = "ci.pub"\n')
    patch.setattr("serve_warm.trust.files.default_trust_files", lambda: (folder / "trust.toml",))
    with pytest.raises(ConfigError, match=NOT_REGULAR):
        load_trust()


def signing_key(folder: Path, put: Put, _: Any) -> None:
    put(folder / "ci.key")
    with pytest.raises(ConfigError, match=NOT_REGULAR):
        load_signing_key(folder / "ci.key")


def _state(folder: Path) -> StateFile:
    return StateFile(folder / "state", application="a", deployment="D", replica="r")


def state_file(folder: Path, put: Put, _: Any) -> None:
    writer = _state(folder)
    writer.write({"stage": "READY"})
    put(writer.path)
    assert read_states(folder / "state") == []
    [seen] = look(folder / "state")
    assert seen.state is None
    writer.close()


def lock_of_a_state_file(folder: Path, put: Put, _: Any) -> None:
    writer = _state(folder)
    writer.write({"stage": "READY"})
    put(writer.path.with_suffix(".lock"))
    look(folder / "state")
    with pytest.raises(OSError):
        writer.write({"stage": "READY"})
    with pytest.raises(OSError):
        _state(folder).write({"stage": "READY"})
    writer.close()


def temporary_state_file(folder: Path, put: Put, _: Any) -> None:
    writer = _state(folder)
    writer.write({"stage": "READY"})
    put(writer.path.with_name(f"{writer.path.stem}.{os.getpid()}.tmp"))
    with pytest.raises(OSError, match=f"{NOT_REGULAR}|Too many levels"):
        writer.write({"stage": "READY"})
    writer.close()


def ticket_of_a_seat(folder: Path, put: Put, _: Any) -> None:
    seats = SeatFolder(folder / "seats")
    seats.make()
    name = seats.offer(SeatRequest(deployment="D", imports=(), limit_s=1.0))
    put(seats.path / name)
    with pytest.raises(OSError, match=NOT_REGULAR):
        seats.claim()


def record_of_a_seat(folder: Path, put: Put, _: Any) -> None:
    seats = SeatFolder(folder / "seats")
    seats.make()
    put(seats.path / "seat-1")
    assert seats.seats() == []


def lock_of_a_keeper(folder: Path, put: Put, _: Any) -> None:
    lock = KeeperLock(SeatFolder(folder / "seats"), "D")
    lock.take()
    [path] = (folder / "seats").glob("keeper-*.lock")
    lock.release()
    put(path)
    with pytest.raises(OSError, match=f"{NOT_REGULAR}|Too many levels"):
        KeeperLock(SeatFolder(folder / "seats"), "D").take()


def lock_of_a_process_folder(folder: Path, put: Put, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("serve_warm._private_folders.private_base", lambda: folder)
    put(folder / "serve_warm-x" / "owner.lock")
    assert process_folder().is_dir()


def fingerprint_file_of_fit(folder: Path, put: Put, _: Any) -> None:
    put(folder / "other.json")
    with pytest.raises(click.BadParameter, match=NOT_REGULAR):
        fit._read_described(folder / "other.json")


def list_of_statements_in_use(folder: Path, put: Put, _: Any) -> None:
    put(folder / "in-use.json")
    with pytest.raises(click.BadParameter, match=NOT_REGULAR):
        pruning._find_names(folder / "in-use.json")


def serve_config(folder: Path, put: Put, _: Any) -> None:
    put(folder / "serve.yaml")
    with pytest.raises(ConfigError, match=NOT_REGULAR):
        app._read_yaml(str(folder / "serve.yaml"))


def entries_of_an_artifact(folder: Path, put: Put, _: Any) -> None:
    put(folder / "entries" / INDEX)
    with pytest.raises(NoEntry, match=NOT_REGULAR):
        EntryTable.read(folder / "entries")


def source_file_of_a_module(folder: Path, put: Put, _: Any) -> None:
    put(folder / "model.py")
    assert file_digest(str(folder / "model.py")) == ""


def _bucket(uri: str, variable: str, folder: Path, put: Put, patch: pytest.MonkeyPatch) -> None:
    for name, value in bucket_environment("http://127.0.0.1:1", folder).items():
        patch.setenv(name, value)
    put(folder / "mounted")
    patch.setenv(variable, str(folder / "mounted"))
    with pytest.raises(StoreDenied, match=NOT_REGULAR) as caught:
        open_store(uri)
    assert variable in str(caught.value)


FILES = {
    check.__name__.replace("_", " "): check
    for check in (
        *(statement_in_a_folder_store, object_in_a_folder_store, blob_in_a_folder_store),
        *(blob_in_the_node_cache, locks_in_the_node_cache),
        *(rollback_mark, record_of_a_rollback_mark),
        *(trust_file, public_key_of_a_trust_file, signing_key),
        *(state_file, lock_of_a_state_file, temporary_state_file),
        *(ticket_of_a_seat, record_of_a_seat, lock_of_a_keeper, lock_of_a_process_folder),
        *(fingerprint_file_of_fit, list_of_statements_in_use, serve_config),
        *(entries_of_an_artifact, source_file_of_a_module),
    )
} | {
    variable: functools.partial(_bucket, uri, variable)
    for uri, variable in (
        ("s3://bucket/pre", "AWS_CA_BUNDLE"),
        ("s3://bucket/pre", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        ("gs://bucket/pre", "GOOGLE_SERVICE_ACCOUNT"),
        ("gs://bucket/pre", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://bucket/pre", "AZURE_FEDERATED_TOKEN_FILE"),
    )
}


@pytest.mark.parametrize("put", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_another_kind_in_place_of_a_file_gives_an_error_and_never_hangs(
    name: str, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tmp_path.chmod(0o700)
    begin(lambda: FILES[name](tmp_path, put, monkeypatch), name="asked").result(BOUND_S)


def test_a_regular_file_is_read_up_to_a_limit(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular(tmp_path / "a") == b"12345"
    assert read_regular(tmp_path / "a", max_bytes=2) == b"12"
    (tmp_path / "link").symlink_to("a")
    assert read_regular(tmp_path / "link") == b"12345"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none", os.O_RDONLY)


OPENERS = {"open", "os.open", "read_bytes", "read_text"}
ELSEWHERE = {
    "_regular_files.py": "the helper",
    "node.py": "has its own check, because it imports nothing of serve_warm",
    "private_apis/digests.py": "a file of this package",
    "private_apis/sources.py": "source of another package, which Python has imported",
    "builder/bench.py": "the kernel's list of CPUs, and a file of this package",
    "fingerprint.py": "files of the kernel",
    "seats/use.py": "files of the kernel",
    "seats/records.py": "files of the kernel",
    "replica/record/timeline.py": "files of the kernel",
    "precompile/builders/cpp.py": "files of a compiler that this process has just run",
    "_private_folders.py": "new files, which must not exist yet",
    "artifact/archive.py": "new files, which must not exist yet",
    "artifact/newest_seen.py": "folders, opened as such",
    "artifact/node_cache.py": "a folder, opened as such",
    "stores/local.py": "folders, opened as such, and new files",
    "stores/hub.py": "files in a private folder of this process",
}
"""Modules that may open files without the helper, and why."""


def openings() -> Iterator[tuple[str, str]]:
    """Yield the module and the text of each call that opens a file by its name."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name, text = ast.unparse(node.func), ast.unparse(node)
            is_opening = name in OPENERS or name.rpartition(".")[2] in ("read_bytes", "read_text")
            is_method = name.endswith(".open") and name != "os.open"
            mode = ast.unparse(node.args[0]).strip("'") if is_method and node.args else ""
            is_opening = is_opening or mode in ("r", "rb", "w", "wb")
            if is_opening and "open_regular" not in text:
                yield str(path.relative_to(PACKAGE)), text


def test_files_are_opened_by_the_helper_only():
    """The table above would miss a file that somebody opens in another way."""
    found = {module for module, _ in openings()}
    strangers = [each for each in openings() if each[0] not in ELSEWHERE]
    assert strangers == []
    assert found == ELSEWHERE.keys()


def test_the_error_about_a_pipe_says_what_to_do(tmp_path: Path):
    """A shell passes `--key <(...)` as a pipe."""
    os.mkfifo(path := tmp_path / "pipe", 0o600)
    asks: tuple[Callable[[], object], ...] = (
        lambda: load_signing_key(path),
        lambda: app._read_yaml(str(path)),
        lambda: fit._read_described(path),
    )
    for ask in asks:
        with pytest.raises((ConfigError, click.BadParameter)) as caught:
            ask()
        error = caught.value
        hint = error.hint if isinstance(error, ConfigError) else error.message
        assert "save the content in a file" in hint
    with pytest.raises(ConfigError) as missing:
        load_signing_key(tmp_path / "missing")
    assert missing.value.hint == ""
