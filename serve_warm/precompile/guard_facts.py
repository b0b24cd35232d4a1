# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""From Dynamo's guards to facts, at the build. A guard that cannot become a fact refuses the entry.

The exceptions are few and named: `CHECKED_ELSEWHERE` lists each kind that may go, with its reason.
A kind that is not known here, of a newer torch for example, refuses the entry too.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules import module as nn_module

from serve_warm._public_names import PACKAGE
from serve_warm._redaction import shorten
from serve_warm.precompile.facts import (
    CALLEE,
    UNREADABLE,
    Facts,
    Missing,
    NoEntry,
    Step,
    decode_key,
    encode_key,
    expect,
)
from serve_warm.precompile.names import identity, literal, name_of, resolve


@dataclass(frozen=True, kw_only=True)
class Guard:
    """One guard of Dynamo, while the objects it is about are there."""

    path: str
    """Python expression over `callee`, the tensors `t0`, `t1` and so on, `G`, the globals of
    compiled code, and `KEYS`, the keys below."""
    kind: str
    """Dynamo's name of it, for example CONSTANT_MATCH."""
    value: Any
    argument: Any = None
    """What the guard is about beside the value: an attribute's name, a key."""
    keys: Sequence[Any] = ()
    """Keys of dicts on the path that are no strings or whole numbers."""


PROCESS = ""
"""Path of a guard that is about thread or process, and about no object."""

TENSOR_ARGUMENT = r"(?:L\['(t\d+)'\]|(t\d+))"

CHECKED_ELSEWHERE = {
    "GRAD_MODE": (PROCESS, "checked at each call, with the state of the thread"),
    "DETERMINISTIC_ALGORITHMS": (PROCESS, "checked at each call, with the state of the process"),
    "GLOBAL_STATE": (PROCESS, "checked at each call, with the state of thread and process"),
    "TORCH_FUNCTION_STATE": (PROCESS, "checked at each call: a mode leaves it to torch.compile"),
    "DEFAULT_DEVICE": (PROCESS, "a default device is a mode, which leaves it to torch.compile"),
    "FUNCTORCH_STACK_MATCH": (PROCESS, "checked at each call: a transform leaves it to eager"),
    "DUAL_LEVEL": (PROCESS, "checked at each call: forward-mode gradients leave it to eager"),
    "AUTOGRAD_SAVED_TENSORS_HOOKS": (PROCESS, "hooks for backward: entries run without gradients"),
    "SHAPE_ENV": (PROCESS, "becomes the entry's conditions, which are checked at each call"),
    "STORAGE_OVERLAPPING": (PROCESS, "a graph that writes looks for overlaps at each call"),
    "DYNAMIC_INDICES": (TENSOR_ARGUMENT, "marks for the compiler, not for what it compiled"),
    "EMPTY_NN_MODULE_HOOKS_DICT": (
        r".*\b_(global_)?(forward|backward)(_pre)?_hooks\w*(['\]]*)",
        "hooks of forward are facts of their own; those of backward do not run without gradients",
    ),
}
"""What a guard of a kind must be about so that it may go, as a pattern of its path, and why."""

BUILTINS = "__builtins_dict__"
"""How the name begins that Dynamo gives the dict of built-ins in the globals (2.11 to 2.13)."""

ARGUMENT = re.compile(f"{TENSOR_ARGUMENT}$")

OF_ARGUMENTS = {"TENSOR_MATCH", "TYPE_MATCH", "NOT_NONE_MATCH", "HASATTR"}
"""Guards that may go where they are about an argument itself: the call's signature has it all, and
`conditions_of` what a tensor carries beside."""

VALUES = {
    *("CONSTANT_MATCH", "EQUALS_MATCH", "BOOL_MATCH", "NONE_MATCH"),
    "CONSTANT_SUBCLASS_MATCH",  # 2.13; a NumPy float, for example
    *("COUNT_ITERATOR_MATCH", "RANGE_ITERATOR_MATCH", "TUPLE_ITERATOR_LEN"),  # where it stands
    "LIST_REVERSEITERATOR_LEN",  # 2.15
}
"""Guards on a value that is built into the graph."""

IDENTITY = {
    *("ID_MATCH", "FUNCTION_MATCH", "CLASS_MATCH", "BUILTIN_MATCH", "CLOSURE_MATCH"),
    *("MODULE_MATCH", "WEAKREF_ALIVE"),
}
"""Guards on which object it is."""

