# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The quick checks of an application, which start neither Ray nor a replica.

A problem is a finding that is certain to affect a build or a start. A warning depends on the
replica's machine, or cannot be proven from the source. No check runs an `__init__`.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from serve_warm.app import WRAP
from serve_warm.builder.app import (
    Application,
    find_schema_problems,
    import_application,
    read_document,
)
from serve_warm.builder.check_inputs import check_inputs
from serve_warm.builder.check_store import check_store
from serve_warm.builder.problems import CheckFindings, Problem
from serve_warm.errors import ConfigError, did_you_mean, nearest
from serve_warm.replica.serve.loop_blocks import MOST_FAILED


def check(
    target: str,
    *,
    deployment: str | None = None,
    store: str | None = None,
    environ: Mapping[str, str],
) -> CheckFindings:
    """Return the problems with an application and with its stores.

    Args:
        target: a Serve YAML or `module:app`. Its module is imported.
        deployment: check only this deployment, which must use WarmupMixin.
        store: the store that `serve-warm build --store` will name, to compare with the
            application's store.
        environ: the environment of replicas; their `runtime_env` overrides it.

    Raises:
        ConfigError: the application cannot be read or imported, and so cannot be checked.
    """
    document = read_document(target)
    broken = find_schema_problems(document)
    if broken:
        fix = "correct the file: Serve does not accept it"
        return check_keys(target, document) + CheckFindings(
            problems=tuple(
                Problem(where=f"{target}: {where}" if where else target, what=what, fix=fix)
                for where, what in broken
            )
        )
    application = import_application(target, document)
    checked = check_application(application, deployment=deployment, environ=environ)
    for name in _names(application, deployment):
        checked += check_store(application, name, store, environ=environ)
    return checked


def check_application(
    application: Application, *, deployment: str | None = None, environ: Mapping[str, str]
) -> CheckFindings:
    """Return the problems with an application, without checking its stores."""
    checked = check_keys(application.target, application.document)
    checked += _check_names(application, deployment)
    for name in _names(application, deployment):
        longest_s = 0.0
        try:
            settings = application.settings(name, environ)
            if MOST_FAILED not in application.variables_of(name):
                longest_s = settings.input_deadline_s
        except ConfigError as error:
            where = f"{name}: user_config.warmup"
            found = Problem(where=where, what=error.message, fix=error.hint)
            checked += CheckFindings(problems=(found,))
        checked += check_inputs(application, name, longest_s=longest_s)
    return checked


def _names(application: Application, deployment: str | None) -> list[str]:
    names = list(application.warming)
    return names if deployment is None else [name for name in names if name == deployment]


# Names and keys ---------------------------------------------------------------------------------


def check_keys(target: str, document: Mapping[str, Any]) -> CheckFindings:
    """Return the keys of a Serve YAML that this version of Ray does not know and therefore ignores.

    At the top level and in the proxy options, Serve ignores unknown keys on purpose, because a
    later release may define them. So an unknown key at the top level or in the proxy options is
    only a warning. Keys that begin with `x-` are allowed.
    """
    from ray.serve import schema

    def unknown(found: Any, known: Any, where: str) -> list[Problem]:
        names = _field_names(known)
        return [
            Problem(
                where=f"{target}: {where}{key}",
                what="this version of Ray Serve does not know this key, and ignores it",
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
    return CheckFindings(problems=tuple(problems), warnings=tuple(warnings))


def _mappings(found: Any) -> list[Mapping[str, Any]]:
    return [each for each in (found if isinstance(found, list) else ()) if isinstance(each, dict)]


def _field_names(schema: Any) -> set[str]:
    """Return the field names and aliases of a pydantic 1 or pydantic 2 model."""
    fields = schema.model_fields if hasattr(schema, "model_fields") else schema.__fields__
    return {*fields, *(field.alias for field in fields.values() if field.alias)}


def _check_names(application: Application, deployment: str | None) -> CheckFindings:
    known, warming = sorted(application.deployments), list(application.warming)
    problems = [
        Problem(
            where=f"{application.target}: deployments.{name}",
            what="the application has no deployment of this name, so Serve refuses the application",
            fix=did_you_mean(name, known) or f"the application's deployments: {', '.join(known)}",
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
                fix=did_you_mean(deployment, warming)
                or f"deployments with WarmupMixin: {', '.join(warming)}",
            )
        )
    checked = CheckFindings(problems=tuple(problems), warnings=tuple(_unread_settings(application)))
    return checked + _check_wrapped(application) + _unread_keys(application)


def _unread_settings(application: Application) -> Iterator[Problem]:
    for name in sorted(application.deployments.keys() - application.warming.keys()):
        user_config = application.option(name, "user_config")
        if isinstance(user_config, Mapping) and "warmup" in user_config:
            yield Problem(
                where=f"{name}: user_config.warmup",
                what="the class does not use WarmupMixin, so serve_warm ignores this setting",
                fix="add WarmupMixin to the bases of the class, or ignore this warning if your own "
                "code reads the key",
            )


def _check_wrapped(application: Application) -> CheckFindings:
    """Return a warning if Serve would start an application as it is, without serve_warm."""
    path = application.config["import_path"]
    if not (application.is_wrapped and application.is_from_file) or path == WRAP:
        return CheckFindings()
    found = Problem(
        where=f"{application.target}: import_path",
        what=f"{path} is not wrapped, so Serve starts it without serve_warm",
        fix=f"set import_path: {WRAP} and args: {{app: {path}}}, as serve-warm init "
        f"{shlex.quote(application.target)} proposes for a Serve config",
    )
    return CheckFindings(warnings=(found,))


def _unread_keys(application: Application) -> CheckFindings:
    """Return the keys of `user_config` beside `warmup` that nothing reads, or may not.

    A class with a `reconfigure` of its own may read any key. Without one, the start fails.
    """
    checked = CheckFindings()
    for name, cls in application.warming.items():
        user_config = application.option(name, "user_config")
        keys = [str(key) for key in user_config] if isinstance(user_config, Mapping) else []
        for key in keys:
            question = did_you_mean(key, ["warmup"])
            where = f"{name}: user_config.{key}"
            if key == "warmup":
                continue
            if not hasattr(cls, "reconfigure"):
                fix = question or f"remove the key, or define reconfigure in {cls.__name__}"
                what = "the class has no reconfigure method, so a start with this key fails"
                checked += CheckFindings(problems=(Problem(where=where, what=what, fix=fix),))
            elif question and "warmup" not in keys and nearest(key, ["warmup"], likeness=0.8):
                what = "serve_warm reads only settings under the key `warmup`, which is missing"
                checked += CheckFindings(warnings=(Problem(where=where, what=what, fix=question),))
    return checked


# Output -----------------------------------------------------------------------------------------


def to_json(checked: CheckFindings, *, seconds: float) -> dict[str, Any]:
    """Return the data that `serve-warm check --json` writes."""
    return {
        "problems": [dataclasses.asdict(each) for each in checked.problems],
        "warnings": [dataclasses.asdict(each) for each in checked.warnings],
        "notes": [dataclasses.asdict(each) for each in checked.notes],
        "seconds": round(seconds, 3),
    }


def to_lines(found: Iterable[Problem], *, label: str) -> Sequence[str]:
    """Return the findings as text, with two lines for each finding."""
    return [
        line
        for each in found
        for line in (f"{label}: {each.where}: {each.what}", f"  fix: {each.fix}")
    ]
