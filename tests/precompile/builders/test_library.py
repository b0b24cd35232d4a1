# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Libraries: made by AOTInductor for one call, opened and called without torch's compiler."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from packaging.version import Version

from serve_warm.precompile.builders import cpp
from serve_warm.precompile.builders import library as build_library
from serve_warm.precompile.calls import signature as call_signature
from serve_warm.precompile.calls.compile_options import CAPTURES
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.libraries import run as library_run
from serve_warm.precompile.trace.captured import CompiledCall


class Perceptron(torch.nn.Module):
    """Two layers, one input that comes back, and a constant of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)
        self.register_buffer("offset", torch.ones(4))
        self.scale = 3.0

    def forward(self, x):
        hidden = torch.relu(self.first(x)) * torch.tensor([0.5, 2.0]).repeat(8)
        return {"y": self.second(hidden) * self.scale + self.offset, "x": x}


def made_of(callee, *tensors, **arguments):
    """Make a library for one call, as the dispatcher does."""
    with torch.inference_mode():
        signature, found = call_signature.describe(tensors, {})
        function = signature.function("entry")
        return build_library.make(function, callee, found, {"dynamic": False, **arguments})


def run(fn, callee, *tensors):
    with torch.inference_mode():
        return fn(callee, *tensors)


def eagerly(callee, *tensors):
    return run(lambda callee, *given: callee(*given), callee, *tensors)


class Case(NamedTuple):
    """A model, an input and the library for both."""

    model: torch.nn.Module
    x: torch.Tensor
    made: CompiledCall


@pytest.fixture(scope="module")
def perceptron() -> Case:
    torch.manual_seed(0)
    model, x = Perceptron().eval(), torch.randn(3, 8)
    return Case(model, x, made_of(model, x))


@pytest.fixture
def library(perceptron: Case, tmp_path: Path) -> Path:
    return written(perceptron.made, tmp_path)


def written(made: CompiledCall, folder: Path) -> Path:
    path = folder / "library.so"
    path.write_bytes(made.data)
    return path


# Weights --------------------------------------------------------------------------------------


def loaded(model):
    model.load_state_dict(Perceptron().state_dict())


def exchanged(model):
    model.first.weight.data = torch.randn(16, 8)


def replaced(model):
    model.first.weight = torch.nn.Parameter(torch.randn(16, 8))


def written_over(model):
    with torch.no_grad():
        model.second.bias.fill_(5.0)


def tied(model):
    model.offset = model.second.bias.data


@pytest.mark.slow
@pytest.mark.parametrize("change", [loaded, exchanged, replaced, written_over, tied])
def test_a_call_sees_the_weights_of_that_moment(perceptron, library, change):
    """However a weight was exchanged, and with the library's file gone, the next call is right."""
    fn = library_run.load(library, perceptron.made.plan)
    library.unlink()
    model = Perceptron().eval()
    before = run(fn, model, perceptron.x)["y"]
    change(model)
    after = run(fn, model, perceptron.x)["y"]
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, eagerly(model, perceptron.x)["y"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: model.double(), "float64"),
        (lambda model: setattr(model.first, "weight", torch.nn.Parameter(torch.ones(9, 8))), "9"),
        (
            lambda model: setattr(model, "first", torch.nn.Identity()),
            "not the same as at build time",
        ),
        (lambda model: setattr(model.second, "bias", None), "None"),
    ],
)
def test_a_module_that_differs_computes_nothing(perceptron, change, said):
    """Weights of another type or shape are refused before native code reads them."""
    model = Perceptron().eval()
    change(model)
    with pytest.raises(NoEntry, match=said):
        run(perceptron.made.fn, model, perceptron.x)


@pytest.mark.slow
def test_values_that_were_read_are_facts(perceptron):
    other = Perceptron().eval()
    other.scale = 4.0
    assert perceptron.made.facts.broken(perceptron.model) == ""
    assert "callee.scale is float 4.0" in perceptron.made.facts.broken(other)
    assert __name__ in perceptron.made.sources


