# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Inputs that differ from the declared ones, to find what never varies.

If all declared inputs have the same size on an axis, for example because all texts were padded to
the longest, a request of another size may compile, although all declared inputs are proven. The
same holds for numbers, optional arguments and other things that all inputs have in common. So a
warm-up varies them, and makes the varied calls with compiling forbidden. What cannot be varied, or
could change something if it were, is named instead.

Axes of the same size and position vary together, such as those of `input_ids` and `attention_mask`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import inspect
import itertools
import logging
import math
import re
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from serve_warm._records import record
from serve_warm._redaction import describe_error, excerpt, loggable
from serve_warm._regular_files import read_regular
from serve_warm.inputs import Input
from serve_warm.replica.record.progress import HEALTH_CHECK
from serve_warm.replica.record.raised_at import is_users
from serve_warm.replica.replay.input_sizes import (
    DEPTH,
    JSON,
    NUMBER,
    QUERY,
    argument_of,
    arguments_of,
    axes_of,
    double_size,
    halve_size,
    is_opaque,
    put_value,
    query_of,
    replace_arguments,
    resize_axes,
    set_size,
    to_one,
    walk_arguments,
)
from serve_warm.replica.replay.other_values import (
    MASKS_NOTHING,
    MASKS_SOMETHING,
    SMALL,
    is_number,
    is_tensor,
    list_other_values,
    other_size,
    say_numbers,
)
from serve_warm.replica.replay.routes import find_routes
from serve_warm.report import BATCHES

logger = logging.getLogger(__name__)

MOST_TRIALS = 128
"""Largest number of varied inputs."""


MOST_GROUPS = 4
"""How many kinds of inputs of one target are varied, the cheapest ones first."""

MOST_PAIRS = 4
"""Most pairs of sizes that are tried of two axes."""

CHOICES = re.compile(r"(?:^|[._?])(?:task|mode|kind|type|format|style|action|method|operation)$")
"""Names of texts that choose what a handler does."""

LIKE_CHOICES = re.compile(
    rf"{CHOICES.pattern}|(?:^|[._?])(?:size|variant|quality|precision|level|strategy|lang|language"
    r"|voice|speaker|engine|backend)$"
)
"""Names of texts that may choose it."""

AXES_SHOWN = 4
"""How many axes of one size a line names."""

LARGEST_TENSOR = 1 << 24
"""Tensors with more numbers are not made twice as large, to save memory."""

NOT_REPEATED = ("DELETE", "PUT", "PATCH")
"""Verbs of requests that change something, so that none is varied."""

IDENTIFIERS = re.compile(
    r"(?:^|[._?-])(?i:(?:user|item|order|doc|session|request)?(?:id|key|seed)s?|uuid|pk)$"
    r"|[a-z](?:Id|ID|Key|Seed|Pk)s?$|U?UID$"
)
"""Names of numbers that name something. Another number would name something else."""


MISSING = object()
"""Stands for the default of a parameter that has none."""


@record(frozen=True, kw_only=True)
class Varied:
    """A declared input that differs in something that all declared inputs have in common."""

    item: Input
    axes: str
    """What the inputs have in common, for example the axes with their size."""
    arguments: frozenset[str]
    """The arguments that differ."""
    texts: frozenset[str]
    """Those of the arguments that are texts, each with its target."""
    is_extra: bool
    """Whether the trial adds nothing if one of its arguments is known to be narrow."""
    only_if: str = ""
    """The `axes` of earlier trials, of which the handler must have accepted one."""
    is_probe: bool = False
    """Whether the call only tells whether code serves other sizes too, and is accepted only if it
    does not compile."""


