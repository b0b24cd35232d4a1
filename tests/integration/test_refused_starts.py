# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray: starts with bad inputs or settings fail, and Serve's status has cause and fix."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

from integration import apps as shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import App, Cluster

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def refused(cluster: Cluster) -> Iterator[dict[str, App]]:
    """One application for each problem that stops every start. All start at once."""
    started = cluster.start(
        {
            "unknown setting": shapes.Embedder.options(
                user_config={"warmup": {"on_missin": "fail"}}
            ).bind((1, 2)),
            "undeclared": shapes.Undeclared.bind(),
            "too early": shapes.TooEarly.bind(),
            "wrong body": shapes.Routes.bind({"value": 1.0}),
            "bad inputs": shapes.BadInputs.bind(),
        }
    )
    yield started
    cluster.delete(started)


def test_bad_inputs_fail_the_start_with_a_sentence_and_its_fix(refused):
    """Serve's own status names the problem and its fix."""
    message = refused["bad inputs"].failed()

    assert "input 'broken' raised ValueError: the weights are missing" in message
    assert "if the input is wrong, fix warmup_inputs()" in message


def test_a_class_without_inputs_fails_with_an_example(refused):
    """Nothing declared is nothing proven: the text shows what to define."""
    message = refused["undeclared"].failed()

    assert "Undeclared declares no inputs" in message
    assert "return shape_grid(self.embed, self.buckets)" in message


def test_an_input_that_is_answered_with_an_error_fails_the_start(refused):
    """HTTP 422 of a route is an input that traffic could not send: the answer is in the text."""
    message = refused["wrong body"].failed()

    assert "was answered with 422" in message
    assert "Field required" in message
    assert "in warmup_inputs()" in message


def test_routes_cannot_be_replayed_inside_init(refused):
    """Serve starts the app after `__init__`: the text says so, and who comes at the right time."""
    if not inspect.iscoroutinefunction(shapes.TooEarly.func_or_class.__init__):
        pytest.skip("this Ray does not await the constructor of an ingress (2.53)")
    message = refused["too early"].failed()

    assert "input 'GET /embed' is an HTTP route, which cannot be called during __init__" in message
    assert "the app starts only after __init__" in message
    assert "do not start the warm-up in __init__" in message


def test_an_unknown_setting_fails_the_start(refused):
    """A misspelt key of `user_config.warmup` is named, with the keys that there are."""
    message = refused["unknown setting"].failed()

    assert "user_config.warmup.on_missin: Extra inputs are not permitted" in message
    assert "on_missing" in message
