# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs of `serve-warm` in tests, on a machine that trusts one key, with captured output."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from artifacts import LONG_S, build, new_key
from homes import move_home, write_trust_file
from processes import run_to_end
from serve_warm.artifact.push import push
from serve_warm.cli import main
from serve_warm.stores import list_keys
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
"""Text that deletes the line, returns to its start, sets a colour, and reverses and breaks text."""

MAIN = """
import os, pwd, sys
from pathlib import Path
ours, home = pwd.getpwuid(os.geteuid()), Path(sys.argv.pop(1)).parents[2]
pwd.getpwuid = lambda _: pwd.struct_passwd((*ours[:5], str(home), ours[6]))
from serve_warm.cli import main
"""
"""The beginning of a program. Its first argument is the path of the user's trust file. The rest of
the program must call `main`."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The exit status and the output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture(name="trust_file")
def trust_file_fixture(tmp_path: Path) -> Path:
    """The trust file of a user who trusts KEY, in a separate home."""
    # Artifacts in tests have fixed creation times, so their age grows.
    lines = files.trust_lines(KEY.public_key(), name="ci")
    return write_trust_file(tmp_path / "home", f"max_age_days = {LONG_S / 86400}\n{lines}")


@pytest.fixture(name="run")
def run_fixture(
    trust_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Run `serve-warm` as the console script does."""
    move_home(trust_file.parents[2], monkeypatch)

    def run_with(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["serve-warm", *map(str, arguments)])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        written = capsys.readouterr()
        return Ended(code=int(code or 0), out=written.out, err=written.err)

    return run_with


@pytest.fixture(name="run_process")
def run_process_fixture(trust_file: Path) -> Callable[..., Ended]:
    """Run a program that begins with MAIN in a separate process."""

    def run_with(program: str, *arguments: object) -> Ended:
        command = [sys.executable, "-c", MAIN + program, str(trust_file), *map(str, arguments)]
        ran = run_to_end(command)
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
    store: LocalStore, key: Ed25519PrivateKey = KEY, *, on_taken: Any = "refuse", **artifact: Any
) -> tuple[str, Manifest]:
    manifest, stored = build(**artifact)
    return push(store, manifest, stored, [key], on_taken=on_taken), manifest


def objects(store: LocalStore) -> dict[str, bytes]:
    return {key: store.get(key, max_bytes=1 << 20) for key in list_keys(store, "")}


def escaped(text: str) -> bool:
    """Return whether a text contains no control characters except line ends."""
    return text.replace("\n", "").isprintable()
