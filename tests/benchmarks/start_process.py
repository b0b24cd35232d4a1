# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One start of one system on one workload, in this process. Prints its results as JSON.

    python start_process.py '{"workload": "tiny", "system": "cold", "folder": "/a/folder", ...}'

With `"role": "produce"`, the run leaves the system's artifact in the folder. The caller
(bench_startup.py) sets up the environment: threads, empty private cache directories, and the
variables that enable the system. A run that fails exits with a status other than 0, and writes a
line to stderr that begins with `failure=`.

The clock of `to_proof_s` starts when the model is built, and covers the same steps for all systems:
the rest of the compiler's import, the artifact, wrapping the model, passes over all inputs until a
pass compiles nothing, and the proof. If the first pass compiles nothing, the proof follows it, for
every system. AOTInductor builds no model, because its packages contain the weights. So its clock
starts where the weights would be loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import json
import os
import resource
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "support"), str(HERE.parent.parent)]

from outside_serve import OutsideServe  # noqa: E402
from processes import peak_bytes  # noqa: E402

if TYPE_CHECKING:
    from benchmarks.workloads import Example, Workload

WITHOUT_COMPILER = 3
"""Starts from this level on import neither Dynamo nor Inductor."""

AS_WRONG_AS_CAN_BE = 1e300
"""The difference that counts instead of NaN and infinity, because JSON has neither."""

MAX_PASSES = 8
PASSES_TO_CAPTURE = 3
STEADY_CALLS = 30
STEADY_CALLS_AT_LEAST = 5
STEADY_S = 1.5
"""Time limit for the calls whose median is a steady latency. At least STEADY_CALLS_AT_LEAST are
made."""
STAGES = ("imports", "weights", "compiler", "load", "first_pass", "quiet", "proof")
"""In order. `to_proof_s` is the sum of the stages after `weights`."""

PARTS = {1: ["cache"], 2: ["cache", "precompiled"], 3: ["exported"]}
"""The parts of an artifact that serve_warm loads at each level."""

OBJECT_SUFFIXES = (".so", ".o", ".a", ".dylib", ".pyd", ".dll")
"""The same as in `serve_warm.compiler`. Processes of other systems do not import that module."""

