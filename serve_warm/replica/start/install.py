# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Installation of a verified artifact: unpack files and read entries.

Loading runs code from the build, in a separate thread. After the deadline, the start no longer
waits for this thread. If the code raises an exception, the start refuses the artifact.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from serve_warm import _private_folders
from serve_warm._redaction import describe_error, loggable
from serve_warm.artifact.choose import Chosen, Considered, with_trace
from serve_warm.artifact.manifest import CACHE, EXPORTED, PRECOMPILED
from serve_warm.artifact.pull import Pulled
from serve_warm.compiler.caches import defer_precompiled_headers
from serve_warm.compiler.cpu_target import isa_checks
from serve_warm.compiler.watch import watch_process
from serve_warm.errors import ArtifactRefused, ServeWarmError, StoreError
from serve_warm.fingerprint import NOT_NEEDED
from serve_warm.precompile import SESSION
from serve_warm.replica.start import prefetch
from serve_warm.replica.start.pack import ISA_FACT
from serve_warm.replica.start.unpack import EntryFiles, unpack, unpack_entries

if TYPE_CHECKING:
    from serve_warm.replica.start.context import CompileCaches

logger = logging.getLogger(__name__)


def put_in_place(
    pulled: Pulled,
    taken: prefetch.PrefetchedArtifact | None,
    *,
    caches: CompileCaches,
    warn: Callable[[str], None],
    check_wanted: Callable[[], None],
) -> bool:
    """Load an artifact into this process, and return whether its libraries can be used.

    `taken` has the parts that were unpacked during `__init__`, if any. `check_wanted` is called
    often, and raises to stop the work.

    Raises:
        ArtifactRefused: a part is damaged, or code in the artifact raised an exception.
        StoreError: the artifact cannot be written to disk, or the start no longer waits for it.
    """
    chosen = pulled.chosen
    files = taken.entries if taken else None
    with contextlib.ExitStack() as on_error:
        if files is not None:
            on_error.callback(files.remove)
        try:
            _place_cache(pulled, taken.directory if taken else None, caches, check_wanted)
            # Loading an entry can build a kernel.
            watch_process().count_kernels_in(caches.directory)
            if files is None:
                files = unpack_entries(pulled.raw, check_wanted=check_wanted)
                on_error.callback(files.remove)
            has_libraries = _load_entries(files, chosen, warn, check_wanted)
        except ServeWarmError:
            raise
        except BaseException as error:
            # torch's readers and the pickles of a build may raise anything, even SystemExit. Every
            # exception in this thread comes from these readers and pickles, because signals
            # interrupt the main thread and cancellation happens on the loop.
            cause = loggable(error)
            logger.info("loading statement=%s raised", chosen.key, exc_info=cause)
            what = f"loading the artifact raised {describe_error(error)}"
            raise refuse_broken(what, chosen.key, chosen.trace) from cause
        on_error.pop_all()
    return has_libraries


def refuse_broken(what: str, statement: str, trace: Sequence[Considered] = ()) -> ArtifactRefused:
    """Return the error for an artifact that is refused because code in it raised an exception."""
    refusal = ArtifactRefused(
        what,
        reason="broken",
        hint="build the artifact again with this version of the app and of torch; to keep other "
        "replicas from trying this artifact, list its digest under `denied` in a trust file",
    )
    return with_trace(refusal, statement, tuple(trace))


def _place_cache(
    pulled: Pulled, unpacked: Path | None, caches: CompileCaches, check_wanted: Callable[[], None]
) -> None:
    # Use a new directory: torch may have written into the current one for user code.
    directory = caches.begin_anew(unpacked)
    _private_folders.check_private(directory, "the directory that torch loads from")
    if CACHE not in pulled.raw:
        return
    if unpacked is None:
        unpack(pulled.raw[CACHE], directory, check_wanted=check_wanted)
    # The fingerprint matched, so CPU flags, compiler and torch are the same, and the probe is not
    # needed.
    answers = pulled.chosen.manifest.facts.get(ISA_FACT)
    defer_precompiled_headers()
    # The probe also runs if another release wrote the facts in another format, or if the
    # fingerprint does not name the compiler, because libraries need none.
    compiler_is_the_same = pulled.chosen.manifest.fingerprint.machine.get("compiler") != NOT_NEEDED
    if isinstance(answers, dict) and compiler_is_the_same:
        isa_checks().give({str(k): bool(v) for k, v in answers.items()})


def _load_entries(
    files: EntryFiles,
    chosen: Chosen,
    warn: Callable[[str], None],
    check_wanted: Callable[[], None],
) -> bool:
    if not files.folders:
        return False
    check_wanted()
    why = SESSION.load(*files.folders.values(), already=files.tables, check_wanted=check_wanted)
    files.tables.clear()  # the session has the entries
    # Libraries are opened when a call first matches them, so only their folder stays.
    if PRECOMPILED in files.folders:
        shutil.rmtree(files.folders[PRECOMPILED], ignore_errors=True)
    try:
        check_wanted()
    except StoreError:
        SESSION.unload()  # the start continued without it
        raise
    if SESSION.loaded is not None and SESSION.loaded.broken:
        what = f"loading an entry raised {SESSION.loaded.broken}"
        raise refuse_broken(what, chosen.key, chosen.trace)
    if why:
        warn(f"not all entries can be used, so Dynamo traces calls: {why}")
    return EXPORTED in files.folders and not why
