# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Ed25519 keys and the files that they stand in.

A private key is an unencrypted PKCS#8 PEM that only its user can read, a public one a PEM
(SubjectPublicKeyInfo): both are what openssl writes and reads. No key is ever overwritten.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from serve_warm import _atomic_files
from serve_warm.errors import ConfigError
from serve_warm.trust.patterns import matches_any

MAX_KEY_FILE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class TrustedKey:
    """A public Ed25519 key whose signature is believed."""

    name: str
    """What people call it; shown by inspection, never compared."""
    raw: bytes = field(repr=False)
    """The 32 bytes of the key."""
    deployments: tuple[str, ...] = ()
    """Patterns of the deployments that it is believed for; none means all."""
    stores: tuple[str, ...] = ()
    """Patterns of the addresses of stores that it is believed for; none means all."""

    def __post_init__(self) -> None:
        if len(self.raw) != 32:
            raise ConfigError(f"key {self.name!r} has {len(self.raw)} bytes, Ed25519 has 32")
        for store in self.stores:
            if "://" not in store:
                raise ConfigError(
                    f"key {self.name!r}: {store!r} is not the address of a store",
                    hint="write it as `serve-warm inspect` and the log show it, with * for the "
                    "rest: s3://bucket/*",
                )

    @classmethod
    def from_pem(cls, pem: str | bytes, *, name: str) -> TrustedKey:
        """Return the key in a PEM block (SubjectPublicKeyInfo).

        Raises:
            ConfigError: not a PEM public key, or not an Ed25519 one.
        """
        try:
            key = load_pem_public_key(pem.encode() if isinstance(pem, str) else pem)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ConfigError(
                f"key {name!r} is not a PEM public key",
                hint="it begins with -----BEGIN PUBLIC KEY-----",
            ) from error
        if not isinstance(key, Ed25519PublicKey):
            raise _not_ed25519(name)
        return cls(name=name, raw=key.public_bytes_raw())

    @property
    def public(self) -> Ed25519PublicKey:
        """The key as `trust_lines` and `key_id` take it."""
        return Ed25519PublicKey.from_public_bytes(self.raw)

    @property
    def id(self) -> str:
        """The id that this key's signatures carry."""
        return key_id(self.public)

    @property
    def scope(self) -> str:
        """What it is believed for, in words; empty where that is everything."""
        return " and ".join(
            f"{what} {', '.join(patterns)}"
            for what, patterns in (("deployments", self.deployments), ("stores", self.stores))
            if patterns
        )

    def covers(self, *, deployment: str | None, store: str) -> bool:
        """Return whether it is believed for a deployment (None: unknown) in a store."""
        of_deployment = not self.deployments or (
            deployment is not None and matches_any(self.deployments, deployment)
        )
        return of_deployment and (not self.stores or matches_any(self.stores, store))

    def signed(self, message: bytes, signature: bytes) -> bool:
        """Whether `signature` is this key's over `message`."""
        try:
            self.public.verify(signature, message)
        except InvalidSignature:
            return False
        return True


def _not_ed25519(name: str) -> ConfigError:
    return ConfigError(
        f"key {name!r} is not an Ed25519 key",
        hint="make one with: serve-warm keygen, or openssl genpkey -algorithm ed25519",
    )


def key_id(key: Ed25519PublicKey) -> str:
    """Return the id that signatures carry: hex sha256 of the key's DER SubjectPublicKeyInfo."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def distinct(keys: Iterable[TrustedKey]) -> tuple[TrustedKey, ...]:
    """Return each key once for each scope, under its first name: two names are not two signers."""
    first: dict[tuple[Any, ...], TrustedKey] = {}
    for key in keys:
        first.setdefault((key.raw, key.deployments, key.stores), key)
    return tuple(first.values())


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in a PKCS#8 PEM file that only this user can read.

    Raises:
        ConfigError: no such file, not an unencrypted Ed25519 key, or readable by others.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_KEY_FILE_BYTES)
    except OSError as error:
        raise ConfigError(f"signing key {path} cannot be read: {error.strerror}") from error
    # First: a public half may be read by others, and changing its mode would be wrong advice.
    if b"-----BEGIN PUBLIC KEY-----" in data:
        private = path.with_suffix("") if path.suffix == ".pub" else "the file without .pub"
        raise ConfigError(
            f"{path} is the public half of a key, and signing takes the private one",
            hint=f"pass {private}, as keygen wrote it; replicas need the public half alone",
        )
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o077:
        raise ConfigError(
            f"signing key {path} can be read by other users",
            hint=f"chmod 600 {path}; if it may have been copied, make a new one",
        )
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} is not an unencrypted private key in PEM",
            hint="its first line says BEGIN PRIVATE KEY",
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _not_ed25519(str(path))
    return key


def make_signing_key(path: Path) -> None:
    """Make a private key in a new file, an unencrypted PKCS#8 PEM that only this user can read.

    Raises:
        FileExistsError: something has this name.
        OSError: it cannot be written.
    """
    _atomic_files.create(path, _private_pem(Ed25519PrivateKey.generate()), mode=0o600)


def write_key_pair(path: Path) -> TrustedKey:
    """Make a signing key: `path` gets the private half, `path` + `.pub` the public one.

    The private half is an unencrypted PKCS#8 PEM that only this user can read, the public half a
    PEM that anybody can. Returns the public half, named after the file. Nothing is overwritten.

    Raises:
        ConfigError: a file of one of the names is there, or they cannot be written.
    """
    public_path = Path(f"{path}.pub")
    for half in (path, public_path):
        if os.path.lexists(half):
            raise _refuse_taken(half)
    key = Ed25519PrivateKey.generate()
    # The private half first: a public one alone would look like a key that somebody has.
    for half, pem, mode in (
        (path, _private_pem(key), 0o600),
        (public_path, public_pem(key.public_key()), 0o644),
    ):
        try:
            _atomic_files.create(half, pem, mode=mode)
        except FileExistsError as error:
            raise _refuse_taken(half) from error
        except OSError as error:
            raise ConfigError(f"{half} cannot be written: {error.strerror}") from error
    return TrustedKey(name=path.stem, raw=key.public_key().public_bytes_raw())


def _refuse_taken(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} is there already, and keys are never overwritten",
        hint="name another file; the public half of a key is printed by: openssl pkey -pubout "
        "-in FILE",
    )


def _private_pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_pem(key: Ed25519PublicKey) -> bytes:
    """Return a key as the PEM block (SubjectPublicKeyInfo) that `TrustedKey.from_pem` reads."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
