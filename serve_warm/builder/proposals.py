# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Proposed changes of a user's files, which keep line ends and encoding."""

from __future__ import annotations

import difflib
import io
import re
import tokenize
from pathlib import Path

from serve_warm._records import record
from serve_warm._regular_files import read_regular
from serve_warm.errors import ConfigError


@record(frozen=True, kw_only=True)
class Proposal:
    """A file before and after a proposed change."""

    path: Path
    before: str | None
    """The content of the file; None if there is no file yet."""
    after: str
    encoding: str = "utf-8"

    def diff(self) -> str:
        """Return the change as a unified diff; empty if nothing changes."""
        before = split_lines(self.before or "")
        name = str(self.path)
        lines = difflib.unified_diff(before, split_lines(self.after), name, name)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)

    def write(self) -> None:
        """Write the file as proposed, with the line ends and encoding that it had."""
        self.path.write_bytes(self.after.encode(self.encoding))


def read_source(path: Path) -> tuple[str, str]:
    """Return the text of a file with its line ends, and its encoding.

    Raises:
        ConfigError: the file cannot be read, or is not text.
    """
    try:
        data = read_regular(str(path))
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding), encoding
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="save it as UTF-8") from error


def split_lines(text: str) -> list[str]:
    """Return the lines as Python counts them: other separators do not end a line."""
    return re.split(r"(?<=\n)", text)[: text.count("\n") + (not text.endswith("\n"))]
