# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One artifact for CPUs that differ: what is in its kernels, and whether it runs on a lesser one.

The lesser one is there twice: a process in which torch finds no AVX-512, and, in `make stress`, one
that runs on an emulated CPU (qemu's user mode), where an instruction of AVX-512 ends the process.
"""

from __future__ import annotations

import io
import platform
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from components import require
from machines import TOLERANCE, Machine, Started
from serve_warm.builder.build import _portable_facts, _portable_of, build
from serve_warm.builder.portable import beyond_avx2, find_objdump, prove_portable
from serve_warm.builder.publishing import Destination
from serve_warm.builder.signing import Signing
from serve_warm.cli.starts import build as build_command
from serve_warm.errors import BuildFailed, ConfigError
from serve_warm.fingerprint import PORTABLE_ISA, lacking, read_cpu_isa
from serve_warm.stores.local import LocalStore

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or bool(lacking(read_cpu_isa())),
    reason="this CPU is below x86-64-v3",
)

HEADER = "0000000000001110 <kernel>:"


def packed(files: Mapping[str, bytes]) -> io.BytesIO:
    """Return the tar of a cache directory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    buffer.seek(0)
    return buffer


def library(directory: Path, *flags: str, suffix: str = ".so") -> bytes:
    """Return a small library: a loop that a compiler makes vector instructions of."""
    source, output = directory / "scale.c", directory / f"scale{suffix}"
    loop = "for (int i = 0; i < 1024; i++) x[i] = x[i] * 3.0f + 1.0f;"
    source.write_text(f"void scale(float *x) {{ {loop} }}\n")
    kind = "-c" if suffix == ".o" else "-shared"
    subprocess.run(["gcc", "-O3", "-fPIC", kind, *flags, source, "-o", output], check=True)
    return output.read_bytes()


AVX512 = ("-mavx512f", "-mprefer-vector-width=512")
AVX2 = ("-march=x86-64-v3",)


# The listing ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "instruction"),
    [
        ("    1110:\t62 f1 7c 48 58 c1    \tvaddps %zmm1,%zmm0,%zmm0", "vaddps %zmm1,%zmm0,%zmm0"),
        ("    1116:\tc5 f8 92 c8          \tkmovw  %eax,%k1", "kmovw %eax,%k1"),
        ("    111a:\t62 81 7c 20 28 c1\tvmovaps %ymm25,%ymm16", "vmovaps %ymm25,%ymm16"),
        # 128 bits of low registers, by AVX-512's encoding: the registers do not give it away.
        ("    1120:\t62 f3 7d 08 25 c0 ff \tvpternlogd $0xff,%xmm0,%xmm0,%xmm0", None),
        ("    1127:\t64 62 f1 7c 08 28 00 \tvmovaps %fs:(%rax),%xmm0", None),
        ("    112f:\tc4 e2 7b 49 c0       \ttilezero %tmm0", "tilezero %tmm0"),
        ("    1134:\td5 18 89 c0          \tmov    %r24d,%r16d", "mov %r24d,%r16d"),
        ("    1138:\td5                   \t(bad)", "(bad)"),
        # Encoded as AVX2 or SSE, with their registers, and newer all the same.
        ("    1139:\tc4 e2 75 50 c2       \t{vex} vpdpbusd %ymm2,%ymm1,%ymm0", None),
        ("    113e:\tc4 e2 75 50 c2       \tvpdpbusd %ymm2,%ymm1,%ymm0", None),
        ("    1143:\t66 0f 38 dc c1       \taesenc %xmm1,%xmm0", None),
        ("    1148:\tc4 e3 71 44 c2 00    \tvpclmulqdq $0x0,%xmm2,%xmm1,%xmm0", None),
        ("    114e:\t0f 38 cb c1          \tsha256rnds2 %xmm0,%xmm1,%xmm0", None),
        ("    1152:\tc4 e2 71 cf c2       \tvgf2p8mulb %xmm2,%xmm1,%xmm0", None),
    ],
)
def test_what_needs_more_than_avx2_is_found(line: str, instruction: str | None):
    """Wide registers, masks, the other encoding, tiles, and what this objdump does not know."""
    text = instruction or " ".join(line.split("\t")[2].split())
    assert list(beyond_avx2([HEADER, line])) == [("kernel", text)]


