# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Signatures over statements, the files that name trusted keys, and the user's own key."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from artifacts import edited, new_key, trusting
from serve_warm import trust
from serve_warm.artifact import utc_now
from serve_warm.errors import ArtifactRefused, BuildFailed, ConfigError
from serve_warm.stores import open_store
from serve_warm.trust import (
    MAX_ENVELOPE_BYTES,
    MAX_SIGNATURES,
    Believed,
    Envelope,
    Trust,
    TrustedKey,
    UnsignedOk,
    add_signatures,
    check_age_and_denied,
    key_id,
    load_signing_key,
    load_trust,
    pinned,
    sign,
    signed_by,
    trust_lines,
    unsigned_ok,
    user_key,
    verify,
    write_key_pair,
)

PAYLOAD = b'{"_type":"https://in-toto.io/Statement/v1"}'
KEY = new_key()
OTHER = new_key()


def refusal(envelope: bytes, whom: Trust, *, store: str = "") -> ArtifactRefused:
    with pytest.raises(ArtifactRefused) as caught:
        verify(envelope, whom, store=store)
    return caught.value


def public_pem(key: Any) -> str:
    public = key.public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


# --- envelopes -----------------------------------------------------------------------------


def test_verify_returns_what_was_signed():
    """A payload signed by a trusted key comes back byte for byte."""
    assert verify(sign(PAYLOAD, KEY), trusting(KEY)).payload == PAYLOAD


def test_one_trusted_signature_among_several_is_enough():
    """While keys are rotated an envelope carries both, and readers may know either."""
    envelope = sign(PAYLOAD, OTHER, KEY)

    assert verify(envelope, trusting(KEY)).payload == PAYLOAD
    assert verify(envelope, trusting(OTHER)).payload == PAYLOAD


def test_signing_twice_gives_the_same_bytes():
    """Publishing again is no conflict in a write-once store."""
    assert sign(PAYLOAD, KEY) == sign(PAYLOAD, KEY)


def test_the_envelope_is_dsse():
    """Other tools can check it: the signature is over DSSE's encoding of type and payload."""
    envelope = json.loads(sign(PAYLOAD, KEY))

    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    KEY.public_key().verify(
        signature, b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(PAYLOAD), PAYLOAD)
    )
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert base64.b64decode(envelope["payload"]) == PAYLOAD
    der = KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert envelope["signatures"][0]["keyid"] == hashlib.sha256(der).hexdigest()


def test_an_unknown_signer_is_untrusted():
    """A valid signature by somebody else is worth nothing, and the refusal names the key id."""
    refused = refusal(sign(PAYLOAD, OTHER), trusting(KEY))

    assert refused.reason == "untrusted"
    assert key_id(OTHER.public_key())[:16] in refused.message


def test_every_flipped_bit_of_the_payload_is_noticed():
    """No change of the signed bytes passes, wherever it is."""
    envelope = sign(PAYLOAD, KEY)
    reasons = set()

    for place in range(len(PAYLOAD)):
        flipped = bytearray(PAYLOAD)
        flipped[place] ^= 1
        forged = edited(envelope, payload=base64.b64encode(flipped).decode())
        reasons.add(refusal(forged, trusting(KEY)).reason)

    assert reasons == {"bad_signature"}


def test_a_claimed_key_id_proves_nothing():
    """The key id is a hint: an enemy who writes ours next to his own signature is told apart."""
    envelope = json.loads(sign(PAYLOAD, OTHER))
    envelope["signatures"][0]["keyid"] = key_id(KEY.public_key())

    refused = refusal(json.dumps(envelope).encode(), trusting(KEY))

    assert refused.reason == "bad_signature"


@pytest.mark.parametrize("hint", [None, "", "nonsense", key_id(OTHER.public_key())])
def test_a_wrong_or_missing_key_id_does_no_harm(hint: str | None):
    """A good signature is found whatever the hint says."""
    envelope = json.loads(sign(PAYLOAD, KEY))
    if hint is None:
        del envelope["signatures"][0]["keyid"]
    else:
        envelope["signatures"][0]["keyid"] = hint

    assert verify(json.dumps(envelope).encode(), trusting(KEY)).payload == PAYLOAD


def test_a_repeated_signature_counts_once():
    """Writing one signature twice does not make two signers of it."""
    envelope = json.loads(sign(PAYLOAD, KEY, OTHER))
    envelope["signatures"] = [envelope["signatures"][0]] * 3

    signers = Envelope.parse(json.dumps(envelope).encode()).signers(trusting(KEY, OTHER))

    assert [signer.name for signer in signers] == ["key0"]


def test_a_key_under_two_names_counts_once():
    """Naming one key twice does not make two signers of it."""
    twice = Trust(
        keys=tuple(
            TrustedKey(name=name, raw=KEY.public_key().public_bytes_raw()) for name in ("a", "b")
        )
    )

    assert verify(sign(PAYLOAD, KEY, KEY), twice).signers == ("a",)


def test_a_signature_of_another_payload_is_refused():
    """A signature cannot be carried from one statement to another."""
    taken = json.loads(sign(b"something else", KEY))["signatures"]

    assert refusal(edited(sign(PAYLOAD, KEY), signatures=taken), trusting(KEY)).reason == (
        "bad_signature"
    )


def test_the_type_is_signed_with_the_payload():
    """A key that signs other kinds of documents has not signed a statement by that."""
    text = "text/plain"
    message = b"DSSEv1 %d %s %d %s" % (len(text), text.encode(), len(PAYLOAD), PAYLOAD)
    signature = {
        "keyid": key_id(KEY.public_key()),
        "sig": base64.b64encode(KEY.sign(message)).decode(),
    }
    honest = edited(sign(PAYLOAD, KEY), payloadType=text, signatures=[signature])
    relabelled = edited(sign(PAYLOAD, KEY), signatures=[signature])

    assert refusal(honest, trusting(KEY)).reason == "bad_statement"
    assert refusal(relabelled, trusting(KEY)).reason == "bad_signature"


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
    """Whatever stands in the statement's place becomes a refusal and nothing else."""
    assert refusal(MALFORMED[name], trusting(KEY)).reason == "bad_statement"


