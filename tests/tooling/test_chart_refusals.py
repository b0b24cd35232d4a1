# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Values that the Helm chart refuses: in both engines, the message names the key and the fix.

Without the refusal, a manifest would be applied that hangs, or does something unintended.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from artifacts import new_key
from charts import CHART, ENGINES, Refused, example, helm_3, laid_over
from serve_warm.config import FORMER, REMOVED
from weak_keys import not_canonical, pem_of, small_order

MINIMAL = example("minimal")
BUCKET = {"artifact": {"store": "s3://artifacts/scorer"}}
MISTAKES = yaml.safe_load((Path(__file__).parents[1] / "data" / "chart_mistakes.yaml").read_text())


def values_of(mistake: dict[str, Any]) -> dict[str, Any]:
    values = laid_over(example(mistake.get("base", "minimal")), mistake.get("values", {}))
    if "deployment" in mistake:
        (application,) = values["applications"]
        (only,) = application["deployments"]
        application["deployments"] = [{**only, **mistake["deployment"]}]
    if "worker" in mistake:
        limits = {"limits": {"cpu": "2", "memory": "4Gi"}}
        values["workers"] = [{"name": "workers", "resources": limits, **mistake["worker"]}]
    return values


def problems_in(text: str) -> list[str]:
    """Return the problems that an engine's message lists."""
    return [line for line in re.findall(r"(?m)^ *- (.*)", text) if "allOf" not in line]


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake["name"])
def test_a_mistake_is_refused_with_its_key_and_what_to_do(
    mistake: dict[str, Any], engine: str
) -> None:
    """Nothing is rendered. The text has the key as the user wrote it, and the fix, once."""
    with pytest.raises(Refused) as refused:
        ENGINES[engine](values_of(mistake))

    text, key = str(refused.value), mistake["key"]
    # The engines write keys of the schema differently: a.0.b in Helm 3, '/a/0/b' in Helm 4.
    named = [re.escape(key), re.escape("/" + key.replace(".", "/"))]
    assert re.search(rf"(?<![\w.\]])({'|'.join(named)})(?![\w\[])", text), text
    assert mistake["fix"] in text, text
    assert len(problems_in(text)) == 1, text


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_former_setting_is_refused_with_its_new_name(engine: str) -> None:
    """The settings of all deployments and those of one get the advice that a replica gives."""
    old = dict.fromkeys((*FORMER, *REMOVED), "hush")
    one = {**ONE, "user_config": {"warmup": old}}

    with pytest.raises(Refused) as refused:
        ENGINES[engine](values_of({"values": {"warmup": old}, "deployment": one}))

    advice = {name: f"not a setting; did you mean {new}?" for name, new in FORMER.items()}
    advice |= dict.fromkeys(REMOVED, "no longer a setting; delete it")
    places = ("warmup", "applications[0].deployments[0].user_config.warmup")
    expected = {f"{place}.{name}: {said}" for place in places for name, said in advice.items()}
    assert set(problems_in(str(refused.value))) == expected
    assert "hush" not in str(refused.value)


ONE = {"name": "Scorer", "ray_actor_options": {"num_cpus": 1}, "user_config": {"warmup": {}}}
PEM = example("s3-irsa")["trust"]["keys"][0]["pem"]
FINE: dict[str, dict[str, Any]] = {
    "a registry with a port": {"values": {"image": {"repository": "registry:5000/scorer"}}},
    "a key with words before it": {
        "values": {"trust": {"keys": [{"name": "a", "pem": f"a\n{PEM}"}]}}
    },
    "a folder below /tmp": {"values": {"writableDirs": ["/tmp/x", "/runs", "/var/cache/serve"]}},
    "a cache above the limit of all deployments": {
        "deployment": {"user_config": {"warmup": {"node_cache_max_bytes": 2**30}}},
        "values": {"cache": {"emptyDir": {"sizeLimit": "1025Mi"}}},
    },
    "a volume beside the chart's": {
        "values": {
            "extraVolumes": [{"name": "shm", "emptyDir": {}}, {"name": "key", "emptyDir": {}}],
            "extraVolumeMounts": [
                {"name": "shm", "mountPath": "/dev/shm"},
                {"name": "key", "mountPath": "/tmp/key"},
                {"name": "key", "mountPath": "/srv"},
            ],
        }
    },
    "half a CPU, four times": {
        "deployment": {"num_replicas": 4, "ray_actor_options": {"num_cpus": 0.5}},
        "values": {"readiness": {"expect": "min=4"}},
    },
    "no CPU at all": {"deployment": {"num_replicas": 9, "ray_actor_options": {"num_cpus": 0}}},
    "scaled to nothing": {
        "deployment": {"autoscaling_config": {"min_replicas": 0, "max_replicas": 2}},
        "values": {"applications": [{"name": "a", "import_path": "a:b", "deployments": [ONE]}]},
    },
    "replicas up to as many as there may be": {
        "values": {"autoscaling": {"enabled": True}},
        "worker": {"replicas": 0, "minReplicas": 0, "maxReplicas": 2},
        "deployment": {"num_replicas": 4},
    },
    "CPUs of the request alone": {"worker": {"resources": {"requests": {"cpu": "1500m"}}}},
    "CPUs of the node": {
        "worker": {"resources": {}},
        "deployment": {"num_replicas": 64, "ray_actor_options": {"memory": 2**36}},
    },
    "more GPUs told than there are": {
        "worker": {"rayStartParams": {"num-gpus": "2", "num-cpus": "2"}, "resources": {}},
        "deployment": {"num_replicas": 4, "ray_actor_options": {"num_cpus": 0.5, "num_gpus": 0.5}},
    },
    "a part of a GPU": {
        "worker": {"resources": {"limits": {"cpu": "2", "nvidia.com/mig-1g.18gb": 1}}},
        "deployment": {"ray_actor_options": {"num_gpus": 1}},
    },
    "what Ray itself makes of a node": {
        "deployment": {"ray_actor_options": {"resources": {"accelerator_type:H100": 0.001}}}
    },
    "a metrics port that nobody scrapes": {
        "worker": {"rayStartParams": {"metrics-export-port": "9090"}}
    },
    "a module with a hyphen": {
        "values": {
            "applications": [{"name": "a", "import_path": "my-app.numpy:app", "deployments": [ONE]}]
        },
        "worker": {},
    },
    "no time at all to drain": {
        "worker": {"env": [{"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": "0"}]},
        "values": {"terminationGracePeriodSeconds": 25},
    },
}
"""Valid values that are near to a mistake."""


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("name", FINE)
def test_what_is_near_to_a_mistake_is_rendered(name: str, engine: str) -> None:
    """A check refuses only values that cannot work."""
    assert ENGINES[engine](values_of(FINE[name]))


