# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What of a start is done before `__init__` ends: an artifact is pulled, the compiler is imported.

Both run in daemon threads from the moment the user's class is instantiated, and are a gift: what
is not done, failed, or turns out not to be wanted is done by the start itself, as if nothing had
been tried. No trust is given in advance either: signatures and digests are checked by the same
code with the same trusted keys, and nothing is loaded before the start accepts it.

What is really hidden: the network, hashing, decompression and writing hold no GIL, so they run
beside whatever `__init__` does. Importing is Python code. It is hidden while `__init__` waits, or
reads and copies weights in C++; beside Python code the two take turns, and nothing is gained.

Nothing here asks CUDA for its devices before user code has: the first question fixes which there
are, and `__init__` may yet set `CUDA_VISIBLE_DEVICES`. Importing Inductor asks (torch 2.11,
`torch/_inductor/runtime/benchmarking.py`), importing Dynamo does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from serve_warm import _private_folders
from serve_warm.artifact import pull
from serve_warm.artifact.archive import unpack_directory
from serve_warm.artifact.manifest import CACHE
from serve_warm.artifact.node_cache import NodeCache, default_root
from serve_warm.compiler import triton_kernels
from serve_warm.compiler.background_import import Turns, import_compiler, import_dynamo, is_imported
from serve_warm.compiler.caches import private_directory
from serve_warm.config import WarmupConfig, environment
from serve_warm.errors import ArtifactRefused, ConfigError, ServeWarmError, StoreError
from serve_warm.fingerprint import (
    NVIDIA,
    Fingerprint,
    rank_factor,
    read_app,
    read_machine,
    torch_environment,
)
from serve_warm.precompile.session import SESSION
from serve_warm.replica.timeline import Timeline
from serve_warm.stores import Store, open_store
from serve_warm.trust import Trust
from serve_warm.trust.files import load_trust

logger = logging.getLogger(__name__)

POLL_S = 0.02

LOOK_S = 2.0
"""How long the import of the compiler waits to hear what is in the store. Nearly always it is some
milliseconds; a store that does not answer is no reason to have nothing done."""

NOT_YET_KNOWN = frozenset({"compile_arguments"})
"""Factors that `__init__` makes. The others are read as they are before it; where it changes one
(threads, the default dtype) another variant fits, and what was fetched is thrown away."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a start pulls, from where and at whose word: two equal ones pull the same."""

    uri: str
    deployment: str
    parts: tuple[str, ...]
    trust: Trust
    node_cache_dir: Path
    node_cache_max_bytes: int

    @classmethod
    def of(cls, config: WarmupConfig, *, deployment: str, trust: Trust | None) -> Wanted:
        """Return what `config.artifact` asks for; `trust` is what the code says, if anything.

        Raises:
            ArtifactRefused: `no_trust`: the machine's trust files cannot be used.
        """
        try:
            files = load_trust()
        except ConfigError as error:
            # One bad trust file may not take a fleet down, nor let anything in.
            raise ArtifactRefused(error.message, reason="no_trust", hint=error.hint) from error
        folder = config.node_cache_dir
        return cls(
            uri=str(config.artifact),
            deployment=deployment,
            parts=config.parts,
            # What the operators of the machine deny holds for what the code trusts, too.
            trust=files if trust is None else trust | files.limits,
            node_cache_dir=default_root() if folder is None else Path(folder),
            node_cache_max_bytes=config.node_cache_max_bytes,
        )

    def node_cache(self) -> NodeCache:
        """Open the cache of this node; use it in a `with`.

        Raises:
            ArtifactRefused: `unsafe_directory`.
        """
        return NodeCache.open(
            self.node_cache_dir,
            max_bytes=self.node_cache_max_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class Taken:
    """An artifact that was pulled before the app was known. Use it up, or `discard` it."""

    wanted: Wanted
    store: Store
    found: pull.Found
    pulled: pull.Pulled
    directory: Path | None
    """Where its part `cache` is unpacked, private and used by nobody; None where it is not."""
    unpack_s: float
    waited_s: float = 0.0
    """How long a start had to wait for it; nothing where it was there before it was asked for."""

    @property
    def early(self) -> float:
        """The share of its work that was over before a start waited for it."""
        work_s = self.pulled.download_s + self.pulled.verify_s + self.unpack_s
        return max(0.0, 1.0 - self.waited_s / work_s)

    @property
    def unpacked_early_s(self) -> float:
        """Seconds of unpacking that were over before a start waited for it."""
        return self.unpack_s * self.early

    def discard(self) -> None:
        """Close its files and remove its directory."""
        self.pulled.close()
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)


