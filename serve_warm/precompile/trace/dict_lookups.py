# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Dicts in which a trace only looks up keys.

Facts about such a dict contain the keys, not the index of each key in the dict.

If some keys of a dict are not plain constants, or the dict is an instance of a dict subclass,
Dynamo guards the number and order of all keys. A registry, such as the one in transformers, grows
with each class that a process uses, in any order. But if a trace only looked up keys, the trace
depends only on the values under these keys.
"""

from __future__ import annotations

import ast
import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from serve_warm._records import record
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.table import UNREADABLE, decode_key, encode_key
from serve_warm.private_apis import cpython, dynamo, module_names
from serve_warm.private_apis.patches import Change

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from serve_warm.precompile.trace.guards import Guard
    from serve_warm.private_apis.dynamo_objects import (
        Args,
        CallMethod,
        ChainedSource,
        Kwargs,
        MakeKey,
        ModelOfDict,
        ObjectSource,
        Translator,
        Variable,
        WriteCode,
    )


@dataclass
class Lookups:
    """What a trace read from one dict."""

    keys: list[object] = field(default_factory=list)
    """Keys that were looked up, found or not."""
    is_read_otherwise: bool = False
    """Whether the trace also read something else: the number of keys, the order of keys, or a key
    that is not a constant."""


LOOKS_UP = (
    "__contains__",
    "getitem_const_raise_exception_if_absent",
    "getitem_const",
    "maybe_getitem_const",
)
"""Methods of Dynamo's dicts that look up one key. The only parameters of these methods are Dynamo's
translator and the key (2.13)."""

FINDS_NUMBER = "realize_key_vt"
"""Method that guards one key found by `__contains__`. This method needs the index of the key
(2.13)."""

MAKES = "__init__"
"""Method that makes Dynamo's dict. It copies the items in 2.15, which is no read by the trace."""

MISSING = object()


def noting_lookups(
    found: dict[str, Lookups], path_of: Callable[[ObjectSource, list[object]], str]
) -> Iterator[Change]:
    """Record, in `found`, what a trace reads from each dict.

    `found` maps a dict's path to what was read from the dict. A read of a dict's items by methods
    other than `LOOKS_UP` counts as a read of the whole dict. Bytecode that gets an item by the
    index of the item's key also counts as a read of the whole dict. `path_of` returns the path of a
    Dynamo source. If a key on this path has no usable repr, `path_of` adds the key to its second
    argument.
    """

    def note(source: ObjectSource | None) -> Lookups:
        if source is None:  # the trace has made this dict
            return Lookups()
        keys: list[object] = []
        lookups = found.setdefault(path_of(source, keys), Lookups())
        lookups.is_read_otherwise |= bool(keys)  # other dicts can have the same path
        return lookups

    def noting_numbers(write_code: WriteCode) -> WriteCode:
        def reconstruct(source: ChainedSource, codegen: object) -> None:
            note(source.base).is_read_otherwise = True
            write_code(source, codegen)

        return reconstruct

    # Nothing is replaced yet, so this is the code of torch's own methods.
    own = vars(dynamo.dict_class())
    look_up = {own[name].__code__ for name in (*LOOKS_UP, FINDS_NUMBER, MAKES) if name in own}
    yield Change("ConstDictKeySource.reconstruct", noting_numbers)
    yield from _guarding_unions()
    yield from _guarding_new_keys()
    yield Change("ConstDictVariable.items", lambda _: _noting_reads(look_up, note))
    for name in LOOKS_UP:
        yield Change(f"ConstDictVariable.{name}", lambda original: _noting_key(original, note))


def _noting_reads(
    allowed: Collection[CodeType], note: Callable[[ObjectSource | None], Lookups]
) -> property:
    """Return a replacement for the attribute `items` of Dynamo's dicts.

    The replacement records reads by code that is not in `allowed`, and makes Dynamo guard the
    dict's keys for such reads.
    """

    def read(variable: ModelOfDict) -> object:
        own, frame = vars(variable), cpython.calling_frame(1)
        if frame.f_code not in allowed:
            source = own.get("source")
            note(source).is_read_otherwise = True
            if source is not None and not _is_bookkeeping(frame):
                # Dynamo guards the keys in some of these methods only (2.11 to 2.15).
                variable.install_dict_keys_match_guard()
        try:
            return own["items"]
        except KeyError:
            raise AttributeError("items") from None

    def write(variable: ModelOfDict, value: object) -> None:
        vars(variable)["items"] = value

    return property(read, write)


def _guarding_unions() -> Iterator[Change]:
    """Make Dynamo guard the keys of dicts that it unites (2.11 does not)."""

    def guarding(call: CallMethod) -> CallMethod:
        def call_method(
            self: Variable, tx: Translator, name: str, args: Args, kwargs: Kwargs
        ) -> Variable:
            for each in (self, *args) if name in UNIONS else ():
                found = each.realize()
                if dynamo.is_dict(found) and found.source is not None:
                    found.install_dict_keys_match_guard()
            return call(self, tx, name, args, kwargs)

        return call_method

    yield Change("ConstDictVariable.call_method", guarding)


UNIONS = ("__or__", "__ror__", "__ior__")
"""Methods that unite two dicts."""


def _guarding_new_keys() -> Iterator[Change]:
    """Make Dynamo guard objects that a trace uses as keys of its own dicts and sets.

    Dynamo takes the hash of such an object without a guard on the object. The keys of existing
    dicts and sets are left out, because facts about these containers cover them.
    """

    def guarding(make: MakeKey) -> MakeKey:
        def make_key(self: object, vt: Variable) -> None:
            if dynamo.is_unread(vt) and type(vt.source).__name__ not in KEYS_OF_CONTAINERS:
                vt = vt.realize()
            make(self, vt)

        return make_key

    yield Change("HashableTracker.__init__", guarding)


