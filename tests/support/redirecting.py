# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Two servers on different hosts: the first sends clients to the second, which notes their headers.

The store is at 127.0.0.1, and the other server at localhost, which is another host for a client.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from store_answers import bucket_environment

SECRET = "hunter2hunter2token"
COMMIT = "0" * 40


@dataclass(frozen=True, kw_only=True)
class Redirected:
    """The running servers."""

    url: str
    """The address of the first server."""
    other: str
    """The address of the second server."""
    seen: list[str] = field(default_factory=list)
    """What the second server received: the path and headers of each request, as one text."""
    asked: list[str] = field(default_factory=list)
    """The paths of the requests to the first server."""

    @property
    def leaked(self) -> bool:
        return any(SECRET in text for text in self.seen)


@contextlib.contextmanager
def redirecting(*, other_host: str = "localhost") -> Iterator[Redirected]:  # noqa: C901 - a server
    """Run the servers. The first also answers as a Hub whose listing continues on the second."""

    class Noting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            servers.seen.append(f"{self.path}\n{self.headers}")
            body = b"[]"
            self.send_response(200)
            self.send_header("ETag", '"x"')
            self.send_header("Last-Modified", "Tue, 15 Nov 1994 12:45:26 GMT")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815 - the base class's names

        def log_message(self, *_: object) -> None: ...

    class Redirecting(Noting):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            servers.asked.append(self.path)
            path = self.path.partition("?")[0]
            if path == "/api/agent-harnesses":  # huggingface_hub asks for a list
                self.send_error(404)
                return
            is_hub = path.startswith("/api/models/")
            if is_hub and "/revision/" in path:
                self._json({"sha": COMMIT})
                return
            if is_hub and "/tree/" in path:
                self._json([], Link=f'<{servers.other}{path}?cursor=2>; rel="next"')
                return
            self.send_response(302)
            self.send_header("Location", f"{servers.other}{path}")
            for name in ("X-Repo-Commit", "X-Linked-Size", "X-Linked-Etag"):
                self.send_header(name, COMMIT if "Commit" in name else "2")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _json(self, value: object, **headers: str) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            for name, text in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815 - the base class's names

    with contextlib.ExitStack() as running:
        ports = []
        for handler in (Redirecting, Noting):
            server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, args=(0.02,))
            thread.start()
            running.callback(server.server_close)
            running.callback(thread.join)
            running.callback(server.shutdown)
            ports.append(server.server_port)
        servers = Redirected(
            url=f"http://127.0.0.1:{ports[0]}", other=f"http://{other_host}:{ports[1]}"
        )
        yield servers


def credentials(url: str, folder: Path) -> dict[str, tuple[str, Mapping[str, str]]]:
    """Return, by name, a store and the variables with a credential that must not leave its host."""
    plain = bucket_environment(url, folder)
    no_key = {name: value for name, value in plain.items() if name != "AZURE_STORAGE_ACCOUNT_KEY"}
    google = {"gcs_base_url": url, "disable_oauth": True, "private_key": SECRET}
    google |= {"private_key_id": "x", "client_email": "x"}
    (folder / "google.json").write_text(json.dumps(google))
    return {
        "S3 with a session token": (
            "s3://bucket/pre",
            {**plain, "AWS_SESSION_TOKEN": SECRET},
        ),
        "Azure with a SAS token": (
            "az://container/pre",
            {**no_key, "AZURE_STORAGE_SAS_KEY": f"sv=2020-08-04&sig={SECRET}"},
        ),
        "Azure with a bearer token": (
            "az://container/pre",
            {**no_key, "AZURE_STORAGE_TOKEN": SECRET},
        ),
        "Google": (
            "gs://bucket/pre",
            {**plain, "GOOGLE_SERVICE_ACCOUNT": str(folder / "google.json")},
        ),
    }
