# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Process groups of ranks that start together, with one process for each rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from artifacts import new_key
from processes import HERE, search_path

HANG_S = 300.0


@dataclass(kw_only=True)
class Group:
    """Starts the processes of a group, and returns the output of each."""

    folder: Path
    size: int = 2
    numbers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.key = self.folder / "key.pem"
        self.key.write_bytes(
            new_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )

    def run(self, *starts: dict[str, Any], **options: Any) -> list[list[dict[str, Any]]]:
        """Return the report of each rank for each start."""
        self.numbers.append(len(self.numbers))
        meet = self.folder / f"meet{self.numbers[-1]}"
        running = []
        for rank in range(self.size):
            temporary = self.folder / f"tmp{self.numbers[-1]}-{rank}"
            temporary.mkdir()
            said = {
                "rank": rank,
                "size": self.size,
                "meet": str(meet),
                "key": str(self.key),
                "starts": starts,
                **options,
            }
            running.append(
                subprocess.Popen(
                    [sys.executable, str(HERE / "rank_process.py"), json.dumps(said)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={
                        **{k: v for k, v in os.environ.items() if not k.startswith("TORCH")},
                        "PYTHONPATH": search_path(),
                        "TMPDIR": str(temporary),
                        "OMP_NUM_THREADS": "1",
                        "GLOO_SOCKET_IFNAME": "lo",
                        # Ranks do not need torch's probes of the CPU, which take seconds.
                        "TORCHINDUCTOR_VEC_ISA_OK": "1",
                    },
                )
            )
        lines = []
        try:
            for process in running:
                out, errors = process.communicate(timeout=HANG_S)
                assert process.returncode == 0, errors[-3000:]
                lines.append([json.loads(line) for line in out.splitlines()])
        finally:
            for process in running:
                process.kill()
        return [
            [said[number] if number < len(said) else {} for said in lines]
            for number in range(len(starts))
        ]


def reports(started: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [said["report"] for said in started]


def compiled_anything(report: dict[str, Any]) -> bool:
    counts = report["warmup"]
    return any(counts[name] for name in ("compiler_processes", "fx_misses", "kernels", "tunings"))
