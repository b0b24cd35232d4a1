# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Measures models on one GPU: two decoders, ViT-L, and one of Whisper-large's size.

    python tests/gpu/models_gpu.py [--models decode,half_precision,vit_large,whisper_large]
        [--turns 2] [--json tests/benchmarks/results/models_gpu.json] [--work build/models_gpu]
        [--limit-s 480]
    python tests/gpu/models_gpu.py --tiny --turns 1      tiny models, without a GPU

Needs transformers but not Ray. For `decode`, a Llama in float32, and `half_precision`, a decoder of
Qwen3-0.6B's size in bfloat16, decode_process.py makes a build and a start at each level. The other
models are started in turns, as in bench_startup.py: cold, with torch's bytes, and at levels 2 and
3. A start that is not a full hit stays in the results, with the reasons from its report.

The run consists of pieces: the artifacts of each model, each turn of a model, and each level of
decoding. After each piece, the program writes the JSON. It skips the pieces that the work folder
already has. Except for the first piece, it begins no piece that could end after the limit. While
pieces are left, it ends with status 75: run it again.

The exit status is 1 if tokens or numbers differ, a call of a step is not one launch of a graph, a
step compiles or captures, dispatch takes over 50 µs, a start is not a full hit, or a start of
`half_precision` takes longer than `LONGEST_S`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from benchmarks import bench_startup  # noqa: E402 - found through the line above
from benchmarks.bench_startup import Bench, Entrant, Failed  # noqa: E402
from gpu.pieces import MORE, Pieces  # noqa: E402
from serve_warm.builder.bench import machine  # noqa: E402

DECODE, HALF = DECODERS = ("decode", "half_precision")
LEVELS = (2, 3)
LONGEST_S = {2: 5.0, 3: 2.0}
"""Longest time from loading to the proof in half precision, for each level."""
STARTS = {"vit_large": "vit_tiny", "whisper_large": "whisper_tiny"}
"""The tiny workload of each model. Its workload for a GPU is the model's name with `_gpu`."""
NAMES = (*DECODERS, *STARTS)
ENTRANTS = (
    Entrant(system="cold"),
    Entrant(system="torch_bytes"),
    *(Entrant(system="serve_warm", level=level) for level in LEVELS),
)
MOST_DISPATCH_US = 50.0
MANY_CORES = 8
LATE = "not done within"
"""Part of bench_startup.py's message about a process that exceeded its limit."""
GUESSES_S = {"decode": 150.0, "make": 240.0, "turn": 150.0}
"""Estimated seconds of a piece, for use before a piece of its kind has run."""


class Late(Exception):
    """A piece did not finish in the remaining time. The next run starts it again."""


