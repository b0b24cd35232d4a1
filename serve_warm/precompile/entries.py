# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The parts `precompiled` and `exported` of an artifact: entries by unit, their files, which fit.

A unit is what callables must be equal in to share entries: name, arguments of torch.compile, and
the tree of modules. Nothing in it is executed before a function is asked for.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from serve_warm._redaction import describe_error, loggable
from serve_warm.precompile import aot_compile, aoti_library
from serve_warm.precompile.call_signature import Dynamic, Signature, module_of
from serve_warm.precompile.entry_function import Plan
from serve_warm.precompile.facts import RULES, Facts, NoEntry
from serve_warm.precompile.names import literal, name_of_class

if TYPE_CHECKING:
    from serve_warm.precompile import aoti_build

logger = logging.getLogger(__name__)

FORMAT = RULES
"""Version of both parts: of the rules by which guards became facts. Another one is not read: its
calls are served by level 1."""

INDEX = "index.json"

DIGEST = re.compile(r" [0-9a-f]{16}\b")
"""Of a class' functions, as `facts.name_of_class` writes it behind the name."""

PREFIXES = {2: "entry", 3: "library"}
"""What the file of an entry is called, by the level: torch's pickle, or a shared library."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One call's compiled code, and when it may be run."""

    signature: Signature
    state: Mapping[str, str]
    facts: Facts
    sources: Mapping[str, str]
    references: Mapping[str, tuple[str, str]]
    dynamic: Dynamic
    file: str
    error: float
    """Largest difference from eager, relative to the largest value, when it was made."""
    level: int = 2
    reason: str = ""
    """Why it is no library, where one was asked for."""
    plan: Plan = field(default_factory=Plan)

    @functools.cached_property
    def function_key(self) -> str:
        """What two entries must be equal in to share a function.

        Not the file alone: a library holds neither weights nor names, so that two methods of one
        shape give the same bytes, and only the plan says whose weights go in.
        """
        return json.dumps(
            [self.file, self.plan, self.references, self.sources, self.state], sort_keys=True
        )

    def takes(self, call: Signature, state: Mapping[str, str], tensors: Sequence[Any]) -> bool:
        """Return whether it was made for calls like this one."""
        if self.state != state:
            return False
        if not self.dynamic.conditions:
            return self.signature == call
        opened = self.dynamic.signature(call, tensors)
        return self.signature == opened and self.dynamic.holds(tensors)


@dataclass(kw_only=True)
class Unit:
    """The entries for all callables of one structure."""

    name: str
    arguments: str
    tree: Sequence[str]
    entries: list[Entry] = field(default_factory=list)

    @property
    def key(self) -> str:
        """What a callable must be equal in to share the entries."""
        text = json.dumps([self.name, self.arguments, list(self.tree)])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A library that is being compiled, and when it will be one for a call."""

    unit: Unit
    entry: Entry
    """What is known of it; it has no file yet."""
    library: aoti_build.Begun


def file_name(data: bytes, prefix: str = PREFIXES[2]) -> str:
    """Return the name of an entry's file, which is what is in it: another one is damaged."""
    return f"{prefix}_{hashlib.sha256(data).hexdigest()[:32]}"


