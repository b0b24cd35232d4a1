# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the Hugging Face Hub on the loopback interface, for the real client.

The stand-in has one model repository with branches and commits, regular, LFS and Xet files, tokens,
and faults that a test sets. The Xet storage is a folder, which the client takes as `local://DIR`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import secrets
import socket
import struct
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REPOSITORY = "acme/warm"
SIGNATURE = "X-Amz-Signature=5ea1ed5ecre7"
"""Part of the query of every address for reading and writing blobs."""


@dataclass(kw_only=True)
class File:
    data: bytes | None = None
    """Content; None for a file in the Xet storage."""
    size: int
    sha256: str | None = None
    """Digest of an LFS file, which is read from another address."""
    xet: str | None = None
    date: str = field(
        default_factory=lambda: datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    )
    """Time of the last commit; empty if the Hub does not return it."""

    @property
    def oid(self) -> str:
        if self.sha256 or self.data is None:
            return hashlib.sha1(f"pointer {self.sha256}".encode()).hexdigest()
        return hashlib.sha1(f"blob {self.size}\0".encode() + self.data).hexdigest()


@dataclass(kw_only=True)
class Fault:
    """A fault for requests whose `METHOD /path` matches the pattern."""

    request: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b"{}"
    """Body of the answer with `status`."""
    body: str = ""
    """`hang` never answers. `reset` and `truncate` end in the middle. `endless` never ends."""
    flood: Callable[[int], object] | None = None
    """If set, the answer with `status` never ends, and this is called after each write with the
    number of written bytes."""
    then: Callable[[], object] = bool
    """Function that is called before the answer."""
    times: int = 1_000_000


