# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: each capture is counted and timed, and each skip has a reason.

No cache holds a graph. Every process captures its own, and with Inductor's graph trees in more than
one call: the first call of a path runs eagerly in the graphs' memory pool, the second is captured.
Such an eager run compiles nothing and is not yet what traffic gets, so it is counted as well.
Libraries (level 3) have no graph trees: `graphed` captures theirs.

Where a capture fails, for memory or for an operation that cannot be captured, torch raises in every
call of that path. Here the path runs without a graph from then on: a skip, with its reason.

Private names of torch (seen in 2.11, 2.13 and 2.15): `CUDAGraphTreeManager` with `record_function`
and `run_eager`, `get_obj`, `is_cudagraph_capture_sizes`, what `_Attempt` and `end_broken` undo, and
`log_cudagraph_skip_and_bump_counter`, through which skips go.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/cudagraph_trees.py
`torch.cuda.CUDAGraph` is public; graphs that user code makes by itself, and those of
`torch.cuda.make_graphed_callables`, go through it.
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
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal

from serve_warm.compiler.background_import import when_imported
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


def is_under_way() -> bool:
    """Return whether this thread is at a step of a capture, by torch's graph trees or by a user."""
    torch: Any = sys.modules["torch"]
    return _elsewhere.counted or bool(torch.cuda.is_current_stream_capturing())


@contextlib.contextmanager
def count_elsewhere() -> Iterator[None]:
    """Leave captures of this thread to be counted by who makes them."""
    before, _elsewhere.counted = _elsewhere.counted, True
    try:
        yield
    finally:
        _elsewhere.counted = before


_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Keep others of this process from capturing: what one does may break another's capture.

    Torch's graph trees have a lock for it from 2.13 on. They take ours after it (`_hook_trees`),
    since who captured first may have done so before they were imported, and have theirs not.
    """
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    theirs = getattr(trees, "graph_capture_lock", None) or contextlib.nullcontext()
    with theirs, _one_at_a_time:
        yield


def _manager_without_some(manager_class: Any) -> type:
    """Return the class of a manager once a capture of it has failed.

    Some of its functions run without a graph. A class of its own, so that launches of other
    managers pay nothing for it.
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
    manager_class: Any = trees.CUDAGraphTreeManager
    begin, record = manager_class.__init__, manager_class.record_function
    run_eager = manager_class.run_eager
    captured_by: dict[int, str] = {}
    without_some = _manager_without_some(manager_class)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        # A manager captures an empty graph, to keep its pool.
        with _one_at_a_time, count_elsewhere():
            begin(self, *args, **kwargs)

    def record_function(self: Any, new_inputs: Any, function_id: Any) -> Any:
        reason = _why_again(self, new_inputs, function_id) or _why_here(captured_by)
        attempt = _Attempt(self, new_inputs, function_id, give_up)
        start = time.perf_counter()
        with _one_at_a_time:
            result = attempt.made(record, new_inputs, can_fail="for any reason")
        if attempt.given_up:
            return result
        captured_by[threading.get_native_id()] = threading.current_thread().name
        note(
            _event(
                "capture",
                attempt.name,
                signature=attempt.signature,
                reason=reason,
                seconds=time.perf_counter() - start,
            )
        )
        return result

    def run_eager_counted(self: Any, new_inputs: Any, function_id: Any) -> Any:
        ran_eagerly()
        attempt = _Attempt(self, new_inputs, function_id, give_up)
        # What it writes to may be written to when it fails: such a function is not run once more.
        writes = bool(self.ids_to_funcs[function_id].mutated_input_idxs)
        with _one_at_a_time:
            return attempt.made(run_eager, new_inputs, can_fail="no" if writes else "for memory")

    def give_up(attempt: _Attempt, why: str) -> None:
        """Have a function run without a graph from now on."""
        manager = attempt.manager
        manager.__class__ = without_some
        vars(manager).setdefault("serve_warm_without", set()).add(attempt.function_id)
        reason = f"no graph for [{attempt.signature}], its capture failed: {why}"
        note(_event("skip", attempt.name, signature=attempt.signature, reason=reason))

    manager_class.__init__ = __init__
    manager_class.record_function = record_function
    manager_class.run_eager = run_eager_counted
    _hook_sizes(note, trees)
    _hook_threads(trees)


