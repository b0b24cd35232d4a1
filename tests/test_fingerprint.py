# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Fingerprints: every factor counts, the comparison is pure, the reading is exact."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serve_warm import fingerprint
from serve_warm.fingerprint import (
    PORTABLE_ISA,
    Fingerprint,
    Mismatch,
    cpu_isa,
    lacking,
    portable_factors,
    read_app,
    read_machine,
    why_no_gpu,
)

MACHINE_FACTORS = (
    *("serve_warm", "platform", "libc", "cpu_isa", "cpu_capability", "python", "python_include"),
    *("python_lib", "torch_install", "torch", "triton", "compiler", "cuda", "gpu", "driver"),
)
MODES = (
    *("threads", "grad_mode", "inference_mode", "autocast", "default_dtype", "matmul_precision"),
    "deterministic",
)
APP_FACTORS = (*MODES, "torch_environment", "compile_arguments", "cpu")
FACTORS = [("machine", factor) for factor in MACHINE_FACTORS]
FACTORS += [("app", factor) for factor in APP_FACTORS]

AVX512_ISA = (
    "abm adx aes avx avx2 avx512_bf16 avx512_bitalg avx512_vbmi2 avx512_vnni avx512_vp2intersect "
    "avx512_vpopcntdq avx512bw avx512cd avx512dq avx512f avx512ifma avx512vbmi avx512vl avx_vnni "
    "bmi1 bmi2 cx16 f16c fma gfni movbe pclmulqdq pni popcnt sha_ni sse sse2 sse4_1 sse4_2 sse4a "
    "ssse3 vaes vpclmulqdq"
)
AVX2_ISA = (
    "abm adx aes avx avx2 bmi1 bmi2 cx16 f16c fma movbe pclmulqdq pni popcnt sha_ni sse sse2 "
    "sse4_1 sse4_2 sse4a ssse3"
)
NEOVERSE_V1_ISA = (
    "aes asimd asimddp asimdfhm asimdhp asimdrdm atomics bf16 crc32 fcma flagm fp fphp i8mm "
    "ilrcpc jscvt lrcpc pmull sha1 sha2 sha3 sha512 sm3 sm4 sve svebf16 svei8mm uscat"
)
SYSTEM = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr ht "
    "syscall nx mmxext fxsr_opt pdpe1gb rdtscp lm constant_tsc rep_good nopl nonstop_tsc cpuid "
    "extd_apicid tsc_known_freq xsave rdrand hypervisor lahf_lm cmp_legacy cr8_legacy misalignsse "
    "3dnowprefetch osvw topoext vmmcall fsgsbase tsc_adjust smep smap clflushopt clwb xsaveopt "
    "xsavec xgetbv1 clzero xsaveerptr arat umip rdpid"
)
"""Flags of both x86 processors that no generated code can use."""

AVX512 = f"""\
processor	: 0
vendor_id	: AuthenticAMD
model name	: AMD EPYC
flags		: {SYSTEM} {AVX512_ISA} \
xtopology pcid x2apic tsc_deadline_timer erms invpcid xsaves fsrm
bugs		: sysret_ss_attrs null_seg
"""
AVX2 = f"""\
processor	: 0
vendor_id	: AuthenticAMD
model name	: AMD EPYC 7B12
flags		: {SYSTEM} {AVX2_ISA} ssbd ibrs ibpb stibp rdseed npt nrip_save sme sev
"""
NEOVERSE_V1 = f"""\
processor	: 0
BogoMIPS	: 2100.00
Features	: {NEOVERSE_V1_ISA} evtstrm cpuid dcpop dit ssbs paca pacg dcpodp dgh rng
CPU implementer	: 0x41
CPU part	: 0xd40
"""

