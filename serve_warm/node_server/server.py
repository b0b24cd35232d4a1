# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of a node: `/livez`, `/readyz` and `/metrics`."""

from __future__ import annotations

import _thread
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer, ThreadingMixIn
from typing import Any, NamedTuple

from prometheus_client.exposition import choose_encoder

from serve_warm._redaction import describe_error
from serve_warm.node import LOCALHOST, Readiness, Settings, asked, judge, shown
from serve_warm.node_server.addresses import describe, listen
from serve_warm.node_server.ledger import Ledger

CHECK_VALID_S = 1.0
CHECK_PERIOD_S = 0.5
"""Seconds between two checks, short enough that even a slow answer arrives before the previous
answer expires."""
MAX_CONNECTIONS = 256
KEPT_CONNECTIONS = 64
"""Number of connections reserved for probes, which come from this machine and its kubelet.
"""
PEER_CONNECTIONS = 32
"""Limit on connections from one address. A kubelet or Prometheus uses only a few."""
MAX_THREADS = 320
"""Limit on connections that have a thread. A dropped connection keeps its thread until its answer
is finished. At this limit, new connections from untrusted addresses are closed at once."""
SLOW_S = 1.0
"""A client that sends no request for this many seconds counts as slow. A probe sends its request at
once."""
LOOPBACK = frozenset(LOCALHOST)
BACKLOG = 1024
"""Number of connections that can wait to be accepted, if the kernel allows that many."""
IDLE_S = 5.0
"""Seconds after which a client that sends nothing is disconnected."""
REQUEST_S = 10.0
"""Time limit in seconds for one request and its answer, even if the client is slow."""
MAX_HEAD_BYTES = 1 << 14
"""Limit in bytes for a request head. Probes and Prometheus send smaller heads."""


