# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Envelopes: which bytes are valid, what is signed, and how signatures are added."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from artifacts import edited, new_key, trusting
from believing import PAYLOAD, refusal
from serve_warm.errors import ArtifactRefused, BuildFailed, ConfigError
from serve_warm.trust.envelope import (
    MAX_ENVELOPE_BYTES,
    MAX_SIGNATURES,
    Envelope,
    add_signatures,
    sign,
)
from serve_warm.trust.verify import verify

KEY = new_key()
OTHER = new_key()


def test_signing_is_deterministic():
    at_once = sign(PAYLOAD, KEY, OTHER)
    in_steps = add_signatures(sign(PAYLOAD, KEY), OTHER)
    assert sign(PAYLOAD, KEY, OTHER) == in_steps == at_once
    assert add_signatures(in_steps, OTHER, KEY) == at_once
    assert sign(PAYLOAD, KEY, OTHER, KEY) == at_once


def test_the_envelope_is_dsse():
    """Other tools can check a signature, which covers DSSE's encoding of type and payload."""
    envelope = json.loads(sign(PAYLOAD, KEY))

    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    KEY.public_key().verify(
        signature, b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(PAYLOAD), PAYLOAD)
    )
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert base64.b64decode(envelope["payload"]) == PAYLOAD
    der = KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert envelope["signatures"][0]["keyid"] == hashlib.sha256(der).hexdigest()


def test_a_repeated_signature_counts_once():
    envelope = json.loads(sign(PAYLOAD, KEY, OTHER))
    envelope["signatures"] = [envelope["signatures"][0]] * 3
    signers = Envelope.parse(json.dumps(envelope).encode()).signers(trusting(KEY, OTHER).keys)
    assert [signer.name for signer in signers] == ["key0"]


MALFORMED = {
    "empty": b"",
    "not_json": b"PK\x03\x04",
    "not_utf8": b'"\xff"',
    "cut_short": sign(PAYLOAD, KEY)[:-1],
    "list": b"[]",
    "nested": b"[" * 200_000,
    "huge_number": b'{"payload":' + b"9" * 10_000 + b"}",
    "not_a_number": edited(sign(PAYLOAD, KEY), extra=float("nan")),
    "repeated_member": sign(PAYLOAD, KEY)[:-1] + b',"payload":"AAAA"}',
    "no_payload": edited(sign(PAYLOAD, KEY), payload=None),
    "payload_not_base64": edited(sign(PAYLOAD, KEY), payload="e30=!"),
    "payload_with_a_loose_bit": edited(sign(PAYLOAD, KEY), payload="e31="),
    "payload_with_more_padding": edited(sign(PAYLOAD, KEY), payload="e30=="),
    "payload_in_two_ends": edited(sign(PAYLOAD, KEY), payload="e30=e30="),
    "sig_with_a_loose_bit": edited(sign(PAYLOAD, KEY), signatures=[{"sig": "AAB=", "keyid": ""}]),
    "payload_not_ascii": edited(sign(PAYLOAD, KEY), payload="\u00e9\ud800"),
    "signatures_object": edited(sign(PAYLOAD, KEY), signatures={}),
    "signature_string": edited(sign(PAYLOAD, KEY), signatures=["x"]),
    "signature_number": edited(sign(PAYLOAD, KEY), signatures=[{"sig": 1, "keyid": ""}]),
    "key_id_number": edited(sign(PAYLOAD, KEY), signatures=[{"sig": "AAAA", "keyid": 1}]),
    "sig_not_base64": edited(sign(PAYLOAD, KEY), signatures=[{"sig": "***", "keyid": ""}]),
    "too_many": edited(sign(PAYLOAD, KEY), signatures=[{"sig": ""}] * (MAX_SIGNATURES + 1)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_envelope_is_refused(name: str):
    assert refusal(MALFORMED[name], trusting(KEY)).reason == "bad_statement"


def test_an_unsigned_envelope_can_be_read_and_signed_and_is_untrusted():
    """Nobody believes it, but it can be read, and a first signature is like any other."""
    unsigned = edited(sign(PAYLOAD, KEY), signatures=[])
    refused = refusal(unsigned, trusting(KEY))
    assert Envelope.parse(unsigned) == Envelope(payload=PAYLOAD, signatures=())
    assert (refused.reason, refused.message) == ("untrusted", "the statement has no signature")
    assert add_signatures(unsigned, KEY) == sign(PAYLOAD, KEY)


def test_an_envelope_over_the_cap_is_refused_unread():
    padded = sign(PAYLOAD, KEY).ljust(MAX_ENVELOPE_BYTES + 1)
    assert verify(padded[:-1], trusting(KEY)).payload == PAYLOAD
    assert refusal(padded, trusting(KEY)).reason == "too_large"


def test_a_statement_that_nobody_would_read_is_not_signed():
    with pytest.raises(BuildFailed, match="the limit is"):
        sign(b" " * MAX_ENVELOPE_BYTES, KEY)


def test_signing_needs_a_key():
    """An envelope without signatures would be refused by every reader."""
    with pytest.raises(ConfigError, match="at least one key"):
        sign(PAYLOAD)


def test_signatures_that_are_there_are_kept():
    foreign = {"keyid": "of another tool", "sig": "AAAA"}
    [ours] = json.loads(sign(PAYLOAD, KEY))["signatures"]
    envelope = edited(sign(PAYLOAD, KEY), signatures=[foreign, ours, foreign, {"sig": "AAAA"}])
    signatures = json.loads(add_signatures(envelope, OTHER))["signatures"]
    theirs = json.loads(sign(PAYLOAD, OTHER))["signatures"]
    assert signatures == [foreign, ours, {"keyid": "", "sig": "AAAA"}, *theirs]


def test_no_more_signatures_are_written_than_read():
    keys = [new_key() for _ in range(MAX_SIGNATURES + 1)]
    full = sign(PAYLOAD, *keys[:-1])
    assert verify(full, trusting(keys[0])).payload == PAYLOAD
    assert add_signatures(full, keys[0]) == full
    with pytest.raises(ConfigError, match="17 signatures"):
        add_signatures(full, keys[-1])
    with pytest.raises(ConfigError, match="17 signatures"):
        sign(PAYLOAD, *keys)


def test_adding_needs_a_key_and_an_envelope():
    with pytest.raises(ConfigError, match="at least one key"):
        add_signatures(sign(PAYLOAD, KEY))
    with pytest.raises(ArtifactRefused) as caught:
        add_signatures(b"[]", KEY)
    assert caught.value.reason == "bad_statement"
