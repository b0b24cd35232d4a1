# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Trust files: their content, and which users may be able to write them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from artifacts import new_key
from believing import PAYLOAD, STORE, public_pem, refusal, trust_in, write_trust
from serve_warm.errors import ConfigError
from serve_warm.trust import files as trustfiles
from serve_warm.trust.envelope import sign
from serve_warm.trust.files import trust_lines
from serve_warm.trust.keys import TrustedKey, key_id
from serve_warm.trust.policy import Trust, signed_by, unsigned_ok

KEY = new_key()
OTHER = new_key()
PEM = public_pem(KEY)
LINES = trust_lines(KEY.public_key(), name="x")


def test_keys_of_all_files_are_merged(tmp_path: Path):
    system = write_trust(tmp_path / "etc", trust_lines(KEY.public_key(), name="ci"))
    keys = (trust_lines(k.public_key(), name=n) for k, n in ((KEY, "copy"), (OTHER, "me")))
    text = f'pinned = ["sha256:{"ab" * 32}"]\n' + "".join(keys)
    user = write_trust(tmp_path / "home", text)
    loaded = trust_in(system, user, tmp_path / "absent" / "trust.toml")
    assert [key.name for key in loaded.keys] == ["ci", "me"]
    assert [key.id for key in loaded.keys] == [key_id(k.public_key()) for k in (KEY, OTHER)]
    assert loaded.pinned == {"ab" * 32}


def test_a_trust_file_says_all_that_code_can(tmp_path: Path):
    system = write_trust(
        tmp_path / "etc",
        f'denied = ["sha256:{"0a" * 32}"]\nmax_age_days = 90\n'
        + trust_lines(KEY.public_key(), name="ci"),
    )
    user = write_trust(
        tmp_path / "home",
        f'denied = ["sha256:{"0b" * 32}"]\nmax_age_days = 0.5\n'
        f'[[unsigned_ok]]\nstore = "{STORE}"\nreason = "my own experiments"\n',
    )

    loaded = [trust_in(system), trust_in(user), trust_in(system, user)]

    ci = TrustedKey.from_pem(PEM, name="ci")
    machine = signed_by(ci, max_age_s=90 * 86400, denied=[f"sha256:{'0a' * 32}"])
    personal = unsigned_ok(STORE, reason="my own experiments") | Trust(
        denied=frozenset({"0b" * 32}), max_age_s=43200.0
    )
    assert loaded == [machine, personal, machine | personal]


def test_a_trust_file_gives_keys_a_scope_and_says_what_is_required(tmp_path: Path):
    """Scopes are set for each key; `require` and `rollback` apply to everything in the file."""
    text = (
        'rollback = "refuse"\nrequire = {builder = "https://ci/*", source = "*"}\n'
        f"{trust_lines(KEY.public_key(), name='ci')}"
        'deployments = ["Embedder", "text/*"]\nstores = ["s3://prod/*"]\n'
    )
    loaded = trust_in(write_trust(tmp_path, text))

    [key] = loaded.keys
    assert (key.deployments, key.stores) == (("Embedder", "text/*"), ("s3://prod/*",))
    assert loaded.rollback == "refuse"
    assert dict(loaded.require) == {"builder": "https://ci/*", "source": "*"}
    assert (Trust() | loaded.limits, loaded.limits.keys) == (loaded.limits, ())
    assert loaded.limits.require == loaded.require
    assert (signed_by(PEM) | loaded.limits).rollback == "refuse"


