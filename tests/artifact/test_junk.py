# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Junk statements: a pull finds its artifact in a bounded time, and says what it skipped."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from artifacts import (
    PLACE,
    MemoryStore,
    build,
    edited,
    fingerprint,
    new_key,
    publish_statement,
    trusting,
)
from junk import SHAPES, plant
from serve_warm.artifact.pull import find_fitting
from serve_warm.artifact.reading_order import MAX_READ, MAX_WORK_BYTES
from serve_warm.artifact.statements import CHECK_BYTES, GLANCE_BYTES, READERS, statements_of
from serve_warm.errors import ArtifactRefused
from serve_warm.stores.local import LocalStore
from serve_warm.trust.envelope import MAX_ENVELOPE_BYTES, MAX_SIGNATURES, sign
from serve_warm.trust.keys import TrustedKey
from transfers import KEY, NEWEST, OLDER, OTHER, publish, pull_here, supersede, warnings

FOLDER = statements_of(PLACE)
VARIANT = fingerprint().key
NAMES = {"any name": "{}.dsse.json", "our variant": VARIANT + "-s{:08x}.dsse.json"}
MOST_READ_BYTES = MAX_READ * GLANCE_BYTES + MAX_WORK_BYTES + READERS * MAX_ENVELOPE_BYTES
"""What a pull may read of junk: at first a glance at each, then the budget, and the reads that were
begun before it was spent. `tests/benchmarks/faults_junk.py` measures the seconds."""
MOST_CHECKED_BYTES = MAX_READ * MAX_SIGNATURES * GLANCE_BYTES + 8 * MAX_WORK_BYTES
"""What it may hash for signatures: all of each glance, then the budget, of which a hashed byte
takes an eighth."""
TRUSTED_ID = trusting(KEY).keys[0].id
FILLING = {"filling": "x" * (2 * GLANCE_BYTES)}
"""Facts that make a statement too large to be read at once."""
TIMES = ("older", "newer")
WORST = ("nested just below the limit", "wrong signatures of a trusted key", "too many signatures")


def lane_of(shape: str, _name: str, size: int, when: str) -> Sequence[pytest.MarkDecorator]:
    """Return the marks of a case: the smaller and older junk is for `make stress`."""
    if shape == WORST[0]:
        return ()
    is_rare = (size == GLANCE_BYTES and shape not in WORST) or when == "older"
    return [pytest.mark.stress if is_rare else pytest.mark.slow]


CASES = [
    *((shape, "our variant", MAX_ENVELOPE_BYTES, "newer") for shape in SHAPES),
    *((shape, "our variant", GLANCE_BYTES, "newer") for shape in SHAPES),
    *((shape, "any name", MAX_ENVELOPE_BYTES, when) for shape in WORST for when in TIMES),
    *((shape, "our variant", MAX_ENVELOPE_BYTES, "older") for shape in WORST),
]


@pytest.mark.parametrize(
    ("shape", "name", "size", "when"),
    [pytest.param(*case, marks=lane_of(*case)) for case in CASES],
)
def test_a_pull_beside_junk_is_short_and_finds_its_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, *, name: str, size: int, when: str
):
    """Half a gibibyte of junk costs a bounded amount of work, and hides nothing."""
    store = LocalStore(root=tmp_path / "store")
    good, manifest = publish(store)
    place = time.time() + 3600 if when == "newer" else manifest.created_unix - 86400
    data = SHAPES[shape](size, TRUSTED_ID)
    plant(store.root / FOLDER, NAMES[name], data, count=MAX_READ, modified_unix=place)

    work = Counter[str]()
    get, signed = LocalStore.get, TrustedKey.signed

    def count_read(self: LocalStore, key: str, *, max_bytes: int) -> bytes:
        found = get(self, key, max_bytes=max_bytes)
        work["read"] += len(found)
        return found

    def count_checked(self: TrustedKey, message: bytes, signature: bytes) -> bool:
        work["checked"] += max(len(message), CHECK_BYTES)
        return signed(self, message, signature)

    monkeypatch.setattr(LocalStore, "get", count_read)
    monkeypatch.setattr(TrustedKey, "signed", count_checked)
    pulled = pull_here(store)

    assert pulled.chosen.key == good
    assert work["read"] <= MOST_READ_BYTES
    assert work["checked"] <= MOST_CHECKED_BYTES


def add_junk(store: MemoryStore, data: bytes, count: int) -> None:
    store.objects |= {f"{FOLDER}{VARIANT}-s{n:08x}.dsse.json": data for n in range(count)}


def unnamed(payload: bytes) -> bytes:
    """Return a signed envelope as a tool writes it that gives no key ids."""
    [signature] = json.loads(sign(payload, KEY))["signatures"]
    return edited(sign(payload, KEY), signatures=[{"sig": signature["sig"]}])


