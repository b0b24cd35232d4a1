# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""An artifact that a build leaves without a signature, and its first one by another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from artifacts import (
    APPLICATION,
    DEPLOYMENT,
    PLACE,
    MemoryStore,
    blob_key,
    build,
    fingerprint,
    new_key,
    trusting,
)
from artifacts import packed_cache as packed
from command_line import KEY, Ended, run_fixture, trust_file_fixture  # noqa: F401 - fixtures
from serve_warm.artifact.manifest import Manifest
from serve_warm.artifact.push import push
from serve_warm.artifact.push import sign as sign_again
from serve_warm.artifact.unsigned import MAX_UNSIGNED, sign_unsigned
from serve_warm.errors import AlreadyPublished, ArtifactNotFound, ArtifactRefused
from serve_warm.fingerprint import Fingerprint
from serve_warm.stores.local import LocalStore
from serve_warm.trust.policy import Trust
from transfers import flip, pull_here

OTHER = new_key()
LATER = "2026-11-21T10:00:00.000000Z"
TIMES = (f"2026-11-20T10:00:{second:02}.000000Z" for second in range(60))


@dataclass
class Site:
    """The folder that a build left, and the store of the replicas."""

    left: MemoryStore = field(default_factory=MemoryStore)
    fleet: MemoryStore = field(default_factory=lambda: MemoryStore(uri="memory:fleet"))

    def leave(self, *keys: Any, **fields: Any) -> Manifest:
        manifest, stored = build(**fields)
        push(self.left, manifest, stored, keys or None)
        return manifest

    def sign(self, **options: Any) -> Any:
        chosen = {"trust": trusting(KEY), "place": PLACE, **options}
        return sign_unsigned(self.left, self.fleet, [KEY], **chosen)

    def refuse(self, match: str | None = None, **options: Any) -> str:
        """Check that nothing is signed, and return the reason."""
        with pytest.raises(ArtifactRefused, match=match) as refused:
            self.sign(**options)
        assert self.fleet.written == []
        return refused.value.reason


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, bytes]:
    return {"cache": packed(tmp_path)}


def test_no_replica_loads_what_has_no_signature(site: Site):
    """An unsigned artifact is `untrusted`, and a rotation does not sign it."""
    site.leave()
    with pytest.raises(ArtifactRefused, match="has no signature") as pulled:
        pull_here(site.left, trust=trusting(KEY))
    with pytest.raises(ArtifactRefused, match="has no signature") as signed:
        sign_again(site.left, [KEY], trust=trusting(KEY))
    assert pulled.value.reason == signed.value.reason == "untrusted"


def test_what_is_signed_later_is_loaded(site: Site, cache: dict[str, bytes]):
    """The parts are those of the build, and the signature covers its statement."""
    made = site.leave(raw=cache)
    done = site.sign()
    pulled = pull_here(site.fleet, trust=trusting(KEY))
    assert pulled.chosen.manifest == made
    assert pulled.chosen.believed.verified.signers == ("key0",)
    assert done.statements == (pulled.chosen.key,)
    assert site.left.written == [blob_key(made.parts[0]), pulled.chosen.key]


def test_the_origin_is_what_the_signer_says(site: Site, cache: dict[str, bytes]):
    """The model's code can write anything into the folder, also about another pipeline."""
    claimed = {"builder": "https://ci/payments", "source": "4f2c"}
    site.leave(raw=cache, facts={"provenance": claimed, "passes": 3})
    site.sign(provenance={"builder": "https://ci/scorer"})
    facts = pull_here(site.fleet, trust=trusting(KEY)).chosen.manifest.facts
    assert facts == {"provenance": {"builder": "https://ci/scorer"}, "passes": 3}


def test_parts_that_are_not_what_the_statement_says_get_no_signature(
    site: Site, cache: dict[str, bytes]
):
    """A signature vouches for every byte."""
    made = site.leave(raw=cache)
    key = blob_key(made.parts[0])
    site.left.objects[key] = flip(site.left.objects[key])
    site.refuse()


def test_another_deployment_gets_no_signature(site: Site, cache: dict[str, bytes]):
    site.leave(raw=cache, deployment="PaymentsOfAnotherTeam")
    assert site.sign().statements == ()
    assert site.fleet.written == []


