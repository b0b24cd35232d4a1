# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve-warm build` as a process on a running cluster: compositions, code it brings, its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Literal

import pytest
import ray

from serve_warm.trust.keys import write_key_pair

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

COMPOSITION = """
import torch
from ray import serve
from serve_warm import Buckets, Field, WarmupMixin, shape_grid, signed_by


class Doubles(WarmupMixin):
    warmup_trust = signed_by({key!r})

    def __init__(self, *_others):
        self.model = torch.compile(lambda x: x * 2, dynamic=False)

    def warmup_inputs(self):
        return shape_grid(
            self.score, Buckets(batch=[2]), fields={"x": Field(axes=("batch",), dtype="float32")}
        )

    async def score(self, x):
        return self.model(x)


@serve.deployment(ray_actor_options={"num_cpus": 0.5})
class Ranker(Doubles): ...


@serve.deployment(ray_actor_options={"num_cpus": 0.5})
class Retriever(Doubles): ...


app = Ranker.bind(Retriever.bind())
"""


def start_build(
    folder: Path,
    *options: str,
    place: Literal["here", "address"] = "address",
    brings_code: bool = True,
) -> subprocess.Popen[str]:
    write_key_pair(folder / "ci.key")
    key = (folder / "ci.key.pub").read_text()
    (folder / "brought_with_the_build.py").write_text(COMPOSITION.replace("{key!r}", repr(key)))
    there: tuple[str, ...] = ()
    environ = dict(os.environ)
    if place == "address":
        address = ray.get_runtime_context().gcs_address
        there = ("--address", address)
    if place == "address" and brings_code:  # as in `ray job submit --working-dir`
        job = {"runtime_env": {"working_dir": str(folder)}, "metadata": {}}
        environ["RAY_JOB_CONFIG_JSON_ENV_VAR"] = json.dumps(job)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "serve_warm.cli", "build", "brought_with_the_build:app"),
            *("--store", str(folder / "artifacts"), "--key", "ci.key", *there, *options),
        ],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.stress
@pytest.mark.usefixtures("cluster")
def test_each_deployment_of_a_composition_is_built(tmp_path: Path):
    """`--all` builds one after the other, and the job brings the code to the nodes."""
    with start_build(tmp_path, "--all", "--json") as process:
        out, err = process.communicate(timeout=500)

    assert process.returncode == 0, err
    places = [each["statement"].split("/")[1:3] for each in json.loads(out)]
    application = "brought_with_the_build"
    assert places == [[application, "Ranker"], [application, "Retriever"]]
    assert (tmp_path / "artifacts" / "statements" / application / "Retriever").is_dir()


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_a_build_on_a_cluster_that_lacks_the_code_says_how_to_bring_it(tmp_path: Path):
    """Its replicas die of a missing module: one sentence and the command, no coloured traceback."""
    with start_build(tmp_path, "--deployment", "Retriever", brings_code=False) as process:
        _, err = process.communicate(timeout=300)

    address = ray.get_runtime_context().gcs_address
    error, hint = err.splitlines()[-2:]
    assert process.returncode == 1
    assert f"connecting to Ray at {address}" in err
    assert "starting Ray" not in err
    assert error.startswith(
        "error: Retriever did not become ready: its replica cannot import the module "
    )
    assert "'brought_with_the_build'" in error
    assert "--working-dir ." in hint
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert "x1b[" not in err


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("place", "stage"), [("here", "starting Ray"), ("address", "compile")])
def test_a_build_ends_on_sigterm_without_a_stack(
    tmp_path: Path, place: Literal["here", "address"], stage: str
):
    """Ray would print the C++ stack of its driver, but the log of a job needs only the cause."""
    with start_build(tmp_path, "--deployment", "Ranker", place=place) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if stage in line:
                break
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)

    assert process.returncode == 143
    assert "SIGTERM received" not in err
    assert "@ " not in err
    assert err.splitlines()[-1] == "terminated"


def test_a_build_says_what_to_do_where_sockets_of_ray_have_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A path of a socket has at most 107 characters; the temporary folder of a user may be long."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))

    with start_build(tmp_path, "--deployment", "Ranker", place="here") as process:
        _, err = process.communicate(timeout=120)

    assert process.returncode == 1
    assert err.splitlines()[-2].startswith("error: Ray could not start on this machine: ")
    assert err.splitlines()[-1] == (
        "hint: set TMPDIR to a short path with free space, for example /tmp"
    )