def test_an_unsigned_envelope_can_be_read_and_is_untrusted():
    """No signature is no reason to believe, and none to be unreadable for inspection."""
    unsigned = edited(sign(PAYLOAD, KEY), signatures=[])

    refused = refusal(unsigned, trusting(KEY))
    assert Envelope.parse(unsigned) == Envelope(payload=PAYLOAD, signatures=())
    assert (refused.reason, refused.message) == (
        "untrusted",
        "the statement carries no signature",
    )


def test_an_empty_signature_is_not_valid():
    """A signature of no bytes passes no key."""
    empty = edited(sign(PAYLOAD, KEY), signatures=[{"keyid": "", "sig": ""}])

    assert refusal(empty, trusting(KEY)).reason == "untrusted"


def test_an_envelope_over_the_cap_is_refused_unread():
    """The size is looked at before anything is parsed."""
    padded = sign(PAYLOAD, KEY).ljust(MAX_ENVELOPE_BYTES + 1)

    assert verify(padded[:-1], trusting(KEY)).payload == PAYLOAD
    assert refusal(padded, trusting(KEY)).reason == "too_large"


def test_a_statement_that_nobody_would_read_is_not_signed():
    """The cap of readers is told to the builder."""
    with pytest.raises(BuildFailed, match="the limit is"):
        sign(b" " * MAX_ENVELOPE_BYTES, KEY)


def test_signing_needs_a_key():
    """An envelope without signatures would be refused by every reader."""
    with pytest.raises(ConfigError, match="at least one key"):
        sign(PAYLOAD)


def test_nothing_configured_refuses_and_says_which_lines_to_add(tmp_path: Path):
    """The hint holds the three lines of a trust file, which do parse once a key is filled in."""
    refused = refusal(sign(PAYLOAD, KEY), Trust())

    lines = refused.hint.splitlines()[1:]
    assert refused.reason == "no_trust"
    assert "/etc/serve_warm/trust.toml" in refused.hint
    assert [line.split(" ")[0] for line in lines] == ["[[keys]]", "name", "pem"]
    filled = trust_lines(KEY.public_key(), name="builder").splitlines()
    assert lines[:2] == filled[:2]
    assert lines[2].split("...")[0] == filled[2][: len(lines[2].split("...")[0])]
    assert load_trust([write_trust(tmp_path, "\n".join(filled))]).keys[0].name == "builder"


def test_a_pinned_statement_is_believed_whoever_signed_it():
    """A digest in the trust file is as good as a key, for exactly these bytes."""
    pin = trusting(pinned=frozenset({hashlib.sha256(PAYLOAD).hexdigest()}))

    assert verify(sign(PAYLOAD, OTHER), pin).payload == PAYLOAD
    assert refusal(sign(PAYLOAD + b" ", OTHER), pin).reason == "untrusted"


def test_a_pin_is_of_the_statement_and_not_of_its_envelope():
    """Signing a pinned statement with another key does not unpin it; editing it does."""
    envelope = sign(PAYLOAD, OTHER)

    assert refusal(envelope, Trust(pinned=frozenset({hashlib.sha256(envelope).hexdigest()})))


def test_a_pin_must_be_a_digest():
    """A pin that can match nothing is a mistake to be told."""
    with pytest.raises(ConfigError, match="64 hex digits"):
        Trust(pinned=frozenset({"9f2c"}))


def test_hostile_key_ids_are_not_repeated():
    """Text of an unknown writer reaches no log and no terminal."""
    envelope = edited(sign(PAYLOAD, OTHER), signatures=[{"keyid": "\x1b[2J evil", "sig": "AAAA"}])

    assert "evil" not in str(refusal(envelope, trusting(KEY)))


# --- several signatures --------------------------------------------------------------------


def test_a_key_is_rotated_by_signing_again():
    """Of a statement signed by the old and the new key, readers of either and of both believe."""
    old, new = trusting(KEY), trusting(OTHER)
    before = sign(PAYLOAD, KEY)

    after = add_signatures(before, OTHER)

    assert verify(before, old).payload == PAYLOAD
    assert refusal(before, new).reason == "untrusted"
    assert verify(after, old) == verify(before, old)
    assert verify(after, new).payload == PAYLOAD
    assert verify(after, trusting(KEY, OTHER)).signers == ("key0", "key1")


def test_adding_signatures_is_deterministic():
    """Signing again in steps, at once, or twice gives the same bytes: a store sees one object."""
    at_once = sign(PAYLOAD, KEY, OTHER)

    in_steps = add_signatures(sign(PAYLOAD, KEY), OTHER)

    assert in_steps == at_once
    assert add_signatures(in_steps, OTHER, KEY) == at_once
    assert sign(PAYLOAD, KEY, OTHER, KEY) == at_once


def test_signatures_that_are_there_are_kept():
    """Valid or not, known or not: whoever signs does not decide about others. Each stays once."""
    foreign = {"keyid": "of another tool", "sig": "AAAA"}
    [ours] = json.loads(sign(PAYLOAD, KEY))["signatures"]
    envelope = edited(sign(PAYLOAD, KEY), signatures=[foreign, ours, foreign, {"sig": "AAAA"}])

    signatures = json.loads(add_signatures(envelope, OTHER))["signatures"]

    assert signatures == [
        foreign,
        ours,
        {"keyid": "", "sig": "AAAA"},
        *json.loads(sign(PAYLOAD, OTHER))["signatures"],
    ]