def vary(inputs: Sequence[Input], owner: Any = None) -> tuple[list[Varied], list[str]]:
    """Return the varied inputs, and what of the declared inputs cannot be varied.

    `owner` has the methods that inputs name as their target.

    >>> declared = [Input(target="score", kwargs={"values": [1.0, 2.0, 3.0]})]
    >>> found, _ = vary(declared)
    >>> found[0].axes, found[0].item.kwargs
    ('values[0], always 3', {'values': [1.0, 2.0]})
    """
    by_target: dict[str, list[Input]] = {}
    for item in inputs:
        by_target.setdefault(_path_of(item), []).append(item)
    trials: list[Varied] = []
    opaque: list[str] = []
    with _errors_in(opaque):
        targets = [_Target(items, owner) for items in by_target.values()]
        opaque.extend(itertools.chain(*(each.opaque() for each in targets)))
        groups = []
        for path, items in by_target.items():
            found = _group(items, owner)
            groups += [_Target(some, owner) for some in found[:MOST_GROUPS]]
            if len(found) > MOST_GROUPS:
                opaque.append(f"all but {MOST_GROUPS} of {len(found)} kinds of inputs of {path!r}")
        # First the most likely ones, because the time for trials is limited.
        parts = [
            *(each.together() for each in targets),
            *(each.sizes() for each in groups),
            *(each.others() for each in groups),
        ]
        every = itertools.chain(*parts)
        trials.extend(itertools.islice(every, MOST_TRIALS))
        if next(every, None) is not None:
            opaque.append(f"all but the first {MOST_TRIALS} variations, to save time")
    return trials, opaque


@contextlib.contextmanager
def _errors_in(opaque: list[str]) -> Iterator[None]:
    """Log an error of the block, and append a line about it."""
    try:
        yield
    except Exception as error:
        # Arguments are objects of the application, and a trial must not end a start.
        logger.exception("not all inputs are varied", exc_info=loggable(error))
        opaque.append(f"some arguments: {describe_error(error)}")


def vary_batches(
    inputs: Sequence[Input], owner: Any = None, *, largest: int
) -> tuple[list[Varied], list[str]]:
    """Return an input for each undeclared number of concurrent requests, up to `largest`.

    Kinds of inputs are varied apart, those first that are declared with several requests. Also
    returns a line if an argument cannot be read.

    >>> declared = [Input(target="embed", concurrency=size) for size in (4, 2, 1)]
    >>> [found], _ = vary_batches(declared, largest=4)
    >>> found.axes, found.item.concurrency
    ('batches of requests to embed, always 1, 2 or 4 of at most 4', 3)
    """
    by_target: dict[str, list[Input]] = {}
    groups: list[list[Input]] = []
    trials: list[Varied] = []
    opaque: list[str] = []
    if largest == 1:
        return trials, opaque
    for item in inputs:
        if item.target_name != HEALTH_CHECK and item.fixed is not True and _is_repeated(item):
            by_target.setdefault(item.target_name, []).append(item)
    with _errors_in(opaque):
        for items in by_target.values():
            groups += _group(items, owner)[:MOST_GROUPS]
    groups.sort(key=lambda items: all(item.concurrency == 1 for item in items))
    for items in groups:
        cheapest = min(items, key=lambda item: item.size / item.concurrency)
        declared = sorted({item.concurrency for item in items})
        *others, last = map(str, declared)
        sizes = f"{', '.join(others)} or {last}" if others else last
        name = cheapest.target_name
        axes = f"{BATCHES}{name}, always {sizes} of at most {largest}"
        trials += [
            Varied(
                item=dataclasses.replace(cheapest, concurrency=size, name=f"{name} x{size}"),
                axes=axes,
                arguments=frozenset({axes}),
                texts=frozenset(),
                is_extra=True,
            )
            # Torch compiles separate code for the size 1. Under load, most batches are large.
            for size in (1, *range(largest, 1, -1))
            if size not in declared
        ]
    return trials, opaque