@pytest.mark.parametrize(
    "line",
    [
        "    1110:\tc5 fc 58 c1          \tvaddps %ymm1,%ymm0,%ymm0",
        "    1114:\tc5 04 58 ff          \tvaddps %ymm7,%ymm15,%ymm15",
        "    1116:\tc5 f5 fd c2          \tvpaddw %ymm2,%ymm1,%ymm0",
        "    1117:\tc4 e2 75 b8 c2       \tvfmadd231ps %ymm2,%ymm1,%ymm0",
        "    1117:\t0f ae f8             \tsfence",
        "    1118:\t41 89 c7             \tmov    %eax,%r15d",
        # The byte 62 where it is no encoding: in an address, in a constant.
        "    111b:\tc5 fc 10 50 62       \tvmovups 0x62(%rax),%ymm2",
        "    1120:\tb8 62 62 62 62       \tmov    $0x62626262,%eax",
        "    1125:\te8 00 00 00 00       \tcall   112a <of_%zmm0_and_%k1>",
        "    112a:\t48 8b 05 00 00 00 00 \tmov    0x0(%rip),%rax        # 1131 <%zmm1>",
        "Disassembly of section .text:",
        "\t...",
        "",
    ],
)
def test_avx2_is_let_through(line: str):
    """An address, a constant or a name that looks like it is no instruction of AVX-512."""
    assert list(beyond_avx2([HEADER, line])) == []


# Libraries ------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", [".so", ".o"])
def test_a_library_with_avx512_is_refused(tmp_path: Path, suffix: str):
    """The error names library, function and instruction, under whatever name the file is."""
    files = {"ab/good.so": library(tmp_path, *AVX2), "cd/kernel": library(tmp_path, *AVX512)}
    if suffix == ".o":
        files["cd/kernel"] = library(tmp_path, *AVX512, suffix=".o")
    with pytest.raises(BuildFailed, match=r"in 1 of 2 libraries .* cd/kernel: scale: v\w+ .*%zmm"):
        prove_portable(packed(files), objdump=find_objdump())


def test_libraries_with_avx2_are_counted(tmp_path: Path):
    """Sources, entries and code for a GPU are no libraries of a CPU."""
    cubin = bytearray(library(tmp_path, *AVX512))
    cubin[18:20] = (190).to_bytes(2, "little")
    files = {
        "ab/one.so": library(tmp_path, *AVX2),
        "cd/two.o": library(tmp_path, *AVX2, suffix=".o"),
        "cd/two.cpp": b"// %zmm0",
        "triton/kernel.cubin": bytes(cubin),
        "fxgraph/entry": b"\x80\x04",
        "empty": b"",
    }
    assert prove_portable(packed(files), objdump=find_objdump()) == 2


def test_what_cannot_be_disassembled_is_not_proven(tmp_path: Path):
    """A library that is cut off, or has no code where it is looked for, fails the build."""
    whole = library(tmp_path, *AVX2)
    # It can be loaded as ever: only who reads it by its sections finds none.
    unlisted = bytearray(whole)
    unlisted[0x28:0x30], unlisted[0x3C:0x40] = bytes(8), bytes(4)
    for data in (whole[:1000], bytes(unlisted)):
        with pytest.raises(BuildFailed, match=r"could not disassemble ab/cut\.so"):
            prove_portable(packed({"ab/cut.so": data}), objdump=find_objdump())


