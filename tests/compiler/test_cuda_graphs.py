# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What of CUDA graphs can be seen without a GPU: skips, and how torch's own classes are hooked.

Captures themselves are in tests/gpu.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import serve_warm
from conftest import wait_until
from graph_trees import trees, two_gpus
from levels import build, served, started
from serve_warm.compiler import cuda_graphs
from serve_warm.compiler.imports import import_compiler
from serve_warm.compiler.watch import watch_process
from serve_warm.report import CompileEvent
from stand_ins import install

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("user", ["cudagraph_utils", *cuda_graphs.SKIP_USERS])
def test_a_skip_is_counted_with_torchs_reason(user: str):
    """Each part of Inductor can skip. Inductor reports nothing about graphs on a CPU."""
    watch = watch_process()
    import_compiler()
    module = importlib.import_module(f"torch._inductor.{user}")
    before = watch.counts()
    module.log_cudagraph_skip_and_bump_counter("skipping cudagraphs due to\n  a cpu device (x)")
    assert (watch.counts() - before).graph_skips == 1
    assert watch.events()[-1].reason == "skipping cudagraphs due to a cpu device (x)"


def hooked(module: ModuleType) -> tuple[Any, list[CompileEvent], list[str]]:
    events: list[CompileEvent] = []
    eager: list[str] = []
    hook = functools.partial(cuda_graphs._hook_trees, events.append, lambda: eager.append("run"))
    install(hook, "torch._inductor.cudagraph_trees", module)
    return module.CUDAGraphTreeManager(), events, eager


def failing(*fails: BaseException, plain: Plain | None = None) -> tuple[Any, ...]:
    """Return a hooked manager whose captures fail, its events and eager runs, and the function."""
    plain = plain or Plain()
    return *hooked(trees("", fails=list(fails), plain=plain)), plain


def in_a_thread(call: Callable[[], Any], name: str | None = None) -> threading.Thread:
    thread = threading.Thread(target=call, name=name)
    thread.start()
    thread.join()
    return thread


def test_a_capture_names_the_compile_and_what_the_call_brought():
    """Weights, which are inputs of a graph too, are not listed."""
    manager, events, eager = hooked(trees(""))
    weight, x = torch.rand(9, 9), torch.rand(2, 3)
    answers = manager.run_eager([weight, x], 7), manager.record_function([weight, x], 7)

    assert answers == ("eager", "captured")
    assert eager == ["run"]
    [event] = events
    assert (event.kind, event.function) == ("capture", "CUDA graph of compile 0/3")
    assert "2, 3" in event.signature
    assert "9×9" not in event.signature
    assert event.reason == ""


def test_a_capture_of_a_known_path_says_why_it_is_made_again():
    """Captures that never end have a cause, and it is torch's to name."""
    manager, events, _ = hooked(trees("static input 0\n  moved"))
    manager.record_function([torch.rand(1), torch.rand(2)], 7)
    manager.record_function([torch.rand(1), torch.rand(2)], 7)
    assert events[-1].reason == "captured again (earlier captures: 1): static input 0 moved"


def out_of_memory() -> BaseException:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nMore about it.")


def not_permitted() -> BaseException:
    """Return what comes out of a capture that an operation broke: the error of its end."""
    end = RuntimeError("CUDA error: operation failed due to a previous error during capture\n...")
    end.__context__ = RuntimeError("CUDA error: operation not permitted when stream is capturing")
    return end


class Plain:
    """The function without a graph: adds its inputs, and notes that it ran."""

    def __init__(self, *fails: BaseException) -> None:
        self.runs = 0
        self._fails = list(fails)

    def __call__(self, inputs: list[Any]) -> torch.Tensor:
        if self._fails:
            raise self._fails.pop(0)
        self.runs += 1
        return inputs[0] + inputs[1]


WEIGHT, X = torch.ones(1), torch.ones(2, 3)


def test_a_capture_that_lacks_memory_is_made_once_more():
    manager, events, _, plain = failing(out_of_memory())
    answer = manager.record_function([WEIGHT, X], 7)
    assert answer == "captured"
    assert [event.kind for event in events] == ["capture"]
    assert plain.runs == 0


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        ([out_of_memory(), out_of_memory()], "CUDA out of memory. Tried to allocate 9 GiB."),
        ([not_permitted()], "CUDA error: operation not permitted when stream is capturing"),
    ],
)
def test_a_function_whose_capture_fails_runs_without_a_graph_from_then_on(fails, why):
    manager, events, _, plain = failing(*fails)
    manager.warmed_up_functions.add(7)
    answers = [manager._run([WEIGHT, X], 7) for _ in range(3)]

    assert all(torch.equal(answer, X + 1) for answer in answers)
    assert plain.runs == 3
    [event] = events
    assert (event.kind, event.function) == ("skip", "CUDA graph of compile 0/3")
    assert event.reason == f"no graph for [{event.signature}], because its capture failed: {why}"
    assert "2, 3" in event.signature
    assert not manager.roots[7]


