# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Opens and calls an AOTInductor library, without Dynamo, Inductor or a compiler.

A library holds machine code and no weights. Each call reads the weights from the callee and passes
them in with the arguments. So each call uses the current weights, even if they have been loaded,
replaced or moved since the last call. Modules of the same structure share a library. Each library
has a plan, written by `builders.library`: where the inputs come from, their properties, and how the
result is built from the outputs.

The library is called through its C interface, without the GIL. torch's own runner would import
Inductor and probe the CPU. Seen in torch 2.11 to 2.13:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/inductor/aoti_runtime/interface.h
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from serve_warm._redaction import first_line
from serve_warm.compiler import cuda_graphs
from serve_warm.precompile.calls.apart import ApartInMemory
from serve_warm.precompile.calls.copies import copy_outputs
from serve_warm.precompile.calls.python_random import drawing
from serve_warm.precompile.calls.torch_state import refuse_unusual, tensor_check
from serve_warm.precompile.facts import table as facts
from serve_warm.precompile.facts.names import describe_tensor, name_of_class, resolve
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.plan import ASSIGNING, Plan
from serve_warm.precompile.libraries.cuda_graphs import Graphed, Run
from serve_warm.precompile.libraries.inputs import (
    GONE,
    Inputs,
    TensorSource,
    Watched,
    explain_missing,
    follow,
)
from serve_warm.private_apis.torch_c import handles_of, tensors_of

Build = Callable[[Sequence[object], Sequence[object], Sequence[object], Sequence[object]], object]
"""Function that builds the callee's result. It takes the outputs of the native code, the inputs of
the native code, the tensors of the call, and the existing objects that the plan finds."""

Assign = tuple[Callable[[object], object], str, Build]
"""An attribute that a call assigns: the steps from the callee to the module, the name, and the
value."""

DAMAGED = (AttributeError, LookupError, TypeError, ValueError, ImportError, OSError)
"""Exceptions raised when a library is missing or does not match its plan."""


class LibraryFailed(RuntimeError):
    """A library's code failed. Changes that the code made before the failure are not undone."""


class LibraryFailedCleanly(LibraryFailed):
    """A library's code failed but changed nothing, so other code can run the same call."""


def load(path: Path, plan: Plan) -> Function:
    """Return a library's function, called as (callee, *tensors). Executes code from the file.

    The caller must have compared the file with its digest. The system's loader checks nothing, so a
    truncated file would crash the process later with a bus error. If the tensors or the module
    differ from those of the build, the function raises `NoEntry` before it computes anything.

    Raises:
        NoEntry: the library cannot be opened on this machine.
    """
    try:
        device = str(plan.get("device", "cpu"))
        kind = Native if device == "cpu" else NativeOnGpu
        native = kind(path, device=device, inputs=len(plan["inputs"]), outputs=int(plan["outputs"]))
        return function_of(plan, native)
    except DAMAGED as error:
        raise NoEntry(f"its library cannot be opened: {type(error).__name__}: {error}") from error


def function_of(plan: Plan, native: Any) -> Function:
    """Return the function for a plan. With None as `native`, the function cannot be called.

    Raises one of `DAMAGED` if the plan is wrong.
    """
    inputs = tuple(TensorSource(**plain) for plain in plan["inputs"])
    assigns, plain = _assigns(plan["result"])
    result = _result(plain)
    existing = [_finder(chain) for chain in plan.get("existing", ())]
    numbers = [drawing(draws) for draws in plan.get("numbers", {}).values()]
    function = Function(
        native,
        inputs,
        result=result,
        assigns=assigns,
        existing=existing,
        writes=bool(plan["writes"]),
        draws=bool(plan["draws"]),
        captures=plan.get("captures") if native is not None else None,
        numbers=numbers,
    )
    function.copies = plan.get("copies", ())
    return function


