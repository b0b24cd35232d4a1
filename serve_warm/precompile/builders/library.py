# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Builds a library for one call. Dynamo captures a graph, and AOTInductor compiles the graph.

The capture is the same as at level 2, so a library depends on the same facts as an entry. Instead
of Dynamo's bytecode around the graph, a library has a plan. The plan is data that says where each
input comes from and how the result is built from the outputs. Calls that a plan cannot describe are
refused. For example, the forward may return an object of a class that cannot be rebuilt, or change
objects other than tensors and module attributes.

Weights are inputs of the graph, not constants, so libraries contain no weights
(`serve_warm.precompile.libraries.run`). Seen in torch 2.11 to 2.13:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/compile_fx.py
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import math
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import torch

from serve_warm import _private_folders
from serve_warm.compiler.cpu_target import isa_checks
from serve_warm.precompile.builders import cpp
from serve_warm.precompile.builders.assigned import Assigned
from serve_warm.precompile.calls import python_random
from serve_warm.precompile.calls.compile_options import CAPTURES, options_of
from serve_warm.precompile.calls.copies import copy_tensors
from serve_warm.precompile.calls.plain_state import putting_back
from serve_warm.precompile.calls.signature import module_of
from serve_warm.precompile.facts import table as facts
from serve_warm.precompile.facts.names import locate, name_of_class
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.plan import ASSIGNING, Plan
from serve_warm.precompile.facts.tensor_parts import plain_parts
from serve_warm.precompile.facts.torch_errors import as_reasons
from serve_warm.precompile.libraries import cuda_graphs, run
from serve_warm.precompile.libraries.inputs import TensorSource
from serve_warm.precompile.trace import output_aliases
from serve_warm.precompile.trace.capture import capture
from serve_warm.precompile.trace.captured import CompiledCall
from serve_warm.precompile.trace.graph_inputs import fake_of, inputs_of, read_sizes, take_parts
from serve_warm.precompile.trace.guards import source_of
from serve_warm.precompile.trace.side_effects import callable_once, side_effects
from serve_warm.private_apis import inductor, nn_module
from serve_warm.private_apis.nn_module import own_modules
from serve_warm.private_apis.torch_c import READS_DATA, version_of

SMALL = {"aot_inductor.enable_line_tables": False, "aot_inductor.enable_frame_pointer": False}
"""Settings that keep a library small: 0.3 MB without tables for profilers, 1.5 MB with them.
A setting that the installed torch lacks is skipped; torch 2.11 lacks all settings of this dict."""

DEVICES = ("cpu", "cuda")
"""Kinds of devices that a library supports. All inputs of a library are on one device."""

ON_A_GPU = {"aot_inductor.embed_kernel_binary": True}
"""Setting that embeds kernels into the library, because a library has no other files."""


def make(
    function: Callable[..., object],
    callee: object,
    tensors: Sequence[torch.Tensor],
    arguments: Mapping[str, object],
) -> CompiledCall:
    """Compile `function(callee, *tensors)` into a library, with torch.compile's `arguments`.

    Raises:
        NoEntry: the graph breaks, or a library cannot do a part of the graph's work.
    """
    with as_reasons():
        library = Library(function, callee, tensors, arguments, compiler="now")
    return library.finish(callee, tensors)


def begin(
    function: Callable[..., object],
    callee: object,
    tensors: Sequence[torch.Tensor],
    arguments: Mapping[str, object],
) -> Library:
    """Run `make` until it needs the C++ compiler, and start this compiler in the background.

    A later call of the same kind finishes the library.

    Raises:
        NoEntry: as `make` does.
    """
    with as_reasons():
        library = Library(function, callee, tensors, arguments, compiler="background")
        library.run(callee, tensors)
        library.graph.compile()
        library.graph.forget_run()
    return library


