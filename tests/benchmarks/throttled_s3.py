# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A read-only S3 server on loopback that limits the bytes per second of each connection.

    python throttled_s3.py FOLDER BYTES_PER_SECOND     (0: no limit)

S3 gives one connection about 85 MB/s, however fast the network is. This is why serve_warm reads
large objects as parallel ranges. The server offers the files of FOLDER as the objects of a bucket
with any name, and accepts every client. It prints its port, then a line for each GET of an object.
"""

from __future__ import annotations

import email.utils
import os
import re
import sys
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

SLICE_S = 0.005
"""Time between two writes to a connection: short compared with a transfer, and long compared with a
system call."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, folder: Path, bytes_per_s: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.bytes_per_s = bytes_per_s


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        if "list-type" in query:
            self.answer_list(query.get("prefix", [""])[0], query.get("delimiter", [""])[0])
            return
        key = urllib.parse.unquote(url.path).strip("/").partition("/")[2]
        path = self.server.folder / key
        if not path.is_file():
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        size = path.stat().st_size
        start, end = 0, size
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found:
            start, end = int(found[1]), min(int(found[2]) + 1, size)
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", f'"{size:x}-{path.stat().st_mtime_ns:x}"')
        self.send_header("Last-Modified", email.utils.formatdate(path.stat().st_mtime, usegmt=True))
        if found:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.end_headers()
        if self.command == "GET":
            sys.stdout.write(f"GET {key} {start} {end}\n")
            sys.stdout.flush()
            self.send(path, start, end)

    def send(self, path: Path, start: int, end: int) -> None:
        self.wfile.flush()
        rate = self.server.bytes_per_s
        step = max(64 << 10, int(rate * SLICE_S)) if rate else end - start
        began, at = time.monotonic(), start
        with path.open("rb") as file:
            while at < end:
                sent = os.sendfile(self.connection.fileno(), file.fileno(), at, min(step, end - at))
                at += sent
                if rate:
                    ahead_s = (at - start) / rate - (time.monotonic() - began)
                    if ahead_s > 0:
                        time.sleep(ahead_s)

    def answer_list(self, prefix: str, delimiter: str) -> None:
        folder = self.server.folder
        keys = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        entries, folders = [], set()
        for key in keys:
            if not key.startswith(prefix):
                continue
            head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if cut:
                folders.add(prefix + head + delimiter)
                continue
            size = (folder / key).stat().st_size
            entries.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>&quot;x&quot;</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        entries += [
            f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in folders
        ]
        body = (
            "<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated>"
            f"<KeyCount>{len(entries)}</KeyCount>{''.join(entries)}</ListBucketResult>"
        )
        self.answer(200, body.encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/xml")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    server = Server(Path(sys.argv[1]), float(sys.argv[2]))
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
