# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled PyTorch models that start warm on Ray Serve.

Each replica proves that it is warm before it takes traffic.

    from serve_warm import Buckets, WarmupMixin, shape_grid

Each name is imported from its module on first use. `import serve_warm` imports neither torch nor
ray, so commands that only inspect artifacts start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from serve_warm._package import __version__ as __version__

if TYPE_CHECKING:
    from serve_warm import errors
    from serve_warm.config import Seats, WarmupConfig
    from serve_warm.fingerprint import Fingerprint
    from serve_warm.generation.compiled import compile_generation
    from serve_warm.inputs import Buckets, Field, Input, shape_grid
    from serve_warm.precompile.compiled import compile, compile_regions  # noqa: A004 - torch's name for it
    from serve_warm.replica.serve.deployment import WarmupMixin, warmup
    from serve_warm.report import Report
    from serve_warm.trust import pinned, signed_by, unsigned_ok

__all__ = [
    "Buckets",
    "Field",
    "Fingerprint",
    "Input",
    "Report",
    "Seats",
    "WarmupConfig",
    "WarmupMixin",
    "compile",
    "compile_generation",
    "compile_regions",
    "errors",
    "pinned",
    "shape_grid",
    "signed_by",
    "unsigned_ok",
    "warmup",
]

# No module may have one of these names. Importing the module would rebind the name in this package:
# `serve_warm.warmup` would become a module instead of the decorator.
_HOMES = {
    "Buckets": "serve_warm.inputs",
    "Field": "serve_warm.inputs",
    "Fingerprint": "serve_warm.fingerprint",
    "Input": "serve_warm.inputs",
    "Report": "serve_warm.report",
    "Seats": "serve_warm.config",
    "WarmupConfig": "serve_warm.config",
    "WarmupMixin": "serve_warm.replica.serve.deployment",
    "compile": "serve_warm.precompile.compiled",
    "compile_generation": "serve_warm.generation.compiled",
    "compile_regions": "serve_warm.precompile.compiled",
    "errors": "serve_warm.errors",
    "pinned": "serve_warm.trust.policy",
    "shape_grid": "serve_warm.inputs",
    "signed_by": "serve_warm.trust.policy",
    "unsigned_ok": "serve_warm.trust.policy",
    "warmup": "serve_warm.replica.serve.deployment",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    value = home if name == "errors" else getattr(home, name)
    globals()[name] = value  # later uses skip __getattr__
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
