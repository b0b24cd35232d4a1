# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The form of a store's address: which kind of store it names, and how it may be misspelt.

No more than the scheme of an address is repeated in errors: the rest may hold a password or a
presigned query.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from serve_warm._suggestions import nearest
from serve_warm.errors import ConfigError

SCHEMES = ("file", "s3", "gs", "az", "hf")

ADDRESSES = (
    "name a folder (./artifacts, file:///srv/artifacts), s3://bucket/prefix, gs://bucket/prefix, "
    "az://container/prefix, or hf://owner/repo@revision"
)
"""The hint for what is no address."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_NO_COLON = re.compile(r"([A-Za-z][A-Za-z0-9]*)//")


def split(uri: str) -> tuple[str, str]:
    """Return the scheme of an address, in lower case, and what follows its colon.

    >>> split("S3://bucket"), split("./artifacts")
    (('s3', '//bucket'), ('', './artifacts'))
    """
    scheme = _SCHEME.match(uri)
    platform: str = sys.platform
    if platform == "win32" and scheme and len(scheme[1]) == 1:
        return "", uri  # a drive
    return (scheme[1].lower(), uri[scheme.end() :]) if scheme else ("", uri)


def check_scheme(uri: str) -> None:
    """Refuse what begins like an address and is the address of no kind of store.

    Raises:
        ConfigError: the scheme is unknown, or what follows it is not what follows a scheme.
    """
    name, rest = split(uri)
    if not name:
        missing = _NO_COLON.match(uri)
        if missing and missing[1].lower() in (*SCHEMES, "http", "https"):
            raise ConfigError(
                f"{missing[1]}// does not begin the address of a store: its colon is missing",
                hint=f"write {missing[1].lower()}://; a folder of that name is ./{missing[1]}",
            )
        return
    if name in ("http", "https"):
        raise ConfigError(
            f"{name}:// is not a store: whoever sets the address could make replicas call any host",
            hint=ADDRESSES,
        )
    if name not in SCHEMES:
        near = nearest(name, SCHEMES, likeness=0.5)
        asked = f"did you mean {near}://? " if near else ""
        raise ConfigError(f"{name}: does not begin the address of a store", hint=asked + ADDRESSES)
    slashes = "///" if name == "file" else "//"
    if not rest.startswith(slashes):
        raise ConfigError(
            f"{name}: does not begin the address of a store: it is followed by {slashes}",
            hint=ADDRESSES,
        )


def is_relative(uri: str) -> bool:
    """Return whether an address is a folder that the working directory decides.

    >>> is_relative("./artifacts"), is_relative("/srv/artifacts"), is_relative("s3://bucket")
    (True, False, False)
    """
    return not split(uri)[0] and not Path(uri).is_absolute()