class Run:
    """One run of this program, with its pieces and their order."""

    def __init__(self, pieces: Pieces, work: Path, *, turns: int, tiny: bool) -> None:
        self.pieces = pieces
        self._work = work
        self._turns = turns
        self._tiny = tiny

    def names_of(self, models: Sequence[str]) -> list[str]:
        """Return the pieces of these models. The first figures of all models come first."""
        names = [f"{case}/{level}" for case in DECODERS if case in models for level in LEVELS]
        names += [f"{HALF}/static"] * (HALF in models)
        starts = [name for name in STARTS if name in models]
        for name in starts:
            names += [f"{name}/make", f"{name}/turn-1"]
        for turn in range(2, self._turns + 1):
            names += [f"{name}/turn-{turn}" for name in starts]
        return names

    def do(self, name: str) -> bool:
        """Do a piece, unless an earlier run did it; return whether it is done."""
        model, what = name.split("/")
        kind = DECODE if model in DECODERS else what.partition("-")[0]

        def piece(left_s: float) -> dict[str, Any]:
            if model in DECODERS:
                return self._decode(model, what, left_s)
            if what == "make":
                return self._make(model, left_s)
            return self._turn(model, int(what.partition("-")[2]), left_s)

        try:
            found = self.pieces.do_once(
                name, piece, kind=f"{model} {kind}", guess_s=5.0 if self._tiny else GUESSES_S[kind]
            )
        except Late as late:
            sys.stderr.write(f"{name}: {late}\n")
            return False
        return found is not None

    def _decode(self, case: str, what: str, limit_s: float) -> dict[str, Any]:
        """Build and start at the level `what`, or measure a static cache of transformers."""
        folder = self._work / case / f"level-{what}"
        shutil.rmtree(folder, ignore_errors=True)
        is_static = what == "static"
        found: dict[str, Any] = {} if is_static else {"level": int(what)}
        end_s = time.monotonic() + limit_s
        for do in ("static",) if is_static else ("build", "start"):
            program = str(Path(__file__).parent / "decode_process.py")
            command = [sys.executable, program, case, do, "--in", str(folder / "entries")]
            command += [] if is_static else ["--level", what]
            command += ["--tiny"] * self._tiny
            try:
                ended = subprocess.run(
                    command,
                    env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")},
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=max(1.0, end_s - time.monotonic()),
                )
            except subprocess.TimeoutExpired as error:
                raise Late(f"{do}: {LATE} {limit_s:.0f} s") from error
            if ended.returncode:
                return {**found, "failure": f"{do}: {ended.stderr[-3000:]}"}
            found |= json.loads(ended.stdout.splitlines()[-1])
        return found

    def _bench(self, limit_s: float) -> Bench:
        work = self._work / "starts"
        work.mkdir(parents=True, exist_ok=True)
        at_once = 3 if (os.cpu_count() or 1) >= MANY_CORES else bench_startup.AT_ONCE
        return Bench(work=work, limit_s=limit_s, is_strict=False, at_once=at_once)

    def workload(self, model: str) -> str:
        return STARTS[model] if self._tiny else f"{model}_gpu"

    def _make(self, model: str, limit_s: float) -> dict[str, Any]:
        bench, workload = self._bench(limit_s), self.workload(model)
        shutil.rmtree(bench.work / workload, ignore_errors=True)
        not_measured, failures, took_s = bench_startup.make_artifacts(bench, workload, ENTRANTS)
        late = [why for why in failures.values() if LATE in why]
        if late:
            raise Late(late[0])
        return {
            "failures": {str(e): why for e, why in {**not_measured, **failures}.items() if why},
            "took_s": {str(entrant): round(s, 1) for entrant, s in took_s.items()},
        }

    def _turn(self, model: str, turn: int, limit_s: float) -> dict[str, Any]:
        end_s, found = time.monotonic() + limit_s, dict[str, Any]()
        made = self.pieces.found(f"{model}/make") or {"failures": {}}
        if not (self._work / "starts" / self.workload(model)).exists():
            # The artifacts of earlier turns are on another machine.
            made = self._make(model, limit_s)
        # Reverse the order in every second turn, because each start warms things for the next one.
        for entrant in ENTRANTS if turn % 2 else reversed(ENTRANTS):
            if str(entrant) in made["failures"]:
                continue
            bench = self._bench(max(1.0, end_s - time.monotonic()))
            try:
                start = bench.start(self.workload(model), entrant)
                found[str(entrant)] = {"turn": turn, **start}
            except Failed as error:
                if LATE in str(error):
                    raise Late(str(error)) from error
                found[str(entrant)] = {"turn": turn, "failure": str(error)}
        return found

    def document(self, models: Sequence[str]) -> dict[str, Any]:
        """Return all results so far."""
        decoders = {
            case: [self.pieces.found(f"{case}/{level}") for level in LEVELS] for case in DECODERS
        }
        rows, made = [], {}
        for model in (name for name in STARTS if name in models):
            making = self.pieces.found(f"{model}/make")
            if making is not None:
                made[self.workload(model)] = making
                rows += self._rows(model, making["failures"])
        return bench_startup.rounded(
            {
                "benchmark": "models that people serve",
                "machine": machine(),
                "is_tiny": self._tiny,
                **{case: [*filter(None, levels)] for case, levels in decoders.items()},
                "static_cache": self.pieces.found(f"{HALF}/static"),
                "made": made,
                "rows": [row.to_json() for row in rows],
            }
        )

    def _rows(self, model: str, failures: Mapping[str, str]) -> Sequence[bench_startup.Row]:
        found = [self.pieces.found(f"{model}/turn-{n}") for n in range(1, self._turns + 1)]
        rows = []
        for entrant in ENTRANTS:
            starts = [turn[str(entrant)] for turn in found if turn and str(entrant) in turn]
            whys = [start["failure"] for start in starts if "failure" in start]
            rows.append(
                bench_startup.row_of(
                    self.workload(model),
                    entrant,
                    [start for start in starts if "failure" not in start],
                    failure=failures.get(str(entrant), whys[0] if whys else ""),
                )
            )
        return bench_startup.compared(rows)


