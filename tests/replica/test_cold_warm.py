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

from machines import (
    HEADERS,
    TOLERANCE,
    Machine,
    Started,
)

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


@pytest.fixture(scope="module")
def from_torch_bytes(machine: Machine, cold: Started) -> Started:
    """A start from what torch's own API gives."""
    return machine.start(load=True, parts=["torch_bytes"], headers="shared")


PLANTED = """
#include <cstdio>
namespace {{
struct Planted {{ Planted() {{ std::fclose(std::fopen("{marker}", "w")); }} }} planted;
}}
"""


@pytest.mark.long
def test_headers_that_an_earlier_process_left_are_in_no_build(
    machine: Machine, cold: Started, tmp_path: Path
):
    """With `headers: own` nothing that another process of the user made is compiled into a kernel.

    Not even where it has the very names that torch looks for.
    """
    node, marker = Machine(tmp_path), tmp_path / "marker"
    node.headers = shutil.copytree(machine.headers, tmp_path / "left")
    planted = {path.name: path for path in node.headers.rglob("*.h")}
    for header in planted.values():
        header.with_name(f"{header.name}.gch").unlink()
        header.write_text(header.read_text() + PLANTED.format(marker=marker))

    built = node.start(load=False, headers="shared", whose_headers="own")

    made = {path.stem for path in (tmp_path / "tmp1").rglob("*.gch")}
    assert made == planted.keys() != set()
    assert built.objects > 0
    assert not marker.exists()


def start_profiled(machine: Machine, batches: list[int], *, pgo: str = "on", **options: Any):
    store = machine.store.with_name("profiled-" + "-".join(map(str, batches)))
    return machine.start(store=store, batches=batches, dynamic=None, pgo=pgo, **options)


@pytest.fixture(scope="module")
def profiled(machine: Machine) -> Started:
    """A start that compiles two batches with `dynamic=None`, and publishes its profile."""
    return start_profiled(machine, [4, 8], load=False, publish=True, headers="shared")


@pytest.fixture(scope="module")
def by_profile(machine: Machine, profiled: Started) -> Started:
    """A start from the published cache directory, the profile in it."""
    return start_profiled(machine, [4, 8], load=True)


@pytest.fixture(scope="module")
def profile_off(machine: Machine, profiled: Started) -> Started:
    """A start from the same that does not look at the profile."""
    return start_profiled(machine, [4, 8], load=True, pgo="off")


@pytest.fixture(scope="module")
def by_profile_of_one(machine: Machine) -> Started:
    """A start from a build in which only a batch of 1 differed."""
    start_profiled(machine, [1, 8], load=False, publish=True, headers="shared")
    return start_profiled(machine, [1, 8], load=True)


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
    assert cold.said["parts"] == ["cache", "torch_bytes"]


def test_a_warm_start_runs_no_compiler(warm: Started):
    """Both counts of compiler runs are 0, both inputs are proven, and torch missed nothing."""
    report = warm.report

    assert (report["verdict"], warm.said["verdict_when_ready"]) == ("full_hit", "full_hit")
    assert warm.objects == report["warmup"]["compiler_processes"] == 0
    assert warm.outputs == 0
    assert (report["warmup"]["fx_misses"], report["warmup"]["fx_bypasses"]) == (0, 0)
    assert report["warmup"]["fx_hits"] == 2
    assert report["warmup"]["compiles"] == 2
    assert report["covered"] == {"expected": 2, "proven": 2}
    assert report["degraded"] == []


def test_a_warm_start_asks_no_isa_probe(warm: Started):
    """The builder's answers came with the artifact: no process is started to ask again."""
    assert warm.isa_probes == 0


@pytest.mark.long
def test_without_the_answers_the_probe_is_asked(cold: Started, unanswered: Started):
    """The same artifact without its answers: still a hit, but the probe runs again.

    Except where torch leaves a mark beside the library that it could load: 2.15 does, and the mark
    is in the artifact with the rest of the cache directory.
    """
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
def test_torchs_own_bytes_compile_every_kernel_again(from_torch_bytes: Started):
    """All of torch's counters say hit, and the compiler runs: the verdict is partial."""
    report = from_torch_bytes.report

    assert report["verdict"] == "partial"
    assert (report["warmup"]["fx_hits"], report["warmup"]["fx_misses"]) == (2, 0)
    assert from_torch_bytes.objects > 0
    assert report["covered"] == {"expected": 2, "proven": 2}


