# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Warms an application that names no serve_warm: `import_path: serve_warm.app:wrap`.

    applications:
      - name: scorer
        import_path: serve_warm.app:wrap
        args: {app: app:app, artifact: s3://bucket/scorer}

`wrap` is a builder function of Serve: it works with `serve run`, `serve deploy` and KubeRay. It
imports the application, and returns it with other classes of the same names.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from serve_warm._package import public
from serve_warm.config import WarmupConfig, environment, resolve
from serve_warm.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from ray.serve import Application

logger = logging.getLogger(__name__)

WRAP = "serve_warm.app:wrap"
"""Import path of `wrap`, for a Serve config."""

OWN_ARGUMENTS = ("app", "args", "compile")
"""The arguments of `wrap` that are no settings of the warm-up."""

LEFT_ALONE = ("ray.llm.", "ray.serve.llm.")
"""Modules whose deployments have a start-up and caches of their own."""


@public
def wrap(args: Mapping[str, Any]) -> Application:
    """Return a Serve application whose replicas warm up, without a change of its code.

    `args` has the import path of the application as `app`, and the arguments of its own builder
    function, if it has one, as `args`. `compile` lists attributes that become compiled modules
    after `__init__`, as `model` or `pipe.unet`; with several deployments it is a mapping of their
    names to such lists. All other keys are settings of the warm-up (`WarmupConfig`). Without
    `artifact`, a folder of this user is the store.

    Raises:
        ConfigError: `app` is missing or cannot be imported, or a setting is unknown.
    """
    if not isinstance(args, Mapping) or not isinstance(args.get("app"), str):
        raise ConfigError(
            "serve_warm.app:wrap needs the import path of the application as `app`",
            hint="for example args: {app: app:app}",
        )
    _refuse_unknown(args)
    from serve_warm.replica.serve.wrapped import compile_taken

    with compile_taken():  # its modules may compile at module level
        bound = import_app(args["app"], _builders_arguments(args))
    made: Application = wrap_application(
        bound,
        settings={name: value for name, value in args.items() if name not in OWN_ARGUMENTS},
        to_compile=_check_names(args.get("compile") or ()),
    )
    return made


Names = Sequence[str] | Mapping[str, Sequence[str]]
"""Attributes to compile: of the only deployment, or by deployment."""


def wrap_application(bound: Any, *, settings: Mapping[str, Any], to_compile: Names = ()) -> Any:
    """Return a bound application whose deployments warm up.

    A deployment that has the mixin already stays as it is.

    Raises:
        ConfigError: a setting is unknown or out of range, or `to_compile` fits no deployment.
    """
    from serve_warm.private_apis.ray_serve import map_deployments

    config, names = configure(settings), list[str]()
    by_name = to_compile if isinstance(to_compile, Mapping) else {}
    for_all = () if isinstance(to_compile, Mapping) else to_compile

    def change(deployment: Any) -> Any:
        name, found = str(deployment.name), deployment.func_or_class
        names.append(name)
        own = by_name.get(name, for_all)
        new = _wrapped(name, found, config, own)
        if own and (new is None or not inspect.isclass(found)):
            raise ConfigError(
                f"`compile` names attributes of {name}, which is a function or stays as it is",
                hint="name attributes of classes that are wrapped",
            )
        return deployment if new is None else deployment.options(func_or_class=new)

    made = map_deployments(bound, change)
    problem = ""
    if for_all and len(names) > 1:
        problem = f"`compile` is a list, but the application has {len(names)} deployments"
    elif unknown := sorted(by_name.keys() - set(names)):
        problem = f"`compile` names {unknown[0]!r}, but the application has no such deployment"
    if problem:
        raise ConfigError(
            problem,
            hint=f"for example compile: {{{names[0]}: [model]}}; its deployments: "
            f"{', '.join(sorted(names))}",
        )
    return made


def _wrapped(name: str, found: Any, config: WarmupConfig, names: Sequence[str]) -> type | None:
    """Return the class to use instead, or None if the deployment stays as it is."""
    from serve_warm.replica.serve.deployment import WarmupMixin
    from serve_warm.replica.serve.wrapped import wrap_class, wrap_function

    module = f"{getattr(found, '__module__', '')}."
    if module.startswith(LEFT_ALONE):
        logger.info("%s is left alone: Ray Serve LLM has its own start-up and caches", name)
        return None
    if isinstance(found, type) and issubclass(found, WarmupMixin):
        logger.info("%s has WarmupMixin already, so it is left as it is", name)
        return None
    try:
        if not inspect.isclass(found):
            return wrap_function(found, config)
        return wrap_class(found, config, to_compile=names)
    except TypeError as error:  # of a metaclass or `__init_subclass__`, for example
        logger.warning("%s is left as it is: its class allows no subclass: %s", name, error)
        return None


def configure(settings: Mapping[str, Any]) -> WarmupConfig:
    """Return the settings of a wrapped application, below the environment and the `user_config`.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """
    given = {"artifact": users_store(), "record": "signatures", **settings}
    return resolve(
        WarmupConfig(), user_config={"warmup": given}, environ={}, section_name="args of wrap: "
    )


def users_store() -> str:
    """Return the address of the folder that serves this user on one machine."""
    data = environment().get("XDG_DATA_HOME") or "~/.local/share"
    return (Path(data).expanduser() / "serve_warm" / "artifacts").absolute().as_uri()


def import_app(path: str, arguments: Mapping[str, Any], *, setting: str = "app") -> Any:
    """Return the application that an import path names, built with these arguments if it can be.

    `setting` is the name of the path in errors.

    Raises:
        ConfigError: it cannot be imported, is no application, or does not accept the arguments.
    """
    from serve_warm.private_apis.ray_serve import call_app_builder

    module, _, attribute = path.rpartition(":")
    try:
        bound = getattr(_import_anew(module), attribute)
    except AttributeError as error:
        found = sys.modules.get(module)
        known = [name for name in vars(found or object) if not name.startswith("_")]
        question = did_you_mean(attribute, known)
        raise ConfigError(
            f"{setting} {path!r} cannot be imported: {error}",
            hint=question or f"name what `serve run` would get, an application in {module}",
        ) from error
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{setting} {path!r} cannot be imported: {error}",
            hint="run this command in the folder where you would run `serve run`, with an import "
            "path such as app:app",
        ) from error
    try:
        return call_app_builder(bound, arguments)
    except TypeError as error:
        raise ConfigError(
            f"{setting} {path!r} does not refer to an application: {error}",
            hint="bind the deployment (app = TextEmbedder.bind()), and use app in the import path",
        ) from error
    except ValueError as error:  # also pydantic's, if the argument's type rejects the args
        if not arguments and not hasattr(error, "errors"):
            raise  # the function itself raised this
        raise ConfigError(
            f"{setting} {path!r} does not accept these args: {' '.join(str(error).split())}",
            hint=f"the function in {setting} gets the value of args as its only argument",
        ) from error


