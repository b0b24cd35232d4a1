# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How a library is made for one call: Dynamo captures a graph, AOTInductor compiles it.

The capture is the one of level 2, so that a library stands on the same facts as an entry. What
Dynamo's bytecode does around the graph becomes a plan instead, as data: where each input comes from
and what is made of the outputs. What no plan can say is refused: a forward that changes objects
other than tensors, results of classes that cannot be built from their parts.

Weights are inputs of the graph, not constants, so that no library holds any
(`serve_warm.precompile.aoti_library`). Seen in torch 2.11 to 2.13:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/compile_fx.py
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from serve_warm import _private_folders
from serve_warm.precompile import aot_compile, aoti_cpp, aoti_graphs, aoti_library, facts
from serve_warm.precompile.aoti_library import Input
from serve_warm.precompile.call_signature import module_of
from serve_warm.precompile.eager_check import copy_tensors
from serve_warm.precompile.entry_function import Plan
from serve_warm.precompile.facts import NoEntry
from serve_warm.precompile.names import locate, name_of_class
from serve_warm.precompile.trace_notes import path_of, side_effects

SMALL = {
    "aot_inductor.enable_line_tables": False,
    "aot_inductor.enable_frame_pointer": False,
}
"""Settings that keep a library small: 0.3 MB without tables for profilers, 1.5 MB with them. Only
those that this torch has are set; 2.11 has neither."""

DEVICES = ("cpu", "cuda")
"""Kinds of devices that a library is made for; all of its inputs are on one device."""

ON_A_GPU = {"aot_inductor.embed_kernel_binary": True}
"""Kernels go into the library, which has no other files."""


def make(
    function: Callable[..., Any], callee: Any, tensors: Sequence[Any], arguments: Mapping[str, Any]
) -> aot_compile.Made:
    """Compile `function(callee, *tensors)` into a library, with `arguments` of torch.compile.

    Raises:
        NoEntry: there is a graph break, or something in it that a library cannot do.
    """
    with aot_compile.as_reasons():
        library = _Library(function, callee, tensors, arguments, compiler="now")
        run = library.run(callee, tensors)
        return library.made(callee, run)


class Begun:
    """A library whose C++ is being compiled, for a call of its kind to finish."""

    def __init__(
        self,
        function: Callable[..., Any],
        callee: Any,
        tensors: Sequence[Any],
        arguments: Mapping[str, Any],
    ) -> None:
        """Do the part of `make` before the C++ compiler, and have that run in the background.

        Raises:
            NoEntry: as `make` does.
        """
        with aot_compile.as_reasons():
            self._library = _Library(function, callee, tensors, arguments, compiler="background")
            self._library.run(callee, tensors)
            self._library.graph.compile()
            self._library.graph.forget_run()

    @property
    def captured(self) -> aot_compile.Captured:
        """What Dynamo found for the call that it was begun for."""
        return self._library.captured

    def finish(self, callee: Any, tensors: Sequence[Any]) -> aot_compile.Made:
        """Wait for the C++ compiler, and do the rest of `make` for this call.

        Raises:
            NoEntry: as `make` does.
        """
        with aot_compile.as_reasons():
            return self._library.made(callee, self._library.run(callee, tensors))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
    """One call of the bytecode around a graph, with eager in the graph's place."""

    given: Sequence[Any]
    returned: Any
    plan: Plan


class _Library:
    """A graph that Dynamo has captured for one call, and the library that it becomes."""

    def __init__(
        self,
        function: Callable[..., Any],
        callee: Any,
        tensors: Sequence[Any],
        arguments: Mapping[str, Any],
        *,
        compiler: aoti_cpp.Compiler,
    ) -> None:
        with side_effects() as changes:
            self.graph = _Graph(_settings(arguments), callee, changes, compiler=compiler)
            settings = {"backend": self.graph.take, "dynamic": arguments.get("dynamic")}
            self.captured = aot_compile.capture(function, callee, tensors, settings)

    def run(self, callee: Any, tensors: Sequence[Any]) -> _Run:
        """Return what a call gives, and the plan for such calls."""
        # With tensors that nothing else holds: the callee may hold those of this call, and what it
        # returns would not say which of the two it is.
        given = copy_tensors(tensors)
        returned = self.captured.entry.fn(callee, *given)
        return _Run(given=given, returned=returned, plan=self.graph.plan(given, returned))

    def made(self, callee: Any, run: _Run) -> aot_compile.Made:
        """Return the library, opened and held against the run."""
        data, plan = self.graph.compile()(), run.plan
        plan["sha256"] = hashlib.sha256(data).hexdigest()
        # Not where others might exchange it before it is opened.
        with _private_folders.temporary_folder() as folder:
            path = folder / "library.so"
            path.write_bytes(data)
            fn = aoti_library.load(path, plan)
        self.graph.refuse_other_inputs(fn.inputs(callee, run.given))
        self.graph.refuse_other_aliases(fn.native)
        self.graph.refuse_other_result(fn.result, run.given, run.returned)
        return aot_compile.Made(
            fn=fn,
            data=data,
            plan=plan,
            facts=self.captured.facts,
            conditions=self.captured.conditions,
            sources=self.captured.sources,
        )


