# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The bytes of a signed statement: a DSSE envelope around an in-toto statement, in JSON.

A statement describes an artifact. A statement is stored in an envelope. The signatures in the
envelope cover the exact bytes of the statement (https://github.com/secure-systems-lab/dsse). The
statement and the envelope can come from an attacker. So serve_warm refuses bytes that two
parsers could read differently, such as JSON with a repeated name, or base64 with invalid
characters.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from serve_warm._records import record
from serve_warm.errors import ArtifactRefused, BuildFailed, ConfigError
from serve_warm.trust.keys import TrustedKey, distinct, key_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
MAX_ENVELOPE_BYTES = 1 << 20
MAX_SIGNATURES = 16
"""Maximum number of signatures in one envelope, which limits the work that a forged envelope can
cause."""
MAX_MARKS = 1000
"""Maximum number of brackets, braces, commas and colons in an envelope. An envelope with
`MAX_SIGNATURES` signatures has about 100. The characters are counted before the JSON is parsed,
because parsing takes up to a second for 1 MiB of small arrays."""
_MAX_DIGITS = 100
"""Maximum number of digits of an integer. Converting thousands of digits takes long."""

Check = Literal["all", "named"]
"""Which signatures to check: all, or only those with the id of a trusted key."""


@record(frozen=True, kw_only=True)
class EnvelopeSignature:
    """One signature from an envelope, not yet checked."""

    key_id: str
    """An unverified hint from the envelope: which key to check the signature with."""
    value: bytes


@record(frozen=True, kw_only=True)
class Envelope:
    """A parsed DSSE envelope. Do not trust the content before `verify` accepts it."""

    payload: bytes
    signatures: tuple[EnvelopeSignature, ...]

    @classmethod
    def parse(cls, data: bytes) -> Envelope:
        """Parse an envelope of at most `MAX_ENVELOPE_BYTES`.

        Raises:
            ArtifactRefused: `too_large` or `bad_statement`.
        """
        if len(data) > MAX_ENVELOPE_BYTES:
            raise ArtifactRefused(
                f"the envelope has {len(data)} bytes, but the limit is {MAX_ENVELOPE_BYTES}",
                reason="too_large",
            )
        try:
            _check_marks(data)
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
            raise ValueError(f"`signatures` is not a list of at most {MAX_SIGNATURES} objects")
        return cls(
            payload=_base64(fields.get("payload"), what="payload"),
            signatures=tuple(cls._signature(item) for item in signatures),
        )

    @staticmethod
    def _signature(item: Any) -> EnvelopeSignature:
        if not isinstance(item, dict) or not isinstance(item.get("keyid", ""), str):
            raise ValueError("a signature is not an object with `sig` and `keyid`")  # noqa: TRY004
        return EnvelopeSignature(
            key_id=item.get("keyid", ""), value=_base64(item.get("sig"), what="sig")
        )

    def signers(
        self, keys: Iterable[TrustedKey], *, check: Check = "all"
    ) -> tuple[TrustedKey, ...]:
        """Return the keys in `keys` that signed this payload, each once.

        A signature with the id of one of the keys is checked with this key only. Other signatures
        are checked with every key, but not at all with `check="named"`.
        """
        message, known = _pae(self.payload), distinct(keys)
        unnamed = self._unnamed(known) if check == "all" else ()
        return tuple(
            key
            for key in known
            if any(
                key.signed(message, signature.value) for signature in (*self._named(key), *unnamed)
            )
        )

    def count_checks(self, keys: Iterable[TrustedKey]) -> int:
        """Return how many signatures `signers` checks at most."""
        known = distinct(keys)
        return len(self._unnamed(known)) * len(known) + sum(len(self._named(key)) for key in known)

    def has_unnamed(self, keys: Iterable[TrustedKey]) -> bool:
        """Return whether a signature must be checked with every key, because it names none."""
        known = distinct(keys)
        return bool(known and self._unnamed(known))

    def _named(self, key: TrustedKey) -> tuple[EnvelopeSignature, ...]:
        named = key.id
        return tuple(each for each in self.signatures if each.key_id == named)

    def _unnamed(self, keys: Iterable[TrustedKey]) -> tuple[EnvelopeSignature, ...]:
        ids = {key.id for key in keys}
        return tuple(each for each in self.signatures if each.key_id not in ids)


def _check_marks(data: bytes) -> None:
    if sum(map(data.count, (b"{", b"[", b",", b":"))) > MAX_MARKS:
        raise ValueError(f"more than {MAX_MARKS} brackets, braces, commas and colons")


def _base64(text: Any, *, what: str) -> bytes:
    # A lenient decoder drops invalid characters, excess padding, and bits after the last byte. So
    # different texts would decode to the same bytes.
    if not isinstance(text, str):
        raise ValueError(f"{what} is not a string")  # noqa: TRY004
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(f"{what} is not base64") from error
    if base64.b64encode(data).decode() != text:
        raise ValueError(f"{what} is base64 with a wrong end")
    return data


def _pae(payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding: the type and the payload, as the bytes to sign."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def parse_json(data: bytes) -> Any:
    """Parse JSON that an attacker might have sent: only UTF-8, without repeated names or NaN.

    Raises:
        ValueError: the data is not such JSON, is nested beyond the recursion limit, or has an
            integer of more than `_MAX_DIGITS` digits.
    """
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_no_repeats,
            parse_constant=_no_constants,
            parse_int=_read_int,
        )
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name is repeated in a JSON object")
    return fields


def _read_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"an integer has more than {_MAX_DIGITS} digits")
    return int(digits)


