# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Facts: data about the objects that compiled code depends on.

Dynamo protects compiled code with guards, which it evaluates at each call. Guards of real models
cannot be written to a file, because closures, decorators and identities do not pickle. A fact has
the same content as a guard, in a form that can be stored: a path from the compiled callable or a
Python module to an object, and the expected properties of the object.
`serve_warm.precompile.trace.guard_facts` makes facts from guards at the build;
`serve_warm.precompile.changes.fact_watch` notices when a fact might no longer hold.

A path is a table of steps, and each step starts from an earlier row. So a prefix that thousands of
facts share (`callee._modules['encoder']...`) is walked only once.
"""

from __future__ import annotations

import enum
import functools
import importlib
import operator
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve_warm._records import record
from serve_warm._redaction import excerpt
from serve_warm.precompile.facts.names import (
    TORCH_LITERALS,
    describe_tensor,
    device_named,
    find_named,
    identity,
    is_own,
    literal,
    locate,
    name_of,
    name_of_class,
    torch_object,
)
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.tensor_parts import describe_parts, plain_parts
from serve_warm.private_apis.nn_module import CALL, HOOKS

CALLEE = "callee"
"""The name of the compiled callable in paths."""


Step = tuple[int, str, object]
"""A step: the row where it starts, an operation, and the operation's argument. The argument of
`item` is a key in the form that `encode_key` returns."""


Expected = tuple[str, object]
"""A fact's statement about an object: a kind, and a value that can be stored as JSON."""


Reader = Callable[[Any, Any], object]
"""Reads something from an object. The types of the object and of the argument depend on the kind of
step, fact or source that the function is for."""


Why = Callable[[], str]
"""Says why a fact does not hold. The text is made only when it is needed: removing secrets from it
takes 0.1 ms."""


