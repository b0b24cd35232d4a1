# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
r"""Who may say that an artifact is safe to run: keys, signatures and the files that name them.

A compile-cache artifact is a program: torch unpickles it, executes its sources and loads its
libraries. Looking at the content cannot tell a good one from a bad one, so the only gate is who
made these bytes. A statement about them travels in a DSSE envelope (https://github.com/
secure-systems-lab/dsse) and is believed when a trusted Ed25519 key signed it, when its exact
digest is pinned, or, loudly, when it comes from a store that is named as one to believe unsigned.
Nothing configured means nothing is believed. A deny-list and an age limit take away from what was
believed; nothing overrules them.

Trusted keys come from `/etc/serve_warm/trust.toml` and `~/.config/serve_warm/trust.toml`, where
`~` is the home in the password database and never `$HOME`: whoever can set a variable of the
process must not be able to add a key.

    pinned = ["sha256:9f2c..."]         # optional: statements believed whoever signed them
    denied = ["sha256:41aa..."]         # optional: statements or parts refused whoever signed them
    max_age_days = 90                   # optional: older artifacts are refused

    [[keys]]
    name = "ci"
    pem = "-----BEGIN PUBLIC KEY-----\n...\n-----END PUBLIC KEY-----\n"

    [[keys]]
    name = "release"
    file = "release.pem"                # relative to this file

    [[unsigned_ok]]                     # optional: everything in this very store is believed
    store = "file:///home/me/artifacts"
    reason = "my own experiments"

In code the same is said by policies, which add up:

    trust = signed_by(CI_PEM, max_age_s=90 * 86400) | pinned("sha256:9f2c...")
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import operator
import os
import pwd
import re
import secrets
import socket
import stat
import sys
import time
import urllib.parse
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any, Literal

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

from serve_warm import folders
from serve_warm.errors import ArtifactRefused, BuildFailed, ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

logger = logging.getLogger(__name__)

PAYLOAD_TYPE = "application/vnd.in-toto+json"
MAX_ENVELOPE_BYTES = 1 << 20
MAX_SIGNATURES = 16
"""Signatures looked at in one envelope; bounds the work an unsigned envelope can cause."""

SYSTEM_TRUST_FILE = Path("/etc/serve_warm/trust.toml")
MAX_TRUST_FILE_BYTES = 1 << 20

MAX_CLOCK_SKEW_S = 86400.0
"""How far in the future, by this machine's clock, an artifact may say that it was created."""

_HEX_64 = re.compile(r"[0-9a-f]{64}")
_HUB_COMMIT = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+@[0-9a-f]{40}")


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
    def public(self) -> Ed25519PublicKey:
        """The key as `trust_lines` and `key_id` take it."""
        return Ed25519PublicKey.from_public_bytes(self.raw)

    @property
    def id(self) -> str:
        """The id that this key's signatures carry."""
        return key_id(self.public)

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


