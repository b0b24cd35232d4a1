# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Deployments of every shape that Serve knows, each noting what is done to it.

They compile with Dynamo's `eager` backend: what is traced, guarded and counted is the real thing,
and no kernel has to be built.
"""

# No `from __future__ import annotations`: Serve ships a copy of a FastAPI app to its replicas, and
# what a route names in a string only does not travel with it.

import asyncio
import functools
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

import witness
from serve_warm import Input, WarmupMixin, node, warmup

deployment = functools.partial(
    serve.deployment,
    ray_actor_options={"num_cpus": 0},
    graceful_shutdown_timeout_s=0,
    max_constructor_retry_count=1,
)


def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def compiled() -> Any:
    return torch.compile(triple, backend="eager", dynamic=False)


def caches() -> list[str]:
    """Return where torch and Triton are told to cache, of those two that are told."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    return [os.environ[name] for name in names if name in os.environ]


class Noting:
    """Notes facts of calls; `noted` returns them in order."""

    def note(self, **facts: Any) -> None:
        self.__dict__.setdefault("notes", []).append(facts)

    async def noted(self) -> list[dict[str, Any]]:
        return self.__dict__.get("notes", [])

    async def process(self) -> int:
        return os.getpid()

    async def loop_thread(self) -> int:
        return threading.get_native_id()


# The one that most policies are tried on -------------------------------------------------------


@deployment()
class Embedder(WarmupMixin, Noting):
    """POST / {"values": [...]} → three times the values; compiled for each length apart."""

    def __init__(self, lengths: tuple[int, ...] = (1, 2)) -> None:
        # First, because torch.compile sets torch's variable where nobody has.
        self.caches_in_init = caches()
        self.lengths = lengths
        self.model = compiled()

    def warmup_inputs(self) -> list[Input]:
        self.note(asked_for_inputs=True)
        return [
            Input(target="POST /", json={"values": [1.0] * n}, name=f"length={n}", size=n)
            for n in self.lengths
        ]

    async def __call__(self, request: Request) -> dict[str, Any]:
        values = (await request.json())["values"]
        if "client" in request.headers:
            self.note(stage=self.warmup_report()["stage"])
        return {"values": self.model(torch.tensor(values)).tolist()}

    async def caches(self) -> dict[str, list[str]]:
        return {"in __init__": self.caches_in_init, "now": caches()}