class Prefetch:
    """The work that one start has done for it while `__init__` runs: `begin()` once.

    Then, in the start: `init_ended()`, `taken(...)` at most once, and in any case `drop()`.
    """

    def __init__(
        self,
        config: WarmupConfig,
        *,
        deployment: str,
        trust: Trust | None,
        rank: tuple[int, int] | None = None,
        driver: Sequence[Path] = NVIDIA,
        timeline: Timeline | None = None,
    ) -> None:
        """`rank`, and how many there are, is what the process group will say, if that is known."""
        self._has_driver = any(path.exists() for path in driver)
        self._config = config
        self._deployment = deployment
        self._trust = trust
        self._rank = rank
        self._init_ended = threading.Event()
        self._ended_at = 0.0
        self._given_up = threading.Event()
        self._taken: Future[Taken | None] = Future()
        # Nobody who waits for it can cancel it from here on.
        self._taken.set_running_or_notify_cancel()
        self._handed_over = False
        self._spans: list[_Span] = []
        self._timeline = timeline or Timeline()
        self._imported_under: str | None = None
        self.imported_compiler = False
        """Whether torch's compiler was imported here, and not by the app."""
        self._found: Literal["nothing", "libraries", "levels 1 and 2"] = "nothing"
        """What the believed artifacts of this deployment were built from."""
        self._looked = threading.Event()
        """Set once the store was asked."""

    def begin(self) -> None:
        """Start, and return at once. Nothing that happens here is raised anywhere."""
        turns = Turns()
        # A daemon: where __init__ fails, the process ends without waiting for a store.
        threading.Thread(
            target=self._run, args=(turns,), name="serve_warm-prefetch", daemon=True
        ).start()

    def init_ended(self) -> None:
        """Say that the user's `__init__` is over: nothing here waits for what it does any more."""
        self._ended_at = time.perf_counter()
        self._init_ended.set()

    def drop(self) -> None:
        """End what is under way, and throw away what nobody took."""
        self._init_ended.set()
        self._given_up.set()
        if not self._handed_over:
            self._handed_over = True
            self._taken.add_done_callback(_discard_in_background)

    @property
    def hidden_s(self) -> float:
        """Seconds of importing and of reading the machine that had passed when `__init__` ended."""
        end = self._ended_at
        return sum(max(0.0, min(span.ended or end, end) - span.began) for span in self._spans)

    @property
    def set_too_late(self) -> Sequence[str]:
        """Variables of torch's compiler that `__init__` set after it had been imported here.

        torch reads them when it is imported. Without us that may have been later.
        """
        if self._imported_under is None:
            return ()
        now = torch_environment(environment())
        changed = set(shlex.split(now)) ^ set(shlex.split(self._imported_under))
        return sorted({word.partition("=")[0] for word in changed if "=" in word})

    async def taken(
        self, wanted: Wanted, fingerprint: Fingerprint, *, timeout_s: float
    ) -> Taken | None:
        """Return what was pulled, once it is, if a pull of `wanted` would take just that now.

        The choice among the statements that were found is made again in full: all factors, the
        deny-list, the age. None for whatever else has become of it.
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
            taken.pulled, taken.found, fingerprint=fingerprint, trust=wanted.trust
        )
        # A folder is named relative to the working directory, which __init__ may have changed.
        if pulled is None or open_store(wanted.uri).uri != taken.store.uri:
            return None
        self._handed_over = True
        return replace(taken, pulled=pulled, waited_s=waited_s)

    # In the background ------------------------------------------------------------------------

    def _run(self, turns: Turns) -> None:
        try:
            self._begin_pull(turns)
            # Libraries are to be loaded without it, and there may be nothing else.
            self._looked.wait(LOOK_S)
            if self._found == "libraries":
                return
            with turns.alone(self._will_compile, given_up=self._init_ended) as mine:
                if mine:
                    self._import()
            with turns.alone(self._devices_are_chosen, given_up=self._init_ended) as mine:
                if mine:
                    with self._span("torch's compiler"):
                        import_compiler()
        finally:
            turns.end()

    def _will_compile(self) -> bool:
        """Whether torch is there, and something will be compiled or loaded that needs Dynamo."""
        if "torch" not in sys.modules:
            return False
        # torch.compile imports Dynamo. An app that calls neither pays for nothing.
        compiles = is_imported() or (SESSION.has_callables() and not SESSION.has_libraries_only())
        return self._found == "levels 1 and 2" or compiles

    def _begin_pull(self, turns: Turns) -> None:
        store = None
        try:
            # The package of a store is imported like torch's compiler: not beside user code.
            with turns.alone(lambda: True, given_up=self._init_ended, quiet_s=0.0) as mine:
                if mine:
                    store = open_store(str(self._config.artifact))
        except ServeWarmError as error:
            _log(error)
        finally:
            if store is None:
                self._looked.set()
                self._taken.set_result(None)
        if store is not None:
            threading.Thread(
                target=self._pull, args=(store,), name="serve_warm-prefetch", daemon=True
            ).start()

    def _import(self) -> None:
        self.imported_compiler = not is_imported()
        if "torch._inductor.config" not in sys.modules:
            self._imported_under = torch_environment(environment())
        with self._span("torch's compiler"):
            import_dynamo()

    def _devices_are_chosen(self) -> bool:
        """Whether user code has initialised CUDA, or there is none to initialise."""
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
            # What is not ours is shown as of any thread, and the start meets it again.
            self._note_found(None)
            self._taken.set_result(taken)

    def _note_found(self, found: pull.Found | None) -> None:
        """Note whether something was found, and whether it needs torch's compiler."""
        if not self._looked.is_set():
            if found is not None and any(each.believed for each in found.statements):
                self._found = "libraries" if pull.only_libraries(found) else "levels 1 and 2"
            self._looked.set()

    def _take(self, store: Store) -> Taken | None:
        wanted = Wanted.of(self._config, deployment=self._deployment, trust=self._trust)
        found = pull.find_fitting(
            store,
            deployment=wanted.deployment,
            trust=wanted.trust,
            fingerprint=None,
            given_up=self._given_up,
        )
        self._note_found(found)
        if not found.statements or not found.is_complete:
            return None
        chosen = pull.expect(
            found, fingerprint=self._here(), trust=wanted.trust, unknown=NOT_YET_KNOWN
        )
        if chosen is None:
            logger.info("nothing in %s is fetched before __init__ ends: none fits", store.uri)
            return None
        with wanted.node_cache() as cache:
            pulled = pull.take(
                store, found, chosen, cache=cache, parts=wanted.parts, given_up=self._given_up
            )
        began = time.perf_counter()
        directory = None
        if CACHE in pulled.raw:
            # Not the one that torch is pointed at: what user code compiles now stays out of it.
            new = private_directory()
            try:
                unpack(pulled.raw[CACHE], new, check_wanted=self._check_wanted)
                directory = new
            except ServeWarmError as error:
                # The start tries it again, and what is wrong is said there.
                _log(error)
        return Taken(
            wanted=wanted,
            store=store,
            found=found,
            pulled=pulled,
            directory=directory,
            unpack_s=time.perf_counter() - began,
        )

    def _check_wanted(self) -> None:
        if self._given_up.is_set():
            raise StoreError("nobody waits for this artifact any more")

    def _here(self) -> Fingerprint:
        """Read this machine and what the app has set until now, on a thread like those of Serve."""
        while "torch" not in sys.modules and not self._init_ended.wait(POLL_S):
            pass
        # Waits for whoever is in the middle of importing it.
        importlib.import_module("torch")
        while not self._devices_are_chosen() and not self._init_ended.wait(POLL_S):
            pass
        with self._span("fingerprint"):
            cpu = self._config.cpu
            return Fingerprint(
                machine=read_machine(environment(), cpu=cpu),
                app={**rank_factor(self._rank), **read_app(environment(), cpu=cpu)},
            )

    @contextlib.contextmanager
    def _span(self, name: str) -> Iterator[None]:
        span = _Span(began=time.perf_counter())
        self._spans.append(span)
        with self._timeline.span(name, beside=True):
            yield
        span.ended = time.perf_counter()


