# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which vector ISAs of the CPU are probed, and when."""

from __future__ import annotations

import json
import platform
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from processes import run_to_end
from serve_warm.compiler.cpu_target import ProbedOnDemand


class Isa:
    """A vector ISA that counts its probes."""

    def __init__(self, name: str, *, works: bool = True, probe_s: float = 0.0) -> None:
        self.name, self._works, self._probe_s = name, works, probe_s
        self.probes = 0

    def __bool__(self) -> bool:
        self.probes += 1
        time.sleep(self._probe_s)
        return self._works


def isas(*works: bool) -> list[Isa]:
    return [Isa(str(number), works=each) for number, each in enumerate(works)]


@pytest.mark.parametrize(
    ("use", "probes"),
    [
        (lambda found: found[0], [1, 1, 0, 0]),
        (bool, [1, 1, 0, 0]),
        (lambda found: next(each for each in found if each.name == "2"), [1, 1, 1, 0]),
        (len, [1, 1, 1, 1]),
        (lambda found: found[-1], [1, 1, 1, 1]),
        (lambda found: found[:1], [1, 1, 1, 1]),
    ],
    ids=["first", "any", "one that is named", "number", "last", "slice"],
)
def test_only_what_somebody_reaches_is_probed(use: Any, probes: list[int]):
    """Torch takes the first one, or loops until one has the wanted width."""
    known = isas(False, True, True, True)
    use(ProbedOnDemand(known))
    assert [each.probes for each in known] == probes


def test_those_that_do_not_work_are_left_out():
    known = isas(False, True, False, True)
    assert list(ProbedOnDemand(known)) == [known[1], known[3]]
    assert not ProbedOnDemand(isas(False, False))
    with pytest.raises(IndexError):
        ProbedOnDemand([])[0]


def test_threads_wait_for_one_probe():
    """A probe compiles, and changes the flags of its ISA until it ends."""
    isa = Isa("slow", probe_s=0.2)
    found = ProbedOnDemand([isa])
    together = threading.Barrier(4)

    def first(_: int) -> Any:
        together.wait()
        return found[0]

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(first, range(4))) == {isa}
    assert isa.probes == 1


ASKED = """
import json, sys
from torch._inductor import codecache, cpu_vec_isa
asked = []

def check_build(isa, code):
    asked.append(str(isa))
    return True

cpu_vec_isa.VecISA.check_build = check_build
if "stock" not in sys.argv:
    from serve_warm.compiler.cpu_target import isa_checks
    isa_checks()
    if "ahead" in sys.argv:
        isa_checks().probe_ahead()
        isa_checks().end_probe()
        assert asked
picked = cpu_vec_isa.pick_vec_isa()
found = [str(picked), picked.build_arch_flags(), [*asked]]
print(json.dumps([*found, [str(each) for each in cpu_vec_isa.valid_vec_isa_list()]]))
"""


def asked(how: str) -> Any:
    done = run_to_end([sys.executable, "-c", ASKED, how])
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="torch knows one ISA of this CPU")
def test_torch_picks_the_same_isa_with_fewer_probes():
    """In a thread before, too. Who wants all ISAs gets them all."""
    picked, flags, all_asked, all_isas = asked("stock")
    for how in ("on demand", "ahead"):
        found = asked(how)
        assert found[:2] == [picked, flags]
        assert found[2] == [each for each in all_asked if each == picked]
        assert found[3] == all_isas