FACTS = {
    **dict.fromkeys(VALUES, "value"),
    **dict.fromkeys(IDENTITY, "is"),
    **dict.fromkeys(("DICT_CONTAINS", "DICT_NOT_CONTAINS"), "contains"),
    **dict.fromkeys(("SET_CONTAINS", "SET_NOT_CONTAINS"), "contains"),
    **dict.fromkeys(("SEQUENCE_LENGTH", "LIST_LENGTH"), "length"),
    **dict.fromkeys(("DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK"), "keys"),
    "TYPE_MATCH": "type",
    "HASATTR": "attribute",
    "NOT_PRESENT_IN_GENERIC_DICT": "own",
    "TENSOR_MATCH": "tensor",
    "DUPLICATE_INPUT": "same",
    "REQUIRES_GRAD": "value",  # of ours: what a forward read of a weight
}
"""Kind of fact by the guard's."""

OF_PACKAGE_MODULES = f"G['__import_{PACKAGE}_dot_"
"""Prefix of guards on globals of serve_warm's modules, which Dynamo reads when it inlines them."""

OF_PYTHON = ("__dict__", "__closure__")
"""Attributes that belong to one object and to no other, whatever an application does."""

OPAQUE = {
    "allow_in_graph": "is called as it is, by allow_in_graph: Dynamo does not look into it",
    "nonstrict_trace": "is called as it is, by nonstrict_trace: Dynamo does not look into it",
}
"""What is said of functions that no guard protects, by how they are marked."""


@dataclass(kw_only=True)
class _Table:
    """Steps that are added as paths ask for them."""

    roots: Mapping[str, tuple[str, str]]
    """Module and qualified name by the alias that Dynamo gave an object in the globals."""
    scopes: Mapping[str, str] = field(default_factory=dict)
    """Path of a function whose globals stand under an alias: those of no module, of a named tuple's
    methods for example."""
    keys: Sequence[Any] = ()
    """`KEYS` of the path that is read."""
    steps: list[Step] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)

    def row(self, start: int, step: str, argument: Any) -> int:
        key = repr((start, step, argument))
        if key not in self.rows:
            self.rows[key] = len(self.steps)
            self.steps.append((start, step, argument))
        return self.rows[key]

    def named(self, module: str, name: str = "") -> int:
        """Return the row of a module, or of what it has under a qualified name."""
        row = self.row(-1, "root", module)
        for part in filter(None, name.split(".")):
            row = self.row(row, "attribute", part)
        return row

    def read(self, path: str, keys: Sequence[Any]) -> int:
        """Return the row of an expression; `NoEntry` leaves the table as it was."""
        before = len(self.steps)
        self.keys = keys
        try:
            return self.of(ast.parse(path, mode="eval").body)
        except (NoEntry, SyntaxError) as error:
            del self.steps[before:]
            self.rows = {key: row for key, row in self.rows.items() if row < before}
            raise NoEntry(str(error)) from error

    def of(self, node: ast.expr) -> int:
        """Return the row of an expression, and add it where there is none."""
        if isinstance(node, ast.Name) and node.id == CALLEE:
            return self.row(-1, "root", CALLEE)
        if isinstance(node, ast.Attribute):
            return self.row(self.of(node.value), "attribute", node.attr)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        raise NoEntry(ast.unparse(node))

    def _subscript(self, node: ast.Subscript) -> int:
        if ast.unparse(node) == f"L['{CALLEE}']":
            return self.row(-1, "root", CALLEE)
        if isinstance(node.value, ast.Name) and node.value.id == "G":
            key = ast.literal_eval(node.slice)
            if key.startswith(BUILTINS):
                return self.row(self.row(-1, "root", "builtins"), "attribute", "__dict__")
            if key in self.scopes:
                owner = self.of(ast.parse(self.scopes[key], mode="eval").body)
                return self.row(owner, "attribute", "__globals__")
            if key not in self.roots:
                raise NoEntry(f"the global {key!r}")
            return self.named(*self.roots[key])
        if _is_list_of_keys(node.value):
            return self.row(self.of(node.value.args[0].args[0]), "nth_key", self._index(node.slice))  # type: ignore[attr-defined]
        return self._item(node.value, node.slice)

    def _item(self, container: ast.expr, key: ast.expr) -> int:
        """Return the row of what a container has under a key, or under its key number n."""
        if isinstance(key, ast.Subscript) and _is_list_of_keys(key.value):
            of = key.value.args[0].args[0]  # type: ignore[attr-defined]
            if ast.unparse(of) == ast.unparse(container):
                return self.row(self.of(container), "nth", self._index(key.slice))
        return self.row(self.of(container), "item", encode_key(self._key(key)))

    def _call(self, node: ast.Call) -> int:
        called, arguments = ast.unparse(node.func), node.args
        if called in ("type", "dict") and len(arguments) == 1:
            return self.row(self.of(arguments[0]), called, None)
        if called == "getattr" and len(arguments) == 2:
            return self.row(self.of(arguments[0]), "attribute", ast.literal_eval(arguments[1]))
        if called == "object.__getattribute__":
            return self.row(self.of(arguments[0]), "own", ast.literal_eval(arguments[1]))
        if called == "__import__":
            return self.named(ast.literal_eval(arguments[0]))
        if called in ("dict.__getitem__", "list.__getitem__", "tuple.__getitem__"):
            return self._item(*arguments)
        if not arguments and not node.keywords:
            return self.row(self.of(node.func), "weakref", None)
        raise NoEntry(ast.unparse(node))

    def _key(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "KEYS":
            return self.keys[ast.literal_eval(node.slice)]
        if isinstance(node, ast.Slice):
            ends = (node.lower, node.upper, node.step)
            return slice(*(None if end is None else ast.literal_eval(end) for end in ends))
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError) as error:
            raise NoEntry(ast.unparse(node)) from error

    def _index(self, node: ast.expr) -> int:
        return int(ast.literal_eval(node))