@dataclass(kw_only=True)
class _Span:
    began: float
    ended: float | None = None
    """None while it is under way."""


def unpack(
    raw: BinaryIO, directory: Path, *, check_wanted: Callable[[], None] = lambda: None
) -> None:
    """Write what was packed as the part `cache` into an empty private directory.

    `check_wanted` is called again and again, and ends this by what it raises.

    Raises:
        ArtifactRefused: `bad_archive`, or `unsafe_directory`: others could exchange what is in it.
        StoreError: it cannot be written.
    """
    _private_folders.check_private(directory, "the directory that torch loads from")
    try:
        unpack_directory(raw, directory, check_wanted=check_wanted)
        triton_kernels.relocate(directory)
    except OSError as error:
        raise StoreError(
            f"the artifact could not be written to {directory}: {error}",
            hint="the folder for temporary files must have room for it",
        ) from error


def _log(error: ServeWarmError) -> None:
    logger.info("not done before __init__ ends, and tried again after it: %s", error.message)


def _discard_in_background(taken: Future[Taken | None]) -> None:
    # Removing thousands of files takes a while, and whoever drops this is the event loop.
    if (left := taken.result()) is not None:
        left.pulled.close()
        threading.Thread(target=left.discard, name="serve_warm-prefetch", daemon=True).start()
