# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Inputs for the replay: buckets, declared inputs, the grid of sizes, order, and signatures.

An `Input` names a target (the method or route that traffic uses) and the call's arguments.
`shape_grid` returns one `Input` for each combination of sizes in a `Buckets` object. The handler
pads requests with the same object (`buckets.fit`), so replay and traffic have the same sizes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import itertools
import math
import re
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from serve_warm._package import public
from serve_warm._records import record
from serve_warm._redaction import is_name, shorten
from serve_warm.errors import InputError

HTTP_TARGET = re.compile(r"(GET|POST|PUT|PATCH|DELETE|HEAD|OPTIONS) (/\S*)")
"""A target such as `POST /embed`."""

ENTRIES_SHOWN = 64
"""Maximum number of values in a signature. A signature shows at most 16 items of each list or
mapping."""

KEY_CHARS = 100
LONGEST_BITS = 128
"""A signature shows whole numbers of up to this many bits. For a larger number, the signature
shows only how many bits it has."""

HTTP_ARGUMENTS = frozenset({"json", "body", "headers"})
"""Arguments of an `Input` with an HTTP target."""


@public
class Buckets(Mapping[str, tuple[int, ...]]):
    """The sizes to compile, by axis.

    The grid lists these sizes, and the handler pads requests to them.

    >>> buckets = Buckets(batch=[1, 8], length=[16, 64, 128])
    >>> buckets.fit(batch=3, length=20)
    {'batch': 8, 'length': 64}
    >>> [point["length"] for point in buckets.grid()]
    [128, 64, 16, 128, 64, 16]
    """

    def __init__(self, **axes: Iterable[int]) -> None:
        if not axes:
            raise InputError(
                "Buckets() has no axis", hint="for example Buckets(batch=[1, 8], length=[16, 64])"
            )
        self._axes: dict[str, tuple[int, ...]] = {}
        for name, given in axes.items():
            sizes = list(given) if isinstance(given, Iterable) else []
            if not sizes or any(type(size) is not int or size < 1 for size in sizes):
                raise InputError(
                    f"Buckets axis {name!r} has sizes {sizes or given!r}",
                    hint=f"pass a list of positive whole numbers: Buckets({name}=[1, 8])",
                )
            self._axes[name] = tuple(sorted(set(sizes)))

    def __getitem__(self, axis: str) -> tuple[int, ...]:
        return self._axes[axis]

    def __iter__(self) -> Iterator[str]:
        return iter(self._axes)

    def __len__(self) -> int:
        return len(self._axes)

    def __repr__(self) -> str:
        return f"Buckets({', '.join(f'{k}={list(v)}' for k, v in self._axes.items())})"

    def fit(self, **sizes: int) -> dict[str, int]:
        """Return, for each axis in `sizes`, the smallest bucket that the size fits into.

        Raises:
            InputError: an axis is unknown, or a size is larger than the axis's largest bucket.
        """
        fitted = {}
        for axis, size in sizes.items():
            if axis not in self._axes:
                raise InputError(f"no axis {axis!r} in {self!r}", hint="check the name")
            fitting = [bucket for bucket in self._axes[axis] if bucket >= size]
            if not fitting:
                raise InputError(
                    f"{axis}={size} is larger than the largest bucket of {self!r}",
                    hint=f"truncate or split the request, or add a bucket to {axis!r}",
                    axis=axis,
                    size=size,
                )
            fitted[axis] = fitting[0]
        return fitted

    def grid(self) -> list[dict[str, int]]:
        """Return every combination of sizes, largest (by product) first.

        This order has two advantages: smaller CUDA graphs can reuse the memory pool of a larger
        graph, and a size that needs too much memory fails early.
        """
        points = [
            dict(zip(self._axes, sizes, strict=True))
            for sizes in itertools.product(*(reversed(v) for v in self._axes.values()))
        ]
        return sorted(points, key=lambda point: -math.prod(point.values()))


