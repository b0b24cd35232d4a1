# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One request of traffic with its values, as a plan lists it if a person wants it to.

Imports neither torch nor Ray, so that the command that makes plans starts fast.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from serve_warm._records import record
from serve_warm.errors import ConfigError
from serve_warm.inputs import HTTP_TARGET
from serve_warm.learn.recorded import MOST_CALLS, class_name

MOST_BYTES = 64 << 10
"""Maximum size of one request, as JSON."""

DEEPEST = 16
"""Maximum number of containers inside one another."""

MARKS = frozenset({"$tensor", "$array", "$tuple", "$bytes"})
"""Keys of the mappings that stand for what JSON has not."""


MOST_BITS = 2048
"""Maximum size of a whole number. Python refuses to write numbers that are a little larger."""

OF_REQUESTS = "requests with their values: "
"""How the reasons begin why requests are not in a plan. The other reasons are about calls."""

TOO_LARGE = f"a request is larger than {MOST_BYTES >> 10} KiB"


class NotRecordable(Exception):
    """A request has a value that cannot be recorded. The text says which."""


@record(frozen=True, kw_only=True)
class RecordedRequest:
    """A request that reached code which no other recorded request reached."""

    target: str
    """The method, or for example `POST /embed?lang=de`."""
    arguments: Mapping[str, Any]
    """`args` and `kwargs` of a method; `json`, or `body` and `content_type` of an HTTP request. In
    them, a mapping with one key of `MARKS` stands for a tensor, an array, a tuple or bytes."""
    tensors: str = ""
    """The tensors and arrays: a file of safetensors, in base64."""
    model_id: str = ""
    """Multiplexed model id."""
    calls: int = 0
    """Number of requests like it."""
    reached: str = ""
    """A digest of its handler and of the kinds of calls that it made, which is the same in all
    replicas; empty if a recorder does not know them."""

    @property
    def name(self) -> str:
        """The request, as reports show it. A path may have values, such as a user's name."""
        verb, is_http, _ = self.target.partition(" ")
        return f"recorded {verb} /…" if is_http else f"recorded {self.target}"

    def to_json(self) -> dict[str, Any]:
        """Return the request as a plan lists it."""
        return {
            "target": self.target,
            "arguments": dict(self.arguments),
            **({"tensors": self.tensors} if self.tensors else {}),
            **({"model_id": self.model_id} if self.model_id else {}),
            "calls": self.calls,
            **({"reached": self.reached} if self.reached else {}),
        }

    @classmethod
    def from_json(cls, data: object) -> RecordedRequest:
        """Return the request that `to_json` wrote.

        Raises:
            ConfigError: it is not such a request.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"a recorded request is {type(data).__name__}, not a mapping")
        known = {"target", "arguments", "tensors", "model_id", "calls", "reached"}
        if unknown := sorted(map(str, data.keys() - known)):
            raise ConfigError(f"a recorded request has unknown keys: {', '.join(unknown)}")
        target, arguments, calls = data.get("target"), data.get("arguments"), data.get("calls", 0)
        tensors, model_id = data.get("tensors", ""), data.get("model_id", "")
        reached = data.get("reached", "")
        is_right = (
            isinstance(target, str)
            and (HTTP_TARGET.fullmatch(target) or target.isidentifier() or target == "__call__")
            and isinstance(arguments, Mapping)
            and isinstance(tensors, str)
            and isinstance(model_id, str)
            and isinstance(reached, str)
            and type(calls) is int
            and 0 <= calls < MOST_CALLS
        )
        if not is_right or arguments is None or not _are_arguments(arguments, str(target)):
            raise ConfigError(
                "a recorded request is not complete",
                hint="it needs target (a text), and arguments: args (a list) and kwargs (a "
                "mapping), or over HTTP json, or body and content_type (texts)",
            )
        made = cls(
            target=str(target),
            arguments=dict(arguments),
            tensors=tensors,
            model_id=model_id,
            calls=calls,
            reached=reached,
        )
        if size_of(made) > MOST_BYTES:
            raise ConfigError(f"a recorded request is larger than {MOST_BYTES >> 10} KiB")
        if not _has_text_keys(made.arguments):
            raise ConfigError("a recorded request has a key that is no text", hint="write quotes")
        return made


def _are_arguments(arguments: Mapping[Any, Any], target: str) -> bool:
    if " " not in target:
        is_complete = arguments.keys() == {"args", "kwargs"}
        return (
            is_complete
            and isinstance(arguments["args"], list)
            and isinstance(arguments["kwargs"], Mapping)
        )
    texts = (arguments.get("body", ""), arguments.get("content_type", ""))
    return arguments.keys() <= {"json", "body", "content_type"} and all(
        isinstance(each, str) for each in texts
    )


def _has_text_keys(value: Any) -> bool:
    """Return whether all keys of mappings are texts, in a value that JSON can have."""
    if isinstance(value, Mapping):
        return all(type(key) is str and _has_text_keys(each) for key, each in value.items())
    return not isinstance(value, list) or all(map(_has_text_keys, value))


def size_of(request: RecordedRequest) -> int:
    """Return the number of bytes of a request, as JSON.

    Raises:
        ConfigError: JSON cannot have it.
    """
    try:
        return len(json.dumps(request.to_json()))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"a recorded request has a value that JSON has not: {error}",
            hint="write dates and the like as texts, in quotes",
        ) from error


class Budget:
    """The bytes that a request may still take. Describing a request stops when they are used."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._left = most

    def take(self, count: int) -> None:
        """Use some of the bytes.

        Raises:
            NotRecordable: fewer are left.
        """
        self._left -= count
        if self._left < 0:
            raise NotRecordable(TOO_LARGE)


