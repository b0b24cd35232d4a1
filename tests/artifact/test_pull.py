# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Pulling: what is chosen, what is refused, and what is said about the rest."""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from artifacts import (
    APP,
    DEPLOYMENT,
    MACHINE,
    PLACE,
    MemoryStore,
    blob_key,
    build,
    cache_directory,
    edited,
    fingerprint,
    new_key,
    of_format_2,
    publish_statement,
    trusting,
)
from serve_warm.artifact import manifest as artifact_manifest
from serve_warm.artifact.archive import pack_directory, unpack_directory
from serve_warm.artifact.choose import SHOWN_VARIANTS
from serve_warm.artifact.manifest import FORMAT, Place, utc_now
from serve_warm.artifact.node_cache import NodeCache, default_root
from serve_warm.artifact.pull import Pulled, confirm, expect, explain, find_fitting, pull, take
from serve_warm.artifact.push import push
from serve_warm.artifact.push import sign as sign_all
from serve_warm.errors import ArtifactNotFound, ArtifactRefused, StoreDenied, StoreError
from serve_warm.fingerprint import Fingerprint
from serve_warm.stores import Listed, Object, Sink, Store
from serve_warm.stores.local import LocalStore
from serve_warm.trust.envelope import MAX_ENVELOPE_BYTES, sign
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
    store_fixture,  # noqa: F401 - a fixture
    supersede,
    warnings,
)


def kept() -> list[str]:
    """Return the blobs in the node's cache, without locks."""
    return [path.name for path in default_root().iterdir() if path.suffix != ".lock"]


def blobs_read(store: MemoryStore) -> list[str]:
    return [key for key in store.read if key.startswith("blobs/")]


def refusal(store: Store, **options: Any) -> ArtifactRefused:
    with pytest.raises(ArtifactRefused) as caught:
        pull_here(store, **options)
    return caught.value


def miss(store: Store, **options: Any) -> ArtifactNotFound:
    with pytest.raises(ArtifactNotFound) as caught:
        pull_here(store, **options)
    return caught.value


def reasons(found: Any) -> list[str]:
    return sorted(considered.reason for considered in found.trace)


