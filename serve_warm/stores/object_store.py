# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Buckets as stores: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.

The one module that touches obstore. Credentials come from where its providers look (environment,
web identity, container and instance roles), an endpoint of one's own from the environment of the
process (`AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_S3`); neither is ever part of an address of ours.
"""

from __future__ import annotations

import builtins
import io
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar

from serve_warm._redaction import tainted
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
    is_key,
    pieces_of,
    sort_keys,
)

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import AzureStore, GCSStore, RetryConfig, S3Store

Scheme = Literal["s3", "gs", "az"]

T = TypeVar("T")

ONE_GET_BYTES = 32 << 20
"""Up to here one GET: parts would cost more round trips than they save."""

PART_BYTES = 8 << 20
"""Read by one ranged GET of a larger object: about 0.1 s of what S3 gives one connection, which is
longer than a round trip and short enough that the last parts end together."""

PARTS_AT_ONCE = 8
"""Connections of one download. Each holds about two pieces, so memory does not grow with this as
it does with parts that are read whole."""

ONE_PUT_BYTES = 64 << 20
"""Up to here one PUT, which can be conditional, from memory; above a multipart upload."""

UPLOAD_PART_BYTES = 16 << 20
"""10 000 parts, the most that S3 takes, make 160 GB."""

UPLOADS_AT_ONCE = 4

RETRIES = 2
"""Made by obstore after connection errors, 429 and 5xx, a part of a second apart. Few, because the
caller tries again too, with a deadline and longer pauses."""

WHOLE_REQUEST_FACTOR = 6
"""A request that moves, but slowly, ends after this many times `timeout_s`: with 60 s, 32 MiB come
at 0.6 MB/s and eight parts at once at 1.1 MB/s."""

SLOWEST_UPLOAD = 256 << 10
"""Bytes a second. A request that uploads has the time that all which is sent beside it takes at
this speed, more than what other requests have."""

CONFLICT_TRIES = 5
"""Conditional PUTs of one object while another writer's is undecided."""


