# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What compiled code took for granted about the objects it was compiled from, as data.

Dynamo protects that by guards, which it evaluates at each call and which cannot be written to a
file for real models (closures, decorators and identities do not pickle). A fact is the same
statement in a form that can: a path from the compiled callable or from a Python module to an
object, and what is expected there. Facts are checked once per start, not per call.

A path is kept as a table of steps, each one from an earlier row, so that what thousands of facts
have in common (`callee._modules['encoder']...`) is walked once.
"""

from __future__ import annotations

import ast
import contextlib
import enum
import functools
import hashlib
import importlib
import inspect
import operator
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CALLEE = "callee"
"""The name that the compiled callable has in paths."""

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)

SUBCLASSED = (int, float, complex, str, bytes)
"""Plain kinds that are still plain when they are subclassed."""

Step = tuple[int, str, Any]
"""Row of the object that it starts from, what is done with it, and with which argument."""

Expected = tuple[str, Any]
"""What a fact says of an object: a kind, and a value that JSON can hold."""


Free = tuple[Sequence[int], Sequence[int]]
"""Dimensions of a tensor whose size, and whose stride, compiled code takes as they come."""


class NoEntry(Exception):
    """A call cannot have an entry, or has none; the text is the reason, for a report."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """One guard of Dynamo, while the objects it is about are there."""

    path: str
    """Python expression over `callee` and `G`, the globals of compiled code."""
    kind: str
    """Dynamo's name of it, for example CONSTANT_MATCH."""
    value: Any
    argument: Any = None
    """What the guard is about beside the value: an attribute's name, a key."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about one callable. Immutable; as JSON they are two lists."""

    steps: tuple[Step, ...] = ()
    facts: tuple[tuple[int, str, Any], ...] = ()
    """Row, kind and value of what is expected at that row."""

    def to_json(self) -> dict[str, Any]:
        """Return plain lists."""
        return {"steps": [list(s) for s in self.steps], "facts": [list(f) for f in self.facts]}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Facts:
        """Read what `to_json` wrote.

        Raises:
            ValueError, TypeError, LookupError: it is something else.
        """
        steps = tuple((int(s[0]), str(s[1]), s[2]) for s in plain["steps"])
        found = tuple((int(f[0]), str(f[1]), f[2]) for f in plain["facts"])
        if any(step[0] >= row for row, step in enumerate(steps)):
            raise ValueError("a step starts from one that comes later")
        if any(row not in range(len(steps)) for row, _, _ in found):
            raise ValueError("a fact is about a row that is not there")
        return cls(steps=steps, facts=found)

    def broken(self, callee: Any) -> str:
        """Return the first fact that does not hold for `callee`, in words; empty if all hold."""
        objects = self._objects(callee)
        for row, kind, value in self.facts:
            found = objects[row]
            if isinstance(found, _Missing):
                return f"{self.path(row)} is gone ({found.why})"
            if kind == "same":
                if found is not objects[value]:
                    return f"{self.path(row)} is no longer the same as {self.path(value)}"
                continue
            try:
                now = expected(kind, found, value)
            except UNREADABLE as error:
                return f"{self.path(row)} is a {_name(type(found))}: {error}"
            if now != (kind, value):
                return f"{self.path(row)} is {_shown(now)}, and was {_shown((kind, value))}"
        return ""

    def path(self, row: int) -> str:
        """Return the expression of a row, for people."""
        start, step, argument = self.steps[row]
        if step == "root":
            return str(argument)
        base = self.path(start)
        if step == "attribute":
            return f"{base}.{argument}"
        if step == "item":
            return f"{base}[{argument!r}]"
        if step == "own":
            return f"object.__getattribute__({base}, {argument!r})"
        return f"{step}({base})"

    def _objects(self, callee: Any) -> list[Any]:
        objects: list[Any] = []
        for start, step, argument in self.steps:
            if step == "root":
                objects.append(callee if argument == CALLEE else _module(argument))
                continue
            base = objects[start]
            objects.append(base if isinstance(base, _Missing) else _taken(base, step, argument))
        return objects


