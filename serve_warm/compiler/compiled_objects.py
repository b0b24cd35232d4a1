# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled callables on a user's object: whether any exist, and their compile arguments.

Torch keeps a backend on a compiled callable (`dynamo_ctx`).
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import inspect
import itertools
import re
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from serve_warm._redaction import excerpt
from serve_warm.private_apis import dynamo, module_names
from serve_warm.private_apis.nn_module import COMPILED_CALL, compiled_call_of


class HandedOver(abc.ABC):
    """A compiled callable's dispatcher, which can pass calls to the result of `torch.compile`.

    This object is stored in a compiled module, or in the `_serve_warm` attribute of the user's
    callable.
    """

    torch_compiled: Callable[[], Any]
    """Function that returns the result of `torch.compile`. `torch.compile` imports Dynamo."""

    @abc.abstractmethod
    def was_called(self) -> bool:
        """Return whether any call has reached the dispatcher."""

    @abc.abstractmethod
    def arguments_in_words(self) -> str:
        """Return the compile arguments as text, without Dynamo."""


def _find_dispatcher(value: Any) -> HandedOver | None:
    """Return a callable's dispatcher, or `None`. The callable can itself be the dispatcher."""
    if issubclass(type(value), HandedOver):
        dispatcher: HandedOver = value
        return dispatcher
    # Compare the type, because `functools.wraps` copies all attributes to a wrapper in user code.
    if str(type(value).__module__).partition(".")[0] != "serve_warm":
        return None
    found = _attributes_of(value).get("_serve_warm")
    return found if isinstance(found, HandedOver) else None


def compile_arguments(owner: Any) -> dict[str, str]:
    """Return the compile arguments of each compiled attribute of `owner`, by attribute name.

    This function finds compiled attributes and modules compiled in place. It does not find compiled
    functions elsewhere. The arguments of such functions are still in torch's own cache keys. If one
    of these arguments differs, torch later reports a cache miss, without naming the argument.
    """
    found = {}
    for name, value in vars(owner).items():
        handed_over = _find_dispatcher(value)
        if handed_over is None and "torch" in sys.modules and _is_module(value):
            handed_over = _region_of(value)
        if handed_over is not None:
            found[name] = handed_over.arguments_in_words()
            continue
        backends = [_describe(backend) for backend in _backends_of(value)]
        if backends:
            found[name] = ";".join(dict.fromkeys(backends))
    return found


FOREIGN = {"torch", "ray", "serve_warm"}
"""Packages whose objects and functions are not searched for compiled callables."""


LOOKED_AT = 20_000
"""Maximum number of objects that a search looks at, and of items of one container. Looking at this
many objects takes tens of milliseconds."""


def reaches_compiled(owner: Any) -> bool:
    """Return whether the user's object refers to compiled code, without running the object's code.

    The search covers attributes and their contents, and the globals that methods use. Unused
    imports do not count, because a router might be in the same Python file as a model.
    """
    return "torch" in sys.modules and any(map(_is_compiled, _list_reached(owner)))


def bind_methods(owner: Any) -> None:
    """Make the compiled methods of the user's object, and of the objects that it refers to.

    A method that was compiled in the body of its class gets a dispatcher for an object when it is
    first read from the object.
    """
    for value in list(_list_reached(owner)):
        for base in type(value).__mro__:
            for found in list(vars(base).values()):
                bind = getattr(type(found), "__get__", None)
                if bind is not None and _find_dispatcher(found) is not None:
                    bind(found, value, type(value))


def _list_reached(owner: Any) -> Iterator[Any]:
    waiting, seen = deque([owner]), {id(owner)}
    while waiting:
        value = waiting.popleft()
        yield value
        for below in _list_held(value):
            if len(seen) < LOOKED_AT and id(below) not in seen and not _is_plain(below):
                seen.add(id(below))
                waiting.append(below)


