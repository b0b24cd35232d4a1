# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Sources from which facts are read: an item of a dict, an attribute, the code of a function.

`Sources` records each source that determines a row or a fact, with the source's value.
"""

from __future__ import annotations

import copy
import functools
import gc
import json
import operator
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import torch

from serve_warm.precompile.changes.dict_versions import dict_version, dict_versions
from serve_warm.precompile.facts.names import (
    describe_tensor,
    functions_of,
    literal,
    name_of_class,
    under,
)
from serve_warm.precompile.facts.table import ANY_ERROR, Reader, decode_key
from serve_warm.precompile.facts.tensor_parts import classes_of, is_equal, read_metadata, read_parts
from serve_warm.private_apis.nn_module import BUFFERS, CALL, HOOKS, MODULES, PARAMETERS

if TYPE_CHECKING:

    class HasAttributeMap(Protocol):
        """A `transformers` configuration: the real name of each attribute with two names."""

        attribute_map: dict[str, str]


HEAP_TYPE = 1 << 9
"""Flag of classes that can be changed (`Py_TPFLAGS_HEAPTYPE`)."""


class _Absent:
    """Marks a missing item or attribute."""


ABSENT = _Absent()


class ClassFunctions:
    """The functions of a class and its bases, as one object that has a `__code__`."""

    __slots__ = ("functions",)

    def __init__(self, kind: type) -> None:
        bases = [base for base in kind.__mro__ if base.__flags__ & HEAP_TYPE]
        self.functions = [f for b in bases for value in vars(b).values() for f in under(value)]

    @property
    def __code__(self) -> tuple[types.CodeType, ...]:
        return tuple(function.__code__ for function in self.functions)


class Source:
    """One source from which rows or facts were read, and its value at that time."""

    __slots__ = ("base", "base_id", "kind", "more_users", "name", "user", "value")

    def __init__(self, kind: str, base: Any, name: Any, base_id: int, user: int) -> None:
        self.kind = kind
        self.base = base
        self.base_id = base_id
        """The id of `base`. Calling `id` is slow under an audit hook, such as `filelock`'s."""
        self.name = name
        self.value: Any = None
        self.user: int | None = user
        """The user of this source: a row (`index`), or the facts about a row (`~index`)."""
        self.more_users: set[int] | None = None
        """The other users. Only one source in seven needs this set, which takes 216 bytes."""

    def users(self) -> list[int]:
        """Return all users of this source."""
        return [*([] if self.user is None else [self.user]), *(self.more_users or ())]

    def is_used(self) -> bool:
        """Return whether this source has a user."""
        return self.user is not None or bool(self.more_users)

    def add(self, user: int) -> bool:
        """Add a user; return False if this user was added before."""
        if self.user == user:
            return False
        if self.user is None and not self.more_users:
            self.user = user
            return True
        more = self.more_users
        if more is None:
            more = self.more_users = set()
        elif user in more:
            return False
        more.add(user)
        return True

    def drop(self, user: int) -> None:
        """Remove a user."""
        if self.user == user:
            self.user = None
        elif self.more_users is not None:
            self.more_users.discard(user)

    def read(self) -> object:
        """Return the current value, or `ABSENT` if there is none."""
        try:
            return READ[self.kind](self.base, self.name)
        except ANY_ERROR:
            return ABSENT

    def remember(self, value: object) -> None:
        """Store the value that was found."""
        # Do not store a tensor that is a dict item, because the dict's version shows a change.
        self.value = without_tensor(value) if self.kind == "item" else value
        if self.kind in OF_PARTS and value is not ABSENT:
            self.value = copy.deepcopy(value)  # metadata may change in place

    def is_built_in(self) -> bool:
        """Return whether the check at each call is built from this source's value or object."""
        if self.kind == "keys":
            return is_ordered(self.base)  # the dict's version does not cover its order
        return self.kind in ("attribute", "tensor", "class")

    def has_what_is_there(self) -> bool:
        """Return whether the source exists and `value` is the object itself, not its content."""
        return self.kind in ("attribute", "getitem") and self.value is not ABSENT

    def is_still(self, value: object) -> bool:
        """Return whether a value equals the stored one."""
        held = self.value
        if held is value:
            return True
        if self.kind in ("list", "keys", "set"):
            return (
                type(held) is tuple
                and type(value) is tuple
                and len(held) == len(value)
                and all(map(operator.is_, held, value))
            )
        if self.kind in OF_PARTS:
            return is_equal(held, value)
        if self.kind in COMPARED:
            return bool(held == value)
        # A property may create an equal number each time.
        return type(held) is type(value) and type(value) in SCALARS and repr(held) == repr(value)


