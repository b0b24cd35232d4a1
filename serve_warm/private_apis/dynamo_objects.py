# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Types of Dynamo's objects: the attributes and methods that serve_warm uses, and no others.

Seen in torch 2.11 to 2.15. Only type checkers read this module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Protocol, TypedDict

if TYPE_CHECKING:
    from traceback import FrameSummary

# Sources and guards -------------------------------------------------------------------------------


class ObjectSource(Protocol):
    """Where a trace reads an object, such as `L['callee'].weight` (`torch._guards.Source`)."""

    @property
    def name(self) -> str | Callable[[], str]:
        """The source as a Python expression. A method up to 2.11.

        Raises:
            NotImplementedError: the trace has created the object.
        """


class ChainedSource(ObjectSource, Protocol):
    """The source of something that is read from another object (`ChainedSource`)."""

    @property
    def base(self) -> ObjectSource:
        """The source of the other object."""


class AttributeSource(ChainedSource, Protocol):
    """The source of an attribute (`AttrSource`)."""

    @property
    def member(self) -> str:
        """The name of the attribute."""


class OriginalGuard(Protocol):
    """A guard as the trace installed it (`torch._guards.Guard`)."""

    @property
    def originating_source(self) -> ObjectSource:
        """The source of the guarded object."""

    @property
    def create_fn(self) -> object:
        """The function that makes the check. A `functools.partial` has `GuardArguments`."""

    @property
    def code_list(self) -> Sequence[str] | None:
        """The check as Python expressions."""

    @property
    def user_stack(self) -> Sequence[FrameSummary] | None:
        """The lines of the user's code that need the guard."""


class GuardEntry(Protocol):
    """A guard with its object, as a guard filter gets it (`GuardFilterEntry`)."""

    @property
    def name(self) -> str:
        """The source of the object; empty for a guard on the state of the process."""

    @property
    def guard_type(self) -> str:
        """The kind of the guard, such as CONSTANT_MATCH."""

    @property
    def has_value(self) -> bool:
        """Whether the guard is about an object."""

    @property
    def value(self) -> object:
        """The object."""

    @property
    def orig_guard(self) -> OriginalGuard:
        """The guard itself."""


class GuardArguments(TypedDict, total=False):
    """Further arguments of a guard, by name. Each kind of guard has other ones."""

    attr: str
    """The attribute that an object has or lacks."""
    key: object
    """The key that a dict has or lacks."""
    source_b: ObjectSource
    """The source of an object that is the same."""


# Models of Python objects -------------------------------------------------------------------------


class Variable(Protocol):
    """Dynamo's model of a Python object in a trace (`VariableTracker`)."""

    @property
    def source(self) -> ObjectSource | None:
        """Where the trace reads the object; None if the trace has created the object."""

    @property
    def mutation_type(self) -> object:
        """Whether and how the trace may change the object (`MutationType`)."""

    def is_python_constant(self) -> bool:
        """Return whether the object is a constant of the trace."""

    def as_python_constant(self) -> object:
        """Return the constant."""

    def python_type(self) -> type:
        """Return the class of the object."""

    def realize(self) -> Variable:
        """Return the model itself, also for an object that the trace has not looked at yet."""


class ModelOfValue(Variable, Protocol):
    """A model that holds the object itself, such as `UserDefinedObjectVariable`."""

    @property
    def value(self) -> object:
        """The object."""


class ModelOfFunction(Variable, Protocol):
    """Dynamo's model of a built-in function (`BuiltinVariable`)."""

    @property
    def fn(self) -> Callable[..., object]:
        """The function."""


class ModelOfPythonFunction(Variable, Protocol):
    """Dynamo's model of a function or method that is written in Python (`UserFunctionVariable`)."""

    def get_function(self) -> FunctionType:
        """Return the function."""

    def get_source(self) -> ObjectSource | None:
        """Return where the trace reads the function; None if it knows no path."""


class ModelOfSuper(Variable, Protocol):
    """Dynamo's model of `super()` (`SuperVariable`)."""

    @property
    def objvar(self) -> Variable | None:
        """The object or class whose bases are searched."""


class ModelOfTorchFunction(Variable, Protocol):
    """Dynamo's model of a function or class of torch (`TorchInGraphFunctionVariable`)."""

    @property
    def value(self) -> Callable[..., object]:
        """The function or class."""


class ModelOfTensor(Variable, Protocol):
    """Dynamo's model of a tensor (`TensorVariable`)."""

    @property
    def requires_grad(self) -> bool | None:
        """The flag of the tensor, if known."""


class ModelOfSet(Variable, Protocol):
    """Dynamo's model of a set (`SetVariable`)."""

    @property
    def items(self) -> dict[object, object]:
        """The items, as keys of a dict whose order is the order of iteration."""


class ModelOfDict(Variable, Protocol):
    """Dynamo's model of a dict (`ConstDictVariable`)."""

    def __contains__(self, key: object) -> bool:
        """Return whether the dict has a key."""

    def install_dict_keys_match_guard(self) -> None:
        """Guard all keys and their order."""

    def install_dict_contains_guard(self, tx: Translator, args: Sequence[Variable]) -> None:
        """Guard that the dict has, or lacks, a key."""


# The trace ----------------------------------------------------------------------------------------


class SideEffects(Protocol):
    """The changes of a trace to objects (`SideEffects`)."""

    @property
    def store_attr_mutations(self) -> Mapping[Variable, Mapping[str, Variable]]:
        """The attributes that the trace assigns, by object and name."""

    def has_pending_mutation_of_attr(self, item: Variable, name: str) -> bool:
        """Return whether the trace has set or deleted an attribute."""

    def is_modified(self, item: Variable) -> bool:
        """Return whether the trace has changed an object."""

    def _get_modified_vars(self) -> Sequence[Variable]: ...


