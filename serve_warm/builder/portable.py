# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which instructions kernels are made of: the proof that a portable artifact needs no AVX-512.

What a compiler was told is no proof of what it did, nor does it bind an assembler in a header or a
flag that somebody sets in `CXX`. So the built machine code is read, all of it, with `objdump`,
which comes with every compiler.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from serve_warm.errors import BuildFailed, ConfigError

SHOWN = 3
"""Findings that an error names; it counts the others."""

_ARCHIVE = b"!<arch>\n"
_ELF = b"\x7fELF"
_X86 = {3, 62}
"""ELF machines that a CPU of this kind runs; code for GPUs is in ELF files too."""


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction that x86-64-v3 does not have, and where it stands."""

    kernel: str
    """Path of the library in the cache directory."""
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.kernel}: {self.function}: {self.text}"


def find_objdump(path: str | None = None) -> str:
    """Return the program that disassembles, searched for on `path`, else on the process' own.

    Raises:
        ConfigError: there is none.
    """
    found = shutil.which("objdump", path=path)
    if found is None:
        raise ConfigError(
            "a portable artifact cannot be proven without objdump, and there is none on the PATH",
            hint="install binutils (Debian: apt-get install binutils); g++ needs it too",
        )
    return found


def prove_portable(cache: IO[bytes], *, objdump: str) -> int:
    """Disassemble every library in a cache directory's tar; return how many there are.

    Raises:
        BuildFailed: some instruction needs more than x86-64-v3, or a file cannot be read.
    """
    checked = 0
    found: list[Instruction] = []
    with tarfile.open(fileobj=cache) as tar, tempfile.NamedTemporaryFile() as scratch:
        for member in tar:
            content = tar.extractfile(member)
            data = content.read() if content is not None else b""
            if not _is_code(data):
                continue
            checked += 1
            Path(scratch.name).write_bytes(data)
            listing = _disassemble(Path(scratch.name), member.name, objdump)
            found += (
                Instruction(kernel=member.name, function=function, text=text)
                for function, text in beyond_avx2(listing)
            )
    if found:
        kernels = len({instruction.kernel for instruction in found})
        shown = "; ".join(map(str, found[:SHOWN]))
        raise BuildFailed(
            f"cpu: portable, and {len(found)} instructions in {kernels} of {checked} libraries "
            f"need more than AVX2 (x86-64-v3): {shown}",
            hint="nothing was published. Look for machine flags in CXX, or for libraries that "
            "the model itself builds into torch's cache directory",
        )
    return checked


def _is_code(data: bytes) -> bool:
    # By content: a library is one under any name.
    return data.startswith(_ARCHIVE) or (
        data.startswith(_ELF) and int.from_bytes(data[18:20], "little") in _X86
    )


def _disassemble(file: Path, name: str, objdump: str) -> Iterable[str]:
    completed = subprocess.run(
        # Wide: all bytes of an instruction on its line.
        [objdump, "--disassemble", "--wide", str(file)],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        env={"LC_ALL": "C"},
    )
    lines = completed.stdout.splitlines()
    if completed.returncode or not any(_instruction(line) for line in lines):
        reason = completed.stderr.strip() or "it printed no instruction"
        raise BuildFailed(
            f"cpu: portable, and objdump could not disassemble {name}: {reason}",
            hint="nothing was published: what cannot be read is not proven",
        )
    return lines


_FUNCTION = re.compile(r"[0-9a-f]+ <(.+)>:")

_WIDER_REGISTERS = re.compile(
    # AVX-512: 512-bit vectors, masks, the upper half of the other vectors; AMX: tiles; APX: the
    # upper half of the general registers.
    r"%(?:zmm\d+|k[0-7]|[xy]mm(?:1[6-9]|2\d|3[01])|tmm\d|r(?:1[6-9]|2\d|3[01])[dwb]?)\b"
)

_BEYOND_BY_NAME = re.compile(
    # Encoded like AVX2 or SSE, with their registers, and yet not in x86-64-v3: AVX-VNNI and its
    # successors, AVX-IFMA, AVX-NE-CONVERT, AES, carry-less multiplication, GFNI, SHA, SM3 and SM4.
    r"\{(?:vex|evex)\d?\}|v?aes(?:enc|dec|imc|keygen)\w*|v?pclmul\w*|v?gf2p8\w+"
    r"|sha(?:1|256)\w+|vsha512\w+|vsm[34]\w+|vpdp[bw]\w+|vpmadd52\w+"
    r"|vcvtne\w+|vbcstne\w+"
)

_EVEX = "62"
"""First byte of AVX-512's encoding, also where only 256 bits of a low register are used."""

_PREFIXES = {"26", "2e", "36", "3e", "64", "65", "67"}
"""Segment and address-size bytes, which may stand before it."""


def beyond_avx2(listing: Iterable[str]) -> Iterator[tuple[str, str]]:
    r"""Yield function and text of each instruction that x86-64-v3 does not have.

    That is AVX-512, AMX and APX, by registers and encoding, and by name what is encoded as AVX2 is.

    `listing` has the lines of `objdump --disassemble --wide`. An instruction that this objdump
    does not know is yielded too: it may be newer than both.

    Example:
        >>> list(beyond_avx2(["0000 <add>:", " 0:\t62 f1 7c 48 58 c1\tvaddps %zmm1,%zmm0,%zmm0"]))
        [('add', 'vaddps %zmm1,%zmm0,%zmm0')]
    """
    function = ""
    for line in listing:
        if header := _FUNCTION.match(line):
            function = header[1]
        elif instruction := _instruction(line):
            code, text = instruction
            first = next((byte for byte in code if byte not in _PREFIXES), "")
            # Addresses and symbols come after "<" and "#": a function may be called anything.
            operands = re.split(r"[<#]", text, maxsplit=1)[0]
            if (
                first == _EVEX
                or _BEYOND_BY_NAME.match(operands)
                or _WIDER_REGISTERS.search(operands)
                or "(bad)" in operands
            ):
                yield function, text


def _instruction(line: str) -> tuple[list[str], str] | None:
    """Return the bytes and the text of an instruction, or None for any other line."""
    address, _, rest = line.partition(":\t")
    code, _, text = rest.partition("\t")
    if not text or not re.fullmatch(r"\s*[0-9a-f]+", address):
        return None
    return code.split(), " ".join(text.split())
