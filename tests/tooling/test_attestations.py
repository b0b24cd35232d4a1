# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The bill of materials and the provenance of a release, and the checks of both."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from datetime import datetime, timezone
from pathlib import Path

import pytest

import locks
import provenance
import release
import sbom
from serve_warm.errors import ConfigError
from serve_warm.trust.keys import TrustedKey, write_key_pair

BUILDER = "https://ci.example.com/release"
STARTED = datetime(2026, 1, 31, tzinfo=timezone.utc)


def commit(root: Path) -> Path:
    """Make a git repository with one commit."""
    root.mkdir()
    (root / "file").write_text("committed")
    person = {f"GIT_{who}_NAME": "x" for who in ("AUTHOR", "COMMITTER")}
    mails = {f"GIT_{who}_EMAIL": "x@example.com" for who in ("AUTHOR", "COMMITTER")}
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "x"]):
        command = ["git", "-C", str(root), *arguments]
        subprocess.run(command, check=True, env=os.environ | person | mails)
    return root


def build(dist: Path) -> tuple[Path, Path]:
    """Write a wheel with the requirements of the lock for images, and an sdist."""
    dist.mkdir()
    wheel = dist / "serve_warm-1.2.0-py3-none-any.whl"
    asked = "".join(f"Requires-Dist: {each}\n" for each in locks.requirements()["image"])
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "serve_warm-1.2.0.dist-info/METADATA",
            f"Name: serve-warm\nVersion: 1.2.0\nLicense-Expression: Apache-2.0\n{asked}",
        )
    sdist = dist / "serve_warm-1.2.0.tar.gz"
    sdist.write_bytes(b"source")
    return wheel, sdist


@pytest.fixture(name="checkout")
def checkout_fixture(tmp_path: Path) -> Path:
    """A repository that a test may change."""
    return commit(tmp_path / "checkout")


@pytest.fixture(name="files")
def files_fixture(tmp_path: Path) -> tuple[Path, Path]:
    """A wheel and an sdist that a test may change."""
    return build(tmp_path / "dist")


@pytest.fixture(name="attested", scope="module")
def attested_fixture(tmp_path_factory: pytest.TempPathFactory) -> release.Attested:
    """A signed release that tests must not change."""
    folder = tmp_path_factory.mktemp("release")
    write_key_pair(folder / "release.key")
    root, files = commit(folder / "checkout"), build(folder / "dist")
    return release.attest(
        *files, root=root, builder=BUILDER, started=STARTED, key=folder / "release.key"
    )


def test_what_is_attested_here_is_right(attested):
    """The checks of `make release-check` accept its own files."""
    wheel = attested.files[0]

    assert list(attested.problems()) == []
    assert list(sbom.problems(attested.sbom.read_text(), wheel)) == []
    assert {file.name.removeprefix("serve_warm-1.2.0") for file in wheel.parent.iterdir()} == {
        *("-py3-none-any.whl", ".tar.gz", ".cdx.json", ".provenance.json", ".intoto.jsonl"),
    }


def test_the_provenance_names_files_commit_and_builder(attested):
    """It is an in-toto statement with SLSA's predicate, and also names the bill of materials."""
    fields = json.loads(attested.statement.read_bytes())

    built, ran = (fields["predicate"][key] for key in ("buildDefinition", "runDetails"))
    root = attested.files[0].parents[1] / "checkout"
    head = subprocess.check_output(["git", "-C", str(root), "rev-parse", "HEAD"], text=True)
    named = {each.get("name"): each.get("digest") for each in built["resolvedDependencies"]}
    subjects = [each["name"] for each in fields["subject"]]
    assert sorted(subjects) == sorted(file.name for file in attested.files)
    assert attested.sbom.name in subjects
    assert fields["predicateType"] == "https://slsa.dev/provenance/v1"
    assert named["source"] == {"gitCommit": head.strip()}
    assert "sha256" in named["locks/build.txt"]
    assert ran["builder"]["id"] == BUILDER
    assert ran["metadata"]["startedOn"] == "2026-01-31T00:00:00Z"


def test_a_changed_file_is_found(files, checkout):
    """The published wheel and sdist are the files that the statement names."""
    attested = release.attest(*files, root=checkout, builder=BUILDER, started=STARTED)
    files[1].write_bytes(b"another source")

    [problem] = attested.problems()

    assert problem.startswith("it does not name serve_warm-1.2.0.tar.gz with sha256")


def test_a_change_that_git_does_not_show_is_found(checkout):
    """Ignored files, and files that git treats as unchanged, can get into a wheel."""
    assert provenance.read_source(checkout).changed == ()
    (checkout / "serve_warm").mkdir(exist_ok=True)
    (checkout / "serve_warm" / "_planted.py").write_text("planted = True")
    (checkout / ".git" / "info").mkdir(exist_ok=True)
    (checkout / ".git" / "info" / "exclude").write_text("serve_warm/_planted.py\n")
    git = ["git", "-C", str(checkout)]
    subprocess.run([*git, "update-index", "--assume-unchanged", "file"], check=True)
    (checkout / "file").write_text("planted")

    assert subprocess.check_output([*git, "status", "--porcelain"], text=True) == ""
    assert set(provenance.read_source(checkout).changed) == {"file", "serve_warm/_planted.py"}


