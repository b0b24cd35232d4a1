# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Key files: which files are accepted, and how a key pair is created."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)

from artifacts import new_key
from believing import PAYLOAD, mode_of, public_pem
from serve_warm.errors import ConfigError
from serve_warm.trust.envelope import sign
from serve_warm.trust.files import trust_lines
from serve_warm.trust.keys import TrustedKey, load_signing_key, write_key_pair
from serve_warm.trust.policy import signed_by
from serve_warm.trust.verify import verify

KEY = new_key()


UNUSABLE = {
    "absent": None,
    "empty": b"",
    "public": public_pem(KEY).encode(),
    "encrypted": KEY.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    ),
    "other_kind": ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_key_file_that_holds_no_usable_key_is_an_error(tmp_path: Path, name: str):
    path = tmp_path / "key.pem"
    data = UNUSABLE[name]
    if data is not None:
        path.write_bytes(data)
        path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"key\.pem") as caught:
        load_signing_key(path)
    assert "PRIVATE" not in str(caught.value).replace("BEGIN PRIVATE KEY", "")


LINES = {
    "as written": lambda pem: pem,
    "without a last line end": lambda pem: pem.rstrip(),
    "of Windows": lambda pem: pem.replace(b"\n", b"\r\n"),
    "after a comment": lambda pem: b"key of ci\n" + pem,
    "in two lines": lambda pem: pem[:50] + b"\n" + pem[50:],
    "a bit changed": lambda pem: pem[:40] + bytes([pem[40] ^ 1]) + pem[41:],
    "too short": lambda pem: pem[:60] + pem[64:],
    "of another kind": lambda _: (
        ec.generate_private_key(ec.SECP256R1())
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_public_key_is_read_as_the_library_reads_it(name: str):
    pem = LINES[name](public_pem(KEY).encode())
    try:
        expected = load_pem_public_key(pem)
    except ValueError:
        expected = None
    if not isinstance(expected, Ed25519PublicKey):
        with pytest.raises(ConfigError, match="is not"):
            TrustedKey.from_pem(pem, name="ci")
        return
    key = TrustedKey.from_pem(pem, name="ci")

    der = expected.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert key.raw == expected.public_bytes_raw()
    assert key.id == hashlib.sha256(der).hexdigest()


def test_a_key_pair_signs_and_is_trusted(tmp_path: Path):
    path = tmp_path / "ci.key"
    made = write_key_pair(path)
    key, public = load_signing_key(path), (tmp_path / "ci.key.pub").read_text()
    assert made == TrustedKey(name="ci", raw=key.public_key().public_bytes_raw())
    assert public == public_pem(key)
    assert verify(sign(PAYLOAD, key), signed_by(public)).payload == PAYLOAD
    assert trust_lines(made.public, name=made.name).startswith('[[keys]]\nname = "ci"\n')


@pytest.mark.parametrize("umask", [0, 0o077])
def test_only_the_public_half_can_be_read_by_others(tmp_path: Path, umask: int):
    old = os.umask(umask)
    try:
        write_key_pair(tmp_path / "ci.key")
    finally:
        os.umask(old)
    modes = {path.name: mode_of(path) for path in tmp_path.iterdir()}
    assert modes == {"ci.key": 0o600, "ci.key.pub": 0o644}


@pytest.mark.parametrize("taken", ["ci.key", "ci.key.pub"])
@pytest.mark.parametrize("kind", ["file", "link"])
def test_no_key_is_overwritten(tmp_path: Path, taken: str, kind: str):
    if kind == "file":
        (tmp_path / taken).write_bytes(b"precious")
    else:
        (tmp_path / taken).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=rf"{taken} already exists"):
        write_key_pair(tmp_path / "ci.key")
    assert [path.name for path in tmp_path.iterdir()] == [taken]
    assert kind == "link" or (tmp_path / taken).read_bytes() == b"precious"


@pytest.mark.parametrize("name", ["absent/ci.key", "file/ci.key", "file/..", "."])
def test_a_place_for_no_key_pair_is_a_config_error(tmp_path, monkeypatch, name):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be written|already exists"):
        write_key_pair(Path(name))