class Function:
    """A library's code, with functions that read the inputs and build the result."""

    def __init__(
        self,
        native: Native,
        inputs: Sequence[TensorSource],
        *,
        result: Build,
        assigns: Sequence[Assign] = (),
        existing: Sequence[Callable[[object], object]] = (),
        writes: bool,
        draws: bool = True,
        captures: str | None = None,
        numbers: Sequence[Callable[[], object]] = (),
    ) -> None:
        self.native = native
        self._graphs: Graphed | None = None
        if captures:
            cuda_graphs.note_skip(captures)
        elif captures is not None:
            brought = [index for index, given in enumerate(inputs) if given.kind == "argument"]
            self._graphs = Graphed(
                native, device=native.device, brought=brought, inputs=len(inputs)
            )
        self.result = result
        self.copies: Sequence[int] = ()
        """Numbers of the outputs that a call copies, because they share memory only in the library.
        """
        self.assigns = assigns
        """The attributes that a call assigns."""
        self._existing = existing
        """Functions that find, from the callee, the existing objects that a call returns."""
        self._writes = writes
        """Whether the library writes into its inputs. If so, no two inputs may overlap."""
        self._numbers = numbers
        """Functions that draw numbers from Python's `random` module. No code uses the numbers."""
        self._draws = draws or bool(numbers)
        """Whether a call draws random numbers."""
        self.inputs = Inputs(inputs)
        self._said = [i.said for i in inputs]
        self._free = frozenset(number for number, i in enumerate(inputs) if "*" in i.said)
        self._apart = ApartInMemory()
        self._apart.has_fixed_sizes = not self._free
        self._checks: tuple[Callable[..., bool], ...] = ()
        self.input_ids: frozenset[int] = frozenset()
        """Ids of the inputs of the last call for which a check was created
        (`entries.function.inputs_of`)."""

    def __call__(self, callee: object, /, *tensors: torch.Tensor) -> object:
        """Run the library.

        Raises:
            NoEntry: the library does not match this call; nothing was computed.
            LibraryFailedCleanly: the library failed, but other code may answer the call.
            LibraryFailed: the library failed, and may have changed inputs or drawn random numbers.
        """
        return self.run(self.inputs.read(callee, tensors), callee, tensors)

    def run(
        self, inputs: Sequence[torch.Tensor], callee: object, tensors: Sequence[torch.Tensor]
    ) -> object:
        """Run the library on the inputs of a call. Raises what `__call__` raises."""
        owners = self._owners(callee) if self.assigns else ()
        existing = [found(callee) for found in self._existing]
        if not any(same(*inputs) for same in self._checks):
            self._learn(inputs)
        addresses = self._apart.check(inputs) if self._writes else None
        for draw in self._numbers:
            draw()
        graphs = self._graphs
        try:
            outputs: Sequence[object] = (
                self.native(inputs) if graphs is None else graphs(inputs, addresses)
            )
        except LibraryFailed as error:
            if self._writes or self._draws:
                raise
            raise LibraryFailedCleanly(str(error)) from None
        if self.copies:
            outputs = copy_outputs(outputs, self.copies)
        for owner, (_, name, make) in zip(owners, self.assigns, strict=True):
            setattr(owner, name, make(outputs, inputs, tensors, existing))
        return self.result(outputs, inputs, tensors, existing)

    def _owners(self, callee: object) -> list[object]:
        try:
            return [walk(callee) for walk, _, _ in self.assigns]
        except GONE as error:
            raise explain_missing(error) from error

    def _learn(self, inputs: Sequence[Any]) -> None:
        """Compare the tensors with the build's tensors, and create a C++ check for later calls."""
        for number, (tensor, was) in enumerate(zip(inputs, self._said, strict=True)):
            if not isinstance(tensor, torch.Tensor):
                raise NoEntry(f"its graph needs a tensor, but got {tensor!r:.40}")
            refuse_unusual(tensor)
            now = describe(tensor, free=number in self._free)
            if now != was:
                raise NoEntry(f"an input tensor of its graph is {now}, but was {was} in the build")
        # The check distinguishes inference tensors from others, but the code treats both the same.
        every = {n: (range(inputs[n].dim()), range(inputs[n].dim())) for n in self._free}
        self._checks = (tensor_check(inputs, free=every), *self._checks[:3])
        self.input_ids = frozenset(map(id, inputs))


class Followed:
    """A library's function for known calls of one callable.

    Right before each call, the caller must check that the watch's `unchanged` returns True.
    """

    __slots__ = ("_watched", "function")

    def __init__(self, function: Function, watched: Watched) -> None:
        self.function = function
        self._watched = watched

    def __call__(self, callee: object, /, *tensors: torch.Tensor) -> object:
        """Run the library. Raises what `Function.__call__` raises."""
        function, readers = self.function, self._watched.readers
        read = readers.get(function)
        if read is None:
            read = function.inputs.read
            if self._watched.unchanged():  # otherwise the next call finds other modules
                read = readers[function] = function.inputs.reader(callee, self._watched)
        return function.run(read(callee, tensors), callee, tensors)


def for_known_calls(fn: Callable[..., object], watched: Watched | None) -> Callable[..., object]:
    """Return an entry's function for known calls; for a library, this is a `Followed`."""
    if isinstance(fn, Function) and watched is not None:
        return Followed(fn, watched)
    return fn


