# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Inductor, the half of torch's compiler that writes kernels, and what lies between it and Dynamo.

Seen in torch 2.11 to 2.15. Importing Inductor takes a second, and a replica at level 3 does without
it. So each function here imports what it needs.
"""

from __future__ import annotations

import contextlib
import importlib
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from serve_warm.private_apis import module_names

if TYPE_CHECKING:
    from types import ModuleType

    import torch

# Settings -----------------------------------------------------------------------------------------


def captures_graphs() -> bool:
    """Return whether a setting turns on CUDA graphs for all compiled code."""
    from torch._inductor import config

    return bool(config.triton.cudagraphs)


def freezes_weights() -> bool:
    """Return whether a setting makes weights a part of the code."""
    from torch._inductor import config

    return bool(config.freezing)


def compile_threads() -> int:
    """Return how many C++ compilers may run at once: the number of cores, or the user's setting."""
    from torch._inductor import config

    return max(1, config.compile_threads or 1)


def patched_settings(values: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Change settings of Inductor in the block."""
    from torch._inductor import config

    known: Any = config
    return cast("AbstractContextManager[None]", known.patch(dict(values)))


def names_of_settings() -> frozenset[str]:
    """Return the names of Inductor's settings in this version."""
    from torch._inductor import config

    known: Any = config
    return frozenset(known._config)


def options_of_mode(mode: str, *, dynamic: bool | None) -> dict[str, Any]:
    """Return the settings that a mode of torch.compile, such as `max-autotune`, stands for."""
    from torch._inductor import list_mode_options

    return dict(list_mode_options(mode, dynamic))


def force_setting(config: Any, name: str, value: object) -> bool:
    """Set a setting as an environment variable would; return False if this version cannot.

    Since torch 2.12, an assignment to a setting affects only the current context, and requests run
    in other contexts. `config` is the module `torch._inductor.config`.
    """
    entry: Any = getattr(config, "_config", {}).get(name)
    if not hasattr(entry, "env_value_force"):
        return False
    entry.env_value_force = value
    return True


def candidate_isas(cpu_vec_isa: ModuleType) -> list[object] | None:
    """Return the vector ISAs that this CPU has and Inductor knows, the widest first; probe none.

    `cpu_vec_isa` is Inductor's module of that name. Returns None on other systems than Linux on
    x86, where Inductor knows at most one.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return None
    has = cpu_vec_isa.x86_isa_checker()
    known = cpu_vec_isa.supported_vec_isa_list
    return [isa for isa in known if all(name in has for name in str(isa).split())]


def isa_picker() -> Callable[[], object] | None:
    """Return Inductor's function that picks a vector ISA, or None if Inductor is not loaded."""
    if module_names.CODECACHE not in sys.modules:
        return None
    # The probe imports this module in its thread. Two threads that import modules of each other may
    # see half of one, so wait for an import that is running.
    importlib.import_module(module_names.CODECACHE)
    return cast("Callable[[], object]", sys.modules[module_names.CPU_VEC_ISA].pick_vec_isa)


# Graphs -------------------------------------------------------------------------------------------


def compile_library(
    graph: torch.fx.GraphModule, fakes: Sequence[Any], settings: Mapping[str, Any]
) -> str:
    """Compile a graph into a library, for the fake tensors of its trace; return its path."""
    from torch import _guards
    from torch._inductor.compile_fx import compile_fx_aot

    # In the mode of the trace's fake tensors, because the conditions use their symbols.
    with _guards.tracing(_guards.TracingContext(fakes[0].fake_mode)):
        return str(compile_fx_aot(graph, list(fakes), config_patches=dict(settings)))


def read_functional_form(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], read: Callable[[Any, Sequence[Any]], Any]
) -> None:
    """Call `read` with the form of a graph that has no in-place operations. It returns that form.

    The graph is changed, so pass a copy.
    """
    from torch._functorch import config
    from torch._functorch._aot_autograd.utils import make_boxed_compiler
    from torch._functorch.aot_autograd import aot_module_simplified

    known: Any = config
    compiler: Any = make_boxed_compiler(cast("Any", read))
    # These settings require a backend to return compiled code.
    with known.patch({name: False for name in _CACHES if name in known._config}):
        aot_module_simplified(graph, inputs, fw_compiler=compiler, inference_compiler=compiler)


_CACHES = ("enable_autograd_cache", "force_autograd_cache", "bundled_autograd_cache")


def is_fake(tensor: object) -> bool:
    """Return whether a tensor is only a description, as in a trace."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def with_real_tensors() -> AbstractContextManager[Any]:
    """In the block, operators on real tensors compute, although torch is tracing."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return cast("AbstractContextManager[Any]", unset_fake_temporarily())