@record(frozen=True, kw_only=True)
class Facts:
    """Facts about one callable. Facts are immutable, and their JSON form has two lists."""

    steps: tuple[Step, ...] = ()
    facts: tuple[tuple[int, str, object], ...] = ()
    """A row, a kind of fact, and the value that the fact requires at the row."""

    def to_json(self) -> dict[str, list[list[object]]]:
        """Return plain lists."""
        return {"steps": [list(s) for s in self.steps], "facts": [list(f) for f in self.facts]}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Facts:
        """Read the result of `to_json`.

        Raises:
            ValueError, TypeError, LookupError: the data does not have the expected form.
        """
        steps = tuple((int(s[0]), str(s[1]), s[2]) for s in plain["steps"])
        equal: dict[str, object] = {}
        found = tuple((int(f[0]), str(f[1]), _shared(f[2], equal)) for f in plain["facts"])
        rows = range(len(steps))
        if any(start not in range(-1, row) for row, (start, _, _) in enumerate(steps)):
            raise ValueError("one of the steps does not start from an earlier step")
        if any(row not in rows for row, _, _ in found):
            raise ValueError("a fact is about a row that does not exist")
        if any(step not in STEPS for _, step, _ in steps):
            raise ValueError("a step has an unknown kind")
        for _, kind, value in found:
            if kind not in KINDS:
                raise ValueError(f"a fact has an unknown kind: {kind}")
            if kind in RELATIONS and any(other not in rows for other in others_of(kind, value)):
                raise ValueError("a fact is compared with a row that does not exist")
        return cls(steps=steps, facts=found)

    def broken(self, callee: object) -> str:
        """Return the first fact that does not hold for `callee`, or an empty string if all hold."""
        objects = self.objects(callee)
        for fact in self.facts:
            why = self.why_broken(fact, objects)
            if why:
                return why
        return ""

    def why_broken(
        self, fact: tuple[int, str, object], objects: Sequence[object] | Mapping[int, object]
    ) -> str:
        """Return why a fact does not hold for its rows' objects, or an empty string if it holds."""
        broken = self.find_broken(fact, objects)
        return "" if broken is None else broken()

    def find_broken(
        self, fact: tuple[int, str, object], objects: Sequence[object] | Mapping[int, object]
    ) -> Why | None:
        """Return None if a fact holds, else a function that says why it does not hold."""
        row, kind, value = fact
        found = objects[row]
        if isinstance(found, Missing):
            return lambda: f"{self.path(row)} is gone ({found.why})"
        if kind in RELATIONS:
            unrelated = self._why_unrelated(row, kind, value, objects)
            return (lambda: unrelated) if unrelated else None
        try:
            now = expect(kind, found, value)
        except ANY_ERROR as error:
            unreadable = f"{name_of(type(found))}: {error}"
            return lambda: f"{self.path(row)} is a {unreadable}"
        if now != (kind, value):
            return lambda: f"{self.path(row)} {_describe_change(kind, now[1], value)}"
        return None

    def _why_unrelated(
        self, row: int, kind: str, value: object, objects: Sequence[object] | Mapping[int, object]
    ) -> str:
        others = others_of(kind, value)
        if kind == "same":
            (other,) = others
            same = objects[row] is objects[other]
            return "" if same else f"{self.path(row)} is no longer the same as {self.path(other)}"
        first: dict[int, int] = {}
        for other in (row, *others):
            before = first.setdefault(id(objects[other]), other)
            if before != other:
                return f"{self.path(other)} is now the same as {self.path(before)}"
        return ""

    def chain(self, row: int) -> list[list[object]]:
        """Return the steps that lead to a row, from the root on: see `find`."""
        start, step, argument = self.steps[row]
        return [*([] if start < 0 else self.chain(start)), [step, argument]]

    def path(self, row: int) -> str:
        """Return the expression of a row, for display."""
        if row not in self._paths:
            self._paths[row] = self._path(row)
        return self._paths[row]

    @functools.cached_property
    def _paths(self) -> dict[int, str]:
        return {}

    def _path(self, row: int) -> str:
        start, step, argument = self.steps[row]
        if step == "root":
            return str(argument)
        base = self.path(start)
        if step == "attribute":
            return f"{base}.{argument}"
        if step == "item":
            return f"{base}[{show_key(argument)}]"
        if step == "own":
            return f"object.__getattribute__({base}, {argument!r})"
        if step == "weakref":
            return f"{base}()"
        return f"{step}({base})"

    def objects(self, callee: object) -> list[object]:
        """Return the object of each row, or `Missing` if the row's path leads nowhere."""
        objects: list[object] = []
        for start, step, argument in self.steps:
            if step == "root":
                objects.append(callee if argument == CALLEE else module(argument))
                continue
            base = objects[start]
            objects.append(base if isinstance(base, Missing) else take(base, step, argument))
        return objects

    def with_inputs(self, callee: object, given: Collection[int]) -> Facts:
        """Return the same facts, with a mark on each fact about an input tensor of the graph.

        `given` has the ids of the input tensors. The graph checks its inputs at each call, so these
        facts need no other check. A library receives only the parts of a tensor, not the
        tensor's metadata, so the metadata still needs a check.
        """
        objects: list[Any] = self.objects(callee)

        def mark(row: int, kind: str) -> str:
            if id(objects[row]) in given:
                return OF_INPUTS.get(kind, kind)
            is_taken = kind == "parts" and all(id(p) in given for p in plain_parts(objects[row]))
            return "input parts alone" if is_taken else kind

        marked = tuple((row, mark(row, kind), value) for row, kind, value in self.facts)
        return Facts(steps=self.steps, facts=marked)


def _shared(value: object, equal: dict[str, object]) -> object:
    """Return one shared list for equal lists. Thousands of facts say that a module has no hooks."""
    return equal.setdefault(repr(value), value) if isinstance(value, list) else value


