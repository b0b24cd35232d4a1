# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which envelopes are believed, and what is refused even if believed."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from artifacts import edited, new_key, trusting
from believing import DIGEST, PAYLOAD, STORE, public_pem, refusal
from serve_warm.errors import ArtifactRefused
from serve_warm.stores import open_store
from serve_warm.trust.envelope import add_signatures, sign
from serve_warm.trust.keys import TrustedKey, key_id
from serve_warm.trust.policy import Trust, pinned, signed_by, unsigned_ok
from serve_warm.trust.verify import Verified, check_age_and_denied, check_required, verify

KEY = new_key()
OTHER = new_key()
NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC
PEM = public_pem(KEY)


# --- signatures ----------------------------------------------------------------------------


def test_a_key_is_rotated_by_signing_again():
    old, new = trusting(KEY), trusting(OTHER)
    before = sign(PAYLOAD, KEY)
    after = add_signatures(before, OTHER)
    assert verify(before, old).payload == PAYLOAD
    assert refusal(before, new).reason == "untrusted"
    assert verify(after, old) == verify(before, old)
    assert verify(after, new).payload == PAYLOAD
    assert verify(after, trusting(KEY, OTHER)).signers == ("key0", "key1")


def test_an_unknown_signer_is_untrusted():
    refused = refusal(sign(PAYLOAD, OTHER), trusting(KEY))
    assert refused.reason == "untrusted"
    assert key_id(OTHER.public_key())[:16] in refused.message


def test_every_flipped_bit_of_the_payload_is_noticed():
    envelope = sign(PAYLOAD, KEY)
    reasons = set()
    for place in range(len(PAYLOAD)):
        flipped = bytearray(PAYLOAD)
        flipped[place] ^= 1
        forged = edited(envelope, payload=base64.b64encode(flipped).decode())
        reasons.add(refusal(forged, trusting(KEY)).reason)
    assert reasons == {"bad_signature"}


def test_a_claimed_key_id_proves_nothing():
    """The key id is only a hint: a forged signature under a trusted key's id is refused."""
    envelope = json.loads(sign(PAYLOAD, OTHER))
    envelope["signatures"][0]["keyid"] = key_id(KEY.public_key())
    refused = refusal(json.dumps(envelope).encode(), trusting(KEY))
    assert refused.reason == "bad_signature"


@pytest.mark.parametrize(
    "hint",
    [{}, {"keyid": ""}, {"keyid": "nonsense"}, {"keyid": key_id(OTHER.public_key())}],
    ids=["none", "empty", "nonsense", "of another key"],  # the same in each process of a run
)
def test_a_wrong_or_missing_key_id_does_no_harm(hint: dict[str, str]):
    [signature] = json.loads(sign(PAYLOAD, KEY))["signatures"]
    envelope = edited(sign(PAYLOAD, KEY), signatures=[{"sig": signature["sig"], **hint}])
    assert verify(envelope, trusting(KEY)).payload == PAYLOAD


def test_a_key_under_two_names_counts_once():
    raw = KEY.public_key().public_bytes_raw()
    twice = Trust(keys=tuple(TrustedKey(name=name, raw=raw) for name in ("a", "b")))
    assert verify(sign(PAYLOAD, KEY, KEY), twice).signers == ("a",)


def test_the_type_is_signed_with_the_payload():
    """A key's signature of another kind of document is not a signature of a statement."""
    text = "text/plain"
    message = b"DSSEv1 %d %s %d %s" % (len(text), text.encode(), len(PAYLOAD), PAYLOAD)
    sig = base64.b64encode(KEY.sign(message)).decode()
    signature = {"keyid": key_id(KEY.public_key()), "sig": sig}
    honest = edited(sign(PAYLOAD, KEY), payloadType=text, signatures=[signature])
    relabelled = edited(sign(PAYLOAD, KEY), signatures=[signature])
    assert refusal(honest, trusting(KEY)).reason == "bad_statement"
    assert refusal(relabelled, trusting(KEY)).reason == "bad_signature"


