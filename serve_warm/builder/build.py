# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The build of an artifact. A build runs the deployment itself on Ray.

Ray sets a replica's thread count from `num_cpus`, and the thread count is in torch's cache keys. So
an artifact that was built outside a replica would not fit any replica. The build starts the
deployment with the deployment's own options. A replica warms up until all inputs are proven, and
then packs its caches. Before publication, a second, fresh replica must load the artifact and reach
the same proof without running a compiler. If the artifact has ahead-of-time entries or libraries,
other fresh replicas test these entries and libraries.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from serve_warm._records import record
from serve_warm.artifact.blobs import pack_part
from serve_warm.artifact.code_and_model import CodeAndModel
from serve_warm.artifact.manifest import ACCEPTED, FORMAT, PROVENANCE, VALUES, Manifest, utc_now
from serve_warm.builder import round_trips
from serve_warm.builder.app import App
from serve_warm.builder.cluster import Cluster, Look, Progress
from serve_warm.builder.portable import find_objdump, prove_portable
from serve_warm.builder.publishing import Destination, find_manifests, push_all
from serve_warm.builder.round_trips import RoundTrip
from serve_warm.builder.signing import BY_USER_KEY, Signing, check_key, check_place, staging
from serve_warm.errors import BuildFailed
from serve_warm.fingerprint import PORTABLE_ISA, Cpu, Fingerprint, lacking
from serve_warm.stores import Store, open_store
from serve_warm.trust.files import trust_lines

if TYPE_CHECKING:
    from serve_warm.learn.plan import InputPlan
    from serve_warm.replica.start.pack import PackedReplica

PACK_LIMIT_S = 3600.0
"""Maximum wall-clock seconds for a replica to make and pack its entries and libraries."""


VALUES_HINT = (
    "pass --with-values if everybody who can read the store may read them, or make the plan "
    "without --values"
)
"""Hint for a plan whose requests nobody has agreed to publish."""


def build(
    app: App,
    destination: Destination,
    *,
    on: Cluster,
    signing: Signing = BY_USER_KEY,
    cpu: Cpu | None = None,
    plan: InputPlan | None = None,
    with_values: bool = False,
    required_level: int = 1,
    accept_torch_source: bool = False,
    progress: Progress = lambda _: None,
) -> Built | NothingToBuild:
    """Build, test, sign and publish the artifact of one deployment, or of each rank of its gang.

    The artifact is published only if a second, fresh replica loads the artifact, proves every input
    and runs no compiler. `cpu` overrides the deployment's own `cpu` setting. Replicas that load
    the artifact must use the same value. The calls of `plan` are replayed after the declared
    inputs, and the artifact contains the plan. A plan with the values of requests, also one that
    the application's own settings name, is refused without `with_values`. No kind of call may have
    a level below `required_level`. `accept_torch_source` allows levels 2 and 3 with a torch that
    was not tested, and the manifest names what was accepted.

    Raises:
        AlreadyPublished: the store already has the variant, and `destination` does not allow
            another artifact of this variant.
        BuildFailed: a replica or a round trip failed, a kind of call has too low a level, or an
            artifact built as portable is not portable.
        ConfigError: this machine has no objdump for a portable artifact, round-trip replicas would
            not trust the artifact, or `destination` does not accept an unsigned artifact.
        StoreError: the store cannot be written to.
    """
    store = destination.store
    work = _Work(
        app, on, _settings(cpu), progress, plan=plan, accept_torch_source=accept_torch_source
    )
    check_place(destination, signing)
    key, beside = check_key(signing, app, on, store)
    by_rank = work.compile(destination.refuse_early(app))
    if isinstance(by_rank, NothingToBuild):
        return by_rank
    entries = by_rank[0]["facts"].get("entries", ())
    _require_level(app, required_level, entries)
    if (values := by_rank[0]["facts"].get(VALUES)) and not with_values:
        raise BuildFailed(
            f"the plan of {app.deployment} has the values of {values} requests, which the artifact "
            "would contain",
            hint=VALUES_HINT,
        )
    with work.phase("sign"):
        variants = [_manifest(app, packed, signing.provenance) for packed in by_rank]
    manifests = [manifest for manifest, _ in variants]
    # Check this before the round trip, which would otherwise be wasted.
    decision = destination.decide(manifests)
    keep = decision == "keep"
    with contextlib.nullcontext(store.uri) if keep else staging(store, beside) as source:
        if not keep:
            push_all(open_store(source), variants, key)
        reports = work.prove(source, round_trips.plan(variants[0][1], entries))
    _require_level(app, required_level, reports[0]["entries"])
    used = {report["artifact"]["statement"]: report["artifact"] for report in reports}
    signer = key if signing.when == "now" else None
    with work.phase("publish"):
        statements = (
            list(used)
            if decision == "keep"
            else push_all(store, variants, signer, on_taken=decision)
        )
    cold = [packed["report"] for packed in by_rank]
    return Built(
        published="kept" if keep else "new",
        store=store.uri,
        application=app.place.application,
        deployment=app.deployment,
        statement=statements[0],
        ranks=tuple(statements) if len(statements) > 1 else (),
        variant=manifests[0].fingerprint.key,
        portable_libraries=by_rank[-1]["facts"].get("libraries_disassembled"),
        trust="" if keep or signer is None else trust_lines(key.public_key(), name="builder"),
        seconds=work.seconds,
        entries=tuple(entries),
        accepted=by_rank[0]["facts"].get(ACCEPTED, {}),
        warnings=collect_warnings(*cold, *reports),
        cold=cold[0],
        round_trip=reports[0],
        **(_sizes_in_use(store, app, used) if keep else measure_built(manifests)),
    )