def plain(
    value: Any, other: Callable[[Any], Any], *, budget: Budget | None = None, depth: int = 0
) -> Any:
    """Return a value as JSON has it. `other` returns what stands for a value that JSON has not.

    Looks at no more items than fit into the budget.

    Raises:
        NotRecordable: the value, or one in it, cannot be recorded, or it is too large.
    """
    budget = Budget() if budget is None else budget
    if depth > DEEPEST:
        raise NotRecordable("containers are too deep inside one another")
    kind = type(value)  # not its `__class__`, which can be code of the application
    if kind is str or kind is float or kind is int:
        return _plain_scalar(value, budget)
    if value is None or kind is bool:
        budget.take(4)
        return value
    if kind is list or kind is tuple:
        budget.take(2 * len(value))  # at least, so a long list is refused before it is read
        items = [plain(each, other, budget=budget, depth=depth + 1) for each in value]
        return items if kind is list else {"$tuple": items}
    if kind is dict:
        budget.take(5 * len(value))
        made = {}
        for key, each in value.items():
            if type(key) is not str or key.startswith("$"):
                raise NotRecordable("a key of a mapping is no text, or begins with $")
            budget.take(len(key))
            made[key] = plain(each, other, budget=budget, depth=depth + 1)
        return made
    for base in (str, int, float):
        if issubclass(kind, base):
            raise NotRecordable(f"a value is a {class_name(kind)}")
    return other(value)


def _plain_scalar(value: str | float, budget: Budget) -> str | float:
    if isinstance(value, str):
        budget.take(len(value) + 2)
    elif isinstance(value, int):
        if value.bit_length() > MOST_BITS:
            raise NotRecordable(f"a number has more than {MOST_BITS} bits")
        budget.take(1 + value.bit_length() // 4)
    else:
        if not math.isfinite(value):
            raise NotRecordable("a number is not finite")
        budget.take(3)
    return value


def restored(value: Any, other: Callable[[str, Any], Any]) -> Any:
    """Return the value of which `plain` made this. `other` makes what stands behind a mark."""
    if isinstance(value, list):
        return [restored(each, other) for each in value]
    if isinstance(value, dict):
        mark = next(iter(value), "")
        if len(value) == 1 and mark in MARKS:
            inner = value[mark]
            if mark == "$tuple":
                return tuple(restored(each, other) for each in inner)
            return other(mark, inner)
        return {key: restored(each, other) for key, each in value.items()}
    return value


def with_values(arguments: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as a handler gets them: with the tensors, arrays and bytes in place.

    Raises:
        LookupError: a tensor is missing.
        ValueError: bytes are damaged.
    """

    def other(mark: str, inner: Any) -> Any:
        if mark == "$bytes":
            return base64.b64decode(inner, validate=True)
        return tensors[inner] if mark == "$tensor" else tensors[inner].numpy()

    made: dict[str, Any] = restored(dict(arguments), other)
    return made
