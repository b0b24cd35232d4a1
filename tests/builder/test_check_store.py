# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve-warm check`: what a start on this machine would find in its store."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from artifacts import PLACE, build, trusting
from artifacts import new_key as make_key
from serve_warm.app import users_store
from serve_warm.artifact.code_and_model import CodeAndModel
from serve_warm.artifact.manifest import Place
from serve_warm.artifact.pull import find_fitting
from serve_warm.artifact.push import push
from serve_warm.builder import check_store
from serve_warm.builder.app import load_application
from serve_warm.builder.check import check
from serve_warm.builder.problems import CheckFindings
from serve_warm.fingerprint import Fingerprint, read_app, read_machine
from serve_warm.precompile import digest_in_any_order
from serve_warm.stores import Store, open_store

KEY = make_key()
SOURCE = """
from ray import serve
from serve_warm import Input, WarmupMixin

@serve.deployment
class Scorer(WarmupMixin):
    def warmup_inputs(self):
        return [Input(target="score", args=(1,), fixed=True)]

    async def score(self, x):
        return x

app = Scorer.bind()
"""
_numbers = itertools.count()


@pytest.fixture(name="trusted", autouse=True)
def trusted_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine trusts one key."""
    monkeypatch.setattr(check_store, "load_trust", lambda: trusting(KEY))


@pytest.fixture(name="app")
def app_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return _App(tmp_path)


class _App:
    """An application with a Serve YAML, and its store."""

    def __init__(self, folder: Path) -> None:
        self.module = f"stored_application_{next(_numbers)}"
        self.store: Store = open_store(str(folder / "artifacts"))
        self._folder = folder
        (folder / f"{self.module}.py").write_text(SOURCE)

    def check(self, **options: Any) -> CheckFindings:
        warmup = {"artifact": self.store.uri, **options.pop("warmup", {})}
        scorer = {"name": "Scorer", "user_config": {"warmup": warmup}, **options}
        app = {"import_path": f"{self.module}:app", "deployments": [scorer]}
        path = self._folder / "serve.yaml"
        path.write_text(yaml.safe_dump({"applications": [app]}))
        return check(str(path), environ={})

    def publish(self, *, key: Any = KEY, **options: Any) -> str:
        options = {"application": self.module, "deployment": "Scorer", **options}
        return push(self.store, *build(**options), key and [key], on_taken="supersede")


def here(**factors: str) -> Fingerprint:
    """Return the fingerprint of a replica with one CPU on this machine."""
    app = {**read_app({}), "threads": "1", "grad_mode": "inference"}
    machine = read_machine({})
    return Fingerprint(
        machine={name: factors.get(name, value) for name, value in machine.items()},
        app={name: factors.get(name, value) for name, value in app.items()},
    )


def test_what_a_start_takes_is_a_note(app):
    """The factors that code sets while it runs, such as the grad mode, are not compared."""
    older = app.publish(built_for=here(), created="2026-11-19T10:00:00.000000Z")
    taken = app.publish(built_for=here(grad_mode="on"))
    checked = app.check()
    (note,) = checked.notes
    assert (checked.problems, checked.warnings) == ((), ())
    assert f"takes {taken}, created 2026-11-20T10:00:00.000000Z, or one of 1 more" in note.what
    assert older not in note.what


def test_other_code_is_a_warning_with_the_build(app):
    """An artifact of the present code is none."""
    made_of = CodeAndModel(code="0" * 32)
    app.publish(built_for=here(), made_of=made_of)
    (warning,) = app.check().warnings
    assert "the class has changed since the artifact that a start takes was built" in warning.what
    assert warning.fix.startswith("serve-warm build ")

    cls = load_application(f"{app.module}:app").warming["Scorer"]
    app.publish(built_for=here(), made_of=CodeAndModel(code=digest_in_any_order(cls)))
    assert app.check().warnings == ()


def test_other_threads_are_those_of_num_cpus(app):
    """Ray gives a replica as many threads as CPUs."""
    app.publish(built_for=here(threads="4"))
    (warning,) = app.check(ray_actor_options={"num_cpus": 2}).warnings
    assert warning.what.endswith("is the nearest: threads: artifact 4, here 2")
    assert "build with the num_cpus that you deploy with" in warning.fix
    assert app.check(ray_actor_options={"num_cpus": 4}).warnings == ()


def test_another_torch_is_named_as_a_factor(app):
    app.publish(built_for=here(torch="2.9.0+cpu 0123"))
    (warning,) = app.check().warnings
    assert "no artifact fits this machine" in warning.what
    assert f"torch: artifact 2.9.0+cpu 0123, here {torch.__version__}" in warning.what
    assert "on the same kind of machine" in warning.fix


def test_other_software_of_replicas_is_named(app):
    app.publish(built_for=here(torch="2.9.0+cpu 0123"))
    options = {"ray_actor_options": {"runtime_env": {"image_uri": "registry/image"}}}
    (warning,) = app.check(**options).warnings
    assert "Replicas have their own software by image_uri" in warning.what


@pytest.mark.parametrize(
    ("options", "what", "kind"),
    [
        ({"key": None}, "the statement has no signature", "warnings"),
        ({"key": make_key()}, "which is not trusted here", "warnings"),
        ({"created": "1920-01-01T00:00:00.000000Z"}, "is refused (expired)", "problems"),
    ],
    ids=["unsigned", "unknown key", "too old"],
)
def test_a_refused_artifact_is_named_with_its_reason(app, options, what, kind):
    """Other machines may trust other keys; an artifact that is too old is refused on each."""
    statement = app.publish(built_for=here(), **options)
    checked = app.check()
    (found,) = getattr(checked, kind)
    assert (len(checked.problems) + len(checked.warnings)) == 1
    assert statement in found.what
    assert what in found.what


def test_a_refusal_comes_first_as_in_a_start(app):
    """A trusted artifact for another torch does not hide that the fitting one is not trusted."""
    app.publish(built_for=here(), key=make_key())
    app.publish(built_for=here(torch="2.9.0+cpu 0123"))
    (warning,) = app.check().warnings
    assert "is refused (untrusted)" in warning.what


def test_the_age_of_what_does_not_fit_is_no_problem(app):
    """A start looks only at the age of what fits."""
    app.publish(built_for=here(torch="2.9.0+cpu 0"), created="1920-01-01T00:00:00.000000Z")
    checked = app.check()
    assert checked.problems == ()
    assert "torch: artifact 2.9.0+cpu 0" in checked.warnings[0].what


def test_a_variable_that_decides_about_threads_is_named(app):
    app.publish(built_for=here(threads="4"))
    env = {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": "8"}}}
    (warning,) = app.check(ray_actor_options=env).warnings
    assert "set OMP_NUM_THREADS as in the build" in warning.fix


def test_artifacts_of_another_application_are_named(app):
    """A replica looks only for its own application's."""
    app.publish(application="other", built_for=here())
    (warning,) = app.check().warnings
    assert "has no artifact for" in warning.what
    assert "(it has other/Scorer)" in warning.what
    assert "or set application: other in user_config.warmup" in warning.fix
    assert app.check(warmup={"application": "other"}).warnings == ()