def test_the_example_of_the_module_is_a_trust_file(tmp_path: Path):
    example = trustfiles.__doc__.partition("add a key.\n")[2].partition("serve_warm combines")[0]
    pem = PEM.replace("\n", "\\n")
    for old, new in [
        ("9f2c...", "9f" * 32),
        ("41aa...", "41" * 32),
        ("-----BEGIN PUBLIC KEY-----\\n...\\n-----END PUBLIC KEY-----\\n", pem),
    ]:
        assert old in example
        example = example.replace(old, new)
    write_trust(tmp_path, public_pem(OTHER), "release.pem")

    loaded = trust_in(write_trust(tmp_path, textwrap.dedent(example)))

    assert [key.name for key in loaded.keys] == ["ci", "release"]
    assert (loaded.pinned, loaded.denied) == ({"9f" * 32}, {"41" * 32})
    assert loaded.max_age_s == 90 * 86400
    assert [allowed.reason for allowed in loaded.unsigned_ok] == ["my own experiments"]


def test_no_file_trusts_nobody(tmp_path: Path):
    assert trust_in(tmp_path / "trust.toml") == Trust()


def test_a_key_can_stand_in_a_file_of_its_own(tmp_path: Path):
    """`file` is relative to the trust file, regardless of the working directory."""
    path = write_trust(tmp_path, '[[keys]]\nname = "release"\nfile = "release.pem"\n')
    write_trust(tmp_path, public_pem(KEY), "release.pem")
    loaded = trust_in(path)
    assert loaded.keys == (TrustedKey(name="release", raw=KEY.public_key().public_bytes_raw()),)


def test_nothing_configured_refuses_and_says_which_lines_to_add(tmp_path: Path):
    refused = refusal(sign(PAYLOAD, KEY), Trust())

    lines = refused.hint.splitlines()[1:]
    assert refused.reason == "no_trust"
    assert "/etc/serve_warm/trust.toml" in refused.hint
    assert [line.split(" ")[0] for line in lines] == ["[[keys]]", "name", "pem"]
    filled = trust_lines(KEY.public_key(), name="builder").splitlines()
    assert lines[:2] == filled[:2]
    assert lines[2].split("...")[0] == filled[2][: len(lines[2].split("...")[0])]
    assert trust_in(write_trust(tmp_path, "\n".join(filled))).keys[0].name == "builder"


def test_the_home_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Setting HOME for the process does not allow anyone to add a key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    files = trustfiles.default_trust_files()
    assert files[0] == Path("/etc/serve_warm/trust.toml")
    assert not any(path.is_relative_to(tmp_path) for path in files)


