# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A home for this user in the password database, with a trust file that serve_warm reads."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def move_home(home: Path, patch: pytest.MonkeyPatch) -> None:
    """Make the password database return `home` as this user's home."""
    ours = pwd.getpwuid(os.geteuid())
    elsewhere = pwd.struct_passwd((*ours[:5], str(home), ours[6]))
    patch.setattr(pwd, "getpwuid", lambda _: elsewhere)


def write_trust_file(home: Path, text: str) -> Path:
    folder = home / ".config" / "serve_warm"
    folder.mkdir(mode=0o700, parents=True)
    file = folder / "trust.toml"
    file.write_text(text)
    file.chmod(0o600)
    return file
