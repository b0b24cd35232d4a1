# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Converts Dynamo's guards to facts during a build.

If a guard cannot become a fact, the entry is refused. But the kinds of guards in
`CHECKED_ELSEWHERE` are safe to drop, for the reasons given there. A guard of an unknown kind, for
example from a newer torch, cannot become a fact.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch.nn.modules import module as nn_module

from serve_warm._package import PACKAGE
from serve_warm._records import record
from serve_warm._redaction import excerpt
from serve_warm.precompile.facts.names import identity, literal, name_of, resolve
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.table import (
    CALLEE,
    Facts,
    Missing,
    Step,
    decode_key,
    encode_key,
    expect,
)
from serve_warm.precompile.trace.created_objects import may_change
from serve_warm.precompile.trace.dict_lookups import (
    LookedUp,
    Lookups,
    is_implied,
    only_looked_up,
    with_key,
)
from serve_warm.precompile.trace.guards import Guard
from serve_warm.precompile.trace.identities import (
    INSTEAD,
    find_on_paths,
    is_one_of_many,
    partition,
    refuse_bare_identity,
    relate_named,
    show_line,
)
from serve_warm.precompile.trace.torch_functions import TorchFunctions
from serve_warm.private_apis import module_names
from serve_warm.private_apis.dynamo import BUILTINS, path_of_module
from serve_warm.private_apis.nn_module import (
    BUFFERS,
    GLOBAL_HOOKS,
    MODULES,
    PARAMETERS,
    PATH_OF_HOOKS,
)

PROCESS = ""
"""Path of guards that are about a thread or the process, not about an object."""

TENSOR_ARGUMENT = r"(?:L\['(t\d+)'\]|(t\d+))"

CHECKED_ELSEWHERE = {
    "GRAD_MODE": (PROCESS, "checked at each call, with the state of the thread"),
    "DETERMINISTIC_ALGORITHMS": (PROCESS, "checked at each call, like all process state"),
    "GLOBAL_STATE": (PROCESS, "checked at each call, like all state of thread and process"),
    "TORCH_FUNCTION_STATE": (PROCESS, "checked at each call; calls in a torch mode use level 1"),
    "DEFAULT_DEVICE": (PROCESS, "a default device turns on a torch mode: such calls use level 1"),
    "FUNCTORCH_STACK_MATCH": (PROCESS, "checked at each call; in a transform, calls run eagerly"),
    "DUAL_LEVEL": (PROCESS, "checked at each call; in forward-mode AD, calls run eagerly"),
    "AUTOGRAD_SAVED_TENSORS_HOOKS": (PROCESS, "hooks for backward: entries run without gradients"),
    "SHAPE_ENV": (PROCESS, "stored as the entry's conditions, which are checked at each call"),
    "STORAGE_OVERLAPPING": (PROCESS, "checked at each call, if the graph writes to its inputs"),
    "DYNAMIC_INDICES": (TENSOR_ARGUMENT, "read by the compiler, not by compiled code"),
    "EMPTY_NN_MODULE_HOOKS_DICT": (
        PATH_OF_HOOKS,
        "forward hooks have separate facts; backward hooks do not run without gradients",
    ),
}
"""For each kind of guard that may be dropped: a pattern for the guard's path, and the reason."""

ARGUMENT = re.compile(f"{TENSOR_ARGUMENT}$")

CLASS_OF_ARGUMENT = re.compile(rf"type\({TENSOR_ARGUMENT}\)$")

OF_ARGUMENTS = {"TENSOR_MATCH", "TYPE_MATCH", "NOT_NONE_MATCH", "HASATTR"}
"""Guards that may be dropped if they are about an argument itself: the call's signature covers
them, and `conditions_of` covers a tensor's other attributes."""