def _import_anew(module: str) -> Any:
    """Return a module, reloaded if this module has been reloaded since.

    `serve run --reload` reloads the module of its import path, which is this one.
    """
    before, IMPORTED[module] = IMPORTED.get(module, RELOADS), RELOADS
    if before != RELOADS and module in sys.modules:
        return importlib.reload(sys.modules[module])
    return importlib.import_module(module)


# A reload keeps the names of the module.
RELOADS: int = vars(sys.modules[__name__]).get("RELOADS", -1) + 1
"""How often this module has been reloaded."""

IMPORTED: dict[str, int] = vars(sys.modules[__name__]).get("IMPORTED", {})
"""For each module that `wrap` has imported, how often this module had been reloaded then."""


def _builders_arguments(args: Mapping[str, Any]) -> Mapping[str, Any]:
    given = args.get("args") or {}
    if isinstance(given, str):  # from a command line
        given = yaml.safe_load(given)
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"`args` is {given!r}, not a mapping",
            hint="it has the arguments of your own builder function",
        )
    return given


def _refuse_unknown(args: Mapping[str, Any]) -> None:
    known = [*OWN_ARGUMENTS, *WarmupConfig.model_fields]
    unknown = sorted(str(name) for name in args if name not in known)
    if unknown:
        raise ConfigError(
            f"args of serve_warm.app:wrap have unknown keys: {', '.join(unknown)}",
            hint=did_you_mean(unknown[0], known)
            or "arguments of your own builder function belong into `args`",
        )


def _check_names(given: Any) -> Names:
    lists = list(given.values()) if isinstance(given, Mapping) else [given]
    for each in lists:
        if not isinstance(each, (list, tuple)) or not all(isinstance(name, str) for name in each):
            raise ConfigError(
                f"`compile` has {each!r} in place of a list of attributes",
                hint="for example compile: [model, pipe.unet]",
            )
    names: Names = given
    return names
