# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Pulling: what is chosen, what is refused, and what is said about the rest."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from artifacts import (
    APP,
    DEPLOYMENT,
    MACHINE,
    MemoryStore,
    blob_key,
    build,
    cache_directory,
    container,
    edited,
    fingerprint,
    new_key,
    publish_statement,
    trusting,
)
from serve_warm.artifact.archive import pack_directory, unpack_directory
from serve_warm.artifact.choose import SHOWN_VARIANTS
from serve_warm.artifact.manifest import utc_now
from serve_warm.artifact.node_cache import NodeCache, default_root
from serve_warm.artifact.pull import Pulled, confirm, expect, explain, find, pull, take
from serve_warm.artifact.push import push
from serve_warm.artifact.push import sign as sign_all
from serve_warm.artifact.statements import READERS
from serve_warm.errors import ArtifactNotFound, ArtifactRefused, StoreDenied, StoreError
from serve_warm.fingerprint import Fingerprint
from serve_warm.stores.local import LocalStore
from serve_warm.trust.envelope import MAX_ENVELOPE_BYTES, sign
from serve_warm.trust.files import trust_lines
from serve_warm.trust.policy import Trust
from transfers import (
    FORGED_BLOBS,
    KEY,
    NEWER,
    NEWEST,
    OLDER,
    OTHER,
    flip,
    publish,
    pull_here,
    sign_again,
    supersede,
    warnings,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from serve_warm.artifact.manifest import Manifest
    from serve_warm.stores import Object, Sink, Store


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def kept() -> list[str]:
    """Return the blobs in the node's cache, without locks."""
    return [path.name for path in default_root().iterdir() if path.suffix != ".lock"]


def blobs_read(store: MemoryStore) -> list[str]:
    return [key for key in store.read if key.startswith("blobs/")]


def refusal(store: Store, **options: Any) -> ArtifactRefused:
    with pytest.raises(ArtifactRefused) as caught:
        pull_here(store, **options)
    return caught.value


def blob_digest(store: MemoryStore) -> str:
    (key,) = store.list("blobs/")
    return key.rpartition("/")[2]


# --- the good case -------------------------------------------------------------------------


def test_a_directory_goes_through_a_store_unchanged(tmp_path: Path):
    """Packed, pushed, pulled and unpacked, a cache directory is the same byte for byte."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir(mode=0o700)
    target.mkdir(mode=0o700)
    raw = pack_directory(cache_directory(source))
    store = LocalStore(root=tmp_path / "store")
    statement, manifest = publish(store, raw={"cache": raw, "torch_bytes": container()})

    pulled = pull_here(store, parts=("cache", "torch_bytes"))
    unpack_directory(io.BytesIO(pulled.raw["cache"]), target)

    assert pulled.chosen.manifest == manifest
    assert pulled.raw == {"cache": raw, "torch_bytes": container()}
    assert pack_directory(target) == raw
    assert pulled.chosen.key == statement
    assert pulled.stored_bytes == sum(part.stored_bytes for part in manifest.parts)
    assert [considered.reason for considered in pulled.chosen.trace] == ["fits"]


def test_keys_are_what_the_documentation_says(store: MemoryStore):
    """A blob stands under its digest, a statement under its deployment and variant."""
    statement, manifest = publish(store)

    assert statement == f"statements/Embedder/{fingerprint().key}.dsse.json"
    assert sorted(store.objects) == [f"blobs/sha256/{manifest.parts[0].sha256}", statement]


def test_only_the_parts_that_are_asked_for_are_downloaded(store: MemoryStore):
    """A part that nobody loads costs no time."""
    _, manifest = publish(store, raw={"cache": b"1", "extra": b"2"})

    pulled = pull_here(store, parts=("extra", "extra"))

    assert pulled.raw == {"extra": b"2"}
    assert blob_key(manifest.part("cache")) not in store.read
    assert pulled.stored_bytes == manifest.part("extra").stored_bytes


def test_seconds_are_split_into_the_store_and_the_rest(store: MemoryStore):
    """Both times are present, and neither is negative."""
    publish(store)

    pulled = pull_here(store)

    assert pulled.download_s > 0
    assert pulled.verify_s > 0


ODD_NAMES = (
    *("a", "A", "a/b", "a%2Fb", "a%252Fb", "a b", "a+b", "..", ".", "...", ".a", "%2Ea", "%2E."),
    *("\u00e9", "\u65e5\u672c", "\u65e5" * 40, "x" * 200, "x" * 201, "x" * 300, "y" * 300, "a\\b"),
    *("app#dep", "a:b", "~", "a~b"),
)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_deployment_name_finds_its_own_artifact(tmp_path: Path, name: str):
    """Names become keys that a folder can hold, and only the same name finds them."""
    store = LocalStore(root=tmp_path / "store")
    for number, other in enumerate(ODD_NAMES):
        publish(store, deployment=other, raw={"cache": str(number).encode()})

    pulled = pull_here(store, deployment=name)

    assert pulled.chosen.manifest.deployment == name
    assert pulled.raw["cache"] == str(ODD_NAMES.index(name)).encode()
    assert len(pulled.chosen.trace) == 1


# --- choosing ------------------------------------------------------------------------------


def test_an_empty_store_has_nothing(tmp_path: Path):
    """A store that nobody has pushed to is a miss like any other."""
    with pytest.raises(ArtifactNotFound, match="has no artifact for 'Embedder'") as caught:
        pull_here(LocalStore(root=tmp_path / "absent"))

    assert caught.value.trace == ()


@pytest.mark.parametrize("factor", [*MACHINE, *APP])
def test_each_factor_alone_makes_a_miss_that_names_it(store: MemoryStore, factor: str):
    """Another value of any single factor does not fit, and error and trace say which it was."""
    publish(store)

    with pytest.raises(ArtifactNotFound) as caught:
        pull_here(store, here=fingerprint(**{factor: "another"}))

    (considered,) = caught.value.trace
    assert [mismatch.factor for mismatch in considered.mismatches] == [factor]
    assert (considered.accepted, considered.reason) == (False, "fingerprint")
    assert f"{factor}: artifact" in str(caught.value)
    assert "here another" in str(caught.value)
    assert blobs_read(store) == []


def test_each_of_several_variants_serves_its_own_machine(store: MemoryStore):
    """A store holds several variants.

    Each machine gets the variant that fits, and sees why not the others.
    """
    for isa in ("avx2", "avx512", "amx"):
        publish(store, built_for=fingerprint(cpu_isa=isa), raw={"cache": isa.encode()})

    for isa in ("avx2", "avx512", "amx"):
        pulled = pull_here(store, here=fingerprint(cpu_isa=isa))

        assert pulled.raw["cache"] == isa.encode()
        assert sorted(considered.reason for considered in pulled.chosen.trace) == [
            "fingerprint",
            "fingerprint",
            "fits",
        ]


def test_the_newest_that_fits_wins(store: MemoryStore):
    """Time decides among fitting artifacts, whatever their keys are; the trace has them all."""
    for created in (OLDER, NEWER, NEWEST):
        supersede(store, created=created, raw={"cache": created.encode()})
    publish(store, created="2026-11-21T00:00:00.000000Z", built_for=fingerprint(torch="2.14.0+cpu"))
    pulled = pull_here(store)

    assert pulled.chosen.manifest.created == NEWEST
    assert sorted(
        considered.created for considered in pulled.chosen.trace if considered.accepted
    ) == [
        OLDER,
        NEWER,
        NEWEST,
    ]


def test_of_equally_new_ones_the_key_decides(store: MemoryStore):
    """Every replica chooses the same artifact, even where two are from the same moment."""
    for number in range(12):
        manifest, stored = build(raw={"cache": bytes([number])})
        store.objects.update({blob_key(part): stored[part.name] for part in manifest.parts})
        suffix = f"-g{number}" if number > 1 else "-" + 16 * str(number)
        publish_statement(store, manifest.to_statement(), KEY, name=f"{fingerprint().key}{suffix}")

    # The last generation, which is not the last by name.
    assert pull_here(store).raw == {"cache": bytes([11])}


def test_a_miss_shows_the_nearest_variants(store: MemoryStore):
    """The error lists a few of the nearest variants, and counts the others."""
    for number in range(SHOWN_VARIANTS + 2):
        publish(store, built_for=fingerprint(torch=f"2.{number}", gpu="H200", triton=f"3.{number}"))
    publish(store, built_for=fingerprint(threads="8"))

    with pytest.raises(ArtifactNotFound) as caught:
        pull_here(store)

    lines = caught.value.message.splitlines()
    assert len(caught.value.trace) == SHOWN_VARIANTS + 3
    assert "threads: artifact 8, here 4" in lines[1]
    assert len(lines) == 1 + SHOWN_VARIANTS + 1
    assert lines[-1] == "  and 3 more"


def with_torch_in(folder: str) -> Fingerprint:
    """Return the usual fingerprint, of a torch that is installed there."""
    usual = fingerprint()
    return Fingerprint(machine={**usual.machine, "torch_install": folder}, app=usual.app)


def test_one_folder_by_two_paths_is_called_one(store: MemoryStore, tmp_path: Path):
    """A symlink to an environment is another path for torch: the miss says so, and what to do."""
    built, here = (f"{tmp_path}/{name}/site-packages/torch" for name in ("link", "env"))
    Path(here).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "env")
    publish(store, built_for=with_torch_in(built))

    with pytest.raises(ArtifactNotFound) as caught:
        pull_here(store, here=with_torch_in(here))

    assert f"artifact {built}, here {here} (both paths lead to the same folder)" in str(
        caught.value
    )
    assert f"Start Ray from the path that the artifact was built from: {built}" in caught.value.hint


def test_another_folder_is_not_called_the_same(store: MemoryStore, tmp_path: Path):
    """A folder that does not exist is not reported as the same folder, whatever its path."""
    built, here = str(tmp_path / "gone" / "torch"), str(tmp_path / "env" / "torch")
    publish(store, built_for=with_torch_in(built))

    with pytest.raises(ArtifactNotFound) as caught:
        pull_here(store, here=with_torch_in(here))

    assert "same folder" not in f"{caught.value}{caught.value.hint}"


def test_files_that_are_no_statements_are_passed_over(store: MemoryStore):
    """A README in the store, or another deployment's folder below ours, is not an artifact."""
    publish(store)
    store.objects["statements/Embedder/README.md"] = b"hello"
    store.objects["statements/Embedder/deeper/x.dsse.json"] = b"hello"
    store.objects["statements/Embedder2/x.dsse.json"] = b"hello"

    assert len(pull_here(store).chosen.trace) == 1


def test_a_statement_that_is_pruned_meanwhile_is_passed_over():
    """Pruning a store does not disturb those who are pulling from it."""

    class Pruned(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            return [*super().list(prefix), f"{prefix}pruned.dsse.json"]

    pruned = Pruned()
    publish(pruned)

    assert [considered.reason for considered in pull_here(pruned).chosen.trace] == ["fits", "gone"]


# --- statements that are refused -----------------------------------------------------------


def test_nothing_is_read_beyond_the_statement_when_nobody_is_trusted(store: MemoryStore):
    """Without a trusted key every artifact is refused. The error has the lines to trust a key."""
    publish(store)

    refused = refusal(store, trust=Trust())

    assert refused.reason == "no_trust"
    assert "[[keys]]" in refused.hint
    assert blobs_read(store) == []


def test_an_artifact_of_an_unknown_signer_is_refused(store: MemoryStore):
    """Being in the store is no reason to be loaded."""
    publish(store)

    assert refusal(store, trust=trusting(OTHER)).reason == "untrusted"


def test_a_pinned_artifact_of_an_unknown_signer_is_loaded(store: MemoryStore):
    """An exact digest in the trust file replaces a key; another artifact of that signer is not."""
    _, manifest = publish(store)
    supersede(store, created=NEWEST, raw={"cache": b"not pinned"})
    pin = frozenset({hashlib.sha256(manifest.to_statement()).hexdigest()})

    pulled = pull_here(store, trust=trusting(pinned=pin))

    assert pulled.chosen.manifest == manifest
    assert sorted(considered.reason for considered in pulled.chosen.trace) == ["fits", "untrusted"]


def test_each_flipped_bit_of_a_statement_is_noticed(store: MemoryStore):
    """Wherever a stored statement is damaged, it is refused or still says the same."""
    statement, manifest = publish(store)
    envelope = store.objects[statement]
    reasons = set()

    for place in range(0, len(envelope), 7):
        flipped = bytearray(envelope)
        flipped[place] ^= 1
        store.objects[statement] = bytes(flipped)
        try:
            # A key id is a hint, so that damage in it is none.
            assert pull_here(store).chosen.manifest == manifest
        except ArtifactRefused as refused:
            reasons.add(refused.reason)

    assert reasons <= {"bad_signature", "bad_statement", "untrusted"}
    assert "bad_signature" in reasons


FORGED_ENVELOPES = {
    "truncated": (lambda envelope: envelope[:-10], "bad_statement"),
    "empty": (lambda _: b"", "bad_statement"),
    "payload_type": (lambda e: edited(e, payloadType="application/json"), "bad_statement"),
    "unsigned": (lambda e: edited(e, signatures=[]), "untrusted"),
    "payload_swapped": (
        lambda e: edited(e, payload=json.loads(sign(b"{}", OTHER))["payload"]),
        "bad_signature",
    ),
    "resigned_by_an_enemy": (lambda _: sign(build()[0].to_statement(), OTHER), "untrusted"),
    "oversize": (lambda e: e.ljust(MAX_ENVELOPE_BYTES + 1), "too_large"),
}


@pytest.mark.parametrize("name", FORGED_ENVELOPES)
def test_a_forged_envelope_is_refused(store: MemoryStore, name: str):
    """Each way to forge a statement has its reason, and no blob is fetched for it."""
    forge, reason = FORGED_ENVELOPES[name]
    statement, _ = publish(store)
    store.objects[statement] = forge(store.objects[statement])

    refused = refusal(store)

    assert refused.reason == reason
    assert refused.statement == statement
    assert blobs_read(store) == []


def test_a_signed_statement_of_a_newer_format_is_refused(store: MemoryStore):
    """If the builder was upgraded first, the error names both versions."""
    payload = json.loads(build()[0].to_statement())
    payload["predicateType"] = "https://serve-warm.dev/artifact/v2"
    payload["predicate"]["format"] = 2
    publish_statement(store, json.dumps(payload).encode(), KEY, name="newer")

    refused = refusal(store)

    assert refused.reason == "newer_format"
    assert "format 2" in refused.message
    assert "format 1" in refused.message


def test_a_signed_statement_of_something_else_is_refused(store: MemoryStore):
    """The same key may sign other things; they are not artifacts by that."""
    publish_statement(store, b'{"_type":"https://in-toto.io/Statement/v1"}', KEY, name="other")

    assert refusal(store).reason == "bad_statement"


def test_a_statement_moved_to_another_deployment_is_refused(store: MemoryStore):
    """A statement signed for one deployment is not loaded by another deployment."""
    manifest, _ = build(deployment="Other")
    publish_statement(store, manifest.to_statement(), KEY, name="moved")

    refused = refusal(store)

    assert refused.reason == "bad_statement"
    assert "'Other'" in refused.message


def test_a_refusal_is_seen_when_nothing_fits(store: MemoryStore):
    """If one variant is refused and the others do not fit, the error is the refusal.

    The trace has both.
    """
    publish(store, built_for=fingerprint(torch="2.14.0+cpu"))
    forged = publish_statement(store, build()[0].to_statement(), OTHER, name="zzz")

    refused = refusal(store)

    assert (refused.reason, refused.statement) == ("untrusted", forged)
    assert sorted(considered.reason for considered in refused.trace) == ["fingerprint", "untrusted"]


def test_a_refused_statement_does_not_stop_a_good_one(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
):
    """Junk in a store cannot keep replicas from their artifact, but it is logged and traced."""
    good, _ = publish(store)
    publish_statement(store, build(created=NEWEST)[0].to_statement(), OTHER, name="000")

    pulled = pull_here(store)

    assert pulled.chosen.key == good
    assert [considered.reason for considered in pulled.chosen.trace] == ["untrusted", "fits"]
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "reason=untrusted" in warnings[0]


def test_what_an_unbelieved_statement_says_is_not_repeated(store: MemoryStore):
    """Dates and factors of an unknown writer do not get into the trace."""
    publish_statement(store, build(created=NEWEST)[0].to_statement(), OTHER, name="forged")

    (considered,) = refusal(store).trace

    assert (considered.created, considered.mismatches) == ("", ())


# --- blobs that are refused ----------------------------------------------------------------


@pytest.mark.parametrize("name", FORGED_BLOBS)
def test_a_forged_blob_is_refused(store: MemoryStore, name: str):
    """A blob that differs from the signed blob is never unpacked."""
    forge, reason = FORGED_BLOBS[name]
    statement, manifest = publish(store, raw={"cache": bytes(range(256)) * 9})
    key = blob_key(manifest.parts[0])
    store.objects[key] = forge(store.objects[key])

    refused = refusal(store)

    assert (refused.reason, refused.statement) == (reason, statement)
    assert [considered.reason for considered in refused.trace] == ["fits"]


def test_a_missing_blob_is_refused(store: MemoryStore):
    """A statement whose blob is gone names the part."""
    _, manifest = publish(store)
    del store.objects[blob_key(manifest.parts[0])]

    refused = refusal(store)

    assert refused.reason == "missing_part"
    assert "part cache" in refused.message


def test_a_part_that_the_artifact_lacks_is_refused(store: MemoryStore):
    """A request for a part that was not built is an error, not a start without this part."""
    publish(store)

    assert refusal(store, parts=("cache", "torch_bytes")).reason == "missing_part"


def test_parts_of_two_artifacts_cannot_be_mixed(store: MemoryStore):
    """Statements that are both valid do not make a third one of their parts."""
    _, one = publish(store, raw={"cache": b"one", "extra": b"1"})
    _, two = supersede(store, raw={"cache": b"two", "extra": b"2"}, created=NEWEST)
    mixed = replace(one, parts=(one.part("cache"), two.part("extra")), created=NEWEST)
    envelopes = [store.objects[key] for key in store.list("statements/")]
    store.objects = {key: data for key, data in store.objects.items() if "blobs" in key}
    payload = json.loads(sign(mixed.to_statement(), OTHER))["payload"]
    for number, envelope in enumerate(envelopes):
        store.create(f"statements/Embedder/{number}.dsse.json", edited(envelope, payload=payload))

    assert refusal(store).reason == "bad_signature"


def test_a_blob_under_the_key_of_another_is_refused(store: MemoryStore):
    """Exchanging two valid blobs of a store gives neither artifact the other's parts."""
    _, one = publish(store, raw={"cache": b"one"})
    _, two = supersede(store, raw={"cache": b"two"}, created=NEWEST)
    keys = [blob_key(manifest.parts[0]) for manifest in (one, two)]
    blobs = [store.objects[key] for key in keys]
    store.objects.update(zip(keys, reversed(blobs), strict=True))

    assert refusal(store).reason == "digest_mismatch"


def test_a_refused_artifact_is_not_replaced_by_an_older_one(store: MemoryStore):
    """Damage to the newest artifact is seen, although an older one would load."""
    publish(store, created=OLDER, raw={"cache": b"older"})
    assert pull_here(store).raw["cache"] == b"older"
    statement, newest = supersede(store, created=NEWEST, raw={"cache": b"newest"})
    key = blob_key(newest.parts[0])
    store.objects[key] = flip(store.objects[key])

    refused = refusal(store)

    assert (refused.reason, refused.statement) == ("digest_mismatch", statement)
    assert [considered.accepted for considered in refused.trace] == [True, True]


@pytest.mark.parametrize("limit", ["max_bytes", "max_raw_bytes"])
def test_a_part_over_the_limit_is_not_downloaded(store: MemoryStore, limit: str):
    """The signed sizes are compared with the limits before the blob is asked for."""
    _, manifest = publish(store, raw={"cache": b"kernels"})
    part = manifest.parts[0]
    size = part.stored_bytes if limit == "max_bytes" else part.raw_bytes
    assert pull_here(store, **{limit: size}).raw
    store.read.clear()
    shutil.rmtree(default_root())

    refused = refusal(store, **{limit: size - 1})

    assert refused.reason == "too_large"
    assert blobs_read(store) == []


def test_a_blob_of_the_wrong_size_is_not_downloaded(store: MemoryStore):
    """A store that holds gigabytes under the key cannot make a replica fetch them."""
    _, manifest = publish(store)
    key = blob_key(manifest.parts[0])
    store.objects[key] += bytes(1000)

    assert refusal(store).reason == "size_mismatch"
    assert key not in store.read


@pytest.mark.parametrize(
    "change", [lambda data: data + b"more", lambda data: data[:-1]], ids=["grown", "cut"]
)
def test_a_blob_that_changes_after_its_size_was_asked_is_not_taken(
    change: Callable[[bytes], bytes],
):
    """The size limit also applies to the download, not only to the announced size."""

    class Changing(MemoryStore):
        def download(self, found: Object, sink: Sink) -> None:
            sink(0, change(self.objects[found.key]))

    changing = Changing()
    publish(changing)

    with pytest.raises(StoreError, match="bytes"):
        pull_here(changing)
    assert kept() == []


SIGNED_BUT_WRONG = {
    "raw_digest": ({"raw_sha256": "0" * 64}, "digest_mismatch"),
    "raw_size_small": ({"raw_bytes": 3}, "size_mismatch"),
    "raw_size_large": ({"raw_bytes": 30}, "size_mismatch"),
}


@pytest.mark.parametrize("name", SIGNED_BUT_WRONG)
def test_what_a_part_unpacks_to_is_checked_too(store: MemoryStore, name: str):
    """A statement signed over a wrong description is refused at the last step."""
    changes, reason = SIGNED_BUT_WRONG[name]
    manifest, stored = build()
    wrong = replace(manifest, parts=(replace(manifest.parts[0], **changes),))
    push(store, wrong, stored, [KEY])

    assert refusal(store).reason == reason


def test_a_signed_container_that_torch_would_not_end_on_is_refused(store: MemoryStore):
    """The bounds of torch's bytes are checked even under a good signature."""
    endless = container(("inductor", []), count=1 << 60)
    publish(store, raw={"torch_bytes": endless})

    assert refusal(store, parts=("torch_bytes",)).reason == "bad_archive"


def test_a_store_that_cannot_be_read_is_no_miss():
    """An outage is not an empty store, because a retry can help."""

    class Broken(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            raise StoreError(f"{self.uri}: connection refused")

    with pytest.raises(StoreError, match="connection refused"):
        pull_here(Broken())


# --- age, deny-list, newer formats ---------------------------------------------------------


def of_format_2(manifest: Manifest) -> bytes:
    payload = json.loads(manifest.to_statement())
    payload["predicateType"] = "https://serve-warm.dev/artifact/v2"
    payload["predicate"]["format"] = 2
    return json.dumps(payload).encode()


def test_each_variant_has_its_reason(store: MemoryStore):
    """Expired, denied, of a newer format, for others, of strangers: one good one is still taken."""
    good, _ = publish(store, created=utc_now())
    _, denied = supersede(store, created=utc_now(), raw={"cache": b"denied"})
    publish(store, created=OLDER.replace("2026", "2020"), built_for=fingerprint(threads="8"))
    here = {
        "expired": build(created=OLDER.replace("2026", "2020"))[0].to_statement(),
        "newer": of_format_2(build()[0]),
    }
    for name, payload in here.items():
        publish_statement(store, payload, KEY, name=name)
    publish_statement(store, build()[0].to_statement(), OTHER, name="foreign")
    trust = trusting(KEY, max_age_s=86400.0, denied=frozenset({denied.parts[0].sha256}))

    pulled = pull_here(store, trust=trust)

    assert pulled.chosen.key == good
    reasons = [item.reason for item in pulled.chosen.trace]
    assert sorted(reasons) == [
        *("denied", "expired", "fingerprint", "fits", "newer_format", "untrusted"),
    ]
    assert all(
        item.message for item in pulled.chosen.trace if not (item.accepted or item.mismatches)
    )


def test_an_expired_artifact_for_another_machine_is_a_miss(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
):
    """A variant for another machine raises no alarm, and fails no start that fails on refusals."""
    publish(store, created=OLDER.replace("2026", "2020"), built_for=fingerprint(threads="8"))

    with pytest.raises(ArtifactNotFound):
        pull_here(store, trust=trusting(KEY, max_age_s=86400.0))

    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_age_s": 60.0}, "expired"),
        ({"denied": "statement"}, "denied"),
        ({"denied": "part"}, "denied"),
    ],
    ids=["age", "statement", "part"],
)
def test_what_is_expired_or_denied_is_refused(
    store: MemoryStore, limits: dict[str, Any], reason: str
):
    """A good signature does not help against either, and no blob is asked for."""
    _, manifest = publish(store, created=OLDER.replace("2026", "2020"))
    digests = {
        "statement": hashlib.sha256(manifest.to_statement()).hexdigest(),
        "part": manifest.parts[0].sha256,
    }
    if "denied" in limits:
        limits = {"denied": frozenset({digests[limits["denied"]]})}

    refused = refusal(store, trust=trusting(KEY, **limits))

    assert refused.reason == reason
    assert blobs_read(store) == []


# --- the node cache ------------------------------------------------------------------------


def test_a_second_pull_on_a_node_downloads_nothing(store: MemoryStore):
    """The blob is kept, hashed again, and counted as not downloaded."""
    publish(store)

    first, second = pull_here(store), pull_here(store)

    assert first.downloaded_bytes == first.stored_bytes > 0
    assert (second.downloaded_bytes, second.stored_bytes) == (0, first.stored_bytes)
    assert second.raw == first.raw
    assert len(blobs_read(store)) == 1


@pytest.mark.parametrize("damage", [b"", b"damaged", "flipped"])
def test_a_damaged_blob_on_the_node_is_replaced(store: MemoryStore, damage: Any):
    """A damaged blob on the node is not trusted, but does not fail the pull."""
    publish(store)
    first = pull_here(store)
    blob = default_root() / blob_digest(store)
    blob.write_bytes(flip(blob.read_bytes()) if damage == "flipped" else damage)

    second = pull_here(store)

    assert second.raw == first.raw
    assert second.downloaded_bytes == first.stored_bytes
    assert blob.read_bytes() == store.objects[f"blobs/sha256/{blob.name}"]


@pytest.mark.parametrize("name", FORGED_BLOBS)
def test_a_forged_blob_never_enters_the_node_cache(store: MemoryStore, name: str):
    """After a refusal there is nothing on the node that a later start could take."""
    forge, reason = FORGED_BLOBS[name]
    publish(store, raw={"cache": bytes(range(256)) * 9})
    key = f"blobs/sha256/{blob_digest(store)}"
    good, store.objects[key] = store.objects[key], forge(store.objects[key])

    assert refusal(store).reason == reason

    assert kept() == []
    store.objects[key] = good
    assert pull_here(store).raw == {"cache": bytes(range(256)) * 9}


def test_an_artifact_that_is_pruned_while_it_is_pulled_is_worth_another_try(store: MemoryStore):
    """The statement was read and is gone with its blob: an error that a start tries again."""

    class Pruning(MemoryStore):
        def head(self, key: str) -> Object:
            if key.startswith("blobs/"):
                self.objects.clear()
            return super().head(key)

    pruning = Pruning()
    publish(store)
    pruning.objects = dict(store.objects)

    with pytest.raises(StoreError, match="was pruned while it was being pulled"):
        pull_here(pruning)


def test_no_room_to_unpack_is_an_error_of_the_store(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
):
    """The error names the full or missing folder for temporary files, and no file stays open."""
    publish(store)
    with NodeCache.open(default_root()) as cache:
        monkeypatch.setattr(tempfile, "tempdir", "/nowhere")

        with pytest.raises(StoreError, match="cannot be written to /nowhere"):
            pull(
                store,
                deployment=DEPLOYMENT,
                fingerprint=fingerprint(),
                trust=trusting(KEY),
                cache=cache,
            )


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.parametrize("name", FORGED_BLOBS)
def test_nothing_stays_open_when_a_part_is_refused(store: MemoryStore, name: str):
    """Neither the accepted parts nor the refused part stay open."""
    forge, _ = FORGED_BLOBS[name]
    _, manifest = publish(store, raw={"cache": b"good", "extra": bytes(range(256)) * 9})
    refusal(store, deployment=DEPLOYMENT, trust=trusting(OTHER))
    key = blob_key(manifest.part("extra"))
    store.objects[key] = forge(store.objects[key])
    before = open_files()

    refusal(store, parts=("cache", "extra"))

    assert open_files() == before


def test_statements_are_held_a_few_at_a_time():
    """A writer to a store cannot fill the memory of its readers with statements."""

    class Counted(bytes):
        held, most = 0, 0

        def __new__(cls, data: bytes) -> Counted:  # noqa: PYI034 - Self is not in 3.10
            with lock:
                cls.held += 1
                cls.most = max(cls.most, cls.held)
            return super().__new__(cls, data)

        def __del__(self) -> None:
            with lock:
                Counted.held -= 1

    class Large(MemoryStore):
        def get(self, key: str, *, max_bytes: int) -> bytes:
            return Counted(super().get(key, max_bytes=max_bytes))

    lock = threading.RLock()
    large = Large()
    good, _ = publish(large)
    for number in range(5 * READERS):
        large.objects[f"statements/Embedder/{number:03}.dsse.json"] = bytes(1000)

    pulled = pull_here(large)

    assert (pulled.chosen.key, len(pulled.chosen.trace)) == (good, 5 * READERS + 1)
    assert Counted.most <= 2 * READERS


SPARING = """
import os, resource, sys, threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from artifacts import DEPLOYMENT, fingerprint
from serve_warm.artifact.node_cache import NodeCache, default_root
from serve_warm.stores.local import LocalStore
from serve_warm.artifact.pull import pull
from serve_warm.trust.files import load_trust

PIECE = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Scrambled(LocalStore):
    # From four threads at once, the end of the object first.
    def download(self, found, sink):
        offsets = [*reversed(range(0, found.size_bytes, PIECE))]
        descriptor = os.open(self.root / found.key, os.O_RDONLY)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda at: sink(at, os.pread(descriptor, PIECE, at)), offsets))
        os.close(descriptor)


def resident(name):
    (line,) = [line for line in open("/proc/self/status") if line.startswith(name)]
    return int(line.split()[1]) << 10


root, trust = map(Path, sys.argv[1:])
store, trust = Scrambled(root=root), load_trust([trust])
idle = resident("VmRSS")
with NodeCache.open(default_root()) as cache, pull(
    store, deployment=DEPLOYMENT, fingerprint=fingerprint(), trust=trust, cache=cache
) as pulled:
    print(pulled.downloaded_bytes, resident("VmHWM") - idle)
"""


@pytest.mark.long
@pytest.mark.slow
def test_memory_does_not_grow_with_a_part(tmp_path: Path):
    """200 MiB that come in any order, from several threads, stream to the disk and are hashed."""
    store = LocalStore(root=tmp_path / "store")
    publish(store, raw={"cache": os.urandom(200 << 20)})
    trust = tmp_path / "trust.toml"
    lines = trust_lines(KEY.public_key(), name="test")
    trust.write_text(f"max_age_days = 36500\n{lines}")
    trust.chmod(0o600)

    done = subprocess.run(
        [sys.executable, "-c", SPARING, str(store.root), str(trust)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TMPDIR": tempfile.gettempdir(),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )

    downloaded, peak = map(int, done.stdout.split())
    assert downloaded >= 200 << 20
    assert peak < 160 << 20


# --- explaining ----------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_is_denied_is_explained_as_denied(store: MemoryStore, elsewhere: bool):
    """For whoever asks, a denied variant does not fit, whatever machine is asked for."""
    _, manifest = publish(store)
    trust = trusting(KEY, denied=frozenset({manifest.parts[0].sha256}))
    here = fingerprint(gpu="H200") if elsewhere else fingerprint()

    [considered] = explain(store, fingerprint=here, trust=trust)

    assert (considered.accepted, considered.reason) == (False, "denied")


def test_a_miss_for_want_of_a_setting_names_the_setting(store: MemoryStore):
    """A replica without `cpu: portable` misses an artifact for every CPU."""
    portable = Fingerprint(machine=MACHINE, app={**APP, "cpu": "portable"})
    publish(store, built_for=portable)

    with pytest.raises(ArtifactNotFound) as caught:
        pull_here(store)

    assert "cpu: portable" in caught.value.hint


def test_every_statement_is_explained_in_the_order_of_use(store: MemoryStore):
    """The chosen statement comes first, then other usable statements, then the nearest misses."""
    for created in (OLDER, NEWER, NEWEST):
        supersede(store, created=created, raw={"cache": created.encode()})
    sign_again(store, [OTHER], trust=trusting(KEY))
    publish(store, built_for=fingerprint(threads="8", gpu="H200"))
    publish(store, built_for=fingerprint(threads="8"))
    publish(store, deployment="Other", built_for=fingerprint(threads="8", gpu="x", torch="y"))
    publish_statement(store, b"{}", new_key(), name="junk")
    store.read.clear()

    found = explain(store, fingerprint=fingerprint(), trust=trusting(KEY))

    assert found[0].statement == pull_here(store).chosen.key
    assert [item.created for item in found[:6]] == 2 * [NEWEST] + 2 * [NEWER] + 2 * [OLDER]
    assert [len(item.mismatches) for item in found] == [0, 0, 0, 0, 0, 0, 1, 2, 3, 0]
    assert found[-1].reason == "untrusted"
    assert len(blobs_read(store)) == 1, "of the pull"


def test_one_deployment_can_be_explained(store: MemoryStore):
    """Others do not count, and none at all is an empty answer."""
    key, _ = publish(store, deployment="Other")
    publish(store)

    (item,) = explain(store, fingerprint=fingerprint(), trust=trusting(KEY), deployment="Other")

    assert (item.statement, item.accepted) == (key, True)
    assert explain(store, fingerprint=fingerprint(), trust=trusting(KEY), deployment="x") == []


# --- what a store does not give ------------------------------------------------------------


class Partly(MemoryStore):
    """A store that does not give some of its statements."""

    def get(self, key: str, *, max_bytes: int) -> bytes:
        if key in self.withheld:
            raise StoreDenied(f"{self.uri}: no access to {key!r}")
        return super().get(key, max_bytes=max_bytes)

    withheld: tuple[str, ...] = ()


def test_one_statement_that_cannot_be_read_does_not_hinder_another():
    """A statement under a key of its own is skipped with its reason, and the good one is taken."""
    store = Partly()
    good, _ = publish(store)
    store.objects["statements/Embedder/locked.dsse.json"] = b"?"
    store.withheld = ("statements/Embedder/locked.dsse.json",)

    pulled = pull_here(store)

    assert pulled.chosen.key == good
    assert [c.reason for c in pulled.chosen.trace] == ["fits", "unreadable"]


@pytest.mark.parametrize(
    ("built_on", "said"),
    [
        (
            "NVIDIA A100",
            "the artifact was built on NVIDIA A100, not on NVIDIA H200; build an artifact on",
        ),
        (
            "none",
            "the artifact was built on a machine without a GPU, not on NVIDIA H200; build an",
        ),
    ],
)
def test_an_artifact_of_another_gpu_says_which(store: MemoryStore, built_on: str, said: str):
    """If only artifacts for other GPUs exist, one sentence names both GPUs and the fix."""
    publish(store, built_for=fingerprint(gpu=built_on))

    with pytest.raises(ArtifactNotFound) as caught:
        pull_here(store, here=fingerprint(gpu="NVIDIA H200"))

    assert caught.value.hint.startswith(said)


def test_what_cannot_be_read_might_fit():
    """When nothing else fits it is an error of the store, which a start tries again, no miss."""
    store = Partly()
    publish(store, built_for=fingerprint(gpu="H200"))
    locked, _ = publish(store)
    store.withheld = (locked,)

    with pytest.raises(StoreDenied, match="no access"):
        pull_here(store)


def test_a_flood_of_junk_is_a_few_lines(store: MemoryStore, caplog: pytest.LogCaptureFixture):
    """Anyone who can write to a store still cannot fill the log of a start."""
    publish(store)
    for number in range(100):
        store.objects[f"statements/Embedder/{number}.dsse.json"] = b"junk"

    caplog.clear()
    with caplog.at_level("WARNING"):
        pulled = pull_here(store)

    assert len(pulled.chosen.trace) == 101
    assert len(caplog.records) == SHOWN_VARIANTS + 1
    assert "95 more" in caplog.text


@pytest.mark.parametrize("when", ["before", "in the part"])
def test_a_pull_that_is_given_up_ends(when: str):
    """Nobody waits for it any more: it asks the store for nothing further, and keeps nothing."""
    given_up = threading.Event()

    class Watched(MemoryStore):
        def download(self, found: Object, sink: Sink) -> None:
            given_up.set()
            super().download(found, sink)

    store = Watched()
    publish(store)
    store.read.clear()
    if when == "before":
        given_up.set()

    with pytest.raises(StoreError, match="was cancelled"):
        pull_here(store, given_up=given_up)

    assert kept() == []
    assert len(store.read) == (0 if when == "before" else 2)


def test_a_store_is_listed_once_and_each_statement_is_read_once(store: MemoryStore):
    """To pull, to explain or to sign: every answer of a store may cost a round trip."""
    for deployment in (DEPLOYMENT, "Other"):
        publish(store, deployment=deployment)
    lists: list[str] = []

    class Counted(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            lists.append(prefix)
            return super().list(prefix)

    def cost(work: Callable[[Store], object]) -> tuple[int, int]:
        lists.clear()
        counted = Counted(objects=dict(store.objects))
        work(counted)
        return len(lists), sum(key.startswith("statements/") for key in counted.read)

    assert cost(lambda s: explain(s, fingerprint=fingerprint(), trust=trusting(KEY))) == (1, 2)
    assert cost(lambda s: sign_all(s, [OTHER], trust=trusting(KEY))) == (1, 2)
    assert cost(pull_here) == (1, 1)


def test_all_is_fetched_before_anything_is_unpacked(store: MemoryStore):
    """The callback between fetching and unpacking knows that the store is no longer needed."""
    _, manifest = publish(store, raw={"cache": b"kernels", "torch_bytes": b"no such container"})
    read: list[list[str]] = []

    refused = refusal(
        store,
        parts=("torch_bytes", "cache"),
        fetched=lambda: read.append(sorted(blobs_read(store))),
    )

    assert refused.reason == "bad_archive"
    assert read == [sorted(map(blob_key, manifest.parts))]


# --- in steps ------------------------------------------------------------------------------


def taken_early(
    store: Store, *, here: Fingerprint | None = None, unknown: tuple[str, ...] = ()
) -> tuple[Pulled | None, Any]:
    """Make a pull before the app is known. Return it, closed, with the found statements."""
    found = find(store, deployment=DEPLOYMENT, trust=trusting(KEY))
    chosen = expect(found, fingerprint=here or fingerprint(), trust=trusting(KEY), unknown=unknown)
    if isinstance(chosen, str):  # why nothing fits
        return None, found
    with (
        NodeCache.open(default_root()) as cache,
        take(store, found, chosen, cache=cache, parts=("cache",)) as pulled,
    ):
        return pulled, found


def test_steps_give_what_a_pull_gives(store: MemoryStore):
    """Statement, reasons and trace of all variants are the same, and nothing is read twice."""
    publish(store, built_for=fingerprint(gpu="H200"))
    publish(store)
    store.objects["statements/Embedder/junk.dsse.json"] = b"junk"
    store.read.clear()

    early, found = taken_early(store)
    now = confirm(early, found, fingerprint=fingerprint(), trust=trusting(KEY))

    assert len(store.read) == 4
    whole = pull_here(store)
    assert now.chosen == whole.chosen


def test_a_factor_that_is_unknown_yet_is_passed_over_and_no_other(store: MemoryStore):
    """The early choice uses only the machine's factors, and is not final."""
    arguments, _ = publish(store, built_for=fingerprint(compile_arguments="dynamic=True"))
    publish(store, built_for=fingerprint(gpu="H200", compile_arguments="dynamic=True"))

    early, found = taken_early(store, unknown=("compile_arguments",))

    assert early.chosen.key == arguments
    assert confirm(early, found, fingerprint=fingerprint(), trust=trusting(KEY)) is None
    as_built = fingerprint(compile_arguments="dynamic=True")
    assert confirm(early, found, fingerprint=as_built, trust=trusting(KEY)) is not None
    assert taken_early(store)[0] is None


@pytest.mark.parametrize("why", ["denied", "age"])
def test_what_was_taken_is_not_confirmed_when_it_is_believed_no_more(store: MemoryStore, why: str):
    """The deny-list and the age are looked at again."""
    _, manifest = publish(store)
    early, found = taken_early(store)
    later = {
        "denied": trusting(KEY, denied=frozenset({manifest.parts[0].sha256})),
        "age": trusting(KEY, max_age_s=1e-6),
    }

    assert confirm(early, found, fingerprint=fingerprint(), trust=later[why]) is None


def test_looking_early_warns_of_nothing(store: MemoryStore, caplog: pytest.LogCaptureFixture):
    """The pull that follows does, once."""
    publish(store)
    store.objects["statements/Embedder/junk.dsse.json"] = b"junk"

    early, found = taken_early(store)

    assert caplog.records == [r for r in caplog.records if r.levelname == "INFO"]
    confirm(early, found, fingerprint=fingerprint(gpu="H200"), trust=trusting(KEY))
    assert "refused statement" not in caplog.text
    confirm(early, found, fingerprint=fingerprint(), trust=trusting(KEY))
    assert caplog.text.count("refused statement") == 1


def test_statements_come_in_the_order_of_their_keys(store: MemoryStore):
    """Statements are read concurrently, but each result belongs to its key."""
    keys = [publish(store, built_for=fingerprint(gpu=f"GPU {n}"))[0] for n in range(READERS + 2)]

    found = find(store, deployment=DEPLOYMENT, trust=trusting(KEY))

    assert [statement.key for statement in found.statements] == sorted(keys)
    read = [(s.key, s.readable.manifest.fingerprint.key) for s in found.statements]
    assert all(key.endswith(f"/{variant}.dsse.json") for key, variant in read)