def leave_out_larger(varied: Sequence[Varied], inputs: Sequence[Input]) -> tuple[list[Varied], int]:
    """Return the varied inputs with no larger number or size than declared, and the others' count.

    A larger one may be an index that is out of range.

    >>> declared = [Input(target="score", kwargs={"values": [1.0, 2.0, 3.0]})]
    >>> kept, left_out = leave_out_larger(vary(declared)[0], declared)
    >>> max(len(each.item.kwargs["values"]) for each in kept), left_out
    (3, 2)
    """
    largest: dict[str, float] = {}
    for item in inputs:
        for axis, place, size in axes_of(item):
            name = f"{_path_of(item)} {axis}"
            # Sizes of 1 and 2 grow by one. A number may be an index into two items.
            least = -math.inf if place == axis else SMALL + 1
            largest[name] = max(size, least, largest.get(name, -math.inf))
    kept = [
        each
        for each in varied
        if all(
            size <= largest.get(f"{_path_of(each.item)} {axis}", size)
            for axis, _, size in axes_of(each.item)
        )
    ]
    return kept, len(varied) - len(kept)


def digest_of(inputs: Sequence[Input], owner: Any, *, largest_batch: int) -> str:
    """Return a digest of what decides which varied inputs compile: code, and sizes of inputs.

    The code is that of the files that define the application's class and its bases.
    """
    of = hashlib.sha256()
    modules = [sys.modules.get(kind.__module__) for kind in type(owner).__mro__]
    files = {str(getattr(module, "__file__", None) or "") for module in modules}
    for file in sorted(file for file in files if file and is_users(file)):
        with contextlib.suppress(OSError):  # for example, a file in a zip archive
            of.update(read_regular(file))
    texts = []
    for item in inputs:
        if item.target_name == HEALTH_CHECK:
            continue  # a build may have found that it compiles, and a start not yet
        sizes = [(axis, size) for axis, place, size in axes_of(item) if axis != place]
        texts.append(f"{_path_of(item)} {item.fixed} {item.concurrency} {sizes}")
    of.update("\n".join([str(largest_batch), *sorted(texts)]).encode())  # they may be in any order
    return of.hexdigest()


def _group(items: Sequence[Input], owner: Any) -> list[list[Input]]:
    """Return the inputs of one target by kind, cheapest first: arguments, flags and choices."""
    groups: dict[Any, list[Input]] = {}
    names = _positional(items[0], owner)
    for item in items:
        values = [*walk_arguments(arguments_of(item), DEPTH)]
        chosen = [
            (name, value if isinstance(value, (bool, str)) else None)
            for name, value in values
            if isinstance(value, bool) or value is None or _is_choice(names.get(name, name), value)
        ]
        key = (item.fixed, tuple(name for name, _ in values), *chosen)
        groups.setdefault(key, []).append(item)
    return sorted(groups.values(), key=lambda each: min(item.size for item in each))


def _is_choice(name: str, value: Any) -> bool:
    return isinstance(value, str) and CHOICES.search(name) is not None


