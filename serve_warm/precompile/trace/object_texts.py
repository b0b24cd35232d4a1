# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Texts that torch takes from real objects while it traces, as in `str(self.config)`.

For many objects, Dynamo calls the object's own method, and neither traces the method nor guards
what it reads. The hooks use private torch code (seen in 2.11 to 2.15).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from serve_warm.private_apis import dynamo
from serve_warm.private_apis.patches import Change

if TYPE_CHECKING:
    from serve_warm.precompile.trace.guards import Guard
    from serve_warm.private_apis.dynamo_objects import Translator, Variable

ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")
"""The address of an object in its text."""

TEXTS = (
    *("UserDefinedObjectVariable.repr_impl", "NNModuleVariable.repr_impl"),  # 2.13
    *("UserDefinedObjectVariable.tp_repr_impl", "NNModuleVariable.tp_repr_impl"),  # from 2.14 on
    "UserDefinedObjectVariable.tp_str_impl",
    *("BuiltinVariable.call_str", "BuiltinVariable.call_repr"),  # the only ones in 2.11
)
"""Methods that return the text of an object."""

HAS_ADDRESS = "it takes the text of an object, which contains the object's address"


def noting_texts(
    guards: list[Guard], refusals: list[str], guard_at: Callable[..., Guard]
) -> Iterator[Change]:
    """Record a guard for each text of an object that Dynamo does not trace.

    `guard_at(source, **fields)` returns a guard on a Dynamo source. A text that differs in each
    process is added to `refusals`.
    """

    def note(variable: Variable, text: Variable | None) -> Variable | None:
        value = vars(variable).get("value")
        kind: Any = type(value)
        if kind.__str__ is not object.__str__ or text is None or not text.is_python_constant():
            return text
        if ADDRESS.search(str(text.as_python_constant())):
            refusals.append(HAS_ADDRESS)
        elif variable.source is not None:
            guards.append(guard_at(variable.source, kind="TEXT", value=value))
        return text

    def noting(original: Callable[..., Variable | None]) -> Callable[..., Variable | None]:
        def text_of(self: Variable, tx: Translator, *args: Variable) -> Variable | None:
            owner = args[0] if args else self
            _guard_items(owner)
            return note(owner, original(self, tx, *args))

        return text_of

    for name in TEXTS:
        yield Change(name, noting)


def _guard_items(variable: Variable) -> None:
    """Make Dynamo guard all items of a dict, whose text it takes without guards."""
    if dynamo.is_dict(variable) and variable.source is not None:
        variable.install_dict_keys_match_guard()
        dynamo.read_all(variable)
