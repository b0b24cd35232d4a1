# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Mistakes of a first hour: the command that finds each first, what it says, and its exit code.

`check` finds all that can be known without running the application.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from artifacts import build, new_key, trusting
from serve_warm import cli
from serve_warm.artifact.code_and_model import CodeAndModel
from serve_warm.artifact.push import push
from serve_warm.builder import check_store
from serve_warm.cli import artifacts as artifact_commands
from serve_warm.fingerprint import Fingerprint, read_app, read_machine
from serve_warm.learn.plan import InputPlan
from serve_warm.stores import open_store

KEY = new_key()
SOURCE = """
from fastapi import FastAPI
from ray import serve
from serve_warm import Input, WarmupMixin

api = FastAPI()

@serve.deployment(max_ongoing_requests=8)
@serve.ingress(api)
class Scorer(WarmupMixin):
    def warmup_inputs(self):
        return [Input(target="score", args=(1,), fixed=True)]

    async def score(self, x):
        return x

    @api.post("/score")
    async def route(self, x: int):
        return await self.score(x)

app = Scorer.bind()
"""
INPUT = 'Input(target="score", args=(1,), fixed=True)'
_numbers = itertools.count()


class Project:
    """A folder with an application, its Serve config and its store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.module = f"app_{next(_numbers)}"
        self.store = f"file://{folder}/artifacts"
        self.source, self.document = SOURCE, None
        self.options: dict[str, Any] = {"warmup": {}}
        self.application: dict[str, Any] = {}

    def write(self) -> None:
        (self.folder / f"{self.module}.py").write_text(self.source)
        options = dict(self.options)
        warmup = options.pop("warmup")
        section = {"user_config": {"warmup": warmup}} if warmup else {}
        app = {
            "import_path": f"{self.module}:app",
            "deployments": [{"name": "Scorer", **section, **options}],
            **self.application,
        }
        document = self.document or yaml.safe_dump({"applications": [app]})
        (self.folder / "serve.yaml").write_text(document)

    def publish(self, *, key: Any = KEY, threads: str = "1", **options: Any) -> None:
        options = {"application": self.module, "deployment": "Scorer", **options}
        app = {**read_app({}), "threads": threads}
        fingerprint = Fingerprint(machine=read_machine({}), app=app)
        manifest, parts = build(built_for=fingerprint, **options)
        push(open_store(self.store), manifest, parts, key and [key])
        self.options["warmup"] = {"artifact": self.store, **self.options["warmup"]}


def edit(old: str, new: str) -> Callable[[Project], None]:
    """Return the mistake of other source."""

    def make(project: Project) -> None:
        assert old in project.source
        project.source = project.source.replace(old, new)

    return make


def inputs(new: str) -> Callable[[Project], None]:
    return edit(INPUT, new)


def warmup(**settings: Any) -> Callable[[Project], None]:
    """Return the mistake of other settings."""
    return lambda project: project.options["warmup"].update(settings)


def options(**given: Any) -> Callable[[Project], None]:
    """Return the mistake of other options of the deployment."""
    return lambda project: project.options.update(given)


def published(**given: Any) -> Callable[[Project], None]:
    return lambda project: project.publish(**given)


def config(text: str) -> Callable[[Project], None]:
    return lambda project: setattr(project, "document", text)


def application(**given: Any) -> Callable[[Project], None]:
    return lambda project: project.application.update(given)


def nothing(_: Project) -> None:
    """The mistake is in the command."""


def untouched(project: Project) -> None:
    project.source = """
from ray import serve

@serve.deployment
class Scorer:
    async def __call__(self, request): ...

app = Scorer.bind()
"""


def other_code(project: Project) -> None:
    project.publish(made_of=CodeAndModel(code="0" * 32))


def plan_of_another(project: Project) -> None:
    """Make the mistake of a plan that was made of another application's traffic."""
    (project.folder / "plan.yaml").write_text(InputPlan(calls=(), deployment="Ranker").to_yaml())


def existing_config(project: Project) -> None:
    (project.folder / "mine.yaml").write_text("mine: 1\n")


