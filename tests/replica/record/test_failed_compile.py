# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The reason for a failed compile comes first, and says what an operator can change."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.exc import CppCompileError
from torch.nn import functional

from compiled import compiled
from processes import answer_of
from serve_warm.errors import ReplayFailed, WarmupTimeout
from serve_warm.replica.record.failed_compile import find_reason
from starts import StandIn, failed, process  # noqa: F401 - a fixture

NOEXEC = (
    "/cache/inductor/ab/cab.main.so: failed to map segment from shared object.  The most common "
    "reason this may occur is if the /cache folder is mounted with noexec"
)
OUTPUT = "C++ compile error\n\nOutput:\n"
FULL = f"{OUTPUT}/usr/bin/ld: final link failed: No space left on device"
QUOTA = f"{OUTPUT}/usr/bin/ld: final link failed: Disk quota exceeded"
FULL_ELSEWHERE = f"{OUTPUT}fatal error: error closing /proc/none/x.s: No space left on device"

KILLED = f"{OUTPUT}g++: fatal error: Killed signal terminated program cc1plus"


def system_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def killed(number: int) -> subprocess.CalledProcessError:
    return subprocess.CalledProcessError(-number, ["g++", "a.cpp"])


@pytest.mark.parametrize(
    ("error", "text", "hint"),
    [
        (system_error(errno.ENOSPC, "/"), r"no space .* in / \(\d+ MB", "TMPDIR"),
        (system_error(errno.EDQUOT, "/"), r"no space .* in /", "TMPDIR"),
        (RuntimeError(FULL), r"no space left for torch's caches in /.* MB free", "sizeLimit"),
        (system_error(errno.EFBIG, "/"), r"no space .* in /", "TMPDIR"),
        (RuntimeError(QUOTA), r"no space left for torch's caches in /.* MB free", "quota"),
        (RuntimeError(FULL_ELSEWHERE), r"for the compiler's files in /proc \(0 MB", "TMPDIR"),
        (system_error(errno.EROFS, "/proc/a/b"), "may not write to /proc,", "vol"),
        (system_error(errno.EACCES, "/proc/x"), "may not write to", "TMPDIR"),
        (OSError(NOEXEC), "code in /cache/inductor/ab may not run.* noexec", "without noexec"),
        (RuntimeError(KILLED), r"ended by a signal \(cc1plus: Killed\)", "memory"),
        (killed(signal.SIGKILL), "ended by SIGKILL", "memory"),
    ],
)
def test_the_reason_of_the_environment_is_found(error: BaseException, text: str, hint: str):
    """Torch wraps the error of a compile in its own. Other errors are not about a compile."""
    wrapped = CppCompileError(["g++"], "something failed")
    wrapped.__cause__ = error
    reason = find_reason(wrapped)
    assert re.search(text, reason.text), reason.text
    assert hint in reason.hint
    assert find_reason(error) is None  # of the application's own file, for example


@pytest.mark.parametrize("error", [ValueError("a"), OSError(errno.ENOENT, "none", "a")])
def test_other_errors_have_no_reason_of_the_environment(error: Exception):
    assert find_reason(error) is None


def test_an_operator_that_rejects_its_shapes_is_named_with_them():
    """Torch's own line begins with hundreds of characters about fake tensors."""
    replica = StandIn()
    weight = torch.ones(16, 32)
    replica.owner.model = compiled(lambda x: functional.linear(x.expand(4, -1), weight))
    error, _, _ = failed(ReplayFailed, replica)
    assert "linear" in error.message
    assert re.search(r"\[4, 3\] ?X ?\[32, 16\]", error.message), error.message
    assert "correct the shapes or dtypes of this input" in error.hint


@pytest.mark.parametrize(
    ("compiles", "hint"), [(False, "compiled nothing so far"), (True, "build an artifact")]
)
def test_a_call_that_hangs_is_not_explained_by_a_compile(compiles: bool, hint: str):
    class Hanging(StandIn):
        async def call(self, item: Any) -> None:
            if compiles:
                self.owner.model(*item.args)
            await asyncio.sleep(60)

    error, _, _ = failed(WarmupTimeout, Hanging(), input_deadline_s=0.5)
    assert hint in error.hint


@pytest.fixture(
    name="mounted", params=["size=2m", pytest.param("noexec,size=400m", marks=pytest.mark.stress)]
)
def mounted_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    folder = tmp_path / "volume"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", request.param, "tmpfs", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this user cannot mount a volume: {done.stderr.strip()}")
    yield folder, request.param.partition(",")[0]
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_volume_that_is_full_or_not_executable_is_named(
    mounted: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
):
    folder, option = mounted
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(variable)
    question = {"app": "compiled", "settings": {}, "prefetch": False}
    report = answer_of("uncompiled_process.py", question, TMPDIR=str(folder))["report"]
    assert report["stage"] == "FAILED"
    wanted = "noexec" if option == "noexec" else "there is no space left"
    assert wanted in report["error"]
    assert str(folder) in report["error"]
