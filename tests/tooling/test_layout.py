# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The structure that CONTRIBUTING.md promises: allowed imports, and code that has only one place.

The rules are data at the top. The checks read sources, and yield one sentence for each violation.
"""

from __future__ import annotations

import ast
import builtins
import functools
import pickle
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import serve_warm
from processes import run_to_end

PACKAGE = Path(serve_warm.__file__).parent

# Modules directly under `serve_warm`, from the bottom up. Each may import only itself and earlier
# rows, and every package may import all of them. A row may name a module of a package: it is below
# the rest of the package.
ROOT = (
    (
        *("_package", "_redaction", "_after_import", "_daemon_threads", "_records", "_forks"),
        *("_regular_files", "node"),
    ),
    ("_spans", "errors", "private_apis"),
    ("_private_folders", "_store_address"),
    ("_state_file",),
    ("seats.records",),
    ("seats.preload",),
    ("preload", "report"),
    ("fingerprint", "inputs", "config"),
    ("metrics",),
    ("node_server",),
)

# The packages, and the packages that each of them may import.
PACKAGES = {
    "trust": (),
    "stores": (),
    "artifact": ("trust", "stores"),
    "compiler": (),
    "precompile": ("compiler",),
    "generation": ("precompile",),
    "learn": ("precompile", "compiler"),
    "seats": (),
    "replica": ("seats", "learn", "precompile", "compiler", "artifact", "trust", "stores"),
    "app": ("replica",),
    "builder": ("app", "replica", "learn", "artifact", "trust", "stores"),
    "cli": ("builder", "app", "learn", "artifact", "trust", "stores"),
    "testing": ("stores",),
}

# The rooms of a package, and the rooms of the same package that each of them may import. A start
# imports neither `trace` nor `builders`: only `precompile.building` does, in a build.
ROOMS = {
    "precompile": {
        "facts": (),
        "calls": ("facts",),
        "changes": ("facts", "calls"),
        "trace": ("facts", "calls"),
        "entries": ("facts", "calls"),
        "libraries": ("facts", "calls"),
        "parity": ("facts", "calls", "entries"),
        "dispatch": ("facts", "calls", "changes", "entries", "libraries", "parity"),
        "compiled": ("calls", "entries", "dispatch"),
        "taking": ("calls", "dispatch", "compiled"),
        "recording": ("calls", "dispatch"),
        "builders": (
            *("facts", "calls", "changes", "trace", "entries", "libraries", "parity"),
            "dispatch",
        ),
    },
    "replica": {
        "record": (),
        "replay": ("record",),
        "start": ("record", "replay"),
        "serve": ("record", "start"),
    },
}

# What other packages may import of a package with rooms; all of it if the package is missing here.
DOORS = {"precompile": {"compiled", "recording", "taking"}}

# Packages that only these modules may import, at the top or in a function.
OWNED = {
    "ray": {"app", "private_apis", "replica", "seats", "metrics", "builder"},
    "huggingface_hub": {"stores.hub", "stores.hub_client"},
    "obstore": {"stores.object_store"},
    "prometheus_client": {"node_server", "cli.measuring"},
    "transformers": {"generation"},
}

# Modules that `import serve_warm` and the commands inspect, verify and probe can load. They must
# not import torch at the top.
LIGHT = {
    *("_package", "_after_import", "_records", "_spans", "_store_address"),
    *(
        "_redaction",
        "_daemon_threads",
        "_forks",
        "errors",
        "report",
        "_private_folders",
        "_state_file",
        "seats.records",
        "preload",
        "seats.preload",
        "fingerprint",
        "inputs",
        "config",
    ),
    *("trust", "artifact", "stores", "metrics", "node", "node_server", "cli"),
}

# `node` also runs as a single file, without `config`. `_redaction`, which is below `config`, hides
# the values of the credentials that are set when a text is made. `seats.preload` makes torch read
# the same variables at its import as in a start without a seat.
ENVIRONMENT_READERS = {"config", "node", "_redaction", "seats.preload"}

# One broad handler each, because errors in the code that they call must not break the caller.
BROAD_HANDLERS = {
    "seats.preload": "an error in an import of the app must not end a worker",
    "compiler.eager_calls": "an argument that cannot be described must not break a request",
    "learn.recorder": "an argument that cannot be looked at must not break a request",
    "learn.call_files": "the thread that writes files outlives each error",
    "learn.replayed": "the user's code may raise anything when it runs uncompiled",
    "learn.replayed_requests": "the user's code may raise anything when it runs uncompiled",
    "learn.request_recorder": "the user's function that scrubs requests may raise anything",
    "seats.keeper": "an error in one look must not end the thread that keeps seats",
    "compiler.watch": "a torch that names guards in another way must not break a request",
    "replica.record.journal": "an observer must not break a warm-up",
    "precompile.parity.checks": "a check must not break a request",
    "precompile.parity.full_precision": "a call without such a run is compared in another way",
    "precompile.parity.distance_check": "a model may reject a generated input with any error",
    "precompile.facts.table": "a property that a request does not read must not break it",
    "precompile.entries.table": "an entry that cannot be loaded must not break a request",
    "replica.replay.narrow": "an odd argument must not end a start, because trials only advise",
    "generation.slots": "a request that chooses its own tokens must not break others",
    "replica.start.proof": "an odd object of the app must not end a start: the search only advises",
    "replica.start.prepare": "an odd tensor of a model must not end a start: its digest only ranks",
    "replica.serve.hook": "any error of a start is raised to Serve, but with a short text",
    "replica.serve.rollout": "an odd answer of Serve or another replica must not end a start",
    "replica.start.install": "an artifact must not break a start",
    "node": "damaged files of one replica must not hide the others",
    "node_server.server": "an error in one check must not end the thread that repeats it",
    "_state_file": "an error in a report must not end the heartbeat of a replica",
    "stores": "a store of another package must not break a start, or show its address in an error",
}

VAGUE_NAMES = {"base", "common", "core", "helper", "helpers", "manager", "managers", "misc"}
VAGUE_NAMES |= {"service", "services", "shared", "tools", "util", "utils"}


def unit_of(module: str) -> str:
    """Return the entry of the layer tables that a dotted name inside the package belongs to."""
    parts = module.split(".")
    both = ".".join(parts[:2])
    return both if any(both in row for row in ROOT) else parts[0]


def known(unit: str) -> bool:
    return unit in PACKAGES or any(unit in row for row in ROOT)


def may_import(unit: str, other: str) -> bool:
    """Return whether a top-level module or package may import another one."""
    if unit in PACKAGES:
        return other == unit or other in PACKAGES[unit] or other not in PACKAGES
    row = next((number for number, row in enumerate(ROOT) if unit in row), len(ROOT))
    return other == unit or any(other in below for below in ROOT[:row])


def imported(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[tuple[str, int]]:
    """Yield the full name and the line of each import. A name in a module is `module.name`."""
    package = ["serve_warm", *(module.split(".") if module else [])]
    if not is_package:
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            parent = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{parent}.{alias.name}", node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__")
        ):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value, node.lineno


def runs_at_import(tree: ast.Module) -> ast.Module:
    """Return the part of a module that runs at its import, without code for type checkers."""

    class Pruned(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None: ...

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None: ...

        def visit_Lambda(self, node: ast.Lambda) -> ast.Constant:
            return ast.Constant(value=None)

        def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
            if ast.unparse(node.test).endswith("TYPE_CHECKING"):
                return [self.visit(child) for child in node.orelse]
            return self.generic_visit(node)

    return Pruned().visit(ast.parse(ast.unparse(tree)))


def layer_violations(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield imports of the package's own modules that the tables do not allow."""
    unit = unit_of(module)
    for name, line in imported(ast.parse(source), module, is_package=is_package):
        if unit_of(name) != "serve_warm":
            continue
        other = unit_of(name.partition(".")[2])
        if not known(other):
            yield f"{module}:{line} imports {name}: import from the module that defines it"
        elif not may_import(unit, other):
            yield f"{module}:{line} imports {name}, which is not below {unit}"


