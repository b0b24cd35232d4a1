# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Looking at a store, verifying all of it, and removing what is dead from it."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from artifacts import (
    MemoryStore,
    blob_key,
    build,
    cache_directory,
    container,
    fingerprint,
    new_key,
    publish_statement,
    trusting,
)
from serve_warm.artifact.archive import pack_directory
from serve_warm.artifact.blobs import zstd
from serve_warm.artifact.catalog import GRACE_S, Pruned, Rules, check, describe, prune
from serve_warm.artifact.manifest import MAX_RAW_BYTES
from serve_warm.artifact.push import push
from serve_warm.artifact.push import sign as sign_again
from serve_warm.errors import ConfigError, StoreError
from serve_warm.stores.local import LocalStore
from serve_warm.trust.envelope import MAX_ENVELOPE_BYTES, sign
from serve_warm.trust.policy import Trust

if TYPE_CHECKING:
    from collections.abc import Callable

    from serve_warm.artifact.manifest import Manifest
    from serve_warm.stores import Object, Store

KEY = new_key()
OTHER = new_key()
DAY = 86400.0
NOW = datetime(2026, 11, 20, tzinfo=timezone.utc).timestamp()


def days_ago(days: float) -> str:
    """Return a time of creation, counted from NOW."""
    moment = datetime.fromtimestamp(NOW - days * DAY, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def publish(store: Store, *, on_taken: Any = "supersede", **fields: Any) -> tuple[str, Manifest]:
    manifest, stored = build(**fields)
    return push(store, manifest, stored, [KEY], on_taken=on_taken), manifest


def of_format_2(manifest: Manifest) -> bytes:
    payload = json.loads(manifest.to_statement())
    payload["predicateType"] = "https://serve-warm.dev/artifact/v2"
    payload["predicate"]["format"] = 2
    payload["predicate"]["something"] = "new"
    return json.dumps(payload).encode()


# --- describe ------------------------------------------------------------------------------


def test_describe_tells_what_is_in_a_store(store: MemoryStore):
    """Every statement of every deployment is listed, with what it says, believed or not."""
    good, manifest = publish(store)
    other, _ = publish(store, deployment="Other")
    stranger = build(created=days_ago(1))[0]
    foreign = publish_statement(store, stranger.to_statement(), OTHER, name="f")
    newer = publish_statement(store, of_format_2(manifest), KEY, name="n")
    broken, large = (f"statements/Embedder/{name}.dsse.json" for name in "xy")
    store.objects[broken] = b"{"
    store.objects[large] = bytes(MAX_ENVELOPE_BYTES + 1)
    store.objects["statements/Embedder/README.md"] = b"hello"
    store.objects["statements/Embedder/deeper/z.dsse.json"] = b"hello"

    described = {item.statement: item for item in describe(store, trusting(KEY))}

    assert sorted(described) == sorted([good, other, foreign, newer, broken, large])
    assert {key for key, item in described.items() if item.trusted} == {good, other}
    assert (described[good].signers, described[good].how) == (("key0",), "signature")
    assert described[good].manifest == manifest
    assert described[good].digest == hashlib.sha256(manifest.to_statement()).hexdigest()
    assert described[other].manifest.deployment == "Other"
    assert described[foreign].reason == "untrusted"
    assert described[foreign].manifest == stranger
    assert described[foreign].digest == hashlib.sha256(stranger.to_statement()).hexdigest()
    assert described[newer].reason == "newer_format"
    assert described[newer].manifest is None
    assert described[newer].digest
    assert (described[broken].reason, described[broken].manifest) == ("bad_statement", None)
    assert described[large].reason == "too_large"
    assert [key for key in store.read if key.startswith("blobs/")] == []


def test_one_deployment_can_be_described(store: MemoryStore):
    """The others are not even read."""
    publish(store)
    other, _ = publish(store, deployment="Other")

    (item,) = describe(store, trusting(KEY), deployment="Other")

    assert item.statement == other
    assert store.read == [other]


def test_describe_works_without_any_trust(store: MemoryStore):
    """Looking at a store comes before deciding whom to trust."""
    publish(store)

    (item,) = describe(store, Trust())

    assert (item.trusted, item.reason) == (False, "no_trust")
    assert "[[keys]]" in item.hint
    assert item.manifest is not None


@pytest.mark.parametrize("limit", ["expired", "denied"])
def test_what_is_not_in_force_is_told(store: MemoryStore, limit: str):
    """An artifact that a replica would refuse for its age or digest is not a trusted one."""
    _, manifest = publish(store, created=days_ago(3000))
    trust = {
        "expired": trusting(KEY, max_age_s=DAY),
        "denied": trusting(KEY, denied=frozenset({manifest.parts[0].sha256})),
    }[limit]

    (item,) = describe(store, trust)

    assert (item.trusted, item.reason) == (False, limit)
    assert item.manifest == manifest


def test_a_statement_that_goes_meanwhile_is_told():
    """Somebody prunes while somebody looks."""

    class Pruned(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            return [*super().list(prefix), "statements/Embedder/gone.dsse.json"]

    (item,) = describe(Pruned(), trusting(KEY))

    assert (item.trusted, item.reason) == (False, "gone")


# --- check ---------------------------------------------------------------------------------


def flip(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    return bytes(changed)


def test_a_good_store_is_good(store: MemoryStore, tmp_path: Path):
    """All parts of all variants are downloaded and unpacked, and nothing is left of them."""
    raw = pack_directory(cache_directory(tmp_path / "source"))
    publish(store, raw={"cache": raw, "torch_bytes": container(("inductor", [("k", b"1")]))})
    publish(store, raw={"cache": raw}, deployment="Other")
    told: list[str] = []

    checked = check(store, trusting(KEY), progress=lambda name, done, total: told.append(name))

    assert [(item.trusted, item.reason) for item in checked] == 2 * [(True, "")]
    assert set(told) == {"cache", "torch_bytes"}
    assert sum(key.startswith("blobs/") for key in store.read) == 3
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "flipped": (flip, "digest_mismatch"),
    "truncated": (lambda data: data[:-1], "truncated"),
    "extended": (lambda data: data + b"\0", "size_mismatch"),
    "bomb": (lambda data: zstd.compress(bytes(1 << 24)), "truncated"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_blob_is_found(store: MemoryStore, tmp_path: Path, name: str):
    """The statement and its signature are good, and a replica would refuse it all the same."""
    damage, reason = DAMAGES[name]
    raw = pack_directory(cache_directory(tmp_path / "source"))
    statement, manifest = publish(store, raw={"cache": raw})
    good, _ = publish(store, deployment="Good", raw={"cache": raw + bytes(10240)})
    key = blob_key(manifest.parts[0])
    store.objects[key] = damage(store.objects[key])

    checked = {item.statement: item for item in check(store, trusting(KEY))}

    assert (checked[statement].trusted, checked[statement].reason) == (False, reason)
    assert checked[statement].manifest == manifest
    assert checked[statement].digest == hashlib.sha256(manifest.to_statement()).hexdigest()
    assert checked[statement].signers == ("key0",)
    assert checked[statement].hint
    assert checked[good].trusted


def test_a_missing_blob_is_found(store: MemoryStore):
    """It names the part."""
    _, manifest = publish(store)
    del store.objects[blob_key(manifest.parts[0])]

    (item,) = check(store, trusting(KEY))

    assert (item.trusted, item.reason) == (False, "missing_part")
    assert "part cache" in item.message


def test_a_part_over_the_limit_is_not_even_downloaded(store: MemoryStore):
    """A signed size of terabytes is a finding, not a full disk."""
    manifest, stored = build()
    part = replace(manifest.parts[0], raw_bytes=MAX_RAW_BYTES + 1)
    payload = replace(manifest, parts=(part,)).to_statement()
    publish_statement(store, payload, KEY, name="large")
    store.create(blob_key(part), stored["cache"])

    (item,) = check(store, trusting(KEY))

    assert (item.trusted, item.reason) == (False, "too_large")
    assert [key for key in store.read if key.startswith("blobs/")] == []


def bomb(manifest: Manifest, stored: dict[str, bytes]) -> tuple[Manifest, dict[str, bytes]]:
    """Return an artifact whose statement promises less than it unpacks to."""
    data = zstd.compress(bytes(1 << 24))
    part = replace(
        manifest.parts[0],
        sha256=hashlib.sha256(data).hexdigest(),
        stored_bytes=len(data),
        raw_bytes=1000,
    )
    return replace(manifest, parts=(part,)), {part.name: data}


SIGNED_BUT_BAD = {
    "no tar": (build(raw={"cache": b"kernels"}), "bad_archive"),
    "a tar and more": (build(raw={"cache": bytes(10240) + b"x"}), "bad_archive"),
    "no container": (build(raw={"torch_bytes": b"\x80\x04."}), "bad_archive"),
    "bomb": (bomb(*build(raw={"cache": bytes(10240)})), "size_mismatch"),
}


@pytest.mark.parametrize("name", SIGNED_BUT_BAD)
def test_what_could_not_be_put_in_place_is_found(store: MemoryStore, name: str):
    """A trusted key under it does not make a broken artifact a good one."""
    (manifest, stored), reason = SIGNED_BUT_BAD[name]
    push(store, manifest, stored, [KEY])

    (item,) = check(store, trusting(KEY))

    assert (item.trusted, item.reason) == (False, reason)


def test_parts_of_strangers_are_not_even_downloaded(store: MemoryStore):
    """Nothing is unpacked before its signature is checked."""
    publish(store)

    (item,) = check(store, trusting(OTHER))

    assert (item.trusted, item.reason) == (False, "untrusted")
    assert [key for key in store.read if key.startswith("blobs/")] == []


def test_a_store_that_cannot_be_read_is_an_error():
    """An outage is no verdict on artifacts."""

    class Broken(MemoryStore):
        def head(self, key: str) -> Object:
            raise StoreError("connection refused")

    broken = MemoryStore()
    publish(broken)

    with pytest.raises(StoreError, match="connection refused"):
        check(Broken(objects=broken.objects), trusting(KEY))


# --- prune ---------------------------------------------------------------------------------


@pytest.fixture(params=["folder", "memory"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store to prune, one with a file system's times and one with set ones."""
    return LocalStore(root=tmp_path / "store") if request.param == "folder" else MemoryStore()


def history(
    store: Store, *, days: tuple[float, ...] = (40, 30, 20, 10), **fields: Any
) -> list[str]:
    """Publish one artifact after the other for one variant; returns their statements."""
    return [
        publish(store, created=days_ago(age), raw={"cache": f"{age}{fields}".encode()}, **fields)[0]
        for age in days
    ]


def pruned(store: Store, *, in_use: tuple[str, ...] = (), **rules: Any) -> Pruned:
    return prune(store, Rules(**rules), in_use=in_use, now_unix=NOW)


def why(result: Pruned) -> dict[str, str]:
    return {item.statement: item.why for item in result.removed}


def check_consistent(store: Store, keys: list[str]) -> None:
    """Each of these is left with all that it names, and nothing else is."""
    assert store.list("statements/") == sorted(keys)
    named = set()
    for item in describe(store, trusting(KEY)):
        assert item.manifest is not None
        named |= {blob_key(part) for part in item.manifest.parts}
    assert set(store.list("blobs/")) == named


def test_what_is_old_goes(shelf: Store):
    """Statement and blob; what was created later stays."""
    keys = history(shelf)

    result = pruned(shelf, older_than_s=15 * DAY)

    assert why(result) == dict.fromkeys(keys[:3], "age")
    assert len(result.blobs) == 3
    assert result.freed_bytes > 0
    assert [(item.created, item.torch) for item in result.removed][:1] == [
        (days_ago(30), "2.13.0+cpu")
    ]
    check_consistent(shelf, keys[3:])


def test_the_newest_of_each_variant_stays_whatever_its_age(shelf: Store):
    """A store that nobody builds for keeps what its replicas start from."""
    keys = history(shelf)
    others = [
        *history(shelf, days=(50, 45), built_for=fingerprint(threads="8")),
        *history(shelf, days=(60,), deployment="Other"),
    ]

    result = pruned(shelf, older_than_s=1 * DAY)

    assert set(why(result)) == {*keys[:3], others[0]}
    check_consistent(shelf, [keys[3], *others[1:]])


@pytest.mark.parametrize("keep", [0, 1, 2, 5])
def test_how_many_of_a_variant_stay_can_be_chosen(store: MemoryStore, keep: int):
    """None at all can be, too."""
    keys = history(store)

    pruned(store, older_than_s=1 * DAY, keep_newest=keep)

    assert store.list("statements/") == sorted(keys[max(0, 4 - keep) :])


def test_what_is_too_much_goes_the_oldest_first(store: MemoryStore):
    """The limit is for all blobs of the store, and no more goes than must."""
    keys = history(store)
    others = history(store, days=(35, 25), deployment="Other")
    size = sum(len(store.objects[key]) for key in store.list("blobs/"))
    oldest = sum(len(store.objects[key]) for key in store.list("blobs/")) // 6

    result = pruned(store, max_bytes=size - 2 * oldest)

    assert why(result) == {keys[0]: "size", others[0]: "size"}
    check_consistent(store, [*keys[1:], others[1]])
    assert pruned(store, max_bytes=size).removed == ()


def test_the_limit_holds_although_the_oldest_is_in_use(store: MemoryStore):
    """What may not go takes its room, so the next one goes for it."""
    keys = history(store)
    size = sum(len(store.objects[key]) for key in store.list("blobs/"))

    result = pruned(store, max_bytes=size - 1, in_use=(keys[0],))

    assert why(result) == {keys[1]: "size"}
    assert result.in_use == (keys[0],)
    check_consistent(store, [keys[0], *keys[2:]])


def test_the_limit_does_not_take_the_newest(store: MemoryStore):
    """Of a limit that cannot be kept as much is kept as can be."""
    keys = history(store)

    result = pruned(store, max_bytes=0)

    assert set(why(result)) == set(keys[:3])
    check_consistent(store, keys[3:])


@pytest.mark.parametrize(
    ("built_with", "goes"),
    [
        ("2.13.0+cpu", True),
        ("2.13.1", True),
        ("2.9.0", True),
        ("2.14.0a0+git0815", True),
        ("2.14.0", False),
        ("2.14.0+cu130", False),
        ("2.100.0", False),
        ("2.13.0+cpu 0815", True),
        ("none", False),
    ],
)
def test_what_a_dead_torch_built_goes(store: MemoryStore, built_with: str, goes: bool):
    """Versions are compared as versions, without what follows the plus; the newest goes too."""
    key, _ = publish(store, built_for=fingerprint(torch=built_with))

    result = pruned(store, torch_before="2.14")

    assert why(result) == ({key: "torch"} if goes else {})
    check_consistent(store, [] if goes else [key])


def test_the_limit_is_a_version_without_what_follows_the_plus(store: MemoryStore):
    """Whoever copies the version out of an artifact means the release."""
    publish(store, built_for=fingerprint(torch="2.13.0"))

    assert pruned(store, torch_before="2.13.0+cpu").removed == ()


@pytest.mark.parametrize(
    "rules",
    [
        {"torch_before": "new"},
        {"older_than_s": -1.0},
        {"max_bytes": -1},
        {"keep_newest": -1},
    ],
    ids=lambda rules: next(iter(rules)),
)
def test_rules_that_make_no_sense_are_refused(rules: dict[str, Any]):
    """Before anything is removed by them."""
    with pytest.raises(ConfigError):
        Rules(**rules)


def test_no_rules_remove_nothing(shelf: Store):
    """Pruning without a rule is safe at any time."""
    keys = history(shelf)

    result = pruned(shelf)

    assert (result.removed, result.blobs) == ((), ())
    check_consistent(shelf, keys)


def test_what_is_in_use_stays(shelf: Store):
    """It is named, with the blobs that it has, whatever the rules say."""
    keys = history(shelf)

    result = pruned(shelf, older_than_s=1 * DAY, torch_before="3", in_use=(keys[0], "unknown"))

    assert result.in_use == (keys[0],)
    check_consistent(shelf, keys[:1])


def test_showing_changes_nothing(store: MemoryStore):
    """It says just what removing does, and the store is as it was."""
    keys = history(store)
    rules, before = Rules(older_than_s=15 * DAY), dict(store.objects)

    shown = prune(store, rules, in_use=keys[:1], do="show", now_unix=NOW)

    assert (store.objects, store.deleted) == (before, [])
    assert shown == prune(store, rules, in_use=keys[:1], now_unix=NOW)
    assert set(store.deleted) == {*why(shown), *shown.blobs}


def test_statements_go_before_their_blobs(store: MemoryStore):
    """At no moment a statement stands there whose blobs are gone."""
    history(store)

    pruned(store, older_than_s=15 * DAY)

    kinds = [key.partition("/")[0] for key in store.deleted]
    assert kinds == 3 * ["statements"] + 3 * ["blobs"]


def test_a_blob_that_is_still_named_stays(store: MemoryStore):
    """Artifacts share equal parts; a part goes with the last one."""
    raw = {"cache": b"shared"}
    first, manifest = publish(store, created=days_ago(40), raw=raw)
    second, _ = publish(store, created=days_ago(20), raw=raw)
    publish(store, created=days_ago(1), raw={"cache": b"new"})
    key = blob_key(manifest.parts[0])

    assert pruned(store, older_than_s=30 * DAY).blobs == ()
    assert first not in store.objects
    assert key in store.objects
    assert pruned(store, older_than_s=10 * DAY).blobs == (key,)
    assert second not in store.objects


def test_a_shared_blob_counts_once(store: MemoryStore):
    """Removing one of two artifacts of the same bytes would free nothing, and is not done."""
    raw = {"cache": b"shared"}
    keys = [publish(store, created=days_ago(age), raw=raw)[0] for age in (40, 20)]

    result = pruned(store, max_bytes=sum(map(len, [store.objects[store.list("blobs/")[0]]])))

    assert result.removed == ()
    check_consistent(store, keys)


def test_signatures_more_are_not_a_newer_build(store: MemoryStore):
    """All envelopes of one artifact count as one of those that are kept, and go together."""
    keys = history(store, days=(40, 30, 20))
    signed = sign_again(store, [OTHER], trust=trusting(KEY)).statements
    assert len(signed) == 3

    result = pruned(store, older_than_s=10 * DAY, keep_newest=2)

    assert set(why(result)) == {keys[0], *(key for key in signed if "-g" not in key)}
    check_consistent(store, [*keys[1:], *(key for key in signed if "-g" in key)])


def test_a_forgotten_blob_goes_after_a_day(store: MemoryStore):
    """A push that is under way has written blobs that no statement names yet."""
    push(store, *build(), [KEY])
    old, young = (f"blobs/sha256/{64 * digit}" for digit in "ab")
    for key, age_s in ((old, GRACE_S + 60), (young, GRACE_S - 60)):
        store.objects[key] = bytes(100)
        store.modified[key] = NOW - age_s

    result = pruned(store)

    assert result.blobs == (old,)
    assert result.freed_bytes == 100
    assert young in store.objects


@pytest.mark.parametrize(
    "name",
    ["thesis.txt", "sub/key", f"{64 * 'A'}", f"{64 * 'a'}.bak", f"{63 * 'a'}", f"x/{64 * 'a'}"],
)
def test_what_is_no_blob_of_ours_is_never_removed(store: MemoryStore, name: str):
    """Whatever stands, or was linked, beside the blobs belongs to somebody else."""
    push(store, *build(), [KEY])
    key = f"blobs/sha256/{name}"
    store.objects[key] = b"mine"
    store.modified[key] = NOW - 1000 * DAY

    result = pruned(store)

    assert result.blobs == ()
    assert key in store.objects


def test_a_store_of_another_kind_is_left_alone(store: MemoryStore):
    """An OCI layout has blobs by digest too: without one statement nothing is removed."""
    key = forget(store)

    with pytest.raises(ConfigError, match="not one statement") as caught:
        pruned(store)

    assert key in store.objects
    assert "nothing was removed" in caught.value.hint


def forget(store: MemoryStore) -> str:
    """Leave a blob that nobody names, and has not for long."""
    key = f"blobs/sha256/{64 * '0'}"
    store.objects[key] = b"forgotten"
    store.modified[key] = NOW - 100 * DAY
    return key


def test_a_statement_of_a_newer_format_keeps_its_blobs(store: MemoryStore):
    """Every format names its blobs as subjects; what is in it else does not matter."""
    manifest, stored = build(created=days_ago(100))
    statement = publish_statement(store, of_format_2(manifest), KEY, name="newer")
    store.objects[blob_key(manifest.parts[0])] = stored["cache"]
    store.modified[blob_key(manifest.parts[0])] = NOW - 100 * DAY
    forgotten = forget(store)

    result = pruned(store, older_than_s=0.0, torch_before="9", max_bytes=0, keep_newest=0)

    assert (result.removed, result.blobs) == ((), (forgotten,))
    assert result.unreadable == (statement,)
    assert blob_key(manifest.parts[0]) in store.objects


UNPARSABLE = {
    "no envelope": b"{",
    "no statement": sign(b"{}", KEY),
    "too large": bytes(MAX_ENVELOPE_BYTES + 1),
    "odd subjects": sign(b'{"subject":[{"digest":{"sha256":"../x"}}]}', KEY),
    "subjects of another kind": sign(b'{"subject":[{"digest":{"sha256":7}}]}', KEY),
    "no subjects": sign(b'{"subject":7}', KEY),
}


@pytest.mark.parametrize("name", UNPARSABLE)
def test_what_may_name_any_blob_keeps_all_of_them(store: MemoryStore, name: str):
    """Where one statement cannot be read at all no blob is removed; statements can still be."""
    keys = history(store)
    junk = "statements/Embedder/junk.dsse.json"
    store.objects[junk] = UNPARSABLE[name]
    forget(store)
    blobs = store.list("blobs/")

    result = pruned(store, older_than_s=15 * DAY)

    assert set(why(result)) == set(keys[:3])
    assert (result.blobs, result.freed_bytes, result.unreadable) == ((), 0, (junk,))
    assert store.list("blobs/") == blobs
    assert junk in store.objects


def test_what_cannot_be_parsed_stops_blobs_whatever_follows_it(store: MemoryStore):
    """A statement of a newer format behind it does not make the first one harmless."""
    store.objects["statements/Embedder/000.dsse.json"] = b"{"
    publish_statement(store, of_format_2(build()[0]), KEY, name="zzz")
    forget(store)

    assert pruned(store).blobs == ()


def test_what_nobody_trusts_can_go(store: MemoryStore):
    """Signatures decide about loading, not about removing."""
    manifest, stored = build(created=days_ago(40))
    push(store, manifest, stored, [OTHER])

    result = pruned(store, older_than_s=10 * DAY, keep_newest=0)

    assert len(result.removed) == 1
    assert store.objects == {}


def test_a_blob_that_a_new_statement_names_stays(store: MemoryStore):
    """Somebody publishes what was forgotten while it is looked for: it is not taken from them."""

    class Busy(MemoryStore):
        def head(self, key: str) -> Object:
            found = super().head(key)
            # Their own look at the blob is over before it would be deleted.
            self.objects |= published
            return found

    manifest, stored = build(raw={"cache": b"forgotten by others"})
    published = {"statements/Embedder/new.dsse.json": sign(manifest.to_statement(), KEY)}
    key = blob_key(manifest.parts[0])
    busy = Busy(objects={key: stored["cache"]}, modified={key: NOW - 100 * DAY})
    push(busy, *build(), [KEY])
    forgotten = forget(busy)

    result = pruned(busy)

    assert result.blobs == (forgotten,)
    assert key in busy.objects


def test_an_artifact_that_is_published_again_while_it_is_pruned_stays_whole():
    """Under the very key that was just removed: its blobs are not removed after it."""

    class Busy(MemoryStore):
        def delete(self, key: str) -> None:
            super().delete(key)
            if key.startswith("statements/"):
                push(self, *again, [KEY])

    again = build(created=days_ago(40))
    busy = Busy()
    push(busy, *again, [KEY])

    result = pruned(busy, older_than_s=1 * DAY, keep_newest=0)

    assert result.blobs == ()
    assert [item.trusted for item in check_without_contents(busy)] == [True]


def check_without_contents(store: MemoryStore) -> list[Any]:
    """Describe what is left, having seen that each blob is there."""
    described = describe(store, trusting(KEY))
    for item in described:
        assert item.manifest is not None
        for part in item.manifest.parts:
            assert store.head(blob_key(part)).size_bytes == part.stored_bytes
    return described


def test_a_statement_that_goes_while_it_is_read_is_no_error():
    """Two who prune at once do not disturb each other."""

    class Pruning(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            gone = "statements/Embedder/gone.dsse.json"
            return [*super().list(prefix), *([gone] if prefix == "statements/" else [])]

    pruning = Pruning()
    forgotten = forget(pruning)

    assert pruned(pruning).blobs == (forgotten,)


def test_the_clock_is_that_of_this_machine_by_default(store: MemoryStore):
    """Without a given time a fresh blob is a fresh one."""
    push(store, *build(), [KEY])
    fresh, old = (f"blobs/sha256/{64 * digit}" for digit in "ab")
    store.create(fresh, b"1")
    store.objects[old] = b"1"
    store.modified[old] = time.time() - GRACE_S - 60

    assert prune(store, Rules()).blobs == (old,)
