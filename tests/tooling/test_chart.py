# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The output of the Helm chart: equal in both engines, valid, and accepted by replicas and probes.

There is no cluster, so kubelet and KubeRay are not tested. But the tests run the commands of the
containers, and read the containers' files with the code that reads them in a pod.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import charts
import serve_warm
from believing import trust_in
from charts import (
    CHART,
    ENGINES,
    EXAMPLES,
    cluster_of,
    example,
    helm_4,
    laid_over,
    of_kind,
    pods_of,
)
from components import require, require_module
from processes import run_to_end
from serve_warm import node, preload
from serve_warm.builder.app import find_schema_problems as _problems
from serve_warm.cli import keys, starts
from serve_warm.config import FORMER, REMOVED, WarmupConfig, resolve
from serve_warm.node_server.addresses import listen
from serve_warm.trust.keys import load_signing_key, make_signing_key

ALL = sorted(EXAMPLES)


def rendered(name: str, **patch: Any) -> charts.Manifests:
    return helm_4(laid_over(example(name), patch)) if patch else copy.deepcopy(unchanged(name))


@functools.cache
def unchanged(name: str) -> charts.Manifests:
    return helm_4(example(name))


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    spec = pod["spec"]
    return next(c for c in [*spec["containers"], *spec["initContainers"]] if c["name"] == name)


def serve_config(found: charts.Manifests) -> dict[str, Any]:
    for service in of_kind(found, "RayService"):
        config: dict[str, Any] = yaml.safe_load(service["spec"]["serveConfigV2"])
        return config
    (text,) = [m["data"]["serve.yaml"] for (_, n), m in found.items() if n.endswith("-serve")]
    return yaml.safe_load(text)


def test_the_chart_is_of_the_release_beside_it() -> None:
    """Its appVersion is the version of this package, whose settings the chart knows."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert chart["appVersion"] == serve_warm.__version__


# --- both engines --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_both_engines_render_the_same(name: str) -> None:
    """Helm 3.10 and Helm 4 make the same manifests of every example."""
    old, new = (render(example(name)) for render in ENGINES.values())

    assert old == new


@pytest.mark.parametrize("name", ["", *ALL])
def test_both_engines_lint_without_a_word(name: str) -> None:
    """`helm lint --strict` prints no warning or error for the defaults and for any example."""
    command = [require("helm", charts.INSTALL), "lint", "--strict", str(CHART)]
    command += ["--values", str(EXAMPLES[name])] if name else []
    values = example(name) if name else {}

    done = run_to_end(command)
    engine = require_module("helm_python", charts.INSTALL)
    report = engine.lint(CHART, values, strict=True, kube_version=charts.KUBE_VERSION)

    assert (done.returncode, re.findall(r"\[(?:WARNING|ERROR)\].*", done.stdout)) == (0, [])
    assert (report["errors"], [m for m in report["messages"] if m["severity"] > 1]) == ([], [])


@pytest.mark.parametrize("name", ALL)
def test_no_text_has_a_hole(name: str) -> None:
    """No value is missing in manifests and notes, and no text contains an error of a template."""
    texts = charts.helm_4_texts(example(name))

    holes = [t for t in texts.values() if re.search(r"<no value>|<nil>|%!|Error:", t)]
    assert holes == []
    assert "PromQL to paste" in texts["NOTES.txt"]


# --- valid ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_kubernetes_takes_it(name: str) -> None:
    """All manifests are valid in each Kubernetes from 1.31 on, and have no unknown fields."""
    found = rendered(name)
    core = [manifest for (kind, _), manifest in found.items() if kind not in charts.CUSTOM]
    for use, pod in pods_of(found).items():
        labelled = {"name": use, **pod["metadata"]}
        core.append({"apiVersion": "v1", "kind": "Pod", "metadata": labelled, "spec": pod["spec"]})

    problems = [
        (version, manifest["kind"], problem)
        for version in charts.kubernetes_versions()
        for manifest in core
        for problem in charts.kubernetes_problems(manifest, version)
    ]

    assert problems == []


@pytest.mark.parametrize("name", ALL)
def test_the_operators_take_it(name: str) -> None:
    """The objects for KubeRay and Prometheus fit their CRDs, without unknown fields."""
    found = rendered(name)

    problems = [
        problem
        for (kind, _), manifest in found.items()
        if kind in charts.CUSTOM
        for problem in charts.custom_problems(manifest)
    ]

    assert problems == []


# --- what Serve gets -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_serve_and_the_warm_up_take_their_configuration(name: str) -> None:
    """Ray Serve's schema accepts the applications, and serve_warm accepts their warm-ups."""
    from ray.serve.schema import ServeDeploySchema

    config = serve_config(rendered(name))

    ServeDeploySchema.model_validate(config)
    for application in config["applications"]:
        for deployment in application["deployments"]:
            resolve(WarmupConfig(), user_config=deployment.get("user_config"), environ={})


