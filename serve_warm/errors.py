# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The exceptions of serve_warm, as one tree. Fields hold the facts, and `hint` holds advice.

ServeWarmError
├── ConfigError                 a setting, an option or a trust file cannot be used
│   ├── InputError              a declared input cannot be replayed
│   └── MissingPackage          a feature needs a package that is not installed
├── CompilerMissing             code must be compiled, but no C++ compiler was found
├── StoreError                  a store could not be read or written
│   ├── StoreDenied             wrong credentials, address or certificate: a retry does not help
│   ├── NodeDiskError           a disk of this node is full or read-only: a retry does not help
│   ├── ObjectNotFound
│   ├── ObjectTooLarge          larger than the caller's limit
│   ├── ObjectExists            write-once: the key holds different bytes
│   └── AlreadyPublished        write-once: the variant exists with different content
├── ArtifactNotFound            miss: the store is empty, or no variant fits
├── ArtifactRefused             bad trust, integrity or format: never loaded
├── BuildFailed                 an artifact was built, but failed its checks
├── GenerationRefused           a prompt, length or option that the compiled steps do not support
└── WarmupFailed                the replica must not become ready
    ├── WarmupTimeout           the deadline of the start or of a stage has passed
    ├── ReplayFailed            replaying an input raised an exception
    ├── RankFailed              another rank of the group failed, ended or is out of step
    └── NotProven               the pass that forbids compiling needed a compile

With `after_ready: forbid`, a request that needs a compile raises `CompileForbidden`. That class is
defined in `serve_warm.replica.serve.calls`, because it is also a Ray Serve exception (HTTP 503).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any, TypeVar

from serve_warm._redaction import redact


class ServeWarmError(Exception):
    """Base of all errors.

    The message says what failed and why; `hint` says what to do. Credentials in the message and the
    hint are hidden (`serve_warm._redaction`). The keyword arguments in `facts` become attributes.
    """

    statement: str = ""
    """Key of the statement that caused the error, if any."""
    trace: tuple[Any, ...] = ()
    """One entry per variant that was rejected, with the reason."""

    def __init__(self, message: str, *, hint: str = "", **facts: Any) -> None:
        self.message = redact(message)
        self.hint = redact(hint)
        super().__init__(self.message)
        self.__dict__.update(facts)

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries (Ray, subprocesses). They are rebuilt from their fields,
        # because the subclasses' constructors take keyword arguments, which `args` does not
        # contain.
        return _rebuild, (type(self), self.__dict__.copy())


_Error = TypeVar("_Error", bound=ServeWarmError)


def _rebuild(cls: type[_Error], fields: dict[str, Any]) -> _Error:
    error = cls.__new__(cls)
    Exception.__init__(error, fields["message"])
    error.__dict__.update(fields)
    return error


def reword(error: _Error, message: str, *, hint: str) -> _Error:
    """Return a copy of `error` with the same facts, but with this message and hint."""
    fields = {**error.__dict__, "message": redact(message), "hint": redact(hint)}
    copy = _rebuild(type(error), fields)
    copy.__cause__ = error.__cause__
    return copy.with_traceback(error.__traceback__)


class ConfigError(ServeWarmError):
    """A setting, an option or a trust file cannot be used."""


class InputError(ConfigError):
    """A declared input cannot be replayed. For example, its target is unknown."""


class MissingPackage(ConfigError):
    """A feature needs a package that is not installed."""

    def __init__(self, what: str, *, package: str) -> None:
        super().__init__(
            f"{what} needs {package}, which is not installed",
            # Quoted, because a shell may read brackets as a pattern.
            hint=f"pip install {shlex.quote(package)}",
        )


CHANGED_LATER = (
    "the store was changed after publishing: find out who wrote to it before you publish again"
)
"""The hint for errors about bytes in a store that differ from the signed bytes."""


class CompilerMissing(ServeWarmError):
    """No C++ compiler was found.

    On a CPU, torch.compile needs a C++ compiler even if all kernels are already built.
    """

    def __init__(self, looked_for: str, *, by: str = "", trouble: str = "") -> None:
        """`by` is the variable that names the compiler; `trouble` is the problem with its value."""
        needed = "torch needs a compiler even if the artifact contains every kernel"
        if by:
            message = f"{by}={looked_for} {trouble}"
            hint = f"correct {by}, or unset it to use g++; {needed}"
        else:
            message = f"looked for {looked_for}"
            hint = (
                f"install g++ (Debian: apt-get install g++), or set CXX to your compiler; {needed}"
            )
        super().__init__(f"no C++ compiler: {message}", hint=hint)


