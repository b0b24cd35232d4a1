# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Proposed inputs, as a change of a user's source."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from serve_warm.builder.app import load_application
from serve_warm.builder.check import check
from serve_warm.builder.proposed_inputs import propose_inputs

_numbers = itertools.count()

FASTAPI = '''
import torch
from fastapi import FastAPI
from pydantic import BaseModel, Field
from ray import serve

api = FastAPI()


class Query(BaseModel):
    text: str = Field(examples=["good morning"])


@serve.deployment(max_ongoing_requests=8)
@serve.ingress(api)
class Embedder:
    """Ä class."""

    def __init__(self):
        self.model = torch.compile(torch.nn.Linear(2, 2))  # it compiles

    @serve.batch(max_batch_size=4)
    async def many(self, items): ...

    @api.post("/embed/{language}")
    async def embed(self, language: str, query: Query, n: int):
        return await self.many(query)


app = Embedder.bind()
'''

PLAIN = """
from ray import serve
from starlette.requests import Request

class Base: ...

@serve.deployment
class Caller(Base):
    async def __call__(self, request: Request):
        data = await request.json()
        return data["text"], data.get("n"), await self.helper(1)

    async def helper(self, x): ...

    async def score(self, ids: list[int], scale: float = 1.0): ...

    def sync(self, x): ...

@serve.deployment
def function(request): ...

class Two:
    async def __call__(self, request):
        return request.query_params["q"]

app = Caller.bind(function.bind(), serve.deployment(Two).bind())"""


@pytest.fixture(name="module")
def module_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a module to an empty folder, and return its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(source: str) -> str:
        name = f"proposed_for_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


def apply(module: str) -> tuple[str, list[str]]:
    """Write the proposed change of a module, and return it as a diff."""
    (proposal,), left = propose_inputs(load_application(f"{module}:app"))
    proposal.path.write_text(proposal.after)
    sys.modules.pop(module)
    importlib.invalidate_caches()
    return proposal.diff(), left


def test_a_fastapi_app_gets_inputs_that_check_accepts(module):
    """Values come from the schema, and a batch is replayed alone and full."""
    name = module(FASTAPI)
    diff, left = apply(name)
    added = [line[1:] for line in diff.splitlines()[2:] if line.startswith("+")]
    assert left == []
    assert added[0].startswith("    def warmup_inputs(self):")
    assert not any(line.startswith("-") for line in diff.splitlines()[2:])
    inputs = load_application(f"{name}:app").warming["Embedder"].warmup_inputs(None)
    assert [(each.target, each.json, each.concurrency) for each in inputs] == [
        ("POST /embed/text?n=1", {"text": "good morning"}, 1),
        ("POST /embed/text?n=1", {"text": "good morning"}, 4),
    ]
    assert check(f"{name}:app", environ={}).problems == ()


def test_what_cannot_be_known_is_left_open_and_found_by_check(module):
    """Keys are read from the source; their values are the user's to fill in."""
    name = module(PLAIN)
    _, left = apply(name)
    classes = load_application(f"{name}:app").warming
    found = {
        name: [(each.target, each.json, dict(each.kwargs)) for each in cls.warmup_inputs(None)]
        for name, cls in classes.items()
        if cls.warmup_inputs is not None
    }
    assert found == {
        "Caller": [
            ("POST /", {"text": ..., "n": ...}, {}),
            ("score", None, {"ids": [1]}),
        ],
        "Two": [("GET /?q=...", None, {})],
    }
    assert [each.partition(",")[0] for each in left] == ["function is a function"]
    problems = check(f"{name}:app", environ={}).problems
    assert {each.what for each in problems} == {"the input has `...` in place of a value"}
    assert propose_inputs(load_application(f"{name}:app"))[0] == []


OF_FUNCTION = "    class Odd:\n        async def score(self, x): ...\n"
METHOD = "async def score(self, x: int): ...\n"

FORMS = {
    "tabs": "class Odd:\n\tasync def score(self, x: int): ...\n",
    "keyword": "class Odd(metaclass=abc.ABCMeta):\n    async def score(self, x: int): ...\n",
    "two spaces": "class  Odd :\n    async def score(self, x: int): ...\n",
    "nested": f"class Outer:\n    class Odd:\n        {METHOD}Odd = Outer.Odd\n",
    "conditional": "if True:\n    class Odd:\n        async def score(self, x: int): ...\n",
    "text": 'class Odd:\n    async def score(self, x: int):\n        """\nhere\n"""\n',
    "separators": f"class Odd:\n    a = 'x\\x0by\u2028'\n    {METHOD}",
    "windows": "class Odd:\r\n    async def score(self, x: int): ...\r\n",
    "inherited": f"class Base:\n    {METHOD}class Odd(Base):\n    y = 1\n",
    "no end": "class Odd:\n    async def score(self, x: int): ...",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["", "mark"])
