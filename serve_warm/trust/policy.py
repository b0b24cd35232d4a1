# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Whom to believe that an artifact is safe to run.

A compile-cache artifact is a program: torch unpickles it, executes its sources and loads its
libraries. Looking at the content cannot tell a good one from a bad one, so the only gate is who
made these bytes. A statement about them is believed when a trusted Ed25519 key signed it, when its
exact digest is pinned, or, loudly, when it comes from a store that is named as one to believe
unsigned. Nothing configured means nothing is believed. A key may be believed for some deployments
and stores alone. A deny-list, an age limit, facts that are required, and the refusal of what is
older than before take away from what was believed; nothing overrules them.

In code this is said by policies, which add up; `serve_warm.trust.files` reads the same from files,
and `serve_warm.trust.verify` acts on it:

    trust = signed_by(CI_PEM, max_age_s=90 * 86400) | pinned("sha256:9f2c...")
"""

from __future__ import annotations

import math
import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from serve_warm._public_names import public
from serve_warm.errors import ConfigError
from serve_warm.trust.keys import TrustedKey, distinct
from serve_warm.trust.patterns import read_patterns

DEFAULT_MAX_AGE_S = 365 * 86400.0
"""The age limit where no policy says one. A year is far above the 30 days at which the alert
ServeWarmArtifactOld fires, so that no fleet goes cold unannounced, and longer than any release of
torch is current: what is older is more likely replayed than in use."""

FACTS = ("source", "image", "builder")
"""What a policy can require of where an artifact comes from."""

_HEX_64 = re.compile(r"[0-9a-f]{64}")
_HUB_COMMIT = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+@[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class UnsignedOk:
    """One store from which everything is believed and run, whoever put it there."""

    store: str
    """Its exact address, as the store itself gives it; for the Hub with the full commit."""
    reason: str
    """Why that is right here; repeated in the log each time that it is made use of."""

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ConfigError(
                f"unsigned_ok for {self.store!r} has no reason",
                hint="say why whoever can write there may run code here",
            )
        _check_exact(self.store)


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Whom to believe. An empty one believes nobody: every artifact is refused.

    `|` adds two up: what either believes is believed, what either denies is denied, and of two age
    limits the stricter one holds for all. What either requires is required.
    """

    keys: tuple[TrustedKey, ...] = ()
    """One valid signature by any of them is enough."""
    pinned: frozenset[str] = frozenset()
    """Hex sha256 of statements (the payload of the envelope) that are believed as they are."""
    denied: frozenset[str] = frozenset()
    """Hex sha256 of statements, or of parts as they are stored, that are refused in any case."""
    max_age_s: float | None = None
    """How long after its creation an artifact is believed, a pinned one too; None: nothing is said,
    and `DEFAULT_MAX_AGE_S` holds."""
    unsigned_ok: tuple[UnsignedOk, ...] = ()
    require: frozenset[tuple[str, str]] = frozenset()
    """Names of `FACTS`, each with a pattern that the artifact's must match."""
    rollback: Literal["warn", "refuse"] = "warn"
    """What to do with an artifact that is older than one that this node took before."""

    def __post_init__(self) -> None:
        for label, digests in (("pinned", self.pinned), ("denied", self.denied)):
            bad = sorted(digest for digest in digests if not _HEX_64.fullmatch(digest))
            if bad:
                raise ConfigError(
                    f"{label} digests that are not 64 hex digits: {', '.join(map(repr, bad))}"
                )
        if self.max_age_s is not None and not 0 < self.max_age_s < math.inf:
            raise ConfigError(f"the age limit is not a positive number: {self.max_age_s}")
        unknown = sorted({name for name, _ in self.require} - set(FACTS))
        if unknown:
            raise ConfigError(
                f"require: no artifact says its {unknown[0]!r}", hint=f"it says {', '.join(FACTS)}"
            )
        if self.rollback not in ("warn", "refuse"):
            raise ConfigError(f"rollback is neither warn nor refuse: {self.rollback!r}")

    @property
    def limits(self) -> Trust:
        """What this takes away from others, such as its deny-list, and nobody to believe."""
        return Trust(
            denied=self.denied,
            max_age_s=self.max_age_s,
            require=self.require,
            rollback=self.rollback,
        )

    @property
    def age_limit_s(self) -> float:
        """How long after its creation an artifact is believed."""
        return DEFAULT_MAX_AGE_S if self.max_age_s is None else self.max_age_s

    def __or__(self, other: Trust) -> Trust:
        allowed = {allowed.store: allowed for allowed in (*other.unsigned_ok, *self.unsigned_ok)}
        return Trust(
            keys=distinct((*self.keys, *other.keys)),
            pinned=self.pinned | other.pinned,
            denied=self.denied | other.denied,
            max_age_s=min(
                (age for age in (self.max_age_s, other.max_age_s) if age is not None), default=None
            ),
            unsigned_ok=tuple(allowed.values()),
            require=self.require | other.require,
            rollback="refuse" if "refuse" in (self.rollback, other.rollback) else "warn",
        )


