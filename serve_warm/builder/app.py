# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One application as `serve run` would deploy it, read from a Serve YAML or `module:app`."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from serve_warm.errors import ConfigError

if TYPE_CHECKING:
    from serve_warm.trust import Trust


REPLICA_OPTIONS = (
    "gang_scheduling_config",
    "max_ongoing_requests",
    "placement_group_bundles",
    "placement_group_strategy",
    "ray_actor_options",
    "user_config",
)
"""Options of a deployment in a Serve YAML that shape a replica. The others (how many of them,
how they are rolled out) are not those of a build."""


@dataclass(frozen=True, kw_only=True)
class App:
    """One application as `serve run` would deploy it, and the deployment in it that warms up."""

    import_path: str
    bound: Any
    """Ray Serve's application object."""
    overrides: Mapping[str, Mapping[str, Any]]
    """Options from the YAML, by deployment."""
    runtime_env: Mapping[str, Any]
    """The application's, from the YAML."""
    deployment: str
    trust: Trust | None
    """What the class of the deployment says itself about trust; None for the machine's files."""
    num_cpus: float
    """CPUs of all replicas of the application when each deployment has one, or one gang."""
    replicas: int = 1
    """How many of the deployment that warms up start together: as many as its gang has."""

    def built(self, name: str, settings: Mapping[str, Any]) -> Any:
        """Return the application as Serve's client takes it, under a name of its own.

        Each deployment has one replica, or one gang, and `settings` are laid over the warm-up's.
        """
        from ray.serve._private.build_app import build_app

        built = build_app(self.bound, name=name, route_prefix=f"/{name}")
        deployments = [self._one_replica(deployment, settings) for deployment in built.deployments]
        return dataclasses.replace(built, deployments=deployments)

    def _one_replica(self, deployment: Any, settings: Mapping[str, Any]) -> Any:
        options = {
            name: value
            for name, value in self.overrides.get(deployment.name, {}).items()
            if name in REPLICA_OPTIONS
        }
        actor = dict(options.get("ray_actor_options") or deployment.ray_actor_options or {})
        if self.runtime_env and "runtime_env" not in actor:
            actor["runtime_env"] = dict(self.runtime_env)
        options["ray_actor_options"] = actor
        if deployment.name == self.deployment:
            user_config = dict(options.get("user_config", deployment.user_config) or {})
            section = {**dict(user_config.get("warmup") or {}), **settings}
            options["user_config"] = {**user_config, "warmup": section}
        return deployment.options(
            num_replicas=_gang_size(deployment, options),
            autoscaling_config=None,
            graceful_shutdown_timeout_s=1.0,
            **options,
        )


def load_app(target: str, *, deployment: str | None = None) -> App:
    """Return the application named by a Serve YAML or by `module:app`.

    The module is imported, as Serve would import it; the working directory is importable.

    Raises:
        ConfigError: the file, module or deployment is not there, or there are several to choose
            from; the text lists them.
    """
    if os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    config = _config_of(target)
    bound = _import_bound(config)
    overrides = {d["name"]: d for d in config.get("deployments") or ()}
    classes, gangs, num_cpus = _deployments_of(bound, overrides)
    warming = sorted(classes)
    if deployment is None:
        if len(warming) != 1:
            raise ConfigError(
                f"{target}: {len(warming)} deployments use WarmupMixin: {warming}",
                hint="name one with --deployment" if warming else "add WarmupMixin to its bases",
            )
        deployment = warming[0]
    if deployment not in warming:
        raise ConfigError(
            f"{target}: no deployment {deployment!r} uses WarmupMixin",
            hint=f"those that do: {warming}",
        )
    return App(
        import_path=str(config["import_path"]),
        bound=bound,
        overrides=overrides,
        runtime_env=config.get("runtime_env") or {},
        deployment=deployment,
        trust=classes[deployment].warmup_trust,
        num_cpus=num_cpus,
        replicas=gangs[deployment],
    )


