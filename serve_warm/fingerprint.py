# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Fingerprints: named factors of the machine and the app that an artifact was built for.

`read_machine` and `read_app` read the factors of this machine and app. `Fingerprint.compare` does
not read factors, so it can compare the fingerprints of any two machines.

Some factors are part of torch's cache keys. Other factors are missing from these keys, although the
built code depends on these factors. The most important missing factor is the CPU's instruction set.
If the instruction set does not match, torch reports cache hits but computes wrong numbers.
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
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from serve_warm._package import public
from serve_warm._records import record

RULES = 1
"""Version of the code that this package makes for a model. Increase it when a change to this
package alters the graphs of a model or the facts about them. Artifacts of another version do not
fit."""

NONE = "none"
"""The value of a factor if the machine has no GPU, no Triton or no compiler."""

UNKNOWN = "unknown"
"""The value of a factor that could not be read. This value matches no value, not even itself."""

NOT_NEEDED = "not needed"
"""The value of `compiler` if all compiled code is in libraries (level 3). Such an artifact fits
machines with any compiler, or without a compiler."""

NOT_INSTALLED = "not installed"
"""The value of torch's factors on a machine without torch. No artifact has this value, so no
artifact fits."""

Cpu = Literal["native", "portable"]
"""The CPU for which kernels are compiled: exactly this CPU, or every CPU that has all of
`PORTABLE_ISA`."""

PORTABLE_MARCH = "x86-64-v3"
"""The compilers' name for CPUs that can run a portable artifact: CPUs with AVX2."""

PORTABLE_ISA = "abm avx avx2 bmi1 bmi2 cx16 f16c fma movbe pni popcnt sse sse2 sse4_1 sse4_2 ssse3"
"""Extensions that `PORTABLE_MARCH` adds to basic x86-64, by their names in Linux, sorted like
`cpu_isa`.

`PORTABLE_MARCH` also has LAHF and XSAVE, but these need no check: all CPUs with the other
extensions have LAHF, and Linux lists AVX only on CPUs with XSAVE.
https://gitlab.com/x86-psABIs/x86-64-ABI
"""

_WORD_LISTS = frozenset({"cpu_isa", "torch_environment", "compile_arguments"})
"""Factors whose value is a list of words. For a long list, only the words that differ are shown."""