def room_violations(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield imports of rooms that the table does not allow."""
    package, room = (*module.split("."), "")[:2]
    for name, line in imported(ast.parse(source), module, is_package=is_package):
        _, other, theirs = (*name.split("."), "", "")[:3]
        if theirs not in ROOMS.get(other, {}) or name.partition(".")[0] != "serve_warm":
            continue
        if package == other and room:
            is_allowed = theirs in (room, *ROOMS[other][room])
        else:
            is_allowed = package == other or theirs in DOORS.get(other, {theirs})
        if not is_allowed:
            yield f"{module}:{line} imports {name}, but may not use the room {theirs}"


def owner_violations(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield imports of a package that another module owns."""
    for name, line in imported(ast.parse(source), module, is_package=is_package):
        owners = OWNED.get(unit_of(name))
        if owners is not None and not owners & {module, unit_of(module)}:
            yield f"{module}:{line} imports {name}: only {', '.join(sorted(owners))} may"


def weight_violations(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield imports of torch that run when a light module is imported."""
    if unit_of(module) not in LIGHT and module:
        return
    for name, _ in imported(runs_at_import(ast.parse(source)), module, is_package=is_package):
        if unit_of(name) == "torch":
            yield f"{module or '__init__'} imports {name} at the top"


def environment_violations(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield uses of the process environment outside the modules that may read it."""
    if module in ENVIRONMENT_READERS:
        return
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {f"os.{n}" for n in names}:
            yield f"{module}:{node.lineno} uses os.{node.attr}"
    for name, line in imported(tree, module, is_package=is_package):
        if name in {f"os.{n}" for n in names}:
            yield f"{module}:{line} imports {name}"


def broad_handlers(source: str) -> list[int]:
    """Return the lines that catch everything: handlers, `contextlib.suppress`, and names for both.

    A name for a tuple with a broad class counts once, where it is given.
    """
    broad = {"Exception", "BaseException", "builtins.Exception", "builtins.BaseException"}

    def catches_all(types: list[ast.expr]) -> bool:
        flat = [t for each in types for t in (each.elts if isinstance(each, ast.Tuple) else [each])]
        return any(ast.unparse(each) in broad for each in flat)

    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.ExceptHandler) and (node.type is None or catches_all([node.type])))
        or (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("suppress")
            and catches_all(node.args)
        )
        or (
            isinstance(node, ast.Assign | ast.AnnAssign)
            and isinstance(node.value, ast.Tuple)
            and catches_all([node.value])
        )
    ]


