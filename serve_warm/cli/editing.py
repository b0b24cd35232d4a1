# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of a Serve config, with which editors complete and check the settings."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Mapping
from typing import Any

from serve_warm import config
from serve_warm.app import WRAP
from serve_warm.config import WarmupConfig


def serve_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a Serve config.

    It covers the settings of serve_warm, in `user_config.warmup` and in the `args` of
    `serve_warm.app:wrap`. All other keys are Serve's, and allowed.
    """
    of_warmup = WarmupConfig.model_json_schema(ref_template="#/$defs/{model}")
    definitions = {"WarmupConfig": of_warmup, **of_warmup.pop("$defs", {})}
    for name, schema in definitions.items():
        _describe(schema, docstrings_of(name))
    for name in ("record", "eager_sample"):
        field = of_warmup["properties"][name]
        accepted = {key: field.pop(key) for key in ("type", "enum") if key in field}
        field["anyOf"] = [accepted, {"const": False}]  # which `off` is in YAML
    strings = {"type": "array", "items": {"type": "string"}}
    args = {
        "type": "object",
        "required": ["app"],
        "additionalProperties": False,
        "properties": {
            "app": {"type": "string", "description": "Import path of the application."},
            "args": {"type": "object", "description": "Arguments of its own builder function."},
            "compile": {
                "anyOf": [strings, {"type": "object", "additionalProperties": strings}],
                "description": "Attributes that become compiled modules after `__init__`; with "
                "several deployments, lists by deployment.",
            },
            **of_warmup["properties"],
        },
    }
    user_config = {"properties": {"warmup": {"$ref": "#/$defs/WarmupConfig"}}}
    application = {
        "type": "object",
        "properties": {
            "deployments": {
                "type": "array",
                "items": {"type": "object", "properties": {"user_config": user_config}},
            }
        },
        "if": {"properties": {"import_path": {"const": WRAP}}, "required": ["import_path"]},
        "then": {"required": ["args"], "properties": {"args": args}},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Ray Serve config with serve_warm",
        "type": "object",
        "properties": {"applications": {"type": "array", "items": application}},
        "$defs": definitions,
    }


def _describe(schema: dict[str, Any], texts: Mapping[str, str]) -> None:
    """Put descriptions at the fields, and leave out the titles, which repeat the names."""
    schema.pop("title", None)
    for name, field in schema["properties"].items():
        field.pop("title", None)
        if name in texts:
            field["description"] = texts[name]


def docstrings_of(name: str) -> dict[str, str]:
    """Return the texts below the fields of a class of settings, by field."""
    tree = ast.parse(inspect.getsource(config))
    classes = {each.name: each.body for each in tree.body if isinstance(each, ast.ClassDef)}
    found = {}
    for field, text in itertools.pairwise(classes[name]):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            target, written = field.target, text.value
            if isinstance(target, ast.Name) and isinstance(written, ast.Constant):
                found[target.id] = inspect.cleandoc(str(written.value))
    return found
