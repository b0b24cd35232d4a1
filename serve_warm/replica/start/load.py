# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The stages PULLING, VERIFYING and LOADING: install an artifact, or start cold.

No code from an artifact runs until the artifact has been verified. If loading fails, the files
written so far are not used.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from serve_warm._daemon_threads import begin
from serve_warm._records import record
from serve_warm._redaction import join_lines, redact
from serve_warm._store_address import is_relative
from serve_warm.artifact.choose import Considered, with_trace
from serve_warm.artifact.code_and_model import CodeAndModel, find_newer_used
from serve_warm.artifact.newest_seen import NewestSeen, Variant
from serve_warm.artifact.pull import Pulled, pull
from serve_warm.compiler.caches import forget_compiled
from serve_warm.compiler.cpu_target import isa_checks, require_compiler
from serve_warm.compiler.switches import find_off_switch
from serve_warm.config import environment
from serve_warm.errors import (
    ArtifactNotFound,
    ArtifactRefused,
    ConfigError,
    NodeDiskError,
    ServeWarmError,
    StoreDenied,
    StoreError,
    WarmupFailed,
    reword,
)
from serve_warm.fingerprint import Fingerprint
from serve_warm.precompile import SESSION
from serve_warm.replica.record.journal import Journal
from serve_warm.replica.replay.ranks import Ranks
from serve_warm.replica.replay.timed_calls import Deadline
from serve_warm.replica.start import prefetch
from serve_warm.replica.start.context import StartStep
from serve_warm.replica.start.install import put_in_place
from serve_warm.replica.start.pack import NARROW, PLAN, UNVARIED, VARIED
from serve_warm.replica.start.prepare import Prepared, need_compiler, prepare_compiler
from serve_warm.report import ArtifactUse, Stage, Verdict
from serve_warm.stores import kind_of, open_store
from serve_warm.trust.verify import describe_end

if TYPE_CHECKING:
    from serve_warm.learn.plan import InputPlan

logger = logging.getLogger(__name__)

RETRY_BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds to wait between retries if a store does not answer. The last wait is repeated until
`pull_deadline_s` has passed. The start retries by itself, because Serve would restart a failed
start without a pause."""

MOST_LINES = 128
"""Most lines about inputs that a report takes from an artifact."""

TRACE_LINES = 50
"""Maximum number of variants that a report lists. A limit is needed, because anyone who can write
to a store can add variants."""


@record(frozen=True, kw_only=True)
class Loaded:
    """The result of loading: the artifact that a start uses, or the reason why there is none."""

    verdict: Verdict = Verdict.OFF
    artifact: ArtifactUse | None = None
    """How the start uses the artifact; None if no artifact is configured."""
    has_libraries: bool = False
    """Whether the artifact has libraries, and all of them can be used."""
    is_eager: bool = False
    """Whether the start runs eagerly, because it has no artifact and the policy is `eager`."""
    plan: InputPlan | None = None
    """The plan in the artifact."""
    missing: WarmupFailed | None = None
    """The error for `on_missing: fail`, kept while the start has found no compiled code. The error
    is raised later if the app turns out to have compiled code."""

    def needs_compiler(self, prepared: Prepared) -> bool:
        """Whether the start needs torch's compiler but has not imported it yet."""
        if self.is_eager or self.has_libraries:
            return False
        compiles_with = prepared.compiles_with
        if compiles_with == "torch":
            return prepared.is_compiler_put_off
        # No libraries are loaded here. If the app asks for libraries, something must be compiled.
        # If no compiled code was found so far, a model that is created later may have entries in
        # the artifact.
        return compiles_with == "libraries" or (self.artifact is not None and self.artifact.in_use)