def a_file(project: Project) -> None:
    (project.folder / "artifacts").write_text("")
    project.options["warmup"] = {"artifact": project.store}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mistake:
    """One mistake, and what the command that finds it first says."""

    name: str
    make: Callable[[Project], None]
    command: str = "check serve.yaml"
    found: str
    """A part of the text that says what was found."""
    fix: str
    """A part of the text that says what to do."""
    code: int = 1
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)


MISTAKES = [
    # The application
    Mistake(
        name="module that is not there",
        make=nothing,
        command="check nope:app",
        found="'nope:app' cannot be imported: No module named 'nope'",
        fix="in the folder where you would run `serve run`",
        code=2,
    ),
    Mistake(
        name="attribute that is not there",
        make=nothing,
        command="check {module}:ap",
        found="has no attribute 'ap'",
        fix="did you mean 'app'?",
        code=2,
    ),
    Mistake(
        name="deployment that is not bound",
        make=nothing,
        command="check {module}:Scorer",
        found="does not refer to an application",
        fix="bind the deployment",
        code=2,
    ),
    Mistake(
        name="neither a file nor a module",
        make=nothing,
        command="check {module}",
        found="must be a Serve YAML file or have the form module:app",
        fix="for example serve.yaml",
        code=2,
    ),
    Mistake(
        name="file that is not there",
        make=nothing,
        command="check serv.yaml",
        found="serv.yaml does not exist",
        fix="did you mean 'serve.yaml'?",
        code=2,
    ),
    Mistake(
        name="file that is not YAML",
        make=config("applications: [\n"),
        found="serve.yaml is not YAML: line 2, column 1",
        fix="correct the file",
        code=2,
    ),
    Mistake(
        name="file without applications",
        make=config("import_path: app:app\n"),
        found="serve.yaml has no applications",
        fix="serve-warm init module:app --write writes one",
        code=2,
    ),
    Mistake(
        name="several applications",
        make=config(
            "applications:\n- {name: a, import_path: a:app, route_prefix: /a}\n"
            "- {name: b, import_path: b:app, route_prefix: /b}\n"
        ),
        found="has 2 applications",
        fix="split the file, or pass module:app",
        code=2,
    ),
    Mistake(
        name="package that is missing",
        make=edit("from ray", "import a_missing_package\nfrom ray"),
        found="No module named 'a_missing_package'",
        fix="in the folder where you would run `serve run`",
        code=2,
    ),
    Mistake(
        name="module that raises",
        make=edit("api =", "raise RuntimeError('of the user')\napi ="),
        found="RuntimeError: of the user",
        fix="line 6",
        code=2,
    ),
    # Serve's options
    Mistake(
        name="mistyped deployment",
        make=options(name="Scoer"),
        found="the application has no deployment of this name",
        fix="did you mean 'Scorer'?",
    ),
    Mistake(
        name="mistyped option",
        make=options(max_ongoing_request=4),
        found="does not know this key, and ignores it",
        fix="did you mean 'max_ongoing_requests'?",
    ),
    Mistake(
        name="option of a wrong type",
        make=options(max_ongoing_requests="many"),
        found="deployments.0.max_ongoing_requests",
        fix="Serve does not accept it",
    ),
    Mistake(
        name="mistyped --deployment",
        make=nothing,
        command="check serve.yaml --deployment scorer",
        found="no deployment of this name uses WarmupMixin",
        fix="did you mean 'Scorer'?",
    ),
    Mistake(
        name="mixin without inputs",
        make=edit("warmup_inputs", "inputs_of_warmup"),
        found="it declares no inputs",
        fix="define warmup_inputs(self)",
    ),
    Mistake(
        name="inputs that are not returned",
        make=edit("return [", "found = ["),
        found="it returns None, and without inputs the start fails",
        fix="return a list of Input",
    ),
    # Settings
    Mistake(
        name="mistyped setting",
        make=warmup(artefact="s3://bucket/x"),
        found="user_config.warmup.artefact is not a setting",
        fix="did you mean 'artifact'?",
    ),
    Mistake(
        name="mistyped value",
        make=warmup(on_missing="egar"),
        found="Input should be 'compile', 'eager' or 'fail' (found 'egar')",
        fix="serve-warm check --schema prints each setting with its values",
    ),
    Mistake(
        name="value out of range",
        make=warmup(deadline_s=-1),
        found="user_config.warmup.deadline_s: Input should be greater than 0 (found -1)",
        fix="serve-warm check --schema prints each setting with its values",
    ),
    Mistake(
        name="variable with a wrong value",
        make=nothing,
        environ={"SERVE_WARM_DEADLINE_S": "soon"},
        found="SERVE_WARM_DEADLINE_S: Input should be a valid number",
        fix="serve-warm check --schema prints each setting with its values",
    ),
    Mistake(
        name="mistyped section",
        make=options(user_config={"warmpu": {"artifact": "s3://bucket/x"}}),
        found="user_config.warmpu: the class has no reconfigure method",
        fix="did you mean 'warmup'?",
    ),
    Mistake(
        name="config of an untouched application that is not wrapped",
        make=untouched,
        found="is not wrapped, so Serve starts it without serve_warm",
        fix="serve-warm init serve.yaml",
        code=0,
    ),
    # Inputs
    Mistake(
        name="mistyped target",
        make=inputs("Input(target='scor')"),
        found="Scorer has no method 'scor'",
        fix="did you mean 'score'?",
    ),
    Mistake(
        name="mistyped argument of Input",
        make=inputs("Input(target='score', arg=(1,))"),
        found="Input has no argument 'arg'",
        fix="did you mean 'args'?",
    ),
    Mistake(
        name="mistyped route",
        make=inputs("Input(target='POST /scores?x=1')"),
        found="has no route for 'POST /scores?x=1'",
        fix="did you mean 'POST /score'?",
    ),
    Mistake(
        name="missing argument of the handler",
        make=inputs("Input(target='score', fixed=True)"),
        found="missing a required argument: 'x'",
        fix="its arguments: (x)",
    ),
    Mistake(
        name="mistyped argument of the handler",
        make=inputs("Input(target='score', kwargs={'xs': 1})"),
        found="cannot be called with these arguments",
        fix="did you mean 'x'?",
    ),
    Mistake(
        name="more calls at once than Serve sends",
        make=inputs("Input(target='score', args=(1,), concurrency=9)"),
        found="the input makes 9 calls at once",
        fix="set max_ongoing_requests: 9 for Scorer",
    ),
    Mistake(
        name="value that was not filled in",
        make=inputs("Input(target='score', args=(...,))"),
        found="the input has `...` in place of a value",
        fix="fill in what requests send",
    ),
    Mistake(
        name="batch larger than Serve forms",
        make=edit(
            "    async def score", "    @serve.batch(max_batch_size=32)\n    async def score"
        ),
        found="no batch can be larger than 8",
        fix="set max_ongoing_requests: 32",
        code=0,
    ),
    Mistake(
        name="sync handler",
        make=edit("async def score", "def score"),
        found="'score' is a sync method",
        fix="on_model_thread",
        code=0,
    ),
    Mistake(
        name="one size of an input",
        make=edit(", fixed=True", ""),
        found="no size of its arguments varies",
        fix="declare them, or pass fixed=True",
        code=0,
    ),
    # The store
    Mistake(
        name="unknown scheme",
        make=warmup(artifact="s4://b/x"),
        found="unknown store scheme s4://",
        fix="did you mean s3:// instead?",
    ),
    Mistake(
        name="scheme without its colon",
        make=warmup(artifact="s3//bucket/x"),
        found="the colon is missing",
        fix="write s3://",
    ),
    Mistake(
        name="store that is a file",
        make=a_file,
        found="artifacts is a file, but a store must be a folder",
        fix="use a folder",
    ),
    Mistake(
        name="folder that nobody made",
        make=warmup(artifact="/nowhere/artifacts"),
        found="/nowhere/artifacts does not exist",
        fix="serve-warm build serve.yaml --store /nowhere/artifacts",
        code=0,
    ),
    Mistake(
        name="relative path in a config",
        make=warmup(artifact="./artifacts"),
        found="on a cluster it means a path in the replica's working directory",
        fix="use an absolute path",
        code=0,
    ),
    Mistake(
        name="build to another store than replicas read",
        make=warmup(artifact="/srv/artifacts"),
        command="check serve.yaml --store /srv/artefacts",
        found="but the replicas read from file:///srv/artifacts",
        fix="set artifact: file:///srv/artefacts",
    ),
    Mistake(
        name="store without a server",
        make=warmup(artifact="s3://bucket/x"),
        environ={
            "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_REGION": "us-east-1",
        },
        found="connection refused",
        fix="check that the store is up and can be reached from here",
    ),
    Mistake(
        name="artifact without a signature",
        make=published(key=None),
        found="the statement has no signature",
        fix="serve-warm sign",
        code=0,
    ),
    Mistake(
        name="key that nobody trusts",
        make=published(key=new_key()),
        found="which is not trusted here",
        fix="add the public key that signs your artifacts to",
        code=0,
    ),
    Mistake(
        name="artifact that is too old",
        make=published(created="1920-01-01T00:00:00.000000Z"),
        found="days ago, but the limit is",
        fix="build again with --if-published supersede",
    ),
    Mistake(
        name="other num_cpus",
        make=published(threads="4"),
        found="threads: artifact 4, here 1",
        fix="build with the num_cpus that you deploy with",
        code=0,
    ),
    Mistake(
        name="name of another application",
        make=published(application="other"),
        found="it has other/Scorer",
        fix="set application: other",
        code=0,
    ),
    Mistake(
        name="class that has changed",
        make=other_code,
        found="the class has changed since the artifact that a start takes was built",
        fix="serve-warm build serve.yaml",
        code=0,
    ),
    # Untouched applications
    Mistake(
        name="unknown argument of wrap",
        make=application(import_path="serve_warm.app:wrap", args={"app": "x:app", "artefact": "y"}),
        found="unknown keys: artefact",
        fix="did you mean 'artifact'?",
        code=2,
    ),
    Mistake(
        name="wrap without an application",
        make=application(import_path="serve_warm.app:wrap", args={}),
        found="needs the import path of the application as `app`",
        fix="args: {app: app:app}",
        code=2,
    ),
    # Other commands
    Mistake(
        name="mistyped command",
        make=nothing,
        command="biuld serve.yaml",
        found="No such command 'biuld'",
        fix="did you mean 'build'?",
        code=2,
    ),
    Mistake(
        name="config that would be replaced",
        make=existing_config,
        command="init {module}:app --artifact s3://b/x --output mine.yaml --write",
        found="mine.yaml exists, and would be replaced",
        fix="serve-warm init mine.yaml",
    ),
    Mistake(
        name="plan of another application",
        make=plan_of_another,
        command="build serve.yaml --plan plan.yaml --store {folder}/artifacts",
        found="plan.yaml has the calls of Ranker, and not of Scorer",
        fix="make a plan of the traffic of this application",
    ),
    Mistake(
        name="artifact that verify refuses",
        make=published(key=None),
        command="verify {store}",
        found="the statement has no signature",
        fix="serve-warm sign",
        code=3,
    ),
    Mistake(
        name="why without replicas",
        make=nothing,
        command="why --dashboard none --state-dir {folder}/states",
        found="nothing to explain in",
        fix="{folder}/states",
    ),
]


