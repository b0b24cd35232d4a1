# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: each capture is counted and timed, and each skip has torch's reason.

No cache holds a graph. Every process captures its own, and with Inductor's graph trees in more than
one call: the first call of a path runs eagerly in the graphs' memory pool, the second is captured.
Such an eager run compiles nothing and is not yet what traffic gets, so it is counted as well.

Private names of torch (seen in 2.11, 2.13 and 2.15): `CUDAGraphTreeManager` with `record_function`
and `run_eager`, and `log_cudagraph_skip_and_bump_counter`, through which every skip goes.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/cudagraph_trees.py
`torch.cuda.CUDAGraph` is public; graphs that user code makes by itself, and those of
`torch.cuda.make_graphed_callables`, go through it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from serve_warm.importing import when_imported
from serve_warm.inputs import InputSignature
from serve_warm.report import CompileEvent

SKIP_USERS = ("cudagraph_utils", "cudagraph_trees", "output_code", "compile_fx")
"""Modules of Inductor that have the function which notes a skip under their own name."""


def observe(note: Callable[[CompileEvent], None], ran_eagerly: Callable[[], None]) -> None:
    """Call `note` with each capture and each skip from now on, from the thread that it is in.

    `ran_eagerly` is called at each run that comes before a capture. Once per process.
    """
    when_imported("torch.cuda.graphs", functools.partial(_hook_graphs, note))
    when_imported(
        "torch._inductor.cudagraph_trees", functools.partial(_hook_trees, note, ran_eagerly)
    )
    when_imported("torch._inductor.cudagraph_utils", functools.partial(_hook_skips, note))


class _OfTrees(threading.local):
    """Whether this thread's captures are those of a graph tree, which are counted there."""

    inside = False


_of_trees = _OfTrees()


@contextlib.contextmanager
def _counted_by_the_tree() -> Iterator[None]:
    before, _of_trees.inside = _of_trees.inside, True
    try:
        yield
    finally:
        _of_trees.inside = before


def _hook_trees(
    note: Callable[[CompileEvent], None], ran_eagerly: Callable[[], None], trees: ModuleType
) -> None:
    manager: Any = trees.CUDAGraphTreeManager
    begin, record, run_eager = manager.__init__, manager.record_function, manager.run_eager

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        # A manager captures an empty graph, to keep its pool.
        with _counted_by_the_tree():
            begin(self, *args, **kwargs)

    def record_function(self: Any, new_inputs: Any, function_id: Any) -> Any:
        reason = _why_again(self, new_inputs, function_id)
        static = set(self.ids_to_funcs[function_id].static_input_idxs)
        # Weights are among the inputs, by the hundred: shown is what the call brought.
        brought = {f"input {i}": x for i, x in enumerate(new_inputs) if i not in static}
        compile_id = self.id_to_compile_id.get(function_id)
        start = time.perf_counter()
        with _counted_by_the_tree():
            result = record(self, new_inputs, function_id)
        note(
            _event(
                "capture",
                f"CUDA graph of compile {compile_id}",
                signature=str(InputSignature.of(brought)),
                reason=reason,
                seconds=time.perf_counter() - start,
            )
        )
        return result

    def run_eager_counted(self: Any, new_inputs: Any, function_id: Any) -> Any:
        ran_eagerly()
        return run_eager(self, new_inputs, function_id)

    manager.__init__ = __init__
    manager.record_function = record_function
    manager.run_eager = run_eager_counted


def _why_again(manager: Any, new_inputs: Any, function_id: Any) -> str:
    """Return why a path that was captured before is captured once more; empty for a new one."""
    node = manager.current_node
    captured = (manager.roots if node is None else node.children)[function_id]
    if not captured:
        return ""
    _, why = captured[-1].check_invariants(new_inputs)
    text = why() if callable(why) else str(why)
    return f"captured {len(captured)} times before: {' '.join(text.split())}"


def _hook_graphs(note: Callable[[CompileEvent], None], graphs: ModuleType) -> None:
    graph: Any = graphs.CUDAGraph
    begin, end = graph.capture_begin, graph.capture_end

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        self._serve_warm_began_s = time.perf_counter()
        begin(self, *args, **kwargs)

    def capture_end(self: Any) -> None:
        end(self)
        if not _of_trees.inside:
            seconds = time.perf_counter() - self._serve_warm_began_s
            note(_event("capture", "torch.cuda.CUDAGraph", seconds=seconds))

    graph.capture_begin, graph.capture_end = capture_begin, capture_end


def _hook_skips(note: Callable[[CompileEvent], None], utils: ModuleType) -> None:
    name = "log_cudagraph_skip_and_bump_counter"
    original: Callable[[str], None] = getattr(utils, name)

    def noting(msg: str) -> None:
        note(_event("skip", "CUDA graph", reason=" ".join(msg.split())))
        original(msg)

    # Those that are there already have taken the name; the others will take it from `utils`.
    for user in SKIP_USERS:
        module = sys.modules.get(f"torch._inductor.{user}")
        if getattr(module, name, None) is original:
            setattr(module, name, noting)


def _event(
    kind: str, function: str, *, signature: str = "", reason: str = "", seconds: float = 0.0
) -> CompileEvent:
    return CompileEvent(
        kind=kind,
        function=function,
        signature=signature,
        reason=reason,
        seconds=seconds,
        thread=threading.get_native_id(),
        at_unix=time.time(),
    )


def pool_bytes() -> Mapping[str, int]:
    """Return the bytes that each graph memory pool of this process holds, by device and pool.

    They stay with the pool, whether a graph runs or not: no other allocation gets them. Takes some
    ms, and nothing where CUDA was never used.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    pools: dict[str, int] = {}
    for segment in torch.cuda.memory_snapshot():
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        if pool != (0, 0):  # the one of everything that is no graph's
            name = f"cuda:{segment['device']} pool {'.'.join(map(str, pool))}"
            pools[name] = pools.get(name, 0) + int(segment["total_size"])
    return pools