class _Target:
    """Inputs of one target, and the varied inputs that are made from the cheapest of them."""

    def __init__(self, items: Sequence[Input], owner: Any) -> None:
        self._items, self._owner = items, owner
        self._like = like = min(items, key=lambda item: item.size / item.concurrency)
        self._parameters, self._rest = _parameters(like, owner)
        self._kinds = _kinds(like, owner)
        self._names = _positional(like, owner)
        self._values = [dict(walk_arguments(arguments_of(item), DEPTH)) for item in items]
        # Not by equality, which calls that of the arguments: tensors of unlike sizes raise.
        self._like_values = next(
            values for item, values in zip(items, self._values, strict=True) if item is like
        )
        self._is_repeated = _is_repeated(like)

    def opaque(self) -> Iterator[str]:
        """Yield what is not varied: it is opaque, or another value could change something."""
        of = f" of {_path_of(self._like)!r}"
        if all(item.fixed is True for item in self._items):
            return
        if not self._is_repeated:
            yield f"all arguments{of}"
            return
        if self._like.body:
            yield f"the body{of}"
        if self._like.model_id:
            yield f"other model ids{of}"
        if any(map(NUMBER.fullmatch, _path_of(self._like).split("/"))):
            yield f"the path{of}"
        if self._like.http and "?" in self._like.http[1] and not query_of(self._like):
            yield f"the parameters in the address{of}"
        for name in dict.fromkeys(itertools.chain(*self._values)):
            found = [each[name] for each in self._values if name in each]
            if any(map(is_opaque, found)) and not self._is_fixed(name):
                yield f"{self._show(name)}{of}"
        yield from (f"{name}{of}, always its default" for name in self._never_passed())
        yield from (f"{name}{of}, always as many" for name in self._rest)
        yield from (f"{self._show(name)}{of}, {say}" for name, say in self._kept_values())

    def _kept_values(self) -> Iterator[tuple[str, str]]:
        """Yield the flags that are the same in all inputs, and the identifiers."""
        for name in dict.fromkeys(itertools.chain(*self._values)):
            if self._is_fixed(name):
                continue
            found = [each.get(name) for each in self._values]
            numbers = {each for each in found if is_number(each)}
            never = [str(each) for each in self._choices(name) if each not in found]
            texts = {str(each).lower() for each in found}
            if numbers and self._is_identifier(name):
                yield name, say_numbers(numbers)
            elif isinstance(found[0], str) and self._is_identifier(name):
                yield name, "never another"
            elif isinstance(found[0], str) and texts in ({"true"}, {"false"}):
                yield name, f"always {found[0]}"
            elif all(name in each and each[name] is None for each in self._values):
                yield name, "always None"
            elif never:
                yield name, f"never {excerpt(' or '.join(never))}"
            elif isinstance(found[0], str) and len(texts) == 1 and LIKE_CHOICES.search(name):
                yield name, f"always {excerpt(found[0])}"
            elif isinstance(found[0], bool) and all(each is found[0] for each in found):
                yield name, f"always {found[0]}"

    def together(self) -> Iterator[Varied]:
        """Yield inputs with arguments and sizes that are declared, but not in one input."""
        if not self._is_repeated:
            return
        union = {name: value for item in self._items for name, value in item.kwargs.items()}
        if all(len(item.kwargs) < len(union) for item in self._items):
            most = max(self._items, key=lambda item: len(item.kwargs))
            others = [name for name in union if name not in most.kwargs]
            item = dataclasses.replace(most, kwargs={**union, **most.kwargs})
            yield self._varied(item, f"{self._join(others)}, never with all others", others)
        groups = self._varying_axes()
        for first, second in itertools.combinations(groups, 2):
            known = {*zip(first, second, strict=True)}
            pairs = [each for each in itertools.product({*first}, {*second}) if each not in known]
            for size, other in sorted(pairs)[:MOST_PAIRS]:
                like = self._items[first.index(size)]
                axes = groups[second]
                shown = f"{self._join(groups[first])} {size} with {self._join(axes)} {other}, never"
                item = resize_axes(like, {*axes}, functools.partial(set_size, int(other)))
                yield self._varied(item, shown, [*groups[first], *axes], is_extra=False)

    def sizes(self) -> Iterator[Varied]:
        """Yield inputs with another size on an axis, or with another number."""
        if not self._is_repeated:
            return
        for (place, size), axes in self._unvaried().items():
            if self._is_identifier_axis(axes[0]):
                continue
            shown = f"{self._join(axes)}, always {size}"
            yield self._varied(resize_axes(self._like, {*axes}), shown, axes, is_extra=False)
            if len(axes) > 1 and not isinstance(place, str):
                yield from self._alone(axes, only_if=shown)
            if not isinstance(place, str):
                yield from self._farther(axes, place, int(size), shown)
        for sizes, axes in self._varying_axes().items():
            yield from self._apart(axes, {int(size) for size in sizes})

    def others(self) -> Iterator[Varied]:
        """Yield inputs that differ in optional arguments, order, length and kind."""
        if not self._is_repeated:
            return
        for name in self._always_passed():
            kwargs = {key: value for key, value in self._like.kwargs.items() if key != name}
            args = self._like.args if name in self._like.kwargs else self._like.args[:-1]
            item = dataclasses.replace(self._like, args=args, kwargs=kwargs)
            yield self._varied(item, f"{name}, always given", [name])
        for name, value in walk_arguments(arguments_of(self._like), DEPTH):
            if self._is_fixed(name) or name == QUERY:  # nobody asks for an order of parameters
                continue
            shown, all_values = self._show(name), [each.get(name) for each in self._values]
            is_named = isinstance(value, str) or any(map(is_number, all_values))
            if is_named and self._is_identifier(name):
                continue
            for say, other in list_other_values(value, all_values):
                of_masks = say in (MASKS_NOTHING, MASKS_SOMETHING)
                if (not of_masks or "mask" in shown.lower()) and self._may_be(name, value, other):
                    item = self._with(name, other)
                    yield self._varied(item, f"{shown}{say}", [name], is_extra=not of_masks)

    def _varied(
        self, item: Input, shown: str, axes: Sequence[str], *, is_extra: bool = True
    ) -> Varied:
        return Varied(
            item=dataclasses.replace(item, name=f"{self._like.name}, {shown}: varied"),
            axes=shown,
            arguments=frozenset(self._show(axis).partition("[")[0] for axis in axes),
            texts=frozenset(
                f"{self._show(axis).partition('[')[0]} of {_path_of(self._like)!r}"
                for axis in axes
                if isinstance(self._values[0].get(axis.partition("[")[0]), str)
            ),
            is_extra=is_extra,
        )

    def _farther(self, axes: Sequence[str], place: int, size: int, shown: str) -> Iterator[Varied]:
        """Yield inputs of twice and half the size, and with one item on the first axis.

        A handler that wants a multiple of 16 refuses a size that is one smaller, or pads it. Torch
        compiles separate code for one item, but only batches have one: other axes would broadcast.
        """
        tensors = [*map(self._value_of, axes)]
        is_large = any(is_tensor(each) and each.numel() > LARGEST_TENSOR for each in tensors)
        for resize in (halve_size,) if is_large else (double_size, halve_size):
            if resize(size) != size:
                yield self._varied(resize_axes(self._like, {*axes}, resize), shown, axes)
        if place == 0 and any(map(is_tensor, tensors)):
            trial = self._varied(
                resize_axes(self._like, {*axes}, to_one),
                self._never_one(axes),
                axes,
            )
            yield dataclasses.replace(trial, only_if=shown)

    def _alone(self, axes: Sequence[str], *, only_if: str = "") -> Iterator[Varied]:
        names = {axis.partition("[")[0] for axis in axes}
        # The model would broadcast a tensor of another size, although nobody sends such tensors.
        # Two axes of one tensor, such as those of a square image, can differ.
        if any(map(self._has_tensor, axes)) and len(names) > 1:
            return
        shown = f"{self._join(axes)}, always equal"
        trial = self._varied(resize_axes(self._like, {axes[0]}), shown, axes, is_extra=not only_if)
        yield dataclasses.replace(trial, only_if=only_if)

    def _apart(self, axes: Sequence[str], sizes: set[int]) -> Iterator[Varied]:
        """Yield inputs for axes of several sizes: another one, and sizes that are no longer equal.

        Several sizes of a tensor are buckets, unless the code serves sizes between them too. Then
        one item is tried too.
        """
        probe = ""
        item = resize_axes(self._like, {*axes}, functools.partial(set_size, other_size(sizes)))
        if any(map(self._has_tensor, axes)):
            probe = f"{self._join(axes)}, in between"
            trial = self._varied(item, probe, axes, is_extra=False)
            yield dataclasses.replace(trial, is_probe=True)
            if 1 not in sizes and axes[0].endswith("[0]"):
                item = resize_axes(self._like, {*axes}, to_one)
                trial = self._varied(item, self._never_one(axes), axes)
                yield dataclasses.replace(trial, only_if=probe)
        elif not any(axis.endswith("[0]") for axis in axes):
            yield self._varied(item, f"{self._join(axes)}, only {len(sizes)} lengths", axes)
        if len(axes) > 1:
            yield from self._alone(axes, only_if=probe)

    def _never_one(self, axes: Sequence[str]) -> str:
        return f"{self._join(axes)}, never 1"

    def _value_of(self, axis: str) -> Any:
        """Return the value of an axis in the cheapest input, also inside mappings."""
        return self._like_values.get(axis.partition("[")[0])

    def _has_tensor(self, axis: str) -> bool:
        value = self._value_of(axis)
        return is_tensor(value) or (isinstance(value, (list, tuple)) and any(map(is_tensor, value)))

    def _unvaried(self) -> dict[tuple[int | str, float], list[str]]:
        """Return the axes of one size, by position and size. Each number is one by itself."""
        sizes: dict[str, set[float]] = {}
        for item in self._items:
            for axis, _, size in axes_of(item):
                sizes.setdefault(axis, set()).add(size)
        groups: dict[tuple[int | str, float], list[str]] = {}
        for axis, place, size in axes_of(self._like):
            is_empty = place != axis and not size
            is_left_alone = (
                is_empty or self._is_fixed(axis) or any(self._choices(argument_of(axis)))
            )
            if len(sizes[axis]) == 1 and not is_left_alone:
                groups.setdefault((place, size), []).append(axis)
        return groups

    def _varying_axes(self) -> dict[tuple[float, ...], list[str]]:
        """Return the axes that have several sizes, by their size in each input."""
        sizes: dict[str, list[float]] = {}
        for item in self._items:
            for axis, place, size in axes_of(item):
                is_left_alone = self._is_fixed(axis) or self._is_identifier_axis(axis)
                if not isinstance(place, str) and not is_left_alone:
                    sizes.setdefault(axis, []).append(size)
        groups: dict[tuple[float, ...], list[str]] = {}
        for axis, found in sizes.items():
            if len(found) == len(self._items) and len({*found}) > 1:
                groups.setdefault(tuple(found), []).append(axis)
        return groups

    def _never_passed(self) -> Iterator[str]:
        """Yield the optional parameters that no input passes."""
        if self._like.http is not None and (routes := find_routes(type(self._owner))) is not None:
            for where, name in routes.list_optional(*_path_of(self._like).split(" ", 1)):
                place = f"{JSON if where == 'json' else QUERY}.{name}"
                parent = place.rpartition(".")[0]
                is_known = parent in (JSON, QUERY) or any(parent in each for each in self._values)
                is_passed = any(place in each for each in self._values)
                if is_known and not is_passed and not self._is_fixed(place):
                    yield f"{where}.{name}"
            return
        passed = {name for item in self._items for name in item.kwargs}
        most = max(len(item.args) for item in self._items)
        for number, (name, default) in enumerate(self._parameters.items()):
            is_optional = default is not MISSING and number >= most and name not in passed
            if is_optional and not self._is_fixed(name):
                yield name

    def _always_passed(self) -> Iterator[str]:
        """Yield the optional parameters that all inputs pass and that a call can leave out."""
        fewest = min(len(item.args) for item in self._items)
        for number, (name, default) in enumerate(self._parameters.items()):
            is_last = number == fewest - 1 == len(self._like.args) - 1
            is_passed = is_last or all(name in item.kwargs for item in self._items)
            if default is not MISSING and is_passed and not self._is_fixed(name):
                yield name

    def _with(self, name: str, other: Any) -> Input:
        """Return the cheapest input with another value of an argument."""
        before = arguments_of(self._like)
        changed = {key: put_value(value, key, name, other) for key, value in before.items()}
        return replace_arguments(self._like, changed)

    def _choices(self, name: str) -> Iterator[Any]:
        """Yield the values that an argument can have, if its annotation lists them."""
        for kind in self._kinds.get(self._names.get(name, name), ()):
            if typing.get_origin(kind) is typing.Literal:
                yield from typing.get_args(kind)
            elif isinstance(kind, enum.EnumMeta):
                members: list[enum.Enum] = [*kind]
                given = [each.get(name) for each in self._values]
                yield from (m.value for m in members if m not in given)

    def _may_be(self, name: str, value: Any, other: Any) -> bool:
        """Return whether the annotation of an argument permits another value.

        Without an annotation, it does, but a whole number may be a count.
        """
        kinds = self._kinds.get(self._names.get(name, name), ())
        known = [typing.get_origin(kind) or kind for kind in kinds]
        if not known or Any in known:
            return not (isinstance(value, int) and isinstance(other, float))
        if list[int] in kinds and isinstance(other, list):
            return not any(isinstance(item, float) for item in other)
        # Callers pass whole numbers for `float`.
        return type(other) in known or (type(other) is int and float in known)

    def _is_identifier(self, place: str) -> bool:
        return IDENTIFIERS.search(self._show(place)) is not None

    def _is_identifier_axis(self, axis: str) -> bool:
        """Return whether an axis is that of an identifier: a number or a text, and no list."""
        name = axis.partition("[")[0]
        value = self._values[0].get(name)
        return (is_number(value) or isinstance(value, str)) and self._is_identifier(name)

    def _is_fixed(self, axis: str) -> bool:
        fixed = self._like.fixed
        if isinstance(fixed, bool):
            return fixed
        argument = argument_of(axis)
        return argument.lstrip("?") in fixed or self._names.get(argument) in fixed

    def _show(self, axis: str) -> str:
        argument = argument_of(axis)
        return excerpt(self._names.get(argument, argument).lstrip("?") + axis[len(argument) :])

    def _join(self, axes: Sequence[str]) -> str:
        more = f" and {len(axes) - AXES_SHOWN} more" if len(axes) > AXES_SHOWN else ""
        return " and ".join(map(self._show, axes[:AXES_SHOWN])) + more