VALUES = {
    *("CONSTANT_MATCH", "EQUALS_MATCH", "BOOL_MATCH", "NONE_MATCH"),
    "CONSTANT_SUBCLASS_MATCH",  # 2.13; a NumPy float, for example
    *("COUNT_ITERATOR_MATCH", "RANGE_ITERATOR_MATCH", "TUPLE_ITERATOR_LEN"),  # positions
    "LIST_REVERSEITERATOR_LEN",  # 2.15
}
"""Guards on a value that is built into the graph."""

IDENTITY = {
    *("ID_MATCH", "FUNCTION_MATCH", "CLASS_MATCH", "BUILTIN_MATCH", "CLOSURE_MATCH"),
    *("MODULE_MATCH", "WEAKREF_ALIVE"),
}
"""Guards on the identity of an object."""

OF_PARTS = "TENSOR_SUBCLASS_METADATA_MATCH"
"""Guard on the metadata of a tensor that contains other tensors."""

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
    OF_PARTS: "parts",
    "DUPLICATE_INPUT": "same",
    "SAME_OBJECT": "same",  # added by serve_warm: Dynamo omits it for a global and another name
    "REQUIRES_GRAD": "value",  # added by serve_warm: a forward read it from a weight
    "TEXT": "text",  # added by serve_warm: a forward used the text of an object
}
"""Maps each kind of guard to a kind of fact."""

OF_INLINED_MODULES = tuple(map(path_of_module, (f"{PACKAGE}.", module_names.POLYFILLS)))
"""Path prefixes of guards on globals of inlined code that is not part of the app."""

OPAQUE = {
    "allow_in_graph": "is marked allow_in_graph, so Dynamo does not trace it",
    "nonstrict_trace": "is marked nonstrict_trace, so Dynamo does not trace it",
}
"""Maps a function's mark to the reason for a refusal: no guard protects such a function."""


@record(kw_only=True)
class _Table:
    """A table of steps, which grows as paths need more steps."""

    roots: Mapping[str, tuple[str, str]]
    """Maps Dynamo's alias for a global object to the object's module and qualified name."""
    scopes: Mapping[str, str] = field(default_factory=dict)
    """Maps the alias of a dict of globals to the path of a function with these globals. Used for
    globals that belong to no module, such as those of a named tuple's methods."""
    looked_up: Mapping[str, LookedUp] = field(default_factory=dict)
    """Dicts by path. In these dicts, items are found by key; in all other dicts, by index."""
    keys: Sequence[object] = ()
    """`KEYS` of the current path."""
    steps: list[Step] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)

    def row(self, start: int, step: str, argument: object) -> int:
        key = repr((start, step, argument))
        if key not in self.rows:
            self.rows[key] = len(self.steps)
            self.steps.append((start, step, argument))
        return self.rows[key]

    def row_of(self, module: str, name: str = "") -> int:
        """Return the row of a module, or of the module's object with this qualified name."""
        row = self.row(-1, "root", module)
        for part in filter(None, name.split(".")):
            row = self.row(row, "attribute", part)
        return row

    def read(self, path: str, keys: Sequence[object]) -> int:
        """Return the row of an expression. The table is unchanged if this raises `NoEntry`."""
        before = len(self.steps)
        self.keys = keys
        try:
            return self.of(ast.parse(path, mode="eval").body)
        except (NoEntry, SyntaxError) as error:
            del self.steps[before:]
            self.rows = {key: row for key, row in self.rows.items() if row < before}
            raise NoEntry(str(error)) from error

    def of(self, node: ast.expr) -> int:
        """Return the row of an expression; add a row if the expression is new."""
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
            return self.row_of(*self.roots[key])
        if _is_list_of_keys(node.value):
            return self.row(self.of(node.value.args[0].args[0]), "nth_key", self._index(node.slice))  # type: ignore[attr-defined]
        return self._item(node.value, node.slice)

    def _item(self, container: ast.expr, key: ast.expr) -> int:
        """Return the row of an item in a container, found by its key or by the index of the key."""
        if isinstance(key, ast.Subscript) and _is_list_of_keys(key.value):
            of = ast.unparse(key.value.args[0].args[0])  # type: ignore[attr-defined]
            if of == ast.unparse(container):
                if of in self.looked_up:
                    name = self.looked_up[of].key(self._index(key.slice))
                    return self.row(self.of(container), "item", name)
                return self.row(self.of(container), "nth", self._index(key.slice))
        return self.row(self.of(container), "item", encode_key(self._key(key)))

    def _call(self, node: ast.Call) -> int:
        called, arguments = ast.unparse(node.func), node.args
        if called in ("type", "dict") and len(arguments) == 1:
            if CLASS_OF_ARGUMENT.match(ast.unparse(node)):
                return self.row_of("torch", "Tensor")  # a signature contains no other tensors
            return self.row(self.of(arguments[0]), called, None)
        if called in ATTRIBUTES and len(arguments) == 2:
            step, name = ATTRIBUTES[called], ast.literal_eval(arguments[1])
            return self.row(self.of(arguments[0]), step, name)
        if called == "__import__":
            return self.row_of(ast.literal_eval(arguments[0]))
        if called in ("dict.__getitem__", "list.__getitem__", "tuple.__getitem__"):
            return self._item(*arguments)
        if not arguments and not node.keywords:
            return self.row(self.of(node.func), "weakref", None)
        raise NoEntry(ast.unparse(node))

    def _key(self, node: ast.expr) -> object:
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


