# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What an artifact was built for, as named factors: read from this process, or compared.

Reading (`read_machine`, `read_app`) and comparing (`Fingerprint.compare`) are apart: the comparison
is a pure function of two fingerprints, so that any pair of machines can be tried on any third one.

A factor is here because torch puts it into a cache key, or because torch forgets it although the
built code depends on it. Of the second kind the CPU's instruction set is the one that matters most:
with a wrong one torch reports hits and computes wrong numbers.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from serve_warm._public_names import public

NONE = "none"
"""The value of a factor that this machine does not have: no GPU, no Triton, no compiler."""

UNKNOWN = "unknown"
"""The value of a factor that could not be read. It fits nothing, not even itself."""

NOT_NEEDED = "not needed"
"""The value of `compiler` where all compiled code is in libraries (level 3). Such an artifact fits
whatever compiler there is, or none."""

NOT_INSTALLED = "not installed"
"""What torch's own factors are on a machine without it. No artifact has it: nothing fits there."""

Cpu = Literal["native", "portable"]
"""What kernels are compiled for: this very CPU, or every one that has all of `PORTABLE_ISA`."""

PORTABLE_MARCH = "x86-64-v3"
"""What compilers call the CPUs that run a portable artifact: those with AVX2."""

PORTABLE_ISA = "abm avx avx2 bmi1 bmi2 cx16 f16c fma movbe pni popcnt sse sse2 sse4_1 sse4_2 ssse3"
"""What `PORTABLE_MARCH` adds to the first x86-64: Linux' names of it, sorted as by `cpu_isa`.

LAHF and XSAVE belong to it too and are not asked for: every CPU with the others has the one, and
Linux names no AVX without the other.
https://gitlab.com/x86-psABIs/x86-64-ABI
"""