def _is_list_of_keys(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "list"
        and isinstance(node.args[0], ast.Call)
        and ast.unparse(node.args[0].func) == "dict.keys"
    )


def collect(
    guards: Sequence[Guard],
    callee: Any,
    *,
    names: Mapping[str, tuple[str, str]],
    scopes: Mapping[str, int] | None = None,
    marked: Callable[[Any], str] = lambda _: "",
    results: Sequence[tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any], Any]] = (),
) -> Facts:
    """Return the facts that stand behind guards.

    `names` has module and qualified name of what stands in their globals under an alias, `scopes`
    the ids of the dicts there.
    `marked` says how a function is marked, where that takes it out of Dynamo's sight: a key of
    `OPAQUE`. `results` are calls whose result is in the graph: function, arguments, what it
    returned. Each fact holds for `callee` now.

    Raises:
        NoEntry: a guard cannot be expressed as a fact, or is one that reads differently each time.
    """
    owners = {
        id(guard.value.__globals__): guard.path
        for guard in guards
        if isinstance(guard.value, types.FunctionType)
    }
    owned = {alias: owners[at] for alias, at in (scopes or {}).items() if at in owners}
    table = _Table(roots=names, scopes=owned)
    facts: dict[str, tuple[int, str, Any]] = {}
    objects: dict[int, Any] = {}
    by_identity: set[int] = set()
    for guard in guards:
        if guard.kind == "DUPLICATE_INPUT" and _is_one_of_its_kind(guard.value):
            continue  # a class or a module: what stands under each name has a fact of its own
        mark = marked(guard.value)
        if mark:
            raise NoEntry(f"{name_of(guard.value) or guard.path} {OPAQUE[mark]}")
        if _is_checked_elsewhere(guard) or _is_of_argument(guard):
            continue
        if guard.path.startswith(OF_PACKAGE_MODULES):
            continue  # artifacts outlive the modules of one release
        row, kind, value = _fact(guard, table)
        if kind == "is" and not value:
            by_identity.add(row)
        else:
            facts[repr((row, kind, value))] = (row, kind, value)
        if guard.kind in ("TYPE_MATCH", "ID_MATCH") and _is_one_of_many(guard.value):
            objects[row] = guard.value
    on_paths = _on_paths(table, callee)
    found = [
        *facts.values(),
        *_of_modules(table, callee),
        *_of_lookups(table, callee),
        *_partition({**on_paths, **objects}),
        *(_of_result(table, *call) for call in results),
    ]
    collected = Facts(steps=tuple(table.steps), facts=tuple(found))
    _refuse_bare_identity(collected, by_identity, objects)
    _refuse_unsteady(collected, callee)
    return collected


