# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The work of a start during `__init__`: pulling the artifact.

The pull runs in a daemon thread, which starts when the user's class is instantiated. Best effort:
if the work is unfinished, has failed or is no longer wanted, the start does it again from the
beginning. Prefetching does not weaken trust: it checks signatures and digests with the same code
and the same keys as the start itself. Nothing is loaded before the start accepts the artifact.

Downloading, hashing, decompressing and writing release the GIL, so these steps run in parallel with
`__init__`.

Prefetching never queries CUDA devices before user code does. The first query fixes the device list,
and `__init__` might set `CUDA_VISIBLE_DEVICES` after that. The import of torch's compiler queries
them in some versions of torch, so it comes after `__init__`.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import shutil
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from serve_warm._records import record
from serve_warm.artifact import pull
from serve_warm.artifact.code_and_model import CodeAndModel
from serve_warm.artifact.manifest import CACHE, EXPORTED, PRECOMPILED, Place
from serve_warm.artifact.node_cache import NodeCache, default_root
from serve_warm.compiler.caches import private_directory
from serve_warm.config import WarmupConfig, environment
from serve_warm.errors import ArtifactRefused, ConfigError, ServeWarmError, StoreError
from serve_warm.fingerprint import NVIDIA, Fingerprint, rank_factor, read_app, read_machine
from serve_warm.replica.record.timeline import Timeline
from serve_warm.replica.start.unpack import EntryFiles, unpack, unpack_entries
from serve_warm.stores import Store, open_store
from serve_warm.trust import Trust
from serve_warm.trust.files import load_trust

logger = logging.getLogger(__name__)

POLL_S = 0.02

NOT_YET_KNOWN = frozenset({"compile_arguments"})
"""Fingerprint factors that `__init__` sets. All other factors are read as soon as user code has
imported torch and chosen its devices. If `__init__` changes such a factor later (threads, the
default dtype), a different variant fits, and the fetched variant is discarded."""


@record(frozen=True, kw_only=True)
class ArtifactRequest:
    """A request for an artifact, with its place, the store and the trust policy.

    Equal requests pull the same artifact.
    """

    uri: str
    place: Place
    parts: tuple[str, ...]
    trust: Trust
    node_cache_dir: Path
    node_cache_max_bytes: int

    @classmethod
    def of(cls, config: WarmupConfig, *, place: Place, trust: Trust | None) -> ArtifactRequest:
        """Return the request for the artifact in `config`.

        `trust` is the trust setting in code, if any.

        Raises:
            ArtifactRefused: `bad_trust_file`: a trust file of the machine cannot be used.
        """
        try:
            files = load_trust()
        except ConfigError as error:
            # A bad trust file must not stop a fleet, but no artifact may be loaded.
            raise ArtifactRefused(
                error.message, reason="bad_trust_file", hint=error.hint
            ) from error
        return cls(
            uri=str(config.artifact),
            place=place,
            parts=(CACHE, PRECOMPILED, EXPORTED)[: config.max_level],
            # The deny-list in the trust files of the machine also applies to trust in code.
            trust=files if trust is None else trust | files.limits,
            node_cache_dir=default_root(),
            node_cache_max_bytes=config.node_cache_max_bytes,
        )

    def node_cache(self) -> NodeCache:
        """Open the node cache; use it in a `with` block.

        Raises:
            ArtifactRefused: `unsafe_directory`.
        """
        return NodeCache.open(self.node_cache_dir, max_bytes=self.node_cache_max_bytes)


