# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The stages PULLING, VERIFYING and LOADING: an artifact is put in place, or a start is cold.

Nothing of an artifact is executed before it is verified, and what was written is not built upon
where loading fails.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from serve_warm import _private_folders
from serve_warm._redaction import redact
from serve_warm.artifact.choose import Considered
from serve_warm.artifact.pull import Pulled, pull
from serve_warm.compiler.caches import (
    defer_precompiled_headers,
    load_torch_bytes,
    private_directory,
)
from serve_warm.compiler.cpu_target import isa_checks, require_compiler
from serve_warm.config import WarmupConfig, environment
from serve_warm.errors import (
    ArtifactNotFound,
    ArtifactRefused,
    ServeWarmError,
    StoreDenied,
    StoreError,
    WarmupFailed,
)
from serve_warm.fingerprint import NOT_NEEDED
from serve_warm.precompile.session import SESSION
from serve_warm.replica import prefetch
from serve_warm.replica.pack import ISA_FACT, LEVEL_PARTS
from serve_warm.replica.timed_calls import Deadline
from serve_warm.report import ArtifactUse, Stage, Verdict
from serve_warm.stores import kind_of, open_store

if TYPE_CHECKING:
    from serve_warm.replica.journal import Journal
    from serve_warm.replica.prepare import CompileCaches, Preparation, Prepared, Replica
    from serve_warm.replica.ranks import Ranks

logger = logging.getLogger(__name__)

