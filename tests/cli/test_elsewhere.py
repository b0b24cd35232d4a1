# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A laptop with macOS: commands work there, or say in one sentence that they do not.

In a process that lacks what such a Python lacks (`elsewhere.py`), since no such machine is here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from artifacts import packed_cache
from command_line import KEY, MAIN, Ended, publish, trust_file_fixture  # noqa: F401 - fixtures
from processes import HERE, run_to_end
from serve_warm.cli import COMMANDS, ON_MACOS, check_system
from serve_warm.errors import ServeWarmError
from serve_warm.stores.local import LocalStore

PROGRAM = HERE / "elsewhere.py"

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
    ran = run_to_end(command, cwd=cwd)
    return Ended(code=ran.returncode, out=ran.stdout, err=ran.stderr)


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> LocalStore:
    """A store with one signed artifact."""
    store = LocalStore(root=tmp_path / "store")
    publish(store, raw={"cache": packed_cache(tmp_path / "cache")})
    return store


@pytest.mark.long
@pytest.mark.slow
def test_an_application_can_be_written_there(tmp_path: Path) -> None:
    """Each module and public name exists, and `check` finds only the real mistake."""
    (tmp_path / "good.py").write_text(APP)
    (tmp_path / "bad.py").write_text(APP.replace('"score"', '"scores"'))
    ran = elsewhere("--with-ray", "-c", WRITTEN_HERE, cwd=tmp_path)
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    assert said["names"] == []
    assert (said["good"][0], said["bad"][0]) == (0, 1), said
    assert "'scores'" in said["bad"][1]


@pytest.mark.slow
def test_the_package_and_its_help_need_neither_torch_nor_ray() -> None:
    """`serve-warm --help` loads the module of each command."""
    program = (
        "import sys, serve_warm.cli\n"
        "sys.argv = ['serve-warm', '--help']\n"
        "try: serve_warm.cli.main()\n"
        "finally: assert not {'torch', 'ray'} & set(sys.modules)\n"
    )
    ran = elsewhere("-c", program)
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
def test_a_command_works_or_says_in_a_sentence_that_it_does_not() -> None:
    """Before it does anything, with its reason and where it works; its help is there."""
    ran = elsewhere("-c", EACH_COMMAND)
    assert ran.code == 0, ran.err
    ended = json.loads(ran.out)
    refused = set()
    for name in COMMANDS:
        assert ended[f"{name} --help"][0] == 0
        code, out, err = ended[f"{name} a b"]
        if "but this is darwin" in err:
            sentence, hint = err.splitlines()
            assert (code, out) == (1, "")
            assert sentence.startswith(f"error: serve-warm {name} ")
            assert hint.startswith("hint: ")
            refused.add(name)
    assert refused == set(COMMANDS) - ON_MACOS


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
    ran = elsewhere("-c", MAIN + "main()", trust_file, command, store.root)
    assert ran.code == code, ran.err
    assert said in ran.out


@pytest.mark.parametrize("name", ["inspect", "build"])
def test_no_command_works_on_other_systems(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """serve_warm cannot check there who is allowed to change a key, a trust file or a store."""
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ServeWarmError, match=f"{name} works only on Linux.*, but this is win32"):
        check_system(name)
