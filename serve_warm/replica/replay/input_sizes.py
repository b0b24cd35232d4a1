# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes in the arguments of an input: finding them, and making inputs of other sizes.

An axis has a name, such as `ids[1]`, a position and a size. Axes of lists, texts and tensors are
found, also inside mappings and lists; a number is an axis of its own.
"""

from __future__ import annotations

import dataclasses
import math
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from serve_warm.inputs import Input
from serve_warm.replica.replay.other_values import SMALL, is_number, is_tensor, other_number

DEPTH = 8
"""How deep mappings and lists are searched for sizes. Nothing below is varied or named."""

KNOWN = (str, int, float, bool, dict, list, tuple, type(None))
"""Types whose values a trial can change. It can change tensors, too."""

JSON, QUERY = "?json", "?query"
"""Names that no argument has, for the body and for the parameters in the address of a request."""

NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,9})?")
"""Parameters in an address that are varied as numbers."""


def walk_arguments(arguments: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each argument, and of the items of mappings.

    Of a list of mappings, only the first one counts.
    """
    for name, value in arguments.items():
        yield name, value
        is_list_of_them = isinstance(value, list) and value and type(value[0]) is dict
        found = value[0] if is_list_of_them else value
        if isinstance(found, Mapping) and depth > 1:
            yield from walk_arguments(
                {f"{name}.{key}": item for key, item in found.items()}, depth - 1
            )


def put_value(value: Any, name: str, wanted: str, other: Any) -> Any:
    """Return a value with `other` in the place of the part named `wanted`."""
    if name == wanted:
        return other
    if type(value) is list and wanted.startswith(f"{name}."):
        return [put_value(item, name, wanted, other) for item in value]
    if type(value) is dict and wanted.startswith(f"{name}."):
        return {key: put_value(item, f"{name}.{key}", wanted, other) for key, item in value.items()}
    return value


def is_opaque(value: Any) -> bool:
    """Return whether a value has no sizes to vary, or is a list of such values or of several."""
    if type(value) in (list, tuple):
        kinds = {float if is_number(item) else _kind_of(item) for item in value}
        keys = {frozenset(item) for item in value if type(item) is dict}
        return len(kinds) > 1 or len(keys) > 1 or any(map(is_opaque, value[:1]))
    return type(value) not in KNOWN and not is_tensor(value)


def _kind_of(value: Any) -> Any:
    return (type(value), value.dim()) if is_tensor(value) else type(value)


def argument_of(axis: str) -> str:
    """Return the argument that an axis belongs to."""
    return axis.partition("[")[0].partition(".")[0]


def axes_of(item: Input) -> Iterator[tuple[str, int | str, float]]:
    """Yield the axes of all arguments of an input, as `_axes` does."""
    for name, value in arguments_of(item).items():
        yield from _axes(value, name, 0, DEPTH)


def arguments_of(item: Input) -> dict[str, Any]:
    """Return all arguments of an input by name, the body and the parameters, too."""
    return {
        **{f"args{number}": value for number, value in enumerate(item.args)},
        **item.kwargs,
        **({} if item.json is None else {JSON: item.json}),
        **({QUERY: query} if (query := query_of(item)) else {}),
    }


def query_of(item: Input) -> dict[str, str | float]:
    """Return the parameters in the address of a request. Numbers are no texts there."""
    if item.http is None:
        return {}
    pairs = urllib.parse.parse_qsl(item.http[1].partition("?")[2], keep_blank_values=True)
    values: dict[str, str | float]
    values = {name: _read_number(text) for name, text in pairs}
    return values if len(values) == len(pairs) else {}


def _read_number(text: str) -> str | float:
    if not NUMBER.fullmatch(text):
        return text
    number = float(text) if "." in text else int(text)
    return number if str(number) == text else text


def _axes(value: Any, name: str, place: int, depth: int) -> Iterator[tuple[str, int | str, float]]:
    """Yield the name, the position and the size of each axis of a value.

    A number yields its name as its position, and itself as its size.
    """
    if not depth:
        return
    if is_number(value):
        yield name, name, value
    elif isinstance(value, str):
        yield f"{name}[{place}]", place, len(value)
    elif type(value) is dict:
        for key, item in value.items():
            yield from _axes(item, f"{name}.{key}", place, depth - 1)
    elif type(value) in (list, tuple):
        yield f"{name}[{place}]", place, len(value)
        if (item := _sample(value)) is not None:
            yield from _axes(item, name, place + 1, depth - 1)
    elif is_tensor(value):
        for axis, size in enumerate(value.shape):
            yield f"{name}[{place + axis}]", place + axis, int(size)


