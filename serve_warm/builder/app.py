# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One application as `serve run` would deploy it, read from a Serve YAML or `module:app`."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from serve_warm._package import PACKAGE
from serve_warm._records import record
from serve_warm._regular_files import explain_pipe, read_regular
from serve_warm.artifact.manifest import Place
from serve_warm.config import WarmupConfig, environment, resolve
from serve_warm.errors import ConfigError, StoreError, did_you_mean
from serve_warm.stores import open_store
from serve_warm.trust.files import load_trust

if TYPE_CHECKING:
    from serve_warm.trust import Trust

logger = logging.getLogger(__name__)

REPLICA_OPTIONS = (
    "gang_scheduling_config",
    "max_ongoing_requests",
    "placement_group_bundles",
    "placement_group_strategy",
    "ray_actor_options",
    "user_config",
)
"""Deployment options that affect each single replica. A build ignores all other deployment options
in a Serve YAML, such as the replica count and the rollout."""


@record(frozen=True, kw_only=True)
class App:
    """One application as `serve run` would deploy it, with one of its deployments selected."""

    import_path: str
    bound: Any
    """Ray Serve's application object."""
    overrides: Mapping[str, Mapping[str, Any]]
    """The options in the YAML, by deployment name."""
    runtime_env: Mapping[str, Any]
    """The application's runtime environment, from the YAML."""
    place: Place
    """The application and deployment that the artifact is kept for. The application's name is not
    the name under which Serve runs it."""
    trust: Trust | None
    """Trust settings in the deployment's class; None if the trust files of the machine apply."""
    num_cpus: float
    """Number of CPUs that the application needs, with one replica or one gang per deployment.
    """
    replicas: int = 1
    """Number of replicas of the deployment that start together: the size of its gang, or 1."""
    application: str | None = None
    """Name of the application for this command's replicas, in place of the setting's; None to use
    the setting."""
    subclass: Callable[[type], type] | None = None
    """Returns the class that replicas use instead of the deployment's class; None to use the
    deployment's class itself."""

    @property
    def deployment(self) -> str:
        """The name of the selected deployment."""
        return self.place.deployment

    def known_trust(self) -> Trust:
        """Return the class's trust settings, or the settings from this machine's trust files."""
        return load_trust() if self.trust is None else self.trust

    def built(
        self, name: str, settings: Mapping[str, Any], *, working_dir: str | None = None
    ) -> Any:
        """Return the application with the name `name`, in the form that Serve's client accepts.

        Each deployment has one replica or one gang. `settings` override the warm-up settings.
        Replicas run in `working_dir`, unless their `runtime_env` sets another directory.
        """
        from serve_warm.private_apis.ray_serve import build_app

        built = build_app(self.bound, name=name, route_prefix=f"/{name}")
        deployments = [
            self._one_replica(deployment, settings, working_dir) for deployment in built.deployments
        ]
        return dataclasses.replace(built, deployments=deployments)

    def resources(self) -> dict[str, float]:
        """Return how much of each resource a start needs, keyed by Ray's names (`CPU`, `GPU`).

        A replica counts as at least one CPU, because it uses a CPU even with `num_cpus: 0`.
        """
        from serve_warm.private_apis.ray_serve import resources_of

        counts: Counter[str] = Counter()
        for deployment in self.built("resources", {}).deployments:
            taken: Counter[str] = Counter()
            for bundle in resources_of(deployment):
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
        user_config = dict(options.get("user_config", deployment.user_config) or {})
        state_dir = settings.get("state_dir")
        if deployment.name == self.deployment:
            named = {} if self.application is None else {"application": self.application}
            section = {**dict(user_config.get("warmup") or {}), **settings, **named}
            options["user_config"] = {**user_config, "warmup": section}
            if self.subclass is not None:
                options["func_or_class"] = self.subclass(deployment.func_or_class)
        elif state_dir is not None and _is_warming(deployment.func_or_class):
            # Else this node's probe would count it, and `serve-warm why` would explain it.
            section = {
                **dict(user_config.get("warmup") or {}),
                "state_dir": f"{state_dir}-of-others",
            }
            options["user_config"] = {**user_config, "warmup": section}
        return deployment.options(
            num_replicas=_gang_size(deployment, options),
            autoscaling_config=None,
            graceful_shutdown_timeout_s=1.0,
            **options,
        )


def _is_warming(cls: object) -> bool:
    from serve_warm.replica.serve.deployment import WarmupMixin

    return isinstance(cls, type) and issubclass(cls, WarmupMixin)


