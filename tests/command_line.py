# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Running `serve-warm` in tests: on a machine that trusts one key, with what it wrote apart."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from artifacts import LONG_S, build, new_key
from serve_warm.artifact.push import push
from serve_warm.cli import main
from serve_warm.stores.local import LocalStore
from serve_warm.trust import files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from serve_warm.artifact.manifest import Manifest

KEY = new_key()
STRANGER = new_key()

ESCAPES = "\x1b[2K\r\x9b31m\u202e\u2028trusted"
"""Deletes the line, returns to its start, colours it, turns the text around and breaks it."""

MAIN = """
import sys
from pathlib import Path
from serve_warm.trust import files
files.default_trust_files = lambda file=Path(sys.argv.pop(1)): (file,)
from serve_warm.cli import main
"""
"""The beginning of a program whose first argument is the trust file; it still has to call main."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How the command line ended, and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture(name="trust_file")
def trust_file_fixture(tmp_path: Path) -> Path:
    """A machine that trusts KEY."""
    file = tmp_path / "trust.toml"
    # The times of artifacts are written down in tests, and grow old.
    lines = files.trust_lines(KEY.public_key(), name="ci")
    file.write_text(f"max_age_days = {LONG_S / 86400}\n{lines}")
    file.chmod(0o600)
    return file


@pytest.fixture(name="run")
def run_fixture(
    trust_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Run `serve-warm` as the console script does."""
    monkeypatch.setattr(files, "default_trust_files", lambda: (trust_file,))

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


@pytest.fixture(name="run_process")
def run_process_fixture(trust_file: Path) -> Callable[..., Ended]:
    """Run a program that begins with MAIN in a process of its own."""

    def run_with(program: str, *arguments: object) -> Ended:
        command = [sys.executable, "-c", MAIN + program, str(trust_file), *map(str, arguments)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        return Ended(code=ran.returncode, out=ran.stdout, err=ran.stderr)

    return run_with


@pytest.fixture(name="source")
def source_fixture(tmp_path: Path) -> LocalStore:
    root = tmp_path / "source"
    root.mkdir()
    return LocalStore(root=root)


@pytest.fixture(name="target")
def target_fixture(tmp_path: Path) -> LocalStore:
    return LocalStore(root=tmp_path / "target")


def publish(
    store: LocalStore, key: Ed25519PrivateKey = KEY, *, on_taken: str = "refuse", **artifact: object
) -> tuple[str, Manifest]:
    """Put an artifact into a store; returns the key of its statement."""
    manifest, stored = build(**artifact)
    return push(store, manifest, stored, [key], on_taken=on_taken), manifest


def objects(store: LocalStore) -> dict[str, bytes]:
    return {key: store.get(key, max_bytes=1 << 20) for key in store.list("")}


def escaped(text: str) -> bool:
    """Whether nothing in a text but the ends of its lines acts on a terminal."""
    return text.replace("\n", "").isprintable()
