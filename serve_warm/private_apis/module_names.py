# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Names of private modules of torch, Triton and Ray, and of their files, variables and threads.

Code that must not import such a module asks whether it is loaded, or waits until another import has
loaded it. All names are the same in torch 2.11 to 2.15, Triton 3.6 and Ray 2.53 to 2.60.
"""

from __future__ import annotations

PRIVATE_PREFIX = "torch._"
"""The names of torch's private modules begin with this text."""

DYNAMO = "torch._dynamo"
"""Dynamo, which `torch.compile` imports."""

DYNAMO_CONFIG = "torch._dynamo.config"
DYNAMO_ERRORS = "torch._dynamo.exc"
EVAL_FRAME = "torch._dynamo.eval_frame"
"""The module through which compiled callables enter Dynamo."""

WRAPPERS = "torch/_dynamo/external_utils.py"
"""The end of the path of torch's wrappers around code that torch does not trace itself."""

POLYFILLS = "torch._dynamo.polyfills"
"""Python code that Dynamo traces instead of code in C."""

CODEGEN = "torch._dynamo.codegen"
OUTPUT_GRAPH = "torch._dynamo.output_graph"
SIDE_EFFECTS = "torch._dynamo.side_effects"
VARIABLES = "torch._dynamo.variables.base"
DICT_VARIABLES = "torch._dynamo.variables.dicts"

INDUCTOR = "torch._inductor"
"""Inductor, which Dynamo imports at the first compile."""

AUTOTUNE_PROCESS = "torch._inductor.autotune_process"
CODECACHE = "torch._inductor.codecache"
COMPILE_FX = "torch._inductor.compile_fx"
"""The module that imports almost all of Inductor."""

CPP_BUILDER = "torch._inductor.cpp_builder"
CPU_VEC_ISA = "torch._inductor.cpu_vec_isa"
CUDAGRAPH_TREES = "torch._inductor.cudagraph_trees"
CUDAGRAPH_UTILS = "torch._inductor.cudagraph_utils"
INDUCTOR_CONFIG = "torch._inductor.config"
INDUCTOR_UTILS = "torch._inductor.utils"
SELECT_ALGORITHM = "torch._inductor.select_algorithm"
TRITON_HEURISTICS = "torch._inductor.runtime.triton_heuristics"

TRITON_AUTOTUNER = "triton.runtime.autotuner"
TRITON_BUILD = "triton.runtime.build"

TRITON_LISTS = "*/__grp__*.json"
"""The lists of the files of each kernel, in Triton's cache directory."""

SERVE_CONTROLLER = "ray.serve._private.controller"
SERVE_REPLICA = "ray.serve._private.replica"

ACTOR_THREAD = "AsyncIO Thread: default"
"""Name of a thread that Ray starts when a worker becomes an actor (2.53 to 2.60). On this thread,
the worker then imports the app. A worker that Ray started in advance waits before it has one."""

SETUP_HOOK_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
"""The variable that names the setup hook of a runtime_env: `WORKER_PROCESS_SETUP_HOOK_ENV_VAR` in
ray/_private/ray_constants.py (Ray 2.60). Ray's own field for the hook works only for whole jobs."""

HOOKED = (
    DYNAMO,
    EVAL_FRAME,
    AUTOTUNE_PROCESS,
    CODECACHE,
    INDUCTOR_CONFIG,
    CPP_BUILDER,
    CPU_VEC_ISA,
    CUDAGRAPH_TREES,
    CUDAGRAPH_UTILS,
    TRITON_HEURISTICS,
    SELECT_ALGORITHM,
    "torch",
    "torch.cuda.graphs",
    "triton",
    TRITON_AUTOTUNER,
    TRITON_BUILD,
)
"""The modules whose import `compiler.imports.when_imported` accepts."""
