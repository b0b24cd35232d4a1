# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The commands that read and copy artifacts: what they print, where, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from artifacts import (
    APP,
    DEPLOYMENT,
    MACHINE,
    blob_key,
    build,
    container,
    fingerprint,
    new_key,
)
from serve_warm import trust
from serve_warm.artifact import Manifest
from serve_warm.cli import main
from serve_warm.stores.local import LocalStore
from serve_warm.transfer import push

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY = new_key()
STRANGER = new_key()

ESCAPES = "\x1b[2K\r\x9b31m\u202e\u2028trusted"
"""Deletes the line, returns to its start, colours it, turns the text around and breaks it."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How the command line ended, and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Run `serve-warm` as the console script does, on a machine that trusts KEY."""
    trust_file = tmp_path / "trust.toml"
    trust_file.write_text(trust.trust_lines(KEY.public_key(), name="ci"))
    trust_file.chmod(0o600)
    monkeypatch.setattr(trust, "default_trust_files", lambda: (trust_file,))

    def run_with(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["serve-warm", *map(str, arguments)])
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        written = capsys.readouterr()
        return Ended(code=int(code or 0), out=written.out, err=written.err)

    return run_with


@pytest.fixture
def source(tmp_path: Path) -> LocalStore:
    return LocalStore(root=tmp_path / "source")


@pytest.fixture
def target(tmp_path: Path) -> LocalStore:
    return LocalStore(root=tmp_path / "target")


def publish(
    store: LocalStore, key: Ed25519PrivateKey = KEY, **artifact: object
) -> tuple[str, Manifest]:
    """Put an artifact into a store; returns the key of its statement."""
    manifest, stored = build(**artifact)
    return push(store, manifest, stored, [key]), manifest


def escaped(text: str) -> bool:
    """Whether nothing in a text but the ends of its lines acts on a terminal."""
    return text.replace("\n", "").isprintable()


# inspect --------------------------------------------------------------------------------------


def test_inspect_lists_what_is_trusted_and_what_is_not(run, source):
    """Every statement is shown with who signed it, or with the reason it is not believed."""
    trusted, manifest = publish(source)
    untrusted, _ = publish(source, STRANGER, built_for=fingerprint(python="CPython 3.12.1"))

    shown = run("inspect", source.root)

    assert shown.code == 0
    blocks = {
        statement: shown.out.split(statement + "\n")[1].split("statements/")[0]
        for statement in (trusted, untrusted)
    }
    assert blocks[trusted].startswith("  trusted, signed by ci\n")
    assert f"part cache: {manifest.parts[0].stored_bytes} B stored" in blocks[trusted]
    assert blocks[untrusted].startswith("  not trusted (untrusted)\n  signed by ")
    assert "which is not trusted here\n" in blocks[untrusted]
    for name, value in {**MACHINE, "python": "CPython 3.12.1"}.items():
        assert f"  machine {name}: {value}\n" in blocks[untrusted]
    for name, value in APP.items():
        assert f"  app {name}: {value}\n" in blocks[untrusted]


def test_inspect_prints_json(run, source):
    """`--json` is one JSON document with the factors by name, for trusted and untrusted alike."""
    publish(source, deployment="First")
    publish(source, STRANGER, deployment="Second", facts={"torch": "2.13"})

    shown = run("inspect", source.root, "--json")

    first, second = json.loads(shown.out)
    assert [first["trusted"], first["signers"], first["reason"]] == [True, ["ci"], ""]
    assert [second["trusted"], second["signers"], second["reason"]] == [False, [], "untrusted"]
    assert first["manifest"]["fingerprint"] == {"machine": MACHINE, "app": APP}
    assert second["manifest"]["facts"] == {"torch": "2.13"}
    assert shown.err == ""


def test_inspect_says_that_a_store_is_empty(run, source):
    """A store without artifacts is no error; stdout stays empty for whatever reads it."""
    shown = run("inspect", source.root)

    assert (shown.code, shown.out) == (0, "")
    assert shown.err == f"{source.root} has no artifacts\n"


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_statement_cannot_write_to_the_terminal(run, source, options):
    """Control characters in names and values of factors, whoever chose them, are shown escaped."""
    built_for = fingerprint(python=ESCAPES)
    built_for.machine[f"gpu{ESCAPES}"] = "none"
    built_for.app["threads"] = f"4\n  trusted, signed by ci{ESCAPES}"
    publish(source, STRANGER, built_for=built_for)

    shown = run("inspect", source.root, *options)

    assert shown.code == 0
    assert shown.out.count("\\x1b" if not options else "\\u001b") == 3
    assert escaped(shown.out)
    assert "\n  trusted" not in shown.out


def test_a_broken_statement_cannot_write_to_the_terminal(run, source):
    """What is said about a statement that cannot be read has none of its control characters."""
    payload = json.loads(build()[0].to_statement())
    payload["predicate"]["deployment"] = ESCAPES
    payload["predicate"][ESCAPES] = 1
    name = f"statements/{DEPLOYMENT}/forged.dsse.json"
    source.create(name, trust.sign(json.dumps(payload).encode(), KEY))

    shown = run("inspect", source.root)

    assert shown.out.startswith(f"{name}\n")
    assert "not the statement of an artifact" in shown.out
    assert escaped(shown.out)


