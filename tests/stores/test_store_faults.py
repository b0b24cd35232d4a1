# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Faults between a replica and its bucket, which must give one line, no secret and no hang."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Iterator

import pytest

from s3_servers import Bucket, FaultProxy, Server
from serve_warm.errors import ObjectNotFound, StoreDenied, StoreError
from serve_warm.stores import list_keys, open_store
from serve_warm.stores.object_store import ONE_GET_BYTES, ObjectStore
from serve_warm.testing.store_contract import KEY

LARGE = "blobs/large"
DATA = bytes(range(256)) * 2000
TIMEOUT_S = 5.0


@pytest.fixture(scope="module")
def bucket(moto: Server) -> Iterator[Bucket]:
    client = moto.client()
    bucket = Bucket(client=client, name=moto.new_bucket(), prefix="pre/")
    bucket.write(KEY, DATA)
    bucket.write(LARGE, bytes(ONE_GET_BYTES + 1))
    yield bucket
    client.close()


@pytest.fixture
def store(
    moto: Server, fault_proxy: FaultProxy, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> ObjectStore:
    """A store behind the proxy, with valid credentials and short timeouts."""
    server = dataclasses.replace(moto, endpoint=fault_proxy.endpoint)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    store = ObjectStore.open("s3", f"{bucket.name}/pre")
    return dataclasses.replace(store, timeout_s=TIMEOUT_S)


def read(store: ObjectStore, key: str) -> bytes:
    found = store.head(key)
    data = bytearray(found.size_bytes)

    def sink(at: int, piece: bytes | memoryview) -> None:
        data[at : at + len(piece)] = piece

    store.download(found, sink)
    return bytes(data)


OPERATIONS: dict[str, Callable[[ObjectStore], object]] = {
    "list": lambda store: list_keys(store, ""),
    "head": lambda store: store.head(KEY),
    "get": lambda store: store.get(KEY, max_bytes=len(DATA)),
    "download": lambda store: read(store, KEY),
    "download in parts": lambda store: read(store, LARGE),
    "create": lambda store: store.create("blobs/new", b"new"),
    "delete": lambda store: store.delete("blobs/new"),
}

READS = ("get", "download", "download in parts")
ALL = tuple(OPERATIONS)

FAULTS: tuple[tuple[str, type[StoreError], str, tuple[str, ...]], ...] = (
    # what the server does, what is raised, what it says, for which operations
    ("down", StoreError, "connection refused", ALL),
    ("hang", StoreError, "in time", ALL),
    ("hang_in_body", StoreError, "in time", ("list", *READS)),
    ("trickle", StoreError, "in time", ("get",)),
    ("reset_in_body", StoreError, "reset", ("list", *READS)),
    ("truncated", StoreError, "ended early", ("list", *READS)),
    ("short", StoreError, "changed", ("download",)),
    ("short", StoreError, "ended early", ("download in parts",)),
    ("short", StoreError, "cannot list", ("list",)),
    ("301", StoreDenied, "in another region", ALL),
    ("400_expired", StoreDenied, "HTTP 400 ExpiredToken", ("list", *READS, "delete")),
    # The answer to HEAD has no text, and so no code.
    ("400_expired", StoreDenied, "HTTP 400", ("head", "create")),
    ("403_expired", StoreDenied, "HTTP 403 ExpiredToken", ("list", *READS, "delete")),
    ("403", StoreDenied, "HTTP 403", ALL),
    ("404", ObjectNotFound, "no object", ("head", *READS)),
    ("404_bucket", StoreDenied, "no such bucket", ("list", *READS, "create", "delete")),
    ("409", StoreError, "HTTP 409", ("list", *READS, "delete")),
    ("412", StoreError, "changed", READS),
    ("416", StoreError, "HTTP 416", READS),
    ("429", StoreError, "HTTP 429", ("list", "download")),
    ("500", StoreError, "HTTP 500", ALL),
    ("503", StoreError, "HTTP 503", ("list", "download")),
)


@pytest.mark.parametrize(
    ("fault", "kind", "says", "operation"),
    [(*row, operation) for *row, operations in FAULTS for operation in operations],
)
def test_a_fault_is_one_line_without_a_secret(  # noqa: PLR0917
    store: ObjectStore,
    fault_proxy: FaultProxy,
    moto: Server,
    caplog: pytest.LogCaptureFixture,
    fault: str,
    kind: type[StoreError],
    says: str,
    operation: str,
):
    """Each fault soon gives the error that says whether a retry can help."""
    caplog.set_level("DEBUG")
    if fault in ("hang", "hang_in_body", "trickle"):
        store = dataclasses.replace(store, timeout_s=0.2)
    fault_proxy.only = lambda request: "blobs/" in request or "?" in request
    if operation.startswith("download") or fault == "404_bucket":
        # A fault that comes after the object was found.
        fault_proxy.only = lambda request: not request.startswith("HEAD")
    fault_proxy.fault = fault

    with pytest.raises(StoreError) as caught:
        OPERATIONS[operation](store)

    error = caught.value
    assert type(error) is kind
    assert says in error.message
    assert error.message.startswith(store.uri)
    assert len(error.message.splitlines()) == 1
    assert len(error.message) < 300
    chain: list[BaseException | None] = [error]
    texts = ["".join(traceback.format_exception(error)), repr(error), caplog.text]
    while (last := chain.pop()) is not None:
        # Also the context, which is not printed and stands there for whoever looks.
        assert type(last).__module__.startswith("serve_warm.")
        texts.append(repr(last))
        chain += [last.__cause__, last.__context__]
    everything = "".join(texts)
    for secret in (moto.access_key, moto.secret_key, moto.session_token):
        assert secret not in everything


@pytest.mark.parametrize(
    ("fault", "operation"),
    [*(("500", operation) for operation in ALL), ("429", "download"), ("503", "download")],
)
def test_a_refusal_that_passes_is_not_noticed(
    store: ObjectStore, fault_proxy: FaultProxy, fault: str, operation: str
):
    """A fault that is gone at the next request does not cause an error."""
    store.delete("blobs/new")
    fault_proxy.fault, fault_proxy.times = fault, 1
    OPERATIONS[operation](store)
    assert fault_proxy.times == 0


@pytest.mark.parametrize("operation", READS)
@pytest.mark.parametrize("fault", ["hang", "hang_in_body", "reset_in_body", "truncated"])
def test_a_connection_that_breaks_once_is_not_noticed(
    store: ObjectStore, fault_proxy: FaultProxy, fault: str, operation: str
):
    """An interrupted read resumes where it stopped, and its bytes are complete."""
    store = dataclasses.replace(store, timeout_s=3.0)
    fault_proxy.only = lambda request: request.startswith("GET")
    fault_proxy.fault, fault_proxy.times = fault, 1
    data = OPERATIONS[operation](store)
    assert data == (bytes(ONE_GET_BYTES + 1) if operation == "download in parts" else DATA)
    assert fault_proxy.times == 0


def test_an_object_that_changes_while_a_read_is_resumed_is_noticed(
    store: ObjectStore, fault_proxy: FaultProxy, bucket: Bucket
):
    """A resumed read never combines the beginning of one object with the rest of another."""
    bucket.write("blobs/changing", DATA)
    found = store.head("blobs/changing")
    fault_proxy.fault, fault_proxy.times = "truncated", 1
    fault_proxy.afterwards = lambda _request: bucket.write("blobs/changing", DATA[::-1])
    with pytest.raises(StoreError, match=r"changed|ended early"):
        store.download(found, lambda _at, _piece: None)


def test_slow_is_no_fault(store: ObjectStore, fault_proxy: FaultProxy, bucket: Bucket):
    """While data arrives, a request may take longer than the timeout for stalls."""
    data = bytes(20_000_000)
    bucket.write("blobs/slow", data)
    fault_proxy.fault = "slow"
    store = dataclasses.replace(store, timeout_s=1.0)
    assert read(store, "blobs/slow") == data
    assert len(fault_proxy.seen) == 2


@pytest.mark.parametrize("fault", ["down", "403", "404"])
def test_no_credentials_at_all_is_denied(
    store: ObjectStore, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, fault: str
):
    """Without credentials in the environment or on the machine, the error says what to set."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", fault_proxy.endpoint)
    fault_proxy.fault = fault
    with pytest.raises(StoreDenied, match="no credentials") as caught:
        list_keys(open_store(store.uri), "")
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


def test_a_metadata_service_that_is_busy_is_asked_again(
    store: ObjectStore, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
):
    """Throttling of many replicas that start at once does not count as missing permission."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", fault_proxy.endpoint)
    fault_proxy.fault = "503"
    with pytest.raises(StoreError, match="HTTP 503") as caught:
        list_keys(open_store(store.uri), "")
    assert type(caught.value) is StoreError
