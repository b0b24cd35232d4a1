# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Ed25519 keys and their files.

A private key is an unencrypted PKCS#8 PEM that only the key's user can read. A public key is a PEM
(SubjectPublicKeyInfo). openssl reads and writes both formats. serve_warm never overwrites a key.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from serve_warm import _private_folders
from serve_warm._records import record
from serve_warm._regular_files import explain_pipe, open_regular
from serve_warm.errors import ConfigError
from serve_warm.trust.patterns import matches_any

MAX_KEY_FILE_BYTES = 1 << 20

ED25519_DER = bytes.fromhex("302a300506032b6570032100")
"""The DER bytes before the 32 bytes of every Ed25519 key (SubjectPublicKeyInfo, RFC 8410)."""

PEM = rb"-----BEGIN PUBLIC KEY-----\s+([A-Za-z0-9+/]{59}=)\s+-----END PUBLIC KEY-----\s*"
"""Pattern of a PEM Ed25519 key as `serve-warm keygen` and openssl write it."""

_BODY = rb"-----BEGIN PUBLIC KEY-----(.*?)-----END PUBLIC KEY-----"

# The field and the constant of edwards25519 (RFC 8032, section 5.1).
_P = 2**255 - 19
_D = 0x52036CEE2B6FFE738CC740797779E89800700A4D4141D8AB75EB4DCA135978A3
_ORDER_8_Y = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER_Y = frozenset((0, 1, _P - 1, _ORDER_8_Y, _P - _ORDER_8_Y))
"""The y of all eight points of small order. Each y belongs to a point and its negative."""


@record(frozen=True, kw_only=True)
class TrustedKey:
    """A public Ed25519 key whose signatures are trusted."""

    name: str
    """A name for people; shown by `inspect`, never compared."""
    raw: bytes = field(repr=False)
    """The 32 bytes of the key."""
    deployments: tuple[str, ...] = ()
    """Patterns of the deployments that the key is trusted for; empty means all."""
    stores: tuple[str, ...] = ()
    """Patterns of the store addresses that the key is trusted for; empty means all."""

    def __post_init__(self) -> None:
        if len(self.raw) != 32:
            raise ConfigError(f"key {self.name!r} has {len(self.raw)} bytes, but Ed25519 needs 32")
        _check_point(self.raw, name=self.name)
        for store in self.stores:
            if "://" not in store:
                raise ConfigError(
                    f"key {self.name!r}: {store!r} is not the address of a store",
                    hint="write the address as `serve-warm inspect` and the log show it; * is a "
                    "wildcard, as in s3://bucket/*",
                )

    @classmethod
    def from_pem(cls, pem: str | bytes, *, name: str) -> TrustedKey:
        """Return the key in a PEM block (SubjectPublicKeyInfo).

        Raises:
            ConfigError: the text is not exactly one PEM public key, or the key is not an Ed25519
                key, is written in base64 that also has another form, or is not safe to trust.
        """
        data = pem.encode() if isinstance(pem, str) else pem
        # The library reads one block and ignores the others.
        blocks = data.count(b"-----BEGIN ")
        if blocks > 1:
            raise ConfigError(
                f"key {name!r} has {blocks} PEM blocks, but only one can be read",
                hint="write a [[keys]] table for each key, or call signed_by for each key",
            )
        if (raw := _read_plain(data)) is not None:
            return cls(name=name, raw=raw)
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            key = load_pem_public_key(data)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ConfigError(
                f"key {name!r} is not a PEM public key",
                hint="a PEM public key begins with -----BEGIN PUBLIC KEY-----",
            ) from error
        if not isinstance(key, Ed25519PublicKey):
            raise _not_ed25519(name)
        raw = key.public_bytes_raw()
        body = re.search(_BODY, data, re.DOTALL)
        if body is None or b"".join(body[1].split()) != base64.b64encode(ED25519_DER + raw):
            raise ConfigError(
                f"key {name!r} is not in the one base64 form that its bytes have",
                hint="the last characters of the base64 are wrong, or a header is before them; "
                "copy the file of serve-warm keygen or of openssl pkey -pubout again",
            )
        return cls(name=name, raw=raw)

    @property
    def public(self) -> Ed25519PublicKey:
        """The key as a `cryptography` object, for `trust_lines` and `key_id`."""
        return Ed25519PublicKey.from_public_bytes(self.raw)

    @property
    def id(self) -> str:
        """The key id that this key's signatures contain."""
        return key_id(self.public)

    @property
    def scope(self) -> str:
        """The scope of the key in words; empty if the key is trusted for everything."""
        return " and ".join(
            f"{what} {', '.join(patterns)}"
            for what, patterns in (("deployments", self.deployments), ("stores", self.stores))
            if patterns
        )

    def covers(self, *, deployment: str | None, store: str) -> bool:
        """Return whether this key is trusted for a deployment's artifacts in a store.

        A `deployment` of None means that the deployment is unknown.
        """
        of_deployment = not self.deployments or (
            deployment is not None and matches_any(self.deployments, deployment)
        )
        return of_deployment and (not self.stores or matches_any(self.stores, store))

    def signed(self, message: bytes, signature: bytes) -> bool:
        """Return whether `signature` is a valid signature of `message` by this key."""
        try:
            self.public.verify(signature, message)
        except InvalidSignature:
            return False
        return True


