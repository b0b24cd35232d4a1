# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve-warm check`: what is found in an application before Ray is started."""

from __future__ import annotations

import itertools
import json
import shlex
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve._private import constants

from processes import run_to_end
from serve_warm.builder import check_store
from serve_warm.builder.app import load_application
from serve_warm.builder.check import check
from serve_warm.builder.check_store import compare_stores
from serve_warm.builder.problems import CheckFindings
from serve_warm.replica.serve.loop_blocks import MOST_FAILED

SCORER = """
import functools
import torch
from fastapi import FastAPI
from ray import serve
from starlette.requests import Request

import serve_warm
from serve_warm import Buckets, Field, Input, WarmupMixin, shape_grid

api = FastAPI()

def with_session(method):
    @functools.wraps(method)
    async def call(self, *args):
        return await method(self, 1, *args)
    return call
"""

GOOD = """
@serve.deployment(max_ongoing_requests=8)
class Scorer(WarmupMixin):
    buckets = Buckets(batch=[1, 8], length=[16])

    def __init__(self):
        raise AssertionError("no __init__ runs")

    def warmup_inputs(self):
        return [
            *shape_grid(self.score, self.buckets, concurrency="batch"),
            Input(target="score", args=(1,)),
            Input(target="POST /", json={}),
        ]

    async def __call__(self, request: Request): ...

    async def score(self, ids):
        return serve_warm.compile(ids)

app = Scorer.bind()
"""

