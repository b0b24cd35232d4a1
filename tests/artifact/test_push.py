# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Publishing, signing again and copying: what is written, in which order, and what stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from artifacts import (
    DEPLOYMENT,
    LONG_S,
    PLACE,
    MemoryStore,
    blob_key,
    build,
    fingerprint,
    new_key,
    publish_statement,
    trusting,
)
from serve_warm.artifact.code_and_model import NOTHING_KNOWN, CodeAndModel
from serve_warm.artifact.push import copy as copy_all
from serve_warm.artifact.push import find_published, push
from serve_warm.artifact.push import sign as sign_all
from serve_warm.errors import (
    AlreadyPublished,
    ArtifactNotFound,
    ArtifactRefused,
    ConfigError,
    StoreError,
)
from serve_warm.stores import Listed, Store, list_keys
from serve_warm.stores.local import LocalStore
from serve_warm.trust.envelope import MAX_SIGNATURES, sign
from serve_warm.trust.policy import Trust, UnsignedOk
from transfers import (
    KEY,
    NEWER,
    NEWEST,
    OLDER,
    OTHER,
    publish,
    pull_here,
    sign_again,
    store_fixture,  # noqa: F401 - a fixture
    supersede,
    warnings,
)


def copy(*args: Any, **options: Any) -> list[str]:
    """Copy a store of which nothing is left out."""
    done = copy_all(*args, **options)
    assert done.refused == ()
    return list(done.statements)


def statements(store: Store) -> list[str]:
    return list_keys(store, "statements/")


def blobs_written(store: MemoryStore) -> list[str]:
    return [key for key in store.written if key.startswith("blobs/")]


# --- push ----------------------------------------------------------------------------------
def test_the_statement_is_written_last(store: MemoryStore):
    """A reader that sees a statement finds all blobs that it names."""
    statement, _ = publish(store, raw={"cache": b"1", "extra": b"2"})
    assert store.written[-1] == statement
    assert [key.startswith("blobs/") for key in store.written] == [True, True, False]


def test_a_push_that_broke_off_shows_nothing_and_can_be_repeated(store: MemoryStore):
    """If a push ends after the blobs and before the statement, no artifact is visible."""
    manifest, stored = build()
    statement = push(store, manifest, stored, [KEY])
    del store.objects[statement]
    with pytest.raises(ArtifactNotFound):
        pull_here(store)
    push(store, manifest, stored, [KEY])
    assert pull_here(store).chosen.key == statement


def test_pushing_again_changes_nothing(store: MemoryStore):
    """A statement that is there is found, whatever stands before it in the store's list."""
    manifest, stored = build()
    keys = [push(store, manifest, stored, [key]) for key in (KEY, OTHER)]
    _, newest = supersede(store, created=NEWEST, raw={"cache": b"2"})
    before = dict(store.objects)
    again = [push(store, manifest, stored, [key]) for key in (KEY, OTHER)]
    supersede(store, created=NEWEST, raw={"cache": b"2"})
    assert (again, store.objects) == (keys, before)
    assert pull_here(store).chosen.manifest == newest


def test_parts_that_are_not_those_of_the_manifest_are_not_pushed(store: MemoryStore):
    """A mistake of the builder is found before anything is written."""
    manifest, stored = build(raw={"cache": b"1", "extra": b"2"})
    wrong = {
        "missing_part": {"cache": stored["cache"]},
        "digest_mismatch": {"cache": stored["extra"], "extra": stored["cache"]},
        "truncated": {**stored, "cache": b""},
    }
    for reason, parts in wrong.items():
        with pytest.raises(ArtifactRefused) as caught:
            push(store, manifest, parts, [KEY])
        assert caught.value.reason == reason
    assert store.objects == {}


def test_a_push_without_a_key_writes_nothing(store: MemoryStore):
    """Every reader would refuse an unsigned artifact."""
    manifest, stored = build()
    with pytest.raises(ConfigError):
        push(store, manifest, stored, [])
    assert store.objects == {}


def test_the_same_artifact_of_another_signer_is_one_more_statement(store: MemoryStore):
    """Signatures are added beside it: no blob is written again, and both signers' readers load."""
    manifest, stored = build()
    first = push(store, manifest, stored, [KEY])
    store.written.clear()
    second = push(store, manifest, stored, [OTHER])
    assert second.startswith(first.removesuffix(".dsse.json") + "-s")
    assert store.written == [second]
    for key in (KEY, OTHER):
        assert pull_here(store, trust=trusting(key)).chosen.manifest == manifest


