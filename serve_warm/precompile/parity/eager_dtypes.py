# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The dtypes that the tensors of a full-precision run have in eager execution.

Python code sees these dtypes, so that it takes the same branches and shares memory in the same
places as in eager execution. Seen in torch 2.11 to 2.15:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/overrides.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from serve_warm.precompile.facts.tensor_parts import has_parts


class ShowEagerDtypes(TorchFunctionMode):
    """Shows Python code the dtypes of eager execution, and keeps composite functions working.

    A composite function, such as attention, checks its dtypes before the first operator runs.
    """

    def __init__(
        self, up: Mapping[torch.dtype, torch.dtype], cast_up: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """`up` has the dtypes that `cast_up` casts, and the full-precision dtype of each."""
        super().__init__()
        self._up, self._cast_up = up, cast_up
        self._full = frozenset(self._up.values())

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return eager_dtype(args[0]) if func == GET_DTYPE else func(*args, **kwargs)
        if name == "__set__":
            return func(*args, **kwargs)
        if func in CASTS:
            return self._cast(func, args, kwargs)
        if func is torch.Tensor.__deepcopy__ and args[0].dtype in self._up:
            args[1][id(args[0])] = copy = self._cast_up(args[0]).clone()
            return set_eager_dtype(copy, args[0].dtype)
        given = list(tensors_in((args, kwargs)))
        if len(given) > 1:
            kinds = {each.dtype for each in given}
            if any(each in self._up for each in kinds) and kinds & self._full:
                args, kwargs = map_tensors(self._cast_up, (args, kwargs))
        out = func(*args, **kwargs)
        asked = asked_dtype(args, kwargs)
        if asked is None or not isinstance(out, torch.Tensor) or has_parts(out):
            return out
        is_new = not any(out is each for each in given)
        return set_eager_dtype(out, asked) if is_new and out.dtype in self._full else out

    def _cast(
        self, func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Cast a tensor. The result shares its memory exactly if eager execution shares it."""
        tensor: torch.Tensor = args[0]
        asked, options = _parse_cast(func, args[1:], kwargs)
        if asked is None or has_parts(tensor) or not (asked.is_floating_point or asked.is_complex):
            return func(*args, **kwargs)
        before, full = eager_dtype(tensor), self._up.get(asked, asked)
        if tensor.dtype == asked and asked in self._up:
            full = asked  # a tensor from outside the run stays as it is
        elif tensor.dtype in self._up:
            tensor = self._cast_up(tensor)
        out = tensor.to(dtype=full, **options)
        if out is tensor and before != asked:
            out = out.clone()
        return out if out is tensor else set_eager_dtype(out, asked)


GET_DTYPE: object = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]

CASTS: dict[object, torch.dtype | None] = {
    torch.Tensor.to: None,
    torch.Tensor.type: None,
    torch.Tensor.type_as: None,
    torch.Tensor.half: torch.float16,
    torch.Tensor.bfloat16: torch.bfloat16,
    torch.Tensor.float: torch.float32,
    torch.Tensor.double: torch.float64,
}
"""Methods that cast a tensor, with the dtype that each one always casts to."""


def _parse_cast(
    func: object, rest: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[torch.dtype | None, dict[str, Any]]:
    """Return the dtype that a cast asks for, and the other arguments as those of `Tensor.to`."""
    options, more = dict(kwargs), list(rest)
    dtype = options.pop("dtype", CASTS[func])
    other = options.pop("other", None)
    if more and isinstance(more[0], torch.Tensor):
        other = more.pop(0)
    elif more and isinstance(more[0], torch.dtype):
        dtype = more.pop(0)
    elif more and func is torch.Tensor.to:
        options["device"] = more.pop(0)
        if more and (more[0] is None or isinstance(more[0], torch.dtype)):
            dtype = more.pop(0) or dtype
    if other is not None:
        dtype, options["device"] = eager_dtype(other), other.device
    options.update(zip(("non_blocking", "copy"), more, strict=False))
    return dtype, options


EAGER_DTYPE = "_serve_warm_eager_dtype"
"""The attribute of a full-precision tensor with the dtype that eager execution would have."""


def eager_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Return the dtype that a tensor of a full-precision run has in eager execution."""
    return getattr(tensor, EAGER_DTYPE, None) or tensor.dtype


def set_eager_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a full-precision tensor with a note of its dtype in eager execution."""
    setattr(tensor, EAGER_DTYPE, dtype)
    return tensor


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of a value, also those in tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)


def map_tensors(function: Callable[[torch.Tensor], object], value: Any) -> Any:
    """Apply a function to the tensors of a value."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if type(value) in (tuple, list):
        return type(value)(map_tensors(function, each) for each in value)
    if type(value) is dict:
        return {key: map_tensors(function, each) for key, each in value.items()}
    return value


def asked_dtype(args: Sequence[object], kwargs: Mapping[str, object]) -> torch.dtype | None:
    """Return the dtype that the arguments of a function ask for, if any."""
    for value in (*kwargs.values(), *args):
        if isinstance(value, torch.dtype):
            return value
    return None


def promote(name: str, given: Sequence[torch.Tensor]) -> torch.dtype | None:
    """Return the dtype of an operator's result in eager execution, from those of its tensors."""
    floats = [each for each in given if each.is_floating_point() or each.is_complex()]
    if not floats:
        return None
    if "norm" in name or name.endswith("_"):  # statistics may have a higher precision
        return eager_dtype(floats[0])
    found: torch.dtype | None = None
    for each in [each for each in floats if each.dim()] or floats:
        dtype = eager_dtype(each)
        found = dtype if found is None else torch.promote_types(found, dtype)
    return found