def test_the_store_of_an_untouched_application_is_read_too(app, tmp_path, monkeypatch):
    """`serve-warm run` uses a folder of this user; while it is empty, a plan comes first."""
    source = SOURCE.replace("class Scorer(WarmupMixin)", "class Scorer")
    (tmp_path / f"{app.module}.py").write_text(source.replace("fixed=True", ""))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    app.store = open_store(users_store())
    assert [each.where for each in check(f"{app.module}:app", environ={}).warnings] == []
    taken = app.publish(built_for=here())
    notes = [each.what for each in check(f"{app.module}:app", environ={}).notes]
    assert any(f"takes {taken}" in each for each in notes)


def test_a_deployment_without_inputs_is_built_with_a_plan():
    """Or the build that `check` suggests ends at once, because there is nothing to build."""
    declares = {"learns": None, "lists": list}
    application: Any = SimpleNamespace(
        target="app:app",
        warming={name: SimpleNamespace(warmup_inputs=of) for name, of in declares.items()},
    )
    found = [check_store._what_to_build(application, name) for name in declares]
    assert found == [("app:app", "--plan", "plan.yaml"), ("app:app",)]


@pytest.mark.parametrize(
    ("declares", "words"),
    [
        ({"A": list, "B": list}, "app:app --all --store"),
        ({"A": list, "B": None}, "app:app --deployment A --store"),
        ({"A": None, "B": list}, "app:app --plan plan.yaml --deployment A --store"),
        ({"A": None}, "app:app --plan plan.yaml --store"),
    ],
)
def test_of_several_deployments_one_with_a_plan_is_built_alone(
    declares: dict[str, Any], words: str, tmp_path: Path
):
    """A plan is for one deployment, so `--all` would find nothing to build for it."""
    warming = {name: SimpleNamespace(warmup_inputs=of) for name, of in declares.items()}
    application: Any = SimpleNamespace(target="app:app", warming=warming)
    place = Place(application="app", deployment="A")
    problem = check_store._explain_empty(application, f"file://{tmp_path}/none", place)
    assert problem.fix.startswith(f"serve-warm build {words} file://")


def test_artifacts_that_vanish_are_those_of_an_empty_store(app, monkeypatch):
    """Somebody may prune the store between two answers."""
    app.publish(built_for=here())
    found = find_fitting(
        open_store(f"{app.store.uri}-empty"),
        place=PLACE,
        trust=trusting(KEY),
        fingerprint=None,
    )
    monkeypatch.setattr(check_store.pull, "find_fitting", lambda *_, **__: found)
    (warning,) = app.check().warnings
    assert "has no artifact for" in warning.what


def test_a_slow_store_is_a_warning(app, monkeypatch):
    app.publish(built_for=here())
    answers = threading.Event()
    monkeypatch.setattr(check_store.pull, "find_fitting", lambda *_, **__: answers.wait(60))
    monkeypatch.setattr(check_store, "READ_LIMIT_S", 0.1)
    (warning,) = app.check().warnings
    answers.set()
    assert "the store did not give its artifacts within 0 s" in warning.what


def test_all_factors_of_code_are_known() -> None:
    """A new factor is either predicted by `check`, or left out by name."""
    predicted = {"threads", "cpu"}
    assert {*read_app({}), "rank"} == check_store.SET_BY_CODE | predicted
