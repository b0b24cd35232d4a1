# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a start finds before it replays: inputs, compiler, GPU, and settings that do nothing."""

from __future__ import annotations

import asyncio
import threading
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from compiled import double
from serve_warm.config import WarmupConfig
from serve_warm.errors import (
    CompilerMissing,
    ConfigError,
    InputError,
    WarmupFailed,
    WarmupTimeout,
)
from serve_warm.inputs import Input
from serve_warm.replica.replay.ranks import Ranks
from serve_warm.replica.replay.timed_calls import Deadline
from serve_warm.replica.start.prepare import Preparation
from serve_warm.replica.start.stages import Warmup
from serve_warm.report import Stage, Verdict
from starts import Capturing, StandIn, failed, process, warm_up  # noqa: F401 - fixtures


def test_the_gpu_that_is_read_is_the_serving_threads(monkeypatch: pytest.MonkeyPatch):
    """CUDA has a current device for each thread, and `__init__` sets that of the event loop."""
    serving = threading.get_ident()
    size = {"multi_processor_count": 132, "total_memory": 80 * 2**30}
    found = types.SimpleNamespace(name="A", major=9, minor=0, **size)
    answers = {"is_available": True, "is_initialized": True, "device_count": 2}
    for name, value in {**answers, "get_allocator_backend": "none that is known"}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: int(threading.get_ident() == serving))
    replica = StandIn()
    replica.owner.model = double  # Dynamo would ask for a device, too
    start = warm_up(replica)
    assert start.journal.fingerprint.machine["gpu"] == "A sm_90 132 SMs 80 GiB as cuda:1"


class Undecided(StandIn):
    async def warmup_inputs(self) -> Any:
        await asyncio.Event().wait()


def test_inputs_that_are_never_declared_have_a_deadline():
    """Every wait of a start ends: also the one for the user's own method."""
    error, report, _ = failed(WarmupTimeout, Undecided(), deadline_s=0.2)
    assert error.message.startswith("warmup_inputs() did not return within")
    assert error.hint
    assert (report.stage, report.verdict) == (Stage.FAILED, Verdict.OFF)  # none is configured
    assert report.error == str(error)


def test_a_gpu_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch):
    """A start with a driver that is too old runs on the CPU, if the app does, and says it once."""

    def init() -> None:
        message = "The NVIDIA driver on your system is too old (found version 12020). Please"
        raise RuntimeError(message)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    # A driver is there, wherever this test runs.
    exists, driver = Path.exists, Path("/dev/nvidiactl")
    monkeypatch.setattr(Path, "exists", lambda path, **how: path == driver or exists(path, **how))

    report = warm_up(StandIn()).report()

    [warning] = [line for line in report.warnings if "driver" in line]
    assert "cannot use this machine's GPU" in warning
    assert "too old (found version 12020)" in warning
    assert report.fingerprint["machine"]["gpu"] == "unknown"


@pytest.mark.parametrize(
    ("declared", "kind", "text"),
    [
        ([], InputError, "Embedder.warmup_inputs() returned no inputs"),
        (7, InputError, "Embedder.warmup_inputs() returned int"),
        ([Input(target="rank")], InputError, "no method 'rank'"),
        (ValueError("no vocabulary"), ValueError, "ValueError: no vocabulary"),
    ],
)
def test_inputs_that_cannot_be_used_fail_the_start(declared: Any, kind: type[Exception], text: str):
    """A start that ends in the user's code has ended: its report says so, whatever was raised."""
    replica = StandIn()
    replica.declared = declared
    _, report, _ = failed(kind, replica)
    assert report.stage is Stage.FAILED
    assert text in report.error
    assert replica.calls == []


def test_inputs_that_are_refused_are_known():
    """Logs and `warmup_requests()` show the declared inputs, even if a target does not exist."""
    replica = StandIn()
    replica.declared = [Input(target="rank")]
    start = Warmup(replica, WarmupConfig())
    with pytest.raises(InputError, match="no method"):
        asyncio.run(start.run())
    assert [item.target_name for item in start.journal.inputs] == ["rank"]


