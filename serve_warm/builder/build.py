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
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from serve_warm.artifact import catalog, push
from serve_warm.artifact.blobs import pack_part
from serve_warm.artifact.manifest import FORMAT, Manifest, utc_now
from serve_warm.builder.app import App
from serve_warm.builder.cluster import Cluster, Progress
from serve_warm.builder.portable import find_objdump, prove_portable
from serve_warm.errors import BuildFailed, ConfigError, StoreError
from serve_warm.fingerprint import PORTABLE_ISA, Cpu, Fingerprint, lacking
from serve_warm.precompile.facts import ENTRIES_FORMAT, RULES
from serve_warm.stores import open_store
from serve_warm.trust.files import default_trust_files, load_trust, trust_lines
from serve_warm.trust.user_key import user_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from serve_warm.replica.pack import PackedReplica
    from serve_warm.stores import Store
    from serve_warm.trust import Trust

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Built:
    """An artifact that passed its round trip and is published."""

    published: Literal["new", "kept"]
    """`kept`: the store had the variant before, `if_published` is `keep`, and that one passed."""
    store: str
    statement: str
    """Of a gang that of its first rank, as are `variant` and both reports."""
    ranks: tuple[str, ...]
    """The statements of all ranks of a gang; empty for a replica by itself."""
    variant: str
    """Key of the fingerprint."""
    stored_bytes: int
    raw_bytes: int
    parts: Mapping[str, int]
    """Stored bytes by part; of one that was kept, as it was published."""
    portable_libraries: int | None
    """Libraries that were disassembled and run on every CPU with AVX2; `None` for an artifact
    that is for this CPU alone."""
    trust: str
    """The lines for a trust.toml that trusts whoever signed this; empty for one that was kept."""
    cold: Mapping[str, Any]
    """Report of the replica that compiled."""
    round_trip: Mapping[str, Any]
    """Report of the fresh replica that loaded the artifact."""


def build(
    app: App,
    store_uri: str,
    *,
    on: Cluster,
    key: Ed25519PrivateKey | None = None,
    cpu: Cpu | None = None,
    if_published: Literal["refuse", "keep", "supersede"] = "refuse",
    progress: Progress = lambda _: None,
    notice: Progress = lambda _: None,
) -> Built:
    """Build, prove, sign and publish the artifact of one deployment, or of each rank of its gang.

    Nothing is published unless a second, fresh replica loads the artifact, proves every input
    and runs no compiler. `key` signs; the per-user key, made and trusted on first use, if none
    is given. The replica must trust it, as the fleet will have to. `cpu` is laid over what the
    deployment sets; every replica that shall use the artifact must set the same. A variant that
    the store has already is never replaced: `keep` puts that one through the round trip instead,
    `supersede` publishes beside it. `notice` is told what the user should know beside the result.

    Raises:
        AlreadyPublished: the store has the variant, and `if_published` is `refuse`.
        BuildFailed: a replica failed, the artifact did not pass its round trip, or it is to be
            portable and is not.
        ConfigError: a portable artifact cannot be disassembled here.
        StoreError: the store cannot be written.
    """
    store, settings = open_store(store_uri), _settings(cpu)
    key = _check_key(key or user_key(), app, on)
    by_rank, portable = _compile(app, settings, on, progress)
    progress("sign")
    variants = [_manifest(app, packed) for packed in by_rank]
    manifests = [manifest for manifest, _ in variants]
    # Before the round trip, which would be in vain.
    outdated = _are_outdated(store, app, manifests, notice)
    keep = not outdated and _is_kept(store, manifests, if_published)
    with contextlib.nullcontext(store.uri) if keep else _staging(store, on) as source:
        if not keep:
            _push(open_store(source), variants, key)
        trips = _round_trips(variants[0][1], by_rank[0]["facts"].get("entries", ()))
        reports = _prove(app, {**settings, "artifact": source}, trips, on, progress)
    used = {report["artifact"]["statement"]: report["artifact"] for report in reports}
    statements = list(used)
    if not keep:
        progress("publish")
        supersedes = outdated or if_published == "supersede"
        statements = _push(store, variants, key, on_taken="supersede" if supersedes else "refuse")
    return Built(
        published="kept" if keep else "new",
        store=store.uri,
        statement=statements[0],
        ranks=tuple(statements) if len(statements) > 1 else (),
        variant=manifests[0].fingerprint.key,
        **(_sizes_in_use(store, app, used) if keep else _sizes_built(manifests)),
        portable_libraries=portable.get("libraries_disassembled"),
        trust="" if keep else trust_lines(key.public_key(), name="builder"),
        cold=by_rank[0]["report"],
        round_trip=reports[0],
    )


