# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Shared helpers for the tests of keys, envelopes, trust and verification."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from serve_warm.errors import ArtifactRefused
from serve_warm.trust import files as trustfiles
from serve_warm.trust.user_key import user_key
from serve_warm.trust.verify import verify

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from serve_warm.trust.policy import Trust

PAYLOAD = b'{"_type":"https://in-toto.io/Statement/v1"}'
DIGEST = hashlib.sha256(PAYLOAD).hexdigest()
STORE = "file:///srv/artifacts"


def refusal(envelope: bytes, whom: Trust, *, store: str = "") -> ArtifactRefused:
    with pytest.raises(ArtifactRefused) as caught:
        verify(envelope, whom, store=store)
    return caught.value


def public_pem(key: Any) -> str:
    public = key.public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def write_trust(directory: Path, text: str, name: str = "trust.toml") -> Path:
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text)
    path.chmod(0o644)
    return path


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def trust_in(*files: Path) -> Trust:
    """Return the trust settings of a machine with these trust files."""
    with mock.patch.object(trustfiles, "default_trust_files", return_value=files):
        return trustfiles.load_trust()


def key_in(directory: Path) -> Ed25519PrivateKey:
    """Return the signing key of a user with this configuration folder."""
    with mock.patch.object(trustfiles, "user_directory", return_value=directory):
        return user_key()