UNREADABLE = (AttributeError, LookupError, TypeError, ValueError, RuntimeError)
"""What looking at an object raises that is another one than at the build: an empty cell is a
ValueError, and the code of a property may raise what it likes."""


@dataclass(frozen=True)
class _Missing:
    why: str


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, *UNREADABLE) as error:
        return _Missing(str(error))


TAKE: Mapping[str, Callable[[Any, Any], Any]] = {
    "attribute": getattr,
    # Past what a class defines in its place, as Dynamo does when it traces that.
    "own": object.__getattribute__,
    "item": operator.getitem,
    "nth": lambda base, argument: list(dict.values(base))[argument],
    "keys": lambda base, _: list(base),
    "type": lambda base, _: type(base),
    "dict": lambda base, _: dict(base),
}
"""Steps of a path, beside those that begin one."""


def _taken(base: Any, step: str, argument: Any) -> Any:
    try:
        return TAKE[step](base, argument)
    except UNREADABLE as error:
        return _Missing(f"{type(error).__name__}: {error}"[:200])


# From guards to facts -------------------------------------------------------------------------

# What is not a fact about an object of the application: state of thread and process, which the
# dispatcher checks at each call; tensors, which it knows by signature or by the module tree; and
# bookkeeping of Python's that no start changes.
NOT_FACTS = {
    *("GRAD_MODE", "DETERMINISTIC_ALGORITHMS", "GLOBAL_STATE", "TORCH_FUNCTION_STATE"),
    *("AUTOGRAD_SAVED_TENSORS_HOOKS", "DEFAULT_DEVICE", "SHAPE_ENV", "FSDP_TRAINING_STATE"),
    *("EMPTY_NN_MODULE_HOOKS_DICT", "STORAGE_OVERLAPPING"),
    *("NN_MODULE", "DICT_VERSION", "DYNAMIC_INDICES", "FUNCTORCH_STACK_MATCH"),
}

VALUES = {
    *("CONSTANT_MATCH", "EQUALS_MATCH", "BOOL_MATCH", "NONE_MATCH", "DUAL_LEVEL"),
    "CONSTANT_SUBCLASS_MATCH",  # 2.13; a NumPy float, for example
    *("COUNT_ITERATOR_MATCH", "RANGE_ITERATOR_MATCH", "TUPLE_ITERATOR_LEN"),  # where it stands
    "LIST_REVERSEITERATOR_LEN",  # 2.15
}
"""Guards on a value that is built into the graph. One that cannot be a fact stops the entry."""

IDENTITY = {
    *("ID_MATCH", "FUNCTION_MATCH", "CLASS_MATCH", "BUILTIN_MATCH", "CLOSURE_MATCH"),
    *("MODULE_MATCH", "NOT_NONE_MATCH", "WEAKREF_ALIVE"),
}
"""Guards on which object it is."""


@dataclass(kw_only=True)
class _Table:
    roots: Mapping[str, str]
    """Module by the alias that Dynamo gave it in the globals."""
    steps: list[Step] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)

    def row(self, start: int, step: str, argument: Any) -> int:
        key = repr((start, step, argument))
        if key not in self.rows:
            self.rows[key] = len(self.steps)
            self.steps.append((start, step, argument))
        return self.rows[key]

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
        key = _constant(node.slice)
        if ast.unparse(node) == f"L['{CALLEE}']":
            return self.row(-1, "root", CALLEE)
        if isinstance(node.value, ast.Name) and node.value.id == "G":
            if key not in self.roots:
                raise NoEntry(f"the global {key!r}")
            return self.row(-1, "root", self.roots[key])
        return self.row(self.of(node.value), "item", key)

    def _call(self, node: ast.Call) -> int:
        called, arguments = ast.unparse(node.func), node.args
        if called in ("type", "dict") and len(arguments) == 1:
            return self.row(self.of(arguments[0]), called, None)
        if called == "object.__getattribute__":
            return self.row(self.of(arguments[0]), "own", _constant(arguments[1]))
        if called == "dict.__getitem__" and not isinstance(arguments[1], ast.Constant):
            return self._nth(*arguments)
        if called in ("dict.__getitem__", "list.__getitem__", "tuple.__getitem__"):
            return self.row(self.of(arguments[0]), "item", _constant(arguments[1]))
        if called == "list" and ast.unparse(arguments[0]).startswith("dict.keys("):
            inner = arguments[0]
            if isinstance(inner, ast.Call):
                return self.row(self.of(inner.args[0]), "keys", None)
        raise NoEntry(ast.unparse(node))

    def _nth(self, mapping: ast.expr, key: ast.expr) -> int:
        """Return the row of what a dictionary has under its own key number n."""
        keys = f"list(dict.keys({ast.unparse(mapping)}))"
        if isinstance(key, ast.Subscript) and ast.unparse(key.value) == keys:
            return self.row(self.of(mapping), "nth", _constant(key.slice))
        raise NoEntry(ast.unparse(key))


