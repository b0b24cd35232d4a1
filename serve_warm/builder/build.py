# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Builds an artifact by running the deployment itself, on Ray, with its own resources.

Ray sets a replica's thread count from `num_cpus`, and the thread count is in torch's cache keys:
what is built outside a replica misses inside one. So the deployment is started as its options
say, it warms up and proves itself, and its caches are packed. Before anything is published a
second, fresh replica must load the artifact and reach the proof without one compiler run; another
one with what is made ahead of time, and another one with libraries.
"""

from __future__ import annotations

import contextlib
import io
import logging
import secrets
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from serve_warm.artifact import catalog, push
from serve_warm.artifact.blobs import pack_part
from serve_warm.artifact.manifest import FORMAT, PROVENANCE, Manifest, utc_now
from serve_warm.builder import round_trips
from serve_warm.builder.app import App
from serve_warm.builder.built import (
    Built,
    NothingToBuild,
    Sizes,
    count_bytes,
    measure_built,
    name_built,
)
from serve_warm.builder.cluster import Cluster, Look, Progress
from serve_warm.builder.portable import find_objdump, prove_portable
from serve_warm.builder.round_trips import RoundTrip
from serve_warm.errors import ArtifactRefused, BuildFailed, ConfigError, StoreError
from serve_warm.fingerprint import PORTABLE_ISA, Cpu, Fingerprint, lacking
from serve_warm.precompile.facts import RULES
from serve_warm.stores import open_store
from serve_warm.trust.files import default_trust_files, load_trust, trust_lines
from serve_warm.trust.user_key import user_key
from serve_warm.trust.verify import check_required

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from serve_warm.replica.pack import PackedReplica
    from serve_warm.stores import Store
    from serve_warm.trust import Trust

logger = logging.getLogger(__name__)

PACK_LIMIT_S = 3600.0
"""Wall seconds in which a replica makes its entries and libraries, and packs them."""


def build(
    app: App,
    store_uri: str,
    *,
    on: Cluster,
    key: Ed25519PrivateKey | None = None,
    signature: Literal["now", "later"] = "now",
    provenance: Mapping[str, str] = MappingProxyType({}),
    cpu: Cpu | None = None,
    if_published: Literal["refuse", "keep", "supersede"] = "refuse",
    progress: Progress = lambda _: None,
    notice: Progress = lambda _: None,
) -> Built | NothingToBuild:
    """Build, prove, sign and publish the artifact of one deployment, or of each rank of its gang.

    Nothing is published unless a second, fresh replica loads the artifact, proves every input
    and runs no compiler. `key` signs; the per-user key, made and trusted on first use, if none
    is given. The replica must trust it, as the fleet will have to. With `signature="later"` it
    signs the copy for the round trip alone (`serve_warm.artifact.unsigned`). `provenance` is signed
    too. `cpu` is laid over what the deployment sets; replicas must set the same. `keep` puts the
    variant that the store has through the round trip, `supersede` publishes beside it.

    Raises:
        AlreadyPublished: the store has the variant, and `if_published` is `refuse`.
        BuildFailed: a replica failed, the round trip did, or a portable artifact is not portable.
        ConfigError: a portable artifact cannot be disassembled here, the replicas of the round trip
            would not believe it, or it is unsigned and for another store than a folder.
        StoreError: the store cannot be written.
    """
    store, work = open_store(store_uri), _Work(app, on, _settings(cpu), progress)
    _check_place(store, signature, if_published)
    beside = _check_key(key := key or user_key(), app, on, store, provenance)
    by_rank = work.compile(_refuse_early(store, app) if if_published == "refuse" else None)
    if isinstance(by_rank, NothingToBuild):
        return by_rank
    with work.phase("sign"):
        variants = [_manifest(app, packed, provenance) for packed in by_rank]
    manifests = [manifest for manifest, _ in variants]
    # Before the round trip, which would be in vain.
    keep, supersedes = _decide(store, app, manifests, if_published, notice)
    entries = by_rank[0]["facts"].get("entries", ())
    with contextlib.nullcontext(store.uri) if keep else _staging(store, beside) as source:
        if not keep:
            _push(open_store(source), variants, key)
        reports = work.prove(source, round_trips.plan(variants[0][1], entries))
    used = {report["artifact"]["statement"]: report["artifact"] for report in reports}
    with work.phase("publish"):
        signer = key if signature == "now" else None
        statements = list(used) if keep else _push(store, variants, signer, supersedes=supersedes)
    return Built(
        published="kept" if keep else "new",
        store=store.uri,
        **name_built(statements, manifests),
        portable_libraries=by_rank[-1]["facts"].get("libraries_disassembled"),
        trust="" if keep or signer is None else trust_lines(key.public_key(), name="builder"),
        seconds=work.seconds,
        cold=by_rank[0]["report"],
        round_trip=reports[0],
        **(_sizes_in_use(store, app, used) if keep else measure_built(manifests)),
    )


class _Work:
    """What a build has Ray do: a cold start that packs, and warm ones that prove; with a clock."""

    def __init__(
        self, app: App, on: Cluster, settings: Mapping[str, Any], progress: Progress
    ) -> None:
        self._app = app
        self._on = on
        self._settings = settings
        self._progress = progress
        self.seconds: dict[str, float] = {}
        """Wall seconds by phase, in order."""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[Progress]:
        """Tell that a phase begins, yield what tells of its progress, and count its seconds."""
        self._progress(name)
        began = time.perf_counter()
        try:
            yield lambda text: self._progress(f"{name}: {text}")
        finally:
            self.seconds[name] = time.perf_counter() - began

    def compile(self, look: Look | None) -> list[PackedReplica] | NothingToBuild:
        """Return what a cold replica of each rank packs; the facts of a portable one are proven.

        `look` is called with the states of the replicas as they start.
        """
        cold = {**self._settings, "artifact": None}
        # Its seconds are those of the start; packing is a phase of its own.
        with contextlib.ExitStack() as running:
            with self.phase("compile") as progress:
                start = running.enter_context(
                    self._on.running(
                        self._app, cold, progress=progress, look=look or (lambda _: None)
                    )
                )
                reports = start.ask("warmup_report", timeout_s=60)
            if all(report["nothing_compiles"] for report in reports):
                return NothingToBuild(cold=reports[0])
            with self.phase("pack") as progress:
                by_rank = _one_each(start.pack(timeout_s=PACK_LIMIT_S, progress=progress))
        portable = [p for p in by_rank if p["fingerprint"]["app"].get("cpu") == "portable"]
        if portable:
            with self.phase("disassemble"):
                for packed in portable:
                    packed["facts"].update(_portable_facts(packed))
        return by_rank

    def prove(self, source: str, trips: Sequence[RoundTrip]) -> list[dict[str, Any]]:
        """Start fresh replicas on what was built, and return the reports of the last trip's.

        Raises:
            BuildFailed: one was not warm through and through.
        """
        began, took = time.perf_counter(), dict[str, float]()
        reports = round_trips.prove(
            trips,
            self._app,
            {**self._settings, "artifact": source},
            on=self._on,
            progress=self._progress,
            took=took.__setitem__,
        )
        self.seconds |= {trip.label: took[trip.label] for trip in trips}
        self.seconds["round trips"] = time.perf_counter() - began
        return reports


def _sizes_in_use(store: Store, app: App, used: Mapping[str, Any]) -> Sizes:
    """Return the sizes of artifacts that were published before, and that replicas have loaded."""
    parts = _parts_of(store, app, list(used))
    # Of one that is trusted by the replicas and not here only they know it.
    stored_bytes = sum(parts.values()) or sum(each["stored_bytes"] for each in used.values())
    raw_bytes = sum(each["raw_bytes"] for each in used.values())
    return {"stored_bytes": stored_bytes, "raw_bytes": raw_bytes, "parts": parts}


def _settings(cpu: Cpu | None) -> dict[str, Any]:
    """Return the settings of every replica of a build: whatever is missing ends it."""
    if cpu == "portable":
        find_objdump()  # now, not when everything has been compiled
    settings = {"enabled": True, "on_missing": "fail", "on_refused": "fail", "on_uncovered": "fail"}
    return {**settings, "headers": "own", **({} if cpu is None else {"cpu": cpu})}


def _one_each(packed: Sequence[PackedReplica]) -> list[PackedReplica]:
    """Leave out what is for the same machine and app as one before it.

    A gang without a process group has no ranks: each of its replicas can start from any of them.
    """
    found: dict[str, PackedReplica] = {}
    for each in packed:
        found.setdefault(Fingerprint.from_json(each["fingerprint"]).key, each)
    return list(found.values())


def _trust_of(app: App) -> Trust:
    """Return whom the replicas of an app believe, as far as is known here."""
    return load_trust() if app.trust is None else app.trust


def _check_place(store: Store, signature: str, if_published: str) -> None:
    """Raise where an artifact may not be published without a signature, if it is to have none."""
    if signature == "now":
        return
    if not store.uri.startswith("file://"):
        raise ConfigError(
            f"an unsigned artifact is not published in {store.uri}, where replicas look",
            hint="build it into a folder, and publish it with: serve-warm sign FOLDER --unsigned "
            f"--deployment NAME --key FILE --publish {store.uri}",
        )
    if if_published == "keep":
        raise ConfigError(
            "an unsigned artifact that is there already cannot be proven again",
            hint="give --if-published keep to serve-warm sign",
        )


_STAGING = "serve_warm-staging-"

_Beside = Literal["store", "temporary"]
"""Where the copy for the round trip stands: in the artifact's own store, or in a new folder."""


