# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of an artifact, from the caches and entries of a replica that has proven itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from serve_warm import _private_folders
from serve_warm.artifact.archive import pack_directory
from serve_warm.artifact.manifest import ENTRIES_FORMAT
from serve_warm.compiler import pgo
from serve_warm.compiler.caches import save_torch_bytes
from serve_warm.compiler.cpu_target import isa_checks
from serve_warm.compiler.watch import watch_process
from serve_warm.precompile.session import LIBRARY_LEVEL, SESSION
from serve_warm.replica.replay import Replay
from serve_warm.report import Report

LEVEL_PARTS = {2: "precompiled", 3: "exported"}
"""The part of an artifact that has the entries of a level."""

ISA_FACT = "isa_checks"
"""Name of the manifest fact that holds torch's ISA probe answers."""


class PackedReplica(TypedDict):
    """What a replica hands to the builder: plain data, which Ray carries between processes."""

    fingerprint: dict[str, Any]
    parts: dict[str, bytes]
    facts: dict[str, Any]
    report: dict[str, Any]


async def pack(
    report: Report,
    cache_directory: Path,
    new_replay: Callable[[], Replay],
    *,
    has_profile: bool,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, bytes], Mapping[str, Any]]:
    """Return the raw parts of an artifact, and what its manifest says about the build.

    Replays the inputs once more where something was handed to `serve_warm.compile`, and makes an
    entry for each kind of call. `report` is that of the proof, `new_replay` gives a replay of the
    same inputs. Once per process: torch's bytes of a second save cannot be loaded completely.
    `say` is told what is under way.
    """
    facts = dict(build_facts(report))
    if has_profile:
        say("compiling by the profile")
        await _compile_by_profile(new_replay())
    entries: dict[str, Mapping[str, bytes]] = {}
    if SESSION.has_callables():
        with SESSION.building() as table:
            kinds = {(use.callable, use.call) for use in SESSION.uses()}
            table.tell = _Steps(len(kinds), say).tell
            if any(each.level == LIBRARY_LEVEL for each in list(SESSION.dispatchers)):
                # Each is begun first, so that C++ compilers run while the next one is traced.
                table.libraries = "begun"
                await new_replay().once()
                table.libraries = "made"
            await new_replay().once()
            # Once more: an entry that answers now is of a state that comes back, such as an
            # adapter that another input switches off.
            say("looking at which entries last")
            await new_replay().once()
            table.refuse_begun()
        for level, name in LEVEL_PARTS.items():
            if table.has_entries(level):
                entries[name] = table.to_files(level)
        facts["entries"] = table.described()
        facts[ENTRIES_FORMAT] = table.format
    say("packing the caches")
    return pack_parts(cache_directory, entries), facts


class _Steps:
    """Says which entry or library of how many is made."""

    def __init__(self, kinds: int, say: Callable[[str], None]) -> None:
        self._kinds = kinds
        """Of calls that were seen until now. A build may see others."""
        self._say = say
        self._done: Counter[str] = Counter()

    def tell(self, step: str) -> None:
        """Say that the next one begins; a step is `trace`, `entry` or `library`."""
        self._done[step] += 1
        number, of = self._done[step], self._kinds
        if step == "library":
            of = self._done["trace"] or of
        words = "tracing library" if step == "trace" else step
        self._say(f"{words} {number} of {max(number, of)}")


async def _compile_by_profile(replay: Replay) -> None:
    """Compile what starts with this profile will: graphs that this one had no need of.

    With batches of 8 and 1, for example, the profile says that the batch changes, and the
    first graph of such a start is one for all batches. Here it was one for 8.
    """
    seen = watch_process()
    of_traffic = seen.on_event, seen.forbidden
    seen.on_event, seen.forbidden = None, None
    pgo.begin_anew()
    try:
        await replay.until_quiet()
    finally:
        seen.on_event, seen.forbidden = of_traffic


def pack_parts(
    cache_directory: Path, entries: Mapping[str, Mapping[str, bytes]] | None = None
) -> dict[str, bytes]:
    """Return the raw parts of an artifact from this process' caches. Once per process.

    `entries` are the files of the parts that have some, by the part's name.
    """
    parts = {"cache": pack_directory(cache_directory)}
    for name, files in (entries or {}).items():
        with _private_folders.temporary_folder() as scratch:
            folder = scratch / name
            folder.mkdir(mode=0o700)
            for file, content in files.items():
                (folder / file).write_bytes(content)
            parts[name] = pack_directory(folder)
    torch_bytes = save_torch_bytes()
    if torch_bytes:
        parts["torch_bytes"] = torch_bytes
    return parts


def build_facts(report: Report) -> Mapping[str, Any]:
    """Return what a manifest says about the build, beside fingerprint and parts."""
    return {
        ISA_FACT: isa_checks().answers,
        "inputs": [result.name for result in report.inputs],
        "passes": report.passes,
        "to_proof_s": round(report.to_proof_s, 3),
        "compiler_processes": report.warmup.compiler_processes,
        "versions": report.versions,
    }
