# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of a deployment's store: what a start on this machine would find there."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from typing import TypeVar

from serve_warm._daemon_threads import begin
from serve_warm._records import record
from serve_warm._store_address import folder_of, is_relative
from serve_warm.artifact import catalog, choose, pull
from serve_warm.artifact.choose import Candidate
from serve_warm.artifact.code_and_model import CodeAndModel
from serve_warm.artifact.manifest import Place
from serve_warm.artifact.statements import STATEMENTS, statement_keys
from serve_warm.builder.app import Application
from serve_warm.builder.problems import CheckFindings, Problem
from serve_warm.config import WarmupConfig
from serve_warm.errors import ConfigError, StoreError, did_you_mean
from serve_warm.fingerprint import Fingerprint, read_machine
from serve_warm.replica.serve.application import digest_code
from serve_warm.stores import Store, find_missing_folder, open_store
from serve_warm.trust import Trust
from serve_warm.trust.files import load_trust

STORE_LIMIT_S = 10.0
"""Maximum seconds for a store to answer. A store that does not answer in time is a problem."""

READ_LIMIT_S = 3.0
"""Maximum seconds for a store to give the artifacts of one deployment. After that, `check` only
says that it has not read them."""

CREDENTIALS = "check the address, the network and the credentials"

OF_TRUST_FILES = ("untrusted", "no_trust")
"""Reasons for a refusal that depend on the trust files of a machine."""

ELSEWHERE = ("image_uri", "container", "pip", "uv", "conda", "py_executable")
"""Keys of a runtime environment that give replicas other software than this command has."""


def check_store(
    application: Application, deployment: str, store: str | None, *, environ: Mapping[str, str]
) -> CheckFindings:
    """Return the findings about a deployment's store, which is also compared with `store`."""
    checked = compare_stores(application, deployment, store, environ=environ)
    settings = _settings(application, deployment, environ)
    if settings is None:
        return checked
    uri = settings.artifact or _default_store(application, deployment, environ)
    if uri is None:
        return checked
    where = f"{deployment}: artifact {uri}"
    try:
        place = application.place(deployment, environ)
        trust = application.warming[deployment].warmup_trust or load_trust()
        wanted = _Wanted.of(application, deployment, settings, environ)
        candidates = _read(uri, place, wanted, trust)
        if candidates is None:
            ask_store(uri, place)  # or it does not answer at all
        elif not candidates:
            # Without a setting, the note about a plan says what comes first.
            empty = (_explain_empty(application, uri, place),) if settings.artifact else ()
            return checked + CheckFindings(warnings=empty)
    except (ConfigError, StoreError) as error:
        found = Problem(where=where, what=error.message, fix=error.hint or CREDENTIALS)
        return checked + CheckFindings(problems=(found,))
    if candidates is None:
        found = Problem(
            where=where,
            what=f"the store did not give its artifacts within {READ_LIMIT_S:.0f} s, so nothing is "
            "known about their signatures and machines",
            fix=f"serve-warm diff {shlex.quote(uri)} --deployment {shlex.quote(deployment)}",
        )
        return checked + CheckFindings(warnings=(found,))
    return checked + _judge(candidates, wanted, application, deployment, uri)


def _default_store(
    application: Application, deployment: str, environ: Mapping[str, str]
) -> str | None:
    """Return the store that `serve-warm run` uses for an untouched application; None for others."""
    return application.store([deployment], environ) if application.is_wrapped else None


def compare_stores(
    application: Application, deployment: str, store: str | None, *, environ: Mapping[str, str]
) -> CheckFindings:
    """Return a problem if replicas do not read `store`, the store that `build` publishes to.

    Also return a warning if a Serve YAML has a relative path. The store is not contacted.
    """
    settings = _settings(application, deployment, environ)
    if settings is None or settings.artifact is None:
        return CheckFindings()
    uri = settings.artifact
    checked = CheckFindings()
    if store is not None and not _is_same_store(uri, store):
        found = Problem(
            where=f"{deployment}: artifact {uri}",
            what=f"--store is {_address(store)}, but the replicas read from {_address(uri)}",
            fix=f"set artifact: {_address(store)}, or pass --store {shlex.quote(uri)}",
        )
        checked += CheckFindings(problems=(found,))
    # `serve run module:app` starts replicas on this machine, in this folder.
    if is_relative(uri) and application.is_from_file:
        in_copy = "working_dir" in application.runtime_env_of(deployment)
        place = "Ray's copy of working_dir" if in_copy else "the replica's working directory"
        found = Problem(
            where=f"{application.target}: artifact {uri}",
            what=f"the path is relative: for this command, it means {_address(uri)}, but on a "
            f"cluster it means a path in {place}",
            fix="use an absolute path that every node has, such as file:///srv/artifacts, or a "
            "bucket; `serve run` on one machine needs no change",
        )
        checked += CheckFindings(warnings=(found,))
    return checked