ATTRIBUTES = {"getattr": "attribute", "object.__getattribute__": "own"}
"""Maps each function that reads an attribute in a path to a kind of step."""


def _is_list_of_keys(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "list"
        and isinstance(node.args[0], ast.Call)
        and ast.unparse(node.args[0].func) == "dict.keys"
    )


def collect(
    guards: Sequence[Guard],
    callee: object,
    *,
    names: Mapping[str, tuple[str, str]],
    scopes: Mapping[str, int] | None = None,
    marked: Callable[[object], str] = lambda _: "",
    results: Sequence[
        tuple[Callable[..., object], Sequence[object], Mapping[str, object], object]
    ] = (),
    lookups: Mapping[str, Lookups] | None = None,
    returned: Mapping[str, Sequence[object]] | None = None,
    functions: TorchFunctions | None = None,
    globals_read: Mapping[tuple[str, str], object] | None = None,
) -> Facts:
    """Convert guards to facts with the same content.

    `names` has the module and qualified name of each object in the globals, by alias; `scopes` has
    the ids of dicts of globals. `marked` returns a key of `OPAQUE` if a mark keeps Dynamo from
    tracing a function. `results` has the calls whose result is in the graph: function, arguments,
    result. `lookups` says what was read from each dict, by path. `returned` has the paths of the
    objects that a plan reads, with the paths' keys. `functions` has the functions of torch that the
    trace ran or called. `globals_read` has unguarded values, by module and name. Each fact holds
    for `callee` now.

    Raises:
        NoEntry: a guard cannot become a fact, or a fact's value differs at each read.
    """
    owned = _owners(guards, scopes or {})
    looked_up = only_looked_up(guards, lookups or {})
    table = _Table(roots=names, scopes=owned, looked_up=looked_up)
    facts: dict[str, tuple[int, str, object]] = {}
    objects: dict[int, object] = {}
    typed: dict[int, object] = {}
    by_identity: dict[int, str] = {}
    for guard in _without_parts(guards):
        _refuse_changeable_members(guard.value)
        mark = marked(guard.value)
        if mark:
            raise NoEntry(f"{name_of(guard.value) or guard.path} {OPAQUE[mark]}")
        if _is_checked_elsewhere(guard) or _is_of_argument(guard) or is_implied(guard, looked_up):
            continue
        if guard.path.startswith(OF_INLINED_MODULES):
            continue  # serve_warm's code differs by release, and eager calls run no polyfill
        row, kind, value = _fact(with_key(guard, looked_up), table)
        if kind == "is" and not value:
            by_identity[row] = guard.where
        else:
            facts[repr((row, kind, value))] = (row, kind, value)
        if guard.kind in ("TYPE_MATCH", "ID_MATCH") and is_one_of_many(guard.value):
            objects[row] = guard.value
        if guard.kind == "TYPE_MATCH":
            typed[row] = guard.value
            _add_classes(table, row, guard.value)
    of_returned = [*_of_returned(table, callee, returned or {})]
    on_paths = find_on_paths(table.steps, callee)
    named = _of_named(table, callee, typed)
    found = [
        *facts.values(),
        *of_returned,
        *_of_modules(table, callee),
        *_of_lookups(table, callee),
        *_of_keys(table),
        *partition({**on_paths, **objects}),
        *named,
        *(_of_result(table, *call) for call in results),
        *_of_functions(table, functions or TorchFunctions()),
        *_of_globals(table, globals_read or {}),
    ]
    collected = Facts(steps=tuple(table.steps), facts=tuple(found))
    refuse_bare_identity(collected, by_identity, objects)
    _refuse_unsteady(collected, callee)
    return collected


