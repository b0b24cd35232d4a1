# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows whose code changes between the build and the start, like a new release of a file.

Each group writes a Python module and imports it. A build imports the first text, and a start
imports the second one. Builds and starts are separate processes, and each row imports its module
again.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from soundness.rows import START, Group, group, put, row

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
    "an enum": ("class Kind(enum.IntEnum):\n    A = 2\n", "int(Kind.A)"),
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


def released(name: str, text: str) -> Group:
    module = "released_" + "".join(c if c.isalnum() else "_" for c in name)
    changed = text.replace("2", "3")
    changed_row = row(
        f"file of {name}", when=(START,), make=lambda: imported(module, changed).Model().eval()
    )
    return group(f"file of {name}", lambda: imported(module, text).Model(), changed_row)


def tensors(name: str, decorator: str) -> Group:
    decorated = f"@{decorator}" if decorator else ""
    text = HEAD + TENSORS.format(decorated=decorated)
    if "custom_op" in decorator:
        text = text.replace(
            "class Model",
            "@scaled.register_fake\ndef _(out):\n    return out.clone()\n\nclass Model",
        )
    return released(f"{name} around tensors", text)


KERNELS = """
import torch
from torch.library import Library

before = getattr(torch, "{library}", None)
if before is not None:
    before._destroy()
library = Library("{library}", "DEF")
setattr(torch, "{library}", library)
library.define("scaled(Tensor a) -> Tensor")
operator = torch.ops.{library}.scaled.default

{kernels}
"""

USING = """
import torch
import kernels_{library}
from soundness.rows import Numbered

class Model(Numbered):
    def forward(self, x):
        return {call}(torch.addmm(self.bias, x, self.weight))
"""

BELOW: dict[str, str] = {
    "composite kernel": (
        "def kernel(a):\n    return a * 2\n"
        'library.impl("scaled", kernel, "CompositeImplicitAutograd")'
    ),
    "composite kernel with a helper": (
        "def factor():\n    return 2\ndef kernel(a):\n    return a * factor()\n"
        'library.impl("scaled", kernel, "CompositeImplicitAutograd")'
    ),
    "py_impl": (
        "@operator.py_impl(torch._C.DispatchKey.CompositeImplicitAutograd)\n"
        "def kernel(a):\n    return a * 2\n"
        'library.impl("scaled", kernel, "CPU")\n'
        'library.impl("scaled", torch.empty_like, "Meta")'
    ),
    "decomposition": (
        "from torch._inductor.decomposition import decompositions\n"
        "def kernel(a):\n    return a * 2\n"
        'library.impl("scaled", kernel, "CPU")\n'
        'library.impl("scaled", torch.empty_like, "Meta")\n'
        "decompositions[operator] = kernel"
    ),
    "lowering": (
        "from torch._inductor.lowering import lowerings, register_lowering\n"
        "def kernel(a):\n    return a * 2\n"
        'library.impl("scaled", kernel, "CPU")\n'
        'library.impl("scaled", torch.empty_like, "Meta")\n'
        "lowerings.pop(operator, None)\n"
        "@register_lowering(operator)\n"
        "def lowered(a):\n    return lowerings[torch.ops.aten.mul.Tensor](a, 2.0)"
    ),
}
"""Python code that torch runs below Dynamo, in a file of its own. The next release has 3 instead of
each 2."""


def below(name: str, kernels: str, call: str = "") -> Group:
    """Return a group whose kernels are in another file than its model."""
    library = "soundness_" + "".join(c if c.isalnum() else "_" for c in name)
    text = KERNELS.format(library=library, kernels=kernels)
    using = USING.format(library=library, call=call or f"torch.ops.{library}.scaled")

    def make(text: str) -> Any:
        imported(f"kernels_{library}", text)
        return imported(f"using_{library}", using).Model().eval()

    changed_row = row(f"file of a {name}", when=(START,), make=lambda: make(text.replace("2", "3")))
    return group(f"file of a {name}", lambda: make(text), changed_row)


GLOBAL = """SCALE = 2
def kernel(a):
    return a * SCALE
library.impl("scaled", kernel, "CompositeImplicitAutograd")"""


def of_global() -> Group:
    """Return a group whose kernel reads a global, which changes during serving."""
    kernel = below("kernel with a global", GLOBAL)

    def change(app: Any) -> Any:
        kernels = sys.modules["kernels_soundness_kernel_with_a_global"]
        return put(kernels, "SCALE", 3)

    rows = (*kernel.rows, row("global of a kernel", change))
    return dataclasses.replace(kernel, rows=rows)


VMAP = """def kernel(a):
    return a * 1
library.impl("scaled", kernel, "CPU")
library.impl("scaled", torch.empty_like, "Meta")
def rule(info, in_dims, a):
    return a * 2, in_dims[0]
torch.library.register_vmap(operator, rule, lib=library)"""
"""A rule that differs from the kernel, so that its code decides."""

GROUPS = (
    of_global(),
    below("vmap rule", VMAP, "torch.func.vmap(torch.ops.soundness_vmap_rule.scaled)"),
    *(below(name, kernels) for name, kernels in BELOW.items()),
    *(
        released(name, HEAD + text + MODEL.format(number=number))
        for name, (text, number) in TEXTS.items()
    ),
    *(tensors(name, decorator) for name, decorator in AROUND.items()),
)