@record(frozen=True, kw_only=True)
class Mismatch:
    """One factor that differs between an artifact and this process."""

    group: str
    """`machine` or `app`."""
    factor: str
    artifact: str | None
    """None if the artifact was made without this factor."""
    here: str | None
    """None if this process has no such factor."""

    @property
    def only(self) -> tuple[str, str] | None:
        """The words that only the artifact has, and the words that only this process has.

        None if the factor is not a list of words, or if the two lists have no word in common.
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
@record(frozen=True, kw_only=True)
class Fingerprint:
    """The factors that compiled code depends on, each with a short readable value.

    Example:
        >>> built = Fingerprint(machine={"cpu_isa": "avx2 avx512f"}, app={"threads": "4"})
        >>> here = Fingerprint(machine={"cpu_isa": "avx2"}, app={"threads": "8"})
        >>> for mismatch in built.compare(here):
        ...     print(mismatch)
        cpu_isa: only in the artifact avx512f
        threads: artifact 4, here 8
    """

    machine: Mapping[str, str]
    """Hardware and installed software, as `read_machine` returns it."""
    app: Mapping[str, str]
    """Settings of the application, as `read_app` returns them on the thread that serves."""

    def __post_init__(self) -> None:
        # Copies, because the caller may change its maps later.
        object.__setattr__(self, "machine", dict(self.machine))
        object.__setattr__(self, "app", dict(self.app))

    @property
    def key(self) -> str:
        """The variant's name: 16 hex digits of a hash of all factors, whatever their order."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, dict[str, str]]:
        """Return plain dicts for `json.dumps`."""
        return {"machine": dict(self.machine), "app": dict(self.app)}

    @classmethod
    def from_json(cls, data: Any) -> Fingerprint:
        """Build a fingerprint from the data that `to_json` returned.

        Raises:
            ValueError: `data` has the wrong form; the message says where.
        """
        if not isinstance(data, dict) or data.keys() != {"machine", "app"}:
            raise ValueError("a fingerprint must have exactly the members `machine` and `app`")
        for group, factors in data.items():
            if not isinstance(factors, dict):
                raise ValueError(f"fingerprint: {group} is not an object")  # noqa: TRY004  (as documented)
            for factor, value in factors.items():
                if not isinstance(factor, str) or not isinstance(value, str):
                    raise ValueError(f"fingerprint: {group}.{factor} is not a string")  # noqa: TRY004
        return cls(machine=data["machine"], app=data["app"])

    def compare(self, here: Fingerprint) -> tuple[Mismatch, ...]:
        """Return every factor that differs between this fingerprint (of an artifact) and `here`.

        If only one side has a factor, or this process could not read it, the factor counts as a
        difference. The compiler never counts as a difference if the artifact needs no compiler.
        Machine factors come before app factors; each group is sorted by name.
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
"""A machine with an NVIDIA driver has one of these paths. The last path is for WSL. Checking the
paths loads no driver."""


def read_machine(
    environ: Mapping[str, str],
    *,
    cpu: Cpu = "native",
    device: int | None = None,
    on_no_torch: Literal["raise", "note"] = "raise",
) -> dict[str, str]:
    """Return the factors of this machine and its installed software; imports torch.

    With `on_no_torch="note"`, the factors of a machine without torch say that torch is missing, so
    a comparison shows why no artifact fits.

    With `cpu="portable"`, every machine that has all of `PORTABLE_ISA` gets the same CPU factors.
    Any other machine keeps its own factors, so no portable artifact fits that machine.

    `device` is the index of the GPU in use, by default the calling thread's GPU.

    This function reads `ATEN_CPU_CAPABILITY`, `CUDA_VISIBLE_DEVICES`, `CXX` and `PATH` from
    `environ`. This function reads properties of CUDA devices only if torch can use CUDA. The call
    takes a few milliseconds, and runs `g++ --version` once per process.

    Raises:
        ImportError: torch is not installed, and `on_no_torch` is `raise`.
    """
    from_torch = _read_from_torch(environ, device, on_no_torch)
    isa = read_cpu_isa()
    # Eager kernels and the vector width of generated code depend on this variable, but torch's keys
    # omit it. Its value "default" means no vectors, so a missing variable is "unset".
    capability = environ.get("ATEN_CPU_CAPABILITY") or "unset"
    if cpu == "portable":
        isa, capability = portable_factors(isa, capability)
    return {
        "serve_warm": f"rules {RULES}",
        "platform": f"{platform.system()} {platform.machine()}",
        "libc": _read_libc(),
        "cpu_isa": isa,
        "cpu_capability": capability,
        # The exact version: Dynamo's entries hold bytecode.
        "python": f"{platform.python_implementation()} {platform.python_version()}"
        f" {sysconfig.get_config_var('SOABI') or sys.implementation.cache_tag}",
        # The next three are paths, with links as written. The file name of each built CPU kernel is
        # a hash of the compiler's command line, which contains these paths. With another path every
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
    environ: Mapping[str, str], device: int | None, on_no_torch: Literal["raise", "note"]
) -> dict[str, str]:
    """Import torch, and return the factors that are read from torch."""
    try:
        import torch
    except ImportError:
        if on_no_torch == "raise":
            raise
        absent = dict.fromkeys(("torch_install", "torch"), NOT_INSTALLED)
        return {**absent, **dict.fromkeys(("cuda", "gpu", "driver"), UNKNOWN)}
    gpu = _read_gpu(environ, device)
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
    """Return the factors that the application sets; imports torch.

    Grad mode, inference mode and autocast are set per thread. So call this function on the serving
    thread, with the modes that are set while this thread serves. `compile_arguments` are
    `torch.compile`'s arguments, as text.
    """
    import torch

    # Not get_float32_matmul_precision(): it raises after a program used the newer setters.
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
        "cpu": cpu,
        # Add the rank only in a group: a rank's graphs contain the numbers of all ranks.
        **rank_factor(read_rank()),
    }


def rank_factor(rank: tuple[int, int] | None) -> dict[str, str]:
    """Return the factor `rank` for a rank and its group's size; empty without a group.

    >>> rank_factor((2, 4))
    {'rank': '2 of 4'}
    """
    return {} if rank is None or rank[1] == 1 else {"rank": f"{rank[0]} of {rank[1]}"}


def read_rank() -> tuple[int, int] | None:
    """Return this process's rank and its group's size; None for a process without a group.

    The group is `torch.distributed`'s default group, which user code must create first.
    """
    # Do not import torch.distributed: a process with a group has already imported it.
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    size = int(distributed.get_world_size())
    return None if size == 1 else (int(distributed.get_rank()), size)


_CODE_FEATURES = {
    # x86; Linux calls SSE3 pni, and LZCNT abm
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
"""Patterns of the extensions that a compiler may use with `-march=native`, by label in cpuinfo.
Other flags (virtualisation, mitigations, counters) differ between identical machines and change
no code."""


def cpu_isa(cpuinfo: str) -> str:
    """Return the instruction set extensions in `/proc/cpuinfo` that generated code can use.

    The names are sorted and separated by spaces. An extension is included only if all processors
    have it, because a kernel can run on any processor. The result is `unknown` if the text contains
    no such extension.
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
    """Return the `PORTABLE_ISA` extensions that are missing from `isa`, a result of `cpu_isa`."""
    return tuple(name for name in PORTABLE_ISA.split() if name not in isa.split())