Call = Callable[["Example"], Any]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The system to start, and the time at which the parent started this process."""

    workload: str
    system: str
    folder: str
    """The folder in which the producing run leaves the artifact, and a start finds it."""
    spawned_s: float
    """`time.monotonic()` just before the parent started this process. Processes share this
    clock."""
    level: int | None = None
    role: str = "start"
    is_strict: bool = True
    """Whether a start of serve_warm fails if it is not a full hit."""


class Clock:
    """Wall and CPU seconds of each stage, from the moment that the parent started the process."""

    def __init__(self, spawned_s: float) -> None:
        self.spawned_s = spawned_s
        self.seconds: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self._last = (spawned_s, 0.0)

    def end(self, stage: str, at: tuple[float, float] | None = None) -> None:
        """End a stage now, or at the time `at`. A stage begins where the one before it ended."""
        now = at or self.now()
        self.seconds[stage] = now[0] - self._last[0]
        self.cpu[stage] = now[1] - self._last[1]
        self._last = now

    @staticmethod
    def now() -> tuple[float, float]:
        own = resource.getrusage(resource.RUSAGE_SELF)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
        return time.monotonic(), cpu_s

    @property
    def ready_s(self) -> float:
        return self._last[0] - self.spawned_s

    @property
    def cpu_s(self) -> float:
        return self._last[1]

    @property
    def to_proof_s(self) -> float:
        before = self.seconds["imports"] + self.seconds["weights"]
        return self.ready_s - before


@dataclass(frozen=True, kw_only=True)
class Proven:
    """The result of a start."""

    call: Call
    """Calls the model as it is served."""
    passes: int
    steady_s: float
    """Seconds of the calls of the last pass, which only compute."""


class Eager:
    """No compiler. This is also the base class of the other systems."""

    builds_model = True

    def __init__(self, options: Options, workload: Workload) -> None:
        self.options = options
        self.workload = workload
        self.folder = Path(options.folder)

    def unavailable(self) -> str:
        """Return why this system cannot be measured here, or an empty string."""
        return ""

    def begin(self) -> None:
        """Start work that can run while the model is built."""

    def start(self, module: Any, inputs: Sequence[Example], clock: Clock) -> Proven:
        self.import_compiler()
        clock.end("compiler")
        self.load()
        call = self.wrapped(module, inputs)
        clock.end("load")
        return until_proven(call, inputs, clock, self.workload)

    def import_compiler(self) -> None:
        pass

    def load(self) -> None:
        pass

    def wrapped(self, module: Any, inputs: Sequence[Example]) -> Call:
        return lambda example: module(*example.args, **example.kwargs)

    def save(self) -> None:
        """Write the artifact into the folder. Only the producing run calls this."""

    def artifact_bytes(self) -> int:
        return 0

    def note(self) -> str:
        return ""

    def found(self) -> dict[str, Any]:
        """Return more results of this start."""
        return {}


class Floor(Eager):
    """The minimum of every start: the imports of its level, the weights and the passes.

    The passes run the eager model. The caller replaces their times by those of the compiled model.
    """

    def __init__(self, options: Options, workload: Workload) -> None:
        super().__init__(options, workload)
        importlib.import_module("serve_warm.replica.start.stages")

    def import_compiler(self) -> None:
        if (self.options.level or 0) < WITHOUT_COMPILER:
            import_compiler()

    def note(self) -> str:
        return "passes of the eager model"


class Cold(Eager):
    """torch.compile with empty caches. Its producing run makes torch's bytes and the directory."""

    def import_compiler(self) -> None:
        import_compiler()

    def wrapped(self, module: Any, inputs: Sequence[Example]) -> Call:
        return super().wrapped(self.workload.compiled_by_torch(module), inputs)

    def save(self) -> None:
        import torch

        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None, "torch has no cache artifacts to save"
        self.bytes_file.write_bytes(saved[0])
        shutil.copytree(os.environ["TORCHINDUCTOR_CACHE_DIR"], self.directory)

    @property
    def bytes_file(self) -> Path:
        return self.folder / "torch_bytes"

    @property
    def directory(self) -> Path:
        return self.folder / "cache"

    def load_bytes(self) -> None:
        import torch

        loaded = torch.compiler.load_cache_artifacts(self.bytes_file.read_bytes())
        assert loaded is not None, "torch did not accept its own bytes"

    def copy_directory(self) -> None:
        cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        shutil.copytree(self.directory, cache, dirs_exist_ok=True)

    def note(self) -> str:
        from torch._dynamo.utils import counters

        seen = {**counters["aot_autograd"], **counters["inductor"], **counters["dynamo_cache"]}
        return ", ".join(
            f"{name} {seen[name]}" for name in sorted(seen) if name.endswith(("_hit", "_miss"))
        )


class TorchBytes(Cold):
    """The bytes of torch.compiler.save_cache_artifacts(), loaded into an empty directory."""

    def load(self) -> None:
        self.load_bytes()

    def artifact_bytes(self) -> int:
        return size_of(self.bytes_file)


class CopiedDirectory(Cold):
    """A TORCHINDUCTOR_CACHE_DIR that was filled elsewhere."""

    def load(self) -> None:
        self.copy_directory()

    def artifact_bytes(self) -> int:
        return size_of(self.directory)


class Redis(Cold):
    """torch's remote caches. The environment has the address of the server."""

    def save(self) -> None:
        # A thread of torch writes the entries, so check that the server has some.
        assert self.artifact_bytes() > 0, "the server has no entries"

    def artifact_bytes(self) -> int:
        import redis

        port = int(os.environ["TORCHINDUCTOR_REDIS_PORT"])
        with redis.Redis(host=os.environ["TORCHINDUCTOR_REDIS_HOST"], port=port) as server:
            return sum(server.strlen(key) for key in server.scan_iter())