def test_an_empty_signature_is_not_valid():
    empty = edited(sign(PAYLOAD, KEY), signatures=[{"keyid": "", "sig": ""}])
    assert refusal(empty, trusting(KEY)).reason == "untrusted"


def test_hostile_key_ids_are_not_repeated():
    """Text from an unknown writer never reaches a log or a terminal."""
    envelope = edited(sign(PAYLOAD, OTHER), signatures=[{"keyid": "\x1b[2J evil", "sig": "AAAA"}])
    assert "evil" not in str(refusal(envelope, trusting(KEY)))


# --- why something is believed -------------------------------------------------------------


def test_a_pin_is_of_the_statement_and_not_of_its_envelope():
    envelope = sign(PAYLOAD, OTHER)
    assert refusal(envelope, Trust(pinned=frozenset({hashlib.sha256(envelope).hexdigest()})))


def test_a_signature_is_named_before_a_pin_and_a_pin_before_an_exception():
    lenient = pinned(f"sha256:{DIGEST}") | unsigned_ok(STORE, reason="a test")
    envelope = sign(PAYLOAD, KEY)
    found = [
        verify(envelope, trust, store=STORE)
        for trust in (trusting(KEY) | lenient, lenient, unsigned_ok(STORE, reason="a test"))
    ]

    assert found == [
        Verified(payload=PAYLOAD, how="signature", signers=("key0",)),
        Verified(payload=PAYLOAD, how="pin"),
        Verified(payload=PAYLOAD, how="unsigned_ok"),
    ]
    assert {believed.digest for believed in found} == {DIGEST}


@pytest.mark.parametrize("signers", [(), (OTHER,)], ids=["unsigned", "stranger"])
def test_an_unsigned_artifact_is_believed_from_exactly_the_named_store(signers: tuple[Any, ...]):
    """An address that differs by one character is a different store."""
    envelope = edited(sign(PAYLOAD, *signers or (KEY,)), **({} if signers else {"signatures": []}))
    allowed = unsigned_ok(STORE, reason="a test")
    assert verify(envelope, allowed, store=STORE).how == "unsigned_ok"
    for other in ("", STORE[:-1], f"{STORE}/", f"{STORE}/below", STORE.upper(), "file:///srv"):
        assert refusal(envelope, allowed, store=other).reason == "untrusted"


def test_a_store_is_compared_as_it_names_itself(tmp_path: Path):
    """The exception must name the address that `open_store` reports."""
    store = open_store(str(tmp_path / "my artifacts")).uri
    assert verify(sign(PAYLOAD, OTHER), unsigned_ok(store, reason="x"), store=store)


def test_text_in_the_envelope_does_not_make_it_an_exception():
    """The writer of a statement cannot choose which store it appears to come from."""
    payload = json.dumps({"store": STORE, "uri": STORE}).encode()
    signature = {"keyid": STORE, "sig": base64.b64encode(STORE.encode()).decode()}
    envelope = edited(
        sign(payload, OTHER), store=STORE, uri=STORE, how="unsigned_ok", signatures=[signature]
    )
    allowed = unsigned_ok(STORE, reason="a test")
    assert refusal(envelope, allowed).reason == "untrusted"
    assert refusal(envelope, allowed, store="s3://elsewhere").reason == "untrusted"


def test_believing_the_unsigned_is_loud(caplog: pytest.LogCaptureFixture):
    allowed = trusting(KEY) | unsigned_ok(STORE, reason="ticket 4711")
    verify(sign(PAYLOAD, KEY), allowed, store=STORE)
    assert caplog.records == []
    for _ in range(2):
        verify(sign(PAYLOAD, OTHER), allowed, store=STORE)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert f"store={STORE} reason=ticket 4711" in caplog.records[1].getMessage()


@pytest.mark.parametrize(
    "trust", [Trust(denied=frozenset({DIGEST})), Trust(max_age_s=1.0)], ids=["denied", "max_age"]
)
def test_restrictions_alone_trust_nobody(trust: Trust):
    assert refusal(sign(PAYLOAD, KEY), trust, store=STORE).reason == "no_trust"


