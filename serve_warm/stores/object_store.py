# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Buckets as stores: S3 and compatible servers, Google Cloud Storage, Azure Blob Storage.

Credentials come from obstore's providers (environment, web identity, container and instance roles).
A custom endpoint comes from the process's environment (`AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_S3`).
A store address never contains credentials or an endpoint.
"""

from __future__ import annotations

import io
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, closing, suppress
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from serve_warm._records import record
from serve_warm._redaction import first_line, tainted
from serve_warm._store_address import BucketScheme
from serve_warm.config import environment
from serve_warm.errors import (
    ConfigError,
    MissingPackage,
    ObjectExists,
    ObjectNotFound,
    ObjectTooLarge,
    StoreDenied,
    StoreError,
)
from serve_warm.stores import (
    PIECE_BYTES,
    Listed,
    Object,
    Sink,
    check_key,
    check_prefix,
    explain_change,
    is_key,
    pieces_of,
)

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import AzureStore, GCSStore, RetryConfig, S3Store

T = TypeVar("T")

ONE_GET_BYTES = 32 << 20
"""Size in bytes of the largest object that is downloaded with one GET. For such objects, several
ranged GETs would lose more time in round trips than they would save."""

PART_BYTES = 8 << 20
"""Size in bytes of one ranged GET of a larger object. One S3 connection downloads this many bytes
in about 0.1 s. This time is longer than a round trip, but short enough that the last parts end at
about the same time.
"""

PARTS_AT_ONCE = 8
"""Number of connections that one download uses. Each connection holds only about two pieces of its
part in memory."""

ONE_PUT_BYTES = 64 << 20
"""Size in bytes of the largest object that is uploaded with one PUT, which can be conditional.
Larger objects use a multipart upload."""

UPLOAD_PART_BYTES = 16 << 20
"""Size in bytes of one part of an upload. S3 accepts at most 10 000 parts, so an object can be
up to 160 GB."""

UPLOADS_AT_ONCE = 4

RETRIES = 2
"""Number of times that obstore repeats a request after a connection error, 429 or 5xx, with pauses
of less than a second. The number is small, because callers also retry, with longer pauses and a
deadline."""

WHOLE_REQUEST_FACTOR = 6
"""A request times out after `timeout_s` times this factor, even if it makes progress. With 60 s in
total, a download of 32 MiB needs at least 0.6 MB/s, and eight parts at once need 1.1 MB/s."""

SLOWEST_UPLOAD = 256 << 10
"""Speed in bytes per second. The timeout of an upload is longer than the timeout of other requests.
The extra time is the number of bytes sent at once, divided by this speed."""

CONFLICT_TRIES = 5
"""Maximum number of times to try a conditional PUT while another writer's PUT is in progress."""


