# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The settings that deployment code, the Serve YAML and the environment can change.

Settings come from three sources, each of which overrides the sources before it: the class
(`warmup_config` or the decorator's arguments), the environment (`SERVE_WARM_<FIELD>`), and the
`warmup` key of the deployment's `user_config`. No other module reads a setting from
`os.environ`.

Trusted signers are not a setting, because `user_config` can be changed over Serve's REST API.
Trusted signers come from files on the machine, or from code (`serve_warm.trust.policy`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from serve_warm._package import public
from serve_warm._store_address import check_scheme
from serve_warm.errors import ConfigError, nearest

ENVIRONMENT_PREFIX = "SERVE_WARM_"

FORMER = {"on_uncovered": "on_unproven", "parity": "eager_sample", "parts": "max_level"}
"""Former names of settings, and the names that replaced them."""
REMOVED = ("headers", "max_passes", "node_cache_dir", "overlap", "pgo", "readahead")
"""Names of settings that no longer exist."""

_LIKENESS = 0.8
"""Minimum similarity to a setting at which an unknown variable is a mistake. Less similar variables
are ignored: Kubernetes sets `SERVE_WARM_PORT` and others for a Service named `serve-warm`."""

UNKNOWN = "extra_forbidden"
"""pydantic's type of a problem with a name that a model does not have."""

_SHARE = re.compile(r"1/[1-9][0-9]{0,8}", re.ASCII)


class _ClosedModel(BaseModel):
    """A model that refuses unknown names, and suggests the name that was probably meant."""

    # Errors do not show the value, because it may hold a credential.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="wrap")
    @classmethod
    def _suggest(cls, given: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(given)
        except ValidationError as error:
            problems = [_with_suggestion(problem, cls) for problem in error.errors()]
        # Raise outside the handler, as in `resolve`.
        raise ValidationError.from_exception_data(cls.__name__, problems, hide_input=True)


@public
class Seats(_ClosedModel):
    """Settings for seats: workers that finish their imports before a replica needs a worker.

    Seats are off by default.
    """

    count: int = Field(default=0, ge=0, le=64)
    """Number of seats that the deployment keeps on each node that runs one of its replicas. 0 means
    no seats."""

    imports: tuple[str, ...] = ()
    """Modules of the app that a seat imports, in order. After these modules, the seat imports
    torch, serve_warm and the modules that are needed for the levels in use."""

    keep_alive_s: float = Field(default=900.0, ge=10, le=604_800)
    """Seconds for which Ray keeps an unused seat after its imports. serve_warm requests a new seat
    before this time ends."""

    import_deadline_s: float = Field(default=60.0, gt=0, le=3600)
    """Longest time in seconds for the imports of a seat."""

    @field_validator("imports")
    @classmethod
    def _modules(cls, imports: tuple[str, ...]) -> tuple[str, ...]:
        for name in imports:
            if not all(part.isidentifier() for part in name.split(".")):
                raise ValueError(f"{name!r} is not the dotted name of a module")
        return imports


@public
class WarmupConfig(_ClosedModel):
    """Settings for the warm-up of a replica. The first value of each policy is the default."""

    enabled: bool = True
    """`false` turns serve_warm off. torch, Serve and the replica then work as if the mixin were
    missing."""

    artifact: str | None = None
    """Address of the store to pull from: a folder (`./artifacts`, `file:///srv/artifacts`),
    `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or
    `hf://owner/repo@revision`. Any other scheme is refused, unless a package registers it."""

    application: str | None = Field(default=None, min_length=1)
    """Name of the application that artifacts are kept for in the store. The build and the replicas
    must use the same name. By default, the name is the module that defines the deployment's class,
    which is usually the part of the import path before the colon. For a script, that is the name of
    its file, also of a link, after the packages around it: `main` for `python /srv/app/main.py`,
    or `app.main` if `/srv/app` has an `__init__.py`. Build with the import path of this name
    (`main:app`). Give applications different names if they deploy the same class of a library, or
    one module has several of them."""

    max_level: int = Field(default=3, ge=1, le=3)
    """Highest level that a replica loads from an artifact. 1 loads only the cache directory with
    the built kernels, 2 also loads the entries of level 2, and 3 also loads the libraries of level
    3."""

    on_missing: Literal["compile", "eager", "fail"] = "compile"
    """What to do if no variant fits, or the store is empty or cannot be reached. `compile` compiles
    everything before READY, and needs a C++ compiler. `eager` replays the inputs once without
    compiling, and then serves your uncompiled code; beside an artifact's entries, it does the same
    with calls that have none. With `fail` the replica does not become ready."""

    on_refused: Literal["compile", "eager", "fail"] = "compile"
    """What to do if an artifact is refused. The values are those of `on_missing`. `fail` also
    applies if the results of an entry differ from the results of eager execution."""

    first_install: bool = False
    """Whether no other cluster serves this application yet. With KubeRay, an upgrade of a
    RayService starts a second cluster, which cannot know. There, `on_missing: eager` and
    `on_refused: eager` compile before READY unless this is true."""

    on_partial: Literal["serve", "fail"] = "serve"
    """What to do if an artifact was loaded, but did not contain everything that the start compiled,
    or the verdict is `partial` for another reason. `serve` serves requests. With `fail` the replica
    does not become ready."""

    on_deadline: Literal["fail", "serve"] = "fail"
    """What to do when `deadline_s` or `input_deadline_s` has passed. With `fail` the replica does
    not become ready, and its process ends if the event loop is blocked. With `serve` the replica
    serves requests, and is marked as late and degraded."""

    on_unproven: Literal["serve", "fail"] = "serve"
    """What to do if an input is not proven, or is skipped because memory ran out. `serve` marks the
    replica as degraded. With `fail` the replica does not become ready."""

    after_ready: Literal["count", "eager", "forbid"] = "count"
    """What to do if a request needs a compile after READY. With `count`, the replica compiles while
    the user waits, and reports this in its log and metrics. With `eager`, it answers at once with
    your uncompiled code, and reports the call with an input to declare. With `forbid`, it answers
    the request with HTTP 503."""

    plan: str | None = None
    """A plan that `serve-warm plan` has made: the path of its file on the replica's machine, or its
    content. Its calls are replayed after the declared inputs. `serve-warm build --plan` puts the
    plan into the artifact, so its replicas need no file."""

    record: Literal["off", "signatures", "values"] = "off"
    """What to record of live calls, for `serve-warm plan`. `signatures` counts kinds of calls of
    compiled callables: the structure of the arguments with the numbers in it, and the shapes of
    tensors, but no strings of requests and no values of tensors. Wrapped applications record
    signatures unless this is `off`. With `values`, requests are recorded with their values, too,
    one for each set of compiled code, so that a start can replay them: see `scrub`."""

    scrub: str | None = None
    """A function, such as `app.privacy:scrub`, that gets the target and the arguments of a recorded
    request, and returns the arguments to keep, or None to keep nothing. It runs before anything is
    written to a file or leaves the replica, and after texts that look like secrets were replaced.
    Without it, requests with bytes, or with a body that is not JSON, are not kept."""

    record_days: float = Field(default=7.0, gt=0, le=3650, allow_inf_nan=False)
    """How many days to keep what ended replicas have recorded, in the state directory of their
    node: at most 3650."""

    eager_sample: str = "off"
    """Share of calls after READY that are compared with eager execution. `1/1000` compares one in a
    thousand calls of each entry, `1/1` compares all calls, and `off` compares no calls. The
    comparison before READY does not depend on this setting."""

    deadline_s: float = Field(default=1800.0, gt=0)
    """Longest time in seconds for the whole warm-up, from the end of `__init__` and of your own
    `reconfigure` up to READY. A thread enforces this deadline within a second, even if a handler or
    a compile blocks the event loop. Units such as `10m` are not allowed."""

    pull_deadline_s: float = Field(default=120.0, gt=0)
    """Longest time in seconds for listing, downloading and verifying artifacts, including retries.
    Loading the artifact has a separate limit of the same length."""

    input_deadline_s: float = Field(default=900.0, gt=0)
    """Longest time in seconds for one replay of one input. Time spent waiting for other deployments
    counts too."""

    cpu: Literal["native", "portable"] = "native"
    """CPU to compile for. `native` is this CPU. `portable` means every CPU with AVX2 (x86-64-v3),
    so one artifact fits a fleet of mixed CPUs. The build and the replicas must use the same value.
    torch 2.11 cannot compile portable kernels."""

    ranks: Literal["gang", "alone"] = "gang"
    """Whether the ranks of a process group (`torch.distributed`) go through each stage of the
    warm-up together. `gang`: if Serve started the ranks as a gang. `alone`: never. Use `alone` if
    the other ranks have no warm-up, for example because this replica controls them as workers."""

    node_cache_max_bytes: int = Field(default=10 << 30, gt=0)
    """Maximum size of the folder in which the replicas of a node share their downloads, 10 GiB by
    default. A download first deletes the oldest files, until the new part fits. It never deletes
    running downloads, and keeps a part that is larger than the maximum. So leave this size free on
    the disk, plus the size of the largest artifact."""

    state_dir: str | None = None
    """Folder for the state file of this replica. The default is `<tmp>/serve_warm-<uid>/state`. The
    node server and the probe must read the same folder (`--state-dir`). Use a folder that is only
    for state files."""

    seats: Seats = Seats()
    """Workers that finish their imports in advance and wait for the deployment's next replicas. The
    environment variable contains JSON: `SERVE_WARM_SEATS='{"count": 1}'`. A field that the YAML
    does not set keeps its value from the environment variable. A field that neither source sets
    keeps its value from the code."""

    @field_validator("artifact")
    @classmethod
    def _an_address(cls, artifact: str | None) -> str | None:
        try:
            check_scheme(artifact or "")
        except ConfigError as error:
            raise ValueError(f"{error.message}; {error.hint}") from None
        return artifact

    @field_validator("application")
    @classmethod
    def _a_name(cls, application: str | None) -> str | None:
        if application is not None and not application.isprintable():
            raise ValueError("use only printable characters")
        return application

    @field_validator("eager_sample", "record", mode="before")
    @classmethod
    def _as_yaml_reads_it(cls, value: Any) -> Any:
        # In YAML 1.1 a bare on or off is a boolean.
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @field_validator("eager_sample")
    @classmethod
    def _a_share(cls, sample: str) -> str:
        if sample != "off" and _SHARE.fullmatch(sample) is None:
            raise ValueError("write 'off', or a share such as '1/1000'")
        return sample

    @property
    def eager_one_in(self) -> int:
        """N if one in N calls is compared with eager execution, or 0 if no call is compared."""
        return 0 if self.eager_sample == "off" else int(self.eager_sample.partition("/")[2])


def resolve(
    base: WarmupConfig,
    *,
    user_config: Any = None,
    environ: Mapping[str, str] | None = None,
    section_name: str = "user_config.warmup.",
) -> WarmupConfig:
    """Return `base`, overridden first by the environment and then by `user_config["warmup"]`.

    In errors, the prefix `section_name` marks fields of `user_config["warmup"]`.

    Raises:
        ConfigError: a field is unknown or its value is out of range, or a variable is unknown and
            similar to a setting. The error names all problems.
    """
    environ = os.environ if environ is None else environ
    given: object = base
    if not isinstance(given, WarmupConfig):
        raise ConfigError(
            f"warmup_config is a {type(given).__name__}, not a WarmupConfig",
            hint='write warmup_config = WarmupConfig(artifact="s3://bucket/prefix")',
        )
    values: dict[str, Any] = base.model_dump()
    origin: dict[str, str] = {}
    settings = {ENVIRONMENT_PREFIX + name.upper(): name for name in WarmupConfig.model_fields}
    for variable, text in environ.items():
        if name := settings.get(variable):
            values[name] = _from_text(name, text, values[name])
            origin[name] = variable
        elif _is_mistake(str(variable)):  # a Serve YAML may contain a number
            values[variable] = None  # pydantic reports it as unknown
    section = user_config.get("warmup") if isinstance(user_config, Mapping) else None
    if section is not None:
        if not isinstance(section, Mapping):
            raise ConfigError(
                f"user_config.warmup must be a mapping, but it is a {type(section).__name__}",
                hint="for example: user_config: {warmup: {artifact: ./artifacts}}",
            )
        below = values["seats"]
        values.update(section)
        values["seats"] = _laid_over(below, values["seats"])
        origin.update({str(name): f"{section_name}{name}" for name in section})
    try:
        config = WarmupConfig.model_validate(values)
    except ValidationError as error:
        problems = [_describe(p, origin) for p in error.errors()]
        is_unknown = any(p["type"] == UNKNOWN for p in error.errors())
    else:
        return config
    # Raise outside the handler, so that pydantic's error, which repeats the values, does not become
    # the context.
    raise ConfigError(
        "invalid warm-up settings: " + "; ".join(problems),
        hint="fields: " + ", ".join(WarmupConfig.model_fields)
        if is_unknown
        else "serve-warm check --schema prints each setting with its values",
    )


def _is_mistake(variable: str) -> bool:
    """Return whether an unknown variable is probably meant for a setting."""
    name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
    return variable.startswith(ENVIRONMENT_PREFIX) and (
        name in (*FORMER, *REMOVED)
        or nearest(name, WarmupConfig.model_fields, likeness=_LIKENESS) is not None
    )


def _from_text(name: str, text: str, below: Any) -> Any:
    """Return the value of a field from an environment variable."""
    if name == "seats":
        with contextlib.suppress(ValueError):
            return _laid_over(below, json.loads(text))
    return text


def _laid_over(below: Any, above: Any) -> Any:
    both = isinstance(below, Mapping) and isinstance(above, Mapping)
    return {**below, **above} if both else above


def _describe(problem: Any, origin: Mapping[str, str]) -> str:
    """Return a one-line description of a problem that pydantic found in a setting."""
    field, *inner = map(str, problem["loc"])
    if field != "seats":
        inner = []  # the index of an item in a list says little
    name = ".".join([origin.get(field, field), *inner])
    if problem["type"] == UNKNOWN:
        # The value is not repeated, because under an unknown name it may be a credential.
        return _describe_unknown(name, (*inner, field)[0], (Seats if inner else WarmupConfig))
    text = f"{name}: {problem['msg'].removeprefix('Value error, ')}"
    if field == "artifact":
        return text  # an address may hold a credential
    return f"{text} (found {problem['input']!r})"


def _describe_unknown(name: str, wrong: str, settings: type[_ClosedModel]) -> str:
    in_environment = wrong.startswith(ENVIRONMENT_PREFIX)
    wrong = wrong.removeprefix(ENVIRONMENT_PREFIX).lower()
    former = FORMER if settings is WarmupConfig else {}
    if wrong in REMOVED and settings is WarmupConfig:
        return f"{name} is no longer a setting; delete it"
    found = nearest(former.get(wrong, wrong), settings.model_fields)
    if found and in_environment:
        found = ENVIRONMENT_PREFIX + found.upper()
    # No colon after the name: after `token:`, redaction would hide the next word.
    return f"{name} is not a setting" + (f"; did you mean {found!r}?" if found else "")


def _with_suggestion(problem: Any, settings: type[_ClosedModel]) -> InitErrorDetails:
    """Return a problem that pydantic found, with a better text for an unknown name."""
    details = InitErrorDetails(type=problem["type"], loc=problem["loc"], input=problem["input"])
    if problem["type"] == UNKNOWN and len(problem["loc"]) == 1:
        [wrong] = map(str, problem["loc"])
        text = _describe_unknown(wrong, wrong, settings)
        details["type"] = PydanticCustomError(UNKNOWN, "{text}", {"text": text})
    elif problem["type"] == UNKNOWN:  # a field of a field, whose own class has described it
        details["type"] = PydanticCustomError(UNKNOWN, "{text}", {"text": problem["msg"]})
    elif "ctx" in problem:
        details["ctx"] = problem["ctx"]
    return details


def environment() -> Mapping[str, str]:
    """Return the process environment, for modules that record the variables that torch reads."""
    return os.environ


def point_torch_caches_at(directory: Path) -> None:
    """Make torch's compiler and Triton use `directory` from now on.

    torch and Triton read the environment variables below at each use. torch writes its default
    directory to the environment at the first use, so this function overwrites existing values.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(directory / "triton")


def point_triton_at_ptxas(ptxas: Path) -> None:
    """Make Triton use `ptxas` from now on, if it exists and the user did not choose a file."""
    if "TRITON_PTXAS_PATH" not in os.environ and os.access(ptxas, os.X_OK):
        os.environ["TRITON_PTXAS_PATH"] = str(ptxas)
