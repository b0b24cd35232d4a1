# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a build starts from and what it accepts; the build itself is tested on a cluster."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import grp
import os
import pwd
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import yaml
from click.testing import CliRunner
from ray.exceptions import RayActorError

from artifacts import new_key, trusting
from believing import public_pem
from reports import FULL
from serve_warm import cli
from serve_warm.app import users_store
from serve_warm.artifact.archive import pack_directory
from serve_warm.artifact.manifest import Manifest, Place
from serve_warm.artifact.unsigned import sign_unsigned
from serve_warm.builder.app import _imports_serve_warm, load_app, load_application
from serve_warm.builder.build import _settings, build
from serve_warm.builder.cluster import build_name, open_cluster
from serve_warm.builder.provenance import read_provenance
from serve_warm.builder.publishing import Destination, is_own_folder
from serve_warm.builder.round_trips import accept
from serve_warm.builder.signing import Signing
from serve_warm.cli import starts
from serve_warm.config import WarmupConfig
from serve_warm.errors import AlreadyPublished, BuildFailed, ConfigError
from serve_warm.fingerprint import Fingerprint, rank_factor
from serve_warm.replica.serve.deployment import WarmupMixin
from serve_warm.replica.start.prepare import makes_artifact
from serve_warm.stores import open_store
from serve_warm.stores.local import LocalStore
from serve_warm.trust.envelope import Envelope
from serve_warm.trust.policy import signed_by

KEY = new_key()
EXAMPLE = Path(__file__).parents[2] / "deployments" / "text_embedder" / "serve.yaml"
APP = "deployments.text_embedder.app:embedder"


# What is accepted -----------------------------------------------------------------------------
def round_trip(
    verdict: str = "full_hit", reason: str = "", *, compiler_processes: int = 0, proven: int = 6
) -> dict[str, Any]:
    """Return the report of a fully warm start with six inputs, with some fields changed."""
    report = dataclasses.replace(FULL, parity=None).to_json()
    report["verdict"] = verdict
    report["artifact"]["reason"] = reason
    report["warmup"]["compiler_processes"] = compiler_processes
    report["covered"] = {"expected": 6, "proven": proven}
    return report


def test_a_clean_round_trip_is_accepted():
    accept(round_trip())


def not_full(verdict: str, reason: str) -> str:
    return f"its verdict is {verdict}, not full_hit ({reason})"


@pytest.mark.parametrize(
    ("report", "problems"),
    [
        (round_trip("partial", "2 files of 3"), [not_full("partial", "2 files of 3")]),
        (round_trip("miss", "no artifact fits"), [not_full("miss", "no artifact fits")]),
        (round_trip("refused", "sha256 is 9f2c…"), [not_full("refused", "sha256 is 9f2c…")]),
        ({**round_trip("off"), "artifact": None}, [not_full("off", "no reason")]),
        (round_trip(compiler_processes=1), ["it ran the compiler 1 times"]),
        (round_trip(proven=5), ["it proved 5 of 6 inputs"]),
        (round_trip(proven=0), ["it proved 0 of 6 inputs"]),
        (
            round_trip("partial", compiler_processes=36, proven=2),
            [
                not_full("partial", "no reason"),
                *("it ran the compiler 36 times", "it proved 2 of 6 inputs"),
            ],
        ),
    ],
    ids=["partial", "miss", "refused", "off", "compiler", "one unproven", "none proven", "all"],
)
def test_a_round_trip_that_is_not_warm_fails_the_build(report, problems):
    """Each of the three properties is required, and the error names all that are missing."""
    with pytest.raises(BuildFailed) as failed:
        accept(report)
    prefix = "a fresh replica loaded the artifact, but "
    assert failed.value.message.removeprefix(prefix).split("; ") == problems
    assert failed.value.hint.startswith("nothing was published")


# What is built --------------------------------------------------------------------------------
@pytest.fixture
def written(tmp_path: Path) -> Callable[[Any], str]:
    """Write a Serve configuration and return its path."""

    def write(config: Any) -> str:
        path = tmp_path / "serve.yaml"
        path.write_text(yaml.safe_dump(config))
        return str(path)

    return write


@pytest.fixture
def example() -> dict[str, Any]:
    return yaml.safe_load(EXAMPLE.read_text())


