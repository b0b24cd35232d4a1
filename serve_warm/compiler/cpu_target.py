# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The CPU that Inductor compiles for: its C++ compiler, its vector ISA, the portable preset.

The names of `torch._inductor.cpu_vec_isa` and `config` are private, seen in torch 2.13.0.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from serve_warm import fingerprint
from serve_warm.compiler.background_import import when_imported
from serve_warm.errors import CompilerMissing, ConfigError


def require_compiler(environ: Mapping[str, str]) -> None:
    """Raise `CompilerMissing` unless a C++ compiler can be run.

    Inductor asks for one on CPU even when every kernel is in the cache. On a CUDA machine it
    is only needed for CPU kernels, so nothing is required there.
    """
    import torch

    if torch.cuda.is_available():
        return
    wanted = environ.get("CXX") or "g++"
    if shutil.which(wanted, path=environ.get("PATH")) is None:
        raise CompilerMissing(wanted)


class IsaChecks:
    """What torch's probe of the CPU's vector ISA answered, so that an equal CPU need not ask.

    The probe compiles and loads a small library for each candidate ISA: 4.5 s of every cold
    start, about 0.8 s of every warm one. The answers travel in the manifest, and are given
    only after the fingerprint (CPU flags, compiler, torch) was found equal.
    """

    def __init__(self) -> None:
        self.answers: dict[str, bool] = {}
        self._given: Mapping[str, bool] = {}

    def give(self, answers: Mapping[str, bool]) -> None:
        """Answer from `answers` from now on; anything not in them is still probed."""
        self._given = dict(answers)

    def hook(self, cpu_vec_isa: Any) -> None:
        """Put this in front of torch's probe, where this torch has one we know."""
        vec_isa: Any = cpu_vec_isa.VecISA
        original = getattr(vec_isa, "check_build", None)
        if original is None:
            return

        def check_build(isa: Any, code: str) -> bool:
            digest = hashlib.sha256(code.encode()).hexdigest()[:12]
            question = f"{type(isa).__name__} {isa.build_arch_flags()} {digest}"
            if question in self._given:
                self.answers[question] = self._given[question]
            else:
                self.answers[question] = bool(original(isa, code))
            return self.answers[question]

        vec_isa.check_build = check_build


_isa_checks: IsaChecks | None = None


_isa_lock = threading.Lock()


def isa_checks() -> IsaChecks:
    """Return this process' recorder of ISA probes, which hooks torch as the watch does."""
    global _isa_checks  # noqa: PLW0603  (the probe's cache is process-wide too)
    with _isa_lock:
        if _isa_checks is None:
            _isa_checks = IsaChecks()
            when_imported("torch._inductor.cpu_vec_isa", _isa_checks.hook)
        return _isa_checks


PINNED = {"cpp.simdlen": 256, "cpp.march": fingerprint.PORTABLE_MARCH}
"""Inductor's settings for a portable artifact. With the vector width alone the compiler would still
use 512-bit instructions here and there, because it is called with `-march=native`."""


def pin_portable_cpu() -> Sequence[str]:
    """Make Inductor compile for every CPU with AVX2, for as long as this process lives.

    Returns what this CPU lacks for that; then nothing is pinned, because it could not run the
    kernels, and it compiles for itself.

    Raises:
        ConfigError: this is not Linux on x86-64, or a torch that cannot be pinned.
    """
    found = f"{platform.system()} {platform.machine()}"
    if found != "Linux x86_64":
        raise ConfigError(
            f"cpu: portable is for Linux x86_64, and this is {found}",
            hint="leave cpu out: machines with one and the same CPU need no preset",
        )
    lacking = fingerprint.lacking(fingerprint.read_cpu_isa())
    if not lacking:
        when_imported("torch._inductor.config", _pin_settings)
        when_imported("torch._inductor.cpu_vec_isa", _probe_avx2_only)
    return lacking


def _pin_settings(config: ModuleType) -> None:
    for name, value in PINNED.items():
        force_setting(config, name, value=value)


def force_setting(config: ModuleType, name: str, *, value: object) -> None:
    """Set what torch takes as set by an environment variable that wins over everything.

    An assignment holds for one context only (since 2.12), and requests have others; the vector
    width has no variable of its own. Both settings are in torch's keys.
    """
    entry: Any = getattr(config, "_config", {}).get(name)
    if not hasattr(entry, "env_value_force"):
        import torch

        raise ConfigError(
            f"torch {torch.__version__} has no setting {name} that can be pinned",
            hint="torch 2.13 has it; with this one leave cpu: portable out",
        )
    entry.env_value_force = value


def _probe_avx2_only(cpu_vec_isa: ModuleType) -> None:
    # Not only for speed: the probe's libraries for wider vectors would be in the artifact, and
    # answers about them in its manifest.
    supported: Callable[[], list[str]] = cpu_vec_isa.x86_isa_checker

    def x86_isa_checker() -> list[str]:
        return [name for name in supported() if name == "avx2"]

    module: Any = cpu_vec_isa
    module.x86_isa_checker = x86_isa_checker
    module.valid_vec_isa_list.cache_clear()