def handler_violations(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield broad handlers, except for one in each module that may have one."""
    del is_package
    lines = broad_handlers(source)
    allowed = 1 if module in BROAD_HANDLERS else 0
    if len(lines) > allowed:
        yield f"{module}: catches everything on lines {lines}, {allowed} allowed"


def name_violations(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield modules without a layer, with a vague name, or with the name of a public object."""
    del source, is_package
    if not module:
        return
    if not known(unit_of(module)):
        yield f"{module} has no layer: add it to the table in {Path(__file__).name}"
    if VAGUE_NAMES & set(module.split(".")):
        yield f"{module}: a module is named for the one thing that it hides"
    if module in set(serve_warm.__all__) - {"errors"}:
        yield f"{module} would replace the public name serve_warm.{module} once it is imported"


FOREIGN = {"torch", "triton", "ray", "transformers"}


def foreign_names(scope: ast.AST) -> set[str]:
    """Return the names of a function or module that mean another package, or a part of it.

    They are imported, are parameters for a module, or are assigned from such a name.
    """
    found = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Import):
            found |= {(each.asname or each.name).partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in FOREIGN:
            found |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.arg):
            found |= {node.arg} if "ModuleType" in ast.unparse(node) else set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign) and root_of(node.value) in found:
            found |= {each.id for each in targets_of(node) if isinstance(each, ast.Name)}
    return found


