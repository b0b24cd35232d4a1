# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Mistakes in an application that can be seen in seconds, before Ray or a replica is started.

A problem is certain: a build or a start meets it. A warning is what only the replica's machine
can tell, or what the source alone does not prove. Nothing here starts Ray or runs an `__init__`.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from serve_warm._store_address import is_relative
from serve_warm._suggestions import did_you_mean, nearest
from serve_warm.artifact.statements import STATEMENTS, statement_keys
from serve_warm.builder.app import (
    Application,
    find_schema_problems,
    import_application,
    read_document,
)
from serve_warm.builder.check_inputs import check_inputs
from serve_warm.builder.problems import Checked, Problem
from serve_warm.builder.sources import modules_without_compile
from serve_warm.config import WarmupConfig, resolve
from serve_warm.errors import ConfigError, StoreError
from serve_warm.stores import open_store

STORE_LIMIT_S = 10.0
"""A store that has not answered by then is a problem."""


def check(
    target: str,
    *,
    deployment: str | None = None,
    store: str | None = None,
    environ: Mapping[str, str],
    limit_s: float = STORE_LIMIT_S,
) -> Checked:
    """Return what is wrong with an application, and with the stores that it names.

    Args:
        target: a Serve YAML or `module:app`. Its module is imported.
        deployment: check only this one of those that use WarmupMixin.
        store: what `serve-warm build --store` is given, to compare with what the application says.
        environ: the environment that replicas start with, below what their `runtime_env` sets.
        limit_s: seconds that each store has for an answer.

    Raises:
        ConfigError: the application cannot be read or imported, so nothing can be said of it.
    """
    document = read_document(target)
    broken = find_schema_problems(document)
    if broken:
        fix = "correct it: Serve refuses the file as it is"
        return check_keys(target, document) + Checked(
            problems=tuple(
                Problem(where=f"{target}: {where}", what=what, fix=fix) for where, what in broken
            )
        )
    application = import_application(target, document)
    checked = check_application(application, deployment=deployment, environ=environ)
    for name in _names(application, deployment):
        checked += check_store(application, name, store, environ=environ, limit_s=limit_s)
    return checked


def check_application(
    application: Application, *, deployment: str | None = None, environ: Mapping[str, str]
) -> Checked:
    """Return what is wrong with an application, without a look at its stores."""
    checked = check_keys(application.target, application.document)
    checked += _check_names(application, deployment)
    for name in _names(application, deployment):
        try:
            resolve_settings(application, name, environ)
        except ConfigError as error:
            where = f"{name}: user_config.warmup"
            found = Problem(where=where, what=error.message, fix=error.hint)
            checked += Checked(problems=(found,))
        checked += check_inputs(application, name)
        checked += _check_compiled(application.warming[name], name)
    return checked


def _names(application: Application, deployment: str | None) -> list[str]:
    names = list(application.warming)
    return names if deployment is None else [name for name in names if name == deployment]


def resolve_settings(
    application: Application, deployment: str, environ: Mapping[str, str]
) -> WarmupConfig:
    """Return the warm-up settings that a replica will have.

    Raises:
        ConfigError: one is unknown, or its value is out of range.
    """
    return resolve(
        application.warming[deployment].warmup_config,
        user_config=application.option(deployment, "user_config"),
        environ={**environ, **(_runtime_env(application, deployment).get("env_vars") or {})},
    )


def _runtime_env(application: Application, deployment: str) -> Mapping[str, Any]:
    actor = application.option(deployment, "ray_actor_options") or {}
    own: Mapping[str, Any] | None = actor.get("runtime_env")
    return application.runtime_env if own is None else own


# Names and keys ---------------------------------------------------------------------------------


def check_keys(target: str, document: Mapping[str, Any]) -> Checked:
    """Return the keys of a Serve YAML that this Ray does not know, and so ignores.

    At the top of the file and in the options of the proxies Serve means to ignore what a later
    release has: there they are warnings. Keys that begin with `x-` are left alone.
    """
    from ray.serve import schema

    def unknown(found: Any, known: Any, where: str) -> list[Problem]:
        names = _field_names(known)
        return [
            Problem(
                where=f"{target}: {where}{key}",
                what="this Ray Serve knows no such key, and ignores it",
                fix=did_you_mean(str(key), names) or f"known keys: {', '.join(sorted(names))}",
            )
            for key in (found if isinstance(found, Mapping) else ())
            if key not in names and not str(key).startswith("x-")
        ]

    warnings = unknown(document, schema.ServeDeploySchema, "")
    warnings += unknown(document.get("http_options"), schema.HTTPOptionsSchema, "http_options.")
    warnings += unknown(document.get("grpc_options"), schema.gRPCOptionsSchema, "grpc_options.")
    problems = []
    for application in _mappings(document.get("applications")):
        problems += unknown(application, schema.ServeApplicationSchema, "")
        for options in _mappings(application.get("deployments")):
            where = f"deployments.{options.get('name')}."
            problems += unknown(options, schema.DeploymentSchema, where)
            actor = options.get("ray_actor_options")
            actor_keys = f"{where}ray_actor_options."
            problems += unknown(actor, schema.RayActorOptionsSchema, actor_keys)
    return Checked(problems=tuple(problems), warnings=tuple(warnings))


