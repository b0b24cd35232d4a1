# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What an earlier process of the same user, or another user, has left where a build looks."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from processes import run_to_end, search_path
from serve_warm._private_folders import process_folder
from serve_warm.builder.cluster import build_name
from serve_warm.config import WarmupConfig
from serve_warm.errors import ArtifactRefused, ConfigError
from serve_warm.replica.start.context import CompileCaches
from serve_warm.replica.start.stages import Warmup
from starts import StandIn, process  # noqa: F401 - `process` is a fixture

MARK = "planted_by_an_earlier_job"

JOB = """
import json, os, pathlib, sys
import torch
own = sys.argv[1] == "build"
TOUCHED = set()
PLACES = [os.path.realpath(os.environ[name]) for name in ("TMPDIR", "HOME")]

def note(word):
    path = os.path.realpath(word)
    if any(path.startswith(place + "/") for place in PLACES):
        TOUCHED.add(path)

def audit(event, args):
    if event == "open" and isinstance(args[0], str):
        note(args[0])
    elif event == "subprocess.Popen":
        for word in args[1] if isinstance(args[1], (list, tuple)) else str(args[1]).split():
            for prefix in ("-I", "-L", "-include", ""):
                word = os.fsdecode(word).removeprefix(prefix)
            note(word)

sys.addaudithook(audit)
import serve_warm
from serve_warm.compiler.caches import keep_headers_private
from serve_warm.precompile import building
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.replica.start.pack import pack_parts
from serve_warm.replica.start.context import CompileCaches

caches = CompileCaches()
if own:
    caches.begin()
    keep_headers_private("own")
model = serve_warm.compile(torch.nn.Softmax(-1), level=3, dynamic=False)
with torch.inference_mode(), building() as build:
    answers = [model(torch.zeros(size, 4)).sum().item() for size in (2, 3)]
plain = torch.compile(torch.nn.LogSoftmax(-1), dynamic=False)
plain(torch.zeros(2, 4))
made = CompileCaches().directory if not own else caches.directory
parts = pack_parts(made, {"exported": build.table.to_files(3)}) if own else {}
print(json.dumps({
    "answers": answers,
    "own": str(made.parent),
    "touched": sorted(TOUCHED),
    "parts": {name: len(data) for name, data in parts.items()},
    "marked": [name for name, data in parts.items() if sys.argv[2].encode() in data],
}))
"""


def run(kind: str, folder: Path) -> dict[str, Any]:
    """Compile a model at levels 1 and 3 in a process of its own, with a home and a temp folder."""
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "TRITON"))},
        "PYTHONPATH": search_path(),
        "TMPDIR": str(folder),
        "HOME": str(folder / "home"),
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-c", JOB, kind, MARK]
    ended = run_to_end(command, timeout=500, env=env)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


def poison(folder: Path) -> int:
    """Plant code in all that an earlier job has left, and return in how many files."""
    count = 0
    for file in [each for each in folder.rglob("*") if each.is_file()]:
        if file.suffix in (".gch", ".lock"):
            file.unlink()
        elif file.suffix in (".h", ".cpp"):
            line = f'extern "C" __attribute__((used)) inline const char* {MARK}() '
            file.write_text(f'{line}{{ return "{MARK}"; }}\n{file.read_text()}')
            count += 1
        elif file.suffix == ".so":
            file.write_bytes(MARK.encode())
            count += 1
    return count


@pytest.mark.stress
@pytest.mark.skipif(torch.cuda.is_available(), reason="headers are for kernels of the CPU")
def test_nothing_that_an_earlier_job_left_is_packed(tmp_path: Path):
    """A build opens nothing in the temp folder and the home that it has not made itself."""
    (tmp_path / "home").mkdir()
    earlier = run("earlier", tmp_path)
    planted = poison(tmp_path)
    there = {str(path) for path in tmp_path.rglob("*")}
    built = run("build", tmp_path)
    assert planted > 3
    assert any("/torchinductor_" in path for path in earlier["touched"])  # so this would be seen
    assert built["answers"] == [2.0, 3.0]
    assert built["marked"] == []
    assert min(built["parts"].values()) > 1000
    assert set(built["parts"]) >= {"cache", "exported"}
    assert [path for path in built["touched"] if path in there and Path(path).is_file()] == []


@pytest.fixture(autouse=True)
def first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start here is the first one of its process, as in a build."""
    monkeypatch.setattr("serve_warm.compiler.caches._asked", set())


def own(**attributes: Any) -> StandIn:
    stand_in = StandIn()
    stand_in.application = build_name()
    stand_in.unwatched_compiles_before = 0
    vars(stand_in).update(attributes)
    return stand_in


def start(stand_in: StandIn, caches: CompileCaches) -> None:
    asyncio.run(Warmup(stand_in, WarmupConfig(on_missing="fail"), caches=caches).run())


def test_an_app_that_compiled_while_it_was_imported_is_not_built():
    """Its kernels may have taken a header from a folder that all processes share."""
    with pytest.raises(ConfigError, match="the app compiled 3 frames while it was imported"):
        start(own(unwatched_compiles_before=3), CompileCaches())


def test_a_build_does_not_compile_where_others_can_write():
    """On a machine without a safe folder nothing is loaded, and nothing may be signed either."""
    open_to_all = process_folder() / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    caches = CompileCaches()
    caches.begin_anew(open_to_all)
    with pytest.raises(ArtifactRefused, match="the folder that a build compiles in is not private"):
        start(own(), caches)