class Held(torch.nn.Module):
    """Holds a tensor, and computes with it and with its argument."""

    def __init__(self, do: str, held: torch.Tensor) -> None:
        super().__init__()
        self.do, self.held = do, held

    def forward(self, x):
        if self.do == "returns":
            return x + 1, self.held
        if self.do == "takes and returns":
            return self.held * 2, self.held
        if self.do == "returns the argument":
            return self.held * 2, x
        return x + self.held


@pytest.mark.long
def test_an_argument_that_the_module_held_at_the_build_is_not_taken_for_what_it_holds():
    """A replica's first input and its module's tensor are two."""
    x = torch.randn(3, 8)
    made = made_of(Held("takes and returns", x), x)
    model, other = Held("takes and returns", torch.randn(3, 8)), torch.randn(3, 8)
    ours, eager = run(made.fn, model, other), eagerly(model, other)
    torch.testing.assert_close(ours, eager)
    assert ours[1] is eager[1]


@pytest.mark.parametrize("do", ["both", "returns", "returns the argument"])
def test_a_tensor_that_stands_for_two_has_no_library(do):
    """The graph treats the argument and the module's tensor as one, but later they may differ."""
    x = torch.randn(3, 8)
    with pytest.raises(NoEntry, match="are the same object"):
        made_of(Held(do, x), x)


@pytest.mark.parametrize(
    "source",
    [
        "G['TABLE']",
        "L['t0'].grad",
        "L['t0s']",
        "dict(type(L['callee']).__dict__)['table']",
        "L['callee'].tables[-1]",
        "dict.__getitem__(L['callee'].tables, list(dict.keys(L['callee'].tables))[0])",
        "<ephemeral: a view>",
        "None",
    ],
)
def test_a_source_that_no_plan_can_follow_is_refused(source: str):
    """By Dynamo's name of it, which the reason quotes."""
    with pytest.raises(NoEntry, match="which is neither an argument nor reachable from") as refused:
        build_library._place(source, Deep())
    assert source in str(refused.value)


class Tables:
    """A plain object that holds a tensor."""

    def __init__(self) -> None:
        self.row = torch.randn(8)