def _check_exact(store: str) -> None:
    """Refuse whatever is not the address of one store, spelled as the store spells it itself."""
    scheme, _, rest = store.partition("://")
    names = rest.split("/")
    hint = "there are no wildcards; the log and `serve-warm inspect` show a store's exact address"
    if scheme == "file":
        # Both an encoded and a plain blank name a folder, and only one of them is ever compared.
        exact = (
            Path(os.path.normpath(urllib.parse.unquote(rest))).as_uri() if rest[:1] == "/" else ""
        )
        good = store == exact
        hint = f"write {exact}" if exact else "write file:///, and the whole path"
    elif scheme == "hf":
        good = _HUB_COMMIT.fullmatch("/".join(names[:2])) is not None and _are_names(names[2:])
        hint = (
            "write hf://owner/repo@<the 40 hex digits of the commit>, because what a branch or "
            "tag names can be replaced by others"
        )
    else:
        good = scheme in ("s3", "gs", "az") and "@" not in names[0] and _are_names(names)
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
    """Return a trust in what any of `keys` has signed: trusted keys, or PEM public keys.

    PEM keys are believed for the given `deployments` and `stores` alone, where there are some:
    names and addresses in which `*` stands for anything. Older artifacts than `max_age_s` seconds
    are refused, by default than a year, and so are statements and parts whose digest, as
    `sha256:<64 hex digits>`, is in `denied`.

    Raises:
        ConfigError: no key, not a key, not a digest, not an age.
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
    """Return a trust in exactly these statements, given as `sha256:<64 hex digits>`.

    Raises:
        ConfigError: no digest, or not a digest.
    """
    if not digests:
        raise ConfigError("pinned needs at least one digest")
    return Trust(pinned=frozenset(parse_digest(text, where="pinned") for text in digests))


@public
def unsigned_ok(*stores: str, reason: str) -> Trust:
    """Return a trust in everything that stands in exactly these stores, for laptops and tests.

    Whoever can write there can run code here; each use is logged as a warning, with `reason`.

    >>> unsigned_ok("file:///srv/artifacts", reason="my laptop").unsigned_ok
    (UnsignedOk(store='file:///srv/artifacts', reason='my laptop'),)

    Raises:
        ConfigError: no store, no reason, not a `file`, `s3`, `gs`, `az` or `hf` address of one
            store, or a Hub repository without a full commit.
    """
    if not stores:
        raise ConfigError("unsigned_ok needs at least one store")
    return Trust(unsigned_ok=tuple(UnsignedOk(store=store, reason=reason) for store in stores))


def with_scope(key: TrustedKey, scope: Mapping[str, Any], *, where: str) -> TrustedKey:
    """Return a key that is believed for the `deployments` and `stores` that a mapping has alone.

    Raises:
        ConfigError: one of them is not a list of patterns.
    """
    for name in ("deployments", "stores"):
        if name in scope:
            patterns = read_patterns(scope[name], where=f"{where}: {name}")
            key = replace(key, **{name: patterns})  # type: ignore[arg-type]
    return key


def parse_digest(text: Any, *, where: str) -> str:
    """Return the digits of `sha256:<64 hex digits>`; `where` is where it was written.

    Raises:
        ConfigError: it is anything else.
    """
    digest = text.removeprefix("sha256:") if isinstance(text, str) else ""
    if text == digest or not _HEX_64.fullmatch(digest):
        raise ConfigError(f"{where}: {text!r} is not sha256: and 64 hex digits")
    return digest