def test_a_missing_objdump_is_said_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The build fails before it compiles for minutes without a possible proof."""
    app, key = cast("Any", None), cast("Any", Path(__file__))  # neither is used
    monkeypatch.setenv("PATH", str(tmp_path))
    store = Destination.of(LocalStore(root=tmp_path / "store"))
    on = cast("Any", SimpleNamespace(place="here"))
    with pytest.raises(ConfigError, match="needs objdump") as caught:
        build(app, store, on=on, signing=Signing(key=key), cpu="portable")
    assert "install binutils" in caught.value.hint


# The build ------------------------------------------------------------------------------------
def warmed_up(*, cache: bytes = b"", isa: str = PORTABLE_ISA, **app: str) -> dict[str, Any]:
    """Return the data that a replica returns for packing."""
    fingerprint = {"machine": {"cpu_isa": isa}, "app": app}
    return {"fingerprint": fingerprint, "parts": {"cache": cache}}


def test_a_native_artifact_is_not_disassembled(tmp_path: Path):
    """Without the setting, an artifact is for this CPU, with or without AVX-512."""
    cache = packed({"a.so": library(tmp_path, *AVX512)}).read()
    native, portable = warmed_up(cache=cache), warmed_up(cache=cache, cpu="portable")
    assert _portable_of([native, portable]) == [portable]


def test_a_portable_artifact_is_proven_whoever_set_it(tmp_path: Path):
    """The setting of the replica decides, not the option, because a YAML can set it too."""
    good = packed({"a.so": library(tmp_path, *AVX2)}).read()
    bad = packed({"a.so": library(tmp_path, *AVX512)}).read()
    facts = _portable_facts(warmed_up(cache=good, cpu="portable"))
    assert facts == {"cpu": "portable", "libraries_disassembled": 1}
    with pytest.raises(BuildFailed, match="need more than AVX2"):
        _portable_facts(warmed_up(cache=bad, cpu="portable"))


def test_a_cpu_without_avx2_builds_no_portable_artifact():
    """The replica compiled only for its own CPU. The error lists the missing features."""
    isa = " ".join(name for name in PORTABLE_ISA.split() if name not in {"avx2", "fma"})
    with pytest.raises(BuildFailed, match="the build machine's CPU does not have avx2 fma"):
        _portable_facts(warmed_up(isa=isa, cpu="portable"))


@pytest.mark.parametrize(("option", "cpu"), [((), None), (("--portable-cpu",), "portable")])
def test_the_command_has_the_preset(option: tuple[str, ...], cpu: str | None):
    """Without the option, the deployment's own setting applies."""
    context = build_command.make_context("build", ["app:app", "--store", "s", *option])
    assert context.params["cpu"] == cpu


# Real kernels ---------------------------------------------------------------------------------

HAS_GPU = torch.cuda.is_available()
needs_cpu_kernels = pytest.mark.skipif(HAS_GPU, reason="the model is compiled for the CPU")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def portable(machine: Machine) -> Started:
    """The start that compiles for every CPU with AVX2, and publishes."""
    return machine.start(load=False, publish=True, cpu="portable")


@pytest.fixture(
    scope="module", params=["claimed", pytest.param("emulated", marks=pytest.mark.stress)]
)
def lesser(request: pytest.FixtureRequest, machine: Machine, portable: Started) -> Started:
    """A start from that on a CPU without AVX-512."""
    if request.param == "claimed":
        eager = {"ATEN_CPU_CAPABILITY": "avx2"}
        return machine.start(load=True, cpu="portable", claims_avx2=True, environ=eager)
    qemu = require("qemu-x86_64-static", "apt-get install qemu-user-static")
    return machine.start(load=True, cpu="portable", emulator=(qemu, "-cpu", "Haswell-v4"))


def libraries(started: Started) -> io.BytesIO:
    caches = Path(started.said["cache_directory"])
    return packed({str(f.relative_to(caches)): f.read_bytes() for f in caches.rglob("*.so")})


@pytest.mark.stress
@pytest.mark.long
@needs_cpu_kernels
def test_portable_kernels_need_no_avx512(portable: Started):
    """Kernels and the library of torch's probe: every one, disassembled."""
    assert prove_portable(libraries(portable), objdump=find_objdump()) >= 3
    assert portable.said["error"] <= TOLERANCE


@pytest.mark.stress
@needs_cpu_kernels
@pytest.mark.skipif("avx512f" not in read_cpu_isa().split(), reason="this CPU has no AVX-512")
def test_native_kernels_do(machine: Machine):
    """The control: without the preset the same model on this CPU fails the same proof."""
    native = machine.start(load=False)
    with pytest.raises(BuildFailed, match=r"\.so: \w*kernel\w*: "):
        prove_portable(libraries(native), objdump=find_objdump())


@pytest.mark.long
@pytest.mark.slow
@needs_cpu_kernels
def test_torch_is_asked_about_avx2_only(portable: Started):
    """One probe runs, and no answer about a wider CPU reaches another machine."""
    assert portable.isa_probes == 1
    assert not any(word.startswith("-mavx512") for line in portable.command_lines for word in line)


@pytest.mark.long
@pytest.mark.slow
@needs_cpu_kernels
def test_a_portable_artifact_is_warm_on_a_lesser_cpu(lesser: Started):
    """Both inputs are proven, nothing compiles, and the numbers equal those of eager mode."""
    report = lesser.report
    assert report["verdict"] == "full_hit", report["artifact"]
    assert report["covered"] == {"expected": 2, "proven": 2}
    assert lesser.objects == lesser.outputs == lesser.isa_probes == 0
    assert (report["warmup"]["fx_hits"], report["warmup"]["fx_misses"]) == (2, 0)
    assert lesser.said["error"] <= TOLERANCE
    assert report["warnings"] == []