def conditions_of(guards: Sequence[Guard]) -> list[str]:
    """Return what guards say of attributes of the arguments, in Python over `L`, the tensors."""
    found = []
    for guard in guards:
        argument = ARGUMENT.match(guard.path)
        if guard.kind == "HASATTR" and argument is not None:
            there = "" if hasattr(guard.value, guard.argument) else "not "
            found.append(f"{there}hasattr(L['{argument[1] or argument[2]}'], {guard.argument!r})")
    return list(dict.fromkeys(found))


def _fact(guard: Guard, table: _Table) -> tuple[int, str, Any]:
    if guard.kind not in FACTS:
        # Of a later torch, or of what no entry takes: what it protects is not known here.
        raise NoEntry(f"{guard.path} has a guard of kind {guard.kind}, which is not known")
    kind = FACTS[guard.kind]
    try:
        row = table.read(guard.path, guard.keys)
        if kind == "same":
            return row, kind, table.read(str(guard.argument), guard.keys)
        return (row, *_expect(guard))
    except NoEntry as error:
        if kind == "same":
            # The graph has one input for the two.
            text = f"{_show(guard.path)} and {guard.argument} are one and the same object"
            raise NoEntry(text) from error
        text = f"{_show(guard.path)} has a guard of kind {guard.kind}, and no fact can say it"
        raise NoEntry(f"{text}: {_show(str(error))}") from error


def _show(text: str) -> str:
    return shorten(text, 150)


def _expect(guard: Guard) -> tuple[str, Any]:
    kind = FACTS[guard.kind]
    if kind == "value" and literal(guard.value) is None:
        if not identity(guard.value):
            raise NoEntry(f"a {type(guard.value).__name__}, not a plain value")
        kind = "is"
    if kind == "contains":
        return expect(kind, guard.value, [encode_key(guard.argument), None])
    if kind == "keys":
        for key in guard.value:
            if literal(key) is None and not identity(key):
                raise NoEntry(f"a {type(key).__name__} is a key, which is told by its identity")
    return expect(kind, guard.value, [guard.argument, None])


def _of_result(
    table: _Table,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: Any,
) -> tuple[int, str, Any]:
    """Return the fact that a function returns for these arguments what it returned at the build."""
    place, said = _place(fn), literal(result)
    name = name_of(fn)
    if place is None or said is None:
        raise NoEntry(f"{name} gave its result at the build, by assume_constant_result")
    row = table.named(*place)
    try:
        call = [[encode_key(arg) for arg in args], {k: encode_key(v) for k, v in kwargs.items()}]
    except NoEntry as error:
        raise NoEntry(f"{name}, marked assume_constant_result, is called with {error}") from error
    return row, "returns", [*call, said]


def _place(fn: Any) -> tuple[str, str] | None:
    """Return where a function is found, or what wraps it there: `functools.lru_cache` does."""
    module, name = getattr(fn, "__module__", ""), getattr(fn, "__qualname__", "")
    try:
        found = resolve(module, name)
    except (ImportError, AttributeError, ValueError):
        return None
    return (module, name) if inspect.unwrap(found) is inspect.unwrap(fn) else None


def _is_checked_elsewhere(guard: Guard) -> bool:
    path, _ = CHECKED_ELSEWHERE.get(guard.kind, (None, ""))
    return path is not None and re.fullmatch(path, guard.path) is not None


def _is_of_argument(guard: Guard) -> bool:
    if ARGUMENT.match(guard.path) is None:
        return False
    if guard.kind == "DUPLICATE_INPUT":
        return ARGUMENT.match(str(guard.argument)) is not None
    return guard.kind in OF_ARGUMENTS


# Which objects are one ------------------------------------------------------------------------


def _is_one_of_its_kind(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) and not _is_one_of_many(value)


def _is_one_of_many(value: Any) -> bool:
    """Whether there may be another object like this one, which a forward can tell from it."""
    if isinstance(value, (list, dict, set)):
        return True
    if isinstance(value, (torch.Tensor, type, types.ModuleType)):
        return False
    return literal(value) is None and not identity(value)


def _on_paths(table: _Table, callee: Any) -> dict[int, Any]:
    """Return what paths lead through, guarded or not, that could be one with something else."""
    found = Facts(steps=tuple(table.steps)).objects(callee)
    return {
        row: value
        for row, value in enumerate(found)
        if table.steps[row][1] != "dict"
        and table.steps[row][2] not in OF_PYTHON
        and not isinstance(value, Missing)
        and _is_one_of_many(value)
    }


