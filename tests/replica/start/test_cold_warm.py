# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Cold against warm, with Inductor and a C++ compiler, each start in a fresh process.

One process compiles and publishes; others start from what it published, in directories of their
own. Compiler runs are counted twice: by the package, and by a `g++` that stands before the real
one on the PATH and writes its command lines down.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from machines import HEADERS, TOLERANCE, Machine, Started

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the model is compiled for the CPU"),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def cold(machine: Machine) -> Started:
    """The start that compiles everything, and publishes it."""
    return machine.start(load=False, publish=True)


@pytest.fixture(scope="module")
def warm(machine: Machine, cold: Started) -> Started:
    """A start from the published cache directory."""
    return machine.start(load=True)


@pytest.fixture(scope="module")
def unanswered(machine: Machine, cold: Started) -> Started:
    """A start from an artifact without the answers of the ISA probe; then an undeclared batch."""
    store = Path(f"{machine.store}-without-answers")
    return machine.start(store=store, load=True, traffic=3)


PLANTED = """
#include <cstdio>
namespace {{
struct Planted {{ Planted() {{ std::fclose(std::fopen("{marker}", "w")); }} }} planted;
}}
"""


@pytest.mark.stress
@pytest.mark.long
def test_headers_that_an_earlier_process_left_are_in_no_build(
    machine: Machine, cold: Started, tmp_path: Path
):
    """Nothing that another process of the user made is compiled into a kernel of a build."""
    node, marker = Machine(tmp_path), tmp_path / "marker"
    node.headers = shutil.copytree(machine.headers, tmp_path / "left")
    planted = {path.name: path for path in node.headers.rglob("*.h")}
    for header in planted.values():
        header.with_name(f"{header.name}.gch").unlink()
        header.write_text(header.read_text() + PLANTED.format(marker=marker))
    built = node.start(load=False, headers="shared", builds=True)
    made = {path.stem for path in (tmp_path / "tmp1").rglob("*.gch")}
    assert made == planted.keys() != set()
    assert built.objects > 0
    assert not marker.exists()


TUNED = 3 if torch.__version__.startswith("2.11.") else 1
"""The number of tuned products of the model, which has three. torch 2.11 tries both `addmm` and
`bias_addmm` for a layer with a bias; torch 2.13 and 2.15 have one way."""


def start_tuned(machine: Machine, **options: Any) -> Started:
    chosen: dict[str, Any] = {"mode": "max-autotune-no-cudagraphs", "batches": [8]}
    return machine.start(store=machine.store.with_name("tuned"), **chosen, **options)


@pytest.fixture(scope="module")
def tuned(machine: Machine) -> Started:
    """A start that autotunes templates, and publishes the results."""
    return start_tuned(machine, load=False, publish=True, headers="shared")


@pytest.fixture(scope="module")
def by_tuned(machine: Machine, tuned: Started) -> Started:
    """A start from that, and then a batch for which nothing was chosen."""
    return start_tuned(machine, load=True, traffic=3)


@pytest.mark.long
def test_the_control_runs_the_compiler(cold: Started):
    """Without an artifact the same program compiles, so the tests below prove something."""
    report = cold.report
    assert cold.outputs >= cold.objects > 0
    assert report["verdict"] == "off"
    assert report["warmup"]["compiler_processes"] > 2
    assert report["warmup"]["fx_misses"] == 2
    assert cold.isa_probes > 0
    assert report["covered"] == {"expected": 2, "proven": 2}
    assert cold.said["parts"] == ["cache"]


def test_compiler_runs_of_a_cold_start_are_all_counted(cold: Started):
    """The report's count equals the count on the PATH."""
    assert cold.report["warmup"]["compiler_processes"] == cold.objects


def test_a_warm_start_runs_no_compiler(warm: Started):
    """Nor torch's probe of the CPU: the builder's answers came with the artifact."""
    report = warm.report
    assert warm.isa_probes == 0
    assert (report["verdict"], warm.said["verdict_when_ready"]) == ("full_hit", "full_hit")
    assert warm.objects == report["warmup"]["compiler_processes"] == 0
    assert warm.outputs == 0
    assert (report["warmup"]["fx_misses"], report["warmup"]["fx_bypasses"]) == (0, 0)
    assert report["warmup"]["fx_hits"] == 2
    assert report["warmup"]["compiles"] == 2
    assert report["covered"] == {"expected": 2, "proven": 2}
    assert report["degraded"] == []


@pytest.mark.stress
@pytest.mark.long
def test_without_the_answers_the_probe_is_asked(cold: Started, unanswered: Started):
    """The same artifact without its answers: still a hit, but the probe runs again."""
    marked = any(Path(cold.said["cache_directory"]).rglob("*.load_ok"))
    assert unanswered.report["verdict"] == "full_hit"
    assert (unanswered.isa_probes == 0) is marked
    assert unanswered.report["warmup"]["compiler_processes"] == 0


@pytest.mark.long
def test_what_is_not_in_the_artifact_compiles_in_traffic(unanswered: Started):
    """A warm start takes nothing away from a cold compile later, headers included."""
    after_ready = unanswered.report["after_ready"]
    assert (after_ready["compiles"], after_ready["fx_misses"]) == (1, 1)
    assert after_ready["compiler_processes"] == unanswered.objects > 0


@pytest.mark.long
def test_what_a_build_has_tuned_is_not_tuned_at_a_start(tuned: Started, by_tuned: Started):
    """The counter of torch also adds the build's autotuning when it loads a cached graph."""
    cold, warm = tuned.report["warmup"], by_tuned.report["warmup"]
    assert cold["tunings"] == TUNED
    assert cold["compile_s"] > cold["tuning_s"] > 0
    assert (warm["tunings"], warm["tuning_s"], warm["compiles"]) == (0, 0, 1)
    assert (warm["fx_hits"], warm["fx_misses"], by_tuned.report["verdict"]) == (1, 0, "full_hit")
    # The counts of this start can be above zero: no build has tuned the batch in its traffic.
    assert by_tuned.report["after_ready"]["tunings"] == TUNED


@pytest.mark.parametrize(
    "name",
    [
        *("cold", "warm"),
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("unanswered", "tuned", "by_tuned")
        ),
    ],
)
def test_outputs_are_those_of_the_eager_model(name: str, request: pytest.FixtureRequest):
    """A warm start is no use if it is warm with other numbers."""
    assert request.getfixturevalue(name).said["error"] <= TOLERANCE


def test_no_folder_of_a_known_name_is_used(cold: Started):
    """Another user could have made torch's own: a cold start neither fills nor names it."""
    temporary = Path(cold.said["cache_directory"]).parents[1]
    headers = temporary / HEADERS
    words = [word for line in cold.command_lines for word in line]
    assert list(temporary.glob("torchinductor_*/*")) == []
    assert not any("torchinductor_" in word for word in words)
    assert any(headers.rglob("*.gch"))
    assert any(word.startswith(str(headers)) for word in words)


def test_the_cache_directory_works_at_another_path(cold: Started, warm: Started):
    built, used = Path(cold.said["cache_directory"]), Path(warm.said["cache_directory"])
    assert built != used
    assert built.parts[-3] != used.parts[-3]
    assert any(used.rglob("*.so"))