@dataclass(frozen=True, kw_only=True)
class ObjectStore:
    """The objects of a bucket whose keys begin with a prefix.

    A bucket that does not exist is StoreDenied, as missing permission is: many stores answer so to
    both, and neither goes away by trying again. Only `head` cannot tell it from a missing object,
    since the answer to HEAD has no text.
    """

    scheme: Scheme
    bucket: str
    prefix: str = ""
    """Without slashes at its ends; empty for the whole bucket."""
    timeout_s: float = 10.0
    """A request ends when nothing moves for as long, and is tried again `RETRIES` times. Whole
    requests have `WHOLE_REQUEST_FACTOR` times as long, uploads more: see `SLOWEST_UPLOAD`."""

    @classmethod
    def open(cls, scheme: Scheme, rest: str) -> ObjectStore:
        """Return the store at `scheme://rest`; nothing is sent yet.

        Raises:
            ConfigError: not the name of a bucket.
            MissingPackage: obstore is not installed.
            StoreDenied: the environment does not configure such a store.
        """
        bucket, _, prefix = rest.partition("/")
        prefix = prefix.removesuffix("/")
        # The name is not repeated: whoever mistakes the form of an address may have put a
        # password into it.
        if not _BUCKET.fullmatch(bucket) or ".." in bucket:
            raise ConfigError(
                f"{scheme}:// is not followed by the name of a bucket",
                hint="3 to 63 lower-case letters, digits, hyphens, dots and underscores, as in "
                f"{scheme}://bucket/prefix",
            )
        if prefix:
            try:
                check_key(prefix)
            except StoreError as error:
                raise ConfigError(
                    f"{scheme}://{bucket}/ is followed by what cannot begin a key",
                    hint="names joined by one slash each, none of which begins with a dot",
                ) from error
        store = cls(scheme=scheme, bucket=bucket, prefix=prefix)
        # Now and not at the first use: a wrong setting is no trouble of the network.
        store._reader  # noqa: B018
        return store

    @property
    def uri(self) -> str:
        """The address, as `scheme://bucket/prefix`."""
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    def list(self, prefix: str) -> builtins.list[str]:
        """Return the keys that begin with `prefix`; objects whose names are no keys are left out.

        All objects of the folder that `prefix` ends in, from `prefix` on, are listed on the way.
        """
        return sort_keys(self.pages(prefix))

    def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
        """Yield what `list` returns, some objects of an answer at a time."""
        import obstore

        check_prefix(prefix)
        own = f"{self.prefix}/" if self.prefix else ""
        # obstore lists whole names only. No key has private use characters, nor stands behind them.
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
        """Return size, time and ETag of an object."""
        import obstore

        path = self._path(key)
        return _object(key, self._ask("read", key, lambda: obstore.head(self._reader, path)))

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Return an object of at most `max_bytes`, by one GET; a larger one is not read."""
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
        """Give an object to `sink`: up to `ONE_GET_BYTES` by one GET, a larger one by ranges.

        Ranges are read by `PARTS_AT_ONCE` threads, which have ended when this returns. When one
        fails, or `sink` raises, each of the others ends at its next piece or with its request.
        """
        # Without an ETag parts of different objects could not be told apart.
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
                stopped.set()  # also when what interrupts is in this thread

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
                # Here and not where the error arrives, so that no thread begins another part.
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
                    raise self._explain_change(found.key)
                sink(offset, piece)
                offset += len(piece)
        if offset != end:
            raise self._explain_early_end(found.key, offset - first, end - first)

    def _pieces(self, found: Object, part: tuple[int, int] | None) -> Generator[bytes, None, None]:
        import obstore

        # A generator, so that what the sink raises does not pass the border of this store.
        options: GetOptions = {}
        if part:
            options["range"] = part
        # A weak ETag never matches; the one of the answer is compared in any case, since not
        # every server looks at this header.
        if found.version and not found.version.startswith("W/"):
            options["if_match"] = found.version
        path = self._path(found.key)
        result = self._ask(
            "read", found.key, lambda: obstore.get(self._reader, path, options=options)
        )
        now = _object(found.key, result.meta)
        if (now.size_bytes, now.version) != (found.size_bytes, found.version):
            raise self._explain_change(found.key)
        stream = iter(result.stream(min_chunk_size=PIECE_BYTES))
        while (piece := self._ask("read", found.key, lambda: next(stream, None))) is not None:
            yield piece

    def create(self, key: str, source: bytes | BinaryIO) -> None:
        """Store an object that is not there yet.

        Up to `ONE_PUT_BYTES` by a conditional PUT: of several writers the store takes one. Above
        by a multipart upload, for which obstore has no condition: two that begin at once both
        succeed, and the last one's bytes stay. So only keys that are made from the content may
        have objects as large as that. The same is true of stores that do not honour the condition
        (Ceph 16 in versioned buckets, some gateways); there a look before and one after
        narrow the gap, and do not close it.

        An upload that was interrupted is never visible. Its parts may stay, unseen but paid for,
        until a lifecycle rule of the bucket removes them.
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
                raise StoreError(f"{self.uri}: {key!r} was written and is not there", key=key)
            # The ETag that the store gave our own upload is proof enough that it is what stayed.
            if written and (there.size_bytes, there.version) == (size, written):
                return
        if there.size_bytes != size or not self._holds(there, source):
            raise ObjectExists(key, store=self.uri)

    def delete(self, key: str) -> None:
        """Remove an object; in a versioned bucket it is hidden, and stays for who asks for it."""
        import obstore

        path = self._path(key)
        with suppress(ObjectNotFound):
            self._ask("delete", key, lambda: obstore.delete(self._reader, path))

    def _put(self, key: str, data: bytes) -> str:
        """Store an object by one PUT and return its ETag; "" when another writer was first."""
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
            # 409 comes before the other writer's PUT is decided, and it may yet fail.
            if self._find(key):
                return ""
            time.sleep(0.1 * 2**attempt)
        raise StoreError(f"{self.uri}: cannot write {key!r}: other writers are at it", key=key)

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

    def _explain_change(self, key: str) -> StoreError:
        return StoreError(f"{self.uri}: {key!r} was changed while it was read", key=key)

    def _explain_early_end(self, key: str, count: int, expected: int) -> StoreError:
        return StoreError(
            f"{self.uri}: {key!r} ended early: {count} of {expected} bytes came", key=key
        )

    @cached_property
    def _reader(self) -> S3Store | GCSStore | AzureStore:
        # What ends a request that stalls, before the answer or in the middle of it.
        whole_s = self.timeout_s * WHOLE_REQUEST_FACTOR
        return self._connect(
            {"read_timeout": _duration(self.timeout_s), "timeout": _duration(whole_s)}
        )

    def _writer(self, bytes_at_once: int) -> S3Store | GCSStore | AzureStore:
        # A read timeout runs while a body is being sent too, so here there is none.
        whole_s = self.timeout_s * WHOLE_REQUEST_FACTOR + bytes_at_once / SLOWEST_UPLOAD
        return self._connect({"timeout": _duration(whole_s)})

    def _connect(self, settings: dict[str, str]) -> S3Store | GCSStore | AzureStore:
        try:
            from obstore.store import AzureStore, GCSStore, S3Store
        except ImportError as error:
            raise MissingPackage(f"{self.scheme}://", package="obstore") from error
        stores: dict[Scheme, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
        # As settings and not as `client_options`, which would put those of the environment out of
        # force: AWS_ALLOW_HTTP, a proxy.
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
        # Not ConfigError, which ends a start: what is wrong is in the environment of one machine,
        # a file that is not mounted for instance, and costs it the artifact only.
        raise StoreDenied(
            f"{self.uri}: the environment does not configure this store: "
            f"{_boil_down(failure.error)}",
            hint=f"correct the variables {_VARIABLES[self.scheme]}_*: " + _CREDENTIALS[self.scheme],
        ) from tainted(failure.error)

    def _ask(self, verb: str, key: str, ask: Callable[[], T]) -> T:
        """Return what obstore answers; what it raises becomes one line of ours."""
        failure = _Failure(FileNotFoundError)
        with failure:
            return ask()
        raise self._translate(failure.error, verb, key) from tainted(failure.error)

    def _translate(  # noqa: PLR0911 - one return for each kind of error, in order
        self, error: BaseException, verb: str, key: str
    ) -> StoreError:
        text = str(error)
        status, code = _status_and_code(text)
        attempt = f"{self.uri}: cannot {verb} {key!r}"
        reason = _boil_down(error)
        if (source := _CREDENTIAL_SOURCES.search(text)) and status not in _TRANSIENT:
            return StoreDenied(
                f"{attempt}: no credentials: the environment has none, and asking "
                f"{source.group(1)} for some gave: {reason}",
                hint=_CREDENTIALS[self.scheme],
                key=key,
            )
        if not status and _TOKEN_FILE.search(text):
            return StoreDenied(
                f"{attempt}: no credentials: {reason}", hint=_CREDENTIALS[self.scheme], key=key
            )
        if "BadScheme" in text:
            return StoreDenied(
                f"{attempt}: the endpoint begins with http://, which is not encrypted",
                hint=f"use https://, or allow it by {_VARIABLES[self.scheme]}_ALLOW_HTTP=true",
                key=key,
            )
        if _is_panic(error) or (not status and "builder error" in text):
            return StoreDenied(
                f"{attempt}: no request can be made with these settings: {reason}",
                hint=f"look at the variables {_VARIABLES[self.scheme]}_*: has one of them a space "
                "or a line end in it, or an endpoint without a scheme?",
                key=key,
            )
        if code in _NO_BUCKET or (status == 404 and verb == "list"):
            return StoreDenied(
                f"{attempt}: there is no such bucket ({reason})",
                hint="create it, or correct the address, the region or the endpoint",
                key=key,
            )
        if status in (401, 403) or code in _DENIED or (status == 400 and not code):
            return StoreDenied(f"{attempt}: {reason}", hint=_CREDENTIALS[self.scheme], key=key)
        if "Received redirect" in text:
            return StoreDenied(
                f"{attempt}: the store says that the bucket is in another region",
                hint="set AWS_REGION to the region of the bucket",
                key=key,
            )
        if verb != "write" and (status == 404 or isinstance(error, FileNotFoundError)):
            return ObjectNotFound(key, store=self.uri)
        if verb == "read" and status == 412:
            return self._explain_change(key)
        unreached = "" if status else "check that the store can be reached from here, and is up"
        return StoreError(f"{attempt}: {reason}", hint=unreached, key=key)


_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")

_DENIED = (
    *("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"),
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthorizationHeaderMalformed"),
    *("AuthenticationFailed", "InvalidAuthenticationInfo", "InvalidIdentityToken"),
)
"""Some of these come with status 400."""

_TRANSIENT = (408, 429, 500, 502, 503, 504)

_CREDENTIAL_SOURCES = re.compile(
    r"performing \w+ (https?://(?:169\.254\.[\d.]+|\[fd00:ec2:[^\]]+\]|sts\.[\w.-]+"
    r"|login\.microsoftonline\.com|oauth2\.googleapis\.com)"
    r"|https?://[^/\s]+(?=/latest/(?:api|meta-data)/|/computeMetadata/|/metadata/identity/))"
)
"""Who is asked for credentials, in a message on a request that was not to the store itself."""

_TOKEN_FILE = re.compile(r"(?:Failed to read|Error reading) [\w ]{0,40}token file")
"""Web identity, pod identity: the file that the machine should have, and that is not there."""

_CREDENTIALS: dict[Scheme, str] = {
    "s3": "give the process AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role (web identity, "
    "pod identity, instance); expired ones must be renewed",
    "gs": "give the process GOOGLE_APPLICATION_CREDENTIALS, or a service account of the machine",
    "az": "give the process AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or an "
    "identity of the machine",
}

_VARIABLES: dict[Scheme, str] = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}

