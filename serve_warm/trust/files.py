# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
r"""The trust files of this machine and user: their paths, permissions and format.

The trust files are `/etc/serve_warm/trust.toml` and `~/.config/serve_warm/trust.toml`. `~` is the
home folder in the password database, never `$HOME`, because a person who controls only environment
variables must not be able to add a key.

    pinned = ["sha256:9f2c..."]         # optional: statements that need no trusted key
    denied = ["sha256:41aa..."]         # optional: statements or parts refused in any case
    max_age_days = 90                   # optional: older artifacts are refused; default 365
    rollback = "refuse"                 # optional: refuse artifacts older than one used before
    require = {builder = "https://github.com/acme/*", source = "*"}    # optional: facts to match

    [[keys]]
    name = "ci"
    pem = "-----BEGIN PUBLIC KEY-----\n...\n-----END PUBLIC KEY-----\n"
    deployments = ["Embedder", "text/*"]    # optional: trusted only for these
    stores = ["s3://prod/*"]                # optional: trusted only from these

    [[keys]]
    name = "release"
    file = "release.pem"                # relative to this file

    [[unsigned_ok]]                     # optional: everything in exactly this store is trusted
    store = "file:///home/me/artifacts"
    reason = "my own experiments"

serve_warm combines the settings of both files. It is an error if users other than root and this
user can write to a trust file.
"""

from __future__ import annotations

import json
import math
import operator
import os
import sys
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_warm import _private_folders
from serve_warm._regular_files import open_regular
from serve_warm.errors import ConfigError
from serve_warm.trust.keys import TrustedKey, distinct, public_pem
from serve_warm.trust.patterns import read_patterns
from serve_warm.trust.policy import Trust, UnsignedOk, parse_digest, with_scope

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SYSTEM_TRUST_FILE = Path("/etc/serve_warm/trust.toml")
MAX_TRUST_FILE_BYTES = 1 << 20


def default_trust_files() -> tuple[Path, ...]:
    """Return the paths of the trust files on this machine, existing or not."""
    user = user_directory()
    return (SYSTEM_TRUST_FILE,) if user is None else (SYSTEM_TRUST_FILE, user / "trust.toml")


def user_directory() -> Path | None:
    """Return this user's serve_warm folder, existing or not; None without a home folder."""
    home = _private_folders.user_home()
    return None if home is None else home / ".config" / "serve_warm"


def load_trust() -> Trust:
    """Return the combined trust settings from all trust files on this machine.

    Missing files are skipped.

    Raises:
        ConfigError: a file is malformed, or users other than root and this user could have written
            it.
    """
    found: list[Trust] = []
    for path in default_trust_files():
        data = _read_guarded(path)
        if data is not None:
            found.append(_parse(data, path))
    return reduce(operator.or_, found, Trust())


def trust_lines(key: Ed25519PublicKey, *, name: str) -> str:
    """Return the three lines that add `key` to a trust file."""
    pem = public_pem(key).decode()
    # A JSON string is also a valid TOML string, unless it has escaped surrogate pairs.
    quoted_name, quoted_pem = (json.dumps(text, ensure_ascii=False) for text in (name, pem))
    return f"[[keys]]\nname = {quoted_name}\npem = {quoted_pem}\n"


def how_to_trust() -> str:
    """Return the hint for a machine that trusts no key, or does not trust the signer's key."""
    files = " or ".join(str(path) for path in default_trust_files())
    return (
        f"add the public key that signs your artifacts to {files}:\n"
        "[[keys]]\n"
        'name = "builder"\n'
        r'pem = "-----BEGIN PUBLIC KEY-----\n...\n-----END PUBLIC KEY-----\n"'
    )


def add_key(key: Ed25519PublicKey, path: Path, *, name: str) -> None:
    """Add `key` to a trust file. Create the file if needed, and keep existing content.

    Raises:
        ConfigError: as for `load_trust`, or the file would no longer be valid TOML.
        OSError: the file cannot be written.
    """
    data = _read_guarded(path) or b""
    if key.public_bytes_raw() in {trusted.raw for trusted in _parse(data, path).keys}:
        return
    lines = trust_lines(key, name=name)
    gap = b"" if not data else b"\n" if data.endswith(b"\n") else b"\n\n"
    extended = data + gap + lines.encode()
    try:
        tomllib.loads(extended.decode())
    except ValueError as error:
        raise ConfigError(f"cannot add a key to {path}", hint=f"add by hand:\n{lines}") from error
    # No lock is needed: concurrent callers write the same lines.
    target = Path(os.path.realpath(path))
    _private_folders.write_beside(target, extended, mode=0o600).replace(target)