# --- the good case -------------------------------------------------------------------------
def test_a_directory_goes_through_a_store_unchanged(tmp_path: Path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir(mode=0o700)
    target.mkdir(mode=0o700)
    raw = pack_directory(cache_directory(source))
    store = LocalStore(root=tmp_path / "store")
    statement, manifest = publish(store, raw={"cache": raw, "extra": b"more"})
    pulled = pull_here(store, parts=("cache", "extra"))
    unpack_directory(io.BytesIO(pulled.raw["cache"]), target)
    assert pulled.chosen.manifest == manifest
    assert pulled.raw == {"cache": raw, "extra": b"more"}
    assert pack_directory(target) == raw
    assert pulled.chosen.key == statement
    assert pulled.stored_bytes == sum(part.stored_bytes for part in manifest.parts)
    assert [considered.reason for considered in pulled.chosen.trace] == ["fits"]
    assert min(pulled.download_s, pulled.verify_s) > 0


def test_only_the_parts_that_are_asked_for_are_downloaded(store: MemoryStore):
    """A part that nobody loads costs no time."""
    _, manifest = publish(store, raw={"cache": b"1", "extra": b"2"})
    pulled = pull_here(store, parts=("extra", "extra"))
    assert pulled.raw == {"extra": b"2"}
    assert blob_key(manifest.part("cache")) not in store.read
    assert pulled.stored_bytes == manifest.part("extra").stored_bytes


ODD_NAMES = (
    *("a", "A", "a/b", "a%2Fb", "a%252Fb", "a b", "a+b", "..", ".", "...", ".a", "%2Ea", "%2E."),
    *("\u00e9", "\u65e5\u672c", "\u65e5" * 40, "x" * 200, "x" * 201, "x" * 300, "y" * 300, "a\\b"),
    *("app#dep", "a:b", "~", "a~b"),
)


def test_any_deployment_name_finds_its_own_artifact(tmp_path: Path):
    """Names become keys that a folder can hold, and only the same name finds them."""
    store = LocalStore(root=tmp_path / "store")
    for number, name in enumerate(ODD_NAMES):
        publish(store, deployment=name, raw={"cache": str(number).encode()})
    for number, name in enumerate(ODD_NAMES):
        pulled = pull_here(store, place=Place(application="app", deployment=name))
        assert pulled.chosen.manifest.place.deployment == name
        assert pulled.raw["cache"] == str(number).encode()
        assert len(pulled.chosen.trace) == 1


# --- choosing ------------------------------------------------------------------------------
def test_an_empty_store_has_nothing(tmp_path: Path):
    """A store that nobody has pushed to is a miss like any other."""
    missed = miss(LocalStore(root=tmp_path / "absent"))
    assert "has no artifact for 'Embedder'" in str(missed)
    assert missed.trace == ()


@pytest.mark.parametrize("factor", [*MACHINE, *APP])
def test_each_factor_alone_makes_a_miss_that_names_it(store: MemoryStore, factor: str):
    publish(store)
    missed = miss(store, here=fingerprint(**{factor: "another"}))
    (considered,) = missed.trace
    assert [mismatch.factor for mismatch in considered.mismatches] == [factor]
    assert (considered.accepted, considered.reason) == (False, "fingerprint")
    assert f"{factor}: artifact" in str(missed)
    assert "here another" in str(missed)
    assert blobs_read(store) == []


def test_each_of_several_variants_serves_its_own_machine(store: MemoryStore):
    for isa in ("avx2", "avx512", "amx"):
        publish(store, built_for=fingerprint(cpu_isa=isa), raw={"cache": isa.encode()})
    for isa in ("avx2", "avx512", "amx"):
        pulled = pull_here(store, here=fingerprint(cpu_isa=isa))
        assert pulled.raw["cache"] == isa.encode()
        assert reasons(pulled.chosen) == ["fingerprint", "fingerprint", "fits"]


def test_the_newest_that_fits_wins(store: MemoryStore):
    """Time decides among fitting artifacts, whatever their keys are; the trace has them all."""
    for created in (OLDER, NEWER, NEWEST):
        supersede(store, created=created, raw={"cache": created.encode()})
    publish(store, created="2026-11-21T00:00:00.000000Z", built_for=fingerprint(torch="2.14.0+cpu"))
    pulled = pull_here(store)
    assert pulled.chosen.manifest.created == NEWEST
    accepted = [considered.created for considered in pulled.chosen.trace if considered.accepted]
    assert sorted(accepted) == [OLDER, NEWER, NEWEST]


def test_a_miss_shows_the_nearest_variants(store: MemoryStore):
    for number in range(SHOWN_VARIANTS + 2):
        publish(store, built_for=fingerprint(torch=f"2.{number}", gpu="H200", triton=f"3.{number}"))
    publish(store, built_for=fingerprint(threads="8"))
    missed = miss(store)
    lines = missed.message.splitlines()
    assert len(missed.trace) == SHOWN_VARIANTS + 3
    assert "threads: artifact 8, here 4" in lines[1]
    assert len(lines) == 1 + SHOWN_VARIANTS + 1
    assert lines[-1] == "  and 3 more"


# --- statements that are refused -----------------------------------------------------------
def test_nothing_is_read_beyond_the_statement_when_nobody_is_trusted(store: MemoryStore):
    """Without a trusted key every artifact is refused. The error has the lines to trust a key."""
    publish(store)
    refused = refusal(store, trust=Trust())
    assert refused.reason == "no_trust"
    assert "[[keys]]" in refused.hint
    assert blobs_read(store) == []


FORGED_ENVELOPES = {
    "truncated": (lambda envelope: envelope[:-10], "bad_statement"),
    "unsigned": (lambda e: edited(e, signatures=[]), "untrusted"),
    "resigned_by_an_enemy": (lambda _: sign(build()[0].to_statement(), OTHER), "untrusted"),
    "oversize": (lambda e: e.ljust(MAX_ENVELOPE_BYTES + 1), "too_large"),
}
"""One of each reason; test_envelope.py and test_verify.py have more."""


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


def test_a_statement_moved_to_another_deployment_is_refused(store: MemoryStore):
    manifest, _ = build(deployment="Other")
    publish_statement(store, manifest.to_statement(), KEY, name="moved")
    refused = refusal(store)
    assert refused.reason == "bad_statement"
    assert "'Other'" in refused.message


def test_a_refusal_is_seen_when_nothing_fits(store: MemoryStore):
    publish(store, built_for=fingerprint(torch="2.14.0+cpu"))
    forged = publish_statement(store, build()[0].to_statement(), OTHER, name="zzz")
    refused = refusal(store)
    assert (refused.reason, refused.statement) == ("untrusted", forged)
    assert reasons(refused) == ["fingerprint", "untrusted"]


def test_a_refused_statement_does_not_stop_a_good_one(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
):
    """Junk in a store cannot keep replicas from their artifact, but it is logged and traced."""
    good, _ = publish(store)
    publish_statement(store, build(created=NEWEST)[0].to_statement(), OTHER, name="000")
    pulled = pull_here(store)
    assert pulled.chosen.key == good
    assert [considered.reason for considered in pulled.chosen.trace] == ["untrusted", "fits"]
    (warning,) = warnings(caplog)
    assert "reason=untrusted" in warning


def test_what_an_unbelieved_statement_says_is_not_repeated(store: MemoryStore):
    """Dates and factors of an unknown writer do not get into the trace."""
    publish_statement(store, build(created=NEWEST)[0].to_statement(), OTHER, name="forged")
    (considered,) = refusal(store).trace
    assert (considered.created, considered.mismatches) == ("", ())


# --- blobs that are refused ----------------------------------------------------------------
@pytest.mark.parametrize("name", FORGED_BLOBS)
def test_a_forged_blob_is_refused(store: MemoryStore, name: str):
    forge, reason = FORGED_BLOBS[name]
    raw = {"cache": b"good", "extra": bytes(range(256)) * 9}
    statement, manifest = publish(store, raw=raw)
    refusal(store, trust=trusting(OTHER))
    key = blob_key(manifest.part("extra"))
    good, store.objects[key] = store.objects[key], forge(store.objects[key])
    before = open_files()
    refused = refusal(store, parts=("cache", "extra"))
    assert (refused.reason, refused.statement) == (reason, statement)
    assert [considered.reason for considered in refused.trace] == ["fits"]
    assert open_files() == before
    assert kept() == [manifest.part("cache").sha256]
    store.objects[key] = good
    assert pull_here(store, parts=("cache", "extra")).raw == raw


def test_a_missing_blob_is_refused(store: MemoryStore):
    _, manifest = publish(store)
    del store.objects[blob_key(manifest.parts[0])]
    refused = refusal(store)
    assert refused.reason == "missing_part"
    assert "part cache" in refused.message


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


@pytest.mark.parametrize("limit", ["MAX_STORED_BYTES", "MAX_RAW_BYTES"])
def test_a_part_over_the_limit_is_not_downloaded(
    store: MemoryStore, limit: str, monkeypatch: pytest.MonkeyPatch
):
    """The signed sizes are compared with the limits before the blob is asked for."""
    _, manifest = publish(store, raw={"cache": b"kernels"})
    part = manifest.parts[0]
    size = part.stored_bytes if limit == "MAX_STORED_BYTES" else part.raw_bytes
    monkeypatch.setattr(artifact_manifest, limit, size)
    assert pull_here(store).raw
    store.read.clear()
    shutil.rmtree(default_root())
    monkeypatch.setattr(artifact_manifest, limit, size - 1)
    refused = refusal(store)
    assert refused.reason == "too_large"
    assert blobs_read(store) == []


def test_a_blob_of_the_wrong_size_is_not_downloaded(store: MemoryStore):
    """A store that holds gigabytes under the key cannot make a replica fetch them."""
    _, manifest = publish(store)
    key = blob_key(manifest.parts[0])
    store.objects[key] += bytes(1000)
    assert refusal(store).reason == "size_mismatch"
    assert key not in store.read


def test_a_store_that_cannot_be_read_is_no_miss():
    """An outage is not an empty store, because a retry can help."""

    class Broken(MemoryStore):
        def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
            raise StoreError(f"{self.uri}: connection refused")

    with pytest.raises(StoreError, match="connection refused"):
        pull_here(Broken())


# --- age, deny-list, newer formats ---------------------------------------------------------
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
    expected = ["denied", "expired", "fingerprint", "fits", "newer_format", "untrusted"]
    assert reasons(pulled.chosen) == expected
    others = [item for item in pulled.chosen.trace if not (item.accepted or item.mismatches)]
    assert all(item.message for item in others)


def test_a_later_format_is_passed_over_with_its_reason():
    """The older release loads the newest artifact that it can read."""
    store = MemoryStore()
    readable, _ = publish(store, created=OLDER)
    later, _ = build(created=NEWEST)
    name = publish_statement(store, of_format_2(later), KEY, name="0" * 16)
    chosen = pull_here(store).chosen.key
    store.delete(readable)
    with pytest.raises(ArtifactRefused) as caught:
        pull_here(store)
    assert chosen == readable
    assert caught.value.reason == "newer_format"
    assert f"format {FORMAT + 1}, but this release reads format {FORMAT}" in caught.value.message
    assert "upgrade" in caught.value.hint
    assert [considered.statement for considered in caught.value.trace] == [name]


@pytest.mark.parametrize("first", ["rules 1", "rules 2"])
def test_each_release_uses_the_artifact_of_its_own_rules(first: str):
    """Neither artifact supersedes the other one, whichever release builds first."""
    store, keys = MemoryStore(), {}
    second = {"rules 1": "rules 2", "rules 2": "rules 1"}[first]
    for created, rules in ((OLDER, first), (NEWEST, second)):
        here = fingerprint(serve_warm=rules)
        manifest, stored = build(created=created, built_for=here, raw={"cache": rules.encode()})
        keys[rules] = push(store, manifest, stored, [KEY])
    pulled = {rules: pull_here(store, here=fingerprint(serve_warm=rules)) for rules in keys}
    assert {rules: each.chosen.key for rules, each in pulled.items()} == keys
    assert all(bytes(each.raw["cache"]) == rules.encode() for rules, each in pulled.items())


def test_an_expired_artifact_for_another_machine_is_a_miss(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
):
    """A variant for another machine raises no alarm, and fails no start that fails on refusals."""
    publish(store, created=OLDER.replace("2026", "2020"), built_for=fingerprint(threads="8"))
    miss(store, trust=trusting(KEY, max_age_s=86400.0))
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("limit", "reason"), [("age", "expired"), ("statement", "denied"), ("part", "denied")]
)
def test_what_is_expired_or_denied_is_refused(store: MemoryStore, limit: str, reason: str):
    """A good signature does not help against either, and no blob is asked for."""
    _, manifest = publish(store, created=OLDER.replace("2026", "2020"))
    digest = hashlib.sha256(manifest.to_statement()).hexdigest()
    limits: dict[str, Any] = {
        "age": {"max_age_s": 60.0},
        "statement": {"denied": frozenset({digest})},
        "part": {"denied": frozenset({manifest.parts[0].sha256})},
    }
    refused = refusal(store, trust=trusting(KEY, **limits[limit]))
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