class Deep(torch.nn.Module):
    """Holds tensors in lists, dicts, plain objects and modules that are not registered."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = [torch.randn(8), torch.randn(8)]
        self.keyed = {"a": torch.randn(8)}
        self.config = Tables()
        self.unregistered = [torch.nn.Linear(8, 8)]
        vars(self)["odd name"] = torch.randn(8)
        self.initial = self.mask = torch.ones(8)  # the forward takes it by one of its names
        self.first = self.unregistered[0].bias

    def forward(self, x):
        x = self.unregistered[0](x) + self.listed[1] * self.keyed["a"] + self.config.row
        return x * getattr(self, "odd name") * self.mask


def changed_deeply(model: Deep) -> None:
    model.listed = [torch.randn(8), torch.randn(8)]
    model.keyed["a"] = torch.randn(8)
    model.config = Tables()
    model.unregistered[0] = torch.nn.Linear(8, 8)
    vars(model)["odd name"] = torch.randn(8)
    model.mask, model.initial = torch.full((8,), 2.0), torch.full((8,), 3.0)


@pytest.mark.long
def test_tensors_in_lists_dicts_and_plain_objects_are_found(tmp_path):
    """They are read at each call, by the name that the forward takes them by, or are missing."""
    model, x = Deep().eval(), torch.randn(3, 8)
    made = made_of(model, x)
    fn = library_run.load(written(made, tmp_path), json.loads(json.dumps(made.plan)))

    for _ in range(2):
        torch.testing.assert_close(run(fn, model, x), eagerly(model, x))
        changed_deeply(model)
    del model.keyed["a"]
    with pytest.raises(NoEntry, match="not the same as at build time; missing: 'a'"):
        run(fn, model, x)


@pytest.mark.long
def test_weights_of_a_module_in_a_closure_are_found():
    """A function reaches them by its cells, at each call."""
    layers = [torch.nn.Linear(8, 8).eval()]

    def forward(x):
        return layers[0](x) + 1

    x = torch.randn(3, 8)
    made = made_of(forward, x)
    layers[0] = torch.nn.Linear(8, 8).eval()

    torch.testing.assert_close(run(made.fn, forward, x), eagerly(forward, x))


# Calls ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "x", [torch.randn(8, 3).t(), torch.randn(4, 8), torch.randn(3, 8, dtype=torch.float64)]
)
def test_tensors_that_differ_are_not_computed_with(perceptron, x):
    """Native code checks no strides, sizes or types; they are checked before it runs."""
    with pytest.raises(NoEntry, match="an input tensor of its graph is"):
        run(perceptron.made.fn, perceptron.model, x)


@pytest.mark.slow
def test_many_threads_call_one_library(perceptron):
    inputs = [torch.randn(3, 8) for _ in range(8)]
    eager = [eagerly(perceptron.model, x)["y"] for x in inputs]

    def call(number: int) -> float:
        worst = 0.0
        for _ in range(200):
            ours = run(perceptron.made.fn, perceptron.model, inputs[number])["y"]
            worst = max(worst, float((ours - eager[number]).abs().max()))
        return worst

    with ThreadPoolExecutor(8) as pool:
        worst = max(pool.map(call, range(8), timeout=120))

    assert worst < 1e-4


@pytest.mark.slow
def test_a_library_that_cannot_be_opened_is_no_entry(perceptron, library):
    """A file that is no library, a plan of another kind and a class that is gone are reasons."""
    path, plan = library, dict(perceptron.made.plan)

    for file, other in (
        (path.with_name("missing.so"), plan),
        (path, {}),
        (path, {**plan, "outputs": 3}),
        (path, {**plan, "inputs": [{"kind": "argument", "colour": "red"}]}),
        (path, {**plan, "inputs": [{"kind": "star"}]}),
        (path, {**plan, "inputs": [{"kind": "path", "path": [["eval", "1"]]}]}),
        (path, {**plan, "result": ["fields", ["gone", "Gone"], "gone.Gone", []]}),
        (path, {**plan, "result": ["fields", ["subprocess", "Popen"], "subprocess.Popen", []]}),
    ):
        with pytest.raises(NoEntry):
            library_run.load(file, other)


def decorated(forward):
    @functools.wraps(forward)
    def wrapper(*args, **kwargs):
        return forward(*args, **kwargs)

    return wrapper


class Shared(torch.nn.Module):
    """Parameters that are neighbours in one storage, the same memory, or one and the same."""

    def __init__(self) -> None:
        super().__init__()
        both = torch.randn(2, 4)
        self.a, self.b = torch.nn.Parameter(both[0]), torch.nn.Parameter(both[1])
        self.same_memory = torch.nn.Parameter(both[1])
        self.tied = self.a

    @decorated
    def forward(self, x):
        return x * self.a + self.b - self.same_memory * 3 + self.tied


@pytest.mark.long
def test_weights_on_one_storage_are_kept_apart():
    """Also with a strided input, a decorated forward, and after a weight has left the storage."""
    model, x = Shared().eval(), torch.randn(4, 3).t()
    made = made_of(model, x)
    for _ in range(2):
        torch.testing.assert_close(run(made.fn, model, x), eagerly(model, x))
        model.same_memory.data = torch.randn(4)


class Recorder(torch.nn.Module):
    """Writes into its buffer, a plain tensor of its own and its input, which it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.calls = torch.zeros(())

    def step(self, x):
        self.total.add_(x.sum(0))
        self.calls.add_(1)
        x.mul_(2)
        return x, self.total + 1


