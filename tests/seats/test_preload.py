# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Seats without Ray: what a worker imports, what a replica sets right, and who keeps how many."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from processes import answer_of

IMPORTS = ("torch", "serve_warm.precompile.compiled", "serve_warm.replica.start.stages")
"""What a seat of a replica at level 3 imports, but for Ray's own modules."""


@pytest.fixture
def process(tmp_path: Path) -> Any:
    """Start a process of seat_process.py with a folder of its own for seats."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "tmp").mkdir(mode=0o700)

    def start(**question: Any) -> Any:
        question = {"seat": True, "imports": [], **question}
        environ = {"TMPDIR": str(tmp_path / "tmp"), **question.pop("own_environ", {})}
        return answer_of("seat_process.py", question, str(tmp_path / "modules"), **environ)

    def module(name: str, source: str) -> str:
        (tmp_path / "modules" / f"{name}.py").write_text(source)
        return name

    start.module = module
    start.tmp = tmp_path / "tmp"
    return start


# The same as a start without a seat -------------------------------------------------------------
@pytest.mark.long
def test_a_start_on_a_seat_is_the_same_factor_by_factor(process: Any):
    """Fingerprint, thread pools, device and random numbers are equal, with any thread count."""
    source = "import random, torch\nrandom.seed(7)\ntorch.manual_seed(7)\n"
    seeds = process.module("app_with_seeds", source)
    imports = [seeds, *IMPORTS]
    questions = [
        {"seat": False, "own_environ": {"OMP_NUM_THREADS": "1"}},
        {"omp": "1", "omp_of_ticket": "1"},
        {"omp": "1", "omp_of_ticket": None},
        {"omp": "1", "omp_of_ticket": "2"},
    ]

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda q: process(imports=imports, facts=True, **q), questions))

    plain, *seats = answers
    assert plain["use"]["miss"] == "no_hook"
    assert plain["loaded"] == []
    assert plain["facts"]["fingerprint"]["app"]["threads"] == "1"
    for seat in seats:
        assert seat["use"]["hit"], seat["use"]
        assert seat["loaded"] == imports
        assert seat["facts"] == plain["facts"]


SETS_MODES = """
import torch
torch.set_flush_denormal(True)
torch.set_default_device("meta")
torch.set_grad_enabled(False)
torch.set_autocast_enabled("cpu", True)
torch.set_autocast_dtype("cpu", torch.float16)
torch.set_autocast_cache_enabled(False)
"""


@pytest.mark.long
@pytest.mark.parametrize("more", ["", "mode = torch.inference_mode()\nmode.__enter__()\n"])
def test_modes_that_an_import_set_are_on_the_thread_that_serves(process: Any, more: str):
    """If it is Ray's own, as in a throughput-optimized Serve."""
    name = process.module("app_sets_modes", SETS_MODES + more)
    on_rays = {"thread": "AsyncIO Thread: default", "facts": True, "omp_of_ticket": None}
    with ThreadPoolExecutor(2) as pool:
        plain, seat = pool.map(
            lambda has_seat: process(imports=[name], seat=has_seat, **on_rays), (False, True)
        )
    assert seat["use"]["miss"] == ""
    assert plain["facts"]["modes"][0] == "meta"
    assert plain["facts"]["modes"][-1] == 0.0
    for name in ("modes", "fingerprint"):
        assert seat["facts"][name] == plain["facts"][name]


@pytest.mark.slow
@pytest.mark.parametrize("own", ["", "gc.disable()", "gc.set_threshold(5000, 20, 30)"])
def test_no_garbage_is_collected_during_imports(process: Any, own: str):
    """Afterwards, garbage collection is as in a start without a seat, with the app's settings."""
    name = process.module(
        "makes_garbage",
        "import gc\n"
        "phases = []\n"
        "gc.callbacks.append(lambda phase, _: phases.append(phase))\n"
        "for _ in range(5000):\n"
        "    cycle = []\n"
        "    cycle.append(cycle)\n"
        f"assert not phases, phases\ngc.callbacks.pop()\n{own}\n",
    )
    seat = process(imports=[name])
    enabled, thresholds = seat["collection_then"]
    assert seat["use"]["hit"], seat["use"]
    assert enabled is (own != "gc.disable()")
    assert thresholds == ([5000, 20, 30] if "5000" in own else list(gc.get_threshold()))