def _owners(guards: Sequence[Guard], scopes: Mapping[str, int]) -> dict[str, str]:
    """Return, for each dict of globals, the path of a function that has these globals."""
    owners = {
        id(guard.value.__globals__): guard.path
        for guard in guards
        if isinstance(guard.value, types.FunctionType)
    }
    return {alias: owners[at] for alias, at in scopes.items() if at in owners}


def conditions_of(guards: Sequence[Guard]) -> list[str]:
    """Return guards on attributes of arguments, as Python source in which `L` has the arguments."""
    found = []
    for guard in guards:
        argument = ARGUMENT.match(guard.path)
        name = guard.argument
        if guard.kind == "HASATTR" and argument is not None and isinstance(name, str):
            there = "" if hasattr(guard.value, name) else "not "
            text = str.__repr__(name)  # the repr of an enumeration's member is no Python
            found.append(f"{there}hasattr(L['{argument[1] or argument[2]}'], {text})")
    return list(dict.fromkeys(found))


def _fact(guard: Guard, table: _Table) -> tuple[int, str, object]:
    if guard.kind not in FACTS:
        # A guard from a newer torch, or about an object that no entry takes, has no known meaning.
        raise NoEntry(f"{guard.path} has a guard of the unknown kind {guard.kind}")
    kind = FACTS[guard.kind]
    try:
        row = table.read(guard.path, guard.keys)
        if kind == "same":
            return row, kind, table.read(str(guard.argument), guard.keys)
        return (row, *_expect(guard))
    except (NoEntry, TypeError, AttributeError) as error:  # as `describe_parts` raises
        if kind == "same":
            # The graph has only one input for both arguments.
            text = f"{_show(guard.path)} and {guard.argument} are the same object"
            raise NoEntry(text) from error
        text = f"{_show(guard.path)}{show_line(guard.where)} has a guard of kind {guard.kind}"
        why = f"which no fact can express: {_show(str(error))}"
        raise NoEntry(f"{text}, {why}. {INSTEAD}") from error


def _refuse_changeable_members(value: object) -> None:
    """Raise `NoEntry` for an enumeration whose members have values that can change in place.

    Dynamo takes the values of members as constants, without a guard.
    """
    kind = value if isinstance(value, type) else type(value)
    if not issubclass(kind, enum.Enum):
        return
    for name, member in kind.__members__.items():
        if may_change(member.value):
            raise NoEntry(
                f"the member {kind.__qualname__}.{name} has a {type(member.value).__name__} as "
                "value that can change, or that holds one: use a tuple or a frozenset"
            )


def _show(text: str) -> str:
    return excerpt(text, 150)


