# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One application as `serve run` would deploy it, read from a Serve YAML or `module:app`."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from serve_warm._suggestions import did_you_mean
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

    def built(
        self, name: str, settings: Mapping[str, Any], *, working_dir: str | None = None
    ) -> Any:
        """Return the application as Serve's client takes it, under a name of its own.

        Each deployment has one replica, or one gang, and `settings` are laid over the warm-up's.
        Replicas work in `working_dir`, where their `runtime_env` names no other.
        """
        from ray.serve._private.build_app import build_app

        built = build_app(self.bound, name=name, route_prefix=f"/{name}")
        deployments = [
            self._one_replica(deployment, settings, working_dir) for deployment in built.deployments
        ]
        return dataclasses.replace(built, deployments=deployments)

    def resources(self) -> dict[str, float]:
        """Return what a start of it takes from a cluster, by Ray's names: `CPU`, `GPU`, others.

        A replica counts as one CPU at least: what says that it needs none runs on one too.
        """
        counts: Counter[str] = Counter()
        for deployment in self.built("resources", {}).deployments:
            config = deployment._replica_config  # noqa: SLF001
            bundles = config.placement_group_bundles or [config.resource_dict]
            taken: Counter[str] = Counter()
            for bundle in bundles:
                taken.update(bundle)
            taken["CPU"] = max(taken["CPU"], 1)
            for _ in range(deployment.num_replicas):
                counts.update(taken)
        return {name: float(count) for name, count in counts.items() if count}

    def _one_replica(
        self, deployment: Any, settings: Mapping[str, Any], working_dir: str | None
    ) -> Any:
        options = {
            name: value
            for name, value in self.overrides.get(deployment.name, {}).items()
            if name in REPLICA_OPTIONS
        }
        actor = dict(options.get("ray_actor_options") or deployment.ray_actor_options or {})
        if self.runtime_env and "runtime_env" not in actor:
            actor["runtime_env"] = dict(self.runtime_env)
        if working_dir is not None:
            own = actor.get("runtime_env") or {}
            actor["runtime_env"] = {"working_dir": working_dir, **own}
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


@dataclass(frozen=True, kw_only=True)
class Application:
    """What a Serve YAML or `module:app` names: all deployments, with the YAML's options."""

    target: str
    """As the user gave it."""
    document: Mapping[str, Any]
    """The YAML as it is."""
    config: Mapping[str, Any]
    """The application's entry in the YAML; of `module:app` the import path alone."""
    bound: Any
    """Ray Serve's application object."""
    deployments: Mapping[str, Any]
    """Ray Serve's deployments as the code has them, by name."""
    overrides: Mapping[str, Mapping[str, Any]]
    """Options from the YAML, by deployment."""

    @property
    def runtime_env(self) -> Mapping[str, Any]:
        """The application's own, from the YAML."""
        return self.config.get("runtime_env") or {}

    @property
    def warming(self) -> dict[str, Any]:
        """The classes that use WarmupMixin, by the names of their deployments."""
        from serve_warm.replica.deployment import WarmupMixin

        classes = {name: each.func_or_class for name, each in sorted(self.deployments.items())}
        return {
            name: cls
            for name, cls in classes.items()
            if isinstance(cls, type) and issubclass(cls, WarmupMixin)
        }

    def option(self, deployment: str, name: str) -> Any:
        """Return an option of a deployment: from the YAML, or from the code."""
        override = self.overrides.get(deployment, {})
        return override[name] if name in override else getattr(self.deployments[deployment], name)

    def app(self, deployment: str | None = None) -> App:
        """Return the application with the deployment to build for, by default the only one.

        Raises:
            ConfigError: it does not use WarmupMixin, there are several to choose from, or the
                YAML has options for a deployment that is not there.
        """
        unknown = sorted(self.overrides.keys() - self.deployments.keys())
        if unknown:
            raise self._unknown(unknown)
        classes = self.warming
        if deployment is None:
            if len(classes) != 1:
                raise ConfigError(
                    f"{self.target}: {len(classes)} deployments use WarmupMixin: {list(classes)}",
                    hint="name one with --deployment, or build for each of them with --all"
                    if classes
                    else "add WarmupMixin to its bases",
                )
            (deployment,) = classes
        if deployment not in classes:
            raise ConfigError(
                f"{self.target}: no deployment {deployment!r} uses WarmupMixin",
                hint=" ".join([*_guess(deployment, classes), f"those that do: {list(classes)}"]),
            )
        sizes = {
            name: _gang_size(each, self.overrides.get(name, {}))
            for name, each in self.deployments.items()
        }
        return App(
            import_path=str(self.config["import_path"]),
            bound=self.bound,
            overrides=self.overrides,
            runtime_env=self.runtime_env,
            deployment=deployment,
            trust=classes[deployment].warmup_trust,
            num_cpus=sum(size * self._num_cpus(name) for name, size in sizes.items()),
            replicas=sizes[deployment],
        )

    def _unknown(self, names: Sequence[str]) -> ConfigError:
        asked = [question for name in names for question in _guess(name, self.deployments)]
        return ConfigError(
            f"{self.target} has options for {', '.join(map(repr, names))}, and the application "
            "has no such deployment",
            hint=" ".join([*asked, f"its deployments: {sorted(self.deployments)}"]),
        )

    def _num_cpus(self, deployment: str) -> float:
        override = self.overrides.get(deployment, {}).get("ray_actor_options")
        options = override or self.deployments[deployment].ray_actor_options
        return float((options or {}).get("num_cpus", 1))


