# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The raw parts of an artifact, packed from a proven replica's caches and entries."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from serve_warm import _private_folders
from serve_warm.artifact.archive import pack_directory
from serve_warm.artifact.manifest import ACCEPTED
from serve_warm.compiler.cpu_target import isa_checks
from serve_warm.inputs import Input
from serve_warm.precompile import LIBRARY_LEVEL, SESSION, AnsweredBy, building
from serve_warm.replica.replay.passes import Replay
from serve_warm.report import Report

if TYPE_CHECKING:
    from serve_warm.learn.any_size import Conditions

LEVEL_PARTS = {2: "precompiled", 3: "exported"}
"""For each level, the name of the artifact part that contains the entries."""

ISA_FACT = "isa_checks"
"""Name of the manifest fact with the results of torch's ISA probe."""


class PackedReplica(TypedDict):
    """The data that a replica returns to the builder, in a form that Ray can send."""

    fingerprint: dict[str, Any]
    made_of: dict[str, str]
    """The fields of `CodeAndModel`."""
    parts: dict[str, bytes]
    facts: dict[str, Any]
    report: dict[str, Any]


class Packed(NamedTuple):
    """What a build makes from a proven replica."""

    parts: dict[str, bytes]
    """The raw parts of the artifact."""
    facts: Mapping[str, Any]
    """The build facts for its manifest."""
    answered_by: Mapping[str, AnsweredBy]
    """What answered the calls of each input; empty without compiled callables."""
    with_entries: frozenset[object]
    """Code of the callables of which entries have answered calls."""
    open_entries: Mapping[int, tuple[str, Conditions]]
    """The structures and sizes of the entries with open axes, by the entries' ids."""


async def pack(
    report: Report,
    cache_directory: Path,
    new_replay: Callable[[], Replay],
    *,
    say: Callable[[str], None] = lambda _: None,
    accept_torch_source: bool = False,
) -> Packed:
    """Pack the parts of an artifact.

    If `serve_warm.compile` was used, this replays the inputs again and makes an entry for each kind
    of call. `report` is the report from the time of the proof; `new_replay` returns a replay of the
    same inputs. `say` is called with a description of each step. `accept_torch_source` allows a
    torch whose private functions were not tested.
    """
    facts = dict(build_facts(report))
    entries: dict[str, Mapping[str, bytes]] = {}
    answered_by: dict[str, AnsweredBy] = {}
    with_entries: frozenset[object] = frozenset()
    open_entries: Mapping[int, tuple[str, Conditions]] = {}
    if SESSION.has_callables():
        with building(accept_torch_source=accept_torch_source) as build:
            kinds = {(use.callable, use.call) for use in SESSION.uses()}
            build.tell = _Steps(len(kinds), say).tell
            if any(each.level == LIBRARY_LEVEL for each in SESSION.dispatchers):
                # Begin all libraries first, so that C++ compilers run while the next library is
                # traced.
                build.libraries = "begun"
                await new_replay().once()
                build.libraries = "made"
            await new_replay().once()
            # Replay again. If an entry matches a call this time, the model does return to the
            # entry's state, for example after another input has switched an adapter off.
            say("checking which entries stay valid")

            @contextlib.contextmanager
            def noting_answers(item: Input) -> Iterator[None]:
                with build.noting_answers() as answered_by[item.name]:
                    yield

            await new_replay().once(noting_answers)
            build.refuse_pending()
            with_entries = frozenset(build.with_entries)
        table = build.table
        open_entries = table.open_entries()
        for level, name in LEVEL_PARTS.items():
            if table.has_entries(level):
                entries[name] = table.to_files(level)
        facts["entries"] = table.described()
        if accepted := build.torch_source.accepted():
            facts[ACCEPTED] = accepted
    say("packing the caches")
    isa_checks().end_probe()
    facts[ISA_FACT] = dict(isa_checks().answers)
    parts = pack_parts(cache_directory, entries)
    return Packed(parts, facts, answered_by, with_entries, open_entries)


class _Steps:
    """Reports progress: the number of the current entry or library, and the total number."""

    def __init__(self, kinds: int, say: Callable[[str], None]) -> None:
        self._kinds = kinds
        """Number of kinds of calls seen so far. A build may see more."""
        self._say = say
        self._done: Counter[str] = Counter()

    def tell(self, step: str) -> None:
        """Report that the next step begins: `trace`, `entry` or `library`."""
        self._done[step] += 1
        number, of = self._done[step], self._kinds
        if step == "library":
            of = self._done["trace"] or of
        words = "tracing library" if step == "trace" else step
        self._say(f"{words} {number} of {max(number, of)}")


def pack_parts(
    cache_directory: Path, entries: Mapping[str, Mapping[str, bytes]] | None = None
) -> dict[str, bytes]:
    """Return the raw parts of an artifact from this process's caches.

    `entries` maps the name of each part that contains entries to the files of the part.
    """
    parts = {"cache": pack_directory(cache_directory)}
    for name, files in (entries or {}).items():
        with _private_folders.temporary_folder() as scratch:
            folder = scratch / name
            folder.mkdir(mode=0o700)
            for file, content in files.items():
                (folder / file).write_bytes(content)
            parts[name] = pack_directory(folder)
    return parts


PLAN = "plan"
"""Name of the build fact with the plan that the build has replayed."""

NARROW = "narrow"
UNVARIED = "unvaried"
VARIED = "varied"
"""Names of the build facts about declared inputs that were varied. The last one has a digest of the
application's code and inputs."""


def build_facts(report: Report) -> Mapping[str, Any]:
    """Return the build facts that a manifest contains in addition to fingerprint and parts."""
    return {
        ISA_FACT: isa_checks().answers,
        "inputs": [result.name for result in report.inputs],
        "passes": report.passes,
        "to_proof_s": round(report.to_proof_s, 3),
        "compiler_processes": report.warmup.compiler_processes,
        "versions": report.versions,
        NARROW: list(report.narrow),
        UNVARIED: list(report.unvaried),
    }