@pytest.mark.long
def test_what_is_written_in_place_is_written():
    """A call whose inputs overlap is refused before anything is written."""
    ours, eager, x = Recorder(), Recorder(), torch.randn(3, 4)
    made = made_of(ours.step, x)
    assert not ours.total.any()  # making it left no trace
    assert not ours.calls.any()
    mine, other = x.clone(), x.clone()

    for _ in range(2):
        out = run(made.fn, ours.step, mine)
        expected = eagerly(eager.step, other)

    assert out[0] is mine
    torch.testing.assert_close(
        [mine, out[1], ours.total, ours.calls], [other, expected[1], eager.total, eager.calls]
    )
    ours.total = mine[0]
    with pytest.raises(NoEntry, match="overlaps"):
        run(made.fn, ours.step, mine)


@dataclasses.dataclass
class Output:
    y: torch.Tensor
    parts: Any
    note: str = "none"


class Pair(NamedTuple):
    weight: torch.Tensor
    view: torch.Tensor


class Aliases(torch.nn.Module):
    """Returns its weight, a view of it and of the input, one tensor twice, and classes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        y = x @ self.weight
        found = torch.max(y, 0)
        return Output(y, [Pair(self.weight, self.weight.t()), x[0], found, (y, y.view(-1), None)])


@pytest.mark.long
def test_outputs_share_memory_as_those_of_eager_do():
    """A weight that is returned is that weight, views are views, and classes are the callee's."""
    model, x = Aliases().eval(), torch.randn(4, 4)
    made = made_of(model, x)
    assert json.loads(json.dumps(made.plan)) == made.plan

    ours, eager = run(made.fn, model, x), eagerly(model, x)

    assert type(ours) is Output
    assert ours.note == "none"
    pair, row, found, (y, flat, none) = ours.parts
    assert none is None
    assert type(pair) is Pair
    assert pair.weight is model.weight
    assert pair.view.data_ptr() == model.weight.data_ptr()
    assert row.data_ptr() == x.data_ptr()
    assert y is ours.y
    assert flat.data_ptr() == y.data_ptr()
    assert type(found) is type(eager.parts[2])
    torch.testing.assert_close(
        [ours.y, pair.view, *found], [eager.y, model.weight.t(), *eager.parts[2]]
    )


