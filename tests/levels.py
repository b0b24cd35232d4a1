# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Building and loading entries for tests, here or in a fresh process; which level served a call."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from processes import search_path
from serve_warm.compiler.watch import watch_process
from serve_warm.precompile.session import SESSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from serve_warm.precompile.entries import EntryTable


def build(folder: Path, *calls: Callable[[], Any], level: int = 2) -> EntryTable:
    """Make an entry for each call, and write those of a level into `folder`."""
    folder.mkdir(exist_ok=True)
    with torch.inference_mode(), SESSION.building() as library:
        for call in calls:
            call()
    for name, data in library.to_files(level).items():
        (folder / name).write_bytes(data)
    return library


@contextlib.contextmanager
def started(folder: Path) -> Iterator[None]:
    """Load what was built, as a fresh process does; what was compiled before is forgotten."""
    torch._dynamo.reset()
    why = SESSION.load(folder)
    assert not why, why
    try:
        yield
    finally:
        SESSION.unload()


@dataclass(frozen=True, kw_only=True)
class Served:
    """One call: what it returned, by which level, and why by that one."""

    value: Any
    level: int
    reason: str
    call: str
    compiles: int


def served(call: Callable[[], Any]) -> Served:
    """Make one call, of one callable that was handed over."""
    watch = watch_process()
    counts, before = watch.counts(), _uses()
    value = call()
    after, compiles = _uses(), (watch.counts() - counts).compiles
    # Not less: models of earlier tests end at any time, and their counts with them.
    changed = {use: n - before.get(use, 0) for use, n in after.items() if n > before.get(use, 0)}
    if not changed:  # level 2, for not the first time: a hit is not counted
        return Served(value=value, level=2, reason="", call="", compiles=compiles)
    # The level that it ended with: the one that refused it may have counted first.
    (text, level, reason, _) = min(changed, key=lambda use: use[1])
    return Served(value=value, level=level, reason=reason, call=text, compiles=compiles)


def _uses() -> dict[tuple[str, int, str, str], int]:
    return {(u.call, u.level, u.reason, u.callable): u.calls for u in SESSION.uses()}


def spans(call: Callable[[], Any], times: int) -> list[Any]:
    """Return what was counted in each of some calls."""
    watch, found = watch_process(), []
    with torch.inference_mode():
        for _ in range(times):
            before = watch.counts()
            call()
            found.append(watch.counts() - before)
    return found


@contextlib.contextmanager
def eager_below() -> Iterator[None]:
    """Make level 1 run eagerly: for tests of what falls to it, not of what it then compiles."""
    with torch.compiler.set_stance("force_eager"):
        yield


def in_a_process(folder: Path, do: str, *, level: int = 2, **environ: str) -> dict[str, Any]:
    """Build or start `app.py` of a folder in a fresh process; return what that prints.

    Entries and torch's caches stay in the folder, for the next process.
    """
    entries = folder / "entries"
    entries.mkdir(exist_ok=True)
    question = {"do": do, "folder": str(entries), "path": str(folder / "app.py"), "level": level}
    here = Path(__file__).parent
    ended = subprocess.run(
        [sys.executable, str(here / "precompiled_process.py"), json.dumps(question)],
        env={
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
            "PYTHONPATH": search_path(),
            "PYTHONDONTWRITEBYTECODE": "1",
            # Torch's probes of the CPU say nothing of entries, and take five seconds of a build.
            "TORCHINDUCTOR_VEC_ISA_OK": "1",
            **environ,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer
