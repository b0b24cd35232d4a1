# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Classes of deployments that name no serve_warm."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from serve_warm.config import WarmupConfig
from serve_warm.replica.serve.wrapped import wrap_function


def answer(request: str) -> str:
    return request


async def answer_later(request: str) -> str:
    return request


def stream(request: str, *, size: int = 1) -> Iterator[str]:
    yield request * size


async def stream_later(request: str) -> AsyncIterator[str]:
    yield request


def answer_any(_: str) -> str:
    return ""


def answer_nothing() -> str:
    return ""


@pytest.mark.parametrize(
    "function", [answer, answer_later, stream, stream_later, answer_any, answer_nothing]
)
def test_serve_sees_the_parameters_of_a_function(function: Any):
    """Serve passes a request to a handler only if the signature has a parameter."""
    wrapped = wrap_function(function, WarmupConfig())()

    assert inspect.signature(wrapped.__call__) == inspect.signature(function)