def _require_level(app: App, level: int, entries: Sequence[Mapping[str, Any]]) -> None:
    """Raise BuildFailed if a kind of call has a lower level, or if none has any."""
    if level == 1:
        return
    lower = [each for each in entries if each.get("level", 1) < level]
    if entries and not lower:
        return
    text = f"{app.deployment}: --require-level {level}, but "
    if not entries:
        raise BuildFailed(
            text + "no call goes through serve_warm.compile, so all calls have level 1",
            hint="nothing was published; compile the model with serve_warm.compile",
        )
    kinds = [
        f"{each['callable']}{each['call']} has level {each['level']}: {each.get('reason', '')}"
        for each in lower
    ]
    raise BuildFailed(
        "\n  ".join([text + f"{len(lower)} of {len(entries)} kinds of calls are lower:", *kinds]),
        hint="nothing was published; change what the reasons name, or require a lower level",
    )


class _Work:
    """The phases of a build on Ray: a cold start makes the artifact, warm starts test it."""

    def __init__(
        self,
        app: App,
        on: Cluster,
        settings: Mapping[str, Any],
        progress: Progress,
        *,
        plan: InputPlan | None,
        accept_torch_source: bool,
    ) -> None:
        self._app = app
        self._plan = plan
        self._on = on
        self._settings = settings
        self._progress = progress
        self._accept_torch_source = accept_torch_source
        self.seconds: dict[str, float] = {}
        """Wall-clock seconds that each phase took, in order."""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[Progress]:
        """Announce a phase, yield a function to report progress, and record the phase's seconds."""
        self._progress(name)
        began = time.perf_counter()
        try:
            yield lambda text: self._progress(f"{name}: {text}")
        finally:
            self.seconds[name] = time.perf_counter() - began

    def compile(self, look: Look) -> list[PackedReplica] | NothingToBuild:
        """Start cold replicas, and return the packed parts of each rank.

        If the replicas compile nothing, return NothingToBuild. Portable parts are checked. While
        the replicas start, `look` is called with their states.
        """
        cold = {**self._settings, "artifact": None}
        if self._plan is not None:  # the round trips find it in the artifact
            cold["plan"] = json.dumps(self._plan.to_json())
        # Starting and packing are separate phases of one running deployment.
        with contextlib.ExitStack() as running:
            with self.phase("compile") as progress:
                start = running.enter_context(
                    self._on.running(self._app, cold, progress=progress, look=look)
                )
                reports = start.ask("warmup_report", timeout_s=60)
            if all(report["nothing_compiles"] for report in reports):
                return NothingToBuild(warnings=collect_warnings(*reports), cold=reports[0])
            with self.phase("pack") as progress:
                each_packed = start.pack(
                    timeout_s=PACK_LIMIT_S,
                    accept_torch_source=self._accept_torch_source,
                    progress=progress,
                )
                by_rank = _one_each(each_packed)
        if portable := _portable_of(by_rank):
            with self.phase("disassemble"):
                for packed in portable:
                    packed["facts"].update(_portable_facts(packed))
        return by_rank

    def prove(self, source: str, trips: Sequence[RoundTrip]) -> list[dict[str, Any]]:
        """Start fresh replicas with the new artifact, and return the reports of the last trip.

        Raises:
            BuildFailed: a replica was not fully warm.
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


def _sizes_in_use(store: Store, app: App, used: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of the published artifacts that replicas loaded."""
    found = find_manifests(store, app, list(used))
    parts = count_bytes([manifest for manifest in found if manifest is not None])
    # If this machine does not trust an artifact, only the replicas know its size.
    stored_bytes = sum(parts.values()) or sum(each["stored_bytes"] for each in used.values())
    raw_bytes = sum(each["raw_bytes"] for each in used.values())
    return {"stored_bytes": stored_bytes, "raw_bytes": raw_bytes, "parts": parts}