def test_an_unsigned_statement_can_be_signed():
    """What a policy believed unsigned gets its first signature like any other."""
    unsigned = edited(sign(PAYLOAD, KEY), signatures=[])

    assert add_signatures(unsigned, KEY) == sign(PAYLOAD, KEY)


def test_no_more_signatures_are_written_than_read():
    """An envelope that every reader would refuse is not made."""
    keys = [new_key() for _ in range(MAX_SIGNATURES + 1)]
    full = sign(PAYLOAD, *keys[:-1])

    assert verify(full, trusting(keys[0])).payload == PAYLOAD
    assert add_signatures(full, keys[0]) == full
    with pytest.raises(ConfigError, match="17 signatures"):
        add_signatures(full, keys[-1])
    with pytest.raises(ConfigError, match="17 signatures"):
        sign(PAYLOAD, *keys)


def test_adding_needs_a_key_and_an_envelope():
    """Nothing is signed by nobody, and what is no envelope is refused as it is on reading."""
    with pytest.raises(ConfigError, match="at least one key"):
        add_signatures(sign(PAYLOAD, KEY))
    with pytest.raises(ArtifactRefused) as caught:
        add_signatures(b"[]", KEY)

    assert caught.value.reason == "bad_statement"


# --- why something is believed -------------------------------------------------------------

STORE = "file:///srv/artifacts"
DIGEST = hashlib.sha256(PAYLOAD).hexdigest()
NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC
PEM = public_pem(KEY)


def test_a_signature_is_named_before_a_pin_and_a_pin_before_an_exception():
    """What is signed never counts as unsigned, however many reasons there are to believe it."""
    lenient = pinned(f"sha256:{DIGEST}") | unsigned_ok(STORE, reason="a test")
    envelope = sign(PAYLOAD, KEY)

    found = [
        verify(envelope, trust, store=STORE)
        for trust in (trusting(KEY) | lenient, lenient, unsigned_ok(STORE, reason="a test"))
    ]

    assert found == [
        Believed(payload=PAYLOAD, how="signature", signers=("key0",)),
        Believed(payload=PAYLOAD, how="pin"),
        Believed(payload=PAYLOAD, how="unsigned_ok"),
    ]
    assert {believed.digest for believed in found} == {DIGEST}


@pytest.mark.parametrize("signers", [(), (OTHER,)], ids=["unsigned", "stranger"])
def test_an_unsigned_artifact_is_believed_from_exactly_the_named_store(signers: tuple[Any, ...]):
    """One character more or less in the address of the store is another store."""
    envelope = edited(sign(PAYLOAD, *signers or (KEY,)), **({} if signers else {"signatures": []}))
    allowed = unsigned_ok(STORE, reason="a test")

    assert verify(envelope, allowed, store=STORE).how == "unsigned_ok"
    for other in ("", STORE[:-1], f"{STORE}/", f"{STORE}/below", STORE.upper(), "file:///srv"):
        assert refusal(envelope, allowed, store=other).reason == "untrusted"


def test_text_in_the_envelope_does_not_make_it_an_exception():
    """Whoever writes the statement cannot say which store it was read from."""
    payload = json.dumps({"store": STORE, "uri": STORE}).encode()
    signature = {"keyid": STORE, "sig": base64.b64encode(STORE.encode()).decode()}
    envelope = edited(
        sign(payload, OTHER), store=STORE, uri=STORE, how="unsigned_ok", signatures=[signature]
    )
    allowed = unsigned_ok(STORE, reason="a test")

    assert refusal(envelope, allowed).reason == "untrusted"
    assert refusal(envelope, allowed, store="s3://elsewhere").reason == "untrusted"


def test_believing_the_unsigned_is_loud(caplog: pytest.LogCaptureFixture):
    """Each use of the exception is one warning with store and reason; a signed one needs none."""
    allowed = trusting(KEY) | unsigned_ok(STORE, reason="ticket 4711")
    verify(sign(PAYLOAD, KEY), allowed, store=STORE)
    assert caplog.records == []

    for _ in range(2):
        verify(sign(PAYLOAD, OTHER), allowed, store=STORE)

    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert f"store={STORE} reason=ticket 4711" in caplog.records[1].getMessage()


def test_an_exception_alone_is_a_trust():
    """With a store named and no key, another store is untrusted: something is configured."""
    allowed = unsigned_ok(STORE, reason="a test")

    assert refusal(sign(PAYLOAD, KEY), allowed, store="s3://b").reason == "untrusted"


@pytest.mark.parametrize(
    "trust", [Trust(denied=frozenset({DIGEST})), Trust(max_age_s=1.0)], ids=["denied", "max_age"]
)
def test_restrictions_alone_trust_nobody(trust: Trust):
    """A deny-list and an age limit are no reason to believe anything."""
    assert refusal(sign(PAYLOAD, KEY), trust, store=STORE).reason == "no_trust"


EXACT = [
    "file:///",
    "file:///srv/my%20artifacts",
    "s3://bucket",
    "s3://bucket/team/model-a",
    "gs://bucket/a.b_c",
    "az://container/prefix",
    f"hf://owner/repo@{'0a' * 20}",
    f"hf://owner/repo.x@{'0a' * 20}/some/prefix",
]


@pytest.mark.parametrize("store", EXACT)
def test_exact_addresses_can_be_exceptions(store: str):
    """Every kind of store can be named."""
    assert unsigned_ok(store, reason="x").unsigned_ok == (UnsignedOk(store=store, reason="x"),)


def test_a_store_is_compared_as_it_names_itself(tmp_path: Path):
    """What `open_store` made of an address is what the exception has to say."""
    store = open_store(str(tmp_path / "my artifacts")).uri

    assert verify(sign(PAYLOAD, OTHER), unsigned_ok(store, reason="x"), store=store)


