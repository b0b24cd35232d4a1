# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""State of torch, the process and the model that the fuzzer's programs read without a place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class State:
    """State of torch or of the process that a read puts into the graph."""

    op: str
    changes: Mapping[str, str] = field(default_factory=dict)
    """Statements with a `yield`, after which they are undone."""
    around: Mapping[str, str] = field(default_factory=dict)
    """Contexts of the call."""
    slow: bool = False
    top: str = ""
    """Definitions at the top of the module."""
    is_returned: bool = False
    """Whether the model returns the result, which is not a number."""


FACTOR = {
    "global": "M.factor_{n} = 3.0\nyield",
    "global of another type": "M.factor_{n} = 3\nyield",
    "set and restored": "M.factor_{n} = 3.0; M.factor_{n} = 2.0\nyield",
    "deleted": "del M.factor_{n}\nyield",
}

GROUP = {
    "initialized": (
        "torch.distributed.init_process_group("
        "'gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)\nyield\n"
        "torch.distributed.destroy_process_group()"
    )
}

VARIABLE = {"set": "os.environ['FUZZ_READ'] = '1'\nyield\ndel os.environ['FUZZ_READ']"}


CHILD = {
    "add": "m.child = nn.Linear(2, 2)\nyield",
    "None": "m.child = None\nyield",
    "buffer": "m.register_buffer('child', torch.zeros(2))\nyield",
    "class attribute": "M.Model.child = 3\nyield",
}


def switched(op: str, there: str, back: str, *, slow: bool = False) -> State:
    """Return state with one change, and the statement that undoes it."""
    return State(op=op, changes={"set": f"{there}\nyield\n{back}"}, slow=slow)


SCALED = """def scaled_{n}(v):
    return torch.addmm(v, v, v, alpha=factor_{n})
"""


def returned(top: str, op: str, **more: str) -> State:
    """Return state whose result the model returns: it depends on a global."""
    return State(top=top, op=op, changes={**FACTOR, **more}, is_returned=True)


def operator(kernel: str) -> State:
    """Return an operator with a Python kernel, which torch keeps from the first import."""
    top = """
factor_{n} = 2.0
def kernel_{n}(v):
    return torch.addmm(v, v, v, alpha=sys.modules[__name__].factor_{n})
NAME_{n} = f'fuzz::{__name__}_{n}'

if not hasattr(torch.ops.fuzz, NAME_{n}[6:]):
    torch.library.define(NAME_{n}, '(Tensor v) -> Tensor')
"""
    end = "operator_{n} = getattr(torch.ops.fuzz, NAME_{n}[6:])\n"
    return returned(f"{top}{kernel}{end}", "operator_{n}(self.weight)")


