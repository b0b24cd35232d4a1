# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Captures of CUDA graphs: counts, times, reasons for skips, and what happens if one fails.

Graphs cannot be cached, so every process captures its own graphs. Inductor's graph trees need two
calls to a function: the first runs eagerly in the memory pool of the graphs, and the second is
captured. The eager run compiles nothing. But serve_warm counts this run, because later calls
launch a graph instead. Libraries (level 3) do not use graph trees: `libraries.cuda_graphs` captures
their graphs.

A capture fails if it runs out of memory or meets an operation that cannot be captured. Without
serve_warm, torch then raises an error in every later call to the function. serve_warm instead
records a skip with the reason, and runs the function without a graph from then on.

`torch.cuda.CUDAGraph` is public. Graphs of user code and of `torch.cuda.make_graphed_callables` use
this class. This module replaces these private functions of torch (seen in 2.11, 2.13 and 2.15):
`CUDAGraphTreeManager.record_function`, `CUDAGraphTreeManager.run_eager`, `get_obj`,
`is_cudagraph_capture_sizes`, and `log_cudagraph_skip_and_bump_counter`, which torch calls for each
skip. `_Attempt` and `end_broken` also reset private state of torch.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/cudagraph_trees.py
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import sys
import threading
import time
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal

from serve_warm._redaction import first_line
from serve_warm.compiler.gpus import is_cuda_initialized
from serve_warm.compiler.imports import when_imported
from serve_warm.inputs import InputSignature
from serve_warm.private_apis import inductor, module_names, patches
from serve_warm.private_apis.table import SKIP_USERS
from serve_warm.report import CompileEvent, DeviceMemory


def observe(note: Callable[[CompileEvent], None], ran_eagerly: Callable[[], None]) -> None:
    """From now on, call `note` for each capture and each skip, in the thread that caused it.

    `ran_eagerly` is called on each eager run before a capture. Call this once per process.
    """
    _observers.append(note)
    when_imported("torch.cuda.graphs", functools.partial(_hook_graphs, note))
    when_imported(module_names.CUDAGRAPH_TREES, functools.partial(_hook_trees, note, ran_eagerly))
    when_imported(module_names.CUDAGRAPH_UTILS, functools.partial(_hook_skips, note))


_observers: list[Callable[[CompileEvent], None]] = []


def _note(event: CompileEvent) -> None:
    for observer in _observers:
        observer(event)


class _Elsewhere(threading.local):
    """A flag for each thread: whether the running code counts its own captures."""

    counted = False


_elsewhere = _Elsewhere()


def is_under_way() -> bool:
    """Return whether torch's graph trees or user code are capturing in this thread."""
    torch: Any = sys.modules["torch"]
    return _elsewhere.counted or bool(torch.cuda.is_current_stream_capturing())


def reader_of_stream(device: str) -> Callable[[], int]:
    """Return a function that returns the handle of the calling thread's stream on a device."""
    from serve_warm.private_apis.torch_c import reader_of_stream as find_reader

    torch: Any = sys.modules["torch"]
    index = torch.device(device).index
    read = find_reader(index) if index is not None else None  # without one, the device can change
    return read or (lambda: int(torch.cuda.current_stream(device).cuda_stream))


@contextlib.contextmanager
def count_elsewhere() -> Iterator[None]:
    """Do not count captures in the block, because the code in the block counts them itself."""
    before, _elsewhere.counted = _elsewhere.counted, True
    try:
        yield
    finally:
        _elsewhere.counted = before