class Rows(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.layer(x).sum(0) * x.shape[0], x.new_zeros(x.shape[0])


def can_be_dynamic() -> bool:
    return Version(torch.__version__).release >= (2, 12)


@pytest.mark.slow
@pytest.mark.skipif(can_be_dynamic(), reason="this torch makes libraries of dynamic sizes")
def test_a_torch_without_libraries_of_dynamic_sizes_makes_none():
    """With 2.11 such a call gets a reason, so that level 2 can take it."""
    with pytest.raises(NoEntry):
        made_of(Rows().eval(), torch.randn(3, 8), dynamic=True)


@pytest.mark.long
@pytest.mark.skipif(not can_be_dynamic(), reason="this torch makes none of dynamic sizes")
def test_sizes_that_are_dynamic_are_taken_as_they_come():
    """One library serves the sizes that its conditions allow, and lists the conditions."""
    model = Rows().eval()
    made = made_of(model, torch.randn(3, 8), dynamic=True)
    dynamic = call_signature.Dynamic(conditions=tuple(made.conditions))

    assert dynamic.free(0) == ([0, 0], []) or 0 in dynamic.free(0)[0]
    assert not dynamic.holds([torch.randn(1, 8)])
    for rows in (2, 5, 17):
        x = torch.randn(rows, 8)
        assert dynamic.holds([x])
        torch.testing.assert_close(run(made.fn, model, x), eagerly(model, x))
    with pytest.raises(NoEntry, match="float64"):
        run(made.fn, model, torch.randn(5, 8).double())


SHARED = "shares memory with input 0, at offset 0 with strides (1, 3)"
UNSHARED = "shares no memory with an input or an earlier output"


def graph_of(eager: Any) -> Any:
    """Return a graph that ran eagerly, for a call that nothing captures."""
    graph = build_library._Graph({CAPTURES: False}, None, {})
    graph._graph = eager
    graph._run_eagerly(torch.ones(2, 3))
    return graph


@pytest.mark.parametrize(
    ("eager", "library", "copies"),
    [
        (lambda x: [x + 1, x.square()], lambda x: [x + 1, x.t()], [1]),
        (lambda x: [x + 1, x.t()], lambda x: [x + 1, x.t()], []),
        (lambda x: [x + 1, x.square()], lambda x: [x + 1, x.square()], []),
        # torch.compile returns such a copy of an earlier output too.
        (lambda x: [y := x + 1, y.t()], lambda x: [x + 1, x.t() + 1], []),
    ],
    ids=["only in the library", "in both", "in neither", "only in eager, with an output"],
)
def test_an_output_that_shares_memory_only_in_the_library_is_copied(eager, library, copies):
    assert graph_of(eager).outputs_to_copy(lambda inputs: library(*inputs)) == copies


def test_an_output_that_no_longer_shares_memory_with_an_input_is_refused():
    """The caller may keep the output as a view of a buffer."""
    graph = graph_of(lambda x: [x + 1, x.t()])
    with pytest.raises(NoEntry) as refused:
        graph.outputs_to_copy(lambda inputs: [inputs[0] + 1, inputs[0].square()])
    assert str(refused.value) == f"its output 1 {UNSHARED}, but the eager output {SHARED}"


# What no library can do -----------------------------------------------------------------------

SEEN: list[Any] = []


class SideEffects(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.seen: list[Any] = []
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        if self.kind == "list":
            self.seen.append(x)
        if self.kind == "global":
            SEEN.append(x)
        if self.kind == "buffer":
            self.total = x.sum(0)
        return x + 1


class Switch:
    """A mode that a library may set during its computation, and must restore."""

    def __init__(self) -> None:
        self.on, self.given, self.names = False, None, ["x"]


SWITCH = Switch()


class Switching(torch.nn.Module):
    def __init__(self, left: str = "") -> None:
        super().__init__()
        self.left = left

    def forward(self, x):
        SWITCH.on, SWITCH.given = True, {"x": x}
        y = x + 1 if SWITCH.on else x - 1
        SWITCH.on, SWITCH.given = False, None
        if self.left == "number":
            SWITCH.on = 0
        if self.left == "list":
            SWITCH.names = ["x"]
        if self.left == "new":
            SWITCH.other = None
        return y


@pytest.mark.long
def test_a_forward_that_sets_back_what_it_set_has_a_library():
    """An object that ends as it was is not changed: so transformers marks a forward under way."""
    x = torch.randn(3, 4)
    made = made_of(Switching().eval(), x)
    assert torch.equal(made.fn(Switching().eval(), x), x + 1)
    assert vars(SWITCH) == vars(Switch())


TABLE = torch.ones(4)


class Holder:
    def __init__(self, y: torch.Tensor) -> None:
        self.y = y


REFUSED: dict[str, tuple[Any, str]] = {
    "a list": (SideEffects("list"), "it changes .*seen"),
    "a global list": (SideEffects("global"), "it changes .*SEEN"),
    "a buffer": (SideEffects("buffer"), "it changes .*_buffers"),
    # Equal is not the same: 0 is not False, and another list is another object to its owner.
    "0 for False": (Switching("number"), "it changes .*SWITCH"),
    "an equal list": (Switching("list"), "it changes .*SWITCH"),
    "a new attribute": (Switching("new"), "it changes .*SWITCH"),
    # No path from the callee finds a global; an object may be more than the sum of its parts.
    "a global": (lambda x: x + TABLE, "TABLE, which is neither an argument nor reachable from"),
    "an object": (lambda x: Holder(x + 1), "Holder, which serve_warm cannot rebuild"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_library_can_do_is_refused(name):
    """A library does not repeat Python's side effects, and the attempt leaves none behind."""
    callee, reason = REFUSED[name]
    with pytest.raises(NoEntry, match=reason):
        made_of(callee, torch.randn(3, 4))
    assert (getattr(callee, "seen", []), SEEN, vars(SWITCH)) == ([], [], vars(Switch()))


@torch.library.custom_op("serve_warm_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.mark.long
def test_an_operator_of_python_is_refused():
    """An operator without a C interface would be called by torch. The reason names the line."""

    class Custom(torch.nn.Module):
        def forward(self, x):
            return twice(x) + 1

    line = Custom.forward.__code__.co_firstlineno + 1
    where = rf"serve_warm_tests::twice \(test_library.py:{line}\): use torch operators"
    with pytest.raises(NoEntry, match=where):
        made_of(Custom(), torch.randn(3, 4))


@pytest.mark.long
def test_an_operator_that_has_an_equal_one_has_a_library():
    """Models of images and text check their masks by `_is_all_true`."""

    class Checked(torch.nn.Module):
        def forward(self, x):
            return torch.where(torch.ops.aten._is_all_true(x > 0), x @ x.T, -x @ x.T)

    made, x = made_of(Checked(), torch.rand(3, 3) + 1), torch.rand(3, 3) + 1

    for given in (x, x - 2):
        torch.testing.assert_close(made.fn(Checked(), given), Checked()(given))


class AsOnAGpu(library_run.NativeOnGpu):
    """Opens and calls a library for the CPU like one for a GPU."""

    def _create(self, model: Any) -> int:
        self.device = "cpu"
        return super()._create(model)

    def _stream(self) -> None:
        return None


@pytest.mark.slow
@pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="a build of torch for CUDA opens such a container only with a driver",
)
def test_a_library_runs_as_one_for_a_gpu_is_run(perceptron, library, monkeypatch):
    """It is a container of one model. Opening one sets the thread's device, which is given back."""
    given_back = []

    @contextmanager
    def of_device(device: str) -> Iterator[None]:
        yield
        given_back.append(device)

    monkeypatch.setattr(torch.cuda, "device", of_device)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))

    fn = library_run.load(library, {**perceptron.made.plan, "device": "cpu:0"})

    wanted = eagerly(*perceptron[:2])
    outputs = [run(fn, *perceptron[:2]) for _ in range(2)]
    assert isinstance(fn.native, library_run.NativeOnGpu)
    assert given_back == ["cpu:0"]
    for output in outputs:
        torch.testing.assert_close(output["y"], wanted["y"])


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (
            "cpu",
            "a part of it runs on the CPU, and launching a CUDA graph does not repeat that part",
        ),
        ("meta", ""),
    ],
)
def test_what_is_on_the_cpu_in_part_is_not_captured(device: str, reason: str):
    """A launch would return the CPU result of the capture."""
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    for node in graph.graph.nodes:
        node.meta["example_value"] = torch.empty(2, device="meta")
    last = [node for node in graph.graph.nodes if node.op == "call_function"][-1]
    last.meta["example_value"] = torch.empty(2, device=device), 3
    call = build_library._Graph({CAPTURES: True}, None, {})
    call._graph = graph
    assert call._why_not_captured([]) == reason


