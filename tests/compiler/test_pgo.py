# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The profile of dynamic sizes: its name in each thread and process, and when it is read.

That it travels in an artifact, and what it saves there, is in test_cold_warm.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, os
from concurrent.futures import ThreadPoolExecutor
import torch
from serve_warm.compiler import pgo

# One for all: torch 2.11 crashes when it compiles in a second one.
thread = ThreadPoolExecutor(1)

def compile_in_a_thread(function, *sizes):
    for size in sizes:
        thread.submit(function, torch.zeros(size, 3)).result()

def doubled(function):
    def inner(x):
        return function(x) * 2
    return inner

graphs = []

def counted(graph, inputs):
    graphs.append(1)
    return graph

said = {}
"""


def in_a_process(body: str, directory: Path, **environ: str) -> dict[str, Any]:
    """Run `body` after the program above, and return the `said` that it fills."""
    # From a file: torch tells functions by the contents of theirs.
    path = directory / "program.py"
    path.write_text(PROGRAM + body + "\nprint(json.dumps(said))\n")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TORCH")}
    completed = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={
            **inherited,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
            **environ,
        },
    )
    assert completed.returncode == 0, completed.stderr
    return dict(json.loads(completed.stdout.splitlines()[-1]))


def profiles(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("code_state_*.pkl"))


COMPILED = """
said["why"] = pgo.keep_profile("Scorer")
compile_in_a_thread(torch.compile(doubled(torch.sin), backend=counted), 8, 4)
compile_in_a_thread(torch.compile(torch.nn.ReLU(), backend=counted), 8, 4)
compile_in_a_thread(torch.compile(doubled(doubled(torch.cos)), backend=counted), 8, 4)
said["graphs"] = len(graphs)
"""


@pytest.mark.long
def test_another_process_finds_what_the_profile_says(named: dict[str, Any], tmp_path: Path):
    """Modules and closures have the same name in processes with different hash salts."""
    first = in_a_process(COMPILED, tmp_path, PYTHONHASHSEED="1")
    second = in_a_process(COMPILED, tmp_path, PYTHONHASHSEED="2")

    assert (first["why"], second["why"]) == ("", "")
    # Where closures are no part of a name, the third function has the profile of the first.
    made = 6 if "names" in named else 5
    assert (first["graphs"], second["graphs"]) == (made, 3)
    assert profiles(tmp_path) == ["code_state_serve_warm-Scorer_None_.pkl"]


READ_ANEW = """
def double(x):
    return x * 2

def graphs_made(function=double):
    before = len(graphs)
    compile_in_a_thread(torch.compile(function, backend=counted), 8, 4)
    return len(graphs) - before

caches = os.environ["TORCHINDUCTOR_CACHE_DIR"]
said["without it"] = graphs_made()
pgo.begin_anew()
said["without it, again"] = graphs_made()
pgo.begin_anew()
pgo.keep_profile("Scorer")
said["with it"] = graphs_made()
pgo.begin_anew()
said["with it, again"] = graphs_made()

pgo.begin_anew()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = caches + "-elsewhere"
said["elsewhere"] = graphs_made(lambda x: x + 1)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = caches
pgo.forget_profile()
said["back"] = graphs_made()
"""


@pytest.mark.long
@pytest.mark.slow
def test_the_profile_is_read_anew_from_where_the_caches_are(tmp_path: Path):
    """A compile before the artifact arrived does not prevent a new read of the profile."""
    said = in_a_process(READ_ANEW, tmp_path)

    assert said == {
        "without it": 2,
        "without it, again": 2,
        "with it": 2,
        "with it, again": 1,
        "elsewhere": 2,
        "back": 1,
    }


NAMED = """
import torch._dynamo.pgo
from torch._dynamo.pgo import CodeId

reset = torch._dynamo.pgo.reset_code_state
del torch._dynamo.pgo.reset_code_state
said["why"] = pgo.keep_profile("Scorer")
said["forced"] = torch._dynamo.pgo.get_cache_key() != "mine:None:"
torch._dynamo.pgo.reset_code_state = reset

def holds(value):
    def inner(x):
        return value, x
    return inner

def empty():
    def inner():
        return later
    if False:
        later = 1
    return inner

def name(function):
    return CodeId.make(function.__code__, function.__closure__)

add, take = [lambda x: x + 1, lambda x: x - 1]
pgo.keep_profile("Scorer")
pgo.keep_profile("Scorer")
said["key"] = torch._dynamo.pgo.get_cache_key()
if "closure_hash" in CodeId.__dataclass_fields__:  # in torch 2.11 closures are no part of a name
    said["names"] = {
        "same code": name(holds(add)) == name(holds(add)),
        "other code": name(holds(add)) == name(holds(take)),
        "other value": name(holds(1)) == name(holds("one")),
        "nothing yet": name(empty()) == name(empty()),
        "no closure": name(add) == CodeId.make(add.__code__),
    }
"""


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of a process whose user has set the job id."""
    return in_a_process(NAMED, tmp_path_factory.mktemp("named"), TORCH_COMPILE_JOB_ID="mine")


@pytest.mark.slow
def test_a_job_id_that_is_set_stays(named: dict[str, Any]):
    """A job id set by the user is kept."""
    assert named["key"] == "mine:None:"


@pytest.mark.slow
def test_a_name_tells_what_torchs_own_tells(named: dict[str, Any]):
    """Functions that are closed over make a difference, also two of one line; values make none."""
    if "names" not in named:
        pytest.skip("in this torch closures are no part of a name")

    assert named["names"] == {
        "same code": True,
        "other code": False,
        "other value": True,
        "nothing yet": True,
        "no closure": True,
    }


@pytest.mark.slow
def test_a_torch_without_profiles_is_named(named: dict[str, Any]):
    """If torch lacks the mechanism, nothing changes or fails, and the answer says why."""
    assert named["why"].startswith("torch 2.")
    assert "cannot keep a profile of dynamic sizes" in named["why"]
    assert not named["forced"]
