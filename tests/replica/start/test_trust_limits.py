# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What the limits on trust do to a start: scope, origin, age, and an artifact older than before."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from artifacts import build, packed_cache, trusting
from believing import public_pem, trust_in
from serve_warm.artifact.code_and_model import CodeAndModel
from serve_warm.artifact.newest_seen import MAX_MARKS, MAX_USED, NewestSeen, Variant
from serve_warm.artifact.push import push
from serve_warm.report import Report, Stage, Verdict
from serve_warm.stores import list_keys
from serve_warm.stores.local import LocalStore
from serve_warm.trust.policy import Trust, signed_by
from starts import KEY, StandIn, here, process, publish, warm_up  # noqa: F401 - `process` is a fixture

OLDER, NEWER = "2026-11-20T10:00:00.000000Z", "2026-11-21T10:00:00.000000Z"
PEM = public_pem(KEY)
SAID = {"provenance": {"source": "4f2c", "builder": "https://ci/acme/build.yml"}}


def days_ago(days: float) -> str:
    then = datetime.now(timezone.utc) - timedelta(days=days)
    return then.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True)
class Site:
    """A store, and a separate node that starts from it."""

    store: LocalStore
    node: Path

    def put(self, *, created: str = NEWER, **fields: Any) -> str:
        raw = {"cache": packed_cache(self.node / secrets.token_hex(4))}
        manifest, stored = build(built_for=here(StandIn()), created=created, raw=raw, **fields)
        return push(self.store, manifest, stored, [KEY], on_taken="supersede")

    def start(self, trust: Any = None, *, code: str = "") -> Report:
        replica = StandIn(trust=trusting(KEY) if trust is None else trust)
        replica.code = code
        return warm_up(replica, artifact=self.store.uri).report()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    node = tmp_path / "node"
    node.mkdir(mode=0o700)
    monkeypatch.setattr("serve_warm.replica.start.prefetch.default_root", lambda: node / "blobs")
    return Site(LocalStore(root=tmp_path / "store"), node)


@pytest.fixture
def seen(site: Site) -> NewestSeen:
    (site.node / "blobs").mkdir(mode=0o700)
    return NewestSeen.beside(site.node / "blobs")


# --- an artifact that is older than before --------------------------------------------------
def roll_back(site: Site) -> None:
    """Take a newer artifact once, and leave only an older one in the store."""
    newest = site.put()
    assert site.start().verdict is Verdict.FULL_HIT
    site.store.delete(newest)
    site.put(created=OLDER)


def test_an_older_artifact_in_place_of_a_newer_one_is_said(site: Site):
    """The start is warm, and its report names both times."""
    roll_back(site)
    report = site.start()
    assert report.verdict is Verdict.FULL_HIT
    [warning] = [text for text in report.warnings if text.startswith("rollback: ")]
    assert OLDER in warning
    assert NEWER in warning
    assert site.start().warnings == report.warnings


def test_an_older_artifact_is_refused_by_policy(site: Site):
    """With `rollback = "refuse"` the start is cold, and names the file to remove if need be."""
    roll_back(site)
    refusing = trusting(KEY, rollback="refuse")
    report = site.start(refusing)
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.REFUSED)
    assert report.artifact.refused == "rollback"
    [mark] = (site.node / "blobs.newest").iterdir()
    record = site.node / "blobs" / record_of(mark)
    for file in (mark, record):
        assert str(file) in report.artifact.reason
        file.unlink()
    assert site.start(refusing).verdict is Verdict.FULL_HIT


def test_nothing_is_said_of_what_is_as_new_or_from_another_store(site: Site):
    """The same artifact again, a newer one, and an older one in another store are no rollback."""
    site.put(created=OLDER)
    other = Site(LocalStore(root=site.node / "other"), site.node)
    other.put(created="2026-11-19T10:00:00.000000Z")
    refusing = trusting(KEY, rollback="refuse")
    reports = [site.start(refusing), site.start(refusing)]
    elsewhere = here(StandIn(), libc="musl 1")
    publish(other.store, elsewhere, created=NEWER, raw={"cache": b"for another machine"})
    reports.append(other.start(refusing))
    site.store.delete(list_keys(site.store, "statements/")[0])
    site.put(created=NEWER)
    reports.append(site.start(refusing))
    assert [report.verdict for report in reports] == [Verdict.FULL_HIT] * 4
    assert [report.warnings for report in reports] == [()] * 4


CODE, EDITED = "1" * 16, "2" * 16


def test_an_older_artifact_of_the_code_that_runs_is_no_rollback(site: Site):
    """An operator goes back to the code before an edit, while the store has artifacts of both."""
    refusing = trusting(KEY, rollback="refuse")
    older = site.put(created=OLDER, made_of=CodeAndModel(code=CODE))
    newer = site.put(created=NEWER, made_of=CodeAndModel(code=EDITED))
    reports = [site.start(refusing, code=code) for code in (EDITED, CODE, EDITED)]
    assert [report.artifact.statement for report in reports] == [newer, older, newer]
    assert [report.verdict for report in reports] == [Verdict.FULL_HIT] * 3
    assert [report.warnings for report in reports] == [()] * 3
    (line,) = (line for line in reports[1].artifact.trace if line.startswith(older))
    assert line.endswith(", same code, so it is taken although a newer one fits")