class Failing(AsOnAGpu):
    """Says that it has failed, as a library does: by a number."""

    def _start(self, *_: Any) -> int:
        return 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("short", "raised"), [(1, torch.OutOfMemoryError), (0, library_run.LibraryFailed)]
)
def test_a_library_for_a_gpu_that_fails_for_memory_says_so(
    perceptron, library, monkeypatch, short, raised
):
    """Its own words name a line of torch, at the most: torch's allocator is asked."""
    times = itertools.count(4, short)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: {"num_ooms": next(times)})
    native = Failing(library, device="cuda:0", inputs=1, outputs=perceptron.made.plan["outputs"])
    with pytest.raises(RuntimeError) as failed:
        native([torch.ones(1)])

    assert type(failed.value) is raised
    assert "the library of a compiled call failed" in str(failed.value)


@pytest.mark.slow
def test_a_library_for_a_gpu_that_is_not_there_has_no_entry(perceptron, library, monkeypatch):
    """The call is compiled as if there were none, and not answered with an error of CUDA's."""

    def device(_: str) -> None:
        raise RuntimeError("CUDA error: invalid device ordinal")

    monkeypatch.setattr(torch.cuda, "device", device)

    why = "its library cannot run on cuda:1: CUDA error: invalid device"
    with pytest.raises(NoEntry, match=why):
        library_run.load(library, {**perceptron.made.plan, "device": "cuda:1"})