KEYS_OF_CONTAINERS = ("ConstDictKeySource", "NonSerializableSetGetItemSource", "SetGetItemSource")
"""Dynamo's sources of the keys of existing dicts and sets."""

BOOKKEEPING = (
    *("__init__", "clone", "debug_repr", "has_new_items", "is_new_item", "visit"),
    *("reconstruct", "reconstruct_kvs_into_new_dict", "call_method", "is_hashable"),
    *("install_dict_contains_guard", "__contains__", "is_python_constant"),
    *("setitem", "delitem", "getitem", "contains", "getitem_or_default"),
)
"""Methods of Dynamo's dicts whose reads do not affect the graph. `call_method` guards the keys
itself, except in methods that look up one key (2.13)."""

WRITES_CODE = (module_names.SIDE_EFFECTS, module_names.CODEGEN, module_names.OUTPUT_GRAPH)
"""Modules that read dicts to write code, and to keep track of changes."""


def _is_bookkeeping(frame: FrameType) -> bool:
    """Return whether a frame reads a dict without an effect on the graph."""
    module = str(frame.f_globals.get("__name__"))
    if module in (module_names.DICT_VARIABLES, module_names.VARIABLES):
        return frame.f_code.co_name in BOOKKEEPING
    return module in WRITES_CODE or not module.startswith(f"{module_names.DYNAMO}.")


def _noting_key(
    original: Callable[..., object], note: Callable[[ObjectSource | None], Lookups]
) -> Callable[..., object]:
    """Return a lookup method that calls `original` and records the last argument, the key."""

    def look_up(self: ModelOfDict, *args: Any) -> object:
        key = args[-1]
        try:
            value = key.as_python_constant() if key.is_python_constant() else MISSING
        except (AttributeError, NotImplementedError):
            value = MISSING  # the facts about this dict then cover all its keys
        note(self.source).keys.append(value)
        return original(self, *args)

    return look_up


@record(frozen=True, kw_only=True)
class LookedUp:
    """A dict in which a trace only looked up keys."""

    value: dict[object, object]
    keys: Sequence[object]
    """All keys that were looked up, in the form of `encode_key`."""

    def key(self, number: int) -> object:
        """Return the encoded key (`encode_key`) that had this index during the build."""
        return encode_key(list(dict.keys(self.value))[number])


def only_looked_up(guards: Sequence[Guard], found: Mapping[str, Lookups]) -> dict[str, LookedUp]:
    """Return, by path, the dicts whose facts should contain keys instead of indexes of keys.

    The result leaves out a dict if a key can be recognized only by identity, or if a guard reads a
    part of a key, such as an attribute.
    """
    values = {
        guard.path: guard.value
        for guard in guards
        if guard.path in found and isinstance(guard.value, dict)
    }
    read = {id(value) for path, value in values.items() if found[path].is_read_otherwise}
    paths = {guard.path for guard in guards}
    text = "\n".join(paths)
    return {
        path: LookedUp(value=value, keys=list(map(encode_key, found[path].keys)))
        for path, value in values.items()
        if (type(value) not in PLAIN or f"dict.keys({path})" in text)
        and id(value) not in read
        and ast.unparse(ast.parse(path, mode="eval")) == path  # paths are compared as text
        and all(map(_is_named, [*found[path].keys, *dict.keys(value)]))
        and not any(_reads_key(each, path) for each in paths)
    }


def _is_named(key: object) -> bool:
    """Return whether every process can decode a key's stored form to the same key."""
    if key is MISSING:
        return False
    try:
        again = decode_key(encode_key(key))
    except (NoEntry, ImportError, *UNREADABLE):
        return False
    return again is key or (type(again) is type(key) and bool(again == key))


def _reads_key(path: str, of: str) -> bool:
    """Return whether a path uses `dict.keys` for more than getting a key or the item of a key."""
    if f"dict.keys({of})" not in path or is_number(path, of):
        return False
    dict_, number = re.escape(of), number_of(of)
    item = rf"{dict_}\[{number}\]|dict\.__getitem__\({dict_}, {number}\)"
    return f"dict.keys({of})" in re.sub(item, "", path)


def number_of(of: str) -> str:
    """Return a regular expression that matches expressions such as `list(dict.keys(d))[3]`.

    Such an expression gets a key of the dict by the key's index.
    """
    return re.escape(f"list(dict.keys({of}))[") + r"\d+\]"


def is_number(path: str, of: str) -> bool:
    """Return whether the whole path gets a key of this dict by the key's index."""
    return re.fullmatch(number_of(of), path) is not None


PLAIN = (dict, OrderedDict, defaultdict)
"""Classes of dicts whose length Dynamo guards only if the trace reads the length (2.13)."""


def is_implied(guard: Guard, looked_up: Mapping[str, LookedUp]) -> bool:
    """Return whether the facts about looked-up keys already cover a guard."""
    if guard.kind == "SEQUENCE_LENGTH":
        return guard.path in looked_up and type(guard.value) not in PLAIN
    return any(is_number(guard.path, of) for of in looked_up)


def with_key(guard: Guard, looked_up: Mapping[str, LookedUp]) -> Guard:
    """Return an equivalent guard that names a key itself, if `guard` gives the key's index.

    Other guards are returned unchanged.
    """
    if guard.kind in ("SAME_OBJECT", "DUPLICATE_INPUT"):
        for of, found in looked_up.items():
            if is_number(str(guard.argument), of):
                number = re.findall(r"\d+", str(guard.argument))[-1]
                key = list(dict.keys(found.value))[int(number)]
                return replace(guard, kind="EQUALS_MATCH", value=key, argument=None)
    return guard
