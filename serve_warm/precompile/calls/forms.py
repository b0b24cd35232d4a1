# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Forms of one call: the same arguments passed by position, or by keyword in any order.

A function cannot see how its named parameters were passed. So an entry that was made for one form
also answers the other forms. Arguments in `*args` or `**kwargs` keep their form, because a forward
might iterate over these arguments. A function that only `torch.no_grad()` or a similar manager
decorates counts as not decorated.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch.amp.autocast_mode import autocast_decorator

from serve_warm._records import record
from serve_warm.precompile.calls.signature import Signature, describe
from serve_warm.private_apis import nn_module


class TakesCalls(Protocol):
    """An entry: what was made for calls of one form."""

    @property
    def signature(self) -> Signature:
        """The call that it was made for."""

    def takes(
        self, call: Signature, state: Mapping[str, str], tensors: Sequence[torch.Tensor]
    ) -> bool:
        """Return whether it was made for calls like this one."""


AnyEntry = TypeVar("AnyEntry", bound=TakesCalls)
Code = TypeVar("Code")


@record(frozen=True, kw_only=True)
class Parameters:
    """The names that a callable gives to its arguments."""

    positional: tuple[str, ...] = ()
    """Names in order, without `self`."""
    unnamed: int = 0
    """Number of positional-only names."""
    keyword_only: tuple[str, ...] = ()

    def bind(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[dict[str, object], dict[str, object]] | None:
        """Return arguments by parameter name, and the arguments that have no parameter.

        Returns None if an argument has no name, has two values, or is passed by keyword although
        its parameter is positional-only.
        """
        if len(args) > len(self.positional):
            return None
        named = dict(zip(self.positional, args, strict=False))
        others: dict[str, object] = {}
        for name, value in kwargs.items():
            if name in named or name in self.positional[: self.unnamed]:
                return None
            if name in self.positional or name in self.keyword_only:
                named[name] = value
            else:
                others[name] = value
        return named, others


NOTHING_NAMED = Parameters()


def parameters_of(callee: object) -> Parameters:
    """Return the parameters of the function that a call to `callee` enters first.

    Returns no names if that function is not written in Python, or if hooks receive the arguments.
    """
    if isinstance(callee, types.MethodType) and callee.__func__ is nn_module.stock_call():
        callee = callee.__self__
    if isinstance(callee, torch.nn.Module):
        kind = type(callee)
        if (
            kind.__call__ is not torch.nn.Module.__call__
            or nn_module.call_of(kind) is not nn_module.stock_call()
        ):
            return NOTHING_NAMED
        if any(vars(callee).get(name) for name in nn_module.HOOKS) or nn_module.has_global_hooks():
            return NOTHING_NAMED
        callee = callee.forward
    skipped = 0
    if isinstance(callee, types.MethodType):
        callee, skipped = callee.__func__, 1
    while isinstance(callee, types.FunctionType) and callee.__code__ in _passing_codes():
        callee = inspect.getclosurevars(callee).nonlocals["func"]
    if not isinstance(callee, types.FunctionType):
        return NOTHING_NAMED
    return _parameters_of_code(callee.__code__, skipped)


@functools.cache
def _passing_codes() -> frozenset[types.CodeType]:
    """Return the code of torch's wrappers that pass all arguments unchanged to `func`.

    `torch.no_grad()`, `torch.inference_mode()` and `torch.autocast(...)` make such wrappers if they
    decorate a function (2.11 to 2.13).
    """
    nothing = contextlib.nullcontext()
    makers: tuple[Callable[[Callable[[], None]], Callable[[], None]], ...] = (
        torch.no_grad(),
        functools.partial(autocast_decorator, nothing),
    )
    made = [make(lambda: None) for make in makers]
    return frozenset(each.__code__ for each in made if "func" in each.__code__.co_freevars)


@functools.lru_cache(maxsize=256)
def _parameters_of_code(code: types.CodeType, skipped: int) -> Parameters:
    if code.co_argcount < skipped:  # `self` is in `*args`
        return NOTHING_NAMED
    names, total = code.co_varnames, code.co_argcount
    return Parameters(
        positional=names[skipped:total],
        unnamed=max(code.co_posonlyargcount - skipped, 0),
        keyword_only=names[total : total + code.co_kwonlyargcount],
    )


Form = tuple[int, tuple[str, ...]]
"""The number of positional arguments, and the names of the keyword arguments in order."""


def in_form(
    form: Form, parameters: Parameters, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[list[object], dict[str, object]] | None:
    """Return a call's arguments in the given form, or None if the arguments do not fit."""
    count, names = form
    bound = parameters.bind(args, kwargs)
    if bound is None or count > len(parameters.positional):
        return None
    named, others = bound
    first = parameters.positional[:count]
    after = [name for name in names if name in named]
    if {*first, *after} != set(named) or len(first) + len(after) != len(named):
        return None
    if [name for name in names if name not in named] != list(others):
        return None
    values = {**named, **others}
    return [named[name] for name in first], {name: values[name] for name in names}


@functools.lru_cache(maxsize=1024)
def form_of(structure: str) -> Form | None:
    """Return the call form that a structure describes; None if a keyword is not a valid name."""
    call = ast.parse(f"f({structure})", mode="eval").body
    assert isinstance(call, ast.Call)  # noqa: S101 - for the type checker
    names = tuple(each.arg for each in call.keywords if each.arg is not None)
    return (len(call.args), names) if len(names) == len(call.keywords) else None


def find_form(
    entries: Iterable[tuple[AnyEntry, Code]],
    callee: object,
    state: Mapping[str, str],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> tuple[AnyEntry, Code, Sequence[torch.Tensor]] | None:
    """Return an entry for another form of a call, or None if there is no such entry.

    The result also has the entry's code, and the tensors in the order that the entry expects. The
    code is the second value of the pair in `entries`. This function does not run the code.
    """
    parameters = parameters_of(callee)
    calls: dict[Form, tuple[Signature, Sequence[torch.Tensor]]] = {}
    for entry, fn in entries:
        form = form_of(entry.signature.structure)
        if form is None or form == (len(args), tuple(kwargs)):  # the form of the call itself
            continue
        if form not in calls:
            given = in_form(form, parameters, args, kwargs)
            if given is None:
                continue
            calls[form] = describe(*given)
        signature, tensors = calls[form]
        if entry.takes(signature, state, tensors):
            return entry, fn, tensors
    return None


class WrapsCode:
    """Code that runs the code of an entry: see `innermost`."""

    def __init__(self, fn: Callable[..., object]) -> None:
        self._fn = fn

    def __call__(self, callee: object, /, *tensors: torch.Tensor) -> object:
        """Run the code of the entry."""
        return self._fn(callee, *tensors)

    @property
    def inner(self) -> Callable[..., object]:
        """The code that it runs."""
        return self._fn


def innermost(fn: Callable[..., object]) -> Callable[..., object]:
    """Return the function or library of an entry, without what wraps it."""
    while isinstance(fn, WrapsCode):
        fn = fn.inner
    return fn


class Reordered(WrapsCode):
    """An entry's code, for a call whose tensors come in a different order."""

    def __init__(self, fn: Callable[..., object], order: Sequence[int]) -> None:
        super().__init__(fn)
        self._order = tuple(order)

    def __call__(self, callee: object, /, *tensors: torch.Tensor) -> object:
        """Put the tensors into the order that the entry expects, and run the entry."""
        return self._fn(callee, *[tensors[number] for number in self._order])


def order_of(wanted: Sequence[object], given: Sequence[object]) -> list[int] | None:
    """Return the position of each `wanted` tensor in `given`, or None if the order is the same."""
    places = {id(tensor): number for number, tensor in enumerate(given)}
    order = [places[id(tensor)] for tensor in wanted]
    return None if order == list(range(len(given))) else order
