# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Other values than the declared ones of an argument, which a request might bring.

Each comes with what all declared values have in common, such as `, always ASCII`.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

SMALL = 2
"""Sizes up to this one grow instead, because torch compiles separate code for the size 1."""

LONGER, LONGEST = 8, 1 << 13
"""How many times longer than declared a list or a text becomes, and the most items and letters in
it then, because attention needs memory by the square of the length."""

VALUES_SHOWN = 4
"""How many values of an argument a line names."""

FEW = 4
"""Most whole numbers in a list that may be sizes, such as a height and a width."""

LARGEST = 10**15
"""Numbers up to this one are varied. It is exact as a float."""


def list_other_values(value: Any, all_values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield values that differ from all declared ones, each with what those have in common.

    `value` is one of `all_values`, the declared values of one argument. The other values are made
    from it.

    >>> [other for _, other in list_other_values([0.5, 1.5], [[0.5, 1.5]])][:2]
    [[0, 2], []]
    """
    if type(value) is dict and len(value) > 1:
        yield from _other_mappings(value, all_values)
    if isinstance(value, str) and all(isinstance(each, str) for each in all_values):
        if value and all(each.isascii() for each in all_values):
            yield ", always ASCII", f"{value[:-1]}é"
        yield from _other_lengths(value, f"{value} ", all_values)
        yield ", never a list", [value]
    if type(value) in (list, tuple) and _are_sizes(all_values):
        if all(each == value for each in all_values):
            others = type(value)(other_number(each) for each in value)
            yield f", always {' and '.join(map(str, value))}", others
        else:
            other = next(each for each in all_values if each != value)
            between = type(value)((a + b) // 2 for a, b in zip(value, other, strict=True))
            yield f", only {len({*map(tuple, all_values)})} of such values", between
    if isinstance(value, list) and all(isinstance(each, list) for each in all_values):
        yield from _other_lists(value, all_values)
    if is_number(value):
        yield from _other_numbers(value, {each for each in all_values if is_number(each)})
    if all(map(_is_all_ones, all_values)) and (mask := _pad(value)) is not None:
        yield MASKS_NOTHING, mask
    if all(map(_is_mask, all_values)) and not any(map(_is_all_ones, all_values)):
        yield MASKS_SOMETHING, _fill(value)


MASKS_NOTHING = ", always a mask of ones"
MASKS_SOMETHING = ", never a mask of ones"
"""What masks have in common of which all mask nothing, or something."""


def _other_mappings(
    value: dict[Any, Any], all_values: Sequence[Any]
) -> Iterator[tuple[str, dict[Any, Any]]]:
    orders = {tuple(each) for each in all_values if isinstance(each, Mapping)}
    if len(orders) > 1:
        return
    yield ", always with its keys in one order", dict([*value.items()][::-1])
    if any(map(is_tensor, value.values())):
        return  # arguments of a model
    for key in value:
        yield f".{key}, always given", {name: value[name] for name in value if name != key}
    if len({type(each) for each in value.values()}) == 1:  # data by name, and no fields
        *_, (last, item) = value.items()
        yield f", always with {len(value)} keys", {**value, f"{last}_": item}


def _are_sizes(all_values: Sequence[Any]) -> bool:
    """Return whether values are a few whole numbers each, such as a height and a width."""
    first = all_values[0]
    if any(type(each) is not type(first) or len(each) != len(first) for each in all_values):
        return False
    return 0 < len(first) <= FEW and all(all(map(_is_whole, each)) for each in all_values)


def _other_lists(
    value: list[Any], all_values: Sequence[list[Any]]
) -> Iterator[tuple[str, list[Any] | str]]:
    if all(map(_has_fraction, all_values)):
        yield ", never whole numbers", _round(value)
    if value and all(all(map(_is_whole, each)) for each in all_values):
        yield ", always whole numbers", [each + 0.5 for each in value]
    if (ragged := _shorten_last(value, all_values)) is not None:
        yield ", always with items of one length", ragged
    yield from _other_lengths(value, value, all_values)
    texts = [*itertools.chain(*all_values)]
    if value and all(isinstance(each, str) for each in texts):
        yield ", never a text", value[0]
        longest = max(map(len, texts))
        if longest * LONGER * len(value) <= LONGEST:
            yield f"[1], at most {longest}", [_lengthen(each, longest) for each in value]


def _other_numbers(value: float, numbers: Collection[float]) -> Iterator[tuple[str, float]]:
    is_whole = all(map(_is_whole, numbers))
    # Torch compiles separate code for the number 1. 0 is not tried: a loop whose step it is may
    # never end.
    for number in dict.fromkeys([*_new(numbers), *([1] if is_whole else ())]):
        if number and number not in numbers:
            yield f", {say_numbers(numbers)}", number
    if is_whole:
        yield ", always a whole number", value + 0.5
    elif not any(map(_is_whole, numbers)):
        yield ", never a whole number", math.ceil(value) + 1


def _lengthen(text: str, longest: int) -> str:
    return f"{text} " * (longest * LONGER // (len(text) + 1))


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that can be varied."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and -LARGEST < value < LARGEST


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _shorten_last(value: list[Any], all_values: Sequence[list[Any]]) -> list[Any] | None:
    """Return a list whose last item is shorter, if all items of each value have one length."""
    for items in all_values:
        sized = all(isinstance(item, (list, str)) for item in items)
        if not sized or len({len(item) for item in items}) != 1:
            return None
    half = len(value[-1]) // 2
    return [*value[:-1], value[-1][:half]] if len(value) > 1 and half else None


def _is_all_ones(value: Any) -> bool:
    """Return whether a value is a mask of ones, which masks nothing."""
    if isinstance(value, list):
        return bool(value) and all(map(_is_all_ones, value))
    if is_tensor(value):
        return bool(value.numel()) and bool((value == 1).all())
    return isinstance(value, (int, float)) and value == 1


def _is_mask(value: Any) -> bool:
    """Return whether a value is a list or a tensor of zeros and ones."""
    if isinstance(value, list):
        return bool(value) and all(_is_mask(each) or each in (0, 1) for each in value)
    return is_tensor(value) and bool(value.numel()) and bool(((value == 0) | (value == 1)).all())


def _fill(mask: Any) -> Any:
    """Return a mask of ones of the same kind."""
    if isinstance(mask, list):
        return [_fill(each) for each in mask]
    return mask.clone().fill_(1) if is_tensor(mask) else type(mask)(1)


def _pad(mask: Any) -> Any:
    """Return a mask of ones whose last row ends with zeros, as in a padded batch, or `None`."""
    if isinstance(mask, list) and mask and isinstance(mask[-1], list):
        last = _pad(mask[-1])
        return None if last is None else [*mask[:-1], last]
    if isinstance(mask, list) and len(mask) > 1:
        kept = mask[: len(mask) // 2]
        return kept + [type(mask[0])(0)] * (len(mask) - len(kept))
    if is_tensor(mask) and mask.dim() and (size := mask.shape[-1]) > 1:
        other = mask.clone()
        other.view(-1, size)[-1, size // 2 :] = 0
        return other
    return None


def say_numbers(numbers: Collection[float]) -> str:
    """Return the text for the numbers of all inputs, such as `only 2 or 5`."""
    if len(numbers) > VALUES_SHOWN:
        return f"only {len(numbers)} values"
    shown = " or ".join(map(str, sorted(numbers)))
    return f"only {shown}" if len(numbers) > 1 else f"always {shown}"


def _new(numbers: Collection[float]) -> list[float]:
    """Return numbers that are not among these: between two of them, above and below.

    Whole numbers keep the step of the others, because a handler may refuse all but multiples of 8.

    >>> _new({1001, 1002}), _new({256, 512}), _new({0.5, 1.0})
    ([1003, 1000], [384, 768], [0.75, 1.5])
    >>> _new({16})
    [32]
    """
    in_order = sorted(numbers)
    pairs = [*itertools.pairwise(in_order)]
    if not pairs:
        return [2 * number for number in in_order if isinstance(number, int) and number > SMALL]
    if not all(isinstance(each, int) for each in numbers):
        gap, low = max((high - low, low) for low, high in pairs)
        return [low + gap / 2, in_order[-1] + gap]
    step = math.gcd(*(int(high - low) for low, high in pairs))
    gap, low = max((high - low, low) for low, high in pairs)
    between = [low + (step if gap > step else gap // 2)] if gap > 1 else []
    below = in_order[0] - step
    return [*between, in_order[-1] + step, *([below] if below > 0 else [])]


def _other_lengths(
    value: Any, repeated: Any, all_values: Sequence[Any]
) -> Iterator[tuple[str, Any]]:
    lengths = {*map(len, all_values)}
    shortest, longest = min(lengths), max(lengths)
    if len(lengths) > 1 and len(repeated):
        for length in _new(lengths):
            some = repeated * (math.ceil(length / len(repeated)))
            yield f"[0], only {len(lengths)} lengths", some[: int(length)]
    if shortest:
        yield ", never empty", value[:0]
    if shortest > 1:
        yield ", never of length 1", value[:1]
    if value and _weigh(value) * longest * LONGER <= LONGEST * len(value):
        yield f"[0], at most {longest}", repeated * (longest * LONGER // len(repeated))


def _weigh(value: Any) -> int:
    """Return the number of items and letters in a value."""
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list):
        return sum(map(_weigh, value)) + 1
    return len(value) if isinstance(value, (str, bytes)) else 1


def _has_fraction(value: Any) -> bool:
    """Return whether a list has numbers, also in its lists, and all are floats."""
    if isinstance(value, list):
        return bool(value) and all(map(_has_fraction, value))
    return isinstance(value, float) and math.isfinite(value)


def _round(value: Any) -> Any:
    return [_round(each) for each in value] if isinstance(value, list) else round(value)


def is_tensor(value: Any) -> bool:
    """Return whether a value is a dense tensor, without importing torch."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return False
    return value.layout is torch.strided and not value.is_nested


def other_number(number: float) -> float:
    """Return the next smaller number, or a larger one if the number is small."""
    if isinstance(number, int):
        return number - 1 if number > SMALL or number == -1 else number + 1
    return number * 0.75 if number else 0.5


def other_size(sizes: Collection[int]) -> int:
    """Return a size that is not among these, between two of them if there is one."""
    return int(_new(sizes)[0])