INEXACT = {
    "empty": "",
    "a_path": "/srv/artifacts",
    "relative_file": "file://artifacts",
    "file_with_blank": "file:///srv/my artifacts",
    "file_with_slash": "file:///srv/",
    "file_with_dots": "file:///srv/../etc",
    "file_wildcard": "file:///srv/*",
    "http": "https://host/artifacts",
    "upper_case": "S3://bucket",
    "no_bucket": "s3://",
    "s3_wildcard": "s3://bucket/*",
    "s3_set": "s3://bucket/[ab]",
    "s3_query": "s3://bucket/a?versionId=1",
    "s3_user": "s3://key:secret@bucket/a",
    "s3_slash": "s3://bucket/",
    "s3_dots": "s3://bucket/../other",
    "s3_newline": "s3://bucket\n",
    "hub_without_revision": "hf://owner/repo",
    "hub_branch": "hf://owner/repo@main",
    "hub_short_commit": f"hf://owner/repo@{'0a' * 19}",
    "hub_long_commit": f"hf://owner/repo@{'0a' * 21}",
    "hub_upper_commit": f"hf://owner/repo@{'0A' * 20}",
    "hub_without_owner": f"hf://repo@{'0a' * 20}",
    "hub_wildcard": f"hf://owner/*@{'0a' * 20}",
    "hub_prefix_wildcard": f"hf://owner/repo@{'0a' * 20}/*",
    "hub_slash": f"hf://owner/repo@{'0a' * 20}/",
}


@pytest.mark.parametrize("name", INEXACT)
def test_what_names_no_one_store_is_no_exception(name: str):
    """No wildcards, no moving names, no second spelling; the error has advice and no password."""
    with pytest.raises(ConfigError, match="not the exact address") as caught:
        unsigned_ok(STORE, INEXACT[name], reason="x")

    assert caught.value.hint
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("reason", ["", " \n"])
def test_an_exception_needs_a_reason(reason: str):
    """Whoever opens the door says why."""
    with pytest.raises(ConfigError, match="has no reason"):
        unsigned_ok(STORE, reason=reason)


# --- denied and expired --------------------------------------------------------------------


def late_refusal(trust: Trust, **changes: Any) -> ArtifactRefused | None:
    facts = {
        "payload_digest": DIGEST,
        "part_digests": ["0a" * 32, "0b" * 32],
        "created": "2027-01-15T07:00:00.000000Z",  # an hour before NOW
        "now_unix": NOW,
    }
    try:
        check_age_and_denied(trust, **{**facts, **changes})
    except ArtifactRefused as refused:
        return refused
    return None


@pytest.mark.parametrize("digest", [DIGEST, "0a" * 32, "0b" * 32], ids=["payload", "part", "last"])
@pytest.mark.parametrize("how", ["signature", "pin", "unsigned_ok"])
def test_what_is_denied_is_refused_for_whatever_reason_it_was_believed(how: str, digest: str):
    """A digest on the deny-list, of the statement or of any part, overrules key, pin and store."""
    believing = {
        "signature": trusting(KEY),
        "pin": pinned(f"sha256:{DIGEST}"),
        "unsigned_ok": unsigned_ok(STORE, reason="a test"),
    }[how]
    denying = believing | Trust(denied=frozenset({digest}))
    assert verify(sign(PAYLOAD, KEY), denying, store=STORE).how == how
    assert late_refusal(believing) is None

    refused = late_refusal(denying)

    assert refused is not None
    assert refused.reason == "denied"
    assert digest in refused.message


def test_another_digest_on_the_deny_list_does_no_harm():
    """Denying one artifact denies no other."""
    assert late_refusal(Trust(denied=frozenset({"0c" * 32}))) is None


def test_an_artifact_expires_after_its_age_limit():
    """It is believed up to the limit, to the second, and refused after it with both figures."""
    trust = signed_by(PEM, max_age_s=90 * 86400)
    created = "2026-10-17T08:00:00.000000Z"  # 90 days before NOW

    assert late_refusal(trust, created=created) is None
    refused = late_refusal(trust, created=created, now_unix=NOW + 1)

    assert refused is not None
    assert refused.reason == "expired"
    assert created in refused.message
    assert "the limit is 90.0 days" in refused.message
    assert late_refusal(signed_by(PEM), created="1970-01-01T00:00:00.000000Z") is None


@pytest.mark.parametrize("limit", [None, 60.0, 1e9])
def test_an_artifact_from_the_future_is_refused(limit: float | None):
    """A day of skew is borne; beyond it a clock is wrong or the time was made up to stay newest."""
    trust = signed_by(PEM, max_age_s=limit)
    created = "2027-01-16T08:00:00.000000Z"  # a day after NOW

    assert late_refusal(trust, created=created) is None
    refused = late_refusal(trust, created=created, now_unix=NOW - 1)

    assert refused is not None
    assert refused.reason == "expired"
    assert "ahead of this machine's clock" in refused.message


def test_the_age_is_counted_by_this_machine_unless_it_is_told():
    """An artifact made now is young, and one of last century is not."""
    trust = signed_by(PEM, max_age_s=3600)

    assert late_refusal(trust, created=utc_now(), now_unix=None) is None
    assert late_refusal(trust, created="1999-12-31T00:00:00.000000Z", now_unix=None)


@pytest.mark.parametrize("created", ["", "yesterday", "2027-01-15T07:00:00", "2027-01-15"])
def test_a_time_that_is_none_is_refused(created: str):
    """What has no readable age has not passed the age limit."""
    refused = late_refusal(signed_by(PEM), created=created)

    assert refused is not None
    assert refused.reason == "bad_statement"


# --- policies for code ---------------------------------------------------------------------


def test_signed_by_takes_pem_and_trusted_keys():
    """A key is believed in either form, and the same key in both is one."""
    trust = signed_by(
        TrustedKey.from_pem(PEM, name="ci"),
        PEM,
        public_pem(OTHER),
        max_age_s=60.0,
        denied=[f"sha256:{DIGEST}"],
    )

    assert [key.name for key in trust.keys] == ["ci", key_id(OTHER.public_key())[:16]]
    assert (trust.max_age_s, trust.denied) == (60.0, {DIGEST})
    assert verify(sign(PAYLOAD, KEY), trust).signers == ("ci",)


