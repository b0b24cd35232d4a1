# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The mixin and the decorator that make a Serve deployment ready only when it is proven warm."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from ray import serve
from ray.serve._private.http_util import ASGIAppReplicaWrapper

from serve_warm._public_names import public
from serve_warm.config import WarmupConfig, resolve
from serve_warm.errors import ConfigError, InputError
from serve_warm.inputs import Input
from serve_warm.replica.in_serve import ReconfigureHook, ServeReplica
from serve_warm.trust import Trust

Result = TypeVar("Result")
Class = TypeVar("Class", bound=type)

ATTRIBUTE = "_serve_warm"
"""Where an instance keeps its `ServeReplica`."""


@public
class WarmupMixin:
    """Makes a Serve deployment ready only when it is proven warm.

    Put it among the bases of the class that `@serve.deployment` decorates and declare inputs:

        @serve.deployment(ray_actor_options={"num_cpus": 1})
        class TextEmbedder(WarmupMixin):
            buckets = Buckets(batch=[1, 8], length=[16, 64, 128])

            def __init__(self):
                self.model = torch.compile(load_model(), dynamic=False)

            def warmup_inputs(self):
                return shape_grid(self.embed, self.buckets)

    It defines no `__init__`, `__call__` or `check_health`, because each of them changes what
    Serve does with the class.
    """

    warmup_config: WarmupConfig = WarmupConfig()
    """Settings in code; the environment and `user_config.warmup` are laid over them."""

    warmup_trust: Trust | None = None
    """Who may sign artifacts; `None` reads the machine's trust files."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the instance with the hook on it.

        Torch's caches are private from here on, and an artifact that is configured is on its way.
        """
        return _put_hook_on(super().__new__, cls, args, kwargs)

    def warmup_inputs(self) -> Sequence[Input] | Input:
        """Return what to replay. May be `async def`; it runs once, after `__init__`."""
        raise InputError(
            f"{type(self).__name__} declares no inputs",
            hint="define warmup_inputs(self), for example: "
            "return shape_grid(self.embed, self.buckets)",
        )

    async def warm_up(self) -> dict[str, Any]:
        """Warm up now, or join the warm-up under way, or return at once when it is done.

        Returns the report as plain data. Anyone may await it, from any loop. In Serve the stage is
        READY only when Serve has come to its own hook, after `__init__`: awaited inside one this
        returns with the proof, in stage PROVING. What `__init__` does after it is not proven.

        Raises:
            WarmupFailed: the replica must not become ready.
            ConfigError: inputs, trust files or settings cannot be used.
        """
        return (await replica_of(self).warm_up()).to_json()

    def warmup_report(self) -> dict[str, Any]:
        """Return the report of this start until now, compiles in traffic included."""
        return replica_of(self).report().to_json()

    def warmup_requests(self) -> list[Input]:
        """Return the inputs as data: targets by name, largest first, to be sent by a client."""
        inputs = replica_of(self).inputs
        return [dataclasses.replace(item, target=item.target_name) for item in inputs]

    async def warmup_artifact(self) -> dict[str, Any]:
        """Return this replica's caches as the raw parts of an artifact, for `serve-warm build`.

        Once per replica: torch's bytes of a second save cannot be loaded completely.
        """
        return dict(await replica_of(self).pack())

    async def on_model_thread(self, fn: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Call `fn` on the replica's one model thread and return what it returns.

        The thread lives as long as the replica, so whatever torch keeps per thread (CUDA
        graphs, grad mode, autocast) is found again by the next call; and calls do not race in
        Dynamo's lookup, because there is one at a time. Costs about 0.1 ms. Outputs are cloned
        where CUDA graphs own them: the next call would overwrite them.

        `torch.inference_mode()` and the like are the thread's: set them inside `fn`, not around
        the `await`, where the model's thread does not see them.
        """
        return await replica_of(self).model_thread.run(fn, args, kwargs)


@public
def warmup(cls: Class | None = None, *, trust: Trust | None = None, **settings: Any) -> Any:
    """Add `WarmupMixin` to a class whose bases cannot be changed.

    It goes *below* `@serve.deployment` and `@serve.ingress`. Settings are the fields of
    `WarmupConfig`.

        @serve.deployment
        @warmup(artifact="./artifacts")
        class TextEmbedder(SomeoneElsesBase): ...

    Raises:
        ConfigError: it stands above `@serve.deployment`, or a setting is unknown.
    """

    def decorate(cls: Class) -> Class:
        if isinstance(cls, serve.Deployment):
            raise ConfigError(
                f"@warmup got the deployment {cls.name!r}, not a class",
                hint="put @warmup below @serve.deployment",
            )
        if not inspect.isclass(cls):
            raise ConfigError(
                f"@warmup got {type(cls).__name__} {getattr(cls, '__name__', '')!r}, not a class",
                hint="a function deployment has no state to warm up: make it a class",
            )
        if issubclass(cls, ASGIAppReplicaWrapper):
            raise ConfigError(
                f"@warmup got {cls.__name__!r} after @serve.ingress",
                hint="put @warmup below @serve.ingress",
            )
        # What the class says itself stays where the decorator says nothing.
        config = resolve(
            getattr(cls, "warmup_config", WarmupConfig()),
            user_config={"warmup": settings},
            environ={},
            section_name="@warmup ",
        )

        def new(derived: type, *args: Any, **kwargs: Any) -> Any:
            # In the class itself, before the one of `cls`, which may call no super().
            return _put_hook_on(super(decorated, derived).__new__, derived, args, kwargs)

        # Module, qualified name and doc stay those of the class that was written: routes of a
        # FastAPI app are found by the qualified name.
        body = {
            "__new__": new,
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            "warmup_config": config,
            "warmup_trust": getattr(cls, "warmup_trust", None) if trust is None else trust,
        }
        decorated: Any = type(cls.__name__, (cls, WarmupMixin), body)
        return cast("Class", decorated)

    return decorate if cls is None else decorate(cls)


def _put_hook_on(
    new: Callable[..., Any], cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Make an instance by `new` and put the hook on it, once."""
    # object's own takes no arguments where a class has an __init__ that does.
    instance = new(cls) if new is object.__new__ else new(cls, *args, **kwargs)
    if ATTRIBUTE not in instance.__dict__:
        replica = ServeReplica(instance)
        instance.__dict__[ATTRIBUTE] = replica
        instance.__dict__["reconfigure"] = ReconfigureHook(replica)
        if replica.in_serve:
            instance.__dict__["__init__"] = _note_errors(instance, replica)
    return instance


class _InitWatch(contextlib.AbstractContextManager[None]):
    """Tells a replica what the block raises, and lets it pass."""

    def __init__(self, replica: ServeReplica) -> None:
        self._replica = replica

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self._replica.note_init_raised(error)


def _note_errors(instance: Any, replica: ServeReplica) -> Callable[..., Any]:
    """Return the `__init__` of an instance that tells what it raises.

    Serve asks the instance for it (2.53 to 2.60), and a class that calls `super().__init__` does
    not. Of an async one it has to be async, since Serve looks.
    """
    init = type(instance).__init__
    if inspect.iscoroutinefunction(init):

        @functools.wraps(init)
        async def told(*args: Any, **kwargs: Any) -> None:
            with _InitWatch(replica):
                await init(instance, *args, **kwargs)

        return told

    @functools.wraps(init)
    def told_at_once(*args: Any, **kwargs: Any) -> None:
        with _InitWatch(replica):
            init(instance, *args, **kwargs)

    return told_at_once


def replica_of(instance: Any) -> ServeReplica:
    """Return what serve_warm keeps of an instance."""
    replica: ServeReplica = instance.__dict__[ATTRIBUTE]
    return replica
