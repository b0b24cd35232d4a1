# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The Hub as a store: the contract with and without Xet, pinning, races, and what can go wrong."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
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
from serve_warm.stores import Object, open_store
from serve_warm.stores.hub import HubStore
from store_contract import KEY, StoreContract

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
    """Let everybody try again at once, as often as ever."""
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
        """What `head` found is pinned to its commit: that is what comes, whatever is new."""
        raw.write(KEY, b"first" * 1000)
        found = store.head(KEY)
        raw.write(KEY, b"other" * 1000)
        pieces: list[bytes] = []

        store.download(found, lambda _at, piece: pieces.append(bytes(piece)))

        assert b"".join(pieces) == b"first" * 1000
        with pytest.raises(StoreError, match="changed"):
            store.download(replace(found, size_bytes=4999), lambda _at, _piece: None)

    def test_download_of_what_is_gone_is_named(self, store: HubStore):
        """What was deleted is still there at its commit; a commit without it is named."""
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
    """A slash in a revision is quoted; the address comes out again, and nothing was asked."""
    store = open_store(address)

    assert store == HubStore(repository=repository, revision=revision, prefix=prefix)
    assert store.uri == address.rstrip("/")
    assert hub.requests == []


@pytest.mark.parametrize(
    "address",
    [
        "hf://warm",
        "hf://acme",
        "hf://acme/",
        "hf:///warm",
        "hf://acme/..",
        "hf://acme/a--b",
        "hf://acme/warm@",
        "hf://acme/warm@-x",
        "hf://acme/warm@a%2F..%2Fb",
        "hf://acme/warm@a%0Ab",
        "hf://acme/warm//x",
        "hf://acme/warm/../x",
        "hf://acme/warm/.cache",
        "hf://hf_secretsecret@acme/warm",
        "hf://acme/wa rm",
    ],
)
def test_what_is_no_address_is_refused(address: str):
    """A wrong address is a configuration error, in one sentence that does not repeat a user."""
    with pytest.raises(ConfigError) as caught:
        open_store(address)

    assert "hf_secret" not in str(caught.value)


def test_a_missing_client_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    """Without huggingface_hub the address says what to install."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(MissingPackage, match="hf:// needs huggingface-hub"):
        open_store("hf://acme/warm")


def test_a_folder_of_a_repository_is_a_store_of_its_own(hub: Hub, plain: None):
    """With a prefix only what is below it exists, and it is written below it."""
    for path in ("art/a", "artx/b", "README.md", "other/art/c"):
        hub.write(path, b"x")
    store = open_store(f"hf://{REPOSITORY}/art")

    store.create("s/d", b"new")

    assert store.list("") == ["a", "s/d"]
    assert (store.list("s/"), store.list("none/x")) == (["s/d"], [])
    assert hub.read("art/s/d") == store.get("s/d", max_bytes=3) == b"new"


# --- what goes over the wire -----------------------------------------------------------------


@pytest.mark.parametrize("given", [LARGE, io.BytesIO(LARGE)], ids=["bytes", "file"])
def test_large_objects_go_through_xet_or_lfs(hub: Hub, store: HubStore, transfer: str, given):
    """With Xet the storage has the bytes, without it the LFS upload; files no less than bytes."""
    store.create(KEY, given)

    uploads = [request for request in hub.requests if request.startswith("PUT /upload/")]
    assert len(uploads) == (0 if transfer == "xet" else 1)
    assert hub.read(KEY) == LARGE
    hub.requests.clear()
    assert store.get(KEY, max_bytes=len(LARGE)) == LARGE
    read = [request for request in hub.requests if request.startswith("GET /blobs/")]
    assert len(read) == (0 if transfer == "xet" else 1)


def test_nothing_is_shown_and_the_setting_is_as_before(
    store: HubStore, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """The client's progress bars stay away, and only from what the store does."""
    monkeypatch.setenv("TQDM_POSITION", "-1")  # show them also where there is no terminal

    store.create(KEY, io.BytesIO(LARGE))
    store.get(KEY, max_bytes=len(LARGE))

    assert "".join(capfd.readouterr()) == ""
    assert not huggingface_hub.utils.are_progress_bars_disabled()


