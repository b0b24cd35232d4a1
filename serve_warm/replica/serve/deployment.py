# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The mixin and the decorator that let a deployment become READY only after it is proven warm."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from ray import serve

from serve_warm._package import public
from serve_warm.compiler.imports import IMPORTER
from serve_warm.config import WarmupConfig, resolve
from serve_warm.errors import ConfigError, InputError, ServeWarmError
from serve_warm.inputs import Input
from serve_warm.private_apis.ray_serve import is_asgi_app
from serve_warm.replica.serve.application import note_definition
from serve_warm.replica.serve.failed_start import shorten_failure
from serve_warm.replica.serve.hook import ReconfigureHook, ServeReplica
from serve_warm.trust import Trust

Result = TypeVar("Result")
Class = TypeVar("Class", bound=type)

ATTRIBUTE = "_serve_warm"
"""Name of the attribute where an instance keeps its `ServeReplica`."""


@public
class WarmupMixin:
    """Mixin that lets a Serve deployment become ready only after it is proven warm.

    Add this mixin to the bases of the class that `@serve.deployment` decorates, and declare inputs:

        @serve.deployment(ray_actor_options={"num_cpus": 1})
        class TextEmbedder(WarmupMixin):
            buckets = Buckets(batch=[1, 8], length=[16, 64, 128])

            def __init__(self):
                self.model = torch.compile(load_model(), dynamic=False)

            def warmup_inputs(self):
                return shape_grid(self.embed, self.buckets)

    The mixin does not define `__init__`, `__call__` or `check_health`, because defining any of
    these changes how Serve treats the class.
    """

    warmup_config: WarmupConfig = WarmupConfig()
    """Settings in code. The environment and `user_config.warmup` override these settings."""

    warmup_trust: Trust | None = None
    """Trust policy for artifacts. `None` means the trust files of the machine."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Note where the class is defined."""
        super().__init_subclass__(**kwargs)
        note_definition(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the instance with the warm-up hook installed.

        In a Serve replica, this also makes torch's caches private, and starts a thread that
        downloads the configured artifact.
        """
        return _put_hook_on(super().__new__, cls, args, kwargs)

    def warmup_inputs(self) -> Sequence[Input] | Input:
        """Return the inputs to replay. Can be `async def`.

        Called after `__init__`, and again after each `reconfigure` of a READY replica.
        """
        raise InputError(
            f"{type(self).__name__} declares no inputs",
            hint="define warmup_inputs(self), for example: "
            "return shape_grid(self.embed, self.buckets)",
        )

    async def warm_up(self) -> dict[str, Any]:
        """Warm up now, join a warm-up in progress, or return at once if the warm-up is done.

        Returns the report as plain data. This method can be awaited on any event loop. In Serve,
        the stage becomes READY only when Serve itself calls the start-up hook, after `__init__`. If
        you await this method inside `__init__`, the method returns after the proof, but before
        READY. The proof does not cover anything that `__init__` does afterwards.

        Raises:
            WarmupFailed: the replica must not become ready.
            ConfigError: inputs, trust files or settings cannot be used.
        """
        return (await replica_of(self).warm_up()).to_json()

    def warmup_report(self) -> dict[str, Any]:
        """Return the report of this start so far, including compiles in traffic."""
        return replica_of(self).report().to_json()

    def warmup_requests(self) -> list[Input]:
        """Return the inputs that a client can send, largest first. Targets are given by name."""
        inputs = replica_of(self).inputs
        return [dataclasses.replace(item, target=item.target_name) for item in inputs]

    def warmup_recorded(self, *, forget: str = "") -> dict[str, Any]:
        """Return the kinds of calls of traffic, for `serve-warm plan`.

        Also returns those of replicas of the deployment that have ended on this node. If `forget`
        names the application and the deployment (`app/Scorer`), they are forgotten afterwards.
        """
        return replica_of(self).recorded(forget=forget)

    async def warmup_artifact(self, *, accept_torch_source: bool = False) -> dict[str, Any]:
        """Return this replica's caches as the raw parts of an artifact, for `serve-warm build`.

        With `accept_torch_source`, entries are made with a torch that was not tested, too.

        Raises:
            WarmupFailed: the replica has not warmed up.
        """
        return dict(await replica_of(self).pack(accept_torch_source=accept_torch_source))

    async def on_model_thread(self, fn: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Call `fn` on the replica's one model thread and return its result.

        The thread lives as long as the replica, so later calls can use everything that torch stores
        per thread (CUDA graphs, grad mode, autocast). Calls run one at a time, so two calls cannot
        race in Dynamo's lookup. Each call adds about 0.1 ms. If CUDA graphs own the outputs, the
        outputs are cloned, because the next call would overwrite the originals.

        Set `torch.inference_mode()` and similar modes inside `fn`, because such modes belong to a
        thread. Modes set around the `await` do not affect the model thread.
        """
        return await replica_of(self).model_thread.run(fn, args, kwargs)


@public
def warmup(cls: Class | None = None, *, trust: Trust | None = None, **settings: Any) -> Any:
    """Return a subclass with `WarmupMixin`, for a class whose bases cannot be changed.

    Put this decorator *below* `@serve.deployment` and `@serve.ingress`. The decorator's settings
    are the fields of `WarmupConfig`.

        @serve.deployment
        @warmup(artifact="./artifacts")
        class TextEmbedder(SomeoneElsesBase): ...

    Raises:
        ConfigError: the decorator is above `@serve.deployment` or `@serve.ingress`, the
            decorated object is not a class, or a setting is unknown.
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
        if is_asgi_app(cls):
            raise ConfigError(
                f"@warmup is above @serve.ingress on {cls.__name__!r}",
                hint="put @warmup below @serve.ingress",
            )
        # The class's own settings stay unless the decorator overrides them.
        config = resolve(
            getattr(cls, "warmup_config", WarmupConfig()),
            user_config={"warmup": settings},
            environ={},
            section_name="@warmup ",
        )

        return cast("Class", derive(cls, WarmupMixin, config, trust=trust))

    return decorate if cls is None else decorate(cls)


def derive(
    cls: type,
    mixin: type[WarmupMixin],
    config: WarmupConfig,
    *,
    trust: Trust | None = None,
    first: type | None = None,
    **attributes: object,
) -> type:
    """Return a subclass of a deployment's class with a mixin, settings and attributes.

    With `first`, this class comes before the deployment's class.

    It has the module, qualified name and doc of the class, because FastAPI routes are found by the
    qualified name.
    """

    def new(derived: type, *args: Any, **kwargs: Any) -> Any:
        # Define it on the class itself, because `cls.__new__` may not call super().
        return _put_hook_on(super(made, derived).__new__, derived, args, kwargs)

    body = {
        **{name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")},
        "__new__": new,
        "warmup_config": config,
        "warmup_trust": getattr(cls, "warmup_trust", None) if trust is None else trust,
        **attributes,
    }
    bases = (cls, mixin) if first is None else (first, cls, mixin)
    made: Any = type(cls)(cls.__name__, bases, body)
    return cast("type", made)


def _put_hook_on(
    new: Callable[..., Any], cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    # object.__new__ rejects arguments if the class defines an __init__.
    instance = new(cls) if new is object.__new__ else new(cls, *args, **kwargs)
    if ATTRIBUTE not in instance.__dict__:
        IMPORTER.watch()
        replica = ServeReplica(instance)
        instance.__dict__[ATTRIBUTE] = replica
        instance.__dict__["reconfigure"] = ReconfigureHook(replica)
        if replica.in_serve:
            instance.__dict__["__init__"] = _note_errors(instance, replica)
    return instance


class _InitWatch(contextlib.AbstractContextManager[None]):
    """Reports an exception in the block to a replica, and lets it propagate, with a short text."""

    def __init__(self, replica: ServeReplica) -> None:
        self._replica = replica

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self._replica.note_init_raised(error)
        if isinstance(error, ServeWarmError):
            raise shorten_failure(error) from None


def _note_errors(instance: Any, replica: ServeReplica) -> Callable[..., Any]:
    """Return an `__init__` that calls the class's `__init__` and reports its exceptions.

    Serve looks up `__init__` on the instance (2.53 to 2.60). A `super().__init__()` call does not
    use the returned function. For an async `__init__`, the returned function is also async, because
    Serve checks whether `__init__` is async.
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
    """Return the `ServeReplica` of an instance."""
    replica: ServeReplica = instance.__dict__[ATTRIBUTE]
    return replica
