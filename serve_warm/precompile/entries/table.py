# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""An artifact's parts `precompiled` and `exported`: entries by unit, and the entries' files.

Callables share entries if their units are equal. A unit consists of a name, the arguments of
torch.compile, and the tree of modules. Reading the parts executes no code, but loading a function
from them does.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch

from serve_warm._records import record
from serve_warm._redaction import describe_error, loggable
from serve_warm._regular_files import read_regular
from serve_warm.precompile.calls.signature import Dynamic, Signature
from serve_warm.precompile.entries import pickles
from serve_warm.precompile.entries.model_tree import describe_model_change
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.plan import Plan
from serve_warm.precompile.facts.source_files import file_digest
from serve_warm.precompile.facts.table import Facts

logger = logging.getLogger(__name__)

FORMAT = 1
"""Version of both parts. Entries of other versions are not read, and their calls run at level 1."""

INDEX = "index.json"

PREFIXES = {2: "entry", 3: "library"}
"""Maps a level to the prefix in the file names of the level's entries.

The files are torch pickles at level 2, and shared libraries at level 3.
"""


LoadLibrary = Callable[[Path, Plan], Callable[..., object]]
"""Opens the library at a path (`libraries.run.load`)."""


@record(frozen=True, kw_only=True)
class Distance:
    """How far compiled code is from full precision, in units of eager's own distance."""

    rmse_ratio: float | None = None
    """RMSE of the compiled results, divided by that of eager's; None if it was not measured."""
    max_ratio: float | None = None
    """The same for the largest error."""
    near_ties: int = 0
    """Count of integers and bools that differ, because two candidates were almost equal."""
    fixed: str = ""
    """Why the fixed limit decided instead of the ratios; empty if the ratios decided."""
    eager_operators: Sequence[str] = ()
    """Operators that ran in their eager dtypes in the full-precision run."""

    def to_json(self) -> dict[str, object]:
        """Return the fields that are not empty."""
        return {name: value for name, value in vars(self).items() if value not in (None, 0, "", ())}


@record(frozen=True, kw_only=True)
class Entry:
    """One call's compiled code, and the conditions for running it."""

    signature: Signature
    state: Mapping[str, str]
    facts: Facts
    sources: Mapping[str, str]
    references: Mapping[str, tuple[str, str]]
    dynamic: Dynamic
    file: str
    errors: Sequence[float]
    """Largest difference from eager at the build for each tensor of the result, relative to its
    largest value: outputs, inputs and buffers. 0 for integers and bools."""
    level: int = 2
    reason: str = ""
    """If the user requested libraries, the reason why the entry is not a library."""
    distance: Distance = field(default_factory=Distance)
    plan: Plan = field(default_factory=Plan)

    @functools.cached_property
    def function_key(self) -> str:
        """The key of the entry's function; equal for entries that share a function.

        The file is not a sufficient key, because a library contains neither weights nor names. So
        the libraries of two similar methods can have the same bytes, and only the plan says which
        weights each library uses.
        """
        return json.dumps(
            [self.file, self.plan, self.references, self.sources, self.state], sort_keys=True
        )

    def takes(
        self, call: Signature, state: Mapping[str, str], tensors: Sequence[torch.Tensor]
    ) -> bool:
        """Return whether the entry was made for calls like this one."""
        if self.state != state:
            return False
        if not self.dynamic.conditions:
            return self.signature == call
        opened = self.dynamic.signature(call, tensors)
        return self.signature == opened and self.dynamic.holds(tensors)


@record(kw_only=True)
class Unit:
    """The entries for all callables of one structure."""

    name: str
    arguments: str
    tree: Sequence[str]
    entries: list[Entry] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The unit's key; equal for callables that share the entries."""
        text = json.dumps([self.name, self.arguments, list(self.tree)])
        return hashlib.sha256(text.encode()).hexdigest()


def file_name(data: bytes, prefix: str = PREFIXES[2]) -> str:
    """Return the file name of an entry. The digest in the name reveals damage to the file."""
    return f"{prefix}_{hashlib.sha256(data).hexdigest()[:32]}"