def test_each_warming_deployment_gets_the_settings_and_keeps_its_own() -> None:
    """A deployment's own value wins, even `false`."""
    config = serve_config(rendered("everything"))
    text, image = config["applications"]
    embedder, tokenizer = text["deployments"]
    (classifier,) = image["deployments"]

    assert embedder["user_config"]["rows"] == 128
    assert embedder["user_config"]["warmup"]["on_unproven"] == "fail"
    assert embedder["user_config"]["warmup"]["artifact"] == "s3://artifacts/text"
    assert "user_config" not in tokenizer
    own = classifier["user_config"]["warmup"]
    assert (own["enabled"], own["artifact"]) == (False, "s3://artifacts/classifier")
    assert own["deadline_s"] == embedder["user_config"]["warmup"]["deadline_s"] == 900


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("enabled", [True, False], ids=["built here", "built elsewhere"])
def test_artifacts_keep_their_application_without_the_build(engine: str, enabled: bool) -> None:
    """Turning the Job off does not hide the artifacts that it has built."""
    for setting, name in (({}, "shop.app"), ({"application": "mine"}, "mine")):
        values = example("s3-irsa")
        values["applications"][0]["import_path"] = "shop.app:app"
        values["warmup"].update(setting)
        values["build"]["enabled"] = enabled
        (deployment,) = serve_config(ENGINES[engine](values))["applications"][0]["deployments"]
        assert deployment["user_config"]["warmup"]["application"] == name


def test_without_a_store_no_application_is_named() -> None:
    (deployment,) = serve_config(rendered("minimal"))["applications"][0]["deployments"]
    assert "application" not in deployment["user_config"]["warmup"]


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_pod_asks_for_the_memory_of_its_seats(engine: str) -> None:
    """The request includes the memory of all seats, and Ray's own memory excludes it."""
    values = example("minimal")
    (application,) = values["applications"]
    warm = {"name": "Scorer", "user_config": {"warmup": {"seats": {"imports": ["app"]}}}}
    on_a_gpu = {
        "name": "Large",
        "ray_actor_options": {"num_gpus": 1},
        "user_config": {"warmup": {"seats": {"count": 3}}},
    }
    off = {"name": "Off", "user_config": {"warmup": {"enabled": False, "seats": {"count": 5}}}}
    application["deployments"] = [warm, on_a_gpu, {"name": "Tokenizer"}, off]
    cpu = {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"cpu": "4", "memory": "6Gi"}}
    gpu = {"limits": {"cpu": "2", "memory": "8Gi", "nvidia.com/gpu": 1}}
    values["workers"] = [{"name": "cpu", "resources": cpu}, {"name": "gpu", "resources": gpu}]
    values["warmup"] = {"seats": {"count": 1, "keep_alive_s": 600}}
    values["seats"] = {"memory": "1Gi"}

    manifests = ENGINES[engine](values)

    cluster = cluster_of(manifests)
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    pods = [group["template"]["spec"]["containers"][0]["resources"] for group in groups]
    one, four = 2**30, 4 * 2**30
    assert pods[0]["requests"]["memory"] == "4Gi"
    assert pods[1] == {**cpu, "requests": {"cpu": "2", "memory": str(4 * 2**30 + one)}}
    assert pods[2] == gpu  # Kubernetes requests the limit
    assert [group["rayStartParams"].get("memory") for group in groups] == [
        *(None, str(6 * 2**30 - one), str(8 * 2**30 - four))
    ]
    scorer, large, *others = serve_config(manifests)["applications"][0]["deployments"]
    assert scorer["user_config"]["warmup"]["seats"] == {
        "count": 1,
        "imports": ["app"],
        "keep_alive_s": 600,
    }
    assert large["user_config"]["warmup"]["seats"]["count"] == 3
    for deployment in (scorer, large):
        variables = deployment["ray_actor_options"]["runtime_env"]["env_vars"]
        assert variables == preload.hook_environment()
    assert all("ray_actor_options" not in each for each in others)


def test_the_schema_knows_all_settings_and_options() -> None:
    """The schema has exactly the fields of WarmupConfig, and of Ray Serve's applications."""
    from ray.serve.schema import DeploymentSchema, RayActorOptionsSchema, ServeApplicationSchema

    schema = json.loads((CHART / "values.schema.json").read_text())
    deployment = schema["definitions"]["deployment"]["properties"]
    theirs = {
        "warmup": (schema["definitions"]["warmup"]["properties"], WarmupConfig),
        "application": (
            schema["properties"]["applications"]["items"]["properties"],
            ServeApplicationSchema,
        ),
        "deployment": (deployment, DeploymentSchema),
        "actor": (deployment["ray_actor_options"]["properties"], RayActorOptionsSchema),
    }

    differ = {name: set(known) ^ set(model.model_fields) for name, (known, model) in theirs.items()}
    warmups = [
        schema["properties"]["warmup"]["allOf"],
        [deployment["user_config"]["properties"]["warmup"]],
    ]

    # The chart sets the folder, so its values cannot, and refuses former names with a hint.
    assert differ == {name: set() for name in theirs} | {"warmup": {"state_dir", *FORMER, *REMOVED}}
    assert warmups == [[{"$ref": "#/definitions/warmup"}]] * 2