class Server:
    """Answers `/livez`, `/readyz` and `/metrics` until `drain` is called.

    `host` has the same meaning as in `listen`. Some connections are reserved for `trusted`
    addresses, which are plain (see `plain_address`).

    Raises:
        OSError: as `listen`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        host: str,
        port: int,
        drain_s: float = 5.0,
        trusted: Iterable[str] = LOOPBACK,
    ) -> None:
        self._settings = settings
        self._drain_s = drain_s
        self.draining = False
        """Whether the server is draining."""
        # Not an Event: a signal handler that interrupts `set` or `wait` would deadlock on the
        # Event's lock.
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ledger = Ledger(settings.policy.deployments)
        self._ledger_lock = threading.Lock()
        self._pages: dict[str, tuple[float, bytes]] = {}
        """The last page in each format, and the time at which the server began to build it."""
        self._health_lock = threading.Lock()
        self._health: tuple[float, dict[str, str]] = (-CHECK_VALID_S, {})
        self._said = self._failure = ""
        # Starts that ended before this server began do not count.
        self._noted({})
        self._clients = _Clients(trusted)
        listening = listen(host, port, backlog=BACKLOG)
        self._http = _http_server(self, listening, self._clients)
        self.port: int = listening.getsockname()[1]
        self.where = describe(listening)
        """The addresses on which the server listens, for people."""

    def run(self) -> None:
        """Serve until `drain` is called, and for `drain_s` after that."""
        self._watch()
        for repeated, period_s in ((self._watch, 1.0), (self._ask, CHECK_PERIOD_S)):
            args = (repeated, period_s)
            threading.Thread(target=self._repeat, args=args, daemon=True).start()
        serving = threading.Thread(target=self._http.serve_forever, daemon=True)
        serving.start()
        self._wait(float("inf"))
        # Endpoints take a moment to drop this node. Until then, the server answers "not ready"; a
        # second signal skips the wait.
        self._wait(self._drain_s)
        self._http.shutdown()
        self._http.server_close()

    def _wait(self, limit_s: float) -> None:
        """Wait until `drain` is called or the time limit has passed."""
        end_s = time.monotonic() + limit_s
        while (left_s := end_s - time.monotonic()) > 0:
            # A signal directly before the wait did not end the wait, so look again.
            with suppress(queue.Empty):
                return self._told.get(timeout=min(left_s, CHECK_PERIOD_S))
        return None

    def drain(self) -> None:
        """Answer "not ready" from now on, and end the server after `drain_s`.

        A second call ends the server at once.

        A signal handler can call this method, even if it interrupts another signal handler.
        """
        self.draining = True
        self._told.put(None)

    def readiness(self) -> Readiness:
        """Return whether this node is ready now."""
        return self._judged(self._health_now())

    def _judged(self, health: Mapping[str, str]) -> Readiness:
        readiness = judge(self._settings, health=health)
        if self.draining:
            reasons = (("draining", "this server is shutting down"), *readiness.reasons)
            return readiness._replace(reasons=reasons, checks=(*readiness.checks, "draining"))
        return readiness

    def metrics(self, accept: str = "") -> tuple[str, bytes]:
        """Return the content type and all current metrics, in the format of an Accept header.

        Requests that arrive while a page is being built all get the page that is built next.
        """
        asked_s = time.monotonic()
        health = self._health_now()
        # The client's own text would choose a version that prometheus_client does not know.
        encode, kind = choose_encoder(OPENMETRICS if OPENMETRICS in accept else "")
        with self._ledger_lock:
            began_s, page = self._pages.get(kind, (-1.0, b""))
            if began_s < asked_s:
                began_s = time.monotonic()
                self._noted(health)
                page = encode(self._ledger)
                self._pages[kind] = began_s, page
            return kind, page

    def _noted(self, health: Mapping[str, str]) -> Readiness:
        # Called with the ledger's lock held, so that scans are recorded in order.
        readiness = self._judged(health)
        self._ledger.note(readiness)
        return readiness

    def _health_now(self) -> dict[str, str]:
        """Return results of health checks, at most a second old; check again if necessary."""
        if time.monotonic() - self._health[0] > CHECK_VALID_S:
            with self._health_lock:  # one thread asks, the others wait for its answer
                if time.monotonic() - self._health[0] > CHECK_VALID_S:
                    self._ask()
        return self._health[1]

    def _ask(self) -> None:
        asked_s = time.monotonic()
        self._health = (asked_s, asked(self._settings))

    def _watch(self) -> None:
        """Read the replicas' states, so that the next scrape includes replicas that have ended."""
        health = self._health_now()
        with self._ledger_lock:
            readiness = self._noted(health)
        text = "; ".join(f"{check}: {why}" for check, why in readiness.reasons)
        said = (
            f"not ready: {'; '.join(check for check, _ in readiness.reasons)}" if text else "ready"
        )
        if said != self._said:
            self._said = said
            log(f"not ready: {text}" if text else "ready")

    def note_failure(self, error: BaseException) -> None:
        """Log that a request failed unexpectedly, unless the last failure was the same."""
        # The text of an error may repeat the request, so only the line is logged.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        failure = f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}"
        if failure != self._failure:
            self._failure = failure
            with suppress(OSError):  # stderr may be closed
                log(f"a request was answered with 500: {failure}")

    def _repeat(self, what: Callable[[], object], period_s: float) -> None:
        began_s, trouble = time.monotonic(), ""
        while True:
            time.sleep(max(0.0, began_s + period_s - time.monotonic()))
            began_s = time.monotonic()
            try:
                what()
                trouble = ""
            except Exception as error:  # noqa: BLE001 - this thread must outlive each error
                # For example, out of threads or descriptors: the next turn might have them.
                before, trouble = trouble, describe_error(error)
                if trouble != before:
                    with suppress(OSError):  # stderr may be closed
                        log(f"a check failed, and will be tried again: {trouble}")


def log(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} serve_warm node: {shown(text)}\n")
    sys.stderr.flush()


PLAIN = "text/plain; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"


def _answer(node: Server, target: str, accept: str = "") -> tuple[int, str, bytes]:
    """Return the status, content type and body for a path and an Accept header."""
    path, _, query = target.partition("?")
    if path == "/livez":
        return 200, PLAIN, b"ok\n"
    if path == "/metrics":
        return 200, *node.metrics(accept)
    if path != "/readyz":
        return 404, PLAIN, b"not found: try /livez, /readyz, /readyz?verbose or /metrics\n"
    readiness = node.readiness()
    if "verbose" in query.replace("=", "&").split("&"):
        lines = [*readiness.lines(), "ready" if readiness.ready else "not ready"]
    else:
        lines = [shown(f"{check}: {why}") for check, why in readiness.reasons] or ["ok"]
    text = "".join(f"{line}\n" for line in lines)
    return (200 if readiness.ready else 503), PLAIN, text.encode(errors="replace")


