# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The name of the application that artifacts are kept for: a build and a start derive it alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from ray import serve

from serve_warm import WarmupMixin, warmup
from serve_warm.builder.app import load_application
from serve_warm.config import WarmupConfig
from serve_warm.replica.serve.application import (
    SCRIPT,
    digest_code,
    find_users_class,
    name_application,
)

HANG_S = 300.0

LIBRARY = """
import functools

from serve_warm import WarmupMixin
from serve_warm.replica.serve.deployment import replica_of


class Model(WarmupMixin):
    def warmup_inputs(self):
        return []

    def place(self):
        return replica_of(self).place.application


def counted(cls):
    '''A decorator of the user, which leaves the name as it is.'''

    class Counted(cls):
        calls = 0

    Counted.__name__ = cls.__name__
    return Counted
"""

APP = """
import sys

import ray
from fastapi import FastAPI
from ray import serve

import lib.models
import pkg.deep.app
import serve_warm
from lib.models import counted

OFF = serve_warm.WarmupConfig(enabled=False)
NAMED = serve_warm.WarmupConfig(enabled=False, application="shop")
deploy = serve.deployment(ray_actor_options={"num_cpus": 0})


@deploy
class Mixin(lib.models.Model):
    warmup_config = OFF


@deploy
@serve_warm.warmup(enabled=False)
class Decorated(lib.models.Model): ...


@deploy
@serve.ingress(FastAPI())
class Routed(lib.models.Model):
    warmup_config = OFF


@deploy
@counted
class Wrapped(lib.models.Model):
    warmup_config = OFF


@deploy
class Named(lib.models.Model):
    warmup_config = NAMED


def build(args):
    return Mixin.bind()


def build_local(args):
    @deploy
    class Local(lib.models.Model):
        warmup_config = OFF

    return Local.bind()


mixin, decorated, routed, wrapped, named = (
    each.bind() for each in (Mixin, Decorated, Routed, Wrapped, Named)
)
library = deploy(lib.models.Model).options(user_config={"warmup": {"enabled": False}}).bind()
nested = pkg.deep.app.app
another = Mixin.options(name="Another").bind()


def run(applications):
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    return {
        name: serve.run(bound, name=name, route_prefix=f"/{name}").place.remote().result()
        for name, bound in applications.items()
    }


if __name__ == "__main__":
    import json

    bound = {name: globals()[name] for name in sys.argv[1].split(",")}
    for name in ("build", "build_local"):
        bound[name] = globals()[name]({})
    found = run(bound)
    import app  # as `serve run app:app` imports it, in another module than this script

    found["imported"] = (
        serve.run(app.mixin, name="imported", route_prefix="/i").place.remote().result()
    )
    # As `serve deploy` does: a task imports the application.
    from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

    entry = {"name": "deployed", "import_path": "app:mixin", "route_prefix": "/deployed"}
    serve.context._get_global_client().deploy_apps(
        ServeDeploySchema(applications=[ServeApplicationSchema(**entry)]), _blocking=True
    )
    found["deployed"] = serve.get_app_handle("deployed").place.remote().result(timeout_s=120)
    print(json.dumps(found))
    serve.shutdown()
"""

NESTED = """
from ray import serve

from lib.models import Model


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Nested(Model):
    pass


app = Nested.options(user_config={"warmup": {"enabled": False}}).bind()
"""

NAMES = {
    # The application that `APP` calls so, and its import path in a build.
    "mixin": ("app", "app:mixin"),
    "decorated": ("app", "app:decorated"),
    "routed": ("app", "app:routed"),
    "wrapped": ("app", "app:wrapped"),
    "named": ("shop", "app:named"),
    "library": ("lib.models", "app:library"),
    "nested": ("pkg.deep.app", "app:nested"),
    "another": ("app", "app:another"),
    "build": ("app", "app:build"),
    "build_local": ("app", "app:build_local"),
    "imported": ("app", "app:mixin"),
    "deployed": ("app", "app:mixin"),
}


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path) -> Path:
    files = {
        "app.py": APP,
        "lib/models.py": LIBRARY,
        "pkg/__init__.py": "",
        "pkg/deep/__init__.py": "",
        "pkg/deep/app.py": NESTED,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


BUILD = """
import json, os, sys
from serve_warm.builder.app import load_application

names = {}
for target in sys.argv[1:]:
    application = load_application(target)
    (deployment,) = application.warming
    names[target] = application.place(deployment, os.environ).application
print(json.dumps(names))
"""


def ask(folder: Path, *command: str) -> dict[str, str]:
    """Return the JSON of a process in the folder that has only its own modules on its path."""
    environ = {**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{folder}"}
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert ended.returncode == 0, ended.stderr
    # Ray prints lines of its own there.
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("{"))
    found: dict[str, str] = json.loads(line)
    return found


OF_OTHER_FORMS = ("build", "build_local", "imported", "deployed")
"""Names that the script adds by itself."""


@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "scripts",
    [
        pytest.param(["decorated", "named", "nested"], marks=pytest.mark.slow, id="some"),
        pytest.param([*NAMES.keys() - {*OF_OTHER_FORMS}], marks=pytest.mark.stress, id="all"),
    ],
)
def test_a_build_and_a_start_give_an_application_the_same_name(folder: Path, scripts: list[str]):
    """The script runs as `__main__`, and a build imports the same file."""
    started = ask(folder, "app.py", ",".join(scripts))
    built = ask(folder, "-c", BUILD, *{path for _, path in NAMES.values()})
    chosen = {name: NAMES[name] for name in (*scripts, *OF_OTHER_FORMS)}
    assert started == {name: application for name, (application, _) in chosen.items()}
    assert {name: built[path] for name, (_, path) in chosen.items()} == started