def _intact(name: str, data: bytes | None) -> bytes:
    """Return the contents of an entry's file, if they match the digest in its name."""
    if data is None or file_name(data, name.partition("_")[0]) != name:
        raise NoEntry(f"its file {name} is {'missing' if data is None else 'damaged'}")
    return data


class NotYet(Exception):
    """The library for a call is being compiled, so other code answers the call."""


class EntryTable:
    """Entries by unit, and the functions loaded from the entries; one table per process."""

    def __init__(self, units: Mapping[str, Unit], files: Mapping[str, bytes]) -> None:
        self.units = dict(units)
        self.files = dict(files)
        self.why_empty = ""
        """Why a part was not read. This is also the reason given for calls without an entry."""
        self.folder: Path | None = None
        """Folder of the libraries, because libraries are opened by path. None in a build."""
        self.refused: dict[tuple[str, str], str] = {}
        """Why a declared call has no entry, by unit name and call."""
        self.changes = 0
        """Number of changes to the entries or to their code."""
        self.broken = ""
        """The first unexpected error while loading an entry, as text."""
        self._functions: dict[str, Callable[..., object] | NoEntry] = {}
        self._digests: dict[str, str] = {}
        """The digest of each Python module's file, by the module's name."""
        self._replaced_by_eager: set[str] = set()
        """Function keys of disabled entries whose calls must not go to torch.compile."""
        self._lock = threading.RLock()

    def function(self, entry: Entry, load_library: LoadLibrary) -> Callable[..., object]:
        """Return the compiled code of an entry, loaded on first use.

        `load_library` opens the file of an entry of level 3.

        Raises:
            NoEntry: the code cannot be loaded on this machine, or its sources have changed.
        """
        with self._lock:
            if entry.function_key not in self._functions:
                self._functions[entry.function_key] = self._load(entry, load_library)
            loaded = self._functions[entry.function_key]
        if isinstance(loaded, NoEntry):
            raise NoEntry(str(loaded))
        return loaded

    def _load(self, entry: Entry, load_library: LoadLibrary) -> Callable[..., object] | NoEntry:
        changed = [name for name, digest in entry.sources.items() if self._is_other(name, digest)]
        if changed:
            return NoEntry(f"changed since the build: {', '.join(changed)}")
        try:
            with _mode(entry.state):
                if entry.level == 2:
                    data = _intact(entry.file, self.files.get(entry.file))
                    return pickles.load(data, entry.references, entry.plan)
                # Opening executes the file and checks nothing, so its digest is checked first.
                path = self._library_path(entry.file)
                _intact(entry.file, read_regular(path) if path.is_file() else None)
                return load_library(path, entry.plan)
        except NoEntry as error:
            return error
        except BaseException as error:
            # Signals interrupt only the main thread.
            if (
                not isinstance(error, Exception)
                and threading.current_thread() is threading.main_thread()
            ):
                raise
            # Unpickling runs the build's code, which may raise anything. If an entry's code cannot
            # be loaded, torch.compile answers the call, even in traffic.
            self.broken = self.broken or describe_error(error)
            logger.warning("%s cannot be loaded", entry.file, exc_info=loggable(error))
            return NoEntry(f"its code cannot be loaded: {type(error).__name__}")

    def _library_path(self, name: str) -> Path:
        if self.folder is None:  # a build's own libraries are already open
            raise NoEntry(f"its file {name} is missing")
        return self.folder / name

    def _is_other(self, name: str, digest: str) -> bool:
        if name not in self._digests:
            self._digests[name] = file_digest(name)
        return self._digests[name] != digest

    def open_entries(self) -> dict[int, tuple[str, Dynamic]]:
        """Return the structures and sizes of the entries with open axes, by the entries' ids."""
        entries = (entry for unit in self.units.values() for entry in unit.entries)
        return {
            id(entry): (entry.signature.structure, entry.dynamic)
            for entry in entries
            if entry.dynamic.is_open
        }

    def add(self, unit: Unit, entry: Entry, data: bytes, fn: Callable[..., object]) -> None:
        """Add a new entry; use this only for a build's table."""
        with self._lock:
            self.changes += 1
            unit.entries.append(entry)
            self.files[entry.file] = data
            self._functions[entry.function_key] = fn

    def take(self, other: EntryTable) -> None:
        """Add the entries from another part of the same artifact."""
        self.changes += 1
        for key, unit in other.units.items():
            self.units.setdefault(key, replace(unit, entries=[])).entries.extend(unit.entries)
        self.files.update(other.files)
        self.refused.update(other.refused)
        self.folder = other.folder or self.folder

    def disable(self, entry: Entry, why: str, *, eagerly: bool) -> None:
        """From now on, refuse to run an entry's code; `why` is the reason.

        If `eagerly`, the callables of the entry must run level-1 calls eagerly.
        """
        with self._lock:
            self.changes += 1
            self._functions[entry.function_key] = NoEntry(why)
            if eagerly:
                self._replaced_by_eager.add(entry.function_key)

    def runs_eagerly(self, unit: Unit) -> bool:
        """Return whether the callables of a unit must run level-1 calls eagerly."""
        replaced = self._replaced_by_eager
        return bool(replaced) and any(e.function_key in replaced for e in list(unit.entries))

    def withdraw(self, unit: Unit, entry: Entry, why: str) -> None:
        """Remove an entry that this build made, and refuse its calls with `why` as the reason."""
        with self._lock:
            self.changes += 1
            unit.entries.remove(entry)
            self.refused[unit.name, str(entry.signature)] = why
            if not any(e.file == entry.file for u in self.units.values() for e in u.entries):
                del self.files[entry.file]

    def unit(self, name: str, arguments: str, lines: Sequence[str]) -> Unit:
        """Return the unit with this structure; if there is none, add an empty unit."""
        new = Unit(name=name, arguments=arguments, tree=lines)
        with self._lock:
            return self.units.setdefault(new.key, new)

    def of_other_structures(self, unit: Unit) -> list[Entry]:
        """Return the entries of all units that differ from `unit` only in structure."""
        kind = (unit.name, unit.arguments)
        with self._lock:
            units = list(self.units.values())
        return [
            e for u in units if u is not unit and (u.name, u.arguments) == kind for e in u.entries
        ]

    def has_entries(self, level: int = 2) -> bool:
        """Return whether the table has an entry at a level."""
        return any(e.level == level for unit in self.units.values() for e in unit.entries)

    @property
    def made(self) -> int:
        """Number of entries at all levels."""
        return sum(len(unit.entries) for unit in list(self.units.values()))

    def described(self) -> list[dict[str, object]]:
        """Return a record for each kind of call, for the manifest.

        Includes refused calls and the reasons.
        """
        made = [
            {
                "callable": u.name,
                "call": str(e.signature),
                "level": e.level,
                "error": max(e.errors, default=0.0),
                **e.distance.to_json(),
                **({"reason": e.reason} if e.reason else {}),
            }
            for u in self.units.values()
            for e in u.entries
        ]
        return made + [
            {"callable": name, "call": call, "level": 1, "reason": why}
            for (name, call), why in self.refused.items()
        ]

    def nearest(self, unit: Unit) -> str:
        """Return why a unit has no entries, for example how it differs from a unit with entries."""
        same = [u for u in self.units.values() if u.name == unit.name and u.entries]
        if not same:
            reasons = [why for (name, _), why in self.refused.items() if name == unit.name]
            none = self.why_empty or "the artifact has no entry for this callable"
            return reasons[0] if reasons else none
        other = same[0]
        if other.arguments != unit.arguments:
            return (
                f"the build compiled with {other.arguments}, but this process compiles with "
                f"{unit.arguments}"
            )
        return describe_model_change(unit.tree, other.tree)

    def to_files(self, level: int = 2) -> dict[str, bytes]:
        """Return the files of the part `precompiled`, or `exported` at level 3, by name."""
        units, tables, files = [], {}, {}
        for unit in self.units.values():
            entries = []
            for entry in (entry for entry in unit.entries if entry.level == level):
                files[entry.file] = self.files[entry.file]
                table = json.dumps(entry.facts.to_json())
                digest = hashlib.sha256(table.encode()).hexdigest()[:16]
                tables[digest] = entry.facts.to_json()
                entries.append(
                    {
                        "structure": entry.signature.structure,
                        "tensors": entry.signature.tensors,
                        "state": dict(entry.state),
                        "facts": digest,
                        "sources": dict(entry.sources),
                        "references": dict(entry.references),
                        "conditions": list(entry.dynamic.conditions),
                        "file": entry.file,
                        "errors": list(entry.errors),
                        **({"reason": entry.reason} if entry.reason else {}),
                        **({"level": level} if level > 2 else {}),
                        **({"plan": dict(entry.plan)} if entry.plan else {}),
                    }
                )
            if entries:
                units.append(
                    {
                        "name": unit.name,
                        "arguments": unit.arguments,
                        "tree": list(unit.tree),
                        "entries": entries,
                    }
                )
        refused = [[*call, why] for call, why in self.refused.items()]
        index = {"format": FORMAT, "units": units, "facts": tables, "refused": refused}
        return {INDEX: json.dumps(index).encode(), **files}

    @classmethod
    def read(cls, folder: Path) -> EntryTable:
        """Read the files that `to_files` returned. This executes no code, but using an entry does.

        Raises:
            NoEntry: the format is unknown, or the files are damaged.
        """
        try:
            index = json.loads(read_regular(folder / INDEX))
            if index["format"] != FORMAT:
                raise NoEntry(
                    f"its entries have format {index['format']}, but this release reads format "
                    f"{FORMAT}"
                )
            tables = {key: Facts.from_json(plain) for key, plain in index["facts"].items()}
            units = {}
            for plain in index["units"]:
                unit = Unit(name=plain["name"], arguments=plain["arguments"], tree=plain["tree"])
                unit.entries = [_entry(entry, tables) for entry in plain["entries"]]
                units[unit.key] = unit
            names = {e.file for unit in units.values() for e in unit.entries if e.level == 2}
            there = {name for name in names if (folder / name).is_file()}
            table = cls(units, {name: read_regular(folder / name) for name in there})
            table.folder = folder if table.has_entries(3) else None
            table.refused = {(unit, call): why for unit, call, why in index["refused"]}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise NoEntry(f"its entries cannot be read: {error}") from error
        return table