class _Client:
    """An open connection."""

    __slots__ = ("answered", "end_s", "peer", "since_s")

    def __init__(self, peer: str, since_s: float, end_s: float) -> None:
        self.peer = peer
        self.answered = False
        """Whether the last request has been answered and no new request has begun."""
        self.since_s = since_s
        self.end_s = end_s


class _Clients:
    """The open connections of a server, with limits on their number and time.

    If there are too many connections, a new connection replaces an old connection, so that many
    clients cannot block a probe. The server drops the oldest slow client, or, if no client is slow,
    the client that has been idle longest. Each address has a limit: if the new client's address has
    too many connections, the server drops one of them. Some connections are reserved for
    `trusted` addresses, and trusted clients are dropped last.
    """

    def __init__(self, trusted: Iterable[str] = LOOPBACK) -> None:
        self._trusted = frozenset(trusted)
        self.max_connections = MAX_CONNECTIONS
        self.request_s = REQUEST_S
        self._open: dict[socket.socket, _Client] = {}
        self._with_thread: set[socket.socket] = set()
        """Connections that have a thread: all open connections, and those dropped connections whose
        answer is not finished.
        """
        self._lock = threading.Lock()

    def admit(self, connection: socket.socket, peer: str) -> bool:
        """Accept a connection. If too many connections are open, drop one of them first.

        Returns False if too many threads are running.
        """
        # Equal to `plain_address` for what the kernel writes, but faster, which a crowd needs.
        peer = peer.removeprefix("::ffff:").partition("%")[0]
        free = self.max_connections - KEPT_CONNECTIONS
        with self._lock:
            if peer not in self._trusted and len(self._with_thread) >= MAX_THREADS:
                return False
            same = [c for c, client in self._open.items() if client.peer == peer]
            others = [c for c, client in self._open.items() if client.peer not in self._trusted]
            if len(same) >= PEER_CONNECTIONS:
                self._drop_one(same)
            elif peer not in self._trusted and len(others) >= free:
                self._drop_one(others)
            elif len(self._open) >= self.max_connections:
                self._drop_one(others or list(self._open))
            now = time.monotonic()
            self._open[connection] = _Client(peer, now, now + self.request_s)
            self._with_thread.add(connection)
            return True

    def has(self, connection: socket.socket) -> bool:
        """Return whether a connection is still open."""
        with self._lock:
            return connection in self._open

    def _drop_one(self, among: Sequence[socket.socket]) -> None:
        slow_s = time.monotonic() - SLOW_S

        def order(connection: socket.socket) -> tuple[bool, float]:
            client = self._open[connection]
            return client.answered or client.since_s > slow_s, client.since_s

        dropped = min(among, key=order)
        del self._open[dropped]
        _shut(dropped)

    def renew(self, connection: socket.socket) -> None:
        """Restart the time limit of a connection whose request has been answered."""
        with self._lock:
            client = self._open.get(connection)
            if client is not None:
                client.since_s = time.monotonic()
                client.end_s = client.since_s + self.request_s
                client.answered = True

    def hear(self, connection: socket.socket) -> None:
        """Record that the next request on a connection has begun."""
        with self._lock:
            client = self._open.get(connection)
            if client is not None and client.answered:
                client.answered = False
                client.since_s = time.monotonic()

    def forget(self, connection: socket.socket) -> None:
        """Stop counting a connection and its thread. Call this before closing the connection."""
        with self._lock:
            self._open.pop(connection, None)
            self._with_thread.discard(connection)

    def hang_up(self) -> None:
        """Shut down connections that exceed their time limit. Their threads then close them."""
        now = time.monotonic()
        with self._lock:
            for connection, client in self._open.items():
                if client.end_s < now:
                    _shut(connection)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # the client was faster
        connection.shutdown(socket.SHUT_RDWR)