def _no_constants(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def sign(payload: bytes, *keys: Ed25519PrivateKey) -> bytes:
    """Return an envelope for `payload`, with one signature for each key.

    The same payload and keys always give the same bytes, so publishing twice changes nothing.

    Raises:
        ConfigError: no key was given, or more than `MAX_SIGNATURES` keys.
        BuildFailed: the envelope is larger than any reader accepts.
    """
    return _add_signatures(Envelope(payload=payload, signatures=()), keys)


def wrap_unsigned(payload: bytes) -> bytes:
    """Return an envelope for `payload`, without a signature.

    A policy that requires a trusted key never accepts this envelope.

    Raises:
        BuildFailed: the envelope is larger than any reader accepts.
    """
    return _to_bytes(payload, ())


def add_signatures(envelope: bytes, *keys: Ed25519PrivateKey) -> bytes:
    """Return the envelope with additional signatures by `keys`, for key rotation.

    Keeps the payload and all existing signatures, even invalid signatures, and removes duplicates.
    A key that has already signed does not sign again. This function checks nothing. Verify the
    envelope first, because a signature vouches for the whole payload.

    Raises:
        ArtifactRefused: `too_large` or `bad_statement`, if the bytes are not an envelope.
        ConfigError: no key was given, or there would be more than `MAX_SIGNATURES` signatures.
        BuildFailed: the new envelope is larger than any reader accepts.
    """
    return _add_signatures(Envelope.parse(envelope), keys)


def _add_signatures(opened: Envelope, keys: Sequence[Ed25519PrivateKey]) -> bytes:
    if not keys:
        raise ConfigError("a statement must be signed by at least one key")
    message = _pae(opened.payload)
    added = [
        EnvelopeSignature(key_id=key_id(key.public_key()), value=key.sign(message)) for key in keys
    ]
    signatures = tuple(dict.fromkeys((*opened.signatures, *added)))
    if len(signatures) > MAX_SIGNATURES:
        raise ConfigError(
            f"the statement would have {len(signatures)} signatures, but readers accept at most "
            f"{MAX_SIGNATURES}",
            hint="build and push again to start a new envelope",
        )
    return _to_bytes(opened.payload, signatures)


def _to_bytes(payload: bytes, signatures: Sequence[EnvelopeSignature]) -> bytes:
    fields = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [
            {"keyid": signature.key_id, "sig": base64.b64encode(signature.value).decode()}
            for signature in signatures
        ],
    }
    envelope = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
    if len(envelope) > MAX_ENVELOPE_BYTES:
        raise BuildFailed(
            f"the signed statement has {len(envelope)} bytes; the limit is {MAX_ENVELOPE_BYTES}",
            hint="record fewer facts about the build",
        )
    return envelope
