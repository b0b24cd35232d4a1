# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Publishing and pulling: what is chosen, what is refused, and what is said about the rest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from artifacts import (
    APP,
    DEPLOYMENT,
    MACHINE,
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
from serve_warm.artifact import pack_directory, unpack_directory, zstd
from serve_warm.errors import (
    ArtifactNotFound,
    ArtifactRefused,
    ConfigError,
    ObjectExists,
    ObjectNotFound,
    ObjectTooLarge,
    StoreError,
)
from serve_warm.stores import check_key
from serve_warm.stores.local import LocalStore
from serve_warm.transfer import SHOWN_VARIANTS, Pulled, describe, pull, push
from serve_warm.trust import MAX_ENVELOPE_BYTES, Trust, sign

if TYPE_CHECKING:
    from pathlib import Path

    from serve_warm.artifact import Manifest
    from serve_warm.fingerprint import Fingerprint
    from serve_warm.stores import Store

KEY = new_key()
OTHER = new_key()
OLDER, NEWER, NEWEST = (f"2026-11-20T10:00:0{second}.000000Z" for second in range(3))


@dataclass
class MemoryStore:
    """A store in a dictionary that can be told to change what it gives, and keeps a log."""

    objects: dict[str, bytes] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    uri: str = "memory:"

    def list(self, prefix: str) -> list[str]:
        return sorted(key for key in self.objects if key.startswith(prefix))

    def size(self, key: str) -> int:
        if key not in self.objects:
            raise ObjectNotFound(key, store=self.uri)
        return len(self.objects[key])

    def get(self, key: str, *, max_bytes: int) -> bytes:
        self.read.append(key)
        self.limits[key] = max_bytes
        if self.size(key) > max_bytes:
            raise ObjectTooLarge(key, store=self.uri, max_bytes=max_bytes)
        return self.objects[key]

    def create(self, key: str, data: bytes) -> None:
        check_key(key)
        self.written.append(key)
        if self.objects.setdefault(key, data) != data:
            raise ObjectExists(key, store=self.uri)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def publish(store: Store, **fields: Any) -> tuple[str, Manifest]:
    """Push what `artifacts.build` makes of the fields; returns statement key and manifest."""
    manifest, stored = build(**fields)
    return push(store, manifest, stored, [KEY]), manifest


def pull_here(
    store: Store, *, here: Fingerprint | None = None, trust: Trust | None = None, **options: Any
) -> Pulled:
    return pull(
        store,
        deployment=DEPLOYMENT,
        fingerprint=here or fingerprint(),
        trust=trust or trusting(KEY),
        **options,
    )


def refusal(store: Store, **options: Any) -> ArtifactRefused:
    with pytest.raises(ArtifactRefused) as caught:
        pull_here(store, **options)
    return caught.value


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
    unpack_directory(pulled.raw["cache"], target)

    assert pulled.manifest == manifest
    assert pulled.raw == {"cache": raw, "torch_bytes": container()}
    assert pack_directory(target) == raw
    assert pulled.statement_key == statement
    assert pulled.stored_bytes == sum(part.stored_bytes for part in manifest.parts)
    assert [considered.reason for considered in pulled.trace] == ["fits"]


def test_keys_are_derived_from_contents(store: MemoryStore):
    """The layout of a store is what the documentation says it is."""
    statement, manifest = publish(store)

    digest = hashlib.sha256(manifest.to_statement()).hexdigest()[:16]
    assert statement == f"statements/Embedder/{fingerprint().key}-{digest}.dsse.json"
    assert sorted(store.objects) == [f"blobs/sha256/{manifest.parts[0].sha256}", statement]


def test_only_the_parts_that_are_asked_for_are_downloaded(store: MemoryStore):
    """A part that nobody loads costs no time."""
    _, manifest = publish(store, raw={"cache": b"1", "extra": b"2"})

    pulled = pull_here(store, parts=("extra", "extra"))

    assert pulled.raw == {"extra": b"2"}
    assert blob_key(manifest.part("cache")) not in store.read
    assert pulled.stored_bytes == manifest.part("extra").stored_bytes