def _settings(cpu: Cpu | None) -> dict[str, Any]:
    """Return the settings that all replicas of a build have in common.

    With these settings, a start fails if its artifact is missing.
    """
    if cpu == "portable":
        find_objdump()  # fail now, not after everything has compiled
    settings = {"enabled": True, "on_missing": "fail", "on_refused": "fail", "on_unproven": "fail"}
    return {
        **settings,
        "seats": {"count": 0},  # a build has no later starts
        **({} if cpu is None else {"cpu": cpu}),
    }


def _one_each(packed: Sequence[PackedReplica]) -> list[PackedReplica]:
    """Return the first packed replica for each fingerprint.

    A gang without a process group has no ranks, so all its replicas can load the same artifact.
    """
    found: dict[str, PackedReplica] = {}
    for each in packed:
        found.setdefault(Fingerprint.from_json(each["fingerprint"]).key, each)
    return list(found.values())


def _manifest(
    app: App, packed: PackedReplica, provenance: Mapping[str, str]
) -> tuple[Manifest, dict[str, bytes]]:
    # Provenance never comes from the model's code.
    said = {PROVENANCE: dict(provenance)} if provenance else {}
    facts = {name: fact for name, fact in packed["facts"].items() if name != PROVENANCE}
    parts, stored = [], {}
    for name, raw in packed["parts"].items():
        part, data = pack_part(name, raw)
        parts.append(part)
        stored[name] = data
    manifest = Manifest(
        format=FORMAT,
        place=app.place,
        made_of=CodeAndModel(**packed["made_of"]),
        created=utc_now(),
        fingerprint=Fingerprint.from_json(packed["fingerprint"]),
        parts=tuple(parts),
        facts={**facts, **said},
    )
    return manifest, stored


def _portable_of(by_rank: Sequence[PackedReplica]) -> list[PackedReplica]:
    """Return the packed replicas whose code must be checked, because other CPUs will run it too."""
    return [p for p in by_rank if p["fingerprint"]["app"].get("cpu") == "portable"]