class _Request(NamedTuple):
    """The parts of a request that the server uses.

    `http.server` is not used, because it parses headers by the rules for email.
    """

    method: str
    target: str
    last: bool
    """Whether the connection closes after the answer. It closes if the Connection header or the
    HTTP version asks for that, or if the request has a body. The server does not read bodies, so a
    body would look like the next request."""
    accept: str = ""
    """The values of the request's Accept headers, in lower case, joined by commas."""


def _request(head: bytes) -> _Request | None:
    """Parse a request head; return None if it is not HTTP/1."""
    line, *lines = head.decode("latin-1").split("\n")
    words = line.split()
    if len(head) > MAX_HEAD_BYTES or len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    fields: dict[str, str] = {}
    for each in lines:
        name, _, value = each.lower().partition(":")
        name = name.strip()
        fields[name] = f"{fields[name]},{value}" if name in fields else value
    connection = fields.get("connection", "")
    last = "keep-alive" not in connection if words[2] == "HTTP/1.0" else "close" in connection
    has_body = "content-length" in fields or "transfer-encoding" in fields
    return _Request(words[0], words[1], last or has_body, fields.get("accept", ""))


REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}


FAILED = b"internal error: see the log of the node server\n"


def _reply(node: Server, head: bytes) -> tuple[bytes, bool]:
    """Return the answer to a request, and True if the connection ends after the answer."""
    request = _request(head)
    known = request is not None and request.method in ("GET", "HEAD")
    last = request is None or request.last or not known or node.draining
    if request is None:
        status, kind, body = 400, PLAIN, b"not an HTTP/1 request\n"
    elif not known:
        status, kind, body = 501, PLAIN, b"only GET and HEAD are supported\n"
    else:
        status, kind, body = _answer(node, request.target, request.accept)
    answer = _message(status, kind, body, last=last)
    without_body = request is not None and request.method == "HEAD"
    return (answer[: len(answer) - len(body)] if without_body else answer), last


def _message(status: int, kind: str, body: bytes, *, last: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {REASONS[status]}",
        "Server: serve_warm",
        time.strftime("Date: %a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        f"Connection: {'close' if last else 'keep-alive'}",
        *("", ""),
    ]
    return "\r\n".join(lines).encode() + body


def _converse(node: Server, clients: _Clients, connection: socket.socket) -> None:
    """Answer requests until the client ends the connection, or `_reply` says to end it."""
    data, last = b"", False
    while not last:
        while b"\n\n" not in data and len(data) <= MAX_HEAD_BYTES:
            received = connection.recv(MAX_HEAD_BYTES)
            if not received:
                return
            clients.hear(connection)
            # A request typed by hand might lack carriage returns.
            data = (data + received).replace(b"\r\n", b"\n").lstrip(b"\n")
        head, _, data = data.partition(b"\n\n")
        data = data.lstrip(b"\n")
        if not clients.has(connection):
            return  # dropped: nobody reads the answer
        answer, last = _reply(node, head)
        # Sent in one piece, because a second piece would wait until the client acknowledges the
        # first.
        connection.sendall(answer)
        clients.renew(connection)


def _http_server(node: Server, listening: socket.socket, clients: _Clients) -> TCPServer:
    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(IDLE_S)
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _converse(node, clients, self.request)

    class Http(ThreadingMixIn, TCPServer):
        def __init__(self) -> None:
            super().__init__(listening.getsockname(), Handler, bind_and_activate=False)
            self.socket.close()
            self.socket = listening

        def process_request(self, request: Any, client_address: Any) -> None:
            if not clients.admit(request, client_address[0]):
                self.shutdown_request(request)
                return
            # `threading` would wait until the thread runs. The thread is never joined.
            _thread.start_new_thread(self.process_request_thread, (request, client_address))

        def shutdown_request(self, request: Any) -> None:
            # This method also ends connections that never got a thread.
            clients.forget(request)
            super().shutdown_request(request)

        def service_actions(self) -> None:
            clients.hang_up()  # about twice a second

        def handle_error(self, request: Any, client_address: Any) -> None:
            del client_address  # the log does not name clients
            error = sys.exc_info()[1]
            if error is None or isinstance(error, (ConnectionError, TimeoutError)):
                return  # a client that hung up or sends nothing is normal
            node.note_failure(error)
            with suppress(OSError):
                request.sendall(_message(500, PLAIN, FAILED, last=True))

    return Http()