def test_pinned_believes_exactly_what_it_names():
    """The policy is the digest in the form that people paste."""
    trust = pinned(f"sha256:{DIGEST}", f"sha256:{'0a' * 32}")

    assert verify(sign(PAYLOAD, OTHER), trust).how == "pin"
    assert refusal(sign(b"{}", OTHER), trust).reason == "untrusted"


USELESS = {
    "signed_by_nobody": signed_by,
    "signed_by_no_key": lambda: signed_by("ssh-ed25519 AAAA"),
    "signed_by_other_kind": lambda: signed_by(
        public_pem(ec.generate_private_key(ec.SECP256R1())),
    ),
    "denied_without_kind": lambda: signed_by(PEM, denied=[DIGEST]),
    "denied_in_trust": lambda: Trust(denied=frozenset({f"sha256:{DIGEST}"})),
    "no_age": lambda: signed_by(PEM, max_age_s=0.0),
    "negative_age": lambda: signed_by(PEM, max_age_s=-1.0),
    "endless_age": lambda: signed_by(PEM, max_age_s=float("inf")),
    "not_an_age": lambda: signed_by(PEM, max_age_s=float("nan")),
    "nothing_pinned": pinned,
    "pinned_without_kind": lambda: pinned(DIGEST),
    "pinned_in_upper_case": lambda: pinned(f"sha256:{DIGEST.upper()}"),
    "no_store": lambda: unsigned_ok(reason="x"),
}


@pytest.mark.parametrize("name", USELESS)
def test_a_policy_that_means_nothing_is_an_error(name: str):
    """A policy is never silently empty, and a typing error never silently matches nothing."""
    with pytest.raises(ConfigError):
        USELESS[name]()


def test_policies_add_up():
    """Beliefs and denials are united, and the stricter age limit holds for all."""
    first = signed_by(PEM, max_age_s=60.0, denied=[f"sha256:{'0a' * 32}"])
    second = (
        signed_by(TrustedKey.from_pem(PEM, name="copy"), public_pem(OTHER), max_age_s=30.0)
        | pinned(f"sha256:{DIGEST}")
        | unsigned_ok("s3://bucket", STORE, reason="second")
    )

    both = (
        first | second | unsigned_ok(STORE, reason="third") | Trust(denied=frozenset({"0b" * 32}))
    )

    assert [key.id for key in both.keys] == [key_id(key.public_key()) for key in (KEY, OTHER)]
    assert both.keys[0] == first.keys[0]
    assert both.pinned == {DIGEST}
    assert both.denied == {"0a" * 32, "0b" * 32}
    assert both.max_age_s == 30.0
    assert {(each.store, each.reason) for each in both.unsigned_ok} == {
        ("s3://bucket", "second"),
        (STORE, "second"),
    }
    assert (both | Trust(), Trust() | both) == (both, both)


# --- trust files ---------------------------------------------------------------------------


def write_trust(directory: Path, text: str, name: str = "trust.toml") -> Path:
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_keys_of_all_files_are_merged(tmp_path: Path):
    """The machine's file and the user's add up; a key in both counts once, under its first name."""
    system = write_trust(tmp_path / "etc", trust_lines(KEY.public_key(), name="ci"))
    user = write_trust(
        tmp_path / "home",
        f'pinned = ["sha256:{"ab" * 32}"]\n'
        + trust_lines(KEY.public_key(), name="copy")
        + trust_lines(OTHER.public_key(), name="me"),
    )

    loaded = load_trust([system, user, tmp_path / "absent" / "trust.toml"])

    assert [key.name for key in loaded.keys] == ["ci", "me"]
    assert [key.id for key in loaded.keys] == [key_id(k.public_key()) for k in (KEY, OTHER)]
    assert loaded.pinned == {"ab" * 32}


def test_a_trust_file_says_all_that_code_can(tmp_path: Path):
    """Deny-list, age limit and exceptions come from files as well, and files add up as policies."""
    system = write_trust(
        tmp_path / "etc",
        f'denied = ["sha256:{"0a" * 32}"]\nmax_age_days = 90\n'
        + trust_lines(KEY.public_key(), name="ci"),
    )
    user = write_trust(
        tmp_path / "home",
        f'denied = ["sha256:{"0b" * 32}"]\nmax_age_days = 0.5\n'
        f'[[unsigned_ok]]\nstore = "{STORE}"\nreason = "my own experiments"\n',
    )

    loaded = [load_trust([system]), load_trust([user]), load_trust([system, user])]

    ci = TrustedKey.from_pem(PEM, name="ci")
    machine = signed_by(ci, max_age_s=90 * 86400, denied=[f"sha256:{'0a' * 32}"])
    personal = unsigned_ok(STORE, reason="my own experiments") | Trust(
        denied=frozenset({"0b" * 32}), max_age_s=43200.0
    )
    assert loaded == [machine, personal, machine | personal]


def test_the_example_of_the_module_is_a_trust_file(tmp_path: Path):
    """What the documentation of the format shows is read once real keys and digests are in it."""
    example = trust.__doc__.split("process must not be able to add a key.\n")[1].split("In code")[0]
    pem = PEM.replace("\n", "\\n")
    for old, new in [
        ("9f2c...", "9f" * 32),
        ("41aa...", "41" * 32),
        ("-----BEGIN PUBLIC KEY-----\\n...\\n-----END PUBLIC KEY-----\\n", pem),
    ]:
        assert old in example
        example = example.replace(old, new)
    write_trust(tmp_path, public_pem(OTHER), "release.pem")

    loaded = load_trust([write_trust(tmp_path, textwrap.dedent(example))])

    assert [key.name for key in loaded.keys] == ["ci", "release"]
    assert (loaded.pinned, loaded.denied) == ({"9f" * 32}, {"41" * 32})
    assert loaded.max_age_s == 90 * 86400
    assert [allowed.reason for allowed in loaded.unsigned_ok] == ["my own experiments"]