@deployment()
class SlowToWarm(Embedder.func_or_class):
    """Needs `pause_s` more in each of its passes, of which there are three."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.pause_s = pause_s

    def warmup_inputs(self) -> list[Input]:
        return [*super().warmup_inputs(), Input(target=self.pause, size=100)]

    async def pause(self) -> None:
        await asyncio.sleep(self.pause_s)
        self.model(torch.ones(1))


# By default Serve notices only after 10 s that one was killed.
@deployment(max_constructor_retry_count=20, health_check_period_s=1)
class Witnessed(SlowToWarm.func_or_class):
    """Records its actions for a witness. Declares three inputs."""

    def __init__(self, pause_s: float) -> None:
        witness.note_began()
        super().__init__(pause_s)

    async def __call__(self, request: Request) -> dict[str, Any]:
        answer = await super().__call__(request)
        witness.note_answered()
        return answer

    async def pause(self) -> None:
        await super().pause()
        witness.note_answered()


witnessed = Witnessed.bind(1.0)  # so that its replay is seen on a busy machine, too
witnessed_again = Witnessed.bind(0.2)
"""The same for Serve by name, and another version."""


@deployment()
class Blocking(Embedder.func_or_class):
    """Blocks its event loop with the first replay, and notes when in a file."""

    def __init__(self, seconds: float, began: str) -> None:
        super().__init__((2,))
        self.seconds = seconds
        self.began = Path(began)

    async def __call__(self, request: Request) -> dict[str, Any]:
        answer = await super().__call__(request)
        if self.seconds:
            self.began.write_text(str(node.boot_s()))
            seconds, self.seconds = self.seconds, 0.0
            time.sleep(seconds)  # noqa: ASYNC251 - as a handler that blocks does
        return answer


# Handlers of every kind ------------------------------------------------------------------------


@deployment()
class Handlers(WarmupMixin, Noting):
    """A plain class with an async constructor and every kind of handler that runs on the loop."""

    async def __init__(self, offset: float, *, ids: tuple[str, ...]) -> None:
        await asyncio.sleep(0)
        self.offset = offset
        self.ids = ids
        self.model = compiled()

    async def warmup_inputs(self) -> list[Input]:
        x = torch.ones(4)
        return [
            Input(target="POST /", json={"values": [1.0] * 4}),
            Input(target=self.embed, args=(x,), kwargs={"bias": 1.0}),
            Input(target="batched", args=(x,), concurrency=4),
            Input(target="stream", args=(x,)),
            Input(target="POST /stream", name="streaming answer"),
            *(
                Input(target=self.with_model, args=(x,), model_id=i, name=i, fixed=True)
                for i in self.ids
            ),
        ]

    async def __call__(self, request: Request) -> Any:
        if request.url.path.endswith("/stream"):
            return StreamingResponse(self.chunks("http"))
        values = (await request.json())["values"]
        self.note(called="__call__", request=type(request).__name__)
        return (self.model(torch.tensor(values)) + self.offset).tolist()

    async def embed(self, x: torch.Tensor, *, bias: float = 1.0) -> torch.Tensor:
        return self.model(x) + self.offset + bias

    @serve.batch(max_batch_size=4, batch_wait_timeout_s=0.5)
    async def batched(self, xs: list[torch.Tensor]) -> list[torch.Tensor]:
        self.note(batch=len(xs))
        return list(self.model(torch.stack(xs)))

    async def stream(self, x: torch.Tensor) -> AsyncIterator[float]:
        for step in range(3):
            yield float(self.model(x)[0]) + step
        self.note(ended="stream")

    async def chunks(self, name: str) -> AsyncIterator[str]:
        for step in range(3):
            self.model(torch.ones(4))
            yield f"{step}\n"
        self.note(ended=name)

    @serve.multiplexed(max_num_models_per_replica=2)
    async def get_model(self, model_id: str) -> Any:
        self.note(loaded=model_id)
        return self.model

    async def with_model(self, x: torch.Tensor) -> torch.Tensor:
        model_id = serve.get_multiplexed_model_id()
        self.note(asked_for_model=model_id)
        return (await self.get_model(model_id))(x)


@deployment()
class SyncHandlers(WarmupMixin, Noting):
    """Plain `def` handlers. Serve runs each call in a new thread."""

    def __init__(self) -> None:
        self.model = compiled()

    def reconfigure(self, user_config: Any) -> None:
        self.note(reconfigured=user_config)

    def warmup_inputs(self) -> list[Input]:
        return [
            Input(target="POST /?length=4"),
            Input(target=self.stream, args=(torch.ones(2),), fixed=True),
        ]

    def __call__(self, request: Request) -> list[float]:
        return self.model(torch.ones(int(request.query_params["length"]))).tolist()

    def stream(self, x: torch.Tensor) -> Iterator[float]:
        for step in range(3):
            yield float(self.model(x)[0]) + step
        self.note(ended="stream", thread=threading.get_native_id())


@deployment()
class OneThread(WarmupMixin, Noting):
    """Loads, warms up and serves on the model thread; warms up by itself, twice at once."""

    async def __init__(self) -> None:
        self.model = await self.on_model_thread(compiled)
        self.reports = await asyncio.gather(self.warm_up(), self.warm_up())

    async def warmup_inputs(self) -> Input:
        self.note(asked_for_inputs=True)
        return Input(target=self.embed, args=(torch.ones(4),))

    async def embed(self, x: torch.Tensor) -> torch.Tensor:
        return await self.on_model_thread(self.run, x)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        self.note(thread=threading.get_native_id())
        return self.model(x)

    async def joined(self) -> list[dict[str, Any]]:
        return self.reports

    async def warm_up_on_another_loop(self) -> dict[str, Any]:
        return await asyncio.to_thread(lambda: asyncio.run(self.warm_up()))


routes = FastAPI()


class Body(BaseModel):
    values: list[float]


@deployment()
@serve.ingress(routes)
class Routes(WarmupMixin, Noting):
    """A FastAPI app whose reconfigure wants to know its rank, and nothing else."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.model = compiled()

    def reconfigure(self, user_config: Any, rank: Any = None) -> None:
        self.note(reconfigured=user_config, has_rank=rank is not None)

    def warmup_inputs(self) -> list[Input]:
        return [
            Input(target="POST /async", json=self.body),
            Input(target="POST /sync", json=self.body),
            Input(target="GET /stream?steps=3", headers={"X-Client": "warm-up"}),
        ]

    @routes.post("/async")
    async def on_loop(self, body: Body) -> list[float]:
        self.note(route="async", thread=threading.get_native_id())
        return self.model(torch.tensor(body.values)).tolist()

    @routes.post("/sync")
    def in_thread(self, body: Body) -> list[float]:
        self.note(route="sync", thread=threading.get_native_id())
        return self.model(torch.tensor(body.values)).tolist()

    @routes.get("/stream")
    async def stream(self, request: Request, steps: int) -> StreamingResponse:
        client = request.headers.get("x-client")

        async def chunks() -> AsyncIterator[str]:
            for step in range(steps):
                self.model(torch.ones(2))
                yield f"{step}\n"
            self.note(ended=steps, client=client)

        return StreamingResponse(chunks())


# The decorator ---------------------------------------------------------------------------------


class SomeoneElses(Noting):
    def __init__(self, offset: float) -> None:
        self.offset = offset
        self.model = compiled()

    def reconfigure(self, user_config: dict[str, float]) -> None:
        self.offset = user_config["offset"]


