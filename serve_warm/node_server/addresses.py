# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The addresses of a node server: where it listens, and how it tells its clients apart."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Any

from serve_warm.node import LOCALHOST

ALL_IPV4, ALL_IPV6 = "0.0.0.0", "::"  # noqa: S104 - the kubelet and Prometheus connect from outside
FINAL = (errno.EADDRINUSE, errno.EACCES)
"""Errors after which no other address is tried, because the address exists."""


def listen(host: str, port: int, *, backlog: int) -> socket.socket:
    """Return a socket that listens on a port of an IP address or a host name.

    An empty host means all addresses of this machine, of IPv6 and IPv4, or only of IPv4 if the
    kernel has no IPv6. `::` means the same, but fails without IPv6. If a name has several
    addresses, such as `localhost`, the first one that this machine has is used, IPv4 first.

    Raises:
        OSError: this machine does not have the address, or the port is taken. `strerror` says what
            to do.
    """
    if not 0 <= port < 1 << 16:
        raise OSError(errno.EINVAL, "a port is a number from 0 to 65535; pass another --port")
    try:
        candidates = _candidates(host)
    except (OSError, UnicodeError) as error:
        text = getattr(error, "strerror", None) or "not a host name"
        hint = "pass an IP address of this machine as --host, and the port as --port"
        raise OSError(errno.EADDRNOTAVAIL, f"{text}; {hint}") from error
    for place, (family, address) in enumerate(candidates):
        try:
            return _listen_on(family, (address[0], port, *address[2:]), backlog)
        except OSError as error:
            if error.errno in FINAL or place == len(candidates) - 1:
                raise OSError(error.errno, f"{error.strerror}; {_advice(error, family)}") from error
    raise OSError(errno.EADDRNOTAVAIL, "the name has no address; pass an IP address as --host")


def describe(listening: socket.socket) -> str:
    """Return the addresses on which a socket listens, for a log line."""
    address = str(listening.getsockname()[0])
    everywhere = {ALL_IPV4: "all IPv4 addresses", ALL_IPV6: "all IPv6 and IPv4 addresses"}
    return everywhere.get(address, address)


def plain_address(text: str) -> str:
    """Return an IP address in the form that its other forms are compared with.

    A socket for both families shows IPv4 clients as mapped addresses. A link-local address may
    name its interface. Neither makes another client of it.

    Raises:
        ValueError: the text is not an IP address.

    >>> plain_address("::ffff:192.0.2.7"), plain_address("FE80:0::1%eth0")
    ('192.0.2.7', 'fe80::1')
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


def _candidates(host: str) -> list[tuple[int, tuple[Any, ...]]]:
    if not host:
        return [(socket.AF_INET6, (ALL_IPV6, 0)), (socket.AF_INET, (ALL_IPV4, 0))]
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    found: list[Any] = []
    for name in LOCALHOST if host.lower() == "localhost" else (host,):
        found += socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    # AF_INET is the smaller number.
    return sorted((int(family), address) for family, _, _, _, address in found)


def _listen_on(family: int, address: tuple[Any, ...], backlog: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # The kernel's default may differ.
            only_ipv6 = address[0] != ALL_IPV6
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_ipv6)
        listening.bind(address)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening


def _advice(error: OSError, family: int) -> str:
    advice = {
        errno.EADDRINUSE: "stop the process that listens there, or pass another --port",
        errno.EACCES: "pass a --port of 1024 or more",
        errno.EINVAL: "name the interface of a link-local address, as in fe80::1%eth0",
    }
    if family == socket.AF_INET6 and error.errno == errno.EAFNOSUPPORT:
        return "this kernel has no IPv6: pass an IPv4 address as --host, or leave --host out"
    otherwise = "pass an address of this machine as --host, or leave --host out to use all"
    return advice.get(error.errno or 0, otherwise)