def _portable_facts(packed: PackedReplica) -> dict[str, Any]:
    """Check the code of a portable artifact, and return the facts for its manifest.

    The check does not run in the replica, because user code there could falsify the result.
    """
    machine = packed["fingerprint"]["machine"]
    if machine["cpu_isa"] != PORTABLE_ISA:
        raise BuildFailed(
            "`cpu: portable` needs AVX2 (x86-64-v3), but the build machine's CPU does not have "
            f"{' '.join(lacking(machine['cpu_isa']))}",
            hint="nothing was published; build on a machine with these CPU flags",
        )
    made = [packed["parts"][name] for name in ("cache", "exported") if name in packed["parts"]]
    libraries = sum(prove_portable(io.BytesIO(raw), objdump=find_objdump()) for raw in made)
    return {"cpu": "portable", "libraries_disassembled": libraries}


# The result ---------------------------------------------------------------------------------------


@record(frozen=True, kw_only=True)
class NothingToBuild:
    """The result of a build if the replica needs no artifact, because it compiles nothing."""

    warnings: tuple[str, ...]
    """The warnings of the replicas, without duplicates."""
    cold: Mapping[str, Any]
    """The report of the replica."""
    published: Literal["nothing"] = "nothing"


@record(frozen=True, kw_only=True)
class Built:
    """An artifact that passed its round trip and is published."""

    published: Literal["new", "kept"]
    """`kept` means that the variant was already published, and the published artifact passed its
    round trip."""
    store: str
    application: str
    """Name of the application that the artifact is kept for."""
    deployment: str
    statement: str
    """The key of the statement. For a gang, `statement`, `variant` and both reports belong to
    the first rank."""
    ranks: tuple[str, ...]
    """The statements for all ranks of a gang; empty for a single replica."""
    variant: str
    """The key of the fingerprint."""
    stored_bytes: int
    raw_bytes: int
    parts: Mapping[str, int]
    """Stored bytes by part. For a kept artifact, these are the bytes of the published artifact."""
    portable_libraries: int | None
    """Number of libraries that were disassembled and found to run on every CPU with AVX2. `None`
    for an artifact that is only for this CPU."""
    trust: str
    """Lines to add to a trust.toml, so that machines with this file trust the signer. Empty for a
    kept or unsigned artifact."""
    seconds: Mapping[str, float]
    """Wall-clock seconds that each phase of the build took, in order. `round trips` covers all
    round trips. Each round trip is also listed by its label. Round trips may have run at the same
    time."""
    warnings: tuple[str, ...]
    """The warnings of the replicas. If warnings differ only in numbers, only the latest is
    listed."""
    cold: Mapping[str, Any]
    """The report of the replica that compiled."""
    round_trip: Mapping[str, Any]
    """The report of a fresh replica that loaded the artifact."""
    entries: tuple[Mapping[str, Any], ...] = ()
    """The kinds of calls with their levels, and how far each entry is from full precision."""
    accepted: Mapping[str, str] = field(default_factory=dict)
    """The functions of an untested torch that a person accepted, with their digests."""


def measure_built(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Return the sizes of the artifacts, summed over all ranks."""
    parts = count_bytes(manifests)
    raw_bytes = sum(part.raw_bytes for manifest in manifests for part in manifest.parts)
    return {"stored_bytes": sum(parts.values()), "raw_bytes": raw_bytes, "parts": parts}


def collect_warnings(*reports: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the warnings in these reports. Warnings that differ only in numbers count as one.

    >>> collect_warnings({"warnings": ["2 threads", "a"]}, {"warnings": ["3 threads"]})
    ('3 threads', 'a')
    """
    told: dict[str, str] = {}
    for report in reports:
        for warning in report["warnings"]:
            told[re.sub(r"\d+", "", warning)] = warning
    return tuple(told.values())


def count_bytes(manifests: Sequence[Manifest]) -> dict[str, int]:
    """Return the stored bytes by part, summed over all manifests."""
    sizes: Counter[str] = Counter()
    for manifest in manifests:
        sizes.update({part.name: part.stored_bytes for part in manifest.parts})
    return dict(sizes)