def read_parts(
    folders: Sequence[Path], *, already: Mapping[Path, EntryTable] = MappingProxyType({})
) -> tuple[EntryTable, list[str]]:
    """Return the entries in the folders of an artifact's parts, and why some parts were not read.

    `already` has the tables of folders that were already read.
    """
    table, problems = EntryTable({}, {}), []
    for folder in folders:
        try:
            table.take(already.get(folder) or EntryTable.read(folder))
        except NoEntry as error:
            problems.append(str(error))
    table.why_empty = "; ".join(problems)
    return table, problems


def _entry(plain: Mapping[str, Any], tables: Mapping[str, Facts]) -> Entry:
    name = str(plain["file"])
    if not name.isidentifier():
        raise ValueError(f"invalid entry name: {name!r}")
    level = int(plain.get("level", 2))
    if level not in PREFIXES:
        raise ValueError(f"not a level: {level}")
    return Entry(
        signature=Signature(structure=plain["structure"], tensors=tuple(plain["tensors"])),
        state=dict(plain["state"]),
        facts=tables[plain["facts"]],
        sources=dict(plain["sources"]),
        references={key: (where[0], where[1]) for key, where in plain["references"].items()},
        dynamic=Dynamic(conditions=tuple(plain["conditions"])),
        file=name,
        errors=tuple(map(float, plain["errors"])),
        level=level,
        reason=str(plain.get("reason", "")),
        plan=cast("Plan", dict(plain.get("plan", {}))),
    )


@contextlib.contextmanager
def _mode(state: Mapping[str, str]) -> Iterator[None]:
    with torch.inference_mode(state["inference_mode"] == "on"), torch.no_grad():
        yield


# Modules --------------------------------------------------------------------------------------