# Each with a value that torch accepts: the test below starts torch under all of them.
EXCLUDED = {
    "TORCHDYNAMO_DEBUG_FUNCTION": "forward",
    "TORCHDYNAMO_EXTENDED_ADVICE": "0",
    "TORCHDYNAMO_EXTENDED_DEBUG_CPP": "1",
    "TORCHDYNAMO_EXTENDED_DEBUG_CREATE_SYMBOL": "u0",
    "TORCHDYNAMO_EXTENDED_DEBUG_GUARD_ADDED": "Eq(s0, 1)",
    "TORCHDYNAMO_PRINT_MISSING": "1",
    "TORCHDYNAMO_VERBOSE": "1",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "0",
    "TORCHINDUCTOR_CACHE_DIR": "/elsewhere",
    "TORCHINDUCTOR_CACHE_DUMP_FILE_PATH": "/elsewhere/dump",
    "TORCHINDUCTOR_COMPILE_THREADS": "3",
    "TORCHINDUCTOR_CONV_LOGGING_FILE": "/elsewhere/conv",
    "TORCHINDUCTOR_DUMP_MEMOIZER_CACHE": "0",
    "TORCHINDUCTOR_FLEX_ATTENTION_LOGGING_FILE": "/elsewhere/flex",
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "0",
    "TORCHINDUCTOR_MM_LOGGING_FILE": "/elsewhere/mm",
    "TORCHINDUCTOR_REDIS_HOST": "redis",
    "TORCHINDUCTOR_REDIS_PORT": "6380",
    "TORCHINDUCTOR_REDIS_URL": "redis://user:secret@redis:6380",
    "TORCHINDUCTOR_WORKER_START": "spawn",
    "TORCHINDUCTOR_WRITE_MISSING_OPS": "1",
    "TORCH_COMPILE_CPROFILE": "1",
    "TORCH_COMPILE_DEBUG_DIR": "/elsewhere",
    "TORCH_COMPILE_DYNAMO_PROFILER": "1",
    "TORCH_COMPILE_JOB_ID": "run-17",
    "TORCH_COMPILE_STROBELIGHT": "0",
}

PRINT_TORCH_KEY_PARTS = """
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch._inductor.codecache import FxGraphHashDetails
config = inductor.save_config_portable(ignore_private_configs=False)
ignored = tuple(inductor._cache_config_ignore_prefix)
print({name: repr(value) for name, value in config.items() if not name.startswith(ignored)})
print(sorted(functorch.save_config_portable().items(), key=repr))
"""


def this_process() -> Fingerprint:
    """Return this process, as it is read when a replica starts."""
    app = read_app(os.environ, compile_arguments={"dynamic": "False"})
    return Fingerprint(machine=read_machine(os.environ), app=app)


@pytest.fixture(scope="module")
def here() -> Fingerprint:
    return this_process()


@pytest.fixture
def torch_settings() -> Iterator[None]:
    """Restore torch's process-wide settings."""
    import torch

    deterministic = torch.are_deterministic_algorithms_enabled()
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    matmuls = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    precisions = [matmul.fp32_precision for matmul in matmuls]
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)
    for matmul, precision in zip(matmuls, precisions, strict=True):
        matmul.fp32_precision = precision


def changed(fingerprint: Fingerprint, group: str, factor: str, value: str | None) -> Fingerprint:
    """Return the fingerprint with one factor set to `value`, or without it when that is None."""
    data = fingerprint.to_json()
    if value is None:
        del data[group][factor]
    else:
        data[group][factor] = value
    return Fingerprint.from_json(data)


def test_the_factors_read_are_the_factors_tested(here: Fingerprint) -> None:
    """A factor that is added or lost shows here, so that the tests below cover all of them."""
    assert tuple(here.machine) == MACHINE_FACTORS
    assert tuple(here.app) == APP_FACTORS


def test_a_process_fits_itself(here: Fingerprint) -> None:
    """Reading twice gives one fingerprint: nothing in it varies from start to start."""
    again = this_process()
    assert here.compare(again) == ()
    assert here.key == again.key


@pytest.mark.parametrize(("group", "factor"), FACTORS)
def test_each_factor_alone_is_a_named_difference(
    here: Fingerprint, group: str, factor: str
) -> None:
    other, without = (changed(here, group, factor, value) for value in ("other", None))
    ours = here.to_json()[group][factor]
    for artifact, machine, was, now in (
        (other, here, "other", ours),
        (without, here, None, ours),
        (here, without, ours, None),
    ):
        (mismatch,) = artifact.compare(machine)
        assert mismatch == Mismatch(group=group, factor=factor, artifact=was, here=now)
        text_of_artifact = "without it" if was is None else was
        text_of_machine = "without it" if now is None else now
        assert str(mismatch) == f"{factor}: artifact {text_of_artifact}, here {text_of_machine}"
        assert artifact.key != machine.key