def test_inspect_imports_neither_torch_nor_ray(source):
    """Looking at artifacts costs no second of imports, and works where neither is installed."""
    publish(source, STRANGER)
    program = (
        "import sys\n"
        "from serve_warm.cli import serve_warm\n"
        "serve_warm(['inspect', sys.argv[1]], standalone_mode=False)\n"
        "print(sorted({'torch', 'ray'} & set(sys.modules)))\n"
    )

    ran = subprocess.run(
        [sys.executable, "-c", program, str(source.root)],
        capture_output=True,
        text=True,
        check=True,
    )

    first, *_, last = ran.stdout.splitlines()
    assert first.startswith(f"statements/{DEPLOYMENT}/")
    assert last == "[]"


# push and pull --------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["push", "pull"])
def test_copies_are_complete(run, source, target, command):
    """Statements and blobs arrive as they were, and the statements' keys are all of stdout."""
    first, _ = publish(source, deployment="First")
    raw = {"cache": b"other", "torch_bytes": container(("inductor", [("key", b"graph")]))}
    second, _ = publish(source, deployment="Second", raw=raw)

    copied = run(command, source.root, target.root)

    assert (copied.code, copied.out) == (0, f"{first}\n{second}\n")
    assert objects(target) == objects(source)
    assert len(objects(target)) == 5


@pytest.mark.parametrize("command", ["push", "pull"])
def test_one_deployment_can_be_copied(run, source, target, command):
    """With `--deployment` nothing of the others is read or copied, so that they may be broken."""
    wanted, manifest = publish(source, deployment="First")
    publish(source, STRANGER, deployment="Second", raw={"cache": b"other"})

    copied = run(command, source.root, target.root, "--deployment", "First")

    assert (copied.code, copied.out) == (0, f"{wanted}\n")
    assert set(objects(target)) == {wanted, blob_key(manifest.parts[0])}


@pytest.mark.parametrize("command", ["push", "pull"])
def test_a_corrupted_blob_is_not_copied(run, source, target, command):
    """One changed bit in a blob ends the copy with exit code 1, and nothing is published."""
    _, manifest = publish(source)
    blob = source.root / blob_key(manifest.parts[0])
    blob.write_bytes(blob.read_bytes()[:-1] + bytes([blob.read_bytes()[-1] ^ 1]))

    failed = run(command, source.root, target.root)

    assert (failed.code, failed.out) == (1, "")
    assert "part cache: sha256 is " in failed.err
    assert "Traceback" not in failed.err
    assert objects(target) == {}


@pytest.mark.parametrize("command", ["push", "pull"])
def test_an_untrusted_artifact_is_not_copied(run, source, target, command):
    """What is signed by a stranger ends the copy with exit code 1, and nothing is published."""
    publish(source, STRANGER)

    failed = run(command, source.root, target.root)

    assert (failed.code, failed.out) == (1, "")
    [error] = [line for line in failed.err.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: statements/Embedder/")
    assert "signed by " in error
    assert error.endswith(", which is not trusted here")
    assert "Traceback" not in failed.err
    assert objects(target) == {}


def objects(store: LocalStore) -> dict[str, bytes]:
    return {key: store.get(key, max_bytes=1 << 20) for key in store.list("")}


# How they end ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["inspect", "a", "b"],
        ["push", "a"],
        ["pull", "a", "b", "--deploymnt", "c"],
        ["publish"],
        ["--jsn", "inspect", "a"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(run, arguments):
    """A missing or unknown argument, option or command is named on stderr: exit code 2."""
    ended = run(*arguments)

    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("Usage: ")
    assert "\nError: " in ended.err


@pytest.mark.parametrize("command", ["inspect", "push", "pull"])
def test_our_errors_are_two_lines_on_stderr(run, target, command):
    """An error says what was found and what to do, on stderr, without a traceback: exit code 1."""
    folders = ["https://example.com/artifacts", target.root]

    ended = run(command, *folders[: 1 if command == "inspect" else 2])

    assert (ended.code, ended.out) == (1, "")
    error, hint = ended.err.splitlines()[-2:]
    assert error.startswith("error: https:// is not a store: ")
    assert hint == "hint: name a folder: ./artifacts or file:///srv/artifacts"
    assert "Traceback" not in ended.err


def test_the_exit_code_is_that_of_the_process(tmp_path):
    """`python -m serve_warm.cli` ends with the codes that scripts rely on: 0, 1 and 2."""

    def process(*arguments: str) -> int:
        command = [sys.executable, "-m", "serve_warm.cli", *arguments]
        return subprocess.run(command, capture_output=True, check=False).returncode

    codes = [
        process("inspect", str(tmp_path)),
        process("inspect", "https://example.com"),
        process("inspect"),
    ]

    assert codes == [0, 1, 2]