def _is_compiled(value: Any) -> bool:
    if _find_dispatcher(value) is not None:
        return True
    if _is_module(value):
        return any(map(_backends_of, _modules_of(value)))
    return bool(_backends_of(value))


def _list_held(value: Any) -> list[Any]:
    """Return objects that a value contains or uses and that might lead to compiled code."""
    if _is_plain(value) or _is_foreign(type(value)):
        return []
    if (items := _items_of(value)) is not None:
        return [item for _, item in items]
    if issubclass(type(value), functools.partial):
        return list(_parts_of_partial(value).values())
    if type(value) is MethodType:
        return [value.__self__, value.__func__]
    if type(value) is FunctionType:
        return _list_used(value)
    methods = [function for base in type(value).__mro__ for function in vars(base).values()]
    return [*_attributes_of(value).values(), *_slots_of(value).values(), *methods]


def _list_used(function: Any) -> list[Any]:
    """Return the globals that a function's code names, and the contents of its closure."""
    if _is_foreign(function):
        return []
    used = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    for code in _with_nested(function.__code__):
        for name in code.co_names:
            found = function.__globals__.get(name)
            used.append(found)
            held = _attributes_of_module(found)
            used += [held[other] for other in code.co_names if other in held]
    return used


def _is_foreign(value: Any) -> bool:
    package = str(value.__module__).partition(".")[0]
    return package in FOREIGN or (
        not isinstance(value, type) and package in sys.stdlib_module_names
    )


def _attributes_of_module(value: Any) -> Mapping[str, Any]:
    """Return the attributes of a module of the application, and none for other values."""
    if not issubclass(type(value), ModuleType):
        return {}
    found = _attributes_of(value)
    package = str(found.get("__name__")).partition(".")[0]
    return {} if package in FOREIGN or package in sys.stdlib_module_names else found


def _describe(backend: Any) -> str:
    config = dict(getattr(backend, "config", {}) or {})
    words = [
        str(getattr(backend, "compiler_name", type(backend).__name__)),
        f"dynamic={getattr(backend, 'dynamic', None)}",
        *(f"{key}={config[key]}" for key in sorted(config)),
    ]
    return ",".join(words)


def how_to_raise_the_limit(limit: int) -> str:
    """Return a hint on how to allow `limit` variants of one function in this version of torch."""
    torch = sys.modules.get("torch")  # without torch, callers never show the text
    if torch is None or "recompile_limit" in inspect.signature(torch.compile).parameters:
        return f"pass torch.compile(..., recompile_limit={limit})"
    # 2.11 does not have the argument. Its settings are process-wide; later versions have settings
    # for each context.
    return f"set {module_names.DYNAMO_CONFIG}.recompile_limit={limit} before the first call"


def uses_cuda_graphs(owner: Any) -> bool:
    """Return whether compiled code on `owner` records CUDA graphs on this machine."""
    if not dynamo.is_imported():
        return False
    import torch

    if not torch.cuda.is_available():
        return False
    values = list(vars(owner).values())  # a copy, because another thread may set an attribute
    backends = [backend for value in values for backend in _backends_of(value)]
    return any((getattr(b, "config", None) or {}).get("triton.cudagraphs") for b in backends)


def _backends_of(value: Any) -> list[Any]:
    """Return the backend objects of a compiled function, or of a module's compiled parts."""
    if not dynamo.is_imported():  # imported by torch.compile
        return []
    if _is_module(value):
        whole: Any = compiled_call_of(value) or _region_of(value)
        compiled = [whole] if whole else _methods_of(value) or [value]
    elif _is_routine(value) or _find_dispatcher(value) is not None:
        compiled = [value]
    else:
        return []
    return [backend for each in compiled if (backend := _backend_of(each)) is not None]


def _backend_of(compiled: Any) -> Any:
    """Return the backend object that a callable was compiled with, or `None`."""
    callback = _callback_of(compiled)
    return dynamo.innermost_backend(callback) if callback not in (None, False) else None


