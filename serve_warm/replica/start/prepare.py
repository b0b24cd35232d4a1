# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The stage PENDING: find the inputs to replay, the compiler and the fingerprint."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Literal

from serve_warm import _private_folders
from serve_warm._records import record
from serve_warm._redaction import describe_error
from serve_warm._spans import COMPILER
from serve_warm.artifact.code_and_model import CodeAndModel
from serve_warm.compiler.caches import keep_headers_private
from serve_warm.compiler.compiled_objects import (
    bind_methods,
    compile_arguments,
    reaches_compiled,
)
from serve_warm.compiler.cpu_target import isa_checks, pin_portable_cpu, require_compiler
from serve_warm.compiler.imports import import_compiler
from serve_warm.compiler.watch import unwatched_compiles
from serve_warm.config import WarmupConfig, environment
from serve_warm.errors import CompilerMissing, ConfigError, WarmupTimeout
from serve_warm.fingerprint import (
    NOT_NEEDED,
    UNKNOWN,
    Fingerprint,
    gpu_in_use,
    read_app,
    read_machine,
    why_no_gpu,
)
from serve_warm.inputs import Input, sort_by_size, with_unique_names
from serve_warm.precompile import SESSION
from serve_warm.private_apis.ray_serve import model_loaders
from serve_warm.replica.replay.timed_calls import Deadline
from serve_warm.replica.start.context import StartContext, StartStep
from serve_warm.report import Stage

if TYPE_CHECKING:
    from serve_warm.learn.plan import InputPlan
    from serve_warm.learn.recorded import RecordedCall
    from serve_warm.learn.recorded_requests import RecordedRequest
    from serve_warm.replica.replay.ranks import Ranks

logger = logging.getLogger(__name__)

UNLOADABLE = (LookupError, ValueError, TypeError, AttributeError, RuntimeError, OSError)
"""Errors of a loader for a model that is gone."""

REMOTE_CACHES = (
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
    "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE",
    "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO",
)
"""Variables that make torch unpickle data from remote caches (names from torch 2.13's config)."""


TOGETHER = {"after_ready": "count", "on_missing": "compile", "on_refused": "compile"}
"""Policies of ranks that compute together, which must all run the same code."""


CompilesWith = Literal["torch", "libraries", "nothing"]
"""The kind of compiled code that a start found before the replay: code that needs torch's compiler,
only libraries, or nothing. In the last two cases, the compiler is imported only when needed.
"""


@record(frozen=True, kw_only=True)
class Prepared:
    """The results of the stage PENDING; empty before that stage ends."""

    inputs: Sequence[Input] = ()
    """The inputs to replay, in order."""
    fingerprint: Fingerprint | None = None
    """The fingerprint that artifacts are compared with. None if no store is configured and torch
    is not imported."""
    compiles_with: CompilesWith = "nothing"
    arguments: Mapping[str, str] = field(default_factory=dict)
    """The compile arguments found on the user's object, by attribute."""
    is_compiler_put_off: bool = False
    """Whether the compiler is imported only when the artifact is known, although it is needed."""
    made_of: CodeAndModel = CodeAndModel()
    """The code and the model, which an artifact should match."""
    plan: InputPlan | None = None
    """The plan of the settings or of the artifact. Its calls are among the inputs."""


def makes_artifact(application: str, config: WarmupConfig) -> bool:
    """Return whether this start makes an artifact, and so compiles with C++ headers of its own.

    Every kernel contains code from the headers, and a build must not sign code that an earlier
    process made. Only a build fails without an artifact, but names no store.
    """
    is_cold_build = config.artifact is None and config.on_missing == "fail"
    return is_cold_build and application.startswith("serve_warm-")


