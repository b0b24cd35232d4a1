# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Hosts that a bucket's client may reach, so that no redirect sends a credential elsewhere.

obstore 0.12 follows up to ten redirects, to any host, and has no option against it. Its HTTP
library then removes the header `Authorization`, but not `x-amz-security-token`. It also adds the
header `Referer` with the whole URL, which can contain an Azure SAS token. So serve_warm names a
proxy that does not exist, for all hosts except those of the store. This is not possible if the
operator has set a proxy.
"""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from collections.abc import Mapping, Sequence

from serve_warm._store_address import BucketScheme

NO_PROXY_THERE = "127.0.0.1:1"
"""Address of the proxy that does not exist. On most machines, only root can listen on this port."""

ENDPOINTS: Mapping[BucketScheme, tuple[str, ...]] = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": (),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Environment variables that select a server other than the provider's. The first variable that is
set wins."""

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "AWS_PROXY_URL", "AZURE_PROXY_URL")
_SAS = ("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_SAS_KEY", "AZURE_SAS_TOKEN")
_AZURE_LOGINS = ("AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_SECRET", "AZURE_STORAGE_CLIENT_SECRET")
"""Credentials that obstore prefers to a SAS token, and sends to a login server."""
_AWS_CREDENTIALS = ("169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::23")
"""Hosts that return the credentials of an instance, of ECS and of EKS."""
_AWS_CREDENTIAL_URLS = (
    *("AWS_ENDPOINT_URL_STS", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_METADATA_ENDPOINT"),
)


def confine(scheme: BucketScheme, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of obstore that keep a client on the hosts of its store.

    Empty if no variable names a server: the provider redirects only to its own hosts. Also empty
    for Google, for Azure if obstore uses another credential than a SAS token, if the operator has
    set a proxy, and if obstore might spell the name of a host differently.

    >>> confine("az", {"AZURE_STORAGE_SAS_KEY": "sv=1", "AZURE_STORAGE_ENDPOINT": "https://me:1/a"})
    {'proxy_url': 'http://127.0.0.1:1', 'proxy_excludes': 'me'}
    """
    hosts = _hosts(environ, ENDPOINTS[scheme])
    has_proxy = any(name.upper() in _PROXIES and value for name, value in environ.items())
    if not hosts or has_proxy:
        return {}
    if scheme == "az" and (not any(map(environ.get, _SAS)) or any(map(environ.get, _AZURE_LOGINS))):
        return {}
    if scheme == "s3":
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        hosts += ["sts.amazonaws.com", f"sts.{region}.amazonaws.com", *_AWS_CREDENTIALS]
        hosts += _hosts(environ, _AWS_CREDENTIAL_URLS)
    if not all(map(_is_plain, hosts)):
        return {}
    return {"proxy_url": f"http://{NO_PROXY_THERE}", "proxy_excludes": ",".join(hosts)}


def _is_plain(host: str) -> bool:
    """Return whether every URL parser reads a host as it is written, unlike `127.1` or `bücher`."""
    try:
        return str(ipaddress.ip_address(host)) == host
    except ValueError:
        return bool(_NAME.fullmatch(host))


_NAME = re.compile(r"(?:[a-z0-9_-]+\.)*(?!0x)[a-z0-9_-]*[a-z_][a-z0-9_-]*")
"""A name whose last label is not a number, because some parsers read a number as an IP address."""


def _hosts(environ: Mapping[str, str], names: Sequence[str]) -> list[str]:
    hosts = []
    for name in names:
        try:
            host = urllib.parse.urlsplit(environ.get(name, "").strip()).hostname
        except ValueError:
            continue  # obstore refuses such a setting
        hosts += [host] if host else []
    return hosts
