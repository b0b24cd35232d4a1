# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The Hub as a store: the contract with and without Xet, pinning, races, and what can go wrong."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from hub_stand_in import REPOSITORY, SIGNATURE, Fault, File, Hub
from serve_warm.errors import (
    ConfigError,
    MissingPackage,
    ObjectExists,
    ObjectNotFound,
    ServeWarmError,
    StoreDenied,
    StoreError,
)
from serve_warm.stores import Object, list_keys, open_store
from serve_warm.stores.hub import HubStore
from serve_warm.stores.hub_client import MAX_ANSWER_BYTES, Pulse, ask_json
from serve_warm.testing import StoreContract
from serve_warm.testing.store_contract import KEY
from store_answers import HTML, HUB_ANSWERS, Answer, any_answer, find_fault, make_certificates

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")
# How the client calls its HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")

WRITER = "hf_writerwriter"
LARGE = bytes(range(256)) * 2000
"""More than the Hub takes inside a commit."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    (tmp_path / "cas").mkdir()
    stand_in = Hub(tmp_path / "cas")
    # What HF_ENDPOINT sets; but the client reads it once, when it is first imported.
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, stand_in.url)
    monkeypatch.setattr(constants, "ENDPOINT", stand_in.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_TOKEN", WRITER)
    yield stand_in
    stand_in.close()
    for thread in threading.enumerate():
        if thread.name == "serve_warm-hub":
            thread.join(30)  # a call that was given up ends now that its connection has
    huggingface_hub.close_session()


@pytest.fixture(params=["plain", "xet"])
def transfer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "xet":
        pytest.importorskip("hf_xet")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", request.param == "plain")
    return request.param


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all writers retry without a delay, as often as usual."""
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda _: sleep(0.001))


@pytest.fixture
def raw(hub: Hub) -> Hub:
    return hub


@pytest.fixture
def store(hub: Hub, transfer: str) -> HubStore:
    return HubStore(repository=REPOSITORY, silence_s=20)


class TestHubStore(StoreContract):
    def test_download_notices_that_the_object_was_replaced(self, store: HubStore, raw: Hub):
        """A download returns the object at the commit that `head` found, not a newer one."""
        raw.write(KEY, b"first" * 1000)
        found = store.head(KEY)
        raw.write(KEY, b"other" * 1000)
        pieces: list[bytes] = []
        store.download(found, lambda _at, piece: pieces.append(bytes(piece)))
        assert b"".join(pieces) == b"first" * 1000
        with pytest.raises(StoreError, match="changed"):
            store.download(replace(found, size_bytes=4999), lambda _at, _piece: None)

    def test_download_of_what_is_gone_is_named(self, store: HubStore):
        """A deleted object can be read at its commit; the error names a commit without it."""
        store.create("other", b"x")
        before = store.head("other").version
        store.create(KEY, b"there")
        found = store.head(KEY)
        store.delete(KEY)
        pieces: list[bytes] = []
        store.download(found, lambda _at, piece: pieces.append(bytes(piece)))
        assert pieces == [b"there"]
        with pytest.raises(ObjectNotFound, match=KEY):
            store.download(replace(found, version=before), lambda _at, _piece: None)


# --- addresses -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("address", "repository", "revision", "prefix"),
    [
        ("hf://acme/warm", "acme/warm", "main", ""),
        ("hf://acme/warm/", "acme/warm", "main", ""),
        ("hf://acme/warm@v1.2", "acme/warm", "v1.2", ""),
        ("hf://acme/warm@refs%2Fpr%2F1/gpu/h200", "acme/warm", "refs/pr/1", "gpu/h200"),
        ("hf://acme/warm/gpu@x/y%2F", "acme/warm", "main", "gpu@x/y%2F"),
        ("hf://a_b.c/0-1@" + "0f" * 20, "a_b.c/0-1", "0f" * 20, ""),
    ],
)
def test_an_address_names_repository_revision_and_folder(
    hub: Hub, address: str, repository: str, revision: str, prefix: str
):
    """A slash in a revision is quoted; the address is returned unchanged, without a request."""
    store = open_store(address)
    assert store == HubStore(repository=repository, revision=revision, prefix=prefix)
    assert store.uri == address.rstrip("/")
    assert hub.requests == []


