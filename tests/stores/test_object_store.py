# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Buckets as stores: the contract on real servers, ranged downloads, uploads, addresses.

test_store_faults.py has the tests of faults of servers and networks.
"""

from __future__ import annotations

import dataclasses
import io
import math
import re
import secrets
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import obstore
import pytest
from packaging.version import Version

from s3_servers import Bucket, FaultProxy, Server
from serve_warm.errors import (
    ConfigError,
    MissingPackage,
    ObjectExists,
    ObjectNotFound,
    StoreDenied,
    StoreError,
)
from serve_warm.stores import Object, list_keys, open_store
from serve_warm.stores.object_store import (
    ONE_GET_BYTES,
    ONE_PUT_BYTES,
    PART_BYTES,
    PARTS_AT_ONCE,
    WHOLE_REQUEST_FACTOR,
    ObjectStore,
)
from serve_warm.testing import StoreContract
from serve_warm.testing.store_contract import KEY

GAPS = {
    ("azurite", "plain", "test_download_of_what_is_gone_is_named"): "Azurite answers 412 to a "
    "condition on what is not there, which is taken for a change",
    ("ceph", "versioned", "test_of_racing_writers_one_wins"): "Ceph 16 ignores If-None-Match in a "
    "versioned bucket: of writers that look at the same moment several find nothing there",
}
"""What a server cannot do, and so a store on it; the rest of the contract holds there too."""


def skip_gaps(server: str, kind: str, request: pytest.FixtureRequest) -> None:
    reason = GAPS.get((server, kind, request.node.originalname))
    if reason:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "AZURITE_", "GOOGLE_")):
            monkeypatch.delenv(name)


def set_up(monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


# --- the contract ------------------------------------------------------------------------------
class S3Contract(StoreContract):
    """The store contract, in a bucket for the class and a prefix for the test."""

    server = "moto"
    kind = "plain"
    folder = "prefix"

    @pytest.fixture(scope="class")
    @classmethod
    def bucket(cls, request: pytest.FixtureRequest) -> Iterator[Bucket]:
        # By name, so that a server only starts when a test that asks for it runs.
        server: Server = request.getfixturevalue(cls.server)
        client = server.client()
        yield Bucket(client=client, name=server.new_bucket(versioned=cls.kind == "versioned"))
        client.close()

    @pytest.fixture
    def raw(self, bucket: Bucket) -> Bucket:
        return dataclasses.replace(bucket, prefix=f"{secrets.token_hex(4)}/{self.folder}/")

    @pytest.fixture
    def store(
        self, raw: Bucket, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> ObjectStore:
        skip_gaps(self.server, self.kind, request)
        set_up(monkeypatch, request.getfixturevalue(self.server).environment())
        return ObjectStore.open("s3", f"{raw.name}/{raw.prefix}")

    def test_a_wrong_secret_is_denied(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch):
        """The server checks signatures, so that the other tests prove that requests are signed."""
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-of-this-user")
        with pytest.raises(StoreDenied, match="HTTP 403"):
            list_keys(open_store(store.uri), "")


class LargeObjects:
    """Tests that are not in the contract, because they take seconds."""

    def test_download_in_parts_gives_each_byte_once(self, store: ObjectStore, raw: Bucket):
        data = secrets.token_bytes(ONE_GET_BYTES + PART_BYTES // 2)
        raw.write(KEY, data)
        pieces: list[tuple[int, bytes]] = []
        store.download(store.head(KEY), lambda at, piece: pieces.append((at, bytes(piece))))
        ends = [0, *(at + len(piece) for at, piece in sorted(pieces))]
        assert [at for at, _ in sorted(pieces)] == ends[:-1]
        assert b"".join(piece for _, piece in sorted(pieces)) == data

    def test_download_in_parts_notices_that_the_object_was_replaced(
        self, store: ObjectStore, raw: Bucket
    ):
        """A part of another object of the same size is never accepted as a part of the first."""
        raw.write(KEY, b"1" * (ONE_GET_BYTES + 1))
        found = store.head(KEY)
        raw.write(KEY, b"2" * (ONE_GET_BYTES + 1))
        with pytest.raises(StoreError, match="changed"):
            store.download(found, lambda _at, _piece: None)

    def test_a_large_object_is_uploaded_in_parts(self, store: ObjectStore, raw: Bucket):
        """A file above the size of one PUT is stored unchanged, and is never overwritten."""
        file = io.BytesIO(secrets.token_bytes(PART_BYTES) * (ONE_PUT_BYTES // PART_BYTES) + b"x")
        store.create(KEY, file)
        store.create(KEY, file)
        assert raw.read(KEY) == file.getvalue()
        file.getbuffer()[-1] = 0
        with pytest.raises(ObjectExists):
            store.create(KEY, file)


@pytest.mark.slow
class TestMoto(S3Contract, LargeObjects):
    pass


@pytest.mark.slow
class TestMotoVersioned(S3Contract):
    kind = "versioned"


@pytest.mark.long
class TestCeph(S3Contract, LargeObjects):
    server = "ceph"
    # moto takes the signature of a list with a space in it for a wrong one.
    folder = "a prefix"


@pytest.mark.long
class TestCephVersioned(S3Contract):
    server = "ceph"
    kind = "versioned"


@dataclasses.dataclass
class Container:
    """The container of an Azure store, accessed only with obstore."""

    name: str
    prefix: str

    def _client(self) -> Any:
        from obstore.store import AzureStore

        return AzureStore(self.name)

    def read(self, key: str) -> bytes:
        return bytes(self._client().get(self.prefix + key).bytes())

    def write(self, key: str, data: bytes) -> None:
        self._client().put(self.prefix + key, data)


class TestAzurite(StoreContract):
    @pytest.fixture
    def raw(self, azurite: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Container:
        settings = dict(azurite)
        container = settings.pop("container")
        set_up(monkeypatch, settings)
        return Container(container, f"{secrets.token_hex(4)}/")

    @pytest.fixture
    def store(self, raw: Container, request: pytest.FixtureRequest) -> ObjectStore:
        skip_gaps("azurite", "plain", request)
        return ObjectStore.open("az", f"{raw.name}/{raw.prefix}")


# --- downloads ---------------------------------------------------------------------------------
@pytest.fixture
def raw(moto: Server) -> Iterator[Bucket]:
    client = moto.client()
    yield Bucket(client=client, name=moto.new_bucket(), prefix="pre/")
    client.close()


@pytest.fixture
def store(
    moto: Server, fault_proxy: FaultProxy, raw: Bucket, monkeypatch: pytest.MonkeyPatch
) -> ObjectStore:
    """A store on moto behind the proxy, which counts requests and passes them on."""
    set_up(monkeypatch, dataclasses.replace(moto, endpoint=fault_proxy.endpoint).environment())
    return ObjectStore.open("s3", f"{raw.name}/pre")


def put_and_find(store: ObjectStore, raw: Bucket, proxy: FaultProxy, count: int) -> Object:
    raw.write(KEY, bytes(count))
    found = store.head(KEY)
    proxy.seen.clear()
    return found


@pytest.mark.parametrize("count", [0, 1, PART_BYTES + 1, ONE_GET_BYTES])
def test_a_small_object_is_one_get(
    store: ObjectStore, raw: Bucket, fault_proxy: FaultProxy, count: int
):
    found = put_and_find(store, raw, fault_proxy, count)
    store.download(found, lambda _at, _piece: None)
    assert fault_proxy.seen == [f"GET /{raw.name}/pre/{KEY}"]


@pytest.mark.parametrize("count", [ONE_GET_BYTES + 1, ONE_GET_BYTES + PART_BYTES])
def test_a_large_object_is_one_get_a_part(
    store: ObjectStore, raw: Bucket, fault_proxy: FaultProxy, count: int
):
    found = put_and_find(store, raw, fault_proxy, count)
    store.download(found, lambda _at, _piece: None)
    assert len(fault_proxy.seen) == len(set(fault_proxy.seen)) == math.ceil(count / PART_BYTES)
    assert all(" bytes=" in request for request in fault_proxy.seen)


def test_parts_are_read_at_once(store: ObjectStore, raw: Bucket, fault_proxy: FaultProxy):
    """With slow connections, exactly as many connections are used as the store allows."""
    found = put_and_find(store, raw, fault_proxy, (PARTS_AT_ONCE + 1) * PART_BYTES)
    fault_proxy.fault = "slow"
    store.download(found, lambda _at, _piece: None)
    assert fault_proxy.most_at_once == PARTS_AT_ONCE


# --- uploads -----------------------------------------------------------------------------------
def test_a_conflict_that_comes_to_nothing_is_tried_again(
    store: ObjectStore, raw: Bucket, fault_proxy: FaultProxy
):
    """After 409 (another write is undecided), this write succeeds if the other fails."""
    fault_proxy.fault, fault_proxy.times = "409", 2
    fault_proxy.only = lambda request: request.startswith("PUT")
    store.create(KEY, b"mine")
    assert raw.read(KEY) == b"mine"


def test_a_store_that_refuses_the_condition_is_written_without(
    store: ObjectStore, raw: Bucket, fault_proxy: FaultProxy
):
    """Some gateways answer 501 to If-None-Match, but existing objects are not overwritten."""
    fault_proxy.fault = "501"
    fault_proxy.only = lambda request: "if-none-match" in request
    store.create(KEY, b"mine")
    with pytest.raises(ObjectExists):
        store.create(KEY, b"other")
    assert raw.read(KEY) == b"mine"


@pytest.mark.parametrize("other", [b"other", b"them"])
def test_a_store_without_the_condition_is_read_back(
    store: ObjectStore, raw: Bucket, fault_proxy: FaultProxy, other: bytes
):
    """A writer learns if its bytes were overwritten at once, even by equally many bytes."""
    fault_proxy.fault = "501"
    fault_proxy.only = lambda request: "if-none-match" in request

    def overwrite(request: str) -> None:
        if request.startswith("PUT"):
            raw.write(KEY, other)

    fault_proxy.afterwards = overwrite
    with pytest.raises(ObjectExists):
        store.create(KEY, b"mine")


def test_an_answer_that_was_lost_does_not_fail_a_write(
    store: ObjectStore, raw: Bucket, fault_proxy: FaultProxy
):
    """A retried write that finds its own bytes succeeds."""
    lost: list[str] = []

    def lose(request: str) -> None:
        if request.startswith("PUT") and not lost:
            lost.append(request)
            raise OSError

    fault_proxy.afterwards = lose
    store.create(KEY, b"mine")
    assert (len(lost), raw.read(KEY)) == (1, b"mine")


@pytest.mark.long
@pytest.mark.parametrize("count", [1 << 20, ONE_PUT_BYTES + 1])
def test_a_slow_upload_has_time_for_its_size(
    store: ObjectStore, raw: Bucket, fault_proxy: FaultProxy, count: int
):
    """An upload may take longer than other requests: as long as it would at 256 KiB/s."""
    store = dataclasses.replace(store, timeout_s=0.4)

    def delay(request: str) -> None:
        if request.startswith("PUT"):
            time.sleep((WHOLE_REQUEST_FACTOR + 1) * store.timeout_s)

    fault_proxy.afterwards = delay
    store.create(KEY, io.BytesIO(bytes(count)))
    assert raw.read(KEY) == bytes(count)


@pytest.mark.parametrize("step", ["partNumber=3", "POST"])
def test_an_interrupted_upload_leaves_nothing(
    store: ObjectStore, raw: Bucket, fault_proxy: FaultProxy, step: str
):
    fault_proxy.fault = "500"
    fault_proxy.only = lambda request: step in request and "uploadId" in request
    with pytest.raises(StoreError, match="HTTP 500"):
        store.create(KEY, io.BytesIO(bytes(ONE_PUT_BYTES + 1)))
    assert list_keys(store, "") == []
    with pytest.raises(ObjectNotFound):
        store.head(KEY)
    # Before, which is all that Python 3.10 has, parts are left to the bucket's own rules.
    if Version(obstore.__version__) >= Version("0.12"):
        assert "Uploads" not in raw.client.list_multipart_uploads(Bucket=raw.name)


# --- lists -------------------------------------------------------------------------------------
def test_a_list_of_several_pages_is_whole(store: ObjectStore, raw: Bucket, fault_proxy: FaultProxy):
    """In this test, the server returns three keys per page."""
    keys = [f"s/{number}" for number in range(8)]
    for key in keys:
        raw.write(key, b"")
    assert list_keys(store, "s/") == keys
    assert len(fault_proxy.seen) == 3


def test_what_comes_before_a_prefix_is_not_listed(
    store: ObjectStore, raw: Bucket, fault_proxy: FaultProxy
):
    """Names that others add before a known name do not hide it."""
    for key in ("s/5e", "s/5e/x", "s/5f", "s/5fé", "s/5e~~", "s/5eé", "s/50"):
        raw.write(key, b"")
    for number in range(30):
        raw.write(f"s/0{number}", b"")
    assert list_keys(store, "s/5f") == ["s/5f", "s/5fé"]
    assert len(fault_proxy.seen) == 1


def test_foreign_objects_are_left_out(store: ObjectStore, raw: Bucket):
    for key in ("s/a", "s/.hidden", ".s/b"):
        raw.write(key, b"")
    dataclasses.replace(raw, prefix="prefix/").write("s/c", b"")
    assert list_keys(store, "") == ["s/a"]


# --- addresses, settings -----------------------------------------------------------------------
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
@pytest.mark.parametrize("rest", ["bucket", "bucket/prefix", "a-bucket.of_mine/a/pre fix/%41"])
def test_an_address_is_given_back(monkeypatch: pytest.MonkeyPatch, scheme: str, rest: str):
    """An address is kept unchanged, except for slashes at the end, and no request is sent."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert open_store(f"{scheme}://{rest}").uri == f"{scheme}://{rest}"
    assert open_store(f"{scheme}://{rest}/").uri == f"{scheme}://{rest}"