@record(frozen=True, kw_only=True)
class ObjectStore:
    """The objects of a bucket whose keys begin with a prefix.

    A missing bucket raises StoreDenied, as missing permission does: many stores give the same
    answer in both cases, and retries do not help. Only `head` raises ObjectNotFound instead:
    the answer to HEAD has no body, so a missing bucket looks like a missing object.
    """

    scheme: BucketScheme
    bucket: str
    prefix: str = ""
    """The prefix, without leading and trailing slashes; empty for the whole bucket."""
    timeout_s: float = 10.0
    """A request times out after this many seconds without progress, and is then retried up to
    `RETRIES` times. A whole request may take `WHOLE_REQUEST_FACTOR` times as long, and an upload
    even longer (see `SLOWEST_UPLOAD`)."""

    @classmethod
    def open(cls, scheme: BucketScheme, rest: str) -> ObjectStore:
        """Return the store at `scheme://rest`, without contacting it.

        Raises:
            ConfigError: not a valid bucket name or prefix.
            MissingPackage: obstore is not installed.
            StoreDenied: the environment variables for the store are missing or wrong.
        """
        bucket, _, prefix = rest.partition("/")
        prefix = prefix.removesuffix("/")
        # The error does not repeat the name, because a malformed address may contain a password.
        if not _BUCKET.fullmatch(bucket) or ".." in bucket:
            raise ConfigError(
                f"{scheme}:// is not followed by a bucket name",
                hint="use 3 to 63 lower-case letters, digits, hyphens, dots and underscores, as in "
                f"{scheme}://bucket/prefix",
            )
        if prefix:
            try:
                check_key(prefix)
            except StoreError as error:
                raise ConfigError(
                    f"{scheme}://{bucket}/ is not followed by a valid prefix",
                    hint="separate names with single slashes; no name may begin with a dot",
                ) from error
        store = cls(scheme=scheme, bucket=bucket, prefix=prefix)
        # Build the client now: a wrong setting should fail here, not at the first request.
        store._reader  # noqa: B018
        return store

    @property
    def uri(self) -> str:
        """The address as `scheme://bucket/prefix`."""
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
        """Yield the keys that begin with `prefix`, one page for each answer of the server.

        Objects with invalid names are skipped. The bucket returns all objects in the folder of
        `prefix`, except those that sort before `prefix`.
        """
        import obstore

        check_prefix(prefix)
        own = f"{self.prefix}/" if self.prefix else ""
        # obstore lists whole folders only. So begin at an offset just before `prefix`. The offset
        # ends with a private use character, which keys never contain.
        folder, _, begun = (start := own + prefix).rpartition("/")
        after = f"{start[:-1]}{chr(ord(start[-1]) - 1)}\U0010fffd" if begun else None
        stream = obstore.list(self._reader, folder or None, offset=after)
        while (some := self._ask("list", prefix, lambda: next(stream, None))) is not None:
            found = {each["path"].removeprefix(own): each["last_modified"] for each in some}
            yield [
                Listed(key=key, modified_unix=when.timestamp())
                for key, when in found.items()
                if key.startswith(prefix) and is_key(key)
            ]

    def head(self, key: str) -> Object:
        """Return the size, time and ETag of an object."""
        import obstore

        path = self._path(key)
        return _object(key, self._ask("read", key, lambda: obstore.head(self._reader, path)))

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Return an object of at most `max_bytes`, with one GET. Larger objects are not read."""
        path = self._path(key)

        def ask() -> tuple[int, bytes]:
            import obstore

            result = obstore.get(self._reader, path)
            size = result.meta["size"]
            return size, bytes(result.bytes()) if size <= max_bytes else b""

        size, data = self._ask("read", key, ask)
        if size > max_bytes:
            raise ObjectTooLarge(key, store=self.uri, max_bytes=max_bytes)
        if len(data) != size:
            raise self._explain_early_end(key, len(data), size)
        return data

    def download(self, found: Object, sink: Sink) -> None:
        """Pass an object to `sink`.

        Objects up to `ONE_GET_BYTES`, and objects without an ETag, are read with one GET. For other
        objects, `PARTS_AT_ONCE` threads send ranged GETs. All these threads have ended when this
        method returns. If a thread fails or `sink` raises, the remaining threads end at their next
        piece, or when their current request ends.
        """
        # Without an ETag, ranges of different objects could be mixed.
        if found.size_bytes <= ONE_GET_BYTES or not found.version:
            self._copy(found, None, sink, threading.Event())
            return
        starts = range(0, found.size_bytes, PART_BYTES)
        ranges = [(start, min(start + PART_BYTES, found.size_bytes)) for start in starts]
        stopped = threading.Event()
        with ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="serve_warm-get") as pool:
            parts = [pool.submit(self._part, found, part, sink, stopped) for part in ranges]
            try:
                for done in as_completed(parts):
                    done.result()
            finally:
                stopped.set()  # also if this thread is interrupted

    def _part(
        self, found: Object, part: tuple[int, int], sink: Sink, stopped: threading.Event
    ) -> None:
        whole = False
        try:
            if not stopped.is_set():
                self._copy(found, part, sink, stopped)
                whole = True
        finally:
            if not whole:
                # Set `stopped` before the error propagates, so that no thread begins another part.
                stopped.set()

    def _copy(
        self, found: Object, part: tuple[int, int] | None, sink: Sink, stopped: threading.Event
    ) -> None:
        first, end = part or (0, found.size_bytes)
        offset = first
        with closing(self._pieces(found, part)) as pieces:
            for piece in pieces:
                if stopped.is_set():
                    return
                if offset + len(piece) > end:
                    raise explain_change(self.uri, found.key)
                sink(offset, piece)
                offset += len(piece)
        if offset != end:
            raise self._explain_early_end(found.key, offset - first, end - first)

    def _pieces(self, found: Object, part: tuple[int, int] | None) -> Generator[bytes, None, None]:
        import obstore

        # Use a generator, so that `_ask` does not translate exceptions of the sink.
        options: GetOptions = {}
        if part:
            options["range"] = part
        # Leave out a weak ETag, which never matches. The answer's ETag is compared anyway, because
        # some servers ignore this header.
        if found.version and not found.version.startswith("W/"):
            options["if_match"] = found.version
        path = self._path(found.key)
        result = self._ask(
            "read", found.key, lambda: obstore.get(self._reader, path, options=options)
        )
        now = _object(found.key, result.meta)
        if (now.size_bytes, now.version) != (found.size_bytes, found.version):
            raise explain_change(self.uri, found.key)
        stream = iter(result.stream(min_chunk_size=PIECE_BYTES))
        while (piece := self._ask("read", found.key, lambda: next(stream, None))) is not None:
            yield piece

    def create(self, key: str, source: bytes | BinaryIO) -> None:
        """Store an object that does not exist yet.

        Objects up to `ONE_PUT_BYTES` are written with a conditional PUT: if several writers
        compete, the store accepts only one PUT. Larger objects are written with a multipart upload,
        which obstore cannot make conditional. If two such uploads begin at once, both succeed, and
        the bytes of the last upload remain. So keys of objects above this size must be derived from
        the content. Some stores ignore the condition (Ceph 16 in versioned buckets, some gateways).
        In these stores, competing writes of objects of any size can both succeed. Checks before and
        after such writes make a conflict unlikely, but not impossible.

        An interrupted upload is never visible. The uploaded parts can remain, and be billed, until
        one of the bucket's lifecycle rules removes them.
        """
        self._path(key)
        size = _size_of(source)
        there = self._find(key)
        if there is None:
            written = (
                self._put(key, b"".join(pieces_of(source)))
                if size <= ONE_PUT_BYTES
                else self._upload(key, source)
            )
            there = self._find(key)
            if there is None:
                raise StoreError(f"{self.uri}: {key!r} is missing after it was written")
            # An unchanged ETag proves that the bytes of this upload are still stored.
            if written and (there.size_bytes, there.version) == (size, written):
                return
        if there.size_bytes != size or not self._holds(there, source):
            raise ObjectExists(key, store=self.uri)

    def delete(self, key: str) -> None:
        """Remove an object. A versioned bucket hides the object, but keeps its old version."""
        import obstore

        path = self._path(key)
        with suppress(ObjectNotFound):
            self._ask("delete", key, lambda: obstore.delete(self._reader, path))

    def _put(self, key: str, data: bytes) -> str:
        """Store an object with one PUT; return the ETag, or "" if another writer was first."""
        path, writer = self._path(key), self._writer(len(data))

        def ask() -> str | None:
            import obstore
            from obstore.exceptions import AlreadyExistsError, BaseError

            try:
                result = obstore.put(writer, path, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return None
            except BaseError as error:
                if not _knows_no_condition(error):
                    raise
                result = obstore.put(writer, path, data, mode="overwrite", use_multipart=False)
            return result["e_tag"] or ""

        for attempt in range(CONFLICT_TRIES):
            if (written := self._ask("write", key, ask)) is not None:
                return written
            # 409 means that the other writer's PUT is still in progress, and may fail.
            if self._find(key):
                return ""
            time.sleep(0.1 * 2**attempt)
        raise StoreError(f"{self.uri}: cannot write {key!r}: other processes are also writing it")

    def _upload(self, key: str, source: bytes | BinaryIO) -> str:
        path, writer = self._path(key), self._writer(UPLOAD_PART_BYTES * UPLOADS_AT_ONCE)

        def ask() -> str:
            import obstore

            result = obstore.put(
                writer,
                path,
                pieces_of(source),
                use_multipart=True,
                chunk_size=UPLOAD_PART_BYTES,
                max_concurrency=UPLOADS_AT_ONCE,
            )
            return result["e_tag"] or ""

        return self._ask("write", key, ask)

    def _find(self, key: str) -> Object | None:
        try:
            return self.head(key)
        except ObjectNotFound:
            return None

    def _holds(self, there: Object, source: bytes | BinaryIO) -> bool:
        ours = pieces_of(source)
        kept = bytearray()
        with closing(self._pieces(there, None)) as pieces:
            for piece in pieces:
                while len(kept) < len(piece) and (more := next(ours, b"")):
                    kept += more
                if kept[: len(piece)] != piece:
                    return False
                del kept[: len(piece)]
        return not kept and not next(ours, b"")

    def _path(self, key: str) -> str:
        check_key(key)
        return f"{self.prefix}/{key}" if self.prefix else key

    def _explain_early_end(self, key: str, count: int, expected: int) -> StoreError:
        return StoreError(f"{self.uri}: {key!r} ended early: received {count} of {expected} bytes")

    @cached_property
    def _reader(self) -> S3Store | GCSStore | AzureStore:
        # read_timeout ends a request that stalls before or during the answer.
        whole_s = self.timeout_s * WHOLE_REQUEST_FACTOR
        return self._connect(
            {"read_timeout": _duration(self.timeout_s), "timeout": _duration(whole_s)}
        )

    def _writer(self, bytes_at_once: int) -> S3Store | GCSStore | AzureStore:
        # Set no read_timeout, because it would also run while the body is being sent.
        whole_s = self.timeout_s * WHOLE_REQUEST_FACTOR + bytes_at_once / SLOWEST_UPLOAD
        return self._connect({"timeout": _duration(whole_s)})

    def _connect(self, settings: dict[str, str]) -> S3Store | GCSStore | AzureStore:
        try:
            from obstore.store import AzureStore, GCSStore, S3Store
        except ImportError as error:
            raise MissingPackage(f"{self.scheme}://", package="obstore") from error
        stores: dict[BucketScheme, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
        # Do not use `client_options`, which would override the environment: AWS_ALLOW_HTTP, a
        # proxy.
        settings["connect_timeout"] = _duration(self.timeout_s / 2)
        retries: RetryConfig = {
            "max_retries": RETRIES,
            "retry_timeout": timedelta(seconds=2 * self.timeout_s),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=1),
                "base": 2,
            },
        }
        failure = _Failure(ValueError)
        with failure:
            store: S3Store | GCSStore | AzureStore = stores[self.scheme](
                self.bucket, config=settings, retry_config=retries
            )
            return store
        # Not ConfigError, which would fail a start. Only the environment of one machine is wrong,
        # for example because a file is not mounted. So the start continues without its artifact.
        raise StoreDenied(
            f"{self.uri}: the environment variables for this store are missing or wrong: "
            f"{boil_down(failure.error)}",
            hint=f"correct the variables {VARIABLES[self.scheme]}_*: " + CREDENTIALS[self.scheme],
        ) from tainted(failure.error)

    def _ask(self, verb: str, key: str, ask: Callable[[], T]) -> T:
        """Return obstore's answer. Translate obstore's exceptions to one-line StoreErrors."""
        failure = _Failure(FileNotFoundError)
        with failure:
            return ask()
        raise self._translate(failure.error, verb, key) from tainted(failure.error)

    def _translate(  # noqa: PLR0911 - one return for each kind of error, in order
        self, error: BaseException, verb: str, key: str
    ) -> StoreError:
        text = str(error)
        status, code = status_and_code(text)
        server = describe_endpoint(self.scheme, environment())
        attempt = f"{self.uri}{server}: cannot {verb} {key!r}"
        reason = boil_down(error)
        asked_in_vain = CREDENTIAL_SOURCES.search(text) and status not in TRANSIENT
        if asked_in_vain or (not status and TOKEN_FILE.search(text)):
            return StoreDenied(
                f"{attempt}: no credentials: {reason}", hint=CREDENTIALS[self.scheme]
            )
        if _is_panic(error) or (not status and ("builder error" in text or "BadScheme" in text)):
            variables = VARIABLES[self.scheme]
            return StoreDenied(
                f"{attempt}: no valid request is possible with these settings: {reason}",
                hint=f"check the variables {variables}_* for spaces, line breaks or an endpoint "
                f"without a scheme; {variables}_ALLOW_HTTP=true allows an endpoint with http://",
            )
        if code in NO_BUCKET or (status == 404 and verb == "list"):
            return StoreDenied(
                f"{attempt}: there is no such bucket ({reason})",
                hint="create the bucket, or correct the address, the region or the endpoint",
            )
        if status in (401, 403) or code in DENIED or (status == 400 and not code):
            return StoreDenied(f"{attempt}: {reason}", hint=CREDENTIALS[self.scheme])
        if "Received redirect" in text:
            return StoreDenied(
                f"{attempt}: the store says that the bucket is in another region",
                hint="set AWS_REGION to the region of the bucket",
            )
        if verb != "write" and (status == 404 or isinstance(error, FileNotFoundError)):
            return ObjectNotFound(key, store=self.uri)
        if verb == "read" and status == 412:
            return explain_change(self.uri, key)
        unreached = "" if status else "check that the store is up and can be reached from here"
        return StoreError(f"{attempt}: {reason}", hint=unreached)


_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")


class _Failure(AbstractContextManager["_Failure"]):
    """Catches obstore's exceptions and exceptions of the given kinds, to translate them later.

    There are two reasons not to use an `except` block. First, an error raised in an `except` block
    keeps the original error as its context, and error trackers show the original text. Second, a
    panic in obstore's native code raises a `BaseException` that is not an `Exception`, and no
    module exports the class of this exception. For example, a line break at the end of an access
    key can cause a panic.
    """

    error: BaseException

    def __init__(self, *kinds: type[Exception]) -> None:
        self._kinds = kinds

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        from obstore.exceptions import BaseError

        if error is None or not (isinstance(error, (BaseError, *self._kinds)) or _is_panic(error)):
            return False
        self.error = error
        return True


def _is_panic(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException"


def _duration(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"


def _knows_no_condition(error: Exception) -> bool:
    from obstore.exceptions import NotSupportedError

    status, code = status_and_code(str(error))
    return isinstance(error, NotSupportedError) or status == 501 or code == "NotImplemented"


def _object(key: str, meta: ObjectMeta) -> Object:
    return Object(
        key=key,
        size_bytes=meta["size"],
        modified_unix=meta["last_modified"].timestamp(),
        version=meta["e_tag"] or "",
    )


def _size_of(source: bytes | BinaryIO) -> int:
    return len(source) if isinstance(source, bytes) else source.seek(0, io.SEEK_END)


# Failures -----------------------------------------------------------------------------------------


_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")

NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")

DENIED = (
    *("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"),
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthorizationHeaderMalformed"),
    *("AuthenticationFailed", "InvalidAuthenticationInfo", "InvalidIdentityToken"),
)
"""Error codes that mean that permission is missing. Some of these codes come with status 400."""

TRANSIENT = (408, 429, 500, 502, 503, 504)

CREDENTIAL_SOURCES = re.compile(
    r"performing \w+ (https?://(?:169\.254\.[\d.]+|\[fd00:ec2:[^\]]+\]|sts\.[\w.-]+"
    r"|login\.microsoftonline\.com|oauth2\.googleapis\.com)"
    r"|https?://[^/\s]+(?=/latest/(?:api|meta-data)/|/computeMetadata/|/metadata/identity/))"
)
"""Pattern that matches the address of a credential endpoint in the error text of a failed request
for credentials."""

TOKEN_FILE = re.compile(r"(?:Failed to read|Error reading) [\w ]{0,40}token file")
"""Pattern that matches the error text if the token file of a web identity or pod identity is
missing."""

CREDENTIALS: dict[BucketScheme, str] = {
    "s3": "give the process AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role (web "
    "identity, pod identity, instance); renew expired credentials",
    "gs": "give the process GOOGLE_APPLICATION_CREDENTIALS, or an attached service account",
    "az": "give the process AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or a "
    "managed identity",
}

VARIABLES: dict[BucketScheme, str] = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}

_REASONS = (
    # The first match in obstore's text wins. The text shows the cause below the message.
    ("ConnectionRefused", "connection refused"),
    ("ConnectionReset", "the connection was reset"),
    ("dns error", "the host name cannot be resolved"),
    ("certificate", "the server's certificate is not accepted"),
    ("TimedOut", "timeout: no complete answer in time"),
    ("IncompleteMessage", "the connection ended before the answer was complete"),
    ("IncompleteBody", "the answer ended early"),
    ("UnexpectedEof", "the answer ended early"),
    ("BadScheme", "an endpoint with http://"),
)


def status_and_code(text: str) -> tuple[int, str]:
    """Return the HTTP status and the store's error code from an error text; 0 and "" if missing."""
    status, code = _STATUS.search(text), _CODE.search(text)
    return int(status.group(1)) if status else 0, code.group(1) if code else ""