class _Attempt:
    """One step of a function towards its graph, and what is done where the step fails.

    By itself torch 2.13 leaves behind, after a run that failed, a function that counts as run. And
    after an operation that cannot be captured: the stream of the capture as the current one, and an
    allocator that believes in a capture under way, so that it never gives memory back again.
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
        # None for an entry of level 2, which no compile of this process made.
        self.name = "CUDA graph" + (f" of compile {compile_id}" if compile_id is not None else "")
        # Weights are among the inputs too, by the hundred: shown is what the call brought.
        static = set(manager.ids_to_funcs[function_id].static_input_idxs)
        brought = {f"input {i}": x for i, x in enumerate(new_inputs) if i not in static}
        self.signature = str(InputSignature.of(brought))
        self.given_up = False
        self._give_up = give_up
        # Weakly: what nobody else holds is freed in a capture, and its memory used by the graph.
        self._tensors = {
            i: TensorWeakRef(each)
            for i, each in enumerate(new_inputs)
            if isinstance(each, torch.Tensor)
        }
        self._others = [None if i in self._tensors else each for i, each in enumerate(new_inputs)]
        self._node, self._state = manager.current_node, manager.path_state
        self._had_run = function_id in manager.warmed_up_functions
        self._stream = torch.cuda.current_stream() if _cuda_is_used() else None

    def made(
        self,
        step: Callable[..., Any],
        new_inputs: list[Any],
        *,
        can_fail: Literal["for any reason", "for memory", "no"],
    ) -> Any:
        """Return what `step` returns, or where it can fail, what the function does without a graph.

        Where memory was short the step is made once more, after all was given back that is free.
        What goes well without a graph goes without from then on; so does what cannot be tried,
        since the step has freed an input.
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
            # Not in the handler, whose traceback holds what was allocated until then.
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
        # In a list of their own, since whoever gets it empties it.
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
            # A pool gives nothing back as long as it has graphs, were it the one that keeps it.
            pool = torch.cuda.graph_pool_handle()
        # Also for torch's random numbers, which are captured until a capture ends well.
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
    """End a capture into a pool that has failed, for torch's allocator."""
    import torch

    allocator: Any = torch._C
    # One that was broken has not ended for it; one that was short of memory has.
    with contextlib.suppress(RuntimeError):
        allocator._cuda_endAllocateToPool(device_index, pool)
        allocator._cuda_releasePool(device_index, pool)


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Return whether a GPU's memory is what was missing, for an error or for what it came of."""
    torch = sys.modules.get("torch")
    met: set[int] = set()
    while torch is not None and error is not None and id(error) not in met:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        # In words alone, where torch's allocator was not asked, as for the graph itself, or by C++.
        words = ("CUDA error: out of memory", "CUDA out of memory")
        if isinstance(error, RuntimeError) and any(each in str(error) for each in words):
            return True
        met.add(id(error))
        # What `raise ... from None` puts aside is not what it came of.
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def free_memory() -> None:
    """Give back to the GPU what torch keeps for later and nobody uses; pools of graphs stay."""
    gc.collect()  # errors and the tasks that they ended hold one another, and tensors
    if _cuda_is_used():
        sys.modules["torch"].cuda.empty_cache()


def _cuda_is_used() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def times_short(device: str) -> int:
    """Return how often torch's allocator had no memory on a device; 0 where nobody knows."""
    torch = _allocating()
    return int(torch.cuda.memory_stats(device).get("num_ooms", 0)) if torch is not None else 0