class Loading(StartStep):
    """The stages in which one start loads its artifact; call `load`."""

    async def load(self, prepared: Prepared, ranks: Ranks, deadline: Deadline) -> Loaded:
        """Load the configured artifact, on all ranks or on none.

        Raises:
            WarmupFailed: no artifact was found, and the policy requires one.
            CompilerMissing: something must be compiled, and there is no compiler.
        """
        uri, loaded = self._config.artifact, Loaded()
        switch = find_off_switch()
        if uri is not None and switch:
            # An operator who turns the compiler off wants eager results, and not those of entries.
            use = ArtifactUse(
                store=redact(uri), source=kind_of(uri), reason=f"not loaded: {switch}"
            )
            self._journal.note_artifact(use)
        elif uri is not None and prepared.fingerprint is not None:
            loaded = await self._load_from(uri, prepared, prepared.fingerprint, deadline)
        loaded = await self._agree(loaded, ranks, deadline)
        if loaded.needs_compiler(prepared):
            self._import_compiler(prepared)
        return loaded

    def _import_compiler(self, prepared: Prepared) -> None:
        with self._journal.timed(Stage.PENDING):
            prepare_compiler(self._start)
        if prepared.compiles_with == "torch":
            need_compiler(self._start, prepared.arguments)
        else:
            require_compiler(environment())

    async def go_on_without(self, refusal: ArtifactRefused, prepared: Prepared) -> Loaded:
        """Refuse the loaded artifact, whose code raised an error, and go on without it.

        Raises:
            WarmupFailed: `on_refused` is `fail`.
            CompilerMissing: something must be compiled, and there is no compiler.
        """
        loaded = await self._go_without(self._put_aside(Verdict.REFUSED, refusal), refusal)
        if loaded.needs_compiler(prepared):
            self._import_compiler(prepared)
        forget_compiled()
        return loaded

    async def _agree(self, loaded: Loaded, ranks: Ranks, deadline: Deadline) -> Loaded:
        """Discard this rank's artifact if another rank has no artifact, and return the result.

        Otherwise a warm rank would wait in a collective while another rank compiles, and the
        process group might time out. Compiling on all ranks takes no longer than compiling on one.
        """
        if ranks.size == 1:
            return loaded
        used = loaded.artifact
        mine = (used.reason if used else "no artifact is configured") or None
        with self._journal.timed(Stage.LOADING):
            reasons = await ranks.agree("its artifact", mine, timeout_s=deadline.left())
        without = [rank for rank, reason in enumerate(reasons) if reason]
        if without and not mine:
            first = without[0]
            error = self._missed(
                ArtifactNotFound(
                    f"not loaded, because rank {first} of {ranks.size} has no artifact: "
                    + reasons[first].splitlines()[0],
                    hint="publish an artifact for each rank: one cold rank makes all ranks cold",
                )
            )
            loaded = self._put_aside(Verdict.MISS, error)
            loaded = await self._go_without(loaded, error)
        return loaded

    async def _load_from(
        self, uri: str, prepared: Prepared, fingerprint: Fingerprint, deadline: Deadline
    ) -> Loaded:
        journal = self._journal
        journal.note_artifact(ArtifactUse(store=redact(uri), source=kind_of(uri)))
        try:
            journal.enter(Stage.PULLING)
            wanted = prefetch.ArtifactRequest.of(
                self._config, place=self._replica.place, trust=self._replica.trust()
            )
            pulled, taken = await self._pull(uri, wanted, fingerprint, prepared.made_of, deadline)
            used = _use_of(uri, pulled)
            journal.note_artifact(used)
            try:
                remember_newest = check_time(pulled, wanted, prepared.made_of, journal.warn)
            except ServeWarmError:
                if taken is not None:
                    # In a thread, because removing thousands of files takes time.
                    begin(taken.discard, name="serve_warm-load")
                raise
            journal.enter(Stage.LOADING)
            hidden_s = taken.unpacked_early_s if taken else 0.0
            with journal.timed(Stage.LOADING, hidden_s=hidden_s), pulled:
                has_libraries = await self._load_in_time(pulled, taken, deadline)
        except (ArtifactNotFound, StoreError) as miss:
            error = self._missed(miss)
            loaded = self._put_aside(Verdict.MISS, error)
            # With `eager`, a model that is created later must not be compiled either.
            if prepared.compiles_with == "nothing" and self._policy(Verdict.MISS) != "eager":
                logger.info("no artifact found, but the app compiles nothing: %s", error.message)
                return replace(loaded, missing=self._failure(Verdict.MISS, error))
            return await self._go_without(loaded, error)
        except ArtifactRefused as refusal:
            return await self._go_without(self._put_aside(Verdict.REFUSED, refusal), refusal)
        facts = pulled.chosen.manifest.facts
        journal.note_loaded(
            narrow=[*map(str, facts.get(NARROW) or ())][:MOST_LINES],
            unvaried=[*map(str, facts.get(UNVARIED) or ())][:MOST_LINES],
            varied=str(facts.get(VARIED) or ""),
        )
        remember_newest()
        return Loaded(
            verdict=Verdict.FULL_HIT,
            artifact=used,
            has_libraries=has_libraries,
            plan=self._plan_in(facts),
        )

    def _plan_in(self, facts: Mapping[str, Any]) -> InputPlan | None:
        """Return the plan that the artifact was built with, unless the settings have another."""
        if facts.get(PLAN) is None or self._config.plan is not None:
            return None
        from serve_warm.learn.plan import InputPlan

        try:
            return InputPlan.from_json(facts[PLAN], source="the plan in the artifact")
        except ConfigError as error:
            self._journal.warn(error.message)
            return None

    # Pulling --------------------------------------------------------------------------------------

    async def _pull(
        self,
        uri: str,
        wanted: prefetch.ArtifactRequest,
        fingerprint: Fingerprint,
        made_of: CodeAndModel,
        deadline: Deadline,
    ) -> tuple[Pulled, prefetch.PrefetchedArtifact | None]:
        """Return a verified artifact, and how it was prefetched if `__init__` still ran then."""
        journal = self._journal
        limit = Deadline(min(self._config.pull_deadline_s, deadline.left()))
        given_up = threading.Event()
        start = time.perf_counter()
        try:
            taken = await self._take_prefetched(wanted, fingerprint, made_of, limit)
            pulled = (
                taken.pulled
                if taken
                else await _retry(
                    journal, uri, limit, self._puller(uri, wanted, fingerprint, made_of, given_up)
                )
            )
        except ServeWarmError:
            journal.add_time(Stage.PULLING, time.perf_counter() - start)
            raise
        finally:
            # Do this even if the start is cancelled, because then nobody waits for a running pull.
            given_up.set()
            journal.timeline.say("")
        elapsed_s = time.perf_counter() - start
        early = taken.early if taken else 0.0
        waited_s = pulled.verify_s * (1 - early)
        journal.add_time(
            Stage.PULLING, max(0.0, elapsed_s - waited_s), hidden_s=pulled.download_s * early
        )
        journal.stay_in(Stage.VERIFYING)  # a prefetched artifact is already verified
        journal.add_time(Stage.VERIFYING, waited_s, hidden_s=pulled.verify_s * early)
        return pulled, taken

    def _puller(
        self,
        uri: str,
        wanted: prefetch.ArtifactRequest,
        fingerprint: Fingerprint,
        made_of: CodeAndModel,
        given_up: threading.Event,
    ) -> Callable[[], Pulled]:
        """Return a function that pulls once; call that function in a thread."""
        loop = asyncio.get_running_loop()

        def verify() -> None:
            if not given_up.is_set():
                self._journal.enter(Stage.VERIFYING)

        def pull_once() -> Pulled:
            with wanted.node_cache() as cache:
                return pull(
                    open_store(uri),
                    place=wanted.place,
                    fingerprint=fingerprint,
                    here=made_of,
                    trust=wanted.trust,
                    cache=cache,
                    parts=wanted.parts,
                    fetched=functools.partial(loop.call_soon_threadsafe, verify),
                    given_up=given_up,
                )

        return pull_once

    async def _take_prefetched(
        self,
        wanted: prefetch.ArtifactRequest,
        fingerprint: Fingerprint,
        made_of: CodeAndModel,
        limit: Deadline,
    ) -> prefetch.PrefetchedArtifact | None:
        """Return the artifact that was pulled during `__init__`, if it is still wanted."""
        if self._start.prefetched is None:
            return None
        taken = await self._start.prefetched.taken(
            wanted, fingerprint, made_of, timeout_s=max(0.1, limit.left())
        )
        if taken is None:
            # Do this before the next pull, because the prefetch may hold the node's lock on the
            # same artifact.
            self._start.prefetched.drop()
        return taken

    # Loading --------------------------------------------------------------------------------------

    async def _load_in_time(
        self, pulled: Pulled, taken: prefetch.PrefetchedArtifact | None, deadline: Deadline
    ) -> bool:
        """Load an artifact, and return whether its libraries can be used.

        `taken` has the parts that were unpacked during `__init__`, if any. After the deadline, this
        raises `StoreError`, and the loading thread stops at its next call of `check_wanted`.
        """
        limit_s = max(0.1, min(self._config.pull_deadline_s, deadline.left()))
        key, given_up = pulled.chosen.key, threading.Event()

        def check_wanted() -> None:
            if given_up.is_set():
                raise StoreError(f"{key}: the start no longer waits for this artifact")

        load = functools.partial(
            put_in_place,
            pulled,
            taken,
            caches=self._caches,
            warn=self._journal.warn,
            check_wanted=check_wanted,
        )
        context = contextvars.copy_context()  # with torch's settings
        loading = begin(lambda: context.run(load), name="serve_warm-load")
        try:
            return await asyncio.wait_for(asyncio.wrap_future(loading), limit_s)
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise StoreError(
                f"{key}: not loaded within {limit_s:.0f} s",
                hint="check whether the temporary folder is on a slow disk, or raise "
                "pull_deadline_s",
            ) from error
        finally:
            given_up.set()

    def _missed(self, error: ServeWarmError) -> ServeWarmError:
        """Return the error for a start with the verdict MISS.

        If the artifact's path is relative, the error text also names the working directory.
        """
        if not is_relative(str(self._config.artifact)):
            return error
        return reword(
            error,
            # Ray chooses a replica's working directory, which may not be the folder of the YAML.
            f"{error.message}\n  {self._config.artifact} is a relative path, resolved against the "
            f"replica's working directory {Path.cwd()}: set an absolute path or a bucket if the "
            "artifact is elsewhere",
            # Without a trace, the hint would recommend building into that folder.
            hint=error.hint if error.trace else "",
        )

    def _put_aside(self, verdict: Verdict, error: ServeWarmError) -> Loaded:
        """Discard the loaded artifact, and return a result that contains the reason."""
        unused = ArtifactUse(
            store=redact(str(self._config.artifact)),
            source=kind_of(str(self._config.artifact)),
            statement=error.statement if verdict is Verdict.REFUSED else "",
            reason=str(error),
            refused=error.reason if isinstance(error, ArtifactRefused) else "",
            trace=_lines(error.trace),
        )
        self._journal.note_artifact(unused, verdict)
        # Do not use the files written so far.
        self._caches.begin_anew()
        isa_checks().give({})
        SESSION.unload()
        return Loaded(verdict=verdict, artifact=unused)

    def _policy(self, verdict: Verdict) -> Literal["compile", "eager", "fail"]:
        is_miss = verdict is Verdict.MISS
        return self._config.on_missing if is_miss else self._config.on_refused

    def _failure(self, verdict: Verdict, error: ServeWarmError) -> WarmupFailed | None:
        if self._policy(verdict) != "fail":
            return None
        setting = "on_missing" if verdict is Verdict.MISS else "on_refused"
        return WarmupFailed(
            f"verdict {verdict.value}, and {setting} is 'fail': {error.message}",
            hint=error.hint,
            stage=self._journal.stage.value,
        )

    async def _go_without(self, loaded: Loaded, error: ServeWarmError) -> Loaded:
        """Log why this start compiles or runs eagerly, or raise if the policy is `fail`."""
        verdict = loaded.verdict
        if (failure := self._failure(verdict, error)) is not None:
            raise failure from error
        why_not, is_eager = "", self._policy(verdict) == "eager"
        if is_eager:
            why_not = await self._replica.why_not_eager()
            is_eager = not why_not
        # Log one line that says what was tried, what was found and what to do.
        words = join_lines(str(error))
        fields = self._journal.log_fields("artifact", verdict=verdict.value, reason=words)
        why = f" reason={error.reason}" if isinstance(error, ArtifactRefused) else ""
        does = "running eagerly" if is_eager else "compiling cold"
        if why_not:
            self._journal.warn(f"compiling before READY, although the policy is 'eager': {why_not}")
        logger.warning("verdict=%s%s, %s: %s", verdict.value, why, does, words, extra=fields)
        return replace(loaded, is_eager=is_eager)