_WORD_LISTS = frozenset({"cpu_isa", "torch_environment", "compile_arguments"})
"""Factors whose value is a list of words: of two long ones only the difference is readable."""


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One factor in which an artifact and this process differ."""

    group: str
    """`machine` or `app`."""
    factor: str
    artifact: str | None
    """None where the artifact was made without this factor."""
    here: str | None
    """None where this process has no such factor."""

    @property
    def only(self) -> tuple[str, str] | None:
        """Of two lists of words: those that only the artifact has, and those that only this has.

        None for a factor that is no list, and for lists that have nothing in common.
        """
        if self.factor not in _WORD_LISTS or not self.artifact or not self.here:
            return None
        theirs, ours = _words(self.artifact), _words(self.here)
        extra = [word for word in theirs if word not in ours]
        lacking = [word for word in ours if word not in theirs]
        if not set(theirs) & set(ours) or not extra + lacking:
            return None
        return shlex.join(extra), shlex.join(lacking)

    def __str__(self) -> str:
        if self.only is not None:
            sides = zip(("in the artifact", "here"), self.only, strict=True)
            only = (f"only {side} {words}" for side, words in sides if words)
            return f"{self.factor}: {'; '.join(only)}"
        artifact = "without it" if self.artifact is None else self.artifact
        here = "without it" if self.here is None else self.here
        return f"{self.factor}: artifact {artifact}, here {here}"


@public
@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What compiled code depends on, each factor by name, as a short readable string.

    Example:
        >>> built = Fingerprint(machine={"cpu_isa": "avx2 avx512f"}, app={"threads": "4"})
        >>> here = Fingerprint(machine={"cpu_isa": "avx2"}, app={"threads": "8"})
        >>> for mismatch in built.compare(here):
        ...     print(mismatch)
        cpu_isa: only in the artifact avx512f
        threads: artifact 4, here 8
    """

    machine: Mapping[str, str]
    """Hardware and installed software: what `read_machine` reads."""
    app: Mapping[str, str]
    """What the application sets: what `read_app` reads on the thread that serves."""

    def __post_init__(self) -> None:
        # Copies: the maps that were passed in may change afterwards, a fingerprint may not.
        object.__setattr__(self, "machine", dict(self.machine))
        object.__setattr__(self, "app", dict(self.app))

    @property
    def key(self) -> str:
        """Names the variant: 16 hexadecimal digits over all factors, whatever their order."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, dict[str, str]]:
        """Return plain maps, fit for `json.dumps`."""
        return {"machine": dict(self.machine), "app": dict(self.app)}

    @classmethod
    def from_json(cls, data: Any) -> Fingerprint:
        """Build a fingerprint from what `to_json` returned.

        Raises:
            ValueError: `data` has another shape; says where.
        """
        if not isinstance(data, dict) or data.keys() != {"machine", "app"}:
            raise ValueError("a fingerprint is an object with exactly the members machine and app")
        for group, factors in data.items():
            if not isinstance(factors, dict):
                raise ValueError(f"fingerprint: {group} is not an object")  # noqa: TRY004  (as documented)
            for factor, value in factors.items():
                if not isinstance(factor, str) or not isinstance(value, str):
                    raise ValueError(f"fingerprint: {group}.{factor} is not a string")  # noqa: TRY004
        return cls(machine=data["machine"], app=data["app"])

    def compare(self, here: Fingerprint) -> tuple[Mismatch, ...]:
        """Return every factor in which this fingerprint, the artifact's, differs from `here`.

        A factor that only one side has is a difference, and so is one that neither could read; a
        compiler that the artifact says is not needed is none. Machine factors come first; within
        a group they are sorted by name.
        """
        return tuple(
            Mismatch(group=group, factor=factor, artifact=artifact, here=ours)
            for group, theirs, own in (
                ("machine", self.machine, here.machine),
                ("app", self.app, here.app),
            )
            for factor in sorted(theirs.keys() | own.keys())
            if ((artifact := theirs.get(factor)) != (ours := own.get(factor)) or ours == UNKNOWN)
            and (factor, artifact) != ("compiler", NOT_NEEDED)
        )


NVIDIA = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia"), Path("/dev/dxg"))
"""One of them is there where an NVIDIA driver is, the last in WSL. Looking asks no driver."""


def read_machine(
    environ: Mapping[str, str],
    *,
    cpu: Cpu = "native",
    device: int | None = None,
    driver: Sequence[Path] = NVIDIA,
    on_no_torch: Literal["raise", "note"] = "raise",
) -> dict[str, str]:
    """Read what this machine and its installed software are; imports torch.

    Where torch is not installed that is an ImportError, or with `on_no_torch="note"` a value of the
    factors that it would have told: for who wants to know why an artifact does not fit there.

    With `cpu="portable"` the factors of the CPU are the same on every machine that has all of
    `PORTABLE_ISA`, and this machine's own on any other: it fits no portable artifact.

    `device` is the index of the GPU in use; without it, that of the calling thread is. `driver` are
    paths of which one is there where an NVIDIA driver is.

    Looks up `ATEN_CPU_CAPABILITY`, `CUDA_VISIBLE_DEVICES`, `CXX` and `PATH` in `environ`. Asks CUDA
    for its devices only in a torch that can see some. Costs one `g++ --version` a process, and some
    milliseconds.
    """
    from_torch = _read_from_torch(environ, device, driver, on_no_torch)
    isa = read_cpu_isa()
    # Eager kernels and the vector width of generated code both follow this variable, and it is
    # in no key. It has a value named "default" that means no vectors, hence "unset".
    capability = environ.get("ATEN_CPU_CAPABILITY") or "unset"
    if cpu == "portable":
        isa, capability = portable_factors(isa, capability)
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "libc": _read_libc(),
        "cpu_isa": isa,
        "cpu_capability": capability,
        # The exact version: Dynamo's entries hold bytecode.
        "python": f"{platform.python_implementation()} {platform.python_version()}"
        f" {sysconfig.get_config_var('SOABI') or sys.implementation.cache_tag}",
        # The next three are paths because the file name of each built CPU kernel is a hash over the
        # compiler's whole command line, and that names these directories: with another path every
        # kernel would be compiled again.
        # https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/cpp_builder.py
        "python_include": _read_python_include(),
        "python_lib": str(sysconfig.get_config_var("LIBDIR") or NONE),
        "torch_install": from_torch["torch_install"],
        "torch": from_torch["torch"],
        "triton": _read_triton(),
        "compiler": _read_compiler(environ),
        "cuda": from_torch["cuda"],
        "gpu": from_torch["gpu"],
        "driver": from_torch["driver"],
    }


def _read_from_torch(
    environ: Mapping[str, str],
    device: int | None,
    driver: Sequence[Path],
    on_no_torch: Literal["raise", "note"],
) -> dict[str, str]:
    """Return the factors that nothing but an imported torch can tell."""
    try:
        import torch
    except ImportError:
        if on_no_torch == "raise":
            raise
        absent = dict.fromkeys(("torch_install", "torch"), NOT_INSTALLED)
        return {**absent, **dict.fromkeys(("cuda", "gpu", "driver"), UNKNOWN)}
    gpu = _read_gpu(environ, device, driver)
    return {
        "torch_install": str(Path(torch.__file__).parent),
        "torch": f"{torch.__version__} {(torch.version.git_version or UNKNOWN)[:12]}",
        "cuda": _read_toolkit(),
        "gpu": gpu,
        "driver": NONE if gpu == NONE else _read_driver(),
    }


_NO_ARGUMENTS: Mapping[str, str] = MappingProxyType({})


def read_app(
    environ: Mapping[str, str],
    *,
    compile_arguments: Mapping[str, str] = _NO_ARGUMENTS,
    cpu: Cpu = "native",
) -> dict[str, str]:
    """Read what the application has set; imports torch.

    Grad mode, inference mode and autocast belong to the calling thread: call this on the thread
    that serves, in the mode in which it serves. `compile_arguments` are those of `torch.compile`,
    as text.
    """
    import torch

    # Not get_float32_matmul_precision(): it raises once a program has used the newer setters.
    cuda_matmul = torch.backends.cuda.matmul
    cpu_matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined] # set from outside
    return {
        "threads": str(torch.get_num_threads()),
        "grad_mode": _on_off(torch.is_grad_enabled()),
        "inference_mode": _on_off(torch.is_inference_mode_enabled()),
        "autocast": _read_autocast(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "matmul_precision": f"cuda={cuda_matmul.fp32_precision}"
        f" cpu={cpu_matmul.fp32_precision}"
        f" fp16_reduction={cuda_matmul.allow_fp16_reduced_precision_reduction}"
        f" bf16_reduction={cuda_matmul.allow_bf16_reduced_precision_reduction}",
        "deterministic": _read_deterministic(),
        "torch_environment": torch_environment(environ),
        "compile_arguments": _assignments(compile_arguments),
        # Not a factor of native artifacts: those of versions without the setting fit as ever.
        **({"cpu": cpu} if cpu == "portable" else {}),
        # Nor of a process by itself. A rank's number is in its graphs, as are those of its peers.
        **rank_factor(read_rank()),
    }


def rank_factor(rank: tuple[int, int] | None) -> dict[str, str]:
    """Return the factor of a rank and how many there are; none for a process by itself.

    >>> rank_factor((2, 4))
    {'rank': '2 of 4'}
    """
    return {} if rank is None or rank[1] == 1 else {"rank": f"{rank[0]} of {rank[1]}"}


def read_rank() -> tuple[int, int] | None:
    """Return this process' rank and how many there are; None for a process by itself.

    Of the default group of `torch.distributed`, once user code has made it.
    """
    # Not imported: whoever has a group has.
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    size = int(distributed.get_world_size())
    return None if size == 1 else (int(distributed.get_rank()), size)


_CODE_FEATURES = {
    # x86; pni is the kernel's name of SSE3, abm that of LZCNT
    "flags": re.compile(
        r"avx.*|amx.*|apx.*|sse.*|ssse3|pni|fma4?|f16c|xop|tbm|bmi[12]|abm|lzcnt|popcnt|movbe|adx"
        r"|cx16|cmpccxadd|v?aes|v?pclmulqdq|gfni|sha_ni|sha512|sm[34]"
    ),
    # arm
    "Features": re.compile(
        r"asimd.*|sve.*|sme.*|fp|fphp|fcma|jscvt|frint|bf16|i8mm|faminmax|atomics|lse128"
        r"|i?lrcpc\d?|uscat|flagm2?|cssc|mops|crc32|aes|pmull|sha[123]|sha512|sm[34]"
    ),
}
"""What `-march=native` lets a compiler use, by the line of Linux' cpuinfo that lists it. The other
flags (virtualisation, mitigations, counters) differ between equal machines and change no code."""


def cpu_isa(cpuinfo: str) -> str:
    """Return the instruction set extensions in a `/proc/cpuinfo` that generated code can use.

    Sorted names with blanks between them; only those that all listed processors have, since a
    kernel may run on any. `unknown` when the text names none.
    """
    fields = {tuple(line.partition(":")[::2]) for line in cpuinfo.splitlines()}
    processors = [
        {name for name in names.split() if _CODE_FEATURES[label.strip()].fullmatch(name)}
        for label, names in fields
        if label.strip() in _CODE_FEATURES
    ]
    common = set.intersection(*processors) if processors else set()
    return " ".join(sorted(common)) or UNKNOWN


def lacking(isa: str) -> tuple[str, ...]:
    """Return what of `PORTABLE_ISA` is not in `isa`, which is what `cpu_isa` returned."""
    return tuple(name for name in PORTABLE_ISA.split() if name not in isa.split())


def portable_factors(isa: str, capability: str) -> tuple[str, str]:
    """Return `cpu_isa` and `cpu_capability` of a portable artifact, from those of a machine.

    A CPU that lacks something keeps its own, so that it differs from every portable artifact
    and from a machine that lacks something else.
    """
    if lacking(isa):
        return isa, capability
    # A pinned vector width is what torch generates code for, whatever the variable says, unless
    # that is "default": then flex attention does not compile.
    return PORTABLE_ISA, capability if capability == "default" else "any"


def read_cpu_isa() -> str:
    """Return the instruction set extensions of this machine's CPU, as `cpu_isa` names them."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    isa = cpu_isa(cpuinfo)
    if isa != UNKNOWN:
        return isa
    # Other systems than Linux, and Linux on other processors than x86 and arm.
    try:
        import torch
    except ImportError:
        return UNKNOWN
    if not hasattr(torch.cpu, "get_capabilities"):
        return UNKNOWN
    capabilities: Mapping[str, Any] = torch.cpu.get_capabilities()
    # All of them: these are torch's spellings, which `_CODE_FEATURES` does not know.
    return " ".join(sorted(name for name, has in capabilities.items() if has is True)) or UNKNOWN