RETRY_BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses between tries of a store that does not answer, the last one repeated, until
`pull_deadline_s`. They stand here and not in Serve: a start that fails is begun anew at once."""

TRACE_LINES = 50
"""Variants that a report lists; whoever may write to a store decides how many there are."""


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """An artifact that may be loaded."""

    pulled: Pulled
    directory: Path | None
    """Where its part `cache` is unpacked already, if it is."""
    unpacked_early_s: float


class Loading:
    """The stages of one start that load its artifact; `load` is its one verb."""

    def __init__(
        self,
        replica: Replica,
        config: WarmupConfig,
        journal: Journal,
        caches: CompileCaches,
        prefetched: prefetch.Prefetch | None,
    ) -> None:
        self._replica = replica
        self._config = config
        self._journal = journal
        self._caches = caches
        self._prefetched = prefetched
        self._has_libraries = False

    async def load(
        self, prepared: Prepared, preparation: Preparation, ranks: Ranks, deadline: Deadline
    ) -> None:
        """Load the artifact that is configured, on all ranks or on none.

        Raises:
            WarmupFailed: there is none, and the policy says that it must be.
            CompilerMissing: something has to be compiled after all.
        """
        uri = self._config.artifact
        if uri is not None:
            await self._load_from(uri, prepared, deadline)
        await self._agree(ranks, deadline)
        if prepared.has_libraries_only and not self._has_libraries:
            # It compiles after all: at a build, or where nothing was loaded.
            with self._journal.timed(Stage.PENDING):
                await preparation.import_compiler()
            require_compiler(environment())

    async def _agree(self, ranks: Ranks, deadline: Deadline) -> None:
        """Put aside what this rank has loaded, if another one has nothing.

        Warm, it would wait in its first collective for as long as the other one compiles, and the
        process group may end that first. All of them compiling takes no longer.
        """
        if ranks.size == 1:
            return
        used = self._journal.artifact
        mine = (used.reason if used else "no artifact is configured") or None
        with self._journal.timed(Stage.LOADING):
            reasons = await ranks.agree("its artifact", mine, timeout_s=deadline.left())
        without = [rank for rank, reason in enumerate(reasons) if reason]
        if without and not mine:
            first = without[0]
            error = ArtifactNotFound(
                f"it is not used, since rank {first} of {ranks.size} has none: "
                + reasons[first].splitlines()[0],
                hint="publish one for each rank: all of them start warm, or none does",
            )
            self._start_cold(Verdict.MISS, error, self._config.on_missing)

    async def _load_from(self, uri: str, prepared: Prepared, deadline: Deadline) -> None:
        journal = self._journal
        journal.artifact = ArtifactUse(store=redact(uri), source=kind_of(uri))
        try:
            ready = await self._pull(uri, prepared, deadline)
            journal.enter(Stage.LOADING)
            with journal.timed(Stage.LOADING, hidden_s=ready.unpacked_early_s), ready.pulled:
                await asyncio.to_thread(self._put_in_place, ready.pulled, ready.directory)
        except (ArtifactNotFound, StoreError) as error:
            self._start_cold(Verdict.MISS, error, self._config.on_missing)
        except ArtifactRefused as error:
            self._start_cold(Verdict.REFUSED, error, self._config.on_refused)
        else:
            # Until the replay has shown otherwise.
            journal.verdict = Verdict.FULL_HIT

    # Pulling --------------------------------------------------------------------------------------

    async def _pull(self, uri: str, prepared: Prepared, deadline: Deadline) -> _Ready:
        journal = self._journal
        limit = Deadline(min(self._config.pull_deadline_s, deadline.left()))
        journal.enter(Stage.PULLING)
        wanted = prefetch.Wanted.of(
            self._config, deployment=self._replica.deployment, trust=self._replica.trust()
        )
        given_up = threading.Event()
        start = time.perf_counter()
        try:
            taken = await self._take_prefetched(wanted, prepared, limit)
            pulled = (
                taken.pulled
                if taken
                else await self._retry(limit, self._puller(uri, wanted, prepared, given_up))
            )
        except ServeWarmError:
            journal.add_time(Stage.PULLING, time.perf_counter() - start)
            raise
        finally:
            # Also when the start itself is cancelled: nobody waits for a try that still runs.
            given_up.set()
        elapsed_s = time.perf_counter() - start
        early = taken.early if taken else 0.0
        waited_s = pulled.verify_s * (1 - early)
        journal.add_time(
            Stage.PULLING,
            max(0.0, elapsed_s - waited_s),
            hidden_s=pulled.download_s * early,
        )
        if journal.stage is not Stage.VERIFYING:
            journal.enter(Stage.VERIFYING)  # what was pulled during __init__ was verified there
        journal.add_time(Stage.VERIFYING, waited_s, hidden_s=pulled.verify_s * early)
        journal.artifact = _use_of(uri, pulled)
        return _Ready(
            pulled=pulled,
            directory=taken.directory if taken else None,
            unpacked_early_s=taken.unpack_s * early if taken else 0.0,
        )

    def _puller(
        self, uri: str, wanted: prefetch.Wanted, prepared: Prepared, given_up: threading.Event
    ) -> Callable[[], Pulled]:
        """Return what pulls once; it is called in a thread."""
        loop = asyncio.get_running_loop()

        def verify() -> None:
            if not given_up.is_set():
                self._journal.enter(Stage.VERIFYING)

        def pull_once() -> Pulled:
            with wanted.node_cache() as cache:
                return pull(
                    open_store(uri),
                    deployment=wanted.deployment,
                    fingerprint=prepared.fingerprint,
                    trust=wanted.trust,
                    cache=cache,
                    parts=wanted.parts,
                    fetched=functools.partial(loop.call_soon_threadsafe, verify),
                    given_up=given_up,
                )

        return pull_once

    async def _take_prefetched(
        self, wanted: prefetch.Wanted, prepared: Prepared, limit: Deadline
    ) -> prefetch.Taken | None:
        """Return what was pulled during `__init__`, where that is what is wanted."""
        if self._prefetched is None:
            return None
        taken = await self._prefetched.taken(
            wanted, prepared.fingerprint, timeout_s=max(0.1, limit.left())
        )
        if taken is None:
            # Before it is looked for anew: it may hold the node's lock on what comes.
            self._prefetched.drop()
        return taken

    async def _retry(self, limit: Deadline, pull_once: Callable[[], Pulled]) -> Pulled:
        """Call `pull_once` in a thread until it gives something, or cannot, or time is up."""
        tries = 0
        while True:
            if self._journal.stage is not Stage.PULLING:
                self._journal.enter(Stage.PULLING)  # the try before had come as far as unpacking
            try:
                return await _run_in_own_thread(pull_once, timeout_s=max(0.1, limit.left()))
            except (asyncio.TimeoutError, TimeoutError) as error:
                raise StoreError(
                    f"{self._config.artifact}: nothing was pulled within {limit.seconds:.0f} s",
                    hint="check that the store can be reached from this node, or raise "
                    "pull_deadline_s",
                ) from error
            except StoreDenied:
                raise
            except StoreError as error:
                pause_s = RETRY_BACKOFF_S[min(tries, len(RETRY_BACKOFF_S) - 1)]
                tries += 1
                if limit.left() < pause_s:
                    raise
                # One clear line is written when it is given up; these are for a closer look.
                logger.info("try=%d failed, again in %.1f s: %s", tries, pause_s, error.message)
                await asyncio.sleep(pause_s)

    # Loading --------------------------------------------------------------------------------------

    def _put_in_place(self, pulled: Pulled, unpacked: Path | None) -> None:
        # Into a new directory: what user code made torch write into the present one stays out.
        directory = self._caches.begin_anew(unpacked)
        _private_folders.check_private(directory, "the directory that torch loads from")
        if "cache" in pulled.raw:
            if unpacked is None:
                prefetch.unpack(pulled.raw["cache"], directory)
            # The fingerprint was found equal by now: same CPU flags, compiler and torch. With
            # torch's bytes alone stock torch is what is measured, and kernels are compiled
            # anyway: the probe stays.
            answers = pulled.manifest.facts.get(ISA_FACT)
            defer_precompiled_headers()
            # Of another shape where another release built it: then the probe runs. So it does where
            # the compiler may be another one, since libraries need none.
            compiler_is_the_same = pulled.manifest.fingerprint.machine.get("compiler") != NOT_NEEDED
            if isinstance(answers, dict) and compiler_is_the_same:
                isa_checks().give({str(k): bool(v) for k, v in answers.items()})
        self._load_entries(pulled)
        if "torch_bytes" in pulled.raw and not load_torch_bytes(pulled.raw["torch_bytes"].read()):
            raise ArtifactRefused(
                "torch did not accept the part torch_bytes",
                reason="bad_archive",
                hint="build the artifact again with this version of torch",
            )

    def _load_entries(self, pulled: Pulled) -> None:
        names = [name for name in LEVEL_PARTS.values() if name in pulled.raw]
        if not names or not SESSION.has_callables():
            return
        unpacked = []
        with _private_folders.temporary_folder() as scratch:
            for name in names:
                if name == "exported":
                    # For as long as the process: a library is opened when something first fits.
                    folder = private_directory()
                else:
                    folder = scratch / name
                    folder.mkdir(mode=0o700)
                prefetch.unpack(pulled.raw[name], folder)
                unpacked.append(folder)
            why = SESSION.load(*unpacked)
        self._has_libraries = "exported" in names and not why
        if why:
            self._journal.warnings.append(
                f"not all entries can be used, and Dynamo traces calls: {why}"
            )

    def _start_cold(self, verdict: Verdict, error: ServeWarmError, policy: str) -> None:
        """Put aside what was loaded, say why, and go on without, unless the policy is `fail`."""
        journal = self._journal
        journal.verdict = verdict
        journal.artifact = ArtifactUse(
            store=redact(str(self._config.artifact)),
            source=kind_of(str(self._config.artifact)),
            statement=getattr(error, "statement", "") if verdict is Verdict.REFUSED else "",
            reason=str(error),
            refused=error.reason if isinstance(error, ArtifactRefused) else "",
            trace=_lines(getattr(error, "trace", ())),
        )
        # Whatever was written until now is not built upon.
        self._caches.begin_anew()
        self._has_libraries = False
        SESSION.unload()
        if policy == "fail":
            setting = "on_missing" if verdict is Verdict.MISS else "on_refused"
            raise WarmupFailed(
                f"verdict {verdict.value}, and {setting} is fail: {error.message}",
                hint=error.hint,
                stage=journal.stage.value,
            ) from error
        # In one line: what was tried, what was found, what to do.
        words = " ".join(str(error).split())
        fields = journal.log_fields("artifact", verdict=verdict.value, reason=words)
        logger.warning("verdict=%s, compiling cold: %s", verdict.value, words, extra=fields)


def _use_of(uri: str, pulled: Pulled) -> ArtifactUse:
    return ArtifactUse(
        store=redact(uri),
        source=kind_of(uri),
        statement=pulled.statement_key,
        created=pulled.manifest.created,
        stored_bytes=pulled.stored_bytes,
        raw_bytes=sum(pulled.manifest.part(name).raw_bytes for name in pulled.raw),
        downloaded_bytes=pulled.downloaded_bytes,
        believed=pulled.believed.how,
        signers=pulled.believed.signers,
        trace=_lines(pulled.trace),
    )


def _lines(trace: Sequence[Considered]) -> tuple[str, ...]:
    """Return a line a variant, the accepted ones first, and no more than a report can hold."""
    shown = sorted(trace, key=lambda considered: not considered.accepted)[:TRACE_LINES]
    rest = len(trace) - len(shown)
    return (*map(str, shown), *([f"and {rest} more"] if rest else []))


async def _run_in_own_thread(pull_once: Callable[[], Pulled], *, timeout_s: float) -> Pulled:
    """Return what `pull_once` gives; past the timeout it is left to end by itself.

    Not in the event loop's own threads: those are the user's too, and one that hangs in a store
    would be missing there.
    """
    threads = ThreadPoolExecutor(1, "serve_warm-pull")
    pulling = threads.submit(pull_once)
    threads.shutdown(wait=False)
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