@pytest.mark.slow
@pytest.mark.parametrize(("ticket", "is_first"), [("1", True), ("2", True), ("2", False)])
def test_threads_that_an_app_set_in_its_own_import_are_noticed(
    process: Any, ticket: str, is_first: bool
):
    """With the threads of its ticket, a seat is of use. Else they may come from another count."""
    name = process.module("app_sets_threads", "import torch\ntorch.set_num_threads(3)\n")
    imports = [name, "torch"] if is_first else ["torch", name]
    answer = process(imports=imports, omp="1", omp_of_ticket=ticket, facts=True)
    assert answer["use"]["miss"] == ("" if ticket == "1" else "threads")
    assert ("OMP_NUM_THREADS was set to 1 later" in answer["use"]["text"]) is (ticket == "2")
    assert answer["facts"]["fingerprint"]["app"]["threads"] == "3"


@pytest.mark.slow
def test_threads_of_openblas_that_cannot_be_set_are_named(process: Any):
    """The wheels of numpy bring their own OpenBLAS, which read the variable when it was loaded."""
    name = process.module("app_with_numpy", "import numpy\n")
    imports = [name, "torch"]
    answers = [process(imports=imports, omp="1", omp_of_ticket=ticket) for ticket in ("1", "2")]
    has_openblas = "openblas" in answers[0]["maps"]
    assert [each["use"]["hit"] for each in answers] == [True, True]
    assert answers[0]["use"]["note"] == ""
    assert ("OpenBLAS keeps the thread count" in answers[1]["use"]["note"]) is has_openblas


@pytest.mark.slow
def test_an_environment_that_libraries_have_read_is_a_reason(process: Any):
    """A variable that is set after the imports cannot have its effect any more."""
    name = "HF_HUB_OFFLINE"
    answer = process(imports=["torch"], environ={name: "default", "OTHER": "1", "HF_TOKEN": "x"})
    assert answer["use"]["miss"] == "environment"
    assert f"changed after the imports of the seat: {name}. List the" in answer["use"]["note"]


def test_modules_that_another_deployment_did_not_list_are_named(process: Any):
    """Deployments with the same runtime_env share their seats. Other modules may import them."""
    answer = process(imports=["json"], wanted=["json", "json.decoder", "colorsys"])
    assert answer["missing"] == ["colorsys"]


def test_a_module_that_sets_the_folder_for_temporary_files_keeps_its_seats(
    process: Any, tmp_path: Path
):
    """Workers look for tickets before they import anything of the app."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    source = f"import os\nos.environ['TMPDIR'] = {str(scratch)!r}\n"
    answer = process(imports=[process.module("app_with_scratch", source)])
    assert answer["use"]["hit"]
    assert "/seats/" in answer["folder"]
    assert not answer["folder"].startswith(str(scratch))


def test_a_module_that_names_the_process_does_not_look_taken(process: Any):
    """Before, the keeper asked for another seat at each look, without end."""
    source = "import sys\nsys.modules['__main__'].name_process(b'my-embedder')\n"
    name = process.module("sets_its_title", source)
    named = process(imports=[name], named_idle=True, only_the_seat=True)
    assert named["seat_file"] == {"state": "waiting", "note": "", "is_taken": False}


@pytest.mark.slow
def test_what_the_app_sets_before_it_imports_torch_comes_first(process: Any):
    """Its modules are imported in its own order, before anything of a seat's."""
    name = process.module(
        "app_sets_variable",
        "import os, sys\n"
        "assert 'torch' not in sys.modules\n"
        "os.environ['TORCH_SHOW_DISPATCH_TRACE'] = '0'\nimport torch\n",
    )
    answer = process(imports=[name, "torch"])
    assert answer["use"]["hit"], answer["use"]


# Nothing of it harms ----------------------------------------------------------------------------
@pytest.mark.slow
def test_a_worker_without_a_ticket_imports_nothing(process: Any):
    """A start without a seat does not wait for imports at low priority."""
    answer = process(imports=["torch"], ticket=False)
    assert answer["loaded"] == []
    assert answer["use"]["miss"] == "none"
    assert answer["use"]["text"] == "seat: no (none): no seat was free"