@record(frozen=True, kw_only=True)
class Application:
    """All deployments of a Serve YAML or `module:app`, with the YAML's options."""

    target: str
    """The YAML or `module:app`, as the user gave it."""
    document: Mapping[str, Any]
    """The content of the YAML, unchanged."""
    config: Mapping[str, Any]
    """The application's entry in the YAML; for `module:app`, an entry with only the import path."""
    bound: Any
    """Ray Serve's application object."""
    deployments: Mapping[str, Any]
    """Ray Serve's deployments as the code defines them, by name."""
    overrides: Mapping[str, Mapping[str, Any]]
    """The options in the YAML, by deployment name."""
    is_wrapped: bool = False
    """Whether the application names no serve_warm, so that `serve_warm.app:wrap` runs it."""

    @property
    def is_from_file(self) -> bool:
        """Whether the application comes from a Serve YAML."""
        return _is_yaml(self.target)

    @property
    def runtime_env(self) -> Mapping[str, Any]:
        """The application's runtime environment, from the YAML."""
        return self.config.get("runtime_env") or {}

    @property
    def warming(self) -> dict[str, Any]:
        """The classes with WarmupMixin, by deployment name."""
        classes = {name: each.func_or_class for name, each in sorted(self.deployments.items())}
        return {name: cls for name, cls in classes.items() if _is_warming(cls)}

    def option(self, deployment: str, name: str) -> Any:
        """Return the value of a deployment's option. The YAML overrides the code."""
        override = self.overrides.get(deployment, {})
        return override[name] if name in override else getattr(self.deployments[deployment], name)

    def runtime_env_of(self, deployment: str) -> Mapping[str, Any]:
        """Return the runtime environment of a deployment's replicas."""
        actor = self.option(deployment, "ray_actor_options") or {}
        own: Mapping[str, Any] | None = actor.get("runtime_env")
        return self.runtime_env if own is None else own

    def variables_of(self, deployment: str) -> Mapping[str, str]:
        """Return the environment variables that the runtime environment of replicas sets.

        Raises:
            ConfigError: they are no mapping.
        """
        variables = self.runtime_env_of(deployment).get("env_vars") or {}
        if not isinstance(variables, Mapping):
            raise ConfigError(
                f"runtime_env.env_vars of {deployment} is a {type(variables).__name__}",
                hint="it is a mapping, for example env_vars: {OMP_NUM_THREADS: '4'}",
            )
        return variables

    def settings(self, deployment: str, environ: Mapping[str, str]) -> WarmupConfig:
        """Return the warm-up settings that a replica will have.

        Raises:
            ConfigError: a setting is unknown, or its value is out of range.
        """
        return resolve(
            self.warming[deployment].warmup_config,
            user_config=self.option(deployment, "user_config"),
            environ={**environ, **self.variables_of(deployment)},
        )

    def store(self, deployments: Collection[str], environ: Mapping[str, str]) -> str:
        """Return the address of the store from which the replicas of these deployments read.

        Raises:
            ConfigError: the settings of one name no store, or they name several.
        """
        found = {name: self.settings(name, environ).artifact for name in deployments}
        uris = set(found.values())
        if self.is_wrapped and uris == {None}:
            from serve_warm.app import users_store

            return users_store()
        if len(uris) == 1 and (uri := uris.pop()) is not None:
            return uri
        missing = [name for name, uri in found.items() if uri is None]
        what = "names no artifact" if missing else "read from several stores"
        raise ConfigError(
            f"{self.target}: {', '.join(missing or found)} {what}",
            hint="give the store's address, or set user_config.warmup.artifact, from which "
            "replicas read",
        )

    def reads(self, deployment: str, store: str) -> bool:
        """Return whether the replicas of a deployment read this store, as far as is known here."""
        try:
            own = self.store([deployment], environment())
            return open_store(own).uri == open_store(store).uri
        except (ConfigError, StoreError):
            return False

    def place(
        self, deployment: str, environ: Mapping[str, str], *, application: str | None = None
    ) -> Place:
        """Return the application and deployment that a replica's artifacts are kept for.

        `application` replaces the name from the settings.

        Raises:
            ConfigError: a setting is unknown, or its value is out of range.
        """
        from serve_warm.replica.serve.application import name_application

        configured = application or self.settings(deployment, environ).application
        name = name_application(self.warming[deployment], configured)
        return Place(application=name, deployment=deployment)

    def app(self, deployment: str | None = None, *, application: str | None = None) -> App:
        """Return the application with one deployment selected.

        Without a name, the only deployment with WarmupMixin is selected. `application` replaces the
        name that artifacts are kept for.

        Raises:
            ConfigError: the named deployment does not use WarmupMixin; or no name is given, and
                the number of deployments with WarmupMixin is not 1; or the YAML has options for
                a deployment that does not exist.
        """
        unknown = sorted(self.overrides.keys() - self.deployments.keys())
        if unknown:
            raise ConfigError(
                f"{self.target} has options for {', '.join(map(repr, unknown))}, but the "
                "application has no such deployment",
                hint=f"the application's deployments: {sorted(self.deployments)}",
            )
        classes = self.warming
        if deployment is None:
            if len(classes) != 1:
                raise ConfigError(
                    f"{self.target}: {len(classes)} deployments use WarmupMixin: {list(classes)}",
                    hint="choose one with --deployment; serve-warm build --all builds all artifacts"
                    if classes
                    else "add WarmupMixin to the bases of the deployment's class",
                )
            (deployment,) = classes
        if deployment not in classes:
            raise ConfigError(
                f"{self.target}: no deployment named {deployment!r} uses WarmupMixin",
                hint=f"deployments with WarmupMixin: {list(classes)}",
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
            application=application,
            place=self.place(deployment, environment(), application=application),
            trust=classes[deployment].warmup_trust,
            num_cpus=sum(size * self._num_cpus(name) for name, size in sizes.items()),
            replicas=sizes[deployment],
        )

    def _num_cpus(self, deployment: str) -> float:
        override = self.overrides.get(deployment, {}).get("ray_actor_options")
        options = override or self.deployments[deployment].ray_actor_options
        return float((options or {}).get("num_cpus", 1))