def test_machine_factors_come_first() -> None:
    """All differences are reported at once, the machine's before the app's, sorted by name."""
    artifact = Fingerprint(machine={"torch": "1", "gpu": "A"}, app={"threads": "1", "autocast": ""})
    other = Fingerprint(machine={"torch": "2", "gpu": "B"}, app={"threads": "2", "autocast": "x"})
    mismatches = artifact.compare(other)
    assert [mismatch.factor for mismatch in mismatches] == ["gpu", "torch", "autocast", "threads"]


@pytest.mark.parametrize("here", ["g++ 12.2.0", "none", "not needed"])
def test_what_an_artifact_does_not_need_is_no_difference(here: str) -> None:
    """An artifact with only libraries fits any compiler. Other artifacts do not."""
    libraries = Fingerprint(machine={"compiler": "not needed"}, app={})
    kernels = Fingerprint(machine={"compiler": "g++ 13.1.0"}, app={})
    machine = Fingerprint(machine={"compiler": here}, app={})
    assert libraries.compare(machine) == ()
    assert [mismatch.factor for mismatch in kernels.compare(machine)] == ["compiler"]


TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU "
    "driver by downloading and installing a new version from the URL: http://www.nvidia.com"
)


DRIVER = [Path(os.devnull)]
"""Stands for the files of a driver, wherever these tests run."""


@pytest.fixture
def cuda_without_devices(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what makes this torch one for CUDA that finds no device, for a reason."""
    import torch

    def found(why: str) -> None:
        def init() -> None:
            raise RuntimeError(why)

        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.cuda, "init", init)
        monkeypatch.setattr(fingerprint, "NVIDIA", DRIVER)

    return found


def test_a_gpu_that_torch_cannot_use_is_not_none(
    cuda_without_devices: Callable[[str], None],
) -> None:
    """With a driver that is too old, nothing fits, and the reason is reported."""
    cuda_without_devices(TOO_OLD)
    machine = read_machine(os.environ)
    assert machine["gpu"] == "unknown"
    assert why_no_gpu(os.environ).endswith(
        " (CUDA 13.0) cannot use this machine's GPU, so no artifact fits: "
        "The NVIDIA driver on your system is too old (found version 12020); "
        "update the driver, or install torch for the driver's CUDA version"
    )


@pytest.mark.parametrize(
    "why",
    ["No CUDA GPUs are available", "Found no NVIDIA driver on your system. Please check that you"],
)
def test_a_machine_without_a_gpu_has_none(
    cuda_without_devices: Callable[[str], None], why: str
) -> None:
    """A CUDA build of torch without a visible GPU is a normal machine."""
    cuda_without_devices(why)
    machine = read_machine(os.environ)
    assert (machine["gpu"], machine["driver"]) == ("none", "none")
    assert why_no_gpu(os.environ) == ""


def test_unknown_fits_nothing() -> None:
    """Two machines whose instruction sets could not be read are not taken for equal."""
    machine = Fingerprint(machine={"cpu_isa": "unknown"}, app={})
    (mismatch,) = machine.compare(machine)
    assert str(mismatch) == "cpu_isa: artifact unknown, here unknown"


@pytest.mark.parametrize(
    ("artifact", "here", "text"),
    [
        ("avx512f", "avx2", "artifact avx512f, here avx2"),
        ("avx2 avx512f fma", "avx2 fma", "only in the artifact avx512f"),
        ("avx2 fma", "amx_tile avx2 fma", "only here amx_tile"),
        ("avx2 avx512f", "amx_tile avx2", "only in the artifact avx512f; only here amx_tile"),
        ("it's broken", "it's not", "only in the artifact broken; only here not"),
    ],
)
def test_of_two_lists_only_the_difference_is_shown(artifact: str, here: str, text: str) -> None:
    """Shared instructions are not printed. Strange text from a manifest is printed."""
    mismatch = Mismatch(group="machine", factor="cpu_isa", artifact=artifact, here=here)
    assert str(mismatch).replace('"', "").replace("it's ", "") == f"cpu_isa: {text}"


def test_key_does_not_depend_on_order(here: Fingerprint) -> None:
    """The key is the variant's name: 16 hexadecimal digits, whatever the order of factors."""
    data = json.loads(json.dumps(here.to_json(), sort_keys=True))
    groups = {group: dict(reversed(factors.items())) for group, factors in data.items()}
    reversed_order = Fingerprint(**groups)
    assert Fingerprint.from_json(data) == here
    assert Fingerprint.from_json(data).key == reversed_order.key == here.key
    assert re.fullmatch("[0-9a-f]{16}", here.key)


def test_key_is_the_same_in_every_version() -> None:
    """Stored artifacts are found by this name: another derivation would orphan all of them."""
    assert Fingerprint(machine={"gpu": "none"}, app={"threads": "4"}).key == "f96e57240d6dcfab"
    machine, app = Fingerprint(machine={"a": "1"}, app={}), Fingerprint(machine={}, app={"a": "1"})
    assert machine.key != app.key


@pytest.mark.parametrize(
    "data",
    [
        *(None, [], "fingerprint", {}),
        {"machine": {}},
        {"machine": {}, "app": {}, "more": {}},
        {"machine": [], "app": {}},
        {"machine": {}, "app": None},
        {"machine": {"gpu": None}, "app": {}},
        {"machine": {}, "app": {"threads": 4}},
        {"machine": {}, "app": {"threads": ["4"]}},
        {"machine": {4: "4"}, "app": {}},
    ],
)
def test_from_json_refuses_other_shapes(data: Any) -> None:
    """A manifest is input from outside: every shape but the right one is a ValueError."""
    with pytest.raises(ValueError, match="fingerprint"):
        Fingerprint.from_json(data)


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (AVX512, AVX512_ISA),
        (AVX2, AVX2_ISA),
        (NEOVERSE_V1, NEOVERSE_V1_ISA),
        ("processor\t: 0\nisa\t\t: rv64imafdc\n", "unknown"),
        ("flags\t: fpu vme\n", "unknown"),
        ("", "unknown"),
    ],
    ids=["avx512", "avx2", "arm", "riscv", "nothing usable", "empty"],
)
def test_cpu_isa_keeps_what_code_can_use(cpuinfo: str, expected: str) -> None:
    """Real processors give their vector and arithmetic extensions, without the system flags."""
    assert cpu_isa(cpuinfo) == expected


