# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Proposed changes of a user's files."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_warm.builder.app import load_application
from serve_warm.builder.check import check
from serve_warm.builder.proposals import propose_config, propose_inputs
from serve_warm.errors import ConfigError

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
    assert "class Embedder(serve_warm.WarmupMixin):" in added
    assert "        self.model = serve_warm.compile(torch.nn.Linear(2, 2))  # it compiles" in added
    inputs = load_application(f"{name}:app").warming["Embedder"].warmup_inputs(None)
    assert [(each.target, each.json, each.concurrency) for each in inputs] == [
        ("POST /embed/text?n=1", {"text": "good morning"}, 1),
        ("POST /embed/text?n=1", {"text": "good morning"}, 4),
    ]
    assert check(f"{name}:app", environ={}).problems == ()


def test_what_cannot_be_known_is_left_open_and_found_by_check(module):
    """Keys are read from the source; their values are the user's to fill in."""
    name = module(PLAIN)
    diff, left = apply(name)
    classes = load_application(f"{name}:app").warming
    found = {
        name: [(each.target, each.json, dict(each.kwargs)) for each in cls.warmup_inputs(None)]
        for name, cls in classes.items()
    }
    assert found == {
        "Caller": [
            ("POST /", {"text": ..., "n": ...}, {}),
            ("score", None, {"ids": [1]}),
        ],
        "Two": [("GET /?q=...", None, {})],
    }
    assert [each.partition(",")[0] for each in left] == ["function is a function"]
    assert "+class Caller(serve_warm.WarmupMixin, Base):" in diff
    problems = check(f"{name}:app", environ={}).problems
    assert {each.what for each in problems} == {"the input has `...` in place of a value"}
    assert propose_inputs(load_application(f"{name}:app"))[0] == []


CONFIG = """\
# mine
applications:
  # the app
  - name: x
    import_path: {module}:build   # c
{args}    deployments:
      - name: Plain
        num_replicas: 2
"""

BUILDER = """
from ray import serve

@serve.deployment
class Plain:
    async def __call__(self, request): ...

def build(args):
    return Plain.bind()

app = Plain.bind()
"""

BLOCK = """\
    args:
      size: 3
      # deep
      more:
      - 1
"""


@pytest.mark.parametrize("args", ["", BLOCK, "    args: {size: 3, more: [1]}\n"])
def test_a_config_keeps_its_lines_and_comments(module, args):
    name = module(BUILDER)
    path = Path("serve.yaml")
    path.write_text(CONFIG.format(module=name, args=args))
    proposal = propose_config(load_application("serve.yaml"), path, artifact="s3://b/x")
    (found,) = yaml.safe_load(proposal.after)["applications"]
    own = {"args": {"size": 3, "more": [1]}} if args else {}
    assert found == {
        "name": "x",
        "import_path": "serve_warm.app:wrap",
        "args": {"app": f"{name}:build", "artifact": "s3://b/x", **own},
        "deployments": [{"name": "Plain", "num_replicas": 2}],
    }
    assert [line for line in proposal.after.splitlines() if "#" in line] == [
        *("# mine", "  # the app", "    import_path: serve_warm.app:wrap   # c"),
        *(["        # deep"] if args is BLOCK else []),
    ]
    path.write_text(proposal.after)
    assert propose_config(load_application("serve.yaml"), path, artifact=None).diff() == ""


def test_a_config_of_another_form_is_left_to_the_user(module):
    """An anchor could change its meaning."""
    name = module(BUILDER)
    text = f"x: &p {name}:build\napplications:\n- import_path: *p\n  args: {{size: 3}}\n"
    Path("serve.yaml").write_text(text)
    with pytest.raises(ConfigError, match="without losing its form") as error:
        propose_config(load_application("serve.yaml"), Path("serve.yaml"), artifact=None)
    assert f"app: {name}:build" in error.value.hint


@pytest.mark.parametrize("artifact", [None, "s3://b/x"])
def test_a_new_config_is_one_that_check_reads(module, artifact):
    """Without a store it names the default in a comment."""
    target = f"{module(BUILDER)}:app"
    proposal = propose_config(load_application(target), Path("new.yaml"), artifact=artifact)
    proposal.path.write_text(proposal.after)
    (found,) = yaml.safe_load(proposal.after)["applications"]
    assert found["args"] == {"app": target, **({"artifact": artifact} if artifact else {})}
    assert proposal.before is None
    assert load_application("new.yaml").warming.keys() == {"Plain"}


def test_a_class_with_the_mixin_gets_its_section(module):
    source = textwrap.dedent(BUILDER).replace("class Plain:", "class Plain(WarmupMixin):")
    target = f"{module(f'from serve_warm import WarmupMixin{source}')}:app"
    proposal = propose_config(load_application(target), Path("new.yaml"), artifact="s3://b/x")
    (found,) = yaml.safe_load(proposal.after)["applications"]
    assert found["import_path"] == target
    (deployment,) = found["deployments"]
    assert deployment == {"name": "Plain", "user_config": {"warmup": {"artifact": "s3://b/x"}}}