def test_the_check_of_the_cache_knows_the_default_limit() -> None:
    """A volume of this size is refused where the values name no limit."""
    checks = (CHART / "templates" / "_checks.tpl").read_text()
    (limit,) = re.findall(r"node_cache_max_bytes \| default (\d+)\.0 ", checks)
    assert int(limit) == WarmupConfig().node_cache_max_bytes


def test_the_schema_is_closed_and_describes_each_default() -> None:
    """No object accepts unknown names, unless the chart passes it on. The defaults are valid."""
    import jsonschema

    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    open_on_purpose = []

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict):
            types = node.get("type", [])
            if "object" in types and node.get("additionalProperties", True) is True:
                open_on_purpose.append(path)
            for key, below in node.items():
                walk(below, f"{path}/{key}")
        elif isinstance(node, list):
            for index, below in enumerate(node):
                walk(below, f"{path}/{index}")

    walk(schema, "")
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    assert list(jsonschema.Draft7Validator(schema).iter_errors(values)) == []
    assert set(values) == set(schema["properties"]) - {"global"}
    for path in open_on_purpose:
        assert re.search(PASSED_ON, path), path


def test_the_readme_of_the_chart_has_each_value() -> None:
    """`python tests/support/charts.py`, which writes the table, would change nothing."""
    readme = (CHART / "README.md").read_text()

    assert charts.values_table() in readme


PASSED_ON = (
    r"(loggingConfig|options|serveService|extraClusterSpec|affinity|valueFrom|"
    r"user_config|[a-z]+_config|runtime_env|resources|args|autoscaling_policy|global|"
    r"seccompProfile|appArmorProfile|seLinuxOptions|(items|claims)(/items)?)$"
)


# --- what the pods do ----------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(ALL) - {"kuberay-sample"}))
def test_workers_are_asked_for_warmth_and_the_head_is_not(name: str) -> None:
    """Readiness probes of workers ask node.py. Ray's containers have no other probes by default."""
    found = rendered(name)
    cluster = cluster_of(found)
    head = cluster["headGroupSpec"]["template"]["spec"]

    assert [c for c in head["containers"] if {"readinessProbe", "livenessProbe"} & set(c)] == []
    assert [c["name"] for c in head["initContainers"]] == ["serve-warm-folders"]
    for group in cluster["workerGroupSpecs"]:
        ray = group["template"]["spec"]["containers"][0]
        probe = ray["readinessProbe"]
        asked = probe.get("httpGet", {}).get("path") or probe["exec"]["command"][4]
        assert asked in {"/readyz", "probe"}
        assert "livenessProbe" not in ray


@pytest.mark.parametrize("name", sorted(set(ALL) - {"kuberay-sample"}))
def test_node_py_takes_what_it_is_told(name: str, tmp_path: Path) -> None:
    """The command of the probe runs, and reports that nothing is ready yet."""
    for group in cluster_of(rendered(name, readiness={"mode": "exec"}))["workerGroupSpecs"]:
        command = container(group["template"], "ray-worker")["readinessProbe"]["exec"]["command"]
        options = [o for o in command[5:] if not o.startswith("--state-dir")]
        options = [re.sub(r"localhost:\d+", "localhost:1", option) for option in options]
        options.append(f"--state-dir={tmp_path / 'none'}")

        done = run_to_end([sys.executable, *command[1:3], node.__file__, "probe", *options])

        assert (done.returncode, done.stderr) == (1, "")
        assert "raylet" in done.stdout
        assert "proxy" in done.stdout
        if "--expect=allow-idle" not in options:
            assert "warm" in done.stdout


@pytest.mark.parametrize(
    ("readiness", "expected"),
    [
        ({}, (1, 10)),
        ({"mode": "exec"}, (5, 2)),
        ({"periodSeconds": 4}, (4, 3)),
        ({"periodSeconds": 4, "failureThreshold": 1}, (4, 1)),
    ],
)
def test_a_worker_is_taken_out_after_ten_seconds_however_often_it_is_asked(
    readiness: dict[str, Any], expected: tuple[int, int]
) -> None:
    """The cheap probe runs each second, the other less often. Both fail after 10 s."""
    pod = pods_of(rendered("minimal", readiness=readiness))["workers"]
    probe = container(pod, "ray-worker")["readinessProbe"]

    assert (probe["periodSeconds"], probe["failureThreshold"]) == expected