SILENT = {"AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}

_numbers = itertools.count()


@pytest.fixture(name="written")
def written_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write an application and its YAML, and return the path of the YAML."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(source: str = GOOD, *, application: Any = None, **options: Any) -> str:
        module = f"checked_application_{next(_numbers)}"
        (tmp_path / f"{module}.py").write_text(SCORER + textwrap.dedent(source))
        deployments = [{"name": "Scorer", **options}]
        found = {"import_path": f"{module}:app", "deployments": deployments, **(application or {})}
        path = tmp_path / "serve.yaml"
        path.write_text(yaml.safe_dump({"applications": [found]}))
        return str(path)

    return write


def found(target: str, **options: Any) -> CheckFindings:
    return check(target, environ={}, **options)


def one_problem(target: str, **options: Any) -> tuple[str, str, str]:
    (problem,) = found(target, **options).problems
    return problem.where, problem.what, problem.fix


def warmup(**settings: Any) -> dict[str, Any]:
    return {"warmup": settings}


def test_nothing_is_found_where_nothing_is_wrong(written):
    path = written()
    document = yaml.safe_load(Path(path).read_text())
    assert is_clean(found(path))
    assert is_clean(found(document["applications"][0]["import_path"]))


def test_a_deployment_that_is_not_there_is_named(written):
    """Serve would refuse the YAML when it deploys; a build would not notice."""
    path = written(name="Scorrer")
    where, what, fix = one_problem(path)
    option, _, fix_of_option = one_problem(written(), deployment="scorer")
    assert (where, option) == (f"{path}: deployments.Scorrer", "--deployment scorer")
    assert "no deployment of this name" in what
    assert fix == fix_of_option == "did you mean 'Scorer'?"


def test_unknown_keys_are_named(written):
    """Serve ignores them silently, at each level of the file."""
    path = written(
        application={"runtime_envs": {}, "x-common": 1},
        max_ongoing_request=4,
        ray_actor_options={"num_cpu": 2},
    )
    assert [(each.where, each.fix) for each in found(path).problems] == [
        (f"{path}: runtime_envs", "did you mean 'runtime_env'?"),
        (f"{path}: deployments.Scorer.max_ongoing_request", "did you mean 'max_ongoing_requests'?"),
        (f"{path}: deployments.Scorer.ray_actor_options.num_cpu", "did you mean 'num_cpus'?"),
    ]


def test_what_serve_refuses_is_a_problem(written):
    """A value of the wrong kind is found by Serve's own schema, and nothing is imported then."""
    path = written("raise AssertionError('not imported')", max_ongoing_requests="many")
    where, _, fix = one_problem(path)
    assert where == f"{path}: applications.0.deployments.0.max_ongoing_requests"
    assert "Serve does not accept" in fix


def test_what_serve_refuses_in_a_whole_file_is_a_problem_of_the_file(written):
    """Serve accepts each field here, but not all of them together."""
    path = written("raise AssertionError('not imported')", application={"host": "127.0.0.1"})
    where, what, _ = one_problem(path)
    assert where == path
    assert 'Host "127.0.0.1" is set in the config for application' in what


SETTINGS = "Scorer: user_config.warmup"


@pytest.mark.parametrize(
    ("options", "where", "what", "fix"),
    [
        (
            {"user_config": warmup(artefact="./a")},
            SETTINGS,
            "user_config.warmup.artefact",
            "artifact",
        ),
        (
            {"application": {"runtime_env": {"env_vars": {"SERVE_WARM_DEADLINE_S": "soon"}}}},
            *("", "SERVE_WARM_DEADLINE_S", ""),
        ),
        ({"user_config": warmup(artifact="s4://b/c")}, "", "unknown store scheme s4://", ""),
        ({"user_config": warmup(artifact="s3//b/c")}, "", "the colon is missing", ""),
        (
            {"user_config": warmup(artifact="file:///dev/null")},
            "Scorer: artifact file:///dev/null",
            *("/dev/null is a file, but a store must be a folder", ""),
        ),
    ],
    ids=["unknown", "variable of the runtime_env", "scheme", "colon", "file"],
)
def test_a_setting_that_a_replica_would_refuse_is_a_problem(written, options, where, what, fix):
    """Settings of serve_warm are checked as a replica would check them, before it could miss."""
    found_where, found_what, found_fix = one_problem(written(**options))
    assert found_where.startswith(where)
    assert what in found_what
    assert fix in found_fix


@pytest.mark.parametrize(
    "actor",
    [{"runtime_env": {"env_vars": ["A=B"]}}, {"num_cpus": float("inf")}],
    ids=["list", "inf"],
)
def test_odd_values_end_in_no_traceback(written, actor, tmp_path):
    path = written(user_config=warmup(artifact=f"file://{tmp_path}/a"), ray_actor_options=actor)
    checked = found(path)
    texts = [each.what for each in (*checked.problems, *checked.warnings)]
    is_list = isinstance(actor.get("runtime_env"), dict)
    expected = (
        "runtime_env.env_vars of Scorer is a list" if is_list else "does not exist: it has no"
    )
    assert any(expected in each for each in texts)


def test_settings_that_nothing_reads_are_a_warning(written):
    """A section of a class without the mixin, or of another name, may be the class's own."""
    own = GOOD.replace(
        "async def __call__", "def reconfigure(self, config): ...\n    async def __call__"
    )
    source = GOOD + (
        "\n@serve.deployment\nclass Router:\n    def __init__(self, scorer): ...\n"
        "app = Router.bind(Scorer.bind())\n"
    )
    section = warmup(artifact="./artifacts")
    without_mixin = found(written(source, name="Router", user_config=section))
    misspelt = found(written(own, user_config={"warm_up": section["warmup"]}))
    assert without_mixin.problems == misspelt.problems == ()
    assert [each.where for each in without_mixin.warnings] == ["Router: user_config.warmup"]
    (warning,) = misspelt.warnings
    assert warning.where == "Scorer: user_config.warm_up"
    assert warning.fix == "did you mean 'warmup'?"


def test_a_key_that_no_reconfigure_reads_is_a_problem(written):
    """Serve refuses it at the start; with the class's own `reconfigure` it may have a meaning."""
    own = GOOD.replace(
        "async def __call__", "def reconfigure(self, config): ...\n    async def __call__"
    )
    for key, fix in (("warmpu", "did you mean 'warmup'?"), ("limit", "remove the key, or define")):
        section = {key: {"artifact": "./artifacts"}}
        where, what, found_fix = one_problem(written(user_config=section))
        assert (where, fix in found_fix) == (f"Scorer: user_config.{key}", True)
        assert "has no reconfigure method" in what
        assert found(written(own, user_config=section)).problems == ()


def test_an_application_that_cannot_warm_up_is_a_problem(written):
    """Without inputs, a start fails with its model."""
    source = "@serve.deployment\nclass Scorer(WarmupMixin):\n    x = 1\n\napp = Scorer.bind()\n"
    assert one_problem(written(source))[1] == "it declares no inputs"


def test_an_untouched_application_is_told_to_make_a_plan(written):
    """It needs no mixin, because it is wrapped."""
    source = "@serve.deployment\nclass Scorer:\n    x = 1\n\napp = Scorer.bind()\n"
    findings = found(written(source))
    assert findings.problems == ()
    (note,) = findings.notes
    assert (note.where, "from a plan of its traffic" in note.what) == ("Scorer", True)
    assert "serve-warm build --plan" in note.fix


# Inputs ---------------------------------------------------------------------------------------
def is_clean(checked: CheckFindings) -> bool:
    """Return whether there is neither a problem nor a warning."""
    return not checked.problems and not checked.warnings


def with_inputs(inputs: str, *, more: str = "") -> str:
    return f"""
@serve.deployment
class Scorer(WarmupMixin):
    buckets = Buckets(batch=[1, 8], length=[16])
    {more or "pass"}

    def warmup_inputs(self):
        return {inputs}

    async def score(self, ids=None):
        return torch.compile(ids)

app = Scorer.bind()
"""


EXACT = """async def exact(self, ids): ...
    async def __call__(self, request: Request): ...
    def __init__(self): self.assigned = lambda a, b: None
    async def assigned(self, a): ...
    @with_session
    async def supplied(self, session, a): ...
"""


@pytest.mark.parametrize(
    ("inputs", "what", "fix"),
    [
        ("[Input(target='exact', args=(1, 2))]", "too many positional arguments", "(ids)"),
        ("[Input(target='exact')]", "missing a required argument: 'ids'", "(ids)"),
        (
            "[Input(target=self.exact, kwargs={'idz': 1})]",
            "cannot be called with these arguments: missing a required argument: 'ids'",
            "did you mean 'ids'?",
        ),
        (
            "shape_grid('exact', self.buckets, fields={'idz': Field(axes=('batch',))})",
            "missing a required argument: 'ids'",
            "did you mean 'ids'?",
        ),
        ("[Input(target=t) for t in ('score', 'exac')]", "no method 'exac'", "'exact'"),
        ("[Input(target=t) for _, t in ((1, 'exac'), (2, 'exac'))]", "no method 'exac'", "'exact'"),
    ],
    ids=["many", "few", "name", "field", "loop", "pairs"],
)
def test_arguments_that_the_target_does_not_take_are_a_problem(written, inputs, what, fix):
    problem = found(written(with_inputs(inputs, more=EXACT))).problems[0]
    assert what in problem.what
    assert fix in problem.fix


@pytest.mark.parametrize(
    "inputs",
    [
        "[Input(target='exact', args=(*[1],))]",
        "[Input(target='exact', kwargs={**{'ids': 1}}, fixed=True)]",
        "[Input(target='exact', kwargs=dict(ids=1), fixed=True)]",
        "[Input(target='exact', args=tuple(range(1)))]",
        "[Input(target='exact', args=(n,)) for n in (1, 2)]",
        "[Input(target='exact', **{'args': (1,)})]",
        "[Input(target='exact', args=(self.x[..., 0],), fixed=True)]",
        "[Input(target='POST /?q=hmm...', fixed=True)]",
        "[Input(target='assigned', args=(1, 2), fixed=True)]",
        "[Input(target='supplied', args=(1,), fixed=True)]",
        "[Input(target=t) if t == 'x' else Input(target='exact', args=(1,)) for t in ('x', 'y')]",
        "[Input(target=t) for t in ('exac', 'y') if hasattr(self, t)]",
        "shape_grid('exact', self.buckets, fields={'ids': Field(axes=('batch',))})",
    ],
)
def test_arguments_that_may_be_right_are_no_problem(written, inputs):
    assert found(written(with_inputs(inputs, more=EXACT))).problems == ()


def test_handlers_are_looked_at_if_targets_are_not_known(written):
    """A loop over names that only the running code knows hides which methods are called."""
    more = "def rank(self, x): return self.helper(x)\n    def helper(self, x): ..."
    inputs = "[Input(target=name, args=(1,)) for name in self.names()]"
    warnings = found(written(with_inputs(inputs, more=more))).warnings
    assert [each.what.partition(":")[0] for each in warnings] == ["'rank' is a sync method"]
    assert [each.where for each in warnings] == ["Scorer"]


@pytest.mark.parametrize(
    ("inputs", "what", "fix"),
    [
        ("[Input(target='scor')]", "no method 'scor'", "did you mean 'score'?"),
        ("[Input(target=self.scor)]", "no method 'scor'", "did you mean 'score'?"),
        ("shape_grid(self.scores, self.buckets)", "no method 'scores'", "did you mean 'score'?"),
        ("[Input(target='post /')]", "'post /'", "method in capitals"),
        ("[Input(target='POST /a b')]", "'POST /a b'", "a path without spaces"),
        ("[Input(target='score', jsn={})]", "Input has no argument 'jsn'", "did you mean 'json'?"),
        ("[Input(target='POST /')]", "does not answer HTTP", "define __call__"),
        ("[Input(target='score', concurrency=9)]", "9 calls at once", "max_ongoing_requests: 9"),
        (
            "shape_grid(self.score, self.buckets, concurrency='batch')",
            "max_ongoing_requests of the deployment is 5",
            "max_ongoing_requests: 8 for Scorer, or declare a concurrency of at most 5",
        ),
    ],
)
def test_an_input_that_cannot_be_replayed_is_a_problem(written, inputs, what, fix):
    """Targets and sizes that the source says by itself are held against class and options."""
    where, found_what, found_fix = one_problem(written(with_inputs(inputs)))
    assert where.startswith("Scorer.warmup_inputs, line ")
    assert what in found_what
    assert fix in found_fix


def test_a_note_names_what_shape_grid_fills_with_ones(written: Any):
    """A mask has a second input, so it is not named."""
    source = with_inputs("shape_grid(self.score, self.buckets)")
    masked = source.replace("score(self, ids=None)", "score(self, ids, attention_mask)")
    [note] = found(written(masked)).notes
    assert "shape_grid fills ids with ones" in note.what
    assert 'fields={"ids": Field' in note.fix


@pytest.mark.parametrize(
    ("inputs", "is_noted"),
    [
        ("[Input(target=self.score, args=([1, 2],))]", True),
        ("[Input(target=self.score, args=([1, 2],), fixed=True)]", False),
        (
            "[Input(target=self.score, args=([1],)), Input(target=self.score, args=([1, 2],))]",
            False,
        ),
        ("[Input(target=self.score, args=([1] * size,)) for size in (1, 2)]", False),
        ("[Input(target=self.score)]", False),
    ],
)
def test_a_note_names_a_target_with_a_single_input(written: Any, inputs: str, is_noted: bool):
    """No size of its arguments varies, so that the first request of another size may compile."""
    notes = found(written(with_inputs(inputs))).notes
    assert [*map(str, notes)] == [*map(str, notes[:1])]
    assert bool(notes) == is_noted
    assert all("one input for 'score'" in note.what for note in notes)


def test_the_yaml_says_how_many_requests_there_are_at_once(written):
    """The option in the YAML counts, whether above or below the value in the code."""
    inputs = with_inputs("shape_grid(self.score, self.buckets, concurrency='batch')")
    assert is_clean(found(written(inputs, max_ongoing_requests=8)))
    assert "is 2:" in one_problem(written(GOOD, max_ongoing_requests=2))[1]


@pytest.mark.parametrize(
    ("inputs", "more"),
    [
        ("[Input(target=name, args=(1,)) for name in self.names()]", ""),
        ("[Input(target=self.scorer, args=(1,))]", "def __init__(self): self.scorer = self.score"),
        ("[Input(target='scorer')]", "def __getattr__(self, name): return self.score"),
        ("[Input(target='score', concurrency=self.most())]", ""),
        ("shape_grid(self.score, self.sizes, concurrency='batch')", ""),
        ("self.given()", ""),
        # In place of a returned list: a generator, and a method that a subclass defines.
        ("yield Input(target='score')", ""),
        ("raise NotImplementedError", ""),
    ],
)
def test_what_the_source_does_not_say_is_no_problem(written, inputs, more):
    source = with_inputs(inputs, more=more)
    for statement in ("yield", "raise"):
        source = source.replace(f"return {statement}", statement)
    assert found(written(source)).problems == ()


@pytest.mark.parametrize(
    ("target", "fix"),
    [
        ("POST /score", None),
        ("POST /score?verbose=1", None),
        ("GET /items/7", None),
        ("POST /scores", "did you mean 'POST /score'?"),
        ("GET /score", "did you mean 'POST /score'?"),
    ],
)
def test_a_route_has_to_be_there(written, target, fix):
    source = f"""
    @serve.deployment
    @serve.ingress(api)
    class Scorer(WarmupMixin):
        def warmup_inputs(self):
            return [Input(target={target!r}, json={{}})]

        @api.post("/score")
        async def score(self): torch.compile(self)

        @api.get("/items/{{item}}")
        async def item(self, item: int): ...

    app = Scorer.bind()
    """
    fixes = [each.fix for each in found(written(source)).problems]
    assert fixes == ([] if fix is None else [fix])


@pytest.mark.parametrize(
    ("body", "returns"),
    [("self.inputs = [Input(target='score')]", "None"), ("return", "None"), ("return []", "[]")],
)
def test_inputs_that_are_never_returned_are_a_problem(written, body, returns):
    """A start would fail after the model is loaded."""
    path = written(with_inputs("[]").replace("return []", body))
    where, what, fix = one_problem(path)
    assert where == "Scorer.warmup_inputs"
    assert what == f"it returns {returns}, and without inputs the start fails"
    assert "return a list of Input" in fix


def test_a_batch_that_serve_never_forms_is_a_warning(written):
    """Serve gives a replica 5 requests at once by default, and Ray's examples batch 8."""
    more = "@serve.batch(max_batch_size=8)\n    async def batched(self, ids): ..."
    source = with_inputs("[Input(target='score')]", more=more)
    checked = found(written(source))
    (warning,) = checked.warnings
    assert checked.problems == ()
    assert "max_batch_size=8, but max_ongoing_requests of the deployment is 5" in warning.what
    assert warning.fix == "set max_ongoing_requests: 8 for Scorer, or max_batch_size=5"
    assert is_clean(found(written(source, max_ongoing_requests=8)))


def test_a_sync_handler_is_a_warning(written):
    """Serve calls it in a new thread for each request."""
    method = with_inputs("[Input(target='score')]").replace("async def score", "def score")
    plain = with_inputs("[Input(target='POST /?max=2')]", more="def __call__(self, request): ...")
    route = "@api.post('/')\n    def answer(self): ..."
    routes = with_inputs("[Input(target='POST /')]", more=route)
    app = routes.replace("class Scorer", "@serve.ingress(api)\nclass Scorer")
    for source, name in ((method, "score"), (plain, "__call__")):
        (warning,) = found(written(source)).warnings
        assert f"'{name}' is a sync method" in warning.what
        assert "on_model_thread" in warning.fix
    assert is_clean(found(written(app)))


@pytest.mark.parametrize(
    ("target", "settings", "variables", "is_named"),
    [
        ("score", {"input_deadline_s": 1800}, {}, True),
        ("POST /", {"input_deadline_s": 1800}, {}, True),
        ("score", {}, {}, False),
        ("score", {"input_deadline_s": 1800}, {MOST_FAILED: "0"}, False),
    ],
    ids=["a method", "a request", "by default", "switched off"],
)
def test_a_call_that_outlasts_serves_watchdog_is_a_warning(  # noqa: PLR0917 - fixtures too
    written, monkeypatch, target, settings, variables, is_named
):
    """From Ray 2.56 on, Serve looks at the event loop in a start."""
    monkeypatch.setattr(constants, "USER_HEALTH_CHECK_PROBE_MAX_FAIL", 3, raising=False)
    monkeypatch.setattr(constants, "USER_HEALTH_CHECK_PROBE_TIMEOUT_S", 300.0, raising=False)
    options = {
        "user_config": warmup(**settings),
        "ray_actor_options": {"runtime_env": {"env_vars": variables}},
    }

    more = "async def __call__(self, request): ..."
    source = with_inputs(f"[Input(target={target!r})]", more=more)

    warnings = found(written(source, max_ongoing_requests=8, **options)).warnings

    assert len(warnings) == is_named
    if is_named:
        assert "blocks the loop for more than 900 s" in warnings[0].what
        assert f'{MOST_FAILED}: "0"' in warnings[0].fix


def test_a_missing_folder_is_a_warning_with_the_build(written, tmp_path):
    """`build` makes the folder. A folder with a similar name beside it is only a suggestion."""
    (tmp_path / "artifacts" / "statements").mkdir(parents=True)
    suggestion = ", or did you mean 'artifacts'?"
    for name, question in (("artefacts", suggestion), ("new", ""), ("two words", "")):
        path = written(user_config=warmup(artifact=f"file://{tmp_path}/{name}"))
        checked = found(path)
        (warning,) = checked.warnings
        assert checked.problems == ()
        assert warning.what.startswith(f"{tmp_path}/{name} does not exist: it has no artifact")
        store = shlex.quote(f"file://{tmp_path}/{name}")
        assert warning.fix == f"serve-warm build {path} --store {store}{question}"


# Stores ---------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_store_that_does_not_answer_is_a_problem(written, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        for name, value in SILENT.items():
            monkeypatch.setenv(name, value)
        path = written(user_config=warmup(artifact="s3://bucket/scorer"))
        monkeypatch.setattr(check_store, "STORE_LIMIT_S", 0.5)
        where, what, _ = one_problem(path)
    assert where == "Scorer: artifact s3://bucket/scorer"
    assert "did not answer" in what


def test_a_relative_path_is_a_warning_with_where_it_leads(written, tmp_path):
    """A relative path works for `serve run` on one machine, but not on most clusters."""
    checked = found(written(user_config=warmup(artifact="./artifacts")))
    relative, empty = checked.warnings
    assert checked.problems == ()
    assert f"for this command, it means file://{tmp_path}/artifacts" in relative.what
    assert "the replica's working directory" in relative.what
    assert "does not exist: it has no artifact for" in empty.what


def test_a_relative_path_beside_a_working_dir_leads_into_its_copy(written):
    """Ray copies `working_dir`, and the replica works in the copy."""
    path = written(
        application={"runtime_env": {"working_dir": "s3://bucket/code.zip"}},
        user_config=warmup(artifact="./artifacts"),
    )
    assert "Ray's copy of working_dir" in found(path).warnings[0].what


def test_publishing_elsewhere_than_replicas_look_is_a_problem(written, tmp_path):
    """`build --store` and the YAML have to name one store, in whichever form."""
    path = written(user_config=warmup(artifact=f"file://{tmp_path}/artifacts"))
    _, what, fix = one_problem(path, store="./artefacts")
    here, there = f"file://{tmp_path}/artefacts", f"file://{tmp_path}/artifacts"
    assert f"{here}, but the replicas read from {there}" in what
    assert fix.startswith(f"set artifact: file://{tmp_path}/artefacts")
    assert found(path, store="./artifacts").problems == ()
    assert found(path, store=f"{tmp_path}/artifacts/").problems == ()
    application = load_application(path)
    assert compare_stores(application, "Scorer", "artifacts", environ={}) == CheckFindings()


# The command ----------------------------------------------------------------------------------
def run_check(*arguments: str, command: str = "check") -> subprocess.CompletedProcess[str]:
    return run_to_end([sys.executable, "-m", "serve_warm.cli", command, *arguments], timeout=120)


@pytest.mark.long
def test_the_command_answers_with_its_exit_code_and_as_json(written, tmp_path):
    """0 for nothing found, 1 for problems; the JSON has all of it, and the seconds."""
    good = run_check(written(), "--json", str(tmp_path / "good.json"))
    bad = run_check(written(name="Scorrer"), "--json", "-")
    assert (good.returncode, bad.returncode) == (0, 1)
    assert json.loads((tmp_path / "good.json").read_text())["problems"] == []
    data = json.loads(bad.stdout)
    assert sorted(data) == ["notes", "problems", "seconds", "warnings"]
    assert [sorted(each) for each in data["problems"]] == [["fix", "what", "where"]]
    assert 0 < data["seconds"] < 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise RuntimeError('no weights')", "RuntimeError: no weights"),
        ("import no_such_package", "No module named 'no_such_package'"),
        (None, "does not exist"),
    ],
)
def test_what_cannot_be_checked_is_exit_code_2(written, tmp_path, source, said):
    """Nothing was checked, so the answer is not "nothing found"; a module's traceback says why."""
    ran = run_check(written(source) if source is not None else str(tmp_path / "serve.yaml"))
    assert ran.returncode == 2
    assert said in ran.stderr
    assert ran.stdout == ""


