# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: each capture is counted and timed, and each skip has a reason.

No cache holds a graph. Every process captures its own, and with Inductor's graph trees in more than
one call: the first call of a path runs eagerly in the graphs' memory pool, the second is captured.
Such an eager run compiles nothing and is not yet what traffic gets, so it is counted as well.
Libraries (level 3) have no graph trees: theirs are captured here (`Graphed`).

Private names of torch (seen in 2.11, 2.13 and 2.15): `CUDAGraphTreeManager` with `record_function`
and `run_eager`, `get_obj`, and `log_cudagraph_skip_and_bump_counter`, through which skips go.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/cudagraph_trees.py
`torch.cuda.CUDAGraph` is public; graphs that user code makes by itself, and those of
`torch.cuda.make_graphed_callables`, go through it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from serve_warm.importing import when_imported
from serve_warm.inputs import InputSignature
from serve_warm.report import CompileEvent, DeviceMemory

SKIP_USERS = ("cudagraph_utils", "cudagraph_trees", "output_code", "compile_fx")
"""Modules of Inductor that have the function which notes a skip under their own name."""


def observe(note: Callable[[CompileEvent], None], ran_eagerly: Callable[[], None]) -> None:
    """Call `note` with each capture and each skip from now on, from the thread that it is in.

    `ran_eagerly` is called at each run that comes before a capture. Once per process.
    """
    _observers.append(note)
    when_imported("torch.cuda.graphs", functools.partial(_hook_graphs, note))
    when_imported(
        "torch._inductor.cudagraph_trees", functools.partial(_hook_trees, note, ran_eagerly)
    )
    when_imported("torch._inductor.cudagraph_utils", functools.partial(_hook_skips, note))


_observers: list[Callable[[CompileEvent], None]] = []


def _note(event: CompileEvent) -> None:
    for observer in _observers:
        observer(event)


class _Elsewhere(threading.local):
    """Whether this thread's captures are counted by who makes them."""

    counted = False


_elsewhere = _Elsewhere()


@contextlib.contextmanager
def _counted_elsewhere() -> Iterator[None]:
    before, _elsewhere.counted = _elsewhere.counted, True
    try:
        yield
    finally:
        _elsewhere.counted = before


def _hook_trees(
    note: Callable[[CompileEvent], None], ran_eagerly: Callable[[], None], trees: ModuleType
) -> None:
    manager: Any = trees.CUDAGraphTreeManager
    begin, record, run_eager = manager.__init__, manager.record_function, manager.run_eager

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        # A manager captures an empty graph, to keep its pool.
        with _counted_elsewhere():
            begin(self, *args, **kwargs)

    def record_function(self: Any, new_inputs: Any, function_id: Any) -> Any:
        reason = _why_again(self, new_inputs, function_id)
        static = set(self.ids_to_funcs[function_id].static_input_idxs)
        # Weights are among the inputs, by the hundred: shown is what the call brought.
        brought = {f"input {i}": x for i, x in enumerate(new_inputs) if i not in static}
        compile_id = self.id_to_compile_id.get(function_id)
        start = time.perf_counter()
        with _counted_elsewhere():
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
    if not hasattr(trees, "_initialize_tls"):
        _hook_threads(trees)


def _hook_threads(trees: ModuleType) -> None:
    """Give each thread the containers that, up to 2.11, only the importing thread has.

    What is loaded from an artifact is imported in another thread than it is called in; without
    this the first call fails there by an assertion. 2.13 does the same by itself.
    """
    get = trees.get_obj

    def get_obj(local: Any, name: str) -> Any:
        import torch

        if not hasattr(local, name) and not torch._C._is_key_in_tls(name):
            local.tree_manager_containers = {}
            local.tree_manager_locks = collections.defaultdict(threading.Lock)
            for each in ("tree_manager_containers", "tree_manager_locks"):
                # For the threads of autograd, which take it from the one that calls them.
                torch._C._stash_obj_in_tls(each, getattr(local, each))
        return get(local, name)

    trees.get_obj = get_obj  # type: ignore[attr-defined]


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
        if not _elsewhere.counted:
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


# Graphs of libraries --------------------------------------------------------------------------


