# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The addresses of a node: where its server listens and its probe asks, with and without IPv6."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from network_process import NOT_ALLOWED
from processes import run_to_end
from serve_warm import node
from serve_warm.node import get, split_url
from serve_warm.node_server import server as node_server
from serve_warm.node_server.__main__ import addresses, main
from serve_warm.node_server.addresses import listen, plain_address
from serve_warm.node_server.server import Server
from state_files import directory_fixture  # noqa: F401 - a fixture

PROGRAM = Path(__file__).parent / "support/network_process.py"


def has_ipv6() -> bool:
    try:
        listen("::1", 0, backlog=1).close()
    except OSError:
        return False
    return True


IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")


def in_network(kind: str, folder: Path, host: str) -> dict[str, Any]:
    """Run a server on a host in a network of this kind; return what it and its clients say."""
    ended = run_to_end([sys.executable, str(PROGRAM), kind, str(folder), host])
    if ended.returncode == NOT_ALLOWED:
        pytest.skip(f"this kernel allows no such network: {ended.stderr.strip()}")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


EVERYWHERE, IPV4 = "all IPv6 and IPv4 addresses", "all IPv4 addresses"
NO_ADDRESS = "Cannot assign requested address"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "where", "by_ipv4", "by_ipv6"),
    [
        ("IPv6 and IPv4", EVERYWHERE, "200", "200"),
        ("IPv6 only", EVERYWHERE, "Network is unreachable", "200"),
        ("IPv6 switched off", EVERYWHERE, "200", NO_ADDRESS),
        ("a kernel without IPv6", IPV4, "200", "Address family not supported by protocol"),
    ],
)
def test_every_client_that_a_network_has_is_answered(
    kind: str, where: str, by_ipv4: str, by_ipv6: str, tmp_path: Path
):
    """Without `--host`, clients of both families are served, and the probe finds the server."""
    said = in_network(kind, tmp_path / "state", "")

    assert said == {"where": where, "127.0.0.1": by_ipv4, "::1": by_ipv6, "probe": "0"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "host", "expected"),
    [
        ("IPv6 and IPv4", "::", (EVERYWHERE, "200", "200")),
        ("IPv6 and IPv4", "0.0.0.0", (IPV4, "200", "Connection refused")),
        ("IPv6 and IPv4", "::1", ("::1", "Connection refused", "200")),
        ("IPv6 and IPv4", "[::1]", ("::1", "Connection refused", "200")),
        ("IPv6 and IPv4", "127.0.0.1", ("127.0.0.1", "200", "Connection refused")),
        ("IPv6 and IPv4", "localhost", ("127.0.0.1", "200", "Connection refused")),
        ("IPv6 only", "localhost", ("::1", "Network is unreachable", "200")),
    ],
)
def test_a_host_is_taken_as_it_is(kind: str, host: str, expected: tuple[str, ...], tmp_path: Path):
    """No client of another address is answered. A probe asks both addresses of localhost."""
    said = in_network(kind, tmp_path / "state", host)

    assert (said["where"], said["127.0.0.1"], said["::1"]) == expected
    assert said["probe"] == "0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "host", "error"),
    [
        ("IPv6 only", "127.0.0.1", f"{NO_ADDRESS}; pass an address of this machine as --host"),
        ("IPv6 switched off", "::1", f"{NO_ADDRESS}; pass an address of this machine as --host"),
        ("a kernel without IPv6", "::", "this kernel has no IPv6: pass an IPv4 address as --host"),
    ],
)
def test_an_address_that_a_network_lacks_is_an_error(
    kind: str, host: str, error: str, tmp_path: Path
):
    """A server that was told an address listens on no other, and says what to do."""
    assert error in in_network(kind, tmp_path / "state", host)["error"]


@pytest.mark.slow
def test_a_probe_says_that_nobody_listens(tmp_path: Path):
    """It names the refusal, not the address that this machine lacks."""
    said = in_network("IPv6 only", tmp_path / "state", "0.0.0.0")

    lines = said["probe"].splitlines()
    assert lines[0].startswith("1 raylet: http://localhost:")
    assert all(line.endswith("/livez: Connection refused") for line in lines)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("256.1.1.1", "pass an IP address of this machine as --host, and the port as --port"),
        ("127.0.0.1:8099", "pass an IP address of this machine as --host, and the port as --port"),
        ("[::1]:8099", "pass an IP address of this machine as --host, and the port as --port"),
        ("[127.0.0.1]", "pass an IP address of this machine as --host, and the port as --port"),
        ("a" * 70, "pass an IP address of this machine as --host, and the port as --port"),
        ("192.0.2.1", "pass an address of this machine as --host, or leave --host out to use all"),
        pytest.param("fe80::1", "name the interface of a link-local address", marks=IPV6),
    ],
)
def test_a_bad_host_is_one_line_with_what_to_do(
    host: str, said: str, directory: Path, capsys: pytest.CaptureFixture[str]
):
    code = main(["--state-dir", str(directory), "--host", host, "--port", "0"])

    [line] = capsys.readouterr().err.splitlines()
    assert code == 1
    assert line.startswith(f"error: port 0 of {host}: ")
    assert said in line