def test_what_is_dated_ahead_gets_no_signature(site: Site, cache: dict[str, bytes]):
    """An artifact dated in the future would win over every honest build until then."""
    ahead = datetime.now(timezone.utc) + timedelta(hours=23)
    site.leave(raw=cache, created=ahead.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
    site.refuse("in the future according to this machine")


def test_a_crowd_of_statements_gets_no_signature(site: Site, cache: dict[str, bytes]):
    """A build leaves one for each rank."""
    for threads in range(MAX_UNSIGNED + 1):
        site.leave(raw=cache, built_for=fingerprint(threads=str(threads)))
    site.refuse("at most 64")


def test_it_can_be_signed_where_it_is(site: Site, cache: dict[str, bytes]):
    made = site.leave(raw=cache)
    sign_unsigned(site.left, site.left, [KEY], trust=trusting(KEY), place=PLACE)
    assert pull_here(site.left, trust=trusting(KEY)).chosen.manifest == made
    with pytest.raises(AlreadyPublished):
        push(site.left, *build(created=LATER), [KEY])


def test_what_a_stranger_signed_is_left_alone(site: Site):
    """Only what carries no signature at all is signed: the rest is for rotation, and its checks."""
    site.leave(OTHER)
    with pytest.raises(ArtifactNotFound, match="no unsigned artifact"):
        site.sign()
    assert site.fleet.written == []


def test_nothing_left_is_nothing_to_sign(site: Site):
    """A build of an app that compiles nothing leaves no artifact: the Job of it has not failed."""
    done = site.sign()
    assert (done.statements, done.unchanged, done.refused) == ((), 0, ())


@pytest.mark.parametrize(
    ("trust", "reason"),
    [
        (trusting(KEY, max_age_s=1.0), "expired"),
        (trusting(KEY, require=frozenset({("builder", "https://ci/*")})), "untrusted"),
        (trusting(OTHER), "untrusted"),
    ],
    ids=["too old", "of an origin that the signer does not say", "by another key"],
)
def test_the_limits_of_the_fleet_hold_for_what_is_signed(site: Site, trust: Trust, reason: str):
    """An artifact that every replica would refuse is not published, whatever the build claims."""
    site.leave(facts={"provenance": {"builder": "https://ci/payments"}})
    assert site.refuse(trust=trust) == reason


def test_of_a_variant_that_is_published_either_is_kept(site: Site, cache: dict[str, bytes]):
    """Refused by default; kept, or superseded, where that is asked for."""
    push(site.fleet, *build(raw=cache), [KEY])
    site.leave(created=LATER, raw=cache)
    with pytest.raises(AlreadyPublished):
        site.sign()
    kept, there = site.sign(on_taken="keep"), len(site.fleet.objects)
    superseded = site.sign(on_taken="supersede")
    assert (kept.statements, kept.unchanged, there) == ((), 1, 2)
    assert pull_here(site.fleet, trust=trusting(KEY)).chosen.key == superseded.statements[0]


def test_what_is_not_believed_is_not_kept(site: Site, cache: dict[str, bytes]):
    """A stranger who took the name of the variant does not keep the fleet cold in silence."""
    push(site.fleet, *build(raw=cache), [OTHER])
    site.leave(created=LATER, raw=cache)
    with pytest.raises(AlreadyPublished):
        site.sign(on_taken="keep")


def test_each_variant_and_deployment_is_signed(site: Site, cache: dict[str, bytes]):
    """A gang leaves one for each rank; `deployment` takes those of one."""
    for rank in ("1 of 2", "0 of 2"):
        site.leave(raw=cache, built_for=of_rank(rank))
    site.leave(raw=cache, deployment="Scorer")
    done = site.sign()
    assert len(done.statements) == 2
    assert all(f"/{DEPLOYMENT}/" in key for key in done.statements)


def of_rank(rank: str, **factors: str) -> Fingerprint:
    """Return the fingerprint of a rank; of a process by itself where it is empty."""
    usual = fingerprint(**factors)
    return replace(usual, app={**usual.app, **({"rank": rank} if rank else {})})


NO_GANG = {
    "a gap": ["0 of 3", "2 of 3"],
    "twice": ["0 of 2", "1 of 2", "1 of 2"],
    "of two sizes": ["0 of 2", "1 of 2", "0 of 4"],
    "one beside": ["0 of 2", "1 of 2", ""],
    "two of none": ["", ""],
    "a rank that is none": ["first of 2"],
    "beyond": ["0 of 2", "2 of 2"],
    "endless": ["0 of 4000000000"],
    "alone": ["0 of 9999"],
    "other digits": ["0 of 2", "\u0661 of 2"],
    "a leading zero": ["00 of 2", "1 of 2"],
}


@pytest.mark.parametrize("case", NO_GANG)
def test_only_one_whole_gang_is_signed(site: Site, cache: dict[str, bytes], case: str):
    """Model code can leave any number of artifacts, but a build makes one for each rank."""
    for rank in NO_GANG[case]:
        manifest, stored = build(raw=cache, built_for=of_rank(rank), created=next(TIMES))
        push(site.left, manifest, stored, None, on_taken="supersede")
    assert site.refuse("not each rank of one gang once") == "bad_statement"


def test_ranks_that_do_not_fit_together_are_not_signed(site: Site, cache: dict[str, bytes]):
    """The ranks could come from two builds for different machines."""
    site.leave(raw=cache, built_for=of_rank("0 of 2"))
    site.leave(raw=cache, built_for=of_rank("1 of 2", threads="3"))
    site.refuse("they differ in threads")


def test_a_gang_of_which_one_cannot_be_signed_is_not_signed(site: Site, cache: dict[str, bytes]):
    """Its ranks start together or not at all."""
    site.leave(raw=cache, built_for=of_rank("0 of 2"))
    site.leave(raw={"cache": b"no archive"}, built_for=of_rank("1 of 2"))
    site.refuse("not a packed directory")


# The command --------------------------------------------------------------------------------------
@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "ci.key"
    path.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    return path


def test_the_command_signs_and_publishes(run: Callable[..., Ended], tmp_path: Path, key_file: Path):
    """`sign --unsigned --publish` is the second of two containers; `verify` says yes afterwards."""
    left = LocalStore(root=tmp_path / "left")
    push(left, *build(raw={"cache": packed(tmp_path / "cache")}), None)
    fleet = tmp_path / "fleet"
    command = ("sign", left.root, "--unsigned", *NAMED)
    command += ("--key", key_file, "--publish", fleet)
    signed = run(*command, "--builder", "https://ci/scorer")
    again = run(*command, "--if-published", "keep")
    assert (signed.code, again.code) == (0, 0)
    assert signed.out.startswith(f"statements/{APPLICATION}/{DEPLOYMENT}/")
    assert "0 signed, 1 kept as published" in again.err
    assert "builder https://ci/scorer\n" in run("inspect", fleet).out
    assert run("verify", fleet).code == 0
    assert run("verify", left.root).code == 3


NAMED = ("--application", APPLICATION, "--deployment", DEPLOYMENT)
NOT_UNSIGNED = "work only with --unsigned"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        # Otherwise the folder would decide which deployment is signed.
        (("--unsigned",), "--unsigned needs --application NAME and --deployment NAME"),
        # Rotation publishes nowhere else.
        (("--publish", "x"), NOT_UNSIGNED),
        (("--if-published", "keep"), NOT_UNSIGNED),
        (("--builder", "x"), NOT_UNSIGNED),
    ],
)
def test_options_of_sign_that_do_not_go_together_are_wrong_usage(
    run: Callable[..., Ended], tmp_path: Path, key_file: Path, options: tuple[str, ...], said: str
):
    ended = run("sign", tmp_path, "--key", key_file, *options)
    assert ended.code == 2
    assert said in ended.err


def test_inspect_shows_where_an_artifact_comes_from(run: Callable[..., Ended], tmp_path: Path):
    """Source, image and builder each have a line. Artifacts without them have no such line."""
    said = {"builder": "https://ci/acme", "image": "r/app@sha256:1", "source": "4f2c\x1b[2K"}
    store = LocalStore(root=tmp_path / "store")
    push(store, *build(facts={"provenance": said}), [KEY])
    push(store, *build(deployment="Scorer"), [KEY])
    shown = run("inspect", store.root).out
    assert shown.count("builder https://ci/acme\n") == shown.count("image r/app@sha256:1\n") == 1
    assert "\x1b" not in shown