def _use_of(uri: str, pulled: Pulled) -> ArtifactUse:
    return ArtifactUse(
        store=redact(uri),
        source=kind_of(uri),
        statement=pulled.chosen.key,
        created=pulled.chosen.manifest.created,
        stored_bytes=pulled.stored_bytes,
        raw_bytes=sum(pulled.chosen.manifest.part(name).raw_bytes for name in pulled.raw),
        downloaded_bytes=pulled.downloaded_bytes,
        believed=pulled.chosen.believed.verified.how,
        signers=pulled.chosen.believed.verified.signers,
        trace=_lines(pulled.chosen.trace),
    )


def _lines(trace: Sequence[Considered]) -> tuple[str, ...]:
    """Return one line for each variant, with accepted variants first.

    Variants beyond `TRACE_LINES` are only counted.
    """
    shown = sorted(trace, key=lambda considered: not considered.accepted)[:TRACE_LINES]
    rest = len(trace) - len(shown)
    return (*map(str, shown), *([f"and {rest} more"] if rest else []))


async def _retry(
    journal: Journal, uri: str, limit: Deadline, pull_once: Callable[[], Pulled]
) -> Pulled:
    """Call `pull_once` in a thread until it returns, fails permanently, or runs out of time."""
    tries, began, last = 0, time.perf_counter(), ""
    while True:
        journal.stay_in(Stage.PULLING)  # the previous try may have reached a later stage
        try:
            return await _run_in_own_thread(pull_once, timeout_s=max(0.1, limit.left()))
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise StoreError(
                f"{uri}: nothing was pulled within {limit.seconds:.0f} s{last}",
                hint="check that the store can be reached from this node, or raise pull_deadline_s",
            ) from error
        except (StoreDenied, NodeDiskError):
            raise
        except StoreError as error:
            pause_s = RETRY_BACKOFF_S[min(tries, len(RETRY_BACKOFF_S) - 1)]
            pause_s = max(pause_s, error.retry_after_s)
            tries += 1
            if limit.left() < pause_s:
                if tries == 1:
                    raise
                took_s = time.perf_counter() - began
                text = f"{error.message} ({tries} tries in {took_s:.0f} s)"
                raise reword(error, text, hint=error.hint) from error
            last = f"; try {tries} failed: {error.message}"
            # From the first failure on, the report shows why the start waits for the store.
            logger.log(
                logging.WARNING if tries == 1 else logging.INFO,
                "the artifact was not pulled, try=%d, retrying in %.1f s: %s",
                *(tries, pause_s, error.message),
            )
            journal.timeline.say(f"the store (try {tries} failed: {error.message})")
            journal.tell()
            await asyncio.sleep(pause_s)


