# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How a library made by AOTInductor is opened and called: without Dynamo, Inductor or a compiler.

A library holds machine code and no weights. They go in with the arguments of each call, read from
the callee then: loaded, replaced or moved weights are right at the next call, and modules of one
structure share a library. Beside the library stands its plan (`aoti_build` writes it):
where the inputs come from, what they were like, and what is made of the outputs.

It is called through its C interface, without Python's lock, and not by torch's own runner, which
imports Inductor and probes the CPU. Seen in torch 2.11 to 2.13:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/inductor/aoti_runtime/interface.h
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from serve_warm.compiler import cuda_graphs
from serve_warm.precompile.aoti_graphs import Graphed, Run
from serve_warm.precompile.call_checks import refuse_unusual, tensor_check
from serve_warm.precompile.entry_function import Plan, refuse_overlap
from serve_warm.precompile.facts import NoEntry
from serve_warm.precompile.names import describe_tensor, name_of_class, resolve

Build = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]
"""Makes what the callee returns of outputs and inputs of native code, and tensors of the call."""

DAMAGED = (AttributeError, LookupError, TypeError, ValueError, ImportError, OSError)
"""What opening a library raises that is another one, or is not there."""


class LibraryFailed(RuntimeError):
    """The code of a library failed; what it wrote until then stays written."""


class LibraryFailedCleanly(LibraryFailed):
    """The code of a library failed and left nothing behind: other code may answer the same call."""


def _item(base: Any, key: Any) -> Any:
    # Past what a subclass of dict makes of a key that it does not have.
    return dict.__getitem__(base, key) if isinstance(base, dict) else base[key]


STEPS: Mapping[str, Callable[[Any, Any], Any]] = {
    "attribute": getattr,
    # Past what a class defines in its place.
    "own": object.__getattribute__,
    "item": _item,
}

KINDS = ("argument", "parameter", "buffer", "attribute", "path")


@dataclass(frozen=True, kw_only=True)
class Input:
    """Where an input of the native code comes from."""

    kind: str
    """`argument`, a tensor of the call; in a module, `parameter`, `buffer` and `attribute`; or
    `path`, wherever else it is found from the callee."""
    owner: str = ""
    """Path of the module, as in `named_modules`."""
    name: str = ""
    index: int = 0
    """Which argument."""
    path: Sequence[Sequence[Any]] = ()
    """Steps from the callee: of each its kind, one of `STEPS`, and its name or key."""
    said: str = ""
    """What compiled code takes for granted of it."""

    def __post_init__(self) -> None:
        unknown = {self.kind} - {*KINDS} | {kind for kind, _ in self.path} - {*STEPS}
        if unknown:
            raise ValueError(
                f"an input of a library is found by {min(unknown)!r}, which is unknown"
            )


def load(path: Path, plan: Plan) -> Function:
    """Return the function of a library, of (callee, *tensors). Executes what is in the file.

    Only open what was verified. The function raises `NoEntry`, before it computes anything, where
    tensors or module are not like those of the build.

    Raises:
        NoEntry: it cannot be opened here.
    """
    try:
        # The loader maps the file as it is: a part that is missing would be a bus error later on.
        if hashlib.sha256(path.read_bytes()).hexdigest() != plan["sha256"]:
            raise NoEntry(f"its library {path.name} is damaged")
        inputs = tuple(Input(**plain) for plain in plan["inputs"])
        result = _result(plan["result"])
        device = str(plan.get("device", "cpu"))
        kind = Native if device == "cpu" else NativeOnGpu
        native = kind(path, device=device, inputs=len(inputs), outputs=int(plan["outputs"]))
    except DAMAGED as error:
        raise NoEntry(f"its library cannot be opened: {type(error).__name__}: {error}") from error
    return Function(
        native,
        inputs,
        result=result,
        writes=bool(plan["writes"]),
        draws=bool(plan.get("draws", True)),  # no plan said so before
        captures=plan.get("captures"),
    )