class CachingPrecompile(Cold):
    """TORCH_CACHING_PRECOMPILE=1 with torch's bytes, the copied directory and inference mode."""

    def load(self) -> None:
        if self.options.role == "start":
            self.copy_directory()
            self.load_bytes()

    def wrapped(self, module: Any, inputs: Sequence[Example]) -> Call:
        import torch

        # Wrapping the model rebuilds the guards, under the mode that is active then.
        with torch.inference_mode():
            return super().wrapped(module, inputs)

    def artifact_bytes(self) -> int:
        return size_of(self.bytes_file) + size_of(self.directory)


class AOTInductor(Eager):
    """One package for each input, made by torch.export. The package contains the weights.

    torch's loader detects the CPU with a C++ compiler, and only warns if the CPU differs
    (torch 2.13, `torch/export/pt2_archive/_package.py`).
    """

    builds_model = False

    def __init__(self, options: Options, workload: Workload) -> None:
        super().__init__(options, workload)
        if options.role == "produce":
            self.builds_model = True

    def import_compiler(self) -> None:
        importlib.import_module("torch._inductor.package")

    def wrapped(self, module: Any, inputs: Sequence[Example]) -> Call:
        import torch

        if self.options.role == "produce":
            self._package(module, inputs)
        loaded = {
            example.name: torch._inductor.aoti_load_package(str(self._file(example)))
            for example in inputs
        }
        return lambda example: loaded[example.name](*example.args, **example.kwargs)

    def _package(self, module: Any, inputs: Sequence[Example]) -> None:
        import torch

        for example in inputs:
            with torch.no_grad():
                exported = torch.export.export(module, example.args, dict(example.kwargs))
                torch._inductor.aoti_compile_and_package(
                    exported, package_path=str(self._file(example))
                )

    def _file(self, example: Example) -> Path:
        return self.folder / f"{example.name.replace(' ', '-')}.pt2"

    def artifact_bytes(self) -> int:
        return size_of(self.folder)