def _sizes_built(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Return the sizes that the result of a build has."""
    parts = _sizes(manifests)
    raw_bytes = sum(part.raw_bytes for manifest in manifests for part in manifest.parts)
    return {"stored_bytes": sum(parts.values()), "raw_bytes": raw_bytes, "parts": parts}


def _sizes_in_use(store: Store, app: App, used: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same of artifacts that were published before, and that replicas have loaded."""
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
    return {**settings, **({} if cpu is None else {"cpu": cpu})}


def _compile(
    app: App, settings: Mapping[str, Any], on: Cluster, progress: Progress
) -> tuple[list[PackedReplica], dict[str, Any]]:
    """Return what a cold replica of each rank packed, and what was proven of a portable one."""
    cold = {**settings, "artifact": None}
    with on.running(app, cold, progress=_prefix(progress, "compile")) as start:
        progress("compile: packing")
        by_rank = _one_each(start.pack(timeout_s=600))
    portable: dict[str, Any] = {}
    for packed in by_rank:
        portable = _portable_facts(packed, progress)
        packed["facts"].update(portable)
    return by_rank, portable


def _prove(
    app: App,
    warm: Mapping[str, Any],
    trips: Sequence[tuple[str, list[str], bool]],
    on: Cluster,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Start fresh replicas on what was built, and return the reports of the last ones.

    Raises:
        BuildFailed: one was not warm through and through.
    """
    reports: list[dict[str, Any]] = []
    for label, parts, proves in trips:
        told = _prefix(progress, label)
        with on.running(app, {**warm, "parts": parts}, progress=told) as start:
            reports = start.ask("warmup_report", timeout_s=60)
        for report in reports:
            _accept(report, without_compiler=proves)
    return reports


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


def _check_key(key: Ed25519PrivateKey, app: App, on: Cluster) -> Ed25519PrivateKey:
    """Return the key if the replicas of the round trip would believe it, as far as is known here.

    Raises:
        ConfigError: they run on this machine, where it is not trusted. Nothing is compiled yet.
    """
    if on.place != "here":
        return key
    public = key.public_key()
    trust = _trust_of(app)
    if public.public_bytes_raw() not in {trusted.raw for trusted in trust.keys}:
        where = "the code of the deployment" if app.trust is not None else default_trust_files()[0]
        raise ConfigError(
            "the key that would sign is not trusted here, so the round trip would refuse it",
            hint=f"add it to {where}:\n{trust_lines(public, name='builder')}",
        )
    return key


@contextlib.contextmanager
def _staging(store: Store, on: Cluster) -> Iterator[str]:
    """Yield a store for the round trip that no replica in traffic looks into.

    On a cluster of this machine it is a folder. Elsewhere it must be what all nodes see, so it
    stands beside the artifacts in their own store, outside the keys that they have.
    """
    if on.place == "here":
        with tempfile.TemporaryDirectory(prefix="serve_warm-staging-") as staging:
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
            raise push.already_published(store, manifest, before[-1])
    return False


def _are_outdated(store: Store, app: App, manifests: Sequence[Manifest], notice: Progress) -> bool:
    """Return whether what is published of these variants has entries that no replica runs.

    They were made by other rules than today's: what supersedes them takes nothing from anybody.
    """
    published = {
        statement
        for made in manifests
        for statement in push.find_published(store, made.deployment, made.fingerprint)[-1:]
    }
    if not published:
        return False
    trust = _trust_of(app)
    there = catalog.describe(store, trust, deployment=app.deployment)
    found = [item.manifest for item in there if item.statement in published]
    outdated = bool(found) and all(map(_has_outdated_entries, found))
    if outdated:
        notice("what is published has entries that no replica runs any more: it is superseded")
    return outdated


def _has_outdated_entries(manifest: Manifest | None) -> bool:
    if manifest is None:  # not believed here: nothing is known of it
        return False
    entries = manifest.facts.get("entries") or ()
    levels = {entry.get("level") for entry in entries if isinstance(entry, dict)}
    return bool(levels - {1}) and manifest.facts.get(ENTRIES_FORMAT, 1) < RULES


def _push(
    store: Store,
    variants: Sequence[tuple[Manifest, dict[str, bytes]]],
    key: Ed25519PrivateKey,
    *,
    on_taken: push.OnTaken = "refuse",
) -> list[str]:
    return [
        push.push(store, manifest, stored, [key], on_taken=on_taken)
        for manifest, stored in variants
    ]


def _parts_of(store: Store, app: App, statements: Sequence[str]) -> dict[str, int]:
    """Return the stored bytes by part of artifacts that the round trip has just loaded."""
    trust = _trust_of(app)
    there = catalog.describe(store, trust, deployment=app.deployment)
    found = [item.manifest for item in there if item.statement in statements]
    return _sizes([manifest for manifest in found if manifest is not None])


def _sizes(manifests: Sequence[Manifest]) -> dict[str, int]:
    """Return the stored bytes by part, of all of them together."""
    sizes: Counter[str] = Counter()
    for manifest in manifests:
        sizes.update({part.name: part.stored_bytes for part in manifest.parts})
    return dict(sizes)


def _manifest(app: App, packed: PackedReplica) -> tuple[Manifest, dict[str, bytes]]:
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
        facts=packed["facts"],
    )
    return manifest, stored


def _portable_facts(packed: PackedReplica, progress: Progress) -> dict[str, Any]:
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
    progress("compile: disassembling")
    made = [packed["parts"][name] for name in ("cache", "exported") if name in packed["parts"]]
    libraries = sum(prove_portable(io.BytesIO(raw), objdump=find_objdump()) for raw in made)
    return {"cpu": "portable", "libraries_disassembled": libraries}


def _round_trips(
    stored: Mapping[str, bytes], entries: Sequence[Mapping[str, Any]]
) -> list[tuple[str, list[str], bool]]:
    """Return name and parts of each round trip, and whether it must do without torch's compiler.

    Each level by itself: what the entries answer never asks the caches, and the caches must answer
    where an entry does not fit. Libraries need neither, where every call has one.
    """
    trips = [("round trip", ["cache"], False)]
    if "precompiled" in stored:
        trips.append(("round trip, ahead of time", ["cache", "precompiled"], False))
    if "exported" in stored:
        alone = all(entry["level"] == 3 for entry in entries)
        rest = [name for name in ("cache", "precompiled") if name in stored and not alone]
        trips.append(("round trip, libraries", [*rest, "exported"], alone))
    return trips


def _accept(report: Mapping[str, Any], *, without_compiler: bool = False) -> None:
    """Raise unless the round trip was warm through and through."""
    problems = []
    if report["verdict"] != "full_hit":
        reason = (report["artifact"] or {}).get("reason", "")
        problems.append(
            f"its verdict is {report['verdict']}, not full_hit ({reason or 'no reason'})"
        )
    runs = report["warmup"]["compiler_processes"]
    if runs:
        problems.append(f"it ran the compiler {runs} times")
    covered = report["covered"]
    if covered["proven"] != covered["expected"] or not covered["expected"]:
        problems.append(f"it proved {covered['proven']} of {covered['expected']} inputs")
    parity = report.get("parity") or {}
    problems += [f"it withdrew {failure}" for failure in parity.get("failures", ())]
    if without_compiler:
        problems += [
            f"{use['callable']}{use['call']} was served by level {use['level']}: {use['reason']}"
            for use in report["entries"]
            if use["level"] < 3
        ]
        if report["compiler_imported"] == "start":
            problems.append("torch's compiler was imported, which libraries do without")
    if problems:
        raise BuildFailed(
            "a fresh replica loaded the artifact, and " + "; ".join(problems),
            hint="nothing was published. What is not cached is usually a graph that bypasses "
            "torch's caches (TORCH_LOGS=+inductor names it), or an input that differs per start",
        )


def _prefix(progress: Progress, prefix: str) -> Progress:
    return lambda text: progress(f"{prefix}: {text}")
