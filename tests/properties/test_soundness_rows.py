# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of `make soundness` that run at level 2 in each build: no stale entry answers a change.

`make soundness` judges all rows, and at level 3 too. These are one row of each kind. Their graphs
are matrix products, for which no C++ is compiled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from models import one_watch  # noqa: F401 - a fixture
from soundness import created, judge, table
from soundness.rows import Group, numbered, on, own, x

pytestmark = pytest.mark.slow

NAMES = (
    "an attribute missing in an object, caught",
    "an attribute missing in the module itself, caught",
    "an attribute missing in a Python module, caught",
    "a dict, unpacked into a list",
    "a dict, list.extend",
    "a dict, the union of dicts",
    "an OrderedDict, str",
    "class attribute",
    "default of a function",
    "functions of one factory, is",
    "isinstance a class of one factory",
    "whether a process group exists",
    "the dtype of autocast on the CPU",
    "torch.Size",
    "Enum",
    "object under an enum",
    *(group.name for group in created.GROUPS),
)


class Other(nn.Parameter):
    pass


def helper(value: float) -> float:
    return value


def is_of_torch(kind: type) -> bool:
    """Ask a class for its names, as peft's DoRA does (`dequantize_module_weight`, 0.21)."""
    return kind.__module__.startswith("torch.") and kind.__name__ == "Parameter"


MORE = (
    numbered(
        "a function of torch's own factory",
        lambda self: float(self.pool(torch.ones(1, 1, 4, 4), 1).shape[-1]),
        own("pool", functional.adaptive_max_pool2d),
        lambda: {"pool": functional.max_pool2d},
    ),
    numbered(
        "a property of torch.Tensor",
        lambda self: float(self.weight.mT.shape[0]),
        on(torch.Tensor, "mT", property(lambda tensor: tensor[:3])),
    ),
    numbered(
        "the module name of a function",
        lambda _: float(len(helper.__module__)),
        on(helper, "__module__", "another.module.of.a.package"),
    ),
    numbered(
        "the names of a class of torch",
        lambda self: 2.0 if is_of_torch(type(self.weight)) else 3.0,
        own("weight", Other(x(4, 4))),
    ),
)
"""Small rows where `make soundness` has larger ones."""


@pytest.mark.parametrize(
    "group",
    [pytest.param(group, id=group.name) for group in (*map(table.GROUPS.get, NAMES), *MORE)],
)
def test_a_change_is_answered_as_by_eager(group: Group, tmp_path: Path):
    """Before the start, and after the replica answered the same call from an entry."""
    built: dict[str, Any] = judge.build(group, 2, tmp_path)
    assert built["refused"] == []
    verdicts = {
        (row.name, when): judge.judge(group, row, when, level=2, built=built, folder=tmp_path)
        for row in group.rows
        for when in row.when
    }
    assert {verdict.value for verdict in verdicts.values()} <= {"right", "level1"}, verdicts