@dataclass(frozen=True, kw_only=True)
class UnsignedOk:
    """One store from which everything is believed and run, whoever put it there."""

    store: str
    """Its exact address, as the store itself gives it; for the Hub with the full commit."""
    reason: str
    """Why that is right here; repeated in the log each time that it is made use of."""

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ConfigError(
                f"unsigned_ok for {self.store!r} has no reason",
                hint="say why whoever can write there may run code here",
            )
        _check_exact(self.store)


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Whom to believe. An empty one believes nobody: every artifact is refused.

    `|` adds two up: what either believes is believed, what either denies is denied, and of two age
    limits the stricter one holds for all.
    """

    keys: tuple[TrustedKey, ...] = ()
    """One valid signature by any of them is enough."""
    pinned: frozenset[str] = frozenset()
    """Hex sha256 of statements (the payload of the envelope) that are believed as they are."""
    denied: frozenset[str] = frozenset()
    """Hex sha256 of statements, or of parts as they are stored, that are refused in any case."""
    max_age_s: float | None = None
    """How long after its creation an artifact is believed, a pinned one too; None: for ever."""
    unsigned_ok: tuple[UnsignedOk, ...] = ()

    def __post_init__(self) -> None:
        for label, digests in (("pinned", self.pinned), ("denied", self.denied)):
            bad = sorted(digest for digest in digests if not _HEX_64.fullmatch(digest))
            if bad:
                raise ConfigError(
                    f"{label} digests that are not 64 hex digits: {', '.join(map(repr, bad))}"
                )
        if self.max_age_s is not None and not 0 < self.max_age_s < math.inf:
            raise ConfigError(f"the age limit is not a positive number: {self.max_age_s}")

    @property
    def limits(self) -> Trust:
        """What this takes away from others: its deny-list and age limit, and nobody to believe."""
        return Trust(denied=self.denied, max_age_s=self.max_age_s)

    def __or__(self, other: Trust) -> Trust:
        allowed = {allowed.store: allowed for allowed in (*other.unsigned_ok, *self.unsigned_ok)}
        return Trust(
            keys=_distinct((*self.keys, *other.keys)),
            pinned=self.pinned | other.pinned,
            denied=self.denied | other.denied,
            max_age_s=min(
                (age for age in (self.max_age_s, other.max_age_s) if age is not None), default=None
            ),
            unsigned_ok=tuple(allowed.values()),
        )


def _distinct(keys: Iterable[TrustedKey]) -> tuple[TrustedKey, ...]:
    """Return each key once, under its first name: two names are not two signers."""
    first: dict[bytes, TrustedKey] = {}
    for key in keys:
        first.setdefault(key.raw, key)
    return tuple(first.values())


def _check_exact(store: str) -> None:
    """Refuse whatever is not the address of one store, spelled as the store spells it itself."""
    scheme, _, rest = store.partition("://")
    names = rest.split("/")
    hint = "there are no wildcards; the log and `serve-warm inspect` show a store's exact address"
    if scheme == "file":
        # Both an encoded and a plain blank name a folder, and only one of them is ever compared.
        exact = (
            Path(os.path.normpath(urllib.parse.unquote(rest))).as_uri() if rest[:1] == "/" else ""
        )
        good = store == exact
        hint = f"write {exact}" if exact else "write file:///, and the whole path"
    elif scheme == "hf":
        good = _HUB_COMMIT.fullmatch("/".join(names[:2])) is not None and _are_names(names[2:])
        hint = (
            "write hf://owner/repo@<the 40 hex digits of the commit>, because what a branch or "
            "tag names can be replaced by others"
        )
    else:
        good = scheme in ("s3", "gs", "az") and "@" not in names[0] and _are_names(names)
    if not good:
        raise ConfigError(f"unsigned_ok: {store!r} is not the exact address of a store", hint=hint)


def _are_names(names: Sequence[str]) -> bool:
    return all(
        name not in ("", ".", "..") and name.isprintable() and not set(name) & set(" *?#[]{}\\")
        for name in names
    )


# --- policies for code ---------------------------------------------------------------------


def signed_by(
    *keys: TrustedKey | str, max_age_s: float | None = None, denied: Iterable[str] = ()
) -> Trust:
    """Return a trust in what any of `keys` has signed: trusted keys, or PEM public keys.

    Older artifacts than `max_age_s` seconds are refused, and so are statements and parts whose
    digest, as `sha256:<64 hex digits>`, is in `denied`.

    Raises:
        ConfigError: no key, not a key, not a digest, not an age.
    """
    if not keys:
        raise ConfigError("signed_by needs at least one key")
    return Trust(
        keys=_distinct(_named_by_id(key) if isinstance(key, str) else key for key in keys),
        max_age_s=max_age_s,
        denied=frozenset(_digest(text, where="denied") for text in denied),
    )


def _named_by_id(pem: str) -> TrustedKey:
    key = TrustedKey.from_pem(pem, name="signed_by")
    return replace(key, name=key.id[:16])


def pinned(*digests: str) -> Trust:
    """Return a trust in exactly these statements, given as `sha256:<64 hex digits>`.

    Raises:
        ConfigError: no digest, or not a digest.
    """
    if not digests:
        raise ConfigError("pinned needs at least one digest")
    return Trust(pinned=frozenset(_digest(text, where="pinned") for text in digests))


def unsigned_ok(*stores: str, reason: str) -> Trust:
    """Return a trust in everything that stands in exactly these stores, for laptops and tests.

    Whoever can write there can run code here; each use is logged as a warning, with `reason`.

    >>> unsigned_ok("file:///srv/artifacts", reason="my laptop").unsigned_ok
    (UnsignedOk(store='file:///srv/artifacts', reason='my laptop'),)

    Raises:
        ConfigError: no store, no reason, not a `file`, `s3`, `gs`, `az` or `hf` address of one
            store, or a Hub repository without a full commit.
    """
    if not stores:
        raise ConfigError("unsigned_ok needs at least one store")
    return Trust(unsigned_ok=tuple(UnsignedOk(store=store, reason=reason) for store in stores))


def _digest(text: Any, *, where: str) -> str:
    digest = text.removeprefix("sha256:") if isinstance(text, str) else ""
    if text == digest or not _HEX_64.fullmatch(digest):
        raise ConfigError(f"{where}: {text!r} is not sha256: and 64 hex digits")
    return digest


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
            ArtifactRefused: `too_large` or `bad_statement`.
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
            for key in _distinct(trust.keys)
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
        ConfigError: no key was given, or more than readers look at.
        BuildFailed: the envelope is larger than any reader accepts.
    """
    return _signed(Envelope(payload=payload, signatures=()), keys)