def _constant(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int)):
        return node.value
    raise NoEntry(ast.unparse(node))


def collect(guards: Sequence[Guard], callee: Any, *, modules: Mapping[str, str]) -> Facts:
    """Return the facts that stand behind guards; `modules` names the aliases in their globals.

    Each of them holds for `callee` now: what cannot be walked, or reads differently a second time,
    is no fact. Guards on values that are built into the graph may not be lost that way.

    Raises:
        NoEntry: a guard on a value cannot be expressed.
    """
    table = _Table(roots=modules)
    facts: dict[tuple[int, str, str], tuple[int, str, Any]] = {}
    for guard in guards:
        if guard.kind in NOT_FACTS or "_registration_hooks" in guard.path:
            continue
        found = _fact(guard, table)
        if found is not None:
            facts[found[0], found[1], repr(found[2])] = found
    collected = Facts(steps=tuple(table.steps), facts=tuple(facts.values()))
    objects = collected._objects(callee)  # noqa: SLF001 - of its own class
    kept = []
    for row, kind, value in collected.facts:
        found = objects[row]
        if kind == "same":
            if found is not objects[value]:
                raise NoEntry(f"{collected.path(row)} and {collected.path(value)} are one tensor")
            kept.append((row, kind, value))
        elif not isinstance(found, _Missing) and expected(kind, found, value) == (kind, value):
            kept.append((row, kind, value))
        elif kind == "value":
            raise NoEntry(f"{collected.path(row)}, which reads differently each time")
    return Facts(steps=collected.steps, facts=tuple(kept))


def _fact(guard: Guard, table: _Table) -> tuple[int, str, Any] | None:
    if guard.kind not in KNOWN:
        # Of a later torch, or of what no entry takes: what it protects is not known here.
        raise NoEntry(f"{guard.path} has a guard of kind {guard.kind}, which is not known")
    before = len(table.steps)
    try:
        row = table.of(ast.parse(guard.path, mode="eval").body)
        if guard.kind == "DUPLICATE_INPUT":
            return row, "same", table.of(ast.parse(str(guard.argument), mode="eval").body)
    except (NoEntry, SyntaxError) as error:
        del table.steps[before:]
        table.rows = {key: row for key, row in table.rows.items() if row < before}
        if guard.kind == "DUPLICATE_INPUT" and hasattr(type(guard.value), "untyped_storage"):
            # The graph has one input for the two; of classes and modules the identity is no fact.
            text = f"{guard.path} and {guard.argument} are one and the same object"
            raise NoEntry(text) from error
        if guard.kind in VALUES:
            text = f"{guard.path}: the compiled code depends on its value, and no file can say so"
            raise NoEntry(text) from error
        return None
    kind, value = _expected_of(guard)
    if kind:
        return row, kind, value
    if guard.kind in VALUES:
        raise NoEntry(f"{guard.path} is a {type(guard.value).__name__}, not a plain value")
    return None


def _expected_of(guard: Guard) -> Expected:
    kind = KINDS.get(guard.kind, "is")
    if kind == "value" and literal(guard.value) is None:
        return _identity(guard.value)
    if kind == "contains" and not isinstance(guard.argument, (str, int)):
        return "", None
    return expected(kind, guard.value, [guard.argument, None])