def _check_key(
    key: Ed25519PrivateKey, app: App, on: Cluster, store: Store, provenance: Mapping[str, str]
) -> _Beside:
    """Return where the copy may stand, if the replicas of the round trip would believe it.

    Raises:
        ConfigError: they run on this machine, where they would not. Nothing is compiled yet.
    """
    if on.place != "here":
        return "store"
    public = key.public_key()
    trust = _trust_of(app)
    entries = [each for each in trust.keys if each.raw == public.public_bytes_raw()]
    if not entries:
        where = "the code of the deployment" if app.trust is not None else default_trust_files()[0]
        raise ConfigError(
            "the key that would sign is not trusted here, so the round trip would refuse it",
            hint=f"add it to {where}:\n{trust_lines(public, name='builder')}",
        )
    try:
        check_required(trust | load_trust().limits, provenance)
    except ArtifactRefused as refusal:
        raise ConfigError(f"nobody here would load it: {refusal.message}") from refusal
    temporary = f"{Path(tempfile.gettempdir()).as_uri()}/{_STAGING}"
    if any(each.covers(deployment=app.deployment, store=temporary) for each in entries):
        return "temporary"
    below = f"{store.uri}/staging-"
    if any(each.covers(deployment=app.deployment, store=below) for each in entries):
        return "store"
    raise ConfigError(
        f"the key that would sign is trusted for {entries[0].scope} alone, so the round trip of "
        f"{app.deployment!r} would refuse it in {store.uri}",
        hint="widen `deployments` or `stores` of the key in the trust file; a copy for the round "
        f"trip stands below the store, which {store.uri}* covers",
    )


