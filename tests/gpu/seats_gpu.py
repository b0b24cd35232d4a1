# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Measures how long replicas on a GPU take to start, on a seat and without one.

    python tests/gpu/seats_gpu.py [--turns 10] [--models resnet152,text_generator]
        [--json tests/benchmarks/results/seats.json] [--work build/seats_gpu] [--limit-s 480]
    python tests/gpu/seats_gpu.py --cpu --turns 1      tiny models, without a GPU

The starts are those of bench_seats.py. Needs Ray and one GPU. The builds, and each cluster of a
turn, are pieces, which take one to a few minutes. The work folder has a file with the result of
each piece; delete the folder to start over. After each complete turn, the program writes the key
`gpu` of the JSON: for each model, a document like that of bench_seats.py. Except for the first
piece, a run begins no piece that could end after its limit. While pieces are left, it ends with
status 75: run it again.

The exit status is 1 if answers differ, a start on a seat is not a full hit, its fingerprint differs
from the plain start's, or everything except weights, the CUDA context, passes and parity takes over
0.5 s. It is also 1 if a piece does not finish in the remaining time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from benchmarks import bench_seats  # noqa: E402 - found through the line above
from gpu import pieces  # noqa: E402

MOST_OF_THE_REST_S = 0.5
REST = ("process", "ray", "imports", "ours")
"""Owners of all seconds except those of weights, the CUDA context, passes and parity."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model to start, and its tiny form for a CPU."""

    deployment: str
    app: str
    arguments: tuple[Any, ...]
    tiny_arguments: tuple[Any, ...]
    imports: tuple[str, ...]

    def app_name(self, *, cpu: bool) -> str:
        return f"gpu.seat_models:{'tiny_' if cpu else ''}{self.app}"

    def subject(self, store: Path, *, cpu: bool) -> bench_seats.Subject:
        from gpu import seat_models

        return bench_seats.Subject(
            deployment=getattr(seat_models, self.deployment),
            store=store,
            imports=self.imports,
            arguments=self.tiny_arguments if cpu else self.arguments,
            actor=seat_models.ON_CPU if cpu else seat_models.ON_GPU,
        )


MODELS = {
    "resnet152": Model(
        deployment="SeatedClassifier",
        app="classifier",
        arguments=("cuda",),
        tiny_arguments=("cpu", (1, 1, 1, 1)),
        imports=("gpu.seat_models", "transformers.models.resnet.modeling_resnet"),
    ),
    "text_generator": Model(
        deployment="SeatedGenerator",
        app="generator",
        arguments=("cuda",),
        tiny_arguments=("cpu", 1),
        imports=("gpu.seat_models", "serve_warm.generation"),
    ),
}


class Pieces(pieces.Pieces):
    """The pieces of all models: a build, and the clusters of each turn."""

    def __init__(self, work: Path, *, limit_s: float, cpu: bool) -> None:
        super().__init__(work, limit_s=limit_s)
        self._cpu = cpu

    def run(self, name: str, number: int, kind: str) -> dict[str, Any] | None:
        """Return the result of a piece, from now or an earlier run; None if no time is left."""
        return self.do_once(
            f"{name}/{number}-{kind}",
            lambda left_s: self._do(name, number, kind, left_s),
            kind=kind,
        )

    def _do(self, name: str, number: int, kind: str, limit_s: float) -> dict[str, Any]:
        model, store = MODELS[name], self._work / name / "store"
        if kind == "build":
            bench_seats.build(store, model.app_name(cpu=self._cpu))
            return {}
        command = [sys.executable, __file__, "--model", name, "--work", str(self._work)]
        load = os.getloadavg()[0]
        found = bench_seats.run_kind(
            kind, number, [*command, *(["--cpu"] * self._cpu)], model.imports, limit_s=limit_s
        )
        return {**found, "load": load}


def run_all(
    models: Pieces, names: Sequence[str], turns: int, write: Any
) -> tuple[dict[str, Any], bool]:
    """Return a document for each model with a complete turn, and whether all pieces are done."""
    documents: dict[str, Any] = {}
    for name in names:
        if models.run(name, 0, "build") is None:
            return documents, False
        complete: list[dict[str, Any]] = []
        for number in range(turns):
            turn: dict[str, Any] = {"starts": {}}
            for kind in bench_seats.KINDS:
                found = models.run(name, number, kind)
                if found is None:
                    return documents, False
                starts = {**turn["starts"], **found["starts"]}
                turn = {**turn, **found, "starts": starts}
            complete.append(turn)
            documents[name] = bench_seats.summary(complete)
            del documents[name]["gpu"]
            write(documents)
    return documents, True


def failures(name: str, found: Mapping[str, Any]) -> list[str]:
    said = bench_seats.failures_of_answers(found)
    rest_s = sum(found["seconds"]["seat"][owner] for owner in REST)
    if rest_s > MOST_OF_THE_REST_S:
        said.append(f"{rest_s:.2f} s of a start on a seat are of {', '.join(REST)}")
    return [f"{name}: {text}" for text in said]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", type=Path, default=TESTS.parent / "build" / "seats_gpu")
    parser.add_argument("--limit-s", type=float, default=480.0)
    parser.add_argument("--cpu", action="store_true", help="tiny models, without a GPU")
    parser.add_argument("--one", choices=bench_seats.KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--model", choices=MODELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = options.work.resolve()
    if options.one is not None:
        subject = MODELS[options.model].subject(work / options.model / "store", cpu=options.cpu)
        if options.one == "node":
            one = bench_seats.turn_of_node(subject)
        else:
            one = bench_seats.turn_of_seats(options.number, subject, seats=1, extras=False)
        sys.stdout.write(f"{json.dumps(one)}\n")
        return 0

    def write(documents: Mapping[str, Any]) -> None:
        if options.json is not None:
            old = json.loads(options.json.read_text()) if options.json.exists() else {}
            options.json.write_text(f"{json.dumps({**old, 'gpu': documents}, indent=1)}\n")

    models = Pieces(work, limit_s=options.limit_s, cpu=options.cpu)
    try:
        found, is_done = run_all(models, options.models.split(","), options.turns, write)
    except subprocess.TimeoutExpired as error:
        sys.stderr.write(f"a piece took over {error.timeout:.0f} s\n")
        return 1
    sys.stdout.write(f"{json.dumps({'gpu': found}, indent=1)}\n")
    if not is_done:
        sys.stderr.write("pieces are left: run it again\n")
        return pieces.MORE
    wrong = [text for name, each in found.items() for text in failures(name, each)]
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