def portable_factors(isa: str, capability: str) -> tuple[str, str]:
    """Return the values of the factors `cpu_isa` and `cpu_capability` for `cpu="portable"`.

    `isa` and `capability` are the values for `cpu="native"`. A CPU that lacks one of the
    `PORTABLE_ISA` extensions keeps these values. So such a CPU matches neither a portable artifact
    nor a CPU that lacks different extensions.
    """
    if lacking(isa):
        return isa, capability
    # A portable build pins the vector width, so torch ignores the variable. The exception is
    # "default", with which flex attention does not compile.
    return PORTABLE_ISA, capability if capability == "default" else "any"


def read_cpu_isa() -> str:
    """Return this CPU's instruction set extensions, in the format of `cpu_isa`."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    isa = cpu_isa(cpuinfo)
    if isa != UNKNOWN:
        return isa
    # Systems other than Linux, or processors other than x86 and arm.
    try:
        import torch
    except ImportError:
        return UNKNOWN
    if not hasattr(torch.cpu, "get_capabilities"):
        return UNKNOWN
    capabilities: Mapping[str, Any] = torch.cpu.get_capabilities()
    # All extensions, because `_CODE_FEATURES` does not know torch's names.
    return " ".join(sorted(name for name, has in capabilities.items() if has is True)) or UNKNOWN


def _read_libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or UNKNOWN
    except (AttributeError, ValueError, OSError):  # not glibc
        return " ".join(platform.libc_ver()).strip() or NONE


def _read_python_include() -> str:
    # torch passes both to the compiler. They differ if a distribution patches its scheme.
    paths = (sysconfig.get_path("include"), sysconfig.get_path("include", scheme="posix_prefix"))
    return os.pathsep.join(dict.fromkeys(paths))


def _read_triton() -> str:
    # Read the metadata: importing Triton takes a second and, in some versions, fails without a GPU.
    for distribution in ("triton", "pytorch-triton", "triton-rocm", "pytorch-triton-rocm"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return NONE


def _read_compiler(environ: Mapping[str, str]) -> str:
    # Choose as torch does: CXX as one word, or the default name, and nothing else.
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
    # Includes the name of the command, because `g++` and `/usr/bin/g++` lead to different file
    # names of kernels.
    return version if version.split()[0] == called else f"{called}: {version}"


def _read_toolkit() -> str:
    import torch

    if torch.version.cuda:
        return f"cuda {torch.version.cuda}"
    if torch.version.hip:
        return f"hip {torch.version.hip}"
    return NONE


def _read_gpu(environ: Mapping[str, str], device: int | None) -> str:
    import torch

    if not torch.cuda.is_available():
        # A replica that falls back to the CPU must not look like a machine without a GPU.
        return UNKNOWN if why_no_gpu(environ) else NONE
    visible = range(torch.cuda.device_count())
    found = [_device(torch.cuda.get_device_properties(index)) for index in visible]
    return _device_in_use(found, torch.cuda.current_device() if device is None else device)


def gpu_in_use() -> int:
    """Return the index of the calling thread's GPU; 0 before CUDA is used.

    Each thread begins with GPU 0 and can switch to another GPU with `torch.cuda.set_device`.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_device())


def _device_in_use(visible: Sequence[str], current: int) -> str:
    """Return the GPU for compiling and autotuning, and any other kinds of visible GPUs.

    The number of GPUs of the same kind does not matter. A GPU of another kind matters, because user
    code might put the model on that GPU.
    """
    # torch's key contains the index. A replica that sees only one GPU has index 0.
    name = visible[current] + (f" as cuda:{current}" if current else "")
    others = sorted({*visible} - {visible[current]})
    return f"{name}, beside {', '.join(others)}" if others else name


_HAS_NO_GPU = ("Found no NVIDIA driver", "No CUDA GPUs are available")
"""torch's messages for a machine without a GPU, or without a visible GPU (2.13, c10). In both
cases, nothing is wrong."""

_HIDES_GPUS = ("", "-1", "NoDevFiles")
"""Values of `CUDA_VISIBLE_DEVICES` that hide all GPUs. Ray sets the first value for actors that do
not request a GPU."""