def _callback_of(compiled: Any) -> Any:
    """Return what Dynamo calls to compile for a callable, or `None`."""
    handed_over = _find_dispatcher(compiled)
    if handed_over is not None:
        compiled = handed_over.torch_compiled()
    context = _attributes_of(compiled).get("dynamo_ctx")
    callback = getattr(context, "callback", None)
    if callback is None and _is_routine(compiled):
        closure = getattr(compiled, "__closure__", None)
        names = getattr(getattr(compiled, "__code__", None), "co_freevars", ())
        if closure and "callback" in names and dynamo.is_marked_by_dynamo(compiled):
            callback = closure[names.index("callback")].cell_contents
    return callback


PATH_DEPTH = 4
"""How deep `find_compiled` looks into attributes and containers."""


def find_uncalled(
    owner: Any,
    found: Sequence[tuple[str, Any]],
    entered: Collection[int],
    called_methods: Collection[str],
) -> list[str]:
    """Return the paths of compiled objects that no call has reached, such as `self.drift`.

    `found` comes from `find_compiled`. `entered` has the ids of the callbacks with which Dynamo was
    entered. `called_methods` has the names of the methods that were called, or `ANY_METHOD`.

    A module inside another compiled module is part of the code of that one. What a compiled
    function calls is part of the function's code, so an object is left out if a called function
    mentions its name, directly or through others. A module may also be an argument of the function,
    so it is left out if a called method mentions it.
    """
    called = {id(value): value for _, value in found if _was_entered(value, entered)}
    uncalled = [(path, value) for path, value in found if id(value) not in called]
    modules = [value for _, value in found if _is_module(value)]
    inside = {id(part) for module in modules for part in _modules_of(module)[1:]}
    functions = [value for value in called.values() if not _is_module(value)]
    of_functions = of_modules = set[str]()
    if functions and uncalled:
        of_functions = _names_below(owner, functions)
        methods = [getattr(type(owner), name, None) for name in called_methods]
        of_modules = of_functions | _names_below(owner, methods)
        if ANY_METHOD in called_methods:
            of_modules |= LOOKUPS
    paths = []
    for path, value in uncalled:
        names = of_modules if _is_module(value) else of_functions
        is_mentioned = names & LOOKUPS or names.intersection(_words_of(path))
        if id(value) not in inside and not is_mentioned:
            paths.append(path)
    return paths


def _words_of(path: str) -> list[str]:
    """Return the names in a path, such as `['by_language', 'de']`."""
    return re.findall(r"\w+", path.removeprefix("self."))


def _names_below(owner: Any, functions: Iterable[Any]) -> set[str]:
    """Return the names that compiled functions mention, also through functions that they name.

    A name in a closure stands for its object, so the paths of compiled objects have it, too.
    """
    methods = {name: value for kind in type(owner).__mro__ for name, value in vars(kind).items()}
    waiting: list[Any] = [inspect.unwrap(each) for each in functions]
    names, seen = set[str](), set[int]()
    while waiting:
        value = waiting.pop()
        function = getattr(value, "__func__", value)
        if type(function) is not FunctionType or id(function) in seen or _is_foreign(function):
            continue
        seen.add(id(function))
        for code in _with_nested(function.__code__):
            mentioned = {*code.co_names, *code.co_varnames, *code.co_freevars}
            names |= mentioned
            waiting += [methods.get(name) for name in mentioned]
        waiting += _list_used(function)
    return names