class Hub:
    """The repository and its answers; tests read and set the fields."""

    def __init__(self, xet_folder: Path) -> None:
        self.files: dict[str, dict[str, File]] = {}
        """The files of every commit."""
        self.branches: dict[str, str] = {}
        self.blobs: dict[str, bytes] = {}
        self.tokens = {"hf_writerwriter": "write", "hf_readerreader": "read"}
        self.private = False
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.tokens_seen: list[str] = []
        """The credentials of each request, in the order of requests."""
        self.ignored = "(?!)"
        self.page = 1000
        self.lfs_from = 100_000
        self.xet_folder = xet_folder
        self.lock = threading.RLock()
        self.closing = threading.Event()
        self.branches["main"] = self._commit({".gitattributes": File(data=b"*", size=1)})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("H", (_Handler,), {"hub": self}))
        self.server.daemon_threads = True
        port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{port}"
        # Another host name, so that the client does not take these answers for the Hub's own.
        self.blob_url = f"http://localhost:{port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    # --- for tests, without the client -----------------------------------------------------

    def read(self, key: str) -> bytes:
        return self.content(self.files[self.branches["main"]][key])

    def write(self, key: str, data: bytes) -> None:
        large = len(data) >= self.lfs_from
        digest = hashlib.sha256(data).hexdigest() if large else None
        self.change(key, File(data=data, size=len(data), sha256=digest))

    def change(self, path: str, file: File | None, branch: str = "main") -> str:
        with self.lock:
            files = dict(self.files[self.branches[branch]])
            files.pop(path, None)
            if file:
                files[path] = file
            self.branches[branch] = self._commit(files)
            return self.branches[branch]

    def content(self, file: File) -> bytes:
        if file.data is not None:
            return file.data
        import hf_xet

        path = self.xet_folder / f"read-{secrets.token_hex(8)}"
        with hf_xet.XetSession().new_file_download_group(
            endpoint=f"local://{self.xet_folder}", token="x", token_expiry_unix_secs=2**40
        ) as group:
            group.start_download_file(hf_xet.XetFileInfo(file.xet, file.size), str(path))
        return path.read_bytes()

    def xet_hash(self, sha256: str) -> str | None:
        """Return the Xet hash of the file with this digest, from the shards of the Xet storage."""
        wanted = _swapped(bytes.fromhex(sha256))
        # rglob would fail if a temporary folder of another upload disappears meanwhile.
        for folder, _, names in os.walk(self.xet_folder):
            if Path(folder).name == "shards":
                for name in names:
                    found = self._hash_in(Path(folder, name), wanted)
                    if found is not None:
                        return found
        return None

    @staticmethod
    def _hash_in(shard: Path, wanted: bytes) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            data = shard.read_bytes()
            at = data.find(wanted)
            # Before the digest come a header (hash, flags, count), and two entries per segment.
            for count in range(1, at // 96 + 1):
                header = at - 48 * (1 + 2 * count)
                if header >= 0 and struct.unpack_from("<I", data, header + 36) == (count,):
                    return _swapped(data[header : header + 32]).hex()
        return None

    def _commit(self, files: dict[str, File]) -> str:
        commit = secrets.token_hex(20)
        self.files[commit] = files
        return commit


def _swapped(digest: bytes) -> bytes:
    # Xet writes a digest as four little-endian numbers.
    return b"".join(digest[at : at + 8][::-1] for at in range(0, 32, 8))


class _Refusal(Exception):
    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        self.answer = status, {"X-Error-Code": code, "X-Error-Message": message}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    # Send headers and body together. Otherwise the body waits for a delayed acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - the names that the base class calls

    def _serve(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = f"{self.command} {url.path}"
        self.hub.requests.append(request)
        self.hub.tokens_seen.append(self.headers.get("Authorization", ""))
        self.fault = next(
            (f for f in self.hub.faults if f.times and re.search(f.request, request)), None
        )
        if self.fault:
            self.fault.times -= 1
            self.fault.then()
        if self.fault and self.fault.body == "hang":
            self.hub.closing.wait()
            self.close_connection = True
            return
        if self.fault and self.fault.flood:
            self._flood(self.fault, self.fault.flood)
            return
        if self.fault and self.fault.status:
            self._send(self.fault.status, self.fault.headers, self.fault.data)
            return
        try:
            for pattern, answer in _ROUTES.items():
                if found := re.fullmatch(pattern, request):
                    answer(self, *(urllib.parse.unquote(group or "") for group in found.groups()))
                    return
            raise _Refusal(404)
        except _Refusal as refusal:
            self._send(*refusal.answer, b"{}")

    # --- answers ---------------------------------------------------------------------------

    def _send(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response(status)
        broken = self.fault.body if self.fault and self.command == "GET" else ""
        if broken == "endless":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            headers = {"Content-Length": str(len(data)), **headers}
        for name, value in {**headers, **(self.fault.headers if self.fault else {})}.items():
            self.send_header(name, value)
        self.end_headers()
        while broken == "endless" and not self.hub.closing.is_set():
            try:
                self.wfile.write(b"10000\r\n" + bytes(65536) + b"\r\n")
            except OSError:
                break
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if broken else data)
        if broken == "reset":
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = self.close_connection or bool(broken)

    def _flood(self, fault: Fault, taken: Callable[[int], object]) -> None:
        self.send_response(fault.status)
        for name, value in {**fault.headers, "Transfer-Encoding": "chunked"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        while not self.hub.closing.is_set():
            try:
                self.wfile.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
                self.wfile.flush()
            except OSError:
                return
            taken(65536)

    def finish(self) -> None:
        try:
            super().finish()
        except OSError:
            wfile: Any = self.wfile
            wfile._sock = None  # the client has disconnected

    def _json(self, answer: Any, headers: dict[str, str] | None = None) -> None:
        self._send(
            200,
            {"Content-Type": "application/json", **(headers or {})},
            json.dumps(answer).encode(),
        )

    def _files(self, repository: str, revision: str = "main") -> tuple[str, dict[str, File]]:
        """Return the commit of a revision and the files in it, if the token gives access."""
        may = self._may()
        if repository != REPOSITORY or (self.hub.private and not may):
            raise _Refusal(404 if may else 401, "RepoNotFound")
        commit = self.hub.branches.get(revision, revision)
        if commit not in self.hub.files:
            raise _Refusal(404, "RevisionNotFound")
        return commit, self.hub.files[commit]

    def _may(self) -> str:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.hub.tokens:
            raise _Refusal(401, "", "Invalid credentials in Authorization header")
        return self.hub.tokens.get(token, "")

    def _check_writer(self, repository: str, branch: str) -> None:
        self._files(repository)
        if self._may() != "write":
            raise _Refusal(403 if self._may() else 401, "", "no write access")
        if branch not in self.hub.branches:
            raise _Refusal(404, "RevisionNotFound")

    def _info(self, repository: str, revision: str) -> None:
        self._json({"id": repository, "sha": self._files(repository, revision or "main")[0]})

    def _entry(self, path: str, file: File, *, expand: bool) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": path, "size": file.size, "oid": file.oid}
        if file.sha256:
            entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": 130}
        if file.xet:
            entry["xetHash"] = file.xet
        if expand and file.date:
            entry["lastCommit"] = {"id": "0" * 40, "title": "t", "date": file.date}
        return entry

    def _tree(self, repository: str, revision: str, folder: str) -> None:
        _, files = self._files(repository, revision)
        inside = [path for path in sorted(files) if not folder or path.startswith(f"{folder}/")]
        if not inside:
            raise _Refusal(404, "EntryNotFound")
        entries: list[dict[str, Any]] = [
            {"type": "directory", "path": path, "oid": "0" * 40} for path in _folders(inside)
        ]
        entries += [self._entry(path, files[path], expand=False) for path in inside]
        start = int(self.query.get("cursor", 0))
        more = start + self.hub.page < len(entries)
        following = urllib.parse.urlencode({**self.query, "cursor": start + self.hub.page})
        path = urllib.parse.urlsplit(self.path).path
        link = {"Link": f'<{self.hub.url}{path}?{following}>; rel="next"'} if more else {}
        self._json(entries[start : start + self.hub.page], link)

    def _paths(self, repository: str, revision: str) -> None:
        _, files = self._files(repository, revision)
        form = urllib.parse.parse_qs(self.body.decode())
        expand = form.get("expand") in (["True"], ["true"])
        folders = _folders(files)
        answer: list[dict[str, Any]] = []
        for path in form["paths"]:
            if path in files:
                answer.append(self._entry(path, files[path], expand=expand))
            elif path in folders:
                answer.append({"type": "directory", "path": path, "oid": "0" * 40})
        self._json(answer)

    def _resolve(self, repository: str, revision: str, path: str) -> None:
        commit, files = self._files(repository, revision)
        if path not in files:
            raise _Refusal(404, "EntryNotFound")
        file = files[path]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{file.sha256 or file.oid}"'}
        if file.sha256 is None:
            self._send(200, headers, self.hub.content(file))
            return
        name = file.xet or file.sha256
        headers |= {
            "Location": f"{self.hub.blob_url}/blobs/{name}?{SIGNATURE}",
            "X-Linked-Etag": f'"{file.sha256}"',
            "X-Linked-Size": str(file.size),
        }
        self.hub.blobs.setdefault(name, self.hub.content(file))
        if file.xet:
            route = f"{self.hub.url}/api/models/{repository}/xet-read-token/{commit}"
            headers |= {"X-Xet-Hash": file.xet, "Link": f'<{route}>; rel="xet-auth"'}
        self._send(302, headers, b"")

    def _blob(self, name: str) -> None:
        data, headers = self.hub.blobs[name], {}
        if found := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start = int(found.group(1))
            headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
            data = data[start:]
        self._send(206 if headers else 200, headers, data)

    def _preupload(self, repository: str, branch: str) -> None:
        self._check_writer(repository, branch)
        _, files = self._files(repository, branch)
        self._json(
            {
                "files": [
                    {
                        "path": one["path"],
                        "uploadMode": "lfs" if one["size"] >= self.hub.lfs_from else "regular",
                        "shouldIgnore": re.search(self.hub.ignored, one["path"]) is not None,
                        "oid": (there.sha256 or there.oid)
                        if (there := files.get(one["path"]))
                        else None,
                    }
                    for one in json.loads(self.body)["files"]
                ]
            }
        )

    def _batch(self, repository: str) -> None:
        batch = json.loads(self.body)
        self._check_writer(repository, batch["ref"]["name"])
        objects = []
        for one in batch["objects"]:
            upload = {"href": f"{self.hub.blob_url}/upload/{one['oid']}?{SIGNATURE}"}
            verify = {"href": f"{self.hub.url}/verify"}
            objects.append({**one, "actions": {"upload": upload, "verify": verify}})
        self._json({"transfer": "basic", "objects": objects})

    def _upload(self, digest: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != digest:
            raise _Refusal(400)
        self.hub.blobs[digest] = self.body
        self._send(200, {}, b"")

    def _verify(self) -> None:
        if json.loads(self.body)["oid"] not in self.hub.blobs:
            raise _Refusal(404)
        self._json({})

    def _xet_token(self, repository: str, kind: str, revision: str) -> None:
        if kind == "write":
            self._check_writer(repository, revision)
        self._files(repository, revision)
        url, token, expiry = f"local://{self.hub.xet_folder}", "xet-token", 2**33
        headers = {
            "X-Xet-Cas-Url": url,
            "X-Xet-Access-Token": token,
            "X-Xet-Token-Expiration": str(expiry),
        }
        self._json({"casUrl": url, "accessToken": token, "exp": expiry}, headers)

    def _commit(self, repository: str, branch: str) -> None:
        header, *changes = (json.loads(line) for line in self.body.splitlines())
        with self.hub.lock:
            self._check_writer(repository, branch)
            if header["value"].get("parentCommit") not in (None, self.hub.branches[branch]):
                raise _Refusal(412, "", "A commit has happened since")
            for change in changes:
                value = change["value"]
                file = None
                if change["key"] == "file":
                    data = base64.b64decode(value["content"])
                    file = File(data=data, size=len(data))
                elif change["key"] == "lfsFile":
                    file = self._large(value["oid"], value["size"])
                elif value["path"] not in self.hub.files[self.hub.branches[branch]]:
                    raise _Refusal(404, "EntryNotFound")
                self.hub.change(value["path"], file, branch)
            commit = self.hub.branches[branch]
        self._json(
            {"commitOid": commit, "commitUrl": f"{self.hub.url}/{repository}/commit/{commit}"}
        )

    def _large(self, digest: str, size: int) -> File:
        xet = None if digest in self.hub.blobs else self.hub.xet_hash(digest)
        if xet is None and digest not in self.hub.blobs:
            raise _Refusal(400, "", "the object was not uploaded")
        return File(data=self.hub.blobs.get(digest), size=size, sha256=digest, xet=xet)


def _folders(paths: Any) -> set[str]:
    return {path[: found.start()] for path in paths for found in re.finditer("/", path)}


_API, _REPO = "/api/models/([^/]+/[^/]+)", "/([^/]+/[^/]+?)"
_ROUTES: dict[str, Callable[..., object]] = {
    f"GET {_API}": lambda self, name: self._info(name, ""),
    f"GET {_API}/revision/([^/]+)": _Handler._info,
    f"GET {_API}/tree/([^/]+)(?:/(.+))?": _Handler._tree,
    f"POST {_API}/paths-info/([^/]+)": _Handler._paths,
    f"POST {_API}/preupload/([^/]+)": _Handler._preupload,
    f"POST {_API}/commit/([^/]+)": _Handler._commit,
    f"GET {_API}/xet-(read|write)-token/([^/]+)": _Handler._xet_token,
    f"POST {_REPO}.git/info/lfs/objects/batch": _Handler._batch,
    "PUT /upload/(.+)": _Handler._upload,
    "POST /verify": _Handler._verify,
    f"(?:HEAD|GET) {_REPO}/resolve/([^/]+)/(.+)": _Handler._resolve,
    "(?:HEAD|GET) /blobs/(.+)": _Handler._blob,
}
