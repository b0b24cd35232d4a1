# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The structure that CONTRIBUTING.md promises: allowed imports, and code that has only one place.

The rules are data at the top. The checks read sources, and yield one sentence for each violation.
Each check also runs on a source that breaks its rule, so that a check without effect is noticed.
"""

from __future__ import annotations

import ast
import dataclasses
import pickle
import pkgutil
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic
import pytest

import serve_warm
from elsewhere import POSIX_MODULES
from patches import patched, patches_in, programs_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKAGE = Path(serve_warm.__file__).parent

# Modules directly under `serve_warm`, from the bottom up. Each module may import only from earlier
# rows, and every package may import all of them.
ROOT = (
    ("_package", "_redaction", "_daemon_threads", "_records", "node"),
    ("_spans", "errors"),
    ("_private_folders", "_store_address"),
    ("_seats",),
    ("preload", "report"),
    ("fingerprint", "inputs", "config"),
    ("metrics",),
    ("collector",),
)

# The packages, and the packages that each of them may import.
PACKAGES = {
    "trust": (),
    "stores": (),
    "artifact": ("trust", "stores"),
    "compiler": (),
    "precompile": ("compiler",),
    "generation": ("precompile",),
    "replica": ("precompile", "compiler", "artifact", "trust", "stores"),
    "builder": ("replica", "precompile", "artifact", "trust", "stores"),
    "cli": ("builder", "artifact", "trust", "stores"),
    "testing": ("stores",),
}

# Packages that only these modules may import, at the top or in a function.
OWNED = {
    "ray": {"replica", "metrics", "builder"},
    "huggingface_hub": {"stores.hub", "stores.hub_client"},
    "obstore": {"stores.object_store"},
    "prometheus_client": {"collector", "cli"},
    "transformers": {"generation"},
}

# Modules that `import serve_warm` and the commands inspect, verify and probe can load. They must
# not import torch at the top.
LIGHT = {
    *("_package", "_records", "_spans", "_store_address"),
    *(
        "_redaction",
        "_daemon_threads",
        "errors",
        "report",
        "_private_folders",
        "_seats",
        "preload",
        "fingerprint",
        "inputs",
        "config",
    ),
    *("trust", "artifact", "stores", "metrics", "node", "collector", "cli"),
}

# `node` also runs as a single file, without `config`. `_redaction`, which is below `config`, hides
# the values of the credentials that are set when a text is made. `preload` makes torch read the
# same variables at its import as in a start without a seat.
ENVIRONMENT_READERS = {"config", "node", "_redaction", "preload"}

# One broad handler each, because errors in the code that they call must not break the caller.
BROAD_HANDLERS = {
    "preload": "an error in an import of the app must not end a worker",
    "replica.journal": "an observer must not break a warm-up",
    "precompile.entry_checks": "a check must not break a request",
    "precompile.facts": "a property of a model must not break a request that does not read it",
    "precompile.entries": "an entry that cannot be loaded must not break a request",
    "generation.slots": "a request that chooses its own tokens must not break others",
    "replica.placement": "an artifact must not break a start",
    "stores": "a store of another package must not break a start, or show its address in an error",
}

VAGUE_NAMES = {"base", "common", "core", "helper", "helpers", "manager", "managers", "misc"}
VAGUE_NAMES |= {"service", "services", "shared", "tools", "util", "utils"}


def unit_of(module: str) -> str:
    """Return the entry of the layer table that a dotted name inside the package belongs to."""
    return module.partition(".")[0]


def known(unit: str) -> bool:
    return unit in PACKAGES or any(unit in row for row in ROOT)


def may_import(unit: str, other: str) -> bool:
    """Return whether a top-level module or package may import another one."""
    if unit in PACKAGES:
        return other == unit or other in PACKAGES[unit] or other not in PACKAGES
    row = next((number for number, row in enumerate(ROOT) if unit in row), len(ROOT))
    return any(other in below for below in ROOT[:row])


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


def posix_violations(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield imports of POSIX modules that run when a module is imported."""
    for name, _ in imported(runs_at_import(ast.parse(source)), module, is_package=is_package):
        if unit_of(name) in POSIX_MODULES:
            yield f"{module} imports {name} at the top: Windows has none"


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