def test_downloads_pass_through_a_private_folder_only(
    hub: Hub, store: HubStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What somebody has put into the shared cache is not read, and nothing is left behind."""
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


KILLED = """
import os, signal, sys
from serve_warm.stores import open_store
store = open_store(sys.argv[1])
store.download(store.head(sys.argv[2]), lambda at, piece: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_what_a_killed_download_leaves_is_swept(
    hub: Hub, plain: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A temporary copy does not stay on the disk for ever when its process was killed."""
    hub.write(KEY, LARGE)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": hub.url,
        "HF_HUB_DISABLE_XET": "1",
        "TMPDIR": str(scratch),
    }
    command = [sys.executable, "-c", KILLED, f"hf://{REPOSITORY}", KEY]
    killed = subprocess.run(command, env=environment, check=False, timeout=400)
    [left] = scratch.iterdir()
    assert sum(path.stat().st_size for path in left.rglob("*") if path.is_file()) >= len(LARGE)
    for path in left.iterdir():
        os.utime(path, (0, 0))  # as if it were long ago
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    HubStore(repository=REPOSITORY).get(KEY, max_bytes=len(LARGE))

    assert killed.returncode == -signal.SIGKILL
    assert list(scratch.iterdir()) == []


# --- one commit ------------------------------------------------------------------------------


def test_everything_is_read_at_one_commit(
    hub: Hub, store: HubStore, caplog: pytest.LogCaptureFixture
):
    """What others commit after a list is not seen until the next one, nor in a part of it."""
    hub.write(KEY, b"old")
    commit = hub.branches["main"]
    caplog.set_level(logging.INFO, "serve_warm")
    store.list("")

    hub.write(KEY, b"newer")
    hub.write("more", b"x")

    assert (store.get(KEY, max_bytes=9), store.head(KEY).size_bytes) == (b"old", 3)
    assert store.head(KEY).version == commit
    assert (store.list(""), store.get(KEY, max_bytes=9)) == ([KEY, "more"], b"newer")
    assert store.list("more") == ["more"]
    for one in (commit, hub.branches["main"]):
        assert caplog.text.count(f"repo={REPOSITORY} revision=main commit={one}") == 1
    assert open_store(store.uri).get(KEY, max_bytes=9) == b"newer"


def test_a_list_does_not_go_back_behind_a_write(hub: Hub, plain: None):
    """A list that was resolved before a write of another thread does not hide what it wrote."""
    store = HubStore(repository=REPOSITORY)
    store.list("")
    commit, writer = hub.branches["main"], HubStore(repository=REPOSITORY, _pin=store._pin)
    # The answer was made before the write and comes after it.
    hub.faults = [
        Fault(
            request="/revision/main",
            status=200,
            headers={"Content-Type": "application/json"},
            data=json.dumps({"id": REPOSITORY, "sha": commit}).encode(),
            then=lambda: writer.create(KEY, b"ours"),
            times=1,
        )
    ]

    keys = store.list("")

    assert (keys, store.get(KEY, max_bytes=9)) == ([KEY], b"ours")


def test_a_time_that_the_hub_does_not_tell_is_now(hub: Hub, store: HubStore):
    """What may be new is not taken for old, or a prune would remove what is being published."""
    hub.change(KEY, File(data=b"x", size=1, date=""))

    assert abs(store.head(KEY).modified_unix - time.time()) < 3600


def test_writing_moves_the_commit_on(hub: Hub, store: HubStore):
    """A store reads what it has written, and what it was written on top of."""
    store.list("")
    hub.write("more", b"x")

    store.create(KEY, b"ours")

    assert store.list("") == [KEY, "more"]
    assert store.head(KEY).version == hub.branches["main"]


def test_a_commit_in_the_address_is_used_as_it_is(hub: Hub, plain: None):
    """It is never resolved, so that no answer of the Hub can replace it."""
    hub.write(KEY, b"old")
    pinned = open_store(f"hf://{REPOSITORY}@{hub.branches['main']}")
    hub.write(KEY, b"new")

    data = pinned.get(KEY, max_bytes=9)

    assert (data, pinned.list("")) == (b"old", [KEY])
    assert [request for request in hub.requests if "/revision/" in request] == []


def test_a_commit_in_the_address_cannot_be_written_to(hub: Hub, plain: None):
    """The error says that a branch is needed, and nothing is sent."""
    pinned = open_store(f"hf://{REPOSITORY}@{hub.branches['main']}")

    with pytest.raises(StoreError, match="a commit never changes"):
        pinned.create(KEY, b"x")
    with pytest.raises(StoreError, match="a commit never changes"):
        pinned.delete(KEY)

    assert hub.requests == []


def test_an_answer_for_another_commit_is_refused(hub: Hub, store: HubStore):
    """A proxy or a Hub that answers with another state than asked for is not believed."""
    hub.write(KEY, b"x")
    found = store.head(KEY)
    hub.faults = [Fault(request="/resolve/", headers={"X-Repo-Commit": "0" * 40})]

    with pytest.raises(StoreError, match="was answered for '0000"):
        store.get(KEY, max_bytes=9)
    with pytest.raises(StoreError, match="was answered for '0000"):
        store.download(found, lambda _at, _piece: None)


def test_a_version_that_is_no_commit_is_refused(hub: Hub, store: HubStore):
    """The Hub is never asked for a branch under the name of a version."""
    hub.write(KEY, b"x")

    with pytest.raises(StoreError, match="no commit: 'main'"):
        store.download(
            Object(key=KEY, size_bytes=1, modified_unix=0.0, version="main"), lambda _a, _p: None
        )


def test_names_that_are_no_keys_are_not_listed(hub: Hub, store: HubStore):
    """Hostile and hidden names of a repository are as if they were not there; pages go on."""
    hub.page = 2
    for path in ("a/../../b", "a//b", "a/.hidden", "a\\b", "a/new\nline", "/etc/x", "a/b", "a/c"):
        hub.change(path, File(data=b"x", size=1))

    assert store.list("") == ["a/b", "a/c"]


# --- writers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [False, True])
def test_of_racing_stores_one_wins(hub: Hub, transfer: str, large: bool):
    """Stores that know nothing of each other leave one whole object of one of them."""
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


def test_racing_stores_that_write_different_keys_all_succeed(hub: Hub, plain: None):
    """A commit that came too late for its parent is made again on the new one."""
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        store = HubStore(repository=REPOSITORY)
        barrier.wait()
        store.create(f"s/{number}", b"x")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))

    commits = [request for request in hub.requests if "/commit/" in request]
    assert open_store(f"hf://{REPOSITORY}").list("") == [f"s/{number}" for number in range(8)]
    assert len(commits) > 8


@pytest.mark.parametrize("status", [409, 412])
def test_a_writer_that_is_always_too_late_gives_up(
    hub: Hub, store: HubStore, no_waiting: None, status: int
):
    """The tries are bounded, and the bytes are uploaded once for all of them."""
    hub.faults = [Fault(request="/commit/main", status=status)]

    with pytest.raises(StoreError, match="other commits to the branch came first"):
        store.create(KEY, LARGE)

    assert len([request for request in hub.requests if "/commit/" in request]) == 20
    assert len([request for request in hub.requests if "/preupload/" in request]) == 1


def test_a_writer_that_is_late_once_finds_the_object_of_the_other(hub: Hub, store: HubStore):
    """After a conflict all is decided again: what is there now is not overwritten."""
    theirs = Fault(request="/preupload/", then=lambda: hub.write(KEY, b"theirs"), times=1)
    hub.faults = [theirs]

    with pytest.raises(ObjectExists):
        store.create(KEY, b"ours")

    assert hub.read(KEY) == b"theirs"


@pytest.mark.parametrize(("first", "second"), [("a", "a/b"), ("a/b", "a"), ("a/b", "a/b/c/d")])
def test_a_file_does_not_give_way_to_a_folder(hub: Hub, store: HubStore, first: str, second: str):
    """A commit could replace the one by the other; write-once holds for that too."""
    store.create(first, b"mine")

    with pytest.raises(ObjectExists):
        store.create(second, b"other")

    assert hub.read(first) == b"mine"


def test_an_object_that_the_hub_leaves_out_is_an_error(hub: Hub, store: HubStore):
    """A .gitignore makes the Hub take the commit and not the file: that is no success."""
    hub.ignored = "blobs/"

    with pytest.raises(StoreError, match="without the object") as caught:
        store.create(KEY, b"x")

    assert ".gitignore" in caught.value.hint


# --- what can go wrong -------------------------------------------------------------------------

OPERATIONS = {
    "list": lambda store, found: store.list(""),
    "head": lambda store, found: store.head(KEY),
    "get": lambda store, found: store.get(KEY, max_bytes=len(LARGE)),
    "download": lambda store, found: store.download(found, lambda _at, _piece: None),
    "create": lambda store, found: store.create("new", LARGE),
    "delete": lambda store, found: store.delete(KEY),
}
HUB_REFUSES = {"X-Error-Message": f"no: hf_secretsecret https://h/x?{SIGNATURE}"}
FAULTS = {
    "500": (Fault(request=".", status=500, headers=HUB_REFUSES), StoreError, "HTTP 500"),
    "429": (
        Fault(request=".", status=429, headers={"Retry-After": "0"}),
        StoreError,
        "HTTP 429",
    ),
    "401": (
        Fault(
            request=".",
            status=401,
            headers={"X-Error-Message": "Invalid credentials in Authorization header"},
        ),
        StoreDenied,
        "HTTP 401",
    ),
    "403": (Fault(request=".", status=403, headers=HUB_REFUSES), StoreDenied, "HTTP 403"),
    "404 repository": (
        Fault(request=".", status=404, headers={"X-Error-Code": "RepoNotFound"}),
        StoreDenied,
        "no such repository, or this account may not see it",
    ),
    "404 revision": (
        Fault(request=".", status=404, headers={"X-Error-Code": "RevisionNotFound"}),
        StoreDenied,
        "no revision 'main'",
    ),
    "gated": (
        Fault(request=".", status=403, headers={"X-Error-Code": "GatedRepo"}),
        StoreDenied,
        "gated",
    ),
    "hang": (Fault(request=".", body="hang"), StoreError, "nothing heard from the Hub for 1 s"),
    "no Hub": (Fault(request=".", status=200), StoreError, "hf://acme/warm: "),
    "not JSON": (
        Fault(request=".", status=200, headers={"Content-Length": "1"}),
        StoreError,
        "hf://acme/warm: ",
    ),
}


@pytest.fixture
def check(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> Callable[[BaseException], None]:
    """Return what fails if a secret is in anything that is logged, or could be, of an error."""
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


@pytest.mark.usefixtures("plain", "no_waiting")
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_failure_is_one_clear_line(
    hub: Hub,
    check: Callable[[BaseException], None],
    operation: str,
    fault: str,
):
    """Whatever the Hub does, the error has our type, one line, and no credential anywhere."""
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
@pytest.mark.parametrize("body", ["reset", "truncate"])
@pytest.mark.parametrize("large", [False, True])
def test_a_body_that_always_ends_early_is_an_error(
    hub: Hub,
    check: Callable[[BaseException], None],
    body: str,
    large: bool,
):
    """A part of an object is never taken for the object."""
    hub.write(KEY, LARGE if large else b"0123456789")
    store = HubStore(repository=REPOSITORY, silence_s=20)
    hub.faults = [Fault(request="GET /(blobs|.*/resolve/)", body=body)]

    with pytest.raises(StoreError, match="cannot read 'blobs/sha256/00ff'") as caught:
        store.get(KEY, max_bytes=len(LARGE))

    check(caught.value)


def test_a_body_that_ends_early_once_is_resumed(hub: Hub, plain: None, no_waiting: None):
    """A connection that is closed too soon costs the rest of the object, not the pull."""
    hub.write(KEY, LARGE)
    hub.faults = [Fault(request="GET /blobs", body="truncate", times=1)]

    data = HubStore(repository=REPOSITORY).get(KEY, max_bytes=len(LARGE))

    assert data == LARGE


def test_a_body_without_an_end_does_not_fill_the_disk(hub: Hub, plain: None):
    """What is longer than announced is given up as soon as it is."""
    hub.write(KEY, b"0123456789")
    hub.faults = [Fault(request="GET .*/resolve/", body="endless")]

    with pytest.raises(StoreError, match="more bytes came than the Hub had announced"):
        HubStore(repository=REPOSITORY).get(KEY, max_bytes=100)


@pytest.mark.usefixtures("plain", "no_waiting")
@pytest.mark.parametrize("request_", ["PUT /upload", "POST /verify", "/objects/batch", "/commit/"])
@pytest.mark.parametrize("status", [403, 500])
def test_an_upload_that_fails_leaves_nothing_and_can_be_repeated(
    hub: Hub,
    check: Callable[[BaseException], None],
    request_: str,
    status: int,
):
    """At whatever step it failed: there is no object, and the same call succeeds later."""
    store = HubStore(repository=REPOSITORY, silence_s=20)
    hub.faults = [Fault(request=request_, status=status, headers=HUB_REFUSES)]

    with pytest.raises(StoreError, match=f"HTTP {status}") as caught:
        store.create(KEY, LARGE)

    assert isinstance(caught.value, StoreDenied) == (status == 403)
    check(caught.value)
    hub.faults = []
    assert store.list("") == []
    store.create(KEY, LARGE)
    assert hub.read(KEY) == LARGE


def test_a_commit_whose_answer_was_lost_is_found_by_the_next_try(hub: Hub, plain: None):
    """The Hub may have taken what it did not confirm; repeating it is success."""
    store = HubStore(repository=REPOSITORY, silence_s=20)
    hub.faults = [Fault(request="/commit/", status=500, then=lambda: hub.write(KEY, b"x"), times=1)]

    with pytest.raises(StoreError, match="HTTP 500"):
        store.create(KEY, b"x")
    store.create(KEY, b"x")

    assert store.get(KEY, max_bytes=1) == b"x"


@pytest.mark.parametrize(
    "case",
    [
        ("hf_readerreader", "public", "reads", "HTTP 403"),
        ("", "public", "reads", "HTTP 401"),
        ("", "private", "", "no such repository, or this account may not see it"),
        ("hf_strangerxx", "public", "", "HTTP 401"),
    ],
)
def test_credentials_are_those_of_the_client(
    hub: Hub, store: HubStore, monkeypatch: pytest.MonkeyPatch, case: tuple[str, str, str, str]
):
    """HF_TOKEN decides what may be read and written; the error says where tokens come from."""
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
    """Nothing listening is said in one line."""
    hub.server.server_close()
    hub.server.shutdown()

    with pytest.raises(StoreError, match="cannot resolve 'main': ConnectError"):
        HubStore(repository=REPOSITORY, silence_s=10).list("")


class Surprise(BaseException):
    """What no client of the Hub should raise, and is no Exception besides."""


@pytest.mark.parametrize("kind", [Surprise, AssertionError, SystemExit])
def test_whatever_the_client_raises_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
    check: Callable[[BaseException], None],
    kind: type[BaseException],
):
    """An error that nobody thought of ends the call in our words, and is printed by no thread."""
    printed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", printed.append)

    def surprise(*_: object, **__: object) -> None:
        raise kind(f"GET https://h/x?{SIGNATURE} with Authorization: Bearer {WRITER}")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", surprise)

    with pytest.raises(StoreError, match=f"cannot resolve 'main': {kind.__name__}") as caught:
        HubStore(repository=REPOSITORY).list("")

    check(caught.value)
    for thread in threading.enumerate():
        if thread.name == "serve_warm-hub":
            thread.join(30)
    assert printed == []


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
    """HF_ENDPOINT, HF_TOKEN_PATH and HF_HUB_OFFLINE mean what they mean to the client."""
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

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"hf://{REPOSITORY}", KEY],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=400,
    )

    offline_text = "StoreDenied hf://acme/warm: cannot resolve 'main': HF_HUB_OFFLINE forbids"
    assert (offline_text if offline == "1" else "from the stand-in") in done.stdout
    assert "Traceback" not in done.stderr