@pytest.mark.parametrize("code", [CODE, EDITED], ids=["the same code", "edited code"])
def test_a_deleted_newest_artifact_is_a_rollback_for_any_code(site: Site, code: str):
    """An edit must not make the node forget: nothing there fits the new code better."""
    refusing = trusting(KEY, rollback="refuse")
    site.put(created=OLDER, made_of=CodeAndModel(code="3" * 16))
    newest = site.put(created=NEWER, made_of=CodeAndModel(code=CODE))
    assert site.start(refusing, code=CODE).artifact.statement == newest
    site.store.delete(newest)
    assert site.start(refusing, code=code).artifact.refused == "rollback"


def test_an_older_artifact_that_was_put_back_is_refused(site: Site):
    """It matches the code, but so did the newer one, which is gone."""
    refusing = trusting(KEY, rollback="refuse")
    vulnerable = site.put(created=OLDER, made_of=CodeAndModel(code=CODE))
    saved = (site.store.root / vulnerable).read_bytes()
    assert site.start(refusing, code=CODE).artifact.statement == vulnerable
    fixed = site.put(created=NEWER, made_of=CodeAndModel(code=CODE))
    site.store.delete(vulnerable)
    assert site.start(refusing, code=CODE).artifact.statement == fixed
    site.store.delete(fixed)
    site.store.create(vulnerable, saved)
    assert site.start(refusing, code=CODE).artifact.refused == "rollback"


def test_one_mark_holds_the_newest_of_each_code_and_model(seen: NewestSeen):
    """Those of the oldest artifacts go first: only a newer one makes another a rollback."""
    for number in range(MAX_USED + 2):
        made_of = CodeAndModel(code=f"{number:016x}")
        seen.note(VARIANT, made_of, f"2026-11-20T10:{number // 60:02}:{number % 60:02}.000000Z")
    used = seen.find_used(VARIANT)
    assert used is not None
    assert sorted(made_of.code for made_of in used) == [
        f"{number:016x}" for number in range(2, MAX_USED + 2)
    ]


def record_of(mark: Path) -> str:
    """Return the name of what stands in the node cache for a mark."""
    fields = json.loads(mark.read_text())
    fields.pop("used")
    return Variant(**fields).record_name


@pytest.mark.slow
@pytest.mark.parametrize("removed", ["the folder", "the mark"])
def test_marks_that_were_removed_are_noticed(site: Site, removed: str):
    """A node cache that has taken an artifact had a mark of it: without one nothing is believed."""
    roll_back(site)
    folder = site.node / "blobs.newest"
    [mark] = folder.iterdir()
    shutil.rmtree(folder) if removed == "the folder" else mark.unlink()
    refusing = trusting(KEY, rollback="refuse")
    reports = [site.start(refusing), site.start(refusing)]
    assert [report.verdict for report in reports] == [Verdict.REFUSED] * 2
    reason = reports[0].artifact.reason
    assert "was removed" in reason
    blobs = f"{site.node / 'blobs'}/"
    [record] = [word for word in reason.split() if word.startswith(blobs)]
    Path(record.rstrip(",")).unlink()
    assert site.start(refusing).verdict is Verdict.FULL_HIT


def test_a_new_node_takes_what_there_is(site: Site):
    """Without a node cache no mark can be missing, and none is missing after a refusal."""
    roll_back(site)
    shutil.rmtree(site.node / "blobs.newest")
    shutil.rmtree(site.node / "blobs")
    assert site.start(trusting(KEY, rollback="refuse")).verdict is Verdict.FULL_HIT


@pytest.mark.parametrize("spoil", ["another's folder", "a damaged mark"])
def test_a_mark_that_cannot_be_believed_is_refused_by_policy(site: Site, spoil: str):
    """A user who made the folder first, or cut the mark, must not enable an older artifact."""
    roll_back(site)
    folder = site.node / "blobs.newest"
    if spoil == "a damaged mark":
        [mark] = folder.iterdir()
        mark.write_bytes(b"{")
    else:
        folder.chmod(0o777)
    report = site.start(trusting(KEY, rollback="refuse"))
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.REFUSED)
    assert report.artifact.refused == "rollback"
    assert "cannot be read or trusted" in report.artifact.reason
    assert site.start().verdict is Verdict.FULL_HIT


def test_what_a_start_did_not_accept_leaves_no_mark(site: Site):
    """A newer artifact that cannot be unpacked must not shut out the good one before it."""
    bad = publish(site.store, here(StandIn()), created=NEWER, raw={"cache": b"no archive"})
    assert site.start().verdict is Verdict.REFUSED
    site.store.delete(bad)
    site.put(created=OLDER)
    assert site.start(trusting(KEY, rollback="refuse")).verdict is Verdict.FULL_HIT


VARIANT = Variant(
    store="s3://bucket", application="app", deployment="Embedder", fingerprint="00" * 8
)
MADE_OF = CodeAndModel(code="1" * 16, model="2" * 16)


