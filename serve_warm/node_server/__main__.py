# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The command line of the node server: `python -I -m serve_warm.node_server`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Any

from serve_warm import node
from serve_warm.node_server.addresses import plain_address
from serve_warm.node_server.server import LOOPBACK, Server, log

COMMAND = "python -m serve_warm.node_server"
OPTIONS: dict[str, tuple[str, Any, str]] = {
    **{name: option for name, option in node.OPTIONS.items() if name != "--verbose"},
    "--port": ("PORT", "8099", "The server's port. Default: 8099."),
    "--host": ("HOST", "", "An address or a name. Default: all addresses, IPv6 and IPv4."),
    "--drain-s": ("SECONDS", "5", "Seconds between SIGTERM and the end of the server."),
    "--host-ip": (
        "ADDRESS",
        (),
        "A kubelet's address (status.hostIP), for which connections are reserved. Repeatable.",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a server until SIGTERM or SIGINT, and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    usage = node.usage(COMMAND, OPTIONS)
    if "--help" in arguments or "-h" in arguments:
        sys.stdout.write(usage)
        return 0
    try:
        given = node.parse(arguments, OPTIONS)
        host, port, drain_s = given.pop("host"), int(given.pop("port")), float(given.pop("drain_s"))
        trusted = LOOPBACK.union(*map(addresses, given.pop("host_ip")))
        settings = node.settings_of(**given)
    except ValueError as error:
        sys.stderr.write(f"{usage}\nerror: {error}\n")
        return 2
    try:
        server = Server(settings, host=host, port=port, drain_s=drain_s, trusted=trusted)
    except OSError as error:
        sys.stderr.write(f"error: port {port} of {host or 'this machine'}: {error.strerror}\n")
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.drain())
    reads = settings.choice()[0]
    log(f"the server answers on port {server.port} of {server.where} and reads {reads}")
    server.run()
    log("ended")
    return 0


def addresses(text: str) -> tuple[str, ...]:
    """Split comma-separated IP addresses into plain addresses.

    Raises:
        ValueError: one of the texts is not an IP address.

    >>> addresses("192.0.2.7,2001:DB8:0::1")
    ('192.0.2.7', '2001:db8::1')
    """
    found = []
    for each in filter(None, text.split(",")):
        try:
            found.append(plain_address(each))
        except ValueError:
            raise ValueError(
                f"{each!r} is not an IP address; use, for example, the value of status.hostIP"
            ) from None
    return tuple(found)


if __name__ == "__main__":
    sys.exit(main())
