# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Facts: what compiled code takes for granted about the objects it was compiled from, as data.

Dynamo protects that by guards, which it evaluates at each call. Guards cannot be written to a file
for real models: closures, decorators and identities do not pickle. A fact is the same statement in
a form that can: a path from the compiled callable or from a Python module to an object, and what
is expected there. `serve_warm.precompile.guard_facts` makes facts of guards at the build;
`serve_warm.precompile.module_changes` notices when one may no longer hold.

A path is a table of steps, each one from an earlier row, so that what thousands of facts have in
common (`callee._modules['encoder']...`) is walked once.
"""

from __future__ import annotations

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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serve_warm._redaction import shorten

CALLEE = "callee"
"""The name that the compiled callable has in paths."""

PACKAGE = "serve_warm"
"""This package. Facts name its objects without their module and without a digest, so that artifacts
survive a move. `RULES` is raised when its code changes what it does to a graph."""

RULES = 2
"""Version of the rules by which guards become facts. Entries say which one made them; those of
another version are not run. Version 1 dropped guards that it could not express."""

ENTRIES_FORMAT = "entries_format"
"""Name of the manifest fact that says by which rules an artifact's entries were made."""

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)

SUBCLASSED = (int, float, complex, str, bytes)
"""Plain kinds that are still plain when they are subclassed."""

Step = tuple[int, str, Any]
"""Row of the object that it starts from, what is done with it, and with which argument. The
argument of `item` is a key as `encode_key` writes it."""

Expected = tuple[str, Any]
"""What a fact says of an object: a kind, and a value that JSON can hold."""


Free = tuple[Sequence[int], Sequence[int]]
"""Dimensions of a tensor whose size, and whose stride, compiled code takes as they come."""


class NoEntry(Exception):
    """A call cannot have an entry, or has none; the text is the reason, for a report."""


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
        rows = range(len(steps))
        if any(start not in range(-1, row) for row, (start, _, _) in enumerate(steps)):
            raise ValueError("a step does not start from an earlier one")
        if any(row not in rows for row, _, _ in found):
            raise ValueError("a fact is about a row that does not exist")
        if any(step not in STEPS for _, step, _ in steps):
            raise ValueError("a step of an unknown kind")
        for _, kind, value in found:
            if kind not in KINDS:
                raise ValueError(f"a fact of an unknown kind: {kind}")
            if kind in RELATIONS and any(other not in rows for other in others_of(kind, value)):
                raise ValueError("a fact compares with a row that does not exist")
        return cls(steps=steps, facts=found)

    def broken(self, callee: Any) -> str:
        """Return the first fact that does not hold for `callee`, in words; empty if all hold."""
        objects = self.objects(callee)
        for fact in self.facts:
            why = self.why_broken(fact, objects)
            if why:
                return why
        return ""

    def why_broken(
        self, fact: tuple[int, str, Any], objects: Sequence[Any] | Mapping[int, Any]
    ) -> str:
        """Return in words why a fact does not hold for the objects of its rows, or nothing."""
        row, kind, value = fact
        found = objects[row]
        if isinstance(found, Missing):
            return f"{self.path(row)} is gone ({found.why})"
        if kind in RELATIONS:
            return self._why_unrelated(row, kind, value, objects)
        try:
            now = expected(kind, found, value)
        except UNREADABLE as error:
            return f"{self.path(row)} is a {name_of(type(found))}: {error}"
        if now != (kind, value):
            return f"{self.path(row)} {_changed(kind, now[1], value)}"
        return ""

    def _why_unrelated(
        self, row: int, kind: str, value: Any, objects: Sequence[Any] | Mapping[int, Any]
    ) -> str:
        if kind == "same":
            same = objects[row] is objects[value]
            return "" if same else f"{self.path(row)} is no longer the same as {self.path(value)}"
        first: dict[int, int] = {}
        for other in (row, *value):
            before = first.setdefault(id(objects[other]), other)
            if before != other:
                return f"{self.path(other)} is now the same as {self.path(before)}"
        return ""

    def path(self, row: int) -> str:
        """Return the expression of a row, for people."""
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

    def objects(self, callee: Any) -> list[Any]:
        """Return the object of each row; a `Missing` where a path leads nowhere."""
        objects: list[Any] = []
        for start, step, argument in self.steps:
            if step == "root":
                objects.append(callee if argument == CALLEE else module(argument))
                continue
            base = objects[start]
            objects.append(base if isinstance(base, Missing) else take(base, step, argument))
        return objects

    def with_inputs(self, callee: Any, given: Collection[int]) -> Facts:
        """Return the same facts with those about tensors of the graph, by their ids, marked so.

        The graph looks at its own inputs at each call, so nothing else has to.
        """
        objects = self.objects(callee)
        marked = tuple(
            (row, "input" if kind == "tensor" and id(objects[row]) in given else kind, value)
            for row, kind, value in self.facts
        )
        return Facts(steps=self.steps, facts=marked)


