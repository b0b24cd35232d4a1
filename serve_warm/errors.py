# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as one tree; fields carry the facts, `hint` carries the advice.

ServeWarmError
├── ConfigError                 a setting, an option or a trust file cannot be used
│   ├── InputError              a declared input cannot be replayed
│   └── MissingPackage          something needs a package that is not installed
├── CompilerMissing             something must be compiled and no C++ compiler was found
├── StoreError                  a store could not be read or written
│   ├── StoreDenied             not with these credentials: trying again is of no use
│   ├── ObjectNotFound
│   ├── ObjectTooLarge          larger than the caller is willing to read
│   ├── ObjectExists            write-once: the key is taken by other bytes
│   └── AlreadyPublished        write-once: the variant is there, with other content
├── ArtifactNotFound            miss: no variant fits, or none is there
├── ArtifactRefused             trust, integrity or format: never loaded
├── BuildFailed                 an artifact was built and not accepted
└── WarmupFailed                the replica must not become ready
    ├── WarmupTimeout           the deadline of the start or of a stage has passed
    ├── ReplayFailed            an input raised when it was replayed
    ├── RankFailed              another rank of the group has failed, ended or is out of step
    └── NotProven               a pass that forbids compiling met a compile

`CompileForbidden`, which a request gets under `after_ready: forbid`, stands in
`serve_warm.replica.serve_calls`: it is also an exception of Ray Serve, which turns it into HTTP
503.
"""

from __future__ import annotations

import shlex
from typing import Any

from serve_warm._redaction import redact


class ServeWarmError(Exception):
    """Base of all errors: the message says what was attempted and found, `hint` what to do.

    Both are free of credentials, whatever they were made from (`serve_warm._redaction`).
    """

    def __init__(self, message: str, *, hint: str = "", **facts: Any) -> None:
        self.message = redact(message)
        self.hint = redact(hint)
        super().__init__(self.message)
        self.__dict__.update(facts)

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries (Ray, subprocesses): rebuilt from their fields, because
        # the constructors of the subclasses take keywords that `args` does not hold.
        return _rebuild, (type(self), self.__dict__.copy())


def _rebuild(cls: type[ServeWarmError], fields: dict[str, Any]) -> ServeWarmError:
    error = cls.__new__(cls)
    Exception.__init__(error, fields["message"])
    error.__dict__.update(fields)
    return error


class ConfigError(ServeWarmError):
    """A setting cannot be used as it stands."""


class InputError(ConfigError):
    """A declared input cannot be replayed: no inputs, an unknown target, a wrong argument."""


class MissingPackage(ConfigError):
    """Something needs a package that is not installed."""

    def __init__(self, what: str, *, package: str) -> None:
        super().__init__(
            f"{what} needs {package}, which is not installed",
            # In quotes where a shell would read brackets as a pattern.
            hint=f"pip install {shlex.quote(package)}",
            package=package,
        )


CHANGED_LATER = (
    "the store was changed after publishing: find out who wrote there before you publish again"
)
"""The hint where bytes are not those that were signed."""


class CompilerMissing(ServeWarmError):
    """torch.compile needs a C++ compiler on CPU, even when every kernel is already built."""

    def __init__(self, looked_for: str) -> None:
        super().__init__(
            f"no C++ compiler: looked for {looked_for}",
            hint="install one (Debian: apt-get install g++) and set CXX to it, or unset CXX for "
            "g++; torch needs it to be present even where the artifact holds every kernel",
            looked_for=looked_for,
        )


class StoreError(ServeWarmError):
    """A store could not be read or written."""


class StoreDenied(StoreError):
    """The store refuses these credentials, or there are none; trying again changes nothing."""


class ObjectNotFound(StoreError):
    """The store has no object under this key."""

    def __init__(self, key: str, *, store: str) -> None:
        super().__init__(f"{store}: no object {key!r}", key=key, store=store)


class ObjectTooLarge(StoreError):
    """The object is larger than `max_bytes`, which is as much as was asked for."""

    def __init__(self, key: str, *, store: str, max_bytes: int) -> None:
        super().__init__(
            f"{store}: {key!r} is larger than {max_bytes} bytes",
            key=key,
            store=store,
            max_bytes=max_bytes,
        )


class ObjectExists(StoreError):
    """The key is taken by other bytes, and stores are write-once."""

    def __init__(self, key: str, *, store: str) -> None:
        super().__init__(
            f"{store}: {key!r} is already there with other content",
            hint="objects are never overwritten; publish under another prefix, or prune first",
            key=key,
            store=store,
        )


class AlreadyPublished(StoreError):
    """The variant is published already, with other content; `statement` is its key."""


class ArtifactNotFound(ServeWarmError):
    """No variant in the store fits this machine and app (verdict `miss`).

    `trace` has one entry a variant looked at, each with the reason it was rejected for.
    """

    def __init__(self, message: str, *, trace: tuple[Any, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint, trace=trace)
        self.trace = trace


REFUSAL_REASONS = (
    *("untrusted", "no_trust", "bad_signature", "bad_statement", "newer_format", "expired"),
    *("denied", "digest_mismatch", "size_mismatch", "too_large", "truncated", "bad_archive"),
    *("missing_part", "unsafe_directory", "broken", "rollback"),
)
"""Why an artifact was not loaded; a closed set, since metrics have it as a label."""


class ArtifactRefused(ServeWarmError):
    """An artifact was found and must not be loaded (verdict `refused`).

    `reason` is one of a closed set, usable as a metric label: `untrusted`, `no_trust`,
    `bad_signature`, `bad_statement`, `newer_format`, `digest_mismatch`, `size_mismatch`,
    `too_large`, `truncated`, `bad_archive`, `missing_part`, `unsafe_directory`, `expired`,
    `denied`, `broken`, `rollback`: `REFUSAL_REASONS` has them all.
    """

    def __init__(self, message: str, *, reason: str, hint: str = "", **facts: Any) -> None:
        super().__init__(message, hint=hint, reason=reason, **facts)
        self.reason = reason


class BuildFailed(ServeWarmError):
    """An artifact was built and did not pass its own round trip; nothing was published."""


class WarmupFailed(ServeWarmError):
    """The replica must not become ready; `stage` says where warm-up ended."""

    def __init__(self, message: str, *, stage: str = "", hint: str = "", **facts: Any) -> None:
        super().__init__(message, hint=hint, stage=stage, **facts)
        self.stage = stage


class WarmupTimeout(WarmupFailed):
    """A deadline has passed; `covered` says what was proven or replayed until then."""


class ReplayFailed(WarmupFailed):
    """An input raised when it was replayed; `__cause__` is what it raised."""


class RankFailed(WarmupFailed):
    """Another rank, which this one computes with, has failed or ended, or does something else."""


class NotProven(WarmupFailed):
    """The pass that forbids compiling met something that would compile, or never got quiet."""