@record(kw_only=True)
class Merged:
    """The facts of several entries, merged into one table without duplicates."""

    steps: list[Step] = field(default_factory=list)
    facts: list[tuple[int, str, object]] = field(default_factory=list)
    of_table: list[list[int]] = field(default_factory=list)
    """For each table, the indexes of its facts in `facts`."""

    @classmethod
    def of(cls, tables: Sequence[Facts]) -> Merged:
        """Merge tables; keep only one copy of rows and facts that several tables have."""
        if len({id(table) for table in tables}) == 1:  # as for most models
            one = tables[0]
            numbers = list(range(len(one.facts)))
            return cls(
                steps=list(one.steps), facts=list(one.facts), of_table=[numbers] * len(tables)
            )
        merged = cls()
        rows: dict[object, int] = {}
        facts: dict[object, int] = {}
        known: dict[int, list[int]] = {}
        for table in tables:
            if id(table) not in known:
                known[id(table)] = merged._add(table, rows, facts)
            merged.of_table.append(known[id(table)])
        return merged

    def facts_of_all(self) -> Facts:
        """Return all facts as one table."""
        return Facts(steps=tuple(self.steps), facts=tuple(self.facts))

    def _add(self, table: Facts, rows: dict[object, int], facts: dict[object, int]) -> list[int]:
        row_of: list[int] = []
        for start, step, argument in table.steps:
            moved = (row_of[start] if start >= 0 else -1, step, argument)
            row_of.append(_number(moved, self.steps, rows))
        numbers = []
        for row, kind, value in table.facts:
            if kind in RELATIONS:
                others = [row_of[other] for other in others_of(kind, value)]
                value = others[0] if kind == "same" else others  # noqa: PLW2901 - rows of the merged one
            numbers.append(_number((row_of[row], kind, value), self.facts, facts))
        return numbers


def _number(
    value: tuple[int, str, object],
    values: list[tuple[int, str, object]],
    known: dict[object, int],
) -> int:
    # Other values can be lists, or equal although they differ, as 1 and True.
    key = value if type(value[2]) is str else repr(value)
    if key not in known:
        known[key] = len(values)
        values.append(value)
    return known[key]


OF_PARTS = ("parts", "input parts", "input parts alone")
"""Kinds of facts about the parts of a tensor that contains other tensors."""


OF_INPUTS = {"tensor": "input", "parts": "input parts"}
"""Maps each kind of fact about a tensor to the kind for a tensor that is an input of the graph."""


UNREADABLE = (AttributeError, LookupError, TypeError, ValueError, RuntimeError)
"""Exceptions that can occur while reading an object that has changed since the build. An empty
cell raises ValueError."""


ANY_ERROR: tuple[type[Exception], ...] = (Exception,)
"""Exceptions that the model's own code can raise, for example in a property. A fact that cannot be
read does not hold. The error must not fail the request, because the request might not use the
property."""


@dataclass(frozen=True)
class Missing:
    """Placeholder for an object that a path does not reach."""

    said: str
    """The raw text. Most such texts are never shown, but each request may create one."""

    @property
    def why(self) -> str:
        """The text in a form that is safe to display."""
        return excerpt(self.said, 200)


def module(name: Any) -> object:
    """Return the Python module of this name, or `Missing`."""
    try:
        return importlib.import_module(name)
    except (ImportError, *UNREADABLE) as error:
        return Missing(str(error))


def take(base: object, step: str, argument: object) -> object:
    """Return the object that one step from `base` reaches, or `Missing` if there is none."""
    try:
        return TAKE[step](base, argument)
    except ANY_ERROR as error:
        return Missing(f"{type(error).__name__}: {error}")


def find(callee: object, chain: Sequence[Sequence[Any]]) -> object:
    """Return the object to which the steps of `Facts.chain` lead, or `Missing`."""
    found = callee
    for step, argument in chain:
        if step == "root":
            found = callee if argument == CALLEE else module(argument)
        elif not isinstance(found, Missing):
            found = take(found, step, argument)
    return found


def item(base: Any, key: object) -> object:
    """Return an item as Dynamo reads it: without calling the `__missing__` of a dict subclass.

    Raises:
        LookupError, TypeError: the item does not exist.
    """
    if isinstance(base, dict):
        if not dict.__contains__(base, key):
            raise KeyError(key)
        return dict.__getitem__(base, key)
    return operator.getitem(base, key)