def _guess(name: str, known: Iterable[str]) -> list[str]:
    question = did_you_mean(name, known)
    return [question] if question else []


def load_app(target: str, *, deployment: str | None = None) -> App:
    """Return the application named by a Serve YAML or by `module:app`, and what to build of it.

    Raises:
        ConfigError: the file, module or deployment is not there, or there are several to choose
            from; the text lists them.
    """
    return load_application(target).app(deployment)


def load_application(target: str) -> Application:
    """Return the application named by a Serve YAML or by `module:app`, with all its deployments.

    The module is imported, as Serve would import it; the working directory is importable.

    Raises:
        ConfigError: the file or the module is not there, or names no application.
    """
    document = read_document(target)
    problems = find_schema_problems(document)
    if problems:
        found = "; ".join(f"{where}: {what}" for where, what in problems)
        raise ConfigError(f"{target} is no Serve config: {found}", hint="`serve run` says the same")
    return import_application(target, document)


def read_document(target: str) -> dict[str, Any]:
    """Return a Serve YAML as it is, or what it would be for `module:app`; imports nothing of it.

    Raises:
        ConfigError: it is neither, or cannot be read, or has no applications.
    """
    if target.endswith((".yaml", ".yml")):
        return _read_yaml(target)
    if ":" in target:
        return {"applications": [{"import_path": target}]}
    raise ConfigError(
        f"{target!r} is neither a Serve YAML nor module:app",
        hint="for example serve.yaml, or deployments.text_embedder.app:embedder",
    )


def _read_yaml(target: str) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(Path(target).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: not UTF-8
        raise ConfigError(f"{target} cannot be read: {error}") from error
    if not isinstance(loaded, dict) or not loaded.get("applications"):
        raise ConfigError(f"{target} has no applications", hint="pass a Serve config file")
    return loaded


def find_schema_problems(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what Serve's own schema has against a config, by member.

    The schema is of pydantic 1 in Ray 2.53, and 2 in 2.60.
    """
    from ray.serve.schema import ServeDeploySchema

    schema: Any = ServeDeploySchema
    check = schema.model_validate if hasattr(schema, "model_validate") else schema.parse_obj
    try:
        check(document)
    except ValueError as error:  # which the ValidationError of either is
        found: Any = error
        return [(".".join(map(str, p["loc"])), p["msg"]) for p in found.errors()]
    return []


def import_application(target: str, document: Mapping[str, Any]) -> Application:
    """Return the one application of a config that Serve's schema takes.

    Raises:
        ConfigError: there are several, or it cannot be imported.
    """
    applications = document["applications"]
    if len(applications) != 1:
        names = [a.get("name") for a in applications]
        raise ConfigError(
            f"{target} has {len(applications)} applications: {names}",
            hint="one artifact is built for one deployment: split the file, or pass module:app",
        )
    from ray.serve._private.build_app import build_app

    if os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    config = dict(applications[0])
    bound = _import_bound(config)
    built = build_app(bound, name="serve_warm").deployments
    return Application(
        target=target,
        document=document,
        config=config,
        bound=bound,
        deployments={each.name: each for each in built},
        overrides={d["name"]: d for d in config.get("deployments") or ()},
    )


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


def _gang_size(deployment: Any, options: Mapping[str, Any]) -> int:
    """Return how many replicas of a deployment Serve starts as one; 1 where it has no gangs."""
    own = getattr(deployment._deployment_config, "gang_scheduling_config", None)  # noqa: SLF001
    gang = options.get("gang_scheduling_config") or own
    return int(gang["gang_size"] if isinstance(gang, Mapping) else getattr(gang, "gang_size", 1))