class Library:
    """A graph that Dynamo captured for one call, and the library made from it."""

    def __init__(
        self,
        function: Callable[..., object],
        callee: object,
        tensors: Sequence[torch.Tensor],
        arguments: Mapping[str, object],
        *,
        compiler: cpp.Compiler,
    ) -> None:
        isa_checks().probe_ahead()
        with side_effects() as changes:
            self.graph = _Graph(_settings(arguments), callee, changes, compiler=compiler)
            settings = {"backend": self.graph.take, "dynamic": arguments.get("dynamic")}
            self.captured = capture(function, callee, tensors, settings, has_plan=True)
            """Dynamo's result for the call that started the library's build."""
        # A plan can draw Python's random numbers, but only if no other code uses them.
        for name in self.captured.plan.get("numbers", {}):
            self.captured.entry.fn.__globals__[name] = python_random.Unused

    def run(self, callee: object, tensors: Sequence[torch.Tensor]) -> Plan:
        """Run the bytecode around the graph, and the graph eagerly; return the plan for a call."""
        # The tensors are copies without other references. If the callee kept the original tensors
        # of the call, the plan could not say whether a returned tensor belongs to the callee or to
        # the call.
        given = copy_tensors(tensors)
        self.graph.assigned.begin()
        facts_ = self.captured.facts
        rows = [row for row, kind, _ in facts_.facts if kind == "returned"]
        objects = facts_.objects(callee)
        self.graph.existing = [(facts_.chain(row), objects[row]) for row in rows]
        # Refuse a wrong plan before the graph is compiled.
        with putting_back(callee):
            returned = self.captured.entry.fn(callee, *given)
            plan: Plan = {**self.graph.plan(given, returned), **_numbers_of(self.captured.plan)}
            self.graph.refuse_other_result(plan, given, returned)
        self.graph.refuse_other_inputs(plan, callee, given)
        return plan

    def finish(self, callee: object, tensors: Sequence[torch.Tensor]) -> CompiledCall:
        """Wait for the C++ compiler, then do the remaining work of `make` for this call.

        Raises:
            NoEntry: as `make` does.
        """
        with as_reasons():
            return self._open(self.run(callee, tensors))

    def _open(self, plan: Plan) -> CompiledCall:
        """Open the library, compare the memory of its outputs with the run, and return it."""
        data = self.graph.compile()()
        # In a private folder, so that no other user can replace the file before it is opened.
        with _private_folders.temporary_folder() as folder:
            path = folder / "library.so"
            path.write_bytes(data)
            fn = run.load(path, plan)
        fn.copies = self.graph.outputs_to_copy(fn.native)
        if fn.copies:
            plan = {**plan, "copies": fn.copies}
        return CompiledCall(
            fn=fn,
            data=data,
            plan=plan,
            facts=self.captured.facts,
            conditions=self.captured.conditions,
            sources=self.captured.sources,
        )


def _numbers_of(plan: Plan) -> Plan:
    return {"numbers": plan["numbers"]} if "numbers" in plan else {}