def _called(base: Any, _: object) -> object:
    # Calling a weak reference or a function of torch runs no user code.
    if type(base) is not weakref.ref and not (name_of(base).startswith("torch.") and is_own(base)):
        raise TypeError("neither a weak reference nor a function of torch")
    return base()


TAKE: Mapping[str, Reader] = {
    "attribute": getattr,
    # Bypasses the class's own attribute lookup, as Dynamo does when it traces that lookup.
    "own": object.__getattribute__,
    "item": lambda base, argument: item(base, decode_key(argument)),
    "nth": lambda base, argument: list(dict.values(base))[argument],
    "nth_key": lambda base, argument: list(dict.keys(base))[argument],
    "type": lambda base, _: type(base),
    # In Dynamo's path, this step copies a dict. The copy has the same items as the dict.
    "dict": lambda base, _: base,
    "weakref": _called,
}


STEPS = {"root", *TAKE}


def encode_key(key: Any) -> object:
    """Return a dict key or an index in a form that can be stored as JSON; see `decode_key`.

    Raises:
        NoEntry: the key can be recognized only by its identity.
    """
    kind = type(key)
    if kind in (str, int, bool, type(None)):
        return key
    if kind in (float, complex):
        plain: list[object] = [kind.__name__, repr(key)]
    elif kind is bytes:
        plain = ["bytes", key.hex()]
    elif kind is tuple:
        plain = ["tuple", [encode_key(part) for part in key]]
    elif kind is slice:
        plain = ["slice", [encode_key(part) for part in (key.start, key.stop, key.step)]]
    elif kind.__module__ == "torch" and kind.__name__ in TORCH_LITERALS:
        plain = [kind.__name__, str(key).removeprefix("torch.")]
    elif isinstance(key, enum.Enum) and key.name is not None and locate(kind) is not None:
        plain = ["enum", *(locate(kind) or ()), key.name]
    elif (place := locate(key)) is not None:  # a class, a function or a module
        plain = ["name", *place]
    else:
        raise NoEntry(
            f"a key of class {kind.__qualname__}; such a key can be recognized only by identity"
        )
    return plain


def decode_key(plain: object) -> Any:
    """Return the key that `encode_key` wrote.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: the key does not exist here.
    """
    if not isinstance(plain, list):
        return plain
    kind, *rest = plain
    return DECODERS[kind](*rest)


DECODERS: Mapping[str, Callable[..., object]] = {
    "float": float,
    "complex": complex,
    "bytes": bytes.fromhex,
    "tuple": lambda parts: tuple(map(decode_key, parts)),
    "slice": lambda parts: slice(*map(decode_key, parts)),
    "dtype": torch_object,
    "layout": torch_object,
    "memory_format": torch_object,
    "device": device_named,
    "enum": lambda module, name, member: find_named(module, name)[member],
    "name": find_named,
}
"""Readers by kind of key."""


def show_key(plain: object) -> str:
    """Return an encoded key as readable text."""
    if not isinstance(plain, list):
        return repr(plain)
    kind, *rest = plain
    if kind in ("tuple", "slice"):
        return f"{kind}({', '.join(map(show_key, rest[0]))})"
    if kind == "bytes":
        return repr(bytes.fromhex(rest[0]))
    return ".".join(map(str, rest)) if kind in ("enum", "name") else str(rest[-1])


def expect(kind: str, found: object, value: object) -> Expected:
    """Return what a fact of this kind says about `found`; `value` has the fact's parameters."""
    return kind, READERS[kind](found, value)


RELATIONS = ("same", "distinct")
"""Kinds of facts about several rows. `same`: all rows refer to one object. `distinct`: each row
refers to a different object."""


def others_of(kind: str, value: Any) -> list[int]:
    """Return the rows that a relation compares with its own row."""
    return [value] if kind == "same" else list(value)