@pytest.mark.slow
def test_a_ticket_that_hangs_holds_up_no_start(process: Any):
    """As on a dead network mount. The waiting thread imports nothing later."""
    answer = process(imports=["colorsys"], hangs=True, go=True)
    assert answer["use"]["miss"] == "hung"
    assert answer["use"]["note"] == "looking for a ticket took more than 5 s"
    assert answer["before_replica"] == []
    assert answer["files"] == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"change": {"colour": "red"}}, "unknown fields: colour"),
        ({"change": {"imports": None}}, "is damaged: its imports has an impossible value"),
        (
            {"change": {"offered_boot_s": "now"}},
            "is damaged: its offered_boot_s has an impossible value",
        ),
        ({"no_file": True}, "seat-"),
    ],
    ids=["unknown", "not-a-list", "not-a-time", "no file of its own"],
)
def test_a_ticket_that_cannot_be_taken_is_ignored_and_named(
    process: Any, wrong: dict[str, Any], says: str
):
    """The worker continues as without a ticket: it imported nothing, and its replica says why."""
    answer = process(imports=["colorsys"], **wrong)
    assert answer["use"]["miss"] == "failed"
    assert says in answer["use"]["note"]
    assert answer["loaded"] == []


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise ValueError('no licence')", "ValueError: no licence"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import no_such_module", "ModuleNotFoundError"),
    ],
    ids=["raises", "exits", "missing"],
)
def test_an_import_that_fails_does_not_end_the_worker(process: Any, source: str, says: str):
    """The start imports again, and reports the error. Later modules are imported."""
    name = process.module("bad_app", source)
    answer = process(imports=[name, "colorsys"])
    assert answer["use"]["miss"] == "failed"
    assert says in answer["use"]["text"]
    assert answer["loaded"] == ["colorsys"]


@pytest.mark.slow
def test_a_worker_with_an_import_that_hangs_ends(process: Any):
    """Its file names the modules. A second import in another thread would hang too."""
    inner = process.module("hangs_in_a_seat", "import threading\nthreading.Event().wait()\n")
    name = process.module("app_over_it", f"import {inner}\n")
    with pytest.raises(AssertionError):
        process(imports=[name], limit_s=0.5)
    (seat,) = process.tmp.glob("serve_warm-*/seats/*/seat-*")
    assert '"state": "hung"' in seat.read_text()
    assert "app_over_it, hangs_in_a_seat took more than 0 s; the worker ended" in seat.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("more", "left"), [("", 0), ("sys.path.append(own)", 1)])
def test_modules_of_the_drivers_folder_are_found(
    process: Any, tmp_path: Path, more: str, left: int
):
    """A seat has no job, so Ray adds that folder only once the seat becomes a replica."""
    folder = tmp_path / "driver"
    folder.mkdir()
    source = f"import os, sys\nown = os.path.dirname(__file__)\n{more}\n"
    (folder / "app_of_the_driver.py").write_text(source)
    answer = process(imports=["app_of_the_driver"], paths=[str(folder)])
    assert answer["use"]["hit"], answer["use"]
    assert answer["paths"].count(str(folder)) == left


BEGINS_A_THREAD = """
import os, threading
nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
assert nice == min(19, os.getpriority(os.PRIO_PROCESS, os.getpid()) + 10), nice
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""

NOTES_ITS_PRIORITY = """
import os, threading
class AtItsEnd:
    def __del__(self, os=os, threading=threading):
        nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        with open(os.environ["NOTE"], "w") as note:
            note.write(str(nice))
of_this_thread = threading.local()
of_this_thread.end = AtItsEnd()
"""


@pytest.mark.slow
def test_the_low_priority_ends_with_the_imports(process: Any, tmp_path: Path):
    """The main thread never had it, and threads that an import began have it no more."""
    note = tmp_path / "note"
    name = process.module("begins_a_thread", BEGINS_A_THREAD)
    notes = process.module("notes_its_priority", NOTES_ITS_PRIORITY)
    answer = process(imports=[name, "torch", notes], own_environ={"NOTE": str(note)})
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert answer["use"]["hit"], answer["use"]
    if os.geteuid() == 0:
        assert answer["nice"] == [own]
        assert note.read_text() == str(own)


def test_a_seat_that_may_not_raise_priorities_names_the_threads(process: Any):
    """As in a container without the right. The main thread has its own priority all along."""
    name = process.module("begins_a_thread", BEGINS_A_THREAD)
    answer = process(imports=[name], may_raise_priority=False)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert answer["nice"] == [own, min(19, own + 10)]
    assert answer["use"]["hit"]
    assert answer["use"]["note"] == "number of threads that still have a low priority: 1"


def library(folder: Path, name: str, source: str) -> Path:
    """Compile a library, or skip the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder.mkdir(exist_ok=True)
    (folder / "driver.c").write_text(source)
    command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", folder / "driver.c"]
    subprocess.run([*command, "-o", folder / name], check=True)
    return folder / name