@contextlib.contextmanager
def _staging(store: Store, beside: _Beside) -> Iterator[str]:
    """Yield a store for the round trip that no replica in traffic looks into.

    On a cluster of this machine it is a folder. Elsewhere it must be what all nodes see, and a key
    may be believed in its own stores alone: then it stands beside the artifacts in their own store,
    outside the keys that they have.
    """
    if beside == "temporary":
        with tempfile.TemporaryDirectory(prefix=_STAGING) as staging:
            yield staging
    elif store.uri.startswith("file://"):
        folder = Path(urllib.parse.unquote(store.uri.removeprefix("file://")))
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".staging-", dir=folder) as staging:
            yield staging
    else:
        uri = f"{store.uri.rstrip('/')}/staging-{secrets.token_hex(8)}"
        try:
            yield uri
        finally:
            _clear(open_store(uri))


def _clear(staged: Store) -> None:
    try:
        for key in staged.list(""):
            staged.delete(key)
    except StoreError as error:
        # The build is good all the same, and what is left is under a name that nobody reads.
        logger.warning("the staged copy could not be removed: %s", error.message)


def _decide(
    store: Store,
    app: App,
    manifests: Sequence[Manifest],
    if_published: Literal["refuse", "keep", "supersede"],
    notice: Progress,
) -> tuple[bool, bool]:
    """Return whether what the store has is kept, and whether it is superseded.

    Raises:
        AlreadyPublished: it has a variant, and is not told to keep or supersede it.
    """
    if _are_outdated(store, app, [made.fingerprint for made in manifests]):
        notice("what is published has entries that no replica runs any more: it is superseded")
        return False, True
    return _is_kept(store, manifests, if_published), if_published == "supersede"


