# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Buckets as stores: S3 and compatible servers, Google Cloud Storage, Azure Blob Storage.

Credentials come from obstore's providers (environment, web identity, container and instance roles).
A custom endpoint comes from the process's environment (`AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_S3`).
A store address never contains credentials or an endpoint.
"""

from __future__ import annotations

import asyncio
import atexit
import io
import re
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager, closing, suppress
from datetime import timedelta
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from weakref import WeakSet

from serve_warm._daemon_threads import begin
from serve_warm._records import record
from serve_warm._redaction import tainted
from serve_warm._regular_files import read_regular
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
    Page,
    Sink,
    check_credential_file,
    check_key,
    check_prefix,
    explain_change,
    is_key,
    pieces_of,
)
from serve_warm.stores.bucket_answers import (
    CODES,
    CREDENTIALS,
    OTHER_SERVER,
    TRANSIENT,
    VARIABLES,
    Cause,
    boil_down,
    describe_endpoint,
    explain_answer,
    explain_credentials,
    explain_transport,
    is_html,
    status_and_code,
)
from serve_warm.stores.redirects import confine

if TYPE_CHECKING:
    from obstore import GetOptions, ListStream, ObjectMeta
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

PAGE_OBJECTS = 1000
"""Number of objects in a page of a listing, as in one answer of a server."""

LIST_POLL_S = 0.5
"""Seconds after which a listing without a new object yields an empty page. So a caller can stop."""

EXIT_S = 2.0
"""Maximum number of seconds for which an exiting process waits for the end of its listings."""

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

        Objects with invalid names are left out. The bucket returns the objects in the folder of
        `prefix`, except those that sort before `prefix`, until the first that sorts after it.
        """
        import obstore

        check_prefix(prefix)
        own = f"{self.prefix}/" if self.prefix else ""
        # obstore lists whole folders only. So begin at an offset just before `prefix`. The offset
        # ends with a private use character, which keys never contain.
        folder, _, begun = (start := own + prefix).rpartition("/")
        after = f"{start[:-1]}{chr(ord(start[-1]) - 1)}\U0010fffd" if begun else None
        stream = obstore.list(self._reader, folder or None, offset=after, chunk_size=PAGE_OBJECTS)
        is_empty = True
        for some in self._chunks(stream, prefix):
            is_empty = is_empty and not some
            found = {each["path"].removeprefix(own): each["last_modified"] for each in some}
            listed = [
                Listed(key=key, modified_unix=when.timestamp())
                for key, when in found.items()
                if key.startswith(prefix) and is_key(key)
            ]
            yield Page(listed, left_out=len(some) - len(listed))
            if begun and any(key[: len(prefix)] > prefix for key in found):
                return  # buckets list in order of the keys
        if is_empty:
            self._check_is_store("list", prefix)

    def _chunks(
        self, stream: ListStream[Sequence[ObjectMeta]], prefix: str
    ) -> Generator[Sequence[ObjectMeta], None, None]:
        """Yield the objects of a listing, and an empty list every `LIST_POLL_S` without objects.

        obstore asks for page after page until it has an object. If a server sends empty pages
        without end, only the cancelling of an asyncio call ends this.
        """
        stopped = threading.Event()
        silence_s = self.timeout_s * WHOLE_REQUEST_FACTOR * 1.5
        try:
            while True:
                asked = _begin_chunk(stream, stopped)
                until = time.monotonic() + silence_s
                while not wait([asked], timeout=LIST_POLL_S).done:
                    if time.monotonic() > until:
                        raise StoreError(
                            f"{self.uri}: cannot list {prefix!r}: the server sent no object for "
                            f"{silence_s:.0f} s",
                            hint="check that the server is a store; some gateways send empty pages "
                            "without end",
                        )
                    yield []
                some = self._ask("list", prefix, asked.result)
                if some is None:
                    return
                yield some
        finally:
            stopped.set()

    def _check_is_store(self, verb: str, key: str) -> None:
        """Raise if the server does not answer as a store does.

        obstore reads any well-formed page with status 200, such as a web console, as a listing
        without objects, and as the object under every key. A store says that a new random key has
        no object.

        Raises:
            StoreDenied: the server is not a store.
        """
        import obstore

        path, is_answered = self._path(secrets.token_hex(16)), False
        failure = _Failure()
        with failure:
            obstore.get(self._reader, path)
            is_answered = True
        if is_answered:
            raise self._not_a_store(verb, key)
        status, code = status_and_code(str(failure.error))
        if not code and (status not in (403, 404) or is_html(str(failure.error))):
            raise self._translate(failure.error, verb, key) from tainted(failure.error)

    def _not_a_store(self, verb: str, key: str) -> StoreDenied:
        server = describe_endpoint(self.scheme, environment())
        return StoreDenied(
            f"{self.uri}{server}: cannot {verb} {key!r}: the server is not a store: it answers "
            "every request with a page",
            hint=OTHER_SERVER[self.scheme],
        )

    def head(self, key: str) -> Object:
        """Return the size, time and ETag of an object."""
        import obstore

        path = self._path(key)

        def ask() -> ObjectMeta:
            failure = _Failure()
            with failure:
                return obstore.head(self._reader, path)
            status, code = status_and_code(str(failure.error))
            if 400 <= status < 500 and status not in (404, *TRANSIENT) and not code:
                # The answer to HEAD has no body, and so no code that says why.
                return obstore.get(self._reader, path, options={"range": (0, 1)}).meta
            raise failure.error

        return _object(key, self._ask("read", key, ask))

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Return an object of at most `max_bytes`, with one GET. Larger objects are not read."""
        path = self._path(key)

        def ask() -> tuple[int, bytes, str]:
            import obstore

            result = obstore.get(self._reader, path)
            size, kind = result.meta["size"], str(result.attributes.get("Content-Type", ""))
            return size, bytes(result.bytes()) if size <= max_bytes else b"", kind

        size, data, kind = self._ask("read", key, ask)
        if kind.startswith("text/html"):
            raise self._not_a_store("read", key)
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
            self._check_is_store("write", key)
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
        settings |= confine(self.scheme, environment())
        retries: RetryConfig = {
            "max_retries": RETRIES,
            "retry_timeout": timedelta(seconds=2 * self.timeout_s),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=1),
                "base": 2,
            },
        }
        for name in _FILES[self.scheme]:
            if path := environment().get(name):
                check_credential_file(self.uri, name=name, path=path)
        more = self._trust(settings)
        failure = _Failure()
        with failure:
            store: S3Store | GCSStore | AzureStore = stores[self.scheme](
                self.bucket, config=settings, retry_config=retries, **more
            )
            return store
        # Not ConfigError, which would fail a start. Only the environment of one machine is wrong,
        # for example because a file is not mounted. So the start continues without its artifact.
        raise StoreDenied(
            f"{self.uri}: the environment variables for this store are missing or wrong: "
            f"{boil_down(failure.error)}",
            hint=f"correct the variables {VARIABLES[self.scheme]}_*: " + CREDENTIALS[self.scheme],
        ) from tainted(failure.error)

    def _trust(self, settings: dict[str, str]) -> dict[str, Any]:
        """Return the arguments that make obstore trust the CAs in AWS_CA_BUNDLE.

        Raises:
            StoreDenied: the file cannot be read.
        """
        path = environment().get("AWS_CA_BUNDLE") if self.scheme == "s3" else None
        if not path:
            return {}
        try:
            certificates = read_regular(path)
        except OSError as error:
            raise StoreDenied(
                f"{self.uri}: cannot read AWS_CA_BUNDLE={path}: {error.strerror}",
                hint="mount the file, or correct AWS_CA_BUNDLE",
            ) from error
        # `client_options` replaces what obstore read from the environment, and `settings` wins.
        for name, value in environment().items():
            setting = name.removeprefix("AWS_").lower()
            if name.startswith("AWS_") and setting in _CLIENT_SETTINGS:
                settings.setdefault(setting, value)
        return {"client_options": {"root_certificate": certificates}}

    def _ask(self, verb: str, key: str, ask: Callable[[], T]) -> T:
        """Return obstore's answer. Translate obstore's exceptions to one-line StoreErrors."""
        failure = _Failure()
        with failure:
            return ask()
        raise self._translate(failure.error, verb, key) from tainted(failure.error)

    def _translate(self, error: BaseException, verb: str, key: str) -> StoreError:
        text = str(error)
        status, code = status_and_code(text)
        server = describe_endpoint(self.scheme, environment())
        attempt = f"{self.uri}{server}: cannot {verb} {key!r}"
        reason = explain_credentials(error, self.scheme, environment())
        if reason is None:
            if _is_panic(error) or (
                not status and ("builder error" in text or "BadScheme" in text)
            ):
                reason = self._explain_setting(error)
            elif code not in CODES and not is_html(text):
                if verb not in ("write", "list") and (
                    status == 404 or isinstance(error, FileNotFoundError)
                ):
                    return ObjectNotFound(key, store=self.uri)
                if verb == "read" and status == 412:
                    return explain_change(self.uri, key)
        if reason is None:
            answered = status or "Received redirect" in text
            reason = (
                explain_answer(error, self.scheme, verb)
                if answered
                else explain_transport(error, self.scheme)
            )
        kind = StoreDenied if reason.is_final else StoreError
        return kind(f"{attempt}: {reason.what}", hint=reason.hint)

    def _explain_setting(self, error: BaseException) -> Cause:
        variables = VARIABLES[self.scheme]
        return Cause(
            what=f"no valid request is possible with these settings: {boil_down(error)}",
            hint=f"check the variables {variables}_* for spaces, line breaks or an endpoint "
            f"without a scheme; {variables}_ALLOW_HTTP=true allows an endpoint with http://",
            is_final=True,
        )


_FILES: Mapping[BucketScheme, tuple[str, ...]] = {
    "s3": ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    "gs": (
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ),
    "az": ("AZURE_FEDERATED_TOKEN_FILE",),
}
"""Environment variables with the paths of files that obstore reads."""

_CLIENT_SETTINGS = (
    *("allow_http", "allow_invalid_certificates", "proxy_url", "proxy_ca_certificate"),
    *("proxy_excludes", "user_agent", "http1_only", "http2_only", "randomize_addresses"),
)
"""Settings of obstore's HTTP client that it reads from variables with the prefix AWS_."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")