@pytest.mark.parametrize(
    "address",
    [
        *("hf://warm", "hf://acme", "hf://acme/", "hf:///warm", "hf://acme/..", "hf://acme/a--b"),
        *("hf://acme/warm@", "hf://acme/warm@-x", "hf://acme/warm@a%2F..%2Fb"),
        *("hf://acme/warm@a%0Ab", "hf://acme/warm//x", "hf://acme/warm/../x"),
        *("hf://acme/warm/.cache", "hf://hf_secretsecret@acme/warm", "hf://acme/wa rm"),
    ],
)
def test_what_is_no_address_is_refused(address: str):
    """A wrong address is a configuration error of one sentence, which does not repeat a user."""
    with pytest.raises(ConfigError) as caught:
        open_store(address)
    assert "hf_secret" not in str(caught.value)


def test_a_missing_client_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingPackage, match="hf:// needs huggingface-hub"):
        open_store("hf://acme/warm")


def test_a_folder_of_a_repository_is_a_store_of_its_own(hub: Hub, plain: None):
    for path in ("art/a", "artx/b", "README.md", "other/art/c"):
        hub.write(path, b"x")
    store = open_store(f"hf://{REPOSITORY}/art")
    store.create("s/d", b"new")
    assert list_keys(store, "") == ["a", "s/d"]
    assert (list_keys(store, "s/"), list_keys(store, "none/x")) == (["s/d"], [])
    assert hub.read("art/s/d") == store.get("s/d", max_bytes=3) == b"new"


# --- what goes over the wire -----------------------------------------------------------------
@pytest.mark.parametrize("given", [LARGE, io.BytesIO(LARGE)], ids=["bytes", "file"])
def test_large_objects_go_through_xet_or_lfs(hub: Hub, store: HubStore, transfer: str, given):
    store.create(KEY, given)
    uploads = [request for request in hub.requests if request.startswith("PUT /upload/")]
    assert len(uploads) == (0 if transfer == "xet" else 1)
    assert hub.read(KEY) == LARGE
    hub.requests.clear()
    assert store.get(KEY, max_bytes=len(LARGE)) == LARGE
    read = [request for request in hub.requests if request.startswith("GET /blobs/")]
    assert len(read) == (0 if transfer == "xet" else 1)


