# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Pruning: removing unused objects from a store, and no others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
from serve_warm.artifact.code_and_model import CodeAndModel
from serve_warm.artifact.pruning import GRACE_S, Pruned, prune
from serve_warm.artifact.push import push
from serve_warm.artifact.push import sign as sign_again
from serve_warm.errors import ConfigError
from serve_warm.stores import Object, Store, list_keys
from serve_warm.stores.local import LocalStore
from serve_warm.trust.envelope import MAX_ENVELOPE_BYTES, sign
from transfers import KEY, OTHER, store_fixture  # noqa: F401 - a fixture
from transfers import supersede as publish


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


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_warm.artifact.pruning.time", SimpleNamespace(time=lambda: NOW))


def removed(result: Pruned) -> set[str]:
    return {item.statement for item in result.removed}


def check_consistent(store: Store, keys: list[str]) -> None:
    """Check that only these statements are left, with all their blobs."""
    assert list_keys(store, "statements/") == sorted(keys)
    named = set()
    for item in describe(store, trusting(KEY)):
        assert item.manifest is not None
        named |= {blob_key(part) for part in item.manifest.parts}
    assert set(list_keys(store, "blobs/")) == named


def test_what_is_old_goes(shelf: Store):
    keys = history(shelf)
    without_rules = prune(shelf)
    result = prune(shelf, older_than_s=15 * DAY)
    assert (without_rules.removed, without_rules.blobs) == ((), ())
    assert removed(result) == set(keys[:3])
    assert len(result.blobs) == 3
    assert result.freed_bytes > 0
    first = result.removed[0]
    assert (first.created, first.torch) == (days_ago(40), "2.13.0+cpu")
    check_consistent(shelf, keys[3:])


def test_the_newest_of_each_variant_stays_whatever_its_age(shelf: Store):
    """A store without new builds keeps the artifacts that its replicas use."""
    keys = history(shelf)
    others = [
        *history(shelf, days=(50, 45), built_for=fingerprint(threads="8")),
        *history(shelf, days=(60,), deployment="Other"),
    ]
    result = prune(shelf, older_than_s=1 * DAY)
    assert removed(result) == {*keys[:3], others[0]}
    check_consistent(shelf, [keys[3], *others[1:]])


def test_the_newest_of_each_code_and_model_stays(store: MemoryStore):
    """Replicas of earlier code keep the artifact that fits best, also beside a newer one."""
    old = history(store, days=(40, 30), made_of=CodeAndModel(code="1" * 16, model="f" * 16))
    new = history(store, days=(20, 10), made_of=CodeAndModel(code="2" * 16, model="f" * 16))
    assert removed(prune(store, older_than_s=1 * DAY)) == {old[0], new[0]}
    check_consistent(store, [old[1], new[1]])


@pytest.mark.parametrize("keep", [0, 1, 2, 5])
def test_how_many_of_a_variant_stay_can_be_chosen(store: MemoryStore, keep: int):
    """Rules can also keep no artifact at all."""
    keys = history(store)
    prune(store, older_than_s=1 * DAY, keep_newest=keep)
    assert list_keys(store, "statements/") == sorted(keys[max(0, 4 - keep) :])


def test_what_is_in_use_stays(shelf: Store):
    """An artifact in use is kept and listed, with its blobs, regardless of the rules."""
    keys = history(shelf)
    result = prune(shelf, older_than_s=1 * DAY, keep_newest=0, in_use=(keys[0], "unknown"))
    assert result.in_use == (keys[0],)
    check_consistent(shelf, keys[:1])


def test_showing_changes_nothing(store: MemoryStore):
    keys = history(store)
    before = dict(store.objects)
    shown = prune(store, older_than_s=15 * DAY, in_use=keys[:1], do="show")
    assert (store.objects, store.deleted) == (before, [])
    assert shown == prune(store, older_than_s=15 * DAY, in_use=keys[:1])
    assert set(store.deleted) == {*removed(shown), *shown.blobs}


def test_statements_go_before_their_blobs(store: MemoryStore):
    """At no time does the store have a statement without its blobs."""
    history(store)
    prune(store, older_than_s=15 * DAY)
    kinds = [key.partition("/")[0] for key in store.deleted]
    assert kinds == 3 * ["statements"] + 3 * ["blobs"]