@pytest.mark.parametrize(
    "rest",
    [
        *("", "/", "/prefix", "b", "Bucket", "a..b", "-bucket", "KEY:hunter2", "a b", "x" * 64),
        *("bucket/../other", "bucket/a//b", "bucket/.git", "bucket/a\\b", "bucket/\n"),
    ],
)
def test_what_is_no_address_is_refused(rest: str):
    """The error is one sentence, which does not repeat a possible password."""
    with pytest.raises(ConfigError, match="followed by") as caught:
        open_store(f"s3://{rest}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("uri", ["s3://bucket", "gs://bucket", "az://bucket"])
def test_without_obstore_the_package_is_named(monkeypatch: pytest.MonkeyPatch, uri: str):
    """Folder stores need no SDK; for other stores, the error names the missing SDK."""
    for name in ("obstore", "obstore.store", "obstore.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackage, match="needs obstore") as caught:
        open_store(uri)
    assert caught.value.hint == "pip install obstore"


BAD_SETTINGS = {
    "half a credential": (
        "s3",
        {"AWS_ACCESS_KEY_ID": "AKIAWARMWARMWARMWARM"},
        "Missing SecretAccessKey",
    ),
    "a key file that is not mounted": (
        "gs",
        {"GOOGLE_APPLICATION_CREDENTIALS": "/not/mounted/key.json"},
        "/not/mounted/key.json: No such file",
    ),
    "a key that is none": (
        "gs",
        {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"private_key": "hunter2"}'},
        "are missing or wrong",
    ),
    "a key that is no base64": (
        "az",
        {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "***"},
        "Invalid Access Key",
    ),
    "no account": ("az", {}, "Account must be specified"),
    "a switch that is none": ("s3", {"AWS_ALLOW_HTTP": "perhaps"}, '"perhaps"'),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_a_bad_setting_of_the_machine_is_denied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
):
    """The error is raised when the store is opened, and does not blame the address."""
    scheme, settings, says = BAD_SETTINGS[case]
    set_up(monkeypatch, {"HOME": str(tmp_path), **settings})
    with pytest.raises(StoreDenied, match=re.escape(says)) as caught:
        open_store(f"{scheme}://bucket")
    check_is_ours_alone(caught.value, "AKIAWARM", "hunter2")


BAD_AT_USE = {
    "a token that is not mounted": (
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "/not/mounted", "AWS_ROLE_ARN": "arn:aws:iam::1:role/x"},
        "no credentials: .*/not/mounted",
    ),
    "a pod's token that is not mounted": (
        {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:1/x",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/not/mounted",
        },
        "no credentials: .*/not/mounted",
    ),
    "an endpoint that is none": (
        {"AWS_ENDPOINT_URL": "not a url", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"},
        "no valid request is possible with these settings",
    ),
    "a line end behind a key": (
        {"AWS_ACCESS_KEY_ID": "AKIAWARMWARMWARMWARM\n", "AWS_SECRET_ACCESS_KEY": "hunter2"},
        "no valid request is possible with these settings",
    ),
}


@pytest.mark.parametrize("case", BAD_AT_USE)
def test_a_setting_that_never_works_is_denied(monkeypatch: pytest.MonkeyPatch, case: str):
    """A problem that shows only at the first request is neither retried nor a crash."""
    settings, says = BAD_AT_USE[case]
    set_up(monkeypatch, settings)
    store = open_store("s3://bucket")
    with pytest.raises(StoreDenied, match=says) as caught:
        list_keys(store, "")
    check_is_ours_alone(caught.value, "AKIAWARM", "hunter2")


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_a_server_that_is_not_there_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str
):
    """The error names the server, which the bucket's address lacks, without credentials."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv(name, "http://reader:hunter2@127.0.0.1:9/hidden?X-Amz-Signature=hunter2")
    key = {"AWS_ACCESS_KEY_ID": "AKIAWARM", "AWS_SECRET_ACCESS_KEY": "hunter2"}
    set_up(monkeypatch, {"AWS_ALLOW_HTTP": "true", **key})
    store = open_store("s3://bucket/scorer")
    with pytest.raises(StoreError, match="connection refused") as caught:
        list_keys(store, "")
    start = f"s3://bucket/scorer at http://127.0.0.1:9 ({name}): cannot list"
    assert caught.value.message.startswith(start)
    check_is_ours_alone(caught.value, "reader", "hunter2", "hidden?", "AKIAWARM")


class Echo(BaseHTTPRequestHandler):
    """A handler that refuses a request and repeats one of its headers without a name."""

    def do_GET(self) -> None:
        body = f"nobody is called {self.headers['x-amz-security-token']} here".encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a server that echoes the session token, and return the token."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    token = "correct-horse-battery-staple"
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "something-else",
        "AWS_SESSION_TOKEN": token,
    }
    set_up(monkeypatch, settings)
    yield token
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_credential_that_a_server_echoes_is_in_no_traceback(echo: str):
    """The token is not in the error or its context, although obstore's text has the body."""
    with pytest.raises(StoreDenied) as caught:
        list_keys(open_store("s3://bucket"), "")
    shown = "".join(traceback.format_exception(caught.value))
    assert "nobody is called [hidden] here" in shown
    assert echo not in shown


@pytest.mark.slow
def test_a_credential_that_a_server_echoes_is_not_on_the_screen(echo: str):
    """Commands show errors and log lines without the token."""
    command = [sys.executable, "-m", "serve_warm.cli", "-v", "inspect", "s3://bucket"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "HTTP 403" in done.stderr
    assert echo not in done.stdout + done.stderr


def check_is_ours_alone(error: BaseException, *secrets: str) -> None:
    assert len(str(error).splitlines()) == 2  # the message, the hint
    chain: list[BaseException | None] = [error]
    while (last := chain.pop()) is not None:
        assert type(last).__module__.startswith("serve_warm.")
        assert not [secret for secret in secrets if secret in repr(last)]
        chain += [last.__cause__, last.__context__]


def test_an_endpoint_without_encryption_needs_permission(
    monkeypatch: pytest.MonkeyPatch, store: ObjectStore, fault_proxy: FaultProxy
):
    """http:// is used only if the operator sets the variable that the error names."""
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StoreDenied, match="http://") as caught:
        list_keys(open_store(store.uri), "")
    assert "AWS_ALLOW_HTTP=true" in caught.value.hint
    assert fault_proxy.seen == []


def test_the_endpoint_for_s3_alone_comes_first(
    monkeypatch: pytest.MonkeyPatch, store: ObjectStore, fault_proxy: FaultProxy
):
    """Both SDK variables are supported, and the more specific one has precedence."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", fault_proxy.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert list_keys(open_store(store.uri), "") == []
    assert "list-type=2" in fault_proxy.seen[0]
