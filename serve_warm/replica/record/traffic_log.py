# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Log lines about compiles in traffic, at a limited rate and with advice.

The watch (`compiler.watch`) counts all compiles. A compile in traffic has one of three causes: an
undeclared input, a call on a thread other than the model's, or a change since the proof.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from serve_warm.compiler.watch import ANOTHER
from serve_warm.private_apis.dynamo import CHECK_OBJECT, CHECK_TYPE, ON_STACK
from serve_warm.report import CompileEvent

logger = logging.getLogger(__name__)

PERIOD_S = 10.0
"""Minimum seconds between two log lines. A line includes the number of compiles since the previous
line."""

EAGER_CALL = "eager_call"
"""The kind of events about calls that ran eagerly instead of compiling."""

NO_ARTIFACT = "the start had no artifact"
"""Reason of an eager call in a replica that serves without an artifact."""

LOGGED = ("kind", "function", "signature", "seconds", "reason")
"""Facts of an event that are fields of its log record."""

KEEP_ON_ONE_THREAD = (
    "call the model in an `async def` handler itself and not through asyncio.to_thread or an "
    "executor, or call it with `await self.on_model_thread(self.model, ...)`, which keeps the "
    "model on one thread"
)
"""Advice if compiled calls run on threads that live only for one request."""

DECLARE = "declare such an input too"
"""Advice about a call that no declared input makes."""

BUILD_ANOTHER = (
    "make another plan, which also names the calls that no plan can have, and build with it: "
    "serve-warm plan -o plan.yaml, then serve-warm build APP --plan plan.yaml"
)
"""Advice about such a call if inputs come from a plan, or from none yet."""

RACE = (
    "the input is declared and proven, but concurrent calls on several threads can hit a race "
    f"condition in Dynamo's lookup: {KEEP_ON_ONE_THREAD}"
)

CHANGED = (
    "the input is declared and proven, but a value changed after the proof; the reason in this "
    "line names the value: do not change that value"
)

RESET = (
    "torch has dropped the compiled code, as torch.compiler.reset() does: do not call it after "
    "ready"
)

OTHER_THREAD = (
    "a CUDA graph works only on the thread that captured it, but warm-up called the model on "
    "another thread: call the model with `await self.on_model_thread(self.model, ...)`"
)

ADVICE = {
    NO_ARTIFACT: "uncompiled code has answered it, as it answers all calls until there is an "
    "artifact: run {first}, and then replace the replica",
    # torch says this if another thread was compiling and no guard failed (2.13).
    "Unexpected recompilation": RACE,
    re.escape(ANOTHER): "{another}replace compiled objects in reconfigure(), after which "
    "serve_warm proves the inputs again; or keep the object, and load other weights with "
    "load_state_dict()",
    ON_STACK: "the code reads a Python value from a tensor, as bool() and .item() do, and no "
    "replayed input had this value: declare an input that leads to it",
    r"\bself\b|\bcallee\b|G\[|__closure__": "a value changed after the proof, and the reason names "
    "it: do not change it after ready, or change it in reconfigure()",
    "dispatch key set mismatch": "a tensor is of another kind than the replayed one, for example "
    "made inside torch.inference_mode() or not: make both in the same way, or {declare}",
    "requires_grad mismatch": "a tensor needs gradients, unlike the replayed one, or the reverse: "
    "call detach(), or {declare}",
    "stride mismatch": "a tensor has other strides than the replayed one, as after transpose(): "
    "pass tensor.contiguous(), or {declare}",
    "dtype mismatch": "a tensor has another dtype than the replayed one: convert it, or {declare}",
    rf"expected type of|{CHECK_TYPE}|TYPE_MATCH|type\(": "a value has another type than the "
    "replayed one, for example a Parameter or a subclass: pass the same type, or {declare}",
    rf"[Dd]uplicate tensor|are not aliased|\bis L\[|{CHECK_OBJECT}\(L\[": "the same object is "
    "passed twice, or was when it was replayed: {declare}",
    "GLOBAL_STATE|grad_mode|autocast|default_dtype|deterministic|num_threads|torch_function": "the "
    "call runs with another setting of torch than the replayed inputs, and the reason names it: "
    "set it in the method that calls the model, so that replays have it too",
}
"""What to do about a guard, by a pattern of the guard in the words of torch 2.11 to 2.15. The first
match counts. Other guards are about sizes and values of arguments, which can be declared. Fields
depend on whether the application declares its inputs, see `FIELDS`."""