def test_seconds_are_split_into_the_store_and_the_rest(store: MemoryStore):
    """Both shares are there and none is negative."""
    publish(store)

    pulled = pull_here(store)

    assert pulled.download_s > 0
    assert pulled.verify_s > 0


# --- push ----------------------------------------------------------------------------------


def test_the_statement_is_written_last(store: MemoryStore):
    """Whoever sees a statement finds all blobs that it names."""
    statement, _ = publish(store, raw={"cache": b"1", "extra": b"2"})

    assert store.written[-1] == statement
    assert [key.startswith("blobs/") for key in store.written] == [True, True, False]


def test_a_push_that_broke_off_shows_nothing_and_can_be_repeated(store: MemoryStore):
    """With the blobs there and the statement not, there is no artifact; then there is."""
    manifest, stored = build()
    statement = push(store, manifest, stored, [KEY])
    del store.objects[statement]

    with pytest.raises(ArtifactNotFound):
        pull_here(store)
    push(store, manifest, stored, [KEY])
    assert pull_here(store).statement_key == statement


def test_pushing_twice_is_pushing_once(store: MemoryStore):
    """The same artifact under the same keys is no conflict."""
    first, _ = publish(store)
    before = dict(store.objects)

    second, _ = publish(store)

    assert (second, store.objects) == (first, before)


def test_parts_that_are_not_those_of_the_manifest_are_not_pushed(store: MemoryStore):
    """A mistake of the builder is found before anything is written."""
    manifest, stored = build(raw={"cache": b"1", "extra": b"2"})
    wrong = {
        "missing_part": {"cache": stored["cache"]},
        "digest_mismatch": {"cache": stored["extra"], "extra": stored["cache"]},
        "truncated": {**stored, "cache": b""},
    }

    reasons = []
    for parts in wrong.values():
        with pytest.raises(ArtifactRefused) as caught:
            push(store, manifest, parts, [KEY])
        reasons.append(caught.value.reason)

    assert reasons == list(wrong)
    assert store.objects == {}


def test_a_push_without_a_key_writes_nothing(store: MemoryStore):
    """An unsigned artifact would be refused by every reader."""
    manifest, stored = build()

    with pytest.raises(ConfigError):
        push(store, manifest, stored, [])

    assert store.objects == {}


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

    pulled = pull(store, deployment=name, fingerprint=fingerprint(), trust=trusting(KEY))

    assert pulled.manifest.deployment == name
    assert pulled.raw["cache"] == str(ODD_NAMES.index(name)).encode()
    assert len(pulled.trace) == 1


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
    assert not [key for key in store.read if key.startswith("blobs/")]


def test_each_of_several_variants_serves_its_own_machine(store: MemoryStore):
    """Variants stand side by side; everybody gets the one that fits and sees why not the others."""
    for isa in ("avx2", "avx512", "amx"):
        publish(store, built_for=fingerprint(cpu_isa=isa), raw={"cache": isa.encode()})

    for isa in ("avx2", "avx512", "amx"):
        pulled = pull_here(store, here=fingerprint(cpu_isa=isa))

        assert pulled.raw["cache"] == isa.encode()
        assert sorted(considered.reason for considered in pulled.trace) == [
            "fingerprint",
            "fingerprint",
            "fits",
        ]


def test_the_newest_that_fits_wins(store: MemoryStore):
    """Time decides among fitting artifacts, in whatever order they came; the trace has them all."""
    for created in (NEWER, NEWEST, OLDER):
        publish(store, created=created, raw={"cache": created.encode()})
    publish(store, created="2026-11-21T00:00:00.000000Z", built_for=fingerprint(torch="2.14.0+cpu"))

    pulled = pull_here(store)

    assert pulled.manifest.created == NEWEST
    assert sorted(considered.created for considered in pulled.trace if considered.accepted) == [
        OLDER,
        NEWER,
        NEWEST,
    ]


def test_of_equally_new_ones_the_key_decides(store: MemoryStore):
    """Every replica chooses the same artifact, even where two are from the same moment."""
    keys = [publish(store, raw={"cache": bytes([number])})[0] for number in range(5)]

    assert pull_here(store).statement_key == max(keys)


def test_a_miss_shows_the_nearest_variants(store: MemoryStore):
    """Of many variants the error spells out a few, those that differ least, and counts the rest."""
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