def describe(tensor: torch.Tensor, *, free: bool) -> str:
    """Return the properties of a tensor that native code relies on.

    If `free` is true, the sizes and strides are left out.
    """
    every = range(tensor.dim()) if free else ()
    return describe_tensor(tensor, free=(every, every))


# What is returned -----------------------------------------------------------------------------


ORDERED = "ordered"
"""Kind of a result that is an `OrderedDict`."""


def _assigns(plain: Sequence[Any]) -> tuple[list[Assign], Sequence[Any]]:
    """Return the attributes that a plan assigns, and the form of the call's result."""
    if plain[0] != ASSIGNING:
        return [], plain
    _, assigned, result = plain
    return [(follow(steps), str(name), _result(form)) for steps, name, form in assigned], result


def assigns(plan: Plan) -> bool:
    """Return whether a plan assigns attributes of modules."""
    return plan.get("result", [""])[0] == ASSIGNING


GIVEN = ("output", "input", "argument", "existing")
"""Kinds of returned objects that a call does not create, in the order of `Build`'s parameters."""


def _finder(chain: Sequence[Sequence[Any]]) -> Callable[[object], object]:
    """Return a function that follows `Facts.chain` from the callee."""
    unknown = {step for step, _ in chain} - facts.STEPS
    if unknown:
        raise ValueError(f"the path to a returned object has the unknown step {min(unknown)!r}")

    def find(callee: object) -> object:
        found = facts.find(callee, chain)
        if isinstance(found, facts.Missing):
            raise NoEntry(f"an object that it returns is missing: {found.why}")
        return found

    return find


def _result(plain: Sequence[Any]) -> Build:
    """Return the function that builds the callee's result. Each part of a plan is a list."""
    kind, *rest = plain
    if kind in GIVEN:
        place, index = GIVEN.index(kind), int(rest[0])
        return lambda *given: given[place][index]
    if kind == "plain":
        value = rest[0]
        return lambda *_: value
    if kind in ("dict", ORDERED):
        pairs = [(key, _result(item)) for key, item in rest[0]]
        if kind == ORDERED:
            return lambda *given: OrderedDict((key, item(*given)) for key, item in pairs)
        return lambda *given: {key: item(*given) for key, item in pairs}
    if kind in ("list", "tuple"):
        items = [_result(item) for item in rest[0]]
        made = list if kind == "list" else tuple
        return lambda *given: made(item(*given) for item in items)
    return _of_class(kind, *rest)


def _of_class(kind: str, where: Sequence[str], name: str, parts: Sequence[Any]) -> Build:
    found: Any = resolve(where[0], where[1])
    if name_of_class(found) != name:
        raise ValueError(f"{where[1]} is not the same class as at build time")
    make: Callable[..., Any] = found
    if kind == "fields" and dataclasses.is_dataclass(found):
        fields = {field: _result(item) for field, item in parts}
        return lambda *given: make(**{field: item(*given) for field, item in fields.items()})
    if kind == "sequence" and issubclass(found, tuple):
        items = [_result(item) for item in parts]
        make = getattr(found, "_make", make)  # named tuples take items as separate arguments
        return lambda *given: make([item(*given) for item in items])
    raise ValueError(f"a {where[1]} cannot be built as {kind!r}")


# The C interface ------------------------------------------------------------------------------