def test_a_blob_that_is_still_named_stays(store: MemoryStore):
    """Artifacts share equal parts; a part is removed with the last artifact that has it."""
    raw = {"cache": b"shared"}
    first, manifest = publish(store, created=days_ago(40), raw=raw)
    second, _ = publish(store, created=days_ago(20), raw=raw)
    publish(store, created=days_ago(1), raw={"cache": b"new"})
    key = blob_key(manifest.parts[0])
    assert prune(store, older_than_s=30 * DAY).blobs == ()
    assert first not in store.objects
    assert key in store.objects
    assert prune(store, older_than_s=10 * DAY).blobs == (key,)
    assert second not in store.objects


def test_signatures_more_are_not_a_newer_build(store: MemoryStore):
    """All envelopes of an artifact count as one artifact, and are removed together."""
    keys = history(store, days=(40, 30, 20))
    signed = sign_again(store, [OTHER], trust=trusting(KEY)).statements
    assert len(signed) == 3
    result = prune(store, older_than_s=10 * DAY, keep_newest=2)
    assert removed(result) == {keys[0], *(key for key in signed if "-g" not in key)}
    check_consistent(store, [*keys[1:], *(key for key in signed if "-g" in key)])


def test_a_forgotten_blob_goes_after_a_day(store: MemoryStore):
    """New blobs without a statement are kept: a running push may have written them."""
    push(store, *build(), [KEY])
    old, young = (f"blobs/sha256/{64 * digit}" for digit in "ab")
    leave(store, old, bytes(100), age_s=GRACE_S + 60)
    leave(store, young, bytes(100), age_s=GRACE_S - 60)
    result = prune(store)
    assert result.blobs == (old,)
    assert result.freed_bytes == 100
    assert young in store.objects


@pytest.mark.parametrize(
    "name",
    ["thesis.txt", "sub/key", f"{64 * 'A'}", f"{64 * 'a'}.bak", f"{63 * 'a'}", f"x/{64 * 'a'}"],
)
def test_what_is_no_blob_of_ours_is_never_removed(store: MemoryStore, name: str):
    push(store, *build(), [KEY])
    key = f"blobs/sha256/{name}"
    leave(store, key, b"mine")
    assert prune(store).blobs == ()
    assert key in store.objects


def test_a_store_of_another_kind_is_left_alone(store: MemoryStore):
    """Without any statement, nothing is removed, because an OCI layout also has blobs by digest."""
    key = forget(store)
    with pytest.raises(ConfigError, match="no statement") as caught:
        prune(store)
    assert key in store.objects
    assert "nothing was removed" in caught.value.hint


def leave(store: MemoryStore, key: str, data: bytes, *, age_s: float = 100 * DAY) -> None:
    store.objects[key] = data
    store.modified[key] = NOW - age_s


def forget(store: MemoryStore) -> str:
    """Write an old blob that no statement names."""
    key = f"blobs/sha256/{64 * '0'}"
    leave(store, key, b"forgotten")
    return key


def test_a_statement_of_a_newer_format_keeps_its_blobs(store: MemoryStore):
    """Every format names its blobs as subjects; its other fields do not matter."""
    manifest, stored = build(created=days_ago(100))
    statement = publish_statement(store, of_format_2(manifest), KEY, name="newer")
    key = blob_key(manifest.parts[0])
    leave(store, key, stored["cache"])
    forgotten = forget(store)
    result = prune(store, older_than_s=0.0, keep_newest=0)
    assert (result.removed, result.blobs) == ((), (forgotten,))
    assert result.unreadable == (statement,)
    assert key in store.objects


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
    junk = "statements/app/Embedder/000.dsse.json"
    store.objects[junk] = UNPARSABLE[name]
    newer = publish_statement(store, of_format_2(build()[0]), KEY, name="zzz")
    forget(store)
    blobs = list_keys(store, "blobs/")
    result = prune(store, older_than_s=15 * DAY)
    assert removed(result) == set(keys[:3])
    assert (result.blobs, result.freed_bytes, result.unreadable) == ((), 0, (junk, newer))
    assert list_keys(store, "blobs/") == blobs
    assert junk in store.objects


def test_what_nobody_trusts_can_go(store: MemoryStore):
    """Signatures decide about loading, not about removing."""
    manifest, stored = build(created=days_ago(40))
    push(store, manifest, stored, [OTHER])
    result = prune(store, older_than_s=10 * DAY, keep_newest=0)
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
    published = {"statements/app/Embedder/new.dsse.json": sign(manifest.to_statement(), KEY)}
    key = blob_key(manifest.parts[0])
    busy = Busy(objects={key: stored["cache"]}, modified={key: NOW - 100 * DAY})
    push(busy, *build(), [KEY])
    forgotten = forget(busy)
    assert prune(busy).blobs == (forgotten,)
    assert key in busy.objects