def _read_libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or UNKNOWN
    except (AttributeError, ValueError, OSError):  # not glibc
        return " ".join(platform.libc_ver()).strip() or NONE


def _read_python_include() -> str:
    # torch passes both to the compiler; they differ where a distribution patches its scheme.
    paths = (sysconfig.get_path("include"), sysconfig.get_path("include", scheme="posix_prefix"))
    return os.pathsep.join(dict.fromkeys(paths))


def _read_triton() -> str:
    # From the metadata: importing it costs a second, and fails without a GPU in some versions.
    for distribution in ("triton", "pytorch-triton", "triton-rocm", "pytorch-triton-rocm"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return NONE


def _read_compiler(environ: Mapping[str, str]) -> str:
    # The same choice as torch: CXX if set, as one word, and nothing else is searched for.
    called = environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    executable = shutil.which(called, path=environ.get("PATH"))
    return NONE if executable is None else _compiler_version(called, executable)


@functools.cache
def _compiler_version(called: str, executable: str) -> str:
    try:
        completed = subprocess.run(
            [executable, "--version"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return NONE
    lines = completed.stdout.splitlines()
    version = lines[0].strip() if lines else UNKNOWN
    # As it was called: `g++` and `/usr/bin/g++` give two command lines, hence other kernel names.
    return version if version.split()[0] == called else f"{called}: {version}"


def _read_toolkit() -> str:
    import torch

    if torch.version.cuda:
        return f"cuda {torch.version.cuda}"
    if torch.version.hip:
        return f"hip {torch.version.hip}"
    return NONE


def _read_gpu(environ: Mapping[str, str], device: int | None, driver: Sequence[Path]) -> str:
    import torch

    if not torch.cuda.is_available():
        # A replica that falls back to its CPU here is not one of those that have no GPU.
        return UNKNOWN if why_no_gpu(environ, driver=driver) else NONE
    visible = range(torch.cuda.device_count())
    found = [_device(torch.cuda.get_device_properties(index)) for index in visible]
    return _device_in_use(found, torch.cuda.current_device() if device is None else device)


def gpu_in_use() -> int:
    """Return the index of the GPU that the calling thread uses; 0 where CUDA is not used so far.

    Each thread has one of its own, by `torch.cuda.set_device`, and begins with 0.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_device())


def _device_in_use(visible: Sequence[str], current: int) -> str:
    """Name the device that kernels are compiled for and tuned on, and what else they may run on.

    How many more of the same are visible changes nothing. Of another kind they may be what the
    model is put on, which nobody knows here.
    """
    # Its number is in torch's key. Where each replica sees one GPU, it is 0 whichever that is.
    name = visible[current] + (f" as cuda:{current}" if current else "")
    others = sorted({*visible} - {visible[current]})
    return f"{name}, beside {', '.join(others)}" if others else name


_HAS_NO_GPU = ("Found no NVIDIA driver", "No CUDA GPUs are available")
"""What torch says where there is nothing wrong: no GPU, or none made visible (2.13, c10)."""

_HIDES_GPUS = ("", "-1", "NoDevFiles")
"""Values of `CUDA_VISIBLE_DEVICES` for a process of the CPU. Ray gives the first one to actors that
ask for no GPU."""


def why_no_gpu(environ: Mapping[str, str], *, driver: Sequence[Path] = NVIDIA) -> str:
    """Return in a sentence why torch cannot use the GPU that is here.

    Empty where it can, where there is none, and for a torch without CUDA. `is_available()` says why
    in a warning alone, to whoever in the process asks first; so CUDA is asked once more. Empty too
    where `environ` hides all GPUs: CUDA looks at its driver first, and finds fault with an old one.
    And where none of the paths of a `driver` is there: images have libraries of the driver, or
    stubs of them, on machines without one, which CUDA calls an error.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.version.cuda or torch.cuda.is_available():
        return ""
    if environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in _HIDES_GPUS:
        return ""
    if not any(path.exists() for path in driver):
        return ""
    try:
        torch.cuda.init()
    except RuntimeError as error:
        said = str(error).strip().partition(". ")[0].splitlines()[0]
    else:
        return ""
    if said.startswith(_HAS_NO_GPU):
        return ""
    return (
        f"torch {torch.__version__} (CUDA {torch.version.cuda}) cannot use this machine's GPU, and "
        f"no artifact fits: {said}; update the driver, or install a torch for the CUDA that it has"
    )


def _device(found: Any) -> str:
    """Return what kernels are chosen and tuned for; a part of a device (MIG) has less of it."""
    kind = getattr(found, "gcnArchName", "") or f"sm_{found.major}{found.minor}"
    # Whole ones: drivers differ in what they keep for themselves.
    memory = round(found.total_memory / 2**30)
    return f"{found.name} {kind} {found.multi_processor_count} SMs {memory} GiB"


def _read_driver() -> str:
    for module in ("nvidia", "amdgpu"):
        try:
            text = Path(f"/sys/module/{module}/version").read_text(encoding="utf-8")
        except OSError:
            continue
        return f"{module} {text.strip()}"
    # Some sandboxes hide the file. Not `unknown`: code for a GPU does not depend on the driver
    # so much that a machine without this file should never be warm.
    return "not visible"


def _read_autocast() -> str:
    import torch

    active = [
        f"{device}={str(torch.get_autocast_dtype(device)).removeprefix('torch.')}"
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]
    said = " ".join(active) or "off"
    return said if torch.is_autocast_cache_enabled() else f"{said} without_cache"


def _read_deterministic() -> str:
    import torch
    import torch.utils.deterministic

    mode = _on_off(torch.are_deterministic_algorithms_enabled())
    if torch.is_deterministic_algorithms_warn_only_enabled():
        mode = "warn_only"
    # In torch's key whether or not the mode is on, but on by default: only the exception is shown.
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    return mode if filled else f"{mode} without_fill"


def _on_off(value: object) -> str:
    return "on" if value else "off"


_COMPILER_VARIABLES = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE")

_EXCLUDED_VARIABLES = frozenset(
    {
        # where caches lie
        "TORCHINDUCTOR_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DUMP_FILE_PATH",
        "TORCH_COMPILE_DEBUG_DIR",
        # where torch asks for entries before it compiles; the Redis URL may hold a password
        "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
        "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
        "TORCHINDUCTOR_REDIS_HOST",
        "TORCHINDUCTOR_REDIS_PORT",
        "TORCHINDUCTOR_REDIS_URL",
        # how many compile at once, how they are started and how long one waits for them
        "TORCHINDUCTOR_COMPILE_THREADS",
        "TORCHINDUCTOR_WORKER_START",
        # which run this is: it selects recorded shapes, and a scheduler may set a new one each time
        "TORCH_COMPILE_JOB_ID",
        # what is logged, dumped or profiled besides
        "TORCHDYNAMO_DEBUG_FUNCTION",
        "TORCHDYNAMO_EXTENDED_ADVICE",
        "TORCHDYNAMO_EXTENDED_DEBUG_CPP",
        "TORCHDYNAMO_EXTENDED_DEBUG_CREATE_SYMBOL",
        "TORCHDYNAMO_EXTENDED_DEBUG_GUARD_ADDED",
        "TORCHDYNAMO_PRINT_MISSING",
        "TORCHDYNAMO_VERBOSE",
        "TORCHINDUCTOR_CONV_LOGGING_FILE",
        "TORCHINDUCTOR_DUMP_MEMOIZER_CACHE",
        "TORCHINDUCTOR_FLEX_ATTENTION_LOGGING_FILE",
        "TORCHINDUCTOR_MM_LOGGING_FILE",
        "TORCHINDUCTOR_WRITE_MISSING_OPS",
        "TORCH_COMPILE_CPROFILE",
        "TORCH_COMPILE_DYNAMO_PROFILER",
        "TORCH_COMPILE_STROBELIGHT",
    }
)
"""Variables of torch's compiler that change no generated code and are in no key of torch.

A list of exceptions, since the safe guess about a variable that is not on it is that it matters.
Some that sound harmless are absent because torch does hash them (a worker's log path, the remote
cache of AOTAutograd), or because an artifact is of no use under them (switched-off caches): then
the mismatch is the explanation.
"""


def torch_environment(environ: Mapping[str, str]) -> str:
    """Return the variables that steer torch's compiler, sorted, as `NAME=value NAME=value`.

    `none` when none is set. Those that change no generated code are left out.
    """
    return _assignments(
        {
            name: value
            for name, value in environ.items()
            if name.startswith(_COMPILER_VARIABLES) and name not in _EXCLUDED_VARIABLES
        }
    )


def _assignments(values: Mapping[str, str]) -> str:
    # Quoted as a shell would: two different maps never give one text.
    return shlex.join(f"{name}={value}" for name, value in sorted(values.items())) or NONE


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:  # an unclosed quotation mark: not written by `_assignments`
        return value.split()