_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Prevent captures in other threads: such a capture could break a capture in this thread.

    From 2.13 on, torch's graph trees have their own lock for this purpose, and take serve_warm's
    lock after their own lock (`_hook_trees`). A capture that began before torch's graph trees were
    imported holds only serve_warm's lock.
    """
    trees = sys.modules.get(module_names.CUDAGRAPH_TREES)
    theirs = getattr(trees, "graph_capture_lock", None) or contextlib.nullcontext()
    with theirs, _one_at_a_time:
        yield


def _manager_without_some(manager_class: Any) -> type:
    """Return the class that a graph manager gets after one of its captures fails.

    The class runs a function without a graph if the capture of this function failed. A subclass is
    used so that launches by other managers cost nothing extra.
    """

    class WithoutSome(manager_class):  # type: ignore[misc]
        def _run(self, new_inputs: Any, function_id: Any) -> Any:
            if function_id in self.serve_warm_without:
                return self.ids_to_funcs[function_id].model(new_inputs)
            return super()._run(new_inputs, function_id)

    return WithoutSome


def _hook_trees(
    note: Callable[[CompileEvent], None], ran_eagerly: Callable[[], None], trees: ModuleType
) -> None:
    captured_by: dict[int, str] = {}
    without_some = _manager_without_some(trees.CUDAGraphTreeManager)

    def begin_alone(begin: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            # A new manager captures an empty graph to keep its pool.
            with _one_at_a_time, count_elsewhere():
                begin(self, *args, **kwargs)

        return __init__

    def note_captures(record: Callable[..., Any]) -> Callable[..., Any]:
        def record_function(self: Any, new_inputs: Any, function_id: Any) -> Any:
            reason = _why_again(self, new_inputs, function_id) or _why_here(captured_by)
            attempt = _Attempt(self, new_inputs, function_id, give_up)
            start = time.perf_counter()
            with _one_at_a_time:
                result = attempt.make(record, new_inputs, can_fail="for any reason")
            if attempt.given_up:
                return result
            captured_by[threading.get_native_id()] = threading.current_thread().name
            note(
                CompileEvent(
                    kind="capture",
                    function=attempt.name,
                    signature=attempt.signature,
                    reason=reason,
                    seconds=time.perf_counter() - start,
                )
            )
            return result

        return record_function

    def count_eager_runs(run: Callable[..., Any]) -> Callable[..., Any]:
        def run_eager(self: Any, new_inputs: Any, function_id: Any) -> Any:
            ran_eagerly()
            attempt = _Attempt(self, new_inputs, function_id, give_up)
            # A failed run may already have written to its inputs, so it must not run again.
            writes = bool(self.ids_to_funcs[function_id].mutated_input_idxs)
            with _one_at_a_time:
                return attempt.make(run, new_inputs, can_fail="no" if writes else "for memory")

        return run_eager

    def give_up(attempt: _Attempt, why: str) -> None:
        """Run a function without a graph from now on."""
        manager = attempt.manager
        manager.__class__ = without_some
        vars(manager).setdefault("serve_warm_without", set()).add(attempt.function_id)
        reason = f"no graph for [{attempt.signature}], because its capture failed: {why}"
        note(
            CompileEvent(
                kind="skip", function=attempt.name, signature=attempt.signature, reason=reason
            )
        )

    patches.replace("CUDAGraphTreeManager.__init__", begin_alone)
    patches.replace("CUDAGraphTreeManager.record_function", note_captures)
    patches.replace("CUDAGraphTreeManager.run_eager", count_eager_runs)
    patches.replace("is_cudagraph_capture_sizes", functools.partial(_note_sizes, note))
    _hook_threads(trees)


class _Attempt:
    """A step that prepares a function's graph, and a clean-up that runs if the step fails.

    Without the clean-up, torch 2.13 treats a failed run as successful. After an operation that
    cannot be captured, the capture's stream also remains the current stream. torch's allocator then
    assumes that the capture is still running, and never frees memory.
    """

    def __init__(
        self,
        manager: Any,
        new_inputs: Sequence[Any],
        function_id: Any,
        give_up: Callable[[_Attempt, str], None],
    ) -> None:
        import torch
        from torch.utils.weak import TensorWeakRef

        self.manager = manager
        self.function_id = function_id
        compile_id = manager.id_to_compile_id.get(function_id)
        # None for an entry of level 2, because this process did not compile it.
        self.name = "CUDA graph" + (f" of compile {compile_id}" if compile_id is not None else "")
        # The inputs include hundreds of weights, but the signature shows only the call's own
        # inputs.
        static = set(manager.ids_to_funcs[function_id].static_input_idxs)
        brought = {f"input {i}": x for i, x in enumerate(new_inputs) if i not in static}
        self.signature = str(InputSignature.of(brought))
        self.given_up = False
        self._give_up = give_up
        # Use weak references: a capture frees inputs without other owners, and the graph reuses the
        # memory of these inputs.
        self._tensors = {
            i: TensorWeakRef(each)
            for i, each in enumerate(new_inputs)
            if isinstance(each, torch.Tensor)
        }
        self._others = [None if i in self._tensors else each for i, each in enumerate(new_inputs)]
        self._node, self._state = manager.current_node, manager.path_state
        self._had_run = function_id in manager.warmed_up_functions
        self._stream = torch.cuda.current_stream() if is_cuda_initialized() else None

    def make(
        self,
        step: Callable[..., Any],
        new_inputs: list[Any],
        *,
        can_fail: Literal["for any reason", "for memory", "no"],
    ) -> Any:
        """Return the result of `step`; if `step` fails, run the function without a graph.

        `can_fail` selects the failures that are handled; other failures are raised. If the GPU is
        out of memory, unused memory is freed and the step is repeated once. After a handled
        failure, the function always runs without a graph. If the step freed an input, the function
        cannot run now, and the error is raised.
        """
        why, handled = "", sys.exc_info()[1]
        for again in (False, True):
            try:
                with count_elsewhere():
                    inputs = self._inputs() if again else new_inputs
                    return step(self.manager, inputs, self.function_id)
            except RuntimeError as error:
                self._undo()
                short = ran_out_of_memory(error)
                if can_fail == "no" or (can_fail == "for memory" and not short):
                    raise
                why = first_words(error, handled)
                if any(tensor() is None for tensor in self._tensors.values()):
                    self._free()
                    self._without(why)
                    raise
            # Do this outside the handler: the traceback there keeps alive all memory that was
            # allocated so far.
            del inputs
            self._free()
            if not short:
                break
        with count_elsewhere():
            result = self.manager.ids_to_funcs[self.function_id].model(self._inputs())
        self._without(why)
        return result

    def _without(self, why: str) -> None:
        self.given_up = True
        self._give_up(self, why)

    def _inputs(self) -> list[Any]:
        # Pass a new list each time, because the called function empties the list.
        tensors = self._tensors
        return [tensors[i]() if i in tensors else other for i, other in enumerate(self._others)]

    def _undo(self) -> None:
        import torch

        manager = self.manager
        manager.current_node = self._node
        manager.path_state = self._state
        if not self._had_run:
            manager.warmed_up_functions.discard(self.function_id)
        if self._stream is None:
            return
        torch.cuda.set_stream(self._stream)
        end_broken(manager.device_index, manager.cuda_graphs_thread_pool)

    def _free(self) -> None:
        import torch

        gc.collect()
        if self._stream is None:
            return
        manager, pool = self.manager, self.manager.cuda_graphs_thread_pool
        is_empty = manager.current_node is None and not any(manager.roots.values())
        if is_empty:
            # A pool does not free memory while it has a graph, even if the only graph is the empty
            # one that keeps the pool alive.
            pool = torch.cuda.graph_pool_handle()
        # This also ends the capture of torch's random number state, which a failed capture leaves
        # active.
        graph = torch.cuda.CUDAGraph()
        with (
            warnings.catch_warnings(record=True),
            count_elsewhere(),
            torch.cuda.device(manager.device_index),
            torch.cuda.graph(
                graph, pool=pool, stream=manager.stream, capture_error_mode="thread_local"
            ),
        ):
            pass
        if is_empty:
            manager.graph, manager.cuda_graphs_thread_pool = graph, pool
        torch.cuda.empty_cache()


def end_broken(device_index: int, pool: Any) -> None:
    """Tell torch's allocator that a failed capture no longer allocates from a pool."""
    from serve_warm.private_apis.torch_c import end_broken_capture

    # The allocator treats a broken capture as still running. One that ran out of memory has ended.
    with contextlib.suppress(RuntimeError):
        end_broken_capture(device_index, pool)


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, says that a GPU ran out of memory."""
    torch = sys.modules.get("torch")
    met: set[int] = set()
    while torch is not None and error is not None and id(error) not in met:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        # Errors from C++ or from outside torch's allocator show the cause only in their text.
        words = ("CUDA error: out of memory", "CUDA out of memory")
        if isinstance(error, RuntimeError) and any(each in str(error) for each in words):
            return True
        met.add(id(error))
        # `raise ... from None` hides the context, so the context is not a cause.
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def free_memory() -> None:
    """Free GPU memory that torch caches but no code uses. Pools of graphs are not affected."""
    gc.collect()  # errors and tasks in reference cycles keep tensors alive
    if is_cuda_initialized():
        sys.modules["torch"].cuda.empty_cache()


def times_short(device: str) -> int:
    """Return how many times torch's allocator ran out of memory on a device; 0 if unknown."""
    torch = _allocating()
    return int(torch.cuda.memory_stats(device).get("num_ooms", 0)) if torch is not None else 0