FIELDS = {
    False: {"declare": DECLARE, "first": "serve-warm build", "another": ""},
    True: {
        "declare": BUILD_ANOTHER,
        "first": "serve-warm plan -o plan.yaml, then serve-warm build APP --plan plan.yaml",
        "another": f"if the application has several such objects, {BUILD_ANOTHER}; if not, ",
    },
}
"""The fields of advice, for applications that declare inputs and for those whose calls are
recorded."""


class TrafficLog:
    """The log lines about compiles in one replica; safe to use on any thread."""

    def __init__(self) -> None:
        self.warmed: Collection[tuple[str, str]] = ()
        """Function and signature of each warm-up compile that the watch still remembers."""
        self.lasting: Collection[int] = ()
        """Native ids of the threads that live as long as the replica."""
        self.is_learned = False
        """Whether the application declares no inputs, and live calls are recorded for a plan."""
        self._silent_until: dict[bool, float] = {}
        """When the next line may follow (`time.monotonic`), for eager calls and for the rest."""
        self._unlogged: Counter[bool] = Counter()

    def log(
        self,
        event: CompileEvent,
        *,
        proven_on: Collection[int],
        suggest: Callable[[CompileEvent], str],
        fields: Callable[..., dict[str, Any]],
    ) -> None:
        """Log a compile, or only count it for the next line; `suggest` returns an input to declare.

        `proven_on` contains the native ids of the threads that made compiled calls in the proof.
        """
        # Many eager calls must not hide a compile.
        group = event.kind == EAGER_CALL
        self._unlogged[group] += 1
        if time.monotonic() < self._silent_until.get(group, 0.0):
            return
        self._silent_until[group] = time.monotonic() + PERIOD_S
        unlogged = self._unlogged.pop(group, 0)
        logger.warning(
            "after ready: kind=%s function=%s input=[%s]%s%s %s=%d; %s",
            event.kind,
            event.function,
            event.signature,
            # The time of an eager call is not known yet.
            "" if event.kind == EAGER_CALL else f" seconds={event.seconds:.2f}",
            _describe_reason(event),
            # Each new kind of eager calls is an event, and not each call.
            "kinds" if group else "events",
            unlogged,
            self._advise(event, proven_on, suggest),
            extra=fields(
                "compile", **{name: getattr(event, name) for name in LOGGED}, events=unlogged
            ),
        )

    def _advise(
        self,
        event: CompileEvent,
        proven_on: Collection[int],
        suggest: Callable[[CompileEvent], str],
    ) -> str:
        """Return advice on how to avoid a compile."""
        if event.reason == ANOTHER and "model_id=" in (hint := suggest(event)):
            return f"declare this input in warmup_inputs(): {hint}"
        known = _find_advice(event, proven_on)
        if known:
            return known.format_map(FIELDS[self.is_learned])
        is_of_request = bool(self.lasting) and event.thread not in self.lasting
        was_compiled = any(event.function == function for function, _ in self.warmed)
        if event.kind == "compile" and not event.reason and was_compiled:
            return RESET
        if (event.function, event.signature) in self.warmed:
            return RACE if is_of_request else CHANGED
        other = "give the model this number as a tensor" if _is_number(event) else "pad to a bucket"
        if self.is_learned:
            return f"{BUILD_ANOTHER}; or {other}"
        # Only if a line is written, because `suggest` inspects the current request.
        declare = f"declare this input in warmup_inputs(), or {other}: {suggest(event)}"
        return f"{KEEP_ON_ONE_THREAD}; and {declare}" if is_of_request else declare


def _find_advice(event: CompileEvent, proven_on: Collection[int]) -> str:
    """Return the advice that the reason of an event leads to, or "" for an unknown reason."""
    if event.kind == "capture" and proven_on and event.thread not in proven_on:
        return OTHER_THREAD
    if event.kind == "capture" and event.reason:
        return "a CUDA graph reads memory that has moved: update weights and caches in place"
    guard = event.reason.partition("  #")[0]  # torch adds the line of code
    return next((advice for part, advice in ADVICE.items() if re.search(part, guard)), "")


VALUE = re.compile(r"[\w\[\].']+ == -?[\d.]+\s*")
"""A guard on a number (2.11 to 2.15), after the number of the variant."""


def _is_number(event: CompileEvent) -> bool:
    """Return whether code was compiled for another value of a Python number."""
    guard = event.reason.partition("  #")[0].partition(": ")[2]
    return VALUE.fullmatch(guard) is not None


def _describe_reason(event: CompileEvent) -> str:
    """Return the reason field of a line; torch gives no reason for a function's first compile."""
    reason = event.reason or "first compile of this function" * (event.kind == "compile")
    return f" reason=[{reason}]" if reason else ""