class ServeWarm(Eager):
    """A signed artifact in a store, loaded in the same stages as in a replica, but without Ray."""

    def __init__(self, options: Options, workload: Workload) -> None:
        super().__init__(options, workload)
        # A replica imports this before its start, as it imports Ray, which no system here imports.
        importlib.import_module("serve_warm.replica.start.stages")

    def unavailable(self) -> str:
        level = self.options.level
        return "" if level in PARTS else f"serve_warm has no level {level}"

    def begin(self) -> None:
        from serve_warm.artifact.manifest import Place
        from serve_warm.compiler.caches import keep_headers_private
        from serve_warm.config import WarmupConfig
        from serve_warm.replica.start.context import CompileCaches
        from serve_warm.replica.start.prefetch import Prefetch

        pulls = self.options.role == "start"
        self._config = WarmupConfig.model_validate(
            {
                "artifact": str(self._store) if pulls else None,
                "max_level": self.options.level,
                "on_missing": "fail",
                "on_refused": "fail",
                "on_unproven": "fail",
            }
        )
        # As a replica does when the user's class is instantiated.
        self._caches = CompileCaches()
        self._caches.begin()
        keep_headers_private()
        self._prefetch = None
        if pulls:
            self._prefetch = Prefetch(
                self._config,
                place=Place(application="app", deployment=Replica.deployment),
                trust=trusted(self._key()),
            )
            self._prefetch.begin()

    def start(self, module: Any, inputs: Sequence[Example], clock: Clock) -> Proven:
        import torch

        from serve_warm.replica.start.stages import Warmup

        if not self._without_compiler:
            import_compiler()
        clock.end("compiler")
        replica = Replica(self._compiled(module), inputs, key=self._key(), wait=self.workload.wait)
        self._warmup = Warmup(replica, self._config, caches=self._caches, prefetched=self._prefetch)
        report = asyncio.run(self._warmup.run())
        end = clock.now()
        many = len(inputs)
        clock.end("load", replica.calls[0][0])
        clock.end("first_pass", replica.calls[many - 1][1])
        clock.end("quiet", replica.calls[-many][0])
        clock.end("proof", end)
        if self.options.role == "start":
            self._check(report)
        self._compiler = report.compiler_imported

        def call(example: Example) -> Any:
            with torch.inference_mode():
                out = replica.owner.model(*example.args, **example.kwargs)
            self.workload.wait()
            return out

        return Proven(
            call=call,
            passes=report.passes,
            steady_s=sum(result.steady_s for result in report.inputs),
        )

    def _check(self, report: Any) -> None:
        """Store the report's statements about the artifact.

        Raises:
            RuntimeError: the start is strict, and needed more than the artifact.
        """
        from serve_warm.compiler.watch import watch_process

        verdict = report.verdict.value if report.verdict else "undecided"
        below = [use for use in report.entries if use.level != self.options.level]
        reasons = [
            *([] if verdict == "full_hit" else [f"verdict {verdict}: {report.warmup}"]),
            *(f"{len(below)} of {len(report.entries)} kinds of call: {use}" for use in below),
        ]
        if self._without_compiler and report.compiler_imported == "start":
            reasons.append("torch's compiler was imported, which libraries do without")
        if reasons and self.options.is_strict:
            raise RuntimeError(reasons[0])
        self._found = {
            "verdict": verdict,
            "not_as_built": reasons,
            "entries": [
                {"callable": use.callable, "level": use.level, "reason": use.reason}
                for use in report.entries
            ],
            "parity": None if report.parity is None else dataclasses.asdict(report.parity),
            "counts": dataclasses.asdict(report.warmup),
            "degraded": [*report.degraded],
            "warnings": [*report.warnings],
            "events": [
                {"kind": event.kind, "function": event.function, "reason": event.reason}
                for event in watch_process().events()
            ],
        }

    def found(self) -> dict[str, Any]:
        return self._found

    @property
    def _without_compiler(self) -> bool:
        return self.options.level == 3 and self.options.role == "start"

    def _compiled(self, module: Any) -> Any:
        if self.options.level == 1:
            return self.workload.compiled_by_torch(module)
        import serve_warm

        if self.workload.blocks:
            return serve_warm.compile_regions(
                module, self.workload.blocks, **self.workload.arguments
            )
        return serve_warm.compile(module, level=self.options.level, **self.workload.arguments)

    def save(self) -> None:
        from serve_warm.artifact.blobs import pack_part
        from serve_warm.artifact.manifest import Manifest, Place, utc_now
        from serve_warm.artifact.push import push
        from serve_warm.stores.local import LocalStore

        parts, facts = asyncio.run(self._warmup.pack())
        missing = [name for name in PARTS[self.options.level] if name not in parts]
        if missing:
            reasons = sorted({use.reason for use in self._warmup.report().entries})
            message = f"the build made no part {', '.join(missing)}: {'; '.join(reasons)}"
            raise RuntimeError(message)
        # Only the parts of the measured level. torch's own bytes are measured as another system.
        packed = {name: pack_part(name, parts[name]) for name in PARTS[self.options.level]}
        manifest = Manifest(
            place=Place(application="app", deployment=Replica.deployment),
            created=utc_now(),
            fingerprint=self._warmup.journal.fingerprint,
            parts=tuple(part for part, _ in packed.values()),
            facts=facts,
        )
        stored = {name: data for name, (_, data) in packed.items()}
        push(LocalStore(root=self._store), manifest, stored, [self._key()])

    def _key(self) -> Any:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(bytes(range(32)))

    @property
    def _store(self) -> Path:
        return self.folder / "store"

    def note(self) -> str:
        # A library that the app uses may import the compiler: transformers does, for most models.
        return "the app imports torch's compiler" if self._compiler == "app" else ""

    def artifact_bytes(self) -> int:
        return size_of(self._store)


