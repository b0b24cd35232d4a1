# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A node server, its clients and a probe in a network of their own, whose kind the caller chooses.

    python network_process.py KIND FOLDER HOST

The last line of the output is JSON: what each of them says. The process ends with 77 where the
kernel does not allow such a network. The kinds are keys of `NETWORKS`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import http.client
import json
import os
import platform
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOT_ALLOWED = 77
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, SIOCSIFADDR = 0x8914, 0x8916
IFF_UP_RUNNING = 0x41
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
SOCKET_CALLS = {"x86_64": 41, "aarch64": 198}
"""Numbers of the system call `socket`."""
ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT / "serve_warm/node.py"


def enter() -> None:
    """Move this process to a new network, which has only a loopback interface."""
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWNET if uid == 0 else CLONE_NEWUSER | CLONE_NEWNET
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "no new network")
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    _configure(SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP_RUNNING))


def _configure(request: int, argument: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, request, argument)


def remove_ipv4() -> None:
    """Remove the IPv4 address of the loopback interface, which was the only one."""
    _configure(SIOCSIFADDR, struct.pack("16sH2x4s8x", b"lo", socket.AF_INET, bytes(4)))


def switch_ipv6_off() -> None:
    """Do what `sysctl net.ipv6.conf.all.disable_ipv6=1` does."""
    Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")


def refuse_ipv6() -> None:
    """Refuse sockets of IPv6 for good, as a kernel does that was started with `ipv6.disable=1`."""
    number = SOCKET_CALLS.get(platform.machine())
    if number is None or sys.byteorder != "little":
        raise OSError(errno.ENOSYS, "the number of the system call is not known")

    def step(code: int, then: int, otherwise: int, value: int) -> bytes:
        return struct.pack("HBBI", code, then, otherwise, value)

    load, equals, end = 0x20, 0x15, 0x06
    program = (
        step(load, 0, 0, 0)  # the number of the system call
        + step(equals, 0, 3, number)
        + step(load, 0, 0, 16)  # its first argument
        + step(equals, 0, 1, socket.AF_INET6)
        + step(end, 0, 0, 0x00050000 | errno.EAFNOSUPPORT)
        + step(end, 0, 0, 0x7FFF0000)
    )
    code = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(described), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no seccomp filter")


NETWORKS: dict[str, tuple[Callable[[], None], ...]] = {
    "IPv6 and IPv4": (enter,),
    "IPv6 only": (enter, remove_ipv4),
    "IPv6 switched off": (enter, switch_ipv6_off),
    "a kernel without IPv6": (enter, refuse_ipv6),
}


def ask(address: str, port: int) -> str:
    """Return the status of `/livez` by this address, or the error."""
    try:
        with contextlib.closing(http.client.HTTPConnection(address, port, timeout=30)) as asking:
            asking.request("GET", "/livez")
            return str(asking.getresponse().status)
    except OSError as error:
        return error.strerror or str(error)


def describe(folder: str, host: str) -> dict[str, Any]:
    """Run a node server on a host, and return what it and its clients say."""
    sys.path.insert(0, str(ROOT))
    from serve_warm import node
    from serve_warm.node_server.server import Server

    settings = node.Settings(folder, node.Policy("allow-idle"), urls=())
    try:
        server = Server(settings, host=host, port=0, drain_s=0.0)
    except OSError as error:
        return {"error": error.strerror}
    running = threading.Thread(target=server.run, daemon=True)
    running.start()
    url = f"http://localhost:{server.port}/livez"
    probe = [sys.executable, "-I", "-S", str(NODE), "probe", "--expect=allow-idle"]
    probe += [f"--state-dir={folder}", f"--raylet={url}", f"--proxy={url}"]
    probed = subprocess.run(probe, capture_output=True, text=True, check=False)
    said = {
        "where": server.where,
        "127.0.0.1": ask("127.0.0.1", server.port),
        "::1": ask("::1", server.port),
        "probe": f"{probed.returncode} {probed.stdout}{probed.stderr}".strip(),
    }
    server.drain()
    server.drain()
    running.join()
    return said


def main() -> int:
    kind, folder, host = sys.argv[1:]
    try:
        for prepare in NETWORKS[kind]:
            prepare()
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return NOT_ALLOWED
    sys.stdout.write(json.dumps(describe(folder, host)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