# --- denied and expired --------------------------------------------------------------------


def late_refusal(trust: Trust, *, now_unix: float = NOW, **changes: Any) -> tuple[str, str]:
    """Return the reason and the text of a refusal, or empty ones."""
    facts = {
        "payload_digest": DIGEST,
        "part_digests": ["0a" * 32, "0b" * 32],
        "created": "2027-01-15T07:00:00.000000Z",  # an hour before NOW
    }
    try:
        with mock.patch.object(time, "time", return_value=now_unix):
            check_age_and_denied(trust, **{**facts, **changes})
    except ArtifactRefused as refused:
        return refused.reason, f"{refused.message} {refused.hint}"
    return "", ""


@pytest.mark.parametrize("digest", [DIGEST, "0a" * 32, "0b" * 32], ids=["payload", "part", "last"])
@pytest.mark.parametrize("how", ["signature", "pin", "unsigned_ok"])
def test_what_is_denied_is_refused_for_whatever_reason_it_was_believed(how: str, digest: str):
    believing = {
        "signature": trusting(KEY),
        "pin": pinned(f"sha256:{DIGEST}"),
        "unsigned_ok": unsigned_ok(STORE, reason="a test"),
    }[how]
    denying = believing | Trust(denied=frozenset({digest}))
    assert verify(sign(PAYLOAD, KEY), denying, store=STORE).how == how
    assert late_refusal(believing) == ("", "")
    reason, said = late_refusal(denying)

    assert reason == "denied"
    assert digest in said


def test_another_digest_on_the_deny_list_does_no_harm():
    assert late_refusal(Trust(denied=frozenset({"0c" * 32}))) == ("", "")


@pytest.mark.parametrize(
    ("max_age_s", "created", "says"),
    [
        (90 * 86400, "2026-10-17T08:00:00.000000Z", "the limit is 90.0 days"),  # 90 days before NOW
        (None, "2026-01-15T08:00:00.000000Z", "the limit is 365.0 days (the default)"),
    ],
)
def test_an_artifact_expires_after_its_age_limit(max_age_s: float | None, created: str, says: str):
    """It is believed up to the limit. Without a policy that is a year, named the default."""
    trust = signed_by(PEM, max_age_s=max_age_s)
    assert late_refusal(trust, created=created) == ("", "")
    reason, said = late_refusal(trust, created=created, now_unix=NOW + 1)
    assert reason == "expired"
    assert created in said
    assert says in said
    assert max_age_s or "max_age_days" in said


def test_any_other_age_limit_replaces_the_default():
    """Whichever of two policies it comes from."""
    created = "2026-01-15T08:00:00.000000Z"  # 365 days before NOW
    longer = signed_by(PEM, max_age_s=400 * 86400)
    for trust in (longer, signed_by(PEM) | longer):
        assert late_refusal(trust, created=created, now_unix=NOW + 1) == ("", "")


# --- the scope of a key --------------------------------------------------------------------


def statement(deployment: Any) -> bytes:
    return json.dumps({"predicate": {"deployment": deployment}}).encode()


SCOPED = signed_by(PEM, deployments=["Embedder", "text/*"], stores=["s3://prod/*"])


@pytest.mark.parametrize("deployment", ["Embedder", "text/", "text/a/b"])
@pytest.mark.parametrize("store", ["s3://prod/", "s3://prod/team/a"])
def test_a_key_is_believed_within_its_scope(deployment: str, store: str):
    """Names and addresses in scopes are patterns, in which `*` matches anything."""
    assert verify(sign(statement(deployment), KEY), SCOPED, store=store).how == "signature"


