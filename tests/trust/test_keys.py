# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Key files: which files are accepted, and how a key pair is created."""

from __future__ import annotations

import hashlib
import json
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
from believing import PAYLOAD, mode_of, public_pem, write_trust
from serve_warm.errors import ConfigError
from serve_warm.trust.envelope import sign
from serve_warm.trust.files import load_trust, trust_lines
from serve_warm.trust.keys import TrustedKey, load_signing_key, write_key_pair
from serve_warm.trust.policy import signed_by
from serve_warm.trust.verify import verify
from weak_keys import forge, loosen, not_canonical, off_curve, pem_of, small_order

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


def test_keys_of_small_order_need_no_private_key_to_sign():
    """So they must be refused: the library itself verifies a forged signature for each of them."""
    signatures = {raw.hex(): forge(raw, PAYLOAD) for raw in small_order()}

    assert len(signatures) == 14
    assert [raw for raw, signature in signatures.items() if signature is None] == []


WEAK = {raw.hex(): raw for raw in (*small_order(), *not_canonical())}


@pytest.mark.parametrize("raw", WEAK.values(), ids=WEAK.keys())
def test_a_key_that_anyone_can_sign_for_is_not_trusted(tmp_path, monkeypatch, raw: bytes):
    """In code, in the PEM of a trust file, and in a file that a trust file names."""
    pem = pem_of(raw)
    (tmp_path / "weak.pem").write_text(pem)
    trust_files = [
        write_trust(tmp_path, f"[[keys]]\nname = 'ci'\npem = {json.dumps(pem)}\n", "a.toml"),
        write_trust(tmp_path, "[[keys]]\nname = 'ci'\nfile = 'weak.pem'\n", "b.toml"),
    ]

    with pytest.raises(ConfigError, match=r"key 'ci' .* without a private key"):
        TrustedKey(name="ci", raw=raw)
    with pytest.raises(ConfigError, match="without a private key"):
        signed_by(pem)
    for path in trust_files:
        monkeypatch.setattr("serve_warm.trust.files.default_trust_files", lambda path=path: [path])
        with pytest.raises(ConfigError, match=rf"{path.name}: key 'ci' .* without a private key"):
            load_trust()


@pytest.mark.parametrize("raw", off_curve(20), ids=bytes.hex)
def test_a_key_off_the_curve_is_not_trusted(raw: bytes):
    """No signature would ever match it, so a start that trusts only this key would be cold."""
    with pytest.raises(ConfigError, match="key 'ci' is not a point"):
        TrustedKey(name="ci", raw=raw)


def test_all_other_keys_are_trusted():
    """Half of all 32-byte strings are keys, whatever their sign."""
    made = [new_key().public_key().public_bytes_raw() for _ in range(200)]

    assert [TrustedKey(name="ci", raw=raw).raw for raw in made] == made
    assert {raw[31] >> 7 for raw in made} == {0, 1}


SECOND = public_pem(new_key())
NOT_ONE_KEY = {
    "two keys": SECOND,
    "the same key": public_pem(KEY),
    "a certificate": "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
    "a private key": pem_of(bytes(32)).replace("PUBLIC", "PRIVATE"),
    "a key cut short": SECOND[:60],
    "the first line of a key": SECOND[:27],
}


@pytest.mark.parametrize("second", NOT_ONE_KEY)
@pytest.mark.parametrize("is_first", [False, True])
def test_a_second_block_in_a_pem_is_refused(second: str, is_first: bool):
    """The library reads one of them, so the other would be ignored without a word."""
    blocks = [public_pem(KEY), NOT_ONE_KEY[second]]

    with pytest.raises(ConfigError, match="has 2 PEM blocks") as caught:
        TrustedKey.from_pem("".join(reversed(blocks) if is_first else blocks), name="ci")

    assert "[[keys]]" in caught.value.hint


@pytest.mark.parametrize("change", [str, lambda pem: f"{pem[:40]}\n{pem[40:]}"])
@pytest.mark.parametrize("last", ["=A", "AA", "A", "==", "", "===", "=\n="])
def test_base64_with_a_wrong_end_is_refused(change, last: str):
    """Another text would mean the same key, so no comparison of texts could find it again."""
    pem = change(public_pem(KEY))

    for wrong in (loosen(pem), pem.replace("=\n", f"{last}\n")):
        with pytest.raises(ConfigError, match="key 'ci' is not"):
            TrustedKey.from_pem(wrong, name="ci")


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