_asked: dict[Future[Sequence[ObjectMeta] | None], threading.Event] = {}
"""The listings that wait for an answer, and the events that stop them."""

_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
"""The event loops of listings that a listing or a thread of obstore still uses."""


def _begin_chunk(
    stream: ListStream[Sequence[ObjectMeta]], stopped: threading.Event
) -> Future[Sequence[ObjectMeta] | None]:
    """Begin to read the next objects; the result is None at the end, or if `stopped` is set."""
    _end_listings_at_exit()

    def ask() -> Sequence[ObjectMeta] | None:
        found = asyncio.run(_next_chunk(stream, stopped))
        if isinstance(found, BaseException):
            raise found
        return found

    asked = begin(ask, name="serve_warm-list")
    _asked[asked] = stopped
    asked.add_done_callback(_asked.pop)
    return asked


async def _next_chunk(
    stream: ListStream[Sequence[ObjectMeta]], stopped: threading.Event
) -> Sequence[ObjectMeta] | BaseException | None:
    """Return the next objects or the error. An error that is raised would keep the event loop."""
    _loops.add(asyncio.get_running_loop())

    async def ask() -> Sequence[ObjectMeta] | None:
        try:
            return await stream.__anext__()
        except StopAsyncIteration:
            return None

    asked = asyncio.ensure_future(ask())
    while not stopped.is_set():
        if (await asyncio.wait([asked], timeout=LIST_POLL_S))[0]:
            return asked.exception() or asked.result()
    asked.cancel()  # `asyncio.run` waits until this has ended
    return None