def _settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of Inductor that stand behind arguments of torch.compile."""
    from torch._inductor import config

    known: Any = config
    small = {name: value for name, value in SMALL.items() if name in known._config}
    given = {
        name.replace("-", "_"): value for name, value in aot_compile.options_of(arguments).items()
    }
    return {aot_compile.CAPTURES: config.triton.cudagraphs, **small, **given}


# The graph ------------------------------------------------------------------------------------


class _Graph:
    """What Dynamo hands to a backend, compiled; and one run of it, to see what goes in and out."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        callee: Any,
        changes: Mapping[str, None],
        *,
        compiler: aoti_cpp.Compiler = "now",
    ) -> None:
        # AOTInductor has no graphs: `graphed` captures what it makes.
        self._settings = {**settings, aot_compile.CAPTURES: False}
        self._captures = bool(settings[aot_compile.CAPTURES])
        self._callee = callee
        self._changes = changes
        self._compiler = compiler
        self._library: Callable[[], bytes] | None = None
        """Returns it, and waits for the C++ compiler first."""
        self._graph: Any = None
        self._fakes: list[Any] = []
        self._places: list[Input] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._aliases: list[str] = []
        self._written: list[bool] = []
        self._draws = False
        self._device = "cpu"

    def take(self, graph: Any, _inputs: Sequence[Any], **_: Any) -> Any:
        """Take a graph from Dynamo, as a backend does; compile it if its sizes are dynamic."""
        if self._changes:
            raise NoEntry(f"it changes {', '.join(self._changes)}, which a library cannot")
        if [*graph.parameters(), *graph.buffers()]:
            raise NoEntry("its graph holds a tensor as a constant")
        _without_sizes(graph)
        taken = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._fakes = list(map(_fake, taken))
        self._places = [_place(_source_of(node), self._callee) for node in taken]
        devices = sorted({str(fake.device) for fake in self._fakes})
        self._device = devices[0]
        kind = self._device.partition(":")[0]
        if len(devices) > 1 or kind not in DEVICES:
            raise NoEntry(
                f"it takes tensors on {' and '.join(devices)}, and a library is for one device, "
                f"{' or '.join(DEVICES)}"
            )
        if kind == "cuda":
            self._settings.update(ON_A_GPU)
        self._graph = graph
        # What Inductor finds out about sizes becomes a condition while Dynamo is at it, and not
        # later. A graph of static sizes is compiled when all else is known to be possible; 2.11
        # cannot do it any earlier, so that it makes no dynamic ones.
        if any(map(_is_dynamic, self._fakes)):
            self.compile()
        return _callable(self._run_eagerly)

    def compile(self) -> Callable[[], bytes]:
        """Compile the graph, if it is not yet; what is returned waits for the C++ compiler."""
        if self._library is None:
            self._library = aoti_cpp.compile_library(self._generate, compiler=self._compiler)
        return self._library

    def _generate(self) -> str:
        """Have torch compile the graph, and return where it says that the library is."""
        from torch._inductor.compile_fx import compile_fx_aot

        # The tensors that Dynamo traced with, in the mode they belong to: their symbols are those
        # of the conditions.
        mode = self._fakes[0].fake_mode
        graph = copy.deepcopy(self._graph)  # what compiles it also changes it
        with torch._guards.tracing(torch._guards.TracingContext(mode)):
            path: Any = compile_fx_aot(graph, self._fakes, config_patches=self._settings)
        _refuse_foreign(Path(path))
        return str(path)

    def forget_run(self) -> None:
        """Let go of the tensors of the last run."""
        self._inputs, self._outputs = [], []

    def _run_eagerly(self, *inputs: Any) -> list[Any]:
        """Stand in for the compiled graph in the bytecode around it, once."""
        self._inputs = [value for value in inputs if isinstance(value, torch.Tensor)]
        copies = copy_tensors(self._inputs, inference=False)
        versions = [copy._version for copy in copies]
        with self._same_random_numbers():
            before = self._random_state()
            outputs = list(self._graph(*copies))
            self._draws = any(map(_differ, self._random_state(), before))
        if not all(isinstance(output, torch.Tensor) for output in outputs):
            raise NoEntry("its graph computes something that is no tensor")
        self._written = [copy._version != was for copy, was in zip(copies, versions, strict=True)]
        self._aliases = _aliases(outputs, copies)
        # Where the graph returns one of its inputs, the caller gets that very tensor.
        by_id = {id(copy): given for copy, given in zip(copies, self._inputs, strict=True)}
        self._outputs = [by_id.get(id(output), output) for output in outputs]
        return self._outputs

    def plan(self, tensors: Sequence[Any], returned: Any) -> Plan:
        """Return the plan of a run that returned this.

        Raises:
            NoEntry: something in it can be said in no plan.
        """
        inputs = [
            _input(given, fake, place)
            for given, fake, place in zip(self._inputs, self._fakes, self._places, strict=True)
        ]
        # Later ones first: a tensor is best named by what the caller has in hands.
        known = {id(t): ["output", n] for n, t in reversed([*enumerate(self._outputs)])}
        known |= {id(t): ["input", n] for n, t in enumerate(self._inputs)}
        known |= {id(t): ["argument", n] for n, t in enumerate(tensors)}
        dynamic = any("*" in given.said for given in inputs)
        result = _plain(returned, known, dynamic=dynamic)
        plan: Plan = {
            "inputs": [_without_defaults(given) for given in inputs],
            "outputs": len(self._outputs),
            "result": result,
            "writes": any(self._written),
            "draws": self._draws,
        }
        return {**plan, **self._on_a_gpu(inputs)}

    def _on_a_gpu(self, inputs: Sequence[Input]) -> Plan:
        """Return the device, if it is not the CPU, and why it is not captured if it should be."""
        if self._device == "cpu":
            return {}
        if not self._captures:
            return {"device": self._device}
        return {"device": self._device, "captures": self._why_not_captured(inputs)}

    def _why_not_captured(self, inputs: Sequence[Input]) -> str:
        if any(map(_is_on_the_cpu, self._graph.graph.nodes)):
            # What is captured of it would be an answer of the capture's, or be read too early.
            return "a part of it is on the CPU, which a launch does not do again"
        for given, tensor, written in zip(inputs, self._inputs, self._written, strict=True):
            if given.kind != "argument":
                continue
            # A graph has tensors of its own for what a call brings.
            if written:
                return f"it writes into argument {given.index}, which a graph has a copy of"
            if aoti_graphs.overlaps_itself(tensor):
                return f"argument {given.index} is expanded, and cannot be copied into"
        shared = [where for where in self._aliases if where]
        return f"an output shares memory with {shared[0]}" if shared else ""

    def _same_random_numbers(self) -> contextlib.AbstractContextManager[None]:
        """Leave torch's random numbers as they are, where the graph uses any."""
        devices = [] if self._device == "cpu" else [self._device]
        return torch.random.fork_rng(devices=devices)

    def _random_state(self) -> list[Any]:
        states = [torch.get_rng_state()]
        if self._device != "cpu":
            states.append(torch.cuda.get_rng_state(self._device))
        return states

    def refuse_other_inputs(self, found: Sequence[Any]) -> None:
        """Raise `NoEntry` where a plan does not find the tensors that the graph was called with."""
        for place, ours, given in zip(self._places, found, self._inputs, strict=True):
            if ours is not given:
                where = place.name or place.path or place.index
                raise NoEntry(f"the {place.kind} {where} is not what its graph takes")

    def refuse_other_aliases(self, native: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        """Raise `NoEntry` where outputs share memory otherwise than eager's do."""
        copies = copy_tensors(self._inputs, inference=False)
        with self._same_random_numbers():
            outputs = native(copies)
        given = {id(tensor) for tensor in self._inputs}
        found = _aliases(outputs, copies)
        for eager, ours, output in zip(self._aliases, found, self._outputs, strict=True):
            if eager != ours and id(output) not in given:
                raise NoEntry(
                    f"an output of it shares memory with {ours}, and eager's with {eager}"
                )

    def refuse_other_result(
        self, result: aoti_library.Build, tensors: Sequence[Any], returned: Any
    ) -> None:
        """Raise `NoEntry` where what is built of the same tensors is not what was returned."""
        if not _same(result(self._outputs, self._inputs, tensors), returned):
            raise NoEntry(f"the {type(returned).__qualname__} it returns is more than its parts")


def _refuse_foreign(path: Path) -> None:
    """Raise `NoEntry` where code calls torch's dispatcher, by a table that lies beside it."""
    table = path.with_suffix(".json")
    if table.exists():
        nodes = json.loads(table.read_text())["nodes"]
        names = sorted({str(node["node"]["target"]) for node in nodes})
        raise NoEntry(f"it calls operators that have no C interface: {', '.join(names)}")


def _without_sizes(graph: Any) -> None:
    """Let a graph take its sizes from its tensors: AOTInductor has no other inputs than those."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    tensors = [node for node in inputs if isinstance(_fake(node), torch.Tensor)]
    where = {
        size.node.expr: (tensor, dim)
        for tensor in reversed(tensors)
        for dim, size in enumerate(_fake(tensor).shape)
        if isinstance(size, torch.SymInt)
    }
    for node in inputs:
        if node in tensors:
            continue
        if not isinstance(_fake(node), torch.SymInt) or _fake(node).node.expr not in where:
            raise NoEntry(f"its graph takes {_fake(node)}, which is no size of a tensor")
        with graph.graph.inserting_after(inputs[-1]):
            size = graph.graph.call_function(
                torch.ops.aten.sym_size.int, where[_fake(node).node.expr]
            )
        size.meta["example_value"] = _fake(node)
        node.replace_all_uses_with(size)
        graph.graph.erase_node(node)
    graph.recompile()


def _fake(node: Any) -> Any:
    return node.meta["example_value"]


def _is_on_the_cpu(node: Any) -> bool:
    """Return whether a node makes a tensor there."""
    made = torch.utils._pytree.tree_leaves(node.meta.get("example_value"))
    return any(isinstance(each, torch.Tensor) and each.device.type == "cpu" for each in made)


def _callable(run: Callable[..., Any]) -> Any:
    """Return it as the kind of object that torch takes from a backend here; it is never saved."""
    from torch._dynamo.aot_compile_types import SerializableCallable

    class Once(SerializableCallable):
        def __call__(self, *inputs: Any) -> Any:
            return run(*inputs)

        @classmethod
        def serialize_compile_artifacts(cls, fn: Any) -> bytes:
            raise NoEntry(f"a graph that is only looked at was to be saved: {fn!r}")

        @classmethod
        def deserialize_compile_artifacts(cls, data: bytes) -> Any:
            raise NoEntry(f"a graph that is only looked at was saved in {len(data)} bytes")

    return Once()


def _aliases(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[str]:
    """Return for each output whose memory it shares, and which part; empty where it is its own."""
    owners = {
        tensor.untyped_storage().data_ptr(): f"input {number}"
        for number, tensor in enumerate(inputs)
        if tensor.numel()
    }
    found = []
    for number, output in enumerate(outputs):
        own = f"output {number}"
        owner = owners.setdefault(output.untyped_storage().data_ptr(), own)
        where = f"{owner} from {output.storage_offset()} in steps of {output.stride()}"
        found.append("" if owner == own or not output.numel() else where)
    return found


# The plan -------------------------------------------------------------------------------------


def _source_of(node: Any) -> str:
    """Return the Python expression over `L`, the arguments, for where a graph's input comes from.

    Dynamo's own, which stands at each input of a graph that a backend gets (2.11, 2.13, 2.15):
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/output_graph.py
    """
    return str(path_of(node._dynamo_source))


def _place(source: str, callee: Any) -> Input:
    """Return where a plan finds what this expression names.

    Raises:
        NoEntry: it is neither an argument nor on a path from the callee that a plan can have.
    """
    try:
        root, path = _path(ast.parse(source, mode="eval").body, source)
    except SyntaxError as error:  # some of Dynamo's names are for people
        raise NoEntry(f"its graph takes {source}, which is {NO_PLACE}") from error
    if root != facts.CALLEE:
        if path or not re.fullmatch(r"t\d+", root):
            raise NoEntry(f"its graph takes {source}, which is {NO_PLACE}")
        return Input(kind="argument", index=int(root[1:]))
    module, owner, rest = module_of(callee), "", path
    if module is not callee and rest[:1] == [["attribute", "__self__"]]:
        rest = rest[1:]
    while module is not None:
        match rest:
            case [["attribute", "_modules"], ["item", name], _, *_]:
                owner, rest = f"{owner}.{name}".lstrip("."), rest[2:]
                module = module._modules[name]
            case [["attribute", "_parameters"], ["item", name]]:
                return Input(kind="parameter", owner=owner, name=name)
            case [["attribute", "_buffers"], ["item", name]]:
                return Input(kind="buffer", owner=owner, name=name)
            case [["attribute", name]] if name in vars(module):
                return Input(kind="attribute", owner=owner, name=name)
            case _:
                break
    return Input(kind="path", path=path)


NO_PLACE = "neither an argument nor found from what is called"


def _path(node: ast.expr, source: str) -> tuple[str, list[list[Any]]]:
    """Return the name that an expression begins with, and the steps from there (`Input.path`)."""
    step: list[Any]
    match node:
        case ast.Subscript(value=ast.Name(id="L"), slice=ast.Constant(value=str(root))):
            return root, []
        case ast.Name(id=root):
            return root, []
        case ast.Attribute(value=base, attr=name):
            step = ["attribute", name]
        case ast.Subscript(value=base, slice=ast.Constant(value=str() | int() as key)):
            step = ["item", key]
        case ast.Call(func=called, args=[base, ast.Constant(value=str() | int() as key)]):
            step = [STEP_OF.get(ast.unparse(called), ""), key]
        case _:
            step, base = [""], node
    if not step[0]:
        raise NoEntry(f"its graph takes {source}, which is {NO_PLACE}")
    root, steps = _path(base, source)
    return root, [*steps, step]


STEP_OF = {
    "getattr": "attribute",
    "object.__getattribute__": "own",
    **dict.fromkeys(("dict.__getitem__", "list.__getitem__", "tuple.__getitem__"), "item"),
}
"""Kind of step by the function that Dynamo names it with."""


def _differ(left: Any, right: Any) -> bool:
    return not torch.equal(left, right)


def _is_dynamic(fake: Any) -> bool:
    return any(isinstance(size, torch.SymInt) for size in (*fake.shape, *fake.stride()))


def _input(given: Any, fake: Any, place: Input) -> Input:
    free = _is_dynamic(fake)
    if free and place.kind != "argument":
        raise NoEntry(f"the sizes of its {place.kind} {place.name or place.path} are dynamic")
    return dataclasses.replace(place, said=aoti_library.describe(given, free=free))


def _without_defaults(given: Input) -> dict[str, Any]:
    return {
        field.name: getattr(given, field.name)
        for field in dataclasses.fields(given)
        if getattr(given, field.name) != field.default
    }


def _plain(value: Any, known: Mapping[int, list[Any]], *, dynamic: bool) -> list[Any]:
    """Return what a callee returned as `libraries.load` reads it."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        if id(value) not in known:
            raise NoEntry("it returns a tensor that its graph neither takes nor computes")
        return known[id(value)]
    if value is None or kind in (bool, str) or (kind in (int, float) and not dynamic):
        if kind is float and not math.isfinite(value):
            raise NoEntry(f"it returns the number {value}")
        return ["plain", value]
    if kind in (int, float):
        raise NoEntry("it returns a number, which may depend on a size that is dynamic")
    if kind in (list, tuple):
        return [kind.__name__, [_plain(item, known, dynamic=dynamic) for item in value]]
    if kind is dict and all(type(key) in (str, int, bool) for key in value):
        return ["dict", [[k, _plain(item, known, dynamic=dynamic)] for k, item in value.items()]]
    return _of_class(value, known, dynamic=dynamic)


def _of_class(value: Any, known: Mapping[int, list[Any]], *, dynamic: bool) -> list[Any]:
    kind = type(value)
    where = locate(kind)
    parts: list[Any] = []
    if where is not None and isinstance(value, tuple):
        how = "sequence"
        parts = [_plain(item, known, dynamic=dynamic) for item in value]
    elif where is not None and dataclasses.is_dataclass(value):
        how = "fields"
        parts = [
            [field.name, _plain(getattr(value, field.name), known, dynamic=dynamic)]
            for field in dataclasses.fields(value)
            if field.init
        ]
    else:
        raise NoEntry(f"it returns a {kind.__qualname__}, which cannot be built from its parts")
    return [how, list(where), name_of_class(kind), parts]


def _same(left: Any, right: Any) -> bool:
    """Return whether two values are built alike of the very same tensors."""
    if type(left) is not type(right) or isinstance(left, torch.Tensor):
        return left is right
    if isinstance(left, Mapping) and not _same([*left.items()], [*right.items()]):
        return False
    if isinstance(left, (list, tuple)) and not (
        len(left) == len(right) and all(map(_same, left, right))
    ):
        return False
    if hasattr(left, "__dict__"):
        return _same([*vars(left).items()], [*vars(right).items()])
    return isinstance(left, (Mapping, list, tuple)) or bool(left == right)
