# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Listings without an end: a pull that was given up asks no further, and a command ends."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from artifacts import PLACE, MemoryStore, fingerprint, trusting
from conftest import wait_until
from serve_warm import stores
from serve_warm._daemon_threads import begin
from serve_warm.artifact.catalog import describe
from serve_warm.artifact.pruning import prune
from serve_warm.artifact.pull import explain, find_fitting
from serve_warm.artifact.reading_order import MAX_KEYS
from serve_warm.errors import StoreError
from serve_warm.stores import Listed, Store, list_keys, open_store
from serve_warm.stores.object_store import ObjectStore
from store_answers import Answer, AnyAnswer, any_answer, bucket_environment, endless_pages, listing
from transfers import KEY

LONG_S = 60.0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AnyAnswer]:
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")) or "PROXY" in name.upper():
            monkeypatch.delenv(name)
    with any_answer() as running:
        for name, value in bucket_environment(running.url, tmp_path).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        running.choose = endless_pages(running)
        yield running
    huggingface_hub.close_session()


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "hf"])
def test_a_pull_that_is_given_up_asks_no_further(server: AnyAnswer, scheme: str):
    """The deadline of a start ends its requests too, not only the waiting for them."""
    given_up = threading.Event()
    asked = {"trust": trusting(KEY), "fingerprint": fingerprint(), "place": PLACE}
    store = open_store(f"{scheme}://bucket/pre")
    pulling: Future[Any] = begin(
        lambda: find_fitting(store, given_up=given_up, **asked), name="pull"
    )
    wait_until("the store is asked for page after page", lambda: len(server.requests) > 5)

    given_up.set()

    with pytest.raises(StoreError, match="was cancelled"):
        pulling.result(LONG_S)
    wait_until("no listing runs", lambda: not _listing_threads())
    count = len(server.requests)
    time.sleep(1.0)
    assert len(server.requests) == count


def _listing_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "serve_warm-list"]


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_bucket_that_sends_no_object_is_an_error(server: AnyAnswer, scheme: str):
    store = open_store(f"{scheme}://bucket/pre")
    assert isinstance(store, ObjectStore)
    with pytest.raises(StoreError, match=r"the server sent no object for \d+ s") as caught:
        list_keys(dataclasses.replace(store, timeout_s=0.2), "")
    assert "empty pages" in caught.value.hint
    wait_until("no listing runs", lambda: not _listing_threads())


def test_objects_that_are_left_out_count_towards_the_limit(server: AnyAnswer):
    """Names that serve_warm never writes cannot make a start list for minutes."""
    server.choose = full_pages("pre/statements/app/deployment/", ".x")
    store = open_store("s3://bucket/pre")

    found = find_fitting(store, place=PLACE, trust=trusting(KEY), fingerprint=None)

    assert not found.is_complete
    assert len(server.requests) == MAX_KEYS / 1000


def test_a_listing_by_name_ends_behind_the_name(server: AnyAnswer):
    server.choose = full_pages("pre/statements/", "b")
    assert list_keys(open_store("s3://bucket/pre"), "statements/a") == []
    assert len(server.requests) == 1


def full_pages(folder: str, name: str) -> Callable[[str, str], Answer | None]:
    """Return the answers of a server whose listings have no end, and a thousand objects a page."""
    numbers = itertools.count()

    def choose(_method: str, _path: str) -> Answer:
        entry = "<LastModified>2026-01-01T00:00:00Z</LastModified><Size>1</Size><ETag>x</ETag>"
        keys = [f"{folder}{name}{next(numbers):09}" for _ in range(1000)]
        entries = "".join(f"<Contents><Key>{key}</Key>{entry}</Contents>" for key in keys)
        head = "<Name>bucket</Name><IsTruncated>true</IsTruncated>"
        head += "<NextContinuationToken>more</NextContinuationToken>"
        body = f'<?xml version="1.0"?><ListBucketResult>{head}{entries}</ListBucketResult>'
        return Answer(name="full", status=200, body=body.encode(), says=(), hints=None)

    return choose


EXITS = """
import os, sys
from serve_warm.stores import open_store
import asyncio, obstore.store, serve_warm.stores.object_store

pids = []
for number in range(20):
    if not (pid := os.fork()):
        pages = open_store("s3://bucket/pre").pages("")
        while not next(pages):
            pass
        sys.exit()
    pids.append(pid)
sys.exit(any([os.waitpid(pid, 0)[1] for pid in pids]))
"""


@pytest.mark.long
def test_a_process_that_exits_after_a_listing_ends_normally(server: AnyAnswer):
    """A thread of obstore that used Python after its end would abort the process."""
    server.choose = lambda _method, _path: None
    server.answer = dataclasses.replace(server.answer, body=listing())
    command = [sys.executable, "-c", EXITS]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


COMMANDS: dict[str, Callable[[Store], object]] = {
    "list_keys": lambda store: list_keys(store, ""),
    "describe": lambda store: describe(store, trusting(KEY)),
    "prune": prune,
    "explain": lambda store: explain(store, fingerprint=fingerprint(), trust=trusting(KEY)),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("is_full", [True, False])
def test_a_command_ends_beside_an_endless_listing(
    name: str, is_full: bool, monkeypatch: pytest.MonkeyPatch
):
    """A command never works with a part of a listing: pruning would remove blobs in use."""
    monkeypatch.setattr(stores, "MAX_LISTED_KEYS", 5000)

    class Endless(MemoryStore):
        def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
            page = [Listed(key=f"{prefix}{number}") for number in range(100)]
            while True:
                yield page if is_full else []

    store = Endless()
    with pytest.raises(StoreError, match="does not end") as caught:
        COMMANDS[name](store)
    assert caught.value.hint
    assert store.deleted == []