@pytest.mark.parametrize(
    "fields",
    [
        {"raw": {"cache": b"x", "extra": b"1"}},
        {"raw": {"cache": b"kernels"}},
        {"raw": {"cache": b"kernels", "extra": b"1"}, "created": NEWEST},
    ],
    ids=["changed", "missing", "later"],
)
def test_another_artifact_for_a_published_variant_is_refused(
    store: MemoryStore, fields: dict[str, Any]
):
    there, _ = publish(store, raw={"cache": b"kernels", "extra": b"1"}, created=OLDER)
    before, _ = dict(store.objects), store.written.clear()
    with pytest.raises(AlreadyPublished) as caught:
        publish(store, **fields)
    assert f"as {there} (created {OLDER})" in caught.value.message
    assert caught.value.statement == there
    assert "--if-published supersede" in caught.value.hint
    assert (store.objects, store.written) == (before, [])


def test_an_artifact_for_another_variant_is_not_refused(store: MemoryStore):
    """Write-once is about one deployment on one kind of machine."""
    keys = [
        publish(store)[0],
        publish(store, raw={"cache": b"2"}, built_for=fingerprint(threads="8"))[0],
        publish(store, raw={"cache": b"3"}, deployment="Other")[0],
    ]
    assert sorted(keys) == statements(store)


def test_a_later_artifact_can_supersede(store: MemoryStore):
    """On request it is published beside the others, and replicas take it."""
    keys = []
    for created in (OLDER, NEWER, NEWEST):
        keys.append(supersede(store, created=created, raw={"cache": created.encode()})[0])
        assert pull_here(store).raw == {"cache": created.encode()}
    stem = f"statements/app/Embedder/{fingerprint().key}"
    assert keys == [f"{stem}.dsse.json", f"{stem}-g2.dsse.json", f"{stem}-g3.dsse.json"]
    assert find_published(store, PLACE, fingerprint()) == keys


@pytest.mark.parametrize("created", [OLDER, NEWER])
def test_what_replicas_would_not_take_does_not_supersede(store: MemoryStore, created: str):
    """An artifact that is not later than the published one would be there without effect."""
    publish(store, created=NEWER)
    before = dict(store.objects)
    message = "replicas would keep loading the artifact in the store"
    with pytest.raises(AlreadyPublished, match=message):
        supersede(store, created=created, raw={"cache": b"2"})
    assert store.objects == before


OLD_CODE, NEW_CODE = (CodeAndModel(code=digit * 16, model="f" * 16) for digit in "12")


def test_an_older_artifact_of_other_code_supersedes(store: MemoryStore):
    """Replicas of this code take it, although a newer artifact is published."""
    publish(store, created=NEWER, made_of=NEW_CODE)
    key, manifest = supersede(store, created=OLDER, made_of=OLD_CODE, raw={"cache": b"2"})
    assert key.endswith("-g2.dsse.json")
    assert pull_here(store, here_of=OLD_CODE).chosen.manifest == manifest
    with pytest.raises(AlreadyPublished, match="of the same code and model"):
        supersede(store, created=OLDER, made_of=NEW_CODE, raw={"cache": b"3"})


class LateList(LocalStore):
    """A folder whose list, asked for before a push writes, shows none of the other pushes."""

    def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
        found = list(super().pages(prefix))
        if getattr(_seen, "barrier", None):
            barrier, _seen.barrier = _seen.barrier, None
            barrier.wait()
        return iter(found)


_seen = threading.local()


def racing(count: int, publisher: Callable[[int], Any]) -> list[Any]:
    """Return what publishers return or raise that all look at the store before any writes."""
    barrier = threading.Barrier(count)

    def run(number: int) -> Any:
        _seen.barrier = barrier
        try:
            return publisher(number)
        except StoreError as error:
            return error

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