def _is_kept(
    store: Store,
    manifests: Sequence[Manifest],
    if_published: Literal["refuse", "keep", "supersede"],
) -> bool:
    """Return whether what the store has is kept: of a gang all variants, or none.

    Raises:
        AlreadyPublished: it has one, and is not told to keep or supersede it.
    """
    there = [push.find_published(store, made.deployment, made.fingerprint) for made in manifests]
    if if_published == "keep" and all(there):
        return True
    for manifest, before in zip(manifests, there, strict=True):
        if before and if_published != "supersede":
            raise push.already_published(
                store,
                deployment=manifest.deployment,
                fingerprint=manifest.fingerprint,
                key=before[-1],
                parts=manifest.parts,
            )
    return False


def _refuse_early(store: Store, app: App) -> Look:
    """Return what raises as soon as a start says that it is for a variant that is published.

    That is before it compiles anything.
    """
    asked: set[str] = set()

    def look(states: Sequence[Mapping[str, Any]]) -> None:
        for state in states:
            said = state.get("fingerprint")
            if not said:
                continue
            fingerprint = Fingerprint.from_json(said)
            if fingerprint.key in asked:
                continue
            asked.add(fingerprint.key)
            there = push.find_published(store, app.deployment, fingerprint)
            if there and not _are_outdated(store, app, [fingerprint]):
                raise push.already_published(
                    store, deployment=app.deployment, fingerprint=fingerprint, key=there[-1]
                )

    return look


def _are_outdated(store: Store, app: App, fingerprints: Sequence[Fingerprint]) -> bool:
    """Return whether what is published of these variants has entries that no replica runs.

    They were made by other rules than today's: what supersedes them takes nothing from anybody.
    """
    published = {
        statement
        for fingerprint in fingerprints
        for statement in push.find_published(store, app.deployment, fingerprint)[-1:]
    }
    if not published:
        return False
    trust = _trust_of(app)
    there = catalog.describe(store, trust, deployment=app.deployment)
    found = [item.manifest for item in there if item.statement in published]
    # Of one that is not believed here nothing is known.
    return bool(found) and all(made is not None and made.has_older_entries(RULES) for made in found)


def _push(
    store: Store,
    variants: Sequence[tuple[Manifest, dict[str, bytes]]],
    key: Ed25519PrivateKey | None,
    *,
    supersedes: bool = False,
) -> list[str]:
    on_taken: push.OnTaken = "supersede" if supersedes else "refuse"
    return [
        push.push(store, manifest, stored, None if key is None else [key], on_taken=on_taken)
        for manifest, stored in variants
    ]


def _parts_of(store: Store, app: App, statements: Sequence[str]) -> dict[str, int]:
    """Return the stored bytes by part of artifacts that the round trip has just loaded."""
    trust = _trust_of(app)
    there = catalog.describe(store, trust, deployment=app.deployment)
    found = [item.manifest for item in there if item.statement in statements]
    return count_bytes([manifest for manifest in found if manifest is not None])


def _manifest(
    app: App, packed: PackedReplica, provenance: Mapping[str, str]
) -> tuple[Manifest, dict[str, bytes]]:
    # What is said of the origin is never what the code of the model says.
    said = {PROVENANCE: dict(provenance)} if provenance else {}
    facts = {name: fact for name, fact in packed["facts"].items() if name != PROVENANCE}
    parts, stored = [], {}
    for name, raw in packed["parts"].items():
        part, data = pack_part(name, raw)
        parts.append(part)
        stored[name] = data
    manifest = Manifest(
        format=FORMAT,
        deployment=app.deployment,
        created=utc_now(),
        fingerprint=Fingerprint.from_json(packed["fingerprint"]),
        parts=tuple(parts),
        facts={**facts, **said},
    )
    return manifest, stored


def _portable_facts(packed: PackedReplica) -> dict[str, Any]:
    """Return what a manifest says about a portable artifact, proven; nothing of another one.

    Here, and not in the replica that compiled: what user code runs in is not asked for a proof.
    """
    machine, app = packed["fingerprint"]["machine"], packed["fingerprint"]["app"]
    if app.get("cpu") != "portable":
        return {}
    if machine["cpu_isa"] != PORTABLE_ISA:
        raise BuildFailed(
            "cpu: portable needs AVX2 (x86-64-v3), and the CPU that compiled lacks "
            + " ".join(lacking(machine["cpu_isa"])),
            hint="nothing was published: build on a machine that has it",
        )
    made = [packed["parts"][name] for name in ("cache", "exported") if name in packed["parts"]]
    libraries = sum(prove_portable(io.BytesIO(raw), objdump=find_objdump()) for raw in made)
    return {"cpu": "portable", "libraries_disassembled": libraries}
