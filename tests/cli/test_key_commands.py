# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The commands for those who keep a store: `keygen`, `sign`, `prune`."""

from __future__ import annotations

import json
import os
import stat
import time
from datetime import datetime, timedelta, timezone

import pytest

from artifacts import APPLICATION, DEPLOYMENT, fingerprint, trusting
from believing import key_in, trust_in
from command_line import (  # noqa: F401 - fixtures
    KEY,
    STRANGER,
    objects,
    publish,
    run_fixture,
    source_fixture,
    trust_file_fixture,
)
from serve_warm._private_folders import user_folder
from serve_warm._state_file import StateFile
from serve_warm.artifact import catalog
from serve_warm.trust.keys import load_signing_key


@pytest.fixture
def key_file(run, tmp_path):
    """A second key, that nobody trusts yet."""
    file = tmp_path / "second"
    assert run("keygen", file).code == 0
    return file


# keygen ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_the_lines_of_keygen_make_the_key_trusted(run, tmp_path, options):
    file = tmp_path / "ci.key"
    ended = run("keygen", file, "--name", "new ci", *options)
    lines = json.loads(ended.out)["trust"] if options else ended.out
    trust_file = tmp_path / "printed.toml"
    trust_file.write_text(lines)
    trust_file.chmod(0o600)
    [key] = trust_in(trust_file).keys
    assert ended.code == 0
    assert key.name == "new ci"
    assert key.raw == load_signing_key(file).public_key().public_bytes_raw()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "PRIVATE" not in ended.out + ended.err


