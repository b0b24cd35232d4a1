# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
r"""Who may say that an artifact is safe to run: keys, signatures and the files that name them.

A compile-cache artifact is a program: torch unpickles it, executes its sources and loads its
libraries. Looking at the content cannot tell a good one from a bad one, so the only gate is who
made these bytes. A statement about them travels in a DSSE envelope (https://github.com/
secure-systems-lab/dsse) and is believed when a trusted Ed25519 key signed it, or when its exact
digest is pinned. Nothing configured means nothing is believed.

Trusted keys come from `/etc/serve_warm/trust.toml` and `~/.config/serve_warm/trust.toml`, where
`~` is the home in the password database and never `$HOME`: whoever can set a variable of the
process must not be able to add a key.

    pinned = ["sha256:9f2c..."]         # optional: statements believed whoever signed them

    [[keys]]
    name = "ci"
    pem = "-----BEGIN PUBLIC KEY-----\n...\n-----END PUBLIC KEY-----\n"

    [[keys]]
    name = "release"
    file = "release.pem"                # relative to this file
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pwd
import re
import secrets
import socket
import stat
import sys
from collections.abc import Iterable, Sequence
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

from serve_warm.errors import ArtifactRefused, BuildFailed, ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAYLOAD_TYPE = "application/vnd.in-toto+json"
MAX_ENVELOPE_BYTES = 1 << 20
MAX_SIGNATURES = 16
"""Signatures looked at in one envelope; bounds the work an unsigned envelope can cause."""

SYSTEM_TRUST_FILE = Path("/etc/serve_warm/trust.toml")
MAX_TRUST_FILE_BYTES = 1 << 20

_HEX_64 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class TrustedKey:
    """A public Ed25519 key whose signature is believed."""

    name: str
    """What people call it; shown by inspection, never compared."""
    raw: bytes = field(repr=False)
    """The 32 bytes of the key."""

    def __post_init__(self) -> None:
        if len(self.raw) != 32:
            raise ConfigError(f"key {self.name!r} has {len(self.raw)} bytes, Ed25519 has 32")

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
    def id(self) -> str:
        """The id that this key's signatures carry."""
        return key_id(Ed25519PublicKey.from_public_bytes(self.raw))

    def signed(self, message: bytes, signature: bytes) -> bool:
        """Whether `signature` is this key's over `message`."""
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True


def _not_ed25519(name: str) -> ConfigError:
    return ConfigError(
        f"key {name!r} is not an Ed25519 key",
        hint="make one with: openssl genpkey -algorithm ed25519",
    )


def key_id(key: Ed25519PublicKey) -> str:
    """Return the id that signatures carry: hex sha256 of the key's DER SubjectPublicKeyInfo."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Whom to believe. An empty one believes nobody: every artifact is refused."""

    keys: tuple[TrustedKey, ...] = ()
    """One valid signature by any of them is enough."""
    pinned: frozenset[str] = frozenset()
    """Hex sha256 of statements (the payload of the envelope) that are believed as they are."""

    def __post_init__(self) -> None:
        bad = sorted(digest for digest in self.pinned if not _HEX_64.fullmatch(digest))
        if bad:
            raise ConfigError(
                f"pinned digests that are not 64 hex digits: {', '.join(map(repr, bad))}"
            )