def test_an_artifact_that_is_pruned_while_it_is_pulled_is_worth_another_try(store: MemoryStore):
    """The statement was read and is gone with its blob: an error that a start tries again."""

    class Pruning(MemoryStore):
        def head(self, key: str) -> Object:
            if key.startswith("blobs/"):
                self.objects.clear()
            return super().head(key)

    publish(store)
    with pytest.raises(StoreError, match="was pruned while it was being pulled"):
        pull_here(Pruning(objects=store.objects))


def test_no_room_to_unpack_is_an_error_of_the_store(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
):
    """The error names the full or missing folder for temporary files, and no file stays open."""
    publish(store)
    here = {"place": PLACE, "fingerprint": fingerprint(), "trust": trusting(KEY)}
    with NodeCache.open(default_root()) as cache:
        monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
        with pytest.raises(StoreError, match="cannot be written to /nowhere"):
            pull(store, cache=cache, **here)


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


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
    assert "cpu: portable" in miss(store).hint


def test_every_statement_is_explained_in_the_order_of_use(store: MemoryStore):
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
    key, _ = publish(store, deployment="Other")
    publish(store)
    (item,) = explain(store, fingerprint=fingerprint(), trust=trusting(KEY), deployment="Other")
    assert (item.statement, item.accepted) == (key, True)
    assert explain(store, fingerprint=fingerprint(), trust=trusting(KEY), deployment="x") == []