SCALARS = (bool, int, float, str, bytes, type(None))

OF_PARTS = ("parts", "metadata")
"""Kinds of sources whose values describe the parts of a tensor."""

OF_CODE = ("class", "code")
"""Kinds of sources that change if code changes. A class's name contains a digest of the class's
code."""

COMPARED = ("class", "code", "folded", "length", "tensor", "text")
"""Kinds of sources whose values are compared by equality."""


A_TENSOR = _Absent()
"""Placeholder for a tensor, which is looked up each time it is needed.

If a watch held weights, it would keep replaced weights alive. Weak references do not work, because
torch refuses to swap tensors that have weak references (`torch.utils.swap_tensors`).
"""


def without_tensor(value: object) -> object:
    """Return a value in the form in which it is stored. A tensor becomes a placeholder."""
    return A_TENSOR if isinstance(value, torch.Tensor) else value


def _call(function: Callable[..., object], call: str) -> str | None:
    args, kwargs = _read_arguments(call)
    return literal(function(*args, **kwargs))


@functools.lru_cache(maxsize=256)
def _read_arguments(call: str) -> tuple[list[object], dict[str, object]]:
    args, kwargs = json.loads(call)
    return list(map(decode_key, args)), {key: decode_key(value) for key, value in kwargs.items()}


READ: Mapping[str, Reader] = {
    "item": lambda base, name: dict.get(base, name, ABSENT),
    # `move_to_end` does not change the underlying dict.
    "keys": lambda base, _: tuple((OrderedDict if is_ordered(base) else dict).keys(base)),
    "list": lambda base, _: tuple(base),
    "set": lambda base, _: tuple(base),
    "length": lambda base, _: len(base),
    "text": lambda base, _: str(base),
    "folded": _call,
    "attribute": getattr,
    "getitem": operator.getitem,
    "referent": lambda base, _: base(),
    "type": lambda base, _: type(base),
    "dict": lambda base, _: vars(base),
    "code": lambda base, _: base.__code__,
    "class": lambda base, _: tuple(dict_versions(class_dicts(base))),
    "tensor": lambda base, _: describe_tensor(base),
    "parts": lambda base, _: read_parts(base),
    "metadata": lambda base, _: read_metadata(base),
}


def class_dicts(kind: type) -> list[dict[object, object]]:
    """Return the dicts of a class's MRO, except those of classes that cannot change."""
    return [dict_behind(vars(base)) for base in kind.__mro__ if base.__flags__ & HEAP_TYPE]


def dict_behind(mapping: object) -> Any:
    """Return the dict behind a mapping proxy, because only the dict has a version."""
    if type(mapping) is types.MappingProxyType:
        return next((each for each in gc.get_referents(mapping) if isinstance(each, dict)), None)
    return mapping