def test_the_newest_time_stays(seen: NewestSeen):
    """Noting an older time changes nothing, and a mark can be read by people."""
    assert seen.find_used(VARIANT) == {}
    for created in (OLDER, NEWER, OLDER):
        seen.note(VARIANT, MADE_OF, created)
    [mark] = seen.folder.iterdir()
    assert seen.find_used(VARIANT) == {MADE_OF: NEWER}
    assert json.loads(mark.read_text())["deployment"] == "Embedder"
    assert (mark.stat().st_mode & 0o777, seen.folder.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"used": [{"created": 1}]}', b"\xff"]
)
def test_a_damaged_mark_is_none(seen: NewestSeen, content: bytes):
    """Nothing fails for it, and the next start writes a good one."""
    seen.note(VARIANT, MADE_OF, OLDER)
    (seen.folder / VARIANT.file_name).write_bytes(content)
    assert seen.find_used(VARIANT) is None
    seen.note(VARIANT, MADE_OF, OLDER)
    assert seen.find_used(VARIANT) == {MADE_OF: OLDER}


def test_marks_that_others_could_write_are_neither_read_nor_written(
    seen: NewestSeen, caplog: pytest.LogCaptureFixture
):
    """A folder that is open to others costs the notice, and a warning says so."""
    seen.note(VARIANT, MADE_OF, OLDER)
    seen.folder.chmod(0o777)
    seen.note(VARIANT, MADE_OF, NEWER)
    assert seen.find_used(VARIANT) is None
    assert "cannot detect a rollback to an older artifact" in caplog.text
    seen.folder.chmod(0o700)
    assert seen.find_used(VARIANT) == {MADE_OF: OLDER}


def test_marks_do_not_pile_up(seen: NewestSeen):
    """Each build of a laptop has a store of its own for a while: the oldest marks go."""
    seen.note(VARIANT, MADE_OF, OLDER)
    for number in range(MAX_MARKS + 3):
        (seen.folder / f"{number}.json").write_text("{}")
    gone = replace(VARIANT, store="s3://gone")
    seen.note(gone, MADE_OF, OLDER)
    os.utime(seen.folder / gone.file_name, (0, 0))
    seen.note(VARIANT, MADE_OF, NEWER)
    assert len(list(seen.folder.iterdir())) == MAX_MARKS
    assert seen.find_used(VARIANT) == {MADE_OF: NEWER}
    assert seen.find_used(gone) == {}


# --- age ------------------------------------------------------------------------------------
def test_a_start_says_that_an_artifact_will_soon_be_too_old(site: Site):
    """A fleet hears of the age limit for more than a month before it goes cold by it."""
    site.put(created=days_ago(330))
    report = site.start(signed_by(PEM))
    assert report.verdict is Verdict.FULL_HIT
    [warning] = report.warnings
    assert "and in 35.0 days it will be refused as too old" in warning
    assert site.start(signed_by(PEM, max_age_s=400 * 86400)).warnings == ()


def test_the_file_that_set_an_age_limit_is_named(site: Site, tmp_path: Path):
    """The stricter of two limits is the one to change, in hours where it is below a day."""
    site.put(created=days_ago(0.25))
    file = tmp_path / "strict.toml"
    file.write_text("max_age_days = 0.125\n")
    file.chmod(0o600)
    refused = site.start(signed_by(PEM, max_age_s=86400.0) | trust_in(file)).artifact.reason
    by_code = site.start(signed_by(PEM, max_age_s=9000.0) | trust_in(file)).artifact.reason
    assert f"6.0 hours ago, but the limit is 3.0 hours (max_age_days in {file})" in refused
    assert f"or raise max_age_days in {file}" in refused
    assert "the limit is 2.5 hours (max_age_s in code)" in by_code


# --- scope and origin -----------------------------------------------------------------------
def requiring(**facts: str) -> Trust:
    return trusting(KEY, require=frozenset(facts.items()))


@pytest.mark.parametrize(
    ("trust", "said", "refused"),
    [
        (signed_by(PEM, deployments=["Emb*"], stores=["file:///*/store"]), None, ""),
        (signed_by(PEM, deployments=["Scorer"]), None, "untrusted"),
        (signed_by(PEM, stores=["s3://prod/*"]), None, "untrusted"),
        (requiring(builder="https://ci/acme/*", source="*"), SAID, ""),
        (requiring(builder="https://ci/other/*"), SAID, "untrusted"),
        (requiring(source="*"), None, "untrusted"),
        (requiring(source="*"), {"provenance": ["4f2c"]}, "untrusted"),
        (requiring(), {"provenance": "of a later release"}, ""),
    ],
)
def test_a_start_keeps_to_the_scope_of_a_key_and_the_required_origin(
    site: Site, trust: Trust, said: Any, refused: str
):
    """The deployment and the address of the read store count, and the facts of the artifact."""
    site.put(facts=said)
    report = site.start(trust)
    assert report.verdict is (Verdict.REFUSED if refused else Verdict.FULL_HIT)
    assert report.artifact.refused == refused