@pytest.mark.parametrize(("is_warm", "next_answer"), [(True, "captured"), (False, "eager")])
def test_what_runs_in_no_way_raises_and_is_tried_again(is_warm: bool, next_answer: str):
    """By itself torch would count a run that failed as made, and capture what nothing prepared."""
    again = [out_of_memory() for _ in range(2)]
    manager, events, eager, _ = failing(*again, plain=Plain(out_of_memory()))
    if is_warm:
        manager.warmed_up_functions.add(7)
    with pytest.raises(torch.OutOfMemoryError):
        manager._run([WEIGHT, X], 7)

    assert events == []
    assert is_warm or (manager.current_node, manager.path_state) == (None, "none")
    assert manager._run([WEIGHT, X], 7) == next_answer
    assert is_warm or eager == ["run", "run"]


def test_a_function_that_writes_to_its_inputs_is_not_run_again():
    """The function may have written before the failure. The capture's state is still reset."""
    manager, events, _, plain = failing(out_of_memory())
    manager.ids_to_funcs[7].mutated_input_idxs = [1]
    with pytest.raises(torch.OutOfMemoryError):
        manager._run([WEIGHT, X], 7)
    assert (plain.runs, events, manager.current_node) == (0, [], None)
    assert manager._run([WEIGHT, X], 7) == "eager"


