# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Trust policies: which artifacts are safe to run.

A compile-cache artifact is a program: torch unpickles the artifact, executes its sources and loads
its libraries. The content does not show whether an artifact is harmful, so serve_warm only checks
who made the bytes. A statement is trusted in three cases: it is signed with a trusted Ed25519 key;
its exact digest is pinned; or its store is named in `unsigned_ok`. In the last case, serve_warm
logs a warning. Without any configuration, no artifact is trusted. A key can be limited to some
deployments and stores. A policy can also set a deny-list, an age limit and required facts, and
can refuse rollbacks. These limits apply to trusted artifacts too, and no setting overrides them.

`serve_warm.trust.files` reads the same settings from files, and `serve_warm.trust.verify` applies
policies. In code, combine policies with `|`:

    trust = signed_by(CI_PEM, max_age_s=90 * 86400) | pinned("sha256:9f2c...")
"""

from __future__ import annotations

import math
import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

from serve_warm._package import public
from serve_warm._records import record
from serve_warm._store_address import is_bucket
from serve_warm.errors import ConfigError
from serve_warm.trust.keys import TrustedKey, distinct
from serve_warm.trust.patterns import read_patterns

DEFAULT_MAX_AGE_S = 365 * 86400.0
"""The default age limit is a year. The alert ServeWarmArtifactOld warns after 30 days, long before
replicas refuse artifacts and start cold. No torch release stays current for a year, so an artifact
that is older than a year is probably part of a replay attack."""

FACTS = ("source", "image", "builder")
"""Facts about the origin of an artifact that a policy can require."""

_HEX_64 = re.compile(r"[0-9a-f]{64}")
_HUB_COMMIT = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+@[0-9a-f]{40}")


@record(frozen=True, kw_only=True)
class UnsignedOk:
    """A store whose artifacts are all trusted, regardless of who wrote the artifacts."""

    store: str
    """The exact address of the store, as the store reports it. A Hub address includes the full
    commit."""
    reason: str
    """Why unsigned artifacts are acceptable in this store; logged on each use."""

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ConfigError(
                f"unsigned_ok for {self.store!r} has no reason",
                hint=(
                    "anyone who can write to this store can run code on this machine: add a reason "
                    "why this is acceptable"
                ),
            )
        _check_exact(self.store)


@record(frozen=True, kw_only=True)
class Trust:
    """A trust policy. An empty policy refuses every artifact.

    `|` combines two policies. The combined policy trusts, denies and requires everything that
    either policy trusts, denies or requires. The stricter age limit applies.
    """

    keys: tuple[TrustedKey, ...] = ()
    """Trusted keys. One valid signature by any of these keys is enough."""
    pinned: frozenset[str] = frozenset()
    """Hex sha256 of statements (the payload of the envelope) that are trusted even if unsigned."""
    denied: frozenset[str] = frozenset()
    """Hex sha256 of statements, or of parts as stored, that are always refused."""
    max_age_s: float | None = None
    """Maximum age in seconds of a trusted artifact, even if the artifact is pinned. None means
    `DEFAULT_MAX_AGE_S`."""
    max_age_set_by: str = field(default="max_age_s in code", compare=False)
    """The setting and file that the age limit comes from, for error messages."""
    unsigned_ok: tuple[UnsignedOk, ...] = ()
    require: frozenset[tuple[str, str]] = frozenset()
    """Pairs of a name in `FACTS` and a pattern. The artifact's fact of this name must match the
    pattern."""
    rollback: Literal["warn", "refuse"] = "warn"
    """What to do if an artifact is older than another artifact that this node has already used."""

    def __post_init__(self) -> None:
        for label, digests in (("pinned", self.pinned), ("denied", self.denied)):
            bad = sorted(digest for digest in digests if not _HEX_64.fullmatch(digest))
            if bad:
                raise ConfigError(
                    f"`{label}` has digests that are not 64 hex digits: {', '.join(map(repr, bad))}"
                )
        if self.max_age_s is not None and not 0 < self.max_age_s < math.inf:
            raise ConfigError(f"the age limit must be a positive number: {self.max_age_s}")
        unknown = sorted({name for name, _ in self.require} - set(FACTS))
        if unknown:
            raise ConfigError(
                f"`require` names the unknown fact {unknown[0]!r}",
                hint=f"the facts are {', '.join(FACTS)}",
            )
        if self.rollback not in ("warn", "refuse"):
            raise ConfigError(f"rollback must be 'warn' or 'refuse': {self.rollback!r}")

    @property
    def limits(self) -> Trust:
        """A policy that trusts nothing and has only this policy's limits, such as the deny-list."""
        return Trust(
            denied=self.denied,
            max_age_s=self.max_age_s,
            max_age_set_by=self.max_age_set_by,
            require=self.require,
            rollback=self.rollback,
        )

    @property
    def age_limit_s(self) -> float:
        """Maximum age in seconds of a trusted artifact, with the default applied."""
        return DEFAULT_MAX_AGE_S if self.max_age_s is None else self.max_age_s

    def __or__(self, other: Trust) -> Trust:
        allowed = {allowed.store: allowed for allowed in (*other.unsigned_ok, *self.unsigned_ok)}
        limited = [one for one in (self, other) if one.max_age_s is not None]
        strictest = min(limited, key=lambda one: one.age_limit_s, default=self)
        return Trust(
            keys=distinct((*self.keys, *other.keys)),
            pinned=self.pinned | other.pinned,
            denied=self.denied | other.denied,
            max_age_s=strictest.max_age_s,
            max_age_set_by=strictest.max_age_set_by,
            unsigned_ok=tuple(allowed.values()),
            require=self.require | other.require,
            rollback="refuse" if "refuse" in (self.rollback, other.rollback) else "warn",
        )