@record(frozen=True, kw_only=True)
class PrefetchedArtifact:
    """An artifact pulled during `__init__`. Either use the artifact or call `discard`."""

    wanted: ArtifactRequest
    store: Store
    found: pull.VerifiedStatements
    pulled: pull.Pulled
    directory: Path | None
    """Private folder with the unpacked part `cache`, which is not in use yet; None if the part is
    not unpacked."""
    entries: EntryFiles | None
    """The unpacked parts that have entries; None if these parts are not unpacked."""
    unpack_s: float
    waited_s: float = 0.0
    """Seconds that the start waited for the artifact; 0 if the artifact was already there."""

    @property
    def early(self) -> float:
        """Share of the work (0 to 1) that was finished before the start waited for the artifact."""
        work_s = self.pulled.download_s + self.pulled.verify_s + self.unpack_s
        return max(0.0, 1.0 - self.waited_s / work_s)

    @property
    def unpacked_early_s(self) -> float:
        """Seconds of unpacking that were finished before the start waited for the artifact."""
        return self.unpack_s * self.early

    def discard(self) -> None:
        """Close the artifact's files and remove the artifact's folder."""
        self.pulled.close()
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
        if self.entries is not None:
            self.entries.remove()


class Prefetch:
    """The work done for one start during `__init__`. Call `begin()` once.

    After `__init__`, the start calls `init_ended()`, then `taken(...)` at most once. The start
    always calls `drop()`.
    """

    def __init__(
        self,
        config: WarmupConfig,
        *,
        place: Place,
        trust: Trust | None,
        code: str = "",
        rank: tuple[int, int] | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        """Prepare the work.

        `code` is the digest of the deployment's code, and `rank` the pair (rank, group size) that
        the process group will report, if known.
        """
        self._has_driver = any(path.exists() for path in NVIDIA)
        self._config = config
        self._place = place
        self._code = code
        self._trust = trust
        self._rank = rank
        self._init_ended = threading.Event()
        self._given_up = threading.Event()
        self._taken: Future[PrefetchedArtifact | None] = Future()
        # From now on, a waiting caller cannot cancel the future.
        self._taken.set_running_or_notify_cancel()
        self._handed_over = False
        self._timeline = timeline or Timeline()

    def begin(self) -> None:
        """Start the work and return at once. Errors are logged, never raised."""
        try:
            # On this thread, because a store's package is imported here. In another thread, the
            # import could deadlock with imports of user code.
            store = open_store(str(self._config.artifact))
        except ServeWarmError as error:
            _log(error)
            self._taken.set_result(None)
            return
        # A daemon thread: if __init__ fails, the process ends without waiting for a store.
        threading.Thread(
            target=self._pull, args=(store,), name="serve_warm-prefetch", daemon=True
        ).start()

    def init_ended(self) -> None:
        """Record that the user's `__init__` has ended, so that background work no longer waits."""
        self._init_ended.set()

    def drop(self) -> None:
        """Stop the work, and discard the artifact if the start did not use it."""
        self._init_ended.set()
        self._given_up.set()
        if not self._handed_over:
            self._handed_over = True
            self._taken.add_done_callback(_discard_in_background)

    async def taken(
        self,
        wanted: ArtifactRequest,
        fingerprint: Fingerprint,
        made_of: CodeAndModel,
        *,
        timeout_s: float,
    ) -> PrefetchedArtifact | None:
        """Wait for the artifact. Return the artifact if a pull of `wanted` would still choose it.

        To check this, serve_warm chooses again among the statements that were read, using all
        fingerprint factors, the code and model, the deny list and the age. Returns None in every
        other case, including a timeout.
        """
        is_there, asked = self._taken.done(), time.perf_counter()
        try:
            taken = await asyncio.wait_for(asyncio.wrap_future(self._taken), timeout_s)
        except (asyncio.TimeoutError, TimeoutError):
            return None
        waited_s = 0.0 if is_there else time.perf_counter() - asked
        if taken is None or taken.wanted != wanted:
            return None
        pulled = pull.confirm(
            taken.pulled,
            taken.found,
            fingerprint=fingerprint,
            trust=wanted.trust,
            here=made_of,
        )
        # A relative path depends on the working directory, which __init__ may have changed.
        if pulled is None or open_store(wanted.uri).uri != taken.store.uri:
            return None
        self._handed_over = True
        return replace(taken, pulled=pulled, waited_s=waited_s)

    # In the background ------------------------------------------------------------------------

    def _devices_are_chosen(self) -> bool:
        """Whether user code has initialized CUDA, or there is no CUDA to initialize."""
        torch: Any = sys.modules.get("torch")
        return not self._has_driver or (
            torch is not None and (torch.version.cuda is None or torch.cuda.is_initialized())
        )

    def _pull(self, store: Store) -> None:
        taken = None
        try:
            with self._timeline.span("pull", beside=True):
                taken = self._take(store)
        except ServeWarmError as error:
            _log(error)
        finally:
            # Python prints other errors, as in any thread. The start will run into the same errors.
            self._taken.set_result(taken)

    def _take(self, store: Store) -> PrefetchedArtifact | None:
        wanted = ArtifactRequest.of(self._config, place=self._place, trust=self._trust)
        found = pull.find_fitting(
            store,
            place=wanted.place,
            trust=wanted.trust,
            fingerprint=None,
            given_up=self._given_up,
        )
        if not found.statements or not found.is_complete:
            return None
        chosen = pull.expect(
            found,
            fingerprint=self._here(),
            trust=wanted.trust,
            unknown=NOT_YET_KNOWN,
            here=CodeAndModel(code=self._code),  # `__init__` makes the model
        )
        if isinstance(chosen, str):
            logger.info("fetched nothing from %s during __init__: %s", store.uri, chosen)
            return None
        with wanted.node_cache() as cache:
            pulled = pull.take(
                store, found, chosen, cache=cache, parts=wanted.parts, given_up=self._given_up
            )
        began = time.perf_counter()
        directory = entries = None
        try:
            if CACHE in pulled.raw:
                # Do not use torch's current directory: what the app compiles now must not be mixed
                # with the artifact's files.
                new = private_directory()
                unpack(pulled.raw[CACHE], new, check_wanted=self._check_wanted)
                directory = new
            entries = unpack_entries(pulled.raw, check_wanted=self._check_wanted)
            if "serve_warm.precompile.entries.table" in sys.modules:
                # As on a seat. Here, an import could deadlock with imports of user code.
                entries.read()
        except ServeWarmError as error:
            # The start will try again and report the error.
            _log(error)
        except OSError as error:
            logger.info("unpacking failed during __init__, retrying after __init__: %s", error)
        return PrefetchedArtifact(
            wanted=wanted,
            store=store,
            found=found,
            pulled=pulled,
            directory=directory,
            entries=entries,
            unpack_s=time.perf_counter() - began,
        )

    def _check_wanted(self) -> None:
        if self._given_up.is_set():
            raise StoreError("the start no longer waits for this artifact")

    def _here(self) -> Fingerprint:
        """Return the fingerprint of this machine and of the app's settings so far.

        First wait until user code has imported torch and chosen its devices, or `__init__` ends.
        Like Serve's thread for user code, this thread has torch's default modes.
        """
        while "torch" not in sys.modules and not self._init_ended.wait(POLL_S):
            pass
        # This waits if another thread is importing the module.
        importlib.import_module("torch")
        while not self._devices_are_chosen() and not self._init_ended.wait(POLL_S):
            pass
        with self._timeline.span("fingerprint", beside=True):
            cpu = self._config.cpu
            return Fingerprint(
                machine=read_machine(environment(), cpu=cpu),
                app={**rank_factor(self._rank), **read_app(environment(), cpu=cpu)},
            )


def _log(error: ServeWarmError) -> None:
    logger.info("fetch failed during __init__, retrying after __init__: %s", error.message)


def _discard_in_background(taken: Future[PrefetchedArtifact | None]) -> None:
    # Use a thread, because the event loop calls this, and removing thousands of files takes time.
    if (left := taken.result()) is not None:
        left.pulled.close()
        threading.Thread(target=left.discard, name="serve_warm-prefetch", daemon=True).start()
