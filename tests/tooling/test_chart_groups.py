# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Different groups of workers in the Helm chart: their pods, and a build Job for each kind."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

import charts
from charts import ENGINES, cluster_of, example, helm_4, laid_over, of_kind, pods_of

GROUPS = "gpu-groups"


@pytest.fixture(name="found", scope="module")
def found_fixture() -> charts.Manifests:
    return helm_4(example(GROUPS))


def group_of(found: charts.Manifests, name: str) -> dict[str, Any]:
    (group,) = (g for g in cluster_of(found)["workerGroupSpecs"] if g["groupName"] == name)
    return dict(group)


def job_of(found: charts.Manifests, name: str) -> dict[str, Any]:
    """Return the pod of the Job that builds for a group."""
    prefix = f"demo-serve-warm-build-{name}-"
    (pod,) = (pod for job, pod in pods_of(found).items() if job.startswith(prefix))
    return dict(pod["spec"])


def named(pod: dict[str, Any], name: str) -> dict[str, Any]:
    every = [*pod["initContainers"], *pod["containers"]]
    (found,) = (each for each in every if each["name"] == name)
    return dict(found)


# --- pods ----------------------------------------------------------------------------------


def test_a_group_has_what_it_says_and_others_have_not(found: charts.Manifests) -> None:
    """One group has the given fields of KubeRay and of pods, and the other has the defaults."""
    h100, l4, hosts = (group_of(found, name) for name in ("h100", "l4", "hosts"))
    pod, other = h100["template"]["spec"], l4["template"]["spec"]

    assert h100["idleTimeoutSeconds"] == 900
    assert hosts["numOfHosts"] == 4
    assert {"idleTimeoutSeconds", "numOfHosts"} & set(l4) == set()
    assert pod["schedulerName"] == "volcano"
    assert pod["serviceAccountName"] == "captions-h100"
    assert pod["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "one-h100"}]
    assert {"schedulerName", "resourceClaims", "tolerations", "affinity"} & set(other) == set()
    assert other["serviceAccountName"] == "demo-serve-warm"
    assert named(pod, "ray-worker")["envFrom"] == [{"configMapRef": {"name": "captions-h100"}}]
    assert "envFrom" not in named(other, "ray-worker")
    weights = {"name": "weights", "mountPath": "/weights", "readOnly": True}
    assert weights in named(pod, "ray-worker")["volumeMounts"]
    assert "weights" not in {volume["name"] for volume in other["volumes"]}


def test_the_head_is_spread_and_has_a_runtime(found: charts.Manifests) -> None:
    """Settings that place pods work for the head too."""
    head = cluster_of(found)["headGroupSpec"]["template"]["spec"]

    assert head["runtimeClassName"] == "gvisor"
    assert head["schedulerName"] == "default-scheduler"
    assert head["topologySpreadConstraints"][0]["topologyKey"] == "topology.kubernetes.io/zone"


def test_ray_stays_the_first_container_and_its_node_server_the_last_to_begin(
    found: charts.Manifests,
) -> None:
    """KubeRay expects Ray in the first container. Weights are fetched into private folders."""
    pod = group_of(found, "h100")["template"]["spec"]

    assert [c["name"] for c in pod["containers"]] == ["ray-worker", "gpu-metrics"]
    begun = [c["name"] for c in pod["initContainers"]]
    assert begun == ["serve-warm-folders", "weights", "serve-warm-node"]


def test_an_image_of_a_group_is_all_of_its_pod_and_build(found: charts.Manifests) -> None:
    """All containers of the group and of its Job run this image, and the build gets its name."""
    image = "registry.example.com/captioner-l4:2.3.0"
    pod, job = group_of(found, "l4")["template"]["spec"], job_of(found, "l4")

    for spec in (pod, job):
        assert {c["image"] for c in [*spec["initContainers"], *spec["containers"]]} == {image}
    assert f"--image={image}" in named(job, "build")["command"]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, "r.example.com/a:1@sha256:" + "0" * 64),
        ({"repository": "r.example.com/b"}, "r.example.com/b:1@sha256:" + "0" * 64),
        ({"tag": "2"}, "r.example.com/a:2"),
        ({"digest": "sha256:" + "1" * 64}, "r.example.com/a@sha256:" + "1" * 64),
    ],
)
def test_a_tag_of_a_group_is_not_put_before_the_digest_of_all(
    own: dict[str, str], expected: str
) -> None:
    """With the global digest, the group's own tag would have no effect."""
    image = {"repository": "r.example.com/a", "tag": "1", "digest": f"sha256:{'0' * 64}"}
    workers = [{**example("s3-irsa")["workers"][0], "image": own}]
    values = laid_over(example("minimal"), {"image": image, "workers": workers})

    assert named(pods_of(helm_4(values))["workers"]["spec"], "ray-worker")["image"] == expected


def test_containers_of_ones_own_have_the_rights_of_ray(found: charts.Manifests) -> None:
    """Image and rights are filled in if missing. `false` counts as a value."""
    pod = group_of(found, "h100")["template"]["spec"]
    worker = {**example(GROUPS)["workers"][0]}
    worker["sidecars"] = [{"name": "a", "securityContext": {"readOnlyRootFilesystem": False}}]
    values = laid_over(example(GROUPS), {"workers": [worker, *example(GROUPS)["workers"][1:]]})
    loose = named(group_of(helm_4(values), "h100")["template"]["spec"], "a")

    rights = named(pod, "ray-worker")["securityContext"]
    assert named(pod, "weights")["securityContext"] == rights
    assert named(pod, "weights")["image"] == named(pod, "ray-worker")["image"]
    assert named(pod, "gpu-metrics")["securityContext"] == {**rights, "runAsUser": 65534}
    assert named(pod, "gpu-metrics")["image"] == "registry.example.com/gpu-metrics:1.0"
    assert loose["securityContext"] == {**rights, "readOnlyRootFilesystem": False}