def _mappings(found: Any) -> list[Mapping[str, Any]]:
    return [each for each in (found if isinstance(found, list) else ()) if isinstance(each, dict)]


def _field_names(schema: Any) -> set[str]:
    """Return the members of a model of pydantic 1 or 2, by each name that they may have."""
    fields = schema.model_fields if hasattr(schema, "model_fields") else schema.__fields__
    return {*fields, *(field.alias for field in fields.values() if field.alias)}


def _check_names(application: Application, deployment: str | None) -> Checked:
    known, warming = sorted(application.deployments), list(application.warming)
    problems = [
        Problem(
            where=f"{application.target}: deployments.{name}",
            what="the application has no deployment of this name, and Serve refuses that",
            fix=did_you_mean(name, known) or f"its deployments: {', '.join(known)}",
        )
        for name in sorted(application.overrides.keys() - application.deployments.keys())
    ]
    if not warming:
        problems.append(
            Problem(
                where=application.target,
                what="no deployment uses WarmupMixin",
                fix="add WarmupMixin to the bases of the class, or decorate it with @warmup",
            )
        )
    elif deployment is not None and deployment not in warming:
        problems.append(
            Problem(
                where=f"--deployment {deployment}",
                what="no deployment of this name uses WarmupMixin",
                fix=did_you_mean(deployment, warming) or f"those that do: {', '.join(warming)}",
            )
        )
    return Checked(problems=tuple(problems), warnings=tuple(_unread_settings(application)))


def _unread_settings(application: Application) -> Iterator[Problem]:
    for name in sorted(application.deployments.keys() - application.warming.keys()):
        user_config = application.option(name, "user_config")
        if isinstance(user_config, Mapping) and "warmup" in user_config:
            yield Problem(
                where=f"{name}: user_config.warmup",
                what="the class does not use WarmupMixin, so serve_warm does not read this",
                fix="add WarmupMixin to its bases, or ignore this if the key is your own",
            )
    for name in application.warming:
        user_config = application.option(name, "user_config")
        keys = [str(key) for key in user_config] if isinstance(user_config, Mapping) else []
        for key in keys if "warmup" not in keys else ():
            if nearest(key, ["warmup"], likeness=0.8):
                yield Problem(
                    where=f"{name}: user_config.{key}",
                    what="serve_warm reads its settings below the key `warmup`, and there is none",
                    fix="did you mean 'warmup'?",
                )


# The source --------------------------------------------------------------------------------------


def _check_compiled(cls: type, name: str) -> Checked:
    looked_at = modules_without_compile(cls)
    if not looked_at:
        return Checked()
    found = Problem(
        where=name,
        what="no torch.compile or serve_warm.compile was found in the source of "
        f"{', '.join(looked_at)}; only the source was read, so a library may still compile",
        fix="compile the model with serve_warm.compile(model); an application that compiles "
        "nothing needs no artifact",
    )
    return Checked(warnings=(found,))


# Stores -----------------------------------------------------------------------------------------


def check_store(
    application: Application,
    deployment: str,
    store: str | None,
    *,
    environ: Mapping[str, str],
    limit_s: float = STORE_LIMIT_S,
) -> Checked:
    """Return what is wrong with the store that a deployment names, and with `store` beside it."""
    checked = compare_stores(application, deployment, store, environ=environ)
    uri = _artifact(application, deployment, environ)
    if uri is None:
        return checked
    where = f"{deployment}: artifact {uri}"
    try:
        found = ask_store(uri, deployment, limit_s=limit_s)
    except (ConfigError, StoreError) as error:
        fix = error.hint or "check the address, the network and the credentials"
        return checked + Checked(problems=(Problem(where=where, what=error.message, fix=fix),))
    if found:
        return checked
    missing = tuple(_find_missing_folder(uri, where))
    if missing:
        return checked + Checked(problems=missing)
    empty = Problem(
        where=where,
        what=f"nothing is published there for {deployment!r}: its replicas compile at each start",
        fix=f"serve-warm build {application.target} --store {uri}",
    )
    return checked + Checked(warnings=(empty,))