def first_words(error: BaseException, handled: BaseException | None) -> str:
    """Return the first line of the error that broke a capture.

    Ending the capture can raise further errors, which are ignored. `handled` is the exception that
    the caller was handling when the capture began.
    """
    while isinstance(error.__context__, RuntimeError) and error.__context__ is not handled:
        error = error.__context__
    return first_line(str(error), 200) or type(error).__name__


def _note_sizes(
    note: Callable[[CompileEvent], None], original: Callable[[Any], bool]
) -> Callable[[Any], bool]:
    """Record a skip for each size that is not in the app's `cudagraph_capture_sizes`."""
    left_out: set[Any] = set()

    def is_cudagraph_capture_sizes(int_key: Any) -> bool:
        is_captured = original(int_key)
        if not is_captured and int_key not in left_out:
            left_out.add(int_key)
            what = "graphs without dynamic sizes are" if int_key is None else f"size {int_key} is"
            reason = f"{what} not in cudagraph_capture_sizes, which the app has set"
            note(CompileEvent(kind="skip", function="CUDA graph", reason=reason))
        return is_captured

    return is_cudagraph_capture_sizes


def _hook_threads(trees: ModuleType) -> None:
    """Let each thread capture graphs; torch 2.13 does this itself.

    Earlier versions raise AssertionError in all threads but one: the thread that imported the
    module of graph trees. That thread might be the one that loaded an artifact. Autograd's threads
    still use the graphs of only one thread. So the backward pass is not captured for other threads.
    """
    if inductor.captures_in_each_thread(trees) or not patches.replace(
        "get_obj", _begin_in_each_thread
    ):
        return
    for stashed in vars(trees.local).values():
        # torch did not take a reference for this thread's stashed objects, and the thread may end.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(stashed))