def leaves_of(value: Any) -> list[Any]:
    """Return the values in nested lists, tuples, dicts and other containers that torch knows."""
    from torch.utils import _pytree

    return _pytree.tree_leaves(value)


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a copy of nested containers, with each value changed."""
    from torch.utils import _pytree

    return _pytree.tree_map(change, value)


# Operators ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def with_c_interface() -> Iterator[None]:
    """In the block, torch replaces operators without a C interface by equivalent ones (2.13)."""
    import torch
    from torch._inductor import decomposition

    equal = {torch.ops.aten._is_all_true.default: torch.ops.aten.all.default}
    table: Any = decomposition.select_decomp_table()  # a dict that torch keeps
    new = {operator: other for operator, other in equal.items() if operator not in table}
    table.update(new)
    try:
        yield
    finally:
        for operator in new:
            del table[operator]


def is_overload(target: object) -> bool:
    """Return whether a graph's target is one overload of an operator."""
    from torch import _ops

    return isinstance(target, _ops.OpOverload)


def is_higher_order(target: object) -> bool:
    """Return whether a graph's target runs graphs inside the graph, such as `torch.cond`."""
    from torch import _ops

    return isinstance(target, _ops.HigherOrderOperator)


def namespace_of(target: object) -> str | None:
    """Return the namespace of an operator, such as `aten`, or None if it is no operator."""
    from torch import _ops

    if not isinstance(target, (_ops.OpOverload, _ops.OpOverloadPacket)):
        return None
    name = getattr(target, "_qualified_op_name", "") or str(getattr(target, "_name", ""))
    return str(name).partition("::")[0]


def registered_for(target: Any) -> Iterator[Any]:
    """Yield the Python functions that are registered for an operator, but not its kernels.

    Kernels run in each call, so the current ones always run.
    """
    from torch import _ops
    from torch._library import custom_ops, simple_registry

    packet = target if isinstance(target, _ops.OpOverloadPacket) else target.overloadpacket
    for overload in (getattr(packet, name) for name in packet.overloads()):
        yield from overload.py_kernels.values()
        entry: Any = simple_registry.singleton.find(overload._name)
        for holder in vars(entry).values():
            for value in getattr(holder, "__dict__", {}).values():
                yield from value.values() if isinstance(value, dict) else ()
                for kernel in value if isinstance(value, list) else (value,):
                    yield getattr(kernel, "func", kernel)
    definition: Any = custom_ops.OPDEFS.get(packet._qualified_op_name)
    for name, value in vars(definition).items() if definition is not None else ():
        if name not in ("_init_fn", "_backend_fns"):
            yield value


def registered_in_inductor() -> Iterator[Any]:
    """Yield what is registered for Inductor: decompositions, lowerings, passes and settings."""
    from torch._inductor import config, decomposition, lowering
    from torch._inductor.fx_passes import joint_graph, post_grad

    settings: Any = config
    yield from decomposition.decompositions.values()
    yield from lowering.lowerings.values()
    names = [name for name in settings._config if "pass" in name or "custom" in name]
    for value in (getattr(settings, name, None) for name in names):
        yield from value.values() if isinstance(value, dict) else [value]
    for passes in (*post_grad.pass_patterns, *joint_graph.pass_patterns):
        for entries in getattr(passes, "patterns", {}).values():
            yield from (getattr(entry, "handler", None) for entry in entries)


# What modules of torch have in this version. They are imported already. ---------------------------


def has_header_folder(codecache: Any) -> bool:
    """Return whether torch keeps precompiled headers in a folder that can be chosen."""
    return hasattr(codecache, "_HEADER_DIR")


def precompiles_headers(codecache: Any) -> bool:
    """Return whether torch precompiles headers of its kernels."""
    return hasattr(codecache, "_precompile_header")


def captures_in_each_thread(cudagraph_trees: Any) -> bool:
    """Return whether each thread may capture CUDA graphs (from 2.13 on)."""
    return hasattr(cudagraph_trees, "_initialize_tls")


def build_kernel(tuner: Any, configuration: Any) -> Any:
    """Build a kernel (`CachingAutotuner`) with one of its configurations."""
    return tuner._precompile_config(configuration)


def best_configuration(cache: Any) -> Mapping[str, Any] | None:
    """Return the fastest configuration of a kernel that `AutotuneCache` has stored, if any."""
    return cast("Mapping[str, Any] | None", cache._read())


# Caches -------------------------------------------------------------------------------------------


def cache_folder() -> str:
    """Return the folder in which torch keeps compiled code."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return cache_dir()


def import_inductor() -> None:
    """Import what the first compile needs. torch 2.11 then queries CUDA devices."""
    import torch._inductor.compile_fx  # noqa: F401


def forget_loaded_kernels(inductor_utils: Any) -> None:
    """Make Inductor forget the kernels that it keeps in memory, keyed by their source code.

    `inductor_utils` is the module `torch._inductor.utils`, or None. It was named
    `clear_inductor_caches` before 2.13.
    """
    clear = getattr(inductor_utils, "clear_caches", None)
    clear = clear or getattr(inductor_utils, "clear_inductor_caches", None)
    if clear is not None:
        clear()