class Native:
    """One shared library and its models. Each model runs one call at a time.

    The library is never closed, because its code might still be running, and torch keeps the
    objects that the library registered.
    """

    def __init__(self, path: Path, *, device: str, inputs: int, outputs: int) -> None:
        self.device = device
        self._library = ctypes.CDLL(str(path))  # its calls release the GIL
        self._run = self._runner()
        self._last_error = getattr(self._library, "AOTInductorGetLastError", None)
        self._inputs: type[ctypes.Array[ctypes.c_void_p]] = ctypes.c_void_p * inputs
        self._output_count = outputs
        self._outputs: type[ctypes.Array[ctypes.c_void_p]] = ctypes.c_void_p * outputs
        # In torch's own container, a waiting thread may never wake up if there are more threads
        # than models. Here no thread waits: if no model is idle, it makes a new one.
        self._idle = [self._model()]

    def _model(self) -> ctypes.c_void_p:
        model = ctypes.c_void_p()
        if self._create(ctypes.byref(model)):
            raise NoEntry(f"its library cannot create a model: {self._why()}")
        found = ctypes.c_size_t()
        self._count_outputs(model, ctypes.byref(found))
        if found.value != self._output_count:
            self._delete(model)
            raise NoEntry(f"its library has {found.value} outputs, not {self._output_count}")
        return model

    def _create(self, model: object) -> int:
        create = self._library.AOTInductorModelCreate
        create.argtypes = [ctypes.c_void_p] * 2
        return int(create(model, None))

    def _count_outputs(self, model: ctypes.c_void_p, found: object) -> None:
        self._library.AOTInductorModelGetNumOutputs(model, found)

    def _delete(self, model: ctypes.c_void_p) -> None:
        self._library.AOTInductorModelDelete(model)

    def _runner(self) -> Callable[..., int]:
        run = self._library.AOTInductorModelRun
        run.argtypes = [ctypes.c_void_p] * 3
        return run

    def _start(
        self,
        model: ctypes.c_void_p,
        given: ctypes.Array[ctypes.c_void_p],
        outputs: ctypes.Array[ctypes.c_void_p],
    ) -> int:
        return int(self._run(model, given, outputs))

    def _failure(self) -> RuntimeError:
        # The other lines name the place in C++.
        reason = first_line(self._why())
        return LibraryFailed(f"the library of a compiled call failed: {reason}")

    def _why(self) -> str:
        text = ctypes.c_char_p()
        if self._last_error is not None:
            self._last_error(ctypes.byref(text))
        return (text.value or b"no reason given").decode(errors="replace")

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the library on the given tensors, and return the outputs.

        Raises:
            LibraryFailed: the code failed.
        """
        model = self._take_model()
        try:
            return self._run_model(model, inputs)
        finally:
            # Also after a failure, because a run only changes which kernels a model has loaded, and
            # loads missing ones again (2.11 to 2.15). Models are never deleted, because captured
            # CUDA graphs launch their kernels.
            self._idle.append(model)

    @contextlib.contextmanager
    def reserve(self) -> Iterator[Run]:
        """Yield a function that runs one model, which no other thread uses during the block."""
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

    def _run_model(
        self, model: ctypes.c_void_p, inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        outputs = self._outputs()
        # The library owns the handles once it runs, even if it fails.
        handles = handles_of(list(inputs))
        given = self._inputs(*[_get_pointer(handle, None) for handle in handles])
        if self._start(model, given, outputs):
            raise self._failure()
        return tensors_of([_capsule(output, None, None) for output in outputs])


class NativeOnGpu(Native):
    """A shared library for a GPU.

    Each model that it creates is an AOTInductor container, which holds the actual model and
    kernels.

    As in torch, work is queued on the calling thread's current stream.
    """

    _short = 0
    """Number of out-of-memory errors that torch had counted at the last check."""

    def _create(self, model: object) -> int:
        create = self._library.AOTInductorModelContainerCreateWithDevice
        create.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p]
        try:
            # The call permanently changes the current device (2.11 to 2.13, model_base.h).
            with torch.cuda.device(self.device):
                self._short = cuda_graphs.times_short(self.device)
                return int(create(model, 1, self.device.encode(), None))
        except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for CUDA
            raise NoEntry(f"its library cannot run on {self.device}: {error}") from error

    def _count_outputs(self, model: ctypes.c_void_p, found: object) -> None:
        self._library.AOTInductorModelContainerGetNumOutputs(model, found)

    def _delete(self, model: ctypes.c_void_p) -> None:
        self._library.AOTInductorModelContainerDelete(model)

    def _runner(self) -> Callable[..., int]:
        # The other run function uses events, which a CUDA graph cannot capture.
        run = self._library.AOTInductorModelContainerRunSingleThreaded
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        run.argtypes = [pointer, pointer, size, pointer, size, pointer, pointer]
        return run

    def _start(
        self,
        model: ctypes.c_void_p,
        given: ctypes.Array[ctypes.c_void_p],
        outputs: ctypes.Array[ctypes.c_void_p],
    ) -> int:
        return int(self._run(model, given, len(given), outputs, len(outputs), self._stream(), None))

    def _failure(self) -> RuntimeError:
        # The error does not say that memory ran out in any version; in 2.11 it is empty.
        failure, before = super()._failure(), self._short
        self._short = cuda_graphs.times_short(self.device)
        if self._short > before:
            return torch.OutOfMemoryError(f"{failure}: CUDA out of memory on {self.device}")
        return failure

    @functools.cached_property
    def _stream(self) -> Callable[[], int]:
        return cuda_graphs.reader_of_stream(self.device)


def _prototype(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_get_pointer: Callable[[object, None], int | None] = _prototype(
    "PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p
)
_capsule: Callable[[int | None, None, None], object] = _prototype(
    "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)