def find_uncalled_methods(
    owner: Any, found: Sequence[tuple[str, Any]], called: Collection[str]
) -> list[str]:
    """Return the public methods that use a compiled attribute and that no call can have reached.

    `found` comes from `find_compiled`. `called` has the names of the methods that were called, or
    `ANY_METHOD`. The search reads names in code, and runs none. A method counts as reached if a
    called method, `__init__` or another method that runs at the start names it, directly or through
    others. A method that uses compiled attributes only through such methods is left out, because it
    may prepare their arguments. If a called method looks up attributes by name, the result is
    empty.
    """
    compiled = {_words_of(path)[0] for path, _ in found}
    if not compiled or ANY_METHOD in called:
        return []
    names: dict[str, set[str]] = {}
    codes: dict[str, set[CodeType]] = {}
    inherited = set[str]()
    for kind in type(owner).__mro__:
        if _is_foreign(kind):
            inherited.update(vars(kind))  # what the application overrides, others call
            continue
        for name, value in vars(kind).items():
            for code in _codes_of(value):
                names.setdefault(name, set()).update(_names_in(code))
                codes.setdefault(name, set()).add(code)
    if _reach(called, names) & LOOKUPS:
        return []
    known = inherited | _reach({*called, *RUN_AT_START}, names)
    run = set().union(*(codes.get(name, ()) for name in known))
    unknown = {name: names[name] for name in names.keys() - known}
    return [
        name
        for name, own in codes.items()
        if not (own & run or (name.startswith("_") and name != "__call__"))
        and name not in compiled  # it is found itself
        and compiled & _reach([name], unknown)
    ]


ANY_METHOD = "*"
"""Stands in a set of called methods for one that is not known."""

RUN_AT_START = ("__init__", "reconfigure", "check_health", "record_routing_stats")
"""Methods that run at the start of a replica, or that Ray Serve calls itself."""

LOOKUPS = frozenset(
    {"getattr", "methodcaller", "attrgetter", "__getattribute__", "__dict__", "vars"}
)
"""Names that find a method without naming it."""


def _codes_of(value: Any) -> Iterator[CodeType]:
    """Yield the code of a function of a class, and of the functions that it wraps."""
    return (function.__code__ for function in _functions_of(value))


def _functions_of(value: Any) -> Iterator[FunctionType]:
    """Yield a function of a class, and the functions that it wraps.

    Judges objects by their types, because attributes of other objects may run code.
    """
    waiting, seen = [value], set[int]()
    while waiting:
        value = waiting.pop()
        if issubclass(type(value), (staticmethod, classmethod, MethodType)):
            value = value.__func__
        if type(value) is FunctionType and id(value) not in seen:
            seen.add(id(value))
            yield value
            waiting.append(vars(value).get("__wrapped__"))
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty cell
                    waiting.append(cell.cell_contents)


def _names_in(code: CodeType) -> set[str]:
    """Return the names that a function and the functions inside it mention."""
    return {name for each in _with_nested(code) for name in each.co_names}


def _with_nested(code: CodeType) -> list[CodeType]:
    """Return the code of a function and of the functions inside it."""
    codes = [code]
    for each in codes:  # the list grows
        codes += [const for const in each.co_consts if isinstance(const, CodeType)]
    return codes


def _reach(start: Iterable[str], names: Mapping[str, set[str]]) -> set[str]:
    """Return the names that these methods mention, directly or through other methods."""
    waiting, reached = [*start], set[str]()
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached.add(name)
            waiting.extend(names.get(name, ()))
    return reached