def why_no_gpu(environ: Mapping[str, str]) -> str:
    """Return a sentence that says why torch cannot use this machine's GPU.

    Empty if torch can use the GPU, if there is no GPU, or if torch has no CUDA. Also empty if
    `environ` hides all GPUs, because CUDA reports an outdated driver even if no GPU is visible.
    Also empty if no path of `NVIDIA` exists: a container image can contain driver libraries or
    stubs, and CUDA reports an error for these libraries on a machine without a driver.

    `is_available()` reports its reason only once per process, as a warning. So this function
    initializes CUDA again to get the reason.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.version.cuda or torch.cuda.is_available():
        return ""
    if environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in _HIDES_GPUS:
        return ""
    if not any(path.exists() for path in NVIDIA):
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
        f"torch {torch.__version__} (CUDA {torch.version.cuda}) cannot use this machine's GPU, so "
        f"no artifact fits: {said}; update the driver, or install torch for the driver's CUDA "
        "version"
    )


def _device(found: Any) -> str:
    """Return the GPU properties that affect the choice and autotuning of kernels.

    A MIG slice has smaller values than a whole GPU.
    """
    kind = getattr(found, "gcnArchName", "") or f"sm_{found.major}{found.minor}"
    # Rounded to GiB, because drivers reserve different amounts for themselves.
    memory = round(found.total_memory / 2**30)
    return f"{found.name} {kind} {found.multi_processor_count} SMs {memory} GiB"


def _read_driver() -> str:
    for module in ("nvidia", "amdgpu"):
        try:
            text = Path(f"/sys/module/{module}/version").read_text(encoding="utf-8")
        except OSError:
            continue
        return f"{module} {text.strip()}"
    # Some sandboxes hide this file. With the value `unknown`, no artifact would fit. But GPU code
    # hardly depends on the driver, so a machine in a sandbox can still be warm.
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
    # torch's key always contains this mode. It is on by default, so only "off" is shown.
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    return mode if filled else f"{mode} without_fill"


def _on_off(value: object) -> str:
    return "on" if value else "off"


_COMPILER_VARIABLES = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE")

_EXCLUDED_VARIABLES = frozenset(
    {
        # folders of caches
        *("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_CACHE_DUMP_FILE_PATH"),
        "TORCH_COMPILE_DEBUG_DIR",
        # remote caches that torch asks before it compiles; the Redis URL may hold a password
        *("TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE", "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE"),
        *("TORCHINDUCTOR_REDIS_HOST", "TORCHINDUCTOR_REDIS_PORT", "TORCHINDUCTOR_REDIS_URL"),
        # how many compilers run at once, and how they start
        *("TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_WORKER_START"),
        # the id of the run: it selects recorded shapes, and a scheduler may change it each time
        "TORCH_COMPILE_JOB_ID",
        # extra logs, dumps and profiles
        *("TORCHDYNAMO_DEBUG_FUNCTION", "TORCHDYNAMO_EXTENDED_ADVICE"),
        *("TORCHDYNAMO_EXTENDED_DEBUG_CPP", "TORCHDYNAMO_EXTENDED_DEBUG_CREATE_SYMBOL"),
        *("TORCHDYNAMO_EXTENDED_DEBUG_GUARD_ADDED", "TORCHDYNAMO_PRINT_MISSING"),
        *("TORCHDYNAMO_VERBOSE", "TORCHINDUCTOR_CONV_LOGGING_FILE"),
        *("TORCHINDUCTOR_DUMP_MEMOIZER_CACHE", "TORCHINDUCTOR_FLEX_ATTENTION_LOGGING_FILE"),
        *("TORCHINDUCTOR_MM_LOGGING_FILE", "TORCHINDUCTOR_WRITE_MISSING_OPS"),
        *("TORCH_COMPILE_CPROFILE", "TORCH_COMPILE_DYNAMO_PROFILER"),
        "TORCH_COMPILE_STROBELIGHT",
    }
)
"""Variables of torch's compiler that change no generated code and are not in torch's keys.

A variable that is not in this list counts as a factor, because an unknown variable may change the
code. Some harmless variables, such as a worker's log path or the remote cache of AOTAutograd, are
not in this list, because torch hashes them. Variables that turn caches off are not in this list
either: with such a variable an artifact is useless, and the mismatch explains why.
"""


def torch_environment(environ: Mapping[str, str]) -> str:
    """Return the environment variables that affect torch's compiler, as `NAME=value NAME=value`.

    The variables are sorted by name. Variables that do not change generated code are left out. The
    result is `none` if no variable is set.
    """
    return _assignments(
        {
            name: value
            for name, value in environ.items()
            if name.startswith(_COMPILER_VARIABLES) and name not in _EXCLUDED_VARIABLES
        }
    )


def _assignments(values: Mapping[str, str]) -> str:
    # Quoted as in a shell, so that different maps never give the same text.
    return shlex.join(f"{name}={value}" for name, value in sorted(values.items())) or NONE


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:  # an unclosed quotation mark, so `_assignments` did not write it
        return value.split()