# Without Ray ------------------------------------------------------------------------------------
class Model(WarmupMixin):
    """A class of this module, which stands for the user's."""


def local(cls: type) -> Any:
    class Local(cls): ...  # type: ignore[misc, valid-type]

    Local.__name__ = cls.__name__
    return Local


class Sub(Model): ...


@pytest.mark.parametrize(
    "cls",
    [
        Model,
        warmup(type("Model", (), {"__module__": __name__})),
        serve.ingress(FastAPI())(Model),
        local(Model),
        local(local(Model)),
        serve.ingress(FastAPI())(local(Model)),
        Sub,
    ],
    ids=["mixin", "decorator", "ingress", "wrapped", "twice", "ingress of wrapped", "subclass"],
)
def test_what_wraps_a_class_does_not_change_its_application(cls: type):
    assert name_application(cls, None) == __name__
    assert name_application(cls, "shop") == "shop"
    assert find_users_class(cls).__module__ == __name__


SCRIPTS = {
    # How a script is run below a folder with `team/app.py` and the package `shop`. Then the folder
    # and the module of a build that imports the same file, and the same neighbours of this file.
    ("app.py",): (".", "app"),
    ("-m", "app"): (".", "app"),
    ("team/app.py",): ("team", "app"),
    ("./other/../team/app.py",): ("team", "app"),
    ("-m", "team.app"): (".", "team.app"),
    ("shop/small/app.py",): (".", "shop.small.app"),
    ("not-a-name/app.py",): ("not-a-name", "app"),
}

SHOWS = """
import json

from serve_warm import WarmupMixin
from serve_warm.replica.serve.application import name_application


class Model(WarmupMixin): ...


print(json.dumps({"name": name_application(Model, None)}))
"""


@pytest.fixture(name="scripts")
def scripts_fixture(tmp_path: Path) -> Path:
    """A folder with the same script in several folders, some of them packages."""
    for name in (".", "team", "other", "shop", "shop/small", "not-a-name"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "app.py").write_text(SHOWS)
    for name in ("shop", "shop/small", "not-a-name"):
        (tmp_path / name / "__init__.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, marks=() if number % 2 == 0 else pytest.mark.stress)
        for number, each in enumerate(SCRIPTS)
    ],
    ids=" ".join,
)
def test_a_script_has_the_name_of_its_module(scripts: Path, command: tuple[str, ...]):
    folder, module = SCRIPTS[command]
    imported = ask(scripts / folder, "-c", f"import {module}")
    assert ask(scripts, *command) == imported == {"name": module}


@pytest.mark.parametrize(("folder", "name"), [("team", "app"), ("shop/small", "shop.small.app")])
def test_the_working_directory_does_not_name_a_script(scripts: Path, folder: str, name: str):
    """A container often starts a script from the root folder."""
    assert ask(Path("/"), str(scripts / folder / "app.py")) == {"name": name}


def test_an_update_of_a_mounted_config_map_does_not_rename_a_script(tmp_path: Path):
    """Kubernetes mounts a ConfigMap as links into a folder with the time of the update."""
    (tmp_path / "app.py").symlink_to("..data/app.py")
    named = []
    for time in ("..2026_11_20_10_00_00.1", "..2026_11_21_10_00_00.2"):
        (tmp_path / time).mkdir()
        (tmp_path / time / "app.py").write_text(SHOWS)
        (tmp_path / "..data").unlink(missing_ok=True)
        (tmp_path / "..data").symlink_to(time)
        named.append(ask(tmp_path, "app.py"))
    assert named == 2 * [{"name": "app"}]


def test_a_notebook_has_no_name_that_a_build_could_import(tmp_path: Path):
    assert ask(tmp_path, "-c", SHOWS) == {"name": "__main__"}


def test_a_setting_names_the_application_of_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The YAML overrides the environment, and both override the class, as for each setting."""
    monkeypatch.syspath_prepend(tmp_path)
    text = "from serve_warm import WarmupMixin\nfrom ray import serve\n"
    text += "@serve.deployment\nclass Model(WarmupMixin): ...\napp = Model.bind()\n"
    (tmp_path / "of_a_setting.py").write_text(text)
    application = load_application("of_a_setting:app")
    named = application.app(application="given")
    assert application.place("Model", {}).application == "of_a_setting"
    assert application.place("Model", {"SERVE_WARM_APPLICATION": "x"}).application == "x"
    assert (named.place.application, named.deployment) == ("given", "Model")
    (deployment,) = named.built("n", {}).deployments
    assert deployment.user_config == {"warmup": {"application": "given"}}


@pytest.mark.parametrize("name", ["", "a\nb"])
def test_a_name_must_be_printable(name: str):
    with pytest.raises(ValueError, match="application"):
        WarmupConfig(application=name)


def test_only_classes_of_a_script_are_marked():
    assert not hasattr(Model, SCRIPT)


def test_the_order_of_methods_is_not_part_of_the_code():
    """Ray sorts the attributes of a class that it pickles, so a replica has another order."""

    class Made:
        def second(self) -> int:
            return 2

        def first(self) -> int:
            return 1

    other = type("Made", (), dict(reversed(vars(Made).items())))
    changed = type("Made", (), {**vars(Made), "first": Made.second})

    assert digest_code(other) == digest_code(Made) != ""
    assert digest_code(changed) != digest_code(Made)
