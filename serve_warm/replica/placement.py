# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The placement of a verified artifact: unpacked, its entries read, torch's bytes loaded.

This runs code of the build, in a thread of its own that nobody may be waiting for any more. What it
raises costs a start the artifact.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from serve_warm import _private_folders
from serve_warm._redaction import describe_error, loggable
from serve_warm.artifact.choose import Considered, with_trace
from serve_warm.artifact.manifest import CACHE, EXPORTED, TORCH_BYTES
from serve_warm.artifact.pull import Pulled
from serve_warm.compiler.caches import (
    defer_precompiled_headers,
    load_torch_bytes,
    private_directory,
)
from serve_warm.compiler.cpu_target import isa_checks
from serve_warm.errors import ArtifactRefused, ServeWarmError, StoreError
from serve_warm.fingerprint import NOT_NEEDED
from serve_warm.precompile.session import SESSION
from serve_warm.replica import prefetch
from serve_warm.replica.pack import ISA_FACT, LEVEL_PARTS

if TYPE_CHECKING:
    from serve_warm.replica.start import CompileCaches

logger = logging.getLogger(__name__)


def put_in_place(
    pulled: Pulled,
    unpacked: Path | None,
    *,
    caches: CompileCaches,
    warn: Callable[[str], None],
    check_wanted: Callable[[], None],
) -> bool:
    """Load an artifact into this process, and return whether its libraries can be used.

    `unpacked` is where its part `cache` is unpacked already, if it is. `check_wanted` is called
    again and again, and ends this by what it raises.

    Raises:
        ArtifactRefused: something of it is damaged, or raised.
        StoreError: it cannot be written, or nobody waits for it.
    """
    chosen = pulled.chosen
    try:
        _place_cache(pulled, unpacked, caches, check_wanted)
        has_libraries = _load_entries(pulled, warn, check_wanted)
        check_wanted()
        _load_torch_bytes(pulled)
    except ServeWarmError:
        raise
    except BaseException as error:
        # torch's readers and the pickles of a build may raise anything, SystemExit too. Here it is
        # nobody else's: a signal interrupts the main thread, and a start is cancelled on its loop.
        cause = loggable(error)
        logger.info("loading statement=%s raised", chosen.key, exc_info=cause)
        what = f"loading it raised {describe_error(error)}"
        raise refuse_broken(what, chosen.key, chosen.trace) from cause
    return has_libraries


def refuse_broken(what: str, statement: str, trace: Sequence[Considered] = ()) -> ArtifactRefused:
    """Return the refusal of an artifact whose code raised."""
    refusal = ArtifactRefused(
        what,
        reason="broken",
        hint="build it again with this version of the app and of torch; `denied` in a trust file "
        "keeps other replicas from trying this one",
    )
    return with_trace(refusal, statement, tuple(trace))


def _place_cache(
    pulled: Pulled, unpacked: Path | None, caches: CompileCaches, check_wanted: Callable[[], None]
) -> None:
    # Into a new directory: what user code made torch write into the present one stays out.
    directory = caches.begin_anew(unpacked)
    _private_folders.check_private(directory, "the directory that torch loads from")
    if CACHE not in pulled.raw:
        return
    if unpacked is None:
        prefetch.unpack(pulled.raw[CACHE], directory, check_wanted=check_wanted)
    # The fingerprint was found equal by now: same CPU flags, compiler and torch. With torch's bytes
    # alone stock torch is what is measured, and kernels are compiled anyway: the probe stays.
    answers = pulled.chosen.manifest.facts.get(ISA_FACT)
    defer_precompiled_headers()
    # Of another shape where another release built it: then the probe runs. So it does where the
    # compiler may be another one, since libraries need none.
    compiler_is_the_same = pulled.chosen.manifest.fingerprint.machine.get("compiler") != NOT_NEEDED
    if isinstance(answers, dict) and compiler_is_the_same:
        isa_checks().give({str(k): bool(v) for k, v in answers.items()})


def _load_entries(
    pulled: Pulled, warn: Callable[[str], None], check_wanted: Callable[[], None]
) -> bool:
    names = [name for name in LEVEL_PARTS.values() if name in pulled.raw]
    if not names:
        return False
    unpacked = []
    with _private_folders.temporary_folder() as scratch:
        for name in names:
            if name == EXPORTED:
                # For as long as the process: a library is opened when something first fits.
                folder = private_directory()
            else:
                folder = scratch / name
                folder.mkdir(mode=0o700)
            prefetch.unpack(pulled.raw[name], folder, check_wanted=check_wanted)
            unpacked.append(folder)
        check_wanted()
        why = SESSION.load(*unpacked)
    try:
        check_wanted()
    except StoreError:
        SESSION.unload()  # the start has gone on without it
        raise
    if SESSION.loaded is not None and SESSION.loaded.broken:
        what = f"loading an entry raised {SESSION.loaded.broken}"
        raise refuse_broken(what, pulled.chosen.key, pulled.chosen.trace)
    if why:
        warn(f"not all entries can be used, and Dynamo traces calls: {why}")
    return EXPORTED in names and not why


def _load_torch_bytes(pulled: Pulled) -> None:
    if TORCH_BYTES in pulled.raw and not load_torch_bytes(pulled.raw[TORCH_BYTES].read()):
        raise ArtifactRefused(
            "torch did not accept the part torch_bytes",
            reason="bad_archive",
            hint="build the artifact again with this version of torch",
        )