def failures_of(found: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each wrong result in a document."""
    said = []
    for case in DECODERS:
        for row in found[case]:
            why = failures_of_decode(row, is_half=case == HALF, is_tiny=found["is_tiny"])
            said += [f"{case}, level {row['level']}: {text}" for text in why]
    if "failure" in (found["static_cache"] or {}):
        said.append(f"static cache: {found['static_cache']['failure']}")
    for row in found["rows"]:
        name = f"{row['workload']}, {row['system']} {row['level'] or ''}".strip()
        if row["failure"]:
            said.append(f"{name}: {row['failure']}")
        for run in row["runs"]:
            said += [f"{name}, turn {run['turn']}: {why}" for why in run.get("not_as_built", ())]
    return said


def failures_of_decode(row: Mapping[str, Any], *, is_half: bool, is_tiny: bool) -> list[str]:
    """Return a text for each wrong result of a level of decoding."""
    if row.get("failure"):
        return [row["failure"]]
    said = [f"refused: {reason}" for reason in row["refused"]]
    said += [row["why"]] if row["why"] else []
    # In half precision, another order of additions may give another token.
    said += [] if row["tokens_equal"] or is_half else ["other tokens than eager's"]
    said += [f"level {level}: {why}" for level, why in row["uses"] if level != row["level"]]
    for key in ("compiles", "compiler_processes", "graph_skips", "captures_in_steps"):
        said += [f"{row[key]} {key}"] if row[key] else []
    if row["dispatch_us"] > MOST_DISPATCH_US:
        said.append(f"dispatch takes {row['dispatch_us']} µs")
    if not is_tiny:
        said += [
            f"{row[key]} {key}, and one is asked"
            for key in ("launches_of_prefill", "launches_of_decode")
            if row.get(key, 1) != 1
        ]
        if is_half and row["to_proof_s"] > LONGEST_S[row["level"]]:
            said.append(f"{row['to_proof_s']} s to the proof")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(NAMES), help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", type=Path, default=TESTS.parent / "build" / "models_gpu")
    parser.add_argument("--limit-s", type=float, default=480.0)
    parser.add_argument("--tiny", action="store_true", help="tiny models, without a GPU")
    options = parser.parse_args()
    models = options.models.split(",")
    unknown = sorted({*models} - {*NAMES})
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(NAMES)}")
    work = options.work.resolve() / ("tiny" if options.tiny else "gpu")
    pieces = Pieces(work, limit_s=options.limit_s)
    run = Run(pieces, work, turns=options.turns, tiny=options.tiny)
    is_done, found = True, run.document(NAMES)
    for name in run.names_of(models):
        is_done = run.do(name)
        found = run.document(NAMES)
        if options.json is not None:
            bench_startup.write(options.json, json.dumps(found, indent=1) + "\n")
        if not is_done:
            break
    sys.stdout.write(f"{json.dumps(found, indent=1)}\n")
    wrong = failures_of(found)
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    if not is_done:
        sys.stderr.write("pieces are left: run it again\n")
        return MORE
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