def refusal(target: str, **options: str) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        load_app(target, **options)
    return refused.value


def test_a_yaml_and_an_application_in_code_load(written, example):
    """The unchanged example loads, so the refusals in the tests below come from their changes."""
    unchanged = load_app(written(example))
    example["applications"][0]["deployments"][0]["ray_actor_options"] = {"num_cpus": 3}
    assert (unchanged.deployment, unchanged.num_cpus) == ("TextEmbedder", 1.0)
    assert load_app(APP, deployment="TextEmbedder").deployment == "TextEmbedder"
    assert load_app(written(example)).num_cpus == 3.0


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "does not exist"),
        (b"applications: [\n", "is not YAML: line 2, column 1: "),
        (b"\xff\xfe\xff", "cannot be read: "),
    ],
    ids=["missing", "no YAML", "bytes"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, text, what):
    path = tmp_path / "serve.yml"
    if text is not None:
        path.write_bytes(text)
    assert refusal(str(path)).message.startswith(f"{path} {what}")


@pytest.mark.parametrize("config", [None, {}, [], "applications", {"applications": []}], ids=repr)
def test_a_yaml_without_applications_is_refused(written, config):
    """A YAML that is no Serve configuration is not built, whatever else it is."""
    path = written(config)
    error = refusal(path)
    assert error.message == f"{path} has no applications"
    assert "serve-warm init module:app --write writes one" in error.hint


def manifests(*configs: Any) -> bytes:
    """Return Kubernetes manifests with a RayService for each Serve config."""
    services = [
        {"kind": "RayService", "spec": {"serveConfigV2": yaml.safe_dump(config)}}
        for config in configs
    ]
    others = [{"kind": "ConfigMap", "data": {"applications": "[]"}}, None, {"kind": "RayService"}]
    return yaml.safe_dump_all([*others, *services]).encode()


def test_the_config_of_a_ray_service_loads(tmp_path, example):
    """It is the file that a platform engineer has, beside other manifests."""
    path = tmp_path / "rayservice.yaml"
    path.write_bytes(manifests(example))
    assert load_app(str(path)).deployment == "TextEmbedder"

    path.write_bytes(manifests(example, example))
    assert refusal(str(path)).message == f"{path} has 2 Serve configs, and serve-warm takes one"
    path.write_bytes(manifests())
    assert refusal(str(path)).message == f"{path} has no applications"
    path.write_bytes(yaml.safe_dump_all([example, {"kind": "ConfigMap"}]).encode())
    assert "has 2 YAML documents, but Serve reads only files with one" in refusal(str(path)).message
    path.write_bytes(b"kind: RayService\nspec: {serveConfigV2: 'applications: ['}\n")
    assert "is not YAML: line 1, column " in refusal(str(path)).message


def test_two_applications_are_refused(written, example):
    """An artifact is for one application. The error names both."""
    second = {**copy.deepcopy(example["applications"][0]), "name": "second", "route_prefix": "/2"}
    example["applications"].append(second)
    error = refusal(written(example))
    assert "has 2 applications: ['text_embedder', 'second']" in error.message
    assert "split the file, or pass module:app" in error.hint


def test_an_application_without_import_path_is_refused(written, example):
    """A YAML that Serve would not take either is a ConfigError that names the missing member."""
    del example["applications"][0]["import_path"]
    path = written(example)
    error = refusal(path)
    assert error.message.startswith(path)
    assert "import_path" in error.message
    assert error.hint


@pytest.mark.parametrize(
    "import_path", ["no_such_module.app:embedder", "deployments.text_embedder.app:no_such_name"]
)
@pytest.mark.parametrize("way", ["yaml", "argument"])
def test_an_application_that_cannot_be_imported_is_refused(written, example, way, import_path):
    example["applications"][0]["import_path"] = import_path
    error = refusal(written(example) if way == "yaml" else import_path)
    assert error.message.startswith(f"import_path '{import_path}' cannot be imported: ")
    assert "serve run" in error.hint