UNREADABLE = (AttributeError, LookupError, TypeError, ValueError, RuntimeError)
"""What looking at an object raises that is another one than at the build: an empty cell is a
ValueError, and the code of a property may raise what it likes."""


@dataclass(frozen=True)
class Missing:
    """In place of an object that a path does not lead to."""

    why: str


def module(name: str) -> Any:
    """Return the Python module of this name, or `Missing`."""
    try:
        return importlib.import_module(name)
    except (ImportError, *UNREADABLE) as error:
        return Missing(str(error))


def take(base: Any, step: str, argument: Any) -> Any:
    """Return where a step leads from `base`, or `Missing`."""
    try:
        return TAKE[step](base, argument)
    except UNREADABLE as error:
        return Missing(f"{type(error).__name__}: {error}"[:200])


def item(base: Any, key: Any) -> Any:
    """Return an item as Dynamo takes it: of a dict without what a subclass does for a missing key.

    Raises:
        LookupError, TypeError: there is none.
    """
    if isinstance(base, dict):
        if not dict.__contains__(base, key):
            raise KeyError(key)
        return dict.__getitem__(base, key)
    return operator.getitem(base, key)


def _referent(base: Any, _: Any) -> Any:
    # Called: a weak reference runs no code of the user's.
    if type(base) is not weakref.ref:
        raise TypeError("not a weak reference")
    return base()


TAKE: Mapping[str, Callable[[Any, Any], Any]] = {
    "attribute": getattr,
    # Past what a class defines in its place, as Dynamo does when it traces that.
    "own": object.__getattribute__,
    "item": lambda base, argument: item(base, decode_key(argument)),
    "nth": lambda base, argument: list(dict.values(base))[argument],
    "nth_key": lambda base, argument: list(dict.keys(base))[argument],
    "type": lambda base, _: type(base),
    # A copy of a dict in Dynamo's path; what is taken of it is the dict's own.
    "dict": lambda base, _: base,
    "weakref": _referent,
}

STEPS = {"root", *TAKE}


# Keys -----------------------------------------------------------------------------------------


def encode_key(key: Any) -> Any:
    """Return a key of a dict, or an index, in a form that JSON can hold and `decode_key` reads.

    Raises:
        NoEntry: only its identity tells it from others.
    """
    kind = type(key)
    if kind in (str, int, bool, type(None)):
        return key
    if kind in (float, complex):
        plain: list[Any] = [kind.__name__, repr(key)]
    elif kind is bytes:
        plain = ["bytes", key.hex()]
    elif kind is tuple:
        plain = ["tuple", [encode_key(part) for part in key]]
    elif kind is slice:
        plain = ["slice", [encode_key(part) for part in (key.start, key.stop, key.step)]]
    elif kind.__module__ == "torch" and kind.__name__ in TORCH_LITERALS:
        plain = [kind.__name__, str(key).removeprefix("torch.")]
    elif isinstance(key, enum.Enum) and key.name is not None and where(kind) is not None:
        plain = ["enum", *(where(kind) or ()), key.name]
    elif (place := where(key)) is not None:  # a class, a function or a module
        plain = ["name", *place]
    else:
        raise NoEntry(f"a {kind.__qualname__} as a key, which only its identity tells from others")
    return plain