PEM_LINE = LINES.splitlines()[2]
BROKEN = {
    "not_toml": "keys = [",
    "unknown_setting": "key = []",
    "keys_no_list": "keys = 1",
    "keys_no_tables": "keys = [1]",
    "no_name": f"[[keys]]\n{PEM_LINE}",
    "no_key": '[[keys]]\nname = "x"',
    "empty_name": f'[[keys]]\nname = ""\n{PEM_LINE}',
    "both": f'[[keys]]\nname = "x"\nfile = "x.pem"\n{PEM_LINE}',
    "unknown_in_key": f'[[keys]]\nname = "x"\nscope = "y"\n{PEM_LINE}',
    "no_file": '[[keys]]\nname = "x"\nfile = "absent.pem"',
    "file_is_directory": '[[keys]]\nname = "x"\nfile = "."',
    "not_pem": '[[keys]]\nname = "x"\npem = "AAAA"',
    "private_pem": '[[keys]]\nname = "x"\npem = """'
    + KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    + '"""',
    "other_kind": '[[keys]]\nname = "x"\npem = """'
    + public_pem(ec.generate_private_key(ec.SECP256R1()))
    + '"""',
    "pinned_no_list": 'pinned = "sha256:00"',
    "pinned_short": 'pinned = ["sha256:00"]',
    "pinned_number": "pinned = [1]",
    "denied_no_list": 'denied = "sha256:00"',
    "denied_short": 'denied = ["sha256:00"]',
    "age_text": 'max_age_days = "90"',
    "age_zero": "max_age_days = 0",
    "age_negative": "max_age_days = -1",
    "age_bool": "max_age_days = true",
    "age_endless": "max_age_days = inf",
    "age_none": "max_age_days = nan",
    "age_huge": "max_age_days = 1e308",
    "scope_text": f'[[keys]]\nname = "x"\n{PEM_LINE}\ndeployments = "Embedder"',
    "scope_number": f'[[keys]]\nname = "x"\n{PEM_LINE}\nstores = [1]',
    "require_text": 'require = "ci"',
    "require_unknown": 'require = {commit = "*"}',
    "require_empty": 'require = {source = ""}',
    "require_number": "require = {source = 1}",
    "rollback_unknown": 'rollback = "forbid"',
    "rollback_number": "rollback = 1",
    "unsigned_list": f'unsigned_ok = ["{STORE}"]',
    "unsigned_no_list": f'unsigned_ok = "{STORE}"',
    "unsigned_no_reason": f'[[unsigned_ok]]\nstore = "{STORE}"',
    "unsigned_empty_reason": f'[[unsigned_ok]]\nstore = "{STORE}"\nreason = " "',
    "unsigned_no_store": '[[unsigned_ok]]\nreason = "x"',
    "unsigned_number": f'[[unsigned_ok]]\nstore = "{STORE}"\nreason = 1',
    "unsigned_unknown": f'[[unsigned_ok]]\nstore = "{STORE}"\nreason = "r"\nkeys = "y"',
    "too_long": "#" * (1 << 20) + "\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_trust_file_is_an_error(tmp_path: Path, name: str):
    path = write_trust(tmp_path, BROKEN[name])
    with pytest.raises(ConfigError) as caught:
        trust_in(path)
    assert str(tmp_path) in str(caught.value) or "'x'" in str(caught.value)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
@pytest.mark.parametrize("what", ["file", "directory", "above", "pem"])
def test_what_others_can_write_is_not_trusted(tmp_path: Path, what: str, mode: int):
    """The error names the fix; test_private_folders.py has links and owners."""
    etc = tmp_path / "above" / "etc"
    path = write_trust(etc, '[[keys]]\nname = "x"\nfile = "x.pem"\n')
    pem = write_trust(etc, public_pem(KEY), "x.pem")
    assert trust_in(path).keys
    target = {"file": path, "directory": etc, "above": etc.parent, "pem": pem}[what]
    target.chmod(mode | 0o111 if target.is_dir() else mode)
    with pytest.raises(ConfigError, match="written by group or others") as caught:
        trust_in(path)
    assert caught.value.hint == f"chmod go-w {target}"


def test_a_pipe_does_not_hang_the_start(tmp_path: Path):
    os.mkfifo(tmp_path / "trust.toml", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        trust_in(tmp_path / "trust.toml")


MOUNTED = """
set -e
mount -t tmpfs none "$1"
cp "$2" "$1/trust.toml"
chmod 777 "$1"
[ "$3" = rw ] || mount -o remount,ro "$1"
exec "$4" -c "
import sys, pathlib
from serve_warm.trust import files
files.default_trust_files = lambda: [pathlib.Path(sys.argv[1]) / 'trust.toml']
print(len(files.load_trust().keys))" "$1"
"""


@pytest.mark.parametrize(("mount", "trusted"), [("ro", True), ("rw", False)])
def test_a_read_only_mount_cannot_be_written_whatever_its_mode(tmp_path, mount: str, trusted: bool):
    """A ConfigMap, which Kubernetes mounts read-only with mode 0777, is safe."""
    namespace = [shutil.which("unshare") or "unshare", "--user", "--map-root-user", "--mount"]
    # Where root is not mapped the folders above the mount seem to be somebody else's.
    roots = ["sh", "-c", 'test "$(stat -c %u /)" = 0']
    if subprocess.run([*namespace, *roots], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not let us mount anything as root")
    source, folder = write_trust(tmp_path / "source", LINES), tmp_path / "mount"
    folder.mkdir()
    command = [*namespace, "sh", "-c", MOUNTED, "-", folder, source, mount, sys.executable]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)

    assert (result.stdout == "1\n") == trusted
    assert ("can be written by group or others" in result.stderr) != trusted