def _read_plain(pem: bytes) -> bytes | None:
    """Return the key in a plain PEM block; None if only `cryptography` can read the block.

    The readers of `cryptography` read all formats, but importing these readers would add 5 ms to
    every start.
    """
    found = re.fullmatch(PEM, pem)
    der = base64.b64decode(found[1]) if found is not None else b""
    if found is None or not der.startswith(ED25519_DER) or base64.b64encode(der) != found[1]:
        return None
    return der.removeprefix(ED25519_DER)


def _check_point(raw: bytes, *, name: str) -> None:
    """Refuse 32 bytes that `cryptography` accepts as a key, but that are no safe key.

    OpenSSL verifies signatures for points of small order, and for a y of `_P` or more. A point of
    small order has at most eight multiples, so anyone can find a signature without a private key.
    The sum of such a point and a real key is not refused: only the key's holder can sign for it.

    Raises:
        ConfigError: the point has small order, its encoding is not canonical (RFC 8032, section
            5.1.3), or the bytes are not a point of the curve.
    """
    y = int.from_bytes(raw, "little") & (2**255 - 1)
    if y >= _P or y in _SMALL_ORDER_Y:
        raise ConfigError(
            f"key {name!r} is no real key: anyone can sign for it without a private key",
            hint="find out who added this key, and remove it; make a key with serve-warm keygen",
        )
    # x² is (y² - 1) / (dy² + 1). It has a root if the product of both has one (Euler's criterion).
    if pow((y * y - 1) * (_D * y * y + 1), (_P - 1) // 2, _P) != 1:
        raise ConfigError(
            f"key {name!r} is not a point of the curve, so no signature can match it",
            hint="the key is damaged; copy the file of serve-warm keygen again",
        )


def _not_ed25519(name: str) -> ConfigError:
    return ConfigError(
        f"key {name!r} is not an Ed25519 key",
        hint="make a key with: serve-warm keygen, or openssl genpkey -algorithm ed25519",
    )


def key_id(key: Ed25519PublicKey) -> str:
    """Return the key id used in signatures: hex sha256 of the key's DER SubjectPublicKeyInfo."""
    return hashlib.sha256(ED25519_DER + key.public_bytes_raw()).hexdigest()


def distinct(keys: Iterable[TrustedKey]) -> tuple[TrustedKey, ...]:
    """Return each combination of key and scope once, under the first of its names.

    So a key with two names counts as one signer.
    """
    first: dict[tuple[Any, ...], TrustedKey] = {}
    for key in keys:
        first.setdefault((key.raw, key.deployments, key.stores), key)
    return tuple(first.values())


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in a PKCS#8 PEM file that only this user can read.

    Raises:
        ConfigError: the file does not exist, is not an unencrypted Ed25519 key, or is readable by
            other users.
    """
    try:
        with open(path, "rb", opener=open_regular) as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_KEY_FILE_BYTES)
    except OSError as error:
        raise ConfigError(
            f"signing key {path} cannot be read: {error.strerror}", hint=explain_pipe(error)
        ) from error
    # Check this before the mode: a public key may be readable, so a chmod hint would be wrong.
    if b"-----BEGIN PUBLIC KEY-----" in data:
        private = path.with_suffix("") if path.suffix == ".pub" else "the file without .pub"
        raise ConfigError(
            f"{path} is a public key, but signing needs the private key",
            hint=f"pass the private key that keygen wrote ({private}); replicas need only the "
            "public key",
        )
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o077:
        raise ConfigError(
            f"signing key {path} can be read by other users",
            hint=f"run chmod 600 {path}; if others may have copied it, make a new key",
        )
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} is not an unencrypted PEM private key",
            hint="pass a key from serve-warm keygen: a PEM file that begins with BEGIN PRIVATE KEY",
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _not_ed25519(str(path))
    return key


def make_signing_key(path: Path) -> None:
    """Write a new private key to a new file, as an unencrypted PKCS#8 PEM with mode 0600.

    Raises:
        FileExistsError: the file already exists.
        OSError: the file cannot be written.
    """
    _private_folders.create_file(path, _private_pem(Ed25519PrivateKey.generate()), mode=0o600)


def write_key_pair(path: Path) -> TrustedKey:
    """Create a signing key, with the private key in `path` and the public key in `path` + `.pub`.

    The private key is an unencrypted PKCS#8 PEM that only this user can read. The public key is a
    PEM that anyone can read. Returns the public key, named after the file. Nothing is overwritten.

    Raises:
        ConfigError: one of the files already exists, or cannot be written.
    """
    public_path = Path(f"{path}.pub")
    for half in (path, public_path):
        if os.path.lexists(half):
            raise _refuse_taken(half)
    key = Ed25519PrivateKey.generate()
    # Write the private key first: after a crash, a public key without its private key would be
    # useless.
    for half, pem, mode in (
        (path, _private_pem(key), 0o600),
        (public_path, public_pem(key.public_key()), 0o644),
    ):
        try:
            _private_folders.create_file(half, pem, mode=mode)
        except FileExistsError as error:
            raise _refuse_taken(half) from error
        except OSError as error:
            raise ConfigError(f"{half} cannot be written: {error.strerror}") from error
    return TrustedKey(name=path.stem, raw=key.public_key().public_bytes_raw())


def _refuse_taken(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} already exists, and keys are never overwritten",
        hint="use another file; to print the public key of a private key, run: openssl pkey "
        "-pubout -in FILE",
    )


def _private_pem(key: Ed25519PrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_pem(key: Ed25519PublicKey) -> bytes:
    """Return a key as the PEM block (SubjectPublicKeyInfo) that `TrustedKey.from_pem` reads."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