def _expect(guard: Guard) -> tuple[str, object]:
    kind = FACTS[guard.kind]
    if kind == "value" and literal(guard.value) is None:
        if not identity(guard.value):
            raise NoEntry(f"a {type(guard.value).__name__}, not a plain value")
        kind = "is"
    if kind == "contains":
        return expect(kind, guard.value, [encode_key(guard.argument), None])
    if kind == "keys" and isinstance(guard.value, Iterable):
        for key in guard.value:
            if literal(key) is None and not identity(key):
                raise NoEntry(f"a {type(key).__name__} key can be recognized only by identity")
    return expect(kind, guard.value, [guard.argument, None])


def _of_result(
    table: _Table,
    fn: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    result: object,
) -> tuple[int, str, object]:
    """Return a fact that requires a function to return the same result as at the build."""
    place, said = _place(fn), literal(result)
    name = name_of(fn)
    if place is None or said is None:
        raise NoEntry(
            f"{name} is marked assume_constant_result, but no fact can express its result"
        )
    row = table.row_of(*place)
    try:
        call = [[encode_key(arg) for arg in args], {k: encode_key(v) for k, v in kwargs.items()}]
    except NoEntry as error:
        raise NoEntry(f"{name}, marked assume_constant_result, is called with {error}") from error
    return row, "returns", [*call, said]


def _of_functions(table: _Table, functions: TorchFunctions) -> Iterator[tuple[int, str, object]]:
    """Yield facts about the results of functions that ran in the trace, and about torch's names."""
    for place, call, said in functions.results.values():
        fact = ("folded", [*call, said])
        # A result that differs now was read inside a context of the forward, such as its autocast.
        if expect("folded", resolve(*place), fact[1]) == fact:
            yield (table.row_of(*place), *fact)
    for place, function in functions.called.items():
        if identity(function):
            yield (table.row_of(*place), *expect("is", function, None))


def _of_globals(
    table: _Table, values: Mapping[tuple[str, str], object]
) -> Iterator[tuple[int, str, object]]:
    for place, value in values.items():
        yield (table.row_of(*place), *expect("value", value, None))


def _of_returned(
    table: _Table, callee: object, returned: Mapping[str, Sequence[object]]
) -> Iterator[tuple[int, str, object]]:
    """Yield facts about the objects that a plan reads, which Dynamo reads without a guard.

    A plan holds plain values itself. It finds all other objects by their paths at each call.
    """
    for path, keys in returned.items():
        if re.match(TENSOR_ARGUMENT, path):
            continue
        row = table.read(path, keys)
        value = Facts(steps=tuple(table.steps)).objects(callee)[row]
        if isinstance(value, torch.Tensor):
            continue
        if literal(value) is not None and not isinstance(value, (list, dict, set)):
            yield (row, *expect("value", value, None))
        if not isinstance(value, SCALARS):
            yield (row, *expect("returned", value, None))


SCALARS = (bool, int, float, str, type(None))
"""Classes of values that a plan holds itself."""


def _place(fn: Callable[..., object]) -> tuple[str, str] | None:
    """Return the module and qualified name of a function or of its wrapper, such as `lru_cache`."""
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
    if CLASS_OF_ARGUMENT.match(guard.path) is not None:
        return guard.kind in IDENTITY
    if ARGUMENT.match(guard.path) is None:
        return False
    if guard.kind == "DUPLICATE_INPUT":
        return ARGUMENT.match(str(guard.argument)) is not None
    return guard.kind in OF_ARGUMENTS


def _without_parts(guards: Sequence[Guard]) -> list[Guard]:
    """Return the guards that are not covered by the facts about tensors with parts."""
    whole = {guard.path: guard.value for guard in guards if guard.kind == OF_PARTS}
    return [guard for guard in guards if not _is_of_parts(guard, whole)]