def load_app(target: str, *, deployment: str | None = None, application: str | None = None) -> App:
    """Return the application of a Serve YAML or `module:app`, with one deployment selected.

    Raises:
        ConfigError: the file, module or deployment does not exist, or no name is given and several
            deployments use WarmupMixin. The message lists the possible deployments.
    """
    return load_application(target).app(deployment, application=application)


def load_application(target: str) -> Application:
    """Return the application of a Serve YAML or `module:app`, with all its deployments.

    The module is imported as Serve would import it, with the working directory on the import path.

    Raises:
        ConfigError: the file or the module does not exist, or contains no application.
    """
    document = read_document(target)
    problems = find_schema_problems(document)
    if problems:
        found = "; ".join(f"{where}: {what}" if where else what for where, what in problems)
        raise ConfigError(
            f"{target} is not a Serve config: {found}", hint="`serve run` reports the same error"
        )
    return import_application(target, document)


def read_document(target: str) -> dict[str, Any]:
    """Return the content of a Serve YAML, or an equivalent for `module:app`.

    A YAML with Kubernetes manifests has its Serve config in a RayService. The function does not
    import the module.

    Raises:
        ConfigError: the target is neither a YAML nor `module:app`, or the YAML cannot be read, has
            no applications, or has more than one Serve config.
    """
    if _is_yaml(target):
        return _read_yaml(target)
    if ":" in target:
        return {"applications": [{"import_path": target}]}
    raise ConfigError(
        f"{target!r} must be a Serve YAML file or have the form module:app",
        hint="for example serve.yaml, or deployments.text_embedder.app:embedder",
    )


WRITES_ONE = "serve-warm init module:app --write writes one"


def _is_yaml(target: str) -> bool:
    return target.endswith((".yaml", ".yml"))


