# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Policies: whom they believe, which values are invalid, and how policies combine."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from artifacts import new_key
from believing import DIGEST, PAYLOAD, STORE, public_pem, refusal
from serve_warm.errors import ConfigError
from serve_warm.trust.envelope import sign
from serve_warm.trust.keys import TrustedKey, key_id
from serve_warm.trust.policy import Trust, UnsignedOk, pinned, signed_by, unsigned_ok
from serve_warm.trust.verify import verify

KEY = new_key()
OTHER = new_key()
PEM = public_pem(KEY)


def test_signed_by_takes_pem_and_trusted_keys():
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
    """A pin is a digest in the form in which people paste it."""
    trust = pinned(f"sha256:{DIGEST}", f"sha256:{'0a' * 32}")
    assert verify(sign(PAYLOAD, OTHER), trust).how == "pin"
    assert refusal(sign(b"{}", OTHER), trust).reason == "untrusted"


def test_a_pin_must_be_a_digest():
    with pytest.raises(ConfigError, match="64 hex digits"):
        Trust(pinned=frozenset({"9f2c"}))


USELESS = {
    "signed_by_nobody": signed_by,
    "signed_by_no_key": lambda: signed_by("ssh-ed25519 AAAA"),
    "signed_by_other_kind": lambda: signed_by(public_pem(ec.generate_private_key(ec.SECP256R1()))),
    "denied_without_kind": lambda: signed_by(PEM, denied=[DIGEST]),
    "denied_in_trust": lambda: Trust(denied=frozenset({f"sha256:{DIGEST}"})),
    "no_age": lambda: signed_by(PEM, max_age_s=0.0),
    "negative_age": lambda: signed_by(PEM, max_age_s=-1.0),
    "endless_age": lambda: signed_by(PEM, max_age_s=float("inf")),
    "not_an_age": lambda: signed_by(PEM, max_age_s=float("nan")),
    "scope_text": lambda: signed_by(PEM, deployments="Embedder"),
    "empty_scope": lambda: signed_by(PEM, deployments=[]),
    "scope_no_store": lambda: signed_by(PEM, stores=["prod/*"]),
    "nothing_pinned": pinned,
    "pinned_without_kind": lambda: pinned(DIGEST),
    "pinned_in_upper_case": lambda: pinned(f"sha256:{DIGEST.upper()}"),
    "no_store": lambda: unsigned_ok(reason="x"),
}


@pytest.mark.parametrize("name", USELESS)
def test_a_policy_that_means_nothing_is_an_error(name: str):
    """A policy is never silently empty, and a typo is an error instead of matching nothing."""
    with pytest.raises(ConfigError):
        USELESS[name]()


def test_policies_add_up():
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
    assert unsigned_ok(store, reason="x").unsigned_ok == (UnsignedOk(store=store, reason="x"),)


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
    """Wildcards, moving names and other spellings are errors, with advice but without passwords."""
    with pytest.raises(ConfigError, match="not the exact address") as caught:
        unsigned_ok(STORE, INEXACT[name], reason="x")
    assert caught.value.hint
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("reason", ["", " \n"])
def test_an_exception_needs_a_reason(reason: str):
    with pytest.raises(ConfigError, match="has no reason"):
        unsigned_ok(STORE, reason=reason)