def _begin_in_each_thread(original: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    from serve_warm.private_apis.torch_c import has_thread_key

    def get_obj(local: Any, attr_name: str) -> Any:
        if not hasattr(local, attr_name) and not has_thread_key(attr_name):
            # Do not use `_stash_obj_in_tls`: in 2.11 it takes no reference, but torch drops a
            # reference when the thread ends. By then, another object may be at this address.
            local.tree_manager_containers = {}
            local.tree_manager_locks = defaultdict(threading.Lock)
        return original(local, attr_name)

    return get_obj


def _why_here(captured_by: Mapping[int, str]) -> str:
    """Return text that names the threads of earlier captures, if this thread captured no graph.

    Return an empty string if this thread has captured before, or if no thread has captured yet.
    """
    if not captured_by or threading.get_native_id() in captured_by:
        return ""
    others = ", ".join(repr(name) for name in list(captured_by.values())[-3:])
    return (
        f"captured in thread {threading.current_thread().name!r}, but earlier graphs were captured "
        f"in {others}"
    )


def _why_again(manager: Any, new_inputs: Any, function_id: Any) -> str:
    """Return why a function is captured again, or an empty string for its first capture."""
    node = manager.current_node
    captured = (manager.roots if node is None else node.children)[function_id]
    if not captured:
        return ""
    _, why = captured[-1].check_invariants(new_inputs)
    text = why() if callable(why) else str(why)
    return f"captured again (earlier captures: {len(captured)}): {' '.join(text.split())}"


def _hook_graphs(note: Callable[[CompileEvent], None], _: ModuleType) -> None:
    broken: list[Any] = []
    """Objects that are never freed, because torch's allocators keep calling them by address."""
    began: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
    """When the capture of each graph began."""

    def note_begin(begin: Callable[..., None]) -> Callable[..., None]:
        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
            began[self] = time.perf_counter()
            try:
                begin(self, *args, **kwargs)
            except RuntimeError:
                broken.append(self)
                raise

        return capture_begin

    def note_end(end: Callable[[Any], None]) -> Callable[[Any], None]:
        def capture_end(self: Any) -> None:
            try:
                end(self)
            except RuntimeError:
                broken.append(self)
                raise
            now = time.perf_counter()
            seconds = now - began.pop(self, now)
            if not _elsewhere.counted:
                note(CompileEvent(kind="capture", function="torch.cuda.CUDAGraph", seconds=seconds))

        return capture_end

    patches.replace("CUDAGraph.capture_begin", note_begin)
    patches.replace("CUDAGraph.capture_end", note_end)


def _hook_skips(note: Callable[[CompileEvent], None], utils: ModuleType) -> None:
    original: Callable[[str], None] = utils.log_cudagraph_skip_and_bump_counter

    def noting(msg: str) -> None:
        note(CompileEvent(kind="skip", function="CUDA graph", reason=" ".join(msg.split())))
        original(msg)

    def wrap(found: Callable[[str], None]) -> Callable[[str], None]:
        return noting if found is original else found

    patches.replace("log_cudagraph_skip_and_bump_counter", wrap)
    # Loaded modules have already imported the name; other modules will import it from `utils`.
    for user in SKIP_USERS:
        patches.replace(f"{user}.log_cudagraph_skip_and_bump_counter", wrap)


@contextlib.contextmanager
def capturing(function: str, signature: str, *, reason: str) -> Iterator[None]:
    """Count all captures in the block as one capture of `function`, if the block succeeds."""
    start = time.perf_counter()
    with count_elsewhere():
        yield
    seconds = time.perf_counter() - start
    _note(
        CompileEvent(
            kind="capture", function=function, signature=signature, reason=reason, seconds=seconds
        )
    )


def note_skip(reason: str) -> None:
    """Record that a function launches its kernels one by one instead of launching a graph."""
    _note(CompileEvent(kind="skip", function="CUDA graph", reason=" ".join(reason.split())))


def pool_bytes() -> Mapping[tuple[int, str], int]:
    """Return the bytes that each graph memory pool of this process holds, by device and pool.

    A pool keeps its bytes even if no graph is running, and no other allocation can use these bytes.
    The result includes pools that user code made with `torch.cuda.MemPool`. The call takes a few ms
    and does not query the device. Returns an empty mapping if CUDA was never used, or if torch does
    not use its native allocator.
    """
    torch = _allocating()
    if torch is None:
        return {}
    pools: dict[tuple[int, str], int] = {}
    for segment in torch.cuda.memory_snapshot():
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        if pool != (0, 0):  # the pool of all memory outside graphs
            key = int(segment["device"]), ".".join(map(str, pool))
            pools[key] = pools.get(key, 0) + int(segment["total_size"])
    return pools


def memory() -> tuple[DeviceMemory, ...]:
    """Return how much memory this process holds on each GPU that it uses, including pools."""
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
    """Return torch if it has used a GPU with its native allocator, or else `None`."""
    if not is_cuda_initialized():
        return None
    torch = sys.modules["torch"]
    # cudaMallocAsync and user allocators do not report memory: they raise.
    return torch if torch.cuda.get_allocator_backend() == "native" else None


def clone_outputs(value: Any) -> Any:
    """Return `value` with cloned CUDA tensors, so that a graph's next run cannot overwrite it."""
    return inductor.map_leaves(
        lambda leaf: leaf.clone() if getattr(leaf, "is_cuda", False) else leaf, value
    )