def boil_down(error: BaseException) -> str:
    """Return a short description of an obstore error, whose own text has several lines."""
    text = str(error)
    status, code = status_and_code(text)
    if status:
        return f"HTTP {status} {code}".rstrip()
    for sign, reason in _REASONS:
        if sign in text:
            return reason
    return first_line(text, 200)


_ENDPOINTS: dict[BucketScheme, tuple[str, ...]] = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": (),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Environment variables that select a server other than the provider's. The first variable that is
set wins."""


def describe_endpoint(scheme: BucketScheme, environ: Mapping[str, str]) -> str:
    """Return ` at SERVER (VARIABLE)` if an environment variable sets a server, else "".

    The text has only scheme, host and port, because a user name, path or query could contain a
    credential.

    >>> describe_endpoint("s3", {"AWS_ENDPOINT_URL": "http://me:secret@127.0.0.1:9/x?y"})
    ' at http://127.0.0.1:9 (AWS_ENDPOINT_URL)'
    """
    name = next((each for each in _ENDPOINTS[scheme] if environ.get(each)), None)
    if name is None:
        return ""
    try:
        parts = urllib.parse.urlsplit(environ[name].strip())
    except ValueError:
        return f" ({name} is not a server URL)"
    host = parts.netloc.rpartition("@")[2]
    return f" at {parts.scheme}://{host} ({name})" if host else f" ({name} is not a server URL)"
