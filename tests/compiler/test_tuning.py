# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What `max-autotune` has chosen on this CPU is found by other processes, at another path.

At level 1 through an artifact: tests/replica/start/test_cold_warm.py. Kernels of a GPU: tests/gpu.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from processes import answer_of

pytestmark = [
    pytest.mark.stress,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the templates are those of a CPU"),
]

ARGUMENTS = {"mode": "max-autotune-no-cudagraphs"}


def ask(folder: Path, do: str, **others: Any) -> dict[str, Any]:
    question = {"do": do, "folder": str(folder), "arguments": ARGUMENTS, **others}
    # Torch's probes of the CPU say nothing of templates, and take five seconds of a build.
    environ = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "OMP_NUM_THREADS": "1"}
    answer: dict[str, Any] = answer_of("tuned_process.py", question, **environ)
    return answer


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """An entry and a cache directory, moved from where they were built, and what that took."""
    base = tmp_path_factory.mktemp("tuned")
    answer = ask(base / "there", "build", level=2)
    (base / "there").rename(base / "here")
    return base / "here", answer


def test_an_entry_of_level_2_is_not_tuned_again(built: tuple[Path, dict[str, Any]]):
    """Its code is the template that was chosen when it was built."""
    folder, cold = built
    warm = ask(folder, "start", level=2)
    assert len(cold["templates"]) == cold["counts"]["tunings"] == 1
    assert warm["levels"] == [2]
    counts = warm["counts"]
    assert (counts["tunings"], counts["compiles"], counts["compiler_processes"]) == (0, 0, 0)
    assert max(cold["error"], warm["error"]) < 1e-4


def test_another_graph_with_the_same_product_measures_nothing(built: tuple[Path, dict[str, Any]]):
    """The new graph is compiled, but measurements are stored by operands."""
    folder, _ = built
    other = ask(folder, "start", level=1, other=True)
    assert (other["counts"]["compiles"], other["counts"]["fx_misses"]) == (1, 1)
    assert other["counts"]["compiler_processes"] > 0
    assert other["counts"]["tunings"] == 0
    assert other["error"] < 1e-4