def _settings(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return the Inductor settings that correspond to torch.compile's arguments."""
    known = inductor.names_of_settings()
    small = {name: value for name, value in SMALL.items() if name in known}
    given = {name.replace("-", "_"): value for name, value in options_of(arguments).items()}
    return {CAPTURES: inductor.captures_graphs(), **small, **given}


# The graph ------------------------------------------------------------------------------------


class _Graph:
    """A graph that Dynamo passed to a backend, and the tensors of one eager run of the graph."""

    def __init__(
        self,
        settings: Mapping[str, object],
        callee: object,
        changes: Mapping[str, Sequence[str]],
        *,
        compiler: cpp.Compiler = "now",
    ) -> None:
        # AOTInductor has no CUDA graphs: `libraries.cuda_graphs` captures its libraries.
        self._settings = {**settings, CAPTURES: False}
        self._captures = bool(settings[CAPTURES])
        self._callee = callee
        self.assigned = Assigned(changes, callee)
        self._compiler = compiler
        self._library: Callable[[], bytes] | None = None
        """Returns the library, after waiting for the C++ compiler."""
        self._graph: torch.fx.GraphModule
        self._fakes: list[torch.Tensor] = []
        self._places: list[TensorSource] = []
        self._inputs: list[torch.Tensor] = []
        self._outputs: list[torch.Tensor] = []
        self.existing: Sequence[tuple[list[list[object]], object]] = ()
        """Objects that existed before the run and that the plan may read, with the steps to each
        (`Facts.chain`)."""
        self._aliases: list[str] = []
        self._written: list[bool] = []
        self._hides_writes = False
        self._draws = False
        self._device = "cpu"

    def take(self, graph: torch.fx.GraphModule, _inputs: Sequence[object], **_: object) -> object:
        """Receive a graph from Dynamo, and compile the graph if it has dynamic sizes."""
        self.assigned.refuse_others(_path_of_module)
        if [*graph.parameters(), *graph.buffers()]:
            raise NoEntry("its graph holds a tensor as a constant")
        read_sizes(graph)
        graph, sources = take_parts(graph, list(map(source_of, inputs_of(graph))))
        self._fakes = list(map(fake_of, inputs_of(graph)))
        if any(map(python_random.is_number, sources)):
            raise NoEntry(python_random.USES_NUMBERS)
        self._places = [_place(source, self._callee) for source in sources]
        devices = sorted({str(fake.device) for fake in self._fakes})
        self._device = devices[0]
        kind = self._device.partition(":")[0]
        if len(devices) > 1 or kind not in DEVICES:
            raise NoEntry(
                f"it takes tensors on {' and '.join(devices)}, but a library uses only one device: "
                f"{' or '.join(DEVICES)}"
            )
        if kind == "cuda":
            self._settings.update(ON_A_GPU)
        self._graph = graph
        self._hides_writes = _may_hide_writes(graph)
        # Only while Dynamo traces, Inductor can turn facts about sizes into conditions. So a graph
        # with dynamic sizes is compiled now. A graph with static sizes is compiled later, when
        # everything else is known to work. 2.11 cannot compile this early, so there are no dynamic
        # graphs with it.
        if any(map(_is_dynamic, self._fakes)):
            self.compile()
        return callable_once(self._run_eagerly)

    def compile(self) -> Callable[[], bytes]:
        """Start one compile of the graph; the returned function waits for the C++ compiler."""
        if self._library is None:
            self._library = cpp.compile_library(self._generate, compiler=self._compiler)
        return self._library

    def _generate(self) -> str:
        """Make torch compile the graph, and return the path that torch reports for the library."""
        graph = copy.deepcopy(self._graph)  # the compile changes its graph
        with inductor.with_c_interface():
            return inductor.compile_library(graph, self._fakes, self._settings)

    def forget_run(self) -> None:
        """Release the tensors of the last run."""
        self._inputs, self._outputs = [], []

    def _run_eagerly(self, *inputs: object) -> list[torch.Tensor]:
        """Run the graph eagerly, without its compiled code, and record the tensors of this run."""
        tensors = (value for value in inputs if isinstance(value, torch.Tensor))
        self._inputs = [part for tensor in tensors for part in plain_parts(tensor)]
        copies = copy_tensors(self._inputs, inference=False)
        versions = [version_of(copy) for copy in copies]
        with self._same_random_numbers():
            before = self._random_state()
            outputs = list(self._graph(*copies))
            self._draws = any(map(_differ, self._random_state(), before))
        if not all(isinstance(output, torch.Tensor) for output in outputs):
            raise NoEntry("its graph computes something that is not a tensor")
        self._written = [
            self._hides_writes or version_of(copy) != was
            for copy, was in zip(copies, versions, strict=True)
        ]
        self._aliases = output_aliases.find_aliases(outputs, copies)
        # If the graph returns one of its inputs, the caller gets that same tensor.
        by_id = {id(copy): given for copy, given in zip(copies, self._inputs, strict=True)}
        self._outputs = [by_id.get(id(output), output) for output in outputs]
        return self._outputs

    def plan(self, tensors: Sequence[torch.Tensor], returned: object) -> Plan:
        """Return the plan for a run; `returned` is the result of the run.

        Raises:
            NoEntry: no plan can describe a part of the run.
        """
        inputs = [
            _input(given, fake, place)
            for given, fake, place in zip(self._inputs, self._fakes, self._places, strict=True)
        ]
        # For a tensor with several names, the last name that is set below wins. The best name is an
        # argument, because the caller already has that tensor.
        known: dict[int, list[object]] = {}
        known |= {id(t): ["output", n] for n, t in reversed([*enumerate(self._outputs)])}
        known |= {id(t): ["input", n] for n, t in enumerate(self._inputs)}
        known |= {id(t): ["argument", n] for n, t in enumerate(tensors)}
        known |= {id(found): ["existing", n] for n, (_, found) in enumerate(self.existing)}
        dynamic = any("*" in given.said for given in inputs)
        places = self.assigned.places(_path_of_module)
        self.assigned.refuse_shared([value for _, _, value in places], returned)
        _refuse_repeated(returned, known, set())
        result = _plain(returned, known, dynamic=dynamic)
        if places:
            forms = [[s, n, _plain(value, known, dynamic=dynamic)] for s, n, value in places]
            result = [ASSIGNING, forms, result]
        plan: Plan = {
            "inputs": [_without_defaults(given) for given in inputs],
            "outputs": len(self._outputs),
            "existing": [chain for chain, _ in self.existing],
            "result": result,
            "writes": any(self._written),
            "draws": self._draws,
        }
        return {**plan, **self._on_a_gpu(inputs)}

    def _on_a_gpu(self, inputs: Sequence[TensorSource]) -> Plan:
        """Return a plan's items for a GPU: the device, and a reason if calls cannot be captured."""
        if self._device == "cpu":
            return {}
        if not self._captures:
            return {"device": self._device}
        return {"device": self._device, "captures": self._why_not_captured(inputs)}

    def _why_not_captured(self, inputs: Sequence[TensorSource]) -> str:
        if any(map(_is_on_the_cpu, self._graph.graph.nodes)):
            # Launching the graph would return the CPU result of the capture, or read a CPU result
            # too early.
            return (
                "a part of it runs on the CPU, and launching a CUDA graph does not repeat that part"
            )
        for given, tensor, written in zip(inputs, self._inputs, self._written, strict=True):
            if given.kind != "argument":
                continue
            # A CUDA graph works on its own copies of a call's tensors.
            if written:
                return (
                    f"it writes into argument {given.index}, but a CUDA graph has only a copy of "
                    "this argument"
                )
            if cuda_graphs.overlaps_itself(tensor):
                return (
                    f"argument {given.index} is an expanded tensor, and values cannot be copied "
                    "into such a tensor"
                )
        shared = [where for where in self._aliases if where]
        return f"an output shares memory with {shared[0]}" if shared else ""

    def _same_random_numbers(self) -> contextlib.AbstractContextManager[None]:
        """Restore torch's random number state after the block."""
        devices = [] if self._device == "cpu" else [self._device]
        return torch.random.fork_rng(devices=devices)

    def _random_state(self) -> list[torch.Tensor]:
        states = [torch.get_rng_state()]
        if self._device != "cpu":
            states.append(torch.cuda.get_rng_state(self._device))
        return states

    def refuse_other_inputs(
        self, plan: Plan, callee: object, tensors: Sequence[torch.Tensor]
    ) -> None:
        """Raise `NoEntry` if a plan finds other inputs than the run."""
        found = run.function_of(plan, None).inputs.read(callee, tensors)
        for place, ours, given in zip(self._places, found, self._inputs, strict=True):
            if ours is not given:
                where = place.name or place.path or place.index
                raise NoEntry(f"the {place.kind} {where} is not the tensor that its graph takes")

    def outputs_to_copy(self, native: cuda_graphs.Run) -> list[int]:
        """Return the outputs that share memory only in the library (`output_aliases`).

        Raises:
            NoEntry: an output shares memory with an input only in eager execution.
        """
        copies = copy_tensors(self._inputs, inference=False)
        with self._same_random_numbers():
            outputs = native(copies)
        # An output that is an input is not taken from the library.
        given = {id(tensor) for tensor in self._inputs}
        found = output_aliases.find_aliases(outputs, copies)
        rows = zip(self._outputs, self._aliases, found, strict=True)
        found = [eager if id(output) in given else ours for output, eager, ours in rows]
        output_aliases.refuse_lost_inputs(self._aliases, found)
        return output_aliases.outputs_to_copy(self._aliases, found)

    def refuse_other_result(
        self, plan: Plan, tensors: Sequence[torch.Tensor], returned: object
    ) -> None:
        """Raise `NoEntry` if, for equal tensors, the plan's and the eager result differ."""
        function = run.function_of(plan, None)
        given = (self._outputs, self._inputs, tensors, [found for _, found in self.existing])
        places = self.assigned.places(_path_of_module)
        for (_, name, make), (_, _, value) in zip(function.assigns, places, strict=True):
            if not _same(make(*given), value):
                raise NoEntry(f"rebuilding the value assigned to {name} gives a different value")
        if not _same(function.result(*given), returned):
            name = type(returned).__qualname__
            raise NoEntry(f"rebuilding the returned {name} gives a different value")


def _may_hide_writes(graph: torch.fx.GraphModule) -> bool:
    """Return whether a graph may write through `tensor.data`, which keeps the tensor's version."""
    nodes = [
        node
        for part in graph.modules()
        if isinstance(part, torch.fx.GraphModule)
        for node in part.graph.nodes
    ]
    reads_data = any(node.target is READS_DATA for node in nodes)
    return reads_data and any(map(_is_in_place, nodes))


def _is_in_place(node: torch.fx.Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else node.target.__name__
    is_operator = name == "setitem" or name.strip("_") in IN_PLACE
    return is_operator or (name.endswith("_") and not name.endswith("__")) or "out" in node.kwargs


IN_PLACE = frozenset(
    name for name in vars(operator) if name[0] == "i" and hasattr(operator, name[1:])
)
"""Names of Python's in-place operators: `iadd`, `imul` and so on."""


def _is_on_the_cpu(node: torch.fx.Node) -> bool:
    """Return whether a node creates a tensor on the CPU."""
    made = inductor.leaves_of(node.meta.get("example_value"))
    return any(isinstance(each, torch.Tensor) and each.device.type == "cpu" for each in made)


# The plan -------------------------------------------------------------------------------------


def _place(source: str, callee: object) -> TensorSource:
    """Return where a plan finds the object that an expression refers to.

    Raises:
        NoEntry: the object is not an argument, and no path in a plan leads from the callee to the
        object.
    """
    try:
        root, path = _path(ast.parse(source, mode="eval").body, source)
    except SyntaxError as error:  # some of Dynamo's names are only for display
        raise NoEntry(f"its graph takes {source}, which is {NO_PLACE}") from error
    if root != facts.CALLEE:
        if path or not re.fullmatch(r"t\d+", root):
            raise NoEntry(f"its graph takes {source}, which is {NO_PLACE}")
        return TensorSource(kind="argument", index=int(root[1:]))
    module, owner, rest = module_of(callee), "", path
    if module is not callee and rest[:1] == [["attribute", "__self__"]]:
        rest = rest[1:]
    while module is not None:
        match rest:
            case [["attribute", nn_module.MODULES], ["item", str(name)], _, *_]:
                owner, rest = f"{owner}.{name}".lstrip("."), rest[2:]
                module = own_modules(module)[name]
            case [["attribute", nn_module.PARAMETERS], ["item", str(name)]]:
                return TensorSource(kind="parameter", owner=owner, name=name)
            case [["attribute", nn_module.BUFFERS], ["item", str(name)]]:
                return TensorSource(kind="buffer", owner=owner, name=name)
            case [["attribute", str(name)]] if name in vars(module):
                return TensorSource(kind="attribute", owner=owner, name=name)
            case _:
                break
    return TensorSource(kind="path", path=path)


NO_PLACE = "neither an argument nor reachable from the callable"


def _path(node: ast.expr, source: str) -> tuple[str, list[list[str | int]]]:
    """Return the name at the start of an expression, and the steps of `TensorSource.path`."""
    step: list[str | int]
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


def _path_of_module(source: str) -> list[list[str | int]]:
    """Return the steps from the callee to a module that a forward changes."""
    root, steps = _path(ast.parse(source, mode="eval").body, source)
    if root != facts.CALLEE:
        raise NoEntry(f"it changes {source}, which is {NO_PLACE}")
    return steps


STEP_OF = {
    "getattr": "attribute",
    "object.__getattribute__": "own",
    **dict.fromkeys(("dict.__getitem__", "list.__getitem__", "tuple.__getitem__"), "item"),
}
"""Maps each function in Dynamo's expressions to the kind of step that replaces its calls."""


def _differ(left: torch.Tensor, right: torch.Tensor) -> bool:
    return not torch.equal(left, right)


def _is_dynamic(fake: torch.Tensor) -> bool:
    return any(isinstance(size, torch.SymInt) for size in (*fake.shape, *fake.stride()))


def _input(given: torch.Tensor, fake: torch.Tensor, place: TensorSource) -> TensorSource:
    free = _is_dynamic(fake)
    if free and place.kind != "argument":
        raise NoEntry(f"the sizes of its {place.kind} {place.name or place.path} are dynamic")
    return dataclasses.replace(place, said=run.describe(given, free=free))


def _without_defaults(given: TensorSource) -> dict[str, object]:
    return {
        field.name: getattr(given, field.name)
        for field in dataclasses.fields(given)
        if getattr(given, field.name) != field.default
    }


def _refuse_repeated(value: object, known: Mapping[int, list[object]], seen: set[int]) -> None:
    """Raise `NoEntry` if a result contains a new list or dict twice: a plan would make two."""
    if id(value) in known or not isinstance(value, (list, dict, tuple)):
        return
    if not isinstance(value, tuple):
        if id(value) in seen:
            raise NoEntry(f"it returns the same {type(value).__qualname__} twice")
        seen.add(id(value))
    for item in value.values() if isinstance(value, dict) else value:
        _refuse_repeated(item, known, seen)


def _plain(value: object, known: Mapping[int, list[object]], *, dynamic: bool) -> list[object]:
    """Return the form of a callee's result, in the format that `libraries.run.load` reads."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        if id(value) not in known:
            raise NoEntry("it returns a tensor that its graph neither takes nor computes")
        return known[id(value)]
    if value is None or kind in (bool, str) or (kind in (int, float) and not dynamic):
        if isinstance(value, float) and not math.isfinite(value):
            raise NoEntry(f"it returns the number {value}")
        return ["plain", value]
    if id(value) in known:
        return known[id(value)]
    if kind in (int, float):
        raise NoEntry("it returns a number that might depend on a dynamic size")
    if isinstance(value, (list, tuple)) and kind in (list, tuple):
        return [kind.__name__, [_plain(item, known, dynamic=dynamic) for item in value]]
    if (
        isinstance(value, dict)
        and kind in (dict, OrderedDict)
        and all(type(key) in (str, int, bool) for key in value)
    ):
        how = "dict" if kind is dict else run.ORDERED
        return [how, [[k, _plain(item, known, dynamic=dynamic)] for k, item in value.items()]]
    return _of_class(value, known, dynamic=dynamic)


def _of_class(value: object, known: Mapping[int, list[object]], *, dynamic: bool) -> list[object]:
    kind = type(value)
    where = locate(kind)
    parts: list[list[object]] = []
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
        raise NoEntry(
            f"it returns a {kind.__qualname__}, which serve_warm cannot rebuild from tensors: "
            "return the tensors in a tuple, a list or a dict"
        )
    return [how, list(where), name_of_class(kind), parts]


def _same(left: object, right: object) -> bool:
    """Return whether two values have the same structure and contain the same tensor objects."""
    if type(left) is not type(right) or isinstance(left, torch.Tensor):
        return left is right
    if (
        isinstance(left, Mapping)
        and isinstance(right, Mapping)
        and not _same([*left.items()], [*right.items()])
    ):
        return False
    if (
        isinstance(left, (list, tuple))
        and isinstance(right, (list, tuple))
        and not (len(left) == len(right) and all(map(_same, left, right)))
    ):
        return False
    if hasattr(left, "__dict__"):
        return _same([*vars(left).items()], [*vars(right).items()])
    return isinstance(left, (Mapping, list, tuple)) or bool(left == right)