@public
@record(frozen=True, kw_only=True)
class Input:
    """One call to replay: a method or an HTTP route, its arguments, and the concurrency.

    >>> Input(target="POST /embed", json={"text": "hello"}).name
    'POST /embed'
    """

    target: Callable[..., Any] | str
    """A bound method, the name of a method, or `"POST /path"` for a route (or for `__call__` of
    a class without an ASGI app). The replay calls the target as Ray Serve calls it: on the same
    thread and event loop."""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    """Body of an HTTP request, encoded as JSON."""
    body: bytes = b""
    """Raw body of an HTTP request that is not JSON."""
    headers: Mapping[str, str] = field(default_factory=dict)
    concurrency: int = 1
    """How many copies of this call run at once. With `@serve.batch`, the copies form a batch of
    this size."""
    model_id: str = ""
    """Multiplexed model id of the request."""
    fixed: bool | Sequence[str] = False
    """Names of arguments that never differ in traffic in their sizes, or in their value if they are
    numbers (`json` for a JSON body, `query` for the parameters in the address), or True for all. A
    build does not vary them."""
    name: str = ""
    """Unique name in reports; by default made from the target."""
    size: int = 0
    """Relative cost. Inputs are replayed largest first. Inputs of the same size keep their declared
    order."""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise InputError(f"an input has concurrency={self.concurrency}", hint="use 1 or more")
        if isinstance(self.target, str):
            is_http = HTTP_TARGET.fullmatch(self.target) is not None
            if not is_http and not self.target.isidentifier():
                raise InputError(
                    f"unknown kind of target {self.target!r}",
                    hint='use a method ("embed") or a request ("POST /embed"): the HTTP method in '
                    "capitals, one space, and a path without spaces",
                )
            if not is_http and (self.json is not None or self.body or self.headers):
                raise InputError(
                    f"target {self.target!r} is a method, but json, body and headers are for HTTP",
                    hint='use args and kwargs, or a target such as "POST /path"',
                )
        elif not callable(self.target):
            raise InputError(
                f"the target of an input is {type(self.target).__name__}, not a method",
                hint='pass a bound method, its name, or "POST /path"',
            )
        if isinstance(self.fixed, str):
            raise InputError(
                f"an input has fixed={self.fixed!r}",
                hint=f'pass True, or the names in a tuple: fixed=("{self.fixed}",)',
            )
        if not self.name:
            object.__setattr__(self, "name", self.target_name)

    @property
    def target_name(self) -> str:
        """The method's name, or `POST /path`."""
        if isinstance(self.target, str):
            return self.target
        return str(getattr(self.target, "__name__", repr(self.target)))

    @property
    def http(self) -> tuple[str, str] | None:
        """Method and path of an HTTP target; None for a method of the class."""
        match = HTTP_TARGET.fullmatch(self.target) if isinstance(self.target, str) else None
        return (match[1], match[2]) if match else None