def test_all_mistakes_are_said_at_once() -> None:
    values = laid_over(
        MINIMAL, {**BUCKET, "image": {"tag": "latest"}, "networkPolicy": {"enabled": True}}
    )

    for render in ENGINES.values():
        with pytest.raises(Refused) as refused:
            render(values)
        for key in ("image.tag: ", "trust: ", "networkPolicy.operatorNamespace: "):
            assert f"- {key}" in str(refused.value)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_every_key_that_anyone_can_sign_for_is_refused(engine: str) -> None:
    """The chart names them by patterns of base64, so all of them are tried, and many good keys."""
    weak = {*small_order(), *not_canonical()}
    good = {new_key().public_key().public_bytes_raw() for _ in range(300)}
    keys = [{"name": raw.hex(), "pem": pem_of(raw)} for raw in sorted(weak | good)]

    with pytest.raises(Refused) as refused:
        ENGINES[engine](laid_over(MINIMAL, {"trust": {"keys": keys}}))

    found = re.findall(r"trust\.keys\[(\d+)\]\.pem: anyone can sign", str(refused.value))
    assert {keys[int(index)]["name"] for index in found} == {raw.hex() for raw in weak}
    assert len(problems_in(str(refused.value))) == len(weak) == 48


def test_a_credential_in_an_address_is_not_repeated() -> None:
    """The refusal may end up in the log of a pipeline."""
    values = laid_over(MINIMAL, {"artifact": {"store": "s3://key:hunter2@b/p"}})

    for render in ENGINES.values():
        with pytest.raises(Refused) as refused:
            render(values)
        assert "hunter2" not in str(refused.value)


def test_image_volumes_want_a_kubernetes_that_has_them() -> None:
    """Before 1.31 the field would be dropped and the pod would start without its artifact."""
    with pytest.raises(Refused, match=r"artifact\.volume\.image: .*persistentVolumeClaim"):
        helm_3(example("image-volume"), kube_version="v1.30.0")

    assert helm_3(example("image-volume"), kube_version="v1.31.0")


def test_a_kubernetes_without_native_sidecars_is_refused() -> None:
    """The node server would be an ordinary init container, which never ends."""
    with pytest.raises(Refused, match=r"kubeVersion: >=1\.29"):
        helm_3(MINIMAL, kube_version="v1.28.0")


MAY_GO = re.compile(
    r"(nodeServer|head)\.(resources|rayStartParams)\b|(pod|container)SecurityContext\.|"
    r"monitoring\..*(labels|annotations)"
)
"""Defaults that can be missing without breaking the rendered manifests."""


def test_a_key_with_nothing_behind_it_is_refused() -> None:
    """YAML reads it as null, which removes a default, so the schema requires such keys."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    free = []

    def walk(values: dict[str, Any], of: dict[str, Any], above: str) -> None:
        of = schema["definitions"][of["$ref"].rpartition("/")[2]] if "$ref" in of else of
        for key, value in values.items():
            path = f"{above}{key}"
            if value and key not in of.get("required", ()) and not MAY_GO.search(path):
                free.append(path)
            if isinstance(value, dict):
                walk(value, of.get("properties", {}).get(key, {}), f"{path}.")

    walk(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "")

    assert free == []