def test_an_error_of_the_model_is_no_failed_capture():
    """A run before a capture may fail only for lack of memory. Errors of the model are raised."""
    manager, events, _, plain = failing(RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        manager._run([WEIGHT, X], 7)
    assert (plain.runs, events) == (0, [])


def test_a_capture_in_another_thread_names_both():
    """Its graphs are that thread's own: captured again, in memory of their own."""
    manager, events, _ = hooked(trees(""))
    manager.record_function([WEIGHT, X], 7)
    in_a_thread(lambda: type(manager)().record_function([WEIGHT, X], 7), "my-pool_0")
    assert events[0].reason == ""
    assert events[1].reason == (
        "captured in thread 'my-pool_0', but earlier graphs were captured in 'MainThread'"
    )
    assert events[1].thread != events[0].thread


def of_one_thread() -> Any:
    """Return a stand-in for Inductor's module of 2.11: only the thread that made it has graphs."""
    module: Any = trees("")
    local = threading.local()
    local.tree_manager_containers, local.tree_manager_locks = {}, {}

    def get_obj(local: Any, attr_name: str) -> Any:
        if hasattr(local, attr_name):
            return getattr(local, attr_name)
        assert torch._C._is_key_in_tls(attr_name)
        return torch._C._get_obj_in_tls(attr_name)

    module.local, module.get_obj = local, get_obj
    return module


def test_every_thread_has_graphs_of_its_own():
    """In older torch, only one thread can capture, possibly the thread that loaded the artifact."""
    module = of_one_thread()
    hooked(module)
    found: list[Any] = []

    def look() -> None:
        found.extend(module.get_obj(module.local, "tree_manager_containers") for _ in range(2))
        found.append(module.get_obj(module.local, "tree_manager_locks"))

    look()
    in_a_thread(look)

    mine, mine_again, _, theirs, theirs_again, locks = found
    assert mine is mine_again
    assert theirs is theirs_again
    assert theirs is not mine
    assert locks["any device"].acquire(blocking=False)


@pytest.mark.parametrize("imports", [True, False])
def test_what_a_thread_held_for_its_graphs_is_not_freed_twice(imports: bool):
    """In torch 2.11, the end of a thread drops a reference that was never taken."""
    here, held = of_one_thread(), []
    hooked(here)

    def thread() -> None:
        module = here
        if imports:  # as Inductor's module does where it is imported
            module = of_one_thread()
            for name, value in vars(module.local).items():
                torch._C._stash_obj_in_tls(name, value)
            hooked(module)
        names = ("tree_manager_containers", "tree_manager_locks")
        held.extend(module.get_obj(module.local, name) for name in names)

    run_to_its_end(thread)

    [of_a_list] = [sys.getrefcount(each) for each in [object()]]
    assert [sys.getrefcount(each) >= of_a_list for each in held] == [True, True]


def run_to_its_end(call: Callable[[], None]) -> None:
    """Run it in a thread, and wait until nothing of that thread is left, torch's things included.

    `Thread.join` returns when Python is through with it.
    """
    task = Path("/proc/self/task", str(in_a_thread(call).native_id))
    wait_until("the thread has ended", lambda: not task.exists())


def test_sizes_that_the_app_leaves_out_are_named_once():
    """By its `cudagraph_capture_sizes`: they are to run without a graph, and the report says so."""
    module = trees("")
    _, events, _ = hooked(module)
    answers = [module.is_cudagraph_capture_sizes(key) for key in (8, 3, 3, (8, 5))]
    assert answers == [True, False, False, False]
    assert [(event.kind, event.reason.partition(" is not")[0]) for event in events] == [
        ("skip", "size 3"),
        ("skip", "size (8, 5)"),
    ]


def test_memory_is_what_was_missing_however_it_is_said():
    """By torch, by CUDA, and below what somebody made of it; not by a word in any error."""
    wrapped = ValueError("the answer of the model")
    wrapped.__cause__ = out_of_memory()
    instead = ValueError("what was raised from None, instead")
    instead.__context__, instead.__suppress_context__ = out_of_memory(), True
    errors = [
        out_of_memory(),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"),
        RuntimeError("run_func_ failed: CUDA out of memory. Tried to allocate 9 GiB"),
        wrapped,
        instead,
        RuntimeError("out of paper"),
        ValueError("CUDA error: out of memory"),
        None,
    ]

    answers = [cuda_graphs.ran_out_of_memory(error) for error in errors]

    assert answers == [True, True, True, True, False, False, False, False]


def test_torch_has_what_is_hooked():
    from torch._inductor import cudagraph_trees, cudagraph_utils

    manager = cudagraph_trees.CUDAGraphTreeManager

    assert manager.record_function.__code__.co_argcount == 3
    assert manager.run_eager.__code__.co_argcount == 3
    assert manager._run.__code__.co_argcount == 3
    assert isinstance(manager.current_node, property)
    assert cudagraph_trees.is_cudagraph_capture_sizes.__code__.co_argcount == 1
    assert {"model", "mutated_input_idxs"} <= {
        field.name for field in dataclasses.fields(cudagraph_trees.WrappedFunction)
    }
    assert callable(cudagraph_utils.log_cudagraph_skip_and_bump_counter)
    assert {"capture_begin", "capture_end"} <= set(dir(torch.cuda.CUDAGraph))


def test_an_entry_is_loaded_with_the_setting_that_it_captures_by(tmp_path: Path):
    """Its file does not say whether it captures, and torch asks when it is loaded."""
    x = torch.rand(8, 16)
    plain, capturing = (
        serve_warm.compile(torch.nn.Linear(16, 4).eval(), **arguments)
        for arguments in ({}, {"mode": "reduce-overhead"})
    )
    build(tmp_path / "plain", lambda: plain(x))
    build(tmp_path / "capturing", lambda: capturing(x))

    assert "settings" not in only_entry(tmp_path / "plain")["plan"]
    settings = {"triton.cudagraphs": True}
    assert only_entry(tmp_path / "capturing")["plan"]["settings"] == settings
    with started(tmp_path / "capturing"), torch.inference_mode():
        result = served(lambda: capturing(x))
    assert (result.level, result.reason, result.compiles) == (2, "", 0)


def only_entry(folder: Path) -> dict[str, Any]:
    """Return the record of the one entry in a folder."""
    [unit] = json.loads((folder / "index.json").read_text())["units"]
    [entry] = unit["entries"]
    found: dict[str, Any] = entry
    return found


def test_without_cuda_there_are_no_pools():
    """The function queries no CUDA device."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: tests/gpu measures its pools")
    assert cuda_graphs.pool_bytes() == {}
    assert cuda_graphs.memory() == ()


def test_memory_is_told_by_device_and_pool(monkeypatch: pytest.MonkeyPatch):
    """Memory outside graphs is in no pool. An unused device is left out."""
    two_gpus(
        monkeypatch,
        [
            {"device": 0, "segment_pool_id": (0, 0), "total_size": 100},
            {"device": 0, "segment_pool_id": (0, 1), "total_size": 20},
            {"device": 0, "segment_pool_id": (0, 1), "total_size": 3},
            {"device": 0, "segment_pool_id": (2, 0), "total_size": 4},
        ],
    )
    [memory] = cuda_graphs.memory()

    assert memory.device == "cuda:0"
    assert (memory.reserved_bytes, memory.reserved_peak_bytes) == (127, 254)
    assert memory.pools == {"0.1": 23, "2.0": 4}
    assert memory.pool_bytes == 27


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_another_allocator_is_not_asked(monkeypatch: pytest.MonkeyPatch, backend: str):
    """The allocator would raise an error, and a start would fail for a figure."""
    two_gpus(monkeypatch, None, backend=backend)
    assert cuda_graphs.pool_bytes() == {}
    assert cuda_graphs.memory() == ()


def test_a_capture_by_graph_trees_waits_for_one_that_began_before_them():
    """A capture that is running when they are imported lacks torch's lock (from 2.13 on)."""
    module = trees("")
    module.graph_capture_lock = threading.Lock()
    manager, _, _ = hooked(module)
    order = []

    def capture() -> None:
        manager.record_function([torch.rand(1), torch.rand(2)], 7)
        order.append("by the trees")

    with ThreadPoolExecutor(1) as thread:
        with cuda_graphs.alone():
            waiting = thread.submit(capture)
            assert not wait([waiting], timeout=0.5).done
            order.append("the first")
        waiting.result(60)

    assert order == ["the first", "by the trees"]


def test_the_stream_of_a_numbered_device_is_read_without_an_object(monkeypatch):
    """A device without a number can change from call to call, so torch is asked for it."""
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda n: 40 + n, raising=False)
    current = SimpleNamespace(cuda_stream=7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    numbered = cuda_graphs.reader_of_stream("cuda:2")
    any_device = cuda_graphs.reader_of_stream("cuda")
    assert (numbered(), any_device()) == (42, 7)