@pytest.mark.parametrize(
    ("on_taken", "has_older"), [("refuse", False), ("supersede", False), ("supersede", True)]
)
def test_of_racing_publishers_of_different_things_one_wins(
    tmp_path: Path, on_taken: str, has_older: bool
):
    """All publishers saw the same. One publishes, and supersedes nothing that it has not seen."""
    store = LateList(root=tmp_path / "store")
    older = [publish(store, created=OLDER)[0]] if has_older else []

    results = racing(
        8,
        lambda number: publish(
            store,
            on_taken=on_taken,
            raw={"cache": bytes([number])},
            created=NEWEST.replace(":02", f":1{number}"),
        )[0],
    )

    (winner,) = [result for result in results if isinstance(result, str)]
    losers = [result for result in results if not isinstance(result, str)]
    assert [type(loser) for loser in losers] == [AlreadyPublished] * 7
    assert find_published(store, PLACE, fingerprint()) == [*older, winner]
    assert pull_here(store).raw == {"cache": bytes([results.index(winner)])}


def test_racing_publishers_of_the_same_thing_all_succeed(tmp_path: Path):
    store = LateList(root=tmp_path / "store")
    manifest, stored = build()
    keys = [KEY, KEY, KEY, OTHER, OTHER, OTHER, new_key(), new_key()]
    results = racing(8, lambda number: push(store, manifest, stored, [keys[number]]))
    assert all(isinstance(result, str) for result in results)
    assert sorted(set(results)) == statements(store)
    assert len(statements(store)) == 4
    for key in keys:
        assert pull_here(store, trust=trusting(key)).chosen.manifest == manifest


@pytest.mark.parametrize("vanishes", [1, 2])
def test_a_blob_that_is_pruned_while_it_is_pushed_is_written_again(vanishes: int):
    """A push ends with all blobs in place, though an old one of them was taken for forgotten."""

    class Pruned(MemoryStore):
        def create(self, key: str, source: bytes | BinaryIO) -> None:
            super().create(key, source)
            if len(self.written) == vanishes:
                self.delete(self.written[0])

    pruned = Pruned()
    _, manifest = publish(pruned)
    assert blobs_written(pruned) == 2 * [blob_key(manifest.parts[0])]
    assert pull_here(pruned).chosen.manifest == manifest


# --- after a rotation ----------------------------------------------------------------------
def test_a_rotation_needs_no_new_upload(store: MemoryStore, caplog: pytest.LogCaptureFixture):
    """Signed again, an artifact loads where only the new key is trusted, and where only the old."""
    old, manifest = publish(store)
    new_only = trusting(OTHER)
    with pytest.raises(ArtifactRefused):
        pull_here(store, trust=new_only)
    store.written.clear()
    caplog.clear()

    (new,) = sign_again(store, [OTHER], trust=trusting(KEY))

    assert store.written == [new]
    assert pull_here(store, trust=trusting(KEY)).chosen.manifest == manifest
    pulled = pull_here(store, trust=new_only)
    assert (pulled.chosen.manifest, pulled.chosen.key) == (manifest, new)
    assert pulled.chosen.believed.verified.signers == ("key0",)
    assert {item.statement: item.reason for item in pulled.chosen.trace} == {
        old: "untrusted",
        new: "fits",
    }
    with pytest.raises(ArtifactNotFound) as caught:
        pull_here(store, here=fingerprint(threads="8"), trust=new_only)
    assert sorted(item.reason for item in caught.value.trace) == ["fingerprint", "untrusted"]
    assert warnings(caplog) == []


def test_all_or_one_deployment_is_signed_again(store: MemoryStore):
    publish(store)
    publish(store, deployment="Other")
    (one,) = sign_again(store, [OTHER], trust=trusting(KEY), deployment="Other")
    (other,) = sign_again(store, [OTHER], trust=trusting(KEY))
    assert one.startswith("statements/app/Other/")
    assert other.startswith("statements/app/Embedder/")
    with pytest.raises(ArtifactNotFound):
        sign_again(store, [OTHER], trust=trusting(KEY), deployment="Third")


def junk(payload: bytes, *keys: Any) -> bytes:
    """Return an envelope that is full of signatures, of nobody but `keys`."""
    strangers = [new_key() for _ in range(MAX_SIGNATURES - len(keys))]
    return sign(payload, *strangers, *keys)


@pytest.mark.parametrize("copied", [(), (KEY,)], ids=["nobody", "copied"])
def test_an_envelope_full_of_junk_does_not_stop_a_rotation(
    store: MemoryStore, copied: tuple[Any, ...]
):
    """Anyone with write access can add envelopes."""
    _, manifest = publish(store)
    for name in ("000", "zzz"):
        envelope = junk(manifest.to_statement(), *copied)
        store.create(f"statements/app/Embedder/{name}.dsse.json", envelope)
    (new,) = sign_again(store, [OTHER], trust=trusting(KEY))
    pulled = pull_here(store, trust=trusting(OTHER))
    assert (pulled.chosen.manifest, pulled.chosen.key) == (manifest, new)
    assert new in find_published(store, PLACE, fingerprint())
    assert sign_again(store, [OTHER], trust=trusting(KEY)) == []


