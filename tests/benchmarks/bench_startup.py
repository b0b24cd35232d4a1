# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A comparison of starts: serve_warm, and the systems that a user could use instead.

    python tests/benchmarks/bench_startup.py [--workloads minilm,recipe64] [--systems cold,eager]
        [--levels 1,2,3] [--repeats 3] [--json out.json] [--picture out.svg]
        [--add-to out.json]

Each start is a fresh process with empty cache directories and one thread. Before the starts, each
system's artifact is made once, two artifacts at a time. This is not measured. Then, in each turn,
all systems start one after the other, so that other work on the machine affects all of them. Ratios
are medians of the ratios within a turn. Ray is not used, because its start-up is the same for all
systems. The clocks:

    to_proof_s     built model → end of the proof: import of the compiler, artifact, passes
    overhead_s     to_proof_s less the steady compute of the passes
    import_left_s  the part of the compiler's import that counts in overhead_s: all of it, unless
                   the import began while the model was built
    past_import_s  overhead_s less import_left_s
    ready_s        process start → end of the proof
    cpu_s          CPU of the process and of the compilers it waited for, process start → proof
    floor_s        imports, weights and passes, with nothing in between

serve_warm works while the weights load. So its `floor_s` uses the imports and weights of the row
`floor`: another process of the same turn, which does only these steps, one after the other. There
are two such rows, because starts up to level 2 import the compiler, and starts at level 3 do not.

All four models take an hour and a half on an otherwise idle machine. `--add-to` measures some of
the models, and keeps the results of an earlier run with the same versions for the other models. No
figure compares two models.

Each start is the first one on its node: the folder for temporary files is empty too. torch
precompiles its C++ headers into this folder, which costs the first start on a node about 5 s.

The benchmark compares every output with the eager model's. Progress goes to stderr. The exit status
is 1 if an output is wrong, or if eager, cold or serve_warm fails. A
failure of another system is a result.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks import picture, start_process, workloads  # noqa: E402 - found through the line above
from serve_warm.builder.bench import machine  # noqa: E402

PROGRAM = HERE / "start_process.py"
TOLERANCE = 1e-3
"""Largest allowed difference from the eager model. A workload may set its own."""

LIMIT_S = 1200.0
"""Time limit of a process. A process that exceeds it counts as a failure."""

NEEDS = {
    "eager": "nothing",
    "cold": "a C++ compiler",
    "torch_bytes": "a C++ compiler, because the bytes contain sources instead of libraries",
    "copied_dir": "an installed C++ compiler, and the same kind of CPU (torch does not check this)",
    "redis": "a server that every replica can reach, and a C++ compiler",
    "caching_precompile": "an experimental switch, torch's bytes and the cache directory",
    "aotinductor": "a model that torch.export supports; a package with the weights for each input; "
    "the same kind of CPU (a different CPU causes only a warning); a C++ compiler for this check",
    "serve_warm": "an artifact, and a trusted key",
    "floor": "the level's imports, the weights and the level's passes, one after the other",
}
"""What each system needs for a start. The keys are the systems, in the order of the results."""

SYSTEMS = tuple(NEEDS)
LEVELS = (1, 2, 3)
MUST_WORK = {"eager", "cold", "serve_warm"}

PRODUCERS = {"torch_bytes": "cold", "copied_dir": "cold"}
"""Systems whose artifact comes from the producing run of another system."""

AT_ONCE = 2
"""Artifacts that are made at the same time. A compile uses only one core for most of its time."""

WITHOUT_ARTIFACT = {"eager", "cold", "floor"}