NOTES_CACHES = """
import os, pathlib
with pathlib.Path("seen").open("a") as seen:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        seen.write(os.environ[name] + os.linesep)
"""


@pytest.mark.long
def test_a_build_stops_at_a_problem(
    written: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Before Ray is started, with every problem and what to do about each."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "shared"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "shared"))
    (tmp_path / "taken").write_text("")
    source = NOTES_CACHES + textwrap.dedent(GOOD)
    misspelt = written(source, name="Scorrer", max_ongoing_request=4)
    named = run_check(misspelt, "--store", str(tmp_path / "artifacts"), command="build")
    elsewhere = written(source, user_config=warmup(artifact="s3://bucket/scorer"))
    taken = run_check(elsewhere, "--store", "taken", command="build")

    assert (named.returncode, taken.returncode) == (1, 1)
    assert "starting Ray" not in named.stderr + taken.stderr
    assert f"error: {misspelt} has 2 problems:" in named.stderr
    assert "did you mean 'Scorer'?" in named.stderr
    assert "did you mean 'max_ongoing_requests'?" in named.stderr
    assert "warning: Scorer: artifact s3://bucket/scorer: --store is " in taken.stderr
    assert "taken is a file, but a store must be a folder" in taken.stderr

    seen = [Path(line) for line in (tmp_path / "seen").read_text().split()]
    assert len(set(seen)) == 4
    assert not any(tmp_path / "shared" in (each, *each.parents) for each in seen)
    for each in seen:
        assert stat.S_IMODE(each.parents[1].stat().st_mode) == 0o700


def test_options_that_do_not_go_together_are_wrong_usage(written):
    """One of the options would be ignored."""
    options = ("--all", "--deployment", "Scorer")

    ran = run_check(written(), "--store", "artifacts", *options, command="build")
    assert ran.returncode == 2
    assert "Error: --" in ran.stderr


@pytest.mark.parametrize(
    "name",
    ["image_classifier", "image_generator", "speech_to_text", "text_embedder", "text_generator"],
)
def test_the_examples_have_no_problems(name, tmp_path, monkeypatch):
    yaml = Path(f"deployments/{name}/serve.yaml").resolve()
    monkeypatch.chdir(tmp_path)  # the checkout may have a store of an earlier run
    checked = check(str(yaml), environ={})
    assert checked.problems == ()
    relative, missing = checked.warnings
    assert "the path is relative" in relative.what
    assert "does not exist: it has no artifact for" in missing.what