# Calls that fail -------------------------------------------------------------------------------


class Lookup(torch.nn.Module):
    """Fails for an index that its table does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(4, 8))

    def forward(self, index):
        return self.table[index] * 2


@pytest.fixture(scope="module")
def lookup() -> Case:
    model, index = Lookup().eval(), torch.tensor([1, 3])
    return Case(model, index, made_of(model, index))


OUT_OF_RANGE = torch.tensor([1, 9])


@pytest.mark.long
@pytest.mark.parametrize("kind", [library_run.Native, AsOnAGpu])
def test_calls_that_fail_leak_no_models(lookup, tmp_path, monkeypatch, kind):
    """After a failure a model can run again, and holds no tensor of the failed call."""
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    made: list[int] = []
    create = kind._create
    monkeypatch.setattr(kind, "_create", lambda *given: made.append(1) or create(*given))
    native = kind(written(lookup.made, tmp_path), device="cuda:0", inputs=2, outputs=1)
    order = [given["kind"] for given in lookup.made.plan["inputs"]]
    wrong = OUT_OF_RANGE.clone()

    def call(run: Any, index: torch.Tensor) -> torch.Tensor:
        return run([index if kind == "argument" else lookup.model.table for kind in order])[0]

    with torch.inference_mode():
        for _ in range(50):
            with pytest.raises(library_run.LibraryFailed):
                call(native, wrong)
        with pytest.raises(library_run.LibraryFailed), native.reserve() as run:
            call(run, wrong)
        right = call(native, lookup.x)

    assert len(made) == 1
    torch.testing.assert_close(right, lookup.model(lookup.x))
    assert torch._C._storage_Use_Count(wrong.untyped_storage()._cdata) <= 2


@pytest.mark.long
def test_a_call_that_fails_prints_nothing(lookup: Case, capfd: pytest.CaptureFixture[str]):
    """The error says why, in one line; stderr belongs to the application."""
    with pytest.raises(library_run.LibraryFailed) as failed:
        run(lookup.made.fn, lookup.model, OUT_OF_RANGE)
    assert capfd.readouterr().err == ""
    assert "failed: index out of bounds" in str(failed.value)
    assert "\n" not in str(failed.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "cleanly"), [({}, True), ({"writes": True}, False), ({"draws": True}, False)]
)
def test_a_failure_says_whether_the_call_may_be_made_again(lookup, tmp_path, said, cleanly):
    fn = library_run.load(written(lookup.made, tmp_path), {**lookup.made.plan, **said})
    with pytest.raises(library_run.LibraryFailed) as failed:
        run(fn, lookup.model, OUT_OF_RANGE)
    assert isinstance(failed.value, library_run.LibraryFailedCleanly) == cleanly


@pytest.mark.parametrize(("compute", "draws"), [(torch.relu, False), (torch.rand_like, True)])
def test_a_plan_says_whether_random_numbers_are_drawn(compute: Any, draws: bool):
    """The build sees it in the generator, whose numbers it gives back."""
    graph = build_library._Graph({CAPTURES: False}, None, {})
    graph._graph = lambda x: [compute(x)]
    before = torch.get_rng_state()
    graph._run_eagerly(torch.ones(3))
    assert graph._draws is draws
    assert torch.equal(torch.get_rng_state(), before)


OF_2_11 = """\
  } catch (const std::exception& e) {             \\
    std::cerr << "Error: " << e.what() << '\\n';   \\
    return AOTI_RUNTIME_FAILURE;                  \\
"""


def test_a_library_keeps_the_text_that_it_does_not_print():
    """In 2.11 the interface has no place for the text. Other source is unchanged."""
    later = f"static thread_local std::string g_aoti_last_error;\n{OF_2_11}"
    of_2_11, of_later = cpp.without_prints(OF_2_11), cpp.without_prints(later)
    assert "std::cerr" not in of_2_11 + of_later
    assert "AOTInductorGetLastError" in of_2_11
    assert "g_aoti_last_error = e.what();   \\\n" in of_2_11
    assert of_later.count("g_aoti_last_error") == 1
    assert cpp.without_prints("int x;") == "int x;"


CHECKED = """\
AOTI_NOINLINE static void check_input_0(
    AtenTensorHandle* input_handles
) {
    ConstantHandle arg0_1 = ConstantHandle(input_handles[0]);

    if (1024 != arg0_1.sizes()[0]) {
        throw std::runtime_error("unmatched dim value");
    }
}

static bool _check_aoti_runtime_check_inputs_env() {
    return false;
}

AOTI_NOINLINE static void __check_inputs_outputs(
    AtenTensorHandle* input_handles,
    AtenTensorHandle* output_handles) {
    if (!_check_aoti_runtime_check_inputs_env()){
        return;
    }
    check_input_0(input_handles);
}
    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg0_1, {64L, }, {1L, }, ""); }
    int kept;
