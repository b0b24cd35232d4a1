# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What deployment code, the Serve YAML and the environment may set; no other reads `os.environ`.

Three sources, the later wins: the class (`warmup_config` or the decorator's arguments), the
environment (`SERVE_WARM_<FIELD>`), and the `warmup` key of the deployment's `user_config`.
Who is trusted to sign is not among them: that is read from files of the machine, or set in
code (`serve_warm.trust.policy`), because `user_config` can be changed over Serve's REST API.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from serve_warm._public_names import public
from serve_warm._store_address import check_scheme
from serve_warm._suggestions import did_you_mean
from serve_warm.errors import ConfigError

ENVIRONMENT_PREFIX = "SERVE_WARM_"

_SECONDS = ("deadline_s", "pull_deadline_s", "input_deadline_s")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(
    r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*"
    r"(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)\s*",
    re.ASCII | re.IGNORECASE,
)

_SHARE = re.compile(r"1/[1-9][0-9]{0,8}", re.ASCII)


@public
class WarmupConfig(BaseModel):
    """How a replica warms up. The first value of a policy is its default."""

    # Errors name the field alone: a value may hold a credential.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    enabled: bool = True
    """The kill switch: `false` leaves torch, Serve and the replica exactly as without us."""

    artifact: str | None = None
    """Address of the store to pull from: a folder (`./artifacts`, `file:///srv/artifacts`),
    `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, `hf://owner/repo@revision`.
    """

    parts: tuple[Literal["cache", "precompiled", "exported", "torch_bytes"], ...] = (
        "cache",
        "precompiled",
        "exported",
    )
    """What to load of an artifact. `cache` is the cache directory, built kernels included.
    `precompiled` is what skips Dynamo for callables of `serve_warm.compile` (level 2), and is left
    out where an artifact has none; its entries need the kernels in `cache`. `exported` is what
    does without Dynamo, Inductor and a C++ compiler for callables of
    `serve_warm.compile(level=3)`, is left out as well where there is none, and needs no other.
    `torch_bytes` is what `torch.compiler.save_cache_artifacts()` gives: on CPU every kernel is
    compiled again, so it is here for GPUs and for comparison (`serve-warm bench`)."""

    on_missing: Literal["compile", "fail"] = "compile"
    """No variant fits, the store is empty or out of reach: compile, or do not become ready."""

    on_refused: Literal["compile", "fail"] = "compile"
    """An artifact is there and must not be loaded: compile, or do not become ready."""

    on_deadline: Literal["fail", "serve"] = "fail"
    """`deadline_s` or `input_deadline_s` has passed: do not become ready, or serve, marked as late
    and degraded. In Serve a process whose event loop is blocked by then ends under `fail`."""

    on_uncovered: Literal["serve", "fail"] = "serve"
    """Some input is not proven: serve, marked as degraded, or do not become ready."""

    after_ready: Literal["count", "forbid"] = "count"
    """A compile in traffic is counted and named, or refused with HTTP 503."""

    parity: str = "off"
    """Which calls of traffic that an entry answers are held against eager: `1/1000` is one in a
    thousand of each entry, `1/1` all, `off` none. Before READY there is a check in any case."""

    deadline_s: float = Field(default=1800.0, gt=0)
    """Wall seconds for the whole warm-up. A handler or compile that blocks the event loop is late
    within a second, too: a thread looks at the deadline."""

    pull_deadline_s: float = Field(default=120.0, gt=0)
    """Wall seconds for listing, fetching and verifying, retries included; and again for loading."""

    input_deadline_s: float = Field(default=900.0, gt=0)
    """Wall seconds for one replay of one input, waiting for other deployments included."""

    cpu: Literal["native", "portable"] = "native"
    """What kernels are compiled for: this very CPU, or every one with AVX2 (x86-64-v3), so that
    one artifact fits a fleet of mixed CPUs. Builder and replicas must agree on it."""

    pgo: Literal["off", "on"] = "off"
    """Whether torch's profile of dynamic sizes is kept and travels in the part `cache`, so that a
    replica compiles the graph for all sizes at once and not a static one before it. For
    `dynamic=None` alone, at level 1. An artifact that was built with it serves replicas without."""

    max_passes: int = Field(default=8, ge=2)
    """Passes until one must be quiet; a model that never gets quiet is not proven."""

    ranks: Literal["gang", "together", "alone"] = "gang"
    """Whether the ranks of this process' group (`torch.distributed`) load, replay and prove as one:
    if they are replicas of one gang of Serve's; always; or never, where the other ranks are
    processes that do not warm up by themselves, such as workers that this replica commands."""

    node_cache_dir: str | None = None
    """Folder for what the replicas of a node download once for all of them, private to their
    user; default `<tmp>/serve_warm-<uid>/blobs`."""

    node_cache_max_bytes: int = Field(default=10 << 30, gt=0)
    """Of that folder; what was used longest ago goes first."""

    overlap: Literal["on", "off"] = "on"
    """Whether an artifact is pulled and torch's compiler imported while `__init__` runs."""

    headers: Literal["shared", "own"] = "shared"
    """Whether torch's precompiled C++ headers are those of all processes of this user, or of this
    process alone. A build sets `own`: a header is code in every kernel, and what an earlier process
    of the user left must not get a signature."""

    state_dir: str | None = None
    """Folder for this replica's state file; default `<tmp>/serve_warm-<uid>/state`."""

    @field_validator("artifact")
    @classmethod
    def _an_address(cls, artifact: str | None) -> str | None:
        try:
            check_scheme(artifact or "")
        except ConfigError as error:
            message = f"{error.message}; {error.hint}"
            raise ValueError(message) from None
        return artifact

    @field_validator(*_SECONDS, mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        # Not read as a duration: replicas of other releases have the same settings to read.
        found = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if found is not None:
            seconds = float(found[1]) * _UNITS[found[2][0].lower()]
            message = f"it is a number of seconds: write {seconds:.16g}"
            raise ValueError(message)
        return value

    @field_validator("overlap", "pgo", "parity", mode="before")
    @classmethod
    def _as_yaml_reads_it(cls, value: Any) -> Any:
        # In YAML 1.1 a bare on or off is a boolean.
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @field_validator("parity")
    @classmethod
    def _a_share(cls, parity: str) -> str:
        if parity != "off" and _SHARE.fullmatch(parity) is None:
            message = "write off, or a share such as 1/1000"
            raise ValueError(message)
        return parity

    @property
    def parity_one_in(self) -> int:
        """Of how many calls one is held against eager; 0 for none."""
        return 0 if self.parity == "off" else int(self.parity.partition("/")[2])

    @field_validator("parts")
    @classmethod
    def _some_part(cls, parts: tuple[str, ...]) -> tuple[str, ...]:
        if not parts:
            message = "name at least one part"
            raise ValueError(message)
        return parts


def resolve(
    base: WarmupConfig,
    *,
    user_config: Any = None,
    environ: Mapping[str, str] | None = None,
    section_name: str = "user_config.warmup.",
) -> WarmupConfig:
    """Return `base` with the environment and then `user_config["warmup"]` laid over it.

    `section_name` is what errors put before the names of that section.

    Raises:
        ConfigError: a field is unknown or its value is out of range; all problems are named.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = base.model_dump()
    origin: dict[str, str] = {}
    for name in WarmupConfig.model_fields:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if variable in environ:
            text = environ[variable]
            values[name] = [p.strip() for p in text.split(",")] if name == "parts" else text
            origin[name] = variable
    section = user_config.get("warmup") if isinstance(user_config, Mapping) else None
    if section is not None:
        if not isinstance(section, Mapping):
            raise ConfigError(
                f"user_config.warmup must be a mapping, found {type(section).__name__}",
                hint="for example: user_config: {warmup: {artifact: ./artifacts}}",
            )
        values.update(section)
        origin.update({str(name): f"{section_name}{name}" for name in section})
    try:
        config = WarmupConfig.model_validate(values)
    except ValidationError as error:
        problems = [_describe(p, origin) for p in error.errors()]
    else:
        return config
    # Outside of the handler: pydantic's own error, which repeats the values, is no context of ours.
    raise ConfigError(
        "warm-up is configured wrongly: " + "; ".join(problems),
        hint="fields: " + ", ".join(WarmupConfig.model_fields),
    )


def _describe(problem: Any, origin: Mapping[str, str]) -> str:
    """Return one of pydantic's problems with a setting in a line."""
    field = str(problem["loc"][0])
    text = f"{origin.get(field, field)}: {problem['msg'].removeprefix('Value error, ')}"
    if problem["type"] == "extra_forbidden":
        # The value is not repeated: under an unknown name it may be anything, a credential too.
        question = did_you_mean(field, WarmupConfig.model_fields)
        return f"{text}; {question}" if question else text
    if field == "artifact":
        return text  # an address may hold a credential
    return f"{text} (found {problem['input']!r})"


def environment() -> Mapping[str, str]:
    """Return the process environment, for those that record what torch will read from it."""
    return os.environ


def point_torch_caches_at(directory: Path) -> None:
    """Make torch's compiler and Triton use `directory` from their next look at the environment.

    Both read these variables at each use, and torch writes its own default into the
    environment on first use: set, not `setdefault`.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(directory / "triton")
