# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Proposed Serve configs."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_warm.builder.app import load_application
from serve_warm.builder.proposed_config import propose_config
from serve_warm.errors import ConfigError

_numbers = itertools.count()


@pytest.fixture(name="module")
def module_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a module to an empty folder, and return its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(source: str, name: str = "") -> str:
        name = name or f"configured_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


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


MANIFEST = """\
# of the team
apiVersion: ray.io/v1
kind: RayService
metadata: {{name: x}}
spec:
  serveConfigV2: {header}
{config}
  # the cluster
  rayClusterConfig:
    headGroupSpec: {{rayStartParams: {{}}}}
---
kind: ConfigMap
data: {{serveConfigV2: "applications: []"}}
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("header", ["|", "|-  # Serve's"])
@pytest.mark.parametrize("args", ["", BLOCK, "    args: {size: 3, more: [1]}\n", "    args: {}\n"])
def test_the_manifest_of_a_ray_service_keeps_its_lines(module, args, header, newline):
    config = CONFIG.format(module=module(BUILDER), args=args)
    before = MANIFEST.format(header=header, config=textwrap.indent(config, " " * 4))
    before = before.replace("\n", newline)
    Path("rayservice.yaml").write_bytes(before.encode())
    Path("serve.yaml").write_text(config)
    expected, found = (
        propose_config(load_application(name), Path(name), artifact="s3://b/x")
        for name in ("serve.yaml", "rayservice.yaml")
    )
    after = MANIFEST.format(header=header, config=textwrap.indent(expected.after, " " * 4))
    assert found.after == after.replace("\n", newline)
    found.write()
    application = load_application("rayservice.yaml")
    assert application.config["args"]["artifact"] == "s3://b/x"
    assert propose_config(application, Path(), artifact=None).diff() == ""


OTHERS = ["", "spec: {}", "spec: {serveConfigV2: 3}", "spec: 3", "spec: {serveConfigV2: 'a: 1'}"]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("is_first", [True, False])
def test_another_service_beside_it_stays_as_it_is(module, other, is_first):
    config = CONFIG.format(module=module(BUILDER), args="")
    mine = MANIFEST.format(header="|", config=textwrap.indent(config, " " * 4))
    others = f"kind: RayService\n{other}\n"
    documents = [mine, others] if is_first else [others, mine]
    Path("rayservice.yaml").write_text("---\n".join(documents))
    proposal = propose_config(load_application("rayservice.yaml"), Path("x"), artifact=None)
    assert others in proposal.after
    Path("rayservice.yaml").write_text(proposal.after)
    assert load_application("rayservice.yaml").config["import_path"] == "serve_warm.app:wrap"


def test_lines_of_spaces_keep_them(module):
    config = CONFIG.format(module=module(BUILDER), args="").replace("    dep", "       \n    dep")
    block = textwrap.indent(config, " " * 4, lambda _: True)
    Path("rayservice.yaml").write_text(MANIFEST.format(header="|", config=block))
    proposal = propose_config(load_application("rayservice.yaml"), Path("x"), artifact=None)
    assert f"\n{' ' * 11}\n" in proposal.after


def test_a_manifest_with_old_line_ends_is_left_to_the_user(module):
    config = CONFIG.format(module=module(BUILDER), args="")
    text = MANIFEST.format(header="|", config=textwrap.indent(config, " " * 4))
    Path("rayservice.yaml").write_bytes(text.replace("\n", "\r").encode())
    with pytest.raises(ConfigError, match="without losing its form"):
        propose_config(load_application("rayservice.yaml"), Path("x"), artifact=None)


def test_a_manifest_of_another_form_is_left_to_the_user(module):
    config = json.dumps(CONFIG.format(module=module(BUILDER), args=""))
    Path("rayservice.yaml").write_text(f"kind: RayService\nspec:\n  serveConfigV2: {config}\n")
    with pytest.raises(ConfigError, match="without losing its form"):
        propose_config(load_application("rayservice.yaml"), Path("x"), artifact=None)


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


def test_without_a_store_no_stranger_is_named(module):
    """The placeholder is a comment, so that nothing asks it."""
    source = textwrap.dedent(BUILDER).replace("class Plain:", "class Plain(WarmupMixin):")
    target = f"{module(f'from serve_warm import WarmupMixin{source}')}:app"
    proposal = propose_config(load_application(target), Path("new.yaml"), artifact=None)
    (found,) = yaml.safe_load(proposal.after)["applications"]
    assert found["deployments"] == [{"name": "Plain", "user_config": {"warmup": {}}}]
    assert "# artifact: s3://bucket/" in proposal.after


def test_names_and_stores_are_quoted(module):
    """A module may be called `on`, which is a boolean in YAML."""
    target = f"{module(BUILDER, 'on')}:app"
    store = "file:///srv/a #1: x"
    proposal = propose_config(load_application(target), Path("new.yaml"), artifact=store)
    (found,) = yaml.safe_load(proposal.after)["applications"]
    assert (found["name"], found["args"]) == ("on", {"app": target, "artifact": store})


def test_comments_of_the_next_key_stay_there(module):
    name = module(BUILDER)
    text = CONFIG.format(module=name, args=BLOCK + "    # of deployments\n\n")
    Path("serve.yaml").write_bytes(text.replace("\n", "\r\n").encode())
    proposal = propose_config(load_application("serve.yaml"), Path("serve.yaml"), artifact=None)
    assert proposal.after.count("\n") == proposal.after.count("\r\n")
    assert "    # of deployments\r\n\r\n    deployments:" in proposal.after
    assert not any(line.endswith(" ") for line in proposal.after.split("\r\n"))


def test_another_store_of_a_wrapped_config_is_not_lost(module):
    name = module(BUILDER)
    Path("serve.yaml").write_text(
        f"applications:\n- import_path: serve_warm.app:wrap\n  args: {{app: '{name}:app'}}\n"
    )
    with pytest.raises(ConfigError, match="not s3://bucket/x") as error:
        propose_config(load_application("serve.yaml"), Path("x"), artifact="s3://bucket/x")
    assert "set args.artifact: s3://bucket/x" in error.value.hint
