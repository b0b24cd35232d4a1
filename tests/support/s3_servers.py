# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Servers for tests of stores: moto, a real Ceph gateway, Azurite, and a proxy with faults.

All servers listen on loopback, belong to one test session and end with that session.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hmac
import http.client
import os
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from components import require

START_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """An S3 server, and the credentials of its one user."""

    name: str
    endpoint: str
    access_key: str
    secret_key: str
    session_token: str = ""

    def environment(self) -> dict[str, str]:
        """Return the environment variables that an operator would set."""
        variables = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_SESSION_TOKEN": self.session_token,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        return {name: value for name, value in variables.items() if value}

    def client(self) -> Any:
        """Return a boto3 client, which is independent of the client under test."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            aws_session_token=self.session_token or None,
            region_name="us-east-1",
        )

    def new_bucket(self, *, versioned: bool = False) -> str:
        name = f"bucket-{secrets.token_hex(4)}"
        client = self.client()
        client.create_bucket(Bucket=name)
        if versioned:
            client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        client.close()
        return name


@dataclass
class Bucket:
    """The bucket of a store, accessed by another client."""

    client: Any
    name: str
    prefix: str = ""

    def read(self, key: str) -> bytes:
        answer = self.client.get_object(Bucket=self.name, Key=self.prefix + key)
        with contextlib.closing(answer["Body"]) as body:
            data: bytes = body.read()
        return data

    def write(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=self.prefix + key, Body=data)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    command: list[str],
    log: Path,
    up: Callable[[], bool],
    variables: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Run a server during the block, which begins when `up()` is true."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env={**os.environ, **(variables or {})},
        )
    try:
        end = time.monotonic() + START_S
        while not up():
            if process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"{command[0]} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(port: int, path: str = "/") -> Callable[[], bool]:
    def up() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", path)
            return connection.getresponse().status < 500
        except OSError:
            return False
        finally:
            connection.close()

    return up


# --- moto --------------------------------------------------------------------------------------


@contextlib.contextmanager
def moto_server(directory: Path) -> Iterator[Server]:
    """Run moto, with checks of signatures and permissions enabled."""
    import boto3

    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    # Small pages, so that a few objects are listed in pages, like more than 1000 on S3.
    few_keys = {"MOTO_S3_DEFAULT_MAX_KEYS": "3"}
    with running(command, directory / "moto.log", answers(port, "/moto-api/"), few_keys):
        endpoint = f"http://127.0.0.1:{port}"
        session = boto3.Session("any", "any", region_name="us-east-1")
        iam = session.client("iam", endpoint_url=endpoint)
        role = iam.create_role(RoleName="warm", AssumeRolePolicyDocument="{}")["Role"]
        iam.put_role_policy(
            RoleName="warm",
            PolicyName="all",
            PolicyDocument='{"Version": "2012-10-17", "Statement": '
            '[{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}',
        )
        sts = session.client("sts", endpoint_url=endpoint)
        answer = sts.assume_role(RoleArn=role["Arn"], RoleSessionName="warm")
        keys = answer["Credentials"]
        iam.close()
        sts.close()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/moto-api/reset-auth", body=b"0")
        assert connection.getresponse().status == 200
        connection.close()
        yield Server(
            name="moto",
            endpoint=endpoint,
            access_key=keys["AccessKeyId"],
            secret_key=keys["SecretAccessKey"],
            session_token=keys["SessionToken"],
        )


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


# --- Ceph --------------------------------------------------------------------------------------

CEPH_CONF = """
[global]
fsid = {fsid}
mon_host = v2:127.0.0.1:{monitor_port}
mon_initial_members = a
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
keyring = {directory}/keyring
mon_data = {directory}/mon
osd_data = {directory}/osd
rgw_data = {directory}/gateway
run_dir = {directory}
admin_socket = {directory}/$name.socket
log_file =
log_to_stderr = true
# One daemon keeps one copy of each object, in memory.
osd_objectstore = memstore
memstore_device_bytes = 4294967296
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
# Run even if the disk of this machine is nearly full.
mon_data_avail_crit = 1
[client.rgw.a]
rgw_frontends = beast endpoint=127.0.0.1:{port}
"""

# The gateway hangs when authentication is off, so all daemons have keys.
CEPH_KEYS = {
    "mon.": ["mon", "allow *"],
    "client.admin": ["mon", "allow *", "osd", "allow *"],
    "client.rgw.a": ["mon", "allow rw", "osd", "allow rwx"],
    "osd.0": ["mon", "allow profile osd", "osd", "allow *"],
}

CEPH_INSTALL = (
    "apt-get install --no-install-recommends ceph-mon ceph-osd radosgw ceph-common (Debian)"
)


@contextlib.contextmanager
def ceph_gateway(directory: Path) -> Iterator[Server]:
    """Run a minimal Ceph: a monitor, one store in memory, and a gateway that speaks S3."""
    for program in ("ceph-mon", "ceph-osd", "radosgw", "ceph-authtool", "ceph"):
        require(program, CEPH_INSTALL)
    port, monitor_port = free_port(), free_port()
    conf = directory / "ceph.conf"
    fsid = "6f1c1e0a-6b0f-4f57-9d5e-3c2b8f1f2d10"
    conf.write_text(
        CEPH_CONF.format(fsid=fsid, directory=directory, port=port, monitor_port=monitor_port)
    )
    for name in ("mon", "osd", "gateway"):
        (directory / name).mkdir()

    def call(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=START_S, check=False
        )
        if done.returncode:
            pytest.fail(f"{program} {arguments[0]} failed:\n{done.stdout}{done.stderr}"[-2000:])

    def tool(program: str, *arguments: str) -> None:
        call(program, "-c", str(conf), *arguments)

    keyring, monmap = str(directory / "keyring"), str(directory / "monmap")
    for number, (name, caps) in enumerate(CEPH_KEYS.items()):
        capabilities = [
            word
            for kind, allowed in zip(caps[::2], caps[1::2], strict=True)
            for word in ("--cap", kind, allowed)
        ]
        create = [] if number else ["--create-keyring"]
        call("ceph-authtool", keyring, *create, "--gen-key", "-n", name, *capabilities)
    monitor = f"[v2:127.0.0.1:{monitor_port}]"
    call("monmaptool", "--create", "--fsid", fsid, "--addv", "a", monitor, monmap)
    tool("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)

    def daemon(program: str, *arguments: str, up: Callable[[], bool]) -> Any:
        command = [program, "-c", str(conf), "-f", *arguments]
        return running(command, directory / f"{program}.log", up)

    user = {"access_key": "AKIAWARMWARMWARMWARM", "secret_key": secrets.token_hex(20)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(daemon("ceph-mon", "-i", "a", up=lambda: True))
        osd = "0a9f8f1e-53c1-4b2c-8f0a-1d6a7a5f4e01"
        tool("ceph", "osd", "new", osd)
        tool("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        stack.enter_context(daemon("ceph-osd", "-i", "0", up=lambda: True))
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in user.items()]
        tool("radosgw-admin", "user", "create", "--uid=warm", "--display-name=warm", *flags)
        stack.enter_context(daemon("radosgw", "-n", "client.rgw.a", up=answers(port)))
        yield Server(name="ceph", endpoint=f"http://127.0.0.1:{port}", **user)


@pytest.fixture(scope="session")
def ceph() -> Iterator[Server]:
    # A short path, because it contains sockets.
    with (
        tempfile.TemporaryDirectory(prefix="ceph-") as directory,
        ceph_gateway(Path(directory)) as server,
    ):
        yield server


# --- Azurite -----------------------------------------------------------------------------------

AZURITE_ACCOUNT = "warm"
AZURITE_INSTALL = ".ci/install-components installs it"


def _create_container(port: int, key: bytes, name: str) -> int:
    date = email.utils.formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2023-11-03"}
    resource = f"/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{name}\nrestype:container"
    signed = [f"{header}:{value}" for header, value in headers.items()]
    text = "\n".join(["PUT", *[""] * 11, *signed, resource])
    signature = base64.b64encode(hmac.digest(key, text.encode(), "sha256")).decode()
    headers["Authorization"] = f"SharedKey {AZURITE_ACCOUNT}:{signature}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        path = f"/{AZURITE_ACCOUNT}/{name}?restype=container"
        connection.request("PUT", path, b"", headers)
        return connection.getresponse().status


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run a blob service with one container; yield the settings for obstore, and `container`."""
    program = require("azurite-blob", AZURITE_INSTALL)
    port, key = free_port(), secrets.token_bytes(32)
    account_key = base64.b64encode(key).decode()
    directory = tmp_path_factory.mktemp("azurite")
    command = [program, "--silent", "--disableTelemetry", "--inMemoryPersistence"]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--skipApiVersionCheck"]
    accounts = {"AZURITE_ACCOUNTS": f"{AZURITE_ACCOUNT}:{account_key}"}
    with running(command, directory / "azurite.log", answers(port), accounts):
        assert _create_container(port, key, "container") == 201
        yield {
            "container": "container",
            "AZURE_STORAGE_ACCOUNT_NAME": AZURITE_ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": account_key,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }


# --- faults ------------------------------------------------------------------------------------

PIECE = 64 << 10


ANSWERS = {
    "301": (301, "PermanentRedirect"),
    "400_expired": (400, "ExpiredToken"),
    "403": (403, "AccessDenied"),
    "403_expired": (403, "ExpiredToken"),
    "404": (404, "NoSuchKey"),
    "404_bucket": (404, "NoSuchBucket"),
    "409": (409, "ConditionalRequestConflict"),
    "412": (412, "PreconditionFailed"),
    "416": (416, "InvalidRange"),
    "429": (429, "TooManyRequests"),
    "500": (500, "InternalError"),
    "501": (501, "NotImplemented"),
    "503": (503, "SlowDown"),
}
"""Answers that the proxy makes itself. Like S3, it repeats the received headers, including
secrets."""

TRANSPORT_FAULTS = (
    *("down", "slow", "trickle", "hang", "hang_in_body", "reset_in_body", "truncated", "short"),
)
"""`slow` sends about 10 MB/s, and `trickle` 20 bytes/s. `truncated` and `short` send half of the
body. `truncated` announces the whole length, and `short` announces half."""


@dataclass
class FaultProxy:
    """A proxy for an HTTP server that passes requests on and applies the fault in `fault`.

    Every request uses a separate connection. `seen` has each request as "METHOD target", followed
    by its range and "if-none-match" if it has these headers.
    """

    target_port: int
    port: int = 0
    times: int | None = None
    """Number of further requests that get the fault; None for all."""
    only: Callable[[str], bool] = lambda _request: True
    """Returns whether an entry, in the form of `seen`, gets the fault."""
    afterwards: Callable[[str], None] = lambda _request: None
    """Called with an entry after the server has answered and before the client gets the answer."""
    seen: list[str] = field(default_factory=list)
    most_at_once: int = 0
    """Largest number of answers that were sent at the same time."""
    _fault: str = ""
    _at_once: int = 0
    _listener: socket.socket | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _released: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def fault(self) -> str:
        return self._fault

    @fault.setter
    def fault(self, fault: str) -> None:
        assert fault in ("", *ANSWERS, *TRANSPORT_FAULTS), fault
        # Release the requests that hang because of the previous fault.
        self._released.set()
        self._released = threading.Event()
        self._fault = fault
        if fault == "down":
            self._stop_listening()
        elif self._listener is None:
            self._listen()

    def reset(self) -> None:
        """Pass all requests on from now on, and forget the requests seen so far."""
        self.fault, self.times, self.only = "", None, lambda _request: True
        self.afterwards = lambda _request: None
        self.seen, self.most_at_once = [], 0

    def close(self) -> None:
        self.fault = "down"
        for thread in self._threads:
            thread.join(timeout=30)

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.port = self._listener.getsockname()[1]
        self._start(self._accept, self._listener)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            # Closing alone would not wake the thread in `accept`.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads = [old for old in self._threads if old.is_alive()] + [thread]
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        released = self._released
        with connection, contextlib.suppress(OSError, http.client.HTTPException):
            with connection.makefile("rb") as incoming:
                method, target, _ = incoming.readline().decode().split(" ", 2)
                headers = http.client.parse_headers(incoming)
                if headers.get("Expect"):
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = incoming.read(int(headers.get("Content-Length") or 0))
            request = " ".join([method, target, headers.get("Range", "")]).rstrip()
            request += " if-none-match" if headers.get("If-None-Match") else ""
            with self._lock:
                self.seen.append(request)
                fault = self._fault if self.times != 0 and self.only(request) else ""
                if fault and self.times:
                    self.times -= 1
            if fault == "hang":
                released.wait()
                return
            if fault in ANSWERS:
                status, code = ANSWERS[fault]
                echo = "".join(f"{name.lower()}:{value}\n" for name, value in headers.items())
                text = (
                    f"<Error><Code>{code}</Code><Message>A test wants it.</Message>"
                    f"<CanonicalRequest>{echo}</CanonicalRequest></Error>"
                )
                self._answer(connection, method, status, [], text.encode())
                return
            upstream = http.client.HTTPConnection("127.0.0.1", self.target_port, timeout=60)
            with contextlib.closing(upstream):
                upstream.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
                for name, value in headers.items():
                    if name.lower() not in ("connection", "expect"):
                        upstream.putheader(name, value)
                upstream.endheaders(body)
                response = upstream.getresponse()
                content, length = response.read(), response.getheader("Content-Length")
            self.afterwards(request)
            kept = [
                (name, value)
                for name, value in response.getheaders()
                if name.lower() not in ("connection", "content-length", "transfer-encoding")
            ]
            with self._lock:
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
            try:
                self._answer(connection, method, response.status, kept, content, length, fault)
                if fault == "hang_in_body":
                    released.wait()
                elif fault == "reset_in_body":
                    # A reset instead of an orderly end.
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            finally:
                with self._lock:
                    self._at_once -= 1

    def _answer(  # noqa: PLR0917
        self,
        connection: socket.socket,
        method: str,
        status: int,
        headers: list[tuple[str, str]],
        body: bytes,
        length: str | None = None,
        fault: str = "",
    ) -> None:
        sent = body
        if fault in ("hang_in_body", "reset_in_body", "truncated", "short"):
            sent = body[: len(body) // 2]
        announced = length if method == "HEAD" and length else len(body)
        if fault == "short" and method != "HEAD":
            announced = len(sent)
        lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines += [f"Content-Length: {announced}", "Connection: close"]
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        if method == "HEAD":
            return
        size, pause_s = {"slow": (PIECE, 0.005), "trickle": (1, 0.05)}.get(fault, (PIECE, 0))
        for start in range(0, len(sent), size):
            connection.sendall(sent[start : start + size])
            if pause_s:
                # No more pauses once the fault is over.
                time.sleep(0 if self._fault != fault else pause_s)


@pytest.fixture(scope="session")
def _fault_proxy(moto: Server) -> Iterator[FaultProxy]:
    proxy = FaultProxy(target_port=int(moto.endpoint.rpartition(":")[2]))
    proxy.reset()
    yield proxy
    proxy.close()


@pytest.fixture
def fault_proxy(_fault_proxy: FaultProxy) -> FaultProxy:
    """A proxy for moto that works correctly until `fault` is set."""
    _fault_proxy.reset()
    return _fault_proxy