def find_compiled(owner: Any, functions: Iterable[Any] = ()) -> list[tuple[str, Any]]:
    """Return the compiled objects below the user's object, each with its path.

    Such a path is `self.model`, or the name of a global that a method or one of `functions` uses.
    The search runs none of the object's code.
    """
    if "torch" not in sys.modules:
        return []
    found: list[tuple[str, Any]] = []
    # Most paths lead to no compiled object, so they become text only at the end: a tokenizer holds
    # tens of thousands of tokens, and hiding credentials takes 100 microseconds for each text.
    root: tuple[str | _Subscript, ...] = ("self",)
    waiting, seen = deque([(root, owner, PATH_DEPTH)]), {id(owner)}
    for name, value in (*_list_of_class(type(owner)), *_list_globals(functions)):
        if id(value) not in seen and not _is_plain(value):
            seen.add(id(value))
            waiting.append(((name,), value, PATH_DEPTH - 1))
    while waiting:
        path, value, depth = waiting.popleft()
        if value is not owner and _is_itself_compiled(value):
            found.append(("".join(map(str, path)), value))
            continue
        parts = _named_parts(value) if depth else ()
        for part, below in parts:
            if len(seen) < LOOKED_AT and id(below) not in seen:
                seen.add(id(below))
                waiting.append(((*path, part), below, depth - 1))
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class _Subscript:
    """A key of a mapping, as part of a path."""

    key: Any

    def __str__(self) -> str:
        # The `repr` of another class may run code of the application.
        is_plain = type(self.key) in (str, bytes, int, float, bool, type(None))
        text = repr(self.key) if is_plain else f"<{type(self.key).__name__}>"
        return f"[{excerpt(text)}]"


def _list_of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a class, and what its methods use from outside, with their paths."""
    known = set[str]()  # what a class overrides may never be called
    for each in kind.__mro__:
        if _is_foreign(each):
            continue
        for name, value in vars(each).items():
            functions = [*_functions_of(value)]
            if not functions:
                yield f"self.{name}", value
            elif name not in known and _is_itself_compiled(functions[0]):
                yield f"self.{name}", functions[0]
            for function in functions:
                yield from _list_outside(function)
        known |= vars(each).keys()


def _list_globals(functions: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for each in functions:
        for function in _functions_of(each.func if type(each) is functools.partial else each):
            yield from _list_outside(function)


def _list_outside(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function names, and the contents of its closure."""
    if _is_foreign(function):
        return
    known, names = function.__globals__, _names_in(function.__code__)
    for name in sorted(names & known.keys()):
        yield name, known[name]
        held = _attributes_of_module(known[name])
        yield from ((f"{name}.{other}", held[other]) for other in sorted(names & held.keys()))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    yield from ((name, cell.cell_contents) for name, cell in cells if cell != CellType())


PLAIN = (str, bytes, int, float, type, ModuleType)
"""Types whose objects lead to no compiled code."""


def _is_plain(value: Any) -> bool:
    # By the type, because a proxy's `__class__` runs code.
    return issubclass(type(value), PLAIN)


def _is_routine(value: Any) -> bool:
    return issubclass(type(value), (FunctionType, MethodType, BuiltinFunctionType))


def _is_module(value: Any) -> bool:
    import torch

    return issubclass(type(value), torch.nn.Module)


def _is_itself_compiled(value: Any) -> bool:
    if _find_dispatcher(value) is not None:
        return True
    if not (_is_module(value) or _is_routine(value)) or not dynamo.is_imported():
        return False
    return any(_callback_of(each) not in (None, False) for each in _calls_of(value))


def _calls_of(value: Any) -> list[Any]:
    """Return what Dynamo or a dispatcher may have been entered through for a compiled object."""
    in_place = _attributes_of(value).get(COMPILED_CALL)
    return [each for each in (value, in_place) if each is not None]


def _named_parts(value: Any) -> Iterator[tuple[str | _Subscript, Any]]:
    """Yield the parts of a value that may lead to compiled code, each with its name."""
    if (items := _items_of(value)) is not None:
        yield from ((_Subscript(key), item) for key, item in items)
    elif _is_module(value):
        yield from ((f".{name}", item) for name, item in _children_of(value))
    elif issubclass(type(value), functools.partial):
        yield from ((f".{name}", item) for name, item in _parts_of_partial(value).items())
    elif not _is_plain(value) and not _is_foreign(type(value)):
        attributes = {**_attributes_of(value), **_slots_of(value)}
        yield from ((f".{name}", item) for name, item in attributes.items() if not _is_plain(item))


def _children_of(module: Any) -> list[tuple[str, Any]]:
    import torch

    return list(torch.nn.Module.named_children(module))