def decode_key(plain: Any) -> Any:
    """Return the key that `encode_key` wrote.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: there is no such key here.
    """
    if not isinstance(plain, list):
        return plain
    kind, *rest = plain
    return DECODERS[kind](*rest)


def resolved(module: str, name: str) -> Any:
    """Return the object of this qualified name.

    Raises:
        AttributeError: there is none.
    """
    try:
        return resolve(module, name)
    except ImportError as error:
        raise AttributeError(str(error)) from error


def _of_torch(name: str) -> Any:
    # Not imported: a fact about one of its values is only looked at where it is.
    return getattr(sys.modules["torch"], name)


def _device(text: str) -> Any:
    return _of_torch("device")(text)


DECODERS: Mapping[str, Callable[..., Any]] = {
    "float": float,
    "complex": complex,
    "bytes": bytes.fromhex,
    "tuple": lambda parts: tuple(map(decode_key, parts)),
    "slice": lambda parts: slice(*map(decode_key, parts)),
    "dtype": _of_torch,
    "layout": _of_torch,
    "memory_format": _of_torch,
    "device": _device,
    "enum": lambda module, name, member: resolved(module, name)[member],
    "name": resolved,
}
"""How each kind of key is read."""


def show_key(plain: Any) -> str:
    """Return an encoded key for people."""
    if not isinstance(plain, list):
        return repr(plain)
    kind, *rest = plain
    if kind in ("tuple", "slice"):
        return f"{kind}({', '.join(map(show_key, rest[0]))})"
    if kind == "bytes":
        return repr(bytes.fromhex(rest[0]))
    return ".".join(map(str, rest)) if kind in ("enum", "name") else str(rest[-1])


# What is expected -----------------------------------------------------------------------------


def expected(kind: str, found: Any, value: Any) -> Expected:
    """Return what a fact of this kind says of `found`; `value` names what it is about."""
    return kind, READERS[kind](found, value)


RELATIONS = ("same", "distinct")
"""Kinds of facts about several rows: one object, or as many as there are rows."""


def others_of(kind: str, value: Any) -> list[int]:
    """Return the other rows that a relation is about."""
    return [value] if kind == "same" else list(value)


HOOKS = {
    "_forward_pre_hooks": "_forward_pre_hooks_with_kwargs",
    "_forward_hooks": "_forward_hooks_with_kwargs",
}
"""Tables of a module whose functions run around its forward, and of those that get keywords."""


def _hooks(found: Any, _: Any) -> list[list[list[Any]]]:
    # Of the base class, private as they are to those who do not subclass it. Numbers grow with each
    # hook of the process: what tells one order from another is which one is the larger.
    tables = []
    for name, marks in HOOKS.items():
        numbers, marked = list(vars(found).get(name, ())), vars(found).get(marks, ())
        tables.append([[sorted(numbers).index(each), each in marked] for each in numbers])
    return tables


def _contains(found: Any, about: Any) -> list[Any]:
    key = decode_key(about[0])
    inside = dict.__contains__(found, key) if isinstance(found, dict) else key in found
    return [about[0], inside]


def _keys(found: Any, _: Any) -> list[str]:
    return [literal(key) or identity(key) or name_of(type(key)) for key in found]


def _returns(found: Any, about: Any) -> list[Any]:
    args, kwargs, _ = about
    result = found(*map(decode_key, args), **{k: decode_key(v) for k, v in kwargs.items()})
    return [args, kwargs, literal(result)]


READERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "value": lambda found, _: literal(found),
    "type": lambda found, _: name_of_class(type(found)),
    "attribute": lambda found, about: [about[0], hasattr(found, about[0])],
    "own": lambda found, about: [about[0], about[0] in getattr(found, "__dict__", {})],
    "contains": _contains,
    "keys": _keys,
    "length": lambda found, _: [name_of(type(found)), len(found)],
    "hooks": _hooks,
    "tensor": lambda found, _: describe_tensor(found),
    "input": lambda found, _: describe_tensor(found),
    "is": lambda found, _: identity(found),
    "returns": _returns,
}

KINDS = {*READERS, *RELATIONS}