def _is_of_parts(guard: Guard, whole: Mapping[str, Any]) -> bool:
    """Return whether the fact about a tensor with parts already covers a guard."""
    path, _, name = guard.path.rpartition(".")
    if guard.kind == "TYPE_MATCH" and guard.path in whole:
        return True
    if path not in whole:
        return False
    if guard.kind == "EQUALS_MATCH":
        return name == "__tensor_flatten__()[0]"
    # A fact about a part would keep the part alive after its tensor is replaced.
    is_tensor = guard.kind in ("TENSOR_MATCH", OF_PARTS)
    return is_tensor and name in whole[path].__tensor_flatten__()[0]


def _add_classes(table: _Table, row: int, value: object) -> None:
    """Add rows for those classes of an object that only their identity distinguishes."""
    for number, kind in enumerate(type(value).__mro__):
        if is_one_of_many(kind):
            _row_of_class(table, row, number)


def _row_of_class(table: _Table, row: int, number: int) -> int:
    """Return the row of a class in the MRO of an object."""
    kind = table.row(row, "type", None)
    if number == 0:
        return kind
    return table.row(table.row(kind, "attribute", "__mro__"), "item", number)


def _of_named(
    table: _Table, callee: object, typed: Mapping[int, object]
) -> list[tuple[int, str, object]]:
    steps = tuple(table.steps)
    found = Facts(steps=steps).objects(callee)
    return relate_named(steps, found, typed, lambda row, n: _row_of_class(table, row, n))


def _of_modules(table: _Table, callee: object) -> list[tuple[int, str, object]]:
    """Return facts about the hooks of each module on a path, and about torch's global hooks.

    Dynamo does not guard a table of hooks if the table is empty.
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
        (table.row_of(nn_module.__name__, name), *expect("length", vars(nn_module)[name], None))
        for name in GLOBAL_HOOKS
    ]
    return [*facts, *of_all]


def _of_lookups(table: _Table, callee: object) -> list[tuple[int, str, object]]:
    """Return facts that record where attribute lookups ended.

    A path is valid only while its lookups end in the same places. In Dynamo's paths,
    `module.weight` is an item of the module's table of parameters, and a class attribute is an item
    of the base class that defines it. Dynamo does not guard the places that a lookup searches
    first. For example, the instance or a subclass can later get an attribute of the same name.
    """
    steps = tuple(table.steps)
    found = Facts(steps=steps).objects(callee)
    facts: list[tuple[int, str, object]] = []
    for row, (start, step, argument) in enumerate(steps):
        if step != "item" or start < 0:
            continue
        holder, how, place = steps[start]
        module, name = found[holder], decode_key(argument)
        if how == "dict":
            facts += _find_hidden(table, found, holder, argument)
        elif not isinstance(module, torch.nn.Module) or not isinstance(name, str):
            continue
        elif place == MODULES and getattr(module, name, None) is found[row]:
            facts.append((table.row(holder, "attribute", name), "same", row))
        elif place in (PARAMETERS, BUFFERS) and name not in vars(module):
            # Modules have many such items, and their classes hide none of them, so the cheaper fact
            # is enough.
            facts.append((holder, *expect("own", module, [name, None])))
    return facts


def _of_keys(table: _Table) -> Iterator[tuple[int, str, object]]:
    """Yield facts that say whether looked-up dict keys exist."""
    for path, of in table.looked_up.items():
        row = table.read(path, ())
        for key in {repr(key): key for key in of.keys}.values():
            yield (row, *expect("contains", of.value, [key, None]))


def _find_hidden(
    table: _Table, found: Sequence[Any], place: int, key: object
) -> Iterator[tuple[int, str, object]]:
    """Yield facts which say that no earlier class in the MRO defines a name."""
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


def _refuse_unsteady(collected: Facts, callee: object) -> None:
    """Raise `NoEntry` if a fact fails although nothing has changed since the fact was made."""
    objects = collected.objects(callee)
    for fact in collected.facts:
        why = collected.why_broken(fact, objects)
        if why:
            missing = isinstance(objects[fact[0]], Missing)
            how = "cannot be found again" if missing else "gives a new value at each read"
            raise NoEntry(f"{collected.path(fact[0])}, which {how}: {_show(why)}")
