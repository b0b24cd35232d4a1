# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Sample arguments for declared inputs, from type hints, pydantic models and OpenAPI schemas.

A value that nothing tells is UNKNOWN. It appears as `...` in the proposed code, for a person to
fill in: a guess would be replayed and proven.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

UNKNOWN: Any = ...
"""Stands for a value that a person has to fill in."""

TEXT = "text"

DEPTH = 8
"""How deep models in models are followed; they may contain themselves."""

PLAIN: Mapping[Any, Any] = {str: TEXT, int: 1, float: 1.0, bool: True}


def code_of(value: Any) -> str:
    """Return the Python expression of a sample value.

    >>> code_of({"text": "hello", "sizes": [1, UNKNOWN]})
    '{"text": "hello", "sizes": [1, ...]}'
    """
    if value is UNKNOWN:
        return "..."
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{code_of(key)}: {code_of(each)}' for key, each in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(code_of, value))},)"
    if isinstance(value, list):
        return f"[{', '.join(map(code_of, value))}]"
    if isinstance(value, str) and value.isprintable() and not {'"', "\\"} & set(value):
        return f'"{value}"'
    return repr(value)


def sample_of(method: Callable[..., Any], name: str) -> Any:
    """Return a sample of a method's argument, by its type hint."""
    try:
        hints = typing.get_type_hints(method)
    except (NameError, TypeError, AttributeError):  # hints for type checkers only
        return UNKNOWN
    return _sample_of_type(hints.get(name), DEPTH)


def _sample_of_type(hint: Any, depth: int) -> Any:
    if hint in PLAIN:
        return PLAIN[hint]
    origin = typing.get_origin(hint)
    arguments = [each for each in typing.get_args(hint) if each is not type(None)]
    if not arguments or depth == 0:
        return UNKNOWN
    if origin is typing.Literal:
        return arguments[0]
    samples = [_sample_of_type(each, depth - 1) for each in arguments]
    if origin is list:
        return samples
    if origin is dict:
        return {samples[0]: samples[1]}
    return samples[0] if origin in ALTERNATIVES else UNKNOWN


ALTERNATIVES = (typing.Union, types.UnionType, typing.Annotated)


def sample_of_schema(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Any:
    """Return a sample of a parameter or body, by its examples or by its JSON Schema.

    `document` is the OpenAPI document that references lead into.
    """
    return _sample(schema, document, DEPTH)


def _sample(schema: Any, document: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth == 0:
        return UNKNOWN
    written = _read_example(schema)
    if written is not None:
        return written
    inner = schema.get("schema")
    for key in ("anyOf", "oneOf", "allOf"):
        inner = inner or next(iter(schema.get(key) or ()), None)
    if "$ref" in schema:
        inner = _follow(str(schema["$ref"]), document)
    if inner is not None:
        return _sample(inner, document, depth - 1)
    return _sample_of_kind(schema, document, depth)


def _read_example(schema: Mapping[str, Any]) -> Any:
    """Return a value that the schema itself shows; None if it shows none."""
    examples = schema.get("examples") or ()
    if isinstance(examples, Mapping):  # of OpenAPI, by name
        examples = [each.get("value") for each in examples.values() if isinstance(each, Mapping)]
    shown = (
        schema.get("example") or None,  # FastAPI writes {} for a parameter without one
        *examples,
        schema.get("const"),
        schema.get("default"),
        *(schema.get("enum") or ()),
    )
    return next((each for each in shown if each is not None), None)


def _sample_of_kind(schema: Mapping[str, Any], document: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        wanted = [
            key
            for key, each in properties.items()
            if key in schema.get("required", ()) or _read_example(each) is not None
        ]
        return {key: _sample(properties[key], document, depth - 1) for key in wanted}
    if not {*schema} <= HANDLED:  # a pattern, a multiple: a value that fits cannot be made here
        return UNKNOWN
    if kind == "array":
        count = max(1, int(schema.get("minItems") or 1))
        item = _sample(schema.get("items"), document, depth - 1)
        return [item] * count if count <= MOST_ITEMS else UNKNOWN
    if kind == "string":
        least, most = int(schema.get("minLength") or 0), int(schema.get("maxLength") or MOST_TEXT)
        return (TEXT * (least // len(TEXT) + 1))[: max(least, min(len(TEXT), most))]
    if kind in ("integer", "number"):
        return _sample_of_number(schema, float if kind == "number" else int)
    return True if kind == "boolean" else UNKNOWN


HANDLED = frozenset(
    {
        *("type", "title", "description", "items", "minItems", "maxItems", "minLength"),
        *("maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    }
)
"""Keywords of a schema that a sample heeds, or that do not limit a value."""

MOST_ITEMS, MOST_TEXT = 16, 1024


def _sample_of_number(schema: Mapping[str, Any], kind: type) -> Any:
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    for value in (1, 0, least, most, 0 if None in (least, most) else (least + most) / 2):
        if value is not None and _is_within(schema, value) and kind(value) == value:
            return kind(value)
    step = 1 if kind is int else 0.5
    near = [edge + sign * step for edge, sign in ((least, 1), (most, -1)) if edge is not None]
    return next((kind(value) for value in near if _is_within(schema, value)), UNKNOWN)


def _is_within(schema: Mapping[str, Any], value: float) -> bool:
    return bool(
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and schema.get("exclusiveMinimum", value - 1)
        < value
        < schema.get("exclusiveMaximum", value + 1)
    )


def _follow(reference: str, document: Mapping[str, Any]) -> Any:
    found: Any = document
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
