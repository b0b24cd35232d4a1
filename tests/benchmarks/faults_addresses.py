# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs node servers in networks with and without IPv6 and IPv4, and asks them by each address.

    python tests/benchmarks/faults_addresses.py --json tests/benchmarks/results/faults.json

A row is right if the server answers at each address that the network has and the host includes, and
at no other, or ends with an error that says what to do if there is none. The probe must agree. More
rows take the port, and exceed the limit of an address on a socket for both families. The program
replaces its own rows in the file, and keeps all others. A network that this kernel does not allow
has rows with 0 tries.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests/support"
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(SUPPORT)]

from benchmarks.fault_rows import FaultRow, add_rows  # noqa: E402
from network_process import NETWORKS, NOT_ALLOWED  # noqa: E402
from serve_warm import node  # noqa: E402
from serve_warm.node_server.addresses import listen  # noqa: E402
from serve_warm.node_server.server import PEER_CONNECTIONS, Server  # noqa: E402

IPV4, IPV6 = "127.0.0.1", "::1"
HAS = {
    "IPv6 and IPv4": {IPV4, IPV6},
    "IPv6 only": {IPV6},
    "IPv6 switched off": {IPV4},
    "a kernel without IPv6": {IPV4},
}
"""The addresses that clients can use in each network."""
INCLUDES = {
    "": {IPV4, IPV6},
    "::": {IPV4, IPV6},
    "0.0.0.0": {IPV4},
    "127.0.0.1": {IPV4},
    "::1": {IPV6},
    "[::1]": {IPV6},
}
"""The addresses that each host includes."""
TRIES = 3


def expected_of(network: str, host: str) -> set[str]:
    """Return the addresses at which a server must answer."""
    has = HAS[network]
    if host == "localhost":
        return {IPV4} if IPV4 in has else {IPV6}
    if network == "a kernel without IPv6" and host == "::":
        return set()  # an error: the user asked for IPv6
    return has & INCLUDES[host]


def row_of(network: str, host: str, tries: int) -> FaultRow:
    """Return the row of a server on a host in a network, tried a number of times."""
    name = f"{network}, {f'--host {host}' if host else 'no --host'}"
    row: FaultRow = {"name": name, "kind": "node", "tries": 0, "outcome": "not run", "said": ""}
    expected, wrong = expected_of(network, host), 0
    for _ in range(tries):
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            program = [sys.executable, str(SUPPORT / "network_process.py"), network]
            ended = subprocess.run(
                [*program, f"{folder}/state", host], capture_output=True, text=True, check=False
            )
        if ended.returncode == NOT_ALLOWED:
            row["said"] = f"this kernel allows no such network: {ended.stderr.strip()}"
            return row
        if ended.returncode != 0:
            raise RuntimeError(f"{program} ended with {ended.returncode}: {ended.stderr}")
        said: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        row["tries"] += 1
        wrong += not is_right(said, expected)
        where = f"listens on {said.get('where')}"
        row["said"] = said.get("error") or f"{where}; node.py probe: {said['probe'][:1]}"
    answered = " and ".join(sorted(expected)) or "no address"
    row["outcome"] = f"{wrong} failed" if wrong else f"answered at {answered}"
    return row


def is_right(said: dict[str, Any], expected: set[str]) -> bool:
    """Return whether a server answered at these addresses only, and the probe agreed."""
    if "error" in said:
        return not expected and "--host" in said["error"]
    answered = {address for address in (IPV4, IPV6) if said[address] == "200"}
    return answered == expected and said["probe"].startswith("0" if expected else "1")


def taken_port(taken: str, host: str) -> FaultRow:
    """Return the row of a server whose port another process has."""
    with listen(taken, 0, backlog=1) as listening:
        port = listening.getsockname()[1]
        command = [sys.executable, "-m", "serve_warm.node_server", f"--host={host}"]
        ended = subprocess.run(
            [*command, f"--port={port}"], capture_output=True, text=True, check=False, cwd=ROOT
        )
    said = ended.stderr.strip().replace(str(port), "PORT")
    right = ended.returncode == 1 and said.count("\n") == 0 and "pass another --port" in said
    name = f"a port that is taken on {taken}, {f'--host {host}' if host else 'no --host'}"
    outcome = "refused" if right else "1 failed"
    return {"name": name, "kind": "node", "tries": 1, "outcome": outcome, "said": said}


def crowded_address() -> FaultRow:
    """Return the row of one address with more connections than its limit, on a dual socket."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        settings = node.Settings(f"{folder}/state", node.Policy("allow-idle"), urls=())
        server = Server(settings, host="", port=0, drain_s=0.0)
        running = threading.Thread(target=server.run)
        running.start()
        with contextlib.ExitStack() as opened:
            clients = [
                opened.enter_context(socket.create_connection((IPV4, server.port), timeout=30))
                for _ in range(PEER_CONNECTIONS + 3)
            ]
            dropped = [client.recv(1) for client in clients[:3]]
            clients[3].sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            kept = clients[3].recv(12)
        server.drain()
        server.drain()
        running.join()
    right = dropped == [b""] * 3 and kept == b"HTTP/1.1 200"
    return {
        "name": "more connections of 127.0.0.1 than an address may have, no --host",
        "kind": "node",
        "tries": len(clients),
        "outcome": "the oldest are closed" if right else "1 failed",
        "said": f"{server.where}: {len(dropped)} closed, the next one is answered",
    }


def rows(tries: int, wanted: str = "") -> list[FaultRow]:
    """Return the rows of all networks and hosts whose name contains `wanted`, and the others."""
    found = [
        row_of(network, host, tries)
        for network in NETWORKS
        if wanted in network
        for host in (*INCLUDES, "localhost")
    ]
    pairs = (IPV4, IPV4), (IPV4, ""), (IPV6, ""), ("0.0.0.0", ""), (IPV4, "localhost")
    return [*found, *(taken_port(*pair) for pair in pairs), crowded_address()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="the file to add the rows to")
    parser.add_argument(
        "--tries", type=int, default=TRIES, help="servers for each network and host"
    )
    parser.add_argument("--only", default="", help="only the networks that contain this text")
    asked = parser.parse_args()
    found = rows(asked.tries, asked.only)
    for row in found:
        sys.stdout.write(f"{row['tries']:6} {row['name']}: {row['outcome']} ({row['said']})\n")
    if asked.json is not None:
        add_rows(asked.json, found)
    sys.exit(any(row["outcome"].endswith("failed") for row in found))


if __name__ == "__main__":
    main()