def _hooks(found: object, _: object) -> list[list[list[object]]]:
    # Private tables of the base class. Hook numbers grow over the whole process, so only their
    # order is compared.
    tables: list[list[list[object]]] = []
    for name, marks in HOOKS.items():
        numbers, marked = list(vars(found).get(name, ())), vars(found).get(marks, ())
        tables.append([[sorted(numbers).index(each), each in marked] for each in numbers])
    # The module has its own function instead of the method that runs its hooks.
    return [*tables, [[CALL, True]]] if CALL in vars(found) else tables


def _contains(found: Container[object], about: Sequence[object]) -> list[object]:
    key = decode_key(about[0])
    inside = dict.__contains__(found, key) if isinstance(found, dict) else key in found
    return [about[0], inside]


def _keys(found: Iterable[object], _: object) -> list[str]:
    return [literal(key) or identity(key) or name_of(type(key)) for key in found]


def _returns(found: Callable[..., object], about: Sequence[Any]) -> list[object]:
    args, kwargs, _ = about
    result = found(*map(decode_key, args), **{k: decode_key(v) for k, v in kwargs.items()})
    return [args, kwargs, literal(result)]


READERS: Mapping[str, Reader] = {
    "value": lambda found, _: literal(found),
    "type": lambda found, _: name_of_class(type(found)),
    "class": lambda found, _: name_of_class(found),  # as `type`, for objects of this class
    "attribute": lambda found, about: [about[0], hasattr(found, about[0])],
    "own": lambda found, about: [about[0], about[0] in getattr(found, "__dict__", {})],
    "contains": _contains,
    "keys": _keys,
    "length": lambda found, _: [name_of(type(found)), len(found)],
    "text": lambda found, _: str(found),
    "returned": lambda _, about: about,  # the object must exist; nothing else matters
    "hooks": _hooks,
    "tensor": lambda found, _: describe_tensor(found),
    "input": lambda found, _: describe_tensor(found),
    **dict.fromkeys(OF_PARTS, lambda found, _: describe_parts(found)),
    "is": lambda found, _: identity(found),
    "returns": _returns,
    "folded": _returns,
}


KINDS = {*READERS, *RELATIONS}


SHOWN = 120
"""Maximum length of a value in a reason, in characters."""


def _describe_change(kind: str, now: Any, was: Any) -> str:
    """Return text that compares the current value of a fact with its value at the build."""
    if kind in ("attribute", "own", "contains"):
        name = show_key(now[0])
        part = {"attribute": "attribute", "own": "instance attribute", "contains": "key"}[kind]
        return f"has {part} {name} now" if now[1] else f"no longer has the {part} {name}"
    if kind == "length":
        return f"is a {now[0]} of length {now[1]}, but was a {was[0]} of length {was[1]}"
    if kind in ("hooks", *OF_PARTS):
        return (_describe_hooks if kind == "hooks" else _describe_parts)(now, was)
    if kind == "keys":
        return f"has the keys {_short(', '.join(now))}, but had {_short(', '.join(was))}"
    if kind in ("returns", "folded"):
        return f"returns {_short(now[2])}, but returned {_short(was[2])}"
    return f"is {_short(now) or 'another object'}, but was {_short(was)}"


def _describe_hooks(now: Sequence[Sequence[object]], was: Sequence[Sequence[object]]) -> str:
    after, before = (sum(map(len, tables)) for tables in (now, was))
    moved = "has its hooks in a different order or place, or calls them differently"
    return moved if after == before else f"has {after} hooks, but had {before}"


def _describe_parts(now: Sequence[str], was: Sequence[str]) -> str:
    """Return a description of the first difference between the parts of two tensors."""
    after, before = [t for t in now if t not in was], [t for t in was if t not in now]
    found, known = (each[0] if each else "fewer parts" for each in (after, before))
    return f"has {_short(found)}, but had {_short(known)}"


def _short(value: object) -> str:
    return excerpt(str(value), SHOWN)