def identity(found: Any) -> str:
    """Name what is one of its kind in a program: a class, a function, a module, an enum member.

    Empty for anything else.
    """
    if isinstance(found, types.CodeType):
        return f"{found.co_name} {_digest(found)}"
    if inspect.ismodule(found):
        return found.__name__
    if isinstance(found, functools.partial):
        # What it binds has guards of its own.
        of = identity(found.func)
        return f"partial of {of}" if of else ""
    if isinstance(found, (enum.Enum, type)):
        named = literal(found) if isinstance(found, enum.Enum) else name_of_class(found)
        return named or ""
    name = name_of(found) if callable(getattr(found, "__call__", None)) else ""  # noqa: B004
    if name and not is_own(found) and (codes := codes_of(found)):
        name += f" {_digest_of(codes)}"  # two lambdas of one class have one name
    return name


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
        if isinstance(value, FUNCTIONS) and not (is_own(base) and is_own(value))
    ]
    if not functions:
        return name_of(kind)
    # By weak references: another function may get the id of one that is gone.
    key = tuple(
        (name, weakref.ref(function), function.__code__)
        for name, value in functions
        for function in under(value)
    )
    known = _class_digests.get(kind)
    if known is None or known[0] != key:
        codes = [code for _, value in functions for code in codes_of(value)]
        known = _class_digests[kind] = (key, _digest_of(codes))
    return f"{name_of(kind)} {known[1]}"


FUNCTIONS = (types.FunctionType, property, staticmethod, classmethod)

_class_digests: weakref.WeakKeyDictionary[type, tuple[Any, str]] = weakref.WeakKeyDictionary()


def under(found: Any) -> list[types.FunctionType]:
    """Return the functions in what stands in a class: a method, or what wraps one."""
    if isinstance(found, property):
        parts = [found.fget, found.fset]
    elif isinstance(found, (staticmethod, classmethod)):
        parts = [found.__func__]
    else:
        parts = [found]
    return [part for part in parts if isinstance(part, types.FunctionType)]


def is_own(found: Any) -> bool:
    """Return whether it belongs to torch or Python, as the fingerprint tells, or to serve_warm.

    Of a function both its module and its globals have to be: `functools.wraps` gives code of the
    user's the module of what it wraps, and a decorator of torch's gets the user's.
    """
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, (staticmethod, classmethod, types.MethodType)):
        found = found.__func__
    if not is_own_module(getattr(found, "__module__", None)):
        return False
    space = getattr(found, "__globals__", None)
    if not isinstance(space, dict):
        return True
    # What is made by exec, a dataclass' methods for example, has no module's globals.
    return "__file__" not in space or is_own_module(space.get("__name__"))


def is_own_module(name: Any) -> bool:
    """Return whether a module of that name is torch's, Python's or serve_warm's own."""
    top = str(name or "").partition(".")[0]
    return top in ("torch", PACKAGE) or (top in sys.stdlib_module_names and top != "__main__")


def codes_of(found: Any) -> list[types.CodeType]:
    """Return the code of a function, of what it wraps and of the functions it closes over."""
    return [function.__code__ for function in functions_of(found)]


def functions_of(found: Any) -> list[types.FunctionType]:
    """Return a function, those that it wraps and those that it closes over; none of torch's."""
    functions: list[types.FunctionType] = []
    queue: list[Any] = [found]
    seen: set[int] = set()
    while queue:
        value = queue.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, property):
            queue += [value.fget, value.fset]
        elif isinstance(value, (staticmethod, classmethod, types.MethodType)):
            queue.append(value.__func__)
        elif isinstance(value, types.FunctionType) and not is_own(value):
            functions.append(value)
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty cell
                    queue.append(cell.cell_contents)
    return functions


def _digest_of(codes: Sequence[types.CodeType]) -> str:
    return hashlib.sha256("".join(map(_digest, codes)).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=4096)
