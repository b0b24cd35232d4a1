# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Programs that run in a separate process; those of this folder answer with a line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run_to_end(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command, and return its status and its output as text."""
    words = list(map(str, command))
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def answer_of(
    program: str, question: dict[str, Any], *paths: str, cwd: Path | None = None, **environ: str
) -> Any:
    """Run a program with a question, and return the answer in its last line.

    `paths` are folders of packages for the program that are not in the suite's environment.
    """
    ended = run_to_end(
        [sys.executable, str(HERE / program), json.dumps(question)],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": search_path(*paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            **environ,
        },
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


def peak_bytes() -> int:
    """Return the largest resident set of this process."""
    # Not ru_maxrss: after a fork, that is at least the parent's peak.
    status = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in status if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def search_path(*paths: str) -> str:
    """Return a PYTHONPATH that begins with the project, followed by this process's PYTHONPATH."""
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, (str(HERE.parents[1]), *paths, given)))