@pytest.fixture(name="project")
def project_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project without a mistake, on a machine that trusts one key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in (check_store, artifact_commands):
        monkeypatch.setattr(module, "load_trust", lambda: trusting(KEY))
    return Project(tmp_path)


def run(project: Project, command: str, environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the exit code and all that the command prints, as the program itself does."""
    project.write()
    given = {"module": project.module, "store": project.store, "folder": str(project.folder)}
    arguments = command.format(**given).split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["serve-warm", *arguments])
        for name, value in environ.items():
            patch.setenv(name, value)

        def main() -> None:
            cli.main()

        done = CliRunner().invoke(_Command(main), [])
    return done.exit_code, done.output


class _Command:
    """The program, in the form that click's runner calls."""

    name = "serve-warm"

    def __init__(self, main: Callable[[], None]) -> None:
        self._main = main

    def main(self, **_: Any) -> None:
        self._main()


def test_without_a_mistake_nothing_is_found(project):
    assert run(project, "check serve.yaml", {})[0] == 0


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.name)
def test_a_mistake_is_found_with_what_to_do(project, mistake):
    mistake.make(project)
    code, said = run(project, mistake.command, mistake.environ)
    assert mistake.found in said
    assert mistake.fix.replace("{folder}", str(project.folder)) in said
    assert code == mistake.code
