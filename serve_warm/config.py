# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What deployment code, the Serve YAML and the environment may set; no other reads `os.environ`.

Three sources, the later wins: the class (`warmup_config` or the decorator's arguments), the
environment (`SERVE_WARM_<FIELD>`), and the `warmup` key of the deployment's `user_config`.
Who is trusted to sign is not among them: that is read from files of the machine, or set in
code (`serve_warm.trust.policy`), because `user_config` can be changed over Serve's REST API.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from serve_warm._public_names import public
from serve_warm.errors import ConfigError

logger = logging.getLogger(__name__)

ENVIRONMENT_PREFIX = "SERVE_WARM_"

IMAGE_CREATED = "SERVE_WARM_IMAGE_CREATED"
"""Set where a container image is built, to the time of that; shown beside the artifact's age."""


_SHARE = re.compile(r"1/[1-9][0-9]{0,8}", re.ASCII)


@public
class WarmupConfig(BaseModel):
    """How a replica warms up. The first value of a policy is its default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    """Wall seconds for listing, fetching and verifying, retries included."""

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

    node_cache_max_age_s: float = Field(default=30 * 86400.0, gt=0)
    """Seconds without use, after which something in that folder goes."""

    overlap: Literal["on", "off"] = "on"
    """Whether an artifact is pulled and torch's compiler imported while `__init__` runs."""

    state_dir: str | None = None
    """Folder for this replica's state file; default `<tmp>/serve_warm-<uid>/state`."""

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
    base: WarmupConfig, *, user_config: Any = None, environ: Mapping[str, str] | None = None
) -> WarmupConfig:
    """Return `base` with the environment and then `user_config["warmup"]` laid over it.

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
        origin.update({str(name): f"user_config.warmup.{name}" for name in section})
    try:
        config = WarmupConfig.model_validate(values)
    except ValidationError as error:
        problems = [
            f"{origin.get(str(p['loc'][0]), p['loc'][0])}: {p['msg']}"
            # Under a name that we do not know there may be anything, a credential too.
            + ("" if p["type"] == "extra_forbidden" else f" (found {p['input']!r})")
            for p in error.errors()
        ]
    else:
        return config
    # Outside of the handler: pydantic's own error, which repeats the values, is no context of ours.
    raise ConfigError(
        "warm-up is configured wrongly: " + "; ".join(problems),
        hint="fields: " + ", ".join(WarmupConfig.model_fields),
    )


_RFC_3339 = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[Tt ](?P<time>\d\d:\d\d:\d\d)(?P<fraction>\.\d{1,9})?"
    r"(?P<zone>[Zz]|[+-]\d\d:\d\d)",
    re.ASCII,
)


def image_created_unix(environ: Mapping[str, str] | None = None) -> float | None:
    """Return when this container image was made, in seconds since the epoch.

    None where `SERVE_WARM_IMAGE_CREATED` is not set, or is no time as RFC 3339 has it, which is
    logged: a figure that is missing is no reason not to start.

    >>> image_created_unix({"SERVE_WARM_IMAGE_CREATED": "1970-01-01T01:00:00.5+00:00"})
    3600.5
    """
    text = (os.environ if environ is None else environ).get(IMAGE_CREATED, "").strip()
    if not text:
        return None
    found = _RFC_3339.fullmatch(text)
    if found is not None:
        zone = "+00:00" if found["zone"] in "Zz" else found["zone"]
        with contextlib.suppress(ValueError):  # the 31st of a shorter month
            # The fraction apart: Python 3.10 reads 3 or 6 digits of it, and there may be 9.
            whole = datetime.fromisoformat(f"{found['date']}T{found['time']}{zone}").timestamp()
            return whole + float(found["fraction"] or 0)
    logger.warning(
        "%s=%r is no time like 2026-01-31T09:15:00Z, and is left out", IMAGE_CREATED, text[:100]
    )
    return None


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