# --- envelopes -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Signature:
    """One signature of an envelope, not yet checked."""

    key_id: str
    """A hint by whoever wrote the envelope. It chooses the words of a refusal, nothing else."""
    value: bytes


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """A DSSE envelope taken apart. Nothing in it is to be believed before `verify`."""

    payload: bytes
    signatures: tuple[Signature, ...]

    @classmethod
    def parse(cls, data: bytes) -> Envelope:
        """Take an envelope apart, within its cap.

        Raises:
            ArtifactRefused: `too_large`, `bad_statement`, or `untrusted` (nobody signed).
        """
        if len(data) > MAX_ENVELOPE_BYTES:
            raise ArtifactRefused(
                f"the envelope has {len(data)} bytes, the limit is {MAX_ENVELOPE_BYTES}",
                reason="too_large",
            )
        try:
            return cls._parse(parse_json(data))
        except ValueError as error:
            raise ArtifactRefused(
                f"not a DSSE envelope: {error}", reason="bad_statement"
            ) from error

    @classmethod
    def _parse(cls, fields: Any) -> Envelope:
        if not isinstance(fields, dict):
            raise ValueError("the top level is not an object")  # noqa: TRY004 - one error type
        if fields.get("payloadType") != PAYLOAD_TYPE:
            raise ValueError(f"payloadType is not {PAYLOAD_TYPE}")
        signatures = fields.get("signatures")
        if not isinstance(signatures, list) or len(signatures) > MAX_SIGNATURES:
            raise ValueError(f"signatures is not a list of at most {MAX_SIGNATURES}")
        if not signatures:
            raise ArtifactRefused("the statement carries no signature", reason="untrusted")
        return cls(
            payload=_base64(fields.get("payload"), what="payload"),
            signatures=tuple(cls._signature(item) for item in signatures),
        )

    @staticmethod
    def _signature(item: Any) -> Signature:
        if not isinstance(item, dict) or not isinstance(item.get("keyid", ""), str):
            raise ValueError("a signature is not an object with sig and keyid")  # noqa: TRY004
        return Signature(key_id=item.get("keyid", ""), value=_base64(item.get("sig"), what="sig"))

    def signers(self, trust: Trust) -> tuple[TrustedKey, ...]:
        """Return the trusted keys that signed this payload. Each counts once."""
        message = _pae(self.payload)
        return tuple(
            key
            for key in trust.keys
            if any(key.signed(message, signature.value) for signature in self.signatures)
        )


def _base64(text: Any, *, what: str) -> bytes:
    # Strict: a lenient decoder drops foreign characters, and two envelopes would read as one.
    if not isinstance(text, str):
        raise ValueError(f"{what} is not a string")  # noqa: TRY004
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(f"{what} is not base64") from error