CHECKS: list[Callable[..., Iterator[str]]] = [
    layer_violations,
    owner_violations,
    weight_violations,
    posix_violations,
    environment_violations,
    handler_violations,
    name_violations,
]


def modules() -> Iterator[tuple[str, str, bool]]:
    """Yield each module's name below the package, its source, and whether it is a package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        yield ".".join(parts[:-1] if is_package else parts), path.read_text(), is_package


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_package_keeps_its_structure(check: Callable[..., Iterator[str]]) -> None:
    """No module breaks a rule of the table."""
    skipped = {""} if check is layer_violations else set()  # `__init__` names all modules, lazily

    violations = [
        violation
        for module, source, is_package in modules()
        if module not in skipped
        for violation in check(source, module, is_package=is_package)
    ]

    assert violations == []


@pytest.mark.parametrize(
    ("check", "module", "source", "message"),
    [
        (layer_violations, "report", "import serve_warm.replica.warmup", "not below report"),
        (layer_violations, "inputs", "from serve_warm import metrics", "not below inputs"),
        (layer_violations, "artifact", "from serve_warm.replica.warmup import Warmup", "not below"),
        (layer_violations, "stores.local", "from ..artifact import pack", "not below stores"),
        (layer_violations, "stores", "from .. import artifact", "not below stores"),
        (layer_violations, "compiler", "def f():\n from serve_warm import replica", "not below"),
        (layer_violations, "precompile.facts", "from serve_warm.artifact import f", "not below"),
        (layer_violations, "metrics", "from serve_warm.collector import f", "not below metrics"),
        (
            layer_violations,
            "config",
            "import importlib as i\ni.import_module('serve_warm.cli')",
            "not below",
        ),
        (layer_violations, "cli", "from serve_warm import WarmupMixin", "the module that defines"),
        (layer_violations, "cli.main", "import serve_warm", "the module that defines it"),
        (owner_violations, "cli", "def f():\n import ray", "only builder, metrics"),
        (owner_violations, "artifact.push", "from ray import serve", "only builder"),
        (
            owner_violations,
            "stores",
            "import huggingface_hub.errors",
            "only stores.hub, stores.hub_client may",
        ),
        (owner_violations, "stores.hub", "import obstore", "only stores.object_store may"),
        (weight_violations, "", "import torch", "__init__ imports torch at the top"),
        (weight_violations, "stores.hub", "from torch import nn", "imports torch.nn"),
        (weight_violations, "cli.main", "try:\n import torch\nexcept ImportError: ...", "torch"),
        (weight_violations, "config", "class C:\n import torch._dynamo", "torch._dynamo"),
        (posix_violations, "replica.journal", "import os, resource", "imports resource at the top"),
        (posix_violations, "node", "class C:\n from fcntl import flock", "imports fcntl.flock"),
        (posix_violations, "cli.main", "try:\n import pwd\nexcept ImportError: ...", "pwd"),
        (environment_violations, "trust", "import os\nx = os.environ['HOME']", "os.environ"),
        (environment_violations, "cli", "import os\ndef f(): return os.getenv('X')", "os.getenv"),
        (environment_violations, "trust", "from os import environ", "imports os.environ"),
        (handler_violations, "trust", "try: f()\nexcept Exception: ...", "lines [2], 0 allowed"),
        (handler_violations, "trust", "try: f()\nexcept: ...", "lines [2], 0 allowed"),
        (handler_violations, "trust", "ANY = (Exception,)", "lines [1], 0 allowed"),
        (handler_violations, "cli", "try: f()\nexcept (OSError, BaseException): ...", "lines [2]"),
        (handler_violations, "cli", "with contextlib.suppress(Exception): f()", "lines [1]"),
        (
            handler_violations,
            "replica.journal",
            "try: f()\nexcept Exception: ...\ntry: g()\nexcept Exception: ...",
            "lines [2, 4], 1 allowed",
        ),
        (name_violations, "stores.utils", "", "named for the one thing"),
        (name_violations, "core", "", "has no layer"),
        (name_violations, "warmup", "", "replace the public name serve_warm.warmup"),
    ],
)
def test_a_violation_is_found(
    check: Callable[..., Iterator[str]], module: str, source: str, message: str
) -> None:
    """Each rule finds a source that breaks it, and names the problem."""
    is_package = module in {"", "stores", "cli"}

    violations = list(check(source, module, is_package=is_package))

    assert message in " · ".join(violations)


@pytest.mark.parametrize(
    ("check", "module", "source"),
    [
        (
            layer_violations,
            "replica.warmup",
            "from serve_warm import artifact, report",
        ),
        (layer_violations, "stores.local", "from serve_warm.stores import Store"),
        (layer_violations, "stores", "def f():\n from .local import LocalStore"),
        (layer_violations, "replica.replay", "from serve_warm import compiler"),
        (layer_violations, "builder", "from serve_warm._package import __version__"),
        (owner_violations, "metrics", "import ray"),
        (owner_violations, "cli.watching", "import prometheus_client"),
        (owner_violations, "trust", "import rayon"),
        (weight_violations, "fingerprint", "def f():\n import torch"),
        (weight_violations, "fingerprint", "if TYPE_CHECKING:\n import torch"),
        (weight_violations, "inputs", "class C:\n def f(self):\n  import torch"),
        (weight_violations, "compiler", "import torch"),
        (posix_violations, "node", "def f():\n import fcntl"),
        (environment_violations, "config", "import os\nos.environ['X'] = '1'"),
        (environment_violations, "trust", "def f(environ): return environ.get('X')"),
        (handler_violations, "replica.journal", "try: f()\nexcept Exception: log()"),
        (handler_violations, "trust", "try: f()\nexcept (OSError, ValueError): ..."),
        (handler_violations, "trust", "with contextlib.suppress(OSError): f()"),
        (name_violations, "stores.object_store", ""),
    ],
)
def test_what_is_allowed_is_no_violation(
    check: Callable[..., Iterator[str]], module: str, source: str
) -> None:
    """The rules allow what the design needs."""
    assert list(check(source, module, is_package=module in {"stores", "cli"})) == []


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
        f"{module} has no broad handler"
        for module in BROAD_HANDLERS.keys() & found.keys() - handled
    ]

    assert unused == []


def in_a_fresh_process(program: str) -> str:
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
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


@pytest.mark.parametrize("name", ["Input", "Report", "Fingerprint", "WarmupConfig"])
def test_pydantic_reads_public_records(name: str) -> None:
    """A FastAPI route may return such a record."""
    public = getattr(serve_warm, name)

    pydantic.TypeAdapter(public)

    fields = dataclasses.fields(public) if dataclasses.is_dataclass(public) else ()
    assert not any(isinstance(field.type, str) for field in fields)


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


def test_a_name_that_leads_nowhere_is_found() -> None:
    """A file and a module that have moved, and an attribute that has not."""
    names = ("serve_warm/transfer.py", "serve_warm.transfer", "serve_warm.trust.policy.Trust")

    assert [is_there(name) for name in names] == [False, False, True]


# --- the tests ---------------------------------------------------------------------------------

TESTS = PACKAGE.parent / "tests"

# Folders of tests that mirror no package of serve_warm.
OTHER_FOLDERS = {
    "benchmarks": "programs that measure, and their results",
    "data": "artifacts of earlier releases, and values of the chart",
    "deployments": "the example applications",
    "gpu": "what needs a GPU",
    "integration": "what needs a Ray cluster",
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
        assert list((TESTS / name).glob("test_*.py"))


def test_tests_of_one_package_stand_in_its_folder() -> None:
    """`tests` itself has the tests of the root modules."""
    flat = {path.name: path.read_text() for path in TESTS.glob("test_*.py")}

    assert flat
    assert {name: misplaced(text) for name, text in flat.items() if misplaced(text)} == {}


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("from serve_warm.trust.keys import key_id", "trust"),
        ("from serve_warm import trust", "trust"),
        ("import serve_warm.trust.keys\nfrom serve_warm.trust import files", "trust"),
        ("from serve_warm.trust import files\nfrom serve_warm.errors import ConfigError", None),
        ("from serve_warm import Input\nfrom serve_warm.cli import main", None),
        ("import serve_warm", None),
    ],
)
def test_a_test_in_the_wrong_place_is_found(source: str, package: str | None) -> None:
    """The test's imports decide, wherever they are in its source."""
    assert misplaced(source) == package