def _digest(code: types.CodeType) -> str:
    """Digest what a code object does and how it is called; not where it stands."""
    constants = [
        _digest(value) if isinstance(value, types.CodeType) else literal(value)
        for value in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars)
    called = (code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    handlers = getattr(code, "co_exceptiontable", b"")  # from Python 3.11 on
    text = repr((code.co_code, handlers, names, called, constants))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def name_of(found: Any) -> str:
    """Return module and qualified name; empty where there are none.

    >>> name_of(Facts.path)
    'serve_warm.Facts.path'
    """
    module = getattr(found, "__module__", None)
    name = getattr(found, "__qualname__", None) or getattr(found, "__name__", None)
    if not isinstance(name, str):
        return ""
    if str(module).partition(".")[0] == PACKAGE:
        module, name = PACKAGE, name.rpartition("<locals>.")[2]
    return f"{module}.{name}"


TORCH_LITERALS = ("dtype", "device", "layout", "memory_format")


def literal(value: Any) -> str | None:
    """Return a text that is equal for equal plain values, and `None` for what is not plain."""
    kind = type(value)
    text: str | None = None
    if kind in PLAIN:
        text = f"{kind.__name__} {value!r}"
    elif isinstance(value, type):
        text = f"class {name_of_class(value)}"
    elif isinstance(value, types.FunctionType) and is_own(value):
        text = f"function {name_of(value)}"
    elif isinstance(value, enum.Enum):
        # The value as well: members of an IntEnum are numbers to compiled code. Flags in one have
        # no name before 3.11.
        text = f"{name_of(kind)} {value.name} {literal(value.value)}"
    elif isinstance(value, SUBCLASSED):
        base = next(base for base in SUBCLASSED if isinstance(value, base))
        text = f"{name_of_class(kind)} {base.__repr__(value)}"
    elif kind.__module__ == "torch" and kind.__name__ in TORCH_LITERALS:
        text = f"torch.{kind.__name__} {value!s}"
    elif isinstance(value, (tuple, list, set, frozenset)):
        items = [literal(each) for each in value]
        ordered = sorted(map(str, items)) if isinstance(value, (set, frozenset)) else items
        text = None if None in items else f"{name_of(kind)} ({', '.join(map(str, ordered))})"
    elif kind is dict:
        pairs = [(literal(key), literal(each)) for key, each in value.items()]
        plain = all(None not in pair for pair in pairs)
        text = f"dict {{{', '.join(f'{k}: {v}' for k, v in pairs)}}}" if plain else None
    return text


def describe_tensor(tensor: Any, *, free: Free = ((), ())) -> str:
    """Return what compiled code depends on of a tensor; `free` dimensions are left open.

    Whether it requires grad is not in it: entries are for calls without gradients. Where a forward
    reads `requires_grad` that is a fact of its own.
    """
    sizes = ["*" if i in free[0] else str(size) for i, size in enumerate(tensor.shape)]
    strides = ["*" if i in free[1] else str(stride) for i, stride in enumerate(tensor.stride())]
    return (
        f"{type(tensor).__name__} {str(tensor.dtype).removeprefix('torch.')}"
        f"[{', '.join(sizes)}] strides [{', '.join(strides)}] on {tensor.device}"
    )


SHOWN = 120
"""Characters of a value in a reason."""


def _changed(kind: str, now: Any, was: Any) -> str:
    """Return in words what a fact of this kind says now, and what it said at the build."""
    if kind in ("attribute", "own", "contains"):
        name = show_key(now[0])
        verb = {"attribute": "attribute", "own": "attribute of its own", "contains": "key"}[kind]
        return f"has {verb} {name} now" if now[1] else f"has no {verb} {name} any more"
    if kind == "length":
        return f"is a {now[0]} of {now[1]}, and was a {was[0]} of {was[1]}"
    if kind == "hooks":
        after, before = (sum(map(len, tables)) for tables in (now, was))
        moved = "has its hooks in another order or place, or called in another way"
        return moved if after == before else f"has {after} hooks, and had {before}"
    if kind == "keys":
        return f"has the keys {_short(', '.join(now))}, and had {_short(', '.join(was))}"
    if kind == "returns":
        return f"returns {_short(now[2])}, and returned {_short(was[2])}"
    return f"is {_short(now)}, and was {_short(was)}"


def _short(value: Any) -> str:
    return shorten(str(value), SHOWN)


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