STATES: dict[str, State] = {
    "is_grad_enabled": State(
        op="torch.is_grad_enabled()", around={"enable_grad": "torch.enable_grad()"}
    ),
    "is_inference_mode_enabled": State(
        op="torch.is_inference_mode_enabled()", around={"no_grad": "no_grad_alone()"}
    ),
    "get_default_dtype": switched(
        "torch.get_default_dtype() == torch.float32",
        "torch.set_default_dtype(torch.float64)",
        "torch.set_default_dtype(torch.float32)",
    ),
    "distributed.is_initialized": State(op="torch.distributed.is_initialized()", changes=GROUP),
    "get_world_size": State(
        op="torch.distributed.get_world_size() if torch.distributed.is_initialized() else 3",
        changes=GROUP,
    ),
    "is_autocast_enabled": State(
        op="torch.is_autocast_enabled('cpu')",
        around={"autocast": "torch.autocast('cpu', dtype=torch.bfloat16)"},
    ),
    "get_autocast_dtype": switched(
        "torch.get_autocast_dtype('cpu') == torch.bfloat16",
        "torch.set_autocast_dtype('cpu', torch.float16)",
        "torch.set_autocast_dtype('cpu', torch.bfloat16)",
    ),
    "is_autocast_cache_enabled": switched(
        "torch.is_autocast_cache_enabled()",
        "torch.set_autocast_cache_enabled(False)",
        "torch.set_autocast_cache_enabled(True)",
    ),
    "get_num_threads": switched(
        "torch.get_num_threads()", "torch.set_num_threads(2)", "torch.set_num_threads(1)"
    ),
    "deterministic": switched(
        "torch.are_deterministic_algorithms_enabled()",
        "torch.use_deterministic_algorithms(True)",
        "torch.use_deterministic_algorithms(False)",
    ),
    "deterministic warn only": switched(
        "torch.is_deterministic_algorithms_warn_only_enabled()",
        "torch.use_deterministic_algorithms(True, warn_only=True)",
        "torch.use_deterministic_algorithms(False)",
    ),
    "matmul precision": switched(
        "torch.get_float32_matmul_precision() == 'highest'",
        "torch.set_float32_matmul_precision('high')",
        "torch.set_float32_matmul_precision('highest')",
    ),
    "mkldnn.enabled": switched(
        "torch.backends.mkldnn.enabled",
        "torch.backends.mkldnn.enabled = False",
        "torch.backends.mkldnn.enabled = True",
        slow=True,
    ),
    "cudnn.enabled": switched(
        "torch.backends.cudnn.enabled",
        "torch.backends.cudnn.enabled = False",
        "torch.backends.cudnn.enabled = True",
        slow=True,
    ),
    "flash_sdp_enabled": switched(
        "torch.backends.cuda.flash_sdp_enabled()",
        "torch.backends.cuda.enable_flash_sdp(False)",
        "torch.backends.cuda.enable_flash_sdp(True)",
        slow=True,
    ),
    "default device": State(
        op="torch.get_default_device().type == 'cpu'", around={"device": "torch.device('meta')"}
    ),
    "environment": State(op="os.environ.get('FUZZ_READ') is None", changes=VARIABLE),
    "environment contains": State(op="'FUZZ_READ' in os.environ", changes=VARIABLE),
    "caught environment": State(
        op="try:\n    n = float(os.environ['FUZZ_READ'])\nexcept KeyError:\n    n = 5",
        changes=VARIABLE,
    ),
    "getenv": State(op="os.getenv('FUZZ_READ', '3') == '3'", changes=VARIABLE),
    "sys.modules": switched(
        "'fuzz_later' in sys.modules",
        "sys.modules['fuzz_later'] = types.ModuleType('a')",
        "del sys.modules['fuzz_later']",
    ),
    "caught import": switched(
        "try:\n    import fuzz_later\n    n = 3\nexcept ImportError:\n    n = 5",
        "sys.modules['fuzz_later'] = types.ModuleType('a')",
        "del sys.modules['fuzz_later']",
    ),
    "training": State(
        op="self.training",
        changes={"train": "m.train()\nyield", "train and eval": "m.train(); m.eval()\nyield"},
    ),
    "requires_grad of a weight": State(
        op="self.weight.requires_grad", changes={"set": "m.weight.requires_grad_(False)\nyield"}
    ),
    "parameters": State(
        op="len(list(self.parameters()))",
        changes={
            "add": "m.more = nn.Parameter(torch.zeros(2))\nyield",
            "add in a submodule": "m.child = nn.Linear(2, 2)\nyield",
            "delete and add": "w = m.bias; del m.bias; m.bias = w\nyield",
        },
    ),
    "named modules": State(
        op="sum(len(name) for name, _ in self.named_modules())",
        changes={"add": "m.child = nn.Linear(2, 2)\nyield"},
    ),
    "children": State(
        op="len(list(self.children()))", changes={"add": "m.child = nn.Linear(2, 2)\nyield"}
    ),
    "submodule": State(op="hasattr(self, 'child')", changes=CHILD),
    "caught submodule": State(
        op="try:\n    n = 3 if self.child is not None else 4\nexcept AttributeError:\n    n = 5",
        changes=CHILD,
    ),
    "buffers": State(
        op="len(list(self.buffers()))",
        changes={"add": "m.register_buffer('child', torch.zeros(2))\nyield"},
    ),
    "state_dict": State(
        op="len(self.state_dict())",
        changes={
            "add": "m.child = nn.Linear(2, 2)\nyield",
            "buffer": "m.register_buffer('child', torch.zeros(2), persistent=False)\nyield",
        },
    ),
    "class name": State(
        op="len(type(self).__name__)", changes={"set": "M.Model.__name__ = 'Longer'\nyield"}
    ),
    "method of the model": State(
        op="self.offset(3)",
        changes={
            "instance": "m.offset = same\nyield",
            "class": "M.Model.offset = lambda self, v: v + 2\nyield",
            "module global": "M.same = lambda v: v + 1\nyield",
        },
    ),
    "forward": State(
        op="2",
        changes={
            "hook": "m.register_forward_hook(lambda m, i, o: o * 2)\nyield",
            "pre hook": "m.register_forward_pre_hook(lambda m, i: (i[0] * 2,))\nyield",
            "forward": "m.forward = lambda x: x\nyield",
            "forward of the class": "M.Model.forward = lambda self, x: x\nyield",
            "global hook": (
                "h = nn.modules.module.register_module_forward_hook(lambda m, i, o: "
                "o * 2 if isinstance(o, torch.Tensor) else None)\nyield\nh.remove()"
            ),
            "hook and remove": "m.register_forward_hook(lambda m, i, o: o * 2).remove()\nyield",
            "call impl": "m._call_impl = lambda x: x\nyield",
        },
    ),
    "weight": State(
        op="self.weight.shape[0]",
        changes={
            "other size": (
                "m.weight = nn.Parameter(torch.ones(4, 5))\n"
                "m.bias = nn.Parameter(torch.ones(5))\nyield"
            ),
            "values": "m.weight.data.mul_(2)\nyield",
            "replaced": "m.weight = nn.Parameter(torch.ones(4, 4))\nyield",
            "double": "m.double(); m.float()\nyield",
            "transposed": "m.weight = nn.Parameter(m.weight.detach().t())\nyield",
            "buffer": "w = m.weight.detach(); del m.weight; m.register_buffer('weight', w)\nyield",
            "attribute": "w = m.weight.detach(); del m.weight; m.weight = w\nyield",
            "swapped": "torch.utils.swap_tensors(m.weight, nn.Parameter(torch.ones(4, 4)))\nyield",
            "bias is None": "m.bias = None\nyield",
            "tied": "m.bias = nn.Parameter(m.weight[0].detach())\nyield",
        },
    ),
    "anomaly": switched(
        "torch.is_anomaly_enabled()",
        "torch.autograd.set_detect_anomaly(True)",
        "torch.autograd.set_detect_anomaly(False)",
    ),
    "warn always": switched(
        "torch.is_warn_always_enabled()",
        "torch.set_warn_always(True)",
        "torch.set_warn_always(False)",
    ),
    "debug mode": switched(
        "torch.get_deterministic_debug_mode()",
        "torch.set_deterministic_debug_mode(1)",
        "torch.set_deterministic_debug_mode(0)",
    ),
    "fill uninitialized": switched(
        "torch.utils.deterministic.fill_uninitialized_memory",
        "torch.utils.deterministic.fill_uninitialized_memory = False",
        "torch.utils.deterministic.fill_uninitialized_memory = True",
    ),
    "swap parameters": switched(
        "torch.__future__.get_swap_module_params_on_conversion()",
        "torch.__future__.set_swap_module_params_on_conversion(True)",
        "torch.__future__.set_swap_module_params_on_conversion(False)",
    ),
    "worker info": switched(
        "torch.utils.data.get_worker_info() is None",
        "torch.utils.data._utils.worker._worker_info = 3",
        "torch.utils.data._utils.worker._worker_info = None",
    ),
    "opt_einsum": switched(
        "torch.backends.opt_einsum.enabled",
        "torch.backends.opt_einsum.enabled = not torch.backends.opt_einsum.enabled",
        "torch.backends.opt_einsum.enabled = not torch.backends.opt_einsum.enabled",
    ),
    "initial seed": switched(
        "torch.initial_seed() % 7", "torch.manual_seed(5)", "torch.manual_seed(0)"
    ),
    "working folder": switched(
        "len(os.getcwd())", "kept = os.getcwd(); os.chdir('/')", "os.chdir(kept)"
    ),
    "arguments of the process": switched(
        "len(sys.argv)", "sys.argv.append('more')", "sys.argv.pop()"
    ),
    "path of the process": switched(
        "'/fuzz' in sys.path", "sys.path.append('/fuzz')", "sys.path.remove('/fuzz')"
    ),
    "environment item": State(op="len(os.environ.get('FUZZ_READ', 'text'))", changes=VARIABLE),
    "rank": State(
        op=(
            "torch.distributed.get_rank() if torch.distributed.is_available() and "
            "torch.distributed.is_initialized() else 3"
        ),
        changes=GROUP,
    ),
    "allow_tf32": switched(
        "torch.backends.cuda.matmul.allow_tf32",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cuda.matmul.allow_tf32 = False",
        slow=True,
    ),
    "fast path": switched(
        "torch.backends.mha.get_fastpath_enabled()",
        "torch.backends.mha.set_fastpath_enabled(False)",
        "torch.backends.mha.set_fastpath_enabled(True)",
        slow=True,
    ),
    "a global of the helper": State(
        op="constant()",
        changes={
            "function": "M.constant = lambda: 7\nyield",
            "deleted": "del M.constant\nyield",
            "builtin": "M.float = lambda v: 7.0\nyield",
            "builtin of the process": (
                "import builtins; builtins.constant_later = 3\nyield\ndel builtins.constant_later"
            ),
        },
    ),
    "a shadowed builtin": State(
        op="len([1, 2, 3])",
        changes={
            "global": "M.len = lambda v: 7\nyield",
            "global and deleted": "M.len = lambda v: 7; del M.len\nyield",
        },
    ),
    "a module global": State(
        op="math.floor(2.5)",
        changes={
            "replaced": "M.math = SimpleNamespace(floor=lambda v: 7)\nyield",
            "function": "kept = math.floor; math.floor = lambda v: 7\nyield\nmath.floor = kept",
        },
    ),
    "a torch function": State(
        op="torch.nn.functional.relu(self.weight).shape[0]",
        changes={
            "replaced": (
                "kept = nn.functional.relu; nn.functional.relu = lambda v: v[1:]\n"
                "yield\nnn.functional.relu = kept"
            )
        },
    ),
    "composite operator": operator(
        "    torch.library.impl(NAME_{n}, 'CompositeImplicitAutograd')(kernel_{n})\n"
    ),
    "custom operator": operator(
        "    torch.library.impl(NAME_{n}, 'cpu')(kernel_{n})\n"
        "    torch.library.register_fake(NAME_{n})(torch.empty_like)\n"
    ),
    "autograd function": returned(
        """
factor_{n} = 2.0
class Scaled_{n}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        return torch.addmm(v, v, v, alpha=factor_{n})
""",
        "Scaled_{n}.apply(self.weight)",
        forward="M.Scaled_{n}.forward = staticmethod(lambda ctx, v: v)\nyield",
    ),
    "compiled function in it": returned(
        "\nfactor_{n} = 2.0\n@torch.compile\n" + SCALED, "scaled_{n}(self.weight)"
    ),
    "cond": returned(
        "factor_{n} = 2.0",
        "torch.cond(self.weight.sum() > 0, lambda v: torch.addmm(v, v, v, alpha=factor_{n}), "
        "lambda v: torch.mm(v, v), (self.weight,))",
    ),
    "checkpoint": returned(
        "\nfactor_{n} = 2.0\n" + SCALED,
        "torch.utils.checkpoint.checkpoint(scaled_{n}, self.weight, use_reentrant=False)",
    ),
}
"""Reads without a place."""