def test_a_class_of_any_form_gets_the_method_and_loses_nothing(module, form, mark):
    head = "import abc\nfrom ray import serve\nimport serve_warm as sw\n"
    tail = "app = serve.deployment(Odd).bind()\n"
    text = head + FORMS[form] + ("" if FORMS[form].endswith("\n") else "\n") + tail
    name = module(text if form != "no end" else head + tail.replace("Odd", "late()") + "")
    path = Path(f"{name}.py")
    if form == "no end":
        text = f"{head}def late():\n    return Odd\n\n{FORMS[form]}"
        path.write_bytes(f"{text}\n{tail}".encode().rstrip(b"\n"))
    else:
        path.write_bytes(f"{mark}{text}".encode())
    before = path.read_bytes().splitlines(keepends=True)
    (proposal,), left = propose_inputs(load_application(f"{name}:app"))
    proposal.write()
    after = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in after if line in before]
    assert left == []
    assert [line for line in kept if line.strip()] == [line for line in before if line.strip()]
    assert {line[-2:] == b"\r\n" for line in after if line not in before} == {form == "windows"}
    sys.modules.pop(name)
    importlib.invalidate_caches()
    cls = load_application(f"{name}:app").warming["Odd"]
    (item,) = cls.warmup_inputs(None)
    assert (item.target, dict(item.kwargs)) == ("score", {"x": 1})


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("class Odd: score = None\n", "is not on lines of its own"),
        (
            f"def make():\n{OF_FUNCTION}    return Odd\nOdd = make()\n",
            "only a class in a file declares inputs",
        ),
        ("class Odd:\n    def warmup_inputs(self): return []\n", "declares inputs already"),
        ("class Odd:\n    _private = 1\n", "has no method that a request could call"),
    ],
)
def test_why_a_class_gets_no_inputs_is_said(module, source, why):
    if "score = None" in source:
        source = "class Odd: score = _score\n"
        source = f"async def _score(self, x): ...\n{source}"
    name = module(f"from ray import serve\n{source}app = serve.deployment(Odd).bind()\n")
    proposals, left = propose_inputs(load_application(f"{name}:app"))
    assert proposals == []
    assert why in left[0]


def test_installed_packages_are_never_changed(module, tmp_path, monkeypatch):
    """A class of a library may be a deployment of the application."""
    library = tmp_path / "lib"
    library.mkdir()
    (library / f"vendored_{next(_numbers)}.py").write_text(
        "class Odd:\n    async def score(self, x: int): ...\n"
    )
    (file,) = library.iterdir()
    monkeypatch.syspath_prepend(str(library))
    folder = tmp_path / "app"
    folder.mkdir()
    monkeypatch.chdir(folder)
    name = f"of_library_{next(_numbers)}"
    (folder / f"{name}.py").write_text(
        f"from ray import serve\nfrom {file.stem} import Odd\napp = serve.deployment(Odd).bind()\n"
    )
    proposals, left = propose_inputs(load_application(f"{name}:app"))
    assert proposals == []
    assert f"is in {file}, which is not below the working directory" in left[0]


def test_headers_batches_forms_and_places_are_as_requests_have_them(module):
    source = """
from fastapi import FastAPI, Header, Query
from ray import serve
from starlette.requests import Request

api = FastAPI()

@serve.deployment
@serve.ingress(api)
class Api:
    @api.get("/h")
    async def h(self, x_key: str = Header(), tags: list[str] = Query()): ...

@serve.deployment
class Calls:
    @serve.batch(max_batch_size=4)
    async def many(self, items: list[str]): ...

    async def by_place(self, x: int, /, *, y: str): ...

    async def __call__(self, request: Request):
        return await request.form()

app = Calls.bind(Api.bind())
"""
    name = module(source)
    apply(name)
    classes = load_application(f"{name}:app").warming
    (of_api,) = classes["Api"].warmup_inputs(None)
    assert (of_api.target, dict(of_api.headers)) == ("GET /h?tags=text", {"x-key": ...})
    found = {(e.target, e.concurrency): e for e in classes["Calls"].warmup_inputs(None)}
    assert found.keys() == {("many", 1), ("many", 4), ("by_place", 1), ("POST /", 1)}
    assert dict(found["many", 4].kwargs) == {"items": "text"}
    assert (found["by_place", 1].args, dict(found["by_place", 1].kwargs)) == ((1,), {"y": "text"})
    assert found["POST /", 1].headers["content-type"] == "application/x-www-form-urlencoded"
    assert check(f"{name}:app", environ={}).problems != ()  # what is to be filled in