def _read_yaml(target: str) -> dict[str, Any]:
    try:
        documents = list(yaml.safe_load_all(read_regular(target).decode()))
        services = [each for each in documents if _is_ray_service(each)]
        found = [each for each in map(_config_of, services or documents) if each is not None]
    except FileNotFoundError as error:
        raise ConfigError(
            f"{target} does not exist",
            hint=did_you_mean(target, map(str, Path(target).parent.glob("*.y*ml"))) or WRITES_ONE,
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(
            f"{target} is not YAML: {place}{error.problem}", hint="correct the file"
        ) from error
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: not UTF-8
        raise ConfigError(f"{target} cannot be read: {error}", hint=explain_pipe(error)) from error
    if not found:
        raise ConfigError(
            f"{target} has no applications",
            hint=f"a Serve config has a list `applications`; {WRITES_ONE}",
        )
    if len(found) > 1:
        raise ConfigError(
            f"{target} has {len(found)} Serve configs, and serve-warm takes one",
            hint="split the file",
        )
    if len(documents) > 1 and not services:
        raise ConfigError(
            f"{target} has {len(documents)} YAML documents, but Serve reads only files with one",
            hint="split the file; only the manifest of a RayService may have others beside it",
        )
    return found[0]


def _is_ray_service(document: object) -> bool:
    return isinstance(document, dict) and document.get("kind") == "RayService"


def _config_of(document: Any) -> dict[str, Any] | None:
    """Return the Serve config that a document of a YAML is, or that a RayService contains."""
    if _is_ray_service(document):
        spec = document.get("spec")
        text = spec.get(OF_RAY_SERVICE) if isinstance(spec, dict) else None
        document = yaml.safe_load(text) if isinstance(text, str) else None
    if isinstance(document, dict) and document.get("applications"):
        return document
    return None


OF_RAY_SERVICE = "serveConfigV2"
"""The field of a RayService with its Serve config, which is a text."""


def find_schema_problems(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the errors that Serve's own schema finds in a config, as pairs of field and message.

    The field is empty if Serve accepts each field of the file, but not all of them together. The
    schema uses pydantic 1 in Ray 2.53, and pydantic 2 in Ray 2.60.
    """
    from ray.serve.schema import ServeDeploySchema

    schema: Any = ServeDeploySchema
    check = schema.model_validate if hasattr(schema, "model_validate") else schema.parse_obj
    try:
        check(document)
    except ValueError as error:  # the base of ValidationError in both versions
        found: Any = error
        return _in_fields([(tuple(each["loc"]), each["msg"]) for each in found.errors()])
    return []


def _in_fields(errors: Sequence[tuple[tuple[int | str, ...], str]]) -> list[tuple[str, str]]:
    """Return errors with the names of their fields, without errors that follow from others.

    pydantic 1 also checks a section as a whole if one of its fields is wrong, and passes the
    section without this field. pydantic 2 leaves this check out.
    """

    def follows(place: tuple[int | str, ...]) -> bool:
        section, last = place[:-1], place[-1:]
        within = [each for each, _ in errors if each[: len(section)] == section]
        return last == (WHOLE,) and any(each != place for each in within)

    return [
        (".".join(str(part) for part in place if part != WHOLE), message)
        for place, message in errors
        if not follows(place)
    ]


WHOLE = "__root__"
"""pydantic 1 adds this name to the place of an error of a whole section."""


def import_application(target: str, document: Mapping[str, Any]) -> Application:
    """Return the only application in a valid Serve config.

    Raises:
        ConfigError: the config has several applications, or its application cannot be imported.
    """
    applications = document["applications"]
    if len(applications) != 1:
        names = [a.get("name") for a in applications]
        raise ConfigError(
            f"{target} has {len(applications)} applications: {names}",
            hint="serve-warm builds for one application at a time: split the file, or pass "
            "module:app",
        )
    from serve_warm.private_apis.ray_serve import build_app

    if os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    config = dict(applications[0])
    imported = _import_bound(config)
    bound = _warming(config, imported)
    built = build_app(bound, name="serve_warm").deployments
    return Application(
        target=target,
        document=document,
        config=config,
        bound=bound,
        deployments={each.name: each for each in built},
        overrides={d["name"]: d for d in config.get("deployments") or ()},
        is_wrapped=bound is not imported,
    )


def _warming(config: Mapping[str, Any], bound: Any) -> Any:
    """Return an application that names no serve_warm as `serve_warm.app:wrap` would return it."""
    from serve_warm.app import wrap_application
    from serve_warm.private_apis.ray_serve import build_app
    from serve_warm.replica.serve.deployment import WarmupMixin

    classes = [each.func_or_class for each in build_app(bound, name="serve_warm").deployments]
    if any(isinstance(each, type) and issubclass(each, WarmupMixin) for each in classes):
        return bound
    logger.info("%s names no serve_warm, so it is wrapped", config["import_path"])
    return wrap_application(bound, settings={"artifact": None})  # how it is run is not known


def _imports_serve_warm(module: str) -> bool:
    """Return whether the source of a module, which is not imported here, imports serve_warm."""
    try:
        spec = importlib.util.find_spec(module)
        source = read_regular(spec.origin) if spec is not None and spec.origin else b""
        nodes = list(_walk_module(ast.parse(source)))
    except (ImportError, OSError, SyntaxError, ValueError):
        return True  # the import will say what is wrong
    names = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    absolute = (node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level)
    names += [node.module or "" for node in absolute]
    return any(name.partition(".")[0] == PACKAGE for name in names)


def _walk_module(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield what runs when a module is imported: all but the bodies of functions."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def _import_bound(config: Mapping[str, Any]) -> Any:
    """Return the application object that `import_path` names."""
    from serve_warm.app import import_app

    path, args = str(config["import_path"]), config.get("args") or {}
    module = path.rpartition(":")[0]
    if not module or _imports_serve_warm(module):
        return import_app(path, args, setting="import_path")
    from serve_warm.replica.serve.wrapped import compile_taken

    with compile_taken():  # the module may compile at module level
        return import_app(path, args, setting="import_path")


def _gang_size(deployment: Any, options: Mapping[str, Any]) -> int:
    """Return the number of replicas that Serve starts as one gang; 1 without a gang."""
    from serve_warm.private_apis.ray_serve import gang_config_of

    gang = options.get("gang_scheduling_config") or gang_config_of(deployment)
    return int(gang["gang_size"] if isinstance(gang, Mapping) else getattr(gang, "gang_size", 1))