@pytest.mark.parametrize("attribute", ["configured", "classifier"])
def test_args_that_an_application_does_not_take_are_refused(written, example, attribute):
    """An unknown name, or args that the application does not take, is reported in one line."""
    import_path = f"deployments.image_classifier.app:{attribute}"
    example["applications"] = [{"import_path": import_path, "args": {"devise": "cuda"}}]
    error = refusal(written(example))
    said = f"import_path '{import_path}' does not accept these args: "
    assert error.message.startswith(said)
    assert "\n" not in error.message
    assert ("devise" in error.message) == (attribute == "configured")
    assert "import_path" in error.hint


PLAIN = """
from ray import serve

@serve.deployment
class Plain:
    def __call__(self): ...

app = Plain.bind()
"""
OF_RAY = (
    f"{PLAIN}\napp = None\nPlain.func_or_class.__module__ = 'ray.serve.llm'\napp = Plain.bind()\n"
)
RAISES = """
def app(args: dict):
    raise ValueError('no weights')
"""


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        (OF_RAY, ConfigError, r"own_application:app: 0 deployments use WarmupMixin: \[\]"),
        (RAISES, ValueError, r"^no weights$"),
    ],
)
def test_an_application_that_cannot_be_built_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, kind: Any, message: str
):
    """Ray Serve LLM is left alone. What the user's code raises is its own."""
    (tmp_path / "own_application.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    # load_app adds the working directory; what it adds and imports goes with the test.
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_application", raising=False)
    with pytest.raises(kind, match=message) as caught:
        load_app("own_application:app")
    hint = "add WarmupMixin to the bases of the deployment's class"
    assert getattr(caught.value, "hint", hint) == hint


def test_an_application_without_the_mixin_is_wrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """And this process has torch's own torch.compile again."""
    before = torch.compile
    (tmp_path / "own_application.py").write_text(PLAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_application", raising=False)
    found = load_application("own_application:app")
    assert found.warming["Plain"].warmup_inputs is None
    assert found.settings("Plain", {}).artifact is None
    assert found.store(["Plain"], {}) == users_store()  # where `serve-warm run` looks
    assert torch.compile is before


def test_the_store_is_the_one_that_the_replicas_read(written, example):
    [deployment] = example["applications"][0]["deployments"]
    warmup = deployment["user_config"]["warmup"]
    loaded = load_application(written(example))
    assert loaded.store(["TextEmbedder"], {}) == warmup["artifact"]
    elsewhere = {"SERVE_WARM_ARTIFACT": "s3://bucket/elsewhere"}
    del warmup["artifact"]
    loaded = load_application(written(example))
    assert loaded.store(["TextEmbedder"], elsewhere) == "s3://bucket/elsewhere"
    with pytest.raises(ConfigError, match="TextEmbedder names no artifact") as refused:
        loaded.store(["TextEmbedder"], {})
    assert "user_config.warmup.artifact" in refused.value.hint


@pytest.mark.parametrize("target", ["serve.json", "deployments.text_embedder.app", ""])
def test_a_target_that_is_neither_is_refused(target):
    error = refusal(target)
    assert error.message == f"{target!r} must be a Serve YAML file or have the form module:app"
    assert "serve.yaml" in error.hint
    assert APP in error.hint


@pytest.mark.parametrize("way", ["yaml", "argument"])
def test_an_unknown_deployment_is_refused(written, example, way):
    error = refusal(written(example) if way == "yaml" else APP, deployment="Embedder")
    assert error.message.endswith(": no deployment named 'Embedder' uses WarmupMixin")
    assert error.hint == "deployments with WarmupMixin: ['TextEmbedder']"


def test_options_for_an_unknown_deployment_are_refused(written, example):
    """`serve run` refuses them only when it deploys: a build names them before it starts Ray."""
    options = example["applications"][0]["deployments"]
    options[0]["name"] = "TextEmbeder"
    options.append({"name": "Reranker"})
    path = written(example)
    error = refusal(path)
    said = f"{path} has options for 'Reranker', 'TextEmbeder', but the application has no such "
    hint = "the application's deployments: ['TextEmbedder']"
    assert error.message == f"{said}deployment"
    assert error.hint == hint


@pytest.mark.parametrize(
    ("what", "raised"),
    [
        ("ray.init", Exception("The current node timed out during startup.\nmore lines")),
        ("ray.init", RuntimeError("Failed to start GCS")),
        ("ray.serve.start", RayActorError()),
        ("ray.serve.start", TimeoutError("the controller is not alive")),
    ],
)
def test_ray_that_does_not_start_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, what: str, raised: Exception
):
    """A build ends with what failed and where to look, not with Ray's traceback."""
    for name in ("ray.init", "ray.serve.start", "ray.shutdown"):
        monkeypatch.setattr(name, lambda *_, **__: None)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(runtime_env={}))

    def fail(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(what, fail)

    with pytest.raises(ConfigError) as caught, open_cluster():
        pass

    starts = "Ray Serve" if "serve" in what else "Ray"
    text = str(raised).strip().partition("\n")[0]
    said = f"{starts} could not start on this machine: {type(raised).__name__}: {text}"
    assert caught.value.message == said
    assert "session_latest/logs" in caught.value.hint


@pytest.mark.parametrize("cpu", [None, "native"])
def test_a_build_compiles_with_headers_of_its_own(cpu):
    """Its replicas take nothing from a folder that earlier processes of the user wrote to."""
    cold = WarmupConfig(**_settings(cpu))
    assert makes_artifact(build_name(), cold)
    assert not makes_artifact("default", cold)
    assert not makes_artifact(build_name(), cold.model_copy(update={"artifact": "./store"}))


def test_a_build_starts_one_replica_that_serve_restarts_as_ever():
    """The replica has the YAML's resources, changed settings, and Serve's own retries."""
    built = load_app(str(EXAMPLE)).built("unique", {"artifact": None})
    [deployment] = built.deployments
    assert (built.name, built.route_prefix) == ("unique", "/unique")
    assert deployment.num_replicas == 1
    assert deployment.ray_actor_options["num_cpus"] == 1
    assert deployment.user_config == {"warmup": {"artifact": None}}
    # One try would leave a replica that is killed while it starts for dead.
    assert deployment._deployment_config.max_constructor_retry_count > 1


def test_other_deployments_of_a_build_leave_this_nodes_state_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A probe of this node would count them, and `serve-warm why` would explain them."""
    source = (
        "from ray import serve\nfrom serve_warm import WarmupMixin\n\n"
        "@serve.deployment(user_config={'warmup': {'deadline_s': 60}})\n"
        "class Ranker(WarmupMixin): ...\n\n"
        "@serve.deployment\nclass Plain: ...\n\n"
        "@serve.deployment\nclass Embedder(WarmupMixin):\n"
        "    def __init__(self, *handles): ...\n\n"
        "app = Embedder.bind(Ranker.bind(), Plain.bind())\n"
    )
    (tmp_path / "two_of_them.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = load_application("two_of_them:app").app("Embedder")
    given = {each.name: each for each in loaded.built("x", {"state_dir": "/s/state"}).deployments}
    assert given["Embedder"].user_config["warmup"] == {"state_dir": "/s/state"}
    others = {"deadline_s": 60, "state_dir": "/s/state-of-others"}
    assert given["Ranker"].user_config["warmup"] == others
    assert given["Plain"].user_config is None


def to(store: Path | str, if_published: Any = "refuse") -> Destination:
    return Destination(store=open_store(str(store)), if_published=if_published)


class NeverStarts:
    """A cluster of this machine that must not be asked to start anything."""

    place = "here"

    def running(self, *_: Any, **__: Any) -> Any:
        pytest.fail("a replica was started")


def test_a_key_that_is_not_trusted_is_refused_before_anything_is_compiled(tmp_path: Path):
    """The round trip would refuse it minutes later; the error has the lines that trust it."""
    mine, other = new_key(), new_key()
    with pytest.raises(pytest.fail.Exception, match="a replica was started"):
        build_with(trusting(mine), mine, tmp_path)
    with pytest.raises(ConfigError, match="not trusted on this machine") as caught:
        build_with(trusting(other), mine, tmp_path)
    assert "[[keys]]" in caught.value.hint
    assert "the code of the deployment" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


# A build with replicas that compile nothing -----------------------------------------------------

HERE = Fingerprint(machine={"cpu_isa": "avx2"}, app={"threads": "1"})


class Ready:
    """Replicas that are ready: one, or the ranks of a gang."""

    def __init__(self, cache: Path, report: dict[str, Any], ranks: int, facts: Any) -> None:
        self._cache, self._report, self._ranks, self._facts = cache, report, ranks, facts

    def ask(self, method: str, *, timeout_s: float) -> list[dict[str, Any]]:
        assert method == "warmup_report"
        return [self._report] * self._ranks

    def pack(
        self, *, timeout_s: float, accept_torch_source: bool, progress: Any
    ) -> list[dict[str, Any]]:
        parts = {"cache": pack_directory(self._cache)}
        fingerprints = [
            dataclasses.replace(HERE, app={**HERE.app, **rank_factor((rank, self._ranks))})
            for rank in range(self._ranks)
        ]
        return [
            {"fingerprint": each.to_json(), "parts": parts, "report": self._report}
            | {"facts": dict(self._facts), "made_of": {"code": "1" * 16, "model": ""}}
            for each in fingerprints
        ]


class Starts:
    """A cluster of this machine whose replicas compile nothing; notes the store of each start."""

    place = "here"

    def __init__(self, cache: Path, *, ranks: int = 1, facts: Any = None) -> None:
        cache.mkdir(exist_ok=True)
        self._cache, self._ranks, self._facts = cache, ranks, facts or {}
        self._reports = [round_trip(), round_trip()]
        self.stores: list[Any] = []

    @contextlib.contextmanager
    def running(
        self, app: Any, settings: Any, *, progress: Any, look: Any = None
    ) -> Iterator[Ready]:
        self.stores.append(settings["artifact"])
        yield Ready(self._cache, self._reports.pop(0), self._ranks, self._facts)

    @contextlib.contextmanager
    def starting(self, app: Any, settings: Any) -> Iterator[Any]:
        with self.running(app, settings, progress=None) as ready:
            yield SimpleNamespace(poll=lambda: ready)

    def has_room(self, resources: Any) -> bool:
        return True


def build_on(starts: Starts, store: Destination, **signing: Any) -> Any:
    key = new_key()
    return build_with(trusting(key), key, store, starts, **signing)


# Building again ---------------------------------------------------------------------------------
def published_in(store: Path) -> list[Path]:
    return sorted(store.glob("statements/*/*/*.json"))


@pytest.mark.parametrize("mode", [0o700, 0o755, None], ids=["private", "readable", "new"])
def test_a_build_after_an_edit_works_in_a_folder_of_this_user(tmp_path: Path, mode: int | None):
    """The new artifact is added, and no option is needed."""
    store = tmp_path / "store"
    if mode is not None:
        store.mkdir(mode=mode)
    built = [
        build_on(Starts(tmp_path / "none"), Destination.of(open_store(str(store))))
        for _ in range(2)
    ]
    assert [each.published for each in built] == ["new", "new"]
    assert published_in(store) == sorted(store / each.statement for each in built)
    assert len(published_in(store)) == 2


def test_no_requests_are_published_that_nobody_agreed_to(tmp_path: Path):
    """The plan may be one of the application's own settings, which the command does not read."""
    facts = {"recorded_requests": 4}
    starts = Starts(tmp_path / "none", facts=facts)
    with pytest.raises(BuildFailed, match="has the values of 4 requests") as refused:
        build_on(starts, to(tmp_path / "store"))
    assert "--with-values" in refused.value.hint
    assert len(starts.stores) == 1, "no round trip copies it to a store either"
    assert not published_in(tmp_path / "store")
    agreed = Starts(tmp_path / "none", facts=facts)
    assert build_on(agreed, to(tmp_path / "store"), with_values=True).published == "new"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775], ids=["all", "sticky", "a group"])