def test_cpu_isa_is_what_all_processors_share() -> None:
    """A kernel may run on any core, so that an extension of some cores only does not count."""
    assert cpu_isa(AVX512 + "\n" + AVX2) == cpu_isa(AVX2)
    assert cpu_isa(AVX512 + "\n" + AVX512) == cpu_isa(AVX512)
    assert cpu_isa(AVX2.replace(" sme sev", "").replace(" smep", "")) == cpu_isa(AVX2)


def portable(cpuinfo: str, capability: str = "unset") -> Fingerprint:
    """Return the CPU's factors of a machine that compiles for every one with AVX2."""
    isa, capability = portable_factors(cpu_isa(cpuinfo), capability)
    return Fingerprint(machine={"cpu_isa": isa, "cpu_capability": capability}, app={})


def without(cpuinfo: str, *names: str) -> str:
    return " ".join(word for word in cpuinfo.split(" ") if word not in names)


def test_two_cpus_with_avx2_are_one_portable_machine() -> None:
    """A wider CPU, and a CPU that torch is told to use less of, fit each other's artifacts."""
    wide, narrow = portable(AVX512), portable(AVX2)
    assert wide.compare(narrow) == ()
    assert wide.compare(portable(AVX2, "avx2")) == wide.compare(portable(AVX512, "avx512")) == ()
    assert wide.machine["cpu_isa"] != cpu_isa(AVX2)


@pytest.mark.parametrize("name", PORTABLE_ISA.split())
def test_a_cpu_without_one_feature_fits_no_portable_artifact(name: str) -> None:
    """Whichever it lacks of x86-64-v3 is named, and it keeps an instruction set of its own."""
    lesser = portable(without(AVX2, name))
    [mismatch] = [m for m in portable(AVX512).compare(lesser) if m.factor == "cpu_isa"]
    assert lacking(cpu_isa(without(AVX2, name))) == (name,)
    assert f"only in the artifact {name};" in str(mismatch)
    assert lesser.machine["cpu_isa"] == cpu_isa(without(AVX2, name))