def _modules_of(module: Any) -> list[Any]:
    """Return a module and all modules below it, without code of their classes."""
    found = {id(module): module}
    waiting = [module]
    while waiting:
        for _, child in _children_of(waiting.pop()):
            if id(child) not in found:
                found[id(child)] = child
                waiting.append(child)
    return list(found.values())


def _items_of(value: Any) -> list[tuple[Any, Any]] | None:
    """Return the first items of a container that may lead to compiled code; None for other values.

    Only Python's own containers count, and their own methods are called: those of other classes run
    code of the application, and may read a file for each item.
    """
    pairs: Iterable[tuple[Any, Any]]
    if issubclass(type(value), dict):
        pairs = list(itertools.islice(dict.items(value), LOOKED_AT))
    elif issubclass(type(value), list):
        pairs = enumerate(list.__getitem__(value, slice(LOOKED_AT)))
    elif issubclass(type(value), tuple):
        pairs = enumerate(tuple.__getitem__(value, slice(LOOKED_AT)))
    elif issubclass(type(value), deque):
        pairs = enumerate(list(itertools.islice(deque.__iter__(value), LOOKED_AT)))
    elif issubclass(type(value), (set, frozenset)):
        whole = set.copy(value) if issubclass(type(value), set) else frozenset.copy(value)
        pairs = enumerate(itertools.islice(whole, LOOKED_AT))
    else:
        return None
    return [(key, item) for key, item in pairs if not _is_plain(item)]


def _attributes_of(value: Any) -> Mapping[str, Any]:
    """Return the attributes of an object, without code of its class."""
    try:
        found: Any = object.__getattribute__(value, "__dict__")
    except AttributeError:  # a class with slots
        return {}
    return found if type(found) is dict else {}


def _slots_of(value: Any) -> Mapping[str, Any]:
    """Return the attributes of an object that its classes keep in slots, without their code."""
    found: dict[str, Any] = {}
    for base in type(value).__mro__:
        # Classes in C have such descriptors without `__slots__`, as functions for their globals.
        own = vars(base).items() if "__slots__" in vars(base) else ()
        for name, slot in own:
            if type(slot) is MemberDescriptorType:
                with contextlib.suppress(AttributeError):  # not set
                    found.setdefault(name, slot.__get__(value))
    return found


def _parts_of_partial(value: Any) -> Mapping[str, Any]:
    """Return the parts of a `functools.partial` object, without code of its class."""
    kind = vars(functools.partial)
    return {name: kind[name].__get__(value) for name in ("func", "args", "keywords")}


def _was_entered(value: Any, entered: Collection[int]) -> bool:
    dispatchers = [_find_dispatcher(each) for each in _calls_of(value)]
    if any(each is not None and each.was_called() for each in dispatchers):
        return True
    if not dynamo.is_imported():
        return False
    return any(id(_callback_of(each)) in entered for each in _calls_of(value))


def _region_of(module: Any) -> Any:
    """Return the compiled call of a block that `serve_warm.compile_regions` compiled, or `None`."""
    calls = (vars(block).get(COMPILED_CALL) for block in _modules_of(module))
    return next((call for call in calls if isinstance(call, HandedOver)), None)


def _methods_of(module: Any) -> list[Any]:
    """Return compiled functions that replace a module's methods.

    Guides for decoder models recommend such replacements:

        model.forward = torch.compile(model.forward, mode="reduce-overhead")
    """
    if "dynamo_ctx" in _attributes_of(module):  # torch.compile's wrapper also replaces `forward`
        return []
    return [
        value
        for name, value in vars(module).items()
        if _find_dispatcher(value) is not None
        # Dynamo also marks functions that must not be compiled. Such functions have no backend.
        or (
            _is_routine(value) and hasattr(type(module), name) and dynamo.is_marked_by_dynamo(value)
        )
    ]