ENVIRONMENTS = {
    "redis": {
        "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "1",
        "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "1",
        "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO": "1",
    },
    "caching_precompile": {"TORCH_CACHING_PRECOMPILE": "1"},
}
"""Environment variables that enable a system, besides the address of the Redis server."""


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """A system at a level."""

    system: str
    level: int | None = None

    def __str__(self) -> str:
        return self.system if self.level is None else f"{self.system} level {self.level}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Medians of the starts of one system on one workload. `None` means that there is no figure."""

    workload: str
    system: str
    level: int | None
    to_proof_s: float | None = None
    overhead_s: float | None = None
    past_import_s: float | None = None
    """`overhead_s` less `import_left_s`."""
    import_left_s: float | None = None
    """The part of `overhead_s` that is import of the compiler."""
    cpu_s: float | None = None
    ready_s: float | None = None
    floor_s: float | None = None
    compiler_processes: int | None = None
    artifact_bytes: int | None = None
    steady_p50_s: float | None = None
    """For the smallest input, after the proof."""
    steady_largest_p50_s: float | None = None
    peak_rss_bytes: int | None = None
    """Largest resident set until the proof."""
    passes: int | None = None
    compute_s: float | None = None
    """Steady compute of the passes."""
    stages: Mapping[str, float] = dataclasses.field(default_factory=dict)
    cpu_stages: Mapping[str, float] = dataclasses.field(default_factory=dict)
    max_error: float | None = None
    ratios: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Medians over the turns of two kinds of ratios: the seconds to_proof, overhead, past_import
    and CPU relative to those of cold and of torch_bytes, and ready relative to the floor."""
    failure: str = ""
    """Why there are no figures: for example, the message of the first start that failed."""
    not_measured: str = ""
    """Why nothing was started."""
    note: str = ""
    runs: Sequence[Mapping[str, Any]] = ()
    """The output of each start, by turn."""

    @property
    def wrong(self) -> bool:
        """Whether this row makes the benchmark fail."""
        differs = self.max_error is not None and self.max_error > tolerance_of(self.workload)
        return differs or bool(self.failure and self.system in MUST_WORK)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


MEDIANS = (
    *("to_proof_s", "overhead_s", "past_import_s", "import_left_s", "cpu_s", "ready_s"),
    *("floor_s", "compiler_processes"),
    *("artifact_bytes", "steady_p50_s", "steady_largest_p50_s", "peak_rss_bytes", "passes"),
    "compute_s",
)
WHOLE = {"compiler_processes", "artifact_bytes", "peak_rss_bytes", "passes"}


# Starting processes ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The folder of the artifacts, and the environment of the processes."""

    work: Path
    redis_port: int | None = None
    """Port of the benchmark's own Redis server. `None` means that there is no server."""
    at_once: int = AT_ONCE
    """Artifacts that are made at the same time."""
    limit_s: float = LIMIT_S
    """Time limit of a process. A process that exceeds it counts as a failure."""
    is_strict: bool = True
    """Whether a start of serve_warm fails, and has no figures, if it is not a full hit."""

    def produce(self, workload: str, producer: Entrant) -> str:
        """Make an artifact. Return why it cannot be made here, or an empty string.

        Raises:
            Failed: the process that makes the artifact failed.
        """
        if producer.system == "redis":
            if self.redis_port is None:
                return "redis-server is not installed: apt-get install redis-server"
            empty_redis(self.redis_port)
        self.folder(workload, producer).mkdir(parents=True)
        return str(self.start(workload, producer, role="produce").get("unavailable", ""))

    def folder(self, workload: str, entrant: Entrant) -> Path:
        producer = producer_of(entrant) or entrant
        return self.work / workload / f"{producer.system}-{producer.level or 0}"

    def start(self, workload: str, entrant: Entrant, *, role: str = "start") -> dict[str, Any]:
        """Start one process, and return its output.

        Raises:
            Failed: the process failed or exceeded its time limit. The message gives the reason.
        """
        options = {
            "workload": workload,
            "system": entrant.system,
            "level": entrant.level,
            "folder": str(self.folder(workload, entrant)),
            "role": role,
            "is_strict": self.is_strict,
        }
        with tempfile.TemporaryDirectory(prefix="start-", dir=self.work) as node:
            environment = self._environment(entrant.system, Path(node))
            options["spawned_s"] = time.monotonic()
            try:
                ended = subprocess.run(
                    [sys.executable, str(PROGRAM), json.dumps(options)],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=self.limit_s,
                )
            except subprocess.TimeoutExpired as error:
                raise Failed(f"not done within {self.limit_s:.0f} s") from error
        if ended.returncode:
            raise Failed(last_words(ended.stderr) or f"exit status {ended.returncode}")
        said: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return said

    def _environment(self, system: str, node: Path) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TORCH", "TRITON", "SERVE_WARM", "OMP_", "MKL_"))
        }
        for name in ("inductor", "triton"):
            (node / name).mkdir(mode=0o700)
        redis = {
            "TORCHINDUCTOR_REDIS_HOST": "127.0.0.1",
            "TORCHINDUCTOR_REDIS_PORT": str(self.redis_port),
        }
        temporary = node / "tmp"
        temporary.mkdir(mode=0o700)
        return {
            **kept,
            "TMPDIR": str(temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(node / "inductor"),
            "TRITON_CACHE_DIR": str(node / "triton"),
            "OMP_NUM_THREADS": "1",
            **(redis if system == "redis" else {}),
            **ENVIRONMENTS.get(system, {}),
        }


def producer_of(entrant: Entrant) -> Entrant | None:
    """Return the entrant whose producing run makes a system's artifact; `None` if it needs none."""
    if entrant.system in WITHOUT_ARTIFACT:
        return None
    name = PRODUCERS.get(entrant.system, entrant.system)
    return Entrant(system=name, level=entrant.level)


class Failed(Exception):
    """A step of the benchmark failed."""


def last_words(stderr: str) -> str:
    """Return the failure message that a process wrote, or else its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = [line.removeprefix("failure=") for line in lines if line.startswith("failure=")]
    return (said or lines or [""])[-1][:300]


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[int | None]:
    """Run a Redis server in memory. Yield its port, or `None` if Redis is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "no"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            wait_for(port, server)
            yield port
        finally:
            server.terminate()


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise Failed(f"redis-server does not answer on port {port}")


def empty_redis(port: int) -> None:
    import redis

    with redis.Redis(host="127.0.0.1", port=port) as server:
        server.flushall()


# The comparison -------------------------------------------------------------------------------


def measure(
    bench: Bench, workload: str, entrants: Sequence[Entrant], repeats: int
) -> Sequence[Row]:
    """Return a row for each system. Make the artifacts first, then start the systems in turn."""
    runs: dict[Entrant, list[dict[str, Any]]] = {entrant: [] for entrant in entrants}
    not_measured, failures, _ = make_artifacts(bench, workload, entrants)
    for entrant in entrants:
        if entrant.system == "floor":
            # A floor is measured only if serve_warm is measured at its level.
            ours = Entrant(system="serve_warm", level=entrant.level)
            not_measured[entrant] = not_measured.get(ours, "")
    out = {entrant for entrant in entrants if not_measured.get(entrant) or entrant in failures}
    for turn in range(1, repeats + 1):
        for entrant in entrants:
            if entrant in out:
                continue
            try:
                found = bench.start(workload, entrant)
            except Failed as error:
                failures[entrant] = str(error)
                out.add(entrant)
                say(f"{workload}: {entrant} {turn}/{repeats}: {error}")
                continue
            runs[entrant].append({"turn": turn, **found})
            say(
                f"{workload}: {entrant} {turn}/{repeats}: to proof {found['to_proof_s']:.2f} s, "
                f"overhead {found['overhead_s']:.2f} s, ready {found['ready_s']:.2f} s, "
                f"compiler runs {found['compiler_processes']}"
            )
    with_floor(runs)
    return compared(
        [
            row_of(
                workload,
                entrant,
                runs[entrant],
                failure=failures.get(entrant, ""),
                not_measured=not_measured.get(entrant, ""),
            )
            for entrant in entrants
        ]
    )


def make_artifacts(
    bench: Bench, workload: str, entrants: Sequence[Entrant]
) -> tuple[dict[Entrant, str], dict[Entrant, str], dict[Entrant, float]]:
    """Make the artifacts for the starts.

    Return why entrants are not measured, why they have failed, and the seconds of each producer.
    """
    producers = dict.fromkeys(filter(None, map(producer_of, entrants)))
    not_measured: dict[Entrant, str] = {}
    failures: dict[Entrant, str] = {}
    took_s: dict[Entrant, float] = {}

    def make(producer: Entrant) -> None:
        words, begin = "artifact made", time.monotonic()
        try:
            not_measured[producer] = bench.produce(workload, producer)
            words = not_measured[producer] or words
        except Failed as error:
            failures[producer] = words = f"no artifact: {error}"
        took_s[producer] = time.monotonic() - begin
        say(f"{workload}: {producer}: {words}")

    with ThreadPoolExecutor(bench.at_once) as pool:
        list(pool.map(make, producers))

    def of_its_producer(found: Mapping[Entrant, str]) -> dict[Entrant, str]:
        made_by = {entrant: producer_of(entrant) for entrant in entrants}
        return {entrant: found[made] for entrant, made in made_by.items() if made in found}

    return of_its_producer(not_measured), of_its_producer(failures), took_s


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def tolerance_of(workload: str) -> float:
    """Return the largest allowed difference from the eager model on a workload."""
    known = workloads.ALL.get(workload)
    return TOLERANCE if known is None else known.tolerance


def row_of(
    workload: str,
    entrant: Entrant,
    runs: Sequence[Mapping[str, Any]],
    *,
    failure: str = "",
    not_measured: str = "",
) -> Row:
    """Return the medians of `runs`, or a row without figures if a run is wrong or failed."""
    worst = max((run["max_error"] for run in runs), default=None)
    if worst is not None and worst > tolerance_of(workload):
        failure = f"wrong numbers: {worst:.1e} from the eager model"
    figures: dict[str, Any] = {}
    if runs and not failure:
        figures = {name: statistics.median([run[name] for run in runs]) for name in MEDIANS}
        figures.update({name: round(figures[name]) for name in WHOLE})
        for name in ("stages", "cpu_stages"):
            figures[name] = {
                stage: statistics.median([run[name][stage] for run in runs])
                for stage in runs[0][name]
            }
    return Row(
        workload=workload,
        system=entrant.system,
        level=entrant.level,
        max_error=worst,
        failure=failure,
        not_measured=not_measured,
        note=str(runs[-1]["note"]) if runs else "",
        runs=runs,
        **figures,
    )


def with_floor(runs: Mapping[Entrant, list[dict[str, Any]]]) -> None:
    """Add serve_warm's passes to the imports and weights of its floor, within each turn.

    A floor takes the passes of its own level. A turn that lacks a start of either stays unchanged.
    """
    ours = [entrant for entrant in runs if entrant.system == "serve_warm"]
    floors = {
        needs_compiler(entrant.level): entrant for entrant in runs if entrant.system == "floor"
    }
    for entrant in ours:
        floor = floors.get(needs_compiler(entrant.level))
        by_turn = {run["turn"]: run for run in runs[floor]} if floor else {}
        for run in runs[entrant]:
            base = by_turn.get(run["turn"])
            if base is None:
                continue
            stages, cpu_stages = base["stages"], base["cpu_stages"]
            before = ("imports", "weights", "compiler")
            run["floor_s"] = sum(stages[name] for name in before) + run["compute_s"]
            if floor != Entrant(system="floor", level=entrant.level):
                continue
            a_pass_s = run["compute_s"] / run["passes"]
            quiet_s = a_pass_s * (run["passes"] - 2)
            passes = {"load": 0.0, "first_pass": a_pass_s, "quiet": quiet_s, "proof": a_pass_s}
            base.update(
                to_proof_s=stages["compiler"] + run["compute_s"],
                overhead_s=stages["compiler"],
                import_left_s=stages["compiler"],
                past_import_s=0.0,
                ready_s=run["floor_s"],
                floor_s=run["floor_s"],
                # One thread computes, so its CPU time is the wall time.
                cpu_s=sum(cpu_stages[name] for name in before) + run["compute_s"],
                stages={**stages, **passes},
                cpu_stages={**cpu_stages, **passes},
                **{name: run[name] for name in ("passes", "compute_s", "steady_p50_s")},
                steady_largest_p50_s=run["steady_largest_p50_s"],
                note=f"passes of level {entrant.level}",
            )


def needs_compiler(level: int | None) -> bool:
    """Whether a start at a level imports Dynamo and Inductor."""
    return (level or 0) < start_process.WITHOUT_COMPILER


def compared(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows with their ratios. Each start is compared with other starts of its turn."""
    sound = [row for row in rows if not row.failure]
    by_system = {row.system: {run["turn"]: run for run in row.runs} for row in sound}
    result = []
    for row in rows:
        ratios = {}
        for other in ("cold", "torch_bytes"):
            for clock in ("to_proof_s", "overhead_s", "past_import_s", "cpu_s"):
                pairs = [
                    run[clock] / by_system[other][run["turn"]][clock]
                    for run in row.runs
                    if run["turn"] in by_system.get(other, {})
                ]
                if pairs and row.to_proof_s is not None:
                    ratios[f"{clock.removesuffix('_s')}_to_{other}"] = statistics.median(pairs)
        if row.ready_s is not None:
            ratios["ready_to_floor"] = statistics.median(
                [r["ready_s"] / r["floor_s"] for r in row.runs]
            )
        result.append(dataclasses.replace(row, ratios=ratios))
    return result


def document(rows: Sequence[Row], *, repeats: int, command: str, took_s: float) -> dict[str, Any]:
    """Return all results, in the form in which they are written."""
    found: dict[str, Any] = rounded(
        {
            "benchmark": "starts side by side",
            "command": command,
            "took_s": took_s,
            "machine": machine(),
            "threads": 1,
            "repeats": repeats,
            "tolerance": TOLERANCE,
            "needs": NEEDS,
            "titles": {row.workload: workloads.ALL[row.workload].title for row in rows},
            "rows": [row.to_json() for row in rows],
        }
    )
    return found


def added(earlier: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the models of both. New measurements replace old ones.

    Raises:
        Failed: the two documents were not measured in the same way.
    """
    alike = ("benchmark", "machine", "threads", "repeats", "tolerance", "needs")
    others = [key for key in alike if earlier.get(key) != found[key]]
    if others:
        raise Failed(f"it was measured with another {' and '.join(others)}: measure all again")
    kept = [row for row in earlier["rows"] if row["workload"] not in found["titles"]]
    titles = {**earlier["titles"], **found["titles"]}
    order = {name: place for place, name in enumerate(workloads.ALL)}
    return {
        **found,
        "command": f"{earlier['command']} && {found['command']}",
        "took_s": rounded(earlier["took_s"] + found["took_s"]),
        "titles": {name: titles[name] for name in sorted(titles, key=order.__getitem__)},
        "rows": sorted([*kept, *found["rows"]], key=lambda row: order[row["workload"]]),
    }


def rounded(value: Any) -> Any:
    """Round each float in `value` to seven digits. No clock is more precise."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)


def entrants_of(systems: Sequence[str], levels: Sequence[int]) -> Sequence[Entrant]:
    return [
        Entrant(system=system, level=level)
        for system in SYSTEMS
        if system in systems
        for level in levels_of(system, levels)
    ]


def levels_of(system: str, levels: Sequence[int]) -> Sequence[int | None]:
    """Return the levels at which a system starts. A system without levels has the level `None`."""
    if system == "serve_warm":
        return levels
    if system == "floor":
        # One floor for each set of imports, with the passes of the highest level that needs these
        # imports.
        return sorted({needs_compiler(level): level for level in sorted(levels)}.values())
    return (None,)


def names_in(known: Sequence[str]) -> Any:
    def names(text: str) -> Sequence[str]:
        wanted = [word.strip() for word in text.split(",")]
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"unknown: {', '.join(unknown)}; known: {', '.join(known)}"
            )
        return wanted

    return names


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--workloads",
        type=names_in(list(workloads.ALL)),
        default=workloads.COMPARED,
        help=f"some of {', '.join(workloads.ALL)} (default {','.join(workloads.COMPARED)})",
    )
    parser.add_argument(
        "--systems",
        type=names_in(SYSTEMS),
        default=SYSTEMS,
        help=f"some of {', '.join(SYSTEMS)} (default all)",
    )
    parser.add_argument(
        "--levels",
        type=lambda text: [int(word) for word in text.split(",")],
        default=LEVELS,
        help="levels of serve_warm (default 1,2,3)",
    )
    parser.add_argument("--repeats", type=int, default=3, help="turns (default 3)")
    parser.add_argument(
        "--json", type=Path, action="append", default=[], help="file of results; repeatable"
    )
    parser.add_argument("--picture", type=Path, help="where to draw the results, as SVG")
    parser.add_argument(
        "--add-to", type=Path, help="JSON of an earlier run, whose other models are kept"
    )
    options = parser.parse_args(arguments)
    earlier = json.loads(options.add_to.read_text()) if options.add_to else None
    began = time.monotonic()
    words = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "tests/benchmarks/bench_startup.py", *words])
    entrants = entrants_of(options.systems, options.levels)
    rows: list[Row] = []
    if earlier:
        # Fail now, before an hour is spent on results that cannot be added.
        nothing = document([], repeats=options.repeats, command="", took_s=0.0)
        try:
            added(earlier, nothing)
        except Failed as error:
            parser.error(f"nothing can be added to {options.add_to}: {error}")
    with tempfile.TemporaryDirectory(prefix="sw-bench-") as work, redis_server(Path(work)) as port:
        bench = Bench(work=Path(work), redis_port=port)
        for workload in options.workloads:
            rows += measure(bench, workload, entrants, options.repeats)
            # Write after each model, so that an interrupted run leaves results.
            found = document(
                rows, repeats=options.repeats, command=command, took_s=time.monotonic() - began
            )
            if earlier:
                found = added(earlier, found)
            for path in options.json:
                write(path, json.dumps(found, indent=1, allow_nan=False) + "\n")
            if options.picture:
                write(options.picture, picture.svg(found))
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