class Owner:
    """The user's object, with compiled callables in its attributes."""

    def __init__(self, model: Any, wait: Callable[[], None]) -> None:
        self.model = model
        self._wait = wait

    async def predict(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        with torch.inference_mode():
            out = self.model(*args, **kwargs)
        self._wait()
        return out


class Replica(OutsideServe):
    """The parts of a deployment that a warm-up needs, without Serve. Records the times of calls."""

    application = "bench"
    deployment, replica = "Model", "Model#1"

    def __init__(
        self, model: Any, inputs: Sequence[Example], *, key: Any, wait: Callable[[], None]
    ) -> None:
        from serve_warm.compiler.watch import unwatched_compiles

        self.unwatched_compiles_before = unwatched_compiles()
        self.owner = Owner(model, wait)
        self.calls: list[tuple[tuple[float, float], tuple[float, float]]] = []
        """Wall and CPU seconds before and after each call."""
        self._inputs = inputs
        self._key = key

    async def warmup_inputs(self) -> Any:
        from serve_warm.inputs import Input

        many = len(self._inputs)
        return [
            Input(
                target=self.owner.predict,
                args=example.args,
                kwargs=example.kwargs,
                name=example.name,
                size=many - number,
            )
            for number, example in enumerate(self._inputs)
        ]

    async def call(self, item: Any) -> None:
        before = Clock.now()
        await self.owner.predict(*item.args, **item.kwargs)
        self.calls.append((before, Clock.now()))

    def trust(self) -> Any:
        return trusted(self._key)


def trusted(key: Any) -> Any:
    from serve_warm.trust.keys import TrustedKey
    from serve_warm.trust.policy import Trust

    raw = key.public_key().public_bytes_raw()
    return Trust(keys=(TrustedKey(name="bench", raw=raw),))


SYSTEMS: dict[str, type[Eager]] = {
    "floor": Floor,
    "eager": Eager,
    "cold": Cold,
    "torch_bytes": TorchBytes,
    "copied_dir": CopiedDirectory,
    "redis": Redis,
    "caching_precompile": CachingPrecompile,
    "aotinductor": AOTInductor,
    "serve_warm": ServeWarm,
}


def import_compiler() -> None:
    importlib.import_module("torch._dynamo")
    importlib.import_module("torch._inductor.compile_fx")


def until_proven(call: Call, inputs: Sequence[Example], clock: Clock, workload: Workload) -> Proven:
    """Call with all inputs until a pass compiles nothing, then once with compiling forbidden.

    As in `serve_warm.replica.replay.passes`, one pass is enough if it compiles nothing. CUDA graphs
    need at least three passes: one before the capture, one that captures, and one that launches the
    graph.
    """
    import torch

    at_least = PASSES_TO_CAPTURE if workload.captures else 1

    def in_serving_mode(example: Example) -> Any:
        with torch.inference_mode():
            out = call(example)
        workload.wait()
        return out

    def one_pass() -> float:
        took = 0.0
        for example in inputs:
            begin = time.perf_counter()
            in_serving_mode(example)
            took += time.perf_counter() - begin
        return took

    passes, quiet = 0, False
    while not quiet:
        if passes == MAX_PASSES:
            message = f"still compiles after {MAX_PASSES} passes"
            raise RuntimeError(message)
        before = compiled_frames()
        one_pass()
        passes += 1
        quiet = compiled_frames() == before and passes >= at_least
        if passes == 1:
            clock.end("first_pass")
    clock.end("quiet")
    with forbidden():
        steady_s = one_pass()
    clock.end("proof")
    return Proven(call=in_serving_mode, passes=passes + 1, steady_s=steady_s)


def compiled_frames() -> int:
    utils = sys.modules.get("torch._dynamo.utils")
    return utils.counters["frames"]["total"] if utils is not None else 0


def forbidden() -> contextlib.AbstractContextManager[Any]:
    """Make every compile raise. Without Dynamo there is nothing to forbid."""
    import torch

    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("fail_on_recompile")


def makes_object(command: Any) -> bool:
    """Return whether a command writes an object file or a library."""
    words = shlex.split(command) if isinstance(command, str) else list(map(str, command))
    outputs = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "-o"]
    return any(output.endswith(OBJECT_SUFFIXES) for output in outputs)