def _check_exact(store: str) -> None:
    """Refuse an address that is not the exact address of one store, as the store reports it."""
    scheme, _, rest = store.partition("://")
    names = rest.split("/")
    hint = "wildcards are not allowed; the log and `serve-warm inspect` show the exact address"
    if scheme == "file":
        # A space may be encoded or plain in a file URI, but stores report only the encoded form.
        exact = (
            Path(os.path.normpath(urllib.parse.unquote(rest))).as_uri() if rest[:1] == "/" else ""
        )
        good = store == exact
        hint = f"write {exact}" if exact else "write file:// followed by the absolute path"
    elif scheme == "hf":
        good = _HUB_COMMIT.fullmatch("/".join(names[:2])) is not None and _are_names(names[2:])
        hint = (
            "write hf://owner/repo@<the 40 hex digits of the commit>, because others can move a "
            "branch or tag"
        )
    else:
        good = is_bucket(scheme) and "@" not in names[0] and _are_names(names)
    if not good:
        raise ConfigError(f"unsigned_ok: {store!r} is not the exact address of a store", hint=hint)


def _are_names(names: Sequence[str]) -> bool:
    return all(
        name not in ("", ".", "..") and name.isprintable() and not set(name) & set(" *?#[]{}\\")
        for name in names
    )


# --- policies for code ---------------------------------------------------------------------


@public
def signed_by(
    *keys: TrustedKey | str,
    deployments: Sequence[str] = (),
    stores: Sequence[str] = (),
    max_age_s: float | None = None,
    denied: Iterable[str] = (),
) -> Trust:
    """Return a policy that trusts artifacts signed by any of `keys`.

    Each key is a `TrustedKey` or a PEM public key. PEM keys are trusted only for the given
    `deployments` and `stores`. Without `deployments` and `stores`, PEM keys are trusted for
    everything. In `deployments` and `stores`, `*` matches any characters. The policy refuses
    artifacts that are older than `max_age_s` seconds (default: a year). The policy also refuses
    statements and parts whose digest is in `denied`, in the form `sha256:<64 hex digits>`.

    Raises:
        ConfigError: no key is given, or a key, digest or age is invalid.
    """
    if not keys:
        raise ConfigError("signed_by needs at least one key")
    given = {"deployments": deployments, "stores": stores}
    scope = {name: patterns for name, patterns in given.items() if patterns != ()}
    return Trust(
        keys=distinct(
            with_scope(_find_by_id(key), scope, where="signed_by") if isinstance(key, str) else key
            for key in keys
        ),
        max_age_s=max_age_s,
        denied=frozenset(parse_digest(text, where="denied") for text in denied),
    )


def _find_by_id(pem: str) -> TrustedKey:
    key = TrustedKey.from_pem(pem, name="signed_by")
    return replace(key, name=key.id[:16])


@public
def pinned(*digests: str) -> Trust:
    """Return a policy that trusts only these statements, given as `sha256:<64 hex digits>`.

    Raises:
        ConfigError: no digest is given, or a digest is invalid.
    """
    if not digests:
        raise ConfigError("pinned needs at least one digest")
    return Trust(pinned=frozenset(parse_digest(text, where="pinned") for text in digests))


@public
def unsigned_ok(*stores: str, reason: str) -> Trust:
    """Return a policy that trusts everything in exactly these stores, for laptops and tests.

    Anyone who can write to such a store can run code on this machine. Each use logs a warning with
    `reason`.

    >>> unsigned_ok("file:///srv/artifacts", reason="my laptop").unsigned_ok
    (UnsignedOk(store='file:///srv/artifacts', reason='my laptop'),)

    Raises:
        ConfigError: no store or reason is given, a store is not a `file`, `s3`, `gs`, `az` or `hf`
            address of one store, or a Hub repository lacks a full commit.
    """
    if not stores:
        raise ConfigError("unsigned_ok needs at least one store")
    return Trust(unsigned_ok=tuple(UnsignedOk(store=store, reason=reason) for store in stores))


def with_scope(key: TrustedKey, scope: Mapping[str, Any], *, where: str) -> TrustedKey:
    """Return the key, limited to the `deployments` and `stores` that `scope` contains.

    Raises:
        ConfigError: `deployments` or `stores` is not a list of patterns.
    """
    for name in ("deployments", "stores"):
        if name in scope:
            patterns = read_patterns(scope[name], where=f"{where}: {name}")
            key = replace(key, **{name: patterns})  # type: ignore[arg-type]
    return key


def parse_digest(text: Any, *, where: str) -> str:
    """Return the digits of `sha256:<64 hex digits>`; `where` names the setting in errors.

    Raises:
        ConfigError: the value does not have this form.
    """
    digest = text.removeprefix("sha256:") if isinstance(text, str) else ""
    if text == digest or not _HEX_64.fullmatch(digest):
        raise ConfigError(f"{where}: {text!r} is not 'sha256:' followed by 64 hex digits")
    return digest
