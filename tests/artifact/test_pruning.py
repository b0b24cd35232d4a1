# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Pruning: removing unused objects from a store, and no others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from artifacts import (
    DAY,
    NOW,
    MemoryStore,
    blob_key,
    build,
    days_ago,
    fingerprint,
    of_format_2,
    publish_statement,
    trusting,
)
from serve_warm.artifact.catalog import describe
from serve_warm.artifact.pruning import GRACE_S, Pruned, Rules, prune
from serve_warm.artifact.push import push
from serve_warm.artifact.push import sign as sign_again
from serve_warm.errors import ConfigError
from serve_warm.stores.local import LocalStore
from serve_warm.trust.envelope import MAX_ENVELOPE_BYTES, sign
from transfers import KEY, OTHER
from transfers import supersede as publish

if TYPE_CHECKING:
    from serve_warm.stores import Object, Store


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(params=["folder", "memory"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store to prune, once with times of a file system and once with set times."""
    return LocalStore(root=tmp_path / "store") if request.param == "folder" else MemoryStore()


def history(
    store: Store, *, days: tuple[float, ...] = (40, 30, 20, 10), **fields: Any
) -> list[str]:
    """Publish several artifacts of one variant in turn, and return their statements."""
    return [
        publish(store, created=days_ago(age), raw={"cache": f"{age}{fields}".encode()}, **fields)[0]
        for age in days
    ]


def pruned(store: Store, *, in_use: tuple[str, ...] = (), **rules: Any) -> Pruned:
    return prune(store, Rules(**rules), in_use=in_use, now_unix=NOW)


def why(result: Pruned) -> dict[str, str]:
    return {item.statement: item.why for item in result.removed}


def check_consistent(store: Store, keys: list[str]) -> None:
    """Check that only these statements are left, with all their blobs."""
    assert store.list("statements/") == sorted(keys)
    named = set()
    for item in describe(store, trusting(KEY)):
        assert item.manifest is not None
        named |= {blob_key(part) for part in item.manifest.parts}
    assert set(store.list("blobs/")) == named


def test_what_is_old_goes(shelf: Store):
    """Old artifacts are removed, with statement and blobs; newer ones stay."""
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
    """A store without new builds keeps the artifacts that its replicas use."""
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
    """Rules can also keep no artifact at all."""
    keys = history(store)

    pruned(store, older_than_s=1 * DAY, keep_newest=keep)

    assert store.list("statements/") == sorted(keys[max(0, 4 - keep) :])


def test_what_is_too_much_goes_the_oldest_first(store: MemoryStore):
    """The size limit is for all blobs of the store, and no more is removed than needed."""
    keys = history(store)
    others = history(store, days=(35, 25), deployment="Other")
    size = sum(len(store.objects[key]) for key in store.list("blobs/"))
    oldest = sum(len(store.objects[key]) for key in store.list("blobs/")) // 6

    result = pruned(store, max_bytes=size - 2 * oldest)

    assert why(result) == {keys[0]: "size", others[0]: "size"}
    check_consistent(store, [*keys[1:], others[1]])
    assert pruned(store, max_bytes=size).removed == ()


def test_the_limit_holds_although_the_oldest_is_in_use(store: MemoryStore):
    """Artifacts in use count towards the size, so others are removed instead."""
    keys = history(store)
    size = sum(len(store.objects[key]) for key in store.list("blobs/"))

    result = pruned(store, max_bytes=size - 1, in_use=(keys[0],))

    assert why(result) == {keys[1]: "size"}
    assert result.in_use == (keys[0],)
    check_consistent(store, [keys[0], *keys[2:]])


def test_the_limit_does_not_take_the_newest(store: MemoryStore):
    """If the limit cannot be reached, as much is removed as allowed."""
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
    """Versions are compared as versions, without the local part; even the newest is removed."""
    key, _ = publish(store, built_for=fingerprint(torch=built_with))

    result = pruned(store, torch_before="2.14")

    assert why(result) == ({key: "torch"} if goes else {})
    check_consistent(store, [] if goes else [key])


def test_the_limit_is_a_version_without_what_follows_the_plus(store: MemoryStore):
    """A version copied from an artifact, with a local part, means the release."""
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
    """Invalid rules are errors before anything is removed."""
    with pytest.raises(ConfigError):
        Rules(**rules)


def test_no_rules_remove_nothing(shelf: Store):
    """Pruning without a rule is safe at any time."""
    keys = history(shelf)

    result = pruned(shelf)

    assert (result.removed, result.blobs) == ((), ())
    check_consistent(shelf, keys)


def test_what_is_in_use_stays(shelf: Store):
    """An artifact in use is kept and listed, with its blobs, regardless of the rules."""
    keys = history(shelf)

    result = pruned(shelf, older_than_s=1 * DAY, torch_before="3", in_use=(keys[0], "unknown"))

    assert result.in_use == (keys[0],)
    check_consistent(shelf, keys[:1])


def test_showing_changes_nothing(store: MemoryStore):
    """A dry run reports exactly what would be removed, and does not change the store."""
    keys = history(store)
    rules, before = Rules(older_than_s=15 * DAY), dict(store.objects)

    shown = prune(store, rules, in_use=keys[:1], do="show", now_unix=NOW)

    assert (store.objects, store.deleted) == (before, [])
    assert shown == prune(store, rules, in_use=keys[:1], now_unix=NOW)
    assert set(store.deleted) == {*why(shown), *shown.blobs}


def test_statements_go_before_their_blobs(store: MemoryStore):
    """At no time does the store have a statement without its blobs."""
    history(store)

    pruned(store, older_than_s=15 * DAY)

    kinds = [key.partition("/")[0] for key in store.deleted]
    assert kinds == 3 * ["statements"] + 3 * ["blobs"]


def test_a_blob_that_is_still_named_stays(store: MemoryStore):
    """Artifacts share equal parts; a part is removed with the last artifact that has it."""
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
    """If two artifacts share their bytes, neither is removed, because this would free nothing."""
    raw = {"cache": b"shared"}
    keys = [publish(store, created=days_ago(age), raw=raw)[0] for age in (40, 20)]

    result = pruned(store, max_bytes=sum(map(len, [store.objects[store.list("blobs/")[0]]])))

    assert result.removed == ()
    check_consistent(store, keys)


def test_signatures_more_are_not_a_newer_build(store: MemoryStore):
    """All envelopes of an artifact count as one artifact, and are removed together."""
    keys = history(store, days=(40, 30, 20))
    signed = sign_again(store, [OTHER], trust=trusting(KEY)).statements
    assert len(signed) == 3

    result = pruned(store, older_than_s=10 * DAY, keep_newest=2)

    assert set(why(result)) == {keys[0], *(key for key in signed if "-g" not in key)}
    check_consistent(store, [*keys[1:], *(key for key in signed if "-g" in key)])


def test_a_forgotten_blob_goes_after_a_day(store: MemoryStore):
    """New blobs without a statement are kept: a running push may have written them."""
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
    """Foreign files and links next to the blobs are kept."""
    push(store, *build(), [KEY])
    key = f"blobs/sha256/{name}"
    store.objects[key] = b"mine"
    store.modified[key] = NOW - 1000 * DAY

    result = pruned(store)

    assert result.blobs == ()
    assert key in store.objects


def test_a_store_of_another_kind_is_left_alone(store: MemoryStore):
    """Without any statement, nothing is removed, because an OCI layout also has blobs by digest."""
    key = forget(store)

    with pytest.raises(ConfigError, match="no statement") as caught:
        pruned(store)

    assert key in store.objects
    assert "nothing was removed" in caught.value.hint


def forget(store: MemoryStore) -> str:
    """Write an old blob that no statement names."""
    key = f"blobs/sha256/{64 * '0'}"
    store.objects[key] = b"forgotten"
    store.modified[key] = NOW - 100 * DAY
    return key


def test_a_statement_of_a_newer_format_keeps_its_blobs(store: MemoryStore):
    """Every format names its blobs as subjects; its other fields do not matter."""
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
    """If a statement cannot be read at all, statements can be removed, but no blobs."""
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
    """An unreadable statement protects all blobs even if a newer format's statement follows."""
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
    """A blob that is published again during a prune is not removed."""

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
    """If a statement is published again under a removed key, its blobs are kept."""

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
    """Describe the remaining statements, after checking that all their blobs exist."""
    described = describe(store, trusting(KEY))
    for item in described:
        assert item.manifest is not None
        for part in item.manifest.parts:
            assert store.head(blob_key(part)).size_bytes == part.stored_bytes
    return described


def test_a_statement_that_goes_while_it_is_read_is_no_error():
    """Two prunes at once do not disturb each other."""

    class Pruning(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            gone = "statements/Embedder/gone.dsse.json"
            return [*super().list(prefix), *([gone] if prefix == "statements/" else [])]

    pruning = Pruning()
    forgotten = forget(pruning)

    assert pruned(pruning).blobs == (forgotten,)


def test_the_clock_is_that_of_this_machine_by_default(store: MemoryStore):
    """By default, the current time decides whether a blob is new."""
    push(store, *build(), [KEY])
    fresh, old = (f"blobs/sha256/{64 * digit}" for digit in "ab")
    store.create(fresh, b"1")
    store.objects[old] = b"1"
    store.modified[old] = time.time() - GRACE_S - 60

    assert prune(store, Rules()).blobs == (old,)