def test_what_is_not_trusted_here_is_not_signed(store: MemoryStore):
    """A signature vouches for all of it: a stranger's artifact is left out, and said."""
    publish(store)
    foreign = publish_statement(store, build(created=NEWEST)[0].to_statement(), OTHER, name="zz")
    store.objects["statements/app/Embedder/junk.dsse.json"] = b"{}"
    key = new_key()
    done = sign_all(store, [key], trust=trusting(KEY))
    assert len(done.statements) == 1
    assert [(r.reason, r.statement) for r in done.refused] == [
        ("bad_statement", "statements/app/Embedder/junk.dsse.json"),
        ("untrusted", foreign),
    ]
    assert pull_here(store, trust=trusting(key)).chosen.key == done.statements[0]


def test_nothing_is_signed_where_nothing_is_trusted(store: MemoryStore):
    assert unsigned(store, [new_key()], trusting(OTHER), ArtifactRefused).reason == "untrusted"


def unsigned(store: MemoryStore, keys: list[Any], trust: Trust, kind: type[Exception]) -> Any:
    """Return the error of a rotation that leaves a published artifact as it is."""
    publish(store)
    before = dict(store.objects)
    with pytest.raises(kind) as caught:
        sign_again(store, keys, trust=trust)
    assert store.objects == before
    return caught.value


def test_what_is_only_believed_unsigned_is_not_signed(store: MemoryStore):
    """An exception for one store does not become a signature that holds everywhere."""
    store.uri = "file:///srv/artifacts"
    allowed = Trust(unsigned_ok=(UnsignedOk(store=store.uri, reason="a test"),), max_age_s=LONG_S)
    refused = unsigned(store, [OTHER], allowed, ArtifactRefused)
    assert refused.reason == "untrusted"
    assert "pinned = [" in refused.hint


def test_signing_without_a_key_changes_nothing(store: MemoryStore):
    unsigned(store, [], trusting(KEY), ConfigError)


# --- copying -------------------------------------------------------------------------------
@pytest.fixture
def target() -> MemoryStore:
    return MemoryStore(uri="memory:target")


def test_a_store_is_copied_as_it_is(store: MemoryStore, target: MemoryStore):
    """Every variant of every deployment arrives byte for byte, signatures included; and once."""
    publish(store, raw={"cache": b"1", "extra": b"2"})
    publish(store, built_for=fingerprint(threads="8"))
    publish(store, deployment="Other")
    copied = copy(store, target, trust=trusting(KEY))
    again = copy(store, target, trust=trusting(KEY))
    assert target.objects == store.objects
    assert sorted(copied) == sorted(again) == statements(store)


def test_what_was_superseded_stays_behind(store: MemoryStore, target: MemoryStore):
    """A store with a history is copied into an empty one without asking for anything."""
    for created in (OLDER, NEWER, NEWEST):
        supersede(store, created=created, raw={"cache": created.encode()})
    (copied,) = copy(store, target, trust=trusting(KEY))
    assert copied == f"statements/app/Embedder/{fingerprint().key}.dsse.json"
    assert pull_here(target).raw == {"cache": NEWEST.encode()}
    assert len(target.objects) == 2


def test_the_newest_of_each_code_and_model_is_copied(store: MemoryStore, target: MemoryStore):
    """Replicas find the same best artifact in the copy. A copy that broke off can be repeated."""
    made = {
        created: supersede(store, created=created, made_of=of, raw={"cache": created.encode()})[1]
        for created, of in ((OLDER, OLD_CODE), (NEWER, OLD_CODE), (NEWEST, NEW_CODE))
    }
    first, second = copy(store, target, trust=trusting(KEY))
    assert second == first.replace(".dsse", "-g2.dsse")
    assert pull_here(target, here_of=OLD_CODE).chosen.manifest == made[NEWER]
    for here_of in (NEW_CODE, NOTHING_KNOWN):
        assert pull_here(target, here_of=here_of).chosen.manifest == made[NEWEST]
    whole = dict(target.objects)
    del target.objects[second]
    copy(store, target, trust=trusting(KEY))
    assert target.objects == whole