_REASONS = (
    # The first that stands in obstore's text, which has a dump of its cause below the message.
    ("ConnectionRefused", "connection refused"),
    ("ConnectionReset", "the connection was reset"),
    ("dns error", "the name of the host is not known"),
    ("certificate", "the certificate of the server is not accepted"),
    ("TimedOut", "no answer, or no more of it, in time"),
    ("IncompleteMessage", "the connection ended before the answer"),
    ("IncompleteBody", "the answer ended early"),
    ("UnexpectedEof", "the answer ended early"),
    ("BadScheme", "an endpoint with http://"),
)


class _Failure(AbstractContextManager["_Failure"]):
    """Takes what obstore raises, and some kinds more, for the line below to say it in our words.

    It is no `except`, because an error that is raised in one has the other as its context, where
    error trackers read the whole text; and because the class of a panic of obstore's native code
    is no Exception and stands in no module. A line end behind an access key is enough for one.
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


def _status_and_code(text: str) -> tuple[int, str]:
    """Return the HTTP status and the store's own code for what is wrong; 0 and "" for none."""
    status, code = _STATUS.search(text), _CODE.search(text)
    return int(status.group(1)) if status else 0, code.group(1) if code else ""


def _boil_down(error: BaseException) -> str:
    """Return in a few words what obstore says on several lines."""
    text = str(error)
    status, code = _status_and_code(text)
    if status:
        return f"HTTP {status} {code}".rstrip()
    for sign, reason in _REASONS:
        if sign in text:
            return reason
    return text.partition("\n")[0][:200]


def _knows_no_condition(error: Exception) -> bool:
    from obstore.exceptions import NotSupportedError

    status, code = _status_and_code(str(error))
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
