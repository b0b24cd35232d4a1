# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The pause of garbage collection, which several threads share."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from serve_warm._garbage_collection import NO_COLLECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_collections_come_back_when_the_last_block_ends(thresholds: tuple[int, int, int]):
    """The first block may end while others are still open."""
    first, second = ExitStack(), ExitStack()
    first.enter_context(NO_COLLECTIONS)
    second.enter_context(NO_COLLECTIONS)

    first.close()
    between = gc.get_threshold()[0]
    first.close()  # as a seat that gave up, and whose import ends later
    second.close()

    assert (between, gc.get_threshold()) == (0, thresholds)


def test_the_thresholds_of_an_app_stay():
    """An app may set them while serve_warm loads its entries."""
    with NO_COLLECTIONS:
        gc.set_threshold(5000, 20, 30)

    assert gc.get_threshold() == (5000, 20, 30)