class EntryTable:
    """Entries by unit, and the functions that were loaded from them; one per process."""

    format = FORMAT

    def __init__(self, units: Mapping[str, Unit], files: Mapping[str, bytes]) -> None:
        self.units = dict(units)
        self.files = dict(files)
        self.why_empty = ""
        """Why nothing was read of a part: the reason of calls that have no entry for it."""
        self.folder: Path | None = None
        """Where libraries lie, which are opened by their path; none in a build."""
        self.refused: dict[tuple[str, str], str] = {}
        """Reason by unit name and call, for what has no entry although it was declared."""
        self.libraries: Literal["made", "begun"] = "made"
        """Whether a build makes a library for a call, or begins it for the next such call."""
        self.begun: list[Begun] = []
        """Libraries of the build that no call has finished yet."""
        self.tell: Callable[[Literal["trace", "entry", "library"]], None] = lambda _: None
        """Called with what a build does next for a call."""
        self.broken = ""
        """What loading an entry raised first that torch itself does not raise."""
        self._functions: dict[str, Callable[..., Any] | NoEntry] = {}
        self._changed: dict[str, str] = {}
        self._lock = threading.RLock()

    def function(self, entry: Entry) -> Callable[..., Any]:
        """Return the compiled code of an entry, loaded on first use.

        Raises:
            NoEntry: it cannot be loaded here, or its sources are not those of today.
        """
        with self._lock:
            if entry.function_key not in self._functions:
                self._functions[entry.function_key] = self._load(entry)
            loaded = self._functions[entry.function_key]
        if isinstance(loaded, NoEntry):
            raise NoEntry(str(loaded))
        return loaded

    def _load(self, entry: Entry) -> Callable[..., Any] | NoEntry:
        changed = [name for name, digest in entry.sources.items() if self._is_other(name, digest)]
        if changed:
            return NoEntry(f"changed since the build: {', '.join(changed)}")
        try:
            with _mode(entry.state):
                if entry.level == 2:
                    return aot_compile.load(self._intact(entry.file), entry.references, entry.plan)
                # Executed as soon as it is opened, so what is in it is looked at before.
                self._intact(entry.file)
                return aoti_library.load(self._path(entry.file), entry.plan)
        except NoEntry as error:
            return error
        except Exception as error:
            # Unpickling runs code of the build's, which may raise anything. A call whose code does
            # not load is answered by torch.compile, in traffic as well.
            self.broken = self.broken or describe_error(error)
            logger.warning("%s cannot be loaded", entry.file, exc_info=loggable(error))
            return NoEntry(f"its code cannot be loaded: {type(error).__name__}")

    def _intact(self, name: str) -> bytes:
        data = self.files.get(name)
        if data is None and self.folder is not None:
            with contextlib.suppress(OSError):
                data = self._path(name).read_bytes()
        if data is None or file_name(data, name.partition("_")[0]) != name:
            raise NoEntry(f"its file {name} is {'missing' if data is None else 'damaged'}")
        return data

    def _path(self, name: str) -> Path:
        if self.folder is None:  # pragma: no cover  (what is built is not opened by its path)
            raise AssertionError
        return self.folder / name

    def _is_other(self, name: str, digest: str) -> bool:
        if name not in self._changed:
            self._changed[name] = (
                digest if not aot_compile.find_changed_sources({name: digest}) else ""
            )
        return self._changed[name] != digest

    def add(self, unit: Unit, entry: Entry, data: bytes, fn: Callable[..., Any]) -> None:
        """Add an entry that was just made; it is in the table of a build only."""
        with self._lock:
            unit.entries.append(entry)
            self.files[entry.file] = data
            self._functions[entry.function_key] = fn

    def take(self, other: EntryTable) -> None:
        """Add the entries of another part of the same artifact."""
        for key, unit in other.units.items():
            self.units.setdefault(key, replace(unit, entries=[])).entries.extend(unit.entries)
        self.files.update(other.files)
        self.refused.update(other.refused)
        self.folder = other.folder or self.folder

    def disable(self, entry: Entry, why: str) -> None:
        """Let nobody load the code of an entry again; who asks for it is told `why`."""
        with self._lock:
            self._functions[entry.function_key] = NoEntry(why)

    def withdraw(self, unit: Unit, entry: Entry, why: str) -> None:
        """Take back an entry that was made in this build; its calls are refused with `why`."""
        with self._lock:
            unit.entries.remove(entry)
            self.refused[unit.name, str(entry.signature)] = why
            if not any(e.file == entry.file for u in self.units.values() for e in u.entries):
                del self.files[entry.file]

    def refuse_begun(self) -> None:
        """Refuse the calls whose libraries no other call has finished."""
        for begun in self.begun:
            call = begun.unit.name, str(begun.entry.signature)
            if not any(entry.signature == begun.entry.signature for entry in begun.unit.entries):
                self.refused.setdefault(call, "it was called once while entries were made")
        self.begun = []

    def unit(self, name: str, arguments: str, lines: Sequence[str]) -> Unit:
        """Return the unit of this structure, an empty one where there is none."""
        new = Unit(name=name, arguments=arguments, tree=lines)
        with self._lock:
            return self.units.setdefault(new.key, new)

    def of_other_structures(self, unit: Unit) -> list[Entry]:
        """Return the entries of a unit's callable when it consists of something else."""
        kind = (unit.name, unit.arguments)
        with self._lock:
            units = list(self.units.values())
        return [
            e for u in units if u is not unit and (u.name, u.arguments) == kind for e in u.entries
        ]

    def has_entries(self, level: int = 2) -> bool:
        """Return whether there is anything of a level."""
        return any(e.level == level for unit in self.units.values() for e in unit.entries)

    @property
    def has_any(self) -> bool:
        """Whether it has an entry of any level."""
        return any(unit.entries for unit in self.units.values())

    @property
    def made(self) -> int:
        """How many entries it has, of all levels."""
        return sum(len(unit.entries) for unit in list(self.units.values()))

    def described(self) -> list[dict[str, Any]]:
        """Return a record for each kind of call, for the manifest: what has no entry, and why."""
        made = [
            {
                "callable": u.name,
                "call": str(e.signature),
                "level": e.level,
                "error": e.error,
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
        """Return in words how a unit without entries differs from those that have some."""
        same = [u for u in self.units.values() if u.name == unit.name and u.entries]
        if not same:
            reasons = [why for (name, _), why in self.refused.items() if name == unit.name]
            none = self.why_empty or "the artifact has no entry for it"
            return reasons[0] if reasons else none
        other = same[0]
        if other.arguments != unit.arguments:
            return f"compiled with {other.arguments}, and here with {unit.arguments}"
        for ours, theirs in zip(unit.tree, other.tree):  # noqa: B905 - the shorter one decides
            if ours != theirs and DIGEST.sub("", ours) == DIGEST.sub("", theirs):
                name = DIGEST.sub("", ours).partition(": ")[2]
                return f"the code of {name} changed since the build: build again"
            if ours != theirs:
                return f"the module is not the one of the build: [{ours}], there [{theirs}]"
        return f"the module has {len(unit.tree)} parts, at the build it had {len(other.tree)}"

    def to_files(self, level: int = 2) -> dict[str, bytes]:
        """Return the files of the part `precompiled`, or at level 3 of `exported`, by name."""
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
                        "error": entry.error,
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
        """Read what `to_files` returned. Nothing of it is executed before an entry is used.

        Raises:
            NoEntry: it is of another format, or damaged.
        """
        try:
            index = json.loads((folder / INDEX).read_bytes())
            if index["format"] != FORMAT:
                raise NoEntry(why_not_read(index["format"]))
            tables = {key: Facts.from_json(plain) for key, plain in index["facts"].items()}
            units = {}
            for plain in index["units"]:
                unit = Unit(name=plain["name"], arguments=plain["arguments"], tree=plain["tree"])
                unit.entries = [_entry(entry, tables) for entry in plain["entries"]]
                units[unit.key] = unit
            names = {e.file for unit in units.values() for e in unit.entries if e.level == 2}
            there = {name for name in names if (folder / name).is_file()}
            table = cls(units, {name: (folder / name).read_bytes() for name in there})
            table.folder = folder if table.has_entries(3) else None
            table.refused = {(unit, call): why for unit, call, why in index["refused"]}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise NoEntry(f"its entries cannot be read: {error}") from error
        return table


def read_parts(folders: Sequence[Path]) -> tuple[EntryTable, list[str]]:
    """Return the entries in the folders of an artifact's parts, and why some were not read."""
    table, problems = EntryTable({}, {}), []
    for folder in folders:
        try:
            part = EntryTable.read(folder)
            # Not asked for libraries: it imports Dynamo.
            why = aot_compile.can_precompile() if part.has_entries(2) else ""
        except NoEntry as error:
            why = str(error)
        if why:
            problems.append(why)
        else:
            table.take(part)
    table.why_empty = "; ".join(problems)
    return table, problems


def why_not_read(version: Any) -> str:
    """Return in words why entries of another format are not run."""
    if isinstance(version, int) and version < FORMAT:
        return "its entries were built before guards were complete: build again"
    return f"its entries are of format {version}, and this version reads {FORMAT}"


def _entry(plain: Mapping[str, Any], tables: Mapping[str, Facts]) -> Entry:
    name = str(plain["file"])
    if not name.isidentifier():
        raise ValueError(f"not the name of an entry: {name!r}")
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
        error=float(plain["error"]),
        level=level,
        reason=str(plain.get("reason", "")),
        plan=cast("Plan", dict(plain.get("plan", {}))),
    )


@contextlib.contextmanager
def _mode(state: Mapping[str, str]) -> Iterator[None]:
    with torch.inference_mode(state["inference_mode"] == "on"), torch.no_grad():
        yield


# Modules --------------------------------------------------------------------------------------


def plain_values(callee: Any) -> str:
    """Return the numbers, texts and the like that the modules of what is called hold, as text."""
    root = module_of(callee)
    modules = [] if root is None else root.named_modules()
    found = [
        f"{path}.{name}={said}"
        for path, module in modules
        for name, value in vars(module).items()
        if (said := literal(value)) is not None
    ]
    return "\n".join(found)


def tree(callee: Any) -> list[str]:
    """Return a line for each module of what is called: its path and its class.

    Whatever else compiled code depends on is a fact of an entry, and is watched.
    """
    root = module_of(callee)
    if root is None:
        return []
    names: dict[type, str] = {}
    lines = []
    for path, module in root.named_modules(remove_duplicate=False):
        kind = type(module)
        if kind not in names:
            names[kind] = name_of_class(kind)
        lines.append(f"{path or '.'}: {names[kind]}")
    return lines