@pytest.mark.parametrize(
    "name", ["cold", "warm", pytest.param("from_torch_bytes", marks=pytest.mark.long)]
)
def test_compiler_runs_are_all_counted(name: str, request: pytest.FixtureRequest):
    """The report's count equals the count on the PATH, for every kind of start."""
    started = request.getfixturevalue(name)

    assert started.report["warmup"]["compiler_processes"] == started.objects


@pytest.mark.long
def test_the_profile_saves_a_graph(profiled: Started, by_profile: Started):
    """The build compiled a static graph and then one for all; a start compiles that one at once."""
    built, report = profiled.report["warmup"], by_profile.report

    assert (built["compiles"], built["recompiles"], built["fx_misses"]) == (2, 1, 2)
    assert (report["warmup"]["compiles"], report["warmup"]["recompiles"]) == (1, 0)
    assert (report["warmup"]["fx_hits"], report["warmup"]["fx_misses"]) == (1, 0)
    assert by_profile.objects == report["warmup"]["compiler_processes"] == 0
    assert report["verdict"] == "full_hit"
    assert report["covered"] == {"expected": 2, "proven": 2}


@pytest.mark.long
def test_a_profile_is_no_burden_to_who_does_not_use_it(profile_off: Started):
    """Both graphs are in the artifact, so a start without the setting misses neither."""
    report = profile_off.report

    assert (report["warmup"]["compiles"], report["warmup"]["fx_misses"]) == (2, 0)
    assert profile_off.objects == 0
    assert report["verdict"] == "full_hit"


@pytest.mark.long
def test_what_the_profile_leads_to_is_in_the_artifact(by_profile_of_one: Started):
    """With batches of 8 and 1 no build needs a graph for all batches, and every such start does."""
    report = by_profile_of_one.report

    assert (report["warmup"]["fx_hits"], report["warmup"]["fx_misses"]) == (2, 0)
    assert by_profile_of_one.objects == 0
    assert report["verdict"] == "full_hit"


@pytest.mark.long
def test_what_a_build_has_tuned_is_not_tuned_at_a_start(tuned: Started, by_tuned: Started):
    """The counter of torch also adds the build's autotuning when it loads a cached graph."""
    cold, warm = tuned.report["warmup"], by_tuned.report["warmup"]

    assert cold["tunings"] == TUNED
    assert cold["compile_s"] > cold["tuning_s"] > 0
    assert (warm["tunings"], warm["tuning_s"], warm["compiles"]) == (0, 0, 1)
    assert (warm["fx_hits"], warm["fx_misses"], by_tuned.report["verdict"]) == (1, 0, "full_hit")


@pytest.mark.long
def test_what_no_build_has_tuned_is_tuned_in_traffic(by_tuned: Started):
    """This shows that the counts of the test above can be above zero."""
    assert by_tuned.report["after_ready"]["tunings"] == TUNED


@pytest.mark.parametrize(
    "name",
    [
        *("cold", "warm"),
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in (
                *("unanswered", "from_torch_bytes", "tuned", "by_tuned"),
                *("profiled", "by_profile", "profile_off", "by_profile_of_one"),
            )
        ),
    ],
)
def test_outputs_are_those_of_the_eager_model(name: str, request: pytest.FixtureRequest):
    """A warm start is no use if it is warm with other numbers."""
    assert request.getfixturevalue(name).said["error"] <= TOLERANCE


def test_no_folder_of_a_known_name_is_used(cold: Started):
    """Another user could have made torch's own: a cold start neither fills nor names it.

    That it is there, and empty, is the doing of torch before the warm-up began.
    """
    temporary = Path(cold.said["cache_directory"]).parents[1]
    headers = temporary / HEADERS
    words = [word for line in cold.command_lines for word in line]

    assert list(temporary.glob("torchinductor_*/*")) == []
    assert not any("torchinductor_" in word for word in words)
    assert any(headers.rglob("*.gch"))
    assert any(word.startswith(str(headers)) for word in words)


def test_the_cache_directory_works_at_another_path(cold: Started, warm: Started):
    """The directory is used at another path than the path of its build."""
    built, used = Path(cold.said["cache_directory"]), Path(warm.said["cache_directory"])

    assert built != used
    assert built.parts[-3] != used.parts[-3]
    assert any(used.rglob("*.so"))
