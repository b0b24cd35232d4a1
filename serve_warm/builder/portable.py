# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The proof that the kernels of a portable artifact need no AVX-512.

Compiler flags are not a proof: such flags do not apply to assembler code in a header, and a flag in
`CXX` can override them. So `objdump`, which comes with every compiler, disassembles all machine
code that was built.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from serve_warm._records import record
from serve_warm.errors import BuildFailed, ConfigError

SHOWN = 3
"""Maximum number of findings in an error. Further findings are only counted."""

_ARCHIVE = b"!<arch>\n"
_ELF = b"\x7fELF"
_X86 = {3, 62}
"""ELF machine types of x86 CPUs. ELF files may also contain code for GPUs."""


@record(frozen=True, kw_only=True)
class Instruction:
    """One instruction that is not in x86-64-v3, and its location."""

    kernel: str
    """The path of the library in the cache directory."""
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.kernel}: {self.function}: {self.text}"


def find_objdump() -> str:
    """Return the path of objdump, found on the PATH of this process.

    Raises:
        ConfigError: objdump is missing.
    """
    found = shutil.which("objdump")
    if found is None:
        raise ConfigError(
            "serve_warm needs objdump to check a portable artifact, but objdump is not on the PATH",
            hint="install binutils (Debian: apt-get install binutils); g++ needs it too",
        )
    return found


def prove_portable(cache: IO[bytes], *, objdump: str) -> int:
    """Check every library in the tar of a cache directory; return the number of libraries.

    Raises:
        BuildFailed: an instruction needs more than x86-64-v3, or a file cannot be read.
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
            f"`cpu: portable` is set, but {len(found)} instructions in {kernels} of {checked} "
            f"libraries need more than AVX2 (x86-64-v3): {shown}",
            hint="nothing was published. Look for machine flags in CXX, or for libraries that "
            "the model itself builds into torch's cache directory",
        )
    return checked


def _is_code(data: bytes) -> bool:
    # Recognize libraries by content, because a library may have any name.
    return data.startswith(_ARCHIVE) or (
        data.startswith(_ELF) and int.from_bytes(data[18:20], "little") in _X86
    )


def _disassemble(file: Path, name: str, objdump: str) -> Iterable[str]:
    completed = subprocess.run(
        # `--wide` prints all bytes of an instruction on one line.
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
            f"`cpu: portable` is set, but objdump could not disassemble {name}: {reason}",
            hint=(
                "nothing was published, because code that cannot be disassembled cannot be checked"
            ),
        )
    return lines


_FUNCTION = re.compile(r"[0-9a-f]+ <(.+)>:")

_WIDER_REGISTERS = re.compile(
    # AVX-512: 512-bit vectors, masks, and the other vector registers from number 16 on. AMX: tiles.
    # APX: the general registers from number 16 on.
    r"%(?:zmm\d+|k[0-7]|[xy]mm(?:1[6-9]|2\d|3[01])|tmm\d|r(?:1[6-9]|2\d|3[01])[dwb]?)\b"
)

_BEYOND_BY_NAME = re.compile(
    # Instructions encoded like AVX2 or SSE, with the same registers, but not in x86-64-v3: AVX-VNNI
    # and its successors, AVX-IFMA, AVX-NE-CONVERT, AES, carry-less multiplication, GFNI, SHA, SM3
    # and SM4.
    r"\{(?:vex|evex)\d?\}|v?aes(?:enc|dec|imc|keygen)\w*|v?pclmul\w*|v?gf2p8\w+"
    r"|sha(?:1|256)\w+|vsha512\w+|vsm[34]\w+|vpdp[bw]\w+|vpmadd52\w+"
    r"|vcvtne\w+|vbcstne\w+"
)

_EVEX = "62"
"""The first byte of an instruction in AVX-512's encoding (EVEX). AVX-512 instructions can have this
encoding even if they use only the low 256-bit registers."""

_PREFIXES = {"26", "2e", "36", "3e", "64", "65", "67"}
"""Segment and address-size prefixes, which can come before the first byte of an encoding."""


def beyond_avx2(listing: Iterable[str]) -> Iterator[tuple[str, str]]:
    r"""Yield each instruction that is not in x86-64-v3: the name of its function, and its text.

    AVX-512, AMX and APX instructions are recognized by their registers and encoding. Instructions
    of other extensions, which are encoded like AVX2, are recognized by name.

    `listing` has the lines of `objdump --disassemble --wide`. The function also yields instructions
    that this objdump does not know, because such instructions might be newer than x86-64-v3.

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
            # Cut the text at "<" and "#": addresses and symbols follow, and a function may have any
            # name.
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