def test_names_of_test_files_are_unique() -> None:
    """Pytest imports files by their bare name if their folder is not a package."""
    names = [
        path.name
        for path in TESTS.rglob("*.py")
        if path.name != "__init__.py" and not (path.parent / "__init__.py").exists()
    ]

    assert sorted(names) == sorted(set(names))


# Tests that replace a part of this package while they run, by file and replaced object, each with
# the reason why no argument can do it.
PATCHES: dict[tuple[str, str], str] = {}


def test_tests_patch_no_module_of_the_package() -> None:
    """A test passes a replacement as an argument. The table above has the exceptions."""
    # The texts of this file are examples of patches.
    found = {
        (str(path.relative_to(TESTS)), name): line
        for path, name, line in patches_in(TESTS)
        if path != Path(__file__)
    }

    assert {place: line for place, line in found.items() if place not in PATCHES} == {}
    assert PATCHES.keys() <= found.keys()  # remove an exception that nothing needs


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from serve_warm import node\nmonkeypatch.setattr(node, 'boot_s', f)", ["node"]),
        ("from serve_warm import node\npatch.setattr(node.time, 'time', f)", ["node.time"]),
        ("monkeypatch.setattr('serve_warm.node.boot_s', f)", ["'serve_warm.node.boot_s'"]),
        ("from serve_warm.a import B as C\nm.setitem(C.READ, 'x', f)", ["C.READ"]),
        ("import serve_warm.node\nm.delattr(serve_warm.node, 'x')", ["serve_warm.node"]),
        ("from serve_warm import node\nmock.patch.object(node, 'x')", ["node"]),
        ("from unittest.mock import patch\npatch('serve_warm.node.x')", ["'serve_warm.node.x'"]),
        ("from serve_warm import node\nnode.HEARTBEAT_S = 0.1", ["node.HEARTBEAT_S"]),
        ("from serve_warm import node\ndel node.HEARTBEAT_S", ["node.HEARTBEAT_S"]),
        ("from serve_warm import node\nnode.A, node.B = 1, 2", ["node.A", "node.B"]),
        ("from serve_warm import node\nm.setattr(os, 'open', f)", []),
        ("m.setattr('ray.serve.metrics.Gauge', f)", []),
        ("from serve_warm import Input\nitem = Input(f)\nitem.name = 'x'", []),
        ("from serve_warm import node\nself.setattr(node, f)", []),
    ],
)
def test_a_patch_is_found(source: str, names: list[str]) -> None:
    """The first argument or the target decides: it must belong to this package."""
    assert [name for name, _ in patched(source)] == names


def test_a_patch_in_a_program_is_found() -> None:
    """This includes programs that a test starts from a text."""
    program = "from serve_warm import node\\nnode.HEARTBEAT_S = 0.1\\n"

    found = [name for each in programs_in(f"P = '{program}'") for name, _ in patched(each)]

    assert found == ["node.HEARTBEAT_S"]