class Function:
    """The code of a library with what it takes from the callee, and what it returns."""

    def __init__(
        self,
        native: Native,
        inputs: Sequence[Input],
        *,
        result: Build,
        writes: bool,
        draws: bool = True,
        captures: str | None = None,
    ) -> None:
        self.native = native
        self._run: Callable[[Sequence[Any]], Sequence[Any]] = native
        if captures is not None:
            self._run = _add_graphs(native, inputs, captures)
        self.result = result
        self._writes = writes
        """Whether it writes into its inputs: then none of them may overlap another."""
        self._draws = draws
        """Whether it draws random numbers."""
        self._modules, rows = _modules(sorted({i.owner for i in inputs if i.owner}))
        self._takes = [
            (i.kind, rows.get(i.owner, 0), i.name, i.index, _walk(i.path)) for i in inputs
        ]
        self._said = [i.said for i in inputs]
        self._free = frozenset(number for number, i in enumerate(inputs) if "*" in i.said)
        self._checks: tuple[Callable[..., bool], ...] = ()
        self.input_ids: frozenset[int] = frozenset()
        """As of a graph (`ahead.inputs_of`)."""

    def __call__(self, callee: Any, /, *tensors: Any) -> Any:
        """Run it.

        Raises:
            NoEntry: it is not for this call; nothing was computed.
            LibraryFailedCleanly: it failed, and the call may be made again by other code.
            LibraryFailed: it failed.
        """
        inputs = self.inputs(callee, tensors)
        if not any(same(*inputs) for same in self._checks):
            self._learn(inputs)
        if self._writes:
            refuse_overlap(inputs)
        try:
            outputs = self._run(inputs)
        except LibraryFailed as error:
            if self._writes or self._draws:
                raise
            raise LibraryFailedCleanly(str(error)) from None
        return self.result(outputs, inputs, tensors)

    def inputs(self, callee: Any, tensors: Sequence[Any]) -> list[Any]:
        """Return the tensors that the native code computes with in a call.

        Raises:
            NoEntry: there is nothing where one of them was.
        """
        inputs: list[Any] = []
        try:
            modules = [getattr(callee, "__self__", callee)]
            for parent, name in self._modules:
                modules.append(modules[parent]._modules[name])
            for kind, row, name, index, walk in self._takes:
                if kind == "parameter":
                    inputs.append(modules[row]._parameters[name])
                elif kind == "argument":
                    inputs.append(tensors[index])
                elif kind == "buffer":
                    inputs.append(modules[row]._buffers[name])
                elif kind == "attribute":
                    inputs.append(vars(modules[row])[name])
                else:
                    inputs.append(walk(callee))
        except (AttributeError, LookupError, TypeError) as error:
            raise NoEntry(f"its module is another one: no {error}") from error
        return inputs

    def _learn(self, inputs: Sequence[Any]) -> None:
        """Compare tensors with those of the build, and remember how to do so in C++."""
        for number, (tensor, was) in enumerate(zip(inputs, self._said, strict=True)):
            if not isinstance(tensor, torch.Tensor):
                raise NoEntry(f"a tensor that its graph finds by itself is {tensor!r:.40}")
            refuse_unusual(tensor)
            now = describe(tensor, free=number in self._free)
            if now != was:
                raise NoEntry(f"a tensor that its graph takes is {now}, and was {was}")
        # Inference tensors and others are told apart by the check, and are one to the code.
        every = {n: (range(inputs[n].dim()), range(inputs[n].dim())) for n in self._free}
        self._checks = (tensor_check(inputs, free=every), *self._checks[:3])
        self.input_ids = frozenset(map(id, inputs))


def _walk(path: Sequence[Sequence[Any]]) -> Callable[[Any], Any]:
    """Return the function that follows a path from the callee."""
    steps = [(STEPS[kind], argument) for kind, argument in path]

    def walk(found: Any) -> Any:
        for step, argument in steps:
            found = step(found, argument)
        return found

    return walk