def test_a_build_into_a_folder_of_several_users_asks(
    tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
):
    """There the variant may be another team's, as in a bucket."""
    monkeypatch.setattr("serve_warm.builder.publishing._is_private_group", lambda _: False)
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(mode)
    build_on(Starts(tmp_path / "none"), Destination.of(open_store(str(store))))
    with pytest.raises(AlreadyPublished, match="of application") as refused:
        build_on(Starts(tmp_path / "none"), Destination.of(open_store(str(store))))
    assert "--if-published supersede" in refused.value.hint
    assert len(published_in(store)) == 1


def test_which_stores_are_this_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = open_store(str(tmp_path))
    others = [open_store("s3://bucket/a"), open_store("hf://owner/repo@main")]
    assert is_own_folder(folder)
    assert not any(map(is_own_folder, others))
    group = tmp_path / "of a group"
    group.mkdir()
    group.chmod(0o775)
    mine = grp.getgrgid(group.stat().st_gid)
    user = pwd.getpwuid(os.geteuid())
    alone = mine.gr_name == user.pw_name and set(mine.gr_mem) <= {user.pw_name}
    assert is_own_folder(open_store(str(group))) is alone
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert not is_own_folder(folder)


def test_an_unsigned_build_does_not_supersede(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`serve-warm sign` accepts only one unsigned artifact in a folder."""
    asked, built = list[Any](), object()
    application = SimpleNamespace(
        warming={"Head": WarmupMixin},
        app=lambda *_, **__: SimpleNamespace(deployment="Head"),
        reads=lambda *_: False,
    )
    monkeypatch.setattr(starts, "_import_to_build", lambda _: application)
    monkeypatch.setattr(starts, "_check_first", lambda *_, **__: None)
    monkeypatch.setattr(starts, "_build_each", lambda _, to, **__: asked.append(to) or [built])
    monkeypatch.setattr(starts, "_show_result", lambda *_, **__: None)
    for options in ((), ("--unsigned",), ("--if-published", "keep")):
        command = ["build", "a:b", "--store", str(tmp_path), "--all", *options]
        CliRunner().invoke(cli.serve_warm, command, catch_exceptions=False)
    assert [to.if_published for to in asked] == ["supersede", "refuse", "keep"]


# Gangs: a real one is built in integration/test_gang.py ---------------------------------------
def test_a_variant_of_each_rank_is_published(tmp_path: Path):
    """Two ranks are two variants, and sizes are those of both."""
    one, two = (build_on(Starts(tmp_path / "none", ranks=n), to(tmp_path / str(n))) for n in (1, 2))
    statements = [path for path in (tmp_path / "2").rglob("*") if path.suffix == ".json"]
    assert one.ranks == ()
    assert len(set(two.ranks)) == 2
    assert two.ranks[0] == two.statement
    assert len(statements) == 2
    assert two.stored_bytes == 2 * one.stored_bytes
    assert two.parts == {"cache": 2 * one.parts["cache"]}


def test_what_a_gang_has_published_in_part_is_not_kept(tmp_path: Path):
    """Variants of one build go together: to keep one and make another anew would mix two."""
    starts = [Starts(tmp_path / "none", ranks=2) for _ in range(3)]
    store = tmp_path / "store"
    whole = build_on(starts[0], to(store))
    kept = build_on(starts[1], to(store, "keep"))
    (store / whole.ranks[1]).unlink()
    with pytest.raises(AlreadyPublished):
        build_on(starts[2], to(store, "keep"))
    assert kept.published == "kept"


def build_with(
    trust: Any,
    key: Any,
    store: Path | Destination,
    starts: Any = None,
    *,
    with_values: bool = False,
    **signing: Any,
) -> Any:
    app = dataclasses.replace(load_app(APP), trust=trust)
    signed = Signing(key=key, **signing)
    where = store if isinstance(store, Destination) else to(store)
    on = cast("Any", starts or NeverStarts())
    return build(app, where, on=on, signing=signed, with_values=with_values)


def test_a_build_for_a_key_of_one_store_proves_within_it(tmp_path: Path):
    """A copy elsewhere would be out of the key's scope; nothing is left of it."""
    key, store = new_key(), tmp_path / "store"
    scoped = signed_by(public_pem(key), stores=[f"file://{store}*"])
    starts = Starts(tmp_path / "none")
    built = build_with(scoped, key, store, starts)
    assert starts.stores[0] is None
    assert starts.stores[1].startswith(f"{store}/.staging-")
    assert built.published == "new"
    assert not list(store.glob(".staging-*"))


# Whom the round trip believes, and what is said of the origin -----------------------------------
@pytest.mark.parametrize(
    "scope",
    [{"deployments": ["Another"]}, {"stores": ["s3://prod/*"]}, {"stores": ["file:///elsewhere"]}],
)
def test_a_key_out_of_its_scope_is_refused_before_anything_is_compiled(tmp_path: Path, scope: Any):
    """The round trip would refuse it minutes later; the error names the scope."""
    key = new_key()
    with pytest.raises(ConfigError, match=r"is trusted only for ") as caught:
        build_with(signed_by(public_pem(key), **scope), key, tmp_path)
    assert "extend `deployments`" in caught.value.hint


def test_a_build_that_says_less_than_is_required_compiles_nothing(tmp_path: Path):
    """The build reports the missing facts first. With these facts it continues."""
    key = new_key()
    trust = trusting(key, require=frozenset({("builder", "https://ci/*")}))
    with pytest.raises(ConfigError, match="has no builder"):
        build_with(trust, key, tmp_path)
    with pytest.raises(pytest.fail.Exception, match="a replica was started"):
        build_with(trust, key, tmp_path, provenance={"builder": "https://ci/acme"})


@pytest.mark.parametrize("said", [{}, {"source": "4f2c"}])
def test_the_origin_is_what_the_builder_says_and_not_the_model(tmp_path: Path, said: Any):
    """Facts of this name from the model's code are dropped."""
    boasts = {"provenance": {"builder": "https://ci/trusted"}, "passes": 2}
    starts = Starts(tmp_path / "none", facts=boasts)
    built = build_on(starts, to(tmp_path / "store"), provenance=said)
    payload = Envelope.parse((tmp_path / "store" / built.statement).read_bytes()).payload
    manifest = Manifest.from_statement(payload)
    assert manifest.provenance == said
    assert manifest.facts["passes"] == 2


def test_an_unsigned_build_leaves_what_sign_takes(tmp_path: Path):
    """The copy for the round trip is signed, the published artifact is not."""
    left, fleet = LocalStore(root=tmp_path / "left"), LocalStore(root=tmp_path / "fleet")
    built = build_on(Starts(tmp_path / "none"), to(left.root), when="later")
    assert Envelope.parse((left.root / built.statement).read_bytes()).signatures == ()
    assert built.trust == ""
    ci = new_key()
    place = Place(application="deployments.text_embedder.app", deployment="TextEmbedder")
    done = sign_unsigned(left, fleet, [ci], trust=trusting(ci), place=place)
    assert done.statements == (built.statement,)


@pytest.mark.parametrize(
    ("store", "if_published", "problem"),
    [
        ("s3://bucket/a", "refuse", "cannot be published to s3://bucket/a"),
        ("left", "keep", "keep` cannot be combined"),
    ],
)
def test_an_unsigned_artifact_is_for_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, if_published: str, problem: str
):
    """A store of replicas is refused, before anything is compiled."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=problem):
        build_with(trusting(KEY), KEY, to(store, if_published), when="later")


GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SHA": "4f2c",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_WORKFLOW_REF": "acme/app/.github/workflows/build.yml@refs/heads/main",
}
WORKFLOW = "https://github.com/acme/app/.github/workflows/build.yml@refs/heads/main"


@pytest.mark.parametrize(
    ("environ", "given", "said"),
    [
        ({}, {}, {}),
        (GITHUB, {}, {"source": "4f2c", "builder": WORKFLOW}),
        (
            GITHUB,
            {"source": "mine", "image": "r@sha256:1"},
            {"source": "mine", "image": "r@sha256:1", "builder": WORKFLOW},
        ),
        ({**GITHUB, "GITHUB_ACTIONS": ""}, {}, {}),
        ({"GITHUB_ACTIONS": "true"}, {}, {}),
        ({"GITLAB_CI": "true", "CI_COMMIT_SHA": "4f2c"}, {}, {"source": "4f2c"}),
        ({"CI_COMMIT_SHA": "4f2c", "CI": "true"}, {}, {}),
    ],
)
def test_a_ci_job_says_where_an_artifact_comes_from(environ: Any, given: Any, said: Any):
    """Only variables with a certain meaning in this CI count. Given options win."""
    assert read_provenance(environ, **given) == said


@pytest.mark.parametrize(
    ("source", "imports"),
    [
        ("# Copyright: the serve_warm authors\nimport torch", False),
        ("import torch, serve_warm.inputs", True),
        ("from serve_warm import Input", True),
        ("def load():\n    import serve_warm", False),
        ("from .serve_warm import Input", False),
        ("this is no Python", True),
    ],
)
def test_only_an_import_tells_that_an_application_knows_serve_warm(
    source: str, imports: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """torch.compile is taken before the import of an application that only mentions serve_warm."""
    (tmp_path / "some_application.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)

    assert _imports_serve_warm("some_application") is imports
