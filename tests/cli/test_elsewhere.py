# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A laptop with macOS or Windows: commands work there, or say in one sentence that they do not.

In a process that lacks what such a Python lacks (`elsewhere.py`), since no such machine is here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from artifacts import packed_cache
from command_line import (  # noqa: F401 - fixtures
    KEY,
    MAIN,
    Ended,
    publish,
    trust_file_fixture,
)
from processes import HERE
from serve_warm._store_address import split
from serve_warm.cli import ANYWHERE, COMMANDS, WHERE_OWNERS_ARE_KNOWN
from serve_warm.stores.local import LocalStore
from serve_warm.trust import files

MACOS, WINDOWS = SYSTEMS = ("darwin", "win32")
PROGRAM = HERE / "elsewhere.py"
NAMES = {MACOS: "macOS", WINDOWS: "Windows"}

WRITTEN_HERE = """
import contextlib, importlib, io, json, pkgutil, sys
import serve_warm
from serve_warm import cli

said = {}
for module in pkgutil.walk_packages(serve_warm.__path__, "serve_warm."):
    # transformers itself cannot be imported here: its file locks read sys.platform.
    if not module.name.endswith("__main__") and "generation." not in module.name:
        importlib.import_module(module.name)
said["names"] = [name for name in serve_warm.__all__ if getattr(serve_warm, name) is None]
for app in ("good", "bad"):
    sys.argv = ["serve-warm", "check", f"{app}:app"]
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            cli.main()
    except SystemExit as end:
        said[app] = [end.code, out.getvalue()]
print(json.dumps(said))
"""
"""Imports all of the package, and checks two applications."""

APP = """
from ray import serve
from serve_warm import Input, WarmupMixin

@serve.deployment
class Scorer(WarmupMixin):
    def warmup_inputs(self):
        return [Input(target="score", args=(1,))]

    async def score(self, ids):
        return ids

app = Scorer.bind()
"""


def elsewhere(*arguments: object, cwd: Path | None = None) -> Ended:
    """Run `elsewhere.py`."""
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    return Ended(code=ran.returncode, out=ran.stdout, err=ran.stderr)


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> LocalStore:
    """A store with one signed artifact."""
    store = LocalStore(root=tmp_path / "store")
    publish(store, raw={"cache": packed_cache(tmp_path / "cache")})
    return store


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_an_application_can_be_written_there(system: str, tmp_path: Path) -> None:
    """Each module and public name exists, and `check` finds only the real mistake."""
    (tmp_path / "good.py").write_text(APP)
    (tmp_path / "bad.py").write_text(APP.replace('"score"', '"scores"'))

    ran = elsewhere(system, "--with-ray", "-c", WRITTEN_HERE, cwd=tmp_path)

    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    assert said["names"] == []
    assert (said["good"][0], said["bad"][0]) == (0, 1), said
    assert "'scores'" in said["bad"][1]


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_package_and_its_help_need_neither_torch_nor_ray(system: str) -> None:
    """`serve-warm --help` loads the module of each command."""
    program = (
        "import sys, serve_warm.cli\n"
        "sys.argv = ['serve-warm', '--help']\n"
        "try: serve_warm.cli.main()\n"
        "finally: assert not {'torch', 'ray'} & set(sys.modules)\n"
    )

    ran = elsewhere(system, "-c", program)

    assert ran.code == 0, ran.err
    assert all(f"  {name} " in ran.out for name in COMMANDS)


EACH_COMMAND = """
import contextlib, io, json, sys
from serve_warm import cli

ended = {}
for name in cli.COMMANDS:
    for arguments in ([name, "a", "b"], [name, "--help"]):
        sys.argv = ["serve-warm", *arguments]
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                cli.main()
        except SystemExit as end:
            ended[" ".join(arguments)] = [end.code, out.getvalue(), err.getvalue()]
print(json.dumps(ended))
"""


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_command_works_or_says_in_a_sentence_that_it_does_not(system: str) -> None:
    """Before it does anything, with its reason and where it works; its help is there."""
    ran = elsewhere(system, "-c", EACH_COMMAND)

    assert ran.code == 0, ran.err
    ended = json.loads(ran.out)
    works = ANYWHERE if system == WINDOWS else ANYWHERE | WHERE_OWNERS_ARE_KNOWN
    refused = set()
    for name in COMMANDS:
        assert ended[f"{name} --help"][0] == 0
        code, out, err = ended[f"{name} a b"]
        if NAMES[system] in err:
            sentence, hint = err.splitlines()
            assert (code, out) == (1, "")
            assert sentence.startswith(f"error: serve-warm {name} ")
            assert hint.startswith("hint: ")
            refused.add(name)
    assert refused == set(COMMANDS) - works


