# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The CPU target of Inductor: the C++ compiler, the vector ISA and the portable preset.

The names used from `torch._inductor.cpu_vec_isa` and `config` are private (seen in torch 2.13.0).
"""

from __future__ import annotations

import contextvars
import functools
import hashlib
import os
import platform
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any, overload

from serve_warm import _daemon_threads, fingerprint
from serve_warm.compiler.imports import when_imported
from serve_warm.errors import CompilerMissing, ConfigError
from serve_warm.private_apis import inductor, module_names, patches


def require_compiler(environ: Mapping[str, str]) -> None:
    """Raise `CompilerMissing` unless a C++ compiler can be run.

    On CPU, Inductor needs a compiler even if every kernel is in the cache. On a CUDA machine, this
    function requires no compiler, because only CPU kernels need one there.
    """
    import torch

    if torch.cuda.is_available():
        return
    named = environ.get("CXX")
    wanted = named or "g++"
    if shutil.which(wanted, path=environ.get("PATH")) is not None:
        return
    if not named:
        raise CompilerMissing(wanted)
    raise CompilerMissing(named, by="CXX", trouble=_describe_trouble(named))


def _describe_trouble(program: str) -> str:
    """Return the reason why a program cannot be run."""
    if os.sep not in program:
        return "is not on PATH"
    if not Path(program).exists():
        return "does not exist"
    return "cannot be executed"


class IsaChecks:
    """The results of torch's probe of the CPU's vector ISA, for reuse on equal CPUs.

    The probe compiles and loads a small library for each question about an ISA. torch asks about
    all ISAs of this CPU and then takes the widest one. With serve_warm it asks about the others
    only if somebody wants another one: on a CPU with AMX, 4 questions instead of 10
    (`tests/compiler/test_cpu_target.py`). The manifest contains the results, which are used only if
    the fingerprint (CPU flags, compiler, torch) matches.
    """

    def __init__(self) -> None:
        self.answers: dict[str, bool] = {}
        self._given: Mapping[str, bool] = {}
        self._ahead: Future[object] | None = None

    def give(self, answers: Mapping[str, bool]) -> None:
        """Use `answers` from now on. torch still probes an ISA that is not in `answers`."""
        self._given = dict(answers)

    def hook(self, cpu_vec_isa: ModuleType) -> None:
        """Replace torch's probe if this version of torch has `check_build`."""
        patches.replace("VecISA.check_build", self._answer)
        patches.replace(
            "valid_vec_isa_list", functools.partial(_probing_on_demand, cpu_vec_isa=cpu_vec_isa)
        )

    def probe_ahead(self) -> None:
        """Begin to probe this CPU's vector ISA in the background, if Inductor is loaded.

        A library needs the ISA only after its kernels are made. On a GPU nothing has asked before.
        """
        pick = inductor.isa_picker()
        if pick is not None and self._ahead is None:
            # In this thread's context, because settings of torch belong to one. If it fails, torch
            # asks again and says why.
            work = functools.partial(contextvars.copy_context().run, pick)
            self._ahead = _daemon_threads.begin(work, name="serve_warm-isa")

    def end_probe(self) -> None:
        """Wait for a probe that was begun, which writes into torch's cache."""
        if self._ahead is not None:
            futures.wait([self._ahead])

    def _answer(self, original: Callable[[Any, str], bool]) -> Callable[[Any, str], bool]:
        def check_build(isa: Any, code: str) -> bool:
            digest = hashlib.sha256(code.encode()).hexdigest()[:12]
            question = f"{type(isa).__name__} {isa.build_arch_flags()} {digest}"
            if question in self._given:
                self.answers[question] = self._given[question]
            else:
                self.answers[question] = bool(original(isa, code))
            return self.answers[question]

        return check_build