def _parse(data: bytes, path: Path) -> Trust:
    try:
        fields = tomllib.loads(data.decode("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    lists = ("keys", "pinned", "denied", "unsigned_ok")
    others = ("max_age_days", "require", "rollback")
    unknown = sorted(set(fields) - {*lists, *others})
    if unknown:
        raise ConfigError(
            f"{path}: unknown setting {unknown[0]!r}",
            hint=f"the settings are {', '.join((*lists, *others))}",
        )
    for name in lists:
        if not isinstance(fields.setdefault(name, []), list):
            raise ConfigError(
                f"{path}: {name} is not a list",
                hint="write [[keys]] and [[unsigned_ok]] as tables, and pinned and denied as lists",
            )
    try:
        return _to_trust(fields, path)
    except ConfigError as error:
        if str(path) in error.message:
            raise
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error


def _to_trust(fields: Mapping[str, Any], path: Path) -> Trust:
    return Trust(
        keys=distinct(_parse_key(table, path) for table in fields["keys"]),
        pinned=frozenset(parse_digest(text, where=f"{path}: pinned") for text in fields["pinned"]),
        denied=frozenset(parse_digest(text, where=f"{path}: denied") for text in fields["denied"]),
        max_age_s=_parse_age(fields["max_age_days"], path) if "max_age_days" in fields else None,
        max_age_set_by=f"max_age_days in {path}",
        unsigned_ok=tuple(_parse_unsigned_ok(table, path) for table in fields["unsigned_ok"]),
        require=_parse_require(fields.get("require", {}), path),
        rollback=fields.get("rollback", "warn"),
    )


def _parse_require(table: Any, path: Path) -> frozenset[tuple[str, str]]:
    if not isinstance(table, dict):
        raise ConfigError(
            f"{path}: `require` is not a table",
            hint='for example require = {builder = "https://github.com/acme/*"}',
        )
    return frozenset(
        (name, read_patterns([pattern], where=f"{path}: require.{name}")[0])
        for name, pattern in table.items()
    )


def _parse_age(days: Any, path: Path) -> float:
    # type() instead of isinstance, which accepts true as a number. TOML also has inf and nan.
    if type(days) not in (int, float) or not 0 < days * 86400 < math.inf:
        raise ConfigError(f"{path}: `max_age_days` must be a number above 0: {days!r}")
    return float(days * 86400)


def _parse_unsigned_ok(table: Any, path: Path) -> UnsignedOk:
    if (
        not isinstance(table, dict)
        or set(table) != {"store", "reason"}
        or not all(isinstance(value, str) for value in table.values())
    ):
        raise ConfigError(
            f"{path}: an [[unsigned_ok]] table is incomplete or has unknown settings",
            hint="each [[unsigned_ok]] table needs a store and a reason, both as strings",
        )
    try:
        return UnsignedOk(**table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error


def _parse_key(table: Any, path: Path) -> TrustedKey:
    wanted = (
        "each [[keys]] table needs a name and either pem or file, all as strings; deployments "
        "and stores must be lists"
    )
    named = set(table) - {"deployments", "stores"} if isinstance(table, dict) else set()
    if named not in ({"name", "pem"}, {"name", "file"}) or not all(
        isinstance(table[name], str) and table[name] for name in named
    ):
        raise ConfigError(
            f"{path}: a [[keys]] table is incomplete or has unknown settings", hint=wanted
        )
    pem = table["pem"] if "pem" in table else _read_guarded(path.parent / table["file"])
    if pem is None:
        raise ConfigError(f"{path}: key {table['name']!r}: there is no file {table['file']}")
    key = TrustedKey.from_pem(pem, name=table["name"])
    return with_scope(key, table, where=f"{path}: key {table['name']!r}")


def _read_guarded(path: Path) -> bytes | None:
    """Read a file that only root or this user can write to; return None if there is no file."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            found = _private_folders.file_problems(path, opened=file.fileno())
            if found:
                raise ConfigError(
                    f"the trust file cannot be used: {_private_folders.sentence(found)}; anyone "
                    "who can change the trusted keys can run code on this machine",
                    hint=_private_folders.fixes(found),
                )
            data = file.read(MAX_TRUST_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_TRUST_FILE_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_TRUST_FILE_BYTES} bytes")
    return data