def test_a_changed_checkout_is_found(files, checkout):
    """A build from uncommitted files is not released."""
    (checkout / "file").write_text("changed")
    attested = release.attest(*files, root=checkout, builder=BUILDER, started=STARTED)

    assert list(attested.problems()) == ["1 files are not as in the commit, file first"]


def test_a_source_without_a_commit_is_found(files, tmp_path):
    """A build outside of a repository cannot be released either."""
    attested = release.attest(*files, root=tmp_path, builder=BUILDER, started=STARTED)

    assert list(attested.problems()) == ["there is no commit: release from a checkout of git"]


def test_a_builder_that_is_no_uri_is_found(files, checkout):
    """SLSA's readers compare builders as URIs."""
    attested = release.attest(*files, root=checkout, builder="somebody", started=STARTED)

    [problem] = attested.problems()

    assert problem.startswith("the builder 'somebody' is no URI")


@pytest.mark.parametrize("statement", [b"", b"[]", b"{}", b'{"_type": 1, "_type": 2}'])
def test_what_is_no_statement_is_found(files, checkout, statement):
    """One sentence reports the problem, whatever the file contains."""
    source = provenance.read_source(checkout)

    [problem] = provenance.problems(statement, files, source)

    assert problem.startswith("it is no provenance of SLSA")


def test_a_signature_by_another_key_is_found(attested, tmp_path):
    """The envelope holds the statement beside it, and the given key signed it."""
    other = write_key_pair(tmp_path / "other.key")
    envelope, statement = attested.envelope.read_bytes(), attested.statement.read_bytes()

    def found(envelope: bytes, statement: bytes, key: TrustedKey) -> list[str]:
        return list(provenance.signature_problems(envelope, statement, key))

    assert found(envelope, statement, attested.key) == []
    assert found(envelope, statement + b" ", attested.key) == ["another statement is signed"]
    assert found(envelope, statement, other) == [f"key {other.id} has not signed it"]
    assert found(b"{}", statement, other)[0].startswith("not a DSSE envelope")


def test_without_a_key_nothing_is_signed(files, checkout):
    """There is a statement, but no envelope."""
    attested = release.attest(*files, root=checkout, builder=BUILDER, started=STARTED)

    assert attested.envelope is None
    assert list(attested.problems()) == []


def test_a_key_that_is_not_there_is_said(files, checkout, tmp_path):
    """The error comes before any file is written."""
    with pytest.raises(ConfigError, match="cannot be read"):
        release.attest(*files, root=checkout, started=STARTED, key=tmp_path / "no.key")

    assert len(list(files[0].parent.iterdir())) == 2


def test_the_bill_of_materials_is_that_of_the_lock(attested):
    """Each dependency has its locked version and hashes. torch has only its pinned version."""
    fields = json.loads(attested.sbom.read_text())
    components = {each["name"]: each for each in fields["components"]}
    pins = {pin.name: pin for pin in locks.read(sbom.LOCK.read_text())}
    [reference] = components["ray"]["externalReferences"]

    assert components["ray"]["version"] == pins["ray"].version
    assert {each["content"] for each in reference["hashes"]} == set(pins["ray"].hashes)
    assert "+" not in components["torch"]["version"]
    assert "externalReferences" not in components["torch"]
    assert [name for name in components if name.startswith(("nvidia-", "cuda-", "pytest"))] == []
    assert "file:" not in attested.sbom.read_text()


def test_every_package_has_a_way_to_the_wheel(attested):
    """The graph shows why each package is needed, also if an extra of a dependency needs it."""
    fields = json.loads(attested.sbom.read_text())
    graph = {each["ref"]: each.get("dependsOn", []) for each in fields["dependencies"]}
    reached, waiting = set(), [fields["metadata"]["component"]["bom-ref"]]
    while waiting:
        reached.add(each := waiting.pop())
        waiting += set(graph[each]) - reached

    assert {each["bom-ref"] for each in fields["components"]} == reached - {
        fields["metadata"]["component"]["bom-ref"]
    }


def test_the_same_wheel_has_the_same_bill_of_materials(attested):
    """Therefore, two builds of a release can be compared."""
    again = sbom.write(attested.files[0], attested.source.committed)

    assert again == attested.sbom.read_text()


def test_a_wrong_bill_of_materials_is_found(attested):
    """It lacks a package, has another version, or belongs to another wheel."""
    fields = json.loads(attested.sbom.read_text())
    lost, changed, *_ = fields["components"]
    fields["components"].remove(lost)
    was, changed["version"] = changed["version"], "0.0"
    fields["metadata"]["component"].pop("hashes")

    other, *problems = sbom.problems(json.dumps(fields), attested.files[0])

    assert other.startswith("it is not about serve_warm-1.2.0-py3-none-any.whl, whose sha256 is ")
    assert problems == [
        f"{lost['name']} is None in it, and {lost['version']} in the locks",
        f"{changed['name']} is 0.0 in it, and {was} in the locks",
    ]


def test_an_invalid_bill_of_materials_is_found(attested):
    """CycloneDX's own schema is used."""
    fields = json.loads(attested.sbom.read_text())
    fields["components"] = [{"name": "x"}]

    [problem] = sbom.problems(json.dumps(fields), attested.files[0])

    assert problem.startswith("it is not CycloneDX 1.6")
