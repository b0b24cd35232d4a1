# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Two layouts of the package share a store: what one built, the other starts from.

`tests/data/before_layout` holds the wheel of the last commit whose modules stood flat. Each test
runs it and today's code by turns, as users do: `serve-warm build`, then a replica on Ray Serve.
That takes minutes. Quick tests load stored artifacts (`data/first_release`, `data/format_1`).
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from processes import HERE, answer_of
from serve_warm.trust.keys import write_key_pair

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = [pytest.mark.stress, pytest.mark.timeout(1800)]

TESTS = Path(__file__).parents[1]
WHEEL = next((TESTS / "data" / "before_layout").glob("*.whl"))


class Machines:
    """Runs builds and starts, each on a machine of its own: no cache is there for the next one."""

    def __init__(self, folder: Path, short: Path) -> None:
        self.folder = folder
        self._short = short
        self._numbers = itertools.count()
        self._releases = {"before": folder / "before", "today": TESTS.parent}
        with zipfile.ZipFile(WHEEL) as archive:
            archive.extractall(self._releases["before"])
        write_key_pair(folder / "key.pem")

    def run(self, release: str, do: str, names: Sequence[str], stores: Path) -> dict[str, Any]:
        """Build or start the applications; return what happened to each."""
        package = self._releases[release]
        machine = self._short / str(next(self._numbers))
        machine.mkdir()
        question = {"do": do, "stores": str(stores), "key": str(self.folder / "key.pem")}
        # Python and Ray look for packages in the current folder before those of PYTHONPATH.
        done: dict[str, Any] = answer_of(
            "layout_process.py",
            {**question, "names": list(names)},
            cwd=machine,
            PYTHONPATH=os.pathsep.join((str(package), str(HERE))),
            TMPDIR=str(machine),
            SERVE_WARM_STATE_DIR=str(machine / "state"),
            LAYOUT_PUBLIC_KEY=str(self.folder / "key.pem.pub"),
            RAY_USAGE_STATS_ENABLED="0",
            RAY_AUTH_MODE="disabled",
        )
        here = package / "serve_warm" / ("cli" if do == "build" else "")
        assert {Path(each["package"]) for each in done.values()} == {here}
        return done


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    short = Path(tempfile.mkdtemp(prefix="sw-"))  # Ray's sockets stand in it
    yield Machines(tmp_path_factory.mktemp("layout"), short)
    shutil.rmtree(short, ignore_errors=True)


@torch.inference_mode()
def eager() -> dict[str, torch.Tensor]:
    """Return the answers of the applications without compiled code."""
    import layout_app

    torch.manual_seed(0)
    deep = layout_app.Deep().eval()
    outer = layout_app.Outer(layout_app.Block().eval()).eval()
    given = torch.linspace(-1, 1, layout_app.ROWS * 8).reshape(layout_app.ROWS, 8)
    found = {"regions": deep(given), "method": torch.sigmoid(given) * 0.5, "nested": outer(given)}
    return {way: out.flatten() for way, out in found.items()}


def check_answers(started: dict[str, Any]) -> None:
    wanted = eager()
    for answers in (each["answers"] for each in started.values()):
        assert answers.keys() == wanted.keys()
        for way, answer in answers.items():
            torch.testing.assert_close(torch.tensor(answer), wanted[way])


APPS = [
    pytest.param(("level2",), id="level 2"),
    pytest.param(("level1", "level3"), id="levels 1 and 3"),
]


@pytest.mark.parametrize("names", APPS)
def test_what_was_built_before_starts_warm_today(
    machines: Machines, names: Sequence[str], tmp_path: Path
):
    """Each input is proven without a compile, by entries of the level that they were built for."""
    machines.run("before", "build", names, tmp_path)

    started = machines.run("today", "start", names, tmp_path)

    for name, each in started.items():
        report = each["report"]
        assert (report["verdict"], report["covered"]["proven"]) == ("full_hit", 3)
        assert (report["after_ready"]["compiles"], report["warmup"]["compiler_processes"]) == (0, 0)
        # At level 1 Dynamo traces, and finds everything in Inductor's cache.
        assert report["warmup"]["fx_misses" if name == "level1" else "compiles"] == 0
        levels = {entry["level"] for entry in report["entries"]}
        assert levels == {"level1": set(), "level2": {2}, "level3": {3}}[name]
    check_answers(started)


@pytest.mark.parametrize("names", APPS)
def test_what_is_built_today_is_right_before(
    machines: Machines, names: Sequence[str], tmp_path: Path
):
    """Replicas that are not updated yet are ready, and answer as eager does."""
    machines.run("today", "build", names, tmp_path)

    started = machines.run("before", "start", names, tmp_path)

    for name, each in started.items():
        report = each["report"]
        proven = (report["verdict"], report["covered"]["proven"])
        assert report["stage"] == "READY"
        assert proven == ("full_hit", 3)
        assert (name, report["after_ready"]["compiles"]) == (name, 0)
    check_answers(started)