def ask_store(uri: str, place: Place) -> list[str]:
    """Return the keys of the statements that a store has for a deployment of an application.

    Raises:
        ConfigError: `uri` is not the address of a store.
        StoreError: the store cannot be read, or did not answer in time.
    """
    store = _open(uri)
    keys = _within(
        STORE_LIMIT_S,
        lambda: statement_keys(store, application=place.application, deployment=place.deployment),
    )
    if keys is None:
        raise StoreError(
            f"{store.uri} did not answer within {STORE_LIMIT_S:.0f} s", hint=CREDENTIALS
        )
    return keys


def _open(uri: str) -> Store:
    store = open_store(uri)
    missing = find_missing_folder(store)
    if missing is not None and missing.is_file:
        raise StoreError(f"{missing}, but a store must be a folder", hint="use a folder")
    return store


Result = TypeVar("Result")


def _within(limit_s: float, ask: Callable[[], Result]) -> Result | None:
    """Return what a store answers, or None if it takes longer.

    In a daemon thread, because a store that never answers must not keep the process alive.
    """
    asking = begin(ask, name="serve_warm-check")
    return asking.result() if wait([asking], timeout=limit_s).done else None


def _settings(
    application: Application, deployment: str, environ: Mapping[str, str]
) -> WarmupConfig | None:
    try:
        settings = application.settings(deployment, environ)
    except ConfigError:
        return None  # another check reports the error
    return settings if settings.enabled else None


def _address(uri: str) -> str:
    """Return a store's address with the full path, or `uri` unchanged if it is not an address."""
    try:
        return open_store(uri).uri
    except (ConfigError, StoreError):
        return uri


def _is_same_store(uri: str, other: str) -> bool:
    found, wanted = _address(uri).rstrip("/"), _address(other).rstrip("/")
    folder, other_folder = folder_of(found), folder_of(wanted)
    if folder is None or other_folder is None:
        return found == wanted
    return os.path.realpath(folder) == os.path.realpath(other_folder)


# An empty store ---------------------------------------------------------------------------------


def _what_to_build(application: Application, deployment: str) -> tuple[str, ...]:
    """Return the first words of a build: the plan, too, if the deployment declares no inputs."""
    learns = application.warming[deployment].warmup_inputs is None
    return (application.target, *(("--plan", "plan.yaml") if learns else ()))


def _explain_empty(application: Application, uri: str, place: Place) -> Problem:
    """Return the warning for a store that has nothing for a deployment."""
    words = _what_to_build(application, place.deployment)
    if len(application.warming) > 1:
        # A plan is for one deployment.
        learn = any(each.warmup_inputs is None for each in application.warming.values())
        words += ("--deployment", place.deployment) if learn else ("--all",)
    fix = f"serve-warm build {shlex.join((*words, '--store', uri))}"
    store = open_store(uri)
    missing = find_missing_folder(store, holding=STATEMENTS)
    what = f"the store has no artifact for {place}"
    if missing is not None:
        what = f"{missing}: it has no artifact for {place}"
        fix += f", or {missing.near}" if missing.near else ""
    else:
        others = _within(READ_LIMIT_S, lambda: catalog.places(store)) or []
        what += _name_others(others, place)
        same = [name for name, deployment in others if deployment == place.deployment]
        if same:
            fix += f"; or set application: {same[0]} in user_config.warmup, if that is this one"
    return Problem(
        where=f"{place.deployment}: artifact {uri}",
        what=f"{what}; its replicas compile at each start",
        fix=fix,
    )


MOST_NAMED = 3
"""Number of other applications that a warning names."""


def _name_others(others: Sequence[tuple[str, str]], place: Place) -> str:
    if not others:
        return ""
    others = sorted(others, key=lambda each: each[1] != place.deployment)
    shown = ", ".join(f"{application}/{name}" for application, name in others[:MOST_NAMED])
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    names = [name for _, name in others]
    near = "" if place.deployment in names else did_you_mean(place.deployment, names)
    return f" (it has {shown}{more}{f'; {near}' if near else ''})"


# What a start would take --------------------------------------------------------------------------