def test_no_file_trusts_nobody(tmp_path: Path):
    """Trust must be said; it is never a default."""
    assert load_trust([tmp_path / "trust.toml"]) == Trust()


def test_a_key_can_stand_in_a_file_of_its_own(tmp_path: Path):
    """`file` is looked for beside the trust file, whatever the working directory."""
    path = write_trust(tmp_path, '[[keys]]\nname = "release"\nfile = "release.pem"\n')
    write_trust(tmp_path, public_pem(KEY), "release.pem")

    loaded = load_trust([path])

    assert loaded.keys == (TrustedKey(name="release", raw=KEY.public_key().public_bytes_raw()),)


def test_the_home_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Whoever can set HOME for the process cannot add a key by it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    files = trust.default_trust_files()

    assert files[0] == Path("/etc/serve_warm/trust.toml")
    assert not any(path.is_relative_to(tmp_path) for path in files)


PEM_LINE = trust_lines(KEY.public_key(), name="x").splitlines()[2]
BROKEN = {
    "not_toml": "keys = [",
    "unknown_setting": "key = []",
    "keys_no_list": "keys = 1",
    "keys_no_tables": "keys = [1]",
    "no_name": f"[[keys]]\n{PEM_LINE}",
    "no_key": '[[keys]]\nname = "x"',
    "empty_name": f'[[keys]]\nname = ""\n{PEM_LINE}',
    "both": f'[[keys]]\nname = "x"\nfile = "x.pem"\n{PEM_LINE}',
    "unknown_in_key": f'[[keys]]\nname = "x"\nscope = "y"\n{PEM_LINE}',
    "no_file": '[[keys]]\nname = "x"\nfile = "absent.pem"',
    "file_is_directory": '[[keys]]\nname = "x"\nfile = "."',
    "not_pem": '[[keys]]\nname = "x"\npem = "AAAA"',
    "private_pem": '[[keys]]\nname = "x"\npem = """'
    + KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    + '"""',
    "other_kind": '[[keys]]\nname = "x"\npem = """'
    + public_pem(ec.generate_private_key(ec.SECP256R1()))
    + '"""',
    "pinned_no_list": 'pinned = "sha256:00"',
    "pinned_short": 'pinned = ["sha256:00"]',
    "pinned_without_kind": f'pinned = ["{"00" * 32}"]',
    "pinned_number": "pinned = [1]",
    "denied_no_list": 'denied = "sha256:00"',
    "denied_short": 'denied = ["sha256:00"]',
    "denied_without_kind": f'denied = ["{"00" * 32}"]',
    "age_text": 'max_age_days = "90"',
    "age_zero": "max_age_days = 0",
    "age_negative": "max_age_days = -1",
    "age_bool": "max_age_days = true",
    "age_endless": "max_age_days = inf",
    "age_none": "max_age_days = nan",
    "age_huge": "max_age_days = 1e308",
    "unsigned_list": f'unsigned_ok = ["{STORE}"]',
    "unsigned_no_list": f'unsigned_ok = "{STORE}"',
    "unsigned_no_reason": f'[[unsigned_ok]]\nstore = "{STORE}"',
    "unsigned_empty_reason": f'[[unsigned_ok]]\nstore = "{STORE}"\nreason = " "',
    "unsigned_no_store": '[[unsigned_ok]]\nreason = "x"',
    "unsigned_number": f'[[unsigned_ok]]\nstore = "{STORE}"\nreason = 1',
    "unsigned_unknown": f'[[unsigned_ok]]\nstore = "{STORE}"\nreason = "r"\nkeys = "y"',
    "unsigned_wildcard": '[[unsigned_ok]]\nstore = "s3://*"\nreason = "r"',
    "unsigned_branch": '[[unsigned_ok]]\nstore = "hf://a/b@main"\nreason = "r"',
    "too_long": "#" * (1 << 20) + "\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_trust_file_is_an_error(tmp_path: Path, name: str):
    """A mistake in a trust file is told with the file's name, never read as an empty file."""
    path = write_trust(tmp_path, BROKEN[name])

    with pytest.raises(ConfigError) as caught:
        load_trust([path])

    assert str(tmp_path) in str(caught.value) or "'x'" in str(caught.value)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
@pytest.mark.parametrize("what", ["file", "directory", "pem"])
def test_what_others_can_write_is_not_trusted(tmp_path: Path, what: str, mode: int):
    """File, folder and key file must be safe from others; the error says which and the fix."""
    path = write_trust(tmp_path / "etc", '[[keys]]\nname = "x"\nfile = "x.pem"\n')
    pem = write_trust(tmp_path / "etc", public_pem(KEY), "x.pem")
    assert load_trust([path]).keys
    target = {"file": path, "directory": path.parent, "pem": pem}[what]
    target.chmod(mode | 0o111 if what == "directory" else mode)

    with pytest.raises(ConfigError, match="written by group or others") as caught:
        load_trust([path])

    assert caught.value.hint == f"chmod go-w {target}"


def test_a_link_out_of_an_unsafe_folder_is_not_trusted(tmp_path: Path):
    """What a link names must be as safe as the link."""
    real = write_trust(tmp_path / "shared", trust_lines(KEY.public_key(), name="x"))
    (tmp_path / "etc").mkdir()
    link = tmp_path / "etc" / "trust.toml"
    link.symlink_to(real)
    assert load_trust([link]).keys
    real.parent.chmod(0o777)

    with pytest.raises(ConfigError, match="shared can be written"):
        load_trust([link])


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o703])
@pytest.mark.parametrize("above", ["home", "home/.config"])
def test_what_others_can_exchange_is_not_trusted(tmp_path: Path, above: str, mode: int):
    """A folder above that others can write lets them put another folder of ours in its place."""
    path = tmp_path / "home" / ".config" / "serve_warm" / "trust.toml"
    path.parent.mkdir(parents=True, mode=0o700)
    write_trust(path.parent, trust_lines(KEY.public_key(), name="x"))
    assert load_trust([path]).keys
    (tmp_path / above).chmod(mode)

    with pytest.raises(ConfigError, match="can be written by group or others") as caught:
        load_trust([path])

    assert caught.value.hint == f"chmod go-w {tmp_path / above}"