@pytest.mark.parametrize(
    ("taken", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "localhost"),
        ("127.0.0.1", ""),
        ("0.0.0.0", ""),
        ("", ""),
        ("", "0.0.0.0"),
        pytest.param("::1", "", marks=IPV6),
    ],
)
def test_a_taken_port_is_one_line_with_what_to_do(
    taken: str, host: str, directory: Path, capsys: pytest.CaptureFixture[str]
):
    """The server does not take another address instead, on which nobody would ask."""
    with listen(taken, 0, backlog=1) as listening:
        port = str(listening.getsockname()[1])
        code = main(["--state-dir", str(directory), "--host", host, "--port", port])

    [line] = capsys.readouterr().err.splitlines()
    assert code == 1
    where = host or "this machine"
    advice = "stop the process that listens there, or pass another --port"
    assert line == f"error: port {port} of {where}: Address already in use; {advice}"


def test_a_port_that_does_not_exist_is_said(directory: Path, capsys: pytest.CaptureFixture[str]):
    code = main(["--state-dir", str(directory), "--port", "70000"])

    assert code == 1
    assert capsys.readouterr().err == (
        "error: port 70000 of this machine: a port is a number from 0 to 65535; pass another "
        "--port\n"
    )


# --- clients -------------------------------------------------------------------------------


@pytest.fixture(name="server")
def server_fixture(directory: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(host: str = "", **options: Any) -> Server:
        server = Server(node.Settings(str(directory), urls=()), host=host, port=0, **options)
        started.append(server)
        threading.Thread(target=server._http.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield start
    for each in started:
        each._http.shutdown()
        each._http.server_close()


def test_a_client_by_ipv4_is_one_client_on_every_server(server):
    """The limit of an address holds on a socket for both families, for the address itself."""
    both = server()
    with contextlib.ExitStack() as opened:
        clients = [
            opened.enter_context(socket.create_connection(("127.0.0.1", both.port), timeout=60))
            for _ in range(node_server.PEER_CONNECTIONS + 1)
        ]
        dropped = clients[0].recv(1)
        with both._clients._lock:
            peers = {client.peer for client in both._clients._open.values()}

    assert dropped == b""
    assert peers == {"127.0.0.1"}


def link_local() -> str | None:
    """Return a link-local address of this machine with its interface, such as fe80::1%eth0."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            raw, _, _, _, _, interface = line.split()
            if raw.startswith("fe80"):
                return f"{socket.inet_ntop(socket.AF_INET6, bytes.fromhex(raw))}%{interface}"
    return None


@pytest.mark.skipif(link_local() is None, reason="this machine has no link-local address")
def test_a_link_local_client_is_known_without_its_interface(server):
    """A server listens on such an address, a probe asks it, and the client has a plain address."""
    host = link_local()
    address, _, interface = host.partition("%")
    local = server(host, trusted=addresses(host))
    with contextlib.closing(http.client.HTTPConnection(host, local.port, timeout=60)) as asking:
        asking.request("GET", "/livez")
        status = asking.getresponse().status
        with local._clients._lock:
            peers = {client.peer for client in local._clients._open.values()}

    assert status == 200
    assert peers == {address} == local._clients._trusted
    assert get(f"http://[{address}%25{interface}]:{local.port}/livez", limit_s=60.0) == ""


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::FFFF:c000:0207", "192.0.2.7"),
        ("::1", "::1"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::192.0.2.7", "::c000:207"),
    ],
)
def test_an_address_has_one_plain_form(text: str, plain: str):
    """A kubelet's address in any of its forms is trusted. Only mapped addresses are IPv4."""
    assert plain_address(text) == plain
    assert addresses(f"{text},198.51.100.1") == (plain, "198.51.100.1")


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://[::1]:8000/-/healthz", ("::1", 8000, "/-/healthz")),
        ("http://[fe80::1%25eth0]:1/", ("fe80::1%eth0", 1, "/")),
        ("http://localhost:8000/x", ("localhost", 8000, "/x")),
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000, "/")),
    ],
)
def test_a_url_of_ipv6_has_brackets(url: str, parts: tuple[str, int, str]):
    assert split_url(url) == parts


@IPV6
def test_a_request_to_ipv6_names_its_host_in_brackets():
    """RFC 9110 asks for them in the Host header. Servers may refuse other requests."""
    heard: list[bytes] = []
    with listen("::1", 0, backlog=1) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                heard.append(connection.recv(1 << 16))
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        port = listening.getsockname()[1]
        said = get(f"http://[::1]:{port}/x", limit_s=60.0)

    assert said == ""
    assert f"Host: [::1]:{port}".encode() in heard[0].splitlines()