class Preparation(StartStep):
    """The PENDING stage of one start. Call `prepare` to run it."""

    @property
    def _makes_artifact(self) -> bool:
        return makes_artifact(self._replica.application, self._config)

    async def prepare(self, ranks: Ranks, deadline: Deadline) -> Prepared:
        """Return the inputs to replay, the fingerprint, and the kind of compiled code.

        Raises:
            ConfigError: the inputs or the configuration cannot be used, or differ between ranks.
            OSError: no private directory can be made for torch's caches.
            WarmupTimeout: the user's `warmup_inputs` took too long.
        """
        journal = self._journal
        journal.enter(Stage.PENDING)
        with journal.timed(Stage.PENDING):
            self._caches.begin()
            keep_headers_private("own" if self._makes_artifact else "shared")
            self._refuse_shared_code()
            self._choose_cpu()
            arguments = compile_arguments(self._replica.owner)
            with_ = self._compiles_with(arguments)
            # If the policy is `eager`, only the artifact shows whether this is needed.
            is_put_off = with_ == "torch" and self._may_run_eagerly
            if with_ == "torch" and not is_put_off:
                prepare_compiler(self._start)
                need_compiler(self._start, arguments)
            self._warn_of_remote_caches()
            before = self._replica.unwatched_compiles_before
            journal.note_early_compiles(unwatched_compiles() - before)
            plan = self._read_plan()
            inputs = self.with_plan(await self.ask_inputs(deadline), plan)
            self._replica.check(inputs)
            await self._plan_together(inputs, ranks, deadline)
            journal.begin_counting()
            isa_checks()
            fingerprint, made_of = None, CodeAndModel(code=self._replica.code)
            # Reading the fingerprint would import torch, which a router does not need.
            if "torch" in sys.modules or self._config.artifact is not None:
                fingerprint = await self._fingerprint(
                    arguments, needs_compiler=with_ != "libraries"
                )
                journal.note_fingerprint(fingerprint)
                made_of = replace(made_of, model=self._digest_model())
        return Prepared(
            inputs=inputs,
            fingerprint=fingerprint,
            compiles_with=with_,
            arguments=arguments,
            is_compiler_put_off=is_put_off,
            made_of=made_of,
            plan=plan,
        )

    def _digest_model(self) -> str:
        from serve_warm.precompile import digest_models

        compiled = [each.callee for each in SESSION.dispatchers]
        try:
            return digest_models([*compiled, *vars(self._replica.owner).values()])
        except Exception as error:  # noqa: BLE001
            # Tensors and modules can be of any class. The digest only ranks artifacts that match.
            logger.warning(
                "no digest of the model, so a start prefers artifacts by their code only: %s",
                describe_error(error),
            )
            return ""

    @property
    def _may_run_eagerly(self) -> bool:
        config = self._config
        return config.artifact is not None and "eager" in (config.on_missing, config.on_refused)

    def _compiles_with(self, arguments: Mapping[str, str]) -> CompilesWith:
        if only_libraries(arguments):
            return "libraries"
        compiles = (
            bool(arguments) or SESSION.has_callables() or reaches_compiled(self._replica.owner)
        )
        return "torch" if compiles else "nothing"

    async def _fingerprint(
        self, arguments: Mapping[str, str], *, needs_compiler: bool
    ) -> Fingerprint:
        # Read on this thread, because grad mode, autocast and the current GPU are per thread.
        cpu, device = self._config.cpu, gpu_in_use()
        with self._journal.timeline.span("fingerprint"):
            app = read_app(environment(), compile_arguments=arguments, cpu=cpu)
            machine = await asyncio.to_thread(read_machine, environment(), cpu=cpu, device=device)
        if machine["gpu"] == UNKNOWN:
            self._journal.warn(await asyncio.to_thread(why_no_gpu, environment()))
        if not needs_compiler:
            machine["compiler"] = NOT_NEEDED
        return Fingerprint(machine=machine, app=app)

    def _choose_cpu(self) -> None:
        lacking = pin_portable_cpu() if self._config.cpu == "portable" else ()
        if lacking:
            self._journal.warn(
                "`cpu: portable` needs AVX2 (x86-64-v3), but this CPU does not have "
                f"{' '.join(lacking)}: no portable artifact fits, so this replica compiles for "
                "its own CPU"
            )

    def _refuse_shared_code(self) -> None:
        """Raise an error if the folder that a build packs might contain another process's code."""
        if not self._makes_artifact:
            return
        what = "the folder that a build compiles in"
        _private_folders.check_private(self._caches.directory, what)
        if count := self._replica.unwatched_compiles_before:
            raise ConfigError(
                f"the app compiled {count} frames while it was imported, and used headers from a "
                "folder that this user's other processes can write to",
                hint="do not compile before __init__: until then, a build can use shared folders",
            )

    def _warn_of_remote_caches(self) -> None:
        values = environment()
        on = [name for name in REMOTE_CACHES if values.get(name, "0") not in ("", "0")]
        if on:
            self._journal.warn(
                f"{', '.join(on)}: torch loads from its remote cache without checking any "
                "signature; turn this cache off if you use artifacts"
            )

    def _read_plan(self) -> InputPlan | None:
        if self._config.plan is None:
            return None
        from serve_warm.learn.any_size import open_axes
        from serve_warm.learn.plan import read_plan

        plan = read_plan(self._config.plan)
        return replace(plan, calls=tuple(open_axes(plan.calls)))

    def with_plan(self, declared: Sequence[Input], plan: InputPlan | None) -> Sequence[Input]:
        """Return the declared inputs, and then one for each kind of call of a plan."""
        if plan is None:
            return declared
        requests = [
            Input(target=self._as_request(request), name=f"{request.name} #{number}")
            for number, request in enumerate(plan.requests, start=1)
        ]
        # Once for all calls, because it looks at all objects of the application.
        bind = functools.cache(functools.partial(bind_methods, self._replica.owner))
        planned = [
            Input(target=self._on_its_thread(call, plan.models, bind), name=call.name)
            for call in plan.calls
        ]
        inputs = list(with_unique_names([*declared, *requests, *planned]))
        names = [each.name for each in inputs[len(declared) :]]
        self._journal.note_inputs(inputs)
        self._journal.note_plan(
            names,
            names[: len(requests)],
            calls=plan.recorded,
            share=plan.share,
            # A build with a plan only tries to open them.
            any_size=plan.open_axes() if self._config.plan is None else (),
        )
        return inputs

    def _as_request(self, request: RecordedRequest) -> Callable[..., Any]:
        """Return a function that makes a recorded request."""
        from serve_warm.learn.replayed_requests import ReplayedRequest

        replayed = ReplayedRequest(request, self._replica.call)

        async def replay() -> None:
            await replayed.replay()

        replay.__name__ = request.name
        return replay

    def _on_its_thread(
        self, call: RecordedCall, models: Sequence[str], bind: Callable[[], None]
    ) -> Callable[..., Any]:
        """Return a function that replays a call. `bind` makes the compiled methods of objects."""
        from serve_warm.learn.recorded import NotRepeatable
        from serve_warm.learn.replayed import ReplayedCall
        from serve_warm.precompile.recording import count_callables

        replayed = ReplayedCall(call)
        loaders = model_loaders(self._replica.owner) if models else ()

        async def replay() -> None:
            # The callables of a model exist only when it is loaded, which Serve leaves to the first
            # request for it. To load it again takes no time.
            for load, model in itertools.product(loaders, models):
                try:
                    await load(model)
                except UNLOADABLE as error:
                    raise NotRepeatable(
                        f"the application cannot load the model {model!r}, which the plan names: "
                        f"{describe_error(error)}",
                        hint="remove the model from the plan",
                    ) from error
            if count_callables(call.callable) <= call.number:
                bind()
            if call.on_model_thread:
                await self._replica.owner.on_model_thread(replayed)
            else:
                replayed()

        replay.__name__ = call.callable
        return replay

    async def ask_inputs(self, deadline: Deadline) -> Sequence[Input]:
        """Return the inputs that the user declares, in the order of their replay.

        Returns none for a wrapped application, which declares none.

        Raises:
            ConfigError: the inputs cannot be used.
            WarmupTimeout: the user's `warmup_inputs` took too long.
        """
        late = WarmupTimeout(
            f"warmup_inputs() did not return within {deadline.seconds:.0f} s",
            hint="return from warmup_inputs() without waiting for other deployments; replays "
            "are allowed to wait",
            stage=Stage.PENDING.value,
        )
        try:
            with self._journal.timeline.span("warmup_inputs()"):
                declared = await asyncio.wait_for(self._replica.warmup_inputs(), deadline.left())
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise late from error
        if deadline.left() < 0:  # it blocked the event loop, so no timeout fired
            raise late
        inputs: list[Input] = []
        if declared is not None:
            inputs = sort_by_size(declared, of=type(self._replica.owner).__name__)
        # Before the check, whose error is easier to read with them.
        self._journal.note_inputs(inputs)
        self._replica.check(inputs)
        return inputs

    async def _plan_together(
        self, inputs: Sequence[Input], ranks: Ranks, deadline: Deadline
    ) -> None:
        """Check that all ranks agree on the inputs and on `on_unproven`."""
        for name, together in TOGETHER.items():
            value = getattr(self._config, name)
            if ranks.size > 1 and value in ("eager", "forbid"):
                raise ConfigError(
                    f"`{name}: {value}` does not work with ranks that compute together: if one "
                    "rank refuses a request or runs other code than the rest, the other ranks wait "
                    "for that rank",
                    hint=f"use `{name}: {together}`",
                )
        plan = {"inputs": [item.name for item in inputs], "on_unproven": self._config.on_unproven}
        with self._journal.timeline.span("the other ranks"):
            plans = await ranks.agree("its inputs", plan, timeout_s=deadline.left())
        for rank, theirs in enumerate(plans):
            differing = [name for name, value in plan.items() if theirs[name] != value]
            if differing:
                name = differing[0]
                raise ConfigError(
                    f"rank {ranks.rank} has {name} {plan[name]}, but rank {rank} has "
                    f"{theirs[name]}",
                    hint="give all ranks the same inputs and settings, because each rank waits for "
                    "the others in every collective",
                )


def prepare_compiler(start: StartContext) -> None:
    """Import torch's compiler."""
    with start.journal.timeline.span(COMPILER):
        # On this thread, because tasks of user code on the event loop can then import nothing
        # meanwhile. Two threads cannot import parts of torch at the same time.
        import_compiler()


def need_compiler(start: StartContext, arguments: Mapping[str, str]) -> None:
    """Check that there is a C++ compiler, if Inductor needs one. `arguments` as in `Prepared`.

    Raises:
        CompilerMissing: there is none.
    """
    try:
        require_compiler(environment())
    except CompilerMissing as error:
        if any(words.startswith("inductor") for words in arguments.values()):
            raise
        # Inductor compiles nothing in this start, and a model that is not compiled needs no
        # compiler.
        start.journal.warn(str(error))


def only_libraries(arguments: Mapping[str, str]) -> bool:
    """Return whether all compiled code known so far uses libraries (level 3).

    `arguments` are the compile arguments found on the user's object.
    """
    if any(words.startswith("inductor") for words in arguments.values()):
        return False
    return SESSION.has_libraries_only()