def scopes_of(tree: ast.Module) -> Iterator[ast.Module]:
    """Yield each function and method of a module with the module's own statements."""
    own = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    yield ast.Module(own, [])
    for body in bodies:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.Module([*own, node], [])


def root_of(expression: ast.expr | None) -> str:
    """Return the name before the first dot, or an empty string for another expression."""
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""


def targets_of(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    """Return what an assignment sets, without tuples."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [each for target in targets for each in getattr(target, "elts", [target])]


def patch_violations(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield replacements of other packages' functions outside `private_apis`."""
    del is_package
    # `_after_import` wraps the loaders of modules, as Python's import system allows.
    if unit_of(module) in ("private_apis", "_after_import"):
        return
    for scope in scopes_of(ast.parse(source)):
        yield from replacements_in(scope, foreign_names(scope), module)


def replacements_in(scope: ast.AST, foreign: set[str], module: str) -> Iterator[str]:
    """Yield where a function or module sets a part of something foreign."""
    for node in ast.walk(scope):
        replaced: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.AnnAssign):
            replaced = [each for each in targets_of(node) if isinstance(each, ast.Attribute)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            replaced = node.args[:1]
        for each in replaced:
            if root_of(each) in foreign:
                what = ast.unparse(each)
                yield f"{module}:{node.lineno} replaces a part of {what}: use private_apis.patches"


def private_violations(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield uses of other packages' private names outside `private_apis`.

    Names are in imports, in attributes, and in strings. A name counts as private of another package
    unless serve_warm has it, whatever is installed, because versions of torch differ. Any class of
    the package may have an attribute. A word of a string must be a class of the same module, or be
    declared in the body of one.
    """
    if unit_of(module) == "private_apis":
        return
    tree = ast.parse(source)
    allowed = frozenset(PRIVATE_WORDS.get(module, ((), ""))[0])
    for name, line in imported(tree, module, is_package=is_package):
        package, *parts = name.split(".")
        if package != "serve_warm" and any(map(is_private, {package, *parts} - allowed)):
            yield f"{module}:{line} imports {name}: use private_apis"
    attributes = names_of_classes(tree) | names_of_all_classes() | allowed
    words = declared_in(tree) | allowed
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if node.attr not in attributes:
                yield f"{module}:{node.lineno} uses {ast.unparse(node)}: use private_apis"
        elif (
            isinstance(node, ast.keyword) and is_private(node.arg or "") and node.arg not in allowed
        ):
            yield f"{module}:{node.value.lineno} passes {node.arg}: use private_apis"
    for text, line in strings_of(tree):
        found = {word for word in WORD.findall(OF_SERVE_WARM.sub("", text)) if is_private(word)}
        for word in sorted(found - words):
            yield f"{module}:{line} names {word!r}: use private_apis"


WORD = re.compile(r"(?<!\w)_\w*[A-Za-z]\w*")
"""A word of a string that begins with an underscore."""

OF_SERVE_WARM = re.compile(r"(?<!\w)serve_warm(?:\.\w+)+")


def strings_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield each string with its line, also pieces of f-strings. Not docstrings and `__slots__`."""
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            left_out |= set(map(id, ast.walk(node.value)))
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno


def declared_in(tree: ast.Module) -> set[str]:
    """Return the names of classes, and of the attributes that their bodies declare."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    inside = [each for node in classes for each in node.body]
    targets = [
        target
        for each in inside
        if isinstance(each, ast.Assign | ast.AnnAssign)
        for target in targets_of(each)
    ]
    return {node.name for node in classes} | {t.id for t in targets if isinstance(t, ast.Name)}


def names_of_classes(tree: ast.Module) -> set[str]:
    """Return the names of classes, and of the attributes that they declare, set or define."""
    found = declared_in(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            found |= {each.name for each in node.body if isinstance(each, functions)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) in ("self", "cls") else set()
    return found


@functools.cache
def names_of_all_classes() -> frozenset[str]:
    """Return these names for the package, because a class may inherit attributes."""
    return frozenset().union(
        *(
            names_of_classes(ast.parse(source))
            for module, source, _ in modules()
            if unit_of(module) != "private_apis"
        )
    )


# Words with an underscore that are not private names of torch, Triton, Ray, transformers or
# CPython, or that cannot be in `private_apis`: for each module, the words and the reason.
PRIVATE_WORDS: dict[str, tuple[tuple[str, ...], str]] = {
    "_redaction": (
        ("_URL", "_ID", "_BASE64", "_key_base", "_pass", "_auth", "_creds", "_sas", "_pat"),
        "ends of the names of credentials",
    ),
    "_records": (("__dataclass_params__",), "`private_apis` needs this module"),
    "artifact.manifest": (("_type",), "the field of an in-toto statement"),
    "compiler.watch": (("_s",), "the end of the names of sums of seconds"),
    "errors": (("_Error",), "its type variable"),
    "node": (
        ("_json", "_socket", "_thread"),
        "it runs without serve_warm; `json` and `socket` take 3 ms to import, their C parts 0.5 ms",
    ),
    "node_server.ledger": (
        ("_bucket", "_sum", "_count", "_total", "_created"),
        "ends of names in the text format of Prometheus",
    ),
    "node_server.server": (("_thread",), "documented; `threading` would wait for each new thread"),
    "precompile.builders.cpp": (("__attribute__", "__visibility__"), "C++"),
    "precompile.facts.names": (("__entries",), "the members of an enumeration of pybind11"),
    "builder.app": (("__root__",), "pydantic 1 names a section as a whole so"),
    "precompile.trace.torch_functions": (("__r",), "the begin of Python's `__radd__` and others"),
    "stores.bucket_answers": (("_ALLOW_HTTP",), "the end of an environment variable"),
    "stores.hub_client": (("_http",), "a logger of huggingface_hub, which only this module uses"),
    "stores.object_store": (("_ALLOW_HTTP",), "the end of an environment variable"),
}


def documented() -> Iterator[str]:
    """Yield documented names that begin with two underscores."""
    yield from dir(builtins)
    for value in (*vars(builtins).values(), *vars(types).values()):
        yield from dir(value)
    yield from ("__all__", "__file__", "__future__", "__main__", "__path__", "__version__")
    yield from ("__dataclass_fields__", "__getattr__", "__post_init__", "__slots__", "__wrapped__")
    yield "__members__"  # of enumerations
    yield "__fields__"  # of models of pydantic 1
    yield from ("__torch_function__", "__torch_dispatch__")  # methods of tensor subclasses
    yield from ("__tensor_flatten__", "__tensor_unflatten__")


DOCUMENTED = frozenset(documented())


def is_private(name: str) -> bool:
    # Python documents `_make` and `_replace` of named tuples.
    return name.startswith("_") and not (
        name in DOCUMENTED or name.startswith(("_serve_warm", "_make", "_replace"))
    )


CHECKS: list[Callable[..., Iterator[str]]] = [
    layer_violations,
    room_violations,
    owner_violations,
    weight_violations,
    environment_violations,
    handler_violations,
    name_violations,
    patch_violations,
    private_violations,
]


def modules() -> Iterator[tuple[str, str, bool]]:
    """Yield each module's name below the package, its source, and whether it is a package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        yield ".".join(parts[:-1] if is_package else parts), path.read_text(), is_package


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_package_keeps_its_structure(check: Callable[..., Iterator[str]]) -> None:
    # `__init__` names all modules, lazily.
    skipped = {""} if check in (layer_violations, room_violations) else set()

    violations = [
        violation
        for module, source, is_package in modules()
        if module not in skipped
        for violation in check(source, module, is_package=is_package)
    ]

    assert violations == []


@pytest.mark.parametrize(
    ("check", "module", "source"),
    [
        (layer_violations, "stores.local", "def f():\n from ..artifact import pack"),
        (room_violations, "precompile.facts.x", "from serve_warm.precompile.calls import y"),
        (room_violations, "replica.start.x", "from serve_warm.precompile.facts.table import y"),
        (owner_violations, "cli", "def f():\n import ray"),
        (weight_violations, "cli.main", "try:\n import torch\nexcept ImportError: ..."),
        (environment_violations, "trust", "import os\nx = os.environ['HOME']"),
        (handler_violations, "trust", "with contextlib.suppress(Exception): f()"),
        (name_violations, "stores.utils", ""),
        (patch_violations, "compiler.x", "from torch import fx\nof: Any = fx.Graph\nof.lint = f"),
        (patch_violations, "compiler.x", "def hook(triton: ModuleType):\n triton.build = f"),
        (private_violations, "compiler.x", "from torch import _dynamo"),
        (private_violations, "replica.x", "def f():\n import ray.serve._private.constants"),
        (private_violations, "precompile.facts.x", "x = getattr(y, '_private', None)"),
        (private_violations, "replica.x", "x = sys.modules.get('torch._dynamo.exc')"),
        (private_violations, "generation.x", "x = vars(y)['_modules']"),
        (private_violations, "generation.x", "X = ('_call_impl',)"),
        (private_violations, "generation.x", "x = f'{y}_internal'"),
        (private_violations, "generation.x", "x = {'_buffers': 1}"),
        (private_violations, "generation.x", "dict(_parameters=1)"),
        (private_violations, "generation.x", "match x:\n case ['_modules']: ..."),
        (private_violations, "generation.x", "x = '__import_torch_dot_'"),
        (private_violations, "generation.x", "class X:\n def f(self): self._y = g('_y')"),
        (private_violations, "generation.x", "import _socket"),
        (private_violations, "generation.x", "class X(Y):\n def f(self): self._orig_mod()"),
        (patch_violations, "compiler.x", "import torch\nsetattr(torch.nn.Module, 'x', f)"),
    ],
)
def test_a_violation_is_found(
    check: Callable[..., Iterator[str]], module: str, source: str
) -> None:
    """No check is without effect."""
    assert len(list(check(source, module))) == 1


def test_newcomers_are_shown_the_same_layers() -> None:
    """CONTRIBUTING.md has both tables, and each module and package is in one of them."""
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    root = text.partition("from the rows above its own row:\n\n")[2].partition("\n\n")[0]
    table = text.partition("| package | subject | imports |\n|---|---|---|\n")[2].partition("\n\n")[
        0
    ]
    packages = {}
    for line in table.splitlines():
        name, _, others = (cell.replace("`", " ") for cell in line.strip("|").split("|"))
        packages[name.strip()] = tuple(others.replace(",", " ").split())
    units = {unit_of(module) for module, _, _ in modules() if module}
    rooms: dict[str, dict[str, tuple[str, ...]]] = {}
    for line in text.partition("| room | subject | imports |\n|---|---|---|\n")[2].splitlines():
        if not line.startswith("|"):
            break
        name, _, others = (cell.replace("`", " ") for cell in line.strip("|").split("|"))
        package, room = name.strip().split(".")
        rooms.setdefault(package, {})[room] = tuple(others.replace(",", " ").split())

    assert rooms == ROOMS
    assert [tuple(line.split()) for line in root.splitlines()] == list(ROOT)
    assert packages == PACKAGES
    assert sorted([*PACKAGES, *(unit for row in ROOT for unit in row)]) == sorted(units)


def test_permissions_are_in_use() -> None:
    """A permission that nothing needs any more is removed."""
    found = {
        module: {name for name, _ in imported(ast.parse(source), module, is_package=is_package)}
        for module, source, is_package in modules()
    }
    handled = {module for module, source, _ in modules() if broad_handlers(source)}

    used = {
        (unit_of(user), unit_of(name.partition(".")[2]))
        for user, names in found.items()
        for name in names
    }
    unused = [
        f"{user} does not import {other}"
        for user, others in PACKAGES.items()
        for other in others
        if (user, other) not in used
    ]
    unused += [
        f"{package}.{room} does not import {other}"
        for package, rooms in ROOMS.items()
        for room, others in rooms.items()
        for other in others
        if not any(
            f"{user}.".startswith(f"{package}.{room}.")
            and any(f"{name}.".startswith(f"serve_warm.{package}.{other}.") for name in names)
            for user, names in found.items()
        )
    ]
    unused += [
        f"{module} does not use {word}"
        for module, source, is_package in modules()
        for word in PRIVATE_WORDS.get(module, ((), ""))[0]
        if not any(
            word in WORD.findall(text) or text == word
            for text, _ in (
                *strings_of(ast.parse(source)),
                *imported(ast.parse(source), module, is_package=is_package),
            )
        )
    ]
    unused += [f"there is no {module}" for module in PRIVATE_WORDS.keys() - found.keys()]
    unused += [
        f"{module} has no broad handler"
        for module in BROAD_HANDLERS.keys() & found.keys() - handled
    ]

    assert unused == []


def in_a_fresh_process(program: str) -> str:
    completed = run_to_end([sys.executable, "-c", program])
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip()


def test_importing_the_package_imports_neither_torch_nor_ray() -> None:
    """`import serve_warm` is fast, because it imports nothing heavy, even indirectly."""
    program = "import serve_warm, sys; print({'torch', 'ray', 'pydantic'} & set(sys.modules))"

    assert in_a_fresh_process(program) == "set()"


def test_light_modules_import_neither_torch_nor_ray() -> None:
    """Inspecting and verifying artifacts, and probing a node, do not wait for heavy imports."""
    light = [f"serve_warm.{module}" for module, _, _ in modules() if unit_of(module) in LIGHT]

    program = f"import sys, {', '.join(light)}; print({{'torch', 'ray'}} & set(sys.modules))"

    assert in_a_fresh_process(program) == "set()"


def test_every_public_name_can_be_imported() -> None:
    """Each listed name exists, and is the object that its module defines."""
    for name in serve_warm.__all__:
        value = getattr(serve_warm, name)
        home = sys.modules[serve_warm._HOMES[name]]

        assert value is (home if name == "errors" else getattr(home, name))
        assert name in dir(serve_warm)


def test_public_names_are_those_of_the_package() -> None:
    """Pickles and artifacts name `serve_warm.Input`, not a module that a release may move."""
    named = {name: getattr(serve_warm, name) for name in serve_warm.__all__ if name != "errors"}

    assert {value.__module__ for value in named.values()} == {"serve_warm"}
    assert {name: pickle.loads(pickle.dumps(value)) for name, value in named.items()} == named


@pytest.mark.parametrize("name", sorted(set(serve_warm.__all__) - {"errors"}))
def test_annotations_of_public_names_are_found(name: str) -> None:
    """Pydantic, FastAPI and `typing` look for them in the module that the class names."""
    public = getattr(serve_warm, name)

    hints = typing.get_type_hints(public)

    assert not any(isinstance(hint, str) for hint in hints.values())


def test_other_names_are_attribute_errors() -> None:
    """A mistyped name fails as it does in any module."""
    with pytest.raises(AttributeError, match="has no attribute 'WarmUpMixin'"):
        _ = serve_warm.WarmUpMixin


def test_public_names_stay_what_they_are() -> None:
    """Importing all modules does not replace a public name by a module."""
    names = [f"serve_warm.{module}" for module, _, _ in modules() if module]

    kinds = in_a_fresh_process(
        f"import {', '.join(names)}, types, serve_warm\n"
        "print([n for n in serve_warm.__all__"
        " if isinstance(getattr(serve_warm, n), types.ModuleType)])"
    )

    assert kinds == "['errors']"


def named_from_outside() -> Iterator[tuple[str, str]]:
    """Yield the file and the name of each path used by documents, chart, Makefile and sources."""
    root = PACKAGE.parent
    places = [root / "Makefile", root / "pyproject.toml", *root.glob("*.md"), *root.glob(".ci/*")]
    for folder in ("docs", "helm", "deployments", "serve_warm"):
        places += [p for p in (root / folder).rglob("*") if p.suffix in (".md", ".py", ".yaml")]
    for path in places:
        if path.name != "CHANGELOG.md":  # it describes earlier releases
            for name in re.findall(r"\bserve_warm(?:/\w+)+\.(?:py|json)\b", path.read_text()):
                yield str(path.relative_to(root)), name
            for name in re.findall(r"`(serve_warm(?:\.\w+)+)", path.read_text()):
                yield str(path.relative_to(root)), name


def is_there(name: str) -> bool:
    """Return whether a path of a file, or a dotted name, leads to something."""
    if "/" in name:
        return (PACKAGE.parent / name).is_file()
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_what_is_named_from_outside_is_there() -> None:
    """Documents, chart and docstrings name only files and objects that exist."""
    found = list(named_from_outside())

    assert len(found) > 20
    assert [(place, name) for place, name in found if not is_there(name)] == []


# --- the tests ---------------------------------------------------------------------------------

TESTS = PACKAGE.parent / "tests"

# Folders of tests that mirror no package of serve_warm.
OTHER_FOLDERS = {
    "benchmarks": "programs that measure, and their results",
    "data": "values of the chart that it refuses",
    "deployments": "the example applications",
    "gpu": "what needs a GPU",
    "integration": "what needs a Ray cluster",
    "private_apis": "the table of patches, which lies below all packages",
    "properties": "properties of several rooms, which the names of the files say",
    "readiness": "the rows of `make readiness`",
    "served_models": "the rows of `make architectures`",
    "soundness": "the table of `make soundness`",
    "stress": "what takes minutes",
    "support": "helpers of several test files",
    "tooling": "programs, chart and documents of the repository",
}


def units_in(source: str) -> set[str]:
    """Return the units of the package that a test's source imports, "" for the package itself."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            top = module == "serve_warm"
            names = [f"{module}.{each.name}" for each in node.names] if top else [module]
        for name in names:
            if name.partition(".")[0] == "serve_warm":
                unit = unit_of(name.partition(".")[2])
                found.add(unit if known(unit) else "")
    return found


def misplaced(source: str) -> str | None:
    """Return the package of a test in `tests`, if the test imports only this package."""
    units = units_in(source)
    return units.pop() if len(units) == 1 and units <= PACKAGES.keys() else None


def test_each_package_has_a_folder_of_tests() -> None:
    """The folders are the packages, and the folders in the table above."""
    folders = {path.parent for path in TESTS.glob("*/*") if path.name != "__pycache__"}

    assert {path.name for path in folders} - {"__pycache__"} == PACKAGES.keys() | OTHER_FOLDERS
    for name in PACKAGES:
        assert list((TESTS / name).rglob("test_*.py"))


def test_tests_of_one_package_stand_in_its_folder() -> None:
    """`tests` itself has the tests of the root modules."""
    flat = {path.name: path.read_text() for path in TESTS.glob("test_*.py")}

    assert flat
    assert {name: misplaced(text) for name, text in flat.items() if misplaced(text)} == {}


def test_names_of_test_files_are_unique() -> None:
    """Pytest imports files by their bare name if their folder is not a package."""
    names = [
        path.name
        for path in TESTS.rglob("*.py")
        if path.name != "__init__.py" and not (path.parent / "__init__.py").exists()
    ]

    assert sorted(names) == sorted(set(names))


def test_each_class_name_has_one_meaning() -> None:
    """Two classes of one name make a reader guess, even if one of them is private."""
    homes: dict[str, list[str]] = {}
    for module, source, _ in modules():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(module)

    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