# --- a Job for each ------------------------------------------------------------------------

PLACED = ("nodeSelector", "tolerations", "affinity", "runtimeClassName", "schedulerName")


@pytest.mark.parametrize("name", ["h100", "l4"])
def test_each_job_runs_where_its_group_runs_and_as_it(found: charts.Manifests, name: str) -> None:
    """Nodes, claims, resources and the user's init containers are those of the group."""
    pod, job = group_of(found, name)["template"]["spec"], job_of(found, name)
    worker, build = named(pod, "ray-worker"), named(job, "build")

    for field in (*PLACED, "resourceClaims", "priorityClassName"):
        assert job.get(field) == pod.get(field), field
    assert build["resources"] == worker["resources"]
    assert build.get("envFrom") == worker.get("envFrom")
    before = {"serve-warm-folders", "serve-warm-node"}
    own = [c for c in pod["initContainers"] if c["name"] not in before]
    assert [c for c in job["initContainers"] if c["name"] in {o["name"] for o in own}] == own


def test_only_the_groups_that_are_named_have_a_job(found: charts.Manifests) -> None:
    """Only groups in `build.groups` get a Job. All Jobs use the same application."""
    jobs = of_kind(found, "Job")
    mounted = {
        volume["configMap"]["name"]
        for job in jobs
        for volume in job["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "build"
    }

    names = [re.sub(r"-[0-9a-f]{8}$", "", job["metadata"]["name"]) for job in jobs]
    assert names == ["demo-serve-warm-build-h100", "demo-serve-warm-build-l4"]
    assert mounted == {"demo-serve-warm-build"}
    assert ("ConfigMap", "demo-serve-warm-build") in found


def test_a_variable_of_the_build_wins_and_what_signs_has_none_of_the_group(
    found: charts.Manifests,
) -> None:
    """The build runs like a replica of the group. The container with the key gets no variables."""
    job = job_of(found, "l4")
    variables = [e for e in named(job, "build")["env"] if e["name"] == "CAPTIONS_BATCH"]
    signs = named(job_of(found, "h100"), "sign")

    assert variables == [{"name": "CAPTIONS_BATCH", "value": "8"}]
    assert "envFrom" not in signs
    assert "/weights" not in {mount["mountPath"] for mount in signs["volumeMounts"]}


@pytest.mark.parametrize("when", ["before", "beside"])
def test_the_name_of_a_job_is_one_that_its_pods_can_have_as_a_label(when: str) -> None:
    """A label has at most 63 characters. Long names still differ between groups."""
    groups = [f"{'g' * 36}-{n}" for n in range(3)]
    (worker,) = example("s3-irsa")["workers"]
    values = laid_over(
        example("s3-irsa"),
        {
            "fullnameOverride": "n" * 47,
            "workers": [{**worker, "name": name} for name in groups],
            "build": {"groups": groups, "when": when},
        },
    )

    for render in ENGINES.values():
        names = {job["metadata"]["name"] for job in of_kind(render(values), "Job")}
        assert len(names) == 3
        assert max(map(len, names)) <= 63


def test_groups_of_one_kind_need_one_job_and_nothing_said() -> None:
    """Spot nodes differ only by a taint, so the same artifact fits them."""
    (worker,) = example("s3-irsa")["workers"]
    spot = {**worker, "name": "spot", "tolerations": [{"key": "spot", "operator": "Exists"}]}
    values = laid_over(example("s3-irsa"), {"workers": [worker, spot]})

    (job,) = of_kind(helm_4(values), "Job")
    assert job["metadata"]["name"] == "demo-serve-warm-build"


def test_a_build_passes_over_a_group_that_cannot_hold_what_it_builds() -> None:
    """The Job does not simply take the first group."""
    values = example(GROUPS)
    h100, l4, hosts = values["workers"]
    values["workers"] = [hosts, l4]
    values["build"]["groups"] = []
    values["applications"][0]["deployments"][0]["autoscaling_config"] = {"max_replicas": 1}

    (job,) = of_kind(helm_4(values), "Job")
    assert job["spec"]["template"]["spec"]["nodeSelector"] == l4["nodeSelector"]
    assert h100["name"] not in job["metadata"]["name"]


# --- Kueue ---------------------------------------------------------------------------------

QUEUE = "kueue.x-k8s.io/queue-name"


def test_only_what_kueue_reads_has_its_label() -> None:
    """The RayService and the Job name a queue; no pod, ConfigMap or account does."""
    found = helm_4(example("kueue"))
    queues = {kind: m["metadata"].get("labels", {}).get(QUEUE) for (kind, _), m in found.items()}

    assert {kind: queue for kind, queue in queues.items() if queue} == {
        "RayService": "serving",
        "Job": "builds",
    }
    assert yaml.safe_dump(list(found.values())).count("kueue.x-k8s.io") == 2


# --- the end of a worker -------------------------------------------------------------------

DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"


def drains(found: charts.Manifests, name: str = "workers") -> list[str]:
    worker = named(group_of(found, name)["template"]["spec"], "ray-worker")
    return [each["value"] for each in worker["env"] if each["name"] == DRAIN]


def test_ray_drains_a_worker_for_as_long_as_its_replicas_may_take(found: charts.Manifests) -> None:
    """Ray's default of 30 s would interrupt a longer shutdown. The user's own variable is kept."""
    own = laid_over(example(GROUPS), {"env": [{"name": DRAIN, "value": "50"}]})

    assert drains(found, "h100") == ["45"]
    assert drains(helm_4(own), "h100") == ["50"]
    assert drains(helm_4(example("minimal"))) == []