def _config_of(target: str) -> dict[str, Any]:
    if target.endswith((".yaml", ".yml")):
        return _only_application(target)
    if ":" in target:
        return {"import_path": target}
    raise ConfigError(
        f"{target!r} is neither a Serve YAML nor module:app",
        hint="for example serve.yaml, or deployments.text_embedder.app:embedder",
    )


def _only_application(target: str) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(Path(target).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: not UTF-8
        raise ConfigError(f"{target} cannot be read: {error}") from error
    applications = loaded.get("applications") if isinstance(loaded, dict) else None
    if not applications:
        raise ConfigError(f"{target} has no applications", hint="pass a Serve config file")
    problems = _problems(loaded)
    if problems:
        raise ConfigError(
            f"{target} is no Serve config: {'; '.join(problems)}", hint="`serve run` says the same"
        )
    if len(applications) != 1:
        names = [a.get("name") for a in applications]
        raise ConfigError(
            f"{target} has {len(applications)} applications: {names}",
            hint="one artifact is built for one deployment: split the file, or pass module:app",
        )
    return dict(applications[0])


def _problems(config: Mapping[str, Any]) -> list[str]:
    """Return what Serve's own schema has against a config: of pydantic 1 in Ray 2.53, 2 in 2.60."""
    from ray.serve.schema import ServeDeploySchema

    schema: Any = ServeDeploySchema
    check = schema.model_validate if hasattr(schema, "model_validate") else schema.parse_obj
    try:
        check(config)
    except ValueError as error:  # which the ValidationError of either is
        found: Any = error
        return [f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in found.errors()]
    return []


def _import_bound(config: Mapping[str, Any]) -> Any:
    """Return the application object that `import_path` names."""
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary

    module, _, attribute = str(config["import_path"]).rpartition(":")
    try:
        bound = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"import_path {config['import_path']!r} cannot be imported: {error}",
            hint="run from the folder that `serve run` would be run from",
        ) from error
    args = config.get("args") or {}
    try:
        return call_user_app_builder_with_args_if_necessary(bound, args)
    except TypeError as error:
        raise ConfigError(
            f"import_path {config['import_path']!r} names no application: {error}",
            hint="bind the deployment, app = TextEmbedder.bind(), and name the result",
        ) from error
    except ValueError as error:  # also pydantic's, for what the function's argument does not take
        if not args and not hasattr(error, "errors"):
            raise  # the function's own
        raise ConfigError(
            f"import_path {config['import_path']!r} does not take these args: "
            f"{' '.join(str(error).split())}",
            hint="args go to the function that import_path names, as its one argument",
        ) from error


def _deployments_of(
    bound: Any, overrides: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, int], float]:
    """Return classes and gang sizes of deployments that warm up, by name, and the CPUs of all."""
    from ray.serve._private.build_app import build_app

    from serve_warm.replica.deployment import WarmupMixin

    warming, gangs, num_cpus = {}, {}, 0.0
    for built in build_app(bound, name="serve_warm").deployments:
        override = overrides.get(built.name, {})
        options = override.get("ray_actor_options") or built.ray_actor_options
        size = _gang_size(built, override)
        num_cpus += size * float((options or {}).get("num_cpus", 1))
        target = built.func_or_class
        if isinstance(target, type) and issubclass(target, WarmupMixin):
            warming[built.name], gangs[built.name] = target, size
    return warming, gangs, num_cpus


def _gang_size(deployment: Any, options: Mapping[str, Any]) -> int:
    """Return how many replicas of a deployment Serve starts as one; 1 where it has no gangs."""
    own = getattr(deployment._deployment_config, "gang_scheduling_config", None)  # noqa: SLF001
    gang = options.get("gang_scheduling_config") or own
    return int(gang["gang_size"] if isinstance(gang, Mapping) else getattr(gang, "gang_size", 1))