MOST_CAPTURES = 64
"""Graphs that one library keeps in a thread. One more, of a dynamic size, frees the oldest."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.pools: dict[int, Any] = {}


_of_thread = _OfThread()
"""One memory pool for the graphs of all libraries, by the stream that they are launched on: what
runs on one stream runs one after another, so that they may use the same memory."""


class Graphed:
    """Native code that is captured at the first call of a kind, and launched from then on.

    A kind is a stream, the addresses of weights, and the sizes of what a call brings. As with
    torch's own, each thread captures for itself. What is returned is a copy.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Any]], Sequence[Any]],
        *,
        name: str,
        brought: Sequence[int],
        inputs: int,
    ) -> None:
        """Take the code, and which of its inputs are the call's own; the others are weights."""
        self._run = run
        self._name = name
        self._brought = tuple(brought)
        self._fixed = tuple(index for index in range(inputs) if index not in self._brought)
        self._local = threading.local()

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run on tensors as they are, and return the outputs.

        Raises:
            RuntimeError: it failed, without a graph too.
        """
        import torch

        stream = torch.cuda.current_stream().cuda_stream
        sizes = tuple([inputs[index].shape for index in self._brought])
        key = (stream, sizes, tuple([inputs[index].data_ptr() for index in self._fixed]))
        kept: dict[Any, Any] = vars(self._local).setdefault("kept", {})
        if key not in kept:
            if len(kept) >= MOST_CAPTURES:
                kept.pop(next(iter(kept)))
            kept[key] = self._captured(inputs, stream, again=sum(k[:2] == key[:2] for k in kept))
        outputs: Sequence[Any] = kept[key](inputs)
        return outputs

    def _captured(self, inputs: Sequence[Any], stream: int, *, again: int) -> Any:
        """Return the graph of a call like this one; or the code itself, where none can be had."""
        import torch

        start = time.perf_counter()
        # Its own tensors are written into in whatever mode a call is made.
        with torch.inference_mode(mode=False), torch.no_grad():
            static = list(inputs)
            for index in self._brought:
                static[index] = _like(inputs[index])
            try:
                # What is loaded or chosen at a first run cannot be captured.
                self._run(static)
                pools = _of_thread.pools
                if stream not in pools:
                    pools[stream] = torch.cuda.graph_pool_handle()
                graph = torch.cuda.CUDAGraph()
                with (
                    _counted_elsewhere(),
                    # As graph trees do: what another thread allocates meanwhile is no error.
                    torch.cuda.graph(graph, pool=pools[stream], capture_error_mode="thread_local"),
                ):
                    outputs = self._run(static)
            except RuntimeError as error:
                skipped(f"{self._name} cannot be captured: {str(error).partition(chr(10))[0]}")
                return self._run
        brought = {f"input {index}": inputs[index] for index in self._brought}
        _note(
            _event(
                "capture",
                self._name,
                signature=str(InputSignature.of(brought)),
                reason=f"captured {again} times before: its weights have moved" if again else "",
                seconds=time.perf_counter() - start,
            )
        )
        moved = [(index, static[index]) for index in self._brought]

        def launch(inputs: Sequence[Any]) -> list[Any]:
            for index, tensor in moved:
                tensor.copy_(inputs[index])
            graph.replay()
            return [output.clone() for output in outputs]

        return launch


def _like(tensor: Any) -> Any:
    """Return a copy with the strides of a tensor, which code was compiled for."""
    return tensor.new_empty_strided(tensor.shape, tensor.stride()).copy_(tensor)


def skipped(reason: str) -> None:
    """Note that what was to be captured is launched kernel by kernel."""
    _note(_event("skip", "CUDA graph", reason=" ".join(reason.split())))


def pool_bytes() -> Mapping[tuple[int, str], int]:
    """Return the bytes that each graph memory pool of this process holds, by device and pool.

    They stay with the pool, whether a graph runs or not: no other allocation gets them. A pool that
    user code made with `torch.cuda.MemPool` is among them. Takes some ms, asks the device nothing,
    and is empty where CUDA was never used or torch's allocator is another one than its own.
    """
    torch = _allocating()
    if torch is None:
        return {}
    pools: dict[tuple[int, str], int] = {}
    for segment in torch.cuda.memory_snapshot():
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        if pool != (0, 0):  # the one of everything that is no graph's
            key = int(segment["device"]), ".".join(map(str, pool))
            pools[key] = pools.get(key, 0) + int(segment["total_size"])
    return pools


def memory() -> tuple[DeviceMemory, ...]:
    """Return what this process holds of each GPU that it uses, pools included; as `pool_bytes`."""
    torch = _allocating()
    if torch is None:
        return ()
    pools = pool_bytes()
    found = (
        DeviceMemory(
            device=f"cuda:{index}",
            reserved_bytes=torch.cuda.memory_reserved(index),
            reserved_peak_bytes=torch.cuda.max_memory_reserved(index),
            pools={name: size for (device, name), size in pools.items() if device == index},
        )
        for index in range(torch.cuda.device_count())
    )
    return tuple(each for each in found if each.reserved_peak_bytes)


def _allocating() -> Any:
    """Return torch where it has used a GPU by its own allocator, else `None`."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    # Of cudaMallocAsync and of an allocator of the user's nothing is known: they raise.
    return torch if torch.cuda.get_allocator_backend() == "native" else None