def test_files_that_are_no_statements_are_passed_over(store: MemoryStore):
    """A README in the store, or another deployment's folder below ours, is not an artifact."""
    publish(store)
    store.objects["statements/Embedder/README.md"] = b"hello"
    store.objects["statements/Embedder/deeper/x.dsse.json"] = b"hello"
    store.objects["statements/Embedder2/x.dsse.json"] = b"hello"

    assert len(pull_here(store).trace) == 1


def test_a_statement_that_is_pruned_meanwhile_is_passed_over():
    """Pruning a store does not disturb those who are pulling from it."""

    class Pruned(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            return [*super().list(prefix), f"{prefix}pruned.dsse.json"]

    pruned = Pruned()
    publish(pruned)

    assert [considered.reason for considered in pull_here(pruned).trace] == ["fits", "gone"]


# --- statements that are refused -----------------------------------------------------------


def test_nothing_is_read_beyond_the_statement_when_nobody_is_trusted(store: MemoryStore):
    """Without a trusted key every artifact is refused, with the lines that would trust one."""
    publish(store)

    refused = refusal(store, trust=Trust())

    assert refused.reason == "no_trust"
    assert "[[keys]]" in refused.hint
    assert not [key for key in store.read if key.startswith("blobs/")]


def test_an_artifact_of_an_unknown_signer_is_refused(store: MemoryStore):
    """Being in the store is no reason to be loaded."""
    publish(store)

    assert refusal(store, trust=trusting(OTHER)).reason == "untrusted"


def test_a_pinned_artifact_of_an_unknown_signer_is_loaded(store: MemoryStore):
    """An exact digest in the trust file replaces a key; another artifact of that signer is not."""
    _, manifest = publish(store)
    publish(store, created=NEWEST, raw={"cache": b"not pinned"})
    pin = frozenset({hashlib.sha256(manifest.to_statement()).hexdigest()})

    pulled = pull_here(store, trust=trusting(pinned=pin))

    assert pulled.manifest == manifest
    assert sorted(considered.reason for considered in pulled.trace) == ["fits", "untrusted"]


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
            assert pull_here(store).manifest == manifest
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
    assert not [key for key in store.read if key.startswith("blobs/")]


def test_a_signed_statement_of_a_newer_format_is_refused(store: MemoryStore):
    """An upgrade that has reached the builder first is told by both versions."""
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
    """What is signed for one deployment is not loaded by another, though the signature is good."""
    manifest, _ = build(deployment="Other")
    publish_statement(store, manifest.to_statement(), KEY, name="moved")

    refused = refusal(store)

    assert refused.reason == "bad_statement"
    assert "'Other'" in refused.message


def test_a_refusal_is_seen_when_nothing_fits(store: MemoryStore):
    """With a refused and an unfitting variant the refusal is what is raised; the trace has both."""
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

    assert pulled.statement_key == good
    assert [considered.reason for considered in pulled.trace] == ["untrusted", "fits"]
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "reason=untrusted" in warnings[0]


def test_what_an_unbelieved_statement_says_is_not_repeated(store: MemoryStore):
    """Dates and factors of an unknown writer do not get into the trace."""
    publish_statement(store, build(created=NEWEST)[0].to_statement(), OTHER, name="forged")

    (considered,) = refusal(store).trace

    assert (considered.created, considered.mismatches) == ("", ())


# --- blobs that are refused ----------------------------------------------------------------


def flip(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    return bytes(changed)


FORGED_BLOBS = {
    "flipped": (flip, "digest_mismatch"),
    "truncated": (lambda data: data[:-1], "truncated"),
    "empty": (lambda _: b"", "truncated"),
    "extended": (lambda data: data + b"\0", "size_mismatch"),
    "replaced": (lambda data: bytes(len(data)), "digest_mismatch"),
    "bomb": (lambda _: zstd.compress(bytes(1 << 24)), "size_mismatch"),
}


@pytest.mark.parametrize("name", FORGED_BLOBS)
def test_a_forged_blob_is_refused(store: MemoryStore, name: str):
    """A blob that is not what was signed is never unpacked."""
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
    """Asking for a part that was not built is told, instead of starting without it."""
    publish(store)

    assert refusal(store, parts=("cache", "torch_bytes")).reason == "missing_part"


def test_parts_of_two_artifacts_cannot_be_mixed(store: MemoryStore):
    """Statements that are both valid do not make a third one of their parts."""
    _, one = publish(store, raw={"cache": b"one", "extra": b"1"})
    _, two = publish(store, raw={"cache": b"two", "extra": b"2"}, created=NEWEST)
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
    _, two = publish(store, raw={"cache": b"two"}, created=NEWEST)
    keys = [blob_key(manifest.parts[0]) for manifest in (one, two)]
    blobs = [store.objects[key] for key in keys]
    store.objects.update(zip(keys, reversed(blobs), strict=True))

    assert refusal(store).reason == "digest_mismatch"


def test_a_refused_artifact_is_not_replaced_by_an_older_one(store: MemoryStore):
    """Damage to the newest artifact is seen, although an older one would load."""
    publish(store, created=OLDER, raw={"cache": b"older"})
    assert pull_here(store).raw["cache"] == b"older"
    statement, newest = publish(store, created=NEWEST, raw={"cache": b"newest"})
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

    refused = refusal(store, **{limit: size - 1})

    assert refused.reason == "too_large"
    assert not [key for key in store.read if key.startswith("blobs/")]


def test_a_blob_of_the_wrong_size_is_not_downloaded(store: MemoryStore):
    """A store that holds gigabytes under the key cannot make a replica fetch them."""
    _, manifest = publish(store)
    key = blob_key(manifest.parts[0])
    store.objects[key] += bytes(1000)

    assert refusal(store).reason == "size_mismatch"
    assert key not in store.read


def test_a_blob_that_grows_after_its_size_was_asked_is_refused():
    """The bound holds for the download itself, not only for what the store said before."""

    class Growing(MemoryStore):
        def size(self, key: str) -> int:
            size = super().size(key)
            if key.startswith("blobs/"):
                self.objects[key] += b"more"
            return size

    growing = Growing()
    _, manifest = publish(growing)

    assert refusal(growing).reason == "size_mismatch"
    assert growing.limits[blob_key(manifest.parts[0])] == manifest.parts[0].stored_bytes


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
    """An outage is told from an empty store, because it is worth trying again."""

    class Broken(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            raise StoreError(f"{self.uri}: connection refused")

    with pytest.raises(StoreError, match="connection refused"):
        pull_here(Broken())


# --- describe ------------------------------------------------------------------------------


def test_describe_tells_what_is_in_a_store(store: MemoryStore):
    """Every statement of every deployment is listed, with what it says, believed or not."""
    good, manifest = publish(store)
    other, _ = publish(store, deployment="Other")
    foreign = publish_statement(store, build(created=OLDER)[0].to_statement(), OTHER, name="f")
    newer = publish_statement(
        store,
        manifest.to_statement()
        .replace(b"artifact/v1", b"artifact/v2")
        .replace(b'"format":1', b'"format":2'),
        KEY,
        name="n",
    )
    broken = "statements/Embedder/x.dsse.json"
    store.objects[broken] = b"{"
    store.objects["statements/Embedder/y.dsse.json"] = bytes(MAX_ENVELOPE_BYTES + 1)

    described = {item.statement: item for item in describe(store, trusting(KEY))}

    assert len(described) == 6
    assert (described[good].trusted, described[good].signers) == (True, ("key0",))
    assert described[good].manifest == manifest
    assert described[other].manifest is not None
    assert described[other].manifest.deployment == "Other"
    assert (described[foreign].trusted, described[foreign].reason) == (False, "untrusted")
    assert described[foreign].manifest is not None
    assert (described[newer].trusted, described[newer].reason) == (True, "newer_format")
    assert described[newer].manifest is None
    assert (described[broken].trusted, described[broken].reason) == (False, "bad_statement")
    assert described["statements/Embedder/y.dsse.json"].reason == "too_large"
    assert not [key for key in store.read if key.startswith("blobs/")]


def test_describe_works_without_any_trust(store: MemoryStore):
    """Looking at a store comes before deciding whom to trust."""
    publish(store)

    (item,) = describe(store, Trust())

    assert (item.trusted, item.reason) == (False, "no_trust")
    assert item.manifest is not None