def test_a_folder_that_is_a_link_in_an_unsafe_place_is_not_trusted(tmp_path: Path):
    """Neither the folder of the name nor that of the file is at fault, but the one of the link."""
    real = write_trust(tmp_path / "elsewhere", trust_lines(KEY.public_key(), name="x"))
    (tmp_path / "middle").mkdir()
    (tmp_path / "middle" / "link").symlink_to(real.parent)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "serve_warm").symlink_to(tmp_path / "middle" / "link")
    path = tmp_path / "config" / "serve_warm" / "trust.toml"
    assert load_trust([path]).keys
    (tmp_path / "middle").chmod(0o1777)

    with pytest.raises(ConfigError, match="middle can be written"):
        load_trust([path])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_belongs_to_somebody_else_is_not_trusted(tmp_path: Path, what: str):
    """Only root and this user may say whom to believe."""
    path = write_trust(tmp_path / "etc", trust_lines(KEY.public_key(), name="x"))
    target = path if what == "file" else path.parent
    os.chown(target, 12345, -1)

    with pytest.raises(ConfigError, match="belongs to user id 12345") as caught:
        load_trust([path])

    assert caught.value.hint == f"chown root {target}"


def test_a_pipe_does_not_hang_the_start(tmp_path: Path):
    """A trust file that is no file is an error at once."""
    os.mkfifo(tmp_path / "trust.toml", 0o600)

    with pytest.raises(ConfigError, match="not a regular file"):
        load_trust([tmp_path / "trust.toml"])


MOUNTED = """
set -e
mount -t tmpfs none "$1"
cp "$2" "$1/trust.toml"
chmod 777 "$1"
[ "$3" = rw ] || mount -o remount,ro "$1"
exec "$4" -c "
import sys, pathlib
from serve_warm.trust import load_trust
print(len(load_trust([pathlib.Path(sys.argv[1]) / 'trust.toml']).keys))" "$1"
"""