def _pae(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding: the type is signed together with the bytes."""
    return b"DSSEv1 %d %s %d %s" % (
        len(PAYLOAD_TYPE),
        PAYLOAD_TYPE.encode(),
        len(payload),
        payload,
    )


def parse_json(data: bytes) -> Any:
    """Parse JSON that may come from an enemy: UTF-8, no repeated names, no NaN.

    Raises:
        ValueError: anything else, nesting beyond the recursion limit included.
    """
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_no_repeats, parse_constant=_no_constants
        )
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name is repeated in a JSON object")
    return fields


def _no_constants(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def sign(payload: bytes, *keys: Ed25519PrivateKey) -> bytes:
    """Return the envelope of `payload`, with one signature a key.

    The same payload and keys give the same bytes, so publishing twice is publishing once.

    Raises:
        ConfigError: no key was given.
        BuildFailed: the envelope is larger than any reader accepts.
    """
    if not keys:
        raise ConfigError("a statement must be signed by at least one key")
    message = _pae(payload)
    fields = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [
            {
                "keyid": key_id(key.public_key()),
                "sig": base64.b64encode(key.sign(message)).decode(),
            }
            for key in keys
        ],
    }
    envelope = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
    if len(envelope) > MAX_ENVELOPE_BYTES:
        raise BuildFailed(
            f"the signed statement has {len(envelope)} bytes, the limit is {MAX_ENVELOPE_BYTES}",
            hint="record fewer facts about the build",
        )
    return envelope


def verify(envelope: bytes, trust: Trust) -> bytes:
    """Return the payload of an envelope that `trust` believes.

    Raises:
        ArtifactRefused: `no_trust` (nothing is configured), `too_large`, `bad_statement` (not an
            envelope), `untrusted` (signed by nobody we know), `bad_signature` (names a key we
            trust, and that key did not sign this).
    """
    if not trust.keys and not trust.pinned:
        raise ArtifactRefused(
            "no key is trusted, so no artifact can be", reason="no_trust", hint=_how_to_trust()
        )
    opened = Envelope.parse(envelope)
    if hashlib.sha256(opened.payload).hexdigest() in trust.pinned or opened.signers(trust):
        return opened.payload
    claimed = {signature.key_id for signature in opened.signatures}
    forged = [key for key in trust.keys if key.id in claimed]
    if forged:
        raise ArtifactRefused(
            f"the signature of {forged[0].name!r} ({forged[0].id[:16]}) does not belong to this "
            "statement",
            reason="bad_signature",
            hint="the statement was changed after it was signed; build and push again",
        )
    raise ArtifactRefused(
        f"signed by {_shown(claimed)}, which is not trusted here",
        reason="untrusted",
        hint=_how_to_trust(),
    )


def _shown(key_ids: Iterable[str]) -> str:
    # Whoever wrote the envelope chose these strings: print only what can be a key id.
    shown = sorted(text[:16] if _HEX_64.fullmatch(text) else "a key without id" for text in key_ids)
    return ", ".join(shown)


def _how_to_trust() -> str:
    files = " or ".join(str(path) for path in default_trust_files())
    return (
        f"add the public key of whoever builds your artifacts to {files}:\n"
        "[[keys]]\n"
        'name = "builder"\n'
        r'pem = "-----BEGIN PUBLIC KEY-----\n...\n-----END PUBLIC KEY-----\n"'
    )


# --- trust files ---------------------------------------------------------------------------


def default_trust_files() -> tuple[Path, ...]:
    """Return the files that name trusted keys on this machine, existing or not."""
    user = _user_directory()
    return (SYSTEM_TRUST_FILE,) if user is None else (SYSTEM_TRUST_FILE, user / "trust.toml")


def _user_directory() -> Path | None:
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None  # containers may run under a user id that has no name and no home
    return Path(home) / ".config" / "serve_warm"


def load_trust(files: Sequence[Path] | None = None) -> Trust:
    """Return what the trust files of this machine say, taken together.

    A file that does not exist says nothing. `files` replaces the default places.

    Raises:
        ConfigError: a file is malformed, or somebody other than root and this user could
            have written it.
    """
    keys: dict[bytes, TrustedKey] = {}
    pinned: set[str] = set()
    for path in default_trust_files() if files is None else files:
        data = _read_guarded(path)
        if data is None:
            continue
        trust = _parse_trust(data, path)
        pinned |= trust.pinned
        for key in trust.keys:
            keys.setdefault(key.raw, key)
    return Trust(keys=tuple(keys.values()), pinned=frozenset(pinned))


def _parse_trust(data: bytes, path: Path) -> Trust:
    try:
        fields = tomllib.loads(data.decode("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    unknown = sorted(set(fields) - {"keys", "pinned"})
    if unknown:
        raise ConfigError(f"{path}: unknown setting {unknown[0]!r}", hint="it has keys and pinned")
    tables, pinned = fields.get("keys", []), fields.get("pinned", [])
    if not isinstance(tables, list) or not isinstance(pinned, list):
        raise ConfigError(f"{path}: [[keys]] are tables and pinned is a list")
    return Trust(
        keys=tuple(_parse_key(table, path) for table in tables),
        pinned=frozenset(_parse_pin(text, path) for text in pinned),
    )


def _parse_key(table: Any, path: Path) -> TrustedKey:
    wanted = "each of [[keys]] has a name, and either pem or file, all of them strings"
    if (
        not isinstance(table, dict)
        or set(table) not in ({"name", "pem"}, {"name", "file"})
        or not all(isinstance(value, str) and value for value in table.values())
    ):
        raise ConfigError(f"{path}: a key is incomplete or has unknown settings", hint=wanted)
    if "pem" in table:
        return TrustedKey.from_pem(table["pem"], name=table["name"])
    pem = _read_guarded(path.parent / table["file"])
    if pem is None:
        raise ConfigError(f"{path}: key {table['name']!r}: there is no file {table['file']}")
    return TrustedKey.from_pem(pem, name=table["name"])


def _parse_pin(text: Any, path: Path) -> str:
    digest = text.removeprefix("sha256:") if isinstance(text, str) else ""
    if text == digest or not _HEX_64.fullmatch(digest):
        raise ConfigError(f"{path}: {text!r} in pinned is not sha256: and 64 hex digits")
    return digest


def _read_guarded(path: Path) -> bytes | None:
    """Read a file only root or this user can have written; None when it is not there."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            _check_guarded(path, os.fstat(file.fileno()))
            data = file.read(MAX_TRUST_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_TRUST_FILE_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_TRUST_FILE_BYTES} bytes")
    return data


def _check_guarded(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path} is not a regular file")
    # The file may be reached by a link: neither the link nor what it names may be replaced.
    directories = {path.parent, Path(os.path.realpath(path)).parent}
    problems = [_open_to_others(path, status)]
    problems += [_open_to_others(directory, directory.stat()) for directory in directories]
    found = [problem for problem in problems if problem]
    if found:
        raise ConfigError(
            "whoever can change the trusted keys can run code here: "
            + "; ".join(what for what, _ in found),
            hint="; ".join(fix for _, fix in found),
        )


def _open_at_once(path: str, flags: int) -> int:
    # Not blocking, so that a pipe in the file's place cannot hang the start.
    return os.open(path, flags | os.O_NONBLOCK)


def _open_to_others(path: Path, status: os.stat_result) -> tuple[str, str] | None:
    """Return what is wrong with the owner or mode, and the command that puts it right."""
    if status.st_uid not in (0, os.getuid()):
        return f"{path} belongs to user id {status.st_uid}", f"chown root {path}"
    # A read-only mount (a ConfigMap in Kubernetes is mode 0777 and read-only) cannot be written.
    if status.st_mode & 0o022 and not os.statvfs(path).f_flag & os.ST_RDONLY:
        return f"{path} can be written by group or others", f"chmod go-w {path}"
    return None


# --- private keys --------------------------------------------------------------------------


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in a PKCS#8 PEM file that only this user can read.

    Raises:
        ConfigError: no such file, not an unencrypted Ed25519 key, or readable by others.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_TRUST_FILE_BYTES)
    except OSError as error:
        raise ConfigError(f"signing key {path} cannot be read: {error.strerror}") from error
    if status.st_uid not in (0, os.getuid()) or status.st_mode & 0o077:
        raise ConfigError(
            f"signing key {path} can be read by other users",
            hint=f"chmod 600 {path}; if it may have been copied, make a new one",
        )
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} is not an unencrypted private key in PEM",
            hint="it begins with -----BEGIN PRIVATE KEY-----",
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _not_ed25519(str(path))
    return key


