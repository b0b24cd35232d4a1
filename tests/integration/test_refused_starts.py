# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray: starts with bad inputs or settings fail, and Serve's status has cause and fix."""

from __future__ import annotations

import inspect
import re
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


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (
            "bad inputs",
            (
                "input 'broken' raised ValueError: the weights are missing",
                "if the input is wrong, fix warmup_inputs()",
            ),
        ),
        (
            "undeclared",  # the text shows what to define
            (
                "Undeclared declares no inputs",
                "return shape_grid(self.embed, self.buckets)",
            ),
        ),
        (
            "wrong body",  # an input that traffic could not send
            ("was answered with 422", "Field required", "in warmup_inputs()"),
        ),
        (
            "too early",
            (
                "input 'GET /embed' is an HTTP route, which cannot be called during __init__",
                "the app starts only after __init__",
                "do not start the warm-up in __init__",
            ),
        ),
        (
            "unknown setting",
            ("user_config.warmup.on_missin is not a setting", "on_missing"),
        ),
    ],
)
def test_a_start_fails_with_a_sentence_and_its_fix(
    refused: dict[str, App], problem: str, said: tuple[str, ...]
):
    """Serve's own status names the problem and its fix."""
    if problem == "too early" and not inspect.iscoroutinefunction(
        shapes.TooEarly.func_or_class.__init__
    ):
        pytest.skip("this Ray does not await the constructor of an ingress (2.53)")
    message = refused[problem].failed()

    assert [text for text in said if text not in message] == []
    if problem == "unknown setting":
        return  # which no replica sees, so there is no log
    # The first text is the reason, which ends what is ours in each of Serve's tries.
    ours = message.partition("the replica did not become ready\n")[2].strip().splitlines()
    assert said[0] in ours[-1]
    assert re.match(r"traceback: /.*\.log$", ours[0])
    assert len(ours) <= 20