async def _run_in_own_thread(pull_once: Callable[[], Pulled], *, timeout_s: float) -> Pulled:
    """Return the result of `pull_once`. After the timeout, do not wait for the thread.

    This does not use the event loop's thread pool, because user code shares that pool, and a call
    that hangs in a store would block one of the pool's threads.
    """
    pulling = begin(pull_once, name="serve_warm-pull")
    came = None
    try:
        came = await asyncio.wait_for(asyncio.wrap_future(pulling), timeout_s)
    finally:
        if came is None:
            pulling.add_done_callback(_close_what_came_late)
    return came


def _close_what_came_late(pulling: Future[Pulled]) -> None:
    if not pulling.cancelled() and pulling.exception() is None:
        pulling.result().close()


# The time of an artifact --------------------------------------------------------------------------


def check_time(
    pulled: Pulled,
    wanted: prefetch.ArtifactRequest,
    here: CodeAndModel,
    warn: Callable[[str], object],
) -> Callable[[], None]:
    """Warn if an artifact is a rollback, or if it will soon be too old.

    It is a rollback if this node has used a newer artifact that matches the code and model `here`
    at least as closely. This start would have taken that one, if the store still had it.

    Returns a function that records the artifact's creation time. Call the returned function after
    the start has accepted the artifact.

    Raises:
        ArtifactRefused: `rollback`: the policy refuses rollbacks, and this node has used a newer
            artifact or has no usable record of newer artifacts. The artifact is closed.
    """
    manifest = pulled.chosen.manifest
    seen = NewestSeen.beside(wanted.node_cache_dir)
    variant = Variant(
        store=pulled.store,
        application=manifest.place.application,
        deployment=manifest.place.deployment,
        fingerprint=manifest.fingerprint.key,
    )
    used = seen.find_used(variant)
    if used is None:
        refusal = _refuse_without_mark(seen, variant)
        if wanted.trust.rollback == "refuse":
            pulled.close()
            raise with_trace(refusal, pulled.chosen.key, pulled.chosen.trace)
        warn(f"rollback: {refusal.message}")
    newest = find_newer_used(
        used or {}, taken=manifest.made_of, created=manifest.created, here=here
    )
    if newest:
        found = (
            f"the artifact was created at {manifest.created}, but this node has already loaded a "
            f"newer artifact, created at {newest}. Either the newer artifact is no longer in "
            f"{redact(pulled.store)}, or it came from another store"
        )
        if wanted.trust.rollback == "refuse":
            pulled.close()
            refusal = ArtifactRefused(
                found,
                reason="rollback",
                hint="build and push the artifact again. To roll back on purpose, remove "
                f"{seen.folder / variant.file_name} and "
                f'{seen.node_cache / variant.record_name}, or set rollback = "warn" in the '
                "trust file",
            )
            raise with_trace(refusal, pulled.chosen.key, pulled.chosen.trace)
        warn(f"rollback: {found}")
    if ending := describe_end(wanted.trust, created=manifest.created):
        warn(ending)
    return functools.partial(seen.note, variant, manifest.made_of, manifest.created)


def _refuse_without_mark(seen: NewestSeen, variant: Variant) -> ArtifactRefused:
    if seen.was_removed(variant):
        return ArtifactRefused(
            f"this node's record of newer artifacts was removed: {seen.folder}",
            reason="rollback",
            hint="keep this folder on the volume of the node cache. If you removed this folder "
            f"on purpose, remove {seen.node_cache / variant.record_name} too",
        )
    return ArtifactRefused(
        f"this node's record of newer artifacts cannot be read or trusted: {seen.folder}",
        reason="rollback",
        hint=f"make that folder private to this user. If the folder's file {variant.file_name} is "
        f"damaged, remove the file and {seen.node_cache / variant.record_name}",
    )