def add_signatures(envelope: bytes, *keys: Ed25519PrivateKey) -> bytes:
    """Return the envelope with signatures by `keys` added; for rotation, no part is touched.

    The payload and the signatures that are there stay, valid or not, each once; a key that has
    signed already adds nothing. Nothing is checked: whoever signs should have verified it first,
    because a signature vouches for all of the payload.

    Raises:
        ArtifactRefused: `too_large` or `bad_statement`: not an envelope.
        ConfigError: no key was given, or the signatures would be more than readers look at.
        BuildFailed: the new envelope is larger than any reader accepts.
    """
    return _signed(Envelope.parse(envelope), keys)


def _signed(opened: Envelope, keys: Sequence[Ed25519PrivateKey]) -> bytes:
    if not keys:
        raise ConfigError("a statement must be signed by at least one key")
    message = _pae(opened.payload)
    added = [Signature(key_id=key_id(key.public_key()), value=key.sign(message)) for key in keys]
    signatures = tuple(dict.fromkeys((*opened.signatures, *added)))
    if len(signatures) > MAX_SIGNATURES:
        raise ConfigError(
            f"the statement would carry {len(signatures)} signatures, readers look at no more "
            f"than {MAX_SIGNATURES}",
            hint="build and push again, which begins with no signature",
        )
    fields = {
        "payload": base64.b64encode(opened.payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [
            {"keyid": signature.key_id, "sig": base64.b64encode(signature.value).decode()}
            for signature in signatures
        ],
    }
    envelope = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
    if len(envelope) > MAX_ENVELOPE_BYTES:
        raise BuildFailed(
            f"the signed statement has {len(envelope)} bytes, the limit is {MAX_ENVELOPE_BYTES}",
            hint="record fewer facts about the build",
        )
    return envelope


# --- believing -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Believed:
    """A payload that may be read and acted on, and why."""

    payload: bytes = field(repr=False)
    how: Literal["signature", "pin", "unsigned_ok"]
    """The first of these that holds, so that a signed one never counts as unsigned."""
    signers: tuple[str, ...] = ()
    """Names of the trusted keys that signed it; empty unless `how` is `signature`."""

    @property
    def digest(self) -> str:
        """Hex sha256 of the payload, as `pinned` and `denied` have it."""
        return hashlib.sha256(self.payload).hexdigest()


def verify(envelope: bytes, trust: Trust, *, store: str = "") -> Believed:
    """Return the payload of an envelope that `trust` believes, and why it does.

    `store` is the address of the store that was read, as the store gives it. It never comes from
    the envelope. What was believed can still be denied or too old: `check_age_and_denied` says so,
    once the payload has been read.

    Raises:
        ArtifactRefused: `no_trust` (nothing is configured), `too_large`, `bad_statement` (not an
            envelope), `untrusted` (signed by nobody we know), `bad_signature` (names a key we
            trust, and that key did not sign this).
    """
    if not (trust.keys or trust.pinned or trust.unsigned_ok):
        raise ArtifactRefused(
            "no key is trusted, so no artifact can be", reason="no_trust", hint=_how_to_trust()
        )
    opened = Envelope.parse(envelope)
    signers = opened.signers(trust)
    if signers:
        names = tuple(signer.name for signer in signers)
        return Believed(payload=opened.payload, how="signature", signers=names)
    if hashlib.sha256(opened.payload).hexdigest() in trust.pinned:
        return Believed(payload=opened.payload, how="pin")
    for allowed in trust.unsigned_ok:
        if allowed.store == store:
            logger.warning(
                "nobody who is trusted signed this artifact, and it is believed all the same, "
                "because unsigned_ok names its store: store=%s reason=%s",
                allowed.store,
                allowed.reason,
            )
            return Believed(payload=opened.payload, how="unsigned_ok")
    raise _refusal(opened, trust)


def _refusal(opened: Envelope, trust: Trust) -> ArtifactRefused:
    """Return why nobody vouches for an envelope, in the words that help most."""
    claimed = {signature.key_id for signature in opened.signatures}
    forged = [key for key in trust.keys if key.id in claimed]
    if forged:
        return ArtifactRefused(
            f"the signature of {forged[0].name!r} ({forged[0].id[:16]}) does not belong to this "
            "statement",
            reason="bad_signature",
            hint="the statement was changed after it was signed; build and push again",
        )
    found = f"signed by {_shown(claimed)}, which is not trusted here"
    return ArtifactRefused(
        found if claimed else "the statement carries no signature",
        reason="untrusted",
        hint=_how_to_trust(),
    )


def check_age_and_denied(
    trust: Trust,
    *,
    payload_digest: str,
    part_digests: Iterable[str],
    created: str,
    now_unix: float | None = None,
) -> None:
    """Refuse what was believed and is nevertheless on the deny-list, or from the wrong time.

    Digests are hex sha256, of the payload and of the parts as they are stored. `created` is the
    time that the payload states, in ISO 8601 with its zone; `now_unix` is in seconds since the
    epoch, and this machine's clock if None. A creation more than a day ahead of it is refused
    whatever the age limit: it would be the newest for ever.

    Raises:
        ArtifactRefused: `denied`, `expired` (too old, or from the future), or `bad_statement`
            (`created` is not a time).
    """
    for what, digest in (
        ("the statement", payload_digest),
        *(("a part of the artifact", digest) for digest in part_digests),
    ):
        if digest in trust.denied:
            raise ArtifactRefused(
                f"{what} (sha256 {digest}) is denied here, whoever signed it",
                reason="denied",
                hint="its digest is under `denied` in a trust file or in code; build and push a "
                "new one",
            )
    try:
        created_at = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError as error:
        raise ArtifactRefused("created is not a time", reason="bad_statement") from error
    if created_at.tzinfo is None:
        raise ArtifactRefused("created is a time without a zone", reason="bad_statement")
    age_s = (time.time() if now_unix is None else now_unix) - created_at.timestamp()
    if age_s < -MAX_CLOCK_SKEW_S:
        raise ArtifactRefused(
            f"created {created}, which is {-age_s / 86400:.1f} days ahead of this machine's clock",
            reason="expired",
            hint="one of two clocks is wrong: this machine's, or that of the machine that built "
            "it; if it was that one, build and push again",
        )
    if trust.max_age_s is not None and age_s > trust.max_age_s:
        raise ArtifactRefused(
            f"created {created}, which is {age_s / 86400:.1f} days ago; the limit is "
            f"{trust.max_age_s / 86400:.1f} days",
            reason="expired",
            hint="build and push again, or raise max_age_days in the trust file (max_age_s in "
            "code)",
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
    home = folders.user_home()
    return None if home is None else home / ".config" / "serve_warm"


def load_trust(files: Sequence[Path] | None = None) -> Trust:
    """Return what the trust files of this machine say, taken together.

    A file that does not exist says nothing. `files` replaces the default places.

    Raises:
        ConfigError: a file is malformed, or somebody other than root and this user could
            have written it.
    """
    found: list[Trust] = []
    for path in default_trust_files() if files is None else files:
        data = _read_guarded(path)
        if data is not None:
            found.append(_parse_trust(data, path))
    return reduce(operator.or_, found, Trust())


def _parse_trust(data: bytes, path: Path) -> Trust:
    try:
        fields = tomllib.loads(data.decode("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    lists = ("keys", "pinned", "denied", "unsigned_ok")
    unknown = sorted(set(fields) - {*lists, "max_age_days"})
    if unknown:
        raise ConfigError(
            f"{path}: unknown setting {unknown[0]!r}",
            hint="it has keys, pinned, denied, max_age_days and unsigned_ok",
        )
    for name in lists:
        if not isinstance(fields.setdefault(name, []), list):
            raise ConfigError(
                f"{path}: {name} is not a list",
                hint="[[keys]] and [[unsigned_ok]] are tables, pinned and denied are lists",
            )
    return Trust(
        keys=_distinct(_parse_key(table, path) for table in fields["keys"]),
        pinned=frozenset(_digest(text, where=f"{path}: pinned") for text in fields["pinned"]),
        denied=frozenset(_digest(text, where=f"{path}: denied") for text in fields["denied"]),
        max_age_s=_parse_age(fields["max_age_days"], path) if "max_age_days" in fields else None,
        unsigned_ok=tuple(_parse_unsigned_ok(table, path) for table in fields["unsigned_ok"]),
    )


def _parse_age(days: Any, path: Path) -> float:
    # Not isinstance: true would pass for a number, and TOML has inf and nan.
    if type(days) not in (int, float) or not 0 < days * 86400 < math.inf:
        raise ConfigError(f"{path}: max_age_days is not a number above 0: {days!r}")
    return float(days * 86400)


def _parse_unsigned_ok(table: Any, path: Path) -> UnsignedOk:
    if (
        not isinstance(table, dict)
        or set(table) != {"store", "reason"}
        or not all(isinstance(value, str) for value in table.values())
    ):
        raise ConfigError(
            f"{path}: an unsigned_ok is incomplete or has unknown settings",
            hint="each of [[unsigned_ok]] has a store and a reason, both of them strings",
        )
    try:
        return UnsignedOk(**table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error


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


def _read_guarded(path: Path) -> bytes | None:
    """Read a file that only root or this user can have written; None when it is not there."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path} is not a regular file")
            found = folders.file_problems(path, opened=file.fileno())
            if found:
                raise ConfigError(
                    "whoever can change the trusted keys can run code here: "
                    + folders.sentence(found),
                    hint=folders.fixes(found),
                )
            data = file.read(MAX_TRUST_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_TRUST_FILE_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_TRUST_FILE_BYTES} bytes")
    return data


def _open_at_once(path: str, flags: int) -> int:
    # Not blocking, so that a pipe in the file's place cannot hang the start.
    return os.open(path, flags | os.O_NONBLOCK)


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


def trust_lines(key: Ed25519PublicKey, *, name: str) -> str:
    """Return the three lines of a trust file that make `key` a trusted one."""
    pem = _public_pem(key).decode()
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
            f"user id {os.geteuid()} has no entry in the password database, so no home for a key",
            hint="name a key file",
        )
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        found = folders.folder_problems(directory)
        if found:
            raise ConfigError(
                f"no place for a signing key: {folders.sentence(found)}", hint=folders.fixes(found)
            )
        path = directory / "signing_key.pem"
        if not path.exists():
            # Of many callers the first wins, and the others read its key.
            with suppress(FileExistsError):
                _create(path, _private_pem(Ed25519PrivateKey.generate()), mode=0o600)
        key = load_signing_key(path)
        _add_trusted(key.public_key(), directory / "trust.toml")
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {error.strerror}") from error
    return key


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
            raise _taken(half)
    key = Ed25519PrivateKey.generate()
    # The private half first: a public one alone would look like a key that somebody has.
    for half, pem, mode in (
        (path, _private_pem(key), 0o600),
        (public_path, _public_pem(key.public_key()), 0o644),
    ):
        try:
            _create(half, pem, mode=mode)
        except FileExistsError as error:
            raise _taken(half) from error
        except OSError as error:
            raise ConfigError(f"{half} cannot be written: {error.strerror}") from error
    return TrustedKey(name=path.stem, raw=key.public_key().public_bytes_raw())


def _taken(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} is there already, and keys are never overwritten",
        hint="name another file; the public half of a key is printed by: openssl pkey -pubout "
        "-in FILE",
    )


def _private_pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _public_pem(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _create(path: Path, data: bytes, *, mode: int) -> None:
    """Write a new file.

    Raises:
        FileExistsError: something has this name.
        OSError: it cannot be written.
    """
    temporary = _write_beside(path, data, mode=mode)
    try:
        # A link never overwrites and never shows half a file.
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links. Nothing is overwritten; a reader may come too early.
        _write_new(path, data, mode=mode)
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
    _write_beside(target, extended, mode=0o600).replace(target)


def _login() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _write_beside(path: Path, data: bytes, *, mode: int) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    _write_new(temporary, data, mode=mode)
    return temporary


def _write_new(path: Path, data: bytes, *, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file, ExitStack() as failed:
        failed.callback(path.unlink)
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        failed.pop_all()
