# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A store of another package: whatever it raises or returns is an error of the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from artifacts import APPLICATION, DEPLOYMENT, MemoryStore
from serve_warm.errors import ObjectNotFound, StoreError
from serve_warm.stores import Listed, Object, Page, Store, list_keys
from serve_warm.stores.installed import InstalledStore
from transfers import publish, pull_here

SECRET = "hunter2hunter2"
FOUND = Object(key="blobs/a", size_bytes=1, modified_unix=0.0, version="")


class Broken(MemoryStore):
    """Each method raises or returns what a test wants."""

    answer: Any = None

    def _answer(self, *_: Any, **__: Any) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    pages = head = get = download = create = delete = _answer


ASKS: dict[str, Callable[[Store], object]] = {
    "pages": lambda store: list_keys(store, ""),
    "head": lambda store: store.head("blobs/a"),
    "get": lambda store: store.get("blobs/a", max_bytes=9),
    "download": lambda store: store.download(FOUND, lambda _at, _piece: None),
    "create": lambda store: store.create("blobs/a", b"1"),
    "delete": lambda store: store.delete("blobs/a"),
}


def installed(store: Store) -> InstalledStore:
    return InstalledStore(store=store, package="other:Store", uri="other://x")


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize(
    "error",
    [KeyError("x"), OSError(5, "disk"), RecursionError(), AssertionError(f"password={SECRET}")],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_is_an_error_of_the_store(ask: str, error: Exception):
    broken = Broken()
    broken.answer = error
    with pytest.raises(StoreError, match=f"other:Store failed: {type(error).__name__}") as caught:
        ASKS[ask](installed(broken))
    assert "report it" in caught.value.hint
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__cause__)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("ask", ["pages", "head", "get"])
@pytest.mark.parametrize("answer", [None, 7, "text", [7], [None], {"key": 1}], ids=repr)
def test_a_wrong_type_is_an_error_of_the_store(ask: str, answer: object):
    broken = Broken()
    broken.answer = answer
    with pytest.raises(StoreError, match="other:Store failed: TypeError"):
        ASKS[ask](installed(broken))


def test_errors_of_serve_warm_and_interrupts_stay():
    broken = Broken()
    for error in (ObjectNotFound("blobs/a", store="x"), KeyboardInterrupt()):
        broken.answer = error
        with pytest.raises(type(error)) as caught:
            installed(broken).head("blobs/a")
        assert caught.value is error


def test_an_exception_of_the_sink_stays():
    """A full disk is not the fault of the store."""
    store = MemoryStore(objects={"blobs/a": b"1"})
    full = OSError(28, "No space left on device")

    def sink(_at: int, _piece: bytes | memoryview) -> None:
        raise full

    with pytest.raises(OSError, match="No space") as caught:
        installed(store).download(FOUND, sink)
    assert caught.value is full


def test_a_pull_through_a_good_store_finds_its_artifact():
    store = MemoryStore()
    good, _ = publish(store)
    assert pull_here(installed(store)).chosen.key == good


def test_one_statement_that_breaks_the_store_does_not_fail_a_pull():
    class Partly(MemoryStore):
        def get(self, key: str, *, max_bytes: int) -> bytes:
            if key.endswith("/bad.dsse.json"):
                raise ZeroDivisionError
            return super().get(key, max_bytes=max_bytes)

    store = Partly()
    good, _ = publish(store)
    store.objects[f"statements/{APPLICATION}/{DEPLOYMENT}/bad.dsse.json"] = b""
    pulled = pull_here(installed(store))
    assert pulled.chosen.key == good
    assert [each.reason for each in pulled.chosen.trace] == ["fits", "unreadable"]


def test_a_page_still_says_how_many_objects_it_leaves_out():
    """They count towards the limit of a listing."""
    broken = Broken()
    broken.answer = [Page([Listed(key="a", modified_unix=None)], left_out=7)]
    (page,) = installed(broken).pages("")
    assert isinstance(page, Page)
    assert ([each.key for each in page], page.left_out) == (["a"], 7)
