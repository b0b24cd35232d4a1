# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The form of store addresses: the scheme, which names the kind of store, and common misspellings.

Errors repeat only the scheme of an address, because the rest might contain a password or a
presigned query.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeGuard

from serve_warm._records import record
from serve_warm.errors import ConfigError, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BucketScheme = Literal["s3", "gs", "az"]


@record(frozen=True, kw_only=True)
class Scheme:
    """The stores whose addresses begin with one scheme."""

    kind: str
    """The kind of store as operators name it."""
    place: Literal["folder", "bucket", "repository"]


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "file": Scheme(kind="file", place="folder"),
        "s3": Scheme(kind="s3", place="bucket"),
        "gs": Scheme(kind="gs", place="bucket"),
        "az": Scheme(kind="azure", place="bucket"),
        "hf": Scheme(kind="hf", place="repository"),
    }
)
"""All schemes that serve_warm supports by itself. An address without a scheme is a folder."""

ADDRESSES = (
    "use a folder (./artifacts, file:///srv/artifacts), s3://bucket/prefix, gs://bucket/prefix, "
    "az://container/prefix, or hf://owner/repo@revision"
)
"""The hint for a text that is not an address."""

ENTRY_POINTS = "serve_warm.stores"
"""The entry-point group in which an installed package names the schemes that it supports."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_NO_COLON = re.compile(r"([A-Za-z][A-Za-z0-9]*)//")


def split(uri: str) -> tuple[str, str]:
    """Return the scheme of an address, in lower case, and the text after its colon.

    >>> split("S3://bucket"), split("./artifacts")
    (('s3', '//bucket'), ('', './artifacts'))
    """
    scheme = _SCHEME.match(uri)
    return (scheme[1].lower(), uri[scheme.end() :]) if scheme else ("", uri)


def is_bucket(scheme: str) -> TypeGuard[BucketScheme]:
    """Return whether addresses with this scheme name a bucket."""
    return scheme in SCHEMES and SCHEMES[scheme].place == "bucket"


def folder_of(uri: str) -> Path | None:
    """Return the folder that a `file:` address refers to; None for any other address.

    >>> folder_of("file:///srv/my%20artifacts").as_posix(), folder_of("s3://bucket/prefix")
    ('/srv/my artifacts', None)
    """
    name, rest = split(uri)
    if name != "file":
        return None
    # `Path.as_uri` writes names that are not UTF-8 in this form.
    return Path(urllib.parse.unquote(rest.removeprefix("//"), errors="surrogateescape"))


def check_scheme(uri: str) -> None:
    """Refuse an address with an unknown scheme.

    Raises:
        ConfigError: the scheme is unknown, or its colon or slashes are missing.
    """
    name, rest = split(uri)
    if not name:
        missing = _NO_COLON.match(uri)
        if missing and missing[1].lower() in (*SCHEMES, "http", "https"):
            raise ConfigError(
                f"{missing[1]}// is not a store scheme: the colon is missing",
                hint=f"write {missing[1].lower()}://, or ./{missing[1]} for a folder of that name",
            )
        return
    if name in ("http", "https"):
        raise ConfigError(
            f"{name}:// addresses are not accepted, because they could make replicas call any host",
            hint=ADDRESSES,
        )
    if name not in SCHEMES and installed_opener(name) is None:
        near = nearest(name, SCHEMES, likeness=0.5)
        asked = f"did you mean {near}:// instead? " if near else ""
        raise ConfigError(f"unknown store scheme {name}://", hint=asked + ADDRESSES)
    slashes = "///" if name == "file" else "//"
    if not rest.startswith(slashes):
        raise ConfigError(
            f"a store address with the scheme {name} must begin with {name}:{slashes}",
            hint=ADDRESSES,
        )


@cache
def installed_opener(scheme: str) -> EntryPoint | None:
    """Return the entry point of an installed package for a scheme; None if no package has one.

    Raises:
        ConfigError: two packages declare the scheme.
    """
    from importlib.metadata import entry_points

    found = {
        each.value: each for each in entry_points(group=ENTRY_POINTS) if each.name.lower() == scheme
    }
    if len(found) > 1:
        raise ConfigError(
            f"several installed packages open {scheme}:// stores: {', '.join(sorted(found))}",
            hint="uninstall all but one",
        )
    return next(iter(found.values()), None)


def is_relative(uri: str) -> bool:
    """Return whether an address is a folder relative to the working directory.

    >>> is_relative("./artifacts"), is_relative("/srv/artifacts"), is_relative("s3://bucket")
    (True, False, False)
    """
    return not split(uri)[0] and not Path(uri).is_absolute()