@pytest.mark.parametrize("kind", ["large", "without a key id"])
@pytest.mark.parametrize("shape", ["zeros", "an unsigned statement", "wrong signatures"])
def test_an_artifact_that_is_read_last_is_found(kind: str, shape: str):
    """A large statement, or one without a key id, is found beside junk up to the limit."""
    store = MemoryStore()
    good, manifest = publish(store, facts=FILLING if kind == "large" else {})
    if kind == "without a key id":
        store.objects[good] = unnamed(manifest.to_statement())
    names = {"wrong signatures": "wrong signatures without key ids"}
    data = SHAPES[names.get(shape, shape)](MAX_ENVELOPE_BYTES, "")
    checks = MAX_SIGNATURES if shape == "wrong signatures" else 0
    add_junk(store, data, MAX_WORK_BYTES // (len(data) * (8 + checks) // 8) - 8)

    assert pull_here(store).chosen.key == good


def test_beyond_the_limit_an_older_artifact_is_used_and_said(caplog: pytest.LogCaptureFixture):
    """A pull that could not read everything does not call its choice final."""
    store = MemoryStore()
    older, _ = publish(store, created=OLDER)
    newer, manifest = supersede(store, created=NEWEST, facts=FILLING, raw={"cache": b"newer"})
    add_junk(store, SHAPES["an unsigned statement"](MAX_ENVELOPE_BYTES, ""), 200)
    for number, key in enumerate(key for key in store.objects if "-s" in key):
        # Before and after the newer artifact.
        store.modified[key] = manifest.created_unix + 86400 * (number - 100)
    store.modified |= dict.fromkeys((older, newer), manifest.created_unix + 1)
    asked = {"trust": trusting(KEY), "fingerprint": fingerprint()}
    store.read.clear()

    found = find_fitting(store, place=PLACE, **asked)

    assert not found.is_complete
    assert found.unread >= 200 - MAX_WORK_BYTES // MAX_ENVELOPE_BYTES - 8
    assert len(store.read) <= 202 + MAX_WORK_BYTES // MAX_ENVELOPE_BYTES + 8
    caplog.clear()
    assert pull_here(store).chosen.key == older
    assert any(f"skipped at least {found.unread} more" in line for line in warnings(caplog))


def test_nothing_fits_beside_junk_says_how_much_was_skipped():
    store = MemoryStore()
    add_junk(store, SHAPES["an unsigned statement"](MAX_ENVELOPE_BYTES, ""), 200)
    with pytest.raises(ArtifactRefused) as caught:
        pull_here(store)
    assert len(caught.value.trace) < 200
    asked = {"trust": trusting(KEY), "fingerprint": fingerprint()}
    assert find_fitting(store, place=PLACE, **asked).unread == 200 - len(caught.value.trace)


def test_trusted_statements_cost_no_budget():
    """A store with many large artifacts of a trusted key is read in full."""
    store = MemoryStore()
    for number in range(MAX_WORK_BYTES // (2 * GLANCE_BYTES) // 2):
        payload = build(built_for=fingerprint(threads=f"1{number}"), facts=FILLING)[0]
        publish_statement(store, payload.to_statement(), KEY, name=str(number))
    store.objects[f"{FOLDER}large.dsse.json"] = SHAPES["an unsigned statement"](
        MAX_ENVELOPE_BYTES, ""
    )
    asked = {"trust": trusting(KEY), "fingerprint": fingerprint()}
    found = find_fitting(store, place=PLACE, **asked)
    assert (found.is_complete, found.unread) == (True, 0)


def test_signatures_are_checked_only_with_the_key_that_they_name(monkeypatch: pytest.MonkeyPatch):
    """The key id is a hint that saves work: many keys do not multiply the work of a forger."""
    checked: list[str] = []
    signed = TrustedKey.signed

    def count(self: TrustedKey, message: bytes, signature: bytes) -> bool:
        checked.append(self.name)
        return signed(self, message, signature)

    monkeypatch.setattr(TrustedKey, "signed", count)
    trust = trusting(KEY, *(new_key() for _ in range(9)))
    store = MemoryStore()
    good, _ = publish(store)
    junk = SHAPES["wrong signatures of a trusted key"](CHECK_BYTES, TRUSTED_ID)
    add_junk(store, junk, 20)
    assert pull_here(store, trust=trust).chosen.key == good
    assert set(checked) == {"key0"}
    assert len(checked) <= 21 * MAX_SIGNATURES + 1


def test_a_statement_of_another_key_is_read_once():
    """In a store that two teams share, the other team's statements cost no second round trip."""
    store = MemoryStore()
    good, _ = publish(store)
    for number in range(20):
        payload = build(built_for=fingerprint(threads=f"1{number}"))[0].to_statement()
        publish_statement(store, payload, OTHER, name=str(number))
    store.read.clear()
    assert pull_here(store).chosen.key == good
    assert len([key for key in store.read if key.startswith("statements/")]) == 21


def test_many_digits_in_an_envelope_are_not_converted():
    """Integers of thousands of digits cost a parser more than anything else."""
    envelope = edited(sign(b"{}", KEY), more=[int("9" * 101)])
    with pytest.raises(ArtifactRefused, match="an integer has more than 100 digits"):
        pull_here(_holding(envelope))


def _holding(envelope: bytes) -> MemoryStore:
    assert base64.b64encode(b"{}") in envelope
    return MemoryStore(objects={f"{FOLDER}{VARIANT}.dsse.json": envelope})