KINDS = {
    **dict.fromkeys(VALUES, "value"),
    **dict.fromkeys(("DICT_CONTAINS", "DICT_NOT_CONTAINS"), "contains"),
    **dict.fromkeys(("SET_CONTAINS", "SET_NOT_CONTAINS"), "contains"),
    **dict.fromkeys(("SEQUENCE_LENGTH", "LIST_LENGTH"), "length"),
    "TYPE_MATCH": "type",
    "HASATTR": "attribute",
    "NOT_PRESENT_IN_GENERIC_DICT": "own",
    **dict.fromkeys(("DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK"), "keys"),
    "TENSOR_MATCH": "tensor",
}
"""Kind of fact by Dynamo's name of the guard. Those of `IDENTITY` are about identity."""

KNOWN = {*KINDS, *IDENTITY, "DUPLICATE_INPUT"}


def expected(kind: str, found: Any, value: Any) -> Expected:
    """Return what a fact of this kind says of `found`; `value` names what it is about."""
    return (kind, READERS[kind](found, value)) if kind in READERS else _identity(found)


READERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "value": lambda found, _: literal(found),
    "type": lambda found, _: name_of_class(type(found)),
    "attribute": lambda found, about: [about[0], hasattr(found, about[0])],
    "own": lambda found, about: [about[0], about[0] in getattr(found, "__dict__", {})],
    "contains": lambda found, about: [about[0], about[0] in found],
    "keys": lambda found, _: [literal(key) or _name(type(key)) for key in found],
    "length": lambda found, _: len(found),
    "tensor": lambda found, _: describe_tensor(found),
}


def _identity(found: Any) -> Expected:
    """Name what is one of its kind in a program: a class, a function, a module, an enum member."""
    if isinstance(found, types.CodeType):
        return "is", f"{found.co_name} {_digest(found)}"
    if inspect.ismodule(found):
        return "is", found.__name__
    if isinstance(found, functools.partial):
        return "is", f"partial of {_identity(found.func)[1]}"
    if isinstance(found, (type, enum.Enum)):
        return "is", literal(found) if isinstance(found, enum.Enum) else name_of_class(found)
    if callable(getattr(found, "__call__", None)):  # noqa: B004
        name, codes = _name(found), _codes(found)
        if codes and not _is_own(found):
            name += f" {_digest_of(codes)}"  # two lambdas of one class have one name
        return ("is", name) if name else ("", None)
    return "", None


def name_of_class(kind: type) -> str:
    """Return the name of a class, with a digest of its functions where they are not torch's.

    Sources are compared as well; this sees what was put in place of a method, or two classes of
    one name.
    """
    functions = [
        (name, value)
        for base in kind.__mro__[:-1]
        if base.__module__ != "torch.nn.modules.module"
        for name, value in vars(base).items()
        if isinstance(value, FUNCTIONS) and not (_is_own(base) and _is_own(value))
    ]
    if not functions:
        return _name(kind)
    key = tuple((name, id(value)) for name, value in functions)
    known = _class_digests.get(kind)
    if known is None or known[0] != key:
        codes = [code for _, value in functions for code in _codes(value)]
        known = _class_digests[kind] = (key, _digest_of(codes))
    return f"{_name(kind)} {known[1]}"


FUNCTIONS = (types.FunctionType, property, staticmethod, classmethod)

_class_digests: weakref.WeakKeyDictionary[type, tuple[Any, str]] = weakref.WeakKeyDictionary()


def _is_own(found: Any) -> bool:
    """Return whether it is torch's or Python's, whose versions are in the fingerprint."""
    if isinstance(found, property):
        found = found.fget
    top = str(getattr(found, "__module__", "")).partition(".")[0]
    return top == "torch" or (top in sys.stdlib_module_names and top != "__main__")


def _codes(found: Any) -> list[types.CodeType]:
    """Return the code of a function, of what it wraps and of the functions it closes over."""
    codes: list[types.CodeType] = []
    queue: list[Any] = [found]
    seen: set[int] = set()
    while queue:
        value = queue.pop()
        if id(value) in seen or len(seen) > 32:
            continue
        seen.add(id(value))
        if isinstance(value, property):
            queue += [value.fget, value.fset]
        elif isinstance(value, (staticmethod, classmethod, types.MethodType)):
            queue.append(value.__func__)
        elif isinstance(value, types.FunctionType) and not _is_own(value):
            codes.append(value.__code__)
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty cell
                    queue.append(cell.cell_contents)
    return codes