@pytest.fixture
def fake_driver(tmp_path: Path) -> dict[str, str]:
    """A stand-in for NVIDIA's driver that ends the process which opens it."""
    source = "__attribute__((constructor)) static void touched(void) { _exit(66); }\n"
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        library(tmp_path / "driver", name, f"#include <unistd.h>\n{source}")
    return {"LD_LIBRARY_PATH": str(tmp_path / "driver")}


@pytest.mark.slow
def test_a_seat_touches_no_driver(process: Any, fake_driver: dict[str, str]):
    """The replica's GPU is not known yet. The stand-in ends processes that open the driver.

    Imports of level 3 do not bring Dynamo either, which would cost a second and 100 MB.
    """
    answer = process(imports=list(IMPORTS), own_environ=fake_driver)
    code = "import ctypes; ctypes.CDLL('libcuda.so.1')"
    environ = {**os.environ, **fake_driver}
    touched = subprocess.run([sys.executable, "-c", code], env=environ, check=False)
    assert answer["use"]["hit"]
    assert not answer["compiler"]
    assert answer["frozen"] > 100_000  # Serve's own collection has little left to do
    assert touched.returncode == 66


DRIVER = """
static int is_initialized;
int cuInit(unsigned flags) { is_initialized = 1; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return is_initialized ? 0 : 3; }
"""


@pytest.mark.slow
@pytest.mark.parametrize(("then", "miss"), [("", ""), ("driver.cuInit(0)", "cuda")])
def test_a_driver_that_is_only_loaded_is_no_reason(
    process: Any, tmp_path: Path, then: str, miss: str
):
    """Builds of torch link to it, and NVML may open the same device files (seen on an H100)."""
    driver = library(tmp_path, "libcuda.so.1", DRIVER)
    source = f"import ctypes\ndriver = ctypes.CDLL({str(driver)!r})\n{then}\n"
    answer = process(imports=[process.module("loads_driver", source)])
    assert answer["use"]["miss"] == miss


@pytest.mark.slow
def test_a_file_of_the_app_that_changed_after_its_import_is_found(process: Any):
    """The seat would serve the old code, and a plain start the new one."""
    name = process.module("edited_app", "import json\n")
    edited = process(imports=[name, "json"], edited=name)
    same = process(imports=[name])
    assert edited["stale"].endswith("/edited_app.py changed after this seat had imported it")
    assert "/edited_app.py changed after this seat had imported it" in edited["refused"]
    assert same["stale"] == ""
    assert edited["use"]["hit"] is same["use"]["hit"] is True


@pytest.mark.parametrize("is_package", [False, True])
def test_code_that_the_next_job_has_in_another_folder_is_found(
    process: Any, tmp_path: Path, is_package: bool
):
    """Before, a seat served the folder of the job that it came from, and the start was a hit."""
    other = tmp_path / "other job"
    other.mkdir()
    if is_package:  # without __init__.py
        for folder in (tmp_path / "modules", other):
            (folder / "moved_app").mkdir()
            (folder / "moved_app" / "part.py").write_text("import json\n")
        name = "moved_app.part"
    else:
        name = process.module("moved_app", "import json\n")
        (other / "moved_app.py").write_text("import json\n")
    moved = process(imports=[name], paths_of_job=[str(other)])
    assert moved["stale"].startswith(f"this seat imported {tmp_path / 'modules'}/moved_app")
    assert f", but a replica imports {other}/moved_app" in moved["stale"]


def test_modules_of_the_start_itself_are_not_stale(process: Any, tmp_path: Path):
    """No finder knows a second name of a module, in any start."""
    source = "import sys\nsys.modules['old_name'] = sys.modules[__name__]\n"
    name = process.module("new_name", source)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "models_lib.py").write_text("import json\n")
    answer = process(imports=[name, "models_lib"], paths=[str(tmp_path / "lib")])
    assert answer["use"]["hit"]
    assert answer["stale"] == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("visible", "then", "miss"), [(None, "", "cuda"), ("1", "raise ValueError", "failed")]
)
def test_cuda_that_began_in_a_seat_is_a_reason(
    process: Any, visible: str | None, then: str, miss: str
):
    """CUDA never reads its variable again, so a later choice of Ray has no effect."""
    name = process.module("begins_cuda", f"import torch\ntorch.cuda._initialized = True\n{then}\n")
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    answer = process(imports=[name], environ=environ)
    assert answer["use"]["miss"] == miss
    assert answer["wrong_gpu"] is (visible is not None)