def test_a_portable_artifact_is_not_for_torch_without_vectors() -> None:
    """`ATEN_CPU_CAPABILITY=default` refuses to compile some graphs: it stays a factor."""
    [mismatch] = portable(AVX2).compare(portable(AVX2, "default"))
    assert str(mismatch) == "cpu_capability: artifact any, here default"


def test_native_and_portable_replicas_share_no_artifact() -> None:
    """Not even a CPU with exactly the required features fits, because torch's keys differ."""
    native, preset = (
        Fingerprint(machine=read_machine({}, cpu=cpu), app=read_app({}, cpu=cpu))
        for cpu in ("native", "portable")
    )
    said = [str(mismatch) for mismatch in preset.compare(native)]
    assert "cpu: artifact portable, here native" in said


def test_excluded_variables_leave_no_trace() -> None:
    """Cache paths, compile threads, logging and credentials are in no fingerprint."""
    assert fingerprint.torch_environment(EXCLUDED) == "none"
    assert set(EXCLUDED) == fingerprint._EXCLUDED_VARIABLES


@pytest.mark.long
def test_excluded_variables_are_in_no_key_of_torch() -> None:
    """An excluded variable that torch hashes would cause an unexplained miss."""

    def key_parts(environ: Mapping[str, str]) -> str:
        return subprocess.run(
            [sys.executable, "-c", PRINT_TORCH_KEY_PARTS],
            env={**plain, **environ},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    plain = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
    default = key_parts({})

    assert key_parts(EXCLUDED) == default
    assert key_parts({"TORCHINDUCTOR_SHAPE_PADDING": "0"}) != default


def test_compiler_variables_are_a_sorted_factor() -> None:
    environ = {
        "TORCH_COMPILE_DYNAMIC_SOURCES": "L['x'], L['y']",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "TORCHDYNAMO_NOT_YET_INVENTED": "",
        "TORCH_LOGS": "recompiles",
        "HOME": "/home/user",
    }
    assert fingerprint.torch_environment(environ) == (
        "TORCHDYNAMO_NOT_YET_INVENTED= TORCHINDUCTOR_MAX_AUTOTUNE=1 "
        """'TORCH_COMPILE_DYNAMIC_SOURCES=L['"'"'x'"'"'], L['"'"'y'"'"']'"""
    )


def test_two_sets_of_compile_arguments_never_read_the_same() -> None:
    """Quoting keeps values with blanks apart, so that no two settings share a fingerprint."""
    one = read_app({}, compile_arguments={"mode": "default dynamic=False"})
    two = read_app({}, compile_arguments={"mode": "default", "dynamic": "False"})
    assert one["compile_arguments"] == "'mode=default dynamic=False'"
    assert two["compile_arguments"] == "dynamic=False mode=default"
    assert read_app({})["compile_arguments"] == "none"


@pytest.mark.usefixtures("torch_settings")
def test_app_factors_follow_the_process() -> None:
    """Each mode that torch's keys or guards contain is read from the thread that asks."""
    import torch

    before = read_app({})
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    torch.set_num_threads(torch.get_num_threads() + 1)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        inside = read_app({})
    assert {factor for factor in before if before[factor] != inside[factor]} == {*MODES}
    assert inside["autocast"] == "cpu=bfloat16"
    assert inside["deterministic"] == "warn_only"
    assert (inside["grad_mode"], inside["inference_mode"]) == ("off", "on")


@pytest.mark.usefixtures("torch_settings")
def test_matmul_precision_is_read_after_mixed_setters() -> None:
    """A program that used torch's old and new precision settings can still be read."""
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="mix of the legacy and new"):
        torch.get_float32_matmul_precision()
    assert read_app({})["matmul_precision"].startswith("cuda=tf32 cpu=ieee ")


def test_cpu_capability_unset_is_not_the_capability_default() -> None:
    """`ATEN_CPU_CAPABILITY=default` switches vectors off; not setting it does not."""
    assert read_machine({})["cpu_capability"] == "unset"
    assert read_machine({"ATEN_CPU_CAPABILITY": "default"})["cpu_capability"] == "default"