class StoreError(ServeWarmError):
    """A store could not be read or written."""

    retry_after_s: float = 0.0
    """Seconds that the store asks its clients to wait; 0 if it does not say."""


class StoreDenied(StoreError):
    """The request fails for a reason that stays, so retrying does not help.

    For example, the credentials, the region or the address are wrong, or the server is not a store.
    """


class NodeDiskError(StoreError):
    """What a store returned cannot be written to this node, so reading it again does not help."""


class ObjectNotFound(StoreError):
    """The store has no object under this key."""

    def __init__(self, key: str, *, store: str) -> None:
        super().__init__(f"{store}: no object {key!r}")


class ObjectTooLarge(StoreError):
    """The object is larger than `max_bytes`, the caller's limit."""

    def __init__(self, key: str, *, store: str, max_bytes: int) -> None:
        super().__init__(f"{store}: {key!r} is larger than {max_bytes} bytes")


class ObjectExists(StoreError):
    """The key already holds different bytes, and stores are write-once."""

    def __init__(self, key: str, *, store: str) -> None:
        super().__init__(
            f"{store}: {key!r} already exists, but its content differs from the new content",
            hint="stores never overwrite objects: publish under another prefix, or prune first",
        )


class AlreadyPublished(StoreError):
    """The variant is already published with different content, under the key `statement`."""


class ArtifactNotFound(ServeWarmError):
    """No variant in the store fits this machine and app (verdict `miss`).

    `trace` has one entry per variant, with the reason why the variant was rejected.
    """


REFUSAL_REASONS = (
    *("untrusted", "no_trust", "bad_signature", "bad_statement", "newer_format", "expired"),
    *("denied", "digest_mismatch", "size_mismatch", "too_large", "truncated", "bad_archive"),
    *("missing_part", "unsafe_directory", "broken", "rollback", "bad_trust_file"),
)
"""Reasons why an artifact was not loaded. The set is closed, because metrics use it as a label."""


class ArtifactRefused(ServeWarmError):
    """An artifact was found but must not be loaded (verdict `refused`).

    `reason` is one of `REFUSAL_REASONS`, a closed set that metrics can use as a label: `untrusted`,
    `no_trust`, `bad_signature`, `bad_statement`, `newer_format`, `digest_mismatch`,
    `size_mismatch`, `too_large`, `truncated`, `bad_archive`, `missing_part`, `unsafe_directory`,
    `expired`, `denied`, `broken`, `rollback`, `bad_trust_file`.
    """

    def __init__(self, message: str, *, reason: str, hint: str = "", **facts: Any) -> None:
        super().__init__(message, hint=hint, reason=reason, **facts)
        self.reason = reason


class BuildFailed(ServeWarmError):
    """An artifact was built, but failed its round trip. Nothing was published."""


class GenerationRefused(ServeWarmError, ValueError):
    """The compiled steps do not support a call to `generate`.

    The message is one sentence that can be sent to a client.
    """


class WarmupFailed(ServeWarmError):
    """The replica must not become ready. `stage` is the stage in which warm-up ended."""

    stage: str = ""


class WarmupTimeout(WarmupFailed):
    """A deadline has passed."""


class ReplayFailed(WarmupFailed):
    """Replaying an input raised an exception, which is stored as `__cause__`."""

    input: str = ""
    """The name of the input, if one input failed."""


class RankFailed(WarmupFailed):
    """Another rank of the group has failed, has ended, or is at a different step."""


class NotProven(WarmupFailed):
    """The pass that forbids compiling needed a compile, or no pass was `quiet` (see `Counts`)."""


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return the known name that is most similar to `name`; None if no name is similar enough.

    Case does not count. `likeness` is the minimum similarity, from 0 to 1.

    >>> nearest("artefact", ["artifact", "parts"]), nearest("x", ["artifact"])
    ('artifact', None)
    """
    import difflib  # here, because few runs of the command need it

    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests a known name; empty if no name is similar.

    >>> did_you_mean("instect", ["inspect", "verify"])
    "did you mean 'inspect'?"
    """
    found = nearest(name, known)
    return "" if found is None else f"did you mean {found!r}?"