# --- what a store does not give ------------------------------------------------------------
class Partly(MemoryStore):
    """A store that does not give some of its statements."""

    withheld: tuple[str, ...] = ()

    def get(self, key: str, *, max_bytes: int) -> bytes:
        if key in self.withheld:
            raise StoreDenied(f"{self.uri}: no access to {key!r}")
        return super().get(key, max_bytes=max_bytes)


def test_one_statement_that_cannot_be_read_does_not_hinder_another():
    """A statement under a key of its own is skipped with its reason, and the good one is taken."""
    store = Partly()
    good, _ = publish(store)
    store.objects["statements/app/Embedder/locked.dsse.json"] = b"?"
    store.withheld = ("statements/app/Embedder/locked.dsse.json",)
    pulled = pull_here(store)
    assert pulled.chosen.key == good
    assert [c.reason for c in pulled.chosen.trace] == ["fits", "unreadable"]


@pytest.mark.parametrize(
    ("built_on", "said"), [("NVIDIA A100", "NVIDIA A100"), ("none", "a machine without a GPU")]
)
def test_an_artifact_of_another_gpu_says_which(store: MemoryStore, built_on: str, said: str):
    publish(store, built_for=fingerprint(gpu=built_on))
    hint = miss(store, here=fingerprint(gpu="NVIDIA H200")).hint
    start = f"the artifact was built on {said}, not on NVIDIA H200; build an artifact on"
    assert hint.startswith(start)


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
        store.objects[f"statements/app/Embedder/{number}.dsse.json"] = b"junk"
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
        def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
            lists.append(prefix)
            return super().pages(prefix)

    def cost(work: Callable[[Store], object]) -> tuple[int, int]:
        lists.clear()
        counted = Counted(objects=dict(store.objects))
        work(counted)
        return len(lists), sum(key.startswith("statements/") for key in counted.read)

    assert cost(lambda s: explain(s, fingerprint=fingerprint(), trust=trusting(KEY))) == (1, 2)
    assert cost(lambda s: sign_all(s, [OTHER], trust=trusting(KEY))) == (1, 2)
    assert cost(pull_here) == (1, 1)


# --- in steps ------------------------------------------------------------------------------
def taken_early(
    store: Store, *, here: Fingerprint | None = None, unknown: tuple[str, ...] = ()
) -> tuple[Pulled | None, Any]:
    """Make a pull before the app is known. Return it, closed, with the found statements."""
    found = find_fitting(store, place=PLACE, trust=trusting(KEY), fingerprint=None)
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
    store.objects["statements/app/Embedder/junk.dsse.json"] = b"junk"
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