def test_compiler_is_the_one_that_torch_would_call(tmp_path: Path) -> None:
    """CXX decides, its version counts, and so does the word by which it is called."""
    compiler, failing = tmp_path / "g++", tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'g++ (Test) 99.1'\necho more\n")
    failing.write_text("#!/bin/sh\nexit 1\n")
    for each in (compiler, failing):
        each.chmod(0o755)
    text = "g++ (Test) 99.1"
    for environ, found in (
        ({"PATH": str(tmp_path)}, text),
        ({"PATH": "", "CXX": str(compiler)}, f"{compiler}: {text}"),
        ({"PATH": str(tmp_path), "CXX": "ccache g++"}, "none"),
        ({"PATH": "", "CXX": str(failing)}, "none"),
        ({"PATH": str(tmp_path / "empty")}, "none"),
    ):
        assert read_machine(environ)["compiler"] == found, environ


def test_kernel_paths_are_those_on_the_compiler_command_line() -> None:
    """Built kernels are named by this command line: the directories in it are factors."""
    from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
    from torch._inductor.cpu_vec_isa import invalid_vec_isa

    options = CppTorchDeviceOptions(vec_isa=invalid_vec_isa, device_type="cpu")
    command = CppBuilder(name="o", sources="i", BuildOption=options).get_command_line()
    machine = read_machine(os.environ)
    directories = {word[2:] for word in command.split() if word.startswith(("-I/", "-L/"))}
    covered = (machine["python_include"], machine["python_lib"], machine["torch_install"])
    assert {path for path in directories if path.startswith(covered)} == directories
    for prefix in covered:
        assert any(path.startswith(prefix) for path in directories)


def device(name: str, major: int, **properties: int) -> SimpleNamespace:
    """Return the properties of a device, as torch names them."""
    size = {"multi_processor_count": 132, "total_memory": 80 * 2**30, **properties}
    return SimpleNamespace(name=name, major=major, minor=0, **size)


H200, L4 = "H200 sm_90", "L4 sm_89"


@pytest.mark.parametrize(
    ("visible", "current", "named"),
    [
        ([H200], 0, H200),
        ([H200] * 8, 0, H200),
        ([H200] * 8, 3, f"{H200} as cuda:3"),
        ([H200, L4, L4], 0, f"{H200}, beside {L4}"),
        ([H200, L4], 0, f"{H200}, beside {L4}"),
        ([H200, L4], 1, f"{L4} as cuda:1, beside {H200}"),
    ],
)
def test_the_device_in_use_is_named(visible: list[str], current: int, named: str) -> None:
    """An artifact fits however many equal GPUs are visible, and not beside other kinds."""
    assert fingerprint._device_in_use(visible, current) == named


def test_the_current_device_is_the_one_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that sees several GPUs and has chosen the third describes that one."""
    import torch

    devices = [device(name, major) for name, major in (("A", 8), ("B", 9), ("B", 9))]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(devices))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", devices.__getitem__)
    named = "B sm_90 132 SMs 80 GiB as cuda:2, beside A sm_80 132 SMs 80 GiB"
    assert read_machine(os.environ)["gpu"] == named


def test_a_rank_is_a_factor_of_its_own() -> None:
    """The graphs of a rank fit no other one, nor a process by itself, which has no such factor."""
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    alone = read_app(os.environ)
    in_groups = []
    for rank, size in ((0, 1), (1, 2), (2, 4)):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        try:
            in_groups.append(read_app(os.environ))
        finally:
            torch.distributed.destroy_process_group()
    assert in_groups == [alone, {**alone, "rank": "1 of 2"}, {**alone, "rank": "2 of 4"}]
    assert "rank" not in alone


def test_a_part_of_a_device_is_another_device() -> None:
    """A kernel tuned for 132 multiprocessors is wrong for a seventh of them (MIG)."""
    whole = device("NVIDIA H200", 9, total_memory=150_754_820_096)
    part = device("NVIDIA H200", 9, multi_processor_count=16, total_memory=18_790_481_920)
    assert fingerprint._device(whole) == "NVIDIA H200 sm_90 132 SMs 140 GiB"
    assert fingerprint._device(part) == "NVIDIA H200 sm_90 16 SMs 18 GiB"