def _is_repeated(item: Input) -> bool:
    """Return whether an input may be sent more often than it is declared."""
    return item.http is None or item.http[0] not in NOT_REPEATED


def _parameters(item: Input, owner: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the parameters of a target with their defaults, where known, and `*args` and such."""
    target = item.target if callable(item.target) else getattr(owner, item.target, None)
    try:
        found = [*inspect.signature(target).parameters.values()] if callable(target) else []
    except (TypeError, ValueError):  # some callables have no signature
        return {}, []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    rest = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return {
        each.name: MISSING if each.default is inspect.Parameter.empty else each.default
        for each in found
        if each.kind in named
    }, [f"{rest[each.kind]}{each.name}" for each in found if each.kind in rest]


def _positional(item: Input, owner: Any) -> dict[str, str]:
    """Return the parameter of each positional argument, where known."""
    names = [*_parameters(item, owner)[0]][: len(item.args)]
    return {f"args{number}": name for number, name in enumerate(names)}


def _kinds(item: Input, owner: Any) -> dict[str, tuple[Any, ...]]:
    """Return the types that the annotations of a target's parameters permit, where known."""
    target = item.target if callable(item.target) else getattr(owner, item.target, None)
    try:
        hints = typing.get_type_hints(target) if callable(target) else {}
    except (NameError, AttributeError, SyntaxError, TypeError):  # what only type checkers know
        return {}
    unions = (typing.Union, types.UnionType)
    return {
        name: typing.get_args(hint) if typing.get_origin(hint) in unions else (hint,)
        for name, hint in hints.items()
    }


def _path_of(item: Input) -> str:
    """Return the name of a target without the parameters in its address."""
    return item.target_name.partition("?")[0] if item.http else item.target_name