class Sources:
    """The places from which rows and facts of one callable were read, by kind, base and name."""

    def __init__(self) -> None:
        self.by_key: dict[object, Source] = {}
        self.versions: dict[int, tuple[dict[object, object], int]] = {}
        """Each dict and its version, by the dict's id."""
        self.has_dropped = False
        """Whether a dict may have lost its last source since the sources were grouped."""
        self.is_stale = True
        """Whether sources were added or dropped since they were grouped."""
        self.has_surprise = False
        """Whether the class, `__dict__` or code of an object changed since the last comparison."""
        self._log: list[Source | None] = []
        """The sources of all users, with a `None` after each user's sources."""
        self._first: dict[int, int] = {}
        """For each user, the index of the first source in the log."""
        self._gone = 0
        """Number of items in the log that belong to no user."""
        self._orphans: dict[object, Source] = {}
        """Sources without a user. A row or a fact may use such a source again before the current
        comparison ends."""
        self._methods: dict[type, ClassFunctions] = {}
        self._class_names: dict[type, str] = {}
        self._user = 0

    def drop_orphans(self) -> None:
        """Forget the sources that nothing has used since the last comparison."""
        for key, source in self._orphans.items():
            if not source.is_used():
                del self.by_key[key]
                self.is_stale = self.has_dropped = True
                if source.kind in OF_CODE:  # from now on, nothing notices new code
                    self._forget_code()
        self._orphans.clear()

    def begin(self, user: int) -> None:
        """Begin to record the sources of a user, and forget the user's earlier sources."""
        self._user = user
        self._log.append(None)  # ends the sources of the previous user, which may be this one
        if user in self._first:
            self._forget(user)
        self._first[user] = len(self._log)

    def _forget(self, user: int) -> None:
        log = self._log
        first = index = self._first.pop(user)
        while (source := log[index]) is not None:
            source.drop(user)
            if not source.is_used():
                self._orphans[_key(source.kind, source.base_id, source.name)] = source
            log[index] = None  # the log must not keep a replaced module alive
            index += 1
        self._gone += index + 1 - first
        if self._gone > len(log) / 2:
            self._shorten_log()

    def _shorten_log(self) -> None:
        log, self._log, self._gone = self._log, [], 0
        for user, index in self._first.items():
            self._first[user] = len(self._log)
            end = log.index(None, index)
            self._log += log[index : end + 1]

    def _note(self, kind: str, base: Any, name: object = None) -> Source:
        base_id = id(base)
        key = (kind, base_id, name) if type(name) is str else _key(kind, base_id, name)
        source = self.by_key.get(key)
        if source is None:
            # Read versions before values, so that the next call notices a change made in between.
            if kind == "item" or kind == "keys":  # noqa: PLR1714 - takes half the time
                self._version(base, base_id)
            elif kind == "class":
                for place in class_dicts(base):
                    self._version(place, id(place))
            source = self.by_key[key] = Source(kind, base, name, base_id, self._user)
            source.remember(source.read())
            self.is_stale = True
            self._log.append(source)
            return source
        if not source.is_used() and self.reread(source):
            self.has_surprise |= source.kind in ("type", "dict", *OF_CODE)
        if source.user != self._user and source.add(self._user):
            self._log.append(source)
        return source

    def reread(self, source: Source) -> bool:
        """Remember the current value of a source; return whether the value has changed."""
        now = source.read()
        if source.is_still(now):
            return False
        if source.kind == "class":
            # The class may have other bases now. Read the versions of their dicts before the value.
            for place in class_dicts(source.base):
                self._version(place, id(place))
            self.has_dropped = True
            now = source.read()
        if source.kind in OF_CODE:
            self._forget_code()
        source.remember(now)
        self.is_stale |= source.is_built_in()
        return True

    def _forget_code(self) -> None:
        self._class_names.clear()
        self._methods.clear()

    def class_name(self, kind: type) -> str:
        """Return the result of `name_of_class`, which is slow: results are cached."""
        if kind not in self._class_names:
            self._class_names[kind] = name_of_class(kind)
        return self._class_names[kind]

    def _version(self, place: dict[object, object], key: int) -> None:
        if key not in self.versions:
            self.versions[key] = (place, dict_version(place))

    def note_step(self, base: object, step: str, argument: Any) -> Source | None:
        """Record the sources of a step. Return the source if there is only one."""
        if step == "attribute":
            return self._note_attribute(base, argument)
        if step == "own":
            self._note_attribute(base, argument)
        elif step == "item":
            return self._note_item(base, decode_key(argument))
        elif step in ("nth", "nth_key"):
            place = dict_behind(base)
            self._note("keys", place)
            if step == "nth":
                self._note("item", place, list(dict.keys(place))[argument])
        elif step == "type":
            self._note("type", base)
        elif step == "weakref":
            self._note("referent", base)
        return None

    def _note_item(self, base: object, key: object) -> Source | None:
        place = dict_behind(base)
        if isinstance(place, dict):
            return self._note("item", place, key)
        if isinstance(place, list):
            return self._note("list", place)
        if not isinstance(place, tuple):
            return self._note("getitem", place, key)
        return None

    def _note_attribute(self, base: object, name: str) -> Source | None:
        """Record the sources of `getattr(base, name)`. Return the source if there is only one."""
        kind = type(base)
        if name == "__dict__":
            if type(vars(base)) is dict:
                self._note("dict", base)
            return None
        if name == "__code__" and isinstance(base, types.FunctionType):
            self._note("code", base)
        elif isinstance(base, types.ModuleType) and name in vars(base):
            self._note("item", vars(base), name)
        elif isinstance(base, type):
            if _find_defined(base, name) is ABSENT:
                self._note("attribute", base, name)  # of the metaclass
            self._note("class", base)
        elif _find_defined(kind, "__getattribute__") is not vars(object)["__getattribute__"]:
            if name == "attribute_map" or not _is_plain_config(base):
                return self._note("attribute", base, name)
            self._note_of_config(base, name)
        else:
            return self._note_of_instance(base, kind, name)
        return None

    def _note_of_config(self, base: HasAttributeMap, name: str) -> None:
        """Record the sources of an attribute of a `transformers` configuration.

        A model reads dozens of such attributes. Reading the values would run Python functions each
        time. Comparing dict versions costs almost nothing.
        """
        from serve_warm.private_apis.transformers import LAYERS_DIFFER  # as in `_is_plain_config`

        renamed = base.attribute_map
        self._note_of_instance(base, type(base), "attribute_map")
        self._note("item", renamed, name)
        self._note("item", vars(base), LAYERS_DIFFER)
        for function in _readers(type(base)):
            self._note("code", function)
        self._note_of_instance(base, type(base), renamed.get(name, name))

    def _note_of_instance(self, base: object, kind: type, name: str) -> Source | None:
        found = _find_defined(kind, name)
        own = getattr(base, "__dict__", None)
        if hasattr(type(found), "__set__") or not isinstance(own, dict):
            # Read a property, a slot or an attribute of a C object again at each call.
            return self._note("attribute", base, name)
        self._note("type", base)
        self._note("class", kind)
        self._note("dict", base)
        self._note("item", own, name)
        if name in own or isinstance(found, (types.FunctionType, staticmethod, classmethod)):
            return None
        if found is not ABSENT and not hasattr(type(found), "__get__"):
            return None
        if found is ABSENT and _find_defined(kind, "__getattr__") is ABSENT:
            return None  # the attribute is missing until a dict or a class changes
        if found is ABSENT and isinstance(base, torch.nn.Module) and _is_plain_module(kind):
            for table in (PARAMETERS, BUFFERS, MODULES):
                self._note("item", own, table)  # deleting an item of a ModuleList replaces it
                if isinstance(own.get(table), dict):
                    self._note("item", own[table], name)
                    if name in own[table]:
                        break  # nn.Module.__getattr__ does not look further
            return None
        return self._note("attribute", base, name)

    def note_fact(self, found: Any, fact: tuple[int, str, Any]) -> None:
        """Record the sources of a fact about an object."""
        _, kind, about = fact
        if kind in ("contains", "keys", "length"):
            self._note_container(found, kind, about)
        elif kind in ("attribute", "own"):
            self._note_presence(found, kind, about[0])
        elif kind == "value":
            self._note_contents(found)
        elif kind == "type":
            self._note("type", found)
            self._note_methods(type(found))
        elif kind == "class":
            self._note_methods(found)
        elif kind == "hooks":
            self._note_hooks(found)
        elif kind == "tensor" or "parts" in kind:
            self._note_tensor(found, kind)
        elif kind == "is":
            self._note_code(found)
        elif kind in ("text", "folded"):
            self._note(kind, found, json.dumps(about[:2]) if kind == "folded" else None)

    def _note_presence(self, found: object, kind: str, name: str) -> None:
        if kind == "attribute":
            self._note_attribute(found, name)
        elif (own := getattr(found, "__dict__", None)) is not None:
            self._note("dict", found)
            self._note("item", dict_behind(own), name)

    def _note_tensor(self, found: object, kind: str) -> None:
        if not isinstance(found, torch.Tensor):
            return  # then the fact does not hold
        # An entry compares its input tensors at each call, but not the code of their classes.
        if kind != "input parts":
            self._note("metadata" if kind == "input parts alone" else kind, found)
        if kind != "tensor":
            for each in classes_of(found):
                self._note_methods(each)

    def _note_methods(self, kind: type) -> None:
        self._note("class", kind)
        if kind not in self._methods:
            self._methods[kind] = ClassFunctions(kind)
        if self._methods[kind].functions:
            self._note("code", self._methods[kind])

    def _note_hooks(self, found: object) -> None:
        own = vars(found)
        self._note("dict", found)
        self._note("item", own, CALL)
        for name, marks in HOOKS.items():
            table = own.get(name)
            self._note("item", own, name)
            if isinstance(table, dict):
                self._note("keys", table)
            if table and isinstance(own.get(marks), dict):
                self._note("item", own, marks)
                self._note("keys", own[marks])

    def _note_container(self, found: object, kind: str, about: Sequence[object]) -> None:
        place = dict_behind(found)
        if isinstance(place, dict):
            if kind == "contains":
                self._note("item", place, decode_key(about[0]))
            else:
                self._note("keys", place)
        elif isinstance(place, list):
            self._note("list", place)
        elif isinstance(place, set):
            self._note("set", place)
        elif kind == "length" and not isinstance(place, tuple):
            self._note("length", place)

    def _note_contents(self, found: object) -> None:
        if isinstance(found, dict):
            self._note("keys", found)
            for key in found:
                self._note("item", found, key)
        elif isinstance(found, list):
            self._note("list", found)
        elif isinstance(found, set):
            self._note("set", found)
        if isinstance(found, (dict, list, tuple)):
            for each in found.values() if isinstance(found, dict) else found:
                self._note_contents(each)

    def _note_code(self, found: object) -> None:
        if isinstance(found, type):
            self._note("class", found)
            return
        for function in functions_of(found):
            self._note("code", function)
            for cell in function.__closure__ or ():
                self._note("attribute", cell, "cell_contents")