@public
@record(frozen=True, kw_only=True)
class Field:
    """Describes one tensor argument of a grid point.

    Each item of `axes` is the name of a bucket axis, or a fixed size. A tensor of an integer type
    has whole numbers from `low` to `high`, both included. A tensor of a floating-point type has
    uniformly distributed numbers between `low` and `high`. A tensor of type `bool` is True
    everywhere. The argument's name seeds the random generator, so every replica replays the same
    values.

    A mask of ones masks nothing, and eager code may then take a shorter way. So a grid point with
    masks has a second input, in which the masks are partly 0 or False, as for a padded batch. A
    mask is a tensor of type `bool`, or a tensor of integers that are all 1 and whose name contains
    `mask`.
    """

    axes: tuple[str | int, ...]
    dtype: str = "int64"
    low: float = 1
    high: float = 1
    """The default is 1, because every vocabulary has the token id 1, and a mask of ones masks
    nothing."""

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise InputError(
                f"Field has low={self.low} above high={self.high}",
                hint="low is the smallest value and high is the largest; both are included",
            )

    def tensor(self, name: str, point: Mapping[str, int]) -> Any:
        """Return the tensor for a grid point.

        Raises:
            InputError: torch has no dtype of this name.
        """
        import torch  # not at the top: commands import this module without torch

        shape = [axis if isinstance(axis, int) else point[axis] for axis in self.axes]
        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise InputError(
                f"field {name!r}: torch has no dtype {self.dtype!r}",
                hint='use a name from torch, such as "int64", "float32" or "bool"',
            )
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        generator = torch.Generator().manual_seed(seed)
        if dtype.is_floating_point:
            reals = torch.rand(shape, generator=generator) * (self.high - self.low) + self.low
            return reals.to(dtype)
        if dtype is torch.bool:
            return torch.ones(shape, dtype=dtype)
        return torch.randint(
            int(self.low), int(self.high) + 1, shape, generator=generator, dtype=dtype
        )

    def is_mask(self, name: str) -> bool:
        """Return whether an argument with this name is a mask of ones."""
        is_named = "mask" in name.lower() and "int" in self.dtype and self.low == self.high == 1
        return self.dtype == "bool" or is_named

    def padded(self, name: str, point: Mapping[str, int]) -> Any:
        """Return the mask for a grid point as for a padded batch; None if there is no room for 0.

        The second half of each row is 0 or False, except in the first of several rows.
        """
        mask = self.tensor(name, point)
        if not mask.dim() or mask.shape[-1] < 2:
            return None
        rows = mask[1:] if mask.dim() > 1 and len(mask) > 1 else mask
        rows[..., mask.shape[-1] // 2 :] = 0
        return mask


@public
def shape_grid(
    target: Callable[..., Any] | str,
    buckets: Buckets,
    *,
    make: Callable[..., Mapping[str, Any]] | None = None,
    fields: Mapping[str, Field] | None = None,
    concurrency: str | None = None,
    budget: int = 128,
    model_id: str = "",
    fixed: bool | Sequence[str] = False,
) -> list[Input]:
    """Return one input for each combination of sizes in `buckets`, largest first.

    If `Field` makes a mask among the tensors, there is a second input with padding for each
    combination.

    Args:
        target: what to call: a method, its name, or `"POST /path"`.
        make: a function that gets the sizes of one combination as keyword arguments, by axis name.
            It returns the call's keyword arguments, or for HTTP a mapping with `json`, `body` or
            `headers`.
        fields: tensors to make, by argument name. Without `make` and `fields`, each argument that
            `target` requires gets an int64 tensor of ones over all axes.
        concurrency: the axis with the number of concurrent calls, for `@serve.batch`.
        budget: largest number of inputs. A larger grid is an error.
        model_id: multiplexed model id of every input.
        fixed: names of arguments whose sizes never differ in traffic, or True; see `Input.fixed`.

    Raises:
        InputError: the grid is larger than `budget`, or the arguments contradict each other.

    >>> inputs = shape_grid("embed", Buckets(batch=[1, 2]), fields={"x": Field(axes=("batch", 4))})
    >>> [(i.name, tuple(i.kwargs["x"].shape)) for i in inputs]
    [('embed batch=2', (2, 4)), ('embed batch=1', (1, 4))]
    """
    points = _within(budget, buckets)
    if concurrency is not None and concurrency not in buckets:
        raise InputError(
            f"concurrency={concurrency!r} is not an axis of {buckets!r}",
            hint=("pass the name of an axis; for a fixed number of calls, use Input(concurrency=)"),
        )
    if make is not None and fields is not None:
        raise InputError("shape_grid got both make= and fields=", hint="pass only one of them")
    is_http = isinstance(target, str) and HTTP_TARGET.fullmatch(target) is not None
    if make is None and is_http:
        needed = f"shape_grid needs make= for the request {target!r}"
        raise InputError(needed, hint='for example make=lambda length: {"json": {...}}')
    if make is None and fields is None:
        dimensions = tuple(axis for axis in buckets if axis != concurrency)
        fields = {name: Field(axes=dimensions) for name in _list_required(target)}
    _check_axes(fields or {}, buckets, concurrency)

    inputs = []
    for point in points:
        sizes = {axis: size for axis, size in point.items() if axis != concurrency}
        if make is not None:
            made: Mapping[str, Any] = make(**sizes)
            _check_made(made, is_http=is_http)
        else:
            made = {name: spec.tensor(name, sizes) for name, spec in (fields or {}).items()}
        call: dict[str, Any] = dict(made) if is_http else {"kwargs": dict(made)}
        more: dict[str, Any] = {"concurrency": point[concurrency] if concurrency else 1}
        more |= {"model_id": model_id, "fixed": fixed}
        inputs.append(_input_at(point, target, **more, **call))
        masks = _padded_masks(fields or {}, sizes)
        if masks:
            padded = {"kwargs": {**made, **masks}}
            inputs.append(_input_at(point, target, suffix=" padded", **more, **padded))
    return inputs


def _padded_masks(fields: Mapping[str, Field], sizes: Mapping[str, int]) -> dict[str, Any]:
    found = {name: spec.padded(name, sizes) for name, spec in fields.items() if spec.is_mask(name)}
    return {name: mask for name, mask in found.items() if mask is not None}


def _within(budget: int, buckets: Buckets) -> list[dict[str, int]]:
    points = buckets.grid()
    if len(points) > budget:
        raise InputError(
            f"{buckets!r} makes {len(points)} inputs, but the budget is {budget}",
            hint="use fewer buckets, or raise budget= if a longer warm-up is acceptable",
        )
    return points


def _input_at(
    point: Mapping[str, int], target: Callable[..., Any] | str, *, suffix: str = "", **call: Any
) -> Input:
    label = target if isinstance(target, str) else getattr(target, "__name__", "call")
    name = " ".join([label, *(f"{axis}={size}" for axis, size in point.items())]) + suffix
    return Input(target=target, name=name, size=math.prod(point.values()), **call)


def _check_axes(fields: Mapping[str, Field], buckets: Buckets, concurrency: str | None) -> None:
    for name, spec in fields.items():
        for axis in spec.axes:
            if isinstance(axis, str) and (axis not in buckets or axis == concurrency):
                raise InputError(
                    f"field {name!r} uses {axis!r}, which is not a dimension of {buckets!r}",
                    hint="give each dimension as a number or as the name of an axis; "
                    "the concurrency axis cannot be a dimension",
                )


def _check_made(made: Any, *, is_http: bool) -> None:
    wrong = not isinstance(made, Mapping) or (is_http and not made.keys() <= HTTP_ARGUMENTS)
    if wrong:
        found = sorted(map(str, made)) if isinstance(made, Mapping) else type(made).__name__
        raise InputError(
            f"make= returned {found}",
            hint="return a mapping: the keys json, body or headers for a request, or the keyword "
            "arguments for a method",
        )


def _list_required(target: Callable[..., Any] | str) -> list[str]:
    if isinstance(target, str):
        raise InputError(
            f"shape_grid cannot find out the arguments of {target!r} from its name",
            hint="pass make= or fields=, or the method itself (self.embed)",
        )
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [
        name
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.kind in kinds and parameter.default is inspect.Parameter.empty
    ]
    if not names:
        raise InputError(
            f"{getattr(target, '__name__', target)!r} requires no arguments, so there is no tensor "
            "to make",
            hint="pass make= or fields=",
        )
    return names


def sort_by_size(declared: Any, *, of: str) -> list[Input]:
    """Return the declared inputs, checked, with unique names, largest first.

    Raises:
        InputError: `declared` is not a collection of inputs, or is empty.
    """
    if isinstance(declared, Input):
        declared = [declared]
    if not isinstance(declared, Iterable):
        raise InputError(
            f"{of}.warmup_inputs() returned {type(declared).__name__}",
            hint="return a list of Input, for example shape_grid(self.embed, self.buckets)",
        )
    inputs = list(declared)
    if not inputs:
        raise InputError(
            f"{of}.warmup_inputs() returned no inputs",
            hint="declare at least one input, because without inputs nothing can be proven; or set "
            "`enabled: false` in user_config.warmup",
        )
    wrong = [item for item in inputs if not isinstance(item, Input)]
    if wrong:
        raise InputError(
            f"an item of {of}.warmup_inputs() is a {type(wrong[0]).__name__}, not an Input",
            hint="wrap calls as Input(target=self.method, args=(...)), or use shape_grid",
        )
    return sorted(with_unique_names(inputs), key=lambda item: -item.size)


def with_unique_names(inputs: Sequence[Input]) -> Iterator[Input]:
    """Yield inputs with other names where several have one name. The first one keeps it."""
    # Generated names must differ from all given names.
    taken: set[str] = set()
    given = {item.name for item in inputs}
    for item in inputs:
        name, number = item.name, 1
        while name in taken or (number > 1 and name in given):
            number += 1
            name = f"{item.name} #{number}"
        taken.add(name)
        yield item if number == 1 else dataclasses.replace(item, name=name)


@record(frozen=True, kw_only=True)
class InputSignature:
    """The parts of a call that compiled code depends on: tensor metadata and plain values."""

    entries: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> InputSignature:
        """Return the signature of named values. Describes containers up to three levels deep.

        Strings appear as type and length. Mapping keys that are not names also appear as type and
        length.
        """
        found = (
            entry
            for name, value in values.items()
            for entry in _entries(value, shorten(name, KEY_CHARS), 2)
        )
        return cls(entries=tuple(itertools.islice(found, ENTRIES_SHOWN)))

    def __str__(self) -> str:
        return shorten(", ".join(f"{path}={what}" for path, what in self.entries))


_TENSOR = re.compile(r"=(\w+)\[(\d+(?:, \d+)*)\](?! strides)")
"""A tensor in the text of a signature: its dtype and its sizes."""

ELLIPSIS = "..."


def suggest_input(
    declared: Sequence[Input],
    *,
    function: str,
    signature: str,
    route: str = "",
    largest: int = 1,
    is_multiplexed: bool = False,
) -> str:
    """Return Python code to paste: the `Input(...)` that prevents a compile during traffic.

    `signature` is the text of an `InputSignature`. `route` is the path of an HTTP request, and
    `largest` is the largest batch size. `is_multiplexed` says that the request named a model.
    Requests are not stored or shown, so unknown arguments appear as `...`, and a comment shows the
    compiled call.

    >>> suggest_input([Input(target="embed", concurrency=4)], function="forward (app.py:7)",
    ...               signature="x=float32[3, 16]", largest=4)
    "Input(target='embed', concurrency=3)"
    """
    tensors = _TENSOR.findall(signature)
    like = [item for item in declared if not route or _path(item) == route]
    if not like:
        target = f"POST {route}" if route else "__call__"
        what = "json=..." if route else "args=(...,)"
        what += ", model_id=..." * is_multiplexed
        return f"Input(target={target!r}, {what})  # so that {function} gets {signature}"
    item = min(like, key=lambda each: each.size / each.concurrency)
    words = [f"target={item.target_name!r}"]
    batch = int(tensors[0][1].partition(",")[0]) if tensors else 0
    sizes = {each.concurrency for each in like if each.target_name == item.target_name}
    if 1 <= batch <= largest and batch not in sizes:
        words += _as_declared(item)
        words += ["model_id=..."] * is_multiplexed
        return f"Input({', '.join([*words, f'concurrency={batch}'])})"
    has_tensors_alone = all(hasattr(arg, "dtype") for arg in item.args)
    if tensors and len(tensors) == len(item.args) and has_tensors_alone:
        zeros = (f"torch.zeros({shape}, dtype=torch.{dtype})" for dtype, shape in tensors)
        words += [f"args=({', '.join(zeros)},)", *["model_id=..."] * is_multiplexed]
        return f"Input({', '.join(words)})"
    if item.http is None:
        words.append("args=(...,)")
    elif item.http[0] in HAVE_BODIES:
        words.append("json=...")
    else:
        words = [f"target={_open_query(*item.http)!r}"]
    words += ["model_id=..."] * is_multiplexed
    return f"Input({', '.join(words)})  # so that {function} gets {signature}"


HAVE_BODIES = frozenset({"POST", "PUT", "PATCH"})
"""HTTP methods whose requests have a body."""


def _open_query(verb: str, path: str) -> str:
    """Return a target for a request without a body; the user must fill in the query."""
    plain, _, query = path.partition("?")
    names = [name for name, _ in urllib.parse.parse_qsl(query, keep_blank_values=True)]
    asked = "&".join(f"{urllib.parse.quote(name)}={ELLIPSIS}" for name in names) or ELLIPSIS
    return f"{verb} {plain}?{asked}"


def _path(item: Input) -> str:
    return item.http[1].partition("?")[0] if item.http else ""


def _as_declared(item: Input) -> list[str]:
    """Return the declared arguments of an input as code, with `...` for each long argument."""
    words = []
    for name in ("args", "kwargs", "json", "body", "headers"):
        value = getattr(item, name)
        if value not in ((), {}, None, b""):
            text = repr(value)
            words.append(f"{name}={text if len(text) <= SHOWN_ARGUMENT else ELLIPSIS}")
    return words


SHOWN_ARGUMENT = 200
"""Maximum length of a declared argument in a suggestion. A longer argument appears as `...`."""


def _entries(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and depth:
        for key, item in itertools.islice(value.items(), 16):
            yield from _entries(item, f"{path}.{_key(key)}", depth - 1)
    elif isinstance(value, (list, tuple)) and depth:
        for index, item in enumerate(value[:16]):
            yield from _entries(item, f"{path}[{index}]", depth - 1)
    elif hasattr(type(value), "dtype") and hasattr(type(value), "shape"):
        # Check the type: an object with a __getattr__ may seem to have every attribute.
        yield path, str(value.dtype).removeprefix("torch.") + _layout(value)
    elif isinstance(value, int) and value.bit_length() > LONGEST_BITS:
        yield path, f"int[{value.bit_length()} bits]"  # Python refuses to print huge numbers
    elif isinstance(value, (bool, int, float)):
        yield path, repr(value)
    elif isinstance(value, str):
        # A string in a request is private, but its length can matter to a graph.
        yield path, f"str[{len(value)}]"


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key if is_name(key) else f"str[{len(key)}]"
    is_short = isinstance(key, int) and key.bit_length() <= LONGEST_BITS
    return str(key) if is_short else type(key).__name__


def _layout(tensor: Any) -> str:
    try:
        # The same notation as for calls of entries (`precompile.facts.names`).
        shape = ", ".join(str(size) for size in tensor.shape) or "scalar"
        check = getattr(tensor, "is_contiguous", None)
        contiguous = check() if callable(check) else True
        return f"[{shape}]" if contiguous else f"[{shape}] strides {list(tensor.stride())}"
    except (RuntimeError, TypeError, AttributeError, ValueError):
        # Nested tensors have no shape, some sparse tensors have no strides, and other objects only
        # look like tensors. A signature is only for people, so an error here must not fail a
        # request.
        nested = getattr(tensor, "is_nested", False)
        layout = "nested" if nested else str(getattr(tensor, "layout", "unreadable"))
        return f"[{layout.removeprefix('torch.')}]"