def test_the_missing_compiler_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The error comes before a download or a trace, and even before the inputs are read."""
    if torch.cuda.is_available():
        pytest.skip("with a GPU a C++ compiler is not required")
    monkeypatch.setenv("PATH", str(tmp_path))
    replica = StandIn()
    replica.owner.model = torch.compile(double)
    error, report, _ = failed(CompilerMissing, replica, artifact=str(tmp_path / "store"))
    assert "looked for g++" in error.message
    assert "g++" in report.error
    assert not replica.asked
    assert [time.stage for time in report.stages] == [Stage.PENDING]


def test_what_is_not_compiled_by_inductor_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An image without g++ serves a model that Inductor does not compile; the lack is named."""
    monkeypatch.setenv("PATH", str(tmp_path))
    report = warm_up(StandIn()).report()
    assert report.covered.proven == report.covered.expected == 2
    assert torch.cuda.is_available() or "looked for g++" in report.warnings[0]


def test_cuda_graphs_on_threads_that_end_are_refused():
    """A graph captured on a request's thread is lost for the next request."""
    error, report, _ = failed(WarmupFailed, Capturing(2))
    assert "a CUDA graph works only on the thread that captured it" in error.message
    assert "on_model_thread" in error.hint
    assert report.stage is Stage.FAILED


@pytest.mark.parametrize(
    ("others", "said"),
    [((), "declare inputs that reach it"), (("Encoder",), "(Encoder) is warmed up by")],
)
def test_an_app_that_compiles_nothing_says_so(others: tuple[str, ...], said: str):
    """This is not an error, and the inputs count: a router has nothing to prove."""
    replica = StandIn()
    replica.owner.model = double
    replica.waits_for = lambda: others
    report = warm_up(replica, on_unproven="fail").report()
    assert (report.covered.proven, report.degraded) == (2, ())
    [warning] = report.warnings
    assert warning.startswith("this process has no compiled code")
    assert said in warning


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RuntimeError, InputError])
def test_what_user_code_raises_is_cut(kind: type[Exception], caplog: pytest.LogCaptureFixture):
    """A message of megabytes is its beginning in the report, the state file and the log."""
    replica = StandIn()
    hint = {"hint": "correct it"} if kind is InputError else {}
    replica.declared = kind("it broke " + "x" * 1_500_000, **hint)
    _, report, _ = failed(kind, replica)
    assert "it broke" in report.error
    assert len(report.error) < 1100
    assert report.error.endswith("hint: correct it" if hint else "...")
    assert len(caplog.text) < 20_000


def test_torchs_remote_cache_is_warned_of(monkeypatch: pytest.MonkeyPatch):
    """Code comes from this cache without a signature."""
    names = ["TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO"]
    for name in names:
        monkeypatch.setenv(name, "1")
    on = warm_up(StandIn()).report()
    for name in names:
        monkeypatch.setenv(name, "0")
    off = warm_up(StandIn()).report()
    assert [w for w in on.warnings if ", ".join(names) in w]
    assert not [w for w in off.warnings if "REMOTE" in w]


def test_a_model_that_has_no_digest_starts(caplog: pytest.LogCaptureFixture):
    """The digest only ranks artifacts, and a tensor of any class can raise errors."""

    class Odd(torch.Tensor):
        @property
        def shape(self) -> Any:
            message = "no shape\nof this tensor"
            raise NotImplementedError(message)

    replica = StandIn()
    replica.owner.part = torch.nn.Module()
    replica.owner.part.register_buffer("odd", torch.ones(2).as_subclass(Odd))

    report = warm_up(replica).report()

    assert report.stage == Stage.READY
    [line] = [each.getMessage() for each in caplog.records if "no digest" in each.getMessage()]
    assert line.endswith("NotImplementedError: no shape")


@pytest.mark.parametrize(
    "policy",
    [
        {"after_ready": "eager"},
        {"after_ready": "forbid"},
        {"on_missing": "eager"},
        {"on_refused": "eager"},
    ],
    ids=str,
)
def test_ranks_that_compute_together_refuse_a_policy_that_would_part_them(policy: dict[str, str]):
    """Each rank would follow it by itself, and the others would wait in a collective."""
    start = Warmup(StandIn(), WarmupConfig.model_validate(policy))
    group = Ranks(0, 2, HashStore())
    plan = Preparation(start._start)._plan_together
    with pytest.raises(ConfigError, match="ranks that compute together") as caught:
        asyncio.run(plan((), group, Deadline(5.0)))
    (name,) = policy
    assert caught.value.hint == f"use `{name}: {'count' if name == 'after_ready' else 'compile'}`"