def _sample(items: Sequence[Any]) -> Any:
    """Return the largest item, to which the others are padded; `None` for items of other kinds."""
    if items and all(map(is_tensor, items)):
        return max(items, key=lambda item: item.numel()) if _is_one_kind(items) else None
    if items and all(type(item) in (list, tuple) or isinstance(item, str) for item in items):
        return max(items, key=len) if _is_one_kind(items) else None
    return items[0] if items and all(type(item) is dict for item in items) else None


def _is_one_kind(items: Sequence[Any]) -> bool:
    return len({*map(_kind_of, items)}) == 1


def _step(size: int) -> int:
    return size - 1 if size > SMALL else size + 1


def set_size(wanted: int, size: int) -> int:  # noqa: ARG001 - replaces any size
    """Return `wanted`, whatever the size was."""
    return wanted


def to_one(size: int) -> int:  # noqa: ARG001 - replaces any size
    """Return 1, whatever the size was."""
    return 1


def double_size(size: int) -> int:
    """Return twice the size."""
    return 2 * size


def halve_size(size: int) -> int:
    """Return half the size, but not 1, because a batch of one is another trial."""
    return max(SMALL, size // 2)


def resize_axes(item: Input, axes: set[str], new: Callable[[int], int] = _step) -> Input:
    """Return an input with other sizes on some axes, which `new` returns for the declared ones."""
    return replace_arguments(
        item,
        {name: _resize(value, name, 0, axes, new) for name, value in arguments_of(item).items()},
    )


def replace_arguments(item: Input, changed: Mapping[str, Any]) -> Input:
    """Return an input with other arguments, which have the names of `arguments_of`."""
    query = changed.get(QUERY)
    target = item.target
    if query and isinstance(target, str):
        target = f"{target.partition('?')[0]}?{urllib.parse.urlencode(query)}"
    return dataclasses.replace(
        item,
        target=target,
        args=tuple(changed[f"args{number}"] for number in range(len(item.args))),
        kwargs={name: changed[name] for name in item.kwargs},
        json=changed.get(JSON) if item.json is not None else None,
    )


def _resize(value: Any, name: str, place: int, axes: set[str], new: Callable[[int], int]) -> Any:
    """Return a value with other sizes on some axes, or the same object if none of them is its."""
    here = f"{name}[{place}]" in axes
    if isinstance(value, (int, float)):
        return other_number(value) if name in axes else value
    if isinstance(value, str):
        return _resize_text(value, new) if here else value
    if type(value) is dict:
        changed = {
            key: _resize(item, f"{name}.{key}", place, axes, new) for key, item in value.items()
        }
        return changed if any(changed[key] is not value[key] for key in value) else value
    if type(value) in (list, tuple):
        items = [
            _resize(item, name, place + 1, axes, new)
            if type(item) in (list, tuple, dict) or isinstance(item, str) or is_tensor(item)
            else item
            for item in value
        ]
        if here:
            size = new(len(items))
            items = (items * math.ceil(size / len(items)))[:size] if items else items
        elif all(item is before for item, before in zip(items, value, strict=True)):
            return value
        return type(value)(items)
    if is_tensor(value):
        for axis in range(value.dim()):
            if f"{name}[{place + axis}]" in axes:
                value = _resize_tensor(value, axis, new(value.shape[axis]))
    return value


def _resize_text(text: str, new: Callable[[int], int]) -> str:
    if new is not _step:
        return f"{text} {text}"[: new(len(text))]
    words = text.split(" ")
    return " ".join(words[:-1]) if len(words) > 1 else (text[:-1] or text + text)


def _resize_tensor(tensor: Any, axis: int, size: int) -> Any:
    """Return a tensor of another size, of the same kind and with strides in the same order."""
    import torch

    order = sorted(range(tensor.dim()), key=lambda each: -tensor.stride(each))
    back = sorted(range(tensor.dim()), key=order.__getitem__)
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        times = math.ceil(size / max(1, tensor.shape[axis]))
        other = torch.cat([tensor] * times, axis).narrow(axis, 0, size)
        return other.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