def test_a_node_server_that_hangs_does_not_wait_for_the_grace_of_its_pod() -> None:
    """Its probe has a separate grace period, which does not depend on the warm-up of replicas."""
    pod = pods_of(rendered("minimal"))["workers"]
    probe = container(pod, "serve-warm-node")["livenessProbe"]

    asked_s = probe["failureThreshold"] * max(probe["periodSeconds"], probe["timeoutSeconds"])
    assert asked_s + probe["terminationGracePeriodSeconds"] == 20
    assert pod["spec"]["terminationGracePeriodSeconds"] == 60


def test_the_probe_asks_the_ports_of_this_cluster() -> None:
    found = rendered("everything")
    cpu, gpu = (g["template"] for g in cluster_of(found)["workerGroupSpecs"])

    for pod, agent in ((cpu, 52366), (gpu, 52365)):
        command = container(pod, "serve-warm-node")["command"]
        assert f"--raylet=http://localhost:{agent}/api/healthz" in command
        assert "--proxy=http://localhost:8100/-/healthz" in command
    assert "--deployment=text#Embedder" in container(cpu, "serve-warm-node")["command"]
    assert "--deployment=image#Classifier" in container(gpu, "serve-warm-node")["command"]
    assert container(gpu, "ray-worker")["readinessProbe"]["httpGet"]["port"] == 8199
    assert serve_config(found)["http_options"]["port"] == 8100


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_cluster_without_ipv4_listens_on_ipv6(engine: str) -> None:
    """One value moves the proxies and the dashboard. The node server needs none."""
    usual = ENGINES[engine](example("minimal"))
    moved = ENGINES[engine](laid_over(example("minimal"), {"serve": {"host": "::"}}))
    own_host = {"serve": {"host": "::"}, "head": {"rayStartParams": {"dashboard-host": "fd00::7"}}}
    own = ENGINES[engine](laid_over(example("minimal"), own_host))

    params = [cluster_of(found)["headGroupSpec"]["rayStartParams"] for found in (usual, moved, own)]
    assert [serve_config(found)["http_options"]["host"] for found in (usual, moved)] == [
        *("0.0.0.0", "::")
    ]
    assert [each.get("dashboard-host") for each in params] == [None, "::", "fd00::7"]
    assert {each["num-cpus"] for each in params} == {"0"}
    for found in (usual, moved):
        (group,) = cluster_of(found)["workerGroupSpecs"]
        command = container(group["template"], "serve-warm-node")["command"]
        assert "dashboard-host" not in group["rayStartParams"]
        assert [option for option in command if option.startswith("--host=")] == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_the_node_server_takes_the_host_of_the_values(host: str) -> None:
    """It listens there, and the kubelet and Prometheus connect to the pod's own address."""
    pod = pods_of(rendered("monitoring", nodeServer={"host": host}))["workers"]
    server = container(pod, "serve-warm-node")
    told = dict(option.split("=", 1) for option in server["command"][3:])
    probes = [server["livenessProbe"], container(pod, "ray-worker")["readinessProbe"]]

    with listen(told["--host"], 0, backlog=1) as listening:
        assert listening.getsockname()[0] == host
    assert ["host" in probe["httpGet"] for probe in probes] == [False, False]


@pytest.mark.parametrize("enabled", [False, True])
def test_the_notes_say_what_is_open(enabled: bool) -> None:
    """Without a network policy, an operator reads so after the installation."""
    policy = {"enabled": enabled, "operatorNamespace": "kuberay"}
    notes = charts.helm_4_texts(laid_over(example("minimal"), {"networkPolicy": policy}))[
        "NOTES.txt"
    ]

    said = re.findall("(?m)^There is no network policy: .* networkPolicy.enabled .*$", notes)
    assert len(said) == (not enabled)
    assert ("on port 8099" in "".join(said)) == (not enabled)


@pytest.mark.parametrize("name", ["minimal", "everything"])
def test_the_node_server_keeps_places_for_the_kubelet(name: str) -> None:
    """The server gets the address of the node from Kubernetes."""
    for group in cluster_of(rendered(name))["workerGroupSpecs"]:
        server = container(group["template"], "serve-warm-node")
        (told,) = (o for o in server["command"] if o.startswith("--host-ip"))
        (env,) = server["env"]

        assert told == f"--host-ip=$({env['name']})"
        assert env["valueFrom"] == {"fieldRef": {"fieldPath": "status.hostIP"}}
        for host, code in (("10.0.0.7", 1), ("fd00::7", 1), ("node-7", 2)):
            assert server["command"][1:3] == ["-m", "serve_warm.node_server"]
            options = [o for o in server["command"][3:] if not o.startswith("--port")]
            options = [o.replace(f"$({env['name']})", host) for o in options]
            # An impossible port: the server ends with 1 if it accepts all other options.
            command = [sys.executable, "-m", "serve_warm.node_server", *options, "--port=70000"]
            done = run_to_end(command)
            assert (done.returncode, "port 70000" in done.stderr) == (code, code == 1)


