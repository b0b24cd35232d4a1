# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A process that becomes a replica, with or without a seat, and prints facts; see processes.py.

Ray is not used: this module does what Ray does to a worker (command line, hook, variable).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

from serve_warm.errors import WarmupFailed
from serve_warm.seats import preload
from serve_warm.seats import records as seat_records
from serve_warm.seats import use as seat_use
from serve_warm.seats.records import SeatFolder, SeatRequest, is_taken

DEVICES = ("cpu", "cuda")

COMMAND_LINE = ("--session-name=a", "--node-id=b", "--runtime-env-hash=7")


def be_seat(question: dict[str, Any]) -> None:
    sys.argv = ["default_worker.py", *COMMAND_LINE]
    folder = SeatFolder.of_worker(sys.argv)
    assert folder is not None
    if not question.get("may_raise_priority", True):
        drop_the_right_to_raise({**question, "may_raise_priority": True})
    if question.get("ticket", True):
        folder.make()
        folder.offer(
            SeatRequest(
                deployment="app#Embedder",
                imports=tuple(question["imports"]),
                omp_threads=question.get("omp_of_ticket"),
                limit_s=question.get("limit_s", 300.0),
                paths=tuple(question.get("paths", ())),
            )
        )
    if "change" in question:
        (ticket,) = folder.path.glob("ticket-*")
        ticket.write_text(json.dumps({**json.loads(ticket.read_text()), **question["change"]}))
    if question.get("hangs"):
        question["hangs"] = threading.Event()
        records: Any = seat_records
        read = records.read_regular

        def wait_and_read(path: Path) -> bytes:
            question["hangs"].wait()
            return read(path)

        records.read_regular = wait_and_read
    if question.get("no_file"):
        (folder.path / f"seat-{os.getpid()}").mkdir()
    if question.get("named_idle"):
        name_process(b"ray::IDLE")
    for names in question.get("now", ()):
        preload.import_now(*names)
    preload.run()
    if question.get("no_file"):
        (folder.path / f"seat-{os.getpid()}").rmdir()


def name_process(name: bytes) -> None:
    """Write over the command line, as Ray and programs that set their title do."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    ctypes.memmove(int(fields[45]), name + b"\0", len(name) + 1)  # arg_start, proc(5)


def fingerprint() -> dict[str, Any]:
    from serve_warm.config import environment
    from serve_warm.fingerprint import Fingerprint, read_app, read_machine

    environ = environment()
    return Fingerprint(machine=read_machine(environ), app=read_app(environ)).to_json()


def modes() -> list[Any]:
    """Return the state that torch keeps for each thread."""
    import torch

    return [
        str(torch.get_default_device()),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        [torch.is_autocast_enabled(each) for each in DEVICES],
        [str(torch.get_autocast_dtype(each)) for each in DEVICES],
        torch.is_autocast_cache_enabled(),
        float(torch.full((1,), 1e-38, device="cpu") / 2),
        sys.float_info.min / 2,
    ]


def facts() -> dict[str, Any]:
    """Return facts that compiled code and answers may depend on, read on the serving thread."""
    import numpy as np
    import torch

    return {
        "fingerprint": fingerprint(),
        "interop": torch.get_num_interop_threads(),
        "pools": [
            line.strip()
            for line in torch.__config__.parallel_info().splitlines()
            if "max_threads" in line or "get_num" in line
        ],
        "modes": modes(),
        "drawn": [torch.rand(3, device="cpu").tolist(), random.random()],
        "numpy": np.geterr(),
        "collection": [gc.isenabled(), gc.get_threshold()],
        "variables": sorted(name for name in os.environ if name.startswith(("OMP", "PYTORCH"))),
    }


def priorities() -> set[int]:
    """Return the nice values of this process's threads. A thread may end while they are read."""
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            found.add(os.getpriority(os.PRIO_PROCESS, int(thread.name)))
    return found


def drop_the_right_to_raise(question: dict[str, Any]) -> None:
    """Run this program again without the right to raise a priority, which root has."""
    pr_capbset_drop, cap_sys_nice = 24, 23  # linux/prctl.h, linux/capability.h
    ctypes.CDLL(None).prctl(pr_capbset_drop, cap_sys_nice)  # others than root have no such right
    os.execv(sys.executable, [sys.executable, __file__, json.dumps(question)])


def start_after_an_edit(module: str) -> str:
    """Edit the file of an imported module. Return why no replica can begin then, or ""."""
    from serve_warm.seats.keeper import ReplicaSeats  # imports Ray

    path = Path(sys.modules[module].__file__ or "")
    path.write_text(path.read_text() + "# edited\n")
    try:
        ReplicaSeats(os.environ)
    except WarmupFailed as error:
        return str(error)
    return ""


def seat_file() -> dict[str, Any]:
    """Return what the keeper reads of this process's seat."""
    folder = SeatFolder.of_worker(COMMAND_LINE)
    assert folder is not None
    [seat] = folder.seats()
    return {"state": seat.state, "note": seat.note, "is_taken": is_taken(seat)}


def main() -> None:
    question = json.loads(sys.argv[1])
    if question["seat"]:
        be_seat(question)
    answer: dict[str, Any] = {"compiler": "torch._dynamo" in sys.modules}
    answer["loaded"] = [name for name in question["imports"] if name in sys.modules]
    answer["collection_then"] = [gc.isenabled(), gc.get_threshold()]
    if question.get("go"):
        # Looked up first: once GO is set, the thread may end at any moment.
        importer = next(t for t in threading.enumerate() if t.name == "serve_warm-preload")
        os.environ["GO"] = "1"
        if question.get("hangs"):
            question["hangs"].set()
        importer.join()
    answer["before_replica"] = [name for name in question["imports"] if name in sys.modules]
    if (omp := question.get("omp")) is not None:
        os.environ["OMP_NUM_THREADS"] = omp  # as Ray does, once the worker is a replica's
    os.environ.update(question.get("environ", {}))
    if "torch_threads" in question:
        sys.modules["torch"].set_num_threads(question["torch_threads"])
    answer["frozen"] = gc.get_freeze_count()
    if "thread" in question:
        threading.current_thread().name = question["thread"]
    answer["seat_file"] = seat_file() if question.get("only_the_seat") else None
    sys.path[:0] = question.get("paths_of_job", [])  # as Ray does
    if "edited" in question:
        answer["refused"] = start_after_an_edit(question["edited"])
    answer["stale"] = seat_use.find_stale_code()
    answer["missing"] = seat_use.find_missing(question.get("wanted", ()))
    seat = preload.seat_folder()
    answer["folder"] = str(seat and seat.path)
    answer["wrong_gpu"] = seat_use.is_on_wrong_gpu(os.environ)
    use = seat_use.take(os.environ)
    answer["use"] = {**vars(use), "text": use.text()}
    folder = SeatFolder.of_worker(COMMAND_LINE)
    assert folder is not None
    answer["files"] = (
        sorted(path.name for path in folder.path.glob("*")) if question["seat"] else []
    )
    for name in question["imports"]:
        # The app's own imports, as in any start: what fails here fails without a seat, too.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
    answer["nice"] = sorted(priorities())
    answer["paths"] = sys.path
    answer["maps"] = Path("/proc/self/maps").read_text()
    if question.get("facts"):
        answer["facts"] = facts()
    sys.stdout.write(f"{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