@cache
def _end_listings_at_exit() -> None:
    atexit.register(_end_listings)


def _end_listings() -> None:
    """Stop all listings, and wait until obstore's threads have released their Python objects.

    After an answer, and after a cancelled request, a thread of obstore uses Python once more. If
    Python has shut down by then, this aborts the process.
    """
    for stopped in list(_asked.values()):
        stopped.set()
    until = time.monotonic() + EXIT_S
    while _loops and time.monotonic() < until:
        time.sleep(0.01)


class _Failure(AbstractContextManager["_Failure"]):
    """Catches every exception of obstore, to translate it later.

    Whatever a server answers, the store failed, and not the start of a replica. For example, a date
    after the year 9999 makes obstore raise a ValueError.

    There are two reasons not to use an `except` block. First, an error raised in an `except` block
    keeps the original error as its context, and error trackers show the original text. Second, a
    panic in obstore's native code raises a `BaseException` that is not an `Exception`, and no
    module exports the class of this exception. For example, a line break at the end of an access
    key can cause a panic.
    """

    error: BaseException

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if error is None or not (isinstance(error, Exception) or _is_panic(error)):
            return False
        self.error = error
        return True


def _is_panic(error: BaseException) -> bool:
    # Of a call, and of an asyncio call (obstore 0.12).
    return type(error).__name__ in ("PanicException", "RustPanic")


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