@record(frozen=True, kw_only=True)
class _Wanted:
    """What a replica on this machine would look for, as far as it is known without one."""

    fingerprint: Fingerprint
    code: str
    """Digest of the code of the deployment's class."""
    elsewhere: str
    """What makes replicas run with other software than this command; empty if nothing does."""
    threads_variable: bool
    """Whether OMP_NUM_THREADS decides about the threads, and not `num_cpus`."""

    @classmethod
    def of(
        cls,
        application: Application,
        deployment: str,
        settings: WarmupConfig,
        environ: Mapping[str, str],
    ) -> _Wanted:
        runtime_env = application.runtime_env_of(deployment)
        variables = {**environ, **application.variables_of(deployment)}
        actor = application.option(deployment, "ray_actor_options") or {}
        elsewhere = next((key for key in ELSEWHERE if runtime_env.get(key)), "")
        machine = read_machine(variables, cpu=settings.cpu, on_no_torch="note")
        # Ray sets OMP_NUM_THREADS to the CPUs of an actor, unless its environment sets it.
        cpus = actor.get("num_cpus")
        count = int(cpus) if isinstance(cpus, (int, float)) and math.isfinite(cpus) else 1
        named = str(variables.get("OMP_NUM_THREADS") or "")
        threads = named or str(max(1, count))
        return cls(
            fingerprint=Fingerprint(machine=machine, app={"threads": threads, "cpu": settings.cpu}),
            code=digest_code(application.warming[deployment]),
            elsewhere=elsewhere,
            threads_variable=bool(named),
        )


SET_BY_CODE = frozenset(
    {
        *("grad_mode", "inference_mode", "autocast", "default_dtype", "matmul_precision"),
        *("deterministic", "torch_environment", "compile_arguments", "rank"),
    }
)
"""Factors that an application's code sets while it runs, so only a replica knows them."""


def _read(uri: str, place: Place, wanted: _Wanted, trust: Trust) -> list[Candidate] | None:
    """Return what a start would say of each artifact; None if the store is too slow."""
    store, here = _open(uri), CodeAndModel(code=wanted.code)
    found = _within(
        READ_LIMIT_S,
        lambda: pull.find_fitting(store, place=place, trust=trust, fingerprint=None, here=here),
    )
    if found is None:
        return None
    return choose.weigh(found.statements, wanted.fingerprint, trust, unknown=SET_BY_CODE)


def _judge(
    candidates: Sequence[Candidate],
    wanted: _Wanted,
    application: Application,
    deployment: str,
    uri: str,
) -> CheckFindings:
    """Return what a start would take, or why it would take nothing, in the order of a pull."""
    where = f"{deployment}: artifact {uri}"
    app = _what_to_build(application, deployment)
    build = f"serve-warm build {shlex.join((*app, '--store', uri, '--deployment', deployment))}"
    chosen = choose.choose(candidates, CodeAndModel(code=wanted.code))
    if chosen is not None:
        return _judge_chosen(chosen, candidates, wanted, where=where, uri=uri, build=build)
    refused = [each.refusal for each in candidates if each.refusal is not None]
    trace = [each.considered for each in candidates]
    if refused or all(each.reason != "fingerprint" for each in trace):
        more = f" ({len(refused) - 1} more are refused)" if len(refused) > 1 else ""
        found = Problem(
            where=where,
            what=f"{choose.say_why_none(candidates)}{more}",
            fix=(refused[0].hint if refused else CREDENTIALS) or build,
        )
        if refused and refused[0].reason not in OF_TRUST_FILES:
            return CheckFindings(problems=(found,))
        return CheckFindings(warnings=(found,))  # replicas may have other trust files
    nearest = min(trace, key=lambda each: len(each.mismatches))
    differs = "; ".join(map(str, nearest.mismatches))
    what = f"no artifact fits this machine; {nearest.statement} is the nearest: {differs}"
    fix = choose.find_hint(trace, nearest, uri, app=app)
    if {each.factor for each in nearest.mismatches} == {"threads"} and wanted.threads_variable:
        fix = f"set OMP_NUM_THREADS as in the build, or {build}"
    if wanted.elsewhere:
        what += f". Replicas have their own software by {wanted.elsewhere}, which is not known here"
        fix = f"serve-warm diff {shlex.quote(uri)} in the replicas' image"
    return CheckFindings(warnings=(Problem(where=where, what=what, fix=fix),))


def _judge_chosen(
    chosen: choose.Chosen,
    candidates: Sequence[Candidate],
    wanted: _Wanted,
    *,
    where: str,
    uri: str,
    build: str,
) -> CheckFindings:
    """Return which artifact a start takes, and what is wrong with it and with refused ones."""
    made_of, created = chosen.manifest.made_of, chosen.manifest.created
    others = sum(each.considered.accepted for each in candidates) - 1
    what = f"a start on this machine takes {chosen.key}, created {created}"
    if others:
        what += f", or one of {others} more that fit, if its model is closer"
    refused = [each.considered for each in candidates if each.refusal is not None]
    if refused:
        what += f"; {len(refused)} refused, such as {refused[0].statement}: {refused[0].message}"
    taken = Problem(
        where=where, what=what, fix=f"serve-warm inspect {shlex.quote(uri)} shows all artifacts"
    )
    if not wanted.code or not made_of.code or made_of.code == wanted.code:
        return CheckFindings(notes=(taken,))
    changed = Problem(
        where=where,
        what=f"the class has changed since the artifact that a start takes was built ({created}), "
        "so what changed compiles again",
        fix=build,
    )
    return CheckFindings(warnings=(changed,), notes=(taken,))