def test_keygen_names_a_key_after_its_file(run, tmp_path):
    ended = run("keygen", tmp_path / "builder.pem", "--json")
    told = json.loads(ended.out)
    private = str(tmp_path / "builder.pem")
    assert told["name"] == "builder"
    assert (told["private"], told["public"]) == (private, f"{private}.pub")


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[2K"])
def test_a_key_has_a_name_that_can_be_shown(run, tmp_path, name):
    """The name appears in the output of inspect and verify. Exit code 2, and no key is made."""
    ended = run("keygen", tmp_path / "key", "--name", name)
    assert (ended.code, ended.out) == (2, "")
    assert not (tmp_path / "key").exists()


# sign -----------------------------------------------------------------------------------------
def test_sign_lets_all_keys_vouch(run, source, key_file, tmp_path):
    """After a rotation readers of each key believe the artifact, and no blob was touched."""
    statement, _ = publish(source)
    before = objects(source)
    key_in(tmp_path / "third")
    third = tmp_path / "third" / "signing_key.pem"
    ended = run("sign", source.root, "--key", key_file, "--key", third)
    without = run("sign", source.root)
    [new] = ended.out.split()
    assert (ended.code, without.code) == (0, 2)
    assert ended.err.endswith("1 signed, 0 already signed\n")
    assert objects(source).keys() - before.keys() == {new}
    assert before.items() <= objects(source).items()
    for file in (key_file, third):
        trust = trusting(load_signing_key(file))
        believed = {item.statement: item.trusted for item in catalog.describe(source, trust)}
        assert believed == {statement: False, new: True}


def test_sign_leaves_what_is_signed(run, source, key_file):
    publish(source, deployment="First")
    run("sign", source.root, "--key", key_file)
    publish(source, deployment="Second")
    second = run("sign", source.root, "--key", key_file, "--json")
    third = run("sign", source.root, "--key", key_file, "--json")
    told = [json.loads(ended.out) for ended in (second, third)]
    assert [(len(item["signed"]), item["already"]) for item in told] == [(1, 1), (0, 2)]
    assert told[0]["signed"][0].startswith("statements/app/Second/")


def test_the_public_half_does_not_sign(run, source, key_file):
    """The error differs from the error for a key that others can read."""
    publish(source)
    ended = run("sign", source.root, "--key", f"{key_file}.pub")
    assert ended.code == 1
    said = f"error: {key_file}.pub is a public key, but signing needs the private key"
    assert ended.err.splitlines()[0] == said
    assert f"hint: pass the private key that keygen wrote ({key_file})" in ended.err
    assert "chmod" not in ended.err


# prune ----------------------------------------------------------------------------------------
def ago(days: float) -> str:
    then = datetime.now(timezone.utc) - timedelta(days=days)
    return then.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.fixture
def keys(source) -> dict[str, str]:
    """Artifacts by purpose. Each is a separate variant with its own part."""

    def made(name: str, days: float, torch: str = "2.13.0+cpu abc") -> str:
        what = {"built_for": fingerprint(gpu=name, torch=torch), "created": ago(days)}
        return publish(source, raw={"cache": name.encode() * 100}, **what)[0]

    old, dead = made("old", 100), made("dead", 50, "2.11.1+cpu abc")
    return {"old": old, "dead": dead, "new": made("new", 1)}


@pytest.mark.parametrize(
    ("rules", "gone"),
    [
        (["--older-than", "90d", "--keep-newest", "0"], ["old"]),
        (["--older-than", "1300h", "--keep-newest", "0"], ["old"]),
        (["--older-than", "90d"], []),
        ([], []),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_prune_removes_what_the_rules_name(run, source, keys, *, rules, gone):
    """A dry run shows what the real run removes. Parts go with their statements."""
    before = objects(source)
    shown = json.loads(run("prune", source.root, *rules, "--dry-run", "--json").out)
    untouched = objects(source)
    removed = json.loads(run("prune", source.root, *rules, "--json").out)
    wanted = {keys[name] for name in gone}
    lost = before.keys() - objects(source).keys()
    assert untouched == before
    assert {item["statement"] for item in removed["removed"]} == wanted
    assert lost == {*wanted, *removed["blobs"]}
    assert len(removed["blobs"]) == len(gone)
    assert removed["freed_bytes"] == sum(len(before[blob]) for blob in removed["blobs"])
    assert (shown.pop("did"), removed.pop("did")) == ("show", "remove")
    assert shown == removed


def test_prune_shows_what_went_and_what_stayed(run, source, keys, tmp_path):
    used = tmp_path / "used.json"
    used.write_text(json.dumps([keys["dead"]]))
    source.create(f"statements/{APPLICATION}/{DEPLOYMENT}/odd.dsse.json", b"not an envelope")

    rule = ("--older-than", "1h", "--keep-newest", "0")
    ended = run("prune", source.root, *rule, "--in-use", used, "--dry-run")

    rows = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert ended.code == 0
    assert rows[0] == "torch created would remove"
    assert {row.split()[-1] for row in rows[1:3]} == {keys["old"], keys["new"]}
    assert {row.split()[0] for row in rows[1:3]} == {"2.13.0+cpu"}
    assert rows[3:7] == [
        "kept: in use",
        keys["dead"],
        "kept: unreadable",
        f"statements/{APPLICATION}/{DEPLOYMENT}/odd.dsse.json",
    ]
    # What cannot be read may name any part.
    assert rows[7] == "would remove 2 artifacts and 0 parts, 0 B"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_a_replica_here_runs_on_is_kept(
    run, source, keys, tmp_path, monkeypatch, *, elsewhere
):
    monkeypatch.delenv("SERVE_WARM_STATE_DIR", raising=False)
    if elsewhere:
        monkeypatch.setenv("SERVE_WARM_STATE_DIR", str(tmp_path / "elsewhere"))
    folder = tmp_path / "elsewhere" if elsewhere else user_folder("state")
    state = StateFile(folder, application="a", deployment="d", replica="r")
    state.write({"stage": "READY", "statement": keys["old"]})
    ended = run("prune", source.root, "--older-than", "10d", "--keep-newest", "0", "--json")
    told = json.loads(ended.out)
    assert [item["statement"] for item in told["removed"]] == [keys["dead"]]
    assert told["in_use"] == [keys["old"]]
    assert keys["old"] in objects(source)


FORMS = {
    "statement": lambda key: [key],
    "report": lambda key: {"verdict": "full_hit", "artifact": {"statement": key}},
    "reports": lambda key: [
        {"artifact": None},
        {"artifact": {"statement": ""}},
        {"artifact": {"statement": key}},
    ],
    "state": lambda key: {"stage": "READY", "statement": key},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_what_reports_name_is_kept(run, source, keys, tmp_path, form):
    """Replicas of other machines are told of by --in-use, in whatever form their report is."""
    file = tmp_path / "used.json"
    file.write_text(json.dumps(form(keys["dead"])))
    rule = ("--older-than", "10d", "--keep-newest", "0")
    ended = run("prune", source.root, *rule, "--in-use", file)
    assert ended.code == 0
    assert keys["dead"] in objects(source)


@pytest.mark.parametrize(
    "content",
    [
        *("{", "7", "{}", '[{"verdict": "miss"}]', '["Embedder"]', '[""]', "[[]]"),
        *('{"artifact": 1}', '{"artifact": {}}', '{"statement": null}'),
    ],
)
def test_a_file_that_names_nothing_protects_nothing_and_is_refused(
    run, source, keys, tmp_path, content
):
    """Such a file does not mean that nothing is in use. Exit code 2, and nothing is removed."""
    file = tmp_path / "used.json"
    file.write_text(content)
    before = objects(source)
    ended = run("prune", source.root, "--older-than", "10d", "--in-use", file)
    assert (ended.code, ended.out) == (2, "")
    assert f"Invalid value for '--in-use': {file}: " in ended.err
    assert objects(source) == before


@pytest.mark.parametrize(
    "options",
    [
        *(["--older-than", age] for age in ("90", "0d", "-1d", "3 moons", "nan")),
        *(["--keep-newest", "-1", "--older-than", "1d"], ["--keep-newest", "2"]),
        ["--in-use", "/no/such/file"],
    ],
    ids=" ".join,
)
def test_a_rule_that_says_nothing_is_wrong_usage(run, source, keys, options):
    """An ambiguous rule removes nothing. Exit code 2, with an example."""
    before = objects(source)
    ended = run("prune", source.root, *options)
    assert (ended.code, ended.out) == (2, "")
    assert "\nError: " in ended.err
    assert objects(source) == before


def test_prune_alone_removes_only_forgotten_parts(run, source, keys):
    forgotten = source.root / "blobs/sha256" / ("ab" * 32)
    forgotten.write_bytes(b"forgotten")
    recent = source.root / "blobs/sha256" / ("cd" * 32)
    recent.write_bytes(b"being pushed")
    two_days_ago = time.time() - 2 * 86400
    os.utime(forgotten, (two_days_ago, two_days_ago))
    ended = run("prune", source.root)
    assert ended.out == "removed 0 artifacts and 1 part, 9 B\n"
    assert not forgotten.exists()
    assert recent.exists()
    assert set(keys.values()) <= objects(source).keys()