class ProbedOnDemand(Sequence[object]):
    """The vector ISAs that work here, the widest first. Each is probed when somebody reaches it.

    torch loops over them until one fits, and takes the first one by default.
    """

    def __init__(self, candidates: Sequence[object]) -> None:
        self._untried = list(candidates)
        self._found: list[object] = []
        # Two threads would compile the same probe, and a probe changes its ISA's flags meanwhile.
        self._lock = threading.RLock()

    @overload
    def __getitem__(self, index: int) -> object: ...

    @overload
    def __getitem__(self, index: slice) -> list[object]: ...

    def __getitem__(self, index: int | slice) -> object | list[object]:
        # Others are counted from the end, or are several.
        self._probe(index + 1 if isinstance(index, int) and index >= 0 else None)
        return self._found[index]

    def __len__(self) -> int:
        self._probe(None)
        return len(self._found)

    def __bool__(self) -> bool:
        self._probe(1)
        return bool(self._found)

    def _probe(self, wanted: int | None) -> None:
        """Probe until there are `wanted` ISAs, or all."""
        with self._lock:
            while self._untried and (wanted is None or len(self._found) < wanted):
                if self._untried[0]:
                    self._found.append(self._untried[0])
                del self._untried[0]


def _probing_on_demand(
    stock: Callable[[], Sequence[object]], *, cpu_vec_isa: ModuleType
) -> Callable[[], Sequence[object]]:
    lock = threading.Lock()

    @functools.cache  # as torch's own function
    def one() -> Sequence[object]:
        candidates = inductor.candidate_isas(cpu_vec_isa)
        return stock() if candidates is None else ProbedOnDemand(candidates)

    def valid_vec_isa_list() -> Sequence[object]:
        with lock:  # two callers of a function with a cache may both run it
            return one()

    valid_vec_isa_list.cache_clear = one.cache_clear  # type: ignore[attr-defined]
    return valid_vec_isa_list


_isa_checks: IsaChecks | None = None


_isa_lock = threading.Lock()


def isa_checks() -> IsaChecks:
    """Return this process's recorder of ISA probes, which hooks torch once Inductor is imported."""
    global _isa_checks  # noqa: PLW0603  (the probe's cache is process-wide too)
    with _isa_lock:
        if _isa_checks is None:
            _isa_checks = IsaChecks()
            when_imported(module_names.CPU_VEC_ISA, _isa_checks.hook)
        return _isa_checks


PINNED = {"cpp.simdlen": 256, "cpp.march": fingerprint.PORTABLE_MARCH}
"""Inductor's settings for a portable artifact. The vector width alone is not enough: with
`-march=native` the compiler would still use some 512-bit instructions."""


def pin_portable_cpu() -> Sequence[str]:
    """For the rest of this process, make Inductor compile for any CPU with AVX2.

    Returns the required features that this CPU lacks. If any feature is missing, this CPU could not
    run portable kernels. In that case this function changes nothing, and torch compiles for this
    CPU.

    Raises:
        ConfigError: this is not Linux on x86-64, or this version of torch cannot be pinned.
    """
    found = f"{platform.system()} {platform.machine()}"
    if found != "Linux x86_64":
        raise ConfigError(
            f"`cpu: portable` works only on Linux x86_64, but this is {found}",
            hint="remove this setting; without it, each artifact works only on one kind of CPU",
        )
    lacking = fingerprint.lacking(fingerprint.read_cpu_isa())
    if not lacking:
        when_imported(module_names.INDUCTOR_CONFIG, _pin_settings)
        when_imported(module_names.CPU_VEC_ISA, _probe_avx2_only)
    return lacking


def _pin_settings(config: ModuleType) -> None:
    for name, value in PINNED.items():
        force_setting(config, name, value=value)


def force_setting(config: ModuleType, name: str, *, value: object) -> None:
    """Set a torch setting as an environment variable would, overriding every other value.

    Since torch 2.12, an assignment to a setting affects only the current context, and requests run
    in other contexts. The vector width has no environment variable. Both settings in `PINNED` are
    part of torch's cache keys.
    """
    if not inductor.force_setting(config, name, value):
        import torch

        raise ConfigError(
            f"torch {torch.__version__} cannot pin its setting {name}, which `cpu: portable` needs",
            hint="use torch 2.13, or remove `cpu: portable`",
        )


def _probe_avx2_only(cpu_vec_isa: ModuleType) -> None:
    # This also keeps probe libraries for wider vectors out of the artifact, and their results out
    # of the manifest.
    patches.replace("x86_isa_checker", _leave_avx2)
    cpu_vec_isa.valid_vec_isa_list.cache_clear()


def _leave_avx2(supported: Callable[[], list[str]]) -> Callable[[], list[str]]:
    return lambda: [name for name in supported() if name == "avx2"]