def test_a_copy_of_only_the_newest_artifact_can_be_completed(
    store: MemoryStore, target: MemoryStore
):
    """Earlier versions copied nothing else. Artifacts without code and model are from these."""
    _, manifest = publish(store, created=OLDER, made_of=OLD_CODE, raw={"cache": b"1"})
    supersede(store, created=NEWER, raw={"cache": b"2"})
    newest, _ = supersede(store, created=NEWEST, made_of=NEW_CODE, raw={"cache": b"3"})
    target.objects = {
        newest.replace("-g3", "") if key == newest else key: data
        for key, data in store.objects.items()
        if key == newest or not key.startswith("statements/")
    }
    assert len(copy(store, target, trust=trusting(KEY))) == len(statements(target)) == 3
    assert pull_here(target, here_of=OLD_CODE).chosen.manifest == manifest


def test_a_copy_with_several_artifacts_does_not_replace_a_foreign_one(
    store: MemoryStore, target: MemoryStore
):
    for created, of in ((NEWER, OLD_CODE), (NEWEST, NEW_CODE)):
        supersede(store, created=created, made_of=of, raw={"cache": created.encode()})
    publish(target, created=OLDER, made_of=OLD_CODE)
    before = dict(target.objects)
    with pytest.raises(AlreadyPublished):
        copy(store, target, trust=trusting(KEY))
    assert target.objects == before


def test_after_a_rotation_the_old_envelope_does_not_stop_a_copy(
    store: MemoryStore, target: MemoryStore
):
    """If only the new key is trusted, only the envelope with its signature is copied."""
    publish(store)
    sign_again(store, [OTHER], trust=trusting(KEY))
    (copied,) = copy(store, target, trust=trusting(OTHER))
    assert statements(target) == [copied]
    assert pull_here(target, trust=trusting(OTHER)).chosen.key == copied


def test_one_deployment_can_be_copied(store: MemoryStore, target: MemoryStore):
    publish(store)
    publish(store, deployment="Other", raw={"cache": b"2"})
    (copied,) = copy(store, target, trust=trusting(KEY), deployment="Other")
    assert statements(target) == [copied]
    assert len(list_keys(target, "blobs/")) == 1
    with pytest.raises(ArtifactNotFound, match="no artifact for 'Third'"):
        copy(store, target, trust=trusting(KEY), deployment="Third")


def test_a_copy_does_not_replace_what_is_published(store: MemoryStore, target: MemoryStore):
    """The target is write-once as ever, and superseding is asked for as ever."""
    publish(store, created=NEWEST)
    publish(target, created=OLDER, raw={"cache": b"older"})
    before = dict(target.objects)
    with pytest.raises(AlreadyPublished):
        copy(store, target, trust=trusting(KEY))
    assert target.objects == before
    (copied,) = copy(store, target, trust=trusting(KEY), on_taken="supersede")
    assert copied.endswith("-g2.dsse.json")
    assert pull_here(target).chosen.manifest.created == NEWEST


def test_what_a_pull_refuses_is_left_out_and_the_others_are_copied(
    store: MemoryStore, target: MemoryStore
):
    """One bad blob in a store, or a stranger's artifact, does not stop the mirror."""
    bad, manifest = publish(store, deployment="Bad", raw={"cache": b"bad"})
    good, _ = publish(store, deployment="Good", raw={"cache": b"good"})
    foreign = publish_statement(store, build(created=NEWEST)[0].to_statement(), OTHER, name="zzz")
    store.objects[blob_key(manifest.parts[0])] = bytes(manifest.parts[0].stored_bytes)
    done = copy_all(store, target, trust=trusting(KEY))
    assert done.statements == (good,)
    assert {(r.reason, r.statement) for r in done.refused} == {
        ("digest_mismatch", bad),
        ("untrusted", foreign),
    }
    assert statements(target) == [good]


def test_a_statement_under_another_deployment_is_not_spread(
    store: MemoryStore, target: MemoryStore
):
    """A statement that a pull refuses under this deployment is not copied either."""
    manifest, stored = build(deployment="Other")
    publish_statement(store, manifest.to_statement(), KEY, name="moved")
    store.create(blob_key(manifest.parts[0]), stored["cache"])
    with pytest.raises(ArtifactRefused) as caught:
        copy(store, target, trust=trusting(KEY), deployment=DEPLOYMENT)
    assert caught.value.reason == "bad_statement"
    assert target.objects == {}
