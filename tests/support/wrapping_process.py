# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Wraps the applications of `wrapping_apps`, and prints what came out as JSON.

python wrapping_process.py '{}'
"""

from __future__ import annotations

import importlib
import json
import os
import pickletools
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from ray import cloudpickle

import serve_warm.app
from serve_warm.app import configure, wrap, wrap_application
from serve_warm.errors import ServeWarmError
from serve_warm.private_apis.ray_serve import build_app
from serve_warm.replica.serve.wrapped import WrappedMixin

APP = {"app": "wrapping_apps:app"}
WRONG: dict[str, Any] = {
    "no app": {"artifact": "./x"},
    "unknown key": {**APP, "artefact": "./x"},
    "builder's key": {**APP, "scale": 3},
    "no module": {"app": "no_such_module:app"},
    "no attribute": {"app": "wrapping_apps:missing"},
    "no application": {"app": "wrapping_apps:Deployment"},
    "setting": {**APP, "on_missing": "maybe"},
    "compile is text": {**APP, "compile": "model"},
    "compile of none": {**APP, "compile": {"Missing": ["model"]}},
    "compile of two": {**APP, "compile": ["model"]},
    "compile of the mixin": {"app": "wrapping_apps:mixed", "compile": ["model"]},
}


def deployments(bound: Any) -> dict[str, Any]:
    return {each.name: each for each in build_app(bound, name="x").deployments}


def error_of(args: dict[str, Any]) -> dict[str, str]:
    try:
        wrap(args)
    except ServeWarmError as error:
        return {
            "kind": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
        }
    return {"kind": "none", "message": "", "hint": ""}


def reloaded() -> list[int]:
    """Return what an edited module says at each wrap: as it was, and after a reload."""
    file = Path(tempfile.mkdtemp()) / "edited_app.py"
    sys.path.insert(0, str(file.parent))
    text = "from wrapping_apps import app\nVERSION = {}\n"
    versions = []

    def wrap_now() -> None:
        serve_warm.app.wrap({"app": "edited_app:app"})
        versions.append(sys.modules["edited_app"].VERSION)

    file.write_text(text.format(1))
    wrap_now()
    file.write_text(text.format(22))
    wrap_now()
    importlib.reload(serve_warm.app)  # as serve run --reload does
    wrap_now()
    return versions


def main(_: dict[str, Any]) -> dict[str, Any]:
    composed = deployments(wrap(APP))
    classes = {name: each.func_or_class for name, each in composed.items()}
    raw = cloudpickle.dumps(classes["Model"])  # type: ignore[no-untyped-call]
    names = ("serve_warm.replica.serve.takes_compile", "wrapping_apps")
    texts = [arg for _, arg, _ in pickletools.genops(raw) if arg in names]
    with_settings = deployments(wrap({**APP, "artifact": "s3://bucket/x", "after_ready": "eager"}))
    config = with_settings["Model"].func_or_class.warmup_config
    once = wrap(APP)
    twice = deployments(wrap_application(once, settings={"artifact": "./other"}))
    left = {"has the mixin": "mixed", "ray.serve.llm": "of_ray", "no subclass": "closed"}
    wrap({"app": "wrapping_apps:build", "args": {"scale": 3}})
    os.environ["XDG_DATA_HOME"] = "/data"
    return {
        "errors": {name: error_of(args) for name, args in WRONG.items()},
        "composed": {
            name: {
                "wrapped": issubclass(classes[name], WrappedMixin),
                "max_ongoing_requests": each.max_ongoing_requests,
                "module": classes[name].__module__,
            }
            for name, each in composed.items()
        },
        "shared": sorted(deployments(wrap({"app": "wrapping_apps:both"}))),
        "settings": {name: getattr(config, name) for name in ("artifact", "record", "after_ready")},
        "default store": configure({}).artifact,
        "left": {
            what: any(
                issubclass(each.func_or_class, WrappedMixin)
                for each in deployments(wrap({"app": f"wrapping_apps:{name}"})).values()
            )
            for what, name in left.items()
        },
        "twice": [
            each.func_or_class is deployments(once)[name].func_or_class
            for name, each in twice.items()
        ],
        "built": sys.modules["wrapping_apps"].seen,
        "order": texts[:2],
        "reloaded": reloaded(),
        "torch.compile is torch's": not hasattr(torch.compile, "__wrapped__"),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
