# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The user's own key, which is created once, private, and trusted by its user."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from artifacts import new_key
from believing import PAYLOAD, key_in, mode_of, trust_in, write_trust
from serve_warm import _private_folders
from serve_warm.errors import ConfigError
from serve_warm.trust.envelope import sign
from serve_warm.trust.files import trust_lines
from serve_warm.trust.keys import key_id, load_signing_key
from serve_warm.trust.verify import verify

OTHER = new_key()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "serve_warm"


def test_the_user_key_is_made_once_and_trusted(tmp_path: Path):
    directory = tmp_path / "config" / "serve_warm"
    first = key_in(directory)
    before = (directory / "trust.toml").read_bytes()
    second = key_in(directory)
    assert first.private_bytes_raw() == second.private_bytes_raw()
    assert (directory / "trust.toml").read_bytes() == before
    assert verify(sign(PAYLOAD, second), trust_in(directory / "trust.toml")).payload == PAYLOAD


def test_the_user_key_is_private(folder: Path):
    old = os.umask(0)
    try:
        key = key_in(folder)
    finally:
        os.umask(old)

    pem = (folder / "signing_key.pem").read_bytes()
    assert pem == key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    assert mode_of(folder) == 0o700
    modes = {path.name: mode_of(path) for path in folder.iterdir()}
    assert modes == {"signing_key.pem": 0o600, "trust.toml": 0o600}


def test_a_trust_file_that_is_there_is_kept(folder: Path):
    text = "# ours\npinned = []\n" + trust_lines(OTHER.public_key(), name="ci").rstrip()
    path = write_trust(folder, text)
    key = key_in(folder)
    assert path.read_text().startswith(text)
    ids = [trusted.id for trusted in trust_in(path).keys]
    assert ids == [key_id(each.public_key()) for each in (OTHER, key)]


def test_a_trust_file_that_cannot_be_extended_is_kept(folder: Path):
    path = write_trust(folder, "keys = []\n")
    with pytest.raises(ConfigError, match="cannot add a key to ") as caught:
        key_in(folder)
    assert path.read_text() == "keys = []\n"
    assert "BEGIN PUBLIC KEY" in caught.value.hint


@pytest.mark.parametrize("unsafe", ["config/serve_warm", "config"])
def test_no_key_is_made_where_others_can_write(tmp_path: Path, unsafe: str):
    """Other users with write access to the folder, or to one above it, could swap the key."""
    directory = tmp_path / "config" / "serve_warm"
    directory.mkdir(parents=True, mode=0o700)
    (tmp_path / unsafe).chmod(0o777)
    with pytest.raises(ConfigError, match=f"{Path(unsafe).name} can be written"):
        key_in(directory)
    assert list(directory.iterdir()) == []


def test_keys_are_made_without_hard_links(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A home on a file system without hard links works, and no file there is overwritten."""

    def none(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", none)
    key = key_in(folder)
    path = folder / "signing_key.pem"

    assert key_in(folder).private_bytes_raw() == key.private_bytes_raw()
    assert mode_of(path) == 0o600
    assert len(list(path.parent.iterdir())) == 2
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        _private_folders.create_file(path, b"other", mode=0o600)
    assert path.read_bytes() == before


def test_half_a_key_does_not_stay(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A full disk leaves no file that a second attempt would read."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(ConfigError, match="No space left"):
            key_in(folder)

    assert list(folder.iterdir()) == []
    assert key_in(folder)


def test_a_place_that_cannot_be_written_is_a_config_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        key_in(tmp_path / "file" / "serve_warm")


RACER = """
import pathlib, sys, time
from serve_warm.trust.keys import key_id
from serve_warm.trust import files
from serve_warm.trust.user_key import user_key
directory, go = map(pathlib.Path, sys.argv[1:])
files.user_directory = lambda: directory
print("ready", flush=True)
while not go.exists():
    time.sleep(0.001)
print(key_id(user_key().public_key()))
"""


@pytest.mark.slow
def test_racing_first_uses_agree_on_one_key(tmp_path: Path):
    directory, go = tmp_path / "serve_warm", tmp_path / "go"
    command = [sys.executable, "-c", RACER, str(directory), str(go)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    for racer in racers:
        assert racer.stdout is not None
        racer.stdout.readline()
    go.touch()
    ids = {racer.communicate(timeout=400)[0].strip() for racer in racers}

    assert len(ids) == 1
    assert {key.id for key in trust_in(directory / "trust.toml").keys} == ids
    assert len(list(directory.iterdir())) == 2


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_signing_key_that_others_can_read_is_not_used(folder: Path, mode: int):
    key_in(folder)
    path = folder / "signing_key.pem"
    path.chmod(mode)
    with pytest.raises(ConfigError, match="read by other users") as caught:
        load_signing_key(path)
    assert f"chmod 600 {path}" in caught.value.hint
