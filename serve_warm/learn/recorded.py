# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One kind of call that traffic makes, as a plan lists it. Contains nothing of a request's content.

Imports neither torch nor Ray, so that the command that makes plans starts fast.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from serve_warm._records import record
from serve_warm._redaction import excerpt, is_name
from serve_warm.errors import ConfigError, InputError

TENSOR = re.compile(
    r"(?P<class>\w+) (?P<dtype>\w+)\[(?P<sizes>(?:[0-9]{1,19}(?:, ?[0-9]{1,19})*)?)\] "
    r"strides \[(?P<strides>(?:[0-9]{1,19}(?:, ?[0-9]{1,19})*)?)\] "
    r"on (?P<device>[a-z]+(?::[0-9]{1,4})?)"
)
"""The metadata of a tensor (`facts.names.describe_tensor`)."""

HIDDEN = re.compile(r"\bstr\[\d+\]")
"""Stands for a string of a request in the structure of a call."""

MODEL_THREAD = "serve_warm-model"
"""How the name of a replica's model thread begins."""

SHOWN = 120
"""Maximum number of characters that an error shows of a plan."""

MOST_CALLS = 1 << 63
"""A number of calls is smaller. Python refuses to write numbers of more than 4,300 digits."""

LONGEST = 1 << 16
"""Maximum number of characters of a structure."""


def numbers_in(text: str) -> list[int]:
    """Return the whole numbers in a list of sizes or strides.

    >>> numbers_in("3, 16")
    [3, 16]
    """
    return [int(each) for each in re.findall(r"\d+", text)]


def class_name(kind: type) -> str:
    """Return the name of a class. A name that is made in a request may have a request's content."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    parts = name.replace(".<locals>", "").split(".")
    return name if len(name) <= SHOWN and all(map(is_name, parts)) else "class without a plain name"


class NotRepeatable(InputError):
    """A call of a plan cannot be repeated: its callable is gone, or it fails uncompiled, too."""


@record(frozen=True, kw_only=True)
class RecordedCall:
    """A kind of call of one compiled callable."""

    callable: str
    """Class of the module, or name of the function."""
    number: int = 0
    """Which callable of this name, in the order in which they were compiled."""
    structure: str
    """The arguments as source code. Tensors are written as t0, t1 and so on."""
    tensors: tuple[str, ...]
    """Metadata of each tensor."""
    modes: Mapping[str, bool] = field(default_factory=dict)
    """Whether `inference_mode` and `grad_mode` were on, and whether a tensor was made in inference
    mode (`inference_tensors`): torch's guards tell such tensors apart."""
    normal_tensors: tuple[int, ...] = ()
    """Numbers of the tensors that were not made in inference mode, if others were."""
    on_model_thread: bool = False
    """Whether the replica's model thread made the call."""
    calls: int = 0
    any_size: tuple[tuple[int, int], ...] = ()
    """Axes, as the number of a tensor and of its axis, that shall be open in the code for this call
    (`learn.any_size`). In an artifact, those on which code takes the double or the half, too."""

    @property
    def key(self) -> tuple[object, ...]:
        """What tells kinds of calls apart."""
        modes = tuple(sorted(self.modes.items()))
        where_made = modes, self.normal_tensors
        return self.callable, self.number, self.structure, self.tensors, where_made

    @property
    def name(self) -> str:
        """The call, as reports show it."""
        number = f" #{self.number + 1}" if self.number else ""
        tensors = ", ".join(re.sub(r" strides \[.*?\] on \S+$", "", each) for each in self.tensors)
        return f"{self.callable}{number}({self.structure}) with {tensors}"

    @property
    def sizes(self) -> list[list[int]]:
        """The sizes of each tensor; empty for one that no recorder describes."""
        found = map(TENSOR.fullmatch, self.tensors)
        return [[] if each is None else numbers_in(each["sizes"]) for each in found]

    def why_not(self) -> str:
        """Return why the call cannot be repeated; empty if it can."""
        if HIDDEN.search(self.structure):
            return "an argument is a string of a request, which was not recorded"
        for each in self.tensors:
            if not TENSOR.fullmatch(each):
                return f"a tensor is not described as a recorder would: {excerpt(each, SHOWN)!r}"
        try:
            arguments_of(
                self.structure, self.tensors, lambda name: tuple if name == "Size" else name
            )
        except ValueError as error:
            return str(error)
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return the call as a plan lists it."""
        return {
            "callable": self.callable,
            **({"number": self.number} if self.number else {}),
            "structure": self.structure,
            "tensors": list(self.tensors),
            "modes": dict(self.modes),
            **({"normal_tensors": list(self.normal_tensors)} if self.normal_tensors else {}),
            **({"on_model_thread": True} if self.on_model_thread else {}),
            "calls": self.calls,
            **({"any_size": [list(each) for each in self.any_size]} if self.any_size else {}),
        }

    @classmethod
    def from_json(cls, data: object) -> RecordedCall:
        """Return the call that `to_json` wrote.

        Raises:
            ConfigError: it is not such a call.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"a recorded call is {type(data).__name__}, not a mapping")
        if unknown := sorted(map(str, data.keys() - KEYS)):
            raise ConfigError(f"a recorded call has unknown keys: {', '.join(unknown)}")
        name, structure = data.get("callable"), data.get("structure")
        tensors, modes = data.get("tensors"), data.get("modes", {})
        number, calls = data.get("number", 0), data.get("calls", 0)
        any_size, normal = data.get("any_size", []), data.get("normal_tensors", [])
        is_right = (
            isinstance(name, str)
            and isinstance(structure, str)
            and len(structure) <= LONGEST
            and isinstance(tensors, list)
            and all(isinstance(each, str) for each in tensors)
            and isinstance(modes, Mapping)
            and all(isinstance(k, str) and isinstance(v, bool) for k, v in modes.items())
            and all(type(each) is int and 0 <= each < MOST_CALLS for each in (number, calls))
            and isinstance(normal, list)
            and all(type(each) is int and 0 <= each < len(tensors) for each in normal)
            and isinstance(any_size, list)
            and all(_is_axis(each, len(tensors)) for each in any_size)
        )
        if not is_right:
            raise ConfigError(
                f"a recorded call is not complete: {excerpt(str(dict(data)), SHOWN)}",
                hint="it needs callable and structure (texts) and tensors (a list of texts)",
            )
        return cls(
            callable=str(name),
            number=number,
            structure=str(structure),
            tensors=tuple(tensors or ()),
            modes=dict(modes),
            normal_tensors=tuple(normal),
            on_model_thread=bool(data.get("on_model_thread")),
            calls=calls,
            any_size=tuple((tensor, axis) for tensor, axis in any_size),
        )