class TraceOutput(Protocol):
    """What one attempt to trace has found so far (`OutputGraph`)."""

    @property
    def side_effects(self) -> SideEffects:
        """The changes to objects."""


class Translator(Protocol):
    """What executes the bytecode of one function in a trace (`InstructionTranslatorBase`)."""

    @property
    def output(self) -> TraceOutput:
        """The attempt to trace. Functions that are inlined share it."""

    @property
    def f_code(self) -> CodeType:
        """The code of the function."""

    @property
    def f_globals(self) -> dict[str, object]:
        """The globals of the function."""


class BytecodeInstruction(Protocol):
    """One instruction of bytecode (`Instruction`)."""

    @property
    def argval(self) -> str:
        """Its argument. `LOAD_GLOBAL` has a name."""


class ModelBuilder(Protocol):
    """What makes the model of an existing object (`VariableBuilder`)."""

    def get_source(self) -> ObjectSource:
        """Return the source of the object."""


# Functions of Dynamo that serve_warm replaces -----------------------------------------------------

Args = Sequence[Variable]
"""The positional arguments of a call in a trace."""

Kwargs = Mapping[str, Variable]
"""The keyword arguments of a call in a trace."""

CallFunction = Callable[[Variable, Translator, Args, Kwargs], "Variable | None"]
"""A method that calls the object of a model."""

CallBuiltin = Callable[[ModelOfFunction, Translator, Args, Kwargs], Variable]
"""The same for a built-in function."""

CallTorchFunction = Callable[[ModelOfTorchFunction, Translator, Args, Kwargs], "Variable | None"]
"""The same for a function of torch."""

CallMethod = Callable[[Variable, Translator, str, Args, Kwargs], Variable]
"""A method that calls a method of the object."""

ReadAttribute = Callable[[Variable, Translator, str], Variable]
"""A method that reads an attribute of the object."""

ReadOfTensor = Callable[[ModelOfTensor, Translator], "Variable | None"]
"""A method that reads one attribute of a tensor; None if the attribute is not known."""

BindArguments = Callable[
    [ModelOfPythonFunction, Translator, "list[Variable]", "dict[str, Variable]"],
    "dict[str, Variable]",
]
"""Makes the local variables of a function from the arguments of a call."""

ResolveSuper = Callable[[ModelOfSuper, Translator, str], "tuple[object, ObjectSource | None]"]
"""Returns what `super()` finds, and its source."""

AnswerHasattr = Callable[[Variable, Translator, str], "Variable | None"]
"""A method that executes `hasattr`; None if the answer is not known."""

Iterate = Callable[[Variable, Translator], object]
"""A method that iterates over the object."""

GetItem = Callable[[ModelOfDict, Translator, Variable], Variable]
"""A method that gets the item of a key."""

InstallGuard = Callable[[ModelOfDict, Translator, Args], None]
"""A method that guards keys."""

MakeKey = Callable[[object, Variable], None]
"""The `__init__` of a key of a dict or set (`HashableTracker`)."""

MakeGuard = Callable[[ObjectSource, "ObjectSource | None"], object]
"""Returns what checks that two sources lead to the same object, or None."""

LoadBuiltin = Callable[[Translator, BytecodeInstruction], None]
"""A method that reads a built-in name."""

WrapNumber = Callable[[ModelBuilder, object], Variable]
"""A method that makes the model of a number."""

WriteCode = Callable[[ChainedSource, object], None]
"""A method that writes the bytecode for a source."""

# Results of ahead-of-time compilation -------------------------------------------------------------


class InlinedSource(Protocol):
    """A piece of Python code that a trace has executed (`InlinedSource`)."""

    @property
    def module(self) -> str:
        """The name of its module."""


class SourceInfo(Protocol):
    """The Python code that a trace has executed (`SourceInfo`)."""

    @property
    def inlined_sources(self) -> Collection[InlinedSource]:
        """The pieces of code."""


class RuntimeEnvironment(Protocol):
    """The globals that the code around a graph needs (`GraphRuntimeEnv`)."""

    @property
    def import_sources(self) -> Mapping[str, str]:
        """The names of modules, by the name of the global."""

    @property
    def used_globals(self) -> Collection[str]:
        """The names of the globals that are stored with the code."""

    @property
    def external_refs(self) -> Collection[str]:
        """The names of the globals that the loader provides."""


class EntryParts(Protocol):
    """The parts of an entry (`CompileArtifacts`)."""

    @property
    def backend_id(self) -> object:
        """The name of the graph among the globals."""

    @property
    def runtime_env(self) -> RuntimeEnvironment:
        """The globals."""


class SerializedEntry(Protocol):
    """An entry in a form that can be stored (`AOTCompileSaveResult`)."""

    @property
    def serialized_data(self) -> bytes:
        """The entry as a pickle."""


class CompiledEntry(Protocol):
    """A graph compiled ahead of time, and the code around the graph (`AOTCompiledFunction`)."""

    fn: FunctionType
    """The code around the graph, without any checks."""

    @property
    def _artifacts(self) -> EntryParts: ...

    def source_info(self) -> SourceInfo:
        """Return the Python code that the trace has executed."""

    @classmethod
    def serialize(cls, fn: CompiledEntry, external_data: dict[str, object]) -> SerializedEntry:
        """Return an entry in a form that can be stored."""
