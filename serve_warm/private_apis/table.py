# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The table of patches: each function of another package that serve_warm replaces.

`make upstream TORCH=2.16.0` compares the table with a version of torch that nobody has tried yet.
"""

from __future__ import annotations

import re
from typing import Literal

from serve_warm._records import record

Lifetime = Literal["process", "trace", "library"]
"""How long a patch stays, and so how it is undone: never, at the end of a trace, or at the end of
the build of a library."""


@record(frozen=True, kw_only=True)
class Patch:
    """One row: what is replaced, for how long, and why."""

    at: tuple[str, ...]
    """Places of the function (`Sources.digest`). Versions of torch have it at different places."""
    level: Literal[1, 2, 3]
    """The lowest level that gives wrong answers, or none, without this patch. If a build finds an
    unknown function at this place, it makes no entries of this level."""
    lifetime: Lifetime
    why: str
    since: str = ""
    """The first version that has the function, if older supported versions have none."""
    until: str = ""
    """The first version without it."""
    home: str = ""
    """The place of the definition, if the module at `at` imports the function from there."""
    instead: str = ""
    """What torch offers in public for the same purpose, and why it is not used yet."""
    adds: bool = False
    """Whether the class has no such attribute. The digest is then that of the class."""

    @property
    def name(self) -> str:
        """The name by which code applies the patch: the place in the newest version."""
        return self.at[0].partition(":")[2]

    def is_in(self, version: str) -> bool:
        """Return whether this version of the package has the function, as far as we know."""
        return numbers(self.since) <= numbers(version) and not (
            self.until and numbers(self.until) <= numbers(version)
        )


def numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: `2.16.0a0+gitabc` is later than `2.9`."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:2]))


DYNAMO = "torch._dynamo"
VARIABLES = "torch._dynamo.variables"
INDUCTOR = "torch._inductor"


def _process(at: str, why: str, *, adds: bool = False, **fields: str) -> Patch:
    return Patch(at=(at,), level=1, lifetime="process", why=why, adds=adds, **fields)


def _trace(at: str, why: str, *others: str, adds: bool = False, **fields: str) -> Patch:
    places = (at, *others)
    return Patch(at=places, level=2, lifetime="trace", why=why, adds=adds, **fields)


def _library(at: str, why: str) -> Patch:
    return Patch(at=(at,), level=3, lifetime="library", why=why)


_TREES = f"{INDUCTOR}.cudagraph_trees"
_HEURISTICS = f"{INDUCTOR}.runtime.triton_heuristics"
_DICTS = f"{VARIABLES}.dicts:ConstDictVariable"
_SETS = (
    f"{VARIABLES}.sets:BaseSetVariable",
    f"{VARIABLES}.sets:SetVariable",
    f"{VARIABLES}.dicts:SetVariable",
)
"""Dynamo's sets: from 2.15 on, in 2.13, and before."""
_KEYS = (f"{VARIABLES}.hashable:HashableTracker", f"{_DICTS}._HashableTracker")
"""Keys of Dynamo's dicts: from 2.13 on, and before."""
SKIP_USERS = ("cudagraph_trees", "output_code", "compile_fx")
"""Modules of Inductor that import the function that records why torch captures no graph."""


STANCE_CALLBACK = "_callback_from_stance"
PRECOMPILE_HEADER = "_precompile_header"
HEADER_FOLDER, HEADER_LOCKS = "_HEADER_DIR", "_HEADER_LOCK_DIR"
COMBO_TUNING = "_combo_sequential_autotune"
BUILD_C = "_build"
RESOLVE_SUPER = "SuperVariable._resolved_getattr_and_source"
"""Names of functions and settings in the table, for code that applies their rows."""