@pytest.mark.parametrize(("mount", "trusted"), [("ro", True), ("rw", False)])
def test_a_read_only_mount_cannot_be_written_whatever_its_mode(
    tmp_path: Path, mount: str, *, trusted: bool
):
    """Kubernetes mounts a ConfigMap read-only and with mode 0777: that is safe."""
    namespace = [shutil.which("unshare") or "unshare", "--user", "--map-root-user", "--mount"]
    # Where root is not mapped the folders above the mount seem to be somebody else's.
    roots = ["sh", "-c", 'test "$(stat -c %u /)" = 0']
    if subprocess.run([*namespace, *roots], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not let us mount anything as root")
    source = write_trust(tmp_path / "source", trust_lines(KEY.public_key(), name="x"))
    (tmp_path / "mount").mkdir()

    result = subprocess.run(
        [*namespace, "sh", "-c", MOUNTED, "-", tmp_path / "mount", source, mount, sys.executable],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (result.stdout == "1\n") == trusted
    assert ("can be written by group or others" in result.stderr) != trusted


# --- the user's own key --------------------------------------------------------------------


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_user_key_is_made_once_and_trusted(tmp_path: Path):
    """What a user signs that user can load, from the first call on; the second changes nothing."""
    directory = tmp_path / "config" / "serve_warm"
    first = user_key(directory)
    before = (directory / "trust.toml").read_bytes()

    second = user_key(directory)

    assert first.private_bytes_raw() == second.private_bytes_raw()
    assert (directory / "trust.toml").read_bytes() == before
    assert verify(sign(PAYLOAD, second), load_trust([directory / "trust.toml"])).payload == PAYLOAD


def test_the_user_key_is_private(tmp_path: Path):
    """Nobody else can read the key or change what is trusted, whatever the umask."""
    old = os.umask(0)
    try:
        user_key(tmp_path / "serve_warm")
    finally:
        os.umask(old)

    assert mode_of(tmp_path / "serve_warm") == 0o700
    assert {path.name: mode_of(path) for path in (tmp_path / "serve_warm").iterdir()} == {
        "signing_key.pem": 0o600,
        "trust.toml": 0o600,
    }


def test_the_key_file_is_what_openssl_writes(tmp_path: Path):
    """The private key is PKCS#8 PEM, so that it can be moved to a CI secret as it is."""
    key = user_key(tmp_path / "serve_warm")

    pem = (tmp_path / "serve_warm" / "signing_key.pem").read_bytes()

    assert pem == key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_a_trust_file_that_is_there_is_kept(tmp_path: Path):
    """The user's own keys and comments stay; the new key is added at the end."""
    text = "# ours\npinned = []\n" + trust_lines(OTHER.public_key(), name="ci").rstrip()
    path = write_trust(tmp_path / "serve_warm", text)

    key = user_key(tmp_path / "serve_warm")

    assert path.read_text().startswith(text)
    assert [trusted.id for trusted in load_trust([path]).keys] == [
        key_id(OTHER.public_key()),
        key_id(key.public_key()),
    ]


def test_a_trust_file_that_cannot_be_extended_is_kept(tmp_path: Path):
    """A file in another notation is left as it is, and the error has the lines to add by hand."""
    path = write_trust(tmp_path / "serve_warm", "keys = []\n")

    with pytest.raises(ConfigError, match="cannot be extended") as caught:
        user_key(tmp_path / "serve_warm")

    assert path.read_text() == "keys = []\n"
    assert "BEGIN PUBLIC KEY" in caught.value.hint


def test_no_key_is_made_where_others_can_write(tmp_path: Path):
    """A folder that others can write would let them swap the key."""
    (tmp_path / "serve_warm").mkdir()
    (tmp_path / "serve_warm").chmod(0o777)

    with pytest.raises(ConfigError, match="can be written"):
        user_key(tmp_path / "serve_warm")

    assert list((tmp_path / "serve_warm").iterdir()) == []


def test_no_key_is_made_where_others_can_exchange_the_folder(tmp_path: Path):
    """Nor below a folder that they can write."""
    directory = tmp_path / "config" / "serve_warm"
    directory.mkdir(parents=True, mode=0o700)
    directory.parent.chmod(0o777)

    with pytest.raises(ConfigError, match="config can be written"):
        user_key(directory)

    assert list(directory.iterdir()) == []


def test_keys_are_made_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A home on a file system that has none is good enough, and nothing is overwritten there."""

    def none(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", none)
    key = user_key(tmp_path / "serve_warm")
    path = tmp_path / "serve_warm" / "signing_key.pem"

    assert user_key(tmp_path / "serve_warm").private_bytes_raw() == key.private_bytes_raw()
    assert mode_of(path) == 0o600
    assert len(list(path.parent.iterdir())) == 2
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        trust._create(path, b"other", mode=0o600)
    assert path.read_bytes() == before


def test_half_a_key_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A full disk leaves nothing that a second try would read."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(ConfigError, match="No space left"):
            user_key(tmp_path / "serve_warm")

    assert list((tmp_path / "serve_warm").iterdir()) == []
    assert user_key(tmp_path / "serve_warm")


def test_a_place_that_cannot_be_written_is_a_config_error(tmp_path: Path):
    """A home that is no folder is told in a sentence."""
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="cannot be written"):
        user_key(tmp_path / "file" / "serve_warm")


RACER = """
import pathlib, sys, time
from serve_warm.trust import key_id, user_key
directory, go = map(pathlib.Path, sys.argv[1:])
print("ready", flush=True)
while not go.exists():
    time.sleep(0.001)
print(key_id(user_key(directory).public_key()))
"""


def test_racing_first_uses_agree_on_one_key(tmp_path: Path):
    """Eight processes that all come first get one and the same key, trusted once."""
    directory, go = tmp_path / "serve_warm", tmp_path / "go"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(directory), str(go)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    for racer in racers:
        assert racer.stdout is not None
        racer.stdout.readline()

    go.touch()
    ids = {racer.communicate(timeout=60)[0].strip() for racer in racers}

    assert len(ids) == 1
    assert {key.id for key in load_trust([directory / "trust.toml"]).keys} == ids
    assert len(list(directory.iterdir())) == 2


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_signing_key_that_others_can_read_is_not_used(tmp_path: Path, mode: int):
    """A key that may have been copied signs nothing; the fix is named."""
    user_key(tmp_path / "serve_warm")
    path = tmp_path / "serve_warm" / "signing_key.pem"
    path.chmod(mode)

    with pytest.raises(ConfigError, match="read by other users") as caught:
        load_signing_key(path)

    assert f"chmod 600 {path}" in caught.value.hint


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
    """What is wrong with the file is said without a word of what is in it."""
    path = tmp_path / "key.pem"
    data = UNUSABLE[name]
    if data is not None:
        path.write_bytes(data)
        path.chmod(0o600)

    with pytest.raises(ConfigError, match=r"key\.pem") as caught:
        load_signing_key(path)

    assert "PRIVATE" not in str(caught.value).replace("BEGIN PRIVATE KEY", "")


# --- key pairs -----------------------------------------------------------------------------


def test_a_key_pair_signs_and_is_trusted(tmp_path: Path):
    """What the private half signs, the public half believes; both files are what openssl writes."""
    path = tmp_path / "ci.key"

    made = write_key_pair(path)

    key, public = load_signing_key(path), (tmp_path / "ci.key.pub").read_text()
    assert made == TrustedKey(name="ci", raw=key.public_key().public_bytes_raw())
    assert public == public_pem(key)
    assert verify(sign(PAYLOAD, key), signed_by(public)).payload == PAYLOAD
    assert trust_lines(made.public, name=made.name).startswith('[[keys]]\nname = "ci"\n')


@pytest.mark.parametrize("umask", [0, 0o077])
def test_only_the_public_half_can_be_read_by_others(tmp_path: Path, umask: int):
    """Whatever the umask; and nothing else is left behind."""
    old = os.umask(umask)
    try:
        write_key_pair(tmp_path / "ci.key")
    finally:
        os.umask(old)

    assert {path.name: mode_of(path) for path in tmp_path.iterdir()} == {
        "ci.key": 0o600,
        "ci.key.pub": 0o644,
    }


@pytest.mark.parametrize("taken", ["ci.key", "ci.key.pub"])
@pytest.mark.parametrize("kind", ["file", "link"])
def test_no_key_is_overwritten(tmp_path: Path, taken: str, kind: str):
    """A file or a link of either name ends it before anything is written."""
    if kind == "file":
        (tmp_path / taken).write_bytes(b"precious")
    else:
        (tmp_path / taken).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ConfigError, match=rf"{taken} is there already"):
        write_key_pair(tmp_path / "ci.key")

    assert [path.name for path in tmp_path.iterdir()] == [taken]
    assert kind == "link" or (tmp_path / taken).read_bytes() == b"precious"


@pytest.mark.parametrize("name", ["absent/ci.key", "file/ci.key", "file/..", "."])
def test_a_place_for_no_key_pair_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    """A folder that is not there, or no file name, is told in a sentence."""
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=r"cannot be written|is there already"):
        write_key_pair(Path(name))
