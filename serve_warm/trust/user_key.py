# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""This user's own signing key, created on first use and trusted only by this user."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from serve_warm import _private_folders
from serve_warm.errors import ConfigError
from serve_warm.trust import files
from serve_warm.trust.keys import load_signing_key, make_signing_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def user_key() -> Ed25519PrivateKey:
    """Return this user's own signing key, created and trusted on first use.

    The key is `~/.config/serve_warm/signing_key.pem`, where `~` is the home folder in the password
    database. `trust.toml` in the same folder contains the matching public key, so users can load
    artifacts that they built themselves. Concurrent callers get the same key. To stop trusting the
    key, delete `signing_key.pem` and `trust.toml`.

    Raises:
        ConfigError: the files cannot be written, or other users could read or write them.
    """
    directory = files.user_directory()
    if directory is None:
        raise ConfigError(
            f"user id {os.geteuid()} has no entry in the password database, so it has no home "
            "directory for a key",
            hint="pass a key file",
        )
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        found = _private_folders.folder_problems(directory)
        if found:
            raise ConfigError(
                f"cannot create a signing key: {_private_folders.sentence(found)}",
                hint=_private_folders.fixes(found),
            )
        path = directory / "signing_key.pem"
        if not path.exists():
            # If several callers create the key, the first caller wins, and the other callers read
            # its key.
            with suppress(FileExistsError):
                make_signing_key(path)
        key = load_signing_key(path)
        name = f"{_login()}@{socket.gethostname()}"
        files.add_key(key.public_key(), directory / "trust.toml", name=name)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {error.strerror}") from error
    return key


def _login() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
