# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Kinds of applications that may be reported as ready while the next request still compiles."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from compiled import compiled, double
from serve_warm import Input, warmup
from serve_warm.compiler.watch import watch_process


def row(value: float) -> torch.Tensor:
    """Return a tensor of the one shape that all requests have."""
    return torch.full((4,), float(value))


class Plain:
    """The control: its handler calls the model."""

    def __init__(self) -> None:
        self.model: Callable[..., Any] = compiled(double)

    async def handle(self, value: int) -> Any:
        return self.model(row(value))

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.handle, args=(4,))]

    def after_ready(self) -> None:
        """Do the application's own work between READY and the first request."""


class NoCall(Plain):
    """The declared input goes to a method that calls no model."""

    async def health(self) -> str:
        return "ok"

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.health)]


class Background(Plain):
    """A thread of `__init__` later replaces the eager model with a compiled model."""

    def __init__(self) -> None:
        self.model = double
        self.go = threading.Event()
        self.thread = threading.Thread(target=self.replace)
        self.thread.start()

    def replace(self) -> None:
        self.go.wait()
        self.model = compiled(double)

    def after_ready(self) -> None:
        self.go.set()
        self.thread.join()


class BackgroundCompile(Plain):
    """A thread of `__init__` compiles the model, but only after the declared input was called."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.thread = threading.Thread(target=self.compile)
        self.thread.start()

    def compile(self) -> None:
        self.go.wait()
        self.model(row(4))

    async def handle(self, value: int) -> Any:
        return self.model(row(value)) if self.go.is_set() else double(row(value))

    def after_ready(self) -> None:
        self.go.set()
        self.thread.join()


class Pooled(Plain):
    """The handler runs the model in a thread of a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = ThreadPoolExecutor(max_workers=1)

    async def handle(self, value: int) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, self.model, row(value))


class Forgotten(Plain):
    """The handler answers at once, and a thread runs the model later."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.threads: list[threading.Thread] = []

    async def handle(self, value: int) -> Any:
        thread = threading.Thread(target=self.run, args=(value,))
        self.threads.append(thread)
        thread.start()

    def run(self, value: int) -> None:
        self.go.wait()
        self.model(row(value))

    def after_ready(self) -> None:
        self.go.set()
        for thread in self.threads:
            thread.join()


class Swallowing(Plain):
    """The handler catches the model's exception, and answers with an error."""

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.handle, args=("four",))]

    async def handle(self, value: Any) -> Any:
        try:
            return self.model(row(value))
        except Exception:  # noqa: BLE001 - as applications do
            return "error"


class SwallowingAll(Plain):
    """The handler answers with eager's numbers if the compiled model raises."""

    async def handle(self, value: int) -> Any:
        try:
            return self.model(row(value))
        except BaseException:  # noqa: BLE001 - as applications do
            return double(row(value))


class Guarded(Plain):
    """The handler rejects the declared input before it reaches the model."""

    async def handle(self, value: int) -> Any:
        if value > 3:
            return "too long"
        return self.model(row(value))

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.handle, args=(4,))]


class Memoised(Plain):
    """The handler answers the declared input from stored answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[int, Any] = {4: double(row(4))}

    async def handle(self, value: int) -> Any:
        if value not in self.answers:
            self.answers[value] = self.model(row(value))
        return self.answers[value]


class Remembered(Plain):
    """The handler stores answers with functools."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = functools.cache(lambda value: self.model(row(value)))

    async def handle(self, value: int) -> Any:
        return self.answer(value)


class OneOfTwo(Plain):
    """A second model is behind a condition that the declared input does not meet."""

    def __init__(self) -> None:
        super().__init__()
        self.other = compiled(double)

    async def handle(self, value: int) -> Any:
        return (self.model if value == 4 else self.other)(row(value))


class Lazy(Plain):
    """The first request that differs from the declared input compiles the model."""

    def __init__(self) -> None:
        self.model = double

    async def handle(self, value: int) -> Any:
        if value != 4 and self.model is double:
            self.model = compiled(double)
        return self.model(row(value))


SHAPES: dict[str, tuple[type, int]] = {
    "the model is called": (Plain, 4),
    "no call reaches the model": (NoCall, 4),
    "a thread of __init__ replaces the model": (Background, 4),
    "a thread of __init__ compiles": (BackgroundCompile, 4),
    "the model runs in a pool": (Pooled, 4),
    "the answer does not wait for the model": (Forgotten, 4),
    "the handler swallows the model's error": (Swallowing, 4),
    "the handler swallows everything": (SwallowingAll, 4),
    "a guard clause": (Guarded, 3),
    "memoised answers": (Memoised, 5),
    "memoised by functools": (Remembered, 5),
    "one of two models": (OneOfTwo, 5),
    "compiled by a request": (Lazy, 5),
}
"""An application, and its first request. The declared input is 4 if the handler gets a value."""


NOT_DECLARED = ("one of two models",)
"""Applications whose first request calls a compiled callable that no declared input calls."""

NOTHING = "this process has no compiled code"
"""Part of the warning for an application without compiled code."""


def judge(shape: str) -> dict[str, Any]:
    """Warm up one application, and make its first request."""
    kind, value = SHAPES[shape]
    instance: Any = warmup(on_uncovered="serve")(kind)()
    try:
        report = asyncio.run(instance.warm_up())
    except Exception as error:  # noqa: BLE001 - why it is not ready
        instance.after_ready()
        return {"shape": shape, "ready": "false", "reason": str(error).splitlines()[0]}
    watch = watch_process()
    before = watch.counts()
    instance.after_ready()
    asyncio.run(instance.handle(value))
    compiles = (watch.counts() - before).compiles
    covered = report["covered"]
    seen = instance.warmup_report()["after_ready"]["compiles"]
    reasons = [
        f"{covered['proven']} of {covered['expected']} inputs proven",
        f"{compiles} compiles from then to the first answer, {seen} of them counted after ready",
        *report["degraded"],
        *report["warnings"],
    ]
    ready = next(
        (
            name
            for name, holds in (
                ("degraded", report["degraded"]),
                ("nothing to prove", covered["expected"] and NOTHING in str(report["warnings"])),
                # Code that no declared input calls cannot be proven, and the report does not claim
                # it.
                ("not declared", shape in NOT_DECLARED and compiles == seen),
            )
            if holds
        ),
        "true",
    )
    return {"shape": shape, "ready": ready, "compiles": compiles, "reason": "; ".join(reasons)}