@pytest.mark.parametrize(
    ("deployment", "store"),
    [
        *(("Scorer", "s3://prod/a"), ("Embedder2", "s3://prod/a"), ("embedder", "s3://prod/a")),
        *(("text", "s3://prod/a"), ("Embedder\n", "s3://prod/a"), (None, "s3://prod/a")),
        *(("Embedder", "s3://prod"), ("Embedder", "s3://production/a"), ("Embedder", "")),
        *(("Embedder", "file:///s3://prod/a"), (["Embedder"], "s3://prod/a")),
    ],
)
def test_a_key_is_not_believed_out_of_its_scope(deployment: Any, store: str):
    refused = refusal(sign(statement(deployment), KEY), SCOPED, store=store)
    assert refused.reason == "untrusted"
    assert "is trusted only for" in refused.message
    assert "deployments Embedder, text/* and stores s3://prod/*" in refused.message
    assert (store or "no store") in refused.message


@pytest.mark.parametrize("payload", [b"no JSON", b"[]", b"{}", b'{"predicate": 1}'])
def test_a_scoped_key_vouches_for_no_statement_without_a_deployment(payload: bytes):
    assert refusal(sign(payload, KEY), SCOPED, store="s3://prod/a").reason == "untrusted"
    assert verify(sign(payload, KEY), signed_by(PEM, stores=["s3://*"]), store="s3://a").signers


def test_a_scope_takes_nothing_from_other_reasons_to_believe():
    payload = statement("Scorer")
    digest = hashlib.sha256(payload).hexdigest()
    envelope = sign(payload, KEY, OTHER)
    wider = signed_by(TrustedKey.from_pem(PEM, name="wide"))

    assert verify(envelope, SCOPED | trusting(OTHER), store=STORE).signers == ("key0",)
    assert verify(envelope, SCOPED | wider, store=STORE).signers == ("wide",)
    assert verify(envelope, wider | SCOPED, store="s3://prod/a").signers == ("wide",)
    assert verify(envelope, SCOPED | pinned(f"sha256:{digest}"), store=STORE).how == "pin"
    assert verify(envelope, SCOPED | unsigned_ok(STORE, reason="x"), store=STORE).how != "signature"


# --- what is required of where an artifact comes from ---------------------------------------


SAID = {"source": "4f2c", "image": "r/app@sha256:1", "builder": "https://ci/acme/build.yml"}


@pytest.mark.parametrize(
    ("require", "problem"),
    [
        ({}, ""),
        ({"builder": "https://ci/acme/*"}, ""),
        ({"source": "*", "image": "r/app@*", "builder": "https://ci/acme/build.yml"}, ""),
        ({"builder": "https://ci/other/*"}, "has builder 'https://ci/acme/build.yml'"),
        ({"source": "4f2"}, "has source '4f2c', but '4f2' is required here"),
    ],
)
def test_a_policy_can_require_where_an_artifact_comes_from(require: Any, problem: str):
    trust = Trust(require=frozenset(require.items()))
    with pytest.raises(ArtifactRefused) if problem else contextlib.nullcontext() as caught:
        check_required(trust, SAID)
    if caught is not None:
        assert caught.value.reason == "untrusted"
        assert problem in caught.value.message


@pytest.mark.parametrize("said", [{}, {"source": 1}, {"builder": "x"}])
def test_what_does_not_say_what_is_required_is_refused(said: Any):
    """A build may have no provenance. Such an artifact is refused if a fact is required."""
    with pytest.raises(ArtifactRefused, match="has no source"):
        check_required(Trust(require=frozenset({("source", "*")})), said)
    check_required(Trust(), said)


@pytest.mark.parametrize("limit", [None, 60.0, 1e9])
def test_an_artifact_from_the_future_is_refused(limit: float | None):
    """A day of clock skew is accepted."""
    trust = signed_by(PEM, max_age_s=limit)
    created = "2027-01-16T08:00:00.000000Z"  # a day after NOW
    assert late_refusal(trust, created=created) == ("", "")
    reason, said = late_refusal(trust, created=created, now_unix=NOW - 1)
    assert reason == "expired"
    assert "in the future according to this machine's clock" in said


@pytest.mark.slow
@pytest.mark.parametrize("created", ["", "yesterday", "2027-01-15T07:00:00", "2027-01-15"])
def test_a_time_that_is_none_is_refused(created: str):
    assert late_refusal(signed_by(PEM), created=created)[0] == "bad_statement"
