# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`after_ready: eager`: a call without compiled code is answered at once, eagerly, and counted."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import torch
from test_update import Net, Replica, Swapping, make_fixture  # noqa: F401

from serve_warm import Input


def eager_calls(replica: Replica) -> list[dict[str, Any]]:
    return replica.report["eager_calls"]


def test_an_unforeseen_call_runs_eagerly_and_is_counted(make, caplog):
    """Nobody waits for a compile. The next declared call is compiled code, as before."""
    replica = make(after_ready="eager")

    async def serving() -> None:
        await replica.start()
        for _ in range(3):
            assert len(await replica.quiet_request(7)) == 21
        assert len(await replica.quiet_request(5)) == 15

    with caplog.at_level(logging.WARNING):
        asyncio.run(serving())

    (seen,) = eager_calls(replica)
    assert (seen["reason"], seen["calls"]) == ("unforeseen", 3)
    assert "[7, 4]" in seen["call"]
    assert "size mismatch" in seen["why"]
    assert seen["declare"].startswith("Input(")
    lines = [record.message for record in caplog.records if "eager_call" in record.message]
    assert len(lines) == 1, "one line for each new kind of call, never one for each call"


def test_code_beyond_the_recompile_limit_is_counted_too(make):
    """Torch would run it eagerly in silence."""
    replica = make(Many, after_ready="eager", on_unproven="serve")

    async def serving() -> None:
        await replica.start()
        await replica.quiet_request(99)

    asyncio.run(serving())
    assert [(seen["reason"], seen["calls"]) for seen in eager_calls(replica)] == [("unforeseen", 1)]


class Many(Swapping):
    """Declares more sizes than torch compiles."""

    def swap(self, config: dict[str, Any]) -> None:
        self.model = torch.compile(
            Unlike(config["width"], 2.0).eval(), backend="eager", dynamic=False
        )

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.score, args=(batch,)) for batch in range(2, 13)]


class Unlike(Net):
    """Has code of its own, because torch gives it up."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) - self.scale


@pytest.mark.parametrize("arguments", [{"fullgraph": True}, {"dynamic": True}, {}])
def test_the_answer_is_that_of_the_uncompiled_code(make, arguments):
    class Compiled(Swapping):
        def swap(self, config: dict[str, Any]) -> None:
            torch.manual_seed(0)
            self.plain = Net(config["width"], 2.0).eval()
            self.model = torch.compile(self.plain, backend="eager", **arguments)

    replica = make(Compiled, after_ready="eager")

    async def serving() -> Any:
        await replica.start()
        return await replica.quiet_request(1)

    answer = asyncio.run(serving())
    with torch.inference_mode():
        assert answer == replica.instance.plain(torch.ones(1, 4)).flatten().tolist()