def _key(kind: str, base_id: int, name: object) -> object:
    if type(name) is str or name is None:
        return (kind, base_id, name)
    # 1, True and 1.0 are equal as dict keys, but must be three different names here.
    return (kind, base_id, type(name), repr(name) if type(name) is float else name)


def is_ordered(mapping: object) -> bool:
    """Return whether a dict can change its order without getting a new version."""
    return isinstance(mapping, OrderedDict)


def _find_defined(kind: type, name: str) -> object:
    """Return the attribute from the first class in the MRO that defines it, or `ABSENT`."""
    for base in kind.__mro__:  # a loop, because a start does this thousands of times
        if name in base.__dict__:
            return base.__dict__[name]
    return ABSENT


READERS = frozenset(
    {
        *("super", "__getattribute__", "get", "logger", "warning_once", "per_layer_attributes"),
        "AmbiguousGlobalPerLayerAttributeError",
    }
)
"""Names that the `__getattribute__` methods of configurations use (seen in transformers 5.23). If
such a method uses no other names, an attribute depends only on the instance, its classes and their
`attribute_map`."""


def _readers(kind: type) -> list[object]:
    """Return the `__getattribute__` functions of a class and its bases, except `object`."""
    of_bases = [vars(base).get("__getattribute__") for base in kind.__mro__[:-1]]
    return [function for function in of_bases if function is not None]


def _is_plain_config(base: Any) -> TypeGuard[HasAttributeMap]:
    """Return whether an object is a `transformers` config with the same settings for all layers."""
    own = getattr(base, "__dict__", None)
    if type(own) is not dict or not all(
        isinstance(function, types.FunctionType)
        and function.__module__.startswith("transformers.")
        and READERS.issuperset(function.__code__.co_names)
        for function in _readers(type(base))
    ):
        return False
    # Imported here, because starts without such a configuration need no module about it.
    from serve_warm.private_apis.transformers import LAYERS_DIFFER

    return LAYERS_DIFFER not in own and type(base.attribute_map) is dict


def _is_plain_module(kind: type) -> bool:
    return _find_defined(kind, "__getattr__") is vars(torch.nn.Module)["__getattr__"]