@contextlib.contextmanager
def counting_compilers() -> Iterator[Callable[[], int]]:
    """Count the compiler runs that any code of this process starts, until the block ends."""
    started = []
    counting = True

    def hook(event: str, arguments: Any) -> None:
        if counting and event == "subprocess.Popen":
            started.append(arguments[1])

    sys.addaudithook(hook)
    try:
        yield lambda: sum(map(makes_object, started))
    finally:
        counting = False


def size_of(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def steady_p50_s(call: Call, example: Example) -> float:
    took: list[float] = []
    while len(took) < STEADY_CALLS_AT_LEAST or (len(took) < STEADY_CALLS and sum(took) < STEADY_S):
        begin = time.perf_counter()
        call(example)
        took.append(time.perf_counter() - begin)
    return statistics.median(took)


def max_error(workload: Workload, call: Call, module: Any, inputs: Sequence[Example]) -> float:
    """Return the largest difference from the eager model. NaN counts as AS_WRONG_AS_CAN_BE."""
    import torch

    worst = 0.0
    for example in inputs:
        with torch.inference_mode():
            wanted = workload.tensor(module(*example.args, **example.kwargs))
            got = workload.tensor(call(example))
            difference = (got - wanted).abs().max().item()
        # JSON has no infinity. A comparison with NaN is false, so min() returns its first argument.
        worst = max(worst, min(AS_WRONG_AS_CAN_BE, difference))
    return worst


def run(options: Options, clock: Clock) -> dict[str, Any]:
    with counting_compilers() as compiler_runs:
        import torch

        from benchmarks import workloads

        torch.set_num_threads(1)
        workload = workloads.ALL[options.workload]
        workload.import_libraries()
        system = SYSTEMS[options.system](options, workload)
        reason = system.unavailable()
        if reason:
            return {"unavailable": reason}
        clock.end("imports")
        system.begin()
        module = workload.place_module() if system.builds_model else None
        inputs = [workload.place_example(example) for example in workload.inputs()]
        clock.end("weights")
        proven = system.start(module, inputs, clock)
        peak, compilers = peak_bytes(), compiler_runs()
    if options.role == "produce":
        system.save()
        return {"to_proof_s": clock.to_proof_s}
    compute_s = proven.passes * proven.steady_s
    before_s = sum(clock.seconds[stage] for stage in ("imports", "weights", "compiler"))
    result = {
        "to_proof_s": clock.to_proof_s,
        "overhead_s": max(0.0, clock.to_proof_s - compute_s),
        "import_left_s": clock.seconds["compiler"],
        "past_import_s": max(0.0, clock.to_proof_s - compute_s - clock.seconds["compiler"]),
        "cpu_s": clock.cpu_s,
        "ready_s": clock.ready_s,
        "floor_s": before_s + compute_s,
        "compiler_processes": compilers,
        "artifact_bytes": system.artifact_bytes(),
        "steady_p50_s": steady_p50_s(proven.call, inputs[-1]),
        "steady_largest_p50_s": steady_p50_s(proven.call, inputs[0]),
        "peak_rss_bytes": peak,
        "passes": proven.passes,
        "compute_s": compute_s,
        "stages": {name: clock.seconds[name] for name in STAGES},
        "cpu_stages": {name: clock.cpu[name] for name in STAGES},
        "note": system.note(),
        **system.found(),
    }
    module = module if module is not None else workload.place_module()
    return {**result, "max_error": max_error(workload, proven.call, module, inputs)}


def main() -> None:
    options = Options(**json.loads(sys.argv[1]))
    clock = Clock(options.spawned_s)

    def say_failure(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        sys.__excepthook__(kind, error, trace)
        words = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        stage = next((stage for stage in STAGES if stage not in clock.seconds), "checks")
        sys.stderr.write(f"\nfailure={kind.__name__} in {stage}: {words}\n")

    sys.excepthook = say_failure
    sys.stdout.write(json.dumps(run(options, clock)) + "\n")


if __name__ == "__main__":
    main()