def folders_of(pod: dict[str, Any], root: Path) -> subprocess.CompletedProcess[str]:
    """Run the init container of a pod, with its volumes below `root`."""
    program, _, *rest = container(pod, "serve-warm-folders")["command"]
    assert program == "python3"
    code, *paths = (re.sub(r"(?<![\w/])/(volumes|run)/", f"{root}/\\1/", text) for text in rest)
    environment = {**os.environ, "PYTHONPATH": str(Path(node.__file__).parents[1])}
    return run_to_end([sys.executable, "-c", code, *paths], env=environment)


def volumes_in(root: Path) -> None:
    """Make the folders that kubelet makes for emptyDirs, which all users may write to."""
    for folder in ("volumes/scratch", "volumes/cache", "run/serve_warm"):
        (root / folder).mkdir(parents=True)
        (root / folder).chmod(0o777)


def test_the_folders_of_a_pod_are_ones_that_serve_warm_loads_from(tmp_path: Path) -> None:
    """The folders over /tmp and for the cache are private, unlike an emptyDir."""
    pod = pods_of(rendered("minimal", readiness={"mode": "exec"}))["workers"]
    volumes_in(tmp_path)

    for _ in ("first start", "restart of the pod's containers"):
        done = folders_of(pod, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")

    mounts = {m["mountPath"]: m for m in container(pod, "ray-worker")["volumeMounts"]}
    cache = tmp_path / "volumes/cache" / mounts["/var/cache/serve_warm"]["subPath"]
    scratch = tmp_path / "volumes/scratch" / mounts["/tmp"]["subPath"]
    for mounted in (cache, cache / "blobs", scratch, scratch / "home"):
        assert node.problem_of(str(mounted), mounted.lstat(), of="private") is None
    root = tmp_path / "volumes/scratch"
    assert node.problem_of(str(root), root.lstat(), of="above") is not None
    compiled = [sys.executable, "-I", "-S", str(tmp_path / "run/serve_warm/node.pyc")]
    states = f"--state-dir={tmp_path / 'none'}"
    asked = [*compiled, "probe", states, "--expect=allow-idle", "--raylet=none", "--proxy=none"]
    assert subprocess.run(asked, check=False, capture_output=True).returncode == 0


def test_a_cache_volume_that_cannot_be_written_costs_downloads_alone(tmp_path: Path) -> None:
    """The pod starts, and its log says who must own the volume."""
    volumes_in(tmp_path)
    (tmp_path / "volumes/cache/serve_warm-1000").touch()

    done = folders_of(pods_of(rendered("raycluster"))["workers"], tmp_path)

    assert done.returncode == 0
    assert "each replica downloads for itself" in done.stderr


@pytest.mark.parametrize("name", ALL)
def test_nothing_runs_with_privileges(name: str) -> None:
    """Every container: no root, read-only root, no capability, the default seccomp profile."""
    for pod in pods_of(rendered(name)).values():
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in [*pod["spec"]["containers"], *pod["spec"]["initContainers"]]:
            context = each["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_secrets_stay_away_from_where_no_replica_runs() -> None:
    """The head and init containers get no credentials. The build, which acts as a replica, does."""
    pods = pods_of(rendered("everything"))

    assert "artifacts-read" not in json.dumps(pods["head"])
    for pod in pods.values():
        for each in pod["spec"]["initContainers"]:
            if each["name"] != "build":
                assert "envFrom" not in each
                assert {e["name"] for e in each.get("env", [])} <= {"HOST_IP"}


@pytest.mark.parametrize("name", ["everything", "s3-irsa"])
def test_model_code_of_the_build_has_neither_the_key_nor_write_access(name: str) -> None:
    """Only `sign`, which runs no model code, has the key. It can only read the build's file."""
    pod = pods_of(rendered(name))["build"]
    build, sign = container(pod, "build"), container(pod, "sign")
    (main,) = pod["spec"]["containers"]

    def places(of: dict[str, Any]) -> dict[tuple[str, str], bool]:
        return {
            (mount["name"], mount.get("subPath", "")): mount.get("readOnly", False)
            for mount in of["volumeMounts"]
        }

    assert main is sign
    assert {"key", "key-secret", "sign-tmp"} & {volume for volume, _ in places(build)} == set()
    assert ("key", "") in places(sign)
    writable = {place for place, read_only in places(build).items() if not read_only}
    shared = writable & places(sign).keys()
    assert shared == {("serve-warm-scratch", "unsigned")}
    assert places(sign)["serve-warm-scratch", "unsigned"] is True
    assert "artifacts-write" not in json.dumps(build)
    if name == "everything":
        assert "artifacts-write" in json.dumps(sign)
        assert "artifacts-read" not in json.dumps(sign)


def test_the_build_trusts_a_key_of_its_own_beside_the_others(tmp_path: Path) -> None:
    """The init container writes a trust file with CI's key and the pod's own key."""
    found = rendered("s3-irsa")
    config = tmp_path / "etc/serve_warm"
    config.mkdir(parents=True)
    (tmp_path / "run/trust").mkdir(parents=True)
    text = found["ConfigMap", "demo-serve-warm-build"]["data"]["trust.toml"]
    (config / "trust.toml").write_text(text)
    command = container(pods_of(found)["build"], "round-trip-key")["command"]
    script = command[-1].replace("/etc/", f"{tmp_path}/etc/").replace("/run/", f"{tmp_path}/run/")

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([*command[:-1], script], check=True, env={**os.environ, "PATH": path})

    trust = trust_in(tmp_path / "run/trust/trust.toml")
    own = load_signing_key(tmp_path / "run/trust/round-trip.key").public_key()
    assert [key.name for key in trust.keys] == ["ci", "round-trip"]
    assert trust.keys[1].raw == own.public_bytes_raw()


def test_a_new_version_of_the_chart_alone_replaces_no_cluster() -> None:
    """No pod contains the chart's version, because KubeRay would replace the cluster for it."""
    cluster = json.dumps(cluster_of(rendered("everything")))

    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    assert "helm.sh/chart" not in cluster
    assert f"serve-warm-{version}" not in cluster


def test_the_pods_are_selected_and_kuberays_services_still_find_theirs() -> None:
    """Monitors, budget and policy use labels of the pods. KubeRay's labels do not change."""
    found = rendered("everything")
    pods = pods_of(found)
    selectors = [
        manifest["spec"].get("selector") or manifest["spec"]["podSelector"]
        for kind in ("PodMonitor", "PodDisruptionBudget", "NetworkPolicy")
        for manifest in of_kind(found, kind)
    ]

    assert len(selectors) == 4
    for selector in selectors:
        wanted = selector["matchLabels"].items()
        assert any(wanted <= pod["metadata"]["labels"].items() for pod in pods.values())
    for pod in pods.values():
        assert "app.kubernetes.io/name" not in pod["metadata"]["labels"]


def test_each_port_that_is_scraped_is_there() -> None:
    """A PodMonitor names ports that its pods have."""
    found = rendered("monitoring")
    pods = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["spec"]
        for pod in pods_of(found).values()
    }

    for monitor in of_kind(found, "PodMonitor"):
        spec = pods[monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]]
        there = {
            port["name"]
            for each in [*spec["containers"], *spec["initContainers"]]
            for port in each.get("ports", [])
        }
        assert {e["port"] for e in monitor["spec"]["podMetricsEndpoints"]} <= there


