# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How a build signs an artifact, and where the round trip loads the signed copy from."""

from __future__ import annotations

import contextlib
import logging
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from serve_warm._records import record
from serve_warm._store_address import folder_of
from serve_warm.errors import ArtifactRefused, ConfigError, StoreError
from serve_warm.stores import Store, list_keys, open_store
from serve_warm.trust.files import default_trust_files, load_trust, trust_lines
from serve_warm.trust.user_key import user_key
from serve_warm.trust.verify import check_required

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from serve_warm.builder.app import App
    from serve_warm.builder.cluster import Cluster
    from serve_warm.builder.publishing import Destination

logger = logging.getLogger(__name__)


@record(frozen=True, kw_only=True)
class Signing:
    """How a build signs its artifact: the key, the time, and the signed facts about the origin."""

    key: Ed25519PrivateKey | None = None
    """The signing key. None means the per-user key, which is created and trusted on first use. Both
    the replicas of the round trip and the replicas that later load the artifact must trust the
    key."""
    when: Literal["now", "later"] = "now"
    """With `later`, the key signs only the copy for the round trip
    (see `serve_warm.artifact.unsigned`)."""
    provenance: Mapping[str, str] = field(default_factory=dict)


BY_USER_KEY = Signing()
"""Signing with the per-user key, without facts about the artifact's origin."""


def check_place(destination: Destination, signing: Signing) -> None:
    """Raise if the artifact is to stay unsigned, but `destination` accepts only signed artifacts.

    Raises:
        ConfigError: the store is not a folder, or `if_published` is `keep`.
    """
    if signing.when == "now":
        return
    store = destination.store
    if folder_of(store.uri) is None:
        raise ConfigError(
            f"an unsigned artifact cannot be published to {store.uri}, because replicas read "
            "this store",
            hint="build it into a folder, then publish it with: serve-warm sign FOLDER --unsigned "
            f"--deployment NAME --key FILE --publish {store.uri}",
        )
    if destination.if_published == "keep":
        raise ConfigError(
            "`--if-published keep` cannot be combined with `--unsigned`, because `keep` tests the "
            "published artifact instead of building an unsigned one",
            hint="pass `--if-published keep` to `serve-warm sign` instead",
        )


_STAGING = "serve_warm-staging-"

Beside = Literal["store", "temporary"]
"""Location of the copy for the round trip: in the artifact's own store, or in a temporary
folder."""


def check_key(
    signing: Signing, app: App, on: Cluster, store: Store
) -> tuple[Ed25519PrivateKey, Beside]:
    """Return the key, and the location of the copy for the round trip.

    A build calls this before it compiles anything.

    Raises:
        ConfigError: the replicas run on this machine, and would not trust the key.
    """
    key = signing.key or user_key()
    if on.place != "here":
        return key, "store"
    public = key.public_key()
    trust = app.known_trust()
    entries = [each for each in trust.keys if each.raw == public.public_bytes_raw()]
    if not entries:
        where = "the code of the deployment" if app.trust is not None else default_trust_files()[0]
        raise ConfigError(
            "the signing key is not trusted on this machine, so the round trip would refuse the "
            "artifact",
            hint=f"add the key to {where}:\n{trust_lines(public, name='builder')}",
        )
    try:
        check_required(trust | load_trust().limits, signing.provenance)
    except ArtifactRefused as refusal:
        raise ConfigError(
            f"no replica on this machine would load the artifact: {refusal.message}"
        ) from refusal
    temporary = f"{Path(tempfile.gettempdir()).as_uri()}/{_STAGING}"
    if any(each.covers(deployment=app.deployment, store=temporary) for each in entries):
        return key, "temporary"
    below = f"{store.uri}/staging-"
    if any(each.covers(deployment=app.deployment, store=below) for each in entries):
        return key, "store"
    raise ConfigError(
        f"the signing key is trusted only for {entries[0].scope}, so the round trip would refuse "
        f"the artifact of {app.deployment!r} in {store.uri}",
        hint="extend `deployments` or `stores` of the key in the trust file. Write the store as "
        f"{store.uri}*, because the copy for the round trip is in a folder inside the store",
    )


@contextlib.contextmanager
def staging(store: Store, beside: Beside) -> Iterator[str]:
    """Yield a store that is read only by the replicas of the round trip.

    With `temporary`, the store is a temporary folder on this machine. With `store`, the yielded
    store is inside the artifact's own store, under a path that no artifact uses. This location is
    needed if other nodes must read the copy, or if the key is trusted only for some stores.
    """
    if beside == "temporary":
        with tempfile.TemporaryDirectory(prefix=_STAGING) as temporary:
            yield temporary
    elif (folder := folder_of(store.uri)) is not None:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".staging-", dir=folder) as inside:
            yield inside
    else:
        uri = f"{store.uri.rstrip('/')}/staging-{secrets.token_hex(8)}"
        try:
            yield uri
        finally:
            _clear(open_store(uri))


def _clear(staged: Store) -> None:
    try:
        for key in list_keys(staged, ""):
            staged.delete(key)
    except StoreError as error:
        # Only warn, because replicas do not read the remaining files.
        logger.warning("the copy for the round trip could not be removed: %s", error.message)