def _digest_of(codes: Sequence[types.CodeType]) -> str:
    return hashlib.sha256("".join(map(_digest, codes)).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=4096)
def _digest(code: types.CodeType) -> str:
    """Digest what a code object does; not where it stands."""
    constants = [
        _digest(value) if isinstance(value, types.CodeType) else literal(value)
        for value in code.co_consts
    ]
    text = repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _name(found: Any) -> str:
    module = getattr(found, "__module__", None)
    name = getattr(found, "__qualname__", None) or getattr(found, "__name__", None)
    return f"{module}.{name}" if isinstance(name, str) else ""


TORCH_LITERALS = ("dtype", "device", "layout", "memory_format")


def literal(value: Any) -> str | None:
    """Return a text that is equal for equal plain values, and `None` for what is not plain."""
    kind = type(value)
    text: str | None = None
    if kind in PLAIN:
        text = f"{kind.__name__} {value!r}"
    elif isinstance(value, type):
        text = f"class {name_of_class(value)}"
    elif isinstance(value, types.FunctionType) and _is_own(value):
        text = f"function {_name(value)}"
    elif isinstance(value, enum.Enum):
        # The value as well: members of an IntEnum are numbers to compiled code. Flags in one have
        # no name before 3.11.
        text = f"{_name(kind)} {value.name} {literal(value.value)}"
    elif isinstance(value, SUBCLASSED):
        base = next(base for base in SUBCLASSED if isinstance(value, base))
        text = f"{name_of_class(kind)} {base.__repr__(value)}"
    elif kind.__module__ == "torch" and kind.__name__ in TORCH_LITERALS:
        text = f"torch.{kind.__name__} {value!s}"
    elif isinstance(value, (tuple, list, set, frozenset)):
        items = [literal(item) for item in value]
        ordered = sorted(map(str, items)) if isinstance(value, (set, frozenset)) else items
        text = None if None in items else f"{_name(kind)} ({', '.join(map(str, ordered))})"
    elif kind is dict:
        pairs = [(literal(key), literal(item)) for key, item in value.items()]
        plain = all(None not in pair for pair in pairs)
        text = f"dict {{{', '.join(f'{k}: {v}' for k, v in pairs)}}}" if plain else None
    return text


def describe_tensor(tensor: Any, *, free: Free = ((), ())) -> str:
    """Return what compiled code depends on of a tensor; `free` dimensions are left open."""
    sizes = ["*" if i in free[0] else str(size) for i, size in enumerate(tensor.shape)]
    strides = ["*" if i in free[1] else str(stride) for i, stride in enumerate(tensor.stride())]
    return (
        f"{type(tensor).__name__} {str(tensor.dtype).removeprefix('torch.')}"
        f"[{', '.join(sizes)}] strides [{', '.join(strides)}] on {tensor.device}"
        f"{' with grad' if tensor.requires_grad else ''}"
    )


def _shown(said: Expected) -> str:
    kind, value = said
    text = f"{value}" if kind in ("value", "type", "is", "tensor") else f"{kind} {value}"
    return text if len(text) < 120 else f"{text[:117]}..."


def source_file(module: str) -> str:
    """Return the file that a module was loaded from, empty where there is none."""
    loaded = sys.modules.get(module)
    return str(getattr(loaded, "__file__", "") or "")


def where(value: Any) -> tuple[str, str] | None:
    """Return module and qualified name that `resolve` finds `value` under, or `None`."""
    if inspect.ismodule(value):
        return value.__name__, ""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    try:
        return (module, name) if resolve(module, name) is value else None
    except (ImportError, AttributeError):
        return None


def resolve(module: str, name: str) -> Any:
    """Return the object of this qualified name; the module itself where it is empty.

    Raises:
        ImportError: there is no such module.
        AttributeError: it has nothing of that name.
    """
    found: Any = importlib.import_module(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found