def shown_dashboard(found: charts.Manifests) -> dict[str, Any]:
    (text,) = (
        m["data"]["warm-start.json"]
        for m in of_kind(found, "ConfigMap")
        if "warm-start.json" in m["data"]
    )
    return json.loads(text)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_dashboard_takes_the_values_of_the_rules(engine: str) -> None:
    """Its line is at the objective of the alerts, and its links go to their runbooks."""
    written = {"startSloSeconds": 12.5, "runbookUrl": "https://wiki.example/runbooks"}
    values = laid_over(example("monitoring"), {"alerts": written})

    board = shown_dashboard(ENGINES[engine](values))
    found = {v["name"]: v for v in board["templating"]["list"]}

    assert found["slo"]["query"] == found["slo"]["current"]["value"] == "12.5"
    assert found["runbooks"]["query"] == found["runbooks"]["current"]["value"]
    assert found["runbooks"]["query"] == "https://wiki.example/runbooks"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_chart_changes_nothing_else_of_the_dashboard(engine: str) -> None:
    """With default values, Grafana gets the unchanged file."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())["alerts"]
    values = laid_over(example("monitoring"), {"alerts": defaults})

    board = shown_dashboard(ENGINES[engine](values))

    assert board == json.loads((CHART / "dashboards" / "warm-start.json").read_text())


# --- one deadline --------------------------------------------------------------------------


@pytest.mark.parametrize("deadline_s", [120.5, 600, 2222])
def test_budgets_follow_from_the_deadline(deadline_s: float) -> None:
    """The times of the start-up probe, the Job and the replicas follow from one number."""
    found = rendered(
        "s3-irsa",
        warmup={"deadline_s": deadline_s},
        startupProbe={"enabled": True, "waitFor": "warm"},
    )
    probe = container(pods_of(found)["workers"], "ray-worker")["startupProbe"]
    (job,) = of_kind(found, "Job")
    (deployment,) = serve_config(found)["applications"][0]["deployments"]

    budget_s = probe["failureThreshold"] * probe["periodSeconds"]
    assert deadline_s < 1.5 * deadline_s <= budget_s < 1.5 * deadline_s + probe["periodSeconds"]
    assert job["spec"]["activeDeadlineSeconds"] >= int(4 * deadline_s)
    assert deployment["user_config"]["warmup"]["deadline_s"] == deadline_s


def test_no_start_up_probe_unless_asked_for() -> None:
    """While it runs, kubelet runs no other probe. By default it waits 300 s for the node server."""
    pod = pods_of(rendered("minimal"))["workers"]
    asked_for = pods_of(rendered("minimal", startupProbe={"enabled": True}))["workers"]
    probe = container(asked_for, "ray-worker")["startupProbe"]

    assert "startupProbe" not in container(pod, "ray-worker")
    assert probe["httpGet"]["path"] == "/livez"
    assert probe["failureThreshold"] * probe["periodSeconds"] == 300


def test_a_cache_can_be_a_volume_of_the_pod_alone() -> None:
    """If Pod Security refuses hostPath, the claim exists as long as the pod."""
    pod = pods_of(rendered("minimal", cache={"ephemeral": {"size": "50Gi"}}))["workers"]
    (volume,) = (v for v in pod["spec"]["volumes"] if v["name"] == "serve-warm-cache")

    assert volume["ephemeral"]["volumeClaimTemplate"]["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "50Gi"}},
    }


# --- artifacts -----------------------------------------------------------------------------


def test_the_trust_file_is_one_that_is_read(tmp_path: Path) -> None:
    """serve_warm reads the keys, pins, limits and exceptions of the values from the ConfigMap."""
    digest = f"sha256:{'ab' * 32}"
    store = "s3://artifacts/scorer/v14"
    unsigned = [{"store": store, "reason": "a test of ours"}]
    key = {**example("s3-irsa")["trust"]["keys"][0], "deployments": ["Sc*"], "stores": ["s3://*"]}
    limits = {"require": {"source": "*", "builder": 'a"b'}, "rollback": "refuse"}
    found = rendered(
        "s3-irsa",
        trust={
            "pinned": [digest],
            "denied": [digest],
            "unsignedOk": unsigned,
            "keys": [key],
            **limits,
        },
    )
    file = tmp_path / "trust.toml"
    file.write_text(found["ConfigMap", "demo-serve-warm-trust"]["data"]["trust.toml"])

    trust = trust_in(file)

    assert [key.name for key in trust.keys] == ["ci"]
    assert trust.max_age_s == 90 * 86400
    assert (trust.keys[0].deployments, trust.keys[0].stores) == (("Sc*",), ("s3://*",))
    assert dict(trust.require) == limits["require"]
    assert trust.rollback == "refuse"
    assert len(trust.pinned) == len(trust.denied) == 1
    assert [each.store for each in trust.unsigned_ok] == [store]
    copied = found["ConfigMap", "demo-serve-warm-build"]["data"]["trust.toml"]
    assert copied == file.read_text()


def test_replicas_read_trust_and_artifacts_and_write_neither() -> None:
    """Both mounts are read-only. The claim for a build is writable in the Job."""
    claim = {"persistentVolumeClaim": {"claimName": "artifacts"}}
    values = laid_over(example("s3-irsa"), {"artifact": {"volume": claim}})
    del values["artifact"]["store"]
    pods = pods_of(helm_4(values))

    def read_only(pod: dict[str, Any], name: str) -> dict[str, Any]:
        mounts = container(pod, name)["volumeMounts"]
        return {mount["mountPath"]: mount.get("readOnly", False) for mount in mounts}

    worker, build = read_only(pods["workers"], "ray-worker"), read_only(pods["build"], "build")
    sign = read_only(pods["build"], "sign")
    for each in (worker, build):
        assert each["/etc/serve_warm"] is each["/srv/serve_warm/artifacts"] is True
    assert sign["/etc/serve_warm"] is True
    assert sign["/srv/serve_warm/artifacts"] is False
    assert (
        "--publish=file:///srv/serve_warm/artifacts" in container(pods["build"], "sign")["command"]
    )


def test_the_build_command_is_one_that_the_command_line_takes(tmp_path: Path) -> None:
    """The command line knows its options, and Serve accepts its one application."""
    for name in ("s3-irsa", "everything"):
        found = rendered(name)
        pod = pods_of(found)["build"]
        command, then = container(pod, "build")["command"], container(pod, "sign")["command"]
        context = starts.build.make_context("build", command[2:])
        signs = keys.sign.make_context("sign", then[2:])
        data = next(
            m["data"] for (_, n), m in found.items() if n.endswith("-build") and "data" in m
        )
        config = yaml.safe_load(data["serve.yaml"])

        assert command[:2] == ["serve-warm", "build"]
        assert context.params["app"].endswith(".yaml")
        assert str(context.params["key_file"]) == "/etc/serve_warm/round-trip.key"
        assert context.params["unsigned"] is signs.params["unsigned"] is True
        assert context.params["store"] == signs.params["store"]
        assert context.params["image"].startswith("registry.example.com/")
        assert then[:2] == ["serve-warm", "sign"]
        deployments = [d["name"] for a in config["applications"] for d in a["deployments"]]
        assert {*signs.params["deployments"]} <= {*deployments}
        assert signs.params["deployments"]
        # Replicas and the container that signs have the same name of the application.
        for each in (config, serve_config(found)):
            (warming,) = (
                d["user_config"]["warmup"]["application"]
                for a in each["applications"]
                for d in a["deployments"]
                if d["name"] in signs.params["deployments"]
            )
            assert warming == signs.params["application"]
        for fact in ("image", "source_commit", "builder"):
            assert signs.params[fact] == context.params[fact]
        assert list(map(str, signs.params["key_files"])) == ["/run/key/signing.key"]
        assert len(config["applications"]) == 1
        assert _problems(config) == []
    assert context.params["cpu"] == "portable"
    assert signs.params["on_taken"] == "supersede"


def test_the_key_of_the_build_is_one_that_its_user_alone_can_read(tmp_path: Path) -> None:
    """Kubelet lets a group read a Secret, which serve_warm refuses. It accepts the copy."""
    make_signing_key(tmp_path / "ci.key")
    for folder in ("key-secret", "key"):
        (tmp_path / folder).mkdir()
    mounted = tmp_path / "key-secret/signing.key"
    mounted.write_bytes((tmp_path / "ci.key").read_bytes())
    mounted.chmod(0o440)
    command = container(pods_of(rendered("s3-irsa"))["build"], "signing-key")["command"]

    subprocess.run([part.replace("/run/", f"{tmp_path}/") for part in command], check=True)

    copied = tmp_path / "key/signing.key"
    assert stat.S_IMODE(copied.stat().st_mode) == 0o600
    assert load_signing_key(copied).private_bytes_raw()


def test_another_build_is_another_job() -> None:
    """A Job cannot be changed. So its name changes with the artifact, but not for other reasons."""

    def job(**patch: Any) -> str:
        (name,) = [m["metadata"]["name"] for m in of_kind(rendered("everything", **patch), "Job")]
        return name

    assert job() == job(alerts={"minStarts": 7}) == job(readiness={"periodSeconds": 9})
    assert job() != job(image={"tag": "3.1.1"})
    assert job() != job(warmup={"max_level": 1})


def test_a_build_before_the_release_needs_nothing_of_it() -> None:
    """All ConfigMaps and the account that the hook's Job uses are hooks too."""
    found = rendered("s3-irsa")
    (job,) = of_kind(found, "Job")
    hooks = {
        key for key, m in found.items() if "helm.sh/hook" in m["metadata"].get("annotations", {})
    }
    pod = job["spec"]["template"]["spec"]
    used = {("ConfigMap", v["configMap"]["name"]) for v in pod["volumes"] if "configMap" in v}
    used.add(("ServiceAccount", pod["serviceAccountName"]))

    assert used <= hooks
    assert hooks - used == {("Job", job["metadata"]["name"])}


# --- upstream ------------------------------------------------------------------------------


def test_kuberays_own_sample_comes_out_as_it_is() -> None:
    """Names, groups and resources are those of the sample, and no probe is added."""
    values = example("kuberay-sample")
    found = rendered("kuberay-sample")
    cluster = cluster_of(found)
    (group,) = cluster["workerGroupSpecs"]
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    (worker,) = group["template"]["spec"]["containers"]

    assert ("RayService", "rayservice-sample") in found
    assert serve_config(found)["applications"] == values["applications"]
    assert (head["name"], worker["name"]) == ("ray-head", "ray-worker")
    assert head["resources"] == values["head"]["resources"]
    assert worker["resources"] == values["workers"][0]["resources"]
    assert (group["groupName"], group["rayStartParams"]) == ("small-group", {})
    assert [group[key] for key in ("replicas", "minReplicas", "maxReplicas")] == [1, 1, 5]
    for each in (head, worker):
        assert {"readinessProbe", "livenessProbe", "startupProbe", "lifecycle"} & set(each) == set()
        assert each["image"] == f"rayproject/ray:{cluster['rayVersion']}"