TABLE: tuple[Patch, ...] = (
    # For the life of the process, in an application that is wrapped.
    _process("torch:compile", "gives entries to what an application compiles itself"),
    _process(
        "torch.nn.modules.module:Module.compile", "the same for modules that are compiled in place"
    ),
    # For the life of the process, once torch's compiler is imported.
    _process(
        f"{DYNAMO}.eval_frame:{STANCE_CALLBACK}",
        "counts compiles and eager calls, and forbids compiles",
    ),
    _process(
        f"{INDUCTOR}.cpp_builder:run_compile_cmd",
        "counts runs of the C++ compiler, and makes its headers only then",
    ),
    _process(
        f"{INDUCTOR}.codecache:{PRECOMPILE_HEADER}", "makes headers only when a compiler runs"
    ),
    *(
        _process(
            f"{INDUCTOR}.codecache:{name}", "keeps headers where no other user can write to them"
        )
        for name in (HEADER_FOLDER, HEADER_LOCKS)
    ),
    _process(
        f"{INDUCTOR}.cpu_vec_isa:VecISA.check_build",
        "takes the answers of the build, so a start runs no compiler",
    ),
    _process(f"{INDUCTOR}.cpu_vec_isa:valid_vec_isa_list", "probes no ISA that nobody asks for"),
    _process(
        f"{INDUCTOR}.cpu_vec_isa:x86_isa_checker", "compiles for every CPU with AVX2 (`portable`)"
    ),
    _process(
        f"{_HEURISTICS}:CachingAutotuner.bench", "counts measurements of a kernel's configurations"
    ),
    _process(
        f"{_HEURISTICS}:CachingAutotuner.recheck_autotune_cache",
        "finds the build's measurements in this process's folder",
    ),
    *(
        _process(
            f"{_HEURISTICS}:CachingAutotuner.{name}", "times autotuning of kernels", since=since
        )
        for name, since in (
            ("autotune_to_one_config", ""),
            (COMBO_TUNING, "2.12"),
            ("coordinate_descent_tuning", ""),
        )
    ),
    _process(
        f"{INDUCTOR}.select_algorithm:AlgorithmSelectorCache.autotune",
        "times measurements of templates",
    ),
    _process(
        f"{INDUCTOR}.autotune_process:AsyncAutotuner.get_results",
        "times measurements of templates in another process",
    ),
    _process(f"{_TREES}:CUDAGraphTreeManager.__init__", "captures in one thread at a time"),
    _process(
        f"{_TREES}:CUDAGraphTreeManager.record_function",
        "counts captures, and goes on without a graph if one fails",
    ),
    _process(
        f"{_TREES}:CUDAGraphTreeManager.run_eager",
        "counts eager runs before a capture, and cleans up if one fails",
    ),
    _process(
        f"{_TREES}:is_cudagraph_capture_sizes",
        "notes sizes that the application leaves out",
    ),
    _process(f"{_TREES}:get_obj", "lets each thread capture (in 2.11)"),
    _process(
        f"{INDUCTOR}.cudagraph_utils:log_cudagraph_skip_and_bump_counter",
        "notes why torch captures no graph",
    ),
    *(
        # A module that is loaded before the patch has imported the function itself. The place goes
        # through the package, so that finding it does not import the module.
        _process(
            f"{INDUCTOR}:{user}.log_cudagraph_skip_and_bump_counter",
            "notes why torch captures no graph",
            home=f"{INDUCTOR}.cudagraph_utils:log_cudagraph_skip_and_bump_counter",
        )
        for user in SKIP_USERS
    ),
    *(
        _process(
            f"torch.cuda.graphs:CUDAGraph.{name}",
            "counts captures by the application",
            instead=f"torch.cuda.graphs.{hook}, from 2.14 on. Not run: no GPU had this torch",
        )
        for name, hook in (
            ("capture_begin", "register_graph_capture_start_hook"),
            ("capture_end", "register_graph_capture_end_hook"),
        )
    ),
    _process(f"triton.runtime.build:{BUILD_C}", "counts runs of the C compiler"),
    _process(
        "triton.runtime.autotuner:Autotuner.check_disk_cache",
        "times autotuning of kernels",
        since="3.3",
    ),
    _process(
        "triton.runtime.autotuner:Autotuner.cache_results",
        "keeps the results of all kernels",
        adds=True,
        since="3.3",
    ),
    # While Dynamo traces a call for an entry.
    *(
        _trace(f"{_DICTS}.{name}", "notes which keys a trace looks up")
        for name in ("__contains__", "getitem_const", "maybe_getitem_const")
    ),
    _trace(
        f"{_DICTS}.getitem_const_raise_exception_if_absent",
        "notes which keys a trace looks up, and guards those that are missing",
    ),
    _trace(f"{_DICTS}.items", "guards the keys of a dict that is read as a whole", adds=True),
    _trace(f"{_DICTS}.call_method", "guards the keys of dicts that are united"),
    _trace(f"{_DICTS}.install_dict_contains_guard", "guards all keys if the trace made the key"),
    *(
        _trace(
            f"{VARIABLES}.dicts:DunderDictVariable.{name}",
            "guards the keys of an object's `__dict__`",
            since="2.13",
        )
        for name in ("install_dict_contains_guard", "install_dict_keys_match_guard")
    ),
    _trace(
        f"{DYNAMO}.source:ConstDictKeySource.reconstruct", "notes that code counts a dict's keys"
    ),
    _trace(
        f"{_KEYS[0]}.__init__",
        "guards objects that become keys, and knows which hash is of a key",
        f"{_KEYS[1]}.__init__",
    ),
    *(
        _trace(
            f"{VARIABLES}:*.{name}",
            "guards attributes that are missing, or kept as constants",
            since=since,
            until=until,
        )
        for name, since, until in (("var_getattr", "", "2.14"), ("tp_getattro_impl", "2.14", ""))
    ),
    _trace(f"{VARIABLES}:*.call_obj_hasattr", "guards the answers of hasattr"),
    _trace(
        f"{DYNAMO}.symbolic_convert:InstructionTranslatorBase.load_builtin",
        "guards that no global hides a built-in function",
    ),
    _trace(
        f"{VARIABLES}.builtin:BuiltinVariable.call_getattr",
        "guards constant attributes",
        until="2.13",
    ),
    _trace(
        f"{VARIABLES}.builtin:BuiltinVariable.call_function",
        "refuses hashes, ids and the order of sets",
    ),
    _trace(
        f"{VARIABLES}.builtin:GetAttrBuiltinVariable.call_function",
        "lets a forward read the names of torch's classes",
        since="2.13",
    ),
    _trace(f"{VARIABLES}.constant:ConstantVariable.call_method", "refuses hashes that differ"),
    _trace(
        f"{VARIABLES}.tensor:TensorVariable.method_attr_requires_grad",
        "guards `requires_grad` of weights",
    ),
    _trace(f"{VARIABLES}.tensor:UntypedStorageVariable.__init__", "refuses reads of storages"),
    _trace(
        f"{VARIABLES}.functions:UserFunctionVariable.bind_args",
        "refuses variables of functions that have no path",
    ),
    _trace(
        f"{VARIABLES}.misc:{RESOLVE_SUPER}",
        "refuses constants that super() finds for a created object",
    ),
    _trace(
        f"{VARIABLES}.builder:make_dupe_guard",
        "guards that two names mean one object",
        home=f"{DYNAMO}.guards:make_dupe_guard",
    ),
    _trace(
        f"{VARIABLES}.builder:is_from_closure_source",
        "guards classes in closures",
        home=f"{DYNAMO}.source:is_from_closure_source",
    ),
    _trace(
        f"{VARIABLES}.builder:VariableBuilder.wrap_unspecialized_primitive",
        "keeps the precision of random numbers",
    ),
    _trace(f"{DYNAMO}.codegen:PyCodegen.__call__", "notes objects that a call returns"),
    *(
        _trace(
            f"{_SETS[0]}.{name}",
            "notes iterations over sets",
            *(f"{each}.{name}" for each in _SETS[1:]),
            until=until,
            since=since,
        )
        for name, since, until in (
            ("unpack_var_sequence", "", ""),
            ("tp_iter_impl", "2.13", ""),
        )
    ),
    _trace(
        f"{_SETS[0]}.call_method",
        "refuses `pop` of a set",
        *(f"{each}.call_method" for each in _SETS[1:]),
    ),
    _trace(
        f"{VARIABLES}.lists:CommonListMethodsVariable.call_method",
        "notes `list.extend` with a set",
        until="2.15",
    ),
    _trace(
        f"{VARIABLES}.lists:BaseListVariable.list_extend",
        "notes `list.extend` with a set",
        since="2.15",
    ),
    _trace(
        f"{VARIABLES}.lists:ListVariable.tp_methods",
        "notes `list.extend` with a set",
        since="2.15",
    ),
    _trace(
        f"{VARIABLES}.functions:invoke_and_store_as_constant",
        "notes results that become constants",
    ),
    _trace(f"{DYNAMO}.symbolic_convert:is_stdlib", "guards values that are read from `os`"),
    *(
        _trace(
            f"{VARIABLES}.{kind}.{name}",
            "guards the texts of objects",
            since=since,
            until=until,
        )
        for kind, name, since, until in (
            ("user_defined:UserDefinedObjectVariable", "repr_impl", "2.13", "2.14"),
            ("nn_module:NNModuleVariable", "repr_impl", "2.13", "2.14"),
            ("user_defined:UserDefinedObjectVariable", "tp_repr_impl", "2.14", ""),
            ("user_defined:UserDefinedObjectVariable", "tp_str_impl", "2.14", ""),
            ("nn_module:NNModuleVariable", "tp_repr_impl", "2.14", ""),
            ("builtin:BuiltinVariable", "call_str", "", ""),
            ("builtin:BuiltinVariable", "call_repr", "", ""),
        )
    ),
    _trace(
        f"{VARIABLES}.torch:TorchInGraphFunctionVariable.call_function",
        "notes functions of torch that run in the trace",
    ),
    _trace(f"{DYNAMO}.output_graph:SubgraphTracer.create_proxy", "notes functions in the graph"),
    _trace(f"{DYNAMO}.utils:run_node", "notes the code of custom operators"),
    *(
        _trace(f"torch._decomp.decompositions:{name}", "limits the steps of recurrent layers")
        for name in ("one_layer_rnn", "one_layer_lstm")
    ),
    _trace(
        f"{DYNAMO}.side_effects:SideEffects.codegen_update_mutated",
        "notes the objects that a call changes",
    ),
    _trace(f"{INDUCTOR}.compile_fx:compile_fx", "copies the graph, to compare its outputs"),
    # Not functions of torch: hooks of the application's tensor subclasses.
    *(
        _trace(f"application:*.{name}", "notes the code of tensor subclasses")
        for name in ("__torch_function__", "__torch_dispatch__")
    ),
    # While torch builds a library.
    _library(
        f"{INDUCTOR}.codecache:AotCodeCompiler.compile",
        "silences the library, and names operators that it cannot call",
    ),
    _library(
        f"{INDUCTOR}.cpp_builder:CppBuilder.build", "runs the C++ compilers of libraries together"
    ),
    _library(
        f"{INDUCTOR}.ir:FallbackKernel.export_extern_kernel_node",
        "names the line that calls an operator without a C interface",
    ),
)
"""All patches. Code applies one by its name (`patches`); no other code replaces anything."""