def _add_graphs(
    native: Native, inputs: Sequence[Input], why_not: str
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if why_not:
        cuda_graphs.note_skip(why_not)
        return native
    brought = [index for index, given in enumerate(inputs) if given.kind == "argument"]
    return Graphed(native, device=native.device, brought=brought, inputs=len(inputs))


def describe(tensor: Any, *, free: bool) -> str:
    """Return what native code takes for granted of a tensor; with `free`, its sizes are open."""
    every = range(tensor.dim()) if free else ()
    return describe_tensor(tensor, free=(every, every))


def _modules(owners: Sequence[str]) -> tuple[list[tuple[int, str]], dict[str, int]]:
    """Return a row for each module on the way to these, and the row of each path."""
    rows = {"": 0}
    steps: list[tuple[int, str]] = []
    for owner in owners:
        path = ""
        for name in owner.split("."):
            parent, path = rows[path], f"{path}.{name}".lstrip(".")
            if path not in rows:
                steps.append((parent, name))
                rows[path] = len(steps)
    return steps, rows


# What is returned -----------------------------------------------------------------------------


TENSORS = ("output", "input", "argument")
"""Which tensor is returned, in the order of what a `Build` takes."""


def _result(plain: Sequence[Any]) -> Build:
    """Return the function that builds what the callee returns; each part of a plan is a list."""
    kind, *rest = plain
    if kind in TENSORS:
        place, index = TENSORS.index(kind), int(rest[0])
        return lambda *given: given[place][index]
    if kind == "plain":
        value = rest[0]
        return lambda *_: value
    if kind == "dict":
        pairs = [(key, _result(item)) for key, item in rest[0]]
        return lambda *given: {key: item(*given) for key, item in pairs}
    if kind in ("list", "tuple"):
        items = [_result(item) for item in rest[0]]
        made = list if kind == "list" else tuple
        return lambda *given: made(item(*given) for item in items)
    return _of_class(kind, *rest)


def _of_class(kind: str, where: Sequence[str], name: str, parts: Sequence[Any]) -> Build:
    found: Any = resolve(where[0], where[1])
    if name_of_class(found) != name:
        raise ValueError(f"{where[1]} is not the class of the build")
    make: Callable[..., Any] = found
    if kind == "fields" and dataclasses.is_dataclass(found):
        fields = {field: _result(item) for field, item in parts}
        return lambda *given: make(**{field: item(*given) for field, item in fields.items()})
    if kind == "sequence" and issubclass(found, tuple):
        items = [_result(item) for item in parts]
        make = getattr(found, "_make", make)  # named tuples take their items one by one
        return lambda *given: make([item(*given) for item in items])
    raise ValueError(f"nothing is built by {kind!r} of {where[1]}")


# The C interface ------------------------------------------------------------------------------


class Native:
    """One shared library, and the models in it; each model runs one call at a time.

    It is never closed: the code may be running, and torch keeps what it registered.
    """

    def __init__(self, path: Path, *, device: str, inputs: int, outputs: int) -> None:
        self.device = device
        self._library = ctypes.CDLL(str(path))  # its calls release Python's lock
        self._run = self._runner()
        self._last_error = getattr(self._library, "AOTInductorGetLastError", None)
        self._inputs: Any = ctypes.c_void_p * inputs
        self._outputs: Any = ctypes.c_void_p * outputs
        # torch's own container of models lets a waiting thread sleep on when more threads call
        # than it has models. Here nobody waits: who finds none idle makes another one.
        self._idle = [self._model()]

    def _model(self) -> ctypes.c_void_p:
        model = ctypes.c_void_p()
        if self._create(ctypes.byref(model)):
            raise NoEntry(f"its library cannot be started: {self._why()}")
        found = ctypes.c_size_t()
        self._count_outputs(model, ctypes.byref(found))
        if found.value != self._outputs._length_:
            self._delete(model)
            raise NoEntry(f"its library has {found.value} outputs")
        return model

    def _create(self, model: Any) -> int:
        create = self._library.AOTInductorModelCreate
        create.argtypes = [ctypes.c_void_p] * 2
        return int(create(model, None))

    def _count_outputs(self, model: ctypes.c_void_p, found: Any) -> None:
        self._library.AOTInductorModelGetNumOutputs(model, found)

    def _delete(self, model: ctypes.c_void_p) -> None:
        self._library.AOTInductorModelDelete(model)

    def _runner(self) -> Any:
        run = self._library.AOTInductorModelRun
        run.argtypes = [ctypes.c_void_p] * 3
        return run

    def _start(self, model: ctypes.c_void_p, given: Any, outputs: Any) -> int:
        return int(self._run(model, given, outputs))

    def _failure(self) -> RuntimeError:
        # The other lines are where in C++ that was.
        reason = self._why().partition("\n")[0]
        return LibraryFailed(f"the library of a compiled call failed: {reason}")

    def _why(self) -> str:
        text = ctypes.c_char_p()
        if self._last_error is not None:
            self._last_error(ctypes.byref(text))
        return (text.value or b"no reason given").decode(errors="replace")

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on tensors as they are, and return the outputs.

        Raises:
            LibraryFailed: it failed.
        """
        model = self._take_model()
        try:
            return self._run_model(model, inputs)
        finally:
            # Also after a failure: a run changes nothing in a model but which kernels are loaded,
            # and loads one that is missing (2.11 to 2.15). A model is not deleted either: CUDA
            # graphs that were captured with it launch its kernels.
            self._idle.append(model)

    @contextlib.contextmanager
    def reserved(self) -> Iterator[Run]:
        """Have a run of one model that nobody else has for as long as the block lasts."""
        model = self._take_model()
        try:
            yield functools.partial(self._run_model, model)
        finally:
            self._idle.append(model)

    def _take_model(self) -> ctypes.c_void_p:
        try:
            return self._idle.pop()
        except IndexError:
            return self._model()

    def _run_model(self, model: ctypes.c_void_p, inputs: Sequence[Any]) -> list[Any]:
        outputs = self._outputs()
        # Owned by what runs from now on, also where it fails.
        handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(inputs))
        given = self._inputs(*[_get_pointer(handle, None) for handle in handles])
        if self._start(model, given, outputs):
            raise self._failure()
        tensors: list[Any] = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(
            [_capsule(output, None, None) for output in outputs]
        )
        return tensors


class NativeOnGpu(Native):
    """The same on a GPU, where a model is a container of one, with its kernels inside.

    Work is queued on the device's current stream of the calling thread, as torch's own is.
    """

    _short = 0
    """How often torch had no memory, when it was last asked."""

    def _create(self, model: Any) -> int:
        create = self._library.AOTInductorModelContainerCreateWithDevice
        create.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p]
        try:
            # It makes its device the current one, and leaves it so (2.11 to 2.13, model_base.h).
            with torch.cuda.device(self.device):
                self._short = cuda_graphs.times_short(self.device)
                return int(create(model, 1, self.device.encode(), None))
        except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for CUDA
            raise NoEntry(f"its library is for {self.device}: {error}") from error

    def _count_outputs(self, model: ctypes.c_void_p, found: Any) -> None:
        self._library.AOTInductorModelContainerGetNumOutputs(model, found)

    def _delete(self, model: ctypes.c_void_p) -> None:
        self._library.AOTInductorModelContainerDelete(model)

    def _runner(self) -> Any:
        # Without the other one's events, which a graph could not be captured with.
        run = self._library.AOTInductorModelContainerRunSingleThreaded
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        run.argtypes = [pointer, pointer, size, pointer, size, pointer, pointer]
        return run

    def _start(self, model: ctypes.c_void_p, given: Any, outputs: Any) -> int:
        return int(self._run(model, given, len(given), outputs, len(outputs), self._stream(), None))

    def _failure(self) -> RuntimeError:
        # A library says in no version that memory was short, and in 2.11 nothing at all.
        failure, before = super()._failure(), self._short
        self._short = cuda_graphs.times_short(self.device)
        if self._short > before:
            return torch.OutOfMemoryError(f"{failure}: CUDA out of memory on {self.device}")
        return failure

    def _stream(self) -> int | None:
        return int(torch.cuda.current_stream(self.device).cuda_stream)


def _prototype(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_get_pointer = _prototype(
    "PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p
)
_capsule = _prototype(
    "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)