"""


def test_a_library_has_no_checks_that_nobody_runs(monkeypatch: pytest.MonkeyPatch):
    """The dispatcher has compared the inputs. What surrounds the checks stays, and other code."""
    changed = cpp.without_checks(CHECKED)
    assert not any(each in changed for each in ("check_input_0", "unmatched", "assert_size_stride"))
    assert changed.count("_check_aoti_runtime_check_inputs_env()") == 2
    assert changed.endswith("        return;\n    }\n}\n    int kept;\n")
    unknown = CHECKED.replace("    check_input_0(input_handles);", "    check_input_0(other);")
    assert cpp.without_checks(unknown) == unknown
    monkeypatch.setenv(cpp.CHECK_VARIABLE, "1")  # a person wants them
    assert cpp.without_checks(CHECKED) == CHECKED


@pytest.mark.slow
def test_the_checks_are_those_that_torch_writes(lookup: Case):
    assert b"unmatched dim value" not in lookup.made.data


@pytest.mark.slow
@pytest.mark.parametrize(("option", "refused"), [("-static-libstdc++", True), ("-shared", False)])
def test_a_library_with_a_cpp_runtime_of_its_own_is_refused(option, refused, tmp_path):
    """Opened beside torch's it would end the process, and with it the build."""
    source, library = tmp_path / "size.cpp", tmp_path / "size.so"
    source.write_text(
        "#include <string>\n"
        'extern "C" int size(const char* text) { return std::string(text).append(text).size(); }\n'
    )
    command = ["g++", "-shared", "-fPIC", option, str(source), "-o", str(library)]
    subprocess.run(command, check=True)

    with pytest.raises(NoEntry, match="shared library") if refused else nullcontext():
        cpp._refuse_another_runtime(library.read_bytes())


@pytest.mark.slow
def test_a_plan_for_captured_calls_is_checked_without_a_library():
    """On a GPU, a CUDA graph captures each library. No library exists when its plan is checked."""
    linear, x = torch.nn.Linear(4, 4).eval(), torch.ones(2, 4)
    with torch.inference_mode():
        made = build_library.make(lambda callee, t0: callee(t0), linear, [x], {"dynamic": False})
    plan = {**made.plan, "device": "cuda:0", "captures": ""}
    function = library_run.function_of(plan, None)
    assert function.inputs.read(linear, [x])[-1] is not None