def _find_missing_folder(uri: str, where: str) -> Iterator[Problem]:
    """Yield the problem of a folder that is not there, beside a store of nearly the same name.

    A folder that `build` will make is no problem.
    """
    address = open_store(uri).uri
    folder = Path(urllib.parse.unquote(address.removeprefix("file://")))
    if not address.startswith("file://") or folder.exists() or not folder.parent.is_dir():
        return
    stores = [each.name for each in folder.parent.iterdir() if (each / STATEMENTS).is_dir()]
    near = did_you_mean(folder.name, stores)
    if near:
        yield Problem(where=where, what=f"{folder} does not exist", fix=near)


def compare_stores(
    application: Application, deployment: str, store: str | None, *, environ: Mapping[str, str]
) -> Checked:
    """Return whether replicas would look where `build` publishes; nothing is asked of a store."""
    uri = _artifact(application, deployment, environ)
    if uri is None:
        return Checked()
    where = f"{deployment}: artifact {uri}"
    checked = Checked()
    if store is not None and not _is_same_store(uri, store):
        found = Problem(
            where=where,
            what=f"--store is another one: {_address(store)}; replicas look in {_address(uri)}",
            fix=f"set artifact: {_address(store)}, or pass --store {uri}",
        )
        checked += Checked(problems=(found,))
    if is_relative(uri):
        in_copy = "working_dir" in _runtime_env(application, deployment)
        place = "Ray's copy of working_dir" if in_copy else "the folder that a replica works in"
        found = Problem(
            where=where,
            what=f"a relative path: here it is {_address(uri)}, on a cluster it is in {place}",
            fix="name an absolute path that every node has, such as file:///srv/artifacts, or a "
            "bucket; `serve run` on one machine needs no change",
        )
        checked += Checked(warnings=(found,))
    return checked


def _artifact(application: Application, deployment: str, environ: Mapping[str, str]) -> str | None:
    try:
        settings = resolve_settings(application, deployment, environ)
    except ConfigError:
        return None  # which is a problem of its own
    return settings.artifact if settings.enabled else None


def _address(uri: str) -> str:
    """Return a store's address with its path written out; as it is where it is no address."""
    try:
        return open_store(uri).uri
    except (ConfigError, StoreError):
        return uri


def _is_same_store(uri: str, other: str) -> bool:
    found, wanted = _address(uri).rstrip("/"), _address(other).rstrip("/")
    if found.startswith("file://") and wanted.startswith("file://"):
        folders = [urllib.parse.unquote(each.removeprefix("file://")) for each in (found, wanted)]
        return os.path.realpath(folders[0]) == os.path.realpath(folders[1])
    return found == wanted


def ask_store(uri: str, deployment: str, *, limit_s: float = STORE_LIMIT_S) -> list[str]:
    """Return the statements that a store has for a deployment.

    Raises:
        ConfigError: it is no address of a store.
        StoreError: the store cannot be read, or did not answer in time.
    """
    store = open_store(uri)
    folder = Path(urllib.parse.unquote(store.uri.removeprefix("file://")))
    if store.uri.startswith("file://") and folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, and a store is a folder", hint="name a folder")
    answers: list[list[str] | StoreError] = []

    def ask() -> None:
        try:
            answers.append(statement_keys(store, deployment))
        except StoreError as error:
            answers.append(error)

    # A daemon: a store that never answers must not keep the process.
    asking = threading.Thread(target=ask, name="serve_warm-check", daemon=True)
    asking.start()
    asking.join(limit_s)
    if not answers:
        raise StoreError(
            f"{store.uri} did not answer within {limit_s:.0f} s",
            hint="check the address, the network and the credentials",
        )
    if isinstance(answers[0], StoreError):
        raise answers[0]
    return answers[0]


def to_json(checked: Checked, *, seconds: float) -> dict[str, Any]:
    """Return what `serve-warm check --json` writes."""
    return {
        "problems": [dataclasses.asdict(each) for each in checked.problems],
        "warnings": [dataclasses.asdict(each) for each in checked.warnings],
        "seconds": round(seconds, 3),
    }


def to_lines(found: Iterable[Problem], *, label: str) -> Sequence[str]:
    """Return problems as text: two lines each."""
    return [
        line
        for each in found
        for line in (f"{label}: {each.where}: {each.what}", f"  fix: {each.fix}")
    ]