def trust_lines(key: Ed25519PublicKey, *, name: str) -> str:
    """Return the three lines of a trust file that make `key` a trusted one."""
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    # A JSON string is a TOML basic string as long as nothing is written as a surrogate pair.
    quoted_name, quoted_pem = (json.dumps(text, ensure_ascii=False) for text in (name, pem))
    return f"[[keys]]\nname = {quoted_name}\npem = {quoted_pem}\n"


def user_key(directory: Path | None = None) -> Ed25519PrivateKey:
    """Return this user's own signing key, made and trusted on first use.

    It stands in `~/.config/serve_warm` of the password database's home as `signing_key.pem`, and
    its public half in `trust.toml` beside it, so that what a user builds that user can load.
    Callers at the same time get the same key. To stop trusting it, delete both.

    Raises:
        ConfigError: the files cannot be written, or others could read or write them.
    """
    directory = directory or _user_directory()
    if directory is None:
        raise ConfigError(
            f"user id {os.getuid()} has no entry in the password database, so no home for a key",
            hint="name a key file",
        )
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        problem = _open_to_others(directory, directory.stat())
        if problem:
            raise ConfigError(f"no place for a signing key: {problem[0]}", hint=problem[1])
        path = directory / "signing_key.pem"
        if not path.exists():
            _create_key(path)
        key = load_signing_key(path)
        _add_trusted(key.public_key(), directory / "trust.toml")
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {error.strerror}") from error
    return key


def _create_key(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    temporary = _write_beside(path, pem)
    try:
        # A link never overwrites and never shows half a file: the first of many callers wins,
        # and the others read its key.
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def _add_trusted(key: Ed25519PublicKey, path: Path) -> None:
    data = _read_guarded(path) or b""
    if key.public_bytes_raw() in {trusted.raw for trusted in _parse_trust(data, path).keys}:
        return
    lines = trust_lines(key, name=f"{_login()}@{socket.gethostname()}")
    gap = b"" if not data else b"\n" if data.endswith(b"\n") else b"\n\n"
    extended = data + gap + lines.encode()
    try:
        tomllib.loads(extended.decode())
    except ValueError as error:
        raise ConfigError(f"{path} cannot be extended", hint=f"add by hand:\n{lines}") from error
    # Two callers at once write the same lines: no lock is needed.
    target = Path(os.path.realpath(path))
    _write_beside(target, extended).replace(target)


def _login() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _write_beside(path: Path, data: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return temporary