def test_downloads_pass_through_a_private_folder_only(
    hub: Hub, store: HubStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Files that others put into the shared cache are not read, and no file is left behind."""
    cache, temporary = tmp_path / "cache", tmp_path / "scratch"
    temporary.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    hub.write(KEY, LARGE)
    poisoned = cache / "models--acme--warm" / "snapshots" / hub.branches["main"] / KEY
    poisoned.parent.mkdir(parents=True)
    poisoned.write_bytes(bytes(len(LARGE)))
    modes: set[int] = set()

    def sink(_at: int, _piece: bytes | memoryview) -> None:
        modes.update(entry.stat().st_mode & 0o777 for entry in temporary.iterdir())

    data = store.get(KEY, max_bytes=len(LARGE))
    store.download(store.head(KEY), sink)

    assert data == LARGE
    assert (modes, list(temporary.iterdir())) == ({0o700}, [])


# --- one commit ------------------------------------------------------------------------------
def test_everything_is_read_at_one_commit(
    hub: Hub, store: HubStore, caplog: pytest.LogCaptureFixture
):
    """Commits by others after a listing are not visible, even in part, until the next listing."""
    hub.write(KEY, b"old")
    commit = hub.branches["main"]
    caplog.set_level(logging.INFO, "serve_warm")
    list_keys(store, "")
    hub.write(KEY, b"newer")
    hub.write("more", b"x")
    assert (store.get(KEY, max_bytes=9), store.head(KEY).size_bytes) == (b"old", 3)
    assert store.head(KEY).version == commit
    assert (list_keys(store, ""), store.get(KEY, max_bytes=9)) == ([KEY, "more"], b"newer")
    assert list_keys(store, "more") == ["more"]
    for one in (commit, hub.branches["main"]):
        assert caplog.text.count(f"repo={REPOSITORY} revision=main commit={one}") == 1
    assert open_store(store.uri).get(KEY, max_bytes=9) == b"newer"


def test_writing_moves_the_commit_on(hub: Hub, store: HubStore):
    """A store reads its own writes, and what its write was based on."""
    list_keys(store, "")
    hub.write("more", b"x")
    store.create(KEY, b"ours")
    assert list_keys(store, "") == [KEY, "more"]
    assert store.head(KEY).version == hub.branches["main"]


def test_a_commit_in_the_address_is_used_as_it_is(hub: Hub, plain: None):
    """A commit is never resolved, so that no answer of the Hub can replace it."""
    hub.write(KEY, b"old")
    pinned = open_store(f"hf://{REPOSITORY}@{hub.branches['main']}")
    hub.write(KEY, b"new")
    data = pinned.get(KEY, max_bytes=9)
    assert (data, list_keys(pinned, "")) == (b"old", [KEY])
    assert [request for request in hub.requests if "/revision/" in request] == []


def test_a_commit_in_the_address_cannot_be_written_to(hub: Hub, plain: None):
    """The error says that a branch is needed, and no request is sent."""
    pinned = open_store(f"hf://{REPOSITORY}@{hub.branches['main']}")
    with pytest.raises(StoreError, match="a commit never changes"):
        pinned.create(KEY, b"x")
    with pytest.raises(StoreError, match="a commit never changes"):
        pinned.delete(KEY)
    assert hub.requests == []


def test_an_answer_for_another_commit_is_refused(hub: Hub, store: HubStore):
    hub.write(KEY, b"x")
    found = store.head(KEY)
    hub.faults = [Fault(request="/resolve/", headers={"X-Repo-Commit": "0" * 40})]
    with pytest.raises(StoreError, match="the answer is for '0000"):
        store.get(KEY, max_bytes=9)
    with pytest.raises(StoreError, match="the answer is for '0000"):
        store.download(found, lambda _at, _piece: None)


def test_a_version_that_is_no_commit_is_refused(hub: Hub, store: HubStore):
    """The Hub is never asked for a branch that is named like a version."""
    hub.write(KEY, b"x")
    of_main = Object(key=KEY, size_bytes=1, modified_unix=0.0, version="main")
    with pytest.raises(StoreError, match="not a commit: 'main'"):
        store.download(of_main, lambda _at, _piece: None)


def test_names_that_are_no_keys_are_not_listed(hub: Hub, store: HubStore):
    """Hostile and hidden names in a repository are ignored, and later pages are still read."""
    hub.page = 2
    for path in ("a/../../b", "a//b", "a/.hidden", "a\\b", "a/new\nline", "/etc/x", "a/b", "a/c"):
        hub.change(path, File(data=b"x", size=1))
    assert list_keys(store, "") == ["a/b", "a/c"]


# --- writers ---------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True])
def test_of_racing_stores_one_wins(hub: Hub, transfer: str, large: bool):
    barrier = threading.Barrier(8)

    def write(number: int) -> bytes | None:
        data = bytes([number]) * (len(LARGE) if large else 1000)
        store = HubStore(repository=REPOSITORY)
        barrier.wait()
        try:
            store.create(KEY, data)
        except ObjectExists:
            return None
        return data

    with ThreadPoolExecutor(8) as pool:
        winners = [data for data in pool.map(write, range(8)) if data is not None]

    assert winners == [hub.read(KEY)]


@pytest.mark.parametrize("status", [409, 412])
def test_a_writer_that_is_always_too_late_gives_up(
    hub: Hub, store: HubStore, no_waiting: None, status: int
):
    """The number of attempts is bounded, and the bytes are uploaded only once."""
    hub.faults = [Fault(request="/commit/main", status=status)]
    with pytest.raises(StoreError, match="another commit reached the branch first"):
        store.create(KEY, LARGE)
    assert len([request for request in hub.requests if "/commit/" in request]) == 20
    assert len([request for request in hub.requests if "/preupload/" in request]) == 1


def test_a_writer_that_is_late_once_finds_the_object_of_the_other(hub: Hub, store: HubStore):
    """After a conflict, everything is checked again, and a new object is not overwritten."""
    theirs = Fault(request="/preupload/", then=lambda: hub.write(KEY, b"theirs"), times=1)
    hub.faults = [theirs]
    with pytest.raises(ObjectExists):
        store.create(KEY, b"ours")
    assert hub.read(KEY) == b"theirs"


def test_an_object_that_the_hub_leaves_out_is_an_error(hub: Hub, store: HubStore):
    """If a .gitignore makes the Hub accept the commit without the file, that is an error."""
    hub.ignored = "blobs/"
    with pytest.raises(StoreError, match="does not contain the object") as caught:
        store.create(KEY, b"x")
    assert ".gitignore" in caught.value.hint


# --- what can go wrong -------------------------------------------------------------------------

OPERATIONS = {
    "list": lambda store, found: list_keys(store, ""),
    "head": lambda store, found: store.head(KEY),
    "get": lambda store, found: store.get(KEY, max_bytes=len(LARGE)),
    "download": lambda store, found: store.download(found, lambda _at, _piece: None),
    "create": lambda store, found: store.create("new", LARGE),
    "delete": lambda store, found: store.delete(KEY),
}
HUB_REFUSES = {"X-Error-Message": f"no: hf_secretsecret https://h/x?{SIGNATURE}"}
BAD_TOKEN = {"X-Error-Message": "Invalid credentials in Authorization header"}
UNSEEN = "the repository does not exist, or this account cannot see it"


def refuses(status: int, headers: dict[str, str] = HUB_REFUSES) -> Fault:
    return Fault(request=".", status=status, headers=headers)


FAULTS = {
    "500": (refuses(500), StoreError, "HTTP 500"),
    "429": (refuses(429, {"Retry-After": "0"}), StoreError, "HTTP 429"),
    "401": (refuses(401, BAD_TOKEN), StoreDenied, "HTTP 401"),
    "403": (refuses(403), StoreDenied, "HTTP 403"),
    "404 repository": (refuses(404, {"X-Error-Code": "RepoNotFound"}), StoreDenied, UNSEEN),
    "404 revision": (
        refuses(404, {"X-Error-Code": "RevisionNotFound"}),
        StoreDenied,
        "no revision 'main'",
    ),
    "gated": (refuses(403, {"X-Error-Code": "GatedRepo"}), StoreDenied, "gated"),
    "hang": (Fault(request=".", body="hang"), StoreError, "no answer from the Hub for 1 s"),
    "no Hub": (Fault(request=".", status=200), StoreError, "hf://acme/warm: "),
    "not JSON": (refuses(200, {"Content-Length": "1"}), StoreDenied, "not from a Hub .not JSON"),
}


@pytest.fixture
def check(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> Callable[[BaseException], None]:
    """Return a check that fails if anything in an error that is or could be logged has a secret."""
    caplog.set_level(logging.DEBUG)
    return lambda error: check_is_one_clear_line(error, [caplog.text, *capfd.readouterr()])


def check_is_one_clear_line(error: BaseException, texts: list[str]) -> None:
    assert isinstance(error, ServeWarmError)
    assert "\n" not in error.message
    assert 30 < len(error.message) < 300
    chain: list[BaseException | None] = [error]
    while (last := chain.pop()) is not None:
        texts += [str(last), repr(last), repr(vars(last))]
        assert type(last).__module__.startswith("serve_warm.")
        chain += [last.__cause__] if last.__context__ is None else [last.__context__]
    for secret in (WRITER, "hf_secret", SIGNATURE):
        assert secret not in "\n".join(texts)


@pytest.mark.slow
@pytest.mark.usefixtures("plain", "no_waiting")
@pytest.mark.parametrize(
    ("fault", "operation"),
    [
        *((fault, "list") for fault in FAULTS),
        *(("403", operation) for operation in OPERATIONS if operation != "list"),
    ],
)
def test_every_failure_is_one_clear_line(
    hub: Hub, check: Callable[[BaseException], None], operation: str, fault: str
):
    hub.write(KEY, LARGE)
    found = HubStore(repository=REPOSITORY).head(KEY)
    store = HubStore(repository=REPOSITORY, silence_s=1 if fault == "hang" else 60)
    trouble, kind, text = FAULTS[fault]
    hub.faults = [replace(trouble)]
    with pytest.raises(StoreError, match=text) as caught:
        OPERATIONS[operation](store, found)
    assert type(caught.value) is kind
    check(caught.value)


@pytest.mark.usefixtures("plain", "no_waiting")
@pytest.mark.parametrize("answer", HUB_ANSWERS, ids=lambda answer: answer.name)
def test_the_hint_is_for_the_answer(hub: Hub, answer: Answer):
    """Each answer has its own hint, an unknown code has none, and status and code are shown."""
    fault = {"status": answer.status, "headers": dict(answer.headers), "data": answer.body}
    hub.faults = [Fault(request=".", **fault)]
    with pytest.raises(StoreError) as caught:
        list_keys(HubStore(repository=REPOSITORY), "")
    assert find_fault(answer, caught.value) == "", str(caught.value)


@pytest.mark.usefixtures("plain", "no_waiting")
@pytest.mark.parametrize("request_", ["HEAD .*/resolve/", "GET .*/resolve/", "/paths-info/"])
def test_a_page_instead_of_a_file_is_not_an_object(hub: Hub, request_: str):
    """A login page is never taken for the file or for what the Hub says about it."""
    hub.write(KEY, b"0123456789")
    hub.faults = [Fault(request=request_, status=200, headers=HTML, data=b"<html>Log in</html>")]
    store = HubStore(repository=REPOSITORY, silence_s=20)
    with pytest.raises(StoreError):
        store.head(KEY) if "paths" in request_ else store.get(KEY, max_bytes=100)


RETRY_LATER = {
    "seconds": {"Retry-After": "7"},
    "the Hub's own header": {"ratelimit": '"api";r=0;t=7'},
}


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("form", RETRY_LATER)
@pytest.mark.parametrize("request_", ["/revision/", "/tree/", "/paths-info/", "HEAD .*/resolve/"])
def test_a_busy_hub_is_asked_again_when_it_says(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, request_: str, form: str
):
    """After 429, the same request is sent once more, and not before the time that the Hub named."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    hub.write(KEY, b"0123456789")
    headers = RETRY_LATER[form]
    hub.faults = [Fault(request=request_, status=429, headers=headers, times=1)]
    store = HubStore(repository=REPOSITORY, silence_s=20)
    assert list_keys(store, "") == [KEY]
    assert store.head(KEY).size_bytes == 10
    assert store.get(KEY, max_bytes=10) == b"0123456789"
    assert waits == [7.0]


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("request_", ["/commit/", "/objects/batch"])
def test_a_busy_hub_is_written_to_when_it_says(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, request_: str
):
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    hub.faults = [Fault(request=request_, status=429, headers={"Retry-After": "7"}, times=1)]
    HubStore(repository=REPOSITORY, silence_s=20).create(KEY, LARGE)
    assert hub.read(KEY) == LARGE
    assert [wait >= 7 for wait in waits] == [True]


@pytest.mark.usefixtures("plain")
def test_a_wait_beyond_the_deadline_is_not_begun(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    """The error says how long the Hub wants its clients to wait, for text and for programs."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    hub.faults = [Fault(request=".", status=429, headers={"Retry-After": "300"})]
    with pytest.raises(StoreError, match=r"HTTP 429\), and asks to wait 300 s") as caught:
        list_keys(HubStore(repository=REPOSITORY, silence_s=20), "")
    assert caught.value.retry_after_s == 300
    assert (waits, len(hub.requests)) == ([], 1)


@pytest.mark.slow
@pytest.mark.usefixtures("plain", "no_waiting")
@pytest.mark.parametrize("body", ["reset", "truncate"])
@pytest.mark.parametrize("large", [False, True])
def test_a_body_that_always_ends_early_is_an_error(
    hub: Hub, check: Callable[[BaseException], None], body: str, large: bool
):
    """Part of an object is never accepted as the whole object."""
    hub.write(KEY, LARGE if large else b"0123456789")
    store = HubStore(repository=REPOSITORY, silence_s=20)
    hub.faults = [Fault(request="GET /(blobs|.*/resolve/)", body=body)]
    with pytest.raises(StoreError, match="cannot read 'blobs/sha256/00ff'") as caught:
        store.get(KEY, max_bytes=len(LARGE))
    check(caught.value)


def test_a_body_that_ends_early_once_is_resumed(hub: Hub, plain: None, no_waiting: None):
    hub.write(KEY, LARGE)
    hub.faults = [Fault(request="GET /blobs", body="truncate", times=1)]
    assert HubStore(repository=REPOSITORY).get(KEY, max_bytes=len(LARGE)) == LARGE


def test_a_body_without_an_end_does_not_fill_the_disk(hub: Hub, plain: None):
    """A body that is longer than announced is abandoned as soon as this is noticed."""
    hub.write(KEY, b"0123456789")
    hub.faults = [Fault(request="GET .*/resolve/", body="endless")]
    with pytest.raises(StoreError, match="received more bytes than the Hub announced"):
        HubStore(repository=REPOSITORY).get(KEY, max_bytes=100)


FLOODS = {
    "answer": (200, {}),
    "error": (404, {"X-Error-Code": "EntryNotFound"}),
    "try again": (503, {}),
    "redirect": (307, {"Location": "/elsewhere"}),
    "compressed": (200, {"Content-Encoding": "gzip"}),
}


@pytest.mark.usefixtures("plain", "no_waiting")
@pytest.mark.parametrize(
    "request_", ["/tree/", "/paths-info/", "GET /api/models/acme/warm$|/revision/"]
)
@pytest.mark.parametrize("kind", FLOODS)
def test_an_answer_without_an_end_is_not_kept(hub: Hub, kind: str, request_: str):
    """An answer about files is read only up to a limit, regardless of its status."""
    hub.write(KEY, b"0123456789")
    status, headers = FLOODS[kind]
    sent: list[int] = []
    hub.faults = [Fault(request=request_, status=status, headers=headers, flood=sent.append)]
    store = HubStore(repository=REPOSITORY, silence_s=30)
    with pytest.raises(StoreError, match=r"larger than|compressed"):
        store.head(KEY) if "paths" in request_ else list_keys(store, "")
    # What the sockets hold is on top of it.
    assert sum(sent) < MAX_ANSWER_BYTES + (32 << 20)


def test_a_renamed_repository_is_followed_without_its_token_elsewhere(hub: Hub, plain: None):
    """The Hub answers a repository's old name with the address of its new name."""
    hub.write(KEY, b"0123456789")
    there = f"{hub.blob_url}/api/models/{REPOSITORY}/tree/main"
    hub.faults = [Fault(request="/tree/old", status=307, headers={"Location": there})]
    answer, following = ask_json(Pulse(), "GET", f"{hub.url}/api/models/{REPOSITORY}/tree/old")
    assert {entry["path"] for entry in answer if entry["type"] == "file"} >= {KEY}
    assert following == ""
    assert hub.tokens_seen[-2:] == [f"Bearer {WRITER}", ""]


@pytest.mark.usefixtures("plain", "no_waiting")
@pytest.mark.parametrize("request_", ["PUT /upload", "POST /verify", "/objects/batch", "/commit/"])
@pytest.mark.parametrize("status", [403, 500])
def test_an_upload_that_fails_leaves_nothing_and_can_be_repeated(
    hub: Hub, check: Callable[[BaseException], None], request_: str, status: int
):
    """After a failure at any step, the object does not exist, and repeating the call succeeds."""
    store = HubStore(repository=REPOSITORY, silence_s=20)
    hub.faults = [Fault(request=request_, status=status, headers=HUB_REFUSES)]
    with pytest.raises(StoreError, match=f"HTTP {status}") as caught:
        store.create(KEY, LARGE)
    assert isinstance(caught.value, StoreDenied) == (status == 403)
    check(caught.value)
    hub.faults = []
    assert list_keys(store, "") == []
    store.create(KEY, LARGE)
    assert hub.read(KEY) == LARGE


def test_a_pipe_in_place_of_the_token_is_refused_at_once(
    store: HubStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    os.mkfifo(tmp_path / "token")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    assert list_keys(store, "") == []
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(
        StoreDenied, match=r"HF_TOKEN_PATH=.*token \(not a regular file\)"
    ) as caught:
        list_keys(replace(store, silence_s=2), "")
    assert "correct HF_TOKEN_PATH" in caught.value.hint


@pytest.mark.parametrize(
    "case",
    [
        ("hf_readerreader", "public", "reads", "HTTP 403"),
        ("", "public", "reads", "HTTP 401"),
        ("", "private", "", UNSEEN),
        ("hf_strangerxx", "public", "", "HTTP 401"),
    ],
)
def test_credentials_are_those_of_the_client(
    hub: Hub, store: HubStore, monkeypatch: pytest.MonkeyPatch, case: tuple[str, str, str, str]
):
    """HF_TOKEN determines what may be read and written; the error says where tokens come from."""
    token, visibility, reads, text = case
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent")
    hub.private = visibility == "private"
    hub.write(KEY, b"x")
    if reads:
        assert store.get(KEY, max_bytes=1) == b"x"
    with pytest.raises(StoreDenied, match=text) as caught:
        store.create("new", LARGE)
    assert "HF_TOKEN_PATH" in caught.value.hint


def test_a_hub_that_is_down_is_a_store_error(hub: Hub, plain: None, no_waiting: None):
    hub.server.server_close()
    hub.server.shutdown()
    with pytest.raises(StoreError, match="cannot resolve 'main': ConnectError"):
        list_keys(HubStore(repository=REPOSITORY, silence_s=10), "")


PROGRAM = """
import sys
from serve_warm.errors import StoreError
from serve_warm.stores import open_store
store = open_store(sys.argv[1])
try:
    print(store.get(sys.argv[2], max_bytes=1_000_000).decode())
except StoreError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("offline", ["0", "1"])
def test_the_client_is_set_by_its_own_environment(hub: Hub, tmp_path: Path, offline: str):
    """HF_ENDPOINT, HF_TOKEN_PATH and HF_HUB_OFFLINE have the same meaning as for the client."""
    hub.private = True
    hub.write(KEY, b"from the stand-in")
    token = tmp_path / "token"
    token.write_text(WRITER)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": offline,
        "HF_TOKEN_PATH": str(token),
        "HF_HOME": str(tmp_path / "other"),
    }

    command = [sys.executable, "-c", PROGRAM, f"hf://{REPOSITORY}", KEY]
    pipes = {"capture_output": True, "text": True}
    done = subprocess.run(command, env=environment, check=True, timeout=400, **pipes)
    offline_text = "StoreDenied hf://acme/warm: cannot resolve 'main': HF_HUB_OFFLINE forbids"
    assert (offline_text if offline == "1" else "from the stand-in") in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("certificate", "says", "hint"),
    [
        ("good", "certificate is not accepted", "SSL_CERT_FILE"),
        ("other host", "certificate is not accepted", "HF_ENDPOINT"),
        ("", "TLS handshake failed", "HF_ENDPOINT"),
    ],
)
def test_a_tls_failure_of_the_hub_is_explained(
    tmp_path: Path, certificate: str, says: str, hint: str
):
    """The cause is named, and a retry cannot help. SSL_CERT_FILE names a private CA."""
    certificates = make_certificates(tmp_path)
    with any_answer(certificates[certificate] if certificate else None) as server:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            "HF_ENDPOINT": server.url.replace("http:", "https:"),
            "HF_HOME": str(tmp_path / "other"),
        }
        command = [sys.executable, "-c", PROGRAM, f"hf://{REPOSITORY}", KEY]
        pipes = {"capture_output": True, "text": True, "timeout": 400}
        untrusted = subprocess.run(command, env=environment, check=True, **pipes).stdout
        environment["SSL_CERT_FILE"] = str(certificates["ca"])
        trusted = subprocess.run(command, env=environment, check=True, **pipes).stdout
    said = trusted if certificate == "other host" else untrusted
    assert "StoreDenied" in said
    assert says in said
    assert hint in said
    assert ("not from a Hub" in trusted) == (certificate == "good")