def _partition(objects: Mapping[int, Any]) -> list[tuple[int, str, Any]]:
    """Say which of these rows are one object, and that the others are not.

    Dynamo guards neither where two objects are compared and differ, nor where a list that it
    follows under one name could be the one under another.
    """
    first: dict[int, int] = {}
    facts: list[tuple[int, str, Any]] = []
    for row, value in objects.items():
        before = first.setdefault(id(value), row)
        if before != row:
            facts.append((row, "same", before))
    start, *others = first.values() or (0,)
    return [*facts, (start, "distinct", others)] if others else facts


def _refuse_bare_identity(
    collected: Facts, by_identity: set[int], objects: Mapping[int, Any]
) -> None:
    """Raise `NoEntry` for an object that is guarded by identity alone.

    A plain sentinel may be: which others it is, and is not, is a fact. An object of a class in C
    may stand in the graph with all that it is, as a regular expression does.
    """
    for row in by_identity:
        if len(objects) < 2 or row not in objects or not _is_of_python(type(objects[row])):
            kind = type(objects[row]).__name__ if row in objects else "object"
            raise NoEntry(f"{collected.path(row)} is a {kind}, told from others by its identity")


def _is_of_python(kind: type) -> bool:
    """Return whether a class is `object`, or made by a `class` statement."""
    return kind is object or bool({"__dict__", "__slots__"} & vars(kind).keys())


def _of_modules(table: _Table, callee: Any) -> list[tuple[int, str, Any]]:
    """Return facts on the hooks of each module on a path, and of all modules.

    Dynamo does not guard empty tables.
    """
    found = Facts(steps=tuple(table.steps)).objects(callee)
    facts = [
        (row, *expect("hooks", module, None))
        for row, module in enumerate(found)
        if isinstance(module, torch.nn.Module)
    ]
    if not facts:
        return []
    of_all = [
        (table.named(nn_module.__name__, name), *expect("length", vars(nn_module)[name], None))
        for name in ("_global_forward_pre_hooks", "_global_forward_hooks")
    ]
    return [*facts, *of_all]


def _of_lookups(table: _Table, callee: Any) -> list[tuple[int, str, Any]]:
    """Return facts on lookups of attributes, where a path begins with what they came to.

    `module.weight` is in Dynamo's paths what the module's table of parameters has under that name,
    and an attribute of a class is in the base that has it: what would be found before is not
    guarded, as the same name in the instance or in a subclass.
    """
    steps = tuple(table.steps)
    found = Facts(steps=steps).objects(callee)
    facts: list[tuple[int, str, Any]] = []
    for row, (start, step, argument) in enumerate(steps):
        if step != "item" or start < 0:
            continue
        holder, how, place = steps[start]
        module, name = found[holder], decode_key(argument)
        if how == "dict":
            facts += _find_hidden(table, found, holder, argument)
        elif not isinstance(module, torch.nn.Module) or not isinstance(name, str):
            continue
        elif place == "_modules" and getattr(module, name, None) is found[row]:
            facts.append((table.row(holder, "attribute", name), "same", row))
        elif place in ("_parameters", "_buffers") and name not in vars(module):
            # There are many, and no class of modules hides one: this is the cheaper half.
            facts.append((holder, *expect("own", module, [name, None])))
    return facts


def _find_hidden(
    table: _Table, found: Sequence[Any], place: int, key: Any
) -> Iterator[tuple[int, str, Any]]:
    """Yield the facts that no class before this one in an order of classes has a name."""
    base, step, name = table.steps[place]
    if (step, name) != ("attribute", "__dict__") or table.steps[base][1] != "item":
        return
    order, _, number = table.steps[base]
    if table.steps[order][1:] != ("attribute", "__mro__"):
        return
    for before in range(decode_key(number)):
        one = table.row(order, "item", encode_key(before))
        names = table.row(table.row(one, "attribute", "__dict__"), "dict", None)
        fact = expect("contains", dict(vars(found[order][before])), [key, None])
        yield (names, *fact)


def _refuse_unsteady(collected: Facts, callee: Any) -> None:
    """Raise `NoEntry` where a fact does not hold although nothing has happened since."""
    objects = collected.objects(callee)
    for fact in collected.facts:
        try:
            why = collected.why_broken(fact, objects)
        except UNREADABLE as error:  # pragma: no cover  (why_broken reads under the same guard)
            why = str(error)
        if why:
            missing = isinstance(objects[fact[0]], Missing)
            how = "cannot be found again" if missing else "reads differently each time"
            raise NoEntry(f"{collected.path(fact[0])}, which {how}: {_show(why)}")
