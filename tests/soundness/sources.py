# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows whose code changes between the build and the start, like a new release of a file.

Each group writes a Python module and imports it. A build imports the first text, and a start
imports the second one. Builds and starts are separate processes, and each row imports its module
again.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from soundness.rows import START, Group, Row

HEAD = """
import enum
import functools
import math
import torch
"""

MODEL = """
from soundness.rows import Numbered

class Model(Numbered):
    def number(self):
        return {number}
"""

TEXTS: dict[str, tuple[str, str]] = {
    "a function": ("def number():\n    return 2\n", "number()"),
    "a constant": ("NUMBER = 2\n", "NUMBER"),
    "a function behind functools.wraps of torch": (
        "@functools.wraps(torch.mm)\ndef number():\n    return 2\n",
        "number()",
    ),
    "a function behind functools.wraps of Python": (
        "@functools.wraps(math.sqrt)\ndef number():\n    return 2\n",
        "number()",
    ),
    "a function under another module's name": (
        "def number():\n    return 2\nnumber.__module__ = 'torch.nn.functional'\n",
        "number()",
    ),
    "a decorator": (
        (
            "def decorated(function):\n"
            "    @functools.wraps(function)\n"
            "    def inner():\n"
            "        return function() + 2\n"
            "    return inner\n\n"
            "@decorated\ndef number():\n    return 0\n"
        ),
        "number()",
    ),
    "a partial": (
        "def add(a, b):\n    return a + b\nnumber = functools.partial(add, 0, 2)\n",
        "number()",
    ),
    "a lambda": ("number = lambda: 2\n", "number()"),
    "a closure": (
        (
            "def closed():\n    value = 2\n    def number():\n        return value\n"
            "    return number\nnumber = closed()\n"
        ),
        "number()",
    ),
    "a default": ("def number(value=2):\n    return value\n", "number()"),
    "a class": (
        "class Held:\n    def number(self):\n        return 2\nheld = Held()\n",
        "held.number()",
    ),
    "a class attribute": ("class Held:\n    number = 2\nheld = Held()\n", "held.number"),
    "a property": (
        "class Held:\n    @property\n    def number(self):\n        return 2\nheld = Held()\n",
        "held.number",
    ),
    "a __call__": (
        "class Held:\n    def __call__(self):\n        return 2\nheld = Held()\n",
        "held()",
    ),
    "an enum": (
        "class Kind(enum.IntEnum):\n    A = 2\n",
        "int(Kind.A)",
    ),
    "a dict of functions": ("TABLE = {'number': lambda: 2}\n", "TABLE['number']()"),
    "lru_cache": ("@functools.lru_cache\ndef number():\n    return 2\n", "number()"),
    "assume_constant_result": (
        "@torch._dynamo.assume_constant_result\ndef number():\n    return 2\n",
        "number()",
    ),
}
"""The content of the file, and the expression of the model's number. The next release has 3 instead
of each 2."""

AROUND: dict[str, str] = {
    "allow_in_graph": "torch.compiler.allow_in_graph",
    "nonstrict_trace": "torch._dynamo.nonstrict_trace",
    "a custom operator": "torch.library.custom_op('soundness::scaled', mutates_args=())",
    "no decorator": "",
}
"""Decorators of a function of tensors."""

TENSORS = """
from soundness.rows import Numbered

{decorated}
def scaled(out: torch.Tensor) -> torch.Tensor:
    return torch.mm(out, out) * 2

class Model(Numbered):
    def forward(self, x):
        return scaled(torch.addmm(self.bias, x, self.weight))
"""


def folder() -> Path:
    """Return the folder for modules, which all processes of a run share, and make it importable."""
    where = Path(os.environ.get("SOUNDNESS_FOLDER", "/tmp")) / "modules"
    where.mkdir(parents=True, exist_ok=True)
    if str(where) not in sys.path:
        sys.path.insert(0, str(where))
    return where


def imported(name: str, text: str) -> Any:
    """Write a module and import it, even if its name was imported before."""
    (folder() / f"{name}.py").write_text(text)
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def group(name: str, text: str) -> Group:
    module = "released_" + "".join(c if c.isalnum() else "_" for c in name)
    changed = text.replace("2", "3")
    row = Row(
        name=f"file of {name}",
        when=(START,),
        make=lambda: imported(module, changed).Model().eval(),
    )
    return Group(
        name=f"file of {name}",
        kind="change",
        make=lambda: imported(module, text).Model().eval(),
        rows=(row,),
    )


def tensors(name: str, decorator: str) -> Group:
    decorated = f"@{decorator}" if decorator else ""
    text = HEAD + TENSORS.format(decorated=decorated)
    if "custom_op" in decorator:
        text = text.replace(
            "class Model",
            "@scaled.register_fake\ndef _(out):\n    return out.clone()\n\nclass Model",
        )
    return group(f"{name} around tensors", text)


GROUPS = (
    *(
        group(name, HEAD + text + MODEL.format(number=number))
        for name, (text, number) in TEXTS.items()
    ),
    *(tensors(name, decorator) for name, decorator in AROUND.items()),
)