@pytest.mark.slow
def test_status_is_of_pages_alone() -> None:
    """A node's state files are read on that node; its page of metrics can be read from anywhere."""
    here = elsewhere(MACOS, "status")
    page = elsewhere(WINDOWS, "status", "--url", "http://127.0.0.1:9")

    assert here.err.startswith("error: serve-warm status works only on Linux, but this is macOS")
    assert page.err.startswith("http://127.0.0.1:9/metrics cannot be reached")


@pytest.mark.slow
def test_inspect_shows_a_store_on_windows(store: LocalStore) -> None:
    """It shows the content of the store, but not who is trusted, and says why."""
    as_text = elsewhere(WINDOWS, "inspect", store.root)
    as_json = elsewhere(WINDOWS, "inspect", store.uri, "--json")

    assert as_text.code == as_json.code == 0, as_text.err + as_json.err
    (key,) = store.list("statements/")
    assert key in as_text.out
    assert "not trusted (no_trust)" in as_text.out
    assert as_text.err == (
        "hint: on Windows, serve_warm cannot check the permissions of trust files, and does not "
        "read them: verify on Linux, macOS or WSL\n"
    )
    (shown,) = json.loads(as_json.out)
    assert (shown["statement"], shown["trusted"]) == (key, False)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("inspect", 0, "trusted, signed by ci"),
        ("verify", 0, "OK       statements/"),
        ("diff", 3, "no artifact fits this machine"),
    ],
)
def test_artifacts_are_read_and_believed_on_macos(
    store: LocalStore, trust_file: Path, command: str, code: int, said: str
) -> None:
    """Files have owners and modes on macOS too, as on Linux."""
    program = MAIN + "main()"

    ran = elsewhere(MACOS, "-c", program, trust_file, command, store.root)

    assert ran.code == code, ran.err
    assert said in ran.out


# --- what cannot be checked is not believed ------------------------------------------------

REFUSALS = """
import sys
from pathlib import Path
from serve_warm import _private_folders, errors
from serve_warm.artifact.node_cache import NodeCache
from serve_warm.stores.local import LocalStore
from serve_warm.trust import files, user_key

folder = Path(sys.argv[1])
for what in (
    lambda: _private_folders.check_private(folder, "it"),
    lambda: NodeCache.open(folder / "blobs"),
    lambda: files.load_trust([folder / "trust.toml"]),
    lambda: user_key.user_key(folder / "keys"),
    lambda: LocalStore(root=folder / "new").create("a", b"x"),
    lambda: LocalStore(root=folder / "store").delete("statements/a"),
    lambda: LocalStore(root=folder).get("C:a", max_bytes=9),
):
    try:
        what()
    except errors.ServeWarmError as error:
        print(error.message)
print(files.load_trust().keys, files.default_trust_files())
"""


def test_windows_has_no_private_folder(tmp_path: Path) -> None:
    """Each place that wants one refuses with a sentence, and nothing is written in its place."""
    (tmp_path / "trust.toml").write_text(files.trust_lines(KEY.public_key(), name="ci"))

    ran = elsewhere(WINDOWS, "-c", REFUSALS, tmp_path)

    assert ran.code == 0, ran.err
    said = ran.out.splitlines()
    unchecked = [line.count("on Windows, serve_warm cannot check") for line in said]
    assert unchecked == [1, 1, 1, 1, 0, 0, 0, 0]
    assert [line.count("a folder store is read-only on Windows") for line in said[4:6]] == [1, 1]
    assert "names a drive or a stream" in said[6]
    assert said[7] == "() ()"
    assert not (tmp_path / "new").exists()


LISTING = """
import sys
from pathlib import Path
from serve_warm.stores.local import LocalStore
store = LocalStore(root=Path(sys.argv[1]))
print(*store.list(""), *store.list("a/"), store.head("a/b/c").size_bytes)
print(store.get("a/b/c", max_bytes=9), store.list("link/"), store.list("none/"))
"""


def test_windows_lists_no_folder_over_a_link(tmp_path: Path) -> None:
    """As on other systems, a followed link could form a loop or lead outside."""
    store = LocalStore(root=tmp_path / "store")
    store.create("a/b/c", b"123")
    store.create("d", b"4")
    (store.root / "link").symlink_to(tmp_path)
    (store.root / "a" / "loop").symlink_to(store.root)

    ran = elsewhere(WINDOWS, "-c", LISTING, store.root)

    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == ["a/b/c d a/b/c 3", "b'123' [] []"]


def test_a_drive_is_a_folder_on_windows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scheme has one letter. On other systems, the address counts as misspelt."""
    on_linux = split(r"C:\artifacts")
    monkeypatch.setattr(sys, "platform", "win32")

    assert on_linux == ("c", r"\artifacts")
    assert split(r"C:\artifacts") == ("", r"C:\artifacts")
    assert split("s3://bucket") == ("s3", "//bucket")


def test_this_system_lacks_nothing() -> None:
    """This system has everything that the processes above lack, so the tests prove something."""
    assert os.open in os.supports_dir_fd
    assert hasattr(os, "geteuid")