KEYS = frozenset(
    {
        *("callable", "number", "structure", "tensors", "modes", "on_model_thread", "calls"),
        *("normal_tensors", "any_size"),
    }
)
"""What `RecordedCall.from_json` reads."""


def _is_axis(given: object, tensors: int) -> bool:
    return (
        isinstance(given, list)
        and len(given) == 2
        and all(type(each) is int and each >= 0 for each in given)
        and given[0] < tensors
        and given[1] < MOST_AXES
    )


MOST_AXES = 64
"""A tensor has fewer axes."""


def arguments_of(
    structure: str, tensors: Sequence[Any], torch_of: Callable[[str], Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments that a structure describes, with these tensors.

    `torch_of` returns what `torch.` and a name means: a dtype, or `torch.Size`.

    Raises:
        ValueError: the structure has anything that a recorder never writes.
    """
    wrong = f"the structure is not the arguments of a call: {excerpt(structure, SHOWN)!r}"
    try:
        call: Any = ast.parse(f"f({structure})", mode="eval").body
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise ValueError(wrong) from error
    is_call = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    if not is_call:
        raise ValueError(wrong)
    values = _Values(tensors, torch_of)
    kwargs: dict[str, Any] = {}
    try:
        for each in call.keywords:
            value = values.visit(each.value)
            kwargs.update({each.arg: value} if each.arg is not None else value)
        args = [values.visit(each) for each in call.args]
    except (TypeError, IndexError, RecursionError) as error:
        raise ValueError(wrong) from error
    if not all(isinstance(name, str) for name in kwargs):
        raise ValueError(wrong)
    return args, kwargs


class _Values(ast.NodeVisitor):
    """Returns the values of expressions that consist of values, containers and tensors."""

    def __init__(self, tensors: Sequence[Any], torch_of: Callable[[str], Any]) -> None:
        self._tensors = tensors
        self._torch_of = torch_of

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_Name(self, node: ast.Name) -> Any:
        if not re.fullmatch(r"t\d{1,4}", node.id):
            return self.generic_visit(node)
        return self._tensors[int(node.id[1:])]

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if not isinstance(node.op, ast.USub):
            return self.generic_visit(node)
        return -self.visit(node.operand)

    def visit_List(self, node: ast.List) -> list[Any]:
        return [self.visit(each) for each in node.elts]

    def visit_Tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self.visit(each) for each in node.elts)

    def visit_Dict(self, node: ast.Dict) -> dict[Any, Any]:
        items = zip(node.keys, node.values, strict=True)
        return {self.visit(key): self.visit(value) for key, value in items if key is not None}

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if not re.fullmatch(r"torch\.(Size|[a-z]\w*)", ast.unparse(node)):
            return self.generic_visit(node)
        return self._torch_of(node.attr)

    def visit_Call(self, node: ast.Call) -> Any:
        if ast.unparse(node.func) != "torch.Size" or node.keywords:
            return self.generic_visit(node)
        return self.visit(node.func)(*map(self.visit, node.args))

    def generic_visit(self, node: ast.AST) -> Any:
        raise ValueError(
            f"the structure has {excerpt(ast.unparse(node), SHOWN)!r}, which is no recorded value"
        )