def first_words(error: BaseException, handled: BaseException | None) -> str:
    """Return the first line of what broke a capture, which the errors of its end come after.

    `handled` is what the caller was handling when it began.
    """
    while isinstance(error.__context__, RuntimeError) and error.__context__ is not handled:
        error = error.__context__
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _hook_sizes(note: Callable[[CompileEvent], None], trees: ModuleType) -> None:
    """Say of each size that the app's `cudagraph_capture_sizes` leaves out that it is left out."""
    name = "is_cudagraph_capture_sizes"
    original: Callable[[Any], bool] | None = getattr(trees, name, None)
    if original is None:
        return
    left_out: set[Any] = set()

    def is_cudagraph_capture_sizes(int_key: Any) -> bool:
        is_captured = original(int_key)
        if not is_captured and int_key not in left_out:
            left_out.add(int_key)
            what = "sizes that do not change are" if int_key is None else f"size {int_key} is"
            reason = f"{what} not in cudagraph_capture_sizes, which the app has set"
            note(_event("skip", "CUDA graph", reason=reason))
        return is_captured

    setattr(trees, name, is_cudagraph_capture_sizes)


def _hook_threads(trees: ModuleType) -> None:
    """Let each thread capture, as torch does by itself where it has `_initialize_tls` (2.13).

    Before, a thread other than the one that imported this module, which may be the one that loaded
    an artifact, got an AssertionError. Autograd's threads still know that one thread's graphs only:
    no backward pass is captured for others.
    """
    if hasattr(trees, "_initialize_tls") or not hasattr(trees, "get_obj"):
        return
    import torch

    original: Callable[[Any, str], Any] = trees.get_obj
    of_threads: Any = torch._C

    def get_obj(local: Any, attr_name: str) -> Any:
        if not hasattr(local, attr_name) and not of_threads._is_key_in_tls(attr_name):
            # Not by `_stash_obj_in_tls` as well, which in 2.11 takes no reference: when the thread
            # ends torch gives one back, and somebody else's object may lie there by then.
            local.tree_manager_containers = {}
            local.tree_manager_locks = defaultdict(threading.Lock)
        return original(local, attr_name)

    trees.get_obj = get_obj  # type: ignore[attr-defined]
    for stashed in vars(trees.local).values():
        # What torch has stashed for this thread, which may end: the reference that it did not take.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(stashed))


def _why_here(captured_by: Mapping[int, str]) -> str:
    """Return which thread captures, where only others did so before; empty for one of them."""
    if not captured_by or threading.get_native_id() in captured_by:
        return ""
    others = ", ".join(repr(name) for name in list(captured_by.values())[-3:])
    return f"captured in thread {threading.current_thread().name!r}, all before it in {others}"


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
    broken: list[Any] = []
    """Kept for good: torch's allocators go on asking one about each stream, by its address."""

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        self._serve_warm_began_s = time.perf_counter()
        try:
            begin(self, *args, **kwargs)
        except RuntimeError:
            broken.append(self)
            raise

    def capture_end(self: Any) -> None:
        try:
            end(self)
        except RuntimeError:
            broken.append(self)
            raise
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


@contextlib.contextmanager
def capturing(function: str, signature: str, *, reason: str) -> Iterator[None]:
    """Count what is captured in the block as one capture of `function`, if it succeeds."""
    start = time.perf_counter()
    with count_elsewhere():
        yield
    seconds = time.perf_counter() - start
    _note(_event("capture", function, signature=signature, reason=reason, seconds=seconds))


def note_skip(reason: str) -> None:
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
    if not _cuda_is_used():
        return None
    torch = sys.modules["torch"]
    # Of cudaMallocAsync and of an allocator of the user's nothing is known: they raise.
    return torch if torch.cuda.get_allocator_backend() == "native" else None


def clone_outputs(value: Any) -> Any:
    """Return `value` with every CUDA tensor in it cloned: a graph's next run overwrites them."""
    from torch.utils._pytree import tree_map

    return tree_map(lambda leaf: leaf.clone() if getattr(leaf, "is_cuda", False) else leaf, value)