@deployment(user_config={"offset": 2.0})
@warmup
class Decorated(SomeoneElses):
    def warmup_inputs(self) -> Input:
        self.note(offset=self.offset)
        return Input(target=self.embed, args=(torch.ones(4),))

    async def embed(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x) + self.offset


other_routes = FastAPI()


@deployment()
@serve.ingress(other_routes)
@warmup(after_ready="forbid")
class DecoratedRoutes(SomeoneElses):
    def warmup_inputs(self) -> Input:
        return Input(target="POST /embed", json={"values": [1.0, 1.0]})

    @other_routes.post("/embed")
    async def embed(self, body: Body) -> list[float]:
        return (self.model(torch.tensor(body.values)) + self.offset).tolist()


# Reconfigure -----------------------------------------------------------------------------------


class Configurable(Noting):
    async def reconfigure(self, user_config: Any) -> None:
        self.note(base=user_config)


class Ranked(Configurable):
    async def reconfigure(self, user_config: Any, rank: Any) -> None:
        await super().reconfigure(user_config)
        self.note(ranked=user_config, has_rank=rank is not None)


@deployment()
class Inherited(WarmupMixin, Ranked):
    """Its bases stand behind the mixin, and their methods still count."""

    async def reconfigure(self, user_config: Any, rank: Any) -> None:
        await super().reconfigure(user_config, rank)
        self.note(own=user_config)

    def warmup_inputs(self) -> Input:
        self.note(asked_for_inputs=True)
        return Input(target=self.embed)

    async def embed(self) -> None:
        self.note(replayed=True)


@deployment()
class BehindMixin(WarmupMixin, Ranked):
    """Inherits `reconfigure` from its base class."""

    def warmup_inputs(self) -> Input:
        return Input(target=self.noted)


@deployment()
class SyncConfigured(WarmupMixin, Noting):
    """Calls its own sync reconfigure from __init__, as many deployments do."""

    def __init__(self) -> None:
        self.reconfigure({"from": "__init__"})

    def reconfigure(self, user_config: Any) -> str:
        self.note(config=user_config, thread=threading.get_native_id())
        return "returned"

    def warmup_inputs(self) -> Input:
        self.note(asked_for_inputs=True)
        return Input(target=self.embed)

    async def embed(self) -> None:
        self.returned = self.reconfigure({"from": "a handler"})

    async def what_it_returned(self) -> str:
        return self.returned


sync_configured = SyncConfigured.options(
    user_config={"scale": 1, "warmup": {"max_level": 2}}
).bind()
"""For a Serve configuration, which names an application by its import path."""


# Several deployments ---------------------------------------------------------------------------


@deployment()
class Caller(WarmupMixin, Noting):
    """Needs another deployment to answer."""

    def __init__(self, other: Any) -> None:
        self.other = other

    def warmup_inputs(self) -> Input:
        return Input(target=self.embed, args=(torch.ones(4),))

    async def embed(self, x: torch.Tensor) -> torch.Tensor:
        return await self.other.embed.remote(x)


@deployment()
class LateStarter:
    """Becomes ready only after some seconds, or never."""

    async def __init__(self, after_s: float) -> None:
        await asyncio.sleep(after_s)

    async def embed(self, x: torch.Tensor) -> torch.Tensor:
        return triple(x)


# Bad inputs ------------------------------------------------------------------------------------


@deployment()
class Undeclared(WarmupMixin):
    async def embed(self) -> None: ...


@deployment()
class BadInputs(WarmupMixin):
    """Has an input that raises."""

    def warmup_inputs(self) -> Input:
        return Input(target=self.broken)

    async def broken(self) -> None:
        raise ValueError("the weights are missing")


@serve.deployment(ray_actor_options={"num_cpus": 0}, max_constructor_retry_count=1)
class Unborn(WarmupMixin):
    """Its constructor raises, in one of the two ways that Serve calls one."""

    def __init__(self, kind: str) -> None:
        raise FileNotFoundError(f"/models/{kind}.pt")

    def warmup_inputs(self) -> Any:
        return [Input(target=self.embed)]

    async def embed(self) -> None: ...


@serve.deployment(ray_actor_options={"num_cpus": 0}, max_constructor_retry_count=1)
class UnbornLater(Unborn.func_or_class):
    async def __init__(self, kind: str) -> None:
        raise FileNotFoundError(f"/models/{kind}.pt")


early_routes = FastAPI()


@deployment()
@serve.ingress(early_routes)
class TooEarly(WarmupMixin):
    """Warms up inside its constructor, where Serve has not started the app yet."""

    async def __init__(self) -> None:
        await self.warm_up()

    def warmup_inputs(self) -> Input:
        return Input(target="GET /embed")

    @early_routes.get("/embed")
    async def embed(self) -> None: ...
